/* Matrix products with experts: the (row, chosen expert) pairs of a step are sorted by expert, coded side by side, and
 * every expert's panels pass by its pairs once. The kernels are those of linear.h, so a pair's result does not depend
 * on which pairs stand beside it.
 *
 * Heads with a matrix each (lin_heads_run) are pairs of a row and a head, sorted by head.
 *
 * Pairs are worked on in segments of as many as the scratch holds rows (rows_max); an expert whose pairs are cut by the
 * end of a segment is read twice. Not here: which experts are chosen (moe_body.h), the arithmetic (linear_*.c). */
#include "linear.h"

enum { CODE_PAIRS = 8 /* pairs a coding task takes */, TASKS_PER_THREAD = 16 /* experts have few or many pairs */ };

/* The pairs of one expert in a segment: coded rows [row, row+n). */
typedef struct run {
    int32_t expert, row, n;
} run;

typedef struct job {
    const lin_kernels *k;
    tensor x, chosen; /* chosen .p NULL: the a-th of a row takes expert a */
    int32_t A, n_pairs /* of the segment */, n_runs, n_parts, n_panels /* of one expert, all parts */, n_tasks;
    bool one_plane;
    const int32_t *pair; /* [n_pairs] t*A + a, by expert */
    lin_expert_part part[LIN_PARTS];
    const lin_coded *code_of[LIN_PARTS]; /* into coded */
    bool used[CPU_LINEAR_CLASSES];
    lin_coded coded[CPU_LINEAR_CLASSES];
    run run[EXPERTS_MAX];
} job;

static int32_t expert_of(const job *j, int32_t pair) {
    if (tensor_null(j->chosen)) return pair % j->A;
    return ((const int32_t *)tensor_row(j->chosen, pair / j->A))[pair % j->A];
}

static const float *x_of(const job *j, int32_t pair) {
    const float *x = tensor_row(j->x, pair / j->A);
    return j->x.ndim == 3 ? x + pair % j->A * j->x.stride[1] : x;
}

/* Row blocks are cut inside a run: the i-th of them. */
static lin_block block_of(const job *j, const lin_coded *o, const run *r, int32_t i, int32_t *first) {
    int32_t at = i * o->block_rows;
    *first = r->row + at;
    return lin_block_of(o, *first, MIN(o->block_rows, r->n - at), j->one_plane);
}

static void code_pairs(void *arg, int task, int worker) {
    const job *j = arg;
    int32_t from = task * CODE_PAIRS, to = MIN(from + CODE_PAIRS, j->n_pairs);
    for (const run *r = j->run; from < to; r++) {
        for (; from < to && from < r->row + r->n; from++)
            for (int c = 0; c < CPU_LINEAR_CLASSES; c++) {
                if (!j->used[c]) continue;
                int32_t first;
                lin_block b = block_of(j, &j->coded[c], r, (from - r->row) / j->coded[c].block_rows, &first);
                j->k->code(&b, from - first, x_of(j, j->pair[from]), tensor_width(j->x));
            }
    }
}

static void store(const job *j, const lin_expert_part *part, int panel, int32_t first, int n, const float *acc) {
    int32_t from = panel * LIN_ROWS, cols = MIN((int32_t)LIN_ROWS, part->w->n_out - from);
    for (int i = 0; i < n; i++, acc += LIN_ROWS) {
        int32_t pair = j->pair[first + i];
        float *y = tensor_row(part->y, pair / j->A) + pair % j->A * part->y.stride[1] + from;
        memcpy(y, acc, (size_t)cols * sizeof *y);
    }
}

/* A range of the panels of one expert in one part. */
static void panels_run(const job *j, const run *r, int p, int lo, int hi) {
    const lin_expert_part *part = &j->part[p];
    const lin_coded *o = j->code_of[p];
    _Alignas(64) float acc[LIN_PANELS * LIN_TILE * LIN_ROWS];
    for (int32_t i = 0; i * o->block_rows < r->n; i++) {
        int32_t first;
        lin_block b = block_of(j, o, r, i, &first);
        for (int panel = lo, n; panel < hi; panel += n) {
            n = MIN(hi - panel, (int)LIN_PANELS);
            j->k->panels(part->w, lin_panel_of(part->w, r->expert, panel), n, &b, acc);
            for (int k = 0; k < n; k++) store(j, part, panel + k, first, b.n, acc + k * b.n * LIN_ROWS);
        }
    }
}

/* A task is a range of the panels of all runs: run after run, in a run part after part. */
static void panel_range(void *arg, int task, int worker) {
    const job *j = arg;
    int64_t all = (int64_t)j->n_runs * j->n_panels, at = all * task / j->n_tasks, to = all * (task + 1) / j->n_tasks;
    while (at < to) {
        const run *r = &j->run[at / j->n_panels];
        int32_t lo = (int32_t)(at % j->n_panels), p = 0;
        while (lo >= j->part[p].w->n_panels) lo -= j->part[p++].w->n_panels;
        int32_t hi = (int32_t)MIN((int64_t)j->part[p].w->n_panels, lo + (to - at));
        panels_run(j, r, p, lo, hi);
        at += hi - lo;
    }
}

/* Sorts the pairs by expert, each expert's in the order of the rows. false: an id out of range. */
static bool pairs_sort(const tensor chosen, int32_t E, int32_t *order) {
    int32_t T = chosen.dim[0], A = chosen.dim[1], at[EXPERTS_MAX + 1] = {0};
    for (int32_t i = 0; i < T * A; i++) {
        int32_t e = ((const int32_t *)tensor_row(chosen, i / A))[i % A];
        if (e < 0 || e >= E) return false;
        at[e + 1]++;
    }
    for (int32_t e = 0; e < E; e++) at[e + 1] += at[e];
    for (int32_t i = 0; i < T * A; i++) order[at[((const int32_t *)tensor_row(chosen, i / A))[i % A]]++] = i;
    return true;
}

static void segment_run(device *d, job *j) {
    j->n_runs = 0;
    for (int32_t i = 0; i < j->n_pairs; i++) {
        int32_t e = expert_of(j, j->pair[i]);
        if (!i || j->run[j->n_runs - 1].expert != e) j->run[j->n_runs++] = (run){e, i, 0};
        j->run[j->n_runs - 1].n++;
    }
    pool_run(d->threads, (j->n_pairs + CODE_PAIRS - 1) / CODE_PAIRS, code_pairs, j);
    int threads = pool_size(d->threads);
    j->n_tasks = threads == 1 ? 1 : (int)MIN((int64_t)threads * TASKS_PER_THREAD, (int64_t)j->n_runs * j->n_panels);
    pool_run(d->threads, j->n_tasks, panel_range, j);
}

static void part_add(const device *d, job *j, int p, lin_expert_part part) {
    lin_class class = lin_class_of(part.w, d->num);
    j->part[p] = part;
    j->coded[class] = lin_coded_of((const cpu_device *)d, class, part.w->n_in, LIN_TILE);
    j->code_of[p] = &j->coded[class];
    j->used[class] = true;
    j->n_panels += part.w->n_panels;
}

void lin_experts_run(device *d, const lin_kernels *k, tensor x, tensor chosen, int n_parts,
                     const lin_expert_part *part) {
    const cpu_device *c = (cpu_device *)d;
    int32_t T = chosen.dim[0], A = chosen.dim[1];
    job j = {.k = k, .x = x, .chosen = chosen, .A = A, .n_parts = n_parts, .one_plane = d->num == NUM_INT8};
    if (T > d->rows_max || A > EXPERTS_ACTIVE_MAX || part->w->n_experts > EXPERTS_MAX) {
        error_set(&d->status, ERR_INTERNAL, "%d rows, %d of %d experts each; at most %d rows, %d of %d", T, A,
                  part->w->n_experts, d->rows_max, EXPERTS_ACTIVE_MAX, EXPERTS_MAX);
        return;
    }
    if (!pairs_sort(chosen, part->w->n_experts, c->expert_order)) {
        error_set(&d->status, ERR_INTERNAL, "an expert was chosen that is not among the %d", part->w->n_experts);
        return;
    }
    for (int p = 0; p < n_parts; p++) part_add(d, &j, p, part[p]);
    for (int32_t from = 0; from < T * A; from += j.n_pairs) {
        j.pair = c->expert_order + from;
        j.n_pairs = MIN(T * A - from, d->rows_max);
        segment_run(d, &j);
    }
}

void lin_heads_run(device *d, const lin_kernels *k, tensor x, lin_expert_part part) {
    const cpu_device *c = (cpu_device *)d;
    int32_t T = x.dim[0], H = x.dim[1], *order = c->expert_order;
    job j = {.k = k, .x = x, .A = H, .pair = order, .one_plane = d->num == NUM_INT8};
    if (T > d->rows_max || H != part.w->n_experts || H > EXPERTS_MAX) {
        error_set(&d->status, ERR_INTERNAL, "%d rows of %d heads with %d matrices; at most %d rows, %d heads", T, H,
                  part.w->n_experts, d->rows_max, EXPERTS_MAX);
        return;
    }
    part_add(d, &j, 0, part);
    for (int32_t from = 0; from < T * H; from += j.n_pairs) {
        j.n_pairs = MIN(T * H - from, d->rows_max);
        for (int32_t i = 0; i < j.n_pairs; i++) order[i] = (from + i) % T * H + (from + i) / T;
        segment_run(d, &j);
    }
}
