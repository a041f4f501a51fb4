/* Norms, rope, attention, elementwise operations and the cache at level avx2: AVX2, FMA and F16C. The text is in
 * vec_body.h and attend_body.h, the same at every level. */
#include "v16_avx2.h"
#include "vec_body.h"
#include "attend_body.h"
#include "moe_body.h"
#include "delta_body.h"

void cpu_vec_install_avx2(device_ops *op) {
    VEC_INSTALL(op);
    MOE_INSTALL(op);
    DELTA_INSTALL(op);
}
