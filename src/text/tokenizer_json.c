/* tokenizer.json: each part of the file becomes the parts of tokenizer.h. A kind or an option that is not known is an
 * error that names it: ignoring it would give wrong ids without a word. Truncation and padding are the caller's
 * business. */
#include <stdio.h>
#include <stdlib.h>
#include "tokenizer.h"

typedef bool build_fn(tokenizer *t, const json *j, const char *where, error *err);
typedef struct kind {
    const char *name;
    build_fn *build;
} kind;

static bool build_kind(tokenizer *t, const json *j, const char *where, const kind *table, size_t n, error *err) {
    if (!j || j->type == JSON_NULL) return true;
    str type = json_str(json_get(j, "type"), STR("(none)"));
    for (size_t i = 0; i < n; i++)
        if (str_is(type, table[i].name)) return table[i].build(t, j, where, err);
    return error_set(err, ERR_FORMAT, "tokenizer.json: %s of type \"%.*s\" is not supported", where,
                     (int)MIN(type.n, 80), type.p);
}

static bool flag_of(const json *j, const char *key, bool otherwise) {
    return json_bool(json_get(j, key), otherwise);
}

static str text_of(tokenizer *t, const json *j, const char *key, const char *otherwise) {
    return arena_str(t->a, json_str(json_get(j, key), str_of(otherwise)));
}

static bool sequence(tokenizer *t, const json *j, const char *key, const char *where, build_fn *build, error *err) {
    const json *list = json_get(j, key);
    if (!json_is(list, JSON_ARRAY))
        return error_set(err, ERR_FORMAT, "tokenizer.json: %s: %s is not an array", where, key);
    for (uint32_t i = 0; i < list->n; i++) {
        char inner[160];
        snprintf(inner, sizeof inner, "%s.%s[%u]", where, key, i);
        if (!build(t, &list->items[i], inner, err)) return false;
    }
    return true;
}

/* {"String": ...} or {"Regex": ...} */
static pattern *pattern_of(const json *j, const char *where, error *err) {
    const json *s = json_get(j, "String"), *r = json_get(j, "Regex");
    if (json_is(s, JSON_STRING)) return pattern_literal(s->string);
    pattern *p = NULL;
    if (json_is(r, JSON_STRING))
        p = pattern_regex(r->string, err);
    else if (json_is(j, JSON_STRING))
        p = pattern_literal(j->string);
    else
        error_set(err, ERR_FORMAT, "pattern is neither String nor Regex");
    if (!p) error_prefix(err, "tokenizer.json: %s: ", where);
    return p;
}

/* ---- normalizers ------------------------------------------------------------------------------------------------- */
static build_fn norm_build;

static bool norm_simple(tokenizer *t, const json *j, const char *where, error *err) {
    static const struct {
        const char *name;
        norm n;
    } simple[] = {
        {"NFC", {.kind = NORM_FORM, .form = FORM_NFC}},
        {"NFD", {.kind = NORM_FORM, .form = FORM_NFD}},
        {"NFKC", {.kind = NORM_FORM, .form = FORM_NFKC}},
        {"NFKD", {.kind = NORM_FORM, .form = FORM_NFKD}},
        {"Lowercase", {.kind = NORM_LOWERCASE}},
        {"StripAccents", {.kind = NORM_STRIP_ACCENTS}},
        {"Nmt", {.kind = NORM_NMT}},
        {"ByteLevel", {.kind = NORM_BYTES}},
    };
    for (size_t i = 0; i < COUNT(simple); i++)
        if (str_is(json_get(j, "type")->string, simple[i].name)) tokenizer_add_norm(t, simple[i].n);
    return true;
}

static bool norm_bert(tokenizer *t, const json *j, const char *where, error *err) {
    bool lower = flag_of(j, "lowercase", true);
    tokenizer_add_norm(t, (norm){.kind = NORM_BERT,
                                 .clean = flag_of(j, "clean_text", true),
                                 .chinese = flag_of(j, "handle_chinese_chars", true),
                                 .accents = flag_of(j, "strip_accents", lower),
                                 .lower = lower});
    return true;
}

static bool norm_replace(tokenizer *t, const json *j, const char *where, error *err) {
    pattern *p = pattern_of(json_get(j, "pattern"), where, err);
    if (!p) return false;
    tokenizer_add_norm(t, (norm){.kind = NORM_REPLACE, .find = p, .text = text_of(t, j, "content", "")});
    return true;
}

static bool norm_prepend(tokenizer *t, const json *j, const char *where, error *err) {
    tokenizer_add_norm(t, (norm){.kind = NORM_PREPEND, .text = text_of(t, j, "prepend", "")});
    return true;
}

static bool norm_strip(tokenizer *t, const json *j, const char *where, error *err) {
    tokenizer_add_norm(
        t,
        (norm){.kind = NORM_STRIP, .left = flag_of(j, "strip_left", true), .right = flag_of(j, "strip_right", true)});
    return true;
}

static int digit64(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

bool base64_decode(str s, buf *out) {
    uint32_t bits = 0;
    int have = 0;
    while (s.n && s.p[s.n - 1] == '=') s.n--;
    buf_reserve(out, s.n / 4 * 3 + 4);
    for (size_t i = 0; i < s.n; i++) {
        int v = digit64(s.p[i]);
        if (v < 0) return false;
        bits = bits << 6 | (uint32_t)v, have += 6;
        if (have >= 8) buf_putc(out, (char)(bits >> (have -= 8)));
    }
    return true;
}

bool charsmap_open(tokenizer *t, str bytes, charsmap *m, error *err) {
    uint32_t size = 0;
    if (bytes.n >= 4) memcpy(&size, bytes.p, 4);
    if (bytes.n < 4 || size % 4 || size > bytes.n - 4)
        return error_set(err, ERR_FORMAT, "precompiled_charsmap: %zu bytes do not hold a table of %u", bytes.n, size);
    *m = (charsmap){.unit = arena_copy(t->a, bytes.p + 4, size),
                    .n_units = size / 4,
                    .texts = arena_str(t->a, str_slice(bytes, 4 + size, bytes.n))};
    return true;
}

static bool norm_charsmap(tokenizer *t, const json *j, const char *where, error *err) {
    buf bytes = {0};
    norm n = {.kind = NORM_CHARSMAP};
    bool ok = base64_decode(json_str(json_get(j, "precompiled_charsmap"), STR("")), &bytes) ||
              error_set(err, ERR_FORMAT, "precompiled_charsmap is not base64");
    ok = ok && (bytes.n == 0 || charsmap_open(t, buf_view(&bytes), &n.map, err));
    if (ok) tokenizer_add_norm(t, n);
    if (!ok) error_prefix(err, "tokenizer.json: %s: ", where);
    buf_free(&bytes);
    return ok;
}

static bool norm_sequence(tokenizer *t, const json *j, const char *where, error *err) {
    return sequence(t, j, "normalizers", where, norm_build, err);
}

static bool norm_build(tokenizer *t, const json *j, const char *where, error *err) {
    static const kind table[] = {
        {"NFC", norm_simple},           {"NFD", norm_simple},        {"NFKC", norm_simple},
        {"NFKD", norm_simple},          {"Lowercase", norm_simple},  {"StripAccents", norm_simple},
        {"Nmt", norm_simple},           {"ByteLevel", norm_simple},  {"BertNormalizer", norm_bert},
        {"Replace", norm_replace},      {"Prepend", norm_prepend},   {"Strip", norm_strip},
        {"Precompiled", norm_charsmap}, {"Sequence", norm_sequence},
    };
    return build_kind(t, j, where, table, COUNT(table), err);
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------------------- */
static build_fn split_build;

static bool behavior_of(const json *j, split_behavior *b, const char *where, error *err) {
    static const char *const name[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    str s = json_str(j, STR("(none)"));
    for (size_t i = 0; i < COUNT(name); i++)
        if (str_is(s, name[i])) return *b = (split_behavior)i, true;
    return error_set(err, ERR_FORMAT, "tokenizer.json: %s: behavior \"%.*s\" is not supported", where,
                     (int)MIN(s.n, 80), s.p);
}

static bool has_flag(uint32_t cp, const void *flag) {
    return unicode_of(cp) & *(const uint32_t *)flag;
}

static bool is_point(uint32_t cp, const void *point) {
    return cp == *(const uint32_t *)point;
}

static const uint32_t is_space = U_SPACE, is_word = U_WORD, is_numeric = U_NUMERIC, is_punct = U_PUNCT;

static void add_class(tokenizer *t, const uint32_t *flag, split_behavior b) {
    tokenizer_add_split(t, (split){.kind = SPLIT_PATTERN, .behavior = b, .find = pattern_class(has_flag, flag)});
}

static bool split_pattern(tokenizer *t, const json *j, const char *where, error *err) {
    split s = {.kind = SPLIT_PATTERN, .invert = flag_of(j, "invert", false)};
    if (!behavior_of(json_get(j, "behavior"), &s.behavior, where, err)) return false;
    s.find = pattern_of(json_get(j, "pattern"), where, err);
    if (s.find) tokenizer_add_split(t, s);
    return s.find != NULL;
}

void split_add_bytes(tokenizer *t, bool prefix_space, bool gpt2) {
    static const char source[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    if (prefix_space) tokenizer_add_split(t, (split){.kind = SPLIT_PREFIX_SPACE});
    if (gpt2)
        tokenizer_add_split(
            t, (split){.kind = SPLIT_PATTERN, .behavior = SPLIT_ISOLATED, .find = pattern_regex(STR(source), NULL)});
    tokenizer_add_split(t, (split){.kind = SPLIT_BYTES});
}

static bool split_bytes(tokenizer *t, const json *j, const char *where, error *err) {
    split_add_bytes(t, flag_of(j, "add_prefix_space", true), flag_of(j, "use_regex", true));
    return true;
}

static bool split_metaspace(tokenizer *t, const json *j, const char *where, error *err) {
    static const char *const when[] = {"always", "first", "never"};
    split s = {.kind = SPLIT_METASPACE, .behavior = SPLIT_WITH_NEXT, .text = text_of(t, j, "replacement", "\u2581")};
    const json *scheme = json_get(j, "prepend_scheme");
    str name = json_str(scheme, STR("always"));
    size_t i = 0;
    while (i < COUNT(when) && !str_is(name, when[i])) i++;
    if (i == COUNT(when))
        return error_set(err, ERR_FORMAT, "tokenizer.json: %s: prepend_scheme \"%.*s\" is not supported", where,
                         (int)MIN(name.n, 80), name.p);
    s.prepend = (prepend_when)i;
    if (!flag_of(j, "add_prefix_space", true)) s.prepend = PREPEND_NEVER;
    if (flag_of(j, "split", true)) s.find = pattern_literal(s.text);
    tokenizer_add_split(t, s);
    return true;
}

static bool split_space(tokenizer *t, const json *j, const char *where, error *err) {
    add_class(t, &is_space, SPLIT_REMOVED);
    return true;
}

/* \w+|[^\w\s]+ : white space goes, and words part from the rest. */
static bool split_words(tokenizer *t, const json *j, const char *where, error *err) {
    add_class(t, &is_space, SPLIT_REMOVED);
    add_class(t, &is_word, SPLIT_CONTIGUOUS);
    return true;
}

static bool split_digits(tokenizer *t, const json *j, const char *where, error *err) {
    add_class(t, &is_numeric, flag_of(j, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    return true;
}

static bool split_punctuation(tokenizer *t, const json *j, const char *where, error *err) {
    split_behavior b = SPLIT_ISOLATED;
    if (json_get(j, "behavior") && !behavior_of(json_get(j, "behavior"), &b, where, err)) return false;
    add_class(t, &is_punct, b);
    return true;
}

void split_add_words(tokenizer *t) {
    add_class(t, &is_space, SPLIT_REMOVED);
    add_class(t, &is_punct, SPLIT_ISOLATED);
}

static bool split_bert(tokenizer *t, const json *j, const char *where, error *err) {
    split_add_words(t);
    return true;
}

static bool split_delimiter(tokenizer *t, const json *j, const char *where, error *err) {
    str s = json_str(json_get(j, "delimiter"), STR(" "));
    size_t n = 0;
    uint32_t *cp = arena_alloc(t->a, sizeof *cp);
    if (s.n) *cp = utf8_get(s.p, &n);
    if (n != s.n) return error_set(err, ERR_FORMAT, "tokenizer.json: %s: delimiter is not one character", where);
    tokenizer_add_split(t,
                        (split){.kind = SPLIT_PATTERN, .behavior = SPLIT_REMOVED, .find = pattern_class(is_point, cp)});
    return true;
}

static bool split_length(tokenizer *t, const json *j, const char *where, error *err) {
    int64_t n = json_int(json_get(j, "length"), 5);
    if (n < 1) return error_set(err, ERR_FORMAT, "tokenizer.json: %s: length %lld", where, (long long)n);
    tokenizer_add_split(t, (split){.kind = SPLIT_LENGTH, .length = (size_t)n});
    return true;
}

static bool split_sequence(tokenizer *t, const json *j, const char *where, error *err) {
    return sequence(t, j, "pretokenizers", where, split_build, err);
}

static bool split_build(tokenizer *t, const json *j, const char *where, error *err) {
    static const kind table[] = {
        {"ByteLevel", split_bytes},       {"Split", split_pattern},
        {"Metaspace", split_metaspace},   {"Whitespace", split_words},
        {"Digits", split_digits},         {"Punctuation", split_punctuation},
        {"WhitespaceSplit", split_space}, {"Sequence", split_sequence},
        {"BertPreTokenizer", split_bert}, {"CharDelimiterSplit", split_delimiter},
        {"FixedLength", split_length},
    };
    return build_kind(t, j, where, table, COUNT(table), err);
}

/* ---- decoders ---------------------------------------------------------------------------------------------------- */
static build_fn decoder_build;

static bool decoder_simple(tokenizer *t, const json *j, const char *where, error *err) {
    static const struct {
        const char *name;
        decoder_kind kind;
    } simple[] = {{"ByteLevel", DECODER_BYTE_LEVEL}, {"ByteFallback", DECODER_BYTE_FALLBACK}, {"Fuse", DECODER_FUSE}};
    for (size_t i = 0; i < COUNT(simple); i++)
        if (str_is(json_get(j, "type")->string, simple[i].name))
            tokenizer_add_decoder(t, (decoder){.kind = simple[i].kind});
    return true;
}

static bool decoder_metaspace(tokenizer *t, const json *j, const char *where, error *err) {
    bool never = str_is(json_str(json_get(j, "prepend_scheme"), STR("always")), "never") ||
                 !flag_of(j, "add_prefix_space", true);
    tokenizer_add_decoder(
        t, (decoder){.kind = DECODER_METASPACE, .from = text_of(t, j, "replacement", "\u2581"), .flag = !never});
    return true;
}

static bool decoder_strip(tokenizer *t, const json *j, const char *where, error *err) {
    str s = json_str(json_get(j, "content"), STR(" "));
    int64_t start = json_int(json_get(j, "start"), 0), stop = json_int(json_get(j, "stop"), 0);
    size_t n = 0;
    uint32_t cp = s.n ? utf8_get(s.p, &n) : 0;
    if (!n || n != s.n || start < 0 || stop < 0 || start > 1 << 20 || stop > 1 << 20)
        return error_set(err, ERR_FORMAT,
                         "tokenizer.json: %s: content is not one character, or start or stop is out of range", where);
    tokenizer_add_decoder(
        t, (decoder){.kind = DECODER_STRIP, .content = cp, .start = (size_t)start, .stop = (size_t)stop});
    return true;
}

static bool decoder_replace(tokenizer *t, const json *j, const char *where, error *err) {
    const json *p = json_get(j, "pattern"), *s = json_get(p, "String");
    decoder d = {.kind = DECODER_REPLACE, .to = text_of(t, j, "content", "")};
    if (json_is(s, JSON_STRING))
        d.from = arena_str(t->a, s->string);
    else if (!(d.find = pattern_of(p, where, err)))
        return false;
    tokenizer_add_decoder(t, d);
    return true;
}

static bool decoder_wordpiece(tokenizer *t, const json *j, const char *where, error *err) {
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_WORDPIECE,
                                       .from = text_of(t, j, "prefix", "##"),
                                       .flag = flag_of(j, "cleanup", true)});
    return true;
}

static bool decoder_bpe(tokenizer *t, const json *j, const char *where, error *err) {
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_BPE, .from = text_of(t, j, "suffix", "</w>")});
    return true;
}

static bool decoder_sequence(tokenizer *t, const json *j, const char *where, error *err) {
    return sequence(t, j, "decoders", where, decoder_build, err);
}

static bool decoder_build(tokenizer *t, const json *j, const char *where, error *err) {
    static const kind table[] = {
        {"ByteLevel", decoder_simple},    {"ByteFallback", decoder_simple}, {"Fuse", decoder_simple},
        {"Metaspace", decoder_metaspace}, {"Strip", decoder_strip},         {"Replace", decoder_replace},
        {"WordPiece", decoder_wordpiece}, {"BPEDecoder", decoder_bpe},      {"Sequence", decoder_sequence},
    };
    return build_kind(t, j, where, table, COUNT(table), err);
}

/* ---- post-processors --------------------------------------------------------------------------------------------- */
static build_fn post_build;

/* Whether there is such a token is seen when all are known (tokenizer_complete). */
static bool post_id(ids *item, const json *j, const char *where, error *err) {
    if (!json_is(j, JSON_INT) || j->integer < 0 || j->integer > TOKEN_ID_MAX)
        return error_set(err, ERR_FORMAT, "tokenizer.json: %s: a token id must be an integer from 0 to %d", where,
                         TOKEN_ID_MAX);
    ids_push(item, (int32_t)j->integer);
    return true;
}

static bool post_template(tokenizer *t, const json *j, const char *where, error *err) {
    const json *single = json_get(j, "single"), *special = json_get(j, "special_tokens");
    ids item = {0};
    bool ok =
        json_is(single, JSON_ARRAY) || error_set(err, ERR_FORMAT, "tokenizer.json: %s: single is not an array", where);
    for (uint32_t i = 0; ok && i < single->n; i++) {
        const json *token = json_get(&single->items[i], "SpecialToken");
        if (json_get(&single->items[i], "Sequence")) {
            ids_push(&item, POST_SEQUENCE);
            continue;
        }
        const char *name = "";
        char *owned = NULL;
        str id = json_str(json_get(token, "id"), STR(""));
        name = owned = mem_strndup(id.p, id.n);
        const json *list = json_get(json_get(special, name), "ids");
        if (!list || list->type != JSON_ARRAY)
            ok = error_set(err, ERR_FORMAT, "tokenizer.json: %s: special_tokens has no \"%s\"", where, name);
        for (uint32_t k = 0; ok && k < list->n; k++) ok = post_id(&item, &list->items[k], where, err);
        free(owned);
    }
    if (ok) tokenizer_add_post(t, item.p, item.n);
    ids_free(&item);
    return ok;
}

/* "sep": [text, id], "cls": [text, id] */
static bool post_bert(tokenizer *t, const json *j, const char *where, error *err) {
    const json *sep = json_at(json_get(j, "sep"), 1), *cls = json_at(json_get(j, "cls"), 1);
    ids item = {0};
    bool ok = post_id(&item, cls, where, err);
    ids_push(&item, POST_SEQUENCE);
    ok = ok && post_id(&item, sep, where, err);
    if (ok) tokenizer_add_post(t, item.p, item.n);
    ids_free(&item);
    return ok;
}

static bool post_bytes(tokenizer *t, const json *j, const char *where, error *err) {
    return true; /* moves offsets only */
}

static bool post_sequence(tokenizer *t, const json *j, const char *where, error *err) {
    return sequence(t, j, "processors", where, post_build, err);
}

static bool post_build(tokenizer *t, const json *j, const char *where, error *err) {
    static const kind table[] = {
        {"TemplateProcessing", post_template}, {"BertProcessing", post_bert},
        {"RobertaProcessing", post_bert},      {"ByteLevel", post_bytes},
        {"Sequence", post_sequence},
    };
    return build_kind(t, j, where, table, COUNT(table), err);
}

/* ---- models ------------------------------------------------------------------------------------------------------ */
static bool vocab_of(tokenizer *t, const json *vocab, error *err) {
    if (!json_is(vocab, JSON_OBJECT)) return error_set(err, ERR_FORMAT, "tokenizer.json: model.vocab is not an object");
    vocab_init(&t->model.vocab, vocab->n);
    for (uint32_t i = 0; i < vocab->n; i++) {
        const json_member *m = &vocab->members[i];
        if (m->value.type != JSON_INT)
            return error_set(err, ERR_FORMAT, "tokenizer.json: model.vocab[\"%.*s\"] is not an integer",
                             (int)MIN(m->key.n, 80), m->key.p);
        if (!vocab_add(&t->model.vocab, t->a, m->key, m->value.integer, err)) return false;
    }
    return true;
}

static void unk_of(tokenizer *t, const json *j, const char *key) {
    const json *unk = json_get(j, key);
    t->model.has_unk = json_is(unk, JSON_STRING);
    if (t->model.has_unk) t->model.unk = vocab_find(&t->model.vocab, unk->string);
}

static bool merge_parts(const json *m, str *left, str *right) {
    if (json_is(m, JSON_ARRAY) && m->n == 2 && json_is(&m->items[0], JSON_STRING) && json_is(&m->items[1], JSON_STRING))
        return *left = m->items[0].string, *right = m->items[1].string, true;
    if (!json_is(m, JSON_STRING)) return false;
    const char *space = memchr(m->string.p, ' ', m->string.n);
    if (!space) return false;
    *left = (str){m->string.p, (size_t)(space - m->string.p)};
    *right = str_slice(m->string, left->n + 1, m->string.n);
    return !memchr(right->p, ' ', right->n);
}

bool merges_of(tokenizer *t, const json *list, const char *where, error *err) {
    model *m = &t->model;
    if (!json_is(list, JSON_ARRAY)) return error_set(err, ERR_FORMAT, "%s is not an array", where);
    merges_init(&m->merges, list->n);
    buf made = {0};
    bool ok = true;
    for (uint32_t i = 0; i < list->n && ok; i++) {
        str left, right;
        if (!merge_parts(&list->items[i], &left, &right)) {
            ok = error_set(err, ERR_FORMAT, "%s[%u] is not two tokens", where, i);
            break;
        }
        made.n = 0;
        buf_str(&made, left);
        buf_str(&made, str_slice(right, MIN(m->prefix.n, right.n), right.n));
        int32_t l = vocab_find(&m->vocab, left), r = vocab_find(&m->vocab, right),
                id = vocab_find(&m->vocab, buf_view(&made));
        if (l < 0 || r < 0 || id < 0)
            ok = error_set(err, ERR_FORMAT, "%s[%u] \"%.*s\" + \"%.*s\": a part or the whole is not in the vocabulary",
                           where, i, (int)MIN(left.n, 80), left.p, (int)MIN(right.n, 80), right.p);
        else
            merges_put(&m->merges, l, r, i, id);
    }
    buf_free(&made);
    return ok;
}

static bool model_bpe(tokenizer *t, const json *j, const char *where, error *err) {
    model *m = &t->model;
    m->kind = MODEL_BPE;
    if (json_real(json_get(j, "dropout"), 0) != 0)
        return error_set(err, ERR_FORMAT, "tokenizer.json: model.dropout is not supported");
    if (!vocab_of(t, json_get(j, "vocab"), err)) return false;
    unk_of(t, j, "unk_token");
    m->prefix = text_of(t, j, "continuing_subword_prefix", "");
    m->suffix = text_of(t, j, "end_of_word_suffix", "");
    m->fuse_unk = flag_of(j, "fuse_unk", false);
    m->byte_fallback = flag_of(j, "byte_fallback", false);
    m->ignore_merges = flag_of(j, "ignore_merges", false);
    model_find_bytes(m);
    return merges_of(t, json_get(j, "merges"), "tokenizer.json: model.merges", err);
}

/* Called with vocabulary and scores in place. */
void unigram_complete(tokenizer *t) {
    model *m = &t->model;
    trie_key *key = mem_alloc(((size_t)m->vocab.n + 1) * sizeof *key);
    size_t n = 0;
    double least = 0;
    for (int32_t id = 0; id < m->vocab.n; id++) {
        if (!n || m->score[id] < least) least = m->score[id];
        key[n++] = (trie_key){m->vocab.token[id], id};
    }
    m->kind = MODEL_UNIGRAM;
    m->score_unk = least - 10;
    m->fuse_unk = true;
    model_find_bytes(m);
    trie_build(&m->trie, key, n);
    free(key);
}

static bool model_unigram(tokenizer *t, const json *j, const char *where, error *err) {
    model *m = &t->model;
    const json *list = json_get(j, "vocab"), *unk = json_get(j, "unk_id");
    if (!json_is(list, JSON_ARRAY)) return error_set(err, ERR_FORMAT, "tokenizer.json: model.vocab is not an array");
    vocab_init(&m->vocab, list->n);
    m->score = mem_alloc(((size_t)list->n + 1) * sizeof *m->score);
    for (uint32_t i = 0; i < list->n; i++) {
        const json *text = json_at(&list->items[i], 0), *score = json_at(&list->items[i], 1);
        if (!json_is(text, JSON_STRING) || !json_is_number(score))
            return error_set(err, ERR_FORMAT, "tokenizer.json: model.vocab[%u] is not [token, score]", i);
        if (!vocab_add(&m->vocab, t->a, text->string, i, err)) return false;
        m->score[i] = json_real(score, 0);
    }
    m->unk = (int32_t)json_int(unk, -1);
    m->has_unk = m->unk >= 0;
    if (m->unk >= m->vocab.n)
        return error_set(err, ERR_FORMAT, "tokenizer.json: model.unk_id %d is not below %d", m->unk, m->vocab.n);
    m->byte_fallback = flag_of(j, "byte_fallback", false);
    unigram_complete(t);
    return true;
}

static bool model_words(tokenizer *t, const json *j, model_kind kind, error *err) {
    t->model.kind = kind;
    if (!vocab_of(t, json_get(j, "vocab"), err)) return false;
    unk_of(t, j, "unk_token");
    t->model.prefix = text_of(t, j, "continuing_subword_prefix", "##");
    t->model.chars_max = (size_t)MAX(json_int(json_get(j, "max_input_chars_per_word"), 100), 0);
    return true;
}

static bool model_wordpiece(tokenizer *t, const json *j, const char *where, error *err) {
    return model_words(t, j, MODEL_WORDPIECE, err);
}

static bool model_wordlevel(tokenizer *t, const json *j, const char *where, error *err) {
    return model_words(t, j, MODEL_WORDLEVEL, err);
}

static bool model_build(tokenizer *t, const json *j, error *err) {
    static const kind table[] = {
        {"BPE", model_bpe}, {"Unigram", model_unigram}, {"WordPiece", model_wordpiece}, {"WordLevel", model_wordlevel}};
    if (!json_is(j, JSON_OBJECT)) return error_set(err, ERR_FORMAT, "tokenizer.json: model is not an object");
    if (json_get(j, "type")) return build_kind(t, j, "model", table, COUNT(table), err);
    /* Old files do not name it. */
    build_fn *build = json_get(j, "merges")                       ? model_bpe
                      : json_is(json_get(j, "vocab"), JSON_ARRAY) ? model_unigram
                      : json_get(j, "max_input_chars_per_word")   ? model_wordpiece
                                                                  : model_wordlevel;
    return build(t, j, "model", err);
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */
static bool added_build(tokenizer *t, const json *list, error *err) {
    if (!list || list->type == JSON_NULL) return true;
    if (list->type != JSON_ARRAY) return error_set(err, ERR_FORMAT, "tokenizer.json: added_tokens is not an array");
    for (uint32_t i = 0; i < list->n; i++) {
        const json *j = &list->items[i], *content = json_get(j, "content");
        if (!json_is(content, JSON_STRING))
            return error_set(err, ERR_FORMAT, "tokenizer.json: added_tokens[%u].content is not a string", i);
        bool special = flag_of(j, "special", false);
        tokenizer_added_put(t, &(added){.text = content->string,
                                        .single_word = flag_of(j, "single_word", false),
                                        .lstrip = flag_of(j, "lstrip", false),
                                        .rstrip = flag_of(j, "rstrip", false),
                                        .normalized = flag_of(j, "normalized", !special),
                                        .special = special});
    }
    return true;
}

/* "bos_token": "<s>" or {"content": "<s>", ...} */
static int32_t named_token(const tokenizer *t, const json *config, const char *key) {
    const json *j = json_get(config, key);
    str s = json_str(json_is(j, JSON_OBJECT) ? json_get(j, "content") : j, (str){0});
    return s.n ? tokenizer_id(t, s) : -1;
}

tokenizer *tokenizer_from_json(const json *file, const json *config, error *err) {
    tokenizer *t = tokenizer_new();
    if (model_build(t, json_get(file, "model"), err) && added_build(t, json_get(file, "added_tokens"), err) &&
        norm_build(t, json_get(file, "normalizer"), "normalizer", err) &&
        split_build(t, json_get(file, "pre_tokenizer"), "pre_tokenizer", err) &&
        post_build(t, json_get(file, "post_processor"), "post_processor", err) &&
        decoder_build(t, json_get(file, "decoder"), "decoder", err) && tokenizer_complete(t, err)) {
        t->bos = named_token(t, config, "bos_token");
        t->eos = named_token(t, config, "eos_token");
        return t;
    }
    tokenizer_free(t);
    return NULL;
}
