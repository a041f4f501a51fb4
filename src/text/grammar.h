/* grammar: which texts a reply may be. JSON Schema, regex, GBNF and Lark grammars and lists of choices are compiled to
 * one automaton over bytes; a matcher follows a reply through it and says which tokens may come next. docs/grammar.md
 * has the language, the limits and the measurements. Not here: request fields (server/), the sampler (engine/). */
#pragma once
#include "text.h"

/* ---- a vocabulary as grammars see it (grammar_vocab.c, grammar_tokens.c) ----------------------------------------- */
/* The bytes of every token in a trie. Immutable, counted references, any thread. */
typedef struct grammar_vocab grammar_vocab;
/* n_logits: width of a row of logits; ids from tokenizer_size on never match. eos: the ids that end a reply. */
grammar_vocab *grammar_vocab_new(const tokenizer *t, int32_t n_logits, const int32_t *eos, size_t n_eos);
/* The same from plain byte strings [n] (copied); an empty one never matches. */
grammar_vocab *grammar_vocab_of(const str *token, int32_t n, const int32_t *eos, size_t n_eos);
grammar_vocab *grammar_vocab_keep(grammar_vocab *v); /* one reference more */
void grammar_vocab_drop(grammar_vocab *v);

/* ---- compiling (grammar_compile.c) ------------------------------------------------------------------------------- */
typedef enum grammar_kind {
    GRAMMAR_SCHEMA, /* schema: JSON that it validates */
    GRAMMAR_OBJECT, /* any JSON object */
    GRAMMAR_REGEX,  /* text: the whole reply matches */
    GRAMMAR_RULES,  /* text: GBNF (it has "::="), else Lark */
    GRAMMAR_CHOICE, /* choice: one of these texts */
    GRAMMAR_TOOLS,  /* tools: calls in a model family's own syntax */
    GRAMMAR_MARK,   /* text, in which special tokens are themselves (tools.special) */
} grammar_kind;

/* Calls of tools, in a family's own syntax, which the reply parser reads (output_forms.c has the same names). */
typedef struct grammar_tools {
    const char *form;  /* name of the syntax: "hermes", "qwen", ...; NULL: no calls */
    const json *tools; /* array of {"type":"function","function":{"name","parameters"}} */
    str name;          /* only this one; n 0: any of them */
    bool many;         /* several calls may follow each other */
    /* The id of a special token that is spelled so, -1: it is plain text. NULL: all is. */
    int32_t (*special)(const void *tokens, str mark);
    const void *tokens;
    /* A tool whose schema does not compile takes any arguments: told why, if not NULL. */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
} grammar_tools;
bool grammar_tools_known(const char *form);
int32_t grammar_special(const void *tokenizer, str mark); /* for grammar_tools.special */

typedef struct grammar_spec {
    grammar_kind kind;
    const json *schema;
    str text;
    const str *choice; /* [n_choices] */
    size_t n_choices;
    bool compact;        /* no white space between JSON tokens */
    const char *field;   /* request field, the start of paths in errors; NULL: "schema" or the like */
    grammar_tools tools; /* with another kind than GRAMMAR_TOOLS: calls may stand instead of it */
} grammar_spec;

/* Shared by any number of requests and threads; counted references. */
typedef struct grammar grammar;
/* v may be NULL: then there are no masks. ERR_INVALID names the path of what is wrong or unsupported
 * ("schema.properties.a.pattern: ..."); too large or too deep is an error too. */
grammar *grammar_compile(const grammar_spec *s, grammar_vocab *v, error *err);
grammar *grammar_keep(grammar *g);
void grammar_drop(grammar *g);
size_t grammar_bytes(const grammar *g); /* memory of the compiled form, without caches */

/* ---- following a reply (grammar_match.c, grammar_mask.c) --------------------------------------------------------- */
/* The position of one reply. Used by one thread at a time; matchers of one grammar may be used at the same time. */
typedef struct matcher matcher;
matcher *matcher_new(grammar *g);              /* keeps a reference to g */
void matcher_free(matcher *m);                 /* may be NULL */
void matcher_copy(matcher *to, matcher *from); /* both of one grammar: to is where from is (for drafts and rollback) */
void matcher_reset(matcher *m);
/* False, and no change, when the grammar does not allow it. */
bool matcher_accept(matcher *m, int32_t id);
bool matcher_accept_bytes(matcher *m, str s); /* beyond 512 bytes a part may have been taken when it is false */
bool matcher_can_end(matcher *m);             /* what came so far is a whole text */
bool matcher_done(matcher *m);                /* can_end, and nothing can follow */
/* Bit i % 64 of word i / 64: token i may come next; end-of-reply tokens when the text may end here. n_logits bits, the
 * rest of the last word 0. Borrows until the next call. NULL: past a limit on ambiguity (the reply cannot go on). */
const uint64_t *matcher_mask(matcher *m);
