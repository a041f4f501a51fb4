/* Lark-style grammars: "start: ...", strings and /regexes/, * + ? ~n..m, [optional], ranges, %ignore, %import common.
 * There is no lexer of its own: a terminal is a rule, and where two could match both are followed. What GBNF shares is
 * in grammar_gbnf.c. */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_internal.h"

enum { GROUP_DEPTH = 150 };
static const struct {
    const char *name, *regex;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[_A-Za-z][_A-Za-z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

typedef struct lark {
    scan c;
    uint32_t ignore; /* the rule of what may stand between terminals */
    gx_list ignored;
    bool terminal; /* inside of a terminal nothing is ignored */
} lark;

static bool name_char(char c) {
    return str_digit(c) < 36 || c == '_';
}
static bool upper(str name) {
    for (size_t i = 0; i < name.n; i++)
        if (name.p[i] != '_') return name.p[i] >= 'A' && name.p[i] <= 'Z';
    return false;
}
static char next(const lark *l) {
    return l->c.at < l->c.s.n && !l->c.b->failed ? l->c.s.p[l->c.at] : 0;
}
static bool take(lark *l, const char *text) {
    if (l->c.b->failed || !str_starts(str_slice(l->c.s, l->c.at, l->c.s.n), str_of(text))) return false;
    l->c.at += strlen(text);
    return true;
}
static void skip(lark *l, bool lines) {
    for (;;) {
        char ch = next(l);
        if (ch == ' ' || ch == '\t' || (lines && (ch == '\n' || ch == '\r'))) {
            l->c.at++;
        } else if (ch && (str_starts(str_slice(l->c.s, l->c.at, l->c.s.n), STR("//")) || ch == '#')) {
            while (next(l) && next(l) != '\n') l->c.at++;
        } else {
            return;
        }
    }
}
static str name_take(lark *l) {
    size_t from = l->c.at;
    while (l->c.at < l->c.s.n && name_char(l->c.s.p[l->c.at])) l->c.at++;
    return str_slice(l->c.s, from, l->c.at);
}
static gx terminal(lark *l, gx x) {
    return l->terminal ? x : GX_SEQ(l->c.b, x, gx_call(l->c.b, l->ignore));
}
static gx alternatives(lark *l);

static gx folded(lark *l, str s) {
    gx_list v = {0};
    for (size_t at = 0; at < s.n;) {
        uint32_t cp = utf8_next(s.p, s.n, &at);
        cp_set c = {0};
        cp_add(&c, cp, cp);
        if ((cp | 32) >= 'a' && (cp | 32) <= 'z') cp_add(&c, cp ^ 32, cp ^ 32);
        gx_push(&v, gx_class(l->c.b, &c));
        free(c.p);
    }
    gx x = gx_seq(l->c.b, v.p, v.n);
    free(v.p);
    return x;
}
static gx string_atom(lark *l) {
    buf a = {0}, z = {0};
    size_t n = 0, m = 0;
    gx x = GX_NEVER;
    if (!scan_string(&l->c, &a)) goto out;
    if (take(l, "..")) {
        if (!take(l, "\"") || !scan_string(&l->c, &z)) goto out;
        uint32_t lo = a.n ? utf8_get(a.p, &n) : 1, hi = z.n ? utf8_get(z.p, &m) : 0;
        x = lo <= hi && n == a.n && m == z.n ? gx_range(l->c.b, lo, hi)
                                             : scan_bad(&l->c, "a range needs two characters");
    } else {
        bool fold = next(l) == 'i' && !(l->c.at + 1 < l->c.s.n && name_char(l->c.s.p[l->c.at + 1]));
        if (fold) l->c.at++;
        x = fold ? folded(l, buf_view(&a)) : gx_lit(l->c.b, buf_view(&a));
    }
    x = terminal(l, x);
out:
    buf_free(&a);
    buf_free(&z);
    return x;
}
static gx regex_atom(lark *l) {
    buf t = {0};
    bool in_class = false;
    for (; next(l) && (next(l) != '/' || in_class); l->c.at++) {
        char ch = next(l);
        if (ch == '\n') break;
        if (ch == '\\' && l->c.at + 1 < l->c.s.n) {
            if (l->c.s.p[l->c.at + 1] != '/') buf_putc(&t, ch);
            ch = l->c.s.p[++l->c.at];
        } else if (ch == '[' || ch == ']') {
            in_class = ch == '[';
        }
        buf_putc(&t, ch);
    }
    if (!take(l, "/")) {
        buf_free(&t);
        return scan_bad(&l->c, "a regex without its closing /");
    }
    buf whole = {0};
    for (; next(l) && strchr("imslux", next(l)); l->c.at++)
        if (strchr("is", next(l))) buf_printf(&whole, "(?%c)", next(l));
    buf_str(&whole, buf_view(&t));
    gx x = terminal(l, regex_build(l->c.b, buf_view(&whole), 0, l->c.where));
    buf_free(&t);
    buf_free(&whole);
    return x;
}
static gx atom(lark *l) {
    if (take(l, "\"")) return string_atom(l);
    if (take(l, "/")) return regex_atom(l);
    bool optional = next(l) == '[';
    if (optional || next(l) == '(') {
        if (++l->c.depth > GROUP_DEPTH) return scan_bad(&l->c, "groups are nested too deeply: more than 150");
        l->c.at++;
        skip(l, true);
        gx x = alternatives(l);
        skip(l, true);
        if (!take(l, optional ? "]" : ")")) return scan_bad(&l->c, "a group without its end");
        l->c.depth--;
        return optional ? gx_opt(l->c.b, x) : x;
    }
    take(l, "?");
    take(l, "!");
    str name = name_take(l);
    if (!name.n) return scan_bad(&l->c, "a name, string, regex or group is expected");
    gx x = gx_call(l->c.b, rule_named(l->c.b, name));
    return upper(name) ? terminal(l, x) : x;
}
static gx repeated(lark *l, gx x) {
    for (;;) {
        uint32_t min = 0, max = GX_INF;
        skip(l, false);
        if (take(l, "*")) {
        } else if (take(l, "+")) {
            min = 1;
        } else if (take(l, "?")) {
            max = 1;
        } else if (take(l, "~")) {
            skip(l, false);
            if (!scan_count(&l->c, &min)) return scan_bad(&l->c, "a count is expected after ~");
            max = min;
            if (take(l, "..") && !scan_count(&l->c, &max)) return scan_bad(&l->c, "a count is expected after ..");
        } else if (take(l, "{")) {
            if (!scan_count(&l->c, &min)) min = 0;
            max = min;
            if (take(l, ",") && !scan_count(&l->c, &max)) max = GX_INF;
            if (!take(l, "}")) return scan_bad(&l->c, "a repetition without }");
        } else {
            return x;
        }
        if (max < min) return scan_bad(&l->c, "a repetition whose counts run backwards");
        x = gx_rep(l->c.b, x, min, max);
    }
}
/* Over the end of a line: a body goes on where the next line begins with |. */
static bool bar_follows(lark *l) {
    size_t at = l->c.at;
    skip(l, true);
    if (take(l, "|")) return true;
    l->c.at = at;
    return false;
}
static gx alternatives(lark *l) {
    gx_list alt = {0};
    do {
        gx_list seq = {0};
        for (;;) {
            skip(l, l->c.depth > 0);
            char ch = next(l);
            if (!ch || strchr("|)]\r\n", ch)) break;
            if (take(l, "->")) {
                skip(l, false);
                name_take(l);
                continue;
            }
            gx_push(&seq, repeated(l, atom(l)));
        }
        gx_push(&alt, gx_seq(l->c.b, seq.p, seq.n));
        free(seq.p);
    } while (bar_follows(l));
    gx x = gx_alt(l->c.b, alt.p, alt.n);
    free(alt.p);
    return x;
}
static void import(lark *l) {
    builder *b = l->c.b;
    skip(l, false);
    if (!take(l, "common.")) {
        scan_bad(&l->c, "only %import common.NAME is supported");
        return;
    }
    str name = name_take(l), as = name;
    skip(l, false);
    if (take(l, "->")) {
        skip(l, false);
        as = name_take(l);
    }
    for (size_t i = 0; i < COUNT(common); i++)
        if (str_is(name, common[i].name)) {
            gx_rule_define(b, rule_named(b, as), regex_build(b, str_of(common[i].regex), 0, "common"));
            return;
        }
    scan_bad(&l->c, "an unknown terminal of common");
}
static void statement(lark *l) {
    builder *b = l->c.b;
    if (take(l, "%import")) {
        import(l);
        return;
    }
    if (take(l, "%ignore")) {
        l->terminal = true;
        gx_push(&l->ignored, alternatives(l));
        return;
    }
    if (next(l) == '%') {
        scan_bad(&l->c, "a directive that is not supported");
        return;
    }
    while (take(l, "?") || take(l, "!")) {
    }
    str name = name_take(l);
    uint32_t priority;
    if (take(l, ".")) scan_count(&l->c, &priority);
    skip(l, true);
    if (!name.n || !take(l, ":")) {
        scan_bad(&l->c, "\"name: ...\" is expected");
        return;
    }
    l->terminal = upper(name);
    uint32_t rule = rule_named(b, name);
    gx body = alternatives(l);
    if (!b->failed && b->rule[rule].defined) scan_bad(&l->c, "a rule is defined twice");
    gx_rule_define(b, rule, body);
}
gx lark_build(builder *b, str text, const char *where) {
    lark l = {.c = {.b = b, .s = text, .where = where}};
    l.ignore = gx_rule_new(b, "%ignore");
    for (skip(&l, true); next(&l); skip(&l, true)) {
        size_t at = l.c.at;
        statement(&l);
        skip(&l, false);
        if (!b->failed && next(&l) && !strchr("\r\n", next(&l)) && l.c.at >= at)
            scan_bad(&l.c, "a new line is expected");
    }
    gx_rule_define(b, l.ignore, gx_rep(b, gx_alt(b, l.ignored.p, l.ignored.n), 0, GX_INF));
    free(l.ignored.p);
    uint64_t start;
    if (b->failed) return GX_NEVER;
    if (!map_get(b->known, STR("rule:start"), &start)) return builder_fail(b, "%s: there is no rule start", where);
    return GX_SEQ(b, gx_call(b, l.ignore), gx_call(b, (uint32_t)start));
}
