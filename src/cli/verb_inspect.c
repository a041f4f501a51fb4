/* `hearth inspect MODEL`: family, sizes, memory, tokenizer, template. From headers; no weights are loaded. */
#include <stdio.h>
#include <stdlib.h>
#include "cli.h"

/* One line or JSON member at a time, in a fixed order. */
typedef struct report {
    buf out;
    bool as_json;
} report;

static void put_text(report *r, const char *key, const char *value) {
    if (r->as_json) {
        buf_printf(&r->out, "%s\"%s\":", r->out.n > 1 ? "," : "", key);
        json_write_string(&r->out, str_of(value));
    } else {
        buf_printf(&r->out, "%-22s %s\n", key, value);
    }
}

static void put_number(report *r, const char *key, double value, const char *unit) {
    if (r->as_json)
        buf_printf(&r->out, "%s\"%s\":%.0f", r->out.n > 1 ? "," : "", key, value);
    else
        buf_printf(&r->out, "%-22s %.0f%s\n", key, value, unit);
}

static void put_ids(report *r, const char *key, const int32_t *v, size_t n) {
    if (r->as_json)
        buf_printf(&r->out, ",\"%s\":[", key);
    else
        buf_printf(&r->out, "%-22s ", key);
    for (size_t i = 0; i < n; i++) buf_printf(&r->out, "%s%d", i ? r->as_json ? "," : ", " : "", v[i]);
    buf_puts(&r->out, r->as_json ? "]" : "\n");
}

static void put_kv(report *r, const kv_spec *kv) {
    for (int g = 0; g < kv->n_groups; g++) {
        int layers = 0;
        for (int i = 0; i < kv->n_layers; i++) layers += kv->layer[i].group == g;
        char key[40], text[80];
        snprintf(key, sizeof key, "kv_group_%d", g);
        if (kv->window[g])
            snprintf(text, sizeof text, "%d layers, window %d", layers, kv->window[g]);
        else
            snprintf(text, sizeof text, "%d layers, full attention", layers);
        put_text(r, key, text);
    }
}

static void describe(report *r, const checkpoint *c, const model *m) {
    const model_info *i = model_describe(m);
    put_text(r, "path", checkpoint_path(c));
    put_text(r, "format", checkpoint_type(c) == CHECKPOINT_GGUF ? "gguf" : "safetensors");
    put_text(r, "architecture", i->architecture);
    put_text(r, "family", i->family);
    put_text(r, "tier", i->tier);
    put_text(r, "quantization", i->quantization);
    put_number(r, "parameters", (double)i->n_params, "");
    put_number(r, "layers", i->n_layers, "");
    put_number(r, "width", i->width, "");
    put_number(r, "vocabulary", i->vocab, "");
    put_number(r, "context", i->context_max, " tokens");
    put_number(r, "file_bytes", (double)i->file_bytes, "");
    put_number(r, "weight_bytes", (double)i->weight_bytes, "");
    put_number(r, "kv_bytes_per_token", (double)i->kv_bytes_per_token, "");
    put_number(r, "state_bytes", (double)i->state_bytes, " a sequence");
    put_number(r, "workspace_bytes", (double)i->workspace_bytes, "");
    put_ids(r, "eos", i->eos, i->n_eos);
    put_kv(r, model_kv_spec(m));
}

static void describe_text(report *r, checkpoint *c) {
    error err = {0};
    tokenizer *t = tokenizer_open(c, &err);
    if (!t) {
        put_text(r, "tokenizer", err.msg);
        return;
    }
    put_number(r, "tokenizer_size", tokenizer_size(t), " tokens");
    error none = {0};
    chat_template *k = chat_template_open(c, t, &none);
    put_text(r, "chat_template", k ? "yes" : none.code != ERR_NONE ? none.msg : "none");
    if (k) put_text(r, "thinking", chat_template_reads(k, "enable_thinking") ? "switchable" : "not switchable");
    chat_template_free(k);
    tokenizer_free(t);
}

int verb_inspect(const options *o) {
    error err = {0};
    if (o->n_args != 1) {
        error_set(&err, ERR_USAGE, "inspect takes one model");
        return cli_fail(&err);
    }
    char *path = cli_model_path(o, o->args[0], &err);
    device *d = path ? device_cpu_open(&(device_opts){.threads = 1}, &err) : NULL;
    checkpoint *c = d ? checkpoint_open(path, &err) : NULL;
    model *m = c ? model_open(c, d, &(model_opts){.plan_only = true}, &err) : NULL;
    if (m) {
        report r = {.as_json = o->json};
        if (r.as_json) buf_putc(&r.out, '{');
        describe(&r, c, m);
        describe_text(&r, c);
        printf("%s%s", r.out.p, r.as_json ? "}\n" : "");
        buf_free(&r.out);
        model_close(m);
    }
    checkpoint_close(c);
    if (d) device_close(d);
    free(path);
    return m ? 0 : cli_fail(&err);
}
