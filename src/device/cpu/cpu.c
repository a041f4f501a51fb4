/* The CPU device: opening it, choosing the instruction level, sharing rows out to the pool, rope angles.
 * Not here: the operations (vec_body.h, attend_body.h, linear_*.c), the cache (kv.c). See docs/devices.md. */
#include <cpuid.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "internal.h"
#include "linear.h"

static const char *const level_names[] = {
    [CPU_REF] = "ref", [CPU_AVX2] = "avx2", [CPU_AVX512] = "avx512", [CPU_AMX] = "amx"};

/* ---- instruction level ---- */
static uint64_t xgetbv0(void) {
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

/* The best level both the processor and the operating system (saved registers, XCR0) offer. */
static cpu_level level_best(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return CPU_REF;
    enum { FMA = 1 << 12, OSXSAVE = 1 << 27, AVX = 1 << 28, F16C = 1 << 29 };
    uint32_t need = FMA | OSXSAVE | AVX | F16C;
    if ((c & need) != need || (xgetbv0() & 0x6) != 0x6) return CPU_REF;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1 << 5)) return CPU_REF;
    uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, vnni = 1u << 11;
    if ((b & f_dq_bw_vl) != f_dq_bw_vl || !(c & vnni) || (xgetbv0() & 0xe6) != 0xe6) return CPU_AVX2;
    return CPU_AVX512;
}

static bool level_choose(const char *want, cpu_level *out, error *err) {
    cpu_level best = level_best();
    const char *from = "level";
    if (!want) {
        want = getenv("HEARTH_CPU");
        from = "HEARTH_CPU";
    }
    *out = best;
    if (!want || !*want) return true;
    for (size_t i = 0; i < COUNT(level_names); i++) {
        if (strcmp(want, level_names[i]) != 0) continue;
        *out = MIN((cpu_level)i, best);
        return true;
    }
    return error_set(err, ERR_INVALID, "%s=%s: ref, avx2, avx512 or amx", from, want);
}

const char *device_cpu_level(const device *d) {
    return level_names[((const cpu_device *)d)->level];
}

/* ---- rows ---- */
enum { ROWS_INLINE = 32768 /* additions: some 5 µs, what a fork and join costs */ };

typedef struct rows_job {
    cpu_rows_fn *fn;
    const void *job;
    int64_t n;
    int tasks;
} rows_job;

static void rows_task(void *arg, int task, int worker) {
    const rows_job *j = arg;
    j->fn(j->job, j->n * task / j->tasks, j->n * (task + 1) / j->tasks);
}

void cpu_rows_run(device *d, int64_t n, int64_t cost, cpu_rows_fn *fn, const void *job) {
    int64_t tasks = MIN(n, 4 * (int64_t)pool_size(d->threads));
    if (n * cost < ROWS_INLINE || tasks < 2) {
        fn(job, 0, n);
        return;
    }
    rows_job j = {fn, job, n, (int)tasks};
    pool_run(d->threads, (int)tasks, rows_task, &j);
}

/* ---- rope angles ----
 * The angle is formed and reduced in double, so that it is right at any position; cos and sin are double polynomials of
 * our own (libm's differ between processors) on ±π/4: the Taylor series, whose last terms are below 1e-12. */
static void sincos_of(double x, double *s, double *c) {
    double n = rint(x * 0x1.45f306dc9c883p-1); /* 2/π */
    double r = fma(-n, 0x1.921fb54442d18p+0, x);
    r = fma(-n, 0x1.1a62633145c07p-54, r); /* π/2 in two parts */
    double z = r * r;
    double ps = fma(z,
                    fma(z,
                        fma(z, fma(z, fma(z, 1.6059043836821613e-10, -2.505210838544172e-08), 2.7557319223985893e-06),
                            -1.984126984126984e-04),
                        8.333333333333333e-03),
                    -1.6666666666666666e-01);
    double pc = fma(z,
                    fma(z,
                        fma(z, fma(z, fma(z, 2.08767569878681e-09, -2.755731922398589e-07), 2.48015873015873e-05),
                            -1.388888888888889e-03),
                        4.1666666666666664e-02),
                    -0.5);
    double sn = fma(z * r, ps, r), cs = fma(z, pc, 1.0);
    switch ((int64_t)n & 3) {
    case 0: *s = sn, *c = cs; break;
    case 1: *s = cs, *c = -sn; break;
    case 2: *s = -sn, *c = -cs; break;
    default: *s = -cs, *c = sn;
    }
}

typedef struct angle_job {
    const int32_t *pos;
    const rope_table *r;
    float *out;
} angle_job;

static void angle_rows(const void *arg, int64_t from, int64_t to) {
    const angle_job *j = arg;
    const rope_table *r = j->r;
    int n = r->interleaved ? 2 * r->n_freq : r->n_freq;
    for (int64_t t = from; t < to; t++) {
        float *c = j->out + t * 2 * n, *s = c + n;
        for (int i = 0; i < r->n_freq; i++) {
            double si, co;
            sincos_of((double)j->pos[t] * (double)r->freq[i], &si, &co);
            float fs = (float)(si * r->scale), fc = (float)(co * r->scale);
            if (r->interleaved) {
                c[2 * i] = c[2 * i + 1] = fc;
                s[2 * i] = -fs;
                s[2 * i + 1] = fs;
            } else {
                c[i] = fc;
                s[i] = fs;
            }
        }
    }
}

static bool rope_same(const rope_cache *e, const int32_t *pos, int n, const rope_table *r) {
    return e->n_rows == n && e->n_freq == r->n_freq && e->interleaved == r->interleaved && e->scale == r->scale &&
           memcmp(e->pos, pos, sizeof *pos * (size_t)n) == 0 &&
           memcmp(e->freq, r->freq, sizeof *r->freq * (size_t)r->n_freq) == 0;
}

int rope_angles(device *d, const int32_t *pos, int n, const rope_table *r, const float **cos_sin) {
    cpu_device *c = (cpu_device *)d;
    n = MIN(n, d->rows_max);
    for (int i = 0; i < ROPE_TABLES; i++)
        if (rope_same(&c->rope[i], pos, n, r)) return *cos_sin = c->rope[i].cos_sin, n;
    rope_cache *e = &c->rope[c->rope_next];
    c->rope_next = (c->rope_next + 1) % ROPE_TABLES;
    e->n_rows = n;
    e->n_freq = r->n_freq;
    e->interleaved = r->interleaved;
    e->scale = r->scale;
    memcpy(e->pos, pos, sizeof *pos * (size_t)n);
    memcpy(e->freq, r->freq, sizeof *r->freq * (size_t)r->n_freq);
    angle_job j = {pos, r, e->cos_sin};
    cpu_rows_run(d, n, 32 * (int64_t)r->n_freq, angle_rows, &j);
    *cos_sin = e->cos_sin;
    return n;
}

static bool rope_init(cpu_device *c, error *err) {
    size_t rows = (size_t)c->base.rows_max, floats = rows * (1 + 4 * ROPE_FREQ_MAX);
    c->rope_bytes = ROPE_TABLES * floats * sizeof(float); /* address space; touched as far as used */
    float *p = c->rope_mem = mem_try(c->rope_bytes, 64, err);
    if (!p) return false;
    madvise(p, c->rope_bytes, MADV_NOHUGEPAGE); /* 2 MiB pages would make what is touched four times that */
    for (int i = 0; i < ROPE_TABLES; i++, p += floats) {
        c->rope[i].pos = (void *)p;
        c->rope[i].cos_sin = p + rows;
    }
    return true;
}

/* ---- the device ---- */
/* Angles are kept for ROPE_TABLES steps; a table has at most half as many frequencies as the widest key has columns. */
static size_t cpu_work_bytes(device *d, const kv_spec *spec, int32_t context) {
    int32_t widest = 0;
    for (int i = 0; i < spec->n_layers; i++) widest = MAX(widest, spec->layer[i].k_width);
    size_t angles = sizeof(int32_t) + 4 * (size_t)MIN(widest / 2, ROPE_FREQ_MAX) * sizeof(float);
    size_t rows = (size_t)d->rows_max;
    return lin_scratch_planned((cpu_device *)d) + ROPE_TABLES * rows * angles +
           rows * EXPERTS_ACTIVE_MAX * sizeof(int32_t) + cpu_kv_work_bytes(d, spec, context);
}

static void *cpu_alloc(device *d, size_t bytes, error *err) {
    return mem_try(bytes, 64, err);
}
static void cpu_free(device *d, void *p, size_t bytes) {
    mem_try_free(p, bytes);
}
static void cpu_step_begin(device *d, step *s) {} /* the host's tables are the device's */
static void cpu_step_end(device *d) {}

static void cpu_close(device *d) {
    cpu_device *c = (cpu_device *)d;
    pool_free(d->threads);
    mem_try_free(c->rope_mem, c->rope_bytes);
    mem_try_free(c->scratch, c->scratch_bytes);
    mem_try_free(c->expert_order, c->expert_order_bytes);
    free(c);
}

static const device_vtable cpu_vtable = {
    .name = "cpu",
    .close = cpu_close,
    .pack = cpu_pack,
    .unpack = cpu_unpack,
    .packed_bytes = cpu_packed_bytes,
    .work_bytes = cpu_work_bytes,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_copy = cpu_kv_copy,
    .kv_read = cpu_kv_read,
    .kv_write = cpu_kv_write,
    .kv_discard = cpu_kv_discard,
    .kv_saturated = cpu_kv_saturated,
    .state_new = cpu_state_new,
    .state_free = cpu_state_free,
    .state_bytes = cpu_state_bytes,
    .state_zero = cpu_state_zero,
    .state_copy = cpu_state_copy,
    .state_discard = cpu_state_discard,
    .state_read = cpu_state_read,
    .state_write = cpu_state_write,
    .step_begin = cpu_step_begin,
    .step_end = cpu_step_end,
};

static const struct {
    cpu_level level;
    void (*vec)(device_ops *), (*linear)(device_ops *);
} installers[] = {{CPU_REF, cpu_vec_install_ref, cpu_linear_install_ref},
                  {CPU_AVX2, cpu_vec_install_avx2, cpu_linear_install_avx2},
                  {CPU_AVX512, cpu_vec_install_avx512, cpu_linear_install_avx512}};

device *device_cpu_open(const device_opts *o, error *err) {
    cpu_level level;
    if (!level_choose(o->level, &level, err)) return NULL;
    cpu_device *c = mem_alloc(sizeof *c);
    device *d = &c->base;
    c->level = level;
    d->vt = &cpu_vtable;
    d->op = &c->table;
    d->num = o->num;
    d->rows_max = o->rows_max > 0 ? o->rows_max : 512;
    for (size_t i = 0; i < COUNT(installers); i++) {
        if (installers[i].level > level) break;
        installers[i].vec(&c->table);
        installers[i].linear(&c->table);
    }
    d->threads = pool_new(o->threads);
    c->expert_order_bytes = (size_t)d->rows_max * EXPERTS_ACTIVE_MAX * sizeof *c->expert_order;
    c->expert_order = mem_try(c->expert_order_bytes, 64, err);
    if (c->expert_order && rope_init(c, err)) return d;
    cpu_close(d);
    return NULL;
}
