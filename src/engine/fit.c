/* fit: what a model needs, from its headers, here and on other machines (skus.def). Not here: the arithmetic of the
 * plan (plan.c), how fast it would be (speed.c), how it is shown (server/fit.c). */
#include <stdio.h>
#include "internal.h"

/* ---- other machines ---------------------------------------------------------------------------------------------- */
static const struct sku {
    const char *name;
    double ram_gb, device_gb, bandwidth_gbs;
} skus[] = {
#define SKU(name, ram, device, bandwidth) {name, ram, device, bandwidth},
#include "skus.def"
#undef SKU
};
_Static_assert(COUNT(skus) <= FIT_SKUS_MAX, "FIT_SKUS_MAX is too small");

/* A GPU's memory is used to nine tenths, RAM to three quarters. What lies on the device (plan.def) is planned against
 * its memory alone; what does not must fit the RAM. */
static void sku_fit(fit_sku *out, const struct sku *on, const plan_in *of, const fit_report *r, int32_t context) {
    plan_in in = *of;
    size_t host = in.tier + in.text + in.requests + in.process, ram = (size_t)(on->ram_gb * 0.75e9);
    bool gpu = on->device_gb > 0;
    in.budget = gpu ? (size_t)(on->device_gb * 0.9e9) : ram;
    if (gpu) in.tier = in.text = in.requests = in.process = in.reply = 0;
    *out = (fit_sku){
        .name = on->name, .ram_gb = on->ram_gb, .device_gb = on->device_gb, .bandwidth_gbs = on->bandwidth_gbs};
    plan p;
    in.context = 0;
    if ((!gpu || host <= ram) && plan_make(&p, &in, NULL)) out->context_safe = p.context;
    context = MIN(context, in.context_max);
    memory_plan need;
    plan_parts(of, NULL, context, &need);
    for (int i = 0; i < PLAN_PARTS; i++)
        *(gpu && plan_part_describe(i)->on_device ? &out->device_bytes : &out->host_bytes) += need.part[i];
    out->fits = out->context_safe >= context;
    out->decode_tps = out->fits ? fit_decode_tps(r, context, on->bandwidth_gbs) : 0;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */
void fit_fill(fit_report *out, const plan_in *asked, const char *name, const model_info *m, int threads) {
    *out = (fit_report){.file_bytes = m->file_bytes,
                        .decode_bytes = m->decode_bytes,
                        .kv_bytes_per_token = m->kv_bytes_per_token,
                        .state_bytes = m->state_bytes,
                        .n_params = m->n_params,
                        .threads = threads,
                        .n_skus = (int)COUNT(skus),
                        .sku_context = FIT_SKU_CONTEXT};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->family, sizeof out->family, "%s", m->family);
    snprintf(out->architecture, sizeof out->architecture, "%s", m->architecture ? m->architecture : "");
    snprintf(out->quantization, sizeof out->quantization, "%s", m->quantization);
    plan_in in = *asked;
    plan p;
    out->fits = plan_make(&p, &in, &out->why);
    plan_parts(&in, out->fits ? &p : NULL, in.context ? in.context : KV_PAGE, &out->plan);
    in.context = 0;
    plan widest;
    if (plan_make(&widest, &in, NULL)) out->context_safe = widest.context;
    for (size_t i = 0; i < COUNT(skus); i++) sku_fit(&out->sku[i], &skus[i], asked, out, out->sku_context);
}

bool engine_fit(const engine_opts *asked, fit_report *out, error *err) {
    engine_opts o = *asked;
    engine_parts parts = {0};
    model *headers = NULL;
    if (!engine_headers(&o, &parts, &headers, false, err)) return false;
    plan_in in;
    kv_spec spec;
    plan_inputs(&in, &o, parts.device, headers, parts.text_bytes, &spec);
    bool ok = in.context <= in.context_max ||
              error_field(err, ERR_INVALID, "context_length", "a context of %d is more than the model's %d", in.context,
                          in.context_max);
    if (ok)
        fit_fill(out, &in, o.model_id ? o.model_id : o.model_path, model_describe(headers),
                 pool_size(parts.device->threads));
    model_close(headers);
    engine_parts_close(&parts);
    return ok;
}

void engine_fit_running(const engine *e, fit_report *out) {
    plan_in in;
    kv_spec spec;
    engine_opts o = {.batch = e->batch,
                     .queue_max = e->queue_max,
                     .prefill_chunk = e->chunk,
                     .context_length = e->plan.context,
                     .memory_budget = e->memory.budget_bytes,
                     .requests_bytes = e->memory.part[PLAN_REQUESTS],
                     .prompt_cache = e->memory.part[PLAN_CACHE] ? (int64_t)e->memory.part[PLAN_CACHE] : -1};
    plan_inputs(&in, &o, e->parts.device, e->parts.model, e->parts.text_bytes, &spec);
    in.tier = e->memory.part[PLAN_TIER];
    fit_fill(out, &in, e->id, e->info, e->n_workers);
    out->plan = e->memory;
}
