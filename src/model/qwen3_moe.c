/* Qwen3-MoE (30B-A3B, 235B-A22B, Coder).  Sources: arXiv 2505.09388; oracle: transformers modeling_qwen3_moe.py.
 * Letters: internal.h; E experts, A of them chosen, Fe an expert's feed-forward width. */
#include "internal.h"

#define QWEN_CONFIG(C)                                                \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)               \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                  \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)             \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)               \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)          \
    C(int32_t, F, "intermediate_size", 0, 0, 1 << 20)                 \
    C(int32_t, Fe, "moe_intermediate_size", NEEDED, 1, 1 << 20)       \
    C(int32_t, E, "num_experts", NEEDED, 1, 1 << 16)                  \
    C(int32_t, A, "num_experts_per_tok", NEEDED, 1, 1 << 16)          \
    C(bool, normalise, "norm_topk_prob", base->gguf, 0, 1)            \
    C(int32_t, sparse_step, "decoder_sparse_step", 1, 1, 4096)        \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                   \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                         \
    C(int32_t, context, "max_position_embeddings", 32768, 1, 1 << 30) \
    C(bool, windowed, "use_sliding_window", false, 0, 1)              \
    C(int32_t, window, "sliding_window", 4096, 1, 1 << 30)            \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                  \
    C(bool, attention_bias, "attention_bias", false, 0, 1)

#define QWEN_ENDS(T)                     \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define QWEN_LAYER(T)                         \
    T(tensor, norm_a, "input_layernorm", D)   \
    T(tensor, norm_q, "self_attn.q_norm", Dh) \
    T(tensor, norm_k, "self_attn.k_norm", Dh) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define QWEN_ATTENTION(T)                      \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define QWEN_DENSE(T)                      \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)
#define QWEN_SPARSE(T) T(weight, router, "mlp.gate", E, D)

#define QWEN_WORK(B)                         \
    B(x, m->D) /* the residual stream */     \
    B(h, m->D) /* its norm */                \
    B(r, m->D) /* what a block adds to it */ \
    B(q, m->H * m->Dh)                       \
    B(k, m->K * m->Dh)                       \
    B(v, m->K * m->Dh)                       \
    B(a, m->H * m->Dh)                       \
    B(g, m->dense ? m->F : 0)                \
    B(u, m->dense ? m->F : 0)

typedef struct layer {
    QWEN_LAYER(TENSOR_MEMBER)
    QWEN_ATTENTION(TENSOR_MEMBER)
    QWEN_DENSE(TENSOR_MEMBER)
    QWEN_SPARSE(TENSOR_MEMBER)
    moe experts;
    bool sparse; /* experts rather than one feed-forward block */
} layer;

typedef struct qwen {
    model base;
    QWEN_CONFIG(CONFIG_MEMBER)
    QWEN_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    bool dense; /* some layer has no experts */
    layer *l;   /* [L] */
    moe_work moe;
    struct {
        QWEN_WORK(WORK_MEMBER)
    } work;
} qwen;

static bool is_sparse(const qwen *m, const config *c, int32_t i) {
    const json *dense = config_get(c, "mlp_only_layers");
    for (size_t k = 0; json_is(dense, JSON_ARRAY) && k < dense->n; k++)
        if (json_int(json_at(dense, k), -1) == i) return false;
    return (i + 1) % m->sparse_step == 0;
}

static void configure(model *base, config *c) {
    qwen *m = (qwen *)base;
    QWEN_CONFIG(CONFIG_READ)
    moe_check(c, m->E, m->A);
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    if (c->err.code) return;
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh});
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = m->windowed ? m->window : 0};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].sparse = is_sparse(m, c, i);
        m->l[i].experts.how = (router){.kind = ROUTER_SOFTMAX, .normalise = m->normalise, .scale = 1};
        m->dense |= !m->l[i].sparse;
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->how.window);
    }
    config_check(c, !m->dense || m->F > 0, "intermediate_size is missing, but some layers have no experts");
}

static void bind(model *base, binder *b) {
    qwen *m = (qwen *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V, E = m->E;
    {
        qwen *w = m;
        bind_at(b, "model.");
        QWEN_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        QWEN_LAYER(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        QWEN_ATTENTION(TENSOR_BIND)
        bind_bias(b, false);
        if (w->sparse) {
            QWEN_SPARSE(TENSOR_BIND)
            moe_bind(b, &w->experts, "mlp.switch_mlp.", E, m->A, m->Fe, D);
        } else {
            QWEN_DENSE(TENSOR_BIND)
        }
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    qwen *m = (qwen *)base;
    QWEN_WORK(WORK_PLAN)
    moe_plan(p, &m->moe, m->E, m->A, m->Fe, m->D);
}

/* x' = x + Attn(norm(x)),  x'' = x' + Experts(norm(x')),  logits = head · norm(x_L) */
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
        attend(heads(a, m->H), heads(q, m->H), i, m->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            QWEN_WORK(WORK_WANTED)
        }
        linear(r, a, w->o);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        if (w->sparse) {
            tensor score = tensor_rows(m->moe.score, 0, h.dim[0]);
            linear(score, h, w->router); /* [T,E] */
            moe_forward(d, r, h, score, &w->experts, &m->moe, m->hidden_act);
        } else {
            linear2(g, u, h, w->gate, w->up); /* g, u [T,F] */
            act_mul(g, g, u, m->hidden_act);
            linear(r, g, w->down);
        }
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_qwen3_moe = {"qwen3_moe", sizeof(qwen), configure, bind, work, forward};
