/* format: checkpoints on disk. A directory of safetensors (MLX or Hugging Face) or one GGUF file becomes a
 * `checkpoint`: its configuration as JSON, and named tensors inside file mappings, every size checked before use. Not
 * here: what the tensors mean (model/), the tokenizer (text/), packing for a device (device/). */
#pragma once
#include "../base/base.h"
#include "../base/json.h"
#include "../device/weight.h"

typedef enum checkpoint_kind { CHECKPOINT_SAFETENSORS, CHECKPOINT_GGUF } checkpoint_kind;

/* Element types as files name them (safetensors dtypes and the GGUF types map onto it). */
typedef enum stored_type {
    ST_FLOAT /* F32 F16 BF16, see dtype */,
    ST_INT,
    ST_BLOCKS /* GGUF quantised */,
    ST_OTHER
} stored_type;

typedef struct stored_tensor {
    str name; /* borrows (checkpoint) */
    stored_type kind;
    weight_format format;  /* ST_FLOAT and ST_BLOCKS */
    const char *type_name; /* as the file spells it: "BF16", "U32", "Q4_K" */
    int32_t ndim;
    int64_t dim[8];   /* slowest first (GGUF's order is reversed on reading) */
    const uint8_t *p; /* borrows (mapping) */
    size_t bytes;
    uint64_t offset; /* in its file, for messages */
    int32_t file;    /* index of the file */
} stored_tensor;

typedef struct checkpoint checkpoint;
/* path: a directory with config.json and *.safetensors, or a .gguf file. Errors name the file, the tensor and the byte
 * offset. */
checkpoint *checkpoint_open(const char *path, error *err);
void checkpoint_close(checkpoint *c);
checkpoint_kind checkpoint_type(const checkpoint *c);
const char *checkpoint_path(const checkpoint *c);
/* Directory: config.json. GGUF: all metadata as one object, keys as in the file ("llama.block_count"); arrays as JSON
 * arrays. (model/gguf_names.c turns it into the config.json form that families read.) */
const json *checkpoint_config(const checkpoint *c);
/* Another JSON file of the directory (generation_config.json, tokenizer.json, ...); NULL if absent, err set only if
 * damaged. */
const json *checkpoint_json(checkpoint *c, const char *name, error *err);
/* A text file of the directory (chat_template.jinja); false if absent. */
bool checkpoint_text(checkpoint *c, const char *name, buf *out, error *err);
size_t checkpoint_n_tensors(const checkpoint *c);
const stored_tensor *checkpoint_tensor_at(const checkpoint *c, size_t i);
const stored_tensor *checkpoint_tensor(const checkpoint *c, str name); /* NULL if absent */
size_t checkpoint_file_bytes(const checkpoint *c);
/* The matrix called `module` ("model.layers.0.self_attn.q_proj"): finds module.weight (or a tensor called like the
 * module itself: "mlp.experts.gate_up_proj"), and for MLX-quantised ones module.scales and module.biases with bits,
 * group and mode from config "quantization" (per-module entries first; `false` = not quantised). Shape [n_out,n_in] or
 * [n_experts,n_out,n_in]. found=false (and true returned) when there is no such tensor. GGUF: `module` is the GGUF name
 * without ".weight" ("blk.0.attn_q"). Errors: ERR_FORMAT naming tensor and offset. */
bool checkpoint_weight(const checkpoint *c, const char *module, weight_src *out, bool *found, error *err);
/* A vector or small tensor as f32, converted; n must match unless 0. */
bool checkpoint_floats(const checkpoint *c, const char *name, size_t n, float *out, error *err);
/* Tells the kernel that a tensor's mapped pages are no longer needed (after packing). */
void checkpoint_drop(const checkpoint *c, const weight_src *w);

/* ---- writing safetensors (goldens, `hearth logits`, later adapters and conversion) ------------------------------- */
typedef struct safetensors_out {
    const char *name;
    dtype type;
    int32_t ndim;
    int64_t dim[4];
    const void *p;
} safetensors_out;
bool safetensors_write(const char *path, const safetensors_out *t, size_t n, error *err); /* atomic */
