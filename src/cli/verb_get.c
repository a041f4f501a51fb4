/* `hearth get NAME`: fetch a model into the store; the path goes to standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../hub/hub.h"
#include "cli.h"

typedef struct meter {
    uint64_t shown_ns;
    const char *what; /* borrowed: the part that is being shown */
    bool terminal, shown, done;
} meter;

static void show(void *arg, const char *what, uint64_t done, uint64_t total) {
    meter *m = arg;
    if (m->what != what) m->what = what, m->done = false;
    uint64_t now = clock_ns(), pause = m->terminal ? 200000000u : 5000000000u;
    if (total == 0 || m->done || (now - m->shown_ns < pause && done != total)) return;
    m->done = done == total; /* curl says it several times */
    m->shown_ns = now;
    m->shown = true;
    fprintf(stderr, "%s%s: %.1f of %.1f MB%s", m->terminal ? "\r" : "", what, (double)done / 1e6, (double)total / 1e6,
            m->terminal ? "  " : "\n");
}

int verb_get(const options *o) {
    error err = {0};
    if (o->n_args != 1) {
        error_set(&err, ERR_USAGE, "get takes the name of one model: hearth get smollm2");
        return cli_fail(&err);
    }
    meter m = {.terminal = isatty(STDERR_FILENO)};
    hub_progress p = {show, &m};
    char *path = hub_get(o->args[0], o->quiet ? NULL : &p, &err);
    if (m.shown && m.terminal) fputc('\n', stderr);
    if (!path) return cli_fail(&err);
    puts(path);
    free(path);
    return 0;
}
