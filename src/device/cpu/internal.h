/* The CPU device's own header: its state, and how the instruction levels fill the table of operations.
 *
 * The table starts as ref; each better level overrides single entries, in rising order, if the processor has it and
 * HEARTH_CPU (or device_opts.level) allows it. The file's suffix decides the compiler's flags. */
#pragma once
#include "../device.h"

typedef enum cpu_level { CPU_REF, CPU_AVX2, CPU_AVX512, CPU_AMX } cpu_level;

typedef struct cpu_device {
    device base; /* first: a device * is a cpu_device * */
    cpu_level level;
    void *scratch; /* owns: coded activations and per-worker temporaries, planned at open for rows_max and the widest weight seen */
    size_t scratch_bytes;
} cpu_device;

/* One install function a file. Vectors (norms, rope, attention, elementwise, KV): ref, avx2, avx512. */
void cpu_vec_install_ref(device_ops *op);
void cpu_vec_install_avx2(device_ops *op);
void cpu_vec_install_avx512(device_ops *op);
/* Matrix products and embedding: linear_ref.c, linear_avx2.c, linear_avx512.c, linear_amx.c; packing: pack.c. */
void cpu_linear_install_ref(device_ops *op);
void cpu_linear_install_avx2(device_ops *op);
void cpu_linear_install_avx512(device_ops *op);
bool cpu_pack(device *d, weight *w, const weight_src *src, error *err);
void cpu_unpack(device *d, weight *w);
size_t cpu_packed_bytes(device *d, const weight_src *src);
