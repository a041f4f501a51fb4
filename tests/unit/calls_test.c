/* Tool calls in replies: every case of tests/data/calls/cases.json, however its text falls into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tokenizer_make.h"

enum { CALLS_MAX = 16 };
typedef struct reply {
    buf content, reasoning, name[CALLS_MAX], args[CALLS_MAX];
    int n, open; /* calls begun; begun and not ended */
    bool whole[CALLS_MAX], half;
} reply;

static void take(reply *r, const output_event *ev, size_t n) {
    for (size_t i = 0; i < n; i++, ev++) {
        r->half |= utf8_valid(ev->text) != ev->text.n;
        r->half |= !ev->text.n && ev->kind != OUTPUT_CALL_END;
        if (ev->kind >= OUTPUT_CALL) assert_true(ev->call < CALLS_MAX);
        switch (ev->kind) {
        case OUTPUT_CONTENT: buf_str(&r->content, ev->text); break;
        case OUTPUT_REASONING: buf_str(&r->reasoning, ev->text); break;
        case OUTPUT_CALL:
            assert_int_equal(ev->call, r->n++);
            assert_int_equal(r->open++, 0);
            buf_str(&r->name[ev->call], ev->text);
            break;
        case OUTPUT_ARGS: buf_str(&r->args[ev->call], ev->text); break;
        case OUTPUT_CALL_END:
            r->whole[ev->call] = ev->whole;
            r->open--;
            break;
        }
    }
}

static void reply_free(reply *r) {
    buf_free(&r->content), buf_free(&r->reasoning);
    for (int i = 0; i < CALLS_MAX; i++) buf_free(&r->name[i]), buf_free(&r->args[i]);
}

static void run(reply *r, const tokenizer *t, const ids *id, const output_opts *o) {
    const output_event *ev;
    int stopped;
    output *out = output_new(t, o);
    *r = (reply){0};
    for (size_t i = 0; i < id->n; i++) {
        size_t n = output_push(out, id->p[i], &ev, &stopped);
        take(r, ev, n);
    }
    size_t n = output_finish(out, &ev);
    take(r, ev, n);
    output_free(out);
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */
/* A case's text as segments: special tokens of their own, and text that may be cut anywhere. */
typedef struct segment {
    str text;
    bool token;
} segment;

static size_t segments_of(str text, const json *tokens, segment *out) {
    size_t n = 0;
    while (text.n) {
        size_t first = text.n, len = 0;
        for (uint32_t i = 0; i < tokens->n; i++) {
            size_t at = str_find(text, json_at(tokens, i)->string);
            if (at < first) first = at, len = json_at(tokens, i)->string.n;
        }
        if (first) out[n++] = (segment){str_slice(text, 0, first), false};
        if (len) out[n++] = (segment){str_slice(text, first, first + len), true};
        text = str_slice(text, first + len, text.n);
    }
    return n;
}

static void spelled(str s, buf *b) {
    b->n = 0;
    for (size_t i = 0; i < s.n; i++) {
        char c[4];
        buf_add(b, c, utf8_put(c, byte_point[(uint8_t)s.p[i]]));
    }
}

/* One tokenizer has every piece that a cut needs: windows of 1 to 8 bytes, beginnings and ends of segments. */
typedef struct piece_list {
    char **p;
    size_t n, cap;
    map *seen;
} piece_list;

static void piece_add(piece_list *v, str s) {
    buf b = {0};
    uint64_t old;
    spelled(s, &b);
    if (s.n > 1 && !map_get(v->seen, buf_view(&b), &old)) {
        map_set(v->seen, buf_view(&b), 1);
        if (v->n == v->cap) v->p = mem_resize(v->p, (v->cap = v->cap * 2 + 64) * sizeof *v->p);
        v->p[v->n++] = mem_strndup(b.p, b.n);
    }
    buf_free(&b);
}

static tokenizer *tokenizer_for(const segment *seg, size_t n, const json *tokens) {
    piece_list v = {.seen = map_new(1000)};
    for (size_t i = 0; i < n; i++)
        for (size_t at = 0; !seg[i].token && at < seg[i].text.n; at++) {
            for (size_t len = 2; len <= 8; len++)
                piece_add(&v, str_slice(seg[i].text, at, MIN(at + len, seg[i].text.n)));
            piece_add(&v, str_slice(seg[i].text, 0, at));
            piece_add(&v, str_slice(seg[i].text, at, seg[i].text.n));
        }
    buf added = {0};
    for (uint32_t i = 0; i < tokens->n; i++) {
        buf_puts(&added, i ? ",{\"content\":" : "{\"content\":");
        json_write_string(&added, json_at(tokens, i)->string);
        buf_puts(&added, ",\"special\":true}");
    }
    tokenizer *t = tokenizer_bytes_with((const char *const *)v.p, v.n, added.p);
    for (size_t i = 0; i < v.n; i++) free(v.p[i]);
    free(v.p);
    map_free(v.seen);
    buf_free(&added);
    return t;
}

static void push_piece(ids *id, const tokenizer *t, str s) {
    if (!s.n) return;
    buf b = {0};
    spelled(s, &b);
    int32_t at = tokenizer_id(t, buf_view(&b));
    assert_true(at >= 0);
    ids_push(id, at);
    buf_free(&b);
}

/* Pieces of `step` bytes behind a first one of `shift`. */
static void cut_even(ids *id, const tokenizer *t, const segment *seg, size_t n, size_t step, size_t shift) {
    id->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (seg[i].token) ids_push(id, tokenizer_id(t, seg[i].text));
        for (size_t at = 0; !seg[i].token && at < seg[i].text.n;) {
            size_t len = MIN(at || !shift ? step : shift, seg[i].text.n - at);
            push_piece(id, t, str_slice(seg[i].text, at, at + len));
            at += len;
        }
    }
}

/* Everything whole, but for one segment that is cut in two. */
static void cut_at(ids *id, const tokenizer *t, const segment *seg, size_t n, size_t which, size_t at) {
    id->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (seg[i].token) {
            ids_push(id, tokenizer_id(t, seg[i].text));
            continue;
        }
        push_piece(id, t, str_slice(seg[i].text, 0, i == which ? at : seg[i].text.n));
        if (i == which) push_piece(id, t, str_slice(seg[i].text, at, seg[i].text.n));
    }
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */
static void same_json(str got, const json *want, str name, int call) {
    arena *a = arena_new(0);
    error err = {0};
    const json *j = json_read(a, got, NULL, &err);
    if (!j)
        fail_msg("%.*s: arguments %d are no JSON: %.*s (%s)", (int)name.n, name.p, call, (int)got.n, got.p, err.msg);
    buf x = {0}, y = {0};
    json_write(&x, j), json_write(&y, want);
    if (!str_eq(buf_view(&x), buf_view(&y)))
        fail_msg("%.*s: arguments %d are %s, not %s", (int)name.n, name.p, call, x.p, y.p);
    buf_free(&x), buf_free(&y);
    arena_free(a);
}

static void check_text(str got, const json *want, str name, const char *what) {
    if (!str_eq(got, json_str(want, (str){0})))
        fail_msg("%.*s: %s is \"%.*s\", not \"%.*s\"", (int)name.n, name.p, what, (int)got.n, got.p ? got.p : "",
                 (int)want->string.n, want->string.p);
}

static void check(const reply *r, const json *c) {
    str name = json_get(c, "name")->string;
    const json *calls = json_get(c, "calls");
    check_text(buf_view(&r->content), json_get(c, "content"), name, "content");
    check_text(buf_view(&r->reasoning), json_get(c, "reasoning"), name, "reasoning");
    if (r->n != (int)calls->n) fail_msg("%.*s: %d calls, not %u", (int)name.n, name.p, r->n, calls->n);
    assert_int_equal(r->open, 0);
    if (r->half) fail_msg("%.*s: half a character or an empty event", (int)name.n, name.p);
    int64_t broken = json_int(json_get(c, "broken"), 0);
    for (int i = 0; i < r->n; i++) {
        const json *want = json_at(calls, (size_t)i), *args = json_get(want, "arguments");
        check_text(buf_view(&r->name[i]), json_get(want, "name"), name, "a call's name");
        assert_int_equal(r->whole[i], i < r->n - broken);
        if (r->whole[i])
            same_json(buf_view(&r->args[i]), args, name, i);
        else
            check_text(buf_view(&r->args[i]), args, name, "what there is of the arguments");
    }
}

/* The same texts, byte for byte, whatever the cut. */
static void same(const reply *a, const reply *b, str text) {
    bool ok = str_eq(buf_view(&a->content), buf_view(&b->content)) && a->n == b->n && !b->half && !b->open &&
              str_eq(buf_view(&a->reasoning), buf_view(&b->reasoning));
    for (int i = 0; ok && i < a->n; i++)
        ok = str_eq(buf_view(&a->args[i]), buf_view(&b->args[i])) && a->whole[i] == b->whole[i] &&
             str_eq(buf_view(&a->name[i]), buf_view(&b->name[i]));
    if (ok) return;
    print_error("content \"%s\"\n    and \"%s\"\nreasoning \"%s\"\n      and \"%s\"\n%d and %d calls\n", a->content.p,
                b->content.p, a->reasoning.p, b->reasoning.p, a->n, b->n);
    for (int i = 0; i < MAX(a->n, b->n); i++)
        print_error("%d: %s %d\n   %s %d\n", i, a->args[i].p, a->whole[i], b->args[i].p, b->whole[i]);
    fail_msg("another reply in another cut: %.*s", (int)text.n, text.p);
}

/* All cuts of a text; `want` NULL: no reply is known, only that it is one. */
static void every_cut(const json *c, str text, const json *all_tools, const json *tokens, bool known) {
    static segment seg[256];
    const json *tools = json_get(c, "tools");
    const call_form *form = call_form_named(json_get(c, "form")->string.p);
    const json *think = json_get(c, "think");
    assert_non_null(form);
    static const json none = {.type = JSON_ARRAY};
    str name = str_of(call_form_name(form));
    size_t n = segments_of(text, str_is(name, "gemma") || str_is(name, "harmony") ? tokens : &none, seg);
    tokenizer *t = tokenizer_for(seg, n, tokens);
    tool_list *l = tool_list_new(tools ? tools : all_tools, form);
    output_opts o = {.tools = l,
                     .split_thinking = think != NULL,
                     .think = think ? think_form_named(think->string.p) : NULL,
                     .prompt_tail = json_str(json_get(c, "tail"), STR(""))};
    ids id = {0};
    reply first, r;
    cut_even(&id, t, seg, n, 1, 0);
    run(&first, t, &id, &o);
    if (known) check(&first, c);
    for (size_t step = 2; step <= 8; step++)
        for (size_t shift = 0; shift < step; shift++) {
            cut_even(&id, t, seg, n, step, shift);
            run(&r, t, &id, &o);
            same(&first, &r, text);
            reply_free(&r);
        }
    for (size_t i = 0; i < n; i++)
        for (size_t at = 0; !seg[i].token && at < seg[i].text.n; at++) {
            cut_at(&id, t, seg, n, i, at);
            run(&r, t, &id, &o);
            same(&first, &r, text);
            reply_free(&r);
        }
    reply_free(&first);
    ids_free(&id);
    tool_list_drop(l);
    tokenizer_free(t);
}

static const json *cases_load(arena *a) {
    buf b = {0};
    error err = {0};
    if (!file_read(&b, "tests/data/calls/cases.json", 1 << 20, &err)) fail_msg("%s", err.msg);
    const json *j = json_read(a, buf_view(&b), NULL, &err);
    if (!j) fail_msg("%s", err.msg);
    buf_free(&b);
    return j;
}

static void every_case(void **state) {
    arena *a = arena_new(0);
    const json *all = cases_load(a), *cases = json_get(all, "cases");
    const char *only = getenv("CASE");
    for (uint32_t i = 0; i < cases->n; i++)
        if (!only || str_has(json_get(json_at(cases, i), "name")->string, str_of(only)))
            every_cut(json_at(cases, i), json_get(json_at(cases, i), "text")->string, json_get(all, "tools"),
                      json_get(all, "tokens"), true);
    arena_free(a);
}

/* ---- what no family writes --------------------------------------------------------------------------------------- */
static uint64_t rng = 7;
static size_t random_below(size_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (size_t)((rng >> 33) % n);
}

/* A piece of the text is left out, said twice, or put elsewhere; pieces are whole characters. */
static void damage(str s, buf *out) {
    size_t at = utf8_start(s.p, random_below(s.n)), n = 1 + random_below(12), end = MIN(s.n, at + n),
           to = utf8_start(s.p, random_below(s.n));
    while (end < s.n && utf8_inside(s.p[end])) end++;
    str piece = str_slice(s, at, end);
    int how = (int)random_below(3);
    out->n = 0;
    buf_add(out, s.p, how == 2 ? MIN(to, at) : at);
    if (how == 1) buf_str(out, piece), buf_str(out, piece);
    if (how == 2 && to <= at) buf_str(out, piece), buf_add(out, s.p + to, at - to);
    buf_add(out, s.p + end, s.n - end);
}

static void damaged(void **state) {
    arena *a = arena_new(0);
    const json *all = cases_load(a), *cases = json_get(all, "cases");
    const char *rounds = getenv("ROUNDS");
    buf text = {0}, more = {0};
    for (int round = 0; round < (rounds ? atoi(rounds) : 3); round++)
        for (uint32_t i = 0; i < cases->n; i++) {
            damage(json_get(json_at(cases, i), "text")->string, &text);
            if (text.n && random_below(2)) damage(buf_view(&text), &more), text.n = 0, buf_str(&text, buf_view(&more));
            if (text.n)
                every_cut(json_at(cases, i), buf_view(&text), json_get(all, "tools"), json_get(all, "tokens"), false);
        }
    buf_free(&text), buf_free(&more);
    arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case),
        cmocka_unit_test(damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
