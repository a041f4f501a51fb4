/* Fork-join time of the compute pool: pool_bench [threads ...]. Each job has as many tasks as threads; a task spins for
 * the given time. */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/base/pool.h"

enum { JOBS = 20000 };

static void spin(void *arg, int task, int worker) {
    for (uint64_t end = clock_ns() + *(uint64_t *)arg; clock_ns() < end;)
        ;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static uint64_t t[JOBS];
    uint64_t work[] = {0, 5000, 20000};
    for (int a = 1; a < MAX(argc, 2); a++) {
        int n = argc > 1 ? (int)strtol(argv[a], NULL, 10) : pool_threads_default();
        pool *p = pool_new(n);
        for (size_t w = 0; w < COUNT(work); w++) {
            for (int i = 0; i < JOBS; i++) {
                uint64_t from = clock_ns();
                pool_run(p, n, spin, &work[w]);
                t[i] = clock_ns() - from;
            }
            qsort(t, JOBS, sizeof *t, by_value);
            printf("%2d threads, tasks of %5.1f us: p50 %7.2f us  p90 %7.2f  p99 %8.2f\n", n, (double)work[w] / 1e3,
                   (double)t[JOBS / 2] / 1e3, (double)t[JOBS * 9 / 10] / 1e3, (double)t[JOBS * 99 / 100] / 1e3);
        }
        pool_free(p);
    }
    return 0;
}
