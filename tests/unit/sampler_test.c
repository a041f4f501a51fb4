/* The sampler against a plain version that sorts everything, and its promises one by one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/internal.h"

static uint64_t rng = 42;
static double random_unit(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (double)(rng >> 11) * 0x1p-53;
}
static float random_normal(void) {
    return (float)(sqrt(-2 * log(1 - random_unit())) * cos(6.283185307179586 * random_unit()));
}

static sampler_scratch scratch;
static float *row;
static void open_vocab(int32_t vocab) {
    error err = {0};
    assert_true(sampler_scratch_init(&scratch, vocab, &err));
    row = mem_alloc(sizeof *row * (size_t)vocab);
}
static void close_vocab(void) {
    sampler_scratch_deinit(&scratch);
    free(row);
}

/* Picks from a copy of x, so that x can be used again. */
static sampler_out pick(const float *x, const sampling *s, uint64_t seed, uint64_t step) {
    sampler_out out = {0};
    memcpy(row, x, sizeof *row * (size_t)scratch.vocab);
    assert_true(sampler_pick(&(sampler_in){.logits = row, .s = s, .seed = seed, .step = step}, &scratch, &out));
    return out;
}

/* ---- the plain version: which tokens may come out ---------------------------------------------------------------- */
typedef struct ranked {
    double p;
    float x;
    int32_t id;
} ranked;
static int by_rank(const void *a, const void *b) {
    const ranked *l = a, *r = b;
    return l->x != r->x ? (l->x < r->x) - (l->x > r->x) : (l->id > r->id) - (l->id < r->id);
}
static int32_t plain_kept(const float *x, int32_t n, const sampling *s, ranked *out) {
    double z = 0, before = 0;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) max = fmaxf(max, x[i]);
    for (int32_t i = 0; i < n; i++) z += exp((double)x[i] - (double)max);
    for (int32_t i = 0; i < n; i++) out[i] = (ranked){exp((double)x[i] - (double)max) / z, x[i], i};
    qsort(out, (size_t)n, sizeof *out, by_rank);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        bool in = i == 0 || ((s->top_p >= 1 || before < (double)s->top_p) && (s->top_k == 0 || i < s->top_k) &&
                             (s->min_p == 0 || (double)out[i].x >= (double)max + log((double)s->min_p)));
        if (!in) break;
        before += out[i].p;
        kept++;
    }
    return kept;
}

/* What comes out in many draws is exactly the kept set, with the right frequencies. */
static void filters_keep_the_right_tokens(void **state) {
    enum { V = 203, DRAWS = 6000 };
    open_vocab(V);
    const sampling cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_p = 0.8f},
        {.temperature = 1, .top_p = 0.3f, .top_k = 50},
        {.temperature = 1, .top_p = 1, .top_k = 7},
        {.temperature = 0.7f, .top_p = 0.95f, .top_k = 3},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f},
        {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.02f, .top_k = 40},
        {.temperature = 1, .top_p = 1, .top_k = 100000},
        {.temperature = 1, .top_p = 1, .min_p = 1},
        {.temperature = 2, .top_p = 0.999999f},
    };
    for (size_t c = 0; c < COUNT(cases); c++) {
        float x[V];
        for (int i = 0; i < V; i++) x[i] = (c & 1 ? 1.5f : 3) * random_normal();
        if (c % 3 == 0)
            for (int i = 0; i < V; i++) x[i] = rintf(x[i]); /* many ties */
        ranked order[V];
        int32_t kept = plain_kept(x, V, &cases[c], order);
        double want[V] = {0}, total = 0;
        for (int32_t i = 0; i < kept; i++)
            total += want[order[i].id] = exp((double)(order[i].x - order[0].x) / (double)cases[c].temperature);
        int seen[V] = {0};
        for (int i = 0; i < DRAWS; i++) seen[pick(x, &cases[c], 99, (uint64_t)i).token]++;
        for (int i = 0; i < V; i++) {
            double p = want[i] / total, sd = sqrt(p * (1 - p) / DRAWS);
            if (want[i] == 0) assert_int_equal(seen[i], 0);
            assert_true(fabs((double)seen[i] / DRAWS - p) < 5 * sd + 5e-4);
        }
    }
    close_vocab();
}

/* The boundary itself, on vocabularies of real size: the last kept token can come out, the next cannot. */
static void boundaries_on_large_vocabularies(void **state) {
    enum { V = 9001 };
    open_vocab(V);
    float *x = mem_alloc(V * sizeof *x);
    ranked *order = mem_alloc(V * sizeof *order);
    for (int c = 0; c < 12; c++) {
        const float spread = (float)(1 + c % 4);
        for (int i = 0; i < V; i++) x[i] = spread * random_normal();
        sampling s = {.temperature = 1e30f, .top_p = 1}; /* hot: every kept token is as likely */
        if (c % 3 == 0) s.top_p = 0.2f + 0.07f * (float)c;
        if (c % 3 == 1) s.top_k = 1 + c * 37;
        if (c % 3 == 2) s.min_p = 0.5f / (float)(1 << c);
        int32_t kept = plain_kept(x, V, &s, order);
        uint8_t *allowed = mem_alloc(V);
        for (int32_t i = 0; i < kept; i++) allowed[order[i].id] = 1;
        /* At the very edge the f32 masses may put one token on the other side. */
        if (s.top_p < 1 && kept < V) allowed[order[kept].id] = 2;
        int edge = 0, draws = kept < 300 ? 12 * kept + 200 : 300;
        for (int i = 0; i < draws; i++) {
            int32_t t = pick(x, &s, 7, (uint64_t)i).token;
            assert_true(allowed[t]);
            edge += t == order[kept - 1].id || (kept > 1 && t == order[kept - 2].id);
        }
        if (kept < 300) assert_true(edge > 0);
        free(allowed);
    }
    free(order);
    free(x);
    close_vocab();
}

static void greedy_takes_the_first_of_equals(void **state) {
    open_vocab(19);
    float x[19] = {0};
    x[7] = x[12] = x[18] = 3;
    assert_int_equal(pick(x, &(sampling){.top_p = 1}, 1, 0).token, 7);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(pick(x, &(sampling){.temperature = 1, .top_p = 0}, (uint64_t)i, 0).token, 7);
        assert_int_equal(pick(x, &(sampling){.temperature = 1, .top_p = 1, .top_k = 1}, (uint64_t)i, 0).token, 7);
        int32_t two = pick(x, &(sampling){.temperature = 1, .top_p = 1, .top_k = 2}, (uint64_t)i, 0).token;
        assert_true(two == 7 || two == 12);
    }
    x[18] = 4;
    assert_int_equal(pick(x, &(sampling){.top_p = 1}, 1, 0).token, 18);
    close_vocab();
}

static void seeds_decide(void **state) {
    open_vocab(1000);
    float x[1000];
    for (int i = 0; i < 1000; i++) x[i] = random_normal();
    sampling s = {.temperature = 1, .top_p = 0.99f};
    int same = 0, same_step = 0;
    for (uint64_t i = 0; i < 200; i++) {
        assert_int_equal(pick(x, &s, 5, i).token, pick(x, &s, 5, i).token);
        same += pick(x, &s, 5, i).token == pick(x, &s, 6, i).token;
        same_step += pick(x, &s, 5, i).token == pick(x, &s, 5, i + 1).token;
    }
    assert_true(same < 10 && same_step < 10);
    close_vocab();
}

/* ---- bias and penalties ------------------------------------------------------------------------------------------ */
static void penalties_change_the_row(void **state) {
    enum { V = 8 };
    open_vocab(V);
    float x[V] = {2, -2, 1, 0.5f, -1, 0, 3, 4};
    const int32_t history[] = {7, 0, 0, 1, 1, 1, 2};
    sampler_out out;
    sampling s = {.top_p = 1,
                  .repetition_penalty = 2,
                  .repetition_window = 4, /* 1 1 1 2 */
                  .presence_penalty = 0.25f,
                  .presence_window = 6, /* 0 0 1 1 1 2 */
                  .frequency_penalty = 0.5f,
                  .frequency_window = 0, /* all */
                  .bias_ids = (int32_t[]){3, 1},
                  .bias = (float[]){10, 1},
                  .n_bias = 2};
    memcpy(row, x, sizeof x);
    sampler_in in = {.logits = row, .s = &s, .history = history, .n_history = COUNT(history)};
    assert_true(sampler_pick(&in, &scratch, &out));
    const float want[V] = {
        2 - 0.25f - 2 * 0.5f,               /* 0: not in the repetition window */
        (-2 + 1) * 2.0f - 0.25f - 3 * 0.5f, /* 1: bias first, negative: times */
        1 / 2.0f - 0.25f - 0.5f,
        10.5f,
        -1,
        0,
        3,
        4 - 0.5f, /* 7: frequency sees all */
    };
    for (int i = 0; i < V; i++) assert_true(row[i] == want[i]);
    assert_int_equal(out.token, 3);
    for (int i = 0; i < V; i++) assert_int_equal(scratch.count[i], 0);
    /* 1 and 0 switch repetition off. */
    s = (sampling){.top_p = 1, .repetition_penalty = 1};
    memcpy(row, x, sizeof x);
    assert_true(sampler_pick(&in, &scratch, &out));
    assert_memory_equal(row, x, sizeof x);
    close_vocab();
}

static void logprobs_are_those_after_penalties(void **state) {
    enum { V = 1237 };
    open_vocab(V);
    float x[V];
    double z = 0;
    for (int i = 0; i < V; i++) x[i] = 4 * random_normal();
    sampling s = {.temperature = 0.1f, .top_p = 0.5f, .bias_ids = (int32_t[]){5}, .bias = (float[]){2}, .n_bias = 1};
    memcpy(row, x, sizeof x);
    x[5] += 2;
    for (int i = 0; i < V; i++) z += exp((double)x[i]);
    sampler_out out;
    sampler_in in = {.logits = row, .s = &s, .logprobs = true, .n_top = 20};
    assert_true(sampler_pick(&in, &scratch, &out));
    assert_true(fabs((double)out.logprob - ((double)x[out.token] - log(z))) < 2e-6);
    ranked order[V];
    plain_kept(x, V, &s, order);
    assert_int_equal(out.n_top, 20);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(out.top[i].id, order[i].id);
        assert_true(fabs((double)out.top[i].logprob - ((double)order[i].x - log(z))) < 2e-6);
    }
    close_vocab();
    open_vocab(3); /* fewer tokens than asked for; ties by id */
    float few[3] = {1, 2, 1};
    memcpy(row, few, sizeof few);
    s.n_bias = 0;
    memcpy(row, few, sizeof few);
    in.logits = row;
    assert_true(sampler_pick(&in, &scratch, &out));
    assert_int_equal(out.n_top, 3);
    assert_int_equal(out.top[0].id, 1);
    assert_int_equal(out.top[1].id, 0);
    assert_int_equal(out.top[2].id, 2);
    close_vocab();
}

/* ---- odd rows ---------------------------------------------------------------------------------------------------- */
static void odd_rows(void **state) {
    for (int32_t v = 1; v < 40; v++) {
        open_vocab(v);
        float x[40];
        sampler_out out;
        const sampling all[] = {
            {.top_p = 1}, {.temperature = 1, .top_p = 1}, {.temperature = 1, .top_p = 0.5f, .top_k = 9}};
        for (size_t k = 0; k < COUNT(all); k++) {
            sampler_in in = {.logits = row, .s = &all[k], .logprobs = true, .n_top = 4};
            for (int32_t bad = 0; bad < v; bad++) {
                for (int32_t i = 0; i < v; i++) row[i] = (float)i;
                row[bad] = NAN;
                assert_false(sampler_pick(&in, &scratch, &out));
                for (int32_t i = 0; i < v; i++) row[i] = (float)i;
                row[bad] = INFINITY;
                assert_false(sampler_pick(&in, &scratch, &out));
                for (int32_t i = 0; i < v; i++) row[i] = -INFINITY; /* all but one forbidden, as a grammar does */
                row[bad] = -3;
                assert_true(sampler_pick(&in, &scratch, &out));
                assert_int_equal(out.token, bad);
                assert_true(fabsf(out.logprob) < 1e-6f);
            }
            for (int32_t i = 0; i < v; i++) row[i] = -INFINITY;
            assert_false(sampler_pick(&in, &scratch, &out));
        }
        /* Extremes of range do not leave it. */
        for (int32_t i = 0; i < v; i++) x[i] = i % 2 ? -1e30f : 1e30f;
        for (uint64_t i = 0; i < 20; i++)
            assert_int_equal(pick(x, &(sampling){.temperature = 1, .top_p = 1}, i, i).token % 2, 0);
        for (int32_t i = 0; i < v; i++) x[i] = (float)i;
        for (uint64_t i = 0; i < 20; i++)
            assert_int_equal(pick(x, &(sampling){.temperature = 1e-42f, .top_p = 1}, i, i).token, v - 1);
        close_vocab();
    }
}

static void levels_give_the_same_bits(void **state) {
    if (!__builtin_cpu_supports("avx2")) skip();
    enum { V = 5003 };
    open_vocab(V);
    float x[V], a[V], b[V];
    for (int round = 0; round < 20; round++) {
        const int n = V - 7 * round;
        float ma, mb;
        for (int i = 0; i < n; i++) x[i] = i % 91 == 5 ? -INFINITY : 9 * random_normal();
        assert_true(row_ops_any.max(x, n, &ma) && row_ops_avx2.max(x, n, &mb) && ma == mb);
        double za = row_ops_any.exp(x, n, ma, 0.7f, a), zb = row_ops_avx2.exp(x, n, mb, 0.7f, b);
        assert_memory_equal(&za, &zb, sizeof za);
        assert_memory_equal(a, b, sizeof *a * (size_t)n);
        for (int i = 0; i < n; i++)
            assert_true(fabs((double)a[i] - exp(((double)x[i] - (double)ma) * (double)0.7f)) < 1e-6);
        assert_int_equal(row_ops_any.next(x, 3, n, ma - 2), row_ops_avx2.next(x, 3, n, mb - 2));
        assert_int_equal(row_ops_any.gather(x, n, ma - 9, a, scratch.id),
                         row_ops_avx2.gather(x, n, mb - 9, b, scratch.id));
    }
    close_vocab();
}

/* What a model says counts where it says something; 0 is off there, but for temperature. */
static void defaults_are_the_model_s(void **state) {
    sampling s =
        sampling_defaults(&(gen_defaults){.temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = -1});
    assert_true(s.temperature == TEMPERATURE_DEFAULT && s.top_p == 1 && s.top_k == 0 && s.repetition_penalty == 0);
    s = sampling_defaults(&(gen_defaults){.temperature = 0, .top_p = 0, .repetition_penalty = 1.5f, .top_k = 40});
    assert_true(s.temperature == 0 && s.top_p == 1 && s.top_k == 40 && s.repetition_penalty == 1.5f);
    s = sampling_defaults(&(gen_defaults){.temperature = 1.5f, .top_p = 0.25f, .repetition_penalty = NAN, .top_k = 0});
    assert_true(s.temperature == 1.5f && s.top_p == 0.25f && s.top_k == 0);
}

/* Finite numbers that take logits to infinity would look like a broken model. */
static void extreme_settings_are_refused(void **state) {
    const struct {
        const char *name;
        sampling s;
    } bad[] = {{"repetition_penalty", {.top_p = 1, .repetition_penalty = 1e-40f}},
               {"repetition_penalty", {.top_p = 1, .repetition_penalty = 1e30f}},
               {"presence_penalty", {.top_p = 1, .presence_penalty = -1e38f}},
               {"frequency_penalty", {.top_p = 1, .frequency_penalty = 1e38f}},
               {"logit_bias", {.top_p = 1, .n_bias = 1, .bias_ids = (int32_t[]){0}, .bias = (float[]){3e38f}}}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        error err = {0};
        assert_false(sampling_check(&bad[i].s, 10, &err));
        assert_int_equal(err.code, ERR_INVALID);
        assert_string_equal(err.param, bad[i].name);
    }
    assert_true(
        sampling_check(&(sampling){.top_p = 1, .repetition_penalty = 0.01f, .presence_penalty = -100}, 10, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_model_s),
        cmocka_unit_test(filters_keep_the_right_tokens),
        cmocka_unit_test(boundaries_on_large_vocabularies),
        cmocka_unit_test(greedy_takes_the_first_of_equals),
        cmocka_unit_test(seeds_decide),
        cmocka_unit_test(penalties_change_the_row),
        cmocka_unit_test(logprobs_are_those_after_penalties),
        cmocka_unit_test(odd_rows),
        cmocka_unit_test(extreme_settings_are_refused),
        cmocka_unit_test(levels_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
