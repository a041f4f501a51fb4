/* Sequences: page tables, reference-counted pages, recurrent state slots.
 * Not here: the bytes in the pages (device), who may have how many (scheduler.c, plan.c). */
#include <stdlib.h>
#include "internal.h"

void kv_store_init(kv_store *st, const kv_spec *spec, const size_t *page_bytes, int32_t n_slots) {
    *st = (kv_store){.n_groups = spec->n_groups, .n_slots = n_slots, .n_slots_free = n_slots};
    for (int g = 0; g < spec->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        p->n_pages = p->n_free = spec->n_pages[g];
        p->window = spec->window[g];
        p->page_bytes = page_bytes[g];
        p->free = mem_alloc((size_t)p->n_pages * sizeof *p->free);
        p->refs = mem_alloc((size_t)p->n_pages * sizeof *p->refs);
        for (int32_t i = 0; i < p->n_pages; i++) p->free[i] = p->n_pages - 1 - i;
    }
    if (n_slots) st->slot = mem_alloc((size_t)n_slots * sizeof *st->slot);
    for (int32_t i = 0; i < n_slots; i++) st->slot[i] = n_slots - 1 - i;
}

void kv_store_deinit(kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        free(st->pool[g].free);
        free(st->pool[g].refs);
    }
    free(st->slot);
    *st = (kv_store){0};
}

size_t kv_store_bytes_used(const kv_store *st) {
    size_t n = 0;
    for (int g = 0; g < st->n_groups; g++)
        n += (size_t)(st->pool[g].n_pages - st->pool[g].n_free) * st->pool[g].page_bytes;
    return n;
}

int32_t kv_page_take(kv_pool *p) {
    if (p->n_free == 0) return -1;
    int32_t page = p->free[--p->n_free];
    p->refs[page] = 1;
    return page;
}

void kv_page_share(kv_pool *p, int32_t page) {
    p->refs[page]++;
}

void kv_page_drop(kv_pool *p, int32_t page) {
    if (--p->refs[page] == 0) p->free[p->n_free++] = page;
}

void sequence_init(sequence *s, const kv_store *st, int32_t cap) {
    *s = (sequence){.slot = -1, .cap = cap};
    for (int g = 0; g < st->n_groups; g++) s->page[g] = mem_alloc((size_t)(cap / KV_PAGE + 1) * sizeof *s->page[g]);
}

void sequence_reset(sequence *s, kv_store *st) {
    for (int g = 0; g < st->n_groups; g++) {
        for (int32_t i = s->n_past[g]; i < s->n_page[g]; i++) kv_page_drop(&st->pool[g], s->page[g][i]);
        s->n_page[g] = s->n_past[g] = 0;
    }
    if (s->slot >= 0) st->slot[st->n_slots_free++] = s->slot;
    s->slot = -1;
    s->n_computed = 0;
}

void sequence_deinit(sequence *s, kv_store *st) {
    if (st) sequence_reset(s, st);
    for (int g = 0; g < KV_GROUPS; g++) free(s->page[g]);
    ids_free(&s->id);
    *s = (sequence){.slot = -1};
}

void sequence_missing(const sequence *s, const kv_store *st, int32_t upto, int32_t *need) {
    for (int g = 0; g < st->n_groups; g++) need[g] = MAX(0, (upto + KV_PAGE - 1) / KV_PAGE - s->n_page[g]);
}

bool sequence_extend(sequence *s, kv_store *st, int32_t upto) {
    int32_t need[KV_GROUPS];
    sequence_missing(s, st, upto, need);
    for (int g = 0; g < st->n_groups; g++)
        if (need[g] > st->pool[g].n_free) return false;
    if (st->n_slots && s->slot < 0) {
        if (st->n_slots_free == 0) return false;
        s->slot = st->slot[--st->n_slots_free];
    }
    for (int g = 0; g < st->n_groups; g++)
        for (; need[g] > 0; need[g]--) s->page[g][s->n_page[g]++] = kv_page_take(&st->pool[g]);
    return true;
}

void sequence_advance(sequence *s, kv_store *st, int32_t n) {
    s->n_computed += n;
    for (int g = 0; g < st->n_groups; g++) {
        kv_pool *p = &st->pool[g];
        if (!p->window) continue;
        /* The next query stands at n_computed and sees window keys, itself included. */
        int32_t first = s->n_computed - p->window + 1;
        for (; (s->n_past[g] + 1) * KV_PAGE <= first && s->n_past[g] < s->n_page[g]; s->n_past[g]++) {
            kv_page_drop(p, s->page[g][s->n_past[g]]);
            s->page[g][s->n_past[g]] = -1;
        }
    }
}
