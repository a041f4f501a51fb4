/* text: between characters and token ids. Tokenizers, incremental detokenising, chat templates (Jinja), splitting a
 * reply. Not here: sampling (engine/), HTTP shapes (server/). */
#pragma once
#include "../base/base.h"
#include "../base/json.h"
#include "../format/format.h"

/* ---- tokenizer (tokenizer.c and tokenizer_*.c) ------------------------------------------------------------------- */
typedef struct tokenizer tokenizer;
tokenizer *tokenizer_open(checkpoint *c, error *err); /* tokenizer.json of a directory, or GGUF metadata */
tokenizer *tokenizer_from_json(const json *tokenizer_json, const json *tokenizer_config,
                               error *err); /* config may be NULL */
void tokenizer_free(tokenizer *t);
int32_t tokenizer_size(const tokenizer *t); /* ids are below this */
/* A text of more bytes than this has more than n tokens: the longest token everywhere, and room for what normalisation
 * takes away. */
size_t tokenizer_text_max(const tokenizer *t, size_t n);

enum {
    ENCODE_SPECIAL = 1,     /* text of special and added tokens in the input becomes those tokens (all of it trusted) */
    ENCODE_ADD_SPECIAL = 2, /* run the post-processor: BOS, [CLS] ... as the tokenizer is configured */
};
/* Appends ids. Input must be valid UTF-8 (invalid bytes: ERR_INVALID naming the offset). */
bool tokenizer_encode(const tokenizer *t, str text, unsigned flags, ids *out, error *err);
/* As above, where `user` [text.n] is 1 for bytes that came from a client: an added token is only matched where no byte
 * of it is a client's. NULL: everything is trusted. */
bool tokenizer_encode_marked(const tokenizer *t, str text, const uint8_t *user, unsigned flags, ids *out, error *err);
/* Whole-text decode, equal to the reference's. skip_special drops special tokens. Ill-formed UTF-8 becomes U+FFFD. */
void tokenizer_decode(const tokenizer *t, const int32_t *id, size_t n, bool skip_special, buf *out);
bool tokenizer_is_special(const tokenizer *t, int32_t id);
int32_t tokenizer_id(const tokenizer *t, str token); /* -1 when absent */
str tokenizer_token(const tokenizer *t, int32_t id); /* the vocabulary's own spelling ("Ġthe", "▁Hi"); borrows */
void tokenizer_bytes(const tokenizer *t, int32_t id, buf *out); /* the bytes this token stands for */
int32_t tokenizer_bos(const tokenizer *t);                      /* -1: none */
int32_t tokenizer_eos(const tokenizer *t);
str tokenizer_bos_text(const tokenizer *t);
str tokenizer_eos_text(const tokenizer *t);

/* Streaming detokeniser: whatever is pushed, the concatenation of what comes out (with finish) equals tokenizer_decode
 * of all ids, and no output ends inside a character. */
typedef struct detok detok;
detok *detok_new(const tokenizer *t, bool skip_special);
void detok_free(detok *d);
void detok_push(detok *d, int32_t id, buf *out);
void detok_finish(detok *d, buf *out);

/* ---- Jinja and chat templates (jinja_*.c, template.c) ------------------------------------------------------------ */
typedef struct jinja jinja; /* a parsed template */
typedef struct jinja_limits {
    uint64_t steps_max; /* 0: 50 million */
    uint32_t depth_max; /* 0: 100 */
    size_t bytes_max;   /* of the output; 0: 256 MiB */
    size_t memory_max;  /* that rendering may hold, output included; 0: twice bytes_max and 64 MiB */
} jinja_limits;
jinja *jinja_parse(str source, error *err); /* ERR_TEMPLATE "line N: ..." */
void jinja_free(jinja *j);
/* Renders with the members of `vars` (an object) as globals. `user`, when not NULL, gets one byte per output byte: 1
 * where the text came out of a variable, 0 where the template wrote it. now_unix: what strftime_now sees (0: the
 * clock). ERR_TEMPLATE with the text of raise_exception when the template refuses. */
bool jinja_render(const jinja *j, const json *vars, const jinja_limits *limits, int64_t now_unix, buf *out, buf *user,
                  error *err);

typedef struct chat_template chat_template;
chat_template *chat_template_open(checkpoint *c, const tokenizer *t,
                                  error *err); /* chat_template.jinja, tokenizer_config, GGUF */
chat_template *chat_template_from(str source, str bos, str eos, error *err);
void chat_template_free(chat_template *t);
typedef struct render_opts {
    const json *messages;  /* array */
    const json *tools;     /* array or NULL */
    const json *variables; /* object: further variables (chat_template_kwargs), or NULL */
    bool add_generation_prompt;
    int64_t now_unix;  /* 0: the clock */
    size_t memory_max; /* as in jinja_limits */
} render_opts;
bool chat_template_render(const chat_template *t, const render_opts *o, buf *out, buf *user, error *err);
bool chat_template_reads(const chat_template *t, const char *variable); /* the source mentions this name */
/* A small table beside the template, for what is worth finding out once (prompt.c). Any thread. */
bool chat_template_recall(const chat_template *t, str key, int32_t *value);
void chat_template_remember(const chat_template *t, str key, int32_t value);
bool chat_template_thinks(const chat_template *t); /* replies may hold a thinking block: the source mentions its tag */
bool chat_template_says(const chat_template *t, str text); /* the source holds this text */

/* ---- prompts (prompt.c): what every surface starts a generation from ------------------------------------------- */
typedef struct prompt {
    buf text; /* as rendered; empty for a raw prompt */
    buf user; /* one byte per byte of text: 1 where a client wrote it */
    ids ids;
    /* Set by the caller: a text that is sure to have more tokens is refused before it is tokenised; 0: none is. */
    int32_t tokens_max;
    str tail; /* the end of text that the template wrote itself (at most 4 KiB), for output_opts; borrows text */
    /* Positions in ids where messages begin and where the part ends that a next turn will repeat, ascending. */
    ids marks;
} prompt; /* {0} is empty; free with prompt_free whatever happened */
/* Special-token text inside messages stays plain text; a doubled BOS loses one. An empty result is ERR_INVALID. */
bool prompt_render(prompt *p, const chat_template *t, const tokenizer *k, const render_opts *o, error *err);
/* Raw text, all of it trusted, with BOS and the like as the tokenizer is configured. */
bool prompt_raw(prompt *p, const tokenizer *k, str text, error *err);
void prompt_free(prompt *p);
/* Tokens at the end of a prompt that a next turn will not repeat (an open thinking tag, say), as two small renderings
 * show; -1: unknown. Remembered by o->variables and whether there are tools. */
int32_t prompt_primer(const chat_template *t, const tokenizer *k, const render_opts *o);

/* ---- one reply, token by token (output.c, output_calls*.c) ------------------------------------------------------- */
/* The one incremental machine that detokenises, splits off thinking, reads tool calls and finds stop strings (with
 * hold-back). The whole reply is the concatenation of its events. docs/output.md, docs/tool-calls.md. */
typedef enum output_kind {
    OUTPUT_CONTENT,
    OUTPUT_REASONING,
    OUTPUT_CALL,     /* a tool call begins; text: the tool's name */
    OUTPUT_ARGS,     /* a piece of its arguments' JSON text */
    OUTPUT_CALL_END, /* `whole`: the arguments are complete; otherwise the reply ended or went wrong within them */
} output_kind;
typedef struct output_event {
    output_kind kind;
    str text;     /* valid UTF-8; borrows from the output until the next push */
    int32_t call; /* CALL, ARGS, CALL_END: which, from 0 */
    bool whole;
} output_event;

/* How a family marks its thinking, and how it writes calls: rows of two tables (output_forms.c), chosen from the
 * template and the vocabulary. NULL: it does not. */
typedef struct think_form think_form;
typedef struct call_form call_form;
const think_form *think_form_of(const chat_template *t, const tokenizer *k);
const call_form *call_form_of(const chat_template *t, const tokenizer *k);
const call_form *call_form_named(const char *name); /* for tests */
const think_form *think_form_named(const char *name);
const char *call_form_name(const call_form *f);
str think_form_open(const think_form *f); /* what opens a block, as it is spelled */

/* The tools a reply may call, in a form that outlives the request. Counted references, any thread. */
typedef struct tool_list tool_list;
/* tools: [{"type":"function","function":{"name","parameters"}}], copied. NULL when there is no form or no tool. */
tool_list *tool_list_new(const json *tools, const call_form *f);
tool_list *tool_list_keep(tool_list *l);
void tool_list_drop(tool_list *l); /* may be NULL */
/* What "$ref": "#/…" of a schema names, by the keys of objects (no escapes); NULL: nothing. */
const json *schema_ref(const json *root, str ref);

typedef struct output_opts {
    const str *stops; /* strings; copied */
    size_t n_stops;
    bool keep_special; /* show special tokens as text */
    str prompt_tail;   /* end of the rendered prompt: decides whether the reply starts inside a think block */
    bool split_thinking;
    const think_form *think; /* NULL: <think> tags */
    tool_list *tools;        /* kept; NULL: markup of calls is plain text */
    bool one_call;           /* the reply ends behind its first call */
    /* Most tokens of thinking; then the block is closed (output_forced). Of reply_max tokens some stay for the answer
     * even if the budget is larger. */
    bool has_think_budget;
    int32_t think_budget, reply_max;
} output_opts;
/* The tags of a thinking block, where a family has no other. */
#define THINK_OPEN  STR("<think>")
#define THINK_CLOSE STR("</think>")
/* prompt_tail for a prompt known only as ids [n]: by the tags' own tokens where there are such (a client's text never
 * becomes those), else the text of the last ones. Ids out of range add nothing. */
void output_prompt_tail(const tokenizer *t, const int32_t *id, size_t n, buf *out);
typedef struct output output;
output *output_new(const tokenizer *t, const output_opts *o);
void output_free(output *o);
enum { OUTPUT_GOES_ON = -1, OUTPUT_ENDED = -2 /* after its only call */ };
/* Feeds one token; *ev [returned] until the next push. *stopped: index of the stop string that matched, or one of the
 * above. */
size_t output_push(output *o, int32_t id, const output_event **ev, int *stopped);
size_t output_finish(output *o, const output_event **ev); /* releases what was held back */
/* Where the reply stands, for what may only happen in the answer (grammars): whether a block may still open, is open,
 * or is over. */
typedef enum output_phase { OUTPUT_MAY_THINK, OUTPUT_THINKS, OUTPUT_ANSWERS } output_phase;
output_phase output_phase_of(const output *o);
/* The token that must come next whatever the model wants (the end of a block whose budget is used up); -1: any. */
int32_t output_forced(const output *o);
