/* Jinja: source text to tokens. White space control is finished here: the parser sees only text that will be written.
 * Rules: Jinja2 3.1.6's lexer with trim_blocks and lstrip_blocks on, line statements off.
 * Not here: what the tokens mean (jinja_parse.c). */
#include <math.h>
#include <stdlib.h>
#include "jinja_internal.h"

typedef struct lexer {
    core *c;
    const char *p;
    size_t n, i;
    token *t;
    size_t n_t, cap;
    char open[200]; /* brackets not yet closed; as deep as Python allows */
    uint32_t n_open;
} lexer;

static const char *const token_names[T_TYPES] = {
    [T_EOF] = "end of template",
    [T_DATA] = "template data",
    [T_VAR_BEGIN] = "{{",
    [T_VAR_END] = "end of print statement",
    [T_BLOCK_BEGIN] = "{%",
    [T_BLOCK_END] = "end of statement block",
    [T_NAME] = "name",
    [T_STRING] = "string",
    [T_INT] = "integer",
    [T_FLOAT] = "float",
    [T_ADD] = "+",
    [T_SUB] = "-",
    [T_DIV] = "/",
    [T_FLOORDIV] = "//",
    [T_MUL] = "*",
    [T_MOD] = "%",
    [T_POW] = "**",
    [T_TILDE] = "~",
    [T_LBRACKET] = "[",
    [T_RBRACKET] = "]",
    [T_LPAREN] = "(",
    [T_RPAREN] = ")",
    [T_LBRACE] = "{",
    [T_RBRACE] = "}",
    [T_EQ] = "==",
    [T_NE] = "!=",
    [T_GT] = ">",
    [T_GE] = ">=",
    [T_LT] = "<",
    [T_LE] = "<=",
    [T_ASSIGN] = "=",
    [T_DOT] = ".",
    [T_COLON] = ":",
    [T_PIPE] = "|",
    [T_COMMA] = ",",
    [T_SEMICOLON] = ";",
};
const char *token_name(token_type t) {
    return token_names[t];
}

/* Longest first. */
static const struct {
    char text[3];
    token_type type;
} operators[] = {
    {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
    {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
    {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
    {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
    {",", T_COMMA},     {";", T_SEMICOLON},
};

static token *push(lexer *l, token_type type, str text) {
    if (l->n_t == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        token *t = jinja_array(l->c, token, cap);
        if (l->n_t) memcpy(t, l->t, l->n_t * sizeof *t);
        l->t = t;
        l->cap = cap;
    }
    token *t = &l->t[l->n_t++];
    *t = (token){.type = type, .line = l->c->line, .text = text};
    return t;
}

static bool at(const lexer *l, size_t i, const char *s) {
    size_t n = strlen(s);
    return i + n <= l->n && memcmp(l->p + i, s, n) == 0;
}

static size_t skip_space(const lexer *l, size_t i) {
    while (i < l->n) {
        size_t j = i;
        if (!cp_space(utf8_next(l->p, l->n, &j))) break;
        i = j;
    }
    return i;
}

/* Moves to i, counting lines. */
static void go(lexer *l, size_t i) {
    for (size_t k = l->i; k < i; k++) l->c->line += l->p[k] == '\n';
    l->i = i;
}

static str rstrip(str s) {
    while (s.n) {
        size_t i = utf8_start(s.p, s.n - 1), j = i;
        if (!cp_space(utf8_next(s.p, s.n, &j))) break;
        s.n = i;
    }
    return s;
}

/* Text before a tag whose opening mark is followed by `sign`. */
static str text_before(str text, char sign, bool is_variable, bool line_start) {
    if (sign == '-') return rstrip(text);
    if (sign == '+' || is_variable) return text;
    size_t from = text.n;
    while (from && text.p[from - 1] != '\n') from--;
    if (!from && !line_start) return text;
    str tail = {text.p + from, text.n - from};
    if (rstrip(tail).n == 0) text.n = from;
    return text;
}

/* The closing mark of a block or comment at i, or 0; else where what follows it begins. */
static size_t close_mark(const lexer *l, size_t i, const char *mark, bool is_variable) {
    size_t n = strlen(mark);
    if (i < l->n && l->p[i] == '-' && at(l, i + 1, mark)) return skip_space(l, i + 1 + n);
    if (!is_variable && i < l->n && l->p[i] == '+' && at(l, i + 1, mark)) return i + 1 + n;
    if (!at(l, i, mark)) return 0;
    i += n;
    if (!is_variable && i < l->n && l->p[i] == '\n') i++;
    return i;
}

static char sign_at(const lexer *l, size_t i) {
    return i < l->n && (l->p[i] == '-' || l->p[i] == '+') ? l->p[i] : 0;
}

/* `{% word` at i (a block's opening mark): where the word ends, else 0. */
static size_t block_word(const lexer *l, size_t i, const char *word) {
    if (!at(l, i, "{%")) return 0;
    i += 2;
    if (sign_at(l, i)) i++;
    i = skip_space(l, i);
    return at(l, i, word) ? i + strlen(word) : 0;
}

static void lex_comment(lexer *l) {
    for (size_t i = l->i + 2; i < l->n; i++) {
        size_t end = close_mark(l, i, "#}", false);
        if (!end) continue;
        go(l, end);
        return;
    }
    if (l->i + 2 < l->n) jinja_fail(l->c, "Missing end of comment tag");
    go(l, l->n); /* nothing follows: Jinja2 lets it pass */
}

/* {% raw %}: `i` is behind its closing mark. */
static void lex_raw(lexer *l, size_t i) {
    bool line_start = i > 0 && l->p[i - 1] == '\n';
    go(l, i);
    for (size_t k = i; k < l->n; k++) {
        if (l->p[k] != '{') continue;
        size_t end = block_word(l, k, "endraw");
        if (!end) continue;
        end = close_mark(l, skip_space(l, end), "%}", false);
        if (!end) continue;
        str text = text_before((str){l->p + i, k - i}, sign_at(l, k + 2), false, line_start);
        if (text.n) push(l, T_DATA, text);
        go(l, end);
        return;
    }
    if (i < l->n) jinja_fail(l->c, "Missing end of raw directive");
}

/* digits (_digits)*: where they end, or i when there are none. */
static size_t digits(const lexer *l, size_t i, bool (*is)(int)) {
    size_t k = i;
    while (k < l->n && (is((uint8_t)l->p[k]) || (l->p[k] == '_' && k > i && k + 1 < l->n && is((uint8_t)l->p[k + 1]))))
        k++;
    return k;
}
static bool is_dec(int ch) {
    return ch >= '0' && ch <= '9';
}
static bool is_oct(int ch) {
    return ch >= '0' && ch <= '7';
}
static bool is_bin(int ch) {
    return ch == '0' || ch == '1';
}
static bool is_hex(int ch) {
    return str_digit((char)ch) < 16;
}

static size_t float_end(const lexer *l, size_t i) {
    if (i && l->p[i - 1] == '.') return 0; /* a.0.1 is two lookups */
    size_t k = digits(l, i, is_dec);
    if (k == i) return 0;
    bool ok = false;
    if (k < l->n && l->p[k] == '.') {
        size_t f = digits(l, k + 1, is_dec);
        if (f > k + 1) k = f, ok = true;
    }
    if (k < l->n && (l->p[k] | 32) == 'e') {
        size_t e = k + 1;
        if (e < l->n && (l->p[e] == '+' || l->p[e] == '-')) e++;
        size_t f = digits(l, e, is_dec);
        if (f > e) k = f, ok = true;
    }
    return ok ? k : 0;
}

static bool lex_number(lexer *l) {
    size_t i = l->i, end = float_end(l, i);
    char text[64];
    size_t n = 0;
    if (end) {
        for (size_t k = i; k < end; k++) {
            if (l->p[k] == '_') continue;
            if (n + 1 >= sizeof text) jinja_fail(l->c, "number of %zu digits", end - i);
            text[n++] = l->p[k];
        }
        text[n] = 0;
        push(l, T_FLOAT, (str){l->p + i, end - i})->f = strtod(text, NULL);
        go(l, end);
        return true;
    }
    static const struct {
        char letter;
        bool (*is)(int);
        int base;
    } bases[] = {{'b', is_bin, 2}, {'o', is_oct, 8}, {'x', is_hex, 16}};
    size_t from = i;
    int base = 10;
    for (size_t b = 0; b < COUNT(bases) && l->p[i] == '0' && i + 1 < l->n; b++) {
        if ((l->p[i + 1] | 32) != bases[b].letter) continue;
        size_t s = i + 2 + (i + 2 < l->n && l->p[i + 2] == '_');
        end = digits(l, s, bases[b].is);
        if (end > s) from = s, base = bases[b].base;
        break;
    }
    if (base == 10) {
        end = digits(l, i, is_dec);
        if (end == i) return false;
        if (l->p[i] == '0') /* 0 or 00: a further digit begins another token */
            for (end = i + 1;
                 end < l->n && (l->p[end] == '0' || (l->p[end] == '_' && end + 1 < l->n && l->p[end + 1] == '0'));)
                end++;
    }
    int64_t v = 0;
    for (size_t k = from; k < end; k++) {
        if (l->p[k] == '_') continue;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, str_digit(l->p[k]), &v))
            jinja_fail(l->c, "integer beyond 64 bits");
    }
    push(l, T_INT, (str){l->p + i, end - i})->i = v;
    go(l, end);
    return true;
}

static bool hex_escape(const str s, size_t i, size_t n, uint32_t *cp) {
    if (i + n > s.n) return false;
    *cp = 0;
    for (size_t k = i; k < i + n; k++) {
        int d = str_digit(s.p[k]);
        if (d >= 16) return false;
        *cp = *cp * 16 + (uint32_t)d;
    }
    return true;
}

/* Escapes of a string literal, as Python's unicode-escape. */
static str unescape(lexer *l, str s) {
    if (!memchr(s.p, '\\', s.n)) return s;
    char *out = jinja_alloc(l->c, s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] != '\\' || i + 1 == s.n) {
            out[n++] = s.p[i];
            continue;
        }
        char e = s.p[++i];
        static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
        const char *hit = NULL;
        for (const char *q = plain; *q; q += 2)
            if (*q == e) hit = q + 1;
        uint32_t cp = 0;
        size_t width = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
        if (hit)
            out[n++] = *hit;
        else if (e == '\n')
            continue;
        else if (is_oct(e)) {
            size_t k = i;
            while (k < s.n && k < i + 3 && is_oct((uint8_t)s.p[k])) cp = cp * 8 + (uint32_t)(s.p[k++] - '0');
            i = k - 1;
            n += utf8_put(out + n, cp);
        } else if (width) {
            if (!hex_escape(s, i + 1, width, &cp)) jinja_fail(l->c, "truncated \\%c escape in a string", e);
            if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
                jinja_fail(l->c, "\\%c%0*x is not a character", e, (int)width, cp);
            i += width;
            n += utf8_put(out + n, cp); /* never longer than the escape */
        } else if (e == 'N')
            jinja_fail(l->c, "\\N{...} escapes are not supported");
        else {
            out[n++] = '\\';
            out[n++] = e;
        }
    }
    return (str){out, n};
}

static bool lex_string(lexer *l) {
    char quote = l->p[l->i];
    if (quote != '\'' && quote != '"') return false;
    for (size_t k = l->i + 1; k < l->n; k++) {
        if (l->p[k] == '\\') {
            k++;
            continue;
        }
        if (l->p[k] != quote) continue;
        push(l, T_STRING, unescape(l, (str){l->p + l->i + 1, k - l->i - 1}));
        go(l, k + 1);
        return true;
    }
    jinja_fail(l->c, "unexpected char '%c': the string is not closed", quote);
}

static bool lex_name(lexer *l) {
    size_t i = l->i;
    bool first = true;
    while (i < l->n) {
        size_t j = i;
        uint32_t cp = utf8_next(l->p, l->n, &j);
        if (!cp_word(cp)) break;
        if (first && cp != '_' && !cp_alpha(cp)) jinja_fail(l->c, "Invalid character in identifier");
        first = false;
        i = j;
    }
    if (first) return false;
    push(l, T_NAME, (str){l->p + l->i, i - l->i});
    go(l, i);
    return true;
}

static void lex_operator(lexer *l) {
    for (size_t k = 0; k < COUNT(operators); k++) {
        if (!at(l, l->i, operators[k].text)) continue;
        token_type t = operators[k].type;
        char want = t == T_LBRACE ? '}' : t == T_LPAREN ? ')' : t == T_LBRACKET ? ']' : 0;
        if (want) {
            if (l->n_open == sizeof l->open)
                jinja_fail(l->c, "nested too deep: more than %zu open brackets", sizeof l->open);
            l->open[l->n_open++] = want;
        } else if (t == T_RBRACE || t == T_RPAREN || t == T_RBRACKET) {
            if (!l->n_open) jinja_fail(l->c, "unexpected '%s'", operators[k].text);
            char expected = l->open[--l->n_open];
            if (expected != operators[k].text[0])
                jinja_fail(l->c, "unexpected '%s', expected '%c'", operators[k].text, expected);
        }
        push(l, t, (str){l->p + l->i, strlen(operators[k].text)});
        go(l, l->i + strlen(operators[k].text));
        return;
    }
    size_t j = l->i;
    utf8_next(l->p, l->n, &j);
    jinja_fail(l->c, "unexpected char '%.*s'", (int)(j - l->i), l->p + l->i);
}

/* Inside {{ }} or {% %}, up to and with its closing mark. */
static void lex_tag(lexer *l, bool is_variable) {
    l->n_open = 0;
    while (true) {
        size_t end = l->n_open ? 0 : close_mark(l, l->i, is_variable ? "}}" : "%}", is_variable);
        if (end) {
            push(l, is_variable ? T_VAR_END : T_BLOCK_END, STR(""));
            go(l, end);
            return;
        }
        if (l->i >= l->n) {
            if (l->n_open) jinja_fail(l->c, "unexpected end of template, expected '%c'", l->open[l->n_open - 1]);
            push(l, T_EOF, STR(""));
            return;
        }
        size_t s = skip_space(l, l->i);
        if (s > l->i) {
            go(l, s);
            continue;
        }
        if (!lex_number(l) && !lex_string(l) && !lex_name(l)) lex_operator(l);
    }
}

token *jinja_lex(core *c, str source) {
    lexer l = {.c = c, .p = source.p, .n = source.n};
    bool line_start = true;
    c->line = 1;
    while (l.i < l.n) {
        size_t k = l.i;
        while (k < l.n &&
               !(l.p[k] == '{' && k + 1 < l.n && (l.p[k + 1] == '{' || l.p[k + 1] == '%' || l.p[k + 1] == '#')))
            k++;
        str text = {l.p + l.i, k - l.i};
        if (k == l.n) {
            push(&l, T_DATA, text);
            break;
        }
        char kind = l.p[k + 1];
        text = text_before(text, sign_at(&l, k + 2), kind == '{', line_start);
        if (text.n) push(&l, T_DATA, text);
        go(&l, k);
        size_t raw = kind == '%' ? block_word(&l, k, "raw") : 0;
        if (raw) {
            raw = skip_space(&l, raw);
            if (raw < l.n && l.p[raw] == '-' && at(&l, raw + 1, "%}"))
                raw = skip_space(&l, raw + 3);
            else
                raw = at(&l, raw, "%}") ? raw + 2 : 0;
        }
        if (raw)
            lex_raw(&l, raw);
        else if (kind == '#')
            lex_comment(&l);
        else {
            push(&l, kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, STR(""));
            go(&l, k + 2 + (sign_at(&l, k + 2) != 0));
            lex_tag(&l, kind == '{');
        }
        line_start = l.i && l.p[l.i - 1] == '\n';
    }
    push(&l, T_EOF, STR(""));
    return l.t;
}
