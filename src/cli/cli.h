/* cli: the command line. verbs.def and options.def are the lists; one file a verb (verb_*.c). Data goes to standard
 * output, progress and errors to standard error. Exit codes: base/errors.def. */
#pragma once
#include "../base/base.h"
#include "../base/json.h"
#include "../engine/engine.h"

typedef struct text_list {
    const char **p; /* owns the array, borrows the texts */
    size_t n;
} text_list;

#define FIELD_TEXT const char *
#define FIELD_INT  int64_t
#define FIELD_REAL double
#define FIELD_FLAG bool
#define FIELD_LIST text_list

/* What the command line and the environment say. given.x: the user said it (otherwise the field holds the default). */
typedef struct options {
#define OPTION(type, field, flag, env, value, min, max, verbs, help) FIELD_##type field;
#include "options.def"
#undef OPTION
    struct {
#define OPTION(type, field, flag, env, value, min, max, verbs, help) bool field;
#include "options.def"
#undef OPTION
    } given;
    const char *verb;
    const char **args; /* owns the array; positional arguments */
    int n_args;
    int argc; /* of the verb, as given */
    char **argv;
} options;

/* Reads argv[1..] for a verb. ERR_USAGE names the option, with the nearest known one. */
bool options_read(options *o, const char *verb, int argc, char **argv, error *err);
void options_free(options *o);
/* The options as they were given, without positional arguments and those named in `without` ("host port"): for a
 * process of our own that shall do the same. Appends to out; texts are borrowed. */
void options_again(const options *o, const char *without, text_list *out);
void options_help(const char *verb, buf *out); /* the options of a verb, one a line; nothing for a verb without */
bool options_numbers(const char *list, int32_t **out, size_t *n, const char *flag,
                     error *err); /* "1,2,3"; *out: free() */

#define VERB(name, args, what) int verb_##name(const options *o);
#include "verbs.def"
#undef VERB

/* Prints "hearth: message" and returns the code's exit status. */
int cli_fail(const error *err);

/* ---- parts the verbs share (common.c) --------------------------------------------------------------------------- */
/* The model argument: --model, else args[0] if it is one (n_args tells), else --default-model, else the only model
 * there is. */
char *cli_model_path(const options *o, const char *argument, error *err);
/* The engine's options as the command line says them, for one user (batch 1) or for a server; without a draft model. */
bool cli_engine_opts(const options *o, const char *path, bool one_user, engine_opts *out, error *err);
/* What a server may hold for requests: a twenty-fourth of the budget, at least 192 MiB or an eighth, at most 1 GiB. A
 * third is for bodies and what was read of them, a third for each of the two workers' rendering. */
size_t cli_requests_bytes(const options *o);
/* Opens an engine as the options say, for one user (batch 1) or for a server. */
engine *cli_engine(const options *o, const char *path, bool one_user, error *err);
/* Sampling as the options say: flag > generation_config.json > built-in. */
sampling cli_sampling(const options *o, const engine *e);
/* Reads a file, or standard input for "-". */
bool cli_read(const char *path, buf *out, error *err);
/* --thinking: 1 on, -1 off, 0 not given (the template decides). ERR_USAGE for other words. */
bool cli_thinking(const options *o, int *out, error *err);
/* Tells the service manager (systemd, $NOTIFY_SOCKET) how we are: "READY=1", "STOPPING=1"; nothing without one. */
void cli_notify(const char *state);
void cli_fault_watch(void); /* from here on a mapped file that fails ends the process with a message */
bool cli_color(void);       /* standard output is a terminal and NO_COLOR is not set */
/* Messages with the variables that the options ask for. */
bool cli_prompt(const engine *e, const json *messages, const options *o, prompt *out, error *err);
/* From here on Ctrl-C cancels the generation that runs, or the next one, instead of ending the program; off: it ends
 * the program. */
void cli_catch_interrupts(bool on);
/* Runs one generation and prints it as it comes; a caught Ctrl-C ends it (ERR_CANCELLED). The reply so far is appended
 * to `reply` (may be NULL). */
bool cli_say(engine *e, const prompt *p, const options *o, buf *reply, gen_stats *stats, error *err);
void cli_show_stats(const gen_stats *s);
