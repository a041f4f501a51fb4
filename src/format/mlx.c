/* MLX quantisation: what config.json says about a module, and the matrix made of its codes, scales and biases.
 *
 * Rules as in oracle facts (docs/formats.md): an entry for the module (object or false) wins; otherwise a module is
 * quantised if and only if it has scales, with the top-level numbers; a missing mode is affine. Not here: reading the
 * codes (device/weight.c). */
#include <stdio.h>
#include "internal.h"

typedef struct mlx_mode {
    const char *name;
    weight_format format;
    int32_t bits, group; /* what a missing number means */
    bool affine;
} mlx_mode;

static const mlx_mode modes[] = {
    {"affine", WF_AFFINE, 4, 64, true},
    {"mxfp4", WF_MXFP4, 4, 32, false},
    {"mxfp8", WF_MXFP8, 8, 32, false},
    {"nvfp4", WF_NVFP4, 4, 16, false},
};

static bool sizes_allowed(const mlx_mode *m, int64_t bits, int64_t group) {
    if (!m->affine) return bits == m->bits && group == m->group;
    return (bits >= 1 && bits <= 8 && bits != 7) && (group == 32 || group == 64 || group == 128);
}

/* What config.json says about one module. */
typedef struct mlx_quant {
    const mlx_mode *mode;
    int32_t bits, group;
} mlx_quant;

static const json *quantization_of(const json *config) {
    const json *q = json_get(config, "quantization");
    return q ? q : json_get(config, "quantization_config");
}

bool mlx_listed(const json *config, const char *module) {
    return json_is(json_get(quantization_of(config), module), JSON_OBJECT);
}

/* {"bits","group_size","mode"}; `of` names the entry in messages. */
static bool entry_read(const json *e, const char *of, mlx_quant *out, error *err) {
    str mode = json_str(json_get(e, "mode"), STR("affine"));
    for (size_t i = 0; i < COUNT(modes); i++) {
        const mlx_mode *m = &modes[i];
        if (!str_is(mode, m->name)) continue;
        int64_t bits = json_int(json_get(e, "bits"), m->bits), group = json_int(json_get(e, "group_size"), m->group);
        if (!sizes_allowed(m, bits, group))
            return error_set(err, ERR_FORMAT,
                             "config.json: quantization of %s: %s does not have %lld bits in groups of %lld", of,
                             m->name, (long long)bits, (long long)group);
        *out = (mlx_quant){m, (int32_t)bits, (int32_t)group};
        return true;
    }
    return error_set(err, ERR_FORMAT,
                     "config.json: quantization of %s: mode \"%.*s\" is not affine, mxfp4, mxfp8 or nvfp4", of,
                     (int)MIN(mode.n, (size_t)40), mode.p);
}

/* scales: for messages; a module that has them must be quantised by the config. */
static bool quant_of(const checkpoint *c, const char *module, const stored_tensor *scales, mlx_quant *out, error *err) {
    const json *q = quantization_of(c->config), *own = json_get(q, module);
    if (!json_is(q, JSON_OBJECT))
        return tensor_error(c, scales, err, "scales, but config.json has no \"quantization\"");
    if (json_is(own, JSON_BOOL) && !own->boolean)
        return tensor_error(c, scales, err, "config.json says that %s is not quantised, but here are scales", module);
    bool listed = json_is(own, JSON_OBJECT);
    return entry_read(listed ? own : q, listed ? module : "the model", out, err);
}

/* scales and biases: the matrix' leading dimensions, then n_in/group. */
static bool part_check(const checkpoint *c, const stored_tensor *w, const stored_tensor *t, int64_t groups,
                       error *err) {
    bool same = t->ndim == w->ndim && t->dim[t->ndim - 1] == groups;
    for (int32_t i = 0; same && i < w->ndim - 1; i++) same = t->dim[i] == w->dim[i];
    char have[192], of[192];
    return same || tensor_error(c, t, err, "its shape %s does not go with the codes %s and %lld groups a row",
                                dims_text(t->dim, t->ndim, have), dims_text(w->dim, w->ndim, of), (long long)groups);
}

static bool scale_type_of(const stored_tensor *t, bool affine, dtype *out) {
    static const struct {
        const char *name;
        dtype type;
        bool affine;
    } types[] = {{"F32", DT_F32, true}, {"F16", DT_F16, true}, {"BF16", DT_BF16, true}, {"U8", DT_U8, false}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(t->type_name, types[i].name) == 0 && types[i].affine == affine) return *out = types[i].type, true;
    return false;
}

static bool types_check(const checkpoint *c, const stored_tensor *w, const stored_tensor *scales,
                        const stored_tensor *biases, const mlx_mode *m, dtype *scale_type, error *err) {
    if (strcmp(w->type_name, "U32") != 0) return tensor_error(c, w, err, "codes must be U32, not %s", w->type_name);
    if (!scale_type_of(scales, m->affine, scale_type))
        return tensor_error(c, scales, err, "scales of type %s do not go with %s", scales->type_name, m->name);
    if (m->affine && !biases) return tensor_error(c, w, err, "affine codes need biases");
    if (!m->affine && biases) return tensor_error(c, biases, err, "%s has no biases", m->name);
    if (biases && strcmp(biases->type_name, scales->type_name) != 0)
        return tensor_error(c, biases, err, "biases are %s but scales are %s", biases->type_name, scales->type_name);
    return true;
}

bool mlx_weight(const checkpoint *c, const char *module, const stored_tensor *w, const stored_tensor *scales,
                weight_src *out, error *err) {
    const stored_tensor *biases = checkpoint_part(c, module, "biases");
    mlx_quant q = {0};
    if (!quant_of(c, module, scales, &q, err)) return false;
    if (!types_check(c, w, scales, biases, q.mode, &out->scale_type, err)) return false;
    if (!tensor_matrix(c, w, out, err)) return false;
    int64_t words = out->n_in, n_in = words * 32 / q.bits;
    if (words * 32 % q.bits || n_in % q.group || n_in > INT32_MAX)
        return tensor_error(c, w, err, "rows of %lld words are not whole groups of %d codes of %d bits",
                            (long long)words, q.group, q.bits);
    if (!part_check(c, w, scales, n_in / q.group, err)) return false;
    if (biases && !part_check(c, w, biases, n_in / q.group, err)) return false;
    out->format = q.mode->format;
    out->n_in = (int32_t)n_in;
    out->bits = q.bits;
    out->group = q.group;
    out->scales = scales->p;
    out->biases = biases ? biases->p : NULL;
    return true;
}
