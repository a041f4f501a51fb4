/* Packing: a matrix in a mapped file -> the CPU's panels (linear.h), on all threads, straight from the mapping.
 *
 * Rows are read through weight_row_codes / weight_row_f32, so no file format is known here except where a scale may
 * stay narrow. A bit plane holds the 16 steps of a chunk folded over each other: byte i of vector v has step v in its
 * lowest bits, then step v + n, v + 2n ... (n vectors in the plane); 3, 5 and 6 bits are two planes. Not here: reading
 * the panels (linear_*.c). */
#include <math.h>
#include <stdlib.h>
#include "../internal.h"
#include "linear.h"

/* ---- what a source becomes --------------------------------------------------------------------------------------- */
static const struct {
    lin_float floats;
    lin_scale scale;
    int16_t d_at, dmin_at; /* LS_SUPER: where a block of 256 has d and dmin */
} forms[WF_COUNT] = {
    [WF_F32] = {.floats = LF_F32},
    [WF_F16] = {.floats = LF_F16},
    [WF_BF16] = {.floats = LF_BF16},
    [WF_MXFP8] = {.floats = LF_MXFP8},
    [WF_MXFP4] = {.scale = LS_E8M0},
    [WF_GGMXFP4] = {.scale = LS_E8M0},
    [WF_NVFP4] = {.scale = LS_E4M3},
    [WF_Q4_0] = {.scale = LS_F16},
    [WF_Q4_1] = {.scale = LS_F16},
    [WF_Q5_0] = {.scale = LS_F16},
    [WF_Q5_1] = {.scale = LS_F16},
    [WF_Q8_0] = {.scale = LS_F16},
    [WF_IQ4_NL] = {.scale = LS_F16},
    [WF_Q2_K] = {.scale = LS_SUPER, .d_at = 80, .dmin_at = 82},
    [WF_Q3_K] = {.scale = LS_SUPER, .d_at = 108},
    [WF_Q4_K] = {.scale = LS_SUPER, .d_at = 0, .dmin_at = 2},
    [WF_Q5_K] = {.scale = LS_SUPER, .d_at = 0, .dmin_at = 2},
    [WF_Q6_K] = {.scale = LS_SUPER, .d_at = 208},
    [WF_IQ4_XS] = {.scale = LS_SUPER, .d_at = 0},
};

/* The sixteen codes a nibble may mean; NULL where the codes are plain numbers. */
static const uint8_t *lookup_of(weight_format f) {
    if (f == WF_MXFP4 || f == WF_GGMXFP4 || f == WF_NVFP4) return weight_e2m1_code;
    return f == WF_IQ4_NL || f == WF_IQ4_XS ? weight_iq4_code : NULL;
}

static const uint8_t scale_bytes[] = {
    [LS_F32] = 4, [LS_F16] = 2, [LS_BF16] = 2, [LS_E8M0] = 1, [LS_E4M3] = 1, [LS_SUPER] = 1};
static const uint8_t float_bytes[] = {[LF_F32] = 4, [LF_F16] = 2, [LF_BF16] = 2, [LF_MXFP8] = 1};

enum { SUPER_COLS = 256 };

/* Fills everything but data. Sizes come from a file: products are checked. */
static bool packed_shape(cpu_packed *p, const weight_src *src, error *err) {
    code_form f;
    *p = (cpu_packed){.n_experts = src->n_experts, .n_out = src->n_out, .n_in = src->n_in};
    if (src->n_experts < 1 || src->n_out < 1 || src->n_in < 1)
        return error_set(err, ERR_FORMAT, "%s: shape %d x %d x %d, every dimension must be at least 1", src->name,
                         src->n_experts, src->n_out, src->n_in);
    int32_t unit = forms[src->format].scale == LS_SUPER ? SUPER_COLS : forms[src->format].floats ? 1 : 0;
    if (src->format == WF_MXFP8) unit = 32;
    if (!unit) weight_code_form(src, &f), unit = f.group;
    if (src->n_in % unit)
        return error_set(err, ERR_FORMAT, "%s: %d columns, %s needs a multiple of %d", src->name, src->n_in,
                         weight_format_name(src->format), unit);
    p->n_panels = src->n_out / LIN_ROWS + (src->n_out % LIN_ROWS != 0);
    p->n_chunks = src->n_in / LIN_COLS + (src->n_in % LIN_COLS != 0);
    p->floats = forms[src->format].floats;
    p->scale = forms[src->format].scale;
    size_t scales = 0, codes;
    if (p->floats) {
        p->chunk_bytes = (size_t)LIN_COLS * LIN_ROWS * float_bytes[p->floats];
        p->group = 32;
        p->group_bytes = LIN_ROWS;
        if (p->floats == LF_MXFP8) scales = (size_t)p->n_chunks * 2 * LIN_ROWS;
    } else {
        weight_code_form(src, &f);
        const uint8_t *table = lookup_of(src->format);
        p->group = f.group;
        p->zero = f.zero;
        p->offset = f.has_offset;
        p->bits = table ? 4 : (uint8_t)f.bits;
        p->lookup = table != NULL;
        if (table) memcpy(p->table, table, sizeof p->table);
        if (src->format == WF_AFFINE)
            p->scale = src->scale_type == DT_F16 ? LS_F16 : src->scale_type == DT_BF16 ? LS_BF16 : LS_F32;
        p->chunk_bytes = (size_t)p->bits * (LIN_COLS * LIN_ROWS / 8);
        p->group_bytes = (size_t)LIN_ROWS * scale_bytes[p->scale] * (p->offset ? 2 : 1);
        size_t cols = (size_t)p->n_chunks * LIN_COLS, groups = (cols + (size_t)p->group - 1) / (size_t)p->group;
        scales = groups * p->group_bytes;
        if (p->scale == LS_SUPER) scales += cols / SUPER_COLS * LIN_ROWS * sizeof(uint16_t) * (p->offset ? 2 : 1);
    }
    bool fits = size_mul((size_t)p->n_chunks, p->chunk_bytes, &codes);
    p->scales_at = codes;
    p->panel_bytes = (codes + scales + 63) / 64 * 64;
    fits = fits && size_mul(p->panel_bytes, (size_t)p->n_panels, &p->expert_bytes) &&
           size_mul(p->expert_bytes, (size_t)p->n_experts, &p->data_bytes) &&
           (int64_t)p->n_panels * p->n_experts <= INT32_MAX;
    return fits || error_set(err, ERR_FORMAT, "%s: %d x %d x %d elements do not fit in memory", src->name,
                             src->n_experts, src->n_out, src->n_in);
}

size_t cpu_packed_bytes(device *d, const weight_src *src) {
    cpu_packed p;
    if (!packed_shape(&p, src, NULL)) return SIZE_MAX;
    int32_t *widest = &((cpu_device *)d)->linear_planned[lin_class_of(&p, d->num)];
    *widest = MAX(*widest, p.n_in);
    return p.data_bytes;
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */
enum { STEP_BYTES = 64 };

/* Takes `bits` bits of each code, from bit `from` up, as one plane. Returns its end. */
static uint8_t *plane(const uint8_t v[LIN_STEPS][STEP_BYTES], int from, int bits, uint8_t *out) {
    int n = LIN_STEPS * bits / 8;
    uint8_t mask = (uint8_t)((1 << bits) - 1);
    for (int i = 0; i < n; i++, out += STEP_BYTES) {
        memset(out, 0, STEP_BYTES);
        for (int s = 0; s * n < LIN_STEPS; s++)
            for (int k = 0; k < STEP_BYTES; k++) out[k] |= (uint8_t)((v[i + s * n][k] >> from & mask) << s * bits);
    }
    return out;
}

/* q: 16 rows of codes, `stride` apart, at the chunk's first column. */
static void chunk_pack(const cpu_packed *p, const uint8_t *q, size_t stride, uint8_t *out) {
    uint8_t v[LIN_STEPS][STEP_BYTES];
    for (int r = 0; r < LIN_ROWS; r++)
        for (int s = 0; s < LIN_STEPS; s++) memcpy(&v[s][4 * r], q + (size_t)r * stride + 4 * s, 4);
    switch (p->bits) {
    case 8: memcpy(out, v, sizeof v); break;
    case 3: plane(v, 2, 1, plane(v, 0, 2, out)); break;
    case 5: plane(v, 4, 1, plane(v, 0, 4, out)); break;
    case 6: plane(v, 4, 2, plane(v, 0, 4, out)); break;
    default: plane(v, 0, p->bits, out);
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */
static void scale_store(lin_scale kind, float s, uint8_t *out, int i) {
    uint32_t u;
    uint16_t h = kind == LS_F16 ? f32_to_f16(s) : kind == LS_E4M3 ? f32_to_f16(s * 0x1p-7f) : f32_to_bf16(s);
    memcpy(&u, &s, 4);
    switch (kind) {
    case LS_E8M0: out[i] = (uint8_t)(u >> 23 ? (u >> 23) + 1 : u >> 22); break;
    case LS_E4M3: out[i] = (uint8_t)((h >> 7 & 0x7f) | (h >> 8 & 0x80)); break;
    case LS_F32: memcpy(out + 4 * i, &s, 4); break;
    default: memcpy(out + 2 * i, &h, 2);
    }
}

/* A row's scales as integers times d, recovered by division: s = d·sc is exact in f32, so is its inverse. */
static void super_pack(const cpu_packed *p, const weight_src *src, const uint8_t *row, int lane, const float *s,
                       const float *b, uint8_t *scales) {
    int per = SUPER_COLS / p->group;
    size_t halves = (size_t)LIN_ROWS * 2 * (p->offset ? 2 : 1),
           block_bytes = weight_row_bytes(src) / (size_t)(src->n_in / SUPER_COLS);
    for (int i = 0; i < src->n_in / SUPER_COLS;
         i++, row += block_bytes, scales += halves + (size_t)per * p->group_bytes) {
        uint16_t d = load_u16(row + forms[src->format].d_at), dmin = 0;
        memcpy(scales + 2 * lane, &d, 2);
        if (p->offset) {
            dmin = load_u16(row + forms[src->format].dmin_at);
            memcpy(scales + 2 * (LIN_ROWS + lane), &dmin, 2);
        }
        float fd = f16_to_f32(d), fm = -f16_to_f32(dmin);
        for (int g = 0; g < per; g++) {
            uint8_t *to = scales + halves + (size_t)g * p->group_bytes;
            to[lane] = (uint8_t)(isfinite(fd) && fd != 0 ? (int)(s[i * per + g] / fd) : 0);
            if (p->offset) to[LIN_ROWS + lane] = (uint8_t)(isfinite(fm) && fm != 0 ? (int)(b[i * per + g] / fm) : 0);
        }
    }
}

static void scales_pack(const cpu_packed *p, int lane, const float *s, const float *b, uint8_t *out) {
    for (int g = 0; g < p->n_in / p->group; g++, out += p->group_bytes) {
        scale_store(p->scale, s[g], out, lane);
        if (p->offset) scale_store(p->scale, b[g], out, LIN_ROWS + lane);
    }
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */
static void float_row_pack(const cpu_packed *p, const weight_src *src, int64_t r, int lane, uint8_t *out) {
    size_t n = float_bytes[p->floats];
    const uint8_t *row = (const uint8_t *)src->codes + (size_t)r * weight_row_bytes(src);
    for (int32_t i = 0; i < src->n_in; i++)
        memcpy(out + ((size_t)i * LIN_ROWS + (size_t)lane) * n, row + (size_t)i * n, n);
    if (p->floats != LF_MXFP8) return;
    for (int32_t g = 0; g < src->n_in / 32; g++)
        out[p->scales_at + (size_t)g * LIN_ROWS + (size_t)lane] =
            ((const uint8_t *)src->scales)[r * (src->n_in / 32) + g];
}

/* ---- memory: weights share slabs, so that small matrices too lie in 2 MiB pages (4 KiB ones cost a quarter of the
 * bandwidth). Untouched slab memory costs nothing; a slab goes back when its last weight does. ---- */
typedef struct pack_slab {
    uint8_t *map, *p; /* owns map; p is its first 2 MiB boundary */
    size_t map_bytes, bytes, used;
    int n_weights;
} pack_slab;
enum { PAGE_BYTES = 2 << 20, SLAB_BYTES = 64 << 20, SLAB_ALIGN = 4096 };

static pack_slab *slab_new(size_t n, error *err) {
    pack_slab *s = mem_alloc(sizeof *s);
    s->bytes = MAX(n, (size_t)SLAB_BYTES);
    if (!size_add(s->bytes, PAGE_BYTES, &s->map_bytes) || !(s->map = mem_try(s->map_bytes, 64, err))) {
        error_set(err, ERR_MEMORY, "cannot allocate %zu bytes", n);
        free(s);
        return NULL;
    }
    s->p = s->map + (-(uintptr_t)s->map & (PAGE_BYTES - 1));
    return s;
}

static void slab_free(pack_slab *s) {
    mem_try_free(s->map, s->map_bytes);
    free(s);
}

/* Zeroed memory for p->data_bytes. */
static bool slab_take(cpu_device *d, cpu_packed *p, error *err) {
    pack_slab *s = d->slab;
    if (!s || s->bytes - s->used < p->data_bytes) {
        if (!(s = slab_new(p->data_bytes, err))) return false;
        if (d->slab && d->slab->n_weights == 0) slab_free(d->slab);
        d->slab = s;
    }
    p->slab = s;
    p->data = s->p + s->used;
    s->used = MIN(s->bytes, (s->used + p->data_bytes + SLAB_ALIGN - 1) / SLAB_ALIGN * SLAB_ALIGN);
    s->n_weights++;
    return true;
}

static void slab_give(cpu_device *d, pack_slab *s) {
    if (--s->n_weights > 0) return;
    if (d->slab == s) d->slab = NULL;
    slab_free(s);
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */
typedef struct pack_job {
    const cpu_packed *p;
    const weight_src *src;
    uint8_t *rows; /* owns: for each worker 16 rows of codes, then one row of scales and one of offsets */
    size_t worker_bytes, row_stride;
    uint8_t index[256]; /* the nibble of a code, for lookup formats */
} pack_job;

static void panel_pack(void *arg, int task, int worker) {
    const pack_job *j = arg;
    const cpu_packed *p = j->p;
    int expert = task / p->n_panels, panel = task % p->n_panels, n = MIN((int)LIN_ROWS, p->n_out - panel * LIN_ROWS);
    const weight_src src = weight_expert(j->src, expert);
    uint8_t *out = p->data + (size_t)expert * p->expert_bytes + (size_t)panel * p->panel_bytes;
    for (int lane = 0; p->floats && lane < n; lane++) float_row_pack(p, &src, panel * LIN_ROWS + lane, lane, out);
    if (p->floats) return; /* no rows of codes were allocated */
    uint8_t *q = j->rows + (size_t)worker * j->worker_bytes;
    float *s = (float *)(q + LIN_ROWS * j->row_stride), *b = s + j->row_stride / 16;
    for (int lane = 0; lane < LIN_ROWS; lane++, q += j->row_stride) {
        int64_t r = panel * LIN_ROWS + lane;
        if (lane >= n) {
            memset(q, 0, j->row_stride);
        } else {
            weight_row_codes(&src, r, q, s, b);
            for (int32_t i = 0; p->lookup && i < p->n_in; i++) q[i] = j->index[q[i]];
            if (p->scale == LS_SUPER)
                super_pack(p, &src, (const uint8_t *)src.codes + (size_t)r * weight_row_bytes(&src), lane, s, b,
                           out + p->scales_at);
            else
                scales_pack(p, lane, s, b, out + p->scales_at);
        }
    }
    q -= LIN_ROWS * j->row_stride;
    for (int32_t c = 0; c < p->n_chunks; c++)
        chunk_pack(p, q + (size_t)c * LIN_COLS, j->row_stride, out + (size_t)c * p->chunk_bytes);
}

bool cpu_pack(device *d, weight *w, const weight_src *src, error *err) {
    cpu_packed *p = mem_alloc(sizeof *p);
    pack_job j = {.p = p, .src = src};
    size_t rows_bytes = 0;
    if (!packed_shape(p, src, err)) goto fail;
    if (!lin_scratch_grow((cpu_device *)d, lin_class_of(p, d->num), p->n_in, err)) goto fail;
    if (!p->floats) {
        j.row_stride = (size_t)p->n_chunks * LIN_COLS;
        j.worker_bytes = j.row_stride * LIN_ROWS + 2 * j.row_stride / 16 * sizeof(float);
        rows_bytes = j.worker_bytes * (size_t)pool_size(d->threads);
        if (!(j.rows = mem_try(rows_bytes, 64, err))) goto fail;
    }
    if (!slab_take((cpu_device *)d, p, err)) goto fail;
    for (int i = 15; p->lookup && i >= 0; i--) j.index[p->table[i]] = (uint8_t)i;
    pool_run(d->threads, p->n_experts * p->n_panels, panel_pack, &j);
    mem_try_free(j.rows, rows_bytes);
    w->n_experts = src->n_experts;
    w->n_out = src->n_out;
    w->n_in = src->n_in;
    w->format = src->format;
    w->name = src->name;
    w->bytes = p->data_bytes;
    w->packed = p;
    return true;
fail:
    mem_try_free(j.rows, rows_bytes);
    free(p);
    return error_prefix(err, "packing %s: ", src->name), false;
}

void cpu_unpack(device *d, weight *w) {
    cpu_packed *p = w->packed;
    if (!p) return;
    slab_give((cpu_device *)d, p->slab);
    free(p);
    w->packed = NULL;
}
