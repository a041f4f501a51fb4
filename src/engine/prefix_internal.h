/* What the files of the prefix cache share: prefix.c (looking up, taking, growing, keeping), prefix_evict.c (what goes
 * when room is needed), prefix_item.c (keys, and the way to and from a store behind). */
#pragma once
#include "internal.h"

enum {
    SPACES = 64,      /* namespaces held at a time */
    SIBLINGS = 256,   /* children looked at for one that begins alike: the most recent */
    MARKS_MAX = 4096, /* checkpoints; recurrent models are limited by their slots */
    GHOSTS_MIN = 1024,
    SHARER_SLOTS = KV_GROUPS, /* what competes for memory: pages of each group, and states */
    SHARERS
};

/* One block. Indices are into prefix.node and prefix.mark; -1: none. */
typedef struct prefix_node {
    int32_t parent, child, next, prev; /* first child; siblings, the most recently used first */
    int32_t newer, older;              /* order of use; a block is never newer than what it continues, except for blocks
                                          that a running sequence adds */
    int32_t chain;                     /* of the hash table; of the free list */
    int32_t depth;                     /* blocks before it; a namespace's root: -1 */
    int32_t n_ids;
    int32_t pins;  /* sequences that stand here */
    int32_t mark;  /* its checkpoints, in order of position */
    int32_t below; /* checkpoints in blocks that continue it */
    int32_t page[KV_GROUPS];
    int32_t need[KV_GROUPS]; /* of a window's page: checkpoints that need it */
    int32_t loose_newer[KV_GROUPS], loose_older[KV_GROUPS];
    uint64_t used;  /* prefix.tick when it was */
    uint64_t hash;  /* of all tokens up to its end, and the namespace: for finding it */
    prefix_key key; /* the same for stores */
    uint8_t saved;  /* by group: a store has the page */
    int32_t id[KV_PAGE];
} prefix_node;

typedef struct prefix_mark {
    int32_t node, next;
    int32_t at;   /* tokens of the block that it stands behind: 1..n_ids */
    int32_t slot; /* -1: the model has no recurrent state */
    uint64_t used;
    bool planned; /* at a message's beginning or a reply's end; else every so many tokens */
    bool saved;
    uint8_t part_saved; /* by group: a store has the part of the block before it */
} prefix_mark;

typedef struct prefix_list { /* doubly linked */
    int32_t newest, oldest, n;
} prefix_list;

struct prefix {
    kv_store *st;             /* borrows (engine) */
    bool recurrent, windowed; /* what checkpoints are for */
    int32_t n_nodes, n_marks; /* capacity */
    prefix_node *node;        /* owns */
    prefix_mark *mark;        /* owns */
    int32_t node_free, mark_free;
    int32_t nodes_top; /* those from here on were never used, and their memory never touched */
    int32_t nodes_used, marks_used;
    int32_t slots_max;     /* kept ones: the others are running sequences' */
    size_t bytes_max;      /* idle pages and kept slots together */
    size_t share[SHARERS]; /* bytes that each kind may keep when all want more; > 0 where there is such a kind */
    int32_t *bucket;       /* owns: [n_buckets], a power of two */
    uint32_t n_buckets;
    uint64_t *ghost; /* owns: [n_buckets] hashes of blocks that were evicted */
    prefix_list lru, loose[KV_GROUPS];
    struct {
        prefix_key key;
        int32_t node; /* -1: free */
    } space[SPACES];
    uint64_t tick; /* requests so far */
    prefix_tier tier;
    bool unsaved;    /* there may be an item that no store has */
    int32_t save_at; /* where to look next for one */
    prefix_stats stats;
    void *memory; /* owns: [bytes] node, mark, bucket and ghost are in it */
    size_t bytes;
};

#define NODE(p, i) (&(p)->node[i])
#define MARK(p, i) (&(p)->mark[i])

static inline int32_t node_pos(const prefix_node *x) { /* of its first token */
    return x->depth * KV_PAGE;
}
static inline int32_t mark_pos(const prefix *p, const prefix_mark *m) {
    return node_pos(NODE(p, m->node)) + m->at;
}

/* ---- prefix.c ---------------------------------------------------------------------------------------------------- */
uint64_t prefix_hash(uint64_t before, const int32_t *id, size_t n);
int32_t prefix_root(prefix *p, const prefix_key *space, bool make);       /* -1: none, or no room for one */
int32_t prefix_child(const prefix *p, int32_t parent, const int32_t *id); /* the whole block of these ids; -1: none */
int32_t prefix_begins(const prefix *p, int32_t parent, const int32_t *id,
                      int32_t n);                                                 /* a block that begins so, or -1 */
int32_t prefix_node_new(prefix *p, int32_t parent, const int32_t *id, int32_t n); /* without pages; -1: no room */
void prefix_page_give(prefix *p, int32_t node, int g, int32_t page); /* the tree holds it too from now on */
/* A checkpoint `at` tokens into the block, which takes the slot over. False: no room, the windows' pages are not all
 * held, or it is there already; the slot is then still the caller's. */
bool prefix_mark_new(prefix *p, int32_t node, int32_t at, int32_t slot, bool planned);
/* Are the pages there to go on behind `at` tokens of this block? If not, the depth of the last missing one. */
bool prefix_covers(const prefix *p, int32_t node, int32_t at, int32_t *missing);

/* ---- prefix_evict.c ---------------------------------------------------------------------------------------------- */
void prefix_use(prefix *p, int32_t node); /* it and all that it continues were just used */
void prefix_lru_add(prefix *p, int32_t node);
void prefix_loose_add(prefix *p, int32_t node, int g);          /* no checkpoint needs this window's page */
void prefix_claim(prefix *p, int32_t node, int32_t at, int by); /* a checkpoint's, on the pages its windows need */
void prefix_mark_unlink(prefix *p, int32_t mark);               /* gone, but for its slot */
void prefix_node_remove(prefix *p, int32_t node);               /* a leaf */
void prefix_prune(prefix *p,
                  int32_t node); /* removes it, and what it continues, as long as it is of no use to anybody */
bool prefix_node_room(prefix *p);
bool prefix_mark_room(prefix *p, bool slot); /* for one more checkpoint, with a slot */
/* Evicts until the cache may keep so many bytes more. False: what it has cannot go. */
bool prefix_bytes_room(prefix *p, size_t more);
size_t prefix_bytes(const prefix *p); /* idle pages and kept slots */

/* ---- prefix_item.c ----------------------------------------------------------------------------------------------- */
void prefix_page_leaving(prefix *p, int32_t node, int g); /* tells the store behind, if it does not have it */
void prefix_mark_leaving(prefix *p, int32_t mark);
