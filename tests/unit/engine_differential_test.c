/* Whatever the engine does to save work, a request's numbers are those of a lone cold run: random conversations that
 * share beginnings, in random company, chunks, threads, cache sizes (tiny ones, so that everything is evicted all the
 * time), over restarts with a cache on disk that is damaged in between, among requests that are cancelled half-way.
 * Token ids, their log-probabilities and those of the best alternatives are compared as bits.
 *
 *   engine_differential_test                                  a short run with fixed seeds, as CI does it
 *   engine_differential_test --minutes 60 [--seed 7]          over all of tests/data/models, in turn
 *   engine_differential_test --seed 7 --round 3 [--model x]   one round again, as a failure names it
 *
 * HEARTH_MODELS=DIR takes other checkpoints. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/engine/engine.h"

enum { TURNS_MAX = 4, REQUESTS_MAX = 20, REPLY_MAX = 40, PROMPT_MAX = 800, STUCK_S = 30, TOP = 3, MODELS_MAX = 200 };

static uint64_t rng;
static uint32_t rnd(uint32_t n) { /* 0 .. n-1 */
    rng += 0x9e3779b97f4a7c15u;
    uint64_t z = (rng ^ (rng >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32) % n;
}
static bool chance(uint32_t percent) {
    return rnd(100) < percent;
}

/* ---- requests and what came of them ------------------------------------------------------------------------------ */
typedef struct outcome {
    int32_t token[REPLY_MAX];
    float logprob[REPLY_MAX];
    token_prob top[REPLY_MAX][TOP];
    int32_t n;
    finish why;
} outcome;

typedef struct request {
    int32_t prompt[PROMPT_MAX], marks[6];
    gen_opts o;
    outcome lone;
} request;

typedef struct world {
    char path[300];
    numerics num;
    const char *kv_quant;
    request q[REQUESTS_MAX];
    int n;
} world;

static struct totals {
    uint64_t rounds, compared, cancelled, cached, restored, preempted, evicted, damaged, opened;
} total;
static char failure[600];
static bool fails(const char *fmt, ...) PRINTF(1, 2);
static bool fails(const char *fmt, ...) {
    if (failure[0]) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(failure, sizeof failure, fmt, ap);
    va_end(ap);
    return false;
}

/* Takes events until there are none; true when the last has come. */
static bool take(gen *g, outcome *r) {
    gen_event ev;
    while (gen_next(g, &ev, 0)) {
        if (ev.kind == GEN_TOKEN && r->n < REPLY_MAX) {
            memcpy(r->top[r->n], ev.top, sizeof *ev.top * (size_t)MIN(ev.n_top, TOP));
            r->logprob[r->n] = ev.logprob;
            r->token[r->n++] = ev.token;
        }
        if (ev.kind == GEN_DONE) {
            r->why = ev.why;
            if (ev.why == FINISH_ERROR) fails("a request ended with an error: %s", ev.err.msg);
            return true;
        }
    }
    return false;
}

static bool same(const outcome *a, const outcome *b) {
    return a->n == b->n && a->why == b->why && memcmp(a->token, b->token, sizeof a->token) == 0 &&
           memcmp(a->logprob, b->logprob, sizeof a->logprob) == 0 && memcmp(a->top, b->top, sizeof a->top) == 0;
}

static int first_difference(const outcome *a, const outcome *b) {
    int i = 0;
    for (; i < MIN(a->n, b->n); i++)
        if (a->token[i] != b->token[i] || memcmp(&a->logprob[i], &b->logprob[i], 4) ||
            memcmp(a->top[i], b->top[i], sizeof a->top[i]))
            break;
    return i;
}

/* ---- a world: conversations, held alone and cold ----------------------------------------------------------------- */
static size_t tokens_add(request *q, size_t n, size_t more, int32_t vocab) {
    for (; more && n < PROMPT_MAX; more--) q->prompt[n++] = (int32_t)rnd((uint32_t)vocab);
    return n;
}

static void request_fill(request *q, size_t n) {
    q->o = (gen_opts){.prompt = q->prompt,
                      .n_prompt = n,
                      .max_tokens = (int32_t)(chance(10)   ? 0
                                              : chance(30) ? 1
                                                           : rnd(REPLY_MAX)),
                      .sample = {.top_p = 1},
                      .want_tokens = true,
                      .logprobs = true,
                      .top_logprobs = TOP,
                      .ignore_eos = chance(70)};
    if (chance(50))
        q->o.sample = (sampling){.temperature = 1,
                                 .top_p = chance(50) ? 0.9f : 1,
                                 .top_k = (int32_t)rnd(60),
                                 .has_seed = true,
                                 .seed = rnd(1000)};
    if (chance(20)) q->o.sample.repetition_penalty = 1.2f;
    for (size_t at = 0; q->o.n_marks < COUNT(q->marks) && (at += 1 + rnd(90)) < n;)
        q->marks[q->o.n_marks++] = (int32_t)at;
    q->o.marks = q->marks;
    if (chance(15)) q->o.space = STR("an adapter");
}

static bool hold_alone(engine *e, request *q) {
    error err = {0};
    gen *g = engine_submit(e, &q->o, &err);
    if (!g) return fails("the lone run refuses a request: %s", err.msg);
    q->lone = (outcome){0};
    while (!take(g, &q->lone)) usleep(50);
    gen_free(g);
    return true;
}

/* The next turn repeats the last prompt and its reply, or only a part of that (thinking that is dropped). */
static size_t next_turn(request *to, const request *from, int32_t vocab) {
    size_t n = from->o.n_prompt;
    memcpy(to->prompt, from->prompt, n * sizeof *to->prompt);
    int32_t from_token = chance(30) ? (int32_t)rnd(10) : 0;
    for (int32_t i = from_token; i < from->lone.n && n < PROMPT_MAX; i++) to->prompt[n++] = from->lone.token[i];
    return tokens_add(to, n, 1 + rnd(120), vocab);
}

static bool world_make(world *w) {
    error err = {0};
    engine_opts o = {.model_path = w->path,
                     .device = {.num = w->num, .threads = 1},
                     .batch = 1,
                     .context_length = 0,
                     .kv_quant = w->kv_quant,
                     .prompt_cache = -1};
    engine *e = engine_open(&o, &err);
    if (!e && w->kv_quant) { /* not for these widths */
        w->kv_quant = o.kv_quant = NULL;
        err = (error){0};
        e = engine_open(&o, &err);
    }
    if (!e) return fails("cannot open: %s", err.msg);
    const int32_t vocab = engine_model(e)->vocab;
    const size_t room = (size_t)MIN(engine_context(e) - REPLY_MAX - 1, PROMPT_MAX);
    static int32_t shared[2][PROMPT_MAX];
    size_t n_shared[2];
    for (int s = 0; s < 2; s++) {
        n_shared[s] = rnd(3) * 64 + (chance(50) ? rnd(64) : 0);
        for (size_t i = 0; i < n_shared[s]; i++) shared[s][i] = (int32_t)rnd((uint32_t)vocab);
    }
    w->n = 0;
    const int most = 4 + (int)rnd(REQUESTS_MAX - 4);
    while (w->n < most && !failure[0]) {
        const int turns = 1 + (int)rnd(TURNS_MAX);
        const request *last = NULL;
        for (int t = 0; t < turns && w->n < most && !failure[0]; t++) {
            request *q = &w->q[w->n];
            const int s = (int)rnd(2);
            size_t n = 0;
            memset(q, 0, sizeof *q);
            if (!last) {
                memcpy(q->prompt, shared[s], n_shared[s] * sizeof **shared);
                n = tokens_add(q, n_shared[s], 1 + rnd(chance(20) ? 300 : 60), vocab);
            } else {
                n = next_turn(q, last, vocab);
            }
            if (n > room) break;
            request_fill(q, n);
            if (last) q->o.space = last->o.space;
            hold_alone(e, q);
            last = q;
            w->n++;
        }
    }
    engine_close(e);
    return !failure[0];
}

/* ---- the same in company ----------------------------------------------------------------------------------------- */
static size_t random_size(size_t page) {
    return chance(50) ? page * (1 + rnd(30)) : (size_t)1 << (12 + rnd(12));
}

static engine_opts company_opts(const world *w, const char *ssd) {
    static const int chunks[] = {1, 7, 16, 33, 64, 100, 512};
    engine_opts o = {.model_path = w->path,
                     .device = {.num = w->num, .threads = 1 + (int)rnd(2)},
                     .batch = 1 + (int)rnd(6),
                     .prefill_chunk = chunks[rnd(COUNT(chunks))],
                     .kv_quant = w->kv_quant,
                     .ssd_cache = ssd,
                     .ssd_cache_max = chance(70) ? 0 : random_size(65536) * 8,
                     .ssd_cache_verify = chance(20)};
    o.prompt_cache = chance(8) ? -1 : chance(30) ? 0 : (int64_t)random_size(8192);
    return o;
}

static const char *opts_text(const engine_opts *o) {
    static char text[300];
    snprintf(text, sizeof text, "%s kv %s threads %d batch %d chunk %d cache %lld budget %zu ssd %s max %zu verify %d",
             numerics_name(o->device.num), o->kv_quant ? o->kv_quant : "-", o->device.threads, o->batch,
             o->prefill_chunk, (long long)o->prompt_cache, o->memory_budget, o->ssd_cache ? o->ssd_cache : "-",
             o->ssd_cache_max, o->ssd_cache_verify);
    return text;
}

typedef struct flight {
    gen *g;
    int i;
    int patience; /* >= 0: leaves after so many looks */
    outcome got;
} flight;

static void compare(const world *w, const flight *f, const engine_opts *o) {
    const request *q = &w->q[f->i];
    gen_stats st;
    gen_stats_get(f->g, &st);
    total.compared++;
    total.cached += (uint64_t)st.cached_tokens;
    if (!same(&f->got, &q->lone) && !failure[0])
        fails("request %d (prompt %zu, max_tokens %d, cached %d) differs from token %d on (%d tokens, end %d; alone "
              "%d, end %d); %s",
              f->i, q->o.n_prompt, q->o.max_tokens, st.cached_tokens, first_difference(&f->got, &q->lone), f->got.n,
              (int)f->got.why, q->lone.n, (int)q->lone.why, opts_text(o));
    if (st.cached_tokens < 0 || st.cached_tokens >= (int32_t)q->o.n_prompt)
        fails("request %d: %d of %zu prompt tokens are said to be cached", f->i, st.cached_tokens, q->o.n_prompt);
}

static void stuck(const engine *e, const engine_opts *o) {
    engine_stats st;
    engine_stats_get(e, &st);
    fails("nothing moves: %d running, %d waiting, %llu steps, %llu preempted; %s", st.running, st.waiting,
          (unsigned long long)st.steps_total, (unsigned long long)st.preempted_total, opts_text(o));
    if (getenv("STUCK_ABORTS")) abort();
}

/* All requests of the world in random order, some of them twice, several at a time; some leave before they end. */
static void run_all(const world *w, engine *e, const engine_opts *o) {
    enum { FLIGHTS = 8 };
    static flight f[FLIGHTS];
    int todo[2 * REQUESTS_MAX], n_todo = 0, n_flying = 0;
    for (int i = 0; i < w->n; i++)
        for (int twice = 1 + chance(30); twice > 0; twice--) todo[n_todo++] = i;
    if (chance(60)) /* else in the order of the conversations */
        for (int i = n_todo - 1; i > 0; i--) {
            int k = (int)rnd((uint32_t)i + 1), t = todo[i];
            todo[i] = todo[k];
            todo[k] = t;
        }
    const int most = 1 + (int)rnd(FLIGHTS);
    int next = 0;
    uint64_t moved = clock_ns(); /* when something came last */
    memset(f, 0, sizeof f);
    while ((next < n_todo || n_flying) && !failure[0]) {
        for (int k = 0; k < most; k++) {
            if (!f[k].g && next < n_todo) {
                error err = {0};
                f[k] = (flight){.i = todo[next++], .patience = chance(12) ? (int)rnd(60) : -1};
                f[k].g = engine_submit(e, &w->q[f[k].i].o, &err);
                if (!f[k].g)
                    fails("refused: %s; %s", err.msg, opts_text(o));
                else
                    n_flying++;
            }
            if (!f[k].g) continue;
            const int32_t before = f[k].got.n;
            const bool ended = take(f[k].g, &f[k].got);
            if (ended || f[k].got.n > before) moved = clock_ns();
            if (ended) {
                compare(w, &f[k], o);
            } else if (f[k].patience < 0 || f[k].patience-- > 0) {
                continue;
            } else {
                if (chance(50)) gen_cancel(f[k].g);
                total.cancelled++;
            }
            gen_free(f[k].g);
            f[k].g = NULL;
            n_flying--;
        }
        if (clock_ns() - moved > (uint64_t)STUCK_S * 1000000000) stuck(e, o);
        usleep(100);
    }
    for (int k = 0; k < FLIGHTS; k++) gen_free(f[k].g);
}

static void stats_add(const engine *e) {
    engine_stats st;
    engine_stats_get(e, &st);
    total.restored += st.ssd.restores;
    total.preempted += st.preempted_total;
    total.evicted += st.prefix.evicted_blocks + st.ssd.evicted;
    total.opened++;
}

/* Flips bits in, cuts, or deletes some of the files below a directory. */
static void damage(const char *dir, int percent) {
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        char path[900];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        if (x->d_name[0] == '.' || lstat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode)) damage(path, percent);
        if (!S_ISREG(st.st_mode) || st.st_size == 0 || !chance((uint32_t)percent)) continue;
        total.damaged++;
        if (chance(20)) {
            unlink(path);
        } else if (chance(20)) {
            if (truncate(path, (off_t)rnd((uint32_t)st.st_size)) != 0) continue;
        } else {
            FILE *f = fopen(path, "r+b");
            long at = (long)rnd((uint32_t)(chance(30) ? MIN(st.st_size, 420) : st.st_size));
            fseek(f, at, SEEK_SET);
            int v = fgetc(f);
            fseek(f, at, SEEK_SET);
            fputc(v ^ (1 << rnd(8)), f);
            fclose(f);
        }
    }
    if (d) closedir(d);
}

/* Little more than one sequence of full context, which the longest request needs: sequences must give each other's
 * pages up. */
static void budget_tighten(const world *w, engine_opts *o) {
    for (int i = 0; i < w->n; i++)
        o->context_length = MAX(o->context_length, (int)w->q[i].o.n_prompt + w->q[i].o.max_tokens + 1);
    o->batch = 4 + (int)rnd(4);
    engine_opts plain = *o;
    plain.ssd_cache = NULL;
    engine *e = engine_open(&plain, NULL);
    if (!e) return;
    engine_stats st;
    engine_stats_get(e, &st);
    const size_t page = (engine_model(e)->kv_bytes_per_token * 64 + 4095) / 4096 * 4096,
                 pages = (size_t)o->context_length / 64 + 2 + rnd(3);
    o->memory_budget = st.weight_bytes + st.workspace_bytes + page * pages + (chance(50) ? 0 : 1 << 16) +
                       (o->ssd_cache ? 2 << 20 : 0); /* the least that its queues take */
    engine_close(e);
}

static bool round_run(const char *path, uint64_t seed) {
    static world w;
    rng = seed;
    failure[0] = 0;
    snprintf(w.path, sizeof w.path, "%s", path);
    w.num = (numerics[]){NUM_DEFAULT, NUM_DEFAULT, NUM_F32, NUM_INT8}[rnd(4)];
    w.kv_quant = (const char *[]){NULL, NULL, NULL, "8", "4", "turbo"}[rnd(6)];
    if (!world_make(&w)) return false;
    char ssd[] = "/tmp/hearth_differential.XXXXXX", command[100];
    if (!mkdtemp(ssd)) return fails("no temporary directory");
    const int phases = 2 + (int)rnd(3);
    for (int p = 0; p < phases && !failure[0]; p++) {
        engine_opts o = company_opts(&w, chance(80) ? ssd : NULL);
        if (chance(20)) budget_tighten(&w, &o);
        error err = {0};
        engine *e = engine_open(&o, &err);
        if (!e && err.code == ERR_MEMORY && o.memory_budget) continue; /* too tight after all */
        if (!e) {
            fails("cannot open: %s; %s", err.msg, opts_text(&o));
            break;
        }
        run_all(&w, e, &o);
        if (o.ssd_cache && chance(30)) engine_cache_flush(e, 20000, NULL, NULL);
        stats_add(e);
        engine_close(e);
        if (chance(30)) damage(ssd, 10);
    }
    snprintf(command, sizeof command, "rm -rf %s", ssd);
    if (system(command) != 0) fails("cannot remove %s", ssd);
    total.rounds++;
    return !failure[0];
}

/* ---- which models, how long -------------------------------------------------------------------------------------- */
static char *models[MODELS_MAX];
static int n_models;
static const char *data(void) {
    const char *dir = getenv("HEARTH_MODELS");
    return dir ? dir : "tests/data/models";
}

/* Some checkpoints come without a tokenizer: they borrow one (the text of a reply does not count here). The place is
 * below scratch; the caller frees the path. */
static char scratch[64];
static char *place_of(const char *name) {
    char *path = path_join(data(), name), *tokenizer = path_join(path, "tokenizer.json"), command[1200];
    const bool whole = file_exists(tokenizer) || !dir_exists(path);
    free(tokenizer);
    if (whole) return path;
    char *here = path_join(scratch, name);
    snprintf(command, sizeof command,
             "mkdir -p %s && ln -sf $(realpath %s)/* $(realpath %s/qwen3_5_4b-q4/tokenizer.json) %s/", here, path,
             data(), here);
    if (system(command) != 0) fails("%s", command);
    free(path);
    return here;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Checkpoints that this build opens and that generate. */
static void models_find(void) {
    DIR *d = opendir(data());
    for (struct dirent *x; d && (x = readdir(d));) {
        char *path = x->d_name[0] == '.' || n_models == MODELS_MAX ? NULL : place_of(x->d_name);
        if (path) models[n_models++] = path;
    }
    if (d) closedir(d);
    qsort(models, (size_t)n_models, sizeof *models, by_name);
    int n = 0;
    for (int i = 0; i < n_models; i++) {
        engine *e = engine_open(&(engine_opts){.model_path = models[i], .device = {.threads = 1}}, NULL);
        const bool good = e && !engine_embedding(e);
        engine_close(e);
        if (good)
            models[n++] = models[i];
        else
            free(models[i]);
    }
    n_models = n;
}

static void say(uint64_t failed, double minutes) {
    printf("%7.1f min  %llu rounds, %llu requests as alone, %llu left early, %llu tokens from caches, %llu restores "
           "from disk, %llu "
           "preempted, %llu evicted, %llu files damaged, %llu failed\n",
           minutes, (unsigned long long)total.rounds, (unsigned long long)total.compared,
           (unsigned long long)total.cancelled, (unsigned long long)total.cached, (unsigned long long)total.restored,
           (unsigned long long)total.preempted, (unsigned long long)total.evicted, (unsigned long long)total.damaged,
           (unsigned long long)failed);
    fflush(stdout);
}

/* The seed of a round follows from the run's and the round's number alone: it can be run again by itself. */
static bool numbered_round(uint64_t seed, uint64_t round, const char *only) {
    const char *path = only ? only : models[round % (uint64_t)n_models];
    if (round_run(path, seed * 1000003 + round * 7919)) return true;
    printf("FAILED: --seed %llu --round %llu (%s): %s\n", (unsigned long long)seed, (unsigned long long)round, path,
           failure);
    fflush(stdout);
    return false;
}

static int long_run(double minutes, uint64_t seed, int64_t round, const char *only) {
    const uint64_t t0 = clock_ns();
    uint64_t failed = 0, said = t0;
    char *path = only ? place_of(only) : NULL;
    for (uint64_t i = round < 0 ? 0 : (uint64_t)round;; i++) {
        failed += !numbered_round(seed, i, path);
        const uint64_t now = clock_ns();
        const double gone = (double)(now - t0) / 60e9;
        const bool end = round >= 0 || gone >= minutes || failed >= 20;
        if (end || now - said > (uint64_t)60e9) say(failed, gone), said = now;
        if (end) break;
    }
    free(path);
    printf("%llu passed, %llu failed\n", (unsigned long long)(total.rounds - failed), (unsigned long long)failed);
    return failed != 0;
}

/* ---- CI ---------------------------------------------------------------------------------------------------------- */
/* One checkpoint of each way of remembering, fixed seeds. */
static void as_alone(void **state) {
    static const char *const some[] = {"llama_plain-q4", "mistral_swa-q4", "qwen3_5_4b-q4",  "gemma4_e2b-q4",
                                       "gemma3_text-q4", "glm_dsa-q4",     "deepseek_v3-q4", "qwen3_next-odd"};
    for (uint64_t i = 0; i < COUNT(some); i++) {
        char *path = place_of(some[i]);
        const bool ok = numbered_round(1, i, path);
        free(path);
        if (!ok) fail_msg("%s", failure);
    }
    assert_true(total.compared > 50);
    assert_true(total.cached > 1000);
    assert_true(total.restored > 0);
}

static int run(int argc, char **argv) {
    double minutes = 0;
    uint64_t seed = 1;
    int64_t round = -1;
    const char *only = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--minutes") == 0) minutes = strtod(argv[i + 1], NULL);
        if (strcmp(argv[i], "--seed") == 0) seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--round") == 0) round = strtoll(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--model") == 0) only = argv[i + 1];
    }
    if (argc > 1) {
        models_find();
        int rc = n_models ? long_run(minutes, seed, round, only) : 2;
        for (int i = 0; i < n_models; i++) free(models[i]);
        return rc;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_alone)};
    return cmocka_run_group_tests_name("the engine beside a lone cold run", tests, NULL, NULL);
}

int main(int argc, char **argv) {
    log_set_level(LOG_ERROR);
    snprintf(scratch, sizeof scratch, "/tmp/hearth_models.XXXXXX");
    if (!mkdtemp(scratch)) return 2;
    const int rc = run(argc, argv);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command) == 0 ? rc : 2;
}
