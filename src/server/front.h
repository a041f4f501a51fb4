/* server/front.h: the parent of `serve --isolate`, for the files of this folder. It keeps the public listener and its
 * rules (guard.c, watch.c, limits) and passes requests on to children: the same program, one model each, on unix
 * sockets.
 *
 * upstream.c: one answer of a child, parsed. children.c: children are started, watched, replaced, drained. exchange.c:
 * one request on its way through a child. tunnel.c: after an upgrade. front.c: what the parent answers itself. */
#pragma once
#include <sys/un.h>
#include "internal.h"

/* ---- an answer of a child (upstream.c) --------------------------------------------------------------------------- */
enum { UPSTREAM_HEAD_MAX = 64 << 10 };
typedef struct upstream_head {
    int status;
    bool chunked, events; /* events: an SSE stream */
    int64_t length;       /* -1: not given */
    http_header *header;  /* [n_header] arena; without those of one hop and those that the parent writes itself */
    size_t n_header;
} upstream_head;
/* Parses the head at the start of `in`; *used is its length. False without an error: more bytes are needed. ERR_ENGINE:
 * no HTTP. */
bool upstream_head_parse(str in, arena *a, upstream_head *h, size_t *used, error *err);
/* Is this a header of one connection, not of the request? `connection` is the value of its Connection header, or NULL.
 */
bool upstream_hop_header(const char *name, const char *connection);

/* A body being decoded. */
typedef struct upstream_body {
    bool chunked, done;
    int64_t left; /* of the chunk or of the body; -1: until the end of the connection */
    enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER } at;
} upstream_body;
void upstream_body_init(upstream_body *b, const upstream_head *h, bool none);
/* Moves what is decoded to out; *used bytes of in are eaten. False: not well-formed. */
bool upstream_body_push(upstream_body *b, str in, size_t *used, buf *out);

/* A socket connected to a child; -1: errno says why (EAGAIN: its queue is full). */
int upstream_connect(const char *path);
/* A whole small exchange, waiting for at most timeout_ms. *status and body are set when it was answered; ERR_ENGINE. */
bool upstream_fetch(const char *path, const char *request, int timeout_ms, int *status, buf *body, error *err);

/* ---- the children (children.c) ----------------------------------------------------------------------------------- */
typedef struct front front; /* all of the below together (exchange.c) */
typedef struct children children;
typedef struct backend backend; /* one model, and its child when there is one */
children *children_new(front *f, const pool_opts *o, error *err);
void children_stop(children *p); /* ends the children; they flush */
void children_free(children *p);
/* The backend of exactly this id; the default for any other. */
backend *children_find(children *p, str id);
size_t children_models(const children *p);
const char *children_model_id(const children *p, size_t i);
/* The socket of model i's child, if it serves now; path as in sockaddr_un. */
bool children_socket(children *p, size_t i, char *path);
bool children_healthy(children *p, error *err); /* ERR_UNAVAILABLE says why not */
void children_describe(children *p, buf *out);  /* GET /engine */
void children_metrics(children *p, buf *out);

typedef enum children_answer { POOL_READY, POOL_WAIT, POOL_NO } children_answer;
/* A request's place at a backend. Ask again after a wake while the answer is POOL_WAIT. `patient`: waits for a child
 * that is being started after a crash, too. path: as in sockaddr_un. */
typedef struct children_place {
    backend *b;
    bool waiting, active;
} children_place;
children_answer children_enter(children *p, children_place *at, bool patient, char *path, error *err);
void children_leave(children *p, children_place *at);

/* ---- requests on their way (exchange.c) -------------------------------------------------------------------------- */
front *front_new(server *s, const pool_opts *o, error *err);
void front_stop(front *f); /* children and upgraded connections end; requests may still be there */
void front_free(front *f);
children *front_children(front *f);
int front_tunnels(front *f);       /* open now; f may be NULL */
void front_wake_waiting(front *f); /* something changed in the children */
/* On a worker: starts the exchange for q, or answers. */
void exchange_begin(http_req *q);
/* On the MHD thread, whenever there may be something to do. */
enum MHD_Result exchange_go_on(http_req *q);
void exchange_cut(exchange *x); /* from any thread: the client left; the child sees it at once */
void exchange_free(exchange *x);
bool exchange_relayed(const exchange *x); /* the child's answer went out whole, so the child has logged it */
bool exchange_upgrade_asked(const http_req *q);

/* ---- after an upgrade (tunnel.c) --------------------------------------------------------------------------------- */
typedef struct tunnels tunnels;
tunnels *tunnels_new(error *err);
int tunnels_count(tunnels *t);
void tunnels_stop(tunnels *t); /* closes all, and what is opened later */
void tunnels_free(tunnels *t);
/* Copies bytes both ways until one side ends. Takes `up` and, through urh, the client's socket. `early`: bytes of the
 * client's that libmicrohttpd had read already; `late`: the child's behind its head. */
void tunnel_open(tunnels *t, int client, struct MHD_UpgradeResponseHandle *urh, int up, str early, str late);

/* ---- what the parent answers itself (front.c) -------------------------------------------------------------------- */
/* True when the parent puts the answer together from those of its children. */
bool front_answers(http_req *q);
/* The last event of a stream whose child has died, as the route's protocol writes errors. */
void front_error_event(http_req *q, const error *e, buf *out);
