/* The parser's two halves: statements (jinja_parse.c) and expressions (jinja_parse_expr.c). */
#pragma once
#include "jinja_internal.h"

typedef struct parser {
    core *c;
    jdict *names;   /* variables read so far */
    const token *t; /* the current token */
    uint32_t loops; /* loops around this place inside the current function: break and continue need one */
    bool soft;      /* inside an if: unknown filters and tests fail when they run, not here */
    /* How often these names were read so far: tells whether a body reads them. */
    uint32_t reads_loop, reads_caller, reads_kwargs, reads_varargs;
} parser;

node *parse_new(parser *p, node_kind kind);
void parse_push(parser *p, nodes *l, node *n);
jstr *parse_str(parser *p, str s);
bool parse_is(const parser *p, const char *name); /* the current token is this name */
bool parse_skip(parser *p, token_type t);
bool parse_skip_name(parser *p, const char *name);
const token *parse_expect(parser *p, token_type t);
void parse_expect_name(parser *p, const char *name);

typedef struct tuple_opts {
    bool no_condexpr, parentheses;
    const char *end; /* a name that also ends the tuple */
} tuple_opts;
node *parse_expression(parser *p);
node *parse_tuple(parser *p, tuple_opts o);
node *parse_filters(parser *p, node *on,
                    bool inline_start); /* | a | b(c) ...; NULL when there are none and on is NULL */
/* A place to assign to: names, tuples of names, with_ns: also ns.attr. */
node *parse_target(parser *p, bool with_ns, const char *end);
