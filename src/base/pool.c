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
#include "pool.h"

/* About 20 µs of pauses: longer than the gaps inside a decode step, shorter than what an idle server would notice. */
enum { SPINS = 4000, THREADS_MAX = 256 };

struct pool {
    int n;
    pthread_t *threads; /* owns; n-1 workers */
    void (*fn)(void *arg, int task, int worker);
    void *arg;
    int n_tasks;
    atomic_bool stop;
    _Alignas(64) atomic_uint epoch;   /* a job's number; futex word of sleeping workers */
    _Alignas(64) atomic_int sleeping; /* workers inside the futex */
    _Alignas(64) atomic_int next;     /* next task to hand out */
    _Alignas(64) atomic_int active;   /* workers that have not finished the present job; futex word of the caller */
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

static void work(pool *p, int worker) {
    for (int t; (t = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n_tasks;)
        p->fn(p->arg, t, worker);
}

static unsigned wait_for_job(pool *p, unsigned seen) {
    unsigned now;
    for (int i = 0; i < SPINS; i++) {
        if ((now = atomic_load_explicit(&p->epoch, memory_order_acquire)) != seen) return now;
        pause_cpu();
    }
    atomic_fetch_add(&p->sleeping, 1);
    while ((now = atomic_load(&p->epoch)) == seen) futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->sleeping, 1);
    return now;
}

static void *run_worker(void *arg) {
    start s = *(start *)arg;
    free(arg);
    for (unsigned seen = 0;;) {
        seen = wait_for_job(s.p, seen);
        if (atomic_load(&s.p->stop)) return NULL;
        work(s.p, s.worker);
        if (atomic_fetch_sub_explicit(&s.p->active, 1, memory_order_acq_rel) == 1) futex_wake(&s.p->active, 1);
    }
}

void pool_run(pool *p, int n_tasks, void (*fn)(void *arg, int task, int worker), void *arg) {
    if (p->n == 1 || n_tasks <= 1) {
        for (int t = 0; t < n_tasks; t++) fn(arg, t, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->active, p->n - 1, memory_order_relaxed);
    atomic_fetch_add(&p->epoch, 1); /* sequentially consistent with `sleeping`, so that no worker misses it */
    if (atomic_load(&p->sleeping)) futex_wake(&p->epoch, p->n);
    work(p, 0);
    for (int i = 0, left; (left = atomic_load_explicit(&p->active, memory_order_acquire)) != 0;) {
        if (i++ < SPINS)
            pause_cpu();
        else
            futex_wait(&p->active, (unsigned)left);
    }
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
    atomic_fetch_add(&p->epoch, 1);
    futex_wake(&p->epoch, p->n);
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

/* CPUs worth of quota of our control group, rounded up; 0: none. */
static int cgroup_cpus(void) {
    buf b = {0};
    long quota = -1, period = 0;
    if (file_read(&b, "/sys/fs/cgroup/cpu.max", 200, NULL)) {
        if (sscanf(b.p, "%ld %ld", &quota, &period) != 2) quota = -1;
    } else {
        b.n = 0;
        if (file_read(&b, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", 200, NULL)) quota = strtol(b.p, NULL, 10);
        b.n = 0;
        if (file_read(&b, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", 200, NULL)) period = strtol(b.p, NULL, 10);
    }
    buf_free(&b);
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int pool_threads_default(void) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &set) && first_sibling(c, &set)) n++;
    int quota = cgroup_cpus();
    if (quota && quota < n) n = quota;
    return MAX(1, MIN(n, THREADS_MAX));
}
