/* libhearth: run language models on your own machine. The whole public C API.
 *
 * A hearth_model may be used by any number of threads at once; a hearth_gen by one thread at a time, except for
 * hearth_gen_cancel. No function exits or aborts because of bad input: failures return a HEARTH_E* code and leave a
 * message for hearth_error() on the calling thread. Every struct that crosses the border starts with its size, so that
 * a newer library works with an older program and the other way round: begin with the HEARTH_*_INIT of it.
 *
 * A first program: tests/api/example.c. More: docs/library.md. */
#ifndef HEARTH_H
#define HEARTH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define HEARTH_API __attribute__((visibility("default")))

typedef struct hearth_model hearth_model; /* a loaded model with its engine */
typedef struct hearth_gen hearth_gen;     /* one running generation */

typedef enum hearth_status {
    HEARTH_OK = 0,
    HEARTH_EINVALID = -1, /* an argument or file is wrong; hearth_error() says which */
    HEARTH_ENOTFOUND = -2,
    HEARTH_EMEMORY = -3, /* does not fit the memory budget or the context */
    HEARTH_EBUSY = -4,   /* too many requests are waiting */
    HEARTH_EUNSUPPORTED = -5,
    HEARTH_EINTERNAL = -6
} hearth_status;

HEARTH_API const char *hearth_version(void);
/* Text of the last failure on this thread; valid until the next hearth call on it. Never NULL. */
HEARTH_API const char *hearth_error(void);

typedef struct hearth_open_opts {
    size_t size;
    const char *numerics;   /* NULL or "default", "f32", "int8", "strict" */
    int threads;            /* 0: the physical cores this process may use */
    int context_length;     /* 0: the model's own, or what the budget holds */
    uint64_t memory_budget; /* bytes; 0: three quarters of RAM or of the cgroup's limit */
    int batch;              /* most generations in one step; 0: 8 */
    const char *kv_quant;   /* keys and values: NULL or "off", "8", "4", "config", "turbo", "turbo:kKvV" */
} hearth_open_opts;
#define HEARTH_OPEN_OPTS_INIT \
    { .size = sizeof(hearth_open_opts) }
/* path: a model directory or a .gguf file. opts may be NULL. */
HEARTH_API int hearth_open(const char *path, const hearth_open_opts *opts, hearth_model **out);
/* Ends what still runs ("cancelled"); a hearth_gen may be read and freed afterwards. m may be NULL. */
HEARTH_API void hearth_close(hearth_model *m);
HEARTH_API int32_t hearth_vocab(const hearth_model *m);   /* token ids are below this */
HEARTH_API int32_t hearth_context(const hearth_model *m); /* most tokens of a prompt and its reply together */

/* Text to ids. special: text of special tokens becomes those tokens; add: BOS and the like are added. *ids is the
 * caller's: free(). */
HEARTH_API int hearth_encode(const hearth_model *m, const char *text, size_t n, bool special, bool add, int32_t **ids,
                             size_t *n_ids);
/* *text is NUL-terminated and the caller's: free(). n_text may be NULL. */
HEARTH_API int hearth_decode(const hearth_model *m, const int32_t *ids, size_t n, bool skip_special, char **text,
                             size_t *n_text);

/* Renders messages (a JSON array, OpenAI's shape) with the model's chat template, ready for a reply. tools_json and
 * variables_json (an object of further template variables) may be NULL. *ids: the prompt as tokens (special-token text
 * inside messages stays plain text). text may be NULL if not wanted. Both are the caller's: free(). */
HEARTH_API int hearth_render(const hearth_model *m, const char *messages_json, const char *tools_json,
                             const char *variables_json, char **text, int32_t **ids, size_t *n_ids);

typedef struct hearth_gen_opts {
    size_t size;
    int32_t max_tokens; /* default 512 */
    float temperature;  /* 0: greedy */
    float top_p;        /* 1: off; 0 keeps one token */
    int32_t top_k;      /* 0: off */
    float min_p;
    float repetition_penalty; /* 1: off */
    float presence_penalty, frequency_penalty;
    int32_t penalty_window; /* last tokens the penalties look at; 0: all */
    bool has_seed;
    uint64_t seed;
    const char *const *stops; /* [n_stops] */
    size_t n_stops;
    int32_t top_logprobs; /* -1: no logprobs; 0..20 */
    bool ignore_eos;
    bool split_thinking; /* text inside a thinking block is marked as reasoning */
} hearth_gen_opts;
#define HEARTH_GEN_OPTS_INIT                                                                                           \
    {                                                                                                                  \
        .size = sizeof(hearth_gen_opts), .max_tokens = 512, .top_p = 1, .repetition_penalty = 1, .penalty_window = 20, \
        .top_logprobs = -1                                                                                             \
    }

typedef struct hearth_prob {
    int32_t id;
    float logprob;
} hearth_prob;
/* One event: a token and the text it brought. Text may come later than its token (half a character, a possible stop
 * string): then n is 0 here, and what was held back comes with a later token or alone, with id -1. */
typedef struct hearth_token {
    size_t size;
    const char *text; /* valid UTF-8, n bytes, not NUL-terminated; until the next call */
    size_t n;
    int32_t id;             /* -1: text only */
    float logprob;          /* 0 unless asked for */
    const hearth_prob *top; /* [n_top], best first; until the next call */
    int32_t n_top;
    bool reasoning; /* text inside a thinking block */
} hearth_token;
#define HEARTH_TOKEN_INIT \
    { .size = sizeof(hearth_token) }
typedef struct hearth_stats {
    size_t size;
    int32_t prompt_tokens, cached_tokens, generated_tokens;
    double prefill_s, decode_s;
    const char *finish; /* "stop", "length", "cancelled", "error"; "" while it runs */
} hearth_stats;
#define HEARTH_STATS_INIT \
    { .size = sizeof(hearth_stats) }

/* Pull: start, next until it returns 0, free. hearth_gen_next waits; it returns 1 with an event, 0 at the end, a
 * HEARTH_E* code on failure. Events wait in a bounded buffer: a generation nobody reads pauses. opts may be NULL. */
HEARTH_API int hearth_gen_start(hearth_model *m, const int32_t *ids, size_t n, const hearth_gen_opts *opts,
                                hearth_gen **out);
HEARTH_API int hearth_gen_next(hearth_gen *g, hearth_token *out);
HEARTH_API void hearth_gen_cancel(hearth_gen *g); /* from any thread; next then ends within one step */
HEARTH_API void hearth_gen_stats(const hearth_gen *g, hearth_stats *out);
HEARTH_API void hearth_gen_free(hearth_gen *g); /* cancels first if it still runs; NULL is allowed */
/* Push: calls on_token for every event; it stops the generation by returning false. stats may be NULL. */
HEARTH_API int hearth_generate(hearth_model *m, const int32_t *ids, size_t n, const hearth_gen_opts *opts,
                               bool (*on_token)(void *arg, const hearth_token *t), void *arg, hearth_stats *stats);
/* Logits [n, vocab] of every position of ids. *logits is the caller's: free(). */
HEARTH_API int hearth_logits(hearth_model *m, const int32_t *ids, size_t n, float **logits);

#ifdef __cplusplus
}
#endif
#endif
