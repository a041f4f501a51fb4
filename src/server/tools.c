/* The tools of a request: one form for the prompt, the parser of replies and grammars, whatever form the client sent;
 * and the schemas as templates can read them. Not here: reading calls in replies (text/output_calls.c). */
#include <stdio.h>
#include "internal.h"

static bool bad_tool(uint32_t i, const char *field, const char *what, error *err) {
    char param[96];
    snprintf(param, sizeof param, "tools[%u]%s", i, field);
    return error_field(err, ERR_INVALID, param, "%s %s", param, what);
}

/* All members, in their order; the value of `key` becomes `value`, or is left out when that is NULL. */
static void put_all(json_builder *b, const json *object, const char *key, const json *value) {
    for (uint32_t i = 0; i < object->n; i++) {
        const json_member *m = &object->members[i];
        bool other = !str_is(m->key, key);
        if (other || value) json_put(b, arena_copy(b->a, m->key.p, m->key.n), other ? m->value : *value);
    }
}

static const json *no_parameters(arena *a) {
    json_builder b = {.a = a};
    json_put(&b, "type", json_of_str(STR("object")));
    json_put(&b, "properties", (json){.type = JSON_OBJECT});
    return json_built(&b);
}

/* {"type":"function","function":{…}}, or the same flat (Responses), or with "input_schema" (Messages). */
static bool tool_normalise(arena *a, const json *tool, uint32_t i, json *out, error *err) {
    const json *f = json_get(tool, "function");
    if (f && !json_is(f, JSON_OBJECT)) return bad_tool(i, ".function", "must be an object", err);
    const char *key = json_get(f ? f : tool, "input_schema") ? "input_schema" : "parameters";
    const json *schema = json_get(f ? f : tool, key);
    if (!json_str(json_get(f ? f : tool, "name"), (str){0}).n)
        return bad_tool(i, f ? ".function.name" : ".name", "must be a string that is not empty", err);
    if (schema && !json_is(schema, JSON_NULL) && !json_is(schema, JSON_OBJECT))
        return bad_tool(i,
                        f               ? ".function.parameters"
                        : key[0] == 'i' ? ".input_schema"
                                        : ".parameters",
                        "must be a JSON schema (an object)", err);
    if (!json_is(schema, JSON_OBJECT) || !schema->n) schema = no_parameters(a); /* none, null and {}: no arguments */
    json_builder plain = {.a = a}, fb = {.a = a}, tb = {.a = a};
    if (f)
        put_all(&plain, f, "", NULL);
    else
        put_all(&plain, tool, "type", NULL);
    bool same = json_get(f ? f : tool, key) && str_is(STR("parameters"), key);
    put_all(&fb, json_built(&plain), key, same ? schema : NULL); /* in its place */
    if (!same) json_put(&fb, "parameters", *schema);
    json_put(&tb, "type", json_of_str(STR("function")));
    json_put(&tb, "function", *json_built(&fb));
    *out = *json_built(&tb);
    return true;
}

bool tools_normalise(arena *a, const json *tools, const json **out, buf *ignored, error *err) {
    if (!json_is(tools, JSON_ARRAY)) return body_wrong_type("tools", "array", tools, err);
    json *list = arena_array(a, json, tools->n + 1), *array = arena_alloc(a, sizeof *array);
    uint32_t n = 0;
    for (uint32_t i = 0; i < tools->n; i++) {
        const json *tool = json_at(tools, i);
        if (!json_is(tool, JSON_OBJECT)) return bad_tool(i, "", "must be an object", err);
        str type = json_str(json_get(tool, "type"), STR("function"));
        if (str_is(type, "custom") && json_get(tool, "input_schema")) type = STR("function"); /* Anthropic's own word */
        if (!str_is(type, "function"))
            unknown_add(ignored, str_of(arena_printf(a, "tools.%.*s", (int)MIN(type.n, 50), type.p)));
        else if (!tool_normalise(a, tool, i, &list[n++], err))
            return false;
    }
    *array = (json){.type = JSON_ARRAY, .n = n, .items = list};
    *out = n ? array : NULL;
    return true;
}

/* ---- schemas for templates --------------------------------------------------------------------------------------- */
/* Templates print a node's type, some in capitals: each gets one, a single word (spec/http-api.md §3.2). */
static str type_of(const json *root, const json *s, int depth);

static str type_of_value(const json *v) {
    static const char *const names[] = {
        [JSON_NULL] = "null",     [JSON_BOOL] = "boolean", [JSON_INT] = "integer",  [JSON_REAL] = "number",
        [JSON_STRING] = "string", [JSON_ARRAY] = "array",  [JSON_OBJECT] = "object"};
    return str_of(names[v->type]);
}

static str type_of_branches(const json *root, const json *s, int depth) {
    static const char *const names[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const json *list = json_get(s, names[i]);
        for (uint32_t j = 0; json_is(list, JSON_ARRAY) && j < list->n; j++) {
            str t = type_of(root, json_at(list, j), depth + 1);
            if (t.n && !str_is(t, "null")) return t;
        }
    }
    return (str){0};
}

/* Empty: nothing says which. */
static str type_of(const json *root, const json *s, int depth) {
    const json *type = json_get(s, "type"), *values = json_get(s, "enum"), *one = json_get(s, "const");
    if (json_is(type, JSON_STRING)) return type->string;
    for (uint32_t i = 0; json_is(type, JSON_ARRAY) && i < type->n; i++) {
        str t = json_str(json_at(type, i), (str){0});
        if (t.n && (!str_is(t, "null") || i + 1 == type->n)) return t;
    }
    if (one) return type_of_value(one);
    if (json_is(values, JSON_ARRAY) && values->n) return type_of_value(json_at(values, 0));
    if (json_get(s, "properties") || json_get(s, "additionalProperties")) return STR("object");
    if (json_get(s, "items") || json_get(s, "prefixItems")) return STR("array");
    const json *ref = json_get(s, "$ref");
    if (depth > 16) return (str){0};
    if (json_is(ref, JSON_STRING)) return type_of(root, schema_ref(root, ref->string), depth + 1);
    return type_of_branches(root, s, depth);
}

static json schema_typed(arena *a, const json *root, const json *s);

static json map_typed(arena *a, const json *root, const json *map) {
    json_builder b = {.a = a};
    for (uint32_t i = 0; i < map->n; i++)
        json_put(&b, arena_copy(a, map->members[i].key.p, map->members[i].key.n),
                 schema_typed(a, root, &map->members[i].value));
    return *json_built(&b);
}

static json list_typed(arena *a, const json *root, const json *list) {
    json *items = arena_array(a, json, list->n + 1);
    for (uint32_t i = 0; i < list->n; i++) items[i] = schema_typed(a, root, json_at(list, i));
    return (json){.type = JSON_ARRAY, .n = list->n, .items = items};
}

static json schema_typed(arena *a, const json *root, const json *s) {
    static const char *const maps[] = {"properties", "$defs", "definitions"},
                             *const lists[] = {"anyOf", "oneOf", "allOf", "prefixItems"},
                             *const nodes[] = {"items", "additionalProperties"};
    if (!json_is(s, JSON_OBJECT)) return *s; /* true and false are schemas too */
    json_builder b = {.a = a};
    str type = type_of(root, s, 0);
    for (uint32_t i = 0; i < s->n; i++) {
        str key = s->members[i].key;
        const json *v = &s->members[i].value;
        json now = *v;
        if (str_is(key, "type") && type.n) now = json_of_str(type);
        for (size_t k = 0; k < COUNT(maps); k++)
            if (str_is(key, maps[k]) && json_is(v, JSON_OBJECT)) now = map_typed(a, root, v);
        for (size_t k = 0; k < COUNT(lists); k++)
            if (str_is(key, lists[k]) && json_is(v, JSON_ARRAY)) now = list_typed(a, root, v);
        for (size_t k = 0; k < COUNT(nodes); k++)
            if (str_is(key, nodes[k])) now = schema_typed(a, root, v);
        json_put(&b, arena_copy(a, key.p, key.n), now);
    }
    if (!json_get(s, "type")) json_put(&b, "type", json_of_str(type.n ? type : STR("string")));
    return *json_built(&b);
}

const json *tools_typed(arena *a, const json *tools) {
    if (!tools) return NULL;
    json *list = arena_array(a, json, tools->n), *array = arena_alloc(a, sizeof *array);
    for (uint32_t i = 0; i < tools->n; i++) {
        const json *tool = json_at(tools, i), *f = json_get(tool, "function"), *p = json_get(f, "parameters");
        json_builder fb = {.a = a}, tb = {.a = a};
        const json typed = schema_typed(a, p, p);
        put_all(&fb, f, "parameters", &typed);
        put_all(&tb, tool, "function", json_built(&fb));
        list[i] = *json_built(&tb);
    }
    *array = (json){.type = JSON_ARRAY, .n = tools->n, .items = list};
    return array;
}
