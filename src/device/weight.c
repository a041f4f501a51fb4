/* Element types, 16-bit floats, and rows of weights: as f32 (the meaning) and as codes (what packers read).
 *
 * GGUF blocks are read by weight_gguf.c; the MLX formats, whose codes and scales are separate tensors, here.
 * Not here: finding a matrix in a checkpoint (format/), packing (device/cpu/pack.c). */
#include "internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read in place");

/* ---- element types ---------------------------------------------------------------------------------------------- */
static const struct {
    uint8_t bytes;
    const char *name;
} dtypes[DT_COUNT] = {
    [DT_F32] = {4, "F32"}, [DT_F16] = {2, "F16"}, [DT_BF16] = {2, "BF16"}, [DT_I32] = {4, "I32"},
    [DT_U32] = {4, "U32"}, [DT_U8] = {1, "U8"},   [DT_I8] = {1, "I8"},
};

size_t dtype_bytes(dtype t) {
    return dtypes[t].bytes;
}

const char *dtype_name(dtype t) {
    return dtypes[t].name;
}

static inline float float_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint32_t bits_of_float(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, m = h & 0x7fff;
    if (m < 0x0400)
        return float_of_bits(sign | bits_of_float(float_of_bits(0x3f000000 + m) - 0.5f)); /* ulp(½) = 2^-24 */
    if (m >= 0x7c00) return float_of_bits(sign | 0x7f800000 | m << 13);
    return float_of_bits(sign | ((m << 13) + (112u << 23)));
}

uint16_t f32_to_f16(float f) {
    uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000, m = u & 0x7fffffff;
    if (m > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (m >= 0x477fe000) return (uint16_t)(sign | 0x7bff);
    if (m < 0x38800000) return (uint16_t)(sign | (bits_of_float(float_of_bits(m) + 0.5f) - 0x3f000000));
    m += 0xfff + (m >> 13 & 1);
    return (uint16_t)(sign | (m - (112u << 23)) >> 13);
}

float bf16_to_f32(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = bits_of_float(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- formats ---------------------------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    int16_t elems, bytes;
} formats[WF_COUNT] = {
#define FORMAT(name, elems, bytes, what) {#name, elems, bytes},
#include "formats.def"
#undef FORMAT
};

const char *weight_format_name(weight_format f) {
    return formats[f].name;
}

static int code_bits(const weight_src *w) {
    return w->format == WF_AFFINE ? w->bits : w->format == WF_MXFP8 ? 8 : 4;
}

static int group_size(const weight_src *w) {
    return formats[w->format].elems ? formats[w->format].elems : w->group;
}

static bool scales_apart(weight_format f) {
    return formats[f].bytes == 0;
}

bool weight_code_form(const weight_src *w, code_form *out) {
    const block_reader *r = weight_block_reader(w->format);
    if (r)
        *out = r->form;
    else if (w->format == WF_AFFINE)
        *out = (code_form){w->group, w->bits, 0, true};
    else if (w->format == WF_MXFP4 || w->format == WF_NVFP4)
        *out = (code_form){group_size(w), E2M1_BITS, E2M1_ZERO, false};
    else
        return false;
    return true;
}

size_t weight_row_bytes(const weight_src *w) {
    size_t n = (size_t)w->n_in;
    if (scales_apart(w->format)) return (n * (size_t)code_bits(w) + 31) / 32 * 4; /* MLX pads rows to 32-bit words */
    return n / (size_t)formats[w->format].elems * (size_t)formats[w->format].bytes;
}

size_t weight_src_bytes(const weight_src *w) {
    size_t rows = (size_t)w->n_experts * (size_t)w->n_out, scales = 0;
    if (scales_apart(w->format))
        scales = (size_t)(w->n_in / group_size(w)) * dtype_bytes(w->scale_type) * (w->biases ? 2 : 1);
    return rows * (weight_row_bytes(w) + scales);
}

static weight_src rows_from(const weight_src *w, size_t from, int32_t n) {
    weight_src part = *w;
    part.n_experts = 1;
    part.n_out = n;
    part.codes = (const uint8_t *)w->codes + from * weight_row_bytes(w);
    if (!scales_apart(w->format)) return part;
    size_t at = from * (size_t)(w->n_in / group_size(w)) * dtype_bytes(w->scale_type);
    part.scales = (const uint8_t *)w->scales + at;
    if (w->biases) part.biases = (const uint8_t *)w->biases + at;
    return part;
}

weight_src weight_expert(const weight_src *w, int32_t e) {
    return w->each ? w->each[e] : rows_from(w, (size_t)e * (size_t)w->n_out, w->n_out);
}

weight_src weight_rows(const weight_src *w, int32_t from, int32_t n) {
    return rows_from(w, (size_t)from, n);
}

/* ---- MLX: codes are one little-endian bit stream a row ----------------------------------------------------------- */
/* 8 codes from `bits` bytes (codes of 3, 5 and 6 bits cross word borders), spread over the lanes of a word by halving:
 * 4 codes to each 32-bit half, 2 to each 16 bits, 1 to each byte. */
static inline uint64_t stream_8(const uint8_t *p, int bits) {
    uint64_t v = 0, m4 = (1ull << 4 * bits) - 1, m2 = ((1ull << 2 * bits) - 1) * 0x0000000100000001u;
    uint64_t m1 = ((1ull << bits) - 1) * 0x0001000100010001u;
    if (bits & 4) v = load_u32(p), p += 4;
    if (bits & 2) v |= (uint64_t)load_u16(p) << (bits & 4) * 8, p += 2;
    if (bits & 1) v |= (uint64_t)*p << (bits & 6) * 8;
    v = (v & m4) | (v << (32 - 4 * bits) & m4 << 32);
    v = (v & m2) | (v << (16 - 2 * bits) & m2 << 16);
    return (v & m1) | (v << (8 - bits) & m1 << 8);
}

/* One function a width: with a constant the compiler folds the masks. n is a multiple of 8. */
#define STREAM(BITS)                                                                         \
    static void stream_##BITS(const uint8_t *p, int n, uint8_t *q) {                         \
        for (int i = 0; i < n; i += 8) lanes_store(q + i, stream_8(p + i / 8 * BITS, BITS)); \
    }
STREAM(1)
STREAM(2)
STREAM(3)
STREAM(4)
STREAM(5)
STREAM(6)

static void stream_copy(const uint8_t *p, int n, uint8_t *q) {
    memcpy(q, p, (size_t)n);
}

static void (*const streams[9])(const uint8_t *p, int n, uint8_t *q) = {
    NULL, stream_1, stream_2, stream_3, stream_4, stream_5, stream_6, NULL, stream_copy,
};

static void e2m1_codes(const uint8_t *p, int n, uint8_t *q) {
    for (int i = 0; i < n; i += 2) {
        q[i] = weight_e2m1_code[p[i / 2] & 15];
        q[i + 1] = weight_e2m1_code[p[i / 2] >> 4];
    }
}

const uint8_t weight_e2m1_code[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

float weight_e8m0_half(uint8_t e) {
    return float_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

static float e8m0(uint8_t e) {
    return float_of_bits(e ? (uint32_t)e << 23 : 0x00400000u);
}

/* E4M3 as MLX reads it: no NaN, 0x7f is 480. */
static float e4m3(uint8_t v) {
    int e = v >> 3 & 15, m = v & 7;
    float f = e ? float_of_bits((uint32_t)(e + 120) << 23 | (uint32_t)m << 20) : (float)m * 0x1p-9f;
    return v & 0x80 ? -f : f;
}

static void floats_read(const void *p, dtype t, size_t from, size_t n, float *out) {
    const uint8_t *at = (const uint8_t *)p + from * dtype_bytes(t);
    if (t == DT_F32)
        memcpy(out, at, n * 4);
    else if (t == DT_F16)
        for (size_t i = 0; i < n; i++) out[i] = f16_to_f32(load_u16(at + 2 * i));
    else
        for (size_t i = 0; i < n; i++) out[i] = bf16_to_f32(load_u16(at + 2 * i));
}

static void row_mlx_codes(const weight_src *w, int64_t r, uint8_t *q, float *s, float *b) {
    const uint8_t *p = (const uint8_t *)w->codes + (size_t)r * weight_row_bytes(w);
    size_t n_groups = (size_t)(w->n_in / group_size(w)), from = (size_t)r * n_groups;
    if (w->format == WF_AFFINE) {
        streams[w->bits](p, w->n_in, q);
        floats_read(w->scales, w->scale_type, from, n_groups, s);
        floats_read(w->biases, w->scale_type, from, n_groups, b);
        return;
    }
    const uint8_t *sc = (const uint8_t *)w->scales + from;
    e2m1_codes(p, w->n_in, q);
    for (size_t g = 0; g < n_groups; g++) s[g] = w->format == WF_MXFP4 ? weight_e8m0_half(sc[g]) : 0.5f * e4m3(sc[g]);
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */
void weight_row_codes(const weight_src *w, int64_t r, uint8_t *q, float *s, float *b) {
    const block_reader *rd = weight_block_reader(w->format);
    if (!rd) {
        row_mlx_codes(w, r, q, s, b);
        return;
    }
    const uint8_t *p = (const uint8_t *)w->codes + (size_t)r * weight_row_bytes(w);
    int groups = rd->elems / rd->form.group;
    for (int i = 0; i < w->n_in; i += rd->elems, p += rd->bytes, q += rd->elems) {
        rd->read(p, q, s, b);
        s += groups;
        if (rd->form.has_offset) b += groups;
    }
}

static void values(const uint8_t *q, const float *s, const float *b, int n, const code_form *f, float *out) {
    for (int g = 0; g < n / f->group; g++, q += f->group, out += f->group) {
        for (int i = 0; i < f->group; i++) out[i] = s[g] * (float)(q[i] - f->zero);
        if (f->has_offset)
            for (int i = 0; i < f->group; i++) out[i] += b[g];
    }
}

static void row_blocks_f32(const block_reader *rd, const uint8_t *p, int n, float *out) {
    uint8_t q[BLOCK_ELEMS_MAX];
    float s[BLOCK_GROUPS_MAX], b[BLOCK_GROUPS_MAX];
    for (int i = 0; i < n; i += rd->elems, p += rd->bytes) {
        rd->read(p, q, s, b);
        values(q, s, b, rd->elems, &rd->form, out + i);
    }
}

/* Group by group through a window of the source, so that no row-sized scratch is needed. */
static void row_mlx_f32(const weight_src *w, int64_t r, float *out) {
    code_form f;
    weight_code_form(w, &f);
    weight_src part = *w;
    part.n_in = f.group;
    int64_t n_groups = w->n_in / f.group;
    size_t group_bytes = weight_row_bytes(&part), scale_bytes = dtype_bytes(w->scale_type);
    const uint8_t *p = (const uint8_t *)w->codes + (size_t)r * weight_row_bytes(w);
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t q[128];
        float s, b;
        size_t at = (size_t)(r * n_groups + g) * scale_bytes;
        part.codes = p + (size_t)g * group_bytes;
        part.scales = (const uint8_t *)w->scales + at;
        part.biases = w->biases ? (const uint8_t *)w->biases + at : NULL;
        row_mlx_codes(&part, 0, q, &s, &b);
        values(q, &s, &b, f.group, &f, out + g * f.group);
    }
}

static void row_mxfp8_f32(const weight_src *w, int64_t r, float *out) {
    const uint8_t *q = (const uint8_t *)w->codes + (size_t)r * weight_row_bytes(w);
    const uint8_t *sc = (const uint8_t *)w->scales + r * (w->n_in / 32);
    for (int i = 0; i < w->n_in; i++) out[i] = e8m0(sc[i / 32]) * e4m3(q[i]);
}

void weight_row_f32(const weight_src *w, int64_t r, float *out) {
    const block_reader *rd = weight_block_reader(w->format);
    size_t n = (size_t)w->n_in, from = (size_t)r * n;
    if (rd)
        row_blocks_f32(rd, (const uint8_t *)w->codes + (size_t)r * weight_row_bytes(w), w->n_in, out);
    else if (w->format == WF_F32)
        floats_read(w->codes, DT_F32, from, n, out);
    else if (w->format == WF_F16)
        floats_read(w->codes, DT_F16, from, n, out);
    else if (w->format == WF_BF16)
        floats_read(w->codes, DT_BF16, from, n, out);
    else if (w->format == WF_MXFP8)
        row_mxfp8_f32(w, r, out);
    else
        row_mlx_f32(w, r, out);
}
