/* A byte-level tokenizer for tests: id of byte b is its place in the byte alphabet, some merges, tokens that are given.
 */
#pragma once
#include "../../src/text/tokenizer.h"

static inline tokenizer *tokenizer_of(const char *text, error *err) {
    arena *a = arena_new(0);
    const json *j = json_read(a, str_of(text), NULL, err);
    tokenizer *t = j ? tokenizer_from_json(j, NULL, err) : NULL;
    arena_free(a);
    return t;
}

/* Vocabulary: the 256 bytes (ids 0..255), then `extra` spellings (byte-level), then added tokens as JSON text. */
static inline tokenizer *tokenizer_bytes_with(const char *const *extra, size_t n_extra, const char *added_json) {
    buf b = {0};
    buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        char c[4];
        if (i) buf_putc(&b, ',');
        json_write_string(&b, (str){c, utf8_put(c, byte_point[i])});
        buf_printf(&b, ":%d", i);
    }
    for (size_t i = 0; i < n_extra; i++) {
        buf_putc(&b, ',');
        json_write_string(&b, str_of(extra[i]));
        buf_printf(&b, ":%zu", 256 + i);
    }
    buf_printf(&b,
               "}},\"added_tokens\":[%s],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
               "\"decoder\":{\"type\":\"ByteLevel\"}}",
               added_json ? added_json : "");
    error err = {0};
    tokenizer *t = tokenizer_of(b.p, &err);
    if (!t) fail_msg("%s", err.msg);
    buf_free(&b);
    return t;
}
