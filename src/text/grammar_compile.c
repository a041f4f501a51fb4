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
    case GRAMMAR_TOOLS: return tools_build(b, &s->tools, s->field);
    case GRAMMAR_MARK: return mark_build(b, &s->tools, s->text);
    default: break;
    }
    json_forms_init(b, &f, s->compact ? JSON_COMPACT : JSON_LOOSE);
    return s->kind == GRAMMAR_OBJECT ? f.object : schema_build(b, s->schema, s->schema, &f, s->field);
}

static bool masks_open(grammar *g, grammar_vocab *v, error *err) {
    if (!v) return true;
    const size_t one = v->words * sizeof(uint64_t) + CROSS_MAX * sizeof(uint32_t);
    g->masks_bytes = BASE_MASKS * one;
    g->masks = mem_try(g->masks_bytes, 64, err);
    if (!g->masks) return false;
    for (int i = 0; i < BASE_MASKS; i++) {
        uint8_t *at = (uint8_t *)g->masks + (size_t)i * one;
        g->mask[i].bits = (void *)at;
        g->mask[i].cross = (void *)(at + v->words * sizeof(uint64_t));
    }
    g->vocab = grammar_vocab_keep(v);
    return true;
}

grammar *grammar_compile(const grammar_spec *spec, grammar_vocab *v, error *err) {
    static const char *const fields[] = {"schema", "response_format", "regex", "grammar", "choice", "tools", "mark"};
    grammar_spec s = *spec;
    if (!s.field) s.field = fields[s.kind];
    builder b;
    builder_init(&b, err);
    grammar *g = mem_alloc(sizeof *g);
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->mu, NULL);
    gx root = build(&b, &s);
    if (s.kind != GRAMMAR_TOOLS && s.kind != GRAMMAR_MARK && s.tools.form && s.tools.tools)
        root = GX_ALT(&b, root, tools_build(&b, &s.tools, "tools"));
    bool ok = !b.failed && gx_check(&b, &root) && program_emit(&g->p, &b, root, err) && machine_open(g, err) &&
              masks_open(g, v, err);
    builder_deinit(&b);
    if (!ok) {
        if (err && !str_has(str_of(err->msg), str_of(s.field))) error_prefix(err, "%s: ", s.field);
        if (err && !err->param[0]) snprintf(err->param, sizeof err->param, "%s", s.field);
        grammar_drop(g);
        return NULL;
    }
    if (v) { /* the first mask is the dearest: it is made here, not in the engine's thread */
        matcher *m = matcher_new(g);
        matcher_mask(m);
        matcher_free(m);
    }
    return g;
}
grammar *grammar_keep(grammar *g) {
    atomic_fetch_add(&g->refs, 1);
    return g;
}
void grammar_drop(grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    mem_try_free(g->masks, g->masks_bytes);
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
