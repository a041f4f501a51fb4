/* Vocabulary (text <-> id) and byte tries. */
#include <stdlib.h>
#include <xxhash.h>
#include "tokenizer.h"

str arena_str(arena *a, str s) {
    return (str){arena_copy(a, s.p ? s.p : "", s.n), s.n};
}

static uint32_t hash_of(str s) {
    return (uint32_t)XXH3_64bits(s.p, s.n);
}

void vocab_init(vocab *v, size_t expected) {
    size_t cap = 16;
    while (cap < expected * 2) cap *= 2;
    v->slot = mem_alloc(cap * sizeof *v->slot);
    v->mask = (uint32_t)cap - 1;
    for (int i = 0; i < VOCAB_DIRECT; i++) v->direct[i] = -1;
}

void vocab_deinit(vocab *v) {
    free(v->slot), free(v->token);
}

/* A slot is hash << 32 | id + 1: comparing hashes first saves most looks at the texts, which lie far apart. */
static uint32_t slot_find(const vocab *v, str token, uint32_t hash) {
    uint32_t at = hash & v->mask;
    for (uint64_t s; (s = v->slot[at]); at = (at + 1) & v->mask)
        if (s >> 32 == hash && str_eq(v->token[(uint32_t)s - 1], token)) break;
    return at;
}

static void vocab_grow(vocab *v) {
    uint64_t *old = v->slot;
    uint32_t cap = v->mask + 1;
    v->mask = cap * 2 - 1;
    v->slot = mem_alloc((size_t)cap * 2 * sizeof *v->slot);
    for (uint32_t i = 0; i < cap; i++) {
        uint32_t at = (uint32_t)(old[i] >> 32) & v->mask;
        if (!old[i]) continue;
        while (v->slot[at]) at = (at + 1) & v->mask;
        v->slot[at] = old[i];
    }
    free(old);
}

bool vocab_add(vocab *v, arena *a, str token, int64_t id, error *err) {
    if (id < 0 || id > TOKEN_ID_MAX)
        return error_set(err, ERR_FORMAT, "tokenizer: id %lld of a token is outside 0..%d", (long long)id,
                         TOKEN_ID_MAX);
    if (id >= v->cap) {
        int32_t cap = MAX(v->cap * 2, MAX((int32_t)id + 1, 256));
        v->token = mem_resize(v->token, (size_t)cap * sizeof *v->token);
        memset(v->token + v->cap, 0, (size_t)(cap - v->cap) * sizeof *v->token);
        v->cap = cap;
    }
    if (v->count * 2 > v->mask) vocab_grow(v);
    uint32_t hash = hash_of(token), at = slot_find(v, token, hash);
    if (!v->slot[at]) v->count++;
    v->token[id] = arena_str(a, token);
    v->slot[at] = (uint64_t)hash << 32 | ((uint32_t)id + 1);
    v->n = MAX(v->n, (int32_t)id + 1);
    if (token.n && token.n <= 2) {
        size_t len;
        uint32_t cp = utf8_get(token.p, &len);
        if (len == token.n && cp < VOCAB_DIRECT) v->direct[cp] = (int32_t)id;
    }
    return true;
}

int32_t vocab_find(const vocab *v, str token) {
    return (int32_t)(uint32_t)v->slot[slot_find(v, token, hash_of(token))] - 1;
}

int32_t vocab_find_point(const vocab *v, uint32_t cp, str spelled) {
    return cp < VOCAB_DIRECT ? v->direct[cp] : vocab_find(v, spelled);
}

/* ---- trie ------------------------------------------------------------------------------------------------------- */
static int key_order(const void *a, const void *b) {
    const trie_key *x = a, *y = b;
    int c = memcmp(x->s.p, y->s.p, MIN(x->s.n, y->s.n));
    if (c) return c;
    if (x->s.n != y->s.n) return x->s.n < y->s.n ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

typedef struct trie_range {
    uint32_t low, high; /* the keys below a node */
} trie_range;

/* Breadth first, so that the children of a node lie side by side. */
void trie_build(trie *t, trie_key *key, size_t n) {
    memset(t, 0, sizeof *t);
    qsort(key, n, sizeof *key, key_order);
    size_t cap = 64 + n * 2, level_end = 1, depth = 0;
    t->node = mem_alloc(cap * sizeof *t->node);
    trie_range *range = mem_alloc(cap * sizeof *range);
    t->node[0] = (trie_node){.value = -1};
    range[0] = (trie_range){0, (uint32_t)n};
    t->n = 1;
    for (uint32_t at = 0; at < t->n; at++) {
        if (at == level_end) depth++, level_end = t->n;
        uint32_t k = range[at].low, high = range[at].high;
        while (k < high && key[k].s.n == depth) t->node[at].value = key[k++].value;
        t->node[at].first = t->n;
        while (k < high) {
            uint8_t byte = (uint8_t)key[k].s.p[depth];
            uint32_t from = k;
            while (k < high && (uint8_t)key[k].s.p[depth] == byte) k++;
            if (t->n == cap) {
                cap *= 2;
                t->node = mem_resize(t->node, cap * sizeof *t->node);
                range = mem_resize(range, cap * sizeof *range);
            }
            range[t->n] = (trie_range){from, k};
            t->node[t->n++] = (trie_node){.byte = byte, .value = -1};
            t->node[at].n++;
        }
    }
    free(range);
    for (uint32_t i = t->node[0].first, end = i + t->node[0].n; i < end; i++) t->root[t->node[i].byte] = i;
}

void trie_deinit(trie *t) {
    free(t->node);
}
