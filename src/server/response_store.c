/* The store of POST /v1/responses over SQLite. A thread of its own writes, so that nobody who serves streams waits for
 * a disk; whoever reads waits for what is on its way. Not here: what a response is (responses.c). */
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "response_store.h"

enum { LAYOUT = 1, BUSY_MS = 2000 };

typedef struct pending {
    struct pending *next;
    arena *a; /* owns; holds this and all texts */
    str id, owner;
    stored_response r;
    size_t bytes;
} pending;

struct response_store {
    sqlite3 *db;          /* owns */
    pthread_mutex_t lock; /* of the database */
    int64_t ttl_s;
    size_t bytes_max;
    atomic_llong entries, bytes; /* as of the last change, for whoever must not wait */
    pthread_mutex_t mu;          /* of all below */
    pthread_cond_t changed;
    pending *first, **end; /* owns */
    size_t waiting_bytes;
    bool writing, closing, started;
    pthread_t writer;
};

static bool failed(response_store *s, const char *what, error *err) {
    return error_set(err, ERR_IO, "response store: %s: %s", what, s->db ? sqlite3_errmsg(s->db) : "no memory");
}

static bool run(response_store *s, const char *sql, error *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK || failed(s, sql, err);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static int layout_of(response_store *s) {
    sqlite3_stmt *q = NULL;
    int v = -1;
    if (sqlite3_prepare_v2(s->db, "PRAGMA user_version", -1, &q, NULL) == SQLITE_OK && sqlite3_step(q) == SQLITE_ROW)
        v = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    return v;
}

static bool tables_make(response_store *s, error *err) {
    if (layout_of(s) != LAYOUT && !run(s, "DROP TABLE IF EXISTS response", err)) return false;
    return run(s,
               "CREATE TABLE IF NOT EXISTS response(id TEXT PRIMARY KEY, owner TEXT, created INTEGER, used INTEGER,"
               " bytes INTEGER, input TEXT, own_input TEXT, output TEXT, instructions TEXT, object TEXT);"
               "CREATE INDEX IF NOT EXISTS response_used ON response(used);"
               "PRAGMA user_version=1",
               err);
}

static bool db_open(response_store *s, const char *path, error *err) {
    if (path) { /* SQLite's own files take over this mode */
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0) return error_errno(err, ERR_IO, "response store: %s", path);
        fchmod(fd, 0600);
        close(fd);
    }
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path ? path : ":memory:", &s->db, flags, NULL) != SQLITE_OK) return failed(s, path, err);
    sqlite3_busy_timeout(s->db, BUSY_MS);
    /* NORMAL: a power cut may lose the last responses, never the file */
    return run(s, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON", err) &&
           tables_make(s, err);
}

static bool damaged(response_store *s) {
    int rc = s->db ? sqlite3_errcode(s->db) : SQLITE_OK;
    return rc == SQLITE_NOTADB || rc == SQLITE_CORRUPT;
}

static bool put_aside(const char *path) {
    buf aside = {0};
    buf_printf(&aside, "%s.damaged", path);
    bool ok = rename(path, aside.p) == 0;
    if (ok) log_warn("response store: %s is damaged; it is now %s", path, aside.p);
    buf_free(&aside);
    return ok;
}

/* ---- statements; the lock is held -------------------------------------------------------------------------------- */
static sqlite3_stmt *prepare(response_store *s, const char *sql, error *err) {
    sqlite3_stmt *q = NULL;
    if (sqlite3_prepare_v2(s->db, sql, -1, &q, NULL) == SQLITE_OK) return q;
    failed(s, sql, err);
    return NULL;
}

static void bind_str(sqlite3_stmt *q, int at, str v) {
    if (v.p)
        sqlite3_bind_text64(q, at, v.p, v.n, SQLITE_STATIC, SQLITE_UTF8);
    else
        sqlite3_bind_null(q, at);
}

static str column(sqlite3_stmt *q, int at, arena *a) {
    const char *p = (const char *)sqlite3_column_text(q, at);
    size_t n = (size_t)sqlite3_column_bytes(q, at);
    return p ? (str){arena_copy(a, p, n), n} : (str){0};
}

static bool finish(response_store *s, sqlite3_stmt *q, const char *what, error *err) {
    int rc = q ? sqlite3_step(q) : SQLITE_ERROR;
    if (q && rc != SQLITE_DONE && rc != SQLITE_ROW) failed(s, what, err);
    sqlite3_finalize(q);
    return rc == SQLITE_DONE || rc == SQLITE_ROW;
}

static int64_t number(response_store *s, const char *sql) {
    sqlite3_stmt *q = prepare(s, sql, NULL);
    int64_t v = q && sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return v;
}

static void count_again(response_store *s) {
    atomic_store(&s->entries, number(s, "SELECT count(*) FROM response"));
    atomic_store(&s->bytes, number(s, "SELECT coalesce(sum(bytes),0) FROM response"));
}

static bool drop_expired(response_store *s, error *err) {
    sqlite3_stmt *q = prepare(s, "DELETE FROM response WHERE created<=?", err);
    if (q) sqlite3_bind_int64(q, 1, clock_unix() - s->ttl_s);
    return finish(s, q, "removing what has expired", err);
}

static bool make_room(response_store *s, size_t need, error *err) {
    size_t held = (size_t)number(s, "SELECT coalesce(sum(bytes),0) FROM response");
    for (bool any = true; any && held + need > s->bytes_max;) {
        sqlite3_stmt *q = prepare(s,
                                  "DELETE FROM response WHERE rowid=(SELECT rowid FROM response ORDER BY used,rowid"
                                  " LIMIT 1) RETURNING bytes",
                                  err);
        any = q && sqlite3_step(q) == SQLITE_ROW;
        if (any) held -= MIN(held, (size_t)sqlite3_column_int64(q, 0));
        if (!q || sqlite3_finalize(q) != SQLITE_OK) return failed(s, "making room", err);
    }
    return held + need <= s->bytes_max;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static bool insert(response_store *s, str id, str owner, const stored_response *r, size_t bytes, error *err) {
    sqlite3_stmt *q = prepare(s, "INSERT OR REPLACE INTO response VALUES(?,?,?,?,?,?,?,?,?,?)", err);
    if (!q) return false;
    bind_str(q, 1, id);
    bind_str(q, 2, owner.p ? owner : STR(""));
    int64_t now = clock_unix();
    sqlite3_bind_int64(q, 3, now);
    sqlite3_bind_int64(q, 4, now);
    sqlite3_bind_int64(q, 5, (int64_t)bytes);
    bind_str(q, 6, r->input);
    bind_str(q, 7, r->own_input);
    bind_str(q, 8, r->output);
    bind_str(q, 9, r->instructions);
    bind_str(q, 10, r->object);
    return finish(s, q, "storing", err);
}

static bool write_one(response_store *s, const pending *p, error *err) {
    pthread_mutex_lock(&s->lock);
    bool ok = run(s, "BEGIN IMMEDIATE", err);
    if (ok) {
        ok = drop_expired(s, err) && make_room(s, p->bytes, err) && insert(s, p->id, p->owner, &p->r, p->bytes, err);
        ok = ok && run(s, "COMMIT", err);
        if (!sqlite3_get_autocommit(s->db)) run(s, "ROLLBACK", NULL); /* else the next one could not begin */
        count_again(s);
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static void *writer_main(void *arg) {
    response_store *s = arg;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        pending *p = s->first;
        if (!p && s->closing) break;
        if (!p) {
            pthread_cond_wait(&s->changed, &s->mu);
            continue;
        }
        s->first = p->next;
        if (!s->first) s->end = &s->first;
        s->waiting_bytes -= p->bytes;
        s->writing = true;
        pthread_mutex_unlock(&s->mu);
        error e = {0};
        if (!write_one(s, p, &e)) log_warn("%s", e.msg);
        arena_free(p->a);
        pthread_mutex_lock(&s->mu);
        s->writing = false;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}

static void wait_written(response_store *s) {
    pthread_mutex_lock(&s->mu);
    while (s->first || s->writing) pthread_cond_wait(&s->changed, &s->mu);
    pthread_mutex_unlock(&s->mu);
}

static str keep(arena *a, str v) {
    return v.p ? (str){arena_copy(a, v.p, v.n), v.n} : v;
}

response_store *response_store_open(const char *path, int64_t ttl_s, size_t bytes_max, error *err) {
    response_store *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->end = &s->first;
    s->ttl_s = ttl_s;
    s->bytes_max = bytes_max;
    error first = {0};
    bool ok = db_open(s, path, &first);
    if (!ok && path && damaged(s)) {
        sqlite3_close(s->db);
        s->db = NULL;
        if (put_aside(path)) {
            first = (error){0};
            ok = db_open(s, path, &first);
        }
    }
    if (ok) count_again(s);
    if (ok) s->started = pthread_create(&s->writer, NULL, writer_main, s) == 0;
    if (ok && !s->started) ok = error_set(&first, ERR_INTERNAL, "response store: no thread");
    if (ok) return s;
    if (err) *err = first;
    response_store_close(s);
    return NULL;
}

void response_store_close(response_store *s) {
    if (!s) return;
    if (s->started) {
        pthread_mutex_lock(&s->mu);
        s->closing = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->mu);
        pthread_join(s->writer, NULL);
    }
    sqlite3_close(s->db);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->changed);
    free(s);
}

/* ---- using it ---------------------------------------------------------------------------------------------------- */
bool response_store_put(response_store *s, str id, str owner, const stored_response *r, error *err) {
    size_t bytes = r->input.n + r->own_input.n + r->output.n + r->instructions.n + r->object.n;
    if (bytes > s->bytes_max)
        return error_set(err, ERR_TOO_LARGE, "a response of %zu bytes is not stored; the store holds %zu", bytes,
                         s->bytes_max);
    arena *a = arena_new(0); /* what goes in is no more than bytes */
    pending *p = arena_alloc(a, sizeof *p);
    *p = (pending){.a = a,
                   .id = keep(a, id),
                   .owner = keep(a, owner),
                   .bytes = bytes,
                   .r = {.input = keep(a, r->input),
                         .output = keep(a, r->output),
                         .own_input = keep(a, r->own_input),
                         .instructions = keep(a, r->instructions),
                         .object = keep(a, r->object)}};
    pthread_mutex_lock(&s->mu);
    bool ok = s->waiting_bytes + bytes <= s->bytes_max;
    if (ok) {
        *s->end = p;
        s->end = &p->next;
        s->waiting_bytes += bytes;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mu);
    if (ok) return true;
    arena_free(a);
    return error_set(err, ERR_TOO_LARGE, "the response store does not keep up with writing");
}

static bool missing(str id, error *err) {
    return error_set(err, ERR_NOT_FOUND, "response %.*s was not found: unknown, expired or deleted", (int)MIN(id.n, 80),
                     id.p ? id.p : "");
}

static void touch(response_store *s, str id) {
    sqlite3_stmt *q = prepare(s, "UPDATE response SET used=? WHERE id=?", NULL);
    if (!q) return;
    sqlite3_bind_int64(q, 1, clock_unix());
    bind_str(q, 2, id);
    finish(s, q, "touching", NULL);
}

bool response_store_get(response_store *s, str id, str owner, arena *a, stored_response *out, error *err) {
    wait_written(s);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = prepare(s,
                              "SELECT input,own_input,output,instructions,object FROM response WHERE id=? AND owner=?"
                              " AND created>?",
                              err);
    bool found = false;
    if (q) {
        bind_str(q, 1, id);
        bind_str(q, 2, owner.p ? owner : STR(""));
        sqlite3_bind_int64(q, 3, clock_unix() - s->ttl_s);
        found = sqlite3_step(q) == SQLITE_ROW;
        if (found)
            *out = (stored_response){.input = column(q, 0, a),
                                     .own_input = column(q, 1, a),
                                     .output = column(q, 2, a),
                                     .instructions = column(q, 3, a),
                                     .object = column(q, 4, a)};
        else
            missing(id, err);
        sqlite3_finalize(q);
    }
    if (found) touch(s, id);
    pthread_mutex_unlock(&s->lock);
    return found;
}

bool response_store_delete(response_store *s, str id, str owner, error *err) {
    wait_written(s);
    pthread_mutex_lock(&s->lock);
    sqlite3_stmt *q = prepare(s, "DELETE FROM response WHERE id=? AND owner=?", err);
    if (q) {
        bind_str(q, 1, id);
        bind_str(q, 2, owner.p ? owner : STR(""));
    }
    bool ok = finish(s, q, "deleting", err);
    if (ok && sqlite3_changes(s->db) == 0) ok = missing(id, err);
    count_again(s);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

response_store_stats response_store_count(response_store *s) {
    if (!s) return (response_store_stats){0};
    return (response_store_stats){.entries = atomic_load(&s->entries),
                                  .bytes = atomic_load(&s->bytes),
                                  .bytes_max = (int64_t)s->bytes_max,
                                  .ttl_s = s->ttl_s};
}
