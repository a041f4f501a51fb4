/* `hearth serve [MODEL]`: the listener comes up first (health: 503), then the model is loaded; SIGINT or SIGTERM drains
 * and ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include "../server/server.h"
#include "cli.h"

enum { DRAIN_MS = 120000 };

static bool log_options(const options *o, error *err) {
    log_level level;
    if (!log_level_parse(str_of(o->log_level), &level))
        return error_set(err, ERR_USAGE, "--log-level must be error, warn, info or debug, not '%s'", o->log_level);
    log_set_level(level);
    log_set_json(o->log_json);
    return true;
}

/* --api-key and the lines of --api-key-file; `file` owns the bytes that keys point into. */
static bool read_keys(const options *o, text_list *keys, buf *file, error *err) {
    for (size_t i = 0; i < o->api_key.n; i++) {
        keys->p = mem_resize(keys->p, (keys->n + 1) * sizeof *keys->p);
        keys->p[keys->n++] = o->api_key.p[i];
    }
    if (o->api_key_file && !file_read(file, o->api_key_file, 1 << 20, err)) return false;
    for (char *line = file->p, *next; line && *line; line = next) {
        size_t n = strcspn(line, "\r\n");
        next = line + n + (line[n] != 0);
        line[n] = 0;
        if (n == 0) continue;
        keys->p = mem_resize(keys->p, (keys->n + 1) * sizeof *keys->p);
        keys->p[keys->n++] = line;
    }
    if (o->api_key_file && keys->n == o->api_key.n)
        return error_set(err, ERR_USAGE, "%s holds no key", o->api_key_file);
    return true;
}

static server *start(const options *o, const text_list *keys, error *err) {
    server_opts s = SERVER_OPTS_INIT;
    s.host = o->host;
    s.port = (int)o->port;
    s.unix_path = o->unix_path;
    s.api_keys = keys->p, s.n_api_keys = keys->n;
    s.allowed_hosts = o->allowed_hosts.p, s.n_allowed_hosts = o->allowed_hosts.n;
    s.allowed_origins = o->allowed_origins.p, s.n_allowed_origins = o->allowed_origins.n;
    if (o->given.temperature) s.temperature = (float)o->temperature;
    if (o->given.top_p) s.top_p = (float)o->top_p;
    if (o->given.min_p) s.min_p = (float)o->min_p;
    if (o->given.top_k) s.top_k = (int32_t)o->top_k;
    s.max_tokens = o->max_tokens;
    s.fixed_context = o->context_length > 0;
    if (!cli_thinking(o, &s.thinking, err)) return NULL;
    return server_start(NULL, &s, err);
}

static void say_ready(const options *o, const server *s, const engine *e, uint64_t since_ns) {
    const model_info *m = engine_model(e);
    fprintf(stderr, "hearth %s serves %s (%s, %s, %.0f MB) with a context of %d; ready after %.2f s\n", HEARTH_VERSION,
            engine_model_id(e), m->architecture, m->quantization, (double)m->weight_bytes / 1e6, engine_context(e),
            (double)(clock_ns() - since_ns) / 1e9);
    if (o->unix_path) {
        fprintf(stderr, "  socket %s\n", o->unix_path);
        return;
    }
    bool any = strcmp(o->host, "0.0.0.0") == 0 || strcmp(o->host, "::") == 0;
    const char *host = any ? "localhost" : o->host, *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
    fprintf(stderr, "  chat   http://%s%s%s:%d/\n  API    http://%s%s%s:%d/v1\n", open, host, close, server_port(s),
            open, host, close, server_port(s));
}

/* Loads the model behind a listener that is already up, then waits for a signal. */
static bool serve(const options *o, const char *path, server *s, error *err) {
    uint64_t since = clock_ns();
    engine *e = cli_engine(o, path, false, err);
    if (!e) {
        server_stop(s, 0);
        return false;
    }
    server_set_engine(s, e);
    say_ready(o, s, e, since);
    sigset_t set;
    int sig;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigwait(&set, &sig);
    fprintf(stderr, "hearth: ending; running requests may finish (again: at once)\n");
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    server_stop(s, DRAIN_MS);
    engine_close(e);
    return true;
}

int verb_serve(const options *o) {
    error err = {0};
    text_list keys = {0};
    buf key_file = {0};
    if (o->n_args > 1) error_set(&err, ERR_USAGE, "serve takes one model, not '%s'", o->args[1]);
    char *path = err.code == ERR_NONE ? cli_model_path(o, o->n_args ? o->args[0] : NULL, &err) : NULL;
    bool ok = path && log_options(o, &err) && read_keys(o, &keys, &key_file, &err);
    /* Blocked before any thread starts, so that sigwait alone sees them. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    server *s = ok ? start(o, &keys, &err) : NULL;
    ok = s && serve(o, path, s, &err);
    free(keys.p);
    buf_free(&key_file);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
