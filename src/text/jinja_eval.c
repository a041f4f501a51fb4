/* Jinja: evaluating expressions. One function a node kind, found by a table.
 * Not here: what the operators do to values (jinja_ops.c), attributes (jinja_attr.c), filters and tests
 * (jinja_filters.c ...). */
#include "jinja_internal.h"

static value eval_const(render *r, const node *n) {
    return n->constant;
}

static value eval_name(render *r, const node *n) {
    value v = *slot_at(r, n->name.ref);
    return v_is(v, V_MISSING) ? v_undefined_name(&r->c, n->name.name) : v;
}

static jlist *eval_items(render *r, const nodes *l) {
    jlist *out = list_new(&r->c, l->n);
    for (uint32_t i = 0; i < l->n; i++) list_push(&r->c, out, eval(r, l->v[i]));
    return out;
}
static value eval_tuple(render *r, const node *n) {
    return v_tuple(eval_items(r, &n->list));
}
static value eval_list(render *r, const node *n) {
    return v_list(eval_items(r, &n->list));
}

static value eval_dict(render *r, const node *n) {
    jdict *d = dict_new(&r->c);
    for (uint32_t i = 0; i < n->list.n; i += 2) {
        value k = eval(r, n->list.v[i]);
        dict_set(&r->c, d, k, eval(r, n->list.v[i + 1]));
    }
    return v_dict(d);
}

static value eval_unary(render *r, const node *n) {
    return op_unary(&r->c, (char)n->op, eval(r, n->two.a));
}
static value eval_binary(render *r, const node *n) {
    value a = eval(r, n->two.a);
    return op_binary(&r->c, (binop)n->op, a, eval(r, n->two.b));
}
static value eval_not(render *r, const node *n) {
    return v_bool(!truthy(&r->c, eval(r, n->two.a)));
}
static value eval_and(render *r, const node *n) {
    value a = eval(r, n->two.a);
    return truthy(&r->c, a) ? eval(r, n->two.b) : a;
}
static value eval_or(render *r, const node *n) {
    value a = eval(r, n->two.a);
    return truthy(&r->c, a) ? a : eval(r, n->two.b);
}

static bool compare(core *c, cmp_op op, value a, value b) {
    static const char *const names[] = {[CMP_GT] = ">", [CMP_GE] = ">=", [CMP_LT] = "<", [CMP_LE] = "<="};
    int o;
    switch (op) {
    case CMP_EQ: return value_eq(c, a, b);
    case CMP_NE: return !value_eq(c, a, b);
    case CMP_IN: return value_in(c, a, b);
    case CMP_NOTIN: return !value_in(c, a, b);
    default: break;
    }
    o = value_order(c, a, b, names[op]);
    if (o == 2) return false;
    return op == CMP_GT ? o > 0 : op == CMP_GE ? o >= 0 : op == CMP_LT ? o < 0 : o <= 0;
}

static value eval_compare(render *r, const node *n) {
    value a = eval(r, n->compare.first);
    for (uint32_t i = 0; i < n->compare.n; i++) {
        value b = eval(r, n->compare.ops[i].value);
        if (!compare(&r->c, (cmp_op)n->compare.ops[i].op, a, b)) return v_bool(false);
        a = b;
    }
    return v_bool(true);
}

static value eval_concat(render *r, const node *n) {
    jstr *s = value_str(&r->c, eval(r, n->list.v[0]));
    for (uint32_t i = 1; i < n->list.n; i++) s = str_join2(&r->c, s, value_str(&r->c, eval(r, n->list.v[i])));
    if (!s->markup) return v_str(s);
    jstr *plain = str_sub(&r->c, s, 0, s->n);
    plain->markup = false;
    return v_str(plain);
}

static value eval_cond(render *r, const node *n) {
    if (truthy(&r->c, eval(r, n->two.b))) return eval(r, n->two.a);
    if (n->two.c) return eval(r, n->two.c);
    return v_undefined(
        &r->c,
        arena_printf(r->c.a, "the inline if-expression on line %u evaluated to false and no else section was defined.",
                     n->line));
}

static value eval_attr(render *r, const node *n) {
    value obj = eval(r, n->attr.obj);
    r->c.line = n->line;
    return get_attr(&r->c, obj, n->attr.name);
}

static value eval_item(render *r, const node *n) {
    value obj = eval(r, n->item.obj);
    const node *k = n->item.key;
    if (k->kind != N_SLICE) return get_item(&r->c, obj, eval(r, k));
    value part[3];
    const node *parts[3] = {k->two.a, k->two.b, k->two.c};
    for (uint8_t i = 0; i < 3; i++) part[i] = parts[i] ? eval(r, parts[i]) : v_none();
    return op_slice(&r->c, obj, part[0], part[1], part[2]);
}

/* *args and **kwargs joined to what was written out. */
static void spread(render *r, const call_args *a, args *out) {
    core *c = &r->c;
    if (a->star) {
        jlist *all = list_new(c, out->n);
        for (size_t i = 0; i < out->n; i++) list_push(c, all, out->pos[i]);
        iter it;
        value v;
        iter_begin(c, &it, eval(r, a->star));
        while (iter_next(c, &it, &v)) list_push(c, all, v);
        out->pos = all->v;
        out->n = all->n;
    }
    if (!a->star2) return;
    value d = eval(r, a->star2);
    if (v_is(d, V_UNDEFINED)) undefined_fail(c, d);
    if (!v_is(d, V_DICT)) jinja_fail(c, "argument after ** must be a mapping, not %s", type_name(d));
    jstr **names = jinja_array(c, jstr *, out->n_named + d.dict->n);
    value *named = jinja_array(c, value, out->n_named + d.dict->n);
    size_t n = out->n_named;
    for (size_t i = 0; i < n; i++) names[i] = out->names[i], named[i] = out->named[i];
    for (size_t i = 0; i < d.dict->n; i++) {
        if (!v_is(d.dict->e[i].key, V_STR)) jinja_fail(c, "keywords must be strings");
        for (size_t k = 0; k < out->n_named; k++)
            if (str_same(names[k], d.dict->e[i].key.s))
                jinja_fail(c, "got multiple values for keyword argument '%s'", text_of(c, names[k]));
        names[n] = d.dict->e[i].key.s;
        named[n++] = d.dict->e[i].val;
    }
    out->names = names;
    out->named = named;
    out->n_named = n;
}

void eval_args(render *r, const call_args *a, args *out) {
    *out = (args){.n = a->pos.n, .n_named = a->n_named};
    if (a->pos.n) out->pos = jinja_array(&r->c, value, a->pos.n);
    for (uint32_t i = 0; i < a->pos.n; i++) out->pos[i] = eval(r, a->pos.v[i]);
    if (a->n_named) {
        out->names = jinja_array(&r->c, jstr *, a->n_named);
        out->named = jinja_array(&r->c, value, a->n_named);
    }
    for (uint32_t i = 0; i < a->n_named; i++) {
        out->names[i] = a->named[i].name;
        out->named[i] = eval(r, a->named[i].value);
    }
    if (a->star || a->star2) spread(r, a, out);
}

static value eval_call(render *r, const node *n) {
    value f = eval(r, n->call.f);
    args a;
    eval_args(r, n->call.args, &a);
    r->c.line = n->line;
    return value_call(&r->c, f, &a);
}

value eval_filter(render *r, const node *n, value v) {
    /* a chain on a captured text: the innermost filter has no operand */
    if (n->filter.obj) v = n->filter.obj->kind == N_FILTER ? eval_filter(r, n->filter.obj, v) : eval(r, n->filter.obj);
    args a;
    eval_args(r, n->filter.args, &a);
    r->c.line = n->line;
    if (!n->filter.def) jinja_fail(&r->c, "No filter named '%s' found.", text_of(&r->c, n->filter.name));
    return func_call(&r->c, n->filter.def, v, &a);
}
static value eval_filter_node(render *r, const node *n) {
    return eval_filter(r, n, v_missing());
}

static value eval_test(render *r, const node *n) {
    value v = eval(r, n->filter.obj);
    args a;
    eval_args(r, n->filter.args, &a);
    r->c.line = n->line;
    if (!n->filter.def) jinja_fail(&r->c, "No test named '%s' found.", text_of(&r->c, n->filter.name));
    return func_call(&r->c, n->filter.def, v, &a);
}

static value (*const evaluators[])(render *r, const node *n) = {
    [N_CONST] = eval_const,
    [N_NAME] = eval_name,
    [N_TUPLE] = eval_tuple,
    [N_LIST] = eval_list,
    [N_DICT] = eval_dict,
    [N_UNARY] = eval_unary,
    [N_BINARY] = eval_binary,
    [N_NOT] = eval_not,
    [N_AND] = eval_and,
    [N_OR] = eval_or,
    [N_COMPARE] = eval_compare,
    [N_CONCAT] = eval_concat,
    [N_COND] = eval_cond,
    [N_ATTR] = eval_attr,
    [N_ITEM] = eval_item,
    [N_CALL] = eval_call,
    [N_FILTER] = eval_filter_node,
    [N_TEST] = eval_test,
};

value eval(render *r, const node *n) {
    jinja_guard(&r->c);
    jinja_step(&r->c, 1);
    return evaluators[n->kind](r, n);
}
