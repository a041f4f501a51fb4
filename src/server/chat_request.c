/* The core request: what every chat surface is translated into. fields.def says which field is read how; here are the
 * kinds, the fields with a form of their own, messages brought into the form templates expect, and the thinking
 * controls. Not here: defaults of model and server (generate.c), answers (openai_chat.c). */
#include <stdio.h>
#include "internal.h"

typedef enum field_kind { BOOL, INT, REAL, STRING, ARRAY, OBJECT } field_kind;
typedef struct reader {
    http_req *q;
    chat_request *r;
    const json *body;
    buf unknown; /* names of what is ignored */
} reader;
typedef bool (*field_read)(reader *c, const json *v, error *err);

/* ---- fields with a form of their own ----------------------------------------------------------------------------- */
static bool read_messages(reader *c, const json *v, error *err) {
    return messages_normalise(c->q->a, v, c->q->s->o.keep_header_lines, &c->r->messages, err);
}

static bool read_prompt(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_STRING)) return body_wrong_type("prompt", "string", v, err);
    if (!v->string.n) return error_field(err, ERR_INVALID, "prompt", "prompt must not be empty");
    c->r->prompt = v->string;
    return true;
}

static bool stop_add(chat_request *r, const json *v, error *err) {
    if (!json_is(v, JSON_STRING)) return body_wrong_type("stop", "string or array of strings", v, err);
    if (v->string.n > STOP_BYTES_MAX)
        return error_field(err, ERR_INVALID, "stop", "a stop string has %zu bytes; at most %d are allowed", v->string.n,
                           STOP_BYTES_MAX);
    if (v->string.n) r->stops[r->n_stops++] = v->string;
    return true;
}

static bool read_stop(reader *c, const json *v, error *err) {
    bool many = json_is(v, JSON_ARRAY);
    if (many && v->n > STOPS_MAX)
        return error_field(err, ERR_INVALID, "stop", "stop has %u strings; at most %d are allowed", v->n, STOPS_MAX);
    c->r->stops = arena_array(c->q->a, str, many ? v->n + 1 : 1);
    if (!many) return stop_add(c->r, v, err);
    for (uint32_t i = 0; i < v->n; i++)
        if (!stop_add(c->r, json_at(v, i), err)) return false;
    return true;
}

static bool read_logit_bias(reader *c, const json *v, error *err) {
    static const char text[] = "logit_bias must be a dict of int to float";
    if (!json_is(v, JSON_OBJECT)) return error_field(err, ERR_INVALID, "logit_bias", text);
    if (v->n > BIAS_MAX)
        return error_field(err, ERR_INVALID, "logit_bias", "logit_bias has %u entries; at most %d", v->n, BIAS_MAX);
    int32_t vocab = tokenizer_size(engine_tokenizer(atomic_load(&c->q->s->e)));
    c->r->bias_ids = arena_array(c->q->a, int32_t, v->n + 1);
    c->r->bias = arena_array(c->q->a, float, v->n + 1);
    for (uint32_t i = 0; i < v->n; i++) {
        const json_member *m = &v->members[i];
        int64_t id;
        if (!str_to_i64(m->key, &id) || !json_is_number(&m->value))
            return error_field(err, ERR_INVALID, "logit_bias", text);
        double x = json_real(&m->value, NAN);
        if (!isfinite(x) || fabs(x) > 1e6) return error_field(err, ERR_INVALID, "logit_bias", text);
        if (id < 0 || id >= vocab)
            return error_field(err, ERR_INVALID, "logit_bias", "logit_bias: token %lld is not in the vocabulary of %d",
                               (long long)id, vocab);
        c->r->bias_ids[c->r->n_bias] = (int32_t)id;
        c->r->bias[c->r->n_bias++] = (float)x;
    }
    return true;
}

static bool read_stream_options(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_OBJECT)) return body_wrong_type("stream_options", "object", v, err);
    const json *usage = json_get(v, "include_usage");
    if (usage && !json_is(usage, JSON_BOOL) && !json_is(usage, JSON_NULL))
        return body_wrong_type("stream_options.include_usage", "bool", usage, err);
    c->r->include_usage = json_bool(usage, false);
    return true;
}

static const struct {
    const char *name, *depth; /* what a template that reads reasoning_effort is told */
} efforts[] = {{"none", NULL},       {"minimal", "low"}, {"low", "low"},
               {"medium", "medium"}, {"high", "xhigh"},  {"xhigh", "xhigh"}};

static bool read_effort(reader *c, const json *v, error *err) {
    str s = json_str(v, (str){0});
    for (size_t i = 0; i < COUNT(efforts); i++)
        if (str_is(s, efforts[i].name)) return c->r->reasoning_effort = s, true;
    return error_field(err, ERR_INVALID, "reasoning_effort",
                       "reasoning_effort must be one of none, minimal, low, medium, high, xhigh");
}

static bool read_skip_special(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_BOOL)) return body_wrong_type("skip_special_tokens", "bool", v, err);
    c->r->keep_special = !v->boolean;
    return true;
}

static bool read_tools(reader *c, const json *v, error *err) {
    return tools_normalise(c->q->a, v, &c->r->tools, &c->unknown, err);
}

static bool read_tool_choice(reader *c, const json *v, error *err) {
    static const char *const words[] = {"auto", "none", "required"};
    str word = json_str(v, (str){0});
    for (size_t i = 0; i < COUNT(words); i++)
        if (str_is(word, words[i])) return c->r->tool_choice = (int)i, true;
    const json *f = json_get(v, "function");
    c->r->tool_name = json_str(json_get(f ? f : v, "name"), (str){0});
    c->r->tool_choice = TOOL_NAMED;
    if (json_is(v, JSON_OBJECT) && c->r->tool_name.n) return true;
    return error_field(err, ERR_INVALID, "tool_choice",
                       "tool_choice must be \"auto\", \"none\", \"required\" or "
                       "{\"type\":\"function\",\"function\":{\"name\":...}}");
}

/* What both fields together ask for. */
static bool tools_resolve(chat_request *r, error *err) {
    if (r->tool_choice == TOOL_NONE) r->tools = NULL;
    if (r->tool_choice < TOOL_REQUIRED) return true;
    bool there = r->tools && r->tool_choice == TOOL_REQUIRED;
    for (uint32_t i = 0; r->tools && i < r->tools->n; i++)
        there |= str_eq(json_str(json_get(json_get(json_at(r->tools, i), "function"), "name"), (str){0}), r->tool_name);
    if (there) return true;
    if (r->tool_choice == TOOL_REQUIRED)
        return error_field(err, ERR_INVALID, "tool_choice", "tool_choice asks for a call, but tools has no function");
    return error_field(err, ERR_INVALID, "tool_choice",
                       "tool_choice asks for a call of \"%.*s\", which is not in tools", (int)MIN(r->tool_name.n, 64),
                       r->tool_name.p);
}

static bool read_parallel(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_BOOL)) return body_wrong_type("parallel_tool_calls", "bool", v, err);
    c->r->one_call = !v->boolean;
    return true;
}

/* ---- thinking ---------------------------------------------------------------------------------------------------- */
static bool read_switch(const char *name, const json *v, int *out, error *err) {
    if (!json_is(v, JSON_BOOL)) return body_wrong_type(name, "bool", v, err);
    *out = v->boolean ? 1 : -1;
    return true;
}

static bool read_enable_thinking(reader *c, const json *v, error *err) {
    return read_switch("enable_thinking", v, &c->r->asked_thinking, err);
}

static bool read_preserve_thinking(reader *c, const json *v, error *err) {
    return read_switch("preserve_thinking", v, &c->r->preserve_thinking, err);
}

static bool read_budget(reader *c, const char *name, const json *v, error *err) {
    if (!v || json_is(v, JSON_NULL)) return true;
    if (!json_is(v, JSON_INT) || v->integer < 0 || v->integer > INT32_MAX)
        return error_field(err, ERR_INVALID, name, "%s must be an integer between 0 and %d", name, INT32_MAX);
    c->r->thinking_budget = v->integer;
    return true;
}

/* Anthropic's form, which other chat servers take too. */
static bool read_thinking(reader *c, const json *v, error *err) {
    str type = json_str(json_get(v, "type"), (str){0});
    if (!str_is(type, "enabled") && !str_is(type, "disabled") && !str_is(type, "adaptive"))
        return error_field(err, ERR_INVALID, "thinking.type", "thinking.type must be enabled, disabled or adaptive");
    if (!str_is(type, "adaptive")) c->r->asked_thinking = str_is(type, "enabled") ? 1 : -1;
    return read_budget(c, "thinking.budget_tokens", json_get(v, "budget_tokens"), err);
}

/* OpenRouter's form. */
static bool read_reasoning(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_OBJECT)) return body_wrong_type("reasoning", "object", v, err);
    const json *effort = json_get(v, "effort"), *enabled = json_get(v, "enabled");
    if (effort && !json_is(effort, JSON_NULL) && !read_effort(c, effort, err)) return false;
    if (json_is(enabled, JSON_BOOL)) c->r->asked_thinking = enabled->boolean ? 1 : -1;
    return read_budget(c, "reasoning.max_tokens", json_get(v, "max_tokens"), err);
}

/* Chat has a flag and top_logprobs; raw completions have a number. */
static bool read_logprobs(reader *c, const json *v, error *err) {
    if (c->r->surface == SURFACE_CHAT) {
        if (!json_is(v, JSON_BOOL)) return body_wrong_type("logprobs", "bool", v, err);
        if (v->boolean) c->r->logprobs = true;
        return true;
    }
    if (json_is(v, JSON_BOOL)) { /* mlx-lm's clients send the chat form here */
        c->r->logprobs = v->boolean;
        return true;
    }
    if (!json_is(v, JSON_INT)) return body_wrong_type("logprobs", "int", v, err);
    if (v->integer < 0 || v->integer > TOP_LOGPROBS_MAX)
        return error_field(err, ERR_INVALID, "logprobs", "logprobs must be between 0 and %d", TOP_LOGPROBS_MAX);
    c->r->logprobs = true;
    c->r->top_logprobs = v->integer;
    return true;
}

static bool read_top_logprobs(reader *c, const json *v, error *err) {
    if (!json_is(v, JSON_INT)) return body_wrong_type("top_logprobs", "int", v, err);
    if (v->integer == -1) return true;
    if (v->integer < 0) return error_field(err, ERR_INVALID, "top_logprobs", "top_logprobs must be at least 0");
    if (v->integer > TOP_LOGPROBS_MAX)
        return error_field(err, ERR_INVALID, "top_logprobs", "top_logprobs must be at most %d", TOP_LOGPROBS_MAX);
    c->r->top_logprobs = v->integer;
    if (v->integer > 0) c->r->logprobs = true;
    return true;
}

static bool read_logprobs_format(reader *c, const json *v, error *err) {
    str s = json_str(v, (str){0});
    c->r->mlx_logprobs = str_is(s, "mlx_lm");
    return c->r->mlx_logprobs || str_is(s, "openai") ||
           error_field(err, ERR_INVALID, "logprobs_format", "logprobs_format must be openai or mlx_lm");
}

/* That program's servers give at most 11, and none in streams. */
static bool mlx_logprobs_resolve(chat_request *r, error *err) {
    if (!r->mlx_logprobs) return true;
    if (r->top_logprobs > MLX_LOGPROBS_MAX)
        return error_field(err, ERR_INVALID, "top_logprobs", "top_logprobs must be at most %d in mlx-lm's format",
                           MLX_LOGPROBS_MAX);
    if (r->stream) r->logprobs = false;
    return true;
}
/* ---- structured output (structured.c) ---------------------------------------------------------------------------- */
#define FORM_FIELD(name)                                            \
    static bool read_##name(reader *c, const json *v, error *err) { \
        return structured_read(c->q->a, c->r, #name, v, err);       \
    }
FORM_FIELD(response_format)
FORM_FIELD(guided_grammar)
FORM_FIELD(guided_regex)
FORM_FIELD(guided_choice)
FORM_FIELD(guided_json)
FORM_FIELD(structured_outputs)
FORM_FIELD(grammar)
FORM_FIELD(json_schema)
#undef FORM_FIELD

/* ---- the table --------------------------------------------------------------------------------------------------- */
enum { CLASS_HONOURED, CLASS_SPECIAL, CLASS_ACCEPTED, CLASS_REFUSED };
typedef struct field {
    const char *name;
    unsigned surfaces;
    int class;
    field_kind kind;
    size_t at;
    double lo, hi;
    field_read read;
    const char *neutral;
} field;

static const field fields[] = {
#define HONOURED(name, s, kind, member, lo, hi) \
    {#name, s, CLASS_HONOURED, kind, offsetof(chat_request, member), lo, hi, NULL, NULL},
#define SPECIAL(name, s, f)       {#name, s, CLASS_SPECIAL, 0, 0, 0, 0, f, NULL},
#define ACCEPTED(name, s)         {#name, s, CLASS_ACCEPTED, 0, 0, 0, 0, NULL, NULL},
#define REFUSED(name, s, neutral) {#name, s, CLASS_REFUSED, 0, 0, 0, 0, NULL, neutral},
#include "fields.def"
};

static bool field_int(const field *f, const json *v, int64_t *out, error *err) {
    if (!json_is(v, JSON_INT)) {
        if (json_is_number(v))
            return error_field(err, ERR_INVALID, f->name, "%s must be an integer between %.0f and %.0f", f->name, f->lo,
                               f->hi);
        return body_wrong_type(f->name, "int", v, err);
    }
    if ((double)v->integer < f->lo || (double)v->integer > f->hi)
        return error_field(err, ERR_INVALID, f->name, "%s must be between %.0f and %.0f", f->name, f->lo, f->hi);
    *out = v->integer;
    return true;
}

static bool field_real(const field *f, const json *v, double *out, error *err) {
    if (!json_is_number(v)) return body_wrong_type(f->name, "number", v, err);
    double x = json_real(v, NAN);
    if (!(x >= f->lo && x <= f->hi))
        return error_field(err, ERR_INVALID, f->name, "%s must be between %g and %g", f->name, f->lo, f->hi);
    *out = x;
    return true;
}

static bool field_honoured(const field *f, chat_request *r, const json *v, error *err) {
    void *at = (char *)r + f->at;
    switch (f->kind) {
    case INT: return field_int(f, v, at, err);
    case REAL: return field_real(f, v, at, err);
    case BOOL:
        if (!json_is(v, JSON_BOOL)) return body_wrong_type(f->name, "bool", v, err);
        *(bool *)at = v->boolean;
        return true;
    case STRING:
        if (!json_is(v, JSON_STRING)) return body_wrong_type(f->name, "string", v, err);
        *(str *)at = v->string;
        return true;
    case ARRAY:
    case OBJECT:
        if (!json_is(v, f->kind == ARRAY ? JSON_ARRAY : JSON_OBJECT))
            return body_wrong_type(f->name, f->kind == ARRAY ? "array" : "object", v, err);
        *(const json **)at = v;
        return true;
    }
    return true;
}

static const field *field_find(unsigned surface, str name) {
    for (size_t i = 0; i < COUNT(fields); i++)
        if ((fields[i].surfaces & surface) && str_is(name, fields[i].name)) return &fields[i];
    return NULL;
}

static bool field_apply(reader *c, const field *f, const json *v, error *err) {
    switch (f->class) {
    case CLASS_HONOURED: return field_honoured(f, c->r, v, err);
    case CLASS_SPECIAL: return f->read(c, v, err);
    case CLASS_REFUSED:
        return body_is_neutral(f->neutral, v) ||
               error_field(err, ERR_INVALID, f->name, "%s is not supported by this version", f->name);
    default: return true;
    }
}

static const chat_request absent = {
    .max_tokens = INT_UNSET,
    .max_completion_tokens = INT_UNSET,
    .top_k = INT_UNSET,
    .seed = INT_UNSET,
    .n = 1,
    .repetition_window = 20,
    .presence_window = 20,
    .frequency_window = 20,
    .temperature = NAN,
    .top_p = NAN,
    .min_p = NAN,
    .repetition_penalty = NAN,
    .presence_penalty = 0,
    .frequency_penalty = 0,
    .thinking_budget = INT_UNSET,
};

bool chat_request_read(http_req *q, unsigned surface, chat_request *r, error *err) {
    const json *body = body_read(q, err);
    return body && chat_request_read_json(q, surface, body, r, err);
}

bool chat_request_read_json(http_req *q, unsigned surface, const json *body, chat_request *r, error *err) {
    *r = absent;
    r->surface = surface;
    reader c = {.q = q, .r = r, .body = body};
    bool ok = true;
    for (uint32_t i = 0; i < body->n && ok; i++) {
        const json_member *m = &body->members[i];
        if (json_is(&m->value, JSON_NULL)) continue;
        const field *f = field_find(surface, m->key);
        if (f)
            ok = field_apply(&c, f, &m->value, err);
        else
            unknown_add(&c.unknown, m->key);
    }
    ok = ok && tools_resolve(r, err) && mlx_logprobs_resolve(r, err);
    if (c.unknown.n) r->unknown = arena_copy(q->a, c.unknown.p, c.unknown.n);
    buf_free(&c.unknown);
    if (!ok) return false;
    if (surface == SURFACE_CHAT && !r->messages) return error_field(err, ERR_INVALID, "messages", "messages required");
    if (surface == SURFACE_COMPLETIONS && !r->prompt.n)
        return error_field(err, ERR_INVALID, "prompt", "prompt required");
    return true;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
typedef struct normaliser {
    arena *a;
    uint32_t i; /* message */
    bool keep_headers;
    error *err;
} normaliser;

static bool bad_message(normaliser *n, const char *field, const char *fmt, const char *what) {
    char param[96];
    snprintf(param, sizeof param, "messages[%u]%s", n->i, field);
    char text[200];
    snprintf(text, sizeof text, fmt, what);
    return error_field(n->err, ERR_INVALID, param, "%s: %s", param, text);
}

/* The text of one content part; false when it has none and would be lost. */
static bool part_text(normaliser *n, const json *part, uint32_t j, str *out) {
    char field[40];
    snprintf(field, sizeof field, ".content[%u]", j);
    if (json_is(part, JSON_STRING)) return *out = part->string, true;
    if (!json_is(part, JSON_OBJECT)) return bad_message(n, field, "must be an object, not %s", json_type_name(part));
    str type = json_str(json_get(part, "type"), STR("text"));
    const json *text = json_get(part, "text");
    if (!text) text = json_get(part, "refusal");
    *out = json_str(text, (str){0});
    if (json_is(text, JSON_STRING) || str_is(type, "thinking") || str_is(type, "reasoning")) return true;
    char what[64];
    snprintf(what, sizeof what, "%.*s", (int)MIN(type.n, 40), type.p);
    return bad_message(n, field, "parts of type \"%s\" are not supported by this model", what);
}

static bool join_parts(normaliser *n, const json *parts, str *out) {
    buf b = {0};
    bool ok = true;
    for (uint32_t j = 0; j < parts->n && ok; j++) {
        str text;
        ok = part_text(n, json_at(parts, j), j, &text);
        if (ok) buf_str(&b, text);
    }
    if (ok) *out = (str){arena_copy(n->a, b.p ? b.p : "", b.n), b.n};
    buf_free(&b);
    return ok;
}

static bool content_of(normaliser *n, const json *m, bool may_be_null, json *out) {
    const json *v = json_get(m, "content");
    str text = {0};
    if (json_is(v, JSON_STRING))
        text = v->string;
    else if (json_is(v, JSON_ARRAY)) {
        if (!join_parts(n, v, &text)) return false;
    } else if (v && !json_is(v, JSON_NULL)) {
        return bad_message(n, ".content", "must be a string or an array of parts, not %s", json_type_name(v));
    } else if (!may_be_null) {
        return bad_message(n, ".content", "is required%s", "");
    }
    *out = json_of_str(text.p ? text : STR(""));
    return true;
}

/* Templates walk arguments as an object; OpenAI's clients send its JSON text. None, null and "" are no arguments. */
static bool arguments_of(normaliser *n, const json *v, json *out) {
    const json *read = v;
    if (json_is(v, JSON_STRING)) {
        str text = str_trim(v->string);
        read = text.n ? json_read(n->a, text, NULL, NULL) : NULL;
        if (text.n && !read) return bad_message(n, ".tool_calls", "prompt build failed: arguments are not JSON%s", "");
    }
    *out = json_is(read, JSON_OBJECT) ? *read : (json){.type = JSON_OBJECT};
    return !read || json_is(read, JSON_OBJECT) || json_is(read, JSON_NULL) ||
           bad_message(n, ".tool_calls", "prompt build failed: arguments are not a JSON object%s", "");
}

static bool call_normalise(normaliser *n, const json *call, json *out) {
    const json *f = json_get(call, "function"), *arguments = json_get(f, "arguments");
    if (!json_is(call, JSON_OBJECT) || !json_is(f, JSON_OBJECT))
        return bad_message(n, ".tool_calls", "each needs a function object%s", "");
    json_builder fb = {.a = n->a}, cb = {.a = n->a};
    json object;
    if (!arguments_of(n, arguments, &object)) return false;
    for (uint32_t i = 0; i < f->n; i++) {
        const json_member *m = &f->members[i];
        json_put(&fb, arena_copy(n->a, m->key.p, m->key.n), &m->value == arguments ? object : m->value);
    }
    if (!arguments) json_put(&fb, "arguments", object);
    for (uint32_t i = 0; i < call->n; i++) {
        const json_member *m = &call->members[i];
        json_put(&cb, arena_copy(n->a, m->key.p, m->key.n), str_is(m->key, "function") ? *json_built(&fb) : m->value);
    }
    *out = *json_built(&cb);
    return true;
}

static bool calls_normalise(normaliser *n, const json *calls, json *out) {
    if (!json_is(calls, JSON_ARRAY))
        return bad_message(n, ".tool_calls", "must be an array, not %s", json_type_name(calls));
    json *list = arena_array(n->a, json, calls->n + 1);
    for (uint32_t i = 0; i < calls->n; i++)
        if (!call_normalise(n, json_at(calls, i), &list[i])) return false;
    *out = (json){.type = JSON_ARRAY, .n = calls->n, .items = list};
    return true;
}

/* Agents put lines about themselves in front of the system prompt that change with every request ("x-anthropic-billing-
 * header: ...; cch=..."): no prompt would ever be found in the cache again. */
static str drop_header_lines(str s) {
    static const str start = STR("x-anthropic-");
    while (str_starts(s, start)) {
        size_t line = MIN(str_find(s, STR("\n")), s.n), colon = str_find(str_slice(s, 0, line), STR(":"));
        if (colon == SIZE_MAX || str_find(str_slice(s, 0, colon), STR(" ")) != SIZE_MAX) break;
        s = str_slice(s, MIN(line + 1, s.n), s.n);
        while (s.n && s.p[0] == '\n') s = str_slice(s, 1, s.n);
    }
    return s;
}

static bool message_normalise(normaliser *n, const json *m, json *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    if (!json_is(m, JSON_OBJECT)) return bad_message(n, "", "must be an object, not %s", json_type_name(m));
    str role = json_str(json_get(m, "role"), (str){0});
    size_t known = 0;
    while (known < COUNT(roles) && !str_is(role, roles[known])) known++;
    if (known == COUNT(roles))
        return bad_message(n, ".role", "must be one of system, developer, user, assistant, tool, function%s", "");
    if (str_is(role, "developer")) role = STR("system");
    json content, calls;
    if (!content_of(n, m, !str_is(role, "user") && !str_is(role, "system"), &content)) return false;
    if (str_is(role, "system") && !n->keep_headers) content.string = drop_header_lines(content.string);
    if (str_is(role, "function")) role = STR("tool");
    json_builder b = {.a = n->a};
    json_put(&b, "role", json_of_str(role));
    json_put(&b, "content", content);
    const json *thought = json_get(m, "reasoning_content");
    if (!json_is(thought, JSON_STRING)) thought = json_get(m, "reasoning");
    if (json_is(thought, JSON_STRING)) json_put(&b, "reasoning_content", *thought);
    for (uint32_t i = 0; i < m->n; i++) {
        const json_member *f = &m->members[i];
        if (str_is(f->key, "role") || str_is(f->key, "content") || json_is(&f->value, JSON_NULL) ||
            str_is(f->key, "reasoning") || str_is(f->key, "reasoning_content"))
            continue;
        bool is_calls = str_is(f->key, "tool_calls");
        if (is_calls && !calls_normalise(n, &f->value, &calls)) return false;
        json_put(&b, arena_copy(n->a, f->key.p, f->key.n), is_calls ? calls : f->value);
    }
    *out = *json_built(&b);
    return true;
}

bool messages_normalise(arena *a, const json *messages, bool keep_headers, const json **out, error *err) {
    if (!json_is(messages, JSON_ARRAY)) return body_wrong_type("messages", "array", messages, err);
    if (!messages->n) return error_field(err, ERR_INVALID, "messages", "messages required");
    json *list = arena_array(a, json, messages->n);
    normaliser n = {.a = a, .keep_headers = keep_headers, .err = err};
    for (n.i = 0; n.i < messages->n; n.i++)
        if (!message_normalise(&n, json_at(messages, n.i), &list[n.i])) return false;
    json *array = arena_alloc(a, sizeof *array);
    *array = (json){.type = JSON_ARRAY, .n = messages->n, .items = list};
    *out = array;
    return true;
}

/* ---- thinking (spec/http-api.md §3.3) ---------------------------------------------------------------------------- */
/* Families whose template thinks unless told otherwise, and whose users expect it not to. */
static const char *const quiet_families[] = {"minicpm5", "glm_moe_dsa"};

static int family_thinking(const engine *e) {
    const char *name = engine_model(e)->architecture;
    for (size_t i = 0; i < COUNT(quiet_families); i++)
        if (name && !strncmp(name, quiet_families[i], strlen(quiet_families[i]))) return -1;
    return 0;
}

static int resolve(const http_req *q, const chat_request *r, const engine *e) {
    const json *explicit = json_get(r->template_kwargs, "enable_thinking");
    if (json_is(explicit, JSON_BOOL)) return explicit->boolean ? 1 : -1;
    if (r->thinking_budget == 0) return -1; /* cleaner than a block that is closed at once */
    if (r->asked_thinking) return r->asked_thinking;
    if (r->reasoning_effort.n) return str_is(r->reasoning_effort, "none") ? -1 : 1;
    return q->s->o.thinking ? q->s->o.thinking : family_thinking(e);
}

/* Variables a client may not set: the renderer's own. */
static bool reserved(str name) {
    static const char *const names[] = {"messages",  "tools",           "add_generation_prompt", "bos_token",
                                        "eos_token", "enable_thinking", "reasoning_effort"};
    for (size_t i = 0; i < COUNT(names); i++)
        if (str_is(name, names[i])) return true;
    return false;
}

void thinking_resolve(http_req *q, chat_request *r) {
    engine *e = atomic_load(&q->s->e);
    const chat_template *t = engine_template(e);
    json_builder b = {.a = q->a};
    r->enable_thinking = resolve(q, r, e);
    if (r->enable_thinking && chat_template_reads(t, "enable_thinking"))
        json_put(&b, "enable_thinking", json_of_bool(r->enable_thinking > 0));
    if (r->preserve_thinking && chat_template_reads(t, "preserve_thinking"))
        json_put(&b, "preserve_thinking", json_of_bool(r->preserve_thinking > 0));
    for (size_t i = 0; i < COUNT(efforts); i++)
        if (str_is(r->reasoning_effort, efforts[i].name) && efforts[i].depth &&
            chat_template_reads(t, "reasoning_effort"))
            json_put(&b, "reasoning_effort", json_of_str(str_of(efforts[i].depth)));
    for (uint32_t i = 0; r->template_kwargs && i < r->template_kwargs->n; i++) {
        const json_member *m = &r->template_kwargs->members[i];
        const char *name = arena_copy(q->a, m->key.p, m->key.n);
        if (!reserved(m->key) && chat_template_reads(t, name)) json_put(&b, name, m->value);
    }
    r->variables = json_built(&b);
}
