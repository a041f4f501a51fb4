/* A first program with libhearth: asks a model one question and prints the reply as it comes.
 *
 *   cc example.c $(pkg-config --cflags --libs hearth) -o example && ./example MODEL "Why is the sky blue?" */
#include <hearth.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool print_text(void *arg, const hearth_token *t) {
    fwrite(t->text, 1, t->n, stdout);
    fflush(stdout);
    return true; /* false stops the reply */
}

/* Messages are JSON: quotes, backslashes and control characters of the question must be escaped. */
static char *messages_of(const char *question) {
    char *json = malloc(6 * strlen(question) + 64), *at = json;
    if (!json) return NULL;
    at += sprintf(at, "[{\"role\":\"user\",\"content\":\"");
    for (const char *c = question; *c; c++) {
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
            at += sprintf(at, "\\u%04x", (unsigned)*c);
        else
            *at++ = *c;
    }
    strcpy(at, "\"}]");
    return json;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]);
        return 2;
    }
    hearth_model *model;
    if (hearth_open(argv[1], NULL, &model) != HEARTH_OK) {
        fprintf(stderr, "%s\n", hearth_error());
        return 1;
    }
    char *messages = messages_of(argv[2]);
    int32_t *prompt = NULL;
    size_t n;
    hearth_gen_opts opts = HEARTH_GEN_OPTS_INIT;
    hearth_stats stats = HEARTH_STATS_INIT;
    opts.max_tokens = 64;
    int rc = hearth_render(model, messages, NULL, NULL, NULL, &prompt, &n);
    if (rc == HEARTH_OK) rc = hearth_generate(model, prompt, n, &opts, print_text, NULL, &stats);
    if (rc == HEARTH_OK)
        printf("\n[%d + %d tokens, %s]\n", stats.prompt_tokens, stats.generated_tokens, stats.finish);
    else
        fprintf(stderr, "%s\n", hearth_error());
    free(prompt);
    free(messages);
    hearth_close(model);
    return rc == HEARTH_OK ? 0 : 1;
}
