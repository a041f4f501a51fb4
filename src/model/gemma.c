/* Gemma (2B, 7B, CodeGemma).  Sources: arXiv 2403.08295; oracle: transformers modeling_gemma.py.  Letters: internal.h.
 */
#include "internal.h"

#define GEMMA_CONFIG(C)                                              \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)            \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)              \
    C(int32_t, Dh, "head_dim", 256, 2, 1024)                         \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 8192, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_GELU_TANH, 0, 0)            \
    C(bool, attention_bias, "attention_bias", false, 0, 1)           \
    C(bool, both_ways, "use_bidirectional_attention", false, 0, 1)

#define GEMMA_ENDS(T)                    \
    T(weight, tok, "embed_tokens", V, D) \
    T(norm, norm, "norm", D)
#define GEMMA_NORMS(T)                    \
    T(norm, norm_a, "input_layernorm", D) \
    T(norm, norm_f, "post_attention_layernorm", D)
#define GEMMA_ATTENTION(T)                     \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define GEMMA_MLP(T)                       \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define GEMMA_WORK(B)                        \
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
    GEMMA_NORMS(TENSOR_MEMBER)
    GEMMA_ATTENTION(TENSOR_MEMBER)
    GEMMA_MLP(TENSOR_MEMBER)
} layer;

typedef struct gemma {
    model base;
    GEMMA_CONFIG(CONFIG_MEMBER)
    GEMMA_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        GEMMA_WORK(WORK_MEMBER)
    } work;
} gemma;

static void configure(model *base, config *c) {
    gemma *m = (gemma *)base;
    GEMMA_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    config_check(c, !m->both_ways, "use_bidirectional_attention is true, allowed is false");
    /* Its configurations say "gelu" and mean the approximation; mlx-lm takes them at their word. */
    if (m->hidden_act == ACT_GELU_ERF || m->hidden_act == ACT_GELU_TANH)
        m->hidden_act = base->compat_mlx_lm ? ACT_GELU_ERF : ACT_GELU_TANH;
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
    gemma *m = (gemma *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    bind_norm_shift(b, base->gguf ? 0 : 1); /* stored as w, used as 1 + w; GGUF stores the sum */
    {
        gemma *w = m;
        bind_at(b, "model.");
        GEMMA_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GEMMA_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GEMMA_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        GEMMA_MLP(TENSOR_BIND)
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    gemma *m = (gemma *)base;
    GEMMA_WORK(WORK_PLAN)
}

/* x = √D · embed,  x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    gemma *m = (gemma *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GEMMA_WORK(WORK_TAKE)
    embed(x, m->tok, sqrtf((float)m->D)); /* x [T,D] */
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
            GEMMA_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear2(g, u, h, w->gate, w->up);         /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_gemma = {"gemma", sizeof(gemma), configure, bind, work, forward};
