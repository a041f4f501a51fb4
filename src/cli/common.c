/* What several verbs need: the model argument, an engine, a prompt, a printed generation. */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../base/limit.h"
#include "../hub/hub.h"
#include "cli.h"

enum { INPUT_BYTES_MAX = 256 << 20 };

char *cli_model_path(const options *o, const char *argument, error *err) {
    const char *model = o->given.model ? o->model : argument ? argument : o->default_model;
    if (model) return hub_resolve(model, err);
    size_t n;
    hub_model *m = hub_list(&n);
    char *path = n == 1 ? mem_strdup(m[0].path) : NULL;
    if (n == 0) error_set(err, ERR_NOT_FOUND, "there is no model yet; `hearth get smollm2` fetches a small one");
    if (n > 1) error_set(err, ERR_USAGE, "which model? `hearth ls` lists them");
    hub_list_free(m, n);
    return path;
}

static bool device_check(const options *o, error *err) {
    if (strcmp(o->device, "auto") == 0 || strcmp(o->device, "cpu") == 0) return true;
    return error_set(err, ERR_USAGE, "--device must be auto or cpu, not '%s'", o->device);
}

bool cli_engine_opts(const options *o, const char *path, bool one_user, engine_opts *out, error *err) {
    engine_opts e = {.model_path = path, .model_id = o->model_id};
    if (!device_check(o, err)) return false;
    if (!numerics_parse(str_of(o->numerics), &e.device.num))
        return error_set(err, ERR_USAGE, "--numerics must be default, f32, int8 or strict, not '%s'", o->numerics);
    if (o->compat && strcmp(o->compat, "mlx-lm") != 0)
        return error_set(err, ERR_USAGE, "--compat knows mlx-lm, not '%s'", o->compat);
    e.compat_mlx_lm = o->compat != NULL;
    e.device.threads = (int)o->threads;
    const int batch = (int)(o->given.decode_concurrency && !o->given.batch ? o->decode_concurrency : o->batch);
    e.device.rows_max = (int)o->prefill_chunk + (one_user ? 0 : batch);
    e.context_length = (int)o->context_length;
    e.memory_budget = (size_t)(o->memory_budget * 1e9);
    e.prefill_chunk = (int)o->prefill_chunk;
    e.batch = one_user ? 1 : batch;
    e.prompt_cache = o->prompt_cache > 0 ? (int64_t)(o->prompt_cache * 1073741824.0) : o->given.prompt_cache ? -1 : 0;
    e.ssd_cache = one_user ? NULL : o->ssd_cache;
    e.ssd_cache_max = (size_t)(o->ssd_cache_max * (1 << 30));
    e.ssd_cache_verify = o->ssd_cache_verify;
    e.kv_quant = o->kv_quant;
    e.kv_group = (int)o->kv_group;
    e.kv_late = e.compat_mlx_lm && strcmp(o->verb, "logits") == 0;
    e.queue_max = one_user ? 4 : (int)o->queue;
    e.draft_kind = o->draft_kind;
    e.requests_bytes = one_user ? 0 : cli_requests_bytes(o) + ((size_t)o->response_store_mb << 20);
    *out = e;
    return true;
}

size_t cli_requests_bytes(const options *o) {
    const size_t budget = o->memory_budget > 0 ? (size_t)(o->memory_budget * 1e9) : limit_memory() / 4 * 3;
    const size_t least = MIN((size_t)192 << 20, budget / 8), most = (size_t)1 << 30;
    return MIN(MAX(budget / 24, least), most);
}

engine *cli_engine(const options *o, const char *path, bool one_user, error *err) {
    engine_opts e;
    if (one_user) log_set_level(LOG_WARN); /* what an operator looks for would stand in the middle of an answer */
    if (!cli_engine_opts(o, path, one_user, &e, err)) return NULL;
    /* A directory is looked at as it is: what its config does not say is for draft_check to judge. */
    char *draft = o->draft_model && !dir_exists(o->draft_model) ? hub_resolve(o->draft_model, err)
                  : o->draft_model                              ? mem_strdup(o->draft_model)
                                                                : NULL;
    if (o->draft_model && !draft) return NULL;
    e.draft_model = draft;
    engine *opened = engine_open(&e, err);
    free(draft);
    return opened;
}

sampling cli_sampling(const options *o, const engine *e) {
    sampling s = sampling_defaults(engine_defaults(e));
    if (o->given.temperature) s.temperature = (float)o->temperature;
    if (o->given.top_p) s.top_p = (float)o->top_p;
    if (o->given.top_k) s.top_k = (int32_t)o->top_k;
    if (o->given.min_p) s.min_p = (float)o->min_p;
    if (o->given.repetition_penalty) s.repetition_penalty = (float)o->repetition_penalty;
    s.has_seed = o->given.seed;
    s.seed = (uint64_t)o->seed;
    return s;
}

bool cli_read(const char *path, buf *out, error *err) {
    return file_read(out, strcmp(path, "-") == 0 ? "/dev/stdin" : path, INPUT_BYTES_MAX, err);
}

bool cli_color(void) {
    const char *no = getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) && !(no && *no);
}

bool cli_thinking(const options *o, int *out, error *err) {
    static const struct {
        const char *word;
        int value;
    } words[] = {{"on", 1}, {"true", 1}, {"off", -1}, {"false", -1}};
    *out = 0;
    for (size_t i = 0; o->thinking && i < COUNT(words); i++)
        if (strcmp(o->thinking, words[i].word) == 0) *out = words[i].value;
    return !o->thinking || *out || error_set(err, ERR_USAGE, "--thinking must be on or off, not '%s'", o->thinking);
}

bool cli_prompt(const engine *e, const json *messages, const options *o, prompt *out, error *err) {
    const chat_template *t = engine_template(e);
    if (!t) return error_set(err, ERR_UNSUPPORTED, "%s has no chat template; generate with --raw", engine_model_id(e));
    arena *a = arena_new(0);
    json_builder vars = {.a = a};
    render_opts r = {.messages = messages, .add_generation_prompt = true};
    int thinking;
    bool ok = cli_thinking(o, &thinking, err);
    if (ok && thinking) json_put(&vars, "enable_thinking", json_of_bool(thinking > 0));
    if (vars.n) r.variables = json_built(&vars);
    ok = ok && prompt_render(out, t, engine_tokenizer(e), &r, err);
    arena_free(a);
    return ok;
}

/* Ctrl-C. It may come before there is a generation to cancel: the flag keeps it until there is one. */
static _Atomic(gen *) running_gen;
static atomic_bool interrupted;
static void on_interrupt(int sig) {
    atomic_store(&interrupted, true);
    gen *g = atomic_load(&running_gen);
    if (g) gen_cancel(g);
}

void cli_catch_interrupts(bool on) {
    struct sigaction act = {.sa_handler = on ? on_interrupt : SIG_DFL};
    atomic_store(&interrupted, false);
    sigaction(SIGINT, &act, NULL);
}

static void print_event(const gen_event *ev, bool color, bool *in_reasoning, buf *reply) {
    bool reasoning = ev->kind == GEN_REASONING;
    if (ev->kind != GEN_TEXT && !reasoning) return;
    if (reasoning != *in_reasoning)
        fputs(color ? reasoning ? "\x1b[2m" : "\x1b[0m\n" : reasoning ? "[thinking]\n" : "\n[answer]\n", stdout);
    *in_reasoning = reasoning;
    fwrite(ev->text.p, 1, ev->text.n, stdout);
    fflush(stdout);
    if (!reasoning && reply) buf_str(reply, ev->text);
}

bool cli_say(engine *e, const prompt *p, const options *o, buf *reply, gen_stats *stats, error *err) {
    gen_opts g = {.prompt = p->ids.p,
                  .n_prompt = p->ids.n,
                  .sample = cli_sampling(o, e),
                  .split_thinking = p->text.n > 0,
                  .prompt_tail = p->tail,
                  .marks = p->marks.p,
                  .n_marks = p->marks.n};
    str stops[64];
    if (o->stop.n > COUNT(stops))
        return error_set(err, ERR_USAGE, "--stop may be given %zu times at most", COUNT(stops));
    for (size_t i = 0; i < o->stop.n; i++) stops[i] = str_of(o->stop.p[i]);
    g.stops = stops;
    g.n_stops = o->stop.n;
    bool clamped;
    int64_t wanted = o->given.max_tokens ? o->max_tokens : INT32_MAX;
    if (!engine_clamp(e, p->ids.n, wanted, !o->given.max_tokens, &g.max_tokens, &clamped, err)) return false;
    gen *run = engine_submit(e, &g, err);
    if (!run) return false;
    atomic_store(&running_gen, run);
    if (atomic_load(&interrupted)) gen_cancel(run);
    bool color = cli_color(), in_reasoning = false, ok = true;
    for (gen_event ev; gen_next(run, &ev, -1);) {
        print_event(&ev, color, &in_reasoning, reply);
        if (ev.kind == GEN_DONE && ev.why == FINISH_ERROR) *err = ev.err, ok = false;
        if (ev.kind == GEN_DONE && ev.why == FINISH_CANCELLED) ok = error_set(err, ERR_CANCELLED, "interrupted");
        if (ev.kind == GEN_DONE) break;
    }
    if (in_reasoning && color) fputs("\x1b[0m", stdout);
    putchar('\n');
    fflush(stdout); /* before the statistics */
    atomic_store(&running_gen, NULL);
    gen_stats_get(run, stats);
    gen_free(run);
    return ok;
}

void cli_show_stats(const gen_stats *s) {
    double prefill = (double)s->prefill_ns / 1e9, decode = (double)s->decode_ns / 1e9;
    int32_t computed = s->prompt_tokens - s->cached_tokens;
    fprintf(stderr, "prompt %d tokens (%d cached), %.0f tok/s; reply %d tokens, %.1f tok/s\n", s->prompt_tokens,
            s->cached_tokens, prefill > 0 ? computed / prefill : 0, s->generated_tokens,
            decode > 0 ? (s->generated_tokens - 1) / decode : 0);
}
