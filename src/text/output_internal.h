/* text/output_internal: what the files of the reply machine share. output.c: the machine. output_forms.c: how families
 * mark thinking and write calls. output_calls.c: calls found in what is not thinking, in all forms but Gemma's, which
 * is in output_gemma.c. output_values.c: arguments that are plain text become JSON; JSON that may not be trusted. */
#pragma once
#include "text.h"

enum { MARKS_MAX = 16 };
/* A mark that only a token can be (no text spells it) travels through the machine as one byte that no text holds, this
 * and those above it. */
enum { MARK_BYTE = 0xF5, CALL_MARK_BYTE = 0xFA, CALL_MARK_LAST = 0xFC /* of calls: shown where a call was none */ };
#define MARK_CHANNEL   STR("\xF5") /* of harmony, gpt-oss's form */
#define MARK_MESSAGE   STR("\xF6")
#define MARK_START     STR("\xF7")
#define MARK_END       STR("\xFD")
#define MARK_CONSTRAIN STR("\xFE")
#define MARK_CALL      STR("\xFF")
/* The text of a token that a mark byte stands for; other marks are their own text. */
str mark_spelled(str mark);
static inline bool mark_is_token(str mark) {
    return mark.n == 1 && (uint8_t)mark.p[0] >= MARK_BYTE;
}

struct think_form {
    const char *name;
    str open, close;
    str header;    /* first line of a block that is no reasoning, with its line break */
    str ending;    /* closes a block from within, spelled as tokens are */
    bool by_token; /* only the tokens themselves are marks, and a block may open anywhere */
    bool channels; /* messages with a channel each: analysis is thinking, to=functions.NAME a call */
};

/* ---- JSON as it comes (output_values.c) -------------------------------------------------------------------------- */
/* Follows one JSON value byte by byte. Raw control characters in strings are let through: the caller escapes them. */
typedef struct json_scan {
    uint8_t state, left;
    bool in_key;
    uint16_t depth;
    uint64_t array[2]; /* bit a level: it is an array */
    const char *literal;
} json_scan;
typedef enum scan_result { SCAN_ON, SCAN_END, SCAN_BEFORE /* it ended before this byte */, SCAN_BAD } scan_result;
void scan_start(json_scan *s);
scan_result scan_push(json_scan *s, char c);
bool scan_in_string(const json_scan *s);

/* ---- typed values (output_values.c) ------------------------------------------------------------------------------ */
enum { TYPE_NULL = 1, TYPE_BOOL = 2, TYPE_INT = 4, TYPE_REAL = 8, TYPE_STRING = 16, TYPE_ARRAY = 32, TYPE_OBJECT = 64 };
/* What a schema lets a value be; 0: it does not say. */
unsigned schema_types(const json *root, const json *schema);
static inline bool types_text(unsigned types) { /* text stays text, so that it need not wait for its end */
    return types && !(types & ~(unsigned)(TYPE_STRING | TYPE_NULL));
}
void text_escape(str s, buf *out); /* as inside a JSON string */
/* A whole value that was written as text: JSON where the types allow it, else a string. */
void text_typed(str s, unsigned types, buf *out);
void entities_decode(str s, buf *out);

/* ---- tool calls -------------------------------------------------------------------------------------------------- */
struct tool_list {
    unsigned refs; /* atomic */
    arena *a;      /* owns; holds tools */
    const json *tools;
    const call_form *form;
};

/* The stages of reading calls: each looks at what is held from `at` on. */
typedef enum call_stage {
    CALL_BLOCK, /* behind <tool_call>: an object, <function…>, or a name */
    CALL_BLOCK_END,
    CALL_LIST, /* objects, in brackets or not */
    CALL_KEY,  /* inside an object that is a call */
    CALL_MEMBER,
    CALL_NEXT,
    CALL_JSON, /* arguments that are JSON already */
    CALL_SKIP, /* a JSON value that nobody asked for */
    CALL_INVOKE,
    CALL_PARAM,
    CALL_VALUE,
    CALL_CDATA_END,
    CALL_NAME, /* GLM */
    CALL_ARG,
    CALL_ARG_VALUE,
    CALL_MISTRAL,
    CALL_ITEM, /* DeepSeek, Kimi */
    CALL_ITEM_HEAD,
    CALL_ITEM_END,
    CALL_GEMMA,
    CALL_GEMMA_KEY,
    CALL_GEMMA_VALUE,
    CALL_GEMMA_STRING,
    CALL_GEMMA_NEXT,
    CALL_STAGES,
} call_stage;

typedef struct call_mark {
    str text;
    call_stage first;
    bool keep;     /* the mark itself is read again by the first stage */
    bool at_start; /* a mark only where nothing but white space is before it */
} call_mark;

enum { CALL_MARKS = 3 };
struct call_form {
    const char *name;
    str sign; /* the template holds it */
    call_mark mark[CALL_MARKS];
    str close;                                    /* ends a group of calls; may be missing */
    str invoke, invoke_close, param, param_close; /* CALL_INVOKE: how a tag begins, up to its attributes */
    str item, sep, item_close;                    /* CALL_ITEM */
    bool strip;                                   /* one line break on each side of a value is not part of it */
    bool entities;                                /* &lt; and CDATA mean what they mean in XML */
};

enum { GEMMA_DEPTH = 64 };
typedef struct calls {
    const tool_list *tools; /* borrows (output) */
    output *o;              /* borrows; NULL: only looks, gives no events */
    bool one;
    buf held;        /* what is not decided: from the white space before a mark, or what may become one */
    size_t at;       /* in a call: read so far */
    size_t mark_end; /* of the mark that began it; 0: it is behind an earlier call of its group */
    bool in;         /* a call */
    call_stage stage, after;
    /* the call */
    buf name, args;
    const json *schema; /* of its arguments; borrows (tools) */
    bool named, committed, has_args, whole_args;
    size_t given; /* bytes of args that were given out */
    int depth, n_params;
    bool is_name, is_args;
    json_scan scan;
    /* the value being read */
    unsigned types;
    bool text, begun, cdata;
    str end; /* what ends it; borrows (form) */
    call_stage next;
    bool object[GEMMA_DEPTH], first[GEMMA_DEPTH];
    /* the reply */
    int n;          /* calls so far */
    bool spoke;     /* content was given */
    bool last_call; /* a call was the last that was given */
    bool failed, ended;
} calls;
void calls_add(calls *c, str s, bool final);
/* The text to come is the arguments of a call of this tool; false: there is no such tool. */
bool calls_begin(calls *c, str name);
void calls_deinit(calls *c);
bool calls_mark_in(const tool_list *l, str s, size_t *at); /* the first mark of a call in s */
size_t calls_mark_partial(const tool_list *l, str s);      /* bytes at its end that may become a mark */
/* Whether s, which begins with a mark, is whole calls of known tools and nothing else: so far, or (final) at its end.
 */
bool calls_only(const tool_list *l, str s, bool final);

/* What a stage says: read on; wait for more text; this is no call; the group has ended. */
typedef enum call_step { STEP_GO, STEP_MORE, STEP_FAIL, STEP_DONE } call_step;
enum { HEAD_MAX = 512 }; /* bytes of a name, a key or a tag */
typedef enum literal { LITERAL_NO, LITERAL_PART, LITERAL_YES } literal;
literal literal_at(str s, str text);
str call_rest(const calls *c);
str call_skip_space(calls *c); /* what is left then */
bool call_named(calls *c, str name);
void call_args(calls *c, const char *p, size_t n);
void call_args_str(calls *c, str s);
bool call_finish(calls *c);                      /* false: it has no name */
const json *call_param(const calls *c, str key); /* schema of an argument */
call_step gemma_call(calls *c, bool final);
call_step gemma_key(calls *c, bool final);
call_step gemma_value(calls *c, bool final);
call_step gemma_string(calls *c, bool final);
call_step gemma_next(calls *c, bool final);

/* ---- what output.c gives the others ------------------------------------------------------------------------------ */
void output_call(output *o, output_kind kind, int32_t call, str text, bool whole);
void output_content(output *o, str s, bool final); /* content, through the stop strings */
