/* Jinja: calling: binding arguments to parameters, the global functions.
 * Not here: macros (jinja_exec.c), methods (jinja_methods.c), filters and tests. */
#include <stdio.h>
#include <time.h>
#include "jinja_internal.h"

const func_def *func_find(const func_def *table, str name) {
    for (; table->name; table++)
        if (str_is(name, table->name)) return table;
    return NULL;
}

typedef struct params {
    str name[JINJA_PARAMS];
    bool required[JINJA_PARAMS], positional[JINJA_PARAMS];
    size_t n;
    bool rest, named;
} params;

static void params_read(params *p, const char *text) {
    memset(p, 0, sizeof *p);
    for (const char *w = text; *w;) {
        const char *end = strchrnul(w, ' ');
        str s = {w, (size_t)(end - w)};
        if (str_is(s, "*"))
            p->rest = true;
        else if (str_is(s, "**"))
            p->named = true;
        else if (p->n < JINJA_PARAMS) {
            for (; s.n && (s.p[s.n - 1] == '!' || s.p[s.n - 1] == '/'); s.n--)
                (s.p[s.n - 1] == '!' ? p->required : p->positional)[p->n] = true;
            p->name[p->n++] = s;
        }
        w = *end ? end + 1 : end;
    }
}

value func_call(core *c, const func_def *f, value self, const args *a) {
    params p;
    value v[JINJA_PARAMS] = {0};
    jinja_guard(c);
    jinja_step(c, 1);
    params_read(&p, f->params);
    if (a->n > p.n && !p.rest)
        jinja_fail(c, "%s() takes at most %zu argument%s (%zu given)", f->name, p.n, p.n == 1 ? "" : "s", a->n);
    for (size_t i = 0; i < a->n && i < p.n; i++) v[i] = a->pos[i];
    for (size_t k = 0; k < a->n_named; k++) {
        str name = {a->names[k]->p, a->names[k]->n};
        size_t i = 0;
        while (i < p.n && (p.positional[i] || !str_eq(p.name[i], name))) i++;
        if (i == p.n) {
            if (p.named) continue;
            jinja_fail(c, "%s() got an unexpected keyword argument '%s'", f->name, text_of(c, a->names[k]));
        }
        if (!v_is(v[i], V_MISSING))
            jinja_fail(c, "%s() got multiple values for argument '%s'", f->name, text_of(c, a->names[k]));
        v[i] = a->named[k];
    }
    for (size_t i = 0; i < p.n; i++)
        if (p.required[i] && v_is(v[i], V_MISSING))
            jinja_fail(c, "%s() missing required argument '%.*s'", f->name, (int)p.name[i].n, p.name[i].p);
    return f->fn(c, self, v, a);
}

value value_call(core *c, value f, const args *a) {
    switch (f.type) {
    case V_MACRO: return macro_call(c, f.macro, a);
    case V_FUNC: return func_call(c, f.func, v_missing(), a);
    case V_METHOD: return func_call(c, f.method->def, f.method->self, a);
    case V_LOOP: return loop_call(c, f.loop, a);
    case V_JOINER:
        if (a->n || a->n_named) jinja_fail(c, "joiner takes no arguments when it is called");
        if (f.joiner->used) return f.joiner->sep;
        f.joiner->used = true;
        return v_str(str_lit(c, ""));
    case V_UNDEFINED: undefined_fail(c, f);
    default: jinja_fail(c, "'%s' object is not callable", type_name(f));
    }
}

/* ---- global functions -------------------------------------------------------------------------------------------- */
static value fn_range(core *c, value self, value *v, const args *a) {
    enum { RANGE_MAX = 100000 }; /* the sandbox's */
    int64_t start = 0, stop = index_of(c, v[0], "range()"), step = 1;
    if (!v_is(v[1], V_MISSING)) {
        start = stop;
        stop = index_of(c, v[1], "range()");
    }
    if (!v_is(v[2], V_MISSING)) step = index_of(c, v[2], "range()");
    if (!step) jinja_fail(c, "range() arg 3 must not be zero");
    __int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop, by = step > 0 ? step : -(__int128)step;
    __int128 n = span <= 0 ? 0 : (span - 1) / by + 1;
    if (n > RANGE_MAX) jinja_fail(c, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", RANGE_MAX);
    jrange *r = jinja_new(c, jrange);
    *r = (jrange){start, stop, step, (int64_t)n};
    return (value){.type = V_RANGE, .range = r};
}

/* dict(mapping or pairs, **named): also what namespace() starts from */
static jdict *make_dict(core *c, const args *a) {
    jdict *d = dict_new(c);
    if (a->n > 1) jinja_fail(c, "dict expected at most 1 argument, got %zu", a->n);
    if (a->n && v_is(a->pos[0], V_DICT)) {
        for (size_t i = 0; i < a->pos[0].dict->n; i++)
            dict_set(c, d, a->pos[0].dict->e[i].key, a->pos[0].dict->e[i].val);
    } else if (a->n) {
        iter it;
        value pair;
        iter_begin(c, &it, a->pos[0]);
        for (size_t i = 0; iter_next(c, &it, &pair); i++) {
            jlist *two = can_iterate(pair) ? list_of(c, pair) : NULL;
            if (!two) jinja_fail(c, "cannot convert dictionary update sequence element #%zu to a sequence", i);
            if (two->n != 2)
                jinja_fail(c, "dictionary update sequence element #%zu has length %zu; 2 is required", i, two->n);
            dict_set(c, d, two->v[0], two->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_named; i++) dict_set(c, d, v_str(a->names[i]), a->named[i]);
    return d;
}
static value fn_dict(core *c, value self, value *v, const args *a) {
    return v_dict(make_dict(c, a));
}
static value fn_namespace(core *c, value self, value *v, const args *a) {
    return (value){.type = V_NAMESPACE, .dict = make_dict(c, a)};
}

static value fn_cycler(core *c, value self, value *v, const args *a) {
    if (!a->n) jinja_fail(c, "at least one item has to be provided");
    jcycler *k = jinja_new(c, jcycler);
    *k = (jcycler){a->pos, a->n, 0};
    return (value){.type = V_CYCLER, .cycler = k};
}
static value fn_joiner(core *c, value self, value *v, const args *a) {
    jjoiner *j = jinja_new(c, jjoiner);
    j->sep = v_is(v[0], V_MISSING) ? v_str(str_lit(c, ", ")) : v[0];
    return (value){.type = V_JOINER, .joiner = j};
}

static value fn_raise(core *c, value self, value *v, const args *a) {
    jstr *s = value_str(c, v[0]);
    c->plain = true;
    jinja_fail(c, "%s", text_of(c, s));
}

/* Local time, as datetime.now().strftime() has it: %f is microseconds, a time without a zone has no %z and %Z. */
static value fn_strftime(core *c, value self, value *v, const args *a) {
    if (!v_is(v[0], V_STR)) jinja_fail(c, "strftime() argument 1 must be str, not %s", type_name(v[0]));
    const jstr *f = v[0].s;
    time_t now = (time_t)render_of(c)->now_unix;
    struct tm tm;
    localtime_r(&now, &tm);
    sbuf b;
    sb_init(&b, c);
    for (size_t i = 0; i < f->n; i++) {
        if (f->p[i] != '%' || i + 1 == f->n) {
            sb_slice(&b, f, i, i + 1);
            continue;
        }
        char spec[8] = "%", out[128];
        size_t k = 1;
        for (i++; i < f->n && k < 6 && strchr("-_0^#EO", f->p[i]) && f->p[i]; i++) spec[k++] = f->p[i];
        if (i == f->n) break;
        spec[k] = f->p[i];
        if (f->p[i] == 'z' || f->p[i] == 'Z') continue;
        size_t n = f->p[i] == 'f' ? (size_t)snprintf(out, sizeof out, "000000") : strftime(out, sizeof out, spec, &tm);
        sb_add(&b, out, n, str_user_at(f, i));
    }
    return v_str(sb_done(&b));
}

const func_def jinja_globals[] = {
    {"range", fn_range, "start!/ stop/ step/"},
    {"dict", fn_dict, "* **"},
    {"namespace", fn_namespace, "* **"},
    {"cycler", fn_cycler, "*"},
    {"joiner", fn_joiner, "sep"},
    {"raise_exception", fn_raise, "message!"},
    {"strftime_now", fn_strftime, "format!"},
    {0},
};
