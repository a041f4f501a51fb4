/* Files: mapping, bounded reads, atomic writes, paths. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base.h"

bool file_map_open(file_map *m, const char *path, error *err) {
    *m = (file_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open %s", path);
    struct stat st;
    bool ok = false;
    if (fstat(fd, &st) != 0) {
        error_errno(err, ERR_IO, "cannot stat %s", path);
    } else if (!S_ISREG(st.st_mode)) {
        error_set(err, ERR_FORMAT, "%s is not a regular file", path);
    } else if (st.st_size == 0) {
        error_set(err, ERR_FORMAT, "%s is empty", path);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            error_errno(err, ERR_IO, "cannot map %s", path);
        else
            *m = (file_map){p, (size_t)st.st_size}, ok = true;
    }
    close(fd);
    return ok;
}

void file_map_close(file_map *m) {
    if (m->p) munmap((void *)m->p, m->n);
    *m = (file_map){0};
}

void file_map_drop(const void *p, size_t n) {
    uintptr_t from = ((uintptr_t)p + 4095) & ~(uintptr_t)4095, to = ((uintptr_t)p + n) & ~(uintptr_t)4095;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

bool file_read(buf *out, const char *path, size_t bytes_max, error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "cannot open %s", path);
    bool ok = true;
    for (;;) {
        buf_reserve(out, 64 * 1024);
        ssize_t got = read(fd, out->p + out->n, out->cap - out->n - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) ok = error_errno(err, ERR_IO, "cannot read %s", path);
        if (got <= 0) break;
        out->n += (size_t)got;
        if (out->n > bytes_max) {
            ok = error_set(err, ERR_TOO_LARGE, "%s is larger than the limit of %zu bytes", path, bytes_max);
            break;
        }
    }
    out->p[out->n] = 0;
    close(fd);
    return ok;
}

bool file_write_all(int fd, str s) {
    while (s.n) {
        ssize_t got = write(fd, s.p, s.n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        s = str_slice(s, (size_t)got, s.n);
    }
    return true;
}

bool file_write_parts(const char *path, const str *parts, size_t n, error *err) {
    buf tmp = {0};
    buf_printf(&tmp, "%s.%016llx.tmp", path, (unsigned long long)random_u64());
    int fd = open(tmp.p, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool ok = fd >= 0 || error_errno(err, ERR_IO, "cannot create %s", tmp.p);
    for (size_t i = 0; ok && i < n; i++)
        ok = file_write_all(fd, parts[i]) || error_errno(err, ERR_IO, "cannot write %s", tmp.p);
    if (ok && fsync(fd) != 0) ok = error_errno(err, ERR_IO, "cannot sync %s", tmp.p);
    if (fd >= 0 && close(fd) != 0 && ok) ok = error_errno(err, ERR_IO, "cannot close %s", tmp.p);
    if (ok && rename(tmp.p, path) != 0) ok = error_errno(err, ERR_IO, "cannot rename to %s", path);
    if (!ok && fd >= 0) unlink(tmp.p);
    buf_free(&tmp);
    return ok;
}

bool file_write_atomic(const char *path, const void *p, size_t n, error *err) {
    return file_write_parts(path, &(str){p, n}, 1, err);
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool dir_make(const char *path, error *err) {
    char *p = mem_strdup(path);
    bool ok = true;
    for (char *at = p + 1; ok; at++) {
        if (*at && *at != '/') continue;
        char c = *at;
        *at = 0;
        if (mkdir(p, 0755) != 0 && errno != EEXIST) ok = error_errno(err, ERR_IO, "cannot make the directory %s", p);
        *at = c;
        if (!c) break;
    }
    if (ok && !dir_exists(path)) ok = error_set(err, ERR_IO, "%s exists and is not a directory", path);
    free(p);
    return ok;
}

char *path_join(const char *dir, const char *name) {
    buf b = {0};
    buf_puts(&b, dir);
    if (b.n && b.p[b.n - 1] != '/') buf_putc(&b, '/');
    buf_puts(&b, name);
    return buf_take(&b);
}

char *path_cache(void) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/') return path_join(xdg, "hearth");
    return path_join(home ? home : "/tmp", ".cache/hearth");
}
