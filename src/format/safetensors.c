/* safetensors: an 8-byte header length, a JSON header, then the data. Reader of one file's bytes, and the writer.
 *
 * Source: the format's description at github.com/huggingface/safetensors. Rules beyond it: no two tensors share bytes.
 * Holes are allowed. A name twice in one header is the last one, as JSON readers have it. Not here: directories and
 * shards (checkpoint.c). */
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

enum { HEADER_BYTES_MAX = 100000000 /* the format's own limit */ };

typedef struct st_dtype {
    const char *name;
    uint8_t bytes;
    stored_type kind;
    weight_format format; /* ST_FLOAT only */
} st_dtype;

static const st_dtype st_dtypes[] = {
    {"F32", 4, ST_FLOAT, WF_F32}, {"BF16", 2, ST_FLOAT, WF_BF16}, {"F16", 2, ST_FLOAT, WF_F16},
    {"U32", 4, ST_INT, 0},        {"U8", 1, ST_INT, 0},           {"I32", 4, ST_INT, 0},
    {"I64", 8, ST_INT, 0},        {"U64", 8, ST_INT, 0},          {"I16", 2, ST_INT, 0},
    {"U16", 2, ST_INT, 0},        {"I8", 1, ST_INT, 0},           {"BOOL", 1, ST_OTHER, 0},
    {"F64", 8, ST_OTHER, 0},      {"F8_E4M3", 1, ST_OTHER, 0},    {"F8_E5M2", 1, ST_OTHER, 0},
    {"F8_E8M0", 1, ST_OTHER, 0},  {"C64", 8, ST_OTHER, 0},
};

static const st_dtype *st_dtype_find(str name) {
    for (size_t i = 0; i < COUNT(st_dtypes); i++)
        if (str_is(name, st_dtypes[i].name)) return &st_dtypes[i];
    return NULL;
}

#define BAD(...) (entry_error(f, name, err, __VA_ARGS__))
static bool entry_error(const file_bytes *f, str name, error *err, const char *fmt, ...) PRINTF(4, 5);
static bool entry_error(const file_bytes *f, str name, error *err, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(err, ERR_FORMAT, "%s: tensor %.*s: %s", f->name, (int)MIN(name.n, (size_t)200), name.p, text);
}

/* One header entry {"dtype","shape","data_offsets"}; data is the byte where data_offsets count from. */
static bool entry_read(const file_bytes *f, size_t data, str name, const json *e, stored_tensor *t, error *err) {
    const json *shape = json_get(e, "shape"), *offsets = json_get(e, "data_offsets");
    str type = json_str(json_get(e, "dtype"), STR(""));
    const st_dtype *d = st_dtype_find(type);
    if (!d) return BAD("dtype \"%.*s\" is not known", (int)MIN(type.n, (size_t)32), type.p);
    if (!json_is(shape, JSON_ARRAY)) return BAD("shape is %s, not an array", json_type_name(shape));
    if (shape->n > COUNT(t->dim)) return BAD("%u dimensions; at most %zu are allowed", shape->n, COUNT(t->dim));
    size_t bytes = d->bytes;
    for (uint32_t i = 0; i < shape->n; i++) {
        if (!json_is(&shape->items[i], JSON_INT) || shape->items[i].integer < 0)
            return BAD("shape[%u] is not a size (an integer from 0)", i);
        t->dim[i] = shape->items[i].integer;
        if (!size_mul(bytes, (size_t)t->dim[i], &bytes)) return BAD("its size is larger than 2^64 bytes");
    }
    if (!json_is(offsets, JSON_ARRAY) || offsets->n != 2 || !json_is(&offsets->items[0], JSON_INT) ||
        !json_is(&offsets->items[1], JSON_INT))
        return BAD("data_offsets must be two integers");
    int64_t from = offsets->items[0].integer, to = offsets->items[1].integer;
    size_t room = f->n - data;
    if (from < 0 || from > to || (uint64_t)to > room)
        return BAD("data_offsets [%lld,%lld] are outside the %zu bytes of data (which start at byte %zu)",
                   (long long)from, (long long)to, room, data);
    if ((uint64_t)(to - from) != bytes)
        return BAD("at byte %zu: data_offsets span %lld bytes, but its dtype and shape need %zu", data + (size_t)from,
                   (long long)(to - from), bytes);
    t->name = name;
    t->kind = d->kind;
    t->format = d->format;
    t->type_name = d->name;
    t->ndim = (int32_t)shape->n;
    t->p = f->p + data + from;
    t->bytes = bytes;
    t->offset = data + (uint64_t)from;
    t->file = f->index;
    return true;
}

static bool entries_read(const file_bytes *f, size_t data, const json *header, arena *a, tensor_list *out, error *err) {
    size_t first = out->n;
    for (uint32_t i = 0; i < header->n; i++) {
        const json_member *m = &header->members[i];
        if (str_is(m->key, "__metadata__")) continue;
        if (m->key.n == 0) return error_set(err, ERR_FORMAT, "%s: byte 8: a tensor with an empty name", f->name);
        stored_tensor t = {0};
        if (!entry_read(f, data, m->key, &m->value, &t, err)) return false;
        char *name = arena_copy(a, m->key.p, m->key.n); /* the header's own arena goes away */
        if (!name) return error_set(err, ERR_TOO_LARGE, "%s: too many tensor names", f->name);
        t.name.p = name;
        *tensor_list_add(out) = t;
    }
    return tensors_disjoint(f, out, first, err);
}

bool safetensors_parse(const file_bytes *f, arena *a, tensor_list *out, error *err) {
    uint64_t length = 0;
    if (f->n < 8) return error_set(err, ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file", f->name, f->n);
    memcpy(&length, f->p, 8);
    if (length < 2 || length > f->n - 8 || length > HEADER_BYTES_MAX)
        return error_set(err, ERR_FORMAT, "%s: byte 0: header length %llu; allowed are 2 to %zu", f->name,
                         (unsigned long long)length, MIN(f->n - 8, (size_t)HEADER_BYTES_MAX));
    if (f->p[8] != '{') return error_set(err, ERR_FORMAT, "%s: byte 8: the header does not begin with '{'", f->name);
    arena *tmp = arena_new(0);
    json_limits limits = {.depth_max = 8};
    const json *header = json_read(tmp, (str){(const char *)f->p + 8, (size_t)length}, &limits, err);
    bool ok = false;
    if (!header) {
        error_prefix(err, "%s: header at byte 8: ", f->name);
        if (err) err->code = ERR_FORMAT;
    } else {
        ok = entries_read(f, 8 + (size_t)length, header, a, out, err);
    }
    arena_free(tmp);
    return ok;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */
static size_t out_bytes(const safetensors_out *t) {
    size_t n = dtype_bytes(t->type);
    for (int32_t i = 0; i < t->ndim; i++) n *= (size_t)t->dim[i];
    return n;
}

static void header_write(buf *b, const safetensors_out *t, size_t n) {
    size_t at = 0;
    buf_add(b, (char[8]){0}, 8);
    buf_putc(b, '{');
    for (size_t i = 0; i < n; i++) {
        if (i) buf_putc(b, ',');
        json_write_string(b, str_of(t[i].name));
        buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", dtype_name(t[i].type));
        for (int32_t d = 0; d < t[i].ndim; d++) buf_printf(b, "%s%lld", d ? "," : "", (long long)t[i].dim[d]);
        buf_printf(b, "],\"data_offsets\":[%zu,%zu]}", at, at + out_bytes(&t[i]));
        at += out_bytes(&t[i]);
    }
    buf_putc(b, '}');
    while (b->n % 8) buf_putc(b, ' ');
    uint64_t length = b->n - 8;
    memcpy(b->p, &length, 8);
}

bool safetensors_write(const char *path, const safetensors_out *t, size_t n, error *err) {
    buf header = {0};
    header_write(&header, t, n);
    str *parts = mem_alloc((n + 1) * sizeof *parts);
    parts[0] = buf_view(&header);
    for (size_t i = 0; i < n; i++) parts[i + 1] = (str){t[i].p, out_bytes(&t[i])};
    bool ok = file_write_parts(path, parts, n + 1, err);
    free(parts);
    buf_free(&header);
    return ok;
}
