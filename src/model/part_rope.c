/* part_rope: rotary frequencies of every kind, as transformers' modeling_rope_utils.py defines them. Computed in double
 * and rounded once. Not here: the rotation itself (op_rope). */
#include "internal.h"

/* What one kind of scaling works on. freq [n] holds theta^(-2i/dims) before and the kind's frequencies after. */
typedef struct scaling {
    model *m;
    config *c;
    const json *params; /* rope_parameters or rope_scaling */
    const rope_opts *o;
    double theta, dims; /* dims: rotated columns of a head */
    double *freq;
    int32_t n;
    double scale; /* of cos and sin; 1 before */
} scaling;

static double param(scaling *s, const char *key, double otherwise) {
    const json *j = json_get(s->params, key);
    if (!json_is_number(j)) j = config_get(s->c, key);
    config_check(s->c, json_is_number(j) || !isnan(otherwise), "rope scaling has no %s", key);
    return json_real(j, otherwise);
}

static double factor_of(scaling *s) {
    double f = param(s, "factor", NEEDED);
    config_check(s->c, f > 0, "rope scaling factor is %g, allowed is more than 0", f);
    return f;
}

static double context_original(scaling *s) {
    bool own = json_is_number(json_get(s->params, "original_max_position_embeddings")) ||
               json_is_number(config_get(s->c, "original_max_position_embeddings"));
    double n = param(s, own ? "original_max_position_embeddings" : "max_position_embeddings", NEEDED);
    config_check(s->c, n >= 1, "original_max_position_embeddings is %g, allowed is 1 or more", n);
    return n;
}

static void rope_default(scaling *s) {}

static void rope_linear(scaling *s) {
    double f = factor_of(s);
    for (int i = 0; i < s->n; i++) s->freq[i] /= f;
}

/* Long wavelengths are stretched, short ones kept, those between mixed. Source: Llama 3.1's reference code. */
static void rope_llama3(scaling *s) {
    double f = factor_of(s), lo = param(s, "low_freq_factor", NEEDED), hi = param(s, "high_freq_factor", NEEDED);
    double context = context_original(s);
    for (int i = 0; i < s->n; i++) {
        double wavelength = 2 * M_PI / s->freq[i], mix = (context / wavelength - lo) / (hi - lo);
        if (wavelength > context / lo)
            s->freq[i] /= f;
        else if (wavelength >= context / hi)
            s->freq[i] *= (1 - mix) / f + mix;
    }
}

/* The dimension whose pair turns `turns` times over the original context. */
static double yarn_dim(const scaling *s, double turns, double context) {
    return s->dims * log(context / (turns * 2 * M_PI)) / (2 * log(s->theta));
}

static double yarn_mscale(double f, double m) {
    return f <= 1 ? 1 : 0.1 * m * log(f) + 1;
}

/* Source: arXiv 2309.00071, section 3. */
static void rope_yarn(scaling *s) {
    double f = factor_of(s), context = context_original(s), all = param(s, "mscale_all_dim", 0),
           m = param(s, "mscale", 0);
    double lo = yarn_dim(s, param(s, "beta_fast", 32), context), hi = yarn_dim(s, param(s, "beta_slow", 1), context);
    if (json_bool(json_get(s->params, "truncate"), true)) lo = floor(lo), hi = ceil(hi);
    lo = fmax(lo, 0);
    hi = fmin(hi, s->dims - 1);
    if (lo == hi) hi += 0.001;
    for (int i = 0; i < s->n; i++) {
        double ramp = fmin(fmax((i - lo) / (hi - lo), 0), 1);
        s->freq[i] *= ramp / f + (1 - ramp);
    }
    s->scale = param(s, "attention_factor", m && all ? yarn_mscale(f, m) / yarn_mscale(f, all) : yarn_mscale(f, 1));
}

/* Divides by a list of the configuration, one divisor a pair. */
static void divide_by_list(scaling *s, const char *key) {
    const json *list = json_get(s->params, key);
    config_check(s->c, json_is(list, JSON_ARRAY) && list->n == (uint32_t)s->n,
                 "rope scaling %s has %u entries, expected %d", key, json_is(list, JSON_ARRAY) ? list->n : 0, s->n);
    for (int i = 0; i < s->n && !s->c->err.code; i++) {
        double by = json_real(json_at(list, (size_t)i), 0);
        config_check(s->c, by > 0, "rope scaling %s[%d] is %g, allowed is more than 0", key, i, by);
        s->freq[i] /= by;
    }
}

/* Source: arXiv 2402.13753. The definition takes the long factors once a sequence outgrows the original context. Keys
 * cached before would then carry other angles than those behind, and a prompt's bits depend on its chunks; so a model
 * is one or the other from the start: long if more than the original context was asked for, else short and no longer
 * than that. mlx-lm is always long. */
static void rope_longrope(scaling *s) {
    double context = context_original(s);
    bool given = json_is_number(json_get(s->params, "factor"));
    double f = given ? factor_of(s) : param(s, "max_position_embeddings", NEEDED) / context;
    bool is_long = s->m->compat_mlx_lm || s->m->context_asked > context;
    divide_by_list(s, is_long ? "long_factor" : "short_factor");
    s->scale = param(s, "attention_factor", f <= 1 ? 1 : sqrt(1 + log(f) / log(context)));
    if (!is_long && s->m->info.context_max > context) s->m->info.context_max = (int32_t)context;
}

/* Exponents over the whole head; only the first part of the pairs turns. */
static void rope_proportional(scaling *s) {
    double f = param(s, "factor", 1);
    int32_t turning = s->n;
    s->n = s->o->head / 2;
    for (int i = 0; i < s->n; i++) s->freq[i] = i < turning ? pow(s->theta, -2.0 * i / s->o->head) / f : 0;
}

static void rope_freq_factors(scaling *s) {
    divide_by_list(s, "freq_factors");
}

static const struct {
    const char *name;
    void (*apply)(scaling *s);
} kinds[] = {
    {"default", rope_default},
    {"linear", rope_linear},
    {"llama3", rope_llama3},
    {"yarn", rope_yarn},
    {"longrope", rope_longrope},
    {"su", rope_longrope},
    {"proportional", rope_proportional},
    {"freq_factors", rope_freq_factors},
};

static void apply(scaling *s) {
    str otherwise = s->o->kind && !s->params ? str_of(s->o->kind) : STR("default");
    str type = json_str(json_get(s->params, "rope_type"), json_str(json_get(s->params, "type"), otherwise));
    buf known = {0};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        buf_printf(&known, "%s%s", i ? ", " : "", kinds[i].name);
        if (!str_is(type, kinds[i].name)) continue;
        kinds[i].apply(s);
        buf_free(&known);
        return;
    }
    config_check(s->c, false, "rope_type is \"%.*s\", allowed is one of %s", (int)MIN(type.n, 40), type.p, known.p);
    buf_free(&known);
}

void rope_make(model *m, config *c, rope_table *out, const rope_opts *o) {
    const json *params = config_get(c, "rope_parameters");
    bool own = o->layer_type && json_is(json_get(params, o->layer_type), JSON_OBJECT);
    if (own) params = json_get(params, o->layer_type);
    if (!json_is(params, JSON_OBJECT)) params = config_get(c, "rope_scaling");
    if (!own && o->theta_key) params = NULL;
    scaling s = {.m = m, .c = c, .params = params, .o = o, .scale = 1};
    s.theta = param(&s, !own && o->theta_key ? o->theta_key : "rope_theta", o->theta > 0 ? o->theta : 10000);
    double partial = param(&s, "partial_rotary_factor", o->partial > 0 ? o->partial : 1);
    config_check(c, s.theta > 1, "rope_theta is %g, allowed is more than 1", s.theta);
    config_check(c, partial > 0 && partial <= 1, "partial_rotary_factor is %g, allowed is more than 0, at most 1",
                 partial);
    if (c->err.code) return;
    s.n = (int32_t)(o->head * partial) / 2;
    s.dims = 2 * s.n;
    double freq[4096];
    config_check(c, s.n >= 1 && o->head / 2 <= (int)COUNT(freq), "rotary width %d of head_dim %d", 2 * s.n, o->head);
    if (c->err.code) return;
    s.freq = freq;
    for (int i = 0; i < s.n; i++) freq[i] = pow(s.theta, -2.0 * i / s.dims);
    apply(&s);
    float *rounded = model_alloc(m, (size_t)s.n * sizeof(float));
    for (int i = 0; i < s.n; i++) rounded[i] = (float)freq[i];
    *out = (rope_table){rounded, s.n, o->interleaved, (float)s.scale};
}
