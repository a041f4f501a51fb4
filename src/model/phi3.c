/* Phi-3, Phi-3.5 mini and Phi-4 mini: q, k and v in one product, gate and up in another.  Sources: arXiv 2404.14219;
 * oracle: transformers modeling_phi3.py.  Letters: internal.h. */
#include "internal.h"

#define PHI3_CONFIG(C)                                               \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)            \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)              \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)         \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "rms_norm_eps", 1e-5, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 4096, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)

#define PHI3_ENDS(T)                     \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define PHI3_LAYER(T)                                         \
    T(tensor, norm_a, "input_layernorm", D)                   \
    T(weight, qkv, "self_attn.qkv_proj", (H + 2 * K) * Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)                \
    T(tensor, norm_f, "post_attention_layernorm", D)          \
    T(weight, gate_up, "mlp.gate_up_proj", 2 * F, D)          \
    T(weight, down, "mlp.down_proj", D, F)

#define PHI3_WORK(B)                         \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D) /* its norm */                \
    B(r, m->D) /* what a block adds to it */ \
    B(qkv, (m->H + 2 * m->K) * m->Dh)        \
    B(a, m->H * m->Dh)                       \
    B(gu, 2 * m->F) /* gate, then up */

typedef struct layer {
    PHI3_LAYER(TENSOR_MEMBER)
} layer;

typedef struct phi3 {
    model base;
    PHI3_CONFIG(CONFIG_MEMBER)
    PHI3_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        PHI3_WORK(WORK_MEMBER)
    } work;
} phi3;

static void configure(model *base, config *c) {
    phi3 *m = (phi3 *)base;
    PHI3_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    /* The definition windows every layer where sliding_window is given; mlx-lm knows no windows here. */
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = base->compat_mlx_lm ? 0 : config_window(c, 0)};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->how.window);
}

static void bind(model *base, binder *b) {
    phi3 *m = (phi3 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        phi3 *w = m;
        bind_at(b, "model.");
        PHI3_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        PHI3_LAYER(TENSOR_BIND)
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    phi3 *m = (phi3 *)base;
    PHI3_WORK(WORK_PLAN)
}

/* x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    phi3 *m = (phi3 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    PHI3_WORK(WORK_TAKE)
    tensor q = tensor_cols(qkv, 0, m->H * m->Dh), k = tensor_cols(qkv, m->H * m->Dh, m->K * m->Dh),
           v = tensor_cols(qkv, (m->H + m->K) * m->Dh, m->K * m->Dh);
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear(qkv, h, w->qkv); /* [T,(H+2K)*Dh] */
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, m->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            PHI3_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear(gu, h, w->gate_up);                /* [T,2*F] */
        tensor g = tensor_cols(gu, 0, m->F), u = tensor_cols(gu, m->F, m->F);
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_phi3 = {"phi3", sizeof(phi3), configure, bind, work, forward};
