/* Jinja, inside: values, strings that know where their bytes came from, the tree, and what the parts offer each other.
 *
 * The rules followed are those of Jinja2 3.1.6 in the environment that chat templates are written for: immutable
 * sandbox, trim_blocks, lstrip_blocks, loop controls, no autoescaping. docs/jinja.md says what is different.
 *
 * Memory: a parsed template owns one arena, a rendering another; nothing below is freed by itself.
 * Failure: jinja_fail leaves by longjmp to jinja_parse or jinja_render, which is why no function here returns an error.
 * Not here: chat templates (template.c). Read next: jinja_lex.c, jinja_parse.c, jinja_scope.c, jinja_exec.c,
 * jinja_eval.c. */
#pragma once
#include <setjmp.h>
#include "text.h"

/* ---- failing, memory, guards (jinja_value.c) --------------------------------------------------------------------- */
typedef struct core {
    arena *a;   /* owned by the template or the rendering */
    error *err; /* borrows (caller) */
    uint32_t line;
    bool plain; /* the message is the template's own: no "line N: " in front */
    uint64_t steps, steps_max;
    const char *stack; /* address of a local at the start; how deep C has recursed is measured from here */
    jmp_buf fail;
} core;
__attribute__((noreturn)) void jinja_fail(core *c, const char *fmt, ...) PRINTF(2, 3);
void *jinja_alloc(core *c, size_t n); /* zeroed; fails when the limit is reached */
#define jinja_new(c, type)      ((type *)jinja_alloc((c), sizeof(type)))
#define jinja_array(c, type, n) ((type *)jinja_alloc_n((c), sizeof(type), (n)))
void *jinja_alloc_n(core *c, size_t size, size_t n);
void jinja_step(core *c, uint64_t n);
/* Fails when C recursion is deeper than JINJA_STACK bytes: parentheses, macros, data and repr all pass here. */
void jinja_guard(core *c);

/* ---- strings (jinja_str.c) --------------------------------------------------------------------------------------- */
/* Bytes of UTF-8 with their provenance: mask[i] is 1 when byte i came out of a variable. */
typedef struct jstr {
    const char *p; /* borrows (arena, the template or the caller's JSON) */
    size_t n;
    const uint8_t *mask; /* [n], or NULL: every byte is `user` */
    size_t chars;        /* code points; SIZE_MAX: not counted yet */
    struct grow *grow;   /* not NULL: the end of this string may be extendable in place */
    uint8_t user;
    bool markup; /* went through `safe` or `escape`: + and % escape what is added */
} jstr;

/* A string being put together. */
typedef struct sbuf {
    core *c;
    char *p;
    uint8_t *mask; /* NULL while every byte so far has the same provenance */
    size_t n, cap;
    uint8_t user;
} sbuf;

typedef struct value value;
jstr *str_new(core *c, const char *p, size_t n, uint8_t user); /* borrows p */
jstr *str_lit(core *c, const char *s);                         /* borrows s; the template's */
size_t str_chars(jstr *s);
size_t str_at(jstr *s, size_t index);                          /* byte offset of a character; n when past the end */
jstr *str_sub(core *c, const jstr *s, size_t from, size_t to); /* bytes from .. to, shared */
jstr *str_join2(core *c, const jstr *a, const jstr *b);        /* amortised constant when a is grown again and again */
uint8_t str_user_at(const jstr *s, size_t i);
bool str_same(const jstr *a, const jstr *b);
int str_order(const jstr *a, const jstr *b);                              /* code point order */
size_t str_search(core *c, const jstr *s, const jstr *what, size_t from); /* SIZE_MAX when absent */
size_t str_rsearch(core *c, const jstr *s, const jstr *what, size_t end); /* last match that ends at or before end */
jstr *str_escape(core *c, const jstr *s);                                 /* & < > " ' ; the result is markup */

void sb_init(sbuf *b, core *c);
void sb_add(sbuf *b, const char *p, size_t n, uint8_t user);
void sb_str(sbuf *b, const jstr *s);
void sb_slice(sbuf *b, const jstr *s, size_t from, size_t to);
void sb_puts(sbuf *b, const char *s); /* the template's bytes */
void sb_cp(sbuf *b, uint32_t cp, uint8_t user);
void sb_fill(sbuf *b, const jstr *s, int64_t times);
void sb_pad(sbuf *b, char ch, int64_t times);
jstr *sb_done(sbuf *b);

/* Characters as Python sees them. */
bool cp_space(uint32_t cp);
bool cp_word(uint32_t cp); /* \w */
bool cp_alpha(uint32_t cp);
bool cp_digit(uint32_t cp); /* str.isdecimal */
bool cp_upper(uint32_t cp);
bool cp_lower(uint32_t cp);
bool cp_cased(uint32_t cp);
bool cp_printable(uint32_t cp);
typedef enum str_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_FOLD } str_case;
void sb_case(sbuf *b, const jstr *s, size_t from, size_t to, str_case how);
jstr *str_strip(core *c, const jstr *s, const jstr *chars, bool left, bool right); /* chars NULL: white space */
/* Line boundaries as str.splitlines has them; *end is where the line's text ends; returns where the next begins. */
size_t str_line(const jstr *s, size_t from, size_t *end);

/* ---- values (jinja_value.c) -------------------------------------------------------------------------------------- */
typedef enum vtype {
    V_MISSING, /* an unset variable or argument; never seen by a template */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_BIG, /* an integer beyond 64 bits out of JSON: printed, never calculated with */
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_VIEW,
    V_RANGE,
    V_ITER,
    V_NAMESPACE,
    V_MACRO,
    V_FUNC,
    V_METHOD,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_TYPES
} vtype;

struct value {
    uint8_t type;
    uint8_t user; /* of a number, truth value or None: it came out of a variable */
    union {
        bool b;
        int64_t i;
        double f;
        jstr *s;
        struct jundef *undef;
        struct jlist *list; /* V_LIST, V_TUPLE */
        struct jdict *dict; /* V_DICT, V_NAMESPACE */
        struct jview *view;
        struct jrange *range;
        struct jiter *iter;
        struct jmacro *macro;
        const struct func_def *func;
        struct jmethod *method;
        struct jloop *loop;
        struct jcycler *cycler;
        struct jjoiner *joiner;
        const void *ptr;
    };
};
typedef struct jundef {
    const char *hint; /* the whole message, or NULL */
    value obj;        /* V_MISSING: `name` is a variable */
    value name;
} jundef;
typedef struct jlist {
    value *v;
    size_t n, cap;
    bool group; /* a tuple of groupby: .grouper and .list */
} jlist;
typedef struct jentry {
    value key, val;
    uint64_t hash;
} jentry;
typedef struct jdict {
    jentry *e;       /* insertion order */
    uint32_t *index; /* open addressing, entry + 1; NULL while small */
    size_t n, cap, index_n;
} jdict;
typedef enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS } view_kind;
typedef struct jview {
    jdict *d;
    view_kind kind;
} jview;
typedef struct jrange {
    int64_t start, stop, step, n;
} jrange;
typedef struct jcycler {
    value *v;
    size_t n, pos;
} jcycler;
typedef struct jjoiner {
    value sep;
    bool used;
} jjoiner;
typedef struct jmethod {
    value self;
    const struct func_def *def;
} jmethod;

/* Walks anything that can be iterated. */
typedef struct iter {
    value v;
    size_t i;
} iter;
/* A generator: one pass, made on demand. */
typedef struct jiter {
    const char *type;
    bool (*next)(core *c, struct jiter *g, value *out);
    iter src;
    bool begun, done;
    value v;      /* what it was made from */
    void *state;  /* the maker's own */
    jlist *items; /* when the maker produces everything at its first step */
} jiter;

static inline value v_none(void) {
    return (value){.type = V_NONE};
}
static inline value v_missing(void) {
    return (value){.type = V_MISSING};
}
static inline value v_bool(bool b) {
    return (value){.type = V_BOOL, .b = b};
}
static inline value v_int(int64_t i) {
    return (value){.type = V_INT, .i = i};
}
static inline value v_float(double f) {
    return (value){.type = V_FLOAT, .f = f};
}
static inline value v_str(jstr *s) {
    return (value){.type = V_STR, .s = s};
}
static inline value v_list(jlist *l) {
    return (value){.type = V_LIST, .list = l};
}
static inline value v_tuple(jlist *l) {
    return (value){.type = V_TUPLE, .list = l};
}
static inline value v_dict(jdict *d) {
    return (value){.type = V_DICT, .dict = d};
}
static inline value v_iter(jiter *g) {
    return (value){.type = V_ITER, .iter = g};
}
static inline bool v_is(value v, vtype t) {
    return v.type == t;
}
value v_undefined(core *c, const char *hint);
value v_undefined_name(core *c, jstr *name);
value v_undefined_of(core *c, value obj, value name);

__attribute__((noreturn)) void undefined_fail(core *c, value v); /* what using an undefined value says */
const char *type_name(value v);
const char *type_repr(core *c, value v); /* "str object", "None" */

jlist *list_new(core *c, size_t cap);
void list_push(core *c, jlist *l, value v);
jlist *list_of(core *c, value iterable); /* everything it yields, in a fresh list */
jlist *tuple2(core *c, value a, value b);
jdict *dict_new(core *c);
void dict_set(core *c, jdict *d, value key, value val);
value *dict_find(core *c, const jdict *d, value key); /* NULL when absent; fails on an unhashable key */
value *dict_find_str(core *c, const jdict *d, str key);
value value_of_json(core *c, const json *j, uint8_t user);

bool truthy(core *c, value v);
bool value_eq(core *c, value a, value b);
int value_order(core *c, value a, value b,
                const char *op); /* -1 0 1; 2: unordered (nan); fails as Python's `op` does */
bool value_in(core *c, value item, value container);
bool value_same(value a, value b); /* `is` */
uint64_t value_hash(core *c, value v);
int64_t value_len(core *c, value v); /* -1 when it has none */
bool can_iterate(value v);
void iter_begin(core *c, iter *it, value v); /* fails on what cannot be iterated */
bool iter_next(core *c, iter *it, value *out);
value range_at(const jrange *r, int64_t i);
void value_sort(core *c, value *v, value *keys, size_t n, bool reverse); /* stable; orders v by keys */

jstr *value_str(core *c, value v); /* str() */
void sb_value(sbuf *b, value v);   /* str() appended */
void sb_repr(sbuf *b, value v);    /* repr() appended */
jstr *value_repr(core *c, value v);
const char *text_of(core *c, const jstr *s); /* NUL-terminated copy, shortened, for messages */

/* ---- operations (jinja_ops.c) ------------------------------------------------------------------------------------ */
typedef enum binop { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW } binop;
value op_binary(core *c, binop op, value a, value b);
value op_unary(core *c, char op, value a);
value op_slice(core *c, value obj, value start, value stop, value step);
int64_t index_of(core *c, value v, const char *what); /* an int or bool, else TypeError */
bool number_of(value v, double *out);
bool str_to_int(const jstr *s, int base, int64_t *out, bool *overflow); /* Python's int(text, base) */
bool str_to_float(core *c, const jstr *s, double *out);                 /* Python's float(text) */
value float_to_int(core *c, double f);
value round_value(core *c, value v, int64_t digits);

/* ---- formatting (jinja_format.c) --------------------------------------------------------------------------------- */
value format_percent(core *c, jstr *fmt, value args);
struct args;
value format_braces(core *c, jstr *fmt, const struct args *a, value mapping);

/* ---- JSON (jinja_json.c) ----------------------------------------------------------------------------------------- */
typedef struct json_style {
    bool ensure_ascii, sort_keys;
    const jstr *indent;     /* NULL: one line */
    const jstr *item, *key; /* separators */
} json_style;
void sb_json(sbuf *b, value v, const json_style *style);

/* ---- calling ----------------------------------------------------------------------------------------------------- */
/* Arguments as written: positional, then named. */
typedef struct args {
    value *pos;
    size_t n;
    jstr **names;
    value *named;
    size_t n_named;
} args;
/* One filter, test, method or global function. `params` names them separated by spaces: "sep maxsplit"; a word ending
 * in ! is required, one ending in / takes no name; "*" takes any number of positional and "**" any named arguments
 * (read from args). */
typedef struct func_def {
    const char *name;
    value (*fn)(core *c, value self, value *v,
                const args *a); /* v [JINJA_PARAMS]: bound by params, V_MISSING when not given */
    const char *params;
} func_def;
enum { JINJA_PARAMS = 8, JINJA_STACK = 1536 * 1024 };
value func_call(core *c, const func_def *f, value self, const args *a);
value value_call(core *c, value f, const args *a);
const func_def *func_find(const func_def *table, str name); /* the table ends with an empty name */
extern const func_def jinja_filters[], jinja_text_filters[], jinja_tests[], jinja_globals[];
const func_def *filter_find(str name);
const func_def *test_find(str name);
value filter_apply(core *c, jstr *name, value v, const args *a);
bool test_apply(core *c, jstr *name, value v, const args *a);

/* ---- attributes and methods (jinja_attr.c, jinja_methods.c) ------------------------------------------------------ */
value get_attr(core *c, value obj, jstr *name);           /* a.b */
value get_item(core *c, value obj, value key);            /* a[b] */
bool find_attr(core *c, value obj, str name, value *out); /* what Python's getattr finds, sandbox rules applied */
const func_def *method_find(value self, str name);
value str_method(core *c, jstr *s, const char *name, const args *a);

/* ---- the tree ---------------------------------------------------------------------------------------------------- */
typedef enum token_type {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_DIV,
    T_FLOORDIV,
    T_MUL,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
    T_TYPES
} token_type;
typedef struct token {
    token_type type;
    uint32_t line;
    str text; /* data, name, or the string's value */
    int64_t i;
    double f;
} token;
/* The whole template as tokens, white space control applied. Ends with T_EOF. */
token *jinja_lex(core *c, str source);
const char *token_name(token_type t);

typedef enum node_kind {
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_UNARY,
    N_BINARY,
    N_NOT,
    N_AND,
    N_OR,
    N_COMPARE,
    N_CONCAT,
    N_COND,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_EXPRS,
    /* statements */
    N_OUTPUT = N_EXPRS,
    N_DATA,
    N_SET,
    N_SETBLOCK,
    N_IF,
    N_FOR,
    N_MACRO,
    N_CALLBLOCK,
    N_FILTERBLOCK,
    N_WITH,
    N_SCOPE,
    N_BLOCK,
    N_BREAK,
    N_CONTINUE,
    N_KINDS
} node_kind;
typedef enum cmp_op { CMP_EQ, CMP_NE, CMP_GT, CMP_GE, CMP_LT, CMP_LE, CMP_IN, CMP_NOTIN } cmp_op;

typedef struct node node;
typedef struct nodes {
    node **v;
    uint32_t n, cap;
} nodes;
typedef struct call_args {
    nodes pos;
    struct kwarg {
        jstr *name;
        node *value;
    } * named;
    uint32_t n_named;
    node *star, *star2; /* *args, **kwargs; or NULL */
} call_args;
/* Where a name lives: `up` functions outwards, then a slot of that activation. */
typedef struct slot_ref {
    uint16_t up;
    uint32_t slot;
} slot_ref;
typedef enum load_kind { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED } load_kind;
/* What entering a scope does to each of its names. */
typedef struct scope_load {
    load_kind kind;
    uint32_t slot;
    jstr *name;
    slot_ref from; /* LOAD_ALIAS */
} scope_load;
typedef struct scope {
    scope_load *loads;
    uint32_t n, cap;
} scope;
typedef struct func { /* a macro, call block, recursive loop, block or the template itself */
    uint32_t slots;
} func;

struct node {
    uint8_t kind;
    uint8_t op; /* binop, cmp_op, '-' '+' of N_UNARY, argument count of slices */
    bool store; /* N_NAME as a target; N_ATTR as ns.x target */
    bool flag;  /* N_FOR: recursive; N_SET: at the top level; N_NAME: exported at the top level; N_BLOCK: scoped */
    uint32_t line;
    union {
        value constant;
        struct {
            jstr *name;
            slot_ref ref;
        } name;
        nodes list; /* N_TUPLE, N_LIST, N_CONCAT, N_OUTPUT; N_DICT: key, value, key, value */
        struct {
            node *a, *b, *c;
        } two; /* N_UNARY N_BINARY N_NOT N_AND N_OR; N_COND: then, test, else; N_SLICE: start, stop, step */
        struct {
            node *first;
            struct operand {
                uint8_t op;
                node *value;
            } * ops;
            uint32_t n;
        } compare;
        struct {
            node *obj;
            jstr *name;
            slot_ref ref;
        } attr; /* N_ATTR; as a target obj is NULL and ref the namespace */
        struct {
            node *obj, *key;
        } item;
        struct {
            node *f;
            call_args *args;
        } call;
        struct {
            node *obj;
            jstr *name;
            const func_def *def;
            call_args *args;
        } filter; /* N_FILTER (obj NULL: the captured text), N_TEST */
        jstr *data;
        struct {
            node *target, *value;
        } set;
        struct {
            node *target, *filter;
            nodes body;
            scope scope;
        } setblock; /* also N_FILTERBLOCK (no target) */
        struct {
            struct branch {
                node *test;
                nodes body;
            } * branches;
            uint32_t n;
        } cond; /* test NULL: else */
        struct {
            node *target, *iter, *test, *test_target; /* test_target: the target again, bound for the test */
            nodes body, orelse;
            scope scope, test_scope, else_scope;
            func *func; /* recursive loops run as a function of their own */
            bool has_loop;
            slot_ref loop_ref;
        } * loop;
        struct {
            jstr *name;
            slot_ref ref;
            nodes params, defaults, body;
            node *call; /* N_CALLBLOCK */
            func *func;
            scope scope;
            bool uses_caller, uses_kwargs, uses_varargs, explicit_caller;
            uint32_t caller_slot, kwargs_slot, varargs_slot;
            bool top;
        } * macro;
        struct {
            nodes targets, values, body;
            scope scope;
        } * with;
        struct {
            jstr *name;
            nodes body;
            scope scope;
            func *func;
        } * block;
        struct {
            nodes body;
            scope scope;
        } * plain;
    };
};

struct jinja {
    arena *a;
    nodes body;
    scope scope;
    func func;
    str source;   /* in the arena, line ends normalised */
    jdict *names; /* variables that are read somewhere */
};
bool jinja_reads(const jinja *j, str name);

/* Parses into `c->a`; then binds every name to a slot. */
void jinja_parse_tokens(core *c, const token *t, struct jinja *j);
void jinja_bind(core *c, struct jinja *j);

/* ---- running (jinja_exec.c, jinja_eval.c) ------------------------------------------------------------------------ */
typedef struct activation {
    struct activation *outer; /* where the function was defined */
    value *slots;
} activation;
typedef struct render {
    core c; /* first: a core is its rendering */
    const jinja *j;
    jdict *vars;     /* what the caller passed */
    jdict *exported; /* names set at the top level, for blocks */
    activation *frame;
    sbuf *out;
    uint32_t depth, depth_max;
    size_t bytes_max;
    int64_t now_unix;
} render;
static inline render *render_of(core *c) {
    return (render *)c;
}
typedef struct jmacro {
    const node *n;
    activation *outer;
} jmacro;
typedef struct jloop {
    iter it;
    value iterable, after, current, before, changed; /* V_MISSING: none */
    int64_t index0, length, depth0;                  /* length -1: not known */
    const node *n;
    activation *outer; /* recursive loops: where the loop stands */
    activation *frame; /* where its variables are */
    bool filtered;
} jloop;
typedef enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE } flow;
flow exec_nodes(render *r, const nodes *body);
value eval(render *r, const node *n);
void eval_args(render *r, const call_args *a, args *out);
value eval_filter(render *r, const node *n, value v);
void assign(render *r, const node *target, value v);
value macro_call(core *c, jmacro *m, const args *a);
value loop_call(core *c, jloop *l, const args *a);
value *slot_at(render *r, slot_ref ref);
bool loop_next(render *r, jloop *l);
value loop_attr(core *c, jloop *l, str name, bool *found);
/* Renders; members of `trusted` (or NULL) are variables whose text counts as the template's. */
bool jinja_render_trusted(const jinja *j, const json *vars, const json *trusted, const jinja_limits *limits,
                          int64_t now_unix, buf *out, buf *user, error *err);
