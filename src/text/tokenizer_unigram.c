/* Unigram: the best-scoring path through a piece (Viterbi over the trie of all tokens). */
#include <stdlib.h>
#include "tokenizer.h"

typedef struct path {
    double score;
    size_t from;
    int32_t id; /* -1: not reached */
} path;

enum { HEAP_MAX = 1 << 19 }; /* above it a piece's tables are a client's large allocation */

static void *table_take(size_t n, error *err) {
    return n < HEAP_MAX ? mem_alloc(n) : mem_try(n, 16, err);
}

static void table_free(void *p, size_t n) {
    if (n < HEAP_MAX)
        free(p);
    else
        mem_try_free(p, n);
}

static void offer(path *to, double score, size_t from, int32_t id) {
    if (to->id >= 0 && score <= to->score) return;
    *to = (path){score, from, id};
}

static void push_text(const model *m, str s, ids *out) {
    int32_t id = vocab_find(&m->vocab, s);
    if (id >= 0) {
        ids_push(out, id);
        return;
    }
    bool all = m->byte_fallback;
    for (size_t i = 0; all && i < s.n; i++) all = m->byte_id[(uint8_t)s.p[i]] >= 0;
    if (!all) ids_push(out, m->unk);
    for (size_t i = 0; all && i < s.n; i++) ids_push(out, m->byte_id[(uint8_t)s.p[i]]);
}

bool unigram_encode(const model *m, str piece, ids *out, error *err) {
    path *best = table_take((piece.n + 1) * sizeof *best, err);
    if (!best) return false;
    for (size_t i = 1; i <= piece.n; i++) best[i].id = -1;
    bool ok = true;
    for (size_t at = 0, n; at < piece.n; at += n) {
        utf8_get(piece.p + at, &n);
        bool single = false;
        uint32_t node = 0;
        for (size_t end = at; end < piece.n && (node = trie_step(&m->trie, node, (uint8_t)piece.p[end]));) {
            int32_t id = m->trie.node[node].value;
            end++;
            if (id < 0) continue;
            offer(&best[end], best[at].score + m->score[id], at, id);
            single |= end - at == n;
        }
        if (single) continue;
        if (m->unk < 0) {
            ok =
                error_set(err, ERR_FORMAT, "tokenizer: a character is not in the vocabulary and there is no unk token");
            goto out;
        }
        offer(&best[at + n], best[at].score + m->score_unk, at, m->unk);
    }
    /* Walk back, turning `from` round so that the path can be read forwards. */
    size_t *next = table_take((piece.n + 1) * sizeof *next, err);
    if (!next) {
        ok = false;
        goto out;
    }
    for (size_t end = piece.n; end > 0; end = best[end].from) next[best[end].from] = end;
    for (size_t at = 0; at < piece.n;) {
        size_t end = next[at];
        if (m->fuse_unk && best[end].id == m->unk)
            while (end < piece.n && best[next[end]].id == m->unk) end = next[end];
        push_text(m, (str){piece.p + at, end - at}, out);
        at = end;
    }
    table_free(next, (piece.n + 1) * sizeof *next);
out:
    table_free(best, (piece.n + 1) * sizeof *best);
    return ok;
}
