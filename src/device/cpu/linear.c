/* Matrix products on the CPU, the part all instruction levels share: coding the activations once, splitting panels over
 * threads, writing results.
 *
 * Not here: the arithmetic (linear_ref.c defines it), the packed form (pack.c). Read linear.h first. */
#include "linear.h"

enum {
    TASK_BYTES = 64 * 1024,      /* a task reads at least this much of the weights */
    TASKS_PER_THREAD = 4,        /* so that a thread that was held up does not hold up the others */
    BLOCK_BYTES = 1024 * 1024,   /* coded activations of a row block: half of a 2 MiB second-level cache */
    FEW_ROWS = 8,                /* below it panels are read LIN_PANELS at a time */
    STREAM_ROWS = 64,            /* from so many rows on, results need not stay in cache */
    CODE_ROWS = 8,               /* rows a coding task takes */
    CODE_ALONE_ELEMS = 16 * 1024 /* fewer activations than this are coded by the caller: a fork-join costs more */
};

lin_class lin_class_of(const cpu_packed *w, numerics num) {
    if (w->floats || num == NUM_F32) return LC_F32;
    return w->group == 16 ? LC_16 : w->group == 32 ? LC_32 : LC_64;
}

lin_part lin_part_of(tensor y, const weight *w) {
    return (lin_part){.w = w->packed, .bias = w->bias.p, .y = y.p, .y_stride = y.stride[0]};
}

/* ---- scratch: for each class x, then a, c and hl ----------------------------------------------------------------- */
static int32_t chunks_of(int32_t n_in) {
    return n_in / LIN_COLS + (n_in % LIN_COLS != 0);
}
static size_t x_row_bytes(lin_class class, int32_t n_chunks) {
    return (size_t)n_chunks * LIN_COLS * (class == LC_F32 ? 4 : 2);
}
static size_t groups_of(lin_class class, int32_t n_chunks) {
    return class == LC_F32 ? 0 : (size_t)(n_chunks * (LIN_COLS / lin_class_cols(class)));
}
static size_t class_bytes(lin_class class, int32_t n_in, int rows) {
    int32_t n_chunks = chunks_of(n_in);
    size_t row = x_row_bytes(class, n_chunks) + groups_of(class, n_chunks) * 3 * sizeof(float);
    return ((size_t)rows * row + 63) / 64 * 64;
}

size_t lin_scratch_planned(const cpu_device *d) {
    size_t bytes = 0;
    for (int c = 0; c < CPU_LINEAR_CLASSES; c++)
        bytes += class_bytes(c, MAX(d->linear_planned[c], d->linear_widest[c]), d->base.rows_max);
    return bytes;
}

bool lin_scratch_grow(cpu_device *d, lin_class class, int32_t n_in, error *err) {
    if (n_in <= d->linear_widest[class]) return true;
    size_t bytes = 0;
    for (int c = 0; c < CPU_LINEAR_CLASSES; c++)
        bytes += class_bytes(c, c == (int)class ? n_in : d->linear_widest[c], d->base.rows_max);
    void *p = mem_try(bytes, 64, err);
    if (!p) return false;
    mem_try_free(d->scratch, d->scratch_bytes);
    d->scratch = p;
    d->scratch_bytes = bytes;
    d->linear_widest[class] = n_in;
    return true;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */
typedef struct job {
    const lin_kernels *k;
    const float *x;
    int64_t x_stride;
    int32_t T, n_in, n_parts, n_panels, n_tasks;
    bool one_plane;
    lin_part part[LIN_PARTS];
    lin_class class[LIN_PARTS];
    bool used[CPU_LINEAR_CLASSES];
    lin_coded coded[CPU_LINEAR_CLASSES];
} job;

lin_coded lin_coded_of(const cpu_device *d, lin_class class, int32_t n_in, int32_t T) {
    uint8_t *base = d->scratch;
    for (lin_class c = 0; c < class; c++) base += class_bytes(c, d->linear_widest[c], d->base.rows_max);
    lin_coded o = {.x = base, .n_chunks = chunks_of(n_in), .class = class};
    o.row_bytes = x_row_bytes(class, o.n_chunks);
    o.groups = groups_of(class, o.n_chunks);
    int32_t fit = MIN(MAX((int32_t)(BLOCK_BYTES / o.row_bytes), 12), (int32_t)LIN_TILE), n_blocks = (T + fit - 1) / fit;
    o.block_rows = (T + 12 * n_blocks - 1) / (12 * n_blocks) * 12; /* blocks of like size, whole register tiles */
    o.abc = (float *)(base + (size_t)d->base.rows_max * x_row_bytes(class, chunks_of(d->linear_widest[class])));
    return o;
}

lin_block lin_block_of(const lin_coded *o, int32_t first, int32_t n, bool one_plane) {
    lin_block b = {.n = n, .n_chunks = o->n_chunks, .class = o->class, .one_plane = one_plane};
    b.x = o->x + (size_t)first * o->row_bytes;
    b.a = o->abc + (size_t)first * o->groups * 3;
    b.c = b.a + (size_t)n * o->groups;
    b.hl = (int32_t *)(b.c + (size_t)n * o->groups);
    return b;
}

static lin_block block_of(const job *j, lin_class class, int32_t row) {
    const lin_coded *o = &j->coded[class];
    int32_t first = row / o->block_rows * o->block_rows;
    return lin_block_of(o, first, MIN(o->block_rows, j->T - first), j->one_plane);
}

static void code_rows(void *arg, int task, int worker) {
    const job *j = arg;
    int32_t end = MIN((task + 1) * CODE_ROWS, j->T);
    for (int c = 0; c < CPU_LINEAR_CLASSES; c++) {
        if (!j->used[c]) continue;
        for (int32_t t = task * CODE_ROWS; t < end; t++) {
            lin_block b = block_of(j, c, t);
            j->k->code(&b, t % j->coded[c].block_rows, j->x + t * j->x_stride, j->n_in);
        }
    }
}

/* Results of many rows go past the caches: lines of distant rows fall into the same few sets, and fetching them to be
 * overwritten takes a tenth of the time. */
static bool streamed(const job *j, const lin_part *part, int panel) {
    bool aligned = (((uintptr_t)part->y | (uintptr_t)part->y_stride * sizeof(float)) & 31) == 0;
    return j->k->stream && j->T >= STREAM_ROWS && aligned && !part->bias && (panel + 1) * LIN_ROWS <= part->w->n_out;
}

static void store(const job *j, const lin_part *part, int panel, int row, int n, const float *acc) {
    int32_t from = panel * LIN_ROWS, cols = MIN((int32_t)LIN_ROWS, part->w->n_out - from);
    float *y = part->y + row * part->y_stride + from;
    if (streamed(j, part, panel)) {
        j->k->stream(acc, n, y, part->y_stride);
        return;
    }
    for (int t = 0; t < n; t++, acc += LIN_ROWS, y += part->y_stride)
        for (int i = 0; i < cols; i++) y[i] = part->bias ? acc[i] + part->bias[from + i] : acc[i];
}

/* A task is a range of the panels of all parts together: contiguous memory, so that a thread reads one stream. */
static void panel_range(void *arg, int task, int worker) {
    const job *j = arg;
    int32_t from = (int32_t)((int64_t)j->n_panels * task / j->n_tasks);
    int32_t to = (int32_t)((int64_t)j->n_panels * (task + 1) / j->n_tasks);
    _Alignas(64) float acc[LIN_PANELS * LIN_TILE * LIN_ROWS];
    for (int p = 0, first = 0; p < j->n_parts; first += j->part[p++].w->n_panels) {
        const lin_part *part = &j->part[p];
        int32_t lo = MAX(from - first, 0), hi = MIN(to - first, part->w->n_panels);
        for (int32_t row = 0; lo < hi && row < j->T; row += j->coded[j->class[p]].block_rows) {
            lin_block b = block_of(j, j->class[p], row);
            for (int32_t panel = lo, n; panel < hi; panel += n) {
                n = MIN(hi - panel, b.n < FEW_ROWS ? (int32_t)LIN_PANELS : LIN_PANELS / 2);
                j->k->panels(part->w, lin_panel_of(part->w, part->expert, panel), n, &b, acc);
                for (int32_t i = 0; i < n; i++) store(j, part, panel + i, row, b.n, acc + i * b.n * LIN_ROWS);
            }
        }
    }
}

void lin_run(device *d, const lin_kernels *k, const float *x, int64_t x_stride, int T, int n_parts,
             const lin_part *part) {
    job j = {.k = k, .x = x, .x_stride = x_stride, .T = T, .n_in = part->w->n_in, .n_parts = n_parts};
    j.one_plane = d->num == NUM_INT8;
    if (T > d->rows_max) {
        error_set(&d->status, ERR_INTERNAL, "matrix product of %d rows; the device was opened for %d", T, d->rows_max);
        return;
    }
    size_t bytes = 0;
    for (int p = 0; p < n_parts; p++) {
        j.part[p] = part[p];
        j.class[p] = lin_class_of(part[p].w, d->num);
        if (!j.used[j.class[p]]) j.coded[j.class[p]] = lin_coded_of((cpu_device *)d, j.class[p], j.n_in, T);
        j.used[j.class[p]] = true;
        j.n_panels += part[p].w->n_panels;
        bytes += part[p].w->expert_bytes;
    }
    int n_code = (T + CODE_ROWS - 1) / CODE_ROWS;
    if ((int64_t)T * j.n_in < CODE_ALONE_ELEMS)
        for (int t = 0; t < n_code; t++) code_rows(&j, t, 0);
    else
        pool_run(d->threads, n_code, code_rows, &j);
    int threads = pool_size(d->threads), most = threads == 1 ? 1 : threads * TASKS_PER_THREAD;
    j.n_tasks = (int)MIN((size_t)most, MAX(bytes * (size_t)T / TASK_BYTES, (size_t)threads));
    j.n_tasks = MIN(j.n_tasks, j.n_panels);
    pool_run(d->threads, j.n_tasks, panel_range, &j);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */
typedef struct embed_job {
    const lin_kernels *k;
    tensor y;
    const cpu_packed *w;
    const int32_t *ids;
    float scale;
} embed_job;

static void embed_row(void *arg, int t, int worker) {
    const embed_job *j = arg;
    const cpu_packed *w = j->w;
    const uint8_t *panel = lin_panel_of(w, 0, j->ids[t] / LIN_ROWS);
    float *y = tensor_row(j->y, t);
    _Alignas(64) float f[LIN_COLS * LIN_ROWS];
    for (int32_t c = 0; c < w->n_chunks; c++) {
        j->k->chunk_f32(w, panel, c, f);
        int32_t n = MIN((int32_t)LIN_COLS, w->n_in - c * LIN_COLS);
        for (int32_t i = 0; i < n; i++) y[c * LIN_COLS + i] = j->scale * f[i * LIN_ROWS + j->ids[t] % LIN_ROWS];
    }
}

void lin_embed(device *d, const lin_kernels *k, tensor y, const weight *table, const int32_t *ids, float scale) {
    embed_job j = {.k = k, .y = y, .w = table->packed, .ids = ids, .scale = scale};
    for (int32_t t = 0; t < y.dim[0]; t++)
        if (ids[t] < 0 || ids[t] >= table->n_out) {
            error_set(&d->status, ERR_INTERNAL, "token id %d at row %d; %s has %d rows", ids[t], t, table->name,
                      table->n_out);
            return;
        }
    pool_run(d->threads, y.dim[0], embed_row, &j);
}
