/* Between the prompt cache and the store on disk: writing behind, spilling what leaves, and restoring for a request.
 *
 * What is restored is put into the prompt cache, never into a sequence: finding it again, sharing it and trusting it is
 * then the same as for anything else that is held (prefix.c). Not here: files (cold.c), when to call (scheduler.c). */
#include <errno.h>
#include <stdlib.h>
#include "cold.h"
#include "internal.h"
#include "tier.h"

enum {
    RETRY_MS = 10000,      /* after losses, when everything is offered to the disk again */
    SEARCH = 8192,         /* tokens back from the deepest block in which a checkpoint is looked for */
    TURN_BYTES = 16 << 20, /* restored in one turn of the scheduler: a few milliseconds of copying */
    BUSY_BYTES = 4 << 20,  /* copied to the queue after a step with requests; and without */
    IDLE_BYTES = 64 << 20,
    DRAIN_MS = 30000,
    MEMORY_SHARE = 32, /* of the budget */
    MEMORY_MIN = 2 << 20
};

struct tier {
    engine *e; /* borrows */
    cold *store;
    uint64_t lost;     /* blobs the store could not write, as of the last look */
    uint64_t retry_at; /* clock_ns; 0: nothing was lost */
    bool settled;      /* memory holds nothing that was not offered to the store, as of the last look */
    bool ready;        /* there was more to restore than one turn takes */
    uint64_t flush_seen;
    ssd_stats stats;
};

/* One item that a request needs: kind of token n-1's block, or the state behind token n. */
typedef struct want {
    int32_t n, kind;
} want;
struct restore {
    cold_read *read;
    want *want; /* owns: [n] */
    size_t n;
    uint64_t t0;
    int32_t upto; /* positions that will be usable */
    bool begun, cut;
};

size_t tier_memory(const engine_opts *o, size_t budget) {
    if (!o->ssd_cache || !*o->ssd_cache) return 0;
    return MIN(MAX(budget / MEMORY_SHARE, (size_t)MEMORY_MIN), (size_t)COLD_QUEUE + COLD_AHEAD);
}

/* ---- to the disk ------------------------------------------------------------------------------------------------- */
static cold_key cold_of(const prefix_key *k) {
    cold_key c;
    _Static_assert(sizeof c == sizeof *k, "one kind of key");
    memcpy(&c, k, sizeof c);
    return c;
}

/* True: the store has it, or never will. False: its queue is full. */
static bool copy(tier *t, const prefix_item *it, bool *copied) {
    const cold_head h = {.key = cold_of(&it->key),
                         .parent = cold_of(&it->parent),
                         .kind = (uint32_t)it->kind,
                         .pos = (uint32_t)it->pos,
                         .ids = it->ids,
                         .n_ids = (uint32_t)it->n_ids,
                         .bytes = it->bytes};
    bool full;
    void *payload = cold_put(t->store, &h, &full);
    *copied = payload != NULL;
    if (payload) {
        prefix_item_read(t->e->prefix, it, payload);
        cold_put_done(t->store, payload);
    }
    return !full;
}

static void leaving(void *arg, const prefix_item *it) {
    tier *t = arg;
    bool copied;
    if (it->kind == PREFIX_BLOCK) return;
    if (!copy(t, it, &copied)) t->stats.dropped_spills++;
    t->stats.spills += copied;
}

/* What could not be written counts as saved, lest it be offered without end; after a while everything is offered once
 * more, and the store knows what it has. */
static void losses_notice(tier *t, bool now) {
    cold_stats s;
    cold_stats_get(t->store, &s);
    if (s.failed + s.dropped != t->lost) {
        t->lost = s.failed + s.dropped;
        t->retry_at = clock_ns() + (uint64_t)RETRY_MS * 1000000;
    }
    if (!t->retry_at || (!now && clock_ns() < t->retry_at)) return;
    t->retry_at = 0;
    prefix_unsave(t->e->prefix);
}

/* Copies what the prompt cache holds and the store lacks, at most about `bytes`. True: there is more, and room for it.
 */
static bool tier_write(tier *t, size_t bytes, bool idle) {
    prefix_item it;
    losses_notice(t, false);
    for (size_t done = 0; (t->settled = !prefix_unsaved(t->e->prefix, &it)) == false;) {
        bool copied;
        if (done && done + it.bytes > bytes) return true;
        if (!copy(t, &it, &copied)) return false;
        if (copied) done += it.bytes;
        if (idle) t->stats.demotions += copied;
        prefix_saved(t->e->prefix, &it);
    }
    return false;
}

bool tier_turn(tier *t) {
    engine *e = t->e;
    pthread_mutex_lock(&e->mu);
    const uint64_t asked = e->flush_asked;
    const bool flush = asked != e->flush_done, idle = e->n_running == 0 && !e->restoring;
    pthread_mutex_unlock(&e->mu);
    if (flush && asked != t->flush_seen) losses_notice(t, true);
    t->flush_seen = asked;
    const bool more = tier_write(t, idle || flush ? IDLE_BYTES : BUSY_BYTES, idle || flush);
    if (flush && t->settled) {
        pthread_mutex_lock(&e->mu);
        e->flush_done = asked;
        e->stats.ssd = t->stats;
        pthread_cond_broadcast(&e->flushed);
        pthread_mutex_unlock(&e->mu);
    }
    const bool ready = t->ready;
    t->ready = false;
    return more || ready;
}

void tier_drain(tier *t) {
    const struct timespec until = clock_in_ms(DRAIN_MS);
    losses_notice(t, true);
    for (;;) {
        const bool more = tier_write(t, SIZE_MAX, true);
        if (!cold_flush(t->store, &until, NULL) || (!more && t->settled)) return;
    }
}

/* Any thread. */
bool engine_cache_flush(engine *e, int timeout_ms, uint64_t *n_saved, error *err) {
    if (!e->tier) return error_set(err, ERR_UNSUPPORTED, "there is no SSD cache (--ssd-cache DIR)");
    const struct timespec until = clock_in_ms(timeout_ms);
    pthread_mutex_lock(&e->mu);
    const uint64_t before = e->stats.ssd.demotions, asked = ++e->flush_asked;
    e->poke++;
    pthread_cond_signal(&e->cond);
    int rc = 0;
    while (e->flush_done < asked && rc != ETIMEDOUT && !e->stats.failed && !e->closing)
        rc = timeout_ms < 0 ? pthread_cond_wait(&e->flushed, &e->mu)
                            : pthread_cond_timedwait(&e->flushed, &e->mu, &until);
    const bool done = e->flush_done >= asked;
    pthread_mutex_unlock(&e->mu);
    if (!done) return error_set(err, ERR_UNAVAILABLE, "the prompt cache was not written in time");
    const bool ok = cold_flush(e->tier->store, timeout_ms < 0 ? NULL : &until, err);
    if (n_saved) {
        engine_stats st;
        engine_stats_get(e, &st);
        *n_saved = st.ssd.demotions - before;
    }
    return ok;
}

/* ---- back -------------------------------------------------------------------------------------------------------- */
/* A prompt, and what is known of it while looking for what the disk has. */
typedef struct search {
    tier *t;
    const prefix_key *space;
    const int32_t *id;
    int32_t n;
    prefix_key *key; /* owns: of whole blocks */
    int32_t *node;   /* owns: prefix_path's */
} search;

static cold_head head_of(const search *s, int32_t n, int32_t kind) {
    const int32_t block = (n - 1) / KV_PAGE, n_ids = n - block * KV_PAGE;
    const prefix_key *parent = block ? &s->key[block - 1] : s->space;
    prefix_key key;
    if (kind == PREFIX_STATE)
        prefix_state_key(parent, s->id + block * KV_PAGE, (size_t)n_ids, &key);
    else if (n_ids == KV_PAGE)
        key = s->key[block];
    else
        prefix_block_key(parent, s->id + block * KV_PAGE, (size_t)n_ids, &key);
    const engine *e = s->t->e;
    return (cold_head){.key = cold_of(&key),
                       .parent = cold_of(parent),
                       .kind = (uint32_t)kind,
                       .pos = (uint32_t)(block * KV_PAGE),
                       .ids = s->id + block * KV_PAGE,
                       .n_ids = (uint32_t)n_ids,
                       .bytes = kind == PREFIX_STATE ? e->info->state_bytes : e->store.pool[kind].page_bytes};
}

static bool in_memory(const search *s, int32_t n, int32_t kind) {
    const int32_t b = (n - 1) / KV_PAGE, at = n - b * KV_PAGE;
    return prefix_holds_behind(s->t->e->prefix, s->node[b], s->id + b * KV_PAGE, at, kind);
}

static bool on_disk(const search *s, int32_t n, int32_t kind) {
    const cold_head h = head_of(s, n, kind);
    return cold_has(s->t->store, &h.key, h.kind);
}

/* How many tokens of the block at position 64 b an item of this group has to have so that positions below `upto` are
 * there: the item's own end, or 0 when there is none. */
static int32_t page_end(const search *s, int32_t b, int32_t upto, int32_t group) {
    const int32_t part = MIN(upto, (b + 1) * KV_PAGE), whole = (b + 1) * KV_PAGE;
    if (in_memory(s, part, group)) return part;
    if (on_disk(s, part, group)) return part;
    return part < whole && whole <= s->n && (in_memory(s, whole, group) || on_disk(s, whole, group)) ? whole : 0;
}

/* Is everything there to go on at position upto, the last block's full pages not looked at before? */
static bool reachable(const search *s, int32_t upto, int32_t n_whole) {
    const engine *e = s->t->e;
    if (e->info->state_bytes && !on_disk(s, upto, PREFIX_STATE) && !in_memory(s, upto, PREFIX_STATE)) return false;
    for (int g = 0; g < e->store.n_groups; g++) {
        const int32_t window = e->store.pool[g].window;
        for (int32_t b = window ? window_start(window, upto) / KV_PAGE : n_whole; b * KV_PAGE < upto; b++)
            if (!page_end(s, b, upto, g)) return false;
    }
    return true;
}

/* Whole blocks whose full-attention pages are all there. */
static int32_t whole_blocks(const search *s, int32_t from) {
    const kv_store *st = &s->t->e->store;
    int32_t b = from;
    for (; (b + 1) * KV_PAGE <= s->n; b++)
        for (int g = 0; g < st->n_groups; g++)
            if (!st->pool[g].window && page_end(s, b, (b + 1) * KV_PAGE, g) == 0) return b;
    return b;
}

/* The furthest position beyond `from` from which the prompt could go on; from: none. */
static int32_t furthest(const search *s, int32_t from) {
    const int32_t n_whole = whole_blocks(s, from / KV_PAGE);
    const bool state = s->t->e->info->state_bytes != 0;
    const int32_t most = MIN(s->n - 1, n_whole * KV_PAGE + KV_PAGE - 1), least = MAX(from, most - SEARCH);
    for (int32_t upto = most; upto > least; upto--)
        if ((state || upto >= n_whole * KV_PAGE || upto % KV_PAGE == 0 || upto == most) && reachable(s, upto, n_whole))
            return upto;
    return from;
}

static void want_add(struct restore *r, const search *s, cold_head *heads, int32_t n, int32_t kind) {
    if (in_memory(s, n, kind)) return;
    heads[r->n] = head_of(s, n, kind);
    r->want[r->n++] = (want){n, kind};
}

/* Everything for going on at r->upto that memory lacks, in the order in which it can be put. */
static void wants_list(struct restore *r, const search *s, int32_t from, cold_head *heads) {
    const kv_store *st = &s->t->e->store;
    for (int32_t b = 0; b * KV_PAGE < r->upto; b++)
        for (int g = 0; g < st->n_groups; g++) {
            const int32_t window = st->pool[g].window;
            if (b >= (window ? window_start(window, r->upto) : from) / KV_PAGE)
                want_add(r, s, heads, page_end(s, b, r->upto, g), g);
        }
    if (s->t->e->info->state_bytes) want_add(r, s, heads, r->upto, PREFIX_STATE);
}

bool tier_wants(tier *t, gen *g) {
    if (g->tier_asked || g->sink.prompt) return false;
    g->tier_asked = true;
    search s = {.t = t, .space = &g->space, .id = g->seq.id.p, .n = (int32_t)g->seq.id.n};
    prefix_match here;
    prefix_find(t->e->prefix, s.space, s.id, s.n, &here);
    const int32_t from = here.n;
    const size_t n_blocks = (size_t)s.n / KV_PAGE;
    s.key = mem_alloc((n_blocks + 1) * sizeof *s.key);
    s.node = mem_alloc((n_blocks + 1) * sizeof *s.node);
    prefix_keys(s.space, s.id, (size_t)s.n, s.key);
    prefix_path(t->e->prefix, s.space, s.id, (size_t)s.n, s.node);
    const int32_t upto = furthest(&s, from);
    if (upto > from) {
        struct restore *r = mem_alloc(sizeof *r);
        const size_t most = (n_blocks + 1) * (size_t)t->e->store.n_groups + 1;
        cold_head *heads = mem_alloc(most * sizeof *heads);
        *r = (struct restore){.want = mem_alloc(most * sizeof *r->want), .t0 = clock_ns(), .upto = upto};
        wants_list(r, &s, from, heads);
        r->read = cold_read_open(t->store, heads, r->n);
        free(heads);
        g->restore = r;
        if (!r->n) tier_forget(g); /* memory has it all, though not where a lookup goes first */
    }
    free(s.key);
    free(s.node);
    return g->restore != NULL;
}

void tier_forget(gen *g) {
    if (!g->restore) return;
    cold_read_close(g->restore->read);
    free(g->restore->want);
    free(g->restore);
    g->restore = NULL;
}

/* Where no page brings them, the blocks are put as tokens alone. */
static void put_blocks(tier *t, const gen *g) {
    const kv_store *st = &t->e->store;
    bool full = false;
    for (int k = 0; k < st->n_groups; k++) full |= st->pool[k].window == 0;
    for (int32_t n = KV_PAGE; !full && n <= g->restore->upto; n += KV_PAGE)
        prefix_put(t->e->prefix, &g->space, g->seq.id.p, n, PREFIX_BLOCK, NULL);
    if (st->n_groups == 0) prefix_put(t->e->prefix, &g->space, g->seq.id.p, g->restore->upto, PREFIX_BLOCK, NULL);
}

static bool put(tier *t, const gen *g, const want *w, const void *payload) {
    prefix *p = t->e->prefix;
    return prefix_put(p, &g->space, g->seq.id.p, w->n, w->kind, payload) ||
           prefix_holds(p, &g->space, g->seq.id.p, w->n, w->kind);
}

/* A blob that is missing, or has no room, ends it: the rest is computed. What follows is read all the same, so that
 * what is damaged there goes too and is written anew. */
bool tier_restore(tier *t, gen *g) {
    struct restore *r = g->restore;
    size_t i, done = 0;
    const void *payload;
    if (!r->begun) put_blocks(t, g);
    r->begun = true;
    while (done < TURN_BYTES && cold_read_next(r->read, &i, &payload)) {
        const want *w = &r->want[i];
        r->cut = r->cut || !payload || !put(t, g, w, payload);
        if (r->cut) continue;
        const size_t n = w->kind == PREFIX_STATE ? t->e->info->state_bytes : t->e->store.pool[w->kind].page_bytes;
        done += n;
        t->stats.restored_bytes += n;
    }
    t->ready |= done >= TURN_BYTES;
    if (!cold_read_ended(r->read)) return false;
    t->stats.restores += !r->cut;
    t->stats.restores_cut += r->cut;
    t->stats.restore_ns_last = clock_ns() - r->t0;
    log_debug("SSD cache: %d tokens of request %llu %s after %.1f ms", r->upto, (unsigned long long)g->number,
              r->cut ? "not all restored" : "restored", (double)t->stats.restore_ns_last / 1e6);
    tier_forget(g);
    return true;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
static void wake(void *e) {
    engine_poke(e);
}

tier *tier_open(engine *e, const engine_opts *o, size_t budget, const kv_spec *kv, error *err) {
    if (!o->ssd_cache || !*o->ssd_cache || !e->prefix) return NULL;
    const size_t memory = tier_memory(o, budget);
    cold_opts c = {.dir = o->ssd_cache,
                   .bytes_max = o->ssd_cache_max ? o->ssd_cache_max : SSD_CACHE_MAX,
                   .queue_max = memory / 2,
                   .ahead_max = memory / 2,
                   .verify = o->ssd_cache_verify,
                   .wake = wake,
                   .wake_arg = e};
    cache_fingerprint(e, o, kv, c.fingerprint);
    cold *store = cold_open(&c, err);
    if (!store) return NULL;
    tier *t = mem_alloc(sizeof *t);
    *t = (tier){.e = e, .store = store, .settled = true};
    prefix_tier_set(e->prefix, &(prefix_tier){leaving, t});
    return t;
}

void tier_close(tier *t) {
    if (!t) return;
    cold_close(t->store);
    free(t);
}

const ssd_stats *tier_counters(const tier *t) {
    return &t->stats;
}

void tier_stats_add(tier *t, ssd_stats *io) {
    cold_stats s;
    cold_stats_get(t->store, &s);
    io->on = true;
    io->entries = s.blobs;
    io->bytes = s.bytes;
    io->bytes_all = s.bytes_all;
    io->bytes_max = s.bytes_max;
    io->pending_spills = s.pending;
    io->pending_spill_bytes = s.pending_bytes;
    io->dropped_spills += s.dropped;
    io->failed_spills = s.failed;
    io->written_bytes = s.written_bytes;
    io->evicted = s.evicted;
    io->damaged = s.damaged;
    io->verify_left = s.verify_left;
}
