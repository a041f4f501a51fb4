/* An indexer: every position a row may see is scored with small keys of their own, and the best are chosen for
 * attention. Included by attend_body.h, whose products it uses. Source: DeepSeek-V3.2-Exp report, section 2.1.
 *
 * A row's score of a position is a sum over the index heads in order, so neither the step's other rows nor threads can
 * be seen in it. Choosing compares scores only: ties go to the lowest position. */
#pragma once

typedef struct index_job {
    tensor chosen, q, w;
    kv_cache *kv;
    const cpu_kv_layer *layer;
    const step_seq *seq;
    int row, n_rows;   /* of the sequence: those at work */
    int stretches;     /* of INDEX_STRETCH pages each */
    int64_t positions; /* row length of kv->scores */
} index_job;
enum { INDEX_STRETCH = 16, INDEX_HEADS = 12 /* heads whose products are formed together */ };

static void index_page(const index_job *j, int row, int page, float *out) {
    const cpu_kv_layer *l = j->layer;
    dtype type = j->kv->type;
    gemm_fn *gemm = type == DT_F16 ? gemm_f16 : type == DT_BF16 ? gemm_bf16 : gemm_f32;
    const void *k = kv_head(j->kv, l, j->seq->page[l->dim.group][page], 0);
    const float *q = tensor_row(j->q, row), *weight = tensor_row(j->w, row);
    float p[INDEX_HEADS * KV_PAGE];
    vf s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int H = j->q.dim[1], ldq = (int)j->q.stride[1];
    for (int h = 0, n; h < H; h += n) {
        n = MIN(INDEX_HEADS, H - h);
        gemm(n, KV_PAGE, q + (int64_t)h * ldq, ldq, k, KV_PAGE, p, KV_PAGE, l->dim.k_width, true);
        for (int i = 0; i < n; i++)
            for (int c = 0; c < 4; c++)
                s[c] = v_fma(v_set1(weight[h + i]), v_max(v_load(p + i * KV_PAGE + 16 * c), v_zero()), s[c]);
    }
    for (int c = 0; c < 4; c++) v_store(out + 16 * c, s[c]);
}
static void index_stretch(void *arg, int task, int worker) {
    const index_job *j = arg;
    int at = task / j->stretches, page = task % j->stretches * INDEX_STRETCH;
    int last = MIN((j->seq->pos0 + j->row + at) / KV_PAGE, page + INDEX_STRETCH - 1);
    float *out = j->kv->scores + at * j->positions;
    for (; page <= last; page++) index_page(j, j->seq->row0 + j->row + at, page, out + (int64_t)page * KV_PAGE);
}

/* Numbers in the order of the scores; −0 is 0. */
static uint32_t score_rank(float x) {
    uint32_t b;
    x += 0.0f;
    memcpy(&b, &x, 4);
    return b >> 31 ? ~b : b | 0x80000000u;
}
/* out [N] ascending: the N largest of score [n], n > N. The N-th largest rank is found a byte at a time. */
static void choose_best(int32_t *out, int N, const float *score, int n) {
    uint32_t rank = 0, known = 0;
    int left = N; /* how many of those that agree with `rank` in the bits `known` are wanted */
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, b = 255;
        for (int i = 0; i < n; i++) {
            uint32_t r = score_rank(score[i]);
            if ((r & known) == rank) count[r >> shift & 255]++;
        }
        while (count[b] < left) left -= count[b--];
        rank |= (uint32_t)b << shift;
        known |= 255u << shift;
    }
    for (int i = 0, at = 0; i < n && at < N; i++) {
        uint32_t r = score_rank(score[i]);
        if (r > rank || (r == rank && left-- > 0)) out[at++] = i;
    }
}
static void index_row(void *arg, int task, int worker) {
    const index_job *j = arg;
    int row = j->row + task;
    choose_best((int32_t *)tensor_row(j->chosen, j->seq->row0 + row), j->chosen.dim[1],
                j->kv->scores + task * j->positions, j->seq->pos0 + row + 1);
}

static void index_choose(device *d, tensor chosen, tensor q, tensor w, kv_cache *kv, int layer, const step *s) {
    index_job j = {.chosen = chosen, .q = q, .w = w, .kv = kv, .layer = &kv->layer[layer]};
    j.positions = (int64_t)(kv->scores_bytes / sizeof(float) / INDEX_ROWS);
    if (!kv->scores || j.layer->dim.heads != 1 || j.layer->dim.latent) {
        error_set(&d->status, ERR_INTERNAL, "layer %d has no keys of an indexer", layer);
        return;
    }
    for (int b = 0; b < s->n_seqs; b++) {
        j.seq = &s->seq[b];
        for (j.row = MAX(0, chosen.dim[1] - j.seq->pos0); j.row < j.seq->n_rows; j.row += j.n_rows) {
            j.n_rows = MIN(INDEX_ROWS, j.seq->n_rows - j.row);
            int last = (j.seq->pos0 + j.row + j.n_rows - 1) / KV_PAGE;
            j.stretches = last / INDEX_STRETCH + 1;
            pool_run(d->threads, j.n_rows * j.stretches, index_stretch, &j);
            pool_run(d->threads, j.n_rows, index_row, &j);
        }
    }
}
