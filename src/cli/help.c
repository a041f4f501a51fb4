/* `hearth help [VERB]` and `hearth version`: texts made from the tables. */
#include <stdio.h>
#include "cli.h"

static const struct {
    const char *name, *args, *what;
} verbs[] = {
#define VERB(name, args, what) {#name, args, what},
#include "verbs.def"
#undef VERB
};

int verb_version(const options *o) {
    printf("hearth %s\n", HEARTH_VERSION);
    return 0;
}

static void overview(FILE *f) {
    fputs("hearth: run language models on this machine\n\nusage: hearth VERB [ARGUMENTS] [--OPTIONS]\n\n", f);
    for (size_t i = 0; i < COUNT(verbs); i++) {
        char head[64];
        snprintf(head, sizeof head, "%s %s", verbs[i].name, verbs[i].args);
        fprintf(f, "  %-26s %s\n", head, verbs[i].what);
    }
    fputs("\nMODEL is a directory with config.json, a .gguf file, or a name from `hearth ls`.\n"
          "`hearth help VERB` lists a verb's options. Without a verb hearth serves: `hearth --port 9000`.\n"
          "Models are kept in $HEARTH_HOME/models, else ~/.cache/hearth/models; those of the Hugging Face cache count "
          "too.\n",
          f);
}

int verb_help(const options *o) {
    if (o->n_args == 0) {
        overview(stdout);
        return 0;
    }
    for (size_t i = 0; i < COUNT(verbs); i++) {
        if (strcmp(verbs[i].name, o->args[0]) != 0) continue;
        buf text = {0};
        options_help(verbs[i].name, &text);
        printf("usage: hearth %s %s%s\n%s\n\n%s", verbs[i].name, verbs[i].args, text.n ? " [--OPTIONS]" : "",
               verbs[i].what, text.n ? text.p : "");
        buf_free(&text);
        return 0;
    }
    fprintf(stderr, "hearth: no help on '%s'\n", o->args[0]);
    overview(stderr);
    return 1;
}
