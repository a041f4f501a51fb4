/* base: what every folder uses. Strings, UTF-8, memory, errors, maps, logging, time, files.
 * Not here: JSON (json.h), the compute thread pool (pool.h). Depends on libc only.
 *
 * Memory rule: small allocations abort the process when memory is gone (mem_*); anything of 1 MiB or more, or whose
 * size a client or a file decides, goes through mem_try and returns an error. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define COUNT(a)     (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)    ((a) < (b) ? (a) : (b))
#define MAX(a, b)    ((a) > (b) ? (a) : (b))
#define PRINTF(f, a) __attribute__((format(printf, f, a)))

/* ---- errors (error.c) ------------------------------------------------------------------------------------------- */
typedef enum error_code {
#define ERROR(name, http, openai, anthropic, exit) ERR_##name,
#include "errors.def"
#undef ERROR
    ERR_COUNT
} error_code;

/* A failure as it travels upwards. A function that can fail returns bool (or a pointer) and takes `error *err` last;
 * err may be NULL when the caller does not want the text. `param` names the request field, when there is one. */
typedef struct error {
    error_code code;
    char param[96];
    char msg[600];
} error;

typedef struct error_info {
    const char *name;
    int http;
    const char *openai_type, *anthropic_type;
    int exit_code;
} error_info;

const error_info *error_describe(error_code code);
/* Sets *err (first failure wins: an error already set is kept) and returns false, so that `return error_set(...)` reads
 * well. */
bool error_set(error *err, error_code code, const char *fmt, ...) PRINTF(3, 4);
/* The same, naming the request field at fault (`messages[2].content`). */
bool error_field(error *err, error_code code, const char *param, const char *fmt, ...) PRINTF(4, 5);
/* error_set with ": strerror(errno)" appended. */
bool error_errno(error *err, error_code code, const char *fmt, ...) PRINTF(3, 4);
/* Puts text in front of the message of an error that is already set ("loading x: ..."). */
void error_prefix(error *err, const char *fmt, ...) PRINTF(2, 3);

/* ---- string slices (str.c) -------------------------------------------------------------------------------------- */
/* Borrowed bytes, not NUL-terminated, may hold NUL. */
typedef struct str {
    const char *p;
    size_t n;
} str;
#define STR(lit) ((str){(lit), sizeof(lit) - 1})
static inline str str_of(const char *s) {
    return (str){s, s ? strlen(s) : 0};
}
static inline bool str_eq(str a, str b) {
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}
static inline bool str_is(str a, const char *b) {
    return str_eq(a, str_of(b));
}
bool str_starts(str s, str prefix);
bool str_ends(str s, str suffix);
bool str_has(str s, str needle);
size_t str_find(str s, str needle); /* SIZE_MAX when absent */
str str_slice(str s, size_t from, size_t to);
str str_trim(str s); /* ASCII white space, both ends */
/* Whole-slice parsers: false unless every byte belongs to the number and it is in range. */
bool str_to_i64(str s, int64_t *out);
bool str_to_f64(str s, double *out);
/* The shortest digits that read back the same, laid out as Python's repr: exponent form below 1e-4 and from 1e16. */
void str_from_f64(char out[40], double v);
/* The value of a digit or letter, as in numbers of base 36; 99 for any other character. */
static inline int str_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}
static inline bool str_space(char c) { /* ASCII white space */
    return c == ' ' || (c >= '\t' && c <= '\r');
}
/* Edit distance, for "did you mean". */
int str_distance(str a, str b);

/* ---- memory (mem.c) --------------------------------------------------------------------------------------------- */
void *mem_alloc(size_t n);           /* zeroed; aborts when memory is gone */
void *mem_resize(void *p, size_t n); /* realloc; aborts */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
void *mem_try(size_t n, size_t align,
              error *err); /* zeroed lazily (mmap for large sizes); NULL + ERR_MEMORY. Free: mem_try_free */
void mem_try_free(void *p, size_t n);
bool size_mul(size_t a, size_t b, size_t *out); /* false on overflow */
bool size_add(size_t a, size_t b, size_t *out);

/* Many small objects with one lifetime; freed in one call. Not thread-safe. */
typedef struct arena arena;
arena *arena_new(size_t bytes_max); /* 0: no limit; past the limit arena_alloc returns NULL */
void arena_free(arena *a);
void *arena_alloc(arena *a, size_t n);               /* zeroed, 16-byte aligned */
void *arena_copy(arena *a, const void *p, size_t n); /* copy with one NUL byte after it */
char *arena_printf(arena *a, const char *fmt, ...) PRINTF(2, 3);
size_t arena_bytes(const arena *a);
#define arena_array(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

/* Growable bytes; `p` is always NUL-terminated once something was added. {0} is an empty buffer. */
typedef struct buf {
    char *p; /* owns */
    size_t n, cap;
} buf;
void buf_free(buf *b);
void buf_reserve(buf *b, size_t more);
void buf_add(buf *b, const void *p, size_t n);
void buf_str(buf *b, str s);
void buf_puts(buf *b, const char *s);
void buf_putc(buf *b, char c);
void buf_printf(buf *b, const char *fmt, ...) PRINTF(2, 3);
char *buf_take(buf *b); /* the bytes, NUL-terminated, now the caller's (free()); the buffer is empty again */
static inline str buf_view(const buf *b) {
    return (str){b->p, b->n};
}

/* A growable list of 32-bit ids (tokens). */
typedef struct ids {
    int32_t *p; /* owns */
    size_t n, cap;
} ids;
void ids_push(ids *v, int32_t id);
void ids_append(ids *v, const int32_t *p, size_t n);
void ids_free(ids *v);

/* ---- UTF-8 (utf8.c) --------------------------------------------------------------------------------------------- */
static inline bool utf8_inside(char c) { /* a byte of a character, but not its first */
    return ((uint8_t)c & 0xC0) == 0x80;
}
/* Where the character begins that p[at] belongs to. */
static inline size_t utf8_start(const char *p, size_t at) {
    while (at > 0 && utf8_inside(p[at])) at--;
    return at;
}
/* Decodes one character of valid UTF-8; *n is its length. */
static inline uint32_t utf8_get(const char *p, size_t *n) {
    const uint8_t *s = (const uint8_t *)p;
    if (s[0] < 0x80) return *n = 1, s[0];
    if (s[0] < 0xE0) return *n = 2, (s[0] & 31u) << 6 | (s[1] & 63u);
    if (s[0] < 0xF0) return *n = 3, (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
    return *n = 4, (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
}
/* The character that ends at s.p[at]; *n is its length. at > 0. */
static inline uint32_t utf8_before(str s, size_t at, size_t *n) {
    size_t from = utf8_start(s.p, at - 1), len;
    *n = at - from;
    return utf8_get(s.p + from, &len);
}
size_t utf8_put(char out[4], uint32_t cp); /* cp < 0x110000; the number of bytes written */
size_t utf8_valid(str s);                  /* length of the longest valid prefix; s.n when all is valid */
/* How many bytes at s.p form one unit for lossy decoding: a character (ok) or a maximal ill-formed part (not ok). 0:
 * more bytes are needed to tell and `final` is false. */
size_t utf8_unit(str s, bool final, bool *ok);
void utf8_lossy(str s, buf *out); /* ill-formed parts become U+FFFD, as Python's and Rust's decoders do */
/* Decodes the character at p[*at] of n bytes and moves *at behind it; an ill-formed byte is U+FFFD. */
uint32_t utf8_next(const char *p, size_t n, size_t *at);

/* ---- map: bytes -> uint64 (map.c) ------------------------------------------------------------------------------- */
typedef struct map map;
map *map_new(size_t expected);
void map_free(map *m);
void map_set(map *m, str key, uint64_t value); /* copies the key */
bool map_get(const map *m, str key, uint64_t *value);
size_t map_count(const map *m);

/* ---- logging (log.c): stderr, one line a message ---------------------------------------------------------------- */
typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
bool log_level_parse(str name, log_level *out); /* "error", "warn", "info", "debug" */
void log_set_level(log_level level);
void log_set_json(bool on);
void log_write(log_level level, const char *fmt, ...) PRINTF(2, 3);
void log_line(log_level level, str line); /* verbatim, for lines that are JSON already (the access log) */
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)

/* ---- time (clock.c) --------------------------------------------------------------------------------------------- */
uint64_t clock_ns(void);             /* monotonic */
struct timespec clock_in_ms(int ms); /* the monotonic clock in ms milliseconds, for waits with a deadline */
int64_t clock_unix(void);            /* seconds since 1970 */
uint64_t random_u64(void);           /* from the kernel */

/* ---- files (file.c) --------------------------------------------------------------------------------------------- */
/* A read-only mapping. SIGBUS on truncation under us is the operating system's answer; sizes are checked against n. */
typedef struct file_map {
    const uint8_t *p;
    size_t n;
} file_map;
bool file_map_open(file_map *m, const char *path, error *err);
void file_map_close(file_map *m);
void file_map_drop(const void *p, size_t n); /* tells the kernel these mapped bytes are not needed in memory any more */
bool file_read(buf *out, const char *path, size_t bytes_max, error *err);
/* All of s, however many calls it takes; false: errno says why. */
bool file_write_all(int fd, str s);
bool file_write_atomic(const char *path, const void *p, size_t n, error *err); /* temporary file, fsync, rename */
/* The same with the content in pieces, written one after the other. */
bool file_write_parts(const char *path, const str *parts, size_t n, error *err);
bool file_exists(const char *path);
bool dir_exists(const char *path);
bool dir_make(const char *path, error *err);        /* with parents */
char *path_join(const char *dir, const char *name); /* caller frees */
char *path_cache(void);                             /* $XDG_CACHE_HOME/hearth or ~/.cache/hearth; caller frees */
