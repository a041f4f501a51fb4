/* A checkpoint: the files of a directory or one GGUF file, mapped, with all tensors under their names.
 *
 * Parsing one file: safetensors.c, gguf.c. MLX quantisation: mlx.c. Not here: what a tensor is for (model/). */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

/* Metadata, names and JSON files of one checkpoint; the largest tokenizer.json known (33 MB) takes a third of it. */
static const size_t ARENA_BYTES_MAX = (size_t)1 << 30;
enum { JSON_FILE_BYTES_MAX = 256 << 20, SHARDS_MAX = 4096 };

/* ---- tensors ---------------------------------------------------------------------------------------------------- */
stored_tensor *tensor_list_add(tensor_list *l) {
    if (l->n == l->cap) {
        l->cap = l->cap * 2 + 64;
        l->p = mem_resize(l->p, l->cap * sizeof *l->p);
    }
    l->p[l->n] = (stored_tensor){0};
    return &l->p[l->n++];
}

const char *dims_text(const int64_t *dim, int32_t n, char out[192]) {
    int at = snprintf(out, 192, "[");
    for (int32_t i = 0; i < n; i++)
        at += snprintf(out + at, 192 - (size_t)at, "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(out + at, 192 - (size_t)at, "]");
    return out;
}

bool tensor_error(const checkpoint *c, const stored_tensor *t, error *err, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(err, ERR_FORMAT, "%s: tensor %.*s at byte %llu: %s", c->files[t->file].name,
                     (int)MIN(t->name.n, (size_t)200), t->name.p, (unsigned long long)t->offset, text);
}

static int by_offset(const void *a, const void *b) {
    const stored_tensor *x = *(const stored_tensor *const *)a, *y = *(const stored_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

bool tensors_disjoint(const file_bytes *f, const tensor_list *list, size_t from, error *err) {
    size_t n = 0;
    const stored_tensor **order = mem_alloc((list->n - from) * sizeof *order);
    for (size_t i = from; i < list->n; i++)
        if (list->p[i].bytes) order[n++] = &list->p[i];
    qsort(order, n, sizeof *order, by_offset);
    bool ok = true;
    for (size_t i = 1; ok && i < n; i++) {
        const stored_tensor *a = order[i - 1], *b = order[i];
        if (b->offset - a->offset < a->bytes)
            ok = error_set(err, ERR_FORMAT, "%s: tensor %.*s at byte %llu lies inside %.*s", f->name,
                           (int)MIN(b->name.n, 200u), b->name.p, (unsigned long long)b->offset,
                           (int)MIN(a->name.n, 200u), a->name.p);
    }
    free(order);
    return ok;
}

bool tensor_matrix(const checkpoint *c, const stored_tensor *t, weight_src *out, error *err) {
    char dims[192];
    bool ok = t->ndim >= 1 && t->ndim <= 3;
    for (int32_t i = 0; ok && i < t->ndim; i++) ok = t->dim[i] > 0 && t->dim[i] <= INT32_MAX;
    if (!ok)
        return tensor_error(
            c, t, err, "shape %s is not a matrix [in], [out,in] or [experts,out,in] with sizes from 1 to 2147483647",
            dims_text(t->dim, t->ndim, dims));
    out->n_experts = t->ndim == 3 ? (int32_t)t->dim[0] : 1;
    out->n_out = t->ndim > 1 ? (int32_t)t->dim[t->ndim - 2] : 1; /* GGUF stores a matrix of one row as a vector */
    out->n_in = (int32_t)t->dim[t->ndim - 1];
    out->codes = t->p;
    return true;
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */
static checkpoint *checkpoint_new(checkpoint_kind kind, const char *path) {
    checkpoint *c = mem_alloc(sizeof *c);
    c->kind = kind;
    c->path = mem_strdup(path);
    c->a = arena_new(ARENA_BYTES_MAX);
    return c;
}

void checkpoint_close(checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->n_files; i++) {
        if (c->files[i].mapped) file_map_close(&c->files[i].map);
        free(c->files[i].name);
    }
    free(c->files);
    free(c->tensors.p);
    map_free(c->by_name);
    arena_free(c->a);
    free(c->path);
    free(c);
}

static checkpoint_file *file_add(checkpoint *c, const char *name) {
    c->files = mem_resize(c->files, (c->n_files + 1) * sizeof *c->files);
    checkpoint_file *f = &c->files[c->n_files++];
    *f = (checkpoint_file){.name = mem_strdup(name)};
    return f;
}

static bool file_parse(checkpoint *c, size_t i, error *err) {
    const checkpoint_file *f = &c->files[i];
    file_bytes b = {f->map.p, f->map.n, f->name, (int32_t)i};
    if (c->kind == CHECKPOINT_GGUF) return gguf_parse(&b, c->a, &c->tensors, &c->config, err);
    return safetensors_parse(&b, c->a, &c->tensors, err);
}

static bool file_map_and_parse(checkpoint *c, const char *path, error *err) {
    checkpoint_file *f = file_add(c, path);
    f->mapped = file_map_open(&f->map, path, err);
    return f->mapped && file_parse(c, c->n_files - 1, err);
}

static bool names_index(checkpoint *c, error *err) {
    c->by_name = map_new(c->tensors.n);
    for (size_t i = 0; i < c->tensors.n; i++) {
        const stored_tensor *t = &c->tensors.p[i];
        uint64_t before;
        if (map_get(c->by_name, t->name, &before))
            return tensor_error(c, t, err, "a tensor of this name is also in %s at byte %llu",
                                c->files[c->tensors.p[before].file].name,
                                (unsigned long long)c->tensors.p[before].offset);
        map_set(c->by_name, t->name, i);
    }
    return true;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names of model*.safetensors in a directory, sorted; SIZE_MAX on error. The index file is not consulted. */
static size_t shards_list(const char *dir, char *names[SHARDS_MAX], error *err) {
    DIR *d = opendir(dir);
    size_t n = 0;
    if (!d) return error_errno(err, ERR_IO, "cannot list %s", dir), SIZE_MAX;
    for (struct dirent *e; n < SHARDS_MAX && (e = readdir(d));) {
        str name = str_of(e->d_name);
        if (str_starts(name, STR("model")) && str_ends(name, STR(".safetensors"))) names[n++] = mem_strdup(e->d_name);
    }
    closedir(d);
    qsort(names, n, sizeof *names, by_text);
    return n;
}

static bool shards_open(checkpoint *c, error *err) {
    char **names = mem_alloc(SHARDS_MAX * sizeof *names);
    size_t n = shards_list(c->path, names, err);
    bool ok = n != SIZE_MAX;
    if (n == 0) ok = error_set(err, ERR_NOT_FOUND, "%s has no model*.safetensors", c->path);
    for (size_t i = 0; ok && i < n; i++) {
        char *path = path_join(c->path, names[i]);
        ok = file_map_and_parse(c, path, err);
        free(path);
    }
    for (size_t i = 0; n != SIZE_MAX && i < n; i++) free(names[i]);
    free(names);
    return ok;
}

static bool config_check(checkpoint *c, error *err) {
    if (json_is(c->config, JSON_OBJECT)) return true;
    return error_set(err, ERR_FORMAT, "%s: config.json is %s, not an object", c->path, json_type_name(c->config));
}

static bool directory_open(checkpoint *c, error *err) {
    error own = {0};
    c->config = checkpoint_json(c, "config.json", &own);
    if (!c->config) {
        if (own.code) return error_set(err, own.code, "%s", own.msg);
        return error_set(err, ERR_NOT_FOUND, "%s has no config.json", c->path);
    }
    return config_check(c, err) && shards_open(c, err);
}

static checkpoint *checkpoint_finish(checkpoint *c, bool ok, error *err) {
    if (ok && names_index(c, err)) return c;
    checkpoint_close(c);
    return NULL;
}

checkpoint *checkpoint_open(const char *path, error *err) {
    bool dir = dir_exists(path);
    if (!dir && str_ends(str_of(path), STR(".safetensors"))) {
        error_set(err, ERR_FORMAT, "%s: a safetensors model is its directory (with config.json), not one of its files",
                  path);
        return NULL;
    }
    checkpoint *c = checkpoint_new(dir ? CHECKPOINT_SAFETENSORS : CHECKPOINT_GGUF, path);
    return checkpoint_finish(c, dir ? directory_open(c, err) : file_map_and_parse(c, path, err), err);
}

checkpoint *checkpoint_of_bytes(checkpoint_kind kind, str config, const uint8_t *p, size_t n, error *err) {
    checkpoint *c = checkpoint_new(kind, "memory");
    file_add(c, "memory")->map = (file_map){p, n};
    bool ok = true;
    if (kind == CHECKPOINT_SAFETENSORS) {
        c->config = json_read(c->a, config, NULL, err);
        ok = c->config && config_check(c, err);
    }
    return checkpoint_finish(c, ok && file_parse(c, 0, err), err);
}

/* ---- what is inside --------------------------------------------------------------------------------------------- */
checkpoint_kind checkpoint_type(const checkpoint *c) {
    return c->kind;
}

const char *checkpoint_path(const checkpoint *c) {
    return c->path;
}

const json *checkpoint_config(const checkpoint *c) {
    return c->config;
}

bool checkpoint_text(checkpoint *c, const char *name, buf *out, error *err) {
    if (c->kind == CHECKPOINT_GGUF) return false;
    char *path = path_join(c->path, name);
    bool ok = file_exists(path) && file_read(out, path, JSON_FILE_BYTES_MAX, err);
    free(path);
    return ok;
}

const json *checkpoint_json(checkpoint *c, const char *name, error *err) {
    buf text = {0};
    const json *j = NULL;
    if (checkpoint_text(c, name, &text, err)) {
        error own = {0};
        j = json_read(c->a, buf_view(&text), NULL, &own);
        if (!j) error_set(err, own.code == ERR_INVALID ? ERR_FORMAT : own.code, "%s/%s: %s", c->path, name, own.msg);
    }
    buf_free(&text);
    return j;
}

size_t checkpoint_n_tensors(const checkpoint *c) {
    return c->tensors.n;
}

const stored_tensor *checkpoint_tensor_at(const checkpoint *c, size_t i) {
    return &c->tensors.p[i];
}

const stored_tensor *checkpoint_tensor(const checkpoint *c, str name) {
    uint64_t i;
    return map_get(c->by_name, name, &i) ? &c->tensors.p[i] : NULL;
}

size_t checkpoint_file_bytes(const checkpoint *c) {
    size_t n = 0;
    for (size_t i = 0; i < c->n_files; i++) n += c->files[i].map.n;
    return n;
}

/* A matrix of floats or GGUF blocks. */
static bool plain_weight(const checkpoint *c, const stored_tensor *t, weight_src *out, error *err) {
    if (t->kind != ST_FLOAT && t->kind != ST_BLOCKS)
        return tensor_error(c, t, err, "weights of type %s are not supported", t->type_name);
    if (!tensor_matrix(c, t, out, err)) return false;
    out->format = t->format;
    code_form form;
    if (weight_code_form(out, &form)) out->bits = form.bits, out->group = form.group;
    return true;
}

const stored_tensor *checkpoint_part(const checkpoint *c, const char *module, const char *part) {
    buf name = {0};
    buf_printf(&name, "%s.%s", module, part);
    const stored_tensor *t = checkpoint_tensor(c, buf_view(&name));
    buf_free(&name);
    return t;
}

bool checkpoint_weight(const checkpoint *c, const char *module, weight_src *out, bool *found, error *err) {
    const stored_tensor *t = checkpoint_part(c, module, "weight"), *scales = NULL;
    if (!t) t = checkpoint_tensor(c, str_of(module));
    *out = (weight_src){0};
    *found = t != NULL;
    if (!t) return true;
    out->name = t->name.p;
    if (c->kind == CHECKPOINT_SAFETENSORS) {
        scales = checkpoint_part(c, module, "scales");
        if (!scales && mlx_listed(c->config, module))
            return tensor_error(c, t, err, "config.json says that it is quantised, but there is no %s.scales", module);
    }
    return scales ? mlx_weight(c, module, t, scales, out, err) : plain_weight(c, t, out, err);
}

bool checkpoint_floats(const checkpoint *c, const char *name, size_t n, float *out, error *err) {
    const stored_tensor *t = checkpoint_tensor(c, str_of(name));
    if (!t) return error_set(err, ERR_FORMAT, "%s: there is no tensor %s", c->path, name);
    if (t->kind != ST_FLOAT && t->kind != ST_BLOCKS)
        return tensor_error(c, t, err, "type %s cannot be read as floats", t->type_name);
    size_t have = 1;
    for (int32_t i = 0; i < t->ndim; i++) have *= (size_t)t->dim[i];
    char dims[192];
    if (n && have != n)
        return tensor_error(c, t, err, "shape %s has %zu values; %zu are expected", dims_text(t->dim, t->ndim, dims),
                            have, n);
    int64_t row = t->ndim ? t->dim[t->ndim - 1] : 1;
    if (row > INT32_MAX) return tensor_error(c, t, err, "rows of %lld values are too long", (long long)row);
    weight_src w = {.format = t->format, .n_experts = 1, .n_out = 1, .n_in = (int32_t)row, .codes = t->p};
    for (size_t r = 0; have && r < have / (size_t)row; r++) weight_row_f32(&w, (int64_t)r, out + r * (size_t)row);
    return true;
}

void checkpoint_drop(const checkpoint *c, const weight_src *w) {
    for (int32_t e = 0; w->each && e < w->n_experts; e++) checkpoint_drop(c, &w->each[e]);
    if (w->each) return;
    size_t rows = (size_t)w->n_experts * (size_t)w->n_out, codes = rows * weight_row_bytes(w);
    file_map_drop(w->codes, codes);
    size_t rest = weight_src_bytes(w) - codes;
    if (w->scales) file_map_drop(w->scales, w->biases ? rest / 2 : rest);
    if (w->biases) file_map_drop(w->biases, rest / 2);
}
