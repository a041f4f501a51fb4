/* Attention over the cache. Included by vec_*.c after v16_*.h and vec_body.h. Not here: how keys and values come into
 * the cache and out of it (kv_body.h), the layout and life of pages (internal.h, kv.c). The mechanism is told in
 * docs/attention.md.
 *
 * What fixes the bits of one query row: scores are sums over the columns in order; blocks of KV_PAGE positions from
 * position 0, each with one running-maximum step; ATTN_CHUNK blocks form a unit with its own (maximum, sum, output),
 * and units are merged in order. Blocks a row sees nothing of leave its state alone. So neither the tile, the split
 * over threads nor the rows of other sequences can be seen in the result. The cache holds no infinities and no NaN:
 * probability 0 times any value is 0. Where a row sees chosen positions only, these take the place of all positions:
 * the first KV_PAGE of them are its first block, and so on. */
#pragma once
#include <float.h>
#include "internal.h"
#include "kv_body.h"
#include "vec_math.h"

/* ---- products: c [rows, cols] (+)= a [rows, k] · b [k, cols], k in order; cols a multiple of 16 ---- */
#define GEMM(name, type, load)                                                                                        \
    V_INL void name##_tile(const int R, const int P, const float *a, int lda, const type *b, int ldb, float *c,       \
                           int ldc, int k, bool zero) {                                                               \
        vf acc[6][4];                                                                                                 \
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < P; p++) acc[r][p] =                             \
            zero ? v_zero() : v_load(c + (int64_t)r * ldc + 16 * p);                                                  \
        for (int i = 0; i < k; i++) {                                                                                 \
            vf w[4];                                                                                                  \
            UNROLL for (int p = 0; p < P; p++) w[p] = load(b + (int64_t)i * ldb + 16 * p);                            \
            UNROLL for (int r = 0; r < R; r++) {                                                                      \
                vf x = v_set1(a[(int64_t)r * lda + i]);                                                               \
                UNROLL for (int p = 0; p < P; p++) acc[r][p] = v_fma(x, w[p], acc[r][p]);                             \
            }                                                                                                         \
        }                                                                                                             \
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int p = 0; p < P; p++)                                         \
            v_store(c + (int64_t)r * ldc + 16 * p, acc[r][p]);                                                        \
    }                                                                                                                 \
    V_INL void name##_rows(const int R, int cols, const float *a, int lda, const type *b, int ldb, float *c, int ldc, \
                           int k, bool zero) {                                                                        \
        int n = 0;                                                                                                    \
        if (V_TILE_COLS(R) >= 4)                                                                                      \
            for (; n + 64 <= cols; n += 64) name##_tile(R, 4, a, lda, b + n, ldb, c + n, ldc, k, zero);               \
        if (V_TILE_COLS(R) >= 2)                                                                                      \
            for (; n + 32 <= cols; n += 32) name##_tile(R, 2, a, lda, b + n, ldb, c + n, ldc, k, zero);               \
        for (; n < cols; n += 16) name##_tile(R, 1, a, lda, b + n, ldb, c + n, ldc, k, zero);                         \
    }                                                                                                                 \
    static void name(int rows, int cols, const float *a, int lda, const void *b_, int ldb, float *c, int ldc, int k,  \
                     bool zero) {                                                                                     \
        const type *b = b_;                                                                                           \
        for (int left = rows, n; left > 0; left -= n, a += n * (int64_t)lda, c += n * (int64_t)ldc) {                 \
            n = (left + (left + 5) / 6 - 1) / ((left + 5) / 6); /* passes of nearly equal size, at most 6 */          \
            switch (n) {                                                                                              \
            case 6: name##_rows(6, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            case 5: name##_rows(5, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            case 4: name##_rows(4, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            case 3: name##_rows(3, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            case 2: name##_rows(2, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            case 1: name##_rows(1, cols, a, lda, b, ldb, c, ldc, k, zero); break;                                     \
            }                                                                                                         \
        }                                                                                                             \
    }
GEMM(gemm_f32, float, v_load)
GEMM(gemm_f16, uint16_t, v_load_f16)
GEMM(gemm_bf16, uint16_t, v_load_bf16)
#undef GEMM
enum { WIDE_ROWS = 12 /* more query rows than this: a page is widened to f32 once instead of in every pass */ };
typedef void gemm_fn(int rows, int cols, const float *a, int lda, const void *b, int ldb, float *c, int ldc, int k,
                     bool zero);

/* ---- attention ---- */
typedef struct attend_job {
    tensor o, q;
    kv_cache *kv;
    const cpu_kv_layer *layer;
    const step *s;
    const attn *a;
    int ratio;     /* query heads a key head */
    tensor chosen; /* [T,N]; .p NULL: every row sees all it may */
    int row_tiles; /* chosen: tiles that one row's heads make */
} attend_job;

/* Rows [row, row+n) of one sequence and key head; row r is position r/ratio, query head r%ratio of the group. With
 * chosen positions a tile has the heads of one position alone, and positions are counted among the chosen. */
typedef struct attend_tile {
    const step_seq *seq;
    int head, row, n;
    int pos_first, pos_last; /* of its rows */
    int see_first;           /* first position any row sees */
    const kv_part *k, *v;    /* borrow (layer): coded or not */
    const int32_t *chosen;   /* [pos_last+1]; NULL: position i is the i-th */
} attend_tile;

/* Temporaries of one worker; sized in kv.c. */
typedef struct attend_work {
    float *q, *p, *m, *l, *o, *M, *L, *O, *k32, *v32;
} attend_work;

static attend_work work_of(const attend_job *j, int worker) {
    int kw = j->layer->dim.k_width, vp = j->layer->v_pad;
    float *f = (float *)(j->kv->work + (size_t)worker * j->kv->worker_bytes);
    attend_work w;
    w.q = f, f += ATTN_ROWS * kw;
    w.p = f, f += ATTN_ROWS * KV_PAGE;
    w.o = f, f += ATTN_ROWS * vp;
    w.O = f, f += ATTN_ROWS * vp;
    w.m = f, f += ATTN_ROWS;
    w.l = f, f += ATTN_ROWS;
    w.M = f, f += ATTN_ROWS;
    w.L = f, f += ATTN_ROWS;
    w.k32 = f, f += KV_PAGE * j->layer->k_pad;
    w.v32 = f;
    return w;
}

static int tiles_of(const attend_job *j, const step_seq *q) { /* of one key head */
    if (j->row_tiles) return q->n_rows * j->row_tiles;
    return (int)(((int64_t)q->n_rows * j->ratio + ATTN_ROWS - 1) / ATTN_ROWS);
}
static attend_tile tile_new(const attend_job *j, const step_seq *q, int head, int row) {
    const cpu_kv_layer *l = j->layer;
    bool plain = l->both && q->uncoded;
    return (attend_tile){
        .seq = q, .head = head, .row = row, .k = plain ? &l->k_plain : &l->k, .v = plain ? &l->v_plain : &l->v};
}
/* A tile of one row, which sees the chosen positions or, while there are no more than these, all. */
static attend_tile tile_chosen(const attend_job *j, const step_seq *q, int head, int i) {
    int at = i / j->row_tiles, part = i % j->row_tiles, N = j->chosen.dim[1], pos = q->pos0 + at;
    attend_tile t = tile_new(j, q, head, at * j->ratio + part * ATTN_ROWS);
    t.n = MIN(ATTN_ROWS, j->ratio - part * ATTN_ROWS);
    t.pos_first = t.pos_last = MIN(pos, N - 1);
    if (pos >= N) t.chosen = (const int32_t *)tensor_row(j->chosen, q->row0 + at);
    return t;
}
/* How many positions, from 0 on, row r sees at most. */
static int sees(const attend_job *j, const attend_tile *t, int r) {
    return j->row_tiles ? t->pos_last + 1 : t->seq->pos0 + (t->row + r) / j->ratio + 1;
}
/* Tile number i over all sequences; the last rows of a sequence, which see most, come first. */
static attend_tile tile_of(const attend_job *j, int i) {
    const step_seq *q = j->s->seq;
    int heads = j->layer->dim.heads, tiles;
    for (;; q++) {
        tiles = tiles_of(j, q);
        if (i < tiles * heads) break;
        i -= tiles * heads;
    }
    int rows = q->n_rows * j->ratio;
    if (j->row_tiles) return tile_chosen(j, q, i % heads, tiles - 1 - i / heads);
    attend_tile t = tile_new(j, q, i % heads, (tiles - 1 - i / heads) * ATTN_ROWS);
    t.n = MIN(ATTN_ROWS, rows - t.row);
    t.pos_first = q->pos0 + t.row / j->ratio;
    t.pos_last = q->pos0 + (t.row + t.n - 1) / j->ratio;
    t.see_first = j->a->window ? MAX(0, t.pos_first - j->a->window + 1) : 0;
    return t;
}

static float exp_neg1(float x) {
    float e[16];
    v_store(e, v_exp_neg(v_set1(x)));
    return e[0];
}
static float max1(float a, float b) {
    return a > b ? a : b;
}
static void row_scale(float *o, float c, int n) {
    vf k = v_set1(c);
    for (int i = 0; i < n; i += 16) v_store(o + i, v_mul(v_load(o + i), k));
}

/* One block's scores of one row become probabilities against the running maximum; sees positions [lo, hi) of the block.
 */
static void softmax_block(const attend_job *j, float *p, float *m, float *l, float *o, int lo, int hi) {
    vf s[4], top = v_set1(-FLT_MAX), scale = v_set1(j->a->scale);
    for (int i = 0; i < 4; i++) {
        s[i] = v_mul(v_load(p + 16 * i), scale);
        if (j->a->softcap != 0) s[i] = softcap_v(s[i], v_set1(j->a->softcap));
        s[i] = v_max(v_set1(-FLT_MAX), v_min(v_set1(FLT_MAX), s[i]));
        if (lo > 0 || hi < KV_PAGE) s[i] = v_sel(vm_range(lo - 16 * i, hi - 16 * i), s[i], v_set1(-FLT_MAX));
        top = v_max(top, s[i]);
    }
    float now = max1(*m, v_top(top));
    if (now != *m) {
        float c = exp_neg1(*m - now);
        *l *= c;
        row_scale(o, c, j->layer->v_pad);
        *m = now;
    }
    vf at = v_set1(now);
    for (int i = 0; i < 4; i++) {
        s[i] = v_exp_neg(v_sub(s[i], at));
        if (lo > 0 || hi < KV_PAGE) s[i] = v_sel(vm_range(lo - 16 * i, hi - 16 * i), s[i], v_zero());
        v_store(p + 16 * i, s[i]);
    }
    *l += v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* Block b of a latent layer: its rows as V, and turned as K. Lanes past the last position are 0. */
static void latent_block(const attend_job *j, const attend_tile *t, const attend_work *w, int b) {
    const cpu_kv_layer *lay = j->layer;
    int kw = lay->dim.k_width, n = MIN(KV_PAGE, t->pos_last + 1 - b * KV_PAGE);
    rows_reader r;
    rows_start(&r, t->k, j->kv->type);
    if (n < KV_PAGE) memset(w->k32, 0, sizeof(float) * (size_t)kw * KV_PAGE);
    for (int i = 0; i < n; i++) {
        int pos = t->chosen ? t->chosen[b * KV_PAGE + i] : b * KV_PAGE + i;
        row_read(&r, kv_head(j->kv, lay, t->seq->page[lay->dim.group][pos / KV_PAGE], 0), pos % KV_PAGE,
                 w->v32 + (int64_t)i * lay->k_pad);
    }
    for (int d0 = 0; d0 < kw; d0 += 16) /* in squares of 16, which stay in the first-level cache */
        for (int i0 = 0; i0 < n; i0 += 16)
            for (int i = i0; i < MIN(i0 + 16, n); i++)
                for (int d = d0; d < MIN(d0 + 16, kw); d++)
                    w->k32[d * KV_PAGE + i] = w->v32[(int64_t)i * lay->k_pad + d];
}

/* p [n,KV_PAGE] = q · K of coded keys, which are read a few columns at a time: the chain over the columns goes on. */
static void coded_scores(const attend_job *j, const attend_tile *t, const attend_work *w, const uint8_t *head) {
    int kw = j->layer->dim.k_width;
    for (int d = 0; d < kw; d += CODED_KEYS) {
        int n = MIN(CODED_KEYS, kw - d);
        keys_read(t->k, head, j->kv->type, d, n, w->k32);
        gemm_f32(t->n, KV_PAGE, w->q + d, kw, w->k32, KV_PAGE, w->p, KV_PAGE, n, d == 0);
    }
}
/* o [n,v_pad] += p · V of coded values at the first `most` positions, likewise. */
static void coded_values(const attend_job *j, const attend_tile *t, const attend_work *w, const uint8_t *head, float *o,
                         int most) {
    int vp = j->layer->v_pad;
    rows_reader r;
    rows_start(&r, t->v, j->kv->type);
    for (int i = 0; i < most; i += CODED_ROWS) {
        int n = MIN(CODED_ROWS, most - i);
        for (int k = 0; k < n; k++) row_read(&r, head, i + k, w->v32 + k * vp);
        gemm_f32(t->n, vp, w->p + i, KV_PAGE, w->v32, vp, o, vp, n, false);
    }
}

/* The blocks of chunk c for a tile: o [n, v_pad], m and l [n]. l stays 0 for a row that sees nothing of the chunk. */
static void attend_chunk(const attend_job *j, const attend_tile *t, const attend_work *w, int c, float *o, float *m,
                         float *l) {
    const cpu_kv_layer *lay = j->layer;
    int kw = lay->dim.k_width, vp = lay->v_pad, ldv = lay->dim.latent ? lay->k_pad : vp;
    dtype type = j->kv->type;
    gemm_fn *gemm = type == DT_F16 ? gemm_f16 : type == DT_BF16 ? gemm_bf16 : gemm_f32;
    bool latent = lay->dim.latent, coded = t->k->how.bits && !latent;
    bool wide = latent || (type != DT_F32 && t->n > WIDE_ROWS);
    if (wide) gemm = gemm_f32;
    for (int r = 0; r < t->n; r++) m[r] = -FLT_MAX;
    memset(l, 0, sizeof *l * (size_t)t->n);
    memset(o, 0, sizeof *o * (size_t)t->n * (size_t)vp);
    int first = MAX(c * ATTN_CHUNK, t->see_first / KV_PAGE);
    int last = MIN(c * ATTN_CHUNK + ATTN_CHUNK - 1, t->pos_last / KV_PAGE);
    for (int b = first; b <= last; b++) {
        const uint8_t *head = latent ? NULL : kv_head(j->kv, lay, t->seq->page[lay->dim.group][b], t->head);
        const void *k = w->k32, *v = w->v32;
        if (latent) {
            latent_block(j, t, w, b);
        } else if (coded) {
            coded_scores(j, t, w, head);
        } else if (wide) {
            widen(w->k32, head + t->k->at, kw * KV_PAGE, type);
            widen(w->v32, head + t->v->at, KV_PAGE * vp, type);
        } else {
            k = head + t->k->at;
            v = head + t->v->at;
        }
        if (!coded) gemm(t->n, KV_PAGE, w->q, kw, k, KV_PAGE, w->p, KV_PAGE, kw, true);
        int base = b * KV_PAGE, most = 0;
        for (int r = 0; r < t->n; r++) {
            int end = sees(j, t, r);
            int lo = j->a->window ? MAX(0, end - j->a->window - base) : 0, hi = MIN(KV_PAGE, end - base);
            most = MAX(most, hi);
            if (lo < hi)
                softmax_block(j, w->p + r * KV_PAGE, m + r, l + r, o + (int64_t)r * vp, lo, hi);
            else
                memset(w->p + r * KV_PAGE, 0, sizeof(float) * KV_PAGE);
        }
        if (coded)
            coded_values(j, t, w, head, o, most);
        else
            gemm(t->n, vp, w->p, KV_PAGE, v, ldv, o, vp, most, false);
    }
}

/* (M, L, O) of one row takes in the next chunk's (m, l, o). */
static void merge_row(float *M, float *L, float *O, float m, float l, const float *o, int n) {
    if (l == 0) return;
    float now = max1(*M, m), a = exp_neg1(*M - now), b = exp_neg1(m - now);
    *M = now;
    *L = fmaf(*L, a, l * b);
    vf va = v_set1(a), vb = v_set1(b);
    for (int i = 0; i < n; i += 16) v_store(O + i, v_fma(v_load(O + i), va, v_mul(v_load(o + i), vb)));
}
static void merge_start(const attend_tile *t, const attend_work *w, int vp) {
    for (int r = 0; r < t->n; r++) w->M[r] = -FLT_MAX;
    memset(w->L, 0, sizeof(float) * (size_t)t->n);
    memset(w->O, 0, sizeof(float) * (size_t)t->n * (size_t)vp);
}
static void merge_tile(const attend_tile *t, const attend_work *w, const float *o, const float *m, const float *l,
                       int vp) {
    for (int r = 0; r < t->n; r++)
        merge_row(w->M + r, w->L + r, w->O + (int64_t)r * vp, m[r], l[r], o + (int64_t)r * vp, vp);
}

static int query_head(const attend_job *j, const attend_tile *t, int r) {
    return t->head * j->ratio + (t->row + r) % j->ratio;
}
static int64_t query_line(const attend_job *j, const attend_tile *t, int r) {
    int heads = j->layer->dim.heads * j->ratio;
    return (int64_t)(t->seq->row0 + (t->row + r) / j->ratio) * heads + query_head(j, t, r);
}
static void take_queries(const attend_job *j, const attend_tile *t, const attend_work *w) {
    int kw = j->layer->dim.k_width;
    for (int r = 0; r < t->n; r++)
        memcpy(w->q + r * kw, tensor_line(j->q, query_line(j, t, r)), sizeof(float) * (size_t)kw);
}
/* o = O/L; a sink takes its share of the sum. The last fma turns −0 into +0: a masked position must not leave a sign.
 */
static void give_outputs(const attend_job *j, const attend_tile *t, const attend_work *w) {
    for (int r = 0; r < t->n; r++) {
        float l = w->L[r], c = 1;
        if (j->a->sinks) {
            float sink = j->a->sinks[query_head(j, t, r)], now = max1(w->M[r], sink);
            c = exp_neg1(w->M[r] - now);
            l = fmaf(l, c, exp_neg1(sink - now));
        }
        vf k = v_set1(l == 0 ? 0.0f : c / l);
        float *from = w->O + (int64_t)r * j->layer->v_pad;
        if (t->v->how.rotated) rotate_back(from, t->v->pad, j->kv->sign);
        float *to = tensor_line(j->o, query_line(j, t, r));
        FOR_16(i, j->layer->dim.v_width) row_put(to + i, v_fma(v_load(from + i), k, v_zero()), left);
    }
}

/* One tile from beginning to end. */
static void attend_whole(void *arg, int task, int worker) {
    const attend_job *j = arg;
    attend_tile t = tile_of(j, task);
    attend_work w = work_of(j, worker);
    take_queries(j, &t, &w);
    merge_start(&t, &w, j->layer->v_pad);
    int step = ATTN_CHUNK * KV_PAGE;
    for (int c = t.see_first / step; c <= t.pos_last / step; c++) {
        attend_chunk(j, &t, &w, c, w.o, w.m, w.l);
        merge_tile(&t, &w, w.o, w.m, w.l, j->layer->v_pad);
    }
    give_outputs(j, &t, &w);
}

/* The same, chunks shared out: task = tile·chunks + chunk, every partial result in its own slot of kv->parts, then
 * merged by tile. `chunks` is the most any tile has. */
typedef struct split_job {
    attend_job j;
    int chunks;
    size_t slot; /* floats */
} split_job;

static float *slot_at(const split_job *s, int tile, int chunk) {
    return s->j.kv->parts + ((size_t)tile * (size_t)s->chunks + (size_t)chunk) * s->slot;
}
static void attend_part(void *arg, int task, int worker) {
    const split_job *s = arg;
    const attend_job *j = &s->j;
    attend_tile t = tile_of(j, task / s->chunks);
    int step = ATTN_CHUNK * KV_PAGE, c = t.see_first / step + task % s->chunks;
    if (c > t.pos_last / step) return;
    attend_work w = work_of(j, worker);
    float *o = slot_at(s, task / s->chunks, task % s->chunks), *m = o + (int64_t)t.n * j->layer->v_pad, *l = m + t.n;
    take_queries(j, &t, &w);
    attend_chunk(j, &t, &w, c, o, m, l);
}
static void attend_merge(void *arg, int task, int worker) {
    const split_job *s = arg;
    const attend_job *j = &s->j;
    attend_tile t = tile_of(j, task);
    attend_work w = work_of(j, worker);
    int step = ATTN_CHUNK * KV_PAGE, vp = j->layer->v_pad;
    merge_start(&t, &w, vp);
    for (int c = 0; c <= t.pos_last / step - t.see_first / step; c++) {
        const float *o = slot_at(s, task, c), *m = o + (int64_t)t.n * vp, *l = m + t.n;
        merge_tile(&t, &w, o, m, l, vp);
    }
    give_outputs(j, &t, &w);
}

/* What a step asks for: tiles over all sequences and heads, most chunks and rows of a tile, score-and-value
 * multiplications. */
typedef struct attend_plan {
    int tiles, chunks, rows;
    int64_t work;
} attend_plan;

static attend_plan plan_of(const attend_job *j) {
    attend_plan p = {0};
    int step = ATTN_CHUNK * KV_PAGE;
    for (int b = 0; b < j->s->n_seqs; b++) {
        const step_seq *q = &j->s->seq[b];
        if (q->n_rows == 0) continue;
        int tiles = tiles_of(j, q), last = q->pos0 + q->n_rows - 1;
        int64_t see = j->a->window ? MIN(last + 1, j->a->window + q->n_rows) : last + 1;
        if (j->row_tiles) see = MIN(see, j->chosen.dim[1]);
        p.tiles += tiles * j->layer->dim.heads;
        p.rows = MAX(p.rows, MIN(ATTN_ROWS, q->n_rows * j->ratio));
        p.chunks = MAX(p.chunks, (int)((see + step - 1) / step) + 1);
        p.work += see * q->n_rows * j->ratio * j->layer->dim.heads * (j->layer->dim.k_width + j->layer->v_pad);
    }
    return p;
}

static bool pages_present(const attend_job *j) {
    for (int b = 0; b < j->s->n_seqs; b++) {
        const step_seq *q = &j->s->seq[b];
        if (q->n_rows == 0) continue;
        int first = j->a->window ? MAX(0, q->pos0 - j->a->window + 1) / KV_PAGE : 0;
        for (int i = first; i <= (q->pos0 + q->n_rows - 1) / KV_PAGE; i++)
            if (q->page[j->layer->dim.group][i] < 0) return false;
    }
    return true;
}

static void attend_run(device *d, split_job sj) {
    enum { SMALL = 1 << 17 /* multiplications not worth a fork and join */ };
    attend_job *j = &sj.j;
    kv_cache *kv = j->kv;
    if (!pages_present(j)) {
        error_set(&d->status, ERR_INTERNAL, "attention of layer %d: a page in sight was released",
                  (int)(j->layer - kv->layer));
        return;
    }
    attend_plan p = plan_of(j);
    if (p.work < SMALL) {
        for (int i = 0; i < p.tiles; i++) attend_whole(j, i, 0);
        return;
    }
    sj.chunks = p.chunks;
    sj.slot = (size_t)p.rows * (size_t)(j->layer->v_pad + 2);
    bool fits = sj.slot * (size_t)p.chunks * (size_t)p.tiles * sizeof(float) <= kv->parts_bytes;
    if (p.tiles < SPLIT_TILES * pool_size(d->threads) && pool_size(d->threads) > 1 && p.chunks > 2 && fits) {
        pool_run(d->threads, p.tiles * p.chunks, attend_part, &sj);
        pool_run(d->threads, p.tiles, attend_merge, &sj);
        return;
    }
    pool_run(d->threads, p.tiles, attend_whole, j);
}

static void attend(device *d, tensor o, tensor q, kv_cache *kv, int layer, const step *s, const attn *a) {
    attend_job j = {.o = o, .q = q, .kv = kv, .layer = &kv->layer[layer], .s = s, .a = a};
    j.ratio = q.dim[1] / j.layer->dim.heads;
    attend_run(d, (split_job){.j = j});
}

static void attend_chosen(device *d, tensor o, tensor q, kv_cache *kv, int layer, const step *s, const attn *a,
                          tensor chosen) {
    attend_job j = {.o = o, .q = q, .kv = kv, .layer = &kv->layer[layer], .s = s, .a = a, .chosen = chosen};
    j.ratio = q.dim[1] / j.layer->dim.heads;
    int last = 0;
    for (int b = 0; b < s->n_seqs; b++) last = MAX(last, s->seq[b].pos0 + s->seq[b].n_rows);
    if (last > chosen.dim[1]) j.row_tiles = (j.ratio + ATTN_ROWS - 1) / ATTN_ROWS;
    if (!j.layer->dim.latent || a->window)
        error_set(&d->status, ERR_INTERNAL, "chosen positions of layer %d, which is windowed or not latent", layer);
    else
        attend_run(d, (split_job){.j = j});
}

#include "index_body.h"

#define VEC_INSTALL(op)                      \
    do {                                     \
        (op)->rms_norm = rms_norm;           \
        (op)->add_rms_norm = add_rms_norm;   \
        (op)->layer_norm = layer_norm;       \
        (op)->rope = rope;                   \
        (op)->kv_append = kv_append;         \
        (op)->attend = attend;               \
        (op)->attend_chosen = attend_chosen; \
        (op)->index_choose = index_choose;   \
        (op)->copy = copy;                   \
        (op)->act_mul = act_mul;             \
        (op)->act = act_op;                  \
        (op)->add = add;                     \
        (op)->scale = scale;                 \
        (op)->softcap = softcap;             \
        (op)->gather = gather;               \
    } while (0)
