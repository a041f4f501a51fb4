/* GGUF versions 2 and 3, little-endian: header, metadata, tensor list, data. Reader of one file's bytes.
 *
 * Source: ggml's docs/gguf.md. Every count is compared with the bytes that are left before anything is allocated from
 * it. Strings borrow the file's bytes, so a vocabulary costs one JSON node a token. Not here: what the keys mean
 * (model/gguf_names.c). */
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

enum {
    KEY_BYTES_MAX = 65535,
    NAME_BYTES_MAX = 1024,
    DIMS_MAX = 4,
    ARRAY_DEPTH_MAX = 4,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 65536,
};

typedef enum gguf_type {
    GT_U8,
    GT_I8,
    GT_U16,
    GT_I16,
    GT_U32,
    GT_I32,
    GT_F32,
    GT_BOOL,
    GT_STRING,
    GT_ARRAY,
    GT_U64,
    GT_I64,
    GT_F64,
    GT_COUNT
} gguf_type;

/* Fewest bytes a value of the type takes in the file. */
static const uint8_t gguf_type_bytes[GT_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

/* ggml's tensor types. Those without a weight format can be listed but not loaded. */
typedef struct ggml_type {
    const char *name; /* NULL: no such type */
    int16_t elems, bytes;
    stored_type kind;
    weight_format format;
} ggml_type;

static const ggml_type ggml_types[] = {
    [0] = {"F32", 1, 4, ST_FLOAT, WF_F32},
    [1] = {"F16", 1, 2, ST_FLOAT, WF_F16},
    [2] = {"Q4_0", 32, 18, ST_BLOCKS, WF_Q4_0},
    [3] = {"Q4_1", 32, 20, ST_BLOCKS, WF_Q4_1},
    [6] = {"Q5_0", 32, 22, ST_BLOCKS, WF_Q5_0},
    [7] = {"Q5_1", 32, 24, ST_BLOCKS, WF_Q5_1},
    [8] = {"Q8_0", 32, 34, ST_BLOCKS, WF_Q8_0},
    [9] = {"Q8_1", 32, 40, ST_OTHER, 0},
    [10] = {"Q2_K", 256, 84, ST_BLOCKS, WF_Q2_K},
    [11] = {"Q3_K", 256, 110, ST_BLOCKS, WF_Q3_K},
    [12] = {"Q4_K", 256, 144, ST_BLOCKS, WF_Q4_K},
    [13] = {"Q5_K", 256, 176, ST_BLOCKS, WF_Q5_K},
    [14] = {"Q6_K", 256, 210, ST_BLOCKS, WF_Q6_K},
    [15] = {"Q8_K", 256, 292, ST_OTHER, 0},
    [16] = {"IQ2_XXS", 256, 66, ST_OTHER, 0},
    [17] = {"IQ2_XS", 256, 74, ST_OTHER, 0},
    [18] = {"IQ3_XXS", 256, 98, ST_OTHER, 0},
    [19] = {"IQ1_S", 256, 50, ST_OTHER, 0},
    [20] = {"IQ4_NL", 32, 18, ST_BLOCKS, WF_IQ4_NL},
    [21] = {"IQ3_S", 256, 110, ST_OTHER, 0},
    [22] = {"IQ2_S", 256, 82, ST_OTHER, 0},
    [23] = {"IQ4_XS", 256, 136, ST_BLOCKS, WF_IQ4_XS},
    [24] = {"I8", 1, 1, ST_INT, 0},
    [25] = {"I16", 1, 2, ST_INT, 0},
    [26] = {"I32", 1, 4, ST_INT, 0},
    [27] = {"I64", 1, 8, ST_INT, 0},
    [28] = {"F64", 1, 8, ST_OTHER, 0},
    [29] = {"IQ1_M", 256, 56, ST_OTHER, 0},
    [30] = {"BF16", 1, 2, ST_FLOAT, WF_BF16},
    [34] = {"TQ1_0", 256, 54, ST_OTHER, 0},
    [35] = {"TQ2_0", 256, 66, ST_OTHER, 0},
    [39] = {"MXFP4", 32, 17, ST_BLOCKS, WF_GGMXFP4},
    [40] = {"NVFP4", 64, 36, ST_OTHER, 0},
    [41] = {"Q1_0", 128, 18, ST_OTHER, 0},
};

typedef struct reader {
    const file_bytes *f;
    size_t at;
    arena *a;
    error *err;
} reader;

static bool bad(reader *r, const char *fmt, ...) PRINTF(2, 3);
static bool bad(reader *r, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(r->err, ERR_FORMAT, "%s: byte %zu: %s", r->f->name, r->at, text);
}

static size_t left(const reader *r) {
    return r->f->n - r->at;
}

static bool take(reader *r, void *out, size_t n, const char *what) {
    if (left(r) < n) return bad(r, "the file ends inside %s", what);
    memcpy(out, r->f->p + r->at, n);
    r->at += n;
    return true;
}

static bool take_string(reader *r, str *out, size_t bytes_max, const char *what) {
    uint64_t n = 0;
    if (!take(r, &n, 8, what)) return false;
    if (n > left(r) || n > bytes_max)
        return bad(r, "%s: a string of %llu bytes; allowed here are at most %zu", what, (unsigned long long)n,
                   MIN(left(r), bytes_max));
    *out = (str){(const char *)r->f->p + r->at, (size_t)n};
    r->at += (size_t)n;
    return true;
}

/* ---- metadata --------------------------------------------------------------------------------------------------- */
static json scalar_value(gguf_type type, const uint8_t *p) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } v;
    memcpy(&v, p, gguf_type_bytes[type]);
    switch (type) {
    case GT_U8: return json_of_int(v.u8);
    case GT_I8: return json_of_int(v.i8);
    case GT_U16: return json_of_int(v.u16);
    case GT_I16: return json_of_int(v.i16);
    case GT_U32: return json_of_int(v.u32);
    case GT_I32: return json_of_int(v.i32);
    case GT_F32: return json_of_real((double)v.f32);
    case GT_BOOL: return json_of_bool(v.u8 != 0);
    case GT_U64: return v.u64 > INT64_MAX ? json_of_real((double)v.u64) : json_of_int((int64_t)v.u64);
    case GT_I64: return json_of_int(v.i64);
    default: return json_of_real(v.f64);
    }
}

static bool value_read(reader *r, uint32_t type, int depth, const char *key, json *out) {
    if (type >= GT_COUNT) return bad(r, "%s: value type %u is not known", key, type);
    if (type == GT_STRING) {
        str s;
        if (!take_string(r, &s, SIZE_MAX, key)) return false;
        *out = json_of_str(s);
        return true;
    }
    if (type != GT_ARRAY) {
        uint8_t raw[8];
        if (!take(r, raw, gguf_type_bytes[type], key)) return false;
        *out = scalar_value(type, raw);
        return true;
    }
    uint32_t item = 0;
    uint64_t n = 0;
    if (!take(r, &item, 4, key) || !take(r, &n, 8, key)) return false;
    if (depth == 0) return bad(r, "%s: arrays are nested deeper than %d", key, ARRAY_DEPTH_MAX);
    if (item >= GT_COUNT) return bad(r, "%s: array item type %u is not known", key, item);
    if (n > left(r) / gguf_type_bytes[item] || n > UINT32_MAX)
        return bad(r, "%s: an array of %llu items does not fit the %zu bytes that are left", key, (unsigned long long)n,
                   left(r));
    json *items = arena_alloc(r->a, (size_t)n * sizeof *items);
    if (!items) return error_set(r->err, ERR_TOO_LARGE, "%s: byte %zu: %s is too large", r->f->name, r->at, key);
    for (uint64_t i = 0; i < n; i++)
        if (!value_read(r, item, depth - 1, key, &items[i])) return false;
    *out = (json){.type = JSON_ARRAY, .n = (uint32_t)n, .items = items};
    return true;
}

static bool metadata_read(reader *r, uint64_t n, json *out) {
    enum { KV_BYTES_MIN = 8 + 1 + 4 + 1 };
    if (n > left(r) / KV_BYTES_MIN)
        return bad(r, "%llu metadata entries do not fit the %zu bytes that are left", (unsigned long long)n, left(r));
    json_member *m = arena_alloc(r->a, (size_t)n * sizeof *m);
    if (!m) return error_set(r->err, ERR_TOO_LARGE, "%s: too much metadata", r->f->name);
    map *seen = map_new((size_t)n);
    bool ok = true;
    for (uint64_t i = 0; ok && i < n; i++) {
        uint32_t type = 0;
        char key[128];
        ok = take_string(r, &m[i].key, KEY_BYTES_MAX, "a metadata key");
        if (!ok) break;
        snprintf(key, sizeof key, "%.*s", (int)MIN(m[i].key.n, sizeof key - 1), m[i].key.p);
        if (m[i].key.n == 0)
            ok = bad(r, "an empty metadata key");
        else if (memchr(m[i].key.p, 0, m[i].key.n))
            ok = bad(r, "a metadata key with a NUL byte (%s)", key);
        else if (map_get(seen, m[i].key, NULL))
            ok = bad(r, "the metadata key %s occurs twice", key);
        else
            ok = take(r, &type, 4, key) && value_read(r, type, ARRAY_DEPTH_MAX, key, &m[i].value);
        if (ok && str_is(m[i].key, "general.alignment") && type != GT_U32)
            ok = bad(r, "general.alignment has value type %u; it must be a u32", type);
        if (ok) map_set(seen, m[i].key, 1);
    }
    map_free(seen);
    *out = (json){.type = JSON_OBJECT, .n = (uint32_t)n, .members = m};
    return ok;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */
/* Name, dimensions, type and offset of one tensor; t->offset is still relative to the data. */
static bool tensor_read(reader *r, stored_tensor *t) {
    uint32_t ndim = 0, type = 0;
    char name[128];
    if (!take_string(r, &t->name, NAME_BYTES_MAX, "a tensor name")) return false;
    snprintf(name, sizeof name, "%.*s", (int)MIN(t->name.n, sizeof name - 1), t->name.p);
    if (t->name.n == 0) return bad(r, "a tensor with an empty name");
    t->name.p = arena_copy(r->a, t->name.p, t->name.n); /* with a NUL: weight_src.name is a C string */
    if (!t->name.p) return error_set(r->err, ERR_TOO_LARGE, "%s: too many tensor names", r->f->name);
    if (!take(r, &ndim, 4, name)) return false;
    if (ndim == 0 || ndim > DIMS_MAX)
        return bad(r, "tensor %s: %u dimensions; allowed are 1 to %d", name, ndim, DIMS_MAX);
    size_t elems = 1;
    for (uint32_t i = 0; i < ndim; i++) {
        uint64_t d = 0;
        if (!take(r, &d, 8, name)) return false;
        if (d == 0 || d > INT64_MAX || !size_mul(elems, (size_t)d, &elems))
            return bad(r, "tensor %s: dimension %u is %llu", name, i, (unsigned long long)d);
        t->dim[ndim - 1 - i] = (int64_t)d;
    }
    if (!take(r, &type, 4, name) || !take(r, &t->offset, 8, name)) return false;
    if (type >= COUNT(ggml_types) || !ggml_types[type].name)
        return bad(r, "tensor %s: type %u is not known", name, type);
    const ggml_type *g = &ggml_types[type];
    if (t->dim[ndim - 1] % g->elems)
        return bad(r, "tensor %s: rows of %lld are not a multiple of %s's block of %d", name,
                   (long long)t->dim[ndim - 1], g->name, g->elems);
    if (!size_mul(elems / (size_t)g->elems, (size_t)g->bytes, &t->bytes)) return bad(r, "tensor %s: too large", name);
    t->ndim = (int32_t)ndim;
    t->kind = g->kind;
    t->format = g->format;
    t->type_name = g->name;
    t->file = r->f->index;
    return true;
}

static bool tensors_read(reader *r, uint64_t n, tensor_list *out) {
    enum { TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8 };
    if (n > left(r) / TENSOR_BYTES_MIN)
        return bad(r, "%llu tensors do not fit the %zu bytes that are left", (unsigned long long)n, left(r));
    for (uint64_t i = 0; i < n; i++) {
        stored_tensor t = {0};
        if (!tensor_read(r, &t)) return false;
        *tensor_list_add(out) = t;
    }
    return true;
}

/* The list is known: offsets become places in the file. */
static bool tensors_place(reader *r, tensor_list *list, size_t first, size_t alignment) {
    size_t data = (r->at + alignment - 1) / alignment * alignment;
    size_t room = data < r->f->n ? r->f->n - data : 0;
    for (size_t i = first; i < list->n; i++) {
        stored_tensor *t = &list->p[i];
        int name_n = (int)MIN(t->name.n, (size_t)128);
        if (t->offset % alignment)
            return bad(r, "tensor %.*s: offset %llu is not a multiple of the alignment %zu", name_n, t->name.p,
                       (unsigned long long)t->offset, alignment);
        if (t->offset > room || t->bytes > room - t->offset)
            return bad(
                r, "tensor %.*s: %zu bytes at offset %llu do not fit the %zu bytes of data (which start at byte %zu)",
                name_n, t->name.p, t->bytes, (unsigned long long)t->offset, room, data);
        t->offset += data;
        t->p = r->f->p + t->offset;
    }
    return tensors_disjoint(r->f, list, first, r->err);
}

static bool header_read(reader *r, uint64_t *n_tensors, uint64_t *n_kv) {
    uint8_t magic[4];
    uint32_t version = 0;
    if (!take(r, magic, 4, "the header")) return false;
    if (memcmp(magic, "GGUF", 4) != 0) return r->at = 0, bad(r, "not a GGUF file (it must begin with \"GGUF\")");
    if (!take(r, &version, 4, "the header")) return false;
    r->at = 4;
    if (version && (version & 0xffff) == 0) return bad(r, "big-endian GGUF is not supported");
    if (version < 2 || version > 3) return bad(r, "GGUF version %u; supported are 2 and 3", version);
    r->at = 8;
    return take(r, n_tensors, 8, "the header") && take(r, n_kv, 8, "the header");
}

bool gguf_parse(const file_bytes *f, arena *a, tensor_list *out, const json **metadata, error *err) {
    reader r = {f, 0, a, err};
    uint64_t n_tensors = 0, n_kv = 0;
    size_t first = out->n;
    json *meta = arena_alloc(a, sizeof *meta);
    if (!meta) return error_set(err, ERR_TOO_LARGE, "%s: too much metadata", f->name);
    if (!header_read(&r, &n_tensors, &n_kv) || !metadata_read(&r, n_kv, meta)) return false;
    int64_t alignment = json_int(json_get(meta, "general.alignment"), ALIGNMENT_DEFAULT);
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)))
        return bad(&r, "general.alignment is %lld; allowed are powers of two from %d to %d", (long long)alignment,
                   ALIGNMENT_MIN, ALIGNMENT_MAX);
    int64_t parts = json_int(json_get(meta, "split.count"), 1);
    if (parts > 1)
        return error_set(err, ERR_UNSUPPORTED,
                         "%s is one of %lld parts; join them first (llama.cpp's gguf-split --merge)", f->name,
                         (long long)parts);
    *metadata = meta;
    return tensors_read(&r, n_tensors, out) && tensors_place(&r, out, first, (size_t)alignment);
}
