/* v16 as one AVX-512 register; the meaning of each function is in v16_ref.h. */
#pragma once
#include <immintrin.h>
#include <stdint.h>

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
#define V_INL static inline __attribute__((always_inline))

V_INL vf v_set1(float c) {
    return _mm512_set1_ps(c);
}
V_INL vf v_zero(void) {
    return _mm512_setzero_ps();
}
V_INL vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
V_INL void v_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
V_INL vm v_first(int n) {
    return (vm)((1u << n) - 1);
}
V_INL vf v_load_n(const float *p, int n) {
    return _mm512_maskz_loadu_ps(v_first(n), p);
}
V_INL void v_store_n(float *p, vf x, int n) {
    _mm512_mask_storeu_ps(p, v_first(n), x);
}
V_INL vf v_add(vf x, vf y) {
    return _mm512_add_ps(x, y);
}
V_INL vf v_sub(vf x, vf y) {
    return _mm512_sub_ps(x, y);
}
V_INL vf v_mul(vf x, vf y) {
    return _mm512_mul_ps(x, y);
}
V_INL vf v_div(vf x, vf y) {
    return _mm512_div_ps(x, y);
}
V_INL vf v_fma(vf x, vf y, vf z) {
    return _mm512_fmadd_ps(x, y, z);
}
V_INL vf v_fnma(vf x, vf y, vf z) {
    return _mm512_fnmadd_ps(x, y, z);
}
V_INL vf v_min(vf x, vf y) {
    return _mm512_min_ps(x, y);
}
V_INL vf v_max(vf x, vf y) {
    return _mm512_max_ps(x, y);
}
V_INL vf v_abs(vf x) {
    return _mm512_abs_ps(x);
}
V_INL vf v_copysign(vf x, vf y) {
    vf s = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(s, x), _mm512_and_ps(s, y));
}
V_INL vm v_lt(vf x, vf y) {
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ);
}
V_INL vm v_nan(vf x) {
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}
V_INL vm vm_range(int from, int to) {
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask(_mm512_set1_epi32(from), lane), lane,
                                        _mm512_set1_epi32(to));
}
V_INL vm vm_or(vm a, vm b) {
    return a | b;
}
V_INL int vm_count(vm m) {
    return __builtin_popcount(m);
}
V_INL vf v_sel(vm m, vf x, vf y) {
    return _mm512_mask_blend_ps(m, y, x);
}
V_INL vi v_bits(vf x) {
    return _mm512_castps_si512(x);
}
V_INL vf v_float(vi x) {
    return _mm512_castsi512_ps(x);
}
V_INL vi vi_set1(int32_t c) {
    return _mm512_set1_epi32(c);
}
V_INL vi vi_add(vi x, vi y) {
    return _mm512_add_epi32(x, y);
}
V_INL vi vi_sub(vi x, vi y) {
    return _mm512_sub_epi32(x, y);
}
V_INL vi vi_shl23(vi x) {
    return _mm512_slli_epi32(x, 23);
}
V_INL vi vi_half(vi x) {
    return _mm512_srai_epi32(x, 1);
}
V_INL vi vi_and(vi x, vi y) {
    return _mm512_and_si512(x, y);
}
V_INL vi vi_or(vi x, vi y) {
    return _mm512_or_si512(x, y);
}
V_INL vi vi_shl(vi x, int n) {
    return _mm512_slli_epi32(x, (unsigned)n);
}
V_INL vi vi_shr(vi x, int n) {
    return _mm512_srli_epi32(x, (unsigned)n);
}
V_INL vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
/* Every lane takes the two bytes that hold its code to its low half. */
#define V_TWO_BYTES(i) ((i)*bits / 8 | ((i)*bits / 8 + 1) << 8 | (int)0x80800000)
#define V_SHIFT(i)     ((i)*bits % 8)
#define V_LANES(f)     f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
V_INL vi vi_unpack(const uint8_t *p, const int bits) {
    if (bits == 8) return vi_load_u8(p);
    vi x = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
    x = _mm512_shuffle_epi8(x, (vi)(__v16si){V_LANES(V_TWO_BYTES)});
    x = _mm512_srlv_epi32(x, (vi)(__v16si){V_LANES(V_SHIFT)});
    return _mm512_and_si512(x, _mm512_set1_epi32((1 << bits) - 1));
}
#undef V_LANES
#undef V_SHIFT
#undef V_TWO_BYTES
V_INL vf v_from_int(vi x) {
    return _mm512_cvtepi32_ps(x);
}
V_INL vf v_round(vf x) {
    return v_sub(v_add(x, v_set1(12582912.0f)), v_set1(12582912.0f));
}
V_INL vf v_lookup(const float *table, vi x, const int bits) {
    if (bits <= 4) return _mm512_permutexvar_ps(x, v_load(table));
    if (bits == 5) return _mm512_permutex2var_ps(v_load(table), x, v_load(table + 16));
    return _mm512_i32gather_ps(x, table, 4);
}
V_INL float v_sum(vf x) {
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
V_INL float v_top(vf x) {
    __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
V_INL vf v_swap(vf x) {
    return _mm512_permute_ps(x, 0xb1);
}
V_INL vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
V_INL vf v_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
V_INL void v_store_f16(uint16_t *p, vf x) { /* finite values within ±65504 */
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
V_INL void v_store_bf16(uint16_t *p, vf x) { /* finite values */
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    u = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(u));
}
#define V_TILE_COLS(rows) 4
