/* Schemas, regexes, GBNF and Lark grammars from any bytes: what compiles is walked by its masks, and every text that a
 * mask allows must be accepted. */
#include <stdint.h>
#include <stdlib.h>
#include "../../src/text/grammar.h"

enum { TOKENS = 256 + 12, EOS = 0, STEPS = 24 };
static grammar_vocab *vocab(str token[TOKENS]) {
    static char byte[256];
    static const char *const more[] = {"\",\"",    "\": ",     "{\"", "\"}",  "aa", "abc",
                                       "\xC3\xA4", "\xF0\x9F", "00",  "true", "]}", "  "};
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        token[i] = (str){&byte[i], i != EOS};
    }
    for (size_t i = 0; i < COUNT(more); i++) token[256 + i] = str_of(more[i]);
    const int32_t eos = EOS;
    return grammar_vocab_of(token, TOKENS, &eos, 1);
}
static void walk(grammar *g, const uint8_t *choice, size_t n) {
    matcher *m = matcher_new(g), *copy = matcher_new(g);
    for (size_t i = 0; i < STEPS && !matcher_done(m); i++) {
        const uint64_t *mask = matcher_mask(m);
        if (!mask) break;
        int32_t allowed[TOKENS], count = 0;
        for (int32_t id = 0; id < TOKENS; id++)
            if (mask[id / 64] >> (id % 64) & 1) allowed[count++] = id;
        if (!count) break;
        for (int k = 0; k < count; k++) { /* each allowed token leads on, from a copy too */
            matcher_copy(copy, m);
            if (!matcher_accept(copy, allowed[k])) abort();
        }
        int32_t id = allowed[(n ? choice[i % n] : i * 7) % (size_t)count];
        if (!matcher_accept(m, id)) abort();
    }
    matcher_free(copy);
    matcher_free(m);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static grammar_vocab *v;
    static str token[TOKENS];
    if (!v) v = vocab(token);
    if (size < 3 || size > 2000) return 0;
    static const grammar_kind kinds[] = {GRAMMAR_SCHEMA, GRAMMAR_REGEX, GRAMMAR_RULES};
    str text = {(const char *)data + 3, size - 3};
    grammar_spec s = {.kind = kinds[data[0] % 3], .compact = data[1] & 1, .text = text};
    arena *a = arena_new(0);
    error err = {0};
    if (s.kind == GRAMMAR_SCHEMA && !(s.schema = json_read(a, text, NULL, &err))) {
        arena_free(a);
        return 0;
    }
    grammar *g = grammar_compile(&s, v, &err);
    if (g)
        walk(g, data, size);
    else if (err.code == ERR_NONE)
        abort();
    grammar_drop(g);
    arena_free(a);
    return 0;
}
