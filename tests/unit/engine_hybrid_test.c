/* The engine with a model that has recurrent state: a sequence takes a slot when it starts and gives it back; slots are
 * used again by others, and by sequences that lost their pages and start over. Tokens must be those of each request
 * alone. The scheduler's other behaviour is in engine_test.c, on a scripted model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/engine.h"

#define MODEL "tests/data/models/qwen3_5_4b-q4"
enum { REQUESTS = 6, REPLY = 30, PROMPT = 150 };

static engine *open_with(int batch, int context, size_t budget) {
    error err = {0};
    engine_opts o = {.model_path = MODEL,
                     .batch = batch,
                     .context_length = context,
                     .memory_budget = budget,
                     .prefill_chunk = 40,
                     .device = {.threads = 2}};
    engine *e = engine_open(&o, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

static gen *submit(engine *e, int i) {
    int32_t id[PROMPT];
    error err = {0};
    int n = 40 + i * 20;
    for (int k = 0; k < n; k++) id[k] = (k * k * 7 + k * (i + 3) + i * 31) % 256;
    gen_opts o = {.prompt = id,
                  .n_prompt = (size_t)n,
                  .max_tokens = REPLY,
                  .sample = {.top_p = 1},
                  .ignore_eos = true,
                  .want_tokens = true};
    gen *g = engine_submit(e, &o, &err);
    if (!g) fail_msg("%s", err.msg);
    return g;
}

static void read_all(gen *g, int32_t *out) {
    gen_event ev;
    int n = 0;
    do {
        gen_next(g, &ev, -1);
        if (ev.kind == GEN_TOKEN) out[n++] = ev.token;
    } while (ev.kind != GEN_DONE);
    assert_int_equal(ev.why, FINISH_LENGTH);
    assert_int_equal(n, REPLY);
    gen_free(g);
}

static int32_t want[REQUESTS][REPLY];

static int alone(void **state) {
    engine *e = open_with(1, 0, 0);
    for (int i = 0; i < REQUESTS; i++) read_all(submit(e, i), want[i]);
    engine_close(e);
    return 0;
}

static void all_at_once(engine *e) {
    gen *g[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) g[i] = submit(e, i);
    for (int i = 0; i < REQUESTS; i++) {
        int32_t got[REPLY];
        read_all(g[i], got);
        assert_memory_equal(got, want[i], sizeof got);
    }
}

static void more_requests_than_slots(void **state) {
    engine *e = open_with(3, 0, 0);
    all_at_once(e);
    engine_close(e);
}

static void preempted_sequences_start_over(void **state) {
    engine *e = open_with(4, 320, 0);
    engine_stats st;
    engine_stats_get(e, &st);
    size_t page = (engine_model(e)->kv_bytes_per_token * KV_PAGE + 4095) / 4096 * 4096;
    size_t budget = st.weight_bytes + st.workspace_bytes + 6 * page;
    engine_close(e);
    e = open_with(4, 320, budget);
    all_at_once(e);
    engine_stats_get(e, &st);
    assert_true(st.preempted_total > 0);
    engine_close(e);
}

static void state_is_in_the_plan(void **state) {
    engine *one = open_with(1, 64, 0), *five = open_with(5, 64, 0);
    engine_stats a, b;
    engine_stats_get(one, &a);
    engine_stats_get(five, &b);
    assert_true(b.workspace_bytes - a.workspace_bytes >= 4 * engine_model(one)->state_bytes);
    engine_close(one);
    engine_close(five);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_requests_than_slots),
        cmocka_unit_test(preempted_sequences_start_over),
        cmocka_unit_test(state_is_in_the_plan),
    };
    return cmocka_run_group_tests(tests, alone, NULL);
}
