/* The sampler: a row of logits becomes a token.
 *
 * Order (docs/sampling.md): logit_bias, repetition, presence, frequency; log-probabilities are those of the result;
 * then greedy, or top_p, min_p, top_k, temperature, a draw. Each filter keeps a prefix of the tokens sorted by logit
 * (ties: lowest id), so the kept set is one prefix: candidates near the maximum are gathered and that prefix is found
 * by partitioning, never by sorting a vocabulary.
 *
 * Every sum has a fixed order and exp is our own, so a choice depends on the row, the request and its step number only.
 * Not here: end of generation (scheduler.c). */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include "internal.h"

typedef struct pick {
    float value, mass;
    int32_t id;
} pick;

enum { SORT_BELOW = 24 };

/* ---- bias and penalties ------------------------------------------------------------------------------------------ */
typedef struct window {
    const int32_t *id;
    size_t n;
} window;
static window window_of(const sampler_in *in, int32_t size) {
    size_t n = size > 0 ? MIN((size_t)size, in->n_history) : in->n_history;
    return (window){in->history + (in->n_history - n), n};
}

/* Calls apply once for every distinct token of the window, with its number of occurrences. */
static void window_each(window h, sampler_scratch *w, float *x, float p,
                        float (*apply)(float logit, float p, uint32_t times)) {
    for (size_t i = 0; i < h.n; i++) w->count[h.id[i]]++;
    for (size_t i = 0; i < h.n; i++) {
        uint32_t times = w->count[h.id[i]];
        if (!times) continue;
        w->count[h.id[i]] = 0;
        x[h.id[i]] = apply(x[h.id[i]], p, times);
    }
}
static float apply_repetition(float x, float p, uint32_t times) {
    return x < 0 ? x * p : x / p;
}
static float apply_presence(float x, float p, uint32_t times) {
    return x - p;
}
static float apply_frequency(float x, float p, uint32_t times) {
    return x - p * (float)times;
}

static void penalise(const sampler_in *in, sampler_scratch *w) {
    const sampling *s = in->s;
    for (size_t i = 0; i < s->n_bias; i++) in->logits[s->bias_ids[i]] += s->bias[i];
    if (s->repetition_penalty != 0 && s->repetition_penalty != 1)
        window_each(window_of(in, s->repetition_window), w, in->logits, s->repetition_penalty, apply_repetition);
    if (s->presence_penalty != 0)
        window_each(window_of(in, s->presence_window), w, in->logits, s->presence_penalty, apply_presence);
    if (s->frequency_penalty != 0)
        window_each(window_of(in, s->frequency_window), w, in->logits, s->frequency_penalty, apply_frequency);
}

/* ---- the kept prefix --------------------------------------------------------------------------------------------- */
static inline bool better(const pick *a, const pick *b) {
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}
static inline void swap(pick *a, pick *b) {
    pick t = *a;
    *a = *b;
    *b = t;
}

/* The last token of the longest prefix, best first, in which every token has fewer than n_max before it and less than
 * mass_max probability before it. The first is always kept. Reorders p. */
static pick prefix_last(pick *p, int32_t n, int32_t n_max, double mass_max) {
    int32_t lo = 0, hi = n, before = 0;
    double mass = 0;
    pick last = {.value = INFINITY, .id = -1};
    while (hi - lo > SORT_BELOW) {
        /* The median of three goes to the end, the better ones to the front. */
        pick *a = &p[lo], *b = &p[lo + (hi - lo) / 2], *c = &p[hi - 1];
        pick *mid = better(a, b) ? (better(b, c)   ? b
                                    : better(a, c) ? c
                                                   : a)
                                 : (better(a, c)   ? a
                                    : better(b, c) ? c
                                                   : b);
        swap(mid, c);
        pick pivot = *c;
        int32_t cut = lo;
        double cut_mass = 0;
        for (int32_t i = lo; i < hi - 1; i++) {
            if (!better(&p[i], &pivot)) continue;
            cut_mass += (double)p[i].mass;
            swap(&p[i], &p[cut++]);
        }
        swap(&p[cut], &p[hi - 1]);
        if (before + (cut - lo) < n_max && mass + cut_mass < mass_max) {
            last = pivot;
            before += cut - lo + 1;
            mass += cut_mass + (double)pivot.mass;
            lo = cut + 1;
        } else {
            hi = cut;
        }
    }
    for (int32_t i = lo + 1; i < hi; i++)
        for (int32_t k = i; k > lo && better(&p[k], &p[k - 1]); k--) swap(&p[k], &p[k - 1]);
    for (int32_t i = lo; i < hi && before < n_max && (mass < mass_max || before == 0); i++) {
        last = p[i];
        before++;
        mass += (double)p[i].mass;
    }
    return last;
}

/* Gathers candidates and cuts them to the kept prefix (w->value, w->id, ascending ids); returns how many. z: sum of
 * exp(x - max). */
static int32_t candidates_cut(const sampler_in *in, sampler_scratch *w, float max, double z) {
    const sampling *s = in->s;
    const int32_t n_max = s->top_k > 0 ? s->top_k : w->vocab;
    const double mass_max = s->top_p < 1 ? (double)s->top_p * z : INFINITY;
    const float floor_min_p = s->min_p > 0 ? max + (float)log((double)s->min_p) : -INFINITY;
    int32_t n = 0;
    /* Most rows are decided within a few nats of the maximum. What is gathered must hold the prefix: n_max tokens, or
     * mass_max, or everything that min_p leaves. */
    for (float depth = 8;; depth *= 2) {
        float least = depth > 64 ? -FLT_MAX : max - depth;
        bool all = least <= floor_min_p || depth > 64;
        n = w->row->gather(in->logits, w->vocab, MAX(least, floor_min_p), w->value, w->id);
        if (all || n >= n_max ||
            (mass_max < INFINITY && w->row->exp(w->value, n, max, 1, NULL) >= mass_max * (1 + 1e-6)))
            break;
    }
    if (n <= 1 || (n <= n_max && mass_max == INFINITY)) return n;
    if (mass_max < INFINITY) w->row->exp(w->value, n, max, 1, w->weight);
    for (int32_t i = 0; i < n; i++) w->pick[i] = (pick){w->value[i], mass_max < INFINITY ? w->weight[i] : 0, w->id[i]};
    pick last = prefix_last(w->pick, n, n_max, mass_max);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        pick c = {.value = w->value[i], .id = w->id[i]};
        if (better(&last, &c)) continue;
        w->value[kept] = c.value;
        w->id[kept++] = c.id;
    }
    return kept;
}

/* ---- the draw ---------------------------------------------------------------------------------------------------- */
/* 53 random bits in [0,1): a counter and a key, no state (spec: seed ^ (step+1)*golden ratio), mixed by SplitMix64's
 * finaliser. */
static double draw_uniform(uint64_t seed, uint64_t step) {
    uint64_t z = seed ^ ((step + 1) * 0x9e3779b97f4a7c15u);
    for (int round = 0; round < 2; round++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}

/* Index into weight [n] where the running sum passes u * total; whole blocks are stepped over first. */
static int32_t draw_index(const row_ops *row, const float *weight, int32_t n, double total, double u) {
    double left = u * total, block;
    int32_t at = 0, last = 0;
    for (; at + ROW_BLOCK <= n && left >= (block = row->block(weight + at)); at += ROW_BLOCK) left -= block;
    for (int32_t i = at; i < n; i++) {
        if (weight[i] <= 0) continue;
        last = i;
        left -= (double)weight[i];
        if (left < 0) return i;
    }
    while (last == 0 && n > 0 && weight[n - 1] <= 0) n--; /* rounding: the last token that has any weight */
    return last ? last : n - 1;
}

static int32_t draw(const sampler_in *in, sampler_scratch *w, float max, double z) {
    const sampling *s = in->s;
    const float inv_t = fminf(1 / s->temperature, FLT_MAX);
    const float *value = in->logits;
    const bool filtered = s->top_p < 1 || s->min_p > 0 || (s->top_k > 0 && s->top_k < w->vocab);
    int32_t n = w->vocab;
    if (filtered) {
        n = candidates_cut(in, w, max, z);
        value = w->value;
    }
    double total = w->row->exp(value, n, max, inv_t, w->weight);
    int32_t i = draw_index(w->row, w->weight, n, total, draw_uniform(in->seed, in->step));
    return filtered ? w->id[i] : i;
}

static int32_t top_select(const row_ops *row, const float *x, int32_t n, int32_t n_top, token_prob *top) {
    int32_t have = 0;
    float least = -INFINITY; /* what a token must reach to come in; equals come in by lowest id */
    for (int32_t i = 0; (i = row->next(x, i, n, least)) < n; i++) {
        int32_t at = have < n_top ? have++ : have - 1;
        for (; at > 0 && x[i] > top[at - 1].logprob; at--) top[at] = top[at - 1];
        top[at] = (token_prob){i, x[i]};
        if (have == n_top) least = nextafterf(top[have - 1].logprob, INFINITY);
    }
    return have;
}

static void mask_apply(float *x, int32_t n, const uint64_t *mask) {
    for (int32_t i = 0; i < n; i += 64) {
        uint64_t bits = mask[i / 64];
        if (bits == UINT64_MAX) continue;
        for (int32_t k = i, end = MIN(i + 64, n); k < end; k++, bits >>= 1)
            if (!(bits & 1)) x[k] = -INFINITY;
    }
}

bool sampler_pick(const sampler_in *in, sampler_scratch *w, sampler_out *out) {
    const sampling *s = in->s;
    float max;
    penalise(in, w);
    if (!w->row->max(in->logits, w->vocab, &max)) return false;
    const bool greedy = s->temperature == 0 || s->top_p == 0 || s->top_k == 1;
    const bool nucleus = !greedy && s->top_p < 1;
    double z = in->logprobs || nucleus ? w->row->exp(in->logits, w->vocab, max, 1, NULL) : 0;
    const double lse = in->logprobs ? (double)max + log(z) : 0;
    out->n_top = 0;
    if (in->logprobs && in->n_top > 0)
        out->n_top = top_select(w->row, in->logits, w->vocab, MIN(in->n_top, TOP_LOGPROBS_MAX), out->top);
    for (int32_t i = 0; i < out->n_top; i++) out->top[i].logprob = (float)((double)out->top[i].logprob - lse);
    if (in->mask) {
        mask_apply(in->logits, w->vocab, in->mask);
        if (!w->row->max(in->logits, w->vocab, &max)) return false;
        if (nucleus) z = w->row->exp(in->logits, w->vocab, max, 1, NULL);
    }
    out->token = in->has_forced ? in->forced
                 : greedy       ? w->row->next(in->logits, 0, w->vocab, max)
                                : draw(in, w, max, z);
    out->logprob = in->logprobs ? (float)((double)in->logits[out->token] - lse) : 0;
    return true;
}

/* ---- checks and memory ------------------------------------------------------------------------------------------- */
sampling sampling_defaults(const gen_defaults *d) {
    return (sampling){
        .temperature = isnan(d->temperature) ? TEMPERATURE_DEFAULT : d->temperature,
        .top_p = d->top_p > 0 ? d->top_p : 1, /* also when it is not set: NAN */
        .top_k = MAX(d->top_k, 0),
        .repetition_penalty = isnan(d->repetition_penalty) ? 0 : d->repetition_penalty,
    };
}

/* Beyond these a penalty or bias takes finite logits to infinity, which would look like a broken model. */
#define PENALTY_MAX 1e6
#define BIAS_MOST   1e30f

bool sampling_check(const sampling *s, int32_t vocab, error *err) {
    const struct {
        const char *name;
        double value, least, most;
    } range[] = {
        {"temperature", s->temperature, 0, FLT_MAX},
        {"top_p", s->top_p, 0, 1},
        {"top_k", s->top_k, 0, INT32_MAX},
        {"min_p", s->min_p, 0, 1},
        {"repetition_penalty", s->repetition_penalty, 0, PENALTY_MAX},
        {"repetition_context_size", s->repetition_window, 0, INT32_MAX},
        {"presence_penalty", s->presence_penalty, -PENALTY_MAX, PENALTY_MAX},
        {"presence_context_size", s->presence_window, 0, INT32_MAX},
        {"frequency_penalty", s->frequency_penalty, -PENALTY_MAX, PENALTY_MAX},
        {"frequency_context_size", s->frequency_window, 0, INT32_MAX},
    };
    for (size_t i = 0; i < COUNT(range); i++) {
        if (range[i].value >= range[i].least && range[i].value <= range[i].most) continue;
        if (range[i].most == 1)
            return error_field(err, ERR_INVALID, range[i].name, "%s must be between 0 and 1, not %g", range[i].name,
                               range[i].value);
        return error_field(err, ERR_INVALID, range[i].name, "%s must be a finite number from %g to %g, not %g",
                           range[i].name, range[i].least, range[i].most, range[i].value);
    }
    if (s->repetition_penalty > 0 && s->repetition_penalty < 1 / PENALTY_MAX)
        return error_field(err, ERR_INVALID, "repetition_penalty",
                           "repetition_penalty must be 0 (off) or at least %g, not %g", 1 / PENALTY_MAX,
                           (double)s->repetition_penalty);
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias_ids[i] < 0 || s->bias_ids[i] >= vocab)
            return error_field(err, ERR_INVALID, "logit_bias", "logit_bias names token %d; tokens are 0 to %d",
                               s->bias_ids[i], vocab - 1);
        if (!(fabsf(s->bias[i]) <= BIAS_MOST))
            return error_field(err, ERR_INVALID, "logit_bias", "logit_bias of token %d is not a finite number",
                               s->bias_ids[i]);
    }
    return true;
}

size_t sampler_scratch_bytes(int32_t vocab) {
    const size_t n = ((size_t)vocab + 15) & ~(size_t)15;
    return n * (sizeof(float) + sizeof(float) + sizeof(int32_t) + sizeof(pick) + sizeof(uint32_t));
}

bool sampler_scratch_init(sampler_scratch *w, int32_t vocab, error *err) {
    const size_t n = ((size_t)vocab + 15) & ~(size_t)15;
    const row_ops *row = __builtin_cpu_supports("avx2") ? &row_ops_avx2 : &row_ops_any;
    *w = (sampler_scratch){.row = row, .vocab = vocab, .bytes = sampler_scratch_bytes(vocab)};
    w->block = mem_try(w->bytes, 64, err);
    if (!w->block) return false;
    uint8_t *at = w->block;
    w->pick = (void *)at, at += n * sizeof *w->pick;
    w->weight = (void *)at, at += n * sizeof *w->weight;
    w->value = (void *)at, at += n * sizeof *w->value;
    w->id = (void *)at, at += n * sizeof *w->id;
    w->count = (void *)at;
    return true;
}

void sampler_scratch_deinit(sampler_scratch *w) {
    mem_try_free(w->block, w->bytes);
    *w = (sampler_scratch){0};
}
