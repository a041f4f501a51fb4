/* What the operation tests share: devices at every level, random numbers, arrays that end at a guard page. */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "../../src/device/device.h"

enum { LEVELS = 3 };
extern const char *const level_name[LEVELS]; /* ref first */
/* NULL: this machine lacks the level. */
device *level_open(int level, int threads);

float rnd(void); /* uniform in ±1, the same sequence in every run */
uint32_t rnd_below(uint32_t n);

typedef struct guarded {
    float *p; /* n floats; the byte after them faults */
    void *map;
    size_t map_bytes;
} guarded;
guarded guarded_new(int n);
void guarded_free(guarded *g);
