/* Numbers of a schema: bounds and multipleOf, exact on the decimal digits as they are written. A restricted number is
 * written without an exponent. Not here: numbers without restriction (grammar_json.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "grammar_schema.h"

enum { DIGITS_MAX = 400, MULTIPLE_MAX = 20000 };

typedef struct decimal {                      /* of a value that is not negative */
    char whole[DIGITS_MAX], frac[DIGITS_MAX]; /* no leading zeros but one; no trailing zeros */
    int n_whole, n_frac;
    bool negative;
} decimal;

static bool decimal_read(const json *v, decimal *d) {
    char text[40];
    const char *p = text;
    *d = (decimal){0};
    if (v->type == JSON_INT)
        snprintf(text, sizeof text, "%lld", (long long)v->integer);
    else if (v->digits)
        p = v->digits;
    else
        str_from_f64(text, v->real);
    char digits[DIGITS_MAX];
    int n = 0, point = -1, exp = 0;
    if (*p == '-') d->negative = true, p++;
    for (; *p && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.')
            point = n;
        else if (n == DIGITS_MAX - 1 || *p < '0' || *p > '9')
            return false;
        else
            digits[n++] = *p;
    }
    if (*p) exp = (int)strtol(p + 1, NULL, 10);
    if (point < 0) point = n;
    point += exp;
    if (point > DIGITS_MAX - 2 || point < -DIGITS_MAX + 40 || n - point > DIGITS_MAX - 2) return false;
    for (int i = 0; i < point; i++) {
        char c = i < n ? digits[i] : '0';
        if (d->n_whole || c != '0') d->whole[d->n_whole++] = c;
    }
    if (!d->n_whole) d->whole[d->n_whole++] = '0';
    for (int i = point; i < n; i++) d->frac[d->n_frac++] = i < 0 ? '0' : digits[i];
    while (d->n_frac && d->frac[d->n_frac - 1] == '0') d->n_frac--;
    return true;
}

/* ---- bounds on what follows the sign ----------------------------------------------------------------------------- */
typedef struct numbers {
    builder *b;
    bool whole; /* no fraction */
} numbers;
static gx digits(builder *b, uint32_t min, uint32_t max) {
    return gx_rep(b, gx_range(b, '0', '9'), min, max);
}
static gx some_fraction(numbers *n) { /* any, or none */
    return n->whole ? GX_EMPTY : gx_opt(n->b, GX_SEQ(n->b, GX_LIT(n->b, "."), digits(n->b, 1, GX_INF)));
}
static gx not_zero(builder *b) { /* digits that are not all zeros */
    return GX_SEQ(b, gx_rep(b, GX_LIT(b, "0"), 0, GX_INF), gx_range(b, '1', '9'), digits(b, 0, GX_INF));
}
static gx prefix(builder *b, const char *p, int n) {
    return gx_lit(b, (str){p, (size_t)n});
}
/* Fractions (behind the point) above f, or equal. */
static gx fraction_above(builder *b, const char *f, int n, bool strict) {
    gx_list l = {0};
    for (int i = 0; i < n; i++)
        if (f[i] < '9')
            gx_push(&l, GX_SEQ(b, prefix(b, f, i), gx_range(b, (uint32_t)f[i] + 1, '9'), digits(b, 0, GX_INF)));
    gx_push(&l, GX_SEQ(b, prefix(b, f, n), strict ? not_zero(b) : digits(b, n ? 0 : 1, GX_INF)));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static gx fraction_below(builder *b, const char *f, int n, bool strict) {
    gx_list l = {0};
    for (int i = 0; i < n; i++) {
        if (f[i] > '0')
            gx_push(&l, GX_SEQ(b, prefix(b, f, i), gx_range(b, '0', (uint32_t)f[i] - 1), digits(b, 0, GX_INF)));
        if (i) gx_push(&l, prefix(b, f, i));
    }
    if (!strict) gx_push(&l, GX_SEQ(b, prefix(b, f, n), gx_rep(b, GX_LIT(b, "0"), n ? 0 : 1, GX_INF)));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static gx at_least(numbers *n, const decimal *d, bool strict) {
    builder *b = n->b;
    gx_list l = {0};
    const int k = d->n_whole;
    gx point = n->whole ? GX_NEVER : GX_LIT(b, ".");
    gx_push(&l, GX_SEQ(b, gx_range(b, '1', '9'), digits(b, (uint32_t)k, GX_INF), some_fraction(n)));
    for (int i = 0; i < k; i++)
        if (d->whole[i] < '9')
            gx_push(&l, GX_SEQ(b, prefix(b, d->whole, i), gx_range(b, (uint32_t)d->whole[i] + 1, '9'),
                               digits(b, (uint32_t)(k - i - 1), (uint32_t)(k - i - 1)), some_fraction(n)));
    gx same = prefix(b, d->whole, k);
    if (!strict && !d->n_frac)
        gx_push(&l, GX_SEQ(b, same, some_fraction(n)));
    else
        gx_push(&l, GX_SEQ(b, same, point, fraction_above(b, d->frac, d->n_frac, strict)));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static gx at_most(numbers *n, const decimal *d, bool strict) {
    builder *b = n->b;
    gx_list l = {0};
    const int k = d->n_whole;
    gx point = n->whole ? GX_NEVER : GX_LIT(b, ".");
    if (k > 1) {
        gx_push(&l, GX_SEQ(b, GX_LIT(b, "0"), some_fraction(n)));
        gx_push(&l, GX_SEQ(b, gx_range(b, '1', '9'), digits(b, 0, (uint32_t)k - 2), some_fraction(n)));
    }
    for (int i = 0; i < k; i++) {
        char least = i == 0 && k > 1 ? '1' : '0';
        if (d->whole[i] > least)
            gx_push(&l, GX_SEQ(b, prefix(b, d->whole, i), gx_range(b, (uint32_t)least, (uint32_t)d->whole[i] - 1),
                               digits(b, (uint32_t)(k - i - 1), (uint32_t)(k - i - 1)), some_fraction(n)));
    }
    gx same = prefix(b, d->whole, k);
    if (!strict || d->n_frac) gx_push(&l, same);
    if (!strict || d->n_frac) gx_push(&l, GX_SEQ(b, same, point, fraction_below(b, d->frac, d->n_frac, strict)));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
/* Magnitudes between two bounds, each may be absent. */
static gx between(numbers *n, const decimal *low, bool low_strict, const decimal *high, bool high_strict) {
    builder *b = n->b;
    gx any =
        GX_SEQ(b, GX_ALT(b, GX_LIT(b, "0"), GX_SEQ(b, gx_range(b, '1', '9'), digits(b, 0, GX_INF))), some_fraction(n));
    gx x = low ? at_least(n, low, low_strict) : any;
    if (!high) return x;
    gx y = at_most(n, high, high_strict);
    return low ? gx_and(b, x, y, false) : y;
}
static bool is_zero(const decimal *d) {
    return d->n_whole == 1 && d->whole[0] == '0' && !d->n_frac;
}
static gx bounded(schemas *s, numbers *n, const flat *f, const char *path) {
    builder *b = s->b;
    decimal low = {0}, high = {0};
    const decimal *lo = f->low.v ? &low : NULL, *hi = f->high.v ? &high : NULL;
    if ((lo && !decimal_read(f->low.v, &low)) || (hi && !decimal_read(f->high.v, &high)))
        return schema_fail(s, path, "a bound has too many digits");
    if (lo && is_zero(lo)) low.negative = false;
    if (hi && is_zero(hi)) high.negative = false;
    gx plus = GX_NEVER, minus = GX_NEVER;
    if (!hi || !hi->negative) {
        bool from = lo && !lo->negative;
        plus = between(n, from ? lo : NULL, f->low.strict, hi, f->high.strict);
    }
    if (!lo || lo->negative) { /* -y with y <= -low and y >= -high */
        bool from = hi && hi->negative;
        decimal zero = {.whole = "0", .n_whole = 1};
        bool above_zero = hi && is_zero(hi) && f->high.strict; /* below 0: -0 is not */
        minus = between(n, from ? hi : above_zero ? &zero : NULL, f->high.strict, lo, f->low.strict);
    }
    return GX_ALT(b, plus, minus == GX_NEVER ? GX_NEVER : GX_SEQ(b, GX_LIT(b, "-"), minus));
}

/* ---- multipleOf -------------------------------------------------------------------------------------------------- */
/* Digits that are a multiple of m / 10^d: a rule for each remainder and number of decimals. */
static gx multiple(schemas *s, const json *v, bool whole, const char *path) {
    builder *b = s->b;
    decimal d;
    if (!decimal_read(v, &d)) return schema_fail(s, path, "has too many digits");
    uint64_t m = 0;
    for (int i = 0; i < d.n_whole && m <= MULTIPLE_MAX; i++) m = m * 10 + (uint64_t)(d.whole[i] - '0');
    for (int i = 0; i < d.n_frac && m <= MULTIPLE_MAX; i++) m = m * 10 + (uint64_t)(d.frac[i] - '0');
    if (!m || m * (uint64_t)(d.n_frac + 2) > MULTIPLE_MAX)
        return schema_fail(s, path, "more than %d steps of digits; this multiple is not supported", MULTIPLE_MAX);
    const uint32_t M = (uint32_t)m, D = (uint32_t)d.n_frac;
    uint32_t first = b->n_rule;
    for (uint32_t i = 0; i < M * (D + 2); i++)
        gx_rule_new(b, "multipleOf"); /* [0]: before the point; [1+j] behind it */
    if (b->failed) return GX_NEVER;
    for (uint32_t j = 0; j < D + 2; j++)
        for (uint32_t r = 0; r < M && !b->failed; r++) {
            gx alt[12];
            size_t n = 0;
            uint64_t end = r;
            for (uint32_t k = j ? j - 1 : 0; k < D; k++) end = end * 10 % M;
            if (end == 0) alt[n++] = GX_EMPTY;
            for (uint32_t c = 0; c < 10; c++) {
                bool past = j == D + 1; /* all decimals are there: only zeros may follow */
                if (past && (c || r)) break;
                uint32_t to = past ? r : (r * 10 + c) % M, row = j == 0 ? 0 : past ? j : j + 1;
                alt[n++] = GX_SEQ(b, gx_range(b, '0' + c, '0' + c), gx_call(b, first + row * M + to));
            }
            if (j == 0 && !whole) alt[n++] = GX_SEQ(b, GX_LIT(b, "."), gx_call(b, first + M + r));
            gx_rule_define(b, first + j * M + r, gx_alt(b, alt, n));
        }
    return GX_SEQ(b, gx_opt(b, GX_LIT(b, "-")), gx_call(b, first));
}

gx schema_number(schemas *s, const flat *f, const char *path) {
    builder *b = s->b;
    numbers n = {b, !(f->types & T_REAL)};
    const bool broken = !(f->types & T_INT); /* what `not` leaves: numbers that are no integers */
    if (!f->low.v && !f->high.v && !f->multiple.n && !broken) return n.whole ? s->f->integer : s->f->number;
    gx x = broken ? gx_and(b, s->f->number, s->f->integer, true) : bounded(s, &n, f, path);
    if (broken && (f->low.v || f->high.v)) x = gx_and(b, bounded(s, &n, f, path), s->f->integer, true);
    for (size_t i = 0; i < f->multiple.n; i++)
        x = gx_and(b, x, multiple(s, f->multiple.p[i].j, n.whole, f->multiple.p[i].path), false);
    return x;
}
