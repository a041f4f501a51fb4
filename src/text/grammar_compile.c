/* From what a request asks for to a grammar that is ready to run. Not here: the front ends (grammar_schema.c,
 * grammar_regex.c, grammar_gbnf.c, grammar_lark.c, grammar_tools.c), running (grammar_match.c). */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_internal.h"

enum { TEXT_MAX = 4 << 20, CHOICES_MAX = 100000 };

static gx build_choice(builder *b, const grammar_spec *s) {
    if (!s->n_choices) return builder_fail(b, "%s: there is nothing to choose from", s->field);
    if (s->n_choices > CHOICES_MAX)
        return builder_fail(b, "%s has %zu choices; at most %d", s->field, s->n_choices, CHOICES_MAX);
    gx_list l = {0};
    for (size_t i = 0; i < s->n_choices; i++) {
        if (utf8_valid(s->choice[i]) != s->choice[i].n) builder_fail(b, "%s[%zu] is not UTF-8", s->field, i);
        gx_push(&l, gx_lit(b, s->choice[i]));
    }
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static gx build(builder *b, const grammar_spec *s) {
    json_forms f;
    if (s->text.n > TEXT_MAX) return builder_fail(b, "%s has %zu bytes; at most %d", s->field, s->text.n, TEXT_MAX);
    if (utf8_valid(s->text) != s->text.n) return builder_fail(b, "%s is not UTF-8", s->field);
    switch (s->kind) {
    case GRAMMAR_REGEX: return regex_build(b, s->text, 0, s->field);
    case GRAMMAR_RULES:
        if (str_has(s->text, STR("::="))) return gbnf_build(b, s->text, s->field);
        return lark_build(b, s->text, s->field);
    case GRAMMAR_CHOICE: return build_choice(b, s);
    case GRAMMAR_TOOLS: return tools_build(b, s);
    default: break;
    }
    json_forms_init(b, &f, s->compact);
    return s->kind == GRAMMAR_OBJECT ? f.object : schema_build(b, s->schema, &f, s->field);
}

grammar *grammar_compile(const grammar_spec *spec, grammar_vocab *v, error *err) {
    static const char *const fields[] = {"schema", "response_format", "regex", "grammar", "choice", "tools"};
    grammar_spec s = *spec;
    if (!s.field) s.field = fields[s.kind];
    builder b;
    builder_init(&b, err);
    grammar *g = mem_alloc(sizeof *g);
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->mu, NULL);
    gx root = build(&b, &s);
    bool ok = !b.failed && gx_check(&b, &root) && program_emit(&g->p, &b, root, err) && machine_open(g, err);
    builder_deinit(&b);
    if (!ok) {
        if (err && !err->param[0]) snprintf(err->param, sizeof err->param, "%s", s.field);
        grammar_drop(g);
        return NULL;
    }
    if (v) g->vocab = grammar_vocab_keep(v);
    return g;
}
grammar *grammar_keep(grammar *g) {
    atomic_fetch_add(&g->refs, 1);
    return g;
}
void grammar_drop(grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    for (int i = 0; i < BASE_MASKS; i++) {
        free(g->mask[i].bits);
        free(g->mask[i].cross);
    }
    machine_close(g);
    program_deinit(&g->p);
    grammar_vocab_drop(g->vocab);
    pthread_mutex_destroy(&g->mu);
    free(g);
}
size_t grammar_bytes(const grammar *g) {
    const program *p = &g->p;
    return p->cap_op * sizeof *p->op + p->cap_edge * sizeof *p->edge + p->cap_target * sizeof *p->target;
}
