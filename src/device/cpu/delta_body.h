/* Layers with recurrent state: the causal convolution, the gated delta rule, and what goes with them. Included by
 * vec_ref.c, vec_avx2.c and vec_avx512.c after vec_body.h: the same text at every level is what makes the bits equal.
 *
 * A sequence's rows are worked through one after the other, whatever the step holds besides: work is shared out over
 * channels, heads and columns of the state, never over rows. */
#pragma once

/* ---- normalising and decay ---- */
typedef struct l2_job {
    tensor y, x;
    float scale, eps;
} l2_job;

static void l2_rows(const void *arg, int64_t from, int64_t to) {
    const l2_job *j = arg;
    int n = tensor_width(j->x);
    for (int64_t t = from; t < to; t++) {
        float *y = tensor_line(j->y, t), *x = tensor_line(j->x, t);
        vf s = v_zero();
        FOR_16(i, n) {
            vf v = row_get(x + i, left);
            s = v_fma(v, v, s);
        }
        vf c = v_set1(j->scale / sqrtf(v_sum(s) + j->eps));
        FOR_16(i, n) row_put(y + i, v_mul(row_get(x + i, left), c), left);
    }
}
static void l2norm(device *d, tensor y, tensor x, float scale, float eps) {
    l2_job j = {y, x, scale, eps};
    cpu_rows_run(d, tensor_lines(x), tensor_width(x), l2_rows, &j);
}

typedef struct decay_job {
    tensor g, x, rate, shift;
} decay_job;

static void decay_rows(const void *arg, int64_t from, int64_t to) {
    const decay_job *j = arg;
    const float *rate = j->rate.p, *shift = j->shift.p;
    for (int64_t t = from; t < to; t++) {
        float *g = tensor_line(j->g, t), *x = tensor_line(j->x, t);
        FOR_16(i, tensor_width(j->x)) {
            vf z = v_softplus(v_add(row_get(x + i, left), row_get(shift + i, left)));
            row_put(g + i, v_exp_neg(v_mul(row_get(rate + i, left), z)), left);
        }
    }
}
static void decay(device *d, tensor g, tensor x, tensor rate, tensor shift) {
    decay_job j = {g, x, rate, shift};
    cpu_rows_run(d, tensor_lines(x), (int64_t)tensor_width(x) * 8, decay_rows, &j);
}

/* Rows lie far apart (a page or more), where the processor does not fetch ahead by itself. */
enum { AHEAD_CONV = 16, AHEAD_DELTA = 2 };
static void row_fetch(const float *p, int n) {
    for (int i = 0; i < n; i += 16) __builtin_prefetch(p + i);
}

/* ---- convolution ---- */
typedef struct conv_job {
    tensor y, x, w;
    const step *s;
    const cpu_state_layer *layer;
    int columns; /* of 16 channels */
} conv_job;

static void conv_column(const conv_job *j, const step_seq *q, int c, int left) {
    const int J = j->w.dim[0], C = j->w.dim[1];
    float *kept = state_at(j->s->state, q->slot, j->layer->conv_at) + c;
    vf w[CONV_KERNEL_MAX], x[CONV_KERNEL_MAX];
    for (int i = 0; i < J; i++) w[i] = row_get((const float *)j->w.p + i * C + c, left);
    for (int i = 0; i + 1 < J; i++) x[i] = q->pos0 ? row_get(kept + i * C, left) : v_zero();
    for (int32_t t = q->row0; t < q->row0 + q->n_rows; t++) {
        if (t + AHEAD_CONV < q->row0 + q->n_rows) {
            __builtin_prefetch(tensor_row(j->x, t + AHEAD_CONV) + c);
            __builtin_prefetch(tensor_row(j->y, t + AHEAD_CONV) + c, 1);
        }
        x[J - 1] = row_get(tensor_row(j->x, t) + c, left);
        vf s = v_mul(w[0], x[0]);
        for (int i = 1; i < J; i++) s = v_fma(w[i], x[i], s);
        row_put(tensor_row(j->y, t) + c, s, left);
        for (int i = 0; i + 1 < J; i++) x[i] = x[i + 1];
    }
    for (int i = 0; i + 1 < J; i++) row_put(kept + i * C, x[i], left);
}
static void conv_columns(const void *arg, int64_t from, int64_t to) {
    const conv_job *j = arg;
    for (int64_t l = from; l < to; l++) {
        int c = (int)(l % j->columns) * 16;
        conv_column(j, &j->s->seq[l / j->columns], c, j->w.dim[1] - c);
    }
}

/* False, with the status set, unless the step brings a slot of the store for each sequence. */
static bool state_check(device *d, const step *s, int layer) {
    const state_store *st = s->state;
    bool ok = st && layer >= 0 && layer < st->n_layers;
    for (int32_t i = 0; ok && i < s->n_seqs; i++) ok = s->seq[i].slot >= 0 && s->seq[i].slot < st->n_slots;
    if (!ok) error_set(&d->status, ERR_INTERNAL, "a step without a place for its recurrent state");
    return ok;
}

static void conv1d_state(device *d, tensor y, tensor x, tensor w, int layer, const step *s) {
    if (!state_check(d, s, layer)) return;
    conv_job j = {y, x, w, s, &s->state->layer[layer], (w.dim[1] + 15) / 16};
    int64_t rows = (s->n_rows + s->n_seqs - 1) / s->n_seqs;
    cpu_rows_run(d, (int64_t)s->n_seqs * j.columns, rows * 16 * w.dim[0], conv_columns, &j);
}

/* ---- the delta rule ---- */
enum { DELTA_TILE = 64 /* columns of S worked on together: with Dk = 128 they stay in the first-level cache */ };

typedef struct delta_job {
    tensor o, q, k, v, g, beta;
    bool tiled;
    const step *s;
    const cpu_state_layer *layer;
    int tiles; /* of one head */
} delta_job;

/* One row on N·16 columns of S [Dk] (row stride in floats). The columns past `left` hold zeros and keep them. */
V_INL void delta_step(const int N, float *S, int stride, int Dk, const float *q, const float *k, const float *v,
                      float *o, vf g, vf beta, int left) {
    vf a[4], b[4], u[4]; /* sums over even and odd rows of S */
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) a[n] = b[n] = v_zero();
    for (int i = 0; i + 1 < Dk; i += 2) {
        const float *s = S + i * stride;
        vf k0 = v_set1(k[i]), k1 = v_set1(k[i + 1]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            a[n] = v_fma(v_load(s + n * 16), k0, a[n]);
            b[n] = v_fma(v_load(s + stride + n * 16), k1, b[n]);
        }
    }
    if (Dk % 2)
        for (int n = 0; n < N; n++) a[n] = v_fma(v_load(S + (Dk - 1) * stride + n * 16), v_set1(k[Dk - 1]), a[n]);
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        vf m = v_mul(g, v_add(a[n], b[n]));
        u[n] = v_mul(beta, v_sub(row_get(v + n * 16, left - n * 16), m));
        a[n] = b[n] = v_zero();
    }
    for (int i = 0; i + 1 < Dk; i += 2) {
        float *s = S + i * stride;
        vf k0 = v_set1(k[i]), k1 = v_set1(k[i + 1]), q0 = v_set1(q[i]), q1 = v_set1(q[i + 1]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            vf s0 = v_fma(u[n], k0, v_mul(g, v_load(s + n * 16)));
            vf s1 = v_fma(u[n], k1, v_mul(g, v_load(s + stride + n * 16)));
            v_store(s + n * 16, s0);
            v_store(s + stride + n * 16, s1);
            a[n] = v_fma(s0, q0, a[n]);
            b[n] = v_fma(s1, q1, b[n]);
        }
    }
    for (int n = 0; Dk % 2 && n < N; n++) {
        float *s = S + (Dk - 1) * stride + n * 16;
        vf s0 = v_fma(u[n], v_set1(k[Dk - 1]), v_mul(g, v_load(s)));
        v_store(s, s0);
        a[n] = v_fma(s0, v_set1(q[Dk - 1]), a[n]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) row_put(o + n * 16, v_add(a[n], b[n]), left - n * 16);
}

/* All rows of a sequence on one tile of one head. */
V_INL void delta_rows(const int N, const delta_job *j, const step_seq *q, int h, int c) {
    const state_layer *dim = &j->layer->dim;
    const int Dk = dim->k_width, stride = j->layer->v_pad, Hk = j->k.dim[1];
    int hk = j->tiled ? h % Hk : h / (dim->heads / Hk);
    float *S = state_at(j->s->state, q->slot, j->layer->head_at) + (size_t)h * (size_t)Dk * (size_t)stride + c;
    for (int i = 0; q->pos0 == 0 && i < Dk; i++) memset(S + i * stride, 0, sizeof(float) * (size_t)(N * 16));
    for (int32_t t = q->row0; t < q->row0 + q->n_rows; t++) {
        if (t + AHEAD_DELTA < q->row0 + q->n_rows) {
            row_fetch(tensor_row(j->q, t + AHEAD_DELTA) + hk * j->q.stride[1], Dk);
            row_fetch(tensor_row(j->k, t + AHEAD_DELTA) + hk * j->k.stride[1], Dk);
            row_fetch(tensor_row(j->v, t + AHEAD_DELTA) + h * j->v.stride[1] + c, N * 16);
            row_fetch(tensor_row(j->o, t + AHEAD_DELTA) + h * j->o.stride[1] + c, N * 16);
        }
        delta_step(N, S, stride, Dk, tensor_row(j->q, t) + hk * j->q.stride[1],
                   tensor_row(j->k, t) + hk * j->k.stride[1], tensor_row(j->v, t) + h * j->v.stride[1] + c,
                   tensor_row(j->o, t) + h * j->o.stride[1] + c, v_set1(tensor_row(j->g, t)[h]),
                   v_set1(tensor_row(j->beta, t)[h]), dim->v_width - c);
    }
}

static void delta_tiles(const void *arg, int64_t from, int64_t to) {
    const delta_job *j = arg;
    const int heads = j->layer->dim.heads;
    for (int64_t l = from; l < to; l++) {
        int c = (int)(l % j->tiles) * DELTA_TILE, h = (int)(l / j->tiles % heads);
        const step_seq *q = &j->s->seq[l / j->tiles / heads];
        switch (MIN((j->layer->v_pad - c) / 16, 4)) {
        case 1: delta_rows(1, j, q, h, c); break;
        case 2: delta_rows(2, j, q, h, c); break;
        case 3: delta_rows(3, j, q, h, c); break;
        default: delta_rows(4, j, q, h, c);
        }
    }
}

static void delta_rule(device *d, tensor o, tensor q, tensor k, tensor v, tensor g, tensor beta, bool tiled, int layer,
                       const step *s) {
    if (!state_check(d, s, layer)) return;
    const cpu_state_layer *l = &s->state->layer[layer];
    delta_job j = {o, q, k, v, g, beta, tiled, s, l, (l->v_pad + DELTA_TILE - 1) / DELTA_TILE};
    int64_t rows = (s->n_rows + s->n_seqs - 1) / s->n_seqs;
    cpu_rows_run(d, (int64_t)s->n_seqs * l->dim.heads * j.tiles, rows * l->dim.k_width * DELTA_TILE, delta_tiles, &j);
}

#define DELTA_INSTALL(op)                  \
    do {                                   \
        (op)->l2norm = l2norm;             \
        (op)->decay = decay;               \
        (op)->conv1d_state = conv1d_state; \
        (op)->delta_rule = delta_rule;     \
    } while (0)
