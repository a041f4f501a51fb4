/* The engine with a model made of hashes (engine_fake.h): what a request gets must not depend on company, chunks,
 * threads, pages that run out; and every way a request can end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include "count_allocations.h"
#include "engine_fake.h"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */
static uint64_t rng = 1;
static int32_t random_below(int32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

typedef struct result {
    int32_t token[512];
    float logprob[512];
    int n, n_progress;
    char text[512];
    size_t n_text;
    finish why;
    int32_t stop_index;
    error err;
} result;

static void take(result *r, const gen_event *ev) {
    if (ev->kind == GEN_TOKEN) {
        r->logprob[r->n] = ev->logprob;
        r->token[r->n++] = ev->token;
    }
    r->n_progress += ev->kind == GEN_PROGRESS;
    if (ev->kind == GEN_TEXT) {
        memcpy(r->text + r->n_text, ev->text.p, ev->text.n);
        r->n_text += ev->text.n;
    }
    if (ev->kind == GEN_DONE) {
        r->why = ev->why;
        r->stop_index = ev->stop_index;
        r->err = ev->err;
    }
}

static void read_all(gen *g, result *r) {
    gen_event ev;
    while (r->why == FINISH_NONE) {
        assert_true(gen_next(g, &ev, 20000));
        take(r, &ev);
    }
    assert_false(gen_next(g, &ev, 0));
}

typedef struct request {
    int32_t prompt[1200];
    gen_opts o;
} request;

static void request_make(request *q, int32_t n, int32_t max_tokens) {
    for (int32_t i = 0; i < n; i++) q->prompt[i] = random_below(FAKE_VOCAB - 2);
    q->o = (gen_opts){.prompt = q->prompt,
                      .n_prompt = (size_t)n,
                      .max_tokens = max_tokens,
                      .sample = {.top_p = 1},
                      .want_tokens = true,
                      .ignore_eos = true};
}

static engine *open_or_fail(const engine_opts *o) {
    error err = {0};
    engine *e = fake_open(o, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}
static gen *submit_or_fail(engine *e, const gen_opts *o) {
    error err = {0};
    gen *g = engine_submit(e, o, &err);
    if (!g) fail_msg("%s", err.msg);
    return g;
}
static void run(engine *e, const gen_opts *o, result *r) {
    memset(r, 0, sizeof *r);
    gen *g = submit_or_fail(e, o);
    read_all(g, r);
    gen_free(g);
}
static void wait_idle(engine *e) {
    engine_stats st;
    for (int i = 0; i < 2000; i++) {
        engine_stats_get(e, &st);
        if (!st.running && !st.waiting) return;
        usleep(1000);
    }
    fail_msg("the engine is still busy");
}
static void wait_steps(int n) {
    for (int i = 0; i < 10000 && fake.steps < n; i++) usleep(1000);
    assert_true(fake.steps >= n);
}

/* Token i stands for one letter: '0' + i. */
static grammar *letters_grammar(const char *regex) {
    char letter[FAKE_VOCAB];
    str token[FAKE_VOCAB];
    for (int i = 0; i < FAKE_VOCAB; i++) {
        letter[i] = (char)('0' + i);
        token[i] = (str){&letter[i], 1};
    }
    const int32_t eos = FAKE_EOS;
    grammar_vocab *v = grammar_vocab_of(token, FAKE_VOCAB, &eos, 1);
    error err = {0};
    grammar *g = grammar_compile(&(grammar_spec){.kind = GRAMMAR_REGEX, .text = str_of(regex)}, v, &err);
    if (!g) fail_msg("%s", err.msg);
    grammar_vocab_drop(v);
    return g;
}
static grammar *promise_grammar; /* of some requests of promise 2 */

/* ---- promise 2 --------------------------------------------------------------------------------------------------- */
static void request_random(request *q, int i) {
    request_make(q, 1 + random_below(i % 3 ? 90 : 600), random_below(120));
    sampling *s = &q->o.sample;
    if (random_below(2)) {
        *s = (sampling){.temperature = 1.3f, .top_p = 0.9f, .has_seed = true, .seed = (uint64_t)i * 77};
        if (random_below(2)) s->top_k = 5;
        if (random_below(2)) s->repetition_penalty = 1.4f, s->repetition_window = 20;
    }
    if (i % 4 == 3) q->o.grammar = promise_grammar;
    q->o.logprobs = random_below(2);
    q->o.ignore_eos = random_below(3) > 0;
}

static void company(int groups, size_t state_bytes, size_t budget_pages, int batch, int chunk, int threads) {
    enum { N = 24 };
    static request q[N];
    static result lone[N], mixed[N];
    gen *g[N];
    promise_grammar = letters_grammar("([A-H]{3,9}[0-5]?|[a-f]+[:;]){2,400}");
    for (int i = 0; i < N; i++) request_random(&q[i], i);

    fake_reset();
    fake.groups = groups;
    fake.state_bytes = state_bytes;
    engine_opts o = fake_opts();
    o.batch = 1;
    engine *e = open_or_fail(&o);
    for (int i = 0; i < N; i++) run(e, &q[i].o, &lone[i]);
    engine_close(e);

    fake_reset();
    fake.groups = groups;
    fake.state_bytes = state_bytes;
    fake.threads = threads;
    o.batch = batch;
    o.prefill_chunk = chunk;
    fake.rows_max = chunk + batch;
    o.context_length = 720;
    if (budget_pages) o.memory_budget = fake_fixed(o) + budget_pages * KV_PAGE * sizeof(int32_t) + 1;
    e = open_or_fail(&o);
    for (int i = 0; i < N; i++) g[i] = submit_or_fail(e, &q[i].o);
    for (int i = 0; i < N; i++) {
        memset(&mixed[i], 0, sizeof mixed[i]);
        read_all(g[i], &mixed[i]);
        gen_free(g[i]);
        assert_int_equal(mixed[i].why, lone[i].why);
        assert_int_equal(mixed[i].n, lone[i].n);
        assert_memory_equal(mixed[i].token, lone[i].token, sizeof(int32_t) * (size_t)lone[i].n);
        assert_memory_equal(mixed[i].logprob, lone[i].logprob, sizeof(float) * (size_t)lone[i].n);
        assert_int_equal(mixed[i].n_text, lone[i].n_text);
        assert_memory_equal(mixed[i].text, lone[i].text, lone[i].n_text);
    }
    wait_idle(e);
    engine_stats st;
    engine_stats_get(e, &st);
    assert_int_equal(st.kv_bytes_used, 0);
    assert_true(fake.rows_most <= fake.rows_max && fake.seqs_most <= batch);
    if (batch > 1) assert_true(fake.seqs_most > 1);
    engine_close(e);
    grammar_drop(promise_grammar);
    promise_grammar = NULL;
}
static void same_in_company(void **state) {
    company(1, 0, 0, 4, 64, 2);
}
static void same_in_large_batches(void **state) {
    company(1, 0, 0, 16, 33, 3);
}
static void same_with_windows(void **state) {
    company(2, 0, 0, 4, 50, 1);
}
static void same_with_state(void **state) {
    company(2, 1000, 0, 6, 17, 2);
}
static void same_when_pages_run_out(void **state) {
    company(1, 0, 13, 5, 64, 2);
}
static void same_when_all_runs_out(void **state) {
    company(2, 1000, 19, 5, 40, 2);
}

/* Two streams that together outgrow the pages: one is preempted and still says the same. */
static void preempted_streams_say_the_same(void **state) {
    static request q[2];
    static result lone[2], r;
    for (int tight = 0; tight < 2; tight++) {
        fake_reset();
        fake.step_us = 300;
        engine_opts o = fake_opts();
        o.context_length = 720;
        if (tight) o.memory_budget = fake_fixed(o) + 13 * KV_PAGE * sizeof(int32_t) + 1;
        engine *e = open_or_fail(&o);
        gen *g[2];
        for (int i = 0; i < 2; i++) {
            if (!tight) request_make(&q[i], 64, 400);
            q[i].o.want_tokens = false; /* one text event: nobody pauses */
            q[i].o.sample = (sampling){.temperature = 1, .top_p = 1, .has_seed = true, .seed = 5};
            g[i] = submit_or_fail(e, &q[i].o);
        }
        for (int i = 0; i < 2; i++) {
            memset(&r, 0, sizeof r);
            read_all(g[i], &r);
            gen_free(g[i]);
            assert_int_equal(r.n_text, 400);
            if (tight) assert_memory_equal(r.text, lone[i].text, 400);
            lone[i] = r;
        }
        engine_stats st;
        engine_stats_get(e, &st);
        assert_int_equal(st.preempted_total > 0, tight);
        engine_close(e);
    }
}

/* ---- how requests end -------------------------------------------------------------------------------------------- */
static void eos_ends_and_is_not_emitted(void **state) {
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    result r;
    request q;
    int stopped = 0;
    for (int i = 0; i < 30; i++) {
        request_make(&q, 5, 200);
        q.o.ignore_eos = false;
        run(e, &q.o, &r);
        for (int k = 0; k < r.n; k++) assert_int_not_equal(r.token[k], FAKE_EOS);
        stopped += r.why == FINISH_STOP;
        if (r.why != FINISH_STOP) assert_int_equal(r.n, 200);
        /* The same request with EOS ignored goes through it. */
        result all;
        q.o.ignore_eos = true;
        run(e, &q.o, &all);
        assert_int_equal(all.n, 200);
        assert_memory_equal(all.token, r.token, sizeof(int32_t) * (size_t)r.n);
        if (r.why == FINISH_STOP) assert_int_equal(all.token[r.n], FAKE_EOS);
    }
    assert_true(stopped > 10);
    engine_close(e);
}

static void stats_and_lengths(void **state) {
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    result r = {0};
    gen_stats gs;
    request_make(&q, 150, 7);
    gen *g = submit_or_fail(e, &q.o);
    read_all(g, &r);
    gen_stats_get(g, &gs);
    gen_free(g);
    assert_int_equal(r.why, FINISH_LENGTH);
    assert_int_equal(r.n, 7);
    assert_int_equal(r.n_text, 7);
    assert_true(r.n_progress > 0);
    assert_int_equal(gs.prompt_tokens, 150);
    assert_int_equal(gs.generated_tokens, 7);
    assert_int_equal(gs.cached_tokens, 0);
    assert_true(gs.prefill_ns > 0 && gs.decode_ns > 0);
    request_make(&q, 150, 0);
    run(e, &q.o, &r);
    assert_int_equal(r.why, FINISH_LENGTH);
    assert_int_equal(r.n, 0);
    engine_stats st;
    engine_stats_get(e, &st);
    assert_int_equal(st.generated_tokens_total, 7);
    assert_int_equal(st.prompt_tokens_total, 300);
    assert_int_equal(st.requests_total, 2);
    engine_close(e);
}

static void stop_string_names_itself(void **state) {
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    result r, plain;
    request_make(&q, 20, 30);
    run(e, &q.o, &plain);
    int at = 1;
    while (memchr(plain.text, plain.text[at], (size_t)at)) at++;
    q.o.stops = (str[]){STR("~"), {plain.text + at, 1}};
    q.o.n_stops = 2;
    run(e, &q.o, &r);
    assert_int_equal(r.why, FINISH_STOP_STRING);
    assert_int_equal(r.stop_index, 1);
    assert_int_equal(r.n_text, at);
    assert_memory_equal(r.text, plain.text, at);
    error err = {0};
    q.o.stops = (str[]){STR("~"), STR("\xbd\x9c")};
    assert_null(engine_submit(e, &q.o, &err));
    assert_string_equal(err.param, "stop");
    engine_close(e);
}

static void a_bad_row_stays_alone(void **state) {
    fake_reset();
    fake.poison = FAKE_VOCAB - 2;
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request good, bad;
    result r, lone;
    request_make(&good, 40, 60);
    request_make(&bad, 40, 60);
    bad.prompt[20] = FAKE_VOCAB - 2;
    good.o.sample.bias_ids = (int32_t[]){FAKE_VOCAB - 2}; /* it must not pick the poison itself */
    good.o.sample.bias = (float[]){-100};
    good.o.sample.n_bias = 1;
    run(e, &good.o, &lone);
    gen *g[4];
    for (int i = 0; i < 4; i++) g[i] = submit_or_fail(e, i == 1 ? &bad.o : &good.o);
    for (int i = 0; i < 4; i++) {
        memset(&r, 0, sizeof r);
        read_all(g[i], &r);
        gen_free(g[i]);
        assert_int_equal(r.why, i == 1 ? FINISH_ERROR : FINISH_LENGTH);
        if (i == 1) assert_non_null(strstr(r.err.msg, "not finite"));
        if (i != 1) assert_memory_equal(r.token, lone.token, sizeof(int32_t) * 60);
    }
    engine_stats st;
    engine_stats_get(e, &st);
    assert_int_equal(st.requests_failed, 1);
    assert_false(st.failed);
    engine_close(e);
}

static void a_broken_device_ends_all(void **state) {
    fake_reset();
    fake.step_us = 2000;
    engine_opts o = fake_opts();
    o.batch = 2;
    engine *e = open_or_fail(&o);
    request q;
    request_make(&q, 10, 400);
    gen *g[4];
    for (int i = 0; i < 4; i++) g[i] = submit_or_fail(e, &q.o);
    wait_steps(5);
    fake.fail = 1;
    for (int i = 0; i < 4; i++) {
        result r = {0};
        read_all(g[i], &r);
        gen_free(g[i]);
        assert_int_equal(r.why, FINISH_ERROR);
        assert_int_equal(r.err.code, ERR_UNAVAILABLE);
        assert_non_null(strstr(r.err.msg, "the fake device broke"));
    }
    error err = {0};
    assert_null(engine_submit(e, &q.o, &err));
    assert_int_equal(err.code, ERR_UNAVAILABLE);
    engine_stats st;
    engine_stats_get(e, &st);
    assert_true(st.failed);
    engine_close(e);
}

/* ---- cancelling, leaving, closing -------------------------------------------------------------------------------- */
static void cancel_takes_one_step(void **state) {
    fake_reset();
    fake.step_us = 3000;
    fake.row_us = 100;
    engine_opts o = fake_opts();
    o.batch = 2;
    o.prefill_chunk = 32;
    engine *e = open_or_fail(&o);
    request longest, stream;
    request_make(&longest, 1200, 100);
    request_make(&stream, 4, 400);
    gen *prefill = submit_or_fail(e, &longest.o), *decode = submit_or_fail(e, &stream.o),
        *queued = submit_or_fail(e, &stream.o);
    wait_steps(4);
    int before = fake.steps;
    gen_cancel(queued);
    gen_cancel(prefill);
    gen_cancel(decode);
    gen *g[3] = {prefill, decode, queued};
    for (int i = 0; i < 3; i++) {
        result r = {0};
        read_all(g[i], &r);
        assert_int_equal(r.why, FINISH_CANCELLED);
        if (g[i] == queued) assert_int_equal(r.n, 0);
    }
    assert_true(fake.steps - before <= 2);
    wait_idle(e);
    engine_stats st;
    engine_stats_get(e, &st);
    assert_int_equal(st.requests_cancelled, 3);
    assert_int_equal(st.kv_bytes_used, 0);
    for (int i = 0; i < 3; i++) {
        gen_cancel(g[i]); /* after the end it does nothing */
        gen_free(g[i]);
    }
    engine_close(e);
}

static void the_queue_is_bounded(void **state) {
    fake_reset();
    fake.step_us = 2000;
    engine_opts o = fake_opts();
    o.batch = 1;
    o.queue_max = 3;
    engine *e = open_or_fail(&o);
    request q;
    request_make(&q, 4, 500);
    gen *g[8];
    int n = 0;
    g[n++] = submit_or_fail(e, &q.o);
    wait_steps(1);
    for (; n < 4; n++) g[n] = submit_or_fail(e, &q.o);
    error err = {0};
    assert_null(engine_submit(e, &q.o, &err));
    assert_int_equal(err.code, ERR_QUEUE_FULL);
    engine_stats st;
    engine_stats_get(e, &st);
    assert_int_equal(st.requests_rejected, 1);
    assert_int_equal(st.waiting, 3);
    gen_free(g[1]); /* one that waits leaves: there is a place again */
    wait_steps(fake.steps + 2);
    g[1] = submit_or_fail(e, &q.o);
    for (int i = 0; i < n; i++) gen_free(g[i]);
    wait_idle(e);
    engine_close(e);
}

static void closing_ends_what_runs(void **state) {
    fake_reset();
    fake.step_us = 1000;
    engine_opts o = fake_opts();
    o.batch = 2;
    engine *e = open_or_fail(&o);
    request q;
    request_make(&q, 4, 500);
    gen *g[5];
    for (int i = 0; i < 5; i++) g[i] = submit_or_fail(e, &q.o);
    wait_steps(3);
    engine_close(e);
    for (int i = 0; i < 5; i++) {
        result r = {0};
        read_all(g[i], &r);
        assert_int_equal(r.why, FINISH_CANCELLED);
        gen_cancel(g[i]);
        gen_free(g[i]);
    }
}

/* ---- readers ----------------------------------------------------------------------------------------------------- */
static void slow_readers(int batch) {
    enum { SLOW = 3 };
    fake_reset();
    engine_opts o = fake_opts();
    o.batch = batch; /* fewer places than slow readers */
    engine *e = open_or_fail(&o);
    request q, other;
    result lone, r;
    request_make(&q, 30, 400);
    request_make(&other, 30, 50);
    run(e, &q.o, &lone);
    gen *slow[SLOW];
    for (int i = 0; i < SLOW; i++) slow[i] = submit_or_fail(e, &q.o);
    usleep(50000);
    for (int i = 0; i < 3; i++) run(e, &other.o, &r); /* finishes though both places were held */
    assert_int_equal(r.n, 50);
    gen_stats gs;
    for (int i = 0; i < SLOW; i++) {
        gen_stats_get(slow[i], &gs);
        assert_true(gs.generated_tokens <= BOX_EVENTS);
    }
    int steps = fake.steps;
    usleep(30000);
    assert_int_equal(fake.steps, steps); /* nobody reads: nothing runs */
    for (int i = 0; i < SLOW; i++) {
        memset(&r, 0, sizeof r);
        read_all(slow[i], &r);
        gen_free(slow[i]);
        assert_int_equal(r.n, 400);
        assert_memory_equal(r.token, lone.token, sizeof(int32_t) * 400);
    }
    engine_close(e);
}
static void a_slow_reader_stops_nobody(void **state) {
    slow_readers(2);
    slow_readers(1); /* when the only one that runs loses its place, somebody must still take it */
}

static atomic_int wakes;
static void on_wake(void *arg) {
    wakes++;
}
static void wake_is_called_until_free(void **state) {
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    result r = {0};
    wakes = 0;
    request_make(&q, 100, 40);
    q.o.wake = on_wake;
    gen *g = submit_or_fail(e, &q.o);
    read_all(g, &r);
    assert_true(wakes >= 2);
    gen_free(g);
    fake.step_us = 1000;
    g = submit_or_fail(e, &q.o);
    wait_steps(fake.steps + 3);
    gen_free(g);
    int n = wakes;
    usleep(20000);
    assert_int_equal(wakes, n);
    gen_event ev;
    g = submit_or_fail(e, &q.o);
    while (gen_next(g, &ev, 0)) continue; /* polling never blocks */
    gen_free(g);
    engine_close(e);
}

/* ---- many clients at once, some rude ----------------------------------------------------------------------------- */
enum { CLIENTS = 4, KINDS = 12 };
static request life_q[KINDS];
static result life_lone[KINDS];
typedef struct client {
    engine *e;
    uint64_t rng;
    int done, failed;
} client;

static void *client_main(void *arg) {
    client *c = arg;
    for (int round = 0; round < 25; round++) {
        c->rng = c->rng * 6364136223846793005u + 1442695040888963407u;
        const int kind = (int)(c->rng >> 40) % KINDS, manner = (int)(c->rng >> 50) % 4;
        result r = {0};
        gen_event ev;
        gen *g = engine_submit(c->e, &life_q[kind].o, NULL);
        if (!g) continue; /* the queue is full */
        for (int n = 0; r.why == FINISH_NONE && gen_next(g, &ev, 20000); n++) {
            take(&r, &ev);
            if (manner == 1 && n == (int)(c->rng >> 60)) gen_cancel(g);
            if (manner == 2 && n == (int)(c->rng >> 59)) break; /* leaves without a word */
            if (manner == 3 && n % 16 == 0) usleep(300);
        }
        const result *want = &life_lone[kind];
        const int n = r.n; /* whatever was seen is right, and all of it when nobody interfered */
        c->failed += memcmp(r.token, want->token, sizeof(int32_t) * (size_t)n) != 0 || r.why == FINISH_ERROR;
        c->failed += (manner == 0 || manner == 3) && (r.why != want->why || n != want->n);
        c->done += r.why == want->why;
        gen_free(g);
    }
    return NULL;
}

static void many_clients(void **state) {
    for (int tight = 0; tight < 2; tight++) {
        fake_reset();
        fake.groups = 2;
        fake.state_bytes = 100;
        engine_opts o = fake_opts();
        o.context_length = 720;
        engine *e = open_or_fail(&o);
        for (int i = 0; i < KINDS && !tight; i++) {
            request_random(&life_q[i], i);
            run(e, &life_q[i].o, &life_lone[i]);
        }
        engine_close(e);
        o.queue_max = 3;
        if (tight) o.memory_budget = fake_fixed(o) + 20 * KV_PAGE * sizeof(int32_t) + 1;
        e = open_or_fail(&o);
        client c[CLIENTS];
        pthread_t t[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            c[i] = (client){.e = e, .rng = (uint64_t)(i + 10 * tight + 1) * 999979};
            assert_int_equal(pthread_create(&t[i], NULL, client_main, &c[i]), 0);
        }
        int done = 0;
        for (int i = 0; i < CLIENTS; i++) {
            pthread_join(t[i], NULL);
            assert_int_equal(c[i].failed, 0);
            done += c[i].done;
        }
        assert_true(done > 20);
        wait_idle(e);
        engine_stats st;
        engine_stats_get(e, &st);
        assert_int_equal(st.kv_bytes_used, 0);
        assert_false(st.failed);
        engine_close(e);
    }
}

/* ---- fairness ---------------------------------------------------------------------------------------------------- */
static void a_long_prompt_delays_nobody_for_long(void **state) {
    fake_reset();
    fake.row_us = 2000; /* 64 rows would be 128 ms */
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q, stream, late;
    request_make(&stream, 4, 300);
    request_make(&q, 1200, 1);
    request_make(&late, 40, 1);
    gen *g[3] = {submit_or_fail(e, &stream.o)};
    wait_steps(2);
    g[1] = submit_or_fail(e, &q.o);
    wait_steps(fake.steps + 4); /* the cost of a row is known */
    g[2] = submit_or_fail(e, &late.o);
    int steps = fake.steps, rows = fake.rows;
    result r = {0};
    read_all(g[2], &r);
    /* The late short prompt shares the chunk: it does not wait for 1200 rows. */
    assert_true(fake.rows - rows < 300);
    assert_true((fake.rows - rows) / MAX(1, fake.steps - steps) <= 56); /* 100 ms at 2 ms, and the clock's error */
    gen_event ev;
    assert_true(gen_next(g[0], &ev, 1000));
    for (int i = 0; i < 3; i++) gen_free(g[i]);
    engine_close(e);
}

/* ---- logits and log-probabilities -------------------------------------------------------------------------------- */
static void logits_go_through_the_same_steps(void **state) {
    enum { N = 130, STEPS = 9 };
    fake_reset();
    fake.groups = 2;
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q, noise;
    result r;
    request_make(&q, N, STEPS);
    request_make(&noise, 300, 200);
    run(e, &q.o, &r);
    static float a[N][FAKE_VOCAB], b[N][FAKE_VOCAB], ga[STEPS][FAKE_VOCAB], gb[STEPS][FAKE_VOCAB];
    int32_t ia[STEPS], ib[STEPS];
    error err = {0};
    assert_true(engine_logits(e, q.prompt, N, STEPS, a[0], ia, ga[0], &err));
    gen *g = submit_or_fail(e, &noise.o);
    assert_true(engine_logits(e, q.prompt, N, STEPS, b[0], ib, gb[0], &err));
    gen_free(g);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(ga, gb, sizeof ga);
    assert_memory_equal(ia, ib, sizeof ia);
    assert_memory_equal(ia, r.token, sizeof ia);
    assert_memory_equal(ga[0], a[N - 1], sizeof ga[0]);
    /* A prefix has the same rows. */
    assert_true(engine_logits(e, q.prompt, 70, 0, b[0], NULL, NULL, &err));
    assert_memory_equal(a, b, 70 * sizeof a[0]);
    assert_false(engine_logits(e, (int32_t[]){FAKE_VOCAB}, 1, 0, b[0], NULL, NULL, &err));
    assert_int_equal(err.code, ERR_INVALID);
    engine_close(e);
}

static void logprobs_come_with_tokens(void **state) {
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    request_make(&q, 10, 20);
    q.o.logprobs = true;
    q.o.top_logprobs = 5;
    gen *g = submit_or_fail(e, &q.o);
    gen_event ev;
    int n = 0;
    do {
        assert_true(gen_next(g, &ev, 5000));
        if (ev.kind != GEN_TOKEN) continue;
        n++;
        assert_int_equal(ev.n_top, 5);
        assert_int_equal(ev.top[0].id, ev.token);
        assert_true(ev.top[0].logprob == ev.logprob && ev.logprob < 0);
        for (int i = 1; i < 5; i++) assert_true(ev.top[i].logprob <= ev.top[i - 1].logprob);
    } while (ev.kind != GEN_DONE);
    assert_int_equal(n, 20);
    gen_free(g);
    engine_close(e);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */
static void what_is_refused(void **state) {
    fake_reset();
    fake.context = 4096;
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    int32_t granted = -1;
    bool clamped;
    error err = {0};
    assert_true(engine_clamp(e, 2788, 8192, true, &granted, &clamped, &err));
    assert_int_equal(granted, 1308);
    assert_true(clamped);
    assert_true(engine_clamp(e, 10, 4086, false, &granted, &clamped, &err));
    assert_int_equal(granted, 4086);
    assert_false(clamped);
    assert_false(engine_clamp(e, 10, 8192, false, &granted, &clamped, &err));
    assert_int_equal(err.code, ERR_MEMORY);
    for (const char *const *n = (const char *const[]){"8202", "prompt 10", "8192", "4096", NULL}; *n; n++)
        assert_non_null(strstr(err.msg, *n));
    err = (error){0};
    assert_false(engine_clamp(e, 4096, 1, true, &granted, &clamped, &err));
    assert_int_equal(err.code, ERR_MEMORY);

    request_make(&q, 10, 5);
    const struct {
        gen_opts o;
        const char *param;
        error_code code;
    } bad[] = {
        {{.prompt = q.prompt, .n_prompt = 0, .sample = {.top_p = 1}}, "prompt", ERR_INVALID},
        {{.prompt = (int32_t[]){-1}, .n_prompt = 1, .sample = {.top_p = 1}}, "prompt", ERR_INVALID},
        {{.prompt = q.prompt, .n_prompt = 10, .max_tokens = -1, .sample = {.top_p = 1}}, "max_tokens", ERR_INVALID},
        {{.prompt = q.prompt, .n_prompt = 10, .max_tokens = 4087, .sample = {.top_p = 1}}, "max_tokens", ERR_MEMORY},
        {{.prompt = q.prompt, .n_prompt = 10, .sample = {.top_p = 1.5f}}, "top_p", ERR_INVALID},
        {{.prompt = q.prompt, .n_prompt = 10, .sample = {.temperature = __builtin_nanf("")}},
         "temperature",
         ERR_INVALID},
        {{.prompt = q.prompt, .n_prompt = 10, .sample = {.top_k = -2}}, "top_k", ERR_INVALID},
        {{.prompt = q.prompt,
          .n_prompt = 10,
          .sample = {.bias_ids = (int32_t[]){64}, .bias = (float[]){1}, .n_bias = 1}},
         "logit_bias",
         ERR_INVALID},
        {{.prompt = q.prompt, .n_prompt = 10, .top_logprobs = 21}, "top_logprobs", ERR_INVALID},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        err = (error){0};
        assert_null(engine_submit(e, &bad[i].o, &err));
        assert_int_equal(err.code, bad[i].code);
        assert_string_equal(err.param, bad[i].param);
    }
    engine_close(e);
    err = (error){0};
    o.context_length = 5000;
    assert_null(fake_open(&o, &err));
    assert_int_equal(err.code, ERR_INVALID);
    err = (error){0};
    o.context_length = 0;
    o.memory_budget = 10000;
    assert_null(fake_open(&o, &err));
    assert_int_equal(err.code, ERR_MEMORY);
}

/* ---- a decode step allocates nothing ----------------------------------------------------------------------------- */
static void decoding_allocates_nothing(void **state) {
#ifdef COUNTS_ALLOCATIONS
    fake_reset();
    fake.step_us = 200;
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    request q;
    gen *g[4];
    gen_event ev;
    request_make(&q, 50, 400);
    for (int i = 0; i < 4; i++) {
        q.o.logprobs = i & 1;
        q.o.top_logprobs = i == 3 ? 20 : 0;
        q.o.sample.temperature = i == 2 ? 1 : 0;
        q.o.wake = i == 0 ? count_here : NULL;
        g[i] = submit_or_fail(e, &q.o);
    }
    int n = 0;
    while (n < 300) { /* in step with the engine, so that nobody pauses */
        for (int i = 0; i < 4; i++) {
            assert_true(gen_next(g[i], &ev, 5000));
            n += i == 0 && ev.kind == GEN_TOKEN;
        }
        if (n == 50) counting = true;
    }
    counting = false;
    assert_true(found);
    assert_int_equal(allocations, 0);
    for (int i = 0; i < 4; i++) gen_free(g[i]);
    engine_close(e);
#else
    skip();
#endif
}

/* ---- admission: spec/engine.md 12, check 1 ---------------------------------------------------------------------- */
static void admission(void **state) {
    static const struct {
        size_t prompt;
        int64_t want;
        bool clamp, ok, clamped;
        int32_t granted;
    } cases[] = {{2788, 8192, true, true, true, 1308},   {4096, 1, true, false, false, 0},
                 {4096, 1, false, false, false, 0},      {5000, 0, true, false, false, 0},
                 {10, 8192, false, false, false, 0},     {10, 4086, true, true, false, 4086},
                 {10, 4086, false, true, false, 4086},   {10, 4087, true, true, true, 4086},
                 {4095, INT64_MAX, true, true, true, 1}, {10, INT64_MAX, false, false, false, 0}};
    fake_reset();
    fake.context = 16384;
    engine_opts o = fake_opts();
    o.context_length = 4096;
    engine *e = open_or_fail(&o);
    assert_true(engine_context_fixed(e));
    for (size_t i = 0; i < COUNT(cases); i++) {
        error err = {0};
        int32_t granted = -1;
        bool clamped, ok = engine_clamp(e, cases[i].prompt, cases[i].want, cases[i].clamp, &granted, &clamped, &err);
        assert_int_equal(ok, cases[i].ok);
        if (ok) {
            assert_int_equal(granted, cases[i].granted);
            assert_int_equal(clamped, cases[i].clamped);
            continue;
        }
        assert_int_equal(err.code, ERR_MEMORY);
        char number[24];
        snprintf(number, sizeof number, "%zu", cases[i].prompt);
        assert_non_null(strstr(err.msg, number)); /* the prompt's count and the ceiling are always there, */
        assert_non_null(strstr(err.msg, "4096"));
        if (cases[i].prompt < 4096 && cases[i].want == 8192) { /* and total and request where they matter */
            assert_non_null(strstr(err.msg, "8202"));
            assert_non_null(strstr(err.msg, "8192"));
        }
    }
    engine_close(e);
    o.context_length = 0;
    e = open_or_fail(&o);
    assert_false(engine_context_fixed(e));
    engine_close(e);
}

/* Requests that wait hold memory too: more than planned for are refused, and room comes back. */
static void waiting_requests_are_bounded(void **state) {
    fake_reset();
    fake.context = 1 << 20;
    fake.step_us = 2000;
    engine_opts o = fake_opts();
    o.queue_max = 1000;
    o.batch = 1;
    engine *e = open_or_fail(&o);
    enum { MANY = 300 };
    static gen *g[MANY];
    int32_t *prompt = mem_alloc(sizeof *prompt * (1 << 19));
    int n = 0;
    error err = {0};
    for (; n < MANY; n++) /* as many as fit: far fewer than the queue has places */
        if (!(g[n] = engine_submit(e, &(gen_opts){.prompt = prompt, .n_prompt = 1 << 19, .max_tokens = 1 << 19}, &err)))
            break;
    assert_true(n > 1 && n < MANY);
    assert_int_equal(err.code, ERR_QUEUE_FULL);
    assert_true((size_t)n * (4u << 20) <= engine_plan(e)->part[PLAN_REPLIES]);
    for (int i = 0; i < n; i++) gen_free(g[i]);
    wait_idle(e);
    err = (error){0};
    gen *again = engine_submit(e, &(gen_opts){.prompt = prompt, .n_prompt = 1 << 19, .max_tokens = 1 << 19}, &err);
    assert_non_null(again);
    gen_free(again);
    free(prompt);
    engine_close(e);
}

static void a_grammar_holds_and_ends(void **state) {
    enum { N = 6 };
    static request q[N];
    static result r[N];
    fake_reset();
    engine_opts o = fake_opts();
    engine *e = open_or_fail(&o);
    grammar *g = letters_grammar("[A-H]{5}[a-c]{2,3}1");
    gen *run_[N];
    for (int i = 0; i < N; i++) {
        request_make(&q[i], 3 + i, 100);
        q[i].o.grammar = g;
        q[i].o.ignore_eos = i % 2;
        q[i].o.logprobs = true;
        if (i > 2) q[i].o.sample = (sampling){.temperature = 2, .top_p = i > 4 ? 0.8f : 1, .has_seed = true, .seed = 5};
        run_[i] = submit_or_fail(e, &q[i].o);
    }
    for (int i = 0; i < N; i++) {
        memset(&r[i], 0, sizeof r[i]);
        read_all(run_[i], &r[i]);
        gen_free(run_[i]);
        assert_int_equal(r[i].why, FINISH_STOP); /* no end-of-reply token was needed */
        assert_in_range(r[i].n, 8, 9);
        for (int k = 0; k < r[i].n; k++) {
            char c = (char)('0' + r[i].token[k]);
            assert_true(k < 5 ? c >= 'A' && c <= 'H' : k == r[i].n - 1 ? c == '1' : c >= 'a' && c <= 'c');
            assert_true(r[i].logprob[k] < -0.5f); /* of the whole distribution, not of what was left */
        }
    }
    grammar_drop(g);
    g = letters_grammar("[A-H]{5}(1*)"); /* it may end, or go on: the reply's end is the model's choice */
    request_make(&q[0], 4, 12);
    q[0].o.grammar = g;
    run(e, &q[0].o, &r[0]);
    assert_true(r[0].why == FINISH_LENGTH || r[0].why == FINISH_STOP);
    assert_in_range(r[0].n, 5, 12);
    grammar_drop(g);
    engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grammar_holds_and_ends),
        cmocka_unit_test(same_in_company),
        cmocka_unit_test(same_in_large_batches),
        cmocka_unit_test(same_with_windows),
        cmocka_unit_test(same_with_state),
        cmocka_unit_test(same_when_pages_run_out),
        cmocka_unit_test(same_when_all_runs_out),
        cmocka_unit_test(preempted_streams_say_the_same),
        cmocka_unit_test(eos_ends_and_is_not_emitted),
        cmocka_unit_test(stats_and_lengths),
        cmocka_unit_test(stop_string_names_itself),
        cmocka_unit_test(a_bad_row_stays_alone),
        cmocka_unit_test(a_broken_device_ends_all),
        cmocka_unit_test(cancel_takes_one_step),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(closing_ends_what_runs),
        cmocka_unit_test(a_slow_reader_stops_nobody),
        cmocka_unit_test(wake_is_called_until_free),
        cmocka_unit_test(many_clients),
        cmocka_unit_test(a_long_prompt_delays_nobody_for_long),
        cmocka_unit_test(logits_go_through_the_same_steps),
        cmocka_unit_test(logprobs_come_with_tokens),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(admission),
        cmocka_unit_test(waiting_requests_are_bounded),
        cmocka_unit_test(decoding_allocates_nothing),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
