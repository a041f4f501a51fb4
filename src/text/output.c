/* One reply, token by token: detokenising, then splitting off the thinking block, then stop strings in what is visible.
 * Every step holds back what a later token could still change and nothing else, so the events do not depend on how the
 * text was cut into tokens, and the whole reply is their concatenation. Tool calls are not split here. docs/output.md
 * has the rules. */
#include <stdlib.h>
#include "tokenizer.h"

/* Aho-Corasick over the stop strings; node 0 is the root. */
typedef struct stops {
    trie trie;
    uint32_t *fail;   /* owns [n]; the longest proper suffix that is a node */
    int32_t *match;   /* owns [n]; value of the longest stop string that ends here, -1 */
    uint32_t *depth;  /* owns [n] */
    uint32_t *length; /* owns; bytes of each stop string, by index */
    size_t n;
} stops;

typedef enum think_state {
    THINK_BEFORE, /* nothing visible yet: an opening tag may come */
    THINK_INSIDE,
    THINK_CLOSING, /* a closing tag came before any reasoning; what follows decides whether it counts */
    THINK_AFTER,   /* plain content to the end */
} think_state;

struct output {
    const tokenizer *t; /* borrows */
    detok *detok;
    stops stops;
    uint32_t node; /* of the automaton: what the end of `pending` spells */
    int stopped;   /* index of the stop string that matched, -1 */
    think_state think;
    bool split, keep_special, skip_newlines, reasoned;
    buf text;               /* of this push */
    buf held;               /* not yet split */
    buf pending;            /* content not yet released: a proper prefix of a stop string */
    buf reasoning, content; /* this push's events */
};

/* ---- stop strings ------------------------------------------------------------------------------------------------ */
static void stops_build(stops *s, const str *stop, size_t n) {
    trie_key *key = mem_alloc((n + 1) * sizeof *key);
    size_t used = 0;
    s->n = n;
    s->length = mem_alloc((n + 1) * sizeof *s->length);
    for (size_t i = 0; i < n; i++) {
        s->length[i] = (uint32_t)stop[i].n;
        if (stop[i].n) key[used++] = (trie_key){stop[i], (int32_t)(n - 1 - i)}; /* of equal ones the first counts */
    }
    trie_build(&s->trie, key, used);
    free(key);
    trie *t = &s->trie;
    s->fail = mem_alloc(t->n * sizeof *s->fail);
    s->match = mem_alloc(t->n * sizeof *s->match);
    s->depth = mem_alloc(t->n * sizeof *s->depth);
    s->match[0] = -1;
    for (uint32_t at = 0; at < t->n; at++) /* breadth first: the fail links of shorter strings are there already */
        for (uint32_t c = t->node[at].first, end = c + t->node[at].n; c < end; c++) {
            uint32_t f = at ? s->fail[at] : 0, to = 0;
            if (at)
                while (!(to = trie_step(t, f, t->node[c].byte)) && f) f = s->fail[f];
            s->fail[c] = to;
            s->depth[c] = s->depth[at] + 1;
            s->match[c] = t->node[c].value >= 0 ? (int32_t)n - 1 - t->node[c].value : s->match[to];
        }
}

/* Content comes in; what can no longer be part of a stop string goes out. */
static void content_add(output *o, str s, bool final) {
    const stops *st = &o->stops;
    if (o->stopped >= 0) return;
    for (size_t i = 0; i < s.n; i++) {
        uint32_t to;
        while (!(to = trie_step(&st->trie, o->node, (uint8_t)s.p[i])) && o->node) o->node = st->fail[o->node];
        o->node = to;
        if (st->match[to] < 0) continue;
        o->stopped = st->match[to];
        buf_add(&o->pending, s.p, i + 1);
        o->pending.n -= st->length[o->stopped];
        buf_str(&o->content, buf_view(&o->pending));
        o->pending.n = 0;
        return;
    }
    buf_str(&o->pending, s);
    size_t keep = final ? 0 : st->depth[o->node], go = o->pending.n - keep;
    buf_add(&o->content, o->pending.p, go);
    if (go) memmove(o->pending.p, o->pending.p + go, keep);
    o->pending.n = keep;
}

/* ---- thinking ---------------------------------------------------------------------------------------------------- */
static void held_drop(output *o, size_t n) {
    if (n) memmove(o->held.p, o->held.p + n, o->held.n - n);
    o->held.n -= n;
}

static bool line_break(char c) {
    return c == '\n' || c == '\r';
}

static void held_skip_newlines(output *o) {
    size_t n = 0;
    while (o->skip_newlines && n < o->held.n && line_break(o->held.p[n])) n++;
    if (n < o->held.n) o->skip_newlines = false;
    if (n) held_drop(o, n);
}

/* Length of the longest end of s that is a proper prefix of tag. */
static size_t partial(str s, str tag) {
    for (size_t n = MIN(s.n, tag.n - 1); n > 0; n--)
        if (memcmp(s.p + s.n - n, tag.p, n) == 0) return n;
    return 0;
}

static void reason(output *o, size_t n) {
    buf_add(&o->reasoning, o->held.p, n);
    o->reasoned |= n > 0;
}

/* Each returns whether there is more to do with what is held. */
static bool think_before(output *o, bool final) {
    str s = buf_view(&o->held);
    size_t blank = 0;
    while (blank < s.n && strchr(" \t\r\n", s.p[blank])) blank++;
    str rest = str_slice(s, blank, s.n);
    if (str_starts(rest, THINK_OPEN)) {
        held_drop(o, blank + THINK_OPEN.n);
        o->think = THINK_INSIDE;
        o->skip_newlines = true;
        return true;
    }
    if (!final && partial(rest, THINK_OPEN) == rest.n) return false;
    o->think = THINK_AFTER;
    return true;
}

static bool think_inside(output *o, bool final) {
    held_skip_newlines(o);
    str s = buf_view(&o->held);
    size_t close = str_find(s, THINK_CLOSE), end = close;
    if (close == SIZE_MAX) {
        end = final ? s.n : s.n - partial(s, THINK_CLOSE);
        while (!final && end && line_break(s.p[end - 1]))
            end--; /* line breaks before the closing tag are not reasoning */
        reason(o, end);
        held_drop(o, end);
        return false;
    }
    while (end && line_break(s.p[end - 1])) end--;
    reason(o, end);
    held_drop(o, close + THINK_CLOSE.n);
    o->think = o->reasoned ? THINK_AFTER : THINK_CLOSING;
    o->skip_newlines = o->think == THINK_AFTER;
    return true;
}

/* An empty block is closed for good by a line break or the end; text right behind the tag means that the tag was
 * redundant and the reasoning comes only now. */
static bool think_closing(output *o, bool final) {
    if (!o->held.n && !final) return false;
    o->think = !o->held.n || line_break(o->held.p[0]) ? THINK_AFTER : THINK_INSIDE;
    o->skip_newlines = true;
    return o->held.n > 0;
}

static bool think_after(output *o, bool final) {
    held_skip_newlines(o);
    content_add(o, buf_view(&o->held), final);
    o->held.n = 0;
    return false;
}

static void text_add(output *o, str s, bool final) {
    static bool (*const step[])(output *, bool) = {think_before, think_inside, think_closing, think_after};
    if (!o->split) {
        content_add(o, s, final);
        return;
    }
    buf_str(&o->held, s);
    while (step[o->think](o, final)) continue;
    if (final && o->think != THINK_AFTER) content_add(o, (str){"", 0}, true);
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */
static size_t find_last(str s, str needle) { /* 1 + its place, 0 when absent */
    for (size_t at = s.n + 1; at-- > 0;)
        if (str_starts(str_slice(s, at, s.n), needle)) return at + 1;
    return 0;
}

enum { TAIL_IDS = 64 }; /* more than any template writes behind the last message */

void output_prompt_tail(const tokenizer *t, const int32_t *id, size_t n, buf *out) {
    int32_t open = tokenizer_id(t, THINK_OPEN), close = tokenizer_id(t, THINK_CLOSE);
    if (open >= 0 && close >= 0) {
        for (size_t i = n; i-- > 0 && id[i] != close;)
            if (id[i] == open) return buf_str(out, THINK_OPEN);
        return;
    }
    size_t k = MIN(n, (size_t)TAIL_IDS);
    for (size_t i = n - k; i < n; i++)
        if (id[i] < 0 || id[i] >= tokenizer_size(t)) return;
    tokenizer_decode(t, id + (n - k), k, false, out);
}

output *output_new(const tokenizer *t, const output_opts *opts) {
    output *o = mem_alloc(sizeof *o);
    o->t = t;
    o->detok = detok_new(t, !opts->keep_special);
    o->stopped = -1;
    o->split = opts->split_thinking;
    o->keep_special = opts->keep_special;
    stops_build(&o->stops, opts->stops, opts->n_stops);
    if (find_last(opts->prompt_tail, THINK_OPEN) > find_last(opts->prompt_tail, THINK_CLOSE)) {
        o->think = THINK_INSIDE;
        o->skip_newlines = true;
    }
    return o;
}

void output_free(output *o) {
    if (!o) return;
    detok_free(o->detok);
    trie_deinit(&o->stops.trie);
    free(o->stops.fail), free(o->stops.match), free(o->stops.depth), free(o->stops.length);
    buf_free(&o->text), buf_free(&o->held), buf_free(&o->pending), buf_free(&o->reasoning), buf_free(&o->content);
    free(o);
}

static int events(const output *o, output_event ev[4]) {
    int n = 0;
    if (o->reasoning.n) ev[n++] = (output_event){OUTPUT_REASONING, buf_view(&o->reasoning)};
    if (o->content.n) ev[n++] = (output_event){OUTPUT_CONTENT, buf_view(&o->content)};
    return n;
}

int output_push(output *o, int32_t id, output_event ev[4], int *stopped) {
    o->text.n = o->reasoning.n = o->content.n = 0;
    if (o->stopped < 0) {
        str token = tokenizer_token(o->t, id);
        if (o->split && !o->keep_special && tokenizer_is_special(o->t, id) &&
            (str_eq(token, THINK_OPEN) || str_eq(token, THINK_CLOSE)))
            buf_str(&o->text, token); /* a tag that is a special token still divides the reply */
        else
            detok_push(o->detok, id, &o->text);
        text_add(o, buf_view(&o->text), false);
    }
    *stopped = o->stopped;
    return events(o, ev);
}

int output_finish(output *o, output_event ev[4]) {
    o->text.n = o->reasoning.n = o->content.n = 0;
    if (o->stopped < 0) {
        detok_finish(o->detok, &o->text);
        text_add(o, buf_view(&o->text), true);
    }
    return events(o, ev);
}
