/* engine/internal: what the files of this folder share.
 *
 * open.c: a path becomes a running engine. engine.c: starting, closing, submitting, counters. scheduler.c: the thread
 * (admission, steps, emission). gen.c: one generation as its caller sees it. sequence.c: page tables, pages, state
 * slots. plan.c: how much memory goes where. prefix*.c: what earlier requests left. sampler.c: logits to a token.
 * identity.c: fingerprints, and what embeds. api.c: include/hearth.h.
 *
 * Threads: fields marked [mu] belong to the lock of their struct, [sched] to the scheduler thread, the rest is fixed
 * after creation. Lock order: gen.mu, then engine.mu. gen.wake_mu is taken alone. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include "engine.h"
#include "prefix.h"
#include "tier.h"

/* ---- pages and sequences (sequence.c) ---------------------------------------------------------------------------- */
/* The pages of one group: who is free, how many hold each. The prefix cache's tree holds a page at most once; one that
 * it alone holds is idle. */
typedef struct kv_pool {
    int32_t n_pages, n_free, n_idle;
    int32_t n_cold; /* of the free ones, from the bottom of the stack: they have no memory (never touched, discarded) */
    int32_t *free; /* owns: a stack [n_pages]; the page freed last is taken first, so that touched memory stays small */
    uint32_t *refs; /* owns: [n_pages] */
    bool *held;     /* owns: [n_pages] one of the references is the tree's */
    size_t page_bytes;
    int32_t window; /* 0: full attention */
} kv_pool;

typedef struct kv_store {
    kv_pool pool[KV_GROUPS];
    int32_t n_groups;
    int32_t *slot; /* owns: stack of free recurrent state slots [n_slots]; NULL when the model has none */
    int32_t n_slots, n_slots_free, n_slots_cold; /* cold: as of pages */
    int32_t n_slots_kept;                        /* of checkpoints of the prompt cache, waiting ones too */
    size_t state_bytes;                          /* of one */
    /* Pools and slots are address space, larger than the memory they share: pages that are not free and slots that are
     * kept take no more than bytes_max, what has been touched and not given back no more than touched_max. SIZE_MAX:
     * the pools are as large as their memory. */
    size_t bytes_max, touched_max;
    /* Where the bytes are; borrows (engine). */
    device *d;
    kv_cache *kv;
    state_store *state;
} kv_store;

void kv_store_init(kv_store *st, const kv_spec *spec, const size_t *page_bytes, int32_t n_slots);
void kv_store_deinit(kv_store *st);
size_t kv_store_bytes_used(const kv_store *st); /* by sequences; idle pages are not */
/* Is there memory for so many pages of each group more? */
bool kv_store_fits(const kv_store *st, const int32_t *need);
size_t kv_store_bytes_held(const kv_store *st); /* what bytes_max bounds */
size_t kv_store_bytes_touched(const kv_store *st);
/* -1: none free. One reference, the caller's, who has asked kv_store_fits before. */
int32_t kv_page_take(kv_store *st, int g);
void kv_page_share(kv_pool *p, int32_t page);
void kv_page_drop(kv_pool *p, int32_t page);
void kv_page_hold(kv_pool *p, int32_t page); /* one more reference, the tree's */
void kv_page_let(kv_pool *p, int32_t page);  /* the tree's reference goes */

int32_t state_slot_take(kv_store *st); /* -1: none free */
void state_slot_drop(kv_store *st, int32_t slot);

/* A place where a sequence can be taken up again: so many tokens, and the recurrent state behind them. */
typedef struct seq_mark {
    int32_t n;
    int32_t slot; /* -1: the model has no recurrent state */
    bool planned; /* it stands where requests are likely to part */
} seq_mark;
enum { SEQ_MARKS = 8 };

/* Everything the model remembers of one conversation: its tokens, how many of them are in the cache, and where.
 * Shared, taken up, cut, counted and given back together. Pages before n_computed / KV_PAGE may be shared and are never
 * written again; the page that the next token goes to is the sequence's own. */
typedef struct sequence {
    ids id;                    /* prompt, then what was generated; reserved up front: pushing never allocates */
    int32_t n_computed;        /* tokens whose keys, values and state are in the cache */
    int32_t *page[KV_GROUPS];  /* owns: page tables for `cap` positions; -1: released */
    int32_t n_page[KV_GROUPS]; /* entries in use */
    int32_t n_past[KV_GROUPS]; /* leading entries released because the window has left them */
    int32_t slot;              /* recurrent state; -1: none */
    int32_t cap;               /* positions */
    /* Its way through the prefix cache (prefix.c): the block that n_blocks whole blocks end in, -1: none; checkpoints
     * that wait for their block to be whole. */
    int32_t node, n_blocks;
    seq_mark mark[SEQ_MARKS];
    int32_t n_marks;
} sequence;

void sequence_init(sequence *s, const kv_store *st, int32_t cap);
void sequence_deinit(sequence *s, kv_store *st); /* gives everything back; st NULL: it was reset before */
/* Pages each group still lacks so that positions below `upto` can be computed. */
void sequence_missing(const sequence *s, const kv_store *st, int32_t upto, int32_t *need);
/* Takes them, and the state slot. False, with nothing taken, when there are not enough. */
bool sequence_extend(sequence *s, kv_store *st, int32_t upto);
void sequence_release(sequence *s, kv_store *st); /* pages wholly out of a window */
void sequence_reset(sequence *s, kv_store *st);   /* gives the cache back, keeps the tokens. It has left the tree */
/* The first position whose page a query at n still sees, a multiple of KV_PAGE. */
int32_t window_start(int32_t window, int32_t n);
/* `to`, which holds nothing but tokens, shares all that `from` has computed and goes its own way from there: the pages
 * are shared, the one in use and the state are copied. False, with nothing taken, when there is no page or slot. */
bool sequence_fork(sequence *to, const sequence *from, kv_store *st);
/* A copy of the recurrent state at n_computed, to come back to. False: no slot is free. */
bool sequence_mark(const sequence *s, kv_store *st, seq_mark *m);
void sequence_unmark(seq_mark *m, kv_store *st);
/* Takes back what was computed behind the mark, which must not be older than the blocks in the prefix cache or the
 * pages that windows have released: false, with nothing changed, if it is. Without state any earlier n is a mark (n,
 * -1). The mark stays. */
bool sequence_back(sequence *s, kv_store *st, const seq_mark *m);
size_t sequence_bytes(const sequence *s, const kv_store *st); /* pages, shared ones too, and state */

/* ---- memory plan (plan.c) ---------------------------------------------------------------------------------------- */
typedef struct plan_in {
    size_t budget, weights, workspace, state; /* state: recurrent bytes of one sequence */
    size_t scratch;                           /* logits and sampler */
    size_t tier, text, requests, process;     /* as in plan.def */
    size_t reply, reply_position;             /* bytes of a generation: fixed, and a position; */
    size_t reply_groups;                      /* its page tables, 4 bytes a page each */
    int32_t queue;                            /* generations that may wait */
    /* The device's temporaries for sequences of so many positions; NULL: none. */
    size_t (*work)(const struct plan_in *in, int32_t context);
    device *work_of;         /* borrows */
    const kv_spec *work_for; /* borrows */
    size_t cache;            /* prompt cache; 0: none, PLAN_CACHE_DEFAULT: what is sensible */
    size_t block_bytes;      /* of the cache's tree, a block of KV_PAGE tokens */
    bool counted;            /* mapped memory counts before it is touched (limit_counts_mapped) */
    int32_t batch, chunk;
    int32_t context;     /* asked for; 0: the model's */
    int32_t context_max; /* the model's */
    int32_t n_groups;
    int32_t window[KV_GROUPS];
    size_t page_bytes[KV_GROUPS];
} plan_in;
/* min(8 GiB, half of what is left after weights and one full context) */
#define PLAN_CACHE_DEFAULT SIZE_MAX
typedef struct plan {
    int32_t context;            /* most positions of one sequence */
    int32_t n_pages[KV_GROUPS]; /* for sequences */
    /* The prompt cache, in the same pools: what each kind may keep when all of them want more, */
    int32_t cache_pages[KV_GROUPS];
    int32_t cache_slots;                /* recurrent states of its checkpoints */
    int32_t cache_pages_max[KV_GROUPS]; /* and what each may have when the others leave room */
    int32_t cache_slots_max;
    int32_t cache_blocks; /* of its tree; 0: no cache */
    size_t cache_room;    /* pages and slots together, of what the shares add up to: less for the ends of pools */
    size_t fixed_bytes;   /* all but the two below */
    size_t kv_bytes;      /* n_pages */
    size_t cache_bytes;   /* cache_room and tree */
    size_t reply_bytes;   /* most that generations may hold, running and waiting */
} plan;
/* Pages a sequence of n positions holds at most in a group, while chunk rows are computed at a time. */
int32_t plan_pages(int32_t window, int32_t chunk, int32_t n);
/* ERR_MEMORY with the numbers when the model cannot serve within the budget; ERR_INVALID for a context beyond the
 * model's. */
bool plan_make(plan *p, const plan_in *in, error *err);
/* The parts of a plan that was made; of one that was refused (NULL): what `context` positions would need. */
void plan_parts(const plan_in *in, const plan *p, int32_t context, memory_plan *out);
/* What a model needs under these options (batch, chunk and queue set), of its headers or loaded; text: bytes of
 * tokenizer and template. *spec is the cache's, page counts not set; `in` borrows it and d. */
void plan_inputs(plan_in *in, const engine_opts *o, device *d, const model *m, size_t text, kv_spec *spec);
/* Three quarters of the memory this process may use (base/limit.h). */
size_t plan_default_budget(void);
enum { LOGIT_ROWS = 32 /* rows of logits a step may have for engine_logits beside one of every stream */ };

/* ---- the prefix cache as the scheduler uses it (prefix.c, prefix_evict.c) ---------------------------------------- */
/* What a prompt can take. Good until the cache changes. */
typedef struct prefix_match {
    int32_t n;                                  /* tokens; computing goes on there */
    int32_t common;                             /* tokens that are the same as some earlier request's */
    int32_t node, mark;                         /* the block of token n-1; the checkpoint; -1: none */
    int32_t shared[KV_GROUPS], idle[KV_GROUPS]; /* whole pages taken; those of them that nobody else uses now */
    prefix_why why;
} prefix_match;

size_t prefix_block_bytes(void); /* for plan_in.block_bytes */
prefix *prefix_new(kv_store *st, const plan *pl, error *err);
void prefix_free(prefix *p); /* p may be NULL: no cache; also below, where not said otherwise */
/* At least one token is left to compute. NULL p: nothing is found. */
void prefix_find(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, prefix_match *m);
/* s holds nothing but tokens; it shares what was found and is a guest of the cache until prefix_leave. */
void prefix_take(prefix *p, const prefix_key *space, const prefix_match *m, sequence *s);
void prefix_count(prefix *p, const prefix_match *m); /* one more request, for the counters */
void prefix_grow(prefix *p, sequence *s); /* its blocks that have become whole join; call before sequence_release */
/* A checkpoint at n_computed: kept as soon as its block is. */
void prefix_mark_here(prefix *p, sequence *s, int32_t at, bool planned);
/* What is computed joins the cache, with a checkpoint at its end; then sequence_reset may follow. */
void prefix_keep(prefix *p, sequence *s);
void prefix_leave(prefix *p, sequence *s); /* the same without joining more */
/* Evicts until each group has so many free pages; false: it cannot have them. */
bool prefix_room(prefix *p, const int32_t *need);
void prefix_trim(prefix *p);                     /* to its size */
bool prefix_marks(const prefix *p, bool *exact); /* are checkpoints of use; must steps end at them? */
void prefix_stats_get(const prefix *p, prefix_stats *out);

/* ---- sampler (sampler.c) ----------------------------------------------------------------------------------------- */
enum { ROW_BLOCK = 1024 /* floats that are summed in f32 before they are added in f64 */ };
/* Passes over a row x [n] (sampler_row_body.h). */
typedef struct row_ops {
    bool (*max)(const float *x, int32_t n, float *max); /* false: a NaN or +inf is there, or nothing finite */
    int32_t (*next)(const float *x, int32_t from, int32_t n,
                    float least); /* the first from there on that is >= least; n: none */
    double (*exp)(const float *x, int32_t n, float max, float inv_t,
                  float *w); /* w = exp((x - max) inv_t), may be NULL; the sum */
    int32_t (*gather)(const float *x, int32_t n, float least, float *value,
                      int32_t *id);  /* those >= least, in order; how many */
    double (*block)(const float *w); /* sum of w [ROW_BLOCK] as exp adds it */
} row_ops;
extern const row_ops row_ops_any, row_ops_avx2;

/* Working memory of one worker for one row of logits; sized at open. */
typedef struct sampler_scratch {
    const row_ops *row; /* for this processor */
    int32_t vocab;
    float *weight;     /* [V] */
    float *value;      /* [V] logits of the candidates */
    int32_t *id;       /* [V] their tokens, ascending */
    struct pick *pick; /* [V] the same, being partitioned */
    uint32_t *count;   /* [V] zero between uses */
    void *block;       /* owns all of the above */
    size_t bytes;
} sampler_scratch;
size_t sampler_scratch_bytes(int32_t vocab);
bool sampler_scratch_init(sampler_scratch *w, int32_t vocab, error *err);
void sampler_scratch_deinit(sampler_scratch *w);

typedef struct sampler_in {
    float *logits; /* [V], changed: bias and penalties are applied in place */
    const sampling *s;
    const int32_t *history; /* [n_history] prompt and generated tokens */
    size_t n_history;
    uint64_t seed;        /* of the request */
    uint64_t step;        /* tokens generated before this one */
    const uint64_t *mask; /* bit i: token i may be picked; NULL: any. Log-probabilities are those before it */
    bool logprobs;
    int32_t n_top;
    bool has_forced; /* the token is `forced`, whatever the logits say */
    int32_t forced;
} sampler_in;
typedef struct sampler_out {
    int32_t token;
    float logprob;                    /* when asked for */
    token_prob top[TOP_LOGPROBS_MAX]; /* [n_top], best first */
    int32_t n_top;
} sampler_out;
/* ERR_INVALID names the field. */
bool sampling_check(const sampling *s, int32_t vocab, error *err);
/* False when the logits hold a NaN or no finite maximum. The choice depends on nothing but *in. */
bool sampler_pick(const sampler_in *in, sampler_scratch *w, sampler_out *out);

/* ---- grammars (constrain.c) -------------------------------------------------------------------------------------- */
typedef struct constraint constraint;
constraint *constraint_new(const gen_opts *o, const output *out, int32_t vocab); /* NULL: the request has no grammar */
void constraint_free(constraint *c);                                             /* may be NULL */
/* *mask: for the next token, until the next call; NULL: any token. False: the grammar cannot be followed any further.
 */
bool constraint_mask(constraint *c, const int32_t *eos, size_t n_eos, const uint64_t **mask);
typedef enum constraint_verdict { CONSTRAINT_GOES_ON, CONSTRAINT_DONE, CONSTRAINT_FAILED } constraint_verdict;
/* After `out` was given the token. DONE: the answer is complete and nothing can follow. */
constraint_verdict constraint_accept(constraint *c, int32_t id, const output *out);

/* ---- generations (gen.c) ----------------------------------------------------------------------------------------- */
/* Where engine_logits wants its rows; the arrays are the waiting caller's. */
typedef struct logits_sink {
    float *prompt;      /* [n_prompt, V] or NULL */
    float *greedy;      /* [n, V] or NULL */
    int32_t *greedy_id; /* [n] or NULL */
} logits_sink;

typedef struct queued_event {
    gen_event_kind kind;
    bool whole;
    int32_t token, n_top, done, total, call;
    float logprob;
    size_t text_at, text_n; /* in the box's text */
    size_t top_at;          /* in the box's tops */
} queued_event;

/* Events between the two threads: the engine fills one box while the caller reads the other; they change places when
 * the caller's is read to the end. No event is copied, and a caller that does not read stops the engine's box from
 * growing. */
enum { BOX_EVENTS = 64, BOX_SPARE = 12 /* room that one token, the flush and DONE need */, BOX_TEXT = 8192 };
typedef struct event_box {
    queued_event *ev; /* owns: [cap]; more than BOX_EVENTS only when held text turns out to be many tool calls */
    int32_t n, cap;
    buf text;
    token_prob *top; /* owns: [BOX_EVENTS * n_top] or NULL */
    size_t n_top;
} event_box;

struct gen {
    engine *e; /* [mu] NULL once the engine has let go */
    atomic_int refs;
    atomic_bool cancel;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    event_box box[2];
    int filling;        /* [mu] the box the engine fills */
    int32_t read;       /* reader only: next event of the other box */
    bool ended;         /* reader only: DONE was taken */
    bool paused;        /* [mu] the engine waits for room */
    bool news;          /* [sched] events were queued in this step */
    finish why;         /* [mu] set with DONE */
    int32_t stop_index; /* [mu] */
    error err;          /* [mu] */
    gen_stats stats;    /* [mu] */

    pthread_mutex_t wake_mu;
    void (*wake)(void *arg); /* [wake_mu] NULL after gen_free */
    void *wake_arg;

    sampling sample; /* owns bias_ids and bias */
    uint64_t seed;
    int32_t n_prompt, max_tokens;
    bool ignore_eos, want_tokens, logprobs;
    int32_t n_top;
    output *out;            /* owns; [sched] after submit */
    constraint *constraint; /* owns; [sched] after submit; NULL: none */
    logits_sink sink;
    float *hidden; /* owns: [D] [sched] until DONE; NULL: not wanted */

    sequence seq;     /* [sched] */
    prefix_key space; /* of gen_opts.space */
    int32_t *marks;   /* owns: where to keep checkpoints, ascending */
    int32_t n_marks;
    int32_t mark_next;       /* [sched] the first of them that is not computed yet */
    prefix_match match;      /* [sched] what the cache has for it; good within one turn of admission */
    bool counted;            /* [sched] the match is in the counters */
    struct restore *restore; /* owns: what is being read from the SSD cache for it [sched] */
    bool tier_asked;         /* [sched] the SSD cache was asked once */
    uint64_t leader;     /* [sched] 1 + number of the running request whose prompt this one waits to share; 0: none */
    int32_t leader_to;   /* [sched] the token that one must have passed */
    int32_t n_generated; /* [sched] */
    int32_t unplaced;    /* [sched] tokens since the last text: which kind they belong to is not known yet */
    uint64_t number;     /* order of arrival */
    uint64_t t_submit, t_start, t_first; /* [sched] clock_ns of submitting, first admission, first token */
    uint64_t t_paused;                   /* [sched] since when its box has been full; 0: it is not */
    size_t bytes;                        /* counted in the engine's reply_bytes until it lets go */
    gen *next;                           /* in a queue; belongs to the queue's owner */
};

enum { MARK_NEAR = 32 /* tokens: a checkpoint so close behind another is not worth a step of its own */ };
gen *gen_new(engine *e, const gen_opts *o,
             error *err); /* checked by the caller; two references: caller's and engine's. ERR_MEMORY */
size_t gen_bytes(int32_t n_top, int32_t n_groups, int64_t cap); /* what one of `cap` positions holds */
void gen_drop(gen *g);                                          /* one reference less */
bool gen_has_room(gen *g);                                      /* for one more token; false marks it paused */
void gen_token(gen *g, const sampler_out *s, bool show_text, int *stopped);
void gen_progress(gen *g, int32_t done, int32_t total);
void gen_finish(gen *g, finish why, int32_t stop_index,
                const error *err); /* queues DONE, lets go, drops the engine's reference */
void gen_wake(gen *g);
bool gen_peek(const gen *g,
              gen_event_kind *kind); /* reader's side: the next event, if it came together with the last */

/* ---- the engine (engine.c, scheduler.c) -------------------------------------------------------------------------- */
/* What engine_open puts together; owned by the engine afterwards. Tests bring their own. */
typedef struct engine_parts {
    checkpoint *checkpoint;
    device *device;
    model *model;
    tokenizer *tokenizer;
    chat_template *template; /* NULL: the model has none */
    size_t text_bytes;       /* of checkpoint's metadata, tokenizer and template */
    gen_defaults defaults;
    embedding_info embedding; /* width 0: it is for replies */
    uint64_t weights_id;      /* of the checkpoint (identity.c) */
} engine_parts;

/* One sequence's part of a step. */
typedef struct step_part {
    gen *g;
    int32_t n_rows;
    int32_t out0, n_out; /* its rows of logits */
    bool sampled;        /* the last of them picks a token */
    bool finite, no_way; /* no_way: its grammar cannot be followed */
    sampler_out pick;
} step_part;

struct engine {
    engine_parts parts;
    char *id; /* owns */
    const model_info *info;
    int32_t batch, queue_max, chunk, rows_max, out_max, n_workers;
    bool kv_late; /* engine_opts */
    plan plan;
    memory_plan memory; /* the same for others to see */
    kv_cache *kv;
    state_store *state; /* recurrent state of `batch` sequences; NULL: the model has none */
    void *logits;       /* device memory [out_max, V] */
    void *hidden;       /* device memory [out_max, D]; NULL: the model does not embed */
    size_t logits_bytes, hidden_bytes;
    char fingerprint[112];
    sampler_scratch *scratch; /* owns: [n_workers] */

    pthread_t thread;
    bool started;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    uint64_t poke;           /* [mu] counts reasons to look again */
    gen *queue, **queue_end; /* [mu] waiting, oldest first */
    int32_t n_queue;         /* [mu] */
    size_t reply_bytes;      /* [mu] held by generations */
    int32_t n_aside;         /* [mu] in parked and restoring */
    uint64_t n_submitted;    /* [mu] */
    bool closing, idle;      /* [mu] */
    engine_stats stats;      /* [mu] */
    atomic_uint cancels;     /* changes when a cancel was asked for */

    prefix *prefix; /* owns; NULL: no prompt cache */
    tier *tier;     /* owns; NULL: no SSD cache */
    pthread_cond_t flushed;
    uint64_t flush_asked, flush_done; /* [mu] engine_cache_flush: turns of asking; that were granted */

    kv_store store; /* [sched] and everything below */
    unsigned cancels_seen;
    gen **running; /* owns: [batch], in order of arrival */
    int32_t n_running;
    gen *parked;                         /* preempted or restored, in order of arrival; they hold no pages */
    gen *restoring;                      /* their prompts are being read from the SSD cache, in order of arrival */
    double row_ns;                       /* what a row of a prompt costs, moving average */
    int32_t *row_id, *row_pos, *row_out; /* owns: [rows_max], [rows_max], [out_max] */
    step_seq *seqs;                      /* owns: [batch] */
    step_part *part;                     /* owns: [batch] */
    step step;
};

/* ---- what a checkpoint is (identity.c) ---- */
/* width 0 when it is not meant for embeddings; a kind of pooling that is not built is logged. */
embedding_info embedding_read(checkpoint *c, const model_info *m, const tokenizer *t);
/* Of tensors (names, shapes, samples of their bytes), configuration, tokenizer and template. */
uint64_t weights_identify(checkpoint *c);
/* Of all that decides the bytes of keys, values and state besides the tokens: for caches that outlive the process.
 * Reads every byte of the weights. */
void cache_fingerprint(const engine *e, const engine_opts *o, const kv_spec *kv, uint8_t out[32]);
void fingerprint_write(char *out, size_t n, const engine *e, const engine_opts *o);

void engine_parts_close(engine_parts *p);
/* Everything of a model but its weights, for the plan: `headers` is a model without weights. Sets o's defaults. */
bool engine_headers(engine_opts *o, engine_parts *p, model **headers, bool need_text, error *err);
/* Fills a report from a plan's inputs. */
void fit_fill(fit_report *out, const plan_in *in, const char *name, const model_info *m, int threads);
/* The rest of opening: plan, cache, thread. Takes the parts, also when it fails. Of the options batch, queue_max and
 * prefill_chunk are set here (no defaults). */
engine *engine_start(engine_parts *parts, const engine_opts *o, error *err);
bool engine_enqueue(engine *e, gen *g, error *err);
void engine_poke(engine *e);              /* there may be something to do */
void engine_cond_init(pthread_cond_t *c); /* whose deadlines are clock_in_ms */
void *scheduler_main(void *engine);
bool scheduler_step(engine *e); /* one turn; false when there was nothing to do */
