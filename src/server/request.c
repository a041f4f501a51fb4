/* One HTTP request: its memory, its reply, sleeping and waking, its line in the access log.
 * Not here: the callbacks of libmicrohttpd (server.c), what handlers do. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include "front.h"

enum { TRIM_BYTES = 4 << 20 };

http_req *http_new(server *s, struct MHD_Connection *mc, conn *cn, const char *method, const char *path) {
    http_req *q = mem_alloc(sizeof *q);
    q->s = s;
    q->mc = mc;
    q->cn = cn;
    q->a = arena_new(0); /* what goes in is bounded by body_max and json_limits */
    q->method = str_of(arena_copy(q->a, method, strlen(method)));
    q->path = str_of(arena_copy(q->a, path, strlen(path)));
    q->t_start = clock_ns();
    q->body_left = -1;
    const char *given = s->o.behind_front ? http_get_header(q, "X-Request-Id") : NULL;
    snprintf(q->id, sizeof q->id, "req_%016llx", (unsigned long long)random_u64());
    if (given) snprintf(q->id, sizeof q->id, "%s", given);
    return q;
}

void http_body_free(http_req *q) {
    buf_free(&q->body);
    atomic_fetch_sub(&q->s->body_bytes, q->body_held);
    q->body_held = 0;
}

bool http_body_hold(http_req *q, size_t n, error *err) {
    const size_t most = q->s->o.bodies_max, held = atomic_fetch_add(&q->s->body_bytes, n);
    q->body_held += n;
    return held + n <= most || error_set(err, ERR_QUEUE_FULL,
                                         "the requests in progress fill the %zu bytes there are for bodies; try again "
                                         "later",
                                         most);
}

void http_free(http_req *q) {
    if (!q) return;
    run_free(q->run);
    exchange_free(q->up);
    bool large = q->bytes_in > TRIM_BYTES || arena_bytes(q->a) > TRIM_BYTES;
    http_body_free(q);
    buf_free(&q->out);
    arena_free(q->a);
    free(q);
    if (large) malloc_trim(0); /* the allocator would keep the blocks of one huge request for ever */
}

const char *http_get_header(const http_req *q, const char *name) {
    return MHD_lookup_connection_value(q->mc, MHD_HEADER_KIND, name);
}

str http_host(const http_req *q) {
    return q->authority.n ? q->authority : str_of(http_get_header(q, "Host"));
}

void http_header_add(http_req *q, const char *name, const char *value) {
    if (q->n_headers == HEADERS_MAX) return;
    q->header[q->n_headers++] = (http_header){name, arena_copy(q->a, value, strlen(value))};
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */
void reply_status(http_req *q, int status) {
    if (!q->status) q->status = status;
}

void reply_json(http_req *q, int status, buf *body) {
    if (q->status) {
        buf_free(body);
        return;
    }
    q->status = status;
    q->content_type = "application/json";
    buf_free(&q->out);
    q->out = *body;
    q->out_at = 0;
    *body = (buf){0};
}

void reply_static(http_req *q, const char *content_type, const void *p, size_t n) {
    if (q->status) return;
    q->status = 200;
    q->content_type = content_type;
    q->static_body = p;
    q->static_n = n;
}

/* OpenAI's `code` for those errors that clients tell apart by it. */
static const char *error_word(error_code c) {
    static const struct {
        error_code code;
        const char *word;
    } words[] = {{ERR_AUTH, "invalid_api_key"},
                 {ERR_MEMORY, "context_over_budget"},
                 {ERR_QUEUE_FULL, "queue_full"},
                 {ERR_UNSUPPORTED, "not_implemented"},
                 {ERR_NOT_FOUND, "not_found"},
                 {ERR_TOO_LARGE, "request_too_large"},
                 {ERR_UNAVAILABLE, "engine_unavailable"},
                 {ERR_ENGINE, "engine_unavailable"}};
    for (size_t i = 0; i < COUNT(words); i++)
        if (words[i].code == c) return words[i].word;
    return NULL;
}

void error_json(buf *out, const error *e) {
    const char *word = error_word(e->code);
    buf_puts(out, "{\"error\":{\"message\":");
    json_write_string(out, str_of(e->msg));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", error_describe(e->code)->openai_type);
    if (e->param[0])
        json_write_string(out, str_of(e->param));
    else
        buf_puts(out, "null");
    if (word)
        buf_printf(out, ",\"code\":\"%s\"}}", word);
    else
        buf_puts(out, ",\"code\":null}}");
}

void anthropic_error_json(buf *out, const error *e, const char *request_id) {
    buf_printf(out,
               "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", error_describe(e->code)->anthropic_type);
    json_write_string(out, str_of(e->msg));
    buf_printf(out, "},\"request_id\":\"%s\"}", request_id);
}

bool http_is_anthropic(const http_req *q) {
    return str_is(q->path, "/v1/messages") || str_starts(q->path, STR("/v1/messages/"));
}

/* Seconds; NULL: trying again would not help. */
static const char *retry_after(error_code c) {
    return c == ERR_QUEUE_FULL ? "1" : c == ERR_UNAVAILABLE || c == ERR_ENGINE ? "2" : NULL;
}

void reply_error(http_req *q, const error *e) {
    buf b = {0};
    if (http_is_anthropic(q))
        anthropic_error_json(&b, e, q->id);
    else
        error_json(&b, e);
    if (retry_after(e->code)) http_header_add(q, "Retry-After", retry_after(e->code));
    q->fail = error_describe(e->code)->name;
    reply_json(q, error_describe(e->code)->http, &b);
}

void reply_raw(int fd, const error *e) {
    buf body = {0}, b = {0};
    error_json(&body, e);
    unsigned status = (unsigned)error_describe(e->code)->http;
    buf_printf(&b, "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %zu\r\n",
               status, MHD_get_reason_phrase_for(status), body.n);
    if (retry_after(e->code)) buf_printf(&b, "Retry-After: %s\r\n", retry_after(e->code));
    buf_puts(&b, "\r\n");
    buf_str(&b, buf_view(&body));
    ssize_t n = send(fd, b.p, b.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; /* a client that has left already */
    buf_free(&b);
    buf_free(&body);
}

/* ---- sleeping and waking ----------------------------------------------------------------------------------------- */
void http_wake(http_req *q) {
    int was = atomic_load(&q->wake);
    for (;;) {
        if (was == WAKE_WORKING || was == WAKE_NOTIFIED)
            return; /* the worker wakes it; or it is going to look anyway */
        if (atomic_compare_exchange_weak(&q->wake, &was, WAKE_NOTIFIED)) break;
    }
    if (was == WAKE_SUSPENDED) MHD_resume_connection(q->mc);
}

/* The order matters: MHD is told first, so that whoever sees WAKE_SUSPENDED may resume. */
bool http_suspend(http_req *q) {
    int was = WAKE_NOTIFIED;
    if (atomic_compare_exchange_strong(&q->wake, &was, WAKE_ACTIVE)) return false;
    MHD_suspend_connection(q->mc);
    was = WAKE_ACTIVE;
    if (!atomic_compare_exchange_strong(&q->wake, &was, WAKE_SUSPENDED)) MHD_resume_connection(q->mc);
    return true;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */
/* Pull side of a stream. MHD asks again when the socket takes more or after a wake. */
static ssize_t stream_read(void *arg, uint64_t pos, char *p, size_t max) {
    http_req *q = arg;
    q->cn->stalled_since = 0;
    for (;;) {
        if (atomic_load(&q->gone)) return MHD_CONTENT_READER_END_WITH_ERROR;
        bool done = run_pump(q->run);
        size_t n = q->out.n - q->out_at;
        if (n) {
            n = MIN(n, max);
            memcpy(p, q->out.p + q->out_at, n);
            q->out_at += n;
            if (q->out_at == q->out.n) q->out.n = q->out_at = 0;
            q->bytes_out += n;
            atomic_store(&q->last_out_ns, clock_ns());
            if (!q->t_first) q->t_first = clock_ns();
            return (ssize_t)n;
        }
        if (done) return MHD_CONTENT_READER_END_OF_STREAM; /* after an error event too: a torn stream would hide it */
        if (http_suspend(q)) return 0;
    }
}

static struct MHD_Response *stream_response(http_req *q) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, stream_read, q, NULL);
    MHD_add_response_header(r, "Content-Type", "text/event-stream");
    MHD_add_response_header(r, "Cache-Control", "no-cache");
    MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* nginx would hold the stream back */
    return r;
}

static struct MHD_Response *whole_response(http_req *q) {
    struct MHD_Response *r;
    if (q->static_body)
        r = MHD_create_response_from_buffer(q->static_n, (void *)(uintptr_t)q->static_body, MHD_RESPMEM_PERSISTENT);
    else
        r = MHD_create_response_from_buffer(q->out.n, q->out.p ? q->out.p : "",
                                            MHD_RESPMEM_PERSISTENT); /* lives as long as q */
    q->bytes_out = q->static_body ? q->static_n : q->out.n;
    if (q->content_type) MHD_add_response_header(r, "Content-Type", q->content_type);
    return r;
}

void http_headers(http_req *q, struct MHD_Response *r) {
    for (int i = 0; i < q->n_headers; i++) MHD_add_response_header(r, q->header[i].name, q->header[i].value);
    MHD_add_response_header(r, "X-Request-Id", q->id);
    if (http_is_anthropic(q)) MHD_add_response_header(r, "request-id", q->id);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (q->origin_ok) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", http_get_header(q, "Origin"));
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Warning, Retry-After");
    }
    MHD_add_response_header(r, "Vary", "Origin");
    if (q->close_after) MHD_add_response_header(r, "Connection", "close");
}

enum MHD_Result http_send(http_req *q) {
    bool stream = q->status == 0;
    if (stream) q->status = 200;
    struct MHD_Response *r = stream ? stream_response(q) : whole_response(q);
    http_headers(q, r);
    q->phase = PHASE_REPLIED;
    enum MHD_Result ok = MHD_queue_response(q->mc, (unsigned)q->status, r);
    MHD_destroy_response(r);
    return ok;
}

/* ---- access log -------------------------------------------------------------------------------------------------- */
static double ms(uint64_t from, uint64_t to) {
    return from && to > from ? (double)(to - from) / 1e6 : 0;
}

const char *finish_name(finish f) {
    static const char *const names[] = {[FINISH_NONE] = "none",           [FINISH_STOP] = "stop",
                                        [FINISH_LENGTH] = "length",       [FINISH_STOP_STRING] = "stop_string",
                                        [FINISH_CANCELLED] = "cancelled", [FINISH_ERROR] = "error"};
    return names[f];
}

static void log_tokens(buf *b, const http_req *q) {
    if (!q->run || !q->run->n) return;
    gen_stats st = run_stats(q->run);
    buf_printf(b, ",\"stream\":%s,\"finish\":\"%s\",\"reasoning_tokens\":%d", q->run->req->stream ? "true" : "false",
               finish_name(q->run->choices[0].why), st.reasoning_tokens);
    buf_printf(b, ",\"prompt_tokens\":%d,\"cached_tokens\":%d,\"completion_tokens\":%d", st.prompt_tokens,
               st.cached_tokens, st.generated_tokens);
    buf_printf(b, ",\"queued_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f", st.queued_ns / 1e6, st.prefill_ns / 1e6,
               st.decode_ns / 1e6);
}

/* Never the query, headers or bodies: they may hold secrets. */
void http_log(http_req *q, enum MHD_RequestTerminationCode how) {
    bool left = how != MHD_REQUEST_TERMINATED_COMPLETED_OK;
    uint64_t now = clock_ns();
    buf b = {0};
    buf_printf(&b, "{\"event\":\"request\",\"time\":%lld,\"id\":\"%s\",\"method\":", (long long)clock_unix(), q->id);
    json_write_string(&b, q->method);
    buf_puts(&b, ",\"path\":");
    json_write_string(&b, q->path);
    buf_printf(&b, ",\"status\":%d,\"client_left\":%s,\"bytes_in\":%zu,\"bytes_out\":%zu", q->status ? q->status : 499,
               left ? "true" : "false", q->bytes_in, q->bytes_out);
    if (q->fail) buf_printf(&b, ",\"error\":\"%s\"", q->fail);
    buf_printf(&b, ",\"receive_ms\":%.3f,\"prepare_ms\":%.3f", ms(q->t_start, q->t_body), ms(q->t_body, q->t_ready));
    if (q->t_first) buf_printf(&b, ",\"first_byte_ms\":%.3f", ms(q->t_start, q->t_first));
    log_tokens(&b, q);
    buf_printf(&b, ",\"total_ms\":%.3f}", ms(q->t_start, now));
    /* The child has logged it; or the parent asks every second. */
    bool dull = q->up ? exchange_relayed(q->up) : q->s->o.behind_front && str_is(q->path, "/health");
    log_line(dull ? LOG_DEBUG : LOG_INFO, buf_view(&b));
    buf_free(&b);
}
