/* One reply, token by token: detokenising, then splitting off the thinking block, then tool calls, then stop strings in
 * what is visible. Every step holds back what a later token could still change and nothing else, so the events do not
 * depend on how the text was cut into tokens, and the whole reply is their concatenation. docs/output.md has the rules.
 * The families' marks: output_forms.c. */
#include <stdlib.h>
#include "output_internal.h"
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
    const think_form *form;
    tool_list *tools; /* keeps a reference; NULL: none */
    calls calls;
    stops stops;
    uint32_t node; /* of the automaton: what the end of `pending` spells */
    int stopped;   /* index of the stop string that matched, -1 */
    think_state think;
    bool split, keep_special, skip_newlines, skip_header, reasoned;
    buf text;    /* of this push */
    buf held;    /* not yet split */
    buf pending; /* content not yet released: a proper prefix of a stop string */
    struct {     /* tokens that are marks: they go on as text even if special tokens do not */
        int32_t id;
        str text;
    } mark[MARKS_MAX];
    size_t n_marks;
    /* this push's events */
    buf out;          /* their texts, one behind the other */
    output_event *ev; /* owns [ev_cap]; text.n counts, text.p is set when they are handed out */
    size_t n_ev, ev_cap;
    /* the thinking budget */
    bool has_budget, forcing;
    int32_t budget, thought; /* tokens allowed, tokens so far */
    ids close;               /* what ends a block */
    size_t close_at;         /* while forcing: the next of them */
};

/* ---- events ------------------------------------------------------------------------------------------------------ */
static output_event *event_add(output *o, output_kind kind) {
    if (o->n_ev == o->ev_cap) o->ev = mem_resize(o->ev, (o->ev_cap = o->ev_cap * 2 + 8) * sizeof *o->ev);
    o->ev[o->n_ev] = (output_event){.kind = kind};
    return &o->ev[o->n_ev++];
}

static void emit(output *o, output_kind kind, const char *p, size_t n) {
    size_t plain = 0;
    while (plain < n && (uint8_t)p[plain] < MARK_BYTE) plain++;
    if (plain < n) { /* a mark where none belongs: shown with other special tokens, and where a call was none */
        emit(o, kind, p, plain);
        str mark = mark_spelled((str){p + plain, 1});
        if (o->keep_special || ((uint8_t)p[plain] >= CALL_MARK_BYTE && (uint8_t)p[plain] <= CALL_MARK_LAST))
            emit(o, kind, mark.p, mark.n);
        return emit(o, kind, p + plain + 1, n - plain - 1);
    }
    if (!n) return;
    output_event *last = o->n_ev ? &o->ev[o->n_ev - 1] : NULL;
    if (!last || last->kind != kind) last = event_add(o, kind);
    buf_add(&o->out, p, n);
    last->text.n += n;
}

static size_t events_give(output *o, const output_event **ev) {
    size_t at = 0;
    for (size_t i = 0; i < o->n_ev; i++) {
        o->ev[i].text.p = o->out.p ? o->out.p + at : "";
        at += o->ev[i].text.n;
    }
    *ev = o->ev;
    return o->n_ev;
}

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
    if (o->stopped != OUTPUT_GOES_ON) return;
    for (size_t i = 0; i < s.n; i++) {
        uint32_t to;
        while (!(to = trie_step(&st->trie, o->node, (uint8_t)s.p[i])) && o->node) o->node = st->fail[o->node];
        o->node = to;
        if (st->match[to] < 0) continue;
        o->stopped = st->match[to];
        buf_add(&o->pending, s.p, i + 1);
        o->pending.n -= st->length[o->stopped];
        emit(o, OUTPUT_CONTENT, o->pending.p, o->pending.n);
        o->pending.n = 0;
        return;
    }
    buf_str(&o->pending, s);
    size_t keep = final ? 0 : st->depth[o->node], go = o->pending.n - keep;
    emit(o, OUTPUT_CONTENT, o->pending.p, go);
    if (go) memmove(o->pending.p, o->pending.p + go, keep);
    o->pending.n = keep;
}

void output_content(output *o, str s, bool final) {
    content_add(o, s, final);
}

void output_call(output *o, output_kind kind, int32_t call, str text, bool whole) {
    if (kind == OUTPUT_CALL) { /* what is held for a stop string stays before the call */
        content_add(o, STR(""), true);
        o->node = 0;
    }
    if (o->stopped >= 0) return;
    output_event *ev = o->n_ev ? &o->ev[o->n_ev - 1] : NULL;
    if (!ev || kind != OUTPUT_ARGS || ev->kind != kind || ev->call != call) ev = event_add(o, kind);
    buf_str(&o->out, text);
    ev->text.n += text.n;
    ev->call = call;
    ev->whole = whole;
}

/* What is not thinking: calls are taken out of it. */
static void answer_add(output *o, str s, bool final) {
    if (!o->tools) return content_add(o, s, final);
    calls_add(&o->calls, s, final);
    if (o->calls.ended && o->stopped == OUTPUT_GOES_ON) o->stopped = OUTPUT_ENDED;
}

/* ---- thinking ---------------------------------------------------------------------------------------------------- */
static void held_drop(output *o, size_t n) {
    if (n) memmove(o->held.p, o->held.p + n, o->held.n - n);
    o->held.n -= n;
}

static bool line_break(char c) {
    return c == '\n' || c == '\r';
}

/* Gemma's block begins with its channel's name on a line of its own. True: wait for more. */
static bool held_skip_header(output *o, bool final) {
    str s = buf_view(&o->held), header = o->form->header;
    size_t n = MIN(s.n, header.n);
    if (!o->skip_header) return false;
    if (n < header.n && !final && memcmp(s.p, header.p, n) == 0) return true;
    o->skip_header = false;
    size_t word = header.n - 1; /* without its line break, when the block ends right behind it */
    if (str_starts(s, header))
        held_drop(o, header.n);
    else if (str_starts(s, str_slice(header, 0, word)) &&
             (s.n == word || str_starts(str_slice(s, word, s.n), o->form->close)))
        held_drop(o, word);
    return false;
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
    emit(o, OUTPUT_REASONING, o->held.p, n);
    o->reasoned |= n > 0;
}

static void think_open(output *o) {
    o->think = THINK_INSIDE;
    o->skip_newlines = true;
    o->skip_header = o->form->header.n > 0;
    o->reasoned = false;
}

/* A block that is never closed and ends with calls was over where they begin (peers/cases/027). So long as all that
 * follows is calls, it is held back; s.n: nothing of the kind. */
enum { CALL_THOUGHT_MAX = 64 << 10 };
static size_t call_in_thought(const output *o, str s, bool final) {
    size_t from = 0, at;
    if (!o->tools) return s.n;
    for (; calls_mark_in(o->tools, str_slice(s, from, s.n), &at); from += at + 1)
        if (s.n - from - at < CALL_THOUGHT_MAX && calls_only(o->tools, str_slice(s, from + at, s.n), final))
            return from + at;
    return final ? s.n : s.n - calls_mark_partial(o->tools, s);
}

/* Each returns whether there is more to do with what is held. */
static bool think_before(output *o, bool final) {
    str s = buf_view(&o->held);
    size_t blank = 0;
    while (blank < s.n && strchr(" \t\r\n", s.p[blank])) blank++;
    str rest = str_slice(s, blank, s.n);
    if (str_starts(rest, o->form->open)) {
        held_drop(o, blank + o->form->open.n);
        think_open(o);
        return true;
    }
    if (!final && partial(rest, o->form->open) == rest.n) return false;
    o->think = THINK_AFTER;
    return true;
}

static bool think_inside(output *o, bool final) {
    if (held_skip_header(o, final)) return false;
    held_skip_newlines(o);
    str s = buf_view(&o->held), tag = o->form->close;
    size_t close = str_find(s, tag), end = close;
    if (close == SIZE_MAX) {
        size_t call = call_in_thought(o, s, final);
        end = MIN(call, final ? s.n : s.n - partial(s, tag));
        if (final && call < s.n) {
            while (end && line_break(s.p[end - 1])) end--;
            reason(o, end);
            held_drop(o, call);
            o->think = THINK_AFTER;
            return true;
        }
        while (!final && end && line_break(s.p[end - 1]))
            end--; /* line breaks before the closing tag are not reasoning */
        reason(o, end);
        held_drop(o, end);
        return false;
    }
    while (end && line_break(s.p[end - 1])) end--;
    reason(o, end);
    held_drop(o, close + tag.n);
    o->think = o->reasoned || o->form->by_token ? THINK_AFTER : THINK_CLOSING;
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
    str s = buf_view(&o->held);
    size_t open =
        o->form->by_token ? str_find(s, o->form->open) : SIZE_MAX; /* a mark nobody can spell may come again */
    answer_add(o, str_slice(s, 0, MIN(open, s.n)), final);
    held_drop(o, open == SIZE_MAX ? s.n : open + o->form->open.n);
    if (open != SIZE_MAX) think_open(o);
    return open != SIZE_MAX;
}

/* ---- channels (gpt-oss): [start ROLE] channel NAME [to=functions.TOOL] message TEXT end -------------------------- */
static size_t mark_at(str s) { /* the first mark that ends a message */
    size_t at = 0;
    while (at < s.n && (uint8_t)s.p[at] < MARK_BYTE) at++;
    return at;
}

static str word_behind(str s, str what) {
    size_t at = str_find(s, what);
    if (at == SIZE_MAX) return (str){0};
    str rest = str_slice(s, at + what.n, s.n);
    size_t n = 0;
    while (n < rest.n && !str_space(rest.p[n]) && (uint8_t)rest.p[n] < MARK_BYTE) n++;
    return str_slice(rest, 0, n);
}

/* A header is over where its message begins. */
static bool channel_head(output *o, bool final) {
    str s = buf_view(&o->held);
    size_t n = str_find(s, MARK_MESSAGE);
    if (n == SIZE_MAX) {
        if (final && mark_at(s) == s.n) answer_add(o, s, true); /* a reply that has no channels */
        return false;
    }
    str head = str_slice(s, 0, n), tool = word_behind(head, STR("to=functions."));
    bool call = o->tools && tool.n && calls_begin(&o->calls, tool);
    o->think = !call && str_is(word_behind(head, MARK_CHANNEL), "analysis") ? THINK_INSIDE : THINK_AFTER;
    held_drop(o, n + 1);
    return true;
}

static bool channel_step(output *o, bool final) {
    if (o->think == THINK_BEFORE) return channel_head(o, final);
    str s = buf_view(&o->held);
    size_t n = mark_at(s);
    if (o->think == THINK_INSIDE)
        reason(o, n);
    else
        answer_add(o, str_slice(s, 0, n), final && n == s.n);
    bool ended = n < s.n;
    if (ended && o->calls.in) calls_add(&o->calls, STR(""), true);
    /* The channel's own mark belongs to the next header. */
    held_drop(o, ended && !str_starts(str_slice(s, n, s.n), MARK_CHANNEL) ? n + 1 : n);
    if (ended) o->think = THINK_BEFORE;
    return ended;
}

static void text_add(output *o, str s, bool final) {
    static bool (*const step[])(output *, bool) = {think_before, think_inside, think_closing, think_after};
    if (!o->split) {
        answer_add(o, s, final);
        return;
    }
    buf_str(&o->held, s);
    while (o->form->channels ? channel_step(o, final) : step[o->think](o, final)) continue;
    if (final && o->think != THINK_AFTER)
        answer_add(o, (str){"", 0}, true); /* a call may be open before a last block */
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

/* Tokens that are marks of the reply's forms. */
static void mark_find(output *o, str mark) {
    int32_t id = mark.n ? tokenizer_id(o->t, mark_spelled(mark)) : -1;
    if (id < 0 || o->n_marks == MARKS_MAX || !(mark_is_token(mark) || tokenizer_is_special(o->t, id))) return;
    o->mark[o->n_marks].id = id;
    o->mark[o->n_marks++].text = mark;
}

static void marks_find(output *o) {
    if (o->split) mark_find(o, o->form->open), mark_find(o, o->form->close);
    if (o->split && o->form->channels)
        mark_find(o, MARK_MESSAGE), mark_find(o, MARK_START), mark_find(o, MARK_CONSTRAIN), mark_find(o, MARK_CALL);
    if (!o->tools) return;
    const call_form *f = o->tools->form;
    const str all[] = {f->mark[0].text, f->mark[1].text, f->mark[2].text, f->close,     f->invoke_close,
                       f->param_close,  f->item,         f->sep,          f->item_close};
    for (size_t i = 0; i < COUNT(all); i++) mark_find(o, all[i]);
}

/* Of a reply of reply_max tokens, half but no more than this stays for the answer whatever the budget says. */
enum { ANSWER_ROOM = 512 };

static void budget_set(output *o, const output_opts *opts) {
    error none = {0};
    o->has_budget = opts->has_think_budget && o->split;
    if (!o->has_budget || !tokenizer_encode(o->t, o->form->ending, ENCODE_SPECIAL, &o->close, &none)) return;
    int64_t most = opts->think_budget;
    if (opts->reply_max > 0)
        most = MIN(most, opts->reply_max - (int64_t)o->close.n - MIN(opts->reply_max / 2, ANSWER_ROOM));
    o->budget = (int32_t)MAX(most, 0);
}

static void budget_check(output *o) {
    if (o->has_budget && !o->forcing && o->close.n && o->think == THINK_INSIDE && o->thought >= o->budget)
        o->forcing = true;
}

output *output_new(const tokenizer *t, const output_opts *opts) {
    output *o = mem_alloc(sizeof *o);
    o->t = t;
    o->detok = detok_new(t, !opts->keep_special);
    o->stopped = OUTPUT_GOES_ON;
    o->split = opts->split_thinking;
    o->form = opts->think ? opts->think : think_form_named("think");
    o->keep_special = opts->keep_special;
    o->tools = opts->tools ? tool_list_keep(opts->tools) : NULL;
    stops_build(&o->stops, opts->stops, opts->n_stops);
    if (o->tools) o->calls = (calls){.tools = o->tools, .o = o, .one = opts->one_call};
    marks_find(o);
    if (o->split && find_last(opts->prompt_tail, mark_spelled(o->form->open)) >
                        find_last(opts->prompt_tail, mark_spelled(o->form->close)))
        think_open(o);
    budget_set(o, opts);
    budget_check(o);
    return o;
}

void output_free(output *o) {
    if (!o) return;
    detok_free(o->detok);
    calls_deinit(&o->calls);
    tool_list_drop(o->tools);
    trie_deinit(&o->stops.trie);
    free(o->stops.fail), free(o->stops.match), free(o->stops.depth), free(o->stops.length);
    buf_free(&o->text), buf_free(&o->held), buf_free(&o->pending), buf_free(&o->out);
    ids_free(&o->close);
    free(o->ev);
    free(o);
}

/* What the detokeniser still holds belongs before the mark. */
static void mark_add(output *o, str text) {
    detok_finish(o->detok, &o->text);
    detok_free(o->detok);
    o->detok = detok_new(o->t, !o->keep_special);
    buf_str(&o->text, text);
}

static void token_text(output *o, int32_t id) {
    for (size_t i = 0; i < o->n_marks; i++)
        if (o->mark[i].id == id) return mark_add(o, o->mark[i].text);
    detok_push(o->detok, id, &o->text);
}

size_t output_push(output *o, int32_t id, const output_event **ev, int *stopped) {
    o->text.n = o->out.n = o->n_ev = 0;
    if (o->stopped == OUTPUT_GOES_ON) {
        o->thought += o->split && o->think == THINK_INSIDE;
        if (o->forcing && o->close.p[o->close_at] == id && ++o->close_at == o->close.n) {
            o->forcing = false;
            o->close_at = 0;
        }
        token_text(o, id);
        text_add(o, buf_view(&o->text), false);
        budget_check(o);
    }
    *stopped = o->stopped;
    return events_give(o, ev);
}

size_t output_finish(output *o, const output_event **ev) {
    o->text.n = o->out.n = o->n_ev = 0;
    if (o->stopped == OUTPUT_GOES_ON) {
        detok_finish(o->detok, &o->text);
        text_add(o, buf_view(&o->text), true);
    }
    return events_give(o, ev);
}

output_phase output_phase_of(const output *o) {
    static const output_phase phase[] = {OUTPUT_MAY_THINK, OUTPUT_THINKS, OUTPUT_THINKS, OUTPUT_ANSWERS};
    return o->split ? phase[o->think] : OUTPUT_ANSWERS;
}

int32_t output_forced(const output *o) {
    return o->forcing ? o->close.p[o->close_at] : -1;
}
