/* part_mla: multi-head latent attention, as the DeepSeek and GLM families share it. Keys and values of all heads are
 * two linear maps of one latent a position, so the cache holds the latent (and one rotated key for all heads), queries
 * are mapped into it and results out of it. Every row takes this absorbed form, however many rows a step has. Sources:
 * arXiv 2405.04434, section 2.1; oracle: transformers modeling_deepseek_v3.py. Not here: attention itself (device/),
 * which positions an indexer chooses (glm_moe_dsa.c). Letters: internal.h. */
#include <stdlib.h>
#include "internal.h"

/* ---- configuration ---- */
/* yarn's correction of the scores' scale. */
static double mscale_of(config *c) {
    const json *params = config_get(c, "rope_parameters");
    if (!json_is(params, JSON_OBJECT)) params = config_get(c, "rope_scaling");
    double all = json_real(json_get(params, "mscale_all_dim"), 0), factor = json_real(json_get(params, "factor"), 1);
    str type = json_str(json_get(params, "rope_type"), json_str(json_get(params, "type"), STR("default")));
    bool scaled = all != 0 && factor > 1 && !str_is(type, "default");
    return scaled ? 0.1 * all * log(factor) + 1 : 1;
}

void mla_configure(model *base, config *c, mla *m, int32_t D) {
    MLA_CONFIG(CONFIG_READ)
    if (c->err.code) return;
    m->D = D;
    config_check(c, m->H <= EXPERTS_MAX, "num_attention_heads is %d, allowed is at most %d", m->H, EXPERTS_MAX);
    rope_make(base, c, &m->rot, &(rope_opts){.head = m->P, .interleaved = m->interleaved});
    double mscale = mscale_of(c);
    m->how = (attn){.scale = (float)(mscale * mscale / sqrt(m->N + m->P))};
}

void mla_layer_add(model *base, config *c, const mla *m, mla_layer *w) {
    w->kv = kv_latent_add(base, c, m->Z + m->P, m->Z);
}

/* ---- tensors ---- */
#define MLA_LATENT(T)                                         \
    T(weight, kv_a, "self_attn.kv_a_proj_with_mqa", Z + P, D) \
    T(weight, o, "self_attn.o_proj", D, H *Dv)
#define MLA_HEADS(T)                                         \
    T(head_weights, q_up, "self_attn.embed_q", H, Z, N)      \
    T(head_weights, v_up, "self_attn.unembed_out", H, Dv, Z) \
    T(tensor, norm_kv, "self_attn.kv_a_layernorm", Z)
#define MLA_QUERY(T)      T(weight, q_all, "self_attn.q_proj", H *(N + P), D)
#define MLA_QUERY_DOWN(T) T(weight, q_a, "self_attn.q_a_proj", Q, D)
#define MLA_QUERY_UP(T)                                 \
    T(weight, q_b, "self_attn.q_b_proj", H *(N + P), Q) \
    T(tensor, norm_q, "self_attn.q_a_layernorm", Q)

void mla_bind(binder *b, mla_layer *w, const mla *m) {
    const int32_t D = m->D, H = m->H, Q = m->Q, Z = m->Z, N = m->N, P = m->P, Dv = m->Dv;
    bind_bias(b, m->bias);
    MLA_LATENT(TENSOR_BIND)
    if (Q) {
        MLA_QUERY_DOWN(TENSOR_BIND)
    }
    bind_bias(b, false);
    if (Q) {
        MLA_QUERY_UP(TENSOR_BIND)
    } else {
        MLA_QUERY(TENSOR_BIND)
    }
    MLA_HEADS(TENSOR_BIND)
}

/* Both maps of a head are rows of kv_b_proj [H*(N+Dv),Z]: N rows that make keys, then Dv rows that make values. The
 * first are wanted transposed. */
bool head_weights_find(model *m, config *c, const char *name, const char *stored, const int32_t *dim, weight_src *out,
                       const weight_src **turned, bool *found, map *used, error *err) {
    bool ok = checkpoint_weight(c->from, stored, out, found, err);
    if (!ok || *found) return ok;
    bool keys = str_ends(str_of(name), STR("embed_q"));
    const char *end = strrchr(name, '.');
    const char *both = stored_name(m, c, arena_printf(m->a, "%.*s.kv_b_proj", (int)(end - name), name));
    weight_src all;
    if (!both) return true;
    ok = checkpoint_weight(c->from, both, &all, found, err);
    if (!ok || !*found) return ok;
    int32_t H = dim[0], mine = keys ? dim[2] : dim[1], Z = keys ? dim[1] : dim[2], per = all.n_out / H;
    if (all.n_experts != 1 || all.n_in != Z || all.n_out % H || per <= mine)
        return error_set(err, ERR_FORMAT, "%s: tensor %s has shape [%d, %d], expected [%d times more than %d, %d]",
                         checkpoint_path(c->from), both, all.n_out, all.n_in, H, mine, Z);
    weight_src *each = model_alloc(m, (size_t)H * sizeof *each);
    for (int32_t h = 0; h < H; h++) each[h] = weight_rows(&all, h * per + (keys ? 0 : per - mine), mine);
    weight_use(c, both, used);
    *out = each[0];
    out->n_experts = H;
    out->each = each;
    if (!keys) return true;
    *turned = each;
    *out =
        (weight_src){.format = all.format <= WF_BF16 ? all.format : WF_F32, .n_experts = H, .n_out = Z, .n_in = mine};
    return true;
}

bool head_weights_turn(weight_src *out, const weight_src *turned, size_t *bytes, error *err) {
    size_t N = (size_t)out->n_in, Z = (size_t)out->n_out, size = out->format == WF_F32 ? 4 : 2;
    *bytes = (size_t)out->n_experts * N * Z * size;
    float *row = mem_alloc(Z * sizeof *row);
    uint8_t *to = mem_try(*bytes, 64, err);
    out->codes = to;
    for (int32_t h = 0; to && h < out->n_experts; h++, to += N * Z * size)
        for (size_t n = 0; n < N; n++) {
            weight_row_f32(&turned[h], (int64_t)n, row);
            for (size_t k = 0; k < Z; k++) {
                uint16_t half = out->format == WF_F16 ? f32_to_f16(row[k]) : f32_to_bf16(row[k]);
                memcpy(to + (k * N + n) * size, size == 4 ? (void *)&row[k] : (void *)&half, size);
            }
        }
    free(row);
    return out->codes != NULL;
}

/* ---- a step ---- */
void mla_plan(plan *p, const mla *m, mla_work *to) {
#define PLAN(name, width) plan_buffer(p, &to->name, width);
    MLA_WORK(PLAN)
#undef PLAN
}

#define MLA_EPS 1e-6f /* of both latents' norms, whatever the configuration says */

void mla_project(device *d, kv_cache *kv, const step *s, tensor h, const mla *m, const mla_layer *w,
                 const mla_work *work) {
    const int32_t T = s->n_rows, H = m->H, Z = m->Z, N = m->N, P = m->P;
    tensor c = tensor_rows(work->c, 0, T), q = tensor_rows(work->q, 0, T), qr = tensor_rows(work->qr, 0, T);
    tensor ql = heads(tensor_rows(work->ql, 0, T), H), latent = tensor_cols(c, 0, Z), key = tensor_cols(c, Z, P);
    if (m->Q) {
        linear2(qr, c, h, w->q_a, w->kv_a); /* c [T,Z+P] */
        rms_norm(qr, qr, w->norm_q, MLA_EPS);
        linear(q, qr, w->q_b);
    } else {
        linear2(q, c, h, w->q_all, w->kv_a); /* q [T,H*(N+P)] */
    }
    tensor q_plain = tensor_cols(heads(q, H), 0, N), q_turned = tensor_cols(heads(q, H), N, P);
    rms_norm(latent, latent, w->norm_kv, MLA_EPS);
    rope(q_turned, m->rot);
    rope(heads(key, 1), m->rot);
    kv_append(heads(c, 1), heads(latent, 1), w->kv);
    head_linear(tensor_cols(ql, 0, Z), q_plain, w->q_up); /* ql [T,H,Z+P] */
    copy(tensor_cols(ql, Z, P), q_turned);
}

void mla_attend(device *d, kv_cache *kv, const step *s, tensor r, tensor chosen, const mla *m, const mla_layer *w,
                const mla_work *work) {
    const int32_t T = s->n_rows, H = m->H;
    tensor ql = heads(tensor_rows(work->ql, 0, T), H), ol = heads(tensor_rows(work->ol, 0, T), H);
    tensor a = tensor_rows(work->a, 0, T);
    if (tensor_null(chosen))
        attend(ol, ql, w->kv, m->how); /* ol [T,H,Z] */
    else
        op_attend_chosen(d, ol, ql, kv, w->kv, s, &m->how, chosen);
    head_linear(heads(a, H), ol, w->v_up); /* a [T,H*Dv] */
    linear(r, a, w->o);
}
