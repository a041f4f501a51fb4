/* The engine over real checkpoints (tests/data/models), from path to tokens: the goldens through engine_logits, and the
 * same bits whatever batch, chunk, threads, memory and neighbours. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/engine.h"
#include "count_allocations.h"

#define DATA "tests/data/models/"

static uint64_t rng = 3;
static int32_t random_below(int32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

static engine *open_or_fail(const engine_opts *o) {
    error err = {0};
    engine *e = engine_open(o, &err);
    if (!e) fail_msg("%s: %s", o->model_path, err.msg);
    return e;
}

/* ---- goldens ----------------------------------------------------------------------------------------------------- */
static double worst(const float *a, const float *b, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

static void golden_one(const char *name) {
    char path[200];
    error err = {0};
    buf raw = {0};
    snprintf(path, sizeof path, DATA "%s/golden.bin", name);
    if (!file_read(&raw, path, 8 << 20, &err)) fail_msg("%s", err.msg);
    const int32_t *h = (const int32_t *)raw.p; /* layout: tools/goldens_cut.py */
    const int32_t V = h[1], n_short = h[2], n_long = h[3], n_pos = h[4], n_dec = h[5];
    const int32_t *short_ids = h + 8, *dec_ids = short_ids + n_short + n_long + n_pos;
    const float *shorts = (const float *)(dec_ids + n_dec), *dec = shorts + (n_short + n_pos) * V;
    snprintf(path, sizeof path, DATA "%s", name);
    engine *e = open_or_fail(
        &(engine_opts){.model_path = path, .device = {.num = NUM_F32, .threads = 2}, .compat_mlx_lm = true});
    assert_int_equal(engine_model(e)->vocab, V);
    float *logits = mem_alloc(sizeof(float) * (size_t)(n_short * V)),
          *greedy = mem_alloc(sizeof(float) * (size_t)(n_dec * V));
    int32_t *id = mem_alloc(sizeof(int32_t) * (size_t)n_dec);
    if (!engine_logits(e, short_ids, (size_t)n_short, n_dec, logits, id, greedy, &err)) fail_msg("%s", err.msg);
    assert_true(worst(logits, shorts, (size_t)(n_short * V)) < 5e-4);
    assert_memory_equal(id, dec_ids, sizeof(int32_t) * (size_t)n_dec);
    assert_true(worst(greedy, dec, (size_t)(n_dec * V)) < 5e-4);
    free(logits);
    free(greedy);
    free(id);
    buf_free(&raw);
    engine_close(e);
}
static void goldens_through_the_engine(void **state) {
    golden_one("llama_plain-q4");
    golden_one("llama_tied-q4");
    golden_one("mistral_swa-q4");
}

/* Coded keys and values: the prompt before coding, the reply behind it, as mlx-lm does (tools/goldens_cut.py). Where a
 * value lies between two codes, noise in the last bit of f32 decides; of 8-bit codes a few are such. */
static void golden_kv(const char *name, const char *file, const char *how, int group, double bound) {
    char path[200];
    error err = {0};
    buf raw = {0};
    snprintf(path, sizeof path, DATA "%s/%s", name, file);
    if (!file_read(&raw, path, 8 << 20, &err)) fail_msg("%s", err.msg);
    const int32_t *h = (const int32_t *)raw.p, V = h[1], n_long = h[3], n_dec = h[5];
    const int32_t *long_ids = h + 8, *dec_ids = long_ids + n_long;
    const float *dec = (const float *)(dec_ids + n_dec);
    assert_true(h[2] == 0 && h[4] == 0);
    snprintf(path, sizeof path, DATA "%s", name);
    engine *e = open_or_fail(&(engine_opts){.model_path = path,
                                            .device = {.num = NUM_F32, .threads = 2},
                                            .prefill_chunk = 100,
                                            .kv_quant = how,
                                            .kv_group = group,
                                            .kv_late = true});
    float *logits = mem_alloc(sizeof(float) * (size_t)(n_long * V)),
          *greedy = mem_alloc(sizeof(float) * (size_t)(n_dec * V));
    int32_t *id = mem_alloc(sizeof(int32_t) * (size_t)n_dec);
    if (!engine_logits(e, long_ids, (size_t)n_long, n_dec, logits, id, greedy, &err)) fail_msg("%s", err.msg);
    assert_memory_equal(id, dec_ids, sizeof(int32_t) * (size_t)n_dec);
    double x = worst(greedy, dec, (size_t)(n_dec * V));
    if (!(x < bound)) fail_msg("%s, kv %s: error %g", name, how, x);
    free(logits);
    free(greedy);
    free(id);
    buf_free(&raw);
    engine_close(e);
}
static void goldens_of_coded_caches(void **state) {
    golden_kv("qwen3-q4", "kv4g64.bin", "4", 64, 5e-4);
    golden_kv("llama-q4", "kv8g32.bin", "8", 32, 2e-2);
    golden_kv("qwen3_5_4b-q4", "kv8g64.bin", "8", 64, 5e-3);
}

/* ---- promise 2 --------------------------------------------------------------------------------------------------- */
typedef struct outcome {
    int32_t token[96];
    float logprob[96];
    int32_t n;
    finish why;
    uint64_t text; /* hash */
    size_t text_n;
} outcome;

static void read_all(gen *g, outcome *r) {
    gen_event ev;
    memset(r, 0, sizeof *r);
    while (r->why == FINISH_NONE) {
        assert_true(gen_next(g, &ev, 60000));
        if (ev.kind == GEN_TOKEN) r->logprob[r->n] = ev.logprob, r->token[r->n++] = ev.token;
        for (size_t i = 0; ev.kind == GEN_TEXT && i < ev.text.n; i++) r->text = r->text * 31 + (uint8_t)ev.text.p[i];
        if (ev.kind == GEN_TEXT) r->text_n += ev.text.n;
        if (ev.kind == GEN_DONE) r->why = ev.why;
    }
    gen_free(g);
}

enum { N = 16, PROMPT = 220 };
typedef struct request {
    int32_t prompt[PROMPT];
    gen_opts o;
} request;

static void requests_make(request *q, int32_t V) {
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)(1 + random_below(i % 4 ? 70 : PROMPT - 1));
        for (size_t k = 0; k < n; k++) q[i].prompt[k] = random_below(V);
        q[i].o = (gen_opts){.prompt = q[i].prompt,
                            .n_prompt = n,
                            .max_tokens = random_below(60),
                            .sample = {.top_p = 1},
                            .want_tokens = true,
                            .logprobs = true,
                            .ignore_eos = i & 1};
        if (i % 3 == 0)
            q[i].o.sample =
                (sampling){.temperature = 1, .top_p = 0.9f, .top_k = 40, .has_seed = true, .seed = (uint64_t)i};
        if (i % 5 == 0) q[i].o.sample.repetition_penalty = 1.2f, q[i].o.sample.repetition_window = 30;
    }
}

static void company(const char *path, numerics num, const char *kv) {
    static request q[N];
    static outcome lone[N];
    rng = 3;
    engine_opts o = {
        .model_path = path, .device = {.num = num, .threads = 1}, .batch = 1, .context_length = 512, .kv_quant = kv};
    engine *e = open_or_fail(&o);
    requests_make(q, engine_model(e)->vocab);
    error err = {0};
    for (int i = 0; i < N; i++) {
        gen *g = engine_submit(e, &q[i].o, &err);
        if (!g) fail_msg("%s", err.msg);
        read_all(g, &lone[i]);
        assert_true(lone[i].why == FINISH_LENGTH || lone[i].why == FINISH_STOP);
    }
    engine_close(e);
    const struct { int threads, batch, chunk; } mixes[] = {{2, 8, 512}, {2, 3, 7}, {1, 16, 64}, {3, 5, 33}};
    for (size_t m = 0; m < COUNT(mixes); m++) {
        o.device.threads = mixes[m].threads;
        o.batch = mixes[m].batch;
        o.prefill_chunk = mixes[m].chunk;
        e = open_or_fail(&o);
        gen *g[N];
        for (int i = 0; i < N; i++) {
            g[i] = engine_submit(e, &q[i].o, &err);
            if (!g[i]) fail_msg("%s", err.msg);
        }
        for (int i = 0; i < N; i++) {
            outcome r;
            read_all(g[i], &r);
            assert_int_equal(r.why, lone[i].why);
            assert_int_equal(r.n, lone[i].n);
            assert_memory_equal(r.token, lone[i].token, sizeof r.token);
            assert_memory_equal(r.logprob, lone[i].logprob, sizeof r.logprob);
            assert_int_equal(r.text_n, lone[i].text_n);
            assert_true(r.text == lone[i].text);
        }
        engine_close(e);
    }
}
static void same_bits_in_company(void **state) {
    company(DATA "llama_plain-q4", NUM_DEFAULT, NULL);
    company(DATA "llama-mixall", NUM_F32, NULL);
    company(DATA "mistral_swa-q4", NUM_DEFAULT, NULL);
    company(DATA "llama_plain-bf16", NUM_DEFAULT, NULL);
    company(DATA "minicpm5-q4", NUM_INT8, NULL);
}
static void same_bits_coded(void **state) {
    company(DATA "llama_plain-q4", NUM_DEFAULT, "4");
    company(DATA "mistral_swa-q4", NUM_DEFAULT, "8");      /* windows */
    company(DATA "qwen3_5_4b-q4", NUM_DEFAULT, "turbo");   /* recurrent layers beside */
    company(DATA "gemma3_text-q4", NUM_F32, "turbo:k4v4"); /* windows beside */
    company(DATA "deepseek_v3-q4", NUM_DEFAULT, "8");      /* latents */
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static void refusals(void **state) {
    error err = {0};
    assert_null(engine_open(&(engine_opts){.model_path = DATA "nothing-here"}, &err));
    assert_int_not_equal(err.code, ERR_NONE);
    err = (error){0};
    assert_null(engine_open(&(engine_opts){.model_path = DATA "llama_plain-q4", .memory_budget = 20000}, &err));
    assert_int_equal(err.code, ERR_MEMORY);
    err = (error){0};
    assert_null(engine_open(&(engine_opts){.model_path = DATA "llama_plain-q4", .batch = -1}, &err));
    assert_string_equal(err.param, "batch");
}

static void the_checkpoint_speaks(void **state) {
    engine *e = open_or_fail(&(engine_opts){.model_path = DATA "llama_plain-q4/", .context_length = 256});
    assert_string_equal(engine_model_id(e), "llama_plain-q4");
    assert_int_equal(engine_context(e), 256);
    assert_non_null(engine_template(e));
    const gen_defaults *d = engine_defaults(e);
    assert_true(d->temperature == 0.7f && d->top_p == 0.95f && d->top_k == 20 && isnan(d->repetition_penalty));
    engine_close(e);
}

/* ---- a decode step allocates nothing, the reply machine included ------------------------------------------------- */
static void decoding_allocates_nothing(void **state) {
#ifdef COUNTS_ALLOCATIONS
    enum { STREAMS = 3 };
    engine *e = open_or_fail(
        &(engine_opts){.model_path = DATA "llama_plain-q4", .context_length = 1024, .device = {.threads = 2}});
    gen *g[STREAMS];
    gen_event ev;
    error err = {0};
    for (int i = 0; i < STREAMS; i++) {
        gen_opts o = {.prompt = (int32_t[]){1, 2, 3, 4 + i},
                      .n_prompt = 4,
                      .max_tokens = 900,
                      .sample = {.temperature = i == 1, .top_p = i == 2 ? 0.9f : 1, .repetition_penalty = 1.1f},
                      .stops = (str[]){STR("never to be seen"), STR("nor this")},
                      .n_stops = 2,
                      .split_thinking = i == 1,
                      .ignore_eos = true,
                      .want_tokens = true,
                      .logprobs = i == 2,
                      .wake = i == 0 ? count_here : NULL};
        g[i] = engine_submit(e, &o, &err);
        if (!g[i]) fail_msg("%s", err.msg);
    }
    for (int n = 0; n < 400;) { /* in step with the engine, so that nobody pauses */
        for (int i = 0; i < STREAMS; i++) {
            do assert_true(gen_next(g[i], &ev, 20000));
            while (ev.kind != GEN_TOKEN);
            n += i == 0;
        }
        if (n == 100) counting = true;
    }
    counting = false;
    assert_true(found);
    assert_int_equal(allocations, 0);
    for (int i = 0; i < STREAMS; i++) gen_free(g[i]);
    engine_close(e);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_through_the_engine), cmocka_unit_test(goldens_of_coded_caches),
        cmocka_unit_test(same_bits_in_company),       cmocka_unit_test(same_bits_coded),
        cmocka_unit_test(decoding_allocates_nothing), cmocka_unit_test(refusals),
        cmocka_unit_test(the_checkpoint_speaks),
    };
    return cmocka_run_group_tests_name("engine over models", tests, NULL, NULL);
}
