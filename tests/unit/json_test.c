/* JSON reader and writer: RFC 8259 rules, limits, Python's number spelling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/base/json.h"

static char *round_trip(const char *text, size_t n, error *err) {
    arena *a = arena_new(0);
    const json *j = json_read(a, (str){text, n}, NULL, err);
    buf out = {0};
    if (j) json_write(&out, j);
    arena_free(a);
    return j ? buf_take(&out) : NULL;
}

static void reads_and_writes(void **state) {
    static const char *const cases[][2] = {
        {"null", "null"},
        {" [1 , 2,3 ] ", "[1,2,3]"},
        {"{\"b\":1,\"a\":{\"x\":[]}, \"c\":{}}", "{\"b\":1,\"a\":{\"x\":[]},\"c\":{}}"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}"}, /* the last value, at the first place */
        {"\"\\u00e9\\ud83d\\ude00\\n\\/\"", "\"\xc3\xa9\xf0\x9f\x98\x80\\n/\""},
        {"-0", "0"},
        {"9223372036854775807", "9223372036854775807"},
        {"18446744073709551615", "18446744073709551615"},
        {"[1.0,1e5,1e16,1e-5,0.0001,-2.50,1e100,5e-324]", "[1.0,100000.0,1e+16,1e-05,0.0001,-2.5,1e+100,5e-324]"},
        {"0.1", "0.1"},
        {"[[],[[]],{\"\":[]}]", "[[],[[]],{\"\":[]}]"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        error err = {0};
        char *got = round_trip(cases[i][0], strlen(cases[i][0]), &err);
        if (!got) fail_msg("%s: %s", cases[i][0], err.msg);
        assert_string_equal(got, cases[i][1]);
        free(got);
    }
}

static void refuses(void **state) {
    static const char *const bad[] = {
        "",
        " ",
        "nul",
        "tru",
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "[1 2]",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e400",
        "+1",
        "\"\x01\"",
        "\"a",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"\xc0\x80\"",
        "\"\xff\"",
        "\"\xed\xa0\x80\"",
        "\xef\xbb\xbf{}",
        "{} {}",
        "[",
        "{\"a\"",
        "{\"a\":",
        "]",
        "NaN",
        "Infinity",
        "'a'",
        "\"\\",
        "\"\\\"",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        error err = {0};
        char *got = round_trip(bad[i], strlen(bad[i]), &err);
        if (got) fail_msg("accepted: %s", bad[i]);
        assert_int_equal(err.code, ERR_INVALID);
        assert_non_null(strstr(err.msg, "at byte"));
    }
}

static void keeps_nul(void **state) {
    arena *a = arena_new(0);
    const json *j = json_read(a, STR("\"a\\u0000b\""), NULL, NULL);
    assert_true(str_eq(j->string, (str){"a\0b", 3}));
    arena_free(a);
}

static void limits_hold(void **state) {
    /* 90,000 nested arrays: refused at the depth limit, with constant stack */
    size_t n = 90000;
    char *deep = malloc(n);
    memset(deep, '[', n);
    error err = {0};
    assert_null(round_trip(deep, n, &err));
    assert_non_null(strstr(err.msg, "deeper than the limit of 128"));
    free(deep);

    buf wide = {0};
    buf_putc(&wide, '[');
    for (int i = 0; i < 100000; i++) buf_puts(&wide, "[],");
    buf_puts(&wide, "[]]");
    arena *a = arena_new(0);
    error full = {0};
    json_limits l = {.memory_max = 1000000};
    assert_null(json_read(a, buf_view(&wide), &l, &full));
    assert_int_equal(full.code, ERR_TOO_LARGE);
    assert_true(arena_bytes(a) <= 1000000);
    arena_free(a);
    a = arena_new(0);
    wide.n = 1;
    for (int i = 0; i < 200000; i++)
        buf_printf(&wide, "%d,", 10000 + i % 40000); /* a prompt of token ids fits the default */
    buf_puts(&wide, "0]");
    assert_non_null(json_read(a, buf_view(&wide), NULL, NULL));
    arena_free(a);
    buf_free(&wide);
}

static void big_objects_keep_order(void **state) {
    buf text = {0};
    buf_putc(&text, '{');
    for (int i = 0; i < 5000; i++) buf_printf(&text, "%s\"k%d\":%d", i ? "," : "", i % 2500, i);
    buf_putc(&text, '}');
    arena *a = arena_new(0);
    const json *j = json_read(a, buf_view(&text), NULL, NULL);
    assert_int_equal(j->n, 2500);
    assert_int_equal(json_int(json_get(j, "k17"), -1), 2517);
    assert_true(str_is(j->members[17].key, "k17"));
    arena_free(a);
    buf_free(&text);
}

static void strings_never_leave_ill_formed(void **state) {
    buf out = {0};
    json_write_string(&out, STR("a\xff\"\x1f\xe2\x82"));
    assert_string_equal(out.p, "\"a\xef\xbf\xbd\\\"\\u001f\xef\xbf\xbd\xef\xbf\xbd\"");
    buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_and_writes),
        cmocka_unit_test(refuses),
        cmocka_unit_test(keeps_nul),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(big_objects_keep_order),
        cmocka_unit_test(strings_never_leave_ill_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
