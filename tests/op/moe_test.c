/* Mixtures of experts: the router against a plain reading of its definition, products with experts against the ordinary
 * product of each chosen one, sums; equal bytes between levels, threads, and rows alone or together. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "op_help.h"

static device *dev[LEVELS];
static int setup(void **state) {
    for (int l = 0; l < LEVELS; l++) dev[l] = level_open(l, 1 + l);
    return 0;
}
static int teardown(void **state) {
    for (int l = 0; l < LEVELS; l++)
        if (dev[l]) device_close(dev[l]);
    return 0;
}
static void check_status(device *d) {
    if (d->status.msg[0]) fail_msg("%s", d->status.msg);
}

/* ---- router ----------------------------------------------------------------------------------------------------- */
enum { T = 37 };
/* The A best of v by sorting: largest first, lowest number first among equals. */
static const double *by;
static int better(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return by[x] > by[y] ? -1 : by[x] < by[y] ? 1 : x - y;
}
static void best_of(const double *v, int n, int *order) {
    for (int i = 0; i < n; i++) order[i] = i;
    by = v;
    qsort(order, (size_t)n, sizeof *order, better);
}
static int rising(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* The definition in double. */
static void want_row(const float *x, int E, int A, const router *r, int *id, double *w) {
    double p[EXPERTS_MAX], c[EXPERTS_MAX], top = -INFINITY, sum = 0;
    int order[EXPERTS_MAX];
    for (int e = 0; e < E; e++) top = fmax(top, x[e]);
    for (int e = 0; e < E; e++) sum += p[e] = exp(x[e] - top);
    for (int e = 0; e < E; e++) {
        p[e] = r->kind == ROUTER_SIGMOID ? 1 / (1 + exp(-x[e])) : p[e] / sum;
        c[e] = p[e] + (r->bias ? r->bias[e] : 0);
    }
    if (r->n_groups > 1) {
        double worth[EXPERTS_MAX];
        int per = E / r->n_groups, ranks[EXPERTS_MAX];
        for (int g = 0; g < r->n_groups; g++) {
            best_of(c + g * per, per, order);
            worth[g] = c[g * per + order[0]] + c[g * per + order[1]];
        }
        best_of(worth, r->n_groups, ranks);
        for (int i = r->groups_chosen; i < r->n_groups; i++)
            for (int k = 0; k < per; k++) c[ranks[i] * per + k] = r->lost;
    }
    best_of(c, E, order);
    qsort(order, (size_t)A, sizeof *order, rising);
    sum = 0;
    for (int a = 0; a < A; a++) sum += w[a] = p[id[a] = order[a]];
    for (int a = 0; a < A; a++) {
        if (r->normalise || r->kind == ROUTER_SOFTMAX_CHOSEN) w[a] /= sum;
        w[a] *= r->scale * (r->expert_scale ? r->expert_scale[id[a]] : 1);
    }
}

static void test_router(void **state) {
    static float bias[512], per_expert[512];
    for (int i = 0; i < 512; i++) bias[i] = 0.1f * rnd(), per_expert[i] = 1 + 0.5f * rnd();
    const struct {
        int E, A;
        router r;
    } cases[] = {
        {8, 2, {.kind = ROUTER_SOFTMAX, .normalise = true, .scale = 1}},
        {8, 2, {.kind = ROUTER_SOFTMAX, .scale = 1}},
        {1, 1, {.kind = ROUTER_SOFTMAX, .normalise = true, .scale = 1}},
        {61, 7, {.kind = ROUTER_SOFTMAX_CHOSEN, .scale = 1, .expert_scale = per_expert}},
        {512, 10, {.kind = ROUTER_SOFTMAX, .normalise = true, .scale = 1}},
        {256, 8, {.kind = ROUTER_SIGMOID, .normalise = true, .scale = 2.5f, .bias = bias}},
        {32,
         4,
         {.kind = ROUTER_SIGMOID, .normalise = true, .scale = 2.5f, .n_groups = 8, .groups_chosen = 2, .bias = bias}},
        {6, 6, {.kind = ROUTER_SIGMOID, .scale = 1}}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        int E = cases[i].E, A = cases[i].A, first[T * 16];
        float weights[T * 16];
        guarded x = guarded_new(T * E), id = guarded_new(T * A), w = guarded_new(T * A);
        for (int k = 0; k < T * E; k++) x.p[k] = 4 * rnd();
        for (int l = 0; l < LEVELS; l++) {
            if (!dev[l]) continue;
            op_router(dev[l], tensor_i32(id.p, T, A), tensor_f32(w.p, T, A), tensor_f32(x.p, T, E), &cases[i].r);
            check_status(dev[l]);
            for (int t = 0; t < T; t++) {
                int want[16];
                double want_w[16];
                want_row(x.p + t * E, E, A, &cases[i].r, want, want_w);
                for (int a = 0; a < A; a++) {
                    assert_int_equal(((int32_t *)id.p)[t * A + a], want[a]);
                    if (fabs(w.p[t * A + a] - want_w[a]) > 2e-6 * want_w[a])
                        fail_msg("case %zu, row %d: %g, expected %g", i, t, w.p[t * A + a], want_w[a]);
                }
            }
            if (l) assert_memory_equal(first, id.p, sizeof(int) * (size_t)(T * A));
            if (l) assert_memory_equal(weights, w.p, sizeof(float) * (size_t)(T * A));
            memcpy(first, id.p, sizeof(int) * (size_t)(T * A));
            memcpy(weights, w.p, sizeof(float) * (size_t)(T * A));
        }
        guarded_free(&x), guarded_free(&id), guarded_free(&w);
    }
}

static void test_router_ties_and_odd_values(void **state) {
    float x[8] = {1, 2, 2, 2, 0, 2, -INFINITY, 1}, w[3];
    int32_t id[3];
    router r = {.kind = ROUTER_SOFTMAX, .normalise = true, .scale = 1};
    op_router(dev[0], tensor_i32(id, 1, 3), tensor_f32(w, 1, 3), tensor_f32(x, 1, 8), &r);
    assert_true(id[0] == 1 && id[1] == 2 && id[2] == 3);
    assert_true(w[0] == w[1] && w[1] == w[2] && fabsf(3 * w[0] - 1) < 1e-6f);
    /* Negative biased scores lose to the zeros of a group that is out. */
    float bias[4] = {-2, -2, -3, -3};
    float y[4] = {0, 0, 0, 0};
    r = (router){.kind = ROUTER_SIGMOID, .scale = 1, .n_groups = 2, .groups_chosen = 1, .bias = bias};
    op_router(dev[0], tensor_i32(id, 1, 1), tensor_f32(w, 1, 1), tensor_f32(y, 1, 4), &r);
    assert_true(id[0] == 2 && w[0] == 0.5f);
    r.lost = -INFINITY; /* or do not */
    op_router(dev[0], tensor_i32(id, 1, 1), tensor_f32(w, 1, 1), tensor_f32(y, 1, 4), &r);
    assert_true(id[0] == 0 && w[0] == 0.5f);
    /* NaN still gives experts that exist, each once. */
    for (int i = 0; i < 8; i++) x[i] = i == 5 ? 0 : NAN;
    r = (router){.kind = ROUTER_SOFTMAX_CHOSEN, .scale = 1};
    op_router(dev[0], tensor_i32(id, 1, 3), tensor_f32(w, 1, 3), tensor_f32(x, 1, 8), &r);
    assert_true(id[0] == 0 && id[1] == 1 && id[2] == 5);
    check_status(dev[0]);
    op_router(dev[0], tensor_i32(id, 1, 3), tensor_f32(w, 1, 3), tensor_f32(x, 1, 2), &r);
    assert_true(dev[0]->status.code);
    dev[0]->status = (error){0};
}

/* ---- products --------------------------------------------------------------------------------------------------- */
typedef struct matrix {
    weight_src src;
    void *codes, *scales, *biases;
} matrix;

static void *random_f16(size_t n) {
    uint16_t *p = malloc(n * 2);
    for (size_t i = 0; i < n; i++) p[i] = f32_to_f16(0.05f * rnd());
    return p;
}
static matrix matrix_new(weight_format f, int bits, int E, int N, int K) {
    matrix m = {.src = {.format = f,
                        .n_experts = E,
                        .n_out = N,
                        .n_in = K,
                        .bits = bits,
                        .group = 32,
                        .scale_type = DT_F16,
                        .name = "experts"}};
    size_t bytes = (size_t)E * (size_t)N * weight_row_bytes(&m.src);
    if (f == WF_F16) {
        m.codes = random_f16(bytes / 2);
    } else {
        uint8_t *p = m.codes = malloc(bytes);
        for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)rnd_below(256);
        m.scales = random_f16((size_t)(E * N * K / 32));
        m.biases = random_f16((size_t)(E * N * K / 32));
    }
    m.src.codes = m.codes, m.src.scales = m.scales, m.src.biases = m.biases;
    return m;
}
static void matrix_free(matrix *m) {
    free(m->codes), free(m->scales), free(m->biases);
}
static weight pack(device *d, const weight_src *src) {
    error err = {0};
    weight w = {0};
    if (!d->vt->pack(d, &w, src, &err)) fail_msg("%s", err.msg);
    assert_int_equal(w.bytes, d->vt->packed_bytes(d, src));
    return w;
}

/* Every pair against the ordinary product with its expert's matrix, to the bit; alone and in the crowd. */
static void experts_case(device *d, const matrix *m, const matrix *m2, int rows, int A, bool apart) {
    int E = m->src.n_experts, N = m->src.n_out, N2 = m2->src.n_out, K = m->src.n_in, per = apart ? A : 1;
    weight w = pack(d, &m->src), w2 = pack(d, &m2->src), *one = malloc(sizeof *one * (size_t)E);
    for (int e = 0; e < E; e++) {
        weight_src s = weight_expert(&m->src, e);
        one[e] = pack(d, &s);
    }
    guarded x = guarded_new(rows * per * K), y = guarded_new(rows * A * N), y2 = guarded_new(rows * A * N2),
            id = guarded_new(rows * A), row = guarded_new(N);
    for (int i = 0; i < rows * per * K; i++) x.p[i] = rnd();
    int32_t *ids = (int32_t *)id.p;
    for (int t = 0; t < rows; t++)
        for (int a = 0, e = 0; a < A; a++, e++) { /* ascending, experts low in number are chosen more often */
            e += (int)rnd_below((uint32_t)(t % 3 ? 1 + (E - e - A + a) : 1));
            ids[t * A + a] = e;
        }
    tensor X = apart ? tensor_f32(x.p, rows, A, K) : tensor_f32(x.p, rows, K), I = tensor_i32(ids, rows, A);
    memset(y.p, 0x55, sizeof(float) * (size_t)(rows * A * N));
    op_expert_linear2(d, tensor_f32(y.p, rows, A, N), tensor_f32(y2.p, rows, A, N2), X, &w, &w2, I);
    check_status(d);
    for (int i = 0; i < rows * A; i++) {
        op_linear(d, tensor_f32(row.p, 1, N), tensor_f32(x.p + (apart ? i : i / A) * K, 1, K), &one[ids[i]]);
        if (memcmp(row.p, y.p + i * N, sizeof(float) * (size_t)N))
            fail_msg("%d x %d, pair %d of %d", N, K, i, rows * A);
    }
    guarded again = guarded_new(rows * A * N2);
    op_expert_linear(d, tensor_f32(again.p, rows, A, N2), X, &w2, I);
    assert_memory_equal(again.p, y2.p, sizeof(float) * (size_t)(rows * A * N2));
    guarded_free(&again), guarded_free(&x), guarded_free(&y), guarded_free(&y2), guarded_free(&id), guarded_free(&row);
    for (int e = 0; e < E; e++) d->vt->unpack(d, &one[e]);
    d->vt->unpack(d, &w), d->vt->unpack(d, &w2), free(one);
}

static void test_experts(void **state) {
    static const int shapes[][5] = {/* rows, A, E, N, K */ {1, 1, 1, 16, 32},
                                    {1, 8, 61, 48, 64},
                                    {5, 2, 6, 33, 96},
                                    {150, 3, 4, 17, 160},
                                    {400, 2, 5, 20, 64}};
    static const weight_format formats[] = {WF_AFFINE, WF_F16};
    for (size_t f = 0; f < COUNT(formats); f++)
        for (size_t i = 0; i < COUNT(shapes); i++) {
            const int *s = shapes[i];
            matrix m = matrix_new(formats[f], 4, s[2], s[3], s[4]),
                   m2 = matrix_new(formats[!f], 6, s[2], s[3] + 5, s[4]);
            for (int l = 0; l < LEVELS; l++)
                for (int apart = 0; apart < 2 && dev[l]; apart++) experts_case(dev[l], &m, &m2, s[0], s[1], apart);
            matrix_free(&m), matrix_free(&m2);
        }
}

/* Experts that lie apart in the file are packed to the same bytes as stacked ones. */
static void test_experts_apart(void **state) {
    matrix m = matrix_new(WF_AFFINE, 4, 5, 40, 64);
    weight_src each[5], apart = m.src;
    for (int e = 0; e < 5; e++) each[e] = weight_expert(&m.src, e);
    apart.each = each;
    apart.codes = apart.scales = NULL;
    assert_int_equal(weight_src_bytes(&apart), weight_src_bytes(&m.src));
    float x[5 * 64], y[2][5 * 40];
    int32_t id[5] = {0, 1, 2, 3, 4};
    for (int i = 0; i < 5 * 64; i++) x[i] = rnd();
    for (int i = 0; i < 2; i++) {
        weight w = pack(dev[0], i ? &apart : &m.src);
        op_expert_linear(dev[0], tensor_f32(y[i], 5, 1, 40), tensor_f32(x, 5, 64), &w, tensor_i32(id, 5, 1));
        dev[0]->vt->unpack(dev[0], &w);
    }
    check_status(dev[0]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    matrix_free(&m);
}

/* A matrix for each head: every head of every row against the ordinary product, to the bit; views of wider rows. */
static void test_heads(void **state) {
    static const int shapes[][4] = {/* rows, H, N, K */ {1, 1, 16, 32}, {7, 70, 33, 64}, {150, 5, 17, 96}};
    for (size_t i = 0; i < 2 * COUNT(shapes); i++) {
        const int *s = shapes[i / 2], rows = s[0], H = s[1], N = s[2], K = s[3], pad = 5;
        matrix m = matrix_new(i % 2 ? WF_F16 : WF_AFFINE, 4, H, N, K);
        guarded x = guarded_new(rows * H * (K + pad)), y = guarded_new(rows * H * (N + pad)), row = guarded_new(N);
        for (int k = 0; k < rows * H * (K + pad); k++) x.p[k] = rnd();
        for (int l = 0; l < LEVELS; l++) {
            if (!dev[l]) continue;
            weight w = pack(dev[l], &m.src);
            memset(y.p, 0x55, sizeof(float) * (size_t)(rows * H * (N + pad)));
            float untouched = y.p[N];
            op_head_linear(dev[l], tensor_cols(tensor_f32(y.p, rows, H, N + pad), 0, N),
                           tensor_cols(tensor_f32(x.p, rows, H, K + pad), pad, K), &w);
            check_status(dev[l]);
            for (int h = 0; h < H; h++) {
                weight_src one = weight_expert(&m.src, h);
                weight alone = pack(dev[l], &one);
                for (int t = 0; t < rows; t++) {
                    const float *got = y.p + (t * H + h) * (N + pad);
                    op_linear(dev[l], tensor_f32(row.p, 1, N), tensor_f32(x.p + (t * H + h) * (K + pad) + pad, 1, K),
                              &alone);
                    assert_memory_equal(row.p, got, sizeof(float) * (size_t)N);
                    assert_memory_equal(&untouched, got + N, sizeof untouched);
                }
                dev[l]->vt->unpack(dev[l], &alone);
            }
            dev[l]->vt->unpack(dev[l], &w);
        }
        guarded_free(&x), guarded_free(&y), guarded_free(&row);
        matrix_free(&m);
    }
}

static void test_experts_refused(void **state) {
    matrix m = matrix_new(WF_AFFINE, 4, 3, 16, 32);
    weight w = pack(dev[0], &m.src);
    float x[32] = {0}, y[16];
    for (int32_t id = -1; id < 4; id += 4) {
        op_expert_linear(dev[0], tensor_f32(y, 1, 1, 16), tensor_f32(x, 1, 32), &w, tensor_i32(&id, 1, 1));
        assert_true(dev[0]->status.code);
        dev[0]->status = (error){0};
    }
    dev[0]->vt->unpack(dev[0], &w);
    matrix_free(&m);
}

/* ---- sums ------------------------------------------------------------------------------------------------------- */
static void test_sums(void **state) {
    static const int widths[] = {1, 15, 64, 100};
    for (size_t i = 0; i < COUNT(widths); i++)
        for (int A = 1; A < 5; A += 3) {
            int D = widths[i], rows = 40;
            guarded x = guarded_new(rows * A * D), w = guarded_new(rows * A), y = guarded_new(rows * D),
                    c = guarded_new(rows);
            float *first = NULL;
            for (int k = 0; k < rows * A * D; k++) x.p[k] = rnd();
            for (int k = 0; k < rows * A; k++) w.p[k] = rnd();
            for (int k = 0; k < rows; k++) c.p[k] = rnd();
            for (int l = 0; l < LEVELS; l++) {
                if (!dev[l]) continue;
                op_expert_sum(dev[l], tensor_f32(y.p, rows, D), tensor_f32(x.p, rows, A, D), tensor_f32(w.p, rows, A));
                for (int t = 0; t < rows; t++)
                    for (int k = 0; k < D; k++) {
                        double want = 0;
                        for (int a = 0; a < A; a++) want += (double)w.p[t * A + a] * x.p[(t * A + a) * D + k];
                        assert_true(fabs(want - y.p[t * D + k]) < 1e-6);
                    }
                size_t bytes = sizeof(float) * (size_t)(rows * D);
                if (first) assert_memory_equal(first, y.p, bytes);
                if (!first) first = malloc(bytes), memcpy(first, y.p, bytes);
                op_mul_rows(dev[l], tensor_f32(y.p, rows, D), tensor_f32(c.p, rows, 1));
                for (int k = 0; k < rows * D; k++) assert_true(y.p[k] == first[k] * c.p[k / D]);
                check_status(dev[l]);
            }
            free(first);
            guarded_free(&x), guarded_free(&w), guarded_free(&y), guarded_free(&c);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router),  cmocka_unit_test(test_router_ties_and_odd_values),
        cmocka_unit_test(test_experts), cmocka_unit_test(test_experts_apart),
        cmocka_unit_test(test_heads),   cmocka_unit_test(test_experts_refused),
        cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
