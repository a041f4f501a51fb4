/* grammar_schema.h: what the files of the JSON Schema front end share. Order of reading: grammar_schema.c (references,
 * keywords, types), grammar_object.c (objects and arrays), grammar_number.c (bounds), grammar_string.c (patterns,
 * formats). */
#pragma once
#include "grammar_internal.h"

typedef struct snode { /* a schema and where it stands */
    const json *j;
    const char *path; /* arena */
    bool one;         /* of the values of oneOf: exactly one of them */
} snode;
typedef struct snodes {
    snode *p; /* owns */
    size_t n, cap;
} snodes;
void snode_push(snodes *l, snode s);

enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_INT = 4,
    T_REAL = 8, /* numbers that are not written as integers */
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
};
typedef struct limit {
    const json *v; /* NULL: none */
    bool strict;
} limit;
/* Schemas that all apply, keyword by keyword. */
typedef struct flat {
    unsigned types;
    bool never, any_keyword, has_values;
    const json **values; /* owns [n_values] what enum and const leave */
    size_t n_values;
    limit low, high;
    snodes multiple, pattern, format, not ; /* keywords' values */
    uint32_t length_min, length_max, items_min, items_max, members_min, members_max;
    snodes parts;                    /* schemas with keywords of objects or arrays */
    snodes required, names, choices; /* values of required, propertyNames, anyOf and oneOf */
    snodes seen;
    const char *unique; /* path of uniqueItems: true */
} flat;

typedef struct schemas {
    builder *b;
    const json_forms *f;
    const json *root;
    const char *path;
    struct job {
        uint32_t rule;
        snode *list; /* arena [n] */
        size_t n;
    } * job; /* owns */
    size_t n_job, cap_job, work;
} schemas;
gx schema_fail(schemas *s, const char *path, const char *fmt, ...) PRINTF(3, 4);
gx schema_of(schemas *s, const snode *list, size_t n); /* a value that all of them allow */
const char *path_add(schemas *s, const char *path, str key);

gx schema_object(schemas *s, const flat *f, const char *path);
gx schema_array(schemas *s, const flat *f, const char *path);
gx schema_number(schemas *s, const flat *f, const char *path);
gx schema_string(schemas *s, const flat *f, const char *path);
