/* /metrics: counters, gauges and histograms in Prometheus' text format, all from metrics.def. Not here: /stats
 * (status.c), putting together what several children say (front.c). */
#include <math.h>
#include "internal.h"

/* Upper bounds in seconds; one more bucket for what is longer. */
static const double bounds[METRIC_BUCKETS - 1] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                  0.5,   1,      2.5,   5,    10,    30,   60,  300};

static double seconds_since(uint64_t ns) {
    uint64_t now = clock_ns();
    return ns && now > ns ? (double)(now - ns) / 1e9 : 0;
}

/* ---- collecting -------------------------------------------------------------------------------------------------- */
static void observe(histogram *h, double seconds) {
    size_t i = 0;
    while (i < COUNT(bounds) && seconds > bounds[i]) i++;
    atomic_fetch_add(&h->n[i], 1);
    atomic_fetch_add(&h->sum_us, (unsigned long long)(MAX(seconds, 0) * 1e6));
}

void metrics_observe(http_req *q) {
    server_times *t = &q->s->times;
    const gen_run *r = q->run;
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        gen_stats st;
        if (!r->choices[i].g) continue; /* it was not admitted */
        gen_stats_get(r->choices[i].g, &st);
        observe(&t->queue, (double)st.queued_ns / 1e9);
        if (!st.prefill_ns && !st.generated_tokens) continue; /* it never ran */
        observe(&t->prefill, (double)st.prefill_ns / 1e9);
        uint64_t before = q->t_ready > q->t_start ? q->t_ready - q->t_start : 0;
        if (st.generated_tokens) observe(&t->first_token, (double)(before + st.queued_ns + st.prefill_ns) / 1e9);
        if (st.generated_tokens > 1) observe(&t->token, (double)st.decode_ns / 1e9 / (st.generated_tokens - 1));
    }
    observe(&t->request, (double)(clock_ns() - q->t_start) / 1e9);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */
static void write_head(buf *b, const char *name, const char *type, const char *help) {
    buf_printf(b, "# HELP hearth_%s %s\n# TYPE hearth_%s %s\n", name, help, name, type);
}

static void write_value(buf *b, const char *name, const char *type, double value, const char *help) {
    write_head(b, name, type, help);
    buf_printf(b, "hearth_%s %.17g\n", name, value);
}

static void write_histogram(buf *b, const char *name, const histogram *h, const char *help) {
    unsigned long long sum = 0;
    write_head(b, name, "histogram", help);
    for (size_t i = 0; i < METRIC_BUCKETS; i++) {
        sum += atomic_load(&h->n[i]);
        if (i < COUNT(bounds))
            buf_printf(b, "hearth_%s_bucket{le=\"%g\"} %llu\n", name, bounds[i], sum);
        else
            buf_printf(b, "hearth_%s_bucket{le=\"+Inf\"} %llu\n", name, sum);
    }
    buf_printf(b, "hearth_%s_sum %.6f\nhearth_%s_count %llu\n", name, (double)atomic_load(&h->sum_us) / 1e6, name, sum);
}

const char *prefix_why_name(size_t i) {
    static const char *const names[] = {
#define PREFIX_WHY(name, text) #name,
        PREFIX_WHYS
#undef PREFIX_WHY
    };
    return names[i];
}

#define WRITE_HTTP(name, type, value, help) write_value(b, #name, type, (double)(value), help);
#define WRITE_ENGINE(name, type, value, help) \
    if (e) write_value(b, #name, type, (double)(value), help);

void metrics_write(server *s, engine *e, buf *b) {
    engine_stats st = {0};
    if (e) engine_stats_get(e, &st);
#define METRIC(scope, name, type, value, help) WRITE_##scope(name, type, value, help)
#define HISTOGRAM(name, field, help) \
    if (e) write_histogram(b, #name, &s->times.field, help);
#define LABELLED(name, type, label, n, label_of, value, help)                                        \
    if (e) {                                                                                         \
        write_head(b, #name, type, help);                                                            \
        for (size_t i = 0; i < (n); i++)                                                             \
            buf_printf(b, "hearth_" #name "{" #label "=\"%s\"} %.17g\n", label_of, (double)(value)); \
    }
#include "metrics.def"
#undef LABELLED
#undef METRIC
#undef HISTOGRAM
}

void route_metrics(http_req *q) {
    buf b = {0};
    engine *e = atomic_load(&q->s->e);
    metrics_write(q->s, e, &b);
    if (e) {
        write_head(&b, "info", "gauge", "the served model");
        buf_puts(&b, "hearth_info{version=\"" HEARTH_VERSION "\",model=");
        json_write_string(&b, str_of(engine_model_id(e))); /* Prometheus escapes \ " and newline as JSON does */
        buf_puts(&b, "} 1\n");
    }
    reply_json(q, 200, &b);
    q->content_type = METRICS_TYPE;
}
