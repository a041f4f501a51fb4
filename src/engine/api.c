/* libhearth's public functions (include/hearth.h): arguments checked, options of any size taken over, errors kept for
 * the thread. Not here: what they do (engine.c, gen.c, text/). */
#include <hearth.h>
#include <stdlib.h>
#include "internal.h"

struct hearth_model {
    engine *e; /* owns */
};
struct hearth_gen {
    gen *g; /* owns */
    finish why;
    hearth_prob top[TOP_LOGPROBS_MAX];
};

static _Thread_local char last_error[sizeof((error *)0)->msg];

static const struct {
    error_code code;
    int status;
} statuses[] = {{ERR_INVALID, HEARTH_EINVALID},    {ERR_FORMAT, HEARTH_EINVALID},
                {ERR_TEMPLATE, HEARTH_EINVALID},   {ERR_TOO_LARGE, HEARTH_EINVALID},
                {ERR_NOT_FOUND, HEARTH_ENOTFOUND}, {ERR_MEMORY, HEARTH_EMEMORY},
                {ERR_QUEUE_FULL, HEARTH_EBUSY},    {ERR_UNSUPPORTED, HEARTH_EUNSUPPORTED}};

static int fail(const error *err) {
    memcpy(last_error, err->msg, sizeof last_error);
    for (size_t i = 0; i < COUNT(statuses); i++)
        if (statuses[i].code == err->code) return statuses[i].status;
    return HEARTH_EINTERNAL;
}

static int missing(const char *what) {
    error err = {0};
    error_set(&err, ERR_INVALID, "%s is NULL", what);
    return fail(&err);
}
#define NEED(p) \
    if (!(p)) return missing(#p)

/* A caller's struct of another version: what it has goes over defaults, what only it knows is left out. */
static bool opts_take(void *mine, size_t mine_n, const void *theirs, const char *name, error *err) {
    if (!theirs) return true;
    size_t n;
    memcpy(&n, theirs, sizeof n);
    if (n < sizeof n || n > 4096) return error_set(err, ERR_INVALID, "%s.size is %zu; begin with its _INIT", name, n);
    memcpy(mine, theirs, MIN(n, mine_n));
    return true;
}

/* The other way: as much of ours as the caller's struct holds. */
static void result_give(void *theirs, const void *mine, size_t mine_n) {
    size_t n, head = sizeof n;
    memcpy(&n, theirs, sizeof n);
    n = MIN(n, mine_n);
    if (n > head) memcpy((char *)theirs + head, (const char *)mine + head, n - head);
}

const char *hearth_version(void) {
    return HEARTH_VERSION;
}
const char *hearth_error(void) {
    return last_error;
}

/* ---- models ------------------------------------------------------------------------------------------------------ */
int hearth_open(const char *path, const hearth_open_opts *opts, hearth_model **out) {
    NEED(path);
    NEED(out);
    *out = NULL;
    hearth_open_opts o = HEARTH_OPEN_OPTS_INIT;
    error err = {0};
    if (!opts_take(&o, sizeof o, opts, "hearth_open_opts", &err)) return fail(&err);
    engine_opts eo = {.model_path = path,
                      .device = {.threads = o.threads},
                      .batch = o.batch,
                      .context_length = o.context_length,
                      .memory_budget = o.memory_budget,
                      .kv_quant = o.kv_quant};
    if (o.numerics && !numerics_parse(str_of(o.numerics), &eo.device.num)) {
        error_set(&err, ERR_INVALID, "numerics is '%.40s'; it must be default, f32, int8 or strict", o.numerics);
        return fail(&err);
    }
    engine *e = engine_open(&eo, &err);
    if (!e) return fail(&err);
    *out = mem_alloc(sizeof **out);
    (*out)->e = e;
    return HEARTH_OK;
}

void hearth_close(hearth_model *m) {
    if (!m) return;
    engine_close(m->e);
    free(m);
}

int32_t hearth_vocab(const hearth_model *m) {
    return engine_model(m->e)->vocab;
}
int32_t hearth_context(const hearth_model *m) {
    return engine_context(m->e);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */
int hearth_encode(const hearth_model *m, const char *text, size_t n, bool special, bool add, int32_t **id,
                  size_t *n_id) {
    NEED(m);
    NEED(text || !n);
    NEED(id);
    NEED(n_id);
    error err = {0};
    ids v = {0};
    unsigned flags = (special ? ENCODE_SPECIAL : 0) | (add ? ENCODE_ADD_SPECIAL : 0);
    if (!tokenizer_encode(engine_tokenizer(m->e), (str){text, n}, flags, &v, &err)) {
        ids_free(&v);
        return fail(&err);
    }
    *id = v.p ? v.p : mem_alloc(1);
    *n_id = v.n;
    return HEARTH_OK;
}

int hearth_decode(const hearth_model *m, const int32_t *id, size_t n, bool skip_special, char **text, size_t *n_text) {
    NEED(m);
    NEED(id || !n);
    NEED(text);
    error err = {0};
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= engine_model(m->e)->vocab) {
            error_set(&err, ERR_INVALID, "ids[%zu] is %d; tokens are 0 to %d", i, id[i], engine_model(m->e)->vocab - 1);
            return fail(&err);
        }
    buf out = {0};
    tokenizer_decode(engine_tokenizer(m->e), id, n, skip_special, &out);
    if (n_text) *n_text = out.n;
    *text = out.p ? buf_take(&out) : mem_strdup("");
    return HEARTH_OK;
}

static bool json_argument(arena *a, const char *text, const char *name, json_type type, const json **out, error *err) {
    *out = text ? json_read(a, str_of(text), NULL, err) : NULL;
    if (text && !*out) {
        error_prefix(err, "%s: ", name);
        return false;
    }
    if (*out && !json_is(*out, type))
        return error_set(err, ERR_INVALID, "%s must be %s, not %s", name, type == JSON_ARRAY ? "an array" : "an object",
                         json_type_name(*out));
    return true;
}

int hearth_render(const hearth_model *m, const char *messages_json, const char *tools_json, const char *variables_json,
                  char **text, int32_t **id, size_t *n_id) {
    NEED(m);
    NEED(messages_json);
    NEED(id);
    NEED(n_id);
    const chat_template *t = engine_template(m->e);
    error err = {0};
    render_opts o = {.add_generation_prompt = true};
    prompt p = {0};
    arena *a = arena_new(0);
    bool ok = t || error_set(&err, ERR_UNSUPPORTED, "the model has no chat template");
    ok = ok && json_argument(a, messages_json, "messages_json", JSON_ARRAY, &o.messages, &err) &&
         json_argument(a, tools_json, "tools_json", JSON_ARRAY, &o.tools, &err) &&
         json_argument(a, variables_json, "variables_json", JSON_OBJECT, &o.variables, &err) &&
         prompt_render(&p, t, engine_tokenizer(m->e), &o, &err);
    arena_free(a);
    if (ok) {
        *id = p.ids.p;
        *n_id = p.ids.n;
        p.ids = (ids){0}; /* the caller's now */
        if (text) *text = buf_take(&p.text);
    }
    prompt_free(&p);
    return ok ? HEARTH_OK : fail(&err);
}

/* ---- generations ------------------------------------------------------------------------------------------------- */
static const char *const finish_names[] = {
    [FINISH_NONE] = "",         [FINISH_STOP] = "stop",           [FINISH_STOP_STRING] = "stop",
    [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "cancelled", [FINISH_ERROR] = "error"};

int hearth_gen_start(hearth_model *m, const int32_t *ids, size_t n, const hearth_gen_opts *opts, hearth_gen **out) {
    NEED(m);
    NEED(ids);
    NEED(out);
    *out = NULL;
    hearth_gen_opts o = HEARTH_GEN_OPTS_INIT;
    error err = {0};
    if (!opts_take(&o, sizeof o, opts, "hearth_gen_opts", &err)) return fail(&err);
    if (o.n_stops > 1024 || (o.n_stops && !o.stops)) {
        error_set(&err, ERR_INVALID, "stops must hold 0 to 1024 strings");
        return fail(&err);
    }
    if (o.top_logprobs < -1) {
        error_set(&err, ERR_INVALID, "top_logprobs must be between -1 and %d, not %d", TOP_LOGPROBS_MAX,
                  o.top_logprobs);
        return fail(&err);
    }
    str *stops = mem_alloc((o.n_stops + 1) * sizeof *stops);
    size_t n_stops = 0;
    for (size_t i = 0; i < o.n_stops; i++)
        if (o.stops[i] && *o.stops[i]) stops[n_stops++] = str_of(o.stops[i]);
    buf tail = {0};
    if (o.split_thinking) output_prompt_tail(engine_tokenizer(m->e), ids, n, &tail);
    gen_opts go = {.prompt = ids,
                   .n_prompt = n,
                   .max_tokens = o.max_tokens,
                   .sample = {.temperature = o.temperature,
                              .top_p = o.top_p,
                              .top_k = o.top_k,
                              .min_p = o.min_p,
                              .repetition_penalty = o.repetition_penalty,
                              .repetition_window = o.penalty_window,
                              .presence_penalty = o.presence_penalty,
                              .presence_window = o.penalty_window,
                              .frequency_penalty = o.frequency_penalty,
                              .frequency_window = o.penalty_window,
                              .has_seed = o.has_seed,
                              .seed = o.seed},
                   .stops = stops,
                   .n_stops = n_stops,
                   .ignore_eos = o.ignore_eos,
                   .want_tokens = true,
                   .logprobs = o.top_logprobs >= 0,
                   .top_logprobs = MAX(o.top_logprobs, 0),
                   .split_thinking = o.split_thinking,
                   .prompt_tail = buf_view(&tail)};
    gen *g = engine_submit(m->e, &go, &err);
    free(stops);
    buf_free(&tail);
    if (!g) return fail(&err);
    *out = mem_alloc(sizeof **out);
    (*out)->g = g;
    return HEARTH_OK;
}

static int gen_end(hearth_gen *g, const gen_event *ev) {
    g->why = ev->why;
    return ev->why == FINISH_ERROR ? fail(&ev->err) : 0;
}

static void text_set(hearth_token *t, const gen_event *ev) {
    t->text = ev->text.p;
    t->n = ev->text.n;
    t->reasoning = ev->kind == GEN_REASONING;
}

int hearth_gen_next(hearth_gen *g, hearth_token *out) {
    NEED(g);
    NEED(out);
    hearth_token t = {.text = "", .id = -1};
    gen_event ev;
    do {
        if (!gen_next(g->g, &ev, -1)) return 0; /* it was at its end before */
        if (ev.kind == GEN_DONE) return gen_end(g, &ev);
    } while (ev.kind == GEN_PROGRESS);
    if (ev.kind == GEN_TOKEN) {
        t.id = ev.token;
        t.logprob = ev.logprob;
        t.n_top = ev.n_top;
        t.top = g->top;
        for (int32_t i = 0; i < ev.n_top; i++) g->top[i] = (hearth_prob){ev.top[i].id, ev.top[i].logprob};
        gen_event_kind next;
        if (gen_peek(g->g, &next) && (next == GEN_TEXT || next == GEN_REASONING) && gen_next(g->g, &ev, 0))
            text_set(&t, &ev);
    } else {
        text_set(&t, &ev);
    }
    result_give(out, &t, sizeof t);
    return 1;
}

void hearth_gen_cancel(hearth_gen *g) {
    if (g) gen_cancel(g->g);
}

void hearth_gen_stats(const hearth_gen *g, hearth_stats *out) {
    gen_stats s;
    gen_stats_get(g->g, &s);
    hearth_stats mine = {.prompt_tokens = s.prompt_tokens,
                         .cached_tokens = s.cached_tokens,
                         .generated_tokens = s.generated_tokens,
                         .prefill_s = (double)s.prefill_ns / 1e9,
                         .decode_s = (double)s.decode_ns / 1e9,
                         .finish = finish_names[g->why]};
    result_give(out, &mine, sizeof mine);
}

void hearth_gen_free(hearth_gen *g) {
    if (!g) return;
    gen_free(g->g);
    free(g);
}

int hearth_generate(hearth_model *m, const int32_t *ids, size_t n, const hearth_gen_opts *opts,
                    bool (*on_token)(void *arg, const hearth_token *t), void *arg, hearth_stats *stats) {
    hearth_gen *g;
    int rc = hearth_gen_start(m, ids, n, opts, &g);
    if (rc != HEARTH_OK) return rc;
    hearth_token t = HEARTH_TOKEN_INIT;
    bool go_on = true;
    while ((rc = hearth_gen_next(g, &t)) == 1)
        if (go_on && on_token && !on_token(arg, &t)) {
            go_on = false; /* what was queued before the cancel is not delivered */
            hearth_gen_cancel(g);
        }
    if (stats) hearth_gen_stats(g, stats);
    hearth_gen_free(g);
    return rc;
}

int hearth_logits(hearth_model *m, const int32_t *ids, size_t n, float **logits) {
    NEED(m);
    NEED(ids);
    NEED(logits);
    *logits = NULL;
    error err = {0};
    size_t bytes;
    if (n > (size_t)engine_context(m->e) || !size_mul(n * sizeof(float), (size_t)hearth_vocab(m), &bytes)) {
        error_set(&err, ERR_MEMORY, "%zu tokens do not fit the context of %d", n, engine_context(m->e));
        return fail(&err);
    }
    float *rows = malloc(bytes + 1);
    if (!rows) {
        error_set(&err, ERR_MEMORY, "cannot allocate %zu bytes of logits", bytes);
        return fail(&err);
    }
    if (!engine_logits(m->e, ids, n, 0, rows, NULL, NULL, &err)) {
        free(rows);
        return fail(&err);
    }
    *logits = rows;
    return HEARTH_OK;
}
