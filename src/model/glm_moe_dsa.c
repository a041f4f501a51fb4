/* GLM-5: latent attention over the positions that an indexer chooses. Sources: DeepSeek-V3.2-Exp report, section 2.1;
 * arXiv 2603.12201 (layers that take over a choice); oracle: transformers modeling_glm_moe_dsa.py. Letters: internal.h;
 * E experts, A of them chosen, Fe an expert's feed-forward width, Fs that of the experts every row takes; Hi index
 * heads of Di columns, S positions chosen. */
#include "internal.h"

#define GLM_CONFIG(C)                                                 \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)               \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                  \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)            \
    C(int32_t, Fe, "moe_intermediate_size", NEEDED, 1, 1 << 20)       \
    C(int32_t, E, "n_routed_experts", NEEDED, 1, 1 << 16)             \
    C(int32_t, A, "num_experts_per_tok", NEEDED, 1, 1 << 16)          \
    C(int32_t, n_shared, "n_shared_experts", 0, 0, 1 << 10)           \
    C(int32_t, n_dense, "first_k_dense_replace", 0, 0, 4096)          \
    C(int32_t, sparse_step, "moe_layer_freq", 1, 1, 4096)             \
    C(int32_t, n_groups, "n_group", 1, 1, 1 << 10)                    \
    C(int32_t, groups_chosen, "topk_group", 1, 1, 1 << 10)            \
    C(bool, normalise, "norm_topk_prob", true, 0, 1)                  \
    C(float, routed_scale, "routed_scaling_factor", 1, 0, 1e6)        \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                   \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                         \
    C(int32_t, context, "max_position_embeddings", 4096, 1, 1 << 30)  \
    C(int32_t, S, "index_topk", NEEDED, 1, 1 << 20)                   \
    C(int32_t, Hi, "index_n_heads", NEEDED, 1, 1024)                  \
    C(int32_t, Di, "index_head_dim", NEEDED, 2, 1024)                 \
    C(int32_t, index_every, "index_topk_freq", 1, 0, 4096)            \
    C(int32_t, index_first, "index_skip_topk_offset", 2, 0, 4096)     \
    C(bool, index_interleaved, "indexer_rope_interleave", true, 0, 1) \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)

#define GLM_ENDS(T)                      \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define GLM_LAYER(T)                        \
    T(tensor, norm_a, "input_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define GLM_INDEXER(T)                                          \
    T(weight, index_q, "self_attn.indexer.wq_b", Hi *Di, Q)     \
    T(weight, index_k, "self_attn.indexer.wk", Di, D)           \
    T(weight, index_w, "self_attn.indexer.weights_proj", Hi, D) \
    T(tensor, index_norm, "self_attn.indexer.k_norm", Di)       \
    T(tensor, index_shift, "self_attn.indexer.k_norm.bias", Di)
#define GLM_DENSE(T)                       \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)
#define GLM_ROUTER(T) T(weight, router, "mlp.gate", E, D)
#define GLM_SHARED(T)                                      \
    T(weight, gate, "mlp.shared_experts.gate_proj", Fs, D) \
    T(weight, up, "mlp.shared_experts.up_proj", Fs, D)     \
    T(weight, down, "mlp.shared_experts.down_proj", D, Fs)

#define GLM_WORK(B)                              \
    B(x, m->D) /* the residual stream */         \
    B(h, m->D) /* its norm */                    \
    B(r, m->D) /* what a block adds to it */     \
    B(y, m->D) /* what the chosen experts add */ \
    B(g, MAX(m->F, m->Fs))                       \
    B(u, MAX(m->F, m->Fs))                       \
    B(qi, m->Hi * m->Di)                         \
    B(ki, m->Di)                                 \
    B(wi, m->Hi)                                 \
    B(chosen, m->S) /* i32 */

typedef struct layer {
    GLM_LAYER(TENSOR_MEMBER)
    mla_layer attention;
    GLM_INDEXER(TENSOR_MEMBER)
    int32_t kv_index;        /* layer of the indexer's keys in the cache */
    bool chooses;            /* has an indexer; otherwise takes over the choice of the last layer that has */
    GLM_DENSE(TENSOR_MEMBER) /* of the whole block, or of the experts that every row takes */
    GLM_ROUTER(TENSOR_MEMBER)
    moe experts;
    bool sparse; /* experts rather than one feed-forward block */
} layer;

typedef struct glm {
    model base;
    GLM_CONFIG(CONFIG_MEMBER)
    GLM_ENDS(TENSOR_MEMBER)
    weight head;
    int32_t Fs;
    mla mla;
    rope_table rot; /* of the indexer */
    layer *l;       /* [L] */
    moe_work moe;
    mla_work attention;
    struct {
        GLM_WORK(WORK_MEMBER)
    } work;
} glm;

/* indexer_types says it layer by layer; without it every index_topk_freq-th layer has an indexer, and those before. */
static bool chooses(const glm *m, config *c, int32_t i) {
    const json *types = config_get(c, "indexer_types");
    config_check(c, !config_get(c, "index_topk_pattern") || types, "index_topk_pattern without indexer_types");
    if (!types) return !m->index_every || MAX(i - m->index_first + 1, 0) % m->index_every == 0;
    str type = json_str(json_at(types, (size_t)i), STR(""));
    bool full = str_is(type, "full");
    config_check(c, full || str_is(type, "shared"), "indexer_types[%d] is \"%.*s\", allowed is full or shared", i,
                 (int)MIN(type.n, 40), type.p);
    return full;
}

static bool is_sparse(const glm *m, config *c, int32_t i) {
    const json *types = config_get(c, "mlp_layer_types");
    if (!types) return i >= m->n_dense && i % m->sparse_step == 0;
    str type = json_str(json_at(types, (size_t)i), STR(""));
    config_check(c, str_is(type, "dense") || str_is(type, "sparse"),
                 "mlp_layer_types[%d] is \"%.*s\", allowed is dense or sparse", i, (int)MIN(type.n, 40), type.p);
    return str_is(type, "sparse");
}

static void configure(model *base, config *c) {
    glm *m = (glm *)base;
    GLM_CONFIG(CONFIG_READ)
    moe_check(c, m->E, m->A);
    config_says(c, "scoring_func", "sigmoid");
    config_says(c, "topk_method", "noaux_tc");
    config_check(c, m->E % MAX(m->n_groups, 1) == 0, "n_routed_experts %d is no multiple of n_group %d", m->E,
                 m->n_groups);
    config_check(c, m->groups_chosen <= m->n_groups, "topk_group is %d, n_group %d", m->groups_chosen, m->n_groups);
    mla_configure(base, c, &m->mla, m->D);
    config_check(c, m->mla.Q > 0, "q_lora_rank is %d, but an indexer needs it", m->mla.Q);
    config_check(c, m->Di >= m->mla.P, "index_head_dim is %d, qk_rope_head_dim %d", m->Di, m->mla.P);
    if (c->err.code) return;
    m->Fs = m->Fe * m->n_shared;
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    base->info.context_default = 4096; /* a model that fills a machine is served with what is left (spec/cli.md) */
    base->info.budget_default = (size_t)25 << 30;
    m->rot = m->mla.rot;
    m->rot.interleaved = m->index_interleaved;
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].sparse = is_sparse(m, c, i);
        m->l[i].chooses = chooses(m, c, i);
        m->l[i].experts.how = (router){.kind = ROUTER_SIGMOID,
                                       .normalise = m->normalise,
                                       .scale = m->routed_scale,
                                       .n_groups = m->n_groups,
                                       .groups_chosen = m->groups_chosen,
                                       .lost = base->compat_mlx_lm ? 0 : -INFINITY};
        mla_layer_add(base, c, &m->mla, &m->l[i].attention);
        if (m->l[i].chooses) m->l[i].kv_index = kv_layer_add(base, c, 1, m->Di, 0, 0);
    }
    config_check(c, m->l[0].chooses, "the first layer has no indexer whose choice it could take over");
}

static void bind(model *base, binder *b) {
    glm *m = (glm *)base;
    const int32_t D = m->D, F = m->F, Fs = m->Fs, V = m->V, E = m->E, Hi = m->Hi, Di = m->Di, Q = m->mla.Q;
    {
        glm *w = m;
        bind_at(b, "model.");
        GLM_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        GLM_LAYER(TENSOR_BIND)
        mla_bind(b, &w->attention, &m->mla);
        if (w->chooses) {
            GLM_INDEXER(TENSOR_BIND)
        }
        if (w->sparse) {
            GLM_ROUTER(TENSOR_BIND)
            bind_tensor(b, &w->experts.bias, "mlp.gate.e_score_correction_bias", 1, (int32_t[]){E});
            moe_bind(b, &w->experts, "mlp.switch_mlp.", E, m->A, m->Fe, D);
        }
        if (w->sparse && Fs) {
            GLM_SHARED(TENSOR_BIND)
        } else if (!w->sparse) {
            GLM_DENSE(TENSOR_BIND)
        }
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    glm *m = (glm *)base;
    GLM_WORK(WORK_PLAN)
    moe_plan(p, &m->moe, m->E, m->A, m->Fe, m->D);
    mla_plan(p, &m->mla, &m->attention);
}

/* Does some row of the step see more positions than are chosen? */
static bool index_active(const step *s, int32_t S) {
    for (int32_t b = 0; b < s->n_seqs; b++)
        if (s->seq[b].pos0 + s->seq[b].n_rows > S) return true;
    return false;
}

/* x' = x + Attn(norm(x) over the chosen positions),  x'' = x' + Chosen(norm(x')) + Shared(norm(x')),  logits = head ·
 * norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    glm *m = (glm *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    GLM_WORK(WORK_TAKE)
    const bool active = index_active(s, m->S);
    const float index_eps = base->compat_mlx_lm ? 1e-5f : 1e-6f;
    tensor choice = active ? tensor_i32(chosen.p, T, m->S) : (tensor){0};
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        mla_project(d, kv, s, h, &m->mla, &w->attention, &m->attention);
        if (w->chooses) {
            linear2(ki, wi, h, w->index_k, w->index_w); /* ki [T,Di], wi [T,Hi] */
            layer_norm(ki, ki, w->index_norm, w->index_shift, index_eps);
            rope(heads(ki, 1), m->rot); /* its first columns */
            kv_append(heads(ki, 1), heads(ki, 1), w->kv_index);
        }
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        if (w->chooses && active) {
            linear(qi, tensor_rows(m->attention.qr, 0, T), w->index_q);
            rope(heads(qi, m->Hi), m->rot);
            scale(wi, 1 / sqrtf((float)m->Hi * (float)m->Di));
            index_choose(choice, heads(qi, m->Hi), wi, w->kv_index);
        }
        mla_attend(d, kv, s, r, choice, &m->mla, &w->attention, &m->attention);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(r, y);
            keep_wanted(x, h);
            GLM_WORK(WORK_WANTED)
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

const family family_glm_moe_dsa = {"glm_moe_dsa", sizeof(glm), configure, bind, work, forward};
