/* Keys of blocks and states, and the way of their bytes to and from a store behind the cache.
 * Not here: such a store (cold.h), the tree (prefix.c). */
#define OPENSSL_SUPPRESS_DEPRECATED /* the newer interface allocates, and keys are made while decoding */
#include <openssl/sha.h>
#include "prefix_internal.h"

/* ---- keys -------------------------------------------------------------------------------------------------------- */
static void key_make(const prefix_key *parent, const int32_t *id, size_t n, str end, prefix_key *out) {
    SHA256_CTX c;
    SHA256_Init(&c);
    if (parent) SHA256_Update(&c, parent->b, sizeof parent->b);
    SHA256_Update(&c, id, n * sizeof *id); /* little endian, like every machine this runs on */
    SHA256_Update(&c, end.p, end.n);
    SHA256_Final(out->b, &c);
}

void prefix_space_key(str space, prefix_key *out) {
    SHA256_CTX c;
    SHA256_Init(&c);
    SHA256_Update(&c, PREFIX_LAYOUT, sizeof PREFIX_LAYOUT - 1);
    SHA256_Update(&c, space.p, space.n);
    SHA256_Final(out->b, &c);
}

void prefix_block_key(const prefix_key *parent, const int32_t *id, size_t n, prefix_key *out) {
    key_make(parent, id, n, (str){0}, out);
}

void prefix_state_key(const prefix_key *parent, const int32_t *id, size_t n, prefix_key *out) {
    key_make(parent, id, n, STR("state"), out);
}

void prefix_keys(const prefix_key *space, const int32_t *id, size_t n, prefix_key *out) {
    prefix_key up = *space;
    for (size_t b = 0; b < n / KV_PAGE; b++) {
        prefix_block_key(&up, id + b * KV_PAGE, KV_PAGE, &out[b]);
        up = out[b];
    }
}

/* ---- items ------------------------------------------------------------------------------------------------------- */
static prefix_item page_item(const prefix *p, int32_t node, int g, int32_t n_ids) {
    const prefix_node *x = NODE(p, node), *up = NODE(p, x->parent);
    prefix_item it = {.key = x->key,
                      .parent = up->key,
                      .kind = g,
                      .pos = node_pos(x),
                      .ids = x->id,
                      .n_ids = n_ids,
                      .bytes = p->st->pool[g].page_bytes,
                      .at = x->page[g],
                      .node = node,
                      .mark = -1};
    if (n_ids < x->n_ids) prefix_block_key(&up->key, x->id, (size_t)n_ids, &it.key);
    return it;
}

static prefix_item state_item(const prefix *p, int32_t mark) {
    const prefix_mark *m = MARK(p, mark);
    const prefix_node *x = NODE(p, m->node), *up = NODE(p, x->parent);
    prefix_item it = {.parent = up->key,
                      .kind = PREFIX_STATE,
                      .pos = node_pos(x),
                      .ids = x->id,
                      .n_ids = m->at,
                      .bytes = p->st->state_bytes,
                      .at = m->slot,
                      .node = m->node,
                      .mark = mark};
    prefix_state_key(&up->key, x->id, (size_t)m->at, &it.key);
    return it;
}

void prefix_item_read(const prefix *p, const prefix_item *it, void *host) {
    kv_store *st = p->st;
    if (it->kind == PREFIX_STATE)
        st->d->vt->state_read(st->d, st->state, it->at, host);
    else
        st->d->vt->kv_read(st->d, st->kv, it->kind, it->at, host);
}

void prefix_tier_set(prefix *p, const prefix_tier *t) {
    p->tier = *t;
    p->unsaved = true;
}

/* ---- on the way out ---------------------------------------------------------------------------------------------- */
void prefix_page_leaving(prefix *p, int32_t node, int g) {
    if (!p->tier.leaving || NODE(p, node)->saved & 1u << g) return;
    const prefix_item it = page_item(p, node, g, NODE(p, node)->n_ids);
    p->tier.leaving(p->tier.arg, &it);
}

/* Pages of a part of the block, which nobody would find under the key of the whole one. */
static bool part_missing(const prefix *p, const prefix_mark *m, int g) {
    const prefix_node *x = NODE(p, m->node);
    return m->slot >= 0 && m->at < x->n_ids && x->page[g] >= 0 && !(m->part_saved & 1u << g);
}

void prefix_mark_leaving(prefix *p, int32_t i) {
    const prefix_mark *m = MARK(p, i);
    if (!p->tier.leaving || m->slot < 0 || m->saved) return;
    prefix_item it;
    for (int g = 0; g < p->st->n_groups; g++)
        if (part_missing(p, m, g)) {
            it = page_item(p, m->node, g, m->at);
            p->tier.leaving(p->tier.arg, &it);
        }
    it = state_item(p, i);
    p->tier.leaving(p->tier.arg, &it);
}

static bool mark_unsaved(const prefix *p, int32_t i, prefix_item *it) {
    const prefix_mark *m = MARK(p, i);
    for (int g = 0; g < p->st->n_groups; g++)
        if (part_missing(p, m, g)) {
            *it = page_item(p, m->node, g, m->at);
            it->mark = i;
            return true;
        }
    if (m->slot < 0 || m->saved) return false;
    *it = state_item(p, i);
    return true;
}

static bool node_unsaved(const prefix *p, int32_t i, prefix_item *it) {
    const prefix_node *x = NODE(p, i);
    for (int g = 0; g < p->st->n_groups; g++)
        if (x->page[g] >= 0 && !(x->saved & 1u << g)) {
            *it = page_item(p, i, g, x->n_ids);
            return true;
        }
    for (int32_t k = x->mark; k >= 0; k = MARK(p, k)->next)
        if (mark_unsaved(p, k, it)) return true;
    return false;
}

bool prefix_unsaved(prefix *p, prefix_item *it) {
    for (int32_t tries = p->unsaved ? p->nodes_top : 0; tries > 0; tries--) {
        const int32_t i = p->save_at;
        if (NODE(p, i)->n_ids && node_unsaved(p, i, it)) return true;
        p->save_at = (i + 1) % p->nodes_top;
    }
    p->unsaved = false;
    return false;
}

void prefix_saved(prefix *p, const prefix_item *it) {
    if (it->kind == PREFIX_STATE)
        MARK(p, it->mark)->saved = true;
    else if (it->mark >= 0)
        MARK(p, it->mark)->part_saved |= (uint8_t)(1u << it->kind);
    else
        NODE(p, it->node)->saved |= (uint8_t)(1u << it->kind);
}

/* ---- on the way back --------------------------------------------------------------------------------------------- */
static bool page_put(prefix *p, int32_t node, int g, const void *payload) {
    kv_store *st = p->st;
    int32_t one[KV_GROUPS] = {0};
    if (NODE(p, node)->page[g] >= 0) return false;
    one[g] = 1;
    NODE(p, node)->pins++;
    const bool room = prefix_bytes_room(p, st->pool[g].page_bytes) && prefix_room(p, one);
    NODE(p, node)->pins--;
    if (!room) return false;
    const int32_t page = kv_page_take(st, g);
    st->d->vt->kv_write(st->d, st->kv, g, page, payload);
    prefix_page_give(p, node, g, page);
    kv_page_drop(&st->pool[g], page);
    NODE(p, node)->saved |= (uint8_t)(1u << g);
    return true;
}

static bool state_put(prefix *p, int32_t node, int32_t at, const void *payload) {
    kv_store *st = p->st;
    NODE(p, node)->pins++;
    const bool room = prefix_mark_room(p, true) && st->n_slots_free;
    NODE(p, node)->pins--;
    if (!room) return false;
    const int32_t slot = state_slot_take(st);
    if (!prefix_mark_new(p, node, at, slot, true)) {
        state_slot_drop(st, slot);
        return false;
    }
    st->n_slots_kept++;
    st->d->vt->state_write(st->d, st->state, slot, payload);
    for (int32_t i = NODE(p, node)->mark; i >= 0; i = MARK(p, i)->next)
        if (MARK(p, i)->at == at) MARK(p, i)->saved = true, MARK(p, i)->part_saved = 0xff;
    return true;
}

/* The block before the one that holds token n-1, -1: not held; *at is what that one has to begin with. */
static int32_t block_before(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, bool make, int32_t *at) {
    int32_t node = prefix_root(p, space, make);
    for (*at = n; node >= 0 && *at > KV_PAGE; *at -= KV_PAGE) node = prefix_child(p, node, id + n - *at);
    return node;
}

static int32_t block_find(prefix *p, int32_t before, const int32_t *id, int32_t at) {
    return at == KV_PAGE ? prefix_child(p, before, id) : prefix_begins(p, before, id, at);
}

bool prefix_put(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, int32_t kind, const void *payload) {
    int32_t at;
    const int32_t before = block_before(p, space, id, n, true, &at);
    if (before < 0) return false;
    int32_t x = block_find(p, before, id + n - at, at);
    if (x < 0) x = prefix_node_new(p, before, id + n - at, at);
    if (x < 0 || kind == PREFIX_BLOCK) return x >= 0;
    if (kind == PREFIX_STATE) return state_put(p, x, at, payload);
    return NODE(p, x)->n_ids == at && page_put(p, x, kind, payload); /* a part is not the page of a longer block */
}

void prefix_path(prefix *p, const prefix_key *space, const int32_t *id, size_t n, int32_t *node) {
    node[0] = prefix_root(p, space, false);
    for (size_t b = 0; b < n / KV_PAGE; b++)
        node[b + 1] = node[b] < 0 ? -1 : prefix_child(p, node[b], id + b * KV_PAGE);
}

bool prefix_holds(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, int32_t kind) {
    int32_t at;
    const int32_t before = block_before(p, space, id, n, false, &at);
    return prefix_holds_behind(p, before, id + n - at, at, kind);
}

bool prefix_holds_behind(prefix *p, int32_t node, const int32_t *ids, int32_t at, int32_t kind) {
    const int32_t x = node < 0 ? -1 : block_find(p, node, ids, at);
    if (x < 0 || kind == PREFIX_BLOCK) return x >= 0;
    if (kind != PREFIX_STATE) return NODE(p, x)->page[kind] >= 0;
    int32_t i = NODE(p, x)->mark;
    while (i >= 0 && MARK(p, i)->at < at) i = MARK(p, i)->next;
    return i >= 0 && MARK(p, i)->at == at && MARK(p, i)->slot >= 0;
}

void prefix_unsave(prefix *p) {
    for (int32_t i = 0; i < p->nodes_top; i++) NODE(p, i)->saved = 0;
    for (int32_t i = 0; i < p->n_marks; i++) MARK(p, i)->saved = false, MARK(p, i)->part_saved = 0;
    p->unsaved = true;
}
