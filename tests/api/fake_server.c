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
    pool_opts p;
    int load_ms, drain_ms, isolate, exit_code;
    const char *keys[4], *hosts[4], *origins[4], *fail_load;
    char *child, *models, *model, *refuse;
    uint64_t need;
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
                {"fixed", &o->f.fixed},
                {"embeds", &o->f.embeds},
                {"load", &o->load_ms},
                {"watchdog", &o->s.watchdog_ms},
                {"isolate", &o->isolate},
                {"exit", &o->exit_code},
                {"model-pool", &o->p.resident_max},
                {"quick-death", &o->p.quick_ms},
                {"backoff", &o->p.backoff_ms},
                {"pool-drain", &o->p.drain_ms},
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
    if (!strcmp(name, "trace")) return o->s.trace_dir = value, true;
    if (!strcmp(name, "response-store")) return o->s.response_store = strcmp(value, "off") ? value : NULL, true;
    if (!strcmp(name, "response-ttl")) return o->s.response_ttl_s = atoi(value), true;
    if (!strcmp(name, "response-bytes")) return o->s.response_bytes = (size_t)atoll(value), true;
    if (!strcmp(name, "unix")) return o->s.unix_path = value, true;
    if (!strcmp(name, "child")) return o->child = value, true;
    if (!strcmp(name, "models")) return o->models = value, true;
    if (!strcmp(name, "need")) return o->need = (uint64_t)atoll(value), true;
    if (!strcmp(name, "budget")) return o->p.budget = (uint64_t)atoll(value), true;
    if (!strcmp(name, "model-id")) return o->f.model_id = value, true;
    if (!strcmp(name, "model")) return o->model = value, true; /* a child is told which; the script is the same */
    if (!strcmp(name, "refuse")) return o->refuse = value, true;
    if (!strcmp(name, "memory-budget")) return true;
    if (!strcmp(name, "bodies-max")) return o->s.bodies_max = (size_t)atoll(value), true;
    if (!strcmp(name, "host")) return o->s.host = value, true;
    if (!strcmp(name, "body-max")) return o->s.body_max = (size_t)atoll(value), true;
    if (!strcmp(name, "max-tokens")) return o->s.max_tokens = atoll(value), true;
    if (!strcmp(name, "temperature")) return o->s.temperature = (float)atof(value), true;
    if (!strcmp(name, "config-temperature")) return o->f.config_temperature = (float)atof(value), true;
    if (!strcmp(name, "template")) return o->f.template_file = value, true;
    if (!strcmp(name, "engine-failed")) return o->f.failed = true, true;
    if (!strcmp(name, "fail-load")) return o->fail_load = value, true;
    return false;
}

/* The parent of --isolate: its children are this program (or --child) with the arguments that are not the parent's. */
static server *start_front(settings *o, int argc, char **argv, error *err) {
    static const char *const own[] = {"isolate", "port", "host", "model-pool", "models", "child", "need", "budget"};
    static pool_model models[8];
    static const char *args[64];
    o->p.program = o->child ? o->child : "/proc/self/exe";
    args[o->p.n_argv++] = "fake_server";
    for (int i = 1; i + 1 < argc && i < 60; i += 2) {
        bool mine = false;
        for (size_t k = 0; k < COUNT(own); k++) mine |= !strcmp(argv[i] + 2, own[k]);
        if (mine) continue;
        args[o->p.n_argv++] = argv[i];
        args[o->p.n_argv++] = argv[i + 1];
    }
    for (char *id = strtok(o->models, ","); id && o->p.n_models < 8; id = strtok(NULL, ","))
        models[o->p.n_models++] = (pool_model){.id = id, .path = id, .bytes = o->need};
    o->p.argv = args;
    o->p.models = models;
    return server_start_front(&o->p, &o->s, err);
}

static void say_port(const server *s) {
    printf("port %d\n", server_port(s));
    fflush(stdout);
}

/* Waits for SIGTERM and drains; a second one ends at once. */
static void wait_and_stop(server *s, const sigset_t *stop, int drain_ms) {
    int got;
    sigwait(stop, &got);
    sigprocmask(SIG_UNBLOCK, stop, NULL);
    server_stop(s, drain_ms);
}

int main(int argc, char **argv) {
    static char default_models[] = "test/scripted";
    settings o = {.s = SERVER_OPTS_INIT, .f = {.config_temperature = NAN}, .models = default_models};
    o.s.api_keys = o.keys;
    o.s.response_store = "memory";
    o.s.allowed_hosts = o.hosts;
    o.s.allowed_origins = o.origins;
    o.s.behind_front = getenv("HEARTH_FRONT") != NULL;
    for (int i = 1; i + 1 < argc; i += 2)
        if (strncmp(argv[i], "--", 2) || !set(&o, argv[i] + 2, argv[i + 1]))
            return fprintf(stderr, "what is %s?\n", argv[i]), 2;
    if (o.exit_code && o.s.behind_front) return o.exit_code;
    if (o.refuse && o.model && !strcmp(o.refuse, o.model)) return 4;
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigprocmask(SIG_BLOCK, &stop, NULL);
    error err = {0};
    if (o.isolate) {
        server *front = start_front(&o, argc, argv, &err);
        if (!front) return fprintf(stderr, "%s\n", err.msg), 1;
        say_port(front);
        wait_and_stop(front, &stop, o.drain_ms);
        return 0;
    }
    engine *e = fake_engine_open(&o.f, &err);
    server *s = e ? server_start(o.load_ms || o.fail_load ? NULL : e, &o.s, &err) : NULL;
    if (!s) return fprintf(stderr, "%s\n", err.msg), 1;
    if (o.fail_load) server_set_failed(s, o.fail_load);
    if (!o.s.behind_front) say_port(s);
    if (o.load_ms) {
        usleep((unsigned)o.load_ms * 1000);
        server_set_engine(s, e);
    }
    wait_and_stop(s, &stop, o.drain_ms);
    engine_close(e);
    return 0;
}
