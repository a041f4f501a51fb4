/* Ordinary agent conversations through all 125 published templates: nothing is refused, nothing is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/text/history.h"

#define TOOLS                                                                                                         \
    "[{\"type\":\"function\",\"function\":{\"name\":\"read_file\",\"description\":\"DESCREAD reads\",\"parameters\":" \
    "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\",\"description\":\"where\"},\"lines\":{"       \
    "\"type\":\"integer\"}},\"required\":[\"path\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"now\","        \
    "\"description\":\"DESCNOW\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]"
#define SYS(t) "{\"role\":\"system\",\"content\":\"" t "\"}"
#define USR(t) "{\"role\":\"user\",\"content\":\"" t "\"}"
#define AST(t) "{\"role\":\"assistant\",\"content\":\"" t "\"}"
#define READ(id, path)                                                                                              \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"read_file\",\"arguments\":{\"path\":\"" path \
    "\",\"lines\":3}}}"
#define NOW(id)       "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"now\",\"arguments\":{}}}"
#define ACT(t, calls) "{\"role\":\"assistant\",\"content\":\"" t "\",\"tool_calls\":[" calls "]}"
#define RES(id, t)    "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" t "\"}"
#define A             "call_0a1b2c3d"
#define B             "call_4e5f6071"
#define C             "toolu_01ABCDEFGHIJKLMNOP"

/* texts: these, in this order. anywhere: these too. */
static const struct conversation {
    const char *name, *messages;
    bool tools;
    const char *texts[12], *anywhere[6];
} conversations[] = {
    {"plain", "[" SYS("You are SYSONE.") "," USR("Hello USRONE") "]", false, {"SYSONE", "USRONE"}, {0}},
    {"no system",
     "[" USR("USRONE") "," AST("ASTONE") "," USR("USRTWO") "]",
     false,
     {"USRONE", "ASTONE", "USRTWO"},
     {0}},
    {"two system messages",
     "[" SYS("SYSONE") "," SYS("SYSTWO") "," USR("USRONE") "]",
     false,
     {"SYSONE", "SYSTWO", "USRONE"},
     {0}},
    {"late system message",
     "[" SYS("SYSONE") "," USR("USRONE") "," AST("ASTONE") "," SYS("SYSTWO") "," USR("USRTWO") "]",
     false,
     {"SYSONE", "USRONE", "ASTONE", "SYSTWO", "USRTWO"},
     {0}},
    {"system message at the end",
     "[" USR("USRONE") "," AST("ASTONE") "," USR("USRTWO") "," SYS("SYSTWO") "]",
     false,
     {"USRONE", "ASTONE", "USRTWO", "SYSTWO"},
     {0}},
    {"same role twice",
     "[" USR("USRONE") "," USR("USRTWO") "," AST("ASTONE") "," AST("ASTTWO") "," USR("USRTHREE") "]",
     false,
     {"USRONE", "USRTWO", "ASTONE", "ASTTWO", "USRTHREE"},
     {0}},
    {"assistant first", "[" AST("ASTONE") "," USR("USRONE") "]", false, {"ASTONE", "USRONE"}, {0}},
    {"tools",
     "[" SYS("SYSONE") "," USR("USRONE") "]",
     true,
     {"SYSONE", "USRONE"},
     {"read_file", "DESCREAD", "DESCNOW"}},
    {"a call and its result",
     "[" SYS("SYSONE") "," USR("USRONE") "," ACT("", READ(A, "/PATHONE")) "," RES(A, "RESONE") "]",
     true,
     {"SYSONE", "USRONE", "PATHONE", "RESONE"},
     {"DESCREAD"}},
    {"the loop of an agent",
     "[" SYS("SYSONE") "," USR("USRONE") "," ACT("ASTONE", READ(A, "/PATHONE")) "," RES(A, "RESONE") "," ACT(
         "", READ(B, "/PATHTWO")) "," RES(B, "RESTWO") "," AST("ASTTWO") "," USR("USRTWO") "]",
     true,
     {"SYSONE", "USRONE", "ASTONE", "RESONE", "PATHTWO", "RESTWO", "ASTTWO", "USRTWO"},
     {"DESCREAD", "PATHONE"}},
    {"parallel calls",
     "[" USR("USRONE") "," ACT("", READ(A, "/PATHONE") "," NOW(B)) "," RES(A, "RESONE") "," RES(B, "RESTWO") "," AST(
         "ASTONE") "," USR("USRTWO") "]",
     true,
     {"USRONE", "RESONE", "RESTWO", "ASTONE", "USRTWO"},
     {"PATHONE", "now"}},
    {"result, then the user",
     "[" USR("USRONE") "," ACT("", READ(C, "/PATHONE")) "," RES(C, "RESONE") "," USR("USRTWO") "]",
     true,
     {"USRONE", "PATHONE", "RESONE", "USRTWO"},
     {0}},
    {"result, then a system message",
     "[" SYS("SYSONE") "," USR("USRONE") "," ACT("", READ(C, "/PATHONE")) "," RES(C, "RESONE") "," SYS(
         "SYSTWO") "," USR("USRTWO") "]",
     true,
     {"SYSONE", "USRONE", "PATHONE", "RESONE", "SYSTWO", "USRTWO"},
     {0}},
    {"calls without tools",
     "[" USR("USRONE") "," ACT("ASTONE", READ(A, "/PATHONE")) "," RES(A, "RESONE") "," USR("USRTWO") "]",
     false,
     {"USRONE", "ASTONE", "RESONE", "USRTWO"},
     {"PATHONE"}},
    {"thinking",
     "[" USR("USRONE") ",{\"role\":\"assistant\",\"reasoning_content\":\"R1\",\"content\":\"ASTONE\"}," USR(
         "USRTWO") "]",
     false,
     {"USRONE", "ASTONE", "USRTWO"},
     {0}},
};

static const json *golden(arena *a) {
    buf b = {0};
    error err = {0};
    if (!file_read(&b, "tests/data/templates/golden.json", 8 << 20, &err)) fail_msg("%s", err.msg);
    const json *j = json_read(a, buf_view(&b), NULL, &err);
    if (!j) fail_msg("%s", err.msg);
    buf_free(&b);
    return j;
}

static bool in_order(const struct conversation *c, str text, const char **lost) {
    size_t from = 0;
    for (size_t i = 0; i < COUNT(c->texts) && c->texts[i]; i++) {
        size_t at = str_find(str_slice(text, from, text.n), str_of(*lost = c->texts[i]));
        if (at == SIZE_MAX) return false;
        from += at + strlen(c->texts[i]);
    }
    for (size_t i = 0; i < COUNT(c->anywhere) && c->anywhere[i]; i++)
        if (!str_has(text, str_of(*lost = c->anywhere[i]))) return false;
    return true;
}

static int run(const chat_template *t, str name, const struct conversation *c) {
    arena *a = arena_new(0);
    error err = {0};
    render_opts o = {.messages = json_read(a, str_of(c->messages), NULL, &err),
                     .tools = c->tools ? json_read(a, STR(TOOLS), NULL, &err) : NULL,
                     .add_generation_prompt = true,
                     .now_unix = 1767312000};
    if (err.code) fail_msg("%s: %s", c->name, err.msg);
    buf out = {0}, user = {0};
    const char *lost = "";
    bool ok = history_render(t, &o, &out, &user, &err);
    bool whole = ok && in_order(c, buf_view(&out), &lost);
    if (ok) assert_int_equal(out.n, user.n);
    if (!whole) print_error("%.*s, %s: %s%s\n", (int)name.n, name.p, c->name, ok ? "lost " : err.msg, ok ? lost : "");
    if (!whole && getenv("SHOW")) print_error("%s\n", out.p ? out.p : "");
    buf_free(&out), buf_free(&user);
    arena_free(a);
    return !whole;
}

static void nothing_is_lost(void **state) {
    arena *a = arena_new(0);
    const json *all = golden(a), *renders = json_get(all, "renders"), *sources = json_get(all, "sources");
    int bad = 0, seen = 0;
    const char *only = getenv("TEMPLATE");
    for (uint32_t i = 0; i < renders->n; i++) {
        str name = json_get(json_at(renders, i), "name")->string;
        str source = json_at(sources, (size_t)json_int(json_get(json_at(renders, i), "source"), 0))->string;
        if (only && !str_has(name, str_of(only))) continue;
        error err = {0};
        chat_template *t = chat_template_from(source, STR("<s>"), STR("</s>"), &err);
        if (!t) fail_msg("%s", err.msg);
        seen++;
        for (size_t k = 0; k < COUNT(conversations); k++) bad += run(t, name, &conversations[k]);
        chat_template_free(t);
    }
    arena_free(a);
    assert_true(seen == 125 || only);
    assert_int_equal(bad, 0);
}

/* What a template takes as it is stays as it is. */
static void the_least_is_changed(void **state) {
    error err = {0};
    chat_template *t = chat_template_from(
        STR("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.id }} {{ "
            "c.function.name }} "
            "{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}{{ tools | tojson if tools }}"),
        STR(""), STR(""), &err);
    static const history_rules none;
    assert_memory_equal(chat_template_rules(t), &none, sizeof none);
    chat_template_free(t);
    t = chat_template_from(STR("{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ "
                               "raise_exception('no') }}{% endif %}"
                               "<{{ m.role }}>{{ m.content }}{% endfor %}"),
                           STR(""), STR(""), &err);
    buf out = {0};
    arena *a = arena_new(0);
    render_opts o = {.messages = json_read(a, STR("[" SYS("a") "," USR("b") "," AST("c") "," SYS("d") "," USR("e") "]"),
                                           NULL, &err)};
    assert_true(history_render(t, &o, &out, NULL, &err));
    assert_string_equal(out.p, "<system>a<user>b<assistant>c<user>d\n\ne"); /* what came before is the same prefix */
    buf_free(&out);
    arena_free(a);
    chat_template_free(t);
}

/* However many messages become one, memory and work grow with their text, not with its square. */
static void many_become_one(void **state) {
    enum { N = 20000 };
    static const char *const role[] = {"system", "user", "system"};
    const history_rules rules[] = {{.late_user = true}, history_plain, {.late_user = true}};
    for (int k = 0; k < 3; k++) {
        buf b = {0};
        buf_puts(&b, k < 2 ? "[" : "[{\"role\":\"user\",\"content\":\"u\"}");
        for (int i = 0; i < N; i++)
            buf_printf(&b, "%s{\"role\":\"%s\",\"content\":\"x\"}", i || k == 2 ? "," : "", role[k]);
        buf_puts(&b, "]");
        arena *in = arena_new(0), *a = arena_new(0);
        error err = {0};
        render_opts o = {.messages = json_read(in, buf_view(&b), NULL, &err)};
        const json *out = history_fit(a, &rules[k], &o).messages;
        assert_int_equal(out->n, k < 2 ? 1 : 2);
        str text = json_get(json_at(out, out->n - 1), "content")->string;
        assert_int_equal(text.n, 3 * N - 2);
        assert_true(str_starts(text, STR("x\n\nx\n\nx")));
        assert_true(arena_bytes(a) < (size_t)N * 2000);
        buf_free(&b);
        arena_free(in);
        arena_free(a);
    }
}

/* Calls without ids are told apart, also beyond the tenth. */
static void every_call_has_its_id(void **state) {
    buf b = {0};
    error err = {0};
    arena *a = arena_new(0);
    buf_puts(&b, "[" USR("u") ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
    for (int i = 0; i < 12; i++) buf_printf(&b, "%s{\"function\":{\"name\":\"now\",\"arguments\":{}}}", i ? "," : "");
    buf_puts(&b, "]}]");
    render_opts o = {.messages = json_read(a, buf_view(&b), NULL, &err)};
    const json *calls = json_get(json_at(history_fit(a, &(history_rules){.ids = true}, &o).messages, 1), "tool_calls");
    assert_int_equal(calls->n, 12);
    for (uint32_t i = 0; i < 12; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_false(str_eq(json_get(json_at(calls, i), "id")->string, json_get(json_at(calls, k), "id")->string));
    buf_free(&b);
    arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(the_least_is_changed),
        cmocka_unit_test(many_become_one),
        cmocka_unit_test(every_call_has_its_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
