/* DeepSeek V3 and R1, Kimi K2.  Sources: arXiv 2412.19437; oracle: transformers modeling_deepseek_v3.py. Letters:
 * internal.h; E experts, A of them chosen, Fe an expert's feed-forward width, Fs that of the experts every row takes.
 */
#include "internal.h"

#define DEEPSEEK_CONFIG(C)                                           \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                 \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)           \
    C(int32_t, Fe, "moe_intermediate_size", NEEDED, 1, 1 << 20)      \
    C(int32_t, E, "n_routed_experts", NEEDED, 1, 1 << 16)            \
    C(int32_t, A, "num_experts_per_tok", NEEDED, 1, 1 << 16)         \
    C(int32_t, n_shared, "n_shared_experts", 0, 0, 1 << 10)          \
    C(int32_t, n_dense, "first_k_dense_replace", 0, 0, 4096)         \
    C(int32_t, sparse_step, "moe_layer_freq", 1, 1, 4096)            \
    C(int32_t, n_groups, "n_group", 1, 1, 1 << 10)                   \
    C(int32_t, groups_chosen, "topk_group", 1, 1, 1 << 10)           \
    C(bool, normalise, "norm_topk_prob", true, 0, 1)                 \
    C(float, routed_scale, "routed_scaling_factor", 1, 0, 1e6)       \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                  \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                        \
    C(int32_t, context, "max_position_embeddings", 4096, 1, 1 << 30) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)

#define DEEPSEEK_ENDS(T)                 \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define DEEPSEEK_LAYER(T)                   \
    T(tensor, norm_a, "input_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define DEEPSEEK_DENSE(T)                  \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)
#define DEEPSEEK_ROUTER(T) T(weight, router, "mlp.gate", E, D)
#define DEEPSEEK_SHARED(T)                                 \
    T(weight, gate, "mlp.shared_experts.gate_proj", Fs, D) \
    T(weight, up, "mlp.shared_experts.up_proj", Fs, D)     \
    T(weight, down, "mlp.shared_experts.down_proj", D, Fs)

#define DEEPSEEK_WORK(B)                         \
    B(x, m->D) /* the residual stream */         \
    B(h, m->D) /* its norm */                    \
    B(r, m->D) /* what a block adds to it */     \
    B(y, m->D) /* what the chosen experts add */ \
    B(g, MAX(m->F, m->Fs))                       \
    B(u, MAX(m->F, m->Fs))

typedef struct layer {
    DEEPSEEK_LAYER(TENSOR_MEMBER)
    mla_layer attention;
    DEEPSEEK_DENSE(TENSOR_MEMBER) /* of the whole block, or of the experts that every row takes */
    DEEPSEEK_ROUTER(TENSOR_MEMBER)
    moe experts;
    bool sparse; /* experts rather than one feed-forward block */
} layer;

typedef struct deepseek {
    model base;
    DEEPSEEK_CONFIG(CONFIG_MEMBER)
    DEEPSEEK_ENDS(TENSOR_MEMBER)
    weight head;
    int32_t Fs;
    mla mla;
    layer *l; /* [L] */
    moe_work moe;
    mla_work attention;
    struct {
        DEEPSEEK_WORK(WORK_MEMBER)
    } work;
} deepseek;

static void configure(model *base, config *c) {
    deepseek *m = (deepseek *)base;
    DEEPSEEK_CONFIG(CONFIG_READ)
    moe_check(c, m->E, m->A);
    config_says(c, "scoring_func", "sigmoid");
    config_says(c, "topk_method", "noaux_tc");
    config_check(c, m->E % MAX(m->n_groups, 1) == 0, "n_routed_experts %d is no multiple of n_group %d", m->E,
                 m->n_groups);
    config_check(c, m->groups_chosen <= m->n_groups, "topk_group is %d, n_group %d", m->groups_chosen, m->n_groups);
    mla_configure(base, c, &m->mla, m->D);
    if (c->err.code) return;
    m->Fs = m->Fe * m->n_shared;
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].sparse = i >= m->n_dense && i % m->sparse_step == 0;
        m->l[i].experts.how = (router){.kind = ROUTER_SIGMOID,
                                       .normalise = m->normalise,
                                       .scale = m->routed_scale,
                                       .n_groups = m->n_groups,
                                       .groups_chosen = m->groups_chosen,
                                       .lost = base->compat_mlx_lm ? 0 : -INFINITY};
        mla_layer_add(base, c, &m->mla, &m->l[i].attention);
    }
}

static void bind(model *base, binder *b) {
    deepseek *m = (deepseek *)base;
    const int32_t D = m->D, F = m->F, Fs = m->Fs, V = m->V, E = m->E;
    {
        deepseek *w = m;
        bind_at(b, "model.");
        DEEPSEEK_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        DEEPSEEK_LAYER(TENSOR_BIND)
        mla_bind(b, &w->attention, &m->mla);
        if (w->sparse) {
            DEEPSEEK_ROUTER(TENSOR_BIND)
            bind_tensor(b, &w->experts.bias, "mlp.gate.e_score_correction_bias", 1, (int32_t[]){E});
            moe_bind(b, &w->experts, "mlp.switch_mlp.", E, m->A, m->Fe, D);
        }
        if (w->sparse && Fs) {
            DEEPSEEK_SHARED(TENSOR_BIND)
        } else if (!w->sparse) {
            DEEPSEEK_DENSE(TENSOR_BIND)
        }
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    deepseek *m = (deepseek *)base;
    DEEPSEEK_WORK(WORK_PLAN)
    moe_plan(p, &m->moe, m->E, m->A, m->Fe, m->D);
    mla_plan(p, &m->mla, &m->attention);
}

/* x' = x + Attn(norm(x)),  x'' = x' + Chosen(norm(x')) + Shared(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    deepseek *m = (deepseek *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    DEEPSEEK_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        mla_project(d, kv, s, h, &m->mla, &w->attention, &m->attention);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        mla_attend(d, kv, s, r, (tensor){0}, &m->mla, &w->attention, &m->attention);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(r, y);
            keep_wanted(x, h);
            DEEPSEEK_WORK(WORK_WANTED)
        }
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        if (w->sparse) {
            tensor score = tensor_rows(m->moe.score, 0, h.dim[0]);
            linear(score, h, w->router); /* [T,E] */
            moe_forward(d, y, h, score, &w->experts, &m->moe, m->hidden_act);
            add(x, y);
        }
        if (w->sparse && !m->Fs) continue;
        tensor gate = tensor_cols(g, 0, w->gate.n_out), both = tensor_cols(u, 0, w->gate.n_out);
        linear2(gate, both, h, w->gate, w->up);
        act_mul(gate, gate, both, m->hidden_act);
        linear(r, gate, w->down);
        add(x, r);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
}

const family family_deepseek_v3 = {"deepseek_v3", sizeof(deepseek), configure, bind, work, forward};
