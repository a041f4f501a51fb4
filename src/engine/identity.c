/* What a checkpoint is, beside a network: whether it is meant for embeddings, and a name for exactly these bits, which
 * clients see as system_fingerprint. Not here: what the numbers of a model are (model/). */
#include <ctype.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>
#include "internal.h"

/* ---- embeddings -------------------------------------------------------------------------------------------------- */
enum { POOL_NONE, POOL_LAST, POOL_OTHER };

static int pooling_of_gguf(const json *meta) {
    str arch = json_str(json_get(meta, "general.architecture"), (str){0});
    char key[96];
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)MIN(arch.n, 64), arch.p ? arch.p : "");
    int64_t kind = json_int(json_get(meta, key), 0); /* llama.cpp: 1 mean, 2 cls, 3 last */
    return kind == 3 ? POOL_LAST : kind ? POOL_OTHER : POOL_NONE;
}

static bool named_embedding(const char *path) {
    buf low = {0};
    for (const char *p = path; *p; p++) buf_putc(&low, (char)tolower((unsigned char)*p));
    size_t n = low.n;
    while (n > 1 && low.p[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && low.p[from - 1] != '/') from--;
    bool found = str_has(str_slice(buf_view(&low), from, n), STR("embed"));
    buf_free(&low);
    return found;
}

/* Conversions often leave sentence-transformers' files out; then only the name tells. */
static int pooling_of(checkpoint *c) {
    if (checkpoint_type(c) == CHECKPOINT_GGUF) return pooling_of_gguf(checkpoint_config(c));
    error damaged = {0};
    const json *pool = checkpoint_json(c, "1_Pooling/config.json", &damaged);
    if (pool) return json_bool(json_get(pool, "pooling_mode_lasttoken"), false) ? POOL_LAST : POOL_OTHER;
    bool named = checkpoint_json(c, "modules.json", NULL) || named_embedding(checkpoint_path(c));
    return named ? POOL_LAST : POOL_NONE;
}

embedding_info embedding_read(checkpoint *c, const model_info *m, const tokenizer *t) {
    int pool = pooling_of(c);
    if (pool == POOL_NONE) return (embedding_info){0};
    if (pool != POOL_LAST || !m->gives_hidden) {
        log_warn("%s looks like an embedding model, but %s", checkpoint_path(c),
                 m->gives_hidden ? "only last-token pooling is built" : "its family gives no embeddings");
        return (embedding_info){0};
    }
    int32_t end = tokenizer_id(t, STR("<|endoftext|>"));
    return (embedding_info){.width = m->width, .end_token = end >= 0 ? end : tokenizer_eos(t)};
}

/* ---- a name for these weights ------------------------------------------------------------------------------------ */
enum { SAMPLE = 64 };

static void hash_text(XXH3_state_t *h, checkpoint *c, const char *name) {
    buf b = {0};
    if (checkpoint_text(c, name, &b, NULL)) XXH3_64bits_update(h, b.p ? b.p : "", b.n);
    XXH3_64bits_update(h, name, strlen(name));
    buf_free(&b);
}

/* Both ends of every tensor: reading all of a large model would take longer than opening it. */
static void hash_tensor(XXH3_state_t *h, const stored_tensor *t) {
    XXH3_64bits_update(h, t->name.p, t->name.n);
    XXH3_64bits_update(h, t->dim, sizeof t->dim[0] * (size_t)MAX(t->ndim, 0));
    XXH3_64bits_update(h, t->type_name, strlen(t->type_name));
    size_t n = MIN(t->bytes, (size_t)SAMPLE);
    XXH3_64bits_update(h, t->p, n);
    XXH3_64bits_update(h, t->p + t->bytes - n, n);
}

uint64_t weights_identify(checkpoint *c) {
    static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    XXH3_state_t *h = XXH3_createState();
    XXH3_64bits_reset(h);
    for (size_t i = 0; i < COUNT(files); i++) hash_text(h, c, files[i]);
    if (checkpoint_type(c) == CHECKPOINT_GGUF) {
        buf meta = {0};
        json_write(&meta, checkpoint_config(c));
        XXH3_64bits_update(h, meta.p, meta.n);
        buf_free(&meta);
    }
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) hash_tensor(h, checkpoint_tensor_at(c, i));
    uint64_t id = XXH3_64bits_digest(h);
    XXH3_freeState(h);
    return id;
}

/* ---- a name for this program ------------------------------------------------------------------------------------- */
/* The linker's build id: a hash of everything that was linked. */
static int find_build_id(struct dl_phdr_info *info, size_t size, void *out) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_NOTE) continue;
        const char *at = (const char *)(info->dlpi_addr + p->p_vaddr), *end = at + p->p_memsz;
        while (at + sizeof(ElfW(Nhdr)) < end) {
            const ElfW(Nhdr) *n = (const void *)at;
            const char *desc = at + sizeof *n + ((n->n_namesz + 3u) & ~3u);
            if (n->n_type == NT_GNU_BUILD_ID && n->n_descsz >= 4) memcpy(out, desc, 4);
            at = desc + ((n->n_descsz + 3u) & ~3u);
        }
    }
    return 1; /* the program itself is the first; the rest are libraries */
}

void fingerprint_write(char *out, size_t n, const engine *e, const engine_opts *o) {
    uint8_t build[4] = {0};
    dl_iterate_phdr(find_build_id, build);
    const device *d = e->parts.device;
    const char *level =
        strcmp(d->vt->name, "cpu") ? "" : device_cpu_level(d); /* products of float weights depend on it */
    const char *kv = e->info->kv.scheme;
    uint64_t reading[] = {e->parts.weights_id, o->compat_mlx_lm, (uint64_t)o->context_length,
                          XXH3_64bits(kv, strlen(kv)), o->kv_late};
    snprintf(out, n, "hearth-%s-%02x%02x%02x%02x-%s%s-%s-%012llx", HEARTH_VERSION, build[0], build[1], build[2],
             build[3], d->vt->name, level, numerics_name(d->num),
             (unsigned long long)XXH3_64bits(reading, sizeof reading) & 0xffffffffffffull);
}

/* ---- a name for what caches hold --------------------------------------------------------------------------------- */
typedef struct whole {
    const checkpoint *c;
    XXH128_hash_t *hash; /* [n_tensors] */
} whole;
static void hash_whole(void *arg, int task, int worker) {
    const whole *w = arg;
    const stored_tensor *t = checkpoint_tensor_at(w->c, (size_t)task);
    w->hash[task] = XXH3_128bits(t->p, t->bytes);
    file_map_drop(t->p, t->bytes);
}

/* Every byte of the weights counts here: a cache that outlives the process must not take a model for its neighbour. */
static void hash_weights(XXH3_state_t *h, const engine *e) {
    const size_t n = e->parts.checkpoint ? checkpoint_n_tensors(e->parts.checkpoint) : 0;
    whole w = {e->parts.checkpoint, mem_alloc((n + 1) * sizeof *w.hash)};
    if (e->parts.device->threads)
        pool_run(e->parts.device->threads, (int)n, hash_whole, &w);
    else
        for (size_t i = 0; i < n; i++) hash_whole(&w, (int)i, 0);
    XXH3_128bits_update(h, w.hash, n * sizeof *w.hash);
    free(w.hash);
}

void cache_fingerprint(const engine *e, const engine_opts *o, const kv_spec *kv, uint8_t out[32]) {
    XXH3_state_t *h = XXH3_createState();
    XXH3_128bits_reset(h);
    device *d = e->parts.device;
    buf text = {0};
    uint8_t build[4] = {0};
    dl_iterate_phdr(find_build_id, build);
    buf_printf(&text, "%s %s %02x%02x%02x%02x %s %s %s %d %d %zu", PREFIX_LAYOUT, HEARTH_VERSION, build[0], build[1],
               build[2], build[3], d->vt->name, strcmp(d->vt->name, "cpu") ? "" : device_cpu_level(d),
               numerics_name(d->num), o->compat_mlx_lm, e->info->context_max, e->info->state_bytes);
    for (int i = 0; i < kv->n_layers; i++) {
        const kv_layer *l = &kv->layer[i];
        buf_printf(&text, " %d/%d/%d/%d/%d/%d/%d.%d.%d/%d.%d.%d", l->of, l->heads, l->k_width, l->v_width, l->group,
                   l->latent, l->k.bits, l->k.rotated, l->k.group, l->v.bits, l->v.rotated, l->v.group);
    }
    for (int g = 0; g < kv->n_groups; g++) buf_printf(&text, " w%d/%zu", kv->window[g], d->vt->kv_page_bytes(d, kv, g));
    buf_printf(&text, " %s %s %d %016llx", dtype_name(kv->type), e->info->kv.scheme, kv->both,
               (unsigned long long)e->parts.weights_id);
    XXH3_128bits_update(h, text.p, text.n);
    hash_weights(h, e);
    XXH128_hash_t sum = XXH3_128bits_digest(h);
    memcpy(out, &sum, sizeof sum);
    sum = XXH3_128bits_withSeed(text.p, text.n, sum.low64); /* 32 bytes, as keys have; 16 of them are enough */
    memcpy(out + sizeof sum, &sum, sizeof sum);
    XXH3_freeState(h);
    buf_free(&text);
}
