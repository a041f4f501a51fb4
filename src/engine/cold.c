/* The SSD store: an index in memory, a bounded queue of blobs to write, and two threads that do the disk's work: one
 * writes, syncs and keeps the cap, one reads ahead and, when nobody waits, verifies.
 *
 * One lock guards everything here; no thread holds it while it is at the disk. Not here: one file (cold_file.c), the
 * directory and the cap (cold_dir.c), which blobs are wanted (prefix.c). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cold.h"

enum {
    SYNC_EVERY = 32,   /* files between two syncs of the directory, when there is no pause */
    REFUSED_MS = 5000, /* after a failed write the disk is left alone for so long */
    RESCAN_MS = 60000, /* how old the view of what others wrote may become while writing */
    DAMAGE_LINES = 8,  /* damaged blobs that the log names; the others are counted */
    SLACK = 16         /* a sixteenth of the cap is freed beyond what is needed */
};

/* ---- index: open addressing over (key, kind) --------------------------------------------------------------------- */
typedef enum place { FREE, QUEUED, STORED } place;
typedef struct entry {
    cold_key key;
    uint64_t parent;
    uint32_t kind;
    uint32_t blocks; /* of 4096 bytes on the disk */
    uint8_t place;
    bool seen; /* by the scan that is being taken over */
} entry;
typedef struct cold_index {
    entry *slot; /* owns: [n_slots], a power of two */
    size_t n_slots, n;
} cold_index;

static size_t slot_of(const cold_index *x, const cold_key *key, uint32_t kind) {
    return (size_t)((cold_tag(key) + kind) * 0x9e3779b97f4a7c15u >> 16) & (x->n_slots - 1);
}

/* The entry, or the free slot where it would stand. */
static entry *index_at(const cold_index *x, const cold_key *key, uint32_t kind) {
    size_t i = slot_of(x, key, kind);
    for (;; i = (i + 1) & (x->n_slots - 1)) {
        entry *e = &x->slot[i];
        if (e->place == FREE || (e->kind == kind && memcmp(e->key.b, key->b, COLD_KEY) == 0)) return e;
    }
}

static entry *index_get(const cold_index *x, const cold_key *key, uint32_t kind) {
    entry *e = x->n_slots ? index_at(x, key, kind) : NULL;
    return e && e->place != FREE ? e : NULL;
}

static void index_grow(cold_index *x) {
    cold_index old = *x;
    x->n_slots = old.n_slots ? old.n_slots * 2 : 1024;
    x->slot = mem_alloc(x->n_slots * sizeof *x->slot);
    for (size_t i = 0; i < old.n_slots; i++)
        if (old.slot[i].place != FREE) *index_at(x, &old.slot[i].key, old.slot[i].kind) = old.slot[i];
    free(old.slot);
}

static entry *index_put(cold_index *x, const cold_name *name, uint64_t bytes, place where) {
    if (2 * (x->n + 1) > x->n_slots) index_grow(x);
    entry *e = index_at(x, &name->key, name->kind);
    x->n += e->place == FREE;
    *e = (entry){name->key, name->parent, name->kind, (uint32_t)MIN(bytes / 4096, UINT32_MAX), where, true};
    return e;
}

/* Later entries of the same run move up, so that nobody searches past a hole. */
static void index_remove(cold_index *x, entry *e) {
    size_t hole = (size_t)(e - x->slot), mask = x->n_slots - 1;
    for (size_t i = (hole + 1) & mask; x->slot[i].place != FREE; i = (i + 1) & mask) {
        size_t home = slot_of(x, &x->slot[i].key, x->slot[i].kind);
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        x->slot[hole] = x->slot[i];
        hole = i;
    }
    x->slot[hole].place = FREE;
    x->n--;
}

/* ---- the store --------------------------------------------------------------------------------------------------- */
struct cold {
    char *dir;    /* owns */
    int root, fd; /* DIR; the fingerprint's directory */
    uint8_t fingerprint[COLD_KEY];
    char own[2 * COLD_KEY + 1]; /* its name */
    size_t bytes_max, queue_max, ahead_max;
    void (*wake)(void *arg);
    void *wake_arg;
    pthread_t writer, reader;
    int n_threads;

    pthread_mutex_t mu;                   /* everything below */
    pthread_cond_t work, wanted, settled; /* for the writer; for the reader; for cold_flush */
    bool closing;
    cold_index index;
    uint64_t bytes, bytes_all; /* of this fingerprint; below DIR, as far as known */

    cold_image *filling;                /* given out by cold_put */
    cold_image *queue, **end;           /* to be written; the first may be at the disk */
    size_t queue_bytes;                 /* of filling and queue */
    uint64_t n_waiting;                 /* blobs in these two */
    bool refused;                       /* somebody was told that the queue is full */
    uint64_t n_queued, n_settled;       /* blobs that entered the queue; that are on the disk for good, or failed */
    uint64_t refuse_until;              /* clock_ns: no writes before */
    bool disk_bad;                      /* since the last write that went well */
    uint64_t lost;                      /* blobs that were not written, as of the last flush */
    error why;                          /* of the last failed write */
    uint64_t scanned_ns, scanned_bytes; /* when the directory was looked at, and bytes written since */

    cold_read *reads; /* served in turn */
    size_t ahead;     /* bytes read and not handed out */
    cold_list verify; /* still to be read, from verify_at on */
    size_t verify_at;
    cold_stats stats;
};

struct cold_read {
    cold *c;
    cold_read *next;
    cold_head *head; /* owns: [n] */
    int32_t *ids;    /* owns: of all heads */
    size_t n, n_read, n_out;
    cold_image **got;  /* owns: [n]; NULL: missed. Those before n_out were handed out */
    cold_image *lent;  /* handed out last */
    size_t ahead;      /* bytes in got */
    bool closed, busy; /* busy: the reader is at the disk for it */
};

/* [mu] */
static void image_drop(cold_image *m) {
    if (m && --m->refs == 0) cold_image_free(m);
}

static void call_wake(const cold *c) {
    if (c->wake) c->wake(c->wake_arg);
}

static uint64_t on_disk(size_t n) {
    return ((uint64_t)n + 4095) / 4096 * 4096;
}

/* [mu] The blob is not there any more. */
static void forget(cold *c, const cold_key *key, uint32_t kind) {
    entry *e = index_get(&c->index, key, kind);
    if (!e || e->place != STORED) return;
    uint64_t bytes = (uint64_t)e->blocks * 4096;
    c->bytes -= MIN(bytes, c->bytes);
    c->bytes_all -= MIN(bytes, c->bytes_all);
    index_remove(&c->index, e);
}

static void damaged_remove(cold *c, const cold_name *name, const char *why) {
    char text[COLD_NAME];
    cold_name_format(text, name);
    unlinkat(c->fd, text, 0);
    pthread_mutex_lock(&c->mu);
    forget(c, &name->key, name->kind);
    const uint64_t n = ++c->stats.damaged;
    pthread_mutex_unlock(&c->mu);
    if (n <= DAMAGE_LINES) log_warn("SSD cache: %s/%s/%s is removed: %s", c->dir, c->own, text, why);
}

/* ---- directories ------------------------------------------------------------------------------------------------- */
static bool root_open(cold *c, error *err) {
    char *slash = strrchr(c->dir, '/');
    if (slash && slash > c->dir) {
        char *above = mem_strndup(c->dir, (size_t)(slash - c->dir));
        const bool ok = dir_make(above, err);
        free(above);
        if (!ok) return false;
    }
    if (mkdir(c->dir, 0700) != 0 && errno != EEXIST)
        return error_errno(err, ERR_IO, "SSD cache: cannot make %s", c->dir);
    c->root = open(c->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return c->root >= 0 || error_errno(err, ERR_IO, "SSD cache: cannot open %s", c->dir);
}

/* Only this user may write into it, and can. */
static bool own_check(const cold *c, int fd, error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || (st.st_mode & 022))
        return error_set(err, ERR_IO, "SSD cache: %s/%s belongs to or can be written by others", c->dir, c->own);
    char temp[40];
    snprintf(temp, sizeof temp, "tmp-%016llx", (unsigned long long)random_u64());
    int f = openat(fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (f < 0) return error_errno(err, ERR_IO, "SSD cache: cannot write below %s/%s", c->dir, c->own);
    close(f);
    unlinkat(fd, temp, 0);
    return true;
}

/* The fingerprint's directory, made if absent; -1: *err. */
static int own_open(const cold *c, error *err) {
    int fd = -1;
    if (mkdirat(c->root, c->own, 0700) != 0 && errno != EEXIST)
        return error_errno(err, ERR_IO, "SSD cache: cannot make %s/%s", c->dir, c->own), -1;
    fd = openat(c->root, c->own, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return error_errno(err, ERR_IO, "SSD cache: cannot open %s/%s", c->dir, c->own), -1;
    if (!own_check(c, fd, err)) return close(fd), -1;
    fsync(c->root);
    return fd;
}

/* Somebody deleted the directory: another one takes its place under the same descriptor, which the reader uses. */
static bool own_renew(cold *c) {
    close(c->root);
    int fd = root_open(c, NULL) ? own_open(c, NULL) : -1;
    const bool ok = fd >= 0 && dup3(fd, c->fd, O_CLOEXEC) >= 0;
    if (fd >= 0) close(fd);
    return ok;
}

/* ---- scanning and the cap (writer's thread, or before there is one) ---------------------------------------------- */
/* [mu] What a scan found becomes the index; what is queued stays. */
static void scan_take(cold *c, const cold_list *l) {
    cold_index *x = &c->index;
    for (size_t i = 0; i < x->n_slots; i++) x->slot[i].seen = x->slot[i].place == QUEUED;
    c->bytes = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->p[i].dir != 0) continue;
        c->bytes += l->p[i].bytes;
        const entry *e = index_get(x, &l->p[i].name.key, l->p[i].name.kind);
        if (!e || e->place == STORED) index_put(x, &l->p[i].name, l->p[i].bytes, STORED);
    }
    for (size_t i = 0; i < x->n_slots;) { /* removing may move another entry into this slot */
        if (x->slot[i].place == STORED && !x->slot[i].seen)
            index_remove(x, &x->slot[i]);
        else
            i++;
    }
    c->bytes_all = l->bytes;
    c->scanned_ns = clock_ns();
    c->scanned_bytes = 0;
}

static void evicted(void *arg, const cold_name *name) {
    cold *c = arg;
    pthread_mutex_lock(&c->mu);
    forget(c, &name->key, name->kind);
    pthread_mutex_unlock(&c->mu);
}

/* Looks at the directory and makes room for `more` bytes below the cap. */
static void scan_and_evict(cold *c, uint64_t more) {
    cold_list l;
    cold_list_scan(&l, c->root, c->fd, c->own);
    pthread_mutex_lock(&c->mu);
    scan_take(c, &l);
    pthread_mutex_unlock(&c->mu);
    uint64_t n = 0;
    if (l.bytes + more > c->bytes_max) {
        const uint64_t spare = c->bytes_max / SLACK + more;
        n = cold_list_evict(&l, c->root, c->bytes_max > spare ? c->bytes_max - spare : 0, evicted, c);
    }
    pthread_mutex_lock(&c->mu);
    c->bytes_all = l.bytes;
    c->stats.evicted += n;
    pthread_mutex_unlock(&c->mu);
    cold_list_free(&l);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
/* [mu] */
static bool refusing(const cold *c) {
    return c->refuse_until && clock_ns() < c->refuse_until;
}

/* [mu] */
static void write_failed(cold *c, int why) {
    c->stats.failed++;
    c->refuse_until = clock_ns() + (uint64_t)REFUSED_MS * 1000000;
    c->why = (error){0};
    errno = why;
    error_errno(&c->why, ERR_IO, "SSD cache: cannot write below %s", c->dir);
    if (!c->disk_bad) log_warn("%s; the cache goes on without what cannot be written", c->why.msg);
    c->disk_bad = true;
}

/* [mu, left and taken again] The first of the queue goes to the disk. */
static void write_first(cold *c) {
    cold_image *m = c->queue;
    const uint64_t n = on_disk(m->n);
    bool ok = !refusing(c) && n <= c->bytes_max;
    const bool look = c->bytes_all + n > c->bytes_max || c->scanned_bytes > c->bytes_max / SLACK ||
                      clock_ns() - c->scanned_ns > (uint64_t)RESCAN_MS * 1000000;
    if (ok) {
        pthread_mutex_unlock(&c->mu);
        if (look) scan_and_evict(c, n);
        pthread_mutex_lock(&c->mu);
        ok = c->bytes_all + n <= c->bytes_max;
    }
    if (!ok) {
        c->stats.dropped++;
    } else {
        pthread_mutex_unlock(&c->mu);
        ok = cold_file_write(c->fd, m);
        int why = errno;
        if (!ok && why == ENOENT && own_renew(c)) {
            scan_and_evict(c, 0);
            ok = cold_file_write(c->fd, m);
            why = errno;
        }
        pthread_mutex_lock(&c->mu);
        if (!ok) write_failed(c, why);
    }
    entry *e = index_get(&c->index, &m->key, m->kind);
    if (ok) {
        if (c->disk_bad) log_info("SSD cache: %s can be written again", c->dir);
        c->disk_bad = false;
        c->refuse_until = 0;
        c->stats.written++;
        c->stats.written_bytes += m->n;
        c->bytes += n;
        c->bytes_all += n;
        c->scanned_bytes += n;
        e->place = STORED;
        e->blocks = (uint32_t)(n / 4096);
    } else {
        index_remove(&c->index, e);
    }
    c->queue = m->next;
    if (!c->queue) c->end = &c->queue;
    c->queue_bytes -= m->n;
    c->n_waiting--;
    image_drop(m);
}

static void *writer_main(void *arg) {
    cold *c = arg;
    uint64_t unsynced = 0;
    pthread_mutex_lock(&c->mu);
    for (;;) {
        while (!c->queue && !c->closing) pthread_cond_wait(&c->work, &c->mu);
        if (!c->queue) break;
        write_first(c);
        unsynced++;
        const bool wake = c->refused && c->queue_bytes <= c->queue_max / 2;
        if (wake) c->refused = false;
        if (!c->queue || unsynced >= SYNC_EVERY) {
            pthread_mutex_unlock(&c->mu);
            const bool ok = fsync(c->fd) == 0;
            const int why = errno;
            pthread_mutex_lock(&c->mu);
            if (!ok) write_failed(c, why);
            c->n_settled += unsynced;
            unsynced = 0;
            pthread_cond_broadcast(&c->settled);
        }
        if (wake) {
            pthread_mutex_unlock(&c->mu);
            call_wake(c);
            pthread_mutex_lock(&c->mu);
        }
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

bool cold_has(cold *c, const cold_key *key, uint32_t kind) {
    pthread_mutex_lock(&c->mu);
    const bool has = index_get(&c->index, key, kind) != NULL;
    pthread_mutex_unlock(&c->mu);
    return has;
}

void *cold_put(cold *c, const cold_head *h, bool *full) {
    const size_t n = cold_image_bytes(h);
    *full = false;
    pthread_mutex_lock(&c->mu);
    bool room = !index_get(&c->index, &h->key, h->kind);
    if (room && (refusing(c) || h->n_ids > COLD_IDS_MAX)) {
        c->stats.dropped++;
        room = false;
    }
    if (room && c->queue_bytes && c->queue_bytes + n > c->queue_max) {
        *full = c->refused = true;
        room = false;
    }
    if (room) {
        index_put(&c->index, &(cold_name){h->key, cold_tag(&h->parent), h->kind}, 0, QUEUED);
        c->queue_bytes += n;
        c->n_waiting++;
    }
    pthread_mutex_unlock(&c->mu);
    if (!room) return NULL;
    cold_image *m = cold_image_new(c->fingerprint, h, NULL);
    pthread_mutex_lock(&c->mu);
    if (m) {
        m->next = c->filling;
        c->filling = m;
    } else {
        index_remove(&c->index, index_get(&c->index, &h->key, h->kind));
        c->queue_bytes -= n;
        c->n_waiting--;
        c->stats.dropped++;
    }
    pthread_mutex_unlock(&c->mu);
    return m ? m->p + m->payload : NULL;
}

void cold_put_done(cold *c, void *payload) {
    pthread_mutex_lock(&c->mu);
    cold_image **at = &c->filling, *m;
    while ((*at)->p + (*at)->payload != (uint8_t *)payload) at = &(*at)->next;
    m = *at;
    *at = m->next;
    m->next = NULL;
    *c->end = m;
    c->end = &m->next;
    c->n_queued++;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->mu);
}

bool cold_flush(cold *c, const struct timespec *until, error *err) {
    pthread_mutex_lock(&c->mu);
    const uint64_t upto = c->n_queued, lost = c->lost;
    int rc = 0;
    while (c->n_settled < upto && rc != ETIMEDOUT)
        rc = until ? pthread_cond_timedwait(&c->settled, &c->mu, until) : pthread_cond_wait(&c->settled, &c->mu);
    if (c->n_settled < upto) {
        pthread_mutex_unlock(&c->mu);
        return error_set(err, ERR_UNAVAILABLE, "SSD cache: %s does not take what is written in time", c->dir);
    }
    c->lost = c->stats.failed + c->stats.dropped;
    const bool ok = c->lost == lost;
    if (!ok && c->disk_bad)
        error_set(err, c->why.code, "%s", c->why.msg);
    else if (!ok)
        error_set(err, ERR_IO, "SSD cache: there is no room for it below %s", c->dir);
    pthread_mutex_unlock(&c->mu);
    return ok;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */
/* [mu] A blob that still waits for being written. */
static cold_image *queued_find(const cold *c, const cold_head *h) {
    for (cold_image *m = c->queue; m; m = m->next)
        if (cold_image_is(m, c->fingerprint, h)) return m;
    return NULL;
}

/* [mu] Whose turn it is: everyone may have one blob ahead, and more as far as the memory for it goes. */
static cold_read *read_due(cold *c) {
    for (cold_read **at = &c->reads, *r; (r = *at); at = &r->next) {
        if (r->closed || r->n_read == r->n) continue;
        if (r->ahead && c->ahead + cold_image_bytes(&r->head[r->n_read]) > c->ahead_max) continue;
        *at = r->next; /* to the end of the line */
        cold_read **end = &c->reads;
        while (*end) end = &(*end)->next;
        *end = r;
        r->next = NULL;
        return r;
    }
    return NULL;
}

static void read_free(cold_read *r) {
    cold *c = r->c;
    cold_read **at = &c->reads;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    c->ahead -= r->ahead;
    for (size_t i = r->n_out; i < r->n_read; i++) image_drop(r->got[i]);
    image_drop(r->lent);
    free(r->got);
    free(r->head);
    free(r->ids);
    free(r);
}

/* [mu, left and taken again] */
static void read_one(cold *c, cold_read *r) {
    const cold_head *h = &r->head[r->n_read];
    cold_name name = {h->key, cold_tag(&h->parent), h->kind};
    cold_image *m = queued_find(c, h);
    cold_got got = COLD_OK;
    if (m) {
        m->refs++;
    } else {
        const char *why;
        const uint64_t t0 = clock_ns();
        r->busy = true;
        pthread_mutex_unlock(&c->mu);
        got = cold_file_read(c->fd, c->fingerprint, &name, h, &m, &why);
        if (got == COLD_DAMAGED) damaged_remove(c, &name, why);
        pthread_mutex_lock(&c->mu);
        r->busy = false;
        c->stats.read_ns += clock_ns() - t0;
        if (got == COLD_ABSENT) forget(c, &h->key, h->kind);
    }
    c->stats.read += m != NULL;
    c->stats.missed += m == NULL;
    if (m) {
        c->stats.read_bytes += m->n;
        r->ahead += m->n;
        c->ahead += m->n;
    }
    r->got[r->n_read++] = m;
}

/* [mu, left and taken again] */
static void verify_one(cold *c) {
    const cold_name name = c->verify.p[c->verify_at++].name;
    pthread_mutex_unlock(&c->mu);
    cold_image *m;
    const char *why;
    cold_got got = cold_file_read(c->fd, c->fingerprint, &name, NULL, &m, &why);
    cold_image_free(m);
    if (got == COLD_DAMAGED) damaged_remove(c, &name, why);
    pthread_mutex_lock(&c->mu);
    c->stats.verified++;
    if (c->verify_at == c->verify.n) {
        log_info("SSD cache: %llu blobs verified, %llu damaged", (unsigned long long)c->stats.verified,
                 (unsigned long long)c->stats.damaged);
        cold_list_free(&c->verify);
        c->verify_at = 0;
    }
}

static void *reader_main(void *arg) {
    cold *c = arg;
    pthread_mutex_lock(&c->mu);
    while (!c->closing) {
        cold_read *r = read_due(c);
        if (r) {
            read_one(c, r);
            if (r->closed) {
                read_free(r);
                continue;
            }
            pthread_mutex_unlock(&c->mu);
            call_wake(c);
            pthread_mutex_lock(&c->mu);
        } else if (c->verify_at < c->verify.n) {
            verify_one(c);
        } else {
            pthread_cond_wait(&c->wanted, &c->mu);
        }
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

cold_read *cold_read_open(cold *c, const cold_head *h, size_t n) {
    cold_read *r = mem_alloc(sizeof *r);
    *r = (cold_read){.c = c, .n = n};
    r->head = mem_alloc((n + 1) * sizeof *r->head);
    r->got = mem_alloc((n + 1) * sizeof(cold_image *));
    size_t n_ids = 0;
    for (size_t i = 0; i < n; i++) n_ids += h[i].n_ids;
    r->ids = mem_alloc((n_ids + 1) * sizeof *r->ids);
    n_ids = 0;
    for (size_t i = 0; i < n; i++) {
        r->head[i] = h[i];
        r->head[i].ids = r->ids + n_ids;
        if (h[i].n_ids) memcpy(r->ids + n_ids, h[i].ids, h[i].n_ids * sizeof *r->ids);
        n_ids += h[i].n_ids;
    }
    pthread_mutex_lock(&c->mu);
    r->next = c->reads;
    c->reads = r;
    pthread_cond_signal(&c->wanted);
    pthread_mutex_unlock(&c->mu);
    return r;
}

bool cold_read_next(cold_read *r, size_t *i, const void **payload) {
    cold *c = r->c;
    pthread_mutex_lock(&c->mu);
    image_drop(r->lent);
    r->lent = NULL;
    const bool any = r->n_out < r->n_read;
    if (any) {
        *i = r->n_out++;
        cold_image *m = r->lent = r->got[*i];
        *payload = m ? m->p + m->payload : NULL;
        if (m) {
            r->ahead -= m->n;
            c->ahead -= m->n;
        }
        pthread_cond_signal(&c->wanted);
    }
    pthread_mutex_unlock(&c->mu);
    return any;
}

bool cold_read_ended(const cold_read *r) {
    pthread_mutex_lock(&r->c->mu);
    const bool ended = r->n_out == r->n;
    pthread_mutex_unlock(&r->c->mu);
    return ended;
}

void cold_read_close(cold_read *r) {
    if (!r) return;
    cold *c = r->c;
    pthread_mutex_lock(&c->mu);
    if (r->busy)
        r->closed = true;
    else
        read_free(r);
    pthread_mutex_unlock(&c->mu);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */
static void cold_free(cold *c) {
    if (c->root >= 0) close(c->root);
    if (c->fd >= 0) close(c->fd);
    free(c->index.slot);
    cold_list_free(&c->verify);
    pthread_mutex_destroy(&c->mu);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->wanted);
    pthread_cond_destroy(&c->settled);
    free(c->dir);
    free(c);
}

cold *cold_open(const cold_opts *o, error *err) {
    cold *c = mem_alloc(sizeof *c);
    *c = (cold){.root = -1, .fd = -1, .bytes_max = o->bytes_max, .wake = o->wake, .wake_arg = o->wake_arg};
    c->queue_max = o->queue_max ? o->queue_max : COLD_QUEUE;
    c->ahead_max = o->ahead_max ? o->ahead_max : COLD_AHEAD;
    c->end = &c->queue;
    c->dir = mem_strdup(o->dir);
    for (size_t n = strlen(c->dir); n > 1 && c->dir[n - 1] == '/';) c->dir[--n] = 0;
    memcpy(c->fingerprint, o->fingerprint, COLD_KEY);
    for (int i = 0; i < COLD_KEY; i++) snprintf(c->own + 2 * i, 3, "%02x", c->fingerprint[i]);
    pthread_mutex_init(&c->mu, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->wanted, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->settled, &attr);
    pthread_condattr_destroy(&attr);
    bool ok = root_open(c, err) && (c->fd = own_open(c, err)) >= 0;
    if (ok) scan_and_evict(c, 0);
    if (ok && o->verify) {
        cold_list_scan(&c->verify, c->root, c->fd, c->own);
        size_t n = 0;
        for (size_t i = 0; i < c->verify.n; i++)
            if (c->verify.p[i].dir == 0) c->verify.p[n++] = c->verify.p[i];
        c->verify.n = n;
    }
    if (ok && pthread_create(&c->writer, NULL, writer_main, c) == 0) c->n_threads++;
    if (c->n_threads && pthread_create(&c->reader, NULL, reader_main, c) == 0) c->n_threads++;
    if (ok && c->n_threads == 2) return c;
    if (ok) error_set(err, ERR_INTERNAL, "SSD cache: cannot start its threads");
    cold_close(c);
    return NULL;
}

void cold_close(cold *c) {
    if (!c) return;
    pthread_mutex_lock(&c->mu);
    c->closing = true;
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->wanted);
    pthread_mutex_unlock(&c->mu);
    if (c->n_threads > 0) pthread_join(c->writer, NULL);
    if (c->n_threads > 1) pthread_join(c->reader, NULL);
    while (c->reads) read_free(c->reads); /* closed while the reader was at the disk for it */
    cold_free(c);
}

void cold_stats_get(cold *c, cold_stats *out) {
    pthread_mutex_lock(&c->mu);
    *out = c->stats;
    out->bytes = c->bytes;
    out->bytes_all = c->bytes_all;
    out->bytes_max = c->bytes_max;
    out->pending = c->n_waiting;
    out->pending_bytes = c->queue_bytes;
    out->blobs = c->index.n - c->n_waiting;
    out->verify_left = c->verify.n - c->verify_at;
    pthread_mutex_unlock(&c->mu);
}
