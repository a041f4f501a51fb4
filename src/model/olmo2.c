/* OLMo 2: norms behind the blocks instead of before them, q and k normalised over their whole width.  Sources: arXiv
 * 2501.00656; oracle: transformers modeling_olmo2.py.  Letters: internal.h. */
#include "internal.h"

#define OLMO2_CONFIG(C)                                              \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)            \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)              \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)         \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "rms_norm_eps", 1e-5, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 2048, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                 \
    C(bool, attention_bias, "attention_bias", false, 0, 1)

#define OLMO2_ENDS(T)                    \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define OLMO2_NORMS(T)                               \
    T(tensor, norm_q, "self_attn.q_norm", H *Dh)     \
    T(tensor, norm_k, "self_attn.k_norm", K *Dh)     \
    T(tensor, norm_a, "post_attention_layernorm", D) \
    T(tensor, norm_f, "post_feedforward_layernorm", D)
#define OLMO2_ATTENTION(T)                     \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define OLMO2_MLP(T)                       \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define OLMO2_WORK(B)                        \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D)                               \
    B(r, m->D) /* what a block adds to it */ \
    B(q, m->H * m->Dh)                       \
    B(k, m->K * m->Dh)                       \
    B(v, m->K * m->Dh)                       \
    B(a, m->H * m->Dh)                       \
    B(g, m->F)                               \
    B(u, m->F)

typedef struct layer {
    OLMO2_NORMS(TENSOR_MEMBER)
    OLMO2_ATTENTION(TENSOR_MEMBER)
    OLMO2_MLP(TENSOR_MEMBER)
} layer;

typedef struct olmo2 {
    model base;
    OLMO2_CONFIG(CONFIG_MEMBER)
    OLMO2_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        OLMO2_WORK(WORK_MEMBER)
    } work;
} olmo2;

static void configure(model *base, config *c) {
    olmo2 *m = (olmo2 *)base;
    OLMO2_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh)};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) kv_layer_add(base, c, m->K, m->Dh, m->Dh, 0);
}

static void bind(model *base, binder *b) {
    olmo2 *m = (olmo2 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        olmo2 *w = m;
        bind_at(b, "model.");
        OLMO2_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        OLMO2_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        OLMO2_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        OLMO2_MLP(TENSOR_BIND)
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    olmo2 *m = (olmo2 *)base;
    OLMO2_WORK(WORK_PLAN)
}

/* x' = x + norm(Attn(x)),  x'' = x' + norm(FFN(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    olmo2 *m = (olmo2 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    OLMO2_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        linear3(q, k, v, x, w->q, w->k, w->v); /* q [T,H*Dh], k and v [T,K*Dh] */
        rms_norm(q, q, w->norm_q, m->eps);
        rms_norm(k, k, w->norm_k, m->eps);
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, m->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            OLMO2_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        rms_norm(r, r, w->norm_a, m->eps);
        add(x, r);
        linear2(g, u, x, w->gate, w->up); /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        rms_norm(r, r, w->norm_f, m->eps);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_olmo2 = {"olmo2", sizeof(olmo2), configure, bind, work, forward};
