/* Expressions: what the front ends of grammars build. Constructors simplify as they go; gx_check makes a finished set
 * of rules fit for a machine that works from left to right. Not here: the program (grammar_emit.c). */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_internal.h"

enum { NODES_MAX = 1 << 21, DEPTH_MAX = 600, STRIP_DEPTH = 40, LEFT_DEPTH = 4000 };

/* ---- sets of code points ----------------------------------------------------------------------------------------- */
void cp_add(cp_set *s, uint32_t lo, uint32_t hi) {
    GROW(s->p, s->n, s->cap, 1);
    s->p[s->n++] = (cp_range){lo, hi};
}
void cp_add_set(cp_set *s, const cp_set *t) {
    for (size_t i = 0; i < t->n; i++) cp_add(s, t->p[i].lo, t->p[i].hi);
}
static int range_order(const void *a, const void *b) {
    const cp_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}
void cp_normalise(cp_set *s) {
    if (!s->n) return;
    qsort(s->p, s->n, sizeof *s->p, range_order);
    size_t n = 0;
    for (size_t i = 1; i < s->n; i++) {
        if (s->p[i].lo <= s->p[n].hi + 1)
            s->p[n].hi = MAX(s->p[n].hi, s->p[i].hi);
        else
            s->p[++n] = s->p[i];
    }
    s->n = n + 1;
}
static void cp_cut_surrogates(cp_set *s) {
    for (size_t i = 0, n = s->n; i < n; i++) {
        cp_range r = s->p[i];
        if (r.hi < 0xD800 || r.lo > 0xDFFF) continue;
        s->p[i].hi = r.lo < 0xD800 ? 0xD7FF : 0;
        s->p[i].lo = r.lo < 0xD800 ? r.lo : 1; /* empty: dropped below */
        if (r.hi > 0xDFFF) cp_add(s, 0xE000, r.hi);
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->p[i].lo <= s->p[i].hi) s->p[n++] = s->p[i];
    s->n = n;
    if (n > 1) qsort(s->p, n, sizeof *s->p, range_order); /* not joined over the gap */
}
void cp_invert(cp_set *s) {
    cp_normalise(s);
    cp_set out = {0};
    uint32_t at = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i].lo > at) cp_add(&out, at, s->p[i].lo - 1);
        at = s->p[i].hi + 1;
    }
    if (at <= 0x10FFFF) cp_add(&out, at, 0x10FFFF);
    free(s->p);
    *s = out;
}
bool cp_has(const cp_set *s, uint32_t cp) {
    for (size_t i = 0; i < s->n; i++)
        if (cp >= s->p[i].lo && cp <= s->p[i].hi) return true;
    return false;
}

/* ---- the builder ------------------------------------------------------------------------------------------------- */
static gx node_add(builder *b, gx_node n) {
    if (b->failed) return GX_NEVER;
    if (b->n_x >= NODES_MAX) return builder_fail(b, "the grammar is too large: more than %d parts", NODES_MAX);
    if (n.depth > DEPTH_MAX) return builder_fail(b, "the grammar is nested too deeply: more than %d levels", DEPTH_MAX);
    GROW(b->x, b->n_x, b->cap_x, 1);
    b->x[b->n_x] = n;
    return b->n_x++;
}
void builder_init(builder *b, error *err) {
    *b = (builder){.a = arena_new(0), .err = err, .known = map_new(64)};
    node_add(b, (gx_node){.kind = X_NEVER});
    node_add(b, (gx_node){.kind = X_EMPTY});
}
void builder_deinit(builder *b) {
    arena_free(b->a);
    map_free(b->known);
    free(b->x);
    free(b->kid);
    free(b->range);
    free(b->rule);
    buf_free(&b->bytes);
    for (uint32_t i = 0; i < b->n_property; i++) free(b->property[i].set.p);
    free(b->property);
}
gx builder_fail(builder *b, const char *fmt, ...) {
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!b->failed) error_set(b->err, ERR_INVALID, "%s", text);
    b->failed = true;
    return GX_NEVER;
}
void gx_push(gx_list *l, gx x) {
    GROW(l->p, l->n, l->cap, 1);
    l->p[l->n++] = x;
}

static uint16_t deeper(const builder *b, gx x) {
    return (uint16_t)MIN(b->x[x].depth + 1, DEPTH_MAX + 1);
}
gx gx_lit(builder *b, str s) {
    if (!s.n) return GX_EMPTY;
    uint32_t at = (uint32_t)b->bytes.n;
    if (b->bytes.n + s.n > (size_t)NODES_MAX * 16) return builder_fail(b, "the grammar's texts are too large");
    buf_str(&b->bytes, s);
    return node_add(b, (gx_node){.kind = X_LIT, .a = at, .b = (uint32_t)s.n});
}
gx gx_class(builder *b, const cp_set *given) {
    cp_set s = {0};
    cp_add_set(&s, given);
    cp_normalise(&s);
    cp_cut_surrogates(&s);
    gx x = GX_NEVER;
    if (s.n) {
        GROW(b->range, b->n_range, b->cap_range, (uint32_t)s.n);
        memcpy(b->range + b->n_range, s.p, s.n * sizeof *s.p);
        b->n_range += (uint32_t)s.n;
        x = node_add(b, (gx_node){.kind = X_CLASS, .a = b->n_range - (uint32_t)s.n, .b = (uint32_t)s.n});
    }
    free(s.p);
    return x;
}
gx gx_range(builder *b, uint32_t lo, uint32_t hi) {
    cp_range r = {lo, hi};
    return gx_class(b, &(cp_set){.p = &r, .n = 1});
}
static gx list_add(builder *b, gx_kind kind, const gx *kid, size_t n) {
    uint16_t depth = 0;
    if (b->n_kid + n > NODES_MAX * 4u) return builder_fail(b, "the grammar is too large");
    GROW(b->kid, b->n_kid, b->cap_kid, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        b->kid[b->n_kid + i] = kid[i];
        depth = MAX(depth, deeper(b, kid[i]));
    }
    b->n_kid += (uint32_t)n;
    return node_add(b, (gx_node){.kind = kind, .a = b->n_kid - (uint32_t)n, .b = (uint32_t)n, .depth = depth});
}
gx gx_seq(builder *b, const gx *kid, size_t n) {
    gx_list l = {0};
    gx x = GX_EMPTY;
    for (size_t i = 0; i < n; i++) {
        if (kid[i] == GX_NEVER) goto never;
        if (kid[i] != GX_EMPTY) gx_push(&l, kid[i]);
    }
    if (l.n == 1) x = l.p[0];
    if (l.n > 1) x = list_add(b, X_SEQ, l.p, l.n);
    free(l.p);
    return x;
never:
    free(l.p);
    return GX_NEVER;
}
gx gx_alt(builder *b, const gx *kid, size_t n) {
    gx_list l = {0};
    for (size_t i = 0; i < n; i++) {
        bool seen = kid[i] == GX_NEVER;
        for (size_t k = 0; k < l.n && k < 16; k++) seen |= l.p[k] == kid[i];
        if (!seen) gx_push(&l, kid[i]);
    }
    gx x = l.n == 0 ? GX_NEVER : l.n == 1 ? l.p[0] : list_add(b, X_ALT, l.p, l.n);
    free(l.p);
    return x;
}
gx gx_rep(builder *b, gx kid, uint32_t min, uint32_t max) {
    if (max == 0 || kid == GX_EMPTY) return GX_EMPTY;
    if (kid == GX_NEVER) return min ? GX_NEVER : GX_EMPTY;
    if (max < min) return GX_NEVER;
    if (min == 1 && max == 1) return kid;
    return node_add(b, (gx_node){.kind = X_REP, .a = kid, .min = min, .max = max, .depth = deeper(b, kid)});
}
gx gx_and(builder *b, gx left, gx right, bool negate) {
    if (left == GX_NEVER) return GX_NEVER;
    if (right == GX_NEVER) return negate ? left : GX_NEVER;
    return node_add(
        b,
        (gx_node){
            .kind = X_AND, .a = left, .b = right, .negate = negate, .depth = MAX(deeper(b, left), deeper(b, right))});
}
size_t gx_token_mark(char out[4], int32_t id) {
    out[0] = (char)TOKEN_MARK;
    for (int i = 0; i < 3; i++) out[1 + i] = (char)(0x80 | (id >> (14 - 7 * i) & 127));
    return 4;
}
gx gx_token(builder *b, int32_t id) {
    char mark[4] = {0};
    return gx_lit(b, (str){mark, gx_token_mark(mark, id)});
}
uint32_t gx_rule_new(builder *b, const char *name) {
    if (b->n_rule >= NODES_MAX) {
        builder_fail(b, "the grammar has too many rules");
        return 0;
    }
    GROW(b->rule, b->n_rule, b->cap_rule, 1);
    b->rule[b->n_rule] = (gx_rule){.name = arena_copy(b->a, name, strlen(name))};
    return b->n_rule++;
}
void gx_rule_define(builder *b, uint32_t rule, gx body) {
    if (b->failed) return;
    b->rule[rule].body = body;
    b->rule[rule].defined = true;
}
gx gx_call(builder *b, uint32_t rule) {
    return node_add(b, (gx_node){.kind = X_RULE, .a = rule});
}

/* ---- what is nullable, what can ever end ------------------------------------------------------------------------- */
bool gx_nullable(const builder *b, gx x) {
    const gx_node *n = &b->x[x];
    switch (n->kind) {
    case X_EMPTY: return true;
    case X_SEQ:
        for (uint32_t i = 0; i < n->b; i++)
            if (!gx_nullable(b, b->kid[n->a + i])) return false;
        return true;
    case X_ALT:
        for (uint32_t i = 0; i < n->b; i++)
            if (gx_nullable(b, b->kid[n->a + i])) return true;
        return false;
    case X_REP: return n->min == 0 || gx_nullable(b, n->a);
    case X_RULE: return b->rule[n->a].nullable;
    case X_AND: return gx_nullable(b, n->a) && gx_nullable(b, n->b) != n->negate;
    default: return false;
    }
}
static bool productive(const builder *b, gx x) {
    const gx_node *n = &b->x[x];
    switch (n->kind) {
    case X_NEVER: return false;
    case X_SEQ:
        for (uint32_t i = 0; i < n->b; i++)
            if (!productive(b, b->kid[n->a + i])) return false;
        return true;
    case X_ALT:
        for (uint32_t i = 0; i < n->b; i++)
            if (productive(b, b->kid[n->a + i])) return true;
        return false;
    case X_REP: return n->min == 0 || productive(b, n->a);
    case X_RULE: return b->rule[n->a].productive;
    case X_AND: return productive(b, n->a) && (n->negate || productive(b, n->b));
    default: return true;
    }
}
static void calls_of(const builder *b, gx x, ids *out) {
    const gx_node *n = &b->x[x];
    if (n->kind == X_RULE) ids_push(out, (int32_t)n->a);
    if (n->kind == X_REP || n->kind == X_AND) calls_of(b, n->a, out);
    if (n->kind == X_AND) calls_of(b, n->b, out);
    for (uint32_t i = 0; (n->kind == X_SEQ || n->kind == X_ALT) && i < n->b; i++) calls_of(b, b->kid[n->a + i], out);
}
/* A rule is looked at again when one that it calls has changed. */
static void rules_settle(builder *b) {
    const uint32_t n = b->n_rule;
    ids call = {0};
    uint32_t *from = mem_alloc((n + 2) * sizeof *from), *caller, *queue = mem_alloc((n + 1) * sizeof *queue);
    size_t *at = mem_alloc((n + 1) * sizeof *at);
    uint8_t *queued = mem_alloc(n + 1);
    for (uint32_t i = 0; i < n; i++) {
        b->rule[i].nullable = b->rule[i].productive = false;
        calls_of(b, b->rule[i].body, &call);
        at[i] = call.n;
    }
    for (size_t i = 0; i < call.n; i++) from[call.p[i] + 1]++;
    for (uint32_t i = 0; i < n; i++) from[i + 1] += from[i];
    caller = mem_alloc((call.n + 1) * sizeof *caller);
    uint32_t *fill = mem_alloc((n + 1) * sizeof *fill);
    for (uint32_t i = 0, k = 0; i < n; i++)
        for (; k < at[i]; k++) caller[from[call.p[k]] + fill[call.p[k]]++] = i;
    uint32_t n_queue = 0;
    for (uint32_t i = 0; i < n; i++) queue[n_queue++] = i, queued[i] = 1;
    while (n_queue) {
        uint32_t i = queue[--n_queue];
        gx_rule *r = &b->rule[i];
        queued[i] = 0;
        bool nullable = gx_nullable(b, r->body), ends = productive(b, r->body);
        if (nullable == r->nullable && ends == r->productive) continue;
        r->nullable = nullable;
        r->productive = ends;
        for (uint32_t k = from[i]; k < from[i + 1]; k++)
            if (!queued[caller[k]]) queue[n_queue++] = caller[k], queued[caller[k]] = 1;
    }
    ids_free(&call);
    free(from);
    free(caller);
    free(queue);
    free(at);
    free(queued);
    free(fill);
}

/* ---- left recursion ---------------------------------------------------------------------------------------------- */
static bool starts_with_rule(const builder *b, gx x, uint32_t rule) {
    const gx_node *n = &b->x[x];
    if (n->kind == X_SEQ) n = &b->x[b->kid[n->a]];
    return n->kind == X_RULE && n->a == rule;
}
/* r: r A | B  becomes  r: B A*. */
static void rule_unwind(builder *b, uint32_t rule) {
    gx body = b->rule[rule].body;
    const gx_node n = b->x[body];
    gx_list tail = {0}, head = {0};
    uint32_t count = n.kind == X_ALT ? n.b : 1;
    for (uint32_t i = 0; i < count; i++) {
        gx k = n.kind == X_ALT ? b->kid[n.a + i] : body;
        if (!starts_with_rule(b, k, rule)) {
            gx_push(&head, k);
        } else if (b->x[k].kind == X_SEQ) {
            gx_list rest = {0};
            for (uint32_t j = 1; j < b->x[k].b; j++) gx_push(&rest, b->kid[b->x[k].a + j]);
            gx_push(&tail, gx_seq(b, rest.p, rest.n));
            free(rest.p);
        } /* else r: r, which says nothing */
    }
    if (tail.n || head.n < count)
        b->rule[rule].body = GX_SEQ(b, gx_alt(b, head.p, head.n), gx_rep(b, gx_alt(b, tail.p, tail.n), 0, GX_INF));
    free(tail.p);
    free(head.p);
}

enum { MARK_NEW, MARK_OPEN, MARK_DONE };
typedef struct left_walk {
    builder *b;
    uint32_t depth;
} left_walk;
static bool left_rule(left_walk *w, uint32_t rule);
static bool left_expr(left_walk *w, gx x) {
    builder *b = w->b;
    const gx_node n = b->x[x];
    switch (n.kind) {
    case X_SEQ:
        for (uint32_t i = 0; i < n.b; i++) {
            if (!left_expr(w, b->kid[n.a + i])) return false;
            if (!gx_nullable(b, b->kid[n.a + i])) break;
        }
        return true;
    case X_ALT:
        for (uint32_t i = 0; i < n.b; i++)
            if (!left_expr(w, b->kid[n.a + i])) return false;
        return true;
    case X_REP: return left_expr(w, n.a);
    case X_AND: return left_expr(w, n.a) && left_expr(w, n.b);
    case X_RULE: return left_rule(w, n.a);
    default: return true;
    }
}
static bool left_rule(left_walk *w, uint32_t rule) {
    gx_rule *r = &w->b->rule[rule];
    if (r->mark == MARK_DONE) return true;
    if (r->mark == MARK_OPEN) {
        builder_fail(w->b, "rule %s is left-recursive through other rules, which is not supported", r->name);
        return false;
    }
    if (++w->depth > LEFT_DEPTH) {
        builder_fail(w->b, "rules call each other too deeply at their start: more than %d", LEFT_DEPTH);
        return false;
    }
    r->mark = MARK_OPEN;
    bool ok = left_expr(w, r->body);
    w->b->rule[rule].mark = MARK_DONE;
    w->depth--;
    return ok;
}

/* ---- repetitions that would repeat nothing ----------------------------------------------------------------------- */
/* x without the empty text. */
static gx stripped(builder *b, gx x, int depth) {
    if (!gx_nullable(b, x)) return x;
    const gx_node n = b->x[x];
    if (depth > STRIP_DEPTH) return builder_fail(b, "a counted repetition of rules that may be empty is too deep");
    gx_list l = {0};
    gx out = GX_NEVER;
    switch (n.kind) {
    case X_ALT:
        for (uint32_t i = 0; i < n.b; i++) gx_push(&l, stripped(b, b->kid[n.a + i], depth + 1));
        out = gx_alt(b, l.p, l.n);
        break;
    case X_SEQ: /* the first part that is not empty, then the rest as it is */
        for (uint32_t i = 0; i < n.b; i++) {
            gx_list s = {0};
            gx_push(&s, stripped(b, b->kid[n.a + i], depth + 1));
            for (uint32_t j = i + 1; j < n.b; j++) gx_push(&s, b->kid[n.a + j]);
            gx_push(&l, gx_seq(b, s.p, s.n));
            free(s.p);
        }
        out = gx_alt(b, l.p, l.n);
        break;
    case X_REP: out = gx_rep(b, stripped(b, n.a, depth + 1), 1, n.max); break;
    case X_RULE: out = stripped(b, b->rule[n.a].body, depth + 1); break;
    case X_AND: out = gx_and(b, stripped(b, n.a, depth + 1), n.b, n.negate); break;
    default: break;
    }
    free(l.p);
    return out;
}
static void reps_check(builder *b) {
    for (uint32_t i = 0; i < b->n_x && !b->failed; i++) { /* stripping adds nodes, which are looked at in their turn */
        gx_node n = b->x[i];
        if (n.kind != X_REP || (n.min <= 1 && n.max == GX_INF) || n.max <= 1 || !gx_nullable(b, n.a)) continue;
        gx kid = stripped(b, n.a, 0);
        if (kid == GX_NEVER)
            b->x[i] = (gx_node){.kind = X_EMPTY};
        else
            b->x[i].a = kid, b->x[i].min = 0;
    }
}

bool gx_check(builder *b, gx *root) {
    for (uint32_t i = 0; i < b->n_rule && !b->failed; i++)
        if (!b->rule[i].defined) builder_fail(b, "rule %s is used but not defined", b->rule[i].name);
    for (uint32_t i = 0; i < b->n_rule && !b->failed; i++) rule_unwind(b, i);
    if (b->failed) return false;
    rules_settle(b);
    left_walk w = {b, 0};
    for (uint32_t i = 0; i < b->n_rule; i++)
        if (!left_rule(&w, i)) return false;
    reps_check(b);
    if (b->failed) return false;
    rules_settle(b);
    if (!productive(b, *root)) builder_fail(b, "no text at all satisfies it");
    return !b->failed;
}
