/* POST /tokenize, /detokenize: the tokenizer over HTTP, in llama.cpp's field names and vLLM's. POST /apply-template:
 * the prompt that a chat request would start from. */
#include "internal.h"

enum { DETOKENIZE_MAX = 1 << 20 };

static bool no_others(http_req *q, unsigned surface, const json *body, error *err) {
    buf unknown = {0};
    bool ok = body_sort(surface, body, NULL, &unknown, err);
    if (ok) unknown_warn(q, unknown.p);
    buf_free(&unknown);
    return ok;
}

/* A token that is part of a character only has bytes. */
static void write_piece(buf *out, const tokenizer *t, int32_t id) {
    buf b = {0};
    tokenizer_bytes(t, id, &b);
    buf_printf(out, "{\"id\":%d,\"piece\":", id);
    if (utf8_valid(buf_view(&b)) == b.n) {
        json_write_string(out, buf_view(&b));
    } else {
        for (size_t i = 0; i < b.n; i++) buf_printf(out, "%c%u", i ? ',' : '[', (unsigned char)b.p[i]);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
    buf_free(&b);
}

static void reply_tokens(http_req *q, const ids *v, bool pieces) {
    engine *e = atomic_load(&q->s->e);
    const tokenizer *t = engine_tokenizer(e);
    buf b = {0};
    buf_puts(&b, "{\"tokens\":[");
    for (size_t i = 0; i < v->n; i++) {
        if (i) buf_putc(&b, ',');
        if (pieces)
            write_piece(&b, t, v->p[i]);
        else
            buf_printf(&b, "%d", v->p[i]);
    }
    buf_printf(&b, "],\"count\":%zu,\"max_model_len\":%d}", v->n, engine_context(e));
    reply_json(q, 200, &b);
}

static bool tokenize(http_req *q, error *err) {
    const json *body = body_read(q, err);
    str text = {0};
    bool add = false, parse = true, pieces = false;
    if (!body || !no_others(q, SURFACE_TOKENIZE, body, err) || !body_string(body, "content prompt text", &text, err) ||
        !body_bool(body, "add_special add_special_tokens", &add, err) ||
        !body_bool(body, "parse_special", &parse, err) ||
        !body_bool(body, "with_pieces return_token_strs", &pieces, err))
        return false;
    if (!text.p) return error_field(err, ERR_INVALID, "content", "content is required: the text");
    ids v = {0};
    unsigned flags = (add ? ENCODE_ADD_SPECIAL : 0u) | (parse ? ENCODE_SPECIAL : 0u);
    bool ok = tokenizer_encode(engine_tokenizer(atomic_load(&q->s->e)), text, flags, &v, err);
    if (ok) reply_tokens(q, &v, pieces);
    ids_free(&v);
    return ok;
}

void route_tokenize(http_req *q) {
    error e = {0};
    if (!tokenize(q, &e)) reply_error(q, &e);
}

bool body_ids(http_req *q, const char *name, const json *v, int32_t **out, error *err) {
    int32_t size = tokenizer_size(engine_tokenizer(atomic_load(&q->s->e)));
    *out = arena_array(q->a, int32_t, v->n + 1);
    for (uint32_t i = 0; i < v->n; i++) {
        const json *x = json_at(v, i);
        if (!json_is(x, JSON_INT) || x->integer < 0 || x->integer >= size)
            return error_field(err, ERR_INVALID, name, "%s[%u] is no token: tokens are the integers 0 to %d", name, i,
                               size - 1);
        (*out)[i] = (int32_t)x->integer;
    }
    return true;
}

static bool detokenize(http_req *q, error *err) {
    const json *body = body_read(q, err);
    bool skip = false;
    if (!body || !no_others(q, SURFACE_DETOKENIZE, body, err) || !body_bool(body, "skip_special_tokens", &skip, err))
        return false;
    const json *v = json_get(body, "tokens");
    if (!json_is(v, JSON_ARRAY)) return body_wrong_type("tokens", "array of token ids", v, err);
    if (v->n > DETOKENIZE_MAX)
        return error_field(err, ERR_INVALID, "tokens", "tokens has %u ids; at most %d are allowed", v->n,
                           DETOKENIZE_MAX);
    int32_t *id;
    if (!body_ids(q, "tokens", v, &id, err)) return false;
    buf text = {0}, b = {0};
    tokenizer_decode(engine_tokenizer(atomic_load(&q->s->e)), id, v->n, skip, &text);
    buf_puts(&b, "{\"content\":");
    json_write_string(&b, buf_view(&text));
    buf_putc(&b, '}');
    buf_free(&text);
    reply_json(q, 200, &b);
    return true;
}

void route_detokenize(http_req *q) {
    error e = {0};
    if (!detokenize(q, &e)) reply_error(q, &e);
}

static bool apply_template(http_req *q, error *err) {
    chat_request r;
    prompt p = {0};
    bool ok = chat_request_read(q, SURFACE_CHAT, &r, err) && run_prompt(q, &r, &p, err);
    if (ok) {
        buf b = {0};
        buf_puts(&b, "{\"prompt\":");
        json_write_string(&b, buf_view(&p.text));
        buf_puts(&b, ",\"tokens\":[");
        for (size_t i = 0; i < p.ids.n; i++) buf_printf(&b, "%s%d", i ? "," : "", p.ids.p[i]);
        buf_printf(&b, "],\"count\":%zu}", p.ids.n);
        reply_json(q, 200, &b);
    }
    prompt_free(&p);
    return ok;
}

void route_apply_template(http_req *q) {
    error e = {0};
    if (!apply_template(q, &e)) reply_error(q, &e);
}
