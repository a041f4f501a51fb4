/* `hearth fit MODEL`: what it needs at --ctx positions, by part; whether that fits; the largest context that does; the
 * speed to expect; --skus: the same for other machines. From headers: no weight is read. */
#include <stdio.h>
#include <stdlib.h>
#include "../base/limit.h"
#include "../server/server.h"
#include "cli.h"

enum { MEASURE_BYTES = 256 << 20 };
static const double GB = 1e9;

static void show_plan(const fit_report *r) {
    const memory_plan *p = &r->plan;
    for (int i = 0; i < PLAN_PARTS; i++) {
        if (i == PLAN_BATCH || i == PLAN_CACHE || !p->part[i]) continue;
        const plan_part_info *k = plan_part_describe((plan_part)i);
        printf("  %-14s %10.3f GB   %s\n", k->key, (double)p->part[i] / GB, k->what);
    }
    printf("  %-14s %10.3f GB   of %.3f GB that may be used\n", "total", (double)p->need_bytes / GB,
           (double)p->budget_bytes / GB);
    for (int i = PLAN_BATCH; i <= PLAN_CACHE; i++)
        if (p->part[i])
            printf("  %-14s %10.3f GB   %s\n", plan_part_describe((plan_part)i)->key, (double)p->part[i] / GB,
                   plan_part_describe((plan_part)i)->what);
}

static void show(const fit_report *r, double bandwidth, bool skus) {
    char chip[160];
    fit_processor(chip, sizeof chip);
    printf("%s: %s, %s, %.2f billion parameters, file %.3f GB\n", r->name, r->architecture, r->quantization,
           (double)r->n_params / 1e9, (double)r->file_bytes / GB);
    printf("this machine: %s, %d threads, %.2f GB of RAM, %.1f GB/s read\n", chip, r->threads, (double)limit_ram() / GB,
           bandwidth);
    printf("a context of %d, batch %d: %s\n", r->plan.context, r->plan.batch, r->fits ? "fits" : "does not fit");
    show_plan(r);
    printf("  largest context that fits: %d (the model's: %d), %zu bytes a token\n", r->context_safe,
           r->plan.context_max, r->kv_bytes_per_token);
    if (bandwidth > 0) printf("  decode: about %.1f tokens/s\n", fit_decode_tps(r, r->plan.context, bandwidth));
    if (!skus) return;
    printf("\n%-36s %8s %8s %8s %8s %9s %10s %8s\n", "other machines", "RAM GB", "GPU GB", "host GB", "dev. GB", "fits",
           "context", "tok/s");
    for (int i = 0; i < r->n_skus; i++) {
        const fit_sku *k = &r->sku[i];
        printf("%-36s %8.0f %8.0f %8.2f %8.2f %9s %10d ", k->name, k->ram_gb, k->device_gb, (double)k->host_bytes / GB,
               (double)k->device_bytes / GB, k->fits ? "yes" : "no", k->context_safe);
        if (k->fits)
            printf("%8.1f\n", k->decode_tps);
        else
            printf("%8s\n", "-");
    }
    printf("(at a context of %d, or the model's; speeds from data sheets' bandwidth)\n", r->sku_context);
}

int verb_fit(const options *o) {
    error err = {0};
    if (o->n_args != 1) {
        error_set(&err, ERR_USAGE, "fit takes one model");
        return cli_fail(&err);
    }
    char *path = cli_model_path(o, o->args[0], &err);
    engine_opts e;
    fit_report *r = mem_alloc(sizeof *r);
    bool ok = path && cli_engine_opts(o, path, false, &e, &err);
    if (ok) {
        e.context_length = (int)o->ctx;
        ok = engine_fit(&e, r, &err);
    }
    bool fits = ok && r->fits;
    if (ok) {
        int64_t when = 0;
        double bandwidth = fit_bandwidth(r->threads, MEASURE_BYTES, &when);
        buf b = {0};
        if (o->json) {
            fit_write(&b, r, bandwidth, when, NULL);
            printf("%s\n", b.p);
        } else {
            show(r, bandwidth, o->skus);
        }
        buf_free(&b);
    }
    if (ok && !fits) err = r->why;
    free(r);
    free(path);
    return fits ? 0 : cli_fail(&err);
}
