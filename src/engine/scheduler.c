/* The scheduler: one thread owns the device and all sequences and turns requests into steps.
 *
 * A turn: cancels take effect, waiting requests are admitted, a step is filled (one row of every running stream first,
 * then chunks of prompts, shared out evenly), the model runs it, each finished row picks its token and its events are
 * queued. Which rows share a step never changes their bits, so the scheduler is free to fill steps as it likes.
 *
 * When pages run out, the youngest sequence gives its own back and is computed again later from its tokens: the same
 * bits, no request is ever refused half-way. Not here: page tables (sequence.c), events (gen.c), the choice of a token
 * (sampler.c). */
#include <errno.h>
#include <stdlib.h>
#include "internal.h"

enum {
    CHUNK_MIN = 16,        /* rows of prompt in a step at least, however slow the machine */
    CHUNK_FIRST = 64,      /* before a step has been timed */
    SHARED_MS = 100,       /* a step with running streams aims to take no longer */
    ALONE_MS = 500,        /* a step of prompts only: how long a cancel may take */
    PAUSE_GRACE_MS = 1000, /* a reader that has been away for so long loses its place when others wait */
    PATIENCE_MS = 250,     /* how often to look whether that has happened */
    MARK_EVERY = 2048      /* tokens between checkpoints where nothing else asks for one */
};

/* ---- who runs ---------------------------------------------------------------------------------------------------- */
static void running_remove(engine *e, int i) {
    e->n_running--;
    memmove(e->running + i, e->running + i + 1, (size_t)(e->n_running - i) * sizeof *e->running);
}

static int running_index(const engine *e, const gen *g) {
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i] == g) return i;
    return -1;
}

/* Pages and state go back; what was computed stays for others as long as there is room. */
static void sequence_retire(engine *e, gen *g, bool keep) {
    if (keep)
        prefix_keep(e->prefix, &g->seq);
    else
        prefix_leave(e->prefix, &g->seq);
    sequence_reset(&g->seq, &e->store);
    prefix_trim(e->prefix);
}

static void finish_gen(engine *e, gen *g, finish why, int32_t stop_index, const error *err) {
    sequence_retire(e, g, why != FINISH_ERROR);
    tier_forget(g);
    pthread_mutex_lock(&e->mu);
    e->stats.requests_cancelled += why == FINISH_CANCELLED;
    e->stats.requests_failed += why == FINISH_ERROR;
    e->reply_bytes -= g->bytes;
    pthread_mutex_unlock(&e->mu);
    gen_finish(g, why, stop_index, err);
}

static void finish_running(engine *e, gen *g, finish why, int32_t stop_index, const error *err) {
    running_remove(e, running_index(e, g));
    finish_gen(e, g, why, stop_index, err);
}

/* Into a list that is in order of arrival. */
static void park(gen **at, gen *g) {
    while (*at && (*at)->number < g->number) at = &(*at)->next;
    g->next = *at;
    *at = g;
}

/* Gives the pages back; the tokens stay, and the request waits for its turn again. */
static void preempt(engine *e, gen *g) {
    running_remove(e, running_index(e, g));
    sequence_retire(e, g, true);
    park(&e->parked, g);
    pthread_mutex_lock(&e->mu);
    e->stats.preempted_total++;
    pthread_mutex_unlock(&e->mu);
}

/* Whom to preempt so that g (NULL: anyone) can go on: a paused one before a running one, the youngest first, nobody
 * older than g and nobody whose rows are in this step already. */
static gen *victim_find(const engine *e, const gen *g) {
    gen *found = NULL;
    for (int i = e->n_running - 1; i >= 0; i--) {
        gen *v = e->running[i];
        bool in_step = false;
        for (int k = 0; k < e->step.n_seqs; k++) in_step |= e->part[k].g == v;
        if (v == g || in_step) continue;
        if (v->t_paused) return v;
        if (!found && (!g || v->number > g->number)) found = v;
    }
    return found;
}

static int32_t missing(const gen *g) {
    return (int32_t)g->seq.id.n - g->seq.n_computed;
}

/* ---- what the prompt cache has for a request --------------------------------------------------------------------- */
/* Callers that want every row of the prompt get them computed. */
static void match_find(engine *e, gen *g) {
    if (g->sink.prompt)
        g->match = (prefix_match){.node = -1, .mark = -1};
    else
        prefix_find(e->prefix, &g->space, g->seq.id.p, (int32_t)g->seq.id.n, &g->match);
}

static void match_take(engine *e, gen *g) {
    prefix_take(e->prefix, &g->space, &g->match, &g->seq);
    const int32_t from = g->seq.n_computed ? g->seq.n_computed + MARK_NEAR : 0;
    for (g->mark_next = 0; g->mark_next < g->n_marks && g->marks[g->mark_next] < from;) g->mark_next++;
}

/* The request starts with what it has: counted, and told if there could have been more. */
static void match_account(engine *e, gen *g) {
    if (g->sink.prompt || !e->prefix || g->counted || g->leader) return;
    g->counted = true;
    const prefix_match *m = &g->match;
    static const char *const why[] = {
#define PREFIX_WHY(name, text) text,
        PREFIX_WHYS
#undef PREFIX_WHY
    };
    prefix_count(e->prefix, m);
    log_write(m->why == PREFIX_WHY_nothing || m->why == PREFIX_WHY_unseen ? LOG_DEBUG : LOG_INFO,
              "request %llu: %d of %d prompt tokens from the cache, %d in common with an earlier one: %s",
              (unsigned long long)g->number, g->seq.n_computed, g->n_prompt, m->common, why[m->why]);
    pthread_mutex_lock(&e->mu);
    e->stats.cached_tokens_total += (uint64_t)g->seq.n_computed;
    pthread_mutex_unlock(&e->mu);
    pthread_mutex_lock(&g->mu);
    g->stats.cached_tokens = g->seq.n_computed;
    pthread_mutex_unlock(&g->mu);
}

/* The last place up to token n where r leaves something to take. */
static int32_t leaves_at(const engine *e, const gen *r, int32_t n) {
    bool exact;
    prefix_marks(e->prefix, &exact);
    if (!exact) return n / KV_PAGE * KV_PAGE;
    int32_t at = n / MARK_EVERY * MARK_EVERY;
    for (int32_t i = 0; i < r->n_marks && r->marks[i] <= n; i++) at = MAX(at, r->marks[i]);
    return at;
}

/* Several requests with one beginning arrive together: one computes it, the others wait for it and compute the rest.
 * Only older ones lead: nobody waits in a circle. */
static void leader_find(engine *e, gen *g) {
    g->leader = 0;
    g->leader_to = g->seq.n_computed + KV_PAGE - 1; /* less is not worth it */
    for (int i = 0; i < e->n_running && !g->sink.prompt && e->prefix; i++) {
        const gen *r = e->running[i];
        const int32_t most = MIN(r->n_prompt, (int32_t)g->seq.id.n - 1);
        int32_t same = 0;
        if (r->number >= g->number || missing(r) <= 1 || memcmp(&r->space, &g->space, sizeof g->space) != 0) continue;
        while (same < most && r->seq.id.p[same] == g->seq.id.p[same]) same++;
        const int32_t to = leaves_at(e, r, same);
        if (to <= g->leader_to || to <= r->seq.n_blocks * KV_PAGE) continue;
        g->leader = r->number + 1;
        g->leader_to = to;
    }
}

static bool waits_for_leader(engine *e, gen *g) {
    if (!g->leader) return false;
    for (int i = 0; i < e->n_running; i++) {
        const gen *r = e->running[i];
        if (r->number + 1 == g->leader && missing(r) > 1 && r->seq.n_blocks * KV_PAGE < g->leader_to) return true;
    }
    const prefix_match before = g->match;
    match_find(e, g);
    if (g->match.n > g->seq.n_computed) {
        prefix_leave(e->prefix, &g->seq);
        sequence_reset(&g->seq, &e->store);
        match_take(e, g);
    } else {
        g->match = before;
    }
    leader_find(e, g);
    match_account(e, g);
    return g->leader != 0;
}

/* Would this request's tokens, and the next, fit beside what running prompts still need? What only the cache holds
 * counts as free. */
static bool admissible(engine *e, gen *g) {
    const kv_store *st = &e->store;
    if (st->n_slots && st->n_slots_free == 0) return false;
    match_find(e, g);
    int64_t spare[KV_GROUPS], bytes = 0;
    int32_t need[KV_GROUPS];
    for (int k = 0; k < st->n_groups; k++) {
        spare[k] = st->pool[k].n_free + st->pool[k].n_idle - g->match.idle[k];
        bytes += (st->pool[k].n_idle - g->match.idle[k]) * (int64_t)st->pool[k].page_bytes;
    }
    int32_t kept = st->n_slots_kept; /* of those only what waits with running ones cannot go */
    for (int i = 0; i < e->n_running; i++) kept -= st->n_slots ? e->running[i]->seq.n_marks : 0;
    bytes += kept * (int64_t)st->state_bytes;
    for (int i = -1; i < e->n_running; i++) {
        const gen *r = i < 0 ? g : e->running[i];
        int32_t upto = MIN((int32_t)r->seq.id.n + 1, r->seq.cap);
        sequence_missing(&r->seq, st, upto, need);
        for (int k = 0; k < st->n_groups; k++) {
            int32_t held = i < 0 ? g->match.shared[k] : r->seq.n_page[k] - r->seq.n_past[k];
            if (i < 0) need[k] -= g->match.n / KV_PAGE;
            need[k] = MIN(need[k], MAX(0, plan_pages(st->pool[k].window, e->chunk, upto) - held));
            spare[k] -= need[k];
            bytes -= need[k] * (int64_t)st->pool[k].page_bytes;
        }
    }
    for (int k = 0; k < st->n_groups; k++)
        if (spare[k] < 0) return false;
    return st->bytes_max == SIZE_MAX || (int64_t)(st->bytes_max - kv_store_bytes_held(st)) + bytes >= 0;
}

static void admit(engine *e, gen *g) {
    match_take(e, g);
    leader_find(e, g);
    match_account(e, g);
    if (!g->t_start) {
        g->t_start = clock_ns();
        pthread_mutex_lock(&g->mu);
        g->stats.queued_ns = g->t_start - g->t_submit;
        pthread_mutex_unlock(&g->mu);
    }
    g->t_paused = 0;
    int i = e->n_running++;
    for (; i > 0 && e->running[i - 1]->number > g->number; i--) e->running[i] = e->running[i - 1];
    e->running[i] = g;
}

/* Those whose prompts have been read from the SSD cache take their place in the order of arrival. */
static void restores_take(engine *e) {
    for (gen **at = &e->restoring, *g; (g = *at);) {
        if (!tier_restore(e->tier, g)) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        park(&e->parked, g);
    }
}

/* Requests for which the SSD cache has more than memory leave the queue while that is read; others go on. */
static void restores_begin(engine *e) {
    gen *asked[e->batch];
    int n = 0, n_restoring = 0;
    for (const gen *g = e->restoring; g; g = g->next) n_restoring++;
    pthread_mutex_lock(&e->mu);
    for (gen *g = e->queue; g && n_restoring + n < e->batch; g = g->next)
        if (!g->tier_asked) asked[n++] = g;
    pthread_mutex_unlock(&e->mu);
    for (int i = 0; i < n; i++) {
        if (!tier_wants(e->tier, asked[i])) continue;
        pthread_mutex_lock(&e->mu);
        gen **at = &e->queue;
        while (*at != asked[i]) at = &(*at)->next;
        *at = asked[i]->next;
        if (!*at) e->queue_end = at;
        e->n_queue--;
        e->n_aside++;
        pthread_mutex_unlock(&e->mu);
        park(&e->restoring, asked[i]);
    }
}

/* Preempted requests first, then the queue, each in order of arrival: nobody overtakes one that waits for pages. */
static void admit_waiting(engine *e) {
    gen **at = &e->parked;
    while (*at) {
        gen *g = *at;
        if (!gen_has_room(g)) { /* nobody reads it: it may wait, the others go on */
            at = &g->next;
            continue;
        }
        if (e->n_running == e->batch || !admissible(e, g)) return;
        *at = g->next;
        admit(e, g);
    }
    while (e->n_running < e->batch) {
        pthread_mutex_lock(&e->mu);
        gen *g = e->queue;
        pthread_mutex_unlock(&e->mu);
        if (!g || !admissible(e, g)) return; /* without the lock: only this thread takes from the queue */
        pthread_mutex_lock(&e->mu);
        e->queue = g->next;
        if (!e->queue) e->queue_end = &e->queue;
        e->n_queue--;
        e->stats.running = e->n_running + 1; /* at no moment is it in neither number */
        pthread_mutex_unlock(&e->mu);
        admit(e, g);
    }
}

/* A reader that does not read loses its place to one that waits; its tokens are kept. True if one did. */
static bool evict_paused(engine *e) {
    uint64_t now = clock_ns();
    for (int i = e->n_running - 1; i >= 0; i--) {
        gen *g = e->running[i];
        if (g->t_paused && now - g->t_paused > (uint64_t)PAUSE_GRACE_MS * 1000000) {
            preempt(e, g);
            return true;
        }
    }
    return false;
}

static bool others_wait(engine *e) {
    pthread_mutex_lock(&e->mu);
    bool any = e->n_queue > 0;
    pthread_mutex_unlock(&e->mu);
    return any || e->parked;
}

/* ---- cancels ----------------------------------------------------------------------------------------------------- */
static gen *list_cut_cancelled(gen **at, gen ***end, int32_t *n) {
    gen *cut = NULL;
    while (*at) {
        gen *g = *at;
        if (!atomic_load(&g->cancel)) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        g->next = cut;
        cut = g;
        if (n) --*n;
    }
    if (end) *end = at;
    return cut;
}

static void finish_list(engine *e, gen *g, finish why, const error *err) {
    for (gen *next; g; g = next) {
        next = g->next;
        finish_gen(e, g, why, -1, err);
    }
}

static void cancels_apply(engine *e) {
    unsigned seen = atomic_load(&e->cancels);
    if (seen == e->cancels_seen) return;
    e->cancels_seen = seen;
    for (int i = e->n_running - 1; i >= 0; i--)
        if (atomic_load(&e->running[i]->cancel)) finish_running(e, e->running[i], FINISH_CANCELLED, -1, NULL);
    finish_list(e, list_cut_cancelled(&e->parked, NULL, NULL), FINISH_CANCELLED, NULL);
    finish_list(e, list_cut_cancelled(&e->restoring, NULL, NULL), FINISH_CANCELLED, NULL);
    pthread_mutex_lock(&e->mu);
    gen *cut = list_cut_cancelled(&e->queue, &e->queue_end, &e->n_queue);
    pthread_mutex_unlock(&e->mu);
    finish_list(e, cut, FINISH_CANCELLED, NULL);
}

/* Ends everything there is. */
static void finish_all(engine *e, finish why, const error *err) {
    while (e->n_running) finish_running(e, e->running[e->n_running - 1], why, -1, err);
    gen *parked = e->parked;
    e->parked = NULL;
    finish_list(e, parked, why, err);
    gen *restoring = e->restoring;
    e->restoring = NULL;
    finish_list(e, restoring, why, err);
    pthread_mutex_lock(&e->mu);
    gen *queue = e->queue;
    e->queue = NULL;
    e->queue_end = &e->queue;
    e->n_queue = 0;
    pthread_mutex_unlock(&e->mu);
    finish_list(e, queue, why, err);
}

/* ---- filling a step ---------------------------------------------------------------------------------------------- */
static void step_add(engine *e, gen *g, int32_t n) {
    step *s = &e->step;
    const sequence *q = &g->seq;
    const bool last = n == missing(g);
    step_part *p = &e->part[s->n_seqs];
    step_seq *out = &e->seqs[s->n_seqs++];
    *out = (step_seq){.row0 = s->n_rows, .n_rows = n, .pos0 = q->n_computed, .slot = q->slot};
    out->uncoded = e->kv_late && q->n_computed < g->n_prompt - 1;
    for (int k = 0; k < KV_GROUPS; k++) out->page[k] = q->page[k];
    if (g->hidden) s->hidden = tensor_f32(e->hidden, e->out_max, e->info->width);
    p->g = g;
    p->n_rows = n;
    p->out0 = s->n_out;
    p->sampled = last;
    for (int32_t i = 0; i < n; i++) {
        e->row_id[s->n_rows] = q->id.p[q->n_computed + i];
        e->row_pos[s->n_rows] = q->n_computed + i;
        bool prompt_row = g->sink.prompt && q->n_computed + i < g->n_prompt;
        if (prompt_row || (last && i == n - 1)) e->row_out[s->n_out++] = s->n_rows;
        s->n_rows++;
    }
    p->n_out = s->n_out - p->out0;
}

/* Makes place for n more rows of g; others may have to give theirs up. */
static bool pages_make(engine *e, gen *g, int32_t n) {
    int32_t need[KV_GROUPS];
    while (!sequence_extend(&g->seq, &e->store, g->seq.n_computed + n)) {
        sequence_missing(&g->seq, &e->store, g->seq.n_computed + n, need);
        if (prefix_room(e->prefix, need) && sequence_extend(&g->seq, &e->store, g->seq.n_computed + n)) break;
        gen *v = victim_find(e, g);
        if (!v) return false;
        preempt(e, v);
    }
    return true;
}

/* Streams first: one row each. Oldest first, so that the pages of the youngest are the ones to go. */
static void fill_decode(engine *e) {
    for (int i = 0; i < e->n_running; i++) {
        gen *g = e->running[i];
        if (missing(g) != 1) continue;
        if (!gen_has_room(g)) {
            if (!g->t_paused) g->t_paused = clock_ns();
            continue;
        }
        g->t_paused = 0;
        if (pages_make(e, g, 1)) {
            i = running_index(e, g); /* preempting others may have moved it */
            step_add(e, g, 1);
        }
    }
}

static int32_t prefill_budget(const engine *e) {
    int32_t n = e->row_ns > 0 ? e->chunk : MIN(e->chunk, CHUNK_FIRST);
    if (e->row_ns > 0) {
        double most = (e->step.n_seqs ? SHARED_MS : ALONE_MS) * 1e6 / e->row_ns - e->step.n_rows;
        if (most < n) n = MAX((int32_t)most, CHUNK_MIN);
    }
    return MIN(n, e->rows_max - e->step.n_rows);
}

/* Rows of g until the next place where its state must be kept. */
static int32_t rows_to_mark(const engine *e, const gen *g) {
    bool exact;
    if (!prefix_marks(e->prefix, &exact) || !exact) return INT32_MAX;
    int32_t at = (g->seq.n_computed / MARK_EVERY + 1) * MARK_EVERY;
    if (g->mark_next < g->n_marks) at = MIN(at, g->marks[g->mark_next]);
    return at - g->seq.n_computed;
}

/* Prompts share the rows that are left: even shares, and what a short one does not use goes to the longer ones. */
static void fill_prefill(engine *e) {
    gen *want[e->batch];
    int n_want = 0;
    for (int i = 0; i < e->n_running; i++)
        if (missing(e->running[i]) > 1 && !waits_for_leader(e, e->running[i])) want[n_want++] = e->running[i];
    int32_t left = prefill_budget(e);
    while (n_want > 0 && left > 0) {
        int at = 0;
        for (int i = 1; i < n_want; i++)
            if (missing(want[i]) < missing(want[at])) at = i;
        gen *g = want[at];
        want[at] = want[--n_want];
        if (running_index(e, g) < 0) continue; /* preempted for another's pages */
        int32_t n = MIN(MIN(missing(g), rows_to_mark(e, g)), MAX(1, left / (n_want + 1)));
        if (g->sink.prompt) n = MIN(n, e->out_max - e->batch - (e->step.n_out - e->step.n_seqs));
        if (e->kv_late && g->seq.n_computed < g->n_prompt - 1) n = MIN(n, g->n_prompt - 1 - g->seq.n_computed);
        if (n <= 0) continue;
        if (!pages_make(e, g, n)) continue;
        step_add(e, g, n);
        left -= n;
    }
}

/* ---- after the model --------------------------------------------------------------------------------------------- */
static float *row_logits(const engine *e, int32_t out) {
    return (float *)e->logits + (size_t)out * (size_t)e->info->vocab;
}

static void pick_task(void *arg, int task, int worker) {
    engine *e = arg;
    step_part *p = &e->part[task];
    gen *g = p->g;
    if (!p->sampled) return;
    const int32_t forced = output_forced(g->out);
    const uint64_t *mask = NULL;
    p->no_way = forced < 0 && g->constraint && !constraint_mask(g->constraint, e->info->eos, e->info->n_eos, &mask);
    p->finite = sampler_pick(&(sampler_in){.logits = row_logits(e, p->out0 + p->n_out - 1),
                                           .s = &g->sample,
                                           .history = g->seq.id.p,
                                           .n_history = g->seq.id.n,
                                           .seed = g->seed,
                                           .step = (uint64_t)g->n_generated,
                                           .logprobs = g->logprobs,
                                           .n_top = g->n_top,
                                           .mask = mask,
                                           .has_forced = forced >= 0,
                                           .forced = forced},
                             &e->scratch[worker], &p->pick);
}

static bool is_eos(const engine *e, int32_t id) {
    for (size_t i = 0; i < e->info->n_eos; i++)
        if (e->info->eos[i] == id) return true;
    return id == tokenizer_eos(e->parts.tokenizer);
}

/* Rows somebody wants as they are go to him before the sampler touches them. */
static void sink_rows(engine *e, const step_part *p, int32_t pos0) {
    const gen *g = p->g;
    const size_t V = (size_t)e->info->vocab, D = (size_t)e->info->width;
    if (g->hidden && p->sampled)
        memcpy(g->hidden, (float *)e->hidden + (size_t)(p->out0 + p->n_out - 1) * D, D * sizeof(float));
    if (g->sink.prompt && pos0 < g->n_prompt) {
        size_t n = (size_t)MIN(p->n_rows, g->n_prompt - pos0);
        memcpy(g->sink.prompt + (size_t)pos0 * V, row_logits(e, p->out0), n * V * sizeof(float));
    }
    if (g->sink.greedy && p->sampled && g->n_generated < g->max_tokens)
        memcpy(g->sink.greedy + (size_t)g->n_generated * V, row_logits(e, p->out0 + p->n_out - 1), V * sizeof(float));
}

static bool gives_token(const engine *e, const step_part *p) {
    return p->sampled && p->finite && p->g->max_tokens > 0 && (p->g->ignore_eos || !is_eos(e, p->pick.token));
}

static void finish_stuck(engine *e, gen *g) {
    error err = {0};
    error_field(&err, ERR_INVALID, "response_format",
                "the reply's grammar has too many readings of what came so far to be followed any further");
    finish_running(e, g, FINISH_ERROR, -1, &err);
}

/* One more token of g, or its end. */
static void emit(engine *e, const step_part *p, uint64_t now) {
    gen *g = p->g;
    if (!g->t_first) {
        g->t_first = now;
        pthread_mutex_lock(&g->mu);
        g->stats.prefill_ns = now - g->t_start;
        pthread_mutex_unlock(&g->mu);
    }
    if (g->max_tokens == 0) {
        finish_running(e, g, FINISH_LENGTH, -1, NULL);
        return;
    }
    if (p->no_way) {
        finish_stuck(e, g);
        return;
    }
    if (!p->finite) {
        error err = {0};
        error_set(&err, ERR_INTERNAL, "the model's logits at position %d are not finite", g->seq.n_computed - 1);
        finish_running(e, g, FINISH_ERROR, -1, &err);
        return;
    }
    const int32_t id = p->pick.token;
    if (!gives_token(e, p)) {
        finish_running(e, g, FINISH_STOP, -1, NULL);
        return;
    }
    int stopped;
    if (g->sink.greedy_id) g->sink.greedy_id[g->n_generated] = id;
    ids_push(&g->seq.id, id);
    gen_token(g, &p->pick, id < tokenizer_size(e->parts.tokenizer), &stopped);
    const constraint_verdict fits = g->constraint ? constraint_accept(g->constraint, id, g->out) : CONSTRAINT_GOES_ON;
    if (stopped >= 0)
        finish_running(e, g, FINISH_STOP_STRING, stopped, NULL);
    else if (fits == CONSTRAINT_FAILED)
        finish_stuck(e, g);
    else if (fits == CONSTRAINT_DONE)
        finish_running(e, g, FINISH_STOP, -1, NULL);
    else if (stopped == OUTPUT_ENDED)
        finish_running(e, g, FINISH_STOP, -1, NULL);
    else if (g->n_generated == g->max_tokens)
        finish_running(e, g, FINISH_LENGTH, -1, NULL);
    else
        gen_wake(g);
}

static void step_account(engine *e, uint64_t ns, int32_t decode_rows, uint64_t generated) {
    step *s = &e->step;
    if (s->n_rows >= 2 * CHUNK_MIN) {
        double now = (double)ns / s->n_rows;
        e->row_ns = e->row_ns > 0 ? 0.75 * e->row_ns + 0.25 * now : now;
    }
    pthread_mutex_lock(&e->mu);
    engine_stats *st = &e->stats;
    st->steps_total++;
    st->rows_total += (uint64_t)s->n_rows;
    st->step_ns_total += ns;
    uint64_t decode_ns = ns * (uint64_t)decode_rows / (uint64_t)s->n_rows;
    st->decode_ns_total += decode_ns;
    st->prefill_ns_total += ns - decode_ns;
    st->prompt_tokens_total += (uint64_t)(s->n_rows - decode_rows);
    st->generated_tokens_total += generated;
    st->last_step_ns = clock_ns();
    pthread_mutex_unlock(&e->mu);
}

/* n more rows of g are computed: its whole blocks join the cache, checkpoints are taken. */
static void rows_done(engine *e, gen *g, int32_t n) {
    sequence *q = &g->seq;
    const int32_t before = q->n_computed;
    bool exact;
    q->n_computed += n;
    if (prefix_marks(e->prefix, &exact)) {
        for (; g->mark_next < g->n_marks && g->marks[g->mark_next] <= q->n_computed; g->mark_next++)
            prefix_mark_here(e->prefix, q, g->marks[g->mark_next], true);
        if (before / MARK_EVERY < q->n_computed / MARK_EVERY)
            prefix_mark_here(e->prefix, q, q->n_computed / MARK_EVERY * MARK_EVERY, false);
    }
    prefix_grow(e->prefix, q);
    sequence_release(q, &e->store);
}

/* Runs the filled step and hands out what came of it. */
static void step_run(engine *e) {
    step *s = &e->step;
    error err = {0};
    uint64_t t0 = clock_ns();
    tensor logits = s->n_out ? tensor_f32(e->logits, s->n_out, e->info->vocab) : (tensor){0};
    if (!model_forward(e->parts.model, e->kv, s, logits, &err)) {
        log_error("the engine stops: %s", err.msg);
        pthread_mutex_lock(&e->mu);
        e->stats.failed = true;
        pthread_mutex_unlock(&e->mu);
        error_prefix(&err, "the model failed: ");
        err.code = ERR_UNAVAILABLE;
        finish_all(e, FINISH_ERROR, &err);
        return;
    }
    int32_t decode_rows = 0, sampled = 0;
    for (int i = 0; i < s->n_seqs; i++) {
        step_part *p = &e->part[i];
        int32_t pos0 = p->g->seq.n_computed;
        sink_rows(e, p, pos0);
        rows_done(e, p->g, p->n_rows);
        decode_rows += pos0 >= p->g->n_prompt ? p->n_rows : 0;
        sampled += p->sampled;
    }
    prefix_trim(e->prefix);
    if (sampled == 1 || !e->parts.device->threads)
        for (int i = 0; i < s->n_seqs; i++) pick_task(e, i, 0);
    else if (sampled > 1)
        pool_run(e->parts.device->threads, s->n_seqs, pick_task, e);
    uint64_t now = clock_ns();
    uint64_t generated = 0;
    for (int i = 0; i < s->n_seqs; i++) generated += gives_token(e, &e->part[i]);
    step_account(e, now - t0, decode_rows, generated);
    for (int i = 0; i < s->n_seqs; i++) {
        step_part *p = &e->part[i];
        if (p->sampled) {
            emit(e, p, now);
        } else {
            gen_progress(p->g, MIN(p->g->seq.n_computed, p->g->n_prompt), p->g->n_prompt);
            gen_wake(p->g);
        }
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */
bool scheduler_step(engine *e) {
    cancels_apply(e);
    if (e->tier) {
        restores_take(e);
        restores_begin(e);
    }
    admit_waiting(e);
    step *s = &e->step;
    *s = (step){.ids = e->row_id, .pos = e->row_pos, .out = e->row_out, .seq = e->seqs, .state = e->state};
    fill_decode(e);
    fill_prefill(e);
    bool paused = false;
    for (int i = 0; i < e->n_running; i++) paused |= e->running[i]->t_paused != 0;
    const bool evicted = paused && others_wait(e) && evict_paused(e);
    if (s->n_rows) {
        step_run(e);
        return true;
    }
    if (evicted) return true; /* its place is free: another turn, for nobody will wake us */
    /* Nothing could run though somebody wants to: prompts hold each other's pages. The youngest steps back. */
    for (int i = 0; i < e->n_running; i++) {
        if (e->running[i]->t_paused) continue;
        preempt(e, victim_find(e, NULL));
        return true;
    }
    return false;
}

/* [mu held] */
static void gauges_set(engine *e) {
    e->stats.running = e->n_running;
    e->n_aside = 0;
    for (const gen *g = e->parked; g; g = g->next) e->n_aside++;
    for (const gen *g = e->restoring; g; g = g->next) e->n_aside++;
    e->stats.kv_bytes_used = kv_store_bytes_used(&e->store);
    prefix_stats_get(e->prefix, &e->stats.prefix);
    e->stats.kv_saturated = e->parts.device->vt->kv_saturated(e->parts.device, e->kv);
    if (e->tier) e->stats.ssd = *tier_counters(e->tier);
}

void *scheduler_main(void *arg) {
    engine *e = arg;
    for (;;) {
        pthread_mutex_lock(&e->mu);
        gauges_set(e);
        const uint64_t seen = e->poke;
        const bool closing = e->closing;
        pthread_mutex_unlock(&e->mu);
        if (closing) break;
        const bool stepped = scheduler_step(e), more = e->tier && tier_turn(e->tier);
        if (stepped || more) continue;
        const struct timespec until = clock_in_ms(PATIENCE_MS);
        pthread_mutex_lock(&e->mu);
        e->idle = true;
        gauges_set(e);
        const bool watch = e->n_running > 0 && (e->n_queue > 0 || e->parked); /* paused readers hold places */
        while (e->poke == seen && !e->closing) {
            int rc = watch ? pthread_cond_timedwait(&e->cond, &e->mu, &until) : pthread_cond_wait(&e->cond, &e->mu);
            if (rc == ETIMEDOUT) break;
        }
        e->idle = false;
        e->stats.last_step_ns = clock_ns(); /* the wait was no standstill: the watchdog counts from here */
        pthread_mutex_unlock(&e->mu);
    }
    finish_all(e, FINISH_CANCELLED, NULL);
    if (e->tier) tier_drain(e->tier);
    return NULL;
}
