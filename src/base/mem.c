/* Allocation: aborting for the small, failing for the large; arenas, buffers, id lists. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "base.h"

enum { ARENA_BLOCK = 16 * 1024 };

static void *or_die(void *p) {
    if (p) return p;
    fputs("hearth: out of memory\n", stderr);
    abort();
}

void *mem_alloc(size_t n) {
    return or_die(calloc(1, n ? n : 1));
}
void *mem_resize(void *p, size_t n) {
    return or_die(realloc(p, n ? n : 1));
}
char *mem_strndup(const char *s, size_t n) {
    char *p = or_die(malloc(n + 1));
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}
char *mem_strdup(const char *s) {
    return mem_strndup(s, strlen(s));
}

bool size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
bool size_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* Large blocks come from mmap: zeroed on first touch, given back at once, and 2 MiB pages where the kernel has them
 * (4 KiB pages cost 14-29 % of the read bandwidth). */
void *mem_try(size_t n, size_t align, error *err) {
    if (n == 0) n = 1;
    if (align > 4096) {
        error_set(err, ERR_INTERNAL, "alignment %zu", align);
        return NULL;
    }
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        error_set(err, ERR_MEMORY, "cannot allocate %zu bytes", n);
        return NULL;
    }
    if (n >= (4u << 20)) madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void mem_try_free(void *p, size_t n) {
    if (p) munmap(p, n ? n : 1);
}

typedef struct block {
    struct block *next;
    size_t used, cap;
    _Alignas(16) char bytes[];
} block;

struct arena {
    block *head; /* owns the list */
    size_t bytes, bytes_max;
};

arena *arena_new(size_t bytes_max) {
    arena *a = mem_alloc(sizeof *a);
    a->bytes_max = bytes_max ? bytes_max : SIZE_MAX;
    return a;
}

void arena_free(arena *a) {
    if (!a) return;
    for (block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

void *arena_alloc(arena *a, size_t n) {
    if (n > a->bytes_max - MIN(a->bytes, a->bytes_max) || n > SIZE_MAX / 2) return NULL;
    n = (n + 15) & ~(size_t)15;
    if (!a->head || a->head->cap - a->head->used < n) {
        size_t cap = MAX(n, (size_t)ARENA_BLOCK);
        block *b = calloc(1, sizeof *b + cap);
        if (!b) return NULL;
        b->cap = cap;
        /* An oversized object gets its own block behind the current one, so that the rest of that one stays usable. */
        if (a->head && n > ARENA_BLOCK / 2) {
            b->next = a->head->next;
            a->head->next = b;
            b->used = n;
            a->bytes += n;
            return b->bytes;
        }
        b->next = a->head;
        a->head = b;
    }
    void *p = a->head->bytes + a->head->used;
    a->head->used += n;
    a->bytes += n;
    return p;
}

void *arena_copy(arena *a, const void *p, size_t n) {
    char *q = arena_alloc(a, n + 1);
    if (q && n) memcpy(q, p, n);
    return q;
}

char *arena_printf(arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *q = arena_alloc(a, (size_t)n + 1);
    if (!q) return NULL;
    va_start(ap, fmt);
    vsnprintf(q, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return q;
}

size_t arena_bytes(const arena *a) {
    return a->bytes;
}

void buf_free(buf *b) {
    free(b->p);
    *b = (buf){0};
}

void buf_reserve(buf *b, size_t more) {
    size_t need = b->n + more + 1;
    if (need <= b->cap) return;
    size_t cap = MAX(need, b->cap + b->cap / 2);
    b->cap = MAX(cap, (size_t)64);
    b->p = mem_resize(b->p, b->cap);
}

void buf_add(buf *b, const void *p, size_t n) {
    buf_reserve(b, n);
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void buf_str(buf *b, str s) {
    buf_add(b, s.p, s.n);
}
void buf_puts(buf *b, const char *s) {
    buf_add(b, s, strlen(s));
}
void buf_putc(buf *b, char c) {
    buf_add(b, &c, 1);
}

void buf_printf(buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    buf_reserve(b, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(b->p + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

char *buf_take(buf *b) {
    buf_reserve(b, 0);
    b->p[b->n] = 0;
    char *p = b->p;
    *b = (buf){0};
    return p;
}

void ids_append(ids *v, const int32_t *p, size_t n) {
    if (v->n + n > v->cap) {
        v->cap = MAX(v->n + n, v->cap * 2 + 16);
        v->p = mem_resize(v->p, v->cap * sizeof *v->p);
    }
    if (n) memcpy(v->p + v->n, p, n * sizeof *p);
    v->n += n;
}

void ids_push(ids *v, int32_t id) {
    ids_append(v, &id, 1);
}

void ids_free(ids *v) {
    free(v->p);
    *v = (ids){0};
}
