/* A model, device and text layer without weights, for tests of the scheduler: included by one test program, whose
 * definitions then stand in for those of libhearth.
 *
 * The "keys and values" of a position are its token. Each row of logits is a hash of the tokens that row may see, read
 * through the page tables of all groups, so a wrong page, a wrong position or a neighbour's row changes what comes out.
 */
#pragma once
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "../../src/engine/internal.h"

enum { FAKE_VOCAB = 64, FAKE_EOS = 63, FAKE_WINDOW = 100 };

/* What a test sets before opening, and reads while it runs. */
typedef struct fake_conf {
    int32_t context;
    int groups;         /* 1: full attention; 2: and a window of FAKE_WINDOW */
    size_t state_bytes; /* of recurrent state; the state is the running hash of all tokens */
    int rows_max, threads;
    int step_us;     /* each step takes so long */
    int row_us;      /* and each row so long */
    int32_t poison;  /* a sequence that holds this token gets NaN logits; -1: none */
    atomic_int fail; /* the next step fails */
    atomic_int steps, rows, rows_most, seqs_most;
    atomic_int discards;
    int32_t n_pages[KV_GROUPS]; /* seen by kv_new */
} fake_conf;
static fake_conf fake;

struct kv_cache {
    int groups;
    int32_t *token[KV_GROUPS]; /* owns: [n_pages, KV_PAGE] */
};
struct model {
    int unused;
};

static model_info fake_info;
static kv_spec fake_spec;
static const int32_t fake_eos_id = FAKE_EOS;
static kv_layer fake_layers[2];
struct state_store {
    uint64_t *hash; /* owns: [slots] */
};

model *model_open(checkpoint *c, device *d, const model_opts *o, error *err) {
    return mem_alloc(sizeof(model));
}
void model_close(model *m) {
    free(m);
}
const model_info *model_describe(const model *m) {
    return &fake_info;
}
const kv_spec *model_kv_spec(const model *m) {
    return &fake_spec;
}

static const state_spec fake_state_spec;
const state_spec *model_state_spec(const model *m) {
    return &fake_state_spec;
}

static uint64_t fake_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static void fake_row(const kv_cache *kv, const step_seq *q, int32_t pos, uint64_t state, float *logits) {
    uint64_t h = state;
    bool poisoned = false;
    for (int g = 0; g < kv->groups; g++) {
        int32_t from = fake_spec.window[g] ? MAX(0, pos - fake_spec.window[g] + 1) : 0;
        for (int32_t i = from; i <= pos; i++) {
            int32_t page = q->page[g][i / KV_PAGE];
            int32_t token = page < 0 ? -7 : kv->token[g][(size_t)page * KV_PAGE + (size_t)(i % KV_PAGE)];
            poisoned |= token == fake.poison;
            h = fake_mix(h, (uint64_t)(int64_t)token + (uint64_t)i * 1000003u);
        }
    }
    for (int32_t v = 0; v < FAKE_VOCAB; v++)
        logits[v] = poisoned ? __builtin_nanf("") : (float)(fake_mix(h, (uint64_t)v) >> 44) / 131072.0f;
}

bool model_forward(model *m, kv_cache *kv, step *s, tensor logits, error *err) {
    fake.steps++;
    fake.rows += s->n_rows;
    if (s->n_rows > fake.rows_most) fake.rows_most = s->n_rows;
    if (s->n_seqs > fake.seqs_most) fake.seqs_most = s->n_seqs;
    if (fake.step_us || fake.row_us) usleep((useconds_t)(fake.step_us + fake.row_us * s->n_rows));
    if (atomic_exchange(&fake.fail, 0)) return error_set(err, ERR_INTERNAL, "the fake device broke");
    int32_t out = 0;
    for (int b = 0; b < s->n_seqs; b++) {
        const step_seq *q = &s->seq[b];
        for (int32_t r = q->row0; r < q->row0 + q->n_rows; r++) {
            int32_t pos = s->pos[r];
            for (int g = 0; g < kv->groups; g++)
                kv->token[g][(size_t)q->page[g][pos / KV_PAGE] * KV_PAGE + (size_t)(pos % KV_PAGE)] = s->ids[r];
            uint64_t state = 0;
            if (q->slot >= 0) {
                uint64_t *hash = &s->state->hash[q->slot];
                if (pos == 0) *hash = 0;
                state = *hash = fake_mix(*hash, (uint64_t)s->ids[r]);
            }
            if (out < s->n_out && s->out[out] == r) fake_row(kv, q, pos, state, tensor_row(logits, out)), out++;
        }
    }
    return true;
}

static size_t fake_page_bytes(device *d, const kv_spec *spec, int group) {
    return KV_PAGE * sizeof(int32_t);
}
static kv_cache *fake_kv_new(device *d, const kv_spec *spec, error *err) {
    kv_cache *kv = mem_alloc(sizeof *kv);
    kv->groups = spec->n_groups;
    for (int g = 0; g < spec->n_groups; g++) {
        fake.n_pages[g] = spec->n_pages[g];
        kv->token[g] = mem_alloc((size_t)spec->n_pages[g] * KV_PAGE * sizeof(int32_t));
    }
    return kv;
}
static void fake_kv_free(device *d, kv_cache *kv) {
    for (int g = 0; g < kv->groups; g++) free(kv->token[g]);
    free(kv);
}
static void *fake_alloc(device *d, size_t n, error *err) {
    return mem_alloc(n);
}
static void fake_free(device *d, void *p, size_t n) {
    free(p);
}
static void fake_close(device *d) {
    pool_free(d->threads);
    free(d);
}
static void fake_kv_copy(device *d, kv_cache *kv, int group, int32_t to, int32_t from) {
    memcpy(kv->token[group] + (size_t)to * KV_PAGE, kv->token[group] + (size_t)from * KV_PAGE,
           KV_PAGE * sizeof(int32_t));
}
static void fake_kv_read(device *d, kv_cache *kv, int group, int32_t page, void *host) {
    memcpy(host, kv->token[group] + (size_t)page * KV_PAGE, KV_PAGE * sizeof(int32_t));
}
static void fake_kv_write(device *d, kv_cache *kv, int group, int32_t page, const void *host) {
    memcpy(kv->token[group] + (size_t)page * KV_PAGE, host, KV_PAGE * sizeof(int32_t));
}
static state_store *fake_state_new(device *d, const state_spec *spec, error *err) {
    state_store *st = mem_alloc(sizeof *st);
    st->hash = mem_alloc((size_t)spec->n_slots * sizeof *st->hash);
    return st;
}
static void fake_state_free(device *d, state_store *st) {
    free(st->hash);
    free(st);
}
static void fake_state_copy(device *d, state_store *st, int32_t to, int32_t from) {
    st->hash[to] = st->hash[from];
}
static void fake_kv_discard(device *d, kv_cache *kv, int group, int32_t page) {
    memset(kv->token[group] + (size_t)page * KV_PAGE, 0x55, KV_PAGE * sizeof(int32_t));
    fake.discards++;
}
static void fake_state_discard(device *d, state_store *st, int32_t slot) {
    st->hash[slot] = 0x5555;
    fake.discards++;
}
static void fake_state_read(device *d, state_store *st, int32_t slot, void *host) {
    memcpy(host, &st->hash[slot], sizeof *st->hash);
}
static void fake_state_write(device *d, state_store *st, int32_t slot, const void *host) {
    memcpy(&st->hash[slot], host, sizeof *st->hash);
}
static uint64_t fake_kv_saturated(device *d, const kv_cache *kv) {
    return 0;
}
static const device_vtable fake_vt = {.name = "fake",
                                      .close = fake_close,
                                      .alloc = fake_alloc,
                                      .free = fake_free,
                                      .kv_new = fake_kv_new,
                                      .kv_free = fake_kv_free,
                                      .kv_saturated = fake_kv_saturated,
                                      .state_new = fake_state_new,
                                      .state_free = fake_state_free,
                                      .kv_copy = fake_kv_copy,
                                      .kv_discard = fake_kv_discard,
                                      .state_discard = fake_state_discard,
                                      .kv_read = fake_kv_read,
                                      .kv_write = fake_kv_write,
                                      .state_copy = fake_state_copy,
                                      .state_read = fake_state_read,
                                      .state_write = fake_state_write,
                                      .kv_page_bytes = fake_page_bytes};

/* The neutral configuration; a test changes what it is about. */
static void fake_reset(void) {
    memset(&fake, 0, sizeof fake);
    fake.context = 2048;
    fake.groups = 1;
    fake.rows_max = 72;
    fake.threads = 2;
    fake.poison = -1;
}

static engine_opts fake_opts(void) {
    return (engine_opts){.model_id = "fake",
                         .batch = 4,
                         .queue_max = 64,
                         .prefill_chunk = 64,
                         .memory_budget = 1u << 30,
                         .prompt_cache = -1};
}

static engine *fake_open(const engine_opts *o, error *err) {
    fake_info = (model_info){.family = "fake",
                             .vocab = FAKE_VOCAB,
                             .context_max = fake.context,
                             .state_bytes = fake.state_bytes,
                             .eos = &fake_eos_id,
                             .n_eos = 1};
    fake_spec =
        (kv_spec){.n_layers = fake.groups, .n_groups = fake.groups, .layer = fake_layers, .window = {0, FAKE_WINDOW}};
    device *d = mem_alloc(sizeof *d);
    d->vt = &fake_vt;
    d->rows_max = fake.rows_max;
    d->threads = fake.threads > 1 ? pool_new(fake.threads) : NULL;
    engine_parts parts = {.device = d, .model = mem_alloc(sizeof(model))};
    return engine_start(&parts, o, err);
}

/* What an engine with these options needs beside pages: for budgets that hold so many and no more. */
static size_t fake_fixed(engine_opts o) {
    error err = {0};
    o.memory_budget = 1u << 30;
    engine *e = fake_open(&o, &err);
    const memory_plan *p = engine_plan(e);
    size_t n = p->need_bytes - p->part[PLAN_KV];
    engine_close(e);
    return n;
}

/* ---- text: token v is one letter; a stop string of one letter ends ----------------------------------------------- */
struct output {
    char stop[8];
    char letter;
    output_event ev;
};
output *output_new(const tokenizer *t, const output_opts *o) {
    output *out = mem_alloc(sizeof *out);
    for (size_t i = 0; i < o->n_stops && i < 7; i++) out->stop[i] = o->stops[i].p[0];
    return out;
}
void output_free(output *o) {
    free(o);
}
size_t output_push(output *o, int32_t id, const output_event **ev, int *stopped) {
    *stopped = -1;
    o->letter = (char)('0' + id);
    for (int i = 0; o->stop[i]; i++)
        if (o->stop[i] == o->letter) {
            *stopped = i;
            return 0;
        }
    o->ev = (output_event){.kind = OUTPUT_CONTENT, .text = {&o->letter, 1}};
    *ev = &o->ev;
    return 1;
}
size_t output_finish(output *o, const output_event **ev) {
    return 0;
}
int32_t output_forced(const output *o) {
    return -1;
}
output_phase output_phase_of(const output *o) {
    return OUTPUT_ANSWERS;
}
void tokenizer_free(tokenizer *t) {}
int32_t tokenizer_size(const tokenizer *t) {
    return FAKE_VOCAB;
}
int32_t tokenizer_id(const tokenizer *t, str token) {
    return -1;
}
int32_t tokenizer_eos(const tokenizer *t) {
    return FAKE_EOS;
}
void chat_template_free(chat_template *t) {}
