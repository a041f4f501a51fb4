/* The server: sockets, libmicrohttpd and its callbacks, workers, start and stop.
 *
 * libmicrohttpd runs one epoll thread. A request that needs work is suspended and goes through a ring to a worker; from
 * then on whoever has news for it (worker, engine, watcher) calls http_wake, and the MHD thread goes on where it
 * stopped. Not here: hang-ups and deadlines (watch.c), the request object (request.c). */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "front.h"
#include "response_store.h"

enum {
    REFUSED_BODY_MAX = 1 << 20, /* of a refused request: read and thrown away, so that the client sees the answer */
    TARGET_MAX = 8 << 10,
    HEAD_MAX = 16 << 10,  /* headers beyond are answered with our 431 */
    POOL_BYTES = 32 << 10 /* libmicrohttpd's memory for a connection, all of it touched; beyond are its own 431s */
};

/* ---- workers ----------------------------------------------------------------------------------------------------- */
static void work_put(server *s, http_req *q) {
    pthread_mutex_lock(&s->work_lock);
    if (s->work_n == s->work_cap) {
        size_t cap = s->work_cap ? s->work_cap * 2 : 64;
        http_req **ring = mem_alloc(cap * sizeof *ring);
        for (size_t i = 0; i < s->work_n; i++) ring[i] = s->work[(s->work_head + i) % s->work_cap];
        free(s->work);
        s->work = ring;
        s->work_head = 0;
        s->work_cap = cap;
    }
    s->work[(s->work_head + s->work_n++) % s->work_cap] = q;
    pthread_cond_signal(&s->work_ready);
    pthread_mutex_unlock(&s->work_lock);
}

static http_req *work_take(server *s) {
    http_req *q = NULL;
    pthread_mutex_lock(&s->work_lock);
    while (!s->work_n && !s->stopping) pthread_cond_wait(&s->work_ready, &s->work_lock);
    if (s->work_n) {
        q = s->work[s->work_head];
        s->work_head = (s->work_head + 1) % s->work_cap;
        s->work_n--;
    }
    pthread_mutex_unlock(&s->work_lock);
    return q;
}

static void *worker_main(void *arg) {
    server *s = arg;
    for (http_req *q; (q = work_take(s));) {
        if (!atomic_load(&q->gone)) (s->front ? exchange_begin : q->route->handler)(q);
        q->t_ready = clock_ns();
        q->phase = PHASE_RUN;
        atomic_store(&q->wake, WAKE_ACTIVE);
        MHD_resume_connection(q->mc); /* it was suspended before it came here */
    }
    return NULL;
}

/* ---- health ------------------------------------------------------------------------------------------------------ */
bool server_healthy(server *s, error *err) {
    const char *why = atomic_load(&s->failed);
    if (atomic_load(&s->draining)) return error_set(err, ERR_UNAVAILABLE, "the server is shutting down");
    if (s->front) return children_healthy(front_children(s->front), err);
    engine *e = atomic_load(&s->e);
    if (why) return error_set(err, ERR_UNAVAILABLE, "the model could not be loaded: %s", why);
    if (!e) return error_set(err, ERR_UNAVAILABLE, "the model is being loaded");
    engine_stats st;
    engine_stats_get(e, &st);
    if (st.failed) return error_set(err, ERR_UNAVAILABLE, "the engine has failed");
    uint64_t now = clock_ns();
    if (st.last_step_ns && now > st.last_step_ns && now - st.last_step_ns > (uint64_t)s->o.watchdog_ms * 1000000u)
        return error_set(err, ERR_UNAVAILABLE, "the engine is stuck: no step for %llu s",
                         (unsigned long long)((now - st.last_step_ns) / 1000000000u));
    return true;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */
static void refuse(http_req *q, const error *e) {
    reply_error(q, e);
    q->drop_body = true;
    http_body_free(q);
}

static bool find_route(http_req *q, error *err) {
    const char *allow;
    q->route = route_find(q->method, q->path, &q->rest, q->a, &allow);
    if (q->route) return true;
    if (!allow) return error_set(err, ERR_NOT_FOUND, "not found");
    http_header_add(q, "Allow", allow);
    return error_set(err, ERR_METHOD, "%.*s is not allowed here; allowed: %s", (int)MIN(q->method.n, 20), q->method.p,
                     allow);
}

/* CORS pre-flight; a plain OPTIONS is answered in the same way. */
static void reply_options(http_req *q, const char *allow) {
    http_header_add(q, "Allow", allow ? allow : "GET, HEAD, POST, DELETE, OPTIONS");
    if (q->origin_ok) {
        http_header_add(q, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        const char *want = http_get_header(q, "Access-Control-Request-Headers");
        http_header_add(q, "Access-Control-Allow-Headers", want ? want : "authorization, content-type, x-api-key");
        http_header_add(q, "Access-Control-Max-Age", "600");
    }
    reply_status(q, 204);
}

static bool admit(http_req *q, error *err) {
    if (!guard_host(q, err) || !guard_origin(q, err)) return false;
    if (str_is(q->method, "OPTIONS")) {
        const char *allow = NULL;
        str rest;
        route_find(STR("OPTIONS"), q->path, &rest, q->a, &allow);
        reply_options(q, allow);
        return true;
    }
    bool upgrade = exchange_upgrade_asked(q); /* the child's to judge */
    if (!upgrade && !find_route(q, err)) return false;
    unsigned flags = upgrade ? ROUTE_WORK : q->route->flags;
    if (flags & ROUTE_UNIX && !q->s->o.unix_path) return error_set(err, ERR_NOT_FOUND, "not found");
    if (!(flags & ROUTE_OPEN) && !guard_key(q, err)) return false;
    if (!upgrade && !q->route->handler)
        return error_set(err, ERR_UNSUPPORTED, "%s: not implemented in this version", q->route->feature);
    if (flags & (ROUTE_WORK | ROUTE_MODEL) && atomic_load(&q->s->draining))
        return error_set(err, ERR_UNAVAILABLE, "the server is shutting down");
    if (!(flags & ROUTE_MODEL) || q->s->front) return true;
    if (atomic_load(&q->s->held) && !(flags & ROUTE_UNIX))
        return error_set(err, ERR_UNAVAILABLE, "the engine is being drained");
    return server_healthy(q->s, err);
}

/* A body over a limit is answered past MHD, which takes replies only before or after a body; what still comes is
 * thrown away until the deadline, since closing now would reset the connection and lose the answer. */
static void refuse_at_once(http_req *q, const error *e) {
    refuse(q, e);
    reply_raw(q->cn->fd, e);
    shutdown(q->cn->fd, SHUT_WR);
    watch_refused(q->s->watch, q->cn);
}

/* May q have n bytes of body? One body has its limit, and the memory that all of them take has its own. */
static bool body_fits(const http_req *q, uint64_t n, error *err) {
    const server *s = q->s;
    if (n > s->o.body_max)
        return error_set(err, ERR_TOO_LARGE, "the request body is larger than %zu bytes", s->o.body_max);
    size_t cap = q->body.cap, memory = n <= cap ? cap : MAX(n, cap + cap / 2); /* as buf_reserve grows */
    if (n && atomic_load(&s->body_bytes) - q->body_held + memory > s->o.bodies_max)
        return error_set(err, ERR_QUEUE_FULL,
                         "the requests in progress fill the %zu bytes there are for bodies; try again later",
                         s->o.bodies_max);
    return true;
}

/* Head sizes that are refused: the status, 0 when there is nothing against it. */
static int head_too_large(const http_req *q, error *err) {
    if (q->cn->target_n > TARGET_MAX)
        return error_set(err, ERR_TOO_LARGE, "the request target has %zu bytes; at most %d are read", q->cn->target_n,
                         TARGET_MAX),
               414;
    if (q->head_n > HEAD_MAX)
        return error_set(err, ERR_TOO_LARGE, "the headers have %zu bytes; at most %d are read", q->head_n, HEAD_MAX),
               431;
    return 0;
}

static enum MHD_Result receive_head(http_req *q) {
    error e = {0};
    const char *length = http_get_header(q, "Content-Length");
    watch_phase(q->s->watch, q->cn, CONN_BODY, q);
    bool framed = guard_framing(q, &e);
    int status = framed ? head_too_large(q, &e) : 0;
    if (!framed || status) {
        q->close_after = true;
        refuse(q, &e);
        if (status) q->status = status;
        return http_send(q);
    }
    int64_t n = 0;
    if (length && str_to_i64(str_of(length), &n)) q->body_left = n;
    if (!admit(q, &e)) refuse(q, &e);
    error large = {0};
    bool fits = q->status ? n <= REFUSED_BODY_MAX : body_fits(q, (uint64_t)n, &large);
    if (fits) return MHD_YES;
    if (!q->status && !http_get_header(q, "Expect")) {
        refuse_at_once(q, &large);
        return MHD_YES;
    }
    if (!q->status) refuse(q, &large); /* the client waits for our word before it sends */
    q->close_after = true;
    return http_send(q);
}

static void receive_body(http_req *q, const char *p, size_t n) {
    error large = {0};
    q->bytes_in += n;
    watch_body(q->s->watch, q->cn, q->cn->refused ? 0 : n);
    if (q->drop_body) return;
    if (!body_fits(q, q->body.n + n, &large)) {
        refuse_at_once(q, &large);
        return;
    }
    if (!q->body.n && q->body_left > 0) buf_reserve(&q->body, (size_t)MIN(q->body_left, 1 << 20));
    buf_add(&q->body, p, n);
    atomic_fetch_add(&q->s->body_bytes, q->body.cap - q->body_held);
    q->body_held = q->body.cap;
}

/* Done at once on the MHD thread, not by a worker? */
static bool answered_here(const http_req *q) {
    return q->route && (q->s->front ? q->route->flags & ROUTE_FRONT : !(q->route->flags & ROUTE_WORK));
}

/* The whole request is here. */
static enum MHD_Result receive_end(http_req *q) {
    q->t_body = clock_ns();
    if (q->cn->refused) return MHD_NO;
    if (q->status) return http_send(q);
    if (answered_here(q)) {
        watch_phase(q->s->watch, q->cn, CONN_REPLY, q);
        q->route->handler(q);
        q->t_ready = clock_ns();
        return http_send(q);
    }
    q->phase = PHASE_WORK;
    atomic_store(&q->wake, WAKE_WORKING);
    MHD_suspend_connection(q->mc);
    watch_phase(q->s->watch, q->cn, CONN_WORK, q);
    work_put(q->s, q);
    return MHD_YES;
}

/* After the worker: a reply, a stream, or generations to wait for. */
static enum MHD_Result go_on(http_req *q) {
    for (;;) {
        if (atomic_load(&q->gone)) return MHD_NO;
        if (q->status) return http_send(q);
        if (q->up) return exchange_go_on(q);
        if (q->run->req->stream) {
            atomic_fetch_add(&q->s->n.streams, 1);
            atomic_store(&q->last_out_ns, clock_ns());
            return http_send(q);
        }
        if (run_pump(q->run)) continue; /* it has set the reply */
        if (http_suspend(q)) return MHD_YES;
    }
}

/* Skips "http://authority" of a target in absolute form, which servers must take too (RFC 9112, 3.2.2). */
static const char *target_path(const char *url, str *authority) {
    size_t scheme = !strncasecmp(url, "http://", 7) ? 7 : !strncasecmp(url, "https://", 8) ? 8 : 0;
    if (!scheme) return url;
    size_t n = strcspn(url + scheme, "/?");
    *authority = (str){url + scheme, n};
    return url[scheme + n] == '/' ? url + scheme + n : "/";
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *mc, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n, void **state) {
    server *s = arg;
    http_req *q = *state;
    if (!q) {
        conn *c = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
        str authority = {0};
        *state = q = http_new(s, mc, c, method, target_path(url, &authority));
        q->needs_host = !strcmp(version, "HTTP/1.1");
        if (authority.p) q->authority = (str){arena_copy(q->a, authority.p, authority.n), authority.n};
        atomic_fetch_add(&s->n.active, 1);
        return receive_head(q);
    }
    if (*n) {
        receive_body(q, data, *n);
        *n = 0;
        return MHD_YES;
    }
    if (q->phase == PHASE_RECEIVE) return receive_end(q);
    return q->phase == PHASE_RUN ? go_on(q) : MHD_YES;
}

static void on_complete(void *arg, struct MHD_Connection *mc, void **state, enum MHD_RequestTerminationCode how) {
    server *s = arg;
    http_req *q = *state;
    if (!q) return;
    *state = NULL;
    if (!q->upgraded) watch_phase(s->watch, q->cn, CONN_IDLE, NULL);
    atomic_fetch_add(&s->n.requests, 1);
    atomic_fetch_add(&s->n.bytes_out, q->bytes_out);
    if (q->status >= 500)
        atomic_fetch_add(&s->n.errors_5xx, 1);
    else if (q->status >= 400)
        atomic_fetch_add(&s->n.errors_4xx, 1);
    if (q->status == 429) atomic_fetch_add(&s->n.rejected, 1);
    metrics_observe(q);
    http_log(q, how);
    http_free(q);
    atomic_fetch_sub(&s->n.active, 1);
}

/* ---- connections ------------------------------------------------------------------------------------------------- */
static void tune_socket(int fd) {
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},     {IPPROTO_TCP, TCP_USER_TIMEOUT, 20000}, /* ms; a peer that vanished while we
                                                                                      write */
        {SOL_SOCKET, SO_KEEPALIVE, 1}, /* and while we are silent: 15 s, then 3 probes 5 s apart */
        {IPPROTO_TCP, TCP_KEEPIDLE, 15},   {IPPROTO_TCP, TCP_KEEPINTVL, 5},        {IPPROTO_TCP, TCP_KEEPCNT, 3},
        {SOL_SOCKET, SO_SNDBUF, 64 << 10}, /* a client that does not read would park 4 MB in the kernel */
    };
    for (size_t i = 0; i < COUNT(options); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

static void on_connection(void *arg, struct MHD_Connection *mc, void **state,
                          enum MHD_ConnectionNotificationCode what) {
    server *s = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        watch_close(s->watch, *state);
        return;
    }
    int fd = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    tune_socket(fd);
    *state = watch_open(s->watch, fd);
}

/* Called for the request line: from here the headers have their time. */
static void *on_url(void *arg, const char *url, struct MHD_Connection *mc) {
    server *s = arg;
    conn *c = MHD_get_connection_info(mc, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    c->nul_in_url = strstr(url, "%00") != NULL;
    c->target_n = strlen(url);
    c->space_in_url = strpbrk(url, " \t\r\n\v\f") != NULL;
    if (s->front) { /* libmicrohttpd shows the target decoded only */
        str authority;
        free(c->target);
        c->target = mem_strdup(target_path(url, &authority));
    }
    watch_phase(s->watch, c, CONN_HEADERS, NULL);
    return NULL;
}

static void on_log(void *arg, const char *fmt, va_list ap) {
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    log_debug("libmicrohttpd: %s", text);
}

/* ---- listening --------------------------------------------------------------------------------------------------- */
static int listen_tcp(const server_opts *o, error *err) {
    char port[16];
    snprintf(port, sizeof port, "%d", o->port);
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int bad = getaddrinfo(o->host, port, &hints, &list);
    if (bad) {
        error_set(err, ERR_INVALID, "--host %s: %s", o->host, gai_strerror(bad));
        return -1;
    }
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, 1024)) {
        error_errno(err, ERR_IO, "listening on %s:%d", o->host, o->port);
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    return fd;
}

/* A socket file that nobody listens on is left over from a crash; one that answers is another server's. */
static bool unix_clear(const struct sockaddr_un *a, error *err) {
    struct stat st;
    if (lstat(a->sun_path, &st)) return true;
    if (!S_ISSOCK(st.st_mode)) return error_set(err, ERR_INVALID, "--unix %s: exists and is not a socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) == 0;
    if (fd >= 0) close(fd);
    if (alive) return error_set(err, ERR_IO, "--unix %s: another server listens there", a->sun_path);
    unlink(a->sun_path);
    return true;
}

static int listen_unix(const server_opts *o, error *err) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(o->unix_path) >= sizeof a.sun_path) {
        error_set(err, ERR_INVALID, "--unix: the path has %zu bytes; at most %zu are possible", strlen(o->unix_path),
                  sizeof a.sun_path - 1);
        return -1;
    }
    memcpy(a.sun_path, o->unix_path, strlen(o->unix_path) + 1);
    if (!unix_clear(&a, err)) return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177); /* the owner only */
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1024) == 0;
    umask(mask);
    if (ok) return fd;
    error_errno(err, ERR_IO, "listening on %s", o->unix_path);
    if (fd >= 0) close(fd);
    return -1;
}

static int bound_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return 0;
    if (a.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&a)->sin_port);
    return a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port) : 0;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */
static void fill_defaults(server_opts *o) {
    if (!o->host) o->host = "127.0.0.1";
    if (!o->body_max) o->body_max = 64u << 20;
    if (!o->bodies_max) o->bodies_max = 512u << 20;
    o->body_max = MIN(o->body_max, o->bodies_max); /* what never fits is too large, not too early */
    if (!o->connections_max) o->connections_max = 2048;
    if (!o->header_timeout_ms) o->header_timeout_ms = 15000;
    if (!o->body_timeout_ms) o->body_timeout_ms = 30000;
    if (!o->idle_timeout_ms) o->idle_timeout_ms = 75000;
    if (!o->keepalive_ms) o->keepalive_ms = 10000;
    if (!o->stall_ms) o->stall_ms = 20000;
    if (!o->watchdog_ms) o->watchdog_ms = 120000;
    if (!o->response_ttl_s) o->response_ttl_s = 3600;
    if (!o->response_bytes) o->response_bytes = 32u << 20;
}

static void server_free(server *s) {
    front_stop(s->front); /* libmicrohttpd cannot end while it has upgraded connections */
    if (s->daemon) MHD_stop_daemon(s->daemon);
    watch_free(s->watch);
    structured_free(s->structured);
    front_free(s->front);
    response_store_close(s->responses);
    if (s->listen_fd >= 0) close(s->listen_fd);
    if (s->unix_path) unlink(s->unix_path);
    pthread_mutex_destroy(&s->work_lock);
    pthread_cond_destroy(&s->work_ready);
    free(s->work);
    free(s->unix_path);
    free(s);
}

static bool store_open(server *s, error *err) {
    const char *path = s->o.response_store;
    s->responses =
        response_store_open(strcmp(path, "memory") ? path : NULL, s->o.response_ttl_s, s->o.response_bytes, err);
    return s->responses != NULL;
}

static server *start(engine *e, const pool_opts *children, const server_opts *o, error *err) {
    server *s = mem_alloc(sizeof *s);
    s->o = *o;
    fill_defaults(&s->o);
    s->started_unix = clock_unix();
    s->listen_fd = -1;
    atomic_store(&s->e, e);
    pthread_mutex_init(&s->work_lock, NULL);
    pthread_cond_init(&s->work_ready, NULL);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = MIN(files.rlim_max, 65536); /* the usual soft limit of 1024 is below connections_max */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    s->listen_fd = o->unix_path ? listen_unix(o, err) : listen_tcp(&s->o, err);
    if (s->listen_fd < 0) goto fail;
    if (o->unix_path)
        s->unix_path = mem_strdup(o->unix_path);
    else
        s->port = bound_port(s->listen_fd);
    s->structured = structured_new();
    if (!(s->watch = watch_new(s, err))) goto fail;
    if (!children && s->o.response_store && !store_open(s, err)) goto fail;
    if (children && !(s->front = front_new(s, children, err))) goto fail;
    s->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                                     (children ? MHD_ALLOW_UPGRADE : 0),
                                 0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)s->o.connections_max, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_complete, s, MHD_OPTION_NOTIFY_CONNECTION,
                                 on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, on_url, s, MHD_OPTION_END);
    if (!s->daemon) {
        error_set(err, ERR_IO, "libmicrohttpd does not start (out of file descriptors or threads?)");
        goto fail;
    }
    for (size_t i = 0; i < COUNT(s->worker); i++) pthread_create(&s->worker[i], NULL, worker_main, s);
    return s;
fail:
    server_free(s);
    return NULL;
}

server *server_start(engine *e, const server_opts *o, error *err) {
    return start(e, NULL, o, err);
}

server *server_start_front(const pool_opts *p, const server_opts *o, error *err) {
    return start(NULL, p, o, err);
}

void server_set_engine(server *s, engine *e) {
    atomic_store(&s->e, e);
}

void server_set_failed(server *s, const char *why) {
    atomic_store(&s->failed, why);
}

int server_port(const server *s) {
    return s->port;
}

/* Waits until no request, and with `tunnels` no upgraded connection, is in progress; false when the time is up. */
static bool drained(server *s, int ms, bool tunnels) {
    uint64_t end = clock_ns() + (uint64_t)ms * 1000000u;
    while (watch_requests(s->watch) || (tunnels && front_tunnels(s->front))) {
        if (clock_ns() > end) return false;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return true;
}

void server_drain(server *s) {
    atomic_store(&s->draining, true);
}

void server_stop(server *s, int drain_ms) {
    if (!s) return;
    server_drain(s);
    if (!drained(s, drain_ms, true)) {
        watch_cancel_all(s->watch);
        drained(s, 5000, false);
    }
    MHD_quiesce_daemon(s->daemon); /* the listening socket is ours again */
    pthread_mutex_lock(&s->work_lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->work_ready);
    pthread_mutex_unlock(&s->work_lock);
    for (size_t i = 0; i < COUNT(s->worker); i++) pthread_join(s->worker[i], NULL);
    server_free(s);
}
