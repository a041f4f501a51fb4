/* Tokenizers: the first byte says what the rest is: a tokenizer.json, a SentencePiece model, a tekken.json, a text,
 * ids, or a reply. Nothing crashes; a byte-level tokenizer gives the text back; streamed text is the whole text in
 * whole characters; a reply does not depend on its cut. */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/text/tokenizer.h"

static tokenizer *json_tokenizer(str text, tokenizer *(*open)(const json *, error *)) {
    arena *a = arena_new(0);
    const json *j = json_read(a, text, NULL, NULL);
    tokenizer *t = j ? open(j, NULL) : NULL;
    arena_free(a);
    return t;
}

static tokenizer *plain_json(const json *j, error *err) {
    return tokenizer_from_json(j, NULL, err);
}

/* [0] byte level, [1] SentencePiece-like BPE, [2] WordPiece behind BertNormalizer, [3] every normal form */
static tokenizer *fixed(int which) {
    static tokenizer *t[4];
    static const char *const source[] = {
        NULL,
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<"
        "unk>\":0,\"\u2581\":1,\"a\":2,"
        "\"b\":3,\"\u2581a\":4,\"<0xC3>\":5,\"<0xA9>\":6},\"merges\":[\"\u2581 "
        "a\"]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
        "{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
        "\"},\"content\":\"\u2581\"}]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
        "\"content\":\" \"},"
        "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
        "\",\"start\":1,\"stop\":1}]},"
        "\"added_tokens\":[{\"content\":\"<s>\",\"special\":true,\"lstrip\":true,\"rstrip\":true}]}",
        "{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"##a\":2,\"##b\":3,"
        "\"b\":4,\".\":5,\"'\":6,\"s\":7}},"
        "\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"decoder\":{"
        "\"type\":\"WordPiece\"},"
        "\"added_tokens\":[{\"content\":\"ab\",\"normalized\":true,\"single_word\":true}]}",
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"\u2581\",-1],[\"a\",-2],["
        "\"\u2581a\",-2.5]]},"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"NFKC\"},{\"type\":"
        "\"Lowercase\"},{\"type\":\"NFC\"},"
        "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\s{2,}|[^\\\\w&&[^b]]x*\"},\"content\":\" \"}]},"
        "\"pre_tokenizer\":{\"type\":\"Metaspace\"},\"decoder\":{\"type\":\"Metaspace\"}}",
    };
    if (t[which]) return t[which];
    buf b = {0};
    if (which == 0) {
        buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
        for (int i = 0; i < 256; i++) {
            char c[4];
            if (i) buf_putc(&b, ',');
            json_write_string(&b, (str){c, utf8_put(c, byte_point[i])});
            buf_printf(&b, ":%d", i);
        }
        buf_puts(&b, "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
                     "\"ByteLevel\"},"
                     "\"added_tokens\":[{\"content\":\"<|im_end|>\",\"special\":true},{\"content\":\"<think>\"},{"
                     "\"content\":\"  \"}]}");
    } else {
        buf_puts(&b, source[which]);
    }
    t[which] = json_tokenizer(buf_view(&b), plain_json);
    if (!t[which]) abort();
    buf_free(&b);
    return t[which];
}

static void decode_both(const tokenizer *t, const int32_t *id, size_t n, bool skip, buf *whole) {
    buf parts = {0};
    tokenizer_decode(t, id, n, skip, whole);
    detok *d = detok_new(t, skip);
    for (size_t i = 0; i < n; i++) {
        size_t from = parts.n;
        detok_push(d, id[i], &parts);
        if (parts.n > from && utf8_valid((str){parts.p + from, parts.n - from}) != parts.n - from) abort();
    }
    detok_finish(d, &parts);
    detok_free(d);
    if (!str_eq(buf_view(whole), buf_view(&parts))) abort();
    buf_free(&parts);
}

static void text_run(const tokenizer *t, str text, const uint8_t *user, bool exact) {
    ids v = {0};
    buf whole = {0};
    if (tokenizer_encode_marked(t, text, user, ENCODE_SPECIAL, &v, NULL)) {
        for (size_t i = 0; i < v.n; i++)
            if (v.p[i] < 0 || v.p[i] >= tokenizer_size(t)) abort();
        decode_both(t, v.p, v.n, false, &whole);
        if (exact && !str_eq(buf_view(&whole), text)) abort();
    }
    ids_free(&v);
    buf_free(&whole);
}

static void every_text(str raw) {
    buf text = {0}, user = {0};
    utf8_lossy(raw, &text);
    for (size_t i = 0; i < text.n; i++) buf_putc(&user, (char)(raw.p[i % raw.n] & 1));
    for (int i = 0; i < 4 && text.n; i++) {
        text_run(fixed(i), buf_view(&text), NULL, i == 0);
        text_run(fixed(i), buf_view(&text), (uint8_t *)user.p, i == 0);
    }
    buf_free(&text), buf_free(&user);
}

static void every_ids(str raw) {
    int32_t *id = malloc((raw.n + 1) * sizeof *id);
    for (int i = 0; i < 4; i++) {
        buf whole = {0};
        for (size_t k = 0; k < raw.n; k++)
            id[k] = i == 0 ? (uint8_t)raw.p[k] : (uint8_t)raw.p[k] % (tokenizer_size(fixed(i)) + 1);
        decode_both(fixed(i), id, raw.n, raw.n & 1, &whole);
        buf_free(&whole);
    }
    free(id);
}

/* Stops are lines at the start, the reply is the rest; pushed bytewise and through the byte fallback's tokens. */
static void reply_run(str raw) {
    str stop[4];
    buf text[4] = {0}; /* the engine refuses stop strings that are not UTF-8 */
    size_t n = 0;
    const char *line;
    while (n < 4 && (line = memchr(raw.p, '\n', raw.n))) {
        size_t length = (size_t)(line - raw.p);
        utf8_lossy((str){raw.p, length}, &text[n]);
        stop[n] = buf_view(&text[n]);
        raw = str_slice(raw, length + 1, raw.n);
        n++;
    }
    output_opts o = {
        .stops = stop, .n_stops = n, .split_thinking = n & 1, .prompt_tail = n & 2 ? STR("<think>\n") : STR("")};
    output *out = output_new(fixed(0), &o);
    const output_event *ev;
    int stopped = OUTPUT_GOES_ON;
    for (size_t i = 0; i <= raw.n; i++) {
        bool before = stopped >= 0;
        size_t count = i < raw.n ? output_push(out, (uint8_t)raw.p[i], &ev, &stopped) : output_finish(out, &ev);
        if (before && count) abort();
        for (size_t k = 0; k < count; k++)
            if (!ev[k].text.n || utf8_valid(ev[k].text) != ev[k].text.n) abort();
    }
    output_free(out);
    for (size_t i = 0; i < n; i++) buf_free(&text[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < 2) return 0;
    str rest = {(const char *)data + 1, n - 1};
    tokenizer *t = NULL;
    switch (data[0] % 6) {
    case 0: t = json_tokenizer(rest, plain_json); break;
    case 1: t = tokenizer_from_sentencepiece(rest, NULL); break;
    case 2: t = json_tokenizer(rest, tokenizer_from_tekken); break;
    case 3: every_text(rest); break;
    case 4: every_ids(rest); break;
    default: reply_run(rest); break;
    }
    if (t) text_run(t, STR("Ab  a\xCC\x81 \xF0\x9F\x98\x80\r\n<s>12x's"), NULL, false);
    tokenizer_free(t);
    return 0;
}
