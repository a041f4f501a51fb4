/* grammar_internal: what the grammar files share.
 *
 * A front end (grammar_regex.c, grammar_rules.c, grammar_schema*.c, grammar_tools.c) builds expressions
 * (grammar_expr.c); grammar_emit.c turns them into a program of few kinds of nodes; grammar_match.c runs it: sets of
 * program places with shared stacks, made into a lazy deterministic automaton; grammar_mask.c walks the vocabulary's
 * trie with it. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "grammar.h"

/* Room for `more` elements behind the n of p [cap]. */
#define GROW(p, n, cap, more)                                   \
    do {                                                        \
        if ((n) + (more) > (cap)) {                             \
            (cap) = MAX((cap)*2, (n) + (more) + 64);            \
            (p) = mem_resize((p), (size_t)(cap) * sizeof *(p)); \
        }                                                       \
    } while (0)

/* ---- expressions (grammar_expr.c) -------------------------------------------------------------------------------- */
typedef uint32_t gx; /* an expression: index into builder.x */
enum { GX_NEVER = 0, GX_EMPTY = 1 };
#define GX_INF UINT32_MAX
typedef enum gx_kind { X_NEVER, X_EMPTY, X_LIT, X_CLASS, X_SEQ, X_ALT, X_REP, X_RULE, X_AND } gx_kind;
typedef struct gx_node {
    uint8_t kind;
    bool negate;    /* X_AND: a and not b */
    uint16_t depth; /* nesting below */
    uint32_t a, b;  /* LIT: bytes at, n. CLASS: ranges at, n. SEQ, ALT: kids at, n. REP: kid. RULE: rule. AND: kids */
    uint32_t min, max; /* REP */
} gx_node;
typedef struct cp_range {
    uint32_t lo, hi;
} cp_range;
typedef struct cp_set { /* sorted, apart */
    cp_range *p;        /* owns */
    size_t n, cap;
} cp_set;
void cp_add(cp_set *s, uint32_t lo, uint32_t hi);
void cp_normalise(cp_set *s);
void cp_invert(cp_set *s); /* within 0..10FFFF without surrogates */
bool cp_has(const cp_set *s, uint32_t cp);
void cp_add_set(cp_set *s, const cp_set *t);

typedef struct gx_rule {
    gx body;
    const char *name; /* for messages; arena */
    bool defined, nullable, productive;
    uint8_t mark;
} gx_rule;

typedef struct builder {
    arena *a; /* owns */
    error *err;
    bool failed;
    gx_node *x; /* owns, as all below */
    uint32_t n_x, cap_x;
    uint32_t *kid;
    uint32_t n_kid, cap_kid;
    cp_range *range;
    uint32_t n_range, cap_range;
    buf bytes;
    gx_rule *rule;
    uint32_t n_rule, cap_rule;
    map *known; /* keys of shared expressions, for the front ends */
    struct property {
        uint32_t mask; /* Unicode categories */
        cp_set set;    /* owns */
    } * property;      /* owns [n_property]; each is looked up once */
    uint32_t n_property;
} builder;
void builder_init(builder *b, error *err);
void builder_deinit(builder *b);
gx builder_fail(builder *b, const char *fmt, ...) PRINTF(2, 3); /* ERR_INVALID; returns GX_NEVER */

gx gx_lit(builder *b, str bytes);
gx gx_class(builder *b, const cp_set *s);
gx gx_range(builder *b, uint32_t lo, uint32_t hi);
gx gx_seq(builder *b, const gx *kid, size_t n);
gx gx_alt(builder *b, const gx *kid, size_t n);
gx gx_rep(builder *b, gx kid, uint32_t min, uint32_t max);
gx gx_and(builder *b, gx left, gx right, bool negate);
gx gx_token(builder *b, int32_t id); /* one special token */
#define GX_SEQ(b, ...)  gx_seq(b, (const gx[]){__VA_ARGS__}, sizeof((const gx[]){__VA_ARGS__}) / sizeof(gx))
#define GX_ALT(b, ...)  gx_alt(b, (const gx[]){__VA_ARGS__}, sizeof((const gx[]){__VA_ARGS__}) / sizeof(gx))
#define GX_LIT(b, text) gx_lit(b, STR(text))
static inline gx gx_opt(builder *b, gx kid) {
    return gx_rep(b, kid, 0, 1);
}
uint32_t gx_rule_new(builder *b, const char *name); /* declared; define it later */
void gx_rule_define(builder *b, uint32_t rule, gx body);
gx gx_call(builder *b, uint32_t rule);
/* Lists of expressions under construction. */
typedef struct gx_list {
    gx *p; /* owns */
    size_t n, cap;
} gx_list;
void gx_push(gx_list *l, gx x);
bool gx_nullable(const builder *b, gx x); /* after gx_check */
/* What must hold before emitting: rules are defined; direct left recursion is rewritten, other is an error; counted
 * repetitions never repeat the empty text. */
bool gx_check(builder *b, gx *root);

/* ---- regular expressions (grammar_regex.c) ----------------------------------------------------------------------- */
enum {
    REGEX_QUOTED = 1, /* of the content of a JSON string: characters that must be escaped are */
    REGEX_SEARCH = 2, /* it is enough to match somewhere */
    REGEX_ECMA = 4,   /* what . and \s mean */
};
/* where: names the place in errors. */
gx regex_build(builder *b, str pattern, unsigned flags, const char *where);
/* A class of the body of a regex ("a-z0-9\n"), for other front ends: from s.p[*at] up to the bracket; false: failed. */
bool regex_class(builder *b, str s, size_t *at, unsigned flags, cp_set *out, const char *where);

/* ---- JSON's own texts (grammar_json.c) --------------------------------------------------------------------------- */
gx json_chars(builder *b, const cp_set *s, bool quoted); /* one character, escaped where JSON must */
gx json_any_char(builder *b);                            /* in every spelling JSON has */
gx json_literal(builder *b, str s);                      /* the content of a string, spelled as json_write does */
typedef enum json_style { JSON_LOOSE, JSON_COMPACT, JSON_LINE /* a blank after , and : at most */ } json_style;
typedef struct json_forms { /* expressions for one style of white space */
    json_style style;
    gx space, string, number, integer, value, object, array, comma, colon;
} json_forms;
void json_forms_init(builder *b, json_forms *f, json_style style);
gx json_constant(builder *b, const json_forms *f, const json *v); /* exactly this value */
gx json_object_of(builder *b, const json_forms *f, gx members);   /* in braces, with space */
gx json_array_of(builder *b, const json_forms *f, gx items);

/* ---- front ends -------------------------------------------------------------------------------------------------- */
gx gbnf_build(builder *b, str text, const char *where); /* grammar_gbnf.c */
gx lark_build(builder *b, str text, const char *where); /* grammar_lark.c */
/* What both share: named rules, made on first mention; literals; counts. */
uint32_t rule_named(builder *b, str name);
typedef struct scan { /* a grammar's text being read */
    builder *b;
    str s;
    size_t at;
    const char *where;
    int depth;
} scan;
gx scan_bad(const scan *c, const char *what); /* names the line */
bool scan_string(scan *c, buf *out);          /* behind the opening quote */
bool scan_count(scan *c, uint32_t *out);
/* grammar_schema.c. path: of the schema, for messages. */
gx schema_build(builder *b, const json *root, const json *schema, const json_forms *f, const char *path);
gx tools_build(builder *b, const grammar_tools *t, const char *field); /* grammar_tools.c */
gx mark_build(builder *b, const grammar_tools *t, str text);

/* ---- programs (grammar_emit.c) ----------------------------------------------------------------------------------- */
enum { PC_ACCEPT = 0, PC_HOLE = 1, PC_RET = 2, PC_DEAD = 3, PC_FIRST = 4 };
typedef enum op_kind { OP_ACCEPT, OP_HOLE, OP_RET, OP_BRANCH, OP_SPLIT, OP_CALL, OP_LOOP, OP_AND } op_kind;
typedef struct op {
    uint8_t kind;
    bool negate;
    uint32_t a, b, c;  /* BRANCH: edges at, n. SPLIT: targets at, n. CALL: rule, next. LOOP: body, next. AND: left,
                          right,  next */
    uint32_t min, max; /* LOOP */
} op;
typedef struct op_edge {
    uint8_t lo, hi;
    uint32_t to;
} op_edge;
typedef struct program {
    op *op; /* owns, as all below */
    uint32_t n_op, cap_op;
    op_edge *edge;
    uint32_t n_edge, cap_edge;
    uint32_t *target;
    uint32_t n_target, cap_target;
    uint32_t *entry; /* of rules */
    uint32_t n_rule;
    uint32_t root;
    uint8_t cls[256];  /* bytes that no edge tells apart have one class */
    uint8_t byte[256]; /* one byte of each class */
    int32_t n_cls;
} program;
bool program_emit(program *p, builder *b, gx root, error *err);
void program_deinit(program *p);

/* ---- running (grammar_match.c) ----------------------------------------------------------------------------------- */
/* One place of the program. x: LOOP: iterations done; AND: state of the left side. y: AND: state of the right side.
 * k: the set of places to go on at when this part returns. */
typedef struct item {
    uint32_t pc, x, y, k;
} item;
/* Sets of items, each kept once; ids rise, and a set only refers to sets made before it. */
typedef struct set_table {
    uint32_t *at, *n; /* [cap] */
    uint32_t *bucket; /* [mask+1] heads of chains, 0: empty */
    uint32_t *chain;  /* [cap] */
    item *item;       /* [item_cap] */
    uint32_t count, cap, item_n, item_cap, mask;
} set_table;
enum { K_ACCEPT = 1, K_HOLE = 2, STATE_DEAD = 0, STATE_UNKNOWN = UINT32_MAX };
enum { F_ACCEPT = 1, F_HOLE = 2, F_MORE = 4 /* something can be consumed */ };

typedef struct base_mask {
    uint32_t state;
    uint32_t used;   /* clock of the last use */
    uint64_t *bits;  /* [words] borrows (grammar.masks) */
    uint32_t *cross; /* [CROSS_MAX] borrows; trie nodes where the part ended and more follows */
    uint32_t n_cross;
} base_mask;
enum { BASE_MASKS = 64, CROSS_MAX = 1 << 14 };

struct grammar {
    atomic_int refs;
    program p;
    grammar_vocab *vocab; /* one reference; NULL: none */
    pthread_mutex_t mu;   /* all below */
    void *block;          /* owns the tables */
    size_t block_bytes;
    set_table k, s;          /* continuations; states */
    uint32_t *trans;         /* [s.cap * n_cls] */
    uint8_t *flags;          /* [s.cap] */
    uint32_t *uniform;       /* [s.cap] where any safe character leads; 0: not known, UNKNOWN: nowhere in common */
    uint32_t *base, *base_k; /* [s.cap] the state with its common continuation cut off; 0: not known */
    uint32_t *and_left, *and_right; /* [n_op] first states of AND; UNKNOWN: not yet */
    struct alive_pair {
        uint32_t left, right;
        uint8_t verdict;
    } * alive; /* [ALIVE_CAP] */
    uint32_t n_alive;
    bool overflow;  /* a table was full or the budget spent: the result of this call is void */
    int64_t budget; /* left for this call */
    /* scratch of a closure */
    item *work;
    uint32_t n_work, *queue, n_queue, *slot;
    uint32_t *slot_epoch, epoch;
    uint8_t *queued;
    uint32_t need_and; /* a closure met an AND whose first states are not there yet */
    uint32_t start;
    base_mask mask[BASE_MASKS];
    void *masks; /* owns: room for them, which comes into memory with use */
    size_t masks_bytes;
    uint32_t clock;
    struct matcher *first; /* borrows: all matchers */
};
struct matcher {
    grammar *g; /* one reference */
    struct matcher *next, *prev;
    uint32_t state;
    uint32_t mask_state; /* whose mask is in bits; UNKNOWN: none */
    bool ended;          /* an end-of-reply token came */
    bool failed;
    uint64_t *bits; /* owns [words] */
};
bool machine_open(grammar *g, error *err); /* g->p is there */
void machine_close(grammar *g);
/* [mu held] */
uint32_t state_step(grammar *g, uint32_t s, uint8_t cls);
uint32_t state_after(grammar *g, uint32_t k); /* what a return to k leads to */
uint32_t state_base(grammar *g, uint32_t s, uint32_t *k);
void budget_start(grammar *g);
bool state_tidy(grammar *g, bool must); /* frees states nobody holds when room is short */

/* ---- the vocabulary's tries (grammar_vocab.c) -------------------------------------------------------------------- */
enum { TOKEN_BYTES_MAX = 512, SAFE_CHARS_MAX = 32, TOKEN_MARK = 0xFF };
typedef struct token_node {
    uint32_t skip;  /* nodes of this subtree */
    int32_t token;  /* -1: none ends here */
    uint16_t depth; /* bytes up to here, at least 1 */
    uint8_t byte;
} token_node;
typedef struct token_trie {
    token_node *node; /* owns; in order */
    uint32_t n;
} token_trie;
struct grammar_vocab {
    atomic_int refs;
    int32_t n;    /* logits */
    size_t words; /* of a mask */
    uint32_t *at; /* owns [n+1]: where a token's bytes are; a special token's are its mark */
    buf bytes;
    int32_t *same; /* owns [n]: another token with the same bytes, -1 */
    int32_t *eos;  /* owns */
    size_t n_eos;
    /* Tokens of safe characters only (UTF-8 without control characters, quote and backslash), and the others. */
    token_trie safe, rest;
    uint64_t *level[SAFE_CHARS_MAX + 2]; /* own: safe tokens of at most i characters; the last: all of them */
};
/* How one is put together: a start, then each token's bytes and v->at, then the laying out. */
grammar_vocab *vocab_start(int32_t n, const int32_t *eos, size_t n_eos);
bool vocab_is_eos(const grammar_vocab *v, int32_t id);
void vocab_bytes_check(grammar_vocab *v, size_t from); /* drops what was added since when no text can hold it */
void vocab_lay(grammar_vocab *v);
size_t gx_token_mark(char out[4], int32_t id); /* the bytes that stand for a special token */
