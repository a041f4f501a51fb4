/* From a path to a running engine: checkpoint, device, model, tokenizer, template. Not here: memory plan and thread
 * (engine.c). */
#include <malloc.h>
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

/* Bytes in use on the heap; 0 where the allocator does not say (sanitizers). */
static size_t heap_bytes(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static bool text_open(engine_parts *p, bool needed, error *err) {
    error none = {0};
    p->tokenizer = tokenizer_open(p->checkpoint, needed ? err : &none);
    if (!p->tokenizer) return !needed;
    none = (error){0};
    p->template = chat_template_open(p->checkpoint, p->tokenizer, &none);
    if (none.code != ERR_NONE && none.code != ERR_NOT_FOUND) log_warn("chat template: %s", none.msg);
    return true;
}

static model_opts model_asked(const engine_opts *o) {
    return (model_opts){.compat_mlx_lm = o->compat_mlx_lm,
                        .context = o->context_length,
                        .kv_quant = o->kv_quant,
                        .kv_group = o->kv_group};
}

bool engine_headers(engine_opts *o, engine_parts *p, model **headers, bool need_text, error *err) {
    *headers = NULL;
    if (!opts_check(o, err)) return false;
    if (!o->batch) o->batch = BATCH;
    if (!o->queue_max) o->queue_max = QUEUE;
    if (!o->prefill_chunk) o->prefill_chunk = CHUNK;
    if (o->kv_late) o->prompt_cache = -1;
    if (!o->device.rows_max) o->device.rows_max = o->prefill_chunk + o->batch;
    model_opts mo = model_asked(o);
    mo.plan_only = true;
    size_t before = heap_bytes();
    if (!(p->checkpoint = checkpoint_open(o->model_path, err)) || !(p->device = device_cpu_open(&o->device, err)) ||
        !(*headers = model_open(p->checkpoint, p->device, &mo, err)))
        return engine_parts_close(p), false;
    /* Reading a tokenizer takes several times what it keeps: before the weights are there it is in nobody's way. */
    if (text_open(p, need_text, err)) {
        malloc_trim(0);
        size_t after = heap_bytes();
        p->text_bytes = after > before ? after - before : 0;
        return true;
    }
    model_close(*headers);
    *headers = NULL;
    engine_parts_close(p);
    return false;
}

/* The headers first: a model that cannot serve is refused before any weight is read. */
static bool plan_check(const engine_opts *o, const engine_parts *p, const model *headers, error *err) {
    plan_in in;
    plan made;
    kv_spec spec;
    plan_inputs(&in, o, p->device, headers, p->text_bytes, &spec);
    return plan_make(&made, &in, err);
}

engine *engine_open(const engine_opts *asked, error *err) {
    engine_opts with = *asked, *o = &with;
    engine_parts p = {0};
    model *headers;
    if (!draft_check(o, err) || !engine_headers(o, &p, &headers, true, err)) return NULL;
    bool ok = plan_check(o, &p, headers, err);
    model_close(headers);
    model_opts mo = model_asked(o);
    if (ok) p.weights_id = weights_identify(p.checkpoint); /* before the weights are packed and their pages dropped */
    if (ok) p.model = model_open(p.checkpoint, p.device, &mo, err);
    if (p.model) {
        p.defaults = defaults_read(p.checkpoint);
        p.embedding = embedding_read(p.checkpoint, model_describe(p.model), p.tokenizer);
        return engine_start(&p, o, err);
    }
    engine_parts_close(&p);
    return NULL;
}
