/* UTF-8: stepping, checking, writing. What code points are (letters, spaces, cases): text/unicode.h. */
#include "base.h"

size_t utf8_put(char out[4], uint32_t cp) {
    if (cp < 0x80) return out[0] = (char)cp, 1;
    if (cp < 0x800) return out[0] = (char)(0xC0 | cp >> 6), out[1] = (char)(0x80 | (cp & 63)), 2;
    if (cp < 0x10000)
        return out[0] = (char)(0xE0 | cp >> 12), out[1] = (char)(0x80 | (cp >> 6 & 63)),
               out[2] = (char)(0x80 | (cp & 63)), 3;
    return out[0] = (char)(0xF0 | cp >> 18), out[1] = (char)(0x80 | (cp >> 12 & 63)),
           out[2] = (char)(0x80 | (cp >> 6 & 63)), out[3] = (char)(0x80 | (cp & 63)), 4;
}

size_t utf8_unit(str s, bool final, bool *ok) {
    const uint8_t *p = (const uint8_t *)s.p;
    *ok = true;
    if (s.n == 0) return 0;
    if (p[0] < 0x80) return 1;
    *ok = false;
    size_t need = p[0] >= 0xC2 && p[0] < 0xE0   ? 2
                  : p[0] >= 0xE0 && p[0] < 0xF0 ? 3
                  : p[0] >= 0xF0 && p[0] < 0xF5 ? 4
                                                : 0;
    if (!need) return 1;
    /* The second byte's range is narrower after E0 ED F0 F4: that keeps out overlong forms, surrogates and > U+10FFFF.
     */
    uint8_t low = p[0] == 0xE0   ? 0xA0
                  : p[0] == 0xF0 ? 0x90
                                 : 0x80,
            high = p[0] == 0xED   ? 0x9F
                   : p[0] == 0xF4 ? 0x8F
                                  : 0xBF;
    for (size_t i = 1; i < need; i++) {
        if (i == s.n) return final ? i : 0;
        if (p[i] < low || p[i] > high) return i;
        low = 0x80, high = 0xBF;
    }
    return *ok = true, need;
}

size_t utf8_valid(str s) {
    size_t at = 0;
    while (at < s.n) {
        uint64_t eight;
        if (s.n - at >= 8 && (memcpy(&eight, s.p + at, 8), !(eight & 0x8080808080808080ull))) {
            at += 8;
            continue;
        }
        bool ok;
        size_t n = utf8_unit((str){s.p + at, s.n - at}, true, &ok);
        if (!ok) return at;
        at += n;
    }
    return at;
}

void utf8_lossy(str s, buf *out) {
    for (size_t at = 0; at < s.n;) {
        str rest = {s.p + at, s.n - at};
        size_t good = utf8_valid(rest);
        buf_add(out, rest.p, good);
        at += good;
        if (at == s.n) return;
        bool ok;
        at += utf8_unit((str){s.p + at, s.n - at}, true, &ok);
        buf_puts(out, "\xEF\xBF\xBD");
    }
}

uint32_t utf8_next(const char *p, size_t n, size_t *at) {
    const char *from = p + *at;
    bool ok = (uint8_t)*from < 0x80;
    size_t len = ok ? 1 : utf8_unit((str){from, n - *at}, true, &ok);
    *at += ok ? len : 1;
    return ok ? utf8_get(from, &len) : 0xFFFD;
}
