/* Conversations with real networks (tests/data/models): ten turns of an agent with a dense, a sliding, a hybrid, an MLA
 * and a mixed model; what is computed is what is new, and every bit is that of a lone cold run. Sequences forked, taken
 * back and exported by pages and states go on as if they had been computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/engine/internal.h"

#define DATA "tests/data/models/"
enum { MOST = 1500, REPLY_MAX = 40 };

static uint64_t rng = 5;
static int32_t random_below(int32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

static engine *open_model(const char *name, int64_t cache, int batch, int chunk) {
    char path[200];
    snprintf(path, sizeof path, DATA "%s", name);
    error err = {0};
    engine *e = engine_open(&(engine_opts){.model_path = path,
                                           .batch = batch,
                                           .context_length = MOST,
                                           .prefill_chunk = chunk,
                                           .prompt_cache = cache,
                                           .device = {.threads = 2}},
                            &err);
    if (!e) fail_msg("%s: %s", name, err.msg);
    return e;
}

typedef struct talk {
    int32_t id[MOST], n, n_prompt, cached, mark[40];
    size_t n_marks;
    float logprob[REPLY_MAX];
} talk;

static void add(talk *t, int32_t n, int32_t vocab) {
    for (int32_t i = 0; i < n; i++) t->id[t->n++] = random_below(vocab);
}

static void ask(engine *e, talk *t, int32_t max_tokens) {
    error err = {0};
    gen *g = engine_submit(e,
                           &(gen_opts){.prompt = t->id,
                                       .n_prompt = (size_t)t->n,
                                       .max_tokens = max_tokens,
                                       .sample = {.top_p = 1},
                                       .ignore_eos = true,
                                       .want_tokens = true,
                                       .logprobs = true,
                                       .marks = t->mark,
                                       .n_marks = t->n_marks},
                           &err);
    if (!g) fail_msg("%s", err.msg);
    t->n_prompt = t->n;
    gen_event ev = {0};
    while (ev.kind != GEN_DONE) {
        assert_true(gen_next(g, &ev, 60000));
        if (ev.kind == GEN_TOKEN) {
            t->logprob[t->n - t->n_prompt] = ev.logprob;
            t->id[t->n++] = ev.token;
        }
    }
    gen_stats st;
    gen_stats_get(g, &st);
    t->cached = st.cached_tokens;
    gen_free(g);
}

static void cold(engine *lone, const talk *t) {
    static talk c;
    c = *t;
    c.n = t->n_prompt;
    ask(lone, &c, t->n - t->n_prompt);
    assert_int_equal(c.cached, 0);
    assert_memory_equal(c.id, t->id, sizeof(int32_t) * (size_t)t->n);
    assert_memory_equal(c.logprob, t->logprob, sizeof(float) * (size_t)(t->n - t->n_prompt));
}

static void agent(const char *name, bool drop_thoughts) {
    engine *e = open_model(name, 0, 2, 96), *lone = open_model(name, -1, 1, 512);
    const int32_t vocab = engine_model(e)->vocab;
    static talk t;
    memset(&t, 0, sizeof t);
    add(&t, 170, vocab);
    int32_t common = 0;
    for (int turn = 0; turn < 10; turn++) {
        t.mark[t.n_marks++] = t.n;
        add(&t, 15 + random_below(50), vocab);
        const int32_t primer = t.n;
        t.mark[t.n_marks++] = primer;
        add(&t, 4, vocab);
        ask(e, &t, 20 + random_below(20));
        if (turn == 0 || turn == 4 || turn == 9) cold(lone, &t);
        if (turn && t.n_prompt - t.cached > t.n_prompt - common + KV_PAGE)
            fail_msg("%s turn %d: %d of %d computed, %d in common", name, turn, t.n_prompt - t.cached, t.n_prompt,
                     common);
        common = t.n;
        if (!drop_thoughts) continue;
        common = primer;
        const int32_t from = primer + 4 + 10;
        memmove(t.id + primer, t.id + from, sizeof(int32_t) * (size_t)(t.n - from));
        t.n -= from - primer;
    }
    engine_close(e);
    engine_close(lone);
}
static void agents_of_every_kind(void **state) {
    static const char *const names[] = {"llama_plain-q4", "gemma3-q4",      "qwen3_5_4b-q4", "mistral_swa-q4",
                                        "glm_dsa-q4",     "deepseek_v3-q4", "gemma4_e2b-q4", "qwen3_5_27b-q4"};
    for (size_t i = 0; i < COUNT(names); i++) agent(names[i], i % 2), agent(names[i], !(i % 2) && i < 3);
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */
typedef struct bench { /* an engine whose thread is not needed: its model and memory */
    engine *e;
    int32_t vocab;
    float *logits; /* owns: [2, V] */
} bench;

/* Computes tokens [n_computed, upto) of s; the logits of the last go to row `out`. */
static void compute(bench *b, sequence *s, int32_t upto, int out) {
    engine *e = b->e;
    assert_true(sequence_extend(s, &e->store, upto));
    const int32_t n = upto - s->n_computed, last = n - 1;
    int32_t pos[512];
    for (int32_t i = 0; i < n; i++) pos[i] = s->n_computed + i;
    step_seq q = {.n_rows = n, .pos0 = s->n_computed, .slot = s->slot};
    for (int k = 0; k < KV_GROUPS; k++) q.page[k] = s->page[k];
    step st = {.n_rows = n,
               .n_seqs = 1,
               .n_out = 1,
               .ids = s->id.p + s->n_computed,
               .pos = pos,
               .out = &last,
               .seq = &q,
               .state = e->state};
    error err = {0};
    if (!model_forward(e->parts.model, e->kv, &st, tensor_f32(b->logits + (size_t)out * (size_t)b->vocab, 1, b->vocab),
                       &err))
        fail_msg("%s", err.msg);
    s->n_computed = upto;
}
static void same(const bench *b) {
    assert_memory_equal(b->logits, b->logits + b->vocab, sizeof(float) * (size_t)b->vocab);
}
static sequence sequence_with(bench *b, const sequence *like, int32_t n) {
    sequence s;
    sequence_init(&s, &b->e->store, 700);
    if (like)
        ids_append(&s.id, like->id.p, (size_t)n);
    else
        for (int32_t i = 0; i < n; i++) ids_push(&s.id, random_below(b->vocab));
    return s;
}

static void states_go_together(const char *name) {
    bench b = {.e = open_model(name, 4 << 20, 6, 512)};
    kv_store *st = &b.e->store;
    b.vocab = engine_model(b.e)->vocab;
    b.logits = mem_alloc(2 * sizeof(float) * (size_t)b.vocab);
    sequence a = sequence_with(&b, NULL, 400);
    compute(&b, &a, 150, 0);

    /* A fork goes its own way; the one it came from does not notice. */
    sequence f = sequence_with(&b, &a, 150);
    assert_true(sequence_fork(&f, &a, st));
    assert_true(sequence_bytes(&f, st) > 0);
    for (int i = 0; i < 60; i++) ids_push(&f.id, random_below(b.vocab));
    compute(&b, &f, 210, 0);
    sequence c = sequence_with(&b, &f, 210);
    compute(&b, &c, 210, 1);
    same(&b);

    /* Taken back at every distance, as after rejected drafts, it goes on as if nothing had been. */
    for (int32_t k = 1; k <= 5; k++) {
        seq_mark m;
        assert_true(sequence_mark(&a, st, &m));
        int32_t was[5];
        memcpy(was, a.id.p + m.n, sizeof was);
        for (int i = 0; i < 5; i++) a.id.p[m.n + i] = (was[i] + 1) % b.vocab;
        compute(&b, &a, m.n + k, 0);
        assert_true(sequence_back(&a, st, &m));
        sequence_unmark(&m, st);
        memcpy(a.id.p + m.n, was, sizeof was);
        compute(&b, &a, m.n + 7, 0);
        sequence_reset(&c, st);
        c.id.n = 0;
        ids_append(&c.id, a.id.p, (size_t)m.n + 7);
        compute(&b, &c, m.n + 7, 1);
        same(&b);
    }
    if (st->n_slots) assert_false(sequence_back(&a, st, &(seq_mark){100, -1, false})); /* no state was kept there */

    /* Into the cache, out as bytes, back into an empty one. */
    prefix *p = b.e->prefix;
    prefix_key space;
    prefix_match m;
    prefix_space_key((str){0}, &space);
    sequence_reset(&c, st);
    sequence_reset(&f, st);
    c.id.n = 0;
    ids_append(&c.id, a.id.p, 350);
    c.node = -1;
    prefix_take(p, &space, &(prefix_match){.node = -1, .mark = -1}, &c);
    compute(&b, &c, 333, 0);
    prefix_grow(p, &c);
    prefix_keep(p, &c);
    sequence_reset(&c, st);
    prefix_item it, item[256];
    void *payload[256];
    int n = 0;
    prefix_tier_set(p, &(prefix_tier){0});
    while (prefix_unsaved(p, &it)) {
        assert_true(n < 256);
        payload[n] = mem_alloc(it.bytes);
        prefix_item_read(p, &it, payload[n]);
        prefix_saved(p, &it);
        item[n++] = it;
    }
    prefix_find(p, &space, c.id.p, 350, &m);
    assert_int_equal(m.n, 333);
    int32_t keyed[KV_PAGE * 6];
    memcpy(keyed, c.id.p, 350 * sizeof(int32_t));
    int32_t ends[256];
    for (int i = 0; i < n; i++) ends[i] = item[i].pos + item[i].n_ids;
    prefix_free(p);
    for (int g = 0; g < st->n_groups; g++) { /* as after a restart: nothing is held */
        kv_pool *pool = &st->pool[g];
        pool->n_free = pool->n_pages;
        pool->n_idle = 0;
        memset(pool->refs, 0, sizeof *pool->refs * (size_t)pool->n_pages);
        memset(pool->held, 0, (size_t)pool->n_pages);
        for (int32_t i = 0; i < pool->n_pages; i++) pool->free[i] = i; /* other pages than before */
    }
    for (int32_t i = 0; i < st->n_slots; i++) st->slot[i] = i;
    st->n_slots_free = st->n_slots;
    error err = {0};
    p = b.e->prefix = prefix_new(st, &b.e->plan, &err);
    assert_non_null(p);
    for (int32_t at = KV_PAGE; at <= 320; at += KV_PAGE) prefix_put(p, &space, keyed, at, PREFIX_BLOCK, NULL);
    for (int state = 0; state < 2; state++)
        for (int32_t upto = 1; upto <= 333; upto++)
            for (int i = 0; i < n; i++)
                if (ends[i] == upto && (item[i].kind == PREFIX_STATE) == state)
                    prefix_put(p, &space, keyed, upto, item[i].kind, payload[i]);
    for (int i = 0; i < n; i++) free(payload[i]);
    prefix_find(p, &space, keyed, 350, &m);
    assert_int_equal(m.n, 333);
    sequence_deinit(&c, NULL);
    sequence_deinit(&f, NULL);
    sequence_init(&c, st, 700);
    sequence_init(&f, st, 700);
    ids_append(&c.id, keyed, 350);
    ids_append(&f.id, keyed, 350);
    prefix_take(p, &space, &m, &c);
    assert_int_equal(c.n_computed, 333);
    compute(&b, &c, 350, 0);
    compute(&b, &f, 350, 1);
    same(&b);
    prefix_keep(p, &c);
    sequence_deinit(&c, st);
    sequence_deinit(&f, st);
    sequence_deinit(&a, NULL);
    free(b.logits);
    engine_close(b.e);
}
static void states_of_every_kind(void **state) {
    states_go_together("llama_plain-q4");
    states_go_together("gemma3-q4");
    states_go_together("qwen3_5_4b-q4");
    states_go_together("glm_dsa-q4");
    states_go_together("gemma4_e2b-q4");
}

int main(void) {
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agents_of_every_kind),
        cmocka_unit_test(states_of_every_kind),
    };
    return cmocka_run_group_tests_name("conversations", tests, NULL, NULL);
}
