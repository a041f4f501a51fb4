/* Patterns: finding the pieces of a text. The split patterns of the common tokenizers are matched by hand, keyed by
 * their exact source; every other regular expression goes to PCRE2, whose older Unicode is hidden by giving it
 * look-alikes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include "tokenizer.h"

typedef size_t matcher(str s, size_t at); /* end of the match that starts at `at`; at when none does */

struct pattern {
    enum { BY_LITERAL, BY_HAND, BY_CLASS, BY_PCRE } how;
    str literal; /* owns */
    matcher *match;
    bool (*in)(uint32_t cp, const void *arg);
    const void *arg;             /* borrows */
    pcre2_code *code;            /* owns */
    pcre2_match_context *limits; /* owns */
};

void spans_push(spans *v, size_t from, size_t to) {
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 64;
        v->p = mem_resize(v->p, v->cap * sizeof *v->p);
    }
    v->p[v->n++] = (span){from, to};
}

/* ---- matching by hand -------------------------------------------------------------------------------------------- */
enum { END = 0x110000 }; /* what peeking past the end gives; of no category that the patterns name */

static inline uint32_t peek(str s, size_t at, size_t *n) {
    if (at >= s.n) return *n = 0, END;
    return utf8_get(s.p + at, n);
}

static inline bool in(uint32_t cp, uint32_t categories) {
    return cp != END && unicode_in(cp, categories);
}

static inline bool space(uint32_t cp) {
    return cp != END && unicode_is_space(cp);
}

static inline bool newline(uint32_t cp) {
    return cp == '\n' || cp == '\r';
}

static size_t run_in(str s, size_t at, uint32_t categories) {
    size_t n;
    while (in(peek(s, at, &n), categories)) at += n;
    return at;
}

static size_t run_newlines(str s, size_t at) {
    while (at < s.n && newline((uint8_t)s.p[at])) at++;
    return at;
}

/* 's 't 're 've 'm 'll 'd; `any_case` as (?i:...), where U+017F folds to s. Returns at when there is none. */
static size_t contraction(str s, size_t at, bool any_case) {
    if (at + 1 >= s.n || s.p[at] != '\'') return at;
    if (any_case && at + 2 < s.n && (uint8_t)s.p[at + 1] == 0xC5 && (uint8_t)s.p[at + 2] == 0xBF) return at + 3;
    char a = s.p[at + 1], b = at + 2 < s.n ? s.p[at + 2] : 0;
    if (any_case) a |= 0x20, b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? at + 3 : at;
}

/* \s+(?!\S)|\s+ : a stretch of white space less its last character, unless the text ends or the stretch is one long. */
static size_t spaces(str s, size_t at) {
    size_t end = at, before = at, n;
    while (space(peek(s, end, &n))) before = end, end += n;
    return end == s.n || before == at ? end : before;
}

/* \s*[\r\n]+ : white space up to and with its last line break. at when there is none. */
static size_t spaces_to_newline(str s, size_t at) {
    size_t end = at, last = at, n;
    for (uint32_t cp; space(cp = peek(s, end, &n));) {
        end += n;
        if (newline(cp)) last = end;
    }
    return last;
}

static size_t match_gpt2(str s, size_t at) {
    size_t end = contraction(s, at, false), n, from = at;
    if (end > at) return end;
    uint32_t cp = peek(s, at, &n);
    if (cp == ' ') from = at + 1, cp = peek(s, from, &n);
    if (in(cp, UC_L)) return run_in(s, from, UC_L);
    if (in(cp, UC_N)) return run_in(s, from, UC_N);
    if (cp != END && !space(cp)) {
        for (end = from; (cp = peek(s, end, &n)) != END && !space(cp) && !unicode_in(cp, UC_L | UC_N);) end += n;
        return end;
    }
    return spaces(s, at);
}

/* The shape that cl100k, Llama 3 and Qwen share; they differ in the number of digits a piece may have and in what a
 * word is. */
static inline size_t match_words(str s, size_t at, int digits, uint32_t word) {
    size_t end = contraction(s, at, true), n, first;
    if (end > at) return end;
    uint32_t cp = peek(s, at, &first);
    if (in(cp, word)) return run_in(s, at, word);
    if (!newline(cp) && !in(cp, UC_L | UC_N) && in(peek(s, at + first, &n), word)) return run_in(s, at + first, word);
    if (in(cp, UC_N)) {
        for (end = at; digits-- && in(peek(s, end, &n), UC_N);) end += n;
        return end;
    }
    size_t from = cp == ' ' ? at + 1 : at;
    for (end = from; (cp = peek(s, end, &n)) != END && !space(cp) && !unicode_in(cp, word | UC_L | UC_N);) end += n;
    if (end > from) return run_newlines(s, end);
    end = spaces_to_newline(s, at);
    return end > at ? end : spaces(s, at);
}

static size_t match_cl100k(str s, size_t at) {
    return match_words(s, at, 3, UC_L);
}

static size_t match_qwen2(str s, size_t at) {
    return match_words(s, at, 1, UC_L);
}

static size_t match_qwen35(str s, size_t at) {
    return match_words(s, at, 1, UC_L | UC_M);
}

/* Letters without case (and marks) count as upper and as lower. */
#define CASELESS  (UC_BIT(UC_Lm) | UC_BIT(UC_Lo) | UC_M)
#define UPPERCASE (UC_BIT(UC_Lu) | UC_BIT(UC_Lt) | CASELESS)
#define LOWERCASE (UC_BIT(UC_Ll) | CASELESS)

/* upper*lower+ with the backtracking a regex would do: with no lower letter behind, the last caseless one serves. */
static size_t word_to_lower(str s, size_t at) {
    size_t uppers = run_in(s, at, UPPERCASE), end = run_in(s, uppers, LOWERCASE), n;
    if (end > uppers) return end;
    for (size_t back = uppers; back > at; back -= n)
        if (in(utf8_before(s, back, &n), CASELESS)) return back;
    return at;
}

/* upper+lower* */
static size_t word_from_upper(str s, size_t at) {
    size_t uppers = run_in(s, at, UPPERCASE);
    return uppers > at ? run_in(s, uppers, LOWERCASE) : at;
}

static size_t match_o200k_like(str s, size_t at, bool contractions, int digits) {
    size_t first, n, end = at;
    uint32_t cp = peek(s, at, &first);
    bool prefix = !newline(cp) && !unicode_in(cp, UC_L | UC_N);
    if (prefix && (n = word_to_lower(s, at + first)) > at + first) end = n;
    if (end == at) end = word_to_lower(s, at);
    if (end == at && prefix && (n = word_from_upper(s, at + first)) > at + first) end = n;
    if (end == at) end = word_from_upper(s, at);
    if (end > at) return contractions ? contraction(s, end, true) : end;
    if (in(cp, UC_N)) {
        for (end = at; digits-- && in(peek(s, end, &n), UC_N);) end += n;
        return end;
    }
    size_t from = cp == ' ' ? at + 1 : at;
    for (end = from; (cp = peek(s, end, &n)) != END && !space(cp) && !unicode_in(cp, UC_L | UC_N);) end += n;
    if (end > from) {
        while (end < s.n && (newline((uint8_t)s.p[end]) || s.p[end] == '/')) end++;
        return end;
    }
    end = spaces_to_newline(s, at);
    return end > at ? end : spaces(s, at);
}

static size_t match_o200k(str s, size_t at) {
    return match_o200k_like(s, at, true, 3);
}

static size_t match_tekken(str s, size_t at) {
    return match_o200k_like(s, at, false, 1);
}

static size_t match_digits_3(str s, size_t at) {
    size_t end = at, n;
    for (int left = 3; left-- && in(peek(s, end, &n), UC_N);) end += n;
    return end;
}

static size_t match_kana_han(str s, size_t at) {
    size_t end = at, n;
    for (uint32_t cp; cp = peek(s, end, &n), (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);)
        end += n;
    return end;
}

static inline bool ascii_letter(uint32_t cp) {
    return (cp | 32) >= 'a' && (cp | 32) <= 'z' && cp < 128;
}

static size_t match_deepseek3(str s, size_t at) {
    size_t first, n, end;
    uint32_t cp = peek(s, at, &first), word = UC_L | UC_M;
    if (cp > ' ' && cp < 127 && !ascii_letter(cp) && !(cp >= '0' && cp <= '9') && ascii_letter(peek(s, at + 1, &n))) {
        for (end = at + 1; ascii_letter(peek(s, end, &n));) end++;
        return end;
    }
    if (cp != END && !newline(cp) && !unicode_in(cp, UC_L | UC_P | UC_S) && in(peek(s, at + first, &n), word))
        return run_in(s, at + first, word);
    if (in(cp, word)) return run_in(s, at, word);
    size_t from = cp == ' ' ? at + 1 : at;
    end = run_in(s, from, UC_P | UC_S);
    if (end > from) return run_newlines(s, end);
    end = spaces_to_newline(s, at);
    return end > at ? end : spaces(s, at);
}

/* As they stand in the files. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
static const struct known {
    const char *source;
    matcher *match;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", match_gpt2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", match_gpt2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL, match_cl100k},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL, match_qwen2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL,
     match_qwen35},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
     "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL,
     match_o200k},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
     "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL,
     match_tekken},
    {"\\p{N}{1,3}", match_digits_3},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", match_kana_han},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL,
     match_deepseek3},
};

/* ---- PCRE2 ------------------------------------------------------------------------------------------------------- */
/* Code points that PCRE2's Unicode does not have, or has otherwise, by category and length in UTF-8: one that it has.
 */
static const struct {
    uint8_t category;
    uint32_t three, four;
} look_alike[] = {
    {UC_Lu, 0x1E00, 0x10400}, {UC_Ll, 0x1E01, 0x10428}, {UC_Lm, 0x1D2C, 0x16F93}, {UC_Lo, 0x0E01, 0x10280},
    {UC_Mn, 0x20D0, 0x1D167}, {UC_Mc, 0x0903, 0x11000}, {UC_Nd, 0x0966, 0x1D7CE}, {UC_No, 0x2070, 0x10107},
    {UC_Nl, 0x2160, 0x10140}, {UC_Pd, 0x2010, 0x10EAD}, {UC_Po, 0x2016, 0x10100}, {UC_Sm, 0x2044, 0x1D6C1},
    {UC_So, 0x2100, 0x10137}, {UC_Sc, 0x20AC, 0x1E2FF}, {UC_Cf, 0x2060, 0x110BD}, {UC_Cn, 0xFDD0, 0x1FFFE},
};

static uint32_t look_alike_of(uint32_t cp, size_t n) {
    uint32_t rec = unicode_of(cp);
    if (rec & U_HAN) return n == 3 ? 0x4E00 : 0x20000;
    for (size_t i = 0; i < COUNT(look_alike); i++)
        if (look_alike[i].category == (rec & 31))
            return n == 3 ? look_alike[i].three : n == 4 ? look_alike[i].four : cp;
    return cp;
}

/* A copy of s with look-alikes, or s itself when nothing needs one. Lengths do not change. */
static str text_for_pcre(str s, buf *copy) {
    for (size_t at = 0, n; at < s.n; at += n) {
        uint32_t cp = utf8_get(s.p + at, &n);
        if (cp < 0x80 || !(unicode_of(cp) & U_NEW)) continue;
        if (!copy->n) buf_str(copy, s);
        utf8_put(copy->p + at, look_alike_of(cp, n));
    }
    return copy->n ? buf_view(copy) : s;
}

enum { STACK_FIRST = 1 << 20, STACK_MAX = 64 << 20 };
enum { MATCH_LIMIT = 50 * 1000 * 1000, DEPTH_LIMIT = 100 * 1000, HEAP_LIMIT_KIB = 64 * 1024 };

static bool pcre_compile(pattern *p, str source, error *err) {
    int code;
    PCRE2_SIZE at;
    buf whole = {0};
    regex_translate(source, &whole);
    p->code = pcre2_compile((PCRE2_SPTR)(whole.p ? whole.p : ""), whole.n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK, &code, &at, NULL);
    buf_free(&whole);
    if (!p->code) {
        PCRE2_UCHAR text[120];
        pcre2_get_error_message(code, text, sizeof text);
        return error_set(err, ERR_FORMAT, "tokenizer: the regular expression \"%.*s\" is not supported: %s",
                         (int)MIN(source.n, 200), source.p, (const char *)text);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE);
    p->limits = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    pcre2_set_depth_limit(p->limits, DEPTH_LIMIT);
    pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
    return true;
}

/* One walk over one text. */
typedef struct walk {
    pcre2_match_data *data;       /* owns */
    pcre2_match_context *context; /* owns once there is a stack, else borrows the pattern's */
    pcre2_jit_stack *stack;       /* owns; NULL until the 32 KiB that matching has by itself do not do */
} walk;

static int match_at(const pattern *p, str text, size_t at, walk *w) {
    int n = pcre2_match(p->code, (PCRE2_SPTR)text.p, text.n, at, PCRE2_NO_UTF_CHECK, w->data, w->context);
    if (n != PCRE2_ERROR_JIT_STACKLIMIT || w->stack) return n;
    w->stack = pcre2_jit_stack_create(STACK_FIRST, STACK_MAX, NULL);
    w->context = pcre2_match_context_copy(p->limits);
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return pcre2_match(p->code, (PCRE2_SPTR)text.p, text.n, at, PCRE2_NO_UTF_CHECK, w->data, w->context);
}

static bool pcre_find(const pattern *p, str s, spans *out, error *err) {
    buf copy = {0};
    str text = text_for_pcre(s, &copy);
    walk w = {.data = pcre2_match_data_create(1, NULL), .context = p->limits};
    bool ok = true;
    size_t last = SIZE_MAX; /* where the match before ended: an empty one right there does not count */
    for (size_t at = 0; at <= s.n;) {
        int n = match_at(p, text, at, &w);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0) {
            ok =
                error_set(err, ERR_INVALID, "tokenizer: the split pattern takes too long on this text at byte %zu", at);
            break;
        }
        PCRE2_SIZE *o = pcre2_get_ovector_pointer(w.data);
        size_t from = o[0], to = o[1], len = 1;
        if (from < to || from != last) spans_push(out, from, to);
        last = to;
        if (from == to && to < s.n) utf8_get(text.p + to, &len);
        at = from < to ? to : to + len;
    }
    if (w.stack) pcre2_jit_stack_free(w.stack), pcre2_match_context_free(w.context);
    pcre2_match_data_free(w.data);
    buf_free(&copy);
    return ok;
}

/* ---- the pattern ------------------------------------------------------------------------------------------------- */
pattern *pattern_literal(str s) {
    pattern *p = mem_alloc(sizeof *p);
    p->how = BY_LITERAL;
    p->literal = (str){mem_strndup(s.p ? s.p : "", s.n), s.n};
    return p;
}

pattern *pattern_class(bool (*in)(uint32_t cp, const void *arg), const void *arg) {
    pattern *p = mem_alloc(sizeof *p);
    p->how = BY_CLASS;
    p->in = in, p->arg = arg;
    return p;
}

pattern *pattern_regex(str source, error *err) {
    pattern *p = mem_alloc(sizeof *p);
    p->how = BY_HAND;
    for (size_t i = 0; i < COUNT(known); i++)
        if (str_is(source, known[i].source)) return p->match = known[i].match, p;
    p->how = BY_PCRE;
    if (pcre_compile(p, source, err)) return p;
    free(p);
    return NULL;
}

void pattern_free(pattern *p) {
    if (!p) return;
    free((char *)p->literal.p);
    if (p->code) pcre2_code_free(p->code);
    if (p->limits) pcre2_match_context_free(p->limits);
    free(p);
}

bool pattern_find(const pattern *p, str s, spans *out, error *err) {
    out->n = 0;
    if (p->how == BY_PCRE) return pcre_find(p, s, out, err);
    if (p->how == BY_LITERAL) {
        for (size_t at = 0, n; p->literal.n && (n = str_find((str){s.p + at, s.n - at}, p->literal)) != SIZE_MAX;
             at += n + p->literal.n)
            spans_push(out, at + n, at + n + p->literal.n);
        return true;
    }
    for (size_t at = 0, n; at < s.n;) {
        uint32_t cp = utf8_get(s.p + at, &n);
        size_t end = p->how == BY_HAND ? p->match(s, at) : p->in(cp, p->arg) ? at + n : at;
        if (end > at) spans_push(out, at, end);
        at = end > at ? end : at + n;
    }
    return true;
}
