/* How fast attention is: decode at depth against the memory bandwidth, prefill against the f32 multiply-add rate of one
 * core, and the small operations. Prints a table; asserts nothing. make build/tests/bench/attend_bench &&
 * build/tests/bench/attend_bench [threads] [level] */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/device/device.h"

typedef struct shape {
    const char *name;
    int heads, ratio, width;
    int values;   /* latent: width of the part of a key that is the value; 0: values of their own, as wide */
    kv_code k, v; /* how they are kept */
} shape;

static float *floats(int64_t n) {
    float *p = malloc(sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) p[i] = (float)((i * 2654435761u >> 8) & 0xffff) / 65536.0f - 0.5f;
    return p;
}

/* Seconds of one attend of `rows` rows behind `depth` cached positions; the best of several. */
static double attend_time(device *d, const shape *s, dtype type, int depth, int rows, double *append) {
    int qh = s->heads * s->ratio, n = (depth + rows + KV_PAGE - 1) / KV_PAGE;
    int vw = s->values ? s->values : s->width;
    kv_layer l = {.heads = s->heads, .k_width = s->width, .v_width = vw, .latent = s->values > 0, .k = s->k, .v = s->v};
    kv_spec spec = {.n_layers = 1, .n_groups = 1, .layer = &l, .n_pages = {n}, .type = type};
    error err = {0};
    kv_cache *kv = d->vt->kv_new(d, &spec, &err);
    if (!kv) return fprintf(stderr, "%s\n", err.msg), 0;
    int32_t *page = malloc(sizeof *page * (size_t)n);
    for (int i = 0; i < n; i++) page[i] = i;
    int fill = MAX(rows, 512);
    float *q = floats((int64_t)rows * qh * s->width), *k = floats((int64_t)fill * s->heads * s->width),
          *o = floats((int64_t)rows * qh * vw);
    for (int at = 0; at < depth; at += 512) {
        step_seq ss = {.n_rows = MIN(512, depth - at), .pos0 = at, .page = {page}};
        step st = {.n_rows = ss.n_rows, .n_seqs = 1, .seq = &ss};
        tensor t = tensor_f32(k, ss.n_rows, s->heads, s->width);
        op_kv_append(d, kv, 0, t, t, &st);
    }
    step_seq ss = {.n_rows = rows, .pos0 = depth, .page = {page}};
    step st = {.n_rows = rows, .n_seqs = 1, .seq = &ss};
    attn a = {.scale = 0.1f};
    double best = 1e9;
    *append = 1e9;
    for (int i = 0; i < 7; i++) {
        tensor t = tensor_f32(k, rows, s->heads, s->width);
        uint64_t t0 = clock_ns();
        op_kv_append(d, kv, 0, t, t, &st);
        uint64_t t1 = clock_ns();
        op_attend(d, tensor_f32(o, rows, qh, vw), tensor_f32(q, rows, qh, s->width), kv, 0, &st, &a);
        uint64_t t2 = clock_ns();
        *append = MIN(*append, (double)(t1 - t0) * 1e-9);
        best = MIN(best, (double)(t2 - t1) * 1e-9);
    }
    free(q), free(k), free(o), free(page);
    d->vt->kv_free(d, kv);
    return best;
}

/* What coding costs and saves, beside f16. */
static void coded(device *d) {
    static const shape kinds[] = {{"f16", 8, 4, 128, 0, {0}, {0}},
                                  {"8 bits", 8, 4, 128, 0, {8, false, 64}, {8, false, 64}},
                                  {"4 bits", 8, 4, 128, 0, {4, false, 64}, {4, false, 64}},
                                  {"turbo k8v3", 8, 4, 128, 0, {8, false, 64}, {3, true, 0}},
                                  {"turbo k4v4", 8, 4, 128, 0, {4, false, 64}, {4, true, 0}}};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const shape *s = &kinds[i];
        double append, one, many = attend_time(d, s, DT_F16, 4096, 512, &append);
        one = attend_time(d, s, DT_F16, 32768, 1, &(double){0});
        printf(
            "8 kv heads of 128, 4 queries each, %-10s decode at 32k: %.3f ms; prefill 512 behind 4096: %.2f ms; append "
            "of 512: %.1f µs\n",
            s->name, one * 1e3, many * 1e3, append * 1e6);
    }
}

static void small_ops(device *d) {
    enum { W = 4096, N = 4096 };
    float *x = floats((int64_t)N * W), *y = floats((int64_t)N * W), *w = floats(W);
    for (int rows = 1; rows <= 512; rows *= 512) {
        tensor tx = tensor_f32(x, rows, W), ty = tensor_f32(y, rows, W), tw = tensor_f32(w, W);
        int reps = rows == 1 ? 2000 : 10;
        uint64_t t0 = clock_ns();
        for (int i = 0; i < reps; i++) op_rms_norm(d, ty, tx, tw, 1e-5f);
        uint64_t t1 = clock_ns();
        for (int i = 0; i < reps; i++) op_act_mul(d, ty, tx, tx, ACT_SILU);
        uint64_t t2 = clock_ns();
        for (int i = 0; i < reps; i++) op_add(d, ty, tx);
        uint64_t t3 = clock_ns();
        printf("%4d rows of %d: rms_norm %.2f µs, silu·u %.2f µs, add %.2f µs\n", rows, W,
               (double)(t1 - t0) / reps * 1e-3, (double)(t2 - t1) / reps * 1e-3, (double)(t3 - t2) / reps * 1e-3);
    }
    free(x), free(y), free(w);
}

int main(int argc, char **argv) {
    error err = {0};
    device_opts o = {.threads = argc > 1 ? atoi(argv[1]) : 0, .level = argc > 2 ? argv[2] : NULL, .rows_max = 2048};
    device *d = device_cpu_open(&o, &err);
    if (!d) return fprintf(stderr, "%s\n", err.msg), 1;
    printf("level %s, %d threads\n", device_cpu_level(d), pool_size(d->threads));
    static const shape shapes[] = {{"8 kv heads of 128, 4 queries each", 8, 4, 128, 0, {0}, {0}},
                                   {"3 kv heads of 64, 3 queries each", 3, 3, 64, 0, {0}, {0}},
                                   {"2 kv heads of 128, 7 queries each", 2, 7, 128, 0, {0}, {0}},
                                   {"8 heads of 128, 1 query each", 8, 1, 128, 0, {0}, {0}},
                                   {"latent 576 of 512, 64 queries", 1, 64, 576, 512, {0}, {0}}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const shape *s = &shapes[i];
        double append, t = attend_time(d, s, DT_F16, 128, 1, &append);
        printf("%-36s decode at 128: %.2f µs; append %.2f µs\n", s->name, t * 1e6, append * 1e6);
        t = attend_time(d, s, DT_F16, 32768, 1, &append);
        double bytes = 2.0 * 32768 * s->heads * (s->values ? s->width : 2 * s->width);
        printf("%-36s decode at 32k: %.3f ms, %.1f GB/s; append %.1f µs\n", s->name, t * 1e3, bytes / t * 1e-9,
               append * 1e6);
        for (int depth = 0; depth <= 4096; depth += 4096) {
            t = attend_time(d, s, DT_F16, depth, 512, &append);
            double macs = 1.0 * s->heads * s->ratio * (s->width + (s->values ? s->values : s->width)) *
                          (512.0 * depth + 512.0 * 513 / 2);
            printf("%-36s prefill 512 behind %d: %.2f ms, %.1f G multiply-adds/s; append %.1f µs\n", s->name, depth,
                   t * 1e3, macs / t * 1e-9, append * 1e6);
        }
    }
    coded(d);
    small_ops(d);
    device_close(d);
    return 0;
}
