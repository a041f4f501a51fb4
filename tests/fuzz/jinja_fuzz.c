/* Jinja: whatever the template, it parses or says why, renders within its limits or says why, and marks every byte it
 * writes. The input is the template; text after a NUL byte, when there is one, is the JSON of its variables. */
#include <stdlib.h>
#include "../../src/text/text.h"

static const char standard[] =
    "{\"s\":\"a<b>\\u00e9\\n "
    "c\",\"n\":3,\"f\":1.5,\"l\":[1,\"x\",null,[2]],\"d\":{\"a\":1,\"b\":{\"c\":\"y\"}},\"m\":[{\"role\":\"user\","
    "\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data, *nul = memchr(text ? text : "", 0, n);
    size_t source_n = nul ? (size_t)(nul - text) : n;
    arena *a = arena_new(0);
    const json *vars = nul ? json_read(a, (str){nul + 1, n - source_n - 1}, NULL, NULL) : NULL;
    if (!vars) vars = json_read(a, STR(standard), NULL, NULL);
    error err = {0};
    jinja *j = jinja_parse((str){text, source_n}, &err);
    if (!j && err.code != ERR_TEMPLATE) abort();
    if (j) {
        buf out = {0}, user = {0};
        jinja_limits limits = {.steps_max = 200000, .bytes_max = 1 << 16};
        bool ok = jinja_render(j, vars, &limits, 1767312000, &out, &user, &err);
        if (out.n != user.n || (!ok && (out.n || err.code != ERR_TEMPLATE))) abort();
        for (size_t i = 0; i < user.n; i++)
            if ((uint8_t)user.p[i] > 1) abort();
        buf_free(&out);
        buf_free(&user);
    }
    jinja_free(j);
    arena_free(a);
    return 0;
}
