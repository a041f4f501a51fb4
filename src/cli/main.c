/* hearth: finds the verb, reads its options, runs it. */
#include <signal.h>
#include <stdio.h>
#include "cli.h"

typedef struct verb {
    const char *name;
    int (*run)(const options *o);
} verb;
static const verb verbs[] = {
#define VERB(name, args, what) {#name, verb_##name},
#include "verbs.def"
#undef VERB
};

static const verb *verb_find(const char *name) {
    for (size_t i = 0; i < COUNT(verbs); i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

static int unknown_verb(const char *name) {
    const char *nearest = NULL;
    int best = 3;
    for (size_t i = 0; i < COUNT(verbs); i++) {
        int d = str_distance(str_of(name), str_of(verbs[i].name));
        if (d < best) best = d, nearest = verbs[i].name;
    }
    error err = {0};
    if (nearest)
        error_set(&err, ERR_USAGE, "no verb '%s'; did you mean '%s'?", name, nearest);
    else
        error_set(&err, ERR_USAGE, "no verb '%s'; `hearth help` lists them", name);
    return cli_fail(&err);
}

int cli_fail(const error *err) {
    fprintf(stderr, "hearth: %s\n", err->msg);
    return error_describe(err->code)->exit_code;
}

static bool is_help(const char *s) {
    return strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not a death */
    signal(SIGXFSZ, SIG_IGN); /* so is a file-size limit */
    cli_fault_watch();
    const char *name = argc > 1 ? argv[1] : "serve";
    int from = 2;
    if (is_help(name))
        name = "help";
    else if (strcmp(name, "--version") == 0 || strcmp(name, "-v") == 0)
        name = "version";
    else if (name[0] == '-')
        name = "serve", from = 1; /* bare `hearth --port 9000` serves */
    const verb *v = verb_find(name);
    if (!v) return unknown_verb(name);
    for (int i = from; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!is_help(argv[i])) continue;
        const char *topic[] = {name};
        return verb_help(&(options){.args = topic, .n_args = strcmp(name, "help") != 0});
    }
    options o;
    error err = {0};
    int code = options_read(&o, name, MAX(argc - from, 0), argv + MIN(from, argc), &err) ? v->run(&o) : cli_fail(&err);
    options_free(&o);
    if (fflush(stdout) != 0) {
        error full = {0};
        error_errno(&full, ERR_IO, "cannot write to standard output");
        return cli_fail(&full);
    }
    return code;
}
