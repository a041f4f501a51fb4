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
    int64_t now_unix; /* 0: the clock */
} render_opts;
bool chat_template_render(const chat_template *t, const render_opts *o, buf *out, buf *user, error *err);
bool chat_template_reads(const chat_template *t, const char *variable); /* the source mentions this name */
bool chat_template_thinks(const chat_template *t); /* replies may hold a thinking block: the source mentions its tag */

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

/* ---- one reply, token by token (output.c) ------------------------------------------------------------------------ */
/* The one incremental machine that detokenises, finds stop strings (with hold-back), and splits off thinking.
 * The whole reply is the concatenation of its events. */
typedef enum output_kind { OUTPUT_CONTENT, OUTPUT_REASONING } output_kind;
typedef struct output_event {
    output_kind kind;
    str text; /* valid UTF-8; borrows from the output until the next push */
} output_event;
typedef struct output_opts {
    const str *stops; /* strings; copied */
    size_t n_stops;
    bool keep_special; /* show special tokens as text */
    str prompt_tail;   /* end of the rendered prompt: decides whether the reply starts inside a think block */
    bool split_thinking;
} output_opts;
/* The tags of a thinking block. */
#define THINK_OPEN  STR("<think>")
#define THINK_CLOSE STR("</think>")
/* prompt_tail for a prompt known only as ids [n]: by the tags' own tokens where there are such (a client's text never
 * becomes those), else the text of the last ones. Ids out of range add nothing. */
void output_prompt_tail(const tokenizer *t, const int32_t *id, size_t n, buf *out);
typedef struct output output;
output *output_new(const tokenizer *t, const output_opts *o);
void output_free(output *o);
/* Feeds one token; fills events (at most 4); returns their number. *stopped is set when a stop string matched: its
 * index. */
int output_push(output *o, int32_t id, output_event ev[4], int *stopped); /* *stopped = -1 otherwise */
int output_finish(output *o, output_event ev[4]);                         /* releases what was held back */
