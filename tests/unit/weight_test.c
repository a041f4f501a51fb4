/* device/weight.c: every format against what its reference implementation reads (tools/make_weight_goldens.py), bit for
 * bit; the integer form against the f32 meaning; 16-bit floats against the compiler's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/device/weight.h"

typedef struct record {
    weight_src w;
    char name[16];
    size_t n_codes, n_scales, n_biases;
    uint8_t *part[4]; /* codes, scales, biases, f32 values; own, of exact size so that ASan sees a read past the end */
} record;

static weight_format format_of(const char *name) {
    for (int f = 0; f < WF_COUNT; f++)
        if (strcmp(weight_format_name((weight_format)f), name) == 0) return (weight_format)f;
    fail_msg("unknown format %s", name);
    return WF_COUNT;
}

static dtype dtype_of(const char *name) {
    for (int t = 0; t < DT_COUNT; t++)
        if (strcmp(dtype_name((dtype)t), name) == 0) return (dtype)t;
    fail_msg("unknown type %s", name);
    return DT_COUNT;
}

static bool record_next(FILE *f, record *r) {
    char line[128], type[8];
    if (!fgets(line, sizeof line, f)) return false;
    *r = (record){0};
    int got = sscanf(line, "%15s %d %d %d %d %7s %zu %zu %zu", r->name, &r->w.bits, &r->w.group, &r->w.n_out,
                     &r->w.n_in, type, &r->n_codes, &r->n_scales, &r->n_biases);
    assert_int_equal(got, 9);
    r->w.format = format_of(r->name);
    r->w.scale_type = dtype_of(type);
    r->w.n_experts = 1;
    r->w.name = r->name;
    size_t size[4] = {r->n_codes, r->n_scales, r->n_biases, (size_t)r->w.n_out * (size_t)r->w.n_in * 4};
    for (int i = 0; i < 4; i++) {
        r->part[i] = size[i] ? malloc(size[i]) : NULL;
        if (size[i]) assert_int_equal(fread(r->part[i], 1, size[i], f), size[i]);
    }
    r->w.codes = r->part[0], r->w.scales = r->part[1], r->w.biases = r->part[2];
    return true;
}

static void record_free(record *r) {
    for (int i = 0; i < 4; i++) free(r->part[i]);
}

static FILE *goldens_open(void) {
    FILE *f = fopen("tests/data/formats/weights.bin", "rb");
    assert_non_null(f);
    return f;
}

/* == and not memcmp: MLX keeps the sign of a zero code, the integer form does not. */
static void rows_equal_the_reference(void **state) {
    FILE *f = goldens_open();
    bool seen[WF_COUNT] = {0};
    for (record r; record_next(f, &r); record_free(&r)) {
        seen[r.w.format] = true;
        float *out = malloc((size_t)r.w.n_in * 4);
        for (int32_t row = 0; row < r.w.n_out; row++) {
            const float *want = (const float *)r.part[3] + (size_t)row * (size_t)r.w.n_in;
            weight_row_f32(&r.w, row, out);
            for (int32_t i = 0; i < r.w.n_in; i++)
                if (out[i] != want[i])
                    fail_msg("%s bits %d group %d [%d,%d]: %.9g, reference %.9g", r.name, r.w.bits, r.w.group, row, i,
                             out[i], want[i]);
        }
        free(out);
    }
    fclose(f);
    for (int i = 0; i < WF_COUNT; i++)
        if (!seen[i]) fail_msg("no golden for %s", weight_format_name((weight_format)i));
}

/* s·(q−z)+b, each step rounded once, is the meaning itself: no bound is needed. */
static void codes_are_the_same_numbers(void **state) {
    FILE *f = goldens_open();
    int without = 0;
    for (record r; record_next(f, &r); record_free(&r)) {
        code_form form;
        if (!weight_code_form(&r.w, &form)) {
            without++;
            continue;
        }
        size_t n = (size_t)r.w.n_in, groups = n / (size_t)form.group;
        uint8_t *q = malloc(n);
        float *s = malloc(groups * 4), *b = form.has_offset ? malloc(groups * 4) : NULL, *want = malloc(n * 4);
        for (int32_t row = 0; row < r.w.n_out; row++) {
            weight_row_codes(&r.w, row, q, s, b);
            weight_row_f32(&r.w, row, want);
            for (size_t i = 0; i < n; i++) {
                size_t g = i / (size_t)form.group;
                float v = s[g] * (float)(q[i] - form.zero);
                if (b) v += b[g];
                if (v != want[i]) fail_msg("%s [%d,%zu]: %.9g, f32 row %.9g", r.name, row, i, v, want[i]);
                assert_true(q[i] >> form.bits == 0);
            }
        }
        free(q), free(s), free(b), free(want);
    }
    fclose(f);
    assert_int_equal(without, 4); /* F32 F16 BF16 MXFP8 */
}

static void sizes_match_the_files(void **state) {
    FILE *f = goldens_open();
    for (record r; record_next(f, &r); record_free(&r)) {
        assert_int_equal(weight_row_bytes(&r.w) * (size_t)r.w.n_out, r.n_codes);
        assert_int_equal(weight_src_bytes(&r.w), r.n_codes + r.n_scales + r.n_biases);
    }
    fclose(f);
}

static void experts_are_more_rows(void **state) {
    FILE *f = goldens_open();
    for (record r; record_next(f, &r); record_free(&r)) {
        float *a = malloc((size_t)r.w.n_in * 4), *b = malloc((size_t)r.w.n_in * 4);
        weight_row_f32(&r.w, 1, a);
        r.w.n_experts = 2, r.w.n_out = 1;
        weight_row_f32(&r.w, 1, b);
        assert_memory_equal(a, b, (size_t)r.w.n_in * 4);
        assert_int_equal(weight_src_bytes(&r.w), r.n_codes + r.n_scales + r.n_biases);
        free(a), free(b);
    }
    fclose(f);
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void f16_reads_all_values(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t bits = (uint16_t)h;
        _Float16 x;
        memcpy(&x, &bits, 2);
        float want = (float)x, got = f16_to_f32(bits);
        if (isnan(want))
            assert_true(isnan(got) && isnan(f16_to_f32(f32_to_f16(got))));
        else {
            assert_memory_equal(&got, &want, 4);
            if (!isinf(want)) assert_int_equal(f32_to_f16(got), bits);
        }
    }
}

static void f16_rounds_to_nearest_even_and_saturates(void **state) {
    uint32_t u = 1;
    for (int i = 0; i < 2000000; i++) {
        u = u * 1664525u + 1013904223u;
        float f = float_of(u);
        if (isnan(f)) continue;
        uint16_t want;
        _Float16 x = (_Float16)MIN(MAX(f, -65504.0f), 65504.0f);
        memcpy(&want, &x, 2);
        assert_int_equal(f32_to_f16(f), want);
    }
    assert_int_equal(f32_to_f16(INFINITY), 0x7bff);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfbff);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);          /* half of the smallest: to even */
    assert_int_equal(f32_to_f16(0x1.8p-24f), 2);        /* 1½ of the smallest: to even */
    assert_int_equal(f32_to_f16(0x1.ff8p-15f), 0x03ff); /* largest subnormal */
    assert_int_equal(f32_to_f16(0x1.ffcp-15f), 0x0400); /* tie, up into the normal range */
}

static void bf16_rounds_to_nearest_even(void **state) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(f))));
        else
            assert_int_equal(f32_to_bf16(f), h);
    }
    assert_int_equal(f32_to_bf16(float_of(0x3f808000)), 0x3f80); /* tie to even */
    assert_int_equal(f32_to_bf16(float_of(0x3f818000)), 0x3f82);
    assert_int_equal(f32_to_bf16(float_of(0x3f808001)), 0x3f81);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(float_of(0x7f800001)))));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_the_reference),    cmocka_unit_test(codes_are_the_same_numbers),
        cmocka_unit_test(sizes_match_the_files),       cmocka_unit_test(experts_are_more_rows),
        cmocka_unit_test(f16_reads_all_values),        cmocka_unit_test(f16_rounds_to_nearest_even_and_saturates),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
