/* What leaves the prefix cache when room is needed.
 *
 * Pages of full attention: the least recently used leaf of the tree goes, with all it has. Pages of windows: first
 * those that no checkpoint needs, the oldest first; then a checkpoint gives up its claim. Recurrent states: the
 * checkpoint that is worth least. Worth is what recomputing would cost (the distance to the checkpoint before it), more
 * where requests are likely to part or to go on, less the longer it was not used: what remains is spread out. All of it
 * shares one room in bytes; the kind that has most of its share gives first. Not here: looking up and keeping
 * (prefix.c), memory that goes back to the system (sequence.c). */
#include "prefix_internal.h"

/* ---- order of use ------------------------------------------------------------------------------------------------ */
void prefix_lru_add(prefix *p, int32_t i) {
    prefix_node *x = NODE(p, i);
    x->newer = -1;
    x->older = p->lru.newest;
    if (x->older >= 0) NODE(p, x->older)->newer = i;
    p->lru.newest = i;
    if (p->lru.oldest < 0) p->lru.oldest = i;
    p->lru.n++;
}

static void lru_remove(prefix *p, int32_t i) {
    const prefix_node *x = NODE(p, i);
    *(x->newer >= 0 ? &NODE(p, x->newer)->older : &p->lru.newest) = x->older;
    *(x->older >= 0 ? &NODE(p, x->older)->newer : &p->lru.oldest) = x->newer;
    p->lru.n--;
}

static void lru_renew(prefix *p, int32_t i) {
    lru_remove(p, i);
    prefix_lru_add(p, i);
}

static void child_unlink(prefix *p, int32_t i) {
    prefix_node *x = NODE(p, i);
    if (x->prev >= 0)
        NODE(p, x->prev)->next = x->next;
    else
        NODE(p, x->parent)->child = x->next;
    if (x->next >= 0) NODE(p, x->next)->prev = x->prev;
    x->prev = x->next = -1;
}

static void child_renew(prefix *p, int32_t i) {
    prefix_node *x = NODE(p, i), *up = NODE(p, x->parent);
    if (up->child == i) return;
    child_unlink(p, i);
    x->next = up->child;
    NODE(p, x->next)->prev = i;
    up->child = i;
}

void prefix_use(prefix *p, int32_t i) {
    for (; i >= 0; i = NODE(p, i)->parent) { /* what is continued ends up newer than what continues it */
        lru_renew(p, i);
        NODE(p, i)->used = p->tick;
        if (NODE(p, i)->parent >= 0) child_renew(p, i);
    }
}

/* ---- pages of windows that no checkpoint needs ------------------------------------------------------------------- */
void prefix_loose_add(prefix *p, int32_t i, int g) {
    prefix_list *l = &p->loose[g];
    prefix_node *x = NODE(p, i);
    x->loose_newer[g] = -1;
    x->loose_older[g] = l->newest;
    if (l->newest >= 0) NODE(p, l->newest)->loose_newer[g] = i;
    l->newest = i;
    if (l->oldest < 0) l->oldest = i;
    l->n++;
}

static void loose_remove(prefix *p, int32_t i, int g) {
    prefix_list *l = &p->loose[g];
    const prefix_node *x = NODE(p, i);
    *(x->loose_newer[g] >= 0 ? &NODE(p, x->loose_newer[g])->loose_older[g] : &l->newest) = x->loose_older[g];
    *(x->loose_older[g] >= 0 ? &NODE(p, x->loose_older[g])->loose_newer[g] : &l->oldest) = x->loose_newer[g];
    l->n--;
}

void prefix_claim(prefix *p, int32_t node, int32_t at, int by) {
    const int32_t n = node_pos(NODE(p, node)) + at;
    for (int g = 0; g < p->st->n_groups; g++) {
        const int32_t window = p->st->pool[g].window, first = window_start(window, n) / KV_PAGE;
        for (int32_t i = node; window && i >= 0 && NODE(p, i)->depth >= first; i = NODE(p, i)->parent) {
            prefix_node *x = NODE(p, i);
            const bool was_loose = x->need[g] == 0;
            x->need[g] += by;
            if (x->page[g] < 0 || was_loose == (x->need[g] == 0)) continue;
            if (was_loose)
                loose_remove(p, i, g);
            else
                prefix_loose_add(p, i, g);
        }
    }
}

static void page_let(prefix *p, int32_t i, int g) {
    prefix_node *x = NODE(p, i);
    const kv_pool *pool = &p->st->pool[g];
    prefix_page_leaving(p, i, g);
    if (pool->window && !x->need[g]) loose_remove(p, i, g);
    kv_page_let(&p->st->pool[g], x->page[g]);
    x->page[g] = -1;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */
void prefix_mark_unlink(prefix *p, int32_t i) {
    prefix_mark *m = MARK(p, i);
    prefix_claim(p, m->node, m->at, -1);
    int32_t *link = &NODE(p, m->node)->mark;
    while (*link != i) link = &MARK(p, *link)->next;
    *link = m->next;
    for (int32_t up = NODE(p, m->node)->parent; up >= 0; up = NODE(p, up)->parent) NODE(p, up)->below--;
    m->next = p->mark_free;
    m->node = -1;
    p->mark_free = i;
    p->marks_used--;
}

static void mark_remove(prefix *p, int32_t i) {
    prefix_mark_leaving(p, i);
    const prefix_mark m = *MARK(p, i);
    if (m.slot >= 0) state_slot_drop(p->st, m.slot);
    p->st->n_slots_kept -= m.slot >= 0;
    prefix_mark_unlink(p, i);
    p->stats.evicted_checkpoints++;
}

static int32_t mark_pos_before(const prefix *p, int32_t i) {
    const prefix_mark *m = MARK(p, i);
    for (int32_t x = m->node; x >= 0; x = NODE(p, x)->parent) {
        int32_t last = -1;
        for (int32_t k = NODE(p, x)->mark; k >= 0 && k != i; k = MARK(p, k)->next) last = k;
        if (last >= 0) return mark_pos(p, MARK(p, last));
    }
    return 0;
}

static double mark_worth(const prefix *p, int32_t i) {
    const prefix_mark *m = MARK(p, i);
    const prefix_node *x = NODE(p, m->node);
    const int32_t before = mark_pos_before(p, i);
    double w = mark_pos(p, m) - before;
    if (m->next < 0 && !x->below) w *= 4; /* the end of a conversation: it goes on there */
    if (before == 0) w *= 2;              /* its beginning: others share it */
    if (m->planned) w *= 2;
    return w / (double)(p->tick - m->used + 1);
}

static int32_t mark_least(const prefix *p) {
    int32_t least = -1;
    double worth = 0;
    for (int32_t i = 0, left = p->marks_used; left > 0 && i < p->n_marks; i++) {
        if (MARK(p, i)->node < 0) continue;
        left--;
        const double w = mark_worth(p, i);
        if (least < 0 || w < worth) least = i, worth = w;
    }
    return least;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
static void chain_remove(prefix *p, int32_t i) {
    int32_t *link = &p->bucket[NODE(p, i)->hash & (p->n_buckets - 1)];
    while (*link != i) link = &NODE(p, *link)->chain;
    *link = NODE(p, i)->chain;
}

void prefix_node_remove(prefix *p, int32_t i) {
    prefix_node *x = NODE(p, i);
    while (x->mark >= 0) mark_remove(p, x->mark);
    for (int g = 0; g < p->st->n_groups; g++)
        if (x->page[g] >= 0) page_let(p, i, g);
    if (x->parent >= 0) child_unlink(p, i);
    for (int k = 0; k < SPACES; k++)
        if (p->space[k].node == i) p->space[k].node = -1;
    if (x->n_ids == KV_PAGE) {
        chain_remove(p, i);
        p->ghost[x->hash & (p->n_buckets - 1)] = x->hash;
    }
    lru_remove(p, i);
    x->chain = p->node_free;
    x->n_ids = 0;
    p->node_free = i;
    p->nodes_used--;
}

/* A leaf nobody could take anything from. */
static bool useless(const prefix *p, const prefix_node *x) {
    if (x->depth < 0 || x->child >= 0 || x->pins) return false;
    if (p->recurrent) return x->mark < 0;
    for (int g = 0; g < p->st->n_groups; g++)
        if (x->page[g] < 0) return true;
    return false;
}

void prefix_prune(prefix *p, int32_t i) {
    while (i >= 0 && useless(p, NODE(p, i))) {
        const int32_t up = NODE(p, i)->parent;
        prefix_node_remove(p, i);
        i = up;
    }
}

/* The least recently used leaf that nobody stands on; -1: there is none. */
static int32_t leaf_oldest(prefix *p) {
    for (int32_t tries = p->lru.n; tries > 0; tries--) {
        const int32_t i = p->lru.oldest;
        if (NODE(p, i)->child < 0 && !NODE(p, i)->pins) return i;
        lru_renew(p, i);
    }
    return -1;
}

static bool leaf_evict(prefix *p) {
    const int32_t i = leaf_oldest(p);
    if (i < 0) return false;
    const int32_t up = NODE(p, i)->parent;
    p->stats.evicted_blocks += NODE(p, i)->depth >= 0;
    prefix_node_remove(p, i);
    if (up >= 0) prefix_prune(p, up);
    return true;
}

/* A checkpoint, unless there is a leaf that was not used by more requests than there are checkpoints: what fills the
 * cache with checkpoints must not keep alive for ever what once filled it with pages. */
static bool mark_evict(prefix *p) {
    const int32_t i = mark_least(p);
    if (i < 0) return false;
    const int32_t leaf = leaf_oldest(p);
    if (leaf >= 0 && p->tick - NODE(p, leaf)->used > (uint64_t)p->marks_used) return leaf_evict(p);
    const int32_t node = MARK(p, i)->node;
    mark_remove(p, i);
    prefix_prune(p, node);
    return true;
}

static bool loose_evict(prefix *p, int g) {
    for (int32_t tries = p->loose[g].n; tries > 0; tries--) {
        const int32_t i = p->loose[g].oldest;
        if (p->st->pool[g].refs[NODE(p, i)->page[g]] == 1) {
            page_let(p, i, g);
            p->stats.evicted_blocks++;
            prefix_prune(p, i);
            return true;
        }
        loose_remove(p, i, g);
        prefix_loose_add(p, i, g);
    }
    return false;
}

bool prefix_node_room(prefix *p) {
    return p->nodes_used < p->n_nodes || leaf_evict(p);
}

static bool page_evict(prefix *p, int g) {
    if (!p->st->pool[g].n_idle) return false;
    if (!p->st->pool[g].window) return leaf_evict(p);
    const size_t before = prefix_bytes(p);
    while (!loose_evict(p, g)) {
        if (!mark_evict(p)) return leaf_evict(p);
        if (prefix_bytes(p) < before) return true;
    }
    return true;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */
static size_t kind_bytes(const prefix *p, int k) {
    if (k == SHARER_SLOTS) return (size_t)p->st->n_slots_kept * p->st->state_bytes;
    return (size_t)p->st->pool[k].n_idle * p->st->pool[k].page_bytes;
}

size_t prefix_bytes(const prefix *p) {
    size_t n = kind_bytes(p, SHARER_SLOTS);
    for (int g = 0; g < p->st->n_groups; g++) n += kind_bytes(p, g);
    return n;
}

/* The kind that has most of its share gives something up; another, where it cannot. */
static bool any_evict(prefix *p) {
    bool tried[SHARERS] = {false};
    for (;;) {
        int most = -1;
        double part = 0;
        for (int k = 0; k < SHARERS; k++) {
            if (tried[k] || (k < SHARER_SLOTS && k >= p->st->n_groups)) continue;
            const double x = (double)kind_bytes(p, k) / (double)MAX(p->share[k], 1);
            if (x > part) most = k, part = x;
        }
        if (most < 0) return false;
        if (most == SHARER_SLOTS ? mark_evict(p) : page_evict(p, most)) return true;
        tried[most] = true;
    }
}

bool prefix_bytes_room(prefix *p, size_t more) {
    while (prefix_bytes(p) + more > p->bytes_max)
        if (!any_evict(p)) return false;
    return true;
}

bool prefix_mark_room(prefix *p, bool slot) {
    while (p->marks_used >= p->n_marks || (slot && p->st->n_slots_kept >= p->slots_max))
        if (!mark_evict(p)) return false;
    if (!slot) return true;
    if (!prefix_bytes_room(p, p->st->state_bytes)) return false;
    while (kv_store_bytes_held(p->st) + p->st->state_bytes > p->st->bytes_max)
        if (!any_evict(p)) return false;
    return true;
}

bool prefix_room(prefix *p, const int32_t *need) {
    for (int g = 0; p && g < p->st->n_groups; g++)
        while (p->st->pool[g].n_free < need[g])
            if (!page_evict(p, g)) return false;
    while (p && !kv_store_fits(p->st, need))
        if (!any_evict(p)) return false;
    return p != NULL;
}

void prefix_trim(prefix *p) {
    if (p) prefix_bytes_room(p, 0);
}
