/* config: reading config.json by table. A wrong value is an error that names the key, what it was and what is allowed.
 * Not here: which keys a family has (its own file), GGUF metadata (gguf_names.c). */
#include <stdio.h>
#include "internal.h"

bool config_open(config *c, checkpoint *from, arena *a, error *err) {
    *c = (config){.from = from};
    c->root = checkpoint_type(from) == CHECKPOINT_GGUF ? gguf_config(from, a, err) : checkpoint_config(from);
    if (!c->root) return error_set(err, ERR_FORMAT, "%s: no config.json", checkpoint_path(from));
    const json *text = json_get(c->root, "text_config");
    c->text = json_is(text, JSON_OBJECT) ? text : c->root;
    str type = json_str(json_get(c->text, "model_type"), json_str(json_get(c->root, "model_type"), STR("")));
    if (!type.n) return error_set(err, ERR_FORMAT, "%s: config.json has no model_type", checkpoint_path(from));
    c->type = arena_copy(a, type.p, type.n);
    return true;
}

const json *config_get(const config *c, const char *key) {
    const json *j = json_get(c->text, key);
    if (!j || json_is(j, JSON_NULL)) j = json_get(c->root, key);
    return json_is(j, JSON_NULL) ? NULL : j;
}

void config_check(config *c, bool ok, const char *fmt, ...) {
    if (ok || c->err.code) return;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    error_set(&c->err, ERR_UNSUPPORTED, "%s: config: %s", checkpoint_path(c->from), text);
}

/* The key's value as text for a message, cut short. */
static const char *shown(const json *j, char *to, size_t cap) {
    buf b = {0};
    json_write(&b, j);
    snprintf(to, cap, "%.*s", (int)MIN(b.n, cap - 1), b.p);
    buf_free(&b);
    return to;
}

static bool number(config *c, double *out, const char *key, double dflt, double lo, double hi, bool whole) {
    const json *j = config_get(c, key);
    char was[80];
    if (!j) {
        config_check(c, !isnan(dflt), "%s is missing", key);
        *out = dflt;
        return !isnan(dflt);
    }
    double v = json_real(j, NAN);
    bool ok = json_is_number(j) && v >= lo && v <= hi && (!whole || v == floor(v));
    config_check(c, ok, "%s is %s, allowed is %s from %g to %g", key, shown(j, was, sizeof was),
                 whole ? "a whole number" : "a number", lo, hi);
    *out = ok ? v : lo;
    return ok;
}

void config_int32_t(config *c, int32_t *out, const char *key, double dflt, double lo, double hi) {
    double v;
    if (number(c, &v, key, dflt, lo, hi, true)) *out = (int32_t)v;
}

int32_t config_layer_int(config *c, const char *key, int32_t i, double dflt, double lo, double hi) {
    const json *j = config_get(c, key);
    int32_t v = (int32_t)lo;
    if (!json_is(j, JSON_ARRAY)) {
        config_int32_t(c, &v, key, dflt, lo, hi);
        return v;
    }
    double x = json_real(json_at(j, (size_t)i), NAN);
    config_check(c, x >= lo && x <= hi && x == floor(x), "%s[%d] is %g, allowed is a whole number from %g to %g", key,
                 i, x, lo, hi);
    return c->err.code ? v : (int32_t)x;
}

void config_float(config *c, float *out, const char *key, double dflt, double lo, double hi) {
    double v;
    if (number(c, &v, key, dflt, lo, hi, false)) *out = (float)v;
}

void config_bool(config *c, bool *out, const char *key, double dflt, double lo, double hi) {
    const json *j = config_get(c, key);
    char was[80];
    config_check(c, !j ? !isnan(dflt) : json_is(j, JSON_BOOL), "%s is %s, allowed is true or false", key,
                 j ? shown(j, was, sizeof was) : "missing");
    *out = json_bool(j, dflt == 1);
}

void config_says(config *c, const char *key, const char *value) {
    const json *j = config_get(c, key);
    char was[80];
    if (j)
        config_check(c, str_is(json_str(j, STR("")), value), "%s is %s, allowed is \"%s\"", key,
                     shown(j, was, sizeof was), value);
}

static const struct {
    const char *name;
    act act;
} activations[] = {
    {"silu", ACT_SILU},          {"swish", ACT_SILU}, {"gelu", ACT_GELU_ERF}, {"gelu_pytorch_tanh", ACT_GELU_TANH},
    {"gelu_new", ACT_GELU_TANH}, {"relu", ACT_RELU},
};

void config_act(config *c, act *out, const char *key, double dflt, double lo, double hi) {
    const json *j = config_get(c, key);
    *out = (act)dflt;
    if (!j) return;
    buf known = {0};
    for (size_t i = 0; i < COUNT(activations); i++) {
        buf_printf(&known, "%s%s", i ? ", " : "", activations[i].name);
        if (str_is(json_str(j, STR("")), activations[i].name)) {
            *out = activations[i].act;
            buf_free(&known);
            return;
        }
    }
    char was[80];
    config_check(c, false, "%s is %s, allowed is one of %s", key, shown(j, was, sizeof was), known.p);
    buf_free(&known);
}

int32_t config_window(config *c, int32_t absent) {
    int32_t window = 0;
    bool none = json_is(json_get(c->text, "sliding_window"), JSON_NULL);
    config_int32_t(c, &window, "sliding_window", none ? 0 : absent, 0, 1 << 30);
    return window;
}

const char *config_layer_type(config *c, int32_t i, int32_t n_layers) {
    static const char *const types[] = {"full_attention", "sliding_attention", "linear_attention", "chunked_attention"};
    const json *list = config_get(c, "layer_types");
    if (!list) return NULL;
    config_check(c, json_is(list, JSON_ARRAY) && list->n >= (uint32_t)n_layers,
                 "layer_types has %u entries, num_hidden_layers is %d", json_is(list, JSON_ARRAY) ? list->n : 0,
                 n_layers);
    const json *j = json_at(list, (size_t)i);
    for (size_t k = 0; k < COUNT(types); k++)
        if (str_is(json_str(j, STR("")), types[k])) return types[k];
    char was[80];
    config_check(c, false, "layer_types[%d] is %s", i, j ? shown(j, was, sizeof was) : "missing");
    return NULL;
}

/* Adds the id, or the ids of an array, that are not there yet. */
static void eos_add(ids *to, const json *j) {
    size_t n = json_is(j, JSON_ARRAY) ? j->n : 1;
    for (size_t i = 0; i < n; i++) {
        int64_t id = json_int(json_is(j, JSON_ARRAY) ? json_at(j, i) : j, -1);
        bool have = id < 0 || id > INT32_MAX;
        for (size_t k = 0; k < to->n && !have; k++) have = to->p[k] == id;
        if (!have) ids_push(to, (int32_t)id);
    }
}

bool config_eos(const config *c, arena *a, const int32_t **out, size_t *n, error *err) {
    error e = {0};
    ids all = {0};
    const json *generation = checkpoint_json(c->from, "generation_config.json", &e);
    if (e.code) {
        if (err && !err->code) *err = e;
        return false;
    }
    eos_add(&all, json_get(c->root, "eos_token_id"));
    eos_add(&all, json_get(c->text, "eos_token_id"));
    eos_add(&all, json_get(generation, "eos_token_id"));
    *n = all.n;
    *out = all.n ? arena_copy(a, all.p, all.n * sizeof *all.p) : NULL;
    ids_free(&all);
    return true;
}
