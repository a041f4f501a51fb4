/* One blob of the SSD store as a file: head, token ids, payload; all of it under checksums. Little-endian, as the
 * machines are. Not here: where files lie and which go (cold_dir.c), who reads and writes when (cold.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "cold.h"

enum { FORMAT = 1, ALIGN = 64, WRITE_TRIES = 3 };
static const char magic[8] = "HEARTHKV";

/* The first bytes of a file; ids and zeros up to head_bytes follow, then the payload. */
typedef struct file_head {
    char magic[8];
    uint32_t format, head_bytes;
    uint8_t fingerprint[COLD_KEY], key[COLD_KEY], parent[COLD_KEY];
    uint32_t kind, pos, n_ids, zero;
    uint64_t bytes;
    uint64_t payload_hash[2]; /* XXH3, 128 bits */
    uint64_t head_hash;       /* XXH3 over everything before it, then over ids and zeros */
} file_head;
_Static_assert(sizeof(file_head) == 160, "the layout of the file");

static size_t head_bytes(uint32_t n_ids) {
    return (sizeof(file_head) + 4 * (size_t)n_ids + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

size_t cold_image_bytes(const cold_head *h) {
    return head_bytes(h->n_ids) + h->bytes;
}

static file_head head_of(const uint8_t *fingerprint, const cold_head *h) {
    file_head f = {.format = FORMAT,
                   .head_bytes = (uint32_t)head_bytes(h->n_ids),
                   .kind = h->kind,
                   .pos = h->pos,
                   .n_ids = h->n_ids,
                   .bytes = h->bytes};
    memcpy(f.magic, magic, sizeof magic);
    memcpy(f.fingerprint, fingerprint, COLD_KEY);
    memcpy(f.key, h->key.b, COLD_KEY);
    memcpy(f.parent, h->parent.b, COLD_KEY);
    return f;
}

static cold_image *image_of_size(size_t n, error *err) {
    uint8_t *p = mem_try(n, ALIGN, err);
    if (!p) return NULL;
    cold_image *m = mem_alloc(sizeof *m);
    *m = (cold_image){.refs = 1, .p = p, .n = n};
    return m;
}

cold_image *cold_image_new(const uint8_t *fingerprint, const cold_head *h, error *err) {
    cold_image *m = image_of_size(cold_image_bytes(h), err);
    if (!m) return NULL;
    file_head f = head_of(fingerprint, h);
    memcpy(m->p, &f, sizeof f);
    if (h->n_ids) memcpy(m->p + sizeof f, h->ids, 4 * (size_t)h->n_ids);
    m->key = h->key;
    m->kind = h->kind;
    m->parent = cold_tag(&h->parent);
    m->payload = f.head_bytes;
    return m;
}

void cold_image_free(cold_image *m) {
    if (!m) return;
    mem_try_free(m->p, m->n);
    free(m);
}

bool cold_image_is(const cold_image *m, const uint8_t *fingerprint, const cold_head *h) {
    file_head want = head_of(fingerprint, h);
    return m->n == cold_image_bytes(h) && memcmp(m->p, &want, offsetof(file_head, payload_hash)) == 0 &&
           (!h->n_ids || memcmp(m->p + sizeof want, h->ids, 4 * (size_t)h->n_ids) == 0);
}

static uint64_t head_hash(const uint8_t *p, size_t n) {
    return XXH3_64bits_withSeed(p + sizeof(file_head), n - sizeof(file_head),
                                XXH3_64bits(p, offsetof(file_head, head_hash)));
}

static void image_seal(cold_image *m) {
    file_head *f = (file_head *)m->p;
    XXH128_hash_t h = XXH3_128bits(m->p + m->payload, m->n - m->payload);
    f->payload_hash[0] = h.low64;
    f->payload_hash[1] = h.high64;
    f->head_hash = head_hash(m->p, m->payload);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */
uint64_t cold_tag(const cold_key *k) {
    uint64_t t = 0;
    for (int i = 0; i < 8; i++) t = t << 8 | k->b[i];
    return t;
}

void cold_name_format(char out[COLD_NAME], const cold_name *n) {
    for (int i = 0; i < COLD_KEY; i++) snprintf(out + 2 * i, 3, "%02x", n->key.b[i]);
    snprintf(out + 2 * COLD_KEY, COLD_NAME - 2 * COLD_KEY, "-%016llx-%u.kv", (unsigned long long)n->parent, n->kind);
}

bool cold_name_parse(const char *s, cold_name *n) {
    if (strnlen(s, COLD_NAME) >= COLD_NAME || strlen(s) < 2 * COLD_KEY + 22) return false;
    for (int i = 0; i < COLD_KEY; i++)
        n->key.b[i] = (uint8_t)(str_digit(s[2 * i]) << 4 | (str_digit(s[2 * i + 1]) & 15));
    n->parent = 0;
    for (int i = 0; i < 16; i++) n->parent = n->parent << 4 | (uint64_t)(str_digit(s[2 * COLD_KEY + 1 + i]) & 15);
    int64_t kind;
    str rest = str_of(s + 2 * COLD_KEY + 18);
    if (!str_ends(rest, STR(".kv")) || !str_to_i64(str_slice(rest, 0, rest.n - 3), &kind) || kind < 0 ||
        kind > UINT32_MAX)
        return false;
    n->kind = (uint32_t)kind;
    char again[COLD_NAME]; /* one spelling only */
    cold_name_format(again, n);
    return strcmp(again, s) == 0;
}

/* ---- writing and reading ----------------------------------------------------------------------------------------- */
/* The lock tells those who look for remains of a killed process that this file is being written. */
static int temp_open(int fd, char *name, size_t n) {
    snprintf(name, n, "tmp-%016llx", (unsigned long long)random_u64());
    int f = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (f >= 0) flock(f, LOCK_EX);
    return f;
}

static bool write_once(int fd, const cold_image *m, const char *name) {
    char temp[40];
    int f = temp_open(fd, temp, sizeof temp);
    if (f < 0) return false;
    bool ok = file_write_all(f, (str){(const char *)m->p, m->n}) && fsync(f) == 0 && renameat(fd, temp, fd, name) == 0;
    int why = errno;
    if (ok) posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED); /* the memory is for weights; a restart reads it once */
    if (!ok) unlinkat(fd, temp, 0);
    close(f);
    errno = why;
    return ok;
}

bool cold_file_write(int fd, cold_image *m) {
    image_seal(m);
    char name[COLD_NAME];
    cold_name_format(name, &(cold_name){m->key, m->parent, m->kind});
    bool ok = false;
    /* ENOENT: another process took the temporary file for remains before it was locked. */
    for (int i = 0; !ok && i < WRITE_TRIES && (i == 0 || errno == ENOENT || errno == EEXIST); i++)
        ok = write_once(fd, m, name);
    return ok;
}

static const char *image_fault(const cold_image *m, const uint8_t *fingerprint, const cold_name *name,
                               const cold_head *h) {
    const file_head *f = (const file_head *)m->p;
    if (memcmp(f->magic, magic, sizeof magic) != 0) return "it is no blob";
    if (f->format != FORMAT) return "it has another format";
    if (f->n_ids > COLD_IDS_MAX || f->head_bytes != head_bytes(f->n_ids) || f->head_bytes > m->n ||
        f->bytes != m->n - f->head_bytes)
        return "its size is not what it says";
    if (head_hash(m->p, f->head_bytes) != f->head_hash) return "the checksum of its head is wrong";
    if (memcmp(f->fingerprint, fingerprint, COLD_KEY) != 0) return "it is another model's";
    cold_key parent;
    memcpy(parent.b, f->parent, COLD_KEY);
    if (memcmp(f->key, name->key.b, COLD_KEY) != 0 || f->kind != name->kind || cold_tag(&parent) != name->parent)
        return "its name is another's";
    if (h && !cold_image_is(m, fingerprint, h)) return "it is of other tokens or sizes";
    XXH128_hash_t sum = XXH3_128bits(m->p + f->head_bytes, f->bytes);
    if (sum.low64 != f->payload_hash[0] || sum.high64 != f->payload_hash[1])
        return "the checksum of its content is wrong";
    return NULL;
}

static bool read_all(int f, uint8_t *p, size_t n) {
    while (n) {
        ssize_t got = read(f, p, n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

/* The file, whole; its size is checked against what is expected before memory is taken. */
static cold_got image_load(int f, const cold_head *h, cold_image **out, const char **why) {
    struct stat st;
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) return *why = "it is no regular file", COLD_DAMAGED;
    if (st.st_size < (off_t)sizeof(file_head) || (h && (uint64_t)st.st_size != cold_image_bytes(h)))
        return *why = "its size is wrong", COLD_DAMAGED;
    *out = image_of_size((size_t)st.st_size, NULL);
    if (!*out) return *why = "there is no memory for it", COLD_UNREADABLE;
    if (!read_all(f, (*out)->p, (*out)->n)) return *why = "it cannot be read", COLD_DAMAGED;
    return COLD_OK;
}

cold_got cold_file_read(int fd, const uint8_t *fingerprint, const cold_name *name, const cold_head *h, cold_image **out,
                        const char **why) {
    *out = NULL;
    *why = "it is not there";
    char text[COLD_NAME];
    cold_name_format(text, name);
    int f = openat(fd, text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (f < 0 && errno == ENOENT) return COLD_ABSENT;
    if (f < 0 && (errno == ELOOP || errno == ENXIO)) return *why = "it is no regular file", COLD_DAMAGED;
    if (f < 0) return *why = "it cannot be opened", COLD_UNREADABLE;
    cold_got got = image_load(f, h, out, why);
    if (got == COLD_OK && (*why = image_fault(*out, fingerprint, name, h))) got = COLD_DAMAGED;
    if (got == COLD_OK && h) futimens(f, NULL); /* last use */
    close(f);
    if (got != COLD_OK) {
        cold_image_free(*out);
        *out = NULL;
        return got;
    }
    (*out)->key = name->key;
    (*out)->kind = name->kind;
    (*out)->parent = name->parent;
    (*out)->payload = ((const file_head *)(*out)->p)->head_bytes;
    return COLD_OK;
}
