/* Jinja: filters over sequences and numbers, and finding filters and tests by name.
 * Filters that Jinja2 makes as generators are generators here: one pass, nothing computed before it is asked for.
 * Not here: filters that make text (jinja_filters_text.c), tests (jinja_tests.c). */
#include <math.h>
#include "jinja_internal.h"

#define FILTER(name) static value name(core *c, value self, value *v, const args *a)

static bool given(value v) {
    return !v_is(v, V_MISSING) && !v_is(v, V_NONE);
}
static bool flag(core *c, value v, bool otherwise) {
    return v_is(v, V_MISSING) ? otherwise : truthy(c, v);
}
static int64_t integer(core *c, value v, int64_t otherwise, const char *what) {
    return v_is(v, V_MISSING) ? otherwise : index_of(c, v, what);
}

/* ---- attribute paths: "a.b.0" ------------------------------------------------------------------------------------ */
typedef struct path {
    value *parts;
    size_t n;
    bool fold; /* text is compared in lower case */
    value otherwise;
} path;

static path path_of(core *c, value attribute, bool fold) {
    path p = {.fold = fold};
    if (!given(attribute)) return p;
    jlist *l = list_new(c, 2);
    if (!v_is(attribute, V_STR))
        list_push(c, l, attribute);
    else {
        const jstr *s = attribute.s;
        for (size_t from = 0, i = 0; i <= s->n; i++) {
            if (i < s->n && s->p[i] != '.') continue;
            jstr *part = str_sub(c, s, from, i);
            bool digits = part->n != 0, big;
            int64_t index;
            for (size_t k = 0; k < part->n; k++) digits = digits && part->p[k] >= '0' && part->p[k] <= '9';
            list_push(c, l, digits && str_to_int(part, 10, &index, &big) && !big ? v_int(index) : v_str(part));
            from = i + 1;
        }
    }
    p.parts = l->v;
    p.n = l->n;
    return p;
}

static value fold(core *c, value v) {
    if (!v_is(v, V_STR)) return v;
    sbuf b;
    sb_init(&b, c);
    sb_case(&b, v.s, 0, v.s->n, CASE_LOWER);
    return v_str(sb_done(&b));
}
static value path_get(core *c, const path *p, value v) {
    for (size_t i = 0; i < p->n; i++) {
        v = get_item(c, v, p->parts[i]);
        if (given(p->otherwise) && v_is(v, V_UNDEFINED)) v = p->otherwise;
    }
    return p->fold ? fold(c, v) : v;
}

/* ---- generators -------------------------------------------------------------------------------------------------- */
static value generator(core *c, value from, bool (*next)(core *c, jiter *g, value *out), void *state) {
    jiter *g = jinja_new(c, jiter);
    *g = (jiter){.type = "generator", .next = next, .v = from, .state = state};
    return v_iter(g);
}
/* Steps through what the maker put into g->items. */
static bool next_item(jiter *g, value *out) {
    if (g->src.i >= g->items->n) return false;
    *out = g->items->v[g->src.i++];
    return true;
}

typedef struct mapping {
    args a;
    bool with_attr, negate, by_test;
    path p;
    jstr *name;
} mapping;

/* The first call: what Jinja2 does when its generator starts. */
static void map_start(core *c, mapping *m) {
    bool attribute = false;
    for (size_t i = 0; i < m->a.n_named; i++)
        attribute = attribute || str_is((str){m->a.names[i]->p, m->a.names[i]->n}, "attribute");
    if (!m->a.n && attribute) {
        value path = v_none(), otherwise = v_none();
        for (size_t i = 0; i < m->a.n_named; i++) {
            str name = {m->a.names[i]->p, m->a.names[i]->n};
            if (str_is(name, "attribute"))
                path = m->a.named[i];
            else if (str_is(name, "default"))
                otherwise = m->a.named[i];
            else
                jinja_fail(c, "Unexpected keyword argument '%s'", text_of(c, m->a.names[i]));
        }
        m->p = path_of(c, path, false);
        m->p.otherwise = otherwise;
        return;
    }
    if (!m->a.n) jinja_fail(c, "map requires a filter argument");
    if (!v_is(m->a.pos[0], V_STR)) jinja_fail(c, "map requires a filter name, not %s", type_name(m->a.pos[0]));
    m->name = m->a.pos[0].s;
    m->a.pos++;
    m->a.n--;
}

static bool begin(core *c, jiter *g, void (*start)(core *c, mapping *m)) {
    if (g->begun) return true;
    g->begun = true;
    if (!truthy(c, g->v)) return false;
    start(c, g->state);
    iter_begin(c, &g->src, g->v);
    return true;
}

static bool map_next(core *c, jiter *g, value *out) {
    mapping *m = g->state;
    value v;
    if (!begin(c, g, map_start) || !iter_next(c, &g->src, &v)) return false;
    *out = m->name ? filter_apply(c, m->name, v, &m->a) : path_get(c, &m->p, v);
    return true;
}

static void select_start(core *c, mapping *m) {
    if (m->with_attr) {
        if (!m->a.n) jinja_fail(c, "Missing parameter for attribute name");
        m->p = path_of(c, m->a.pos[0], false);
        m->a.pos++;
        m->a.n--;
    }
    if (!m->a.n) return;
    if (!v_is(m->a.pos[0], V_STR)) jinja_fail(c, "No test named %s.", text_of(c, value_repr(c, m->a.pos[0])));
    m->name = m->a.pos[0].s;
    m->a.pos++;
    m->a.n--;
}

static bool select_next(core *c, jiter *g, value *out) {
    mapping *m = g->state;
    value v;
    if (!begin(c, g, select_start)) return false;
    while (iter_next(c, &g->src, &v)) {
        value key = m->with_attr ? path_get(c, &m->p, v) : v;
        bool yes = m->name ? test_apply(c, m->name, key, &m->a) : truthy(c, key);
        if (yes == m->negate) continue;
        *out = v;
        return true;
    }
    return false;
}

static mapping *mapping_new(core *c, const args *a, bool with_attr, bool negate) {
    mapping *m = jinja_new(c, mapping);
    *m = (mapping){.a = *a, .with_attr = with_attr, .negate = negate};
    return m;
}
FILTER(f_map) {
    return generator(c, self, map_next, mapping_new(c, a, false, false));
}
FILTER(f_select) {
    return generator(c, self, select_next, mapping_new(c, a, false, false));
}
FILTER(f_reject) {
    return generator(c, self, select_next, mapping_new(c, a, false, true));
}
FILTER(f_selectattr) {
    return generator(c, self, select_next, mapping_new(c, a, true, false));
}
FILTER(f_rejectattr) {
    return generator(c, self, select_next, mapping_new(c, a, true, true));
}

static bool items_next(core *c, jiter *g, value *out) {
    if (v_is(g->v, V_UNDEFINED)) return false;
    if (!v_is(g->v, V_DICT)) jinja_fail(c, "Can only get item pairs from a mapping.");
    if (g->src.i >= g->v.dict->n) return false;
    const jentry *e = &g->v.dict->e[g->src.i++];
    *out = v_tuple(tuple2(c, e->key, e->val));
    return true;
}
FILTER(f_items) {
    return generator(c, self, items_next, NULL);
}

typedef struct unique {
    path p;
    jdict *seen;
} unique;
static bool unique_next(core *c, jiter *g, value *out) {
    unique *u = g->state;
    if (!g->begun) iter_begin(c, &g->src, g->v);
    g->begun = true;
    while (iter_next(c, &g->src, out)) {
        value key = path_get(c, &u->p, *out);
        if (dict_find(c, u->seen, key)) continue;
        dict_set(c, u->seen, key, v_none());
        return true;
    }
    return false;
}
FILTER(f_unique) {
    unique *u = jinja_new(c, unique);
    *u = (unique){path_of(c, v[1], !flag(c, v[0], false)), dict_new(c)};
    return generator(c, self, unique_next, u);
}

typedef struct pieces {
    value count, fill;
} pieces;
/* A row ends when its length equals linecount: 0 makes an empty row first, anything that is no number one row of all.
 */
static bool batch_next(core *c, jiter *g, value *out) {
    pieces *p = g->state;
    value v;
    bool first = !g->begun;
    if (first) iter_begin(c, &g->src, g->v);
    g->begun = true;
    jlist *l = list_new(c, 4);
    if (!first && g->items) list_push(c, l, g->items->v[0]); /* what did not fit the row before */
    g->items = NULL;
    while (iter_next(c, &g->src, &v)) {
        if (value_eq(c, v_int((int64_t)l->n), p->count)) {
            g->items = list_new(c, 1);
            list_push(c, g->items, v);
            *out = v_list(l);
            return true;
        }
        list_push(c, l, v);
    }
    if (!l->n) return false;
    if (given(p->fill) && value_order(c, v_int((int64_t)l->n), p->count, "<") == -1) {
        int64_t n = index_of(c, p->count, "linecount");
        while ((int64_t)l->n < n) list_push(c, l, p->fill);
    }
    *out = v_list(l);
    return true;
}
static bool slice_next(core *c, jiter *g, value *out) {
    pieces *p = g->state;
    if (!g->items) {
        jlist *all = list_of(c, g->v), *rows = list_new(c, 4);
        int64_t n = index_of(c, p->count, "slices"), at = 0;
        if (!n) jinja_fail(c, "integer division or modulo by zero");
        int64_t each = n > 0 ? (int64_t)all->n / n : 0, extra = n > 0 ? (int64_t)all->n % n : 0;
        for (int64_t k = 0; k < n; k++) {
            jlist *row = list_new(c, (size_t)each + 1);
            for (int64_t i = 0; i < each + (k < extra); i++) list_push(c, row, all->v[at++]);
            if (given(p->fill) && k >= extra) list_push(c, row, p->fill);
            list_push(c, rows, v_list(row));
            jinja_step(c, 1);
        }
        g->items = rows;
    }
    return next_item(g, out);
}
static pieces *pieces_new(core *c, value *v) {
    pieces *p = jinja_new(c, pieces);
    *p = (pieces){v[0], v[1]};
    return p;
}
FILTER(f_batch) {
    return generator(c, self, batch_next, pieces_new(c, v));
}
FILTER(f_slice) {
    return generator(c, self, slice_next, pieces_new(c, v));
}

static bool reverse_next(core *c, jiter *g, value *out) {
    return next_item(g, out);
}
static void reverse_list(jlist *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        value t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}
FILTER(f_reverse) {
    if (v_is(self, V_STR)) return op_slice(c, self, v_none(), v_none(), v_int(-1));
    if (!can_iterate(self)) jinja_fail(c, "argument must be iterable");
    jlist *l = list_of(c, self);
    reverse_list(l);
    if (v_is(self, V_ITER)) return v_list(l);
    value g = generator(c, self, reverse_next, NULL);
    g.iter->items = l;
    g.iter->type = v_is(self, V_LIST) ? "list_reverseiterator" : "reversed";
    return g;
}

/* ---- sorting, grouping, aggregates ------------------------------------------------------------------------------- */
FILTER(f_sort) {
    jlist *l = list_of(c, self), *paths = list_new(c, 2);
    bool fold = !flag(c, v[1], false);
    if (v_is(v[2], V_STR))
        paths = list_of(c, str_method(c, v[2].s, "split", &(args){.pos = (value[]){v_str(str_lit(c, ","))}, .n = 1}));
    else
        list_push(c, paths, v[2]);
    value *keys = jinja_array(c, value, l->n);
    path *p = jinja_array(c, path, paths->n);
    for (size_t k = 0; k < paths->n; k++) p[k] = path_of(c, paths->v[k], fold);
    for (size_t i = 0; i < l->n; i++) {
        jlist *key = list_new(c, paths->n);
        for (size_t k = 0; k < paths->n; k++) list_push(c, key, path_get(c, &p[k], l->v[i]));
        keys[i] = v_list(key);
    }
    value_sort(c, l->v, keys, l->n, integer(c, v[0], 0, "reverse") != 0);
    return v_list(l);
}

FILTER(f_dictsort) {
    static const char *const sides[] = {"key", "value"};
    size_t side = 0;
    bool sensitive = flag(c, v[0], false);
    if (!v_is(v[1], V_MISSING)) {
        for (side = 0; side < 2; side++)
            if (v_is(v[1], V_STR) && str_is((str){v[1].s->p, v[1].s->n}, sides[side])) break;
        if (side == 2) jinja_fail(c, "You can only sort by either \"key\" or \"value\"");
    }
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (!v_is(self, V_DICT)) jinja_fail(c, "'%s' object has no attribute 'items'", type_name(self));
    jlist *l = list_new(c, self.dict->n);
    value *keys = jinja_array(c, value, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++) {
        const jentry *e = &self.dict->e[i];
        list_push(c, l, v_tuple(tuple2(c, e->key, e->val)));
        keys[i] = side ? e->val : e->key;
        if (!sensitive) keys[i] = fold(c, keys[i]);
    }
    value_sort(c, l->v, keys, l->n, integer(c, v[2], 0, "reverse") != 0);
    return v_list(l);
}

FILTER(f_groupby) {
    jlist *l = list_of(c, self), *out = list_new(c, 4);
    bool sensitive = flag(c, v[2], false);
    path p = path_of(c, v[0], !sensitive);
    p.otherwise = v[1];
    value *keys = jinja_array(c, value, l->n);
    for (size_t i = 0; i < l->n; i++) keys[i] = path_get(c, &p, l->v[i]);
    value_sort(c, l->v, keys, l->n, false);
    p.fold = false;
    for (size_t i = 0; i < l->n;) {
        jlist *items = list_new(c, 4);
        size_t first = i;
        for (; i < l->n && value_eq(c, keys[first], keys[i]); i++) list_push(c, items, l->v[i]);
        jlist *group = tuple2(c, sensitive ? keys[first] : path_get(c, &p, items->v[0]), v_list(items));
        group->group = true;
        list_push(c, out, v_tuple(group));
    }
    return v_list(out);
}

static value extreme(core *c, value self, value *v, bool want_max) {
    path p = path_of(c, v[1], !flag(c, v[0], false));
    iter it;
    value item, best, best_key;
    iter_begin(c, &it, self);
    if (!iter_next(c, &it, &best)) return v_undefined(c, "No aggregated item, sequence was empty.");
    best_key = path_get(c, &p, best);
    while (iter_next(c, &it, &item)) {
        value key = path_get(c, &p, item);
        if (value_order(c, key, best_key, want_max ? ">" : "<") != (want_max ? 1 : -1)) continue;
        best = item;
        best_key = key;
    }
    return best;
}
FILTER(f_min) {
    return extreme(c, self, v, false);
}
FILTER(f_max) {
    return extreme(c, self, v, true);
}

FILTER(f_sum) {
    path p = path_of(c, v[0], false);
    value total = v_is(v[1], V_MISSING) ? v_int(0) : v[1], item;
    if (v_is(total, V_STR)) jinja_fail(c, "sum() can't sum strings [use ''.join(seq) instead]");
    iter it;
    iter_begin(c, &it, self);
    while (iter_next(c, &it, &item)) total = op_binary(c, OP_ADD, total, path_get(c, &p, item));
    return total;
}

FILTER(f_first) {
    iter it;
    value out;
    iter_begin(c, &it, self);
    return iter_next(c, &it, &out) ? out : v_undefined(c, "No first item, sequence was empty.");
}
FILTER(f_last) {
    if (v_is(self, V_ITER) || v_is(self, V_LOOP) || !can_iterate(self))
        jinja_fail(c, "'%s' object is not reversible", type_name(self));
    if (v_is(self, V_DICT) || v_is(self, V_VIEW)) {
        jlist *l = list_of(c, self);
        return l->n ? l->v[l->n - 1] : v_undefined(c, "No last item, sequence was empty.");
    }
    return value_len(c, self) ? get_item(c, self, v_int(-1)) : v_undefined(c, "No last item, sequence was empty.");
}
FILTER(f_length) {
    if (v_is(self, V_LOOP)) {
        bool found;
        return loop_attr(c, self.loop, STR("length"), &found);
    }
    int64_t n = value_len(c, self);
    if (n < 0) jinja_fail(c, "object of type '%s' has no len()", type_name(self));
    return v_int(n);
}
FILTER(f_list) {
    return v_list(list_of(c, self));
}
FILTER(f_random) {
    jinja_fail(c, "the random filter is not supported: a prompt must not depend on chance");
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
FILTER(f_abs) {
    double d;
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (!number_of(self, &d)) jinja_fail(c, "bad operand type for abs(): '%s'", type_name(self));
    if (v_is(self, V_FLOAT)) return (value){.type = V_FLOAT, .user = self.user, .f = fabs(self.f)};
    return op_unary(c, d < 0 ? '-' : '+', self);
}

FILTER(f_int) {
    value otherwise = v_is(v[0], V_MISSING) ? v_int(0) : v[0];
    int64_t i;
    bool large;
    double d;
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (v_is(self, V_BIG)) return self;
    if (v_is(self, V_INT)) return self;
    if (v_is(self, V_BOOL)) return v_int(self.b);
    if (v_is(self, V_FLOAT)) return isnan(self.f) ? otherwise : float_to_int(c, self.f);
    if (!v_is(self, V_STR)) return otherwise;
    int64_t base = v_is(v[1], V_MISSING) ? 10 : v_is(v[1], V_INT) ? v[1].i : v_is(v[1], V_BOOL) ? v[1].b : -1;
    bool known = base == 0 || (base >= 2 && base <= 36);
    if (known && str_to_int(self.s, (int)base, &i, &large)) {
        if (large) jinja_fail(c, "integer overflow: results beyond 64 bits are not supported");
        return v_int(i);
    }
    if (!str_to_float(c, self.s, &d) || !isfinite(d)) return otherwise;
    return float_to_int(c, d);
}
FILTER(f_float) {
    value otherwise = v_is(v[0], V_MISSING) ? v_float(0) : v[0];
    double d;
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (v_is(self, V_STR) || v_is(self, V_BIG)) return str_to_float(c, self.s, &d) ? v_float(d) : otherwise;
    if (!number_of(self, &d)) return otherwise;
    return (value){.type = V_FLOAT, .user = self.user, .f = d};
}
FILTER(f_round) {
    int64_t digits = integer(c, v[0], 0, "precision");
    str method = {"common", 6};
    if (v_is(v[1], V_STR)) method = (str){v[1].s->p, v[1].s->n};
    bool up = str_is(method, "ceil");
    if (!v_is(v[1], V_MISSING) &&
        (!v_is(v[1], V_STR) || (!up && !str_is(method, "floor") && !str_is(method, "common"))))
        jinja_fail(c, "method must be common, ceil or floor");
    if (str_is(method, "common")) return round_value(c, self, digits);
    value unit = op_binary(c, OP_POW, v_int(10), v_int(digits)), scaled = op_binary(c, OP_MUL, self, unit);
    double d;
    if (!number_of(scaled, &d)) jinja_fail(c, "must be real number, not %s", type_name(scaled));
    return op_binary(c, OP_DIV, v_is(scaled, V_FLOAT) ? float_to_int(c, up ? ceil(d) : floor(d)) : scaled, unit);
}

FILTER(f_default) {
    bool use = v_is(self, V_UNDEFINED) || (flag(c, v[1], false) && !truthy(c, self));
    return use ? v_is(v[0], V_MISSING) ? v_str(str_lit(c, "")) : v[0] : self;
}
FILTER(f_attr) {
    value out;
    if (!v_is(v[0], V_STR)) jinja_fail(c, "attribute name must be string, not '%s'", type_name(v[0]));
    return find_attr(c, self, (str){v[0].s->p, v[0].s->n}, &out) ? out : v_undefined_of(c, self, v[0]);
}

const func_def jinja_filters[] = {
    {"abs", f_abs, ""},
    {"attr", f_attr, "name!"},
    {"batch", f_batch, "linecount! fill_with"},
    {"count", f_length, ""},
    {"d", f_default, "default_value boolean"},
    {"default", f_default, "default_value boolean"},
    {"dictsort", f_dictsort, "case_sensitive by reverse"},
    {"first", f_first, ""},
    {"float", f_float, "default"},
    {"groupby", f_groupby, "attribute! default case_sensitive"},
    {"int", f_int, "default base"},
    {"items", f_items, ""},
    {"last", f_last, ""},
    {"length", f_length, ""},
    {"list", f_list, ""},
    {"map", f_map, "* **"},
    {"max", f_max, "case_sensitive attribute"},
    {"min", f_min, "case_sensitive attribute"},
    {"random", f_random, ""},
    {"reject", f_reject, "* **"},
    {"rejectattr", f_rejectattr, "* **"},
    {"reverse", f_reverse, ""},
    {"round", f_round, "precision method"},
    {"select", f_select, "* **"},
    {"selectattr", f_selectattr, "* **"},
    {"slice", f_slice, "slices! fill_with"},
    {"sort", f_sort, "reverse case_sensitive attribute"},
    {"sum", f_sum, "attribute start"},
    {"unique", f_unique, "case_sensitive attribute"},
    {0},
};

const func_def *filter_find(str name) {
    const func_def *f = func_find(jinja_filters, name);
    return f ? f : func_find(jinja_text_filters, name);
}
const func_def *test_find(str name) {
    return func_find(jinja_tests, name);
}
value filter_apply(core *c, jstr *name, value v, const args *a) {
    const func_def *f = filter_find((str){name->p, name->n});
    if (!f) jinja_fail(c, "No filter named %s.", text_of(c, value_repr(c, v_str(name))));
    return func_call(c, f, v, a);
}
bool test_apply(core *c, jstr *name, value v, const args *a) {
    const func_def *f = test_find((str){name->p, name->n});
    if (!f) jinja_fail(c, "No test named %s.", text_of(c, value_repr(c, v_str(name))));
    return truthy(c, func_call(c, f, v, a));
}
