/* StarCoder2: LayerNorm, biases everywhere, a feed-forward block without gate.  Sources: arXiv 2402.19173; oracle:
 * transformers modeling_starcoder2.py.  Letters: internal.h. */
#include "internal.h"

#define STARCODER2_CONFIG(C)                                         \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)            \
    C(int32_t, K, "num_key_value_heads", 2, 1, 4096)                 \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)         \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "norm_epsilon", 1e-5, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 4096, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_GELU_TANH, 0, 0)            \
    C(bool, use_bias, "use_bias", true, 0, 1)

#define STARCODER2_ENDS(T)               \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)           \
    T(tensor, norm_b, "norm.bias", D)
#define STARCODER2_LAYER(T)                                 \
    T(tensor, norm_a, "input_layernorm", D)                 \
    T(tensor, norm_a_b, "input_layernorm.bias", D)          \
    T(weight, q, "self_attn.q_proj", H *Dh, D)              \
    T(weight, k, "self_attn.k_proj", K *Dh, D)              \
    T(weight, v, "self_attn.v_proj", K *Dh, D)              \
    T(weight, o, "self_attn.o_proj", D, H *Dh)              \
    T(tensor, norm_f, "post_attention_layernorm", D)        \
    T(tensor, norm_f_b, "post_attention_layernorm.bias", D) \
    T(weight, fc, "mlp.c_fc", F, D)                         \
    T(weight, proj, "mlp.c_proj", D, F)

#define STARCODER2_WORK(B)                   \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D) /* its norm */                \
    B(r, m->D) /* what a block adds to it */ \
    B(q, m->H * m->Dh)                       \
    B(k, m->K * m->Dh)                       \
    B(v, m->K * m->Dh)                       \
    B(a, m->H * m->Dh)                       \
    B(g, m->F)

typedef struct layer {
    STARCODER2_LAYER(TENSOR_MEMBER)
} layer;

typedef struct starcoder2 {
    model base;
    STARCODER2_CONFIG(CONFIG_MEMBER)
    STARCODER2_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        STARCODER2_WORK(WORK_MEMBER)
    } work;
} starcoder2;

static void configure(model *base, config *c) {
    starcoder2 *m = (starcoder2 *)base;
    STARCODER2_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    /* The definition windows every layer where sliding_window is given, and takes hidden_act; mlx-lm knows no windows
     * here and always takes the exact gelu. */
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = base->compat_mlx_lm ? 0 : config_window(c, 0)};
    if (base->compat_mlx_lm) m->hidden_act = ACT_GELU_ERF;
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->how.window);
}

static void bind(model *base, binder *b) {
    starcoder2 *m = (starcoder2 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        starcoder2 *w = m;
        bind_at(b, "model.");
        STARCODER2_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        bind_bias(b, m->use_bias);
        STARCODER2_LAYER(TENSOR_BIND)
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    starcoder2 *m = (starcoder2 *)base;
    STARCODER2_WORK(WORK_PLAN)
}

/* x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    starcoder2 *m = (starcoder2 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    STARCODER2_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        layer_norm(h, x, w->norm_a, w->norm_a_b, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v); /* q [T,H*Dh], k and v [T,K*Dh] */
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, m->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            STARCODER2_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        add(x, r);
        layer_norm(h, x, w->norm_f, w->norm_f_b, m->eps);
        linear(g, h, w->fc); /* [T,F] */
        act(g, g, m->hidden_act);
        linear(r, g, w->proj);
        add(x, r);
    }
    layer_norm(h, x, m->norm, m->norm_b, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_starcoder2 = {"starcoder2", sizeof(starcoder2), configure, bind, work, forward};
