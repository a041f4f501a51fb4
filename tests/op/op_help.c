/* What the operation tests share (op_help.h). */
#include <sys/mman.h>
#include "op_help.h"

const char *const level_name[LEVELS] = {"ref", "avx2", "avx512"};

device *level_open(int level, int threads) {
    error err = {0};
    device *d = device_cpu_open(&(device_opts){.level = level_name[level], .threads = threads}, &err);
    if (!d) fail_msg("%s: %s", level_name[level], err.msg);
    if (strcmp(device_cpu_level(d), level_name[level]) == 0) return d;
    device_close(d);
    return NULL;
}

static uint64_t seed = 88172645463325252u;
static uint32_t next(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}
float rnd(void) {
    return (float)((int32_t)next() >> 8) * 0x1p-23f;
}
uint32_t rnd_below(uint32_t n) {
    return (uint32_t)((uint64_t)next() * n >> 32);
}

guarded guarded_new(int n) {
    size_t bytes = sizeof(float) * (size_t)n, pages = (bytes + 4095) & ~(size_t)4095;
    guarded g = {.map_bytes = pages + 4096};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    mprotect((char *)g.map + pages, 4096, PROT_NONE);
    g.p = (float *)((char *)g.map + pages - bytes);
    return g;
}
void guarded_free(guarded *g) {
    munmap(g->map, g->map_bytes);
}
