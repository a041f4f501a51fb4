/* The SSD store: what was written comes back after any end of the process, what is damaged or foreign never does, the
 * cap and the queue hold, and two stores on one directory do not disturb each other. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/engine/cold.h"

enum { BYTES = 5000, IDS = 64, MB = 1 << 20 };
static char dir[64];

static int dir_new(void **state) {
    snprintf(dir, sizeof dir, "%s", "/tmp/cold_test.XXXXXX");
    assert_non_null(mkdtemp(dir));
    return 0;
}

static int dir_gone(void **state) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static cold_opts opts(uint8_t model) {
    cold_opts o = {.dir = dir, .bytes_max = 100 * MB};
    memset(o.fingerprint, model, COLD_KEY);
    return o;
}

static cold *open_or_fail(const cold_opts *o) {
    error err = {0};
    cold *c = cold_open(o, &err);
    if (!c) fail_msg("%s", err.msg);
    return c;
}

/* Blob number i of conversation `talk`: everything about it follows from the two numbers. */
typedef struct blob {
    cold_head h;
    int32_t id[IDS];
} blob;
static cold_key key_of(int talk, int i) {
    cold_key k;
    for (int b = 0; b < COLD_KEY; b++)
        k.b[b] = i < 0 ? 0
                       : (uint8_t)(((unsigned)talk * 2654435761u + (unsigned)i * 40503u + 977u) >> (b % 4 * 8)) ^
                             (uint8_t)(b * 31);
    return k;
}
static const cold_head *blob_make(blob *b, int talk, int i, size_t bytes) {
    for (int k = 0; k < IDS; k++) b->id[k] = talk * 1000 + i * IDS + k;
    b->h = (cold_head){.key = key_of(talk, i),
                       .parent = key_of(talk, i - 1),
                       .pos = (uint32_t)(i * IDS),
                       .ids = b->id,
                       .n_ids = IDS,
                       .bytes = bytes};
    return &b->h;
}
static void content(uint8_t *p, size_t n, int talk, int i) {
    for (size_t k = 0; k < n; k++) p[k] = (uint8_t)((size_t)(talk * 7 + i * 13) + k * k);
}

static bool put(cold *c, int talk, int i, size_t bytes) {
    blob b;
    bool full;
    void *p = cold_put(c, blob_make(&b, talk, i, bytes), &full);
    if (!p) return false;
    content(p, bytes, talk, i);
    cold_put_done(c, p);
    return true;
}

/* 1: there and right, 0: a miss; anything else fails the test. */
static int get(cold *c, int talk, int i, size_t bytes) {
    blob b;
    cold_read *r = cold_read_open(c, blob_make(&b, talk, i, bytes), 1);
    size_t at = 9;
    const void *p = NULL;
    while (!cold_read_next(r, &at, &p)) usleep(100);
    assert_int_equal(at, 0);
    assert_true(cold_read_ended(r));
    int found = p != NULL;
    if (p) {
        uint8_t *want = malloc(bytes);
        content(want, bytes, talk, i);
        assert_memory_equal(p, want, bytes);
        free(want);
    }
    cold_read_close(r);
    return found;
}

static void flush(cold *c) {
    error err = {0};
    if (!cold_flush(c, NULL, &err)) fail_msg("%s", err.msg);
}

static cold_stats stats(cold *c) {
    cold_stats s;
    cold_stats_get(c, &s);
    return s;
}

static char *path_of(uint8_t model, int talk, int i) {
    static char path[300];
    char name[COLD_NAME];
    cold_key parent = key_of(talk, i - 1);
    cold_name_format(name, &(cold_name){key_of(talk, i), cold_tag(&parent), 0});
    int n = snprintf(path, sizeof path, "%s/", dir);
    for (int k = 0; k < COLD_KEY; k++) n += snprintf(path + n, sizeof path - (size_t)n, "%02x", model);
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name);
    return path;
}

static bool there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- what goes in comes out -------------------------------------------------------------------------------------- */
static void comes_back_after_a_restart(void **state) {
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    for (int i = 0; i < 20; i++) assert_true(put(c, 1, i, BYTES + (size_t)i));
    assert_false(put(c, 1, 3, BYTES + 3));          /* it is there */
    assert_int_equal(get(c, 1, 19, BYTES + 19), 1); /* perhaps still queued */
    flush(c);
    assert_int_equal(stats(c).blobs, 20);
    assert_int_equal(stats(c).written, 20);
    assert_int_equal(stats(c).pending, 0);
    cold_close(c);
    c = open_or_fail(&o);
    assert_int_equal(stats(c).blobs, 20);
    cold_key k = key_of(1, 7), other = key_of(1, 20);
    assert_true(cold_has(c, &k, 0));
    assert_false(cold_has(c, &k, 1));
    assert_false(cold_has(c, &other, 0));
    blob b[20];
    cold_head h[20];
    for (int i = 0; i < 20; i++) h[i] = *blob_make(&b[i], 1, i, BYTES + (size_t)i);
    cold_read *r = cold_read_open(c, h, 20);
    for (size_t i = 0; i < 20;) {
        size_t at;
        const void *p;
        if (!cold_read_next(r, &at, &p)) continue;
        assert_int_equal(at, i);
        uint8_t want[BYTES + 20];
        content(want, BYTES + i, 1, (int)i);
        assert_memory_equal(p, want, BYTES + i);
        i++;
    }
    assert_true(cold_read_ended(r));
    cold_read_close(r);
    struct stat st;
    assert_int_equal(stat(path_of(1, 1, 0), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    cold_close(c);
}

static void other_sizes_and_kinds(void **state) {
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    bool full;
    blob b;
    cold_head h = *blob_make(&b, 1, 0, 0); /* nothing but a name */
    h.n_ids = 0;
    h.kind = 77;
    void *p = cold_put(c, &h, &full);
    assert_non_null(p);
    cold_put_done(c, p);
    assert_true(put(c, 2, 0, 3 * MB));
    flush(c);
    assert_true(cold_has(c, &h.key, 77));
    assert_false(cold_has(c, &h.key, 0));
    assert_int_equal(get(c, 2, 0, 3 * MB), 1);
    assert_int_equal(get(c, 2, 0, 3 * MB - 1), 0); /* asked for as another size: it is not what is wanted, and goes */
    assert_false(there(path_of(1, 2, 0)));
    cold_close(c);
}

/* Reads that nobody takes hold no more than their share of memory, and may be closed at any time. */
static void reads_are_bounded_and_may_end_early(void **state) {
    enum { N = 12, BIG = 16 * MB };
    cold_opts o = opts(1);
    o.bytes_max = 1 << 30;
    cold *c = open_or_fail(&o);
    blob b[N];
    cold_head h[N];
    for (int i = 0; i < N; i++) {
        h[i] = *blob_make(&b[i], 1, i, i < 8 ? BIG : 100);
        bool full;
        void *p;
        while (!(p = cold_put(c, &h[i], &full))) usleep(1000);
        memset(p, i, 100);
        cold_put_done(c, p);
    }
    flush(c);
    cold_read *r = cold_read_open(c, h, N), *s = cold_read_open(c, h, N);
    for (int k = 0; k < 1000 && stats(c).read_bytes < 4 * (size_t)BIG; k++) usleep(10000);
    usleep(50000); /* it could go on, if it did not keep to its bound */
    assert_in_range(stats(c).read_bytes, 2 * BIG, COLD_AHEAD + 2 * BIG);
    size_t at;
    const void *p;
    while (!cold_read_next(s, &at, &p)) usleep(1000);
    cold_read_close(r);
    for (size_t i = 1; i < N; i++) {
        while (!cold_read_next(s, &at, &p)) usleep(1000);
        assert_int_equal(at, i);
        assert_non_null(p);
        assert_int_equal(*(const uint8_t *)p, i);
    }
    cold_read_close(s);
    for (int k = 0; k < 20; k++) cold_read_close(cold_read_open(c, h, N)); /* while the reader is at it */
    cold_close(c);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */
static void spoil(const char *path, off_t at, uint8_t with) {
    int fd = open(path, O_RDWR);
    uint8_t v;
    assert_int_equal(pread(fd, &v, 1, at), 1);
    v ^= with;
    assert_int_equal(pwrite(fd, &v, 1, at), 1);
    close(fd);
}

static void every_damage_is_a_miss(void **state) {
    enum { HEAD = 160 + 4 * IDS };
    log_set_level(LOG_ERROR);
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    uint64_t n = 0;
    for (off_t at = 0; at < HEAD + BYTES; at += at < HEAD ? 1 : 211) {
        assert_true(put(c, 1, 0, BYTES));
        flush(c);
        spoil(path_of(1, 1, 0), at, (uint8_t)(1 << (at % 8)));
        assert_int_equal(get(c, 1, 0, BYTES), 0);
        assert_false(there(path_of(1, 1, 0)));
        assert_int_equal(stats(c).damaged, ++n);
        assert_int_equal(stats(c).blobs, 0);
    }
    const off_t cut[] = {0, 1, 8, 159, 160, HEAD - 1, HEAD, HEAD + 1, HEAD + BYTES - 1, HEAD + BYTES + 1};
    for (size_t i = 0; i < COUNT(cut); i++) {
        assert_true(put(c, 1, 0, BYTES));
        flush(c);
        assert_int_equal(truncate(path_of(1, 1, 0), cut[i]), 0);
        assert_int_equal(get(c, 1, 0, BYTES), 0);
        assert_false(there(path_of(1, 1, 0)));
    }
    assert_true(put(c, 1, 0, BYTES));
    flush(c);
    assert_int_equal(get(c, 1, 0, BYTES), 1);
    cold_close(c);
    log_set_level(LOG_INFO);
}

/* A blob under another's name, of another model, of other tokens; things that are no files. */
static void foreign_things_are_misses(void **state) {
    log_set_level(LOG_ERROR);
    cold_opts o = opts(1), o2 = opts(2);
    cold *c = open_or_fail(&o), *d = open_or_fail(&o2);
    char from[300];
    for (int i = 0; i < 6; i++) assert_true(put(c, 1, i, BYTES) && put(d, 1, i, BYTES));
    flush(c);
    flush(d);
    strcpy(from, path_of(1, 1, 1)); /* another key */
    assert_int_equal(rename(from, path_of(1, 1, 0)), 0);
    assert_int_equal(get(c, 1, 0, BYTES), 0);
    assert_int_equal(get(c, 1, 1, BYTES), 0);
    strcpy(from, path_of(2, 1, 2)); /* another model */
    assert_int_equal(rename(from, path_of(1, 1, 2)), 0);
    assert_int_equal(get(c, 1, 2, BYTES), 0);
    assert_false(there(path_of(1, 1, 2)));
    blob b; /* the same key, other tokens: a collision, or a liar */
    cold_head h = *blob_make(&b, 1, 3, BYTES);
    b.id[5]++;
    cold_read *r = cold_read_open(c, &h, 1);
    size_t at;
    const void *p = &h;
    while (!cold_read_next(r, &at, &p)) usleep(100);
    assert_null(p);
    cold_read_close(r);
    snprintf(from, sizeof from, "%s/secret", dir); /* a link out of the directory */
    int fd = open(from, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
    unlink(path_of(1, 1, 4));
    assert_int_equal(symlink(from, path_of(1, 1, 4)), 0);
    assert_int_equal(get(c, 1, 4, BYTES), 0);
    assert_false(there(path_of(1, 1, 4)));
    assert_true(there(from));
    unlink(path_of(1, 1, 5));
    assert_int_equal(mkfifo(path_of(1, 1, 5), 0600), 0);
    assert_int_equal(get(c, 1, 5, BYTES), 0); /* and it does not hang */
    assert_int_equal(mkdir(path_of(1, 1, 0), 0700), 0);
    assert_int_equal(get(c, 1, 0, BYTES), 0);
    assert_int_equal(get(d, 1, 5, BYTES), 1);
    cold_close(c);
    cold_close(d);
    log_set_level(LOG_INFO);
}

static void verifying_finds_what_nobody_asked_for(void **state) {
    log_set_level(LOG_ERROR);
    cold_opts o = opts(1), o2 = opts(2);
    cold *c = open_or_fail(&o), *d = open_or_fail(&o2);
    for (int i = 0; i < 10; i++) assert_true(put(c, 1, i, BYTES) && put(d, 1, i, BYTES));
    cold_close(c);
    cold_close(d);
    spoil(path_of(1, 1, 2), 3000, 1);
    spoil(path_of(1, 1, 6), 20, 1);
    spoil(path_of(2, 1, 3), 3000, 1);
    o.verify = true;
    c = open_or_fail(&o);
    for (int i = 0; i < 1000 && stats(c).verified < 10; i++) usleep(2000);
    assert_int_equal(stats(c).verified, 10);
    assert_int_equal(stats(c).verify_left, 0);
    assert_int_equal(stats(c).damaged, 2);
    assert_int_equal(stats(c).blobs, 8);
    assert_false(there(path_of(1, 1, 2)));
    assert_true(there(path_of(2, 1, 3))); /* another model's is not looked at */
    cold_close(c);
    log_set_level(LOG_INFO);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */
static int count_files(const char *prefix) {
    char path[300];
    strcpy(path, path_of(1, 1, 0));
    *strrchr(path, '/') = 0;
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.' && str_starts(str_of(e->d_name), str_of(prefix));
    if (d) closedir(d);
    return n;
}

/* A writer is killed at random moments: what is there is right, what it had flushed is there, and nothing is left over.
 */
static void killed_at_any_moment(void **state) {
    cold_opts o = opts(1);
    unsigned seed = 7;
    for (int round = 0; round < 12; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t pid = fork();
        if (pid == 0) {
            cold *c = cold_open(&o, NULL);
            for (int i = 0; c; i++) {
                put(c, round, i, BYTES * 4);
                if (i % 5 == 4 && (!cold_flush(c, NULL, NULL) || write(pipes[1], &i, sizeof i) < 0)) break;
            }
            _exit(1);
        }
        close(pipes[1]);
        usleep(5000 + (unsigned)rand_r(&seed) % 40000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        int durable = -1;
        while (read(pipes[0], &durable, sizeof durable) == sizeof durable) {
        }
        close(pipes[0]);
        cold *c = open_or_fail(&o);
        assert_int_equal(count_files("tmp-"), 0);
        for (int i = 0; i <= durable; i++) assert_int_equal(get(c, round, i, BYTES * 4), 1);
        for (int i = durable + 1; i < durable + 40; i++) get(c, round, i, BYTES * 4);
        assert_int_equal(stats(c).damaged, 0);
        cold_close(c);
    }
}

static void remains_are_removed_but_not_anothers_work(void **state) {
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    assert_true(put(c, 1, 0, BYTES));
    cold_close(c);
    char path[300], mine[400], left[400], unknown[400];
    strcpy(path, path_of(1, 1, 0));
    *strrchr(path, '/') = 0;
    snprintf(mine, sizeof mine, "%s/tmp-00000000000000aa", path);
    snprintf(left, sizeof left, "%s/tmp-00000000000000bb", path);
    snprintf(unknown, sizeof unknown, "%s/notes.txt", path);
    int fd = open(mine, O_CREAT | O_RDWR, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* as a process that is writing it */
    close(open(left, O_CREAT | O_RDWR, 0600));
    close(open(unknown, O_CREAT | O_RDWR, 0600));
    c = open_or_fail(&o);
    assert_true(there(mine));
    assert_false(there(left));
    assert_true(there(unknown));
    assert_int_equal(stats(c).blobs, 1);
    cold_close(c);
    close(fd);
}

static void what_others_could_write_is_refused(void **state) {
    error err = {0};
    cold_opts o = opts(1);
    cold_close(open_or_fail(&o));
    char path[300];
    strcpy(path, path_of(1, 1, 0));
    *strrchr(path, '/') = 0;
    assert_int_equal(chmod(path, 0777), 0);
    assert_null(cold_open(&o, &err));
    assert_int_equal(err.code, ERR_IO);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/tmp", path), 0); /* the directory is a link to elsewhere */
    assert_null(cold_open(&o, NULL));
    o.dir = "/proc/nothing";
    assert_null(cold_open(&o, NULL));
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */
/* Times of files are those of the kernel's last tick: what lies within one counts as used at once. */
static void tick(void) {
    usleep(20000);
}

/* Files in order of use; the beginning of a conversation outlives its end; other models' files go in the same order. */
static void the_cap_holds(void **state) {
    enum { BIG = 60000, EACH = 15 * 4096 };
    cold_opts o = opts(1), other = opts(2);
    o.bytes_max = other.bytes_max = 20 * EACH;
    cold *d = open_or_fail(&other);
    for (int i = 0; i < 4; i++) assert_true(put(d, 9, i, BIG));
    cold_close(d);
    tick();
    cold *c = open_or_fail(&o);
    assert_int_equal(stats(c).bytes_all, 4 * EACH);
    assert_int_equal(stats(c).bytes, 0);
    for (int i = 0; i < 8; i++) assert_true(put(c, 1, i, BIG)), flush(c);
    for (int i = 0; i < 8; i++) assert_true(put(c, 2, i, BIG)), flush(c);
    assert_int_equal(stats(c).evicted, 0);
    tick();
    assert_int_equal(get(c, 1, 7, BIG), 1); /* its whole conversation counts as used */
    tick();
    for (int i = 0; i < 6; i++) assert_true(put(c, 3, i, BIG)), flush(c);
    cold_stats s = stats(c);
    assert_true(s.bytes_all <= o.bytes_max);
    assert_true(s.evicted >= 6);
    assert_false(there(path_of(2, 9, 0))); /* the oldest of all were another model's */
    for (int i = 0; i < 8; i++) assert_int_equal(get(c, 1, i, BIG), 1);
    for (int i = 0; i < 6; i++) assert_int_equal(get(c, 3, i, BIG), 1);
    int left = 0;
    for (int i = 0; i < 8; i++) { /* of the one that had to give: a beginning, without holes */
        int has = get(c, 2, i, BIG);
        assert_true(!has || left == i);
        left += has;
    }
    assert_in_range(left, 1, 6);
    assert_true(put(c, 4, 0, 21 * EACH)); /* larger than the cap */
    assert_false(cold_flush(c, NULL, NULL));
    assert_true(stats(c).dropped > 0 && stats(c).evicted < 40);
    assert_int_equal(get(c, 4, 0, 21 * EACH), 0);
    cold_close(c);
}

static void the_queue_is_bounded(void **state) {
    cold_opts o = opts(1);
    o.queue_max = 10 * BYTES;
    cold *c = open_or_fail(&o);
    bool full = false;
    blob b;
    int n = 0;
    void *p[20];
    while (n < 20 && (p[n] = cold_put(c, blob_make(&b, 1, n, BYTES), &full))) content(p[n], BYTES, 1, n), n++;
    assert_in_range(n, 8, 10); /* nothing was given back: nothing could leave */
    assert_true(full);
    assert_true(stats(c).pending_bytes <= o.queue_max);
    for (int i = 0; i < n; i++) cold_put_done(c, p[i]);
    flush(c);
    assert_int_equal(stats(c).pending_bytes, 0);
    assert_true(put(c, 1, n, BYTES));
    flush(c);
    assert_true(put(c, 2, 0, 40 * BYTES)); /* one that is larger than the queue goes alone */
    flush(c);
    for (int i = 0; i <= n; i++) assert_int_equal(get(c, 1, i, BYTES), 1);
    cold_close(c);
}

/* Writes that fail (here: the largest size a file may have) are told once, leave nothing behind and disturb nothing;
 * a full disk goes the same way (tests/api/test_cold.py). */
static void a_disk_that_refuses(void **state) {
    log_set_level(LOG_ERROR);
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    assert_true(put(c, 1, 0, BYTES));
    flush(c);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small = {2000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_true(put(c, 1, 1, BYTES));
    error err = {0};
    assert_false(cold_flush(c, NULL, &err));
    assert_int_equal(err.code, ERR_IO);
    assert_false(put(c, 1, 2, BYTES)); /* left alone for a while */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(stats(c).failed, 1);
    assert_int_equal(count_files("tmp-"), 0);
    assert_int_equal(get(c, 1, 0, BYTES), 1);
    assert_int_equal(get(c, 1, 1, BYTES), 0);
    cold_close(c);
    log_set_level(LOG_INFO);
}

/* `rm -rf` of the cache while it is in use costs what was in it, nothing else. */
static void a_directory_that_is_deleted(void **state) {
    cold_opts o = opts(1);
    cold *c = open_or_fail(&o);
    for (int all = 0; all < 2; all++) {
        assert_true(put(c, 1, all, BYTES));
        flush(c);
        char command[100];
        snprintf(command, sizeof command, all ? "rm -rf %s" : "rm -rf %s/*", dir);
        assert_int_equal(system(command), 0);
        assert_int_equal(get(c, 1, all, BYTES), 0);
        assert_true(put(c, 2, all, BYTES));
        flush(c);
        assert_int_equal(get(c, 2, all, BYTES), 1);
        assert_int_equal(stats(c).blobs, 1);
        assert_int_equal(stats(c).failed, 0);
    }
    cold_close(c);
}

/* ---- two on one directory ---------------------------------------------------------------------------------------- */
static void two_stores_share_a_directory(void **state) {
    enum { BIG = 60000, EACH = 15 * 4096 };
    cold_opts o = opts(1);
    o.bytes_max = 30 * EACH;
    pid_t pid[2];
    for (int p = 0; p < 2; p++) {
        if ((pid[p] = fork())) continue;
        cold *c = cold_open(&o, NULL);
        int bad = c == NULL;
        for (int i = 0; c && i < 60; i++) {
            put(c, i % 3 ? 5 : 10 + p, i, BIG); /* some the same, some not */
            bad |= !cold_flush(c, NULL, NULL);
            blob b;
            cold_head h = *blob_make(&b, i % 3 ? 5 : 10 + p, i - 3, BIG);
            cold_read *r = i >= 3 ? cold_read_open(c, &h, 1) : NULL;
            size_t at;
            const void *got;
            while (r && !cold_read_next(r, &at, &got)) usleep(100);
            static uint8_t want[BIG];
            content(want, BIG, i % 3 ? 5 : 10 + p, i - 3);
            bad |= r && got && memcmp(got, want, BIG) != 0;
            cold_read_close(r);
        }
        cold_stats s = stats(c);
        cold_close(c);
        _exit(bad || s.damaged || s.failed);
    }
    for (int p = 0; p < 2; p++) {
        int status;
        waitpid(pid[p], &status, 0);
        assert_int_equal(status, 0);
    }
    cold *c = open_or_fail(&o);
    assert_true(stats(c).bytes_all <= o.bytes_max);
    assert_int_equal(count_files("tmp-"), 0);
    cold_close(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_new, dir_gone)
int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(comes_back_after_a_restart),
        TEST(other_sizes_and_kinds),
        TEST(reads_are_bounded_and_may_end_early),
        TEST(every_damage_is_a_miss),
        TEST(foreign_things_are_misses),
        TEST(verifying_finds_what_nobody_asked_for),
        TEST(killed_at_any_moment),
        TEST(remains_are_removed_but_not_anothers_work),
        TEST(what_others_could_write_is_refused),
        TEST(the_cap_holds),
        TEST(the_queue_is_bounded),
        TEST(a_disk_that_refuses),
        TEST(a_directory_that_is_deleted),
        TEST(two_stores_share_a_directory),
    };
    return cmocka_run_group_tests_name("SSD store", tests, NULL, NULL);
}
