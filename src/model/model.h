/* model: checkpoints become networks. families.def is the list; one file a family, readable as its equations.
 * Not here: sequences, caches, sampling (engine/). */
#pragma once
#include "../device/device.h"
#include "../format/format.h"

typedef struct model model;
typedef struct model_opts {
    int rows_max;       /* most rows a step may have; 0: device->rows_max */
    bool compat_mlx_lm; /* mlx-lm's reading where it departs from the model's own definition */
    int context;    /* positions a sequence shall hold; 0: the model's own. Beyond longrope's original context: its long
                       factors */
    bool plan_only; /* read headers and compute sizes; load no weights */
    const char *kv_quant; /* how keys and values are kept: NULL or "off": as they are; "8" or "4" bits; "config": as the
                             model's kv_config.json says; "turbo" or "turbo:kKvV" (docs/kv-cache.md) */
    int kv_group;         /* columns a scale: 32, 64 or 128; 0: 64 */
} model_opts;

/* How a model keeps its keys and values. */
typedef struct kv_summary {
    char scheme[32];            /* for the keys of caches: "f16", "kv8", "kv4g32", "config:<hash>", "turbo-k8v3" */
    char mode[32];              /* for people: "f16", "uniform-kv8", "mixed (kv_config.json)", "turbo k8v3" */
    int32_t n_by_bits[9];       /* layers by the bits of their values; [0]: not coded */
    int32_t n_full, n_windowed; /* the same layers by their attention */
} kv_summary;

/* What others need to know of a model. Sizes are exact. */
typedef struct model_info {
    const char *family;       /* name of the family file: "llama" */
    const char *architecture; /* what the checkpoint calls itself */
    const char *tier;         /* "targeted" or "generic" */
    int32_t n_layers, width, vocab, context_max;
    int64_t n_params;
    int32_t context_default; /* positions to serve when nobody says how many; 0: as many as fit */
    size_t budget_default;   /* memory to use when nobody says how much; 0: the usual share */
    size_t weight_bytes;     /* packed, on the device */
    size_t decode_bytes;     /* of these, what one decode step of one row reads (no embedding table unless tied; chosen
                                experts) */
    size_t file_bytes;
    size_t kv_bytes_per_token; /* over all layers of full attention */
    kv_summary kv;
    size_t state_bytes;     /* recurrent state of one sequence */
    size_t workspace_bytes; /* activations, planned at load */
    const int32_t *eos;     /* [n_eos] from config and generation_config; the tokenizer's comes in addition */
    size_t n_eos;
    char quantization[64]; /* "4-bit g64", "Q4_K", "bf16", "mixed 4/8" */
    bool gives_hidden;     /* the family fills step.hidden */
} model_info;

model *model_open(checkpoint *c, device *d, const model_opts *o,
                  error *err); /* ERR_UNSUPPORTED lists the known families */
void model_close(model *m);
const model_info *model_describe(const model *m);
/* Keys and values this model needs; n_pages and type are the caller's to fill. */
const kv_spec *model_kv_spec(const model *m);
/* Recurrent state this model needs (n_layers 0: none); n_slots is the caller's to fill. A step brings it as step.state.
 */
const state_spec *model_state_spec(const model *m);
/* Runs one step, from the device's step_begin to its step_end: logits [R,V] f32 for the rows s->out (R may be 0: then
 * logits.p may be NULL and the last layers' work is only what the cache needs). Appends keys and values to kv. A
 * sequence's first row at position 0 starts its recurrent state (slot) afresh. False: *err is the device's status,
 * which is cleared; the cache is then undefined. */
bool model_forward(model *m, kv_cache *kv, step *s, tensor logits, error *err);
