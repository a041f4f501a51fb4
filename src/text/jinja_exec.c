/* Jinja: running statements: scopes, loops, macros; and jinja_render.
 * Not here: expressions (jinja_eval.c), which slot a name is (jinja_scope.c). */
#include <stdlib.h>
#include "jinja_internal.h"

value *slot_at(render *r, slot_ref ref) {
    activation *f = r->frame;
    for (uint16_t up = ref.up; up; up--) f = f->outer;
    return &f->slots[ref.slot];
}

static value resolve(render *r, const jstr *name) {
    str s = {name->p, name->n};
    value *v = dict_find_str(&r->c, r->exported, s);
    if (!v) v = dict_find_str(&r->c, r->vars, s);
    if (v) return *v;
    const func_def *f = func_find(jinja_globals, s);
    return f ? (value){.type = V_FUNC, .func = f} : v_missing();
}

static void scope_enter(render *r, const scope *s) {
    for (uint32_t i = 0; i < s->n; i++) {
        const scope_load *l = &s->loads[i];
        value *v = &r->frame->slots[l->slot];
        if (l->kind == LOAD_RESOLVE)
            *v = resolve(r, l->name);
        else if (l->kind == LOAD_ALIAS)
            *v = *slot_at(r, l->from);
        else if (l->kind == LOAD_UNDEFINED)
            *v = v_missing();
    }
}
static void scope_leave(render *r, const scope *s) {
    for (uint32_t i = 0; i < s->n; i++) r->frame->slots[s->loads[i].slot] = v_missing();
}

static activation *activation_new(render *r, const func *f, activation *outer) {
    activation *a = jinja_new(&r->c, activation);
    a->outer = outer;
    a->slots = jinja_array(&r->c, value, f->slots); /* zero is V_MISSING */
    return a;
}

/* Runs nodes with the output going into a string. */
static flow capture(render *r, const nodes *body, jstr **text) {
    sbuf b, *out = r->out;
    sb_init(&b, &r->c);
    r->out = &b;
    flow f = exec_nodes(r, body);
    r->out = out;
    *text = sb_done(&b);
    return f;
}

static void enter_function(render *r) {
    if (++r->depth > r->depth_max)
        jinja_fail(&r->c, "maximum recursion depth exceeded: more than %u calls", r->depth_max);
}

/* ---- assignment -------------------------------------------------------------------------------------------------- */
static void check_namespace(render *r, const node *target) {
    if (target->kind == N_TUPLE)
        for (uint32_t i = 0; i < target->list.n; i++) check_namespace(r, target->list.v[i]);
    if (target->kind == N_ATTR && !v_is(*slot_at(r, target->attr.obj->name.ref), V_NAMESPACE))
        jinja_fail(&r->c, "cannot assign attribute on non-namespace object");
}

static void unpack(render *r, const node *target, value v) {
    if (!can_iterate(v)) jinja_fail(&r->c, "cannot unpack non-iterable %s object", type_name(v));
    iter it;
    value *got = jinja_array(&r->c, value, target->list.n);
    uint32_t n = 0;
    iter_begin(&r->c, &it, v);
    for (; n < target->list.n; n++)
        if (!iter_next(&r->c, &it, &got[n])) break;
    if (n < target->list.n) jinja_fail(&r->c, "not enough values to unpack (expected %u, got %u)", target->list.n, n);
    value extra;
    if (iter_next(&r->c, &it, &extra)) jinja_fail(&r->c, "too many values to unpack (expected %u)", n);
    for (uint32_t i = 0; i < n; i++) assign(r, target->list.v[i], got[i]);
}

void assign(render *r, const node *target, value v) {
    if (target->kind == N_TUPLE)
        unpack(r, target, v);
    else if (target->kind == N_ATTR)
        dict_set(&r->c, slot_at(r, target->attr.obj->name.ref)->dict, v_str(target->attr.name), v);
    else {
        *slot_at(r, target->name.ref) = v;
        if (target->flag) dict_set(&r->c, r->exported, v_str(target->name.name), v);
    }
}

static flow exec_set(render *r, const node *n) {
    check_namespace(r, n->set.target);
    assign(r, n->set.target, eval(r, n->set.value));
    return FLOW_ON;
}

static flow exec_set_block(render *r, const node *n) {
    jstr *text;
    scope_enter(r, &n->setblock.scope);
    flow f = capture(r, &n->setblock.body, &text);
    if (f == FLOW_ON) {
        value v = v_str(text);
        if (n->setblock.filter) v = eval_filter(r, n->setblock.filter, v);
        check_namespace(r, n->setblock.target);
        assign(r, n->setblock.target, v);
    }
    scope_leave(r, &n->setblock.scope);
    return f;
}

static flow exec_filter_block(render *r, const node *n) {
    jstr *text;
    scope_enter(r, &n->setblock.scope);
    flow f = capture(r, &n->setblock.body, &text);
    if (f == FLOW_ON) sb_value(r->out, eval_filter(r, n->setblock.filter, v_str(text)));
    scope_leave(r, &n->setblock.scope);
    return f;
}

static flow exec_with(render *r, const node *n) {
    scope_enter(r, &n->with->scope);
    for (uint32_t i = 0; i < n->with->targets.n; i++) assign(r, n->with->targets.v[i], eval(r, n->with->values.v[i]));
    flow f = exec_nodes(r, &n->with->body);
    scope_leave(r, &n->with->scope);
    return f;
}

static flow exec_scope(render *r, const node *n) {
    scope_enter(r, &n->plain->scope);
    flow f = exec_nodes(r, &n->plain->body);
    scope_leave(r, &n->plain->scope);
    return f;
}

static flow exec_block(render *r, const node *n) {
    activation *frame = r->frame;
    enter_function(r);
    r->frame = activation_new(r, n->block->func, NULL);
    scope_enter(r, &n->block->scope);
    exec_nodes(r, &n->block->body);
    r->frame = frame;
    r->depth--;
    return FLOW_ON;
}

static flow exec_if(render *r, const node *n) {
    for (uint32_t i = 0; i < n->cond.n; i++) {
        const struct branch *b = &n->cond.branches[i];
        if (!b->test || truthy(&r->c, eval(r, b->test))) return exec_nodes(r, &b->body);
    }
    return FLOW_ON;
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */
/* The next item that passes the loop's own `if`. */
static bool loop_pull(render *r, jloop *l, value *out) {
    activation *frame = r->frame;
    bool found = false;
    while (!found && iter_next(&r->c, &l->it, out)) {
        jinja_step(&r->c, 1);
        found = !l->filtered;
        if (found) break;
        r->frame = l->frame; /* a macro that got `loop` as an argument may be asking */
        scope_enter(r, &l->n->loop->test_scope);
        assign(r, l->n->loop->test_target, *out);
        found = truthy(&r->c, eval(r, l->n->loop->test));
        r->frame = frame;
    }
    return found;
}

bool loop_next(render *r, jloop *l) {
    value v = l->after;
    l->after = v_missing();
    if (v_is(v, V_MISSING) && !loop_pull(r, l, &v)) return false;
    l->index0++;
    l->before = l->current;
    l->current = v;
    return true;
}

static value loop_peek(render *r, jloop *l) {
    value v;
    if (v_is(l->after, V_MISSING) && loop_pull(r, l, &v)) l->after = v;
    return l->after;
}

static int64_t loop_length(render *r, jloop *l) {
    if (l->length >= 0) return l->length;
    if (!l->filtered) l->length = value_len(&r->c, l->iterable);
    if (l->length >= 0) return l->length;
    jlist *rest = list_new(&r->c, 8);
    bool peeked = !v_is(l->after, V_MISSING);
    value first = l->after, v;
    l->after = v_missing();
    while (!v_is(v = loop_peek(r, l), V_MISSING)) {
        list_push(&r->c, rest, v);
        l->after = v_missing();
    }
    l->after = first;
    l->length = (int64_t)rest->n + l->index0 + 1 + peeked;
    iter_begin(&r->c, &l->it, v_list(rest));
    l->filtered = false; /* what is left has passed */
    return l->length;
}

static value attr_index(render *r, jloop *l) {
    return v_int(l->index0 + 1);
}
static value attr_index0(render *r, jloop *l) {
    return v_int(l->index0);
}
static value attr_first(render *r, jloop *l) {
    return v_bool(l->index0 == 0);
}
static value attr_last(render *r, jloop *l) {
    return v_bool(v_is(loop_peek(r, l), V_MISSING));
}
static value attr_length(render *r, jloop *l) {
    return v_int(loop_length(r, l));
}
static value attr_revindex(render *r, jloop *l) {
    return v_int(loop_length(r, l) - l->index0);
}
static value attr_revindex0(render *r, jloop *l) {
    return v_int(loop_length(r, l) - l->index0 - 1);
}
static value attr_depth(render *r, jloop *l) {
    return v_int(l->depth0 + 1);
}
static value attr_depth0(render *r, jloop *l) {
    return v_int(l->depth0);
}
static value attr_previtem(render *r, jloop *l) {
    return l->index0 == 0 ? v_undefined(&r->c, "there is no previous item") : l->before;
}
static value attr_nextitem(render *r, jloop *l) {
    value v = loop_peek(r, l);
    return v_is(v, V_MISSING) ? v_undefined(&r->c, "there is no next item") : v;
}
static const struct {
    const char *name;
    value (*get)(render *r, jloop *l);
} loop_attrs[] = {
    {"index", attr_index},         {"index0", attr_index0},     {"first", attr_first},
    {"last", attr_last},           {"length", attr_length},     {"revindex", attr_revindex},
    {"revindex0", attr_revindex0}, {"previtem", attr_previtem}, {"nextitem", attr_nextitem},
    {"depth", attr_depth},         {"depth0", attr_depth0},
};
value loop_attr(core *c, jloop *l, str name, bool *found) {
    for (size_t i = 0; i < COUNT(loop_attrs); i++) {
        if (!str_is(name, loop_attrs[i].name)) continue;
        *found = true;
        return loop_attrs[i].get(render_of(c), l);
    }
    *found = false;
    return v_missing();
}

/* Runs the loop over v inside r->frame, which already belongs to the loop when it is recursive. */
static flow loop_run(render *r, const node *n, value v, int64_t depth0, activation *outer) {
    jloop *l = jinja_new(&r->c, jloop);
    *l = (jloop){.iterable = v,
                 .index0 = -1,
                 .length = -1,
                 .depth0 = depth0,
                 .n = n,
                 .outer = outer,
                 .frame = r->frame,
                 .filtered = n->loop->test != NULL};
    iter_begin(&r->c, &l->it, v);
    bool finished_one = false;
    while (loop_next(r, l)) {
        assign(r, n->loop->target, l->current);
        if (n->loop->has_loop) *slot_at(r, n->loop->loop_ref) = (value){.type = V_LOOP, .loop = l};
        scope_enter(r, &n->loop->scope);
        flow f = exec_nodes(r, &n->loop->body);
        if (f == FLOW_BREAK) break;
        if (f == FLOW_ON)
            finished_one = true; /* as in Jinja2, an iteration that was cut short does not count for `else` */
    }
    scope_leave(r, &n->loop->scope);
    if (finished_one || !n->loop->orelse.n) return FLOW_ON;
    scope_enter(r, &n->loop->else_scope);
    flow f = exec_nodes(r, &n->loop->orelse);
    scope_leave(r, &n->loop->else_scope);
    return f;
}

static value loop_function(render *r, const node *n, value v, int64_t depth0, activation *outer) {
    activation *frame = r->frame;
    sbuf b, *out = r->out;
    enter_function(r);
    sb_init(&b, &r->c);
    r->out = &b;
    r->frame = activation_new(r, n->loop->func, outer);
    loop_run(r, n, v, depth0, outer);
    r->frame = frame;
    r->out = out;
    r->depth--;
    return v_str(sb_done(&b));
}

value loop_call(core *c, jloop *l, const args *a) {
    if (!l->n->loop->func) jinja_fail(c, "The loop must have the 'recursive' marker to be called recursively.");
    if (a->n != 1 || a->n_named) jinja_fail(c, "loop() takes one argument: what to iterate over");
    return loop_function(render_of(c), l->n, a->pos[0], l->depth0 + 1, l->outer);
}

static flow exec_for(render *r, const node *n) {
    value v = eval(r, n->loop->iter);
    if (!n->loop->func) return loop_run(r, n, v, 0, NULL);
    sb_value(r->out, loop_function(r, n, v, 0, r->frame));
    return FLOW_ON;
}

/* ---- macros ------------------------------------------------------------------------------------------------------ */
static value macro_make(render *r, const node *n) {
    jmacro *m = jinja_new(&r->c, jmacro);
    *m = (jmacro){n, r->frame};
    return (value){.type = V_MACRO, .macro = m};
}

static const char *macro_name(core *c, const node *n) {
    return n->macro->name ? text_of(c, value_repr(c, v_str(n->macro->name))) : "None";
}

/* Takes the argument called `name` out of `used`-marked keyword arguments. */
static bool take_named(const args *a, bool *used, const jstr *name, value *out) {
    for (size_t i = 0; i < a->n_named; i++) {
        if (used[i] || !str_same(a->names[i], name)) continue;
        used[i] = true;
        *out = a->named[i];
        return true;
    }
    return false;
}

static void bind_arguments(core *c, const node *n, value *slots, const args *a) {
    const nodes *params = &n->macro->params;
    bool *used = jinja_alloc(c, a->n_named + 1);
    bool found_caller = n->macro->explicit_caller && a->n >= params->n;
    for (uint32_t i = 0; i < params->n; i++) {
        value *slot = &slots[params->v[i]->name.ref.slot];
        if (i < a->n)
            *slot = a->pos[i];
        else {
            take_named(a, used, params->v[i]->name.name, slot);
            if (str_is((str){params->v[i]->name.name->p, params->v[i]->name.name->n}, "caller")) found_caller = true;
        }
    }
    if (n->macro->uses_caller && !found_caller) {
        value v;
        bool given = take_named(a, used, str_lit(c, "caller"), &v) && !v_is(v, V_NONE);
        slots[n->macro->caller_slot] = given ? v : v_undefined(c, "No caller defined");
    }
    jdict *rest = n->macro->uses_kwargs ? dict_new(c) : NULL;
    for (size_t i = 0; i < a->n_named; i++) {
        if (used[i]) continue;
        if (!rest) jinja_fail(c, "macro %s takes no keyword argument '%s'", macro_name(c, n), text_of(c, a->names[i]));
        dict_set(c, rest, v_str(a->names[i]), a->named[i]);
    }
    if (rest) slots[n->macro->kwargs_slot] = v_dict(rest);
    if (n->macro->uses_varargs) {
        jlist *more = list_new(c, 4);
        for (size_t i = params->n; i < a->n; i++) list_push(c, more, a->pos[i]);
        slots[n->macro->varargs_slot] = v_tuple(more);
    } else if (a->n > params->n)
        jinja_fail(c, "macro %s takes not more than %u argument(s)", macro_name(c, n), params->n);
}

value macro_call(core *c, jmacro *m, const args *a) {
    render *r = render_of(c);
    const node *n = m->n;
    const nodes *params = &n->macro->params;
    activation *frame = r->frame;
    uint32_t line = c->line;
    enter_function(r);
    activation *own = activation_new(r, n->macro->func, m->outer);
    bind_arguments(c, n, own->slots, a);
    r->frame = own;
    scope_enter(r, &n->macro->scope);
    uint32_t required = params->n - n->macro->defaults.n;
    for (uint32_t i = 0; i < params->n; i++) {
        const node *p = params->v[i];
        value *slot = &own->slots[p->name.ref.slot];
        if (!v_is(*slot, V_MISSING)) continue;
        if (i >= required)
            *slot = eval(r, n->macro->defaults.v[i - required]);
        else
            *slot = v_undefined(c, arena_printf(c->a, "parameter '%s' was not provided", text_of(c, p->name.name)));
    }
    jstr *text;
    capture(r, &n->macro->body, &text);
    r->frame = frame;
    r->depth--;
    c->line = line;
    return v_str(text);
}

static flow exec_macro(render *r, const node *n) {
    value m = macro_make(r, n);
    *slot_at(r, n->macro->ref) = m;
    if (n->macro->top) dict_set(&r->c, r->exported, v_str(n->macro->name), m);
    return FLOW_ON;
}

static flow exec_call_block(render *r, const node *n) {
    value caller = macro_make(r, n);
    if (!n->macro->call) {
        sb_value(r->out, macro_call(&r->c, caller.macro, &(args){0}));
        return FLOW_ON;
    }
    args a;
    value f = eval(r, n->macro->call->call.f);
    eval_args(r, n->macro->call->call.args, &a);
    jstr **names = jinja_array(&r->c, jstr *, a.n_named + 1);
    value *named = jinja_array(&r->c, value, a.n_named + 1);
    for (size_t i = 0; i < a.n_named; i++) names[i] = a.names[i], named[i] = a.named[i];
    names[a.n_named] = str_lit(&r->c, "caller");
    named[a.n_named++] = caller;
    a.names = names;
    a.named = named;
    sb_value(r->out, value_call(&r->c, f, &a));
    return FLOW_ON;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */
static flow exec_output(render *r, const node *n) {
    for (uint32_t i = 0; i < n->list.n; i++) {
        const node *o = n->list.v[i];
        r->c.line = o->line;
        if (o->kind == N_DATA)
            sb_str(r->out, o->data);
        else
            sb_value(r->out, eval(r, o));
        if (r->out->n > r->bytes_max) jinja_fail(&r->c, "the output has more than %zu bytes", r->bytes_max);
    }
    return FLOW_ON;
}
static flow exec_break(render *r, const node *n) {
    return FLOW_BREAK;
}
static flow exec_continue(render *r, const node *n) {
    return FLOW_CONTINUE;
}

static flow (*const executors[N_KINDS])(render *r, const node *n) = {
    [N_OUTPUT] = exec_output,
    [N_SET] = exec_set,
    [N_SETBLOCK] = exec_set_block,
    [N_IF] = exec_if,
    [N_FOR] = exec_for,
    [N_MACRO] = exec_macro,
    [N_CALLBLOCK] = exec_call_block,
    [N_FILTERBLOCK] = exec_filter_block,
    [N_WITH] = exec_with,
    [N_SCOPE] = exec_scope,
    [N_BLOCK] = exec_block,
    [N_BREAK] = exec_break,
    [N_CONTINUE] = exec_continue,
};

flow exec_nodes(render *r, const nodes *body) {
    jinja_guard(&r->c);
    for (uint32_t i = 0; i < body->n; i++) {
        const node *n = body->v[i];
        jinja_step(&r->c, 1);
        r->c.line = n->line;
        flow f = executors[n->kind](r, n);
        if (f != FLOW_ON) return f;
    }
    return FLOW_ON;
}

static jdict *variables(core *c, const json *vars, const json *trusted) {
    jdict *d = dict_new(c);
    const json *both[] = {vars, trusted};
    for (uint8_t k = 0; k < 2; k++) {
        if (!both[k] || both[k]->type != JSON_OBJECT) continue;
        for (uint32_t i = 0; i < both[k]->n; i++) {
            const json_member *m = &both[k]->members[i];
            dict_set(c, d, v_str(str_new(c, m->key.p, m->key.n, 0)), value_of_json(c, &m->value, k == 0));
        }
    }
    return d;
}

bool jinja_render_trusted(const jinja *j, const json *vars, const json *trusted, const jinja_limits *limits,
                          int64_t now_unix, buf *out, buf *user, error *err) {
    jinja_limits l = limits ? *limits : (jinja_limits){0};
    size_t bytes_max = l.bytes_max ? l.bytes_max : (size_t)256 << 20;
    render *r = mem_alloc(sizeof *r);
    r->c.a = arena_new(l.memory_max ? l.memory_max : bytes_max * 2 + ((size_t)64 << 20));
    r->c.err = err;
    r->c.steps_max = l.steps_max ? l.steps_max : 50 * 1000 * 1000;
    r->c.stack = __builtin_frame_address(0);
    r->depth_max = l.depth_max ? l.depth_max : 100;
    r->bytes_max = bytes_max;
    r->now_unix = now_unix ? now_unix : clock_unix();
    r->j = j;
    bool ok = false;
    sbuf b;
    if (setjmp(r->c.fail) == 0) {
        sb_init(&b, &r->c);
        r->out = &b;
        r->vars = variables(&r->c, vars, trusted);
        r->exported = dict_new(&r->c);
        r->frame = activation_new(r, &j->func, NULL);
        scope_enter(r, &j->scope);
        exec_nodes(r, &j->body);
        buf_add(out, b.p, b.n);
        if (user) {
            buf_reserve(user, b.n);
            for (size_t i = 0; i < b.n; i++) buf_putc(user, (char)(b.mask ? b.mask[i] : b.user));
        }
        ok = true;
    }
    arena_free(r->c.a);
    free(r);
    return ok;
}

bool jinja_render(const jinja *j, const json *vars, const jinja_limits *limits, int64_t now_unix, buf *out, buf *user,
                  error *err) {
    return jinja_render_trusted(j, vars, NULL, limits, now_unix, out, user, err);
}
