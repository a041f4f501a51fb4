/* Weights: how a matrix lies in a file, and the two scalar readings every device starts from.
 *
 * Every integer-coded format is read as groups of `group` columns with   w = s·(q − z) + b,   q unsigned (0..255), z a
 * constant of the format, s and b f32. That one form is what packers and kernels see (docs/numerics.md); only F32, F16,
 * BF16 and MXFP8 have no integer codes. Not here: packing for a device (device/cpu/pack.c). */
#pragma once
#include "../base/base.h"

typedef enum weight_format {
#define FORMAT(name, elems, bytes, what) WF_##name,
#include "formats.def"
#undef FORMAT
    WF_COUNT
} weight_format;

typedef enum dtype { DT_F32, DT_F16, DT_BF16, DT_I32, DT_U32, DT_U8, DT_I8, DT_COUNT } dtype;
size_t dtype_bytes(dtype t);
const char *dtype_name(dtype t);

/* A matrix [n_out, n_in] (or n_experts of them) as it lies in a mapped file. Borrows everything. */
typedef struct weight_src {
    weight_format format;
    int32_t n_experts; /* 1 for an ordinary matrix */
    int32_t n_out, n_in;
    int32_t bits, group;         /* AFFINE: as stored; others: of the format */
    const void *codes;           /* floats, blocks or packed codes; row-major */
    const void *scales, *biases; /* MLX formats: [n_out, n_in/group]; biases only AFFINE */
    dtype scale_type;            /* AFFINE: F32, F16 or BF16; MX/NV: U8 */
    const char *name;            /* for messages; borrows */
    const struct weight_src
        *each; /* [n_experts]: experts that do not lie one after the other; each says where. NULL: stacked */
} weight_src;
/* Expert e as a matrix of its own; rows [from, from+n) of a matrix that has one expert. */
weight_src weight_expert(const weight_src *w, int32_t e);
weight_src weight_rows(const weight_src *w, int32_t from, int32_t n);

/* What the integer form of a source looks like; false for formats without integer codes. */
typedef struct code_form {
    int32_t group;   /* columns that share s and b: 16, 32, 64 or 128 */
    int32_t bits;    /* of q */
    int32_t zero;    /* z */
    bool has_offset; /* b != 0 */
} code_form;
bool weight_code_form(const weight_src *w, code_form *out);

const char *weight_format_name(weight_format f);
size_t weight_row_bytes(const weight_src *w); /* codes of one row */
size_t weight_src_bytes(const weight_src *w); /* codes + scales + biases, all experts */
/* Row r (of stacked experts: e*n_out + r) as f32 [n_in]: the meaning of the format. w = s·(q−z)+b with one rounding per
 * step. */
void weight_row_f32(const weight_src *w, int64_t r, float *out);
/* Row r as codes [n_in], scales and offsets [n_in/group]. Only where weight_code_form says true. */
void weight_row_codes(const weight_src *w, int64_t r, uint8_t *q, float *s, float *b);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* nearest even; saturates at ±65504, NaN kept */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);
