/* Operations on rows: norms, rope, activations, elementwise, gather. Included by vec_ref.c, vec_avx2.c and vec_avx512.c
 * after their v16_*.h: the same text at every level is what makes the bits equal. Not here: attention (attend_body.h).
 *
 * A row is worked through in steps of 16; sums keep 16 strided partial sums and end in v_sum's tree. Rows go to the
 * pool only when there is enough work (cpu_rows_run); the result of a row does not depend on that. */
#pragma once
#include "internal.h"
#include "vec_math.h"

#define FOR_16(i, n) for (int i = 0, left = (n); left > 0; i += 16, left -= 16)
V_INL vf row_get(const float *p, int left) {
    return left >= 16 ? v_load(p) : v_load_n(p, left);
}
V_INL void row_put(float *p, vf v, int left) {
    if (left >= 16)
        v_store(p, v);
    else
        v_store_n(p, v, left);
}

/* ---- norms ---- */
typedef struct norm_job {
    tensor y, x, r, w, b;
    float eps;
} norm_job;

static void rms_row(float *y, const float *x, const float *w, int n, float eps) {
    vf s = v_zero();
    FOR_16(i, n) {
        vf v = row_get(x + i, left);
        s = v_fma(v, v, s);
    }
    vf c = v_set1(1.0f / sqrtf(v_sum(s) / (float)n + eps));
    FOR_16(i, n) {
        vf v = v_mul(row_get(x + i, left), c);
        row_put(y + i, w ? v_mul(v, row_get(w + i, left)) : v, left);
    }
}
static void rms_rows(const void *arg, int64_t from, int64_t to) {
    const norm_job *j = arg;
    int n = tensor_width(j->x);
    for (int64_t t = from; t < to; t++) rms_row(tensor_line(j->y, t), tensor_line(j->x, t), j->w.p, n, j->eps);
}
static void rms_norm(device *d, tensor y, tensor x, tensor w, float eps) {
    norm_job j = {.y = y, .x = x, .w = w, .eps = eps};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), rms_rows, &j);
}

static void add_row(float *x, const float *y, int n) {
    FOR_16(i, n) row_put(x + i, v_add(row_get(x + i, left), row_get(y + i, left)), left);
}
static void add_rms_rows(const void *arg, int64_t from, int64_t to) {
    const norm_job *j = arg;
    int n = tensor_width(j->x);
    for (int64_t t = from; t < to; t++) {
        float *x = tensor_line(j->x, t);
        add_row(x, tensor_line(j->r, t), n);
        rms_row(tensor_line(j->y, t), x, j->w.p, n, j->eps);
    }
}
static void add_rms_norm(device *d, tensor y, tensor x, tensor r, tensor w, float eps) {
    norm_job j = {.y = y, .x = x, .r = r, .w = w, .eps = eps};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), add_rms_rows, &j);
}

static void layer_row(float *y, const float *x, const float *w, const float *b, int n, float eps) {
    vf s = v_zero();
    FOR_16(i, n) s = v_add(s, row_get(x + i, left));
    vf mean = v_set1(v_sum(s) / (float)n);
    s = v_zero();
    FOR_16(i, n) {
        vf v = v_sub(row_get(x + i, left), mean);
        if (left < 16) v = v_sel(vm_range(0, left), v, v_zero());
        s = v_fma(v, v, s);
    }
    vf c = v_set1(1.0f / sqrtf(v_sum(s) / (float)n + eps));
    FOR_16(i, n) {
        vf v = v_mul(v_sub(row_get(x + i, left), mean), c);
        if (w) v = v_mul(v, row_get(w + i, left));
        if (b) v = v_add(v, row_get(b + i, left));
        row_put(y + i, v, left);
    }
}
static void layer_rows(const void *arg, int64_t from, int64_t to) {
    const norm_job *j = arg;
    int n = tensor_width(j->x);
    for (int64_t t = from; t < to; t++)
        layer_row(tensor_line(j->y, t), tensor_line(j->x, t), j->w.p, j->b.p, n, j->eps);
}
static void layer_norm(device *d, tensor y, tensor x, tensor w, tensor b, float eps) {
    norm_job j = {.y = y, .x = x, .w = w, .b = b, .eps = eps};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), layer_rows, &j);
}

/* ---- elementwise ---- */
typedef struct map_job {
    tensor y, x, u;
    float c;
    const int32_t *rows;
} map_job;

#define ACT_ROWS(name, fn)                                                                            \
    static void name##_rows(const void *arg, int64_t from, int64_t to) {                              \
        const map_job *j = arg;                                                                       \
        int n = tensor_width(j->x);                                                                   \
        for (int64_t t = from; t < to; t++) {                                                         \
            float *y = tensor_line(j->y, t), *x = tensor_line(j->x, t);                               \
            FOR_16(i, n) row_put(y + i, fn(row_get(x + i, left)), left);                              \
        }                                                                                             \
    }                                                                                                 \
    static void name##_mul_rows(const void *arg, int64_t from, int64_t to) {                          \
        const map_job *j = arg;                                                                       \
        int n = tensor_width(j->x);                                                                   \
        for (int64_t t = from; t < to; t++) {                                                         \
            float *y = tensor_line(j->y, t), *x = tensor_line(j->x, t), *u = tensor_line(j->u, t);    \
            FOR_16(i, n) row_put(y + i, v_mul(fn(row_get(x + i, left)), row_get(u + i, left)), left); \
        }                                                                                             \
    }
ACT_ROWS(silu, act_silu)
ACT_ROWS(gelu_erf, act_gelu_erf)
ACT_ROWS(gelu_tanh, act_gelu_tanh)
ACT_ROWS(relu, act_relu)
ACT_ROWS(sigmoid, v_sigmoid)
#undef ACT_ROWS

static const struct {
    cpu_rows_fn *plain, *mul;
    int cost; /* of one element, against one addition */
} act_table[] = {[ACT_SILU] = {silu_rows, silu_mul_rows, 4},
                 [ACT_GELU_ERF] = {gelu_erf_rows, gelu_erf_mul_rows, 8},
                 [ACT_GELU_TANH] = {gelu_tanh_rows, gelu_tanh_mul_rows, 6},
                 [ACT_RELU] = {relu_rows, relu_mul_rows, 1},
                 [ACT_SIGMOID] = {sigmoid_rows, sigmoid_mul_rows, 4}};

static void act_op(device *d, tensor y, tensor x, act a) {
    map_job j = {.y = y, .x = x};
    cpu_rows_run(d, tensor_lines(x), (int64_t)tensor_width(x) * act_table[a].cost, act_table[a].plain, &j);
}
static void act_mul(device *d, tensor y, tensor g, tensor u, act a) {
    map_job j = {.y = y, .x = g, .u = u};
    cpu_rows_run(d, tensor_lines(g), (int64_t)tensor_width(g) * act_table[a].cost, act_table[a].mul, &j);
}

static void add_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    for (int64_t t = from; t < to; t++) add_row(tensor_line(j->x, t), tensor_line(j->u, t), tensor_width(j->x));
}
static void add(device *d, tensor x, tensor y) {
    map_job j = {.x = x, .u = y};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), add_rows, &j);
}
static void scale_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    vf c = v_set1(j->c);
    for (int64_t t = from; t < to; t++) {
        float *x = tensor_line(j->x, t);
        FOR_16(i, tensor_width(j->x)) row_put(x + i, v_mul(row_get(x + i, left), c), left);
    }
}
static void scale(device *d, tensor x, float c) {
    map_job j = {.x = x, .c = c};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), scale_rows, &j);
}
V_INL vf softcap_v(vf x, vf cap) {
    return v_mul(cap, v_tanh(v_div(x, cap)));
}
static void softcap_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    vf c = v_set1(j->c);
    for (int64_t t = from; t < to; t++) {
        float *x = tensor_line(j->x, t);
        FOR_16(i, tensor_width(j->x)) row_put(x + i, softcap_v(row_get(x + i, left), c), left);
    }
}
static void softcap(device *d, tensor x, float cap) {
    map_job j = {.x = x, .c = cap};
    cpu_rows_run(d, tensor_lines(x), (int64_t)tensor_width(x) * 6, softcap_rows, &j);
}
static void copy_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    for (int64_t t = from; t < to; t++)
        memcpy(tensor_line(j->y, t), tensor_line(j->x, t), sizeof(float) * (size_t)tensor_width(j->x));
}
static void copy(device *d, tensor y, tensor x) {
    map_job j = {.y = y, .x = x};
    cpu_rows_run(d, tensor_lines(y), tensor_width(y), copy_rows, &j);
}
static void gather_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    for (int64_t t = from; t < to; t++)
        memcpy(tensor_line(j->y, t), tensor_line(j->x, j->rows[t]), sizeof(float) * (size_t)tensor_width(j->x));
}
static void gather(device *d, tensor y, tensor x, const int32_t *rows) {
    map_job j = {.y = y, .x = x, .rows = rows};
    cpu_rows_run(d, tensor_lines(y), tensor_width(y), gather_rows, &j);
}

/* ---- rope ---- */
typedef struct rope_job {
    tensor x;
    const float *cos_sin; /* [T][2][n], from rope_angles */
    int n;                /* length of a table row */
    bool interleaved;
} rope_job;

static void rope_head_half(float *x, const float *c, const float *s, int n) {
    FOR_16(i, n) {
        vf a = row_get(x + i, left), b = row_get(x + n + i, left), co = row_get(c + i, left), si = row_get(s + i, left);
        row_put(x + i, v_fnma(b, si, v_mul(a, co)), left);
        row_put(x + n + i, v_fma(b, co, v_mul(a, si)), left);
    }
}
/* Tables hold every angle twice, the sine with the sign its lane needs. */
static void rope_head_pairs(float *x, const float *c, const float *s, int n) {
    FOR_16(i, n) {
        vf a = row_get(x + i, left);
        row_put(x + i, v_fma(a, row_get(c + i, left), v_mul(v_swap(a), row_get(s + i, left))), left);
    }
}
static void rope_rows(const void *arg, int64_t from, int64_t to) {
    const rope_job *j = arg;
    int heads = j->x.ndim > 2 ? j->x.dim[1] : 1;
    for (int64_t t = from; t < to; t++) {
        const float *c = j->cos_sin + t * 2 * j->n, *s = c + j->n;
        for (int h = 0; h < heads; h++) {
            float *x = tensor_line(j->x, t * heads + h);
            if (j->interleaved)
                rope_head_pairs(x, c, s, j->n);
            else
                rope_head_half(x, c, s, j->n);
        }
    }
}
static void rope(device *d, tensor x, const int32_t *pos, const rope_table *r) {
    int heads = x.ndim > 2 ? x.dim[1] : 1, per = 0;
    if (r->n_freq > ROPE_FREQ_MAX || 2 * r->n_freq > tensor_width(x)) {
        error_set(&d->status, ERR_INTERNAL, "rope of %d pairs on heads of %d columns; at most %d pairs", r->n_freq,
                  tensor_width(x), ROPE_FREQ_MAX);
        return;
    }
    rope_job j = {.n = r->interleaved ? 2 * r->n_freq : r->n_freq, .interleaved = r->interleaved};
    for (int32_t from = 0; from < x.dim[0]; from += per) {
        per = rope_angles(d, pos + from, x.dim[0] - from, r, &j.cos_sin);
        j.x = tensor_rows(x, from, per);
        cpu_rows_run(d, per, (int64_t)heads * tensor_width(x), rope_rows, &j);
    }
}
