/* /v1/responses: OpenAI's Responses API, whole and as a stream of numbered events, and what is remembered of it
 * (docs/responses.md). Not here: the request (responses_request.c), the database (response_store.c). */
#include <openssl/sha.h>
#include <stdio.h>
#include "response_store.h"
#include "translate.h"

typedef enum item_kind { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL } item_kind;
typedef struct responses_state {
    const json *body;     /* the request: its settings are told back */
    str instructions;     /* what counts: .p NULL: none */
    str previous;         /* previous_response_id */
    const json *items[3]; /* the conversation: stored input, stored output, this request's own input */
    size_t n_items;
    bool store, codex;
    int sequence;
    item_kind open; /* of a stream; its text is in the choice's buffers */
    char item_id[48];
    json_list done; /* finished output items as JSON texts (strings) */
} responses_state;

static responses_state *state_of(const gen_run *r) {
    return r->state;
}

static void new_id(char out[48], const char *prefix) {
    snprintf(out, 48, "%s%016llx%08x", prefix, (unsigned long long)random_u64(), (unsigned)random_u64());
}

/* ---- output items ------------------------------------------------------------------------------------------------ */
static void write_text_part(buf *out, str text, str logprobs) {
    buf_puts(out, "{\"type\":\"output_text\",\"text\":");
    json_write_string(out, text);
    buf_puts(out, ",\"annotations\":[],\"logprobs\":[");
    buf_str(out, logprobs);
    buf_puts(out, "]}");
}

static void write_summary_part(buf *out, str text) {
    buf_puts(out, "{\"type\":\"summary_text\",\"text\":");
    json_write_string(out, text);
    buf_putc(out, '}');
}

static void write_reasoning(buf *out, const char *id, const char *status, str text) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"reasoning\",\"status\":\"%s\",\"summary\":[", id, status);
    if (text.p) write_summary_part(out, text);
    buf_puts(out, "]}");
}

static void write_message(buf *out, const char *id, const char *status, str text, str logprobs) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[", id,
               status);
    if (text.p) write_text_part(out, text, logprobs);
    buf_puts(out, "]}");
}

static void write_call(buf *out, const char *id, const char *status, const call *t, str arguments) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":\"%s\",\"name\":", id,
               status, t->id);
    json_write_string(out, buf_view(&t->name));
    buf_puts(out, ",\"arguments\":");
    json_write_string(out, arguments);
    buf_putc(out, '}');
}

static const char *item_status(const choice *c) {
    return c->done && c->why == FINISH_LENGTH ? "incomplete" : "completed";
}

static str not_null(const buf *b) {
    return b->p ? buf_view(b) : STR("");
}

/* Keeps a finished item (takes b's bytes). */
static void item_keep(gen_run *r, buf *b) {
    json_list_add(&state_of(r)->done, json_text(r->q->a, b));
    buf_free(b);
}

/* ---- the response object ----------------------------------------------------------------------------------------- */
static void write_output(const responses_state *s, buf *out) {
    buf_putc(out, '[');
    for (uint32_t i = 0; i < s->done.n; i++) {
        if (i) buf_putc(out, ',');
        buf_str(out, s->done.p[i].string);
    }
    buf_putc(out, ']');
}

/* A field of the request as it came, or what its absence means. */
static void write_field(const responses_state *s, const char *name, const char *otherwise, buf *out) {
    const json *v = json_get(s->body, name);
    buf_printf(out, ",\"%s\":", name);
    if (v && !json_is(v, JSON_NULL))
        json_write(out, v);
    else
        buf_puts(out, otherwise);
}

static void write_usage(const gen_run *r, buf *out) {
    gen_stats st = run_stats(r);
    buf_printf(out,
               "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},\"output_tokens\":%d,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%d},\"total_tokens\":%d%s}",
               st.prompt_tokens, st.cached_tokens, st.generated_tokens, st.reasoning_tokens,
               st.prompt_tokens + st.generated_tokens, r->clamped ? ",\"max_tokens_clamped\":true" : "");
}

static void write_string_or_null(buf *out, const char *name, str v) {
    buf_printf(out, ",\"%s\":", name);
    if (v.p)
        json_write_string(out, v);
    else
        buf_puts(out, "null");
}

static void write_object(const gen_run *r, const char *status, const error *e, buf *out) {
    const responses_state *s = state_of(r);
    bool over = strcmp(status, "in_progress") != 0;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"", r->id,
               (long long)r->created, status);
    if (over) buf_printf(out, ",\"completed_at\":%lld", (long long)clock_unix());
    buf_puts(out, ",\"error\":");
    if (e) {
        buf_puts(out, "{\"code\":\"server_error\",\"message\":");
        json_write_string(out, str_of(e->msg));
        buf_putc(out, '}');
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, strcmp(status, "incomplete") ? ",\"incomplete_details\":null"
                                               : ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}");
    write_string_or_null(out, "instructions", s->instructions);
    buf_puts(out, ",\"model\":");
    json_write_string(out, str_of(r->model));
    buf_puts(out, ",\"output\":");
    write_output(s, out);
    write_string_or_null(out, "previous_response_id", s->previous);
    static const char *const fields[][2] = {{"max_output_tokens", "null"},
                                            {"max_tool_calls", "null"},
                                            {"parallel_tool_calls", "true"},
                                            {"temperature", "null"},
                                            {"top_p", "null"},
                                            {"top_logprobs", "0"},
                                            {"tool_choice", "\"auto\""},
                                            {"tools", "[]"},
                                            {"truncation", "\"disabled\""},
                                            {"user", "null"},
                                            {"metadata", "{}"},
                                            {"service_tier", "\"default\""},
                                            {"prompt_cache_key", "null"},
                                            {"safety_identifier", "null"},
                                            {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                            {"background", "false"}};
    for (size_t i = 0; i < COUNT(fields); i++) write_field(s, fields[i][0], fields[i][1], out);
    const json *format = json_get(json_get(s->body, "text"), "format");
    buf_puts(out, ",\"text\":{\"format\":");
    if (json_is(format, JSON_OBJECT))
        json_write(out, format);
    else
        buf_puts(out, "{\"type\":\"text\"}");
    buf_printf(out, "},\"store\":%s,\"system_fingerprint\":", s->store ? "true" : "false");
    json_write_string(out, str_of(engine_fingerprint(atomic_load(&r->q->s->e))));
    buf_puts(out, ",\"usage\":");
    if (over && !e)
        write_usage(r, out);
    else
        buf_puts(out, "null");
    buf_putc(out, '}');
}

static const char *final_status(const gen_run *r) {
    return r->choices[0].why == FINISH_LENGTH ? "incomplete" : "completed";
}

/* ---- remembering ------------------------------------------------------------------------------------------------- */
/* Whose a response is, where there are keys. */
static str owner_of(const http_req *q) {
    const str given = guard_key_given(q);
    if (!q->s->o.n_api_keys || !given.n) return STR("");
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)given.p, given.n, digest);
    buf b = {0};
    for (size_t i = 0; i < sizeof digest; i++) buf_printf(&b, "%02x", digest[i]);
    str hex = {arena_copy(q->a, b.p, b.n), b.n};
    buf_free(&b);
    return hex;
}

static void write_items(const json *const *items, size_t n, buf *out) {
    bool first = true;
    buf_putc(out, '[');
    for (size_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < items[k]->n; i++) {
            if (!first) buf_putc(out, ',');
            json_write(out, json_at(items[k], i));
            first = false;
        }
    buf_putc(out, ']');
}

static void remember(gen_run *r, str object) {
    const responses_state *s = state_of(r);
    response_store *store = r->q->s->responses;
    if (!s->store) return;
    buf all = {0}, own = {0}, output = {0};
    write_items(s->items, s->n_items, &all);
    write_items(&s->items[s->n_items - 1], 1, &own);
    write_output(s, &output);
    stored_response v = {.input = buf_view(&all),
                         .own_input = buf_view(&own),
                         .output = buf_view(&output),
                         .instructions = s->instructions,
                         .object = object};
    error e = {0};
    if (!response_store_put(store, str_of(r->id), owner_of(r->q), &v, &e)) log_warn("%s: %s", r->id, e.msg);
    buf_free(&all);
    buf_free(&own);
    buf_free(&output);
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */
static void items_of_choice(gen_run *r, choice *c) {
    const char *status = item_status(c);
    char id[48];
    buf b = {0};
    if (c->reasoning.n) {
        new_id(id, "rs_");
        write_reasoning(&b, id, c->content.n || c->n_calls ? "completed" : status, buf_view(&c->reasoning));
        item_keep(r, &b);
    }
    if (c->content.n || !c->n_calls) {
        new_id(id, "msg_");
        write_message(&b, id, c->n_calls ? "completed" : status, not_null(&c->content), buf_view(&c->logprobs));
        item_keep(r, &b);
    }
    for (int i = 0; i < c->n_calls; i++) {
        new_id(id, "fc_");
        write_call(&b, id, c->calls[i].whole ? "completed" : "incomplete", &c->calls[i], not_null(&c->calls[i].args));
        item_keep(r, &b);
    }
}

static void reply(gen_run *r, buf *out) {
    items_of_choice(r, &r->choices[0]);
    write_object(r, final_status(r), NULL, out);
    remember(r, buf_view(out));
}

/* ---- stream ------------------------------------------------------------------------------------------------------ */
static void event_open(gen_run *r, const char *type, buf *out) {
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type, state_of(r)->sequence++);
}

static void event_close(buf *out) {
    buf_puts(out, "}\n\n");
}

/* An event about the open item. */
static void item_event(gen_run *r, const char *type, buf *out) {
    event_open(r, type, out);
    buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%u", state_of(r)->item_id, state_of(r)->done.n);
}

static void text_event(gen_run *r, const char *type, const char *part, const char *key, str text, buf *out) {
    item_event(r, type, out);
    if (part) buf_printf(out, ",\"%s\":0", part);
    buf_printf(out, ",\"%s\":", key);
    json_write_string(out, text);
}

static void object_event(gen_run *r, const char *type, const char *status, const error *e, buf *out) {
    event_open(r, type, out);
    buf_puts(out, ",\"response\":");
    size_t at = out->n;
    write_object(r, status, e, out);
    if (strcmp(status, "in_progress") && !e) remember(r, str_slice(buf_view(out), at, out->n));
    event_close(out);
}

static void begin(gen_run *r, buf *out) {
    object_event(r, "response.created", "in_progress", NULL, out);
    object_event(r, "response.in_progress", "in_progress", NULL, out);
}

static void added(gen_run *r, buf *out) { /* ... the item and event_close follow */
    event_open(r, "response.output_item.added", out);
    buf_printf(out, ",\"output_index\":%u,\"item\":", state_of(r)->done.n);
}

static void part_event(gen_run *r, const char *type, bool reasoning, str text, str logprobs, buf *out) {
    item_event(r, type, out);
    buf_puts(out, reasoning ? ",\"summary_index\":0,\"part\":" : ",\"content_index\":0,\"part\":");
    if (reasoning)
        write_summary_part(out, text);
    else
        write_text_part(out, text, logprobs);
    event_close(out);
}

/* The item is over: its closing events; it moves to the finished ones. b: the item. */
static void item_close(gen_run *r, buf *b, buf *out) {
    event_open(r, "response.output_item.done", out);
    buf_printf(out, ",\"output_index\":%u,\"item\":", state_of(r)->done.n);
    buf_str(out, buf_view(b));
    event_close(out);
    item_keep(r, b);
    state_of(r)->open = ITEM_NONE;
}

static void reasoning_close(gen_run *r, choice *c, buf *out) {
    str text = not_null(&c->reasoning);
    text_event(r, "response.reasoning_summary_text.done", "summary_index", "text", text, out);
    event_close(out);
    part_event(r, "response.reasoning_summary_part.done", true, text, (str){0}, out);
    buf b = {0};
    write_reasoning(&b, state_of(r)->item_id, item_status(c), text);
    c->reasoning.n = 0;
    item_close(r, &b, out);
}

static void message_close(gen_run *r, choice *c, buf *out) {
    str text = not_null(&c->content), logprobs = buf_view(&c->lp_tokens);
    text_event(r, "response.output_text.done", "content_index", "text", text, out);
    buf_puts(out, ",\"logprobs\":[");
    buf_str(out, logprobs);
    buf_putc(out, ']');
    event_close(out);
    part_event(r, "response.content_part.done", false, text, logprobs, out);
    buf b = {0};
    write_message(&b, state_of(r)->item_id, item_status(c), text, logprobs);
    c->content.n = c->lp_tokens.n = 0;
    item_close(r, &b, out);
}

static void call_close(gen_run *r, const call *t, buf *out) {
    text_event(r, "response.function_call_arguments.done", NULL, "arguments", not_null(&t->args), out);
    buf_puts(out, ",\"name\":");
    json_write_string(out, buf_view(&t->name));
    event_close(out);
    buf b = {0};
    write_call(&b, state_of(r)->item_id, t->whole ? "completed" : "incomplete", t, not_null(&t->args));
    item_close(r, &b, out);
}

static void text_close(gen_run *r, choice *c, buf *out) {
    if (state_of(r)->open == ITEM_REASONING) reasoning_close(r, c, out);
    if (state_of(r)->open == ITEM_MESSAGE) message_close(r, c, out);
}

static void text_open(gen_run *r, choice *c, item_kind kind, buf *out) {
    responses_state *s = state_of(r);
    if (s->open == kind) return;
    text_close(r, c, out);
    bool reasoning = kind == ITEM_REASONING;
    s->open = kind;
    new_id(s->item_id, reasoning ? "rs_" : "msg_");
    added(r, out);
    if (reasoning)
        write_reasoning(out, s->item_id, "in_progress", (str){0});
    else
        write_message(out, s->item_id, "in_progress", (str){0}, (str){0});
    event_close(out);
    part_event(r, reasoning ? "response.reasoning_summary_part.added" : "response.content_part.added", reasoning,
               STR(""), (str){0}, out);
}

static void delta(gen_run *r, choice *c, str text, bool reasoning, buf *out) {
    if (reasoning) {
        c->logprobs.n = 0; /* they have no place in a summary */
        if (!text.n) return;
        text_open(r, c, ITEM_REASONING, out);
        buf_str(&c->reasoning, text);
        text_event(r, "response.reasoning_summary_text.delta", "summary_index", "delta", text, out);
        event_close(out);
        return;
    }
    if (!text.n) return;
    text_open(r, c, ITEM_MESSAGE, out);
    buf_str(&c->content, text);
    text_event(r, "response.output_text.delta", "content_index", "delta", text, out);
    buf_puts(out, ",\"logprobs\":[");
    buf_str(out, buf_view(&c->logprobs));
    buf_putc(out, ']');
    event_close(out);
    if (c->logprobs.n && c->lp_tokens.n) buf_putc(&c->lp_tokens, ',');
    buf_str(&c->lp_tokens, buf_view(&c->logprobs));
    c->logprobs.n = 0;
}

static void tool(gen_run *r, choice *c, call *t, const gen_event *ev, buf *out) {
    responses_state *s = state_of(r);
    switch (ev->kind) {
    case GEN_CALL:
        text_close(r, c, out);
        s->open = ITEM_CALL;
        new_id(s->item_id, "fc_");
        added(r, out);
        write_call(out, s->item_id, "in_progress", t, STR(""));
        event_close(out);
        break;
    case GEN_ARGS:
        text_event(r, "response.function_call_arguments.delta", NULL, "delta", ev->text, out);
        event_close(out);
        break;
    default: call_close(r, t, out);
    }
    c->logprobs.n = 0;
}

static void token(gen_run *r, choice *c, const gen_event *ev) {
    openai_token_logprob(r, ev, &c->logprobs);
}

static void choice_end(gen_run *r, choice *c, buf *out) {
    if (state_of(r)->open == ITEM_NONE && !state_of(r)->done.n) text_open(r, c, ITEM_MESSAGE, out);
    text_close(r, c, out);
}

/* Codex takes any end but response.completed for a failure. */
static void end(gen_run *r, buf *out) {
    const char *status = final_status(r);
    bool whole = !strcmp(status, "completed") || state_of(r)->codex;
    object_event(r, whole ? "response.completed" : "response.incomplete", status, NULL, out);
}

static void stream_error(gen_run *r, const error *e, buf *out) {
    event_open(r, "error", out);
    buf_puts(out, ",\"code\":\"server_error\",\"message\":");
    json_write_string(out, str_of(e->msg));
    buf_puts(out, ",\"param\":null");
    event_close(out);
    object_event(r, "response.failed", "failed", e, out);
}

static const surface responses_surface = {.begin = begin,
                                          .delta = delta,
                                          .tool = tool,
                                          .token = token,
                                          .choice_end = choice_end,
                                          .end = end,
                                          .error = stream_error,
                                          .reply = reply};

/* ---- POST -------------------------------------------------------------------------------------------------------- */
/* Items get the form they are shown in later: an id, a type, content as parts. */
static json own_item(arena *a, const json *v) {
    if (!json_is(v, JSON_OBJECT)) return *v;
    json_builder b = {.a = a};
    char id[48];
    const json *type = json_get(v, "type"), *content = json_get(v, "content");
    new_id(id, "msg_");
    if (!json_get(v, "id")) json_put(&b, "id", json_of_str(str_of(arena_copy(a, id, strlen(id)))));
    if (!type) json_put(&b, "type", json_of_str(STR("message")));
    for (uint32_t i = 0; i < v->n; i++) {
        const json_member *m = &v->members[i];
        json value = m->value;
        if (&m->value == content && json_is(content, JSON_STRING)) {
            json_builder part = {.a = a};
            json_list parts = {.a = a};
            bool said = str_is(json_str(json_get(v, "role"), (str){0}), "assistant");
            json_put(&part, "type", json_of_str(said ? STR("output_text") : STR("input_text")));
            json_put(&part, "text", *content);
            json_list_add(&parts, json_object(&part));
            value = json_list_built(&parts);
        }
        json_put(&b, arena_copy(a, m->key.p, m->key.n), value);
    }
    return json_object(&b);
}

static bool own_input(arena *a, const json *v, const json **out, error *err) {
    json_list items = {.a = a};
    if (json_is(v, JSON_STRING)) {
        json_builder m = {.a = a};
        json_put(&m, "role", json_of_str(STR("user")));
        json_put(&m, "content", *v);
        json message = json_object(&m);
        json_list_add(&items, own_item(a, &message));
    } else if (json_is(v, JSON_ARRAY)) {
        for (uint32_t i = 0; i < v->n; i++) json_list_add(&items, own_item(a, json_at(v, i)));
    } else if (v && !json_is(v, JSON_NULL)) {
        return body_wrong_type("input", "string or array of items", v, err);
    } else {
        return error_field(err, ERR_INVALID, "input", "input is required");
    }
    json *built = arena_alloc(a, sizeof *built);
    *built = json_list_built(&items);
    *out = built;
    return true;
}

static const json *stored_items(arena *a, str text, error *err) {
    json_limits limits = {.memory_max = text.n * 32 + (1 << 20)};
    const json *v = json_read(a, text, &limits, err);
    if (v && !json_is(v, JSON_ARRAY)) error_set(err, ERR_INTERNAL, "a stored response is damaged");
    return json_is(v, JSON_ARRAY) ? v : NULL;
}

/* The conversation so far, if the request goes on with one. */
static bool conversation(http_req *q, responses_state *s, error *err) {
    str previous = {0}, instructions = {0};
    if (!body_string(s->body, "previous_response_id", &previous, err) ||
        !body_string(s->body, "instructions", &instructions, err))
        return false;
    s->instructions = instructions;
    if (previous.n) {
        stored_response old;
        if (!q->s->responses)
            return error_field(err, ERR_INVALID, "previous_response_id", "responses are not stored by this server");
        if (!response_store_get(q->s->responses, previous, owner_of(q), q->a, &old, err)) {
            if (err->code == ERR_NOT_FOUND) snprintf(err->param, sizeof err->param, "previous_response_id");
            return false;
        }
        const json *in = stored_items(q->a, old.input, err), *out = stored_items(q->a, old.output, err);
        if (!in || !out) return false;
        s->items[s->n_items++] = in;
        s->items[s->n_items++] = out;
        s->previous = previous;
        if (!instructions.p) s->instructions = old.instructions;
    }
    return own_input(q->a, json_get(s->body, "input"), &s->items[s->n_items++], err);
}

static bool is_codex(const http_req *q) {
    static const char *const headers[] = {"originator", "User-Agent"};
    for (size_t i = 0; i < COUNT(headers); i++) {
        const char *v = http_get_header(q, headers[i]);
        if (v && !strncasecmp(v, "codex", 5)) return true;
    }
    return false;
}

static bool read_request(http_req *q, responses_state *s, chat_request *r, error *err) {
    s->body = body_read(q, err);
    s->store = true;
    s->done.a = q->a;
    if (!s->body || !body_bool(s->body, "store", &s->store, err) || !conversation(q, s, err)) return false;
    s->store = s->store && q->s->responses; /* what is told is what is done */
    translation t = {.a = q->a, .core = {.a = q->a}, .messages = {.a = q->a}};
    bool ok = responses_translate(s->body, s->items, s->n_items, s->instructions, &t, err) &&
              chat_request_read_json(q, SURFACE_CHAT, json_built(&t.core), r, err);
    if (ok) unknown_warn(q, t.unknown.p);
    if (!ok) body_error_rename(SURFACE_RESPONSES, err);
    translation_deinit(&t);
    return ok;
}

static bool start(http_req *q, error *err) {
    responses_state *s = arena_alloc(q->a, sizeof *s);
    chat_request *r = arena_alloc(q->a, sizeof *r);
    if (!read_request(q, s, r, err)) return false;
    s->codex = is_codex(q);
    if (!run_start(q, r, &responses_surface, "resp_", err)) {
        body_error_rename(SURFACE_RESPONSES, err);
        return false;
    }
    new_id(q->run->id, "resp_");
    q->run->state = s;
    return true;
}

void route_responses(http_req *q) {
    error e = {0};
    if (!start(q, &e)) reply_error(q, &e);
}

void route_responses_count(http_req *q) {
    error e = {0};
    responses_state s = {0};
    chat_request r;
    prompt p = {0};
    if (read_request(q, &s, &r, &e) && run_prompt(q, &r, &p, &e)) {
        buf b = {0};
        buf_printf(&b, "{\"object\":\"response.input_tokens\",\"input_tokens\":%zu}", p.ids.n);
        reply_json(q, 200, &b);
    } else {
        reply_error(q, &e);
    }
    prompt_free(&p);
}

/* ---- GET, DELETE ------------------------------------------------------------------------------------------------- */
static bool find(http_req *q, str id, stored_response *v, error *err) {
    if (!q->s->responses) return error_set(err, ERR_NOT_FOUND, "responses are not stored by this server");
    return response_store_get(q->s->responses, id, owner_of(q), q->a, v, err);
}

static const char *argument(const http_req *q, const char *name) {
    return MHD_lookup_connection_value(q->mc, MHD_GET_ARGUMENT_KIND, name);
}

static str item_id(const json *items, uint32_t i) {
    return json_str(json_get(json_at(items, i), "id"), STR(""));
}

/* ?limit= 1..100 (20), ?order= desc or asc, ?after= an item's id */
static bool list_items(http_req *q, const json *items, buf *out, error *err) {
    const char *limit_text = argument(q, "limit"), *order = argument(q, "order"), *after = argument(q, "after");
    int64_t limit = 20;
    if (limit_text && (!str_to_i64(str_of(limit_text), &limit) || limit < 1 || limit > 100))
        return error_field(err, ERR_INVALID, "limit", "limit must be between 1 and 100");
    if (order && strcmp(order, "asc") && strcmp(order, "desc"))
        return error_field(err, ERR_INVALID, "order", "order must be asc or desc");
    bool up = order && !strcmp(order, "asc"), skip = after != NULL;
    str first = {0}, last = {0};
    uint32_t shown = 0, left = 0;
    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t k = 0; k < items->n; k++) {
        uint32_t i = up ? k : items->n - 1 - k;
        str id = item_id(items, i);
        if (skip) {
            skip = !str_is(id, after);
            continue;
        }
        if (shown == limit) {
            left++;
            continue;
        }
        if (shown++) buf_putc(out, ',');
        json_write(out, json_at(items, i));
        first = first.p ? first : id;
        last = id;
    }
    buf_puts(out, "]");
    write_string_or_null(out, "first_id", first);
    write_string_or_null(out, "last_id", last);
    buf_printf(out, ",\"has_more\":%s}", left ? "true" : "false");
    return true;
}

static bool get(http_req *q, error *err) {
    static const char items[] = "/input_items";
    stored_response v;
    buf b = {0};
    bool list = str_ends(q->rest, STR(items));
    if (!find(q, str_slice(q->rest, 0, q->rest.n - (list ? sizeof items - 1 : 0)), &v, err)) return false;
    if (list) {
        const json *own = stored_items(q->a, v.own_input, err);
        if (!own || !list_items(q, own, &b, err)) {
            buf_free(&b);
            return false;
        }
    } else {
        buf_str(&b, v.object);
    }
    reply_json(q, 200, &b);
    return true;
}

void route_response_get(http_req *q) {
    error e = {0};
    if (!get(q, &e)) reply_error(q, &e);
}

void route_response_delete(http_req *q) {
    error e = {0};
    bool ok = q->s->responses ? response_store_delete(q->s->responses, q->rest, owner_of(q), &e)
                              : error_set(&e, ERR_NOT_FOUND, "responses are not stored by this server");
    if (!ok) {
        reply_error(q, &e);
        return;
    }
    buf b = {0};
    buf_puts(&b, "{\"id\":");
    json_write_string(&b, q->rest);
    buf_puts(&b, ",\"object\":\"response\",\"deleted\":true}");
    reply_json(q, 200, &b);
}
