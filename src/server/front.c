/* What the parent of --isolate answers itself: /engine, and /metrics and /v1/models, which it puts together from its
 * children's. Also the errors of streams whose child has died. Not here: passing requests on (exchange.c). */
#include <stdio.h>
#include "front.h"

enum { FETCH_MS = 3000 };

void route_engine(http_req *q) {
    buf b = {0};
    if (q->s->front)
        children_describe(front_children(q->s->front), &b);
    else
        buf_puts(&b, "{\"isolated\":false}");
    reply_json(q, 200, &b);
}

/* ---- errors in streams ------------------------------------------------------------------------------------------- */
static void event_openai(const http_req *q, const error *e, buf *out) {
    buf_puts(out, "data: ");
    error_json(out, e);
    buf_puts(out, "\n\n");
}

static void event_anthropic(const http_req *q, const error *e, buf *out) {
    buf_puts(out, "event: error\ndata: ");
    anthropic_error_json(out, e, q->id);
    buf_puts(out, "\n\n");
}

static void event_responses(const http_req *q, const error *e, buf *out) {
    buf_printf(out, "event: error\ndata: {\"type\":\"error\",\"code\":\"%s\",\"message\":",
               error_describe(e->code)->openai_type);
    json_write_string(out, str_of(e->msg));
    buf_puts(out, ",\"param\":null}\n\n");
}

void front_error_event(http_req *q, const error *e, buf *out) {
    static const struct {
        const char *path;
        void (*write)(const http_req *q, const error *e, buf *out);
    } routes[] = {{"/v1/messages", event_anthropic}, {"/v1/responses", event_responses}};
    for (size_t i = 0; i < COUNT(routes); i++)
        if (str_is(q->path, routes[i].path)) {
            routes[i].write(q, e, out);
            return;
        }
    event_openai(q, e, out);
}

/* ---- asking children --------------------------------------------------------------------------------------------- */
/* GET at model i's child with the client's own key. False: it does not serve, or refuses. */
static bool ask(http_req *q, size_t i, const char *path, buf *body) {
    struct sockaddr_un a;
    error ignored = {0};
    int status = 0;
    if (!children_socket(front_children(q->s->front), i, a.sun_path)) return false;
    const char *auth = http_get_header(q, "Authorization"), *key = http_get_header(q, "x-api-key");
    const char *request =
        arena_printf(q->a, "GET %s HTTP/1.0\r\n%s%s%s%s%s%s\r\n", path, auth ? "Authorization: " : "", auth ? auth : "",
                     auth ? "\r\n" : "", key ? "x-api-key: " : "", key ? key : "", key ? "\r\n" : "");
    return upstream_fetch(a.sun_path, request, FETCH_MS, &status, body, &ignored) && status == 200;
}

/* One metric of an exposition: "# HELP name ..." up to the next. */
static str block_next(str text, size_t *at, str *name) {
    str rest = str_slice(text, *at, text.n);
    size_t end = str_find(str_slice(rest, 1, rest.n), STR("\n# HELP "));
    str block = str_slice(rest, 0, end == SIZE_MAX ? rest.n : end + 2);
    *at += block.n;
    str tail = str_slice(block, 7, block.n);
    *name = str_slice(tail, 0, str_find(tail, STR(" ")));
    return block;
}

/* The samples of a block with model="id" added. */
static void samples_with_model(str samples, const char *id, buf *out) {
    for (size_t at = 0; at < samples.n;) {
        str rest = str_slice(samples, at, samples.n);
        size_t n = MIN(str_find(rest, STR("\n")), rest.n);
        str line = str_slice(rest, 0, n);
        size_t brace = str_find(line, STR("{")), name = MIN(brace, str_find(line, STR(" ")));
        at += n + 1;
        if (name > line.n) continue;
        buf_str(out, str_slice(line, 0, name));
        if (!str_has(line, STR("model=\""))) {
            buf_puts(out, "{model=");
            json_write_string(out, str_of(id));
            buf_puts(out, brace < line.n ? "," : "}");
            name += brace < line.n;
        }
        buf_str(out, str_slice(line, name, line.n));
        buf_putc(out, '\n');
    }
}

/* Where the samples begin behind the lines HELP and TYPE. */
static size_t samples_at(str block) {
    size_t help = str_find(block, STR("\n")) + 1, type = str_find(str_slice(block, help, block.n), STR("\n")) + 1;
    return MIN(help + type, block.n);
}

/* The same metric of all children stands in one group, as the format wants it. All children are this program, so theirs
 * come in one order. What clients see is the parent's to count: metrics.c writes that. */
static void merge(children *p, const buf *text, buf *out) {
    size_t n = children_models(p), at[n];
    memset(at, 0, sizeof at);
    for (bool any = true; any;) {
        any = false;
        bool head = false;
        for (size_t i = 0; i < n; i++) {
            if (at[i] >= text[i].n) continue;
            str name, block = block_next(buf_view(&text[i]), &at[i], &name);
            any = true;
            if (str_starts(name, STR("hearth_http_")) || str_is(name, "hearth_up")) continue;
            size_t samples = samples_at(block);
            if (!head) buf_str(out, str_slice(block, 0, samples));
            head = true;
            if (n == 1)
                buf_str(out, str_slice(block, samples, block.n));
            else
                samples_with_model(str_slice(block, samples, block.n), children_model_id(p, i), out);
        }
    }
}

static void answer_metrics(http_req *q) {
    children *p = front_children(q->s->front);
    size_t n = children_models(p);
    buf b = {0}, *text = arena_array(q->a, buf, n);
    metrics_write(q->s, NULL, &b);
    children_metrics(p, &b);
    for (size_t i = 0; i < n; i++)
        if (!ask(q, i, "/metrics", &text[i])) text[i].n = 0;
    merge(p, text, &b);
    for (size_t i = 0; i < n; i++) buf_free(&text[i]);
    reply_json(q, 200, &b);
    q->content_type = METRICS_TYPE;
}

/* ---- models of a pool -------------------------------------------------------------------------------------------- */
/* What a child says about itself; little for one that is not loaded. */
static void write_model(http_req *q, size_t i, buf *out) {
    children *p = front_children(q->s->front);
    buf body = {0};
    error ignored = {0};
    if (ask(q, i, "/v1/models", &body)) {
        const json *own = json_at(json_get(json_read(q->a, buf_view(&body), NULL, &ignored), "data"), 0);
        if (own) json_write(out, own);
        buf_free(&body);
        if (own) return;
    }
    buf_free(&body);
    buf_puts(out, "{\"id\":");
    json_write_string(out, str_of(children_model_id(p, i)));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"hearth\"}", (long long)q->s->started_unix);
}

/* GET /v1/models lists every id that requests may name. */
static void answer_models(http_req *q) {
    buf b = {0};
    buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < children_models(front_children(q->s->front)); i++) {
        if (i) buf_putc(&b, ',');
        write_model(q, i, &b);
    }
    buf_puts(&b, "]}");
    reply_json(q, 200, &b);
}

/* One of them: the object with the list beside it, as route_model writes it. */
static void answer_model(http_req *q) {
    children *p = front_children(q->s->front);
    buf b = {0}, one = {0};
    for (size_t i = 0; i < children_models(p) && !one.n; i++)
        if (str_is(q->rest, children_model_id(p, i))) write_model(q, i, &one);
    if (one.n) {
        buf_add(&b, one.p, one.n - 1);
        buf_printf(&b, ",\"data\":[%s]}", one.p);
    } else {
        buf_puts(&b, "{\"object\":\"list\",\"data\":[]}");
    }
    buf_free(&one);
    reply_json(q, 200, &b);
}

bool front_answers(http_req *q) {
    bool many = children_models(front_children(q->s->front)) > 1;
    const struct {
        void (*handler)(http_req *q), (*answer)(http_req *q);
        bool here;
    } routes[] = {
        {route_metrics, answer_metrics, true}, {route_models, answer_models, many}, {route_model, answer_model, many}};
    for (size_t i = 0; q->route && i < COUNT(routes); i++) {
        if (q->route->handler != routes[i].handler || !routes[i].here) continue;
        routes[i].answer(q);
        return true;
    }
    return false;
}
