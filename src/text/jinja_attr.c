/* Jinja: a.b and a[b]: attributes, items and the sandbox between them.
 * Not here: the methods themselves (jinja_methods.c). */
#include "jinja_internal.h"

static value undefined_unsafe(core *c, value obj, str name) {
    return v_undefined(c, arena_printf(c->a, "access to attribute '%.*s' of '%s' object is unsafe.",
                                       (int)MIN(name.n, (size_t)200), name.p, type_name(obj)));
}

/* What would change a list or dictionary: the immutable sandbox hides it. */
static bool changes(value obj, str name) {
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = v_is(obj, V_LIST) ? of_list : v_is(obj, V_DICT) ? of_dict : NULL;
    for (; names && *names; names++)
        if (str_is(name, *names)) return true;
    return false;
}

static bool number_attr(value obj, str name, value *out) {
    bool is_float = v_is(obj, V_FLOAT);
    value own = is_float ? obj : v_int(v_is(obj, V_BOOL) ? obj.b : obj.i);
    if (str_is(name, "real") || (!is_float && str_is(name, "numerator")))
        *out = own;
    else if (str_is(name, "imag"))
        *out = is_float ? v_float(0) : v_int(0);
    else if (!is_float && str_is(name, "denominator"))
        *out = v_int(1);
    else
        return false;
    return true;
}

static bool macro_attr(core *c, const jmacro *m, str name, value *out) {
    if (str_is(name, "name"))
        *out = m->n->macro->name ? v_str(m->n->macro->name) : v_none();
    else if (str_is(name, "arguments")) {
        jlist *l = list_new(c, m->n->macro->params.n);
        for (uint32_t i = 0; i < m->n->macro->params.n; i++)
            list_push(c, l, v_str(m->n->macro->params.v[i]->name.name));
        *out = v_tuple(l);
    } else if (str_is(name, "catch_kwargs"))
        *out = v_bool(m->n->macro->uses_kwargs);
    else if (str_is(name, "catch_varargs"))
        *out = v_bool(m->n->macro->uses_varargs);
    else if (str_is(name, "caller"))
        *out = v_bool(m->n->macro->uses_caller);
    else
        return false;
    return true;
}

static bool own_attr(core *c, value obj, str name, value *out) {
    bool found = false;
    switch (obj.type) {
    case V_BOOL:
    case V_INT:
    case V_FLOAT: return number_attr(obj, name, out);
    case V_MACRO: return macro_attr(c, obj.macro, name, out);
    case V_LOOP: *out = loop_attr(c, obj.loop, name, &found); return found;
    case V_CYCLER:
        if (!str_is(name, "current")) return false;
        *out = obj.cycler->v[obj.cycler->pos];
        return true;
    case V_TUPLE:
        if (!obj.list->group || (!str_is(name, "grouper") && !str_is(name, "list"))) return false;
        *out = obj.list->v[str_is(name, "list")];
        return true;
    case V_RANGE:
        if (str_is(name, "start"))
            *out = v_int(obj.range->start);
        else if (str_is(name, "stop"))
            *out = v_int(obj.range->stop);
        else if (str_is(name, "step"))
            *out = v_int(obj.range->step);
        else
            return false;
        return true;
    case V_NAMESPACE: {
        const value *v = dict_find_str(c, obj.dict, name);
        if (v) *out = *v;
        return v != NULL;
    }
    default: return false;
    }
}

bool find_attr(core *c, value obj, str name, value *out) {
    if (v_is(obj, V_UNDEFINED)) undefined_fail(c, obj);
    bool dunder = name.n > 4 && str_starts(name, STR("__")) && str_ends(name, STR("__"));
    if (changes(obj, name) || (dunder && !v_is(obj, V_NAMESPACE))) {
        *out = undefined_unsafe(c, obj, name);
        return true;
    }
    if (own_attr(c, obj, name, out)) {
        if (name.n && name.p[0] == '_') *out = undefined_unsafe(c, obj, name);
        return true;
    }
    const func_def *def = method_find(obj, name);
    if (!def) return false;
    jmethod *m = jinja_new(c, jmethod);
    *m = (jmethod){obj, def};
    *out = (value){.type = V_METHOD, .method = m};
    return true;
}

/* obj[key] by Python's rules; false where Python raises TypeError, KeyError or IndexError. */
static bool find_item(core *c, value obj, value key, value *out) {
    if (v_is(obj, V_DICT)) {
        if (v_is(key, V_LIST) || v_is(key, V_DICT)) return false;
        const value *v = dict_find(c, obj.dict, key);
        if (v) *out = *v;
        return v != NULL;
    }
    int64_t i, n = value_len(c, obj);
    bool indexed = v_is(obj, V_STR) || v_is(obj, V_LIST) || v_is(obj, V_TUPLE) || v_is(obj, V_RANGE);
    if (!indexed || (!v_is(key, V_INT) && !v_is(key, V_BOOL))) return false;
    i = v_is(key, V_BOOL) ? key.b : key.i;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    if (v_is(obj, V_RANGE))
        *out = range_at(obj.range, i);
    else if (v_is(obj, V_STR))
        *out = op_slice(c, obj, v_int(i), v_int(i + 1), v_none());
    else
        *out = obj.list->v[i];
    return true;
}

value get_attr(core *c, value obj, jstr *name) {
    value v;
    str s = {name->p, name->n};
    if (find_attr(c, obj, s, &v)) return v;
    if (find_item(c, obj, v_str(name), &v)) return v;
    return v_undefined_of(c, obj, v_str(name));
}

value get_item(core *c, value obj, value key) {
    value v;
    if (v_is(obj, V_UNDEFINED)) undefined_fail(c, obj);
    if (find_item(c, obj, key, &v)) return v;
    if (v_is(key, V_STR) && find_attr(c, obj, (str){key.s->p, key.s->n}, &v)) return v;
    return v_undefined_of(c, obj, key);
}
