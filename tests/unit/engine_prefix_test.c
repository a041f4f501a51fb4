/* The prompt cache under the scheduler, with a model made of hashes (engine_fake.h): what is taken from it, what is
 * computed, what leaves when room is needed, and that what comes out is what a lone cold run says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>
#include "count_allocations.h"
#include "engine_fake.h"
#include "../../src/engine/prefix_internal.h"

static uint64_t rng = 1;
static int32_t random_below(int32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((rng >> 33) % (uint64_t)n);
}

enum { MOST = 4096 };
typedef struct talk { /* a prompt, and how it was answered */
    int32_t id[MOST];
    int32_t n, n_prompt;
    int32_t mark[64];
    size_t n_marks;
    int32_t cached, computed; /* prompt tokens taken, rows of the whole request */
    float logprob[512];
} talk;

static void add(talk *t, int32_t n) {
    for (int32_t i = 0; i < n; i++) t->id[t->n++] = random_below(FAKE_VOCAB - 2);
}
static void add_mark(talk *t) {
    t->mark[t->n_marks++] = t->n;
}

static engine *open_or_fail(const engine_opts *o) {
    error err = {0};
    engine *e = fake_open(o, &err);
    if (!e) fail_msg("%s", err.msg);
    return e;
}

static gen *start_in(engine *e, const talk *t, int32_t max_tokens, str space) {
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
                                       .n_marks = t->n_marks,
                                       .space = space},
                           &err);
    if (!g) fail_msg("%s", err.msg);
    return g;
}

/* The reply joins the talk. */
static void finish_talk(gen *g, talk *t) {
    gen_event ev = {0};
    t->n_prompt = t->n;
    while (ev.kind != GEN_DONE) {
        assert_true(gen_next(g, &ev, 20000));
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

static engine_stats stats_of(engine *e) {
    engine_stats st;
    for (int i = 0; i < 4000; i++) { /* the counters follow the last event */
        engine_stats_get(e, &st);
        if (!st.running && !st.waiting) break;
        usleep(500);
    }
    return st;
}

static void ask_in(engine *e, talk *t, int32_t max_tokens, str space) {
    stats_of(e);
    const int before = fake.rows;
    finish_talk(start_in(e, t, max_tokens, space), t);
    stats_of(e);
    t->computed = fake.rows - before;
}
static void ask(engine *e, talk *t, int32_t max_tokens) {
    ask_in(e, t, max_tokens, (str){0});
}

/* The same from nothing, alone. */
static void cold(engine *lone, const talk *t) {
    static talk c;
    c = *t;
    c.n = t->n_prompt;
    ask(lone, &c, t->n - t->n_prompt);
    assert_int_equal(c.cached, 0);
    assert_int_equal(c.n, t->n);
    assert_memory_equal(c.id, t->id, sizeof(int32_t) * (size_t)c.n);
    assert_memory_equal(c.logprob, t->logprob, sizeof(float) * (size_t)(c.n - c.n_prompt));
}

typedef enum model_kind { DENSE, SLIDING, HYBRID, KINDS } model_kind;
static void kind_set(model_kind kind) {
    fake_reset();
    fake.context = MOST;
    fake.groups = kind == SLIDING ? 2 : 1;
    fake.state_bytes = kind == HYBRID ? 1000 : 0;
}
static engine *open_kind(model_kind kind, int64_t cache) {
    kind_set(kind);
    engine_opts o = fake_opts();
    o.prompt_cache = cache;
    return open_or_fail(&o);
}
/* A second engine without a cache beside it. */
static engine *open_lone(void) {
    engine_opts o = fake_opts();
    return open_or_fail(&o);
}

/* ---- the books --------------------------------------------------------------------------------------------------- */
/* Nothing runs: every page and slot is free or the cache's alone, and the tree's counts are what is in it. */
static void books_check(engine *e) {
    stats_of(e);
    const prefix *p = e->prefix;
    if (!p) return;
    const kv_store *st = &e->store;
    int32_t nodes = 0, marks = 0, slots = 0, held[KV_GROUPS] = {0}, loose[KV_GROUPS] = {0};
    for (int32_t i = p->lru.newest; i >= 0; i = NODE(p, i)->older, nodes++) {
        const prefix_node *x = NODE(p, i);
        assert_int_equal(x->pins, 0);
        int32_t below = 0;
        for (int32_t c = x->child; c >= 0; c = NODE(p, c)->next) {
            assert_int_equal(NODE(p, c)->parent, i);
            assert_int_equal(NODE(p, c)->depth, x->depth + 1);
            assert_int_equal(x->depth < 0 || x->n_ids == KV_PAGE, true);
            below += NODE(p, c)->below;
            for (int32_t k = NODE(p, c)->mark; k >= 0; k = MARK(p, k)->next) below++;
        }
        assert_int_equal(x->below, below);
        int32_t at = 0;
        for (int32_t k = x->mark; k >= 0; k = MARK(p, k)->next, marks++) {
            assert_int_equal(MARK(p, k)->node, i);
            assert_true(MARK(p, k)->at > at && MARK(p, k)->at <= x->n_ids);
            at = MARK(p, k)->at;
            slots += MARK(p, k)->slot >= 0;
        }
        for (int g = 0; g < st->n_groups; g++) {
            if (x->page[g] < 0) continue;
            held[g]++;
            loose[g] += st->pool[g].window && !x->need[g];
            assert_true(st->pool[g].held[x->page[g]]);
            assert_int_equal(st->pool[g].refs[x->page[g]], 1);
        }
    }
    assert_int_equal(nodes, p->nodes_used);
    assert_int_equal(marks, p->marks_used);
    assert_int_equal(slots, st->n_slots_kept);
    assert_int_equal(st->n_slots_free + slots, st->n_slots);
    for (int g = 0; g < st->n_groups; g++) {
        assert_int_equal(st->pool[g].n_idle, held[g]);
        assert_int_equal(st->pool[g].n_free + held[g], st->pool[g].n_pages);
        assert_int_equal(p->loose[g].n, loose[g]);
        assert_true(st->pool[g].n_cold <= st->pool[g].n_free);
    }
    assert_true(prefix_bytes(p) <= p->bytes_max);
    assert_true(kv_store_bytes_held(st) <= st->bytes_max);
    assert_true(kv_store_bytes_touched(st) <= st->touched_max);
}

/* ---- conversations of an agent ----------------------------------------------------------------------------------- */
enum { PRIMER = 5 };
/* Ten turns: system prompt and tools, a question, a reply that begins with thoughts. The next turn repeats the reply
 * with or without them. What is computed is what is new, and no more than a page beside (hybrids: back to the
 * checkpoint at the message where the prompts part). */
static void agent(model_kind kind, bool drop_thoughts) {
    engine *e = open_kind(kind, 0), *lone = open_lone();
    static talk t;
    memset(&t, 0, sizeof t);
    add(&t, 700);
    int32_t primer_at = 0, thoughts = 0, fresh = 0;
    for (int turn = 0; turn < 10; turn++) {
        const int32_t common = turn == 0 ? 0 : t.n - (drop_thoughts ? fresh : 0);
        add_mark(&t);
        add(&t, 40 + random_below(100)); /* the question */
        add_mark(&t);
        primer_at = t.n;
        add(&t, PRIMER);
        ask(e, &t, 30 + random_below(60));
        cold(lone, &t);
        const int32_t rows = t.n_prompt - t.cached + (t.n - t.n_prompt) - 1;
        assert_int_equal(t.computed, rows);
        if (turn) {
            const int32_t bound = t.n_prompt - common + KV_PAGE;
            if (t.n_prompt - t.cached > bound)
                fail_msg("kind %d turn %d: %d of %d computed, %d in common", kind, turn, t.n_prompt - t.cached,
                         t.n_prompt, common);
        }
        fresh = 0;
        if (drop_thoughts) { /* the part of the reply that stays is moved to where it began */
            thoughts = 20;
            const int32_t from = primer_at + PRIMER + thoughts;
            fresh = t.n - from;
            memmove(t.id + primer_at, t.id + from, sizeof(int32_t) * (size_t)fresh);
            t.n = primer_at + fresh;
        }
    }
    const engine_stats st = stats_of(e);
    assert_int_equal(st.prefix.hits, 9);
    assert_int_equal(st.prefix.misses, 1);
    assert_true(st.prefix.bytes > 0 && st.prefix.bytes <= st.prefix.bytes_max);
    assert_int_equal(st.kv_bytes_used, 0);
    engine_close(e);
    engine_close(lone);
}
static void agents_with_thoughts_kept(void **state) {
    for (int k = 0; k < KINDS; k++) agent((model_kind)k, false);
}
static void agents_with_thoughts_dropped(void **state) {
    for (int k = 0; k < KINDS; k++) agent((model_kind)k, true);
}

/* Every length of the first prompt around the edges of a page, and of what both have in common. */
static void every_length(void **state) {
    for (int k = 0; k < KINDS; k++) {
        engine *e = open_kind((model_kind)k, 0), *lone = open_lone();
        static talk a, b;
        for (int32_t n = 120; n <= 136; n++)
            for (int32_t same = n - 9; same <= n; same += 3) {
                memset(&a, 0, sizeof a);
                add(&a, n);
                ask(e, &a, 3);
                b = a;
                b.n = same;
                b.id[b.n] = (a.id[b.n] + 1) % (FAKE_VOCAB - 2);
                b.n++;
                add(&b, 30);
                ask(e, &b, 3);
                if (k != HYBRID) assert_int_equal(b.cached, same);
                cold(lone, &b);
            }
        engine_close(e);
        engine_close(lone);
    }
}

/* The same prompt again leaves one token to compute; a hybrid goes on from its last checkpoint. The donor still serves.
 */
static void shared_and_not_consumed(void **state) {
    for (int k = 0; k < KINDS; k++) {
        engine *e = open_kind((model_kind)k, 0), *lone = open_lone();
        static talk a, b, again;
        memset(&a, 0, sizeof a);
        add(&a, 300);
        add_mark(&a);
        add(&a, 7);
        again = b = a;
        add(&b, 20);
        ask(e, &a, 10);
        ask(e, &b, 10);
        assert_int_equal(b.cached, k == HYBRID ? 300 : 307);
        for (int i = 0; i < 3; i++) {
            talk c = again;
            ask(e, &c, 10);
            assert_int_equal(c.cached, k == HYBRID ? 300 : 306);
            assert_memory_equal(c.id, a.id, sizeof(int32_t) * (size_t)a.n);
            cold(lone, &c);
        }
        const engine_stats st = stats_of(e);
        assert_int_equal(st.prefix.short_by[PREFIX_WHY_last_token], k == HYBRID ? 0 : 3);
        assert_int_equal(st.prefix.short_by[PREFIX_WHY_no_checkpoint], k == HYBRID ? 4 : 0);
        /* The checkpoint is in a's block, and b's goes on otherwise; b's own way is in the cache as whole blocks. */
        memcpy(again.id, b.id, sizeof(int32_t) * (size_t)b.n_prompt);
        again.n = b.n_prompt;
        ask(e, &again, 10);
        assert_int_equal(again.cached, k == HYBRID ? 300 : b.n_prompt - 1);
        cold(lone, &again);
        engine_close(e);
        engine_close(lone);
    }
}

static void spaces_are_apart(void **state) {
    engine *e = open_kind(DENSE, 0);
    static talk t, c;
    memset(&t, 0, sizeof t);
    add(&t, 200);
    c = t;
    ask_in(e, &c, 1, STR("adapter a"));
    c = t;
    ask_in(e, &c, 1, STR("adapter b"));
    assert_int_equal(c.cached, 0);
    c = t;
    ask(e, &c, 1);
    assert_int_equal(c.cached, 0);
    c = t;
    ask_in(e, &c, 1, STR("adapter a"));
    assert_int_equal(c.cached, 199);
    assert_int_equal(stats_of(e).prefix.short_by[PREFIX_WHY_space], 2);
    engine_close(e);
}

/* Cancelled in the middle: what was computed serves the next. */
static void cancelled_work_is_kept(void **state) {
    for (int k = 0; k < KINDS; k++) {
        engine *e = open_kind((model_kind)k, 0);
        static talk t, c;
        memset(&t, 0, sizeof t);
        add(&t, 1500);
        fake.row_us = 100;
        gen *g = start_in(e, &t, 10, (str){0});
        for (int i = 0; i < 10000 && fake.rows < 700; i++) usleep(500);
        gen_cancel(g);
        c = t;
        finish_talk(g, &c);
        fake.row_us = 0;
        stats_of(e);
        const int32_t had = fake.rows;
        assert_true(had >= 700 && had < 1500);
        ask(e, &t, 1);
        assert_int_equal(t.cached, had);
        engine_close(e);
    }
}

/* ---- requests that arrive together ------------------------------------------------------------------------------- */
/* Sixteen with one long beginning: it is computed once. */
static void one_leads_the_others(void **state) {
    enum { N = 16, SHARED = 1024, OWN = 30, REPLY = 8 };
    for (int k = 0; k < KINDS; k++) {
        kind_set((model_kind)k);
        fake.rows_max = 64 + N;
        engine_opts o = fake_opts();
        o.batch = N;
        o.prompt_cache = 0;
        engine *e = open_or_fail(&o), *lone = open_lone();
        static talk t[N];
        memset(&t, 0, sizeof t);
        add(&t[0], SHARED);
        add_mark(&t[0]);
        gen *g[N];
        fake.step_us = 500;
        for (int i = N - 1; i >= 0; i--) {
            t[i] = t[0];
            add(&t[i], OWN);
        }
        const int before = fake.rows;
        for (int i = 0; i < N; i++) g[i] = start_in(e, &t[i], REPLY, (str){0});
        for (int i = 0; i < N; i++) finish_talk(g[i], &t[i]);
        stats_of(e);
        const int rows = fake.rows - before;
        assert_true(rows < SHARED + N * (OWN + REPLY + KV_PAGE));
        fake.step_us = 0;
        for (int i = 0; i < N; i++) cold(lone, &t[i]);
        engine_close(e);
        engine_close(lone);
    }
}

/* ---- room -------------------------------------------------------------------------------------------------------- */
/* A cache too small for everything keeps to its size, goes on giving hits, and never changes an answer. */
static void small_caches_stay_small(void **state) {
    for (int k = 0; k < KINDS; k++)
        for (int64_t size = 3000; size < 3000000; size *= 5) {
            engine *e = open_kind((model_kind)k, size), *lone = open_lone();
            static talk t[6];
            memset(&t, 0, sizeof t);
            for (int i = 0; i < 6; i++) add(&t[i], 100 + random_below(300));
            for (int i = 0; i < 60; i++) {
                talk *at = &t[random_below(6)];
                if (random_below(8) == 0 || at->n > 1500) {
                    memset(at, 0, sizeof *at);
                    *at = t[0];
                    at->n = MIN(at->n, 90);
                    at->n_marks = 0;
                }
                if (at->n_marks < 60) add_mark(at);
                add(at, 1 + random_below(200));
                ask(e, at, 1 + random_below(20));
                if (i % 3 == 0) cold(lone, at);
                const engine_stats st = stats_of(e);
                assert_true(st.prefix.bytes <= st.prefix.bytes_max);
                assert_true(st.prefix.bytes_max <= (size_t)size);
                assert_int_equal(st.kv_bytes_used, 0);
                books_check(e);
            }
            const engine_stats st = stats_of(e);
            if (size < 100000)
                assert_true(st.prefix.bytes_max == 0 || st.prefix.evicted_blocks + st.prefix.evicted_checkpoints > 0);
            if (size > 1000000) assert_true(st.prefix.hits > 40);
            engine_close(e);
            engine_close(lone);
        }
}

/* Of many checkpoints in one long conversation those that stay are spread: a later request never starts over. */
static void checkpoints_that_stay_are_spread(void **state) {
    engine *e = open_kind(HYBRID, 350000);
    static talk t, c;
    memset(&t, 0, sizeof t);
    add(&t, 200);
    for (int turn = 0; turn < 30; turn++) {
        if (t.n_marks == 64) t.n_marks = 0;
        add_mark(&t);
        add(&t, 60);
        add_mark(&t);
        ask(e, &t, 20);
    }
    const engine_stats st = stats_of(e);
    assert_true(st.prefix.evicted_checkpoints > 0);
    const int32_t held = st.prefix.checkpoints;
    assert_true(held >= 4);
    for (int32_t at = 600; at < t.n - 100; at += 300) { /* parts from it somewhere in the middle */
        c = t;
        c.n = at;
        c.n_marks = 0;
        c.id[c.n] = (t.id[c.n] + 1) % (FAKE_VOCAB - 2);
        c.n++;
        ask(e, &c, 1);
        assert_true(c.cached > 0);
    }
    engine_close(e);
}

/* What runs comes first: cached pages go when it needs them, nothing fails, nothing waits. */
static void running_work_comes_first(void **state) {
    for (int k = 0; k < KINDS; k++) {
        kind_set((model_kind)k);
        fake.context = 1024;
        engine_opts o = fake_opts();
        o.prompt_cache = 30000;
        o.context_length = 1024;
        o.memory_budget = fake_fixed(o) + 2 * (1024 / KV_PAGE + 3) * KV_PAGE * sizeof(int32_t) + 30000;
        engine *e = open_or_fail(&o), *lone = open_lone();
        static talk t[8];
        gen *g[8];
        for (int round = 0; round < 6; round++) {
            for (int i = 0; i < 8; i++) {
                if (round % 2 == 0) memset(&t[i], 0, sizeof t[i]);
                t[i].n_marks = 0;
                add(&t[i], round % 2 ? 10 : 350);
                g[i] = start_in(e, &t[i], 30, (str){0});
            }
            for (int i = 0; i < 8; i++) finish_talk(g[i], &t[i]);
            if (round > 3)
                for (int i = 0; i < 8; i++) cold(lone, &t[i]);
        }
        const engine_stats st = stats_of(e);
        assert_int_equal(st.requests_failed, 0);
        engine_close(e);
        engine_close(lone);
    }
}

/* Anything at once: batches, chunks, cache sizes, conversations that go on, part and share, cancels. Whoever is not
 * cancelled says what he says alone, and the books are right whenever nothing runs. */
static void anything_at_once(void **state) {
    enum { N = 10, ROUNDS = 12 };
    static talk t[N], was[N];
    uint64_t hits = 0, evicted = 0, preempted = 0;
    for (int trial = 0; trial < 24; trial++) {
        const model_kind kind = (model_kind)(trial % KINDS);
        rng = (uint64_t)(trial + 7) * 0x9e3779b97f4a7c15u;
        kind_set(kind);
        if (trial % 5 == 4) fake.groups = 2; /* a hybrid with windows, too */
        fake.context = 1536;
        engine_opts o = fake_opts();
        o.batch = 1 + random_below(6);
        o.prefill_chunk = 8 + random_below(120);
        o.context_length = 1536;
        o.prompt_cache = (int64_t)6000 << random_below(9);
        fake.rows_max = o.prefill_chunk + o.batch;
        const bool tight = trial % 4 == 3; /* so that streams outgrow the pages */
        if (tight) o.batch = 6, o.prompt_cache = 6000;
        if (tight || random_below(2))
            o.memory_budget = fake_fixed(o) + (size_t)(fake.groups * 28 * KV_PAGE * 4) + (size_t)o.prompt_cache;
        engine *e = open_or_fail(&o), *lone = open_lone();
        memset(t, 0, sizeof t);
        for (int round = 0; round < ROUNDS; round++) {
            gen *g[N];
            for (int i = 0; i < N; i++) {
                if (t[i].n > (tight ? 500 : 1000) || random_below(6) == 0) {
                    const talk *from = &was[random_below(N)]; /* somebody's beginning */
                    const int32_t n = round && random_below(2) ? random_below(MIN(from->n, 900) + 1) : 0;
                    t[i] = *from;
                    t[i].n = n;
                    t[i].n_marks = 0;
                }
                if (t[i].n_marks < 60 && t[i].n) add_mark(&t[i]);
                add(&t[i], 1 + random_below(random_below(4) ? 60 : 250));
                g[i] = start_in(e, &t[i], random_below(tight ? 400 : 40), random_below(9) ? (str){0} : STR("x"));
            }
            bool cancelled[N];
            for (int i = 0; i < N; i++) {
                cancelled[i] = random_below(7) == 0;
                if (cancelled[i]) gen_cancel(g[i]);
            }
            for (int i = 0; i < N; i++) finish_talk(g[i], &t[i]);
            books_check(e);
            for (int i = 0; i < N; i++) {
                if (!cancelled[i] && random_below(4) == 0) cold(lone, &t[i]);
                was[i] = t[i];
            }
        }
        const engine_stats st = stats_of(e);
        assert_int_equal(st.requests_failed, 0);
        hits += st.prefix.hits;
        evicted += st.prefix.evicted_blocks + st.prefix.evicted_checkpoints;
        preempted += st.preempted_total;
        engine_close(e);
        engine_close(lone);
    }
    print_message("%llu hits, %llu evicted, %llu preempted\n", (unsigned long long)hits, (unsigned long long)evicted,
                  (unsigned long long)preempted);
    assert_true(hits > 500 && evicted > 1000 && preempted > 10);
}

/* The only slot waits with a running request for its block; another one ends at a page's edge and can keep nothing. */
static void nothing_to_keep_is_no_harm(void **state) {
    kind_set(HYBRID);
    fake.state_bytes = 1000000;
    engine_opts o = fake_opts();
    o.prompt_cache = 8000000;
    o.memory_budget = (size_t)1 << 30;
    engine *e = open_or_fail(&o), *lone = open_lone();
    assert_int_equal(e->plan.cache_slots_max, 1);
    static talk a, b;
    memset(&a, 0, sizeof a);
    add(&a, 65);
    add_mark(&a);
    add(&a, 1);
    memset(&b, 0, sizeof b);
    add(&b, 100);
    fake.step_us = 1000;
    gen *first = start_in(e, &a, 60, (str){0});
    const int steps = fake.steps;
    for (int i = 0; i < 10000 && fake.steps < steps + 4; i++) usleep(200);
    gen *second = start_in(e, &b, 29, (str){0});
    finish_talk(second, &b);
    finish_talk(first, &a);
    fake.step_us = 0;
    assert_int_equal((b.n - 1) % KV_PAGE, 0);
    books_check(e);
    cold(lone, &a);
    cold(lone, &b);
    engine_close(e);
    engine_close(lone);
}

/* Pages and checkpoints share one room: short prompts fill it with checkpoints, then a long one with pages, and back;
 * the memory changes hands, and what comes back is still right. */
static void either_kind_may_have_it(void **state) {
    for (int k = SLIDING; k < KINDS; k++) {
        engine *e = open_kind((model_kind)k, 900000), *lone = open_lone();
        static talk t;
        const prefix *p = e->prefix;
        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 900; i++) { /* each of its own beginning */
                memset(&t, 0, sizeof t);
                add(&t, 30 + random_below(60));
                ask(e, &t, 2);
                if (i % 50 == 0) cold(lone, &t), books_check(e);
            }
            assert_true(stats_of(e).prefix.bytes * 100 >= p->bytes_max * 95);
            if (k == HYBRID) assert_true(e->store.n_slots_kept > 2 * e->plan.cache_slots);
            if (k == SLIDING) assert_true(e->store.pool[1].n_idle > 2 * e->plan.cache_pages[1]);
            for (int i = 0; i < 30; i++) {
                memset(&t, 0, sizeof t);
                add(&t, 3000);
                ask(e, &t, 2);
                const talk again = t;
                if (i % 10 == 0) cold(lone, &again);
            }
            books_check(e);
            assert_true(stats_of(e).prefix.bytes * 100 >= p->bytes_max * 90);
            if (k == HYBRID) assert_true(e->store.n_slots_kept < 2 * e->plan.cache_slots);
        }
        assert_true(fake.discards > 100);
        engine_close(e);
        engine_close(lone);
    }
}

static void zero_is_off(void **state) {
    engine *e = open_kind(DENSE, -1);
    static talk t, c;
    memset(&t, 0, sizeof t);
    add(&t, 200);
    for (int i = 0; i < 2; i++) {
        c = t;
        ask(e, &c, 1);
        assert_int_equal(c.cached, 0);
    }
    assert_int_equal(stats_of(e).prefix.bytes_max, 0);
    engine_close(e);
}

/* A bad row's logits are not kept for others to continue: they say the same, for the same reason. */
static void a_failed_request_says_so_again(void **state) {
    engine *e = open_kind(DENSE, 0);
    fake.poison = FAKE_VOCAB - 2;
    static talk t, c;
    memset(&t, 0, sizeof t);
    add(&t, 200);
    t.id[150] = FAKE_VOCAB - 2;
    for (int i = 0; i < 2; i++) {
        c = t;
        gen *g = start_in(e, &c, 5, (str){0});
        gen_event ev = {0};
        while (ev.kind != GEN_DONE) assert_true(gen_next(g, &ev, 20000));
        assert_int_equal(ev.why, FINISH_ERROR);
        gen_free(g);
    }
    engine_close(e);
}

static void decoding_allocates_nothing(void **state) {
#ifdef COUNTS_ALLOCATIONS
    for (int k = 0; k < KINDS; k++) {
        engine *e = open_kind((model_kind)k, 0);
        static talk t;
        memset(&t, 0, sizeof t);
        add(&t, 10);
        found = false;
        error err = {0};
        gen *g = engine_submit(e,
                               &(gen_opts){.prompt = t.id,
                                           .n_prompt = 10,
                                           .max_tokens = 3000,
                                           .sample = {.top_p = 1},
                                           .ignore_eos = true,
                                           .want_tokens = true,
                                           .wake = count_here},
                               &err);
        assert_non_null(g);
        gen_event ev;
        for (int n = 0; n < 2500;) {
            assert_true(gen_next(g, &ev, 20000));
            n += ev.kind == GEN_TOKEN;
            if (n == 100) counting = true;
        }
        counting = false;
        assert_true(found);
        assert_int_equal(allocations, 0);
        gen_free(g);
        engine_close(e);
    }
#else
    skip();
#endif
}

int main(void) {
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agents_with_thoughts_kept),
        cmocka_unit_test(agents_with_thoughts_dropped),
        cmocka_unit_test(every_length),
        cmocka_unit_test(shared_and_not_consumed),
        cmocka_unit_test(spaces_are_apart),
        cmocka_unit_test(cancelled_work_is_kept),
        cmocka_unit_test(one_leads_the_others),
        cmocka_unit_test(small_caches_stay_small),
        cmocka_unit_test(checkpoints_that_stay_are_spread),
        cmocka_unit_test(running_work_comes_first),
        cmocka_unit_test(anything_at_once),
        cmocka_unit_test(nothing_to_keep_is_no_harm),
        cmocka_unit_test(either_kind_may_have_it),
        cmocka_unit_test(zero_is_off),
        cmocka_unit_test(a_failed_request_says_so_again),
        cmocka_unit_test(decoding_allocates_nothing),
    };
    return cmocka_run_group_tests_name("prompt cache", tests, NULL, NULL);
}
