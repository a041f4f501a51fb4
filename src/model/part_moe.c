/* part_moe: what families with mixtures of experts share: binding the stacks, their activations, one layer's sum.
 * Not here: the router's own product and input (families differ), shared experts (family files), how experts lie in
 * files (experts.c). */
#include <stdio.h>
#include "internal.h"

void moe_check(config *c, int32_t E, int32_t A) {
    config_check(c, E <= EXPERTS_MAX && A <= EXPERTS_ACTIVE_MAX,
                 "%d experts, %d of them chosen; at most %d and %d are supported", E, A, EXPERTS_MAX,
                 EXPERTS_ACTIVE_MAX);
    config_check(c, A <= E, "%d experts are to be chosen of %d", A, E);
}

void moe_bind(binder *b, moe *w, const char *prefix, int32_t E, int32_t A, int32_t F, int32_t D) {
    char name[3][96];
    static const char *const proj[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) snprintf(name[i], sizeof name[i], "%s%s", prefix, proj[i]);
    bind_active(b, A);
    bind_experts(b, &w->gate, name[0], 3, (int32_t[]){E, F, D});
    bind_experts(b, &w->up, name[1], 3, (int32_t[]){E, F, D});
    bind_experts(b, &w->down, name[2], 3, (int32_t[]){E, D, F});
}

void moe_plan(plan *p, moe_work *to, int32_t E, int32_t A, int32_t F, int32_t D) {
    plan_buffer(p, &to->score, E);
    plan_buffer(p, &to->id, A);
    plan_buffer(p, &to->weight, A);
    plan_buffer(p, &to->g, (int64_t)A * F);
    plan_buffer(p, &to->u, (int64_t)A * F);
    plan_buffer(p, &to->y, (int64_t)A * D);
}

void moe_forward(device *d, tensor y, tensor x, tensor score, const moe *w, const moe_work *work, act a) {
    const int32_t T = x.dim[0], A = work->id.dim[1], F = w->gate.n_out, D = w->down.n_out;
    tensor id = tensor_i32(work->id.p, T, A), weight = tensor_rows(work->weight, 0, T);
    tensor g = tensor_f32(work->g.p, T, A, F), u = tensor_f32(work->u.p, T, A, F),
           each = tensor_f32(work->y.p, T, A, D);
    router how = w->how;
    if (!tensor_null(w->bias)) how.bias = w->bias.p;
    if (!tensor_null(w->expert_scale)) how.expert_scale = w->expert_scale.p;
    op_router(d, id, weight, score, &how);
    op_expert_linear2(d, g, u, x, &w->gate, &w->up, id);
    op_act_mul(d, g, g, u, a);
    op_expert_linear(d, each, g, &w->down, id);
    op_expert_sum(d, y, each, weight);
}
