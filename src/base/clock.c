/* Time and the kernel's random numbers. */
#include <stdlib.h>
#include <sys/random.h>
#include "base.h"

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct timespec clock_in_ms(int ms) {
    uint64_t at = clock_ns() + (uint64_t)ms * 1000000u;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
}

int64_t clock_unix(void) {
    return (int64_t)time(NULL);
}

uint64_t random_u64(void) {
    uint64_t v;
    if (getrandom(&v, sizeof v, 0) != sizeof v) abort(); /* cannot fail for 8 bytes once the pool is ready */
    return v;
}
