/* Qwen 3.5, 3.6, 3.8 and Qwen3-Next, dense and with experts: gated DeltaNet layers, every few of them one of gated
 * attention.
 * Sources: arXiv 2412.06464 (gated delta rule), 2505.06708 (gated attention); oracle: transformers modeling_qwen3_5.py,
 * modeling_qwen3_5_moe.py.  Letters: internal.h; DeltaNet: Hk, Hv heads of width Dk, Dv, C = 2·Hk·Dk + Hv·Dv channels
 * of a convolution over J rows; E experts, A of them chosen, Fe and Fs the width of one and of the shared one. */
#include <stdlib.h>
#include "internal.h"

#define QWEN_CONFIG(C)                                                               \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                              \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                                 \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)                            \
    C(int32_t, K, "num_key_value_heads", m->H, 1, 4096)                              \
    C(int32_t, Dh, "head_dim", 256, 2, 1024)                                         \
    C(int32_t, Hk, "linear_num_key_heads", 16, 1, 4096)                              \
    C(int32_t, Hv, "linear_num_value_heads", 32, 1, 4096)                            \
    C(int32_t, Dk, "linear_key_head_dim", 128, 1, 1024)                              \
    C(int32_t, Dv, "linear_value_head_dim", 128, 1, 1024)                            \
    C(int32_t, J, "linear_conv_kernel_dim", 4, 1, CONV_KERNEL_MAX)                   \
    C(int32_t, interval, "full_attention_interval", 4, 1, 4096)                      \
    C(int32_t, E, "num_experts", 0, 0, 1 << 16)                                      \
    C(int32_t, A, "num_experts_per_tok", m->E ? NEEDED : 0, 0, 1 << 16)              \
    C(int32_t, F, "intermediate_size", m->E ? 0 : NEEDED, 0, 1 << 20)                \
    C(int32_t, Fe, "moe_intermediate_size", m->E ? NEEDED : 0, 0, 1 << 20)           \
    C(int32_t, Fs, "shared_expert_intermediate_size", m->E ? NEEDED : 0, 0, 1 << 20) \
    C(bool, normalise, "norm_topk_prob", true, 0, 1)                                 \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                                  \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                                        \
    C(int32_t, context, "max_position_embeddings", 32768, 1, 1 << 30)                \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                                 \
    C(bool, output_gate, "attn_output_gate", true, 0, 1)                             \
    C(bool, attention_bias, "attention_bias", false, 0, 1)

#define QWEN_TOK(T)  T(weight, tok, "embed_tokens", V, D)
#define QWEN_NORM(T) T(norm, norm_x, "norm", D)
#define QWEN_LAYER(T)                     \
    T(norm, norm_a, "input_layernorm", D) \
    T(norm, norm_f, "post_attention_layernorm", D)
#define QWEN_DELTA(T)                                 \
    T(conv, taps, "linear_attn.conv1d", C, J)         \
    T(rate, decay_rate, "linear_attn.A_log", Hv)      \
    T(tensor, decay_shift, "linear_attn.dt_bias", Hv) \
    T(tensor, norm_o, "linear_attn.norm", Dv)         \
    T(weight, out, "linear_attn.out_proj", D, Hv *Dv)
/* Four products, or two whose rows lie by key head: q, k, the values, the gates of these; b and a of its value heads.
 */
#define QWEN_QKV_Z(T)                               \
    T(weight, qkv, "linear_attn.in_proj_qkv", C, D) \
    T(weight, z, "linear_attn.in_proj_z", Hv *Dv, D)
#define QWEN_B_A(T)                              \
    T(weight, b, "linear_attn.in_proj_b", Hv, D) \
    T(weight, a, "linear_attn.in_proj_a", Hv, D)
#define QWEN_QKVZ(T) T(weight, qkvz, "linear_attn.in_proj_qkvz", C + Hv * Dv, D)
#define QWEN_BA(T)   T(weight, ba, "linear_attn.in_proj_ba", 2 * Hv, D)
#define QWEN_ATTENTION_NORMS(T)             \
    T(norm, norm_q, "self_attn.q_norm", Dh) \
    T(norm, norm_k, "self_attn.k_norm", Dh)
#define QWEN_ATTENTION(T)                           \
    T(weight, q, "self_attn.q_proj", H * 2 * Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D)      \
    T(weight, v, "self_attn.v_proj", K *Dh, D)      \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define QWEN_DENSE(T)                      \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)
#define QWEN_SPARSE(T)                                    \
    T(weight, router, "mlp.gate", E, D)                   \
    T(weight, gate, "mlp.shared_expert.gate_proj", Fs, D) \
    T(weight, up, "mlp.shared_expert.up_proj", Fs, D)     \
    T(weight, down, "mlp.shared_expert.down_proj", D, Fs) \
    T(weight, share, "mlp.shared_expert_gate", 1, D)

#define QWEN_STREAM(B) B(x, m->D) /* the residual stream */
#define QWEN_BLOCK(B)                  \
    B(h, m->D)          /* its norm */ \
    B(r, m->D)          /* what a block adds to it */
#define QWEN_BY_HEAD(B) /* Qwen3-Next's products */    \
    B(qkvz, m->by_key_head ? m->C + m->Hv * m->Dv : 0) \
    B(ba, m->ba_by_key_head ? 2 * m->Hv : 0)
#define QWEN_DELTA_IN(B)                               \
    B(qkv, m->C) /* before the convolution */          \
    B(z, m->Hv * m->Dv)                                \
    B(beta, m->Hv) /* how much of a value is learnt */ \
    B(keep, m->Hv) /* how much of the state is kept */
#define QWEN_DELTA_OUT(B)                  \
    B(c, m->C) /* after the convolution */ \
    B(o, m->Hv * m->Dv)
#define QWEN_ATTENTION_WORK(B)                                 \
    B(q, m->H * 2 * m->Dh) /* a head's query, then its gate */ \
    B(k, m->K * m->Dh)                                         \
    B(v, m->K * m->Dh)                                         \
    B(a, m->H * m->Dh)
#define QWEN_FFN_WORK(B)                                         \
    B(g, MAX(m->F, m->Fs))                                       \
    B(u, MAX(m->F, m->Fs))                                       \
    B(shared, m->E ? m->D : 0) /* what the shared expert says */ \
    B(share, m->E ? 1 : 0)     /* and how much that counts */
#define QWEN_WORK(B) \
    QWEN_STREAM(B)   \
    QWEN_BLOCK(B) QWEN_BY_HEAD(B) QWEN_DELTA_IN(B) QWEN_DELTA_OUT(B) QWEN_ATTENTION_WORK(B) QWEN_FFN_WORK(B)

typedef tensor conv; /* taps [J,C]; stored [C,J], with a dimension of 1 before or after J */
typedef tensor rate; /* −exp of what is stored */

typedef struct layer {
    QWEN_LAYER(TENSOR_MEMBER)
    QWEN_DELTA(TENSOR_MEMBER)
    QWEN_QKV_Z(TENSOR_MEMBER)
    QWEN_B_A(TENSOR_MEMBER)
    QWEN_QKVZ(TENSOR_MEMBER)
    QWEN_BA(TENSOR_MEMBER)
    QWEN_ATTENTION_NORMS(TENSOR_MEMBER)
    QWEN_ATTENTION(TENSOR_MEMBER)
    QWEN_DENSE(TENSOR_MEMBER)
    weight router, share;
    moe experts;
    bool full;     /* attention, else DeltaNet */
    int32_t index; /* among its kind: of the cache or of the recurrent state */
} layer;

typedef struct qwen {
    model base;
    QWEN_CONFIG(CONFIG_MEMBER)
    int32_t C;
    bool by_key_head, ba_by_key_head; /* Qwen3-Next: qkvz and ba are one matrix each (in GGUF only ba) */
    bool tiled;                       /* value heads in the order of GGUF's qwen35: h belongs to key head h % Hk */
    bool raw;                         /* Hugging Face's own layout: norms are stored less 1 */
    QWEN_TOK(TENSOR_MEMBER)
    QWEN_NORM(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    attn how;
    layer *l; /* [L] */
    moe_work moe;
    struct {
        QWEN_WORK(WORK_MEMBER)
    } work;
} qwen;

/* ---- tensors that are stored otherwise -------------------------------------------------------------------------- */
static void rate_fix(tensor *t) {
    float *p = t->p;
    for (int32_t i = 0; i < t->dim[0]; i++) p[i] = (float)-exp(p[i]);
}
static void bind_rate(binder *b, rate *to, const char *name, int n, const int32_t *dim) {
    bind_tensor(b, to, name, n, dim);
    if (!bind_model(b)->gguf) bind_fix(b, rate_fix); /* the converter has done it */
}
static void conv_fix(tensor *t) {
    const int32_t C = t->dim[0], J = t->dim[1];
    float *p = t->p, *stored = mem_alloc(sizeof *stored * (size_t)C * (size_t)J);
    memcpy(stored, p, sizeof *stored * (size_t)C * (size_t)J);
    for (int32_t c = 0; c < C; c++)
        for (int32_t j = 0; j < J; j++) p[j * C + c] = stored[c * J + j];
    free(stored);
    *t = tensor_f32(p, J, C);
}
static void bind_conv(binder *b, conv *to, const char *name, int n, const int32_t *dim) {
    bind_tensor(b, to, name, n, dim);
    bind_fix(b, conv_fix);
}
/* MLX stores the taps as [C,J,1] and has added 1 to the norms; [C,1,J] says that nobody has. */
static bool is_raw(const config *c) {
    for (size_t i = 0; i < checkpoint_n_tensors(c->from); i++) {
        const stored_tensor *t = checkpoint_tensor_at(c->from, i);
        if (str_ends(t->name, STR("linear_attn.conv1d.weight")) && t->dim[t->ndim - 1] != 1) return true;
    }
    return false;
}

/* ---- the four functions ----------------------------------------------------------------------------------------- */
static void layer_kinds(qwen *m, config *c) {
    static const char *const kinds[] = {"linear_attention", "full_attention"};
    for (int32_t i = 0; i < m->L; i++) {
        layer *l = &m->l[i];
        l->full = (i + 1) % m->interval == 0;
        const char *type = config_layer_type(c, i, m->L);
        config_check(c, !type || !strcmp(type, kinds[l->full]),
                     "layer_types[%d] is %s, but full_attention_interval %d makes it %s", i, type ? type : "",
                     m->interval, kinds[l->full]);
        l->index = l->full ? kv_layer_add(&m->base, c, m->K, m->Dh, m->Dh, 0)
                           : state_layer_add(&m->base, &(state_layer){m->C, m->J, m->Hv, m->Dk, m->Dv});
        l->experts.how = (router){.kind = ROUTER_SOFTMAX, .normalise = m->normalise, .scale = 1};
    }
}

static void configure(model *base, config *c) {
    qwen *m = (qwen *)base;
    QWEN_CONFIG(CONFIG_READ)
    const json *gate = config_get(c, "output_gate_type"), *dense = config_get(c, "mlp_only_layers");
    str gate_type = json_str(gate, STR("?"));
    config_check(c, !gate || str_is(gate_type, "swish"),
                 "output_gate_type is \"%.*s\"; allowed is \"swish\" (the sigmoid gate) or nothing",
                 (int)MIN(gate_type.n, 40), gate_type.p);
    config_check(c, m->output_gate, "attn_output_gate is false; attention without its gate is not supported");
    config_check(c, !m->E || !dense || dense->n == 0, "mlp_only_layers: every layer has experts");
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    config_check(c, m->Hv % m->Hk == 0, "linear_num_value_heads %d is no multiple of linear_num_key_heads %d", m->Hv,
                 m->Hk);
    if (m->E) moe_check(c, m->E, m->A);
    if (c->err.code) return;
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    m->C = 2 * m->Hk * m->Dk + m->Hv * m->Dv;
    m->raw = !base->gguf && is_raw(c);
    m->ba_by_key_head = !strcmp(c->type, "qwen3_next");
    m->by_key_head = m->ba_by_key_head && !base->gguf;
    m->tiled = base->gguf && !m->ba_by_key_head;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh, .partial = 0.25f});
    m->how = (attn){.scale = 1 / sqrtf((float)m->Dh)};
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    layer_kinds(m, c);
}

static void bind(model *base, binder *b) {
    qwen *m = (qwen *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V, E = m->E, Fs = m->Fs;
    const int32_t Hv = m->Hv, Dv = m->Dv, C = m->C, J = m->J;
    bind_norm_shift(b, m->raw ? 1 : 0);
    {
        qwen *w = m;
        bind_at(b, "model.");
        QWEN_TOK(TENSOR_BIND)
        QWEN_NORM(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        QWEN_LAYER(TENSOR_BIND)
        if (w->full) {
            QWEN_ATTENTION_NORMS(TENSOR_BIND)
            bind_bias(b, m->attention_bias);
            QWEN_ATTENTION(TENSOR_BIND)
            bind_bias(b, false);
        } else {
            QWEN_DELTA(TENSOR_BIND)
            if (m->by_key_head) {
                QWEN_QKVZ(TENSOR_BIND)
            } else {
                QWEN_QKV_Z(TENSOR_BIND)
            }
            if (m->ba_by_key_head) {
                QWEN_BA(TENSOR_BIND)
            } else {
                QWEN_B_A(TENSOR_BIND)
            }
        }
        if (E) {
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
    if (m->E) moe_plan(p, &m->moe, m->E, m->A, m->Fe, m->D);
}

/* qkv [T,C], z [T,Hv*Dv], beta and keep [T,Hv] = projections of h */
static void delta_inputs(qwen *m, const layer *w, const step *s, tensor h) {
    device *d = m->base.d;
    const int32_t T = s->n_rows, Hk = m->Hk, r = m->Hv / m->Hk, Dk = m->Dk, rDv = r * m->Dv;
    QWEN_BY_HEAD(WORK_TAKE)
    QWEN_DELTA_IN(WORK_TAKE)
    if (m->by_key_head) {
        linear2(qkvz, ba, h, w->qkvz, w->ba);
        tensor by = heads(qkvz, Hk), dv = tensor_cols(qkv, 2 * Hk * Dk, Hk * rDv); /* by [T,Hk,2*Dk+2*rDv] */
        copy(heads(tensor_cols(qkv, 0, Hk * Dk), Hk), tensor_cols(by, 0, Dk));
        copy(heads(tensor_cols(qkv, Hk * Dk, Hk * Dk), Hk), tensor_cols(by, Dk, Dk));
        copy(heads(dv, Hk), tensor_cols(by, 2 * Dk, rDv));
        copy(heads(z, Hk), tensor_cols(by, 2 * Dk + rDv, rDv));
    } else {
        linear2(qkv, z, h, w->qkv, w->z);
        if (m->ba_by_key_head) linear(ba, h, w->ba);
    }
    if (m->ba_by_key_head) {
        copy(heads(beta, Hk), tensor_cols(heads(ba, Hk), 0, r));
        copy(heads(keep, Hk), tensor_cols(heads(ba, Hk), r, r));
    } else {
        linear2(beta, keep, h, w->b, w->a);
    }
}

/* r [T,D] = DeltaNet(h). False: only the state was wanted. */
static bool delta_net(qwen *m, const layer *w, const step *s, bool state_only) {
    device *d = m->base.d;
    const int32_t T = s->n_rows, Hk = m->Hk, Hv = m->Hv, Dk = m->Dk, Dv = m->Dv;
    QWEN_BLOCK(WORK_TAKE)
    QWEN_DELTA_IN(WORK_TAKE)
    QWEN_DELTA_OUT(WORK_TAKE)
    delta_inputs(m, w, s, h);
    conv1d(c, qkv, w->taps, w->index);
    act(c, c, ACT_SILU);
    tensor dq = heads(tensor_cols(c, 0, Hk * Dk), Hk), dk = heads(tensor_cols(c, Hk * Dk, Hk * Dk), Hk);
    tensor dv = heads(tensor_cols(c, 2 * Hk * Dk, Hv * Dv), Hv);
    l2norm(dq, dq, 1 / sqrtf((float)Dk), 1e-6f); /* [T,Hk,Dk] */
    l2norm(dk, dk, 1, 1e-6f);
    act(beta, beta, ACT_SIGMOID);
    decay(keep, keep, w->decay_rate, w->decay_shift);
    delta_rule(heads(o, Hv), dq, dk, dv, keep, beta, m->tiled, w->index); /* [T,Hv,Dv] */
    if (state_only) return false;
    rms_norm(heads(o, Hv), heads(o, Hv), w->norm_o, m->eps);
    act_mul(o, z, o, ACT_SILU);
    linear(r, o, w->out);
    return true;
}

/* r [T,D] = Attn(h), each head's output gated. False: only the cache was wanted. */
static bool gated_attention(qwen *m, const layer *w, kv_cache *kv, const step *s, bool cache_only) {
    device *d = m->base.d;
    const int32_t T = s->n_rows, H = m->H, K = m->K, Dh = m->Dh;
    QWEN_BLOCK(WORK_TAKE)
    QWEN_ATTENTION_WORK(WORK_TAKE)
    linear3(q, k, v, h, w->q, w->k, w->v); /* q [T,H*2*Dh], k and v [T,K*Dh] */
    tensor query = tensor_cols(heads(q, H), 0, Dh), gate = tensor_cols(heads(q, H), Dh, Dh);
    rms_norm(query, query, w->norm_q, m->eps);
    rms_norm(heads(k, K), heads(k, K), w->norm_k, m->eps);
    rope(query, m->rot);
    rope(heads(k, K), m->rot);
    kv_append(heads(k, K), heads(v, K), w->index);
    if (cache_only) return false;
    attend(heads(a, H), query, w->index, m->how);
    act_mul(heads(a, H), gate, heads(a, H), ACT_SIGMOID);
    linear(r, a, w->o);
    return true;
}

/* r [T,D] = FFN(h) */
static void feed_forward(qwen *m, const layer *w, const step *s) {
    device *d = m->base.d;
    const int32_t T = s->n_rows;
    QWEN_BLOCK(WORK_TAKE)
    QWEN_FFN_WORK(WORK_TAKE)
    g = tensor_f32(g.p, T, w->gate.n_out);
    u = tensor_f32(u.p, T, w->gate.n_out);
    linear2(g, u, h, w->gate, w->up); /* [T,F], or [T,Fs] of the shared expert */
    act_mul(g, g, u, m->hidden_act);
    if (!m->E) {
        linear(r, g, w->down);
        return;
    }
    linear(shared, g, w->down);
    linear(share, h, w->share); /* [T,1] */
    act(share, share, ACT_SIGMOID);
    mul_rows(shared, share);
    tensor score = tensor_rows(m->moe.score, 0, T);
    linear(score, h, w->router); /* [T,E] */
    moe_forward(d, r, h, score, &w->experts, &m->moe, m->hidden_act);
    add(r, shared);
}

/* x' = x + DeltaNet or Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    qwen *m = (qwen *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    QWEN_STREAM(WORK_TAKE)
    QWEN_BLOCK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        bool last = !R && i + 1 == m->L;
        rms_norm(h, x, w->norm_a, m->eps);
        if (!(w->full ? gated_attention(m, w, kv, s, last) : delta_net(m, w, s, last))) return;
        add_rms_norm(h, x, r, w->norm_f, m->eps); /* x += r; h = norm(x) */
        feed_forward(m, w, s);
        add(x, r);
    }
    gather(tensor_rows(h, 0, R), x);
    rms_norm(tensor_rows(h, 0, R), tensor_rows(h, 0, R), m->norm_x, m->eps);
    linear(logits, tensor_rows(h, 0, R), m->head); /* [R,V] */
}

const family family_qwen3_5 = {"qwen3_5", sizeof(qwen), configure, bind, work, forward};
