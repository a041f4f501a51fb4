/* Starting and closing an engine, taking requests in, counters. Not here: reading the model from disk (open.c), what
 * the engine's thread does (scheduler.c). */
#include <stdlib.h>
#include "internal.h"

void engine_parts_close(engine_parts *p) {
    chat_template_free(p->template);
    tokenizer_free(p->tokenizer);
    model_close(p->model);
    device_close(p->device);
    checkpoint_close(p->checkpoint);
    *p = (engine_parts){0};
}

char *engine_id_of(const char *path) {
    str s = str_of(path ? path : "model");
    while (s.n > 1 && s.p[s.n - 1] == '/') s.n--;
    for (size_t i = s.n; i-- > 0;)
        if (s.p[i] == '/' && i + 1 < s.n) {
            s = str_slice(s, i + 1, s.n);
            break;
        }
    if (str_ends(s, STR(".gguf"))) s.n -= 5;
    return mem_strndup(s.p, s.n);
}

/* Plan and caches; sizes before memory. */
static bool memory_open(engine *e, const engine_opts *o, error *err) {
    device *d = e->parts.device;
    kv_spec spec;
    plan_in in;
    plan_inputs(&in, o, d, e->parts.model, e->parts.text_bytes, &spec);
    if (!plan_make(&e->plan, &in, err)) return false;
    plan_parts(&in, &e->plan, 0, &e->memory);
    if (o->prompt_cache > 0 && e->plan.cache_bytes < (size_t)o->prompt_cache / 10 * 9)
        log_warn("the prompt cache has %.2f GB: what is left of the budget, or all the model could use",
                 (double)e->plan.cache_bytes / 1e9);
    for (int g = 0; g < spec.n_groups; g++) spec.n_pages[g] = e->plan.n_pages[g] + e->plan.cache_pages_max[g];
    const int32_t n_slots = in.state ? e->batch + e->plan.cache_slots_max : 0;
    kv_store_init(&e->store, &spec, in.page_bytes, n_slots);
    e->store.state_bytes = in.state;
    if (e->plan.cache_blocks) {
        e->store.bytes_max = e->plan.kv_bytes + e->plan.cache_room;
        e->store.touched_max = e->store.bytes_max + (size_t)e->batch * in.state;
    }
    if (e->plan.cache_blocks && !(e->prefix = prefix_new(&e->store, &e->plan, err))) return false;
    e->kv = d->vt->kv_new(d, &spec, err);
    if (e->kv && in.state) {
        state_spec state = *model_state_spec(e->parts.model);
        state.n_slots = n_slots;
        if (!(e->state = d->vt->state_new(d, &state, err))) return false;
    }
    e->store.d = d;
    e->store.kv = e->kv;
    e->store.state = e->state;
    error none = {0};
    e->tier = tier_open(e, o, in.budget, &spec, &none);
    if (none.code) return err ? *err = none, false : false;
    e->logits_bytes = (size_t)e->out_max * (size_t)e->info->vocab * sizeof(float);
    e->logits = e->kv ? d->vt->alloc(d, e->logits_bytes, err) : NULL;
    if (!e->logits) return false;
    if (e->parts.embedding.width) {
        e->hidden_bytes = (size_t)e->out_max * (size_t)e->info->width * sizeof(float);
        if (!(e->hidden = d->vt->alloc(d, e->hidden_bytes, err))) return false;
    }
    e->scratch = mem_alloc((size_t)e->n_workers * sizeof *e->scratch);
    for (int i = 0; i < e->n_workers; i++)
        if (!sampler_scratch_init(&e->scratch[i], e->info->vocab, err)) return false;
    e->stats.weight_bytes = in.weights;
    e->stats.workspace_bytes = e->plan.fixed_bytes - in.weights;
    e->stats.kv_bytes_max = e->plan.kv_bytes;
    return true;
}

static void engine_free(engine *e) {
    device *d = e->parts.device;
    tier_close(e->tier);
    if (e->scratch)
        for (int i = 0; i < e->n_workers; i++) sampler_scratch_deinit(&e->scratch[i]);
    free(e->scratch);
    if (e->logits) d->vt->free(d, e->logits, e->logits_bytes);
    if (e->hidden) d->vt->free(d, e->hidden, e->hidden_bytes);
    if (e->kv) d->vt->kv_free(d, e->kv);
    if (e->state) d->vt->state_free(d, e->state);
    prefix_free(e->prefix);
    kv_store_deinit(&e->store);
    free(e->running);
    free(e->row_id);
    free(e->row_pos);
    free(e->row_out);
    free(e->seqs);
    free(e->part);
    engine_parts_close(&e->parts);
    pthread_mutex_destroy(&e->mu);
    pthread_cond_destroy(&e->cond);
    pthread_cond_destroy(&e->flushed);
    free(e->id);
    free(e);
}

void engine_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

engine *engine_start(engine_parts *parts, const engine_opts *o, error *err) {
    engine *e = mem_alloc(sizeof *e);
    e->parts = *parts;
    *parts = (engine_parts){0};
    e->id = o->model_id ? mem_strdup(o->model_id) : engine_id_of(o->model_path);
    pthread_mutex_init(&e->mu, NULL);
    engine_cond_init(&e->cond);
    engine_cond_init(&e->flushed);
    e->queue_end = &e->queue;
    e->info = model_describe(e->parts.model);
    e->queue_max = o->queue_max;
    e->kv_late = o->kv_late;
    e->rows_max = e->parts.device->rows_max;
    e->chunk = MIN(o->prefill_chunk, e->rows_max);
    e->batch = MIN(o->batch, e->rows_max);
    e->out_max = e->batch + LOGIT_ROWS;
    e->n_workers = e->parts.device->threads ? pool_size(e->parts.device->threads) : 1;
    if (!memory_open(e, o, err)) {
        engine_free(e);
        return NULL;
    }
    fingerprint_write(e->fingerprint, sizeof e->fingerprint, e, o);
    e->running = mem_alloc((size_t)e->batch * sizeof *e->running);
    e->row_id = mem_alloc((size_t)e->rows_max * sizeof *e->row_id);
    e->row_pos = mem_alloc((size_t)e->rows_max * sizeof *e->row_pos);
    e->row_out = mem_alloc((size_t)e->out_max * sizeof *e->row_out);
    e->seqs = mem_alloc((size_t)e->batch * sizeof *e->seqs);
    e->part = mem_alloc((size_t)e->batch * sizeof *e->part);
    e->started = pthread_create(&e->thread, NULL, scheduler_main, e) == 0;
    if (!e->started) {
        error_set(err, ERR_INTERNAL, "cannot start the engine's thread");
        engine_free(e);
        return NULL;
    }
    return e;
}

void engine_close(engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->mu);
    e->closing = true;
    pthread_cond_broadcast(&e->cond);
    pthread_cond_broadcast(&e->flushed);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
    engine_free(e);
}

/* ---- what callers ask -------------------------------------------------------------------------------------------- */
const model_info *engine_model(const engine *e) {
    return e->info;
}
const tokenizer *engine_tokenizer(const engine *e) {
    return e->parts.tokenizer;
}
const chat_template *engine_template(const engine *e) {
    return e->parts.template;
}
const char *engine_model_id(const engine *e) {
    return e->id;
}
const gen_defaults *engine_defaults(const engine *e) {
    return &e->parts.defaults;
}
const embedding_info *engine_embedding(const engine *e) {
    return e->parts.embedding.width ? &e->parts.embedding : NULL;
}
const char *engine_fingerprint(const engine *e) {
    return e->fingerprint;
}
int engine_context(const engine *e) {
    return e->plan.context;
}
bool engine_context_fixed(const engine *e) {
    return e->memory.context_fixed;
}
const memory_plan *engine_plan(const engine *e) {
    return &e->memory;
}

bool engine_clamp(const engine *e, size_t n_prompt, int64_t requested, bool clamp, int32_t *granted, bool *clamped,
                  error *err) {
    const int64_t context = e->plan.context;
    const int64_t room = n_prompt < (size_t)context ? context - (int64_t)n_prompt : 0;
    *clamped = false;
    if (requested < 0)
        return error_field(err, ERR_INVALID, "max_tokens", "max_tokens must be at least 0, not %lld",
                           (long long)requested);
    if (room < 1)
        return error_field(err, ERR_MEMORY, "messages",
                           "the prompt has %zu tokens, which leaves no place for a reply in the context of %lld",
                           n_prompt, (long long)context);
    if (requested > room && !clamp)
        return error_field(
            err, ERR_MEMORY, "max_tokens",
            "%lld tokens are needed (prompt %zu + max_tokens %lld), but the context holds %lld",
            (long long)(requested > INT64_MAX - (int64_t)n_prompt ? INT64_MAX : requested + (int64_t)n_prompt),
            n_prompt, (long long)requested, (long long)context);
    *clamped = requested > room;
    *granted = (int32_t)MIN(requested, room);
    return true;
}

static bool prompt_check(const engine *e, const int32_t *id, size_t n, error *err) {
    if (n == 0) return error_field(err, ERR_INVALID, "prompt", "the prompt is empty");
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= e->info->vocab)
            return error_field(err, ERR_INVALID, "prompt", "prompt token %zu is %d; tokens are 0 to %d", i, id[i],
                               e->info->vocab - 1);
    return true;
}

void engine_poke(engine *e) {
    pthread_mutex_lock(&e->mu);
    e->poke++;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->mu);
}

bool engine_enqueue(engine *e, gen *g, error *err) {
    pthread_mutex_lock(&e->mu);
    bool ok = false;
    if (e->stats.failed || e->closing)
        error_set(err, ERR_UNAVAILABLE, "the engine %s", e->closing ? "is closing" : "has failed");
    else if (g->bytes > e->plan.reply_bytes - MIN(e->plan.reply_bytes, e->reply_bytes))
        error_set(err, ERR_QUEUE_FULL, "the memory for requests (%.1f MB) is in use; try again later",
                  (double)e->plan.reply_bytes / 1e6);
    else if (e->n_queue >= e->queue_max)
        error_set(err, ERR_QUEUE_FULL, "%d requests are waiting already; try again later", e->n_queue);
    else
        ok = true;
    if (ok) {
        g->number = e->n_submitted++;
        *e->queue_end = g;
        e->queue_end = &g->next;
        e->n_queue++;
        e->reply_bytes += g->bytes;
        e->stats.requests_total++;
        e->poke++;
        pthread_cond_signal(&e->cond);
    } else {
        e->stats.requests_rejected++;
    }
    pthread_mutex_unlock(&e->mu);
    return ok;
}

static gen *submit(engine *e, const gen_opts *o, const logits_sink *sink, error *err) {
    gen *g = gen_new(e, o, err);
    if (!g) return NULL;
    if (sink) g->sink = *sink;
    if (engine_enqueue(e, g, err)) return g;
    gen_drop(g);
    gen_drop(g);
    return NULL;
}

gen *engine_submit(engine *e, const gen_opts *o, error *err) {
    int32_t granted;
    bool clamped;
    if (!prompt_check(e, o->prompt, o->n_prompt, err) || !sampling_check(&o->sample, e->info->vocab, err) ||
        !engine_clamp(e, o->n_prompt, o->max_tokens, false, &granted, &clamped, err))
        return NULL;
    for (size_t k = 0; k < o->n_stops; k++)
        if (utf8_valid(o->stops[k]) != o->stops[k].n) { /* half a character would be held back from a whole one */
            error_field(err, ERR_INVALID, "stop", "stop string %zu is not valid UTF-8", k);
            return NULL;
        }
    if (o->top_logprobs < 0 || o->top_logprobs > TOP_LOGPROBS_MAX) {
        error_field(err, ERR_INVALID, "top_logprobs", "top_logprobs must be between 0 and %d, not %d", TOP_LOGPROBS_MAX,
                    o->top_logprobs);
        return NULL;
    }
    if (o->want_hidden && (!e->hidden || o->max_tokens)) {
        error_set(err, ERR_INVALID, "this model gives no embeddings");
        return NULL;
    }
    return submit(e, o, NULL, err);
}

bool engine_logits(engine *e, const int32_t *id, size_t n_ids, int n_greedy, float *logits, int32_t *greedy_ids,
                   float *greedy_logits, error *err) {
    if (!prompt_check(e, id, n_ids, err)) return false;
    if (n_greedy < 0 || n_ids > (size_t)e->plan.context || n_ids + (size_t)n_greedy > (size_t)e->plan.context)
        return error_field(err, ERR_MEMORY, "ids", "%zu tokens and %d steps do not fit the context of %d", n_ids,
                           n_greedy, e->plan.context);
    gen_opts o = {.prompt = id, .n_prompt = n_ids, .max_tokens = n_greedy, .sample = {.top_p = 1}, .ignore_eos = true};
    gen *g = submit(e, &o, &(logits_sink){.prompt = logits, .greedy = greedy_logits, .greedy_id = greedy_ids}, err);
    if (!g) return false;
    gen_event ev = {.kind = GEN_TEXT};
    while (ev.kind != GEN_DONE) gen_next(g, &ev, -1);
    gen_free(g);
    if (ev.why == FINISH_LENGTH) return true;
    return error_set(err, ev.why == FINISH_ERROR ? ev.err.code : ERR_CANCELLED, "%s",
                     ev.why == FINISH_ERROR ? ev.err.msg : "the engine was closed");
}

void engine_stats_get(const engine *e, engine_stats *out) {
    engine *m = (engine *)e; /* the lock is not part of what the caller sees */
    pthread_mutex_lock(&m->mu);
    *out = m->stats;
    out->waiting = m->n_queue + m->n_aside;
    if (m->idle) out->last_step_ns = clock_ns();
    pthread_mutex_unlock(&m->mu);
    if (m->tier) tier_stats_add(m->tier, &out->ssd);
}
