/* Matrix products on the CPU: the packed form of a weight, the coded form of activations, and what one instruction
 * level has to supply. docs/kernels.md explains the layouts, docs/numerics.md the arithmetic and its fixed order.
 *
 * pack.c makes the packed form, linear.c and linear_expert.c split the work over threads, linear_ref.c defines the
 * numbers, linear_avx2.c and linear_avx512.c compute the same bytes faster.
 *
 * A panel is 16 output rows, a chunk 64 columns of a panel, a step 4 columns: 64 bytes of codes, 4 for each row. */
#pragma once
#include "internal.h"

enum {
    LIN_ROWS = 16,
    LIN_COLS = 64,
    LIN_STEPS = 16,
    LIN_TILE = 96, /* most activation rows of a block; with LIN_PANELS: a chunk's activations and sums stay in 48 KiB */
    LIN_PANELS = 4 /* panels computed together, so that activations are fetched half as often */
};

/* How scales (and offsets) are kept: the narrowest form that holds the source's values exactly. */
typedef enum lin_scale {
    LS_F32,
    LS_F16,
    LS_BF16,
    LS_E8M0, /* one byte; the value is half of 2^(e-127) */
    LS_E4M3, /* one byte; the value is half of the E4M3 number */
    LS_SUPER /* K-quants: d (and dmin) f16 for 256 columns, a signed byte a group: s = d·sc, b = −(dmin·m) */
} lin_scale;

/* Weights without integer codes, as elements [chunk][64][16]. */
typedef enum lin_float { LF_NONE, LF_F32, LF_F16, LF_BF16, LF_MXFP8 } lin_float;

/* How activations are coded: per row as f32, or as integers with a scale per 16, 32 or 64 columns. */
typedef enum lin_class { LC_F32, LC_16, LC_32, LC_64 } lin_class;
_Static_assert(LC_64 + 1 == CPU_LINEAR_CLASSES, "internal.h counts them");

typedef struct cpu_packed {
    uint8_t *data; /* experts, each n_panels panels, each the codes of all chunks and then the scales; in slab */
    struct pack_slab *slab; /* counts this weight */
    size_t data_bytes, expert_bytes, panel_bytes, scales_at /* in a panel */, chunk_bytes, group_bytes /* of scales */;
    int32_t n_experts, n_out, n_in, n_panels, n_chunks;
    int32_t group, zero; /* columns that share a scale; the code that means 0 */
    lin_float floats;    /* LF_NONE: integer codes */
    lin_scale scale;
    uint8_t bits; /* of a stored code: 1, 2, 3, 4, 5, 6 or 8 */
    bool offset;  /* b is kept */
    bool lookup;  /* the stored nibble is an index into table */
    uint8_t table[16];
} cpu_packed;

static inline const uint8_t *lin_panel_of(const cpu_packed *w, int expert, int panel) {
    return w->data + (size_t)expert * w->expert_bytes + (size_t)panel * w->panel_bytes;
}
/* The activation grouping of a weight. NUM_F32 and weights without codes: LC_F32. */
lin_class lin_class_of(const cpu_packed *w, numerics num);
static inline int lin_class_cols(lin_class c) {
    return c == LC_16 ? 16 : c == LC_32 ? 32 : 64;
}

/* Coded activations of a block of n rows. Each level lays x out for itself within 2 bytes a column (LC_F32: f32), group
 * after group, the block's rows side by side in a group; a, c and hl are [n_groups][n]. */
typedef struct lin_block {
    uint8_t *x;
    float *a;    /* x ≈ a·X; 0 for groups of zeros, NaN for groups with a value that is not finite */
    float *c;    /* a·ΣX */
    int32_t *hl; /* ΣX as two signed halves: ΣH << 16 | ΣL where ΣX = 128·ΣH + ΣL */
    int32_t n, n_chunks;
    lin_class class;
    bool one_plane; /* 8-bit activations: X is L, H is 0 */
} lin_block;

/* Where the coded form of a call's rows lies in the device's scratch; cut into row blocks that stay in cache while
 * panels pass by. */
typedef struct lin_coded {
    uint8_t *x; /* this and the next borrow the scratch */
    float *abc;
    int32_t n_chunks, block_rows /* at most LIN_TILE */;
    size_t row_bytes, groups;
    lin_class class;
} lin_coded;
/* For T rows of n_in columns. */
lin_coded lin_coded_of(const cpu_device *d, lin_class class, int32_t n_in, int32_t T);
/* The block of rows [first, first+n) of a call's coded rows; n <= block_rows. */
lin_block lin_block_of(const lin_coded *o, int32_t first, int32_t n, bool one_plane);

/* What an instruction level supplies. */
typedef struct lin_kernels {
    /* Codes row r of a block from x [n_in]; columns up to the last chunk's end count as 0. */
    void (*code)(const lin_block *b, int r, const float *x, int n_in);
    /* acc [n_panels][n][16] = products of the block's rows with 1..LIN_PANELS neighbouring panels, without bias. */
    void (*panels)(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc);
    /* y [n][16] (row stride in floats, 32-byte aligned) = acc, past the caches and fenced. NULL: the level has no such
     * store. */
    void (*stream)(const float *acc, int n, float *y, int64_t stride);
    /* One chunk as f32 [64][16], with the roundings of weight_row_f32. */
    void (*chunk_f32)(const cpu_packed *w, const uint8_t *panel, int chunk, float *out);
} lin_kernels;

/* One product: y [T,n_out] (row stride in floats) = x · Wᵀ of one expert, + bias (NULL: none). */
typedef struct lin_part {
    const cpu_packed *w;
    int32_t expert;
    const float *bias;
    float *y;
    int64_t y_stride;
} lin_part;
enum { LIN_PARTS = 3 };
/* All parts read the same x [T,K] (row stride x_stride). T <= d->rows_max and every part was packed on d. */
void lin_run(device *d, const lin_kernels *k, const float *x, int64_t x_stride, int T, int n_parts,
             const lin_part *part);
/* The same with experts: part[p].w holds many, and chosen [T,A] says which each row takes; part.y is [T,A,n_out]. All
 * parts of a call have the same number of experts and read the same x [T,K] or [T,A,K]. */
typedef struct lin_expert_part {
    const cpu_packed *w;
    tensor y;
} lin_expert_part;
void lin_experts_run(device *d, const lin_kernels *k, tensor x, tensor chosen, int n_parts,
                     const lin_expert_part *part);
/* y [T,H,n_out]: expert h for x [T,H,K]'s head h. */
void lin_heads_run(device *d, const lin_kernels *k, tensor x, lin_expert_part part);
void lin_embed(device *d, const lin_kernels *k, tensor y, const weight *table, const int32_t *ids, float scale);
/* Grows d's scratch so that rows of n_in columns fit; pack.c calls it. */
bool lin_scratch_grow(cpu_device *d, lin_class class, int32_t n_in, error *err);
/* Its size once all weights whose size was asked are packed. */
size_t lin_scratch_planned(const cpu_device *d);

lin_part lin_part_of(tensor y, const weight *w);
/* The operations of a level, from its kernels. */
#define LIN_OPS(kernels)                                                                                               \
    static void op_embed_(device *d, tensor y, const weight *table, const int32_t *ids, float scale) {                 \
        lin_embed(d, &(kernels), y, table, ids, scale);                                                                \
    }                                                                                                                  \
    static void op_linear_(device *d, tensor y, tensor x, const weight *w) {                                           \
        lin_run(d, &(kernels), x.p, x.stride[0], x.dim[0], 1, (lin_part[]){lin_part_of(y, w)});                        \
    }                                                                                                                  \
    static void op_linear2_(device *d, tensor y0, tensor y1, tensor x, const weight *w0, const weight *w1) {           \
        lin_run(d, &(kernels), x.p, x.stride[0], x.dim[0], 2, (lin_part[]){lin_part_of(y0, w0), lin_part_of(y1, w1)}); \
    }                                                                                                                  \
    static void op_linear3_(device *d, tensor y0, tensor y1, tensor y2, tensor x, const weight *w0, const weight *w1,  \
                            const weight *w2) {                                                                        \
        lin_run(d, &(kernels), x.p, x.stride[0], x.dim[0], 3,                                                          \
                (lin_part[]){lin_part_of(y0, w0), lin_part_of(y1, w1), lin_part_of(y2, w2)});                          \
    }                                                                                                                  \
    static void op_expert_linear_(device *d, tensor y, tensor x, const weight *w, tensor id) {                         \
        lin_experts_run(d, &(kernels), x, id, 1, (lin_expert_part[]){{w->packed, y}});                                 \
    }                                                                                                                  \
    static void op_expert_linear2_(device *d, tensor y0, tensor y1, tensor x, const weight *w0, const weight *w1,      \
                                   tensor id) {                                                                        \
        lin_experts_run(d, &(kernels), x, id, 2, (lin_expert_part[]){{w0->packed, y0}, {w1->packed, y1}});             \
    }                                                                                                                  \
    static void op_head_linear_(device *d, tensor y, tensor x, const weight *w) {                                      \
        lin_heads_run(d, &(kernels), x, (lin_expert_part){w->packed, y});                                              \
    }                                                                                                                  \
    static void install_ops(device_ops *op) {                                                                          \
        op->embed = op_embed_;                                                                                         \
        op->linear = op_linear_;                                                                                       \
        op->linear2 = op_linear2_;                                                                                     \
        op->linear3 = op_linear3_;                                                                                     \
        op->expert_linear = op_expert_linear_;                                                                         \
        op->expert_linear2 = op_expert_linear2_;                                                                       \
        op->head_linear = op_head_linear_;                                                                             \
    }

/* Activation coding shared by the levels: everything but the rounding of the values. `top` is the largest absolute
 * value's bit pattern in the group (so that NaN and infinity win). Returns the factor for X = nearest(x · factor), 0: X
 * is all 0. */
static inline float lin_code_scale(const lin_block *b, int32_t top, float *a) {
    /* Below 2^-110 the factor would leave the range of f32; such a group counts as 0. */
    enum { BITS_INF = 0x7f800000, BITS_TINY = 17 << 23 };
    float most = b->one_plane ? 127.0f : 16383.0f, x;
    if (top >= BITS_INF || top < BITS_TINY) {
        uint32_t nan = 0xffc00000u; /* the NaN x86 makes itself, so that all NaN of a product are this one */
        *a = 0;
        if (top >= BITS_INF) memcpy(a, &nan, 4);
        return 0;
    }
    memcpy(&x, &top, 4);
    *a = x / most;
    return most / x;
}
static inline void lin_code_sums(const lin_block *b, size_t at, int32_t h, int32_t l, float a) {
    b->a[at] = a;
    b->c[at] = a * (float)(128 * h + l);
    b->hl[at] = (int32_t)((uint32_t)h << 16 | (uint32_t)(uint16_t)l);
}
