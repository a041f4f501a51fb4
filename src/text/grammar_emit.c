/* Expressions become a program: places that consume a byte (BRANCH), choose (SPLIT), call a rule (CALL), count (LOOP)
 * or run two programs side by side (AND). Equal places are made once, so a class of characters is a minimal automaton
 * and a list of words is a trie. Places that can never lead to an end are left out. Not here: running it
 * (grammar_match.c). */
#include <stdlib.h>
#include <xxhash.h>
#include "grammar_internal.h"

enum { OPS_MAX = 1 << 20, EDGES_MAX = 1 << 22, UNROLL_MAX = 4 };

typedef struct emitter {
    program *p;
    builder *b;
    error *err;
    bool failed;
    uint32_t *slot; /* owns; hash of places, 0: free */
    uint32_t n_slots;
} emitter;

static uint32_t fail(emitter *e, const char *what) {
    if (!e->failed) error_set(e->err, ERR_INVALID, "the grammar is too large: %s", what);
    e->failed = true;
    return PC_DEAD;
}

/* ---- places, each made once -------------------------------------------------------------------------------------- */
static uint64_t op_hash(const program *p, const op *o) {
    uint64_t h = XXH3_64bits(&o->min, 8) ^ (uint64_t)o->kind << 1 ^ (uint64_t)o->negate;
    if (o->kind == OP_BRANCH)
        for (uint32_t i = 0; i < o->b; i++) {
            const op_edge *g = &p->edge[o->a + i];
            h = (h ^ ((uint64_t)g->to << 16 | (uint64_t)g->lo << 8 | g->hi)) * 0x9E3779B97F4A7C15u;
        }
    else if (o->kind == OP_SPLIT)
        h ^= o->b ? XXH3_64bits(p->target + o->a, o->b * sizeof(uint32_t)) : 0;
    else
        h ^= XXH3_64bits(&o->a, 12);
    return h ^ h >> 29;
}
static bool op_same(const program *p, const op *x, const op *y) {
    if (x->kind != y->kind || x->negate != y->negate || x->min != y->min || x->max != y->max || x->b != y->b)
        return false;
    if (x->kind == OP_SPLIT) return !x->b || !memcmp(p->target + x->a, p->target + y->a, x->b * sizeof(uint32_t));
    if (x->kind != OP_BRANCH) return x->a == y->a && x->c == y->c;
    for (uint32_t i = 0; i < x->b; i++) {
        const op_edge *g = &p->edge[x->a + i], *h = &p->edge[y->a + i];
        if (g->lo != h->lo || g->hi != h->hi || g->to != h->to) return false;
    }
    return true;
}
static uint32_t op_new(emitter *e, op o) {
    program *p = e->p;
    if (p->n_op >= OPS_MAX) return fail(e, "more than 1048576 places");
    GROW(p->op, p->n_op, p->cap_op, 1);
    p->op[p->n_op] = o;
    return p->n_op++;
}
static void slots_grow(emitter *e) {
    e->n_slots = MAX(e->n_slots * 2, 1024u);
    free(e->slot);
    e->slot = mem_alloc(e->n_slots * sizeof *e->slot);
    for (uint32_t i = PC_FIRST; i < e->p->n_op; i++) {
        uint32_t at = (uint32_t)op_hash(e->p, &e->p->op[i]) & (e->n_slots - 1);
        while (e->slot[at]) at = (at + 1) & (e->n_slots - 1);
        e->slot[at] = i;
    }
}
static uint32_t op_find(emitter *e, op o) {
    if (e->p->n_op * 2 >= e->n_slots) slots_grow(e);
    uint32_t at = (uint32_t)op_hash(e->p, &o) & (e->n_slots - 1);
    for (; e->slot[at]; at = (at + 1) & (e->n_slots - 1))
        if (op_same(e->p, &e->p->op[e->slot[at]], &o)) return e->slot[at];
    return e->slot[at] = op_new(e, o);
}

typedef struct edges {
    op_edge *p; /* owns */
    uint32_t n, cap;
} edges;
static void edge_add(edges *v, uint8_t lo, uint8_t hi, uint32_t to) {
    if (to == PC_DEAD) return;
    if (v->n && v->p[v->n - 1].to == to && v->p[v->n - 1].hi + 1 == lo) {
        v->p[v->n - 1].hi = hi;
        return;
    }
    GROW(v->p, v->n, v->cap, 1);
    v->p[v->n++] = (op_edge){lo, hi, to};
}
static uint32_t branch(emitter *e, const edges *v) {
    program *p = e->p;
    if (!v->n) return PC_DEAD;
    if (p->n_edge + v->n > EDGES_MAX) return fail(e, "more than 4194304 edges");
    GROW(p->edge, p->n_edge, p->cap_edge, v->n);
    memcpy(p->edge + p->n_edge, v->p, v->n * sizeof *v->p);
    uint32_t before = p->n_op;
    p->n_edge += v->n;
    uint32_t pc = op_find(e, (op){.kind = OP_BRANCH, .a = p->n_edge - v->n, .b = v->n});
    if (p->n_op == before) p->n_edge -= v->n; /* it was there */
    return pc;
}
static int u32_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
/* to [n] is sorted in place. */
static uint32_t split(emitter *e, uint32_t *to, uint32_t n) {
    program *p = e->p;
    qsort(to, n, sizeof *to, u32_order);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (to[i] != PC_DEAD && (!kept || to[kept - 1] != to[i])) to[kept++] = to[i];
    if (kept == 0) return PC_DEAD;
    if (kept == 1) return to[0];
    if (p->n_target + kept > EDGES_MAX) return fail(e, "more than 4194304 choices");
    GROW(p->target, p->n_target, p->cap_target, kept);
    memcpy(p->target + p->n_target, to, kept * sizeof *to);
    uint32_t before = p->n_op;
    p->n_target += kept;
    uint32_t pc = op_find(e, (op){.kind = OP_SPLIT, .a = p->n_target - kept, .b = kept});
    if (p->n_op == before) p->n_target -= kept;
    return pc;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */
typedef struct byte_seq { /* one range of bytes a position */
    uint8_t n, lo[4], hi[4];
} byte_seq;
typedef struct byte_seqs {
    byte_seq *p; /* owns */
    uint32_t n, cap;
} byte_seqs;
/* Cuts a range of code points so that each piece is a product of ranges of bytes. */
static void utf8_cut(uint32_t lo, uint32_t hi, byte_seqs *out) {
    static const uint32_t last[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    for (int i = 0; i < 3; i++)
        if (lo <= last[i] && last[i] < hi) {
            utf8_cut(lo, last[i], out);
            utf8_cut(last[i] + 1, hi, out);
            return;
        }
    if (lo >= 0x80)
        for (int i = 1; i < 4; i++) {
            uint32_t m = (1u << (6 * i)) - 1;
            if ((lo & ~m) == (hi & ~m)) break;
            if (lo & m) {
                utf8_cut(lo, lo | m, out);
                utf8_cut((lo | m) + 1, hi, out);
                return;
            }
            if ((hi & m) != m) {
                utf8_cut(lo, (hi & ~m) - 1, out);
                utf8_cut(hi & ~m, hi, out);
                return;
            }
        }
    char a[4], z[4];
    byte_seq s = {.n = (uint8_t)utf8_put(a, lo)};
    utf8_put(z, hi);
    for (int i = 0; i < s.n; i++) s.lo[i] = (uint8_t)a[i], s.hi[i] = (uint8_t)z[i];
    GROW(out->p, out->n, out->cap, 1);
    out->p[out->n++] = s;
}
static uint32_t seqs_branch(emitter *e, const byte_seq *s, uint32_t n, int at, uint32_t next) {
    edges v = {0};
    for (uint32_t i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && s[j].lo[at] == s[i].lo[at] && s[j].hi[at] == s[i].hi[at] && s[j].n == s[i].n;) j++;
        edge_add(&v, s[i].lo[at], s[i].hi[at], at + 1 == s[i].n ? next : seqs_branch(e, s + i, j - i, at + 1, next));
    }
    uint32_t pc = branch(e, &v);
    free(v.p);
    return pc;
}
static uint32_t emit_class(emitter *e, const gx_node *n, uint32_t next) {
    byte_seqs s = {0};
    for (uint32_t i = 0; i < n->b; i++) utf8_cut(e->b->range[n->a + i].lo, e->b->range[n->a + i].hi, &s);
    uint32_t pc = seqs_branch(e, s.p, s.n, 0, next);
    free(s.p);
    return pc;
}
static uint32_t emit_lit(emitter *e, str s, uint32_t next) {
    for (size_t i = s.n; i-- > 0 && !e->failed;) {
        op_edge one = {(uint8_t)s.p[i], (uint8_t)s.p[i], next};
        next = branch(e, &(edges){.p = &one, .n = 1});
    }
    return next;
}

/* ---- words with common beginnings -------------------------------------------------------------------------------- */
static int word_order(const void *a, const void *b) {
    const str *x = a, *y = b;
    int c = memcmp(x->p, y->p, MIN(x->n, y->n));
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}
/* Sorted words [n] that agree in their first `at` bytes. Long common parts are walked in a loop. */
static uint32_t emit_words(emitter *e, const str *w, uint32_t n, size_t at, uint32_t next) {
    while (n && w[0].n == at && n > 1 && w[1].n == at) w++, n--; /* equal ones */
    if (n == 1) return emit_lit(e, str_slice(w[0], at, w[0].n), next);
    size_t common = at;
    while (common < w[0].n && w[n - 1].n > common && w[n - 1].p[common] == w[0].p[common]) common++;
    uint32_t pcs[2] = {PC_DEAD, PC_DEAD}, i = 0;
    if (w[0].n == common) {
        pcs[0] = next;
        while (i < n && w[i].n == common) i++;
    }
    edges v = {0};
    for (uint32_t j; i < n; i = j) {
        for (j = i + 1; j < n && w[j].p[common] == w[i].p[common];) j++;
        uint8_t byte = (uint8_t)w[i].p[common];
        edge_add(&v, byte, byte, emit_words(e, w + i, j - i, common + 1, next));
    }
    pcs[1] = branch(e, &v);
    free(v.p);
    return emit_lit(e, str_slice(w[0], at, common), split(e, pcs, 2));
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */
static uint32_t emit(emitter *e, gx x, uint32_t next);

static uint32_t emit_alt(emitter *e, const gx_node n, uint32_t next) {
    builder *b = e->b;
    uint32_t *to = mem_alloc((n.b + 1) * sizeof *to), n_to = 0;
    str *word = mem_alloc((n.b + 1) * sizeof *word);
    uint32_t words = 0;
    for (uint32_t i = 0; i < n.b && !e->failed; i++) {
        const gx_node *k = &b->x[b->kid[n.a + i]];
        if (k->kind == X_LIT)
            word[words++] = (str){b->bytes.p + k->a, k->b};
        else
            to[n_to++] = emit(e, b->kid[n.a + i], next);
    }
    if (words) {
        qsort(word, words, sizeof *word, word_order);
        to[n_to++] = emit_words(e, word, words, 0, next);
    }
    uint32_t pc = split(e, to, n_to);
    free(to);
    free(word);
    return pc;
}
static uint32_t emit_star(emitter *e, gx kid, bool once, uint32_t next) {
    program *p = e->p;
    uint32_t loop = op_new(e, (op){.kind = OP_SPLIT, .min = 1}); /* its own place: min keeps it apart */
    uint32_t body = emit(e, kid, loop);
    if (e->failed) return PC_DEAD;
    if (body == PC_DEAD) return once ? PC_DEAD : next;
    if (p->n_target + 2 > EDGES_MAX) return fail(e, "more than 4194304 choices");
    GROW(p->target, p->n_target, p->cap_target, 2);
    p->target[p->n_target] = body;
    p->target[p->n_target + 1] = next;
    p->op[loop].a = p->n_target;
    p->op[loop].b = 2;
    p->n_target += 2;
    return once ? body : loop;
}
static uint32_t emit_rep(emitter *e, const gx_node n, uint32_t next) {
    if (n.max == GX_INF && n.min <= 1) return emit_star(e, n.a, n.min == 1, next);
    if (n.max == 1) {
        uint32_t to[2] = {emit(e, n.a, next), next};
        return split(e, to, 2);
    }
    if (n.max <= UNROLL_MAX && e->b->x[n.a].kind == X_CLASS) {
        uint32_t pc = next;
        for (uint32_t i = n.max; i-- > 0;) {
            uint32_t to[2] = {emit(e, n.a, pc), i < n.min ? PC_DEAD : next};
            pc = split(e, to, 2);
        }
        return pc;
    }
    uint32_t body = emit(e, n.a, PC_RET);
    if (body == PC_DEAD) return n.min ? PC_DEAD : next;
    return op_find(e, (op){.kind = OP_LOOP, .a = body, .b = next, .min = n.min, .max = n.max});
}
static uint32_t emit(emitter *e, gx x, uint32_t next) {
    builder *b = e->b;
    const gx_node n = b->x[x];
    if (e->failed || next == PC_DEAD) return PC_DEAD;
    switch (n.kind) {
    case X_EMPTY: return next;
    case X_LIT: return emit_lit(e, (str){b->bytes.p + n.a, n.b}, next);
    case X_CLASS: return emit_class(e, &n, next);
    case X_SEQ:
        for (uint32_t i = n.b; i-- > 0;) next = emit(e, b->kid[n.a + i], next);
        return next;
    case X_ALT: return emit_alt(e, n, next);
    case X_REP: return emit_rep(e, n, next);
    case X_RULE:
        if (!b->rule[n.a].productive) return PC_DEAD;
        return op_find(e, (op){.kind = OP_CALL, .a = n.a, .b = next});
    case X_AND: {
        uint32_t left = emit(e, n.a, PC_ACCEPT), right = emit(e, n.b, PC_ACCEPT);
        if (left == PC_DEAD || (right == PC_DEAD && !n.negate)) return PC_DEAD;
        return op_find(e, (op){.kind = OP_AND, .negate = n.negate, .a = left, .b = right, .c = next});
    }
    default: return PC_DEAD;
    }
}

/* ---- classes of bytes -------------------------------------------------------------------------------------------- */
static void classes_find(program *p) {
    bool cut[257] = {true};
    for (uint32_t i = 0; i < p->n_op; i++) {
        const op *o = &p->op[i];
        if (o->kind != OP_BRANCH) continue;
        for (uint32_t k = 0; k < o->b; k++) cut[p->edge[o->a + k].lo] = cut[p->edge[o->a + k].hi + 1] = true;
    }
    /* UTF-8's own borders, so that a class is wholly inside or outside of what begins or continues a character. */
    static const uint16_t border[] = {0x20, 0x22, 0x23, 0x5C, 0x5D, 0x80, 0x90, 0xA0, 0xC0, 0xC2,
                                      0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
    for (size_t i = 0; i < COUNT(border); i++) cut[border[i]] = true;
    p->n_cls = 0;
    for (int i = 0; i < 256; i++) {
        if (cut[i]) p->byte[p->n_cls++] = (uint8_t)i;
        p->cls[i] = (uint8_t)(p->n_cls - 1);
    }
}

bool program_emit(program *p, builder *b, gx root, error *err) {
    *p = (program){0};
    emitter e = {.p = p, .b = b, .err = err};
    static const op fixed[PC_FIRST] = {{.kind = OP_ACCEPT}, {.kind = OP_HOLE}, {.kind = OP_RET}, {.kind = OP_BRANCH}};
    for (int i = 0; i < PC_FIRST; i++) op_new(&e, fixed[i]);
    p->n_rule = b->n_rule;
    p->entry = mem_alloc((b->n_rule + 1) * sizeof *p->entry);
    for (uint32_t i = 0; i < b->n_rule && !e.failed; i++)
        p->entry[i] = b->rule[i].productive ? emit(&e, b->rule[i].body, PC_RET) : PC_DEAD;
    p->root = emit(&e, root, PC_ACCEPT);
    if (!e.failed && p->root == PC_DEAD) error_set(err, ERR_INVALID, "no text at all satisfies the grammar");
    free(e.slot);
    if (e.failed || p->root == PC_DEAD) {
        program_deinit(p);
        return false;
    }
    classes_find(p);
    return true;
}
void program_deinit(program *p) {
    free(p->op);
    free(p->edge);
    free(p->target);
    free(p->entry);
    *p = (program){0};
}
