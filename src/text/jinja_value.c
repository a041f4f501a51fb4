/* Jinja: values: making, comparing, hashing, walking, printing; the guards that every part calls.
 * The behaviour is Python's: 1 == 1.0 == True, dictionaries keep their order, floats print shortest.
 * Not here: operators (jinja_ops.c), attributes (jinja_attr.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>
#include "jinja_internal.h"

/* ---- failing and guards ------------------------------------------------------------------------------------------ */
void jinja_fail(core *c, const char *fmt, ...) {
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (c->plain)
        error_set(c->err, ERR_TEMPLATE, "%s", msg);
    else
        error_set(c->err, ERR_TEMPLATE, "line %u: %s", c->line, msg);
    longjmp(c->fail, 1);
}

void *jinja_alloc(core *c, size_t n) {
    void *p = arena_alloc(c->a, n);
    if (!p) jinja_fail(c, "memory limit reached: %zu bytes in use, %zu more wanted", arena_bytes(c->a), n);
    return p;
}
void *jinja_alloc_n(core *c, size_t size, size_t n) {
    size_t total;
    if (!size_mul(size, n, &total)) jinja_fail(c, "memory limit reached");
    return jinja_alloc(c, total);
}
void jinja_step(core *c, uint64_t n) {
    c->steps += n;
    if (c->steps > c->steps_max)
        jinja_fail(c, "step limit reached: more than %llu steps", (unsigned long long)c->steps_max);
}
void jinja_guard(core *c) {
    const char *here = __builtin_frame_address(0);
    size_t used = here < c->stack ? (size_t)(c->stack - here) : (size_t)(here - c->stack);
    if (used > JINJA_STACK) jinja_fail(c, "nested too deep");
}

const char *text_of(core *c, const jstr *s) {
    return arena_printf(c->a, "%.*s%s", (int)MIN(s->n, (size_t)300), s->p, s->n > 300 ? "..." : "");
}

/* ---- undefined --------------------------------------------------------------------------------------------------- */
static value undef_new(core *c, const char *hint, value obj, value name) {
    jundef *u = jinja_new(c, jundef);
    *u = (jundef){hint, obj, name};
    return (value){.type = V_UNDEFINED, .undef = u};
}
value v_undefined(core *c, const char *hint) {
    return undef_new(c, hint, v_missing(), v_missing());
}
value v_undefined_name(core *c, jstr *name) {
    return undef_new(c, NULL, v_missing(), v_str(name));
}
value v_undefined_of(core *c, value obj, value name) {
    return undef_new(c, NULL, obj, name);
}

void undefined_fail(core *c, value v) {
    const jundef *u = v.undef;
    if (u->hint) jinja_fail(c, "%s", u->hint);
    const char *name = text_of(c, value_repr(c, u->name));
    if (v_is(u->obj, V_MISSING)) jinja_fail(c, "%s is undefined", name);
    if (!v_is(u->name, V_STR)) jinja_fail(c, "%s has no element %s", type_repr(c, u->obj), name);
    jinja_fail(c, "'%s' has no attribute %s", type_repr(c, u->obj), name);
}

static const char *const type_names[V_TYPES] = {
    [V_MISSING] = "missing",
    [V_UNDEFINED] = "Undefined",
    [V_NONE] = "NoneType",
    [V_BOOL] = "bool",
    [V_INT] = "int",
    [V_FLOAT] = "float",
    [V_BIG] = "int",
    [V_STR] = "str",
    [V_LIST] = "list",
    [V_TUPLE] = "tuple",
    [V_DICT] = "dict",
    [V_RANGE] = "range",
    [V_ITER] = "generator",
    [V_NAMESPACE] = "Namespace",
    [V_MACRO] = "Macro",
    [V_FUNC] = "function",
    [V_METHOD] = "builtin_function_or_method",
    [V_LOOP] = "LoopContext",
    [V_CYCLER] = "Cycler",
    [V_JOINER] = "Joiner",
};
static const char *const view_names[] = {
    [VIEW_KEYS] = "dict_keys", [VIEW_VALUES] = "dict_values", [VIEW_ITEMS] = "dict_items"};

const char *type_name(value v) {
    if (v_is(v, V_VIEW)) return view_names[v.view->kind];
    if (v_is(v, V_ITER)) return v.iter->type;
    if (v_is(v, V_STR) && v.s->markup) return "Markup";
    return type_names[v.type];
}
const char *type_repr(core *c, value v) {
    if (v_is(v, V_NONE)) return "None";
    const char *module = v_is(v, V_MACRO) || v_is(v, V_LOOP)                              ? "jinja2.runtime."
                         : v_is(v, V_NAMESPACE) || v_is(v, V_CYCLER) || v_is(v, V_JOINER) ? "jinja2.utils."
                         : v_is(v, V_STR) && v.s->markup                                  ? "markupsafe."
                                                                                          : "";
    return arena_printf(c->a, "%s%s object", module, type_name(v));
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */
jlist *list_new(core *c, size_t cap) {
    jlist *l = jinja_new(c, jlist);
    l->cap = cap;
    l->v = cap ? jinja_array(c, value, cap) : NULL;
    return l;
}
void list_push(core *c, jlist *l, value v) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        value *p = jinja_array(c, value, cap);
        if (l->n) memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}
jlist *list_of(core *c, value iterable) {
    jlist *l = list_new(c, v_is(iterable, V_LIST) ? iterable.list->n : 4);
    iter it;
    value v;
    iter_begin(c, &it, iterable);
    while (iter_next(c, &it, &v)) list_push(c, l, v);
    jinja_step(c, l->n);
    return l;
}
jlist *tuple2(core *c, value a, value b) {
    jlist *l = list_new(c, 2);
    list_push(c, l, a);
    list_push(c, l, b);
    return l;
}

/* ---- dictionaries ------------------------------------------------------------------------------------------------ */
enum { DICT_SMALL = 8 };

uint64_t value_hash(core *c, value v) {
    jinja_guard(c);
    switch (v.type) {
    case V_STR: return XXH3_64bits(v.s->p, v.s->n);
    case V_BOOL: return (uint64_t)v.b * 0x9e3779b97f4a7c15u;
    case V_INT: return (uint64_t)v.i * 0x9e3779b97f4a7c15u;
    case V_FLOAT: /* equal numbers hash equally */
        if (v.f == floor(v.f) && fabs(v.f) < 9e18) return (uint64_t)(int64_t)v.f * 0x9e3779b97f4a7c15u;
        return XXH3_64bits(&v.f, sizeof v.f);
    case V_BIG: return XXH3_64bits(v.s->p, v.s->n);
    case V_NONE:
    case V_UNDEFINED: return v.type;
    case V_TUPLE: {
        uint64_t h = v.list->n;
        for (size_t i = 0; i < v.list->n; i++) h = h * 31 + value_hash(c, v.list->v[i]);
        return h;
    }
    case V_LIST:
    case V_DICT:
    case V_VIEW: jinja_fail(c, "unhashable type: '%s'", type_name(v));
    default: return (uint64_t)(uintptr_t)v.ptr;
    }
}

jdict *dict_new(core *c) {
    return jinja_new(c, jdict);
}

static void dict_index(core *c, jdict *d) {
    d->index_n = 32;
    while (d->index_n < d->cap * 2) d->index_n *= 2;
    d->index = jinja_array(c, uint32_t, d->index_n);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->e[i].hash & (d->index_n - 1);
        while (d->index[at]) at = (at + 1) & (d->index_n - 1);
        d->index[at] = (uint32_t)i + 1;
    }
}

static jentry *dict_entry(core *c, const jdict *d, value key, uint64_t hash) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->e[i].hash == hash && value_eq(c, d->e[i].key, key)) return &d->e[i];
        return NULL;
    }
    for (size_t at = hash & (d->index_n - 1); d->index[at]; at = (at + 1) & (d->index_n - 1)) {
        jentry *e = &d->e[d->index[at] - 1];
        jinja_step(c, 1);
        if (e->hash == hash && value_eq(c, e->key, key)) return e;
    }
    return NULL;
}

void dict_set(core *c, jdict *d, value key, value val) {
    uint64_t hash = value_hash(c, key);
    jentry *e = dict_entry(c, d, key, hash);
    if (e) {
        e->val = val;
        return;
    }
    if (d->n == d->cap) {
        d->cap = d->cap ? d->cap * 2 : 4;
        jentry *p = jinja_array(c, jentry, d->cap);
        if (d->n) memcpy(p, d->e, d->n * sizeof *p);
        d->e = p;
        if (d->cap > DICT_SMALL) dict_index(c, d);
    }
    d->e[d->n++] = (jentry){key, val, hash};
    if (!d->index) return;
    size_t at = hash & (d->index_n - 1);
    while (d->index[at]) at = (at + 1) & (d->index_n - 1);
    d->index[at] = (uint32_t)d->n;
}
value *dict_find(core *c, const jdict *d, value key) {
    jentry *e = dict_entry(c, d, key, value_hash(c, key));
    return e ? &e->val : NULL;
}
value *dict_find_str(core *c, const jdict *d, str key) {
    jstr s = {.p = key.p, .n = key.n, .chars = SIZE_MAX};
    return dict_find(c, d, v_str(&s));
}

static value json_number(core *c, const json *j, uint8_t user) {
    if (j->digits) return (value){.type = V_BIG, .user = user, .s = str_new(c, j->digits, strlen(j->digits), user)};
    return (value){.type = V_FLOAT, .user = user, .f = j->real};
}

/* A role counts as the template's word: templates build special tokens around it ('<|' + message.role + '|>'). Only
 * letters, so no such token can be smuggled in whole. */
static bool is_role(const json_member *m) {
    if (!str_eq(m->key, STR("role")) || m->value.type != JSON_STRING) return false;
    for (size_t i = 0; i < m->value.string.n; i++)
        if (m->value.string.p[i] < 'a' || m->value.string.p[i] > 'z') return false;
    return true;
}

value value_of_json(core *c, const json *j, uint8_t user) {
    jinja_guard(c);
    jinja_step(c, 1);
    switch (j->type) {
    case JSON_NULL: return (value){.type = V_NONE, .user = user};
    case JSON_BOOL: return (value){.type = V_BOOL, .user = user, .b = j->boolean};
    case JSON_INT: return (value){.type = V_INT, .user = user, .i = j->integer};
    case JSON_REAL: return json_number(c, j, user);
    case JSON_STRING: return v_str(str_new(c, j->string.p, j->string.n, user));
    case JSON_ARRAY: {
        jlist *l = list_new(c, j->n);
        for (uint32_t i = 0; i < j->n; i++) list_push(c, l, value_of_json(c, &j->items[i], user));
        return v_list(l);
    }
    case JSON_OBJECT: {
        jdict *d = dict_new(c);
        for (uint32_t i = 0; i < j->n; i++) {
            value k = v_str(str_new(c, j->members[i].key.p, j->members[i].key.n, user));
            dict_set(c, d, k, value_of_json(c, &j->members[i].value, is_role(&j->members[i]) ? 0 : user));
        }
        return v_dict(d);
    }
    }
    return v_none();
}

/* ---- truth, equality, order -------------------------------------------------------------------------------------- */
int64_t value_len(core *c, value v) {
    switch (v.type) {
    case V_UNDEFINED: return 0;
    case V_STR: return (int64_t)str_chars(v.s);
    case V_LIST:
    case V_TUPLE: return (int64_t)v.list->n;
    case V_DICT: return (int64_t)v.dict->n;
    case V_VIEW: return (int64_t)v.view->d->n;
    case V_RANGE: return v.range->n;
    default: return -1;
    }
}

bool truthy(core *c, value v) {
    switch (v.type) {
    case V_MISSING:
    case V_NONE: return false;
    case V_BOOL: return v.b;
    case V_INT: return v.i != 0;
    case V_FLOAT: return v.f != 0;
    case V_STR: return v.s->n != 0;
    case V_LOOP: return true;
    default: return value_len(c, v) != 0;
    }
}

bool number_of(value v, double *out) {
    if (v_is(v, V_BOOL))
        *out = v.b;
    else if (v_is(v, V_INT))
        *out = (double)v.i;
    else if (v_is(v, V_FLOAT))
        *out = v.f;
    else
        return false;
    return true;
}
static bool whole_of(value v, int64_t *out) {
    if (v_is(v, V_BOOL))
        *out = v.b;
    else if (v_is(v, V_INT))
        *out = v.i;
    else
        return false;
    return true;
}

/* An int against a float, exactly. */
static int order_mixed(int64_t i, double f) {
    if (isnan(f)) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

static int order_numbers(value a, value b) {
    int64_t i, k;
    bool ia = whole_of(a, &i), ib = whole_of(b, &k);
    if (ia && ib) return i < k ? -1 : i > k;
    if (ia) return order_mixed(i, b.f);
    if (ib) {
        int o = order_mixed(k, a.f);
        return o == 2 ? 2 : -o;
    }
    return isnan(a.f) || isnan(b.f) ? 2 : a.f < b.f ? -1 : a.f > b.f;
}
static bool is_number(value v) {
    return v_is(v, V_BOOL) || v_is(v, V_INT) || v_is(v, V_FLOAT);
}

static bool lists_equal(core *c, const jlist *a, const jlist *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!value_same(a->v[i], b->v[i]) && !value_eq(c, a->v[i], b->v[i])) return false;
    return true;
}
static bool dicts_equal(core *c, const jdict *a, const jdict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const value *v = dict_find(c, b, a->e[i].key);
        if (!v || (!value_same(*v, a->e[i].val) && !value_eq(c, a->e[i].val, *v))) return false;
    }
    return true;
}
static bool ranges_equal(const jrange *a, const jrange *b) {
    if (a->n != b->n) return false;
    return !a->n || (a->start == b->start && (a->n == 1 || a->step == b->step));
}
static bool views_equal(core *c, value a, value b) {
    if (a.view->kind == VIEW_VALUES || a.view->kind != b.view->kind) return a.view == b.view;
    if (a.view->d->n != b.view->d->n) return false;
    iter it;
    value v;
    iter_begin(c, &it, a);
    while (iter_next(c, &it, &v))
        if (!value_in(c, v, b)) return false;
    return true;
}

bool value_eq(core *c, value a, value b) {
    jinja_guard(c);
    jinja_step(c, 1);
    if (is_number(a) && is_number(b)) return order_numbers(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_NONE:
    case V_UNDEFINED: return true;
    case V_BIG: return str_same(a.s, b.s);
    case V_STR: jinja_step(c, a.s->n == b.s->n ? a.s->n / 256 : 0); return str_same(a.s, b.s);
    case V_LIST:
    case V_TUPLE: return lists_equal(c, a.list, b.list);
    case V_DICT: return dicts_equal(c, a.dict, b.dict);
    case V_RANGE: return ranges_equal(a.range, b.range);
    case V_VIEW: return views_equal(c, a, b);
    case V_METHOD: return a.method->def == b.method->def && value_same(a.method->self, b.method->self);
    default: return a.ptr == b.ptr;
    }
}

int value_order(core *c, value a, value b, const char *op) {
    jinja_guard(c);
    jinja_step(c, 1);
    if (is_number(a) && is_number(b)) return order_numbers(a, b);
    if (v_is(a, V_STR) && v_is(b, V_STR)) return str_order(a.s, b.s);
    if (a.type == b.type && (v_is(a, V_LIST) || v_is(a, V_TUPLE))) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!value_same(a.list->v[i], b.list->v[i]) && !value_eq(c, a.list->v[i], b.list->v[i]))
                return value_order(c, a.list->v[i], b.list->v[i], op);
        return a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
    }
    if (v_is(a, V_UNDEFINED)) undefined_fail(c, a);
    if (v_is(b, V_UNDEFINED)) undefined_fail(c, b);
    jinja_fail(c, "'%s' not supported between instances of '%s' and '%s'", op, type_name(a), type_name(b));
}

/* Identity: small numbers, truth values and None are themselves; so are equal short strings of one text. */
bool value_same(value a, value b) {
    if (a.type != b.type) return false;
    switch (a.type) {
    case V_NONE: return true;
    case V_BOOL: return a.b == b.b;
    case V_INT: return a.i == b.i;
    case V_FLOAT: return false;
    case V_STR: return str_same(a.s, b.s);
    default: return a.ptr == b.ptr;
    }
}

bool value_in(core *c, value item, value container) {
    int64_t i;
    switch (container.type) {
    case V_STR:
        if (v_is(item, V_UNDEFINED)) jinja_fail(c, "'in <string>' requires string as left operand, not Undefined");
        if (!v_is(item, V_STR)) jinja_fail(c, "'in <string>' requires string as left operand, not %s", type_name(item));
        return str_search(c, container.s, item.s, 0) != SIZE_MAX;
    case V_DICT: return dict_find(c, container.dict, item) != NULL;
    case V_VIEW: {
        if (container.view->kind == VIEW_KEYS) return dict_find(c, container.view->d, item) != NULL;
        if (container.view->kind == VIEW_VALUES) break;
        if (!v_is(item, V_TUPLE) || item.list->n != 2) return false;
        const value *v = dict_find(c, container.view->d, item.list->v[0]);
        return v && value_eq(c, *v, item.list->v[1]);
    }
    case V_RANGE:
        if (!whole_of(item, &i)) break;
        for (int64_t k = 0; k < container.range->n; k++)
            if (range_at(container.range, k).i == i) return true;
        return false;
    default: break;
    }
    if (!can_iterate(container)) jinja_fail(c, "argument of type '%s' is not iterable", type_name(container));
    iter it;
    value v;
    iter_begin(c, &it, container);
    while (iter_next(c, &it, &v))
        if (value_same(v, item) || value_eq(c, v, item)) return true;
    return false;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */
value range_at(const jrange *r, int64_t i) {
    return v_int(r->start + i * r->step);
}

bool can_iterate(value v) {
    switch (v.type) {
    case V_UNDEFINED:
    case V_STR:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITER:
    case V_LOOP: return true;
    default: return false;
    }
}
void iter_begin(core *c, iter *it, value v) {
    if (!can_iterate(v)) jinja_fail(c, "'%s' object is not iterable", type_name(v));
    *it = (iter){v, 0};
}

static bool view_at(core *c, const jview *v, size_t i, value *out) {
    if (i >= v->d->n) return false;
    const jentry *e = &v->d->e[i];
    *out = v->kind == VIEW_KEYS ? e->key : v->kind == VIEW_VALUES ? e->val : v_tuple(tuple2(c, e->key, e->val));
    return true;
}

bool iter_next(core *c, iter *it, value *out) {
    value v = it->v;
    jinja_step(c, 1);
    switch (v.type) {
    case V_STR: {
        size_t from = it->i;
        if (from >= v.s->n) return false;
        utf8_next(v.s->p, v.s->n, &it->i);
        jstr *s = str_sub(c, v.s, from, it->i);
        s->markup = false;
        *out = v_str(s);
        return true;
    }
    case V_LIST:
    case V_TUPLE:
        if (it->i >= v.list->n) return false;
        *out = v.list->v[it->i++];
        return true;
    case V_DICT: return view_at(c, &(jview){v.dict, VIEW_KEYS}, it->i++, out);
    case V_VIEW: return view_at(c, v.view, it->i++, out);
    case V_RANGE:
        if (it->i >= (size_t)v.range->n) return false;
        *out = range_at(v.range, (int64_t)it->i++);
        return true;
    case V_ITER:
        jinja_guard(c);
        if (v.iter->done) return false;
        if (v.iter->next(c, v.iter, out)) return true;
        v.iter->done = true;
        return false;
    case V_LOOP:
        if (!loop_next(render_of(c), v.loop)) return false;
        *out = v_tuple(tuple2(c, v.loop->current, v));
        return true;
    default: return false;
    }
}

/* Merge sort: stable, and a failing comparison may leave from its middle. */
void value_sort(core *c, value *v, value *keys, size_t n, bool reverse) {
    value *tv = jinja_array(c, value, n), *tk = jinja_array(c, value, n);
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = MIN(lo + width, n), hi = MIN(lo + 2 * width, n), a = lo, b = mid;
            for (size_t k = lo; k < hi; k++) {
                bool right = a >= mid;
                if (!right && b < hi) {
                    int o = reverse ? value_order(c, keys[a], keys[b], "<") : value_order(c, keys[b], keys[a], "<");
                    right = o == -1;
                }
                size_t from = right ? b++ : a++;
                tv[k] = v[from];
                tk[k] = keys[from];
            }
        }
        memcpy(v, tv, n * sizeof *v);
        memcpy(keys, tk, n * sizeof *keys);
    }
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */
static void repr_str(sbuf *b, const jstr *s) {
    if (s->markup) sb_puts(b, "Markup(");
    const char *quote = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? "\"" : "'";
    sb_puts(b, quote);
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(s->p, s->n, &i);
        uint8_t user = str_user_at(s, at);
        char esc[16];
        static const char named[] = "\\\\\nn\rr\tt";
        const char *hit = cp && cp < 128 ? strchr(named, (int)cp) : NULL;
        if (cp == (uint32_t)quote[0])
            snprintf(esc, sizeof esc, "\\%c", quote[0]);
        else if (cp == '\\')
            snprintf(esc, sizeof esc, "\\\\");
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            snprintf(esc, sizeof esc, "\\%c", hit[1]);
        else if (cp_printable(cp)) {
            sb_slice(b, s, at, i);
            continue;
        } else
            snprintf(esc, sizeof esc, cp < 256 ? "\\x%02x" : cp < 65536 ? "\\u%04x" : "\\U%08x", cp);
        sb_add(b, esc, strlen(esc), user);
    }
    sb_puts(b, quote);
    if (s->markup) sb_puts(b, ")");
}

static void repr_items(sbuf *b, const jlist *l, const char *open, const char *close) {
    sb_puts(b, open);
    for (size_t i = 0; i < l->n; i++) {
        if (i) sb_puts(b, ", ");
        sb_repr(b, l->v[i]);
    }
    sb_puts(b, close);
}
static void repr_dict(sbuf *b, const jdict *d) {
    sb_puts(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) sb_puts(b, ", ");
        sb_repr(b, d->e[i].key);
        sb_puts(b, ": ");
        sb_repr(b, d->e[i].val);
    }
    sb_puts(b, "}");
}
static void repr_view(sbuf *b, value v) {
    sb_puts(b, type_name(v));
    sb_puts(b, "(");
    repr_items(b, list_of(b->c, v), "[", "]");
    sb_puts(b, ")");
}

static void repr_number(sbuf *b, value v) {
    char text[48];
    if (v_is(v, V_BIG)) {
        sb_str(b, v.s);
        return;
    }
    if (v_is(v, V_FLOAT))
        str_from_f64(text, v.f);
    else if (v_is(v, V_INT))
        snprintf(text, sizeof text, "%lld", (long long)v.i);
    else
        snprintf(text, sizeof text, "%s", v_is(v, V_NONE) ? "None" : v.b ? "True" : "False");
    sb_add(b, text, strlen(text), v.user);
}

static void repr_range(sbuf *b, const jrange *r) {
    char text[96];
    if (r->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)r->start, (long long)r->stop);
    else
        snprintf(text, sizeof text, "range(%lld, %lld, %lld)", (long long)r->start, (long long)r->stop,
                 (long long)r->step);
    sb_puts(b, text);
}

void sb_repr(sbuf *b, value v) {
    jinja_guard(b->c);
    jinja_step(b->c, 1);
    switch (v.type) {
    case V_UNDEFINED: sb_puts(b, "Undefined"); break;
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
    case V_BIG: repr_number(b, v); break;
    case V_STR: repr_str(b, v.s); break;
    case V_LIST: repr_items(b, v.list, "[", "]"); break;
    case V_TUPLE: repr_items(b, v.list, "(", v.list->n == 1 ? ",)" : ")"); break;
    case V_DICT: repr_dict(b, v.dict); break;
    case V_VIEW: repr_view(b, v); break;
    case V_RANGE: repr_range(b, v.range); break;
    case V_NAMESPACE:
        sb_puts(b, "<Namespace ");
        repr_dict(b, v.dict);
        sb_puts(b, ">");
        break;
    case V_MACRO:
        sb_puts(b, "<Macro ");
        if (v.macro->n->macro->name)
            repr_str(b, v.macro->n->macro->name);
        else
            sb_puts(b, "anonymous");
        sb_puts(b, ">");
        break;
    case V_LOOP: {
        bool found;
        sb_puts(b, "<LoopContext ");
        sb_repr(b, loop_attr(b->c, v.loop, STR("index"), &found));
        sb_puts(b, "/");
        sb_repr(b, loop_attr(b->c, v.loop, STR("length"), &found));
        sb_puts(b, ">");
        break;
    }
    default: /* Python prints an address here */
        sb_puts(b, "<");
        sb_puts(b, type_name(v));
        sb_puts(b, " object>");
    }
}
void sb_value(sbuf *b, value v) {
    if (v_is(v, V_STR))
        sb_str(b, v.s);
    else if (!v_is(v, V_UNDEFINED))
        sb_repr(b, v);
}
jstr *value_str(core *c, value v) {
    if (v_is(v, V_STR)) return v.s;
    sbuf b;
    sb_init(&b, c);
    sb_value(&b, v);
    return sb_done(&b);
}
jstr *value_repr(core *c, value v) {
    sbuf b;
    sb_init(&b, c);
    sb_repr(&b, v);
    return sb_done(&b);
}
