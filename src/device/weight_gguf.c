/* GGUF's blocked formats as codes with scales and offsets: one reader a format, one table.
 *
 * Layouts after ggml's block structures (docs/formats.md has the table); proved against the `gguf` Python package by
 * tests/unit/weight_test.c. Not here: rows and the MLX formats (weight.c). */
#include "internal.h"

/* n bytes (a multiple of 8) -> n low nibbles and n high nibbles. */
static inline void nibbles_split(const uint8_t *p, int n, uint8_t *low, uint8_t *high) {
    for (int i = 0; i < n; i += 8) {
        uint64_t v = lanes_load(p + i);
        lanes_store(low + i, v & LANES(15));
        lanes_store(high + i, v >> 4 & LANES(15));
    }
}

static inline float f16_at(const uint8_t *p) {
    return f16_to_f32(load_u16(p));
}

/* Spreads the 8 bits of x to the lanes of a word, as 0x10 where set: bit 4 of the 5-bit formats. */
static inline uint64_t bits_to_lanes16(uint8_t x) {
    uint64_t spread = (LANES(1) * x) & 0x8040201008040201u; /* lane i keeps only bit i */
    return ((spread + LANES(0x7f)) >> 3) & LANES(16);       /* nonzero lanes carry into bit 7 */
}

/* d:f16 qs[16] */
static void read_q4_0(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    nibbles_split(p + 2, 16, q, q + 16);
}

/* d:f16 m:f16 qs[16] */
static void read_q4_1(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    b[0] = f16_at(p + 2);
    nibbles_split(p + 4, 16, q, q + 16);
}

static void fives(const uint8_t *high, const uint8_t *nibbles, uint8_t *q) {
    nibbles_split(nibbles, 16, q, q + 16);
    for (int i = 0; i < 4; i++) lanes_store(q + 8 * i, lanes_load(q + 8 * i) | bits_to_lanes16(high[i]));
}

/* d:f16 qh:u32 qs[16] */
static void read_q5_0(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    fives(p + 2, p + 6, q);
}

/* d:f16 m:f16 qh:u32 qs[16] */
static void read_q5_1(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    b[0] = f16_at(p + 2);
    fives(p + 4, p + 8, q);
}

/* d:f16 qs:i8[32] */
static void read_q8_0(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    for (int i = 0; i < 32; i += 8) lanes_store(q + i, lanes_load(p + 2 + i) ^ LANES(0x80));
}

/* scales[16] (low nibble scale, high nibble minimum) qs[64] d:f16 dmin:f16 */
static void read_q2_k(const uint8_t *p, uint8_t *q, float *s, float *b) {
    float d = f16_at(p + 80), dmin = f16_at(p + 82);
    for (int g = 0; g < 16; g++) {
        s[g] = d * (float)(p[g] & 15);
        b[g] = -(dmin * (float)(p[g] >> 4));
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i += 8) {
            uint64_t v = lanes_load(p + 16 + 32 * half + i);
            for (int j = 0; j < 4; j++) lanes_store(q + 128 * half + 32 * j + i, v >> 2 * j & LANES(3));
        }
}

/* hmask[32] qs[64] scales[12] (sixteen 6-bit numbers, offset 32) d:f16 */
static void read_q3_k(const uint8_t *p, uint8_t *q, float *s, float *b) {
    const uint8_t *sc = p + 96;
    float d = f16_at(p + 108);
    for (int g = 0; g < 16; g++) {
        int low = sc[g & 7] >> (g & 8 ? 4 : 0) & 15, high = sc[8 + (g & 3)] >> 2 * (g >> 2) & 3;
        s[g] = d * (float)((low | high << 4) - 32);
    }
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i += 8) {
            uint64_t v = lanes_load(p + 32 + 32 * half + i), h = lanes_load(p + i) >> 4 * half;
            for (int j = 0; j < 4; j++)
                lanes_store(q + 128 * half + 32 * j + i, (v >> 2 * j & LANES(3)) | (h >> j & LANES(1)) << 2);
        }
}

/* The eight 6-bit scales and minima of Q4_K and Q5_K, in 12 bytes. */
static void k_scales(const uint8_t *p, float d, float dmin, float *s, float *b) {
    for (int g = 0; g < 4; g++) {
        int sc = p[8 + g] & 15, m = p[8 + g] >> 4;
        s[g] = d * (float)(p[g] & 63);
        b[g] = -(dmin * (float)(p[4 + g] & 63));
        s[4 + g] = d * (float)(sc | (p[g] >> 6) << 4);
        b[4 + g] = -(dmin * (float)(m | (p[4 + g] >> 6) << 4));
    }
}

/* d:f16 dmin:f16 scales[12] qs[128] */
static void read_q4_k(const uint8_t *p, uint8_t *q, float *s, float *b) {
    k_scales(p + 4, f16_at(p), f16_at(p + 2), s, b);
    for (int j = 0; j < 4; j++) nibbles_split(p + 16 + 32 * j, 32, q + 64 * j, q + 64 * j + 32);
}

/* d:f16 dmin:f16 scales[12] qh[32] qs[128] */
static void read_q5_k(const uint8_t *p, uint8_t *q, float *s, float *b) {
    k_scales(p + 4, f16_at(p), f16_at(p + 2), s, b);
    for (int i = 0; i < 32; i += 8) {
        uint64_t h = lanes_load(p + 16 + i);
        for (int j = 0; j < 4; j++, h >>= 2) {
            uint64_t v = lanes_load(p + 48 + 32 * j + i);
            lanes_store(q + 64 * j + i, (v & LANES(15)) | (h & LANES(1)) << 4);
            lanes_store(q + 64 * j + 32 + i, (v >> 4 & LANES(15)) | (h >> 1 & LANES(1)) << 4);
        }
    }
}

/* ql[128] qh[64] scales:i8[16] d:f16 */
static void read_q6_k(const uint8_t *p, uint8_t *q, float *s, float *b) {
    float d = f16_at(p + 208);
    for (int g = 0; g < 16; g++) s[g] = d * (float)(int8_t)p[192 + g];
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i += 8) {
            const uint8_t *ql = p + 64 * half + i;
            uint64_t v0 = lanes_load(ql), v1 = lanes_load(ql + 32), h = lanes_load(p + 128 + 32 * half + i);
            uint8_t *to = q + 128 * half + i;
            lanes_store(to, (v0 & LANES(15)) | (h & LANES(3)) << 4);
            lanes_store(to + 32, (v1 & LANES(15)) | (h >> 2 & LANES(3)) << 4);
            lanes_store(to + 64, (v0 >> 4 & LANES(15)) | (h >> 4 & LANES(3)) << 4);
            lanes_store(to + 96, (v1 >> 4 & LANES(15)) | (h >> 6 & LANES(3)) << 4);
        }
}

static inline void nibbles_lookup(const uint8_t *p, const uint8_t table[16], uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = table[p[i] & 15];
        q[16 + i] = table[p[i] >> 4];
    }
}

const uint8_t weight_iq4_code[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* d:f16 qs[16] */
static void read_iq4_nl(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = f16_at(p);
    nibbles_lookup(p + 2, weight_iq4_code, q);
}

/* d:f16 scales_h:u16 scales_l[4] (eight 6-bit numbers, offset 32) qs[128] */
static void read_iq4_xs(const uint8_t *p, uint8_t *q, float *s, float *b) {
    float d = f16_at(p);
    uint32_t high = load_u16(p + 2);
    for (int g = 0; g < 8; g++) {
        int sc = (p[4 + g / 2] >> 4 * (g & 1) & 15) | (int)(high >> 2 * g & 3) << 4;
        s[g] = d * (float)(sc - 32);
        nibbles_lookup(p + 8 + 16 * g, weight_iq4_code, q + 32 * g);
    }
}

/* e:E8M0 qs[16] */
static void read_mxfp4(const uint8_t *p, uint8_t *q, float *s, float *b) {
    s[0] = weight_e8m0_half(p[0]);
    nibbles_lookup(p + 1, weight_e2m1_code, q);
}

static const block_reader readers[WF_COUNT] = {
    [WF_Q4_0] = {32, 18, {32, 4, 8, false}, read_q4_0},
    [WF_Q4_1] = {32, 20, {32, 4, 0, true}, read_q4_1},
    [WF_Q5_0] = {32, 22, {32, 5, 16, false}, read_q5_0},
    [WF_Q5_1] = {32, 24, {32, 5, 0, true}, read_q5_1},
    [WF_Q8_0] = {32, 34, {32, 8, 128, false}, read_q8_0},
    [WF_Q2_K] = {256, 84, {16, 2, 0, true}, read_q2_k},
    [WF_Q3_K] = {256, 110, {16, 3, 4, false}, read_q3_k},
    [WF_Q4_K] = {256, 144, {32, 4, 0, true}, read_q4_k},
    [WF_Q5_K] = {256, 176, {32, 5, 0, true}, read_q5_k},
    [WF_Q6_K] = {256, 210, {16, 6, 32, false}, read_q6_k},
    [WF_IQ4_NL] = {32, 18, {32, 8, 128, false}, read_iq4_nl},
    [WF_IQ4_XS] = {256, 136, {32, 8, 128, false}, read_iq4_xs},
    [WF_GGMXFP4] = {32, 17, {32, E2M1_BITS, E2M1_ZERO, false}, read_mxfp4},
};

const block_reader *weight_block_reader(weight_format f) {
    return readers[f].read ? &readers[f] : NULL;
}
