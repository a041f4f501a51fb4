/* Matrix products, AVX-512 VNNI: same bytes as linear_ref.c.
 *
 * One register holds a step: 16 output rows times 4 columns of unsigned codes. vpdpbusd multiplies it with 4 broadcast
 * bytes of an activation; a group's 16 steps stay in registers while 12 activation rows at a time pass by. X = 128·H +
 * L: the H plane is summed first, the sum shifted left by 7, the L plane summed on top, all exact. Packed layouts:
 * linear.h, pack.c. */
#include <immintrin.h>
#include "linear.h"

#define INL static inline __attribute__((always_inline))
/* The compiler does not fold a broadcast into these by itself. */
#define DPBUSD(acc, w, p) __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(p)))
#define DPWSSD(acc, w, p) __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int32_t *)(p)))

/* ---- activations: [group][row]{H bytes[cols], L bytes[cols]}, one plane: L only; or [chunk][row][64] of f32 ------ */
static void code_f32(const lin_block *b, int r, const float *x, int n_in) {
    for (int32_t c = 0; c < b->n_chunks; c++) {
        float *to = (float *)b->x + ((size_t)c * (size_t)b->n + (size_t)r) * LIN_COLS;
        int n = MIN((int)LIN_COLS, n_in - c * LIN_COLS);
        memcpy(to, x + c * LIN_COLS, (size_t)n * sizeof *to);
        memset(to + n, 0, (size_t)(LIN_COLS - n) * sizeof *to);
    }
}

static void code(const lin_block *b, int r, const float *x, int n_in) {
    int cols = lin_class_cols(b->class), planes = b->one_plane ? 1 : 2;
    if (b->class == LC_F32) {
        code_f32(b, r, x, n_in);
        return;
    }
    for (int32_t g = 0; g < b->n_chunks * (LIN_COLS / cols); g++) {
        size_t at = (size_t)g * (size_t)b->n + (size_t)r;
        uint8_t *to = b->x + at * (size_t)(cols * planes);
        if (g * cols >= n_in) {
            memset(to, 0, (size_t)(cols * planes));
            lin_code_sums(b, at, 0, 0, 0);
            continue;
        }
        __m512i top = _mm512_setzero_si512(), h = top, l = top;
        for (int i = 0; i < cols; i += 16)
            top = _mm512_max_epi32(
                top, _mm512_and_si512(_mm512_loadu_si512(x + g * cols + i), _mm512_set1_epi32(0x7fffffff)));
        float a, factor = lin_code_scale(b, _mm512_reduce_max_epi32(top), &a);
        for (int i = 0; i < cols; i += 16) {
            __m512i v = _mm512_setzero_si512();
            if (factor)
                v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + g * cols + i), _mm512_set1_ps(factor)));
            if (!b->one_plane) {
                __m512i vh = _mm512_srai_epi32(v, 7);
                v = _mm512_and_si512(v, _mm512_set1_epi32(127));
                h = _mm512_add_epi32(h, vh);
                _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(vh));
            }
            l = _mm512_add_epi32(l, v);
            _mm_storeu_si128((__m128i *)(to + (planes - 1) * cols + i), _mm512_cvtepi32_epi8(v));
        }
        lin_code_sums(b, at, _mm512_reduce_add_epi32(h), _mm512_reduce_add_epi32(l), a);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */
/* One plane of `bits` bits -> 16 steps, shifted up to bit `to`. */
INL const uint8_t *plane_read(const uint8_t *p, int bits, int to, __m512i q[LIN_STEPS], bool first) {
    const int n = LIN_STEPS * bits / 8;
    const __m512i mask = _mm512_set1_epi8((char)(((1 << bits) - 1) << to));
#pragma GCC unroll 16
    for (int i = 0; i < n; i++) {
        __m512i v = _mm512_loadu_si512(p + i * 64);
#pragma GCC unroll 16
        for (int s = 0; s < LIN_STEPS / n; s++) {
            int right = s * bits - to;
            __m512i u = right > 0   ? _mm512_srli_epi16(v, (unsigned)right)
                        : right < 0 ? _mm512_slli_epi16(v, (unsigned)-right)
                                    : v;
            u = _mm512_and_si512(u, mask);
            q[i + s * n] = first ? u : _mm512_or_si512(q[i + s * n], u);
        }
    }
    return p + n * 64;
}

/* The 16 steps of a chunk, as registers. */
INL void codes_read(int bits, bool lookup, const uint8_t *table, const uint8_t *p, __m512i q[LIN_STEPS]) {
    if (bits == 8) {
#pragma GCC unroll 16
        for (int i = 0; i < LIN_STEPS; i++) q[i] = _mm512_loadu_si512(p + i * 64);
        return;
    }
    int low = bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits;
    p = plane_read(p, low, 0, q, true);
    if (bits > low) plane_read(p, bits - low, low, q, false);
    if (!lookup) return;
    __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
#pragma GCC unroll 16
    for (int i = 0; i < LIN_STEPS; i++) q[i] = _mm512_shuffle_epi8(t, q[i]);
}

typedef void unpack_fn(const uint8_t *table, const uint8_t *p, uint8_t *out);
#define UNPACK(NAME, BITS, LOOKUP)                                                                            \
    static void NAME(const uint8_t *table, const uint8_t *p, uint8_t *out) {                                  \
        __m512i q[LIN_STEPS];                                                                                 \
        codes_read(BITS, LOOKUP, table, p, q);                                                                \
        _Pragma("GCC unroll 16") for (int i = 0; i < LIN_STEPS; i++) _mm512_storeu_si512(out + i * 64, q[i]); \
    }
UNPACK(unpack_1, 1, false)
UNPACK(unpack_2, 2, false)
UNPACK(unpack_3, 3, false)
UNPACK(unpack_4, 4, false)
UNPACK(unpack_5, 5, false)
UNPACK(unpack_6, 6, false)
UNPACK(unpack_lookup, 4, true)
static unpack_fn *const unpackers[9] = {NULL, unpack_1, unpack_2, unpack_3, unpack_4, unpack_5, unpack_6};

INL const uint8_t *steps_of(const cpu_packed *w, const uint8_t *panel, int chunk, uint8_t *buf) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    if (w->bits == 8) return p;
    (w->lookup ? unpack_lookup : unpackers[w->bits])(w->table, p, buf);
    return buf;
}

INL __m512 e8m0_half(__m512i e) {
    __m512i low = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    __m512i high = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(high, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), low));
}

INL __m512 e4m3_half(__m128i v) {
    __m256i h = _mm256_cvtepu8_epi16(v);
    h = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x7f)), 7),
                        _mm256_slli_epi16(_mm256_and_si256(h, _mm256_set1_epi16(0x80)), 8));
    return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(128.0f));
}

/* Sixteen scales, the i-th vector at p. */
INL __m512 scale_read(lin_scale kind, const uint8_t *p, int i) {
    switch (kind) {
    case LS_F32: return _mm512_loadu_ps((const float *)p + 16 * i);
    case LS_F16: return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p + i));
    case LS_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p + i)), 16));
    case LS_E8M0: return e8m0_half(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p + i)));
    default: return e4m3_half(_mm_loadu_si128((const __m128i *)p + i));
    }
}

/* Scales and offsets of the group at column col, whose width is 1 << shift. Returns where they lie. */
INL const uint8_t *scales_read(const cpu_packed *w, const uint8_t *panel, int col, int shift, __m512 *s, __m512 *b) {
    const uint8_t *p = panel + w->scales_at;
    *b = _mm512_setzero_ps();
    if (w->scale != LS_SUPER) {
        p += (size_t)(col >> shift) * w->group_bytes;
        *s = scale_read(w->scale, p, 0);
        if (w->offset) *b = scale_read(w->scale, p, 1);
        return p;
    }
    size_t halves = LIN_ROWS * 2 * (w->offset ? 2 : 1);
    p += (size_t)(col >> 8) * (halves + (w->group_bytes << (8 - shift)));
    const uint8_t *sc = p + halves + (size_t)((col & 255) >> shift) * w->group_bytes;
    __m512 whole = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)sc)));
    *s = _mm512_mul_ps(scale_read(LS_F16, p, 0), whole);
    if (!w->offset) return sc;
    __m512 m = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)sc + 1)));
    *b = _mm512_xor_ps(_mm512_mul_ps(scale_read(LS_F16, p, 1), m), _mm512_set1_ps(-0.0f));
    return sc;
}

static void chunk_floats(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    if (w->floats == LF_MXFP8) {
        const __m128i *sc = (const __m128i *)(panel + w->scales_at + (size_t)chunk * 2 * LIN_ROWS);
        for (int half = 0; half < 2; half++) {
            __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(sc + half));
            __m512i full = _mm512_mask_mov_epi32(_mm512_slli_epi32(e, 23), _mm512_testn_epi32_mask(e, e),
                                                 _mm512_set1_epi32(0x00400000));
            for (int k = half * 32; k < half * 32 + 32; k++) {
                __m512 v = e4m3_half(_mm_loadu_si128((const __m128i *)p + k));
                _mm512_storeu_ps(out + k * 16, _mm512_mul_ps(_mm512_castsi512_ps(full), _mm512_add_ps(v, v)));
            }
        }
        return;
    }
    lin_scale as = w->floats == LF_F16 ? LS_F16 : LS_BF16;
    for (int k = 0; k < LIN_COLS; k++) _mm512_storeu_ps(out + k * 16, scale_read(as, p, k));
}

static void chunk_f32(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    _Alignas(64) uint8_t buf[LIN_COLS * LIN_ROWS];
    if (w->floats) {
        if (w->floats == LF_F32)
            memcpy(out, panel + (size_t)chunk * w->chunk_bytes, LIN_COLS * LIN_ROWS * sizeof *out);
        else
            chunk_floats(w, panel, chunk, out);
        return;
    }
    const uint8_t *q = steps_of(w, panel, chunk, buf);
    const int shift = __builtin_ctz((unsigned)w->group);
    __m512 s = _mm512_setzero_ps(), b = s;
    for (int k = 0; k < LIN_COLS; k += 4) {
        if (k % 16 == 0) scales_read(w, panel, chunk * LIN_COLS + k, shift, &s, &b);
        __m512i v = _mm512_loadu_si512(q + k * 16);
        for (int i = 0; i < 4; i++, v = _mm512_srli_epi32(v, 8)) {
            __m512i u = _mm512_sub_epi32(_mm512_and_si512(v, _mm512_set1_epi32(255)), _mm512_set1_epi32(w->zero));
            __m512 f = _mm512_mul_ps(s, _mm512_cvtepi32_ps(u));
            _mm512_storeu_ps(out + (k + i) * 16, w->offset ? _mm512_add_ps(f, b) : f);
        }
    }
}

/* Neighbouring panels are read side by side: several streams and asking for lines in advance keep more of them under
 * way than the processor's own prefetching of one stream, which reached two thirds of the bandwidth. */
enum { AHEAD = 1024 /* bytes of codes */ };

/* ---- products in f32 --------------------------------------------------------------------------------------------- */
INL void f32_tile(const int M, const float *f, const float *x, float *acc) {
    __m512 even[12], odd[12];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) even[m] = odd[m] = _mm512_setzero_ps();
    for (int k = 0; k < LIN_COLS; k += 2) {
        __m512 w0 = _mm512_loadu_ps(f + k * 16), w1 = _mm512_loadu_ps(f + k * 16 + 16);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            even[m] = _mm512_fmadd_ps(w0, _mm512_set1_ps(x[m * LIN_COLS + k]), even[m]);
            odd[m] = _mm512_fmadd_ps(w1, _mm512_set1_ps(x[m * LIN_COLS + k + 1]), odd[m]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
        _mm512_storeu_ps(acc + m * 16, _mm512_add_ps(_mm512_loadu_ps(acc + m * 16), _mm512_add_ps(even[m], odd[m])));
}

/* One row times one chunk of four panels of 16-bit floats: widened in registers, eight sums under way. */
INL void f32_one(lin_scale kind, const cpu_packed *w, const uint8_t *panel, int32_t c, const float *x, float *acc) {
    __m512 even[4], odd[4];
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) even[p] = odd[p] = _mm512_setzero_ps();
    for (int k = 0; k < LIN_COLS; k += 2) {
        __m512 x0 = _mm512_set1_ps(x[k]), x1 = _mm512_set1_ps(x[k + 1]);
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            const uint8_t *at = panel + (size_t)p * w->panel_bytes + (size_t)c * w->chunk_bytes;
            _mm_prefetch(at + AHEAD + k * 32, _MM_HINT_T0);
            even[p] = _mm512_fmadd_ps(scale_read(kind, at, k), x0, even[p]);
            odd[p] = _mm512_fmadd_ps(scale_read(kind, at, k + 1), x1, odd[p]);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++)
        _mm512_store_ps(acc + p * 16, _mm512_add_ps(_mm512_load_ps(acc + p * 16), _mm512_add_ps(even[p], odd[p])));
}

static void panels_f32(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc) {
    _Alignas(64) float buf[LIN_COLS * LIN_ROWS];
    if (b->n == 1 && n_panels == 4 && (w->floats == LF_BF16 || w->floats == LF_F16)) {
        for (int32_t c = 0; c < w->n_chunks; c++)
            if (w->floats == LF_BF16)
                f32_one(LS_BF16, w, panel, c, (const float *)b->x + c * LIN_COLS, acc);
            else
                f32_one(LS_F16, w, panel, c, (const float *)b->x + c * LIN_COLS, acc);
        return;
    }
    for (int32_t c = 0; c < w->n_chunks; c++)
        for (int p = 0; p < n_panels; p++) {
            const uint8_t *at = panel + (size_t)p * w->panel_bytes, *codes = at + (size_t)c * w->chunk_bytes;
            const float *f = buf, *x = (const float *)b->x + (size_t)c * (size_t)b->n * LIN_COLS;
            float *y = acc + p * b->n * LIN_ROWS;
            for (size_t i = 0; i < w->chunk_bytes; i += 64) _mm_prefetch(codes + AHEAD + i, _MM_HINT_T0);
            if (w->floats == LF_F32)
                f = (const float *)codes;
            else
                chunk_f32(w, at, c, buf);
            int t = 0;
            for (; t + 12 <= b->n; t += 12) f32_tile(12, f, x + t * LIN_COLS, y + t * 16);
            for (; t + 4 <= b->n; t += 4) f32_tile(4, f, x + t * LIN_COLS, y + t * 16);
            for (; t < b->n; t++) f32_tile(1, f, x + t * LIN_COLS, y + t * 16);
        }
}

/* ---- products in integers ---------------------------------------------------------------------------------------- */
/* (−128·z, −z) as 16-bit pairs: times (ΣH, ΣL) it is −z·ΣX. */
INL __m512i zero_pair(const cpu_packed *w) {
    return _mm512_set1_epi32((int32_t)((uint32_t)(-128 * w->zero) << 16 | (uint16_t)-w->zero));
}

/* What a group's finish needs. */
typedef struct finish {
    __m512 s, b;
    __m512i zero; /* zero_pair */
} finish;

/* M rows times one group of KS steps. C independent sums a plane hide the latency when M is small. */
INL void int_tile(const int M, const int KS, const int C, const int planes, const bool offset, const __m512i *q,
                  const uint8_t *x, const float *a, const float *c, const int32_t *hl, const finish *f, float *acc) {
    const int row = KS * 4 * planes;
    __m512i v[12], h[8], l[8]; /* of constant size: arrays of M would live in memory */
    if (C == 0) {              /* enough rows: one chain a row, planes one after the other */
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) v[m] = _mm512_setzero_si512();
#pragma GCC unroll 2
        for (int p = 0; p < planes; p++) {
            if (p)
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) v[m] = _mm512_slli_epi32(v[m], 7);
#pragma GCC unroll 16
            for (int j = 0; j < KS; j++)
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) DPBUSD(v[m], q[j], x + m * row + p * KS * 4 + 4 * j);
        }
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < M * C; i++) h[i] = l[i] = _mm512_setzero_si512();
#pragma GCC unroll 16
        for (int j = 0; j < KS; j++)
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                if (planes == 2) DPBUSD(h[m * C + j % C], q[j], x + m * row + 4 * j);
                DPBUSD(l[m * C + j % C], q[j], x + m * row + (planes - 1) * KS * 4 + 4 * j);
            }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
#pragma GCC unroll 4
            for (int i = 1; i < C; i++) {
                h[m * C] = _mm512_add_epi32(h[m * C], h[m * C + i]);
                l[m * C] = _mm512_add_epi32(l[m * C], l[m * C + i]);
            }
            v[m] = planes == 2 ? _mm512_add_epi32(_mm512_slli_epi32(h[m * C], 7), l[m * C]) : l[m * C];
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) {
        if (!offset) DPWSSD(v[m], f->zero, hl + m);
        __m512 p = _mm512_mul_ps(f->s, _mm512_cvtepi32_ps(v[m]));
        __m512 y = _mm512_fmadd_ps(p, _mm512_set1_ps(a[m]), _mm512_loadu_ps(acc + m * 16));
        if (offset) y = _mm512_fmadd_ps(f->b, _mm512_set1_ps(c[m]), y);
        _mm512_storeu_ps(acc + m * 16, y);
    }
}

typedef void group_fn(const uint8_t *steps, const lin_block *b, size_t at, const finish *f, float *acc);
INL void group_rows(const int KS, const int planes, const bool offset, const uint8_t *steps, const lin_block *b,
                    size_t at, const finish *f, float *acc) {
    const int row = KS * 4 * planes;
    __m512i q[LIN_STEPS];
#pragma GCC unroll 16
    for (int i = 0; i < KS; i++) q[i] = _mm512_loadu_si512(steps + i * 64);
    const finish fin = *f;
    const uint8_t *x = b->x + at * (size_t)row;
    const float *a = b->a + at, *c = b->c + at;
    const int32_t *hl = b->hl + at;
/* One register addresses the rows: an index register would cost vpdpbusd a second slot in the reorder buffer. */
#define TILE(M, C)                                                                 \
    for (; n >= M; n -= M, x += M * row, a += M, c += M, hl += M, acc += M * 16) { \
        __asm__("" : "+r"(x), "+r"(a), "+r"(c), "+r"(hl), "+r"(acc));              \
        int_tile(M, KS, C, planes, offset, q, x, a, c, hl, &fin, acc);             \
    }
    int n = b->n;
    TILE(12, 0)
    TILE(4, 1)
    TILE(1, 4)
#undef TILE
}
#define GROUP(KS, PLANES, OFFSET)                                                                                      \
    static void group_##KS##_##PLANES##_##OFFSET(const uint8_t *steps, const lin_block *b, size_t at, const finish *f, \
                                                 float *acc) {                                                         \
        group_rows(KS, PLANES, OFFSET, steps, b, at, f, acc);                                                          \
    }
GROUP(16, 1, 0)
GROUP(16, 1, 1)
GROUP(16, 2, 0)
GROUP(16, 2, 1)
GROUP(8, 1, 0)
GROUP(8, 1, 1)
GROUP(8, 2, 0)
GROUP(8, 2, 1)
GROUP(4, 1, 0)
GROUP(4, 1, 1)
GROUP(4, 2, 0)
GROUP(4, 2, 1)
static group_fn *const group_fns[CPU_LINEAR_CLASSES][2][2] = {
    [LC_16] = {{group_4_1_0, group_4_1_1}, {group_4_2_0, group_4_2_1}},
    [LC_32] = {{group_8_1_0, group_8_1_1}, {group_8_2_0, group_8_2_1}},
    [LC_64] = {{group_16_1_0, group_16_1_1}, {group_16_2_0, group_16_2_1}},
};

/* ---- one row: the codes never leave the registers, so that reading them from memory is what takes the time */
INL __m512i one_dot(const int KS, const int planes, const __m512i *q, const uint8_t *x) {
    __m512i h[2], l[2];
    h[0] = h[1] = l[0] = l[1] = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int j = 0; j < KS; j++) {
        if (planes == 2) DPBUSD(h[j % 2], q[j], x + 4 * j);
        DPBUSD(l[j % 2], q[j], x + (planes - 1) * KS * 4 + 4 * j);
    }
    __m512i v = _mm512_add_epi32(l[0], l[1]);
    return planes == 2 ? _mm512_add_epi32(v, _mm512_slli_epi32(_mm512_add_epi32(h[0], h[1]), 7)) : v;
}

INL void one_row(const int bits, const bool lookup, const int KS, const int planes, const bool offset,
                 const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc) {
    const __m512i zero = zero_pair(w);
    const int shift = __builtin_ctz((unsigned)w->group);
    const size_t ahead_scales = AHEAD / w->chunk_bytes * (size_t)LIN_COLS / (size_t)w->group * w->group_bytes;
    for (int32_t c = 0; c < w->n_chunks; c++)
        for (int p = 0; p < n_panels; p++) {
            const uint8_t *at = panel + (size_t)p * w->panel_bytes, *codes = at + (size_t)c * w->chunk_bytes;
            const uint8_t *x = b->x + c * LIN_COLS * planes;
            __m512i q[LIN_STEPS];
#pragma GCC unroll 16
            for (int i = 0; i < 2 * bits; i++) _mm_prefetch(codes + AHEAD + i * 64, _MM_HINT_T0);
            codes_read(bits, lookup, w->table, codes, q);
            __m512 y = _mm512_load_ps(acc + p * LIN_ROWS), s, o;
#pragma GCC unroll 4
            for (int i = 0; i < LIN_STEPS / KS; i++) {
                const int g = c * (LIN_STEPS / KS) + i;
                const uint8_t *scales = scales_read(w, at, c * LIN_COLS + i * KS * 4, shift, &s, &o);
                if (i == 0) _mm_prefetch(scales + ahead_scales, _MM_HINT_T0);
                __m512i v = one_dot(KS, planes, q + i * KS, x + i * KS * 4 * planes);
                if (!offset) DPWSSD(v, zero, b->hl + g);
                y = _mm512_fmadd_ps(_mm512_mul_ps(s, _mm512_cvtepi32_ps(v)), _mm512_set1_ps(b->a[g]), y);
                if (offset) y = _mm512_fmadd_ps(o, _mm512_set1_ps(b->c[g]), y);
            }
            _mm512_store_ps(acc + p * LIN_ROWS, y);
        }
}

typedef void one_fn(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc);
#define ONE(BITS, LOOKUP, KS, OFFSET)                                                                            \
    static void one_##BITS##_##LOOKUP##_##KS##_##OFFSET(const cpu_packed *w, const uint8_t *panel, int n_panels, \
                                                        const lin_block *b, float *acc) {                        \
        if (b->one_plane)                                                                                        \
            one_row(BITS, LOOKUP, KS, 1, OFFSET, w, panel, n_panels, b, acc);                                    \
        else                                                                                                     \
            one_row(BITS, LOOKUP, KS, 2, OFFSET, w, panel, n_panels, b, acc);                                    \
    }
#define ONE_LIST(X) \
    X(1, 0, 16, 1)  \
    X(2, 0, 16, 1)  \
    X(3, 0, 16, 1)  \
    X(4, 0, 16, 1)  \
    X(5, 0, 16, 1)  \
    X(6, 0, 16, 1)  \
    X(8, 0, 16, 1)  \
    X(1, 0, 8, 1)   \
    X(2, 0, 8, 1)   \
    X(3, 0, 8, 1)   \
    X(4, 0, 8, 1)   \
    X(5, 0, 8, 1)   \
    X(6, 0, 8, 1)   \
    X(8, 0, 8, 1)   \
    X(4, 0, 8, 0) X(5, 0, 8, 0) X(8, 0, 8, 0) X(4, 1, 8, 0) X(2, 0, 4, 1) X(3, 0, 4, 0) X(6, 0, 4, 0) X(4, 1, 4, 0)
ONE_LIST(ONE)
/* Code width, lookup, steps a group, offset: all the formats there are. */
#define ONE_ENTRY(BITS, LOOKUP, KS, OFFSET) {BITS, LOOKUP, KS, OFFSET, one_##BITS##_##LOOKUP##_##KS##_##OFFSET},
static const struct {
    int bits, lookup, steps, offset;
    one_fn *fn;
} ones[] = {ONE_LIST(ONE_ENTRY)};

static one_fn *one_of(const cpu_packed *w, int steps) {
    for (size_t i = 0; i < COUNT(ones); i++)
        if (ones[i].bits == w->bits && ones[i].lookup == w->lookup && ones[i].steps == steps &&
            ones[i].offset == w->offset)
            return ones[i].fn;
    return NULL;
}

/* ---- panels ---- */
static void panels(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc) {
    size_t sums = LIN_ROWS * (size_t)b->n;
    memset(acc, 0, sizeof *acc * sums * (size_t)n_panels);
    if (b->class == LC_F32) {
        panels_f32(w, panel, n_panels, b, acc);
        return;
    }
    int cols = lin_class_cols(b->class), groups = LIN_COLS / cols;
    one_fn *one = b->n == 1 ? one_of(w, cols / 4) : NULL;
    if (one) {
        one(w, panel, n_panels, b, acc);
        return;
    }
    _Alignas(64) uint8_t buf[LIN_COLS * LIN_ROWS];
    group_fn *group = group_fns[b->class][!b->one_plane][w->offset];
    finish f = {.zero = zero_pair(w)};
    const int shift = __builtin_ctz((unsigned)w->group);
    for (int32_t c = 0; c < w->n_chunks; c++)
        for (int p = 0; p < n_panels; p++) {
            const uint8_t *at = panel + (size_t)p * w->panel_bytes, *steps = steps_of(w, at, c, buf);
            for (size_t i = 0; i < w->chunk_bytes; i += 64)
                _mm_prefetch(at + (size_t)(c + 2) * w->chunk_bytes + i, _MM_HINT_T0);
            for (int i = 0; i < groups; i++) {
                int32_t g = c * groups + i;
                const uint8_t *scales = scales_read(w, at, g * cols, shift, &f.s, &f.b);
                if (i + 1 == groups) _mm_prefetch(scales + 2 * w->group_bytes, _MM_HINT_T0);
                group(steps + i * cols * LIN_ROWS, b, (size_t)g * (size_t)b->n, &f, acc + (size_t)p * sums);
            }
        }
}

static void stream(const float *acc, int n, float *y, int64_t stride) {
    for (int t = 0; t < n; t++, acc += LIN_ROWS, y += stride) {
        _mm256_stream_ps(y, _mm256_load_ps(acc));
        _mm256_stream_ps(y + 8, _mm256_load_ps(acc + 8));
    }
    _mm_sfence();
}

static const lin_kernels kernels = {code, panels, stream, chunk_f32};
LIN_OPS(kernels)
void cpu_linear_install_avx512(device_ops *op) {
    install_ops(op);
}
