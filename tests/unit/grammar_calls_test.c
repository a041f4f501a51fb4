/* Forced tool calls: whatever a model writes under the grammar of a form, the reply parser reads it as one whole call
 * of the tool, with arguments of the declared types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tokenizer_make.h"
#include "../../src/text/grammar.h"

static const char marks[] =
    "{\"id\":300,\"content\":\"<|tool_call>\",\"special\":true},{\"id\":301,\"content\":\"<tool_call|>\",\"special\":"
    "true},"
    "{\"id\":302,\"content\":\"<|\\\"|>\",\"special\":true},{\"id\":303,\"content\":\"[TOOL_CALLS]\",\"special\":true},"
    "{\"id\":304,\"content\":\"[ARGS]\",\"special\":true},{\"id\":305,\"content\":\"<\xEF\xBD\x9Ctool\xE2\x96\x81"
    "calls\xE2\x96\x81"
    "begin\xEF\xBD\x9C>\",\"special\":true},{\"id\":306,\"content\":\"<tool_call>\",\"special\":false},"
    "{\"id\":307,\"content\":\"\\n</parameter>\\n\",\"special\":false},{\"id\":308,\"content\":\"</"
    "parameter>\\n\",\"special\":false},"
    "{\"id\":309,\"content\":\"</param>\",\"special\":false},{\"id\":310,\"content\":\"</"
    "arg_value>\",\"special\":false},"
    "{\"id\":311,\"content\":\"</｜DSML｜parameter>\\n\",\"special\":false}";
static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"save_note\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"title\":{\"type\":\"string\"},\"count\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99},"
    "\"kind\":{\"type\":\"string\",\"enum\":[\"big\",\"small\"]},\"exact\":{\"type\":\"boolean\"}},"
    "\"required\":[\"title\",\"count\",\"kind\"]}}}]";
static const struct {
    const char *name;
    const char *closer; /* what ends an argument of text */
} forms[] = {{"hermes", "\""},
             {"qwen", "\n</parameter>\n"},
             {"seed", "</parameter>\n"},
             {"glm", "</arg_value>"},
             {"minicpm", "</param>"},
             {"minimax", "</parameter>\n"},
             {"llama", "\""},
             {"mistral", "\""},
             {"phi", "\""},
             {"nemotron", "\""},
             {"deepseek-dsml", "</｜DSML｜parameter>\n"},
             {"deepseek-v4", "</｜DSML｜parameter>\n"},
             {"apriel", "\""},
             {"gemma", "<|\"|>"},
             {"deepseek", "\""}};

static uint64_t seed = 3;
static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}
/* What a model of no sense writes: plain characters, now and then (after a while at once) what may close an argument.
 */
static bool next_token(const uint64_t *mask, int32_t n, bool closing, int32_t closer, int32_t *id) {
    const int32_t closers[] = {closer < 0 ? '"' : closer, '"', '}', ']', '<'};
    int32_t plain[512], n_plain = 0, any = -1;
    for (int32_t i = 0; i < n; i++) {
        if (!(mask[i / 64] >> (i % 64) & 1)) continue;
        any = i;
        if (i < 128 && (i >= 'a' || (i >= '0' && i <= '9') || strchr("<>\"/[]:=, \n_", i))) plain[n_plain++] = i;
    }
    *id = n_plain ? plain[draw((uint32_t)n_plain)] : any;
    for (size_t i = 0; i < COUNT(closers) && (closing || draw(8) == 0); i++)
        if (mask[closers[i] / 64] >> (closers[i] % 64) & 1) {
            *id = closers[i];
            break;
        }
    return any >= 0;
}
static void check_arguments(const char *form, str text) {
    arena *a = arena_new(0);
    error err = {0};
    const json *j = json_read(a, text, NULL, &err);
    if (!j) fail_msg("%s: %s in %.*s", form, err.msg, (int)text.n, text.p);
    if (!json_is(json_get(j, "title"), JSON_STRING) || !json_is(json_get(j, "count"), JSON_INT) ||
        json_int(json_get(j, "count"), -1) > 99)
        fail_msg("%s: %.*s", form, (int)text.n, text.p);
    str kind = json_str(json_get(j, "kind"), (str){0});
    if (!str_is(kind, "big") && !str_is(kind, "small")) fail_msg("%s: kind in %.*s", form, (int)text.n, text.p);
    if (json_get(j, "exact") && !json_is(json_get(j, "exact"), JSON_BOOL))
        fail_msg("%s: exact in %.*s", form, (int)text.n, text.p);
    arena_free(a);
}
typedef struct reply {
    int calls, whole, content;
    buf args;
} reply;
static void take(reply *r, const output_event *ev, size_t n) {
    for (size_t i = 0; i < n; i++, ev++) {
        r->calls += ev->kind == OUTPUT_CALL && str_is(ev->text, "save_note");
        r->content += ev->kind == OUTPUT_CONTENT && str_trim(ev->text).n;
        r->whole += ev->kind == OUTPUT_CALL_END && ev->whole;
        if (ev->kind == OUTPUT_ARGS) buf_str(&r->args, ev->text);
    }
}
static void one(const char *form, int32_t closer, const tokenizer *t, grammar *g, const json *tools) {
    tool_list *list = tool_list_new(tools, call_form_named(form));
    assert_non_null(list);
    output *out = output_new(t, &(output_opts){.tools = list});
    matcher *m = matcher_new(g);
    buf said = {0};
    reply r = {0};
    int stopped;
    const output_event *ev;
    for (int step = 0; !matcher_done(m); step++) {
        int32_t id = -1;
        const uint64_t *mask = matcher_mask(m);
        if (step > 20000 || !mask || !next_token(mask, tokenizer_size(t), step > 300, closer, &id))
            fail_msg("%s: no way on after %.*s", form, (int)said.n, said.p);
        assert_true(matcher_accept(m, id));
        tokenizer_bytes(t, id, &said);
        size_t n = output_push(out, id, &ev, &stopped);
        take(&r, ev, n);
    }
    size_t n = output_finish(out, &ev);
    take(&r, ev, n);
    if (r.calls != 1 || r.whole != 1 || r.content)
        fail_msg("%s: %d calls, %d whole, %d content: %.*s", form, r.calls, r.whole, r.content, (int)said.n, said.p);
    check_arguments(form, buf_view(&r.args));
    buf_free(&r.args);
    buf_free(&said);
    matcher_free(m);
    output_free(out);
    tool_list_drop(list);
}
static void test_calls_are_read_again(void **state) {
    tokenizer *t = tokenizer_bytes_with(NULL, 0, marks);
    arena *a = arena_new(0);
    const json *tools = json_read(a, str_of(tools_text), NULL, NULL);
    const int32_t eos = -1;
    grammar_vocab *v = grammar_vocab_new(t, tokenizer_size(t), &eos, 0);
    for (size_t i = 0; i < COUNT(forms); i++) {
        error err = {0};
        grammar_spec s = {.kind = GRAMMAR_TOOLS,
                          .tools = {.form = forms[i].name, .tools = tools, .special = grammar_special, .tokens = t}};
        grammar *g = grammar_compile(&s, v, &err);
        if (!g) fail_msg("%s: %s", forms[i].name, err.msg);
        for (int k = 0; k < 6; k++) one(forms[i].name, tokenizer_id(t, str_of(forms[i].closer)), t, g, tools);
        grammar_drop(g);
    }
    grammar_vocab_drop(v);
    arena_free(a);
    tokenizer_free(t);
}
int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_are_read_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
