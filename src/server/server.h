/* server: HTTP over the engine. A listener may be up before its model is: /health then answers 503 and requests for the
 * model are refused with 503 until server_set_engine. Not here: which model to load, flags and their files (cli/).
 * Next: internal.h, then server.c. */
#pragma once
#include <math.h>
#include "../base/base.h"
#include "../engine/engine.h"

typedef struct server server;

/* Start from SERVER_OPTS_INIT. Lists are borrowed until server_stop. */
typedef struct server_opts {
    const char *host;            /* NULL: 127.0.0.1 */
    int port;                    /* 0: any free one */
    const char *unix_path;       /* a unix socket instead of host and port; a stale one is replaced */
    const char *const *api_keys; /* [n_api_keys]; none: no key is asked for */
    const char *const
        *allowed_hosts; /* [n_allowed_hosts] Host names served besides loopback and the bind host; "*": any */
    const char *const *allowed_origins; /* [n_allowed_origins] browser origins; none: loopback origins; "*": any */
    size_t n_api_keys, n_allowed_hosts, n_allowed_origins;
    size_t body_max;       /* bytes; 0: 64 MiB */
    int connections_max;   /* 0: 2048 */
    int header_timeout_ms; /* from the request line to the end of the headers; 0: 15 s */
    int body_timeout_ms;   /* whole body, plus one second for each 64 KiB that came; 0: 30 s */
    int idle_timeout_ms;   /* between requests of a connection; 0: 75 s */
    int keepalive_ms;      /* a silent stream gets a comment; 0: 10 s */
    int stall_ms;          /* a client that takes nothing from its stream for this long is dropped; 0: 20 s */
    int watchdog_ms;       /* an engine that works and finishes no step for this long is reported as stuck; 0: 120 s */
    /* What the server's flags say, between the request and generation_config.json: NAN, or -1 for top_k, is unset. */
    float temperature, top_p, min_p;
    int32_t top_k;
    int64_t max_tokens;         /* 0: 65536 for chat, 512 for raw completions, cut to what fits */
    int thinking;               /* 0 unset, 1 on, -1 off */
    bool keep_header_lines;     /* "x-anthropic-...:" lines in front of a system message reach the prompt */
    size_t bodies_max;          /* bytes of all request bodies and what was read of them, and of each rendering;
                                   0: 512 MiB */
    bool behind_front;          /* started by the parent of --isolate: request ids are its */
    const char *trace_dir;      /* every prompt and reply goes to a file here; NULL: none does */
    const char *response_store; /* file of /v1/responses' memory; "memory": lost at the end; NULL: nothing is stored */
    int64_t response_ttl_s;     /* 0: an hour */
    size_t response_bytes;      /* of all stored responses; 0: 32 MiB */
    /* Appends the objects of models that could be served but are not, each with a comma in front, for GET /v1/models;
     * from several threads. May be NULL. */
    void (*other_models)(const char *served, buf *out);
} server_opts;
#define SERVER_OPTS_INIT \
    { .temperature = NAN, .top_p = NAN, .min_p = NAN, .top_k = -1 }

/* Listens and serves from threads of its own. e may be NULL (see server_set_engine). ERR_IO (address in use ...),
 * ERR_INVALID. */
server *server_start(engine *e, const server_opts *o, error *err);
/* Hands over the model once it is loaded; the engine must outlive the server. */
void server_set_engine(server *s, engine *e);
/* The model cannot be loaded: /health stays 503 and says why. */
void server_set_failed(server *s, const char *why);

/* ---- isolation: the parent of --isolate has no engine and passes requests on to children ---- */
typedef struct pool_model {
    const char *id, *path;
    uint64_t bytes; /* memory it needs to serve at all, as far as its files say */
} pool_model;
/* All borrowed until server_stop. */
typedef struct pool_opts {
    const char *program;     /* of a child */
    const char *const *argv; /* [n_argv] its arguments; --unix, --model and --model-id are added */
    size_t n_argv;
    const pool_model *models; /* [n_models]; the first is the default */
    size_t n_models;
    int resident_max; /* children at a time; 0: 1 */
    uint64_t budget;  /* bytes they may use together; 0: no limit known */
    /* A better answer than pool_model.bytes, asked before a model is first started; 0: none. May be NULL. */
    uint64_t (*need)(void *arg, const char *path);
    int drain_ms;   /* a child that leaves lets its requests end for so long; 0: 120 s */
    int quick_ms;   /* a child that dies sooner after its start than this ... 0: 10 s */
    int backoff_ms; /* ... is started again only after this; 0: 5 s */
    /* From the pool's thread. The default model serves for the first time; its child refused to (exit code): the parent
     * should end. May be NULL. */
    void (*on_ready)(void *arg);
    void (*on_refused)(void *arg, int exit_code);
    void *arg;
} pool_opts;
/* Like server_start, with children behind it instead of an engine. */
server *server_start_front(const pool_opts *p, const server_opts *o, error *err);

/* From now on new requests are refused with 503 while running ones go on. server_stop does this first. */
void server_drain(server *s);
/* A fit report as JSON, as GET /fit has it. bandwidth 0: not known; st: of a running engine, or NULL. */
void fit_write(buf *b, const fit_report *r, double bandwidth, int64_t measured_unix, const engine_stats *st);
int server_port(const server *s); /* the real one; 0 for a unix socket */
/* Stops accepting, lets running requests end for at most drain_ms, cancels what is left, and frees everything. */
void server_stop(server *s, int drain_ms);
