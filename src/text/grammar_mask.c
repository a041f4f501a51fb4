/* Masks: which tokens may come next. The tries of the vocabulary are walked with the automaton; where a byte leads to
 * nothing the whole subtree is skipped.
 *
 * Two things make it fast. A state that takes any safe character and stays what it is (inside of a string) takes every
 * token of safe characters: those come from a table, and only the other tokens are walked; with a counter, those of up
 * to so many characters. And the innermost part of a grammar (a string, a number) does not depend on what surrounds it:
 * its mask is computed once with the surroundings cut off, and what crosses its end is looked up for each. */
#include <stdlib.h>
#include "grammar_internal.h"

static inline void bit_set(uint64_t *bits, int32_t i) {
    bits[i / 64] |= 1ull << (i % 64);
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */
typedef struct walk {
    grammar *g;
    const token_trie *t;
    uint64_t *bits;
    base_mask *cross; /* NULL: nothing is noted */
    uint32_t which;   /* added to the numbers of nodes that are noted */
} walk;
/* Nodes [from, to) below a place at `depth` bytes where the state is s. */
static void walk_run(const walk *w, uint32_t from, uint32_t to, uint32_t depth, uint32_t s) {
    grammar *g = w->g;
    const uint32_t n_cls = (uint32_t)g->p.n_cls;
    const int32_t *same = g->vocab->same;
    uint32_t stack[TOKEN_BYTES_MAX + 1];
    stack[depth] = s;
    for (uint32_t i = from; i < to;) {
        const token_node *n = &w->t->node[i];
        const uint32_t at = stack[n->depth - 1];
        uint32_t next = g->trans[(size_t)at * n_cls + g->p.cls[n->byte]];
        if (next == STATE_UNKNOWN) next = state_step(g, at, g->p.cls[n->byte]);
        if (next == STATE_DEAD) {
            i += n->skip;
            continue;
        }
        for (int32_t id = n->token; id >= 0; id = same[id]) bit_set(w->bits, id);
        if (w->cross && n->skip > 1 && (g->flags[next] & F_HOLE)) {
            base_mask *b = w->cross;
            if (b->n_cross < CROSS_MAX) b->cross[b->n_cross] = i | w->which;
            b->n_cross++;
        }
        stack[n->depth] = next;
        i++;
    }
}

/* ---- safe characters --------------------------------------------------------------------------------------------- */
static bool same_next(grammar *g, uint32_t s, int lo, int hi, uint32_t *to) {
    for (int c = g->p.cls[lo]; c <= g->p.cls[hi]; c++) {
        uint32_t next = state_step(g, s, (uint8_t)c);
        if (!next || (*to && *to != next) || g->flags[next] & F_HOLE) return false;
        *to = next;
    }
    return true;
}
/* Continuation bytes: n of them, the first within lo..hi. */
static bool same_after(grammar *g, uint32_t s, int lo, int hi, int n, uint32_t *to) {
    for (int c = g->p.cls[lo]; c <= g->p.cls[hi]; c++) {
        uint32_t next = state_step(g, s, (uint8_t)c);
        if (!next) return false;
        if (n == 1) {
            if ((*to && *to != next) || g->flags[next] & F_HOLE) return false;
            *to = next;
        } else if (!same_after(g, next, 0x80, 0xBF, n - 1, to)) {
            return false;
        }
    }
    return true;
}
/* The state that every safe character leads to; UNKNOWN when they part ways. */
static uint32_t uniform_next(grammar *g, uint32_t s) {
    static const struct {
        uint8_t lo, hi, then_lo, then_hi, n;
    } lead[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2},
                {0xED, 0xED, 0x80, 0x9F, 2}, {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
    if (g->uniform[s]) return g->uniform[s];
    uint32_t to = 0;
    bool ok = same_next(g, s, 'a', 'a', &to) && same_next(g, s, ' ', '!', &to) && same_next(g, s, '#', '[', &to) &&
              same_next(g, s, ']', 0x7F, &to);
    for (size_t i = 0; i < COUNT(lead) && ok; i++)
        for (int c = g->p.cls[lead[i].lo]; c <= g->p.cls[lead[i].hi] && ok; c++) {
            uint32_t next = state_step(g, s, (uint8_t)c);
            ok = next && same_after(g, next, lead[i].then_lo, lead[i].then_hi, lead[i].n, &to);
        }
    if (g->overflow) return STATE_UNKNOWN;
    return g->uniform[s] = ok ? to : STATE_UNKNOWN;
}
/* How many safe characters in a row lead on without parting ways, at most SAFE_CHARS_MAX + 1. *end: none can follow. */
static int uniform_run(grammar *g, uint32_t s, bool *end) {
    int n = 0;
    *end = false;
    for (; n <= SAFE_CHARS_MAX; n++) {
        uint32_t next = uniform_next(g, s);
        if (next == STATE_UNKNOWN) break;
        if (next == s) return SAFE_CHARS_MAX + 1;
        s = next;
    }
    if (n == 0 || n > SAFE_CHARS_MAX) return n;
    *end = true; /* the bytes that begin a safe character all lead to nothing */
    for (int c = 0x20; c < 0xF5 && *end; c = c == 0x7F ? 0xC2 : c + 1)
        if (c != '"' && c != '\\' && state_step(g, s, g->p.cls[c])) *end = false;
    return n;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */
enum { IN_REST = 1u << 31 };
static void mask_walk(grammar *g, uint32_t s, uint64_t *bits, base_mask *cross) {
    const grammar_vocab *v = g->vocab;
    bool end;
    int run = uniform_run(g, s, &end);
    walk rest = {g, &v->rest, bits, cross, IN_REST}, safe = {g, &v->safe, bits, cross, 0};
    if (run > SAFE_CHARS_MAX || end)
        memcpy(bits, v->level[run], v->words * sizeof *bits);
    else
        memset(bits, 0, v->words * sizeof *bits);
    if (!(run > SAFE_CHARS_MAX || end)) walk_run(&safe, 0, v->safe.n, 0, s);
    walk_run(&rest, 0, v->rest.n, 0, s);
}

static base_mask *base_find(grammar *g, uint32_t s) {
    base_mask *oldest = &g->mask[0];
    for (int i = 0; i < BASE_MASKS; i++) {
        base_mask *b = &g->mask[i];
        if (b->state == s) {
            b->used = ++g->clock;
            return b;
        }
        if (b->used < oldest->used) oldest = b;
    }
    oldest->state = s;
    oldest->n_cross = 0;
    oldest->used = ++g->clock;
    mask_walk(g, s, oldest->bits, oldest);
    if (g->overflow) oldest->state = STATE_DEAD;
    return oldest;
}

static void mask_make(grammar *g, uint32_t s, uint64_t *bits) {
    const grammar_vocab *v = g->vocab;
    uint32_t k, base = state_base(g, s, &k);
    if (!base) return;
    const base_mask *b = base_find(g, base);
    if (b->n_cross > CROSS_MAX) { /* its end is nearly everywhere: nothing is gained */
        mask_walk(g, s, bits, NULL);
    } else {
        memcpy(bits, b->bits, v->words * sizeof *bits);
        uint32_t after = k && b->n_cross ? state_after(g, k) : STATE_DEAD;
        for (uint32_t i = 0; i < b->n_cross && after; i++) {
            const token_trie *t = b->cross[i] & IN_REST ? &v->rest : &v->safe;
            uint32_t at = b->cross[i] & ~IN_REST;
            const token_node *n = &t->node[at];
            walk_run(&(walk){g, t, bits, NULL, 0}, at + 1, at + n->skip, n->depth, after);
        }
    }
    if (g->flags[s] & F_ACCEPT)
        for (size_t i = 0; i < v->n_eos; i++) bit_set(bits, v->eos[i]);
}

const uint64_t *matcher_mask(matcher *m) {
    grammar *g = m->g;
    if (!g->vocab || m->failed) return NULL;
    pthread_mutex_lock(&g->mu);
    state_tidy(g, false);
    if (m->ended) {
        memset(m->bits, 0, g->vocab->words * sizeof *m->bits);
        for (size_t i = 0; i < g->vocab->n_eos; i++) bit_set(m->bits, g->vocab->eos[i]);
        m->mask_state = STATE_UNKNOWN;
    } else if (m->mask_state != m->state) {
        budget_start(g);
        mask_make(g, m->state, m->bits);
        if (g->overflow && g->budget >= 0) { /* room was short, not time */
            state_tidy(g, true);
            mask_make(g, m->state, m->bits);
        }
        m->failed = g->overflow;
        g->overflow = false;
        m->mask_state = m->failed ? STATE_UNKNOWN : m->state;
    }
    pthread_mutex_unlock(&g->mu);
    return m->failed ? NULL : m->bits;
}
