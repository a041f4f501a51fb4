/* Keys and values on their way into the cache and out of it: rounding, coding, reading. Included by attend_body.h. Not
 * here: where the parts of a page lie (internal.h, kv.c). docs/kv-cache.md tells what the codes are.
 *
 * A position is coded from its own values alone, once, when it is appended; reading gives the same f32 value at every
 * level: one fma (affine) or one product (rotated). So attention over coded pages has the bits of attention over an f32
 * cache that holds the values read. */
#pragma once
#include <float.h>
#include "internal.h"

#define UNROLL _Pragma("GCC unroll 8")

/* ---- rounding ---- */
static float kv_limit(dtype t) {
    return t == DT_F16 ? 65504.0f : t == DT_BF16 ? 0x1.fep+127f : FLT_MAX;
}
V_INL vf kv_fit(vf x, float limit, int *n_bad) {
    vf top = v_set1(limit);
    vm nan = v_nan(x), bad = vm_or(nan, v_lt(top, v_abs(x)));
    *n_bad += vm_count(bad);
    return v_sel(nan, v_zero(), v_max(v_set1(-limit), v_min(top, x)));
}
typedef union kv_lanes {
    float f[16];
    uint16_t h[16];
} kv_lanes;
V_INL void kv_round(void *to, vf x, dtype type) {
    if (type == DT_F16)
        v_store_f16(to, x);
    else if (type == DT_BF16)
        v_store_bf16(to, x);
    else
        v_store(to, x);
}
static float kv_rounded(float x, dtype type) {
    return type == DT_F16 ? f16_to_f32(f32_to_f16(x)) : type == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}
static void kv_put(uint8_t *to, float x, dtype type) {
    uint16_t h = type == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy(to, type == DT_F32 ? (void *)&x : (void *)&h, dtype_bytes(type));
}

/* ---- uncoded: one position into column `at` of keys, or row `at` ---- */
static void keys_put(const kv_part *p, uint8_t *head, dtype type, const float *k, int at, int *n_bad) {
    kv_lanes tmp;
    FOR_16(d, p->width) {
        kv_round(&tmp, kv_fit(row_get(k + d, left), kv_limit(type), n_bad), type);
        for (int i = 0; i < MIN(left, 16); i++) {
            if (type == DT_F32)
                ((float *)(head + p->at))[(d + i) * KV_PAGE + at] = tmp.f[i];
            else
                ((uint16_t *)(head + p->at))[(d + i) * KV_PAGE + at] = tmp.h[i];
        }
    }
}
static void row_put_plain(const kv_part *p, uint8_t *head, dtype type, const float *x, int at, int *n_bad) {
    size_t size = dtype_bytes(type);
    uint8_t *row = head + p->at + (size_t)at * (size_t)p->pad * size;
    FOR_16(d, p->width)
    kv_round(row + (size_t)d * size, kv_fit(row_get(x + d, left), kv_limit(type), n_bad), type);
}

/* ---- affine codes ----
 * Of x [n], n <= KV_GROUP_MAX: the edge further from 0 is the offset, and the scale, its sign pointing to the other
 * edge, divides it without rest, so that 0 is a code (MLX's affine quantisation; oracle/text). The scale and the offset
 * are rounded to the cache's type first and the codes chosen for them as rounded. */
static void affine_code(uint8_t *code, float *scale, float *offset, const float *x, int n, int bits, dtype type) {
    float t[KV_GROUP_MAX];
    int full = (n + 15) & ~15;
    memcpy(t, x, sizeof *t * (size_t)n);
    for (int i = n; i < full; i++) t[i] = x[0];
    vf top = v_load(t), low = top;
    for (int i = 16; i < full; i += 16) top = v_max(top, v_load(t + i)), low = v_min(low, v_load(t + i));
    float hi = v_top(top), lo = -v_top(v_sub(v_zero(), low)), bins = (float)((1 << bits) - 1);
    bool below = fabsf(lo) > fabsf(hi);
    float s = (hi - lo) / bins, edge = below ? lo : hi, b = 0;
    s = s > 1e-7f ? s : 1e-7f;
    if (!below) s = -s;
    float steps = rintf(edge / s);
    if (steps != 0) s = edge / steps, b = edge;
    *scale = s = kv_rounded(s, type);
    *offset = b = kv_rounded(b, type);
    for (int i = 0; i < full; i += 16) {
        vf q = v_div(v_sub(v_load(t + i), v_set1(b)), v_set1(s));
        v_store(t + i, v_round(v_max(v_zero(), v_min(v_set1(bins), q))));
    }
    for (int i = 0; i < n; i++) code[i] = (uint8_t)t[i];
}

/* ---- rotated codes ----
 * x [pad] is multiplied by random signs and by a Hadamard matrix, which spreads every column over its whole block: what
 * comes out looks like a normal variable whatever went in. The matrix is orthogonal but for the factor √n; half of it,
 * rounded to a power of two, is taken out on the way in and the rest on the way back, exactly. */
static void hadamard(float *x, int n) {
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int k = i; k < i + h; k++) {
                float a = x[k], b = x[k + h];
                x[k] = a + b;
                x[k + h] = a - b;
            }
}
static float half_root(int n) { /* the power of two next to, and not above, 1/√n */
    return 1.0f / (float)(1 << (32 - __builtin_clz((unsigned)n)) / 2);
}
static void rotate(float *x, int pad, const float *sign) {
    for (int i = 0; i < pad; i++) x[i] *= sign[i];
    for (int at = 0, end; at < pad; at = end) {
        end = kv_block_end(pad, at);
        hadamard(x + at, end - at);
        float c = half_root(end - at);
        for (int i = at; i < end; i++) x[i] *= c;
    }
}
static void rotate_back(float *x, int pad, const float *sign) {
    for (int at = 0, end; at < pad; at = end) {
        end = kv_block_end(pad, at);
        hadamard(x + at, end - at);
        float c = 1.0f / ((float)(end - at) * half_root(end - at));
        for (int i = at; i < end; i++) x[i] *= c * sign[i];
    }
}
/* The nearest level of x·c: one more for every middle between two levels that it lies above. */
static int level_of(float x, const float *level, int bits) {
    int at = 0;
    for (int step = 1 << (bits - 1); step; step /= 2)
        if (x > 0.5f * (level[at + step - 1] + level[at + step])) at += step;
    return at;
}
/* Codes of one block of a rotated row, x [n] (a multiple of 16; changed). First against the root of the mean square,
 * then the scale that fits the chosen levels best. */
static void rotated_code(uint8_t *code, float *scale, float *x, int n, int bits, dtype type) {
    const float *level = kv_levels[bits];
    vf sum = v_zero(), xl = v_zero(), ll = v_zero();
    for (int i = 0; i < n; i += 16) sum = v_fma(v_load(x + i), v_load(x + i), sum);
    float s = sqrtf(v_sum(sum) / (float)n), c = s > 1e-30f ? 1.0f / s : 0;
    for (int i = 0; i < n; i += 16) {
        float l[16];
        for (int k = 0; k < 16; k++) l[k] = level[code[i + k] = (uint8_t)level_of(x[i + k] * c, level, bits)];
        xl = v_fma(v_load(x + i), v_load(l), xl);
        ll = v_fma(v_load(l), v_load(l), ll);
    }
    s = v_sum(xl) / v_sum(ll);
    *scale = s < kv_limit(type) ? s : kv_limit(type);
}

/* ---- coded: one position ---- */
#define CODED_LIMIT 0x1p50f /* what is coded may be as large as: its squares are summed */
static void codes_pack(uint8_t *to, const uint8_t *code, int n, int bits, int stride) { /* n: a multiple of 8 */
    for (int i = 0; i < n; i += 8) {
        uint64_t w = 0;
        for (int k = 0; k < 8; k++) w |= (uint64_t)code[i + k] << k * bits;
        for (int b = 0; b < bits; b++, to += stride) *to = (uint8_t)(w >> 8 * b);
    }
}
/* The values to be coded, within what the codes can say; columns past the width are 0. */
static void coded_fit(float *to, const float *x, int n, dtype type, int *n_bad) {
    float limit = kv_limit(type);
    FOR_16(d, n) v_store(to + d, kv_fit(row_get(x + d, left), limit < CODED_LIMIT ? limit : CODED_LIMIT, n_bad));
}
static void keys_code(const kv_part *p, uint8_t *head, dtype type, const float *k, int at, int *n_bad) {
    float x[KV_WIDTH_MAX], s, b;
    uint8_t code[KV_WIDTH_MAX + 8] = {0};
    size_t size = dtype_bytes(type);
    coded_fit(x, k, p->width, type, n_bad);
    for (int g = 0; g < p->groups; g++) {
        int from = g * p->how.group;
        affine_code(code + from, &s, &b, x + from, MIN(p->how.group, p->width - from), p->how.bits, type);
        kv_put(head + p->scale_at + (size_t)(g * KV_PAGE + at) * size, s, type);
        kv_put(head + p->offset_at + (size_t)(g * KV_PAGE + at) * size, b, type);
    }
    codes_pack(head + p->at + at, code, (p->width + 7) & ~7, p->how.bits, KV_PAGE);
}
static void row_code(const kv_part *p, uint8_t *head, dtype type, const float *v, int at, const float *sign,
                     int *n_bad) {
    float x[KV_WIDTH_MAX], s, b;
    uint8_t code[KV_WIDTH_MAX] = {0};
    size_t size = dtype_bytes(type), line = (size_t)at * (size_t)p->groups;
    coded_fit(x, v, p->width, type, n_bad);
    if (p->how.rotated) rotate(x, p->pad, sign);
    for (int g = 0, from = 0, end; g < p->groups; g++, from = end) {
        end = p->how.rotated ? kv_block_end(p->pad, from) : MIN(from + p->how.group, p->width);
        if (p->how.rotated) {
            rotated_code(code + from, &s, x + from, end - from, p->how.bits, type);
        } else {
            affine_code(code + from, &s, &b, x + from, end - from, p->how.bits, type);
            kv_put(head + p->offset_at + (line + (size_t)g) * size, b, type);
        }
        kv_put(head + p->scale_at + (line + (size_t)g) * size, s, type);
    }
    codes_pack(head + p->at + (size_t)at * (size_t)(p->pad / 8 * p->how.bits), code, p->pad, p->how.bits, 1);
}

/* ---- append ---- */
typedef struct append_job {
    kv_cache *kv;
    const cpu_kv_layer *layer;
    const step *s;
    tensor k, v;
} append_job;

/* One position of one head into place `at` of a page; a latent layer's v is part of k. */
static void append_head(const append_job *j, uint8_t *head, const float *k, const float *v, int at, int *n_bad) {
    const cpu_kv_layer *l = j->layer;
    const dtype type = j->kv->type;
    const bool latent = l->dim.latent;
    int seen = 0;
    if (!l->k.how.bits || l->both) {
        const kv_part *pk = l->both ? &l->k_plain : &l->k, *pv = l->both ? &l->v_plain : &l->v;
        (latent ? row_put_plain : keys_put)(pk, head, type, k, at, n_bad);
        row_put_plain(pv, head, type, v, at, n_bad);
        n_bad = &seen; /* counted once */
    }
    if (!l->k.how.bits) return;
    if (latent) {
        row_code(&l->k, head, type, k, at, j->kv->sign, n_bad);
    } else {
        keys_code(&l->k, head, type, k, at, n_bad);
        row_code(&l->v, head, type, v, at, j->kv->sign, n_bad);
    }
}

/* Lines of the job: rows of all sequences, heads innermost. */
static void append_rows(const void *arg, int64_t from, int64_t to) {
    const append_job *j = arg;
    int heads = j->layer->dim.heads, n_bad = 0;
    int64_t line = 0;
    for (int b = 0; b < j->s->n_seqs; b++) {
        const step_seq *q = &j->s->seq[b];
        int64_t end = line + (int64_t)q->n_rows * heads;
        for (int64_t i = MAX(from, line); i < MIN(to, end); i++) {
            int t = (int)((i - line) / heads), h = (int)((i - line) % heads), pos = q->pos0 + t;
            int64_t at = (int64_t)(q->row0 + t) * heads + h;
            uint8_t *head = kv_head(j->kv, j->layer, q->page[j->layer->dim.group][pos / KV_PAGE], h);
            append_head(j, head, tensor_line(j->k, at), tensor_line(j->v, at), pos % KV_PAGE, &n_bad);
        }
        line = end;
    }
    if (n_bad) j->kv->n_saturated += (uint64_t)n_bad;
}

static void kv_append(device *d, kv_cache *kv, int layer, tensor k, tensor v, const step *s) {
    enum { CODING = 8 /* what coding a value costs, beside rounding it */ };
    const cpu_kv_layer *l = &kv->layer[layer];
    append_job j = {kv, l, s, k, v};
    int64_t lines = 0;
    for (int b = 0; b < s->n_seqs; b++) lines += (int64_t)s->seq[b].n_rows * l->dim.heads;
    cpu_rows_run(d, lines, (l->k.how.bits ? CODING : 2) * (int64_t)(l->dim.k_width + l->dim.v_width), append_rows, &j);
}

/* ---- reading ---- */
static void widen(float *to, const void *from, int n, dtype type) { /* n: a multiple of 16 */
    const uint16_t *h = from;
    if (type == DT_F32)
        memcpy(to, from, sizeof *to * (size_t)n);
    else
        for (int i = 0; i < n; i += 16) v_store(to + i, type == DT_F16 ? v_load_f16(h + i) : v_load_bf16(h + i));
}
/* Calls f with each number of bits as a constant. */
#define BY_BITS(bits, f, ...)         \
    switch (bits) {                   \
    case 2: f(2, __VA_ARGS__); break; \
    case 3: f(3, __VA_ARGS__); break; \
    case 4: f(4, __VA_ARGS__); break; \
    case 5: f(5, __VA_ARGS__); break; \
    case 6: f(6, __VA_ARGS__); break; \
    case 8: f(8, __VA_ARGS__); break; \
    }

/* Code c of the eight in `byte` [bits]. */
V_INL vi key_code(const int bits, const vi *byte, const int c) {
    const int at = c * bits / 8, shift = c * bits % 8;
    vi q = vi_shr(byte[at], shift);
    if (shift + bits > 8) q = vi_or(q, vi_shl(byte[at + 1], 8 - shift));
    return shift + bits == 8 ? q : vi_and(q, vi_set1((1 << bits) - 1));
}
/* Blocks of 8 columns at the 16 positions from `from` on become to [8·blocks][KV_PAGE]. */
V_INL void keys_read_bits(const int bits, const uint8_t *from, float *to, vf s, vf b, int blocks) {
    for (int k = 0; k < blocks; k++, from += bits * KV_PAGE, to += 8 * KV_PAGE) {
        vi byte[8];
        UNROLL for (int i = 0; i < bits; i++) byte[i] = vi_load_u8(from + i * KV_PAGE);
        UNROLL for (int c = 0; c < 8; c++) v_store(to + c * KV_PAGE, v_fma(v_from_int(key_code(bits, byte, c)), s, b));
    }
}
/* Columns [d, d+n) of coded keys as to [n][KV_PAGE], and up to 7 more. d: a multiple of CODED_KEYS. */
static void keys_read(const kv_part *p, const uint8_t *head, dtype type, int d, int n, float *to) {
    float s[KV_PAGE], b[KV_PAGE];
    size_t line = (size_t)(d / p->how.group * KV_PAGE) * dtype_bytes(type);
    widen(s, head + p->scale_at + line, KV_PAGE, type);
    widen(b, head + p->offset_at + line, KV_PAGE, type);
    const uint8_t *from = head + p->at + (size_t)(d / 8 * p->how.bits) * KV_PAGE;
    for (int i = 0; i < KV_PAGE; i += 16)
        BY_BITS(p->how.bits, keys_read_bits, from + i, to + i, v_load(s + i), v_load(b + i), (n + 7) / 8)
}

/* Rows in any order; the scales of CODED_ROWS neighbours are widened together. */
typedef struct rows_reader {
    const kv_part *part;
    dtype type;
    const uint8_t *head; /* whose scales are at hand, */
    int row;             /* from this row on */
    float s[CODED_ROWS * (KV_WIDTH_MAX / KV_GROUP_MIN)], b[CODED_ROWS * (KV_WIDTH_MAX / KV_GROUP_MIN)];
} rows_reader;

static void rows_start(rows_reader *r, const kv_part *p, dtype type) {
    r->part = p;
    r->type = type;
    r->head = NULL;
}
V_INL void row_read_bits(const int bits, const kv_part *p, const uint8_t *code, const float *s, const float *b,
                         float *to) {
    const float *level = kv_levels[bits];
    for (int g = 0, at = 0, end; at < p->pad; g++, at = end) {
        vf scale = v_set1(s[g]);
        if (p->how.rotated) {
            end = kv_block_end(p->pad, at);
            for (int i = at; i < end; i += 16)
                v_store(to + i, v_mul(v_lookup(level, vi_unpack(code + i / 8 * bits, bits), bits), scale));
        } else {
            end = MIN(at + p->how.group, p->pad);
            for (int i = at; i < end; i += 16)
                v_store(to + i, v_fma(v_from_int(vi_unpack(code + i / 8 * bits, bits)), scale, v_set1(b[g])));
        }
    }
}
static void row_read(rows_reader *r, const uint8_t *head, int row, float *to) {
    const kv_part *p = r->part;
    size_t size = dtype_bytes(r->type);
    if (!p->how.bits) {
        widen(to, head + p->at + (size_t)row * (size_t)p->pad * size, p->pad, r->type);
        return;
    }
    int first = row & ~(CODED_ROWS - 1);
    if (r->head != head || r->row != first) {
        size_t line = (size_t)(first * p->groups) * size;
        r->head = head;
        r->row = first;
        widen(r->s, head + p->scale_at + line, CODED_ROWS * p->groups, r->type);
        if (!p->how.rotated) widen(r->b, head + p->offset_at + line, CODED_ROWS * p->groups, r->type);
    }
    int at = (row - first) * p->groups;
    const uint8_t *code = head + p->at + (size_t)row * (size_t)(p->pad / 8 * p->how.bits);
    BY_BITS(p->how.bits, row_read_bits, p, code, r->s + at, r->b + at, to)
}
