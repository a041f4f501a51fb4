/* bind: a family's tensor table against a checkpoint: finds each tensor, checks its shape, adds up sizes, loads.
 * Not here: reading files (format/), laying matrices out (device->pack), GGUF's names (gguf_names.c). */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include "internal.h"

typedef struct binding {
    weight *w; /* borrows (family struct); one of w, t and f, or none: not used */
    tensor *t;
    float *f;
    const weight *same; /* w becomes a copy of this once that is loaded: a tied head */
    const char *name;   /* canonical: "model.layers.0.self_attn.q_proj" */
    const char *stored; /* as the checkpoint calls it; a tensor's with ".weight" if it has that */
    bool biased, experts, heads, present;
    int n;
    int32_t dim[4];
    int32_t active; /* experts: how many of them a row reads */
    float shift;    /* a tensor's values gain this */
    void (*fix)(tensor *t);
    weight_src src;
    const weight_src *turned; /* [n_experts], in the arena: src is made of their transposes when it is loaded */
    size_t at, bias_at;       /* place in the block of vectors, in floats */
} binding;

struct binder {
    model *m;
    config *c;
    char prefix[96];
    bool biased;
    int32_t active;
    float shift;
    binding *list; /* owns until bindings_make copies it to the arena */
    size_t n, cap;
};

/* Where the language model lies in a checkpoint: alone, or inside one that also sees or hears. */
static const struct {
    const char *body, *head;
} layouts[] = {
    {"model.", "lm_head"},
    {"language_model.model.", "language_model.lm_head"},
    {"model.language_model.", "lm_head"},
    {"", "lm_head"},
};
/* Tensors of parts that are loaded by others, or that nobody needs. */
static const char *const not_ours[] = {
    "vision_tower.",
    "model.vision_tower.",
    "visual.",
    "model.visual.",
    "audio_tower.",
    "model.audio_tower.",
    "embed_vision.",
    "model.embed_vision.",
    "embed_audio.",
    "model.embed_audio.",
    "mtp.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
};

void bind_at(binder *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->prefix, sizeof b->prefix, fmt, ap);
    va_end(ap);
}

void bind_bias(binder *b, bool biased) {
    b->biased = biased;
}

void bind_active(binder *b, int32_t active) {
    b->active = active;
}

void bind_norm_shift(binder *b, float shift) {
    b->shift = shift;
}

static binding *bind_new(binder *b, const char *name, int n, const int32_t *dim) {
    if (b->n == b->cap) b->list = mem_resize(b->list, (b->cap = b->cap ? 2 * b->cap : 64) * sizeof *b->list);
    binding *to = &b->list[b->n++];
    *to = (binding){.name = arena_printf(b->m->a, "%s%s", b->prefix, name), .n = n};
    memcpy(to->dim, dim, sizeof *dim * (size_t)n);
    return to;
}

void bind_weight(binder *b, weight *to, const char *name, int n, const int32_t *dim) {
    binding *x = bind_new(b, name, n, dim);
    x->w = to;
    x->biased = b->biased;
}

void bind_tensor(binder *b, tensor *to, const char *name, int n, const int32_t *dim) {
    bind_new(b, name, n, dim)->t = to;
}

void bind_norm(binder *b, tensor *to, const char *name, int n, const int32_t *dim) {
    binding *x = bind_new(b, name, n, dim);
    x->t = to;
    x->shift = b->shift;
}

void bind_factor(binder *b, factor *to, const char *name, int n, const int32_t *dim) {
    bind_new(b, name, n, dim)->f = to;
}

void bind_unused(binder *b, const char *name) {
    bind_new(b, name, 1, (int32_t[]){0});
}

const model *bind_model(const binder *b) {
    return b->m;
}

void bind_fix(binder *b, void (*fix)(tensor *t)) {
    b->list[b->n - 1].fix = fix;
}

void bind_experts(binder *b, weight *to, const char *name, int n, const int32_t *dim) {
    binding *x = bind_new(b, name, n, dim);
    x->w = to;
    x->experts = true;
    x->active = b->active;
}

void bind_head_weights(binder *b, weight *to, const char *name, int n, const int32_t *dim) {
    binding *x = bind_new(b, name, n, dim);
    x->w = to;
    x->heads = true;
}

/* ---- names ------------------------------------------------------------------------------------------------------ */
const stored_tensor *tensor_named(const config *c, const char *module, const char *suffix) {
    char name[256];
    int n = snprintf(name, sizeof name, "%s%s", module, suffix);
    return n < (int)sizeof name ? checkpoint_tensor(c->from, (str){name, (size_t)n}) : NULL;
}

const char *stored_name(const model *m, const config *c, const char *name) {
    if (m->gguf) return gguf_name(c->from, m->a, name);
    size_t i = 0;
    while (i + 1 < COUNT(layouts)) {
        char embedding[96];
        snprintf(embedding, sizeof embedding, "%sembed_tokens", layouts[i].body);
        if (tensor_named(c, embedding, ".weight")) break;
        i++;
    }
    if (str_starts(str_of(name), STR("model."))) return arena_printf(m->a, "%s%s", layouts[i].body, name + 6);
    return str_is(str_of(name), "lm_head") ? layouts[i].head : name;
}

void bind_head(binder *b, weight *to, const weight *tok, int32_t V, int32_t D) {
    const json *tie = json_get(b->c->text, "tie_word_embeddings");
    const char *stored = stored_name(b->m, b->c, "lm_head");
    bool have = stored && tensor_named(b->c, stored, ".weight");
    b->m->tied = json_bool(tie, !have);
    bind_at(b, "%s", "");
    bind_weight(b, to, "lm_head", 2, (int32_t[]){V, D});
    if (b->m->tied) b->list[b->n - 1].same = tok;
}

/* ---- shapes and sizes ------------------------------------------------------------------------------------------- */
static const char *shape_text(char *to, size_t cap, int n, const int64_t *dim) {
    size_t at = (size_t)snprintf(to, cap, "[");
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(to + at, cap - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (at < cap) snprintf(to + at, cap - at, "]");
    return to;
}

/* Dimensions of 1 do not count: [C,1,K] is [C,K]. */
static bool shape_same(int n, const int64_t *dim, int expected_n, const int32_t *expected) {
    int i = 0, k = 0;
    for (;;) {
        while (i < n && dim[i] == 1) i++;
        while (k < expected_n && expected[k] == 1) k++;
        if (i == n || k == expected_n) return i == n && k == expected_n;
        if (dim[i++] != expected[k++]) return false;
    }
}

static bool shape_error(const config *c, const binding *b, const char *stored, int n, const int64_t *dim, error *err) {
    char found[96], expected[96];
    int64_t want[4];
    for (int i = 0; i < b->n; i++) want[i] = b->dim[i];
    shape_text(expected, sizeof expected, b->n, want);
    if (!n)
        return error_set(err, ERR_FORMAT, "%s: tensor %s %s is missing", checkpoint_path(c->from), stored, expected);
    return error_set(err, ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", checkpoint_path(c->from), stored,
                     shape_text(found, sizeof found, n, dim), expected);
}

static int64_t n_elements(const binding *b) {
    int64_t n = 1;
    for (int i = 0; i < b->n; i++) n *= b->dim[i];
    return n;
}

/* Takes `n` floats of the block of vectors; each starts on its own cache line. */
static size_t vector_place(model *m, int64_t n) {
    size_t at = m->vector_bytes / sizeof(float);
    m->vector_bytes += ((size_t)n * sizeof(float) + 63) & ~(size_t)63;
    return at;
}

void weight_use(const config *c, const char *module, map *used) {
    static const char *const parts[] = {".weight", ".scales", ".biases", ""};
    for (size_t i = 0; i < COUNT(parts); i++) {
        const stored_tensor *t = tensor_named(c, module, parts[i]);
        if (t) map_set(used, t->name, 1);
    }
}

static bool find_weight(model *m, config *c, binding *b, map *used, error *err) {
    bool found, ok = b->experts ? experts_find(m, c, b->stored, b->dim[0], b->dim[1], &b->src, &found, used, err)
                     : b->heads
                         ? head_weights_find(m, c, b->name, b->stored, b->dim, &b->src, &b->turned, &found, used, err)
                         : checkpoint_weight(c->from, b->stored, &b->src, &found, err);
    if (!ok) return false;
    int64_t dim[3] = {b->src.n_experts, b->src.n_out, b->src.n_in};
    bool flat = found && b->src.n_experts == 1;
    if (!found) return shape_error(c, b, b->stored, 0, NULL, err);
    if (!shape_same(3, dim, b->n, b->dim)) return shape_error(c, b, b->stored, flat ? 2 : 3, flat ? dim + 1 : dim, err);
    weight_use(c, b->stored, used);
    size_t bytes = m->d->vt->packed_bytes(m->d, &b->src);
    m->info.weight_bytes += bytes;
    /* A step reads one row of an embedding table, unless the table is the output head too. */
    if (b->experts)
        m->info.decode_bytes += bytes / (size_t)b->dim[0] * (size_t)MIN(b->active, b->dim[0]);
    else if (!str_ends(str_of(b->name), STR("embed_tokens_per_layer")) &&
             (m->tied || !str_ends(str_of(b->name), STR("embed_tokens"))))
        m->info.decode_bytes += bytes;
    if (!b->biased) return true;
    const stored_tensor *bias = tensor_named(c, b->stored, ".bias");
    binding shape = {.n = 1, .dim = {b->src.n_out}};
    if (!bias || !shape_same(bias->ndim, bias->dim, 1, shape.dim))
        return shape_error(c, &shape, arena_printf(m->a, "%s.bias", b->stored), bias ? bias->ndim : 0,
                           bias ? bias->dim : NULL, err);
    map_set(used, bias->name, 1);
    m->info.n_params += b->src.n_out;
    b->bias_at = vector_place(m, b->src.n_out);
    return true;
}

static bool find_tensor(model *m, config *c, binding *b, map *used, error *err) {
    const stored_tensor *t = tensor_named(c, b->stored, ".weight");
    if (!t) t = tensor_named(c, b->stored, "");
    if (!t || !shape_same(t->ndim, t->dim, b->n, b->dim))
        return shape_error(c, b, b->stored, t ? t->ndim : 0, t ? t->dim : NULL, err);
    b->stored = arena_copy(m->a, t->name.p, t->name.n);
    map_set(used, t->name, 1);
    b->at = vector_place(m, n_elements(b));
    return true;
}

/* "model.layers.61.eh_proj.weight" -> 61 */
static bool layer_of(str name, int *layer) {
    char head[48];
    snprintf(head, sizeof head, "%.*s", (int)MIN(name.n, sizeof head - 1), name.p);
    return sscanf(head, "model.layers.%d.", layer) == 1;
}

/* Adds no bytes: the number goes into the steps' arguments. */
static bool find_factor(model *m, config *c, binding *b, map *used, error *err) {
    const stored_tensor *t = tensor_named(c, b->stored, ".weight");
    if (!t) t = tensor_named(c, b->stored, "");
    if (!t) return true;
    if (!shape_same(t->ndim, t->dim, b->n, b->dim)) return shape_error(c, b, b->stored, t->ndim, t->dim, err);
    b->stored = arena_copy(m->a, t->name.p, t->name.n);
    b->present = true;
    map_set(used, t->name, 1);
    m->info.n_params++;
    return true;
}

/* A checkpoint that holds more than its family knows may be one that this family gets wrong: say so. */
static void unused_warn(const model *m, const config *c, const map *used) {
    size_t n = 0;
    str first = {0};
    for (size_t i = 0; i < checkpoint_n_tensors(c->from); i++) {
        str name = checkpoint_tensor_at(c->from, i)->name;
        uint64_t v;
        int layer; /* those past the last are heads that guess further tokens */
        bool known = map_get(used, name, &v) || (layer_of(name, &layer) && layer >= m->info.n_layers) ||
                     str_ends(name, STR("rotary_emb.inv_freq")) || (m->tied && str_has(name, STR("lm_head."))) ||
                     (m->gguf && str_starts(name, STR("rope_f")));
        for (size_t k = 0; k < COUNT(not_ours) && !known; k++) known = str_starts(name, str_of(not_ours[k]));
        if (!known && !n++) first = name;
    }
    if (n)
        log_warn("%s: %zu tensors are not used; the first is %.*s", checkpoint_path(c->from), n, (int)first.n, first.p);
}

/* ---- "4-bit g64", "Q4_K", "mixed 4/8-bit" ---------------------------------------------------------------------- */
typedef struct kind {
    weight_format format;
    int32_t bits, group; /* AFFINE; group 0: several */
    int64_t n;           /* parameters */
} kind;

static void kind_count(kind *list, size_t *n, size_t cap, const weight_src *w, int64_t elements) {
    bool affine = w->format == WF_AFFINE;
    size_t i = 0;
    while (i < *n && (list[i].format != w->format || (affine && list[i].bits != w->bits))) i++;
    if (i == cap) return;
    if (i == *n) list[(*n)++] = (kind){w->format, affine ? w->bits : 0, affine ? w->group : 0, 0};
    list[i].n += elements;
    if (list[i].group != w->group) list[i].group = 0;
}

static void kind_say(buf *to, const kind *k) {
    size_t at = to->n;
    if (k->bits)
        buf_printf(to, "%d-bit", k->bits);
    else
        buf_puts(to, weight_format_name(k->format));
    if (k->format <= WF_NVFP4) /* GGUF's own names are in capitals, the others are not */
        for (; at < to->n; at++) to->p[at] = (char)tolower((unsigned char)to->p[at]);
}

static int by_share(const void *a, const void *b) {
    int64_t x = ((const kind *)a)->n, y = ((const kind *)b)->n;
    return x > y ? -1 : x < y;
}

/* The formats of the layers' matrices by their share of the parameters, the largest first; unquantised ones beside
 * quantised ones do not count, nor do the embedding and the head (converters give those more bits). */
static void quantization_say(model *m) {
    kind list[WF_COUNT + 8] = {0};
    size_t n = 0, kept = 0;
    bool quantised = false, affine = true;
    for (size_t i = 0; i < m->n_bindings; i++) {
        const binding *b = &m->bindings[i];
        if (b->w && str_starts(str_of(b->name), STR("model.layers.")))
            kind_count(list, &n, COUNT(list), &b->src, n_elements(b));
    }
    for (size_t i = 0; i < n; i++) quantised |= list[i].format > WF_BF16;
    for (size_t i = 0; i < n; i++)
        if (!quantised || list[i].format > WF_BF16) affine &= list[i].bits > 0, list[kept++] = list[i];
    qsort(list, kept, sizeof *list, by_share);
    buf text = {0};
    if (kept > 1) buf_puts(&text, "mixed ");
    for (size_t i = 0; i < kept; i++) {
        if (i) buf_putc(&text, '/');
        if (affine && i + 1 < kept)
            buf_printf(&text, "%d", list[i].bits);
        else
            kind_say(&text, &list[i]);
    }
    if (kept == 1 && list[0].group) buf_printf(&text, " g%d", list[0].group);
    snprintf(m->info.quantization, sizeof m->info.quantization, "%s", text.p ? text.p : "");
    buf_free(&text);
}

/* ---- the two passes --------------------------------------------------------------------------------------------- */
bool bindings_make(model *m, config *c, error *err) {
    binder b = {.m = m, .c = c};
    m->fam->bind(m, &b);
    m->bindings = arena_copy(m->a, b.list, b.n * sizeof *b.list);
    m->n_bindings = b.n;
    free(b.list);
    map *used = map_new(4 * m->n_bindings);
    bool ok = true;
    for (size_t i = 0; i < m->n_bindings && ok; i++) {
        binding *x = &m->bindings[i];
        if (x->same) continue;
        if (x->w || x->t) m->info.n_params += n_elements(x);
        x->stored = stored_name(m, c, x->name);
        if (!x->stored)
            ok = error_set(err, ERR_UNSUPPORTED, "%s: GGUF has no name for %s", checkpoint_path(c->from), x->name);
        else if (x->f)
            ok = find_factor(m, c, x, used, err);
        else if (!x->w && !x->t)
            weight_use(c, x->stored, used);
        else
            ok = x->w ? find_weight(m, c, x, used, err) : find_tensor(m, c, x, used, err);
    }
    m->info.weight_bytes += m->vector_bytes;
    m->info.decode_bytes += m->vector_bytes;
    if (ok) unused_warn(m, c, used);
    if (ok) quantization_say(m);
    map_free(used);
    return ok;
}

static bool load_weight(model *m, config *c, binding *b, error *err) {
    b->src.name = b->stored;
    b->w->name = b->name;
    weight_src src = b->src;
    size_t bytes = 0;
    if (b->turned && !head_weights_turn(&src, b->turned, &bytes, err)) return false;
    bool ok = m->d->vt->pack(m->d, b->w, &src, err);
    if (b->turned) mem_try_free((void *)src.codes, bytes);
    if (!ok) return false;
    m->info.weight_bytes += b->w->bytes;
    if (b->turned) return true; /* the other half of the stored matrix may still be needed */
    checkpoint_drop(c->from, &b->src);
    b->w->bias = (tensor){0};
    if (!b->biased) return true;
    float *at = (float *)m->vectors + b->bias_at;
    char name[256];
    snprintf(name, sizeof name, "%s.bias", b->stored);
    b->w->bias = tensor_f32(at, b->src.n_out);
    return checkpoint_floats(c->from, name, (size_t)b->src.n_out, at, err);
}

bool bindings_load(model *m, config *c, error *err) {
    if (!(m->vectors = m->d->vt->alloc(m->d, m->vector_bytes, err))) return false;
    m->info.weight_bytes = m->vector_bytes; /* from here on what is really held */
    for (size_t i = 0; i < m->n_bindings; i++) {
        binding *b = &m->bindings[i];
        if (b->same) {
            *b->w = *b->same;
        } else if (b->w) {
            if (!load_weight(m, c, b, err)) return false;
        } else if (b->f) {
            *b->f = 1;
            if (b->present && !checkpoint_floats(c->from, b->stored, 1, b->f, err)) return false;
        } else if (b->t) {
            float *at = (float *)m->vectors + b->at;
            *b->t = tensor_of(at, DT_F32, b->n, b->dim);
            if (!checkpoint_floats(c->from, b->stored, (size_t)n_elements(b), at, err)) return false;
            for (int64_t k = 0; b->shift && k < n_elements(b); k++) at[k] += b->shift;
            if (b->fix) b->fix(b->t);
        }
    }
    return true;
}

void bindings_free(model *m) {
    for (size_t i = 0; i < m->n_bindings; i++)
        if (m->bindings[i].w && !m->bindings[i].same && m->bindings[i].w->packed)
            m->d->vt->unpack(m->d, m->bindings[i].w);
    if (m->vectors) m->d->vt->free(m->d, m->vectors, m->vector_bytes);
}
