/* tokenizer: the parts that the tokenizer files share. Callers outside the tokenizer use text.h.
 * Flow of an encode: added tokens cut out (tokenizer.c) -> normalizers (tokenizer_norm.c) -> pre-tokenizers
 * (tokenizer_split.c, patterns in tokenizer_pattern.c) -> model (tokenizer_bpe.c, _unigram.c, _word.c) ->
 * post-processor (tokenizer.c). Decoders: detok.c. Built by tokenizer_json.c, tokenizer_gguf.c, tokenizer_files.c. */
#pragma once
#include "text.h"
#include "unicode.h"

/* ---- vocabulary and tries (tokenizer_vocab.c) -------------------------------------------------------------------- */
enum { VOCAB_DIRECT = 0x400, TOKEN_ID_MAX = 1 << 24 };

typedef struct vocab {
    str *token;     /* [n] owns the array; text borrows (tokenizer's arena); p NULL: no such id */
    int32_t n, cap; /* ids are below n */
    uint32_t count; /* distinct spellings */
    uint64_t *slot; /* owns; open addressing; 0: free */
    uint32_t mask;
    int32_t direct[VOCAB_DIRECT]; /* id of a single low code point, -1 */
} vocab;
void vocab_init(vocab *v, size_t expected);
void vocab_deinit(vocab *v);
bool vocab_add(vocab *v, arena *a, str token, int64_t id, error *err); /* a spelling seen before gets the new id */
int32_t vocab_find(const vocab *v, str token);                         /* -1 */
int32_t vocab_find_point(const vocab *v, uint32_t cp, str spelled);    /* the same for one code point, faster */

typedef struct trie_node {
    uint32_t first; /* children are first .. first+n, by rising byte */
    uint16_t n;
    uint8_t byte;
    int32_t value; /* -1: no key ends here */
} trie_node;
typedef struct trie {
    trie_node *node; /* owns; node 0 is the root */
    uint32_t n;
    uint32_t root[256]; /* child of the root by byte, 0: none */
} trie;
typedef struct trie_key {
    str s;
    int32_t value; /* of equal keys the last one given wins */
} trie_key;
void trie_build(trie *t, trie_key *key, size_t n); /* sorts key; keys may borrow, they are not kept */
void trie_deinit(trie *t);
static inline uint32_t trie_step(const trie *t, uint32_t at, uint8_t byte) { /* 0: no such child */
    if (at == 0) return t->root[byte];
    const trie_node *p = &t->node[at];
    uint32_t low = p->first, high = p->first + p->n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (t->node[mid].byte < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low < p->first + p->n && t->node[low].byte == byte ? low : 0;
}

/* ---- patterns (tokenizer_pattern.c) ------------------------------------------------------------------------------ */
/* Finds matches from left to right. Either a literal, a hand-written matcher, a class of code points, or PCRE2. */
typedef struct pattern pattern;
pattern *pattern_literal(str s);
pattern *pattern_regex(str source, error *err);
pattern *pattern_class(bool (*in)(uint32_t cp, const void *arg), const void *arg);
void pattern_free(pattern *p);
void regex_translate(str source, buf *out); /* Oniguruma's syntax to PCRE2's (tokenizer_regex.c) */
/* All matches in s, some may be empty, as from,to pairs appended to out (cleared first). ERR_INVALID when PCRE2's
 * limits are hit. */
typedef struct span {
    size_t from, to;
} span;
typedef struct spans {
    span *p; /* owns */
    size_t n, cap;
} spans;
void spans_push(spans *v, size_t from, size_t to);
bool pattern_find(const pattern *p, str s, spans *out, error *err);

/* ---- text with the mask of its client bytes ---------------------------------------------------------------------- */
typedef struct masked {
    buf text;
    buf user; /* one byte a byte of text; only when marked */
    bool marked;
    bool head; /* the first byte of text comes from the first byte of the whole input */
} masked;
void masked_add(masked *m, str s, const uint8_t *user);                 /* user: mask of s or NULL */
void masked_fill(masked *m, str s, const uint8_t *user, size_t n_user); /* s stands for n_user bytes of mask */

/* ---- normalizers (tokenizer_norm.c) ------------------------------------------------------------------------------ */
typedef enum norm_kind {
    NORM_FORM,
    NORM_LOWERCASE,
    NORM_STRIP_ACCENTS,
    NORM_BERT,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_STRIP,
    NORM_CHARSMAP,
    NORM_NMT,
    NORM_BYTES,
} norm_kind;
typedef struct charsmap {
    const uint32_t *unit; /* owns (tokenizer's arena) */
    size_t n_units;
    str texts;
    bool longest; /* as sentencepiece; else as `tokenizers`: by grapheme, and the shortest key */
} charsmap;
typedef struct norm {
    norm_kind kind;
    unicode_form form;
    pattern *find;                       /* owns; NORM_REPLACE */
    str text;                            /* replacement or what is put in front; borrows (arena) */
    bool clean, chinese, accents, lower; /* NORM_BERT; accents: they are stripped */
    bool left, right;                    /* NORM_STRIP */
    charsmap map;
} norm;
bool norm_run(const norm *n, size_t count, masked *text, error *err); /* in place */

/* ---- pre-tokenizers (tokenizer_split.c) -------------------------------------------------------------------------- */
typedef enum split_behavior {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;
typedef enum split_kind { SPLIT_PATTERN, SPLIT_PREFIX_SPACE, SPLIT_BYTES, SPLIT_METASPACE, SPLIT_LENGTH } split_kind;
typedef enum prepend_when { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_when;
typedef struct split {
    split_kind kind;
    split_behavior behavior;
    bool invert;
    pattern *find;        /* owns; SPLIT_PATTERN; SPLIT_METASPACE: its replacement, or NULL when it does not split */
    str text;             /* SPLIT_METASPACE: the replacement for ' '; borrows (arena) */
    prepend_when prepend; /* SPLIT_METASPACE */
    size_t length;        /* SPLIT_LENGTH: code points a piece */
} split;
typedef struct piece {
    size_t at, n;
    bool head; /* starts at the first byte of the whole input */
} piece;
typedef struct pieces {
    buf text;
    piece *p; /* owns */
    size_t n, cap;
} pieces;
void pieces_free(pieces *v);
bool split_run(const split *s, size_t count, str text, bool head, pieces *out, error *err);

/* The byte-level alphabet: a printable code point for each byte, and back. */
extern const uint16_t byte_point[256];
int byte_of_point(uint32_t cp); /* -1: not of the alphabet */

/* ---- models ------------------------------------------------------------------------------------------------------ */
typedef enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL } model_kind;
typedef struct merge {
    uint64_t pair; /* left << 32 | right; EMPTY when free */
    uint32_t rank;
    int32_t id;
} merge;
typedef struct merges {
    merge *slot; /* owns */
    uint64_t mask;
    size_t n;
} merges;
#define MERGE_EMPTY UINT64_MAX
void merges_init(merges *m, size_t expected);
void merges_put(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id); /* the last one given wins */
/* Every split of every token of two known parts becomes a merge; rank [n] is the token's (UINT32_MAX: never made). */
void merges_from_ranks(merges *m, const vocab *v, const uint32_t *rank);

typedef struct model {
    model_kind kind;
    vocab vocab;
    int32_t unk;  /* id, -1: none */
    bool has_unk; /* named, even if not in the vocabulary */
    bool byte_fallback, fuse_unk;
    int32_t byte_id[256]; /* of <0x00> ..., -1 */
    /* BPE */
    merges merges;
    bool ignore_merges;
    str prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix; WordPiece uses prefix */
    /* Unigram */
    double *score; /* owns; [vocab.n] */
    double score_unk;
    trie trie;
    /* WordPiece */
    size_t chars_max;
} model;
bool bpe_encode(const model *m, str piece, ids *out, error *err);
bool unigram_encode(const model *m, str piece, ids *out, error *err);
bool wordpiece_encode(const model *m, str piece, ids *out, error *err);
bool wordlevel_encode(const model *m, str piece, ids *out, error *err);
void model_find_bytes(model *m); /* fills byte_id */

/* ---- decoders (detok.c) ------------------------------------------------------------------------------------------ */
typedef enum decoder_kind {
    DECODER_BYTE_LEVEL,
    DECODER_METASPACE,
    DECODER_BYTE_FALLBACK,
    DECODER_FUSE,
    DECODER_STRIP,
    DECODER_REPLACE,
    DECODER_WORDPIECE,
    DECODER_BPE,
    DECODER_JOIN,
} decoder_kind;
typedef struct decoder {
    decoder_kind kind;
    str from, to;     /* REPLACE, METASPACE (from ' '), WORDPIECE (prefix), BPE (suffix); borrow (arena) */
    pattern *find;    /* owns; REPLACE by regex, else NULL */
    uint32_t content; /* STRIP */
    size_t start, stop;
    bool flag; /* METASPACE: drop in the first token; WORDPIECE: clean up */
} decoder;

/* ---- added tokens and the whole ---------------------------------------------------------------------------------- */
typedef struct added {
    str text;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool harmless; /* not special and no markup: a client's text may spell it */
} added;
enum { POST_SEQUENCE = -1 };
typedef struct post {
    int32_t *item; /* owns; ids and POST_SEQUENCE */
    size_t n;
} post;

struct tokenizer {
    arena *a;
    model model;
    norm *norm;
    size_t n_norm; /* owns, as all below */
    split *split;
    size_t n_split;
    decoder *decoder;
    size_t n_decoder;
    post *post;
    size_t n_post;
    added *added;
    size_t n_added;
    trie raw, normalized; /* values index added */
    map *added_id;        /* text -> id */
    int32_t added_max;    /* greatest id of an added token, 0 at first */
    str *added_text;      /* [n_ids]; borrow (arena); p NULL where the vocabulary's text holds */
    uint8_t *special;     /* [n_ids] 1: dropped by skip_special */
    int32_t n_ids;
    int32_t bos, eos;
    size_t longest; /* bytes of the longest token's spelling */
};
tokenizer *tokenizer_new(void);
/* Called once all parts are there: numbers the added tokens, builds the tries. */
bool tokenizer_complete(tokenizer *t, error *err);
void tokenizer_added_put(tokenizer *t, const added *token); /* text is copied; id is found or given here */
/* Cuts text at added tokens, into stretches that cover it all. */
typedef struct added_match {
    size_t from, to;
    int32_t id; /* -1: plain text */
} added_match;
typedef struct added_matches {
    added_match *p; /* owns */
    size_t n, cap;
} added_matches;
void added_find(const tokenizer *t, bool normalized, str s, const uint8_t *user, added_matches *out);

str arena_str(arena *a, str s); /* a copy that lives as long as the arena */

/* ---- builders ---------------------------------------------------------------------------------------------------- */
tokenizer *tokenizer_from_gguf(const json *meta, error *err);
tokenizer *tokenizer_from_tekken(const json *tekken, error *err);
tokenizer *tokenizer_from_sentencepiece(str file, error *err);
void tokenizer_add_split(tokenizer *t, split s);
void tokenizer_add_norm(tokenizer *t, norm n);
void tokenizer_add_decoder(tokenizer *t, decoder d);
void tokenizer_add_post(tokenizer *t, const int32_t *item, size_t n);
void split_add_bytes(tokenizer *t, bool prefix_space, bool gpt2); /* ByteLevel; gpt2: with its own split pattern */
void split_add_words(tokenizer *t);                               /* as BertPreTokenizer */
void norms_sentencepiece(tokenizer *t, bool space_prefix);
void decoders_sentencepiece(tokenizer *t, bool space_prefix);
void norms_squeeze(tokenizer *t); /* spaces at the ends go, runs become one */
void merges_from_scores(model *m, const double *score, const uint8_t *merged);
bool merges_of(tokenizer *t, const json *list, const char *where, error *err);
void unigram_complete(tokenizer *t); /* vocabulary and scores are in place */
bool charsmap_open(tokenizer *t, str bytes, charsmap *m, error *err);
bool base64_decode(str s, buf *out);
