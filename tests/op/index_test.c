/* Choosing positions and attending to the chosen: against a plain reading of the definitions, ties, the same bytes at
 * every level, for any chunking and company; a row that sees no more than the number to choose is as without choosing.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "op_help.h"

static device *dev[LEVELS];
static int setup(void **state) {
    for (int l = 0; l < LEVELS; l++) dev[l] = level_open(l, 2);
    return 0;
}
static int teardown(void **state) {
    for (int l = 0; l < LEVELS; l++)
        if (dev[l]) device_close(dev[l]);
    return 0;
}

typedef struct index_case {
    const char *name;
    int n, N;      /* positions; how many of them are chosen */
    int Hi, Di;    /* the indexer */
    int H, Dk, Dv; /* attention */
    dtype type;
    bool coarse; /* few different values: many ties */
} index_case;

static const index_case cases[] = {
    {"f16", 300, 48, 16, 32, 4, 80, 64, DT_F16, false},
    {"f32, odd widths", 150, 37, 3, 20, 50, 37, 19, DT_F32, false},
    {"bf16, over units", 1300, 600, 5, 16, 1, 32, 32, DT_BF16, false},
    {"ties", 300, 70, 2, 3, 2, 16, 16, DT_F32, true},
    {"one", 100, 1, 13, 16, 2, 16, 16, DT_F16, false},
    {"more than there are", 100, 4000, 4, 16, 2, 16, 16, DT_F16, false},
};

/* One sequence's inputs and what came out. */
typedef struct seq_data {
    float *qi, *ki, *w, *q, *k, *o; /* [n,Hi,Di] [n,Di] [n,Hi] [n,H,Dk] [n,Dk] [n,H,Dv] */
    int32_t *chosen;                /* [n,N] */
    int32_t page[32];
} seq_data;

static float *values(int n, bool coarse) {
    float *p = malloc(sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++) p[i] = coarse ? (float)((int)rnd_below(3) - 1) : rnd();
    return p;
}
static seq_data seq_new(const index_case *c, int first_page) {
    seq_data s = {values(c->n * c->Hi * c->Di, c->coarse),
                  values(c->n * c->Di, c->coarse),
                  values(c->n * c->Hi, c->coarse),
                  values(c->n * c->H * c->Dk, false),
                  values(c->n * c->Dk, false),
                  values(c->n * c->H * c->Dv, false),
                  calloc((size_t)(c->n * c->N), sizeof(int32_t)),
                  {0}};
    for (int i = 0; i < 32; i++) s.page[i] = first_page + 31 - i;
    return s;
}
static void seq_free(seq_data *s) {
    free(s->qi), free(s->ki), free(s->w), free(s->q), free(s->k), free(s->o), free(s->chosen);
}
static kv_cache *cache_new(device *d, const index_case *c) {
    kv_layer layers[2] = {{.heads = 1, .k_width = c->Di},
                          {.heads = 1, .k_width = c->Dk, .v_width = c->Dv, .latent = true}};
    error err = {0};
    kv_cache *kv = d->vt->kv_new(
        d, &(kv_spec){.n_layers = 2, .n_groups = 1, .layer = layers, .n_pages = {64}, .type = c->type}, &err);
    if (!kv) fail_msg("%s", err.msg);
    return kv;
}

static void rows_copy(float *to, const float *from, int at, int n, int width, bool back) {
    memcpy(back ? (float *)from + at * width : to, back ? to : from + at * width, sizeof(float) * (size_t)(n * width));
}
/* Rows [at, at+n) of up to two sequences in one step. */
static void step_run(device *d, kv_cache *kv, const index_case *c, seq_data *const *seqs, const int *at, const int *n,
                     int n_seqs) {
    int rows = 0;
    step_seq ss[2];
    for (int i = 0; i < n_seqs; rows += n[i++])
        ss[i] = (step_seq){.row0 = rows, .n_rows = n[i], .pos0 = at[i], .slot = -1, .page = {seqs[i]->page}};
    int width[] = {c->Hi * c->Di, c->Di, c->Hi, c->H * c->Dk, c->Dk, c->H * c->Dv};
    guarded x[6], choice = guarded_new(rows * c->N);
    memset(choice.p, 0x55, sizeof(float) * (size_t)(rows * c->N)); /* where nothing is chosen nothing is read */
    for (int k = 0; k < 6; k++) {
        x[k] = guarded_new(rows * width[k]);
        for (int i = 0; i < n_seqs; i++)
            rows_copy(x[k].p + ss[i].row0 * width[k], (&seqs[i]->qi)[k], at[i], n[i], width[k], false);
    }
    step s = {.n_rows = rows, .n_seqs = n_seqs, .seq = ss};
    attn a = {.scale = 1 / sqrtf((float)c->Dk)};
    tensor ki = tensor_f32(x[1].p, rows, 1, c->Di), k = tensor_f32(x[4].p, rows, 1, c->Dk),
           chosen = tensor_i32(choice.p, rows, c->N);
    op_kv_append(d, kv, 0, ki, ki, &s);
    op_kv_append(d, kv, 1, k, k, &s);
    op_index_choose(d, chosen, tensor_f32(x[0].p, rows, c->Hi, c->Di), tensor_f32(x[2].p, rows, c->Hi), kv, 0, &s);
    op_attend_chosen(d, tensor_f32(x[5].p, rows, c->H, c->Dv), tensor_f32(x[3].p, rows, c->H, c->Dk), kv, 1, &s, &a,
                     chosen);
    if (d->status.code) fail_msg("%s: %s", c->name, d->status.msg);
    for (int i = 0; i < n_seqs; i++) {
        rows_copy(x[5].p + ss[i].row0 * width[5], seqs[i]->o, at[i], n[i], width[5], true);
        rows_copy(choice.p + ss[i].row0 * c->N, (float *)seqs[i]->chosen, at[i], n[i], c->N, true);
    }
    for (int k2 = 0; k2 < 6; k2++) guarded_free(&x[k2]);
    guarded_free(&choice);
}
static void seq_run(device *d, kv_cache *kv, const index_case *c, seq_data *s, int chunk) {
    for (int at = 0, n; at < c->n; at += n) {
        n = MIN(chunk, c->n - at);
        step_run(d, kv, c, &s, &at, &n, 1);
    }
}

static float kept(float x, dtype t) { /* as the cache keeps it */
    return t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : t == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}
static double score_of(const index_case *c, const seq_data *s, int t, int p) {
    double sum = 0;
    for (int h = 0; h < c->Hi; h++) {
        double dot = 0;
        for (int e = 0; e < c->Di; e++)
            dot += (double)s->qi[(t * c->Hi + h) * c->Di + e] * kept(s->ki[p * c->Di + e], c->type);
        sum += s->w[t * c->Hi + h] * fmax(dot, 0);
    }
    return sum;
}
/* Row t's choice: ascending, and nothing left out is better than what was taken (nor equal and lower). */
static void check_choice(const index_case *c, const seq_data *s, int t) {
    const int32_t *id = s->chosen + t * c->N;
    double *score = malloc(sizeof *score * (size_t)c->n), worst = INFINITY, slack = c->coarse ? 0 : 1e-5;
    int worst_at = -1;
    for (int p = 0; p <= t; p++) score[p] = score_of(c, s, t, p);
    for (int i = 0; i < c->N; i++) {
        assert_true(id[i] >= 0 && id[i] <= t && (!i || id[i] > id[i - 1]));
        if (score[id[i]] <= worst) worst = score[id[i]], worst_at = id[i];
    }
    for (int p = 0, i = 0; p <= t; p++) {
        if (i < c->N && id[i] == p)
            i++;
        else if (score[p] > worst + slack || (c->coarse && score[p] == worst && p < worst_at))
            fail_msg("%s: row %d left out position %d of score %g, took %d of %g", c->name, t, p, score[p], worst_at,
                     worst);
    }
    free(score);
}
/* Row t attends to what was chosen. */
static void check_output(const index_case *c, const seq_data *s, int t) {
    int n = MIN(t + 1, c->N);
    double *p = malloc(sizeof *p * (size_t)n);
    for (int h = 0; h < c->H; h++) {
        double top = -INFINITY, sum = 0;
        for (int i = 0; i < n; i++) {
            int at = t < c->N ? i : s->chosen[t * c->N + i];
            double dot = 0;
            for (int e = 0; e < c->Dk; e++)
                dot += (double)s->q[(t * c->H + h) * c->Dk + e] * kept(s->k[at * c->Dk + e], c->type);
            top = fmax(top, p[i] = dot / sqrtf((float)c->Dk));
        }
        for (int i = 0; i < n; i++) sum += p[i] = exp(p[i] - top);
        for (int e = 0; e < c->Dv; e++) {
            double y = 0;
            for (int i = 0; i < n; i++)
                y += p[i] * kept(s->k[(t < c->N ? i : s->chosen[t * c->N + i]) * c->Dk + e], c->type);
            if (!(fabs(y / sum - s->o[(t * c->H + h) * c->Dv + e]) < 1e-6)) fail_msg("%s: row %d", c->name, t);
        }
    }
    free(p);
}

static void test_cases(void **state) {
    static const int chunks[] = {1 << 20, 64, 7, 1};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const index_case *c = &cases[i];
        seq_data s = seq_new(c, 0);
        size_t bytes = sizeof(float) * (size_t)(c->n * c->H * c->Dv);
        float *first = NULL;
        for (int l = 0; l < LEVELS; l++)
            for (size_t k = 0; k < COUNT(chunks) && dev[l]; k++) {
                if (!l && k) continue; /* ref is slow */
                kv_cache *kv = cache_new(dev[l], c);
                seq_run(dev[l], kv, c, &s, chunks[k]);
                dev[l]->vt->kv_free(dev[l], kv);
                if (!first) first = malloc(bytes), memcpy(first, s.o, bytes);
                if (memcmp(first, s.o, bytes))
                    fail_msg("%s: %s in chunks of %d differs", c->name, level_name[l], chunks[k]);
            }
        for (int t = 0; t < c->n; t += 3) {
            if (t >= c->N) check_choice(c, &s, t);
            check_output(c, &s, t);
        }
        free(first);
        seq_free(&s);
    }
}

/* A row near its end beside another sequence's prompt; before and after the first that has to choose. */
static void test_company(void **state) {
    const index_case *c = &cases[0];
    seq_data a = seq_new(c, 0), b = seq_new(c, 32), *both[] = {&a, &b};
    size_t bytes = sizeof(float) * (size_t)(c->n * c->H * c->Dv);
    float *oa = malloc(bytes), *ob = malloc(bytes);
    for (int l = 1; l < LEVELS; l++) {
        if (!dev[l]) continue;
        kv_cache *kv = cache_new(dev[l], c);
        seq_run(dev[l], kv, c, &a, c->n);
        seq_run(dev[l], kv, c, &b, c->n);
        memcpy(oa, a.o, bytes), memcpy(ob, b.o, bytes);
        for (int i = 0; i < 6; i++) {
            int at[] = {c->n - 6 + i, 50 * i}, n[] = {1, 50};
            step_run(dev[l], kv, c, both, at, n, 2);
        }
        assert_memory_equal(oa, a.o, bytes);
        assert_memory_equal(ob, b.o, bytes);
        dev[l]->vt->kv_free(dev[l], kv);
    }
    free(oa), free(ob);
    seq_free(&a), seq_free(&b);
}

/* While all that is seen would be chosen, attention is the ordinary one, to the bit. */
static void test_as_without_choosing(void **state) {
    const index_case *c = &cases[0];
    seq_data s = seq_new(c, 0);
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        kv_cache *kv = cache_new(dev[l], c);
        seq_run(dev[l], kv, c, &s, c->n); /* the rows below c->N run as rows of a step that chooses */
        float *o = malloc(sizeof(float) * (size_t)(c->N * c->H * c->Dv));
        step_seq ss = {.n_rows = c->N, .slot = -1, .page = {s.page}};
        step st = {.n_rows = c->N, .n_seqs = 1, .seq = &ss};
        op_attend(dev[l], tensor_f32(o, c->N, c->H, c->Dv), tensor_f32(s.q, c->N, c->H, c->Dk), kv, 1, &st,
                  &(attn){.scale = 1 / sqrtf((float)c->Dk)});
        assert_memory_equal(o, s.o, sizeof(float) * (size_t)(c->N * c->H * c->Dv));
        free(o);
        dev[l]->vt->kv_free(dev[l], kv);
    }
    seq_free(&s);
}

static void test_refused(void **state) {
    const index_case *c = &cases[3];
    seq_data s = seq_new(c, 0);
    kv_cache *kv = cache_new(dev[0], c);
    step_seq ss = {.n_rows = 1, .pos0 = c->n - 1, .slot = -1, .page = {s.page}};
    step st = {.n_rows = 1, .n_seqs = 1, .seq = &ss};
    tensor chosen = tensor_i32(s.chosen, 1, c->N), q = tensor_f32(s.q, 1, c->H, c->Dk),
           o = tensor_f32(s.o, 1, c->H, c->Dv);
    op_attend_chosen(dev[0], o, q, kv, 1, &st, &(attn){.scale = 1, .window = 5}, chosen);
    assert_int_equal(dev[0]->status.code, ERR_INTERNAL);
    dev[0]->status = (error){0};
    op_index_choose(dev[0], chosen, q, tensor_f32(s.w, 1, c->Hi), kv, 1, &st); /* latent: no indexer's keys */
    assert_int_equal(dev[0]->status.code, ERR_INTERNAL);
    dev[0]->status = (error){0};
    dev[0]->vt->kv_free(dev[0], kv);
    seq_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_as_without_choosing),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
