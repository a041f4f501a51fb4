/* How fast the recurrent layers are at the sizes of Qwen 3.5 27B (48 value heads, 16 key heads, 128 wide): one layer's
 * convolution and delta rule for many rows of one sequence and for one. Prints a table; asserts nothing.
 * make build/tests/bench/delta_bench && build/tests/bench/delta_bench [threads] [level] */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/device/device.h"

enum { HK = 16, HV = 48, W = 128, C = 2 * HK * W + HV * W, J = 4, T = 512 };

static float *filled(size_t n, float v) {
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = v * (float)((i * 2654435761u >> 20 & 255) - 127.5f) / 128;
    return p;
}

int main(int argc, char **argv) {
    error err = {0};
    device *d = device_cpu_open(
        &(device_opts){.threads = argc > 1 ? atoi(argv[1]) : 0, .rows_max = T, .level = argc > 2 ? argv[2] : NULL},
        &err);
    state_layer layer = {C, J, HV, W, W};
    state_store *st = d ? d->vt->state_new(d, &(state_spec){1, 1, &layer}, &err) : NULL;
    if (!st) return fprintf(stderr, "%s\n", err.msg), 1;
    float *x = filled((size_t)T * C, 1), *y = filled((size_t)T * C, 1), *w = filled((size_t)J * C, 0.3f);
    float *o = filled((size_t)T * HV * W, 1), *g = filled((size_t)T * HV, 0.1f), *b = filled((size_t)T * HV, 0.5f);
    for (int i = 0; i < T * HV; i++) g[i] += 0.9f, b[i] += 0.5f;
    printf("%s, %d threads, one layer of 27B\n%6s %14s %14s\n", device_cpu_level(d), pool_size(d->threads), "rows",
           "conv us/row", "delta us/row");
    static const int rows[] = {1, 16, T};
    for (size_t k = 0; k < COUNT(rows); k++) {
        int n = rows[k], runs = n == T ? 3 : 300 / n;
        step_seq seq = {.n_rows = n, .pos0 = 1};
        step s = {.n_rows = n, .n_seqs = 1, .seq = &seq, .state = st};
        tensor q = tensor_f32(y, n, C), head = {y, {C, W, 1, 1}, {n, HK, W, 1}, DT_F32, 3}, value = head;
        value.p = y + 2 * HK * W, value.dim[1] = HV;
        uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
        for (int r = 0; r < runs; r++) {
            uint64_t t0 = clock_ns();
            op_conv1d_state(d, q, tensor_f32(x, n, C), tensor_f32(w, J, C), 0, &s);
            uint64_t t1 = clock_ns();
            op_l2norm(d, head, head, 0.1f, 1e-6f);
            uint64_t t2 = clock_ns();
            op_delta_rule(d, tensor_f32(o, n, HV, W), head, head, value, tensor_f32(g, n, HV), tensor_f32(b, n, HV),
                          false, 0, &s);
            best[0] = MIN(best[0], t1 - t0), best[1] = MIN(best[1], clock_ns() - t2);
        }
        printf("%6d %14.1f %14.1f\n", n, best[0] / 1e3 / n, best[1] / 1e3 / n);
    }
    d->vt->state_free(d, st);
    device_close(d);
    free(x), free(y), free(w), free(o), free(g), free(b);
    return 0;
}
