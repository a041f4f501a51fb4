/* One request on its way through a child.
 *
 * The MHD thread does all reading and writing on the child's socket, so that nothing is shared and nothing is queued: a
 * client that does not read leaves its answer in the child. A thread of ours only waits (epoll) and wakes the request
 * when its child has news. A request that ends, in whatever way, closes the child's socket, which cancels it there.
 *
 * What a client sees when the child dies: nothing sent yet, 502 engine_unavailable (a GET without a body is tried once
 * more first); in a stream, whole events only, then an error event of that protocol; in a large answer that has begun,
 * a torn connection. Not here: children (children.c), parsing (upstream.c). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "front.h"

enum {
    WHOLE_MAX = 1 << 20,   /* an answer of at most this size is sent only once it is all there */
    EVENT_MAX = 256 << 10, /* bytes of one unfinished event that are held back */
    READ_BYTES = 16 << 10, /* of the child's socket at a time */
    PATIENCE_MS = 30000    /* how long a request that is tried again waits for its child */
};

typedef enum exchange_state { X_WAIT, X_SEND, X_HEAD, X_BODY, X_DONE, X_BROKEN } exchange_state;
struct exchange {
    http_req *q; /* borrows */
    front *f;    /* borrows */
    children_place place;
    exchange_state state;
    int fd;          /* owns; [f->lock] for those that are not the MHD thread; -1: none */
    uint32_t serial; /* of its slot in f */
    bool upgrade, retried, relayed, listed;
    bool stream;      /* goes out as it comes */
    bool handed_over; /* to a tunnel: nothing to let go of any more */
    bool torn;        /* what has gone out ends inside an event */
    uint64_t patient_until;
    buf send; /* owns; the request's head */
    size_t sent;
    buf in; /* owns; not parsed yet */
    upstream_head head;
    upstream_body body;
    size_t ready;          /* bytes of q->out that may go out: all, or up to the end of the last whole event */
    exchange *next, *prev; /* in f->waiting [f->lock] */
};

struct front {
    server *s;     /* borrows */
    children *all; /* owns */
    tunnels *tunnels;
    int epoll, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock; /* below, and exchange.fd */
    exchange **by_fd;     /* [n_fd] borrows */
    exchange *waiting;    /* for a child */
    size_t n_fd;
    uint32_t serial;
};

/* ---- the waiting thread ------------------------------------------------------------------------------------------ */
static void *front_main(void *arg) {
    front *f = arg;
    struct epoll_event ev[128];
    for (;;) {
        int n = epoll_wait(f->epoll, ev, COUNT(ev), -1);
        pthread_mutex_lock(&f->lock);
        for (int i = 0; i < n; i++) {
            size_t fd = (uint32_t)ev[i].data.u64;
            exchange *x = fd < f->n_fd ? f->by_fd[fd] : NULL;
            if (x && x->serial == ev[i].data.u64 >> 32) http_wake(x->q);
        }
        pthread_mutex_unlock(&f->lock);
        for (int i = 0; i < n; i++)
            if (ev[i].data.u64 == UINT64_MAX) return NULL;
    }
}

/* Wakes the request once the socket is ready. */
static void arm(exchange *x, uint32_t events) {
    struct epoll_event ev = {.events = events | EPOLLRDHUP | EPOLLONESHOT,
                             .data.u64 = (uint64_t)x->serial << 32 | (uint32_t)x->fd};
    epoll_ctl(x->f->epoll, EPOLL_CTL_MOD, x->fd, &ev);
}

static void socket_take(exchange *x, int fd) {
    front *f = x->f;
    pthread_mutex_lock(&f->lock);
    x->fd = fd;
    x->serial = ++f->serial & 0x7fffffff;
    if ((size_t)fd >= f->n_fd) {
        size_t n = MAX((size_t)fd + 1, f->n_fd * 2);
        f->by_fd = mem_resize(f->by_fd, n * sizeof *f->by_fd);
        memset(f->by_fd + f->n_fd, 0, (n - f->n_fd) * sizeof *f->by_fd);
        f->n_fd = n;
    }
    f->by_fd[fd] = x;
    struct epoll_event ev = {.events = 0, .data.u64 = (uint64_t)x->serial << 32 | (uint32_t)fd};
    epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &ev);
    pthread_mutex_unlock(&f->lock);
    if (atomic_load(&x->q->gone)) exchange_cut(x); /* it left before there was anything to cut */
}

/* The socket, no longer watched; the caller's. */
static int socket_give(exchange *x) {
    front *f = x->f;
    pthread_mutex_lock(&f->lock);
    int fd = x->fd;
    x->fd = -1;
    if (fd >= 0) {
        epoll_ctl(f->epoll, EPOLL_CTL_DEL, fd, NULL);
        f->by_fd[fd] = NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return fd;
}

static void socket_close(exchange *x) {
    int fd = socket_give(x);
    if (fd >= 0) close(fd);
}

void exchange_cut(exchange *x) {
    pthread_mutex_lock(&x->f->lock);
    if (x->fd >= 0) shutdown(x->fd, SHUT_RDWR);
    pthread_mutex_unlock(&x->f->lock);
}

/* ---- the request as the child gets it ---------------------------------------------------------------------------- */
bool exchange_upgrade_asked(const http_req *q) {
    const char *connection = http_get_header(q, "Connection");
    return q->s->front && http_get_header(q, "Upgrade") && connection && upstream_hop_header("upgrade", connection) &&
           strcasestr(connection, "upgrade") && str_is(q->method, "GET");
}

static enum MHD_Result header_add(void *arg, enum MHD_ValueKind kind, const char *name, size_t name_n,
                                  const char *value, size_t value_n) {
    exchange *x = arg;
    const char *connection = http_get_header(x->q, "Connection");
    if (upstream_hop_header(name, connection) || !strcasecmp(name, "content-length") || !strcasecmp(name, "expect") ||
        !strcasecmp(name, "x-request-id") || !strcasecmp(name, "host"))
        return MHD_YES;
    buf_printf(&x->send, "%s: ", name);
    buf_add(&x->send, value, value_n);
    buf_puts(&x->send, "\r\n");
    return MHD_YES;
}

static void write_head(exchange *x) {
    http_req *q = x->q;
    buf *b = &x->send;
    buf_str(b, q->method);
    buf_printf(b, " %s HTTP/1.1\r\n", q->cn->target);
    MHD_get_connection_values_n(q->mc, MHD_HEADER_KIND, header_add, x);
    str host = http_host(q);
    buf_printf(b, "Host: %.*s\r\n", host.n ? (int)host.n : 9, host.n ? host.p : "localhost");
    if (q->body.n || str_is(q->method, "POST")) buf_printf(b, "Content-Length: %zu\r\n", q->body.n);
    if (x->upgrade) buf_printf(b, "Connection: Upgrade\r\nUpgrade: %s\r\n", http_get_header(q, "Upgrade"));
    buf_printf(b, "X-Request-Id: %s\r\n\r\n", q->id);
}

/* The backend that the body's `model` names, when there is a choice. */
static backend *choose(http_req *q) {
    children *p = q->s->front->all;
    str id = {0};
    arena *a = NULL;
    if (children_models(p) > 1 && q->body.n) {
        error ignored = {0}; /* the child says what is wrong with it */
        json_limits limits = {.memory_max = q->body.n * 4 + NODES_SPARE};
        a = arena_new(0);
        id = json_str(json_get(json_read(a, buf_view(&q->body), &limits, &ignored), "model"), (str){0});
    }
    backend *b = children_find(p, id);
    arena_free(a);
    return b;
}

void exchange_begin(http_req *q) {
    if (front_answers(q)) return;
    exchange *x = mem_alloc(sizeof *x);
    x->q = q;
    x->f = q->s->front;
    x->fd = -1;
    x->upgrade = exchange_upgrade_asked(q);
    x->place.b = choose(q);
    write_head(x);
    watch_publish_exchange(q->s->watch, q, x);
}

bool exchange_relayed(const exchange *x) {
    return x->relayed;
}

/* ---- waiting for a child ----------------------------------------------------------------------------------------- */
static void waiting_list(exchange *x, bool in) {
    front *f = x->f;
    pthread_mutex_lock(&f->lock);
    if (in && !x->listed) {
        x->next = f->waiting;
        x->prev = NULL;
        if (x->next) x->next->prev = x;
        f->waiting = x;
    } else if (!in && x->listed) {
        if (x->prev)
            x->prev->next = x->next;
        else
            f->waiting = x->next;
        if (x->next) x->next->prev = x->prev;
    }
    x->listed = in;
    pthread_mutex_unlock(&f->lock);
}

void front_wake_waiting(front *f) {
    pthread_mutex_lock(&f->lock);
    for (exchange *x = f->waiting; x; x = x->next) http_wake(x->q);
    pthread_mutex_unlock(&f->lock);
}

/* ---- endings ----------------------------------------------------------------------------------------------------- */
static void leave(exchange *x) {
    waiting_list(x, false);
    socket_close(x);
    children_leave(x->f->all, &x->place);
}

void exchange_free(exchange *x) {
    if (!x) return;
    if (!x->handed_over) leave(x);
    buf_free(&x->send);
    buf_free(&x->in);
    free(x);
}

static void done(exchange *x) {
    leave(x);
    x->ready = x->q->out.n;
    x->state = X_DONE;
}

/* The request cannot be answered by a child. */
static void fail(exchange *x, const error *e) {
    http_req *q = x->q;
    leave(x);
    if (x->state == X_BODY && x->stream && x->head.events) {
        if (x->torn)
            buf_puts(&q->out, "\n\n");
        else
            q->out.n = MAX(x->ready, q->out_at); /* half an event is nobody's */
        q->fail = error_describe(e->code)->name;
        front_error_event(q, e, &q->out);
        x->ready = q->out.n;
        x->state = X_DONE;
        return;
    }
    if (q->phase != PHASE_REPLIED) reply_error(q, e);
    x->state = X_BROKEN;
}

/* The child is gone. A request that cannot have changed anything is tried once more. */
static void broken(exchange *x) {
    const http_req *q = x->q;
    error e = {0};
    bool harmless = (str_is(q->method, "GET") || str_is(q->method, "HEAD")) && !q->body.n && !x->upgrade;
    if (x->state < X_BODY && harmless && !x->retried) {
        leave(x);
        x->retried = true;
        x->patient_until = clock_ns() + (uint64_t)PATIENCE_MS * 1000000u;
        x->sent = x->in.n = 0;
        x->state = X_WAIT;
        return;
    }
    error_set(&e, ERR_ENGINE, "the engine's process died while it worked on this request; it is being started again");
    fail(x, &e);
}

/* ---- moving on --------------------------------------------------------------------------------------------------- */
/* Each returns true when there may be more to do at once, false when the exchange waits (armed) or has ended. */
static bool step_wait(exchange *x) {
    struct sockaddr_un a;
    error e = {0};
    waiting_list(x, true); /* first: a change behind children_enter's answer must wake us */
    bool patient = x->retried && clock_ns() < x->patient_until;
    children_answer now = children_enter(x->f->all, &x->place, patient, a.sun_path, &e);
    if (now == POOL_WAIT) return false;
    int fd = now == POOL_READY ? upstream_connect(a.sun_path) : -1;
    if (fd >= 0) {
        waiting_list(x, false);
        socket_take(x, fd);
        x->state = X_SEND;
        return true;
    }
    if (now == POOL_READY && (errno == ECONNREFUSED || errno == ENOENT)) { /* dead, and not buried yet */
        children_leave(x->f->all, &x->place);
        if (patient) return false; /* whoever buries it wakes us */
        error_set(&e, ERR_UNAVAILABLE, "the engine's process died and is being started again");
    } else if (now == POOL_READY) {
        error_errno(&e, ERR_UNAVAILABLE, "the engine's process takes no connection");
    }
    fail(x, &e);
    return false;
}

/* What the child has sent. False: nothing for now; *end: nothing ever again. */
static bool receive(exchange *x, bool *end) {
    buf_reserve(&x->in, READ_BYTES);
    ssize_t n;
    do n = recv(x->fd, x->in.p + x->in.n, READ_BYTES, 0);
    while (n < 0 && errno == EINTR);
    *end = n == 0 || (n < 0 && errno != EAGAIN);
    if (n <= 0) return false;
    x->in.n += (size_t)n;
    return true;
}

static bool step_send(exchange *x) {
    http_req *q = x->q;
    size_t all = x->send.n + q->body.n;
    while (x->sent < all) {
        bool head = x->sent < x->send.n;
        const char *p = head ? x->send.p + x->sent : q->body.p + (x->sent - x->send.n);
        size_t n = head ? x->send.n - x->sent : all - x->sent;
        ssize_t k = send(x->fd, p, n, MSG_NOSIGNAL | (head && q->body.n ? MSG_MORE : 0));
        if (k >= 0) {
            x->sent += (size_t)k;
        } else if (errno == EAGAIN) {
            bool end;
            if (receive(x, &end) || end) break; /* an answer before the end of the request: a refusal */
            arm(x, EPOLLIN | EPOLLOUT);
            return false;
        } else if (errno != EINTR) {
            break;
        }
    }
    if (x->sent == all) http_body_free(q);
    x->state = X_HEAD;
    return true;
}

static void input_eat(exchange *x, size_t n) {
    memmove(x->in.p, x->in.p + n, x->in.n - n);
    x->in.n -= n;
}

/* Decodes what was received and finds how much of it may go out. */
static bool body_take(exchange *x) {
    buf *out = &x->q->out;
    size_t used;
    bool ok = upstream_body_push(&x->body, buf_view(&x->in), &used, out);
    input_eat(x, used);
    if (!x->head.events) {
        x->ready = out->n;
        return ok;
    }
    size_t at = out->n;
    while (at > x->ready + 1 && !(out->p[at - 1] == '\n' && out->p[at - 2] == '\n')) at--;
    if (at > x->ready + 1) {
        x->ready = at;
        x->torn = false;
    } else if (out->n - x->ready > EVENT_MAX) {
        x->ready = out->n;
        x->torn = true;
    }
    return ok;
}

static bool step_head(exchange *x) {
    error e = {0};
    size_t used;
    bool end;
    if (x->in.n && upstream_head_parse(buf_view(&x->in), x->q->a, &x->head, &used, &e)) {
        input_eat(x, used);
        if (x->head.status == 101 && !x->upgrade) { /* a client that asked for none would read a tunnel as its answer */
            error_set(&e, ERR_ENGINE, "the engine's process switches to a protocol that was not asked for");
            fail(x, &e);
            return false;
        }
        if (x->head.status < 200 && x->head.status != 101) return true; /* 100 Continue and the like */
        bool none = str_is(x->q->method, "HEAD") || x->head.status == 204 || x->head.status == 304;
        upstream_body_init(&x->body, &x->head, none);
        x->stream = !none && (x->head.length < 0 || x->head.length > WHOLE_MAX);
        x->state = X_BODY;
        return true;
    }
    if (e.code) {
        fail(x, &e);
        return false;
    }
    if (receive(x, &end)) return true;
    if (end) {
        broken(x);
        return x->state == X_WAIT;
    }
    arm(x, EPOLLIN);
    return false;
}

static bool step_body(exchange *x) {
    bool end = false;
    if (x->head.status == 101) return false; /* what follows is the tunnel's */
    if (x->in.n && !body_take(x)) {
        broken(x);
        return false;
    }
    if (x->body.done) {
        done(x);
        return false;
    }
    if (x->stream && x->ready > x->q->out_at) return false;
    if (receive(x, &end)) return true;
    if (!end) {
        arm(x, EPOLLIN);
    } else if (x->body.left < 0 && !x->body.chunked) {
        done(x);
    } else {
        broken(x);
    }
    return false;
}

static void go(exchange *x) {
    static bool (*const steps[])(exchange *) = {
        [X_WAIT] = step_wait, [X_SEND] = step_send, [X_HEAD] = step_head, [X_BODY] = step_body};
    while (x->state < X_DONE && steps[x->state](x)) {
    }
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */
/* Pull side of an answer that goes out as it comes. */
static ssize_t read_stream(void *arg, uint64_t pos, char *p, size_t max) {
    exchange *x = arg;
    http_req *q = x->q;
    q->cn->stalled_since = 0;
    for (;;) {
        if (atomic_load(&q->gone)) return MHD_CONTENT_READER_END_WITH_ERROR;
        size_t n = MIN(x->ready - q->out_at, max);
        if (n) {
            memcpy(p, q->out.p + q->out_at, n);
            q->out_at += n;
            q->bytes_out += n;
            if (q->out_at == x->ready) { /* what is held back moves to the front */
                q->out.n -= q->out_at;
                memmove(q->out.p, q->out.p + q->out_at, q->out.n);
                q->out_at = x->ready = 0;
            }
            atomic_store(&q->last_out_ns, clock_ns());
            if (!q->t_first) q->t_first = clock_ns();
            return (ssize_t)n;
        }
        if (x->state == X_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (x->state == X_DONE) {
            x->relayed = !q->fail;
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        go(x);
        if (x->ready == q->out_at && x->state < X_DONE && http_suspend(q)) return 0;
    }
}

static void on_upgrade(void *arg, struct MHD_Connection *mc, void *state, const char *early, size_t n_early,
                       MHD_socket client, struct MHD_UpgradeResponseHandle *urh) {
    exchange *x = arg;
    /* libmicrohttpd holds a lock of its own when it says that an upgraded connection is complete: whatever needs one of
     * ours is done here. */
    watch_phase(x->q->s->watch, x->q->cn, CONN_REPLY, NULL);
    x->relayed = x->handed_over = x->q->upgraded = true;
    int up = socket_give(x);
    leave(x);
    tunnel_open(x->f->tunnels, client, urh, up, (str){early, n_early}, buf_view(&x->in));
}

static enum MHD_Result reply(exchange *x) {
    http_req *q = x->q;
    const upstream_head *h = &x->head;
    struct MHD_Response *r;
    if (h->status == 101)
        r = MHD_create_response_for_upgrade(on_upgrade, x);
    else if (x->stream || (h->length > 0 && str_is(q->method, "HEAD")))
        r = MHD_create_response_from_callback(h->length < 0 ? MHD_SIZE_UNKNOWN : (uint64_t)h->length, READ_BYTES,
                                              read_stream, x, NULL);
    else
        r = MHD_create_response_from_buffer(q->out.n, q->out.p ? q->out.p : "", MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    if (!x->stream) q->bytes_out = q->out.n, x->relayed = true;
    if (h->events) atomic_fetch_add(&q->s->n.streams, 1);
    for (size_t i = 0; i < h->n_header; i++) MHD_add_response_header(r, h->header[i].name, h->header[i].value);
    if (h->status != 101) http_headers(q, r);
    q->status = h->status;
    q->phase = PHASE_REPLIED;
    atomic_store(&q->last_out_ns, clock_ns());
    enum MHD_Result ok = MHD_queue_response(q->mc, (unsigned)q->status, r);
    MHD_destroy_response(r);
    return ok;
}

enum MHD_Result exchange_go_on(http_req *q) {
    exchange *x = q->up;
    for (;;) {
        if (atomic_load(&q->gone)) return MHD_NO;
        go(x);
        if (q->status) return http_send(q);
        if (x->state == X_DONE || (x->state == X_BODY && (x->stream || x->head.status == 101))) return reply(x);
        if (http_suspend(q)) return MHD_YES;
    }
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */
int front_tunnels(front *f) {
    return f ? tunnels_count(f->tunnels) : 0;
}

children *front_children(front *f) {
    return f->all;
}

void front_stop(front *f) {
    if (!f) return;
    if (f->all) children_stop(f->all);
    if (f->tunnels) tunnels_stop(f->tunnels);
}

void front_free(front *f) {
    if (!f) return;
    front_stop(f);
    children_free(f->all);
    tunnels_free(f->tunnels);
    uint64_t one = 1;
    if (f->thread && write(f->stop_fd, &one, sizeof one) == sizeof one) pthread_join(f->thread, NULL);
    if (f->epoll >= 0) close(f->epoll);
    if (f->stop_fd >= 0) close(f->stop_fd);
    pthread_mutex_destroy(&f->lock);
    free(f->by_fd);
    free(f);
}

front *front_new(server *s, const pool_opts *o, error *err) {
    front *f = mem_alloc(sizeof *f);
    f->s = s;
    pthread_mutex_init(&f->lock, NULL);
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    f->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    bool ok = f->epoll >= 0 && f->stop_fd >= 0 && !epoll_ctl(f->epoll, EPOLL_CTL_ADD, f->stop_fd, &ev) &&
              !pthread_create(&f->thread, NULL, front_main, f);
    if (!ok) error_errno(err, ERR_IO, "starting the thread that waits for the engine's process");
    ok = ok && (f->tunnels = tunnels_new(err)) && (f->all = children_new(f, o, err));
    if (ok) return f;
    front_free(f);
    return NULL;
}
