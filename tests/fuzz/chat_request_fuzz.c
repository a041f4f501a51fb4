/* Bodies of /v1/chat/completions (first byte even) and /v1/completions (odd): any bytes are a request or an error that
 * has text; what is accepted lies in its range. */
#include <stdlib.h>
#define fields surface_fields /* each file has a table of its own */
#include "../../src/server/body.c"
#undef fields
#include "../../src/server/chat_request.c"
#include "../../src/server/tools.c"
#define bad_type structured_bad_type
#include "../../src/server/structured.c"
#undef bad_type

static tokenizer *tok;
static chat_template *tmpl;
static model_info info = {.architecture = "llama"};
const tokenizer *engine_tokenizer(const engine *e) {
    return tok;
}
const chat_template *engine_template(const engine *e) {
    return tmpl;
}
void http_header_add(http_req *q, const char *name, const char *value) {}
const model_info *engine_model(const engine *e) {
    return &info;
}
bool http_body_hold(http_req *q, size_t n, error *err) {
    return true;
}
void http_body_free(http_req *q) {
    buf_free(&q->body);
}

static void open_parts(void) {
    static const char text[] =
        "{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\"b\":1}}}";
    error err = {0};
    static arena *a; /* static: the leak checker sees that it is still reachable */
    a = arena_new(0);
    tok = tokenizer_from_json(json_read(a, STR(text), NULL, &err), NULL, &err);
    tmpl = chat_template_from(STR("{{ messages }}{{ enable_thinking }}{{ reasoning_effort }}{{ x }}"), (str){0},
                              (str){0}, &err);
    if (!tok || !tmpl) abort();
}

static void check(const chat_request *r) {
    if (r->n < 1 || r->n > CHOICES_MAX || r->n_stops > STOPS_MAX || r->n_bias > BIAS_MAX) abort();
    if (!isnan(r->temperature) && !(r->temperature >= 0)) abort();
    if (!isnan(r->top_p) && !(r->top_p >= 0 && r->top_p <= 1)) abort();
    for (size_t i = 0; i < r->n_bias; i++)
        if (r->bias_ids[i] < 0 || r->bias_ids[i] > 1 || !isfinite(r->bias[i])) abort();
    for (uint32_t i = 0; r->messages && i < r->messages->n; i++) {
        const json *m = json_at(r->messages, i);
        if (!json_is(json_get(m, "role"), JSON_STRING) || !json_is(json_get(m, "content"), JSON_STRING)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!tok) open_parts();
    if (!n) return 0;
    server s = {.o = {.body_max = 1 << 20, .bodies_max = 64 << 20}};
    http_req q = {.s = &s, .a = arena_new(0)};
    buf_add(&q.body, data + 1, n - 1);
    chat_request r;
    error err = {0};
    if (chat_request_read(&q, data[0] & 1 ? SURFACE_COMPLETIONS : SURFACE_CHAT, &r, &err)) {
        check(&r);
        thinking_resolve(&q, &r);
        if (r.tools && !tools_typed(q.a, r.tools)) abort();
    } else if (err.code == ERR_NONE || !err.msg[0]) {
        abort();
    }
    if (arena_bytes(q.a) > n * 64 + (1 << 20)) abort();
    buf_free(&q.body);
    arena_free(q.a);
    return 0;
}
