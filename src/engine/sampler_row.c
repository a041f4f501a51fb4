/* Passes over a row of logits for any processor. */
#define ROW_OPS row_ops_any
#include "sampler_row_body.h"
