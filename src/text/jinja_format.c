/* Jinja: "..." % args and "...".format(args), with Python's conversions and format specifications.
 * Not here: float repr and str() (jinja_value.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "jinja_internal.h"

enum { WIDTH_MAX = 1 << 20, PRECISION_MAX = 300 };

/* How one value is laid out; both syntaxes end here. */
typedef struct spec {
    jstr *fill; /* one character; NULL: a space */
    char align; /* < > ^ = or 0: the type's own */
    char sign;  /* + - space */
    bool alt, zero;
    char group;               /* , _ or 0 */
    int64_t width, precision; /* precision -1: not given */
    char type;
} spec;

/* ---- numbers to text --------------------------------------------------------------------------------------------- */
static size_t group_digits(char *out, const char *digits, size_t n, char sep, size_t by) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (sep && i && (n - i) % by == 0) out[k++] = sep;
        out[k++] = digits[i];
    }
    out[k] = 0;
    return k;
}

/* The magnitude of an integer; the sign is added by lay_out. */
static void int_text(core *c, const spec *s, uint64_t u, char out[128]) {
    char digits[72];
    size_t n = 0, k = 0;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    do digits[n++] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    for (size_t i = 0; i < n / 2; i++) {
        char t = digits[i];
        digits[i] = digits[n - 1 - i];
        digits[n - 1 - i] = t;
    }
    if (s->alt && base != 10) {
        out[k++] = '0';
        out[k++] = s->type;
    }
    group_digits(out + k, digits, n, s->group, base == 10 ? 3 : 4);
}

/* The magnitude of a float. */
static void float_text(core *c, const spec *s, double f, char *out, size_t cap) {
    char body[512], fmt[8];
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    char type = s->type ? s->type : 'r';
    double m = fabs(f);
    if (!isfinite(f)) {
        const char *word = isnan(f) ? "nan" : "inf";
        if (type == 'F' || type == 'E' || type == 'G') word = isnan(f) ? "NAN" : "INF";
        snprintf(out, cap, "%s%s", word, type == '%' ? "%" : "");
        return;
    }
    if (type == 'r' && s->precision < 0) {
        str_from_f64(body, m);
    } else {
        char conv = type == '%' ? 'f' : type == 'n' || type == 'r' ? 'g' : type;
        snprintf(fmt, sizeof fmt, s->alt ? "%%#.*%c" : "%%.*%c", conv);
        snprintf(body, sizeof body, fmt, precision, type == '%' ? m * 100 : m);
        if (type == 'r' && !strpbrk(body, ".e")) strncat(body, ".0", sizeof body - strlen(body) - 1);
    }
    size_t whole = strspn(body, "0123456789");
    char grouped[768];
    size_t k = group_digits(grouped, body, whole, s->group, 3);
    snprintf(out, cap, "%.*s%s%s", (int)k, grouped, body + whole, type == '%' ? "%" : "");
}

static void lay_out(sbuf *b, const spec *s, bool negative, const char *body, uint8_t user) {
    char sign = negative ? '-' : s->sign == '+' || s->sign == ' ' ? s->sign : 0;
    int64_t pad = s->width - (int64_t)strlen(body) - (sign != 0), before = 0;
    char align = s->align ? s->align : s->zero ? '=' : '>';
    jstr space = {.p = s->zero && !s->fill ? "0" : " ", .n = 1, .chars = 1}, *fill = s->fill ? s->fill : &space;
    if (pad < 0) pad = 0;
    before = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align != '=') sb_fill(b, fill, before);
    if (sign) sb_add(b, &sign, 1, user);
    if (align == '=') {
        size_t prefix = s->alt && body[0] == '0' && body[1] && strchr("xXob", body[1]) ? 2 : 0;
        sb_add(b, body, prefix, user);
        body += prefix;
        sb_fill(b, fill, pad);
    }
    sb_add(b, body, strlen(body), user);
    if (align == '<' || align == '^') sb_fill(b, fill, pad - before);
}

static void put_int(sbuf *b, const spec *s, value v) {
    char text[128];
    int64_t i = v_is(v, V_BOOL) ? v.b : v.i;
    int_text(b->c, s, i < 0 ? 0 - (uint64_t)i : (uint64_t)i, text);
    lay_out(b, s, i < 0, text, v.user);
}
static void put_float(sbuf *b, const spec *s, double f, uint8_t user) {
    char text[1024];
    float_text(b->c, s, f, text, sizeof text);
    lay_out(b, s, signbit(f) && !isnan(f), text, user);
}
static void put_str(sbuf *b, const spec *s, jstr *text) {
    size_t end = s->precision < 0 ? text->n : str_at(text, (size_t)s->precision);
    jstr *cut = str_sub(b->c, text, 0, end);
    int64_t pad = s->width - (int64_t)str_chars(cut), before;
    jstr space = {.p = " ", .n = 1, .chars = 1}, *fill = s->fill ? s->fill : &space;
    if (pad < 0) pad = 0;
    before = s->align == '>' ? pad : s->align == '^' ? pad / 2 : 0;
    sb_fill(b, fill, before);
    sb_str(b, cut);
    sb_fill(b, fill, pad - before);
}

/* ---- % ----------------------------------------------------------------------------------------------------------- */
typedef struct percent {
    core *c;
    jstr *f;
    size_t i;
    value args;
    size_t used;
    bool mapping;
} percent;

static value next_arg(percent *p) {
    bool tuple = v_is(p->args, V_TUPLE);
    if (p->used >= (tuple ? p->args.list->n : 1)) jinja_fail(p->c, "not enough arguments for format string");
    return tuple ? p->args.list->v[p->used++] : (p->used++, p->args);
}

static int64_t star_or_number(percent *p) {
    int64_t v = 0;
    const jstr *f = p->f;
    if (p->i < f->n && f->p[p->i] == '*') {
        p->i++;
        value a = next_arg(p);
        if (!v_is(a, V_INT) && !v_is(a, V_BOOL)) jinja_fail(p->c, "* wants int");
        v = v_is(a, V_BOOL) ? a.b : a.i;
    } else
        for (; p->i < f->n && f->p[p->i] >= '0' && f->p[p->i] <= '9' && v <= WIDTH_MAX; p->i++)
            v = v * 10 + f->p[p->i] - '0';
    if (v > WIDTH_MAX || v < -WIDTH_MAX) jinja_fail(p->c, "width too big");
    return v;
}

static value named_arg(percent *p) {
    const jstr *f = p->f;
    size_t from = ++p->i;
    int depth = 1;
    for (; p->i < f->n && depth; p->i++) depth += (f->p[p->i] == '(') - (f->p[p->i] == ')');
    if (depth) jinja_fail(p->c, "incomplete format key");
    if (!v_is(p->args, V_DICT)) jinja_fail(p->c, "format requires a mapping");
    str key = {f->p + from, p->i - 1 - from};
    const value *v = dict_find_str(p->c, p->args.dict, key);
    if (!v) jinja_fail(p->c, "'%.*s'", (int)MIN(key.n, (size_t)200), key.p);
    p->mapping = true;
    return *v;
}

static void percent_int(sbuf *b, spec *s, value v) {
    core *c = b->c;
    if (v_is(v, V_FLOAT) && s->type == 'd') v = float_to_int(c, v.f);
    if (v_is(v, V_BIG) && s->type == 'd') {
        put_str(b, s, v.s);
        return;
    }
    if (v_is(v, V_UNDEFINED)) undefined_fail(c, v);
    if (!v_is(v, V_INT) && !v_is(v, V_BOOL))
        jinja_fail(c, "%%%c format: %s is required, not %s", s->type, s->type == 'd' ? "a real number" : "an integer",
                   type_name(v));
    if (s->precision > 0 || s->align == '<') { /* precision: least digits */
        spec digits = {.precision = -1, .type = s->type, .width = s->precision, .zero = true, .sign = s->sign};
        sbuf t;
        sb_init(&t, c);
        digits.width += digits.sign || (v_is(v, V_INT) && v.i < 0);
        digits.alt = s->alt;
        put_int(&t, &digits, v);
        s->precision = -1;
        put_str(b, s, sb_done(&t));
        return;
    }
    put_int(b, s, v);
}

static void percent_one(percent *p, sbuf *b) {
    core *c = p->c;
    const jstr *f = p->f;
    spec s = {.precision = -1};
    bool left = false, keyed = false;
    value v = v_missing();
    if (p->i < f->n && f->p[p->i] == '(') {
        v = named_arg(p);
        keyed = true;
    }
    for (; p->i < f->n && f->p[p->i] && strchr("-+ #0", f->p[p->i]); p->i++) {
        char ch = f->p[p->i];
        left = left || ch == '-';
        s.alt = s.alt || ch == '#';
        s.zero = s.zero || ch == '0';
        if (ch == '+' || (ch == ' ' && s.sign != '+')) s.sign = ch;
    }
    s.width = star_or_number(p);
    if (s.width < 0) left = true, s.width = -s.width;
    if (p->i < f->n && f->p[p->i] == '.') {
        p->i++;
        s.precision = star_or_number(p);
        if (s.precision < 0) s.precision = 0;
    }
    while (p->i < f->n && f->p[p->i] && strchr("hlL", f->p[p->i])) p->i++;
    if (p->i >= f->n) jinja_fail(c, "incomplete format");
    s.type = f->p[p->i++];
    s.align = left ? '<' : 0;
    if (left) s.zero = false;
    if (s.type == '%') {
        sb_slice(b, f, p->i - 1, p->i);
        return;
    }
    if (!strchr("srdiufFeEgGxXoca", s.type))
        jinja_fail(c, "unsupported format character '%c' (0x%x) at index %zu", s.type, (unsigned)(uint8_t)s.type,
                   p->i - 1);
    if (!keyed) v = next_arg(p);
    if (strchr("sra", s.type)) {
        jstr *text = s.type == 's' ? value_str(c, v) : value_repr(c, v);
        if (f->markup && !text->markup) text = str_escape(c, text);
        s.align = left ? '<' : '>';
        put_str(b, &s, text);
    } else if (s.type == 'c') {
        jstr *text = v_is(v, V_STR) ? v.s : NULL;
        char one[4];
        if (v_is(v, V_INT) && (v.i < 0 || v.i > 0x10ffff || (v.i >= 0xd800 && v.i < 0xe000)))
            jinja_fail(c, "%%c arg not in range(0x110000)");
        if (v_is(v, V_INT))
            text =
                str_new(c, arena_copy(c->a, one, utf8_put(one, (uint32_t)v.i)), utf8_put(one, (uint32_t)v.i), v.user);
        if (!text || str_chars(text) != 1) jinja_fail(c, "%%c requires int or char");
        s.precision = -1;
        s.align = left ? '<' : '>';
        put_str(b, &s, text);
    } else if (strchr("diuxXo", s.type)) {
        if (s.type == 'i' || s.type == 'u') s.type = 'd';
        if (!left && !s.precision) s.precision = -1;
        if (!left && s.precision > 0) s.align = '>', s.zero = false;
        percent_int(b, &s, v);
    } else {
        double d;
        if (v_is(v, V_UNDEFINED)) undefined_fail(c, v);
        if (!number_of(v, &d)) jinja_fail(c, "must be real number, not %s", type_name(v));
        if (s.precision > PRECISION_MAX) jinja_fail(c, "precision too big");
        if (!isfinite(d)) s.zero = false;
        put_float(b, &s, d, v.user);
    }
}

value format_percent(core *c, jstr *f, value args) {
    percent p = {.c = c, .f = f, .args = args};
    sbuf b;
    sb_init(&b, c);
    while (p.i < f->n) {
        const char *at = memchr(f->p + p.i, '%', f->n - p.i);
        size_t to = at ? (size_t)(at - f->p) : f->n;
        sb_slice(&b, f, p.i, to);
        p.i = to;
        if (!at) break;
        p.i++;
        percent_one(&p, &b);
        jinja_step(c, 1);
    }
    bool keyed =
        v_is(args, V_DICT) || v_is(args, V_LIST) || v_is(args, V_RANGE) || v_is(args, V_UNDEFINED); /* has [] */
    bool all = v_is(args, V_TUPLE) ? p.used >= args.list->n : p.used || p.mapping || keyed;
    if (!all) jinja_fail(c, "not all arguments converted during string formatting");
    jstr *out = sb_done(&b);
    out->markup = f->markup;
    return v_str(out);
}

/* ---- format() ---------------------------------------------------------------------------------------------------- */
typedef struct braces {
    core *c;
    const args *a;
    value mapping; /* format_map, else V_MISSING */
    size_t next;   /* automatic numbering */
    bool automatic, manual;
} braces;

static size_t digits_end(const jstr *f, size_t i, int64_t *v) {
    for (*v = 0; i < f->n && f->p[i] >= '0' && f->p[i] <= '9' && *v <= WIDTH_MAX; i++) *v = *v * 10 + f->p[i] - '0';
    return i;
}

static spec read_spec(core *c, jstr *f) {
    spec s = {.precision = -1};
    size_t first = str_at(f, 1), i = 0;
    if (f->n > first && strchr("<>^=", f->p[first])) {
        s.fill = str_sub(c, f, 0, first);
        s.align = f->p[first];
        i = first + 1;
    } else if (f->n && strchr("<>^=", f->p[0]))
        s.align = f->p[i++];
    if (i < f->n && strchr("+- ", f->p[i])) s.sign = f->p[i++];
    if (i < f->n && f->p[i] == '#') s.alt = true, i++;
    if (i < f->n && f->p[i] == '0') {
        i++;
        s.zero = true;
        if (!s.align) s.align = '=';
        if (!s.fill) s.fill = str_lit(c, "0");
    }
    i = digits_end(f, i, &s.width);
    if (i < f->n && (f->p[i] == ',' || f->p[i] == '_')) s.group = f->p[i++];
    if (i < f->n && f->p[i] == '.') {
        size_t from = ++i;
        i = digits_end(f, i, &s.precision);
        if (i == from) jinja_fail(c, "Format specifier missing precision");
    }
    if (i < f->n) s.type = f->p[i++];
    if (i < f->n || s.width > WIDTH_MAX) jinja_fail(c, "Invalid format specifier");
    return s;
}

static void format_value(sbuf *b, value v, jstr *f) {
    core *c = b->c;
    if (!f->n) {
        sb_value(b, v);
        return;
    }
    spec s = read_spec(c, f);
    bool integer = v_is(v, V_INT) || v_is(v, V_BOOL);
    double d;
    if (v_is(v, V_STR)) {
        if ((s.type && s.type != 's') || s.sign || s.align == '=' || s.group) {
            if (s.zero && s.align == '=' && (!s.type || s.type == 's'))
                s.align = '<';
            else
                jinja_fail(c, "Unknown format code '%c' for object of type 'str'", s.type ? s.type : '=');
        }
        put_str(b, &s, v.s);
    } else if (integer && (!s.type || strchr("dbxXon", s.type))) {
        if (v_is(v, V_BOOL) && !s.type && !s.width)
            sb_repr(b, v);
        else {
            if (s.precision >= 0) jinja_fail(c, "Precision not allowed in integer format specifier");
            put_int(b, &s, v);
        }
    } else if (number_of(v, &d) && (!s.type || strchr("eEfFgGn%", s.type))) {
        if (s.precision > PRECISION_MAX) jinja_fail(c, "precision too big");
        put_float(b, &s, d, v.user);
    } else if (integer && s.type == 'c')
        sb_cp(b, (uint32_t)(v_is(v, V_INT) && v.i >= 0 && v.i < 0xd800 ? v.i : 0xfffd), v.user);
    else if (number_of(v, &d))
        jinja_fail(c, "Unknown format code '%c' for object of type '%s'", s.type, type_name(v));
    else
        jinja_fail(c, "unsupported format string passed to %s.__format__", type_name(v));
}

/* What `0.name[key]` names. */
static value field_value(braces *f, jstr *field) {
    core *c = f->c;
    size_t i = 0;
    value v;
    int64_t index;
    while (i < field->n && field->p[i] != '.' && field->p[i] != '[') i++;
    str first = {field->p, i};
    if (!first.n || digits_end(field, 0, &index) == i) {
        if (!first.n) {
            f->automatic = true;
            index = (int64_t)f->next++;
        } else
            f->manual = true;
        if (f->automatic && f->manual)
            jinja_fail(c, "cannot switch from manual field specification to automatic field numbering");
        if ((size_t)index >= f->a->n)
            jinja_fail(c, "Replacement index %lld out of range for positional args tuple", (long long)index);
        v = f->a->pos[index];
    } else {
        const value *got = NULL;
        for (size_t k = 0; k < f->a->n_named; k++)
            if (str_eq((str){f->a->names[k]->p, f->a->names[k]->n}, first)) got = &f->a->named[k];
        if (v_is(f->mapping, V_DICT)) got = dict_find_str(c, f->mapping.dict, first);
        if (!got) jinja_fail(c, "'%.*s'", (int)MIN(first.n, (size_t)200), first.p);
        v = *got;
    }
    while (i < field->n) {
        bool dot = field->p[i] == '.';
        size_t from = ++i;
        while (i < field->n && (dot ? field->p[i] != '.' && field->p[i] != '[' : field->p[i] != ']')) i++;
        if (i == from) jinja_fail(c, "Empty attribute in format string");
        jstr *name = str_sub(c, field, from, i);
        if (dot)
            v = get_attr(c, v, name);
        else {
            if (i++ == field->n) jinja_fail(c, "Missing ']' in format string");
            v = digits_end(name, 0, &index) == name->n ? get_item(c, v, v_int(index)) : get_item(c, v, v_str(name));
        }
    }
    return v;
}

static void format_into(braces *f, sbuf *b, const jstr *s, int depth);

static void format_field(braces *f, sbuf *b, const jstr *s, int depth) {
    core *c = f->c;
    size_t i = 0, name_end;
    int square = 0;
    for (; i < s->n; i++) {
        square += (s->p[i] == '[') - (s->p[i] == ']');
        if (!square && (s->p[i] == '!' || s->p[i] == ':')) break;
    }
    name_end = i;
    value v = field_value(f, str_sub(c, s, 0, name_end));
    if (i < s->n && s->p[i] == '!') {
        char how = i + 1 < s->n ? s->p[i + 1] : 0;
        if (how != 's' && how != 'r' && how != 'a') jinja_fail(c, "Unknown conversion specifier '%c'", how ? how : '}');
        v = v_str(how == 's' ? value_str(c, v) : value_repr(c, v));
        i += 2;
        if (i < s->n && s->p[i] != ':') jinja_fail(c, "expected ':' after conversion specifier");
    }
    jstr *fmt = str_lit(c, "");
    if (i < s->n) {
        sbuf inner;
        sb_init(&inner, c);
        format_into(f, &inner, str_sub(c, s, i + 1, s->n), depth + 1);
        fmt = sb_done(&inner);
    }
    if (v_is(v, V_UNDEFINED) && fmt->n) jinja_fail(c, "unsupported format string passed to Undefined.__format__");
    format_value(b, v, fmt);
}

static void format_into(braces *f, sbuf *b, const jstr *s, int depth) {
    if (depth > 2) jinja_fail(f->c, "Max string recursion exceeded");
    for (size_t i = 0; i < s->n;) {
        jinja_step(f->c, 1);
        char ch = s->p[i];
        if (ch != '{' && ch != '}') {
            size_t from = i;
            while (i < s->n && s->p[i] != '{' && s->p[i] != '}') i++;
            sb_slice(b, s, from, i);
            continue;
        }
        if (i + 1 < s->n && s->p[i + 1] == ch && depth == 0) {
            sb_slice(b, s, i, i + 1);
            i += 2;
            continue;
        }
        if (ch == '}') jinja_fail(f->c, "Single '}' encountered in format string");
        size_t from = ++i;
        int open = 1;
        for (; i < s->n && open; i++) open += (s->p[i] == '{') - (s->p[i] == '}');
        if (open)
            jinja_fail(f->c,
                       from == s->n ? "Single '{' encountered in format string" : "expected '}' before end of string");
        jstr *field = str_sub(f->c, s, from, i - 1);
        if (s->markup) {
            sbuf one;
            sb_init(&one, f->c);
            format_field(f, &one, field, depth);
            sb_str(b, str_escape(f->c, sb_done(&one)));
        } else
            format_field(f, b, field, depth);
    }
}

value format_braces(core *c, jstr *f, const args *a, value mapping) {
    braces s = {.c = c, .a = a, .mapping = mapping};
    if (!v_is(mapping, V_MISSING) && !v_is(mapping, V_DICT))
        jinja_fail(c, "format_map() wants a mapping, not %s", type_name(mapping));
    sbuf b;
    sb_init(&b, c);
    format_into(&s, &b, f, 0);
    jstr *out = sb_done(&b);
    out->markup = f->markup;
    return v_str(out);
}
