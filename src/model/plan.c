/* plan: the memory a step needs, and the layers of the key/value cache and of the recurrent state. Sizes are exact and
 * known before anything is allocated. Not here: pages of the cache (engine/, device->kv_new). */
#include "internal.h"

struct plan {
    model *m;
    size_t bytes;  /* so far */
    uint8_t *base; /* NULL while sizes are added up */
};

/* Buffers start on a cache line of their own. */
void plan_buffer(plan *p, tensor *to, int64_t width) {
    int32_t dim[2] = {p->m->rows_max, (int32_t)width};
    if (p->base) *to = tensor_of(p->base + p->bytes, DT_F32, 2, dim);
    p->bytes += ((size_t)dim[0] * (size_t)width * sizeof(float) + 63) & ~(size_t)63;
}

bool work_make(model *m, bool plan_only, error *err) {
    plan p = {.m = m};
    m->fam->work(m, &p);
    m->info.workspace_bytes = p.bytes;
    if (plan_only) return true;
    if (!(m->workspace = p.base = m->d->vt->alloc(m->d, p.bytes, err))) return false;
    p.bytes = 0;
    m->fam->work(m, &p);
    return true;
}

static int32_t kv_add(model *m, config *c, kv_layer l, int32_t window) {
    int32_t g = 0, n = m->kv.n_layers;
    while (g < m->kv.n_groups && m->kv.window[g] != window) g++;
    config_check(c, g < KV_GROUPS, "layers with more than %d different windows", KV_GROUPS);
    if (g == KV_GROUPS) return 0;
    if (g == m->kv.n_groups) m->kv.window[m->kv.n_groups++] = window;
    if (n % 16 == 0) {
        kv_layer *grown = model_alloc(m, (size_t)(n + 16) * sizeof *grown);
        if (n) memcpy(grown, m->kv_layers, (size_t)n * sizeof *grown);
        m->kv.layer = m->kv_layers = grown;
    }
    l.group = g;
    l.of = m->state.n_layers; /* every layer before this one has added itself to the state or to the cache; */
    for (int32_t i = 0; i < n; i++) l.of += m->kv_layers[i].v_width > 0;
    l.of -= l.v_width == 0; /* an indexer's keys follow those of its layer */
    m->kv_layers[n] = l;
    return m->kv.n_layers++;
}

int32_t kv_layer_add(model *m, config *c, int32_t heads, int32_t k_width, int32_t v_width, int32_t window) {
    return kv_add(m, c, (kv_layer){.heads = heads, .k_width = k_width, .v_width = v_width}, window);
}

int32_t kv_latent_add(model *m, config *c, int32_t k_width, int32_t v_width) {
    return kv_add(m, c, (kv_layer){.heads = 1, .k_width = k_width, .v_width = v_width, .latent = true}, 0);
}

int32_t state_layer_add(model *m, const state_layer *l) {
    int32_t n = m->state.n_layers;
    if (n % 16 == 0) {
        state_layer *grown = model_alloc(m, (size_t)(n + 16) * sizeof *grown);
        if (n) memcpy(grown, m->state_layers, (size_t)n * sizeof *grown);
        m->state.layer = m->state_layers = grown;
    }
    m->state_layers[n] = *l;
    m->state.n_layers++;
    m->info.state_bytes = m->d->vt->state_bytes(m->d, &m->state);
    return n;
}
