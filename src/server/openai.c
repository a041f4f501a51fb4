/* What the two OpenAI surfaces have in common: the head of an answer, the frames around a stream, words and numbers.
 * Not here: their own shapes (openai_chat.c, openai_completions.c). */
#include "internal.h"

const char *openai_finish(const choice *c) {
    return choice_calls(c) ? "tool_calls" : c->why == FINISH_LENGTH ? "length" : "stop";
}

void openai_logprob(buf *out, float logprob) {
    json_write_real(out, MAX((double)logprob, -9999.0)); /* OpenAI's stand-in for minus infinity */
}

/* A token as text and as the bytes it stands for; half a character shows as U+FFFD in the text and exactly in the
 * bytes. */
static void write_token(buf *out, const tokenizer *t, int32_t id, float logprob) {
    buf b = {0};
    tokenizer_bytes(t, id, &b);
    buf_puts(out, "{\"token\":");
    json_write_string(out, buf_view(&b));
    buf_puts(out, ",\"logprob\":");
    openai_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < b.n; i++) buf_printf(out, "%s%u", i ? "," : "", (unsigned char)b.p[i]);
    buf_putc(out, ']');
    buf_free(&b);
}

void openai_token_logprob(const gen_run *r, const gen_event *ev, buf *out) {
    if (out->n) buf_putc(out, ',');
    write_token(out, r->tok, ev->token, ev->logprob);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        if (i) buf_putc(out, ',');
        write_token(out, r->tok, ev->top[i].id, ev->top[i].logprob);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

/* ---- mlx-lm's shape (spec/http-api.md §3.6): ids, and tokens as the vocabulary spells them ----------------------- */
static void write_mlx_triple(buf *out, const tokenizer *t, token_prob p) {
    buf_printf(out, "{\"id\":%d,\"token\":", p.id);
    json_write_string(out, tokenizer_token(t, p.id));
    buf_puts(out, ",\"logprob\":");
    openai_logprob(out, p.logprob);
}

/* With alternatives the outer triple is the likeliest token, not the one that was taken. */
void mlx_token_logprob(const gen_run *r, const gen_event *ev, buf *out) {
    if (out->n) buf_putc(out, ',');
    if (!ev->n_top) {
        buf_printf(out, "{\"id\":%d,\"logprob\":", ev->token);
        openai_logprob(out, ev->logprob);
        buf_putc(out, '}');
        return;
    }
    write_mlx_triple(out, r->tok, ev->top[0]);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        if (i) buf_putc(out, ',');
        write_mlx_triple(out, r->tok, ev->top[i]);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

void mlx_logprobs(choice *c, buf *out) {
    if (!c->logprobs.n) return;
    buf_puts(out, ",\"logprobs\":{\"content\":[");
    buf_str(out, buf_view(&c->logprobs));
    buf_puts(out, "]}");
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */
void openai_head(const gen_run *r, const char *object, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id, object,
               (long long)r->created);
    json_write_string(out, str_of(r->model));
    buf_puts(out, ",\"system_fingerprint\":");
    json_write_string(out, str_of(engine_fingerprint(atomic_load(&r->q->s->e))));
}

void openai_prefix(gen_run *r, const char *object) {
    buf_puts(&r->prefix, "data: ");
    openai_head(r, object, &r->prefix);
    if (r->req->include_usage) buf_puts(&r->prefix, ",\"usage\":null");
    buf_puts(&r->prefix, ",\"choices\":[{\"index\":");
}

void openai_last_frame(gen_run *r, buf *out) {
    if (r->n_done == r->n && !r->req->include_usage) {
        buf_puts(out, ",\"usage\":");
        run_usage(r, out);
    }
    buf_puts(out, "}\n\n");
}

void openai_stream_end(gen_run *r, const char *object, buf *out) {
    if (r->req->include_usage) {
        buf_puts(out, "data: ");
        openai_head(r, object, out);
        buf_puts(out, ",\"choices\":[],\"usage\":");
        run_usage(r, out);
        buf_puts(out, "}\n\n");
    }
    buf_puts(out, "data: [DONE]\n\n");
}

void openai_stream_error(gen_run *r, const error *e, buf *out) {
    buf_puts(out, "data: ");
    error_json(out, e);
    buf_puts(out, "\n\n");
}
