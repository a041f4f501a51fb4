/* `hearth ls [QUERY]`: the models on this machine, from their headers. */
#include <stdio.h>
#include <string.h>
#include "../hub/hub.h"
#include "cli.h"

static void show(const hub_model *m, device *d, bool as_json, buf *out) {
    error err = {0};
    checkpoint *c = checkpoint_open(m->path, &err);
    model *n = c ? model_open(c, d, &(model_opts){.plan_only = true}, &err) : NULL;
    const model_info *i = n ? model_describe(n) : NULL;
    if (as_json) {
        buf_printf(out, "%s{\"name\":", out->n > 1 ? "," : "");
        json_write_string(out, str_of(m->name));
        buf_puts(out, ",\"path\":");
        json_write_string(out, str_of(m->path));
        buf_printf(out, ",\"bytes\":%llu,\"tier\":", (unsigned long long)m->bytes);
        if (i) {
            json_write_string(out, str_of(i->tier));
            buf_puts(out, ",\"architecture\":");
            json_write_string(out, str_of(i->architecture));
            buf_printf(out, ",\"parameters\":%lld,\"quantization\":", (long long)i->n_params);
            json_write_string(out, str_of(i->quantization));
        } else {
            buf_puts(out, "null,\"problem\":");
            json_write_string(out, str_of(err.msg));
        }
        buf_putc(out, '}');
    } else if (i) {
        printf("%-36s %9.1f MB %8.2f B  %-12s %-14s %s\n", m->name, (double)m->bytes / 1e6, (double)i->n_params / 1e9,
               i->quantization, i->architecture, i->tier);
    } else {
        printf("%-36s %9.1f MB  not usable: %s\n", m->name, (double)m->bytes / 1e6, err.msg);
    }
    if (n) model_close(n);
    checkpoint_close(c);
}

int verb_ls(const options *o) {
    error err = {0};
    if (o->n_args > 1) {
        error_set(&err, ERR_USAGE, "ls takes one query, not '%s'", o->args[1]);
        return cli_fail(&err);
    }
    device *d = device_cpu_open(&(device_opts){.threads = 1, .rows_max = 1}, &err);
    if (!d) return cli_fail(&err);
    size_t n, shown = 0;
    hub_model *m = hub_list(&n);
    buf out = {0};
    buf_putc(&out, '[');
    for (size_t i = 0; i < n; i++) {
        if (o->n_args && !strcasestr(m[i].name, o->args[0])) continue;
        show(&m[i], d, o->json, &out);
        shown++;
    }
    if (o->json)
        printf("%s]\n", out.p);
    else if (!shown)
        fprintf(stderr, "no models%s; `hearth get smollm2` fetches one\n", o->n_args ? " match" : "");
    buf_free(&out);
    hub_list_free(m, n);
    device_close(d);
    return 0;
}
