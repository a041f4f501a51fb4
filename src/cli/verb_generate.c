/* `hearth generate [MODEL] PROMPT`: one prompt, one answer. */
#include <stdio.h>
#include <stdlib.h>
#include "../hub/hub.h"
#include "cli.h"

static const json *one_message(arena *a, const char *role, str content) {
    json_builder b = {.a = a};
    json_put(&b, "role", json_of_str(str_of(role)));
    json_put(&b, "content", json_of_str(content));
    return json_built(&b);
}

static bool build(const options *o, const engine *e, str text, prompt *out, error *err) {
    if (o->raw) return prompt_raw(out, engine_tokenizer(e), text, err);
    arena *a = arena_new(0);
    json *m = arena_array(a, json, 2);
    uint32_t n = 0;
    if (o->system) m[n++] = *one_message(a, "system", str_of(o->system));
    m[n++] = *one_message(a, "user", text);
    json messages = {.type = JSON_ARRAY, .n = n, .items = m};
    bool ok = cli_prompt(e, &messages, o, out, err);
    arena_free(a);
    return ok;
}

/* A lone argument that is a model: its prompt was forgotten, or is empty for the shell. */
static bool is_model(const char *name) {
    size_t n;
    hub_model *m = hub_list(&n);
    char *config = path_join(name, "config.json");
    bool known = file_exists(config) || (str_ends(str_of(name), STR(".gguf")) && file_exists(name));
    free(config);
    for (size_t i = 0; i < n && !known; i++) known = strcmp(m[i].name, name) == 0;
    hub_list_free(m, n);
    return known;
}

int verb_generate(const options *o) {
    error err = {0};
    if (o->n_args < 1 || o->n_args > 2) {
        error_set(&err, ERR_USAGE, "generate takes a prompt, or a model and a prompt; put the prompt in quotes");
        return cli_fail(&err);
    }
    if (o->n_args == 1 && !o->given.model && is_model(o->args[0])) {
        error_set(&err, ERR_USAGE, "'%s' is a model; generate takes a prompt behind it, in quotes", o->args[0]);
        return cli_fail(&err);
    }
    const char *text = o->args[o->n_args - 1];
    buf input = {0};
    prompt p = {0};
    gen_stats stats;
    engine *e = NULL;
    char *path = cli_model_path(o, o->n_args == 2 ? o->args[0] : NULL, &err);
    bool ok = path && (strcmp(text, "-") != 0 || cli_read("-", &input, &err));
    ok = ok && (e = cli_engine(o, path, true, &err));
    ok = ok && build(o, e, input.p ? buf_view(&input) : str_of(text), &p, &err);
    if (ok) cli_catch_interrupts(true);
    ok = ok && cli_say(e, &p, o, NULL, &stats, &err);
    if (ok && !o->quiet) cli_show_stats(&stats);
    engine_close(e);
    prompt_free(&p);
    buf_free(&input);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
