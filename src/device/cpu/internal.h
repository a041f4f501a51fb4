/* The CPU device's own header: its state, and how the instruction levels fill the table of operations.
 *
 * The table starts as ref; each better level overrides single entries, in rising order, if the processor has it and
 * HEARTH_CPU (or device_opts.level) allows it. The file's suffix decides the compiler's flags. */
#pragma once
#include <math.h>
#include "../device.h"

typedef enum cpu_level { CPU_REF, CPU_AVX2, CPU_AVX512, CPU_AMX } cpu_level;

/* cos and sin of the rows of the last steps, so that all layers of a step (and q and k) share them. Compared by
 * content. */
enum { ROPE_TABLES = 4, ROPE_FREQ_MAX = 512 };
typedef struct rope_cache {
    int n_rows, n_freq;
    bool interleaved;
    float scale;
    int32_t *pos; /* [rows_max] */
    float freq[ROPE_FREQ_MAX];
    float *cos_sin; /* [rows_max][2][n] as rope_angles says */
} rope_cache;

enum { CPU_LINEAR_CLASSES = 4 };

typedef struct cpu_device {
    device base;      /* first: a device * is a cpu_device * */
    device_ops table; /* what base.op points to */
    cpu_level level;
    /* Coded activations of matrix products (linear.c): owns; cpu_pack grows it to rows_max rows of the widest weight.
     */
    void *scratch;
    size_t scratch_bytes;
    struct pack_slab *slab;                     /* owned by pack.c: where the next weight goes; NULL at first */
    int32_t linear_widest[CPU_LINEAR_CLASSES];  /* n_in packed, for each way activations are coded; 0: none yet */
    int32_t linear_planned[CPU_LINEAR_CLASSES]; /* the same of all weights whose size was asked */
    int32_t *expert_order; /* owns [rows_max][EXPERTS_ACTIVE_MAX]: (row, chosen expert) pairs, sorted */
    size_t expert_order_bytes;
    rope_cache rope[ROPE_TABLES];
    int rope_next;  /* the entry to overwrite next */
    void *rope_mem; /* owns: pos and cos_sin of all entries */
    size_t rope_bytes;
} cpu_device;

/* ---- rows (cpu.c) ---- */
/* Rows of a view over all but its last dimension. */
static inline int tensor_width(tensor t) {
    return t.dim[t.ndim - 1];
}
static inline int64_t tensor_lines(tensor t) {
    int64_t n = 1;
    for (int i = 0; i + 1 < t.ndim; i++) n *= t.dim[i];
    return n;
}
static inline float *tensor_line(tensor t, int64_t i) {
    float *p = t.p;
    for (int k = t.ndim - 2; k > 0; k--) {
        p += i % t.dim[k] * t.stride[k];
        i /= t.dim[k];
    }
    return t.ndim > 1 ? p + i * t.stride[0] : p;
}
/* fn works on lines [from, to) of its job. Runs here when n·cost is small, else split over the pool. cost: of one line,
 * counted in f32 additions. */
typedef void cpu_rows_fn(const void *job, int64_t from, int64_t to);
void cpu_rows_run(device *d, int64_t n, int64_t cost, cpu_rows_fn *fn, const void *job);
/* Tables for the first rows of pos (the return value says how many, at least 1): [rows][2][n], n = n_freq, cosines then
 * sines scaled by r->scale; interleaved: n = 2·n_freq, every angle twice, sines as (−s, s). Valid until ROPE_TABLES
 * other calls. */
int rope_angles(device *d, const int32_t *pos, int n, const rope_table *r, const float **cos_sin);

/* ---- keys and values (kv.c) ----
 * A page of a group holds, for each of its layers and each head, the keys and the values of KV_PAGE positions. Keys lie
 * transposed, [k_width][KV_PAGE], values in rows, [KV_PAGE][v_pad]: a lane of attention is a position for q·K and a
 * column for p·V, so neither needs sums across lanes. A latent layer holds one row [k_pad] a position: its keys are
 * turned when they are read.
 * Coded keys: every 8 columns of a position are `bits` bytes, byte b of block i at [i·bits + b][KV_PAGE]; scales and
 * offsets are [groups][KV_PAGE]. Coded rows: a stream of codes, lowest bit first; scales and offsets [KV_PAGE][groups].
 */
typedef struct kv_part {
    kv_code how;
    int32_t width, pad, groups; /* pad: width rounded up to 16; columns of rows past the width are 0 or unread */
    size_t at, scale_at, offset_at, end; /* in a head, bytes; codes are followed by at least 16 bytes */
} kv_part;
typedef struct cpu_kv_layer {
    kv_layer dim;
    int32_t k_pad, v_pad;     /* widths rounded up to 16 */
    kv_part k, v;             /* latent: v is not used */
    kv_part k_plain, v_plain; /* kv_spec.both and coded: the same, uncoded */
    bool both;
    size_t offset; /* of the layer in a page, bytes */
    size_t head_bytes;
} cpu_kv_layer;

struct kv_cache {
    dtype type;
    int32_t n_layers, n_groups;
    int32_t n_pages[KV_GROUPS];
    size_t page_bytes[KV_GROUPS], pool_bytes[KV_GROUPS];
    bool small[KV_GROUPS];        /* its memory comes in small pages since something was discarded */
    uint8_t *pool[KV_GROUPS];     /* owns; mapped lazily */
    cpu_kv_layer *layer;          /* owns [n_layers] */
    float *sign;                  /* owns [KV_WIDTH_MAX]: what rotation multiplies columns by, ±1 */
    _Atomic uint64_t n_saturated; /* values that did not fit the type, or were NaN, since kv_new */
    /* Attention's temporaries: one area a worker, and partial results when one row's chunks are shared out. */
    uint8_t *work; /* owns */
    size_t work_bytes, worker_bytes;
    float *parts; /* owns */
    size_t parts_bytes;
    float *scores; /* owns [INDEX_ROWS][positions]; NULL: no layer is an indexer's */
    size_t scores_bytes;
};
enum { KV_WIDTH_MAX = 4096, KV_GROUP_MIN = 32, KV_GROUP_MAX = 128 };
enum { CODED_KEYS = 32 /* columns of coded keys, */, CODED_ROWS = 16 /* and coded rows, that are read at a time */ };
extern const float *const kv_levels[9]; /* by bits; NULL: not offered (kv_levels.c) */
static inline uint8_t *kv_head(const kv_cache *kv, const cpu_kv_layer *l, int32_t page, int head) {
    int g = l->dim.group;
    return kv->pool[g] + (size_t)page * kv->page_bytes[g] + l->offset + (size_t)head * l->head_bytes;
}
/* Where the block of columns that begins at column `at` of rotated rows ends: a row is cut into powers of two, the
 * largest first. */
static inline int kv_block_end(int pad, int at) {
    return at + (1 << (31 - __builtin_clz((unsigned)(pad - at))));
}

/* ---- recurrent state (state.c) ----
 * A slot holds layer after layer: the window [kernel-1][channels], then for each head S [k_width][v_pad]. A lane is a
 * column of S, so neither product of the delta rule needs sums across lanes. */
typedef struct cpu_state_layer {
    state_layer dim;
    int32_t v_pad;           /* v_width rounded up to 16; the columns past v_width stay 0 */
    size_t conv_at, head_at; /* in a slot, floats */
} cpu_state_layer;

struct state_store {
    int32_t n_layers, n_slots;
    size_t slot_floats;
    cpu_state_layer *layer; /* owns [n_layers] */
    float *slots;           /* owns; mapped lazily */
    size_t bytes;
    bool small; /* its memory comes in small pages since something was discarded */
};
static inline float *state_at(const state_store *st, int32_t slot, size_t at) {
    return st->slots + (size_t)slot * st->slot_floats + at;
}

enum { OS_PAGE = 4096 };

/* What attention keeps for a tile of query rows; rows are (position, query head of the group) pairs. */
enum { ATTN_ROWS = 48 /* query rows a tile: a multiple of 6 */, ATTN_CHUNK = 8 /* pages whose softmax is one unit */ };
enum { SPLIT_TILES = 4 /* fewer tiles a thread than this: their chunks are shared out */ };
enum { INDEX_ROWS = 16 /* rows whose positions an indexer scores before it chooses */ };

kv_cache *cpu_kv_new(device *d, const kv_spec *spec, error *err);
void cpu_kv_free(device *d, kv_cache *kv);
/* Attention's temporaries, as far as sequences of `context` positions touch them. */
size_t cpu_kv_work_bytes(device *d, const kv_spec *spec, int32_t context);
size_t cpu_kv_page_bytes(device *d, const kv_spec *spec, int group);
void cpu_kv_copy(device *d, kv_cache *kv, int group, int32_t to, int32_t from);
void cpu_kv_read(device *d, kv_cache *kv, int group, int32_t page, void *host);
void cpu_kv_write(device *d, kv_cache *kv, int group, int32_t page, const void *host);
void cpu_kv_discard(device *d, kv_cache *kv, int group, int32_t page);
uint64_t cpu_kv_saturated(device *d, const kv_cache *kv);

state_store *cpu_state_new(device *d, const state_spec *spec, error *err);
void cpu_state_free(device *d, state_store *st);
size_t cpu_state_bytes(device *d, const state_spec *spec); /* whole pages of the system: a slot can be discarded */
void cpu_state_zero(device *d, state_store *st, int32_t slot);
void cpu_state_copy(device *d, state_store *st, int32_t to, int32_t from);
void cpu_state_discard(device *d, state_store *st, int32_t slot);
void cpu_state_read(device *d, state_store *st, int32_t slot, void *host);
void cpu_state_write(device *d, state_store *st, int32_t slot, const void *host);

/* One install function a file. Everything but matrix products (vec_body.h, attend_body.h, moe_body.h, delta_body.h):
 * ref, avx2, avx512. */
void cpu_vec_install_ref(device_ops *op);
void cpu_vec_install_avx2(device_ops *op);
void cpu_vec_install_avx512(device_ops *op);
/* Matrix products and embedding: linear_ref.c, linear_avx2.c, linear_avx512.c; packing: pack.c. */
void cpu_linear_install_ref(device_ops *op);
void cpu_linear_install_avx2(device_ops *op);
void cpu_linear_install_avx512(device_ops *op);
bool cpu_pack(device *d, weight *w, const weight_src *src, error *err);
void cpu_unpack(device *d, weight *w);
size_t cpu_packed_bytes(device *d, const weight_src *src);
