/* Passes over a row of logits, compiled for AVX2. */
#define ROW_OPS row_ops_avx2
#include "sampler_row_body.h"
