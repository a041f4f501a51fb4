/* The fit report as JSON, for GET /fit and `hearth fit --json`. Not here: the numbers (engine/fit.c, engine/speed.c).
 */
#include <stdlib.h>
#include "../base/limit.h"
#include "internal.h"

enum { TYPICAL_CONTEXT = 8192 };

static void write_machine(buf *b, double bandwidth, int threads, int64_t measured_unix) {
    char name[160];
    fit_processor(name, sizeof name);
    buf_puts(b, "\"machine\":{\"chip\":");
    json_write_string(b, str_of(name));
    buf_printf(b, ",\"ram_bytes\":%zu,\"usable_ram_bytes\":%zu,\"threads\":%d", limit_ram(), limit_memory(), threads);
    if (bandwidth > 0)
        buf_printf(b, ",\"bandwidth_gbs\":%.2f,\"bandwidth_measured_at\":%lld},", bandwidth, (long long)measured_unix);
    else
        buf_puts(b, ",\"bandwidth_gbs\":null,\"bandwidth_measured_at\":null},");
}

static void write_report(buf *b, const fit_report *r, double bandwidth) {
    const memory_plan *p = &r->plan;
    buf_printf(b, "\"report\":{\"fits\":%s,\"context\":%d,\"weights_bytes\":%zu,\"kv_bytes\":%zu,\"state_bytes\":%zu",
               r->fits ? "true" : "false", p->context, p->part[PLAN_WEIGHTS], p->part[PLAN_KV], p->part[PLAN_STATE]);
    buf_printf(b, ",\"transient_bytes\":%zu,\"total_bytes\":%zu,\"usable_bytes\":%zu,\"planned_bytes\":%zu",
               p->part[PLAN_WORKSPACE] + p->part[PLAN_LOGITS], p->need_bytes, p->budget_bytes, p->total_bytes);
    buf_printf(b, ",\"max_safe_context\":%d,\"predicted_decode_tps\":", r->context_safe);
    json_write_real(b, bandwidth > 0 ? fit_decode_tps(r, p->context, bandwidth) : NAN);
    buf_printf(b, ",\"batch\":%d,\"kv_bytes_per_token\":%zu,\"file_bytes\":%zu,\"parts\":[", p->batch,
               r->kv_bytes_per_token, r->file_bytes);
    for (int i = 0; i < PLAN_PARTS; i++) {
        const plan_part_info *k = plan_part_describe((plan_part)i);
        buf_printf(b, "%s{\"part\":\"%s\",\"bytes\":%zu,\"what\":\"%s\"}", i ? "," : "", k->key, p->part[i], k->what);
    }
    buf_puts(b, "],\"why\":");
    if (r->fits)
        buf_puts(b, "null");
    else
        json_write_string(b, str_of(r->why.msg));
    buf_puts(b, "},");
}

static void write_skus(buf *b, const fit_report *r) {
    buf_printf(b, "\"sku_matrix_ctx\":%d,\"sku_matrix\":[", r->sku_context);
    for (int i = 0; i < r->n_skus; i++) {
        const fit_sku *k = &r->sku[i];
        buf_printf(b, "%s{\"sku\":", i ? "," : "");
        json_write_string(b, str_of(k->name));
        buf_printf(b, ",\"ram_gb\":%g,\"device_gb\":%g,\"bandwidth_gbs\":%g,\"fits\":%s,\"max_context\":%d", k->ram_gb,
                   k->device_gb, k->bandwidth_gbs, k->fits ? "true" : "false", k->context_safe);
        buf_printf(b, ",\"host_bytes\":%zu,\"device_bytes\":%zu,\"decode_tps\":", k->host_bytes, k->device_bytes);
        json_write_real(b, k->fits ? k->decode_tps : NAN);
        buf_puts(b, "}");
    }
    buf_puts(b, "]}");
}

void fit_write(buf *b, const fit_report *r, double bandwidth, int64_t measured_unix, const engine_stats *st) {
    int32_t typical = MIN(TYPICAL_CONTEXT, r->plan.context);
    buf_puts(b, "{\"model\":");
    json_write_string(b, str_of(r->name));
    buf_puts(b, ",");
    write_machine(b, bandwidth, r->threads, measured_unix);
    buf_printf(b, "\"context_tokens\":%d,\"typical_context_tokens\":%d,\"typical_decode_tps\":", r->plan.context,
               typical);
    json_write_real(b, bandwidth > 0 ? fit_decode_tps(r, typical, bandwidth) : NAN);
    bool measured = st && st->decode_ns_total > 0 && st->generated_tokens_total > 0;
    buf_puts(b, ",\"measured_decode_tps\":");
    json_write_real(b, measured ? (double)st->generated_tokens_total * 1e9 / (double)st->decode_ns_total : NAN);
    if (measured)
        buf_printf(b, ",\"measured_at\":%lld,", (long long)clock_unix());
    else
        buf_puts(b, ",\"measured_at\":null,");
    write_report(b, r, bandwidth);
    write_skus(b, r);
}

/* On a worker: the first report of a machine measures its bandwidth, within what the plan has for requests. */
void route_fit(http_req *q) {
    engine *e = atomic_load(&q->s->e);
    fit_report *r = mem_alloc(sizeof *r);
    engine_stats st;
    int64_t when = 0;
    engine_fit_running(e, r);
    engine_stats_get(e, &st);
    double bandwidth = fit_bandwidth(r->threads, r->plan.part[PLAN_REQUESTS], &when);
    buf b = {0};
    fit_write(&b, r, bandwidth, when, &st);
    reply_json(q, 200, &b);
    free(r);
}
