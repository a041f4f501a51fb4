/* base: strings, UTF-8, arenas, maps, files, and the compute pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/base/base.h"
#include "../../src/base/pool.h"

static void strings(void **state) {
    int64_t i;
    double f;
    assert_true(str_to_i64(STR("-42"), &i) && i == -42);
    assert_false(str_to_i64(STR("42x"), &i) || str_to_i64(STR(""), &i) || str_to_i64(STR(" 1"), &i));
    assert_false(str_to_i64(STR("9223372036854775808"), &i));
    assert_true(str_to_f64(STR("0.25"), &f) && f == 0.25);
    assert_false(str_to_f64(STR("inf"), &f) || str_to_f64(STR("1.0.0"), &f));
    assert_int_equal(str_distance(STR("temprature"), STR("temperature")), 1);
    assert_true(str_eq(str_trim(STR(" \t a b\n")), STR("a b")));
}

static void errors_keep_the_first(void **state) {
    error err = {0};
    assert_false(error_field(&err, ERR_INVALID, "top_p", "top_p must be in 0..1"));
    error_set(&err, ERR_INTERNAL, "later");
    error_prefix(&err, "request: ");
    assert_int_equal(err.code, ERR_INVALID);
    assert_string_equal(err.msg, "request: top_p must be in 0..1");
    assert_string_equal(err.param, "top_p");
}

static void arena_is_bounded(void **state) {
    arena *a = arena_new(100000);
    size_t got = 0;
    while (arena_alloc(a, 1000)) got += 1000;
    assert_in_range(got, 98000, 100000);
    arena_free(a);
}

static void map_finds_everything(void **state) {
    map *m = map_new(0);
    char key[20];
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "key %d", i);
        map_set(m, str_of(key), (uint64_t)i * 3);
    }
    map_set(m, STR("key 7"), 1);
    assert_int_equal(map_count(m), 20000);
    uint64_t v;
    for (int i = 0; i < 20000; i++) {
        snprintf(key, sizeof key, "key %d", i);
        assert_true(map_get(m, str_of(key), &v) && v == (i == 7 ? 1 : (uint64_t)i * 3));
    }
    assert_false(map_get(m, STR("key"), &v));
    map_free(m);
}

static void files_are_written_whole(void **state) {
    char dir[] = "/tmp/hearth-base-XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = path_join(dir, "f");
    error err = {0};
    assert_true(file_write_atomic(path, "hello", 5, &err));
    buf b = {0};
    assert_true(file_read(&b, path, 5, &err));
    assert_string_equal(b.p, "hello");
    b.n = 0;
    assert_false(file_read(&b, path, 4, &err));
    assert_int_equal(err.code, ERR_TOO_LARGE);
    file_map m;
    error none = {0};
    assert_true(file_map_open(&m, path, &none) && m.n == 5);
    file_map_close(&m);
    error missing = {0};
    assert_false(file_map_open(&m, "/tmp/hearth-no-such-file", &missing));
    assert_int_equal(missing.code, ERR_NOT_FOUND);
    unlink(path);
    rmdir(dir);
    free(path);
    buf_free(&b);
}

static void numbers_are_written_as_python_does(void **state) {
    static const struct {
        double v;
        const char *text;
    } rows[] = {{0, "0.0"},
                {-0.0, "-0.0"},
                {0.1, "0.1"},
                {1e16, "1e+16"},
                {123456789012345680.0, "1.2345678901234568e+17"},
                {0.0001, "0.0001"},
                {1e-5, "1e-05"},
                {1234.5, "1234.5"},
                {5e-324, "5e-324"},
                {1.7976931348623157e308, "1.7976931348623157e+308"},
                {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[40];
        str_from_f64(text, rows[i].v);
        assert_string_equal(text, rows[i].text);
    }
    assert_int_equal(str_digit('9'), 9);
    assert_int_equal(str_digit('F'), 15);
    assert_int_equal(str_digit('z'), 35);
    assert_true(str_digit('_') > 35 && str_digit('@') > 35 && str_digit('\xc3') > 35);
}

static void utf8_steps(void **state) {
    static const struct {
        const char *text;
        uint32_t cp[4];
    } rows[] = {{"a\u00e9\u6f22", {'a', 0xe9, 0x6f22}},
                {"\U0001f600", {0x1f600}},
                {"\xc0\x80", {0xfffd, 0xfffd}},             /* overlong */
                {"\xed\xa0\x80", {0xfffd, 0xfffd, 0xfffd}}, /* a surrogate */
                {"x\xe6\xbc", {'x', 0xfffd, 0xfffd}}};      /* cut off */
    for (size_t i = 0; i < COUNT(rows); i++) {
        size_t at = 0, k = 0, n = strlen(rows[i].text);
        while (at < n) assert_int_equal(utf8_next(rows[i].text, n, &at), rows[i].cp[k++]);
        assert_int_equal(at, n);
        assert_int_equal(rows[i].cp[k], 0);
    }
    size_t len;
    assert_int_equal(utf8_start("a\u6f22", 3), 1);
    assert_int_equal(utf8_before(STR("a\u6f22"), 4, &len), 0x6f22);
    assert_int_equal(len, 3);
    assert_int_equal(utf8_valid(STR("abcdefgh\u00e9\xff")), 10);
}

typedef struct tally {
    atomic_int hits[97];
    atomic_int bad_worker;
    int workers;
} tally;
static void count_task(void *arg, int task, int worker) {
    tally *t = arg;
    atomic_fetch_add(&t->hits[task], 1);
    if (worker < 0 || worker >= t->workers) atomic_store(&t->bad_worker, 1);
}

static void pool_runs_every_task_once(void **state) {
    for (int n = 1; n <= 5; n++) {
        pool *p = pool_new(n);
        tally *t = calloc(1, sizeof *t);
        t->workers = pool_size(p);
        for (int job = 0; job < 300; job++) {
            if (job == 150) usleep(2000); /* workers fall asleep in between */
            pool_run(p, 97, count_task, t);
        }
        for (int i = 0; i < 97; i++) assert_int_equal(t->hits[i], 300);
        assert_int_equal(t->bad_worker, 0);
        free(t);
        pool_free(p);
    }
    assert_true(pool_threads_default() >= 1);
}

/* UBSan sees arithmetic on NULL. */
static void empty_slices(void **state) {
    str none = {0};
    assert_int_equal(str_slice(none, 0, 9).n, 0);
    assert_int_equal(str_slice(none, 5, 9).n, 0);
    assert_true(str_starts(none, none) && str_ends(none, none) && str_ends(STR("ab"), none));
    assert_false(str_starts(none, STR("a")) || str_ends(none, STR("a")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings),
        cmocka_unit_test(numbers_are_written_as_python_does),
        cmocka_unit_test(utf8_steps),
        cmocka_unit_test(errors_keep_the_first),
        cmocka_unit_test(arena_is_bounded),
        cmocka_unit_test(map_finds_everything),
        cmocka_unit_test(files_are_written_whole),
        cmocka_unit_test(empty_slices),
        cmocka_unit_test(pool_runs_every_task_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
