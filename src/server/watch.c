/* Watching connections: hang-ups while a request is suspended, which libmicrohttpd does not see, and everything that
 * has a deadline: headers, bodies, silent streams, clients that do not read. One thread, one epoll of ours beside
 * MHD's, looked at four times a second.
 *
 * A FIN counts as leaving: no HTTP client half-closes after a request and waits for the answer. docs/http.md says so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "front.h"

enum { TICK_MS = 250 };

struct watch {
    server *s; /* borrows */
    int epoll, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock; /* all below, and conn.q, conn.phase, conn.deadline_ns */
    conn *first;
    conn **by_fd; /* [n_fd] borrows */
    size_t n_fd;
    uint32_t serial;
};

static uint64_t soon(int ms) {
    return clock_ns() + (uint64_t)ms * 1000000u;
}

/* ---- life of a connection ---------------------------------------------------------------------------------------- */
conn *watch_open(watch *w, int fd) {
    conn *c = mem_alloc(sizeof *c);
    pthread_mutex_lock(&w->lock);
    c->fd = fd;
    c->serial = ++w->serial;
    c->phase = CONN_HEADERS; /* a new connection owes a request soon */
    c->deadline_ns = soon(w->s->o.header_timeout_ms);
    if ((size_t)fd >= w->n_fd) {
        size_t n = MAX((size_t)fd + 1, w->n_fd * 2);
        w->by_fd = mem_resize(w->by_fd, n * sizeof *w->by_fd);
        memset(w->by_fd + w->n_fd, 0, (n - w->n_fd) * sizeof *w->by_fd);
        w->n_fd = n;
    }
    w->by_fd[fd] = c;
    c->next = w->first;
    if (c->next) c->next->prev = c;
    w->first = c;
    /* armed by EPOLL_CTL_MOD while a request waits */
    struct epoll_event ev = {.events = 0, .data.u64 = (uint64_t)c->serial << 32 | (uint32_t)fd};
    epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &ev);
    pthread_mutex_unlock(&w->lock);
    atomic_fetch_add(&w->s->n.connections, 1);
    return c;
}

void watch_close(watch *w, conn *c) {
    pthread_mutex_lock(&w->lock);
    epoll_ctl(w->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    w->by_fd[c->fd] = NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        w->first = c->next;
    if (c->next) c->next->prev = c->prev;
    pthread_mutex_unlock(&w->lock);
    atomic_fetch_sub(&w->s->n.connections, 1);
    free(c->target);
    free(c);
}

static uint64_t phase_deadline(const watch *w, int phase) {
    switch (phase) {
    case CONN_HEADERS: return soon(w->s->o.header_timeout_ms);
    case CONN_BODY: return soon(w->s->o.body_timeout_ms);
    case CONN_IDLE: return soon(w->s->o.idle_timeout_ms);
    default: return 0;
    }
}

void watch_phase(watch *w, conn *c, int phase, http_req *q) {
    pthread_mutex_lock(&w->lock);
    c->phase = phase;
    c->q = q;
    c->stalled_since = 0;
    c->deadline_ns = phase_deadline(w, phase);
    /* level-triggered on purpose: a FIN that came before this line still counts; ONESHOT so that it counts once */
    struct epoll_event ev = {.events = phase == CONN_WORK ? EPOLLRDHUP | EPOLLONESHOT : 0,
                             .data.u64 = (uint64_t)c->serial << 32 | (uint32_t)c->fd};
    epoll_ctl(w->epoll, EPOLL_CTL_MOD, c->fd, &ev);
    pthread_mutex_unlock(&w->lock);
}

void watch_body(watch *w, conn *c, size_t got) {
    pthread_mutex_lock(&w->lock);
    c->deadline_ns += (uint64_t)got * (1000000000u >> 16); /* a second for each 64 KiB */
    pthread_mutex_unlock(&w->lock);
}

void watch_refused(watch *w, conn *c) {
    pthread_mutex_lock(&w->lock);
    c->refused = true;
    c->deadline_ns = soon(2000);
    pthread_mutex_unlock(&w->lock);
}

void watch_publish(watch *w, http_req *q, gen_run *run) {
    pthread_mutex_lock(&w->lock);
    q->run = run;
    bool gone = atomic_load(&q->gone);
    if (gone) run_cancel(run);
    pthread_mutex_unlock(&w->lock);
}

void watch_gen(watch *w, http_req *q, choice *c, gen *g) {
    pthread_mutex_lock(&w->lock);
    c->g = g;
    if (g && atomic_load(&q->gone)) gen_cancel(g);
    pthread_mutex_unlock(&w->lock);
}

void watch_publish_exchange(watch *w, http_req *q, exchange *x) {
    pthread_mutex_lock(&w->lock);
    q->up = x;
    pthread_mutex_unlock(&w->lock);
}

/* ---- leaving ----------------------------------------------------------------------------------------------------- */
/* With the lock held. */
static void conn_gone(watch *w, conn *c) {
    if (!c->q || atomic_exchange(&c->q->gone, true)) return;
    if (c->q->run) run_cancel(c->q->run);
    if (c->q->up) exchange_cut(c->q->up);
    atomic_fetch_add(&w->s->n.hangups, 1);
    http_wake(c->q);
}

static void hang_up(watch *w, uint64_t key) {
    pthread_mutex_lock(&w->lock);
    size_t fd = (uint32_t)key;
    conn *c = fd < w->n_fd ? w->by_fd[fd] : NULL;
    if (c && c->serial == key >> 32) conn_gone(w, c);
    pthread_mutex_unlock(&w->lock);
}

/* MHD has written nothing on a connection whose request is not complete, so the answer can go straight to the socket.
 */
static void conn_expire(conn *c) {
    if ((c->phase == CONN_HEADERS || c->phase == CONN_BODY) && !c->refused) {
        error late = {0};
        error_set(&late, ERR_TIMEOUT, "the request did not arrive in time");
        reply_raw(c->fd, &late);
    }
    shutdown(c->fd, SHUT_RDWR); /* MHD sees the end and closes */
    c->deadline_ns = 0;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
/* A stream whose MHD side is awake but does not ask for bytes waits for its client. */
static void check_stream(watch *w, conn *c, uint64_t now) {
    http_req *q = c->q;
    if (!q || q->phase != PHASE_REPLIED || (!q->run && !q->up)) return;
    if (atomic_load(&q->wake) == WAKE_NOTIFIED) {
        if (!c->stalled_since) c->stalled_since = now;
        if (now - c->stalled_since > (uint64_t)w->s->o.stall_ms * 1000000u) {
            conn_gone(w, c);
            shutdown(c->fd, SHUT_RDWR);
        }
    } else if (q->run && now - atomic_load(&q->last_out_ns) > (uint64_t)w->s->o.keepalive_ms * 1000000u) {
        atomic_store(&q->last_out_ns, now);
        atomic_store(&q->ping, true);
        http_wake(q);
    }
}

static void tick(watch *w) {
    uint64_t now = clock_ns();
    pthread_mutex_lock(&w->lock);
    for (conn *c = w->first; c; c = c->next) {
        if (c->deadline_ns && now > c->deadline_ns) conn_expire(c);
        check_stream(w, c, now);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *watch_main(void *arg) {
    watch *w = arg;
    struct epoll_event ev[64];
    uint64_t next = soon(TICK_MS);
    for (;;) {
        int64_t left = (int64_t)(next - clock_ns()) / 1000000;
        int n = epoll_wait(w->epoll, ev, COUNT(ev), (int)MAX(left, 0));
        for (int i = 0; i < n; i++) {
            if (ev[i].data.u64 == UINT64_MAX) return NULL;
            hang_up(w, ev[i].data.u64);
        }
        if (clock_ns() < next) continue;
        tick(w);
        next = soon(TICK_MS);
    }
}

watch *watch_new(server *s, error *err) {
    watch *w = mem_alloc(sizeof *w);
    w->s = s;
    pthread_mutex_init(&w->lock, NULL);
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (w->epoll < 0 || w->stop_fd < 0 || epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->stop_fd, &ev) ||
        pthread_create(&w->thread, NULL, watch_main, w)) {
        error_errno(err, ERR_IO, "starting the connection watcher");
        close(w->epoll);
        close(w->stop_fd);
        free(w);
        return NULL;
    }
    return w;
}

void watch_free(watch *w) {
    if (!w) return;
    uint64_t one = 1;
    if (write(w->stop_fd, &one, sizeof one) == sizeof one) pthread_join(w->thread, NULL);
    close(w->epoll);
    close(w->stop_fd);
    pthread_mutex_destroy(&w->lock);
    free(w->by_fd);
    free(w);
}

void watch_cancel_all(watch *w) {
    pthread_mutex_lock(&w->lock);
    for (conn *c = w->first; c; c = c->next) {
        conn_gone(w, c);
        if (c->phase == CONN_BODY) shutdown(c->fd, SHUT_RDWR); /* its rest would be waited for */
    }
    pthread_mutex_unlock(&w->lock);
}

int watch_requests(watch *w) {
    int n = 0;
    pthread_mutex_lock(&w->lock);
    for (conn *c = w->first; c; c = c->next) n += c->q != NULL;
    pthread_mutex_unlock(&w->lock);
    return n;
}
