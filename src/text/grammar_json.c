/* JSON's own texts as expressions: characters of strings, numbers, white space, any value.
 * Not here: what a schema asks for (grammar_schema.c). */
#include <stdlib.h>
#include "grammar_internal.h"

/* White space between two JSON tokens: line breaks and an indentation, but no place for a model to run on in. */
enum { BREAKS_MAX = 2, INDENT_MAX = 40 };

/* ---- characters -------------------------------------------------------------------------------------------------- */
static bool must_escape(uint32_t cp) {
    return cp < 0x20 || cp == '"' || cp == '\\';
}
static gx escaped(builder *b, uint32_t cp) {
    char one = (char)cp;
    buf t = {0};
    json_write_string(&t, (str){&one, 1});
    gx x = gx_lit(b, (str){t.p + 1, t.n - 2});
    buf_free(&t);
    return x;
}
gx json_chars(builder *b, const cp_set *s, bool quoted) {
    if (!quoted) return gx_class(b, s);
    cp_set raw = {0};
    gx_list l = {0};
    cp_add_set(&raw, s);
    for (uint32_t cp = 0; cp < 0x5D; cp++)
        if (must_escape(cp) && cp_has(s, cp)) gx_push(&l, escaped(b, cp));
    cp_set keep = {0};
    static const cp_range safe[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    for (size_t i = 0; i < raw.n; i++)
        for (size_t k = 0; k < COUNT(safe); k++) {
            uint32_t lo = MAX(raw.p[i].lo, safe[k].lo), hi = MIN(raw.p[i].hi, safe[k].hi);
            if (lo <= hi) cp_add(&keep, lo, hi);
        }
    gx_push(&l, gx_class(b, &keep));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    free(raw.p);
    free(keep.p);
    return x;
}
static gx hex(builder *b, const char *ranges) { /* pairs of bounds */
    cp_set s = {0};
    for (; *ranges; ranges += 2) cp_add(&s, (uint8_t)ranges[0], (uint8_t)ranges[1]);
    gx x = gx_class(b, &s);
    free(s.p);
    return x;
}
/* \uXXXX of a character, or of a pair of surrogates; half of a pair is no text. */
static gx unicode_escape(builder *b) {
    gx any = hex(b, "09AFaf"), any2 = GX_SEQ(b, any, any), d = hex(b, "DDdd");
    gx plain = GX_SEQ(b, hex(b, "09ACEFacef"), any, any2), low_d = GX_SEQ(b, d, hex(b, "07"), any2);
    gx pair = GX_SEQ(b, d, hex(b, "89ABab"), any2, GX_LIT(b, "\\u"), d, hex(b, "CFcf"), any2);
    return GX_SEQ(b, GX_LIT(b, "u"), GX_ALT(b, plain, low_d, pair));
}
gx json_any_char(builder *b) {
    cp_set s = {0};
    cp_add(&s, 0x20, 0x21);
    cp_add(&s, 0x23, 0x5B);
    cp_add(&s, 0x5D, 0x10FFFF);
    gx raw = gx_class(b, &s);
    free(s.p);
    return GX_ALT(b, raw, GX_SEQ(b, GX_LIT(b, "\\"), GX_ALT(b, hex(b, "\"\"//\\\\bbffnnrrtt"), unicode_escape(b))));
}
gx json_literal(builder *b, str s) {
    buf t = {0};
    json_write_string(&t, s);
    gx x = gx_lit(b, (str){t.p + 1, t.n - 2});
    buf_free(&t);
    return x;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */
static gx shared(builder *b, const char *name, gx body) {
    uint32_t rule = gx_rule_new(b, name);
    gx_rule_define(b, rule, body);
    return gx_call(b, rule);
}
gx json_object_of(builder *b, const json_forms *f, gx members) {
    return GX_SEQ(b, GX_LIT(b, "{"), f->space, members, f->space, GX_LIT(b, "}"));
}
gx json_array_of(builder *b, const json_forms *f, gx items) {
    return GX_SEQ(b, GX_LIT(b, "["), f->space, items, f->space, GX_LIT(b, "]"));
}
void json_forms_init(builder *b, json_forms *f, json_style style) {
    *f = (json_forms){.style = style, .space = GX_EMPTY};
    if (style == JSON_LOOSE) {
        gx blank = hex(b, "  \t\t"), ends = GX_SEQ(b, gx_opt(b, GX_LIT(b, "\r")), GX_LIT(b, "\n"));
        f->space = shared(b, "white space",
                          GX_SEQ(b, gx_opt(b, GX_SEQ(b, gx_opt(b, blank), gx_rep(b, ends, 1, BREAKS_MAX))),
                                 gx_rep(b, blank, 0, INDENT_MAX)));
    }
    gx quote = GX_LIT(b, "\""), digit = gx_range(b, '0', '9'), digits = gx_rep(b, digit, 1, GX_INF);
    gx after = style == JSON_LINE ? gx_opt(b, GX_LIT(b, " ")) : f->space;
    f->comma = GX_SEQ(b, f->space, GX_LIT(b, ","), after);
    f->colon = GX_SEQ(b, f->space, GX_LIT(b, ":"), after);
    f->string = shared(b, "string", GX_SEQ(b, quote, gx_rep(b, json_any_char(b), 0, GX_INF), quote));
    gx whole = GX_SEQ(b, gx_opt(b, GX_LIT(b, "-")),
                      GX_ALT(b, GX_LIT(b, "0"), GX_SEQ(b, gx_range(b, '1', '9'), gx_rep(b, digit, 0, GX_INF))));
    f->integer = whole;
    f->number = GX_SEQ(b, whole, gx_opt(b, GX_SEQ(b, GX_LIT(b, "."), digits)),
                       gx_opt(b, GX_SEQ(b, hex(b, "EEee"), gx_opt(b, hex(b, "++--")), digits)));
    uint32_t value = gx_rule_new(b, "value");
    f->value = gx_call(b, value);
    gx member = GX_SEQ(b, f->string, f->colon, f->value);
    gx members = GX_SEQ(b, member, gx_rep(b, GX_SEQ(b, f->comma, member), 0, GX_INF));
    gx items = GX_SEQ(b, f->value, gx_rep(b, GX_SEQ(b, f->comma, f->value), 0, GX_INF));
    f->object = shared(b, "object", json_object_of(b, f, gx_opt(b, members)));
    f->array = shared(b, "array", json_array_of(b, f, gx_opt(b, items)));
    gx_rule_define(
        b, value,
        GX_ALT(b, f->object, f->array, f->string, f->number, GX_LIT(b, "true"), GX_LIT(b, "false"), GX_LIT(b, "null")));
}

static gx list_of(builder *b, const json_forms *f, const gx_list *l) {
    gx_list s = {0};
    for (size_t i = 0; i < l->n; i++) {
        if (i) gx_push(&s, f->comma);
        gx_push(&s, l->p[i]);
    }
    gx x = gx_seq(b, s.p, s.n);
    free(s.p);
    return x;
}
gx json_constant(builder *b, const json_forms *f, const json *v) {
    gx_list l = {0};
    gx x;
    if (v->type == JSON_ARRAY || v->type == JSON_OBJECT) {
        for (uint32_t i = 0; i < v->n; i++) {
            if (v->type == JSON_ARRAY) {
                gx_push(&l, json_constant(b, f, &v->items[i]));
                continue;
            }
            gx key = GX_SEQ(b, GX_LIT(b, "\""), json_literal(b, v->members[i].key), GX_LIT(b, "\""));
            gx_push(&l, GX_SEQ(b, key, f->colon, json_constant(b, f, &v->members[i].value)));
        }
        x = list_of(b, f, &l);
        x = v->type == JSON_ARRAY ? json_array_of(b, f, x) : json_object_of(b, f, x);
        free(l.p);
        return x;
    }
    buf t = {0};
    json_write(&t, v);
    x = gx_lit(b, buf_view(&t));
    buf_free(&t);
    int64_t whole = json_int(v, INT64_MIN);
    if (v->type != JSON_REAL || whole == INT64_MIN) return x;
    json i = json_of_int(whole); /* 2.0 may be written 2 */
    json_write(&t, &i);
    x = GX_ALT(b, x, gx_lit(b, buf_view(&t)));
    buf_free(&t);
    return x;
}
