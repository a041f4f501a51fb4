/* Other protocols become a chat request's JSON: small builders shared by anthropic_request.c and responses_request.c.
 */
#pragma once
#include "internal.h"

/* An array under construction, in an arena. */
typedef struct json_list {
    arena *a;
    json *p;
    uint32_t n, cap;
} json_list;
json *json_list_add(json_list *l, json v); /* the place it got; valid until the next add */
json json_list_built(const json_list *l);
json json_object(json_builder *b);      /* what was put, by value */
json json_text(arena *a, const buf *b); /* a copy of its bytes */

/* What a translation produces beside the core request. */
typedef struct translation {
    arena *a;
    json_builder core; /* fields of a chat request */
    json_list messages;
    buf unknown; /* owns: fields and tool types that were left out */
} translation;
void translation_deinit(translation *t);
/* {"role": role, "content": text} */
void translation_message(translation *t, const char *role, str text);
/* A chat function tool from its parts; parameters NULL: none. */
json tool_of(arena *a, str name, const json *description, const json *parameters, const json *strict);
/* tool_choice of a named function. */
json tool_named(arena *a, str name);
/* {"id","type":"function","function":{"name","arguments"}} */
json call_of(arena *a, str id, str name, json arguments);
/* Names a piece of the request in errors: "messages[2].content[0]". */
bool translation_refuse(error *err, const char *param, const char *fmt, ...) PRINTF(3, 4);

/* POST /v1/messages and count_tokens. */
bool anthropic_translate(const json *body, translation *t, error *err);
/* POST /v1/responses: items are the whole conversation (stored ones first). */
bool responses_translate(const json *body, const json *const *items, size_t n_items, str instructions, translation *t,
                         error *err);
