/* experts: finding a stack of experts in a checkpoint. MLX and GGUF store one tensor [E,N,K]; Hugging Face one tensor
 * an expert, or gate and up of all experts in one [E,2F,K], gate's rows first. Whatever it is, the device packs it from
 * where it lies. Not here: choosing and running experts (part_moe.c, device/). */
#include <stdio.h>
#include "internal.h"

/* "a.mlp.switch_mlp.gate_proj" -> "a.mlp.experts." and "gate_proj"; "a.experts.switch_glu.up_proj" likewise. */
static bool names_split(arena *a, const char *stored, const char **base, const char **proj) {
    const char *dot = strrchr(stored, '.'), *from = dot;
    while (from && from > stored && from[-1] != '.') from--;
    if (!dot || strncmp(from, "switch_", 7)) return false;
    str head = {stored, (size_t)(from - stored)};
    *base = arena_printf(a, "%.*s%s", (int)head.n, head.p, str_ends(head, STR("experts.")) ? "" : "experts.");
    *proj = dot + 1;
    return true;
}

/* One tensor an expert: base N . proj */
static bool apart_find(model *m, config *c, const char *base, const char *proj, int32_t E, weight_src *out, bool *found,
                       map *used, error *err) {
    weight_src *each = model_alloc(m, (size_t)E * sizeof *each);
    for (int32_t e = 0; e < E; e++) {
        const char *name = arena_printf(m->a, "%s%d.%s", base, e, proj);
        if (!checkpoint_weight(c->from, name, &each[e], found, err)) return false;
        if (!*found && !e) return true;
        const weight_src *a = &each[0], *b = &each[e];
        if (!*found || b->n_experts != 1 || a->format != b->format || a->bits != b->bits || a->group != b->group ||
            a->scale_type != b->scale_type || a->n_out != b->n_out || a->n_in != b->n_in)
            return error_set(err, ERR_FORMAT, "%s: %s %s", checkpoint_path(c->from), name,
                             *found ? "differs from expert 0 in shape or format" : "is missing");
        weight_use(c, name, used);
    }
    *out = each[0];
    out->n_experts = E;
    out->each = each;
    return true;
}

/* Gate and up in one tensor: N rows of each expert, the first or the second half. */
static bool half_find(model *m, config *c, const char *name, bool second, int32_t E, int32_t N, weight_src *out,
                      bool *found, map *used, error *err) {
    weight_src both;
    const bool ok = checkpoint_weight(c->from, name, &both, found, err);
    if (!ok || !*found) return ok;
    if (both.n_experts != E || both.n_out != 2 * N)
        return error_set(err, ERR_FORMAT, "%s: tensor %s has shape [%d, %d, %d], expected [%d, %d, ...]",
                         checkpoint_path(c->from), name, both.n_experts, both.n_out, both.n_in, E, 2 * N);
    weight_src *each = model_alloc(m, (size_t)E * sizeof *each);
    for (int32_t e = 0; e < E; e++) {
        weight_src one = weight_expert(&both, e);
        each[e] = weight_rows(&one, second ? N : 0, N);
    }
    weight_use(c, name, used);
    *out = each[0];
    out->n_experts = E;
    out->each = each;
    return true;
}

bool experts_find(model *m, config *c, const char *stored, int32_t E, int32_t N, weight_src *out, bool *found,
                  map *used, error *err) {
    const char *base, *proj;
    if (!checkpoint_weight(c->from, stored, out, found, err)) return false;
    if (*found) return true;
    if (m->gguf) { /* blk.0.ffn_gate_exps, or blk.0.ffn_gate_up_exps */
        bool up = str_ends(str_of(stored), STR("_up_exps")), gate = str_ends(str_of(stored), STR("_gate_exps"));
        int head = (int)strlen(stored) - (up ? 8 : 10);
        if (!up && !gate) return true;
        return half_find(m, c, arena_printf(m->a, "%.*s_gate_up_exps", head, stored), up, E, N, out, found, used, err);
    }
    if (!names_split(m->a, stored, &base, &proj)) return true;
    if (!apart_find(m, c, base, proj, E, out, found, used, err)) return false;
    if (*found) return true;
    if (!strcmp(proj, "gate_proj") || !strcmp(proj, "up_proj"))
        return half_find(m, c, arena_printf(m->a, "%sgate_up_proj", base), proj[0] == 'u', E, N, out, found, used, err);
    const char *name = arena_printf(m->a, "%s%s", base, proj);
    if (!checkpoint_weight(c->from, name, out, found, err)) return false;
    if (*found) weight_use(c, name, used);
    return true;
}
