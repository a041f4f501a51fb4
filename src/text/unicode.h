/* Unicode as the reference tokenizers see it: code point classes, lower case, normal forms.
 * The tables (unicode_table.c) are asked of the reference by tools/unicode.py; normal forms are utf8proc's with the
 * reference's older data respected. Not here: UTF-8 itself (base/utf8.c), splitting (tokenizer_split.c). */
#pragma once
#include "../base/base.h"

typedef enum unicode_category {
    UC_Cn,
    UC_Lu,
    UC_Ll,
    UC_Lt,
    UC_Lm,
    UC_Lo,
    UC_Mn,
    UC_Mc,
    UC_Me,
    UC_Nd,
    UC_Nl,
    UC_No,
    UC_Pc,
    UC_Pd,
    UC_Ps,
    UC_Pe,
    UC_Pi,
    UC_Pf,
    UC_Po,
    UC_Sm,
    UC_Sc,
    UC_Sk,
    UC_So,
    UC_Zs,
    UC_Zl,
    UC_Zp,
    UC_Cc,
    UC_Cf,
    UC_Co,
} unicode_category;
/* Sets of categories, as bits. */
#define UC_BIT(c) (1u << (c))
#define UC_L      (UC_BIT(UC_Lu) | UC_BIT(UC_Ll) | UC_BIT(UC_Lt) | UC_BIT(UC_Lm) | UC_BIT(UC_Lo))
#define UC_M      (UC_BIT(UC_Mn) | UC_BIT(UC_Mc) | UC_BIT(UC_Me))
#define UC_N      (UC_BIT(UC_Nd) | UC_BIT(UC_Nl) | UC_BIT(UC_No))
#define UC_P \
    (UC_BIT(UC_Pc) | UC_BIT(UC_Pd) | UC_BIT(UC_Ps) | UC_BIT(UC_Pe) | UC_BIT(UC_Pi) | UC_BIT(UC_Pf) | UC_BIT(UC_Po))
#define UC_S (UC_BIT(UC_Sm) | UC_BIT(UC_Sc) | UC_BIT(UC_Sk) | UC_BIT(UC_So))

enum { /* flags of a record, above its category; the order is FLAGS of tools/unicode.py */
       U_SPACE = 1 << 5,
       U_WORD = 1 << 6,         /* \w of the regex crate */
       U_NUMERIC = 1 << 7,      /* char::is_numeric */
       U_PUNCT = 1 << 8,        /* the Punctuation pre-tokenizer's idea */
       U_BERT_CONTROL = 1 << 9, /* dropped by BertNormalizer's clean_text */
       U_BERT_MARK = 1 << 10,   /* dropped by its strip_accents, after NFD */
       U_MARK = 1 << 11,        /* dropped by StripAccents */
       U_LOWER = 1 << 12,       /* has a lower case */
       U_NORM = 1 << 13,        /* some normal form may change or move it */
       U_NORM_OPAQUE = 1 << 14, /* newer than the reference's normalisation: left alone */
       U_HAN = 1 << 15,
       U_NEW = 1 << 16,       /* not in Unicode 14: PCRE2 may not know it */
       U_ONIG_WORD = 1 << 17, /* \w of Oniguruma */
       U_NORM_C = 1 << 18,    /* NFC may change or move it */
};
typedef struct unicode_lower_run {
    uint32_t from, to, step;
    int32_t delta;
} unicode_lower_run;
extern const uint16_t unicode_block[];
extern const uint8_t unicode_index[];
extern const uint32_t unicode_record[];
extern const unicode_lower_run unicode_lower_runs[];
extern const size_t unicode_n_lower_runs;

static inline uint32_t unicode_of(uint32_t cp) {
    return cp < 0x110000 ? unicode_record[unicode_index[unicode_block[cp >> 7] * 128u + (cp & 127)]] : 0;
}
static inline bool unicode_in(uint32_t cp, uint32_t categories) {
    return categories >> (unicode_of(cp) & 31) & 1;
}
static inline bool unicode_is_space(uint32_t cp) {
    return unicode_of(cp) & U_SPACE;
}

uint32_t unicode_lower(uint32_t cp); /* one code point; U+0130 (two code points) is the caller's */

typedef enum unicode_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD } unicode_form;
bool unicode_needs(str s, unicode_form form); /* false: s is in that form for sure */
/* Appends s in a normal form. With mask (one byte a byte of s) out_mask gets the same for the output. Linear in s. */
void unicode_normalize(str s, const uint8_t *mask, unicode_form form, buf *out, buf *out_mask);
