/* The format folder's own header: one parsed file, and the checkpoint they add up to. Parsers work on bytes in memory,
 * so that fuzz targets and tests can call them without files. */
#pragma once
#include "format.h"

/* Tensors of a checkpoint in the order of their files. */
typedef struct tensor_list {
    stored_tensor *p; /* owns (free). Names end with a NUL */
    size_t n, cap;
} tensor_list;
stored_tensor *tensor_list_add(tensor_list *l); /* zeroed */

/* One file's bytes; `name` is for messages. Borrows both. */
typedef struct file_bytes {
    const uint8_t *p;
    size_t n;
    const char *name;
    int32_t index; /* goes to stored_tensor.file */
} file_bytes;

/* Append the file's tensors to `out`; names and metadata are in `a` or borrow the file's bytes. ERR_FORMAT,
 * ERR_TOO_LARGE. */
bool safetensors_parse(const file_bytes *f, arena *a, tensor_list *out, error *err);
bool gguf_parse(const file_bytes *f, arena *a, tensor_list *out, const json **metadata, error *err);

/* What tensors of one file must also obey: no two of list[from..] share bytes. */
bool tensors_disjoint(const file_bytes *f, const tensor_list *list, size_t from, error *err);

/* A file of a checkpoint. */
typedef struct checkpoint_file {
    file_map map; /* owns when `mapped` */
    bool mapped;
    char *name; /* owns: path, for messages */
} checkpoint_file;

struct checkpoint {
    checkpoint_kind kind;
    char *path;             /* owns */
    arena *a;               /* owns: names, metadata, JSON files */
    const json *config;     /* in a */
    checkpoint_file *files; /* owns */
    size_t n_files;
    tensor_list tensors; /* owns */
    map *by_name;        /* owns: name -> index */
};

/* A checkpoint of one file in memory, which must outlive it. `config` is the text of config.json (safetensors) or empty
 * (GGUF). */
checkpoint *checkpoint_of_bytes(checkpoint_kind kind, str config, const uint8_t *p, size_t n, error *err);

/* module.weight is `w`, MLX-quantised with `scales`: bits, group and mode from config.json, every shape and type
 * checked. */
bool mlx_weight(const checkpoint *c, const char *module, const stored_tensor *w, const stored_tensor *scales,
                weight_src *out, error *err);
/* config.json has an object (bits, group_size, mode) for this very module. */
bool mlx_listed(const json *config, const char *module);

/* The tensor module.part; NULL if absent. */
const stored_tensor *checkpoint_part(const checkpoint *c, const char *module, const char *part);
/* "FILE: tensor NAME at byte OFFSET" + text. Returns false. */
bool tensor_error(const checkpoint *c, const stored_tensor *t, error *err, const char *fmt, ...) PRINTF(4, 5);
/* Shape [n_out,n_in] or [n_experts,n_out,n_in] into out->n_*; ERR_FORMAT for others. */
bool tensor_matrix(const checkpoint *c, const stored_tensor *t, weight_src *out, error *err);
/* "[2,3,4]", for messages. */
const char *dims_text(const int64_t *dim, int32_t n, char out[192]);
