/* model/internal: what a family file is made of. A family is one file with three tables (configuration, tensors,
 * activations) and four functions that expand them: configure, bind, work, forward. docs/models.md walks through adding
 * one. Read llama.c first; config.c, bind.c, plan.c and part_rope.c are what its tables expand into.
 *
 * Letters, in tables and in comments: L layers, D width, H query heads, K key/value heads, Dh head width, F
 * feed-forward width, V vocabulary, T rows of the step, R rows whose logits are wanted. */
#pragma once
#include <math.h>
#include "model.h"

typedef struct config config;
typedef struct binder binder;
typedef struct plan plan;

typedef struct family {
    const char *name;
    size_t size; /* of the family's struct; its first member is `model base` */
    /* Reads the configuration, fills base->info's sizes, the KV layers and the rope tables. */
    void (*configure)(model *base, config *c);
    /* Says which tensors there are: name, shape, and where they go. */
    void (*bind)(model *base, binder *b);
    /* Says which activations a step needs. */
    void (*work)(model *base, plan *p);
    /* logits [R,V] of one step. */
    void (*forward)(model *base, kv_cache *kv, const step *s, tensor logits);
} family;

/* ---- every model ------------------------------------------------------------------------------------------------ */
struct model {
    const family *fam;
    device *d; /* borrows */
    arena *a;  /* owns: names, layer structs, frequency tables */
    model_info info;
    kv_spec kv;
    kv_layer *kv_layers; /* [kv.n_layers], in the arena */
    state_spec state;
    state_layer *state_layers; /* [state.n_layers], in the arena */
    bool tied;                 /* the output head is the embedding table */
    bool gguf; /* read from GGUF: conversion has changed some tensors (q and k rows of llama lie for interleaved
                  rotation) */
    bool compat_mlx_lm;
    int32_t context_asked; /* positions a sequence shall hold; 0: the model decides */
    int32_t rows_max;
    struct binding *bindings; /* [n_bindings], in the arena */
    size_t n_bindings;
    void *vectors, *workspace; /* owns (device memory) */
    size_t vector_bytes;
};
void *model_alloc(model *m, size_t n); /* from the arena; zeroed. Sizes are bounded by the configuration's ranges */

/* ---- configuration (config.c) ----------------------------------------------------------------------------------- */
/* One line a field: CONFIG(type, field, key, default, lowest, highest). type is int32_t, float, bool or act; NEEDED as
 * default makes the key required. Expanded three ways: CONFIG_MEMBER (struct), CONFIG_READ (with `m` and `c` in scope).
 */
#define NEEDED                                        NAN
#define CONFIG_MEMBER(type, field, key, dflt, lo, hi) type field;
#define CONFIG_READ(type, field, key, dflt, lo, hi)   config_##type(c, &m->field, key, dflt, lo, hi);
struct config {
    checkpoint *from; /* borrows */
    const json *root; /* config.json, or GGUF metadata under Hugging Face's keys */
    const json *text; /* the part about the language model: root, or its text_config */
    const char *type; /* model_type of the text part */
    error err;        /* sticky: the first thing that was wrong */
};
/* A missing or null key takes the default. Errors name the key, the value and what is allowed. */
void config_int32_t(config *c, int32_t *out, const char *key, double dflt, double lo, double hi);
/* Layer i's value of a key that is one number for all layers or a list of one a layer. */
int32_t config_layer_int(config *c, const char *key, int32_t i, double dflt, double lo, double hi);
void config_float(config *c, float *out, const char *key, double dflt, double lo, double hi);
void config_bool(config *c, bool *out, const char *key, double dflt, double lo, double hi);
void config_act(config *c, act *out, const char *key, double dflt, double lo, double hi);
/* A key that changes the meaning and of which one value is known: absent, null or that. */
void config_says(config *c, const char *key, const char *value);
/* Fails with "<file>: <text>" unless ok. */
void config_check(config *c, bool ok, const char *fmt, ...) PRINTF(3, 4);
const json *config_get(const config *c,
                       const char *key); /* of the text part, else of the root; NULL if absent or null */
/* sliding_window; null: 0, none. Without the key `absent`. */
int32_t config_window(config *c, int32_t absent);
/* "sliding_attention" and the like for layer i from layer_types; NULL without that list. */
const char *config_layer_type(config *c, int32_t i, int32_t n_layers);
bool config_open(config *c, checkpoint *from, arena *a, error *err); /* finds root, text and type */
/* Ids from config.json, its text part and generation_config.json, without repeats. */
bool config_eos(const config *c, arena *a, const int32_t **ids, size_t *n, error *err);

/* ---- GGUF (gguf_names.c) ---------------------------------------------------------------------------------------- */
/* The metadata as config.json would say it. NULL + ERR_UNSUPPORTED for an architecture without a table. */
const json *gguf_config(const checkpoint *c, arena *a, error *err);
/* "model.layers.3.self_attn.q_proj" -> "blk.3.attn_q"; NULL if the table has no such name. */
const char *gguf_name(const checkpoint *c, arena *a, const char *name);

/* ---- tensors (bind.c) ------------------------------------------------------------------------------------------- */
/* One line a tensor: T(kind, field, name, shape...). kind `weight`: a matrix [out,in] or experts [E,out,in], in any
 * format; `experts`: a stack of them that may lie apart or fused in the file (experts.c); `tensor`: a vector or small
 * array as f32; `norm`: a tensor that may gain 1; `factor`: one number, 1 if the checkpoint has none; `head_weights`: a
 * matrix [out,in] for each head, "embed_q" or "unembed_out" of MLA, which may lie together in kv_b_proj (part_mla.c).
 * name: as Hugging Face calls the module (experts: as MLX calls the stack, "mlp.switch_mlp.gate_proj"), below the
 * prefix set by bind_at; ".weight" is added. Expanded by TENSOR_MEMBER (struct) and TENSOR_BIND (with `b` and the
 * struct `w` in scope). */
#define TENSOR_MEMBER(kind, field, ...) kind field;
#define TENSOR_BIND(kind, field, name, ...) \
    bind_##kind(b, &w->field, name, (int)COUNT(((int32_t[]){__VA_ARGS__})), (int32_t[]){__VA_ARGS__});
void bind_at(binder *b, const char *fmt, ...) PRINTF(2, 3); /* prefix of the names that follow: "model.layers.3." */
void bind_bias(binder *b, bool biased); /* do the matrices that follow have a bias? false at first */
/* Of the experts that follow a row reads so many: what a decode step reads. */
void bind_active(binder *b, int32_t active);
/* What the norms that follow gain: 1 where a checkpoint stores w and the model multiplies by 1 + w. 0 at first. */
void bind_norm_shift(binder *b, float shift);
const model *bind_model(const binder *b);
/* Rewrites the tensor bound last once it is loaded, in place: another unit, another order of the dimensions. */
void bind_fix(binder *b, void (*fix)(tensor *t));
void bind_weight(binder *b, weight *to, const char *name, int n, const int32_t *dim);
void bind_tensor(binder *b, tensor *to, const char *name, int n, const int32_t *dim);
typedef weight experts;
typedef weight head_weights;
typedef tensor norm;
typedef float factor;
void bind_experts(binder *b, experts *to, const char *name, int n, const int32_t *dim);
void bind_head_weights(binder *b, head_weights *to, const char *name, int n, const int32_t *dim);
void bind_norm(binder *b, norm *to, const char *name, int n, const int32_t *dim);
void bind_factor(binder *b, factor *to, const char *name, int n, const int32_t *dim);
/* A module that checkpoints have though the model does not use it. */
void bind_unused(binder *b, const char *name);
/* The output head [V,D]: "lm_head", or the embedding table itself when tie_word_embeddings says so; without that key
 * the model is tied if it has no lm_head. Sets base->tied. */
void bind_head(binder *b, weight *to, const weight *tok, int32_t V, int32_t D);

bool bindings_make(model *m, config *c,
                   error *err); /* runs fam->bind, finds each tensor, checks shapes, adds up sizes */
bool bindings_load(model *m, config *c, error *err); /* packs; pages of the mapping are dropped as it goes */
void bindings_free(model *m);

/* Below the tables: the tensor "<module><suffix>" or NULL; marks what a module consists of as used. */
const stored_tensor *tensor_named(const config *c, const char *module, const char *suffix);
void weight_use(const config *c, const char *module, map *used);
/* The experts [E,N,K] called `stored` in whichever form the checkpoint has them (experts.c). */
bool experts_find(model *m, config *c, const char *stored, int32_t E, int32_t N, weight_src *out, bool *found,
                  map *used, error *err);

/* The same for the matrices of heads [H,N,K]. *turned [H]: out's matrices, each to be read as [K,N] and transposed;
 * NULL: out says where they are. */
bool head_weights_find(model *m, config *c, const char *name, const char *stored, const int32_t *dim, weight_src *out,
                       const weight_src **turned, bool *found, map *used, error *err);
/* Makes out->codes, the caller's to mem_try_free with *bytes. */
bool head_weights_turn(weight_src *out, const weight_src *turned, size_t *bytes, error *err);
const char *stored_name(const model *m, const config *c, const char *name);

/* ---- activations and caches (plan.c) ---------------------------------------------------------------------------- */
/* One line an activation: B(name, width). Expanded by WORK_MEMBER (struct), WORK_PLAN (with `m` and `p` in scope) and
 * WORK_TAKE (in forward, with `m` and `T` in scope: declares `tensor name` [T,width]). */
#define WORK_MEMBER(name, width) tensor name;
#define WORK_PLAN(name, width)   plan_buffer(p, &m->work.name, width);
#define WORK_TAKE(name, width)   tensor name = tensor_rows(m->work.name, 0, T);
/* In the last layer, once attention is through: what follows is row by row, so only the R wanted rows go on.
 * keep_wanted puts those of *x in *spare and exchanges the two; then WORK_WANTED cuts every view. Needs `s` and `R`. */
#define keep_wanted(x, spare)          \
    do {                               \
        tensor all_ = x;               \
        x = tensor_rows(spare, 0, R);  \
        op_gather(d, x, all_, s->out); \
        spare = all_;                  \
    } while (0)
#define WORK_WANTED(name, width) name = tensor_rows(name, 0, R);
void plan_buffer(plan *p, tensor *to, int64_t width); /* [rows_max,width] */
bool work_make(model *m, bool plan_only, error *err); /* runs fam->work; one allocation */
/* Adds a layer to the KV plan; layers with the same window share a page table. Returns its index for kv_append and
 * attend. */
int32_t kv_layer_add(model *m, config *c, int32_t heads, int32_t k_width, int32_t v_width, int32_t window);
/* One head whose values are the first v_width columns of its keys, kept once. */
int32_t kv_latent_add(model *m, config *c, int32_t k_width, int32_t v_width);
/* Codes for all layers as model_opts asks (kv_scheme.c); fills info.kv and kv_bytes_per_token. ERR_INVALID for a word
 * that is none, ERR_UNSUPPORTED for what this model cannot have. */
bool kv_scheme_apply(model *m, config *c, const char *how, int group, error *err);
/* Adds a layer to the recurrent state. Returns its index for conv1d_state and delta_rule. */
int32_t state_layer_add(model *m, const state_layer *l);

/* ---- rotary frequencies (part_rope.c) --------------------------------------------------------------------------- */
typedef struct rope_opts {
    int32_t head;           /* Dh */
    float theta;            /* when the configuration has none; 0: 10000 */
    float partial;          /* rotated part of a head when the configuration does not say; 0: all */
    const char *layer_type; /* which entry of per-layer-type rope_parameters; NULL: there is one set */
    const char *theta_key;  /* without such an entry: theta is this key's, and there is no scaling; NULL: rope_theta */
    const char *kind;       /* rope_type when the configuration says nothing at all; NULL: default */
    bool interleaved;
} rope_opts;
/* From rope_parameters (transformers 5) or rope_scaling and rope_theta. Types: default, linear, llama3, yarn, longrope,
 * proportional, freq_factors (a GGUF's own list of divisors). */
void rope_make(model *m, config *c, rope_table *out, const rope_opts *o);

/* ---- mixtures of experts (part_moe.c) --------------------------------------------------------------------------- */
/* One layer's experts, and how they are chosen. */
typedef struct moe {
    experts gate, up, down; /* [E,F,D], [E,F,D], [E,D,F] */
    router how;
    tensor bias;         /* [E] takes the place of how.bias; .p NULL: it does not */
    tensor expert_scale; /* [E] takes the place of how.expert_scale; .p NULL: it does not */
} moe;
/* Activations, shared by the layers; [T,...] rows of the step. */
typedef struct moe_work {
    tensor score;      /* [T,E] */
    tensor id, weight; /* [T,A] */
    tensor g, u, y;    /* [T,A*F], [T,A*F], [T,A*D] */
} moe_work;
/* E and A within what devices offer, A <= E. */
void moe_check(config *c, int32_t E, int32_t A);
/* prefix: "mlp.switch_mlp." */
void moe_bind(binder *b, moe *w, const char *prefix, int32_t E, int32_t A, int32_t F, int32_t D);
void moe_plan(plan *p, moe_work *to, int32_t E, int32_t A, int32_t F, int32_t D);
/* y [T,D] = Σ over the chosen experts e of weight_e · down_e(act(gate_e x) · up_e x), in ascending order of e. score
 * [T,E]: what the router's own product says; work->score unless the family has it elsewhere. */
void moe_forward(device *d, tensor y, tensor x, tensor score, const moe *w, const moe_work *work, act a);

/* ---- multi-head latent attention (part_mla.c) ------------------------------------------------------------------- */
/* Its sizes, all layers alike. Further letters: Z width of the latent, N and P columns of a query head without and with
 * position, Dv columns of a value head, Q width of the query's own latent. */
#define MLA_CONFIG(C)                                     \
    C(int32_t, H, "num_attention_heads", NEEDED, 1, 4096) \
    C(int32_t, Q, "q_lora_rank", 0, 0, 1 << 20)           \
    C(int32_t, Z, "kv_lora_rank", NEEDED, 1, 1 << 12)     \
    C(int32_t, N, "qk_nope_head_dim", NEEDED, 1, 1024)    \
    C(int32_t, P, "qk_rope_head_dim", NEEDED, 2, 1024)    \
    C(int32_t, Dv, "v_head_dim", NEEDED, 1, 1024)         \
    C(bool, bias, "attention_bias", false, 0, 1)          \
    C(bool, interleaved, "rope_interleave", true, 0, 1)
typedef struct mla {
    MLA_CONFIG(CONFIG_MEMBER)
    int32_t D;
    rope_table rot;
    attn how;
} mla;
typedef struct mla_layer {
    weight q_all;            /* [H*(N+P),D]; or, when Q > 0, the next two */
    weight q_a, q_b;         /* [Q,D], [H*(N+P),Q] */
    weight kv_a, o;          /* [Z+P,D], [D,H*Dv] */
    head_weights q_up, v_up; /* [H,Z,N]: into the latent; [H,Dv,Z]: out of it */
    tensor norm_q, norm_kv;  /* [Q], [Z] */
    int32_t kv;              /* layer of the cache */
} mla_layer;
#define MLA_WORK(B)                                               \
    B(c, m->Z + m->P) /* the latent and the key's rotated part */ \
    B(qr, m->Q)       /* the query's own latent */                \
    B(q, m->H *(m->N + m->P))                                     \
    B(ql, m->H *(m->Z + m->P)) /* queries into the latent */      \
    B(ol, m->H * m->Z)         /* what is seen, in the latent */  \
    B(a, m->H * m->Dv)
typedef struct mla_work {
    MLA_WORK(WORK_MEMBER)
} mla_work;
void mla_configure(model *base, config *c, mla *m, int32_t D);
void mla_layer_add(model *base, config *c, const mla *m, mla_layer *w);
void mla_bind(binder *b, mla_layer *w, const mla *m);
void mla_plan(plan *p, const mla *m, mla_work *to);
/* h [T,D] becomes queries in work->ql, and its latent goes to the cache; work->qr holds the query's latent. */
void mla_project(device *d, kv_cache *kv, const step *s, tensor h, const mla *m, const mla_layer *w,
                 const mla_work *work);
/* r [T,D]: what attention over the cache says; chosen as in op_attend_chosen, .p NULL: over all. */
void mla_attend(device *d, kv_cache *kv, const step *s, tensor r, tensor chosen, const mla *m, const mla_layer *w,
                const mla_work *work);

/* ---- the operations as family files write them; `d`, `s` and `kv` are in scope --------------------------------- */
#define embed(y, table, scale)                        op_embed(d, y, &(table), s->ids, scale)
#define linear(y, x, w)                               op_linear(d, y, x, &(w))
#define linear2(y0, y1, x, w0, w1)                    op_linear2(d, y0, y1, x, &(w0), &(w1))
#define linear3(y0, y1, y2, x, w0, w1, w2)            op_linear3(d, y0, y1, y2, x, &(w0), &(w1), &(w2))
#define rms_norm(y, x, w, eps)                        op_rms_norm(d, y, x, w, eps)
#define layer_norm(y, x, w, b, eps)                   op_layer_norm(d, y, x, w, b, eps)
#define add_rms_norm(y, x, r, w, eps)                 op_add_rms_norm(d, y, x, r, w, eps)
#define rope(x, table)                                op_rope(d, x, s->pos, &(table))
#define kv_append(k, v, layer)                        op_kv_append(d, kv, layer, k, v, s)
#define attend(o, q, layer, how)                      op_attend(d, o, q, kv, layer, s, &(how))
#define act_mul(y, g, u, a)                           op_act_mul(d, y, g, u, a)
#define add(x, y)                                     op_add(d, x, y)
#define act(y, x, a)                                  op_act(d, y, x, a)
#define scale(x, c)                                   op_scale(d, x, c)
#define softcap(x, cap)                               op_softcap(d, x, cap)
#define mul_rows(x, c)                                op_mul_rows(d, x, c)
#define l2norm(y, x, scale, eps)                      op_l2norm(d, y, x, scale, eps)
#define decay(g, x, rate, shift)                      op_decay(d, g, x, rate, shift)
#define conv1d(y, x, w, layer)                        op_conv1d_state(d, y, x, w, layer, s)
#define delta_rule(o, q, k, v, g, beta, tiled, layer) op_delta_rule(d, o, q, k, v, g, beta, tiled, layer, s)
#define copy(y, x)                                    op_copy(d, y, x)
#define index_choose(chosen, q, w, layer)             op_index_choose(d, chosen, q, w, kv, layer, s)
#define head_linear(y, x, w)                          op_head_linear(d, y, x, &(w))
#define gather(y, x)                                  op_gather(d, y, x, s->out) /* the R wanted rows */
/* x [T,H*Dh], which may be columns of something wider, seen as [T,H,Dh] */
static inline tensor heads(tensor x, int32_t H) {
    int32_t Dh = x.dim[1] / H;
    return (tensor){x.p, {x.stride[0], Dh, 1, 1}, {x.dim[0], H, Dh, 1}, x.type, 3};
}
