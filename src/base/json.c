/* JSON: reading into an arena with an explicit stack (never recursing), lookups, and the appending writer. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>
#include "json.h"

enum { DEPTH_DEFAULT = 128, SMALL_OBJECT = 16, STACK_FIRST = 64 };

/* ---- reader ----------------------------------------------------------------------------------------------------- */
typedef struct open_container {
    uint32_t first; /* index of its first child on the value stack */
    bool object;
} open_container;

typedef struct reader {
    arena *a;
    const char *start, *p, *end;
    size_t memory_max, arena_start;
    json *stack; /* owns; children of the containers that are still open: values, in objects key and value in turn */
    uint32_t n_stack, cap_stack;
    open_container *open; /* owns */
    uint32_t depth, depth_max;
    error *err;
} reader;

static bool fail(reader *r, const char *what) {
    return error_set(r->err, ERR_INVALID, "invalid JSON at byte %zu: %s", (size_t)(r->p - r->start), what);
}

static bool too_big(reader *r) {
    return error_set(r->err, ERR_TOO_LARGE,
                     "JSON at byte %zu: the document needs more than the limit of %zu bytes of memory",
                     (size_t)(r->p - r->start), r->memory_max);
}

static void *take(reader *r, size_t n) {
    size_t used = arena_bytes(r->a) - r->arena_start + r->cap_stack * sizeof *r->stack;
    if (used > r->memory_max || n > r->memory_max - used) return too_big(r), NULL;
    void *p = arena_alloc(r->a, n);
    if (!p) too_big(r);
    return p;
}

static bool push(reader *r, json m) {
    if (r->n_stack == r->cap_stack) {
        uint32_t cap = r->cap_stack * 2;
        if (cap > 1u << 30 ||
            arena_bytes(r->a) - r->arena_start + (size_t)cap * sizeof m > r->memory_max + 64 * sizeof m)
            return too_big(r);
        r->stack = mem_resize(r->stack, cap * sizeof m);
        r->cap_stack = cap;
    }
    r->stack[r->n_stack++] = m;
    return true;
}

static void skip_space(reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) r->p++;
}

/* Length of the well-formed character at p, 0 if ill-formed. */
static inline size_t character(const unsigned char *p, const unsigned char *end) {
    bool ok;
    if (*p < 0x80) return 1;
    size_t n = utf8_unit((str){(const char *)p, (size_t)(end - p)}, true, &ok);
    return ok ? n : 0;
}

static int hex4(const char *p, const char *end) {
    int v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int d = str_digit(p[i]);
        if (d >= 16) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* \uXXXX at p (behind the u), with its low surrogate; returns the code point or -1. */
static int32_t read_unicode_escape(reader *r) {
    int32_t c = hex4(r->p, r->end);
    if (c < 0) return fail(r, "bad \\u escape"), -1;
    r->p += 4;
    if (c >= 0xdc00 && c <= 0xdfff) return fail(r, "lone low surrogate"), -1;
    if (c < 0xd800 || c > 0xdbff) return c;
    int32_t low = r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u' ? hex4(r->p + 2, r->end) : -1;
    if (low < 0xdc00 || low > 0xdfff) return fail(r, "lone high surrogate"), -1;
    r->p += 6;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

static char *read_escape(reader *r, char *o) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (++r->p >= r->end) return fail(r, "unterminated string"), NULL;
    char c = *r->p++;
    if (c == 'u') {
        int32_t code = read_unicode_escape(r);
        return code < 0 ? NULL : o + utf8_put(o, (uint32_t)code);
    }
    const char *at = c ? strchr(from, c) : NULL;
    if (!at) return fail(r, "unknown escape"), NULL;
    *o++ = to[at - from];
    return o;
}

/* First pass: the end of the string, checking UTF-8; sets *escapes. */
static const char *scan_string(reader *r, bool *escapes) {
    const unsigned char *p = (const unsigned char *)r->p, *end = (const unsigned char *)r->end;
    *escapes = false;
    while (p < end && *p != '"') {
        if (*p == '\\') {
            *escapes = true;
            if (++p < end) p++; /* read_escape checks it; `"` behind a backslash must not end the scan */
            continue;
        }
        size_t n = *p < 0x20 ? 0 : character(p, end);
        if (n == 0) {
            r->p = (const char *)p;
            fail(r, *p < 0x20 ? "control character in a string" : "invalid UTF-8");
            return NULL;
        }
        p += n;
    }
    if (p >= end) return r->p = r->end, fail(r, "unterminated string"), NULL;
    return (const char *)p;
}

/* At the opening quote. */
static bool read_string(reader *r, str *out) {
    bool escapes;
    r->p++;
    const char *end = scan_string(r, &escapes);
    if (!end) return false;
    char *o = take(r, (size_t)(end - r->p) + 1); /* escapes only shrink */
    if (!o) return false;
    *out = (str){o, (size_t)(end - r->p)};
    if (!escapes) {
        memcpy(o, r->p, out->n);
        r->p = end + 1;
        return true;
    }
    while (r->p < end) {
        if (*r->p == '\\') {
            if (!(o = read_escape(r, o))) return false;
        } else {
            *o++ = *r->p++;
        }
    }
    *o = 0;
    out->n = (size_t)(o - out->p);
    r->p = end + 1;
    return true;
}

static bool is_digit(const reader *r) {
    return r->p < r->end && *r->p >= '0' && *r->p <= '9';
}

static bool skip_digits(reader *r) {
    if (!is_digit(r)) return fail(r, "a digit is missing in a number");
    while (is_digit(r)) r->p++;
    return true;
}

static bool read_number(reader *r, json *out) {
    const char *from = r->p;
    bool whole = true;
    if (*r->p == '-') r->p++;
    if (r->p < r->end && *r->p == '0')
        r->p++;
    else if (!skip_digits(r))
        return false;
    if (is_digit(r)) return fail(r, "a number starts with 0");
    if (r->p < r->end && *r->p == '.') {
        whole = false, r->p++;
        if (!skip_digits(r)) return false;
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        whole = false, r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
        if (!skip_digits(r)) return false;
    }
    size_t n = (size_t)(r->p - from);
    if (n > 1000) return fail(r, "a number of more than 1000 characters");
    char text[1001];
    memcpy(text, from, n);
    text[n] = 0;
    errno = 0;
    *out = (json){.type = JSON_INT};
    if (whole) out->integer = strtoll(text, NULL, 10);
    if (whole && !errno) return true;
    *out = (json){.type = JSON_REAL, .real = strtod(text, NULL)};
    if (isinf(out->real)) return fail(r, "a number out of range");
    if (!whole) return true;
    char *digits = take(r, n + 1);
    if (digits) memcpy(digits, text, n), out->digits = digits;
    return digits != NULL;
}

static bool read_word(reader *r, const char *word, json value, json *out) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0) return fail(r, "unexpected character");
    r->p += n;
    *out = value;
    return true;
}

/* n pairs of key and value become members. Python's rule for equal keys: the last value, at the first one's place. */
static uint32_t make_members(json_member *to, const json *pairs, uint32_t n) {
    uint32_t kept = 0, cap = 4;
    while (cap < 2 * n) cap *= 2;
    uint32_t small[4 * SMALL_OBJECT] = {0}, *slots = cap <= COUNT(small) ? small : mem_alloc(cap * sizeof *slots);
    for (uint32_t i = 0; i < n; i++) {
        str key = pairs[2 * i].string;
        uint32_t at = (uint32_t)XXH3_64bits(key.p, key.n) & (cap - 1);
        while (slots[at] && !str_eq(to[slots[at] - 1].key, key)) at = (at + 1) & (cap - 1);
        if (!slots[at]) {
            to[kept].key = key;
            slots[at] = ++kept;
        }
        to[slots[at] - 1].value = pairs[2 * i + 1];
    }
    if (slots != small) free(slots);
    return kept;
}

/* The innermost container ends: its children leave the stack for the arena. */
static bool close_container(reader *r, json *out) {
    open_container c = r->open[--r->depth];
    json *children = r->stack + c.first;
    uint32_t n = r->n_stack - c.first;
    if (c.object) {
        json_member *to = take(r, n / 2 * sizeof *to);
        if (!to) return false;
        *out = (json){.type = JSON_OBJECT, .n = make_members(to, children, n / 2), .members = to};
    } else {
        json *to = take(r, n * sizeof *to);
        if (!to) return false;
        if (n) memcpy(to, children, n * sizeof *to);
        *out = (json){.type = JSON_ARRAY, .n = n, .items = to};
    }
    r->n_stack = c.first;
    return true;
}

static bool open_new(reader *r, bool object) {
    if (r->depth == r->depth_max)
        return error_set(r->err, ERR_INVALID, "invalid JSON at byte %zu: nested deeper than the limit of %u",
                         (size_t)(r->p - r->start), r->depth_max);
    r->open[r->depth++] = (open_container){r->n_stack, object};
    r->p++;
    skip_space(r);
    return true;
}

/* A key and its colon; the key goes onto the stack in front of its value. */
static bool read_key(reader *r) {
    str key;
    skip_space(r);
    if (r->p >= r->end || *r->p != '"') return fail(r, "a key in quotes is missing");
    if (!read_string(r, &key) || !push(r, json_of_str(key))) return false;
    skip_space(r);
    if (r->p >= r->end || *r->p != ':') return fail(r, "':' is missing behind a key");
    r->p++;
    return true;
}

static bool read_scalar(reader *r, json *out) {
    switch (*r->p) {
    case '"': {
        str s;
        if (!read_string(r, &s)) return false;
        *out = json_of_str(s);
        return true;
    }
    case 't': return read_word(r, "true", json_of_bool(true), out);
    case 'f': return read_word(r, "false", json_of_bool(false), out);
    case 'n': return read_word(r, "null", (json){.type = JSON_NULL}, out);
    default:
        if (*r->p == '-' || (*r->p >= '0' && *r->p <= '9')) return read_number(r, out);
        return fail(r, "unexpected character");
    }
}

/* A value is complete: it goes to its container, and on upwards through every container that ends behind it.
 * *done when it was the document itself; otherwise the reader stands where the next value is expected. */
static bool hand_up(reader *r, json value, json *root, bool *done) {
    while (r->depth) {
        bool object = r->open[r->depth - 1].object;
        if (!push(r, value)) return false;
        skip_space(r);
        if (r->p >= r->end) return fail(r, "unexpected end");
        if (*r->p == ',') {
            r->p++;
            return !object || read_key(r);
        }
        if (*r->p != (object ? '}' : ']')) return fail(r, object ? "',' or '}' is missing" : "',' or ']' is missing");
        r->p++;
        if (!close_container(r, &value)) return false;
    }
    *root = value;
    return *done = true;
}

/* One value and everything in it; the loop stands where a value is expected. */
static bool read_document(reader *r, json *root) {
    for (bool done = false; !done;) {
        json value;
        skip_space(r);
        if (r->p >= r->end) return fail(r, "unexpected end");
        if (*r->p == '{' || *r->p == '[') {
            bool object = *r->p == '{';
            if (!open_new(r, object)) return false;
            if (r->p >= r->end || *r->p != (object ? '}' : ']')) {
                if (object && !read_key(r)) return false;
                continue;
            }
            r->p++;
            if (!close_container(r, &value)) return false;
        } else if (!read_scalar(r, &value)) {
            return false;
        }
        if (!hand_up(r, value, root, &done)) return false;
    }
    return true;
}

const json *json_read(arena *a, str text, const json_limits *limits, error *err) {
    json_limits l = limits ? *limits : (json_limits){0};
    if (l.bytes_max && text.n > l.bytes_max) {
        error_set(err, ERR_TOO_LARGE, "JSON of %zu bytes is larger than the limit of %zu", text.n, l.bytes_max);
        return NULL;
    }
    reader r = {
        .a = a, .start = text.p, .p = text.p, .end = text.p + text.n, .err = err, .arena_start = arena_bytes(a)};
    r.depth_max = l.depth_max ? l.depth_max : DEPTH_DEFAULT;
    r.memory_max = l.memory_max ? l.memory_max : text.n > SIZE_MAX / 32 ? SIZE_MAX : text.n * 16 + 65536;
    r.open = mem_alloc(r.depth_max * sizeof *r.open);
    r.stack = mem_alloc(STACK_FIRST * sizeof *r.stack);
    r.cap_stack = STACK_FIRST;
    json *root = take(&r, sizeof *root);
    bool ok = root && read_document(&r, root);
    if (ok) {
        skip_space(&r);
        if (r.p != r.end) ok = fail(&r, "text behind the document");
    }
    free(r.stack);
    free(r.open);
    return ok ? root : NULL;
}

/* ---- lookups ---------------------------------------------------------------------------------------------------- */
const json *json_get(const json *object, const char *key) {
    if (!json_is(object, JSON_OBJECT)) return NULL;
    str k = str_of(key);
    for (uint32_t i = 0; i < object->n; i++)
        if (str_eq(object->members[i].key, k)) return &object->members[i].value;
    return NULL;
}

const json *json_at(const json *array, size_t i) {
    return json_is(array, JSON_ARRAY) && i < array->n ? &array->items[i] : NULL;
}

bool json_is(const json *j, json_type t) {
    return j && j->type == t;
}
bool json_is_number(const json *j) {
    return json_is(j, JSON_INT) || json_is(j, JSON_REAL);
}
bool json_bool(const json *j, bool otherwise) {
    return json_is(j, JSON_BOOL) ? j->boolean : otherwise;
}

int64_t json_int(const json *j, int64_t otherwise) {
    if (json_is(j, JSON_INT)) return j->integer;
    if (json_is(j, JSON_REAL) && j->real == floor(j->real) && fabs(j->real) < 9.0e18) return (int64_t)j->real;
    return otherwise;
}

double json_real(const json *j, double otherwise) {
    return json_is(j, JSON_REAL) ? j->real : json_is(j, JSON_INT) ? (double)j->integer : otherwise;
}

str json_str(const json *j, str otherwise) {
    return json_is(j, JSON_STRING) ? j->string : otherwise;
}

const char *json_type_name(const json *j) {
    static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    return j ? names[j->type] : "absent";
}

/* ---- builders --------------------------------------------------------------------------------------------------- */
json json_of_int(int64_t v) {
    return (json){.type = JSON_INT, .integer = v};
}
json json_of_real(double v) {
    return (json){.type = JSON_REAL, .real = v};
}
json json_of_bool(bool v) {
    return (json){.type = JSON_BOOL, .boolean = v};
}
json json_of_str(str s) {
    return (json){.type = JSON_STRING, .string = s};
}

void json_put(json_builder *b, const char *key, json value) {
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? b->cap * 2 : 16;
        json_member *m = arena_array(b->a, json_member, cap);
        if (b->n) memcpy(m, b->m, b->n * sizeof *m);
        b->m = m;
        b->cap = cap;
    }
    size_t n = strlen(key);
    b->m[b->n++] = (json_member){{arena_copy(b->a, key, n), n}, value};
}

const json *json_built(json_builder *b) {
    json *j = arena_array(b->a, json, 1);
    *j = (json){.type = JSON_OBJECT, .n = b->n, .members = b->m};
    return j;
}

/* ---- writers ---------------------------------------------------------------------------------------------------- */
void json_write_string(buf *out, str s) {
    const unsigned char *p = (const unsigned char *)s.p, *end = p + s.n;
    buf_putc(out, '"');
    while (p < end) {
        const unsigned char *from = p;
        size_t n = 1;
        while (p < end && *p >= 0x20 && *p != '"' && *p != '\\' && (n = character(p, end)) > 0) p += n;
        buf_add(out, from, (size_t)(p - from));
        if (p >= end) break;
        switch (*p) {
        case '"': buf_puts(out, "\\\""); break;
        case '\\': buf_puts(out, "\\\\"); break;
        case '\n': buf_puts(out, "\\n"); break;
        case '\r': buf_puts(out, "\\r"); break;
        case '\t': buf_puts(out, "\\t"); break;
        case '\b': buf_puts(out, "\\b"); break;
        case '\f': buf_puts(out, "\\f"); break;
        default:
            if (*p < 0x20)
                buf_printf(out, "\\u%04x", *p);
            else
                buf_puts(out, "\xef\xbf\xbd"); /* ill-formed UTF-8 never leaves raw */
        }
        p++;
    }
    buf_putc(out, '"');
}

void json_write_real(buf *out, double v) {
    char text[40] = "null";
    if (isfinite(v)) str_from_f64(text, v);
    buf_puts(out, text);
}

static void write_scalar(buf *out, const json *j) {
    switch (j->type) {
    case JSON_BOOL: buf_puts(out, j->boolean ? "true" : "false"); break;
    case JSON_INT: buf_printf(out, "%lld", (long long)j->integer); break;
    case JSON_REAL:
        if (j->digits)
            buf_puts(out, j->digits);
        else
            json_write_real(out, j->real);
        break;
    case JSON_STRING: json_write_string(out, j->string); break;
    default: buf_puts(out, "null");
    }
}

/* Documents from json_read are at most depth_max deep, so recursion is bounded. */
void json_write(buf *out, const json *j) {
    if (j->type == JSON_ARRAY) {
        buf_putc(out, '[');
        for (uint32_t i = 0; i < j->n; i++) {
            if (i) buf_putc(out, ',');
            json_write(out, &j->items[i]);
        }
        buf_putc(out, ']');
    } else if (j->type == JSON_OBJECT) {
        buf_putc(out, '{');
        for (uint32_t i = 0; i < j->n; i++) {
            if (i) buf_putc(out, ',');
            json_write_string(out, j->members[i].key);
            buf_putc(out, ':');
            json_write(out, &j->members[i].value);
        }
        buf_putc(out, '}');
    } else {
        write_scalar(out, j);
    }
}
