/* Jinja: tojson and from_json. tojson is Python's json.dumps with the options Hugging Face gives it (ensure_ascii off,
 * no HTML escaping): ", " and ": ", keys in their order. What is written around the values is the template's, the
 * values are the user's. Not here: reading requests (base/json.c, which from_json uses). */
#include <math.h>
#include <stdio.h>
#include "jinja_internal.h"

static void json_string(sbuf *b, const jstr *s, bool ascii) {
    sb_puts(b, "\"");
    size_t from = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(s->p, s->n, &i);
        static const char named[] = "\"\"\\\\\nn\rr\tt\ff\bb";
        char esc[16];
        const char *hit = NULL;
        for (const char *q = named; *q; q += 2)
            if ((uint32_t)*q == cp) hit = q + 1;
        if (hit)
            snprintf(esc, sizeof esc, "\\%c", *hit);
        else if (cp < 32 || (ascii && cp > 126 && cp < 65536))
            snprintf(esc, sizeof esc, "\\u%04x", cp);
        else if (ascii && cp >= 65536)
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
        else
            continue;
        if (ascii && cp == 127 && !hit) continue;
        sb_slice(b, s, from, at);
        sb_add(b, esc, strlen(esc), str_user_at(s, at));
        from = i;
    }
    sb_slice(b, s, from, s->n);
    sb_puts(b, "\"");
}

static void json_number(sbuf *b, value v) {
    if (v_is(v, V_FLOAT) && !isfinite(v.f)) {
        const char *word = isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity";
        sb_add(b, word, strlen(word), v.user);
    } else if (v_is(v, V_NONE) || v_is(v, V_BOOL)) {
        const char *word = v_is(v, V_NONE) ? "null" : v.b ? "true" : "false";
        sb_add(b, word, strlen(word), v.user);
    } else
        sb_repr(b, v);
}

static void newline(sbuf *b, const json_style *style, int depth) {
    if (!style->indent) return;
    sb_puts(b, "\n");
    sb_fill(b, style->indent, depth);
}

static void write(sbuf *b, value v, const json_style *style, int depth);

static void write_key(sbuf *b, value k, const json_style *style) {
    if (v_is(k, V_STR))
        json_string(b, k.s, style->ensure_ascii);
    else if (v_is(k, V_NONE) || v_is(k, V_BOOL) || v_is(k, V_INT) || v_is(k, V_FLOAT) || v_is(k, V_BIG)) {
        sb_puts(b, "\"");
        json_number(b, k);
        sb_puts(b, "\"");
    } else
        jinja_fail(b->c, "keys must be str, int, float, bool or None, not %s", type_name(k));
}

static void write_dict(sbuf *b, const jdict *d, const json_style *style, int depth) {
    core *c = b->c;
    value *keys = jinja_array(c, value, d->n), *vals = jinja_array(c, value, d->n);
    for (size_t i = 0; i < d->n; i++) keys[i] = d->e[i].key, vals[i] = d->e[i].val;
    if (style->sort_keys) value_sort(c, vals, keys, d->n, false);
    sb_puts(b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) sb_str(b, style->item);
        newline(b, style, depth + 1);
        write_key(b, keys[i], style);
        sb_str(b, style->key);
        write(b, vals[i], style, depth + 1);
    }
    if (d->n) newline(b, style, depth);
    sb_puts(b, "}");
}

static void write(sbuf *b, value v, const json_style *style, int depth) {
    jinja_guard(b->c);
    jinja_step(b->c, 1);
    switch (v.type) {
    case V_STR: json_string(b, v.s, style->ensure_ascii); break;
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_FLOAT:
    case V_BIG: json_number(b, v); break;
    case V_LIST:
    case V_TUPLE:
        sb_puts(b, "[");
        for (size_t i = 0; i < v.list->n; i++) {
            if (i) sb_str(b, style->item);
            newline(b, style, depth + 1);
            write(b, v.list->v[i], style, depth + 1);
        }
        if (v.list->n) newline(b, style, depth);
        sb_puts(b, "]");
        break;
    case V_DICT: write_dict(b, v.dict, style, depth); break;
    default: jinja_fail(b->c, "Object of type %s is not JSON serializable", type_name(v));
    }
}

void sb_json(sbuf *b, value v, const json_style *style) {
    write(b, v, style, 0);
}
