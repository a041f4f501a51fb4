/* Structured output: the fields that say what form the answer must have, forced tool calls, and a cache of compiled
 * grammars, so that a schema that comes with every request is compiled once. docs/grammar.md. Not here: compiling
 * (text/grammar.h), where in a reply the grammar holds (engine/constrain.c). */
#include <stdlib.h>
#include "internal.h"

enum { CACHE_SIZE = 16, CHOICES_LIMIT = 10000, SAID_MAX = 2000 };

/* ---- fields ------------------------------------------------------------------------------------------------------ */
static bool set(chat_request *r, int rank, grammar_spec s) {
    if (r->form_rank && r->form_rank <= rank) return true;
    r->form_rank = rank;
    r->form = s;
    return true;
}
static bool bad_type(const char *field, const char *want, const json *v, error *err) {
    return error_field(err, ERR_INVALID, field, "%s must be %s, not %s", field, want, json_type_name(v));
}
static bool set_text(chat_request *r, int rank, grammar_kind kind, const char *field, const json *v, error *err) {
    if (!json_is(v, JSON_STRING)) return bad_type(field, "a string", v, err);
    return !v->string.n || set(r, rank, (grammar_spec){.kind = kind, .text = v->string, .field = field});
}
/* A schema, or the text of one. */
static bool set_schema(arena *a, chat_request *r, int rank, const char *field, const json *v, bool compact,
                       error *err) {
    if (json_is(v, JSON_STRING)) {
        v = json_read(a, v->string, NULL, err);
        if (!v) return error_prefix(err, "%s: ", field), false;
    }
    if (!json_is(v, JSON_OBJECT) && !json_is(v, JSON_BOOL)) return bad_type(field, "a JSON schema", v, err);
    return set(r, rank, (grammar_spec){.kind = GRAMMAR_SCHEMA, .schema = v, .compact = compact, .field = field});
}
static bool set_choice(arena *a, chat_request *r, int rank, const char *field, const json *v, error *err) {
    if (!json_is(v, JSON_ARRAY)) return bad_type(field, "an array of strings", v, err);
    if (v->n > CHOICES_LIMIT)
        return error_field(err, ERR_INVALID, field, "%s has %u choices; at most %d", field, v->n, CHOICES_LIMIT);
    str *choice = arena_array(a, str, v->n + 1);
    for (uint32_t i = 0; i < v->n; i++) {
        if (!json_is(&v->items[i], JSON_STRING)) return bad_type(field, "an array of strings", &v->items[i], err);
        choice[i] = v->items[i].string;
    }
    return !v->n ||
           set(r, rank, (grammar_spec){.kind = GRAMMAR_CHOICE, .choice = choice, .n_choices = v->n, .field = field});
}

/* `strict`: objects have the members they declare and no others, wherever the schema does not say something else. A
 * copy; branches of allOf stay open, since each knows only its own members. */
static json closed(arena *a, json v);
static json closed_each(arena *a, json v) {
    if (v.type == JSON_ARRAY) {
        json *items = arena_array(a, json, v.n + 1);
        for (uint32_t i = 0; i < v.n; i++) items[i] = closed(a, v.items[i]);
        v.items = items;
    } else if (v.type == JSON_OBJECT) {
        json_member *members = arena_array(a, json_member, v.n + 1);
        for (uint32_t i = 0; i < v.n; i++) members[i] = (json_member){v.members[i].key, closed(a, v.members[i].value)};
        v.members = members;
    }
    return v;
}
static json closed(arena *a, json v) {
    static const char *const one[] = {"items", "additionalProperties"};
    static const char *const many[] = {"properties", "patternProperties", "$defs", "definitions", "anyOf",
                                       "oneOf",      "prefixItems"};
    static const char *const open[] = {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"};
    if (v.type != JSON_OBJECT) return v;
    bool close = json_is(json_get(&v, "properties"), JSON_OBJECT);
    for (size_t i = 0; i < COUNT(open); i++) close &= !json_get(&v, open[i]);
    json_member *members = arena_array(a, json_member, v.n + 1);
    for (uint32_t i = 0; i < v.n; i++) {
        members[i] = v.members[i];
        for (size_t k = 0; k < COUNT(one); k++)
            if (str_is(v.members[i].key, one[k])) members[i].value = closed(a, v.members[i].value);
        for (size_t k = 0; k < COUNT(many); k++)
            if (str_is(v.members[i].key, many[k])) members[i].value = closed_each(a, v.members[i].value);
    }
    if (close) members[v.n++] = (json_member){STR("additionalProperties"), json_of_bool(false)};
    v.members = members;
    return v;
}

static bool read_format(arena *a, chat_request *r, const json *v, error *err) {
    if (!json_is(v, JSON_OBJECT)) return bad_type("response_format", "an object", v, err);
    str type = json_str(json_get(v, "type"), (str){0});
    const json *inner = json_get(v, "json_schema");
    const json *schema = json_get(inner ? inner : v, "schema");
    if (json_is(schema, JSON_NULL)) schema = NULL;
    if (str_is(type, "text")) return true;
    if (str_is(type, "json_object") && !schema)
        return set(r, FORM_OBJECT, (grammar_spec){.kind = GRAMMAR_OBJECT, .field = "response_format"});
    if (str_is(type, "json_schema") || str_is(type, "json_object")) {
        const char *path = inner ? "response_format.json_schema.schema" : "response_format.schema";
        if (!schema) return error_field(err, ERR_INVALID, path, "%s is missing", path);
        const json *of = inner ? inner : v;
        const json *strict = json_get(of, "strict");
        if (strict && !json_is(strict, JSON_BOOL) && !json_is(strict, JSON_NULL))
            return bad_type("response_format.json_schema.strict", "a boolean", strict, err);
        if (json_bool(strict, false) && json_is(schema, JSON_OBJECT)) {
            json *copy = arena_array(a, json, 1);
            *copy = closed(a, *schema);
            schema = copy;
        }
        return set_schema(a, r, FORM_SCHEMA, path, schema, !json_bool(json_get(of, "any_whitespace"), true), err);
    }
    return error_field(err, ERR_INVALID, "response_format.type",
                       "response_format.type must be text, json_object or json_schema, not \"%.*s\"",
                       (int)MIN(type.n, 40), type.n ? type.p : "");
}
/* A bare schema, or vLLM's object that says what kind of form it holds. */
static bool read_structured(arena *a, chat_request *r, const json *v, error *err) {
    const json *x;
    bool any = !json_bool(json_get(v, "disable_any_whitespace"), false);
    if ((x = json_get(v, "json"))) return set_schema(a, r, FORM_STRUCTURED, "structured_outputs.json", x, !any, err);
    if ((x = json_get(v, "regex")))
        return set_text(r, FORM_STRUCTURED, GRAMMAR_REGEX, "structured_outputs.regex", x, err);
    if ((x = json_get(v, "grammar")))
        return set_text(r, FORM_STRUCTURED, GRAMMAR_RULES, "structured_outputs.grammar", x, err);
    if ((x = json_get(v, "choice"))) return set_choice(a, r, FORM_STRUCTURED, "structured_outputs.choice", x, err);
    if (json_bool(json_get(v, "json_object"), false))
        return set(r, FORM_STRUCTURED, (grammar_spec){.kind = GRAMMAR_OBJECT, .field = "structured_outputs"});
    if (json_is(v, JSON_OBJECT) && !v->n) return true;
    return set_schema(a, r, FORM_STRUCTURED, "structured_outputs", v, false, err);
}
bool structured_read(arena *a, chat_request *r, const char *field, const json *v, error *err) {
    bool empty = json_is(v, JSON_OBJECT) && !v->n;
    if (!strcmp(field, "response_format")) return read_format(a, r, v, err);
    if (!strcmp(field, "structured_outputs")) return read_structured(a, r, v, err);
    if (!strcmp(field, "guided_grammar")) return set_text(r, FORM_GRAMMAR, GRAMMAR_RULES, "guided_grammar", v, err);
    if (!strcmp(field, "grammar")) return set_text(r, FORM_GRAMMAR, GRAMMAR_RULES, "grammar", v, err);
    if (!strcmp(field, "guided_regex")) return set_text(r, FORM_REGEX, GRAMMAR_REGEX, "guided_regex", v, err);
    if (!strcmp(field, "guided_choice")) return set_choice(a, r, FORM_CHOICE, "guided_choice", v, err);
    return empty || set_schema(a, r, FORM_STRUCTURED, !strcmp(field, "guided_json") ? "guided_json" : "json_schema", v,
                               false, err);
}

/* ---- the cache --------------------------------------------------------------------------------------------------- */
typedef struct entry {
    char *key; /* owns; the whole specification, NULL: free */
    size_t n;
    grammar *g; /* one reference */
    char *said; /* owns; what compiling it warned of, a line each; NULL: nothing */
    uint64_t used;
} entry;
struct structured {
    pthread_mutex_t mu;
    const engine *of; /* whose vocabulary it is; borrows, only compared */
    grammar_vocab *vocab;
    entry entry[CACHE_SIZE];
    uint64_t clock;
};
structured *structured_new(void) {
    structured *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->mu, NULL);
    return s;
}
static void entries_clear(structured *s) {
    for (int i = 0; i < CACHE_SIZE; i++) {
        free(s->entry[i].key);
        free(s->entry[i].said);
        grammar_drop(s->entry[i].g);
        s->entry[i] = (entry){0};
    }
}
void structured_free(structured *s) {
    if (!s) return;
    entries_clear(s);
    grammar_vocab_drop(s->vocab);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
/* One reference, the caller's. */
static grammar_vocab *vocab_of(structured *s, const engine *e) {
    pthread_mutex_lock(&s->mu);
    if (s->of != e) {
        entries_clear(s);
        grammar_vocab_drop(s->vocab);
        const model_info *m = engine_model(e);
        const tokenizer *t = engine_tokenizer(e);
        int32_t eos[64];
        size_t n = 0;
        for (; n < m->n_eos && n < COUNT(eos) - 1; n++) eos[n] = m->eos[n];
        if (tokenizer_eos(t) >= 0) eos[n++] = tokenizer_eos(t);
        s->vocab = grammar_vocab_new(t, MAX(m->vocab, tokenizer_size(t)), eos, n);
        s->of = e;
    }
    grammar_vocab *v = grammar_vocab_keep(s->vocab);
    pthread_mutex_unlock(&s->mu);
    return v;
}
static void key_write(buf *b, const grammar_spec *g) {
    buf_printf(b, "%d %d %s %s %d %zu ", g->kind, g->compact, g->field ? g->field : "",
               g->tools.form ? g->tools.form : "", g->tools.many, g->tools.name.n);
    buf_str(b, g->tools.name); /* may hold NUL */
    buf_printf(b, " %zu ", g->text.n);
    buf_str(b, g->text);
    for (size_t i = 0; i < g->n_choices; i++) {
        buf_printf(b, " %zu ", g->choice[i].n);
        buf_str(b, g->choice[i]);
    }
    if (g->schema) json_write(b, g->schema);
    if (g->tools.form && g->tools.tools) json_write(b, g->tools.tools);
}
static grammar *cache_find(structured *s, str key, buf *said) { /* [mu held] */
    for (int i = 0; i < CACHE_SIZE; i++) {
        entry *e = &s->entry[i];
        if (!e->key || !str_eq(key, (str){e->key, e->n})) continue;
        e->used = ++s->clock;
        if (e->said) buf_puts(said, e->said);
        return grammar_keep(e->g);
    }
    return NULL;
}
static void cache_put(structured *s, buf *key, grammar *g, const buf *said) { /* [mu held] takes key's bytes */
    entry *e = &s->entry[0];
    for (int i = 1; i < CACHE_SIZE; i++)
        if (s->entry[i].used < e->used) e = &s->entry[i];
    free(e->key);
    free(e->said);
    grammar_drop(e->g);
    size_t n = key->n;
    *e = (entry){.key = buf_take(key), .n = n, .g = grammar_keep(g), .used = ++s->clock};
    if (said->n) e->said = mem_strndup(said->p, said->n);
}
/* A grammar from the cache warns of what it warned of when it was compiled. */
static void collect(void *arg, const char *text) {
    buf *said = arg;
    if (said->n > SAID_MAX) return;
    for (const char *p = text; *p && p - text < 300; p++)
        if (*p >= ' ' && *p < 0x7F && *p != '"' && *p != '\\') buf_putc(said, *p);
    buf_putc(said, '\n');
}

/* The client is told which part of its schema it was; the log never holds what a client sent. */
static void warn(http_req *q, const buf *said) {
    if (!said->n) return;
    for (size_t at = 0, n; at < said->n; at += n + 1) {
        n = str_find(str_slice(buf_view(said), at, said->n), STR("\n"));
        http_header_add(q, "Warning",
                        arena_printf(q->a, "299 hearth \"arguments are not constrained: %.*s\"", (int)n, said->p + at));
    }
    log_warn("%s: arguments of tool calls are not constrained: see the Warning header of its answer", q->id);
}

/* Compiling happens outside of the lock; two requests may do the same work once. */
static grammar *compiled(http_req *q, const engine *e, const grammar_spec *wanted, error *err) {
    structured *s = q->s->structured;
    grammar_vocab *v = vocab_of(s, e);
    buf key = {0}, said = {0};
    grammar_spec copy = *wanted, *spec = &copy;
    copy.tools.warn = collect;
    copy.tools.warn_arg = &said;
    key_write(&key, spec);
    pthread_mutex_lock(&s->mu);
    grammar *g = cache_find(s, buf_view(&key), &said);
    pthread_mutex_unlock(&s->mu);
    if (!g && (g = grammar_compile(spec, v, err))) {
        pthread_mutex_lock(&s->mu);
        if (s->vocab == v) cache_put(s, &key, g, &said);
        pthread_mutex_unlock(&s->mu);
    }
    if (g) warn(q, &said);
    buf_free(&said);
    buf_free(&key);
    grammar_vocab_drop(v);
    return g;
}

/* ---- what a request asks for ------------------------------------------------------------------------------------- */
static bool answer_spec(http_req *q, const chat_request *r, const engine *e, const call_form *calls, grammar_spec *s) {
    *s = r->form;
    const char *form = r->tools ? call_form_name(calls) : NULL;
    bool forced = r->tools && r->tool_choice >= TOOL_REQUIRED;
    if (!r->form_rank && !forced) return false;
    if (forced && !grammar_tools_known(form)) {
        buf said = {0};
        collect(&said, "this model's form of tool calls cannot be forced");
        warn(q, &said);
        buf_free(&said);
        return r->form_rank != 0;
    }
    if (forced) *s = (grammar_spec){.kind = GRAMMAR_TOOLS, .field = "tools"};
    if (r->tools && grammar_tools_known(form)) /* beside a form of the answer a call stays possible */
        s->tools = (grammar_tools){.form = form,
                                   .tools = r->tools,
                                   .name = r->tool_choice == TOOL_NAMED ? r->tool_name : (str){0},
                                   .many = !r->one_call,
                                   .special = grammar_special,
                                   .tokens = engine_tokenizer(e)};
    return true;
}
bool structured_compile(http_req *q, const chat_request *r, const think_form *think, const call_form *calls,
                        structured_grammars *out, error *err) {
    const engine *e = atomic_load(&q->s->e);
    grammar_spec s;
    *out = (structured_grammars){0};
    if (!answer_spec(q, r, e, calls, &s)) return true;
    out->answer = compiled(q, e, &s, err);
    if (!out->answer || !think) return out->answer != NULL;
    /* Where thinking is off no block may open; line breaks behind one are common. */
    static const str breaks[] = {{"\n", 1}, {"\n\n", 2}};
    grammar_spec open = {.kind = GRAMMAR_MARK,
                         .text = think_form_open(think),
                         .tools = {.special = grammar_special, .tokens = engine_tokenizer(e)}};
    grammar_spec lead = {.kind = GRAMMAR_CHOICE, .choice = breaks, .n_choices = COUNT(breaks)};
    if (r->enable_thinking >= 0) out->open = compiled(q, e, &open, err);
    out->lead = compiled(q, e, &lead, err);
    if (out->lead && (out->open || r->enable_thinking < 0)) return true;
    structured_drop(out);
    return false;
}
void structured_drop(structured_grammars *g) {
    grammar_drop(g->answer);
    grammar_drop(g->open);
    grammar_drop(g->lead);
    *g = (structured_grammars){0};
}
