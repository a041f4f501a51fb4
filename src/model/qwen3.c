/* Qwen3, dense.  Sources: arXiv 2505.09388; oracle: transformers modeling_qwen3.py.  Letters: internal.h. */
#include "internal.h"

#define QWEN_CONFIG(C)                                                \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)               \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                  \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)             \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)               \
    C(int32_t, Dh, "head_dim", 128, 2, 1024)                          \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)            \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                   \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                         \
    C(int32_t, context, "max_position_embeddings", 32768, 1, 1 << 30) \
    C(bool, windowed, "use_sliding_window", false, 0, 1)              \
    C(int32_t, window_from, "max_window_layers", 28, 0, 1 << 30)      \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                  \
    C(bool, attention_bias, "attention_bias", false, 0, 1)

#define QWEN_ENDS(T)                     \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define QWEN_NORMS(T)                         \
    T(tensor, norm_a, "input_layernorm", D)   \
    T(tensor, norm_q, "self_attn.q_norm", Dh) \
    T(tensor, norm_k, "self_attn.k_norm", Dh) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define QWEN_ATTENTION(T)                      \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define QWEN_MLP(T)                        \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define QWEN_WORK(B)                         \
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
    QWEN_NORMS(TENSOR_MEMBER)
    QWEN_ATTENTION(TENSOR_MEMBER)
    QWEN_MLP(TENSOR_MEMBER)
    attn how;
} layer;

typedef struct qwen {
    model base;
    QWEN_CONFIG(CONFIG_MEMBER)
    QWEN_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    layer *l; /* [L] */
    struct {
        QWEN_WORK(WORK_MEMBER)
    } work;
} qwen;

/* Where windows are in use, layers from max_window_layers on have one, unless layer_types says which. mlx-lm knows no
 * windows here. */
static int32_t window_of(const qwen *m, config *c, int32_t i) {
    const char *type = config_layer_type(c, i, m->L);
    bool sliding = type ? !strcmp(type, "sliding_attention") : i >= m->window_from;
    return m->windowed && sliding && !m->base.compat_mlx_lm ? config_window(c, 4096) : 0;
}

static void configure(model *base, config *c) {
    qwen *m = (qwen *)base;
    QWEN_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    base->info.gives_hidden = true;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = window_of(m, c, i)};
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->l[i].how.window);
    }
}

static void bind(model *base, binder *b) {
    qwen *m = (qwen *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        qwen *w = m;
        bind_at(b, "model.");
        QWEN_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        QWEN_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        QWEN_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        QWEN_MLP(TENSOR_BIND)
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    qwen *m = (qwen *)base;
    QWEN_WORK(WORK_PLAN)
}

/* x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    qwen *m = (qwen *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    QWEN_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v);                       /* q [T,H*Dh], k and v [T,K*Dh] */
        rms_norm(heads(q, m->H), heads(q, m->H), w->norm_q, m->eps); /* each head by itself */
        rms_norm(heads(k, m->K), heads(k, m->K), w->norm_k, m->eps);
        rope(heads(q, m->H), m->rot);
        rope(heads(k, m->K), m->rot);
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, w->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            QWEN_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear2(g, u, h, w->gate, w->up);         /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    if (!tensor_null(s->hidden)) copy(tensor_rows(s->hidden, 0, R), h);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_qwen3 = {"qwen3", sizeof(qwen), configure, bind, work, forward};
