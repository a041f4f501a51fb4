/* A tokenizer behind a pipe, for test_tokenizers.py: opens the file named by argv[1], then answers requests on stdin.
 * Request: u8 op, u32 n, payload. 'e'/'E'/'p': encode n bytes with special tokens / with post-processor, too / plain;
 * reply u32 count and ids. 'd'/'s': decode n ids keeping / skipping special tokens; reply u32 length and text. 'i': as
 * 'd' through the streaming detokeniser, checking that each part is whole characters. A failure replies 0xFFFFFFFF, u32
 * length and the message. */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/format/format.h"
#include "../../src/text/text.h"
#include "../../src/text/tokenizer.h"

static void put(const void *p, size_t n) {
    fwrite(p, 1, n, stdout);
}

static void put_u32(uint32_t v) {
    put(&v, 4);
}

static int failed(const error *err) {
    put_u32(UINT32_MAX);
    put_u32((uint32_t)strlen(err->msg));
    put(err->msg, strlen(err->msg));
    return 0;
}

static tokenizer *open_any(const char *path, error *err) {
    str p = str_of(path);
    buf file = {0};
    tokenizer *t = NULL;
    if (str_ends(p, STR(".gguf"))) {
        checkpoint *c = checkpoint_open(path, err);
        t = c ? tokenizer_open(c, err) : NULL;
        checkpoint_close(c);
    } else if (file_read(&file, path, 1 << 30, err)) {
        arena *a = arena_new(0);
        const json *j = str_ends(p, STR(".json"))
                            ? json_read(a, buf_view(&file), &(json_limits){.memory_max = 1u << 30}, err)
                            : NULL;
        if (j)
            t = json_get(j, "config") && json_get(j, "vocab") ? tokenizer_from_tekken(j, err)
                                                              : tokenizer_from_json(j, NULL, err);
        else if (!str_ends(p, STR(".json")))
            t = tokenizer_from_sentencepiece(buf_view(&file), err);
        arena_free(a);
    }
    buf_free(&file);
    return t;
}

static void encode(const tokenizer *t, char op, str text) {
    static const char ops[] = "eEp";
    static const unsigned flags[] = {ENCODE_SPECIAL, ENCODE_SPECIAL | ENCODE_ADD_SPECIAL, 0};
    ids out = {0};
    error err = {0};
    if (!tokenizer_encode(t, text, flags[strchr(ops, op) - ops], &out, &err))
        failed(&err);
    else
        put_u32((uint32_t)out.n), put(out.p, out.n * sizeof *out.p);
    ids_free(&out);
}

static void stream(const tokenizer *t, const int32_t *id, size_t n, buf *out) {
    detok *d = detok_new(t, false);
    for (size_t i = 0; i < n; i++) {
        size_t from = out->n;
        detok_push(d, id[i], out);
        if (utf8_valid((str){out->p + from, out->n - from}) != out->n - from) buf_puts(out, "<<half a character>>");
    }
    detok_finish(d, out);
    detok_free(d);
}

int main(int argc, char **argv) {
    error err = {0};
    uint64_t start = clock_ns();
    tokenizer *t = open_any(argc > 1 ? argv[1] : "", &err);
    if (!t) return fprintf(stderr, "%s\n", err.msg), 1;
    fprintf(stderr, "%s: %d ids, loaded in %.1f ms\n", argv[1], tokenizer_size(t), (double)(clock_ns() - start) / 1e6);
    for (char op; fread(&op, 1, 1, stdin) == 1;) {
        uint32_t n;
        buf in = {0}, out = {0};
        if (fread(&n, 4, 1, stdin) != 1) break;
        buf_reserve(&in, n + 1);
        if (fread(in.p, 1, n, stdin) != n) break;
        in.n = n;
        if (strchr("eEp", op)) {
            encode(t, op, buf_view(&in));
        } else {
            if (op == 'i')
                stream(t, (const int32_t *)in.p, n / 4, &out);
            else
                tokenizer_decode(t, (const int32_t *)in.p, n / 4, op == 's', &out);
            put_u32((uint32_t)out.n);
            put(out.p, out.n);
        }
        buf_free(&in), buf_free(&out);
        fflush(stdout);
    }
    tokenizer_free(t);
    return 0;
}
