/* What the fuzz targets of file formats do with a checkpoint that opened: read all of it, as loading would. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include "../../src/format/internal.h"

static void matrix_read(const weight_src *w) {
    code_form form;
    size_t n = (size_t)w->n_in;
    float *row = malloc(n * 4), *s = malloc(n * 4), *b = malloc(n * 4);
    uint8_t *q = malloc(n);
    for (int64_t r = 0; r < (int64_t)w->n_experts * w->n_out; r++) {
        weight_row_f32(w, r, row);
        if (weight_code_form(w, &form)) weight_row_codes(w, r, q, s, b);
    }
    free(row), free(s), free(b), free(q);
}

/* A tensor is inside the file, so its size bounds the work. */
static void checkpoint_read_all(const checkpoint *c) {
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const stored_tensor *t = checkpoint_tensor_at(c, i);
        weight_src w;
        bool found;
        error err = {0};
        char name[256];
        snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
        float *v = malloc(t->bytes * 8 * 4 + 4);
        checkpoint_floats(c, name, 0, v, &err);
        free(v);
        char *dot = strrchr(name, '.');
        if (dot) *dot = 0;
        if (checkpoint_weight(c, name, &w, &found, &err) && found) matrix_read(&w);
    }
}
