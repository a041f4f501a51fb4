/* model: opens a checkpoint as the family it belongs to, and runs steps. Not here: the families (families.def lists
 * them). */
#include <stdlib.h>
#include "internal.h"

#define FAMILY(symbol, name, tier) extern const family family_##symbol;
#define REMAP(type, symbol)
#include "families.def"
#undef FAMILY
#undef REMAP

static const struct {
    const char *type; /* model_type */
    const family *fam;
    const char *name, *tier; /* a family's own line; NULL in a remap */
} families[] = {
#define FAMILY(symbol, name, tier) {name, &family_##symbol, name, tier},
#define REMAP(type, symbol)        {type, &family_##symbol, NULL, NULL},
#include "families.def"
#undef FAMILY
#undef REMAP
};

static const family *family_of(const config *c, error *err) {
    buf known = {0};
    for (size_t i = 0; i < COUNT(families); i++) {
        if (!strcmp(c->type, families[i].type)) {
            buf_free(&known);
            return families[i].fam;
        }
        buf_printf(&known, "%s%s", i ? ", " : "", families[i].type);
    }
    error_set(err, ERR_UNSUPPORTED, "%s: architecture \"%.64s\" is not supported; known are %s",
              checkpoint_path(c->from), c->type, known.p);
    buf_free(&known);
    return NULL;
}

void *model_alloc(model *m, size_t n) {
    return arena_alloc(m->a, n);
}

static void describe(model *m, const config *c) {
    str name = json_str(json_at(json_get(c->root, "architectures"), 0), str_of(c->type));
    m->info.architecture = arena_copy(m->a, name.p, name.n);
    m->info.file_bytes = checkpoint_file_bytes(c->from);
    for (size_t i = 0; i < COUNT(families); i++)
        if (families[i].fam == m->fam && families[i].name)
            m->info.family = families[i].name, m->info.tier = families[i].tier;
}

/* Everything that needs no weights: the family's tables against the checkpoint's headers. */
static bool plan_make(model *m, config *c, const model_opts *o, error *err) {
    m->fam->configure(m, c);
    if (c->err.code) {
        if (err) *err = c->err;
        return false;
    }
    describe(m, c);
    const bool plan_only = o && o->plan_only;
    return kv_scheme_apply(m, c, o ? o->kv_quant : NULL, o ? o->kv_group : 0, err) &&
           config_eos(c, m->a, &m->info.eos, &m->info.n_eos, err) && bindings_make(m, c, err) &&
           work_make(m, plan_only, err);
}

model *model_open(checkpoint *from, device *d, const model_opts *o, error *err) {
    config c;
    arena *a = arena_new(0);
    const family *fam = config_open(&c, from, a, err) ? family_of(&c, err) : NULL;
    if (!fam) {
        arena_free(a);
        return NULL;
    }
    model *m = mem_alloc(fam->size);
    m->fam = fam;
    m->d = d;
    m->a = a;
    m->gguf = checkpoint_type(from) == CHECKPOINT_GGUF;
    m->context_asked = o ? o->context : 0;
    m->compat_mlx_lm = o && o->compat_mlx_lm;
    m->rows_max = o && o->rows_max ? o->rows_max : d->rows_max;
    m->kv.type = d->num == NUM_F32 ? DT_F32 : DT_F16;
    bool plan_only = o && o->plan_only;
    if (plan_make(m, &c, o, err) && (plan_only || bindings_load(m, &c, err))) return m;
    model_close(m);
    return NULL;
}

void model_close(model *m) {
    if (!m) return;
    bindings_free(m);
    if (m->workspace) m->d->vt->free(m->d, m->workspace, m->info.workspace_bytes);
    arena_free(m->a);
    free(m);
}

const model_info *model_describe(const model *m) {
    return &m->info;
}

const kv_spec *model_kv_spec(const model *m) {
    return &m->kv;
}

const state_spec *model_state_spec(const model *m) {
    return &m->state;
}

static bool step_check(const model *m, const step *s, tensor logits, error *err) {
    if (s->n_rows < 1 || s->n_rows > m->rows_max || s->n_out < 0 || s->n_out > s->n_rows)
        return error_set(err, ERR_INTERNAL, "a step of %d rows, %d wanted; allowed is 1 to %d", s->n_rows, s->n_out,
                         m->rows_max);
    if (s->n_out && (tensor_null(logits) || logits.dim[0] < s->n_out || logits.dim[1] != m->info.vocab))
        return error_set(err, ERR_INTERNAL, "logits [%d,%d] for %d rows of %d", logits.dim[0], logits.dim[1], s->n_out,
                         m->info.vocab);
    if (!tensor_null(s->hidden) && (!m->info.gives_hidden || s->hidden.dim[1] != m->info.width))
        return error_set(err, ERR_INTERNAL, "this model gives no hidden rows of %d", s->hidden.dim[1]);
    if (m->state.n_layers && !s->state) return error_set(err, ERR_INTERNAL, "a step without recurrent state");
    for (int32_t i = 0; i < s->n_rows; i++)
        if (s->ids[i] < 0 || s->ids[i] >= m->info.vocab)
            return error_set(err, ERR_INVALID, "token id %d, allowed is 0 to %d", s->ids[i], m->info.vocab - 1);
    return true;
}

bool model_forward(model *m, kv_cache *kv, step *s, tensor logits, error *err) {
    device *d = m->d;
    if (!step_check(m, s, logits, err)) return false;
    d->vt->step_begin(d, s);
    m->fam->forward(m, kv, s, s->n_out ? tensor_rows(logits, 0, s->n_out) : logits);
    d->vt->step_end(d);
    if (!d->status.code) return true;
    if (err && !err->code) *err = d->status;
    d->status = (error){0};
    return false;
}
