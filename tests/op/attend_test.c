/* Keys, values and attention of the CPU device: against a reference in double, and the same bytes at every level, for
 * any chunking of the prompt, any company in the step, any number of threads. Rows and masks: docs/attention.md. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include "op_help.h"

enum { THREADS_MAX = 4 };
static device *dev[LEVELS]; /* 2 threads */

static int setup(void **state) {
    for (int l = 0; l < LEVELS; l++) dev[l] = level_open(l, 2);
    return 0;
}
static int teardown(void **state) {
    for (int l = 0; l < LEVELS; l++) device_close(dev[l]);
    return 0;
}

typedef struct attn_case {
    const char *name;
    int heads, ratio, kw, vw, n; /* n positions */
    int window;
    float softcap, gain; /* gain: size of q */
    bool sinks;
    dtype type;
    double bound;
    bool latent;  /* v is the first vw columns of k */
    kv_code k, v; /* how they are kept */
} attn_case;

#define CASE(name, heads, ratio, kw, vw, n, window, softcap, gain, sinks, type, bound, latent)   \
    {                                                                                            \
        name, heads, ratio, kw, vw, n, window, softcap, gain, sinks, type, bound, latent, {0}, { \
            0                                                                                    \
        }                                                                                        \
    }
#define CODED(name, kb, vb, group, heads, ratio, kw, vw, n, window, softcap, gain, type, bound, latent)         \
    {                                                                                                           \
        name, heads, ratio, kw, vw, n, window, softcap, gain, false, type, bound, latent, {kb, false, group}, { \
            vb, false, group                                                                                    \
        }                                                                                                       \
    }

/* One sequence's inputs and what came out. */
typedef struct seq_data {
    float *q, *k, *v, *o, *sinks; /* [n,H,kw] [n,K,kw] [n,K,vw] [n,H,vw] [H] */
    int32_t *page;                /* [n_pages] */
    int n_pages;
} seq_data;

static float *floats(int n) {
    float *p = malloc(sizeof(float) * (size_t)n);
    for (int i = 0; i < n; i++) p[i] = rnd();
    return p;
}
static seq_data seq_new(const attn_case *c, int first_page, int stride) {
    int qh = c->heads * c->ratio;
    seq_data s = {floats(c->n * qh * c->kw),
                  floats(c->n * c->heads * c->kw),
                  floats(c->n * c->heads * c->vw),
                  floats(c->n * qh * c->vw),
                  floats(qh),
                  NULL,
                  (c->n + KV_PAGE - 1) / KV_PAGE};
    for (int i = 0; i < c->n * qh * c->kw; i++) s.q[i] *= c->gain;
    for (int i = 0; c->latent && i < c->n; i++) memcpy(s.v + i * c->vw, s.k + i * c->kw, sizeof(float) * (size_t)c->vw);
    s.page = malloc(sizeof *s.page * (size_t)s.n_pages);
    for (int i = 0; i < s.n_pages; i++) s.page[i] = first_page + (s.n_pages - 1 - i) * stride; /* not in order */
    return s;
}
static void seq_free(seq_data *s) {
    free(s->q), free(s->k), free(s->v), free(s->o), free(s->sinks), free(s->page);
}

static kv_layer layer_of(const attn_case *c) {
    return (kv_layer){.heads = c->heads, .k_width = c->kw, .v_width = c->vw, .latent = c->latent, .k = c->k, .v = c->v};
}
static kv_cache *cache_new(device *d, const attn_case *c, int n_pages) {
    const kv_layer l = layer_of(c), layers[2] = {l, l};
    kv_spec spec = {
        .n_layers = 2, .n_groups = 1, .layer = layers, .window = {c->window}, .n_pages = {n_pages}, .type = c->type};
    error err = {0};
    kv_cache *kv = d->vt->kv_new(d, &spec, &err);
    if (!kv) fail_msg("%s", err.msg);
    return kv;
}

static int uncoded_below; /* steps that begin below this position ask for keys and values as they were */
/* Rows [at, at+n) of up to two sequences in one step on layer 1. o: where the outputs go. */
static void step_run(device *d, kv_cache *kv, const attn_case *c, seq_data *const *seqs, const int *at, const int *n,
                     int n_seqs) {
    int qh = c->heads * c->ratio, rows = 0;
    step_seq ss[4];
    for (int i = 0; i < n_seqs; i++) {
        ss[i] = (step_seq){.row0 = rows, .n_rows = n[i], .pos0 = at[i], .slot = -1, .page = {seqs[i]->page}};
        ss[i].uncoded = at[i] < uncoded_below;
        rows += n[i];
    }
    guarded q = guarded_new(rows * qh * c->kw), k = guarded_new(rows * c->heads * c->kw),
            v = guarded_new(rows * c->heads * c->vw), o = guarded_new(rows * qh * c->vw);
    for (int i = 0; i < n_seqs; i++) {
        int r = ss[i].row0;
        memcpy(q.p + r * qh * c->kw, seqs[i]->q + at[i] * qh * c->kw, sizeof(float) * (size_t)(n[i] * qh * c->kw));
        memcpy(k.p + r * c->heads * c->kw, seqs[i]->k + at[i] * c->heads * c->kw,
               sizeof(float) * (size_t)(n[i] * c->heads * c->kw));
        memcpy(v.p + r * c->heads * c->vw, seqs[i]->v + at[i] * c->heads * c->vw,
               sizeof(float) * (size_t)(n[i] * c->heads * c->vw));
    }
    step s = {.n_rows = rows, .n_seqs = n_seqs, .seq = ss};
    attn a = {1 / sqrtf((float)c->kw), c->softcap, c->window, c->sinks ? seqs[0]->sinks : NULL};
    op_kv_append(d, kv, 1, tensor_f32(k.p, rows, c->heads, c->kw), tensor_f32(v.p, rows, c->heads, c->vw), &s);
    op_attend(d, tensor_f32(o.p, rows, qh, c->vw), tensor_f32(q.p, rows, qh, c->kw), kv, 1, &s, &a);
    if (d->status.code) fail_msg("%s", d->status.msg);
    for (int i = 0; i < n_seqs; i++)
        memcpy(seqs[i]->o + at[i] * qh * c->vw, o.p + ss[i].row0 * qh * c->vw,
               sizeof(float) * (size_t)(n[i] * qh * c->vw));
    guarded_free(&q), guarded_free(&k), guarded_free(&v), guarded_free(&o);
}

/* The whole sequence in chunks of `chunk` rows. */
static void seq_run(device *d, kv_cache *kv, const attn_case *c, seq_data *s, int chunk) {
    memset(s->o, 0xff, sizeof(float) * (size_t)(c->n * c->heads * c->ratio * c->vw));
    for (int at = 0, n; at < c->n; at += n) {
        n = MIN(chunk, c->n - at);
        step_run(d, kv, c, &s, &at, &n, 1);
    }
}

static double kept(float x, dtype t) { /* as the cache keeps it */
    return t == DT_F16 ? f16_to_f32(f32_to_f16(x)) : t == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}
/* The same for rows [n,w] in affine codes, written as mlx-lm's cache has them (scale and offset rounded first). */
static void affine_kept(float *y, const float *x, int n, const kv_code *c, dtype t) {
    float lo = x[0], hi = x[0], bins = (float)((1 << c->bits) - 1);
    for (int i = 1; i < n; i++) lo = fminf(lo, x[i]), hi = fmaxf(hi, x[i]);
    float s = fmaxf((hi - lo) / bins, 1e-7f) * (fabsf(lo) > fabsf(hi) ? 1 : -1), edge = s > 0 ? lo : hi, b = 0;
    if (rintf(edge / s) != 0) b = edge, s = edge / rintf(edge / s);
    s = (float)kept(s, t), b = (float)kept(b, t);
    for (int i = 0; i < n; i++) y[i] = fmaf(fminf(fmaxf(rintf((x[i] - b) / s), 0), bins), s, b);
}
static float *rows_kept(const float *x, int n, int w, const kv_code *c, dtype t) {
    float *y = malloc(sizeof *y * (size_t)(n * w));
    for (int r = 0; r < n; r++)
        for (int i = 0; i < w; i += c->bits ? c->group : 1)
            if (c->bits)
                affine_kept(y + r * w + i, x + r * w + i, MIN(c->group, w - i), c, t);
            else
                y[r * w + i] = (float)kept(x[r * w + i], t);
    return y;
}
static void check_double(const attn_case *c, const seq_data *s) {
    int qh = c->heads * c->ratio;
    double *p = malloc(sizeof *p * (size_t)c->n), worst = 0;
    float *key = rows_kept(s->k, c->n * c->heads, c->kw, &c->k, c->type),
          *value = rows_kept(s->v, c->n * c->heads, c->vw, &c->v, c->type);
    for (int t = 0; c->latent && t < c->n; t++)
        memcpy(value + t * c->vw, key + t * c->kw, sizeof *value * (size_t)c->vw);
    for (int t = 0; t < c->n; t++)
        for (int h = 0; h < qh; h++) {
            int kh = h / c->ratio, lo = c->window ? MAX(0, t - c->window + 1) : 0;
            double top = c->sinks ? s->sinks[h] : -INFINITY, sum = 0;
            for (int i = lo; i <= t; i++) {
                double dot = 0;
                for (int e = 0; e < c->kw; e++)
                    dot += (double)s->q[(t * qh + h) * c->kw + e] * key[(i * c->heads + kh) * c->kw + e];
                dot *= 1 / sqrtf((float)c->kw);
                p[i] = c->softcap ? c->softcap * tanh(dot / c->softcap) : dot;
                top = fmax(top, p[i]);
            }
            for (int i = lo; i <= t; i++) sum += p[i] = exp(p[i] - top);
            if (c->sinks) sum += exp(s->sinks[h] - top);
            for (int e = 0; e < c->vw; e++) {
                double y = 0;
                for (int i = lo; i <= t; i++) y += p[i] * value[(i * c->heads + kh) * c->vw + e];
                worst = fmax(worst, fabs(y / sum - s->o[(t * qh + h) * c->vw + e]));
            }
        }
    free(p), free(key), free(value);
    if (!(worst <= c->bound)) fail_msg("%s: error %g, bound %g", c->name, worst, c->bound);
}

static const attn_case cases[] = {
    CASE("f16 gqa 3", 2, 3, 64, 64, 140, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("bf16 gqa 7", 1, 7, 128, 128, 75, 0, 0, 1, false, DT_BF16, 3e-7, false),
    CASE("f32 mha", 3, 1, 16, 16, 150, 0, 0, 1, false, DT_F32, 3e-7, false),
    CASE("odd widths", 2, 2, 33, 19, 140, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("80", 2, 1, 80, 80, 100, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("96 of 32", 1, 4, 96, 32, 100, 0, 0, 1, false, DT_F32, 3e-7, false),
    CASE("mla 192 of 128", 1, 13, 192, 128, 66, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("512", 1, 2, 512, 512, 70, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("many heads of one key", 1, 50, 16, 16, 70, 0, 0, 1, false, DT_F16, 3e-7, false),
    CASE("window 1", 1, 2, 32, 32, 140, 1, 0, 1, false, DT_F16, 3e-7, false),
    CASE("window 63", 1, 2, 32, 32, 200, 63, 0, 1, false, DT_F16, 3e-7, false),
    CASE("window 64", 1, 2, 32, 32, 200, 64, 0, 1, false, DT_F16, 3e-7, false),
    CASE("window 65", 1, 2, 32, 32, 200, 65, 0, 1, false, DT_BF16, 3e-7, false),
    CASE("window 600", 1, 2, 16, 16, 700, 600, 0, 1, false, DT_F16, 3e-7, false),
    CASE("softcap", 2, 2, 32, 32, 150, 0, 5, 20, false, DT_F16, 1e-6, false),
    CASE("sinks", 2, 2, 32, 32, 150, 100, 0, 4, true, DT_F16, 1e-6, false),
    CASE("huge scores", 2, 2, 32, 32, 150, 0, 0, 3000, true, DT_F32, 2e-3, false),
    CASE("over chunks", 1, 2, 16, 16, 1100, 0, 0, 3, true, DT_F16, 1e-6, false),
    CASE("latent 576 of 512", 1, 16, 576, 512, 66, 0, 0, 1, false, DT_F16, 3e-7, true),
    CASE("latent, odd widths", 1, 50, 37, 19, 140, 0, 0, 3, false, DT_F32, 1e-6, true),
    CASE("latent over chunks", 1, 3, 80, 64, 1100, 0, 0, 3, false, DT_BF16, 1e-6, true),
    CODED("8 bits", 8, 8, 64, 2, 3, 64, 64, 140, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("4 bits", 4, 4, 64, 1, 7, 128, 128, 75, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("4 bits, f32", 4, 4, 32, 2, 1, 128, 128, 75, 0, 0, 1, DT_F32, 1e-6, false),
    CODED("8 bits, bf16", 8, 8, 128, 2, 1, 256, 256, 66, 0, 0, 1, DT_BF16, 1e-6, false),
    CODED("8 bits of 80", 8, 8, 64, 2, 1, 80, 80, 100, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("4 bits of 96", 4, 4, 64, 1, 4, 96, 96, 100, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("odd widths, 3 bits", 3, 3, 32, 2, 2, 33, 19, 140, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("2 and 6 bits", 2, 6, 32, 1, 2, 48, 80, 100, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("5 and 8 bits", 5, 8, 64, 1, 2, 88, 64, 100, 0, 0, 1, DT_F16, 1e-6, false),
    CODED("8 and 5 bits", 8, 5, 32, 1, 2, 100, 112, 100, 0, 0, 1, DT_F32, 1e-6, false),
    CODED("4 bits, window 65", 4, 4, 32, 1, 2, 32, 32, 200, 65, 0, 1, DT_F16, 1e-6, false),
    CODED("8 bits, softcap", 8, 8, 32, 2, 2, 32, 32, 150, 0, 5, 20, DT_F16, 2e-6, false),
    CODED("4 bits over chunks", 4, 4, 64, 1, 2, 16, 16, 1100, 0, 0, 3, DT_F16, 1e-6, false),
    CODED("latent, 8 bits", 8, 0, 64, 1, 16, 576, 512, 66, 0, 0, 1, DT_F16, 1e-6, true),
    CODED("latent, 4 bits, odd widths", 4, 0, 32, 1, 50, 37, 19, 140, 0, 0, 3, DT_F32, 1e-6, true),
};
static const int chunkings[] = {1 << 20, 1, 7, 64, 100};

static void test_cases(void **state) {
    for (size_t i = 0; i < COUNT(cases); i++) {
        const attn_case *c = &cases[i];
        seq_data s = seq_new(c, 0, 1);
        size_t bytes = sizeof(float) * (size_t)(c->n * c->heads * c->ratio * c->vw);
        float *first = malloc(bytes);
        for (int l = LEVELS - 1; l >= 0; l--) {
            if (!dev[l]) continue;
            for (size_t k = 0; k < COUNT(chunkings); k++) {
                if (l == 0 && k != 0 && ((i > 2 && !c->k.bits) || k != 2))
                    continue; /* ref is slow: once, and in sevens for some */
                kv_cache *kv = cache_new(dev[l], c, s.n_pages);
                seq_run(dev[l], kv, c, &s, chunkings[k]);
                dev[l]->vt->kv_free(dev[l], kv);
                if (k == 0 && (l == LEVELS - 1 || !dev[l + 1]))
                    memcpy(first, s.o, bytes);
                else if (memcmp(first, s.o, bytes) != 0)
                    fail_msg("%s: %s in chunks of %d differs", c->name, level_name[l], chunkings[k]);
            }
        }
        check_double(c, &s);
        free(first);
        seq_free(&s);
    }
}

/* A long sequence decodes beside a prompt and alone, with 1 to 4 threads: chunks are shared out or not, the bytes stay.
 */
static void test_company_and_threads(void **state) {
    attn_case c = CASE("company", 2, 3, 64, 64, 1700, 0, 0, 3, true, DT_F16, 2e-6, false);
    for (int kind = 0; kind < 4; kind++) { /* full, windowed, coded, latent and coded */
        c.window = kind == 1 ? 700 : 0;
        if (kind >= 2) c.k = c.v = (kv_code){4, false, 32};
        if (kind == 3) c.latent = true, c.heads = 1, c.ratio = 6, c.vw = 48, c.v.bits = 0;
        seq_data a = seq_new(&c, 0, 2), b = seq_new(&c, 1, 2);
        memcpy(b.sinks, a.sinks, sizeof(float) * 6);
        size_t row = sizeof(float) * (size_t)(c.heads * c.ratio * c.vw), bytes = row * (size_t)c.n;
        float *oa = malloc(bytes), *ob = malloc(bytes);
        for (int l = 1; l < LEVELS; l++)
            for (int threads = 1; threads <= THREADS_MAX; threads += kind < 2 ? 1 : 2) {
                device *d = level_open(l, threads);
                if (!d) continue;
                kv_cache *kv = cache_new(d, &c, a.n_pages + b.n_pages);
                seq_run(d, kv, &c, &a, 512);
                seq_run(d, kv, &c, &b, 300);
                if (l == 1 && threads == 1) memcpy(oa, a.o, bytes), memcpy(ob, b.o, bytes);
                assert_memory_equal(oa, a.o, bytes);
                assert_memory_equal(ob, b.o, bytes);
                /* again, mixed: one decodes near its end while the other is in its prompt, and both at different depths
                 */
                seq_data *both[] = {&a, &b};
                for (int i = 0; i < 6; i++) {
                    int at[] = {c.n - 6 + i, 50 * i}, n[] = {1, 50};
                    step_run(d, kv, &c, both, at, n, 2);
                }
                for (int at = c.n - 6, n = 1; at < c.n; at++) step_run(d, kv, &c, (seq_data *[]){&b}, &at, &n, 1);
                assert_memory_equal(oa, a.o, bytes);
                assert_memory_equal(ob, b.o, bytes);
                d->vt->kv_free(d, kv);
                device_close(d);
            }
        memcpy(a.o, oa, bytes);
        check_double(&c, &a);
        free(oa), free(ob);
        seq_free(&a), seq_free(&b);
    }
}

/* Two groups: the window's pages are released behind it, the full layer keeps its own. What lies in pages nobody may
 * see, and in the unused part of the last page, must not matter, whatever it is. */
static void test_released_pages_and_stale_bytes(void **state) {
    enum { N = 300, WIN = 70, W = 32 };
    kv_layer layers[2] = {{.heads = 1, .k_width = W, .v_width = W},
                          {.heads = 1, .k_width = W, .v_width = W, .group = 1}};
    kv_spec spec = {
        .n_layers = 2, .n_groups = 2, .layer = layers, .window = {0, WIN}, .n_pages = {5, 5}, .type = DT_F16};
    float q[N * W], k[N * W], v[N * W], got[2][2][W];
    for (int i = 0; i < N * W; i++) q[i] = 3 * rnd(), k[i] = rnd(), v[i] = rnd();
    for (int l = 0; l < LEVELS; l++) {
        device *d = dev[l];
        if (!d) continue;
        for (int dirty = 0; dirty < 2; dirty++) {
            kv_cache *kv = d->vt->kv_new(d, &spec, NULL);
            for (int g = 0; g < 2; g++)
                for (int p = 0; p < 5; p++) {
                    size_t n = d->vt->kv_page_bytes(d, &spec, g);
                    uint16_t *bytes = malloc(n);
                    for (size_t i = 0; i < n / 2; i++)
                        bytes[i] = dirty ? 0xfbff : 0; /* −65504: the worst a cache can hold */
                    d->vt->kv_write(d, kv, g, p, bytes);
                    free(bytes);
                }
            int32_t full[] = {4, 3, 2, 1, 0}, win[] = {0, 1, 2, 3, 4};
            step_seq ss = {.n_rows = N - 1, .slot = -1, .page = {full, win}};
            step s = {.n_rows = N - 1, .n_seqs = 1, .seq = &ss};
            for (int layer = 0; layer < 2; layer++)
                op_kv_append(d, kv, layer, tensor_f32(k, N - 1, 1, W), tensor_f32(v, N - 1, 1, W), &s);
            win[0] = win[1] = win[2] = -1; /* positions below 192; row 299 sees 230.. */
            ss = (step_seq){.n_rows = 1, .pos0 = N - 1, .slot = -1, .page = {full, win}};
            s.n_rows = 1;
            for (int layer = 0; layer < 2; layer++) {
                attn a = {.scale = 0.2f, .window = layer ? WIN : 0};
                float *o = got[layer][dirty];
                op_kv_append(d, kv, layer, tensor_f32(k + (N - 1) * W, 1, 1, W), tensor_f32(v + (N - 1) * W, 1, 1, W),
                             &s);
                op_attend(d, tensor_f32(o, 1, 1, W), tensor_f32(q + (N - 1) * W, 1, 1, W), kv, layer, &s, &a);
                assert_int_equal(d->status.code, 0);
            }
            /* a released page in sight is an error, not a crash */
            win[3] = -1;
            op_attend(d, tensor_f32(q, 1, 1, W), tensor_f32(q + W, 1, 1, W), kv, 1, &s,
                      &(attn){.scale = 1, .window = WIN});
            assert_int_equal(d->status.code, ERR_INTERNAL);
            d->status = (error){0};
            d->vt->kv_free(d, kv);
        }
        for (int layer = 0; layer < 2; layer++) assert_memory_equal(got[layer][0], got[layer][1], sizeof got[layer][0]);
    }
}

/* ---- coded pages ------------------------------------------------------------------------------------------------- */
enum { KEPT_ROWS = 64 };
/* The values [KEPT_ROWS,w] as the cache gives them back: rows that see themselves only, with a probability of 1. */
static void values_kept(device *d, float *y, const float *x, int w, kv_code v) {
    const attn_case c = {
        .heads = 1, .ratio = 1, .kw = 16, .vw = w, .type = DT_F16, .window = 1, .k = {8, false, 32}, .v = v};
    float k[KEPT_ROWS * 16] = {0};
    int32_t page = 0;
    kv_cache *kv = cache_new(d, &c, 1);
    step_seq ss = {.n_rows = KEPT_ROWS, .page = {&page}};
    step s = {.n_rows = KEPT_ROWS, .n_seqs = 1, .seq = &ss};
    op_kv_append(d, kv, 1, tensor_f32(k, KEPT_ROWS, 1, 16), tensor_f32((float *)x, KEPT_ROWS, 1, w), &s);
    op_attend(d, tensor_f32(y, KEPT_ROWS, 1, w), tensor_f32(k, KEPT_ROWS, 1, 16), kv, 1, &s,
              &(attn){.scale = 1, .window = 1});
    assert_int_equal(d->status.code, 0);
    d->vt->kv_free(d, kv);
}
static double normal(void) { /* twelve uniform ones */
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += rnd();
    return sum / 2;
}
static double relative_error(const float *y, const float *x, int n) {
    double e = 0, all = 0;
    for (int i = 0; i < n; i++) e += ((double)y[i] - x[i]) * ((double)y[i] - x[i]), all += (double)x[i] * x[i];
    return e / all;
}
/* Rotated codes are as good as the levels of a normal variable can be, whatever the values are like, and better than
 * affine ones of as many bits: on normal values where codes are few, with outlying columns always. */
static void test_rotated(void **state) {
    static const struct {
        int bits;
        double least; /* mean square error of the best levels (Max 1960, table I) */
    } known[] = {{2, 0.1175}, {3, 0.03454}, {4, 0.009497}, {5, 0.002499}, {8, 4.2e-5}};
    static const int widths[] = {128, 64, 80, 96, 256, 19};
    static float x[KEPT_ROWS * 256], y[KEPT_ROWS * 256], z[KEPT_ROWS * 256], first[KEPT_ROWS * 256];
    for (size_t b = 0; b < COUNT(known); b++)
        for (size_t i = 0; i < COUNT(widths); i++)
            for (int outliers = 0; outliers < 2; outliers++) {
                int w = widths[i], n = KEPT_ROWS * w;
                for (int k = 0; k < n; k++) x[k] = (float)(normal() * (outliers && k % w % 13 == 5 ? 12 : 1));
                kv_code turned = {(uint8_t)known[b].bits, true, 0}, plain = {(uint8_t)known[b].bits, false, 64};
                for (int l = LEVELS - 1, seen = 0; l >= 0; l--) {
                    if (!dev[l]) continue;
                    values_kept(dev[l], y, x, w, turned);
                    if (!seen++) memcpy(first, y, sizeof *y * (size_t)n);
                    assert_memory_equal(first, y, sizeof *y * (size_t)n);
                }
                values_kept(dev[0], z, x, w, plain);
                double e = relative_error(y, x, n), affine = relative_error(z, x, n);
                if (w % 64 == 0 && e > 1.06 * known[b].least + 1e-6)
                    fail_msg("%d bits, width %d, %s: error %g, the levels' own is %g", known[b].bits, w,
                             outliers ? "outliers" : "normal", e, known[b].least);
                if (w % 64 == 0 && (known[b].bits <= 3 || (outliers && known[b].bits <= 5)) && e >= affine)
                    fail_msg("%d bits, width %d, %s: error %g, affine codes have %g", known[b].bits, w,
                             outliers ? "outliers" : "normal", e, affine);
            }
}

/* Rotated values under attention: same bytes at every level and in any chunks, near what exact values give. */
static void test_rotated_attention(void **state) {
    attn_case c = CASE("rotated", 2, 3, 96, 80, 200, 0, 0, 1, false, DT_F16, 0, false);
    c.k = (kv_code){8, false, 32}, c.v = (kv_code){4, true, 0};
    seq_data s = seq_new(&c, 0, 1);
    size_t n = (size_t)(c.n * c.heads * c.ratio * c.vw);
    float *first = malloc(sizeof *first * n);
    for (int l = LEVELS - 1, seen = 0; l >= 0; l--)
        for (size_t k = 0; dev[l] && k < COUNT(chunkings); k++) {
            if (l == 0 && k != 2) continue;
            kv_cache *kv = cache_new(dev[l], &c, s.n_pages);
            seq_run(dev[l], kv, &c, &s, chunkings[k]);
            dev[l]->vt->kv_free(dev[l], kv);
            if (!seen++) memcpy(first, s.o, sizeof *first * n);
            assert_memory_equal(first, s.o, sizeof *first * n);
        }
    c.k = c.v = (kv_code){0};
    kv_cache *kv = cache_new(dev[0], &c, s.n_pages);
    seq_run(dev[0], kv, &c, &s, 64);
    dev[0]->vt->kv_free(dev[0], kv);
    assert_true(relative_error(first, s.o, (int)n) < 0.02);
    free(first);
    seq_free(&s);
}

/* A cache that keeps both: rows that ask for it see what an uncoded cache shows, the others what a coded one shows. */
static void test_both(void **state) {
    enum { AT = 90 };
    attn_case c = CASE("both", 2, 2, 64, 48, 150, 0, 0, 1, false, DT_F32, 0, false);
    for (int latent = 0; latent < 2; latent++) {
        c.latent = latent, c.heads = latent ? 1 : 2;
        size_t row = (size_t)(c.heads * c.ratio * c.vw), bytes = sizeof(float) * row * (size_t)c.n;
        seq_data s = seq_new(&c, 0, 1);
        float *o[3];
        for (int kind = 0; kind < 3; kind++) { /* uncoded, coded, both */
            c.k = (kv_code){kind ? 4 : 0, false, 32};
            c.v = latent ? (kv_code){0} : c.k;
            kv_layer l = layer_of(&c), layers[2] = {l, l};
            kv_spec spec = {.n_layers = 2,
                            .n_groups = 1,
                            .layer = layers,
                            .n_pages = {s.n_pages},
                            .type = c.type,
                            .both = kind == 2};
            kv_cache *kv = dev[0]->vt->kv_new(dev[0], &spec, NULL);
            uncoded_below = kind == 2 ? AT : 0;
            seq_run(dev[0], kv, &c, &s, AT / 2);
            uncoded_below = 0;
            dev[0]->vt->kv_free(dev[0], kv);
            o[kind] = malloc(bytes);
            memcpy(o[kind], s.o, bytes);
        }
        assert_memory_equal(o[2], o[0], sizeof(float) * row * AT);
        assert_memory_equal(o[2] + row * AT, o[1] + row * AT, bytes - sizeof(float) * row * AT);
        assert_memory_not_equal(o[0] + row * AT, o[1] + row * AT, bytes - sizeof(float) * row * AT);
        for (int kind = 0; kind < 3; kind++) free(o[kind]);
        seq_free(&s);
    }
}

/* What cannot be coded well must not break anything: equal values, zeros, values beyond the range, one column far out.
 */
static void test_coded_extremes(void **state) {
    enum { W = 64 };
    static const kv_code codes[] = {{8, false, 64}, {4, false, 32}, {2, false, 32}, {3, true, 0}, {8, true, 0}};
    float x[KEPT_ROWS * W], y[KEPT_ROWS * W];
    for (int i = 0; i < KEPT_ROWS * W; i++) {
        int r = i / W, k = i % W;
        x[i] = r == 0 ? 0 : r == 1 ? 3.25f : r == 2 ? -0.75f : r == 3 ? (k == 7) * 60000.0f : r == 4 ? 1e9f : (float)r;
        if (r == 5) x[i] = k & 1 ? NAN : -INFINITY;
        if (r == 6) x[i] = 1e-30f * rnd();
    }
    for (size_t c = 0; c < COUNT(codes); c++)
        for (int l = 0; l < LEVELS; l++) {
            if (!dev[l]) continue;
            values_kept(dev[l], y, x, W, codes[c]);
            for (int i = 0; i < KEPT_ROWS * W; i++) assert_true(fabsf(y[i]) <= 140000);
            for (int k = 0; k < W; k++) {
                assert_true(y[k] == 0 && fabsf(y[6 * W + k]) < 1e-6f);
                if (!codes[c].rotated)
                    assert_true(y[W + k] == 3.25f && y[2 * W + k] == -0.75f && y[4 * W + k] == 65504);
            }
            assert_true(fabsf(y[3 * W + 7] - 60000) < (codes[c].bits == 3 ? 12000 : 600));
        }
}

/* Values beyond the type: kept at its edge and counted; NaN becomes 0 and is counted. */
static void test_saturation(void **state) {
    enum { W = 20 };
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        for (dtype t = DT_F32; t <= DT_BF16; t++) {
            attn_case c = {.heads = 1, .ratio = 1, .kw = W, .vw = W, .n = 1, .type = t};
            kv_cache *kv = cache_new(dev[l], &c, 1);
            float k[W] = {1},
                  v[W] = {1e5f, -1e6f, NAN, INFINITY, -INFINITY, 65504, 65519, -65520, 3.4e38f, 0x1p-24f, 0x1p-26f},
                  q[W] = {0}, o[W];
            int32_t page = 0;
            step_seq ss = {.n_rows = 1, .slot = -1, .page = {&page}};
            step s = {.n_rows = 1, .n_seqs = 1, .seq = &ss};
            op_kv_append(dev[l], kv, 1, tensor_f32(k, 1, 1, W), tensor_f32(v, 1, 1, W), &s);
            op_attend(dev[l], tensor_f32(o, 1, 1, W), tensor_f32(q, 1, 1, W), kv, 1, &s, &(attn){.scale = 1});
            float top = t == DT_F16 ? 65504 : t == DT_BF16 ? 0x1.fep+127f : FLT_MAX;
            assert_int_equal(dev[l]->vt->kv_saturated(dev[l], kv), t == DT_F16 ? 8 : t == DT_BF16 ? 4 : 3);
            assert_true(o[2] == 0 && o[3] == top && o[4] == -top && o[5] == (t == DT_BF16 ? 65536 : 65504));
            assert_true(o[0] == (t == DT_F16 ? 65504 : (float)kept(1e5f, t)));
            assert_true(o[9] == 0x1p-24f && o[10] == (t == DT_F16 ? 0 : 0x1p-26f) && o[19] == 0);
            dev[l]->vt->kv_free(dev[l], kv);
        }
    }
}

/* A page copied, saved and restored, or given back to the system. */
static void test_page_life(void **state) {
    attn_case c = CASE("life", 2, 2, 48, 40, 64, 0, 0, 1, false, DT_F16, 1e-6, false);
    for (int i = 0; i < 3 * LEVELS; i++) { /* as they are, affine, rotated */
        device *d = dev[i % LEVELS];
        if (!d) continue;
        c.k = (kv_code){i < LEVELS ? 0 : 4, false, 32};
        c.v = (kv_code){i < LEVELS ? 0 : 3, i >= 2 * LEVELS, 32};
        seq_data s = seq_new(&c, 0, 1);
        kv_cache *kv = cache_new(d, &c, 4);
        seq_run(d, kv, &c, &s, 64);
        size_t row = (size_t)(c.heads * c.ratio * c.vw), n;
        float *o = malloc(sizeof(float) * row * 64);
        memcpy(o, s.o, sizeof(float) * row * 64);
        kv_layer layers[2] = {layer_of(&c), layer_of(&c)};
        kv_spec spec = {.n_layers = 2, .n_groups = 1, .layer = layers, .type = c.type};
        n = d->vt->kv_page_bytes(d, &spec, 0);
        uint8_t *saved = malloc(n), *zero = calloc(1, n), *now = malloc(n);
        d->vt->kv_read(d, kv, 0, 0, saved);
        d->vt->kv_copy(d, kv, 0, 2, 0);
        d->vt->kv_write(d, kv, 0, 3, saved);
        d->vt->kv_discard(d, kv, 0, 0);
        d->vt->kv_read(d, kv, 0, 0, now);
        assert_memory_equal(now, zero, n);
        for (int32_t p = 2; p < 4; p++) {
            int at = 63, one = 1;
            s.page[0] = p;
            step_run(d, kv, &c, (seq_data *[]){&s}, &at, &one, 1);
            assert_memory_equal(o, s.o, sizeof(float) * row * 64);
        }
        free(saved), free(zero), free(now), free(o);
        d->vt->kv_free(d, kv);
        seq_free(&s);
    }
}

/* A sequence without rows in the step is no reason to look at its pages. */
static void test_sequence_without_rows(void **state) {
    attn_case c = {.heads = 1, .ratio = 1, .kw = 16, .vw = 16, .n = 1, .type = DT_F16};
    for (int l = 0; l < LEVELS; l++) {
        if (!dev[l]) continue;
        kv_cache *kv = cache_new(dev[l], &c, 1);
        float x[16] = {1, 2, 3}, o[16];
        int32_t page = 0, none = -1;
        step_seq ss[2] = {{.page = {&none}}, {.n_rows = 1, .page = {&page}}};
        step s = {.n_rows = 1, .n_seqs = 2, .seq = ss};
        tensor t = tensor_f32(x, 1, 1, 16);
        op_kv_append(dev[l], kv, 0, t, t, &s);
        op_attend(dev[l], tensor_f32(o, 1, 1, 16), t, kv, 0, &s, &(attn){.scale = 1});
        assert_int_equal(dev[l]->status.code, 0);
        assert_memory_equal(o, x, sizeof x);
        dev[l]->vt->kv_free(dev[l], kv);
    }
}

static void test_bad_specs(void **state) {
    error err = {0};
    kv_layer l = {.heads = 1, .k_width = 5000, .v_width = 16};
    assert_null(dev[0]->vt->kv_new(
        dev[0], &(kv_spec){.n_layers = 1, .n_groups = 1, .layer = &l, .n_pages = {1}, .type = DT_F16}, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "4096 columns"));
    err = (error){0};
    l.k_width = 16;
    assert_null(dev[0]->vt->kv_new(
        dev[0], &(kv_spec){.n_layers = 1, .n_groups = 1, .layer = &l, .n_pages = {1}, .type = DT_I8}, &err));
    assert_int_equal(err.code, ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_company_and_threads),
        cmocka_unit_test(test_released_pages_and_stale_bytes),
        cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_rotated_attention),
        cmocka_unit_test(test_both),
        cmocka_unit_test(test_coded_extremes),
        cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_page_life),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_sequence_without_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
