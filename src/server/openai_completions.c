/* POST /v1/completions: raw text in, raw text out (spec/http-api.md §5), with the old API's shape of log-probabilities.
 */
#include "internal.h"

static const char OBJECT[] = "text_completion"; /* whole and in a stream */

static void write_name(buf *out, const tokenizer *t, int32_t id) {
    buf b = {0};
    tokenizer_bytes(t, id, &b);
    json_write_string(out, buf_view(&b));
    buf_free(&b);
}

static void add_comma(buf *b) {
    if (b->n) buf_putc(b, ',');
}

static void raw_token(gen_run *r, choice *c, const gen_event *ev) {
    if (r->req->mlx_logprobs) {
        mlx_token_logprob(r, ev, &c->logprobs);
        return;
    }
    buf *lists[] = {&c->lp_tokens, &c->lp_values, &c->lp_tops, &c->lp_offsets};
    for (size_t i = 0; i < COUNT(lists); i++) add_comma(lists[i]);
    write_name(&c->lp_tokens, r->tok, ev->token);
    openai_logprob(&c->lp_values, ev->logprob);
    buf_putc(&c->lp_tops, '{');
    for (int i = 0; i < ev->n_top; i++) {
        if (i) buf_putc(&c->lp_tops, ',');
        write_name(&c->lp_tops, r->tok, ev->top[i].id);
        buf_putc(&c->lp_tops, ':');
        openai_logprob(&c->lp_tops, ev->top[i].logprob);
    }
    buf_putc(&c->lp_tops, '}');
    buf_printf(&c->lp_offsets, "%zu", c->text_n);
    buf b = {0};
    tokenizer_bytes(r->tok, ev->token, &b);
    for (size_t i = 0; i < b.n; i++) c->text_n += !utf8_inside(b.p[i]); /* characters, not bytes */
    buf_free(&b);
}

static void write_logprobs(choice *c, buf *out) {
    if (c->run->req->mlx_logprobs) {
        mlx_logprobs(c, out);
        return;
    }
    if (!c->run->req->logprobs) {
        buf_puts(out, ",\"logprobs\":null");
        return;
    }
    static const char *const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    buf *lists[] = {&c->lp_tokens, &c->lp_values, &c->lp_tops, &c->lp_offsets};
    buf_puts(out, ",\"logprobs\":{");
    for (size_t i = 0; i < COUNT(lists); i++) {
        buf_printf(out, "%s\"%s\":[", i ? "," : "", names[i]);
        buf_str(out, buf_view(lists[i]));
        buf_putc(out, ']');
        lists[i]->n = 0;
    }
    buf_putc(out, '}');
}

static void raw_begin(gen_run *r, buf *out) {
    openai_prefix(r, OBJECT);
}

static void frame(gen_run *r, choice *c, str text, const char *why, buf *out) {
    buf_str(out, buf_view(&r->prefix));
    buf_printf(out, "%d,\"text\":", c->index);
    json_write_string(out, text);
    write_logprobs(c, out);
    if (why)
        buf_printf(out, ",\"finish_reason\":\"%s\"}]", why);
    else
        buf_puts(out, ",\"finish_reason\":null}]");
}

static void raw_delta(gen_run *r, choice *c, str text, bool reasoning, buf *out) {
    frame(r, c, text, NULL, out);
    buf_puts(out, "}\n\n");
}

static void raw_choice_end(gen_run *r, choice *c, buf *out) {
    frame(r, c, STR(""), openai_finish(c), out);
    openai_last_frame(r, out);
}

static void raw_end(gen_run *r, buf *out) {
    openai_stream_end(r, OBJECT, out);
}

static void raw_reply(gen_run *r, buf *out) {
    openai_head(r, OBJECT, out);
    buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < r->n; i++) {
        choice *c = &r->choices[i];
        buf_printf(out, "%s{\"index\":%d,\"text\":", i ? "," : "", i);
        json_write_string(out, buf_view(&c->content));
        write_logprobs(c, out);
        buf_printf(out, ",\"finish_reason\":\"%s\"}", openai_finish(c));
    }
    buf_puts(out, "],\"usage\":");
    run_usage(r, out);
    buf_putc(out, '}');
}

static const surface raw_surface = {
    .begin = raw_begin,
    .delta = raw_delta,
    .token = raw_token,
    .choice_end = raw_choice_end,
    .end = raw_end,
    .error = openai_stream_error,
    .reply = raw_reply,
};

void route_completions(http_req *q) {
    error e = {0};
    chat_request *r = arena_alloc(q->a, sizeof *r);
    if (!chat_request_read(q, SURFACE_COMPLETIONS, r, &e) || !run_start(q, r, &raw_surface, "cmpl-", &e))
        reply_error(q, &e);
}
