/* POST /v1/messages, the request: Anthropic's fields and blocks become a chat request (docs/messages.md has the table).
 * Not here: the answer (anthropic_messages.c), what the core does with the fields (chat_request.c). */
#include <stdio.h>
#include "translate.h"

typedef struct turn {
    translation *t;
    uint32_t i;          /* message */
    buf text, reasoning; /* own */
    json_list calls;
    bool has_text;
} turn;

static bool refuse_block(const turn *n, uint32_t j, const char *why, str type, error *err) {
    char param[64];
    snprintf(param, sizeof param, "messages[%u].content[%u]", n->i, j);
    return translation_refuse(err, param, why, (int)MIN(type.n, 40), type.p);
}

static void add_text(turn *n, str text) {
    if (n->has_text) buf_putc(&n->text, '\n');
    buf_str(&n->text, text);
    n->has_text = true;
}

static void note_unknown(turn *n, str type) {
    char what[64];
    snprintf(what, sizeof what, "content[%.*s]", (int)MIN(type.n, 40), type.p ? type.p : "");
    unknown_add(&n->t->unknown, str_of(what));
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
static bool is_media(str type) {
    static const char *const types[] = {"image", "document", "audio", "input_audio", "video", "file"};
    for (size_t i = 0; i < COUNT(types); i++)
        if (str_is(type, types[i])) return true;
    return false;
}

static const char MEDIA[] = "blocks of type \"%.*s\" are not supported by this model";

/* A tool's result is text, or blocks of text. */
static bool result_text(const turn *n, uint32_t j, const json *content, buf *out, error *err) {
    if (!content || json_is(content, JSON_NULL)) return true;
    if (json_is(content, JSON_STRING)) {
        buf_str(out, content->string);
        return true;
    }
    if (!json_is(content, JSON_ARRAY))
        return refuse_block(n, j, "content must be a string or blocks, not %.*s", str_of(json_type_name(content)), err);
    for (uint32_t k = 0; k < content->n; k++) {
        const json *block = json_at(content, k), *text = json_get(block, "text");
        str type = json_str(json_get(block, "type"), (str){0});
        if (!json_is(text, JSON_STRING)) {
            if (is_media(type)) return refuse_block(n, j, MEDIA, type, err);
            continue; /* references and the like carry nothing for the model */
        }
        if (out->n) buf_putc(out, '\n');
        buf_str(out, text->string);
    }
    return true;
}

static bool tool_result(turn *n, uint32_t j, const json *block, error *err) {
    buf text = {0};
    const json *id = json_get(block, "tool_use_id");
    if (!json_is(id, JSON_STRING)) return refuse_block(n, j, "tool_use_id must be a string%.*s", STR(""), err);
    bool ok = result_text(n, j, json_get(block, "content"), &text, err);
    if (ok) {
        json_builder b = {.a = n->t->a};
        json_put(&b, "role", json_of_str(STR("tool")));
        json_put(&b, "tool_call_id", *id);
        json_put(&b, "content", json_text(n->t->a, &text));
        json_list_add(&n->t->messages, json_object(&b));
    }
    buf_free(&text);
    return ok;
}

static bool tool_use(turn *n, uint32_t j, const json *block, error *err) {
    const json *id = json_get(block, "id"), *name = json_get(block, "name"), *input = json_get(block, "input");
    if (!json_is(name, JSON_STRING)) return refuse_block(n, j, "name must be a string%.*s", STR(""), err);
    if (input && !json_is(input, JSON_OBJECT)) return refuse_block(n, j, "input must be an object%.*s", STR(""), err);
    json_list_add(&n->calls,
                  call_of(n->t->a, json_str(id, STR("")), name->string, input ? *input : (json){.type = JSON_OBJECT}));
    return true;
}

static bool block_read(turn *n, uint32_t j, const json *block, error *err) {
    if (json_is(block, JSON_STRING)) return add_text(n, block->string), true;
    if (!json_is(block, JSON_OBJECT))
        return refuse_block(n, j, "must be an object, not %.*s", str_of(json_type_name(block)), err);
    str type = json_str(json_get(block, "type"), (str){0});
    const json *text = json_get(block, "text");
    if (str_is(type, "text") && !json_is(text, JSON_STRING))
        return refuse_block(n, j, "text must be a string%.*s", STR(""), err);
    if (str_is(type, "tool_result")) return tool_result(n, j, block, err);
    if (str_is(type, "tool_use")) return tool_use(n, j, block, err);
    if (str_is(type, "thinking")) return buf_str(&n->reasoning, json_str(json_get(block, "thinking"), STR(""))), true;
    if (str_is(type, "redacted_thinking")) return true; /* nobody but its maker can read it */
    if (json_is(text, JSON_STRING)) return add_text(n, text->string), true;
    if (is_media(type)) return refuse_block(n, j, MEDIA, type, err);
    note_unknown(n, type);
    return true;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
/* Tool results went out as messages of their own already, in front of what the same turn says. */
static void turn_end(turn *n, str role) {
    translation *t = n->t;
    bool assistant = str_is(role, "assistant");
    if (!n->has_text && !n->calls.n && !n->reasoning.n) return;
    json_builder b = {.a = t->a};
    json_put(&b, "role", json_of_str(assistant || str_is(role, "system") ? role : STR("user")));
    json_put(&b, "content", json_text(t->a, &n->text));
    if (n->reasoning.n) json_put(&b, "reasoning_content", json_text(t->a, &n->reasoning));
    if (n->calls.n) json_put(&b, "tool_calls", json_list_built(&n->calls));
    json_list_add(&t->messages, json_object(&b));
}

static bool message_read(translation *t, const json *m, uint32_t i, error *err) {
    char param[64];
    snprintf(param, sizeof param, "messages[%u]", i);
    if (!json_is(m, JSON_OBJECT)) return translation_refuse(err, param, "must be an object, not %s", json_type_name(m));
    str role = json_str(json_get(m, "role"), (str){0});
    if (!str_is(role, "user") && !str_is(role, "assistant") && !str_is(role, "system"))
        return translation_refuse(err, param, "role must be user or assistant");
    const json *content = json_get(m, "content");
    turn n = {.t = t, .i = i, .calls = {.a = t->a}};
    bool ok = true;
    if (json_is(content, JSON_STRING))
        add_text(&n, content->string);
    else if (json_is(content, JSON_ARRAY))
        for (uint32_t j = 0; j < content->n && ok; j++) ok = block_read(&n, j, json_at(content, j), err);
    else
        ok = translation_refuse(err, param, "content must be a string or an array of blocks");
    if (ok) turn_end(&n, role);
    buf_free(&n.text);
    buf_free(&n.reasoning);
    return ok;
}

/* Consecutive text blocks of the system prompt are joined by a newline. */
static bool system_read(translation *t, const json *v, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (json_is(v, JSON_STRING)) {
        if (v->string.n) translation_message(t, "system", v->string);
        return true;
    }
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("system", "string or array of text blocks", v, err);
    buf b = {0};
    bool ok = true;
    for (uint32_t i = 0; i < v->n && ok; i++) {
        const json *text = json_get(json_at(v, i), "text");
        char param[40];
        snprintf(param, sizeof param, "system[%u]", i);
        ok = json_is(text, JSON_STRING) || translation_refuse(err, param, "must be a text block");
        if (ok && b.n) buf_putc(&b, '\n');
        if (ok) buf_str(&b, text->string);
    }
    if (ok && b.n) translation_message(t, "system", json_text(t->a, &b).string);
    buf_free(&b);
    return ok;
}

static bool messages_read(translation *t, const json *v, error *err) {
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("messages", "array", v, err);
    if (!v->n) return error_field(err, ERR_INVALID, "messages", "messages: at least one message is required");
    for (uint32_t i = 0; i < v->n; i++)
        if (!message_read(t, json_at(v, i), i, err)) return false;
    return true;
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */
/* Types other than "custom" are run by the vendor or defined by it: they are left out and told. */
static bool tools_read(translation *t, const json *v, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("tools", "array", v, err);
    json_list tools = {.a = t->a};
    for (uint32_t i = 0; i < v->n; i++) {
        const json *tool = json_at(v, i), *schema = json_get(tool, "input_schema");
        char what[64];
        snprintf(what, sizeof what, "tools[%u]", i);
        if (!json_is(tool, JSON_OBJECT)) return translation_refuse(err, what, "must be an object");
        str type = json_str(json_get(tool, "type"), STR("custom")), name = json_str(json_get(tool, "name"), (str){0});
        if (!str_is(type, "custom")) {
            snprintf(what, sizeof what, "tools[%.*s]", (int)MIN(type.n, 40), type.p);
            unknown_add(&t->unknown, str_of(what));
            continue;
        }
        if (!name.n) return translation_refuse(err, what, "name must be a string");
        if (schema && !json_is(schema, JSON_OBJECT))
            return translation_refuse(err, what, "input_schema must be an object");
        json_list_add(&tools, tool_of(t->a, name, json_get(tool, "description"), schema, json_get(tool, "strict")));
    }
    if (tools.n) json_put(&t->core, "tools", json_list_built(&tools));
    return true;
}

static bool tool_choice_read(translation *t, const json *v, error *err) {
    static const char *const types[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    if (!v || json_is(v, JSON_NULL)) return true;
    str type = json_str(json_get(v, "type"), (str){0}), name = json_str(json_get(v, "name"), (str){0});
    if (json_bool(json_get(v, "disable_parallel_tool_use"), false))
        json_put(&t->core, "parallel_tool_calls", json_of_bool(false));
    for (size_t i = 0; i < COUNT(types); i++)
        if (str_is(type, types[i][0])) return json_put(&t->core, "tool_choice", json_of_str(str_of(types[i][1]))), true;
    if (!str_is(type, "tool") || !name.n)
        return error_field(err, ERR_INVALID, "tool_choice",
                           "tool_choice.type must be auto, any, none, or tool with a name");
    json_put(&t->core, "tool_choice", tool_named(t->a, name));
    return true;
}

/* ---- output ----------------------------------------------------------------------------------------------------- */
static bool format_read(translation *t, const char *param, const json *v, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    const json *schema = json_get(v, "schema");
    if (!str_is(json_str(json_get(v, "type"), (str){0}), "json_schema") || !json_is(schema, JSON_OBJECT))
        return error_field(err, ERR_INVALID, param, "%s must be {\"type\":\"json_schema\",\"schema\":{...}}", param);
    json_builder s = {.a = t->a}, f = {.a = t->a};
    json_put(&s, "name", json_of_str(STR("output")));
    json_put(&s, "schema", *schema);
    json_put(&s, "strict", json_of_bool(true));
    json_put(&f, "type", json_of_str(STR("json_schema")));
    json_put(&f, "json_schema", json_object(&s));
    json_put(&t->core, "response_format", json_object(&f));
    return true;
}

static bool output_read(translation *t, const json *body, error *err) {
    static const char *const efforts[][2] = {
        {"low", "low"}, {"medium", "medium"}, {"high", "high"}, {"xhigh", "xhigh"}, {"max", "xhigh"}};
    const json *config = json_get(body, "output_config"), *effort = json_get(config, "effort");
    if (config && !json_is(config, JSON_NULL) && !json_is(config, JSON_OBJECT))
        return body_wrong_type("output_config", "object", config, err);
    if (effort && !json_is(effort, JSON_NULL)) {
        size_t i = 0;
        while (i < COUNT(efforts) && !str_is(json_str(effort, (str){0}), efforts[i][0])) i++;
        if (i == COUNT(efforts))
            return error_field(err, ERR_INVALID, "output_config.effort",
                               "output_config.effort must be one of low, medium, high, xhigh, max");
        json_put(&t->core, "reasoning_effort", json_of_str(str_of(efforts[i][1])));
    }
    return format_read(t, "output_config.format", json_get(config, "format"), err) &&
           format_read(t, "output_format", json_get(body, "output_format"), err);
}

bool anthropic_translate(const json *body, translation *t, error *err) {
    if (!body_sort(SURFACE_MESSAGES, body, &t->core, &t->unknown, err) ||
        !system_read(t, json_get(body, "system"), err) || !messages_read(t, json_get(body, "messages"), err) ||
        !tools_read(t, json_get(body, "tools"), err) || !tool_choice_read(t, json_get(body, "tool_choice"), err) ||
        !output_read(t, body, err))
        return false;
    json_put(&t->core, "messages", json_list_built(&t->messages));
    return true;
}
