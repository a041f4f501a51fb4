/* Layers with recurrent state: convolution, delta rule, decay, l2norm against plain loops in double; equal bytes
 * between levels, numbers of threads, chunkings and company; state slots. */
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
static guarded random_new(int n, float scale) {
    guarded g = guarded_new(n);
    for (int i = 0; i < n; i++) g.p[i] = scale * rnd();
    return g;
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */
/* With Σx² near eps the result tells an eps from ten times as much, and a sum from a mean. */
static void test_l2norm(void **state) {
    static const int widths[] = {1, 17, 32, 96, 128};
    for (size_t i = 0; i < COUNT(widths); i++)
        for (int small = 0; small < 2; small++) {
            int n = widths[i];
            guarded x = random_new(5 * n, small ? 1e-3f / sqrtf((float)n) : 1), y = guarded_new(5 * n);
            float first[5 * 128];
            for (int l = 0; l < LEVELS; l++) {
                if (!dev[l]) continue;
                op_l2norm(dev[l], tensor_f32(y.p, 5, n), tensor_f32(x.p, 5, n), 0.25f, 1e-6f);
                for (int t = 0; t < 5; t++) {
                    double sum = 0;
                    for (int k = 0; k < n; k++) sum += (double)x.p[t * n + k] * x.p[t * n + k];
                    for (int k = 0; k < n; k++) {
                        double want = 0.25 * x.p[t * n + k] / sqrt(sum + 1e-6);
                        assert_true(fabs(want - y.p[t * n + k]) <= 5e-7 * fabs(want));
                    }
                }
                if (l) assert_memory_equal(first, y.p, sizeof(float) * (size_t)(5 * n));
                memcpy(first, y.p, sizeof(float) * (size_t)(5 * n));
            }
            guarded_free(&x), guarded_free(&y);
        }
}

static void test_decay(void **state) {
    enum { H = 21, T = 9 };
    guarded x = random_new(T * H, 40), rate = guarded_new(H), shift = random_new(H, 5), g = guarded_new(T * H);
    float first[T * H];
    for (int h = 0; h < H; h++) rate.p[h] = -expf(4 * rnd());
    for (int k = 0; k < T * H; k++)
        if (k % 3) x.p[k] *= 0.1f;
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        op_decay(dev[l], tensor_f32(g.p, T, H), tensor_f32(x.p, T, H), tensor_f32(rate.p, H), tensor_f32(shift.p, H));
        for (int k = 0; k < T * H; k++) {
            double z = x.p[k] + (double)shift.p[k % H], want = exp(rate.p[k % H] * (fmax(z, 0) + log1p(exp(-fabs(z)))));
            assert_true(want < 1e-37 ? g.p[k] < 1e-37f : fabs(g.p[k] - want) <= 1e-6 * want * fmax(1, -log(want)));
        }
        if (l) assert_memory_equal(first, g.p, sizeof first);
        memcpy(first, g.p, sizeof first);
    }
    guarded_free(&x), guarded_free(&rate), guarded_free(&shift), guarded_free(&g);
}

/* ---- sequences -------------------------------------------------------------------------------------------------- */
enum { N = 23 /* rows of each sequence */, SEQS = 3 };
typedef struct shape {
    int C, J, Hk, Hv, Dk, Dv;
    bool tiled;
} shape;
static const shape shapes[] = {{48, 4, 2, 4, 32, 32, false},   {7, 2, 1, 3, 5, 16, false},
                               {33, 8, 2, 4, 31, 80, true},    {1, 3, 1, 1, 1, 1, false},
                               {64, 4, 1, 1, 128, 128, false}, {20, 1, 1, 2, 16, 100, true}};

/* Inputs and outputs of SEQS sequences of N rows. */
typedef struct data {
    guarded x, w, q, k, v, g,
        beta;        /* inputs, rows by sequence; q and k of each row together in one array would do too */
    float *conv, *o; /* results [SEQS*N, C] and [SEQS*N, Hv*Dv] */
} data;
static data data_new(const shape *s) {
    const int R = SEQS * N;
    data d = {random_new(R * s->C, 1),
              random_new(s->J * s->C, 1),
              random_new(R * s->Hk * s->Dk, 0.3f),
              random_new(R * s->Hk * s->Dk, 0.3f),
              random_new(R * s->Hv * s->Dv, 1),
              random_new(R * s->Hv, 1),
              random_new(R * s->Hv, 1),
              malloc(sizeof(float) * (size_t)(R * s->C)),
              malloc(sizeof(float) * (size_t)(R * s->Hv * s->Dv))};
    for (int i = 0; i < R * s->Hv; i++) d.g.p[i] = 0.9f + 0.1f * d.g.p[i], d.beta.p[i] = 0.5f + 0.5f * d.beta.p[i];
    return d;
}
static void data_free(data *d) {
    guarded_free(&d->x), guarded_free(&d->w), guarded_free(&d->q), guarded_free(&d->k), guarded_free(&d->v);
    guarded_free(&d->g), guarded_free(&d->beta);
    free(d->conv), free(d->o);
}

/* One step: n[b] rows of each sequence from at[b] on; results go where they belong. */
static void run_step(device *d, const shape *s, data *x, state_store *st, const int *at, const int *n) {
    step_seq seq[SEQS];
    step step = {.seq = seq, .state = st};
    int row[SEQS * N];
    for (int b = 0; b < SEQS; b++) {
        if (!n[b]) continue;
        seq[step.n_seqs++] = (step_seq){.row0 = step.n_rows, .n_rows = n[b], .pos0 = at[b], .slot = (b * 2 + 1) % 5};
        for (int i = 0; i < n[b]; i++) row[step.n_rows++] = b * N + at[b] + i;
    }
    const int T = step.n_rows, Ck = s->Hk * s->Dk, Cv = s->Hv * s->Dv;
    guarded in[6], conv = guarded_new(T * s->C), o = guarded_new(T * Cv);
    const struct {
        const guarded *from;
        int width;
    } parts[6] = {{&x->x, s->C}, {&x->q, Ck}, {&x->k, Ck}, {&x->v, Cv}, {&x->g, s->Hv}, {&x->beta, s->Hv}};
    for (int p = 0; p < 6; p++) {
        in[p] = guarded_new(T * parts[p].width);
        for (int t = 0; t < T; t++)
            memcpy(in[p].p + t * parts[p].width, parts[p].from->p + row[t] * parts[p].width,
                   sizeof(float) * (size_t)parts[p].width);
    }
    op_conv1d_state(d, tensor_f32(conv.p, T, s->C), tensor_f32(in[0].p, T, s->C), tensor_f32(x->w.p, s->J, s->C), 1,
                    &step);
    op_delta_rule(d, tensor_f32(o.p, T, s->Hv, s->Dv), tensor_f32(in[1].p, T, s->Hk, s->Dk),
                  tensor_f32(in[2].p, T, s->Hk, s->Dk), tensor_f32(in[3].p, T, s->Hv, s->Dv),
                  tensor_f32(in[4].p, T, s->Hv), tensor_f32(in[5].p, T, s->Hv), s->tiled, 1, &step);
    check_status(d);
    for (int t = 0; t < T; t++) {
        memcpy(x->conv + row[t] * s->C, conv.p + t * s->C, sizeof(float) * (size_t)s->C);
        memcpy(x->o + row[t] * Cv, o.p + t * Cv, sizeof(float) * (size_t)Cv);
    }
    for (int p = 0; p < 6; p++) guarded_free(&in[p]);
    guarded_free(&conv), guarded_free(&o);
}

static state_store *store_new(device *d, const shape *s) {
    state_layer layer[2] = {{3, 2, 1, 2, 3}, {s->C, s->J, s->Hv, s->Dk, s->Dv}};
    error err = {0};
    state_store *st = d->vt->state_new(d, &(state_spec){2, 5, layer}, &err);
    if (!st) fail_msg("%s", err.msg);
    return st;
}

/* How the rows of the sequences are spread over steps. */
enum { ALL, ONE_BY_ONE, MIXED, WAYS };
static void run_way(device *d, const shape *s, data *x, int way) {
    state_store *st = store_new(d, s);
    int at[SEQS] = {0};
    for (int b = 0; b < 5; b++) d->vt->state_zero(d, st, b);
    for (int turn = 0; at[0] < N || at[1] < N || at[2] < N; turn++) {
        int n[SEQS];
        for (int b = 0; b < SEQS; b++) {
            int most = way == ALL ? N : way == ONE_BY_ONE ? (turn % SEQS == b) : (turn * 5 + b * 3) % 7;
            n[b] = MIN(most, N - at[b]);
        }
        if (n[0] + n[1] + n[2]) run_step(d, s, x, st, at, n);
        for (int b = 0; b < SEQS; b++) at[b] += n[b];
    }
    d->vt->state_free(d, st);
}

static void conv_want(const shape *s, const data *x) {
    for (int b = 0; b < SEQS; b++)
        for (int t = 0; t < N; t++)
            for (int c = 0; c < s->C; c++) {
                double want = 0;
                for (int j = 0; j < s->J; j++)
                    if (t - s->J + 1 + j >= 0)
                        want += (double)x->w.p[j * s->C + c] * x->x.p[(b * N + t - s->J + 1 + j) * s->C + c];
                assert_true(fabs(want - x->conv[(b * N + t) * s->C + c]) < 2e-6);
            }
}
static void delta_want(const shape *s, const data *x) {
    double *S = malloc(sizeof(double) * (size_t)(s->Dk * s->Dv));
    for (int b = 0; b < SEQS; b++)
        for (int h = 0; h < s->Hv; h++) {
            int hk = s->tiled ? h % s->Hk : h / (s->Hv / s->Hk);
            memset(S, 0, sizeof(double) * (size_t)(s->Dk * s->Dv));
            for (int t = b * N; t < (b + 1) * N; t++) {
                const float *q = x->q.p + (t * s->Hk + hk) * s->Dk, *k = x->k.p + (t * s->Hk + hk) * s->Dk;
                double g = x->g.p[t * s->Hv + h], beta = x->beta.p[t * s->Hv + h];
                for (int c = 0; c < s->Dv; c++) {
                    double m = 0, o = 0;
                    for (int i = 0; i < s->Dk; i++) m += g * S[i * s->Dv + c] * k[i];
                    double u = beta * (x->v.p[(t * s->Hv + h) * s->Dv + c] - m);
                    for (int i = 0; i < s->Dk; i++) o += (S[i * s->Dv + c] = g * S[i * s->Dv + c] + k[i] * u) * q[i];
                    assert_true(fabs(o - x->o[(t * s->Hv + h) * s->Dv + c]) < 1e-5);
                }
            }
        }
    free(S);
}

static void test_sequences(void **state) {
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const shape *s = &shapes[i];
        data x = data_new(s);
        size_t conv_bytes = sizeof(float) * (size_t)(SEQS * N * s->C),
               o_bytes = sizeof(float) * (size_t)(SEQS * N * s->Hv * s->Dv);
        float *conv = malloc(conv_bytes), *o = malloc(o_bytes);
        run_way(dev[0], s, &x, ALL);
        conv_want(s, &x);
        delta_want(s, &x);
        memcpy(conv, x.conv, conv_bytes);
        memcpy(o, x.o, o_bytes);
        for (int l = 0; l < LEVELS; l++)
            for (int way = 0; way < WAYS && dev[l]; way++) {
                memset(x.conv, 0x55, conv_bytes);
                memset(x.o, 0x55, o_bytes);
                run_way(dev[l], s, &x, way);
                if (memcmp(conv, x.conv, conv_bytes) || memcmp(o, x.o, o_bytes))
                    fail_msg("shape %zu, way %d: %s differs", i, way, level_name[l]);
            }
        free(conv), free(o);
        data_free(&x);
    }
}

/* A slot copied, or read and written back elsewhere, goes on as the original does; a slot at position 0 forgets. */
static void test_slots(void **state) {
    const shape *s = &shapes[2];
    device *d = dev[LEVELS - 1] ? dev[LEVELS - 1] : dev[0];
    data x = data_new(s);
    state_store *st = store_new(d, s);
    state_layer layer[2] = {{3, 2, 1, 2, 3}, {s->C, s->J, s->Hv, s->Dk, s->Dv}};
    size_t bytes = d->vt->state_bytes(d, &(state_spec){2, 5, layer}), o_bytes = sizeof(float) * (size_t)(s->Hv * s->Dv);
    /* windows on lines of 16 floats, columns padded to 16, all of it to pages */
    const size_t floats = 16 + 2 * 16 + (7 * 33 + 15) / 16 * 16 + 4 * 31 * 80;
    assert_int_equal(bytes, (4 * floats + 4095) / 4096 * 4096);
    int first[SEQS] = {20}, zero[SEQS] = {0}, at[SEQS] = {20}, one[SEQS] = {1};
    float want[4 * 80], *kept = malloc(bytes), *again = malloc(bytes);
    run_step(d, s, &x, st, zero, first); /* sequence 0 is in slot 1 */
    d->vt->state_copy(d, st, 4, 1);
    d->vt->state_read(d, st, 1, kept);
    run_step(d, s, &x, st, at, one);
    memcpy(want, x.o + 20 * s->Hv * s->Dv, o_bytes);
    d->vt->state_copy(d, st, 1, 4);
    run_step(d, s, &x, st, at, one);
    assert_memory_equal(want, x.o + 20 * s->Hv * s->Dv, o_bytes);
    d->vt->state_write(d, st, 1, kept);
    run_step(d, s, &x, st, at, one);
    assert_memory_equal(want, x.o + 20 * s->Hv * s->Dv, o_bytes);
    run_step(d, s, &x, st, zero, first);
    d->vt->state_read(d, st, 1, again);
    assert_memory_equal(kept, again, bytes);
    d->vt->state_zero(d, st, 1);
    d->vt->state_read(d, st, 1, again);
    for (size_t i = 0; i < bytes / 4; i++) assert_true(again[i] == 0);
    free(kept), free(again);
    d->vt->state_free(d, st);
    data_free(&x);
}

static void test_no_state_is_an_error(void **state) {
    float x[4] = {0}, y[4], w[8] = {0};
    step_seq seq = {.n_rows = 1, .slot = 0};
    step s = {.n_rows = 1, .n_seqs = 1, .seq = &seq};
    op_conv1d_state(dev[0], tensor_f32(y, 1, 4), tensor_f32(x, 1, 4), tensor_f32(w, 2, 4), 0, &s);
    assert_int_equal(dev[0]->status.code, ERR_INTERNAL);
    dev[0]->status = (error){0};
    state_layer layer = {4, 2, 1, 1, 1};
    error err = {0};
    s.state = dev[0]->vt->state_new(dev[0], &(state_spec){1, 1, &layer}, &err);
    seq.slot = -1;
    op_conv1d_state(dev[0], tensor_f32(y, 1, 4), tensor_f32(x, 1, 4), tensor_f32(w, 2, 4), 0, &s);
    assert_int_equal(dev[0]->status.code, ERR_INTERNAL);
    dev[0]->status = (error){0};
    dev[0]->vt->state_free(dev[0], s.state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_l2norm),
        cmocka_unit_test(test_decay),
        cmocka_unit_test(test_sequences),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_no_state_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
