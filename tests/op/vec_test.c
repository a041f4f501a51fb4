/* Every operation of the CPU device but the matrix products, at every level this machine has: equal bytes between
 * levels, between single rows and batches, between chunkings and thread counts; and the distance to a reference in
 * double. Inputs and outputs end at a guard page. Attention is in attend_test.c. */
#include <math.h>
#include <stdlib.h>
#include "op_help.h"

enum { W_MAX = 1100 };
static device *dev[LEVELS];

static int setup(void **state) {
    for (int l = 0; l < LEVELS; l++) dev[l] = level_open(l, 2);
    return 0;
}
static int teardown(void **state) {
    for (int l = 0; l < LEVELS; l++) device_close(dev[l]);
    return 0;
}

static const int widths[] = {1, 2, 7, 16, 17, 31, 64, 100, 576, 1025};
static const int counts[] = {1, 3, 40};

/* One operation on x [T,W] (and u [T,W], w [W], b [W]) into y; every op is brought to this form. */
typedef struct row_op {
    const char *name;
    void (*run)(device *d, tensor y, tensor x, tensor u, tensor w, tensor b);
    void (*want)(double *y, const float *x, const float *u, const float *w, const float *b, int n);
    double bound; /* of |y - want| against max(|want|, floor) */
    double floor;
} row_op;

static void copy_to(tensor y, tensor x) {
    for (int t = 0; t < x.dim[0]; t++) memcpy(tensor_row(y, t), tensor_row(x, t), sizeof(float) * (size_t)x.dim[1]);
}
static double sig(double x) {
    return 1 / (1 + exp(-x));
}
static double want_of(act a, double x) {
    switch (a) {
    case ACT_SILU: return x * sig(x);
    case ACT_GELU_ERF: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACT_RELU: return x > 0 ? x : 0;
    default: return sig(x);
    }
}
#define ACT_CASE(fn, a)                                                                                             \
    static void run_##fn(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {                             \
        op_act(d, y, x, a);                                                                                         \
    }                                                                                                               \
    static void want_##fn(double *y, const float *x, const float *u, const float *w, const float *b, int n) {       \
        for (int i = 0; i < n; i++) y[i] = want_of(a, x[i]);                                                        \
    }                                                                                                               \
    static void run_##fn##_mul(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {                       \
        op_act_mul(d, y, x, u, a);                                                                                  \
    }                                                                                                               \
    static void want_##fn##_mul(double *y, const float *x, const float *u, const float *w, const float *b, int n) { \
        for (int i = 0; i < n; i++) y[i] = want_of(a, x[i]) * u[i];                                                 \
    }
ACT_CASE(silu, ACT_SILU)
ACT_CASE(gelu_erf, ACT_GELU_ERF)
ACT_CASE(gelu_tanh, ACT_GELU_TANH)
ACT_CASE(relu, ACT_RELU)
ACT_CASE(sigmoid, ACT_SIGMOID)

static void run_rms(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    op_rms_norm(d, y, x, w, 1e-5f);
}
static void run_rms_plain(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    op_rms_norm(d, y, x, (tensor){0}, 1e-5f);
}
static void rms_want(double *y, const double *x, const float *w, int n) {
    double s = 0;
    for (int i = 0; i < n; i++) s += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(s / n + 1e-5f) * (w ? w[i] : 1);
}
static void want_rms(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    double v[W_MAX];
    for (int i = 0; i < n; i++) v[i] = x[i];
    rms_want(y, v, w, n);
}
static void want_rms_plain(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    want_rms(y, x, u, NULL, b, n);
}
static void run_add_rms(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    op_add_rms_norm(d, y, x, u, w, 1e-5f);
}
static void want_add_rms(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    double v[W_MAX];
    for (int i = 0; i < n; i++) v[i] = (double)x[i] + u[i];
    rms_want(y, v, w, n);
}
static void run_layer(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    op_layer_norm(d, y, x, w, b, 1e-5f);
}
static void want_layer(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    double m = 0, s = 0;
    for (int i = 0; i < n; i++) m += x[i];
    m /= n;
    for (int i = 0; i < n; i++) s += (x[i] - m) * (x[i] - m);
    for (int i = 0; i < n; i++) y[i] = (x[i] - m) / sqrt(s / n + 1e-5f) * w[i] + b[i];
}
static void run_add(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    copy_to(y, x);
    op_add(d, y, u);
}
static void want_add(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    for (int i = 0; i < n; i++) y[i] = (double)x[i] + u[i];
}
static void run_scale(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    copy_to(y, x);
    op_scale(d, y, 0.3f);
}
static void want_scale(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    for (int i = 0; i < n; i++) y[i] = (double)x[i] * 0.3f;
}
static void run_softcap(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    copy_to(y, x);
    op_softcap(d, y, 3.0f);
}
static void want_softcap(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    for (int i = 0; i < n; i++) y[i] = 3 * tanh(x[i] / 3.0);
}
static void run_gather(device *d, tensor y, tensor x, tensor u, tensor w, tensor b) {
    int32_t rows[64];
    for (int t = 0; t < y.dim[0]; t++) rows[t] = t;
    op_gather(d, y, x, rows);
}
static void want_gather(double *y, const float *x, const float *u, const float *w, const float *b, int n) {
    for (int i = 0; i < n; i++) y[i] = x[i];
}

#define ULP 0x1p-24
#define CASE(name, bound, floor) \
    { #name, run_##name, want_##name, bound, floor }
static const row_op ops[] = {
    CASE(silu, 6 * ULP, 1e-30),    CASE(silu_mul, 7 * ULP, 1e-30),
    CASE(gelu_erf, 4 * ULP, 1),    CASE(gelu_erf_mul, 8 * ULP, 1),
    CASE(gelu_tanh, 6 * ULP, 1),   CASE(gelu_tanh_mul, 8 * ULP, 1),
    CASE(relu, 0, 1e-30),          CASE(relu_mul, 1 * ULP, 1e-30),
    CASE(sigmoid, 5 * ULP, 1e-30), CASE(sigmoid_mul, 6 * ULP, 1e-30),
    CASE(rms, 24 * ULP, 1e-3),     CASE(rms_plain, 24 * ULP, 1e-3),
    CASE(add_rms, 24 * ULP, 1),    CASE(layer, 40 * ULP, 1),
    CASE(add, 1 * ULP, 1e-30),     CASE(scale, 1 * ULP, 1e-30),
    CASE(softcap, 6 * ULP, 1e-30), CASE(gather, 0, 1e-30),
};

static float draw(int kind) {
    float x = rnd();
    return kind == 0 ? 4 * x : kind == 1 ? 30 * x * x * x : x * 0x1p-12f;
}

static void rows_case(const row_op *op, int n, int w, int kind) {
    guarded x = guarded_new(n * w), u = guarded_new(n * w), wt = guarded_new(w), b = guarded_new(w),
            y = guarded_new(n * w);
    float *first = malloc(sizeof(float) * (size_t)(n * w)), *keep = malloc(sizeof(float) * (size_t)(n * w));
    for (int i = 0; i < n * w; i++) keep[i] = draw(kind), u.p[i] = rnd();
    for (int i = 0; i < w; i++) wt.p[i] = rnd(), b.p[i] = rnd();
    tensor tw = tensor_f32(wt.p, w), tb = tensor_f32(b.p, w);
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        for (int single = 0; single < 2; single++) { /* all rows at once, then one by one */
            memcpy(x.p, keep, sizeof(float) * (size_t)(n * w));
            memset(y.p, 0xff, sizeof(float) * (size_t)(n * w));
            for (int t = 0; t < n; t += single ? 1 : n) {
                int m = single ? 1 : n;
                tensor tx = tensor_f32(x.p + t * w, m, w), tu = tensor_f32(u.p + t * w, m, w),
                       ty = tensor_f32(y.p + t * w, m, w);
                op->run(dev[l], ty, tx, tu, tw, tb);
            }
            if (l == 0 && !single)
                memcpy(first, y.p, sizeof(float) * (size_t)(n * w));
            else if (memcmp(first, y.p, sizeof(float) * (size_t)(n * w)) != 0)
                fail_msg("%s [%d,%d] kind %d: %s %s differs from ref", op->name, n, w, kind, level_name[l],
                         single ? "single rows" : "batch");
        }
    }
    for (int t = 0; t < n; t++) {
        double want[W_MAX];
        op->want(want, keep + t * w, u.p + t * w, wt.p, b.p, w);
        for (int i = 0; i < w; i++) {
            double e = fabs(first[t * w + i] - want[i]) / fmax(fabs(want[i]), op->floor);
            if (!(e <= op->bound))
                fail_msg("%s [%d,%d] kind %d row %d col %d: %.9g, want %.9g (error %.3g, bound %.3g; x %.9g)", op->name,
                         n, w, kind, t, i, first[t * w + i], want[i], e, op->bound, keep[t * w + i]);
        }
    }
    free(first), free(keep);
    guarded_free(&x), guarded_free(&u), guarded_free(&wt), guarded_free(&b), guarded_free(&y);
}

static void test_rows(void **state) {
    for (size_t o = 0; o < COUNT(ops); o++)
        for (size_t i = 0; i < COUNT(widths); i++)
            for (size_t c = 0; c < COUNT(counts); c++) rows_case(&ops[o], counts[c], widths[i], (int)(i + c) % 3);
}

/* Norm of heads inside a wider row, in place: [T,H,Dh] with the strides of a fused qkv row. */
static void test_norm_of_views(void **state) {
    enum { T = 3, H = 5, DH = 24, ROW = 3 * H * DH };
    float x[T * ROW], w[DH], got[LEVELS][T * ROW];
    for (int i = 0; i < T * ROW; i++) x[i] = rnd();
    for (int i = 0; i < DH; i++) w[i] = rnd();
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        memcpy(got[l], x, sizeof x);
        tensor v = tensor_f32(got[l] + H * DH, T, H, DH);
        v.stride[0] = ROW;
        op_rms_norm(dev[l], v, v, tensor_f32(w, DH), 1e-6f);
        assert_memory_equal(got[l], got[0], sizeof x);
    }
    for (int t = 0; t < T; t++)
        for (int c = 0; c < ROW; c++) {
            if (c < H * DH || c >= 2 * H * DH) {
                assert_true(got[0][t * ROW + c] == x[t * ROW + c]);
                continue;
            }
            const float *h = x + t * ROW + c / DH * DH;
            double s = 0;
            for (int i = 0; i < DH; i++) s += (double)h[i] * h[i];
            assert_true(fabs(got[0][t * ROW + c] - h[c % DH] / sqrt(s / DH + 1e-6f) * w[c % DH]) < 1e-6);
        }
}

static void test_special_values(void **state) {
    float x[] = {0,     -0.0f,  INFINITY, -INFINITY, NAN,     88.8f,    -88.8f, 104,  -104,
                 1e30f, -1e30f, 1e-40f,   -1e-40f,   3.4e38f, -3.4e38f, 0.625f, 0.92f};
    enum { N = COUNT(x) };
    float y[LEVELS][ACT_SIGMOID + 1][N];
    for (int l = 0; l < LEVELS; l++)
        for (int a = 0; dev[l] && a <= ACT_SIGMOID; a++) {
            op_act(dev[l], tensor_f32(y[l][a], 1, N), tensor_f32(x, 1, N), (act)a);
            for (int i = 0; i < N; i++) {
                if (isnan(y[0][a][i]))
                    assert_true(isnan(y[l][a][i]));
                else
                    assert_memory_equal(&y[l][a][i], &y[0][a][i], 4);
            }
        }
    for (int i = 0; i < N; i++) { /* values, where the limit exists */
        double s = sig(x[i]);
        if (i == 4)
            assert_true(isnan(y[0][ACT_SIGMOID][i]));
        else
            assert_true(fabs(y[0][ACT_SIGMOID][i] - s) <= 4 * ULP * s + 1e-38);
    }
    assert_true(y[0][ACT_SILU][9] == 1e30f && y[0][ACT_SILU][10] == 0);
    assert_true(y[0][ACT_GELU_ERF][9] == 1e30f && y[0][ACT_GELU_TANH][9] == 1e30f);
    assert_true(isnan(y[0][ACT_SILU][4]) && isnan(y[0][ACT_GELU_ERF][4]) && isnan(y[0][ACT_GELU_TANH][4]));
}

static void rope_case(int t_n, int heads, int dh, int n_freq, bool pairs, int pos0, float scale) {
    int n = t_n * heads * dh;
    guarded x = guarded_new(n);
    float *keep = malloc(sizeof(float) * (size_t)n), *first = malloc(sizeof(float) * (size_t)n);
    float freq[128];
    int32_t pos[64];
    for (int i = 0; i < n; i++) keep[i] = rnd();
    for (int i = 0; i < n_freq; i++) freq[i] = i == 3 ? 0 : (float)pow(10000, -(double)i / n_freq);
    for (int t = 0; t < t_n; t++) pos[t] = pos0 + t * 3;
    rope_table r = {freq, n_freq, pairs, scale};
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        for (int single = 0; single < 2; single++) {
            memcpy(x.p, keep, sizeof(float) * (size_t)n);
            if (single)
                for (int t = 0; t < t_n; t++)
                    op_rope(dev[l], tensor_f32(x.p + t * heads * dh, 1, heads, dh), pos + t, &r);
            else
                op_rope(dev[l], tensor_f32(x.p, t_n, heads, dh), pos, &r);
            if (l == 0 && !single) memcpy(first, x.p, sizeof(float) * (size_t)n);
            assert_memory_equal(first, x.p, sizeof(float) * (size_t)n);
        }
    }
    for (int t = 0; t < t_n; t++)
        for (int h = 0; h < heads; h++) {
            const float *a = keep + (t * heads + h) * dh, *y = first + (t * heads + h) * dh;
            for (int i = 0; i < n_freq; i++) {
                int p = pairs ? 2 * i : i, q = pairs ? 2 * i + 1 : i + n_freq;
                double c = cos((double)pos[t] * freq[i]) * scale, s = sin((double)pos[t] * freq[i]) * scale;
                double e = fmax(fabs(y[p] - (a[p] * c - a[q] * s)), fabs(y[q] - (a[q] * c + a[p] * s)));
                if (!(e <= 4 * ULP * scale)) fail_msg("rope pos %d pair %d: error %g", pos[t], i, e);
            }
            for (int i = 2 * n_freq; i < dh; i++) assert_true(y[i] == a[i]);
        }
    free(keep), free(first);
    guarded_free(&x);
}

static void test_rope(void **state) {
    for (int pairs = 0; pairs < 2; pairs++) {
        rope_case(5, 3, 64, 32, pairs, 0, 1);
        rope_case(40, 9, 80, 40, pairs, 100000, 1);
        rope_case(7, 2, 100, 19, pairs, 1000000, 1.25f);
        rope_case(1, 1, 10, 5, pairs, 2000000000, 1);
        rope_case(3, 4, 256, 64, pairs, 31, 0.5f);
    }
}

/* Angles are kept between calls: other positions, frequencies or scales must not meet an old table. */
static void test_rope_tables_are_not_mixed_up(void **state) {
    float f1[2] = {1, 0.5f}, f2[2] = {0.25f, 0.125f};
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        for (int i = 0; i < 12; i++) {
            float x[4] = {1, 0, 0, 1};
            rope_table r = {i & 1 ? f1 : f2, 2, false, i & 2 ? 1.0f : 2.0f};
            int32_t pos = i / 4;
            op_rope(dev[l], tensor_f32(x, 1, 1, 4), &pos, &r);
            assert_true(fabs(x[0] - r.scale * cos((double)pos * r.freq[0])) < 1e-6);
            assert_true(fabs(x[1] + r.scale * sin((double)pos * r.freq[1])) < 1e-6);
        }
    }
}

static void test_rope_too_wide_is_an_error(void **state) {
    float x[4] = {1, 2, 3, 4}, f[3] = {1, 1, 1};
    int32_t pos = 1;
    op_rope(dev[0], tensor_f32(x, 1, 1, 4), &pos, &(rope_table){f, 3, false, 1});
    assert_int_equal(dev[0]->status.code, ERR_INTERNAL);
    assert_true(x[0] == 1 && x[3] == 4);
    dev[0]->status = (error){0};
}

static void test_gather_picks(void **state) {
    float x[4 * 5], y[3 * 5];
    int32_t rows[] = {3, 0, 2};
    for (int i = 0; i < 20; i++) x[i] = (float)i;
    op_gather(dev[0], tensor_f32(y, 3, 5), tensor_f32(x, 4, 5), rows);
    for (int i = 0; i < 15; i++) assert_true(y[i] == (float)(rows[i / 5] * 5 + i % 5));
}

static void test_levels(void **state) {
    error err = {0};
    assert_null(device_cpu_open(&(device_opts){.level = "sse9", .threads = 1}, &err));
    assert_non_null(strstr(err.msg, "ref, avx2, avx512 or amx"));
    setenv("HEARTH_CPU", "mmx", 1);
    err = (error){0};
    assert_null(device_cpu_open(&(device_opts){.threads = 1}, &err));
    assert_non_null(strstr(err.msg, "HEARTH_CPU=mmx"));
    setenv("HEARTH_CPU", "ref", 1);
    device *d = device_cpu_open(&(device_opts){.threads = 1}, NULL);
    assert_string_equal(device_cpu_level(d), "ref");
    assert_int_equal(d->rows_max, 512);
    device_close(d);
    unsetenv("HEARTH_CPU");
}

static void test_views_and_names(void **state) {
    float x[24];
    tensor t = tensor_f32(x, 4, 6);
    assert_ptr_equal(tensor_rows(t, 1, 2).p, x + 6);
    assert_int_equal(tensor_rows(t, 1, 2).dim[0], 2);
    tensor c = tensor_cols(t, 2, 3);
    assert_ptr_equal(c.p, x + 2);
    assert_true(c.dim[1] == 3 && c.stride[0] == 6);
    tensor v = tensor_as(t, 2, 3, 4);
    assert_true(v.ndim == 3 && v.stride[0] == 12 && v.stride[1] == 4 && v.stride[2] == 1);
    numerics n;
    for (int i = 0; i <= NUM_STRICT; i++)
        assert_true(numerics_parse(str_of(numerics_name((numerics)i)), &n) && (int)n == i);
    assert_false(numerics_parse(STR("bf16"), &n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_norm_of_views),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_rope_tables_are_not_mixed_up),
        cmocka_unit_test(test_rope_too_wide_is_an_error),
        cmocka_unit_test(test_gather_picks),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_views_and_names),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
