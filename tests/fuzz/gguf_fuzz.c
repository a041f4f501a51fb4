/* GGUF bytes -> checkpoint, and every row of what opened. */
#include "reading.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n) {
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_GGUF, STR(""), p, n, NULL);
    if (c) checkpoint_read_all(c);
    checkpoint_close(c);
    return 0;
}
