/* SmolLM3: llama without rotation in every fourth layer.  Sources: huggingface.co/blog/smollm3, arXiv 2501.18795;
 * oracle: transformers modeling_smollm3.py.  Letters: internal.h. */
#include "internal.h"

#define SMOLLM3_CONFIG(C)                                              \
    C(int32_t, L, "num_hidden_layers", NEEDED, 1, 4096)                \
    C(int32_t, D, "hidden_size", NEEDED, 1, 1 << 20)                   \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096)              \
    C(int32_t, K, "num_key_value_heads", 4, 1, 4096)                   \
    C(int32_t, Dh, "head_dim", m->D / MAX(m->H, 1), 2, 1024)           \
    C(int32_t, F, "intermediate_size", NEEDED, 1, 1 << 20)             \
    C(int32_t, V, "vocab_size", NEEDED, 1, 1 << 24)                    \
    C(float, eps, "rms_norm_eps", 1e-6, 0, 1)                          \
    C(int32_t, context, "max_position_embeddings", 32768, 1, 1 << 30)  \
    C(act, hidden_act, "hidden_act", ACT_SILU, 0, 0)                   \
    C(int32_t, nope_interval, "no_rope_layer_interval", 4, 1, 1 << 20) \
    C(bool, windowed, "use_sliding_window", false, 0, 1)               \
    C(bool, attention_bias, "attention_bias", false, 0, 1)             \
    C(bool, mlp_bias, "mlp_bias", false, 0, 1)

#define SMOLLM3_ENDS(T)                  \
    T(weight, tok, "embed_tokens", V, D) \
    T(tensor, norm, "norm", D)
#define SMOLLM3_NORMS(T)                    \
    T(tensor, norm_a, "input_layernorm", D) \
    T(tensor, norm_f, "post_attention_layernorm", D)
#define SMOLLM3_ATTENTION(T)                   \
    T(weight, q, "self_attn.q_proj", H *Dh, D) \
    T(weight, k, "self_attn.k_proj", K *Dh, D) \
    T(weight, v, "self_attn.v_proj", K *Dh, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dh)
#define SMOLLM3_MLP(T)                     \
    T(weight, gate, "mlp.gate_proj", F, D) \
    T(weight, up, "mlp.up_proj", F, D)     \
    T(weight, down, "mlp.down_proj", D, F)

#define SMOLLM3_WORK(B)                      \
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
    SMOLLM3_NORMS(TENSOR_MEMBER)
    SMOLLM3_ATTENTION(TENSOR_MEMBER)
    SMOLLM3_MLP(TENSOR_MEMBER)
    attn how;
    bool rotated; /* by position; otherwise keys and queries carry none */
} layer;

typedef struct smollm3 {
    model base;
    SMOLLM3_CONFIG(CONFIG_MEMBER)
    SMOLLM3_ENDS(TENSOR_MEMBER)
    weight head;
    rope_table rot;
    layer *l; /* [L] */
    struct {
        SMOLLM3_WORK(WORK_MEMBER)
    } work;
} smollm3;

/* no_rope_layers has 1 for the layers that are rotated (sic); without it all but every nope_interval-th. */
static bool is_rotated(const smollm3 *m, config *c, int32_t i) {
    const json *list = config_get(c, "no_rope_layers");
    if (!list) return (i + 1) % m->nope_interval != 0;
    config_check(c, json_is(list, JSON_ARRAY) && list->n >= (uint32_t)m->L,
                 "no_rope_layers has %u entries, num_hidden_layers is %d", json_is(list, JSON_ARRAY) ? list->n : 0,
                 m->L);
    int64_t flag = json_int(json_at(list, (size_t)i), -1);
    config_check(c, flag == 0 || flag == 1, "no_rope_layers[%d] is no 0 or 1", i);
    return flag == 1;
}

/* Windows, where in use, are those of layers without rotation, unless layer_types says which. mlx-lm knows none here.
 */
static int32_t window_of(const smollm3 *m, config *c, int32_t i) {
    const char *type = config_layer_type(c, i, m->L);
    bool sliding = type ? !strcmp(type, "sliding_attention") : m->windowed && !m->l[i].rotated;
    return sliding && !m->base.compat_mlx_lm ? config_window(c, 0) : 0;
}

static void configure(model *base, config *c) {
    smollm3 *m = (smollm3 *)base;
    SMOLLM3_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    config_check(c, m->H % m->K == 0, "num_attention_heads %d is no multiple of num_key_value_heads %d", m->H, m->K);
    base->info.n_layers = m->L;
    base->info.width = m->D;
    base->info.vocab = m->V;
    base->info.context_max = m->context;
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->Dh, .theta = 2e6f, .interleaved = base->gguf});
    m->l = model_alloc(base, (size_t)m->L * sizeof *m->l);
    for (int32_t i = 0; i < m->L; i++) {
        m->l[i].rotated = is_rotated(m, c, i);
        m->l[i].how = (attn){.scale = 1 / sqrtf((float)m->Dh), .window = window_of(m, c, i)};
        kv_layer_add(base, c, m->K, m->Dh, m->Dh, m->l[i].how.window);
    }
}

static void bind(model *base, binder *b) {
    smollm3 *m = (smollm3 *)base;
    const int32_t D = m->D, H = m->H, K = m->K, Dh = m->Dh, F = m->F, V = m->V;
    {
        smollm3 *w = m;
        bind_at(b, "model.");
        SMOLLM3_ENDS(TENSOR_BIND)
    }
    for (int32_t i = 0; i < m->L; i++) {
        layer *w = &m->l[i];
        bind_at(b, "model.layers.%d.", i);
        SMOLLM3_NORMS(TENSOR_BIND)
        bind_bias(b, m->attention_bias);
        SMOLLM3_ATTENTION(TENSOR_BIND)
        bind_bias(b, m->mlp_bias);
        SMOLLM3_MLP(TENSOR_BIND)
        bind_bias(b, false);
    }
    bind_bias(b, false);
    bind_head(b, &m->head, &m->tok, V, D);
}

static void work(model *base, plan *p) {
    smollm3 *m = (smollm3 *)base;
    SMOLLM3_WORK(WORK_PLAN)
}

/* x' = x + Attn(norm(x)),  x'' = x' + FFN(norm(x')),  logits = head · norm(x_L) */
static void forward(model *base, kv_cache *kv, const step *s, tensor logits) {
    smollm3 *m = (smollm3 *)base;
    device *d = base->d;
    const int32_t T = s->n_rows, R = s->n_out;
    SMOLLM3_WORK(WORK_TAKE)
    embed(x, m->tok, 1); /* x [T,D] */
    for (int32_t i = 0; i < m->L; i++) {
        const layer *w = &m->l[i];
        rms_norm(h, x, w->norm_a, m->eps);
        linear3(q, k, v, h, w->q, w->k, w->v); /* q [T,H*Dh], k and v [T,K*Dh] */
        if (w->rotated) {
            rope(heads(q, m->H), m->rot);
            rope(heads(k, m->K), m->rot);
        }
        kv_append(heads(k, m->K), heads(v, m->K), i);
        if (!R && i + 1 == m->L) return; /* only the cache was wanted */
        attend(heads(a, m->H), heads(q, m->H), i, w->how);
        if (i + 1 == m->L) { /* the rest is row by row: only the R wanted rows */
            keep_wanted(a, q);
            keep_wanted(x, h);
            SMOLLM3_WORK(WORK_WANTED)
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

const family family_smollm3 = {"smollm3", sizeof(smollm3), configure, bind, work, forward};
