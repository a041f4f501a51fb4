/* A conversation as agents send it becomes one that the model's template takes: roles it does not know, calls and
 * results it cannot write, messages where it wants none. What a template needs is found out by rendering
 * (history_probe.c); what it takes as it is stays as it is. docs/templates.md has the rules. */
#include <stdio.h>
#include "history.h"

const history_rules history_plain = {
    .system_user = true, .late_user = true, .tools_text = true, .merge = true, .calls_text = true, .user_first = true};

/* ---- building ---------------------------------------------------------------------------------------------------- */
typedef struct fitter {
    arena *a;
    const history_rules *r;
    const json *tools;
    bool text_calls;
    json *m; /* messages so far */
    uint32_t n;
    /* Texts that grow, copied once when they are whole: there may be as many pieces as the client likes. */
    buf run;     /* owns; while `runs`: the text of the last message */
    buf waiting; /* owns; a system text on its way to the user */
    bool runs;
    map *calls;       /* owns; with `names`: calls so far by id; NULL: none */
    const json *call; /* borrows (messages); the first of the last message with calls */
} fitter;

static str role_of(const json *m) {
    return json_str(json_get(m, "role"), (str){0});
}

static str text_of(const json *m) {
    return json_str(json_get(m, "content"), STR(""));
}

static json text_json(fitter *f, const buf *b) {
    return json_of_str((str){arena_copy(f->a, b->p ? b->p : "", b->n), b->n});
}

static void joined(buf *to, str text) {
    if (to->n && text.n) buf_puts(to, "\n\n");
    buf_str(to, text);
}

/* m with member `key` set to *value (NULL: without it). */
static json with(fitter *f, const json *m, const char *key, const json *value) {
    json_builder b = {.a = f->a};
    bool done = false;
    for (uint32_t i = 0; i < m->n; i++) {
        bool same = str_is(m->members[i].key, key);
        done |= same;
        if (same && !value) continue;
        json_put(&b, arena_copy(f->a, m->members[i].key.p, m->members[i].key.n), same ? *value : m->members[i].value);
    }
    if (!done && value) json_put(&b, key, *value);
    return *json_built(&b);
}

static json message(fitter *f, const char *role, json content) {
    json_builder b = {.a = f->a};
    json_put(&b, "role", json_of_str(str_of(role)));
    json_put(&b, "content", content);
    return *json_built(&b);
}

static json *last(fitter *f) {
    return f->n ? &f->m[f->n - 1] : NULL;
}

static void run_end(fitter *f) {
    if (!f->runs) return;
    json whole = text_json(f, &f->run);
    *last(f) = with(f, last(f), "content", &whole);
    f->run.n = 0;
    f->runs = false;
}

static void last_grow(fitter *f, str text) {
    if (!f->runs) buf_str(&f->run, text_of(last(f)));
    f->runs = true;
    joined(&f->run, text);
}

static void push(fitter *f, json m) {
    run_end(f);
    f->m[f->n++] = m;
}

static bool plain(const json *m) { /* nothing but text */
    return !json_get(m, "tool_calls") && !str_is(role_of(m), "tool");
}

static void add(fitter *f, json m) {
    json *before = last(f);
    if (f->r->user_first && !str_is(role_of(&m), "user") && !str_is(role_of(&m), "system") &&
        (!before || (f->n == 1 && str_is(role_of(before), "system")))) {
        push(f, message(f, "user", json_of_str(STR("."))));
        before = last(f);
    }
    bool user = str_is(role_of(&m), "user");
    if (f->r->answer && user && before && str_is(role_of(before), "tool"))
        push(f, message(f, "assistant", json_of_str(STR("."))));
    else if (f->r->merge && before && str_eq(role_of(before), role_of(&m)) && plain(before) && plain(&m)) {
        last_grow(f, text_of(&m));
        return;
    }
    push(f, m);
}

/* ---- calls and results ------------------------------------------------------------------------------------------- */
static void call_write(buf *b, const json *call) {
    const json *fn = json_get(call, "function");
    const json *args = json_get(fn, "arguments");
    buf_puts(b, "<tool_call>\n{\"name\": ");
    json_write_string(b, json_str(json_get(fn, "name"), STR("")));
    buf_puts(b, ", \"arguments\": ");
    if (args)
        json_write(b, args);
    else
        buf_puts(b, "{}");
    buf_puts(b, "}\n</tool_call>");
}

static json calls_as_text(fitter *f, const json *m) {
    const json *calls = json_get(m, "tool_calls");
    buf b = {0};
    buf_str(&b, text_of(m));
    for (uint32_t i = 0; i < calls->n; i++) {
        if (b.n) buf_putc(&b, '\n');
        call_write(&b, json_at(calls, i));
    }
    json text = text_json(f, &b), without = with(f, m, "tool_calls", NULL);
    buf_free(&b);
    return with(f, &without, "content", &text);
}

static json result_as_text(fitter *f, const json *m) {
    buf b = {0};
    buf_puts(&b, "<tool_response>\n");
    buf_str(&b, text_of(m));
    buf_puts(&b, "\n</tool_response>");
    json out = message(f, "user", text_json(f, &b));
    buf_free(&b);
    return out;
}

/* Nine letters and digits, the same for the same id. */
static json short_id(fitter *f, str id) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < id.n; i++) h = (h ^ (uint8_t)id.p[i]) * 0x100000001b3u;
    return json_of_str((str){arena_printf(f->a, "%09llx", (unsigned long long)(h & 0xfffffffffull)), 9});
}

static json call_fit(fitter *f, const json *call, uint32_t i) {
    json fn = json_get(call, "function") ? *json_get(call, "function") : (json){.type = JSON_OBJECT}, out = *call;
    const json *args = json_get(&fn, "arguments");
    json now = args ? *args : (json){.type = JSON_OBJECT};
    if (f->r->args_text && !json_is(&now, JSON_STRING)) {
        buf b = {0};
        json_write(&b, &now);
        now = text_json(f, &b);
        buf_free(&b);
    }
    fn = with(f, &fn, "arguments", &now);
    out = with(f, &out, "function", &fn);
    if (f->r->ids) {
        json id = short_id(f, json_str(json_get(call, "id"), str_of(arena_printf(f->a, "call %u", i))));
        out = with(f, &out, "id", &id);
    }
    return out;
}

static json calls_fit(fitter *f, const json *calls, uint32_t from, uint32_t to) {
    json *list = arena_array(f->a, json, to - from + 1);
    for (uint32_t i = from; i < to; i++) list[i - from] = call_fit(f, json_at(calls, i), i);
    return (json){.type = JSON_ARRAY, .n = to - from, .items = list};
}

static void calls_note(fitter *f, const json *calls) {
    if (!f->calls) f->calls = map_new(calls->n);
    for (uint32_t i = calls->n; i-- > 0;) { /* of equal ids the first counts */
        f->call = json_at(calls, i);
        map_set(f->calls, json_str(json_get(f->call, "id"), STR("")), (uint64_t)(uintptr_t)f->call);
    }
}

/* The name of the tool that a result answers: of the last call with that id, or of the last message's first. */
static str result_name(const fitter *f, str id) {
    uint64_t found = (uint64_t)(uintptr_t)f->call;
    if (id.n && (!f->calls || !map_get(f->calls, id, &found))) return STR("tool");
    const json *call = (const json *)(uintptr_t)found;
    return call ? json_str(json_get(json_get(call, "function"), "name"), (str){0}) : STR("tool");
}

static json result_fit(fitter *f, const json *messages, uint32_t i) {
    json m = *json_at(messages, i);
    str id = json_str(json_get(&m, "tool_call_id"), (str){0});
    if (f->r->names && !json_get(&m, "name")) {
        json name = json_of_str(result_name(f, id));
        m = with(f, &m, "name", &name);
    }
    if (f->r->ids) {
        json now = short_id(f, id);
        m = with(f, &m, "tool_call_id", &now);
    }
    return m;
}

static void results_add(fitter *f, const json *messages, uint32_t at, const json *call) {
    str id = json_str(json_get(call, "id"), (str){0});
    for (uint32_t i = at + 1; i < messages->n && str_is(role_of(json_at(messages, i)), "tool"); i++)
        if (str_eq(json_str(json_get(json_at(messages, i), "tool_call_id"), (str){0}), id))
            add(f, result_fit(f, messages, i));
}

/* Whether every result behind a message of calls says which call it answers. */
static bool results_known(const json *messages, uint32_t at, const json *calls) {
    uint32_t n = 0;
    for (uint32_t i = at + 1; i < messages->n && str_is(role_of(json_at(messages, i)), "tool"); i++, n++) {
        str id = json_str(json_get(json_at(messages, i), "tool_call_id"), (str){0});
        bool found = false;
        for (uint32_t j = 0; j < calls->n; j++)
            found |= id.n && str_eq(json_str(json_get(json_at(calls, j), "id"), (str){0}), id);
        if (!found) return false;
    }
    return true;
}

/* What a message that only calls has as its content; NULL: nothing at all. */
static const json *no_content(const history_rules *r) {
    static const json nothing = {.type = JSON_NULL}, empty = {.type = JSON_STRING, .string = {"", 0}};
    const json *const content[] = {[CONTENT_EMPTY] = &empty, [CONTENT_NULL] = &nothing, [CONTENT_ABSENT] = NULL};
    return content[r->content];
}

/* An assistant's message with calls; the number of messages behind it that went with it. */
static uint32_t assistant_add(fitter *f, const json *messages, uint32_t at) {
    json m = *json_at(messages, at);
    const json *calls = json_get(&m, "tool_calls");
    if (f->r->apart && text_of(&m).n) {
        add(f, message(f, "assistant", json_of_str(text_of(&m))));
        json nothing = json_of_str(STR(""));
        m = with(f, &m, "content", &nothing);
    }
    if (!text_of(&m).n && f->r->content != CONTENT_EMPTY) m = with(f, &m, "content", no_content(f->r));
    bool split = f->r->one_call && calls->n > 1 && results_known(messages, at, calls);
    for (uint32_t i = 0; split && i < calls->n; i++) {
        json one = calls_fit(f, calls, i, i + 1), now = with(f, &m, "tool_calls", &one);
        if (i) now = with(f, &now, "content", no_content(f->r)); /* what it says stands before the first call */
        push(f, now);
        results_add(f, messages, at, json_at(calls, i));
    }
    uint32_t behind = 0;
    if (split)
        while (at + behind + 1 < messages->n && str_is(role_of(json_at(messages, at + behind + 1)), "tool")) behind++;
    if (split) return behind;
    json all = calls_fit(f, calls, 0, calls->n);
    add(f, with(f, &m, "tool_calls", &all));
    return 0;
}

/* ---- tools and system messages ----------------------------------------------------------------------------------- */
static json tools_text(fitter *f, str system) {
    buf b = {0};
    buf_str(&b, system);
    if (b.n) buf_puts(&b, "\n\n");
    buf_puts(&b, "These functions can be called:\n<tools>\n");
    for (uint32_t i = 0; i < f->tools->n; i++) {
        json_write(&b, json_at(f->tools, i));
        buf_putc(&b, '\n');
    }
    buf_puts(&b, "</tools>\nA call is written like this, and its result comes in <tool_response>:\n"
                 "<tool_call>\n{\"name\": NAME, \"arguments\": OBJECT}\n</tool_call>");
    json out = text_json(f, &b);
    buf_free(&b);
    return out;
}

static json as_parts(fitter *f, const json *m) {
    if (!json_is(json_get(m, "content"), JSON_STRING)) return *m;
    json_builder part = {.a = f->a};
    json_put(&part, "type", json_of_str(STR("text")));
    json_put(&part, "text", *json_get(m, "content"));
    json *item = arena_array(f->a, json, 1);
    *item = *json_built(&part);
    return with(f, m, "content", &(json){.type = JSON_ARRAY, .n = 1, .items = item});
}

/* System messages: the first ones, and those that come later. */
static void system_add(fitter *f, const json *m) {
    bool first = !f->n || (f->n == 1 && str_is(role_of(&f->m[0]), "system"));
    if (first && !f->r->system_user) {
        if (f->n && f->r->late_user)
            last_grow(f, text_of(m));
        else
            push(f, *m);
    } else if (f->r->late_user || f->r->system_user) {
        joined(&f->waiting, text_of(m));
    } else {
        push(f, *m);
    }
}

static json waiting_take(fitter *f) {
    json text = text_json(f, &f->waiting);
    f->waiting.n = 0;
    return text;
}

static void waiting_flush(fitter *f) {
    if (f->waiting.n) add(f, message(f, "user", waiting_take(f)));
}

static void messages_add(fitter *f, const json *messages) {
    for (uint32_t i = 0; i < messages->n; i++) {
        const json *m = json_at(messages, i);
        str role = role_of(m);
        const json *calls = json_get(m, "tool_calls");
        if (f->r->names && json_is(calls, JSON_ARRAY) && calls->n) calls_note(f, calls);
        if (str_is(role, "system")) {
            system_add(f, m);
            continue;
        }
        if (str_is(role, "user") && f->waiting.n) { /* in front of what the user says */
            joined(&f->waiting, text_of(m));
            json both = waiting_take(f);
            add(f, with(f, m, "content", &both));
            continue;
        }
        if (!str_is(role, "tool")) waiting_flush(f); /* results stay with their calls */
        if (str_is(role, "tool"))
            add(f, f->text_calls ? result_as_text(f, m) : result_fit(f, messages, i));
        else if (json_is(calls, JSON_ARRAY) && calls->n && !f->text_calls)
            i += assistant_add(f, messages, i);
        else
            add(f, json_is(calls, JSON_ARRAY) ? calls_as_text(f, m) : *m);
    }
    waiting_flush(f);
    run_end(f);
    buf_free(&f->run);
    buf_free(&f->waiting);
    if (f->calls) map_free(f->calls);
}

static const json *with_tools_text(fitter *f, const json *messages) {
    const json *first = json_at(messages, 0);
    bool system = str_is(role_of(first), "system");
    json text = tools_text(f, system ? text_of(first) : STR(""));
    json *list = arena_array(f->a, json, messages->n + 1), *array = arena_alloc(f->a, sizeof *array);
    list[0] = system ? with(f, first, "content", &text) : message(f, "system", text);
    for (uint32_t i = system; i < messages->n; i++) list[i + 1 - system] = *json_at(messages, i);
    *array = (json){.type = JSON_ARRAY, .n = messages->n + 1 - system, .items = list};
    return array;
}

/* "functions" and "datetime", which one family's template wants. */
static const json *with_functions(fitter *f, const render_opts *o) {
    json_builder b = {.a = f->a};
    const json *more = o->variables;
    for (uint32_t i = 0; json_is(more, JSON_OBJECT) && i < more->n; i++)
        json_put(&b, arena_copy(f->a, more->members[i].key.p, more->members[i].key.n), more->members[i].value);
    buf text = {0};
    if (o->tools)
        json_write(&text, o->tools);
    else
        buf_puts(&text, "[]");
    json_put(&b, "functions", text_json(f, &text));
    buf_free(&text);
    time_t now = (time_t)(o->now_unix ? o->now_unix : clock_unix());
    struct tm day;
    gmtime_r(&now, &day);
    json_put(
        &b, "datetime",
        json_of_str(str_of(arena_printf(f->a, "%04d-%02d-%02d", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday))));
    return json_built(&b);
}

static void transcribe(fitter *f) {
    buf b = {0};
    for (uint32_t i = 0; i < f->n; i++) {
        str role = role_of(&f->m[i]);
        buf_printf(&b, "%s%.*s: ", i ? "\n\n" : "", (int)role.n, role.p);
        buf_str(&b, text_of(&f->m[i]));
    }
    f->m[0] = message(f, "user", text_json(f, &b));
    f->n = 1;
    buf_free(&b);
}

render_opts history_fit(arena *a, const history_rules *r, const render_opts *o) {
    static const history_rules as_is;
    render_opts out = *o;
    bool tools = o->tools && o->tools->n;
    if (!json_is(o->messages, JSON_ARRAY) || !memcmp(r, &as_is, sizeof as_is)) return out;
    fitter f = {.a = a, .r = r, .tools = o->tools, .text_calls = r->calls_text || (r->bare_text && !tools)};
    const json *messages = o->messages;
    if (tools && r->tools_text) {
        messages = with_tools_text(&f, messages);
        out.tools = NULL;
    }
    /* At most: each message and two that are put in, and one for each call. */
    size_t most = 3 * ((size_t)messages->n + 1);
    for (uint32_t i = 0; i < messages->n; i++) {
        const json *calls = json_get(json_at(messages, i), "tool_calls");
        most += json_is(calls, JSON_ARRAY) ? calls->n : 0;
    }
    f.m = arena_array(a, json, most);
    messages_add(&f, messages);
    if (r->transcript && f.n) transcribe(&f);
    if (r->functions) out.variables = with_functions(&f, &out);
    if (r->tools_list && !out.tools) {
        static const json none = {.type = JSON_ARRAY};
        out.tools = &none;
    }
    for (uint32_t i = 0; r->parts && i < f.n; i++) f.m[i] = as_parts(&f, &f.m[i]);
    json *array = arena_alloc(a, sizeof *array);
    *array = (json){.type = JSON_ARRAY, .n = f.n, .items = f.m};
    out.messages = array;
    return out;
}

/* ---- is everything there? ---------------------------------------------------------------------------------------- */
static size_t find_from(str text, size_t from, str needle) {
    if (!needle.n) return from;
    size_t at = str_find(str_slice(text, from, text.n), needle);
    return at == SIZE_MAX ? SIZE_MAX : from + at + needle.n;
}

/* As it is, or as JSON writes it. SIZE_MAX: not there. */
static size_t find_text(str text, size_t from, str s) {
    s = str_trim(s);
    size_t end = find_from(text, from, s);
    if (end != SIZE_MAX) return end;
    buf b = {0};
    json_write_string(&b, s);
    end = find_from(text, from, str_slice(buf_view(&b), 1, b.n - 1));
    buf_free(&b);
    return end;
}

static bool value_shows(const json *v, str text, size_t from) {
    if (json_is(v, JSON_STRING)) return find_text(text, from, v->string) != SIZE_MAX;
    bool object = json_is(v, JSON_OBJECT);
    for (uint32_t i = 0; (object || json_is(v, JSON_ARRAY)) && i < v->n; i++)
        if (!value_shows(object ? &v->members[i].value : json_at(v, i), text, from)) return false;
    return true;
}

static bool calls_show(const json *calls, str text, size_t from) {
    for (uint32_t i = 0; json_is(calls, JSON_ARRAY) && i < calls->n; i++) {
        const json *f = json_get(json_at(calls, i), "function");
        if (find_text(text, from, json_str(json_get(f, "name"), STR(""))) == SIZE_MAX) return false;
        if (json_is(json_get(f, "arguments"), JSON_OBJECT) && !value_shows(json_get(f, "arguments"), text, from))
            return false;
    }
    return true;
}

/* Templates may cut off the thinking of earlier turns. */
static str answer_part(str s) {
    size_t at = str_find(s, THINK_CLOSE);
    return at == SIZE_MAX ? s : str_slice(s, at + THINK_CLOSE.n, s.n);
}

bool history_shows(const json *messages, str text) {
    size_t from = 0;
    for (uint32_t i = 0; json_is(messages, JSON_ARRAY) && i < messages->n; i++) {
        const json *m = json_at(messages, i), *content = json_get(m, "content");
        size_t end = from;
        if (json_is(content, JSON_ARRAY))
            for (uint32_t j = 0; j < content->n && end != SIZE_MAX; j++)
                end = find_text(text, end, json_str(json_get(json_at(content, j), "text"), STR("")));
        else
            end = find_text(text, from, answer_part(json_str(content, STR(""))));
        if (end == SIZE_MAX || !calls_show(json_get(m, "tool_calls"), text, from)) return false;
        from = end;
    }
    return true;
}

/* ---- rendering --------------------------------------------------------------------------------------------------- */
static bool render_with(const chat_template *t, const history_rules *r, const render_opts *o, buf *out, buf *user,
                        bool *shows, error *err) {
    arena *a = arena_new(0);
    render_opts fitted = history_fit(a, r, o);
    bool ok = chat_template_render(t, &fitted, out, user, err);
    *shows = ok && history_shows(fitted.messages, buf_view(out));
    arena_free(a);
    return ok;
}

/* What is tried when the rules alone do not do, in this order. */
static history_rules fallback(const history_rules *r, int which) {
    history_rules plain = history_plain;
    plain.parts = r->parts;
    plain.tools_list = r->tools_list;
    plain.functions = r->functions;
    plain.transcript = which > 0;
    return plain;
}

bool history_render(const chat_template *t, const render_opts *o, buf *out, buf *user, error *err) {
    const history_rules *r = chat_template_rules(t);
    error first = {0}, again = {0};
    bool shows, ok = render_with(t, r, o, out, user, &shows, &first);
    for (int i = 0; i < 2 && !(ok && shows); i++) {
        history_rules plain = fallback(r, i);
        buf text = {0}, marks = {0};
        bool all, better = render_with(t, &plain, o, &text, user ? &marks : NULL, &all, &again);
        better = better && all;
        if (better) { /* the bytes change hands */
            buf_free(out);
            *out = text;
            if (user) buf_free(user), *user = marks;
            return true;
        }
        buf_free(&text), buf_free(&marks);
    }
    if (!ok && err) *err = first;
    return ok;
}
