/* server/internal.h: one request's way through the server, for the files of this folder.
 *
 * Threads: one of libmicrohttpd (accepts, reads, writes, pumps events of streams), a few workers (parse, render,
 * tokenise, submit), one watcher (hang-ups, deadlines, keep-alive), and the engine's, which only ever calls http_wake.
 * A request belongs to the MHD thread except between http_work and the worker's http_wake, when it is the worker's.
 * Order of reading: routes.def, route.c, chat_request.c, generate.c, openai_chat.c. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <microhttpd.h>
#include "server.h"
#include "../base/json.h"

typedef struct http_req http_req;
typedef struct conn conn;
typedef struct gen_run gen_run;
typedef struct trace trace;
typedef struct exchange exchange; /* front.h */

/* ---- routes (route.c, routes.def) -------------------------------------------------------------------------------- */
enum {
    ROUTE_OPEN = 1,   /* no API key asked */
    ROUTE_WORK = 2,   /* runs on a worker with the whole body; otherwise on the MHD thread, at once */
    ROUTE_MODEL = 4,  /* needs a loaded model: 503 before */
    ROUTE_HIDDEN = 8, /* not listed by GET /v1 */
    ROUTE_FRONT = 16, /* with --isolate the parent answers it, at once */
    ROUTE_UNIX = 32,  /* on a unix socket only: 404 elsewhere */
};
typedef struct route {
    const char *method, *pattern; /* a pattern that ends in "/\*" matches any rest, at least one byte */
    void (*handler)(http_req *q); /* NULL: known, not built: 501 naming `feature` */
    unsigned flags;
    const char *feature;
} route;
/* The route of a request; NULL and *allow (a list of methods, in the arena) when only the method is wrong. */
const route *route_all(size_t *n);
const route *route_find(str method, str path, str *rest, arena *a, const char **allow);

/* ---- a request (request.c) --------------------------------------------------------------------------------------- */
typedef struct http_header {
    const char *name, *value; /* borrow (arena) */
} http_header;

enum { HEADERS_MAX = 12 };
enum { PHASE_RECEIVE, PHASE_WORK, PHASE_RUN, PHASE_REPLIED };
/* State of the connection as wakers see it. WORKING: a worker owns the request and will wake it; SUSPENDED: MHD waits
 * for MHD_resume_connection; ACTIVE: the MHD thread runs; NOTIFIED: it runs and must look again before it suspends. */
enum { WAKE_WORKING, WAKE_ACTIVE, WAKE_SUSPENDED, WAKE_NOTIFIED };

struct http_req {
    server *s;                 /* borrows */
    struct MHD_Connection *mc; /* borrows (MHD) */
    conn *cn;                  /* borrows (watch) */
    arena *a;                  /* owns; everything of the request's lifetime */
    const route *route;
    str method, path, rest; /* rest: what the route's * matched */
    str authority;          /* of a target in absolute form: it replaces Host */
    buf body;               /* owns */
    int64_t body_left;      /* bytes announced; -1: unknown */
    size_t head_n;          /* bytes of the headers */
    bool needs_host;        /* HTTP/1.1 */
    bool origin_ok;         /* Origin is present and allowed: CORS headers are sent */
    bool upgraded;          /* its connection is a tunnel's, and nobody watches it */
    bool drop_body, close_after;
    atomic_int phase; /* PHASE_* */
    atomic_int wake;
    atomic_bool gone; /* the client left */
    /* the reply */
    int status;
    const char *content_type;
    const void *static_body; /* borrows; used instead of out when set */
    size_t static_n;
    http_header header[HEADERS_MAX];
    int n_headers;
    buf out; /* owns; whole reply, or what a stream has not sent yet from out_at on */
    size_t out_at;
    gen_run *run;     /* owns; generations in progress */
    exchange *up;     /* owns; on its way through a child (--isolate) */
    size_t body_held; /* bytes that count in server.body_bytes */
    /* for the access log */
    char id[40];
    const char *fail; /* name of the error code */
    uint64_t t_start, t_body, t_ready, t_first;
    size_t bytes_in, bytes_out;
    atomic_ullong last_out_ns;
    atomic_bool ping;
};

http_req *http_new(server *s, struct MHD_Connection *mc, conn *cn, const char *method, const char *path);
void http_free(http_req *q);
const char *http_get_header(const http_req *q, const char *name); /* NULL when absent */
str http_host(const http_req *q); /* what the request was sent to; empty: it does not say */
void http_header_add(http_req *q, const char *name, const char *value); /* copies value */
/* Set the reply; the first one counts. Bodies are copied or moved. */
void reply_json(http_req *q, int status, buf *body); /* takes body's bytes */
void reply_error(http_req *q, const error *e);
void reply_status(http_req *q, int status);
void reply_static(http_req *q, const char *content_type, const void *p, size_t n);
/* {"error":{...}} in OpenAI's shape. */
void error_json(buf *out, const error *e);
/* {"type":"error", ...} in Anthropic's. */
void anthropic_error_json(buf *out, const error *e, const char *request_id);
bool http_is_anthropic(const http_req *q); /* errors have that shape here */
/* The whole answer to an error on a connection that closes then: for the times when MHD takes no reply. */
void reply_raw(int fd, const error *e);
/* From any thread: there is something to do. */
void http_wake(http_req *q);
/* Called by the MHD thread: false when something happened since, so look again; true: the connection sleeps now. */
bool http_suspend(http_req *q);
enum MHD_Result http_send(http_req *q); /* queues the reply */
void http_log(http_req *q, enum MHD_RequestTerminationCode how);
void http_headers(http_req *q, struct MHD_Response *r); /* those of every answer */
/* What was read of a body counts as long as the request lives. ERR_QUEUE_FULL: all of them together take too much. */
bool http_body_hold(http_req *q, size_t n, error *err);
void http_body_free(http_req *q); /* once nobody reads it: it counts in server.body_bytes */

/* ---- who may ask what (guard.c) ---------------------------------------------------------------------------------- */
/* Framing, Host, Origin and API key. False: the error is set. */
bool guard_framing(http_req *q, error *err);
bool guard_host(http_req *q, error *err);
bool guard_origin(http_req *q, error *err); /* also sets origin_ok */
bool guard_key(http_req *q, error *err);
str guard_key_given(const http_req *q); /* the key it came with, known or not; empty: none */

/* ---- request bodies (body.c, surface_fields.def) ----------------------------------------------------------------- */
/* Takes q->body: a JSON object within limits, in the request's arena. */
const json *body_read(http_req *q, error *err);
enum { FIELD_PASS, FIELD_READ, FIELD_ACCEPTED, FIELD_REFUSED };
typedef struct surface_field {
    unsigned surface;
    const char *name;
    int class;
    const char *to;      /* PASS: name in the core request; NULL: the same */
    const char *neutral; /* REFUSED: values that ask for nothing */
    const char *schema;  /* JSON */
} surface_field;
/* Walks the fields of a surface; after NULL: the first. */
const surface_field *surface_field_next(unsigned surface, const surface_field *after);
/* Puts what is passed on into `core` (may be NULL), collects unknown names, refuses what is not supported. */
bool body_sort(unsigned surface, const json *body, json_builder *core, buf *unknown, error *err);
/* An error about a core field names the field that the client sent. */
void body_error_rename(unsigned surface, error *err);
bool body_wrong_type(const char *name, const char *want, const json *v, error *err);
bool body_is_neutral(const char *neutral, const json *v);
/* Single fields; absent and null leave *out as it is. `names`: aliases, separated by blanks. */
bool body_string(const json *body, const char *names, str *out, error *err);
bool body_bool(const json *body, const char *names, bool *out, error *err);
bool body_int(const json *body, const char *name, int64_t lo, int64_t hi, int64_t *out, error *err);
/* An array of token ids, checked against the vocabulary; [v->n] in the arena. */
bool body_ids(http_req *q, const char *name, const json *v, int32_t **out, error *err);
void unknown_add(buf *list, str name);
void unknown_warn(http_req *q, const char *list); /* Warning header and log; nothing when it is empty or NULL */

/* ---- the core request, shared by all surfaces (chat_request.c, fields.def) --------------------------------------- */
enum {
    SURFACE_CHAT = 1,
    SURFACE_COMPLETIONS = 2,
    SURFACE_EMBEDDINGS = 4,
    SURFACE_MESSAGES = 8,
    SURFACE_RESPONSES = 16,
    SURFACE_TOKENIZE = 32,
    SURFACE_DETOKENIZE = 64,
};
enum { NODES_SPARE = 64 << 20 }; /* bytes of JSON nodes a request may have beside four times its body */
enum { STOPS_MAX = 256, STOP_BYTES_MAX = 1024, CHOICES_MAX = 16, BIAS_MAX = 4096, MLX_LOGPROBS_MAX = 11 };
#define INT_UNSET INT64_MIN
enum { TOOL_AUTO, TOOL_NONE, TOOL_REQUIRED, TOOL_NAMED };
/* Numbers are NAN or INT_UNSET when absent. Everything borrows from the request's arena. */
typedef struct chat_request {
    unsigned surface;
    const json *messages;  /* normalised */
    const json *variables; /* for the template */
    str prompt;            /* SURFACE_COMPLETIONS */
    bool mlx_logprobs;     /* in mlx-lm's shape */
    bool stream, include_usage, logprobs, ignore_eos, keep_special;
    int64_t max_tokens, max_completion_tokens, top_k, seed, n, top_logprobs;
    int64_t repetition_window, presence_window, frequency_window;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    str *stops;
    size_t n_stops;
    int32_t *bias_ids;
    float *bias;
    size_t n_bias;
    const json *tools; /* tools_normalise's; NULL: none, or none may be called */
    int tool_choice;   /* TOOL_*; REQUIRED and NAMED only with tools */
    str tool_name;     /* TOOL_NAMED */
    bool one_call;     /* parallel_tool_calls is false */
    const json *template_kwargs;
    str reasoning_effort;
    int asked_thinking, preserve_thinking; /* 1, -1; 0: not said */
    int64_t thinking_budget;               /* most tokens; INT_UNSET or -1: no limit */
    int enable_thinking;                   /* resolved: 1, -1, 0 leave it to the template */
    const char *unknown;                   /* list of unknown fields; NULL: none */
    grammar_spec form;                     /* of the answer; form_rank 0: any */
    int form_rank;                         /* FORM_*: of several fields the one with the lowest rank counts */
} chat_request;
/* Reads q->body. Unknown fields end in r->unknown, unsupported ones are ERR_INVALID. */
bool chat_request_read(http_req *q, unsigned surface, chat_request *r, error *err);
/* The same from a body that another surface was translated into. */
bool chat_request_read_json(http_req *q, unsigned surface, const json *body, chat_request *r, error *err);
/* Messages in one form: known roles, content one string, tool call arguments objects; without the header lines of
 * agents unless keep_headers. The error names the part. What a template needs beyond is text/history.c's work. */
bool messages_normalise(arena *a, const json *messages, bool keep_headers, const json **out, error *err);
/* Tools in one form: {"type":"function","function":{"name","description","parameters"}}, schemas as the client wrote
 * them. Others (hosted ones) are left out and named in `ignored`. *out NULL: none is left (tools.c). */
bool tools_normalise(arena *a, const json *tools, const json **out, buf *ignored, error *err);
const json *tools_typed(arena *a, const json *tools); /* for templates: each node of the schemas has one type */
/* Sets enable_thinking and the template's variables (spec §3.3). */
void thinking_resolve(http_req *q, chat_request *r);

/* ---- structured output (structured.c) ---------------------------------------------------------------------------- */
enum {
    FORM_NONE,
    FORM_GRAMMAR,    /* guided_grammar, grammar */
    FORM_SCHEMA,     /* response_format with a schema */
    FORM_OBJECT,     /* response_format json_object */
    FORM_STRUCTURED, /* structured_outputs, guided_json, json_schema */
    FORM_REGEX,      /* guided_regex */
    FORM_CHOICE,     /* guided_choice */
    FORM_COUNT,
};
bool structured_read(arena *a, chat_request *r, const char *field, const json *v, error *err);
typedef struct structured structured; /* the vocabulary and compiled grammars of a server */
structured *structured_new(void);
void structured_free(structured *s);
/* What the request asks for, compiled: *answer (NULL: anything), and what may come before it (gen_opts). References are
 * the caller's. ERR_INVALID names the path. */
typedef struct structured_grammars {
    grammar *answer, *open, *lead;
} structured_grammars;
bool structured_compile(http_req *q, const chat_request *r, const think_form *think, const call_form *calls,
                        structured_grammars *out, error *err);
void structured_drop(structured_grammars *g);

/* ---- running it (generate.c) ------------------------------------------------------------------------------------- */
/* A tool call of a reply, growing while it streams. */
typedef struct call {
    char id[16];
    buf name, args; /* args: JSON text, valid once `whole` */
    bool ended, whole;
} call;

typedef struct choice {
    gen *g;       /* owns */
    gen_run *run; /* borrows */
    int index;
    buf content, reasoning;                        /* whole texts when not streaming */
    buf logprobs;                                  /* JSON items not sent yet, comma separated */
    buf lp_tokens, lp_values, lp_tops, lp_offsets; /* legacy completions */
    size_t text_n;                                 /* bytes of text so far, for text_offset */
    call *calls;                                   /* owns [calls_cap] */
    int n_calls, calls_cap;
    finish why;
    int32_t stop_index; /* with FINISH_STOP_STRING: which */
    bool done;
} choice;

typedef struct surface {
    void (*begin)(gen_run *r, buf *out);                                      /* opening frames of a stream */
    void (*delta)(gen_run *r, choice *c, str text, bool reasoning, buf *out); /* a piece of a stream */
    void (*token)(gen_run *r, choice *c, const gen_event *ev);                /* log-probabilities of one token */
    /* A call began (CALL: nothing but its id and name is there), grew by ev->text (ARGS) or ended, in a stream; NULL:
     * the surface has no tools. */
    void (*tool)(gen_run *r, choice *c, call *t, const gen_event *ev, buf *out);
    void (*choice_end)(gen_run *r, choice *c, buf *out);
    void (*end)(gen_run *r, buf *out);                   /* closing frames */
    void (*error)(gen_run *r, const error *e, buf *out); /* inside a stream */
    void (*reply)(gen_run *r, buf *out);                 /* not a stream */
    void (*done)(gen_run *r, choice *c);                 /* a generation has ended well; may be NULL */
    void (*ping)(gen_run *r, buf *out);                  /* keeps a silent stream alive; NULL: a comment */
} surface;

struct gen_run {
    http_req *q; /* borrows */
    const surface *surface;
    chat_request *req;    /* borrows (arena) */
    const tokenizer *tok; /* borrows (engine) */
    choice *choices;      /* [n] arena */
    int n, n_done;
    char id[48];
    int64_t created;
    const char *model;
    buf prefix; /* start of every frame */
    int32_t max_tokens;
    bool clamped, started, finished;
    int32_t progress_done, progress_total;
    gen_stats past; /* of generations that are freed already */
    void *state;    /* arena; the surface's own */
    trace *trace;   /* owns; NULL: not asked for */
    error err;
};
/* Renders or takes the prompt, admits, submits n generations. */
bool run_start(http_req *q, chat_request *r, const surface *f, const char *id_prefix, error *err);
/* The prompt that a request would start from, for those who only count or show it. */
bool run_prompt(http_req *q, chat_request *r, prompt *p, error *err);
/* Moves waiting events into q->out. True once the whole reply is there. */
bool run_pump(gen_run *r);
void run_cancel(gen_run *r); /* from any thread, with the request's lock held or owned */
void run_free(gen_run *r);
void run_stats_add(gen_stats *all, const gen *g);
gen_stats run_stats(const gen_run *r); /* of all choices: tokens of replies added up, times the longest */
bool choice_calls(const choice *c);    /* it ends with calls to be answered: there is one, and all are whole */
void run_usage(gen_run *r, buf *out);  /* the usage object */

/* ---- --trace (trace.c) ---- */
void trace_begin(gen_run *r, const prompt *p);
void trace_token(gen_run *r, const choice *c, int32_t id);
void trace_end(gen_run *r);        /* writes the file and frees */
const char *finish_name(finish f); /* "stop", "length" ... for logs */

/* ---- what OpenAI's surfaces share (openai.c) ---- */
const char *openai_finish(const choice *c); /* finish_reason */
void openai_logprob(buf *out, float logprob);
void openai_token_logprob(const gen_run *r, const gen_event *ev,
                          buf *out); /* with bytes; a comma before all but the first */
/* mlx-lm's block of a choice with its comma in front; nothing when there are no tokens. */
void mlx_token_logprob(const gen_run *r, const gen_event *ev, buf *out);
void mlx_logprobs(choice *c, buf *out);
void openai_head(const gen_run *r, const char *object, buf *out); /* {"id", "object", "created", "model" */
void openai_prefix(gen_run *r, const char *object);               /* r->prefix: a frame up to the choice's index */
void openai_last_frame(gen_run *r, buf *out);                     /* closes a choice's last frame, with usage */
void openai_stream_end(gen_run *r, const char *object, buf *out);
void openai_stream_error(gen_run *r, const error *e, buf *out);

/* ---- handlers ---------------------------------------------------------------------------------------------------- */
#define ROUTE(method, pattern, handler, flags) void handler(http_req *q);
#define ROUTE_LATER(method, pattern, feature)
#include "routes.def"
#undef ROUTE
#undef ROUTE_LATER

/* ---- connections (watch.c) --------------------------------------------------------------------------------------- */
enum { CONN_IDLE, CONN_HEADERS, CONN_BODY, CONN_WORK, CONN_REPLY };
struct conn {
    int fd;
    uint32_t serial;
    int phase;
    uint64_t deadline_ns;        /* 0: none */
    atomic_ullong stalled_since; /* the client takes nothing from its stream; 0: it does */
    bool nul_in_url, space_in_url, refused;
    size_t target_n; /* bytes of the request target */
    char *target;    /* owns; the request target as it was sent, kept by the parent of --isolate */
    http_req *q;     /* borrows; the request in progress */
    conn *next, *prev;
};
typedef struct watch watch;
watch *watch_new(server *s, error *err);
void watch_free(watch *w);
conn *watch_open(watch *w, int fd);
void watch_close(watch *w, conn *c);
void watch_phase(watch *w, conn *c, int phase, http_req *q);     /* CONN_WORK arms the hang-up watch */
void watch_body(watch *w, conn *c, size_t got);                  /* moves the deadline of a body */
void watch_refused(watch *w, conn *c);                           /* answered past MHD: little time is left */
void watch_publish(watch *w, http_req *q, gen_run *run);         /* from here on a hang-up cancels run */
void watch_gen(watch *w, http_req *q, choice *c, gen *g);        /* c->g becomes g, on a request that is published */
void watch_publish_exchange(watch *w, http_req *q, exchange *x); /* from here on a hang-up cuts x */
void watch_cancel_all(watch *w);
int watch_requests(watch *w); /* requests in progress */

/* ---- the server (server.c) --------------------------------------------------------------------------------------- */
typedef struct server_counts {
    atomic_ullong requests, errors_4xx, errors_5xx, rejected, hangups, streams, bytes_out;
    atomic_int connections, active;
} server_counts;
/* Seconds, counted in buckets (metrics.c). */
enum { METRIC_BUCKETS = 17 };
typedef struct histogram {
    atomic_ullong n[METRIC_BUCKETS], sum_us;
} histogram;
typedef struct server_times {
    histogram queue, prefill, first_token, token, request;
} server_times;
#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"
void metrics_observe(http_req *q);                  /* at the end of a request */
const char *prefix_why_name(size_t i);              /* of prefix_stats.short_by */
void metrics_write(server *s, engine *e, buf *out); /* without an engine: what the HTTP side counts */

struct server {
    server_opts o;
    struct response_store *responses; /* owns; NULL: nothing is stored */
    struct MHD_Daemon *daemon;
    int listen_fd, port;
    char *unix_path; /* owns */
    _Atomic(engine *) e;
    _Atomic(const char *) failed; /* why there will be no engine */
    struct front *front;          /* owns; the parent of --isolate has this and no engine */
    atomic_bool draining;         /* new requests are refused */
    atomic_bool held;             /* those that need the model are, for now: /admin/drain */
    atomic_size_t body_bytes;     /* of all bodies in memory */
    watch *watch;
    structured *structured; /* owns */
    server_counts n;
    server_times times;
    int64_t started_unix;
    pthread_t worker[2];
    pthread_mutex_t work_lock;
    pthread_cond_t work_ready;
    http_req **work; /* ring [work_cap]; owns the array */
    size_t work_head, work_n, work_cap;
    bool stopping;
};
bool server_healthy(server *s, error *err); /* ERR_UNAVAILABLE says why not */
