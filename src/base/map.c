/* Hash map from bytes to uint64: open addressing, linear probing, xxHash. Keys are copied into one buffer. */
#include <stdlib.h>
#include <xxhash.h>
#include "base.h"

typedef struct slot {
    uint32_t hash, key_n;
    uint64_t key_at; /* offset in keys, plus 1; 0 = free */
    uint64_t value;
} slot;

struct map {
    slot *slots; /* owns */
    size_t n, cap;
    buf keys;
};

map *map_new(size_t expected) {
    map *m = mem_alloc(sizeof *m);
    m->cap = 16;
    while (m->cap * 2 < expected * 3) m->cap *= 2;
    m->slots = mem_alloc(m->cap * sizeof *m->slots);
    return m;
}

void map_free(map *m) {
    if (!m) return;
    free(m->slots);
    buf_free(&m->keys);
    free(m);
}

static slot *slot_find(const map *m, str key, uint32_t hash) {
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        slot *s = &m->slots[i];
        if (!s->key_at) return s;
        if (s->hash == hash && s->key_n == key.n && memcmp(m->keys.p + s->key_at - 1, key.p, key.n) == 0) return s;
    }
}

static void grow(map *m) {
    slot *old = m->slots;
    size_t n_old = m->cap;
    m->cap *= 2;
    m->slots = mem_alloc(m->cap * sizeof *m->slots);
    for (size_t i = 0; i < n_old; i++) {
        if (!old[i].key_at) continue;
        size_t j = old[i].hash & (m->cap - 1);
        while (m->slots[j].key_at) j = (j + 1) & (m->cap - 1);
        m->slots[j] = old[i];
    }
    free(old);
}

void map_set(map *m, str key, uint64_t value) {
    uint32_t hash = (uint32_t)XXH3_64bits(key.p, key.n);
    slot *s = slot_find(m, key, hash);
    if (!s->key_at) {
        if ((m->n + 1) * 3 > m->cap * 2) {
            grow(m);
            s = slot_find(m, key, hash);
        }
        s->hash = hash;
        s->key_n = (uint32_t)key.n;
        s->key_at = m->keys.n + 1;
        buf_add(&m->keys, key.p, key.n);
        m->n++;
    }
    s->value = value;
}

bool map_get(const map *m, str key, uint64_t *value) {
    const slot *s = slot_find(m, key, (uint32_t)XXH3_64bits(key.p, key.n));
    if (!s->key_at) return false;
    if (value) *value = s->value;
    return true;
}

size_t map_count(const map *m) {
    return m->n;
}
