/* Opening a model whose config.json is hostile: an error or a model, never a crash. The tensors are those of a tiny
 * checkpoint, so that inputs close to its own configuration get as far as loading. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../../src/model/model.h"

#define WEIGHTS "tests/data/models/llama_plain-q4/model.safetensors"

static char dir[] = "/tmp/hearth-fuzz-XXXXXX", path[64], shards[64];

static void tidy(void) {
    unlink(path);
    unlink(shards);
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static device *d;
    error e = {0};
    if (!d) {
        char *weights = realpath(WEIGHTS, NULL);
        log_set_level(LOG_ERROR);
        if (!weights || !mkdtemp(dir) || !(d = device_cpu_open(&(device_opts){.threads = 1, .rows_max = 4}, &e)))
            abort();
        snprintf(shards, sizeof shards, "%s/model.safetensors", dir);
        snprintf(path, sizeof path, "%s/config.json", dir);
        if (symlink(weights, shards) || atexit(tidy)) abort();
        free(weights);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
    checkpoint *c = checkpoint_open(dir, &e);
    if (!c) return 0;
    model *plan = model_open(c, d, &(model_opts){.plan_only = true}, &e);
    if (plan) {
        model *m = model_open(c, d, NULL, &e);
        if (!m || model_describe(m)->weight_bytes != model_describe(plan)->weight_bytes) abort();
        model_close(m);
    } else if (!e.code) {
        abort(); /* a failure says why */
    }
    model_close(plan);
    checkpoint_close(c);
    return 0;
}
