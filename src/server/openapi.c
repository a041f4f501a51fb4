/* GET /openapi.json: the surface as OpenAPI 3.1, made from routes.def, fields.def and surface_fields.def, so that it
 * cannot differ from what is served. Only what no table knows is written here: the schemas of fields that a function
 * reads; those of messages and answers are in schemas.def. */
#include <ctype.h>
#include "internal.h"

/* ---- schemas of chat fields that functions read ------------------------------------------------------------------ */
static const char ANY[] = "{}";
static const struct {
    const char *name, *schema;
} special[] = {
    {"messages", "{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#/components/schemas/ChatMessage\"}}"},
    {"prompt", "{\"type\":\"string\",\"minLength\":1}"},
    {"stop",
     "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"maxItems\":256,\"items\":{\"type\":\"string\"}}]}"},
    {"logit_bias", "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\"}}"},
    {"stream_options", "{\"type\":\"object\",\"properties\":{\"include_usage\":{\"type\":\"boolean\"}}}"},
    {"reasoning_effort", "{\"enum\":[\"none\",\"minimal\",\"low\",\"medium\",\"high\",\"xhigh\"]}"},
    {"skip_special_tokens", "{\"type\":\"boolean\"}"},
    {"tools", "{\"type\":\"array\",\"items\":{\"$ref\":\"#/components/schemas/ChatTool\"}}"},
    {"top_logprobs", "{\"type\":\"integer\",\"minimum\":-1,\"maximum\":20}"},
    {"logprobs_format", "{\"enum\":[\"openai\",\"mlx_lm\"]}"},
    {"tool_choice", "{\"anyOf\":[{\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]}"},
    {"parallel_tool_calls", "{\"type\":\"boolean\"}"},
    {"response_format",
     "{\"type\":\"object\",\"required\":[\"type\"],\"properties\":{\"type\":{\"type\":\"string\"}}}"},
    {"guided_grammar", "{\"type\":\"string\"}"},
    {"guided_regex", "{\"type\":\"string\"}"},
    {"guided_choice", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"},
    {"guided_json", "{\"type\":[\"object\",\"string\",\"boolean\"]}"},
    {"structured_outputs", "{\"type\":[\"object\",\"boolean\"]}"},
    {"grammar", "{\"type\":[\"string\",\"object\"]}"},
    {"json_schema", "{\"type\":[\"object\",\"string\",\"boolean\"]}"},
    {"enable_thinking", "{\"type\":\"boolean\"}"},
    {"preserve_thinking", "{\"type\":\"boolean\"}"},
    {"thinking",
     "{\"type\":\"object\",\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":[\"enabled\",\"disabled\","
     "\"adaptive\"]},\"budget_tokens\":{\"type\":\"integer\",\"minimum\":0}}}"},
    {"reasoning",
     "{\"type\":\"object\",\"properties\":{\"effort\":{\"enum\":[\"none\",\"minimal\",\"low\",\"medium\",\"high\","
     "\"xhigh\"]},\"enabled\":{\"type\":\"boolean\"},\"max_tokens\":{\"type\":\"integer\",\"minimum\":0}}}"},
};

static const char *special_schema(unsigned surface, const char *name) {
    if (!strcmp(name, "logprobs"))
        return surface == SURFACE_CHAT
                   ? "{\"type\":\"boolean\"}"
                   : "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":0,\"maximum\":20},{\"type\":\"boolean\"}]}";
    for (size_t i = 0; i < COUNT(special); i++)
        if (!strcmp(name, special[i].name)) return special[i].schema;
    return ANY;
}

enum { BOOL, INT, REAL, STRING, ARRAY, OBJECT };
typedef struct core_field {
    const char *name;
    unsigned surfaces;
    int class, kind;
    double lo, hi;
} core_field;
static const core_field core_fields[] = {
#define HONOURED(name, s, kind, member, lo, hi) {#name, s, FIELD_PASS, kind, lo, hi},
#define SPECIAL(name, s, f)                     {#name, s, FIELD_READ, 0, 0, 0},
#define ACCEPTED(name, s)                       {#name, s, FIELD_ACCEPTED, 0, 0, 0},
#define REFUSED(name, s, neutral)               {#name, s, FIELD_REFUSED, 0, 0, 0},
#include "fields.def"
#undef HONOURED
#undef SPECIAL
#undef ACCEPTED
#undef REFUSED
};

static const char *const class_text[] = {"honoured", "honoured", "accepted; without effect here",
                                         "not supported: 400 unless neutral"};

static void write_kind(buf *b, const core_field *f) {
    static const char *const types[] = {"boolean", "integer", "number", "string", "array", "object"};
    buf_printf(b, "{\"type\":\"%s\"", types[f->kind]);
    if (f->kind == INT || f->kind == REAL) {
        buf_puts(b, ",\"minimum\":");
        json_write_real(b, f->lo);
        buf_puts(b, ",\"maximum\":");
        json_write_real(b, f->hi);
    }
    buf_putc(b, '}');
}

/* One property: its schema or null (absent), and what becomes of it. */
static void write_property(buf *b, bool first, const char *name, const char *schema, const core_field *f, int class) {
    buf_printf(b, "%s\"%s\":{\"anyOf\":[", first ? "" : ",", name);
    if (f)
        write_kind(b, f);
    else
        buf_puts(b, schema);
    buf_printf(b, ",{\"type\":\"null\"}],\"description\":\"%s\"}", class_text[class]);
}

static void write_core(buf *b, unsigned surface) {
    bool first = true;
    for (size_t i = 0; i < COUNT(core_fields); i++) {
        const core_field *f = &core_fields[i];
        if (!(f->surfaces & surface)) continue;
        const char *schema = f->class == FIELD_READ ? special_schema(surface, f->name) : ANY;
        write_property(b, first, f->name, schema, f->class == FIELD_PASS ? f : NULL, f->class);
        first = false;
    }
}

static void write_surface(buf *b, unsigned surface) {
    bool first = true;
    for (const surface_field *f = NULL; (f = surface_field_next(surface, f)); first = false)
        write_property(b, first, f->name, f->schema, NULL, f->class);
}

/* ---- what a route takes and gives -------------------------------------------------------------------------------- */
static const struct {
    const char *pattern;
    unsigned surface;
    const char *required; /* JSON array's inside */
    bool streams;
    const char *reply; /* schema's name; NULL: an object */
} bodies[] = {
    {"/v1/chat/completions", SURFACE_CHAT, "\"messages\"", true, "ChatCompletion"},
    {"/v1/completions", SURFACE_COMPLETIONS, "\"prompt\"", true, "Completion"},
    {"/v1/messages", SURFACE_MESSAGES, "\"messages\"", true, "AnthropicReply"},
    {"/v1/messages/count_tokens", SURFACE_MESSAGES, "\"messages\"", false, "TokenCount"},
    {"/v1/responses", SURFACE_RESPONSES, "", true, "Response"},
    {"/v1/responses/input_tokens", SURFACE_RESPONSES, "", false, "InputTokens"},
    {"/v1/embeddings", SURFACE_EMBEDDINGS, "\"input\"", false, "Embeddings"},
    {"/tokenize", SURFACE_TOKENIZE, "", false, "Tokens"},
    {"/detokenize", SURFACE_DETOKENIZE, "\"tokens\"", false, "Text"},
    {"/apply-template", SURFACE_CHAT, "\"messages\"", false, "Prompt"},
};

static const char components[] =
#define SCHEMA(name, json) ",\"" #name "\":" json
#include "schemas.def"
#undef SCHEMA
    ;

static void write_body(buf *b, size_t i) {
    buf_puts(b,
             ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\"");
    if (bodies[i].required[0]) buf_printf(b, ",\"required\":[%s]", bodies[i].required);
    buf_puts(b, ",\"properties\":{");
    if (bodies[i].surface & (SURFACE_CHAT | SURFACE_COMPLETIONS))
        write_core(b, bodies[i].surface);
    else
        write_surface(b, bodies[i].surface);
    buf_puts(b, "}}}}}");
}

static size_t body_of(const route *r) {
    size_t i = 0;
    while (i < COUNT(bodies) && (strcmp(bodies[i].pattern, r->pattern) || strcmp(r->method, "POST"))) i++;
    return i;
}

/* A "*" in a pattern is a parameter. */
static void write_path(buf *b, const char *pattern) {
    for (const char *p = pattern; *p; p++) buf_puts(b, *p == '*' ? "{name}" : (char[]){*p, 0});
}

static void write_operation(buf *b, const route *r) {
    size_t i = body_of(r);
    bool has_body = i < COUNT(bodies);
    char method[16] = "";
    for (size_t k = 0; k < sizeof method - 1 && r->method[k]; k++) method[k] = (char)tolower(r->method[k]);
    buf_printf(b, "\"%s\":{\"operationId\":\"%s", method, method);
    for (const char *p = r->pattern; *p; p++) buf_putc(b, isalnum((unsigned char)*p) ? *p : '_');
    buf_puts(b, "\"");
    if (strchr(r->pattern, '*'))
        buf_puts(b, ",\"parameters\":[{\"name\":\"name\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                    "\"string\",\"minLength\":1}}]");
    if (has_body) write_body(b, i);
    if (r->flags & ROUTE_OPEN) buf_puts(b, ",\"security\":[]");
    buf_puts(b, ",\"responses\":{\"200\":{\"description\":\"done\"");
    if (has_body && bodies[i].reply) {
        buf_printf(b, ",\"content\":{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}",
                   bodies[i].reply);
        if (bodies[i].streams) buf_puts(b, ",\"text/event-stream\":{}");
        buf_putc(b, '}');
    }
    buf_puts(b, "},\"default\":{\"description\":\"an "
                "error\",\"content\":{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/Error\"}}}}}}");
}

void route_openapi(http_req *q) {
    size_t n;
    const route *all = route_all(&n);
    buf b = {0};
    buf_puts(&b, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"hearth\",\"version\":\"" HEARTH_VERSION
                 "\",\"license\":{\"name\":\"MIT\",\"identifier\":\"MIT\"}},\"servers\":[{\"url\":\"/\"}],"
                 "\"security\":[{},{\"bearer\":[]}],\"paths\":{");
    bool first_path = true;
    for (size_t i = 0; i < n; i++) {
        bool seen = all[i].flags & (ROUTE_HIDDEN | ROUTE_UNIX);
        for (size_t k = 0; k < i && !seen; k++)
            seen = !(all[k].flags & (ROUTE_HIDDEN | ROUTE_UNIX)) && !strcmp(all[k].pattern, all[i].pattern);
        if (seen) continue;
        buf_puts(&b, first_path ? "\"" : ",\"");
        first_path = false;
        write_path(&b, all[i].pattern);
        buf_puts(&b, "\":{");
        for (size_t k = i, m = 0; k < n; k++) {
            if ((all[k].flags & (ROUTE_HIDDEN | ROUTE_UNIX)) || strcmp(all[k].pattern, all[i].pattern)) continue;
            if (m++) buf_putc(&b, ',');
            write_operation(&b, &all[k]);
        }
        buf_putc(&b, '}');
    }
    buf_puts(
        &b,
        "},\"components\":{\"securitySchemes\":{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"}},\"schemas\":{");
    buf_puts(&b, components + 1); /* each has a comma in front */
    buf_puts(&b, "}}}");
    reply_json(q, 200, &b);
}
