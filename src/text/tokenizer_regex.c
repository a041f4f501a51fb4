/* Regular expressions of tokenizer files (Oniguruma's syntax) said in PCRE2's: nested and intersected classes, \w and
 * POSIX names with Unicode's meaning, scripts. What both read alike is passed on; what cannot be said is left for PCRE2
 * to refuse. Not carried over: case folding to several letters ((?i)ss does not match U+00DF). */
#include "tokenizer.h"

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

typedef struct reader {
    str s;
    size_t at;
    int depth;
} reader;

enum { DEPTH_MAX = 32 };

static bool looking_at(const reader *r, const char *text) {
    return str_starts(str_slice(r->s, r->at, r->s.n), str_of(text));
}

/* \p{Han} is the script alone there; PCRE2 would take script extensions. Categories (one or two letters) are the same.
 */
static void property(reader *r, buf *out) {
    size_t end = r->at + 2;
    while (end < r->s.n && r->s.p[end] != '}') end++;
    str name = str_slice(r->s, r->at + 3, end);
    buf_add(out, r->s.p + r->at, 3);
    if (name.n && name.p[0] == '^') buf_putc(out, '^'), name = str_slice(name, 1, name.n);
    static const char *const scripts[] = {"Han",        "Hiragana", "Katakana", "Hangul",   "Latin",   "Greek",
                                          "Cyrillic",   "Arabic",   "Hebrew",   "Thai",     "Lao",     "Khmer",
                                          "Devanagari", "Bengali",  "Tamil",    "Telugu",   "Kannada", "Malayalam",
                                          "Gujarati",   "Gurmukhi", "Oriya",    "Sinhala",  "Myanmar", "Tibetan",
                                          "Ethiopic",   "Georgian", "Armenian", "Mongolian"};
    for (size_t i = 0; i < COUNT(scripts); i++)
        if (str_is(name, scripts[i])) buf_puts(out, "sc:");
    buf_str(out, name);
    r->at = end;
}

/* One backslash sequence, inside a class or not. */
static void escape(reader *r, bool class, buf *out) {
    char e = r->at + 1 < r->s.n ? r->s.p[r->at + 1] : 0;
    if ((e == 'p' || e == 'P') && r->at + 2 < r->s.n && r->s.p[r->at + 2] == '{') {
        property(r, out);
        return;
    }
    if (e == 'w')
        buf_puts(out, class ? WORD : "[" WORD "]");
    else if (e == 'W' && !class)
        buf_puts(out, "[^" WORD "]");
    else if (e == 'h')
        buf_puts(out, class ? "0-9a-fA-F" : "[0-9a-fA-F]");
    else
        buf_add(out, r->s.p + r->at, e ? 2 : 1);
    r->at += e ? 2 : 1;
}

static bool posix_name(reader *r, buf *out) {
    static const char *const name[][2] = {
        {"[:alpha:]", "\\p{Alphabetic}"},
        {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
        {"[:space:]", "\\s"},
        {"[:digit:]", "\\d"},
        {"[:upper:]", "\\p{Uppercase}"},
        {"[:lower:]", "\\p{Lowercase}"},
        {"[:word:]", WORD},
        {"[:punct:]", "\\p{P}$+<=>\\^`|~"},
        {"[:xdigit:]", "0-9a-fA-F"},
    };
    for (size_t i = 0; i < COUNT(name); i++)
        if (looking_at(r, name[i][0])) return buf_puts(out, name[i][1]), r->at += strlen(name[i][0]), true;
    return false;
}

/* A class from '[' on, as something that matches one character. A plain one stays a class, others become alternatives
 * and look-aheads. */
static void class_translate(reader *r, buf *out) {
    buf flat = {0}, other = {0}, terms = {0}; /* this term's plain part and nested classes; the terms before && */
    bool negated = false, first = true;
    r->at++, r->depth++;
    if (looking_at(r, "^")) negated = true, r->at++;
    while (r->at < r->s.n && (first || r->s.p[r->at] != ']')) {
        first = false;
        if (r->s.p[r->at] == '\\') {
            escape(r, true, &flat);
        } else if (r->s.p[r->at] == '[' && posix_name(r, &flat)) {
            continue;
        } else if (r->s.p[r->at] == '[' && r->depth < DEPTH_MAX) {
            if (other.n) buf_putc(&other, '|');
            class_translate(r, &other);
        } else if (looking_at(r, "&&")) {
            buf_puts(&terms, "(?=");
            buf_str(&terms, buf_view(&other));
            if (flat.n) buf_printf(&terms, "%s[%.*s]", other.n ? "|" : "", (int)flat.n, flat.p);
            buf_putc(&terms, ')');
            flat.n = other.n = 0;
            r->at += 2;
        } else {
            if (r->s.p[r->at] == '[') buf_putc(&flat, '\\');
            buf_putc(&flat, r->s.p[r->at++]);
        }
    }
    r->at++, r->depth--;
    if (!terms.n && !other.n) {
        buf_puts(out, negated ? "[^" : "[");
        buf_str(out, buf_view(&flat));
        buf_putc(out, ']');
    } else {
        buf_puts(out, negated ? "(?:(?!" : "(?:");
        buf_str(out, buf_view(&terms));
        buf_puts(out, "(?:");
        buf_str(out, buf_view(&other));
        if (flat.n) buf_printf(out, "%s[%.*s]", other.n ? "|" : "", (int)flat.n, flat.p);
        buf_puts(out, negated ? "))(?s:.))" : "))");
    }
    buf_free(&flat), buf_free(&other), buf_free(&terms);
}

void regex_translate(str source, buf *out) {
    reader r = {.s = source};
    while (r.at < r.s.n) {
        if (r.s.p[r.at] == '\\')
            escape(&r, false, out);
        else if (r.s.p[r.at] == '[')
            class_translate(&r, out);
        else
            buf_putc(out, r.s.p[r.at++]);
    }
}
