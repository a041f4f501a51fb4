/* Tool calls as grammars: the forms in which model families write them, with arguments by the tool's schema. What reads
 * them again is output_calls.c; the names of the forms are its. A schema that does not compile leaves its tool's
 * arguments free. Not here: choosing the form (output_forms.c). */
#include <stdlib.h>
#include "grammar_internal.h"

/* before, then calls divided by `between`, then after. A call is open NAME mid ARGUMENTS close; with `param`s the
 * arguments are one element each. Special tokens among these texts are found by mark_build. */
typedef struct tool_form {
    const char *name;
    const char *before, *after, *between;
    const char *open, *mid, *close;
    const char *key, *value, *end; /* of an argument: key KEY value VALUE end; NULL: the arguments are JSON */
    bool newline;                  /* a line break may stand between key, value and argument */
    bool typed;                    /* value holds %: whether it is a string */
} tool_form;
#define JSON_CALL "{\"name\": \"", "\", \"arguments\": ", "}"
static const tool_form forms[] = {
    {"hermes", "", "", "\n", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", 0, 0, 0, 0, 0},
    {"qwen", "", "", "\n", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "<parameter=", ">\n",
     "\n</parameter>\n", 0, 0},
    {"seed", "", "", "\n", "<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>", "<parameter=", ">",
     "</parameter>\n", 0, 0},
    {"glm", "", "", "\n", "<tool_call>", "", "</tool_call>", "<arg_key>", "</arg_key><arg_value>", "</arg_value>", 1,
     0},
    {"minicpm", "", "", "\n", "<function name=\"", "\">", "</function>", "<param name=\"", "\">", "</param>", 0, 0},
    {"minimax", "<minimax:tool_call>\n", "\n</minimax:tool_call>", "\n", "<invoke name=\"", "\">\n", "</invoke>",
     "<parameter name=\"", "\">", "</parameter>\n", 0, 0},
    {"deepseek-dsml", "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>", "\n", "<｜DSML｜invoke name=\"",
     "\">\n", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"", "\" string=\"%\">", "</｜DSML｜parameter>\n", 0, 1},
    {"deepseek-v4", "<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>", "\n", "<｜DSML｜invoke name=\"", "\">\n",
     "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"", "\" string=\"%\">", "</｜DSML｜parameter>\n", 0, 1},
    {"llama", "", "", "\n", "{\"name\": \"", "\", \"parameters\": ", "}", 0, 0, 0, 0, 0},
    {"mistral", "", "", "", "[TOOL_CALLS]", "[ARGS]", "", 0, 0, 0, 0, 0},
    {"mistral-list", "[TOOL_CALLS][", "]", ", ", JSON_CALL, 0, 0, 0, 0, 0},
    {"deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
     "<｜tool▁call▁end｜>", 0, 0, 0, 0, 0},
    {"phi", "<|tool_call|>[", "]<|/tool_call|>", ", ", JSON_CALL, 0, 0, 0, 0, 0},
    {"nemotron", "<TOOLCALL>[", "]</TOOLCALL>", ", ", JSON_CALL, 0, 0, 0, 0, 0},
    {"apriel", "<tool_calls>[", "]</tool_calls>", ", ", JSON_CALL, 0, 0, 0, 0, 0},
    {"firefunction", " functools[", "]", ", ", JSON_CALL, 0, 0, 0, 0, 0},
    {"gemma", "", "", "", "<|tool_call>call:", "{", "}<tool_call|>", 0, 0, 0, 0, 0},
};
#undef JSON_CALL

static const tool_form *form_find(const char *name) {
    for (size_t i = 0; i < COUNT(forms); i++)
        if (!strcmp(forms[i].name, name)) return &forms[i];
    return NULL;
}
bool grammar_tools_known(const char *form) {
    return form && form_find(form);
}

/* Text with its special tokens: whatever stands in <...> or [...] is looked up. */
gx mark_build(builder *b, const grammar_tools *t, str s) {
    gx_list l = {0};
    size_t from = 0;
    for (size_t i = 0; i < s.n && t->special; i++) {
        if (s.p[i] != '<' && s.p[i] != '[') continue;
        size_t n = str_find(str_slice(s, i, s.n), s.p[i] == '<' ? STR(">") : STR("]"));
        int32_t id = n == SIZE_MAX ? -1 : t->special(t->tokens, str_slice(s, i, i + n + 1));
        if (id < 0) continue;
        gx_push(&l, gx_lit(b, str_slice(s, from, i)));
        gx_push(&l, gx_token(b, id));
        from = i + n + 1;
        i += n;
    }
    gx_push(&l, gx_lit(b, str_slice(s, from, s.n)));
    gx x = gx_seq(b, l.p, l.n);
    free(l.p);
    return x;
}

typedef struct tool_in {
    builder *b;
    const grammar_tools *t;
    const tool_form *form;
    json_forms f;
    const json *schema; /* of the arguments, an object; NULL: there is none */
    str name;
    const char *path;
} tool_in;

/* ---- schemas ----------------------------------------------------------------------------------------------------- */
static bool compiles(tool_in *c, const json *schema, const char *path) {
    builder b;
    error err = {0};
    json_forms f;
    program p;
    builder_init(&b, &err);
    json_forms_init(&b, &f, JSON_LINE);
    gx x = schema_build(&b, c->schema, schema, &f, path);
    bool ok = !b.failed && gx_check(&b, &x) && program_emit(&p, &b, x, &err);
    if (ok) program_deinit(&p);
    builder_deinit(&b);
    if (!ok && c->t->warn) c->t->warn(c->t->warn_arg, err.msg);
    return ok;
}
/* Members that are not declared are left out, unless the schema speaks of them. */
static const json *closed(builder *b, const json *schema) {
    static const char *const open[] = {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf",
                                       "unevaluatedProperties"};
    for (size_t i = 0; i < COUNT(open); i++)
        if (json_get(schema, open[i])) return schema;
    json_builder o = {.a = b->a};
    for (uint32_t i = 0; i < schema->n; i++)
        json_put(&o, arena_copy(b->a, schema->members[i].key.p, schema->members[i].key.n), schema->members[i].value);
    if (!json_get(schema, "type")) json_put(&o, "type", json_of_str(STR("object")));
    json_put(&o, "additionalProperties", json_of_bool(false));
    return json_built(&o);
}
static gx arguments_json(tool_in *c) {
    if (!c->schema || !c->schema->n) return GX_LIT(c->b, "{}");
    if (!compiles(c, c->schema, c->path)) return c->f.object;
    const json *s = closed(c->b, c->schema);
    return schema_build(c->b, s, s, &c->f, c->path);
}

/* ---- arguments as elements --------------------------------------------------------------------------------------- */
static bool only_strings(const json *schema) {
    const json *type = json_get(schema, "type");
    if (json_is(type, JSON_STRING)) return str_is(type->string, "string");
    for (uint32_t i = 0; json_is(type, JSON_ARRAY) && i < type->n; i++)
        if (!str_is(json_str(&type->items[i], (str){0}), "string") &&
            !str_is(json_str(&type->items[i], (str){0}), "null"))
            return false;
    return json_is(type, JSON_ARRAY) && type->n;
}
/* Any text up to `end`, which it does not hold. */
static gx text_until(builder *b, str end) {
    gx any = gx_rep(b, gx_range(b, 0, 0x10FFFF), 0, GX_INF);
    return gx_and(b, any, GX_SEQ(b, any, gx_lit(b, end), any), true);
}
static gx value_text(tool_in *c, const json *schema, const char *path, bool *is_text) {
    builder *b = c->b;
    const json *values = json_get(schema, "enum");
    *is_text = only_strings(schema);
    if (!*is_text) return compiles(c, schema, path) ? schema_build(b, c->schema, schema, &c->f, path) : c->f.value;
    if (!values) return text_until(b, str_trim(str_of(c->form->end)));
    gx_list l = {0};
    for (uint32_t i = 0; i < values->n; i++)
        if (json_is(&values->items[i], JSON_STRING)) gx_push(&l, gx_lit(b, values->items[i].string));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static bool is_required(const json *schema, str key) {
    const json *list = json_get(schema, "required");
    for (uint32_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++)
        if (str_eq(json_str(&list->items[i], (str){0}), key)) return true;
    return false;
}
static gx mark(tool_in *c, const char *text) {
    return mark_build(c->b, c->t, str_of(text));
}
static gx argument(tool_in *c, str key, const json *schema) {
    builder *b = c->b;
    bool is_text;
    gx value =
        value_text(c, schema, arena_printf(b->a, "%s.properties.%.*s", c->path, (int)MIN(key.n, 60), key.p), &is_text);
    gx head = mark(c, c->form->value);
    if (c->form->typed) {
        str v = str_of(c->form->value);
        size_t at = str_find(v, STR("%"));
        head = GX_SEQ(b, gx_lit(b, str_slice(v, 0, at)), gx_lit(b, is_text ? STR("true") : STR("false")),
                      gx_lit(b, str_slice(v, at + 1, v.n)));
    }
    gx gap = c->form->newline ? gx_opt(b, GX_LIT(b, "\n")) : GX_EMPTY;
    if (c->form->newline) { /* key</arg_key> \n <arg_value>: the break is in the middle of `value` */
        str v = str_of(c->form->value);
        size_t at = str_find(v, STR(">")) + 1;
        head = GX_SEQ(b, mark_build(b, c->t, str_slice(v, 0, at)), gap, mark_build(b, c->t, str_slice(v, at, v.n)));
    }
    return GX_SEQ(b, gap, mark(c, c->form->key), gx_lit(b, key), head, value, mark(c, c->form->end));
}
static gx arguments_elements(tool_in *c) {
    const json *props = json_get(c->schema, "properties");
    gx_list l = {0};
    for (uint32_t i = 0; json_is(props, JSON_OBJECT) && i < props->n; i++) {
        gx x = argument(c, props->members[i].key, &props->members[i].value);
        gx_push(&l, is_required(c->schema, props->members[i].key) ? x : gx_opt(c->b, x));
    }
    if (c->form->newline) gx_push(&l, gx_opt(c->b, GX_LIT(c->b, "\n")));
    gx x = gx_seq(c->b, l.p, l.n);
    free(l.p);
    return x;
}

/* ---- Gemma's own notation ---------------------------------------------------------------------------------------- */
static gx gemma_value(tool_in *c, const json *schema, uint32_t any, int depth);
static gx gemma_string(tool_in *c) {
    builder *b = c->b;
    cp_set s = {0};
    gx quote = mark(c, "<|\"|>"), text;
    cp_invert(&s); /* the quote is a token, which no text holds; where it is not, it must not occur */
    text = gx_rep(b, gx_class(b, &s), 0, GX_INF);
    free(s.p);
    if (!c->t->special || c->t->special(c->t->tokens, STR("<|\"|>")) < 0) text = text_until(b, STR("<|\"|>"));
    return GX_SEQ(b, quote, text, quote);
}
static gx gemma_list(tool_in *c, gx item, const char *open, const char *close) {
    builder *b = c->b;
    gx more = gx_rep(b, GX_SEQ(b, GX_LIT(b, ","), item), 0, GX_INF);
    return GX_SEQ(b, gx_lit(b, str_of(open)), gx_opt(b, GX_SEQ(b, item, more)), gx_lit(b, str_of(close)));
}
/* The members in declared order, optional ones may be left out; without the braces. */
static gx gemma_members(tool_in *c, const json *schema, uint32_t any, int depth) {
    builder *b = c->b;
    const json *props = json_get(schema, "properties");
    if (!json_is(props, JSON_OBJECT) || !props->n) return GX_EMPTY;
    gx first = GX_NEVER, more = GX_EMPTY; /* what follows when nothing, something was written */
    bool none = true;                     /* nothing at all is fine from here on */
    for (uint32_t i = props->n; i-- > 0 && !b->failed;) {
        const json_member *m = &props->members[i];
        bool needed = is_required(schema, m->key);
        gx one = GX_SEQ(b, gx_lit(b, m->key), GX_LIT(b, ":"), gemma_value(c, &m->value, any, depth + 1));
        uint32_t rest = gx_rule_new(b, "members"), own = gx_rule_new(b, "member");
        gx_rule_define(b, own, one);
        gx_rule_define(b, rest, more);
        gx with = GX_SEQ(b, gx_call(b, own), gx_call(b, rest));
        first = needed ? with : GX_ALT(b, with, first);
        more = GX_SEQ(b, GX_LIT(b, ","), gx_call(b, own), gx_call(b, rest));
        if (!needed) more = GX_ALT(b, more, gx_call(b, rest));
        none &= !needed;
    }
    return none ? gx_opt(b, first) : first;
}
static gx gemma_value(tool_in *c, const json *schema, uint32_t any, int depth) {
    builder *b = c->b;
    str type = json_str(json_get(schema, "type"), (str){0});
    const json *values = json_get(schema, "enum");
    if (str_is(type, "string") && json_is(values, JSON_ARRAY)) {
        gx_list l = {0};
        for (uint32_t i = 0; i < values->n; i++)
            if (json_is(&values->items[i], JSON_STRING)) gx_push(&l, gx_lit(b, values->items[i].string));
        gx x = GX_SEQ(b, mark(c, "<|\"|>"), gx_alt(b, l.p, l.n), mark(c, "<|\"|>"));
        free(l.p);
        return x;
    }
    if (str_is(type, "string")) return gemma_string(c);
    if (str_is(type, "array") && depth < 20)
        return gemma_list(c, gemma_value(c, json_get(schema, "items"), any, depth + 1), "[", "]");
    if (str_is(type, "object") && depth < 20 && json_get(schema, "properties"))
        return GX_SEQ(b, GX_LIT(b, "{"), gemma_members(c, schema, any, depth), GX_LIT(b, "}"));
    if (str_is(type, "integer") || str_is(type, "number") || str_is(type, "boolean") || str_is(type, "null")) {
        if (compiles(c, schema, c->path)) return schema_build(b, c->schema, schema, &c->f, c->path);
    }
    return gx_call(b, any);
}
static gx arguments_gemma(tool_in *c) {
    builder *b = c->b;
    uint32_t any = gx_rule_new(b, "any value");
    cp_set name = {0};
    cp_add(&name, '0', '9'), cp_add(&name, 'A', 'Z'), cp_add(&name, 'a', 'z'), cp_add(&name, '_', '_'),
        cp_add(&name, '-', '-');
    gx member = GX_SEQ(b, gx_rep(b, gx_class(b, &name), 1, GX_INF), GX_LIT(b, ":"), gx_call(b, any));
    free(name.p);
    gx_rule_define(b, any,
                   GX_ALT(b, gemma_string(c), c->f.number, GX_LIT(b, "true"), GX_LIT(b, "false"), GX_LIT(b, "null"),
                          gemma_list(c, gx_call(b, any), "[", "]"), gemma_list(c, member, "{", "}")));
    return c->schema ? gemma_members(c, c->schema, any, 0) : GX_EMPTY;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
static gx tool_call(tool_in *c) {
    gx args = c->form->key                      ? arguments_elements(c)
              : !strcmp(c->form->name, "gemma") ? arguments_gemma(c)
                                                : arguments_json(c);
    return GX_SEQ(c->b, mark(c, c->form->open), gx_lit(c->b, c->name), mark(c, c->form->mid), args,
                  mark(c, c->form->close));
}
gx tools_build(builder *b, const grammar_tools *t, const char *field) {
    tool_in c = {.b = b, .t = t, .form = form_find(t->form)};
    if (!c.form) return builder_fail(b, "%s: calls in the form of \"%s\" cannot be forced", field, t->form);
    if (!strcmp(t->form, "mistral") && t->special && t->special(t->tokens, STR("[ARGS]")) < 0)
        c.form = form_find("mistral-list");
    json_forms_init(b, &c.f, JSON_LINE);
    gx_list l = {0};
    for (uint32_t i = 0; i < t->tools->n && !b->failed; i++) {
        const json *f = json_get(json_at(t->tools, i), "function");
        c.name = json_str(json_get(f, "name"), (str){0});
        c.schema = json_get(f, "parameters");
        if (!json_is(c.schema, JSON_OBJECT)) c.schema = NULL;
        c.path = arena_printf(b->a, "tools[%u].function.parameters", i);
        if (!t->name.n || str_eq(t->name, c.name)) gx_push(&l, tool_call(&c));
    }
    gx call = gx_alt(b, l.p, l.n);
    free(l.p);
    if (t->many) {
        uint32_t rule = gx_rule_new(b, "call");
        gx_rule_define(b, rule, call);
        call = gx_call(b, rule);
        call = GX_SEQ(b, call, gx_rep(b, GX_SEQ(b, mark(&c, c.form->between), call), 0, GX_INF));
    }
    return GX_SEQ(b, mark(&c, c.form->before), call, mark(&c, c.form->after));
}
