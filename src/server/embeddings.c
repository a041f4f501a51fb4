/* POST /v1/embeddings: texts in, vectors out (spec/http-api.md §8). Every text is a generation of no tokens whose last
 * row is taken; a few are in the engine at a time, the next follows when one is done.
 * Not here: which models embed, and their end token (engine/identity.c). */
#include <stdio.h>
#include "internal.h"

enum { TEXTS_MAX = 2048, IN_FLIGHT = 16, TOKENS_MAX = 1 << 20 };

typedef struct text_ids {
    const int32_t *id; /* arena */
    size_t n;
} text_ids;

typedef struct embed_run {
    gen_run run;    /* first: what the server sees */
    engine *e;      /* borrows */
    text_ids *text; /* [n] arena */
    float **vector; /* [n] arena, normalised */
    int32_t dimensions;
    int n_submitted;
    bool base64;
    size_t n_tokens;
} embed_run;

/* ---- the request ------------------------------------------------------------------------------------------------- */
static bool read_text(embed_run *m, str instruction, const json *v, int i, error *err) {
    char name[32];
    snprintf(name, sizeof name, "input[%d]", i);
    if (json_is(v, JSON_INT) || json_is(v, JSON_ARRAY))
        return error_field(err, ERR_INVALID, name, "%s: token arrays are not supported, send the text", name);
    if (!json_is(v, JSON_STRING)) return body_wrong_type(name, "string", v, err);
    if (!v->string.n) return error_field(err, ERR_INVALID, name, "%s must not be empty", name);
    const embedding_info *info = engine_embedding(m->e);
    const tokenizer *t = engine_tokenizer(m->e);
    arena *a = m->run.q->a;
    str text = v->string;
    if (instruction.n) {
        const str parts[] = {STR("Instruct: "), instruction, STR("\nQuery:"), text}; /* may hold NUL: no format */
        buf b = {0};
        for (size_t k = 0; k < COUNT(parts); k++) buf_str(&b, parts[k]);
        text = (str){arena_copy(a, b.p, b.n), b.n};
        buf_free(&b);
    }
    size_t context = (size_t)engine_context(m->e);
    if (text.n > tokenizer_text_max(t, context))
        return error_field(err, ERR_MEMORY, name, "%s has more tokens than the context of %zu", name, context);
    ids id = {0};
    bool ok = tokenizer_encode(t, text, 0, &id, err);
    if (ok && info->end_token >= 0) ids_push(&id, info->end_token);
    if (ok && id.n >= context) /* the engine keeps room for one more */
        ok = error_field(err, ERR_MEMORY, name, "%s has %zu tokens; the context is %zu", name, id.n, context);
    if (ok && !id.n) ok = error_field(err, ERR_INVALID, name, "%s has no tokens", name);
    if (ok) m->text[i] = (text_ids){arena_copy(a, id.p, id.n * sizeof *id.p), id.n};
    m->n_tokens += id.n;
    ids_free(&id);
    if (ok && m->n_tokens > TOKENS_MAX)
        ok = error_field(err, ERR_INVALID, "input", "input has more than %d tokens", TOKENS_MAX);
    return ok;
}

static bool read_input(embed_run *m, const json *body, error *err) {
    const json *v = json_get(body, "input");
    str instruction = {0};
    if (!body_string(body, "instruction", &instruction, err)) return false;
    if (!v || json_is(v, JSON_NULL)) return error_field(err, ERR_INVALID, "input", "input is required");
    bool many = json_is(v, JSON_ARRAY);
    if (!many && !json_is(v, JSON_STRING)) return body_wrong_type("input", "string or array of strings", v, err);
    if (many && (v->n < 1 || v->n > TEXTS_MAX))
        return error_field(err, ERR_INVALID, "input", "input has %u texts; allowed are 1 to %d", v->n, TEXTS_MAX);
    m->run.n = many ? (int)v->n : 1;
    m->text = arena_array(m->run.q->a, text_ids, m->run.n);
    m->vector = arena_array(m->run.q->a, float *, m->run.n);
    for (int i = 0; i < m->run.n; i++)
        if (!read_text(m, instruction, many ? json_at(v, (size_t)i) : v, i, err)) return false;
    return true;
}

static bool read_form(embed_run *m, const json *body, error *err) {
    str format = STR("float");
    int64_t dimensions = engine_embedding(m->e)->width;
    if (!body_string(body, "encoding_format", &format, err) ||
        !body_int(body, "dimensions", 1, dimensions, &dimensions, err))
        return false;
    m->base64 = str_is(format, "base64");
    m->dimensions = (int32_t)dimensions;
    return m->base64 || str_is(format, "float") ||
           error_field(err, ERR_INVALID, "encoding_format", "encoding_format must be float or base64");
}

/* ---- running ----------------------------------------------------------------------------------------------------- */
static void wake(void *q) {
    http_wake(q);
}

static bool submit_next(embed_run *m, error *err) {
    int i = m->n_submitted;
    choice *c = &m->run.choices[i];
    c->run = &m->run;
    c->index = i;
    gen_opts o = {.prompt = m->text[i].id,
                  .n_prompt = m->text[i].n,
                  .want_hidden = true,
                  .sample = {.top_p = 1},
                  .wake = wake,
                  .wake_arg = m->run.q};
    gen *g = engine_submit(m->e, &o, err);
    if (!g) return false;
    watch_gen(m->run.q->s->watch, m->run.q, c, g);
    m->n_submitted++;
    return true;
}

/* A full queue is no failure while some of ours are in it: the next one that ends tries again. */
static bool submit_some(embed_run *m, error *err) {
    while (m->n_submitted < m->run.n && m->n_submitted - m->run.n_done < IN_FLIGHT) {
        error e = {0};
        if (submit_next(m, &e)) continue;
        if (e.code == ERR_QUEUE_FULL && m->n_submitted > m->run.n_done) return true;
        *err = e;
        return false;
    }
    return true;
}

/* Length 1, after the cut (Matryoshka representations are made for that). */
static float *normalised(arena *a, const float *h, int32_t n) {
    float *v = arena_array(a, float, n);
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)h[i] * h[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int32_t i = 0; i < n; i++) v[i] = (float)(h[i] * scale);
    return v;
}

static void embed_done(gen_run *r, choice *c) {
    embed_run *m = (embed_run *)r;
    gen *g = c->g;
    const float *h = gen_hidden(g);
    if (h) m->vector[c->index] = normalised(r->q->a, h, m->dimensions);
    run_stats_add(&r->past, g);
    watch_gen(r->q->s->watch, r->q, c, NULL);
    gen_free(g);
    if (r->err.code == ERR_NONE) submit_some(m, &r->err);
}

/* ---- the reply --------------------------------------------------------------------------------------------------- */
static void write_base64(buf *out, const uint8_t *p, size_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0u);
        char four[4] = {digit[v >> 18], digit[v >> 12 & 63], i + 1 < n ? digit[v >> 6 & 63] : '=',
                        i + 2 < n ? digit[v & 63] : '='};
        buf_add(out, four, 4);
    }
}

static void write_vector(const embed_run *m, const float *v, buf *out) {
    if (m->base64) { /* little-endian f32, as the machine has it */
        buf_putc(out, '"');
        write_base64(out, (const uint8_t *)v, (size_t)m->dimensions * sizeof *v);
        buf_putc(out, '"');
        return;
    }
    for (int32_t i = 0; i < m->dimensions; i++) buf_printf(out, "%c%.9g", i ? ',' : '[', v[i]);
    buf_putc(out, ']');
}

static void embed_reply(gen_run *r, buf *out) {
    embed_run *m = (embed_run *)r;
    buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < r->n; i++) {
        buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        write_vector(m, m->vector[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"model\":");
    json_write_string(out, str_of(r->model));
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", m->n_tokens, m->n_tokens);
}

static const surface embed_surface = {.reply = embed_reply, .done = embed_done};

static bool start(http_req *q, error *err) {
    engine *e = atomic_load(&q->s->e);
    if (!engine_embedding(e))
        return error_field(err, ERR_INVALID, "model", "%s is not an embedding model", engine_model_id(e));
    const json *body = body_read(q, err);
    buf unknown = {0};
    embed_run *m = arena_alloc(q->a, sizeof *m);
    chat_request *r = arena_alloc(q->a, sizeof *r);
    r->surface = SURFACE_EMBEDDINGS;
    m->e = e;
    m->run = (gen_run){.q = q, .surface = &embed_surface, .req = r, .model = engine_model_id(e)};
    bool ok = body && body_sort(SURFACE_EMBEDDINGS, body, NULL, &unknown, err) && read_form(m, body, err) &&
              read_input(m, body, err);
    if (ok) {
        unknown_warn(q, unknown.p);
        m->run.choices = arena_array(q->a, choice, m->run.n);
        watch_publish(q->s->watch, q, &m->run);
        ok = submit_some(m, err);
    }
    buf_free(&unknown);
    return ok;
}

void route_embeddings(http_req *q) {
    error e = {0};
    if (!start(q, &e)) reply_error(q, &e);
}
