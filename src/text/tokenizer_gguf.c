/* Tokenizers from GGUF metadata: the file names a kind ("gpt2", "llama", ...) and a split ("llama-bpe", "qwen2", ...);
 * what those stand for is in two tables here. The result is what the same model's tokenizer.json would give. */
#include <stdlib.h>
#include "tokenizer.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT2         "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K       CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define QWEN2        CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define QWEN35       CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL
#define O200K                                                                                            \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define TEKKEN                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define DEEPSEEK3                                                                                         \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| " \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL
#define KANA_HAN "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

/* tokenizer.ggml.pre -> the split patterns, in order. */
enum { PRE_PATTERNS = 5 };
static const struct pre {
    const char *names; /* with a space around each */
    const char *pattern[PRE_PATTERNS];
    bool ignore_merges, nfc;
} pre_table[] = {
    {" gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v2-code mpt olmo jais roberta-bpe gigachat exaone-moe ",
     {GPT2},
     0,
     0},
    {" starcoder refact command-r smollm codeshell minerva exaone ", {"\\p{N}", GPT2}, 0, 0},
    {" llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", {CL100K}, 1, 0},
    {" dbrx smaug-bpe chatglm-bpe glm4 ", {CL100K}, 0, 0},
    {" qwen2 deepseek-r1-qwen megrez kormo ", {QWEN2}, 0, 1},
    {" stablelm2 hunyuan ", {QWEN2}, 0, 0},
    {" qwen35 ", {QWEN35}, 0, 1},
    {" gpt-4o llama4 ", {O200K}, 0, 0},
    {" tekken ", {TEKKEN}, 1, 0},
    {" deepseek-v3 hunyuan-dense joyai-llm ", {"\\p{N}{1,3}", KANA_HAN, DEEPSEEK3}, 0, 0},
    {" deepseek-coder ",
     {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", "\\p{N}"},
     0,
     0},
    {" falcon ", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, 0, 0},
    {" default ", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0, 0},
};

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

static const json *meta_of(const json *meta, const char *name) {
    char key[96] = "tokenizer.ggml.";
    strncat(key, name, sizeof key - strlen(key) - 1);
    return json_get(meta, key);
}

/* A token id below `n`; -1 when the key is absent or says something else. */
static int32_t id_of(const json *meta, const char *key, int32_t n) {
    int64_t id = json_int(meta_of(meta, key), -1);
    return id >= 0 && id < n ? (int32_t)id : -1;
}

static int64_t type_of(const json *types, uint32_t i) {
    return json_int(json_at(types, i), TYPE_NORMAL);
}

/* Token texts; bytes that are not UTF-8 become U+FFFD, since all that follows works on characters. */
static bool tokens_read(tokenizer *t, const json *meta, error *err) {
    const json *list = meta_of(meta, "tokens"), *types = meta_of(meta, "token_type");
    if (!json_is(list, JSON_ARRAY) || list->n == 0)
        return error_set(err, ERR_FORMAT, "tokenizer.ggml.tokens is missing or not an array");
    if (json_is(types, JSON_ARRAY) && types->n != list->n)
        return error_set(err, ERR_FORMAT, "tokenizer.ggml.token_type has %u items for %u tokens", types->n, list->n);
    vocab_init(&t->model.vocab, list->n);
    buf fixed = {0};
    bool ok = true;
    for (uint32_t i = 0; i < list->n && ok; i++) {
        const json *j = &list->items[i];
        if (j->type != JSON_STRING) {
            ok = error_set(err, ERR_FORMAT, "tokenizer.ggml.tokens[%u] is not a string", i);
            break;
        }
        str s = j->string;
        if (utf8_valid(s) < s.n) {
            fixed.n = 0;
            utf8_lossy(s, &fixed);
            s = buf_view(&fixed);
        }
        ok = vocab_add(&t->model.vocab, t->a, s, i, err);
    }
    buf_free(&fixed);
    return ok;
}

static void added_read(tokenizer *t, const json *meta) {
    const json *types = meta_of(meta, "token_type");
    for (int32_t i = 0; i < t->model.vocab.n; i++) {
        int64_t type = type_of(types, (uint32_t)i);
        if (type == TYPE_CONTROL || type == TYPE_UNKNOWN || type == TYPE_USER)
            tokenizer_added_put(t, &(added){.text = t->model.vocab.token[i], .special = type != TYPE_USER});
    }
}

/* ---- "gpt2": byte-level BPE -------------------------------------------------------------------------------------- */
static bool splits_add(tokenizer *t, const json *meta, error *err) {
    str name = json_str(meta_of(meta, "pre"), STR("default"));
    char key[80];
    if (name.n > sizeof key - 3 || memchr(name.p, ' ', name.n))
        return error_set(err, ERR_FORMAT, "tokenizer.ggml.pre is not a name");
    key[0] = ' ', memcpy(key + 1, name.p, name.n), memcpy(key + 1 + name.n, " ", 2);
    for (size_t i = 0; i < COUNT(pre_table); i++) {
        const struct pre *p = &pre_table[i];
        if (!strstr(p->names, key)) continue;
        t->model.ignore_merges = p->ignore_merges;
        if (p->nfc) tokenizer_add_norm(t, (norm){.kind = NORM_FORM, .form = FORM_NFC});
        if (json_bool(meta_of(meta, "add_space_prefix"), false))
            tokenizer_add_split(t, (split){.kind = SPLIT_PREFIX_SPACE});
        for (size_t k = 0; k < PRE_PATTERNS && p->pattern[k]; k++) {
            pattern *find = pattern_regex(str_of(p->pattern[k]), err);
            if (!find) return false;
            tokenizer_add_split(t, (split){.kind = SPLIT_PATTERN, .behavior = SPLIT_ISOLATED, .find = find});
        }
        split_add_bytes(t, false, false);
        return true;
    }
    return error_set(err, ERR_FORMAT, "tokenizer.ggml.pre \"%.*s\" is not supported", (int)name.n, name.p);
}

static bool build_gpt2(tokenizer *t, const json *meta, error *err) {
    t->model.kind = MODEL_BPE;
    added_read(t, meta);
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_BYTE_LEVEL});
    return merges_of(t, meta_of(meta, "merges"), "tokenizer.ggml.merges", err) && splits_add(t, meta, err);
}

/* ---- "llama": SentencePiece BPE by scores ------------------------------------------------------------------------ */
static int score_order(const void *a, const void *b, void *score) {
    double x = ((const double *)score)[*(const int32_t *)a], y = ((const double *)score)[*(const int32_t *)b];
    return x != y ? (x > y ? -1 : 1) : 0;
}

/* Greater scores merge first; equal ones share a rank, so that the leftmost goes first. `merged` [n]: may come out of a
 * merge. */
void merges_from_scores(model *m, const double *score, const uint8_t *merged) {
    int32_t n = m->vocab.n, *order = mem_alloc((size_t)n * sizeof *order);
    uint32_t *rank = mem_alloc((size_t)n * sizeof *rank), r = 0;
    for (int32_t i = 0; i < n; i++) order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, score_order, (void *)score);
    for (int32_t i = 0; i < n; i++) {
        if (i && score[order[i]] != score[order[i - 1]]) r = (uint32_t)i;
        rank[order[i]] = merged[order[i]] ? r : UINT32_MAX;
    }
    merges_init(&m->merges, (size_t)n * 3);
    merges_from_ranks(&m->merges, &m->vocab, rank);
    free(order), free(rank);
}

static bool scores_read(tokenizer *t, const json *meta, double **score, error *err) {
    const json *list = meta_of(meta, "scores");
    if (!json_is(list, JSON_ARRAY) || list->n != (uint32_t)t->model.vocab.n)
        return error_set(err, ERR_FORMAT, "tokenizer.ggml.scores is missing or has not one item for each of %d tokens",
                         t->model.vocab.n);
    *score = mem_alloc((size_t)list->n * sizeof **score);
    for (uint32_t i = 0; i < list->n; i++) (*score)[i] = json_real(&list->items[i], 0);
    return true;
}

void decoders_sentencepiece(tokenizer *t, bool space_prefix) {
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_REPLACE, .from = STR("\u2581"), .to = STR(" ")});
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_BYTE_FALLBACK});
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_FUSE});
    if (space_prefix) tokenizer_add_decoder(t, (decoder){.kind = DECODER_STRIP, .content = ' ', .start = 1});
}

void norms_sentencepiece(tokenizer *t, bool space_prefix) {
    if (space_prefix) tokenizer_add_norm(t, (norm){.kind = NORM_PREPEND, .text = STR("\u2581")});
    tokenizer_add_norm(t, (norm){.kind = NORM_REPLACE, .find = pattern_literal(STR(" ")), .text = STR("\u2581")});
}

void norms_squeeze(tokenizer *t) {
    tokenizer_add_norm(t, (norm){.kind = NORM_REPLACE, .find = pattern_regex(STR(" {2,}"), NULL), .text = STR(" ")});
    tokenizer_add_norm(t,
                       (norm){.kind = NORM_REPLACE, .find = pattern_regex(STR("\\A +| +\\z"), NULL), .text = STR("")});
}

static void unk_read(tokenizer *t, const json *meta, const char *key) {
    t->model.unk = id_of(meta, key, t->model.vocab.n);
    t->model.has_unk = t->model.unk >= 0;
}

static bool build_llama(tokenizer *t, const json *meta, error *err) {
    const json *types = meta_of(meta, "token_type");
    model *m = &t->model;
    m->kind = MODEL_BPE;
    m->byte_fallback = m->fuse_unk = true;
    unk_read(t, meta, "unknown_token_id");
    if (!m->has_unk) m->has_unk = (m->unk = vocab_find(&m->vocab, STR("<unk>"))) >= 0;
    model_find_bytes(m);
    double *score = NULL;
    if (!scores_read(t, meta, &score, err)) return false;
    uint8_t *merged = mem_alloc((size_t)m->vocab.n);
    for (int32_t i = 0; i < m->vocab.n; i++) {
        int64_t type = type_of(types, (uint32_t)i);
        merged[i] = type == TYPE_NORMAL || type == TYPE_USER;
    }
    merges_from_scores(m, score, merged);
    free(score), free(merged);
    added_read(t, meta);
    bool prefix = json_bool(meta_of(meta, "add_space_prefix"), true);
    norms_sentencepiece(t, prefix);
    decoders_sentencepiece(t, prefix);
    return true;
}

/* ---- "gemma4": BPE by merges, over characters as SentencePiece has them ------------------------------------------ */
static bool build_gemma4(tokenizer *t, const json *meta, error *err) {
    model *m = &t->model;
    m->kind = MODEL_BPE;
    m->byte_fallback = m->fuse_unk = true;
    unk_read(t, meta, "unknown_token_id");
    if (!m->has_unk) m->has_unk = (m->unk = vocab_find(&m->vocab, STR("<unk>"))) >= 0;
    model_find_bytes(m);
    added_read(t, meta);
    norms_sentencepiece(t, false);
    decoders_sentencepiece(t, false);
    return merges_of(t, meta_of(meta, "merges"), "tokenizer.ggml.merges", err);
}

/* ---- "t5": unigram ----------------------------------------------------------------------------------------------- */
static bool charsmap_read(tokenizer *t, const json *meta, error *err) {
    const json *list = meta_of(meta, "precompiled_charsmap");
    if (!list || list->n == 0) return true;
    buf bytes = {0};
    for (uint32_t i = 0; i < list->n; i++) buf_putc(&bytes, (char)json_int(json_at(list, i), 0));
    norm n = {.kind = NORM_CHARSMAP};
    bool ok = charsmap_open(t, buf_view(&bytes), &n.map, err);
    if (ok) tokenizer_add_norm(t, n);
    buf_free(&bytes);
    return ok;
}

static bool build_t5(tokenizer *t, const json *meta, error *err) {
    unk_read(t, meta, "unknown_token_id");
    if (!scores_read(t, meta, &t->model.score, err) || !charsmap_read(t, meta, err)) return false;
    unigram_complete(t);
    added_read(t, meta);
    if (json_bool(meta_of(meta, "remove_extra_whitespaces"), true)) {
        tokenizer_add_norm(t, (norm){.kind = NORM_STRIP, .right = true});
        tokenizer_add_norm(
            t, (norm){.kind = NORM_REPLACE, .find = pattern_regex(STR(" {2,}"), NULL), .text = STR("\u2581")});
    }
    bool prefix = json_bool(meta_of(meta, "add_space_prefix"), true);
    tokenizer_add_split(t, (split){.kind = SPLIT_METASPACE,
                                   .behavior = SPLIT_WITH_NEXT,
                                   .text = STR("\u2581"),
                                   .prepend = prefix ? PREPEND_ALWAYS : PREPEND_NEVER,
                                   .find = pattern_literal(STR("\u2581"))});
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_METASPACE, .from = STR("\u2581"), .flag = prefix});
    return true;
}

/* ---- "bert": WordPiece ------------------------------------------------------------------------------------------- */
/* The file marks the first piece of a word by U+2581 and later ones not at all; here later ones have "##". */
static bool build_bert(tokenizer *t, const json *meta, error *err) {
    const json *types = meta_of(meta, "token_type");
    vocab marked = t->model.vocab;
    t->model.vocab = (vocab){0};
    vocab_init(&t->model.vocab, (size_t)marked.n);
    buf text = {0};
    bool ok = true;
    for (int32_t i = 0; i < marked.n && ok; i++) {
        str s = marked.token[i];
        text.n = 0;
        if (str_starts(s, STR("\u2581")))
            s = str_slice(s, 3, s.n);
        else if (type_of(types, (uint32_t)i) == TYPE_NORMAL && !(str_starts(s, STR("[")) && str_ends(s, STR("]"))))
            buf_puts(&text, "##");
        buf_str(&text, s);
        ok = vocab_add(&t->model.vocab, t->a, buf_view(&text), i, err);
    }
    buf_free(&text);
    vocab_deinit(&marked);
    t->model.kind = MODEL_WORDPIECE;
    t->model.prefix = STR("##");
    t->model.chars_max = 100;
    unk_read(t, meta, "unknown_token_id");
    if (!t->model.has_unk) t->model.unk = vocab_find(&t->model.vocab, STR("[UNK]"));
    added_read(t, meta);
    tokenizer_add_norm(t, (norm){.kind = NORM_BERT, .clean = true, .chinese = true, .accents = true, .lower = true});
    split_add_words(t);
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_WORDPIECE, .from = STR("##"), .flag = true});
    return ok;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */
static void post_read(tokenizer *t, const json *meta, bool bos, bool eos) {
    int32_t item[3], n = 0;
    int32_t sep = id_of(meta, "seperator_token_id", t->n_ids); /* spelled so in the files */
    if (sep < 0) sep = id_of(meta, "separator_token_id", t->n_ids);
    int32_t cls = id_of(meta, "cls_token_id", t->n_ids);
    bool bert = t->model.kind == MODEL_WORDPIECE;
    int32_t first = bert && cls >= 0 ? cls : t->bos, last = bert && sep >= 0 ? sep : t->eos;
    if (json_bool(meta_of(meta, "add_bos_token"), bos) && first >= 0) item[n++] = first;
    item[n++] = POST_SEQUENCE;
    if (json_bool(meta_of(meta, "add_eos_token"), eos) && last >= 0) item[n++] = last;
    if (n > 1) tokenizer_add_post(t, item, (size_t)n);
}

tokenizer *tokenizer_from_gguf(const json *meta, error *err) {
    static const struct {
        const char *name;
        bool (*build)(tokenizer *t, const json *meta, error *err);
        bool bos, eos; /* added unless the file says otherwise */
    } kinds[] = {{"gpt2", build_gpt2, 0, 0},
                 {"llama", build_llama, 1, 0},
                 {"gemma4", build_gemma4, 1, 0},
                 {"t5", build_t5, 0, 1},
                 {"bert", build_bert, 1, 1}};
    str name = json_str(meta_of(meta, "model"), STR("(none)"));
    size_t k = 0;
    while (k < COUNT(kinds) && !str_is(name, kinds[k].name)) k++;
    if (k == COUNT(kinds)) {
        error_set(err, ERR_FORMAT, "tokenizer.ggml.model \"%.*s\" is not supported", (int)MIN(name.n, 80), name.p);
        return NULL;
    }
    tokenizer *t = tokenizer_new();
    if (tokens_read(t, meta, err) && kinds[k].build(t, meta, err) && tokenizer_complete(t, err)) {
        t->bos = id_of(meta, "bos_token_id", t->n_ids);
        t->eos = id_of(meta, "eos_token_id", t->n_ids);
        post_read(t, meta, kinds[k].bos, kinds[k].eos);
        return t;
    }
    tokenizer_free(t);
    return NULL;
}
