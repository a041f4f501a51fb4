/* The compute pool: a fixed set of threads that run one job at a time, split into tasks.
 *
 * Workers spin briefly after a job (a decode step is a chain of hundreds of short jobs), then sleep on a futex. The
 * caller works too. Tasks are handed out by an atomic counter; results must not depend on which thread ran what. */
#pragma once
#include "base.h"

typedef struct pool pool;
/* n threads in all, the caller included; 0 = pool_threads_default(). */
pool *pool_new(int n);
void pool_free(pool *p);
int pool_size(const pool *p);
/* Runs fn(arg, task, worker) for task 0..n_tasks-1 and returns when all are done. worker < pool_size, for scratch
 * memory. Not reentrant: one job at a time, from one thread at a time. */
void pool_run(pool *p, int n_tasks, void (*fn)(void *arg, int task, int worker), void *arg);
/* Physical cores this process may use: affinity mask, hyper-thread siblings counted once, cgroup CPU quota. */
int pool_threads_default(void);
