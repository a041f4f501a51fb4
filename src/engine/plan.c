/* The memory plan: one budget, split before anything large is allocated.
 * Not here: who waits when pages run out (scheduler.c), reports for people (fit.c). docs/memory.md has the arithmetic.
 */
#include "../base/limit.h"
#include "internal.h"

enum { CONTEXT_MIN = KV_PAGE }; /* a model that cannot hold this many positions is not served */
enum {
    UNIT = 64,           /* blocks: what the prompt cache is shared out by, */
    UNIT_MARKS = 2,      /* with so many checkpoints (state, windows) in it */
    CACHE_BLOCKS = 65536 /* more would not be used: 4 million tokens */
};
#define LARGE_PAGE    ((size_t)2 << 20)
#define CACHE_DEFAULT ((size_t)8 << 30)

int32_t plan_pages(int32_t window, int32_t chunk, int32_t n) {
    /* A window's oldest key and the newest row may both stand inside a page: one page more than the span. */
    if (window > 0) n = (int32_t)MIN((int64_t)n, (int64_t)window + chunk + KV_PAGE);
    return (n + KV_PAGE - 1) / KV_PAGE;
}

/* Pages of a batch of sequences of n positions. All of them together have at most `chunk` rows of prompts in a step, so
 * not every window is as wide as a lone sequence's. */
static int64_t batch_pages(const plan_in *in, int32_t window, int32_t n) {
    int64_t apart = (int64_t)in->batch * plan_pages(window, in->chunk, n);
    int64_t shared = (int64_t)in->batch * (plan_pages(window, 1, n) + 1) + in->chunk / KV_PAGE;
    return window && n ? MIN(apart, shared) : apart;
}

/* Bytes for one sequence of `longest` positions beside a batch of `each` positions; SIZE_MAX on overflow. */
static size_t pages_for(const plan_in *in, int32_t longest, int32_t each, int32_t *n_pages) {
    size_t total = 0;
    for (int g = 0; g < in->n_groups; g++) {
        int64_t one = plan_pages(in->window[g], in->chunk, longest);
        int64_t all = batch_pages(in, in->window[g], each);
        int64_t n = MAX(one, all);
        size_t bytes;
        if (n > INT32_MAX || !size_mul((size_t)n, in->page_bytes[g], &bytes) || !size_add(total, bytes, &total))
            return SIZE_MAX;
        n_pages[g] = (int32_t)n;
    }
    return total;
}

static size_t sum(size_t a, size_t b) { /* saturates: sizes come from files */
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}
static size_t times(size_t a, size_t b) {
    size_t n;
    return size_mul(a, b, &n) ? n : SIZE_MAX;
}

/* A generation that waits is taken to be of QUEUED positions: longer ones leave room for fewer. */
enum { QUEUED = 1024 };
static size_t replies_at(const plan_in *in, int32_t context) {
    const size_t position = in->reply_position, page = in->reply_groups * sizeof(int32_t);
    size_t full = in->reply + position * (size_t)context + page * ((size_t)context / KV_PAGE + 1);
    size_t small = in->reply + position * QUEUED + page * (QUEUED / KV_PAGE + 1);
    return sum(times(full, (size_t)in->batch), times(MIN(small, full), (size_t)in->queue));
}
static size_t work_at(const plan_in *in, int32_t context) {
    return sum(in->workspace, in->work ? in->work(in, context) : 0);
}

/* Everything but pages and prompt cache, for sequences of `context` positions. */
static size_t fixed_at(const plan_in *in, int32_t context) {
    size_t n = sum(in->weights, work_at(in, context));
    n = sum(n, sum(times(in->state, (size_t)in->batch), in->scratch));
    n = sum(n, sum(sum(in->tier, in->text), replies_at(in, context)));
    return sum(n, sum(in->requests, in->process));
}

/* Bytes for one sequence of `longest` positions beside a batch of `each`, with all that is fixed then. */
static size_t all_at(const plan_in *in, int32_t longest, int32_t each) {
    int32_t pages[KV_GROUPS];
    return sum(fixed_at(in, longest), pages_for(in, longest, each, pages));
}

/* Largest n in [lo, hi] with all_at(longest, each) within the budget, where n stands for the one that is -1; lo - 1
 * when none. */
static int32_t largest(const plan_in *in, int32_t longest, size_t budget, int32_t lo, int32_t hi) {
    int32_t best = lo - 1;
    while (lo <= hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (all_at(in, longest < 0 ? mid : longest, longest < 0 ? 0 : mid) <= budget) {
            best = mid;
            lo = mid + 1;
        } else {
            hi = mid - 1;
        }
    }
    return best;
}

/* Bytes of the cache that a block of its tree takes at least: what is in it beside pages of windows and states, which
 * most blocks of a long conversation do without. unit: of UNIT blocks with all they usually have. */
static double block_least(const plan_in *in, double unit) {
    size_t full = 0;
    for (int g = 0; g < in->n_groups; g++)
        if (!in->window[g]) full += in->page_bytes[g];
    return full ? (double)full + (double)in->block_bytes : unit / UNIT + (double)in->block_bytes;
}

static int32_t most_of(const plan *p, size_t each) { /* a block of the tree has one, and so has a running one's */
    return (int32_t)MIN(p->cache_room / MAX(each, 1), 2 * (size_t)p->cache_blocks);
}

/* Shares the prompt cache out between the tree, as large as it could get, and pages of the groups and states, which
 * share the rest as it comes. */
static void cache_share(plan *p, const plan_in *in, size_t bytes) {
    int32_t pages[KV_GROUPS];
    double unit = (double)in->state * UNIT_MARKS;
    for (int g = 0; g < in->n_groups; g++) {
        pages[g] = in->window[g] ? MIN(UNIT, UNIT_MARKS * plan_pages(in->window[g], 0, INT32_MAX)) : UNIT;
        unit += (double)pages[g] * (double)in->page_bytes[g];
    }
    if (unit <= 0) return;
    p->cache_blocks = (int32_t)MIN((double)bytes / block_least(in, unit), CACHE_BLOCKS);
    const double units =
        MIN(((double)bytes - (double)p->cache_blocks * (double)in->block_bytes) / unit, (double)CACHE_BLOCKS / UNIT);
    p->cache_slots = in->state ? (int32_t)(units * UNIT_MARKS) : 0;
    if (in->state && !p->cache_slots) p->cache_blocks = 0; /* without state keys and values are of no use */
    if (!p->cache_blocks) return;
    p->cache_room = (size_t)p->cache_slots * in->state;
    for (int g = 0; g < in->n_groups; g++) {
        p->cache_pages[g] = (int32_t)(units * pages[g]);
        p->cache_room += (size_t)p->cache_pages[g] * in->page_bytes[g];
    }
    p->cache_bytes = p->cache_room + (size_t)p->cache_blocks * in->block_bytes;
    /* Pools that are larger than their memory end somewhere inside a large page of the system. */
    const int sharers = in->n_groups + (in->state > 0);
    if (sharers > 1) p->cache_room -= MIN((size_t)sharers * LARGE_PAGE, (p->cache_room - in->state) / 20);
    p->cache_slots_max = in->state && !in->counted ? most_of(p, in->state) : p->cache_slots;
    for (int g = 0; g < in->n_groups; g++)
        p->cache_pages_max[g] = in->counted ? p->cache_pages[g] : most_of(p, in->page_bytes[g]);
}

static bool refuse(const plan_in *in, int32_t want, int32_t context, error *err) {
    const double GB = 1e9;
    size_t state = times(in->state, (size_t)in->batch), fixed = fixed_at(in, MIN(want, CONTEXT_MIN));
    if (fixed >= in->budget)
        return error_set(err, ERR_MEMORY,
                         "the model does not fit the memory budget of %.2f GB: %.2f GB are needed before any context "
                         "(weights %.2f, workspace %.2f, state and logits %.2f, tokenizer %.2f, replies %.2f, requests "
                         "%.2f, program %.2f)",
                         (double)in->budget / GB, (double)fixed / GB, (double)in->weights / GB,
                         (double)work_at(in, CONTEXT_MIN) / GB, (double)sum(in->scratch, state) / GB,
                         (double)in->text / GB, (double)replies_at(in, CONTEXT_MIN) / GB, (double)in->requests / GB,
                         (double)in->process / GB);
    return error_set(
        err, ERR_MEMORY,
        "a context of %d does not fit the memory budget of %.2f GB: it needs %.2f GB, of which the weights "
        "are %.2f GB; a context of %d would fit",
        in->context ? want : CONTEXT_MIN, (double)in->budget / GB, (double)all_at(in, want, 0) / GB,
        (double)in->weights / GB, MAX(context, 0));
}

bool plan_make(plan *p, const plan_in *in, error *err) {
    *p = (plan){0};
    if (in->context > in->context_max)
        return error_field(err, ERR_INVALID, "context_length", "context_length %d is more than the model's %d",
                           in->context, in->context_max);
    int32_t want = in->context ? in->context : in->context_max;
    int32_t context = largest(in, -1, in->budget, 1, want);
    if (context < MIN(want, CONTEXT_MIN) || (in->context && context < want)) return refuse(in, want, context, err);
    p->context = context;
    p->fixed_bytes = fixed_at(in, context);
    p->reply_bytes = replies_at(in, context);
    size_t left = in->budget - all_at(in, context, 0);
    cache_share(p, in, in->cache == PLAN_CACHE_DEFAULT ? MIN(CACHE_DEFAULT, left / 2) : MIN(in->cache, left));
    int32_t each = largest(in, context, in->budget - p->cache_bytes, 1, context);
    p->kv_bytes = pages_for(in, context, MAX(each, 0), p->n_pages);
    return true;
}

void plan_parts(const plan_in *in, const plan *p, int32_t context, memory_plan *out) {
    int32_t pages[KV_GROUPS];
    if (p) context = p->context;
    size_t one = pages_for(in, context, 0, pages);
    *out = (memory_plan){.part = {[PLAN_WEIGHTS] = in->weights,
                                  [PLAN_WORKSPACE] = work_at(in, context),
                                  [PLAN_LOGITS] = in->scratch,
                                  [PLAN_STATE] = times(in->state, (size_t)in->batch),
                                  [PLAN_KV] = one,
                                  [PLAN_BATCH] = p ? p->kv_bytes - one : 0,
                                  [PLAN_CACHE] = p ? p->cache_bytes : 0,
                                  [PLAN_TIER] = in->tier,
                                  [PLAN_TEXT] = in->text,
                                  [PLAN_REPLIES] = replies_at(in, context),
                                  [PLAN_REQUESTS] = in->requests,
                                  [PLAN_PROCESS] = in->process},
                         .need_bytes = all_at(in, context, 0),
                         .budget_bytes = in->budget,
                         .context = context,
                         .context_max = in->context_max,
                         .batch = in->batch,
                         .context_fixed = in->context > 0};
    out->total_bytes = sum(out->need_bytes, out->part[PLAN_BATCH] + out->part[PLAN_CACHE]);
}

/* ---- what a model needs ------------------------------------------------------------------------------------------ */
/* Heap, stacks and tables of the program, measured on a server that has answered a few requests (docs/memory.md). */
enum { PROCESS_BYTES = 12 << 20 };

size_t plan_default_budget(void) {
    return limit_memory() / 4 * 3;
}

/* Asked for, or the family's own, or three quarters; address space that is not there helps nobody. */
static size_t budget_of(const engine_opts *o, const model_info *m) {
    size_t budget = o->memory_budget ? o->memory_budget : plan_default_budget();
    if (!o->memory_budget && m->budget_default) budget = MIN(m->budget_default, limit_memory());
    return MIN(budget, limit_address_space());
}

static size_t device_work(const plan_in *in, int32_t context) {
    return in->work_of->vt->work_bytes(in->work_of, in->work_for, context);
}

void plan_inputs(plan_in *in, const engine_opts *o, device *d, const model *m, size_t text, kv_spec *spec) {
    const model_info *info = model_describe(m);
    size_t V = (size_t)info->vocab, workers = d->threads ? (size_t)pool_size(d->threads) : 1;
    size_t batch = (size_t)MIN(o->batch, d->rows_max), rows = batch + LOGIT_ROWS;
    size_t hidden = info->gives_hidden ? rows * (size_t)info->width * sizeof(float) : 0;
    *spec = *model_kv_spec(m);
    spec->type = d->num == NUM_F32 ? DT_F32 : DT_F16;
    spec->both = o->kv_late;
    *in = (plan_in){.budget = budget_of(o, info),
                    .weights = info->weight_bytes,
                    .workspace = info->workspace_bytes,
                    .state = info->state_bytes,
                    .scratch = rows * V * sizeof(float) + hidden + workers * sampler_scratch_bytes(info->vocab),
                    .tier = tier_memory(o, budget_of(o, info)),
                    .text = text,
                    .requests = o->requests_bytes,
                    .process = PROCESS_BYTES,
                    .reply = gen_bytes(0, spec->n_groups, 0),
                    .reply_position = sizeof(int32_t),
                    .reply_groups = (size_t)spec->n_groups,
                    .queue = o->queue_max,
                    .work = d->vt->work_bytes ? device_work : NULL,
                    .work_of = d,
                    .work_for = spec,
                    .cache = o->prompt_cache < 0   ? 0
                             : o->prompt_cache > 0 ? (size_t)o->prompt_cache
                                                   : PLAN_CACHE_DEFAULT,
                    .block_bytes = prefix_block_bytes(),
                    .counted = limit_counts_mapped(),
                    .batch = (int32_t)batch,
                    .chunk = MIN(o->prefill_chunk, d->rows_max),
                    .context = o->context_length,
                    .context_max = info->context_max,
                    .n_groups = spec->n_groups};
    if (!in->context && info->context_default) in->context = MIN(info->context_default, info->context_max);
    for (int g = 0; g < spec->n_groups; g++) {
        in->window[g] = spec->window[g];
        in->page_bytes[g] = d->vt->kv_page_bytes(d, spec, g);
    }
}
