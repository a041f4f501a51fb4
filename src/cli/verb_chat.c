/* `hearth chat [MODEL]`: a conversation with line editing and history (libedit). */
#include <editline/readline.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "cli.h"

enum { HISTORY_LINES = 1000 };

/* The conversation, kept as JSON text so that each turn is one array for the template. */
typedef struct talk {
    const options *o;
    engine *e;    /* owns */
    buf messages; /* "{...},{...}" without the brackets */
    int n;
} talk;

static void talk_add(talk *t, const char *role, str content) {
    buf_printf(&t->messages, "%s{\"role\":\"%s\",\"content\":", t->n++ ? "," : "", role);
    json_write_string(&t->messages, content);
    buf_putc(&t->messages, '}');
}

static void talk_start(talk *t) {
    t->messages.n = 0;
    t->n = 0;
    if (t->o->system) talk_add(t, "system", str_of(t->o->system));
}

static bool talk_turn(talk *t, str line, error *err) {
    size_t before = t->messages.n;
    int n_before = t->n;
    talk_add(t, "user", line);
    buf whole = {0}, reply = {0};
    buf_printf(&whole, "[%s]", t->messages.p);
    arena *a = arena_new(0);
    prompt p = {0};
    gen_stats stats;
    const json *messages = json_read(a, buf_view(&whole), NULL, err);
    bool ok = messages && cli_prompt(t->e, messages, t->o, &p, err);
    ok = ok && (cli_say(t->e, &p, t->o, &reply, &stats, err) || err->code == ERR_CANCELLED);
    if (ok) { /* an interrupted reply stays in the conversation as far as it came */
        cli_show_stats(&stats);
        talk_add(t, "assistant", buf_view(&reply));
    } else { /* the failed turn leaves no trace */
        t->messages.n = before;
        t->messages.p[before] = 0;
        t->n = n_before;
    }
    arena_free(a);
    prompt_free(&p);
    buf_free(&whole);
    buf_free(&reply);
    return ok;
}

static char *history_path(void) {
    char *dir = path_cache(), *path = NULL;
    if (dir_make(dir, NULL)) path = path_join(dir, "chat_history");
    free(dir);
    return path;
}

/* A line from the terminal, or from a pipe without prompts. */
static char *read_line(bool terminal) {
    if (terminal) return readline("> ");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n') line[n - 1] = 0;
    return line;
}

/* Ctrl-C while the line is typed ends the program; from the line on it stops the reply, however early it comes. */
static char *next_line(bool terminal) {
    cli_catch_interrupts(false);
    char *line = read_line(terminal);
    cli_catch_interrupts(true);
    return line;
}

static void converse(talk *t, bool terminal) {
    for (char *line; (line = next_line(terminal)); free(line)) {
        str s = str_trim(str_of(line));
        if (s.n == 0) continue;
        if (terminal) add_history(line);
        if (str_is(s, "/exit") || str_is(s, "/quit")) {
            free(line);
            return;
        }
        if (str_is(s, "/new")) {
            talk_start(t);
            fputs("a new conversation\n", stderr);
            continue;
        }
        error err = {0};
        if (!talk_turn(t, str_of(line), &err)) cli_fail(&err);
    }
}

int verb_chat(const options *o) {
    error err = {0};
    bool terminal = isatty(STDIN_FILENO);
    if (o->n_args > 1) {
        error_set(&err, ERR_USAGE, "chat takes one model, not '%s'", o->args[1]);
        return cli_fail(&err);
    }
    talk t = {.o = o};
    char *path = cli_model_path(o, o->n_args ? o->args[0] : NULL, &err);
    bool ok = path && (t.e = cli_engine(o, path, true, &err));
    if (ok) {
        char *saved = terminal ? history_path() : NULL;
        using_history();
        if (saved) read_history(saved);
        if (terminal)
            fprintf(stderr, "%s; /new starts again, /exit or Ctrl-D ends, Ctrl-C stops a reply\n",
                    engine_model_id(t.e));
        talk_start(&t);
        converse(&t, terminal);
        if (saved) {
            stifle_history(HISTORY_LINES);
            write_history(saved);
        }
        free(saved);
    }
    engine_close(t.e);
    buf_free(&t.messages);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
