/* Recurrent state in memory: slots, each with the windows and matrices of all layers. Not here: what is computed with
 * them (delta_body.h), who has which slot (engine/). */
#include <stdlib.h>
#include <sys/mman.h>
#include "internal.h"

enum { LINE = 16 /* floats: each window and each matrix starts on a cache line */ };

static size_t lines(size_t floats) {
    return (floats + LINE - 1) / LINE * LINE;
}

/* Lays out layer after layer from *at on. */
static void layer_place(const state_layer *l, cpu_state_layer *out, size_t *at) {
    *out = (cpu_state_layer){.dim = *l, .v_pad = (l->v_width + 15) / 16 * 16};
    out->conv_at = *at;
    *at += lines((size_t)(l->kernel - 1) * (size_t)l->channels);
    out->head_at = *at;
    *at += (size_t)l->heads * (size_t)l->k_width * (size_t)out->v_pad;
}

static size_t page_align(size_t bytes) {
    return (bytes + OS_PAGE - 1) & ~(size_t)(OS_PAGE - 1);
}

size_t cpu_state_bytes(device *d, const state_spec *spec) {
    size_t at = 0;
    cpu_state_layer l;
    for (int32_t i = 0; i < spec->n_layers; i++) layer_place(&spec->layer[i], &l, &at);
    return page_align(at * sizeof(float));
}

state_store *cpu_state_new(device *d, const state_spec *spec, error *err) {
    state_store *st = mem_alloc(sizeof *st);
    st->n_layers = spec->n_layers;
    st->n_slots = spec->n_slots;
    st->layer = mem_alloc((size_t)spec->n_layers * sizeof *st->layer);
    for (int32_t i = 0; i < spec->n_layers; i++) layer_place(&spec->layer[i], &st->layer[i], &st->slot_floats);
    st->slot_floats = page_align(st->slot_floats * sizeof(float)) / sizeof(float);
    if (!size_mul(st->slot_floats * sizeof(float), (size_t)spec->n_slots, &st->bytes))
        error_set(err, ERR_MEMORY, "recurrent state of %d sequences is too large", spec->n_slots);
    else if ((st->slots = mem_try(MAX(st->bytes, 1), 64, err)))
        return st;
    cpu_state_free(d, st);
    return NULL;
}

void cpu_state_free(device *d, state_store *st) {
    if (!st) return;
    if (st->slots) mem_try_free(st->slots, MAX(st->bytes, 1));
    free(st->layer);
    free(st);
}

void cpu_state_zero(device *d, state_store *st, int32_t slot) {
    memset(state_at(st, slot, 0), 0, st->slot_floats * sizeof(float));
}

void cpu_state_copy(device *d, state_store *st, int32_t to, int32_t from) {
    memmove(state_at(st, to, 0), state_at(st, from, 0), st->slot_floats * sizeof(float));
}

void cpu_state_discard(device *d, state_store *st, int32_t slot) {
    if (!st->small) madvise(st->slots, MAX(st->bytes, 1), MADV_NOHUGEPAGE); /* as cpu_kv_discard */
    st->small = true;
    madvise(state_at(st, slot, 0), st->slot_floats * sizeof(float), MADV_DONTNEED);
}

void cpu_state_read(device *d, state_store *st, int32_t slot, void *host) {
    memcpy(host, state_at(st, slot, 0), st->slot_floats * sizeof(float));
}

void cpu_state_write(device *d, state_store *st, int32_t slot, const void *host) {
    memcpy(state_at(st, slot, 0), host, st->slot_floats * sizeof(float));
}
