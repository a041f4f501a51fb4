/* Sequences: page tables, reference-counted pages, recurrent state slots, how much memory they have; forking, going
 * back.
 * Not here: the bytes in the pages (device), finding what others computed (prefix.c), who may have how many
 * (scheduler.c, plan.c). */
#include <stdlib.h>
#include "internal.h"

void kv_store_init(kv_store *st, const kv_spec *spec, const size_t *page_bytes, int32_t n_slots) {
    *st = (kv_store){.n_groups = spec->n_groups,
                     .n_slots = n_slots,
                     .n_slots_free = n_slots,
                     .n_slots_cold = n_slots,
                     .bytes_max = SIZE_MAX,
                     .touched_max = SIZE_MAX};
    for (int g = 0; g < spec->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        p->n_pages = p->n_free = p->n_cold = spec->n_pages[g];
        p->window = spec->window[g];
        p->page_bytes = page_bytes[g];
        p->free = mem_alloc((size_t)p->n_pages * sizeof *p->free);
        p->refs = mem_alloc((size_t)p->n_pages * sizeof *p->refs);
        p->held = mem_alloc((size_t)p->n_pages * sizeof *p->held);
        for (int32_t i = 0; i < p->n_pages; i++) p->free[i] = p->n_pages - 1 - i;
    }
    if (n_slots) st->slot = mem_alloc((size_t)n_slots * sizeof *st->slot);
    for (int32_t i = 0; i < n_slots; i++) st->slot[i] = n_slots - 1 - i;
}

void kv_store_deinit(kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        free(st->pool[g].free);
        free(st->pool[g].refs);
        free(st->pool[g].held);
    }
    free(st->slot);
    *st = (kv_store){0};
}

size_t kv_store_bytes_used(const kv_store *st) {
    size_t n = 0;
    for (int g = 0; g < st->n_groups; g++) {
        const kv_pool *p = &st->pool[g];
        n += (size_t)(p->n_pages - p->n_free - p->n_idle) * p->page_bytes;
    }
    return n;
}

size_t kv_store_bytes_held(const kv_store *st) {
    size_t n = (size_t)st->n_slots_kept * st->state_bytes;
    for (int g = 0; g < st->n_groups; g++)
        n += (size_t)(st->pool[g].n_pages - st->pool[g].n_free) * st->pool[g].page_bytes;
    return n;
}

bool kv_store_fits(const kv_store *st, const int32_t *need) {
    size_t n = kv_store_bytes_held(st);
    for (int g = 0; g < st->n_groups; g++) {
        if (need[g] > st->pool[g].n_free) return false;
        n += (size_t)need[g] * st->pool[g].page_bytes;
    }
    return n <= st->bytes_max;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */
size_t kv_store_bytes_touched(const kv_store *st) {
    size_t n = (size_t)(st->n_slots - st->n_slots_cold) * st->state_bytes;
    for (int g = 0; g < st->n_groups; g++)
        n += (size_t)(st->pool[g].n_pages - st->pool[g].n_cold) * st->pool[g].page_bytes;
    return n;
}

/* One free page or slot gives its memory back. */
static bool discard_one(kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        if (p->n_free == p->n_cold) continue;
        st->d->vt->kv_discard(st->d, st->kv, g, p->free[p->n_cold++]);
        return true;
    }
    if (st->n_slots_free == st->n_slots_cold) return false;
    st->d->vt->state_discard(st->d, st->state, st->slot[st->n_slots_cold++]);
    return true;
}

static void touch(kv_store *st, size_t bytes) {
    if (st->touched_max == SIZE_MAX) return;
    while (kv_store_bytes_touched(st) + bytes > st->touched_max && discard_one(st)) continue;
}

int32_t state_slot_take(kv_store *st) {
    if (st->n_slots_free == 0) return -1;
    if (st->n_slots_free == st->n_slots_cold) {
        touch(st, st->state_bytes);
        st->n_slots_cold--;
    }
    return st->slot[--st->n_slots_free];
}

void state_slot_drop(kv_store *st, int32_t slot) {
    st->slot[st->n_slots_free++] = slot;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */
int32_t kv_page_take(kv_store *st, int g) {
    kv_pool *p = &st->pool[g];
    if (p->n_free == 0) return -1;
    if (p->n_free == p->n_cold) {
        touch(st, p->page_bytes);
        p->n_cold--;
    }
    int32_t page = p->free[--p->n_free];
    p->refs[page] = 1;
    return page;
}

void kv_page_share(kv_pool *p, int32_t page) {
    p->n_idle -= p->held[page] && p->refs[page] == 1;
    p->refs[page]++;
}

void kv_page_drop(kv_pool *p, int32_t page) {
    if (--p->refs[page] == 0) p->free[p->n_free++] = page;
    p->n_idle += p->held[page] && p->refs[page] == 1;
}

void kv_page_hold(kv_pool *p, int32_t page) {
    p->refs[page]++;
    p->held[page] = true;
}

void kv_page_let(kv_pool *p, int32_t page) {
    p->n_idle -= p->refs[page] == 1;
    p->held[page] = false;
    kv_page_drop(p, page);
}

/* ---- sequences --------------------------------------------------------------------------------------------------- */
void sequence_init(sequence *s, const kv_store *st, int32_t cap) {
    *s = (sequence){.slot = -1, .cap = cap, .node = -1};
    for (int g = 0; g < st->n_groups; g++) s->page[g] = mem_alloc((size_t)(cap / KV_PAGE + 1) * sizeof *s->page[g]);
}

void sequence_reset(sequence *s, kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        for (int32_t i = s->n_past[g]; i < s->n_page[g]; i++) kv_page_drop(&st->pool[g], s->page[g][i]);
        s->n_page[g] = s->n_past[g] = 0;
    }
    if (s->slot >= 0) state_slot_drop(st, s->slot);
    for (int32_t i = 0; i < s->n_marks; i++) sequence_unmark(&s->mark[i], st);
    s->n_marks = 0;
    s->slot = -1;
    s->n_computed = s->n_blocks = 0;
}

void sequence_deinit(sequence *s, kv_store *st) {
    if (st) sequence_reset(s, st);
    for (int g = 0; g < KV_GROUPS; g++) free(s->page[g]);
    ids_free(&s->id);
    *s = (sequence){.slot = -1, .node = -1};
}

void sequence_missing(const sequence *s, const kv_store *st, int32_t upto, int32_t *need) {
    for (int g = 0; g < st->n_groups; g++) need[g] = MAX(0, (upto + KV_PAGE - 1) / KV_PAGE - s->n_page[g]);
}

bool sequence_extend(sequence *s, kv_store *st, int32_t upto) {
    int32_t need[KV_GROUPS];
    sequence_missing(s, st, upto, need);
    if (!kv_store_fits(st, need)) return false;
    if (st->n_slots && s->slot < 0 && (s->slot = state_slot_take(st)) < 0) return false;
    for (int g = 0; g < st->n_groups; g++)
        for (; need[g] > 0; need[g]--) s->page[g][s->n_page[g]++] = kv_page_take(st, g);
    return true;
}

int32_t window_start(int32_t window, int32_t n) {
    /* The query at n sees `window` keys, itself included. */
    return window && n >= window ? (n - window + 1) / KV_PAGE * KV_PAGE : 0;
}

void sequence_release(sequence *s, kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        int32_t first = window_start(p->window, s->n_computed) / KV_PAGE;
        for (; s->n_past[g] < first && s->n_past[g] < s->n_page[g]; s->n_past[g]++) {
            kv_page_drop(p, s->page[g][s->n_past[g]]);
            s->page[g][s->n_past[g]] = -1;
        }
    }
}

/* ---- forking and going back -------------------------------------------------------------------------------------- */
bool sequence_fork(sequence *to, const sequence *from, kv_store *st) {
    const int32_t whole = from->n_computed / KV_PAGE;
    const bool part = from->n_computed % KV_PAGE != 0;
    int32_t need[KV_GROUPS];
    for (int g = 0; g < st->n_groups; g++) need[g] = part;
    if (!kv_store_fits(st, need)) return false;
    if (from->slot >= 0 && !st->n_slots_free) return false;
    for (int g = 0; g < st->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        memcpy(to->page[g], from->page[g], (size_t)(whole + part) * sizeof *to->page[g]);
        to->n_past[g] = MIN(from->n_past[g], whole + part);
        to->n_page[g] = whole + part;
        for (int32_t i = to->n_past[g]; i < whole; i++) kv_page_share(p, to->page[g][i]);
        if (!part) continue;
        to->page[g][whole] = kv_page_take(st, g);
        st->d->vt->kv_copy(st->d, st->kv, g, to->page[g][whole], from->page[g][whole]);
    }
    if (from->slot >= 0) {
        to->slot = state_slot_take(st);
        st->d->vt->state_copy(st->d, st->state, to->slot, from->slot);
    }
    to->n_computed = from->n_computed;
    return true;
}

bool sequence_mark(const sequence *s, kv_store *st, seq_mark *m) {
    *m = (seq_mark){s->n_computed, -1, false};
    if (s->slot < 0) return true;
    if ((m->slot = state_slot_take(st)) < 0) return false;
    st->d->vt->state_copy(st->d, st->state, m->slot, s->slot);
    return true;
}

void sequence_unmark(seq_mark *m, kv_store *st) {
    if (m->slot >= 0) state_slot_drop(st, m->slot);
    m->slot = -1;
}

bool sequence_back(sequence *s, kv_store *st, const seq_mark *m) {
    if (m->n > s->n_computed || m->n < s->n_blocks * KV_PAGE || (s->slot >= 0) != (m->slot >= 0)) return false;
    for (int g = 0; g < st->n_groups; g++)
        if (s->n_past[g] > window_start(st->pool[g].window, m->n) / KV_PAGE) return false;
    if (m->slot >= 0) st->d->vt->state_copy(st->d, st->state, s->slot, m->slot);
    s->n_computed = m->n;
    return true;
}

size_t sequence_bytes(const sequence *s, const kv_store *st) {
    size_t n = s->slot >= 0 ? st->state_bytes : 0;
    for (int g = 0; g < st->n_groups; g++) n += (size_t)(s->n_page[g] - s->n_past[g]) * st->pool[g].page_bytes;
    return n;
}
