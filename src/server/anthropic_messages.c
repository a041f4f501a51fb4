/* POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes, whole and as a stream (docs/messages.md).
 * Not here: the request (anthropic_request.c), errors in this shape (request.c). */
#include <stdio.h>
#include "translate.h"

typedef enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL } block;
typedef struct anthropic_state { /* of a stream */
    block open;
    int index; /* of the open block, or the next one */
} anthropic_state;

static anthropic_state *state_of(gen_run *r) {
    return r->state;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */
static void event_open(buf *out, const char *type) {
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void event_close(buf *out) {
    buf_puts(out, "}\n\n");
}

static const char *stop_reason(const choice *c) {
    if (choice_calls(c)) return "tool_use";
    switch (c->why) {
    case FINISH_LENGTH: return "max_tokens";
    case FINISH_STOP_STRING: return "stop_sequence";
    default: return "end_turn";
    }
}

static void write_stop(const gen_run *r, const choice *c, buf *out) {
    const char *why = stop_reason(c);
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", why);
    if (!strcmp(why, "stop_sequence") && c->stop_index >= 0 && (size_t)c->stop_index < r->req->n_stops)
        json_write_string(out, r->req->stops[c->stop_index]);
    else
        buf_puts(out, "null");
}

/* Anthropic's accounting: what came out of the cache is not in input_tokens. */
static void write_usage(gen_run *r, buf *out) {
    gen_stats st = run_stats(r);
    buf_printf(
        out,
        "{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d%s}",
        st.prompt_tokens - st.cached_tokens, st.cached_tokens, st.generated_tokens,
        r->clamped ? ",\"max_tokens_clamped\":true" : "");
}

/* Clients of this API expect ids of this form. */
static const char *tool_id(const call *t) {
    return strchr(t->id, '_') + 1;
}

static void write_head(const gen_run *r, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", r->id);
    json_write_string(out, str_of(r->model));
}

/* ---- stream ------------------------------------------------------------------------------------------------------ */
static void begin(gen_run *r, buf *out) {
    event_open(out, "message_start");
    buf_puts(out, ",\"message\":");
    write_head(r, out);
    buf_puts(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(r, out);
    buf_putc(out, '}');
    event_close(out);
}

static void block_close(gen_run *r, buf *out) {
    anthropic_state *s = state_of(r);
    if (s->open == BLOCK_NONE) return;
    if (s->open == BLOCK_THINKING) { /* clients wait for a signature; there is nobody here who would check one */
        event_open(out, "content_block_delta");
        buf_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}", s->index);
        event_close(out);
    }
    event_open(out, "content_block_stop");
    buf_printf(out, ",\"index\":%d", s->index);
    event_close(out);
    s->open = BLOCK_NONE;
    s->index++;
}

static void block_open(gen_run *r, block kind, buf *out) {
    static const char *const empty[] = {[BLOCK_THINKING] =
                                            "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}",
                                        [BLOCK_TEXT] = "{\"type\":\"text\",\"text\":\"\"}"};
    anthropic_state *s = state_of(r);
    if (s->open == kind) return;
    block_close(r, out);
    s->open = kind;
    event_open(out, "content_block_start");
    buf_printf(out, ",\"index\":%d,\"content_block\":%s", s->index, empty[kind]);
    event_close(out);
}

static void block_delta(gen_run *r, const char *type, const char *key, str text, buf *out) {
    event_open(out, "content_block_delta");
    buf_printf(out, ",\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", state_of(r)->index, type, key);
    json_write_string(out, text);
    buf_putc(out, '}');
    event_close(out);
}

static void tool(gen_run *r, choice *c, call *t, const gen_event *ev, buf *out) {
    switch (ev->kind) {
    case GEN_CALL:
        block_close(r, out);
        state_of(r)->open = BLOCK_TOOL;
        event_open(out, "content_block_start");
        buf_printf(out, ",\"index\":%d,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":",
                   state_of(r)->index, tool_id(t));
        json_write_string(out, buf_view(&t->name));
        buf_puts(out, ",\"input\":{}}");
        event_close(out);
        break;
    case GEN_ARGS: block_delta(r, "input_json_delta", "partial_json", ev->text, out); break;
    default: block_close(r, out);
    }
}

static void delta(gen_run *r, choice *c, str text, bool reasoning, buf *out) {
    if (!text.n) return;
    block_open(r, reasoning ? BLOCK_THINKING : BLOCK_TEXT, out);
    block_delta(r, reasoning ? "thinking_delta" : "text_delta", reasoning ? "thinking" : "text", text, out);
}

static void choice_end(gen_run *r, choice *c, buf *out) {
    if (state_of(r)->open == BLOCK_NONE && state_of(r)->index == 0) block_open(r, BLOCK_TEXT, out);
    block_close(r, out);
    event_open(out, "message_delta");
    buf_puts(out, ",\"delta\":{");
    write_stop(r, c, out);
    buf_puts(out, "},\"usage\":");
    write_usage(r, out);
    event_close(out);
}

static void end(gen_run *r, buf *out) {
    event_open(out, "message_stop");
    event_close(out);
}

static void stream_error(gen_run *r, const error *e, buf *out) {
    buf_puts(out, "event: error\ndata: ");
    anthropic_error_json(out, e, r->q->id);
    buf_puts(out, "\n\n");
}

static void ping(gen_run *r, buf *out) {
    event_open(out, "ping");
    event_close(out);
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */
/* Arguments that did not become JSON are shown as they are. */
static void write_tool_use(gen_run *r, const call *t, bool comma, buf *out) {
    buf_printf(out, "%s{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":", comma ? "," : "", tool_id(t));
    json_write_string(out, buf_view(&t->name));
    buf_puts(out, ",\"input\":");
    const json *input = t->args.n ? json_read(r->q->a, buf_view(&t->args), NULL, NULL) : NULL;
    if (json_is(input, JSON_OBJECT)) {
        buf_str(out, buf_view(&t->args));
    } else if (t->args.n) {
        buf_puts(out, "{\"_raw\":");
        json_write_string(out, buf_view(&t->args));
        buf_putc(out, '}');
    } else {
        buf_puts(out, "{}");
    }
    buf_putc(out, '}');
}

static void reply(gen_run *r, buf *out) {
    choice *c = &r->choices[0];
    write_head(r, out);
    buf_puts(out, ",\"content\":[");
    bool any = false;
    if (c->reasoning.n) {
        buf_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        json_write_string(out, buf_view(&c->reasoning));
        buf_puts(out, ",\"signature\":\"\"}");
        any = true;
    }
    if (c->content.n || (!any && !c->n_calls)) {
        buf_printf(out, "%s{\"type\":\"text\",\"text\":", any ? "," : "");
        json_write_string(out, buf_view(&c->content));
        buf_putc(out, '}');
        any = true;
    }
    for (int i = 0; i < c->n_calls; i++, any = true) write_tool_use(r, &c->calls[i], any, out);
    buf_puts(out, "],");
    write_stop(r, c, out);
    buf_puts(out, ",\"usage\":");
    write_usage(r, out);
    buf_putc(out, '}');
}

static const surface messages_surface = {.begin = begin,
                                         .delta = delta,
                                         .tool = tool,
                                         .choice_end = choice_end,
                                         .end = end,
                                         .error = stream_error,
                                         .reply = reply,
                                         .ping = ping};

/* ---- handlers ---------------------------------------------------------------------------------------------------- */
static bool read_request(http_req *q, chat_request *r, error *err) {
    const json *body = body_read(q, err);
    translation t = {.a = q->a, .core = {.a = q->a}, .messages = {.a = q->a}};
    bool ok = body && anthropic_translate(body, &t, err);
    if (ok) ok = chat_request_read_json(q, SURFACE_CHAT, json_built(&t.core), r, err);
    if (ok) unknown_warn(q, t.unknown.p);
    if (!ok) body_error_rename(SURFACE_MESSAGES, err);
    translation_deinit(&t);
    return ok;
}

static bool start(http_req *q, error *err) {
    chat_request *r = arena_alloc(q->a, sizeof *r);
    if (!read_request(q, r, err) || !run_start(q, r, &messages_surface, "msg_", err)) {
        body_error_rename(SURFACE_MESSAGES, err);
        return false;
    }
    q->run->state = arena_alloc(q->a, sizeof(anthropic_state));
    return true;
}

void route_messages(http_req *q) {
    error e = {0};
    if (!start(q, &e)) reply_error(q, &e);
}

static bool count(http_req *q, error *err) {
    chat_request r;
    prompt p = {0};
    bool ok = read_request(q, &r, err) && run_prompt(q, &r, &p, err);
    if (ok) {
        buf b = {0};
        buf_printf(&b, "{\"input_tokens\":%zu}", p.ids.n);
        reply_json(q, 200, &b);
    }
    prompt_free(&p);
    return ok;
}

void route_count_tokens(http_req *q) {
    error e = {0};
    if (!count(q, &e)) reply_error(q, &e);
}
