/* v16 as two AVX2 registers; the meaning of each function is in v16_ref.h. */
#pragma once
#include <immintrin.h>
#include <stdint.h>

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
typedef struct vm {
    __m256 a, b;
} vm;
#define V_INL static inline __attribute__((always_inline))

V_INL vf v_set1(float c) {
    return (vf){_mm256_set1_ps(c), _mm256_set1_ps(c)};
}
V_INL vf v_zero(void) {
    return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
V_INL vf v_load(const float *p) {
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
V_INL void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
V_INL __m256i v_first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V_INL vf v_load_n(const float *p, int n) {
    /* p + 8 is only formed where it lies inside the row or just past it */
    return (vf){_mm256_maskload_ps(p, v_first(n)),
                n > 8 ? _mm256_maskload_ps(p + 8, v_first(n - 8)) : _mm256_setzero_ps()};
}
V_INL void v_store_n(float *p, vf x, int n) {
    _mm256_maskstore_ps(p, v_first(n), x.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, v_first(n - 8), x.b);
}
V_INL vf v_add(vf x, vf y) {
    return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
V_INL vf v_sub(vf x, vf y) {
    return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
V_INL vf v_mul(vf x, vf y) {
    return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
V_INL vf v_div(vf x, vf y) {
    return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
V_INL vf v_fma(vf x, vf y, vf z) {
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
V_INL vf v_fnma(vf x, vf y, vf z) {
    return (vf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
V_INL vf v_min(vf x, vf y) {
    return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}
V_INL vf v_max(vf x, vf y) {
    return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
V_INL vf v_abs(vf x) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b)};
}
V_INL vf v_copysign(vf x, vf y) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_or_ps(_mm256_andnot_ps(s, x.a), _mm256_and_ps(s, y.a)),
                _mm256_or_ps(_mm256_andnot_ps(s, x.b), _mm256_and_ps(s, y.b))};
}
V_INL vm v_lt(vf x, vf y) {
    return (vm){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
V_INL vm v_nan(vf x) {
    return (vm){_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)};
}
V_INL vm vm_range(int from, int to) {
    __m256i lo = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), hi = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    __m256i f = _mm256_set1_epi32(from), t = _mm256_set1_epi32(to);
    return (vm){_mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(f, lo), _mm256_cmpgt_epi32(t, lo))),
                _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(f, hi), _mm256_cmpgt_epi32(t, hi)))};
}
V_INL vm vm_or(vm x, vm y) {
    return (vm){_mm256_or_ps(x.a, y.a), _mm256_or_ps(x.b, y.b)};
}
V_INL int vm_count(vm m) {
    return __builtin_popcount((unsigned)(_mm256_movemask_ps(m.a) | _mm256_movemask_ps(m.b) << 8));
}
V_INL vf v_sel(vm m, vf x, vf y) {
    return (vf){_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)};
}
V_INL vi v_bits(vf x) {
    return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)};
}
V_INL vf v_float(vi x) {
    return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)};
}
V_INL vi vi_set1(int32_t c) {
    return (vi){_mm256_set1_epi32(c), _mm256_set1_epi32(c)};
}
V_INL vi vi_add(vi x, vi y) {
    return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)};
}
V_INL vi vi_sub(vi x, vi y) {
    return (vi){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)};
}
V_INL vi vi_shl23(vi x) {
    return (vi){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)};
}
V_INL vi vi_half(vi x) {
    return (vi){_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1)};
}
V_INL vi vi_and(vi x, vi y) {
    return (vi){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)};
}
V_INL vi vi_or(vi x, vi y) {
    return (vi){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}
V_INL vi vi_shl(vi x, int n) {
    return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}
V_INL vi vi_shr(vi x, int n) {
    return (vi){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}
V_INL vi vi_load_u8(const uint8_t *p) {
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (vi){_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
/* Every lane takes the two bytes that hold its code to its low half. */
#define V_TWO_BYTES(i) ((i)*bits / 8 | ((i)*bits / 8 + 1) << 8 | (int)0x80800000)
#define V_SHIFT(i)     ((i)*bits % 8)
#define V_LANES(f, i)  f(i), f(i + 1), f(i + 2), f(i + 3), f(i + 4), f(i + 5), f(i + 6), f(i + 7)
V_INL vi vi_unpack(const uint8_t *p, const int bits) {
    if (bits == 8) return vi_load_u8(p);
    __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    __m256i a = _mm256_shuffle_epi8(x, (__m256i)(__v8si){V_LANES(V_TWO_BYTES, 0)});
    __m256i b = _mm256_shuffle_epi8(x, (__m256i)(__v8si){V_LANES(V_TWO_BYTES, 8)});
    a = _mm256_srlv_epi32(a, (__m256i)(__v8si){V_LANES(V_SHIFT, 0)});
    b = _mm256_srlv_epi32(b, (__m256i)(__v8si){V_LANES(V_SHIFT, 8)});
    return vi_and((vi){a, b}, vi_set1((1 << bits) - 1));
}
#undef V_LANES
#undef V_SHIFT
#undef V_TWO_BYTES
V_INL vf v_from_int(vi x) {
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
V_INL vf v_round(vf x) {
    return v_sub(v_add(x, v_set1(12582912.0f)), v_set1(12582912.0f));
}
V_INL __m256 v_lookup8(const float *table, __m256i x, const int bits) {
    if (bits > 4) return _mm256_i32gather_ps(table, x, 4);
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), x);
    if (bits < 4) return low;
    __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), x);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(x, 28))); /* by bit 3 */
}
V_INL vf v_lookup(const float *table, vi x, const int bits) {
    return (vf){v_lookup8(table, x.a, bits), v_lookup8(table, x.b, bits)};
}
V_INL float v_sum(vf x) {
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
V_INL float v_top(vf x) {
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
V_INL vf v_swap(vf x) {
    return (vf){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
V_INL vf v_load_f16(const uint16_t *p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
V_INL __m256 v_bf16x8(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
V_INL vf v_load_bf16(const uint16_t *p) {
    return (vf){v_bf16x8(p), v_bf16x8(p + 8)};
}
V_INL void v_store_f16(uint16_t *p, vf x) { /* finite values within ±65504 */
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
V_INL __m128i v_to_bf16x8(__m256 f) {
    __m256i u = _mm256_castps_si256(f), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    u = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    u = _mm256_permute4x64_epi64(_mm256_packus_epi32(u, u), 0x08);
    return _mm256_castsi256_si128(u);
}
V_INL void v_store_bf16(uint16_t *p, vf x) { /* finite values */
    _mm_storeu_si128((__m128i *)p, v_to_bf16x8(x.a));
    _mm_storeu_si128((__m128i *)(p + 8), v_to_bf16x8(x.b));
}
#define V_TILE_COLS(rows) ((rows) == 1 ? 4 : (rows) <= 3 ? 2 : 1)
