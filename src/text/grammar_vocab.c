/* A vocabulary as grammars see it: the bytes of every token, in two tries laid out in order: tokens of safe characters
 * only (what a JSON string may hold as it is) and all others. A special token is spelled by a mark that no text can
 * hold, so that a grammar can ask for it and nothing else matches it. Not here: walking (grammar_mask.c), reading a
 * tokenizer (grammar_tokens.c). */
#include <stdlib.h>
#include "grammar_internal.h"

typedef struct entry {
    str s;
    int32_t id;
} entry;
static int entry_order(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int c = memcmp(x->s.p, y->s.p, MIN(x->s.n, y->s.n));
    if (c) return c;
    if (x->s.n != y->s.n) return x->s.n < y->s.n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Characters of a wholly safe token; 0: it is not. */
static size_t safe_chars(str s) {
    if (utf8_valid(s) != s.n) return 0;
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.p[i];
        if (c < 0x20 || c == '"' || c == '\\') return 0;
        n += !utf8_inside(s.p[i]);
    }
    return n;
}

static void trie_lay(grammar_vocab *v, token_trie *t, entry *e, size_t n) {
    uint32_t cap = 0, *open = mem_alloc((TOKEN_BYTES_MAX + 1) * sizeof *open), depth = 0;
    qsort(e, n, sizeof *e, entry_order);
    int32_t last = -1;
    for (size_t i = 0; i < n; i++) {
        str s = e[i].s;
        size_t same = 0;
        if (i) {
            size_t most = MIN(s.n, e[i - 1].s.n);
            while (same < most && s.p[same] == e[i - 1].s.p[same]) same++;
        }
        if (i && same == s.n && s.n == e[i - 1].s.n) {
            v->same[last] = e[i].id;
            last = e[i].id;
            continue;
        }
        for (; depth > same; depth--) t->node[open[depth - 1]].skip = t->n - open[depth - 1];
        for (size_t k = same; k < s.n; k++) {
            if (t->n == cap) t->node = mem_resize(t->node, (cap = cap * 2 + 256) * sizeof *t->node);
            open[depth++] = t->n;
            t->node[t->n++] = (token_node){.token = -1, .depth = (uint16_t)(k + 1), .byte = (uint8_t)s.p[k]};
        }
        t->node[t->n - 1].token = last = e[i].id;
    }
    for (; depth > 0; depth--) t->node[open[depth - 1]].skip = t->n - open[depth - 1];
    free(open);
}

void vocab_lay(grammar_vocab *v) {
    entry *safe = mem_alloc((size_t)(v->n + 1) * sizeof *safe), *rest = mem_alloc((size_t)(v->n + 1) * sizeof *rest);
    size_t n_safe = 0, n_rest = 0;
    v->words = ((size_t)v->n + 63) / 64;
    v->same = mem_alloc((size_t)(v->n + 1) * sizeof *v->same);
    for (int i = 0; i < SAFE_CHARS_MAX + 2; i++) v->level[i] = mem_alloc((v->words + 1) * sizeof(uint64_t));
    for (int32_t id = 0; id < v->n; id++) {
        v->same[id] = -1;
        entry e = {{v->bytes.p + v->at[id], v->at[id + 1] - v->at[id]}, id};
        if (!e.s.n) continue;
        size_t chars = safe_chars(e.s);
        if (!chars) {
            rest[n_rest++] = e;
            continue;
        }
        safe[n_safe++] = e;
        for (size_t i = MIN(chars, SAFE_CHARS_MAX + 1); i < SAFE_CHARS_MAX + 2; i++)
            v->level[i][id / 64] |= 1ull << (id % 64);
    }
    trie_lay(v, &v->safe, safe, n_safe);
    trie_lay(v, &v->rest, rest, n_rest);
    free(safe);
    free(rest);
}

grammar_vocab *vocab_start(int32_t n, const int32_t *eos, size_t n_eos) {
    grammar_vocab *v = mem_alloc(sizeof *v);
    atomic_init(&v->refs, 1);
    v->n = n;
    v->at = mem_alloc((size_t)(n + 1) * sizeof *v->at);
    v->eos = mem_alloc((n_eos + 1) * sizeof *v->eos);
    for (size_t i = 0; i < n_eos; i++)
        if (eos[i] >= 0 && eos[i] < n) v->eos[v->n_eos++] = eos[i];
    return v;
}
bool vocab_is_eos(const grammar_vocab *v, int32_t id) {
    for (size_t i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id) return true;
    return false;
}
void vocab_bytes_check(grammar_vocab *v, size_t from) {
    size_t n = v->bytes.n - from;
    if (n > TOKEN_BYTES_MAX || (n && memchr(v->bytes.p + from, TOKEN_MARK, n))) v->bytes.n = from;
}

grammar_vocab *grammar_vocab_of(const str *token, int32_t n, const int32_t *eos, size_t n_eos) {
    grammar_vocab *v = vocab_start(n, eos, n_eos);
    for (int32_t id = 0; id < n; id++) {
        size_t from = v->bytes.n;
        v->at[id] = (uint32_t)from;
        if (vocab_is_eos(v, id)) continue;
        buf_str(&v->bytes, token[id]);
        vocab_bytes_check(v, from);
    }
    v->at[n] = (uint32_t)v->bytes.n;
    vocab_lay(v);
    return v;
}
grammar_vocab *grammar_vocab_keep(grammar_vocab *v) {
    atomic_fetch_add(&v->refs, 1);
    return v;
}
void grammar_vocab_drop(grammar_vocab *v) {
    if (!v || atomic_fetch_sub(&v->refs, 1) != 1) return;
    free(v->at);
    free(v->same);
    free(v->eos);
    free(v->safe.node);
    free(v->rest.node);
    for (int i = 0; i < SAFE_CHARS_MAX + 2; i++) free(v->level[i]);
    buf_free(&v->bytes);
    free(v);
}
