/* Matrix products, scalar: these loops define the numbers every other level must give to the bit.
 *
 *   integer codes   I = Σ q·X − z·ΣX over a group (exact), p = s·f32(I), acc = fma(p, a, acc), then acc = fma(b, c,
 * acc) with c = a·ΣX where the format has offsets; groups in order of column. f32             per chunk of 64 columns
 * one sum over even and one over odd columns, by fma in order; acc += even + odd.
 *
 * Packed layouts: linear.h, pack.c. Not here: splitting over threads (linear.c). */
#include <math.h>
#include "../internal.h"
#include "linear.h"

/* ---- activations: x is [group][row][cols] of int16, or [chunk][row][64] of f32 ----------------------------------- */
static void code_f32(const lin_block *b, int r, const float *x, int n_in) {
    for (int32_t k = 0; k < b->n_chunks * LIN_COLS; k++) {
        float *to = (float *)b->x + ((size_t)(k / LIN_COLS) * (size_t)b->n + (size_t)r) * LIN_COLS;
        to[k % LIN_COLS] = k < n_in ? x[k] : 0;
    }
}

static void code(const lin_block *b, int r, const float *x, int n_in) {
    int cols = lin_class_cols(b->class);
    if (b->class == LC_F32) {
        code_f32(b, r, x, n_in);
        return;
    }
    for (int32_t g = 0; g < b->n_chunks * (LIN_COLS / cols); g++) {
        size_t at = (size_t)g * (size_t)b->n + (size_t)r;
        int16_t *to = (int16_t *)b->x + at * (size_t)cols;
        int32_t top = 0, h = 0, l = 0, n = MAX(MIN(cols, n_in - g * cols), 0);
        const float *from = x + g * cols;
        for (int i = 0; i < n; i++) {
            uint32_t u;
            memcpy(&u, from + i, 4);
            top = MAX(top, (int32_t)(u & 0x7fffffff));
        }
        float a, factor = lin_code_scale(b, top, &a);
        for (int i = 0; i < cols; i++) {
            int32_t v = i < n && factor ? (int32_t)rintf(from[i] * factor) : 0;
            to[i] = (int16_t)v;
            h += b->one_plane ? 0 : v >> 7;
            l += b->one_plane ? v : v & 127;
        }
        lin_code_sums(b, at, h, l, a);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */
/* Bits of one plane, added to the codes [16 steps][16 rows][4] from bit `to` up. Returns the plane's end. */
static const uint8_t *plane_read(const uint8_t *p, int bits, int to, uint8_t *q) {
    int n = LIN_STEPS * bits / 8;
    for (int step = 0; step < LIN_STEPS; step++)
        for (int k = 0; k < 64; k++)
            q[step * 64 + k] |= (uint8_t)((p[step % n * 64 + k] >> step / n * bits & ((1 << bits) - 1)) << to);
    return p + n * 64;
}

static void codes_read(const cpu_packed *w, const uint8_t *panel, int chunk, uint8_t *q) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    int low = w->bits == 3 ? 2 : w->bits == 5 || w->bits == 6 ? 4 : w->bits;
    memset(q, 0, LIN_COLS * LIN_ROWS);
    p = plane_read(p, low, 0, q);
    if (w->bits > low) plane_read(p, w->bits - low, low, q);
    for (int i = 0; w->lookup && i < LIN_COLS * LIN_ROWS; i++) q[i] = w->table[q[i]];
}

static float scale_read(lin_scale kind, const uint8_t *p, int i) {
    float f;
    switch (kind) {
    case LS_F32: return memcpy(&f, p + 4 * i, 4), f;
    case LS_F16: return f16_to_f32(load_u16(p + 2 * i));
    case LS_BF16: return bf16_to_f32(load_u16(p + 2 * i));
    case LS_E8M0: return weight_e8m0_half(p[i]);
    default:
        return 128.0f *
               f16_to_f32((uint16_t)((p[i] & 0x7f) << 7 | (p[i] & 0x80) << 8)); /* f16's exponent is 8 higher */
    }
}

/* Scale and offset of group g for the 16 rows; b is 0 where the format has none. */
static void scales_read(const cpu_packed *w, const uint8_t *panel, int g, float *s, float *b) {
    const uint8_t *p = panel + w->scales_at;
    if (w->scale != LS_SUPER) {
        for (int i = 0; i < LIN_ROWS; i++) {
            s[i] = scale_read(w->scale, p + (size_t)g * w->group_bytes, i);
            b[i] = w->offset ? scale_read(w->scale, p + (size_t)g * w->group_bytes, LIN_ROWS + i) : 0;
        }
        return;
    }
    int per = 256 / w->group;
    size_t halves = LIN_ROWS * 2 * (w->offset ? 2 : 1);
    const uint8_t *d = p + (size_t)(g / per) * (halves + (size_t)per * w->group_bytes);
    const uint8_t *sc = d + halves + (size_t)(g % per) * w->group_bytes;
    for (int i = 0; i < LIN_ROWS; i++) {
        s[i] = f16_to_f32(load_u16(d + 2 * i)) * (float)(int8_t)sc[i];
        b[i] = w->offset ? -(f16_to_f32(load_u16(d + 2 * (LIN_ROWS + i))) * (float)sc[LIN_ROWS + i]) : 0;
    }
}

static float e8m0_read(uint8_t e) {
    uint32_t u = e ? (uint32_t)e << 23 : 0x00400000u;
    float f;
    return memcpy(&f, &u, 4), f;
}

static void chunk_floats(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    const uint8_t *p = panel + (size_t)chunk * w->chunk_bytes;
    const uint8_t *sc = panel + w->scales_at + (size_t)chunk * 2 * LIN_ROWS;
    for (int i = 0; i < LIN_COLS * LIN_ROWS; i++) switch (w->floats) {
        case LF_F32: memcpy(out + i, p + 4 * i, 4); break;
        case LF_F16: out[i] = f16_to_f32(load_u16(p + 2 * i)); break;
        case LF_BF16: out[i] = bf16_to_f32(load_u16(p + 2 * i)); break;
        default: out[i] = e8m0_read(sc[i / 512 * LIN_ROWS + i % LIN_ROWS]) * (2 * scale_read(LS_E4M3, p, i));
        }
}

static void chunk_f32(const cpu_packed *w, const uint8_t *panel, int chunk, float *out) {
    uint8_t q[LIN_COLS * LIN_ROWS];
    float s[LIN_ROWS], b[LIN_ROWS];
    if (w->floats) {
        chunk_floats(w, panel, chunk, out);
        return;
    }
    codes_read(w, panel, chunk, q);
    for (int k = 0; k < LIN_COLS; k++) {
        if (k % 16 == 0) scales_read(w, panel, (chunk * LIN_COLS + k) / w->group, s, b);
        for (int r = 0; r < LIN_ROWS; r++) {
            float v = s[r] * (float)(q[k / 4 * 64 + 4 * r + k % 4] - w->zero);
            out[k * LIN_ROWS + r] = w->offset ? v + b[r] : v;
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */
static void panel_f32(const cpu_packed *w, const uint8_t *panel, const lin_block *b, float *acc) {
    float f[LIN_COLS * LIN_ROWS];
    for (int32_t c = 0; c < w->n_chunks; c++) {
        chunk_f32(w, panel, c, f);
        for (int32_t t = 0; t < b->n; t++) {
            const float *x = (const float *)b->x + ((size_t)c * (size_t)b->n + (size_t)t) * LIN_COLS;
            for (int r = 0; r < LIN_ROWS; r++) {
                float even = 0, odd = 0;
                for (int k = 0; k < LIN_COLS; k += 2) {
                    even = fmaf(x[k], f[k * LIN_ROWS + r], even);
                    odd = fmaf(x[k + 1], f[(k + 1) * LIN_ROWS + r], odd);
                }
                acc[t * LIN_ROWS + r] += even + odd;
            }
        }
    }
}

/* One group of one row: q is at the group's first step. */
static void group_int(const cpu_packed *w, const uint8_t *q, int cols, const lin_block *b, size_t at, const float *s,
                      const float *o, float *acc) {
    const int16_t *x = (const int16_t *)b->x + at * (size_t)cols;
    int32_t sum = 128 * (b->hl[at] >> 16) + (int16_t)b->hl[at];
    for (int r = 0; r < LIN_ROWS; r++) {
        int32_t dot = 0;
        for (int k = 0; k < cols; k++) dot += q[k / 4 * 64 + 4 * r + k % 4] * x[k];
        float p = s[r] * (float)(dot - w->zero * sum);
        acc[r] = fmaf(p, b->a[at], acc[r]);
        if (w->offset) acc[r] = fmaf(o[r], b->c[at], acc[r]);
    }
}

static void panel_ref(const cpu_packed *w, const uint8_t *panel, const lin_block *b, float *acc) {
    uint8_t q[LIN_COLS * LIN_ROWS];
    float s[LIN_ROWS], o[LIN_ROWS];
    int cols = lin_class_cols(b->class), groups = LIN_COLS / cols;
    memset(acc, 0, sizeof *acc * LIN_ROWS * (size_t)b->n);
    if (b->class == LC_F32) {
        panel_f32(w, panel, b, acc);
        return;
    }
    for (int32_t c = 0; c < w->n_chunks; c++) {
        codes_read(w, panel, c, q);
        for (int i = 0; i < groups; i++) {
            int32_t g = c * groups + i;
            scales_read(w, panel, g * cols / w->group, s, o);
            for (int32_t t = 0; t < b->n; t++)
                group_int(w, q + i * cols * LIN_ROWS, cols, b, (size_t)g * (size_t)b->n + (size_t)t, s, o,
                          acc + t * LIN_ROWS);
        }
    }
}

static void panels(const cpu_packed *w, const uint8_t *panel, int n_panels, const lin_block *b, float *acc) {
    for (int i = 0; i < n_panels; i++) panel_ref(w, panel + (size_t)i * w->panel_bytes, b, acc + i * b->n * LIN_ROWS);
}

static const lin_kernels kernels = {.code = code, .panels = panels, .chunk_f32 = chunk_f32};
LIN_OPS(kernels)
void cpu_linear_install_ref(device_ops *op) {
    install_ops(op);
}
