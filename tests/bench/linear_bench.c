/* Micro-benchmark of matrix products, beside the machine's limits measured in the same minutes.
 *
 *   linear_bench [decode|prefill|pack] [substring of a format's name] [threads]
 *
 * decode: one row against matrices that together exceed the last-level cache; GB/s of packed bytes and the share of
 * what plain reading reaches. prefill: many rows; G multiply-adds/s and the share of the vpdpbusd peak (two byte
 * products a weight; int8: one). Limit and product alternate, each figure is the median, so that a noisy neighbour hits
 * both. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../src/device/cpu/linear.h"

enum { REPS = 9, DECODE_BYTES = 320 << 20, READ_BYTES = 320 << 20, K_MAX = 6144, N_MAX = 6144, T_MAX = 512 };

typedef struct format_row {
    const char *name;
    weight_format format;
    int bits, group;
    dtype scale;
} format_row;
static const format_row formats[] = {
    {"affine4-g64", WF_AFFINE, 4, 64, DT_BF16},
    {"affine4-g32", WF_AFFINE, 4, 32, DT_BF16},
    {"affine4-g128", WF_AFFINE, 4, 128, DT_BF16},
    {"affine2-g64", WF_AFFINE, 2, 64, DT_BF16},
    {"affine3-g64", WF_AFFINE, 3, 64, DT_BF16},
    {"affine5-g64", WF_AFFINE, 5, 64, DT_BF16},
    {"affine6-g64", WF_AFFINE, 6, 64, DT_BF16},
    {"affine8-g64", WF_AFFINE, 8, 64, DT_BF16},
    {"mxfp4", WF_MXFP4, 4, 32, DT_U8},
    {"nvfp4", WF_NVFP4, 4, 16, DT_U8},
    {"mxfp8", WF_MXFP8, 8, 32, DT_U8},
    {"q4_0", WF_Q4_0, 0, 0, DT_F16},
    {"q4_1", WF_Q4_1, 0, 0, DT_F16},
    {"q5_0", WF_Q5_0, 0, 0, DT_F16},
    {"q8_0", WF_Q8_0, 0, 0, DT_F16},
    {"q2_k", WF_Q2_K, 0, 0, DT_F16},
    {"q3_k", WF_Q3_K, 0, 0, DT_F16},
    {"q4_k", WF_Q4_K, 0, 0, DT_F16},
    {"q5_k", WF_Q5_K, 0, 0, DT_F16},
    {"q6_k", WF_Q6_K, 0, 0, DT_F16},
    {"iq4_nl", WF_IQ4_NL, 0, 0, DT_F16},
    {"iq4_xs", WF_IQ4_XS, 0, 0, DT_F16},
    {"bf16", WF_BF16, 0, 0, DT_BF16},
    {"f16", WF_F16, 0, 0, DT_F16},
    {"f32", WF_F32, 0, 0, DT_F32},
};
static const struct { int N, K; } shapes[] = {{6144, 2048}, {2048, 6144}, {1536, 576}, {576, 1536}};

static uint8_t *codes,
    *scales; /* one source for all: timing does not depend on the values, as long as they are finite */
static float *x, *y;

static int by_value(const void *a, const void *b) {
    double u = *(const double *)a, v = *(const double *)b;
    return u < v ? -1 : u > v;
}
static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */
typedef struct limits_job {
    const uint8_t *p;
    size_t bytes_each;
} limits_job;

__attribute__((target("avx512f"))) static void read_task(void *arg, int task, int worker) {
    const limits_job *j = arg;
    const uint8_t *p = j->p + (size_t)task * j->bytes_each;
    for (size_t i = 0; i < j->bytes_each; i += 256)
        __asm__ volatile("vpxorq (%0), %%zmm0, %%zmm0\n vpxorq 64(%0), %%zmm1, %%zmm1\n"
                         "vpxorq 128(%0), %%zmm2, %%zmm2\n vpxorq 192(%0), %%zmm3, %%zmm3" ::"r"(p + i)
                         : "xmm0", "xmm1", "xmm2", "xmm3");
}
static double read_rate(pool *threads, const uint8_t *p) { /* GB/s */
    int n = pool_size(threads);
    limits_job j = {p, (size_t)READ_BYTES / (size_t)n / 256 * 256};
    uint64_t t = clock_ns();
    pool_run(threads, n, read_task, &j);
    return (double)j.bytes_each * n / (double)(clock_ns() - t);
}

enum { PEAK_ROUNDS = 4000000 };
#define DP(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\n"
__attribute__((target("avx512f,avx512vnni"))) static void peak_task(void *arg, int task, int worker) {
    for (int i = 0; i < PEAK_ROUNDS; i++)
        __asm__ volatile(DP(0) DP(1) DP(2) DP(3) DP(4) DP(5) DP(6) DP(7) DP(8) DP(9) DP(10) DP(11)::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                               "xmm11");
}
static double peak_rate(pool *threads) { /* G byte multiply-adds/s */
    int n = pool_size(threads);
    uint64_t t = clock_ns();
    pool_run(threads, n, peak_task, NULL);
    return 64.0 * 12 * PEAK_ROUNDS * n / (double)(clock_ns() - t);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */
static weight_src source(const format_row *f, int N, int K) {
    return (weight_src){.format = f->format,
                        .n_experts = 1,
                        .n_out = N,
                        .n_in = K,
                        .bits = f->bits,
                        .group = f->group,
                        .codes = codes,
                        .scales = scales,
                        .biases = scales,
                        .scale_type = f->scale,
                        .name = f->name};
}

static void must(bool ok, error *err) {
    if (ok) return;
    fprintf(stderr, "%s\n", err->msg);
    exit(1);
}

static void decode(device *d, const format_row *f, int N, int K) {
    error err = {0};
    weight_src src = source(f, N, K);
    int n = (int)(DECODE_BYTES / d->vt->packed_bytes(d, &src)) + 1;
    weight *w = mem_alloc(sizeof *w * (size_t)n);
    double rate[REPS], limit[REPS], ns = 0;
    for (int i = 0; i < n; i++) must(d->vt->pack(d, &w[i], &src, &err), &err);
    for (int r = -1; r < REPS; r++) {
        uint64_t t = clock_ns();
        for (int i = 0; i < n; i++) op_linear(d, tensor_f32(y, 1, N), tensor_f32(x, 1, K), &w[i]);
        ns = (double)(clock_ns() - t) / n;
        if (r < 0) continue;
        rate[r] = (double)w->bytes / ns;
        limit[r] = read_rate(d->threads, codes);
    }
    double got = median(rate, REPS), of = median(limit, REPS);
    printf("decode  %-13s %5d x %-5d threads %d  %6.2f GB/s  read %6.2f  share %3.0f %%  bits/weight %.2f\n", f->name,
           N, K, pool_size(d->threads), got, of, 100 * got / of, 8.0 * (double)w->bytes / N / K);
    for (int i = 0; i < n; i++) d->vt->unpack(d, &w[i]);
    free(w);
}

static void prefill(device *d, const format_row *f, int N, int K, int T) {
    error err = {0};
    weight_src src = source(f, N, K);
    weight w = {0};
    double rate[REPS], limit[REPS];
    must(d->vt->pack(d, &w, &src, &err), &err);
    int repeat = (int)(1.5e9 / ((double)N * K * T)) + 1;
    for (int r = -1; r < REPS; r++) {
        uint64_t t = clock_ns();
        for (int i = 0; i < repeat; i++) op_linear(d, tensor_f32(y, T, N), tensor_f32(x, T, K), &w);
        double ns = (double)(clock_ns() - t) / repeat;
        if (r < 0) continue;
        rate[r] = (double)N * K * T / ns;
        limit[r] = peak_rate(d->threads) / (d->num == NUM_INT8 ? 1 : 2);
    }
    double got = median(rate, REPS), of = median(limit, REPS);
    printf("prefill %-13s %5d x %-5d T %-4d threads %d %s  %6.1f G/s  peak %6.1f  share %3.0f %%\n", f->name, N, K, T,
           pool_size(d->threads), d->num == NUM_INT8 ? "int8   " : "default", got, of, 100 * got / of);
    d->vt->unpack(d, &w);
}

static void pack_rate(device *d, const format_row *f, int N, int K) {
    error err = {0};
    weight_src src = source(f, N, K);
    double rate[REPS];
    for (int r = 0; r < REPS; r++) {
        weight w = {0};
        uint64_t t = clock_ns();
        must(d->vt->pack(d, &w, &src, &err), &err);
        rate[r] = (double)weight_src_bytes(&src) / (double)(clock_ns() - t);
        d->vt->unpack(d, &w);
    }
    printf("pack    %-13s %5d x %-5d threads %d  %6.2f GB/s of the file\n", f->name, N, K, pool_size(d->threads),
           median(rate, REPS));
}

static device *open_device(numerics num, int threads) {
    error err = {0};
    device *d = device_cpu_open(&(device_opts){.num = num, .threads = threads}, &err);
    must(d != NULL, &err);
    return d;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *only = argc > 2 ? argv[2] : "";
    int threads = argc > 3 ? atoi(argv[3]) : 0;
    error err = {0};
    must((codes = mem_try(READ_BYTES, 64, &err)) != NULL, &err);
    scales = mem_alloc((size_t)N_MAX * K_MAX / 16 * 4);
    x = mem_alloc(sizeof *x * T_MAX * K_MAX);
    y = mem_alloc(sizeof *y * T_MAX * N_MAX);
    memset(codes, 0x22, READ_BYTES); /* as f16 a small number */
    memset(scales, 0x22, (size_t)N_MAX * K_MAX / 16 * 4);
    for (size_t i = 0; i < (size_t)T_MAX * K_MAX; i++) x[i] = (float)(i * 2654435761u % 1000) * 1e-3f - 0.5f;
    device *d = open_device(NUM_DEFAULT, threads), *d8 = open_device(NUM_INT8, threads);
    printf("level %s, threads %d\n", device_cpu_level(d), pool_size(d->threads));
    for (size_t i = 0; i < COUNT(formats); i++) {
        if (!strstr(formats[i].name, only)) continue;
        for (size_t s = 0; s < COUNT(shapes); s++) {
            int N = shapes[s].N, K = shapes[s].K;
            if ((formats[i].group == 128 && K % 128) || (strstr(formats[i].name, "_k") && K % 256)) continue;
            if (formats[i].format == WF_IQ4_XS && K % 256) continue;
            if (strstr("decode", what)) decode(d, &formats[i], N, K);
            if (strstr("prefill", what)) prefill(d, &formats[i], N, K, T_MAX);
            if (strstr("prefill", what)) prefill(d8, &formats[i], N, K, T_MAX);
            if (strstr("pack", what)) pack_rate(d, &formats[i], N, K);
            fflush(stdout);
        }
    }
    device_close(d);
    device_close(d8);
    return 0;
}
