/* JSON reader: never crashes, stays within its memory, and what it accepts survives writing and reading again. */
#include <stdlib.h>
#include "../../src/base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    arena *a = arena_new(0), *b = arena_new(0);
    const json *j = json_read(a, (str){(const char *)data, n}, NULL, NULL);
    if (j) {
        buf one = {0}, two = {0};
        json_write(&one, j);
        const json *k = json_read(b, buf_view(&one), NULL, NULL);
        if (!k) abort();
        json_write(&two, k);
        if (!str_eq(buf_view(&one), buf_view(&two))) abort();
        buf_free(&one);
        buf_free(&two);
    }
    if (arena_bytes(a) > n * 16 + 65536 + 4096) abort();
    arena_free(a);
    arena_free(b);
    return 0;
}
