/* `hearth serve [MODEL]`: the listener comes up first (health: 503), then the model is loaded, here or, with --isolate,
 * in a child. The first SIGINT or SIGTERM drains and ends, the second ends at once. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "../base/limit.h"
#include "../hub/hub.h"
#include "../server/server.h"
#include "cli.h"

enum {
    GRACE_S = 60, /* after the drain: for what is written to disk; then the process is ended */
    SMALL_CONTEXT = 4096,
    MODELS_FRESH_S = 30 /* how long a list of the store is good */
};

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

static bool is_child(const options *o) {
    return o->unix_path && getenv("HEARTH_FRONT");
}

static const char *served_path; /* as long as the server lives */

/* The models of the store beside the served one, from their headers; looked at again after half a minute. */
static void other_models_read(const char *served, buf *text) {
    size_t n;
    hub_model *m = hub_list(&n);
    device *d = device_cpu_open(&(device_opts){.threads = 1, .rows_max = 1}, NULL);
    for (size_t i = 0; d && i < n; i++) {
        const bool same = strcmp(m[i].name, served) == 0 || (served_path && strcmp(m[i].path, served_path) == 0);
        checkpoint *c = same ? NULL : checkpoint_open(m[i].path, NULL);
        model *headers = c ? model_open(c, d, &(model_opts){.plan_only = true}, NULL) : NULL;
        if (headers) {
            buf_puts(text, ",{\"id\":");
            json_write_string(text, str_of(m[i].name));
            buf_printf(text, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"hearth\"", (long long)clock_unix());
            buf_puts(text, ",\"vision\":false,\"tier\":");
            json_write_string(text, str_of(model_describe(headers)->tier));
            buf_putc(text, '}');
        }
        model_close(headers);
        checkpoint_close(c);
    }
    if (d) device_close(d);
    hub_list_free(m, n);
}

static void other_models(const char *served, buf *out) {
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    static buf text;
    static int64_t seen;
    pthread_mutex_lock(&mu);
    if (!seen || clock_unix() - seen >= MODELS_FRESH_S) {
        text.n = 0;
        other_models_read(served, &text);
        seen = clock_unix();
    }
    buf_str(out, buf_view(&text));
    pthread_mutex_unlock(&mu);
}

/* Directories that are asked for are made. The default path of the response store lives as long as the process. */
static bool files_open(const options *o, server_opts *s, error *err) {
    static char *file;
    s->trace_dir = o->trace;
    s->response_ttl_s = o->response_ttl;
    s->response_bytes = (size_t)o->response_store_mb << 20;
    s->response_store = o->response_store;
    if (o->trace && !dir_make(o->trace, err)) return false;
    if (o->response_store && !strcmp(o->response_store, "off")) s->response_store = NULL;
    if (o->response_store) return true;
    char *models = hub_models_dir(), *dir = path_join(models, "..");
    if (dir_make(models, NULL) && access(dir, W_OK) == 0)
        s->response_store = file = path_join(dir, "responses.sqlite");
    else
        s->response_store = "memory"; /* nobody asked for a file: a home that cannot be written to is no failure */
    free(models);
    free(dir);
    return true;
}

static bool settings(const options *o, const text_list *keys, server_opts *out, error *err) {
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
    if (!is_child(o)) s.other_models = other_models; /* the parent lists what it can start */
    s.keep_header_lines = o->keep_header_lines;
    s.bodies_max = cli_requests_bytes(o) / 3;
    s.behind_front = is_child(o);
    *out = s;
    return cli_thinking(o, &out->thinking, err) && files_open(o, out, err);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */
/* Waits for the first signal on a thread of its own, so that one during loading is heard too. */
typedef struct ending {
    const options *o;
    server *s;
    sigset_t signals; /* blocked in all threads until the first has come */
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t asked;
    bool loading, ends; /* [mu] */
} ending;

static void *ending_main(void *arg) {
    ending *w = arg;
    int sig;
    sigwait(&w->signals, &sig);
    pthread_mutex_lock(&w->mu);
    w->ends = true;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &w->signals, NULL); /* the next one ends the process */
    alarm((unsigned)w->o->drain_timeout + GRACE_S);
    cli_notify("STOPPING=1");
    if (!is_child(w->o)) fprintf(stderr, "hearth: ending; running requests may finish (again: at once)\n");
    if (w->loading) { /* nothing has been promised to anybody */
        server_stop(w->s, 0);
        _exit(0);
    }
    pthread_cond_signal(&w->asked);
    pthread_mutex_unlock(&w->mu);
    return NULL;
}

static void ending_start(ending *w, const options *o, server *s, bool loading) {
    w->o = o;
    w->s = s;
    w->loading = loading;
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->asked, NULL);
    sigemptyset(&w->signals);
    sigaddset(&w->signals, SIGINT);
    sigaddset(&w->signals, SIGTERM);
    pthread_create(&w->thread, NULL, ending_main, w);
}

static void ending_wait(ending *w) {
    pthread_mutex_lock(&w->mu);
    while (!w->ends) pthread_cond_wait(&w->asked, &w->mu);
    pthread_mutex_unlock(&w->mu);
    server_stop(w->s, (int)w->o->drain_timeout * 1000);
}

/* The served model's name: --model-id, its name in the store, or the last part of its path. Caller frees. */
static char *name_of(const options *o, const char *path, const hub_model *store, size_t n) {
    if (o->model_id) return mem_strdup(o->model_id);
    for (size_t i = 0; i < n; i++)
        if (strcmp(store[i].path, path) == 0) return mem_strdup(store[i].name);
    return engine_id_of(path);
}

/* ---- the engine in this process ---------------------------------------------------------------------------------- */
static void say_addresses(const options *o, const server *s) {
    if (o->unix_path) {
        fprintf(stderr, "  socket %s\n", o->unix_path);
        return;
    }
    bool any = strcmp(o->host, "0.0.0.0") == 0 || strcmp(o->host, "::") == 0;
    const char *host = any ? "localhost" : o->host, *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
    fprintf(stderr, "  chat   http://%s%s%s:%d/\n  API    http://%s%s%s:%d/v1\n", open, host, close, server_port(s),
            open, host, close, server_port(s));
}

static void say_ready(const options *o, const server *s, const engine *e, uint64_t since_ns) {
    const model_info *m = engine_model(e);
    fprintf(stderr, "hearth %s serves %s (%s, %s, %.0f MB) with a context of %d; ready after %.2f s\n", HEARTH_VERSION,
            engine_model_id(e), m->architecture, m->quantization, (double)m->weight_bytes / 1e6, engine_context(e),
            (double)(clock_ns() - since_ns) / 1e9);
    if (!is_child(o)) say_addresses(o, s);
}

/* Loads the model behind a listener that is already up, then waits for a signal. */
static bool serve_here(const options *o, const char *path, const server_opts *so, error *err) {
    uint64_t since = clock_ns();
    server *s = server_start(NULL, so, err);
    if (!s) return false;
    ending end = {0};
    ending_start(&end, o, s, true);
    size_t n_store = 0;
    hub_model *store = o->model_id ? NULL : hub_list(&n_store);
    options named = *o;
    char *name = name_of(o, path, store, n_store);
    named.model_id = name;
    hub_list_free(store, n_store);
    engine *e = cli_engine(&named, path, false, err);
    free(name);
    pthread_mutex_lock(&end.mu); /* for good when the process is ending already */
    end.loading = false;
    pthread_mutex_unlock(&end.mu);
    if (!e) {
        server_stop(s, 0);
        return false;
    }
    server_set_engine(s, e);
    say_ready(o, s, e, since);
    cli_notify("READY=1");
    ending_wait(&end);
    engine_close(e);
    return true;
}

/* ---- the engine in children -------------------------------------------------------------------------------------- */
typedef struct front_run {
    const options *o;
    atomic_int refused; /* exit code of a child that would not serve: it becomes ours */
} front_run;

static void on_ready(void *arg) {
    cli_notify("READY=1");
}

static void on_refused(void *arg, int exit_code) {
    front_run *r = arg;
    atomic_store(&r->refused, exit_code);
    kill(getpid(), SIGTERM);
}

/* By the plan, from headers: with the context asked for, else a small one. */
static uint64_t need_of(void *arg, const char *path) {
    const front_run *r = arg;
    engine_opts e;
    error first = {0}, ignored = {0}; /* its own process will say it */
    fit_report *fit = mem_alloc(sizeof *fit);
    bool known = cli_engine_opts(r->o, path, false, &e, &ignored);
    if (known && !e.context_length) {
        e.context_length = SMALL_CONTEXT;
        known = engine_fit(&e, fit, &first);
        if (!known) e.context_length = 0; /* more than the model has */
    }
    if (known || first.code) known = engine_fit(&e, fit, &ignored);
    uint64_t need = known ? fit->plan.need_bytes : 0;
    free(fit);
    return need;
}

/* The default model, and with --model-pool every other one of the store. *id is the default's name. */
static pool_model *pool_of(const options *o, const char *path, const hub_model *store, size_t n_store, char **id,
                           size_t *n) {
    pool_model *m = mem_alloc((n_store + 1) * sizeof *m);
    *id = name_of(o, path, store, n_store);
    m[0] = (pool_model){.id = *id, .path = path};
    *n = 1;
    for (size_t i = 0; i < n_store; i++) {
        bool same = strcmp(store[i].path, path) == 0;
        uint64_t need = store[i].bytes + store[i].bytes / 8 + (256u << 20); /* weights, workspace, a small context */
        if (same) m[0].bytes = need;
        if (!same && o->given.model_pool && strcmp(store[i].name, *id))
            m[(*n)++] = (pool_model){.id = store[i].name, .path = store[i].path, .bytes = need};
    }
    return m;
}

static bool serve_front(const options *o, const char *path, const server_opts *so, int *code, error *err) {
    size_t n_store = 0, n = 0;
    hub_model *store = hub_list(&n_store);
    char *id = NULL;
    pool_model *models = pool_of(o, path, store, n_store, &id, &n);
    text_list args = {0};
    front_run run = {.o = o};
    static const char *const first[] = {"hearth", "serve"};
    args.p = mem_alloc(2 * sizeof *args.p);
    for (; args.n < 2; args.n++) args.p[args.n] = first[args.n];
    options_again(o,
                  n > 1 ? "isolate model-pool host port unix model model-id default-model memory-budget"
                        : "isolate model-pool host port unix model model-id default-model",
                  &args);
    pool_opts p = {.program = "/proc/self/exe",
                   .argv = args.p,
                   .n_argv = args.n,
                   .models = models,
                   .n_models = n,
                   .resident_max = (int)o->model_pool,
                   .drain_ms = (int)o->drain_timeout * 1000,
                   .need = need_of,
                   .on_ready = on_ready,
                   .on_refused = on_refused,
                   .arg = &run};
    p.budget = o->memory_budget > 0 ? (uint64_t)(o->memory_budget * 1e9) : limit_memory() / 4 * 3;
    server *s = server_start_front(&p, so, err);
    if (s) {
        fprintf(stderr, "hearth %s serves %s from a process of its own\n", HEARTH_VERSION, id);
        say_addresses(o, s);
        ending end = {0};
        ending_start(&end, o, s, false);
        ending_wait(&end);
        *code = atomic_load(&run.refused);
    }
    free(args.p);
    free(models);
    free(id);
    hub_list_free(store, n_store);
    return s != NULL;
}

int verb_serve(const options *o) {
    error err = {0};
    text_list keys = {0};
    buf key_file = {0};
    server_opts so;
    int code = 0;
    if (is_child(o)) prctl(PR_SET_NAME, "hearth");
    if (o->n_args > 1) error_set(&err, ERR_USAGE, "serve takes one model, not '%s'", o->args[1]);
    char *path = err.code == ERR_NONE ? cli_model_path(o, o->n_args ? o->args[0] : NULL, &err) : NULL;
    bool ok = path && log_options(o, &err) && read_keys(o, &keys, &key_file, &err) && settings(o, &keys, &so, &err);
    if (ok && o->given.model_pool && !o->isolate) log_warn("--model-pool does nothing without --isolate");
    /* Blocked before any thread starts, so that sigwait alone sees them. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    served_path = path;
    ok = ok && (o->isolate ? serve_front(o, path, &so, &code, &err) : serve_here(o, path, &so, &err));
    free(keys.p);
    buf_free(&key_file);
    free(path);
    return ok ? code : cli_fail(&err);
}
