/* Log lines on stderr, plain or JSON, one write a line so that threads do not mix them. */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>
#include "json.h"

static atomic_int level_max = LOG_INFO;
static atomic_bool as_json;
static const char *const names[] = {"error", "warn", "info", "debug"};

bool log_level_parse(str name, log_level *out) {
    for (size_t i = 0; i < COUNT(names); i++)
        if (str_is(name, names[i])) return *out = (log_level)i, true;
    return false;
}

void log_set_level(log_level level) {
    level_max = (int)level;
}
void log_set_json(bool on) {
    as_json = on;
}

void log_write(log_level level, const char *fmt, ...) {
    if ((int)level > level_max) return;
    char text[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    buf line = {0};
    char stamp[40];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    if (as_json) {
        buf_printf(&line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"message\":", stamp, now.tv_nsec / 1000000,
                   names[level]);
        json_write_string(&line, str_of(text));
        buf_puts(&line, "}\n");
    } else {
        buf_printf(&line, "%s.%03ldZ %s: %s\n", stamp, now.tv_nsec / 1000000, names[level], text);
    }
    ssize_t done = write(STDERR_FILENO, line.p, line.n);
    (void)done; /* nowhere left to report a closed stderr */
    buf_free(&line);
}

void log_line(log_level level, str line) {
    if ((int)level > level_max) return;
    buf b = {0};
    buf_str(&b, line);
    buf_putc(&b, '\n');
    ssize_t done = write(STDERR_FILENO, b.p, b.n);
    (void)done;
    buf_free(&b);
}
