/* Slices of bytes: comparison, search, numbers. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "base.h"

bool str_starts(str s, str prefix) {
    return s.n >= prefix.n && str_eq((str){s.p, prefix.n}, prefix);
}

bool str_ends(str s, str suffix) {
    return s.n >= suffix.n && str_eq(str_slice(s, s.n - suffix.n, s.n), suffix);
}

size_t str_find(str s, str needle) {
    if (needle.n == 0) return 0;
    if (s.n < needle.n) return SIZE_MAX;
    const char *at = memmem(s.p, s.n, needle.p, needle.n);
    return at ? (size_t)(at - s.p) : SIZE_MAX;
}

bool str_has(str s, str needle) {
    return str_find(s, needle) != SIZE_MAX;
}

str str_slice(str s, size_t from, size_t to) {
    if (to > s.n) to = s.n;
    if (from > to) from = to;
    return (str){from ? s.p + from : s.p, to - from}; /* nothing may be added to NULL */
}

str str_trim(str s) {
    while (s.n && str_space(s.p[0])) s.p++, s.n--;
    while (s.n && str_space(s.p[s.n - 1])) s.n--;
    return s;
}

/* Numbers are short; copying gives strtol the NUL it wants. */
static bool number_text(str s, char text[64]) {
    if (s.n == 0 || s.n > 63 || str_space(s.p[0]) || memchr(s.p, 0, s.n)) return false;
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    return true;
}

bool str_to_i64(str s, int64_t *out) {
    char text[64], *end;
    if (!number_text(s, text)) return false;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || errno) return false;
    *out = v;
    return true;
}

bool str_to_f64(str s, double *out) {
    char text[64], *end;
    if (!number_text(s, text)) return false;
    double v = strtod(text, &end);
    if (*end || !isfinite(v)) return false;
    *out = v;
    return true;
}

void str_from_f64(char out[40], double v) {
    if (isnan(v) || isinf(v)) {
        snprintf(out, 40, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
        return;
    }
    char e[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(e, sizeof e, "%.*e", precision, v);
        if (strtod(e, NULL) == v) break;
    }
    char *exp = strchr(e, 'e'), digits[24];
    int x = (int)strtol(exp + 1, NULL, 10), n = 0;
    bool negative = e[0] == '-';
    for (char *p = e + negative; p < exp; p++)
        if (*p != '.') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    char *o = out;
    if (negative) *o++ = '-';
    if (x < -4 || x >= 16) {
        *o++ = digits[0];
        if (n > 1) *o++ = '.';
        for (int i = 1; i < n; i++) *o++ = digits[i];
        snprintf(o, 14, "e%c%02d", x < 0 ? '-' : '+', abs(x));
        return;
    }
    if (x < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > x; i--) *o++ = '0';
        for (int i = 0; i < n; i++) *o++ = digits[i];
    } else {
        for (int i = 0; i <= x; i++) *o++ = i < n ? digits[i] : '0';
        *o++ = '.';
        for (int i = x + 1; i < n; i++) *o++ = digits[i];
        if (n <= x + 1) *o++ = '0';
    }
    *o = 0;
}

int str_distance(str a, str b) {
    int row[65];
    if (a.n > 64 || b.n > 64) return 64;
    for (size_t j = 0; j <= b.n; j++) row[j] = (int)j;
    for (size_t i = 1; i <= a.n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= b.n; j++) {
            int up = row[j], cost = a.p[i - 1] != b.p[j - 1];
            int best = MIN(up, row[j - 1]) + 1;
            row[j] = MIN(best, diagonal + cost);
            diagonal = up;
        }
    }
    return row[b.n];
}
