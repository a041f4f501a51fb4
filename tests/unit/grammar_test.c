/* Grammars: what they accept and refuse, that masks say the same as trying every token, that a position can be copied,
 * that hostile input is answered in bounded time. `grammar_test FILE` prints the verdicts of a corpus
 * (tools/grammar.py). */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "../../src/text/grammar.h"

static const char *dir = "tests/data/grammar";

/* ---- building ---------------------------------------------------------------------------------------------------- */
static grammar_kind kind_of(str k) {
    static const char *const name[] = {"schema", "object", "regex", "rules", "choice"};
    for (size_t i = 0; i < COUNT(name); i++)
        if (str_is(k, name[i])) return (grammar_kind)i;
    return GRAMMAR_SCHEMA;
}
static grammar *compile_json(arena *a, const json *j, grammar_vocab *v, error *err) {
    grammar_spec s = {.kind = kind_of(json_str(json_get(j, "kind"), STR("schema"))),
                      .schema = json_get(j, "schema"),
                      .text = json_str(json_get(j, "text"), (str){0}),
                      .compact = json_bool(json_get(j, "compact"), false)};
    const json *c = json_get(j, "choice");
    str *choice = arena_array(a, str, c ? c->n + 1 : 1);
    for (uint32_t i = 0; c && i < c->n; i++) choice[s.n_choices++] = json_at(c, i)->string;
    s.choice = choice;
    return grammar_compile(&s, v, err);
}
static grammar *compile_text(const char *text, grammar_vocab *v, error *err) {
    arena *a = arena_new(0);
    json_limits limits = {.depth_max = 5000, .memory_max = 1 << 30};
    const json *j = json_read(a, str_of(text), &limits, err);
    assert_non_null(j);
    grammar *g = compile_json(a, j, v, err);
    arena_free(a);
    return g;
}
static bool accepts(grammar *g, str s) {
    matcher *m = matcher_new(g);
    bool ok = matcher_accept_bytes(m, s) && matcher_can_end(m);
    matcher_free(m);
    return ok;
}

/* ---- verdicts ---------------------------------------------------------------------------------------------------- */
typedef struct verdict {
    const char *grammar;
    const char *yes[8], *no[8];
} verdict;
static const verdict verdicts[] = {
    {"{\"kind\":\"regex\",\"text\":\"a{2,5000}b|c+\"}", {"aab", "ccc", "aaaaaaaab"}, {"ab", "", "aa"}},
    {"{\"kind\":\"regex\",\"text\":\"(a|aa){3,100}\"}", {"aaa", "aaaa"}, {"aa"}},
    {"{\"kind\":\"regex\",\"text\":\"(a?|b){2,4}c\"}", {"c", "abc", "aaaac"}, {"aaaaac", "ab"}},
    {"{\"kind\":\"regex\",\"text\":\"^(?=.*[0-9])(?!.*x)[a-z0-9]{3,6}$\"}", {"ab1", "1abcde"}, {"abc", "a1x", "a1"}},
    {"{\"kind\":\"regex\",\"text\":\"\\\\p{Lu}[^\\\\W\\\\d]\\\\x41\\\\u00e9.\"}",
     {"\xC3\x84_A\xC3\xA9!"},
     {"a_A\xC3\xA9!", "\xC3\x84_A\xC3\xA9\n"}},
    {"{\"kind\":\"regex\",\"text\":\"(?i)yes|no\"}", {"YES", "nO"}, {"y"}},
    {"{\"kind\":\"rules\",\"text\":\"root ::= \\\"a\\\" root \\\"b\\\" | \\\"a\\\" root \\\"c\\\" | \\\"\\\"\"}",
     {"", "ab", "aabc"},
     {"aab"}},
    {"{\"kind\":\"rules\",\"text\":\"root ::= e\\ne ::= e \\\"+\\\" t | t # sum\\nt ::= [0-9]+ | \\\"(\\\" e "
     "\\\")\\\"\"}",
     {"1+2", "(1+22)+3"},
     {"1+", "(1"}},
    {"{\"kind\":\"rules\",\"text\":\"start: \\\"a\\\" WS? NUM ~ 2..3 (\\\"x\\\"i | \\\"0\\\"..\\\"3\\\")?\\nNUM: "
     "/[0-9]/\\n%import common.WS\"}",
     {"a12", "a 123", "a12X", "a1233"},
     {"a1", "a12345"}},
    {"{\"kind\":\"rules\",\"text\":\"?start: item (\\\",\\\" item)*\\nitem: WORD -> word\\n    | INT\\n%import common "
     "(WORD)\"}",
     {NULL},
     {NULL}},
    {"{\"kind\":\"rules\",\"text\":\"start: \\\"f\\\" \\\"(\\\" INT \\\")\\\"\\n%import common.INT\\n%ignore / +/\"}",
     {"f(1)", "f ( 12 ) "},
     {"f(1"}},
    {"{\"kind\":\"choice\",\"choice\":[\"yes\",\"no\",\"yesterday\"]}", {"yes", "yesterday"}, {"ye", "nope"}},
    {"{\"kind\":\"object\"}",
     {"{}", "{ \"a\" : [1, 2.5e3, null]}", "{\"a\":\"\\ud83d\\ude00\"}"},
     {"[]", "{\"a\":\"\\ud83d\"}", "{\"a\":\"\n\"}"}},
    {"{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120},"
     "\"b\":{\"type\":\"string\",\"pattern\":\"^x[a-z]+$\",\"maxLength\":4}},\"required\":[\"a\"]}}",
     {"{\"a\":1}", "{\"a\":-5,\"b\":\"xa\"}", "{\"a\":120,\"c\":[1]}"},
     {"{\"a\":121}", "{\"a\":120,\"b\":\"xabcd\"}", "{\"b\":\"xa\"}", "{\"a\":120,\"b\":1}", "{\"a\":-6}"}},
    {"{\"schema\":{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"number\"},\"k\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/"
     "n\"}}},\"required\":[\"v\"],\"additionalProperties\":false}},\"$ref\":\"#/$defs/n\"}}",
     {"{\"v\":1,\"k\":[{\"v\":2}]}"},
     {"{\"v\":1,\"k\":[{\"w\":2}]}"}},
    {"{\"schema\":{\"type\":\"number\",\"multipleOf\":0.05}}", {"1", "1.05", "-0.10", "3.2500"}, {"1.06"}},
    {"{\"schema\":{\"type\":\"number\",\"exclusiveMinimum\":1.25,\"maximum\":10}}",
     {"1.26", "1.2500001", "10", "10.0", "9.99"},
     {"1.25", "1.250", "10.01", "1.2", "-3", "11"}},
    {"{\"schema\":{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false,"
     "\"minItems\":1}}",
     {"[1]", "[1,\"a\"]"},
     {"[]", "[1,\"a\",2]", "[\"a\"]"}},
    {"{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,"
     "\"additionalProperties\":false}}",
     {"{\"a\":1,\"c\":2}", "{\"a\":1,\"b\":0,\"c\":2}"},
     {"{\"a\":1}", "{}", "{\"a\":1,\"d\":1}"}},
    {"{\"schema\":{\"type\":\"object\",\"properties\":{\"x_1\":{\"minimum\":5}},\"patternProperties\":{\"^x_\":{"
     "\"type\":\"integer\"},\"^y\":{\"type\":\"string\"}},\"additionalProperties\":false}}",
     {"{\"x_1\":7,\"x_2\":1,\"y\":\"\"}", "{}"},
     {"{\"x_1\":4}", "{\"x_2\":\"\"}", "{\"z\":1}", "{\"x_1\":true}"}},
    {"{\"schema\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"propertyNames\":{\"pattern\":"
     "\"^[a-z]{2}$\"},\"maxProperties\":2}}",
     {"{\"ab\":1}", "{\"ab\":1,\"cd\":2}"},
     {"{\"abc\":1}", "{\"ab\":1,\"cd\":2,\"ef\":3}", "{\"ab\":\"\"}"}},
    {"{\"schema\":{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]}}}",
     {"\"c\"", "\"ab\"", "\"\""},
     {"\"a\"", "\"b\"", "1"}},
    {"{\"schema\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}}",
     {"\"ab\"", "\"\xC3\xA4\\n\\u00e9\"", "\"\\ud83d\\ude00b\""},
     {"\"a\"", "\"abcd\"", "\"\\ud83d\\ude00\""}},
    {"{\"schema\":{\"anyOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"null\"}]}}",
     {"null", "\"2024-02-29\""},
     {"\"2024-13-01\"", "\"x\""}},
    {"{\"schema\":{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"properties\":{"
     "\"a\":{\"minimum\":3}}}],\"type\":\"object\"}}",
     {"{\"a\":3}"},
     {"{\"a\":2}", "{}"}},
    {"{\"schema\":{\"type\":\"object\",\"properties\":{}},\"compact\":true}",
     {"{}", "{\"a\":1}"},
     {"{ }", "{\"a\": 1}"}},
    {"{\"schema\":{\"enum\":[1,\"a\\\"b\",null,{\"k\":[true]}]}}",
     {"1", "\"a\\\"b\"", "null", "{\"k\": [true]}"},
     {"2", "\"a\"", "{}"}},
    {"{\"schema\":{}}", {"1", "[{}]", "\"x\""}, {"", "x"}},
};
static void test_verdicts(void **state) {
    for (size_t i = 0; i < COUNT(verdicts); i++) {
        error err = {0};
        grammar *g = compile_text(verdicts[i].grammar, NULL, &err);
        if (!verdicts[i].yes[0] && !verdicts[i].no[0]) {
            assert_null(g);
            continue;
        }
        if (!g) fail_msg("%s: %s", verdicts[i].grammar, err.msg);
        for (size_t k = 0; k < 8 && verdicts[i].yes[k]; k++)
            if (!accepts(g, str_of(verdicts[i].yes[k])))
                fail_msg("%s refuses %s", verdicts[i].grammar, verdicts[i].yes[k]);
        for (size_t k = 0; k < 8 && verdicts[i].no[k]; k++)
            if (accepts(g, str_of(verdicts[i].no[k])))
                fail_msg("%s accepts %s", verdicts[i].grammar, verdicts[i].no[k]);
        grammar_drop(g);
    }
}

static const struct {
    const char *grammar, *says;
} refused[] = {
    {"{\"schema\":{\"properties\":{\"a\":{\"contains\":{\"type\":\"string\"}}}}}", "schema.properties.a.contains"},
    {"{\"schema\":{\"items\":{\"type\":\"array\",\"uniqueItems\":true}}}", "schema.items.uniqueItems"},
    {"{\"schema\":{\"properties\":{\"a\":{\"pattern\":\"(a)\\\\1\"}}}}",
     "schema.properties.a.pattern: a back reference"},
    {"{\"schema\":{\"$ref\":\"#/$defs/none\"}}", "schema.$ref"},
    {"{\"schema\":{\"type\":\"strin\"}}", "schema.type"},
    {"{\"schema\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}}", "no text at all"},
    {"{\"schema\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}}", "no text at all"},
    {"{\"schema\":{\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
     "a\"}},\"required\":[\"a\"]}},\"$ref\":\"#/$defs/a\"}}",
     "no text at all"},
    {"{\"kind\":\"rules\",\"text\":\"root ::= a\\na ::= b\\nb ::= a \\\"x\\\" | \\\"y\\\"\"}", "left-recursive"},
    {"{\"kind\":\"rules\",\"text\":\"root ::= \\\"a\\\" missing\"}", "missing"},
    {"{\"kind\":\"rules\",\"text\":\"root ::= \\\"a\\nb ::= c\"}", "line 1"},
    {"{\"kind\":\"regex\",\"text\":\"a(b\"}", "a group without )"},
    {"{\"kind\":\"regex\",\"text\":\"a\\\\bc\"}", "word border"},
    {"{\"kind\":\"choice\",\"choice\":[]}", "nothing to choose"},
};
static void test_errors_name_the_place(void **state) {
    for (size_t i = 0; i < COUNT(refused); i++) {
        error err = {0};
        grammar *g = compile_text(refused[i].grammar, NULL, &err);
        assert_null(g);
        if (!strstr(err.msg, refused[i].says)) fail_msg("%s: %s", refused[i].grammar, err.msg);
        assert_int_equal(err.code, ERR_INVALID);
    }
}

/* ---- masks against trying each token ----------------------------------------------------------------------------- */
static uint64_t seed = 1;
static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}
enum { TOKENS = 600, EOS = 0 };
static grammar_vocab *small_vocab(str token[TOKENS], arena *a) {
    static const char *const part[] = {"\"",   "{",  "}",  ",",    ":",    " ",        "a",        "ab", "b", "x",
                                       "\\",   "n",  "1",  "0",    "5",    ".",        "-",        "[",  "]", "true",
                                       "null", "\n", "\t", "\xC3", "\xA4", "\xF0\x9F", "\x98\x80", "u",  "e", "\"a\""};
    int32_t eos = EOS, n = 0;
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        token[n++] = (str){arena_copy(a, &c, 1), 1};
    }
    while (n < TOKENS) {
        buf t = {0};
        for (uint32_t k = draw(5) + 1; k > 0; k--) buf_puts(&t, part[draw(COUNT(part))]);
        token[n++] = (str){arena_copy(a, t.p, t.n), t.n};
        buf_free(&t);
    }
    token[EOS] = (str){0};
    return grammar_vocab_of(token, TOKENS, &eos, 1);
}
static void check_mask(const char *name, grammar *g, matcher *m, const str *token) {
    const uint64_t *mask = matcher_mask(m);
    assert_non_null(mask);
    matcher *t = matcher_new(g);
    for (int32_t id = 0; id < TOKENS; id++) {
        matcher_copy(t, m);
        bool want = id == EOS ? matcher_can_end(m) : matcher_accept_bytes(t, token[id]);
        bool have = mask[id / 64] >> (id % 64) & 1;
        if (memchr(token[id].p ? token[id].p : "", 0xFF, token[id].n)) want = false;
        if (want != have)
            fail_msg("%s: token %d is %s", name, id, have ? "allowed but cannot be" : "not allowed but could be");
    }
    matcher_free(t);
}
static void walk(const char *name, grammar *g, const str *token, int steps) {
    matcher *m = matcher_new(g);
    buf text = {0};
    for (int i = 0; i < steps && !matcher_done(m); i++) {
        check_mask(name, g, m, token);
        const uint64_t *mask = matcher_mask(m);
        int32_t allowed[TOKENS], n = 0;
        for (int32_t id = 1; id < TOKENS; id++)
            if (mask[id / 64] >> (id % 64) & 1) allowed[n++] = id;
        if (!n) {
            assert_true(matcher_can_end(m));
            break;
        }
        int32_t id = allowed[draw((uint32_t)n)];
        assert_true(matcher_accept(m, id));
        buf_str(&text, token[id]);
    }
    matcher *again = matcher_new(g); /* the text as a whole leads to the same place */
    for (size_t i = 0; i < text.n; i++) assert_true(matcher_accept_bytes(again, (str){text.p + i, 1}));
    assert_int_equal(matcher_can_end(again), matcher_can_end(m));
    matcher_free(again);
    matcher_free(m);
    buf_free(&text);
}
static const char *const walked[] = {
    "{\"kind\":\"regex\",\"text\":\"([ab]{2,40}|\\\"x*\\\"){1,5}\"}",
    "{\"kind\":\"regex\",\"text\":\"[^\\\"\\\\\\\\]{3,9}end\"}",
    "{\"kind\":\"regex\",\"text\":\"(?s).*\"}",
    "{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":6},\"minItems\":2,"
    "\"maxItems\":4}}",
    "{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"ab\":"
    "{\"type\":\"integer\",\"minimum\":5,\"maximum\":1500}},\"additionalProperties\":{\"type\":\"boolean\"}}}}",
    "{\"schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^a+b*$\",\"type\":\"string\",\"minLength\":"
    "4},\"x\":{\"type\":\"number\"}},\"required\":[\"a\"]}}",
    "{\"kind\":\"object\"}",
    "{\"kind\":\"rules\",\"text\":\"root ::= item{1,3}\\nitem ::= \\\"a\\\" item \\\"b\\\" | "
    "[x\xC3\xA4-\xF0\x9F\x98\x80]{2} | \\\"\\\\n\\\"\"}",
    "{\"schema\":{\"$defs\":{\"t\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
    "t\"},\"maxItems\":3}]}},\"$ref\":\"#/$defs/t\"}}",
    "{\"schema\":{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"},\"b$\":{\"minimum\":1}},"
    "\"additionalProperties\":false}}",
    "{\"schema\":{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"ab\"]},\"maxLength\":40}}",
};
static void test_masks_equal_trying(void **state) {
    arena *a = arena_new(0);
    str token[TOKENS];
    grammar_vocab *v = small_vocab(token, a);
    for (size_t i = 0; i < COUNT(walked); i++) {
        error err = {0};
        grammar *g = compile_text(walked[i], v, &err);
        if (!g) fail_msg("%s: %s", walked[i], err.msg);
        for (int k = 0; k < 4; k++) walk(walked[i], g, token, 25);
        grammar_drop(g);
    }
    grammar_vocab_drop(v);
    arena_free(a);
}

/* ---- ends and copies --------------------------------------------------------------------------------------------- */
static void test_done_and_copies(void **state) {
    error err = {0};
    grammar *g = compile_text("{\"kind\":\"regex\",\"text\":\"ab?\"}", NULL, &err);
    matcher *m = matcher_new(g), *c = matcher_new(g);
    assert_true(matcher_accept_bytes(m, STR("a")) && matcher_can_end(m) && !matcher_done(m));
    matcher_copy(c, m);
    assert_false(matcher_accept_bytes(m, STR("x")));
    assert_true(matcher_accept_bytes(m, STR("b")) && matcher_done(m));
    assert_false(matcher_done(c));
    assert_true(matcher_accept_bytes(c, STR("b")));
    matcher_reset(m);
    assert_true(matcher_accept_bytes(m, STR("ab")));
    matcher_free(m);
    matcher_free(c);
    grammar_drop(g);
}

/* ---- much and hostile -------------------------------------------------------------------------------------------- */
static void test_counts_are_counters(void **state) {
    error err = {0};
    grammar *g = compile_text("{\"schema\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":100000,"
                              "\"pattern\":\"^[a-z]{1,5000}$\"},\"maxItems\":1000}}",
                              NULL, &err);
    assert_non_null(g);
    assert_true(grammar_bytes(g) < 64 << 10);
    buf t = {0};
    buf_putc(&t, '[');
    for (int i = 0; i < 1000; i++) buf_puts(&t, i ? ",\"abcdefghijklmnopqrstuvwxyz\"" : "\"a\"");
    buf_putc(&t, ']');
    assert_true(accepts(g, buf_view(&t)));
    t.n--;
    buf_puts(&t, ",\"a\"]");
    assert_false(accepts(g, buf_view(&t)));
    t.n = 0;
    buf_puts(&t, "[\"");
    for (int i = 0; i < 5001; i++) buf_putc(&t, 'a');
    buf_puts(&t, "\"]");
    assert_false(accepts(g, buf_view(&t)));
    buf_free(&t);
    grammar_drop(g);
}
static char *repeat(const char *open, const char *middle, const char *close, int n) {
    buf b = {0};
    for (int i = 0; i < n; i++) buf_puts(&b, open);
    buf_puts(&b, middle);
    for (int i = 0; i < n; i++) buf_puts(&b, close);
    return buf_take(&b);
}
/* Each is answered, most by an error, without deep recursion and in little time. */
static void test_hostile(void **state) {
    error err = {0};
    char *deep = repeat("(", "\\\"a\\\"", ")", 50000);
    buf b = {0};
    buf_printf(&b, "{\"kind\":\"rules\",\"text\":\"root ::= %s\"}", deep);
    assert_null(compile_text(b.p, NULL, &err));
    assert_non_null(strstr(err.msg, "nested too deeply"));
    b.n = 0;
    buf_printf(&b, "{\"kind\":\"rules\",\"text\":\"start: %s\"}", deep);
    assert_null(compile_text(b.p, NULL, NULL));
    free(deep);
    deep = repeat("(", "a", ")", 50000);
    b.n = 0;
    buf_printf(&b, "{\"kind\":\"regex\",\"text\":\"%s\"}", deep);
    assert_null(compile_text(b.p, NULL, NULL));
    free(deep);
    deep = repeat("{\"type\":\"array\",\"items\":", "{}", "}", 2000); /* deep is fine: a rule each */
    b.n = 0;
    buf_printf(&b, "{\"schema\":%s}", deep);
    grammar *g = compile_text(b.p, NULL, &err);
    assert_non_null(g);
    grammar_drop(g);
    free(deep);
    b.n = 0; /* a product of many choices */
    buf_puts(&b, "{\"schema\":{\"allOf\":[");
    for (int i = 0; i < 30; i++)
        buf_printf(&b, "%s{\"anyOf\":[{\"minLength\":%d},{\"maxLength\":%d},{\"pattern\":\"a%d\"}]}", i ? "," : "", i,
                   i + 90, i);
    buf_puts(&b, "]}}");
    memset(&err, 0, sizeof err);
    assert_null(compile_text(b.p, NULL, &err));
    assert_non_null(strstr(err.msg, "too large"));
    b.n = 0; /* nested counts stay small */
    buf_puts(&b, "{\"kind\":\"regex\",\"text\":\"((((a{1,1000}){1,1000}){1,1000}){1,1000}b){0,1000}\"}");
    g = compile_text(b.p, NULL, &err);
    assert_non_null(g);
    assert_true(accepts(g, STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaab")));
    grammar_drop(g);
    b.n = 0; /* a deterministic automaton of 2^20 states and more: followed, or given up, but never for long */
    buf_puts(&b, "{\"kind\":\"regex\",\"text\":\"(a|b|ab)*a((a|b)(a|b|ba)){20,30}(c|(d?e?){3,900})\"}");
    arena *a = arena_new(0);
    str token[TOKENS];
    grammar_vocab *v = small_vocab(token, a);
    g = compile_text(b.p, v, &err);
    assert_non_null(g);
    matcher *m = matcher_new(g);
    for (int i = 0; i < 200 && matcher_mask(m); i++)
        if (!matcher_accept_bytes(m, draw(2) ? STR("a") : STR("b"))) break;
    matcher_free(m);
    grammar_drop(g);
    grammar_vocab_drop(v);
    arena_free(a);
    b.n = 0;
    buf_puts(&b, "{\"schema\":{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (int i = 0; i < 2000; i++) buf_printf(&b, "%s\"property%d\":{\"type\":\"string\"}", i ? "," : "", i);
    buf_puts(&b, "}}}");
    g = compile_text(b.p, NULL, &err);
    assert_non_null(g);
    assert_true(accepts(g, STR("{\"property7\":\"a\",\"property1999\":\"\"}")));
    assert_false(accepts(g, STR("{\"property8\":\"a\",\"property7\":\"\"}")));
    grammar_drop(g);
    buf_free(&b);
}

/* ---- the corpus: verdicts that agree with llguidance's, or differ for a reason that is written beside them ------- */
static int corpus_run(const char *path, bool print) {
    arena *a = arena_new(0);
    buf file = {0};
    int wrong = 0;
    error err = {0};
    json_limits limits = {.memory_max = 1 << 30};
    const json *all = file_read(&file, path, 64 << 20, &err) ? json_read(a, buf_view(&file), &limits, &err) : NULL;
    if (!all) fail_msg("%s: %s", path, err.msg);
    for (uint32_t i = 0; i < all->n; i++) {
        const json *j = json_at(all, i), *yes = json_get(j, "yes"), *no = json_get(j, "no"),
                   *tests = json_get(j, "tests");
        memset(&err, 0, sizeof err);
        grammar *g = compile_json(a, j, NULL, &err);
        if (print) {
            printf("{\"error\":");
            buf e = {0};
            g ? buf_puts(&e, "null") : json_write_string(&e, str_of(err.msg));
            printf("%s,\"ok\":[", e.p);
            buf_free(&e);
            for (uint32_t k = 0; g && tests && k < tests->n; k++)
                printf("%s%s", k ? "," : "", accepts(g, json_at(tests, k)->string) ? "true" : "false");
            printf("]}\n");
        } else if (json_bool(json_get(j, "refused"), false)) {
            wrong += g != NULL;
        } else {
            if (!g) printf("%u: %s\n", i, err.msg), wrong++;
            for (uint32_t k = 0; g && yes && k < yes->n; k++)
                if (!accepts(g, json_at(yes, k)->string))
                    printf("%u refuses %s\n", i, json_at(yes, k)->string.p), wrong++;
            for (uint32_t k = 0; g && no && k < no->n; k++)
                if (accepts(g, json_at(no, k)->string)) printf("%u accepts %s\n", i, json_at(no, k)->string.p), wrong++;
        }
        grammar_drop(g);
    }
    buf_free(&file);
    arena_free(a);
    return wrong;
}
static void test_corpus(void **state) {
    char path[200];
    snprintf(path, sizeof path, "%s/corpus.json", dir);
    assert_int_equal(corpus_run(path, false), 0);
}

int main(int argc, char **argv) {
    if (argc > 1) return corpus_run(argv[1], true) != 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_errors_name_the_place),
        cmocka_unit_test(test_masks_equal_trying),
        cmocka_unit_test(test_done_and_copies),
        cmocka_unit_test(test_counts_are_counters),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
