/* device: tensors, the operations, and what a device must offer. The list of operations is ops.def and nothing else.
 *
 * Letters in every shape comment: B sequences, T rows (tokens) of the step, R rows whose logits are wanted, S cached
 * positions, D width, H query heads, K key/value heads, Dh head width, F feed-forward width, E experts, A active
 * experts, V vocabulary.
 *
 * Contract of an operation: it never allocates, never synchronises with the host, and reads everything that changes
 * from step to step from `step`. Row t of its output depends on row t of its input (and, in attention and recurrences,
 * on earlier positions of the same sequence) and on nothing else in the step: same bits alone, in a batch, and in any
 * chunking. Failures are sticky in device->status. */
#pragma once
#include "../base/base.h"
#include "../base/pool.h"
#include "weight.h"

/* A view: owns nothing, passed by value. dim[0] is the slowest; strides in elements; the last dimension is contiguous.
 */
typedef struct tensor {
    void *p;
    int64_t stride[4];
    int32_t dim[4];
    uint8_t type, ndim; /* dtype */
} tensor;
tensor tensor_of(void *p, dtype type, int ndim, const int32_t *dim); /* contiguous */
#define tensor_f32(p, ...) tensor_of((p), DT_F32, (int)COUNT(((int32_t[]){__VA_ARGS__})), (int32_t[]){__VA_ARGS__})
#define tensor_i32(p, ...) tensor_of((p), DT_I32, (int)COUNT(((int32_t[]){__VA_ARGS__})), (int32_t[]){__VA_ARGS__})
tensor tensor_rows(tensor t, int32_t from, int32_t n);       /* t[from : from+n] along dim 0 */
tensor tensor_cols(tensor t, int32_t from, int32_t n);       /* t[..., from : from+n] along the last dim */
tensor tensor_shape(tensor t, int ndim, const int32_t *dim); /* the same elements of a contiguous tensor, other dims */
#define tensor_as(t, ...) tensor_shape((t), (int)COUNT(((int32_t[]){__VA_ARGS__})), (int32_t[]){__VA_ARGS__})
static inline float *tensor_row(tensor t, int64_t i) {
    return (float *)t.p + i * t.stride[0];
}
static inline bool tensor_null(tensor t) {
    return t.p == NULL;
}

/* How the arithmetic of matrix products is done (docs/numerics.md). */
typedef enum numerics { NUM_DEFAULT, NUM_F32, NUM_INT8, NUM_STRICT } numerics;
bool numerics_parse(str s, numerics *out);
const char *numerics_name(numerics n);

/* A matrix as a device keeps it. Filled by device->pack; model files only pass it on. */
typedef struct weight {
    int32_t n_experts, n_out, n_in;
    weight_format format; /* of the source, for inspect */
    tensor bias;          /* f32 [n_out], added to the product; .p NULL: none. Owned by the model */
    size_t bytes;         /* of the packed form */
    void *packed;         /* owned by the device */
    const char *name;     /* borrows (model) */
} weight;

/* ---- what a step works on --------------------------------------------------------------------------------------- */
enum { KV_PAGE = 64 /* positions a page */, KV_GROUPS = 4 /* kinds of page tables a model may have */ };

/* One sequence's rows in a step. Its rows are [row0, row0+n_rows), in order of position. */
typedef struct step_seq {
    int32_t row0, n_rows;
    int32_t pos0;                   /* position of the first row; positions before it are in the cache */
    int32_t slot;                   /* recurrent state slot; -1: the model has none. At pos0 = 0 it starts afresh */
    bool uncoded;                   /* its rows see keys and values as they were before coding (kv_spec.both) */
    const int32_t *page[KV_GROUPS]; /* page[g][i] holds positions [i*KV_PAGE, (i+1)*KV_PAGE) of group g; -1: released
                                       (out of window) */
} step_seq;

typedef struct step {
    int32_t n_rows, n_seqs, n_out;
    const int32_t *ids;        /* [T] token ids */
    const int32_t *pos;        /* [T] positions */
    const int32_t *out;        /* [R] rows whose logits are wanted, ascending */
    const step_seq *seq;       /* [B] */
    struct state_store *state; /* what the slots are of; NULL: the model has none */
    tensor hidden;             /* [R,D] f32: gets the wanted rows as they leave the final norm; .p NULL: not wanted */
} step;

/* How the keys or the values of a layer are kept: as they are, or coded in a few bits, position by position, when they
 * are appended. Affine: code·scale + offset, which every `group` columns of a position have of their own. Rotated:
 * docs/kv-cache.md. */
typedef struct kv_code {
    uint8_t bits;  /* 2, 3, 4, 5, 6 or 8; 0: not coded, in the cache's type */
    bool rotated;  /* values only; 2, 3, 4, 5 or 8 bits */
    int16_t group; /* affine: 32, 64 or 128 */
} kv_code;

/* Keys and values of all layers, in pages. Layers of one group share a page table (full attention; each window size).
 */
typedef struct kv_layer {
    int32_t heads, k_width, v_width, group; /* v_width 0: keys alone, as an indexer has them */
    bool latent;  /* one head, and its values are the first v_width columns of its keys: kept once, coded as k says */
    kv_code k, v; /* both or neither */
    int32_t of;   /* the model's layer */
} kv_layer;
typedef struct kv_spec {
    int32_t n_layers, n_groups;
    const kv_layer *layer;      /* [n_layers]; borrows */
    int32_t window[KV_GROUPS];  /* 0: full attention */
    int32_t n_pages[KV_GROUPS]; /* capacity */
    dtype type;                 /* F16 (default), BF16 or F32 (f32 numerics); of scales and offsets too */
    bool both;                  /* coded layers keep keys and values uncoded as well, for rows that ask for them */
} kv_spec;
typedef struct kv_cache kv_cache;

/* Recurrent state: what layers without keys and values remember of a sequence, one slot a sequence. A layer has the
 * last kernel-1 inputs of its convolution over `channels`, and for each of `heads` a matrix [k_width, v_width], all
 * f32. */
typedef struct state_layer {
    int32_t channels, kernel, heads, k_width, v_width;
} state_layer;
typedef struct state_spec {
    int32_t n_layers, n_slots;
    const state_layer *layer; /* [n_layers]; borrows */
} state_spec;
typedef struct state_store state_store;
enum { CONV_KERNEL_MAX = 8 };

/* Rotary angles: angle(pos, i) = pos * freq[i], i < n_freq; cos and sin are scaled by `scale` (yarn, longrope). */
typedef struct rope_table {
    const float *freq; /* [n_freq], owned by the model. 0: that pair is not rotated */
    int32_t n_freq;
    bool interleaved; /* pairs (2i, 2i+1); otherwise (i, i + n_freq) */
    float scale;
} rope_table;

typedef struct attn {
    float scale;
    float softcap;      /* 0: none; else cap*tanh(x/cap) on the scaled scores */
    int32_t window;     /* 0: all; else query i sees keys i-window+1..i */
    const float *sinks; /* [H] or NULL */
} attn;

/* How experts are chosen from their scores x [E]. Whatever is compared, ties go to the lowest index. */
typedef enum router_kind {
    ROUTER_SOFTMAX,        /* p = softmax(x) over all experts; the A largest p, weighted with p */
    ROUTER_SOFTMAX_CHOSEN, /* the A largest x, weighted with the softmax over these alone */
    ROUTER_SIGMOID         /* p = sigmoid(x); the A largest p + bias, weighted with p */
} router_kind;
enum { EXPERTS_MAX = 1024, EXPERTS_ACTIVE_MAX = 64 };
typedef struct router {
    router_kind kind;
    bool normalise;                  /* the weights are divided by their sum (+ 1e-20 for sigmoid) */
    float scale;                     /* and then multiplied by this */
    int32_t n_groups, groups_chosen; /* sigmoid, 0: no groups. Experts in groups of E/n_groups; a group counts the sum
                                        of its two largest p + bias; in groups that are not among the groups_chosen
                                        best, p + bias is taken as `lost` */
    float lost;
    const float *bias;         /* [E] sigmoid: for choosing only; NULL: none */
    const float *expert_scale; /* [E] multiplies a chosen expert's weight last; NULL: none */
} router;

typedef enum act { ACT_SILU, ACT_GELU_ERF, ACT_GELU_TANH, ACT_RELU, ACT_SIGMOID } act;

typedef struct device device;
typedef struct device_ops {
#define OP(name, params, args) void(*name) params;
#include "ops.def"
#undef OP
} device_ops;

/* Memory and life time; the operations are in `op`. */
typedef struct device_vtable {
    const char *name; /* "cpu", "cuda" */
    void (*close)(device *d);
    /* Lays a matrix out for this device. w->n_* and format are filled too; err: ERR_MEMORY, ERR_FORMAT (names the
     * tensor). */
    bool (*pack)(device *d, weight *w, const weight_src *src, error *err);
    void (*unpack)(device *d, weight *w);                     /* frees */
    size_t (*packed_bytes)(device *d, const weight_src *src); /* exact, from headers only; the device notes the shape
                                                                 for work_bytes */
    /* What steps need beside weights, activations, pages and state, at most: coded activations of the weights seen so
     * far (packed_bytes, pack), attention's temporaries for sequences of `context` positions, rotary angles. Before or
     * after kv_new; grows with context. */
    size_t (*work_bytes)(device *d, const kv_spec *spec, int32_t context);
    void *(*alloc)(device *d, size_t bytes, error *err); /* zeroed; activations, tables */
    void (*free)(device *d, void *p, size_t bytes);
    kv_cache *(*kv_new)(device *d, const kv_spec *spec, error *err);
    void (*kv_free)(device *d, kv_cache *kv);
    size_t (*kv_page_bytes)(device *d, const kv_spec *spec, int group); /* of one page over all layers of the group */
    void (*kv_copy)(device *d, kv_cache *kv, int group, int32_t to, int32_t from);
    void (*kv_read)(device *d, kv_cache *kv, int group, int32_t page, void *host);
    void (*kv_write)(device *d, kv_cache *kv, int group, int32_t page, const void *host);
    void (*kv_discard)(device *d, kv_cache *kv, int group, int32_t page); /* its memory may go back to the system */
    uint64_t (*kv_saturated)(device *d,
                             const kv_cache *kv); /* values that left the type's range (or were NaN) so far */
    state_store *(*state_new)(device *d, const state_spec *spec, error *err);
    void (*state_free)(device *d, state_store *st);
    size_t (*state_bytes)(device *d,
                          const state_spec *spec); /* of one slot, exact; what state_read and state_write move */
    void (*state_zero)(device *d, state_store *st, int32_t slot);
    void (*state_copy)(device *d, state_store *st, int32_t to, int32_t from);
    void (*state_discard)(device *d, state_store *st, int32_t slot); /* its memory may go back to the system */
    void (*state_read)(device *d, state_store *st, int32_t slot, void *host);
    void (*state_write)(device *d, state_store *st, int32_t slot, const void *host);
    void (*step_begin)(device *d, step *s); /* step tables to the device */
    void (*step_end)(device *d);            /* wait; status is valid after it */
} device_vtable;

struct device {
    const device_ops *op;
    const device_vtable *vt;
    numerics num;
    error status;  /* sticky: the first failure of any operation; read and cleared once a step */
    pool *threads; /* owns; CPU worker threads, also used by packers */
    int rows_max;  /* most rows a step may have: the workspace is planned for it */
};

#define OP(name, params, args)            \
    static inline void op_##name params { \
        d->op->name args;                 \
    }
#include "ops.def"
#undef OP

typedef struct device_opts {
    numerics num;
    int threads;       /* 0: pool_threads_default() */
    int rows_max;      /* 0: 512 */
    const char *level; /* NULL: $HEARTH_CPU, else the best: "ref", "avx2", "avx512", "amx" */
} device_opts;
device *device_cpu_open(const device_opts *o, error *err);
const char *device_cpu_level(const device *d);
void device_close(device *d);
