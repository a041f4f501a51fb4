/* format/safetensors.c, mlx.c, checkpoint.c: what is written reads back; shards, symlinked snapshots, quantisation
 * entries; damaged files give an error that names tensor or byte and read nothing outside the bytes (blocks of exact
 * size: run under ASan). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/stat.h>
#include <cmocka.h>
#include "../../src/format/internal.h"

/* ---- one file in memory ----------------------------------------------------------------------------------------- */
static buf file_of(const char *header, size_t data_bytes) {
    buf b = {0};
    uint64_t n = strlen(header);
    buf_add(&b, &n, 8);
    buf_puts(&b, header);
    for (size_t i = 0; i < data_bytes; i++) buf_putc(&b, (char)i);
    return b;
}

static bool opens(const char *p, size_t n, error *err) {
    uint8_t *copy = malloc(n ? n : 1);
    if (n) memcpy(copy, p, n);
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_SAFETENSORS, STR("{}"), copy, n, err);
    checkpoint_close(c);
    free(copy);
    return c != NULL;
}

static const char sound[] = "{\"__metadata__\":{\"format\":\"mlx\"},"
                            "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                            "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}  ";

static void every_truncation_is_an_error(void **state) {
    buf b = file_of(sound, 26);
    error err = {0};
    if (!opens(b.p, b.n, &err)) fail_msg("%s", err.msg);
    for (size_t n = 0; n < b.n; n++) {
        err = (error){0};
        if (opens(b.p, n, &err)) fail_msg("%zu of %zu bytes opened", n, b.n);
        assert_int_equal(err.code, ERR_FORMAT);
        assert_true(strstr(err.msg, "byte") || strstr(err.msg, "tensor"));
    }
    buf_free(&b);
}

static void header_length_is_checked(void **state) {
    const uint64_t lengths[] = {2199023255552, UINT64_MAX, 0, 1, 7, 57, UINT64_MAX - 7};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        char bytes[64] = {0};
        error err = {0};
        memcpy(bytes, &lengths[i], 8);
        assert_false(opens(bytes, sizeof bytes, &err));
        assert_int_equal(err.code, ERR_FORMAT);
        assert_non_null(strstr(err.msg, "byte"));
    }
}

#define ENTRY(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
static void faults_name_the_tensor(void **state) {
    const struct {
        const char *header, *says;
    } cases[] = {
        {"{" ENTRY("t", "F32", "[512,512]", "[0,8]") "}", "tensor t"},
        {"{" ENTRY("u", "F32", "[512,512]", "[0,1048576]") "}", "tensor u: data_offsets [0,1048576]"},
        {"{" ENTRY("v", "F32", "[1]", "[8,4]") "}", "tensor v: data_offsets [8,4]"},
        {"{" ENTRY("w", "F4", "[-1]", "[0]") "}", "tensor w: dtype \"F4\""},
        {"{" ENTRY("w", "F32", "[-1]", "[0,4]") "}", "tensor w: shape[0]"},
        {"{" ENTRY("w", "F32", "[1.5]", "[0,4]") "}", "tensor w: shape[0]"},
        {"{" ENTRY("w", "F32", "[\"1\"]", "[0,4]") "}", "tensor w: shape[0]"},
        {"{" ENTRY("w", "F32", "1", "[0,4]") "}", "tensor w: shape is int"},
        {"{" ENTRY("w", "F32", "[1]", "[0]") "}", "tensor w: data_offsets must be two"},
        {"{" ENTRY("w", "F32", "[1]", "[0,4,8]") "}", "tensor w: data_offsets must be two"},
        {"{" ENTRY("w", "F32", "[1]", "[-4,0]") "}", "tensor w: data_offsets [-4,0]"},
        {"{" ENTRY("w", "F32", "[1]", "[0,1e300]") "}", "tensor w: data_offsets must be two"},
        {"{" ENTRY("w", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", "tensor w: 9 dimensions"},
        {"{" ENTRY("w", "F32", "[4611686018427387904,4]", "[0,0]") "}", "tensor w: its size"},
        {"{" ENTRY("w", "F32", "[9223372036854775807,2]", "[0,0]") "}", "tensor w: its size"},
        {"{" ENTRY("w", "F32", "[18446744073709551616]", "[0,0]") "}", "tensor w: shape[0]"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[2]", "[4,12]") "}", "tensor b at byte"},
        {"{" ENTRY("", "F32", "[1]", "[0,4]") "}", "empty name"},
        {"{\"w\":[]}", "tensor w: dtype"},
        {"{\"w\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", "tensor w: dtype"},
        {"[]", "byte 8"},
        {"{\"w\":", "byte"},
        {"{\"w\":[[[[[[[[[[[[]]]]]]]]]]]]}", "byte"},
        {"\x7f\x80{}", "byte 8"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf b = file_of(cases[i].header, 16);
        error err = {0};
        if (opens(b.p, b.n, &err)) fail_msg("opened: %s", cases[i].header);
        if (!strstr(err.msg, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i].says);
        assert_true(err.code == ERR_FORMAT);
        buf_free(&b);
    }
}

static void empty_tensors_and_holes_are_allowed(void **state) {
    buf b = file_of("{" ENTRY("a", "F32", "[0,7]", "[0,0]") "," ENTRY("b", "F16", "[2]", "[8,12]") "}", 16);
    error err = {0};
    if (!opens(b.p, b.n, &err)) fail_msg("%s", err.msg);
    buf_free(&b);
}

/* ---- directories ------------------------------------------------------------------------------------------------ */
static char *dir_temporary(void) {
    char *dir = mem_strdup("/tmp/hearth_test_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void dir_remove(char *dir) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
    free(dir);
}

static void text_write(const char *dir, const char *name, const char *text) {
    char *path = path_join(dir, name);
    assert_true(file_write_atomic(path, text, strlen(text), NULL));
    free(path);
}

static void shard_write(const char *dir, const char *name, const safetensors_out *t, size_t n) {
    char *path = path_join(dir, name);
    error err = {0};
    if (!safetensors_write(path, t, n, &err)) fail_msg("%s", err.msg);
    free(path);
}

static const float f32_values[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static const uint16_t bf16_values[2] = {0x3f80, 0xc000};

/* Two shards and the other files of a directory; an mtp.safetensors beside them is not part of the model. */
static void shards_written(const char *dir) {
    text_write(dir, "config.json", "{\"model_type\":\"llama\"}");
    shard_write(dir, "model-00002-of-00002.safetensors",
                &(safetensors_out){"norm.weight", DT_BF16, 1, {2}, bf16_values}, 1);
    shard_write(
        dir, "model-00001-of-00002.safetensors",
        (safetensors_out[]){{"x.weight", DT_F32, 2, {2, 3}, f32_values}, {"scalar", DT_F32, 0, {0}, f32_values + 2}},
        2);
    shard_write(dir, "mtp.safetensors", &(safetensors_out){"mtp.weight", DT_F32, 1, {6}, f32_values}, 1);
}

static void shards_check(const char *dir) {
    error err = {0};
    checkpoint *c = checkpoint_open(dir, &err);
    if (!c) fail_msg("%s", err.msg);
    assert_true(checkpoint_type(c) == CHECKPOINT_SAFETENSORS);
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_true(str_is(checkpoint_tensor_at(c, 0)->name, "x.weight")); /* shards in the order of their names */
    weight_src w;
    bool found;
    float v[6];
    assert_true(checkpoint_weight(c, "x", &w, &found, &err) && found);
    assert_true(w.format == WF_F32 && w.n_out == 2 && w.n_in == 3);
    weight_row_f32(&w, 1, v);
    assert_memory_equal(v, f32_values + 3, 12);
    checkpoint_drop(c, &w);
    assert_true(checkpoint_floats(c, "norm.weight", 2, v, &err) && v[0] == 1 && v[1] == -2);
    assert_true(checkpoint_floats(c, "scalar", 1, v, &err) && v[0] == 3.5f);
    assert_false(checkpoint_floats(c, "absent", 0, v, &err));
    assert_true(checkpoint_weight(c, "absent", &w, &found, NULL) && !found);
    err = (error){0};
    assert_null(checkpoint_json(c, "generation_config.json", &err));
    assert_int_equal(err.code, ERR_NONE);
    checkpoint_close(c);
}

static void shards_read_back(void **state) {
    char *dir = dir_temporary();
    shards_written(dir);
    shards_check(dir);
    dir_remove(dir);
}

/* A Hugging Face cache: snapshots/REV/NAME are links to blobs/HASH. */
static void symlinked_snapshot_opens(void **state) {
    char *dir = dir_temporary(), *blobs = path_join(dir, "blobs"), *snap = path_join(dir, "snapshots/abc");
    assert_true(dir_make(blobs, NULL) && dir_make(snap, NULL));
    shards_written(blobs);
    const char *names[] = {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char target[128], *link = path_join(snap, names[i]);
        snprintf(target, sizeof target, "../../blobs/%s", names[i]);
        assert_int_equal(symlink(target, link), 0);
        free(link);
    }
    shards_check(snap);
    char *linked = path_join(dir, "model");
    assert_int_equal(symlink("snapshots/abc", linked), 0);
    shards_check(linked);
    free(linked), free(blobs), free(snap);
    dir_remove(dir);
}

static void directory_fails(const char *dir, error_code code, const char *says) {
    error err = {0};
    if (checkpoint_open(dir, &err)) fail_msg("opened although %s", says);
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static void incomplete_directories_are_refused(void **state) {
    char *dir = dir_temporary();
    directory_fails(dir, ERR_NOT_FOUND, "no config.json");
    text_write(dir, "config.json", "[1]");
    directory_fails(dir, ERR_FORMAT, "config.json is array");
    text_write(dir, "config.json", "{\"a\":}");
    directory_fails(dir, ERR_FORMAT, "config.json: invalid JSON");
    text_write(dir, "config.json", "{}");
    directory_fails(dir, ERR_NOT_FOUND, "no model*.safetensors");
    shard_write(dir, "model.safetensors", &(safetensors_out){"x", DT_F32, 1, {6}, f32_values}, 1);
    shard_write(dir, "model2.safetensors", &(safetensors_out){"x", DT_F32, 1, {6}, f32_values}, 1);
    directory_fails(dir, ERR_FORMAT, "tensor x at byte");
    char *file = path_join(dir, "model.safetensors");
    directory_fails(file, ERR_FORMAT, "is its directory");
    free(file);
    text_write(dir, "model2.safetensors", "short");
    directory_fails(dir, ERR_FORMAT, "model2.safetensors: 5 bytes");
    dir_remove(dir);
}

/* ---- MLX quantisation ------------------------------------------------------------------------------------------- */
/* m: 2 rows of 64 codes of 4 bits; e: the same as 2 experts of 1 row; p: plain; x: mxfp4. */
static const char
    quant_header[] = "{" ENTRY("m.weight", "U32", "[2,8]", "[0,64]") "," ENTRY("m.scales", "BF16", "[2,1]", "[64,68]") "," ENTRY("m.biases", "BF16", "[2,1]", "[68,72]") "," ENTRY(
        "e.weight", "U32", "[2,1,8]",
        "[72,136]") "," ENTRY("e.scales", "F16", "[2,1,2]",
                              "[136,144]") "," ENTRY("e.biases", "F16", "[2,1,2]",
                                                     "[144,152]") "," ENTRY("p.weight", "F16", "[2,2]",
                                                                            "[152,160]") "," ENTRY("x."
                                                                                                   "we"
                                                                                                   "ig"
                                                                                                   "h"
                                                                                                   "t",
                                                                                                   "U3"
                                                                                                   "2",
                                                                                                   "[1"
                                                                                                   ",8"
                                                                                                   "]",
                                                                                                   "[1"
                                                                                                   "60"
                                                                                                   ",1"
                                                                                                   "92"
                                                                                                   "]") "," ENTRY("x."
                                                                                                                  "scal"
                                                                                                                  "es",
                                                                                                                  "U8",
                                                                                                                  "[1,"
                                                                                                                  "2]",
                                                                                                                  "[192"
                                                                                                                  ",194"
                                                                                                                  "]") "," ENTRY("i.weight",
                                                                                                                                 "I32",
                                                                                                                                 "[1,2]",
                                                                                                                                 "[194,202]") "," ENTRY("v.weight",
                                                                                                                                                        "F32",
                                                                                                                                                        "[1]",
                                                                                                                                                        "[202,206]") "}";

typedef struct quant_case {
    const char *config, *module;
    weight_format format;
    int32_t n_experts, n_out, n_in, bits, group;
    const char *error; /* NULL: reads */
} quant_case;

static void quantisation_entries(void **state) {
#define TOP "\"group_size\":64,\"bits\":4"
    const quant_case cases[] = {
        {"{\"quantization\":{" TOP "}}", "m", WF_AFFINE, 1, 2, 64, 4, 64, NULL},
        {"{\"quantization_config\":{" TOP ",\"mode\":\"affine\"}}", "m", WF_AFFINE, 1, 2, 64, 4, 64, NULL},
        {"{\"quantization\":{" TOP "}}", "p", WF_F16, 1, 2, 2, 0, 0, NULL},
        {"{\"quantization\":{" TOP ",\"p\":false}}", "p", WF_F16, 1, 2, 2, 0, 0, NULL},
        {"{\"quantization\":{" TOP ",\"e\":{\"group_size\":32,\"bits\":4}}}", "e", WF_AFFINE, 2, 1, 64, 4, 32, NULL},
        {"{\"quantization\":{" TOP ",\"x\":{\"mode\":\"mxfp4\"}}}", "x", WF_MXFP4, 1, 1, 64, 4, 32, NULL},
        {"{\"quantization\":{" TOP "}}", "e", 0, 0, 0, 0, 0, 0, "e.scales at byte"},
        {"{\"quantization\":{" TOP "}}", "x", 0, 0, 0, 0, 0, 0, "x.scales at byte"},
        {"{\"quantization\":{" TOP ",\"m\":{\"mode\":\"nvfp4\"}}}", "m", 0, 0, 0, 0, 0, 0, "m.scales at byte"},
        {"{\"quantization\":{" TOP ",\"m\":false}}", "m", 0, 0, 0, 0, 0, 0, "m.scales at byte"},
        {"{\"quantization\":{" TOP ",\"p\":{\"bits\":4,\"group_size\":64}}}", "p", 0, 0, 0, 0, 0, 0,
         "p.weight at byte"},
        {"{}", "m", 0, 0, 0, 0, 0, 0, "no \"quantization\""},
        {"{\"quantization\":{\"group_size\":64,\"bits\":7}}", "m", 0, 0, 0, 0, 0, 0, "7 bits"},
        {"{\"quantization\":{\"group_size\":48,\"bits\":4}}", "m", 0, 0, 0, 0, 0, 0, "groups of 48"},
        {"{\"quantization\":{\"group_size\":0,\"bits\":0}}", "m", 0, 0, 0, 0, 0, 0, "0 bits"},
        {"{\"quantization\":{" TOP ",\"mode\":\"int9\"}}", "m", 0, 0, 0, 0, 0, 0, "int9"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":5}}", "m", 0, 0, 0, 0, 0, 0, "m.weight at byte"},
        {"{\"quantization\":{\"group_size\":64,\"bits\":2}}", "m", 0, 0, 0, 0, 0, 0, "m.scales at byte"},
        {"{}", "i", 0, 0, 0, 0, 0, 0, "i.weight at byte"},
        {"{}", "v", WF_F32, 1, 1, 1, 0, 0, NULL}, /* a vector is a matrix of one row */
    };
    buf b = file_of(quant_header, 206);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const quant_case *k = &cases[i];
        error err = {0};
        checkpoint *c = checkpoint_of_bytes(CHECKPOINT_SAFETENSORS, str_of(k->config), (uint8_t *)b.p, b.n, &err);
        if (!c) fail_msg("%s", err.msg);
        weight_src w;
        bool found, ok = checkpoint_weight(c, k->module, &w, &found, &err);
        if (ok != !k->error) fail_msg("%s, module %s: %s", k->config, k->module, ok ? "no error" : err.msg);
        if (!ok && (!strstr(err.msg, k->error) || err.code != ERR_FORMAT))
            fail_msg("\"%s\" not \"%s\"", err.msg, k->error);
        if (ok) {
            assert_true(found && w.format == k->format && w.n_experts == k->n_experts && w.n_out == k->n_out);
            assert_true(w.n_in == k->n_in && w.bits == k->bits && w.group == k->group);
            assert_true(strlen(w.name) == 8 && w.name[0] == k->module[0]);
        }
        checkpoint_close(c);
    }
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(header_length_is_checked),
        cmocka_unit_test(faults_name_the_tensor),
        cmocka_unit_test(empty_tensors_and_holes_are_allowed),
        cmocka_unit_test(shards_read_back),
        cmocka_unit_test(symlinked_snapshot_opens),
        cmocka_unit_test(incomplete_directories_are_refused),
        cmocka_unit_test(quantisation_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
