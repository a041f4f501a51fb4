/* format/gguf.c: a file written by the `gguf` Python package reads as written; damaged ones give an error with the
 * place, read nothing outside the bytes (each file is a block of exact size: run under ASan) and allocate nothing from
 * a count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/format/internal.h"

/* ---- a small file, with one thing wrong ------------------------------------------------------------------------- */
typedef struct spec {
    uint32_t version, align_type, kv_type, n_dims, type;
    uint64_t n_tensors, n_kv, align, array_n, string_n, offset, offset2;
    uint64_t dim[9];
    const char *key, *name, *name2;
    size_t data_bytes;
} spec;

static const spec sound = {
    .version = 3,
    .align_type = 4,
    .kv_type = 8,
    .n_dims = 2,
    .type = 2,
    .n_tensors = 2,
    .n_kv = 4,
    .align = 32,
    .array_n = 3,
    .string_n = 5,
    .offset = 0,
    .offset2 = 64,
    .dim = {32, 2, 1, 1, 1, 1, 1, 1, 1},
    .key = "a.key",
    .name = "t",
    .name2 = "u",
    .data_bytes = 64 + 16,
};

static void put32(buf *b, uint32_t v) {
    buf_add(b, &v, 4);
}

static void put64(buf *b, uint64_t v) {
    buf_add(b, &v, 8);
}

static void put_string(buf *b, const char *s) {
    put64(b, strlen(s));
    buf_puts(b, s);
}

static buf build(const spec *s) {
    buf b = {0};
    buf_puts(&b, "GGUF");
    put32(&b, s->version), put64(&b, s->n_tensors), put64(&b, s->n_kv);
    put_string(&b, "general.alignment"), put32(&b, s->align_type), put32(&b, (uint32_t)s->align);
    put_string(&b, s->key), put32(&b, s->kv_type), put64(&b, s->string_n), buf_puts(&b, "value");
    put_string(&b, "an.array"), put32(&b, 9), put32(&b, 4), put64(&b, s->array_n), put32(&b, 7), put32(&b, 8),
        put32(&b, 9);
    put_string(&b, "nested"), put32(&b, 9), put32(&b, 9), put64(&b, 1), put32(&b, 0), put64(&b, 2),
        buf_puts(&b, "\1\2");
    put_string(&b, s->name), put32(&b, s->n_dims);
    for (uint32_t i = 0; i < MIN(s->n_dims, 9u); i++) put64(&b, s->dim[i]);
    put32(&b, s->type), put64(&b, s->offset);
    put_string(&b, s->name2), put32(&b, 1), put64(&b, 4), put32(&b, 0), put64(&b, s->offset2);
    while (b.n % 32) buf_putc(&b, 0);
    for (size_t i = 0; i < s->data_bytes; i++) buf_putc(&b, (char)(i * 7));
    return b;
}

/* Opens a copy of exactly n bytes. */
static bool opens(const buf *b, size_t n, error *err) {
    uint8_t *copy = malloc(n ? n : 1);
    if (n) memcpy(copy, b->p, n);
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_GGUF, STR(""), copy, n, err);
    checkpoint_close(c);
    free(copy);
    return c != NULL;
}

static void sound_file_opens(void **state) {
    buf b = build(&sound);
    error err = {0};
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_GGUF, STR(""), (uint8_t *)b.p, b.n, &err);
    if (!c) fail_msg("%s", err.msg);
    const json *meta = checkpoint_config(c);
    assert_true(str_is(json_str(json_get(meta, "a.key"), STR("")), "value"));
    assert_int_equal(json_int(json_at(json_get(meta, "an.array"), 2), 0), 9);
    assert_int_equal(json_int(json_at(json_at(json_get(meta, "nested"), 0), 1), 0), 2);
    const stored_tensor *t = checkpoint_tensor(c, STR("t"));
    assert_true(t && t->ndim == 2 && t->dim[0] == 2 && t->dim[1] == 32 && t->bytes == 36);
    assert_string_equal(t->type_name, "Q4_0");
    assert_int_equal(t->offset, b.n - sound.data_bytes);
    checkpoint_close(c);
    buf_free(&b);
}

static void every_truncation_is_an_error(void **state) {
    buf b = build(&sound);
    for (size_t n = 0; n < b.n; n++) {
        error err = {0};
        if (opens(&b, n, &err)) fail_msg("%zu of %zu bytes opened", n, b.n);
        assert_int_equal(err.code, ERR_FORMAT);
        assert_non_null(strstr(err.msg, "byte"));
    }
    buf_free(&b);
}

/* A changed byte may leave a readable file or not; it must not crash. */
static void every_changed_byte_is_survived(void **state) {
    buf b = build(&sound);
    for (size_t i = 0; i < b.n - sound.data_bytes; i++)
        for (int v = 0; v < 256; v += 5) {
            char was = b.p[i];
            b.p[i] = (char)v;
            opens(&b, b.n, NULL);
            b.p[i] = was;
        }
    buf_free(&b);
}

static void faults_name_what_is_wrong(void **state) {
#define WITH(...)       \
    ({                  \
        spec s = sound; \
        __VA_ARGS__;    \
        s;              \
    })
    const struct {
        spec s;
        const char *says;
        error_code code;
    } cases[] = {
        {WITH(s.version = 1), "version 1", ERR_FORMAT},
        {WITH(s.version = 4), "version 4", ERR_FORMAT},
        {WITH(s.version = 0x03000000), "big-endian", ERR_FORMAT},
        {WITH(s.n_kv = 1ull << 60), "metadata entries", ERR_FORMAT},
        {WITH(s.n_tensors = UINT64_MAX), "tensors do not fit", ERR_FORMAT},
        {WITH(s.key = ""), "empty metadata key", ERR_FORMAT},
        {WITH(s.key = "an.array"), "an.array occurs twice", ERR_FORMAT},
        {WITH(s.kv_type = 13), "a.key: value type 13", ERR_FORMAT},
        {WITH(s.string_n = 1u << 30), "a.key: a string of 1073741824 bytes", ERR_FORMAT},
        {WITH(s.string_n = UINT64_MAX - 3), "a.key: a string of", ERR_FORMAT},
        {WITH(s.array_n = 1ull << 40), "an.array: an array of 1099511627776", ERR_FORMAT},
        {WITH(s.array_n = UINT64_MAX / 4 + 2), "an.array: an array of", ERR_FORMAT},
        {WITH(s.align = 1u << 30), "general.alignment is 1073741824", ERR_FORMAT},
        {WITH(s.align = 3), "general.alignment is 3", ERR_FORMAT},
        {WITH(s.align = 0), "general.alignment is 0", ERR_FORMAT},
        {WITH(s.align_type = 5), "general.alignment has value type 5", ERR_FORMAT},
        {WITH(s.n_dims = 0), "tensor t: 0 dimensions", ERR_FORMAT},
        {WITH(s.n_dims = 9), "tensor t: 9 dimensions", ERR_FORMAT},
        {WITH(s.n_dims = 255), "tensor t: 255 dimensions", ERR_FORMAT},
        {WITH(s.n_dims = UINT32_MAX), "tensor t: 4294967295 dimensions", ERR_FORMAT},
        {WITH(s.dim[0] = 0), "tensor t: dimension 0 is 0", ERR_FORMAT},
        {WITH(s.dim[0] = 1ull << 63), "tensor t: dimension 0", ERR_FORMAT},
        {WITH(s.dim[0] = 1ull << 40; s.dim[1] = 1ull << 40), "tensor t: dimension 1", ERR_FORMAT},
        {WITH(s.dim[0] = 33), "tensor t: rows of 33", ERR_FORMAT},
        {WITH(s.dim[1] = 1ull << 40), "tensor t: ", ERR_FORMAT},
        {WITH(s.type = 4), "tensor t: type 4", ERR_FORMAT},
        {WITH(s.type = 5000), "tensor t: type 5000", ERR_FORMAT},
        {WITH(s.offset = 1), "tensor t: offset 1", ERR_FORMAT},
        {WITH(s.offset = 1ull << 50), "tensor t: 36 bytes at offset 1125899906842624", ERR_FORMAT},
        {WITH(s.offset = UINT64_MAX - 31), "tensor t: 36 bytes at offset", ERR_FORMAT},
        {WITH(s.offset2 = 32), "tensor u at byte", ERR_FORMAT}, /* inside t */
        {WITH(s.name = ""), "empty name", ERR_FORMAT},
        {WITH(s.name2 = "t"), "tensor t at byte", ERR_FORMAT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf b = build(&cases[i].s);
        error err = {0};
        if (opens(&b, b.n, &err)) fail_msg("case %zu opened: %s", i, cases[i].says);
        if (!strstr(err.msg, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i].says);
        assert_int_equal(err.code, cases[i].code);
        assert_true(strstr(err.msg, "byte") || strstr(err.msg, "twice"));
        buf_free(&b);
    }
}

static void unknown_types_are_listed_but_not_loaded(void **state) {
    spec s = sound;
    s.type = 16, s.dim[0] = 256, s.dim[1] = 1, s.name = "m.weight", s.offset2 = 96,
    s.data_bytes = 96 + 16; /* IQ2_XXS: 66 bytes */
    buf b = build(&s);
    error err = {0};
    checkpoint *c = checkpoint_of_bytes(CHECKPOINT_GGUF, STR(""), (uint8_t *)b.p, b.n, &err);
    if (!c) fail_msg("%s", err.msg);
    assert_string_equal(checkpoint_tensor(c, STR("m.weight"))->type_name, "IQ2_XXS");
    weight_src w;
    bool found;
    assert_false(checkpoint_weight(c, "m", &w, &found, &err));
    assert_non_null(strstr(err.msg, "m.weight at byte"));
    assert_non_null(strstr(err.msg, "IQ2_XXS"));
    checkpoint_close(c);
    buf_free(&b);
}

/* ---- a file by the reference writer (tools/make_gguf_golden.py) -------------------------------------------------- */
static double number(const json *meta, const char *key) {
    return json_real(json_get(meta, key), -12345);
}

static void reference_file_reads_as_written(void **state) {
    error err = {0};
    checkpoint *c = checkpoint_open("tests/data/formats/small.gguf", &err);
    if (!c) fail_msg("%s", err.msg);
    const json *m = checkpoint_config(c);
    assert_true(checkpoint_type(c) == CHECKPOINT_GGUF);
    assert_true(str_is(json_str(json_get(m, "general.architecture"), STR("")), "llama"));
    assert_true(number(m, "x.u8") == 255 && number(m, "x.i8") == -128 && number(m, "x.u16") == 65535);
    assert_true(number(m, "x.i16") == -32768 && number(m, "x.u32") == 4294967295.0 &&
                number(m, "x.i32") == -2147483648.0);
    assert_true(number(m, "x.f32") == 0.5 && number(m, "x.f64") == 1e300 && number(m, "x.u64") == 0x1p64);
    assert_int_equal(json_int(json_get(m, "x.i64"), 0), INT64_MIN);
    assert_true(json_bool(json_get(m, "x.yes"), false) && !json_bool(json_get(m, "x.no"), true));
    assert_true(str_is(json_str(json_get(m, "x.text"), STR("")), "a\"ü漢\n"));
    const json *tokens = json_get(m, "tokenizer.ggml.tokens");
    assert_int_equal(tokens->n, 3);
    assert_true(str_is(json_str(json_at(tokens, 2), STR("")), "▁the"));
    assert_true(json_real(json_at(json_get(m, "tokenizer.ggml.scores"), 1), 0) == -1.5);

    weight_src w;
    bool found;
    assert_true(checkpoint_weight(c, "blk.0.attn_q", &w, &found, &err) && found);
    assert_true(w.format == WF_Q8_0 && w.n_experts == 1 && w.n_out == 3 && w.n_in == 64 && w.bits == 8 &&
                w.group == 32);
    float row[64];
    weight_row_f32(&w, 2, row); /* x[r,c] = (64 r + c)/64, blocks of 32: error at most half a step of max/127 */
    for (int i = 0; i < 64; i++)
        assert_true(row[i] - (128 + i) / 64.0f < 0.0118f && (128 + i) / 64.0f - row[i] < 0.0118f);
    assert_true(checkpoint_weight(c, "blk.0.ffn_up_exps", &w, &found, &err) && found);
    assert_true(w.format == WF_F16 && w.n_experts == 2 && w.n_out == 3 && w.n_in == 4);
    weight_row_f32(&w, 5, row);
    assert_true(row[3] == 23);
    assert_true(checkpoint_weight(c, "blk.1.attn_q", &w, &found, &err) && !found);
    assert_true(checkpoint_floats(c, "blk.0.attn_norm.weight", 4, row, &err));
    assert_true(row[0] == 1 && row[3] == 4);
    assert_false(checkpoint_floats(c, "blk.0.attn_norm.weight", 5, row, &err));
    assert_non_null(strstr(err.msg, "attn_norm.weight at byte"));
    checkpoint_close(c);
}

static void other_files_are_refused(void **state) {
    error err = {0};
    assert_null(checkpoint_open("tests/data/formats/weights.bin", &err));
    assert_int_equal(err.code, ERR_FORMAT);
    assert_non_null(strstr(err.msg, "not a GGUF file"));
    err = (error){0};
    assert_null(checkpoint_open("tests/data/formats/absent.gguf", &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_file_opens),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(every_changed_byte_is_survived),
        cmocka_unit_test(faults_name_what_is_wrong),
        cmocka_unit_test(unknown_types_are_listed_but_not_loaded),
        cmocka_unit_test(reference_file_reads_as_written),
        cmocka_unit_test(other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
