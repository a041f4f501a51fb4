/* `hearth bench [MODEL]`: prefill and decode rates by prompt length and depth, beside the memory bandwidth measured in
 * the same run. Bytes per token: weights read once and the keys and values of every cached position. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
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

/* Rates at a list of lengths; values and rates have n. */
typedef struct series {
    int32_t *at;  /* owns */
    double *rate; /* owns */
    size_t n;
} series;

static bool series_measure(const options *o, engine *e, const char *list, const char *flag, bool decode, series *s,
                           error *err) {
    if (!options_numbers(list, &s->at, &s->n, flag, err)) return false;
    s->rate = mem_alloc((s->n + 1) * sizeof *s->rate);
    for (size_t i = 0; i < s->n; i++)
        if (!measure(o, e, (size_t)MAX(s->at[i], 1), decode, &s->rate[i], err)) return false;
    return true;
}

static void series_free(series *s) {
    free(s->at);
    free(s->rate);
}

typedef struct result {
    series prefill, decode;
    double load_s, rss_mb, bandwidth;
    int threads;
} result;

static double bytes_at(const options *o, const model_info *m, int32_t depth) {
    double mean_depth = depth + (double)o->tokens / 2;
    return (double)m->decode_bytes + mean_depth * (double)m->kv_bytes_per_token + (double)m->state_bytes;
}

static void print_json(const options *o, const engine *e, const result *r) {
    buf out = {0};
    buf_puts(&out, "{\"model\":");
    json_write_string(&out, str_of(engine_model_id(e)));
    buf_printf(
        &out,
        ",\"threads\":%d,\"numerics\":\"%s\",\"load_s\":%.4f,\"rss_mb\":%.1f,\"bandwidth_gbs\":%.2f,\"prefill\":[",
        r->threads, o->numerics, r->load_s, r->rss_mb, r->bandwidth / 1e9);
    for (size_t i = 0; i < r->prefill.n; i++)
        buf_printf(&out, "%s{\"tokens\":%d,\"tok_s\":%.2f}", i ? "," : "", r->prefill.at[i], r->prefill.rate[i]);
    buf_puts(&out, "],\"decode\":[");
    for (size_t i = 0; i < r->decode.n; i++) {
        double bytes = bytes_at(o, engine_model(e), r->decode.at[i]), rate = r->decode.rate[i];
        buf_printf(&out, "%s{\"depth\":%d,\"tok_s\":%.2f,\"bytes_per_token\":%.0f,\"bandwidth_share\":%.4f}",
                   i ? "," : "", r->decode.at[i], rate, bytes, bytes * rate / r->bandwidth);
    }
    printf("%s]}\n", out.p);
    buf_free(&out);
}

static void print_table(const options *o, const engine *e, const result *r) {
    printf("%s, %d threads, loaded in %.3f s, %.0f MB resident, read bandwidth %.1f GB/s\n", engine_model_id(e),
           r->threads, r->load_s, r->rss_mb, r->bandwidth / 1e9);
    for (size_t i = 0; i < r->prefill.n; i++)
        printf("prefill %6d tokens   %9.1f tok/s\n", r->prefill.at[i], r->prefill.rate[i]);
    for (size_t i = 0; i < r->decode.n; i++) {
        double bytes = bytes_at(o, engine_model(e), r->decode.at[i]), rate = r->decode.rate[i];
        printf("decode at depth %6d %9.1f tok/s  %.1f MB a token, %.0f %% of the bandwidth\n", r->decode.at[i], rate,
               bytes / 1e6, 100 * bytes * rate / r->bandwidth);
    }
}

/* The bandwidth comes last: its buffer would count into the resident memory. */
static bool bench(const options *o, engine *e, result *r, error *err) {
    if (!series_measure(o, e, o->prompts, "prompts", false, &r->prefill, err)) return false;
    if (!series_measure(o, e, o->depths, "depths", true, &r->decode, err)) return false;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    r->rss_mb = (double)usage.ru_maxrss / 1024;
    r->bandwidth = read_bandwidth(r->threads, err);
    return r->bandwidth > 0;
}

int verb_bench(const options *o) {
    error err = {0};
    if (o->n_args > 1) {
        error_set(&err, ERR_USAGE, "bench takes one model, not '%s'", o->args[1]);
        return cli_fail(&err);
    }
    result r = {.threads = o->threads ? (int)o->threads : pool_threads_default()};
    char *path = cli_model_path(o, o->n_args ? o->args[0] : NULL, &err);
    uint64_t from = clock_ns();
    engine *e = path ? cli_engine(o, path, true, &err) : NULL;
    r.load_s = (double)(clock_ns() - from) / 1e9;
    bool ok = e && bench(o, e, &r, &err);
    if (ok) (o->json ? print_json : print_table)(o, e, &r);
    engine_close(e);
    series_free(&r.prefill);
    series_free(&r.decode);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
