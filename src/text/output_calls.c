/* Tool calls in a reply: from the family's own markup to a name and the JSON of its arguments, while it streams.
 *
 * What may become a mark is held back, and from a mark on the text of a call: until the call is whole, or CALL_HOLD
 * bytes of arguments are there. What turns out to be no call before that is content, all of it; later it can only end
 * as a call whose arguments are not whole. docs/tool-calls.md has the forms and the rules.
 *
 * Each stage reads one small thing at `at` and says what comes next; it answers STEP_MORE while text that is still to
 * come could change its mind, so the events do not depend on how the text was cut. Gemma's stages: output_gemma.c. */
#include <stdlib.h>
#include "output_internal.h"

enum { CALL_HOLD = 64 };

/* ---- helpers of stages ------------------------------------------------------------------------------------------- */
str call_rest(const calls *c) {
    return str_slice(buf_view(&c->held), c->at, c->held.n);
}

str call_skip_space(calls *c) {
    while (c->at < c->held.n && str_space(c->held.p[c->at])) c->at++;
    return call_rest(c);
}

literal literal_at(str s, str text) {
    if (!text.n) return LITERAL_NO;
    size_t n = MIN(s.n, text.n);
    if (memcmp(s.p, text.p, n)) return LITERAL_NO;
    return n == text.n ? LITERAL_YES : LITERAL_PART;
}

/* Length of the longest end of s that is a proper prefix of text. */
static size_t partial(str s, str text) {
    for (size_t n = text.n ? MIN(s.n, text.n - 1) : 0; n > 0; n--)
        if (memcmp(s.p + s.n - n, text.p, n) == 0) return n;
    return 0;
}

static const call_form *form_of(const calls *c) {
    return c->tools->form;
}

static call_step go(calls *c, size_t n, call_stage to) {
    c->at += n;
    c->stage = to;
    return STEP_GO;
}

/* Nothing there: more may come, but not at the end of the reply. */
static call_step wait_or(bool final, call_step at_end) {
    return final ? at_end : STEP_MORE;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */
static const json *tool_find(const tool_list *l, str name) {
    for (uint32_t i = 0; i < l->tools->n; i++) {
        const json *f = json_get(json_at(l->tools, i), "function");
        if (str_eq(json_str(json_get(f, "name"), (str){0}), name)) return f;
    }
    return NULL;
}

bool call_named(calls *c, str name) {
    const json *f = tool_find(c->tools, name);
    if (!f || c->named) return false;
    c->named = true;
    c->schema = json_get(f, "parameters");
    c->name.n = 0;
    buf_str(&c->name, name);
    return true;
}

const json *call_param(const calls *c, str key) {
    const json *p = json_get(c->schema, "properties");
    for (uint32_t i = 0; json_is(p, JSON_OBJECT) && i < p->n; i++)
        if (str_eq(p->members[i].key, key)) return &p->members[i].value;
    return NULL;
}

void call_args(calls *c, const char *p, size_t n) {
    buf_add(&c->args, p, n);
    c->has_args = true;
}

void call_args_str(calls *c, str s) {
    call_args(c, s.p, s.n);
}

/* What is known of the call goes out, once there is enough of it or all. */
static void call_give(calls *c, bool all) {
    if (!c->named || (!all && c->args.n < CALL_HOLD)) return;
    if (!c->committed && c->o) output_call(c->o, OUTPUT_CALL, c->n, buf_view(&c->name), false);
    c->committed = true;
    if (c->args.n > c->given && c->o)
        output_call(c->o, OUTPUT_ARGS, c->n, str_slice(buf_view(&c->args), c->given, c->args.n), false);
    c->given = c->args.n;
}

static void held_drop(calls *c) {
    memmove(c->held.p, c->held.p + c->at, c->held.n - c->at);
    c->held.n -= c->at;
    c->at = c->mark_end = 0;
}

static void call_over(calls *c, bool whole) {
    call_give(c, true);
    if (c->o) output_call(c->o, OUTPUT_CALL_END, c->n, (str){0}, whole);
    c->n++;
    c->last_call = true;
    c->ended = c->one && whole;
    c->named = c->committed = c->has_args = c->whole_args = false;
    c->args.n = c->given = 0;
    c->n_params = c->depth = 0;
    held_drop(c);
}

bool call_finish(calls *c) {
    if (!c->named) return false;
    if (!c->has_args) call_args_str(c, STR("{}"));
    call_over(c, true);
    return true;
}

static void args_open(calls *c) {
    call_args_str(c, STR("{"));
    c->n_params = 0;
}

static void args_key(calls *c, str key) {
    call_args_str(c, c->n_params++ ? STR(",") : STR(""));
    json_write_string(&c->args, key);
    call_args_str(c, STR(":"));
}

/* ---- values that are text: up to a closing tag ------------------------------------------------------------------- */
static call_step value_open(calls *c, str key, str end, call_stage next, bool typed) {
    args_key(c, key);
    c->types = typed ? schema_types(c->schema, call_param(c, key)) : TYPE_STRING;
    c->text = types_text(c->types) && !form_of(c)->entities;
    c->begun = c->cdata = false;
    c->end = end;
    c->next = next;
    c->stage = CALL_VALUE;
    return STEP_GO;
}

/* A value whose closing tag is missing ends where its call does. PART: that cannot be told yet. */
static literal call_ends(const calls *c, str s) {
    const call_form *f = form_of(c);
    literal l = literal_at(s, f->invoke_close);
    if (l != LITERAL_YES) return l;
    s = str_slice(s, f->invoke_close.n, s.n);
    while (s.n && str_space(s.p[0])) s = str_slice(s, 1, s.n);
    return s.n ? literal_at(s, f->close) : LITERAL_PART;
}

/* Where the value ends: *tag bytes of closing tag follow. False: not known; so much of it is sure to belong. */
static bool value_end(const calls *c, str s, bool final, size_t *end, size_t *tag) {
    size_t at = str_find(s, c->end), limit = MIN(at, s.n);
    *tag = c->end.n;
    str close = form_of(c)->invoke_close;
    if (c->cdata) close.n = 0;
    for (size_t from = 0; close.n && from < limit;) {
        size_t q = str_find(str_slice(s, from, limit), close);
        q = q == SIZE_MAX ? limit - partial(str_slice(s, from, limit), close) : from + q;
        if (q >= limit) break;
        literal l = call_ends(c, str_slice(s, q, s.n));
        if (l == LITERAL_YES || (l == LITERAL_PART && final)) return *end = q, *tag = 0, true;
        if (l == LITERAL_PART && at == SIZE_MAX) return *end = q, false;
        from = q + 1;
    }
    if (at != SIZE_MAX) return *end = at, true;
    *end = s.n - partial(s, c->end);
    return false;
}

static call_step call_value(calls *c, bool final) {
    static const str cdata = STR("<![CDATA[");
    const call_form *f = form_of(c);
    str s = call_rest(c);
    if (!c->begun) {
        literal l = f->entities ? literal_at(s, cdata) : LITERAL_NO;
        if (!s.n || l == LITERAL_PART) return wait_or(final, STEP_FAIL);
        if (f->strip && s.p[0] == '\n') c->at++;
        c->begun = true;
        if (l == LITERAL_YES) {
            c->at += cdata.n;
            c->cdata = true;
            c->text = types_text(c->types);
            c->end = STR("]]>");
        }
        if (c->text) call_args_str(c, STR("\""));
        return STEP_GO;
    }
    size_t end, tag;
    bool ends = value_end(c, s, final, &end, &tag);
    bool more = f->strip && end && s.p[end - 1] == '\n'; /* the last line break is not part of it, if it is the last */
    str v = str_slice(s, 0, more ? end - 1 : end);
    if (!ends) {
        if (c->text) {
            text_escape(v, &c->args);
            c->at += v.n;
        }
        return wait_or(final, STEP_FAIL);
    }
    if (c->text) {
        text_escape(v, &c->args);
        call_args_str(c, STR("\""));
    } else if (f->entities && !c->cdata) {
        buf plain = {0};
        entities_decode(v, &plain);
        text_typed(buf_view(&plain), c->types, &c->args);
        buf_free(&plain);
    } else {
        text_typed(v, c->types, &c->args);
    }
    return go(c, end + tag, c->cdata ? CALL_CDATA_END : c->next);
}

static call_step call_cdata_end(calls *c, bool final) {
    str s = call_skip_space(c);
    literal l = literal_at(s, form_of(c)->param_close);
    if (l == LITERAL_PART || !s.n) return wait_or(final, STEP_FAIL);
    return l == LITERAL_YES ? go(c, form_of(c)->param_close.n, c->next) : STEP_FAIL;
}

/* ---- <function=NAME> <parameter=KEY>, and the same with name="…" ------------------------------------------------- */
/* The value of an attribute, or what follows '=' right behind the tag's name. */
static str tag_attribute(str tag, str name) {
    if (tag.n && tag.p[0] == '=' && str_is(name, "name")) {
        str v = str_trim(str_slice(tag, 1, tag.n));
        bool quoted = v.n >= 2 && (v.p[0] == '"' || v.p[0] == '\'') && v.p[v.n - 1] == v.p[0];
        return quoted ? str_slice(v, 1, v.n - 1) : v;
    }
    size_t at = str_find(tag, name);
    if (at == SIZE_MAX) return (str){0};
    str v = str_trim(str_slice(tag, at + name.n, tag.n));
    if (v.n < 2 || v.p[0] != '=') return (str){0};
    v = str_trim(str_slice(v, 1, v.n));
    if (!v.n || (v.p[0] != '"' && v.p[0] != '\'')) return (str){0};
    size_t end = str_find(str_slice(v, 1, v.n), (str){v.p, 1});
    return str_slice(v, 1, end == SIZE_MAX ? 1 : 1 + end);
}

/* The attributes of a tag that begins here: from behind its name to its '>'. */
static call_step tag_read(const calls *c, str begin, bool final, str *attributes, size_t *n) {
    str s = call_rest(c);
    size_t end = str_find(s, STR(">"));
    if (end == SIZE_MAX) return s.n > HEAD_MAX ? STEP_FAIL : wait_or(final, STEP_FAIL);
    if (end < begin.n) return STEP_FAIL;
    *attributes = str_slice(s, begin.n, end);
    *n = end + 1;
    return STEP_GO;
}

static call_step call_invoke(calls *c, bool final) {
    const call_form *f = form_of(c);
    str s = call_skip_space(c), tag;
    size_t n;
    literal l = literal_at(s, f->invoke), closes = literal_at(s, f->close),
            again = c->mark_end ? LITERAL_NO : literal_at(s, f->invoke_close);
    call_step over = c->mark_end ? STEP_FAIL : STEP_DONE; /* whether there was a call in it */
    if (again == LITERAL_YES) return go(c, f->invoke_close.n, CALL_INVOKE);
    if (closes == LITERAL_YES) return c->at += f->close.n, over;
    if (l != LITERAL_YES && (l == LITERAL_PART || closes == LITERAL_PART || again == LITERAL_PART || !s.n))
        return wait_or(final, over);
    if (l == LITERAL_NO) return over;
    call_step step = tag_read(c, f->invoke, final, &tag, &n);
    if (step != STEP_GO) return step;
    if (!call_named(c, tag_attribute(tag, STR("name")))) return STEP_FAIL;
    args_open(c);
    return go(c, n, CALL_PARAM);
}

static call_step call_param_tag(calls *c, bool final) {
    const call_form *f = form_of(c);
    str s = call_skip_space(c), tag;
    size_t n;
    literal param = literal_at(s, f->param), over = literal_at(s, f->invoke_close), closes = literal_at(s, f->close);
    if (over == LITERAL_YES || closes == LITERAL_YES) {
        call_args_str(c, STR("}"));
        if (over == LITERAL_YES) c->at += f->invoke_close.n;
        call_finish(c);
        c->stage = CALL_INVOKE;
        return STEP_GO;
    }
    if (param != LITERAL_YES && (param == LITERAL_PART || over == LITERAL_PART || closes == LITERAL_PART || !s.n))
        return wait_or(final, STEP_FAIL);
    if (param == LITERAL_NO && s.p[0] == '{' && !c->n_params) { /* the arguments as JSON */
        c->args.n = 0;
        c->after = CALL_INVOKE;
        scan_start(&c->scan);
        return go(c, 0, CALL_JSON);
    }
    if (param == LITERAL_NO) return STEP_FAIL;
    call_step step = tag_read(c, f->param, final, &tag, &n);
    if (step != STEP_GO) return step;
    str key = tag_attribute(tag, STR("name")), how = tag_attribute(tag, STR("string"));
    if (!key.n) return STEP_FAIL;
    value_open(c, key, f->param_close, CALL_PARAM, !str_is(how, "true")); /* DeepSeek says itself what is text */
    c->at += n;
    return STEP_GO;
}

/* ---- GLM: NAME<arg_key>K</arg_key><arg_value>V</arg_value> ------------------------------------------------------- */
static const str arg_key = STR("<arg_key>"), arg_key_end = STR("</arg_key>"), arg_value = STR("<arg_value>"),
                 arg_value_end = STR("</arg_value>");

static call_step call_name(calls *c, bool final) {
    str s = call_skip_space(c);
    size_t n = 0;
    while (n < s.n && !strchr("<{\n", s.p[n])) n++;
    if (n > HEAD_MAX) return STEP_FAIL;
    if (n == s.n) return wait_or(final, STEP_FAIL);
    if (!call_named(c, str_trim(str_slice(s, 0, n)))) return STEP_FAIL;
    c->at += n;
    s = call_skip_space(c);
    c->after = CALL_BLOCK_END;
    return go(c, 0, CALL_ARG);
}

static call_step call_arg(calls *c, bool final) {
    str s = call_skip_space(c), close = form_of(c)->close;
    if (!s.n) return wait_or(final, STEP_FAIL);
    if (s.p[0] == '{' && !c->has_args) {
        scan_start(&c->scan);
        return go(c, 0, CALL_JSON);
    }
    literal key = literal_at(s, arg_key), over = literal_at(s, close);
    if (over == LITERAL_YES) {
        if (c->has_args) call_args_str(c, STR("}"));
        c->at += close.n;
        call_finish(c);
        return STEP_DONE;
    }
    if (key == LITERAL_PART || over == LITERAL_PART) return wait_or(final, STEP_FAIL);
    size_t end = key == LITERAL_YES ? str_find(s, arg_key_end) : 0;
    if (key == LITERAL_NO || (end == SIZE_MAX && s.n > HEAD_MAX)) return STEP_FAIL;
    if (end == SIZE_MAX) return wait_or(final, STEP_FAIL);
    str name = str_slice(s, arg_key.n, end);
    while (str_starts(name, arg_key)) name = str_slice(name, arg_key.n, name.n);
    if (!c->has_args) args_open(c);
    value_open(c, str_trim(name), arg_value_end, CALL_ARG, true);
    return go(c, end + arg_key_end.n, CALL_ARG_VALUE);
}

static call_step call_arg_value(calls *c, bool final) {
    str s = call_skip_space(c);
    literal again = literal_at(s, arg_key_end), value = literal_at(s, arg_value);
    if (again == LITERAL_YES) return go(c, arg_key_end.n, CALL_ARG_VALUE);
    if (value == LITERAL_YES) return go(c, arg_value.n, CALL_VALUE);
    return again == LITERAL_PART || value == LITERAL_PART || !s.n ? wait_or(final, STEP_FAIL) : STEP_FAIL;
}

/* ---- arguments that are JSON already ----------------------------------------------------------------------------- */
/* Models write line breaks into strings as they are: they are escaped. */
static call_step json_read_on(calls *c, bool final, bool copy, call_stage to) {
    str s = call_rest(c);
    for (size_t i = 0; i < s.n; i++) {
        bool control = (uint8_t)s.p[i] < ' ' && scan_in_string(&c->scan);
        scan_result r = scan_push(&c->scan, s.p[i]);
        if (copy && (r == SCAN_ON || r == SCAN_END)) {
            if (control)
                text_escape(str_slice(s, i, i + 1), &c->args);
            else
                call_args(c, s.p + i, 1);
        }
        if (r == SCAN_BAD) return c->at += i, STEP_FAIL;
        if (r != SCAN_ON) return go(c, i + (r == SCAN_END), to);
    }
    c->at = c->held.n;
    return wait_or(final, STEP_FAIL);
}

static call_step call_json(calls *c, bool final) {
    call_step step = json_read_on(c, final, true, c->depth ? CALL_NEXT : c->after);
    if (step == STEP_GO && !c->depth) call_finish(c);
    return step;
}

static call_step call_skip(calls *c, bool final) {
    return json_read_on(c, final, false, CALL_NEXT);
}

/* ---- an object that is a call: {"name": …, "arguments": …} ------------------------------------------------------- */
static bool one_of(str s, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (str_is(s, names[i])) return true;
    return false;
}

/* The JSON string that begins here, decoded; *n: its bytes. */
static call_step string_read(calls *c, bool final, buf *out, size_t *n) {
    str s = call_rest(c);
    size_t end = 1;
    while (end < s.n && s.p[end] != '"') end += s.p[end] == '\\' ? 2 : 1;
    if (end >= s.n) return wait_or(final, STEP_FAIL);
    *n = end + 1;
    arena *a = arena_new(0);
    const json *j = json_read(a, str_slice(s, 0, *n), NULL, NULL);
    if (j) buf_str(out, json_str(j, (str){0}));
    arena_free(a);
    return j ? STEP_GO : STEP_FAIL;
}

static call_step call_key(calls *c, bool final) {
    static const char *const names[] = {"name", "function", "tool_name", "tool"}, *const arguments[] = {
                                                                                      "arguments", "parameters", "args",
                                                                                      "input"};
    str s = call_skip_space(c);
    if (!s.n) return wait_or(final, STEP_FAIL);
    if (s.p[0] != '"') return STEP_FAIL;
    buf key = {0};
    size_t n = 0;
    call_step step = s.n > HEAD_MAX + CALL_HOLD ? STEP_GO : STEP_MORE;
    size_t end = str_find(str_slice(s, 1, MIN(s.n, (size_t)HEAD_MAX)), STR("\""));
    if (end == SIZE_MAX) return step == STEP_GO || final ? STEP_FAIL : STEP_MORE;
    step = string_read(c, final, &key, &n);
    size_t at = n;
    while (step == STEP_GO && at < s.n && str_space(s.p[at])) at++;
    if (step == STEP_GO && at == s.n) step = wait_or(final, STEP_FAIL);
    if (step == STEP_GO && s.p[at] != ':') step = STEP_FAIL;
    if (step == STEP_GO) {
        c->is_name = one_of(buf_view(&key), names, COUNT(names));
        c->is_args = one_of(buf_view(&key), arguments, COUNT(arguments));
        step = go(c, at + 1, CALL_MEMBER);
    }
    buf_free(&key);
    return step;
}

/* Arguments as a string that holds their JSON. */
static bool args_from_text(calls *c, str s) {
    arena *a = arena_new(0);
    const json *j = str_trim(s).n ? json_read(a, s, NULL, NULL) : NULL;
    bool ok = json_is(j, JSON_OBJECT) || !str_trim(s).n;
    if (ok) call_args_str(c, j ? str_trim(s) : STR("{}"));
    arena_free(a);
    return ok;
}

static call_step call_member(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return wait_or(final, STEP_FAIL);
    scan_start(&c->scan);
    if (c->is_args && c->has_args) return STEP_FAIL;
    if (c->is_args && s.p[0] == '{') return go(c, 0, CALL_JSON);
    if (c->is_name && s.p[0] == '{') return c->depth++, go(c, 1, CALL_KEY);
    if ((c->is_args || c->is_name) && s.p[0] == '"') {
        buf text = {0};
        size_t n = 0;
        call_step step = string_read(c, final, &text, &n);
        bool ok = step == STEP_GO && (c->is_args ? args_from_text(c, buf_view(&text)) : call_named(c, buf_view(&text)));
        buf_free(&text);
        if (step == STEP_GO && !ok) return STEP_FAIL;
        return step == STEP_GO ? go(c, n, CALL_NEXT) : step;
    }
    if (c->is_args && s.p[0] != 'n') return STEP_FAIL; /* null: none */
    return go(c, 0, CALL_SKIP);
}

static call_step call_next(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return wait_or(final, STEP_FAIL);
    if (s.p[0] == ',') return go(c, 1, CALL_KEY);
    if (s.p[0] != '}') return STEP_FAIL;
    c->at++;
    if (--c->depth) return STEP_GO;
    c->stage = c->after;
    return call_finish(c) ? STEP_GO : STEP_FAIL;
}

static call_step object_open(calls *c, call_stage after) {
    c->depth = 1;
    c->after = after;
    return go(c, 1, CALL_KEY);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */
static call_step call_block(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return wait_or(final, STEP_FAIL);
    if (s.p[0] == '{') return object_open(c, CALL_BLOCK_END);
    if (s.p[0] == '[') return go(c, 0, CALL_LIST);
    literal l = literal_at(s, form_of(c)->invoke);
    if (l == LITERAL_YES) return go(c, 0, CALL_INVOKE);
    if (s.p[0] == '<') return l == LITERAL_PART ? wait_or(final, STEP_FAIL) : STEP_FAIL;
    return go(c, 0, CALL_NAME);
}

static call_step call_block_end(calls *c, bool final) {
    str s = call_skip_space(c);
    literal l = literal_at(s, form_of(c)->close);
    if (l == LITERAL_YES) return c->at += form_of(c)->close.n, STEP_DONE;
    if (!s.n || l == LITERAL_PART) return wait_or(final, STEP_DONE);
    return s.p[0] == '{' ? object_open(c, CALL_BLOCK_END) : STEP_DONE;
}

/* Objects, in brackets or one behind the other. */
static call_step call_list(calls *c, bool final) {
    str s = call_skip_space(c);
    call_step over = c->mark_end ? STEP_FAIL : STEP_DONE; /* whether there was a call in it */
    literal l = literal_at(s, form_of(c)->close);
    if (!s.n || l == LITERAL_PART) return wait_or(final, over);
    if (l == LITERAL_YES) return c->at += form_of(c)->close.n, over;
    if (s.p[0] == '{') return object_open(c, CALL_LIST);
    if (s.p[0] == '[' && c->mark_end) return go(c, 1, CALL_LIST);
    if (s.p[0] == ']' && !c->mark_end) return go(c, 1, CALL_BLOCK_END);
    if (!strchr(",;", s.p[0]) || c->mark_end) return over;
    size_t next = 1;
    while (next < s.n && str_space(s.p[next])) next++;
    if (next == s.n) return wait_or(final, over);
    return s.p[next] == '{' ? go(c, next, CALL_LIST) : over;
}

/* NAME[CALL_ID]…[ARGS]{…}, NAME{…}, or a list of objects. */
static call_step call_mistral(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return wait_or(final, STEP_FAIL);
    if (s.p[0] == '[' || s.p[0] == '{') return go(c, 0, CALL_LIST);
    size_t args = str_find(str_slice(s, 0, MIN(s.n, (size_t)HEAD_MAX)), STR("{"));
    if (args == SIZE_MAX) return s.n >= HEAD_MAX ? STEP_FAIL : wait_or(final, STEP_FAIL);
    str head = str_slice(s, 0, args);
    if (!call_named(c, str_trim(str_slice(head, 0, MIN(str_find(head, STR("[")), head.n))))) return STEP_FAIL;
    scan_start(&c->scan);
    c->after = CALL_BLOCK_END;
    return go(c, args, CALL_JSON);
}

/* ---- DeepSeek: BEGIN NAME SEP {…} END, BEGIN function SEP NAME ```json {…} ``` END; Kimi: functions.NAME:0 ------- */
static call_step call_item(calls *c, bool final) {
    const call_form *f = form_of(c);
    call_step over = c->mark_end ? STEP_FAIL : STEP_DONE;
    str s = call_skip_space(c);
    literal item = literal_at(s, f->item), close = literal_at(s, f->close);
    if (item == LITERAL_YES) return go(c, f->item.n, CALL_ITEM_HEAD);
    if (close == LITERAL_YES) return c->at += f->close.n, over;
    return item == LITERAL_PART || close == LITERAL_PART || !s.n ? wait_or(final, over) : over;
}

static str item_name(str s) {
    s = str_trim(s);
    if (str_starts(s, STR("functions."))) s = str_slice(s, 10, s.n);
    size_t colon = s.n;
    while (colon > 0 && s.p[colon - 1] >= '0' && s.p[colon - 1] <= '9') colon--;
    return colon > 1 && colon < s.n && s.p[colon - 1] == ':' ? str_slice(s, 0, colon - 1) : s;
}

static call_step call_item_head(calls *c, bool final) {
    const call_form *f = form_of(c);
    str s = call_rest(c);
    size_t sep = str_find(s, f->sep);
    size_t args = sep == SIZE_MAX ? SIZE_MAX : str_find(str_slice(s, sep, s.n), STR("{"));
    if (args == SIZE_MAX) return s.n > HEAD_MAX ? STEP_FAIL : wait_or(final, STEP_FAIL);
    args += sep;
    str between = str_slice(s, sep + f->sep.n, args);
    size_t line = str_find(between, STR("\n"));
    str first = str_trim(str_slice(between, 0, MIN(line, between.n)));
    if (!call_named(c, item_name(first.n ? first : str_slice(s, 0, sep)))) return STEP_FAIL;
    scan_start(&c->scan);
    c->after = CALL_ITEM_END;
    return go(c, args, CALL_JSON);
}

static call_step call_item_end(calls *c, bool final) {
    str s = call_skip_space(c), fence = STR("```");
    literal l = literal_at(s, fence), end = literal_at(s, form_of(c)->item_close);
    if (l == LITERAL_YES) return go(c, fence.n, CALL_ITEM_END);
    if (end == LITERAL_YES) return go(c, form_of(c)->item_close.n, CALL_ITEM);
    return l == LITERAL_PART || end == LITERAL_PART || !s.n ? wait_or(final, STEP_DONE) : STEP_DONE;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */
static call_step (*const stages[CALL_STAGES])(calls *, bool) = {
    [CALL_BLOCK] = call_block,
    [CALL_BLOCK_END] = call_block_end,
    [CALL_LIST] = call_list,
    [CALL_KEY] = call_key,
    [CALL_MEMBER] = call_member,
    [CALL_NEXT] = call_next,
    [CALL_JSON] = call_json,
    [CALL_SKIP] = call_skip,
    [CALL_INVOKE] = call_invoke,
    [CALL_PARAM] = call_param_tag,
    [CALL_VALUE] = call_value,
    [CALL_CDATA_END] = call_cdata_end,
    [CALL_NAME] = call_name,
    [CALL_ARG] = call_arg,
    [CALL_ARG_VALUE] = call_arg_value,
    [CALL_MISTRAL] = call_mistral,
    [CALL_ITEM] = call_item,
    [CALL_ITEM_HEAD] = call_item_head,
    [CALL_ITEM_END] = call_item_end,
    [CALL_GEMMA] = gemma_call,
    [CALL_GEMMA_KEY] = gemma_key,
    [CALL_GEMMA_VALUE] = gemma_value,
    [CALL_GEMMA_STRING] = gemma_string,
    [CALL_GEMMA_NEXT] = gemma_next,
};

static void text_give(calls *c, str s, bool final) {
    str bare = str_trim(s);
    if (!c->spoke && c->n) s = str_slice(s, bare.n ? (size_t)(bare.p - s.p) : s.n, s.n);
    if (final && c->last_call && !bare.n) s.n = 0; /* white space behind the last call */
    if (bare.n) c->spoke = true, c->last_call = false;
    if (c->o && (s.n || final)) output_content(c->o, s, final);
}

static const call_mark *mark_find(const calls *c, str s, size_t *at) {
    const call_mark *found = NULL;
    str blank = str_trim(s);
    size_t start = c->spoke || !blank.n ? SIZE_MAX : (size_t)(blank.p - s.p);
    for (size_t i = 0; i < CALL_MARKS && form_of(c)->mark[i].text.n; i++) {
        const call_mark *m = &form_of(c)->mark[i];
        size_t p = m->at_start ? (start < s.n && str_starts(blank, m->text) ? start : SIZE_MAX) : str_find(s, m->text);
        if (p != SIZE_MAX && (!found || p < *at)) found = m, *at = p;
    }
    return found;
}

/* Plain text up to the next mark; false: nothing more to do. */
static bool outside(calls *c, bool final) {
    str s = buf_view(&c->held);
    size_t at = 0, keep = 0;
    const call_mark *m = mark_find(c, s, &at);
    if (!m && !final) keep = calls_mark_partial(c->tools, s);
    size_t end = m ? at : s.n - keep;
    while ((m || !final) && end && str_space(s.p[end - 1])) end--; /* it goes with what follows */
    c->at = end;
    if (end || (final && !m)) text_give(c, str_slice(s, 0, end), final && !m);
    held_drop(c);
    if (!m) return false;
    c->in = true;
    c->stage = m->first;
    c->mark_end = at - end + m->text.n;
    c->at = m->keep ? at - end : c->mark_end;
    return true;
}

/* It was no call, or stopped being one. */
static void failed(calls *c) {
    c->in = false;
    c->failed = true;
    if (c->named && c->args.n >= CALL_HOLD) { /* given, or in another cut it would have been */
        call_over(c, false);
        return;
    }
    c->at = c->mark_end; /* behind the mark there may be another */
    text_give(c, str_slice(buf_view(&c->held), 0, c->mark_end), false);
    c->named = c->has_args = false;
    c->args.n = 0;
    c->depth = 0;
    held_drop(c);
}

void calls_add(calls *c, str s, bool final) {
    buf_str(&c->held, s);
    while (!c->ended) {
        if (!c->in) {
            if (!outside(c, final)) return;
            continue;
        }
        call_step step = stages[c->stage](c, final);
        if (step == STEP_FAIL) failed(c);
        if (step == STEP_DONE) {
            while (c->at && str_space(c->held.p[c->at - 1])) c->at--;
            held_drop(c);
            c->in = false;
        }
        if (step != STEP_MORE) continue;
        call_give(c, false);
        if (c->committed) held_drop(c);
        return;
    }
    c->held.n = 0;
}

bool calls_begin(calls *c, str name) {
    if (!call_named(c, name)) return false;
    c->in = true;
    c->stage = CALL_JSON;
    c->after = CALL_BLOCK_END;
    c->at = c->mark_end = c->held.n = 0;
    scan_start(&c->scan);
    return true;
}

void calls_deinit(calls *c) {
    buf_free(&c->held), buf_free(&c->name), buf_free(&c->args);
}

bool calls_mark_in(const tool_list *l, str s, size_t *at) {
    const calls c = {.tools = l, .spoke = true};
    return mark_find(&c, s, at) != NULL;
}

size_t calls_mark_partial(const tool_list *l, str s) {
    size_t most = 0;
    for (size_t i = 0; i < CALL_MARKS; i++) most = MAX(most, partial(s, l->form->mark[i].text));
    return most;
}

bool calls_only(const tool_list *l, str s, bool final) {
    calls c = {.tools = l};
    calls_add(&c, s, final);
    bool yes = !c.spoke && !c.failed && (!final || c.n > 0);
    calls_deinit(&c);
    return yes;
}
