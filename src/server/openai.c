/* What the two OpenAI surfaces have in common: the head of an answer, the frames around a stream, words and numbers.
 * Not here: their own shapes (openai_chat.c, openai_completions.c). */
#include "internal.h"

const char *openai_finish(const choice *c) {
    return choice_calls(c) ? "tool_calls" : c->why == FINISH_LENGTH ? "length" : "stop";
}

void openai_logprob(buf *out, float logprob) {
    json_write_real(out, MAX((double)logprob, -9999.0)); /* OpenAI's stand-in for minus infinity */
}

void openai_head(const gen_run *r, const char *object, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id, object,
               (long long)r->created);
    json_write_string(out, str_of(r->model));
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
