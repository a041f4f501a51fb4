/* The reply machine: stop strings, hold-back, thinking, for every way the text can fall into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tokenizer_make.h"

typedef struct reply {
    buf content, reasoning;
    int stopped;
    bool half;    /* an event was not whole characters */
    int switches; /* from content back to reasoning */
} reply;

static void take(reply *r, const output_event *ev, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (utf8_valid(ev[i].text) != ev[i].text.n || ev[i].text.n == 0) r->half = true;
        if (ev[i].kind == OUTPUT_REASONING && r->content.n) r->switches++;
        buf_str(ev[i].kind == OUTPUT_REASONING ? &r->reasoning : &r->content, ev[i].text);
    }
}

/* A tokenizer whose tokens are the bytes and the pieces given, so that a text can be fed in any cut. */
static reply run(const tokenizer *t, const int32_t *id, size_t n, const output_opts *o) {
    reply r = {.stopped = -1};
    const output_event *ev;
    output *out = output_new(t, o);
    for (size_t i = 0; i < n; i++) {
        int stopped;
        size_t count = output_push(out, id[i], &ev, &stopped);
        take(&r, ev, count);
        if (stopped >= 0 && r.stopped < 0) r.stopped = stopped;
    }
    size_t count = output_finish(out, &ev);
    take(&r, ev, count);
    output_free(out);
    return r;
}

static void reply_free(reply *r) {
    buf_free(&r->content), buf_free(&r->reasoning);
}

static void expect(const reply *r, const char *content, const char *reasoning, int stopped, const char *what) {
    if (!str_is(buf_view(&r->content), content) || !str_is(buf_view(&r->reasoning), reasoning) ||
        r->stopped != stopped || r->half || r->switches)
        fail_msg("%s: content \"%.*s\", reasoning \"%.*s\", stopped %d%s%s", what, (int)r->content.n,
                 r->content.p ? r->content.p : "", (int)r->reasoning.n, r->reasoning.p ? r->reasoning.p : "",
                 r->stopped, r->half ? ", half a character or an empty event" : "",
                 r->switches ? ", reasoning after content" : "");
}

/* Bytes one by one; two tokens split at every place; tokens of 2..8 bytes. */
static void every_cut(const char *text, const output_opts *o, const char *content, const char *reasoning, int stopped) {
    size_t n = strlen(text);
    int32_t *id = mem_alloc((n + 1) * sizeof *id);
    tokenizer *bytes = tokenizer_bytes_with(NULL, 0, NULL);
    for (size_t i = 0; i < n; i++) id[i] = (uint8_t)text[i];
    reply r = run(bytes, id, n, o);
    expect(&r, content, reasoning, stopped, text);
    reply_free(&r);
    tokenizer_free(bytes);
    for (size_t step = 2; step <= 8; step++)
        for (size_t shift = 0; shift < step; shift++) { /* pieces of `step` bytes after a first one of `shift` */
            const char *piece[200];
            size_t pieces = 0;
            for (size_t at = 0; at < n && pieces < COUNT(piece);) {
                size_t len = MIN(n - at, at == 0 && shift ? shift : step);
                buf b = {0};
                for (size_t i = at; i < at + len; i++) {
                    char c[4];
                    buf_add(&b, c, utf8_put(c, byte_point[(uint8_t)text[i]]));
                }
                piece[pieces++] = buf_take(&b);
                at += len;
            }
            tokenizer *t = tokenizer_bytes_with(piece, pieces, NULL);
            for (size_t i = 0; i < pieces; i++) id[i] = tokenizer_id(t, str_of(piece[i]));
            r = run(t, id, pieces, o);
            expect(&r, content, reasoning, stopped, text);
            reply_free(&r);
            for (size_t i = 0; i < pieces; i++) free((char *)piece[i]);
            tokenizer_free(t);
        }
    free(id);
}

static void stop_strings(void **state) {
    static const struct {
        const char *text, *stop[4], *content;
        int stopped;
    } cases[] = {
        {"Hello world", {"wor"}, "Hello ", 0},
        {"Hello world", {"xyz", "o w"}, "Hell", 1},
        {"Hello wo", {"world"}, "Hello wo", -1}, /* a held tail comes out at the end */
        {"a\nb", {"\n"}, "a", 0},
        {"one two three four five six", {"five"}, "one two three four ", 0},
        {"aabaabaaac", {"aabaaa"}, "aab", 0}, /* overlapping beginnings */
        {"xabcd", {"abcd", "bc"}, "xa", 1},   /* the one that is complete first */
        {"xabc", {"c", "abc", "bc"}, "x", 1}, /* of those complete together the longest */
        {"abab", {"abc", "b"}, "a", 1},
        {"héé😀x", {"é😀"}, "hé", 0},
        {"漢字かな", {"な"}, "漢字か", 0},
        {"text", {""}, "text", -1},
        {"stopstop", {"stop", "stop"}, "", 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        str stop[4];
        size_t n = 0;
        for (; n < 4 && cases[i].stop[n]; n++) stop[n] = str_of(cases[i].stop[n]);
        output_opts o = {.stops = stop, .n_stops = n};
        every_cut(cases[i].text, &o, cases[i].content, "", cases[i].stopped);
    }
}

static void thinking(void **state) {
    static const struct {
        const char *tail, *text, *reasoning, *content;
    } cases[] = {
        {"<think>\n", "internal plan\n</think>\n\nanswer", "internal plan", "answer"},
        {"<think>\n", "still thinking", "still thinking", ""},
        {"<think>\n", "still thinking\n\n</th", "still thinking\n\n</th", ""},
        {"<think>\n", "</think>private plan</think>visible", "private plan", "visible"},
        {"<think>\n", "\n</think>\n\nno thought", "", "no thought"},
        {"<think>\n", "</think>", "", ""},
        {"<think>\n", "r</think>c", "r", "c"},
        {"<think>\n", "a\n\nb\n</think>\nc\nd\n", "a\n\nb", "c\nd\n"},
        {"<think>\n", "x </thin </think >y</think>z</think>", "x </thin </think >y", "z</think>"},
        {"<think>\n", "a <think> b</think>c <think>d</think>", "a <think> b", "c <think>d</think>"},
        {"<think>\n\n</think>\n\n", "plain <think>x</think>", "", "plain <think>x</think>"},
        {"assistant\n", "<think>\nplan\n</think>\n\nanswer", "plan", "answer"},
        {"assistant\n", " \n<think>plan</think>answer", "plan", "answer"},
        {"assistant\n", "<thin>k", "", "<thin>k"},
        {"assistant\n", "  spaced", "", "  spaced"},
        {"assistant\n", "  ", "", "  "},
        {"", "漢<think>", "", "漢<think>"},
        {"<think>\n", "思考😀\n</think>\n答え😀", "思考😀", "答え😀"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        output_opts o = {.prompt_tail = str_of(cases[i].tail), .split_thinking = true};
        every_cut(cases[i].text, &o, cases[i].content, cases[i].reasoning, -1);
    }
    output_opts o = {.prompt_tail = STR("<think>\n")}; /* not asked to split */
    every_cut("a</think>b", &o, "a</think>b", "", -1);
}

/* Stop strings look at what is visible, the same however the reply is cut. */
static void stop_and_thinking(void **state) {
    str stop[] = {STR("END"), STR("OK")};
    output_opts o = {.stops = stop, .n_stops = 2, .prompt_tail = STR("<think>\n"), .split_thinking = true};
    every_cut("about END\n</think>\n\nwell OK then", &o, "well ", "about END", 1);
    every_cut("E</think>ND", &o, "ND", "E", -1);
    every_cut("x</think>\nEN", &o, "EN", "x", -1);
}

static void special_tokens(void **state) {
    static const char added[] =
        "{\"content\":\"<|im_end|>\",\"special\":true},{\"content\":\"<think>\",\"special\":true},"
        "{\"content\":\"</think>\",\"special\":true}";
    tokenizer *t = tokenizer_bytes_with(NULL, 0, added);
    int32_t end = tokenizer_id(t, STR("<|im_end|>")), open = tokenizer_id(t, STR("<think>")),
            close = tokenizer_id(t, STR("</think>"));
    assert_true(end == 256 && open == 257 && close == 258);
    int32_t id[] = {'r', close, 'c', end};
    reply r = run(t, id, COUNT(id), &(output_opts){.prompt_tail = STR("<think>\n"), .split_thinking = true});
    expect(&r, "c", "r", -1, "tags that are special tokens divide the reply, the end token is no text");
    reply_free(&r);
    r = run(t, id, COUNT(id), &(output_opts){.keep_special = true});
    expect(&r, "r</think>c<|im_end|>", "", -1, "special tokens shown");
    reply_free(&r);
    int32_t cut[] = {0xF0, 0x9F, 0x98, end};
    r = run(t, cut, COUNT(cut), &(output_opts){0});
    expect(&r, "\xEF\xBF\xBD", "", -1, "a character that never ends is one U+FFFD");
    reply_free(&r);
    tokenizer_free(t);
}

static void many_stops(void **state) {
    enum { N = 10000 };
    str *stop = mem_alloc(N * sizeof *stop);
    for (int i = 0; i < N; i++) {
        char *s = mem_alloc(48);
        int n = snprintf(s, 48, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa%05d", i);
        stop[i] = (str){s, (size_t)n};
    }
    tokenizer *t = tokenizer_bytes_with(NULL, 0, NULL);
    uint64_t start = clock_ns();
    output_opts o = {.stops = stop, .n_stops = N};
    output *out = output_new(t, &o);
    const output_event *ev;
    int stopped = -1;
    for (int i = 0; i < 200000; i++) output_push(out, 'a', &ev, &stopped);
    assert_int_equal(stopped, -1);
    for (const char *p = "04711"; *p; p++) output_push(out, *p, &ev, &stopped);
    assert_int_equal(stopped, 4711);
    assert_int_equal(output_push(out, 'x', &ev, &stopped), 0); /* nothing after a match */
    assert_int_equal(output_finish(out, &ev), 0);
    assert_true(clock_ns() - start < 5000000000ull);
    output_free(out);
    tokenizer_free(t);
    for (int i = 0; i < N; i++) free((char *)stop[i].p);
    free(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings),   cmocka_unit_test(thinking),   cmocka_unit_test(stop_and_thinking),
        cmocka_unit_test(special_tokens), cmocka_unit_test(many_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
