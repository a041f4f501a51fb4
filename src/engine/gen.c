/* A generation as its caller sees it: the events, cancelling, life time. The engine fills one box of events while the
 * caller reads the other (internal.h). Not here: which token (sampler.c), when (scheduler.c). */
#include <errno.h>
#include <stdlib.h>
#include "internal.h"

static void *copied(const void *p, size_t n) {
    if (!n) return NULL;
    void *c = mem_alloc(n);
    memcpy(c, p, n);
    return c;
}

enum { MARK_GAP = 512, MARKS_LAST = 4 };

/* Of a long conversation not every message: the first, the last ones, and those some way from the one before. A step
 * ends at each (recurrent models), so of two that are close together only the second. */
static void marks_choose(gen *g, const gen_opts *o) {
    if (!o->n_marks) { /* another ending is likely to follow the same beginning */
        if (g->n_prompt <= KV_PAGE) return;
        g->marks = mem_alloc(sizeof *g->marks);
        g->marks[g->n_marks++] = (g->n_prompt - 1) / KV_PAGE * KV_PAGE;
        return;
    }
    g->marks = mem_alloc(o->n_marks * sizeof *g->marks);
    int32_t last = 0;
    for (size_t i = 0; i < o->n_marks; i++) {
        const int32_t at = o->marks[i];
        if (at <= last || at > g->n_prompt) continue;
        if (g->n_marks && i + MARKS_LAST < o->n_marks && at - last < MARK_GAP) continue;
        if (g->n_marks && at - last < MARK_NEAR) g->n_marks--;
        last = g->marks[g->n_marks++] = at;
    }
}

/* What a generation holds beside its tokens and page tables; the machine for its text about 8 KiB, and its hidden row
 * counts as logits. */
enum { TEXT_SPARE = 1024, MACHINE_BYTES = 8192 };
size_t gen_bytes(int32_t n_top, int32_t n_groups, int64_t cap) {
    size_t pages = (size_t)n_groups * (size_t)(cap / KV_PAGE + 1) * sizeof(int32_t);
    return sizeof(gen) +
           2 * (BOX_TEXT + TEXT_SPARE + BOX_EVENTS * sizeof(queued_event) +
                BOX_EVENTS * (size_t)n_top * sizeof(token_prob)) +
           MACHINE_BYTES + (size_t)cap * sizeof(int32_t) + pages;
}

gen *gen_new(engine *e, const gen_opts *o, error *err) {
    /* As long as the client's prompt and reply, so this may be refused. */
    int32_t cap = (int32_t)o->n_prompt + o->max_tokens, *id = calloc((size_t)cap, sizeof *id);
    if (!id) {
        error_set(err, ERR_MEMORY, "no memory for a request of %d tokens", cap);
        return NULL;
    }
    gen *g = mem_alloc(sizeof *g);
    *g = (gen){.e = e,
               .refs = 2,
               .stop_index = -1,
               .wake = o->wake,
               .wake_arg = o->wake_arg,
               .sample = o->sample,
               .seed = o->sample.has_seed ? o->sample.seed : random_u64(),
               .n_prompt = (int32_t)o->n_prompt,
               .max_tokens = o->max_tokens,
               .ignore_eos = o->ignore_eos,
               .want_tokens = o->want_tokens,
               .logprobs = o->logprobs || o->top_logprobs > 0,
               .n_top = o->top_logprobs};
    pthread_mutex_init(&g->mu, NULL);
    pthread_mutex_init(&g->wake_mu, NULL);
    engine_cond_init(&g->cond);
    g->sample.bias_ids = copied(o->sample.bias_ids, o->sample.n_bias * sizeof *o->sample.bias_ids);
    g->sample.bias = copied(o->sample.bias, o->sample.n_bias * sizeof *o->sample.bias);
    /* Everything a decode step touches is reserved here, so that it need not allocate. */
    g->bytes = gen_bytes(g->want_tokens ? g->n_top : 0, e->store.n_groups, cap);
    sequence_init(&g->seq, &e->store, cap);
    g->seq.id.p = id;
    g->seq.id.cap = (size_t)cap;
    ids_append(&g->seq.id, o->prompt, o->n_prompt);
    marks_choose(g, o);
    prefix_space_key(o->space, &g->space);
    for (int i = 0; i < 2; i++) {
        buf_reserve(&g->box[i].text, BOX_TEXT + TEXT_SPARE);
        g->box[i].ev = mem_alloc((g->box[i].cap = BOX_EVENTS) * sizeof *g->box[i].ev);
        if (g->n_top && g->want_tokens) g->box[i].top = mem_alloc(BOX_EVENTS * (size_t)g->n_top * sizeof(token_prob));
    }
    g->out = output_new(e->parts.tokenizer, &(output_opts){.stops = o->stops,
                                                           .n_stops = o->n_stops,
                                                           .keep_special = o->keep_special,
                                                           .prompt_tail = o->prompt_tail,
                                                           .split_thinking = o->split_thinking,
                                                           .think = o->think,
                                                           .tools = o->tools,
                                                           .one_call = o->one_call,
                                                           .has_think_budget = o->has_think_budget,
                                                           .think_budget = o->think_budget,
                                                           .reply_max = o->max_tokens});
    g->constraint = constraint_new(o, g->out, e->info->vocab);
    if (o->want_hidden) g->hidden = mem_alloc((size_t)e->info->width * sizeof(float));
    g->stats.prompt_tokens = g->n_prompt;
    g->t_submit = clock_ns();
    return g;
}

void gen_drop(gen *g) {
    if (atomic_fetch_sub(&g->refs, 1) != 1) return;
    for (int i = 0; i < 2; i++) {
        buf_free(&g->box[i].text);
        free(g->box[i].ev);
        free(g->box[i].top);
    }
    sequence_deinit(&g->seq, NULL);
    output_free(g->out);
    constraint_free(g->constraint);
    free(g->hidden);
    free(g->marks);
    free((void *)g->sample.bias_ids);
    free((void *)g->sample.bias);
    pthread_mutex_destroy(&g->mu);
    pthread_mutex_destroy(&g->wake_mu);
    pthread_cond_destroy(&g->cond);
    free(g);
}

/* ---- the engine's side ------------------------------------------------------------------------------------------- */
bool gen_has_room(gen *g) {
    pthread_mutex_lock(&g->mu);
    const event_box *b = &g->box[g->filling];
    bool room = b->n < BOX_EVENTS - BOX_SPARE && b->text.n < BOX_TEXT;
    g->paused = !room;
    pthread_mutex_unlock(&g->mu);
    return room;
}

/* [mu held] */
static queued_event *event_add(gen *g, gen_event_kind kind) {
    event_box *b = &g->box[g->filling];
    if (b->n == b->cap) b->ev = mem_resize(b->ev, (size_t)(b->cap *= 2) * sizeof *b->ev);
    queued_event *ev = &b->ev[b->n++];
    *ev = (queued_event){.kind = kind, .text_at = b->text.n};
    g->news = true;
    return ev;
}

/* [mu held] Text of one kind grows one event, unless token events must stay between. */
static void output_add(gen *g, const output_event *ev) {
    static const gen_event_kind kinds[] = {[OUTPUT_CONTENT] = GEN_TEXT,
                                           [OUTPUT_REASONING] = GEN_REASONING,
                                           [OUTPUT_CALL] = GEN_CALL,
                                           [OUTPUT_ARGS] = GEN_ARGS,
                                           [OUTPUT_CALL_END] = GEN_CALL_END};
    gen_event_kind kind = kinds[ev->kind];
    bool grows = kind == GEN_TEXT || kind == GEN_REASONING || kind == GEN_ARGS;
    if (kind == GEN_REASONING) g->stats.reasoning_tokens += g->unplaced;
    g->unplaced = 0;
    if (grows && !ev->text.n) return;
    event_box *b = &g->box[g->filling];
    queued_event *last = b->n ? &b->ev[b->n - 1] : NULL;
    if (!grows || !last || last->kind != kind || last->call != ev->call) last = event_add(g, kind);
    last->call = ev->call;
    last->whole = ev->whole;
    buf_add(&b->text, ev->text.p, ev->text.n);
    last->text_n += ev->text.n;
    g->news = true;
}

void gen_token(gen *g, const sampler_out *s, bool show_text, int *stopped) {
    const output_event *ev = NULL;
    *stopped = OUTPUT_GOES_ON;
    g->n_generated++;
    g->unplaced++;
    size_t n = show_text ? output_push(g->out, s->token, &ev, stopped) : 0;
    pthread_mutex_lock(&g->mu);
    g->stats.generated_tokens = g->n_generated;
    if (g->want_tokens) {
        queued_event *t = event_add(g, GEN_TOKEN);
        event_box *b = &g->box[g->filling];
        t->token = s->token;
        t->logprob = s->logprob;
        t->top_at = b->n_top;
        t->n_top = s->n_top;
        if (s->n_top) memcpy(b->top + b->n_top, s->top, (size_t)s->n_top * sizeof *s->top);
        b->n_top += (size_t)s->n_top;
    }
    for (size_t i = 0; i < n; i++) output_add(g, &ev[i]);
    pthread_mutex_unlock(&g->mu);
}

void gen_progress(gen *g, int32_t done, int32_t total) {
    pthread_mutex_lock(&g->mu);
    event_box *b = &g->box[g->filling];
    queued_event *last = b->n && b->ev[b->n - 1].kind == GEN_PROGRESS ? &b->ev[b->n - 1] : event_add(g, GEN_PROGRESS);
    last->done = done;
    last->total = total;
    g->news = true;
    pthread_mutex_unlock(&g->mu);
}

void gen_finish(gen *g, finish why, int32_t stop_index, const error *err) {
    const output_event *ev = NULL;
    size_t n = why == FINISH_STOP_STRING ? 0 : output_finish(g->out, &ev);
    uint64_t now = clock_ns();
    pthread_mutex_lock(&g->mu);
    for (size_t i = 0; i < n; i++) output_add(g, &ev[i]);
    event_add(g, GEN_DONE);
    g->why = why;
    g->stop_index = stop_index;
    if (err) g->err = *err;
    if (!g->t_start) g->stats.queued_ns = now - g->t_submit;
    if (g->t_start && !g->t_first) g->stats.prefill_ns = now - g->t_start;
    if (g->t_first) g->stats.decode_ns = now - g->t_first;
    g->e = NULL;
    pthread_mutex_unlock(&g->mu);
    gen_wake(g);
    gen_drop(g);
}

void gen_wake(gen *g) {
    if (!g->news) return;
    g->news = false;
    pthread_cond_signal(&g->cond);
    pthread_mutex_lock(&g->wake_mu);
    if (g->wake) g->wake(g->wake_arg);
    pthread_mutex_unlock(&g->wake_mu);
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */
/* Changes the boxes when the caller's is read to the end and the engine's has something; false when nothing came in
 * time. */
static bool box_swap(gen *g, int timeout_ms) {
    struct timespec until = {0};
    if (timeout_ms > 0) until = clock_in_ms(timeout_ms);
    bool resume = false;
    pthread_mutex_lock(&g->mu);
    while (g->box[g->filling].n == 0) {
        int rc = timeout_ms == 0  ? ETIMEDOUT
                 : timeout_ms < 0 ? pthread_cond_wait(&g->cond, &g->mu)
                                  : pthread_cond_timedwait(&g->cond, &g->mu, &until);
        if (rc == ETIMEDOUT) break;
    }
    bool any = g->box[g->filling].n > 0;
    if (any) {
        event_box *mine = &g->box[!g->filling];
        mine->n = 0;
        mine->text.n = 0;
        mine->n_top = 0;
        g->read = 0;
        g->filling = !g->filling;
        resume = g->paused && g->e;
        g->paused = false;
        if (resume) engine_poke(g->e);
    }
    pthread_mutex_unlock(&g->mu);
    return any;
}

bool gen_peek(const gen *g, gen_event_kind *kind) {
    const event_box *b = &g->box[!g->filling];
    if (g->read >= b->n) return false;
    *kind = b->ev[g->read].kind;
    return true;
}

bool gen_next(gen *g, gen_event *ev, int timeout_ms) {
    if (g->ended) return false;
    const event_box *b = &g->box[!g->filling]; /* only this thread changes `filling` */
    if (g->read >= b->n) {
        if (!box_swap(g, timeout_ms)) return false;
        b = &g->box[!g->filling];
    }
    const queued_event *q = &b->ev[g->read++];
    *ev = (gen_event){.kind = q->kind,
                      .text = {b->text.p + q->text_at, q->text_n},
                      .call = q->call,
                      .whole = q->whole,
                      .token = q->token,
                      .logprob = q->logprob,
                      .top = q->n_top ? b->top + q->top_at : NULL,
                      .n_top = q->n_top,
                      .done = q->done,
                      .total = q->total,
                      .stop_index = -1};
    if (q->kind == GEN_DONE) {
        pthread_mutex_lock(&g->mu);
        ev->why = g->why;
        ev->stop_index = g->stop_index;
        ev->err = g->err;
        pthread_mutex_unlock(&g->mu);
        g->ended = true;
    }
    return true;
}

void gen_cancel(gen *g) {
    pthread_mutex_lock(&g->mu);
    if (g->e) {
        atomic_store(&g->cancel, true);
        atomic_fetch_add(&g->e->cancels, 1);
        engine_poke(g->e);
    }
    pthread_mutex_unlock(&g->mu);
}

void gen_free(gen *g) {
    if (!g) return;
    pthread_mutex_lock(&g->wake_mu);
    g->wake = NULL;
    pthread_mutex_unlock(&g->wake_mu);
    gen_cancel(g);
    gen_drop(g);
}

const float *gen_hidden(const gen *g) {
    return g->ended ? g->hidden : NULL;
}

void gen_stats_get(const gen *g, gen_stats *out) {
    gen *m = (gen *)g; /* the lock is not part of what the caller sees */
    pthread_mutex_lock(&m->mu);
    *out = m->stats;
    pthread_mutex_unlock(&m->mu);
}
