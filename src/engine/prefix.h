/* prefix: what earlier requests left in memory, found again by their tokens.
 *
 * A tree over blocks of KV_PAGE tokens. A node is one block behind everything above it: its tokens, and of each group
 * the page with their keys and values as long as that is held. Blocks are whole, except a leaf where a request ended.
 * Nodes and running sequences share pages (kv_pool.refs); nobody writes a shared page. A checkpoint stands at an exact
 * number of tokens: the recurrent state there, and a claim on the pages that sliding windows need to go on from there.
 * What a page or a state holds is decided by the tokens before it alone, so it does not matter who computed it.
 *
 * Not here: sequences (internal.h), when to look and what to keep (scheduler.c), the store on disk (cold.h). Everything
 * runs on the engine's thread. docs/prefix-cache.md. */
#pragma once
#include "../device/device.h"

struct kv_store;
struct sequence;
typedef struct prefix prefix;

/* ---- items: what a store behind the cache keeps ------------------------------------------------------------------ */
/* Key of a block: SHA-256(key of the block before it || its ids, little endian). Of a state: SHA-256(key of the block
 * before the one it stands in || ids of that block up to it || "state"). Before the first block stands the key of the
 * namespace: SHA-256(PREFIX_LAYOUT || namespace). What else decides the bytes (weights, numerics, KV type) is the same
 * for all of one engine and belongs into the store's fingerprint. */
enum { PREFIX_KEY = 32 };
#define PREFIX_LAYOUT "hearth prefix 1" /* counts up when keys or payloads change their meaning */
typedef struct prefix_key {
    uint8_t b[PREFIX_KEY];
} prefix_key;

/* kind of an item: a group's page (its number), or state. PREFIX_BLOCK is a block without any payload. */
enum { PREFIX_BLOCK = -1, PREFIX_STATE = KV_GROUPS };

/* The payload is what device->kv_read gives of page `at`, or state_read of slot `at`: opaque, the same on every run
 * with the same fingerprint. */
typedef struct prefix_item {
    prefix_key key, parent;
    int32_t kind;
    int32_t pos;        /* of ids[0] in the sequence: a multiple of KV_PAGE */
    const int32_t *ids; /* [n_ids]; borrows the cache until it changes */
    int32_t n_ids;      /* 1..KV_PAGE; fewer: only so many positions of the page mean something */
    size_t bytes;       /* of the payload */
    int32_t at;         /* page or slot */
    int32_t node, mark; /* the cache's own: which block, which checkpoint (-1: none) */
} prefix_item;

/* Of the n / KV_PAGE whole blocks of id. */
void prefix_keys(const prefix_key *space, const int32_t *id, size_t n, prefix_key *out);
void prefix_space_key(str space, prefix_key *out);
void prefix_block_key(const prefix_key *parent, const int32_t *id, size_t n, prefix_key *out);
void prefix_state_key(const prefix_key *parent, const int32_t *id, size_t n, prefix_key *out);

/* What stands behind the cache. `leaving` is called before an item that is not saved leaves memory: the last moment to
 * read it (prefix_item_read); it must not change the cache. */
typedef struct prefix_tier {
    void (*leaving)(void *arg, const prefix_item *it);
    void *arg;
} prefix_tier;
void prefix_tier_set(prefix *p, const prefix_tier *t);
void prefix_item_read(const prefix *p, const prefix_item *it, void *host);
/* Write-behind and demotion: some item that is not saved yet; false: all are. A checkpoint within a block comes with
 * the pages of the part of its block that it stands behind, n_ids being its tokens, so that both are found under the
 * same beginning. */
bool prefix_unsaved(prefix *p, prefix_item *it);
void prefix_saved(prefix *p, const prefix_item *it); /* a store has it: it may leave without a word */
/* Brings an item back: of the block that holds token n-1 of id [n], whose blocks before it must be there (put them in
 * order). Payload NULL with PREFIX_BLOCK: the tokens alone. State stands behind token n. Once put it counts as saved.
 * False: no room, no block before it, or it is there. */
bool prefix_put(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, int32_t kind, const void *payload);
/* Is the item that prefix_put would bring there already? */
bool prefix_holds(prefix *p, const prefix_key *space, const int32_t *id, int32_t n, int32_t kind);
/* The same for many n of one prompt, without walking down each time: node[b] (until the cache changes) is what block b
 * of id [n] continues, [n / KV_PAGE + 1]; -1: not held. Block b begins with the `at` tokens of ids. */
void prefix_path(prefix *p, const prefix_key *space, const int32_t *id, size_t n, int32_t *node);
bool prefix_holds_behind(prefix *p, int32_t node, const int32_t *ids, int32_t at, int32_t kind);
void prefix_unsave(prefix *p); /* no store has anything: a disk refused what was said to be saved */
