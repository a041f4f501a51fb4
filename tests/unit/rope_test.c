/* model/part_rope.c: frequencies of every kind against transformers' (tools/goldens_rope.py), and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <cmocka.h>
#include "../../src/model/internal.h"

static const json *read_text(arena *a, str text) {
    error e = {0};
    const json *j = json_read(a, text, NULL, &e);
    if (!j) fail_msg("%s", e.msg);
    return j;
}

static void as_transformers(void **state) {
    buf text = {0};
    error e = {0};
    assert_true(file_read(&text, "tests/data/rope.json", 1 << 20, &e));
    model m = {.a = arena_new(0)};
    const json *cases = read_text(m.a, buf_view(&text));
    assert_true(cases->n >= 12);
    for (size_t i = 0; i < cases->n; i++) {
        const json *x = json_at(cases, i), *want = json_get(x, "freq");
        str name = json_str(json_get(x, "name"), STR("")), type = json_str(json_get(x, "layer_type"), STR(""));
        config c = {.root = json_get(x, "config"), .text = json_get(x, "config")};
        rope_table r = {0};
        m.context_asked = json_bool(json_get(x, "long"), false) ? INT32_MAX : 0;
        rope_make(&m, &c, &r,
                  &(rope_opts){.head = (int32_t)json_int(json_get(x, "head"), 0),
                               .layer_type = type.n ? arena_copy(m.a, type.p, type.n) : NULL});
        assert_int_equal(c.err.code, 0);
        if (r.n_freq != (int32_t)want->n) fail_msg("%.*s: %d frequencies", (int)name.n, name.p, r.n_freq);
        double scale = json_real(json_get(x, "scale"), 0);
        if (fabs(r.scale - scale) > 1e-6) fail_msg("%.*s: scale %g, expected %g", (int)name.n, name.p, r.scale, scale);
        for (int k = 0; k < r.n_freq; k++) {
            double f = json_real(json_at(want, (size_t)k), 0);
            if (fabs(r.freq[k] - f) > 2e-6 * f)
                fail_msg("%.*s: [%d] %.9g, expected %.9g", (int)name.n, name.p, k, r.freq[k], f);
        }
    }
    arena_free(m.a);
    buf_free(&text);
}

static void freq_factors(void **state) {
    model m = {.a = arena_new(0)};
    const json *j = read_text(
        m.a, STR("{\"rope_theta\":100,\"rope_scaling\":{\"rope_type\":\"freq_factors\",\"freq_factors\":[1,4]}}"));
    config c = {.root = j, .text = j};
    rope_table r = {0};
    rope_make(&m, &c, &r, &(rope_opts){.head = 4, .interleaved = true});
    assert_true(r.interleaved && r.n_freq == 2);
    assert_float_equal(r.freq[0], 1, 1e-7);
    assert_float_equal(r.freq[1], 0.1 / 4, 1e-7);
    arena_free(m.a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_transformers), cmocka_unit_test(freq_factors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
