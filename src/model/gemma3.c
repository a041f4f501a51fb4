/* Gemma 3 (270M, 1B and the text part of 4B, 12B, 27B).  Sources: arXiv 2503.19786; oracle: transformers
 * modeling_gemma3.py.  Letters: internal.h. */
#include "internal.h"

#define GEMMA3_CONFIG(C)                                                  \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                   \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                      \
    C(int32_t, H, "num_attention_heads", 8, 1, 4096)                      \
    C(int32_t, K, "num_key_value_heads", 4, 1, 4096)                      \
    C(int32_t, Dh, "head_dim", 256, 2, 1024)                              \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)                \
    C(int32_t, V, "vocab_size", 262208, 1, 1 << 24)                       \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                             \
    C(int32_t, context, "max_position_embeddings", 131072, 1, 1 << 30)    \
    C(act, hidden_act, "hidden_activation", ACT_GELU_TANH, 0, 0)          \
    C(bool, attention_bias, "attention_bias", false, 0, 1)                \
    C(float, query, "query_pre_attn_scalar", query_default(m), 1e-6, 1e6) \
    C(float, cap_a, "attn_logit_softcapping", 0, 0, 1e6)                  \
    C(float, cap_o, "final_logit_softcapping", 0, 0, 1e6)                 \
    C(int32_t, window, "sliding_window", 4096, 1, 1 << 30)                \
    C(int32_t, pattern, "sliding_window_pattern", 6, 1, 4096)             \
    C(bool, both_ways, "use_bidirectional_attention", false, 0, 1)

#define GEMMA3_ENDS(T)                   \
    T(weight, tok, "embed_tokens", V, D) \
    T(norm, norm, "norm", D)
#define GEMMA3_NORMS(T)                             \
    T(norm, norm_a, "input_layernorm", D)           \
    T(norm, norm_q, "self_attn.q_norm", Dh)         \
    T(norm, norm_k, "self_attn.k_norm", Dh)         \
    T(norm, norm_r, "post_attention_layernorm", D)  \
    T(norm, norm_f, "pre_feedforward_layernorm", D) \
    T(norm, norm_s, "post_feedforward_layernorm", D)
#define GEMMA3_ATTENTION(T)                    \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define GEMMA3_MLP(T)                      \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define GEMMA3_WORK(B)                       \
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
    GEMMA3_NORMS(TENSOR_MEMBER)
    GEMMA3_ATTENTION(TENSOR_MEMBER)
    GEMMA3_MLP(TENSOR_MEMBER)
    attn how;
    const rope_table *rot; /* borrows (gemma3) */
} layer;

typedef struct gemma3 {
    model base;
    GEMMA3_CONFIG(CONFIG_MEMBER)
    GEMMA3_ENDS(TENSOR_MEMBER)
    weight head;
    float embed_scale;
    rope_table rot_all, rot_window; /* of layers that see everything, and of those with a window */
    layer *l;                       /* [L] */
    struct {
        GEMMA3_WORK(WORK_MEMBER)
    } work;
} gemma3;

/* GGUF has no query_pre_attn_scalar: the 27B model alone has it other than the head's width (llama.cpp's rule). */
static double query_default(const gemma3 *m) {
    return !m->base.gguf ? 256 : m->L == 62 ? m->D / MAX(m->H, 1) : m->Dh;
}

/* Every `pattern`th layer sees everything. */
static bool is_sliding(const gemma3 *m, config *c, int32_t i) {
    const char *type = config_layer_type(c, i, m->L);
    return type ? !strcmp(type, "sliding_attention") : (i + 1) % m->pattern != 0;
}

static void configure(model *base, config *c) {
    gemma3 *m = (gemma3 *)base;
    GEMMA3_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    config_check(c, !m->both_ways, "use_bidirectional_attention is true, allowed is false");
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    m->embed_scale = bf16_to_f32(f32_to_bf16(sqrtf((float)m->D))); /* as it was trained, in all arithmetic */
    rope_make(base, c, &m->rot_all, &(rope_opts){.head = m->Dh, .theta = 1e6f, .layer_type = "full_attention"});
    rope_make(base, c, &m->rot_window,
              &(rope_opts){.head = m->Dh, .layer_type = "sliding_attention", .theta_key = "rope_local_base_freq"});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bool sliding = is_sliding(m, c, i);
        w->how = (attn){.scale = 1 / sqrtf(m->query), .softcap = m->cap_a, .window = sliding ? m->window : 0};
        w->rot = sliding ? &m->rot_window : &m->rot_all;
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, w->how.window);
    }
}

static void bind(model *base, binder *b) {
    gemma3 *m = (gemma3 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    bind_norm_shift(b, base->gguf ? 0 : 1); /* stored as w, used as 1 + w; GGUF stores the sum */
    {
        gemma3 *w = m;
        bind_at(b, "model.");
        GEMMA3_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GEMMA3_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GEMMA3_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        GEMMA3_MLP(TENSOR_BIND)
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    gemma3 *m = (gemma3 *)base;
    GEMMA3_WORK(WORK_PLAN)
}

/* x = √D · embed,  q and k of each head normed,  x' = x + norm(Attn(norm(x))),  x'' = x' + norm(FFN(norm(x'))),  logits
 * = cap(head · norm(x_L)) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    gemma3 *m = (gemma3 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GEMMA3_WORK(WORK_TAKE)
    embed(x, m->tok, m->embed_scale); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v);                       /* q [T,H*Dh], k and v [T,K*Dh] */
        rms_norm(heads(q, m->H), heads(q, m->H), w->norm_q, m->eps); /* each head by itself */
        rms_norm(heads(k, m->K), heads(k, m->K), w->norm_k, m->eps);
        rope(heads(q, m->H), *w->rot);
        rope(heads(k, m->K), *w->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, w->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            GEMMA3_WORK(WORK_WANTED)
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

const family family_gemma3 = {"gemma3", sizeof(gemma3), configure, bind, work, forward};
