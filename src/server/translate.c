/* Builders for translations between protocols (translate.h). */
#include <stdio.h>
#include "translate.h"

json *json_list_add(json_list *l, json v) {
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? 2 * l->cap : 8;
        json *p = arena_array(l->a, json, cap);
        if (l->n) memcpy(p, l->p, l->n * sizeof *p);
        l->p = p;
        l->cap = cap;
    }
    l->p[l->n] = v;
    return &l->p[l->n++];
}

json json_list_built(const json_list *l) {
    return (json){.type = JSON_ARRAY, .n = l->n, .items = l->p};
}

json json_object(json_builder *b) {
    return *json_built(b);
}

json json_text(arena *a, const buf *b) {
    return json_of_str((str){arena_copy(a, b->p ? b->p : "", b->n), b->n});
}

void translation_deinit(translation *t) {
    buf_free(&t->unknown);
}

void translation_message(translation *t, const char *role, str text) {
    json_builder b = {.a = t->a};
    json_put(&b, "role", json_of_str(str_of(role)));
    json_put(&b, "content", json_of_str(text.p ? text : STR("")));
    json_list_add(&t->messages, json_object(&b));
}

json tool_of(arena *a, str name, const json *description, const json *parameters, const json *strict) {
    json_builder f = {.a = a}, t = {.a = a};
    json_put(&f, "name", json_of_str(name));
    if (json_is(description, JSON_STRING)) json_put(&f, "description", *description);
    json_put(&f, "parameters", json_is(parameters, JSON_OBJECT) ? *parameters : (json){.type = JSON_OBJECT});
    if (json_is(strict, JSON_BOOL)) json_put(&f, "strict", *strict);
    json_put(&t, "type", json_of_str(STR("function")));
    json_put(&t, "function", json_object(&f));
    return json_object(&t);
}

json tool_named(arena *a, str name) {
    json_builder f = {.a = a}, t = {.a = a};
    json_put(&f, "name", json_of_str(name));
    json_put(&t, "type", json_of_str(STR("function")));
    json_put(&t, "function", json_object(&f));
    return json_object(&t);
}

json call_of(arena *a, str id, str name, json arguments) {
    json_builder f = {.a = a}, c = {.a = a};
    json_put(&f, "name", json_of_str(name));
    json_put(&f, "arguments", arguments);
    json_put(&c, "id", json_of_str(id));
    json_put(&c, "type", json_of_str(STR("function")));
    json_put(&c, "function", json_object(&f));
    return json_object(&c);
}

bool translation_refuse(error *err, const char *param, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_field(err, ERR_INVALID, param, "%s: %s", param, text);
}
