/* Renders templates for tools/jinja_diff.py: one JSON object a line {"template", "vars"} in, {"ok"} or {"err"} out.
 * Built by that tool against build/libhearth.a; not part of the library. */
#include <stdio.h>
#include <stdlib.h>
#include "../src/text/text.h"

static void answer(const json *q) {
    buf out = {0}, user = {0}, line = {0};
    error err = {0};
    jinja_limits limits = {.steps_max = 5000000, .bytes_max = 1 << 20};
    jinja *j = jinja_parse(json_str(json_get(q, "template"), STR("")), &err);
    bool ok = j && jinja_render(j, json_get(q, "vars"), &limits, 1767312000, &out, &user, &err);
    buf_puts(&line, ok ? "{\"ok\":" : "{\"err\":");
    json_write_string(&line, ok ? buf_view(&out) : str_of(err.msg));
    buf_puts(&line, "}");
    puts(line.p);
    fflush(stdout);
    jinja_free(j);
    buf_free(&out);
    buf_free(&user);
    buf_free(&line);
}

int main(void) {
    char *text = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&text, &cap, stdin)) > 0) {
        arena *a = arena_new(0);
        error err = {0};
        const json *q = json_read(a, (str){text, (size_t)n}, NULL, &err);
        if (q)
            answer(q);
        else
            printf("{\"err\":\"bad input\"}\n");
        arena_free(a);
    }
    free(text);
}
