/* The memory plan against what a process really takes: each family's checkpoint is opened in a process of its own and
 * driven to its limits (every page of the batch, full contexts, the whole prompt cache), then its resident memory has
 * grown by what the plan says.
 *
 * Counted: anonymous memory (heap, mappings), from just before engine_open to after the last request. The mapped files'
 * pages are not part of it: every matrix, bf16 too, is packed into anonymous memory, and the mapping is dropped as
 * packing goes on. Not counted in the plan here: PLAN_PROCESS (the program was there before) and places of requests
 * that do not wait. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/engine/engine.h"

#define DATA "tests/data/models/"
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURES = 0 }; /* shadow memory and freed blocks that are kept */
#else
enum { MEASURES = 1 };
#endif

/* A line of /proc/self/status in bytes. */
static long status_bytes(const char *name) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[200];
    long kb = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) sscanf(line + strlen(name) + 1, "%ld", &kb);
    if (f) fclose(f);
    return kb * 1024;
}

typedef struct setting {
    const char *what;
    numerics num;
    int batch, context, chunk, threads;
    int64_t prompt_cache;
    const char *kv_quant;
    bool shorts; /* short prompts that have nothing in common: few pages, many checkpoints */
} setting;

/* A batch of requests of n tokens each, that begin as nobody else's do. */
static bool batch_run(engine *e, int batch, int32_t n, int round) {
    int32_t V = engine_model(e)->vocab;
    int32_t *id = malloc(sizeof *id * (size_t)n);
    gen *g[64];
    error err = {0};
    for (int b = 0; b < batch; b++) {
        uint64_t h = (uint64_t)round * 64 + (uint64_t)b;
        for (int32_t i = 0; i < n; i++)
            id[i] = (int32_t)((h = h * 6364136223846793005u + 1442695040888963407u) >> 33) % V;
        gen_opts o = {
            .prompt = id, .n_prompt = (size_t)n - 4, .max_tokens = 4, .sample = {.top_p = 1}, .ignore_eos = true};
        if (!(g[b] = engine_submit(e, &o, &err))) return printf("submit: %s\n", err.msg), false;
    }
    for (int b = 0; b < batch; b++) {
        gen_event ev = {.kind = GEN_TEXT};
        while (ev.kind != GEN_DONE)
            if (!gen_next(g[b], &ev, 120000)) return printf("no event\n"), false;
        if (ev.why != FINISH_LENGTH) return printf("ended by %d: %s\n", ev.why, ev.err.msg), false;
        gen_free(g[b]);
    }
    free(id);
    return true;
}

/* Fills everything with requests of n tokens: at most `rounds` times a batch; enough once the prompt cache has to
 * evict. *peak: most resident memory seen. */
static bool drive(engine *e, int batch, int32_t n, int rounds, int seed, long *peak) {
    engine_stats st;
    engine_stats_get(e, &st);
    const uint64_t before = st.prefix.evicted_blocks + st.prefix.evicted_checkpoints;
    for (int r = 0; r < rounds; r++) {
        if (!batch_run(e, batch, n, seed + r)) return false;
        *peak = MAX(*peak, status_bytes("RssAnon:"));
        engine_stats_get(e, &st);
        if (r >= 1 && st.prefix.evicted_blocks + st.prefix.evicted_checkpoints > before + (seed ? 200 : 0)) break;
    }
    return true;
}

/* Short prompts until the cache is full of them, full contexts, short ones again: memory goes from one kind to the
 * other. False: the cache's room was not used. */
static bool drive_shorts(engine *e, int batch, long *peak) {
    engine_stats st;
    for (int i = 0; i < 2; i++) {
        if (!drive(e, batch, 70, 5000, 1 + i * 100000, peak)) return false;
        engine_stats_get(e, &st);
        if (st.prefix.bytes < st.prefix.bytes_max / 100 * 95)
            return printf("%zu of %zu used\n", st.prefix.bytes, st.prefix.bytes_max), false;
        if (!drive(e, batch, engine_context(e), i ? 2 : 40, 50000, peak)) return false;
    }
    return true;
}

static double mb(size_t n) {
    return (double)n / 1e6;
}

/* In the child: 0 when plan and measure agree. */
static int measure(const char *path, const setting *s) {
    error err = {0};
    long anon = status_bytes("RssAnon:"), all = status_bytes("VmRSS:");
    engine *e = engine_open(&(engine_opts){.model_path = path,
                                           .batch = s->batch,
                                           .queue_max = s->batch,
                                           .context_length = s->context,
                                           .prefill_chunk = s->chunk,
                                           .prompt_cache = s->prompt_cache ? s->prompt_cache : -1,
                                           .kv_quant = s->kv_quant,
                                           .device = {.num = s->num, .threads = s->threads}},
                            &err);
    if (!e) return printf("%s: %s\n", path, err.msg), 2;
    const memory_plan *p = engine_plan(e);
    size_t planned = p->total_bytes - p->part[PLAN_PROCESS];
    long most = 0;
    if (s->shorts ? !drive_shorts(e, s->batch, &most)
                  : !drive(e, s->batch, engine_context(e), s->prompt_cache ? 100 : 1, 0, &most))
        return 3;
    long grown = most - anon, peak = status_bytes("VmHWM:") - all;
    printf("%-44s %-14s plan %7.2f MB, measured %7.2f, peak with files %7.2f:", strrchr(path, '/') + 1, s->what,
           mb(planned), (double)grown / 1e6, (double)peak / 1e6);
    for (int i = 0; i < PLAN_PARTS; i++)
        if (p->part[i]) printf(" %s %.2f", plan_part_describe((plan_part)i)->key, mb(p->part[i]));
    puts("");
    engine_close(e);
    /* Promised are 16 MiB or 5 % either way. More than planned is the worse: only the ends of mappings in 2 MiB pages.
     */
    const long over = 5 << 20, under = MAX(16L << 20, (long)planned / 20);
    long off = grown - (long)planned;
    return !MEASURES || (off <= over && -off <= under) ? 0 : 1;
}

static void check_path(const char *path, const setting *s) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = measure(path, s);
        fflush(stdout);
        _exit(rc);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("%s, %s: plan and measure differ (%d)", path, s->what, status);
}

static void check(const char *name, const setting *s) {
    char path[300];
    snprintf(path, sizeof path, DATA "%s", name);
    check_path(path, s);
}

static void every_family(void **state) {
    const setting s = {"f32", NUM_F32, 4, 1024, 512, 2, 0, NULL, false};
    DIR *d = opendir(DATA);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char text[400]; /* some are for the model alone */
        snprintf(text, sizeof text, DATA "%s/tokenizer.json", e->d_name);
        if (!strstr(e->d_name, ".gguf") && access(text, F_OK)) continue;
        check(e->d_name, &s);
        n++;
    }
    closedir(d);
    assert_true(n > 30);
}

static void batch_cache_and_coded_keys(void **state) {
    const setting settings[] = {
        {"batch 16", NUM_DEFAULT, 16, 1024, 512, 2, 0, NULL, false},
        {"one thread", NUM_DEFAULT, 1, 1024, 64, 1, 0, NULL, false},
        {"cache", NUM_DEFAULT, 2, 1024, 256, 2, 6 << 20, NULL, false},
        {"cache, 8 bits", NUM_DEFAULT, 4, 512, 256, 2, 2 << 20, "8", false},
        {"4 bits", NUM_DEFAULT, 8, 512, 512, 2, 0, "4", false},
    };
    static const char *const names[] = {"llama-q4", "llama_plain-bf16", "gemma3-q4", "qwen3_5_4b-q4", "glm_dsa-q4"};
    for (size_t i = 0; i < COUNT(settings); i++)
        for (size_t k = 0; k < COUNT(names); k++) check(names[k], &settings[i]);
}

static void short_unrelated_prompts(void **state) {
    const setting s = {"short prompts", NUM_DEFAULT, 2, 512, 256, 2, 32 << 20, NULL, true};
    static const char *const names[] = {"gemma3-q4", "qwen3_5_4b-q4", "llama-q4"};
    for (size_t k = 0; k < COUNT(names); k++) check(names[k], &s);
}

/* By hand: `memory_test MODEL...` with models of real size. */
static int paths(int n, char **path) {
    const setting settings[] = {{"default", NUM_DEFAULT, 4, 2048, 512, 2, 0, NULL, false},
                                {"cache", NUM_DEFAULT, 2, 1024, 256, 2, 64 << 20, NULL, false},
                                {"short prompts", NUM_DEFAULT, 2, 1024, 256, 2, 64 << 20, NULL, true}};
    int bad = 0;
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < COUNT(settings); k++) {
            fflush(stdout);
            pid_t pid = fork();
            if (pid == 0) {
                int rc = measure(path[i], &settings[k]);
                fflush(stdout);
                _exit(rc);
            }
            int status = 1;
            waitpid(pid, &status, 0);
            bad += status != 0;
        }
    const int all = n * (int)COUNT(settings);
    printf("%d of %d agree\n", all - bad, all);
    return bad != 0;
}

int main(int argc, char **argv) {
    log_set_level(LOG_ERROR);
    if (argc > 1) return paths(argc - 1, argv + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family),
        cmocka_unit_test(batch_cache_and_coded_keys),
        cmocka_unit_test(short_unrelated_prompts),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
