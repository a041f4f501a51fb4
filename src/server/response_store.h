/* What POST /v1/responses remembers, so that previous_response_id works: a table in SQLite, in a file (it survives a
 * restart) or in memory. Bounded by age and bytes; what was used longest ago goes first. Any thread. */
#pragma once
#include "../base/base.h"

typedef struct response_store response_store;
typedef struct stored_response { /* JSON texts; borrow from an arena when read */
    str input;                   /* array: the whole conversation up to this response's output */
    str output;                  /* array */
    str own_input;               /* array: what the request itself brought */
    str instructions;            /* text; .p NULL: none */
    str object;                  /* the response as it was sent */
} stored_response;
/* path NULL: memory. A file is made with mode 0600; one that is damaged is put aside. ERR_IO. */
response_store *response_store_open(const char *path, int64_t ttl_s, size_t bytes_max, error *err);
void response_store_close(response_store *s); /* may be NULL */
/* Copies and returns; it is written soon. owner: whose it is (empty: anybody's); only he reads it again.
 * ERR_TOO_LARGE. */
bool response_store_put(response_store *s, str id, str owner, const stored_response *r, error *err);
/* ERR_NOT_FOUND also when it has expired or is somebody else's. */
bool response_store_get(response_store *s, str id, str owner, arena *a, stored_response *out, error *err);
bool response_store_delete(response_store *s, str id, str owner, error *err);
typedef struct response_store_stats {
    int64_t entries, bytes, bytes_max, ttl_s;
} response_store_stats;
response_store_stats response_store_count(response_store *s); /* waits for nothing; NULL: zeros */
