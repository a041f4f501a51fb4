/* Normalizers: text in, text out, each byte keeping the mark of whether a client wrote it. */
#include <stdlib.h>
#include <utf8proc.h>
#include "tokenizer.h"

void masked_fill(masked *m, str s, const uint8_t *user, size_t n_user) {
    buf_str(&m->text, s);
    if (!m->marked) return;
    uint8_t any = 0;
    for (size_t i = 0; user && i < n_user; i++) any |= user[i];
    buf_reserve(&m->user, s.n);
    memset(m->user.p + m->user.n, any, s.n);
    m->user.n += s.n;
}

void masked_add(masked *m, str s, const uint8_t *user) {
    buf_str(&m->text, s);
    if (m->marked && user)
        buf_add(&m->user, user, s.n);
    else if (m->marked) {
        buf_reserve(&m->user, s.n);
        memset(m->user.p + m->user.n, 0, s.n);
        m->user.n += s.n;
    }
}

static const uint8_t *user_at(const masked *m, size_t at) {
    return m->marked && m->user.p ? (const uint8_t *)m->user.p + at : NULL;
}

static str text_at(const masked *m, size_t from, size_t to) {
    return m->text.p ? (str){m->text.p + from, to - from} : (str){"", 0};
}

static void copy(const masked *in, size_t from, size_t to, masked *out) {
    masked_add(out, text_at(in, from, to), user_at(in, from));
}

static void form(const masked *in, unicode_form f, masked *out) {
    str s = buf_view(&in->text);
    if (!unicode_needs(s, f))
        masked_add(out, s, user_at(in, 0));
    else
        unicode_normalize(s, user_at(in, 0), f, &out->text, &out->user);
}

static void put_point(masked *out, uint32_t cp, const uint8_t *user, size_t n) {
    char c[4];
    masked_fill(out, (str){c, utf8_put(c, cp)}, user, n);
}

static void lowercase(const masked *in, masked *out) {
    for (size_t at = 0, n; at < in->text.n; at += n) {
        uint32_t cp = utf8_get(in->text.p + at, &n);
        if (cp == 0x130)
            masked_fill(out, STR("i\xCC\x87"), user_at(in, at), n);
        else
            put_point(out, unicode_lower(cp), user_at(in, at), n);
    }
}

static void without(const masked *in, uint32_t flag, masked *out) {
    for (size_t at = 0, n; at < in->text.n; at += n)
        if (!(unicode_of(utf8_get(in->text.p + at, &n)) & flag)) copy(in, at, at + n, out);
}

static bool chinese(uint32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void bert_clean(const masked *in, bool clean, bool spaced, masked *out) {
    for (size_t at = 0, n; at < in->text.n; at += n) {
        uint32_t cp = utf8_get(in->text.p + at, &n), rec = unicode_of(cp);
        if (clean && rec & U_BERT_CONTROL) continue;
        bool wide = spaced && chinese(cp);
        if (wide) masked_fill(out, STR(" "), user_at(in, at), n);
        if (clean && rec & U_SPACE)
            masked_fill(out, STR(" "), user_at(in, at), n);
        else
            copy(in, at, at + n, out);
        if (wide) masked_fill(out, STR(" "), user_at(in, at), n);
    }
}

static bool replace(const norm *n, const masked *in, masked *out, error *err) {
    spans found = {0};
    bool ok = pattern_find(n->find, buf_view(&in->text), &found, err);
    size_t at = 0;
    for (size_t i = 0; ok && i < found.n; i++) {
        copy(in, at, found.p[i].from, out);
        masked_fill(out, n->text, user_at(in, found.p[i].from), found.p[i].to - found.p[i].from);
        at = found.p[i].to;
    }
    if (ok) copy(in, at, in->text.n, out);
    free(found.p);
    return ok;
}

static void strip(const norm *o, const masked *in, masked *out) {
    size_t from = 0, to = in->text.n, n;
    while (o->left && from < to && unicode_is_space(utf8_get(in->text.p + from, &n))) from += n;
    while (o->right && from < to && unicode_is_space(utf8_before(buf_view(&in->text), to, &n))) to -= n;
    if (from) out->head = false;
    copy(in, from, to, out);
}

/* ---- SentencePiece's precompiled map ----------------------------------------------------------------------------- */
/* The double array's shortest or longest key that s starts with: its length, 0 when there is none, and its replacement
 * (text up to NUL). */
static size_t charsmap_find(const charsmap *m, str s, str *to) {
    size_t at = 0, found = 0;
    uint32_t unit = m->n_units ? m->unit[0] : 0;
    at ^= (unit >> 10) << ((unit & (1u << 9)) >> 6);
    for (size_t i = 0; i < s.n && s.p[i]; i++) {
        uint8_t c = (uint8_t)s.p[i];
        at ^= c;
        if (at >= m->n_units) break;
        unit = m->unit[at];
        if ((unit & (1u << 31 | 0xFF)) != c) break;
        at ^= (unit >> 10) << ((unit & (1u << 9)) >> 6);
        if (!(unit >> 8 & 1)) continue;
        size_t from = at < m->n_units ? m->unit[at] & 0x7FFFFFFF : SIZE_MAX;
        if (from > m->texts.n) break;
        const char *end = memchr(m->texts.p + from, 0, m->texts.n - from);
        *to = (str){m->texts.p + from, end ? (size_t)(end - m->texts.p) - from : m->texts.n - from};
        found = i + 1;
        if (!m->longest) break;
    }
    return found;
}

static void charsmap_longest(const charsmap *m, const masked *in, masked *out) {
    for (size_t at = 0, n; at < in->text.n; at += n) {
        str to;
        n = charsmap_find(m, text_at(in, at, in->text.n), &to);
        if (n) {
            masked_fill(out, to, user_at(in, at), n);
        } else {
            utf8_get(in->text.p + at, &n);
            copy(in, at, at + n, out);
        }
    }
}

static void charsmap_run(const charsmap *m, const masked *in, masked *out) {
    for (size_t at = 0, n; at < in->text.n;) {
        size_t end = at;
        utf8proc_int32_t state = 0;
        uint32_t cp = utf8_get(in->text.p + at, &n);
        for (end = at + n; end < in->text.n; end += n) { /* one grapheme */
            uint32_t next = utf8_get(in->text.p + end, &n);
            if (utf8proc_grapheme_break_stateful((int32_t)cp, (int32_t)next, &state)) break;
            cp = next;
        }
        str to;
        if (end - at < 6 && charsmap_find(m, text_at(in, at, end), &to)) {
            masked_fill(out, to, user_at(in, at), end - at);
            at = end;
            continue;
        }
        for (; at < end; at += n) {
            utf8_get(in->text.p + at, &n);
            if (charsmap_find(m, text_at(in, at, at + n), &to))
                masked_fill(out, to, user_at(in, at), n);
            else
                copy(in, at, at + n, out);
        }
    }
}

static void nmt(const masked *in, masked *out) {
    for (size_t at = 0, n; at < in->text.n; at += n) {
        uint32_t c = utf8_get(in->text.p + at, &n);
        if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) continue;
        if (c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
            c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD)
            masked_fill(out, STR(" "), user_at(in, at), n);
        else
            copy(in, at, at + n, out);
    }
}

static void spell_bytes(const masked *in, masked *out) {
    for (size_t at = 0; at < in->text.n; at++) put_point(out, byte_point[(uint8_t)in->text.p[at]], user_at(in, at), 1);
}

static bool step(const norm *n, masked *in, masked *out, error *err) {
    switch (n->kind) {
    case NORM_FORM: form(in, n->form, out); break;
    case NORM_LOWERCASE: lowercase(in, out); break;
    case NORM_STRIP_ACCENTS: without(in, U_MARK, out); break;
    case NORM_REPLACE: return replace(n, in, out, err);
    case NORM_PREPEND:
        if (in->text.n) masked_fill(out, n->text, user_at(in, 0), 1);
        copy(in, 0, in->text.n, out);
        break;
    case NORM_STRIP: strip(n, in, out); break;
    case NORM_CHARSMAP: (n->map.longest ? charsmap_longest : charsmap_run)(&n->map, in, out); break;
    case NORM_NMT: nmt(in, out); break;
    case NORM_BYTES: spell_bytes(in, out); break;
    case NORM_BERT: bert_clean(in, n->clean, n->chinese, out); break;
    }
    return true;
}

bool norm_run(const norm *n, size_t count, masked *text, error *err) {
    masked out = {.marked = text->marked};
    bool ok = true;
    /* BertNormalizer is four steps in one. */
    static const norm nfd = {.kind = NORM_FORM, .form = FORM_NFD}, lower = {.kind = NORM_LOWERCASE};
    for (size_t i = 0; i < count && ok; i++) {
        const norm *steps[] = {&n[i], n[i].kind == NORM_BERT && n[i].accents ? &nfd : NULL,
                               n[i].kind == NORM_BERT && n[i].lower ? &lower : NULL};
        for (size_t k = 0; k < COUNT(steps) && ok; k++) {
            if (!steps[k]) continue;
            out.text.n = out.user.n = 0;
            out.head = text->head;
            ok = step(steps[k], text, &out, err);
            masked was = *text;
            *text = out, out = was;
            if (k == 1) { /* accents: NFD, then the marks go */
                out.text.n = out.user.n = 0;
                out.head = text->head;
                without(text, U_BERT_MARK, &out);
                was = *text;
                *text = out, out = was;
            }
        }
    }
    buf_free(&out.text), buf_free(&out.user);
    return ok;
}
