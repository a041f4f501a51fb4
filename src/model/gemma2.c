/* Gemma 2 (2B, 9B, 27B).  Sources: arXiv 2408.00118; oracle: transformers modeling_gemma2.py.  Letters: internal.h. */
#include "internal.h"

#define GEMMA2_CONFIG(C)                                                                         \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                                          \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                                             \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)                                        \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)                                          \
    C(int32_t, Dh, "head_dim", 256, 2, 1024)                                                     \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)                                       \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                                              \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                                                    \
    C(int32_t, context, "max_position_embeddings", 8192, 1, 1 << 30)                             \
    C(act, hidden_act, "hidden_activation", ACT_GELU_TANH, 0, 0)                                 \
    C(bool, attention_bias, "attention_bias", false, 0, 1)                                       \
    C(float, query, "query_pre_attn_scalar", query_default(m), 1e-6, 1e6)                        \
    C(float, cap_a, "attn_logit_softcapping", no_cap(c, "attn_logit_softcapping", 50), 0, 1e6)   \
    C(float, cap_o, "final_logit_softcapping", no_cap(c, "final_logit_softcapping", 30), 0, 1e6) \
    C(int32_t, window, "sliding_window", 4096, 1, 1 << 30)                                       \
    C(bool, both_ways, "use_bidirectional_attention", false, 0, 1)

#define GEMMA2_ENDS(T)                   \
    T(weight, tok, "embed_tokens", V, D) \
    T(norm, norm, "norm", D)
#define GEMMA2_NORMS(T)                             \
    T(norm, norm_a, "input_layernorm", D)           \
    T(norm, norm_r, "post_attention_layernorm", D)  \
    T(norm, norm_f, "pre_feedforward_layernorm", D) \
    T(norm, norm_s, "post_feedforward_layernorm", D)
#define GEMMA2_ATTENTION(T)                    \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define GEMMA2_MLP(T)                      \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define GEMMA2_WORK(B)                       \
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
    GEMMA2_NORMS(TENSOR_MEMBER)
    GEMMA2_ATTENTION(TENSOR_MEMBER)
    GEMMA2_MLP(TENSOR_MEMBER)
    attn how;
} layer;

typedef struct gemma2 {
    model base;
    GEMMA2_CONFIG(CONFIG_MEMBER)
    GEMMA2_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    layer *l; /* [L] */
    struct {
        GEMMA2_WORK(WORK_MEMBER)
    } work;
} gemma2;

/* GGUF has no query_pre_attn_scalar: the 27B model alone has it other than the head's width (llama.cpp's rule). */
static double query_default(const gemma2 *m) {
    return !m->base.gguf ? 256 : m->L == 46 ? m->D / MAX(m->H, 1) : m->Dh;
}

/* null, unlike an absent key, means none. */
static double no_cap(const config *c, const char *key, double absent) {
    return json_is(json_get(c->text, key), JSON_NULL) ? 0 : absent;
}

/* Layers alternate, the first sees a window. mlx-lm has none. */
static int32_t window_of(const gemma2 *m, config *c, int32_t i) {
    const char *type = config_layer_type(c, i, m->L);
    bool sliding = type ? !strcmp(type, "sliding_attention") : i % 2 == 0;
    return sliding && !m->base.compat_mlx_lm ? m->window : 0;
}

static void configure(model *base, config *c) {
    gemma2 *m = (gemma2 *)base;
    GEMMA2_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    config_check(c, !m->both_ways, "use_bidirectional_attention is true, allowed is false");
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].how = (attn){.scale = 1 / sqrtf(m->query), .softcap = m->cap_a, .window = window_of(m, c, i)};
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->l[i].how.window);
    }
}

static void bind(model *base, binder *b) {
    gemma2 *m = (gemma2 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    bind_norm_shift(b, base->gguf ? 0 : 1); /* stored as w, used as 1 + w; GGUF stores the sum */
    {
        gemma2 *w = m;
        bind_at(b, "model.");
        GEMMA2_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GEMMA2_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GEMMA2_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        GEMMA2_MLP(TENSOR_BIND)
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    gemma2 *m = (gemma2 *)base;
    GEMMA2_WORK(WORK_PLAN)
}

/* x = √D · embed,  x' = x + norm(Attn(norm(x))),  x'' = x' + norm(FFN(norm(x'))),  logits = cap(head · norm(x_L)) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    gemma2 *m = (gemma2 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GEMMA2_WORK(WORK_TAKE)
    embed(x, m->tok, sqrtf((float)m->D)); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v); /* q [T,H*Dh], k and v [T,K*Dh] */
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, w->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            GEMMA2_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        rms_norm(r, r, w->norm_r, m->eps);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear2(g, u, h, w->gate, w->up);         /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        rms_norm(r, r, w->norm_s, m->eps);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
    if (m->cap_o > 0) softcap(logits, m->cap_o);
}

const family family_gemma2 = {"gemma2", sizeof(gemma2), configure, bind, work, forward};
