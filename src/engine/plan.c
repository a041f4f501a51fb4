/* The memory plan: one budget, split before anything large is allocated.
 * Not here: who waits when pages run out (scheduler.c). docs/engine.md has the arithmetic. */
#include "../base/limit.h"
#include "internal.h"

enum { CONTEXT_MIN = KV_PAGE }; /* a model that cannot hold this many positions is not served */
enum {
    UNIT = 64,           /* blocks: what the prompt cache is shared out by, */
    UNIT_MARKS = 2,      /* with so many checkpoints (state, windows) in it */
    CACHE_BLOCKS = 65536 /* more would not be used: 4 million tokens */
};
#define CACHE_DEFAULT ((size_t)8 << 30)

int32_t plan_pages(int32_t window, int32_t chunk, int32_t n) {
    /* A window's oldest key and the newest row may both stand inside a page: one page more than the span. */
    if (window > 0) n = (int32_t)MIN((int64_t)n, (int64_t)window + chunk + KV_PAGE);
    return (n + KV_PAGE - 1) / KV_PAGE;
}

/* Bytes for one sequence of `longest` positions beside a batch of `each` positions; SIZE_MAX on overflow. */
static size_t pages_for(const plan_in *in, int32_t longest, int32_t each, int32_t *n_pages) {
    size_t total = 0;
    for (int g = 0; g < in->n_groups; g++) {
        int64_t one = plan_pages(in->window[g], in->chunk, longest);
        int64_t all = (int64_t)in->batch * plan_pages(in->window[g], in->chunk, each);
        int64_t n = MAX(one, all);
        size_t bytes;
        if (n > INT32_MAX || !size_mul((size_t)n, in->page_bytes[g], &bytes) || !size_add(total, bytes, &total))
            return SIZE_MAX;
        n_pages[g] = (int32_t)n;
    }
    return total;
}

/* Largest n in [lo, hi] with pages_for(longest, each) within room, where n stands for the one that is -1; lo - 1 when
 * none. */
static int32_t largest(const plan_in *in, int32_t longest, size_t room, int32_t lo, int32_t hi) {
    int32_t pages[KV_GROUPS], best = lo - 1;
    while (lo <= hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (pages_for(in, longest < 0 ? mid : longest, longest < 0 ? 0 : mid, pages) <= room) {
            best = mid;
            lo = mid + 1;
        } else {
            hi = mid - 1;
        }
    }
    return best;
}

/* Shares the prompt cache out between pages of the groups, state and the tree. */
static void cache_share(plan *p, const plan_in *in, size_t bytes) {
    int32_t pages[KV_GROUPS];
    double unit = (double)in->state * UNIT_MARKS + (double)in->block_bytes * UNIT;
    for (int g = 0; g < in->n_groups; g++) {
        pages[g] = in->window[g] ? MIN(UNIT, UNIT_MARKS * plan_pages(in->window[g], 0, INT32_MAX)) : UNIT;
        unit += (double)pages[g] * (double)in->page_bytes[g];
    }
    double units = unit > 0 ? (double)bytes / unit : 0;
    if (units * UNIT > CACHE_BLOCKS) units = (double)CACHE_BLOCKS / UNIT;
    p->cache_blocks = (int32_t)(units * UNIT);
    p->cache_slots = in->state ? (int32_t)(units * UNIT_MARKS) : 0;
    if (in->state && !p->cache_slots) p->cache_blocks = 0; /* without state keys and values are of no use */
    if (!p->cache_blocks) return;
    p->cache_bytes = (size_t)p->cache_blocks * in->block_bytes + (size_t)p->cache_slots * in->state;
    for (int g = 0; g < in->n_groups; g++) {
        p->cache_pages[g] = (int32_t)(units * pages[g]);
        p->cache_bytes += (size_t)p->cache_pages[g] * in->page_bytes[g];
    }
}

bool plan_make(plan *p, const plan_in *in, error *err) {
    *p = (plan){0};
    size_t state;
    bool fits =
        size_mul(in->state, (size_t)in->batch, &state) && size_add(in->weights, in->workspace, &p->fixed_bytes) &&
        size_add(p->fixed_bytes, state, &p->fixed_bytes) && size_add(p->fixed_bytes, in->scratch, &p->fixed_bytes);
    if (in->context > in->context_max)
        return error_field(err, ERR_INVALID, "context_length", "context_length %d is more than the model's %d",
                           in->context, in->context_max);
    if (!fits || p->fixed_bytes >= in->budget)
        return error_set(err, ERR_MEMORY,
                         "the model does not fit the memory budget of %.2f GB: weights %.2f GB, workspace %.2f GB, "
                         "state and buffers %.2f GB",
                         (double)in->budget / 1e9, (double)in->weights / 1e9, (double)in->workspace / 1e9,
                         (double)(in->scratch + (fits ? state : 0)) / 1e9);
    size_t room = in->budget - p->fixed_bytes;
    int32_t want = in->context ? in->context : in->context_max;
    int32_t context = largest(in, -1, room, 1, want);
    if (context < MIN(want, CONTEXT_MIN) || (in->context && context < want))
        return error_set(
            err, ERR_MEMORY,
            "a context of %d does not fit the memory budget of %.2f GB: %.2f GB remain after weights and workspace "
            "(%.2f GB), which hold %d positions",
            in->context ? want : CONTEXT_MIN, (double)in->budget / 1e9, (double)room / 1e9,
            (double)p->fixed_bytes / 1e9, MAX(context, 0));
    p->context = context;
    size_t left = room - pages_for(in, context, 0, p->n_pages);
    cache_share(p, in, in->cache == PLAN_CACHE_DEFAULT ? MIN(CACHE_DEFAULT, left / 2) : MIN(in->cache, left));
    int32_t each = largest(in, context, room - p->cache_bytes, 1, context);
    p->kv_bytes = pages_for(in, context, MAX(each, 0), p->n_pages);
    return true;
}

size_t plan_default_budget(void) {
    return limit_memory() / 4 * 3;
}
