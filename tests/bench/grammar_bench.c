/* How long grammars take: compiling, and the mask of every token of replies, over a vocabulary of real size.
 * grammar_bench [VOCAB [FIELD=CASES]]: VOCAB holds one token a line as hexadecimal bytes (tools/vocab_hex.py); without,
 * 150,000 tokens are made up. Times are of the mask alone; a reply is fed by the longest tokens that fit it. */
#include <stdio.h>
#include <stdlib.h>
#include "../../src/text/grammar.h"

enum { MADE_UP = 150000, TIMES_MAX = 1 << 16 };
static uint64_t rng = 7;
static uint32_t draw(uint32_t n) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}
typedef struct words {
    str *token;
    int32_t n;
    map *id;
    size_t longest;
} words;
static void word_add(words *w, str s) {
    uint64_t seen;
    if (map_get(w->id, s, &seen)) return;
    w->token = mem_resize(w->token, (size_t)(w->n + 1) * sizeof *w->token);
    w->token[w->n] = (str){mem_strndup(s.p, s.n), s.n};
    map_set(w->id, s, (uint64_t)w->n++);
    w->longest = MAX(w->longest, s.n);
}
/* Pieces of syllables, numbers, indentation, code and other scripts, in about the shares of real vocabularies. */
static void words_make(words *w) {
    static const char *const syllable[] = {"a",  "be", "con", "de", "er", "ing",  "tion", "s",
                                           "re", "st", "th",  "un", "ly", "ment", "or",   "is"};
    static const char *const code[] = {"\"", "\",\"", "\":", "\"}", "{\"", "\\n",  "\n", "\n\n", "\t",
                                       "(",  ");",    "</",  "=\"", "']",  "\\\"", "//", "  ",   "    "};
    char one;
    for (int b = 1; b < 256; b++) one = (char)b, word_add(w, (str){&one, 1});
    while (w->n < MADE_UP) {
        buf t = {0};
        uint32_t kind = draw(100);
        if (draw(2) && kind < 70) buf_putc(&t, ' ');
        if (kind < 70)
            for (uint32_t k = 2 + draw(4); k; k--) buf_puts(&t, syllable[draw(COUNT(syllable))]);
        else if (kind < 80)
            for (uint32_t k = 1 + draw(4); k; k--) buf_puts(&t, code[draw(COUNT(code))]);
        else if (kind < 90) {
            char c[4];
            for (uint32_t k = 1 + draw(3); k; k--) buf_add(&t, c, utf8_put(c, 0x4E00 + draw(0x5000)));
        } else {
            for (uint32_t k = 1 + draw(12); k; k--) buf_putc(&t, (char)('a' + draw(26)));
            if (draw(3) == 0) buf_puts(&t, code[draw(COUNT(code))]);
        }
        word_add(w, buf_view(&t));
        buf_free(&t);
    }
}
static void words_read(words *w, const char *path) {
    buf file = {0}, t = {0};
    error err = {0};
    if (!file_read(&file, path, 64 << 20, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    for (size_t i = 0; i + 1 < file.n; i++) {
        if (file.p[i] == '\n') {
            word_add(w, buf_view(&t));
            t.n = 0;
            continue;
        }
        buf_putc(&t, (char)(str_digit(file.p[i]) * 16 + str_digit(file.p[i + 1])));
        i++;
    }
    buf_free(&t);
    buf_free(&file);
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}
static uint64_t times[TIMES_MAX];
static void run(const words *w, grammar_vocab *v, const char *name, const char *spec, const char *reply) {
    arena *a = arena_new(0);
    error err = {0};
    const json *j = json_read(a, str_of(spec), NULL, &err);
    const json *schema = json_get(j, "schema");
    grammar_spec s = {.kind = schema ? GRAMMAR_SCHEMA : GRAMMAR_REGEX,
                      .schema = schema,
                      .text = json_str(json_get(j, "regex"), (str){0})};
    uint64_t t0 = clock_ns();
    grammar *g = grammar_compile(&s, v, &err);
    uint64_t compile_ns = clock_ns() - t0;
    if (!g) {
        printf("%s: %s\n", name, err.msg);
        return;
    }
    for (int pass = 0; pass < 2; pass++) { /* a grammar just compiled, and one that has been used */
        matcher *m = matcher_new(g);
        str rest = str_of(reply);
        size_t n = 0;
        uint64_t id = 0;
        while (rest.n) {
            t0 = clock_ns();
            const uint64_t *mask = matcher_mask(m);
            times[n++] = clock_ns() - t0;
            size_t len = MIN(rest.n, w->longest);
            for (; len > 0; len--)
                if (map_get(w->id, str_slice(rest, 0, len), &id) && (mask[id / 64] >> (id % 64) & 1)) break;
            if (!len || !matcher_accept(m, (int32_t)id)) {
                printf("%s: stuck at %.20s\n", name, rest.p);
                break;
            }
            rest = str_slice(rest, len, rest.n);
        }
        qsort(times, n, sizeof *times, by_size);
        printf("%-24s %s %4zu tokens  compile %7.1f us  mask median %7.2f us  p99 %8.1f us  most %8.1f us\n", name,
               pass ? "again" : "first", n, (double)compile_ns / 1e3, (double)times[n / 2] / 1e3,
               (double)times[n * 99 / 100] / 1e3, (double)times[n - 1] / 1e3);
        matcher_free(m);
    }
    grammar_drop(g);
    arena_free(a);
}
static char *long_list(const char *item, int n) {
    buf b = {0};
    buf_putc(&b, '[');
    for (int i = 0; i < n; i++) buf_printf(&b, "%s%s", i ? ", " : "", item);
    buf_putc(&b, ']');
    return buf_take(&b);
}

int main(int argc, char **argv) {
    words w = {.id = map_new(1 << 18)};
    if (argc > 1)
        words_read(&w, argv[1]);
    else
        words_make(&w);
    const int32_t eos = w.n;
    str *all = mem_alloc((size_t)(w.n + 1) * sizeof *all);
    memcpy(all, w.token, (size_t)w.n * sizeof *all);
    uint64_t t0 = clock_ns();
    grammar_vocab *v = grammar_vocab_of(all, w.n + 1, &eos, 1);
    printf("%d tokens, tries in %.0f ms\n", w.n, (double)(clock_ns() - t0) / 1e6);
    char *people = long_list(
        "{\"name\": \"Anna Maria of the long street\", \"age\": 31, \"tags\": [\"reading\", \"mountains\"], "
        "\"about\": \"She said: \\\"hello\\\", and went on.\\nThen there was nothing else to be told of her.\"}",
        12);
    char *numbers = long_list("12345.678", 300);
    run(&w, v, "object of strings",
        "{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
        "\"age\":{\"type\":\"integer\"},"
        "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"about\":{\"type\":\"string\"}},\"required\":["
        "\"name\",\"age\"]}}}",
        people);
    run(&w, v, "the same, all counted",
        "{\"schema\":{\"type\":\"array\",\"minItems\":2,\"maxItems\":500,\"items\":{\"type\":\"object\",\"properties\":"
        "{\"name\":{\"type\":\"string\",\"maxLength\":60},"
        "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
        "\"string\",\"maxLength\":20},\"maxItems\":5},"
        "\"about\":{\"type\":\"string\",\"maxLength\":2000}},\"required\":[\"name\",\"age\"],\"additionalProperties\":"
        "false}}}",
        people);
    run(&w, v, "any JSON", "{\"schema\":{}}", people);
    run(&w, v, "1000 numbers",
        "{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":10,\"maxItems\":1000}}", numbers);
    run(&w, v, "pattern [a-z ,]{1,5000}", "{\"regex\":\"[a-zA-Z ,.]{1,5000}\"}",
        "the other thing is that there was nothing else, and so on, until there was nothing to be said of it. so be "
        "it");
    run(&w, v, "free text until a tag", "{\"regex\":\"(?s)([^<]|<[^/])*</end>\"}",
        "the other thing is that there was nothing else,\nand so on, until <b>there was nothing to be said of it. so "
        "be it</end>");
    free(people);
    free(numbers);
    grammar_vocab_drop(v);
    return 0;
}
