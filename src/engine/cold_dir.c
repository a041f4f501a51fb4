/* The SSD store's directory: scanning it, removing what a killed process left, and what must go to keep the cap.
 *
 * Below DIR lies one directory a fingerprint; other names are nobody's business here. Files of other fingerprints are
 * never opened; they count for the cap and go when they are the least used. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cold.h"

enum { BLOCK = 4096 /* what a file takes is a multiple of */, LIST_MAX = 1 << 22, DIRS_MAX = 4096 };

static bool is_fingerprint(const char *s) {
    size_t n = strnlen(s, 2 * COLD_KEY + 1);
    for (size_t i = 0; i < n; i++)
        if (!(s[i] >= '0' && s[i] <= '9') && !(s[i] >= 'a' && s[i] <= 'f')) return false;
    return n == 2 * COLD_KEY;
}

/* A file that a live process writes is locked by it. */
static void temp_reap(int fd, const char *name) {
    int f = openat(fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (f < 0) return;
    if (flock(f, LOCK_EX | LOCK_NB) == 0) unlinkat(fd, name, 0);
    close(f);
}

static void list_push(cold_list *l, const cold_found *f) {
    if (l->n == LIST_MAX) return;
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 256;
        l->p = mem_resize(l->p, l->cap * sizeof *l->p);
    }
    l->p[l->n++] = *f;
}

static void scan_file(cold_list *l, int fd, int32_t dir, const char *name) {
    struct stat st;
    cold_found f = {.dir = dir};
    const bool temp = str_starts(str_of(name), STR("tmp-")), blob = cold_name_parse(name, &f.name);
    if ((!temp && !blob) || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    f.bytes = ((uint64_t)st.st_size + BLOCK - 1) / BLOCK * BLOCK;
    f.used = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    l->bytes += S_ISREG(st.st_mode) ? f.bytes : 0;
    if (blob && S_ISREG(st.st_mode)) list_push(l, &f);
    if (temp && dir == 0) temp_reap(fd, name);
}

/* fd is used up. */
static void scan_dir(cold_list *l, int fd, int32_t dir) {
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') scan_file(l, fd, dir, e->d_name);
    closedir(d);
}

static int dir_open(int root, const char *name) {
    return openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void list_dir(cold_list *l, const char *name) {
    l->dir = mem_resize(l->dir, (size_t)(l->n_dirs + 1) * sizeof *l->dir);
    memcpy(l->dir[l->n_dirs++], name, 2 * COLD_KEY + 1);
}

void cold_list_scan(cold_list *l, int root, int own, const char *own_name) {
    *l = (cold_list){0};
    list_dir(l, own_name);
    int fd = openat(own, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) scan_dir(l, fd, 0);
    fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!is_fingerprint(e->d_name) || strcmp(e->d_name, own_name) == 0 || l->n_dirs == DIRS_MAX) continue;
        fd = dir_open(root, e->d_name);
        if (fd < 0) continue;
        list_dir(l, e->d_name);
        scan_dir(l, fd, l->n_dirs - 1);
    }
    if (d) closedir(d);
}

void cold_list_free(cold_list *l) {
    free(l->p);
    free(l->dir);
    *l = (cold_list){0};
}

/* ---- the cap ----------------------------------------------------------------------------------------------------- */
static int by_key(const void *a, const void *b) {
    const cold_found *x = a, *y = b;
    if (x->dir != y->dir) return x->dir < y->dir ? -1 : 1;
    return memcmp(x->name.key.b, y->name.key.b, COLD_KEY);
}
static int by_use_newest(const void *a, const void *b) {
    const cold_found *x = *(cold_found *const *)a, *y = *(cold_found *const *)b;
    return x->used > y->used ? -1 : x->used < y->used;
}
static int by_use_oldest(const void *a, const void *b) {
    return by_use_newest(b, a);
}

/* The first entry of that directory whose key begins with tag (l sorted by_key); l->n: none. */
static size_t tag_find(const cold_list *l, int32_t dir, uint64_t tag) {
    size_t lo = 0, hi = l->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const cold_found *f = &l->p[mid];
        if (f->dir < dir || (f->dir == dir && cold_tag(&f->name.key) < tag))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < l->n && l->p[lo].dir == dir && cold_tag(&l->p[lo].name.key) == tag ? lo : l->n;
}

/* Using a blob uses all that it continues: each ancestor counts as a little younger than what hangs on it. Newest
 * first, so that a walk ends where another has been. Names can lie, but not make it go on for ever. */
static void ancestors_raise(cold_list *l, const cold_found *from) {
    uint64_t used = from->used, tag = from->name.parent;
    for (size_t steps = 0; steps < l->n; steps++) {
        size_t i = tag_find(l, from->dir, tag);
        bool raised = false;
        uint64_t next = 0;
        used++;
        for (; i < l->n && l->p[i].dir == from->dir && cold_tag(&l->p[i].name.key) == tag; i++) {
            raised |= l->p[i].used < used;
            l->p[i].used = MAX(l->p[i].used, used);
            next = l->p[i].name.parent;
        }
        if (!raised) return;
        tag = next;
    }
}

uint64_t cold_list_evict(cold_list *l, int root, uint64_t bytes_max, void (*gone)(void *arg, const cold_name *n),
                         void *arg) {
    if (l->bytes <= bytes_max || l->n == 0) return 0;
    qsort(l->p, l->n, sizeof *l->p, by_key);
    cold_found **order = mem_alloc(l->n * sizeof *order);
    for (size_t i = 0; i < l->n; i++) order[i] = &l->p[i];
    qsort(order, l->n, sizeof *order, by_use_newest);
    for (size_t i = 0; i < l->n; i++) ancestors_raise(l, order[i]);
    qsort(order, l->n, sizeof *order, by_use_oldest);
    uint64_t n_gone = 0;
    int fd = -1;
    int32_t at = -1;
    for (size_t i = 0; i < l->n && l->bytes > bytes_max; i++) {
        const cold_found *f = order[i];
        char name[COLD_NAME];
        if (at != f->dir) {
            if (fd >= 0) close(fd);
            fd = dir_open(root, l->dir[f->dir]);
            at = f->dir;
        }
        cold_name_format(name, &f->name);
        if (unlinkat(fd, name, 0) != 0 && errno != ENOENT) continue;
        l->bytes -= f->bytes;
        n_gone++;
        if (f->dir == 0) gone(arg, &f->name);
    }
    if (fd >= 0) close(fd);
    free(order);
    return n_gone;
}
