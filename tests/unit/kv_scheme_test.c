/* What --kv-quant makes of a model's layers (src/model/kv_scheme.c): codes, names and bytes, and what is refused, with
 * the reason. What the codes do is in tests/op/attend_test.c and engine_model_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/model/internal.h"

#define DATA "tests/data/models/"

static device *dev;
static int setup(void **state) {
    dev = device_cpu_open(&(device_opts){.threads = 1}, NULL);
    return dev ? 0 : -1;
}
static int teardown(void **state) {
    device_close(dev);
    return 0;
}

typedef struct opened {
    checkpoint *c;
    model *m; /* NULL: refused, err says why */
    error err;
} opened;
static opened open_path(const char *path, const char *how, int group) {
    opened o = {0};
    o.c = checkpoint_open(path, &o.err);
    if (!o.c) fail_msg("%s", o.err.msg);
    o.m = model_open(o.c, dev, &(model_opts){.plan_only = true, .kv_quant = how, .kv_group = group}, &o.err);
    return o;
}
static opened open_named(const char *name, const char *how, int group) {
    char path[200];
    snprintf(path, sizeof path, DATA "%s", name);
    return open_path(path, how, group);
}
static void shut(opened *o) {
    model_close(o->m);
    checkpoint_close(o->c);
}

/* ---- names, codes, bytes ---- */
static void names_and_bytes(void **state) {
    /* qwen3-q4: 2 key heads of 64, every layer full attention */
    static const struct {
        const char *how;
        int group;
        const char *scheme, *mode;
        int bits;    /* of values */
        double each; /* bytes of a position of a layer's head: 64 columns of keys, 64 of values */
    } cases[] = {
        {NULL, 0, "f16", "f16", 0, 256},
        {"off", 32, "f16", "f16", 0, 256},
        {"8", 0, "kv8", "uniform-kv8", 8, 128 + 8},
        {"4", 64, "kv4", "uniform-kv4", 4, 64 + 8},
        {"4", 32, "kv4g32", "uniform-kv4", 4, 64 + 16},
        {"turbo", 0, "turbo-k8v3", "turbo k8v3", 3, 64 + 4 + 24 + 2},
        {"turbo:k4v2", 32, "turbo-k4v2g32", "turbo k4v2", 2, 32 + 8 + 16 + 2},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        opened o = open_named("qwen3-q4", cases[i].how, cases[i].group);
        if (!o.m) fail_msg("%s", o.err.msg);
        const model_info *info = model_describe(o.m);
        const kv_spec *s = model_kv_spec(o.m);
        assert_string_equal(info->kv.scheme, cases[i].scheme);
        assert_string_equal(info->kv.mode, cases[i].mode);
        assert_int_equal(s->n_layers, info->n_layers);
        assert_int_equal(info->kv.n_by_bits[cases[i].bits], info->n_layers);
        assert_int_equal(info->kv.n_full, info->n_layers);
        assert_int_equal(s->layer[0].k_width, 64);
        double all = cases[i].each * s->layer[0].heads * s->n_layers;
        assert_true(info->kv_bytes_per_token == (size_t)all);
        /* pages hold nothing else, but for the rounding of a page */
        assert_int_equal(dev->vt->kv_page_bytes(dev, s, 0), ((size_t)all * KV_PAGE + 4095) / 4096 * 4096);
        shut(&o);
    }
}

/* Windows are coded by 8 and 4, left alone by turbo; an indexer's keys are always left alone. */
static void kinds_of_layers(void **state) {
    static const struct {
        const char *name, *how;
        bool windows, latents;
    } cases[] = {{"gemma3_text-q4", "8", true, false}, {"gemma3_text-q4", "turbo", false, false},
                 {"mistral_swa-q4", "4", true, false}, {"glm_dsa-q4", "8", false, true},
                 {"deepseek_v3-q4", "4", false, true}, {"qwen3_5_4b-q4", "4", false, false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        opened o = open_named(cases[i].name, cases[i].how, 0);
        if (!o.m) fail_msg("%s", o.err.msg);
        const kv_spec *s = model_kv_spec(o.m);
        for (int k = 0; k < s->n_layers; k++) {
            const kv_layer *l = &s->layer[k];
            bool want = s->window[l->group] ? cases[i].windows : l->latent ? cases[i].latents : l->v_width > 0;
            assert_int_equal(l->k.bits > 0, want);
            assert_int_equal(l->v.bits > 0, want && !l->latent);
        }
        assert_int_equal(model_describe(o.m)->kv.n_windowed > 0, s->n_groups > 1 || s->window[0]);
        shut(&o);
    }
}

/* ---- refused ---- */
static void refused(const char *name, const char *how, int group, error_code code, const char *says) {
    opened o = open_named(name, how, group);
    assert_null(o.m);
    assert_int_equal(o.err.code, code);
    if (!strstr(o.err.msg, says)) fail_msg("'%s' does not say '%s'", o.err.msg, says);
    shut(&o);
}
static void refusals(void **state) {
    static const char *const words[] = {"",           "16",          "3",          "on",
                                        "turbo:",     "turbo:k3v3",  "turbo:k8v6", "turbo:k8v33",
                                        "turbo k8v3", "turbo:v3k8x", "8 ",         "config.json"};
    for (size_t i = 0; i < COUNT(words); i++) refused("qwen3-q4", words[i], 0, ERR_INVALID, "kv-quant must be off, 8");
    refused("qwen3-q4", "8", 48, ERR_INVALID, "kv-group-size must be 32, 64 or 128, not 48");
    refused("deepseek_v3-q4", "turbo", 0, ERR_UNSUPPORTED, "latent attention");
    refused("mistral-q4", "turbo", 0, ERR_UNSUPPORTED, "no layer of this model has full attention");
    refused("qwen3-q4", "config", 0, ERR_NOT_FOUND, "kv_config.json");
    refused("llama_plain-bf16.gguf", "config", 0, ERR_NOT_FOUND, "kv_config.json");
}

/* ---- kv_config.json ---- */
static char folder[64];
static opened open_config(const char *name, const char *text) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char from[400], to[200], here[200];
    assert_non_null(getcwd(here, sizeof here));
    strcpy(folder, "/tmp/kv_scheme_XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(from, sizeof from, "%s/" DATA "%s/%s", here, name, files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/kv_config.json", folder);
    assert_true(file_write_atomic(to, text, strlen(text), NULL));
    opened o = open_path(folder, "config", 0);
    unlink(to);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        unlink(to);
    }
    rmdir(folder);
    return o;
}
static void layers_of_their_own(void **state) {
    char first[32];
    opened o = open_config("qwen3_5_4b-q4", "[{\"layer_idx\":3,\"bits\":4,\"group_size\":32}]");
    if (!o.m) fail_msg("%s", o.err.msg);
    const kv_spec *s = model_kv_spec(o.m);
    const model_info *info = model_describe(o.m);
    for (int i = 0; i < s->n_layers; i++) {
        assert_int_equal(s->layer[i].of % 4, 3); /* three recurrent layers, then one with keys and values */
        assert_int_equal(s->layer[i].k.bits, s->layer[i].of == 3 ? 4 : 0);
    }
    assert_int_equal(s->layer[0].v.group, 32);
    assert_int_equal(info->kv.n_by_bits[4], 1);
    assert_int_equal(info->kv.n_by_bits[0], s->n_layers - 1);
    assert_string_equal(info->kv.mode, "mixed (kv_config.json)");
    assert_memory_equal(info->kv.scheme, "config:", 7);
    strcpy(first, info->kv.scheme);
    shut(&o);
    o = open_config("qwen3_5_4b-q4", "[{\"layer_idx\":3,\"bits\":4}]");
    assert_int_equal(model_kv_spec(o.m)->layer[0].v.group, 64);
    assert_string_not_equal(model_describe(o.m)->kv.scheme, first);
    shut(&o);
}
static void bad_configs(void **state) {
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"qwen3-q4", "{}", "a list of layers"},
        {"qwen3-q4", "[", "kv_config.json"},
        {"qwen3-q4", "[7]", "layer_idx must be 0 to"},
        {"qwen3-q4", "[{\"layer_idx\":99,\"bits\":4}]", "layer_idx must be 0 to"},
        {"qwen3-q4", "[{\"layer_idx\":-1,\"bits\":4}]", "layer_idx must be 0 to"},
        {"qwen3-q4", "[{\"layer_idx\":0}]", "bits must be 2"},
        {"qwen3-q4", "[{\"layer_idx\":0,\"bits\":7}]", "not 7"},
        {"qwen3-q4", "[{\"layer_idx\":0,\"bits\":4,\"group_size\":16}]", "group_size must be 32, 64 or 128, not 16"},
        {"qwen3-q4", "[{\"layer_idx\":0,\"bits\":4,\"group_size\":\"64\"}]", "group_size"},
        {"qwen3-q4", "[{\"layer_idx\":0,\"bits\":4},{\"layer_idx\":0,\"bits\":8}]", "named twice"},
        {"qwen3_5_4b-q4", "[{\"layer_idx\":0,\"bits\":4}]", "layer 0 keeps no keys and values of its own"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        opened o = open_config(cases[i].name, cases[i].text);
        if (o.m) fail_msg("%s is taken", cases[i].text);
        if (!strstr(o.err.msg, cases[i].says)) fail_msg("'%s' does not say '%s'", o.err.msg, cases[i].says);
        shut(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_bytes),     cmocka_unit_test(kinds_of_layers), cmocka_unit_test(refusals),
        cmocka_unit_test(layers_of_their_own), cmocka_unit_test(bad_configs),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
