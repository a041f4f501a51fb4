/* Request bodies: read within limits, and sorted by field for the surfaces that have a table in surface_fields.def.
 * Not here: the core request's own fields (fields.def, chat_request.c). */
#include <stdio.h>
#include "internal.h"

const json *body_read(http_req *q, error *err) {
    json_limits limits = {.depth_max = 128,
                          .bytes_max = q->s->o.body_max,
                          .memory_max =
                              MIN(q->body.n * 4 + NODES_SPARE, q->s->o.bodies_max)}; /* texts, and nodes in reason */
    const json *body = json_read(q->a, buf_view(&q->body), &limits, err);
    http_body_free(q);
    if (body && !http_body_hold(q, arena_bytes(q->a), err)) return NULL;
    if (!body) return error_prefix(err, "invalid JSON body: "), NULL;
    if (json_is(body, JSON_OBJECT) && body->n <= 1000) return body;
    if (json_is(body, JSON_OBJECT))
        error_set(err, ERR_INVALID, "invalid JSON body: %u fields; at most 1000 are allowed", body->n);
    else
        error_set(err, ERR_INVALID, "invalid JSON body: an object is expected, not %s", json_type_name(body));
    return NULL;
}

bool body_wrong_type(const char *name, const char *want, const json *v, error *err) {
    return error_field(err, ERR_INVALID, name, "%s must be of type %s, not %s", name, want, json_type_name(v));
}

bool body_is_neutral(const char *neutral, const json *v) {
    buf b = {0};
    json_write(&b, v);
    bool found = false;
    for (str rest = str_of(neutral); rest.n && !found;) {
        size_t end = MIN(str_find(rest, STR(" ")), rest.n);
        found = str_eq(str_slice(rest, 0, end), buf_view(&b));
        rest = str_slice(rest, MIN(end + 1, rest.n), rest.n);
    }
    buf_free(&b);
    return found;
}

/* Names go into a header and the log: only plain ones, and not many. */
void unknown_add(buf *b, str name) {
    if (b->n > 300 || name.n > 64 || !name.n) return;
    for (size_t i = 0; i < name.n; i++)
        if (!name.p[i] || !strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.[]", name.p[i]))
            return;
    buf_printf(b, "%s%.*s", b->n ? ", " : "", (int)name.n, name.p);
}

void unknown_warn(http_req *q, const char *list) {
    if (!list || !*list) return;
    http_header_add(q, "Warning", arena_printf(q->a, "299 hearth \"unknown fields were ignored: %s\"", list));
    log_warn("%s %.*s: unknown fields were ignored: %s", q->id, (int)q->path.n, q->path.p, list);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static const surface_field fields[] = {
#define PASS(surface, name, to, schema)         {surface, #name, FIELD_PASS, to, NULL, schema},
#define READ(surface, name, schema)             {surface, #name, FIELD_READ, NULL, NULL, schema},
#define ACCEPTED(surface, name, schema)         {surface, #name, FIELD_ACCEPTED, NULL, NULL, schema},
#define REFUSED(surface, name, neutral, schema) {surface, #name, FIELD_REFUSED, NULL, neutral, schema},
#include "surface_fields.def"
#undef PASS
#undef READ
#undef ACCEPTED
#undef REFUSED
};

const surface_field *surface_field_next(unsigned surface, const surface_field *after) {
    const surface_field *f = after ? after + 1 : fields;
    for (; f < fields + COUNT(fields); f++)
        if (f->surface & surface) return f;
    return NULL;
}

static const surface_field *find(unsigned surface, str name) {
    const surface_field *f = NULL;
    while ((f = surface_field_next(surface, f)))
        if (str_is(name, f->name)) return f;
    return NULL;
}

bool body_sort(unsigned surface, const json *body, json_builder *core, buf *unknown, error *err) {
    for (uint32_t i = 0; i < body->n; i++) {
        const json_member *m = &body->members[i];
        if (json_is(&m->value, JSON_NULL)) continue;
        const surface_field *f = find(surface, m->key);
        if (!f)
            unknown_add(unknown, m->key);
        else if (f->class == FIELD_PASS && core)
            json_put(core, f->to ? f->to : f->name, m->value);
        else if (f->class == FIELD_REFUSED && !body_is_neutral(f->neutral, &m->value))
            return error_field(err, ERR_INVALID, f->name, "%s is not supported by this version", f->name);
    }
    return true;
}

/* Core fields that come out of nested ones. */
static const struct {
    unsigned surface;
    const char *from, *to;
} nested[] = {
    {SURFACE_RESPONSES, "response_format.json_schema", "text.format"},
    {SURFACE_RESPONSES, "response_format", "text.format"},
    {SURFACE_RESPONSES, "reasoning_effort", "reasoning.effort"},
    {SURFACE_MESSAGES, "response_format.json_schema", "output_config.format"},
    {SURFACE_MESSAGES, "response_format", "output_config.format"},
    {SURFACE_MESSAGES, "reasoning_effort", "output_config.effort"},
};

static bool rename_one(const char *from, const char *to, error *err) {
    size_t n = strlen(from);
    if (strncmp(err->param, from, n) || (err->param[n] && err->param[n] != '.' && err->param[n] != '[')) return false;
    char param[sizeof err->param], msg[sizeof err->msg];
    snprintf(param, sizeof param, "%s%.*s", to, (int)(sizeof param - 1 - strlen(to)), err->param + n);
    bool begins = strncmp(err->msg, from, n) == 0; /* messages begin with the field */
    snprintf(msg, sizeof msg, "%s%.*s", begins ? to : "", (int)(sizeof msg - 64), err->msg + (begins ? n : 0));
    memcpy(err->param, param, sizeof param);
    memcpy(err->msg, msg, sizeof msg);
    return true;
}

void body_error_rename(unsigned surface, error *err) {
    if (!err || !err->param[0]) return;
    for (size_t i = 0; i < COUNT(nested); i++)
        if ((nested[i].surface & surface) && rename_one(nested[i].from, nested[i].to, err)) return;
    for (const surface_field *f = NULL; (f = surface_field_next(surface, f));)
        if (f->class == FIELD_PASS && f->to && rename_one(f->to, f->name, err)) return;
}

/* ---- single fields ----------------------------------------------------------------------------------------------- */
/* The value under the first of the names (separated by blanks) that is there and not null; all must have the type. */
static bool field_any(const json *body, const char *names, json_type type, const char *type_name, const json **out,
                      error *err) {
    *out = NULL;
    for (str rest = str_of(names); rest.n;) {
        size_t end = MIN(str_find(rest, STR(" ")), rest.n);
        char name[40];
        snprintf(name, sizeof name, "%.*s", (int)end, rest.p);
        const json *v = json_get(body, name);
        if (v && !json_is(v, JSON_NULL)) {
            if (!json_is(v, type)) return body_wrong_type(name, type_name, v, err);
            if (!*out) *out = v;
        }
        rest = str_slice(rest, MIN(end + 1, rest.n), rest.n);
    }
    return true;
}

bool body_string(const json *body, const char *names, str *out, error *err) {
    const json *v;
    if (!field_any(body, names, JSON_STRING, "string", &v, err)) return false;
    if (v) *out = v->string;
    return true;
}

bool body_bool(const json *body, const char *names, bool *out, error *err) {
    const json *v;
    if (!field_any(body, names, JSON_BOOL, "bool", &v, err)) return false;
    if (v) *out = v->boolean;
    return true;
}

bool body_int(const json *body, const char *name, int64_t lo, int64_t hi, int64_t *out, error *err) {
    const json *v = json_get(body, name);
    if (!v || json_is(v, JSON_NULL)) return true;
    if (!json_is(v, JSON_INT)) return body_wrong_type(name, "int", v, err);
    if (v->integer < lo || v->integer > hi)
        return error_field(err, ERR_INVALID, name, "%s must be between %lld and %lld", name, (long long)lo,
                           (long long)hi);
    *out = v->integer;
    return true;
}
