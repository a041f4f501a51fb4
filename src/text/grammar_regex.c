/* Regular expressions as expressions: the syntax of ECMAScript and of Python's and Rust's engines where they agree.
 * A pattern is parsed to a tree, then built: anchors say where it must begin and end; a lookahead that runs to the end
 * of the pattern is an intersection. What has no meaning for an automaton (back references, word borders) is an error.
 * Not here: the splitting of text before tokenising (tokenizer_regex.c). */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_internal.h"
#include "unicode.h"

enum { REGEX_DEPTH = 150, REGEX_COUNT_MAX = 1000000 };

typedef enum r_kind { R_SET, R_SEQ, R_ALT, R_REP, R_BEGIN, R_END, R_LOOK } r_kind;
typedef struct r_node {
    r_kind kind;
    bool negate; /* LOOK */
    cp_set set;  /* SET; arena */
    struct r_node **kid;
    size_t n, cap;
    uint32_t min, max; /* REP */
} r_node;

typedef struct regex {
    builder *b;
    str s;
    size_t at;
    unsigned flags;
    const char *where;
    int depth;
    bool fold, dot_all;
} regex;

static r_node *bad(regex *r, const char *what) {
    builder_fail(r->b, "%s: %s at character %zu of the pattern", r->where, what, r->at);
    return NULL;
}
static r_node *node(regex *r, r_kind kind) {
    r_node *n = arena_alloc(r->b->a, sizeof *n);
    n->kind = kind;
    return n;
}
static void kid_add(regex *r, r_node *n, r_node *kid) {
    if (n->n == n->cap) {
        r_node **grown = arena_alloc(r->b->a, (n->cap * 2 + 4) * sizeof *grown);
        if (n->n) memcpy(grown, n->kid, n->n * sizeof *grown);
        n->kid = grown;
        n->cap = n->cap * 2 + 4;
    }
    n->kid[n->n++] = kid;
}
static bool more(const regex *r) {
    return r->at < r->s.n && !r->b->failed;
}
static bool peek(const regex *r, const char *text) {
    return str_starts(str_slice(r->s, r->at, r->s.n), str_of(text));
}
static bool take(regex *r, const char *text) {
    if (!peek(r, text)) return false;
    r->at += strlen(text);
    return true;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */
static void set_digit(cp_set *s) {
    cp_add(s, '0', '9');
}
static void set_word(cp_set *s) {
    cp_add(s, '0', '9');
    cp_add(s, 'A', 'Z');
    cp_add(s, '_', '_');
    cp_add(s, 'a', 'z');
}
static void set_space(cp_set *s, bool ecma) {
    cp_add(s, '\t', '\r');
    cp_add(s, ' ', ' ');
    if (!ecma) return;
    static const uint32_t one[] = {0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF};
    for (size_t i = 0; i < COUNT(one); i++) cp_add(s, one[i], one[i]);
    cp_add(s, 0x2000, 0x200A);
}
static void set_category(builder *b, cp_set *s, uint32_t mask) {
    for (uint32_t i = 0; i < b->n_property; i++)
        if (b->property[i].mask == mask) {
            cp_add_set(s, &b->property[i].set);
            return;
        }
    cp_set found = {0};
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (!unicode_in(cp, mask)) continue;
        if (found.n && found.p[found.n - 1].hi + 1 == cp)
            found.p[found.n - 1].hi = cp;
        else
            cp_add(&found, cp, cp);
    }
    b->property = mem_resize(b->property, (b->n_property + 1) * sizeof *b->property);
    b->property[b->n_property].mask = mask;
    b->property[b->n_property++].set = found;
    cp_add_set(s, &found);
}
static const struct {
    const char *name;
    uint32_t mask;
} categories[] = {
    {"L", UC_L},
    {"Letter", UC_L},
    {"M", UC_M},
    {"Mark", UC_M},
    {"N", UC_N},
    {"Number", UC_N},
    {"P", UC_P},
    {"Punctuation", UC_P},
    {"S", UC_S},
    {"Symbol", UC_S},
    {"Z", UC_BIT(UC_Zs) | UC_BIT(UC_Zl) | UC_BIT(UC_Zp)},
    {"C", UC_BIT(UC_Cc) | UC_BIT(UC_Cf) | UC_BIT(UC_Co) | UC_BIT(UC_Cn)},
    {"Alphabetic", UC_L | UC_BIT(UC_Nl)},
    {"Lu", UC_BIT(UC_Lu)},
    {"Uppercase_Letter", UC_BIT(UC_Lu)},
    {"Ll", UC_BIT(UC_Ll)},
    {"Lowercase_Letter", UC_BIT(UC_Ll)},
    {"Lt", UC_BIT(UC_Lt)},
    {"Lm", UC_BIT(UC_Lm)},
    {"Lo", UC_BIT(UC_Lo)},
    {"Mn", UC_BIT(UC_Mn)},
    {"Mc", UC_BIT(UC_Mc)},
    {"Me", UC_BIT(UC_Me)},
    {"Nd", UC_BIT(UC_Nd)},
    {"Decimal_Number", UC_BIT(UC_Nd)},
    {"digit", UC_BIT(UC_Nd)},
    {"Nl", UC_BIT(UC_Nl)},
    {"No", UC_BIT(UC_No)},
    {"Pc", UC_BIT(UC_Pc)},
    {"Pd", UC_BIT(UC_Pd)},
    {"Ps", UC_BIT(UC_Ps)},
    {"Pe", UC_BIT(UC_Pe)},
    {"Pi", UC_BIT(UC_Pi)},
    {"Pf", UC_BIT(UC_Pf)},
    {"Po", UC_BIT(UC_Po)},
    {"Sm", UC_BIT(UC_Sm)},
    {"Sc", UC_BIT(UC_Sc)},
    {"Sk", UC_BIT(UC_Sk)},
    {"So", UC_BIT(UC_So)},
    {"Zs", UC_BIT(UC_Zs)},
    {"Zl", UC_BIT(UC_Zl)},
    {"Zp", UC_BIT(UC_Zp)},
    {"Cc", UC_BIT(UC_Cc)},
    {"Control", UC_BIT(UC_Cc)},
    {"Cf", UC_BIT(UC_Cf)},
};
static bool class_property(regex *r, bool negate, cp_set *out) {
    str rest = str_slice(r->s, r->at, r->s.n);
    size_t end = str_find(rest, STR("}"));
    if (!rest.n || rest.p[0] != '{' || end == SIZE_MAX) return bad(r, "\\p without {name}"), false;
    str name = str_slice(rest, 1, end);
    size_t eq = str_find(name, STR("="));
    if (eq != SIZE_MAX && (str_is(str_slice(name, 0, eq), "General_Category") || str_is(str_slice(name, 0, eq), "gc")))
        name = str_slice(name, eq + 1, name.n);
    for (size_t i = 0; i < COUNT(categories); i++) {
        if (!str_is(name, categories[i].name)) continue;
        cp_set s = {0};
        set_category(r->b, &s, categories[i].mask);
        if (negate) cp_invert(&s);
        cp_add_set(out, &s);
        free(s.p);
        r->at += end + 1;
        return true;
    }
    return bad(r, "a Unicode property that is not supported"), false;
}
static bool hex_take(regex *r, int n, uint32_t *cp) {
    *cp = 0;
    for (int i = 0; i < n; i++, r->at++) {
        int d = r->at < r->s.n ? str_digit(r->s.p[r->at]) : 99;
        if (d >= 16) return bad(r, "an escape that is not hexadecimal"), false;
        *cp = *cp * 16 + (uint32_t)d;
    }
    return true;
}
static bool escape_unicode(regex *r, uint32_t *cp) {
    if (take(r, "{")) {
        *cp = 0;
        for (; more(r) && str_digit(r->s.p[r->at]) < 16 && *cp <= 0x10FFFF; r->at++)
            *cp = *cp * 16 + (uint32_t)str_digit(r->s.p[r->at]);
        if (!take(r, "}") || *cp > 0x10FFFF) return bad(r, "\\u{...} that is no character"), false;
        return true;
    }
    if (!hex_take(r, 4, cp)) return false;
    uint32_t low;
    if (*cp >= 0xD800 && *cp < 0xDC00 && take(r, "\\u")) {
        if (!hex_take(r, 4, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return bad(r, "half a surrogate pair"), false;
        *cp = 0x10000 + ((*cp & 0x3FF) << 10 | (low & 0x3FF));
    }
    return true;
}
/* Behind a backslash. A class goes to *out and *cp is UINT32_MAX, else *cp is one character. */
static bool escape(regex *r, bool in_class, cp_set *out, uint32_t *cp) {
    if (r->at >= r->s.n) return bad(r, "a backslash at the end"), false;
    const bool ecma = r->flags & REGEX_ECMA;
    char c = r->s.p[r->at];
    cp_set s = {0};
    *cp = UINT32_MAX;
    static const char from[] = "tnrvfa0e", to[] = "\t\n\r\v\f\a\0\x1b";
    if (strchr("dDwWsS", c)) {
        r->at++;
        if ((c | 32) == 'd') set_digit(&s);
        if ((c | 32) == 'w') set_word(&s);
        if ((c | 32) == 's') set_space(&s, ecma);
        if (c < 'a') cp_invert(&s);
        cp_add_set(out, &s);
        free(s.p);
        return true;
    }
    r->at++;
    if (c == 'p' || c == 'P') return class_property(r, c == 'P', out);
    if (c == 'x') return peek(r, "{") ? escape_unicode(r, cp) : hex_take(r, 2, cp);
    if (c == 'u') return escape_unicode(r, cp);
    if (c == 'U') return hex_take(r, 8, cp) && *cp <= 0x10FFFF;
    if (c == 'b' && in_class) return *cp = '\b', true;
    if (c == 'c' && r->at < r->s.n && str_digit(r->s.p[r->at]) >= 10 && str_digit(r->s.p[r->at]) < 36)
        return *cp = (uint32_t)r->s.p[r->at++] & 31, true;
    const char *known = strchr(from, c);
    if (known && c) {
        if (c == '0' && more(r) && str_digit(r->s.p[r->at]) < 10) return bad(r, "an octal escape"), false;
        return *cp = (uint8_t)to[known - from], true;
    }
    if (str_digit(c) < 36) {
        r->at--;
        return bad(r, c >= '1' && c <= '9' ? "a back reference, which no automaton can follow"
                      : (c | 32) == 'b'    ? "a word border, which is not supported"
                                           : "an unknown escape"),
               false;
    }
    size_t at = r->at - 1;
    *cp = utf8_next(r->s.p, r->s.n, &at);
    r->at = at;
    return true;
}
static void set_fold(cp_set *s) {
    for (size_t i = 0, n = s->n; i < n; i++) {
        cp_range up = {MAX(s->p[i].lo, 'A'), MIN(s->p[i].hi, 'Z')}, low = {MAX(s->p[i].lo, 'a'), MIN(s->p[i].hi, 'z')};
        if (up.lo <= up.hi) cp_add(s, up.lo + 32, up.hi + 32);
        if (low.lo <= low.hi) cp_add(s, low.lo - 32, low.hi - 32);
    }
}
static uint32_t cp_take(regex *r) {
    return utf8_next(r->s.p, r->s.n, &r->at);
}
static bool class_named(regex *r, cp_set *out) { /* [:alpha:] and the like */
    static const struct {
        const char *name;
        uint8_t range[8];
    } posix[] = {{"[:alpha:]", "AZaz"}, {"[:digit:]", "09"},      {"[:alnum:]", "09AZaz"}, {"[:upper:]", "AZ"},
                 {"[:lower:]", "az"},   {"[:xdigit:]", "09AFaf"}, {"[:space:]", "\t\r  "}, {"[:punct:]", "!/:@[`{~"}};
    for (size_t i = 0; i < COUNT(posix); i++) {
        if (!take(r, posix[i].name)) continue;
        for (int k = 0; k < 8 && posix[i].range[k]; k += 2) cp_add(out, posix[i].range[k], posix[i].range[k + 1]);
        return true;
    }
    return false;
}
/* Behind '['; up to and with ']'. */
static bool class_body(regex *r, cp_set *out) {
    cp_set s = {0};
    bool negate = take(r, "^"), ok = true, first = true;
    for (; ok && more(r) && (!peek(r, "]") || (first && !(r->flags & REGEX_ECMA))); first = false) {
        uint32_t lo, hi;
        if (class_named(r, &s)) continue;
        if (take(r, "\\"))
            ok = escape(r, true, &s, &lo);
        else
            lo = cp_take(r);
        if (!ok || lo == UINT32_MAX) continue;
        hi = lo;
        str rest = str_slice(r->s, r->at, r->s.n);
        if (rest.n > 1 && rest.p[0] == '-' && rest.p[1] != ']') {
            size_t back = r->at++;
            cp_set other = {0};
            if (take(r, "\\"))
                ok = escape(r, true, &other, &hi);
            else
                hi = cp_take(r);
            free(other.p);
            if (ok && hi == UINT32_MAX) r->at = back + 1, cp_add(&s, '-', '-'), hi = lo; /* a-\d: three things */
            if (ok && hi < lo) ok = bad(r, "a range that runs backwards") != NULL;
        }
        if (ok) cp_add(&s, lo, hi);
    }
    if (ok && !take(r, "]")) ok = bad(r, "a class without ]") != NULL;
    if (r->fold) set_fold(&s);
    if (negate) cp_invert(&s);
    cp_add_set(out, &s);
    free(s.p);
    return ok && !r->b->failed;
}
bool regex_class(builder *b, str s, size_t *at, unsigned flags, cp_set *out, const char *where) {
    regex r = {.b = b, .s = s, .at = *at, .flags = flags, .where = where};
    bool ok = class_body(&r, out);
    *at = r.at;
    return ok;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */
static r_node *parse_alt(regex *r);

/* The set moves into the arena. */
static r_node *set_node(regex *r, cp_set *s) {
    r_node *n = node(r, R_SET);
    if (s->n) n->set = (cp_set){.p = arena_copy(r->b->a, s->p, s->n * sizeof *s->p), .n = s->n};
    free(s->p);
    return n;
}
static r_node *parse_group(regex *r) {
    bool look = false, negate = false;
    if (take(r, "?")) {
        if (take(r, "="))
            look = true;
        else if (take(r, "!"))
            look = negate = true;
        else if (peek(r, "<=") || peek(r, "<!"))
            return bad(r, "a lookbehind, which is not supported");
        else if (take(r, "P<") || take(r, "<")) {
            while (more(r) && !peek(r, ">")) r->at++;
            if (!take(r, ">")) return bad(r, "a group name without >");
        } else if (!take(r, ":") && !take(r, ">"))
            return bad(r, "a kind of group that is not supported");
    }
    r_node *n = parse_alt(r);
    if (r->b->failed) return NULL;
    if (!take(r, ")")) return bad(r, "a group without )");
    if (!look) return n;
    r_node *l = node(r, R_LOOK);
    l->negate = negate;
    kid_add(r, l, n);
    return l;
}
static r_node *parse_dot(regex *r) {
    cp_set s = {0};
    if (!r->dot_all) {
        cp_add(&s, '\n', '\n');
        if (r->flags & REGEX_ECMA) cp_add(&s, '\r', '\r'), cp_add(&s, 0x2028, 0x2029);
    }
    cp_invert(&s);
    return set_node(r, &s);
}
static r_node *parse_atom(regex *r) {
    cp_set s = {0};
    uint32_t cp;
    if (take(r, "(")) return parse_group(r);
    if (take(r, ".")) return parse_dot(r);
    if (take(r, "^") || take(r, "\\A")) return node(r, R_BEGIN);
    if (take(r, "$") || take(r, "\\z") || take(r, "\\Z")) return node(r, R_END);
    if (take(r, "[")) {
        if (!class_body(r, &s)) {
            free(s.p);
            return NULL;
        }
        return set_node(r, &s);
    }
    char c = r->s.p[r->at];
    if (strchr("*+?", c) && c) return bad(r, "a repetition of nothing");
    if (take(r, "\\")) {
        bool ok = escape(r, false, &s, &cp);
        if (ok && cp != UINT32_MAX) cp_add(&s, cp, cp);
        if (!ok) {
            free(s.p);
            return NULL;
        }
    } else {
        cp = cp_take(r);
        cp_add(&s, cp, cp);
    }
    if (r->fold) set_fold(&s);
    return set_node(r, &s);
}
static bool count_take(regex *r, uint32_t *out) {
    uint64_t v = 0;
    size_t from = r->at;
    for (; more(r) && r->s.p[r->at] >= '0' && r->s.p[r->at] <= '9'; r->at++)
        v = MIN(v * 10 + (uint64_t)(r->s.p[r->at] - '0'), (uint64_t)1 << 40);
    if (v > REGEX_COUNT_MAX) return bad(r, "a count above 1000000"), false;
    *out = (uint32_t)v;
    return r->at > from;
}
/* {n}, {n,}, {n,m}; anything else that begins with { stands for itself. */
static bool braces_take(regex *r, uint32_t *min, uint32_t *max) {
    size_t from = r->at;
    if (!take(r, "{")) return false;
    bool low = count_take(r, min);
    if (!low) *min = 0;
    *max = *min;
    if (take(r, ",") && !count_take(r, max)) *max = GX_INF;
    if (take(r, "}") && (low || (*max != GX_INF && !(r->flags & REGEX_ECMA)))) return true;
    r->at = from;
    return false;
}
static r_node *parse_repeat(regex *r) {
    r_node *n = parse_atom(r);
    if (!n) return NULL;
    while (more(r)) {
        uint32_t min, max;
        if (take(r, "*"))
            min = 0, max = GX_INF;
        else if (take(r, "+"))
            min = 1, max = GX_INF;
        else if (take(r, "?"))
            min = 0, max = 1;
        else if (!braces_take(r, &min, &max))
            break;
        if (max < min) return bad(r, "a repetition whose counts run backwards");
        if (!take(r, "?")) take(r, "+"); /* lazy and possessive forms match the same texts here */
        r_node *rep = node(r, R_REP);
        rep->min = min;
        rep->max = max;
        kid_add(r, rep, n);
        n = rep;
        if (++r->depth > REGEX_DEPTH) return bad(r, "it is nested too deeply");
    }
    return n;
}
static r_node *parse_seq(regex *r) {
    r_node *n = node(r, R_SEQ);
    int depth = r->depth;
    while (more(r) && !peek(r, "|") && !peek(r, ")")) {
        r_node *k = parse_repeat(r);
        if (!k) return NULL;
        kid_add(r, n, k);
        r->depth = depth;
    }
    return n;
}
static r_node *parse_alt(regex *r) {
    r_node *n = node(r, R_ALT);
    if (++r->depth > REGEX_DEPTH) return bad(r, "it is nested too deeply");
    do {
        r_node *k = parse_seq(r);
        if (!k) return NULL;
        kid_add(r, n, k);
    } while (take(r, "|"));
    r->depth--;
    return n->n == 1 ? n->kid[0] : n;
}

/* ---- building ---------------------------------------------------------------------------------------------------- */
/* lead: any text may come before; trail: any after; last: nothing of the pattern comes after. */
typedef struct r_place {
    bool lead, trail, last;
} r_place;
static gx any_text(regex *r) {
    cp_range all = {0, 0x10FFFF};
    return gx_rep(r->b, json_chars(r->b, &(cp_set){.p = &all, .n = 1}, r->flags & REGEX_QUOTED), 0, GX_INF);
}
static bool anchored(const r_node *n) {
    if (n->kind == R_BEGIN || n->kind == R_END || n->kind == R_LOOK) return true;
    for (size_t i = 0; i < n->n; i++)
        if (anchored(n->kid[i])) return true;
    return false;
}
static gx build(regex *r, const r_node *n, r_place p);

static gx wrap(regex *r, gx x, r_place p) {
    return GX_SEQ(r->b, p.lead ? any_text(r) : GX_EMPTY, x, p.trail ? any_text(r) : GX_EMPTY);
}
static gx build_seq(regex *r, r_node *const *kid, size_t n, r_place p) {
    gx_list l = {0};
    gx out = GX_EMPTY;
    if (!n) return wrap(r, GX_EMPTY, p);
    for (size_t i = 0; i < n && !r->b->failed; i++) {
        const r_node *k = kid[i];
        if (k->kind == R_LOOK) {
            if (!p.last) {
                bad(r, "a lookahead in the middle, which is not supported");
                break;
            }
            if (p.lead && i == 0) gx_push(&l, any_text(r));
            gx rest = build_seq(r, kid + i + 1, n - i - 1, (r_place){.trail = p.trail, .last = true});
            gx look = build(r, k->kid[0], (r_place){.trail = true, .last = true});
            gx_push(&l, gx_and(r->b, rest, look, k->negate));
            break;
        }
        gx_push(&l, build(r, k,
                          (r_place){
                              .lead = p.lead && i == 0, .trail = p.trail && i + 1 == n, .last = p.last && i + 1 == n}));
    }
    out = gx_seq(r->b, l.p, l.n);
    free(l.p);
    return out;
}
static gx build(regex *r, const r_node *n, r_place p) {
    builder *b = r->b;
    gx_list l = {0};
    gx out;
    switch (n->kind) {
    case R_SET: return wrap(r, json_chars(b, &n->set, r->flags & REGEX_QUOTED), p);
    case R_SEQ: {
        /* Anchors at the ends only say that nothing comes before or after. */
        size_t from = 0, to = n->n;
        r_place q = p;
        bool begin = false, end = false;
        while (from < to && n->kid[from]->kind == R_BEGIN) from++, begin = true;
        while (to > from && n->kid[to - 1]->kind == R_END) to--, end = true;
        if (begin) q.lead = false;
        if (end) q.trail = false;
        return build_seq(r, n->kid ? n->kid + from : NULL, to - from, q);
    }
    case R_ALT:
        for (size_t i = 0; i < n->n; i++) gx_push(&l, build(r, n->kid[i], p));
        out = gx_alt(b, l.p, l.n);
        free(l.p);
        return out;
    case R_REP:
        if (anchored(n->kid[0])) {
            bad(r, "a repeated anchor");
            return GX_NEVER;
        }
        return wrap(r, gx_rep(b, build(r, n->kid[0], (r_place){0}), n->min, n->max), p);
    case R_LOOK: return build_seq(r, (r_node *const[]){(r_node *)n}, 1, p);
    default:
        return wrap(r, GX_EMPTY, (r_place){.lead = n->kind == R_END && p.lead, .trail = n->kind == R_BEGIN && p.trail});
    }
}
/* An anchor with text on its outer side can never match; the place says whether there is any. */
static bool anchors_fit(const r_node *n, bool at_begin, bool at_end) {
    if (n->kind == R_BEGIN) return at_begin;
    if (n->kind == R_END) return at_end;
    for (size_t i = 0; i < n->n; i++) {
        bool b = at_begin, e = at_end;
        if (n->kind == R_SEQ)
            for (size_t j = 0; j < n->n; j++) {
                bool nothing = n->kid[j]->kind == R_BEGIN || n->kid[j]->kind == R_END || n->kid[j]->kind == R_LOOK;
                if (j < i) b &= nothing;
                if (j > i) e &= nothing;
            }
        if (n->kind == R_LOOK) e = true;
        if (!anchors_fit(n->kid[i], b, e)) return false;
    }
    return true;
}

gx regex_build(builder *b, str pattern, unsigned flags, const char *where) {
    regex r = {.b = b, .s = pattern, .flags = flags, .where = where};
    if (pattern.n > 1 << 20) return builder_fail(b, "%s: the pattern has %zu bytes; at most 1048576", where, pattern.n);
    if (utf8_valid(pattern) != pattern.n) return builder_fail(b, "%s: the pattern is not UTF-8", where);
    for (bool any = true; any;) {
        any = false;
        if (take(&r, "(?i)")) any = r.fold = true;
        if (take(&r, "(?s)")) any = r.dot_all = true;
        if (take(&r, "(?u)")) any = true;
    }
    r_node *n = parse_alt(&r);
    if (b->failed) return GX_NEVER;
    if (r.at < pattern.n) return bad(&r, "a ) without a group"), GX_NEVER;
    if (!anchors_fit(n, true, true))
        return bad(&r, "an anchor inside of the pattern, which is not supported"), GX_NEVER;
    bool search = flags & REGEX_SEARCH;
    return build(&r, n, (r_place){search, search, true});
}
