/* JSON: a reader into an arena and an appending writer.
 *
 * Own code, because neither jansson nor json-c bounds the memory a document takes (64 MiB of "[],[],…" becomes
 * gigabytes of nodes) and neither keeps the number as it was written; docs/json.md has the measurement. Strict RFC
 * 8259: UTF-8 is checked, NUL (\u0000) is data, a lone surrogate is an error, duplicate keys keep the last value at the
 * first place. */
#pragma once
#include "base.h"

typedef enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_type;

/* A node; borrowed from the arena it was read into. */
typedef struct json {
    json_type type;
    uint32_t n; /* items of an array or object */
    union {
        bool boolean;
        int64_t integer; /* JSON_INT: fits int64; other numbers are JSON_REAL */
        struct {
            double real;
            const char *digits; /* an integer literal beyond int64, as written; else NULL */
        };
        str string;
        const struct json *items;          /* JSON_ARRAY [n] */
        const struct json_member *members; /* JSON_OBJECT [n], in the order written */
    };
} json;
typedef struct json_member {
    str key;
    json value;
} json_member;

typedef struct json_limits {
    uint32_t depth_max; /* nested containers; 0: 128 */
    size_t bytes_max;   /* length of the text; 0: no limit */
    size_t memory_max;  /* bytes of nodes and strings; 0: 16 times the text + 64 KiB */
} json_limits;

/* Reads one document. Nothing is borrowed from text: it may be freed afterwards.
 * NULL + ERR_INVALID ("invalid JSON at byte N: ..."), ERR_TOO_LARGE past a limit. Never recurses. */
const json *json_read(arena *a, str text, const json_limits *limits, error *err);

/* Lookups. All accept NULL and wrong types: they answer NULL or the default. */
const json *json_get(const json *object, const char *key);
const json *json_at(const json *array, size_t i);
bool json_is(const json *j, json_type t);
bool json_is_number(const json *j);
bool json_bool(const json *j, bool otherwise);
int64_t json_int(const json *j, int64_t otherwise); /* JSON_INT, or a JSON_REAL with an integer value */
double json_real(const json *j, double otherwise);
str json_str(const json *j, str otherwise);
const char *json_type_name(const json *j); /* "string", "null", ... for messages */

/* Builders, for documents that are put together in memory (GGUF metadata, template variables). */
json json_of_int(int64_t v);
json json_of_real(double v);
json json_of_bool(bool v);
json json_of_str(str s); /* borrows */
/* Object under construction: copies keys into the arena, keeps order. */
typedef struct json_builder {
    arena *a;
    json_member *m;
    uint32_t n, cap;
} json_builder;
void json_put(json_builder *b, const char *key, json value);
const json *json_built(json_builder *b);

/* Writers: append to a buffer. json_write's separators are "," and ":" (compact). */
void json_write_string(buf *out, str s); /* with quotes; invalid UTF-8 is written as U+FFFD, never raw */
void json_write_real(buf *out,
                     double v); /* shortest text that reads back the same, as Python's repr; nan/inf as null */
void json_write(buf *out, const json *j);
