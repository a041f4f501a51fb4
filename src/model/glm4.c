/* GLM-4 0414 (9B, 32B, Z1): norms before and behind the blocks, half of each head rotated in neighbouring pairs, gate
 * and up in one product.  Sources: github.com/THUDM/GLM-4; oracle: transformers modeling_glm4.py.  Letters: internal.h.
 */
#include "internal.h"

#define GLM4_CONFIG(C)                                                 \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                   \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)              \
    C(int32_t, K, "num_key_value_heads", 2, 1, 4096)                   \
    C(int32_t, Dh, "head_dim", 128, 2, 1024)                           \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)             \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                    \
    C(float, eps, "rms_norm_eps", 1.5625e-7, 0, 1)                     \
    C(int32_t, context, "max_position_embeddings", 131072, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                   \
    C(bool, attention_bias, "attention_bias", true, 0, 1)

#define GLM4_ENDS(T)                     \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define GLM4_NORMS(T)                                 \
    T(tensor, norm_a, "input_layernorm", D)           \
    T(tensor, norm_a2, "post_self_attn_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)  \
    T(tensor, norm_f2, "post_mlp_layernorm", D)
#define GLM4_QKV(T)                            \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D)
#define GLM4_REST(T)                                 \
    T(weight, o, "self_attn.o_proj", D, H *Dh)       \
    T(weight, gate_up, "mlp.gate_up_proj", 2 * F, D) \
    T(weight, down, "mlp.down_proj", D, F)

#define GLM4_WORK(B)                         \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D) /* its norm */                \
    B(r, m->D) /* what a block adds to it */ \
    B(q, m->H * m->Dh)                       \
    B(k, m->K * m->Dh)                       \
    B(v, m->K * m->Dh)                       \
    B(a, m->H * m->Dh)                       \
    B(gu, 2 * m->F) /* gate, then up */

typedef struct layer {
    GLM4_NORMS(TENSOR_MEMBER)
    GLM4_QKV(TENSOR_MEMBER)
    GLM4_REST(TENSOR_MEMBER)
} layer;

typedef struct glm4 {
    model base;
    GLM4_CONFIG(CONFIG_MEMBER)
    GLM4_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    struct {
        GLM4_WORK(WORK_MEMBER)
    } work;
} glm4;

static void configure(model *base, config *c) {
    glm4 *m = (glm4 *)base;
    GLM4_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    /* GGUF says how wide the rotated part is by rope.dimension_count: all of a head without it. */
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh, .partial = base->gguf ? 1 : 0.5f, .interleaved = true});
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh)};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) kv_layer_add(base, c, m->K, m->Dh, m->Dh, 0);
}

static void bind(model *base, binder *b) {
    glm4 *m = (glm4 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        glm4 *w = m;
        bind_at(b, "model.");
        GLM4_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GLM4_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GLM4_QKV(TENSOR_BIND)
        bind_bias(b, false);
        GLM4_REST(TENSOR_BIND)
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    glm4 *m = (glm4 *)base;
    GLM4_WORK(WORK_PLAN)
}

/* x' = x + norm2(Attn(norm(x))),  x'' = x' + norm2(FFN(norm(x'))),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    glm4 *m = (glm4 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GLM4_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
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
            GLM4_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        rms_norm(r, r, w->norm_a2, m->eps);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear(gu, h, w->gate_up);                /* [T,2*F] */
        tensor g = tensor_cols(gu, 0, m->F), u = tensor_cols(gu, m->F, m->F);
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        rms_norm(r, r, w->norm_f2, m->eps);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_glm4 = {"glm4", sizeof(glm4), configure, bind, work, forward};
