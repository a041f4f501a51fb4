/* The machine: a state is a set of program places, each with the set of places to return to. Equal sets are one object,
 * so that a state has a number, and where a byte leads from it is computed once: an automaton that grows as it is used.
 * A place occurs once in a state however many ways led there (their continuations are joined), so a state is never
 * larger than the program, whatever the ambiguity. Counters are numbers in continuations, not copies of the program.
 * Not here: masks (grammar_mask.c). */
#include <stdlib.h>
#include "grammar_internal.h"

enum {
    K_CAP = 1 << 16,
    STATE_CAP = 1 << 14,
    K_ITEMS = 1 << 19,
    STATE_ITEMS = 1 << 19,
    WORK_CAP = 1 << 15, /* items of one closure */
    SLOT_CAP = 1 << 17,
    ALIVE_CAP = 1 << 16, /* pairs of an AND whose fate is known */
    ALIVE_TRIES = 1024,  /* pairs looked at before the answer is "perhaps" */
    UNION_DEPTH = 64,
    BUDGET = 6000000, /* places looked at for one mask or token: some tens of milliseconds */
    AND_MAX = 64,     /* AND places in one state */
};

/* ---- sets, each kept once ---------------------------------------------------------------------------------------- */
static int item_order(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->pc != y->pc) return x->pc < y->pc ? -1 : 1;
    if (x->x != y->x) return x->x < y->x ? -1 : 1;
    if (x->y != y->y) return x->y < y->y ? -1 : 1;
    return x->k < y->k ? -1 : x->k > y->k;
}
static uint32_t items_hash(const item *p, uint32_t n) {
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)p[i].pc << 32 | p[i].x)) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 31 ^ ((uint64_t)p[i].k << 32 | p[i].y)) * 0xBF58476D1CE4E5B9u;
    }
    return (uint32_t)(h ^ h >> 32);
}
/* Sorted items [n]; 0 when the table is full. */
static uint32_t set_intern(grammar *g, set_table *t, const item *p, uint32_t n) {
    uint32_t h = items_hash(p, n) & t->mask;
    for (uint32_t i = t->bucket[h]; i; i = t->chain[i])
        if (t->n[i] == n && !memcmp(t->item + t->at[i], p, n * sizeof *p)) return i;
    if (t->count >= t->cap || t->item_n + n > t->item_cap) {
        g->overflow = true;
        return 0;
    }
    uint32_t id = t->count++;
    t->at[id] = t->item_n;
    t->n[id] = n;
    memcpy(t->item + t->item_n, p, n * sizeof *p);
    t->item_n += n;
    t->chain[id] = t->bucket[h];
    t->bucket[h] = id;
    return id;
}
static uint32_t k_single(grammar *g, uint32_t pc, uint32_t x, uint32_t k) {
    return set_intern(g, &g->k, &(item){.pc = pc, .x = x, .k = k}, 1);
}
static bool holds(const grammar *g, uint32_t whole, uint32_t part) {
    const set_table *t = &g->k;
    uint32_t i = t->at[whole], end = i + t->n[whole];
    for (uint32_t j = t->at[part], last = j + t->n[part]; j < last; j++) {
        while (i < end && item_order(&t->item[i], &t->item[j]) < 0) i++;
        if (i == end || item_order(&t->item[i], &t->item[j])) return false;
    }
    return true;
}
/* Both; places that are in both keep one entry whose continuations are joined. */
static uint32_t k_union(grammar *g, uint32_t a, uint32_t b, int depth) {
    if (a == b || !b) return a;
    if (!a) return b;
    if (holds(g, a, b)) return a;
    set_table *t = &g->k;
    uint32_t na = t->n[a], nb = t->n[b];
    item few[64], *out = na + nb <= COUNT(few) ? few : mem_alloc((na + nb) * sizeof *out);
    uint32_t i = t->at[a], j = t->at[b], ei = i + na, ej = j + nb, n = 0;
    while (i < ei || j < ej) {
        const item *x = i < ei ? &t->item[i] : NULL, *y = j < ej ? &t->item[j] : NULL;
        bool same = x && y && x->pc == y->pc && x->x == y->x;
        if (same && x->k != y->k && depth < UNION_DEPTH) {
            item one = *x;
            one.k = k_union(g, x->k, y->k, depth + 1);
            out[n++] = one;
            i++, j++;
        } else if (same && x->k == y->k) {
            out[n++] = *x;
            i++, j++;
        } else if (!y || (x && item_order(x, y) < 0)) {
            out[n++] = *x;
            i++;
        } else {
            out[n++] = *y;
            j++;
        }
    }
    uint32_t id = set_intern(g, t, out, n);
    if (out != few) free(out);
    return id;
}

/* ---- closures: everything reachable without a byte --------------------------------------------------------------- */
static void closure_begin(grammar *g) {
    g->n_work = g->n_queue = 0;
    g->need_and = 0;
    if (++g->epoch == 0) {
        memset(g->slot_epoch, 0, SLOT_CAP * sizeof *g->slot_epoch);
        g->epoch = 1;
    }
}
static void closure_add(grammar *g, uint32_t pc, uint32_t x, uint32_t y, uint32_t k) {
    uint64_t h = ((uint64_t)pc << 32 | x) * 0x9E3779B97F4A7C15u ^ y * 0xBF58476D1CE4E5B9u;
    uint32_t at = (uint32_t)(h >> 40) & (SLOT_CAP - 1);
    for (; g->slot_epoch[at] == g->epoch; at = (at + 1) & (SLOT_CAP - 1)) {
        uint32_t i = g->slot[at];
        item *w = &g->work[i];
        if (w->pc != pc || w->x != x || w->y != y) continue;
        uint32_t joined = pc == PC_ACCEPT || pc == PC_HOLE ? w->k : k_union(g, w->k, k, 0);
        if (joined == w->k || g->overflow) return;
        w->k = joined;
        if (!g->queued[i]) g->queued[i] = 1, g->queue[g->n_queue++] = i;
        return;
    }
    if (g->n_work == WORK_CAP) {
        g->overflow = true;
        return;
    }
    uint32_t i = g->n_work++;
    g->slot_epoch[at] = g->epoch;
    g->slot[at] = i;
    g->work[i] = (item){pc, x, y, pc == PC_ACCEPT || pc == PC_HOLE ? 0 : k};
    g->queued[i] = 1;
    g->queue[g->n_queue++] = i;
}
static void closure_return(grammar *g, uint32_t k) {
    for (uint32_t i = 0; i < g->k.n[k]; i++) {
        const item e = g->k.item[g->k.at[k] + i];
        closure_add(g, e.pc, e.x, 0, e.k);
    }
}
static void closure_visit(grammar *g, const item w) {
    const program *p = &g->p;
    const op *o = &p->op[w.pc];
    switch (o->kind) {
    case OP_SPLIT:
        for (uint32_t i = 0; i < o->b; i++) closure_add(g, p->target[o->a + i], 0, 0, w.k);
        break;
    case OP_RET: closure_return(g, w.k); break;
    case OP_CALL: closure_add(g, p->entry[o->a], 0, 0, o->b == PC_RET ? w.k : k_single(g, o->b, 0, w.k)); break;
    case OP_LOOP:
        if (w.x >= o->min) closure_add(g, o->b, 0, 0, w.k);
        if (w.x < o->max) {
            uint32_t done = o->max == GX_INF ? MIN(w.x + 1, o->min) : w.x + 1;
            closure_add(g, o->a, 0, 0, k_single(g, w.pc, done, w.k));
        }
        break;
    case OP_AND:
        if (w.x) {
            bool left = g->flags[w.x] & F_ACCEPT, right = g->flags[w.y] & F_ACCEPT;
            if (left && right != o->negate) closure_add(g, o->c, 0, 0, w.k);
        } else if (g->and_left[w.pc] == STATE_UNKNOWN) {
            g->need_and = w.pc;
        } else if (g->and_left[w.pc]) {
            closure_add(g, w.pc, g->and_left[w.pc], g->and_right[w.pc], w.k);
        }
        break;
    default: break;
    }
}
static void closure_run(grammar *g) {
    while (g->n_queue && !g->overflow && !g->need_and) {
        uint32_t i = g->queue[--g->n_queue];
        g->queued[i] = 0;
        closure_visit(g, g->work[i]);
    }
    while (g->n_queue) g->queued[g->queue[--g->n_queue]] = 0;
}
/* The places of a finished closure that matter as a state. */
static uint32_t closure_end(grammar *g) {
    uint32_t n = 0;
    uint8_t flags = 0;
    if (g->overflow) return STATE_DEAD;
    for (uint32_t i = 0; i < g->n_work; i++) {
        const item w = g->work[i];
        const op *o = &g->p.op[w.pc];
        if (o->kind == OP_BRANCH) {
            if (!o->b) continue;
            flags |= F_MORE;
        } else if (o->kind == OP_AND) {
            if (!w.x || !(g->flags[w.x] & F_MORE)) continue;
            flags |= F_MORE;
        } else if (o->kind == OP_ACCEPT) {
            flags |= F_ACCEPT;
        } else if (o->kind == OP_HOLE) {
            flags |= F_HOLE;
        } else {
            continue;
        }
        g->work[n++] = w;
    }
    if (!n) return STATE_DEAD;
    qsort(g->work, n, sizeof *g->work, item_order);
    uint32_t id = set_intern(g, &g->s, g->work, n);
    if (id && !g->flags[id]) {
        g->flags[id] = flags;
        memset(g->trans + (size_t)id * (size_t)g->p.n_cls, 0xFF, (size_t)g->p.n_cls * sizeof *g->trans);
        g->uniform[id] = g->base[id] = g->base_k[id] = 0;
    }
    return id;
}

static bool and_alive(grammar *g, uint32_t left, uint32_t right, bool negate);
static uint32_t state_at(grammar *g, uint32_t pc, int depth);

/* The first states of an AND are closures of their own; one that needs them starts again once they are there. */
static bool and_open(grammar *g, uint32_t pc, int depth) {
    const op o = g->p.op[pc];
    uint32_t left = state_at(g, o.a, depth + 1), right = left ? state_at(g, o.b, depth + 1) : 0;
    if (g->overflow) return false;
    if (!left || (!right && !o.negate) || !and_alive(g, left, right, o.negate)) left = STATE_DEAD;
    g->and_left[pc] = left;
    g->and_right[pc] = right;
    return true;
}
static uint32_t state_at(grammar *g, uint32_t pc, int depth) {
    if (pc == PC_DEAD) return STATE_DEAD;
    for (;;) {
        if (depth > 32) g->overflow = true;
        closure_begin(g);
        closure_add(g, pc, 0, 0, K_ACCEPT);
        closure_run(g);
        if (!g->need_and || g->overflow) return closure_end(g);
        if (!and_open(g, g->need_and, depth)) return STATE_DEAD;
    }
}
uint32_t state_after(grammar *g, uint32_t k) {
    for (;;) {
        closure_begin(g);
        closure_return(g, k);
        closure_run(g);
        if (!g->need_and || g->overflow) return closure_end(g);
        if (!and_open(g, g->need_and, 0)) return STATE_DEAD;
    }
}

/* ---- a byte ------------------------------------------------------------------------------------------------------ */
static uint32_t branch_to(const program *p, const op *o, uint8_t byte) {
    const op_edge *e = p->edge + o->a;
    uint32_t lo = 0, hi = o->b;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (e[mid].hi < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < o->b && e[lo].lo <= byte ? e[lo].to : PC_DEAD;
}
static void spend(grammar *g, uint32_t places) {
    g->budget -= (int64_t)places + 8;
    if (g->budget < 0) g->overflow = true;
}
void budget_start(grammar *g) {
    g->budget = BUDGET;
}
static uint32_t step_compute(grammar *g, uint32_t s, uint8_t cls) {
    const program *p = &g->p;
    const uint8_t byte = p->byte[cls];
    item and[AND_MAX];
    uint32_t n_and = 0;
    for (uint32_t i = 0; i < g->s.n[s]; i++) { /* first: their steps need closures of their own */
        const item w = g->s.item[g->s.at[s] + i];
        const op *o = &p->op[w.pc];
        if (o->kind != OP_AND) continue;
        uint32_t left = state_step(g, w.x, cls), right = left && w.y ? state_step(g, w.y, cls) : 0;
        if (!left || (!right && !o->negate)) continue;
        if (!and_alive(g, left, right, o->negate)) continue;
        if (n_and == AND_MAX) g->overflow = true;
        if (g->overflow) return STATE_DEAD;
        and[n_and++] = (item){w.pc, left, right, w.k};
    }
    for (;;) {
        closure_begin(g);
        for (uint32_t i = 0; i < n_and; i++) closure_add(g, and[i].pc, and[i].x, and[i].y, and[i].k);
        for (uint32_t i = 0; i < g->s.n[s]; i++) {
            const item w = g->s.item[g->s.at[s] + i];
            if (p->op[w.pc].kind != OP_BRANCH) continue;
            uint32_t to = branch_to(p, &p->op[w.pc], byte);
            if (to != PC_DEAD) closure_add(g, to, 0, 0, w.k);
        }
        closure_run(g);
        spend(g, g->s.n[s] + g->n_work);
        if (!g->need_and || g->overflow) return closure_end(g);
        if (!and_open(g, g->need_and, 0)) return STATE_DEAD;
    }
}
uint32_t state_step(grammar *g, uint32_t s, uint8_t cls) {
    if (!s) return STATE_DEAD;
    uint32_t *to = &g->trans[(size_t)s * (size_t)g->p.n_cls + cls];
    if (*to != STATE_UNKNOWN || g->overflow) return g->overflow ? STATE_DEAD : *to;
    uint32_t found = step_compute(g, s, cls);
    if (g->overflow) return STATE_DEAD;
    return *to = found;
}

/* ---- does an intersection hold any text? ------------------------------------------------------------------------- */
enum { ALIVE_NEW, ALIVE_YES, ALIVE_NO, ALIVE_OPEN, ALIVE_UNDECIDED };
static struct alive_pair *alive_slot(grammar *g, uint32_t left, uint32_t right) {
    uint32_t at = (left * 0x9E3779B1u ^ right * 0x85EBCA77u) >> 8 & (ALIVE_CAP - 1);
    while (g->alive[at].verdict && (g->alive[at].left != left || g->alive[at].right != right))
        at = (at + 1) & (ALIVE_CAP - 1);
    return &g->alive[at];
}
static void alive_set(grammar *g, uint32_t left, uint32_t right, uint8_t verdict) {
    struct alive_pair *p = alive_slot(g, left, right);
    g->n_alive += !p->verdict;
    *p = (struct alive_pair){left, right, verdict};
    if (g->n_alive > ALIVE_CAP / 2) { /* forgetting is always safe */
        memset(g->alive, 0, ALIVE_CAP * sizeof *g->alive);
        g->n_alive = 0;
    }
}
static bool and_ends(const grammar *g, uint32_t left, uint32_t right, bool negate) {
    if (negate && !right) return true; /* whatever the left side still says */
    return (g->flags[left] & F_ACCEPT) && !(g->flags[right] & F_ACCEPT) == negate;
}
/* Depth first to any end; the way there is alive. Nothing found within the limit counts as alive: better a reply that
 * runs into a wall than one that may not be. */
static bool and_alive(grammar *g, uint32_t left, uint32_t right, bool negate) {
    struct {
        uint32_t left, right;
        int32_t cls;
    } stack[ALIVE_TRIES + 1];
    struct {
        uint32_t left, right;
    } seen[ALIVE_TRIES];
    uint32_t n = 1, n_seen = 0;
    bool found = and_ends(g, left, right, negate), all = true;
    stack[0].left = left, stack[0].right = right, stack[0].cls = -1;
    while (n && !found && all) {
        uint32_t l = stack[n - 1].left, r = stack[n - 1].right;
        if (stack[n - 1].cls < 0) {
            uint8_t v = alive_slot(g, l, r)->verdict;
            found = v == ALIVE_YES || and_ends(g, l, r, negate);
            if (found) break;
            if (v == ALIVE_NO || v == ALIVE_OPEN) {
                n--;
                continue;
            }
            if (n_seen == ALIVE_TRIES) {
                all = false;
                break;
            }
            alive_set(g, l, r, ALIVE_OPEN);
            seen[n_seen].left = l, seen[n_seen++].right = r;
            stack[n - 1].cls = 0;
        }
        if (stack[n - 1].cls == g->p.n_cls) {
            n--;
            continue;
        }
        /* From high bytes to low: what closes comes before what opens or goes on. */
        uint8_t c = (uint8_t)(g->p.n_cls - 1 - stack[n - 1].cls++);
        uint32_t to_l = state_step(g, l, c), to_r = to_l && r ? state_step(g, r, c) : 0;
        if (g->overflow) all = false;
        if (!to_l || (!to_r && !negate)) continue;
        stack[n].left = to_l, stack[n].right = to_r, stack[n].cls = -1;
        n++;
    }
    for (uint32_t i = 0; i < n_seen; i++)
        alive_set(g, seen[i].left, seen[i].right, found || !all ? ALIVE_UNDECIDED : ALIVE_NO);
    if (found || !all)
        for (uint32_t i = 0; i < n; i++) alive_set(g, stack[i].left, stack[i].right, ALIVE_YES);
    return found || !all;
}

/* ---- what a state has in common with others ---------------------------------------------------------------------- */
enum { CHAIN_MAX = 6, PLAIN_MAX = 256 /* places of a state; others are their own base */ };
static uint32_t k_outer(const grammar *g, uint32_t k) { /* where its only place goes on; 0: it has more than one */
    const item *e = &g->k.item[g->k.at[k]];
    return g->k.n[k] == 1 && e->pc != PC_ACCEPT && e->pc != PC_HOLE ? e->k : 0;
}
/* A count that is further from its bounds than the longest token is long: within a token it is as good as another. */
static uint32_t count_plain(const op *o, uint32_t x) {
    const uint32_t far = TOKEN_BYTES_MAX + 1;
    if (o->kind != OP_LOOP) return x;
    if (x >= o->min && o->max != GX_INF && o->max - x > far && o->max - o->min > far) return o->min;
    return x < o->min && o->min - x > far ? 0 : x;
}
/* k with `at` cut off, counts made plain, CHAIN_MAX levels deep. */
static uint32_t k_plain(grammar *g, uint32_t k, uint32_t at, int depth) {
    if (k == at) return K_HOLE;
    if (k <= K_HOLE || depth == CHAIN_MAX || g->k.n[k] > 8) return k;
    item e[8] = {{0}};
    const uint32_t n = g->k.n[k];
    bool apart = true;
    for (uint32_t i = 0; i < n; i++) {
        e[i] = g->k.item[g->k.at[k] + i];
        e[i].x = count_plain(&g->p.op[e[i].pc], e[i].x);
        e[i].k = k_plain(g, e[i].k, at, depth + 1);
    }
    qsort(e, n, sizeof *e, item_order);
    for (uint32_t i = 1; i < n; i++) apart &= e[i].pc != e[i - 1].pc || e[i].x != e[i - 1].x;
    return apart ? set_intern(g, &g->k, e, n) : k;
}
static bool common_find(const grammar *g, uint32_t s, uint32_t *found) {
    const item *p = g->s.item + g->s.at[s];
    uint32_t list[CHAIN_MAX] = {0}, n = 0, need = 0;
    for (uint32_t k = p[0].k; k > K_HOLE && n < CHAIN_MAX; k = k_outer(g, k)) list[n++] = k;
    if (!n) return false;
    for (uint32_t i = 0; i < g->s.n[s]; i++) {
        uint32_t at = n, k = p[i].k;
        for (int d = 0; d < CHAIN_MAX && k > K_HOLE && at == n; d++, k = k_outer(g, k))
            for (uint32_t j = 0; j < n; j++)
                if (list[j] == k) {
                    at = j;
                    break;
                }
        if (at == n) return false;
        need = MAX(need, at);
    }
    /* Not at a counter: the part would end with every repetition. */
    for (; need < n; need++) {
        const item *e = &g->k.item[g->k.at[list[need]]];
        if (g->p.op[e->pc].kind != OP_LOOP) break;
    }
    if (need == n) return false;
    *found = list[need];
    return true;
}
/* The state whose mask this one's is made of: its innermost common continuation is cut off (K_HOLE instead) and counts
 * are made plain, so that states that differ only in what comes after have one base. *k: what was cut off; 0: nothing.
 */
uint32_t state_base(grammar *g, uint32_t s, uint32_t *k) {
    if (g->base[s]) {
        *k = g->base_k[s];
        return g->base[s];
    }
    uint32_t at = 0, base = s, n = g->s.n[s];
    if ((g->flags[s] & F_ACCEPT) || !common_find(g, s, &at)) at = 0;
    if (n > PLAIN_MAX) at = 0;
    if (n <= PLAIN_MAX) {
        g->n_work = n;
        for (uint32_t i = 0; i < n; i++) {
            g->work[i] = g->s.item[g->s.at[s] + i];
            if (g->work[i].pc >= PC_FIRST) g->work[i].k = k_plain(g, g->work[i].k, at, 0);
        }
        base = closure_end(g);
        if (g->overflow) return STATE_DEAD;
    }
    g->base[s] = base;
    g->base_k[s] = at;
    *k = at;
    return base;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */
static void table_rehash(set_table *t, uint32_t first) {
    memset(t->bucket, 0, (t->mask + 1) * sizeof *t->bucket);
    for (uint32_t i = first; i < t->count; i++) {
        uint32_t h = items_hash(t->item + t->at[i], t->n[i]) & t->mask;
        t->chain[i] = t->bucket[h];
        t->bucket[h] = i;
    }
}
/* Keeps the marked sets; map[old] = new. Ids keep their order, so every reference still points backwards. */
static void table_pack(set_table *t, const uint8_t *keep, uint32_t *map, const uint32_t *map_state,
                       const uint32_t *map_k) {
    uint32_t n = 1, items = 0;
    for (uint32_t i = 1; i < t->count; i++) {
        if (!keep[i]) continue;
        for (uint32_t j = 0; j < t->n[i]; j++) {
            item w = t->item[t->at[i] + j];
            w.k = map_k[w.k];
            if (map_state && w.y + w.x && w.pc >= PC_FIRST) { /* only AND has states there */
                w.x = map_state[w.x];
                w.y = map_state[w.y];
            }
            t->item[items + j] = w;
        }
        t->at[n] = items;
        t->n[n] = t->n[i];
        items += t->n[i];
        map[i] = n++;
    }
    t->count = n;
    t->item_n = items;
}
static void tidy(grammar *g) {
    uint8_t *keep_s = mem_alloc(g->s.count), *keep_k = mem_alloc(g->k.count);
    uint32_t *map_s = mem_alloc(g->s.count * sizeof *map_s), *map_k = mem_alloc(g->k.count * sizeof *map_k);
    for (matcher *m = g->first; m; m = m->next) keep_s[m->state] = 1;
    for (int i = 0; i < BASE_MASKS; i++) keep_s[g->mask[i].state] = 1;
    keep_s[g->start] = 1;
    keep_k[K_ACCEPT] = keep_k[K_HOLE] = 1;
    for (uint32_t i = g->s.count; i-- > 1;)
        for (uint32_t j = 0; keep_s[i] && j < g->s.n[i]; j++) {
            const item w = g->s.item[g->s.at[i] + j];
            keep_k[w.k] = 1;
            if (g->p.op[w.pc].kind == OP_AND) keep_s[w.x] = keep_s[w.y] = 1;
        }
    for (uint32_t i = g->k.count; i-- > 1;)
        for (uint32_t j = 0; keep_k[i] && j < g->k.n[i]; j++) keep_k[g->k.item[g->k.at[i] + j].k] = 1;
    uint8_t *flags = mem_alloc(g->s.count);
    memcpy(flags, g->flags, g->s.count);
    uint32_t old = g->s.count;
    table_pack(&g->k, keep_k, map_k, NULL, map_k);
    table_pack(&g->s, keep_s, map_s, map_s, map_k);
    memset(g->flags, 0, old);
    for (uint32_t i = 1; i < old; i++)
        if (map_s[i]) g->flags[map_s[i]] = flags[i];
    for (uint32_t i = 1; i < g->s.count; i++) {
        memset(g->trans + (size_t)i * (size_t)g->p.n_cls, 0xFF, (size_t)g->p.n_cls * sizeof *g->trans);
        g->uniform[i] = g->base[i] = g->base_k[i] = 0;
    }
    table_rehash(&g->k, 1);
    table_rehash(&g->s, 1);
    for (matcher *m = g->first; m; m = m->next) {
        m->state = map_s[m->state];
        m->mask_state = m->mask_state == STATE_UNKNOWN ? STATE_UNKNOWN : map_s[m->mask_state];
        if (!m->mask_state) m->mask_state = STATE_UNKNOWN;
    }
    for (int i = 0; i < BASE_MASKS; i++) g->mask[i].state = map_s[g->mask[i].state];
    g->start = map_s[g->start];
    memset(g->and_left, 0xFF, g->p.n_op * sizeof *g->and_left);
    memset(g->alive, 0, ALIVE_CAP * sizeof *g->alive);
    g->n_alive = 0;
    g->overflow = false;
    free(keep_s);
    free(keep_k);
    free(map_s);
    free(map_k);
    free(flags);
}
bool state_tidy(grammar *g, bool must) {
    if (!must && g->s.count < g->s.cap / 2 && g->k.count < g->k.cap / 2 && g->s.item_n < g->s.item_cap / 2 &&
        g->k.item_n < g->k.item_cap / 2)
        return false;
    tidy(g);
    return true;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */
static void *carve(uintptr_t *at, size_t n) {
    void *p = (void *)*at;
    *at += (n + 63) & ~(size_t)63;
    return p;
}
static void tables_lay(grammar *g, void *block, size_t *bytes) {
    uintptr_t at = (uintptr_t)block;
    set_table *t[2] = {&g->k, &g->s};
    const uint32_t cap[2] = {K_CAP, STATE_CAP}, items[2] = {K_ITEMS, STATE_ITEMS};
    for (int i = 0; i < 2; i++) {
        *t[i] = (set_table){.cap = cap[i], .item_cap = items[i], .mask = cap[i] * 2 - 1, .count = 1};
        t[i]->at = carve(&at, cap[i] * sizeof(uint32_t));
        t[i]->n = carve(&at, cap[i] * sizeof(uint32_t));
        t[i]->chain = carve(&at, cap[i] * sizeof(uint32_t));
        t[i]->bucket = carve(&at, cap[i] * 2 * sizeof(uint32_t));
        t[i]->item = carve(&at, items[i] * sizeof(item));
    }
    g->trans = carve(&at, (size_t)STATE_CAP * (size_t)g->p.n_cls * sizeof(uint32_t));
    g->flags = carve(&at, STATE_CAP);
    g->uniform = carve(&at, STATE_CAP * sizeof(uint32_t));
    g->base = carve(&at, STATE_CAP * sizeof(uint32_t));
    g->base_k = carve(&at, STATE_CAP * sizeof(uint32_t));
    g->and_left = carve(&at, g->p.n_op * sizeof(uint32_t));
    g->and_right = carve(&at, g->p.n_op * sizeof(uint32_t));
    g->alive = carve(&at, ALIVE_CAP * sizeof *g->alive);
    g->work = carve(&at, WORK_CAP * sizeof(item));
    g->queue = carve(&at, WORK_CAP * sizeof(uint32_t));
    g->queued = carve(&at, WORK_CAP);
    g->slot = carve(&at, SLOT_CAP * sizeof(uint32_t));
    g->slot_epoch = carve(&at, SLOT_CAP * sizeof(uint32_t));
    *bytes = (size_t)(at - (uintptr_t)block);
}
bool machine_open(grammar *g, error *err) {
    size_t bytes;
    tables_lay(g, NULL, &bytes);        /* measures */
    g->block = mem_try(bytes, 64, err); /* mostly address space: pages come with use */
    if (!g->block) return false;
    g->block_bytes = bytes;
    tables_lay(g, g->block, &bytes);
    memset(g->and_left, 0xFF, g->p.n_op * sizeof *g->and_left);
    set_intern(g, &g->k, &(item){.pc = PC_ACCEPT}, 1);
    set_intern(g, &g->k, &(item){.pc = PC_HOLE}, 1);
    budget_start(g);
    g->start = state_at(g, g->p.root, 0);
    if (g->overflow) return error_set(err, ERR_INVALID, "the grammar is too large: its first step has too many ways");
    if (!g->start) return error_set(err, ERR_INVALID, "no text at all satisfies the grammar");
    return true;
}
void machine_close(grammar *g) {
    mem_try_free(g->block, g->block_bytes);
}

/* ---- matchers ---------------------------------------------------------------------------------------------------- */
matcher *matcher_new(grammar *g) {
    matcher *m = mem_alloc(sizeof *m);
    *m = (matcher){.g = grammar_keep(g), .mask_state = STATE_UNKNOWN};
    if (g->vocab) m->bits = mem_alloc(g->vocab->words * sizeof *m->bits);
    pthread_mutex_lock(&g->mu);
    m->state = g->start;
    m->next = g->first;
    if (m->next) m->next->prev = m;
    g->first = m;
    pthread_mutex_unlock(&g->mu);
    return m;
}
void matcher_free(matcher *m) {
    if (!m) return;
    grammar *g = m->g;
    pthread_mutex_lock(&g->mu);
    if (m->prev) m->prev->next = m->next;
    if (m->next) m->next->prev = m->prev;
    if (g->first == m) g->first = m->next;
    pthread_mutex_unlock(&g->mu);
    free(m->bits);
    free(m);
    grammar_drop(g);
}
void matcher_copy(matcher *to, matcher *from) {
    grammar *g = from->g;
    pthread_mutex_lock(&g->mu);
    to->state = from->state;
    to->ended = from->ended;
    to->failed = from->failed;
    pthread_mutex_unlock(&g->mu);
}
void matcher_reset(matcher *m) {
    pthread_mutex_lock(&m->g->mu);
    m->state = m->g->start;
    m->ended = m->failed = false;
    pthread_mutex_unlock(&m->g->mu);
}
/* [mu held] */
static uint32_t bytes_step(grammar *g, uint32_t s, const char *p, size_t n) {
    for (size_t i = 0; i < n && s; i++) s = state_step(g, s, g->p.cls[(uint8_t)p[i]]);
    return s;
}
bool matcher_accept_bytes(matcher *m, str s) {
    grammar *g = m->g;
    bool ok = true;
    if (m->ended) return s.n == 0;
    pthread_mutex_lock(&g->mu);
    for (size_t at = 0, n; ok && at < s.n; at += n) { /* in pieces: room is made between them */
        n = MIN(s.n - at, TOKEN_BYTES_MAX);
        state_tidy(g, false);
        budget_start(g);
        uint32_t to = bytes_step(g, m->state, s.p + at, n);
        if (g->overflow && g->budget >= 0) { /* room was short, not time */
            state_tidy(g, true);
            to = bytes_step(g, m->state, s.p + at, n);
        }
        m->failed |= g->overflow;
        ok = to != STATE_DEAD && !g->overflow;
        g->overflow = false;
        if (ok) m->state = to;
    }
    pthread_mutex_unlock(&g->mu);
    return ok;
}
bool matcher_accept(matcher *m, int32_t id) {
    const grammar_vocab *v = m->g->vocab;
    if (!v || id < 0 || id >= v->n || m->ended) return false;
    for (size_t i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id) return m->ended = matcher_can_end(m);
    str s = {v->bytes.p + v->at[id], v->at[id + 1] - v->at[id]};
    return s.n && matcher_accept_bytes(m, s);
}
bool matcher_can_end(matcher *m) {
    pthread_mutex_lock(&m->g->mu);
    bool yes = m->g->flags[m->state] & F_ACCEPT;
    pthread_mutex_unlock(&m->g->mu);
    return yes;
}
bool matcher_done(matcher *m) {
    pthread_mutex_lock(&m->g->mu);
    bool yes = m->ended || m->g->flags[m->state] == F_ACCEPT;
    pthread_mutex_unlock(&m->g->mu);
    return yes;
}
