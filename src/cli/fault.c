/* A model's file that is cut short, or whose disk fails, while it is mapped: reading it raises SIGBUS, which cannot be
 * undone in the middle of a computation. The process ends with a line that names the file. Under --isolate that is one
 * child. Not here: files that are wrong from the start (format/). */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include "cli.h"

/* All of this runs in a signal handler: nothing that allocates or locks. */
static char line[4096];

static bool hex_range(const char *s, uintptr_t *from, uintptr_t *to) {
    uintptr_t v[2] = {0, 0};
    for (int i = 0; i < 2; i++, s++)
        for (; *s && *s != '-' && *s != ' '; s++) {
            if (str_digit(*s) > 15) return false;
            v[i] = v[i] * 16 + (uintptr_t)str_digit(*s);
        }
    *from = v[0];
    *to = v[1];
    return true;
}

/* The file that the address is mapped from, by /proc/self/maps; NULL: none. */
static const char *file_at(uintptr_t address) {
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    char part[1024];
    size_t n = 0;
    for (ssize_t got; fd >= 0 && (got = read(fd, part, sizeof part)) > 0;)
        for (ssize_t i = 0; i < got; i++) {
            if (part[i] != '\n') {
                if (n < sizeof line - 1) line[n++] = part[i];
                continue;
            }
            line[n] = 0;
            n = 0;
            uintptr_t from, to;
            const char *path = strchr(line, '/');
            if (!path || !hex_range(line, &from, &to) || address < from || address >= to) continue;
            close(fd);
            return path;
        }
    if (fd >= 0) close(fd);
    return NULL;
}

static void say(const char *text) {
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* nobody listens */
}

static void on_bus_error(int sig, siginfo_t *info, void *context) {
    const char *path = info->si_code == BUS_ADRERR ? file_at((uintptr_t)info->si_addr) : NULL;
    if (!path) return; /* SA_RESETHAND: it happens again and ends the process in the usual way */
    say("hearth: ");
    say(path);
    say(" was cut short, or its disk failed, while it was in use; ending\n");
    _exit(1);
}

void cli_fault_watch(void) {
    struct sigaction act = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_RESETHAND};
    sigaction(SIGBUS, &act, NULL);
}
