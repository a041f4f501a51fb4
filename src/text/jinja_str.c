/* Jinja: strings with provenance, characters, letter case.
 * Positions are bytes inside, characters outside: str_at and str_chars convert. Not here: methods (jinja_methods.c). */
#include <utf8proc.h>
#include "jinja_internal.h"

/* ---- characters -------------------------------------------------------------------------------------------------- */
bool cp_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f ||
           cp == 0x3000;
}
static utf8proc_category_t category(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp);
}
bool cp_alpha(uint32_t cp) {
    if (cp < 128) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    utf8proc_category_t k = category(cp);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_LO;
}
bool cp_digit(uint32_t cp) {
    return cp < 128 ? cp >= '0' && cp <= '9' : category(cp) == UTF8PROC_CATEGORY_ND;
}
bool cp_word(uint32_t cp) {
    if (cp < 128) return cp == '_' || cp_alpha(cp) || cp_digit(cp);
    utf8proc_category_t k = category(cp);
    return cp_alpha(cp) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}
bool cp_upper(uint32_t cp) {
    return cp < 128 ? cp >= 'A' && cp <= 'Z' : utf8proc_isupper((utf8proc_int32_t)cp);
}
bool cp_lower(uint32_t cp) {
    return cp < 128 ? cp >= 'a' && cp <= 'z' : utf8proc_islower((utf8proc_int32_t)cp);
}
bool cp_cased(uint32_t cp) {
    return cp_upper(cp) || cp_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
}
bool cp_printable(uint32_t cp) {
    if (cp < 128) return cp >= 32 && cp < 127;
    utf8proc_category_t k = category(cp);
    return k != UTF8PROC_CATEGORY_CN && k != UTF8PROC_CATEGORY_CC && k != UTF8PROC_CATEGORY_CF &&
           k != UTF8PROC_CATEGORY_CS && k != UTF8PROC_CATEGORY_CO && k != UTF8PROC_CATEGORY_ZL &&
           k != UTF8PROC_CATEGORY_ZP && k != UTF8PROC_CATEGORY_ZS;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */
/* Storage with room behind: a string that ends where `used` ends may be extended in place. */
typedef struct grow {
    char *p;
    uint8_t *mask; /* NULL until bytes of both kinds meet */
    size_t used, cap;
} grow;

jstr *str_new(core *c, const char *p, size_t n, uint8_t user) {
    jstr *s = jinja_new(c, jstr);
    *s = (jstr){.p = n ? p : "", .n = n, .chars = SIZE_MAX, .user = user};
    return s;
}
jstr *str_lit(core *c, const char *s) {
    return str_new(c, s, strlen(s), 0);
}

size_t str_chars(jstr *s) {
    if (s->chars != SIZE_MAX) return s->chars;
    size_t n = 0;
    for (size_t i = 0; i < s->n; n++) utf8_next(s->p, s->n, &i);
    return s->chars = n;
}

size_t str_at(jstr *s, size_t index) {
    if (index >= str_chars(s)) return s->n;
    if (s->chars == s->n) return index;
    size_t i = 0;
    while (index--) utf8_next(s->p, s->n, &i);
    return i;
}

jstr *str_sub(core *c, const jstr *s, size_t from, size_t to) {
    jstr *t = str_new(c, s->p + from, to - from, s->user);
    if (s->mask && t->n) t->mask = s->mask + from;
    t->markup = s->markup;
    if (s->chars == s->n) t->chars = t->n;
    if (to == s->n) t->grow = s->grow;
    return t;
}

uint8_t str_user_at(const jstr *s, size_t i) {
    return s->mask ? s->mask[i] : s->user;
}
bool str_same(const jstr *a, const jstr *b) {
    return a->n == b->n && memcmp(a->p, b->p, a->n) == 0;
}
int str_order(const jstr *a, const jstr *b) {
    int o = memcmp(a->p, b->p, MIN(a->n, b->n));
    if (o) return o < 0 ? -1 : 1;
    return a->n < b->n ? -1 : a->n > b->n;
}

static bool uniform(const jstr *s, uint8_t user) {
    return !s->n || (!s->mask && s->user == user);
}
static void put_mask(uint8_t *to, const jstr *s) {
    if (s->mask)
        memcpy(to, s->mask, s->n);
    else
        memset(to, s->user, s->n);
}

jstr *str_join2(core *c, const jstr *a, const jstr *b) {
    if (!b->n && !a->markup) return str_sub(c, a, 0, a->n);
    if (!a->n) {
        jstr *t = str_sub(c, b, 0, b->n);
        t->markup = a->markup;
        return t;
    }
    jinja_step(c, b->n / 64);
    grow *g = a->grow;
    bool in_place = g && a->p + a->n == g->p + g->used && g->cap - g->used >= b->n;
    size_t n, offset = in_place ? (size_t)(a->p - g->p) : 0;
    if (!size_add(a->n, b->n, &n)) jinja_fail(c, "string too long");
    if (!in_place) {
        jinja_step(c, a->n / 64);
        g = jinja_new(c, grow);
        g->cap = n < 64 ? n : n * 2;
        g->p = jinja_alloc_n(c, 1, g->cap);
        memcpy(g->p, a->p, a->n);
        g->used = a->n;
    }
    bool mixed = !uniform(b, a->user) || a->mask;
    if (mixed && !g->mask) {
        g->mask = jinja_alloc_n(c, 1, g->cap);
        memset(g->mask, a->user, offset);
        put_mask(g->mask + offset, a);
    }
    memcpy(g->p + g->used, b->p, b->n);
    if (g->mask) put_mask(g->mask + g->used, b);
    g->used += b->n;
    jstr *t = str_new(c, g->p + offset, n, a->user);
    if (mixed) t->mask = g->mask + offset;
    if (a->chars != SIZE_MAX && b->chars != SIZE_MAX) t->chars = a->chars + b->chars;
    t->markup = a->markup;
    t->grow = g;
    return t;
}

size_t str_search(core *c, const jstr *s, const jstr *what, size_t from) {
    if (from > s->n || what->n > s->n - from) return SIZE_MAX;
    if (!what->n) return from;
    const char *hit = memmem(s->p + from, s->n - from, what->p, what->n);
    jinja_step(c, ((hit ? (size_t)(hit - s->p) : s->n) - from) / 64);
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

size_t str_rsearch(core *c, const jstr *s, const jstr *what, size_t end) {
    if (what->n > end) return SIZE_MAX;
    for (size_t i = end - what->n + 1; i-- > 0;) {
        jinja_step(c, (i & 15) == 0);
        if (memcmp(s->p + i, what->p, what->n) == 0) return i;
    }
    return SIZE_MAX;
}

/* ---- building ---------------------------------------------------------------------------------------------------- */
void sb_init(sbuf *b, core *c) {
    *b = (sbuf){.c = c};
}

static void sb_room(sbuf *b, size_t n) {
    if (b->cap - b->n >= n) return;
    size_t cap;
    if (!size_add(b->n, n, &cap) || cap > SIZE_MAX / 4) jinja_fail(b->c, "string too long");
    cap = MAX(cap + cap / 2, (size_t)48);
    char *p = jinja_alloc_n(b->c, 1, cap);
    if (b->n) memcpy(p, b->p, b->n);
    if (b->mask) {
        uint8_t *m = jinja_alloc_n(b->c, 1, cap);
        memcpy(m, b->mask, b->n);
        b->mask = m;
    }
    b->p = p;
    b->cap = cap;
}

static void sb_mark(sbuf *b, size_t n, uint8_t user) {
    if (!b->n) b->user = user;
    if (!b->mask && user != b->user) {
        b->mask = jinja_alloc_n(b->c, 1, b->cap);
        memset(b->mask, b->user, b->n);
    }
    if (b->mask) memset(b->mask + b->n, user, n);
}

void sb_add(sbuf *b, const char *p, size_t n, uint8_t user) {
    if (!n) return;
    jinja_step(b->c, n / 64);
    sb_room(b, n);
    sb_mark(b, n, user);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

void sb_slice(sbuf *b, const jstr *s, size_t from, size_t to) {
    if (!s->mask) {
        sb_add(b, s->p + from, to - from, s->user);
        return;
    }
    while (from < to) { /* runs of one provenance */
        size_t k = from + 1;
        while (k < to && s->mask[k] == s->mask[from]) k++;
        sb_add(b, s->p + from, k - from, s->mask[from]);
        from = k;
    }
}
void sb_str(sbuf *b, const jstr *s) {
    sb_slice(b, s, 0, s->n);
}
void sb_puts(sbuf *b, const char *s) {
    sb_add(b, s, strlen(s), 0);
}
void sb_cp(sbuf *b, uint32_t cp, uint8_t user) {
    char out[4] = {0};
    sb_add(b, out, utf8_put(out, cp), user);
}
void sb_fill(sbuf *b, const jstr *s, int64_t times) {
    size_t total;
    if (times <= 0 || !s->n) return;
    if (!size_mul(s->n, (size_t)times, &total)) jinja_fail(b->c, "string too long");
    sb_room(b, total);
    jinja_step(b->c, (uint64_t)times);
    while (times-- > 0) sb_str(b, s);
}
void sb_pad(sbuf *b, char ch, int64_t times) {
    jstr s = {.p = &ch, .n = 1, .chars = 1};
    sb_fill(b, &s, times);
}
jstr *sb_done(sbuf *b) {
    jstr *s = str_new(b->c, b->p, b->n, b->user);
    s->mask = b->n ? b->mask : NULL;
    return s;
}

jstr *str_escape(core *c, const jstr *s) {
    static const struct {
        char ch;
        const char *text;
    } escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    sbuf b;
    sb_init(&b, c);
    size_t from = 0;
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < COUNT(escapes); k++) {
            if (s->p[i] != escapes[k].ch) continue;
            sb_slice(&b, s, from, i);
            sb_add(&b, escapes[k].text, strlen(escapes[k].text), str_user_at(s, i));
            from = i + 1;
            break;
        }
    sb_slice(&b, s, from, s->n);
    jstr *out = sb_done(&b);
    out->markup = true;
    return out;
}

static bool strips(uint32_t cp, const jstr *chars) {
    if (!chars) return cp_space(cp);
    for (size_t i = 0; i < chars->n;)
        if (utf8_next(chars->p, chars->n, &i) == cp) return true;
    return false;
}

jstr *str_strip(core *c, const jstr *s, const jstr *chars, bool left, bool right) {
    size_t from = 0, to = s->n;
    while (left && from < to) {
        size_t i = from;
        if (!strips(utf8_next(s->p, to, &i), chars)) break;
        from = i;
    }
    while (right && to > from) {
        size_t i = utf8_start(s->p, to - 1), j = i;
        if (!strips(utf8_next(s->p, to, &j), chars)) break;
        to = i;
    }
    jinja_step(c, (s->n - (to - from)) / 16 * (chars ? chars->n + 1 : 1));
    return str_sub(c, s, from, to);
}

size_t str_line(const jstr *s, size_t from, size_t *end) {
    for (size_t i = from; i < s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(s->p, s->n, &i);
        if (!((cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 || cp == 0x2029)) continue;
        *end = at;
        if (cp == '\r' && i < s->n && s->p[i] == '\n') i++;
        return i;
    }
    return *end = s->n;
}

/* ---- letter case ------------------------------------------------------------------------------------------------- */
/* Characters whose upper case is several (Unicode SpecialCasing.txt, the unconditional entries); title case where it
 * differs. */
static const struct special {
    uint32_t cp;
    const char *upper, *title;
} specials[] = {
    {0xdf, "SS", "Ss"},
    {0x149, "\u02bcN", NULL},
    {0x1f0, "J\u030c", NULL},
    {0x390, "\u0399\u0308\u0301", NULL},
    {0x3b0, "\u03a5\u0308\u0301", NULL},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
    {0x1e96, "H\u0331", NULL},
    {0x1e97, "T\u0308", NULL},
    {0x1e98, "W\u030a", NULL},
    {0x1e99, "Y\u030a", NULL},
    {0x1e9a, "A\u02be", NULL},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
};

static const struct special *special_of(uint32_t cp) {
    for (size_t i = 0; cp >= 0xdf && i < COUNT(specials); i++)
        if (specials[i].cp == cp) return &specials[i];
    return NULL;
}

static bool case_ignorable(uint32_t cp) {
    utf8proc_category_t k = category(cp);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' || cp == ':' ||
           cp == 0xb7 || cp == 0x2019;
}

/* Sigma is written differently at the end of a word. */
static bool final_sigma(const jstr *s, size_t at, size_t after) {
    bool before = false;
    for (size_t i = at; i > 0;) {
        size_t j = i = utf8_start(s->p, i - 1);
        uint32_t cp = utf8_next(s->p, s->n, &j);
        if (case_ignorable(cp)) continue;
        before = cp_cased(cp);
        break;
    }
    while (before && after < s->n) {
        uint32_t cp = utf8_next(s->p, s->n, &after);
        if (!case_ignorable(cp)) return !cp_cased(cp);
    }
    return before;
}

void sb_case(sbuf *b, const jstr *s, size_t from, size_t to, str_case how) {
    for (size_t i = from; i < to;) {
        size_t at = i;
        uint32_t cp = utf8_next(s->p, s->n, &i);
        uint8_t user = str_user_at(s, at);
        if (cp < 128) {
            bool letter = how == CASE_UPPER || how == CASE_TITLE ? cp_lower(cp) : cp_upper(cp);
            char ch = (char)(letter ? cp ^ 32 : cp);
            sb_add(b, &ch, 1, user);
            continue;
        }
        const struct special *sp = how == CASE_LOWER ? NULL : special_of(cp);
        if (sp) {
            const char *text = how == CASE_TITLE && sp->title ? sp->title : sp->upper;
            if (how == CASE_FOLD) {
                jstr up = {.p = text, .n = strlen(text), .user = user};
                sb_case(b, &up, 0, up.n, CASE_LOWER);
            } else
                sb_add(b, text, strlen(text), user);
        } else if (how == CASE_LOWER && cp == 0x130)
            sb_add(b, "i\u0307", 3, user);
        else if (how == CASE_LOWER && cp == 0x3a3)
            sb_cp(b, final_sigma(s, at, i) ? 0x3c2 : 0x3c3, user);
        else if (how == CASE_FOLD && cp == 0x3c2)
            sb_cp(b, 0x3c3, user);
        else {
            utf8proc_int32_t u = (utf8proc_int32_t)cp;
            u = how == CASE_UPPER ? utf8proc_toupper(u) : how == CASE_TITLE ? utf8proc_totitle(u) : utf8proc_tolower(u);
            sb_cp(b, (uint32_t)u, user);
        }
    }
}
