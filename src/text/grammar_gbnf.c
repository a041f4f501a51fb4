/* GBNF, llama.cpp's grammars: rules "name ::= ...", literals, classes, groups, * + ? and {m,n}. The rule "root" is the
 * whole reply. Also what GBNF and Lark grammars share. Not here: Lark (grammar_lark.c). */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_internal.h"

enum { GROUP_DEPTH = 150 };

/* ---- shared with grammar_lark.c ---------------------------------------------------------------------------------- */
uint32_t rule_named(builder *b, str name) {
    uint64_t found;
    buf key = {0};
    buf_puts(&key, "rule:");
    buf_str(&key, name);
    if (!map_get(b->known, buf_view(&key), &found)) {
        found = gx_rule_new(b, arena_copy(b->a, name.p, MIN(name.n, 100)));
        map_set(b->known, buf_view(&key), found);
    }
    buf_free(&key);
    return (uint32_t)found;
}
gx scan_bad(const scan *c, const char *what) {
    int line = 1;
    for (size_t i = 0; i < c->at && i < c->s.n; i++) line += c->s.p[i] == '\n';
    return builder_fail(c->b, "%s: line %d: %s", c->where, line, what);
}
bool scan_string(scan *c, buf *out) {
    static const char from[] = "ntr\\\"[]'/-^.0abfv", to[] = "\n\t\r\\\"[]'/-^.\0\a\b\f\v";
    for (;; c->at++) {
        if (c->at >= c->s.n || c->s.p[c->at] == '\n') return scan_bad(c, "a string without its closing quote"), false;
        char ch = c->s.p[c->at];
        if (ch == '"') {
            c->at++;
            return true;
        }
        if (ch != '\\') {
            buf_putc(out, ch);
            continue;
        }
        if (++c->at >= c->s.n) continue;
        ch = c->s.p[c->at];
        int digits = ch == 'x' ? 2 : ch == 'u' ? 4 : ch == 'U' ? 8 : 0;
        const char *known = strchr(from, ch);
        if (!digits && (!known || !ch)) return scan_bad(c, "an unknown escape in a string"), false;
        if (!digits) {
            buf_putc(out, to[known - from]);
            continue;
        }
        uint32_t cp = 0;
        for (int i = 0; i < digits; i++) {
            int d = ++c->at < c->s.n ? str_digit(c->s.p[c->at]) : 99;
            if (d >= 16) return scan_bad(c, "an escape that is not hexadecimal"), false;
            cp = cp * 16 + (uint32_t)d;
        }
        char utf8[4];
        if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return scan_bad(c, "an escape that is no character"), false;
        buf_add(out, utf8, utf8_put(utf8, cp));
    }
}
bool scan_count(scan *c, uint32_t *out) {
    size_t from = c->at;
    uint64_t v = 0;
    for (; c->at < c->s.n && c->s.p[c->at] >= '0' && c->s.p[c->at] <= '9'; c->at++)
        v = MIN(v * 10 + (uint64_t)(c->s.p[c->at] - '0'), (uint64_t)1 << 40);
    if (v > 1000000) return scan_bad(c, "a count above 1000000"), false;
    *out = (uint32_t)v;
    return c->at > from;
}

/* ---- GBNF -------------------------------------------------------------------------------------------------------- */
static bool name_char(char c) {
    return str_digit(c) < 36 || c == '-' || c == '_';
}
static void skip(scan *c, bool lines) {
    for (; c->at < c->s.n; c->at++) {
        char ch = c->s.p[c->at];
        if (ch == '#')
            while (c->at + 1 < c->s.n && c->s.p[c->at + 1] != '\n') c->at++;
        else if (ch != ' ' && ch != '\t' && !(lines && (ch == '\n' || ch == '\r')))
            return;
    }
}
static char next(const scan *c) {
    return c->at < c->s.n && !c->b->failed ? c->s.p[c->at] : 0;
}
static str name_take(scan *c) {
    size_t from = c->at;
    while (c->at < c->s.n && name_char(c->s.p[c->at])) c->at++;
    return str_slice(c->s, from, c->at);
}
static gx alternatives(scan *c, bool nested);

static gx atom(scan *c, bool nested) {
    builder *b = c->b;
    char ch = next(c);
    if (ch == '"') {
        buf t = {0};
        c->at++;
        gx x = scan_string(c, &t) ? gx_lit(b, buf_view(&t)) : GX_NEVER;
        buf_free(&t);
        return x;
    }
    if (ch == '[') {
        cp_set s = {0};
        c->at++;
        gx x = regex_class(b, c->s, &c->at, REGEX_ECMA, &s, c->where) ? gx_class(b, &s) : GX_NEVER;
        free(s.p);
        return x;
    }
    if (ch == '.') {
        c->at++;
        return gx_range(b, 0, 0x10FFFF);
    }
    if (ch == '(') {
        if (++c->depth > GROUP_DEPTH) return scan_bad(c, "groups are nested too deeply: more than 150");
        c->at++;
        skip(c, true);
        gx x = alternatives(c, true);
        if (next(c) != ')') return scan_bad(c, "a group without )");
        c->at++;
        c->depth--;
        return x;
    }
    return name_char(ch) ? gx_call(b, rule_named(b, name_take(c)))
                         : scan_bad(c, "a name, string, class or group is expected");
}
static gx repeated(scan *c, gx x, bool nested) {
    for (;;) {
        skip(c, nested);
        uint32_t min = 0, max = GX_INF;
        char ch = next(c);
        if (ch != '*' && ch != '+' && ch != '?' && ch != '{') return x;
        c->at++;
        if (ch == '+') min = 1;
        if (ch == '?') max = 1;
        if (ch == '{') {
            skip(c, nested);
            bool low = scan_count(c, &min);
            max = min;
            skip(c, nested);
            if (next(c) == ',') {
                c->at++;
                skip(c, nested);
                if (!scan_count(c, &max)) max = GX_INF;
            } else if (!low) {
                return scan_bad(c, "a count is expected after {");
            }
            skip(c, nested);
            if (next(c) != '}') return scan_bad(c, "a repetition without }");
            c->at++;
            if (max < min) return scan_bad(c, "a repetition whose counts run backwards");
        }
        x = gx_rep(c->b, x, min, max);
    }
}
static gx sequence(scan *c, bool nested) {
    gx_list l = {0};
    for (;;) {
        skip(c, nested);
        char ch = next(c);
        if (!ch || ch == '|' || ch == ')' || ch == '\n' || ch == '\r') break;
        gx_push(&l, repeated(c, atom(c, nested), nested));
    }
    gx x = gx_seq(c->b, l.p, l.n);
    free(l.p);
    return x;
}
static gx alternatives(scan *c, bool nested) {
    gx_list l = {0};
    for (;;) {
        gx_push(&l, sequence(c, nested));
        if (next(c) != '|') break;
        c->at++;
        skip(c, true);
    }
    gx x = gx_alt(c->b, l.p, l.n);
    free(l.p);
    return x;
}
gx gbnf_build(builder *b, str text, const char *where) {
    scan c = {.b = b, .s = text, .where = where};
    for (skip(&c, true); next(&c); skip(&c, true)) {
        str name = name_take(&c);
        if (!name.n) return scan_bad(&c, "the name of a rule is expected");
        skip(&c, false);
        if (!str_starts(str_slice(text, c.at, text.n), STR("::="))) return scan_bad(&c, "::= is expected");
        c.at += 3;
        skip(&c, true);
        uint32_t rule = rule_named(b, name);
        gx body = alternatives(&c, false);
        if (next(&c) == ')') return scan_bad(&c, "a ) without a group");
        if (!b->failed && b->rule[rule].defined) return scan_bad(&c, "a rule is defined twice");
        gx_rule_define(b, rule, body);
    }
    uint64_t root;
    if (b->failed) return GX_NEVER;
    if (!map_get(b->known, STR("rule:root"), &root)) return builder_fail(b, "%s: there is no rule root", where);
    return gx_call(b, (uint32_t)root);
}
