/* The children of --isolate: one engine process a model, started, watched, replaced, drained.
 *
 * One thread supervises: it starts children one at a time, asks each for its health, sees deaths (pidfd), decides who
 * leaves. A backend is OFF (no child), LOADING, READY, LEAVING (its requests end, its cache goes to SSD), DEAD (it will
 * be started again) or REFUSED (its child would not load; asked again after a while).
 *
 * Requests ask children_enter and are woken whenever something here changes. Not here: requests (exchange.c), what the
 * client sees (front.c). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "front.h"

enum {
    LOAD_MAX_MS = 15 * 60 * 1000,
    POLL_LOADING_MS = 50,
    POLL_READY_MS = 1000,
    ANSWER_MS = 5000, /* a child whose HTTP thread does not answer for so long is not healthy */
    EXIT_MS = 40000,  /* from SIGTERM to SIGKILL: it may have a cache to write */
    DEATHS = 3,       /* at most so many starts ... */
    DEATHS_MS = 60000 /* ... in this time */
};

typedef enum backend_state { B_OFF, B_LOADING, B_READY, B_LEAVING, B_DEAD, B_REFUSED } backend_state;
static const char *const state_names[] = {"off", "loading", "ready", "draining", "dead", "refused"};

struct backend {
    const pool_model *model; /* borrows */
    backend_state state;
    uint64_t need;       /* bytes to serve at all */
    bool measured;       /* o.need was asked */
    bool wanted;         /* a request waits for it; or it is the default at the start */
    bool cold;           /* being loaded because a request asked: requests wait for it */
    bool healthy;        /* what the last poll said */
    bool draining;       /* drain_main runs */
    bool was_ready;      /* this child has served */
    bool told;           /* SIGTERM was sent; a second one would cut short what it still writes */
    pid_t pid;           /* 0: no child */
    int pidfd;           /* owns; -1 */
    unsigned starts;     /* names its socket */
    int restarts;        /* after deaths */
    int waiting, active; /* requests */
    uint64_t wanted_ns, started_ns, used_ns, poll_ns, not_before_ns, kill_ns;
    uint64_t death_ns[DEATHS]; /* the last ones, newest first */
    pthread_t drainer;
    children *pool; /* borrows */
    char socket[sizeof((struct sockaddr_un *)0)->sun_path];
    char why[300]; /* why it does not serve */
};

struct children {
    front *f; /* borrows */
    pool_opts o;
    backend *b; /* owns: [o.n_models]; the first is the default */
    char dir[64];
    char **env; /* owns: the children's */
    int wake_fd;
    bool started, stopping, fatal, said_ready;
    pthread_t thread;
    pthread_mutex_t mu;   /* everything of backends */
    pthread_cond_t quiet; /* some backend's `active` fell to 0 */
};

static uint64_t after_ms(int ms) {
    return clock_ns() + (uint64_t)ms * 1000000u;
}

static void supervisor_wake(children *p) {
    uint64_t one = 1;
    ssize_t n = write(p->wake_fd, &one, sizeof one);
    (void)n; /* full: it is awake */
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
static uint64_t resident_bytes(pid_t pid) {
    char path[40];
    unsigned long long size, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGE_SIZE);
}

/* What a child may grow to: an even share, or what its model needs. */
static uint64_t share(const children *p, const backend *b) {
    return MIN(MAX(p->o.budget / (uint64_t)p->o.resident_max, b->need), p->o.budget);
}

/* Do all children fit when each has grown to its share? */
static bool fits_for_good(const children *p, const backend *b) {
    uint64_t sum = share(p, b);
    bool alone = true;
    for (size_t i = 0; i < p->o.n_models; i++) {
        if (&p->b[i] == b || !p->b[i].pid) continue;
        sum += share(p, &p->b[i]);
        alone = false;
    }
    return alone || !p->o.budget || sum <= p->o.budget;
}

/* Do they fit for now: what the others have in memory, and what this one needs to serve? */
static bool fits_for_now(const children *p, const backend *b) {
    uint64_t sum = b->need;
    for (size_t i = 0; i < p->o.n_models; i++)
        if (p->b[i].pid) sum += resident_bytes(p->b[i].pid);
    return p->o.budget && sum <= p->o.budget;
}

/* ---- starting a child -------------------------------------------------------------------------------------------- */
/* The children's environment: ours, but they do not talk to the service manager, and know whose they are. */
static char **child_env(void) {
    size_t n = 0;
    while (environ[n]) n++;
    char **env = mem_alloc((n + 2) * sizeof *env), mine[40];
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "NOTIFY_SOCKET=", 14) && strncmp(environ[i], "HEARTH_FRONT=", 13))
            env[k++] = mem_strdup(environ[i]);
    snprintf(mine, sizeof mine, "HEARTH_FRONT=%d", (int)getpid());
    env[k] = mem_strdup(mine);
    return env;
}

static char **child_argv(const children *p, const backend *b, arena *a) {
    char **argv = arena_array(a, char *, p->o.n_argv + 10);
    size_t n = 0;
    for (; n < p->o.n_argv; n++) argv[n] = arena_printf(a, "%s", p->o.argv[n]);
    const char *more[] = {"--unix", b->socket, "--model", b->model->path, "--model-id", b->model->id};
    for (size_t i = 0; i < COUNT(more); i++) argv[n++] = arena_printf(a, "%s", more[i]);
    if (p->o.budget && p->o.n_models > 1) {
        argv[n++] = arena_printf(a, "--memory-budget");
        argv[n++] = arena_printf(a, "%.9f", (double)share(p, b) / 1e9);
    }
    return argv;
}

/* Between fork and exec: only calls that are safe there. */
static void child_become(const char *program, char **argv, char **env, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0); /* Ctrl-C at the terminal is the parent's */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    syscall(SYS_close_range, 3u, ~0u, 0u);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() == parent) execve(program, argv, env);
    kill(getpid(), SIGKILL); /* the parent went away meanwhile, or there is no such program */
}

/* With the lock held. */
static void backend_start(children *p, backend *b, bool cold) {
    snprintf(b->socket, sizeof b->socket, "%s/engine-%zu-%u.sock", p->dir, (size_t)(b - p->b), b->starts++);
    arena *a = arena_new(0);
    char **argv = child_argv(p, b, a);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) child_become(p->o.program, argv, p->env, parent);
    arena_free(a);
    b->started_ns = b->poll_ns = clock_ns();
    b->kill_ns = after_ms(LOAD_MAX_MS);
    b->wanted = b->was_ready = b->healthy = b->told = false;
    b->cold = cold;
    if (pid < 0) {
        snprintf(b->why, sizeof b->why, "its process cannot be started: %s", strerror(errno));
        b->state = B_DEAD;
        b->not_before_ns = after_ms(p->o.backoff_ms);
        return;
    }
    b->pid = pid;
    b->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    b->state = B_LOADING;
    snprintf(b->why, sizeof b->why, "the model is being loaded");
    log_info("engine process %d is started for %s", (int)pid, b->model->id);
}

/* ---- the end of a child ------------------------------------------------------------------------------------------ */
/* When may a child that has died be started again? At once, after the back-off if it died young, and never so that more
 * than DEATHS starts fall into DEATHS_MS. */
static uint64_t restart_time(const children *p, const backend *b) {
    uint64_t now = b->death_ns[0], at = now;
    if (now - b->started_ns < (uint64_t)p->o.quick_ms * 1000000u) at = now + (uint64_t)p->o.backoff_ms * 1000000u;
    uint64_t oldest = b->death_ns[DEATHS - 1], window = (uint64_t)DEATHS_MS * 1000000u;
    return oldest && oldest + window > at ? oldest + window : at;
}

/* With the lock held. A child that ends by itself with an error before it has served will not do better next time. */
static void backend_ended(children *p, backend *b, int status) {
    bool refused = WIFEXITED(status) && WEXITSTATUS(status) && !b->was_ready;
    if (b->pidfd >= 0) close(b->pidfd);
    unlink(b->socket);
    b->pidfd = -1;
    pid_t pid = b->pid;
    b->pid = 0;
    b->healthy = false;
    if (b->state == B_LEAVING || p->stopping) {
        b->state = B_OFF;
        b->why[0] = 0;
        log_info("engine process %d of %s has left", (int)pid, b->model->id);
        return;
    }
    memmove(b->death_ns + 1, b->death_ns, (DEATHS - 1) * sizeof *b->death_ns);
    b->death_ns[0] = clock_ns();
    if (WIFSIGNALED(status))
        snprintf(b->why, sizeof b->why, "the engine's process died of signal %d and is being started again",
                 WTERMSIG(status));
    else
        snprintf(b->why, sizeof b->why,
                 refused ? "the engine's process refused to serve (exit code %d)"
                         : "the engine's process ended with code %d and is being started again",
                 WEXITSTATUS(status));
    log_error("%s (%s): %s", b->model->id, b->was_ready ? "had served" : "was being loaded", b->why);
    b->state = refused ? B_REFUSED : B_DEAD;
    b->not_before_ns = refused ? after_ms(p->o.backoff_ms) : restart_time(p, b);
    b->restarts += !refused;
    if (refused && b == p->b && !p->said_ready && p->o.on_refused) {
        p->fatal = true;
        p->o.on_refused(p->o.arg, WEXITSTATUS(status));
    }
}

static bool reap(children *p) {
    bool any = false;
    for (size_t i = 0; i < p->o.n_models; i++) {
        backend *b = &p->b[i];
        int status;
        if (!b->pid || waitpid(b->pid, &status, WNOHANG) != b->pid) continue;
        backend_ended(p, b, status);
        any = true;
    }
    return any;
}

/* With the lock held. */
static void child_end(backend *b) {
    if (b->pid && !b->told) kill(b->pid, SIGTERM);
    b->told = true;
}

/* A child leaves: its requests end, its cache goes to SSD, then it is asked to end. */
static void *drain_main(void *arg) {
    backend *b = arg;
    children *p = b->pool;
    struct timespec until = clock_in_ms(p->o.drain_ms);
    pthread_mutex_lock(&p->mu);
    while (b->active && b->pid && !p->stopping)
        if (pthread_cond_timedwait(&p->quiet, &p->mu, &until) == ETIMEDOUT) break;
    char path[sizeof b->socket];
    memcpy(path, b->socket, sizeof path);
    bool hurry = p->stopping; /* a child writes its cache on SIGTERM too */
    pthread_mutex_unlock(&p->mu);
    int status = 0;
    buf body = {0};
    error e = {0};
    if (hurry)
        log_debug("%s leaves", b->model->id);
    else if (upstream_fetch(path, "POST /admin/drain HTTP/1.0\r\nContent-Length: 0\r\n\r\n", p->o.drain_ms, &status,
                            &body, &e) &&
             status == 200)
        log_info("%s leaves: %.*s", b->model->id, (int)MIN(body.n, 200), body.p);
    else
        log_warn("%s leaves without having been drained: %s", b->model->id, e.code ? e.msg : "it refused");
    buf_free(&body);
    pthread_mutex_lock(&p->mu);
    child_end(b);
    b->kill_ns = after_ms(EXIT_MS);
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

/* With the lock held. */
static void backend_leave(children *p, backend *b) {
    if (b->draining) pthread_join(b->drainer, NULL); /* of an earlier life; it has ended */
    b->state = B_LEAVING;
    b->kill_ns = after_ms(p->o.drain_ms * 2 + EXIT_MS);
    b->draining = pthread_create(&b->drainer, NULL, drain_main, b) == 0;
    if (!b->draining) child_end(b);
}

/* ---- who runs ---------------------------------------------------------------------------------------------------- */
static int count(const children *p, backend_state state) {
    int n = 0;
    for (size_t i = 0; i < p->o.n_models; i++) n += p->b[i].state == state;
    return n;
}

/* The one that was used longest ago, of those whose waiting requests have all got in. */
static backend *least_used(children *p) {
    backend *found = NULL;
    for (size_t i = 0; i < p->o.n_models; i++) {
        backend *b = &p->b[i];
        if (b->state == B_READY && !b->waiting && (!found || b->used_ns < found->used_ns)) found = b;
    }
    return found;
}

static backend *first_wanted(children *p, uint64_t now) {
    backend *found = NULL;
    for (size_t i = 0; i < p->o.n_models; i++) {
        backend *b = &p->b[i];
        if (b->state == B_REFUSED && now >= b->not_before_ns) b->state = B_OFF;
        if (b->state == B_OFF && b->wanted && (!found || b->wanted_ns < found->wanted_ns)) found = b;
    }
    return found;
}

/* Starts what is wanted, one at a time; makes room for it. */
static void decide(children *p, uint64_t now) {
    for (size_t i = 0; i < p->o.n_models; i++) {
        backend *b = &p->b[i];
        if (b->state == B_DEAD && now >= b->not_before_ns && !p->fatal) backend_start(p, b, false);
        if (b->pid && now >= b->kill_ns && b->state != B_READY) kill(b->pid, SIGKILL);
    }
    int ready = count(p, B_READY), loading = count(p, B_LOADING), dead = count(p, B_DEAD),
        leaving = count(p, B_LEAVING);
    backend *want = loading ? NULL : first_wanted(p, now);
    if (!want) {
        if (!loading && ready + dead > p->o.resident_max) { /* one came while another was still serving */
            backend *victim = least_used(p);
            if (victim) backend_leave(p, victim);
        }
        return;
    }
    bool room = ready + dead + leaving < p->o.resident_max && fits_for_good(p, want);
    bool beside = !leaving && ready + dead <= p->o.resident_max && fits_for_now(p, want);
    if (room || beside || ready + dead + leaving == 0) {
        backend_start(p, want, p->said_ready || want != p->b);
    } else if (!leaving) {
        backend *victim = least_used(p);
        if (victim) backend_leave(p, victim);
    }
}

/* ---- health ------------------------------------------------------------------------------------------------------ */
/* Without the lock: asks one child. */
static void poll_child(children *p, backend *b) {
    char path[sizeof b->socket];
    pthread_mutex_lock(&p->mu);
    uint64_t now = clock_ns();
    bool ask = (b->state == B_LOADING || b->state == B_READY) && now >= b->poll_ns;
    unsigned life = b->starts;
    memcpy(path, b->socket, sizeof path);
    pthread_mutex_unlock(&p->mu);
    if (!ask) return;
    int status = 0;
    buf body = {0};
    error e = {0};
    bool answered = upstream_fetch(path, "GET /health HTTP/1.0\r\n\r\n", ANSWER_MS, &status, &body, &e);
    bool healthy = answered && status == 200, first = false;
    pthread_mutex_lock(&p->mu);
    bool same = b->starts == life && b->pid;
    if (same) {
        b->healthy = healthy;
        if (healthy && b->state == B_LOADING) {
            b->state = B_READY;
            b->was_ready = true;
            b->used_ns = clock_ns();
            first = b == p->b && !p->said_ready;
            log_info("%s is served by process %d", b->model->id, (int)b->pid);
        }
        b->poll_ns = after_ms(b->state == B_READY ? POLL_READY_MS : POLL_LOADING_MS);
        if (!healthy) { /* its own words, when it has any */
            arena *a = arena_new(0);
            error ignored = {0};
            const json *said = json_get(json_get(json_read(a, buf_view(&body), NULL, &ignored), "error"), "message");
            str text = json_str(said, b->state == B_LOADING ? STR("the model is being loaded") : str_of(e.msg));
            snprintf(b->why, sizeof b->why, "%.*s", (int)MIN(text.n, 280), text.p);
            arena_free(a);
        }
    }
    p->said_ready |= first;
    pthread_mutex_unlock(&p->mu);
    buf_free(&body);
    if (first && p->o.on_ready) p->o.on_ready(p->o.arg);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
static int sleep_ms(const children *p) {
    uint64_t now = clock_ns(), next = now + 1000000000u;
    for (size_t i = 0; i < p->o.n_models; i++) {
        const backend *b = &p->b[i];
        if (b->state == B_LOADING || b->state == B_READY) next = MIN(next, b->poll_ns);
        if (b->state == B_DEAD || (b->state == B_REFUSED && b->wanted)) next = MIN(next, b->not_before_ns);
    }
    return next > now ? (int)((next - now) / 1000000u) + 1 : 0;
}

/* Lets every child end by itself (it flushes), then by force. On this thread: a child gets SIGTERM when the thread that
 * started it ends, and two of them mean "at once". */
static void children_end(children *p) {
    uint64_t until = after_ms(EXIT_MS);
    for (bool forced = false;; forced = forced || clock_ns() > until) {
        bool any = false;
        pthread_mutex_lock(&p->mu);
        reap(p);
        for (size_t i = 0; i < p->o.n_models; i++) {
            any |= p->b[i].pid != 0;
            child_end(&p->b[i]);
            if (forced && p->b[i].pid) kill(p->b[i].pid, SIGKILL);
        }
        pthread_mutex_unlock(&p->mu);
        if (!any) return;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

/* Without the lock: how much the models that are wanted need. Headers are read for that, once. */
static void measure(children *p) {
    for (size_t i = 0; i < p->o.n_models && p->o.need && p->o.n_models > 1; i++) {
        backend *b = &p->b[i];
        pthread_mutex_lock(&p->mu);
        bool ask = b->wanted && !b->measured;
        pthread_mutex_unlock(&p->mu);
        if (!ask) continue;
        uint64_t need = p->o.need(p->o.arg, b->model->path);
        pthread_mutex_lock(&p->mu);
        b->measured = true;
        if (need) b->need = need;
        pthread_mutex_unlock(&p->mu);
    }
}

static void *children_main(void *arg) {
    children *p = arg;
    struct pollfd *fds = mem_alloc((p->o.n_models + 1) * sizeof *fds);
    for (bool stop = false; !stop;) {
        measure(p);
        pthread_mutex_lock(&p->mu);
        bool changed = reap(p);
        stop = p->stopping;
        if (!stop) decide(p, clock_ns());
        nfds_t n = 0;
        fds[n++] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
        for (size_t i = 0; i < p->o.n_models; i++)
            if (p->b[i].pidfd >= 0) fds[n++] = (struct pollfd){.fd = p->b[i].pidfd, .events = POLLIN};
        int ms = sleep_ms(p);
        pthread_mutex_unlock(&p->mu);
        if (changed) front_wake_waiting(p->f);
        if (stop) break;
        poll(fds, n, ms);
        uint64_t seen;
        ssize_t got = read(p->wake_fd, &seen, sizeof seen);
        (void)got; /* nothing in it: something else woke us */
        for (size_t i = 0; i < p->o.n_models; i++) poll_child(p, &p->b[i]);
        front_wake_waiting(p->f); /* also without news: patience has an end */
    }
    free(fds);
    children_end(p);
    return NULL;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */
backend *children_find(children *p, str id) {
    for (size_t i = 0; i < p->o.n_models; i++)
        if (str_is(id, p->b[i].model->id)) return &p->b[i];
    return p->b;
}

static children_answer refuse_entry(const backend *b, error *err) {
    error_set(err, ERR_UNAVAILABLE, "%s", b->why[0] ? b->why : "the model is being loaded");
    return POOL_NO;
}

/* With the lock held. */
static children_answer enter(children *p, backend *b, bool patient, error *err) {
    if (p->stopping || p->fatal) return refuse_entry(b, err);
    switch (b->state) {
    case B_READY: return POOL_READY;
    case B_LOADING: return b->cold || patient ? POOL_WAIT : refuse_entry(b, err);
    case B_DEAD: return patient ? POOL_WAIT : refuse_entry(b, err);
    case B_REFUSED: return refuse_entry(b, err);
    default:
        if (!b->wanted) {
            b->wanted = true;
            b->wanted_ns = clock_ns();
            supervisor_wake(p);
        }
        return p->said_ready || b != p->b ? POOL_WAIT : refuse_entry(b, err);
    }
}

children_answer children_enter(children *p, children_place *at, bool patient, char *path, error *err) {
    backend *b = at->b;
    pthread_mutex_lock(&p->mu);
    children_answer now = enter(p, b, patient, err);
    b->waiting += (now == POOL_WAIT) - at->waiting;
    at->waiting = now == POOL_WAIT;
    if (now == POOL_READY) {
        b->active++;
        at->active = true;
        b->used_ns = clock_ns();
        memcpy(path, b->socket, sizeof b->socket);
    }
    pthread_mutex_unlock(&p->mu);
    return now;
}

void children_leave(children *p, children_place *at) {
    if (!at->waiting && !at->active) return;
    backend *b = at->b;
    pthread_mutex_lock(&p->mu);
    b->waiting -= at->waiting;
    if (at->active) {
        b->used_ns = clock_ns();
        if (--b->active == 0) {
            pthread_cond_broadcast(&p->quiet);
            if (b->state == B_DEAD) supervisor_wake(p);
        }
    }
    at->waiting = at->active = false;
    pthread_mutex_unlock(&p->mu);
}

/* ---- what others ask --------------------------------------------------------------------------------------------- */
size_t children_models(const children *p) {
    return p->o.n_models;
}

const char *children_model_id(const children *p, size_t i) {
    return p->b[i].model->id;
}

bool children_socket(children *p, size_t i, char *path) {
    pthread_mutex_lock(&p->mu);
    bool serves = p->b[i].state == B_READY;
    memcpy(path, p->b[i].socket, sizeof p->b[i].socket);
    pthread_mutex_unlock(&p->mu);
    return serves;
}

/* Healthy: some child serves and said so, or all have left on purpose and the next request starts one. */
bool children_healthy(children *p, error *err) {
    pthread_mutex_lock(&p->mu);
    bool ok = false;
    const backend *bad = NULL;
    for (size_t i = 0; i < p->o.n_models && !ok; i++) {
        const backend *b = &p->b[i];
        ok = b->state == B_READY && b->healthy;
        if (!bad && b->state != B_OFF && b->state != B_LEAVING) bad = b;
    }
    if (!ok && bad)
        error_set(err, ERR_UNAVAILABLE, "%s", bad->why[0] ? bad->why : "the engine's process does not serve");
    if (!ok && !bad) error_set(err, ERR_UNAVAILABLE, "the model is being loaded");
    pthread_mutex_unlock(&p->mu);
    return ok;
}

static void describe(const backend *b, buf *out) {
    buf_puts(out, "{\"id\":");
    json_write_string(out, str_of(b->model->id));
    buf_printf(out, ",\"state\":\"%s\",\"pid\":", state_names[b->state]);
    buf_printf(out, b->pid ? "%d" : "null", (int)b->pid);
    buf_printf(out, ",\"restarts\":%d,\"active\":%d,\"waiting\":%d}", b->restarts, b->active, b->waiting);
}

void children_describe(children *p, buf *out) {
    pthread_mutex_lock(&p->mu);
    const backend *d = p->b;
    int restarts = 0;
    for (size_t i = 0; i < p->o.n_models; i++) restarts += p->b[i].restarts;
    buf_puts(out, "{\"isolated\":true,\"pid\":");
    buf_printf(out, d->pid ? "%d" : "null", (int)d->pid);
    buf_printf(out, ",\"restarts\":%d,\"state\":\"%s\",\"socket\":", restarts, state_names[d->state]);
    if (d->pid)
        json_write_string(out, str_of(d->socket));
    else
        buf_puts(out, "null");
    if (p->o.n_models > 1) {
        buf_puts(out, ",\"pool\":{\"resident\":[");
        bool first = true;
        for (size_t i = 0; i < p->o.n_models; i++) {
            if (!p->b[i].pid) continue;
            if (!first) buf_putc(out, ',');
            json_write_string(out, str_of(p->b[i].model->id));
            first = false;
        }
        buf_puts(out, "],\"default\":");
        json_write_string(out, str_of(d->model->id));
        buf_printf(out, ",\"max\":%d,\"models\":[", p->o.resident_max);
        for (size_t i = 0; i < p->o.n_models; i++) {
            if (i) buf_putc(out, ',');
            describe(&p->b[i], out);
        }
        buf_puts(out, "]}");
    }
    buf_putc(out, '}');
    pthread_mutex_unlock(&p->mu);
}

void children_metrics(children *p, buf *out) {
    static const struct {
        const char *name, *type, *help;
    } m[] = {{"hearth_engine_up", "gauge", "1 when the model's engine process serves (--isolate)"},
             {"hearth_engine_restarts_total", "counter", "engine processes started again after a death (--isolate)"},
             {"hearth_engine_waiting", "gauge", "requests that wait for the engine process to serve (--isolate)"}};
    pthread_mutex_lock(&p->mu);
    for (size_t k = 0; k < COUNT(m); k++) {
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", m[k].name, m[k].help, m[k].name, m[k].type);
        for (size_t i = 0; i < p->o.n_models; i++) {
            const backend *b = &p->b[i];
            int value[] = {b->state == B_READY && b->healthy, b->restarts, b->waiting};
            buf_printf(out, "%s{model=", m[k].name);
            json_write_string(out, str_of(b->model->id));
            buf_printf(out, "} %d\n", value[k]);
        }
    }
    pthread_mutex_unlock(&p->mu);
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */
/* A directory of ours alone (0700) for the sockets. */
static bool socket_dir(children *p, error *err) {
    const char *run = getenv("XDG_RUNTIME_DIR");
    snprintf(p->dir, sizeof p->dir, "%s/hearth-XXXXXX", run && *run == '/' && strlen(run) < 40 ? run : "/tmp");
    if (mkdtemp(p->dir)) return true;
    snprintf(p->dir, sizeof p->dir, "/tmp/hearth-XXXXXX");
    if (mkdtemp(p->dir)) return true;
    p->dir[0] = 0;
    return error_errno(err, ERR_IO, "making a directory for the engine's socket in /tmp");
}

children *children_new(front *f, const pool_opts *o, error *err) {
    children *p = mem_alloc(sizeof *p);
    p->f = f;
    p->o = *o;
    if (!p->o.resident_max) p->o.resident_max = 1;
    if (!p->o.drain_ms) p->o.drain_ms = 120000;
    if (!p->o.quick_ms) p->o.quick_ms = 10000;
    if (!p->o.backoff_ms) p->o.backoff_ms = 5000;
    p->b = mem_alloc(o->n_models * sizeof *p->b);
    for (size_t i = 0; i < o->n_models; i++)
        p->b[i] = (backend){.model = &o->models[i], .need = o->models[i].bytes, .pidfd = -1, .pool = p};
    p->b[0].wanted = true;
    p->env = child_env();
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&p->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->quiet, &attr);
    pthread_condattr_destroy(&attr);
    if (socket_dir(p, err) && (p->wake_fd >= 0 || error_errno(err, ERR_IO, "starting the supervisor"))) {
        p->started = pthread_create(&p->thread, NULL, children_main, p) == 0;
        if (p->started) return p;
        error_set(err, ERR_INTERNAL, "cannot start the supervisor's thread");
    }
    children_free(p);
    return NULL;
}

void children_stop(children *p) {
    pthread_mutex_lock(&p->mu);
    p->stopping = true;
    pthread_cond_broadcast(&p->quiet);
    pthread_mutex_unlock(&p->mu);
    supervisor_wake(p);
    if (!p->started) return;
    p->started = false;
    pthread_join(p->thread, NULL);
    for (size_t i = 0; i < p->o.n_models; i++)
        if (p->b[i].draining) pthread_join(p->b[i].drainer, NULL);
}

void children_free(children *p) {
    if (!p) return;
    children_stop(p);
    if (p->dir[0]) rmdir(p->dir);
    if (p->wake_fd >= 0) close(p->wake_fd);
    for (char **e = p->env; *e; e++) free(*e);
    free(p->env);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->quiet);
    free(p->b);
    free(p);
}
