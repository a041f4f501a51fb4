/* From a core request to generations in the engine, and from their events to frames: the part all surfaces share.
 * Not here: field parsing (chat_request.c), the shape of answers (openai_*.c). */
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

enum {
    OUT_HIGH =
        64 << 10, /* a stream with this much unsent takes no more events; the engine then pauses that generation */
    CHAT_TOKENS = 65536, /* replies where nobody says how long (spec/http-api.md 2); cut to what fits */
    RAW_TOKENS = 512,
};

/* ---- settings: request > server flag > generation_config.json > built in (spec §2) ------------------------------- */
static sampling settings(const http_req *q, const chat_request *r, const engine *e, int choice) {
    const server_opts *o = &q->s->o;
    sampling s = sampling_defaults(engine_defaults(e));
    /* A model's own temperature is meant for thinking; without, never hotter than the built-in. */
    if (r->enable_thinking < 0) s.temperature = MIN(s.temperature, TEMPERATURE_DEFAULT);
    if (!isnan(o->temperature)) s.temperature = o->temperature;
    if (!isnan(o->top_p)) s.top_p = o->top_p > 0 ? o->top_p : 1; /* off; in a request 0 keeps one token */
    if (!isnan(o->min_p)) s.min_p = o->min_p;
    if (o->top_k >= 0) s.top_k = o->top_k;
    if (!isnan(r->temperature)) s.temperature = (float)r->temperature;
    if (!isnan(r->top_p)) s.top_p = (float)r->top_p;
    if (!isnan(r->min_p)) s.min_p = (float)r->min_p;
    if (r->top_k != INT_UNSET) s.top_k = (int32_t)MAX(r->top_k, 0);
    if (!isnan(r->repetition_penalty)) s.repetition_penalty = (float)r->repetition_penalty;
    s.repetition_window = (int32_t)r->repetition_window;
    s.presence_penalty = (float)r->presence_penalty;
    s.presence_window = (int32_t)r->presence_window;
    s.frequency_penalty = (float)r->frequency_penalty;
    s.frequency_window = (int32_t)r->frequency_window;
    s.bias_ids = r->bias_ids;
    s.bias = r->bias;
    s.n_bias = r->n_bias;
    s.has_seed = r->seed != INT_UNSET;
    if (s.has_seed) s.seed = (uint64_t)r->seed + (uint64_t)choice; /* choices of one request differ */
    return s;
}

/* ---- the prompt -------------------------------------------------------------------------------------------------- */
static bool build_chat(http_req *q, chat_request *r, engine *e, prompt *p, error *err) {
    const chat_template *t = engine_template(e);
    if (!t) return error_set(err, ERR_INVALID, "this model has no chat template; use /v1/completions");
    thinking_resolve(q, r);
    render_opts o = {.messages = r->messages,
                     .tools = tools_typed(q->a, r->tools),
                     .variables = r->variables,
                     .add_generation_prompt = true,
                     .memory_max = q->s->o.bodies_max};
    if (prompt_render(p, t, engine_tokenizer(e), &o, err)) return true;
    error_prefix(err, "prompt build failed: ");
    return false;
}

static bool build_prompt(http_req *q, chat_request *r, engine *e, prompt *p, error *err) {
    if (r->surface == SURFACE_CHAT) return build_chat(q, r, e, p, err);
    return prompt_raw(p, engine_tokenizer(e), r->prompt, err);
}

bool run_prompt(http_req *q, chat_request *r, prompt *p, error *err) {
    engine *e = atomic_load(&q->s->e);
    p->tokens_max = engine_context(e);
    return build_prompt(q, r, e, p, err);
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */
static bool admit_tokens(gen_run *run, const engine *e, size_t n_prompt, error *err) {
    const chat_request *r = run->req;
    const server_opts *o = &run->q->s->o;
    int64_t want = r->max_completion_tokens != INT_UNSET && r->max_completion_tokens >= 0 ? r->max_completion_tokens
                                                                                          : r->max_tokens;
    bool explicit = want != INT_UNSET && want >= 0;
    if (!explicit) want = o->max_tokens ? o->max_tokens : r->surface == SURFACE_CHAT ? CHAT_TOKENS : RAW_TOKENS;
    return engine_clamp(e, n_prompt, want, !explicit || engine_context_fixed(e), &run->max_tokens, &run->clamped, err);
}

static void wake(void *q) {
    http_wake(q);
}

static bool submit(gen_run *run, engine *e, const prompt *p, error *err) {
    const chat_request *r = run->req;
    const chat_template *t = r->surface == SURFACE_CHAT ? engine_template(e) : NULL;
    const think_form *think = t ? think_form_of(t, run->tok) : NULL;
    const call_form *calls = t ? call_form_of(t, run->tok) : NULL;
    tool_list *tools = t && r->tools ? tool_list_new(r->tools, calls) : NULL;
    structured_grammars forms;
    bool ok = structured_compile(run->q, r, think, calls, &forms, err);
    for (int i = 0; i < run->n && ok; i++) {
        gen_opts o = {
            .prompt = p->ids.p,
            .n_prompt = p->ids.n,
            .max_tokens = run->max_tokens,
            .sample = settings(run->q, r, e, i),
            .stops = r->stops,
            .n_stops = r->n_stops,
            .ignore_eos = r->ignore_eos,
            .keep_special = r->keep_special,
            .want_tokens = r->logprobs || run->trace,
            .logprobs = r->logprobs,
            .top_logprobs = (int32_t)MAX(r->top_logprobs, 0),
            .split_thinking = think != NULL,
            .think = think,
            .prompt_tail = p->tail,
            .marks = p->marks.p,
            .n_marks = p->marks.n,
            .tools = tools,
            .one_call = r->one_call,
            .has_think_budget = r->thinking_budget >= 0,
            .think_budget = (int32_t)r->thinking_budget,
            .grammar = forms.answer,
            .grammar_open = forms.open,
            .grammar_lead = forms.lead,
            .wake = wake,
            .wake_arg = run->q,
        };
        choice *c = &run->choices[i];
        *c = (choice){.run = run, .index = i};
        ok = (c->g = engine_submit(e, &o, err)) != NULL;
    }
    tool_list_drop(tools);
    structured_drop(&forms);
    return ok;
}

static void make_id(char *out, size_t n, const char *prefix) {
    uint64_t a = random_u64(), b = random_u64();
    snprintf(out, n, "%s%08x-%04x-4%03x-%04x-%012llx", prefix, (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff,
             (unsigned)a & 0xfff, ((unsigned)(b >> 48) & 0x3fff) | 0x8000, (unsigned long long)b & 0xffffffffffffull);
}

bool run_start(http_req *q, chat_request *r, const surface *f, const char *id_prefix, error *err) {
    engine *e = atomic_load(&q->s->e);
    gen_run *run = arena_alloc(q->a, sizeof *run);
    *run =
        (gen_run){.q = q, .surface = f, .req = r, .tok = engine_tokenizer(e), .created = clock_unix(), .n = (int)r->n};
    run->model = engine_model_id(e);
    run->choices = arena_array(q->a, choice, r->n);
    make_id(run->id, sizeof run->id, id_prefix);
    prompt p = {.tokens_max = engine_context(e)};
    bool ok = build_prompt(q, r, e, &p, err) && admit_tokens(run, e, p.ids.n, err);
    if (ok) trace_begin(run, &p);
    ok = ok && submit(run, e, &p, err);
    prompt_free(&p);
    if (!ok) {
        run_free(run);
        return false;
    }
    unknown_warn(q, r->unknown);
    watch_publish(q->s->watch, q, run);
    return true;
}

void run_cancel(gen_run *r) {
    for (int i = 0; i < r->n; i++)
        if (r->choices[i].g) gen_cancel(r->choices[i].g);
}

void run_free(gen_run *r) {
    if (!r) return;
    trace_end(r);
    for (int i = 0; i < r->n; i++) {
        choice *c = &r->choices[i];
        gen_free(c->g);
        buf *owned[] = {&c->content,   &c->reasoning, &c->logprobs,  &c->lp_tokens,
                        &c->lp_values, &c->lp_tops,   &c->lp_offsets};
        for (size_t j = 0; j < COUNT(owned); j++) buf_free(owned[j]);
        for (int j = 0; j < c->n_calls; j++) buf_free(&c->calls[j].name), buf_free(&c->calls[j].args);
        free(c->calls);
    }
    buf_free(&r->prefix);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */
static void keepalive(gen_run *r) {
    if (r->surface->ping) {
        r->surface->ping(r, &r->q->out);
        return;
    }
    buf_printf(&r->q->out, ": keepalive %d/%d\n\n", r->progress_done, r->progress_total);
}

static void on_text(choice *c, str text, bool reasoning) {
    gen_run *r = c->run;
    if (r->req->stream)
        r->surface->delta(r, c, text, reasoning, &r->q->out);
    else
        buf_str(reasoning ? &c->reasoning : &c->content, text);
}

static call *call_begin(choice *c, str name) {
    if (c->n_calls == c->calls_cap) c->calls = mem_resize(c->calls, (size_t)(c->calls_cap += 8) * sizeof *c->calls);
    call *t = &c->calls[c->n_calls++];
    *t = (call){0};
    snprintf(t->id, sizeof t->id, "call_%08x", (unsigned)random_u64());
    buf_str(&t->name, name);
    return t;
}

static void on_call(choice *c, const gen_event *ev) {
    gen_run *r = c->run;
    call *t = ev->kind == GEN_CALL ? call_begin(c, ev->text) : &c->calls[ev->call];
    if (ev->kind == GEN_ARGS) buf_str(&t->args, ev->text);
    t->ended = ev->kind == GEN_CALL_END;
    t->whole = t->ended && ev->whole;
    if (r->req->stream && r->surface->tool) r->surface->tool(r, c, t, ev, &r->q->out);
}

bool choice_calls(const choice *c) {
    for (int i = 0; i < c->n_calls; i++)
        if (!c->calls[i].whole) return false;
    return c->n_calls > 0;
}

static void on_done(choice *c, const gen_event *ev) {
    gen_run *r = c->run;
    c->done = true;
    c->why = ev->why;
    c->stop_index = ev->stop_index;
    r->n_done++;
    if (ev->why == FINISH_ERROR)
        r->err = ev->err;
    else if (ev->why == FINISH_CANCELLED)
        error_set(&r->err, ERR_CANCELLED, "the request was cancelled");
    else if (r->req->stream)
        r->surface->choice_end(r, c, &r->q->out);
    if (r->err.code == ERR_NONE && r->surface->done) r->surface->done(r, c);
}

static void on_event(choice *c, const gen_event *ev) {
    gen_run *r = c->run;
    switch (ev->kind) {
    case GEN_TEXT: on_text(c, ev->text, false); break;
    case GEN_REASONING: on_text(c, ev->text, true); break;
    case GEN_CALL:
    case GEN_ARGS:
    case GEN_CALL_END: on_call(c, ev); break;
    case GEN_TOKEN:
        trace_token(r, c, ev->token);
        if (r->req->logprobs && r->surface->token) r->surface->token(r, c, ev);
        break;
    case GEN_PROGRESS:
        r->progress_done = ev->done;
        r->progress_total = ev->total;
        if (r->req->stream) keepalive(r);
        break;
    case GEN_DONE: on_done(c, ev); break;
    }
}

/* One failed choice ends the request: its siblings cannot be told apart from it by a client that reads the error. */
static void finish_run(gen_run *r) {
    r->finished = true;
    if (r->err.code != ERR_NONE) {
        run_cancel(r);
        r->q->fail = error_describe(r->err.code)->name;
        if (r->req->stream)
            r->surface->error(r, &r->err, &r->q->out);
        else
            reply_error(r->q, &r->err);
        return;
    }
    if (r->req->stream) {
        r->surface->end(r, &r->q->out);
        return;
    }
    buf b = {0};
    r->surface->reply(r, &b);
    reply_json(r->q, 200, &b);
}

bool run_pump(gen_run *r) {
    if (r->finished) return true;
    buf *out = &r->q->out;
    if (out->n - r->q->out_at > OUT_HIGH) return false;
    if (!r->started) {
        r->started = true;
        if (r->req->stream) r->surface->begin(r, out);
    }
    gen_event ev;
    for (int i = 0; i < r->n && r->err.code == ERR_NONE; i++)
        while (!r->choices[i].done && r->choices[i].g && gen_next(r->choices[i].g, &ev, 0))
            on_event(&r->choices[i], &ev);
    if (atomic_exchange(&r->q->ping, false) && out->n == r->q->out_at && r->req->stream) keepalive(r);
    if (r->n_done < r->n && r->err.code == ERR_NONE) return false;
    finish_run(r);
    return true;
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */
void run_stats_add(gen_stats *all, const gen *g) {
    gen_stats one;
    gen_stats_get(g, &one);
    all->prompt_tokens += one.prompt_tokens;
    all->cached_tokens += one.cached_tokens;
    all->generated_tokens += one.generated_tokens;
    all->reasoning_tokens += one.reasoning_tokens;
    all->queued_ns = MAX(all->queued_ns, one.queued_ns);
    all->prefill_ns = MAX(all->prefill_ns, one.prefill_ns);
    all->decode_ns = MAX(all->decode_ns, one.decode_ns);
}

gen_stats run_stats(const gen_run *r) {
    gen_stats all = r->past, one;
    for (int i = 0; i < r->n; i++) {
        if (!r->choices[i].g) continue; /* it was not admitted */
        int32_t prompt = all.prompt_tokens, cached = all.cached_tokens;
        run_stats_add(&all, r->choices[i].g);
        gen_stats_get(r->choices[i].g, &one);
        all.prompt_tokens = MAX(prompt, one.prompt_tokens); /* one prompt, however many choices */
        all.cached_tokens = i ? MIN(cached, one.cached_tokens) : one.cached_tokens;
    }
    return all;
}

void run_usage(gen_run *r, buf *out) {
    gen_stats all = run_stats(r);
    buf_printf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d", all.prompt_tokens,
               all.generated_tokens, all.prompt_tokens + all.generated_tokens);
    buf_printf(
        out,
        ",\"prompt_tokens_details\":{\"cached_tokens\":%d},\"completion_tokens_details\":{\"reasoning_tokens\":%d}",
        all.cached_tokens, all.reasoning_tokens);
    if (r->req->surface == SURFACE_CHAT) buf_puts(out, ",\"lane\":\"batched\"");
    if (r->clamped) buf_puts(out, ",\"max_tokens_clamped\":true");
    buf_printf(out, ",\"timings\":{\"queued_ms\":%.3f,\"prefill_ms\":%.3f,\"decode_ms\":%.3f}}", all.queued_ns / 1e6,
               all.prefill_ns / 1e6, all.decode_ns / 1e6);
}
