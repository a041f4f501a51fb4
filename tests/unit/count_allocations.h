/* Counts what one thread allocates: included by one test program, whose malloc then stands in for libc's. Not under
 * sanitizers, which bring their own (COUNTS_ALLOCATIONS is not defined then). */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static atomic_int allocations;
static atomic_bool counting;
static _Thread_local bool here; /* this is the engine's thread */
static atomic_bool found;
static void count_one(void) {
    if (here && counting) allocations++;
}
void *malloc(size_t n) {
    count_one();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m) {
    count_one();
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n) {
    count_one();
    return __libc_realloc(p, n);
}
static void count_here(void *arg) {
    here = found = true;
}
#endif
