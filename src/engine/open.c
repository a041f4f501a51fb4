/* From a path to a running engine: checkpoint, device, model, tokenizer, template. Not here: memory plan and thread
 * (engine.c). */
#include <math.h>
#include "internal.h"

enum { BATCH = 8, BATCH_MAX = 256, QUEUE = 64, QUEUE_MAX = 1 << 20, CHUNK = 512, CHUNK_MAX = 1 << 16 };

static bool opts_check(const engine_opts *o, error *err) {
    const struct {
        const char *name;
        int64_t value, most;
    } range[] = {{"batch", o->batch, BATCH_MAX},
                 {"queue_max", o->queue_max, QUEUE_MAX},
                 {"context_length", o->context_length, INT32_MAX},
                 {"prefill_chunk", o->prefill_chunk, CHUNK_MAX}};
    for (size_t i = 0; i < COUNT(range); i++)
        if (range[i].value < 0 || range[i].value > range[i].most)
            return error_field(err, ERR_INVALID, range[i].name, "%s must be between 0 and %lld, not %lld",
                               range[i].name, (long long)range[i].most, (long long)range[i].value);
    return true;
}

/* Numbers only; anything else there is as good as absent. */
static float number_or_nan(const json *object, const char *key) {
    return (float)json_real(json_get(object, key), NAN);
}

static gen_defaults defaults_read(checkpoint *c) {
    error damaged = {0};
    const json *j = checkpoint_json(c, "generation_config.json", &damaged);
    if (damaged.code) log_warn("generation_config.json is ignored: %s", damaged.msg);
    gen_defaults d = {.temperature = number_or_nan(j, "temperature"),
                      .top_p = number_or_nan(j, "top_p"),
                      .repetition_penalty = number_or_nan(j, "repetition_penalty"),
                      .top_k = -1};
    int64_t k = json_int(json_get(j, "top_k"), -1);
    if (k >= 0 && k <= INT32_MAX) d.top_k = (int32_t)k;
    return d;
}

engine *engine_open(const engine_opts *asked, error *err) {
    engine_opts with = *asked, *o = &with;
    if (!opts_check(o, err)) return NULL;
    if (!o->batch) o->batch = BATCH;
    if (!o->queue_max) o->queue_max = QUEUE;
    if (!o->prefill_chunk) o->prefill_chunk = CHUNK;
    if (o->kv_late) o->prompt_cache = -1;
    engine_parts p = {0};
    device_opts dev = o->device;
    if (!dev.rows_max) dev.rows_max = o->prefill_chunk + o->batch;
    model_opts mo = {.compat_mlx_lm = o->compat_mlx_lm, .context = o->context_length, .plan_only = true};
    mo.kv_quant = o->kv_quant;
    mo.kv_group = o->kv_group;
    /* The headers first: a model that does not fit is refused before any weight is read. */
    p.checkpoint = checkpoint_open(o->model_path, err);
    if (p.checkpoint) p.device = device_cpu_open(&dev, err);
    model *headers = p.device ? model_open(p.checkpoint, p.device, &mo, err) : NULL;
    bool ok = headers != NULL;
    if (ok) {
        size_t need = model_describe(headers)->weight_bytes,
               budget = o->memory_budget ? o->memory_budget : plan_default_budget();
        if (need >= budget)
            ok = error_set(err, ERR_MEMORY, "the model's weights (%.2f GB) do not fit the memory budget of %.2f GB",
                           (double)need / 1e9, (double)budget / 1e9);
        model_close(headers);
    }
    mo.plan_only = false;
    if (ok) p.weights_id = weights_identify(p.checkpoint); /* before the weights are packed and their pages dropped */
    if (ok) p.model = model_open(p.checkpoint, p.device, &mo, err);
    if (p.model) p.tokenizer = tokenizer_open(p.checkpoint, err);
    if (p.checkpoint) p.defaults = defaults_read(p.checkpoint);
    if (p.tokenizer) p.embedding = embedding_read(p.checkpoint, model_describe(p.model), p.tokenizer);
    error none = {0};
    if (p.tokenizer) p.template = chat_template_open(p.checkpoint, p.tokenizer, &none);
    if (p.tokenizer && none.code != ERR_NONE && none.code != ERR_NOT_FOUND) log_warn("chat template: %s", none.msg);
    if (p.tokenizer) return engine_start(&p, o, err);
    engine_parts_close(&p);
    return NULL;
}
