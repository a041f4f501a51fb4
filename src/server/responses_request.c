/* POST /v1/responses, the request: items become chat messages, OpenAI's nested fields the flat ones of a chat request
 * (docs/responses.md has the table). Not here: the store and the answer (responses.c). */
#include <stdio.h>
#include "translate.h"

/* Walks the items; what an assistant says, thinks and calls in a row becomes one message. */
typedef struct walk {
    translation *t;
    uint32_t i;  /* item, for messages */
    bool stored; /* of an earlier response: it was checked then */
    buf lead;    /* owns: instructions and leading system items */
    buf text, reasoning;
    json_list calls;
    bool open, has_text, talked;
} walk;

static bool refuse_item(const walk *w, const char *field, const char *why, str what, error *err) {
    char param[64];
    snprintf(param, sizeof param, "input[%u]%s", w->i, field);
    return translation_refuse(err, param, why, (int)MIN(what.n, 40), what.p ? what.p : "");
}

static void assistant_end(walk *w) {
    if (!w->open) return;
    translation *t = w->t;
    json_builder b = {.a = t->a};
    json_put(&b, "role", json_of_str(STR("assistant")));
    json_put(&b, "content", json_text(t->a, &w->text));
    if (w->reasoning.n) json_put(&b, "reasoning_content", json_text(t->a, &w->reasoning));
    if (w->calls.n) json_put(&b, "tool_calls", json_list_built(&w->calls));
    if (w->has_text || w->calls.n) json_list_add(&t->messages, json_object(&b)); /* thoughts alone are nothing said */
    w->text.n = w->reasoning.n = 0;
    w->calls = (json_list){.a = t->a};
    w->open = w->has_text = false;
}

/* ---- text of parts ----------------------------------------------------------------------------------------------- */
static bool parts_text(const walk *w, const char *field, const json *v, buf *out, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (json_is(v, JSON_STRING)) {
        buf_str(out, v->string);
        return true;
    }
    if (!json_is(v, JSON_ARRAY))
        return refuse_item(w, field, "must be a string or an array of parts, not %.*s", str_of(json_type_name(v)), err);
    for (uint32_t k = 0; k < v->n; k++) {
        const json *part = json_at(v, k), *text = json_get(part, "text");
        char at[48];
        snprintf(at, sizeof at, "%s[%u]", field, k);
        if (json_is(part, JSON_STRING)) text = part;
        if (!text) text = json_get(part, "refusal");
        if (!json_is(text, JSON_STRING))
            return refuse_item(w, at, "parts of type \"%.*s\" are not supported by this model",
                               json_str(json_get(part, "type"), STR("unknown")), err);
        buf_str(out, text->string);
    }
    return true;
}

/* ---- items ------------------------------------------------------------------------------------------------------- */
/* The system message goes in front of anything that is said. */
static void lead_end(walk *w) {
    if (!w->talked && w->lead.n) translation_message(w->t, "system", json_text(w->t->a, &w->lead).string);
    w->talked = true;
}

static bool item_message(walk *w, const json *item, error *err) {
    static const char *const roles[] = {"user", "assistant", "system", "developer"};
    str role = json_str(json_get(item, "role"), (str){0});
    bool known = false;
    for (size_t i = 0; i < COUNT(roles); i++) known |= str_is(role, roles[i]);
    if (!known) return refuse_item(w, ".role", "must be user, assistant, system or developer%.*s", STR(""), err);
    buf text = {0};
    bool ok = parts_text(w, ".content", json_get(item, "content"), &text, err);
    if (ok && str_is(role, "assistant")) {
        lead_end(w);
        if (w->has_text || w->calls.n) assistant_end(w); /* a new turn of its own */
        buf_str(&w->text, buf_view(&text));
        w->open = w->has_text = true;
    } else if (ok) {
        bool system = str_is(role, "system") || str_is(role, "developer");
        assistant_end(w);
        if (system && !w->talked) {
            if (w->lead.n && text.n) buf_puts(&w->lead, "\n\n");
            buf_str(&w->lead, buf_view(&text));
        } else {
            lead_end(w);
            translation_message(w->t, system ? "system" : "user", json_text(w->t->a, &text).string);
        }
    }
    buf_free(&text);
    return ok;
}

static bool item_call(walk *w, const json *item, const char *arguments_name, error *err) {
    str name = json_str(json_get(item, "name"), (str){0}), id = json_str(json_get(item, "call_id"), (str){0});
    const json *arguments = json_get(item, arguments_name);
    if (!name.n) return refuse_item(w, ".name", "must be a string%.*s", STR(""), err);
    if (arguments && !json_is(arguments, JSON_STRING) && !json_is(arguments, JSON_OBJECT))
        return refuse_item(w, ".arguments", "must be JSON text%.*s", STR(""), err);
    json v = arguments ? *arguments : json_of_str(STR("{}"));
    if (strcmp(arguments_name, "arguments")) { /* free text of a custom tool */
        json_builder b = {.a = w->t->a};
        json_put(&b, "input", v);
        v = json_object(&b);
    }
    json_list_add(&w->calls, call_of(w->t->a, id, name, v));
    w->open = true;
    return true;
}

static bool item_output(walk *w, const json *item, error *err) {
    buf text = {0};
    assistant_end(w);
    bool ok = parts_text(w, ".output", json_get(item, "output"), &text, err);
    if (ok) {
        json_builder b = {.a = w->t->a};
        json_put(&b, "role", json_of_str(STR("tool")));
        json_put(&b, "tool_call_id", json_of_str(json_str(json_get(item, "call_id"), STR(""))));
        json_put(&b, "content", json_text(w->t->a, &text));
        json_list_add(&w->t->messages, json_object(&b));
    }
    buf_free(&text);
    return ok;
}

/* The text itself where a client has it, else its summary (here the two are the same). */
static bool item_reasoning(walk *w, const json *item, error *err) {
    const json *content = json_get(item, "content"), *summary = json_get(item, "summary");
    if (w->has_text || w->calls.n) assistant_end(w);
    w->open = true;
    bool has = json_is(content, JSON_ARRAY) && content->n;
    return parts_text(w, has ? ".content" : ".summary", has ? content : summary, &w->reasoning, err);
}

static bool item_read(walk *w, const json *item, error *err) {
    if (!json_is(item, JSON_OBJECT))
        return refuse_item(w, "", "must be an object, not %.*s", str_of(json_type_name(item)), err);
    const json *given = json_get(item, "type");
    if (given && !json_is(given, JSON_NULL) && !json_is(given, JSON_STRING))
        return refuse_item(w, ".type", "must be a string, not %.*s", str_of(json_type_name(given)), err);
    str type = json_str(given, STR("message"));
    if (str_is(type, "message")) return item_message(w, item, err);
    lead_end(w);
    if (str_is(type, "function_call")) return item_call(w, item, "arguments", err);
    if (str_is(type, "custom_tool_call")) return item_call(w, item, "input", err);
    if (str_is(type, "function_call_output") || str_is(type, "custom_tool_call_output"))
        return item_output(w, item, err);
    if (str_is(type, "reasoning")) return item_reasoning(w, item, err);
    if (str_is(type, "item_reference"))
        return refuse_item(w, "", "items of type \"%.*s\" are not supported", type, err);
    char what[64];
    snprintf(what, sizeof what, "input[%.*s]", (int)MIN(type.n, 40), type.p);
    unknown_add(&w->t->unknown, str_of(what));
    return true;
}

static bool items_read(translation *t, const json *const *items, size_t n_items, str instructions, error *err) {
    walk w = {.t = t, .calls = {.a = t->a}};
    buf_str(&w.lead, instructions);
    bool ok = true;
    for (size_t k = 0; k < n_items && ok; k++)
        for (w.i = 0; w.i < items[k]->n && ok; w.i++) ok = item_read(&w, json_at(items[k], w.i), err);
    if (ok) {
        if (!t->messages.n && !w.open) lead_end(&w);
        assistant_end(&w);
    }
    buf_free(&w.lead);
    buf_free(&w.text);
    buf_free(&w.reasoning);
    return ok;
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */
static bool tool_allowed(const json *allowed, str name) {
    if (!allowed) return true;
    for (uint32_t i = 0; i < allowed->n; i++)
        if (str_eq(json_str(json_get(json_at(allowed, i), "name"), (str){0}), name)) return true;
    return false;
}

static bool tools_read(translation *t, const json *v, const json *allowed, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("tools", "array", v, err);
    json_list tools = {.a = t->a};
    for (uint32_t i = 0; i < v->n; i++) {
        const json *tool = json_at(v, i), *nested = json_get(tool, "function");
        char what[64];
        snprintf(what, sizeof what, "tools[%u]", i);
        if (!json_is(tool, JSON_OBJECT)) return translation_refuse(err, what, "must be an object");
        str type = json_str(json_get(tool, "type"), STR("function"));
        if (!str_is(type, "function")) { /* run by the vendor, or of a form that is not ours */
            snprintf(what, sizeof what, "tools[%.*s]", (int)MIN(type.n, 40), type.p);
            unknown_add(&t->unknown, str_of(what));
            continue;
        }
        if (json_is(nested, JSON_OBJECT)) tool = nested; /* the chat form */
        str name = json_str(json_get(tool, "name"), (str){0});
        if (!name.n) return translation_refuse(err, what, "name must be a string");
        if (tool_allowed(allowed, name))
            json_list_add(&tools, tool_of(t->a, name, json_get(tool, "description"), json_get(tool, "parameters"),
                                          json_get(tool, "strict")));
    }
    if (tools.n) json_put(&t->core, "tools", json_list_built(&tools));
    return true;
}

static bool tool_choice_read(translation *t, const json *v, const json **allowed, error *err) {
    static const char message[] =
        "tool_choice must be none, auto, required, or an object of type function or allowed_tools";
    if (!v || json_is(v, JSON_NULL)) return true;
    json choice = *v;
    if (json_is(v, JSON_OBJECT)) {
        str type = json_str(json_get(v, "type"), (str){0});
        str name = json_str(json_get(v, "name"), json_str(json_get(json_get(v, "function"), "name"), (str){0}));
        const json *tools = json_get(v, "tools");
        if (str_is(type, "function") && name.n) {
            choice = tool_named(t->a, name);
        } else if (str_is(type, "allowed_tools") && json_is(tools, JSON_ARRAY)) {
            *allowed = tools;
            choice = json_of_str(json_str(json_get(v, "mode"), STR("auto")));
        } else if (type.n && !str_is(type, "function") && !str_is(type, "allowed_tools")) {
            char what[64];
            snprintf(what, sizeof what, "tool_choice[%.*s]", (int)MIN(type.n, 40), type.p);
            unknown_add(&t->unknown, str_of(what));
            return true;
        } else {
            return error_field(err, ERR_INVALID, "tool_choice", message);
        }
    }
    if (!json_is(&choice, JSON_STRING) && !json_is(&choice, JSON_OBJECT))
        return error_field(err, ERR_INVALID, "tool_choice", message);
    json_put(&t->core, "tool_choice", choice);
    return true;
}

/* ---- nested fields ----------------------------------------------------------------------------------------------- */
static bool object_or_absent(const char *name, const json *v, error *err) {
    return !v || json_is(v, JSON_NULL) || json_is(v, JSON_OBJECT) || body_wrong_type(name, "object", v, err);
}

static bool format_read(translation *t, const json *v, error *err) {
    if (!object_or_absent("text.format", v, err)) return false;
    str type = json_str(json_get(v, "type"), STR("text"));
    if (str_is(type, "text")) return true;
    json_builder f = {.a = t->a}, s = {.a = t->a};
    json_put(&f, "type", json_of_str(type));
    if (str_is(type, "json_schema")) {
        static const char *const keys[] = {"name", "schema", "strict", "description"};
        for (size_t i = 0; i < COUNT(keys); i++)
            if (json_get(v, keys[i])) json_put(&s, keys[i], *json_get(v, keys[i]));
        json_put(&f, "json_schema", json_object(&s));
    } else if (!str_is(type, "json_object")) {
        return error_field(err, ERR_INVALID, "text.format",
                           "text.format.type must be text, json_object or json_schema");
    }
    json_put(&t->core, "response_format", json_object(&f));
    return true;
}

static bool include_read(translation *t, const json *v, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("include", "array of strings", v, err);
    for (uint32_t i = 0; i < v->n; i++) {
        str name = json_str(json_at(v, i), (str){0});
        char what[80];
        if (str_is(name, "message.output_text.logprobs"))
            json_put(&t->core, "logprobs", json_of_bool(true));
        else if (str_is(name, "reasoning.encrypted_content")) /* nothing here is encrypted */
            continue;
        else {
            snprintf(what, sizeof what, "include[%.*s]", (int)MIN(name.n, 50), name.p ? name.p : "");
            unknown_add(&t->unknown, str_of(what));
        }
    }
    return true;
}

bool responses_translate(const json *body, const json *const *items, size_t n_items, str instructions, translation *t,
                         error *err) {
    const json *reasoning = json_get(body, "reasoning"), *text = json_get(body, "text"), *allowed = NULL;
    if (!body_sort(SURFACE_RESPONSES, body, &t->core, &t->unknown, err) ||
        !items_read(t, items, n_items, instructions, err) ||
        !tool_choice_read(t, json_get(body, "tool_choice"), &allowed, err) ||
        !tools_read(t, json_get(body, "tools"), allowed, err) || !object_or_absent("reasoning", reasoning, err) ||
        !object_or_absent("text", text, err) || !format_read(t, json_get(text, "format"), err) ||
        !include_read(t, json_get(body, "include"), err))
        return false;
    const json *effort = json_get(reasoning, "effort");
    if (effort && !json_is(effort, JSON_NULL)) json_put(&t->core, "reasoning_effort", *effort);
    if (!t->messages.n) translation_message(t, "user", STR("")); /* Codex probes a server with an empty input */
    json_put(&t->core, "messages", json_list_built(&t->messages));
    return true;
}
