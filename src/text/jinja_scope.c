/* Jinja: which variable a name means, decided once. The rules are those of Jinja2's compiler, oddities included:
 *   - a template, a macro, a call block, a recursive loop are functions; a name is a slot of one of them;
 *   - for, with, set blocks and filter blocks are scopes: what they assign starts as a copy of the outer value each
 * time they are entered, and does not leak;
 *   - an if is no scope, but a name it assigns may still come from the caller's variables when the branch did not run;
 *   - a name assigned in a scope before anything read it starts unset there, even when the caller passed a variable so
 * named. Two passes over each scope: declare its names (visiting stops at inner scopes), then bind uses and go into the
 * inner scopes. Not here: values (jinja_exec.c enters scopes, jinja_eval.c reads names). */
#include "jinja_internal.h"

typedef struct bfunc {
    func *f;
    uint16_t level;
} bfunc;
typedef struct syms {
    struct syms *parent;
    bfunc *fn;
    scope *sc; /* what entering does; each load is also the declaration of its name */
    bool top;  /* the template's own scope: assignments are visible to blocks */
} syms;
typedef struct binder {
    core *c;
    bool declaring, branch;
} binder;

static void visit(binder *b, syms *s, node *n);
static void visit_all(binder *b, syms *s, const nodes *l) {
    for (uint32_t i = 0; i < l->n; i++) visit(b, s, l->v[i]);
}

static scope_load *find_here(core *c, const syms *s, const jstr *name) {
    jinja_step(c, s->sc->n);
    for (uint32_t i = 0; i < s->sc->n; i++)
        if (str_same(s->sc->loads[i].name, name)) return &s->sc->loads[i];
    return NULL;
}

/* The slot `name` has in s or outwards, as seen from s. */
static bool find_ref(core *c, const syms *s, const jstr *name, slot_ref *ref) {
    for (const syms *o = s; o; o = o->parent) {
        scope_load *l = find_here(c, o, name);
        if (!l) continue;
        *ref = (slot_ref){(uint16_t)(s->fn->level - o->fn->level), l->slot};
        return true;
    }
    return false;
}

static scope_load *declare(core *c, syms *s, load_kind kind, jstr *name) {
    scope *sc = s->sc;
    if (sc->n == sc->cap) {
        uint32_t cap = sc->cap ? sc->cap * 2 : 8;
        scope_load *l = jinja_array(c, scope_load, cap);
        if (sc->n) memcpy(l, sc->loads, sc->n * sizeof *l);
        sc->loads = l;
        sc->cap = cap;
    }
    scope_load *l = &sc->loads[sc->n++];
    *l = (scope_load){.kind = kind, .slot = s->fn->f->slots++, .name = name};
    return l;
}

static uint32_t declare_param(core *c, syms *s, jstr *name) {
    scope_load *l = find_here(c, s, name);
    if (!l) l = declare(c, s, LOAD_PARAM, name);
    l->kind = LOAD_PARAM;
    return l->slot;
}

static void declare_store(binder *b, syms *s, jstr *name) {
    if (find_here(b->c, s, name)) return;
    slot_ref from;
    if (s->parent && find_ref(b->c, s->parent, name, &from)) {
        from.up = (uint16_t)(from.up + s->fn->level - s->parent->fn->level);
        declare(b->c, s, LOAD_ALIAS, name)->from = from;
    } else
        declare(b->c, s, b->branch ? LOAD_RESOLVE : LOAD_UNDEFINED, name);
}

static void name_load(binder *b, syms *s, jstr *name, slot_ref *ref) {
    if (b->declaring) {
        slot_ref any;
        if (!find_ref(b->c, s, name, &any)) declare(b->c, s, LOAD_RESOLVE, name);
    } else if (!find_ref(b->c, s, name, ref))
        jinja_fail(b->c, "'%s' cannot be resolved", text_of(b->c, name));
}

static void name_store(binder *b, syms *s, node *n) {
    if (b->declaring)
        declare_store(b, s, n->name.name);
    else {
        name_load(b, s, n->name.name, &n->name.ref);
        n->flag = s->top;
    }
}

/* Loop targets and with-targets are parameters of their scope. */
static void declare_target(binder *b, syms *s, const node *n) {
    if (n->kind == N_NAME)
        declare_param(b->c, s, n->name.name);
    else
        for (uint32_t i = 0; i < n->list.n; i++) declare_target(b, s, n->list.v[i]);
}

static void visit_args(binder *b, syms *s, call_args *a) {
    visit_all(b, s, &a->pos);
    for (uint32_t i = 0; i < a->n_named; i++) visit(b, s, a->named[i].value);
    if (a->star) visit(b, s, a->star);
    if (a->star2) visit(b, s, a->star2);
}

/* Declares the names of an inner scope's nodes, then binds them. */
static void inner(binder *b, syms *s, const nodes *body, node *also) {
    binder in = {.c = b->c, .declaring = true};
    visit_all(&in, s, body);
    if (also) visit(&in, s, also);
    in.declaring = false;
    visit_all(&in, s, body);
    if (also) visit(&in, s, also);
}

static void bind_for(binder *b, syms *s, node *n) {
    bfunc own = {n->loop->func, (uint16_t)(s->fn->level + 1)};
    bfunc *fn = n->loop->func ? &own : s->fn;
    if (n->loop->test) {
        syms t = {s, fn, &n->loop->test_scope, false};
        declare_target(b, &t, n->loop->test_target);
        inner(b, &t, &(nodes){0}, n->loop->test);
        visit(b, &t, n->loop->test_target);
    }
    syms in = {s, fn, &n->loop->scope, false};
    if (n->loop->has_loop) n->loop->loop_ref = (slot_ref){0, declare_param(b->c, &in, str_lit(b->c, "loop"))};
    declare_target(b, &in, n->loop->target);
    inner(b, &in, &n->loop->body, NULL);
    visit(b, &in, n->loop->target);
    syms other = {s, fn, &n->loop->else_scope, false};
    inner(b, &other, &n->loop->orelse, NULL);
}

static void visit_for(binder *b, syms *s, node *n) {
    visit(b, s, n->loop->iter);
    if (!b->declaring) bind_for(b, s, n);
}

static void bind_macro(binder *b, syms *s, node *n) {
    bfunc fn = {n->macro->func, (uint16_t)(s->fn->level + 1)};
    syms in = {s, &fn, &n->macro->scope, false};
    for (uint32_t i = 0; i < n->macro->params.n; i++) declare_param(b->c, &in, n->macro->params.v[i]->name.name);
    if (n->macro->uses_caller) n->macro->caller_slot = declare_param(b->c, &in, str_lit(b->c, "caller"));
    if (n->macro->uses_kwargs) n->macro->kwargs_slot = declare_param(b->c, &in, str_lit(b->c, "kwargs"));
    if (n->macro->uses_varargs) n->macro->varargs_slot = declare_param(b->c, &in, str_lit(b->c, "varargs"));
    binder inb = {.c = b->c, .declaring = true};
    visit_all(&inb, &in, &n->macro->defaults);
    visit_all(&inb, &in, &n->macro->body);
    inb.declaring = false;
    visit_all(&inb, &in, &n->macro->params);
    visit_all(&inb, &in, &n->macro->defaults);
    visit_all(&inb, &in, &n->macro->body);
}

static void visit_macro(binder *b, syms *s, node *n) {
    if (b->declaring) {
        declare_store(b, s, n->macro->name);
        return;
    }
    name_load(b, s, n->macro->name, &n->macro->ref);
    n->macro->top = s->top;
    bind_macro(b, s, n);
}

static void visit_call_block(binder *b, syms *s, node *n) {
    if (n->macro->call) visit(b, s, n->macro->call);
    if (!b->declaring) bind_macro(b, s, n);
}

static void visit_set_block(binder *b, syms *s, node *n) {
    visit(b, s, n->setblock.target);
    if (b->declaring) return;
    syms in = {s, s->fn, &n->setblock.scope, false};
    inner(b, &in, &n->setblock.body, n->setblock.filter);
}

static void visit_filter_block(binder *b, syms *s, node *n) {
    if (b->declaring) {
        visit(b, s, n->setblock.filter);
        return;
    }
    syms in = {s, s->fn, &n->setblock.scope, false};
    inner(b, &in, &n->setblock.body, n->setblock.filter);
}

static void visit_with(binder *b, syms *s, node *n) {
    visit_all(b, s, &n->with->values);
    if (b->declaring) return;
    syms in = {s, s->fn, &n->with->scope, false};
    for (uint32_t i = 0; i < n->with->targets.n; i++) declare_target(b, &in, n->with->targets.v[i]);
    inner(b, &in, &n->with->body, NULL);
    visit_all(b, &in, &n->with->targets);
}

static void visit_if(binder *b, syms *s, node *n) {
    bool branch = b->branch;
    for (uint32_t i = 0; i < n->cond.n; i++) {
        if (i) b->branch = true; /* the test of an elif belongs to a branch; it assigns nothing */
        if (n->cond.branches[i].test) visit(b, s, n->cond.branches[i].test);
        b->branch = true;
        visit_all(b, s, &n->cond.branches[i].body);
    }
    b->branch = branch;
}

static void visit_block(binder *b, syms *s, node *n) {
    if (b->declaring) return;
    bfunc fn = {n->block->func, 0};
    syms in = {NULL, &fn, &n->block->scope, false};
    inner(b, &in, &n->block->body, NULL);
}

static void visit_scope(binder *b, syms *s, node *n) {
    if (b->declaring) return;
    syms in = {s, s->fn, &n->plain->scope, false};
    inner(b, &in, &n->plain->body, NULL);
}

static void visit_set(binder *b, syms *s, node *n) {
    visit(b, s, n->set.value);
    visit(b, s, n->set.target);
}
static void visit_name(binder *b, syms *s, node *n) {
    if (n->store)
        name_store(b, s, n);
    else
        name_load(b, s, n->name.name, &n->name.ref);
}
static void visit_list(binder *b, syms *s, node *n) {
    visit_all(b, s, &n->list);
}
static void visit_two(binder *b, syms *s, node *n) {
    if (n->two.a) visit(b, s, n->two.a);
    if (n->two.b) visit(b, s, n->two.b);
    if (n->two.c) visit(b, s, n->two.c);
}
static void visit_compare(binder *b, syms *s, node *n) {
    visit(b, s, n->compare.first);
    for (uint32_t i = 0; i < n->compare.n; i++) visit(b, s, n->compare.ops[i].value);
}
static void visit_attr(binder *b, syms *s, node *n) {
    visit(b, s, n->attr.obj);
}
static void visit_item(binder *b, syms *s, node *n) {
    visit(b, s, n->item.obj);
    visit(b, s, n->item.key);
}
static void visit_call(binder *b, syms *s, node *n) {
    visit(b, s, n->call.f);
    visit_args(b, s, n->call.args);
}
static void visit_filter(binder *b, syms *s, node *n) {
    if (n->filter.obj) visit(b, s, n->filter.obj);
    visit_args(b, s, n->filter.args);
}

static void (*const visitors[N_KINDS])(binder *b, syms *s, node *n) = {
    [N_NAME] = visit_name,
    [N_TUPLE] = visit_list,
    [N_LIST] = visit_list,
    [N_DICT] = visit_list,
    [N_UNARY] = visit_two,
    [N_BINARY] = visit_two,
    [N_NOT] = visit_two,
    [N_AND] = visit_two,
    [N_OR] = visit_two,
    [N_COMPARE] = visit_compare,
    [N_CONCAT] = visit_list,
    [N_COND] = visit_two,
    [N_ATTR] = visit_attr,
    [N_ITEM] = visit_item,
    [N_SLICE] = visit_two,
    [N_CALL] = visit_call,
    [N_FILTER] = visit_filter,
    [N_TEST] = visit_filter,
    [N_OUTPUT] = visit_list,
    [N_SET] = visit_set,
    [N_SETBLOCK] = visit_set_block,
    [N_IF] = visit_if,
    [N_FOR] = visit_for,
    [N_MACRO] = visit_macro,
    [N_CALLBLOCK] = visit_call_block,
    [N_FILTERBLOCK] = visit_filter_block,
    [N_WITH] = visit_with,
    [N_SCOPE] = visit_scope,
    [N_BLOCK] = visit_block,
};

static void visit(binder *b, syms *s, node *n) {
    jinja_guard(b->c);
    jinja_step(b->c, 1);
    if (!visitors[n->kind]) return;
    b->c->line = n->line;
    visitors[n->kind](b, s, n);
}

void jinja_bind(core *c, struct jinja *j) {
    bfunc fn = {&j->func, 0};
    syms root = {NULL, &fn, &j->scope, true};
    binder b = {.c = c, .declaring = true};
    visit_all(&b, &root, &j->body);
    b.declaring = false;
    visit_all(&b, &root, &j->body);
}
