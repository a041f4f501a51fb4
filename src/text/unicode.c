/* Unicode: lower case and normal forms. The tables are in unicode_table.c (generated). */
#include <stdlib.h>
#include <utf8proc.h>
#include "unicode.h"

uint32_t unicode_lower(uint32_t cp) {
    if (cp < 128) return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
    if (!(unicode_of(cp) & U_LOWER)) return cp;
    size_t low = 0, high = unicode_n_lower_runs;
    while (high - low > 1) {
        size_t mid = (low + high) / 2;
        if (unicode_lower_runs[mid].from <= cp)
            low = mid;
        else
            high = mid;
    }
    const unicode_lower_run *r = &unicode_lower_runs[low];
    return cp >= r->from && cp <= r->to && (cp - r->from) % r->step == 0 ? (uint32_t)((int32_t)cp + r->delta) : cp;
}

/* ---- normal forms ----------------------------------------------------------------------------------------------- */
static inline uint32_t form_flag(unicode_form form) {
    return form == FORM_NFC ? U_NORM_C : U_NORM;
}

bool unicode_needs(str s, unicode_form form) {
    uint32_t flag = form_flag(form);
    for (size_t at = 0, n; at < s.n; at += n) {
        uint32_t cp = utf8_get(s.p + at, &n);
        if (cp >= 0x80 && unicode_of(cp) & flag) return true;
    }
    return false;
}

typedef struct points {
    int32_t *p; /* owns */
    size_t n, cap;
} points;

static void points_room(points *v, size_t more) {
    if (v->n + more <= v->cap) return;
    v->cap = (v->n + more) * 2;
    v->p = mem_resize(v->p, v->cap * sizeof *v->p);
}

static int combining_class(int32_t cp) {
    return unicode_of((uint32_t)cp) & U_NORM_OPAQUE ? 0 : utf8proc_get_property(cp)->combining_class;
}

static int key_order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Canonical order: each stretch of combining marks, stably by class. Long stretches are hostile input, so they get a
 * sort that is not quadratic (utf8proc's own is). */
static void marks_order(int32_t *p, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && combining_class(p[end])) end++;
        if (end - i > 24) {
            uint64_t *key = mem_alloc((end - i) * sizeof *key);
            int32_t *copy = mem_alloc((end - i) * sizeof *copy);
            memcpy(copy, p + i, (end - i) * sizeof *copy);
            for (size_t k = i; k < end; k++) key[k - i] = (uint64_t)combining_class(p[k]) << 32 | (k - i);
            qsort(key, end - i, sizeof *key, key_order);
            for (size_t k = i; k < end; k++) p[k] = copy[(uint32_t)key[k - i]];
            free(key), free(copy);
        } else {
            for (size_t k = i + 1; k < end; k++) {
                int32_t cp = p[k];
                size_t to = k;
                for (int class = combining_class(cp); to > i && combining_class(p[to - 1]) > class; to--)
                    p[to] = p[to - 1];
                p[to] = cp;
            }
        }
        i = end == i ? i + 1 : end;
    }
}

static void run_normalize(str s, unicode_form form, points *v, buf *out) {
    int option = UTF8PROC_DECOMPOSE | (form == FORM_NFKC || form == FORM_NFKD ? UTF8PROC_COMPAT : 0);
    v->n = 0;
    for (size_t at = 0, len; at < s.n; at += len) {
        int32_t cp = (int32_t)utf8_get(s.p + at, &len);
        points_room(v, 32); /* the longest decomposition has 18 */
        utf8proc_ssize_t n = utf8proc_decompose_char(cp, v->p + v->n, 32, option, NULL);
        if (n < 1 || n > 32) v->p[v->n] = cp, n = 1;
        v->n += (size_t)n;
    }
    marks_order(v->p, v->n);
    if (form == FORM_NFC || form == FORM_NFKC) {
        utf8proc_ssize_t n = utf8proc_normalize_utf32(v->p, (utf8proc_ssize_t)v->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n >= 0) v->n = (size_t)n;
    }
    buf_reserve(out, v->n * 4);
    for (size_t i = 0; i < v->n; i++) out->n += utf8_put(out->p + out->n, (uint32_t)v->p[i]);
    out->p[out->n] = 0;
}

static void mask_fill(buf *out_mask, size_t n, const uint8_t *mask, size_t from, size_t to) {
    if (!mask || !n) return;
    uint8_t user = 0;
    for (size_t i = from; i < to; i++) user |= mask[i];
    buf_reserve(out_mask, n);
    memset(out_mask->p + out_mask->n, user, n);
    out_mask->n += n;
}

void unicode_normalize(str s, const uint8_t *mask, unicode_form form, buf *out, buf *out_mask) {
    uint32_t flag = form_flag(form);
    points v = {0};
    buf_reserve(out, s.n + 4);
    size_t done = 0; /* everything before is out; a run starts at the last code point that nothing can move or join */
    for (size_t at = 0, n = 0, safe = 0; at <= s.n;) {
        uint32_t rec = at < s.n ? unicode_of(utf8_get(s.p + at, &n)) : 0;
        if (at < s.n && !(rec & flag)) {
            safe = at, at += n;
            continue;
        }
        if (at == s.n) safe = s.n;
        buf_add(out, s.p + done, safe - done);
        if (mask) buf_add(out_mask, mask + done, safe - done);
        done = safe;
        if (at == s.n) break;
        size_t end = at;   /* safe .. end: at most one untouched code point, then those that take part */
        size_t opaque = 0; /* length of the opaque one that ends the run */
        while (end < s.n) {
            rec = unicode_of(utf8_get(s.p + end, &n));
            opaque = rec & U_NORM_OPAQUE ? n : 0;
            if (!(rec & flag) || opaque) break;
            end += n;
        }
        if (end > safe) {
            size_t before = out->n;
            run_normalize((str){s.p + safe, end - safe}, form, &v, out);
            utf8_get(s.p + safe, &n);
            if (out->n - before < n || memcmp(out->p + before, s.p + safe, n)) n = 0; /* the first one joined in, too */
            mask_fill(out_mask, n, mask, safe, safe + n);
            mask_fill(out_mask, out->n - before - n, mask, safe + n, end);
        }
        if (opaque) { /* it goes out as it is, and what follows starts afresh behind it */
            buf_add(out, s.p + end, opaque);
            mask_fill(out_mask, opaque, mask, end, end + opaque);
            end += opaque;
        }
        done = safe = at = end;
    }
    free(v.p);
}
