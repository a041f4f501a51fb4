/* The input is config.json, a NUL, and a safetensors file -> checkpoint, and every row of what opened. */
#include "reading.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    const uint8_t *end = memchr(p, 0, n);
    if (!end) return 0;
    str config = {(const char *)p, (size_t)(end - p)};
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_SAFETENSORS, config, end + 1, n - config.n - 1, NULL);
    if (c) checkpoint_read_all(c);
    checkpoint_close(c);
    return 0;
}
