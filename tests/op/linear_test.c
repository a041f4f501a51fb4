/* Matrix products: every weight format at every instruction level, odd shapes, guard pages, against sums in double;
 * equal bytes between levels, between rows alone and rows together, and between numbers of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "../../src/device/cpu/linear.h"

/* ---- memory that ends at a page which cannot be touched ---------------------------------------------------------- */
typedef struct guarded {
    uint8_t *map;
    size_t bytes;
    void *p;
} guarded;

static guarded guarded_new(size_t n) {
    guarded g = {.bytes = (n + 4095) / 4096 * 4096 + 4096};
    g.map = mmap(NULL, g.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(g.map, MAP_FAILED);
    assert_int_equal(mprotect(g.map + g.bytes - 4096, 4096, PROT_NONE), 0);
    g.p = g.map + g.bytes - 4096 - n;
    return g;
}
static void guarded_free(guarded *g) {
    if (g->map) munmap(g->map, g->bytes);
    *g = (guarded){0};
}

/* ---- random matrices --------------------------------------------------------------------------------------------- */
static uint64_t seed = 1;
static uint32_t rnd(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}
static float rnd_sym(float most) {
    return most * ((float)rnd() / 2147483648.0f - 1.0f);
}

typedef struct format_case {
    weight_format format;
    int bits, group;
    dtype scale_type;
    int unit;       /* columns come in multiples of it */
    int half_at[2]; /* f16 fields of a block; -1: none */
} format_case;

static const format_case cases[] = {
    {WF_F32, 0, 0, DT_F32, 1, {-1, -1}},        {WF_F16, 0, 0, DT_F16, 1, {-1, -1}},
    {WF_BF16, 0, 0, DT_BF16, 1, {-1, -1}},      {WF_MXFP8, 8, 32, DT_U8, 32, {-1, -1}},
    {WF_MXFP4, 4, 32, DT_U8, 32, {-1, -1}},     {WF_NVFP4, 4, 16, DT_U8, 16, {-1, -1}},
    {WF_AFFINE, 1, 64, DT_F16, 64, {-1, -1}},   {WF_AFFINE, 2, 32, DT_BF16, 32, {-1, -1}},
    {WF_AFFINE, 2, 128, DT_F16, 128, {-1, -1}}, {WF_AFFINE, 3, 64, DT_BF16, 64, {-1, -1}},
    {WF_AFFINE, 4, 64, DT_BF16, 64, {-1, -1}},  {WF_AFFINE, 4, 32, DT_F16, 32, {-1, -1}},
    {WF_AFFINE, 4, 128, DT_F32, 128, {-1, -1}}, {WF_AFFINE, 5, 32, DT_F32, 32, {-1, -1}},
    {WF_AFFINE, 6, 64, DT_F16, 64, {-1, -1}},   {WF_AFFINE, 8, 64, DT_BF16, 64, {-1, -1}},
    {WF_AFFINE, 8, 128, DT_F16, 128, {-1, -1}}, {WF_Q4_0, 0, 0, DT_F16, 32, {0, -1}},
    {WF_Q4_1, 0, 0, DT_F16, 32, {0, 2}},        {WF_Q5_0, 0, 0, DT_F16, 32, {0, -1}},
    {WF_Q5_1, 0, 0, DT_F16, 32, {0, 2}},        {WF_Q8_0, 0, 0, DT_F16, 32, {0, -1}},
    {WF_Q2_K, 0, 0, DT_F16, 256, {80, 82}},     {WF_Q3_K, 0, 0, DT_F16, 256, {108, -1}},
    {WF_Q4_K, 0, 0, DT_F16, 256, {0, 2}},       {WF_Q5_K, 0, 0, DT_F16, 256, {0, 2}},
    {WF_Q6_K, 0, 0, DT_F16, 256, {208, -1}},    {WF_IQ4_NL, 0, 0, DT_F16, 32, {0, -1}},
    {WF_IQ4_XS, 0, 0, DT_F16, 256, {0, -1}},    {WF_GGMXFP4, 0, 0, DT_U8, 32, {-1, -1}},
};
static const format_case *case_of(weight_format f, int bits) {
    for (size_t i = 0; i < COUNT(cases); i++)
        if (cases[i].format == f && (!bits || cases[i].bits == bits)) return &cases[i];
    return NULL;
}

typedef struct matrix {
    weight_src src;
    guarded codes, scales, biases;
} matrix;

static void small_float(dtype t, uint8_t *p) {
    float f = rnd_sym(0.05f);
    uint16_t h = t == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
    if (t == DT_F32)
        memcpy(p, &f, 4);
    else
        memcpy(p, &h, 2);
}

static void fill_floats(guarded *g, size_t n, dtype t) {
    *g = guarded_new(n * dtype_bytes(t));
    for (size_t i = 0; i < n; i++) small_float(t, (uint8_t *)g->p + i * dtype_bytes(t));
}

static void fill_codes(const format_case *c, matrix *m, size_t bytes) {
    m->codes = guarded_new(bytes);
    uint8_t *p = m->codes.p;
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)rnd();
    size_t block = weight_row_bytes(&m->src) / (size_t)(m->src.n_in / c->unit);
    for (size_t i = 0; !c->bits && i < bytes; i += block) {
        for (int h = 0; h < 2; h++)
            if (c->half_at[h] >= 0) small_float(DT_F16, p + i + c->half_at[h]);
        if (c->format == WF_GGMXFP4) p[i] = (uint8_t)(118 + rnd() % 8);
    }
}

static void fill_scales(const format_case *c, matrix *m, size_t n) {
    if (c->format == WF_AFFINE) {
        fill_floats(&m->scales, n, c->scale_type);
        fill_floats(&m->biases, n, c->scale_type);
        m->src.biases = m->biases.p;
    } else {
        m->scales = guarded_new(n);
        uint8_t *s = m->scales.p;
        for (size_t i = 0; i < n; i++) s[i] = (uint8_t)(c->format == WF_NVFP4 ? rnd() % 64 : 118 + rnd() % 8);
        if (n > 2 && c->format != WF_NVFP4) s[0] = 0, s[1] = 1; /* the two that are subnormal in f32 */
    }
    m->src.scales = m->scales.p;
}

static matrix matrix_new(const format_case *c, int experts, int N, int K) {
    matrix m = {.src = {.format = c->format,
                        .n_experts = experts,
                        .n_out = N,
                        .n_in = K,
                        .bits = c->bits,
                        .group = c->group,
                        .scale_type = c->scale_type,
                        .name = "test.weight"}};
    size_t rows = (size_t)experts * (size_t)N;
    if (c->unit == 1)
        fill_floats(&m.codes, rows * (size_t)K, c->scale_type);
    else
        fill_codes(c, &m, rows * weight_row_bytes(&m.src));
    m.src.codes = m.codes.p;
    if (c->group) fill_scales(c, &m, rows * (size_t)(K / c->group));
    return m;
}
static void matrix_free(matrix *m) {
    guarded_free(&m->codes);
    guarded_free(&m->scales);
    guarded_free(&m->biases);
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */
static const char *const levels[] = {"ref", "avx2", "avx512"};
enum { LEVELS = 3, MODES = 3 /* numerics: default, f32, int8 */, ROWS_MAX = 200 };
static device *devices[LEVELS][MODES];
static bool have[LEVELS];

static device *open_device(const char *level, numerics num, int threads) {
    error err = {0};
    device *d =
        device_cpu_open(&(device_opts){.num = num, .threads = threads, .rows_max = ROWS_MAX, .level = level}, &err);
    if (!d) fail_msg("%s", err.msg);
    return d;
}

static int open_all(void **state) {
    for (int l = 0; l < LEVELS; l++)
        for (int n = 0; n < MODES; n++) {
            devices[l][n] = open_device(levels[l], (numerics)n, LEVELS - l);
            have[l] = strcmp(device_cpu_level(devices[l][n]), levels[l]) == 0;
        }
    return 0;
}
static int close_all(void **state) {
    for (int l = 0; l < LEVELS; l++)
        for (int n = 0; n < MODES; n++) device_close(devices[l][n]);
    return 0;
}

static weight pack(device *d, const matrix *m) {
    error err = {0};
    weight w = {0};
    if (!d->vt->pack(d, &w, &m->src, &err)) fail_msg("%s", err.msg);
    assert_int_equal(w.bytes, d->vt->packed_bytes(d, &m->src));
    return w;
}

static void check_status(device *d) {
    if (d->status.msg[0]) fail_msg("%s", d->status.msg);
}

/* y [T,N] in guarded memory. */
static guarded product(device *d, const weight *w, float *x, int T) {
    size_t bytes = sizeof(float) * (size_t)T * (size_t)w->n_out;
    guarded y = guarded_new(bytes);
    memset(y.p, 0x55, bytes);
    op_linear(d, tensor_f32(y.p, T, w->n_out), tensor_f32(x, T, w->n_in), w);
    check_status(d);
    return y;
}

static const char *describe(const matrix *m, int num, int level) {
    static char s[160];
    snprintf(s, sizeof s, "%s bits %d group %d, %d x %d, numerics %d, %s", weight_format_name(m->src.format),
             m->src.bits, m->src.group, m->src.n_out, m->src.n_in, num, levels[level]);
    return s;
}

/* ---- against sums in double
 * ------------------------------------------------------------------------------------------- The bound: half a unit of
 * the activation's code times |w| for coded activations, and a few f32 roundings of the sum of magnitudes (codes and
 * offsets may cancel). */
static void check_row(const matrix *m, lin_class class, numerics num, const float *x, const float *y,
                      const char *what) {
    size_t K = (size_t)m->src.n_in, cols = (size_t)lin_class_cols(class);
    float *w = mem_alloc(sizeof(float) * K), *s = mem_alloc(sizeof(float) * K), *b = mem_alloc(sizeof(float) * K);
    uint8_t *q = mem_alloc(K);
    for (int n = 0; n < m->src.n_out; n++) {
        code_form f = {.group = 1};
        weight_row_f32(&m->src, n, w);
        if (weight_code_form(&m->src, &f)) weight_row_codes(&m->src, n, q, s, b);
        double sum = 0, size = 0, bound = 0;
        for (size_t g = 0; g < K; g += cols) {
            double top = 0;
            for (size_t k = g; k < MIN(g + cols, K); k++) top = fmax(top, fabs((double)x[k]));
            for (size_t k = g; k < MIN(g + cols, K); k++) {
                sum += (double)w[k] * (double)x[k];
                size += (fabs((double)w[k]) + (f.has_offset ? 2 * fabs((double)b[k / (size_t)f.group]) : 0)) *
                        fabs((double)x[k]);
                if (class == LC_F32) continue;
                bool dropped = top < 0x1p-110; /* such a group counts as 0 */
                bound += fabs((double)w[k]) * top * (dropped ? 1 : 0.501 / (num == NUM_INT8 ? 127 : 16383));
            }
        }
        bound += 2e-6 * size + 1e-37;
        if (!(fabs((double)y[n] - sum) <= bound))
            fail_msg("%s: output %d is %.9g, should be %.9g within %.3g", what, n, (double)y[n], sum, bound);
    }
    free(w);
    free(s);
    free(b);
    free(q);
}

static void same_bytes(const void *a, const void *b, size_t n, const char *what, const char *how) {
    if (memcmp(a, b, n) != 0) fail_msg("%s: not the same bytes as %s", what, how);
}

static const int rows_tried[] = {1, 2, 3, 7, 33};

static void check_shape(const format_case *c, int N, int K) {
    matrix m = matrix_new(c, 1, N, K);
    enum { T = 33 };
    guarded xg = guarded_new(sizeof(float) * T * (size_t)K);
    float *x = xg.p;
    for (int i = 0; i < T * K; i++) x[i] = rnd_sym(1.0f) * (rnd() % 50 == 0 ? 30.0f : 1.0f);
    for (int num = 0; num < MODES; num++) {
        guarded first = {0};
        for (int l = 0; l < LEVELS; l++) {
            if (!have[l]) continue;
            device *d = devices[l][num];
            weight w = pack(d, &m);
            guarded all = product(d, &w, x, T);
            const char *what = describe(&m, num, l);
            if (!first.p) {
                lin_class class = lin_class_of(w.packed, (numerics)num);
                for (int t = 0; t < T; t += 8)
                    check_row(&m, class, (numerics)num, x + t * K, (float *)all.p + t * N, what);
                first = all;
            } else {
                same_bytes(all.p, first.p, sizeof(float) * (size_t)(T * N), what, "ref");
                guarded_free(&all);
            }
            for (size_t i = 0; i < COUNT(rows_tried); i++) {
                int n = rows_tried[i], from = T - n;
                guarded part = product(d, &w, x + from * K, n);
                same_bytes(part.p, (float *)first.p + from * N, sizeof(float) * (size_t)(n * N), what,
                           "all rows together");
                guarded_free(&part);
            }
            d->vt->unpack(d, &w);
        }
        guarded_free(&first);
    }
    guarded_free(&xg);
    matrix_free(&m);
}

static void test_formats(void **state) {
    static const int Ns[] = {1, 15, 17, 70}, Ks[] = {32, 64, 80, 96, 128, 192, 256, 576};
    for (size_t i = 0; i < COUNT(cases); i++) {
        int tried = 0;
        for (size_t k = 0; k < COUNT(Ks); k++)
            for (size_t n = 0; n < COUNT(Ns) && Ks[k] % cases[i].unit == 0; n++, tried++)
                check_shape(&cases[i], Ns[n], Ks[k]);
        assert_true(tried > 0);
    }
    check_shape(case_of(WF_F32, 0), 17, 33);
    check_shape(case_of(WF_AFFINE, 4), 288, 576);
    check_shape(case_of(WF_Q6_K, 0), 33, 1536);
}

/* Many rows: several row blocks, several tasks; threads must not matter. */
static void test_blocks(void **state) {
    const format_case *picks[] = {case_of(WF_F32, 0), case_of(WF_AFFINE, 4), case_of(WF_Q4_K, 0), case_of(WF_Q6_K, 0),
                                  case_of(WF_Q4_0, 0)};
    enum { T = 200, N = 70, K = 256 };
    static float x[T * K];
    for (int i = 0; i < T * K; i++) x[i] = rnd_sym(2.0f);
    for (size_t i = 0; i < COUNT(picks); i++)
        for (int l = 0; l < LEVELS; l++) {
            if (!have[l]) continue;
            matrix m = matrix_new(picks[i], 1, N, K);
            device *many = open_device(levels[l], NUM_DEFAULT, 3), *one = open_device(levels[l], NUM_DEFAULT, 1);
            weight w = pack(many, &m), w1 = pack(one, &m);
            guarded y = product(many, &w, x, T), y1 = product(one, &w1, x, T);
            same_bytes(y.p, y1.p, sizeof(float) * T * N, describe(&m, 0, l), "another number of threads");
            for (int t = 0; t < T; t += 13) {
                guarded row = product(many, &w, x + t * K, 1);
                same_bytes(row.p, (float *)y.p + t * N, sizeof(float) * N, describe(&m, 0, l), "the row in its block");
                guarded_free(&row);
            }
            guarded_free(&y);
            guarded_free(&y1);
            many->vt->unpack(many, &w);
            one->vt->unpack(one, &w1);
            device_close(many);
            device_close(one);
            matrix_free(&m);
        }
}

/* linear2 and linear3, biases, strided rows, parts that code activations differently. */
enum { TO_T = 5, TO_K = 256, TO_N = 64 };
static void check_together(device *d, const matrix *m, weight *w, const float *bias, const char *what) {
    static float x[TO_T * (TO_K + 8)], y[3][TO_T * TO_N], plain[3][TO_T * TO_N];
    tensor tx = tensor_f32(x, TO_T, TO_K), ty[3], tp[3];
    tx.stride[0] = TO_K + 8;
    for (size_t i = 0; i < COUNT(x); i++) x[i] = rnd_sym(1);
    for (int i = 0; i < 3; i++) {
        ty[i] = tensor_f32(y[i], TO_T, w[i].n_out);
        tp[i] = tensor_f32(plain[i], TO_T, w[i].n_out);
        ty[i].stride[0] = TO_N;
        op_linear(d, tp[i], tx, &w[i]);
    }
    for (int parts = 2; parts <= 3; parts++) {
        memset(y, 0x55, sizeof y);
        if (parts == 2)
            op_linear2(d, ty[0], ty[1], tx, &w[0], &w[1]);
        else
            op_linear3(d, ty[0], ty[1], ty[2], tx, &w[0], &w[1], &w[2]);
        check_status(d);
        for (int i = 0; i < parts; i++)
            for (int t = 0; t < TO_T; t++) {
                same_bytes(y[i] + t * TO_N, tensor_row(tp[i], t), sizeof(float) * (size_t)w[i].n_out, what,
                           "linear by itself");
                assert_int_equal(((uint8_t *)(y[i] + t * TO_N + w[i].n_out))[0], 0x55); /* nothing past the row */
            }
    }
    weight with = w[0];
    with.bias = tensor_f32((void *)bias, w[0].n_out);
    op_linear(d, ty[0], tx, &with);
    for (int t = 0; t < TO_T; t++)
        for (int n = 0; n < w[0].n_out; n++) assert_true(y[0][t * TO_N + n] == tensor_row(tp[0], t)[n] + bias[n]);
}

static void test_together(void **state) {
    float bias[TO_N];
    for (int i = 0; i < TO_N; i++) bias[i] = rnd_sym(1);
    for (int num = 0; num < MODES; num++)
        for (int l = 0; l < LEVELS; l++) {
            if (!have[l]) continue;
            device *d = devices[l][num];
            matrix m[3] = {matrix_new(case_of(WF_Q4_K, 0), 1, 40, TO_K), matrix_new(case_of(WF_Q6_K, 0), 1, 17, TO_K),
                           matrix_new(case_of(WF_F32, 0), 1, 3, TO_K)};
            weight w[3];
            for (int i = 0; i < 3; i++) w[i] = pack(d, &m[i]);
            check_together(d, m, w, bias, describe(&m[0], num, l));
            for (int i = 0; i < 3; i++) {
                d->vt->unpack(d, &w[i]);
                matrix_free(&m[i]);
            }
        }
}

/* Values at the edges of f32 keep within the bound; a row that is not finite is NaN and touches no other row. */
enum { EX_T = 10, EX_K = 256, EX_N = 20, EX_GOOD = 6 };
static void check_extremes(const matrix *m, int num, float *x, float *tame) {
    float first[EX_T * EX_N];
    for (int l = 0; l < LEVELS; l++) {
        if (!have[l]) continue;
        device *d = devices[l][num];
        weight w = pack(d, m);
        lin_class class = lin_class_of(w.packed, (numerics)num);
        guarded y = product(d, &w, x, EX_T), calm = product(d, &w, tame, EX_T);
        float *out = y.p, *bad = out + EX_GOOD * EX_N;
        const char *what = describe(m, num, l);
        for (int t = 0; t < EX_GOOD; t++) check_row(m, class, (numerics)num, x + t * EX_K, out + t * EX_N, what);
        for (int n = 0; n < EX_N; n++) {
            assert_true(out[n] == 0 && out[5 * EX_N + n] == 0);
            if (class != LC_F32) assert_true(isnan(bad[n]) && isnan(bad[EX_N + n]));
            if (class == LC_F32) bad[n] = bad[EX_N + n] = 0; /* which NaN of several is not promised for f32 sums */
        }
        same_bytes(bad + 2 * EX_N, (float *)calm.p + (EX_GOOD + 2) * EX_N, sizeof(float) * 2 * EX_N, what,
                   "without bad rows");
        if (l == 0) memcpy(first, out, sizeof first);
        same_bytes(out, first, sizeof first, what, "ref");
        d->vt->unpack(d, &w);
        guarded_free(&y);
        guarded_free(&calm);
    }
}

static void test_extremes(void **state) {
    static float x[EX_T * EX_K], tame[EX_T * EX_K];
    for (int i = 0; i < EX_T * EX_K; i++) tame[i] = x[i] = rnd_sym(1);
    for (int k = 0; k < EX_K; k++) {
        x[0 * EX_K + k] = 0;
        x[1 * EX_K + k] *= 1e-30f;
        x[2 * EX_K + k] *= 1e30f;
        x[4 * EX_K + k] *= 1e-40f;
        x[5 * EX_K + k] = k % 2 ? -0.0f : 0;
    }
    x[3 * EX_K + 100] = 5e4f;
    x[6 * EX_K + 7] = NAN;
    x[7 * EX_K + 200] = -INFINITY;
    for (size_t i = 0; i < COUNT(cases); i++) {
        matrix m = matrix_new(&cases[i], 1, EX_N, EX_K);
        for (int num = 0; num < MODES; num++) check_extremes(&m, num, x, tame);
        matrix_free(&m);
    }
}

static void check_embed(const matrix *m, int l) {
    enum { T = 6 };
    static const int32_t ids[T] = {0, 36, 15, 16, 16, 31};
    device *d = devices[l][NUM_DEFAULT];
    int K = m->src.n_in;
    float *want = mem_alloc(sizeof(float) * (size_t)K);
    weight w = pack(d, m);
    guarded y = guarded_new(sizeof(float) * T * (size_t)K);
    op_embed(d, tensor_f32(y.p, T, K), &w, ids, 3.25f);
    check_status(d);
    for (int t = 0; t < T; t++) {
        weight_row_f32(&m->src, ids[t], want);
        for (int k = 0; k < K; k++)
            if (((float *)y.p)[t * K + k] != 3.25f * want[k])
                fail_msg("%s: embed row %d column %d is %.9g, should be %.9g", describe(m, 0, l), ids[t], k,
                         (double)((float *)y.p)[t * K + k], (double)(3.25f * want[k]));
    }
    int32_t bad = m->src.n_out;
    op_embed(d, tensor_f32(y.p, 1, K), &w, &bad, 1);
    assert_non_null(strstr(d->status.msg, "37"));
    d->status = (error){0};
    guarded_free(&y);
    d->vt->unpack(d, &w);
    free(want);
}

static void test_embed(void **state) {
    for (size_t i = 0; i < COUNT(cases); i++) {
        matrix m = matrix_new(&cases[i], 1, 37, cases[i].unit == 1 ? 75 : cases[i].unit * 3);
        for (int l = 0; l < LEVELS; l++)
            if (have[l]) check_embed(&m, l);
        matrix_free(&m);
    }
}

/* Stacked experts are packed one after the other, each as if alone. */
static void test_experts(void **state) {
    enum { E = 3, N = 20, K = 256 };
    device *d = devices[0][NUM_DEFAULT];
    for (size_t i = 0; i < COUNT(cases); i++) {
        matrix m = matrix_new(&cases[i], E, N, K);
        weight all = pack(d, &m);
        const cpu_packed *p = all.packed;
        for (int e = 0; e < E; e++) {
            weight_src one = m.src;
            one.n_experts = 1;
            one.codes = (const uint8_t *)m.src.codes + (size_t)e * N * weight_row_bytes(&m.src);
            size_t scales = m.src.group ? (size_t)e * N * (size_t)(K / m.src.group) * dtype_bytes(m.src.scale_type) : 0;
            if (m.src.scales) one.scales = (const uint8_t *)m.src.scales + scales;
            if (m.src.biases) one.biases = (const uint8_t *)m.src.biases + scales;
            weight w = pack(d, &(matrix){.src = one});
            const cpu_packed *q = w.packed;
            assert_int_equal(q->data_bytes, p->expert_bytes);
            same_bytes(lin_panel_of(p, e, 0), q->data, q->data_bytes, describe(&m, 0, 0), "the expert by itself");
            d->vt->unpack(d, &w);
        }
        d->vt->unpack(d, &all);
        matrix_free(&m);
    }
}

static void test_refused(void **state) {
    device *d = devices[0][NUM_DEFAULT];
    error err = {0};
    weight w = {0};
    weight_src bad = {.format = WF_Q4_K, .n_experts = 1, .n_out = 4, .n_in = 128, .name = "x.weight"};
    assert_false(d->vt->pack(d, &w, &bad, &err));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_non_null(strstr(err.msg, "x.weight"));
    bad = (weight_src){
        .format = WF_F32, .n_experts = INT32_MAX, .n_out = INT32_MAX, .n_in = INT32_MAX, .name = "x.weight"};
    err = (error){0};
    assert_false(d->vt->pack(d, &w, &bad, &err));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_null(w.packed);
    static float x[(ROWS_MAX + 1) * 32], y[ROWS_MAX + 1];
    matrix m = matrix_new(case_of(WF_Q8_0, 0), 1, 1, 32);
    weight ok = pack(d, &m);
    op_linear(d, tensor_f32(y, ROWS_MAX + 1, 1), tensor_f32(x, ROWS_MAX + 1, 32), &ok);
    assert_int_equal(d->status.code, ERR_INTERNAL);
    d->status = (error){0};
    d->vt->unpack(d, &ok);
    matrix_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),  cmocka_unit_test(test_blocks), cmocka_unit_test(test_together),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_embed),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
