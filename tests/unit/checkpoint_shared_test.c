/* Every checkpoint under $HEARTH_SHARED (oracle/text/models, nano) and the GGUF in $HEARTH_GGUF opens, and every row of
 * every matrix and every vector reads as finite numbers. Skipped without the variables: `./dev test full DIR` sets
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/format/format.h"

static void finite_check(const checkpoint *c, str name, const float *v, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i])) fail_msg("%s: %.*s[%zu] is %g", checkpoint_path(c), (int)name.n, name.p, i, v[i]);
}

static size_t matrix_read(const checkpoint *c, str name, const weight_src *w) {
    code_form form;
    float *row = malloc((size_t)w->n_in * 4), *s = malloc((size_t)w->n_in), *b = malloc((size_t)w->n_in);
    uint8_t *q = malloc((size_t)w->n_in);
    bool codes = weight_code_form(w, &form);
    for (int64_t r = 0; r < (int64_t)w->n_experts * w->n_out; r++) {
        weight_row_f32(w, r, row);
        finite_check(c, name, row, (size_t)w->n_in);
        if (!codes) continue;
        weight_row_codes(w, r, q, s, b);
        for (int32_t i = 0; i < w->n_in; i++) {
            float v = s[i / form.group] * (float)(q[i] - form.zero);
            if (form.has_offset) v += b[i / form.group];
            if (v != row[i])
                fail_msg("%s: %.*s row %lld column %d", checkpoint_path(c), (int)name.n, name.p, (long long)r, i);
        }
    }
    free(row), free(s), free(b), free(q);
    return (size_t)w->n_experts * (size_t)w->n_out;
}

static size_t tensor_read(const checkpoint *c, const stored_tensor *t) {
    char name[512];
    error err = {0};
    snprintf(name, sizeof name, "%.*s", (int)t->name.n, t->name.p);
    if (str_ends(t->name, STR(".weight")) && t->ndim >= 2 && t->ndim <= 3) {
        weight_src w;
        bool found;
        name[strlen(name) - 7] = 0;
        if (!checkpoint_weight(c, name, &w, &found, &err)) fail_msg("%s", err.msg);
        assert_true(found);
        return matrix_read(c, t->name, &w);
    }
    if (t->kind != ST_FLOAT) return 0;
    size_t n = t->bytes / (strcmp(t->type_name, "F32") == 0 ? 4 : 2);
    float *v = malloc(n * 4 + 4);
    if (!checkpoint_floats(c, name, n, v, &err)) fail_msg("%s", err.msg);
    finite_check(c, t->name, v, n);
    free(v);
    return 1;
}

static void checkpoint_read(const char *path) {
    error err = {0};
    checkpoint *c = checkpoint_open(path, &err);
    if (!c) fail_msg("%s", err.msg);
    size_t rows = 0;
    assert_true(checkpoint_n_tensors(c) > 0);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++) rows += tensor_read(c, checkpoint_tensor_at(c, i));
    assert_true(rows > 0);
    checkpoint_close(c);
}

static int directory_read(const char *dir) {
    const char *shared = getenv("HEARTH_SHARED");
    if (!shared) skip();
    char *root = path_join(shared, dir);
    DIR *d = opendir(root);
    if (!d) fail_msg("cannot list %s", root);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char *path = path_join(root, e->d_name), *config = path_join(path, "config.json");
        if (e->d_name[0] != '.' && file_exists(config)) {
            checkpoint_read(path);
            n++;
        }
        free(config), free(path);
    }
    closedir(d);
    free(root);
    return n;
}

static void oracle_text(void **state) {
    assert_int_equal(directory_read("oracle/text/models"), 101);
}

static void nano(void **state) {
    assert_true(directory_read("nano") >= 7);
}

static void gguf(void **state) {
    const char *path = getenv("HEARTH_GGUF");
    if (!path) skip();
    checkpoint_read(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(oracle_text), cmocka_unit_test(nano), cmocka_unit_test(gguf)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
