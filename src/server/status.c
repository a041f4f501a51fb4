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
