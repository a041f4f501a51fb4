/* Pre-tokenizers: cutting a text into the pieces that the model sees, each step over the pieces of the one before. */
#include <stdlib.h>
#include "tokenizer.h"

/* The printable bytes stand for themselves, the other 68 in order for U+0100 and up. */
const uint16_t byte_point[256] = {
    0x100, 0x101, 0x102, 0x103, 0x104, 0x105, 0x106, 0x107, 0x108, 0x109, 0x10a, 0x10b, 0x10c, 0x10d, 0x10e, 0x10f,
    0x110, 0x111, 0x112, 0x113, 0x114, 0x115, 0x116, 0x117, 0x118, 0x119, 0x11a, 0x11b, 0x11c, 0x11d, 0x11e, 0x11f,
    0x120, 0x21,  0x22,  0x23,  0x24,  0x25,  0x26,  0x27,  0x28,  0x29,  0x2a,  0x2b,  0x2c,  0x2d,  0x2e,  0x2f,
    0x30,  0x31,  0x32,  0x33,  0x34,  0x35,  0x36,  0x37,  0x38,  0x39,  0x3a,  0x3b,  0x3c,  0x3d,  0x3e,  0x3f,
    0x40,  0x41,  0x42,  0x43,  0x44,  0x45,  0x46,  0x47,  0x48,  0x49,  0x4a,  0x4b,  0x4c,  0x4d,  0x4e,  0x4f,
    0x50,  0x51,  0x52,  0x53,  0x54,  0x55,  0x56,  0x57,  0x58,  0x59,  0x5a,  0x5b,  0x5c,  0x5d,  0x5e,  0x5f,
    0x60,  0x61,  0x62,  0x63,  0x64,  0x65,  0x66,  0x67,  0x68,  0x69,  0x6a,  0x6b,  0x6c,  0x6d,  0x6e,  0x6f,
    0x70,  0x71,  0x72,  0x73,  0x74,  0x75,  0x76,  0x77,  0x78,  0x79,  0x7a,  0x7b,  0x7c,  0x7d,  0x7e,  0x121,
    0x122, 0x123, 0x124, 0x125, 0x126, 0x127, 0x128, 0x129, 0x12a, 0x12b, 0x12c, 0x12d, 0x12e, 0x12f, 0x130, 0x131,
    0x132, 0x133, 0x134, 0x135, 0x136, 0x137, 0x138, 0x139, 0x13a, 0x13b, 0x13c, 0x13d, 0x13e, 0x13f, 0x140, 0x141,
    0x142, 0xa1,  0xa2,  0xa3,  0xa4,  0xa5,  0xa6,  0xa7,  0xa8,  0xa9,  0xaa,  0xab,  0xac,  0x143, 0xae,  0xaf,
    0xb0,  0xb1,  0xb2,  0xb3,  0xb4,  0xb5,  0xb6,  0xb7,  0xb8,  0xb9,  0xba,  0xbb,  0xbc,  0xbd,  0xbe,  0xbf,
    0xc0,  0xc1,  0xc2,  0xc3,  0xc4,  0xc5,  0xc6,  0xc7,  0xc8,  0xc9,  0xca,  0xcb,  0xcc,  0xcd,  0xce,  0xcf,
    0xd0,  0xd1,  0xd2,  0xd3,  0xd4,  0xd5,  0xd6,  0xd7,  0xd8,  0xd9,  0xda,  0xdb,  0xdc,  0xdd,  0xde,  0xdf,
    0xe0,  0xe1,  0xe2,  0xe3,  0xe4,  0xe5,  0xe6,  0xe7,  0xe8,  0xe9,  0xea,  0xeb,  0xec,  0xed,  0xee,  0xef,
    0xf0,  0xf1,  0xf2,  0xf3,  0xf4,  0xf5,  0xf6,  0xf7,  0xf8,  0xf9,  0xfa,  0xfb,  0xfc,  0xfd,  0xfe,  0xff,
};

int byte_of_point(uint32_t cp) {
    if (cp < 0x100) return byte_point[cp] == cp ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

static void pieces_push(pieces *v, size_t at, size_t n, bool head) {
    if (n == 0) return;
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 64;
        v->p = mem_resize(v->p, v->cap * sizeof *v->p);
    }
    v->p[v->n++] = (piece){at, n, head};
}

void pieces_free(pieces *v) {
    buf_free(&v->text);
    free(v->p);
    *v = (pieces){0};
}

/* The cuts of one piece: matched and unmatched stretches in order, joined as the behaviour says. */
typedef struct stretch {
    size_t from, to;
    bool match;
} stretch;
typedef struct cutter {
    spans found;
    stretch *s; /* owns */
    size_t n, cap;
} cutter;

static void stretch_push(cutter *c, size_t from, size_t to, bool match) {
    if (c->n == c->cap) {
        c->cap = c->cap ? c->cap * 2 : 64;
        c->s = mem_resize(c->s, c->cap * sizeof *c->s);
    }
    c->s[c->n++] = (stretch){from, to, match};
}

static void stretches_join(cutter *c, split_behavior b) {
    size_t n = 0;
    if (b == SPLIT_CONTIGUOUS || b == SPLIT_WITH_PREVIOUS) {
        bool previous = false;
        for (size_t i = 0; i < c->n; i++) {
            stretch s = c->s[i];
            bool join = b == SPLIT_CONTIGUOUS ? s.match == previous : s.match && !previous;
            if (join && n)
                c->s[n - 1].to = s.to;
            else
                c->s[n++] = s;
            previous = s.match;
        }
        c->n = n;
    } else if (b == SPLIT_WITH_NEXT) { /* from the right */
        bool previous = false;
        size_t at = c->n;
        for (size_t i = c->n; i-- > 0;) {
            stretch s = c->s[i];
            if (s.match && !previous && at < c->n)
                c->s[at].from = s.from;
            else
                c->s[--at] = s;
            previous = s.match;
        }
        memmove(c->s, c->s + at, (c->n - at) * sizeof *c->s);
        c->n -= at;
    }
}

static bool piece_cut(const split *sp, str s, cutter *c, error *err) {
    if (!pattern_find(sp->find, s, &c->found, err)) return false;
    c->n = 0;
    size_t at = 0;
    for (size_t i = 0; i < c->found.n; i++) {
        if (at < c->found.p[i].from) stretch_push(c, at, c->found.p[i].from, sp->invert);
        stretch_push(c, c->found.p[i].from, c->found.p[i].to, !sp->invert);
        at = c->found.p[i].to;
    }
    if (at < s.n) stretch_push(c, at, s.n, sp->invert);
    stretches_join(c, sp->behavior);
    return true;
}

static bool cut_all(const split *sp, const pieces *from, pieces *to, cutter *c, error *err) {
    for (size_t i = 0; i < from->n; i++) {
        piece p = from->p[i];
        if (!piece_cut(sp, (str){from->text.p + p.at, p.n}, c, err)) return false;
        for (size_t k = 0; k < c->n; k++)
            if (sp->behavior != SPLIT_REMOVED || !c->s[k].match)
                pieces_push(to, p.at + c->s[k].from, c->s[k].to - c->s[k].from, p.head && c->s[k].from == 0);
    }
    return true;
}

static void lengths_cut(const split *sp, const pieces *from, pieces *to) {
    for (size_t i = 0; i < from->n; i++) {
        piece p = from->p[i];
        size_t start = 0, chars = 0;
        for (size_t at = 0, n; at < p.n;) {
            utf8_get(from->text.p + p.at + at, &n);
            at += n;
            if (++chars < sp->length && at < p.n) continue;
            pieces_push(to, p.at + start, at - start, p.head && start == 0);
            start = at, chars = 0;
        }
    }
}

static void space_prefix(const pieces *from, pieces *to) {
    for (size_t i = 0; i < from->n; i++) {
        piece p = from->p[i];
        size_t at = to->text.n;
        if (from->text.p[p.at] != ' ') buf_putc(&to->text, ' ');
        buf_add(&to->text, from->text.p + p.at, p.n);
        pieces_push(to, at, to->text.n - at, p.head);
    }
}

/* ByteLevel without its regex: every byte becomes its code point. */
static void bytes_spell(const pieces *from, pieces *to) {
    for (size_t i = 0; i < from->n; i++) {
        piece p = from->p[i];
        size_t at = to->text.n;
        buf_reserve(&to->text, p.n * 2);
        char *out = to->text.p + at;
        const uint8_t *in = (const uint8_t *)from->text.p + p.at;
        for (size_t k = 0; k < p.n; k++) {
            uint16_t cp = byte_point[in[k]];
            if (cp < 0x80)
                *out++ = (char)cp;
            else
                *out++ = (char)(0xC0 | cp >> 6), *out++ = (char)(0x80 | (cp & 63));
        }
        to->text.n = (size_t)(out - to->text.p);
        pieces_push(to, at, to->text.n - at, p.head);
    }
}

static bool metaspace(const split *sp, const pieces *from, pieces *to, cutter *c, error *err) {
    for (size_t i = 0; i < from->n; i++) {
        piece p = from->p[i];
        str s = {from->text.p + p.at, p.n};
        size_t at = to->text.n;
        bool spelled = str_starts(s, sp->text) || s.p[0] == ' ';
        if (!spelled && (sp->prepend == PREPEND_ALWAYS || (sp->prepend == PREPEND_FIRST && p.head)))
            buf_str(&to->text, sp->text);
        for (size_t k = 0, end; k < s.n; k = end) {
            const char *space = memchr(s.p + k, ' ', s.n - k);
            end = space ? (size_t)(space - s.p) : s.n;
            buf_add(&to->text, s.p + k, end - k);
            if (space) buf_str(&to->text, sp->text), end++;
        }
        if (!sp->find) {
            pieces_push(to, at, to->text.n - at, p.head);
            continue;
        }
        if (!piece_cut(sp, (str){to->text.p + at, to->text.n - at}, c, err)) return false;
        for (size_t k = 0; k < c->n; k++)
            pieces_push(to, at + c->s[k].from, c->s[k].to - c->s[k].from, p.head && c->s[k].from == 0);
    }
    return true;
}

bool split_run(const split *s, size_t count, str text, bool head, pieces *out, error *err) {
    pieces other = {0};
    cutter c = {0};
    bool ok = true;
    out->n = out->text.n = 0;
    buf_str(&out->text, text);
    pieces_push(out, 0, text.n, head);
    for (size_t i = 0; i < count && ok; i++) {
        bool rewrites = s[i].kind != SPLIT_PATTERN && s[i].kind != SPLIT_LENGTH;
        other.n = other.text.n = 0;
        if (s[i].kind == SPLIT_PATTERN)
            ok = cut_all(&s[i], out, &other, &c, err);
        else if (s[i].kind == SPLIT_PREFIX_SPACE)
            space_prefix(out, &other);
        else if (s[i].kind == SPLIT_BYTES)
            bytes_spell(out, &other);
        else if (s[i].kind == SPLIT_METASPACE)
            ok = metaspace(&s[i], out, &other, &c, err);
        else
            lengths_cut(&s[i], out, &other);
        pieces was = *out;
        *out = other, other = was;
        if (!rewrites) { /* the text stays where it was */
            buf t = out->text;
            out->text = other.text, other.text = t;
        }
    }
    pieces_free(&other);
    free(c.s), free(c.found.p);
    return ok;
}
