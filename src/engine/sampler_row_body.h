/* Passes over a row of logits, eight lanes wide. Included once for every instruction level (sampler_row*.c), with
 * ROW_OPS naming the table; lanes, sums and their order are fixed and nothing is fused, so the levels give the same
 * bits. */
#include <math.h>
#include "internal.h"

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int64_t l4 __attribute__((vector_size(32)));

#define INLINE static inline __attribute__((always_inline))
INLINE v8 v8_load(const float *p) {
    v8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE v8 v8_all(float f) {
    return (v8){f, f, f, f, f, f, f, f};
}
INLINE v8 v8_choose(i8 mask, v8 a, v8 b) {
    return (v8)((mask & (i8)a) | (~mask & (i8)b));
}
INLINE bool i8_any(i8 m) {
    l4 q = (l4)m;
    return ((q[0] | q[1]) | (q[2] | q[3])) != 0;
}
INLINE float v8_sum(v8 v) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* exp(x) for x <= 0, relative error below 2e-7; 0 below -87. Cody-Waite reduction by ln 2, degree-6 Taylor polynomial.
 */
INLINE v8 v8_exp(v8 x) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding and subtracting it rounds to an integer */
    i8 gone = x < v8_all(-87.0f);
    x = v8_choose(gone, v8_all(-87.0f), x);
    v8 n = (x * v8_all(1.44269504f) + v8_all(round)) - v8_all(round);
    v8 r = x - n * v8_all(0.693359375f) - n * v8_all(-2.12194440e-4f);
    v8 p = v8_all(1.0f / 720);
    p = p * r + v8_all(1.0f / 120);
    p = p * r + v8_all(1.0f / 24);
    p = p * r + v8_all(1.0f / 6);
    p = p * r + v8_all(0.5f);
    p = p * r + v8_all(1.0f);
    p = p * r + v8_all(1.0f);
    i8 e = (__builtin_convertvector(n, i8) + 127) << 23;
    return (v8)(~gone & (i8)(p * (v8)e));
}

static bool row_max(const float *x, int32_t n, float *max) {
    v8 m = v8_all(-INFINITY), m2 = m;
    i8 bad = {0};
    int32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v8 a = v8_load(x + i), b = v8_load(x + i + 8);
        bad |= (a != a) | (b != b);
        m = v8_choose(a > m, a, m);
        m2 = v8_choose(b > m2, b, m2);
    }
    bool nan = i8_any(bad);
    float best = -INFINITY;
    for (int k = 0; k < 8; k++) best = fmaxf(best, fmaxf(m[k], m2[k]));
    for (; i < n; i++) {
        nan |= x[i] != x[i];
        best = fmaxf(best, x[i]);
    }
    *max = best;
    return !nan && best > -INFINITY && best < INFINITY;
}

static int32_t row_next(const float *x, int32_t i, int32_t n, float least) {
    for (; i + 8 <= n; i += 8)
        if (i8_any(v8_load(x + i) >= v8_all(least))) break;
    while (i < n && !(x[i] >= least)) i++;
    return i;
}

static double row_exp(const float *x, int32_t n, float max, float inv_t, float *w) {
    double total = 0;
    for (int32_t at = 0; at < n; at += ROW_BLOCK) {
        int32_t end = MIN(at + ROW_BLOCK, n), i = at;
        v8 sum = {0};
        for (; i + 8 <= end; i += 8) {
            v8 e = v8_exp((v8_load(x + i) - v8_all(max)) * v8_all(inv_t));
            if (w) memcpy(w + i, &e, sizeof e);
            sum += e;
        }
        if (i < end) {
            float rest[8];
            for (int k = 0; k < 8; k++) rest[k] = k < end - i ? x[i + k] : -INFINITY;
            v8 e = v8_exp((v8_load(rest) - v8_all(max)) * v8_all(inv_t));
            if (w) memcpy(w + i, &e, (size_t)(end - i) * sizeof *w);
            sum += e;
        }
        total += (double)v8_sum(sum);
    }
    return total;
}

static int32_t row_gather(const float *x, int32_t n, float least, float *value, int32_t *id) {
    int32_t found = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        if (!i8_any(v8_load(x + i) >= v8_all(least))) continue;
        for (int32_t k = i; k < i + 8; k++) { /* without a branch: what is not wanted is written over */
            value[found] = x[k];
            id[found] = k;
            found += x[k] >= least;
        }
    }
    for (; i < n; i++) {
        value[found] = x[i];
        id[found] = i;
        found += x[i] >= least;
    }
    return found;
}

static double row_block(const float *w) {
    v8 sum = {0};
    for (int32_t i = 0; i < ROW_BLOCK; i += 8) sum += v8_load(w + i);
    return (double)v8_sum(sum);
}

const row_ops ROW_OPS = {row_max, row_next, row_exp, row_gather, row_block};
