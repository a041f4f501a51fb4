/* The error list's texts and the functions that fill an `error`. The list itself: errors.def. */
#include <errno.h>
#include <stdio.h>
#include "base.h"

static const error_info infos[] = {
#define ERROR(name, http, openai, anthropic, exit) {#name, http, openai, anthropic, exit},
#include "errors.def"
#undef ERROR
};

const error_info *error_describe(error_code code) {
    return &infos[(unsigned)code < ERR_COUNT ? code : ERR_INTERNAL];
}

static bool set_v(error *err, error_code code, const char *param, const char *fmt, va_list ap) {
    if (!err || err->code != ERR_NONE) return false;
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    return false;
}

bool error_set(error *err, error_code code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_v(err, code, NULL, fmt, ap);
    va_end(ap);
    return false;
}

bool error_field(error *err, error_code code, const char *param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_v(err, code, param, fmt, ap);
    va_end(ap);
    return false;
}

bool error_errno(error *err, error_code code, const char *fmt, ...) {
    char text[500];
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return error_set(err, code, "%s: %s", text, strerror(saved));
}

void error_prefix(error *err, const char *fmt, ...) {
    if (!err || err->code == ERR_NONE) return;
    char text[sizeof err->msg], old[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(old, err->msg, sizeof old);
    size_t n = strlen(text), room = sizeof err->msg - 1;
    n = MIN(n, room);
    memcpy(err->msg, text, n);
    size_t m = MIN(strlen(old), room - n);
    memcpy(err->msg + n, old, m);
    err->msg[n + m] = 0;
}
