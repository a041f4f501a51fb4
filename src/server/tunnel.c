/* After an upgrade (WebSocket): bytes are copied both ways between the client and a child until one side ends. One
 * thread for all tunnels; 16 KiB each way at most are held, so a side that does not read stops the other.
 * Not here: the request that led here (exchange.c), frames (the child's business). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "front.h"

enum { HELD = 16 << 10 };

typedef struct tunnel tunnel;
/* One direction. */
typedef struct flow {
    buf held; /* owns; read and not yet written, from at on */
    size_t at;
    bool ended; /* the sender has ended; told to the receiver once all is written */
    bool told;
} flow;
struct tunnel {
    int fd[2];                             /* client, child; the child's is owned, the client's is MHD's */
    flow flow[2];                          /* [i]: from fd[i] to fd[!i] */
    struct MHD_UpgradeResponseHandle *urh; /* owns */
    bool hung[2];                          /* fd[i] is closed from the other side: no event of it is wanted any more */
    bool dead;
    tunnel *next, *prev;
};
struct tunnels {
    int epoll, stop_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    tunnel *first; /* [lock] owns */
    bool stopped;  /* [lock] */
};

static void flow_start(flow *f, str bytes) {
    if (bytes.n) buf_str(&f->held, bytes);
}

/* Copies what can be copied; false when the tunnel is broken. */
static bool flow_move(flow *f, int from, int to) {
    for (;;) {
        while (f->at < f->held.n) {
            ssize_t n = send(to, f->held.p + f->at, f->held.n - f->at, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0) return errno == EAGAIN || errno == EINTR;
            f->at += (size_t)n;
        }
        f->at = f->held.n = 0;
        if (f->ended) {
            if (!f->told) shutdown(to, SHUT_WR);
            f->told = true;
            return true;
        }
        buf_reserve(&f->held, HELD);
        ssize_t n = recv(from, f->held.p, HELD, MSG_DONTWAIT);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        f->ended = n == 0;
        f->held.n = (size_t)n;
    }
}

static uint32_t wanted(const tunnel *t, int i) {
    const flow *out = &t->flow[!i], *in = &t->flow[i];
    uint32_t ev = EPOLLONESHOT;
    if (!in->ended && in->at == in->held.n) ev |= EPOLLIN;
    if (out->at < out->held.n) ev |= EPOLLOUT;
    return ev;
}

/* Both sockets have one interest each; low bit of the pointer: which. */
static void watch_fd(const tunnels *s, tunnel *t, int i, int op) {
    struct epoll_event ev = {.events = wanted(t, i), .data.u64 = (uint64_t)(uintptr_t)t | (unsigned)i};
    epoll_ctl(s->epoll, op, t->fd[i], &ev);
}

/* With the lock held. */
static void tunnel_close(tunnels *s, tunnel *t) {
    if (t->prev)
        t->prev->next = t->next;
    else
        s->first = t->next;
    if (t->next) t->next->prev = t->prev;
    for (int i = 0; i < 2; i++) {
        epoll_ctl(s->epoll, EPOLL_CTL_DEL, t->fd[i], NULL);
        buf_free(&t->flow[i].held);
    }
    close(t->fd[1]);
    shutdown(t->fd[0], SHUT_RDWR);
    MHD_upgrade_action(t->urh, MHD_UPGRADE_ACTION_CLOSE);
    free(t);
}

static void tunnel_move(tunnels *s, tunnel *t) {
    bool ok = flow_move(&t->flow[0], t->fd[0], t->fd[1]) && flow_move(&t->flow[1], t->fd[1], t->fd[0]);
    bool over = t->flow[0].told && t->flow[1].told;
    for (int i = 0; i < 2; i++) over |= t->hung[i] && t->flow[i].told;
    t->dead = !ok || over; /* freed later: another event of this round may point here */
    for (int i = 0; i < 2 && !t->dead; i++)
        if (!t->hung[i]) watch_fd(s, t, i, EPOLL_CTL_MOD);
}

static void *tunnels_main(void *arg) {
    tunnels *s = arg;
    struct epoll_event ev[64];
    for (bool stop = false; !stop;) {
        int n = epoll_wait(s->epoll, ev, COUNT(ev), -1);
        pthread_mutex_lock(&s->lock);
        for (int i = 0; i < n; i++) {
            tunnel *t = (tunnel *)(uintptr_t)(ev[i].data.u64 & ~(uint64_t)1);
            stop |= t == NULL;
            if (!t || t->dead) continue;
            if (ev[i].events & (EPOLLHUP | EPOLLERR)) t->hung[ev[i].data.u64 & 1] = true;
            tunnel_move(s, t);
        }
        for (tunnel *t = s->first, *next; t; t = next) {
            next = t->next;
            if (t->dead || stop) tunnel_close(s, t);
        }
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

void tunnel_open(tunnels *s, int client, struct MHD_UpgradeResponseHandle *urh, int up, str early, str late) {
    tunnel *t = mem_alloc(sizeof *t);
    *t = (tunnel){.fd = {client, up}, .urh = urh};
    flow_start(&t->flow[0], early);
    flow_start(&t->flow[1], late);
    fcntl(client, F_SETFL, fcntl(client, F_GETFL) | O_NONBLOCK);
    pthread_mutex_lock(&s->lock);
    t->next = s->first;
    if (t->next) t->next->prev = t;
    s->first = t;
    for (int i = 0; i < 2; i++) watch_fd(s, t, i, EPOLL_CTL_ADD);
    tunnel_move(s, t);
    if (t->dead || s->stopped) tunnel_close(s, t);
    pthread_mutex_unlock(&s->lock);
}

tunnels *tunnels_new(error *err) {
    tunnels *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
    if (s->epoll >= 0 && s->stop_fd >= 0 && !epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->stop_fd, &ev) &&
        !pthread_create(&s->thread, NULL, tunnels_main, s))
        return s;
    error_errno(err, ERR_IO, "starting the thread of upgraded connections");
    if (s->epoll >= 0) close(s->epoll);
    if (s->stop_fd >= 0) close(s->stop_fd);
    free(s);
    return NULL;
}

int tunnels_count(tunnels *s) {
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (tunnel *t = s->first; t; t = t->next) n++;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void tunnels_stop(tunnels *s) {
    uint64_t one = 1;
    pthread_mutex_lock(&s->lock);
    bool again = s->stopped;
    s->stopped = true;
    pthread_mutex_unlock(&s->lock);
    if (!again && write(s->stop_fd, &one, sizeof one) == sizeof one) pthread_join(s->thread, NULL);
}

void tunnels_free(tunnels *s) {
    if (!s) return;
    tunnels_stop(s);
    close(s->epoll);
    close(s->stop_fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
