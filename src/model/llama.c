/* Llama 2 and 3, SmolLM, MiniCPM5, Mistral.  Sources: arXiv 2307.09288, 2310.06825; oracle: transformers
 * modeling_llama.py, modeling_mistral.py.  Letters: internal.h. */
#include "internal.h"

#define LLAMA_CONFIG(C)                                              \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)            \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)              \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)         \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 2048, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                 \
    C(bool, attention_bias, "attention_bias", false, 0, 1)           \
    C(bool, mlp_bias, "mlp_bias", false, 0, 1)

#define LLAMA_ENDS(T)                    \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define LLAMA_NORMS(T)                      \
    T(tensor, norm_a, "input_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define LLAMA_ATTENTION(T)                     \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define LLAMA_MLP(T)                       \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define LLAMA_WORK(B)                        \
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
    LLAMA_NORMS(TENSOR_MEMBER)
    LLAMA_ATTENTION(TENSOR_MEMBER)
    LLAMA_MLP(TENSOR_MEMBER)
    attn how;
} layer;

typedef struct llama {
    model base;
    LLAMA_CONFIG(CONFIG_MEMBER)
    LLAMA_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    layer *l; /* [L] */
    struct {
        LLAMA_WORK(WORK_MEMBER)
    } work;
} llama;

/* Mistral's definition windows every layer (4096 unless the configuration says otherwise, null: none); with layer_types
 * only the sliding ones. mlx-lm knows layer_types alone. */
static int32_t window_of(const llama *m, config *c, int32_t i) {
    const char *type = config_layer_type(c, i, m->L);
    bool mistral = !strcmp(c->type, "mistral");
    int32_t window = config_window(c, mistral ? 4096 : 0);
    if (type) return !strcmp(type, "sliding_attention") ? window : 0;
    return (mistral || m->base.gguf) && !m->base.compat_mlx_lm ? window : 0;
}

static void configure(model *base, config *c) {
    llama *m = (llama *)base;
    LLAMA_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    config_check(c, !config_get(c, "num_local_experts"), "num_local_experts: llama has none");
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    /* GGUF conversion reorders the rows of q and k so that pairs lie side by side. */
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh, .interleaved = base->gguf});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = window_of(m, c, i)};
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->l[i].how.window);
    }
}

static void bind(model *base, binder *b) {
    llama *m = (llama *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        llama *w = m;
        bind_at(b, "model.");
        LLAMA_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        LLAMA_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        LLAMA_ATTENTION(TENSOR_BIND)
        bind_bias(b, m->mlp_bias);
        LLAMA_MLP(TENSOR_BIND)
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    llama *m = (llama *)base;
    LLAMA_WORK(WORK_PLAN)
}

/* x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    llama *m = (llama *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    LLAMA_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
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
            LLAMA_WORK(WORK_WANTED)
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

const family family_llama = {"llama", sizeof(llama), configure, bind, work, forward};
