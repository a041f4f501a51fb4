/* cold: the store on disk behind the prefix cache. A blob is what one kind of memory holds for one key: the pages of a
 * group for a block of tokens, or recurrent state at a position. Blobs are named by their keys and never change, so a
 * blob that is there is right, and writing it twice is harmless. Two threads of its own do all disk work; no call here
 * waits for the disk, except cold_open, cold_flush and cold_close.
 *
 * cold.c: index, queue, threads. cold_file.c: one blob as a file. cold_dir.c: names, scanning, the cap. Not here: which
 * blobs are wanted (prefix.c), what the bytes mean (device). docs/ssd-cache.md. */
#pragma once
#include "../base/base.h"

enum { COLD_KEY = 32 };
typedef struct cold_key {
    uint8_t b[COLD_KEY];
} cold_key;

/* What a blob is of. key and kind name it; parent is the key it continues (zeros: none), so that the beginning of a
 * conversation outlives its end; ids are the tokens of this part, compared when it is read. */
typedef struct cold_head {
    cold_key key, parent;
    uint32_t kind;      /* group of pages, or the caller's number for state */
    uint32_t pos;       /* of the first of ids in the sequence */
    const int32_t *ids; /* [n_ids]; borrows */
    uint32_t n_ids;     /* at most COLD_IDS_MAX */
    size_t bytes;       /* of the payload: exact, a file of another size is damaged */
} cold_head;
enum { COLD_IDS_MAX = 1 << 16 };

typedef struct cold cold;
typedef struct cold_opts {
    const char *dir;               /* made if absent (0700) */
    uint8_t fingerprint[COLD_KEY]; /* of all that decides the bytes: weights, arithmetic, KV type, layout */
    size_t bytes_max;              /* all blobs below dir, of other models too */
    size_t queue_max;              /* bytes that wait for being written; 0: COLD_QUEUE */
    size_t ahead_max;              /* bytes read and not taken yet; 0: COLD_AHEAD */
    bool verify;                   /* read everything once in the background; damaged blobs go */
    void (*wake)(void *arg); /* from the store's threads, no lock held: a read has news, the queue has room again */
    void *wake_arg;
} cold_opts;
/* Memory that the store may hold at a time besides its index (64 bytes a blob): queue and read-ahead. One blob may
 * always be in each, however large. */
enum { COLD_QUEUE = 64 << 20, COLD_AHEAD = 64 << 20 };

/* ERR_IO: dir cannot be made, opened or written, or is not this user's alone. */
cold *cold_open(const cold_opts *o, error *err);
void cold_close(cold *c); /* writes what is queued; reads must have been closed. May be NULL */

bool cold_has(cold *c, const cold_key *key, uint32_t kind); /* on disk or queued: a hint, a read may still miss */
/* Room for one blob's payload [h->bytes], to be filled and given back with cold_put_done. NULL: it is there already
 * (*full false), or the queue is full and wake will be called (*full true), or the disk refuses writes for now (*full
 * false, counted as dropped). */
void *cold_put(cold *c, const cold_head *h, bool *full);
void cold_put_done(cold *c, void *payload); /* queues it */
/* Waits until all that was queued before is on the disk for good, or the time (clock_in_ms; NULL: none) has come.
 * False: something since the last flush is not, and why. */
bool cold_flush(cold *c, const struct timespec *until, error *err);

/* Reads n blobs, in order, in the background. Heads are copied (their ids too). */
typedef struct cold_read cold_read;
cold_read *cold_read_open(cold *c, const cold_head *h, size_t n);
/* The next blob that has been read, in order: its index in *i, its payload (NULL: not there or damaged) until the next
 * call. False: none yet, or all were handed out (cold_read_ended). Never waits. */
bool cold_read_next(cold_read *r, size_t *i, const void **payload);
bool cold_read_ended(const cold_read *r);
void cold_read_close(cold_read *r); /* at any time */

typedef struct cold_stats {
    uint64_t blobs, bytes, bytes_all, bytes_max; /* of this fingerprint; of all below dir; the cap */
    uint64_t written, written_bytes, read, read_bytes, read_ns;
    uint64_t missed, damaged, evicted, dropped, failed; /* reads without result; removed as damaged; for the cap; not
                                                           written for want of room; writes that failed */
    uint64_t pending, pending_bytes;
    uint64_t verified, verify_left;
} cold_stats;
void cold_stats_get(cold *c, cold_stats *out);

/* ---- between the store's own files ------------------------------------------------------------------------------- */
/* A blob in memory, laid out as its file is. */
typedef struct cold_image {
    struct cold_image *next; /* in a list; belongs to the list's owner */
    int refs;                /* [the store's lock] */
    cold_key key;
    uint32_t kind;
    uint64_t parent; /* first eight bytes of the parent's key */
    uint8_t *p;      /* owns: [n] */
    size_t n, payload;
} cold_image;
cold_image *cold_image_new(const uint8_t *fingerprint, const cold_head *h, error *err); /* payload not filled in */
void cold_image_free(cold_image *m);
size_t cold_image_bytes(const cold_head *h);
bool cold_image_is(const cold_image *m, const uint8_t *fingerprint, const cold_head *h); /* same key, ids and sizes */

/* "<key>-<parent's first eight bytes>-<kind>.kv", all hexadecimal but the kind. */
enum { COLD_NAME = 2 * COLD_KEY + 1 + 16 + 1 + 10 + 3 + 1 };
typedef struct cold_name {
    cold_key key;
    uint64_t parent;
    uint32_t kind;
} cold_name;
uint64_t cold_tag(const cold_key *k); /* first eight bytes */
void cold_name_format(char out[COLD_NAME], const cold_name *n);
bool cold_name_parse(const char *s, cold_name *n);

/* Writes the file below the directory fd: temporary name, fsync, rename; the directory is not synced yet. False: errno.
 */
bool cold_file_write(int fd, cold_image *m);
typedef enum cold_got { COLD_OK, COLD_ABSENT, COLD_DAMAGED, COLD_UNREADABLE } cold_got;
/* Reads and checks. h NULL: whatever the name says. Not COLD_OK: *out NULL, *why says what was wrong (static text). */
cold_got cold_file_read(int fd, const uint8_t *fingerprint, const cold_name *name, const cold_head *h, cold_image **out,
                        const char **why);

/* What a scan finds; dir 0 is the store's own. */
typedef struct cold_found {
    cold_name name;
    int32_t dir;
    uint64_t used; /* ns; raised to that of what continues it when something must go */
    uint64_t bytes;
} cold_found;
typedef struct cold_list {
    cold_found *p; /* owns */
    size_t n, cap;
    uint64_t bytes;                /* of all, unfinished files too */
    char (*dir)[2 * COLD_KEY + 1]; /* owns: names of the directories; [0] is the store's own */
    int32_t n_dirs;
} cold_list;
/* Everything below root. Unfinished files of the own directory that nobody is writing are removed. */
void cold_list_scan(cold_list *l, int root, int own, const char *own_name);
void cold_list_free(cold_list *l);
/* Removes files, those that nothing used for longest first and none before what continues it, until at most bytes_max
 * remain. gone is called for each of the own directory. The number removed. */
uint64_t cold_list_evict(cold_list *l, int root, uint64_t bytes_max, void (*gone)(void *arg, const cold_name *n),
                         void *arg);
