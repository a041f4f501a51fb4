/* The Jinja language: what Jinja2 3.1.6 makes of a thousand templates (tests/data/jinja/cases.json,
 * tools/jinja_cases.py), the 125 chat templates under tests/data/templates, the limits, and where each output byte came
 * from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/text/text.h"

enum { NOW = 1767312000 }; /* 2026-01-02 00:00 UTC */

static const json *load(arena *a, const char *path) {
    buf text = {0};
    error err = {0};
    if (!file_read(&text, path, 64 << 20, &err)) fail_msg("%s", err.msg);
    const json *j = json_read(a, buf_view(&text), &(json_limits){.memory_max = 256 << 20}, &err);
    if (!j) fail_msg("%s: %s", path, err.msg);
    buf_free(&text);
    return j;
}

static bool render(str source, const json *vars, const jinja_limits *limits, buf *out, buf *user, error *err) {
    jinja *j = jinja_parse(source, err);
    bool ok = j && jinja_render(j, vars, limits, NOW, out, user, err);
    jinja_free(j);
    return ok;
}

static void as_jinja2(void **state) {
    arena *a = arena_new(0);
    const json *all = load(a, "tests/data/jinja/cases.json"), *cases = json_get(all, "cases");
    size_t failed = 0;
    assert_true(cases->n > 1000);
    for (uint32_t i = 0; i < cases->n; i++) {
        const json *c = json_at(cases, i), *want = json_get(c, "ok");
        buf out = {0}, user = {0};
        error err = {0};
        str t = json_str(json_get(c, "t"), STR(""));
        bool ok = render(t, json_get(all, "vars"), NULL, &out, &user, &err);
        assert_int_equal(out.n, user.n);
        if (ok != (want != NULL) || (ok && !str_eq(buf_view(&out), json_str(want, STR(""))))) {
            str w = json_str(want ? want : json_get(c, "err"), STR(""));
            print_error("%.*s\n  want %s %.*s\n  got  %s %s\n", (int)t.n, t.p, want ? "text" : "error", (int)w.n, w.p,
                        ok ? "text" : "error", ok ? out.p ? out.p : "" : err.msg);
            failed++;
        }
        if (!ok) assert_int_equal(err.code, ERR_TEMPLATE);
        buf_free(&out);
        buf_free(&user);
    }
    arena_free(a);
    assert_int_equal(failed, 0);
}

/* ---- chat templates ---------------------------------------------------------------------------------------------- */
static uint64_t fnv1a(str s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.n; i++) h = (h ^ (uint8_t)s.p[i]) * 0x100000001b3u;
    return h;
}

/* The reference's clock answered every format but one with the same text. */
static void same_clock(buf *out) {
    static const char *const spelled[] = {"January 02, 2026", "02 January 2026"};
    for (size_t i = 0; i < COUNT(spelled); i++) {
        size_t at = str_find(buf_view(out), str_of(spelled[i])), n = strlen(spelled[i]);
        if (at == SIZE_MAX) continue;
        buf b = {0};
        buf_add(&b, out->p, at);
        buf_puts(&b, "02 Jan 2026");
        buf_add(&b, out->p + at + n, out->n - at - n);
        buf_free(out);
        *out = b;
    }
}

static bool as_golden(const jinja *j, const json *vars, const json *want, const char *name, const char *context) {
    buf out = {0}, user = {0};
    error err = {0};
    bool ok = jinja_render(j, vars, NULL, NOW, &out, &user, &err), good;
    assert_int_equal(out.n, user.n);
    if (json_is(want, JSON_STRING))
        good = !ok && str_has(str_of(err.msg), json_str(want, STR("")));
    else {
        char hash[20];
        same_clock(&out);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)fnv1a(buf_view(&out)));
        good =
            ok && (int64_t)out.n == json_int(json_at(want, 0), -1) && str_is(json_str(json_at(want, 1), STR("")), hash);
    }
    if (!good) print_error("%s, %s: %s\n", name, context, ok ? "another text" : err.msg);
    buf_free(&out);
    buf_free(&user);
    return good;
}

static void chat_templates(void **state) {
    arena *a = arena_new(0);
    const json *all = load(a, "tests/data/templates/golden.json"), *renders = json_get(all, "renders"),
               *contexts = json_get(all, "contexts");
    size_t passed = 0, failed = 0;
    assert_int_equal(renders->n, 125);
    for (uint32_t i = 0; i < renders->n; i++) {
        const json *r = json_at(renders, i), *of = json_get(r, "of");
        str source = json_str(json_at(json_get(all, "sources"), (size_t)json_int(json_get(r, "source"), 0)), STR(""));
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)json_str(json_get(r, "name"), STR("")).n,
                 json_str(json_get(r, "name"), STR("")).p);
        error err = {0};
        jinja *j = jinja_parse(source, &err);
        if (!j) fail_msg("%s: %s", name, err.msg);
        for (uint32_t k = 0; k < of->n; k++) {
            json_builder b = {.a = a};
            json_put(&b, "bos_token", json_of_str(STR("<BOS>")));
            json_put(&b, "eos_token", json_of_str(STR("<EOS>")));
            json_put(&b, "add_generation_prompt", json_of_bool(true));
            char context[64];
            snprintf(context, sizeof context, "%.*s", (int)of->members[k].key.n, of->members[k].key.p);
            const json *vars = json_get(contexts, context);
            for (uint32_t m = 0; m < vars->n; m++) {
                char *key = arena_copy(a, vars->members[m].key.p, vars->members[m].key.n);
                json_put(&b, key, vars->members[m].value);
            }
            bool good = as_golden(j, json_built(&b), &of->members[k].value, name, context);
            passed += good;
            failed += !good;
        }
        jinja_free(j);
    }
    arena_free(a);
    assert_int_equal(failed, 0);
    assert_int_equal(passed, 2125);
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */
static void limits_stop(void **state) {
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{{ 'a' * 10**9 }}", "limit"},
        {"{{ ('a' * 10**6) * 10**6 }}", "limit"},
        {"{{ range(10**12) }}", "Range too big"},
        {"{{ [1] * 10**10 }}", "limit"},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "step limit"},
        {"{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "more than"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion"},
        {"{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
         "nested too deep"},
        {"{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l == n.l[0] }}",
         "nested too deep"},
        {"{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l|tojson }}",
         "nested too deep"},
        {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", "nested too deep"},
        {"{{ 9223372036854775807 + 1 }}", "overflow"},
        {"{{ -9223372036854775807 - 2 }}", "overflow"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "overflow"},
        {"{{ 10 ** 19 }}", "overflow"},
        {"{{ 3037000500 * 3037000500 }}", "overflow"},
        {"{{ '%999999999d' % 1 }}", "width"},
        {"{{ 'x'.center(10**12) }}", ""},
        {"{{ '{:999999999}'.format(1) }}", ""},
        {"{{ 'aaaaaaaaaa'.replace('', 'b' * 10**8) }}", "limit"},
        {"{{ [1]|batch(10**9, 'x')|list }}", "limit"},
        {"{{ [1]|slice(10**9)|list }}", "limit"},
    };
    jinja_limits limits = {.steps_max = 3000000, .bytes_max = 1 << 20};
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf out = {0};
        error err = {0};
        if (render(str_of(cases[i].source), NULL, &limits, &out, NULL, &err))
            fail_msg("%s was rendered", cases[i].source);
        if (!str_has(str_of(err.msg), str_of(cases[i].says))) fail_msg("%s: %s", cases[i].source, err.msg);
        assert_int_equal(out.n, 0);
        buf_free(&out);
    }
    /* what it may hold has a limit of its own, and what fits is not touched by it */
    const struct {
        size_t memory;
        bool ok;
    } held[] = {{1 << 20, false}, {64 << 20, true}};
    for (size_t i = 0; i < COUNT(held); i++) {
        buf out = {0};
        error err = {0};
        jinja_limits memory = {.memory_max = held[i].memory};
        assert_int_equal(render(STR("{{ ('abc' * 1000000)|length }}"), NULL, &memory, &out, NULL, &err), held[i].ok);
        if (!held[i].ok) assert_true(str_has(str_of(err.msg), STR("memory limit")));
        buf_free(&out);
    }
}

static void deep_sources(void **state) {
    static const struct {
        const char *before, *again, *middle, *after;
    } shapes[] = {
        {"{{ ", "(", "1", ")"},
        {"{{ ", "[", "", "]"},
        {"{{ ", "-", "1", ""},
        {"{{ ", "not ", "1", ""},
        {"{{ 1", " + 1", "", ""},
        {"{{ a", ".a", "", ""},
        {"{{ a", "|e", "", ""},
        {"{{ a", "[0]", "", ""},
        {"{{ a", "()", "", ""},
        {"{{ 1", " if 1 else 1", "", ""},
        {"{{ 1", " and 1", "", ""},
        {"{{ 1", " ** 1", "", ""},
        {"{{ 1", " ~ 1", "", ""},
        {"{{ 1", " < 2", "", ""},
        {"{{ {1:", "{1:", "1", "}"},
        {"", "{% if 1 %}", "", ""},
        {"", "{% for x in [1] %}", "", ""},
        {"", "{% macro m() %}", "", ""},
        {"{% set ", "(", "a", ")"},
        {"{{ 1", " is string", "", ""},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        buf source = {0}, out = {0};
        error err = {0};
        buf_puts(&source, shapes[i].before);
        for (int k = 0; k < 100000; k++) buf_puts(&source, shapes[i].again);
        buf_puts(&source, shapes[i].middle);
        for (int k = 0; k < 100000; k++) buf_puts(&source, shapes[i].after);
        if (shapes[i].before[0] == '{' && shapes[i].before[1] == '{') buf_puts(&source, " }}");
        bool ok = render(buf_view(&source), NULL, NULL, &out, NULL, &err);
        /* Those that are flat by nature may work; nothing may crash. */
        if (!ok) assert_int_equal(err.code, ERR_TEMPLATE);
        buf_free(&source);
        buf_free(&out);
    }
}

static void errors_name_lines(void **state) {
    error err = {0};
    assert_null(jinja_parse(STR("a\nb\n{% if %}"), &err));
    assert_true(str_starts(str_of(err.msg), STR("line 3: ")));
    buf out = {0};
    err = (error){0};
    assert_false(render(STR("a\n\n{{ 1 + x }}"), NULL, NULL, &out, NULL, &err));
    assert_string_equal(err.msg, "line 3: 'x' is undefined");
    err = (error){0};
    assert_false(render(STR("a\n\n{{ raise_exception('No.') }}"), NULL, NULL, &out, NULL, &err));
    assert_string_equal(err.msg, "No.");
    err = (error){0};
    assert_null(jinja_parse(STR("\xff"), &err));
    assert_int_equal(err.code, ERR_TEMPLATE);
    buf_free(&out);
}

/* ---- provenance -------------------------------------------------------------------------------------------------- */
/* x is the user's "Ab,cd": the expected text has user bytes in upper-case U's place: `marks` holds one letter a byte.
 */
static void where_bytes_come_from(void **state) {
    static const struct {
        const char *source, *text, *marks;
    } cases[] = {
        {"<{{ x }}>", "<Ab,cd>", "tuuuuut"},
        {"{{ '<' ~ x ~ '>' }}", "<Ab,cd>", "tuuuuut"},
        {"{{ '<' + x }}", "<Ab,cd", "tuuuuu"},
        {"{{ ('<' ~ x)|upper }}", "<AB,CD", "tuuuuu"},
        {"{{ x.split(',')[1] ~ '!' }}", "cd!", "uut"},
        {"{{ x.split(',')|join('-') }}", "Ab-cd", "uutuu"},
        {"{{ x|replace(',', '--') }}", "Ab--cd", "uuttuu"},
        {"{{ 'a,b'|replace(',', x) }}", "aAb,cdb", "tuuuuut"},
        {"{{ (' ' ~ x ~ ' ')|trim }}", "Ab,cd", "uuuuu"},
        {"{{ ('<' ~ x)[::-1] }}", "dc,bA<", "uuuuut"},
        {"{{ ('<' ~ x)[:3] }}", "<Ab", "tuu"},
        {"{{ x|tojson }}", "\"Ab,cd\"", "tuuuuut"},
        {"{{ {'k': x}|tojson }}", "{\"k\": \"Ab,cd\"}", "tttttttuuuuutt"},
        {"{{ [x] }}", "['Ab,cd']", "ttuuuuutt"},
        {"{{ '%s-%s' % (x, 'y') }}", "Ab,cd-y", "uuuuutt"},
        {"{{ '{}!'.format(x) }}", "Ab,cd!", "uuuuut"},
        {"{{ x|indent(2, true) }}", "  Ab,cd", "ttuuuuu"},
        {"{{ x.center(7) }}", " Ab,cd ", "tuuuuut"},
        {"{{ x|e }}", "Ab,cd", "uuuuu"},
        {"{% set y %}<{{ x }}>{% endset %}{{ y }}", "<Ab,cd>", "tuuuuut"},
        {"{% macro m(v) %}[{{ v }}]{% endmacro %}{{ m(x) }}", "[Ab,cd]", "tuuuuut"},
        {"{% for c in x %}{{ c }};{% endfor %}", "A;b;,;c;d;", "ututututut"},
        {"{% filter lower %}X{{ x }}{% endfilter %}", "xab,cd", "tuuuuu"},
        {"{{ d.rank ~ d['n'] }}", "admin7", "uuuuuu"},
        {"{{ d|length }}{{ d.n + 1 }}", "28", "tu"},
        {"{{ d|items|list }}", "[('rank', 'admin'), ('n', 7)]", "tttuuuuttttuuuuuttttttutttutt"},
        {"{% set ns = namespace(a='') %}{% for i in range(3) %}{% set ns.a = ns.a ~ '|' ~ d.n %}{% endfor %}{{ ns.a }}",
         "|7|7|7", "tututu"},
        {"{{ x.title() }}{{ x|capitalize }}", "Ab,CdAb,cd", "uuuuuuuuuu"},
        {"{{ j|from_json }}", "{'a': 'b'}", "ttuttttutt"},
    };
    arena *a = arena_new(0);
    error err = {0};
    const json *vars = json_read(
        a, STR("{\"x\":\"Ab,cd\",\"d\":{\"rank\":\"admin\",\"n\":7},\"j\":\"{\\\"a\\\":\\\"b\\\"}\"}"), NULL, &err);
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf out = {0}, user = {0}, got = {0};
        err = (error){0};
        if (!render(str_of(cases[i].source), vars, NULL, &out, &user, &err))
            fail_msg("%s: %s", cases[i].source, err.msg);
        assert_string_equal(out.p, cases[i].text);
        for (size_t k = 0; k < user.n; k++) buf_putc(&got, user.p[k] ? 'u' : 't');
        if (!str_eq(buf_view(&got), str_of(cases[i].marks)))
            fail_msg("%s: %s, not %s", cases[i].source, got.p, cases[i].marks);
        buf_free(&out);
        buf_free(&user);
        buf_free(&got);
    }
    arena_free(a);
}

int main(void) {
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_jinja2),    cmocka_unit_test(chat_templates),    cmocka_unit_test(limits_stop),
        cmocka_unit_test(deep_sources), cmocka_unit_test(errors_name_lines), cmocka_unit_test(where_bytes_come_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
