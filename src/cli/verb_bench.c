/* `hearth bench [MODEL]`: prefill and decode rates by prompt length and depth, beside the memory bandwidth measured in
 * the same run. Bytes per token: weights read once and the keys and values of every cached position. */
#include <stdio.h>
#include <stdlib.h>
#include "../base/pool.h"
#include "cli.h"

enum { SWEEP_BYTES = 512 << 20, SWEEPS = 5 };

/* ---- read bandwidth --------------------------------------------------------------------------------------------- */
typedef uint64_t lanes __attribute__((vector_size(64)));
typedef struct sweep {
    const lanes *p;
    size_t n;          /* lanes of one task */
    uint64_t sum[256]; /* one a task, so that the reads are not optimised away */
} sweep;

static void read_part(void *arg, int task, int worker) {
    sweep *s = arg;
    const lanes *p = s->p + s->n * (size_t)task;
    lanes a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i + 4 <= s->n; i += 4) a += p[i], b += p[i + 1], c += p[i + 2], d += p[i + 3];
    a += b + c + d;
    for (int i = 0; i < 8; i++) s->sum[task] += a[i];
}

/* Bytes a second with n threads: the best of a few sweeps over a buffer far larger than the caches. */
static double read_bandwidth(int n, error *err) {
    void *p = mem_try(SWEEP_BYTES, 64, err);
    if (!p) return 0;
    memset(p, 1, SWEEP_BYTES);
    pool *threads = pool_new(n);
    sweep s = {.p = p, .n = SWEEP_BYTES / sizeof(lanes) / (size_t)pool_size(threads)};
    double best = 0;
    for (int i = 0; i < SWEEPS; i++) {
        uint64_t from = clock_ns();
        pool_run(threads, pool_size(threads), read_part, &s);
        double rate = (double)SWEEP_BYTES / (double)(clock_ns() - from) * 1e9;
        best = MAX(best, rate);
    }
    pool_free(threads);
    mem_try_free(p, SWEEP_BYTES);
    return best;
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* A prompt of n ids spread over the vocabulary, another one each time so that no cache can help. */
static void make_prompt(ids *v, size_t n, int32_t vocab, uint64_t salt) {
    v->n = 0;
    for (size_t i = 0; i < n; i++) {
        salt = salt * 6364136223846793005u + 1442695040888963407u;
        ids_push(v, (int32_t)((salt >> 33) % (uint64_t)vocab));
    }
}

static bool run_once(engine *e, const ids *prompt, int32_t tokens, gen_stats *out, error *err) {
    gen_opts g = {
        .prompt = prompt->p, .n_prompt = prompt->n, .max_tokens = tokens, .ignore_eos = true, .sample.top_p = 1};
    gen *run = engine_submit(e, &g, err);
    if (!run) return false;
    bool ok = true;
    for (gen_event ev; gen_next(run, &ev, -1) && ev.kind != GEN_DONE;)
        ;
    gen_stats_get(run, out);
    if (out->generated_tokens != tokens)
        ok = error_set(err, ERR_INTERNAL, "%d of %d tokens came", out->generated_tokens, tokens);
    gen_free(run);
    return ok;
}

/* Medians over o->runs of prefill (tokens 1) or decode (o->tokens) rates behind a prompt of n ids. */
static bool measure(const options *o, engine *e, size_t n, bool decode, double *rate, error *err) {
    double *v = mem_alloc((size_t)o->runs * sizeof *v);
    ids prompt = {0};
    bool ok = true;
    for (int64_t i = 0; ok && i < o->runs; i++) {
        gen_stats s;
        make_prompt(&prompt, n, engine_model(e)->vocab, random_u64());
        ok = run_once(e, &prompt, decode ? (int32_t)o->tokens + 1 : 1, &s, err);
        v[i] = decode ? (double)o->tokens / ((double)s.decode_ns / 1e9) : (double)n / ((double)s.prefill_ns / 1e9);
    }
    if (ok) *rate = median(v, (int)o->runs);
    ids_free(&prompt);
    free(v);
    return ok;
}

static bool bench(const options *o, engine *e, buf *out, error *err) {
    const model_info *m = engine_model(e);
    int threads = o->threads ? (int)o->threads : pool_threads_default();
    double bandwidth = read_bandwidth(threads, err);
    int32_t *prompts = NULL, *depths = NULL;
    size_t n_prompts = 0, n_depths = 0;
    bool ok = bandwidth > 0 && options_numbers(o->prompts, &prompts, &n_prompts, "prompts", err) &&
              options_numbers(o->depths, &depths, &n_depths, "depths", err);
    buf_puts(out, "{\"model\":");
    json_write_string(out, str_of(engine_model_id(e)));
    buf_printf(out, ",\"threads\":%d,\"numerics\":\"%s\",\"bandwidth_gbs\":%.2f,\"prefill\":[", threads, o->numerics,
               bandwidth / 1e9);
    if (!o->json) printf("%s, %d threads, read bandwidth %.1f GB/s\n", engine_model_id(e), threads, bandwidth / 1e9);
    for (size_t i = 0; ok && i < n_prompts; i++) {
        double rate;
        ok = measure(o, e, (size_t)prompts[i], false, &rate, err);
        if (!ok) break;
        buf_printf(out, "%s{\"tokens\":%d,\"tok_s\":%.2f}", i ? "," : "", prompts[i], rate);
        if (!o->json) printf("prefill %6d tokens  %9.1f tok/s\n", prompts[i], rate);
    }
    buf_puts(out, "],\"decode\":[");
    for (size_t i = 0; ok && i < n_depths; i++) {
        double rate, depth = depths[i] + (double)o->tokens / 2;
        ok = measure(o, e, (size_t)MAX(depths[i], 1), true, &rate, err);
        if (!ok) break;
        double bytes = (double)m->decode_bytes + depth * (double)m->kv_bytes_per_token + (double)m->state_bytes;
        buf_printf(out, "%s{\"depth\":%d,\"tok_s\":%.2f,\"bytes_per_token\":%.0f,\"bandwidth_share\":%.4f}",
                   i ? "," : "", depths[i], rate, bytes, bytes * rate / bandwidth);
        if (!o->json)
            printf("decode at depth %6d %9.1f tok/s  %.1f MB a token, %.0f %% of the bandwidth\n", depths[i], rate,
                   bytes / 1e6, 100 * bytes * rate / bandwidth);
    }
    buf_puts(out, "]}\n");
    free(prompts);
    free(depths);
    return ok;
}

int verb_bench(const options *o) {
    error err = {0};
    if (o->n_args > 1) {
        error_set(&err, ERR_USAGE, "bench takes one model, not '%s'", o->args[1]);
        return cli_fail(&err);
    }
    buf out = {0};
    engine *e = NULL;
    char *path = cli_model_path(o, o->n_args ? o->args[0] : NULL, &err);
    bool ok = path && (e = cli_engine(o, path, true, &err)) && bench(o, e, &out, &err);
    if (ok && o->json) fwrite(out.p, 1, out.n, stdout);
    engine_close(e);
    buf_free(&out);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
