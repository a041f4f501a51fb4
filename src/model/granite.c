/* Granite 3 and 4.0 dense: llama with four multipliers.  Sources: arXiv 2408.13359; oracle: transformers
 * modeling_granite.py.  Letters: internal.h. */
#include "internal.h"

#define GRANITE_CONFIG(C)                                                \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                  \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                     \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)                \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)                  \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)             \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)               \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                      \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                            \
    C(int32_t, context, "max_position_embeddings", 2048, 1, 1 << 30)     \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                     \
    C(float, embedding_multiplier, "embedding_multiplier", 1, -1e6, 1e6) \
    C(float, residual_multiplier, "residual_multiplier", 1, -1e6, 1e6)   \
    C(float, attention_multiplier, "attention_multiplier", 1, -1e6, 1e6) \
    C(float, logits_scaling, "logits_scaling", 1, 1e-6, 1e6)             \
    C(bool, attention_bias, "attention_bias", false, 0, 1)               \
    C(bool, mlp_bias, "mlp_bias", false, 0, 1)

#define GRANITE_ENDS(T)                  \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define GRANITE_NORMS(T)                    \
    T(tensor, norm_a, "input_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define GRANITE_ATTENTION(T)                   \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define GRANITE_MLP(T)                     \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define GRANITE_WORK(B)                      \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D) /* its norm */                \
    B(r, m->D) /* what a block adds to it */ \
    B(q, m->H * m->Dh)                       \
    B(k, m->K * m->Dh)                       \
    B(v, m->K * m->Dh)                       \
    B(a, m->H * m->Dh)                       \
    B(g, m->F)                               \
    B(u, m->F)

typedef struct layer {
    GRANITE_NORMS(TENSOR_MEMBER)
    GRANITE_ATTENTION(TENSOR_MEMBER)
    GRANITE_MLP(TENSOR_MEMBER)
} layer;

typedef struct granite {
    model base;
    GRANITE_CONFIG(CONFIG_MEMBER)
    GRANITE_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        GRANITE_WORK(WORK_MEMBER)
    } work;
} granite;

static void configure(model *base, config *c) {
    granite *m = (granite *)base;
    GRANITE_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh, .interleaved = base->gguf});
    m->how = (attn){.scale = m->attention_multiplier};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) kv_layer_add(base, c, m->K, m->Dh, m->Dh, 0);
}

static void bind(model *base, binder *b) {
    granite *m = (granite *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        granite *w = m;
        bind_at(b, "model.");
        GRANITE_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GRANITE_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GRANITE_ATTENTION(TENSOR_BIND)
        bind_bias(b, m->mlp_bias);
        GRANITE_MLP(TENSOR_BIND)
        bind_bias(b, false);
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    granite *m = (granite *)base;
    GRANITE_WORK(WORK_PLAN)
}

/* x' = x + c·Attn(norm(x)),  x'' = x' + c·FFN(norm(x')),  logits = head · norm(x_L) / logits_scaling */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    granite *m = (granite *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GRANITE_WORK(WORK_TAKE)
    embed(x, m->tok, m->embedding_multiplier); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v); /* q [T,H*Dh], k and v [T,K*Dh] */
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, m->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            GRANITE_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        scale(r, m->residual_multiplier);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear2(g, u, h, w->gate, w->up);         /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        scale(r, m->residual_multiplier);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
    scale(logits, 1 / m->logits_scaling);
}

const family family_granite = {"granite", sizeof(granite), configure, bind, work, forward};
