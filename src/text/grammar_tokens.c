/* A vocabulary for grammars from a tokenizer: the bytes of each token as the detokeniser emits them inside of a text.
 * Not here: the tries (grammar_vocab.c). */
#include "grammar_internal.h"

grammar_vocab *grammar_vocab_new(const tokenizer *t, int32_t n_logits, const int32_t *eos, size_t n_eos) {
    grammar_vocab *v = vocab_start(n_logits, eos, n_eos);
    for (int32_t id = 0; id < n_logits; id++) {
        size_t from = v->bytes.n;
        v->at[id] = (uint32_t)from;
        if (id >= tokenizer_size(t) || vocab_is_eos(v, id)) continue;
        if (tokenizer_is_special(t, id)) {
            char mark[4];
            buf_add(&v->bytes, mark, gx_token_mark(mark, id));
        } else {
            tokenizer_bytes(t, id, &v->bytes);
            vocab_bytes_check(v, from);
        }
    }
    v->at[n_logits] = (uint32_t)v->bytes.n;
    vocab_lay(v);
    return v;
}

int32_t grammar_special(const void *k, str mark) {
    int32_t id = tokenizer_id(k, mark);
    return id >= 0 && tokenizer_is_special(k, id) ? id : -1;
}
