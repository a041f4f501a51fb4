/* Mixtures of experts, all but the matrix products: choosing experts, adding up what they say. Included by vec_ref.c,
 * vec_avx2.c and vec_avx512.c after vec_body.h: the same text at every level is what makes the bits equal.
 *
 * A row's chosen experts are kept in ascending order of their number; sums over them go in that order. */
#pragma once

/* ---- choosing ---- */
typedef struct router_job {
    tensor id, weight, score;
    const router *r;
} router_job;

/* p = exp(x − max), and 1 / its sum */
static float exp_row(float *p, const float *x, int n) {
    vf top = v_set1(-INFINITY), s = v_zero();
    FOR_16(i, n) {
        vf v = row_get(x + i, left);
        top = v_max(left < 16 ? v_sel(vm_range(0, left), v, top) : v, top);
    }
    vf most = v_set1(v_top(top));
    FOR_16(i, n) {
        vf e = v_exp(v_sub(row_get(x + i, left), most));
        if (left < 16) e = v_sel(vm_range(0, left), e, v_zero());
        row_put(p + i, e, left);
        s = v_add(s, e);
    }
    return 1.0f / v_sum(s);
}
static void sigmoid_row(float *p, const float *x, int n) {
    FOR_16(i, n) row_put(p + i, v_sigmoid(row_get(x + i, left)), left);
}

/* The largest of p [n] that is not taken; the lowest of equals. NaN counts as the smallest. */
static int largest_of(const float *p, const bool *taken, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || p[i] > p[best] || (p[best] != p[best] && p[i] == p[i]))) best = i;
    return best;
}
/* id [A] ascending: the A largest of p [E]. */
static void choose(int32_t *id, int A, const float *p, int E) {
    bool taken[EXPERTS_MAX] = {false};
    for (int a = 0; a < A; a++) taken[largest_of(p, taken, E)] = true;
    for (int e = 0, a = 0; e < E; e++)
        if (taken[e]) id[a++] = e;
}

static float two_largest(const float *p, int n) {
    bool taken[EXPERTS_MAX] = {false};
    int a = largest_of(p, taken, n);
    taken[a] = true;
    return n > 1 ? p[a] + p[largest_of(p, taken, n)] : p[a];
}
/* p of experts in groups that lose becomes r->lost. */
static void groups_limit(float *p, int E, const router *r) {
    float worth[EXPERTS_MAX];
    bool taken[EXPERTS_MAX] = {false};
    int per = E / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) worth[g] = two_largest(p + g * per, per);
    for (int i = 0; i < r->groups_chosen; i++) taken[largest_of(worth, taken, r->n_groups)] = true;
    for (int e = 0; e < E; e++)
        if (!taken[e / per]) p[e] = r->lost;
}

/* Each fills id [A] and weight [A]. */
static void route_softmax(int32_t *id, float *weight, int A, const float *x, int E, const router *r) {
    float p[EXPERTS_MAX];
    vf c = v_set1(exp_row(p, x, E));
    FOR_16(i, E) row_put(p + i, v_mul(row_get(p + i, left), c), left);
    choose(id, A, p, E);
    for (int a = 0; a < A; a++) weight[a] = p[id[a]];
}
static void route_softmax_chosen(int32_t *id, float *weight, int A, const float *x, int E, const router *r) {
    choose(id, A, x, E);
    for (int a = 0; a < A; a++) weight[a] = x[id[a]];
    float c = exp_row(weight, weight, A);
    for (int a = 0; a < A; a++) weight[a] *= c;
}
static void route_sigmoid(int32_t *id, float *weight, int A, const float *x, int E, const router *r) {
    float p[EXPERTS_MAX], biased[EXPERTS_MAX];
    sigmoid_row(p, x, E);
    for (int e = 0; e < E; e++) biased[e] = r->bias ? p[e] + r->bias[e] : p[e];
    if (r->n_groups > 1) groups_limit(biased, E, r);
    choose(id, A, biased, E);
    for (int a = 0; a < A; a++) weight[a] = p[id[a]];
}
static const struct {
    void (*route)(int32_t *id, float *weight, int A, const float *x, int E, const router *r);
    float least; /* added to the sum that weights are divided by */
} routers[] = {[ROUTER_SOFTMAX] = {route_softmax, 0},
               [ROUTER_SOFTMAX_CHOSEN] = {route_softmax_chosen, 0},
               [ROUTER_SIGMOID] = {route_sigmoid, 1e-20f}};

static void router_rows(const void *arg, int64_t from, int64_t to) {
    const router_job *j = arg;
    const router *r = j->r;
    int A = tensor_width(j->id), E = tensor_width(j->score);
    for (int64_t t = from; t < to; t++) {
        int32_t *id = (int32_t *)tensor_line(j->id, t);
        float *w = tensor_line(j->weight, t), sum = routers[r->kind].least;
        routers[r->kind].route(id, w, A, tensor_line(j->score, t), E, r);
        for (int a = 0; a < A; a++) sum += w[a];
        for (int a = 0; a < A; a++) {
            if (r->normalise) w[a] /= sum;
            w[a] *= r->scale;
            if (r->expert_scale) w[a] *= r->expert_scale[id[a]];
        }
    }
}
static void router_op(device *d, tensor id, tensor weight, tensor score, const router *r) {
    router_job j = {id, weight, score, r};
    int A = tensor_width(id), E = tensor_width(score);
    if (A > E || A > EXPERTS_ACTIVE_MAX || E > EXPERTS_MAX || (r->n_groups > 1 && E % r->n_groups)) {
        error_set(&d->status, ERR_INTERNAL, "a router of %d experts in %d groups, %d chosen; at most %d, %d", E,
                  r->n_groups, A, EXPERTS_MAX, EXPERTS_ACTIVE_MAX);
        return;
    }
    cpu_rows_run(d, score.dim[0], (int64_t)E * (A + 8), router_rows, &j);
}

/* ---- adding up ---- */
static void expert_sum_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    int A = j->x.dim[1], n = tensor_width(j->x);
    for (int64_t t = from; t < to; t++) {
        float *y = tensor_line(j->y, t);
        const float *x = tensor_row(j->x, t), *w = tensor_row(j->u, t);
        FOR_16(i, n) {
            vf s = v_mul(v_set1(w[0]), row_get(x + i, left));
            for (int a = 1; a < A; a++) s = v_fma(v_set1(w[a]), row_get(x + a * j->x.stride[1] + i, left), s);
            row_put(y + i, s, left);
        }
    }
}
static void expert_sum(device *d, tensor y, tensor x, tensor weight) {
    map_job j = {.y = y, .x = x, .u = weight};
    cpu_rows_run(d, y.dim[0], (int64_t)x.dim[1] * tensor_width(x), expert_sum_rows, &j);
}

static void mul_rows_rows(const void *arg, int64_t from, int64_t to) {
    const map_job *j = arg;
    int64_t per = tensor_lines(j->x) / j->x.dim[0];
    for (int64_t l = from; l < to; l++) {
        float *x = tensor_line(j->x, l);
        vf c = v_set1(*tensor_row(j->u, l / per));
        FOR_16(i, tensor_width(j->x)) row_put(x + i, v_mul(row_get(x + i, left), c), left);
    }
}
static void mul_rows(device *d, tensor x, tensor c) {
    map_job j = {.x = x, .u = c};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), mul_rows_rows, &j);
}

#define MOE_INSTALL(op)                \
    do {                               \
        (op)->router = router_op;      \
        (op)->expert_sum = expert_sum; \
        (op)->mul_rows = mul_rows;     \
    } while (0)
