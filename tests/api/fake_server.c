/* The real server over the scripted engine, for tests: fake_server [--name value ...]; prints "port N" when it listens
 * and stops on SIGTERM or at the end of standard input. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../../src/server/server.h"
#include "fake_engine.h"

typedef struct settings {
    server_opts s;
    fake_opts f;
    int load_ms, drain_ms;
    const char *keys[4], *hosts[4], *origins[4], *fail_load;
} settings;

static bool set(settings *o, const char *name, char *value) {
    const struct {
        const char *name;
        int *at;
    } ints[] = {{"port", &o->s.port},
                {"header-timeout", &o->s.header_timeout_ms},
                {"body-timeout", &o->s.body_timeout_ms},
                {"idle-timeout", &o->s.idle_timeout_ms},
                {"keepalive", &o->s.keepalive_ms},
                {"stall", &o->s.stall_ms},
                {"thinking", &o->s.thinking},
                {"queue-max", &o->f.queue_max},
                {"context", &o->f.context},
                {"embeds", &o->f.embeds},
                {"load", &o->load_ms},
                {"drain", &o->drain_ms}};
    const struct {
        const char *name, **list;
        size_t *n;
    } lists[] = {{"api-key", o->keys, &o->s.n_api_keys},
                 {"allowed-host", o->hosts, &o->s.n_allowed_hosts},
                 {"allowed-origin", o->origins, &o->s.n_allowed_origins}};
    for (size_t i = 0; i < COUNT(ints); i++)
        if (!strcmp(name, ints[i].name)) return *ints[i].at = atoi(value), true;
    for (size_t i = 0; i < COUNT(lists); i++)
        if (!strcmp(name, lists[i].name) && *lists[i].n < 4) return lists[i].list[(*lists[i].n)++] = value, true;
    if (!strcmp(name, "unix")) return o->s.unix_path = value, true;
    if (!strcmp(name, "host")) return o->s.host = value, true;
    if (!strcmp(name, "body-max")) return o->s.body_max = (size_t)atoll(value), true;
    if (!strcmp(name, "max-tokens")) return o->s.max_tokens = atoll(value), true;
    if (!strcmp(name, "temperature")) return o->s.temperature = (float)atof(value), true;
    if (!strcmp(name, "config-temperature")) return o->f.config_temperature = (float)atof(value), true;
    if (!strcmp(name, "engine-failed")) return o->f.failed = true, true;
    if (!strcmp(name, "fail-load")) return o->fail_load = value, true;
    return false;
}

int main(int argc, char **argv) {
    settings o = {.s = SERVER_OPTS_INIT, .f = {.config_temperature = NAN}};
    o.s.api_keys = o.keys;
    o.s.allowed_hosts = o.hosts;
    o.s.allowed_origins = o.origins;
    for (int i = 1; i + 1 < argc; i += 2)
        if (strncmp(argv[i], "--", 2) || !set(&o, argv[i] + 2, argv[i + 1]))
            return fprintf(stderr, "what is %s?\n", argv[i]), 2;
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    error err = {0};
    engine *e = fake_engine_open(&o.f, &err);
    server *s = e ? server_start(o.load_ms || o.fail_load ? NULL : e, &o.s, &err) : NULL;
    if (!s) return fprintf(stderr, "%s\n", err.msg), 1;
    if (o.fail_load) server_set_failed(s, o.fail_load);
    printf("port %d\n", server_port(s));
    fflush(stdout);
    if (o.load_ms) {
        usleep((unsigned)o.load_ms * 1000);
        server_set_engine(s, e);
    }
    int got;
    sigwait(&stop, &got);
    server_stop(s, o.drain_ms);
    engine_close(e);
    return 0;
}
