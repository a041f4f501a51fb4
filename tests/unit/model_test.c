/* model: the checkpoints of tests/data/models against their goldens (tools/goldens_cut.py), and the promise that a
 * row's logits depend on nothing but its sequence. Runs steps directly, with a page table of its own; the engine is not
 * involved. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/model/internal.h"

#define DATA "tests/data/models/"
#define CHECK(e, ok)                        \
    do {                                    \
        if (!(ok)) fail_msg("%s", (e).msg); \
    } while (0)

/* ---- goldens ---------------------------------------------------------------------------------------------------- */
typedef struct golden {
    buf raw; /* owns; the rest borrows */
    int32_t V, n_short, n_long, n_pos, n_dec;
    float r1_mean, r1_median;
    const int32_t *short_ids, *long_ids, *long_pos, *dec_ids;
    const float *shorts, *longs, *dec;
} golden;

static golden golden_read(const char *file) {
    char path[256];
    golden g = {0};
    error e = {0};
    snprintf(path, sizeof path, DATA "%s", file);
    CHECK(e, file_read(&g.raw, path, 8 << 20, &e));
    const int32_t *h = (const int32_t *)g.raw.p;
    assert_memory_equal(h, "HGLD", 4);
    g.V = h[1], g.n_short = h[2], g.n_long = h[3], g.n_pos = h[4], g.n_dec = h[5];
    memcpy(&g.r1_mean, h + 6, 4);
    memcpy(&g.r1_median, h + 7, 4);
    g.short_ids = h + 8;
    g.long_ids = g.short_ids + g.n_short;
    g.long_pos = g.long_ids + g.n_long;
    g.dec_ids = g.long_pos + g.n_pos;
    g.shorts = (const float *)(g.dec_ids + g.n_dec);
    g.longs = g.shorts + g.n_short * g.V;
    g.dec = g.longs + g.n_pos * g.V;
    return g;
}

/* ---- running a model -------------------------------------------------------------------------------------------- */
enum { PAGES = 8 /* of a sequence */, SEQS = 3, ROWS = 300 };

typedef struct run {
    checkpoint *c;
    device *d;
    model *m;
    kv_spec spec;
    kv_cache *kv;
    state_store *state; /* NULL: the model has none; sequence b is in slot SEQS - 1 - b */
    int32_t page[SEQS][PAGES];
    int32_t V;
} run;

/* False when this machine lacks the level. */
static bool run_open(run *r, const char *model, numerics num, int threads, const char *level, bool compat) {
    char path[256];
    error e = {0};
    *r = (run){0};
    snprintf(path, sizeof path, DATA "%s", model);
    r->d = device_cpu_open(&(device_opts){.num = num, .threads = threads, .rows_max = ROWS, .level = level}, &e);
    if (level && (!r->d || strcmp(device_cpu_level(r->d), level))) {
        if (r->d) device_close(r->d);
        return false;
    }
    CHECK(e, r->d);
    CHECK(e, r->c = checkpoint_open(path, &e));
    CHECK(e, r->m = model_open(r->c, r->d, &(model_opts){.compat_mlx_lm = compat}, &e));
    r->spec = *model_kv_spec(r->m);
    r->spec.type = num == NUM_F32 ? DT_F32 : DT_F16;
    for (int g = 0; g < r->spec.n_groups; g++) r->spec.n_pages[g] = SEQS * PAGES;
    CHECK(e, r->kv = r->d->vt->kv_new(r->d, &r->spec, &e));
    state_spec state = *model_state_spec(r->m);
    state.n_slots = SEQS;
    if (state.n_layers) CHECK(e, r->state = r->d->vt->state_new(r->d, &state, &e));
    for (int b = 0; b < SEQS; b++) /* pages deliberately out of order */
        for (int i = 0; i < PAGES; i++) r->page[b][i] = (i * SEQS + b * 5 + 7) % (SEQS * PAGES);
    r->V = model_describe(r->m)->vocab;
    return true;
}

static void run_close(run *r) {
    r->d->vt->kv_free(r->d, r->kv);
    r->d->vt->state_free(r->d, r->state);
    model_close(r->m);
    checkpoint_close(r->c);
    device_close(r->d);
}

/* A piece of a sequence: rows [pos0, pos0+n) of ids; all their logits go to out[pos0*V ...], or with out NULL nowhere:
 * then only the cache is wanted. */
typedef struct piece {
    int b, pos0, n;
    const int32_t *ids;
    float *out;
} piece;

static void run_step(run *r, const piece *p, int n) {
    static int32_t ids[ROWS], pos[ROWS], out[ROWS];
    step_seq seq[SEQS] = {0};
    step s = {.n_seqs = n, .ids = ids, .pos = pos, .out = out, .seq = seq, .state = r->state};
    for (int i = 0; i < n; i++) {
        seq[i] = (step_seq){.row0 = s.n_rows, .n_rows = p[i].n, .pos0 = p[i].pos0};
        seq[i].slot = r->state ? SEQS - 1 - p[i].b : -1;
        for (int g = 0; g < KV_GROUPS; g++) seq[i].page[g] = r->page[p[i].b];
        for (int k = 0; k < p[i].n; k++, s.n_rows++) {
            ids[s.n_rows] = p[i].ids[p[i].pos0 + k];
            pos[s.n_rows] = p[i].pos0 + k;
            out[s.n_rows] = s.n_rows;
        }
    }
    s.n_out = p[0].out ? s.n_rows : 0;
    float *logits = malloc((size_t)s.n_rows * (size_t)r->V * sizeof *logits);
    error e = {0};
    CHECK(e, model_forward(r->m, r->kv, &s, tensor_f32(logits, s.n_rows, r->V), &e));
    for (int i = 0; i < n && s.n_out; i++)
        memcpy(p[i].out + (size_t)p[i].pos0 * (size_t)r->V, logits + (size_t)seq[i].row0 * (size_t)r->V,
               (size_t)p[i].n * (size_t)r->V * sizeof *logits);
    free(logits);
}

/* Logits [n,V] of one sequence in chunks; the caller's to free. */
static float *run_all(run *r, const int32_t *ids, int n, int chunk) {
    float *out = malloc((size_t)n * (size_t)r->V * sizeof *out);
    for (int at = 0; at < n; at += chunk) run_step(r, &(piece){0, at, MIN(chunk, n - at), ids, out}, 1);
    return out;
}

/* short followed by what was generated: row n_short-1+i is what dec_ids[i] was picked from. */
static int32_t *forced(const golden *g) {
    int32_t *ids = malloc((size_t)(g->n_short + g->n_dec) * sizeof *ids);
    memcpy(ids, g->short_ids, (size_t)g->n_short * sizeof *ids);
    memcpy(ids + g->n_short, g->dec_ids, (size_t)g->n_dec * sizeof *ids);
    return ids;
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */
typedef struct diff {
    double max, kl; /* kl: sum over rows */
    double row_kl[ROWS];
    int rows, flips; /* greedy choices that differ though the margin allows no doubt */
} diff;

static double log_sum(const float *x, int n) {
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = fmax(top, x[i]);
    for (int i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}

static void compare(diff *to, const float *want, const float *got, int rows, int V, double bound) {
    for (int i = 0; i < rows; i++, want += V, got += V) {
        double a = log_sum(want, V), b = log_sum(got, V), kl = 0;
        int best = 0, mine = 0;
        for (int k = 0; k < V; k++) {
            to->max = isnan(got[k]) ? INFINITY : fmax(to->max, fabs((double)want[k] - got[k]));
            kl += exp(want[k] - a) * (want[k] - a - got[k] + b);
            if (want[k] > want[best]) best = k;
            if (got[k] > got[mine]) mine = k;
        }
        to->kl += fmax(kl, 0);
        to->row_kl[to->rows++] = fmax(kl, 0);
        to->flips += mine != best && want[best] - want[mine] > 2 * bound;
    }
}

static diff golden_diff(run *r, const golden *g, int chunk, double bound) {
    diff x = {0};
    int32_t *ids = forced(g);
    float *a = run_all(r, ids, g->n_short + g->n_dec - 1, chunk), *b = run_all(r, g->long_ids, g->n_long, chunk);
    compare(&x, g->shorts, a, g->n_short, g->V, bound);
    compare(&x, g->dec, a + (g->n_short - 1) * g->V, g->n_dec, g->V, bound);
    for (int i = 0; i < g->n_pos; i++) compare(&x, g->longs + i * g->V, b + g->long_pos[i] * g->V, 1, g->V, bound);
    free(ids), free(a), free(b);
    return x;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median_kl(diff *x) {
    qsort(x->row_kl, (size_t)x->rows, sizeof *x->row_kl, rising);
    return (x->row_kl[x->rows / 2] + x->row_kl[(x->rows - 1) / 2]) / 2;
}

/* One wrong choice of an expert or of an indexed key makes a bf16 mean meaningless: medians for these. */
static bool is_routed(const char *name) {
    static const char *const parts[] = {"_moe", "_next", "gemma4_26b", "deepseek", "glm_dsa"};
    for (size_t i = 0; i < COUNT(parts); i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

/* The checkpoints. mistral's golden.bin is mlx-lm's reading (no window), its definition.bin transformers'. The GGUF
 * files hold the weights of the checkpoints whose goldens they are compared with. */
static const struct {
    const char *name, *golden;
    bool compat, exact; /* exact: all weights are integer codes, so levels agree to the bit */
    double bound;       /* f32 numerics */
} models[] = {
    {"llama-q4", "llama-q4/golden.bin", false, true, 5e-4},
    {"llama-mixall", "llama-mixall/golden.bin", false, false, 5e-4},
    {"llama-q1g64", "llama-q1g64/golden.bin", false, true, 5e-3},
    {"llama_tied-q4", "llama_tied-q4/golden.bin", false, true, 5e-4},
    {"llama_tied-bf16.gguf", "llama_tied-bf16/golden.bin", false, false, 5e-4},
    {"llama_plain-q4", "llama_plain-q4/golden.bin", false, true, 5e-4},
    {"llama_plain-bf16", "llama_plain-bf16/golden.bin", false, false, 5e-4},
    {"llama_plain-bf16.gguf", "llama_plain-bf16/golden.bin", false, false, 5e-4},
    {"minicpm5-q4", "minicpm5-q4/golden.bin", false, true, 5e-4},
    {"mistral-q4", "mistral-q4/golden.bin", true, true, 5e-4},
    {"mistral-q4", "mistral-q4/definition.bin", false, true, 5e-4},
    {"mistral_swa-q4", "mistral_swa-q4/golden.bin", false, true, 5e-4},
    {"llama-odd80", "llama-odd80/golden.bin", false, false, 5e-4},
    {"llama-odd96", "llama-odd96/golden.bin", false, true, 5e-4},
    {"qwen2-q4", "qwen2-q4/golden.bin", false, true, 5e-4},
    {"qwen3-q4", "qwen3-q4/golden.bin", false, true, 5e-4},
    {"smollm3-q4", "smollm3-q4/golden.bin", false, true, 5e-4},
    {"olmo2-q4", "olmo2-q4/golden.bin", false, true, 5e-4},
    {"granite-q4", "granite-q4/golden.bin", false, true, 5e-4},
    {"glm4-q4", "glm4-q4/golden.bin", false, true, 5e-4},
    {"phi3-q4", "phi3-q4/golden.bin", true, true, 5e-4},
    {"phi3-q4", "phi3-q4/definition.bin", false, true, 5e-4},
    {"starcoder2-q4", "starcoder2-q4/golden.bin", true, true, 5e-4},
    {"starcoder2-q4", "starcoder2-q4/definition.bin", false, true, 5e-4},
    {"qwen2-odd", "qwen2-odd/golden.bin", false, true, 5e-4},
    {"qwen3-odd", "qwen3-odd/golden.bin", false, false, 5e-4},
    {"smollm3-odd", "smollm3-odd/golden.bin", false, true, 5e-4},
    {"olmo2-odd", "olmo2-odd/golden.bin", false, true, 5e-4},
    {"granite-odd", "granite-odd/golden.bin", false, true, 5e-4},
    {"glm4-odd", "glm4-odd/golden.bin", false, true, 5e-4},
    {"phi3-odd", "phi3-odd/golden.bin", false, true, 5e-4},
    {"starcoder2-odd", "starcoder2-odd/golden.bin", false, true, 5e-4},
    {"gemma-q4", "gemma-q4/golden.bin", true, true, 5e-4},
    {"gemma-q4", "gemma-q4/definition.bin", false, true, 5e-4},
    {"gemma2-q4", "gemma2-q4/golden.bin", true, true, 5e-4},
    {"gemma2-q4", "gemma2-q4/definition.bin", false, true, 5e-4},
    {"gemma3_text-q4", "gemma3_text-q4/golden.bin", false, true, 5e-4},
    {"gemma3-q4", "gemma3-q4/golden.bin", false, true, 5e-4},
    {"gemma2-odd", "gemma2-odd/golden.bin", false, true, 5e-4},
    {"gemma3-odd", "gemma3-odd/golden.bin", false, false, 5e-4},
    {"gemma4-odd", "gemma4-odd/golden.bin", false, false, 5e-4},
    {"gemma4_12b-q4", "gemma4_12b-q4/golden.bin", false, true, 5e-4},
    {"gemma4_e4b-q4", "gemma4_e4b-q4/golden.bin", false, false, 5e-4},
    {"gemma4_e2b-q4", "gemma4_e2b-q4/golden.bin", false, false, 5e-4},
    {"gemma4_26b-q4", "gemma4_26b-q4/golden.bin", false, true, 5e-4},
    {"qwen3_moe-q4", "qwen3_moe-q4/golden.bin", false, true, 5e-4},
    {"qwen3_moe-odd", "qwen3_moe-odd/golden.bin", false, false, 5e-4},
    {"qwen3_5_4b-q4", "qwen3_5_4b-q4/golden.bin", false, true, 5e-4},
    {"qwen3_5_27b-q4", "qwen3_5_27b-q4/golden.bin", false, true, 5e-4},
    {"qwen3_5_moe-q4", "qwen3_5_moe-q4/golden.bin", false, true, 5e-4},
    {"qwen3_5-odd", "qwen3_5-odd/golden.bin", false, false, 5e-4},
    {"qwen3_next-odd", "qwen3_next-odd/golden.bin", false, false, 5e-4},
    {"qwen3_5_moe-odd", "qwen3_5_moe-odd/golden.bin", false, false, 5e-4},
    {"deepseek_v3-q4", "deepseek_v3-q4/golden.bin", false, true, 5e-4},
    {"deepseek_v3-odd", "deepseek_v3-odd/golden.bin", false, true, 5e-4},
    {"glm_dsa-q4", "glm_dsa-q4/golden.bin", false, true, 5e-4},
    {"glm_moe_dsa-odd", "glm_moe_dsa-odd/golden.bin", false, true, 5e-4},
};

static void golden_f32(void **state) {
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        run_open(&r, models[i].name, NUM_F32, 2, NULL, models[i].compat);
        diff x = golden_diff(&r, &g, ROWS, models[i].bound);
        printf("%-21s f32: max %.1e over %d rows (%s)\n", models[i].name, x.max, x.rows, models[i].golden);
        assert_true(x.max < models[i].bound);
        assert_int_equal(x.flips, 0);
        run_close(&r);
        buf_free(&g.raw);
    }
}

static void golden_default(void **state) {
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        bool median = is_routed(models[i].name);
        double bar = fmax((median ? g.r1_median : g.r1_mean) / 100, 5e-6);
        run_open(&r, models[i].name, NUM_DEFAULT, 2, NULL, models[i].compat);
        diff x = golden_diff(&r, &g, ROWS, 0.05);
        double kl = median ? median_kl(&x) : x.kl / x.rows;
        printf("%-21s default: %s KL %.1e, allowed %.1e, max %.1e (%s)\n", models[i].name, median ? "median" : "mean",
               kl, bar, x.max, models[i].golden);
        assert_true(kl <= bar);
        assert_true(median || x.flips == 0);
        run_close(&r);
        buf_free(&g.raw);
    }
}

/* ---- same bits -------------------------------------------------------------------------------------------------- */
enum { N = 140 /* more than two pages, more than the windows */ };
static const int modes[] = {NUM_DEFAULT, NUM_F32};

static void assert_same(const float *want, const float *got, int V, const char *model, const char *what) {
    for (int i = 0; i < N * V; i++)
        if (memcmp(&want[i], &got[i], sizeof *want))
            fail_msg("%s, %s: row %d, logit %d: %a, %a", model, what, i / V, i % V, want[i], got[i]);
}

static void same_chunks(void **state) {
    static const int chunks[] = {1, 7, 64};
    for (size_t i = 0; i < COUNT(models); i++)
        for (size_t k = 0; k < COUNT(modes); k++) {
            run r;
            golden g = golden_read(models[i].golden);
            run_open(&r, models[i].name, (numerics)modes[k], 1, NULL, models[i].compat);
            float *want = run_all(&r, g.long_ids, N, N);
            for (size_t c = 0; c < COUNT(chunks); c++) {
                char what[32];
                float *got = run_all(&r, g.long_ids, N, chunks[c]);
                snprintf(what, sizeof what, "mode %d, chunks of %d", modes[k], chunks[c]);
                assert_same(want, got, r.V, models[i].name, what);
                free(got);
            }
            free(want);
            run_close(&r);
            buf_free(&g.raw);
        }
}

/* A prompt of which no logits are wanted leaves the same cache. */
static void same_unseen(void **state) {
    enum { SEEN = 130 };
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        run_open(&r, models[i].name, NUM_DEFAULT, 1, NULL, models[i].compat);
        float *want = run_all(&r, g.long_ids, N, N), *got = run_all(&r, g.long_ids, N, N);
        memset(got + SEEN * r.V, 0, (size_t)(N - SEEN) * (size_t)r.V * sizeof *got);
        run_step(&r, &(piece){1, 0, 70, g.long_ids, NULL}, 1);
        run_step(&r, &(piece){1, 70, SEEN - 70, g.long_ids, NULL}, 1);
        run_step(&r, &(piece){1, SEEN, N - SEEN, g.long_ids, got}, 1);
        assert_same(want, got, r.V, models[i].name, "unseen prompt");
        free(want), free(got);
        run_close(&r);
        buf_free(&g.raw);
    }
}

/* A step whose logits are wanted for some rows only, or for none, gives these rows and the rows after it the same. */
static void same_wanted(void **state) {
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        run_open(&r, models[i].name, NUM_DEFAULT, 2, NULL, models[i].compat);
        float *want = run_all(&r, g.long_ids, N, N), *got = malloc((size_t)N * (size_t)r.V * sizeof *got);
        int32_t pos[N], out[] = {0, 3, 4, 39};
        error e = {0};
        for (int k = 0; k < N; k++) pos[k] = k;
        step_seq seq = {.n_rows = 40, .slot = r.state ? 0 : -1};
        for (int k = 0; k < KV_GROUPS; k++) seq.page[k] = r.page[0];
        step s = {.n_rows = 40, .n_seqs = 1, .ids = g.long_ids, .pos = pos, .out = out, .seq = &seq, .state = r.state};
        memcpy(got, want, (size_t)N * (size_t)r.V * sizeof *got);
        float *some = malloc(COUNT(out) * (size_t)r.V * sizeof *some);
        s.n_out = COUNT(out);
        CHECK(e, model_forward(r.m, r.kv, &s, tensor_f32(some, COUNT(out), r.V), &e));
        for (size_t k = 0; k < COUNT(out); k++)
            memcpy(got + out[k] * r.V, some + k * (size_t)r.V, (size_t)r.V * sizeof *some);
        seq.pos0 = 40, s.ids += 40, s.pos += 40, s.n_out = 0;
        CHECK(e, model_forward(r.m, r.kv, &s, (tensor){0}, &e));
        seq.pos0 = 80, seq.n_rows = s.n_rows = N - 80, s.ids += 40, s.pos += 40, s.n_out = 1, out[0] = N - 81;
        CHECK(e, model_forward(r.m, r.kv, &s, tensor_f32(got + (N - 1) * r.V, 1, r.V), &e));
        assert_same(want, got, r.V, models[i].name, "some rows wanted");
        free(want), free(got), free(some);
        run_close(&r);
        buf_free(&g.raw);
    }
}

/* Three sequences of different lengths, mixed: two prefill in odd pieces while another decodes. */
static void same_in_company(void **state) {
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        run_open(&r, models[i].name, NUM_DEFAULT, 2, NULL, models[i].compat);
        const int32_t *ids[SEQS] = {g.long_ids, g.long_ids + 50, g.long_ids + 100};
        float *want[SEQS], *got[SEQS];
        int at[SEQS] = {0};
        for (int b = 0; b < SEQS; b++) {
            want[b] = run_all(&r, ids[b], N, N);
            got[b] = malloc((size_t)N * (size_t)r.V * sizeof(float));
        }
        for (int turn = 0; at[0] < N || at[1] < N || at[2] < N; turn++) {
            const int take[SEQS] = {turn < 3 ? 20 : 1, 1 + turn % 9, turn < 5 ? 0 : 33};
            piece p[SEQS];
            int n = 0;
            for (int b = 0; b < SEQS; b++) {
                int rows = MIN(take[b], N - at[b]);
                if (rows) p[n++] = (piece){b, at[b], rows, ids[b], got[b]};
                at[b] += rows;
            }
            if (n) run_step(&r, p, n);
        }
        for (int b = 0; b < SEQS; b++) {
            assert_same(want[b], got[b], r.V, models[i].name, "company");
            free(want[b]), free(got[b]);
        }
        run_close(&r);
        buf_free(&g.raw);
    }
}

/* Thread counts always; instruction levels where every weight is integer codes. */
static void same_anywhere(void **state) {
    static const struct {
        int threads;
        const char *level;
    } ways[] = {{2, NULL}, {3, NULL}, {1, "ref"}, {2, "avx2"}, {1, "avx512"}, {2, "amx"}};
    for (size_t i = 0; i < COUNT(models); i++) {
        run r;
        golden g = golden_read(models[i].golden);
        run_open(&r, models[i].name, NUM_DEFAULT, 1, NULL, models[i].compat);
        float *want = run_all(&r, g.long_ids, N, N);
        run_close(&r);
        for (size_t k = 0; k < COUNT(ways); k++) {
            if (ways[k].level && !models[i].exact) continue;
            if (!run_open(&r, models[i].name, NUM_DEFAULT, ways[k].threads, ways[k].level, models[i].compat)) continue;
            float *got = run_all(&r, g.long_ids, N, 64);
            char what[48];
            snprintf(what, sizeof what, "%d threads, %s", ways[k].threads, device_cpu_level(r.d));
            assert_same(want, got, r.V, models[i].name, what);
            free(got);
            run_close(&r);
        }
        free(want);
        buf_free(&g.raw);
    }
}

/* ---- what a model says of itself -------------------------------------------------------------------------------- */
static void quantization(const char *model, const char *says) {
    run r;
    run_open(&r, model, NUM_DEFAULT, 1, NULL, false);
    assert_string_equal(model_describe(r.m)->quantization, says);
    run_close(&r);
}

static void describes(void **state) {
    run r;
    quantization("llama_plain-bf16", "bf16");
    quantization("llama_plain-bf16.gguf", "bf16");
    quantization("llama-q1g64", "1-bit g64");
    quantization("llama-mixall", "mixed 4-bit/3-bit/6-bit/2-bit/5-bit/8-bit/mxfp8/nvfp4/mxfp4");

    run_open(&r, "llama-q4", NUM_DEFAULT, 1, NULL, false);
    const model_info *i = model_describe(r.m);
    assert_string_equal(i->family, "llama");
    assert_string_equal(i->architecture, "LlamaForCausalLM");
    assert_string_equal(i->tier, "targeted");
    assert_string_equal(i->quantization, "4-bit g64");
    assert_int_equal(i->n_layers, 3);
    assert_int_equal(i->width, 128);
    assert_int_equal(i->vocab, 288);
    assert_int_equal(i->context_max, 131072);
    /* embedding and head, final norm, and per layer: q, k, v, o, gate, up, down, two norms */
    assert_int_equal(i->n_params, 2 * 288 * 128 + 128 + 3 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128 + 2 * 128));
    assert_int_equal(i->kv_bytes_per_token, 3 * 2 * (32 + 32) * 2);
    assert_int_equal(i->state_bytes, 0);
    assert_true(i->decode_bytes < i->weight_bytes); /* one row of the embedding, not its table */
    assert_int_equal(i->n_eos, 2);
    assert_int_equal(i->eos[0], 267);
    assert_int_equal(i->eos[1], 269);
    error e = {0};
    model *plan = model_open(r.c, r.d, &(model_opts){.plan_only = true}, &e);
    CHECK(e, plan);
    assert_int_equal(model_describe(plan)->weight_bytes, i->weight_bytes);
    assert_int_equal(model_describe(plan)->workspace_bytes, i->workspace_bytes);
    model_close(plan);
    run_close(&r);

    run_open(&r, "llama_tied-q4", NUM_DEFAULT, 1, NULL, false);
    i = model_describe(r.m);
    assert_int_equal(i->n_params, 288 * 128 + 128 + 2 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 192 * 128 + 2 * 128));
    assert_true(r.m->tied);
    assert_int_equal(i->decode_bytes, i->weight_bytes); /* the head is the embedding table */
    run_close(&r);

    run_open(&r, "mistral_swa-q4", NUM_DEFAULT, 1, NULL, false);
    assert_int_equal(r.spec.n_groups, 2);
    assert_int_equal(r.spec.window[0], 0);
    assert_int_equal(r.spec.window[1], 24);
    assert_int_equal(model_describe(r.m)->kv_bytes_per_token, 2 * (16 + 16) * 2);
    run_close(&r);
}

/* Bytes of a matrix of n rows and k columns of 4-bit codes in groups of 64 as the CPU packs it: panels of 16 rows. */
static size_t packed_q4(size_t n, size_t k) {
    return (n + 15) / 16 * (16 * k / 2 + k / 64 * 16 * 4);
}

static void describes_state_and_experts(void **state) {
    run r;
    run_open(&r, "qwen3_5_27b-q4", NUM_DEFAULT, 1, NULL, false);
    const model_info *i = model_describe(r.m);
    assert_string_equal(i->family, "qwen3_5");
    assert_int_equal(i->kv_bytes_per_token, 1 * 2 * (32 + 32) * 2); /* one layer of attention */
    /* three layers: 3 rows of 2·32 + 3·64 channels, and 3 heads of 32 x 64 */
    assert_int_equal(i->state_bytes, (3 * 4 * (3 * 256 + 3 * 32 * 64) + 4095) / 4096 * 4096);
    assert_false(r.m->tied); /* text_config's word, not the root's */
    run_close(&r);

    run_open(&r, "glm_moe_dsa-odd", NUM_DEFAULT, 1, NULL, false);
    i = model_describe(r.m);
    assert_string_equal(i->family, "glm_moe_dsa");
    assert_int_equal(r.spec.n_layers, 3 + 2);
    assert_int_equal(i->kv_bytes_per_token,
                     2 * (3 * (32 + 12) + 2 * 20)); /* latents once; two layers have an indexer */
    run_close(&r);

    run_open(&r, "qwen3_moe-q4", NUM_DEFAULT, 1, NULL, false);
    i = model_describe(r.m);
    /* of 8 experts a row reads 2, in 2 layers of three stacks; of the embedding one row */
    size_t expert = packed_q4(64, 64);
    assert_int_equal(i->weight_bytes - i->decode_bytes, 2 * 3 * 6 * expert + packed_q4(288, 64));
    assert_int_equal(i->n_params,
                     2 * 288 * 64 + 64 + 2 * (2 * 128 * 64 + 2 * 64 * 64 + 2 * 64 + 2 * 32 + 8 * 64 + 8 * 3 * 64 * 64));
    run_close(&r);
}

/* Gemma 4: layers of two head widths, layers without keys of their own, a table of which a step reads a row. */
static void describes_gemma4(void **state) {
    run r;
    run_open(&r, "gemma4_e4b-q4", NUM_DEFAULT, 1, NULL, false);
    const model_info *i = model_describe(r.m);
    assert_string_equal(i->architecture, "Gemma4ForConditionalGeneration");
    assert_int_equal(i->n_params, 424294); /* of the file, all shapes multiplied */
    assert_int_equal(r.spec.n_layers, 3);  /* of 6 */
    assert_int_equal(r.spec.window[r.spec.layer[0].group], 24);
    assert_int_equal(r.spec.layer[0].k_width, 32);
    assert_int_equal(r.spec.layer[2].k_width, 64);
    assert_int_equal(i->kv_bytes_per_token, 2 * (64 + 64) * 2);
    assert_int_equal(i->weight_bytes - i->decode_bytes, packed_q4(288, 6 * 32));
    run_close(&r);

    run_open(&r, "gemma4_12b-q4", NUM_DEFAULT, 1, NULL, false);
    i = model_describe(r.m);
    assert_int_equal(i->n_params, 327686);
    assert_int_equal(r.spec.layer[5].heads, 1); /* num_global_key_value_heads */
    assert_int_equal(r.spec.layer[4].heads, 2);
    assert_int_equal(i->kv_bytes_per_token, (64 + 64) * 2);
    assert_int_equal(i->weight_bytes, i->decode_bytes);
    run_close(&r);
}

/* ---- what it refuses -------------------------------------------------------------------------------------------- */
/* A copy of a checkpoint whose config.json has `from` replaced by `to`. */
static void refuses(const char *model, const char *from, const char *to, const char *says) {
    char dir[] = "/tmp/hearth-model-XXXXXX", path[300], target[400], *cwd = getcwd(NULL, 0);
    error e = {0};
    buf text = {0}, changed = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, DATA "%s/config.json", model);
    CHECK(e, file_read(&text, path, 1 << 20, &e));
    size_t at = str_find(buf_view(&text), str_of(from));
    assert_true(at != SIZE_MAX);
    buf_add(&changed, text.p, at);
    buf_puts(&changed, to);
    buf_add(&changed, text.p + at + strlen(from), text.n - at - strlen(from));
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK(e, file_write_atomic(path, changed.p, changed.n, &e));
    snprintf(target, sizeof target, "%s/" DATA "%s/model.safetensors", cwd, model);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(symlink(target, path), 0);

    device *d = device_cpu_open(&(device_opts){.threads = 1}, &e);
    CHECK(e, d);
    checkpoint *c = checkpoint_open(dir, &e);
    CHECK(e, c);
    assert_null(model_open(c, d, NULL, &e));
    if (!str_has(str_of(e.msg), str_of(says))) fail_msg("expected \"%s\" in: %s", says, e.msg);
    checkpoint_close(c);
    device_close(d);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
    free(cwd);
    buf_free(&text);
    buf_free(&changed);
}

static void refusals(void **state) {
    refuses("llama_plain-q4", "\"llama\"", "\"lama\"", "architecture \"lama\" is not supported; known are llama");
    refuses("llama_plain-q4", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0",
            "num_hidden_layers is 0, allowed is a whole number from 1 to");
    refuses("llama_plain-q4", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3",
            "tensor model.layers.2.input_layernorm [64] is missing");
    refuses("llama_plain-q4", "\"hidden_size\": 64", "\"hidden_sise\": 64", "hidden_size is missing");
    refuses("llama_plain-q4", "\"hidden_size\": 64", "\"hidden_size\": \"x\"",
            "hidden_size is \"x\", allowed is a whole number");
    refuses("llama_plain-q4", "\"intermediate_size\": 128", "\"intermediate_size\": 64",
            "tensor model.layers.0.mlp.gate_proj has shape [128, 64], expected [64, 64]");
    refuses("llama_plain-q4", "\"silu\"", "\"mish\"", "hidden_act is \"mish\", allowed is one of silu");
    refuses("llama_plain-q4", "\"mlp_bias\": true", "\"mlp_bias\": 1", "mlp_bias is 1, allowed is true or false");
    refuses("llama-q4", "\"attention_bias\": false", "\"attention_bias\": true",
            "tensor model.layers.0.self_attn.q_proj.bias [128] is missing");
    refuses("llama-q4", "\"rope_type\": \"llama3\"", "\"rope_type\": \"x3\"",
            "rope_type is \"x3\", allowed is one of default, linear, llama3");
    refuses("llama-q4", "\"factor\": 32.0", "\"factor\": 0", "rope scaling factor is 0");
    refuses("minicpm5-q4", "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3",
            "num_attention_heads 8 is no multiple of num_key_value_heads 3");
    refuses("qwen3_5_27b-q4", "\"output_gate_type\": \"swish\"", "\"output_gate_type\": \"swash\"",
            "output_gate_type is \"swash\"; allowed is \"swish\"");
    refuses("qwen3_5_27b-q4", "\"output_gate_type\": \"swish\"", "\"output_gate_type\": 3",
            "output_gate_type is \"?\"");
    refuses("qwen3_5_27b-q4", "\"full_attention_interval\": 4", "\"full_attention_interval\": 2",
            "layer_types[1] is linear_attention, but full_attention_interval 2 makes it full_attention");
    refuses("qwen3_5_27b-q4", "\"attn_output_gate\": true", "\"attn_output_gate\": false", "attn_output_gate is false");
    refuses("qwen3_moe-q4", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9",
            "9 experts are to be chosen of 8");
    refuses("qwen3_moe-q4", "\"num_experts\": 8", "\"num_experts\": 2000", "at most 1024 and 64 are supported");
    refuses("qwen3_moe-q4", "\"num_experts\": 8", "\"num_experts\": 9",
            "tensor model.layers.0.mlp.gate has shape [8, 64], expected [9, 64]");
    refuses("gemma4_e4b-q4", "\"num_kv_shared_layers\": 3", "\"num_kv_shared_layers\": 4",
            "num_kv_shared_layers 4 leaves no layer for layer 2 to share with");
    refuses("gemma4_e4b-q4", "\"use_bidirectional_attention\": null", "\"use_bidirectional_attention\": \"all\"",
            "use_bidirectional_attention is \"all\", allowed is");
    refuses("gemma4_26b-q4", "\"top_k_experts\": 2", "\"top_k_experts\": 7", "7 experts are to be chosen of 6");
    refuses("gemma3-q4", "\"hidden_activation\": \"gelu_pytorch_tanh\"", "\"hidden_activation\": \"gelu_fast\"",
            "hidden_activation is \"gelu_fast\", allowed is one of");
    refuses("deepseek_v3-q4", "\"noaux_tc\"", "\"greedy\"", "topk_method is \"greedy\", allowed is \"noaux_tc\"");
    refuses("deepseek_v3-q4", "\"sigmoid\"", "\"softmax\"", "scoring_func is \"softmax\", allowed is \"sigmoid\"");
    refuses("deepseek_v3-q4", "\"n_group\": 4", "\"n_group\": 3", "n_routed_experts 8 is no multiple of n_group 3");
    refuses("deepseek_v3-q4", "\"v_head_dim\": 32", "\"v_head_dim\": 48", "self_attn.o_proj has shape");
    refuses("deepseek_v3-odd", "\"v_head_dim\": 20", "\"v_head_dim\": 21", "self_attn.o_proj has shape");
    refuses("glm_moe_dsa-odd", "\"index_topk_freq\": 2", "\"index_topk_freq\": 1",
            "layers.1.self_attn.indexer.wq_b [320, 48] is missing");
    refuses("glm_moe_dsa-odd", "\"index_topk_freq\": 2", "\"indexer_types\": [\"shared\", \"full\", \"full\"]",
            "the first layer has no indexer");
    refuses("glm_moe_dsa-odd", "\"index_topk_freq\": 2", "\"indexer_types\": [\"full\", \"half\", \"full\"]",
            "indexer_types[1] is \"half\", allowed is full or shared");
    refuses("mistral_swa-q4", "\"sliding_attention\"", "\"slidin\"", "layer_types[1] is \"slidin\"");
}

static void step_refusals(void **state) {
    run r;
    run_open(&r, "llama_plain-q4", NUM_DEFAULT, 1, NULL, false);
    int32_t id = 288, pos = 0, out = 0;
    float logits[288];
    step_seq seq = {.n_rows = 1, .slot = -1, .page = {r.page[0]}};
    step s = {.n_rows = 1, .n_seqs = 1, .n_out = 1, .ids = &id, .pos = &pos, .out = &out, .seq = &seq};
    error e = {0};
    assert_false(model_forward(r.m, r.kv, &s, tensor_f32(logits, 1, 288), &e));
    assert_string_equal(e.msg, "token id 288, allowed is 0 to 287");
    e = (error){0};
    id = 0;
    s.n_rows = ROWS + 1;
    assert_false(model_forward(r.m, r.kv, &s, tensor_f32(logits, 1, 288), &e));
    e = (error){0};
    s.n_rows = 1;
    s.n_out = 0;
    CHECK(e, model_forward(r.m, r.kv, &s, (tensor){0}, &e));
    run_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_f32),
        cmocka_unit_test(golden_default),
        cmocka_unit_test(same_chunks),
        cmocka_unit_test(same_in_company),
        cmocka_unit_test(same_unseen),
        cmocka_unit_test(same_wanted),
        cmocka_unit_test(same_anywhere),
        cmocka_unit_test(describes),
        cmocka_unit_test(describes_state_and_experts),
        cmocka_unit_test(describes_gemma4),
        cmocka_unit_test(refusals),
        cmocka_unit_test(step_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
