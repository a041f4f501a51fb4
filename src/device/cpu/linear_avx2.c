/* Matrix products, AVX2 + FMA: same bytes as linear_ref.c.
 *
 * vpmaddubsw would saturate on 8-bit codes, so codes are widened to 16 bits and multiplied with the whole 15-bit X by
 * vpmaddwd: one plane, any code width, and no more instructions than two planes of bytes. A step's dword holds a row's
 * 4 codes; masking takes columns 0 and 2 as 16-bit pairs, shifting and masking 1 and 3, so X lies in that order. 16
 * rows are two registers. Packed layouts: linear.h, pack.c. */
#include <immintrin.h>
#include "linear.h"

#define INL static inline __attribute__((always_inline))

/* ---- activations: [group][row][cols] of int16, each four as 0 2 1 3; or [chunk][row][64] of f32 ------------------ */
static void code_f32(const lin_block *b, int r, const float *x, int n_in) {
    for (int32_t c = 0; c < b->n_chunks; c++) {
        float *to = (float *)b->x + ((size_t)c * (size_t)b->n + (size_t)r) * LIN_COLS;
        int n = MIN((int)LIN_COLS, n_in - c * LIN_COLS);
        memcpy(to, x + c * LIN_COLS, (size_t)n * sizeof *to);
        memset(to + n, 0, (size_t)(LIN_COLS - n) * sizeof *to);
    }
}

INL int32_t sum8(__m256i v) {
    __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}
INL int32_t max8(__m256i v) {
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xb1)));
}

static void code(const lin_block *b, int r, const float *x, int n_in) {
    int cols = lin_class_cols(b->class);
    if (b->class == LC_F32) {
        code_f32(b, r, x, n_in);
        return;
    }
    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int32_t g = 0; g < b->n_chunks * (LIN_COLS / cols); g++) {
        size_t at = (size_t)g * (size_t)b->n + (size_t)r;
        int16_t *to = (int16_t *)b->x + at * (size_t)cols;
        if (g * cols >= n_in) {
            memset(to, 0, (size_t)cols * sizeof *to);
            lin_code_sums(b, at, 0, 0, 0);
            continue;
        }
        __m256i top = _mm256_setzero_si256(), h = top, l = top;
        for (int i = 0; i < cols; i += 8)
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + g * cols + i)),
                                                         _mm256_set1_epi32(0x7fffffff)));
        float a, factor = lin_code_scale(b, max8(top), &a);
        for (int i = 0; i < cols; i += 8) {
            __m256i v = _mm256_setzero_si256();
            if (factor)
                v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + g * cols + i), _mm256_set1_ps(factor)));
            __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v, v), 0xd8);
            _mm_storeu_si128((__m128i *)(to + i), _mm256_castsi256_si128(_mm256_shuffle_epi8(words, order)));
            if (!b->one_plane) {
                h = _mm256_add_epi32(h, _mm256_srai_epi32(v, 7));
                v = _mm256_and_si256(v, _mm256_set1_epi32(127));
            }
            l = _mm256_add_epi32(l, v);
        }
        lin_code_sums(b, at, sum8(h), sum8(l), a);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */
/* One plane of `bits` bits -> 16 steps of 64 bytes, shifted up to bit `to`. */
INL const uint8_t *plane_read(const uint8_t *p, int bits, int to, uint8_t *q, bool first) {
    const int n = LIN_STEPS * bits / 8;
    const __m256i mask = _mm256_set1_epi8((char)(((1 << bits) - 1) << to));
    for (int i = 0; i < 2 * n; i++) {
        __m256i v = _mm256_loadu_si256((const __m256i *)p + i);
#pragma GCC unroll 8
        for (int s = 0; s < LIN_STEPS / n; s++) {
            __m256i *at = (__m256i *)q + i + s * 2 * n;
            int right = s * bits - to;
            __m256i u = right > 0 ? _mm256_srli_epi16(v, right) : right < 0 ? _mm256_slli_epi16(v, -right) : v;
            u = _mm256_and_si256(u, mask);
            _mm256_storeu_si256(at, first ? u : _mm256_or_si256(_mm256_loadu_si256(at), u));
        }
    }
    return p + n * 64;
}

typedef void unpack_fn(const uint8_t *table, const uint8_t *p, uint8_t *out);
#define UNPACK(NAME, LOW, HIGH)                                              \
    static void NAME(const uint8_t *table, const uint8_t *p, uint8_t *out) { \
        p = plane_read(p, LOW, 0, out, true);                                \
        if (HIGH) plane_read(p, HIGH ? HIGH : 1, LOW, out, false);           \
    }
UNPACK(unpack_1, 1, 0)
UNPACK(unpack_2, 2, 0)
UNPACK(unpack_3, 2, 1)
UNPACK(unpack_4, 4, 0)
UNPACK(unpack_5, 4, 1)
UNPACK(unpack_6, 4, 2)
static void unpack_lookup(const uint8_t *table, const uint8_t *p, uint8_t *out) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), *q = (__m256i *)out;
    plane_read(p, 4, 0, out, true);
    for (int i = 0; i < 2 * LIN_STEPS; i++)
        _mm256_storeu_si256(q + i, _mm256_shuffle_epi8(t, _mm256_loadu_si256(q + i)));
}
static unpack_fn *const unpackers[9] = {NULL, unpack_1, unpack_2, unpack_3, unpack_4, unpack_5, unpack_6};

INL const uint8_t *steps_of(const cpu_packed *w, const uint8_t *panel, int chunk, uint8_t *buf) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    if (w->bits == 8) return p;
    (w->lookup ? unpack_lookup : unpackers[w->bits])(w->table, p, buf);
    return buf;
}

INL __m256 e8m0_half(__m256i e) {
    __m256i low = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    __m256i high = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(high, low, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}
INL __m256 e4m3_half(__m128i v) { /* of the low 8 bytes */
    __m128i h = _mm_cvtepu8_epi16(v);
    h = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(h, _mm_set1_epi16(0x7f)), 7),
                     _mm_slli_epi16(_mm_and_si128(h, _mm_set1_epi16(0x80)), 8));
    return _mm256_mul_ps(_mm256_cvtph_ps(h), _mm256_set1_ps(128.0f));
}
INL __m128i load8(const uint8_t *p) {
    return _mm_loadl_epi64((const __m128i *)p);
}

/* Eight scales, the i-th vector of eight at p. */
INL __m256 scale_read(lin_scale kind, const uint8_t *p, int i) {
    switch (kind) {
    case LS_F32: return _mm256_loadu_ps((const float *)p + 8 * i);
    case LS_F16: return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + i));
    case LS_BF16:
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + i)), 16));
    case LS_E8M0: return e8m0_half(_mm256_cvtepu8_epi32(load8(p + 8 * i)));
    default: return e4m3_half(load8(p + 8 * i));
    }
}

typedef struct group_scales {
    __m256 s[2], b[2];
} group_scales;

static void scales_read(const cpu_packed *w, const uint8_t *panel, int g, group_scales *o) {
    const uint8_t *p = panel + w->scales_at;
    int per = 256 / w->group;
    size_t halves = LIN_ROWS * 2 * (w->offset ? 2 : 1);
    const uint8_t *d = p + (size_t)(g / per) * (halves + (size_t)per * w->group_bytes);
    const uint8_t *sc = d + halves + (size_t)(g % per) * w->group_bytes;
    p += (size_t)g * w->group_bytes;
    for (int i = 0; i < 2; i++) {
        o->b[i] = _mm256_setzero_ps();
        if (w->scale != LS_SUPER) {
            o->s[i] = scale_read(w->scale, p, i);
            if (w->offset) o->b[i] = scale_read(w->scale, p, 2 + i);
            continue;
        }
        o->s[i] = _mm256_mul_ps(scale_read(LS_F16, d, i), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(sc + 8 * i))));
        if (!w->offset) continue;
        __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load8(sc + 16 + 8 * i)));
        o->b[i] = _mm256_xor_ps(_mm256_mul_ps(scale_read(LS_F16, d, 2 + i), m), _mm256_set1_ps(-0.0f));
    }
}

static void chunk_floats(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    if (w->floats != LF_MXFP8) {
        lin_scale as = w->floats == LF_F16 ? LS_F16 : w->floats == LF_BF16 ? LS_BF16 : LS_F32;
        for (int k = 0; k < 2 * LIN_COLS; k++) _mm256_storeu_ps(out + k * 8, scale_read(as, p, k));
        return;
    }
    const uint8_t *sc = panel + w->scales_at + (size_t)chunk * 2 * LIN_ROWS;
    for (int i = 0; i < 4; i++) { /* half chunk, half panel */
        __m256i e = _mm256_cvtepu8_epi32(load8(sc + 8 * i)), zero = _mm256_cmpeq_epi32(e, _mm256_setzero_si256());
        __m256i full = _mm256_blendv_epi8(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000), zero);
        for (int k = i / 2 * 32; k < i / 2 * 32 + 32; k++) {
            int at = k * 16 + i % 2 * 8;
            __m256 v = e4m3_half(load8(p + at));
            _mm256_storeu_ps(out + at, _mm256_mul_ps(_mm256_castsi256_ps(full), _mm256_add_ps(v, v)));
        }
    }
}

static void chunk_f32(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    _Alignas(32) uint8_t buf[LIN_COLS * LIN_ROWS];
    if (w->floats) {
        chunk_floats(w, panel, chunk, out);
        return;
    }
    const uint8_t *q = steps_of(w, panel, chunk, buf);
    group_scales sc;
    for (int k = 0; k < LIN_COLS; k += 4) {
        if (k % 16 == 0) scales_read(w, panel, (chunk * LIN_COLS + k) / w->group, &sc);
        for (int half = 0; half < 2; half++) {
            __m256i v = _mm256_loadu_si256((const __m256i *)(q + k * 16) + half);
            for (int i = 0; i < 4; i++, v = _mm256_srli_epi32(v, 8)) {
                __m256i u = _mm256_sub_epi32(_mm256_and_si256(v, _mm256_set1_epi32(255)), _mm256_set1_epi32(w->zero));
                __m256 f = _mm256_mul_ps(sc.s[half], _mm256_cvtepi32_ps(u));
                _mm256_storeu_ps(out + (k + i) * 16 + half * 8, w->offset ? _mm256_add_ps(f, sc.b[half]) : f);
            }
        }
    }
}

/* ---- products in f32 --------------------------------------------------------------------------------------------- */
INL void f32_tile(const int M, const float *f, const float *x, float *acc) {
    __m256 even[6], odd[6];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) even[m] = odd[m] = _mm256_setzero_ps();
    for (int k = 0; k < LIN_COLS; k += 2) {
        __m256 w0 = _mm256_loadu_ps(f + k * 16), w1 = _mm256_loadu_ps(f + k * 16 + 16);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            even[m] = _mm256_fmadd_ps(w0, _mm256_set1_ps(x[m * LIN_COLS + k]), even[m]);
            odd[m] = _mm256_fmadd_ps(w1, _mm256_set1_ps(x[m * LIN_COLS + k + 1]), odd[m]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
        _mm256_storeu_ps(acc + m * 16, _mm256_add_ps(_mm256_loadu_ps(acc + m * 16), _mm256_add_ps(even[m], odd[m])));
}

static void panel_f32(const cpu_packed *w, const uint8_t *panel, const lin_block *b, float *acc) {
    _Alignas(32) float buf[LIN_COLS * LIN_ROWS];
    for (int32_t c = 0; c < w->n_chunks; c++) {
        chunk_f32(w, panel, c, buf);
        const float *x = (const float *)b->x + (size_t)c * (size_t)b->n * LIN_COLS;
        for (int half = 0; half < 16; half += 8) {
            int t = 0;
            for (; t + 6 <= b->n; t += 6) f32_tile(6, buf + half, x + t * LIN_COLS, acc + t * 16 + half);
            for (; t < b->n; t++) f32_tile(1, buf + half, x + t * LIN_COLS, acc + t * 16 + half);
        }
    }
}

/* ---- products in integers ---------------------------------------------------------------------------------------- */
/* M rows times one group of KS steps, for 8 of the panel's rows (half). */
INL void int_tile(const int M, const int KS, const uint8_t *steps, const lin_block *b, size_t at,
                  const group_scales *sc, int half, bool offset, __m256i zero, float *acc) {
    const int16_t *x = (const int16_t *)b->x + at * (size_t)(KS * 4);
    __m256i v[6];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) v[m] = _mm256_setzero_si256();
    for (int j = 0; j < KS; j++) {
        __m256i q = _mm256_loadu_si256((const __m256i *)(steps + j * 64) + half);
        __m256i q02 = _mm256_and_si256(q, _mm256_set1_epi16(255)), q13 = _mm256_srli_epi16(q, 8);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            int32_t x02, x13;
            memcpy(&x02, x + m * KS * 4 + 4 * j, 4);
            memcpy(&x13, x + m * KS * 4 + 4 * j + 2, 4);
            v[m] = _mm256_add_epi32(v[m], _mm256_madd_epi16(q02, _mm256_set1_epi32(x02)));
            v[m] = _mm256_add_epi32(v[m], _mm256_madd_epi16(q13, _mm256_set1_epi32(x13)));
        }
    }
    acc += half * 8;
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        if (!offset) v[m] = _mm256_add_epi32(v[m], _mm256_madd_epi16(zero, _mm256_set1_epi32(b->hl[at + (size_t)m])));
        __m256 p = _mm256_mul_ps(sc->s[half], _mm256_cvtepi32_ps(v[m]));
        __m256 y = _mm256_fmadd_ps(p, _mm256_set1_ps(b->a[at + (size_t)m]), _mm256_loadu_ps(acc + m * 16));
        if (offset) y = _mm256_fmadd_ps(sc->b[half], _mm256_set1_ps(b->c[at + (size_t)m]), y);
        _mm256_storeu_ps(acc + m * 16, y);
    }
}

/* One row: both halves of the panel and two sums each, so that the multiplier is what limits. */
INL void int_one(const int KS, const uint8_t *steps, const lin_block *b, size_t at, const group_scales *sc, bool offset,
                 __m256i zero, float *acc) {
    const int16_t *x = (const int16_t *)b->x + at * (size_t)(KS * 4);
    const __m256i low = _mm256_set1_epi16(255);
    __m256i u[2], v[2];
    u[0] = u[1] = v[0] = v[1] = _mm256_setzero_si256();
#pragma GCC unroll 1 /* unrolled, the compiler moves all products before the sums and spills them */
    for (int j = 0; j < KS; j++) {
        int32_t x02, x13;
        memcpy(&x02, x + 4 * j, 4);
        memcpy(&x13, x + 4 * j + 2, 4);
        __m256i w02 = _mm256_set1_epi32(x02), w13 = _mm256_set1_epi32(x13);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256i q = _mm256_loadu_si256((const __m256i *)(steps + j * 64) + h);
            u[h] = _mm256_add_epi32(u[h], _mm256_madd_epi16(_mm256_and_si256(q, low), w02));
            v[h] = _mm256_add_epi32(v[h], _mm256_madd_epi16(_mm256_srli_epi16(q, 8), w13));
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        u[h] = _mm256_add_epi32(u[h], v[h]);
        if (!offset) u[h] = _mm256_add_epi32(u[h], _mm256_madd_epi16(zero, _mm256_set1_epi32(b->hl[at])));
        __m256 p = _mm256_mul_ps(sc->s[h], _mm256_cvtepi32_ps(u[h]));
        __m256 y = _mm256_fmadd_ps(p, _mm256_set1_ps(b->a[at]), _mm256_loadu_ps(acc + h * 8));
        if (offset) y = _mm256_fmadd_ps(sc->b[h], _mm256_set1_ps(b->c[at]), y);
        _mm256_storeu_ps(acc + h * 8, y);
    }
}

typedef void group_fn(const uint8_t *steps, const lin_block *b, size_t at, const group_scales *sc, bool offset,
                      __m256i zero, float *acc);
#define GROUP(KS)                                                                                                    \
    static void group_##KS(const uint8_t *steps, const lin_block *b, size_t at, const group_scales *sc, bool offset, \
                           __m256i zero, float *acc) {                                                               \
        int t = 0;                                                                                                   \
        for (; t + 6 <= b->n; t += 6)                                                                                \
            for (int half = 0; half < 2; half++)                                                                     \
                int_tile(6, KS, steps, b, at + (size_t)t, sc, half, offset, zero, acc + t * 16);                     \
        for (; t < b->n; t++) int_one(KS, steps, b, at + (size_t)t, sc, offset, zero, acc + t * 16);                 \
    }
GROUP(4)
GROUP(8)
GROUP(16)
static group_fn *const group_fns[CPU_LINEAR_CLASSES] = {[LC_16] = group_4, [LC_32] = group_8, [LC_64] = group_16};

enum { AHEAD = 1024 /* bytes of codes asked for in advance; see linear_avx512.c */ };
static void panels(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc) {
    size_t sums = LIN_ROWS * (size_t)b->n;
    memset(acc, 0, sizeof *acc * sums * (size_t)n_panels);
    if (b->class == LC_F32) {
        for (int p = 0; p < n_panels; p++) panel_f32(w, panel + (size_t)p * w->panel_bytes, b, acc + (size_t)p * sums);
        return;
    }
    _Alignas(32) uint8_t buf[LIN_COLS * LIN_ROWS];
    int cols = lin_class_cols(b->class), groups = LIN_COLS / cols;
    group_fn *group = group_fns[b->class];
    group_scales sc;
    __m256i zero = _mm256_set1_epi32((int32_t)((uint32_t)(-128 * w->zero) << 16 | (uint16_t)-w->zero));
    for (int32_t c = 0; c < w->n_chunks; c++)
        for (int p = 0; p < n_panels; p++) {
            const uint8_t *at = panel + (size_t)p * w->panel_bytes, *codes = at + (size_t)c * w->chunk_bytes;
            for (size_t i = 0; i < w->chunk_bytes; i += 64) _mm_prefetch(codes + AHEAD + i, _MM_HINT_T0);
            const uint8_t *steps = steps_of(w, at, c, buf);
            for (int i = 0; i < groups; i++) {
                int32_t g = c * groups + i;
                scales_read(w, at, g * cols / w->group, &sc);
                group(steps + i * cols * LIN_ROWS, b, (size_t)g * (size_t)b->n, &sc, w->offset, zero,
                      acc + (size_t)p * sums);
            }
        }
}

static void stream(const float *acc, int n, float *y, int64_t stride) {
    for (int t = 0; t < n; t++, acc += LIN_ROWS, y += stride) {
        _mm256_stream_ps(y, _mm256_loadu_ps(acc));
        _mm256_stream_ps(y + 8, _mm256_loadu_ps(acc + 8));
    }
    _mm_sfence();
}

static const lin_kernels kernels = {code, panels, stream, chunk_f32};
LIN_OPS(kernels)
void cpu_linear_install_avx2(device_ops *op) {
    install_ops(op);
}
