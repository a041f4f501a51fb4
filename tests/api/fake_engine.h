/* tests/api/fake_engine.h: what a test may ask of the scripted engine. */
#pragma once
#include "../../src/engine/engine.h"
typedef struct fake_opts {
    int queue_max;             /* running generations before ERR_QUEUE_FULL; 0: plenty */
    int context;               /* 0: 8192 */
    int fixed;                 /* 1: as if --context-length was given */
    int embeds;                /* 1: it is an embedding model of FAKE_WIDTH */
    float config_temperature;  /* as if from generation_config.json; NAN: none */
    const char *template_file; /* a chat template instead of the built-in one */
    bool failed;
    const char *model_id; /* NULL: test/scripted */
} fake_opts;
engine *fake_engine_open(const fake_opts *o, error *err);
