/* engine: requests in, tokens out. One scheduler thread owns the device and all sequences; a step mixes prefill chunks
 * and decode rows of many requests. Above this header nobody sees a tensor; below it nobody sees JSON or HTTP. */
#pragma once
#include "../base/base.h"
#include "../text/text.h"
#include "../text/grammar.h"
#include "../model/model.h"

typedef struct engine engine;
#define SSD_CACHE_MAX ((size_t)64 << 30)
typedef struct engine_opts {
    const char *model_path; /* directory or .gguf */
    const char *model_id;   /* shown to clients; NULL: last part of the path */
    device_opts device;
    bool compat_mlx_lm;
    int batch;               /* most sequences in a step; 0: 8 */
    int queue_max;           /* waiting requests before ERR_QUEUE_FULL; 0: 64 */
    int context_length;      /* 0: the model's own, capped by memory */
    size_t memory_budget;    /* bytes; 0: three quarters of RAM or of the cgroup's limit (base/limit.h), or the family's
                                own default; never more than RLIMIT_AS leaves */
    const char *draft_model; /* a model that guesses ahead: its path; NULL: none */
    const char *draft_kind;  /* a name of draft.def; NULL: found out from draft_model */
    size_t requests_bytes;   /* what the caller holds for requests beside the engine: a server's bodies, rendering */
    int prefill_chunk;       /* rows of one prompt in a step; 0: 512 */
    const char *kv_quant;    /* how keys and values are kept, as model_opts says; NULL: as they are */
    int kv_group;            /* columns a scale; 0: 64 */
    bool kv_late;            /* prompts see keys and values as they were before coding, replies as coded: mlx-lm's way,
                                for comparing with it. Nothing can be shared between requests then */
    int64_t prompt_cache;  /* bytes for what earlier requests left; 0: the plan's choice, -1: none. Cut to what fits */
    const char *ssd_cache; /* directory that keeps the prompt cache over restarts; NULL: none */
    size_t ssd_cache_max;  /* bytes below it, of all models; 0: SSD_CACHE_MAX */
    bool ssd_cache_verify; /* read all of it once, in the background, and remove what is damaged */
} engine_opts;
engine *engine_open(const engine_opts *o, error *err);
void engine_close(engine *e); /* cancels what runs, joins the thread */

/* ---- memory plan (plan.c; plan.def says what the parts are; docs/memory.md) -------------------------------------- */
typedef enum plan_part {
#define PLAN(name, key, on_device, what) PLAN_##name,
#include "plan.def"
#undef PLAN
    PLAN_PARTS
} plan_part;
typedef struct plan_part_info {
    const char *key, *what;
    bool on_device;
} plan_part_info;
const plan_part_info *plan_part_describe(plan_part p);
typedef struct memory_plan {
    size_t part[PLAN_PARTS];
    size_t need_bytes;  /* to serve one sequence of full context: all but PLAN_BATCH and PLAN_CACHE */
    size_t total_bytes; /* of all parts; at most the budget */
    size_t budget_bytes;
    int32_t context;     /* most positions of one sequence */
    int32_t context_max; /* the model's */
    int32_t batch;
    bool context_fixed; /* asked for, or the family's default: requests that want more are cut to it */
} memory_plan;
const memory_plan *engine_plan(const engine *e);

/* ---- fit (fit.c): what a model needs, and which machines it would run on ----------------------------------------- */
/* One line of skus.def and how the model does there, at fit_report.sku_context. */
typedef struct fit_sku {
    const char *name;
    double ram_gb, device_gb, bandwidth_gbs; /* device_gb 0: no GPU, everything in RAM */
    size_t host_bytes, device_bytes;         /* needed */
    bool fits;
    int32_t context_safe;
    double decode_tps;
} fit_sku;
enum { FIT_SKUS_MAX = 32, FIT_SKU_CONTEXT = 32768 };
/* Everything is a copy. Where the model does not fit, plan holds what it would need at the context asked for, or at the
 * smallest one. */
typedef struct fit_report {
    memory_plan plan;
    bool fits;
    error why;            /* not fits: the refusal engine_open would give */
    int32_t context_safe; /* largest context that fits the budget; 0: none */
    size_t file_bytes, decode_bytes, kv_bytes_per_token, state_bytes;
    int64_t n_params;
    int threads, n_skus, sku_context;
    fit_sku sku[FIT_SKUS_MAX];
    char name[128], family[48], architecture[96], quantization[64];
} fit_report;
/* From headers only: no weight is read. o->context_length is the context in question. False: the model cannot be read
 * (ERR_NOT_FOUND, ERR_FORMAT, ERR_UNSUPPORTED), or an option is ERR_INVALID. */
bool engine_fit(const engine_opts *o, fit_report *out, error *err);
void engine_fit_running(const engine *e, fit_report *out); /* of a running engine, at its context */
/* (speed.c) Tokens a second that reading weights and cache once a token allows, at `context` positions and a bandwidth
 * in GB/s. */
double fit_decode_tps(const fit_report *r, int32_t context, double bandwidth_gbs);
/* Read bandwidth of this machine in GB/s with so many threads: measured once (a quarter of a second, `bytes_max` of
 * memory), kept in <cache>/hearth/bandwidth.json; measured_unix says when. 0: cannot be measured. */
double fit_bandwidth(int threads, size_t bytes_max, int64_t *measured_unix);
void fit_processor(char *out, size_t n); /* its name */

/* ---- speculation: which kind a draft is (draft.c, draft.def) ----------------------------------------------------- */
/* ERR_UNSUPPORTED says which kind was asked for or found, and why it cannot be served; ERR_INVALID: no such kind, or a
 * kind without the model it needs. True: nothing was asked for. */
bool draft_check(const engine_opts *o, error *err);

const model_info *engine_model(const engine *e);
const tokenizer *engine_tokenizer(const engine *e);
const chat_template *engine_template(const engine *e); /* NULL: the model has none */
char *engine_id_of(const char *path); /* a model's name: the last part of its path, without .gguf; caller frees */
const char *engine_model_id(const engine *e);
/* What the checkpoint's generation_config.json asks for, the weakest of the settings a request can have: NAN, or -1 for
 * top_k, where it says nothing. Unreadable or absent file: nothing set. */
typedef struct gen_defaults {
    float temperature, top_p, repetition_penalty;
    int32_t top_k;
} gen_defaults;
const gen_defaults *engine_defaults(const engine *e);
/* What a checkpoint meant for embeddings says of itself (sentence-transformers' files; GGUF's pooling type). */
typedef struct embedding_info {
    int32_t width;     /* of a vector */
    int32_t end_token; /* follows every text; its row is the vector. -1: the last token of the text */
} embedding_info;
const embedding_info *engine_embedding(const engine *e); /* NULL: the model is for replies */
/* Names build, numerics, device and weights: with the same fingerprint, the same request and seed give the same bytes.
 */
const char *engine_fingerprint(const engine *e);
int engine_context(const engine *e);        /* most positions of one sequence */
bool engine_context_fixed(const engine *e); /* memory_plan.context_fixed: pass clamp to engine_clamp */
/* Admission: may a prompt of n_prompt tokens have `requested` more? More than fits is an ERR_MEMORY that gives the
 * numbers, or, with clamp (a defaulted max_tokens, fixed-context serving), is cut to what fits: *clamped. A prompt that
 * leaves no place is refused either way. Call it after the prompt is built and before engine_submit, which refuses what
 * does not fit. */
bool engine_clamp(const engine *e, size_t n_prompt, int64_t requested, bool clamp, int32_t *granted, bool *clamped,
                  error *err);

/* Sampling; every field's neutral value is 0 except where said. Range checks are done by engine_submit (ERR_INVALID
 * names the field). */
typedef struct sampling {
    float temperature; /* 0: greedy */
    float top_p;       /* 1: off; 0 keeps one token */
    int32_t top_k;     /* 0: off */
    float min_p;
    float repetition_penalty;  /* 0 or 1: off */
    int32_t repetition_window; /* last tokens looked at; 0: all */
    float presence_penalty, frequency_penalty;
    int32_t presence_window, frequency_window;
    const int32_t *bias_ids; /* [n_bias], copied */
    const float *bias;
    size_t n_bias;
    bool has_seed;
    uint64_t seed;
} sampling;
#define TEMPERATURE_DEFAULT 0.7f /* where neither the request nor the model says one */
/* What is used when nobody asks for anything: the model's own settings (0 there is off), else the temperature above. */
sampling sampling_defaults(const gen_defaults *d);
enum { TOP_LOGPROBS_MAX = 20 };

typedef enum finish {
    FINISH_NONE,
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_STOP_STRING,
    FINISH_CANCELLED,
    FINISH_ERROR
} finish;

/* One event of a generation, in order. Text events may cover several tokens; every token has exactly one GEN_TOKEN
 * event when gen_opts.want_tokens is set. */
typedef enum gen_event_kind {
    GEN_TEXT,
    GEN_REASONING,
    GEN_CALL, /* a tool call begins; then pieces of its arguments' JSON, then its end */
    GEN_ARGS,
    GEN_CALL_END,
    GEN_TOKEN,
    GEN_PROGRESS,
    GEN_DONE
} gen_event_kind;
typedef struct token_prob {
    int32_t id;
    float logprob;
} token_prob;
typedef struct gen_event {
    gen_event_kind kind;
    str text;              /* TEXT, REASONING, ARGS; CALL: the tool's name. Borrows until the next gen_next */
    int32_t call;          /* CALL, ARGS, CALL_END: which call, from 0 */
    bool whole;            /* CALL_END: see output_event */
    int32_t token;         /* TOKEN */
    float logprob;         /* TOKEN, when logprobs were asked for */
    const token_prob *top; /* [n_top], best first */
    int32_t n_top;
    int32_t done, total; /* PROGRESS: prompt tokens computed / in all */
    finish why;          /* DONE */
    int32_t stop_index;  /* DONE with FINISH_STOP_STRING */
    error err;           /* DONE with FINISH_ERROR */
} gen_event;

typedef struct gen_opts {
    const int32_t *prompt; /* [n_prompt], copied; at least one token */
    size_t n_prompt;
    int32_t max_tokens; /* >= 0; 0 computes the prompt only */
    sampling sample;
    const str *stops; /* copied */
    size_t n_stops;
    bool ignore_eos;
    bool keep_special; /* special tokens appear in the text */
    bool want_tokens;
    bool logprobs;
    int32_t top_logprobs; /* 0..TOP_LOGPROBS_MAX */
    /* for output_opts */
    bool split_thinking;
    str prompt_tail;
    const think_form *think;
    tool_list *tools; /* kept */
    bool one_call;
    bool has_think_budget;
    int32_t think_budget;
    /* The answer's grammar, compiled for this model's vocabulary; kept; NULL: any text. Not what is thought:
     * grammar_open (NULL: nothing) says how a block may open where none has yet, grammar_lead what may stand between
     * block and answer. The reply ends where the grammar does. Log-probabilities are those without it. */
    grammar *grammar, *grammar_open, *grammar_lead;
    bool want_hidden; /* with max_tokens 0 and a model that embeds: gen_hidden */
    /* Positions where messages begin, and where the part of the prompt ends that a next turn repeats, ascending: places
     * to keep a checkpoint at (prompt.marks). Copied; good to have, never needed. */
    const int32_t *marks;
    size_t n_marks;
    /* Whatever decides keys and values besides the tokens and the model: adapters and their scales, hashes of media.
     * Requests share cached prompts only within one. Copied. */
    str space;
    /* Called from the engine's thread after events were queued, at most once a step; may be NULL. It must return
     * quickly and must not call gen_free. gen_free waits for a call in progress: hold no lock there that wake takes. */
    void (*wake)(void *arg);
    void *wake_arg;
} gen_opts;

typedef struct gen_stats {
    int32_t prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens;
    uint64_t queued_ns, prefill_ns, decode_ns;
} gen_stats;

typedef struct gen gen; /* a running generation; owned by the caller, freed with gen_free */
/* ERR_INVALID (names the field), ERR_MEMORY (context_over_budget), ERR_QUEUE_FULL, ERR_UNAVAILABLE (the engine has
 * failed) */
gen *engine_submit(engine *e, const gen_opts *o, error *err);
/* Takes the next event. Waits up to timeout_ms (-1: for ever, 0: not at all); false when none came in time. After
 * GEN_DONE: false. One thread at a time. Events wait in a bounded ring: a generation whose events nobody takes pauses,
 * and only that one. */
bool gen_next(gen *g, gen_event *ev, int timeout_ms);
void gen_cancel(gen *g); /* from any thread; takes effect within one step, in prefill and in the queue too */
void gen_free(gen *g);   /* cancels first if it still runs; does not wait for the step. May be NULL */
void gen_stats_get(const gen *g, gen_stats *out);
/* The last prompt position as it left the final norm [width of embedding_info], after GEN_DONE of a generation that
 * wanted it; NULL otherwise. Borrows from g. */
const float *gen_hidden(const gen *g);

/* Why a request took less from the prompt cache than it has in common with an earlier one:
 * PREFIX_WHY(name, "for the log") */
#define PREFIX_WHYS                                                                       \
    PREFIX_WHY(nothing, "nothing was in the way")                                         \
    PREFIX_WHY(unseen, "no earlier prompt begins like this")                              \
    PREFIX_WHY(last_token, "one token must remain to be computed")                        \
    PREFIX_WHY(no_checkpoint, "there is no checkpoint of the recurrent state further on") \
    PREFIX_WHY(window, "the pages of a sliding window were evicted")                      \
    PREFIX_WHY(evicted, "what follows was evicted")                                       \
    PREFIX_WHY(space, "what is held belongs to other adapters or media")
typedef enum prefix_why {
#define PREFIX_WHY(name, text) PREFIX_WHY_##name,
    PREFIX_WHYS
#undef PREFIX_WHY
        PREFIX_WHY_COUNT
} prefix_why;

/* The prompt cache. A hit took at least one token. */
typedef struct prefix_stats {
    uint64_t hits, misses, hit_tokens;
    uint64_t short_by[PREFIX_WHY_COUNT]; /* requests by why they took no more */
    uint64_t evicted_blocks, evicted_checkpoints;
    int32_t blocks, checkpoints; /* held; 64 tokens a block */
    size_t bytes, bytes_max;     /* held by nothing but the cache */
} prefix_stats;

/* The prompt cache on disk (docs/ssd-cache.md). Spills: items that left memory before they were written; demotions:
 * items written while nothing else was to do, or because of engine_cache_flush. */
typedef struct ssd_stats {
    bool on;
    uint64_t entries, bytes, bytes_all, bytes_max; /* of this model; of all below the directory */
    uint64_t restores, restores_cut; /* prompts brought back; of which something was missing or found no room */
    uint64_t restored_bytes, restore_ns_last;
    uint64_t spills, demotions, written_bytes;
    uint64_t pending_spills, pending_spill_bytes; /* in the queue */
    uint64_t dropped_spills, failed_spills;       /* no room in queue, cap or on the disk; writes that failed */
    uint64_t evicted, damaged, verify_left;
} ssd_stats;

/* Counters for /metrics and /stats; a snapshot. */
typedef struct engine_stats {
    uint64_t requests_total, requests_cancelled, requests_failed, requests_rejected;
    uint64_t preempted_total; /* times a sequence gave its pages back and was computed again later */
    uint64_t prompt_tokens_total, generated_tokens_total, cached_tokens_total;
    uint64_t steps_total, rows_total;
    uint64_t prefill_ns_total, decode_ns_total, step_ns_total;
    int32_t running, waiting;
    size_t weight_bytes, kv_bytes_used, kv_bytes_max, workspace_bytes;
    uint64_t kv_saturated; /* values that did not fit the cache's type: kept at its edge */
    uint64_t
        last_step_ns; /* clock_ns() of the last finished step; now, when there is nothing to do: the watchdog's food */
    bool failed;      /* the engine cannot serve any more */
    prefix_stats prefix;
    ssd_stats ssd;
} engine_stats;
void engine_stats_get(const engine *e, engine_stats *out);

/* Writes what the prompt cache holds to the SSD cache and returns when it is there for good, while requests go on;
 * waits at most timeout_ms (-1: as long as it takes). *n_saved (may be NULL): items written for it. From any thread.
 * ERR_UNSUPPORTED: there is no SSD cache; ERR_IO: the disk did not take all of it; ERR_UNAVAILABLE: not in time, or the
 * engine has failed. */
bool engine_cache_flush(engine *e, int timeout_ms, uint64_t *n_saved, error *err);

/* Logits of every prompt position and of n_greedy greedy steps, for `hearth logits` and tests: runs on the engine's
 * thread through the same steps as any request. logits [n_ids,V]; greedy_ids [n]; greedy_logits [n,V] (row i is what
 * greedy_ids[i] was picked from). */
bool engine_logits(engine *e, const int32_t *id, size_t n_ids, int n_greedy, float *logits, int32_t *greedy_ids,
                   float *greedy_logits, error *err);
