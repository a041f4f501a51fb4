/* v16: sixteen f32 lanes, written as plain loops. This is what the numbers are: v16_avx2.h and v16_avx512.h offer the
 * same functions with the same bits. Every function rounds once per lane and operation (IEEE, nearest even, no flush to
 * zero).
 *
 * vf floats, vi 32-bit integers, vm a mask of lanes. v_min and v_max return their second argument when either is NaN.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "../weight.h"

typedef struct vf {
    float f[16];
} vf;
typedef struct vi {
    int32_t i[16];
} vi;
typedef uint32_t vm;

#define V_EACH(expr)                              \
    vf r;                                         \
    for (int i = 0; i < 16; i++) r.f[i] = (expr); \
    return r
#define VI_EACH(expr)                             \
    vi r;                                         \
    for (int i = 0; i < 16; i++) r.i[i] = (expr); \
    return r

static inline vf v_set1(float c) {
    V_EACH(c);
}
static inline vf v_zero(void) {
    V_EACH(0.0f);
}
static inline vf v_load(const float *p) {
    V_EACH(p[i]);
}
static inline void v_store(float *p, vf a) {
    memcpy(p, a.f, sizeof a.f);
}
/* The first n of 16 lanes; others read as zero and are not written. */
static inline vf v_load_n(const float *p, int n) {
    V_EACH(i < n ? p[i] : 0.0f);
}
static inline void v_store_n(float *p, vf a, int n) {
    memcpy(p, a.f, sizeof(float) * (size_t)n);
}
static inline vf v_add(vf a, vf b) {
    V_EACH(a.f[i] + b.f[i]);
}
static inline vf v_sub(vf a, vf b) {
    V_EACH(a.f[i] - b.f[i]);
}
static inline vf v_mul(vf a, vf b) {
    V_EACH(a.f[i] * b.f[i]);
}
static inline vf v_div(vf a, vf b) {
    V_EACH(a.f[i] / b.f[i]);
}
static inline vf v_fma(vf a, vf b, vf c) {
    V_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
} /* a·b + c */
static inline vf v_fnma(vf a, vf b, vf c) {
    V_EACH(fmaf(-a.f[i], b.f[i], c.f[i]));
} /* c − a·b */
static inline vf v_min(vf a, vf b) {
    V_EACH(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}
static inline vf v_max(vf a, vf b) {
    V_EACH(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}
static inline vf v_abs(vf a) {
    V_EACH(fabsf(a.f[i]));
}
static inline vf v_copysign(vf a, vf sign) {
    V_EACH(copysignf(a.f[i], sign.f[i]));
} /* |a| with the sign of `sign` */
static inline vm v_lt(vf a, vf b) { /* false where NaN */
    vm m = 0;
    for (int i = 0; i < 16; i++) m |= (vm)(a.f[i] < b.f[i]) << i;
    return m;
}
static inline vm v_nan(vf a) {
    vm m = 0;
    for (int i = 0; i < 16; i++) m |= (vm)(a.f[i] != a.f[i]) << i;
    return m;
}
static inline vm vm_range(int from, int to) { /* lanes from <= i < to; any integers */
    from = from < 0 ? 0 : from > 16 ? 16 : from;
    to = to < 0 ? 0 : to > 16 ? 16 : to;
    return from < to ? ((1u << to) - 1) & ~((1u << from) - 1) : 0;
}
static inline vm vm_or(vm a, vm b) {
    return a | b;
}
static inline int vm_count(vm m) {
    return __builtin_popcount(m & 0xffff);
}
static inline vf v_sel(vm m, vf a, vf b) {
    V_EACH(m >> i & 1 ? a.f[i] : b.f[i]);
}
static inline vi v_bits(vf a) {
    vi r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vf v_float(vi a) {
    vf r;
    memcpy(&r, &a, sizeof r);
    return r;
}
static inline vi vi_set1(int32_t c) {
    VI_EACH(c);
}
static inline vi vi_add(vi a, vi b) {
    VI_EACH((int32_t)((uint32_t)a.i[i] + (uint32_t)b.i[i]));
}
static inline vi vi_sub(vi a, vi b) {
    VI_EACH((int32_t)((uint32_t)a.i[i] - (uint32_t)b.i[i]));
}
static inline vi vi_shl23(vi a) {
    VI_EACH((int32_t)((uint32_t)a.i[i] << 23));
}
static inline vi vi_half(vi a) {
    VI_EACH(a.i[i] >> 1);
} /* towards minus infinity */
static inline vi vi_and(vi a, vi b) {
    VI_EACH(a.i[i] & b.i[i]);
}
static inline vi vi_or(vi a, vi b) {
    VI_EACH(a.i[i] | b.i[i]);
}
static inline vi vi_shl(vi a, int n) {
    VI_EACH((int32_t)((uint32_t)a.i[i] << n));
}
static inline vi vi_shr(vi a, int n) { /* of unsigned numbers */
    VI_EACH((int32_t)((uint32_t)a.i[i] >> n));
}
static inline vi vi_load_u8(const uint8_t *p) {
    VI_EACH(p[i]);
}
/* Sixteen codes of `bits` <= 8 bits, one behind the other, lowest bit first. Reads 16 bytes. */
static inline vi vi_unpack(const uint8_t *p, int bits) {
    VI_EACH((p[i * bits / 8] | (bits < 8 ? p[i * bits / 8 + 1] << 8 : 0)) >> i * bits % 8 & ((1 << bits) - 1));
}
static inline vf v_from_int(vi a) {
    V_EACH((float)a.i[i]);
}
static inline vf v_round(vf a) { /* to the nearest integer, even of two; |a| < 2^22 */
    V_EACH((a.f[i] + 12582912.0f) - 12582912.0f);
}
/* table[a] for a < 2^bits; tables of fewer than 16 entries are padded to 16 */
static inline vf v_lookup(const float *table, vi a, int bits) {
    V_EACH(table[a.i[i]]);
}
/* Sum and maximum of the lanes by halving: lane i with lane i+8, then +4, +2, +1. */
static inline float v_sum(vf a) {
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) a.f[i] = a.f[i] + a.f[i + n];
    return a.f[0];
}
static inline float v_top(vf a) {
    for (int n = 8; n; n >>= 1)
        for (int i = 0; i < n; i++) a.f[i] = a.f[i] > a.f[i + n] ? a.f[i] : a.f[i + n];
    return a.f[0];
}
static inline vf v_swap(vf a) {
    V_EACH(a.f[i ^ 1]);
} /* neighbours exchanged */
static inline vf v_load_f16(const uint16_t *p) {
    V_EACH(f16_to_f32(p[i]));
}
static inline vf v_load_bf16(const uint16_t *p) {
    V_EACH(bf16_to_f32(p[i]));
}
static inline void v_store_f16(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++) p[i] = f32_to_f16(a.f[i]);
}
static inline void v_store_bf16(uint16_t *p, vf a) {
    for (int i = 0; i < 16; i++) p[i] = f32_to_bf16(a.f[i]);
}
#undef V_EACH
#undef VI_EACH
/* How many 16-lane accumulators a row the product tiles of attend_body.h keep when they work on `rows` rows. */
#define V_TILE_COLS(rows) 1
#define V_INL             static inline
