/* Embeddings through the engine: the golden of a small Qwen3-Embedding, and the same bits whatever else is in the
 * steps.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/engine.h"

#define DATA "tests/data/models/"
enum { TEXTS = 4, WIDTH = 64 };

typedef struct golden {
    buf raw; /* owns */
    int32_t n[TEXTS];
    const int32_t *ids[TEXTS];
    const float *vector[TEXTS];
} golden;

static golden golden_read(void) { /* layout: tools/embedding_cut.py */
    golden g = {0};
    error err = {0};
    if (!file_read(&g.raw, DATA "qwen3_embedding/golden.bin", 1 << 20, &err)) fail_msg("%s", err.msg);
    const int32_t *at = (const int32_t *)g.raw.p + 1;
    assert_int_equal(at[0], TEXTS);
    assert_int_equal(at[1], WIDTH);
    at += 2;
    for (int i = 0; i < TEXTS; i++) {
        g.n[i] = *at++;
        g.ids[i] = at;
        g.vector[i] = (const float *)(at += g.n[i]);
        at += WIDTH;
    }
    return g;
}

static engine *open_model(const char *path, numerics num, int chunk) {
    error err = {0};
    engine *e = engine_open(
        &(engine_opts){.model_path = path, .device = {.num = num, .threads = 2}, .prefill_chunk = chunk}, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

static gen *submit(engine *e, const golden *g, int i) {
    error err = {0};
    gen *x = engine_submit(e, &(gen_opts){.prompt = g->ids[i], .n_prompt = (size_t)g->n[i], .want_hidden = true}, &err);
    if (!x) fail_msg("%s", err.msg);
    return x;
}

/* Waits for x and takes its vector, normalised. */
static void take(gen *x, float v[WIDTH]) {
    gen_event ev = {.kind = GEN_TEXT};
    assert_null(gen_hidden(x)); /* not before it is done */
    while (ev.kind != GEN_DONE) assert_true(gen_next(x, &ev, 10000));
    assert_int_equal(ev.why, FINISH_LENGTH);
    const float *h = gen_hidden(x);
    assert_non_null(h);
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += (double)h[i] * h[i];
    for (int i = 0; i < WIDTH; i++) v[i] = (float)(h[i] / sqrt(sum));
    gen_free(x);
}

static void test_golden(void **state) {
    golden g = golden_read();
    engine *e = open_model(DATA "qwen3_embedding", NUM_F32, 0);
    assert_non_null(engine_embedding(e));
    assert_int_equal(engine_embedding(e)->width, WIDTH);
    assert_int_equal(engine_embedding(e)->end_token, g.ids[0][g.n[0] - 1]);
    for (int i = 0; i < TEXTS; i++) {
        float v[WIDTH];
        take(submit(e, &g, i), v);
        for (int k = 0; k < WIDTH; k++) assert_true(fabsf(v[k] - g.vector[i][k]) < 2e-6f);
    }
    engine_close(e);
    buf_free(&g.raw);
}

static void test_same_bits_in_company(void **state) {
    golden g = golden_read();
    float alone[TEXTS][WIDTH], together[WIDTH];
    engine *e = open_model(DATA "qwen3_embedding", NUM_DEFAULT, 0);
    for (int i = 0; i < TEXTS; i++) take(submit(e, &g, i), alone[i]);
    engine_close(e);
    e = open_model(DATA "qwen3_embedding", NUM_DEFAULT, 5);
    gen *x[TEXTS];
    error err = {0};
    gen *reply =
        engine_submit(e, &(gen_opts){.prompt = g.ids[0], .n_prompt = 9, .max_tokens = 40, .ignore_eos = true}, &err);
    assert_non_null(reply);
    for (int i = 0; i < TEXTS; i++) x[i] = submit(e, &g, i);
    for (int i = 0; i < TEXTS; i++) {
        take(x[i], together);
        assert_memory_equal(together, alone[i], sizeof together);
    }
    assert_null(gen_hidden(reply));
    gen_free(reply);
    engine_close(e);
    buf_free(&g.raw);
}

static void test_models_for_replies(void **state) {
    golden g = golden_read();
    error err = {0};
    engine *e = open_model(DATA "qwen3-q4", NUM_DEFAULT, 0);
    assert_null(engine_embedding(e));
    assert_null(engine_submit(e, &(gen_opts){.prompt = g.ids[2], .n_prompt = 1, .want_hidden = true}, &err));
    assert_int_equal(err.code, ERR_INVALID);
    engine_close(e);
    buf_free(&g.raw);
}

/* Equal for equal bits, different for others: another model, other numerics. */
static void test_fingerprints(void **state) {
    engine *a = open_model(DATA "qwen3-q4", NUM_DEFAULT, 0), *b = open_model(DATA "qwen3-q4", NUM_DEFAULT, 16);
    engine *c = open_model(DATA "qwen3-q4", NUM_F32, 0), *d = open_model(DATA "qwen3_embedding", NUM_DEFAULT, 0);
    assert_string_equal(engine_fingerprint(a), engine_fingerprint(b));
    assert_string_not_equal(engine_fingerprint(a), engine_fingerprint(c));
    assert_string_not_equal(engine_fingerprint(a), engine_fingerprint(d));
    assert_non_null(strstr(engine_fingerprint(c), "f32"));
    engine *all[] = {a, b, c, d};
    for (size_t i = 0; i < COUNT(all); i++) engine_close(all[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_same_bits_in_company),
        cmocka_unit_test(test_models_for_replies),
        cmocka_unit_test(test_fingerprints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
