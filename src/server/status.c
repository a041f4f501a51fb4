/* What the server says about itself: /health, /metrics, /stats. Not here: its models (models.c). */
#include "internal.h"

void route_health(http_req *q) {
    error e = {0};
    static const char ok[] = "{\"status\": \"ok\"}"; /* to the byte: clients compare it */
    if (server_healthy(q->s, &e))
        reply_static(q, "application/json", ok, sizeof ok - 1);
    else
        reply_error(q, &e);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
typedef struct metric {
    const char *name, *type, *help;
    double value;
} metric;

enum { METRICS_MAX = 40 };

static size_t collect(server *s, metric *m) {
    engine *e = atomic_load(&s->e);
    engine_stats st = {0};
    if (e) engine_stats_get(e, &st);
    double kv = st.kv_bytes_max ? (double)st.kv_bytes_used / (double)st.kv_bytes_max : 0;
    const metric all[] = {
        {"hearth_up", "gauge", "1 when the engine serves", server_healthy(s, NULL)},
        {"hearth_requests_running", "gauge", "generations in the engine's steps", st.running},
        {"hearth_requests_waiting", "gauge", "generations in the queue", st.waiting},
        {"hearth_requests_total", "counter", "generations submitted", (double)st.requests_total},
        {"hearth_requests_cancelled_total", "counter", "generations whose client left", (double)st.requests_cancelled},
        {"hearth_requests_failed_total", "counter", "generations that ended in an error", (double)st.requests_failed},
        {"hearth_requests_rejected_total", "counter", "generations refused: queue full or over budget",
         (double)st.requests_rejected},
        {"hearth_preempted_total", "counter", "times a sequence was set back to make room", (double)st.preempted_total},
        {"hearth_prompt_tokens_total", "counter", "prompt tokens", (double)st.prompt_tokens_total},
        {"hearth_cached_tokens_total", "counter", "prompt tokens taken from the cache", (double)st.cached_tokens_total},
        {"hearth_generated_tokens_total", "counter", "tokens generated", (double)st.generated_tokens_total},
        {"hearth_steps_total", "counter", "engine steps", (double)st.steps_total},
        {"hearth_rows_total", "counter", "rows in engine steps", (double)st.rows_total},
        {"hearth_step_seconds_total", "counter", "time in engine steps", (double)st.step_ns_total / 1e9},
        {"hearth_prefill_seconds_total", "counter", "time of prompts in work", (double)st.prefill_ns_total / 1e9},
        {"hearth_decode_seconds_total", "counter", "time of replies in work", (double)st.decode_ns_total / 1e9},
        {"hearth_kv_usage_ratio", "gauge", "share of the key/value memory in use", kv},
        {"hearth_kv_bytes", "gauge", "key/value memory in use", (double)st.kv_bytes_used},
        {"hearth_weight_bytes", "gauge", "memory of the weights", (double)st.weight_bytes},
        {"hearth_http_requests_total", "counter", "HTTP requests answered", (double)atomic_load(&s->n.requests)},
        {"hearth_http_errors_4xx_total", "counter", "HTTP answers 400 to 499", (double)atomic_load(&s->n.errors_4xx)},
        {"hearth_http_errors_5xx_total", "counter", "HTTP answers 500 to 599", (double)atomic_load(&s->n.errors_5xx)},
        {"hearth_http_rejected_total", "counter", "HTTP answers 429", (double)atomic_load(&s->n.rejected)},
        {"hearth_http_hangups_total", "counter", "clients that left before their answer",
         (double)atomic_load(&s->n.hangups)},
        {"hearth_http_streams_total", "counter", "streams opened", (double)atomic_load(&s->n.streams)},
        {"hearth_http_sent_bytes_total", "counter", "bytes of answers", (double)atomic_load(&s->n.bytes_out)},
        {"hearth_http_connections", "gauge", "open connections", atomic_load(&s->n.connections)},
        {"hearth_http_active", "gauge", "requests in progress", atomic_load(&s->n.active)},
    };
    _Static_assert(COUNT(all) <= METRICS_MAX, "METRICS_MAX is too small");
    memcpy(m, all, sizeof all);
    return COUNT(all);
}

void route_metrics(http_req *q) {
    metric m[METRICS_MAX];
    size_t n = collect(q->s, m);
    buf b = {0};
    for (size_t i = 0; i < n; i++)
        buf_printf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", m[i].name, m[i].help, m[i].name, m[i].type, m[i].name,
                   m[i].value);
    engine *e = atomic_load(&q->s->e);
    if (e) {
        buf_puts(&b,
                 "# HELP hearth_info the served model\n# TYPE hearth_info gauge\nhearth_info{version=\"" HEARTH_VERSION
                 "\",model=");
        json_write_string(&b, str_of(engine_model_id(e))); /* Prometheus escapes \ " and newline as JSON does */
        buf_puts(&b, "} 1\n");
    }
    reply_json(q, 200, &b);
    q->content_type = "text/plain; version=0.0.4; charset=utf-8";
}

void route_stats(http_req *q) {
    engine *e = atomic_load(&q->s->e);
    engine_stats st = {0};
    if (e) engine_stats_get(e, &st);
    buf b = {0};
    buf_puts(&b, "{\"server\":{\"owner\":\"serve\",\"version\":\"" HEARTH_VERSION "\",\"model\":");
    if (e)
        json_write_string(&b, str_of(engine_model_id(e)));
    else
        buf_puts(&b, "null");
    buf_printf(&b, ",\"started_at\":%lld,\"connections\":%d,\"active\":%d}", (long long)q->s->started_unix * 1000,
               atomic_load(&q->s->n.connections), atomic_load(&q->s->n.active));
    buf_printf(&b, ",\"admission\":{\"max_safe_context\":%d,\"weights_bytes\":%zu,\"workspace_bytes\":%zu}",
               e ? engine_context(e) : 0, st.weight_bytes, st.workspace_bytes);
    buf_printf(&b, ",\"batch\":{\"mode\":\"batch\",\"active_rows\":%d,\"pending_rows\":%d,\"submitted_rows\":%llu",
               st.running, st.waiting, (unsigned long long)st.requests_total);
    buf_printf(&b, ",\"kv_bytes\":%zu,\"kv_budget_bytes\":%zu}}", st.kv_bytes_used, st.kv_bytes_max);
    reply_json(q, 200, &b);
}
