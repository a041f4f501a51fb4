/* Strings of a schema: length, pattern, format. Several restrictions are an intersection. Not here: regexes themselves
 * (grammar_regex.c). */
#include "grammar_schema.h"

#define DATE \
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  OCTET "(\\." OCTET "){3}"
#define H16   "[0-9a-fA-F]{1,4}"
#define LS32  "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                     \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16 ":){0,1}" H16      \
    ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32 "|((" H16 ":){0,3}" H16 ")?::" H16 \
    ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST  LABEL "(\\." LABEL ")*"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
#define PCHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define AUTHORITY                                                  \
    "(([a-zA-Z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@)?(\\[(" IPV6 \
    "|[vV][0-9a-fA-F]+\\.[a-zA-Z0-9._~!$&'()*+,;=:-]+)\\]|([a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*)(:[0-9]*)?"
#define TAIL_URI "(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define URI                                                                                                  \
    "[a-zA-Z][a-zA-Z0-9+.-]*:(//" AUTHORITY "(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR \
    "*)*|)" TAIL_URI

/* Names that are not here are annotations, as the specification has it. Sources: RFC 3339 (dates; appendix A:
 * durations), 1123, 5321, 3986, 4291, 4122. */
static const struct {
    const char *name, *regex;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "[Tt]" TIME "$"},
    {"duration", "^P([0-9]+W|([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)(T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+"
                 "H([0-9]+M([0-9]+S)?)?))?|T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?))$"},
    {"email", "^" ATEXT "+(\\." ATEXT "+)*@(" HOST "|\\[(" IPV4 "|IPv6:" IPV6 ")\\])$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
    {"uri", "^" URI "$"},
};

/* The text between the quotes. */
static gx content(schemas *s, const flat *f) {
    builder *b = s->b;
    gx x = GX_EMPTY;
    bool any = false;
    for (size_t i = 0; i < f->pattern.n; i++) {
        gx p =
            regex_build(b, f->pattern.p[i].j->string, REGEX_QUOTED | REGEX_SEARCH | REGEX_ECMA, f->pattern.p[i].path);
        x = any ? gx_and(b, x, p, false) : p;
        any = true;
    }
    for (size_t i = 0; i < f->format.n; i++)
        for (size_t k = 0; k < COUNT(formats); k++) {
            if (!str_is(f->format.p[i].j->string, formats[k].name)) continue;
            gx p = regex_build(b, str_of(formats[k].regex), REGEX_QUOTED | REGEX_ECMA, f->format.p[i].path);
            x = any ? gx_and(b, x, p, false) : p;
            any = true;
        }
    if (any && (f->length_min || f->length_max != GX_INF))
        return gx_and(b, x, gx_rep(b, json_any_char(b), f->length_min, f->length_max), false);
    return any ? x : gx_rep(b, json_any_char(b), f->length_min, f->length_max);
}
gx schema_string(schemas *s, const flat *f, const char *path) {
    builder *b = s->b;
    if (f->length_min > f->length_max) return GX_NEVER;
    gx inner = content(s, f);
    bool plain = !f->length_min && f->length_max == GX_INF && !f->pattern.n && !f->format.n;
    return plain ? s->f->string : GX_SEQ(b, GX_LIT(b, "\""), inner, GX_LIT(b, "\""));
}
