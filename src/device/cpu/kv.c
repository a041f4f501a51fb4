/* Keys and values on the CPU: the pools of pages, their layout and their life. Not here: writing rows and attention
 * (attend_body.h), who owns which page (engine/). See docs/attention.md. */
#include <stdlib.h>
#include <sys/mman.h>
#include "internal.h"

enum { KV_HEADS_MAX = 1024, PARTS_BYTES = 64 << 20 };

static int32_t pad16(int32_t n) {
    return (n + 15) & ~15;
}

static bool code_check(const kv_code *c, const char *what, int layer, error *err) {
    bool known = c->rotated ? c->bits <= 8 && kv_levels[c->bits]
                            : c->bits >= 2 && c->bits <= 8 && c->bits != 7 &&
                                  (c->group == 32 || c->group == 64 || c->group == 128);
    return !c->bits || known ||
           error_set(
               err, ERR_UNSUPPORTED,
               "%s of KV layer %d in %d bits%s, group %d; affine codes have 2, 3, 4, 5, 6 or 8 bits and groups of "
               "32, 64 or 128, rotated ones 2, 3, 4, 5 or 8 bits",
               what, layer, c->bits, c->rotated ? " rotated" : "", c->group);
}

static bool spec_check(const kv_spec *s, error *err) {
    if (s->type != DT_F16 && s->type != DT_BF16 && s->type != DT_F32)
        return error_set(err, ERR_UNSUPPORTED, "KV cache type %s: f16, bf16 or f32", dtype_name(s->type));
    if (s->n_groups < 0 || s->n_groups > KV_GROUPS) /* 0: every layer has recurrent state instead */
        return error_set(err, ERR_INTERNAL, "KV cache of %d groups: 0 to %d", s->n_groups, KV_GROUPS);
    for (int i = 0; i < s->n_layers; i++) {
        const kv_layer *l = &s->layer[i];
        if (l->heads < 1 || l->heads > KV_HEADS_MAX || l->k_width < 1 || l->k_width > KV_WIDTH_MAX || l->v_width < 0 ||
            l->v_width > KV_WIDTH_MAX || (l->latent && (l->heads > 1 || l->v_width > l->k_width)) || l->group < 0 ||
            l->group >= s->n_groups)
            return error_set(
                err, ERR_UNSUPPORTED,
                "KV layer %d: %d heads of %d and %d columns in group %d; at most %d heads, %d columns, %d groups", i,
                l->heads, l->k_width, l->v_width, l->group, KV_HEADS_MAX, KV_WIDTH_MAX, s->n_groups);
        if (!code_check(&l->k, "keys", i, err) || !code_check(&l->v, "values", i, err)) return false;
        if (l->k.rotated || (l->latent ? l->v.bits > 0 : !l->k.bits != !l->v.bits) || (l->k.bits && !l->v_width))
            return error_set(err, ERR_UNSUPPORTED,
                             "KV layer %d: keys and values are coded together, only values rotated, and an indexer's "
                             "keys not at all",
                             i);
    }
    return true;
}

/* One part of a head, from `at` on. Rows: values, and latent layers' keys; otherwise keys lie transposed. */
static kv_part part_make(kv_code how, int32_t width, bool rows, dtype type, size_t at) {
    kv_part p = {.how = how, .width = width, .pad = pad16(width), .at = at};
    size_t columns = (size_t)(rows ? p.pad : width), codes = columns * dtype_bytes(type) * KV_PAGE;
    if (how.bits) {
        p.groups = how.rotated ? __builtin_popcount((unsigned)p.pad) : (width + how.group - 1) / how.group;
        codes = (columns + 7) / 8 * how.bits * KV_PAGE;
    }
    size_t scales = (size_t)p.groups * KV_PAGE * dtype_bytes(type);
    p.scale_at = at + codes;
    p.offset_at = p.scale_at + scales;
    p.end = p.offset_at + (how.rotated ? 0 : scales);
    return p;
}

static cpu_kv_layer layer_make(const kv_layer *l, dtype type, bool both) {
    cpu_kv_layer c = {.dim = *l, .k_pad = pad16(l->k_width), .v_pad = pad16(l->v_width), .both = both && l->k.bits};
    int32_t values = l->latent ? 0 : l->v_width;
    c.k = part_make(l->k, l->k_width, l->latent, type, 0);
    c.v = part_make(l->v, values, true, type, c.k.end);
    c.head_bytes = c.v.end;
    if (!c.both) return c;
    c.k_plain = part_make((kv_code){0}, l->k_width, l->latent, type, c.head_bytes);
    c.v_plain = part_make((kv_code){0}, values, true, type, c.k_plain.end);
    c.head_bytes = c.v_plain.end;
    return c;
}

size_t cpu_kv_page_bytes(device *d, const kv_spec *spec, int group) {
    size_t n = 0;
    for (int i = 0; i < spec->n_layers; i++)
        if (spec->layer[i].group == group)
            n += (size_t)spec->layer[i].heads * layer_make(&spec->layer[i], spec->type, spec->both).head_bytes;
    return (n + OS_PAGE - 1) & ~(size_t)(OS_PAGE - 1);
}

/* Temporaries of one worker: q, scores, two outputs, running maxima and sums, and one page of K and V as f32. */
static size_t worker_bytes(const kv_spec *s) {
    size_t k = 0, v = 0, rows = 0;
    for (int i = 0; i < s->n_layers; i++) {
        k = MAX(k, (size_t)pad16(s->layer[i].k_width));
        v = MAX(v, (size_t)pad16(s->layer[i].v_width));
        rows = MAX(rows, (size_t)pad16(s->layer[i].latent ? s->layer[i].k_width : s->layer[i].v_width));
    }
    size_t floats = ATTN_ROWS * (k + KV_PAGE + 2 * v + 4) + KV_PAGE * (k + rows);
    return (floats * sizeof(float) + 255) & ~(size_t)255;
}

/* An indexer's scores: of INDEX_ROWS rows, for as many positions as one sequence could have. */
static size_t scores_bytes(const kv_spec *s) {
    size_t pages = 0;
    for (int i = 0; i < s->n_layers; i++)
        if (!s->layer[i].v_width) pages = MAX(pages, (size_t)s->n_pages[s->layer[i].group]);
    return pages * KV_PAGE * INDEX_ROWS * sizeof(float);
}

/* Partial results when few tiles share out their chunks (attend_body.h): attend_run's condition, at its worst. */
static size_t parts_touched(const device *d, const kv_spec *s, int32_t context) {
    size_t most = 0, tiles = SPLIT_TILES * (size_t)pool_size(d->threads) - 1;
    if (pool_size(d->threads) == 1) return 0;
    for (int i = 0; i < s->n_layers; i++) {
        const kv_layer *l = &s->layer[i];
        int32_t window = s->window[l->group],
                see = window ? (int32_t)MIN((int64_t)context, (int64_t)window + d->rows_max) : context;
        size_t chunks = (size_t)see / (ATTN_CHUNK * KV_PAGE) + 2;
        if ((size_t)l->heads <= tiles)
            most = MAX(most, tiles * chunks * ATTN_ROWS * (size_t)(pad16(l->v_width) + 2) * sizeof(float));
    }
    return MIN(most, (size_t)PARTS_BYTES);
}

size_t cpu_kv_work_bytes(device *d, const kv_spec *spec, int32_t context) {
    size_t scores = 0;
    for (int i = 0; i < spec->n_layers; i++)
        if (!spec->layer[i].v_width) scores = ((size_t)context + KV_PAGE) * INDEX_ROWS * sizeof(float);
    return worker_bytes(spec) * (size_t)pool_size(d->threads) + parts_touched(d, spec, context) + scores;
}

/* The same for every cache: pages written by one are read by another. */
static float *signs_make(void) {
    float *s = mem_alloc(sizeof *s * KV_WIDTH_MAX);
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < KV_WIDTH_MAX; i++) { /* splitmix64 */
        uint64_t z = x += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        s[i] = (z ^ z >> 31) >> 63 ? -1.0f : 1.0f;
    }
    return s;
}

kv_cache *cpu_kv_new(device *d, const kv_spec *spec, error *err) {
    if (!spec_check(spec, err)) return NULL;
    kv_cache *kv = mem_alloc(sizeof *kv);
    kv->type = spec->type;
    kv->n_layers = spec->n_layers;
    kv->n_groups = spec->n_groups;
    kv->layer = mem_alloc(sizeof *kv->layer * (size_t)spec->n_layers);
    size_t offset[KV_GROUPS] = {0};
    for (int i = 0; i < spec->n_layers; i++) {
        const kv_layer *l = &spec->layer[i];
        kv->layer[i] = layer_make(l, spec->type, spec->both);
        kv->layer[i].offset = offset[l->group];
        offset[l->group] += (size_t)l->heads * kv->layer[i].head_bytes;
    }
    kv->sign = signs_make();
    for (int g = 0; g < spec->n_groups; g++) {
        kv->n_pages[g] = spec->n_pages[g];
        kv->page_bytes[g] = cpu_kv_page_bytes(d, spec, g);
        if (spec->n_pages[g] < 0 || !size_mul(kv->page_bytes[g], (size_t)spec->n_pages[g], &kv->pool_bytes[g])) {
            error_set(err, ERR_MEMORY, "KV cache of %d pages of %zu bytes", spec->n_pages[g], kv->page_bytes[g]);
            goto fail;
        }
        if (!kv->pool_bytes[g]) continue;
        if (!(kv->pool[g] = mem_try(kv->pool_bytes[g], OS_PAGE, err))) goto fail;
    }
    kv->worker_bytes = worker_bytes(spec);
    kv->work_bytes = kv->worker_bytes * (size_t)pool_size(d->threads);
    kv->parts_bytes = PARTS_BYTES; /* address space; touched only as far as one step needs */
    kv->scores_bytes = scores_bytes(spec);
    if (kv->scores_bytes && !(kv->scores = mem_try(kv->scores_bytes, OS_PAGE, err))) goto fail;
    if (!(kv->work = mem_try(kv->work_bytes, OS_PAGE, err)) || !(kv->parts = mem_try(kv->parts_bytes, OS_PAGE, err)))
        goto fail;
    madvise(kv->parts, kv->parts_bytes, MADV_NOHUGEPAGE); /* touched here and there */
    return kv;
fail:
    error_prefix(err, "KV cache: ");
    cpu_kv_free(d, kv);
    return NULL;
}

void cpu_kv_free(device *d, kv_cache *kv) {
    if (!kv) return;
    for (int g = 0; g < kv->n_groups; g++) mem_try_free(kv->pool[g], kv->pool_bytes[g]);
    mem_try_free(kv->work, kv->work_bytes);
    mem_try_free(kv->parts, kv->parts_bytes);
    mem_try_free(kv->scores, kv->scores_bytes);
    free(kv->layer);
    free(kv->sign);
    free(kv);
}

static uint8_t *page_at(kv_cache *kv, int group, int32_t page) {
    return kv->pool[group] + (size_t)page * kv->page_bytes[group];
}

void cpu_kv_copy(device *d, kv_cache *kv, int group, int32_t to, int32_t from) {
    memcpy(page_at(kv, group, to), page_at(kv, group, from), kv->page_bytes[group]);
}
void cpu_kv_read(device *d, kv_cache *kv, int group, int32_t page, void *host) {
    memcpy(host, page_at(kv, group, page), kv->page_bytes[group]);
}
void cpu_kv_write(device *d, kv_cache *kv, int group, int32_t page, const void *host) {
    memcpy(page_at(kv, group, page), host, kv->page_bytes[group]);
}
void cpu_kv_discard(device *d, kv_cache *kv, int group, int32_t page) {
    /* From now on in small pages: a large one would bring back with its first touch all that was given back in it. */
    if (!kv->small[group]) madvise(kv->pool[group], kv->pool_bytes[group], MADV_NOHUGEPAGE);
    kv->small[group] = true;
    madvise(page_at(kv, group, page), kv->page_bytes[group], MADV_DONTNEED);
}
uint64_t cpu_kv_saturated(device *d, const kv_cache *kv) {
    return kv->n_saturated;
}
