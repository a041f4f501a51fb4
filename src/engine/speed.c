/* speed: what decoding could reach, and this machine's read bandwidth. Decoding reads the weights once a token, so the
 * one follows from the other. Not here: measuring a model (cli/verb_bench.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "../base/json.h"
#include "../base/limit.h"
#include "internal.h"

/* How much of the bandwidth a decode step gets: the rest is norms, attention's small parts, routing, the gaps between
 * products (spec/engine.md 8). */
static const double EFF_DENSE = 0.82, EFF_EXPERTS = 0.76;

double fit_decode_tps(const fit_report *r, int32_t context, double bandwidth_gbs) {
    size_t weights = r->plan.part[PLAN_WEIGHTS];
    bool experts = r->decode_bytes < weights / 2;
    double bytes = (double)r->decode_bytes + (double)r->kv_bytes_per_token * context + 2.0 * (double)r->state_bytes;
    return bytes > 0 ? bandwidth_gbs * 1e9 / bytes * (experts ? EFF_EXPERTS : EFF_DENSE) : 0;
}

typedef struct read_job {
    const uint64_t *p;
    size_t n; /* words */
    int parts;
    _Atomic uint64_t sum;
} read_job;

static void read_part(void *arg, int task, int worker) {
    read_job *j = arg;
    uint64_t s[8] = {0};
    size_t each = j->n / (size_t)j->parts / 8 * 8;
    for (const uint64_t *p = j->p + (size_t)task * each, *end = p + each; p < end; p += 8)
        for (int i = 0; i < 8; i++) s[i] ^= p[i];
    atomic_fetch_xor(&j->sum, s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7]);
}

/* The best of a few passes over memory larger than the caches. */
static double bandwidth_measure(int threads, size_t bytes) {
    enum { PASSES = 8, PART_BYTES = 1 << 20 };
    error none = {0};
    uint64_t *p = mem_try(bytes, 64, &none);
    if (!p) return 0;
    memset(p, 1, bytes);
    pool *workers = pool_new(threads);
    read_job j = {.p = p, .n = bytes / 8, .parts = (int)(bytes / PART_BYTES)};
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        uint64_t t0 = clock_ns();
        pool_run(workers, j.parts, read_part, &j);
        best = fmax(best, (double)bytes / (double)MAX(clock_ns() - t0, (uint64_t)1));
    }
    pool_free(workers);
    mem_try_free(p, bytes);
    return best;
}

/* Which machine a figure is of. */
void fit_processor(char *out, size_t n) {
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    snprintf(out, n, "cpu");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon || !colon[1]) continue;
        snprintf(out, n, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
}

double fit_bandwidth(int threads, size_t bytes_max, int64_t *measured_unix) {
    enum { MEASURE_BYTES = 256 << 20, LEAST_BYTES = 32 << 20 };
    char name[160], key[200];
    fit_processor(name, sizeof name);
    snprintf(key, sizeof key, "%s, %d threads, %zu MB", name, threads, limit_ram() >> 20);
    char *dir = path_cache(), *path = path_join(dir, "bandwidth.json");
    buf old = {0};
    error none = {0};
    arena *a = arena_new(1 << 20);
    const json *j = file_read(&old, path, 1 << 16, &none) ? json_read(a, buf_view(&old), NULL, &none) : NULL;
    double gbs = 0;
    if (str_is(json_str(json_get(j, "machine"), STR("")), key)) {
        gbs = json_real(json_get(j, "gbs"), 0);
        *measured_unix = json_int(json_get(j, "measured_unix"), 0);
    }
    size_t bytes = MIN((size_t)MEASURE_BYTES, MIN(bytes_max, limit_memory() / 8)) & ~(size_t)0xfffff;
    if (!(gbs > 0) && bytes >= LEAST_BYTES) {
        gbs = bandwidth_measure(threads, bytes);
        *measured_unix = clock_unix();
        buf b = {0};
        buf_puts(&b, "{\"machine\":");
        json_write_string(&b, str_of(key));
        buf_printf(&b, ",\"gbs\":%.3f,\"measured_unix\":%lld}\n", gbs, (long long)*measured_unix);
        error unwritten = {0};
        if (gbs > 0 && (!dir_make(dir, &unwritten) || !file_write_atomic(path, b.p, b.n, &unwritten)))
            log_warn("the bandwidth will be measured again: %s", unwritten.msg);
        buf_free(&b);
    }
    arena_free(a);
    buf_free(&old);
    free(dir);
    free(path);
    return gbs;
}
