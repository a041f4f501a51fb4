/* What the server says about itself: /health, /stats. Not here: /metrics (metrics.c), its models (models.c). */
#include <stdio.h>
#include "internal.h"
#include "response_store.h"

void route_health(http_req *q) {
    error e = {0};
    static const char ok[] = "{\"status\": \"ok\"}"; /* to the byte: clients compare it */
    if (server_healthy(q->s, &e))
        reply_static(q, "application/json", ok, sizeof ok - 1);
    else
        reply_error(q, &e);
}

/* ---- numbers: one block of /stats each --------------------------------------------------------------------------- */
typedef struct stats_of {
    server *s;
    engine *e; /* NULL: not loaded */
    engine_stats st;
} stats_of;

static void stats_server(const stats_of *w, buf *b) {
    buf_puts(b, "\"owner\":\"serve\",\"version\":\"" HEARTH_VERSION "\",\"model\":");
    if (w->e)
        json_write_string(b, str_of(engine_model_id(w->e)));
    else
        buf_puts(b, "null");
    buf_printf(b, ",\"started_at\":%lld,\"connections\":%d,\"active\":%d,\"body_bytes\":%zu,\"body_bytes_max\":%zu",
               (long long)w->s->started_unix * 1000, atomic_load(&w->s->n.connections), atomic_load(&w->s->n.active),
               atomic_load(&w->s->body_bytes), w->s->o.bodies_max);
}

static void stats_admission(const stats_of *w, buf *b) {
    buf_printf(b, "\"max_safe_context\":%d,\"weights_bytes\":%zu,\"workspace_bytes\":%zu",
               w->e ? engine_context(w->e) : 0, w->st.weight_bytes, w->st.workspace_bytes);
    buf_printf(b, ",\"rejected\":%llu", (unsigned long long)w->st.requests_rejected);
}

static void stats_batch(const stats_of *w, buf *b) {
    const engine_stats *st = &w->st;
    buf_printf(b, "\"mode\":\"batch\",\"active_rows\":%d,\"pending_rows\":%d,\"submitted_rows\":%llu", st->running,
               st->waiting, (unsigned long long)st->requests_total);
    buf_printf(b, ",\"kv_bytes\":%zu,\"kv_budget_bytes\":%zu,\"cancelled\":%llu,\"failed\":%llu,\"preempted\":%llu",
               st->kv_bytes_used, st->kv_bytes_max, (unsigned long long)st->requests_cancelled,
               (unsigned long long)st->requests_failed, (unsigned long long)st->preempted_total);
}

static void stats_prompt_cache(const stats_of *w, buf *b) {
    const prefix_stats *p = &w->st.prefix;
    buf_printf(b, "\"entries\":%d,\"checkpoints\":%d,\"bytes\":%zu,\"max_bytes\":%zu,\"hits\":%llu,\"misses\":%llu",
               p->blocks, p->checkpoints, p->bytes, p->bytes_max, (unsigned long long)p->hits,
               (unsigned long long)p->misses);
    buf_printf(b, ",\"hit_tokens\":%llu,\"evicted_blocks\":%llu,\"evicted_checkpoints\":%llu,\"short_by\":{",
               (unsigned long long)p->hit_tokens, (unsigned long long)p->evicted_blocks,
               (unsigned long long)p->evicted_checkpoints);
    for (size_t i = 0; i < COUNT(p->short_by); i++)
        buf_printf(b, "%s\"%s\":%llu", i ? "," : "", prefix_why_name(i), (unsigned long long)p->short_by[i]);
    buf_putc(b, '}');
}

static void stats_ssd_cache(const stats_of *w, buf *b) {
    const ssd_stats *d = &w->st.ssd;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"entries", d->entries},
                  {"bytes", d->bytes},
                  {"bytes_all", d->bytes_all},
                  {"max_bytes", d->bytes_max},
                  {"restores", d->restores},
                  {"restores_cut", d->restores_cut},
                  {"restored_bytes", d->restored_bytes},
                  {"spills", d->spills},
                  {"demotions", d->demotions},
                  {"written_bytes", d->written_bytes},
                  {"pending_spills", d->pending_spills},
                  {"pending_spill_bytes", d->pending_spill_bytes},
                  {"dropped_spills", d->dropped_spills},
                  {"failed_spills", d->failed_spills},
                  {"evicted", d->evicted},
                  {"damaged", d->damaged},
                  {"verify_left", d->verify_left}};
    buf_printf(b, "\"restore_ms_last\":%.3f", (double)d->restore_ns_last / 1e6);
    for (size_t i = 0; i < COUNT(counts); i++)
        buf_printf(b, ",\"%s\":%llu", counts[i].name, (unsigned long long)counts[i].value);
}

static void stats_kv_quant(const stats_of *w, buf *b) {
    static const kv_summary none;
    const kv_summary *kv = w->e ? &engine_model(w->e)->kv : &none;
    buf_printf(b, "\"mode\":\"%s\",\"layers\":{", kv->mode);
    bool first = true;
    for (int bits = 0; bits < (int)COUNT(kv->n_by_bits); bits++) {
        if (!kv->n_by_bits[bits]) continue;
        char name[16];
        snprintf(name, sizeof name, "kv%d", bits);
        buf_printf(b, "%s\"%s\":%d", first ? "" : ",", bits ? name : "f16", kv->n_by_bits[bits]);
        first = false;
    }
    buf_printf(b, "},\"attention\":{\"global\":%d,\"sliding_window\":%d}", kv->n_full, kv->n_windowed);
}

static void stats_response_store(const stats_of *w, buf *b) {
    response_store_stats st = response_store_count(w->s->responses);
    buf_printf(b, "\"entries\":%lld,\"bytes\":%lld,\"max_bytes\":%lld,\"ttl_ms\":%lld", (long long)st.entries,
               (long long)st.bytes, (long long)st.bytes_max, (long long)st.ttl_s * 1000);
}

/* A new block is a function and a line here; docs/metrics.md says what is in it. */
void route_stats(http_req *q) {
    static const struct {
        const char *name;
        void (*write)(const stats_of *w, buf *b);
        bool ssd; /* shown only with an SSD cache */
    } blocks[] = {{"server", stats_server, false},     {"admission", stats_admission, false},
                  {"batch", stats_batch, false},       {"prompt_cache", stats_prompt_cache, false},
                  {"kv_quant", stats_kv_quant, false}, {"response_store", stats_response_store, false},
                  {"ssd_cache", stats_ssd_cache, true}};
    stats_of w = {.s = q->s, .e = atomic_load(&q->s->e)};
    if (w.e) engine_stats_get(w.e, &w.st);
    buf b = {0};
    buf_putc(&b, '{');
    for (size_t i = 0; i < COUNT(blocks); i++) {
        if (blocks[i].ssd && !w.st.ssd.on) continue;
        buf_printf(&b, "%s\"%s\":{", i ? "," : "", blocks[i].name);
        blocks[i].write(&w, &b);
        buf_putc(&b, '}');
    }
    buf_putc(&b, '}');
    reply_json(q, 200, &b);
}
