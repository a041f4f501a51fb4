/* The prefix cache: looking up what earlier requests left, taking it, growing and keeping what is new.
 * Not here: what goes when room is needed (prefix_evict.c), stores behind it (prefix_item.c). docs/prefix-cache.md. */
#include <stdlib.h>
#include <xxhash.h>
#include "prefix_internal.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */
size_t prefix_block_bytes(void) {
    /* As many blocks again for what running sequences hold, a checkpoint each at most, and the hash table. */
    return 2 * (sizeof(prefix_node) + sizeof(prefix_mark) + 4 * (sizeof(int32_t) + sizeof(uint64_t)));
}

static void lists_init(prefix *p) {
    p->node_free = -1; /* blocks that were never used come after nodes_top: their memory is not touched before */
    for (int32_t i = 0; i < p->n_marks; i++)
        *MARK(p, i) = (prefix_mark){.node = -1, .next = i + 1 < p->n_marks ? i + 1 : -1};
    for (uint32_t i = 0; i < p->n_buckets; i++) p->bucket[i] = -1;
    for (int i = 0; i < SPACES; i++) p->space[i].node = -1;
    p->lru = (prefix_list){-1, -1, 0};
    for (int g = 0; g < KV_GROUPS; g++) p->loose[g] = (prefix_list){-1, -1, 0};
    p->mark_free = p->n_marks ? 0 : -1;
}

prefix *prefix_new(kv_store *st, const plan *pl, error *err) {
    prefix *p = mem_alloc(sizeof *p);
    *p =
        (prefix){.st = st, .recurrent = st->n_slots > 0, .slots_max = pl->cache_slots_max, .bytes_max = pl->cache_room};
    st->n_slots_kept = 0;
    p->share[SHARER_SLOTS] = (size_t)pl->cache_slots * st->state_bytes;
    for (int g = 0; g < st->n_groups; g++) {
        p->share[g] = (size_t)pl->cache_pages[g] * st->pool[g].page_bytes;
        p->windowed |= st->pool[g].window > 0;
    }
    p->n_nodes = 2 * pl->cache_blocks;
    p->n_marks = p->recurrent ? pl->cache_slots_max : p->windowed ? MIN(MARKS_MAX, p->n_nodes) : 0;
    for (p->n_buckets = GHOSTS_MIN; p->n_buckets < (uint32_t)p->n_nodes;) p->n_buckets *= 2;
    const size_t nodes = (size_t)p->n_nodes * sizeof *p->node, marks = (size_t)p->n_marks * sizeof *p->mark,
                 ghosts = p->n_buckets * sizeof *p->ghost;
    p->bytes = nodes + ghosts + marks + p->n_buckets * sizeof *p->bucket;
    if (!(p->memory = mem_try(p->bytes, 64, err))) {
        prefix_free(p);
        return NULL;
    }
    p->node = p->memory;
    p->ghost = (uint64_t *)((uint8_t *)p->memory + nodes);
    p->mark = (prefix_mark *)((uint8_t *)p->ghost + ghosts);
    p->bucket = (int32_t *)((uint8_t *)p->mark + marks);
    lists_init(p);
    return p;
}

void prefix_free(prefix *p) {
    if (!p) return;
    if (p->memory) mem_try_free(p->memory, p->bytes);
    free(p);
}

/* ---- the tree ---------------------------------------------------------------------------------------------------- */
uint64_t prefix_hash(uint64_t before, const int32_t *id, size_t n) {
    return XXH64(id, n * sizeof *id, before);
}

int32_t prefix_child(const prefix *p, int32_t parent, const int32_t *id) {
    const uint64_t h = prefix_hash(NODE(p, parent)->hash, id, KV_PAGE);
    for (int32_t i = p->bucket[h & (p->n_buckets - 1)]; i >= 0; i = NODE(p, i)->chain) {
        const prefix_node *x = NODE(p, i);
        if (x->hash == h && x->parent == parent && memcmp(x->id, id, sizeof x->id) == 0) return i;
    }
    return -1;
}

static int32_t same_ids(const int32_t *a, const int32_t *b, int32_t n) {
    int32_t k = 0;
    while (k < n && a[k] == b[k]) k++;
    return k;
}

/* The child that has most tokens in common with id [n], and how many. */
static int32_t child_most(const prefix *p, int32_t parent, const int32_t *id, int32_t n, int32_t *k) {
    int32_t best = -1;
    *k = 0;
    int32_t i = NODE(p, parent)->child;
    for (int tries = 0; i >= 0 && tries < SIBLINGS; tries++, i = NODE(p, i)->next) {
        int32_t same = same_ids(NODE(p, i)->id, id, MIN(NODE(p, i)->n_ids, n));
        if (same > *k) *k = same, best = i;
    }
    return best;
}

int32_t prefix_begins(const prefix *p, int32_t parent, const int32_t *id, int32_t n) {
    int32_t k, c = child_most(p, parent, id, n, &k);
    return k == n ? c : -1;
}

static int32_t node_take(prefix *p, prefix_node with) {
    if (!prefix_node_room(p)) return -1;
    const int32_t i = p->node_free >= 0 ? p->node_free : p->nodes_top++;
    prefix_node *x = NODE(p, i);
    if (i == p->node_free) p->node_free = x->chain;
    p->nodes_used++;
    *x = with;
    x->used = p->tick;
    for (int g = 0; g < KV_GROUPS; g++) x->page[g] = -1;
    x->child = x->next = x->prev = x->mark = x->chain = -1;
    prefix_lru_add(p, i);
    return i;
}

int32_t prefix_node_new(prefix *p, int32_t parent, const int32_t *id, int32_t n) {
    NODE(p, parent)->pins++; /* making room must not take it */
    const int32_t i = node_take(p, (prefix_node){.parent = parent, .depth = NODE(p, parent)->depth + 1, .n_ids = n});
    prefix_node *up = NODE(p, parent);
    up->pins--;
    if (i < 0) return -1;
    prefix_node *x = NODE(p, i);
    memcpy(x->id, id, (size_t)n * sizeof *id);
    x->hash = prefix_hash(up->hash, id, (size_t)n);
    prefix_block_key(&up->key, id, (size_t)n, &x->key);
    x->next = up->child;
    if (x->next >= 0) NODE(p, x->next)->prev = i;
    up->child = i;
    if (n < KV_PAGE) return i;
    int32_t *b = &p->bucket[x->hash & (p->n_buckets - 1)];
    x->chain = *b;
    *b = i;
    uint64_t *ghost = &p->ghost[x->hash & (p->n_buckets - 1)];
    if (*ghost == x->hash) *ghost = 0;
    return i;
}

int32_t prefix_root(prefix *p, const prefix_key *space, bool make) {
    int spare = -1;
    for (int i = 0; i < SPACES; i++) {
        const int32_t r = p->space[i].node;
        if (r >= 0 && memcmp(&p->space[i].key, space, sizeof *space) == 0) return r;
        if (r < 0) spare = i;
    }
    if (!make || spare < 0) return -1;
    const int32_t r = node_take(p, (prefix_node){.parent = -1, .depth = -1, .key = *space});
    if (r < 0) return -1;
    memcpy(&NODE(p, r)->hash, space->b, sizeof(uint64_t));
    p->space[spare].key = *space;
    p->space[spare].node = r;
    return r;
}

void prefix_page_give(prefix *p, int32_t node, int g, int32_t page) {
    prefix_node *x = NODE(p, node);
    kv_page_hold(&p->st->pool[g], page);
    x->page[g] = page;
    x->saved &= (uint8_t) ~(1u << g);
    p->unsaved = true;
    if (p->st->pool[g].window && !x->need[g]) prefix_loose_add(p, node, g);
}

bool prefix_covers(const prefix *p, int32_t node, int32_t at, int32_t *missing) {
    const int32_t n = node_pos(NODE(p, node)) + at;
    *missing = -1;
    for (int g = 0; g < p->st->n_groups; g++) {
        const int32_t first = window_start(p->st->pool[g].window, n) / KV_PAGE;
        for (int32_t i = node; i >= 0 && NODE(p, i)->depth >= first; i = NODE(p, i)->parent)
            if (NODE(p, i)->page[g] < 0) *missing = MAX(*missing, NODE(p, i)->depth);
    }
    return *missing < 0;
}

bool prefix_mark_new(prefix *p, int32_t node, int32_t at, int32_t slot, bool planned) {
    prefix_node *x = NODE(p, node);
    int32_t missing, before = -1;
    for (int32_t i = x->mark; i >= 0 && MARK(p, i)->at <= at; i = MARK(p, i)->next) before = i;
    if (before >= 0 && MARK(p, before)->at == at) {
        MARK(p, before)->used = p->tick;
        MARK(p, before)->planned |= planned;
        return false;
    }
    if (!prefix_covers(p, node, at, &missing)) return false;
    x->pins++;
    const bool room = prefix_mark_room(p, false);
    x->pins--;
    if (!room) return false;
    before = -1; /* making room may have taken one of this block */
    for (int32_t i = x->mark; i >= 0 && MARK(p, i)->at < at; i = MARK(p, i)->next) before = i;
    const int32_t i = p->mark_free;
    prefix_mark *m = MARK(p, i);
    p->mark_free = m->next;
    p->marks_used++;
    int32_t *link = before >= 0 ? &MARK(p, before)->next : &x->mark;
    *m = (prefix_mark){.node = node, .next = *link, .at = at, .slot = slot, .used = p->tick, .planned = planned};
    *link = i;
    for (int32_t up = x->parent; up >= 0; up = NODE(p, up)->parent) NODE(p, up)->below++;
    prefix_claim(p, node, at, 1);
    p->unsaved = true;
    return true;
}

/* ---- looking up -------------------------------------------------------------------------------------------------- */
static int32_t node_at(const prefix *p, int32_t node, int32_t depth) { /* what it continues, so deep */
    while (NODE(p, node)->depth > depth) node = NODE(p, node)->parent;
    return node;
}

/* The last checkpoint of a block at or before token n whose pages are there. */
static int32_t mark_in(const prefix *p, int32_t node, int32_t n) {
    int32_t found = -1, missing;
    for (int32_t i = NODE(p, node)->mark; i >= 0 && mark_pos(p, MARK(p, i)) <= n; i = MARK(p, i)->next)
        if (prefix_covers(p, node, MARK(p, i)->at, &missing)) found = i;
    return found;
}

/* Of the children of a block that begin like id [n] the one that gives most, of `room` tokens at most, and how much
 * that is; -1: none does. *most: how much they have in common with it, taken or not. */
static int32_t child_best(const prefix *p, int32_t parent, const int32_t *id, int32_t n, int32_t room, int32_t *most,
                          int32_t *gain) {
    int32_t best = -1;
    *most = *gain = 0;
    int32_t i = NODE(p, parent)->child;
    for (int tries = 0; i >= 0 && tries < SIBLINGS; tries++, i = NODE(p, i)->next) {
        const prefix_node *x = NODE(p, i);
        const int32_t same = same_ids(x->id, id, MIN(x->n_ids, n));
        int32_t use = MIN(same, room);
        *most = MAX(*most, same);
        for (int g = 0; g < p->st->n_groups; g++)
            if (x->page[g] < 0) use = 0;
        if (p->recurrent) {
            int32_t at = 0;
            for (int32_t k = x->mark; k >= 0 && MARK(p, k)->at <= use; k = MARK(p, k)->next) at = MARK(p, k)->at;
            use = at;
        }
        if (use > *gain) *gain = use, best = i;
    }
    return best;
}

/* Recurrent layers: the last checkpoint behind a common beginning. It may stand in a block that goes on otherwise than
 * id does, so at each block of the way, from its end (node, pos tokens) up, all that continue it are looked at. */
static void match_mark(const prefix *p, prefix_match *m, int32_t node, const int32_t *id, int32_t n, int32_t pos) {
    for (;; node = NODE(p, node)->parent, pos -= KV_PAGE) {
        int32_t k, gain;
        const int32_t part = child_best(p, node, id + pos, n - pos, n - 1 - pos, &k, &gain);
        m->common = MAX(m->common, pos + k);
        m->mark = part >= 0 ? mark_in(p, part, pos + gain) : -1;
        if (m->mark >= 0) {
            m->node = part;
            m->n = mark_pos(p, MARK(p, m->mark));
            return;
        }
        if (pos == 0) return;
    }
}

/* How much of the n tokens that end in node can be taken. */
static void match_settle(const prefix *p, prefix_match *m, int32_t node, int32_t n) {
    int32_t missing = 0;
    for (; n > 0; n = missing * KV_PAGE) {
        node = node_at(p, node, (n - 1) / KV_PAGE);
        if (!prefix_covers(p, node, n - node_pos(NODE(p, node)), &missing)) continue;
        m->node = node;
        m->n = n;
        return;
    }
}

/* The last common token, without recurrent layers, as far as the pages before it are there. */
static void match_row(const prefix *p, prefix_match *m, int32_t node, const int32_t *id, int32_t n, int32_t pos) {
    int32_t k, gain;
    const int32_t part = child_best(p, node, id + pos, n - pos, n - 1 - pos, &k, &gain);
    m->common = pos + k;
    match_settle(p, m, part >= 0 ? part : node, MIN(pos + gain, n - 1));
}

static void match_pages(const prefix *p, prefix_match *m) {
    const int32_t whole = m->n / KV_PAGE;
    for (int g = 0; m->n && g < p->st->n_groups; g++) {
        const kv_pool *pool = &p->st->pool[g];
        const int32_t first = window_start(pool->window, m->n) / KV_PAGE;
        for (int32_t x = node_at(p, m->node, whole - 1); x >= 0 && NODE(p, x)->depth >= first; x = NODE(p, x)->parent) {
            m->shared[g]++;
            m->idle[g] += pool->refs[NODE(p, x)->page[g]] == 1;
        }
    }
}

static bool seen_elsewhere(const prefix *p, const int32_t *id, int32_t n) {
    int32_t k;
    for (int i = 0; i < SPACES; i++)
        if (p->space[i].node >= 0 && child_most(p, p->space[i].node, id, MIN(n, KV_PAGE), &k) >= 0 &&
            k == MIN(n, KV_PAGE))
            return true;
    return false;
}

void prefix_find(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, prefix_match *m) {
    *m = (prefix_match){.node = -1, .mark = -1, .why = PREFIX_WHY_unseen};
    int32_t node = p ? prefix_root(p, space, false) : -1, pos = 0;
    if (node >= 0) {
        for (int32_t c; n - pos >= KV_PAGE && (c = prefix_child(p, node, id + pos)) >= 0; pos += KV_PAGE) node = c;
        (p->recurrent ? match_mark : match_row)(p, m, node, id, n, pos);
        match_pages(p, m);
    }
    if (!p) return;
    if (m->n < m->common) {
        m->why = m->n == n - 1 ? PREFIX_WHY_last_token : p->recurrent ? PREFIX_WHY_no_checkpoint : PREFIX_WHY_window;
        return;
    }
    if (m->n) m->why = PREFIX_WHY_nothing;
    if (node >= 0 && n - pos >= KV_PAGE) {
        const uint64_t h = prefix_hash(NODE(p, node)->hash, id + pos, KV_PAGE);
        if (p->ghost[h & (p->n_buckets - 1)] == h) m->why = PREFIX_WHY_evicted;
    }
    if (m->why == PREFIX_WHY_unseen && seen_elsewhere(p, id, n)) m->why = PREFIX_WHY_space;
}

void prefix_count(prefix *p, const prefix_match *m) {
    if (!p) return;
    p->tick++;
    p->stats.hits += m->n > 0;
    p->stats.misses += m->n == 0;
    p->stats.hit_tokens += (uint64_t)m->n;
    p->stats.short_by[m->why]++;
}

/* ---- taking ------------------------------------------------------------------------------------------------------ */
static void pin(prefix *p, sequence *s, int32_t node) {
    if (node >= 0) NODE(p, node)->pins++;
    if (s->node >= 0) NODE(p, s->node)->pins--;
    s->node = node;
}

/* The page that the next token goes to is copied: others go on using theirs. */
static bool tail_copy(prefix *p, sequence *s, int32_t from) {
    kv_store *st = p->st;
    const int32_t b = s->n_blocks, one[KV_GROUPS] = {1, 1, 1, 1};
    for (int g = 0; g < st->n_groups; g++) kv_page_share(&st->pool[g], NODE(p, from)->page[g]);
    const bool room = prefix_room(p, one);
    for (int g = 0; g < st->n_groups; g++) {
        if (room) {
            s->page[g][b] = kv_page_take(st, g);
            s->n_page[g] = b + 1;
            st->d->vt->kv_copy(st->d, st->kv, g, s->page[g][b], NODE(p, from)->page[g]);
        }
        kv_page_drop(&st->pool[g], NODE(p, from)->page[g]);
    }
    return room;
}

static void pages_share(prefix *p, sequence *s, int32_t node, int32_t n) {
    for (int g = 0; g < p->st->n_groups; g++) {
        const int32_t first = window_start(p->st->pool[g].window, n) / KV_PAGE;
        for (int32_t b = 0; b < first; b++) s->page[g][b] = -1;
        int32_t x = node;
        for (int32_t b = s->n_blocks - 1; b >= first; b--, x = NODE(p, x)->parent) {
            s->page[g][b] = NODE(p, x)->page[g];
            kv_page_share(&p->st->pool[g], s->page[g][b]);
        }
        s->n_past[g] = MIN(first, s->n_blocks);
        s->n_page[g] = s->n_blocks;
    }
}

static void marks_use(prefix *p, int32_t node) {
    for (; node >= 0; node = NODE(p, node)->parent)
        for (int32_t i = NODE(p, node)->mark; i >= 0; i = MARK(p, i)->next) MARK(p, i)->used = p->tick;
}

static bool take(prefix *p, const prefix_match *m, sequence *s) {
    kv_store *st = p->st;
    const int32_t whole = m->n / KV_PAGE, base = node_at(p, m->node, whole - 1);
    if (p->recurrent) {
        if ((s->slot = state_slot_take(st)) < 0) return false;
        st->d->vt->state_copy(st->d, st->state, s->slot, MARK(p, m->mark)->slot);
    }
    s->n_blocks = whole;
    pages_share(p, s, base, m->n);
    pin(p, s, base);
    marks_use(p, m->node);
    if (m->node == base) {
        prefix_use(p, base);
    } else {
        NODE(p, m->node)->pins++;
        const bool copied = tail_copy(p, s, m->node);
        NODE(p, m->node)->pins--;
        prefix_use(p, m->node);
        if (!copied) return false;
    }
    s->n_computed = m->n;
    return true;
}

void prefix_take(prefix *p, const prefix_key *space, const prefix_match *m, sequence *s) {
    if (!p) return;
    if (m->n && take(p, m, s)) return;
    prefix_leave(p, s);
    sequence_reset(s, p->st);
    pin(p, s, prefix_root(p, space, true));
}

/* ---- growing and keeping ----------------------------------------------------------------------------------------- */
/* Checkpoints and use of blocks that were only the beginning of this one. */
static void absorb(prefix *p, int32_t node) {
    const prefix_node *x = NODE(p, node);
    int32_t next;
    for (int32_t i = x->next; i >= 0; i = next) { /* it is the first child */
        next = NODE(p, i)->next;
        if (NODE(p, i)->n_ids >= x->n_ids || memcmp(NODE(p, i)->id, x->id, (size_t)NODE(p, i)->n_ids * 4) != 0)
            continue;
        for (int32_t k; (k = NODE(p, i)->mark) >= 0;) {
            const prefix_mark m = *MARK(p, k);
            prefix_mark_unlink(p, k);
            if (!prefix_mark_new(p, node, m.at, m.slot, m.planned) && m.slot >= 0) {
                state_slot_drop(p->st, m.slot);
                p->st->n_slots_kept--;
            }
        }
        prefix_node_remove(p, i);
        return; /* there is one at most: each absorbs those before */
    }
}

/* The block has what the sequence has: whichever page was there first serves both. */
static void pages_meet(prefix *p, int32_t node, sequence *s, int32_t b) {
    for (int g = 0; g < p->st->n_groups; g++) {
        if (b < s->n_past[g] || b >= s->n_page[g]) continue;
        const int32_t mine = s->page[g][b], theirs = NODE(p, node)->page[g];
        if (theirs < 0) {
            prefix_page_give(p, node, g, mine);
        } else if (theirs != mine) {
            kv_page_share(&p->st->pool[g], theirs);
            kv_page_drop(&p->st->pool[g], mine);
            s->page[g][b] = theirs;
        }
    }
}

static void slot_let(prefix *p, seq_mark *m) {
    p->st->n_slots_kept -= m->slot >= 0;
    sequence_unmark(m, p->st);
}

/* Waiting checkpoints that stand in this block find their place. */
static void marks_settle(prefix *p, sequence *s, int32_t node) {
    const int32_t pos = node_pos(NODE(p, node));
    int32_t left = 0;
    for (int32_t i = 0; i < s->n_marks; i++) {
        seq_mark m = s->mark[i];
        if (m.n <= pos || m.n > pos + NODE(p, node)->n_ids)
            s->mark[left++] = m;
        else if (!prefix_mark_new(p, node, m.n - pos, m.slot, m.planned))
            slot_let(p, &m);
    }
    s->n_marks = left;
}

static void block_add(prefix *p, sequence *s) {
    const int32_t *id = s->id.p + (size_t)s->n_blocks * KV_PAGE;
    int32_t c = prefix_child(p, s->node, id);
    const bool made = c < 0;
    if (made) c = prefix_node_new(p, s->node, id, KV_PAGE);
    if (c < 0) { /* the tree is full of what others are using */
        prefix_leave(p, s);
        return;
    }
    pin(p, s, c);
    pages_meet(p, c, s, s->n_blocks++);
    if (made) absorb(p, c);
    marks_settle(p, s, c);
}

void prefix_grow(prefix *p, sequence *s) {
    if (!p) return;
    while (s->node >= 0 && (s->n_blocks + 1) * KV_PAGE <= s->n_computed) block_add(p, s);
}

bool prefix_marks(const prefix *p, bool *exact) {
    *exact = p && p->recurrent;
    return p && (p->recurrent || p->windowed);
}

void prefix_mark_here(prefix *p, sequence *s, int32_t at, bool planned) {
    if (!p || s->node < 0 || at <= s->n_blocks * KV_PAGE || s->n_marks == SEQ_MARKS) return;
    seq_mark m = {at, -1, planned};
    if (p->recurrent) {
        if (at != s->n_computed || !prefix_mark_room(p, true) || !sequence_mark(s, p->st, &m)) return;
        p->st->n_slots_kept++;
    }
    m.planned = planned;
    s->mark[s->n_marks++] = m;
}

/* The block that holds what the last tokens of the sequence are the beginning of. */
static int32_t tail_block(prefix *p, sequence *s, int32_t n) {
    const int32_t *id = s->id.p + (size_t)s->n_blocks * KV_PAGE;
    int32_t c = prefix_begins(p, s->node, id, n);
    const bool made = c < 0;
    if (made) c = prefix_node_new(p, s->node, id, n);
    if (c < 0) return -1;
    if (NODE(p, c)->n_ids == n) pages_meet(p, c, s, s->n_blocks);
    if (made) absorb(p, c);
    return c;
}

void prefix_keep(prefix *p, sequence *s) {
    if (!p || s->node < 0) return;
    prefix_grow(p, s);
    const int32_t tail = s->n_computed - s->n_blocks * KV_PAGE;
    if (s->node < 0 || !s->n_computed) {
        prefix_leave(p, s);
        return;
    }
    const int32_t x = tail ? tail_block(p, s, tail) : s->node;
    if (x >= 0) {
        NODE(p, x)->pins++;
        if (tail) marks_settle(p, s, x);
        if (!p->recurrent) {
            if (p->windowed) prefix_mark_new(p, x, tail ? tail : KV_PAGE, -1, true);
        } else if (s->slot >= 0 && prefix_mark_room(p, true) &&
                   prefix_mark_new(p, x, tail ? tail : KV_PAGE, s->slot, true)) {
            s->slot = -1;
            p->st->n_slots_kept++;
        }
        NODE(p, x)->pins--;
        prefix_use(p, x);
        marks_use(p, x);
    }
    prefix_leave(p, s);
    if (x >= 0 && tail) prefix_prune(p, x); /* leaving looked after the block it stood in */
}

void prefix_leave(prefix *p, sequence *s) {
    if (!p) return;
    for (int32_t i = 0; i < s->n_marks; i++) slot_let(p, &s->mark[i]);
    s->n_marks = 0;
    const int32_t was = s->node;
    pin(p, s, -1);
    if (was >= 0) prefix_prune(p, was);
}

void prefix_stats_get(const prefix *p, prefix_stats *out) {
    *out = p ? p->stats : (prefix_stats){0};
    if (!p) return;
    out->blocks = p->nodes_used;
    out->checkpoints = p->marks_used;
    out->bytes = prefix_bytes(p);
    out->bytes_max = p->bytes_max;
}
