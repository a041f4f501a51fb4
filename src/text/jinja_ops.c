/* Jinja: arithmetic, slices, numbers out of text; Python's rules with 64-bit integers, whose overflow is an error.
 * Not here: comparing (jinja_value.c), % on strings (jinja_format.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "jinja_internal.h"

static const char *const op_names[] = {
    [OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*",           [OP_DIV] = "/",
    [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()",
};

static bool whole(value v, int64_t *out) {
    if (v_is(v, V_BOOL))
        *out = v.b;
    else if (v_is(v, V_INT))
        *out = v.i;
    else
        return false;
    return true;
}
static __attribute__((noreturn)) void overflow(core *c) {
    jinja_fail(c, "integer overflow: results beyond 64 bits are not supported");
}

int64_t index_of(core *c, value v, const char *what) {
    int64_t i;
    if (whole(v, &i)) return i;
    if (v_is(v, V_UNDEFINED)) jinja_fail(c, "%s must be an integer, not Undefined", what);
    jinja_fail(c, "'%s' object cannot be interpreted as an integer (%s)", type_name(v), what);
}

static int64_t floor_div(int64_t a, int64_t b) {
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m != 0) return (b < 0) != (m < 0) ? m + b : m;
    return copysign(0, b);
}
static double float_floor_div(double a, double b) {
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) d -= 1;
    if (d == 0) return copysign(0, a / b);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static int64_t int_pow(core *c, int64_t base, int64_t exp) {
    int64_t r = 1;
    while (exp) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r)) overflow(c);
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base)) overflow(c);
    }
    return r;
}

static value int_op(core *c, binop op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &r); break;
    case OP_SUB: over = __builtin_sub_overflow(a, b, &r); break;
    case OP_MUL: over = __builtin_mul_overflow(a, b, &r); break;
    case OP_DIV:
        if (!b) jinja_fail(c, "division by zero");
        return v_float((double)a / (double)b);
    case OP_FLOORDIV:
    case OP_MOD:
        if (!b) jinja_fail(c, op == OP_MOD ? "integer modulo by zero" : "integer division or modulo by zero");
        if (b == -1) { /* INT64_MIN / -1 */
            over = op == OP_FLOORDIV && __builtin_sub_overflow(0, a, &r);
            break;
        }
        r = floor_div(a, b);
        if (op == OP_MOD) r = a - r * b;
        break;
    case OP_POW:
        if (b >= 0) return v_int(a == 1 || b == 0 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : a == 0 ? 0 : int_pow(c, a, b));
        if (!a) jinja_fail(c, "0.0 cannot be raised to a negative power");
        return v_float(pow((double)a, (double)b));
    }
    if (over) overflow(c);
    return v_int(r);
}

static value float_op(core *c, binop op, double a, double b) {
    switch (op) {
    case OP_ADD: return v_float(a + b);
    case OP_SUB: return v_float(a - b);
    case OP_MUL: return v_float(a * b);
    case OP_DIV:
        if (b == 0) jinja_fail(c, "float division by zero");
        return v_float(a / b);
    case OP_FLOORDIV:
        if (b == 0) jinja_fail(c, "float floor division by zero");
        return v_float(float_floor_div(a, b));
    case OP_MOD:
        if (b == 0) jinja_fail(c, "float modulo by zero");
        return v_float(float_mod(a, b));
    case OP_POW: break;
    }
    if (a == 0 && b < 0) jinja_fail(c, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) jinja_fail(c, "complex numbers are not supported");
    double r = pow(a, b);
    if (isinf(r) && isfinite(a) && isfinite(b)) jinja_fail(c, "(34, 'Numerical result out of range')");
    return v_float(r);
}

static jlist *repeat(core *c, const jlist *l, int64_t times) {
    size_t n;
    if (times < 0) times = 0;
    if (!size_mul(l->n, (size_t)times, &n)) jinja_fail(c, "list too long");
    jinja_step(c, n);
    jlist *out = list_new(c, n);
    for (size_t i = 0; i < n; i++) out->v[i] = l->v[i % l->n];
    out->n = n;
    return out;
}

static value sequence_mul(core *c, value s, int64_t times) {
    if (!v_is(s, V_STR)) {
        jlist *l = repeat(c, s.list, times);
        return v_is(s, V_LIST) ? v_list(l) : v_tuple(l);
    }
    sbuf b;
    sb_init(&b, c);
    sb_fill(&b, s.s, times);
    jstr *out = sb_done(&b);
    out->markup = s.s->markup;
    return v_str(out);
}

static value add_sequences(core *c, value a, value b) {
    if (v_is(a, V_STR)) {
        jstr *x = a.s, *y = b.s;
        if (x->markup && !y->markup) y = str_escape(c, y);
        if (y->markup && !x->markup) x = str_escape(c, x);
        return v_str(str_join2(c, x, y));
    }
    jlist *l = list_new(c, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++) list_push(c, l, a.list->v[i]);
    for (size_t i = 0; i < b.list->n; i++) list_push(c, l, b.list->v[i]);
    jinja_step(c, l->n);
    return v_is(a, V_LIST) ? v_list(l) : v_tuple(l);
}

static bool is_sequence(value v) {
    return v_is(v, V_STR) || v_is(v, V_LIST) || v_is(v, V_TUPLE);
}

static __attribute__((noreturn)) void bad_operands(core *c, binop op, value a, value b) {
    if (v_is(a, V_BIG) || v_is(b, V_BIG)) overflow(c);
    if (op == OP_ADD && is_sequence(a))
        jinja_fail(c, "can only concatenate %s (not \"%s\") to %s", type_name(a), type_name(b), type_name(a));
    if (op == OP_MUL && (is_sequence(a) || is_sequence(b)))
        jinja_fail(c, "can't multiply sequence by non-int of type '%s'", type_name(is_sequence(a) ? b : a));
    jinja_fail(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_names[op], type_name(a), type_name(b));
}

value op_binary(core *c, binop op, value a, value b) {
    int64_t i = 0, k = 0;
    double x, y;
    bool ia = whole(a, &i), ib = whole(b, &k);
    if (ia && ib) {
        value v = int_op(c, op, i, k);
        v.user = a.user | b.user;
        return v;
    }
    if (number_of(a, &x) && number_of(b, &y)) {
        value v = float_op(c, op, x, y);
        v.user = a.user | b.user;
        return v;
    }
    if (op == OP_MOD && v_is(a, V_STR)) return format_percent(c, a.s, b);
    if (v_is(a, V_UNDEFINED)) undefined_fail(c, a);
    if (v_is(b, V_UNDEFINED) && !(op == OP_ADD && (v_is(a, V_LIST) || v_is(a, V_TUPLE)))) undefined_fail(c, b);
    if (v_is(b, V_UNDEFINED)) undefined_fail(c, b);
    if (op == OP_ADD && is_sequence(a) && a.type == b.type) return add_sequences(c, a, b);
    if (op == OP_MUL && is_sequence(a) && ib) return sequence_mul(c, a, k);
    if (op == OP_MUL && is_sequence(b) && ia) return sequence_mul(c, b, i);
    bad_operands(c, op, a, b);
}

value op_unary(core *c, char op, value a) {
    int64_t i;
    value v;
    if (whole(a, &i)) {
        if (op == '-' && __builtin_sub_overflow(0, i, &i)) overflow(c);
        v = v_int(i);
    } else if (v_is(a, V_FLOAT))
        v = v_float(op == '-' ? -a.f : a.f);
    else if (v_is(a, V_UNDEFINED))
        undefined_fail(c, a);
    else
        jinja_fail(c, "bad operand type for unary %c: '%s'", op, type_name(a));
    v.user = a.user;
    return v;
}

/* ---- slices ------------------------------------------------------------------------------------------------------ */
static int64_t bound(core *c, value v, int64_t n, int64_t otherwise, bool down) {
    int64_t i;
    if (v_is(v, V_NONE)) return otherwise;
    if (!whole(v, &i)) jinja_fail(c, "slice indices must be integers or None or have an __index__ method");
    if (i < 0) return i < -n ? (down ? -1 : 0) : i + n;
    return i >= n ? (down ? n - 1 : n) : i;
}

static value slice_str(core *c, jstr *s, int64_t start, int64_t step, int64_t n) {
    if (step == 1) {
        size_t from = str_at(s, (size_t)start), to = from;
        if (s->chars == s->n)
            to = from + (size_t)n;
        else
            for (int64_t k = 0; k < n; k++) utf8_next(s->p, s->n, &to);
        jinja_step(c, to / 256);
        return v_str(str_sub(c, s, from, to));
    }
    sbuf b;
    sb_init(&b, c);
    size_t *at = jinja_array(c, size_t, str_chars(s) + 1), i = 0;
    for (size_t k = 0; k < s->chars; k++) {
        at[k] = i;
        utf8_next(s->p, s->n, &i);
    }
    at[s->chars] = s->n;
    jinja_step(c, (uint64_t)n + s->n / 16);
    for (int64_t k = 0; k < n; k++) sb_slice(&b, s, at[start + k * step], at[start + k * step + 1]);
    jstr *out = sb_done(&b);
    out->markup = s->markup;
    return v_str(out);
}

value op_slice(core *c, value obj, value vstart, value vstop, value vstep) {
    if (v_is(obj, V_UNDEFINED)) undefined_fail(c, obj);
    if (!is_sequence(obj) && !v_is(obj, V_RANGE)) {
        if (v_is(obj, V_DICT)) jinja_fail(c, "unhashable type: 'slice'");
        jinja_fail(c, "'%s' object is not subscriptable", type_name(obj));
    }
    int64_t len = value_len(c, obj), step = 1;
    if (!v_is(vstep, V_NONE) && !whole(vstep, &step))
        jinja_fail(c, "slice indices must be integers or None or have an __index__ method");
    if (step == 0) jinja_fail(c, "slice step cannot be zero");
    if (step < -INT64_MAX) step = -INT64_MAX;
    bool down = step < 0;
    int64_t start = bound(c, vstart, len, down ? len - 1 : 0, down), stop = bound(c, vstop, len, down ? -1 : len, down),
            n = 0;
    if (!down && start < stop) n = (stop - start - 1) / step + 1;
    if (down && start > stop) n = (start - stop - 1) / -step + 1;
    if (v_is(obj, V_STR)) return slice_str(c, obj.s, n ? start : 0, n > 1 ? step : 1, n);
    if (v_is(obj, V_RANGE)) {
        jrange *r = jinja_new(c, jrange);
        *r = (jrange){obj.range->start + start * obj.range->step, obj.range->start + stop * obj.range->step,
                      obj.range->step * step, n};
        return (value){.type = V_RANGE, .range = r};
    }
    jlist *l = list_new(c, (size_t)n);
    jinja_step(c, (uint64_t)n);
    for (int64_t k = 0; k < n; k++) list_push(c, l, obj.list->v[start + k * step]);
    return v_is(obj, V_LIST) ? v_list(l) : v_tuple(l);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */
/* Text of a number without white space around it and with its underscores (between digits only) taken out. */
static bool clean(const jstr *s, char *out, size_t cap) {
    size_t from = 0, to = s->n, n = 0;
    for (size_t i = 0; i < s->n; from = i)
        if (!cp_space(utf8_next(s->p, s->n, &i))) break;
    while (to > from) {
        size_t i = utf8_start(s->p, to - 1), j = i;
        if (!cp_space(utf8_next(s->p, s->n, &j))) break;
        to = i;
    }
    for (size_t i = from; i < to; i++) {
        if ((uint8_t)s->p[i] >= 0x80) { /* digits of other scripts */
            uint32_t cp = utf8_next(s->p, to, &i), zero = cp;
            i--;
            if (!cp_digit(cp) || n + 1 >= cap) return false;
            while (cp_digit(zero - 1)) zero--;
            out[n++] = (char)('0' + (cp - zero) % 10);
            continue;
        }
        char ch = s->p[i];
        bool digits = i > from && i + 1 < to && s->p[i - 1] != '_' && s->p[i - 1] > 32 && s->p[i + 1] != '_';
        if (ch == '_') {
            bool hex =
                (s->p[i - (i > from)] | 32) >= 'a' || (s->p[i - (i > from)] >= '0' && s->p[i - (i > from)] <= '9');
            if (!digits || !hex) return false;
            continue;
        }
        if (n + 1 >= cap || (uint8_t)ch <= 32) return false;
        out[n++] = ch;
    }
    out[n] = 0;
    return n > 0;
}

bool str_to_int(const jstr *s, int base, int64_t *out, bool *too_large) {
    char text[512], *p = text;
    *too_large = false;
    if (!clean(s, text, sizeof text)) return false;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+') p++;
    static const struct {
        char letter;
        int base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    bool prefixed = false;
    for (size_t i = 0; p[0] == '0' && i < COUNT(prefixes); i++) {
        if ((p[1] | 32) != prefixes[i].letter || (base != 0 && base != prefixes[i].base)) continue;
        base = prefixes[i].base;
        p += 2;
        prefixed = true;
        break;
    }
    if (base == 0) {
        base = 10;
        if (!prefixed && p[0] == '0' && strspn(p, "0") != strlen(p)) return false;
    }
    if (!*p) return false;
    int64_t v = 0;
    for (; *p; p++) {
        int d = str_digit(*p);
        if (d >= base) return false;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v)) *too_large = true;
    }
    if (!negative && __builtin_sub_overflow(0, v, &v)) *too_large = true;
    *out = v;
    return true;
}

bool str_to_float(core *c, const jstr *s, double *out) {
    char text[1024];
    if (!clean(s, text, sizeof text)) return false;
    static const char *const words[] = {"nan", "inf", "infinity"};
    const char *p = text + (*text == '-' || *text == '+');
    for (size_t i = 0; i < COUNT(words); i++) {
        if (strcasecmp(p, words[i]) != 0) continue;
        *out = i ? INFINITY : NAN;
        if (*text == '-') *out = -*out;
        return true;
    }
    if (strspn(p, "0123456789.eE+-") != strlen(p)) return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0 && end != text;
}

value float_to_int(core *c, double f) {
    if (isnan(f)) jinja_fail(c, "cannot convert float NaN to integer");
    if (isinf(f)) jinja_fail(c, "cannot convert float infinity to integer");
    if (f >= 9223372036854775808.0 || f < -9223372036854775808.0) overflow(c);
    return v_int((int64_t)f);
}

/* round(): half to even on the decimal digits, as Python does through the exact decimal text. */
value round_value(core *c, value v, int64_t digits) {
    int64_t i;
    value out = v;
    if (whole(v, &i)) {
        if (digits >= 0) return v_int(i);
        if (digits < -18) return v_int(0);
        int64_t unit = int_pow(c, 10, -digits), q = floor_div(i, unit), rest = i - q * unit, r;
        if (rest * 2 > unit || (rest * 2 == unit && (q & 1))) q++;
        if (__builtin_mul_overflow(q, unit, &r)) overflow(c);
        return v_int(r);
    }
    if (v_is(v, V_UNDEFINED)) undefined_fail(c, v);
    if (!v_is(v, V_FLOAT)) jinja_fail(c, "type %s doesn't define __round__ method", type_name(v));
    if (!isfinite(v.f) || digits > 300) return v;
    if (digits >= 0) {
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)digits, v.f); /* glibc rounds the exact value, halves to even */
        out.f = strtod(text, NULL);
    } else {
        double unit = pow(10, (double)MIN(-digits, (int64_t)309)), q = v.f / unit;
        double r = isinf(unit) ? 0 : rint(q) * unit;
        out.f = copysign(r, v.f);
    }
    return out;
}
