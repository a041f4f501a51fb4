/* A generation's grammar: which tokens its answer may take next. The grammar holds for the answer only: while the reply
 * thinks nothing is masked, and it begins when the block has closed. Before a block could open, its opening is allowed
 * beside the answer; between block and answer a few line breaks are. Everything here follows accepted tokens, so a
 * sequence that is computed again needs nothing. Not here: grammars (text/grammar.h), picking (sampler.c). */
#include <stdlib.h>
#include "internal.h"

struct constraint {
    matcher *answer;
    matcher *open, *lead; /* NULL: there is none, or it is out of the question by now */
    bool answers;         /* `answer` still fits what came so far; otherwise a block must open */
    output_phase phase;   /* after the last token */
    size_t words;
    uint64_t *both; /* owns [words] */
};

constraint *constraint_new(const gen_opts *o, const output *out, int32_t vocab) {
    if (!o->grammar) return NULL;
    constraint *c = mem_alloc(sizeof *c);
    *c = (constraint){.answers = true, .phase = output_phase_of(out), .words = ((size_t)vocab + 63) / 64};
    c->answer = matcher_new(o->grammar);
    if (o->grammar_open && c->phase == OUTPUT_MAY_THINK) c->open = matcher_new(o->grammar_open);
    if (o->grammar_lead && c->phase != OUTPUT_ANSWERS) c->lead = matcher_new(o->grammar_lead);
    c->both = mem_alloc(c->words * sizeof *c->both);
    return c;
}
void constraint_free(constraint *c) {
    if (!c) return;
    matcher_free(c->answer);
    matcher_free(c->open);
    matcher_free(c->lead);
    free(c->both);
    free(c);
}

static void drop(matcher **m) {
    matcher_free(*m);
    *m = NULL;
}
static matcher *beside(const constraint *c) { /* what is allowed beside the answer */
    return c->phase == OUTPUT_MAY_THINK ? c->open : c->lead;
}
bool constraint_mask(constraint *c, const int32_t *eos, size_t n_eos, const uint64_t **mask) {
    *mask = NULL;
    if (c->phase == OUTPUT_THINKS) return true;
    if (c->answers && !(*mask = matcher_mask(c->answer))) return false;
    matcher *other = beside(c);
    if (!other) return *mask != NULL;
    const uint64_t *more = matcher_mask(other);
    if (!more) return false;
    for (size_t i = 0; i < c->words; i++) c->both[i] = more[i] | (*mask ? (*mask)[i] : 0);
    bool end = c->answers && matcher_can_end(c->answer);
    for (size_t i = 0; i < n_eos && !end; i++) /* the other one's end is not the reply's */
        if (eos[i] >= 0 && (size_t)eos[i] < c->words * 64) c->both[eos[i] / 64] &= ~(1ull << (eos[i] % 64));
    *mask = c->both;
    return true;
}

constraint_verdict constraint_accept(constraint *c, int32_t id, const output *out) {
    const output_phase before = c->phase;
    c->phase = output_phase_of(out);
    if (before == OUTPUT_THINKS) return CONSTRAINT_GOES_ON; /* the mask starts behind the token that closes */
    bool answer = c->answers && matcher_accept(c->answer, id);
    matcher *other = before == OUTPUT_MAY_THINK ? c->open : c->lead;
    bool beside = other && (before == OUTPUT_MAY_THINK || !answer) && matcher_accept(other, id);
    if (c->phase == OUTPUT_THINKS) { /* a block has opened: what came before was not the answer */
        matcher_reset(c->answer);
        c->answers = true;
        drop(&c->open);
        return CONSTRAINT_GOES_ON;
    }
    if (!answer && !beside) return CONSTRAINT_FAILED;
    if (before == OUTPUT_MAY_THINK) {
        c->answers = answer;
        if (!beside) drop(&c->open);
        if (c->phase == OUTPUT_ANSWERS) drop(&c->lead); /* there was no block */
    } else if (answer) {
        drop(&c->lead);
    }
    return answer && matcher_done(c->answer) ? CONSTRAINT_DONE : CONSTRAINT_GOES_ON;
}
