/* `hearth render (MODEL | --template FILE) --messages FILE [--tools FILE] [--kwargs JSON]`: the prompt text. */
#include <stdio.h>
#include <stdlib.h>
#include "../hub/hub.h"
#include "cli.h"

static chat_template *open_template(const options *o, error *err) {
    if (o->template_file) {
        buf source = {0};
        chat_template *t = cli_read(o->template_file, &source, err)
                               ? chat_template_from(buf_view(&source), STR(""), STR(""), err)
                               : NULL;
        buf_free(&source);
        return t;
    }
    char *path = hub_resolve(o->args[0], err);
    checkpoint *c = path ? checkpoint_open(path, err) : NULL;
    tokenizer *k = c ? tokenizer_open(c, err) : NULL;
    chat_template *t = k ? chat_template_open(c, k, err) : NULL;
    if (k && !t) error_set(err, ERR_NOT_FOUND, "%s has no chat template", path);
    tokenizer_free(k);
    checkpoint_close(c);
    free(path);
    return t;
}

/* A JSON file that holds an array; NULL without error when there is no file. */
static const json *read_json(arena *a, const char *path, const char *flag, error *err) {
    if (!path) return NULL;
    buf text = {0};
    const json *j = cli_read(path, &text, err) ? json_read(a, buf_view(&text), NULL, err) : NULL;
    buf_free(&text);
    if (!j) {
        error_prefix(err, "--%s %s: ", flag, path);
        return NULL;
    }
    if (json_is(j, JSON_ARRAY)) return j;
    error_set(err, ERR_INVALID, "--%s %s must hold an array, not %s", flag, path, json_type_name(j));
    return NULL;
}

int verb_render(const options *o) {
    error err = {0};
    if (!o->messages || o->n_args != (o->template_file ? 0 : 1)) {
        error_set(&err, ERR_USAGE, "render takes a model or --template FILE, and --messages FILE");
        return cli_fail(&err);
    }
    arena *a = arena_new(0);
    buf text = {0};
    render_opts r = {.add_generation_prompt = !o->no_generation_prompt};
    chat_template *t = open_template(o, &err);
    if (t) r.messages = read_json(a, o->messages, "messages", &err);
    if (t && err.code == ERR_NONE) r.tools = read_json(a, o->tools, "tools", &err);
    if (t && err.code == ERR_NONE && o->kwargs) {
        r.variables = json_read(a, str_of(o->kwargs), NULL, &err);
        if (r.variables && !json_is(r.variables, JSON_OBJECT))
            error_set(&err, ERR_INVALID, "--kwargs must be a JSON object, not %s", json_type_name(r.variables));
        if (err.code != ERR_NONE) error_prefix(&err, "--kwargs: ");
    }
    bool ok = t && err.code == ERR_NONE && chat_template_render(t, &r, &text, NULL, &err);
    if (ok) fwrite(text.p, 1, text.n, stdout);
    chat_template_free(t);
    arena_free(a);
    buf_free(&text);
    return ok ? 0 : cli_fail(&err);
}
