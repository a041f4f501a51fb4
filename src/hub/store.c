/* Where models lie on disk, and which one a name means. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "hub.h"

typedef struct model_list {
    hub_model *m; /* owns */
    size_t n, cap;
} model_list;

char *hub_models_dir(void) {
    const char *home = getenv("HEARTH_HOME");
    if (home && *home) return path_join(home, "models");
    char *cache = path_cache(), *dir = path_join(cache, "models");
    free(cache);
    return dir;
}

static char *hf_cache_dir(void) {
    const char *cache = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
    if (cache && *cache) return mem_strdup(cache);
    if (hf && *hf) return path_join(hf, "hub");
    return path_join(home ? home : "/tmp", ".cache/huggingface/hub");
}

static uint64_t file_bytes(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Calls see(arg, path, name) for each entry of a directory that is not hidden. */
static void dir_each(const char *dir, void (*see)(void *arg, const char *path, const char *name), void *arg) {
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char *path = path_join(dir, e->d_name);
        see(arg, path, e->d_name);
        free(path);
    }
    if (d) closedir(d);
}

static void add_weights(void *arg, const char *path, const char *name) {
    if (str_ends(str_of(name), STR(".safetensors"))) *(uint64_t *)arg += file_bytes(path);
}

static uint64_t dir_bytes(const char *dir) {
    uint64_t sum = 0;
    dir_each(dir, add_weights, &sum);
    return sum;
}

static void list_add(model_list *l, const char *name, const char *path, uint64_t bytes) {
    if (l->n == l->cap) {
        l->cap = l->cap * 2 + 8;
        l->m = mem_resize(l->m, l->cap * sizeof *l->m);
    }
    l->m[l->n++] = (hub_model){mem_strdup(name), mem_strdup(path), bytes};
}

static bool is_model_dir(const char *dir) {
    char *config = path_join(dir, "config.json");
    bool yes = file_exists(config);
    free(config);
    return yes;
}

typedef struct own_scan {
    model_list *l;
    const char *name; /* of the model whose directory is looked at */
} own_scan;

static void see_gguf(void *arg, const char *path, const char *name) {
    own_scan *s = arg;
    if (str_ends(str_of(name), STR(".gguf"))) list_add(s->l, s->name, path, file_bytes(path));
}

/* <models>/NAME/{config.json + *.safetensors | one .gguf} */
static void see_own(void *arg, const char *path, const char *name) {
    own_scan s = {arg, name};
    if (is_model_dir(path))
        list_add(s.l, name, path, dir_bytes(path));
    else
        dir_each(path, see_gguf, &s);
}

static void see_snapshot(void *arg, const char *path, const char *name) {
    char **found = arg;
    if (!*found && is_model_dir(path)) *found = mem_strdup(path);
}

/* The snapshot that refs/main names, else the first one found. */
static char *hf_snapshot(const char *repo) {
    buf ref = {0};
    char *main_ref = path_join(repo, "refs/main"), *snapshots = path_join(repo, "snapshots"), *found = NULL;
    if (file_read(&ref, main_ref, 200, NULL)) {
        str commit = str_trim(buf_view(&ref));
        char *name = mem_strndup(commit.p, commit.n), *path = path_join(snapshots, name);
        see_snapshot(&found, path, name);
        free(path);
        free(name);
    }
    dir_each(snapshots, see_snapshot, &found);
    buf_free(&ref);
    free(main_ref);
    free(snapshots);
    return found;
}

/* models--ORG--NAME is the repository ORG/NAME. */
static void see_hf(void *arg, const char *path, const char *dir) {
    char *snapshot = strncmp(dir, "models--", 8) == 0 ? hf_snapshot(path) : NULL;
    if (!snapshot) return;
    char *name = mem_strdup(dir + 8), *dashes = strstr(name, "--");
    if (dashes) {
        *dashes = '/';
        memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    }
    list_add(arg, name, snapshot, dir_bytes(snapshot));
    free(name);
    free(snapshot);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const hub_model *)a)->name, ((const hub_model *)b)->name);
}

hub_model *hub_list(size_t *n) {
    model_list l = {0};
    char *own = hub_models_dir(), *hf = hf_cache_dir();
    dir_each(own, see_own, &l);
    dir_each(hf, see_hf, &l);
    free(own);
    free(hf);
    if (l.n) qsort(l.m, l.n, sizeof *l.m, by_name);
    *n = l.n;
    return l.m;
}

void hub_list_free(hub_model *m, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(m[i].name);
        free(m[i].path);
    }
    free(m);
}

char *hub_resolve(const char *model, error *err) {
    if (file_exists(model) || is_model_dir(model)) return mem_strdup(model);
    if (dir_exists(model)) {
        error_set(err, ERR_FORMAT, "%s is a directory without config.json", model);
        return NULL;
    }
    size_t n, hits = 0, hit = 0;
    hub_model *m = hub_list(&n);
    buf names = {0};
    for (size_t i = 0; i < n; i++) {
        if (strcmp(m[i].name, model) == 0) {
            hits = 1, hit = i;
            break;
        }
        if (model[0] && strcasestr(m[i].name, model))
            hits++, hit = i, buf_printf(&names, "%s%s", names.n ? ", " : "", m[i].name);
    }
    char *path = hits == 1 ? mem_strdup(m[hit].path) : NULL;
    if (hits > 1) error_set(err, ERR_INVALID, "'%s' matches several models: %s", model, names.p);
    if (hits == 0)
        error_set(
            err, ERR_NOT_FOUND,
            "no model '%s': neither a path nor in the store (`hearth ls` lists it, `hearth get smollm2` fetches one)",
            model);
    buf_free(&names);
    hub_list_free(m, n);
    return path;
}
