/* POST /v1/chat/completions: OpenAI's chat shapes, whole and as a stream (spec/http-api.md §§3.4, 4). */
#include "internal.h"

static const char CHUNK[] = "chat.completion.chunk";

static void chat_token(gen_run *r, choice *c, const gen_event *ev) {
    (r->req->mlx_logprobs ? mlx_token_logprob : openai_token_logprob)(r, ev, &c->logprobs);
}

static void write_logprobs(choice *c, buf *out) {
    if (!c->run->req->logprobs) return;
    if (c->run->req->mlx_logprobs) {
        mlx_logprobs(c, out);
        return;
    }
    buf_puts(out, ",\"logprobs\":{\"content\":[");
    buf_str(out, buf_view(&c->logprobs));
    buf_puts(out, "],\"refusal\":null}");
    c->logprobs.n = 0;
}

/* ---- stream ------------------------------------------------------------------------------------------------------ */
static void frame_open(gen_run *r, const choice *c, buf *out) {
    buf_str(out, buf_view(&r->prefix));
    buf_printf(out, "%d,\"delta\":{", c->index);
}

static void frame_close(buf *out) {
    buf_puts(out, ",\"finish_reason\":null}]}\n\n");
}

static void chat_begin(gen_run *r, buf *out) {
    openai_prefix(r, CHUNK);
    for (int i = 0; i < r->n; i++) {
        frame_open(r, &r->choices[i], out);
        buf_puts(out, "\"role\":\"assistant\",\"content\":\"\"}");
        frame_close(out);
    }
}

static void chat_delta(gen_run *r, choice *c, str text, bool reasoning, buf *out) {
    frame_open(r, c, out);
    buf_puts(out, reasoning ? "\"reasoning\":" : "\"content\":");
    json_write_string(out, text);
    if (reasoning) { /* the name that half of the clients read */
        buf_puts(out, ",\"reasoning_content\":");
        json_write_string(out, text);
    }
    buf_putc(out, '}');
    write_logprobs(c, out);
    frame_close(out);
}

static void chat_tool(gen_run *r, choice *c, call *t, const gen_event *ev, buf *out) {
    if (ev->kind == GEN_CALL_END) return;
    frame_open(r, c, out);
    buf_printf(out, "\"tool_calls\":[{\"index\":%d,", (int)(t - c->calls));
    if (ev->kind == GEN_CALL) {
        buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", t->id);
        json_write_string(out, buf_view(&t->name));
        buf_puts(out, ",\"arguments\":\"\"}}]}");
    } else {
        buf_puts(out, "\"function\":{\"arguments\":");
        json_write_string(out, ev->text);
        buf_puts(out, "}}]}");
    }
    write_logprobs(c, out);
    frame_close(out);
}

static void chat_choice_end(gen_run *r, choice *c, buf *out) {
    if (c->logprobs.n) chat_delta(r, c, STR(""), false, out); /* of tokens whose text never came: a stop string's */
    frame_open(r, c, out);
    buf_printf(out, "},\"finish_reason\":\"%s\"}]", openai_finish(c));
    openai_last_frame(r, out);
}

static void chat_end(gen_run *r, buf *out) {
    openai_stream_end(r, CHUNK, out);
}

/* ---- whole ------------------------------------------------------------------------------------------------------- */
static void write_calls(const choice *c, buf *out) {
    for (int i = 0; i < c->n_calls; i++) {
        const call *t = &c->calls[i];
        buf_printf(out, "%s{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", i ? "," : ",\"tool_calls\":[",
                   t->id);
        json_write_string(out, buf_view(&t->name));
        buf_puts(out, ",\"arguments\":");
        json_write_string(out, buf_view(&t->args));
        buf_puts(out, "}}");
    }
    if (c->n_calls) buf_putc(out, ']');
}

static void chat_reply(gen_run *r, buf *out) {
    openai_head(r, "chat.completion", out);
    buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < r->n; i++) {
        choice *c = &r->choices[i];
        buf_printf(out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
        if (c->content.n || !c->n_calls)
            json_write_string(out, buf_view(&c->content));
        else
            buf_puts(out, "null");
        if (c->reasoning.n) {
            buf_puts(out, ",\"reasoning\":");
            json_write_string(out, buf_view(&c->reasoning));
            buf_puts(out, ",\"reasoning_content\":");
            json_write_string(out, buf_view(&c->reasoning));
        }
        write_calls(c, out);
        buf_putc(out, '}');
        write_logprobs(c, out);
        buf_printf(out, ",\"finish_reason\":\"%s\"}", openai_finish(c));
    }
    buf_puts(out, "],\"usage\":");
    run_usage(r, out);
    buf_putc(out, '}');
}

static const surface chat_surface = {
    .begin = chat_begin,
    .delta = chat_delta,
    .token = chat_token,
    .tool = chat_tool,
    .choice_end = chat_choice_end,
    .end = chat_end,
    .error = openai_stream_error,
    .reply = chat_reply,
};

void route_chat_completions(http_req *q) {
    error e = {0};
    chat_request *r = arena_alloc(q->a, sizeof *r);
    if (!chat_request_read(q, SURFACE_CHAT, r, &e) || !run_start(q, r, &chat_surface, "chatcmpl-", &e))
        reply_error(q, &e);
}
