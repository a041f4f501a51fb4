/* Tokenizer files other than tokenizer.json: Mistral's tekken.json and SentencePiece's .model (a protocol buffer). */
#include <stdio.h>
#include <stdlib.h>
#include "tokenizer.h"

/* ---- tekken.json: byte-level tokens by rank ---------------------------------------------------------------------- */
static void spell(str bytes, buf *out) {
    for (size_t i = 0; i < bytes.n; i++) {
        char c[4];
        buf_add(out, c, utf8_put(c, byte_point[(uint8_t)bytes.p[i]]));
    }
}

static bool tekken_special(tokenizer *t, const json *list, int64_t n_special, error *err) {
    char filler[32];
    str *name = mem_alloc((size_t)n_special * sizeof *name);
    bool ok = true;
    for (uint32_t i = 0; json_is(list, JSON_ARRAY) && i < list->n && ok; i++) {
        int64_t rank = json_int(json_get(&list->items[i], "rank"), -1);
        if (rank < 0 || rank >= n_special)
            ok = error_set(err, ERR_FORMAT, "tekken.json: special_tokens[%u].rank %lld is not below %lld", i,
                           (long long)rank, (long long)n_special);
        else
            name[rank] = json_str(json_get(&list->items[i], "token_str"), (str){0});
    }
    for (int64_t i = 0; i < n_special && ok; i++) {
        int n = snprintf(filler, sizeof filler, "<SPECIAL_%lld>", (long long)i);
        ok = vocab_add(&t->model.vocab, t->a, name[i].p ? name[i] : (str){filler, (size_t)n}, i, err);
        if (ok) tokenizer_added_put(t, &(added){.text = t->model.vocab.token[i], .special = true});
    }
    free(name);
    return ok;
}

/* The names that files of the first kind (without special_tokens) stand for. */
static const char *const tekken_first[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

static bool tekken_names(tokenizer *t, int64_t n_special, error *err) {
    char filler[32];
    for (int64_t i = 0; i < n_special; i++) {
        snprintf(filler, sizeof filler, "<SPECIAL_%lld>", (long long)i);
        str s = str_of(i < (int64_t)COUNT(tekken_first) ? tekken_first[i] : filler);
        if (!vocab_add(&t->model.vocab, t->a, s, i, err)) return false;
        tokenizer_added_put(t, &(added){.text = s, .special = true});
    }
    return true;
}

static bool tekken_vocab(tokenizer *t, const json *list, int64_t n_special, int64_t n_vocab, error *err) {
    buf bytes = {0}, text = {0};
    bool ok = true;
    for (uint32_t i = 0; i < list->n && i < n_vocab - n_special && ok; i++) {
        str s = json_str(json_get(&list->items[i], "token_bytes"), (str){0});
        if (json_int(json_get(&list->items[i], "rank"), -1) != i || !s.p) {
            ok = error_set(err, ERR_FORMAT, "tekken.json: vocab[%u] has another rank or no token_bytes", i);
            break;
        }
        bytes.n = text.n = 0;
        ok = base64_decode(s, &bytes) ||
             error_set(err, ERR_FORMAT, "tekken.json: vocab[%u].token_bytes is not base64", i);
        if (!ok) break;
        spell(buf_view(&bytes), &text);
        ok = vocab_add(&t->model.vocab, t->a, buf_view(&text), n_special + i, err);
    }
    buf_free(&bytes), buf_free(&text);
    return ok;
}

static bool tekken_build(tokenizer *t, const json *file, error *err) {
    const json *config = json_get(file, "config"), *list = json_get(file, "vocab"),
               *special = json_get(file, "special_tokens");
    int64_t n_special = json_int(json_get(config, "default_num_special_tokens"), -1);
    int64_t n_vocab = json_int(json_get(config, "default_vocab_size"), -1);
    str source = json_str(json_get(config, "pattern"), (str){0});
    if (n_special < 0 || n_special > 1 << 20 || n_vocab < n_special || n_vocab > TOKEN_ID_MAX || !source.p ||
        !json_is(list, JSON_ARRAY))
        return error_set(err, ERR_FORMAT, "tekken.json: config or vocab is missing or out of range");
    model *m = &t->model;
    m->kind = MODEL_BPE;
    m->ignore_merges = true;
    vocab_init(&m->vocab, (size_t)n_vocab);
    bool named = json_is(special, JSON_ARRAY) && special->n;
    if (!(named ? tekken_special(t, special, n_special, err) : tekken_names(t, n_special, err))) return false;
    if (!tekken_vocab(t, list, n_special, n_vocab, err)) return false;
    uint32_t *rank = mem_alloc((size_t)m->vocab.n * sizeof *rank);
    for (int32_t i = 0; i < m->vocab.n; i++) rank[i] = i < n_special ? UINT32_MAX : (uint32_t)i;
    merges_init(&m->merges, (size_t)m->vocab.n * 3);
    merges_from_ranks(&m->merges, &m->vocab, rank);
    free(rank);
    pattern *find = pattern_regex(source, err);
    if (!find) return error_prefix(err, "tekken.json: config.pattern: "), false;
    tokenizer_add_split(t, (split){.kind = SPLIT_PATTERN, .behavior = SPLIT_ISOLATED, .find = find});
    split_add_bytes(t, false, false);
    tokenizer_add_decoder(t, (decoder){.kind = DECODER_BYTE_LEVEL});
    return true;
}

static void sentence_marks(tokenizer *t) {
    t->bos = tokenizer_id(t, STR("<s>"));
    t->eos = tokenizer_id(t, STR("</s>"));
    if (t->bos >= 0) tokenizer_add_post(t, (int32_t[]){t->bos, POST_SEQUENCE}, 2);
}

tokenizer *tokenizer_from_tekken(const json *file, error *err) {
    tokenizer *t = tokenizer_new();
    if (tekken_build(t, file, err) && tokenizer_complete(t, err)) {
        sentence_marks(t);
        return t;
    }
    tokenizer_free(t);
    return NULL;
}

/* ---- SentencePiece .model ---------------------------------------------------------------------------------------- */
typedef struct wire { /* one protocol buffer message */
    const uint8_t *p, *end;
    uint32_t field, type;
    uint64_t number; /* varint, fixed32, fixed64 */
    str bytes;
} wire;

static bool varint(wire *w, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 64 && w->p < w->end; shift += 7) {
        uint8_t b = *w->p++;
        *v |= (uint64_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return false;
}

/* The next field; false at the end (p == end) or when the bytes are not a message (p != end). */
static bool wire_next(wire *w) {
    uint64_t tag;
    if (w->p == w->end) return false;
    const uint8_t *start = w->p;
    if (!varint(w, &tag)) return w->p = start, false;
    w->field = (uint32_t)(tag >> 3), w->type = tag & 7;
    uint64_t n = w->type == 5 ? 4 : 8;
    if (w->type == 0) return varint(w, &w->number) || (w->p = start, false);
    if (w->type == 2 && !varint(w, &n)) return w->p = start, false;
    if ((w->type != 1 && w->type != 2 && w->type != 5) || n > (uint64_t)(w->end - w->p)) return w->p = start, false;
    w->bytes = (str){(const char *)w->p, n};
    if (w->type != 2) w->number = 0, memcpy(&w->number, w->p, n);
    w->p += n;
    return true;
}

static wire wire_of(str s) {
    return (wire){.p = (const uint8_t *)s.p, .end = (const uint8_t *)s.p + s.n};
}

enum { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER, PIECE_UNUSED, PIECE_BYTE };
typedef struct sentencepiece {
    uint8_t *type; /* owns */
    double *score; /* owns */
    size_t n, cap;
    int model; /* 1 unigram, 2 BPE, 3 word, 4 char */
    bool byte_fallback, space_prefix, squeeze, escape;
    str charsmap;
} sentencepiece;

static bool piece_read(tokenizer *t, sentencepiece *sp, str message, error *err) {
    wire w = wire_of(message);
    str text = {"", 0};
    float score = 0;
    int64_t type = PIECE_NORMAL;
    while (wire_next(&w)) {
        if (w.field == 1 && w.type == 2) text = w.bytes;
        if (w.field == 2 && w.type == 5) memcpy(&score, &w.number, 4);
        if (w.field == 3 && w.type == 0) type = (int64_t)w.number;
    }
    if (w.p != w.end || utf8_valid(text) < text.n || type < PIECE_NORMAL || type > PIECE_BYTE)
        return error_set(err, ERR_FORMAT, "tokenizer.model: piece %zu is damaged", sp->n);
    if (sp->n == sp->cap) {
        sp->cap = sp->cap ? sp->cap * 2 : 1024;
        sp->type = mem_resize(sp->type, sp->cap);
        sp->score = mem_resize(sp->score, sp->cap * sizeof *sp->score);
    }
    sp->type[sp->n] = (uint8_t)type;
    sp->score[sp->n] = score;
    return vocab_add(&t->model.vocab, t->a, text, (int64_t)sp->n++, err);
}

static bool sentencepiece_read(tokenizer *t, sentencepiece *sp, str file, error *err) {
    wire w = wire_of(file);
    vocab_init(&t->model.vocab, 32768);
    while (wire_next(&w)) {
        if (w.type != 2) continue;
        if (w.field == 1 && !piece_read(t, sp, w.bytes, err)) return false;
        wire in = wire_of(w.bytes);
        while (w.field == 2 && wire_next(&in)) { /* TrainerSpec */
            if (in.field == 3 && in.type == 0) sp->model = (int)in.number;
            if (in.field == 35 && in.type == 0) sp->byte_fallback = in.number;
            if (in.field == 40 && in.type == 0) t->model.unk = (int32_t)in.number;
            if (in.field == 41 && in.type == 0) t->bos = (int32_t)in.number;
            if (in.field == 42 && in.type == 0) t->eos = (int32_t)in.number;
        }
        while (w.field == 3 && wire_next(&in)) { /* NormalizerSpec */
            if (in.field == 2 && in.type == 2) sp->charsmap = in.bytes;
            if (in.field == 3 && in.type == 0) sp->space_prefix = in.number;
            if (in.field == 4 && in.type == 0) sp->squeeze = in.number;
            if (in.field == 5 && in.type == 0) sp->escape = in.number;
        }
    }
    if (w.p != w.end || sp->n == 0)
        return error_set(err, ERR_FORMAT, "tokenizer.model: not a SentencePiece model (damaged at byte %zu)",
                         (size_t)(w.p - (const uint8_t *)file.p));
    if (!sp->escape) return error_set(err, ERR_FORMAT, "tokenizer.model: escape_whitespaces=false is not supported");
    return true;
}

static bool sentencepiece_build(tokenizer *t, sentencepiece *sp, error *err) {
    model *m = &t->model;
    for (size_t i = 0; i < sp->n; i++) {
        if (sp->type[i] == PIECE_UNKNOWN) m->unk = (int32_t)i;
        if (sp->type[i] == PIECE_UNUSED)
            return error_set(err, ERR_FORMAT, "tokenizer.model: piece %zu: unused pieces are not supported", i);
        if (sp->type[i] == PIECE_UNKNOWN || sp->type[i] == PIECE_CONTROL || sp->type[i] == PIECE_USER)
            tokenizer_added_put(t, &(added){.text = m->vocab.token[i], .special = sp->type[i] != PIECE_USER});
    }
    m->has_unk = m->unk >= 0 && m->unk < m->vocab.n;
    if (!m->has_unk) m->unk = -1;
    m->byte_fallback = sp->byte_fallback;
    if (sp->charsmap.n) {
        norm n = {.kind = NORM_CHARSMAP};
        if (!charsmap_open(t, sp->charsmap, &n.map, err)) return error_prefix(err, "tokenizer.model: "), false;
        n.map.longest = true;
        tokenizer_add_norm(t, n);
    }
    if (sp->squeeze) norms_squeeze(t);
    norms_sentencepiece(t, sp->space_prefix);
    decoders_sentencepiece(t, sp->space_prefix);
    if (sp->model == 1) {
        m->score = sp->score, sp->score = NULL;
        unigram_complete(t);
        return true;
    }
    if (sp->model != 2) return error_set(err, ERR_FORMAT, "tokenizer.model: model type %d is not supported", sp->model);
    m->kind = MODEL_BPE;
    m->fuse_unk = true;
    model_find_bytes(m);
    uint8_t *merged = mem_alloc(sp->n);
    for (size_t i = 0; i < sp->n; i++) merged[i] = sp->type[i] == PIECE_NORMAL || sp->type[i] == PIECE_USER;
    merges_from_scores(m, sp->score, merged);
    free(merged);
    return true;
}

tokenizer *tokenizer_from_sentencepiece(str file, error *err) {
    tokenizer *t = tokenizer_new();
    sentencepiece sp = {.model = 1, .space_prefix = true, .squeeze = true, .escape = true};
    bool ok = sentencepiece_read(t, &sp, file, err) && sentencepiece_build(t, &sp, err) && tokenizer_complete(t, err);
    free(sp.type), free(sp.score);
    if (!ok) {
        tokenizer_free(t);
        return NULL;
    }
    sentence_marks(t);
    return t;
}
