/* GET /v1/models, /v1/models/{id}: what is served and what it can do (spec/http-api.md §9). */
#include "internal.h"

static void number_or_null(buf *b, const char *name, double v) {
    buf_printf(b, "\"%s\":", name);
    json_write_real(b, v); /* NAN as null */
}

static void write_defaults(buf *b, const gen_defaults *d) {
    if (isnan(d->temperature) && isnan(d->top_p) && d->top_k < 0) {
        buf_puts(b, ",\"gen_defaults\":null");
        return;
    }
    buf_puts(b, ",\"gen_defaults\":{");
    number_or_null(b, "temperature", d->temperature);
    buf_putc(b, ',');
    number_or_null(b, "top_p", d->top_p);
    buf_putc(b, ',');
    number_or_null(b, "top_k", d->top_k < 0 ? NAN : d->top_k);
    buf_putc(b, '}');
}

typedef struct ability {
    const char *name;
    bool has;
} ability;

static void write_abilities(buf *b, const ability *a, size_t n) {
    for (size_t i = 0; i < n; i++) buf_printf(b, "%s\"%s\":%s", i ? "," : "", a[i].name, a[i].has ? "true" : "false");
}

static void write_model(const server *s, const engine *e, buf *b) {
    const model_info *m = engine_model(e);
    const chat_template *t = engine_template(e);
    const bool chat = t != NULL, embeds = engine_embedding(e) != NULL;
    const bool thinks = chat && chat_template_reads(t, "enable_thinking") && chat_template_thinks(t);
    const ability flat[] = {
        {"reasoning", thinks}, {"vision", false},           {"audio", false},
        {"tools", chat},       {"structured_output", true}, {"embeddings", embeds},
        {"adapters", false},   {"training", false},         {"dsa", m->family && !strcmp(m->family, "glm_moe_dsa")},
        {"mtp", false}};
    const ability able[] = {{"chat_completions", chat},  {"text_completions", true}, {"anthropic_messages", chat},
                            {"responses", chat},         {"streaming", true},        {"tools", chat},
                            {"structured_output", true}, {"logprobs", true},         {"embeddings", embeds},
                            {"vision", false},           {"audio", false},           {"adapters", false},
                            {"training", false}};
    buf_puts(b, "{\"id\":");
    json_write_string(b, str_of(engine_model_id(e)));
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"hearth\",\"context_window\":%d",
               (long long)s->started_unix, engine_context(e));
    buf_puts(b, ",\"family\":");
    json_write_string(b, str_of(m->family));
    buf_puts(b, ",\"tier\":");
    json_write_string(b, str_of(m->tier));
    buf_puts(b, ",\"quantization\":");
    json_write_string(b, str_of(m->quantization));
    buf_printf(b, ",\"parameters\":%lld,\"batch_mode\":\"batch\",\"system_fingerprint\":", (long long)m->n_params);
    json_write_string(b, str_of(engine_fingerprint(e)));
    buf_putc(b, ',');
    write_abilities(b, flat, COUNT(flat));
    buf_puts(b, ",\"capabilities\":{");
    write_abilities(b, able, COUNT(able));
    buf_putc(b, '}');
    write_defaults(b, engine_defaults(e));
    buf_putc(b, '}');
}

static void reply_models(http_req *q, bool shown) {
    buf b = {0};
    buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    if (shown) write_model(q->s, atomic_load(&q->s->e), &b);
    if (shown && q->s->o.other_models) q->s->o.other_models(engine_model_id(atomic_load(&q->s->e)), &b);
    buf_puts(&b, "]}");
    reply_json(q, 200, &b);
}

void route_models(http_req *q) {
    reply_models(q, true);
}

/* The spec's shape is a filtered list, OpenAI's clients want the object: the object is what `retrieve` can read. */
void route_model(http_req *q) {
    const engine *e = atomic_load(&q->s->e);
    if (!str_is(q->rest, engine_model_id(e))) {
        reply_models(q, false);
        return;
    }
    buf b = {0};
    write_model(q->s, e, &b);
    b.n--; /* the object, with the list beside it */
    buf_puts(&b, ",\"data\":[");
    write_model(q->s, e, &b);
    buf_puts(&b, "]}");
    reply_json(q, 200, &b);
}
