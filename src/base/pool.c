/* The compute pool: threads, task counter, spin-then-futex. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "limit.h"
#include "pool.h"

/* Longer than the gaps inside a decode step, shorter than what an idle server would notice. */
enum { SPIN_NS = 100000, PAUSES_PER_CLOCK = 32, THREADS_MAX = 256, TASK_BITS = 24 };

/* A job's tasks are handed out by one atomic word: its number, how many tasks it has, and the next one. A worker that
 * comes late or is asleep is not waited for: a job ends when its tasks are done, and a late ticket is beyond n_tasks or
 * belongs to the next job, whose description is in place before its tickets are. */
typedef uint64_t ticket; /* job (16 bits) | n_tasks (24) | next (24) */
static uint32_t ticket_next(ticket t) {
    return t & ((1u << TASK_BITS) - 1);
}
static uint32_t ticket_tasks(ticket t) {
    return t >> TASK_BITS & ((1u << TASK_BITS) - 1);
}
static bool ticket_open(ticket t) {
    return ticket_next(t) < ticket_tasks(t);
}

struct pool {
    int n;
    pthread_t *threads; /* owns; n-1 workers */
    void (*fn)(void *arg, int task, int worker);
    void *arg;
    uint32_t job;
    atomic_bool stop;
    _Alignas(64) _Atomic ticket tickets;
    _Alignas(64) atomic_uint posted;  /* counts jobs; futex word of sleeping workers */
    _Alignas(64) atomic_int sleeping; /* workers inside the futex */
    _Alignas(64) atomic_int left;     /* tasks of the job that are not done; futex word of the caller */
    _Alignas(64) atomic_bool caller_sleeps;
};

typedef struct start {
    pool *p;
    int worker;
} start;

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(void *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void futex_wake(void *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes tasks until none is left. */
static void work(pool *p, int worker) {
    while (ticket_open(atomic_load_explicit(&p->tickets, memory_order_relaxed))) {
        ticket t = atomic_fetch_add_explicit(&p->tickets, 1, memory_order_acq_rel);
        if (!ticket_open(t)) break;
        p->fn(p->arg, (int)ticket_next(t), worker); /* this task is not done, so the job cannot be replaced under us */
        if (atomic_fetch_sub_explicit(&p->left, 1, memory_order_acq_rel) == 1 && atomic_load(&p->caller_sleeps))
            futex_wake(&p->left, 1);
    }
}

static bool spin_until(const void *word, bool (*ready)(const void *word, unsigned seen), unsigned seen) {
    for (uint64_t end = 0;;) {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (ready(word, seen)) return true;
            pause_cpu();
        }
        uint64_t now = clock_ns();
        if (!end) end = now + SPIN_NS;
        if (now > end) return false;
    }
}

static bool job_posted(const void *word, unsigned seen) {
    return atomic_load_explicit((const atomic_uint *)word, memory_order_acquire) != seen;
}
static bool all_done(const void *word, unsigned seen) {
    return atomic_load_explicit((const atomic_int *)word, memory_order_acquire) == 0;
}

static unsigned wait_for_job(pool *p, unsigned seen) {
    if (!spin_until(&p->posted, job_posted, seen)) {
        atomic_fetch_add(&p->sleeping, 1);
        while (atomic_load(&p->posted) == seen) futex_wait(&p->posted, seen);
        atomic_fetch_sub(&p->sleeping, 1);
    }
    return atomic_load(&p->posted);
}

static void *run_worker(void *arg) {
    start s = *(start *)arg;
    free(arg);
    for (unsigned seen = 0;;) {
        seen = wait_for_job(s.p, seen);
        if (atomic_load(&s.p->stop)) return NULL;
        work(s.p, s.worker);
    }
}

/* Sequentially consistent with `sleeping`: a worker either sees the new count or is counted asleep. */
static void post(pool *p) {
    atomic_fetch_add(&p->posted, 1);
    if (atomic_load(&p->sleeping)) futex_wake(&p->posted, p->n);
}

static void wait_for_end(pool *p) {
    if (spin_until(&p->left, all_done, 0)) return;
    atomic_store(&p->caller_sleeps, true);
    for (int left; (left = atomic_load(&p->left)) != 0;) futex_wait(&p->left, (unsigned)left);
    atomic_store(&p->caller_sleeps, false);
}

void pool_run(pool *p, int n_tasks, void (*fn)(void *arg, int task, int worker), void *arg) {
    if (p->n == 1 || n_tasks <= 1 || n_tasks >= 1 << (TASK_BITS - 1)) {
        for (int t = 0; t < n_tasks; t++) fn(arg, t, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->left, n_tasks, memory_order_relaxed);
    p->job++;
    atomic_store_explicit(&p->tickets, (ticket)(p->job & 0xffff) << (2 * TASK_BITS) | (ticket)n_tasks << TASK_BITS,
                          memory_order_release);
    post(p);
    work(p, 0);
    wait_for_end(p);
}

pool *pool_new(int n) {
    if (n <= 0) n = pool_threads_default();
    if (n > THREADS_MAX) n = THREADS_MAX;
    pool *p = NULL;
    if (posix_memalign((void **)&p, 64, sizeof *p) != 0) abort();
    memset(p, 0, sizeof *p);
    p->threads = mem_alloc((size_t)n * sizeof *p->threads);
    p->n = 1;
    for (int i = 1; i < n; i++) {
        start *s = mem_alloc(sizeof *s);
        *s = (start){p, i};
        if (pthread_create(&p->threads[i - 1], NULL, run_worker, s) != 0) {
            free(s); /* the system refuses more threads: the pool works with those it has */
            log_warn("only %d of %d compute threads could be started", i, n);
            break;
        }
        p->n = i + 1;
    }
    return p;
}

void pool_free(pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    post(p);
    for (int i = 1; i < p->n; i++) pthread_join(p->threads[i - 1], NULL);
    free(p->threads);
    free(p);
}

int pool_size(const pool *p) {
    return p->n;
}

/* A CPU counts when it is the first of its core's hyper-thread siblings that we may use. */
static bool first_sibling(int cpu, const cpu_set_t *allowed) {
    char path[100], text[200] = "";
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    for (char *p = text; *p;) {
        char *end;
        long from = strtol(p, &end, 10), to = from;
        if (end == p) break;
        if (*end == '-') to = strtol(end + 1, &end, 10);
        for (long c = from; c <= to && c < CPU_SETSIZE; c++)
            if (c < cpu && CPU_ISSET((size_t)c, allowed)) return false;
        p = *end == ',' ? end + 1 : end;
        if (*end != ',') break;
    }
    return true;
}

int pool_threads_default(void) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &set) && first_sibling(c, &set)) n++;
    int quota = limit_cpus();
    if (quota && quota < n) n = quota;
    return MAX(1, MIN(n, THREADS_MAX));
}
