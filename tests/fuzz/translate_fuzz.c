/* Bodies of /v1/messages (first byte even) and /v1/responses (odd) become chat requests: any bytes are a request whose
 * messages have the form the core wants, or an error that has text. */
#include <stdlib.h>
#include "../../src/server/body.c"
#include "../../src/server/translate.c"
#define tools_read       anthropic_tools_read /* each file has its own */
#define tool_choice_read anthropic_tool_choice_read
#define format_read      anthropic_format_read
#include "../../src/server/anthropic_request.c"
#undef tools_read
#undef tool_choice_read
#undef format_read
#include "../../src/server/responses_request.c"

void http_header_add(http_req *q, const char *name, const char *value) {}
bool http_body_hold(http_req *q, size_t n, error *err) {
    return true;
}
void http_body_free(http_req *q) {
    buf_free(&q->body);
}

static void check(const json *core) {
    const json *messages = json_get(core, "messages"), *tools = json_get(core, "tools");
    if (!json_is(messages, JSON_ARRAY) || !messages->n) abort();
    for (uint32_t i = 0; i < messages->n; i++) {
        const json *m = json_at(messages, i), *calls = json_get(m, "tool_calls");
        if (!json_is(json_get(m, "role"), JSON_STRING) || !json_is(json_get(m, "content"), JSON_STRING)) abort();
        for (uint32_t k = 0; calls && k < calls->n; k++)
            if (!json_is(json_get(json_get(json_at(calls, k), "function"), "name"), JSON_STRING)) abort();
    }
    for (uint32_t i = 0; tools && i < tools->n; i++)
        if (!json_str(json_get(json_get(json_at(tools, i), "function"), "name"), (str){0}).n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!n) return 0;
    server s = {.o = {.body_max = 1 << 20, .bodies_max = 64 << 20}};
    http_req q = {.s = &s, .a = arena_new(0)};
    buf_add(&q.body, data + 1, n - 1);
    error err = {0};
    const json *body = body_read(&q, &err);
    translation t = {.a = q.a, .core = {.a = q.a}, .messages = {.a = q.a}};
    const json *input = json_get(body, "input");
    bool ok = body;
    if (ok && !(data[0] & 1))
        ok = anthropic_translate(body, &t, &err);
    else if (ok)
        ok = responses_translate(body, &input, json_is(input, JSON_ARRAY), str_of("I"), &t, &err);
    if (ok)
        check(json_built(&t.core));
    else if (err.code == ERR_NONE || !err.msg[0])
        abort();
    body_error_rename(data[0] & 1 ? SURFACE_RESPONSES : SURFACE_MESSAGES, &err);
    translation_deinit(&t);
    if (arena_bytes(q.a) > n * 200 + (1 << 20)) abort();
    buf_free(&q.body);
    arena_free(q.a);
    return 0;
}
