/* A whole model with one hostile part: the first byte says which file the rest replaces, everything else is a tiny
 * model's own. What opens renders a chat, tokenizes and generates; what does not open says why. Headers of weight files
 * are replaced alone: the data follows as it was, so that inputs close to the original get as far as running. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../src/engine/engine.h"
#include "../../src/text/unicode.h"

#define HF   "tests/data/models/llama-q4"
#define GGUF "tests/data/models/llama_plain-bf16.gguf"

static const char *const files[] = {"config.json",         "tokenizer.json",         "tokenizer_config.json",
                                    "chat_template.jinja", "generation_config.json", "model.safetensors"};
enum { N_FILES = COUNT(files), SAFETENSORS = N_FILES - 1, GGUF_HEAD, N_PARTS, GGUF_DATA = 9088 };
static buf original[N_PARTS];
static char dir[] = "/dev/shm/hearth-load-XXXXXX", gguf[64];

static char *place(const char *name) {
    return path_join(dir, name);
}

static void put(const char *path, const void *p, size_t n, const void *more, size_t n_more) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fwrite(more, 1, n_more, f) != n_more || fclose(f)) abort();
}

static void tidy(void) {
    for (size_t i = 0; i < N_FILES; i++) {
        char *path = place(files[i]);
        unlink(path);
        free(path);
    }
    unlink(gguf);
    rmdir(dir);
}

static void prepare(void) {
    log_set_level(LOG_ERROR);
    if (!mkdtemp(dir) || atexit(tidy)) abort();
    snprintf(gguf, sizeof gguf, "%s/m.gguf", dir);
    for (size_t i = 0; i < N_FILES; i++) {
        char *from = path_join(HF, files[i]), *to = place(files[i]);
        if (!file_read(&original[i], from, SIZE_MAX, NULL)) abort();
        put(to, original[i].p, original[i].n, "", 0);
        free(from);
        free(to);
    }
    if (!file_read(&original[GGUF_HEAD], GGUF, SIZE_MAX, NULL)) abort();
}

/* Where the data of a weight file begins. */
static size_t data_at(size_t part) {
    uint64_t header;
    memcpy(&header, original[part].p, 8);
    return part == SAFETENSORS ? 8 + (size_t)header : GGUF_DATA;
}

static void replace(size_t part, const uint8_t *p, size_t n) {
    const buf *o = &original[part];
    if (part == GGUF_HEAD) {
        buf head = {0};
        buf_add(&head, p, n);
        while (head.n % 32) buf_putc(&head, 0);
        put(gguf, head.p, head.n, o->p + data_at(part), o->n - data_at(part));
        buf_free(&head);
        return;
    }
    char *to = place(files[part]);
    uint64_t header = n;
    if (part == SAFETENSORS) {
        buf head = {0};
        buf_add(&head, &header, 8);
        buf_add(&head, p, n);
        put(to, head.p, head.n, o->p + data_at(part), o->n - data_at(part));
        buf_free(&head);
    } else {
        put(to, p, n, "", 0);
    }
    free(to);
}

static void restore(size_t part) {
    if (part == GGUF_HEAD) return;
    char *to = place(files[part]);
    put(to, original[part].p, original[part].n, "", 0);
    free(to);
}

static void generate(engine *e, const ids *prompt) {
    int32_t granted;
    bool clamped;
    error err = {0};
    if (!engine_clamp(e, prompt->n, 4, true, &granted, &clamped, &err)) return;
    gen_opts o = {.prompt = prompt->p,
                  .n_prompt = prompt->n,
                  .max_tokens = granted,
                  .ignore_eos = true,
                  .want_tokens = true,
                  .logprobs = true,
                  .top_logprobs = 20,
                  .sample = {.temperature = 1, .top_p = 0.9f}};
    gen *g = engine_submit(e, &o, &err);
    if (!g) {
        if (!err.code || !err.msg[0]) abort();
        return;
    }
    gen_event ev = {0};
    int tokens = 0;
    while (ev.kind != GEN_DONE) {
        if (!gen_next(g, &ev, 9000)) abort();
        if (ev.kind == GEN_TEXT && utf8_valid(ev.text) != ev.text.n) abort();
        tokens += ev.kind == GEN_TOKEN;
        for (int i = 0; ev.kind == GEN_TOKEN && i < ev.n_top; i++) {
            buf raw = {0};
            if (ev.top[i].id < 0 || ev.top[i].id >= engine_model(e)->vocab) abort();
            tokenizer_decode(engine_tokenizer(e), &ev.top[i].id, 1, false, &raw);
            buf_free(&raw);
        }
    }
    if (ev.why == FINISH_LENGTH && tokens != granted) abort();
    if (ev.why == FINISH_ERROR && !ev.err.msg[0]) abort();
    gen_free(g);
}

static void use(engine *e) {
    static const char chat[] =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi <|im_end|> "
        "\\u00e9\\ud83d\\ude00 "
        "12\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":\"a\"}]";
    arena *a = arena_new(0);
    render_opts o = {.messages = json_read(a, STR(chat), NULL, NULL), .add_generation_prompt = true, .now_unix = 1};
    buf text = {0}, user = {0};
    ids id = {0};
    const chat_template *t = engine_template(e);
    if (!t || !chat_template_render(t, &o, &text, &user, NULL)) buf_puts(&text, "plain \xc3\xa9 text");
    if (text.n > 4000) text.n = 0;
    if (tokenizer_encode_marked(engine_tokenizer(e), buf_view(&text), user.n == text.n ? (const uint8_t *)user.p : NULL,
                                ENCODE_SPECIAL, &id, NULL))
        generate(e, &id);
    ids_free(&id);
    buf_free(&text);
    buf_free(&user);
    arena_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (!original[0].n) prepare();
    if (!n) return 0;
    size_t part = data[0] % N_PARTS;
    replace(part, data + 1, n - 1);
    error err = {0};
    engine *e = engine_open(&(engine_opts){.model_path = part == GGUF_HEAD ? gguf : dir,
                                           .device.threads = 1,
                                           .batch = 2,
                                           .prefill_chunk = 16,
                                           .memory_budget = (size_t)256 << 20},
                            &err);
    if (e)
        use(e);
    else if (!err.code || !err.msg[0])
        abort();
    engine_close(e);
    restore(part);
    return 0;
}
