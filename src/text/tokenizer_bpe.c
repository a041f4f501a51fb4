/* Byte-pair encoding: symbols in a linked list, merges taken from a heap in order of rank, so that a piece of n
 * characters costs O(n log n) whatever it holds. Ranks come from a merge list, or from scores or ranks of whole tokens.
 */
#include <stdlib.h>
#include "tokenizer.h"

/* ---- the merge table --------------------------------------------------------------------------------------------- */
static inline uint64_t pair_hash(uint64_t pair) {
    pair *= 0x9E3779B97F4A7C15ull;
    return pair ^ pair >> 29;
}

static void slots_new(merges *m, size_t cap) {
    m->slot = mem_alloc(cap * sizeof *m->slot);
    m->mask = cap - 1;
    for (size_t i = 0; i < cap; i++) m->slot[i].pair = MERGE_EMPTY;
}

void merges_init(merges *m, size_t expected) {
    size_t cap = 16;
    while (cap < expected + expected / 2) cap *= 2;
    slots_new(m, cap);
}

static merge *slot_of(const merges *m, uint64_t pair) {
    uint64_t at = pair_hash(pair) & m->mask;
    while (m->slot[at].pair != pair && m->slot[at].pair != MERGE_EMPTY) at = (at + 1) & m->mask;
    return &m->slot[at];
}

void merges_put(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    if (m->n * 4 > m->mask * 3) {
        merge *old = m->slot;
        size_t cap = m->mask + 1;
        slots_new(m, cap * 2);
        for (size_t i = 0; i < cap; i++)
            if (old[i].pair != MERGE_EMPTY) *slot_of(m, old[i].pair) = old[i];
        free(old);
    }
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    merge *s = slot_of(m, pair);
    if (s->pair == MERGE_EMPTY) m->n++;
    *s = (merge){pair, rank, id};
}

static inline const merge *merge_find(const merges *m, int32_t left, int32_t right) {
    const merge *s = slot_of(m, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return s->pair == MERGE_EMPTY ? NULL : s;
}

void merges_from_ranks(merges *m, const vocab *v, const uint32_t *rank) {
    for (int32_t id = 0; id < v->n; id++) {
        str s = v->token[id];
        if (!s.p || rank[id] == UINT32_MAX || vocab_find(v, s) != id) continue;
        for (size_t cut = 1; cut < s.n; cut++) {
            if (utf8_inside(s.p[cut])) continue;
            int32_t left = vocab_find(v, (str){s.p, cut});
            int32_t right = left < 0 ? -1 : vocab_find(v, (str){s.p + cut, s.n - cut});
            if (right >= 0) merges_put(m, left, right, rank[id], id);
        }
    }
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */
typedef struct symbol {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
} symbol;
typedef struct candidate {
    uint64_t order; /* rank << 32 | position: the smallest goes first */
    int32_t id;     /* what the merge makes */
} candidate;

enum { SMALL = 64 };
typedef struct word {
    symbol *s;
    size_t n, cap;
    candidate *heap;
    size_t n_heap, cap_heap;
    symbol s_small[SMALL];
    candidate heap_small[SMALL * 2];
} word;

static void word_add(word *w, int32_t id) {
    if (w->n == w->cap) {
        w->cap *= 4;
        symbol *grown =
            w->s == w->s_small ? mem_alloc(w->cap * sizeof *grown) : mem_resize(w->s, w->cap * sizeof *grown);
        if (w->s == w->s_small) memcpy(grown, w->s_small, sizeof w->s_small);
        w->s = grown;
    }
    int32_t at = (int32_t)w->n++;
    w->s[at] = (symbol){id, at - 1, -1};
    if (at) w->s[at - 1].next = at;
}

static void heap_push(word *w, candidate c) {
    if (w->n_heap == w->cap_heap) {
        w->cap_heap *= 4;
        candidate *grown = w->heap == w->heap_small ? mem_alloc(w->cap_heap * sizeof *grown)
                                                    : mem_resize(w->heap, w->cap_heap * sizeof *grown);
        if (w->heap == w->heap_small) memcpy(grown, w->heap_small, sizeof w->heap_small);
        w->heap = grown;
    }
    size_t at = w->n_heap++;
    while (at && w->heap[(at - 1) / 2].order > c.order) w->heap[at] = w->heap[(at - 1) / 2], at = (at - 1) / 2;
    w->heap[at] = c;
}

static candidate heap_pop(word *w) {
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= w->n_heap) break;
        if (child + 1 < w->n_heap && w->heap[child + 1].order < w->heap[child].order) child++;
        if (w->heap[child].order >= last.order) break;
        w->heap[at] = w->heap[child], at = child;
    }
    w->heap[at] = last;
    return top;
}

static void consider(const model *m, word *w, int32_t left) {
    if (left < 0 || w->s[left].next < 0) return;
    const merge *f = merge_find(&m->merges, w->s[left].id, w->s[w->s[left].next].id);
    if (f) heap_push(w, (candidate){(uint64_t)f->rank << 32 | (uint32_t)left, f->id});
}

static void word_merge(const model *m, word *w) {
    for (size_t i = 0; i + 1 < w->n; i++) consider(m, w, (int32_t)i);
    while (w->n_heap) {
        candidate c = heap_pop(w);
        int32_t left = (int32_t)(uint32_t)c.order;
        symbol *l = &w->s[left];
        if (l->id < 0 || l->next < 0) continue;
        symbol *r = &w->s[l->next];
        const merge *f = merge_find(&m->merges, l->id, r->id); /* what stood here may have changed since */
        if (!f || f->id != c.id) continue;
        l->id = f->id;
        l->next = r->next;
        r->id = -1;
        if (l->next >= 0) w->s[l->next].prev = left;
        consider(m, w, l->prev);
        consider(m, w, left);
    }
}

static bool no_unk(error *err) {
    return error_set(err, ERR_FORMAT, "tokenizer: the unk token is not in the vocabulary");
}

/* The piece as its first symbols. A character without a token falls back to bytes, then to unk; runs of unk fuse if
 * asked. */
static bool word_start(const model *m, word *w, str piece, buf *scratch, error *err) {
    bool pending = false;
    for (size_t at = 0, n; at < piece.n; at += n) {
        uint32_t cp = utf8_get(piece.p + at, &n);
        str s = {piece.p + at, n};
        int32_t id;
        bool first = at == 0, last = at + n == piece.n;
        if ((!first && m->prefix.n) || (last && m->suffix.n)) {
            scratch->n = 0;
            if (!first) buf_str(scratch, m->prefix);
            buf_str(scratch, s);
            if (last) buf_str(scratch, m->suffix);
            s = buf_view(scratch);
            id = vocab_find(&m->vocab, s);
        } else {
            id = vocab_find_point(&m->vocab, cp, s);
        }
        if (id >= 0) {
            if (pending) word_add(w, m->unk);
            pending = false;
            word_add(w, id);
            continue;
        }
        if (m->byte_fallback) {
            bool all = true;
            for (size_t i = 0; i < s.n; i++) all &= m->byte_id[(uint8_t)s.p[i]] >= 0;
            if (all) { /* as in the reference, an unk that waits comes out after these */
                for (size_t i = 0; i < s.n; i++) word_add(w, m->byte_id[(uint8_t)s.p[i]]);
                continue;
            }
        }
        if (!m->has_unk) continue; /* the reference drops such characters */
        if (m->unk < 0) return no_unk(err);
        if (pending && !m->fuse_unk) word_add(w, m->unk);
        pending = true;
    }
    if (pending) word_add(w, m->unk);
    return true;
}

bool bpe_encode(const model *m, str piece, ids *out, error *err) {
    if (m->ignore_merges) {
        int32_t id = vocab_find(&m->vocab, piece);
        if (id >= 0) return ids_push(out, id), true;
    }
    if (piece.n > INT32_MAX) return error_set(err, ERR_TOO_LARGE, "tokenizer: a piece of %zu bytes", piece.n);
    word w;
    w.s = w.s_small, w.n = 0, w.cap = SMALL;
    w.heap = w.heap_small, w.n_heap = 0, w.cap_heap = SMALL * 2;
    buf scratch = {0};
    bool ok = word_start(m, &w, piece, &scratch, err);
    if (ok) {
        word_merge(m, &w);
        for (size_t i = 0; i < w.n; i++)
            if (w.s[i].id >= 0) ids_push(out, w.s[i].id);
    }
    buf_free(&scratch);
    if (w.s != w.s_small) free(w.s);
    if (w.heap != w.heap_small) free(w.heap);
    return ok;
}

void model_find_bytes(model *m) {
    for (int b = 0; b < 256; b++) {
        char name[] = "<0x00>";
        name[3] = "0123456789ABCDEF"[b >> 4];
        name[4] = "0123456789ABCDEF"[b & 15];
        m->byte_id[b] = vocab_find(&m->vocab, STR(name));
    }
}
