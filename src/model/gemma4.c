/* Gemma 4 (E2B, E4B: per-layer inputs, shared keys and values; 12B, 31B; 26B-A4B: experts beside a dense block).
 * Oracle: transformers modeling_gemma4.py.  Letters: internal.h; P width of a per-layer input, E experts, A of them
 * chosen, Fe an expert's feed-forward width. */
#include "internal.h"

#define GEMMA_CONFIG(C)                                                         \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                         \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                            \
    C(int32_t, H, "num_attention_heads", 8, 1, 4096)                            \
    C(int32_t, V, "vocab_size", 262144, 1, 1 << 24)                             \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                                   \
    C(int32_t, context, "max_position_embeddings", 131072, 1, 1 << 30)          \
    C(act, hidden_act, "hidden_activation", ACT_GELU_TANH, 0, 0)                \
    C(bool, attention_bias, "attention_bias", false, 0, 1)                      \
    C(int32_t, Dh_window, "head_dim", 256, 2, 1024)                             \
    C(int32_t, Dh_all, "global_head_dim", 512, 2, 1024)                         \
    C(int32_t, window, "sliding_window", 512, 1, 1 << 30)                       \
    C(bool, k_is_v, "attention_k_eq_v", false, 0, 1)                            \
    C(int32_t, shared, "num_kv_shared_layers", 0, 0, m->L - 1)                  \
    C(bool, wide, "use_double_wide_mlp", false, 0, 1)                           \
    C(float, cap, "final_logit_softcapping", 0, 0, 1e6)                         \
    C(int32_t, P, "hidden_size_per_layer_input", base->gguf ? 0 : 256, 0, 1024) \
    C(int32_t, V_inputs, "vocab_size_per_layer_input", m->V, m->V, 1 << 24)     \
    C(int32_t, E, "num_experts", 0, 0, 1 << 16)                                 \
    C(int32_t, A, "top_k_experts", 0, 0, 1 << 16)                               \
    C(int32_t, Fe, "moe_intermediate_size", 0, 0, 1 << 20)                      \
    C(bool, sparse, "enable_moe_block", base->gguf && m->E > 0, 0, 1)

#define GEMMA_ENDS(T)                    \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define GEMMA_INPUTS(T)                                           \
    T(weight, inputs, "embed_tokens_per_layer", V_inputs, L *P)   \
    T(weight, inputs_proj, "per_layer_model_projection", L *P, D) \
    T(tensor, norm_i, "per_layer_projection_norm", P)
#define GEMMA_LAYER(T)                                 \
    T(tensor, norm_a, "input_layernorm", D)            \
    T(tensor, norm_r, "post_attention_layernorm", D)   \
    T(tensor, norm_f, "pre_feedforward_layernorm", D)  \
    T(tensor, norm_s, "post_feedforward_layernorm", D) \
    T(tensor, norm_q, "self_attn.q_norm", Dh)          \
    T(factor, out, "layer_scalar", 1)
#define GEMMA_QO(T)                            \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define GEMMA_K(T)                            \
    T(tensor, norm_k, "self_attn.k_norm", Dh) \
    T(weight, k, "self_attn.k_proj", K *Dh, D)
#define GEMMA_V(T) T(weight, v, "self_attn.v_proj", K *Dh, D)
#define GEMMA_MLP(T)                       \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)
#define GEMMA_SPARSE(T)                                   \
    T(weight, router, "router.proj", E, D)                \
    T(tensor, norm_s1, "post_feedforward_layernorm_1", D) \
    T(tensor, norm_s2, "post_feedforward_layernorm_2", D) \
    T(tensor, norm_f2, "pre_feedforward_layernorm_2", D)
#define GEMMA_INPUT(T)                                  \
    T(weight, input_gate, "per_layer_input_gate", P, D) \
    T(weight, input_proj, "per_layer_projection", D, P) \
    T(tensor, norm_p, "post_per_layer_input_norm", D)

#define GEMMA_WORK(B)                                        \
    B(x, m->D)                 /* the residual stream */     \
    B(h, m->D)                 /* its norm */                \
    B(r, m->D)                 /* what a block adds to it */ \
    B(y, m->sparse ? m->D : 0) /* what the experts say */    \
    B(p, m->L *(int64_t)m->P)  /* every layer's input */     \
    B(e, m->L *(int64_t)m->P)  /* its part from the token */ \
    B(pg, m->P)
/* As wide as the widest layer's; a layer takes what it needs (LAYER_TAKE, with `w` in scope). */
#define GEMMA_WIDE(B) \
    B(q, m->q_width)  \
    B(k, m->k_width)  \
    B(v, m->k_width)  \
    B(a, m->q_width)  \
    B(g, m->f_width)  \
    B(u, m->f_width)
#define LAYER_TAKE(name, width) tensor name = tensor_f32(m->work.name.p, T, width);

typedef struct layer {
    GEMMA_LAYER(TENSOR_MEMBER)
    GEMMA_QO(TENSOR_MEMBER)
    GEMMA_K(TENSOR_MEMBER)
    GEMMA_V(TENSOR_MEMBER)
    GEMMA_MLP(TENSOR_MEMBER)
    GEMMA_SPARSE(TENSOR_MEMBER)
    GEMMA_INPUT(TENSOR_MEMBER)
    tensor router_norm; /* [D] */
    moe experts;
    int32_t Dh, K, F;
    bool own, k_is_v; /* has keys and values of its own; the values are the keys as projected */
    int32_t kv;       /* layer of the cache: its own, or that of the last layer of its kind that has one */
    attn how;
    const rope_table *rot; /* borrows (gemma) */
} layer;

typedef struct gemma {
    model base;
    GEMMA_CONFIG(CONFIG_MEMBER)
    GEMMA_ENDS(TENSOR_MEMBER)
    GEMMA_INPUTS(TENSOR_MEMBER)
    weight head;
    rope_table rot_all, rot_window;
    int32_t q_width, k_width, f_width; /* the widest layer's */
    layer *l;                          /* [L] */
    moe_work moe;
    struct {
        GEMMA_WORK(WORK_MEMBER)
        GEMMA_WIDE(WORK_MEMBER)
    } work;
} gemma;

static void layer_configure(gemma *m, config *c, int32_t i, int32_t last_kv[2]) {
    layer *w = &m->l[i];
    const char *type = config_layer_type(c, i, m->L);
    bool sliding = type ? !strcmp(type, "sliding_attention") : (i + 1) % 6 != 0 && i + 1 < m->L;
    w->own = i < m->L - m->shared;
    w->k_is_v = m->k_is_v && !sliding;
    w->Dh = sliding ? m->Dh_window : m->Dh_all;
    w->K = config_layer_int(c, "num_key_value_heads", i, 4, 1, 4096);
    if (w->k_is_v && config_get(c, "num_global_key_value_heads"))
        w->K = config_layer_int(c, "num_global_key_value_heads", i, NEEDED, 1, 4096);
    w->F = config_layer_int(c, "intermediate_size", i, NEEDED, 1, 1 << 20) * (m->wide && !w->own ? 2 : 1);
    w->how = (attn){.scale = 1, .window = sliding ? m->window : 0};
    w->rot = sliding ? &m->rot_window : &m->rot_all;
    w->experts.how = (router){.kind = ROUTER_SOFTMAX_CHOSEN, .scale = 1};
    config_check(c, m->H % w->K == 0, "num_attention_heads %d is no multiple of layer %d's %d key/value heads", m->H, i,
                 w->K);
    if (w->own) last_kv[sliding] = kv_layer_add(&m->base, c, w->K, w->Dh, w->Dh, w->how.window);
    w->kv = last_kv[sliding];
    config_check(c, w->kv >= 0, "num_kv_shared_layers %d leaves no layer for layer %d to share with", m->shared, i);
    m->q_width = MAX(m->q_width, m->H * w->Dh);
    m->k_width = MAX(m->k_width, w->K * w->Dh);
    m->f_width = MAX(m->f_width, w->F);
}

static void configure(model *base, config *c) {
    gemma *m = (gemma *)base;
    GEMMA_CONFIG(CONFIG_READ)
    if (m->sparse) moe_check(c, m->E, m->A);
    config_check(c, !m->sparse || (m->A > 0 && m->Fe > 0),
                 "enable_moe_block is true, but top_k_experts or moe_intermediate_size is missing");
    config_check(c, !str_is(json_str(config_get(c, "use_bidirectional_attention"), STR("")), "all"),
                 "use_bidirectional_attention is \"all\", allowed is \"vision\" or null");
    if (c->err.code) return;
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot_all,
              &(rope_opts){.head = m->Dh_all,
                           .theta = 1e6f,
                           .partial = base->gguf ? 1 : 0.25f,
                           .layer_type = "full_attention",
                           .kind = "proportional"});
    rope_make(
        base, c, &m->rot_window,
        &(rope_opts){.head = m->Dh_window, .layer_type = "sliding_attention", .theta_key = "rope_local_base_freq"});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    int32_t last_kv[2] = {-1, -1};
    for (int32_t i = 0; i < m->L && !c->err.code; i++) layer_configure(m, c, i, last_kv);
}

/* The router's norm multiplies by scale / √D. */
static void by_root(tensor *t) {
    float *v = t->p;
    for (int32_t i = 0; i < t->dim[0]; i++) v[i] /= sqrtf((float)t->dim[0]);
}

static void bind_experts_of(gemma *m, layer *w, binder *b) {
    const int32_t D = m->D, E = m->E;
    GEMMA_SPARSE(TENSOR_BIND)
    bind_tensor(b, &w->router_norm, "router.scale", 1, (int32_t[]){D});
    bind_fix(b, by_root);
    bind_tensor(b, &w->experts.expert_scale, "router.per_expert_scale", 1, (int32_t[]){E});
    moe_bind(b, &w->experts, "experts.switch_glu.", E, m->A, m->Fe, D);
}

static void bind(model *base, binder *b) {
    gemma *m = (gemma *)base;
    const int32_t L = m->L, D = m->D, H = m->H, V = m->V, P = m->P, V_inputs = m->V_inputs;
    {
        gemma *w = m;
        bind_at(b, "model.");
        GEMMA_ENDS(TENSOR_BIND)
        if (P) {
            GEMMA_INPUTS(TENSOR_BIND)
        }
    }
    for (int32_t i = 0; i < L; i++) {
        layer *w = &m->l[i];
        const int32_t Dh = w->Dh, K = w->K, F = w->F;
        bind_at(b, "model.layers.%d.", i);
        GEMMA_LAYER(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        GEMMA_QO(TENSOR_BIND)
        if (w->own) {
            GEMMA_K(TENSOR_BIND)
            if (!w->k_is_v) {
                GEMMA_V(TENSOR_BIND)
            }
        } else {
            bind_unused(b, "self_attn.k_proj");
            bind_unused(b, "self_attn.v_proj");
            bind_unused(b, "self_attn.k_norm");
        }
        bind_bias(b, false);
        GEMMA_MLP(TENSOR_BIND)
        if (m->sparse) bind_experts_of(m, w, b);
        if (P) {
            GEMMA_INPUT(TENSOR_BIND)
        }
    }
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    gemma *m = (gemma *)base;
    GEMMA_WORK(WORK_PLAN)
    GEMMA_WIDE(WORK_PLAN)
    if (m->sparse) moe_plan(p, &m->moe, m->E, m->A, m->Fe, m->D);
}

/* p [T,L*P] = (norm(proj x / √D) + √P · inputs[ids]) / √2, the norm over each layer's part */
static void layer_inputs(const gemma *m, const step *s, tensor x, tensor p, tensor e) {
    device *d = m->base.d;
    linear(p, x, m->inputs_proj);
    scale(p, 1 / sqrtf((float)m->D));
    rms_norm(heads(p, m->L), heads(p, m->L), m->norm_i, m->eps);
    embed(e, m->inputs, sqrtf((float)m->P));
    add(p, e);
    scale(p, sqrtf(0.5f));
}

/* h [T,D] -> queries q [T,H*Dh]; keys and values, if the layer has any, to the cache */
static void project(const gemma *m, const layer *w, kv_cache *kv, const step *s, tensor h, tensor q) {
    device *d = m->base.d;
    const int32_t T = s->n_rows, H = m->H, K = w->K;
    const tensor none = {0};
    LAYER_TAKE(k, K * w->Dh)
    LAYER_TAKE(v, K * w->Dh)
    if (!w->own)
        linear(q, h, w->q);
    else if (w->k_is_v)
        linear2(q, k, h, w->q, w->k);
    else
        linear3(q, k, v, h, w->q, w->k, w->v);
    rms_norm(heads(q, H), heads(q, H), w->norm_q, m->eps); /* each head by itself */
    rope(heads(q, H), *w->rot);
    if (!w->own) return;
    rms_norm(heads(v, K), heads(w->k_is_v ? k : v, K), none, m->eps);
    rms_norm(heads(k, K), heads(k, K), w->norm_k, m->eps);
    rope(heads(k, K), *w->rot);
    kv_append(heads(k, K), heads(v, K), w->kv);
}

/* r += norm(Experts(norm(x))), r normed first; the router looks at its own norm of x */
static void experts_add(const gemma *m, const layer *w, tensor x, tensor h, tensor r, tensor y) {
    device *d = m->base.d;
    tensor score = tensor_rows(m->moe.score, 0, x.dim[0]);
    rms_norm(r, r, w->norm_s1, m->eps);
    rms_norm(h, x, w->router_norm, m->eps);
    linear(score, h, w->router); /* [T,E] */
    rms_norm(h, x, w->norm_f2, m->eps);
    moe_forward(d, y, h, score, &w->experts, &m->moe, m->hidden_act);
    rms_norm(y, y, w->norm_s2, m->eps);
    add(r, y);
}

/* x = √D · embed;  x' = x + norm(Attn(norm(x))),  x'' = x' + norm(FFN(norm(x'))),
 * x''' = out · (x'' + norm(proj(act(gate x'') · p_i)));  logits = cap(head · norm(x_L)) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    gemma *m = (gemma *)base;
    device *d = base->d;
    const int32_t R = s->n_out;
    int32_t T = s->n_rows;
    GEMMA_WORK(WORK_TAKE)
    embed(x, m->tok, sqrtf((float)m->D)); /* x [T,D] */
    if (m->P) layer_inputs(m, s, x, p, e);
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        LAYER_TAKE(q, m->H * w->Dh)
        LAYER_TAKE(a, m->H * w->Dh)
        rms_norm(h, x, w->norm_a, m->eps);
        project(m, w, kv, s, h, q);
        if (!R && i + 1 == m->L - m->shared) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), w->kv, w->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            if (m->P) keep_wanted(p, e);
            GEMMA_WORK(WORK_WANTED)
            T = R;
        }
        LAYER_TAKE(g, w->F)
        LAYER_TAKE(u, w->F)
        linear(r, a, w->o);
        rms_norm(r, r, w->norm_r, m->eps);
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        linear2(g, u, h, w->gate, w->up);         /* g, u [T,F] */
        act_mul(g, g, u, m->hidden_act);
        linear(r, g, w->down);
        if (m->sparse) experts_add(m, w, x, h, r, y);
        rms_norm(r, r, w->norm_s, m->eps);
        add(x, r);
        if (m->P) {
            linear(pg, x, w->input_gate); /* [T,P] */
            act_mul(pg, pg, tensor_cols(p, i * m->P, m->P), m->hidden_act);
            linear(r, pg, w->input_proj);
            rms_norm(r, r, w->norm_p, m->eps);
            add(x, r);
        }
        scale(x, w->out);
    }
    rms_norm(h, x, m->norm, m->eps);
    linear(logits, h, m->head); /* [R,V] */
    if (m->cap > 0) softcap(logits, m->cap);
}

const family family_gemma4 = {"gemma4", sizeof(gemma), configure, bind, work, forward};
