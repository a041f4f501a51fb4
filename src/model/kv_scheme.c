/* How the layers of a model keep their keys and values: what was asked for, from one word, becomes a code for each
 * layer. What a model cannot have is refused by name. Not here: the codes themselves (device/). docs/kv-cache.md. */
#include <stdio.h>
#include <xxhash.h>
#include "internal.h"

enum { GROUP = 64 /* columns a scale, when nobody says */ };

static bool is_group(int64_t n) {
    return n == 32 || n == 64 || n == 128;
}
static bool is_indexer(const kv_layer *l) {
    return l->v_width == 0;
}
static void layer_code(kv_layer *l, int bits, int group) {
    l->k = (kv_code){.bits = (uint8_t)bits, .group = (int16_t)group};
    if (!l->latent) l->v = l->k;
}
/* "g32" where the group is not the usual one. */
static void group_name(char out[8], int group) {
    out[0] = 0;
    if (group != GROUP) snprintf(out, 8, "g%d", group);
}

/* ---- every layer alike ---- */
static bool uniform_apply(model *m, int bits, int group, error *err) {
    kv_summary *out = &m->info.kv;
    char g[8];
    group_name(g, group);
    for (int32_t i = 0; i < m->kv.n_layers; i++)
        if (!is_indexer(&m->kv_layers[i])) layer_code(&m->kv_layers[i], bits, group);
    snprintf(out->scheme, sizeof out->scheme, "kv%d%s", bits, g);
    snprintf(out->mode, sizeof out->mode, "uniform-kv%d", bits);
    return true;
}

/* ---- kv_config.json: [{"layer_idx": 0, "bits": 4, "group_size": 64}, ...], layers that are not named are not coded */
static kv_layer *layer_find(model *m, int64_t of) {
    for (int32_t i = 0; i < m->kv.n_layers; i++)
        if (m->kv_layers[i].of == of && !is_indexer(&m->kv_layers[i])) return &m->kv_layers[i];
    return NULL;
}

static bool entry_apply(model *m, const json *entry, size_t n, int usual, error *err) {
    int64_t of = json_int(json_get(entry, "layer_idx"), -1), bits = json_int(json_get(entry, "bits"), 0),
            group = json_int(json_get(entry, "group_size"), json_get(entry, "group_size") ? 0 : usual);
    if (of < 0 || of >= m->info.n_layers)
        return error_set(err, ERR_FORMAT, "entry %zu: layer_idx must be 0 to %d", n, m->info.n_layers - 1);
    if (!(bits >= 2 && bits <= 8 && bits != 7))
        return error_set(err, ERR_FORMAT, "layer %lld: bits must be 2, 3, 4, 5, 6 or 8, not %lld", (long long)of,
                         (long long)bits);
    if (!is_group(group))
        return error_set(err, ERR_FORMAT, "layer %lld: group_size must be 32, 64 or 128, not %lld", (long long)of,
                         (long long)group);
    kv_layer *l = layer_find(m, of);
    if (!l) return error_set(err, ERR_UNSUPPORTED, "layer %lld keeps no keys and values of its own", (long long)of);
    if (l->k.bits) return error_set(err, ERR_FORMAT, "layer %lld is named twice", (long long)of);
    layer_code(l, (int)bits, (int)group);
    return true;
}

static bool config_apply(model *m, config *c, int group, error *err) {
    error damaged = {0};
    const json *list = checkpoint_json(c->from, "kv_config.json", &damaged);
    bool ok = true;
    if (damaged.code)
        ok = error_set(err, damaged.code, "%s", damaged.msg);
    else if (!list)
        ok = error_set(err, ERR_NOT_FOUND, "the model has no such file");
    else if (list->type != JSON_ARRAY)
        ok = error_set(err, ERR_FORMAT, "a list of layers is wanted");
    for (size_t i = 0; ok && list && i < list->n; i++) ok = entry_apply(m, json_at(list, i), i, group, err);
    if (!ok) {
        error_prefix(err, "kv-quant config: %s/kv_config.json: ", checkpoint_path(c->from));
        return false;
    }
    buf layers = {0};
    for (int32_t i = 0; i < m->kv.n_layers; i++)
        buf_printf(&layers, "%d:%d:%d;", m->kv_layers[i].of, m->kv_layers[i].k.bits, m->kv_layers[i].k.group);
    snprintf(m->info.kv.scheme, sizeof m->info.kv.scheme, "config:%016llx",
             (unsigned long long)XXH3_64bits(layers.p, layers.n));
    snprintf(m->info.kv.mode, sizeof m->info.kv.mode, "mixed (kv_config.json)");
    buf_free(&layers);
    return true;
}

/* ---- turbo: affine keys, rotated values, layers of full attention ---- */
static bool turbo_apply(model *m, int k, int v, int group, error *err) {
    kv_summary *out = &m->info.kv;
    int n = 0, latent = 0;
    for (int32_t i = 0; i < m->kv.n_layers; i++) {
        kv_layer *l = &m->kv_layers[i];
        latent += l->latent;
        if (l->latent || is_indexer(l) || m->kv.window[l->group]) continue;
        l->k = (kv_code){.bits = (uint8_t)k, .group = (int16_t)group};
        l->v = (kv_code){.bits = (uint8_t)v, .rotated = true};
        n++;
    }
    if (!n)
        return error_set(err, ERR_UNSUPPORTED, "kv-quant turbo: %s; 8, 4 and config are there for this model",
                         latent ? "this model's values are part of its keys (latent attention), so they cannot be "
                                  "rotated by themselves"
                                : "no layer of this model has full attention");
    char g[8];
    group_name(g, group);
    snprintf(out->scheme, sizeof out->scheme, "turbo-k%dv%d%s", k, v, g);
    snprintf(out->mode, sizeof out->mode, "turbo k%dv%d", k, v);
    return true;
}

/* "turbo" or "turbo:kKvV". */
static bool turbo_parse(const char *s, int *k, int *v) {
    *k = 8, *v = 3;
    if (!strcmp(s, "turbo")) return true;
    if (strncmp(s, "turbo:k", 7) || strlen(s) != 10 || s[8] != 'v') return false;
    *k = s[7] - '0', *v = s[9] - '0';
    return strchr("2458", s[7]) && strchr("23458", s[9]);
}

/* ---- */
static size_t coded_bytes(const kv_code *c, int32_t width, dtype type) { /* of one position */
    if (!c->bits) return (size_t)width * dtype_bytes(type);
    unsigned pad = (unsigned)(width + 15) & ~15u;
    int scales = c->rotated ? __builtin_popcount(pad) : 2 * ((width + c->group - 1) / c->group);
    return ((size_t)width * c->bits + 7) / 8 + (size_t)scales * dtype_bytes(type);
}

static void summarise(model *m) {
    kv_summary *out = &m->info.kv;
    m->info.kv_bytes_per_token = 0;
    for (int32_t i = 0; i < m->kv.n_layers; i++) {
        const kv_layer *l = &m->kv_layers[i];
        size_t bytes = coded_bytes(&l->k, l->k_width, m->kv.type);
        if (!l->latent) bytes += coded_bytes(&l->v, l->v_width, m->kv.type);
        bool full = !m->kv.window[l->group];
        if (full) m->info.kv_bytes_per_token += (size_t)l->heads * bytes;
        if (is_indexer(l)) continue;
        out->n_by_bits[l->latent ? l->k.bits : l->v.bits]++;
        (*(full ? &out->n_full : &out->n_windowed))++;
    }
}

bool kv_scheme_apply(model *m, config *c, const char *how, int group, error *err) {
    int k, v;
    bool ok;
    const char *plain = m->kv.type == DT_F32 ? "f32" : m->kv.type == DT_BF16 ? "bf16" : "f16";
    if (group && !is_group(group))
        return error_field(err, ERR_INVALID, "kv-group-size", "kv-group-size must be 32, 64 or 128, not %d", group);
    if (!group) group = GROUP;
    if (!how || !strcmp(how, "off") || !strcmp(how, "f16")) {
        snprintf(m->info.kv.scheme, sizeof m->info.kv.scheme, "%s", plain);
        snprintf(m->info.kv.mode, sizeof m->info.kv.mode, "%s", plain);
        ok = true;
    } else if (!strcmp(how, "8") || !strcmp(how, "4")) {
        ok = uniform_apply(m, how[0] - '0', group, err);
    } else if (!strcmp(how, "config")) {
        ok = config_apply(m, c, group, err);
    } else if (turbo_parse(how, &k, &v)) {
        ok = turbo_apply(m, k, v, group, err);
    } else {
        ok = error_field(
            err, ERR_INVALID, "kv-quant",
            "kv-quant must be off, 8, 4, config, turbo or turbo:kKvV with K of 2, 4, 5, 8 and V of 2, 3, 4, "
            "5, 8, not '%.40s'",
            how);
    }
    if (ok) summarise(m);
    return ok;
}
