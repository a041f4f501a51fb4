/* Arguments of tool calls on their way to JSON: following JSON that a model writes, and giving plain text the type that
 * the tool's schema declares. Not here: where values begin and end (output_calls.c). */
#include <stdlib.h>
#include "output_internal.h"

/* ---- JSON as it comes -------------------------------------------------------------------------------------------- */
enum {
    S_VALUE,
    S_FIRST, /* a value or ']' */
    S_KEY,
    S_KEY_FIRST, /* a key or '}' */
    S_COLON,
    S_AFTER, /* ',' or the end of the container */
    S_STRING,
    S_ESCAPE,
    S_HEX,
    S_LITERAL,
    S_MINUS, /* from here on: inside a number */
    S_ZERO,
    S_INT,
    S_DOT,
    S_FRACTION,
    S_E,
    S_SIGN,
    S_EXPONENT,
};
enum { SCAN_DEPTH = 128 };

void scan_start(json_scan *s) {
    *s = (json_scan){.state = S_VALUE};
}

bool scan_in_string(const json_scan *s) {
    return s->state == S_STRING || s->state == S_ESCAPE || s->state == S_HEX;
}

static bool in_array(const json_scan *s) {
    return s->array[(s->depth - 1) / 64] >> (s->depth - 1) % 64 & 1;
}

static scan_result value_ended(json_scan *s) {
    s->state = S_AFTER;
    return s->depth ? SCAN_ON : SCAN_END;
}

static scan_result container_open(json_scan *s, bool array) {
    if (s->depth == SCAN_DEPTH) return SCAN_BAD;
    uint64_t bit = 1ull << s->depth % 64, *word = &s->array[s->depth / 64];
    *word = array ? *word | bit : *word & ~bit;
    s->depth++;
    s->state = array ? S_FIRST : S_KEY_FIRST;
    return SCAN_ON;
}

static scan_result container_close(json_scan *s, char c) {
    if ((c == ']') != in_array(s)) return SCAN_BAD;
    s->depth--;
    return value_ended(s);
}

static scan_result value_begin(json_scan *s, char c) {
    switch (c) {
    case '{': return container_open(s, false);
    case '[': return container_open(s, true);
    case '"': s->state = S_STRING, s->in_key = false; return SCAN_ON;
    case '-': s->state = S_MINUS; return SCAN_ON;
    case 't': s->literal = "rue"; break;
    case 'f': s->literal = "alse"; break;
    case 'n': s->literal = "ull"; break;
    default:
        if (c < '0' || c > '9') return SCAN_BAD;
        s->state = c == '0' ? S_ZERO : S_INT;
        return SCAN_ON;
    }
    s->state = S_LITERAL;
    return SCAN_ON;
}

/* True: c goes on with the number. */
static bool number_push(json_scan *s, char c) {
    bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
    switch (s->state) {
    case S_MINUS: s->state = c == '0' ? S_ZERO : S_INT; return digit;
    case S_ZERO:
    case S_INT:
        if (digit && s->state == S_INT) return true;
        s->state = c == '.' ? S_DOT : e ? S_E : s->state;
        return c == '.' || e;
    case S_DOT: s->state = S_FRACTION; return digit;
    case S_FRACTION:
        if (e) s->state = S_E;
        return digit || e;
    case S_E: s->state = c == '+' || c == '-' ? S_SIGN : S_EXPONENT; return digit || s->state == S_SIGN;
    default: s->state = S_EXPONENT; return digit;
    }
}

static scan_result in_number(json_scan *s, char c) {
    bool whole = s->state == S_ZERO || s->state == S_INT || s->state == S_FRACTION || s->state == S_EXPONENT;
    if (number_push(s, c)) return SCAN_ON;
    if (!whole) return SCAN_BAD;
    if (value_ended(s) == SCAN_END) return SCAN_BEFORE;
    return scan_push(s, c);
}

static scan_result in_string(json_scan *s, char c) {
    if (s->state == S_HEX) {
        if (str_digit(c) > 15) return SCAN_BAD;
        if (!--s->left) s->state = S_STRING;
    } else if (s->state == S_ESCAPE) {
        if (!strchr("\"\\/bfnrtu", c) || !c) return SCAN_BAD;
        s->state = c == 'u' ? S_HEX : S_STRING;
        s->left = 4;
    } else if (c == '\\') {
        s->state = S_ESCAPE;
    } else if (c == '"') {
        if (!s->in_key) return value_ended(s);
        s->state = S_COLON;
    }
    return SCAN_ON;
}

scan_result scan_push(json_scan *s, char c) {
    if (scan_in_string(s)) return in_string(s, c);
    if (s->state >= S_MINUS) return in_number(s, c);
    if (s->state == S_LITERAL) {
        if (*s->literal != c) return SCAN_BAD;
        return *++s->literal ? SCAN_ON : value_ended(s);
    }
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') return SCAN_ON;
    if (s->state == S_COLON) return s->state = S_VALUE, c == ':' ? SCAN_ON : SCAN_BAD;
    bool key = s->state == S_KEY || s->state == S_KEY_FIRST;
    if ((c == ']' && (s->state == S_FIRST || s->state == S_AFTER)) ||
        (c == '}' && (s->state == S_KEY_FIRST || s->state == S_AFTER)))
        return container_close(s, c);
    if (s->state == S_AFTER) return s->state = in_array(s) ? S_VALUE : S_KEY, c == ',' ? SCAN_ON : SCAN_BAD;
    if (!key) return value_begin(s, c);
    s->state = S_STRING;
    s->in_key = true;
    return c == '"' ? SCAN_ON : SCAN_BAD;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    unsigned bits;
} type_names[] = {
    {"null", TYPE_NULL},     {"boolean", TYPE_BOOL}, {"integer", TYPE_INT},  {"number", TYPE_REAL | TYPE_INT},
    {"string", TYPE_STRING}, {"array", TYPE_ARRAY},  {"object", TYPE_OBJECT}};

static unsigned type_of_name(str name) {
    for (size_t i = 0; i < COUNT(type_names); i++)
        if (str_is(name, type_names[i].name)) return type_names[i].bits;
    return 0;
}

static unsigned type_of_value(const json *v) {
    static const unsigned bits[] = {
        [JSON_NULL] = TYPE_NULL,     [JSON_BOOL] = TYPE_BOOL,   [JSON_INT] = TYPE_INT,      [JSON_REAL] = TYPE_REAL,
        [JSON_STRING] = TYPE_STRING, [JSON_ARRAY] = TYPE_ARRAY, [JSON_OBJECT] = TYPE_OBJECT};
    return bits[v->type];
}

static const json *member(const json *object, str key) {
    for (uint32_t i = 0; json_is(object, JSON_OBJECT) && i < object->n; i++)
        if (str_eq(object->members[i].key, key)) return &object->members[i].value;
    return NULL;
}

const json *schema_ref(const json *root, str ref) {
    const json *at = str_starts(ref, STR("#")) ? root : NULL;
    for (str rest = str_slice(ref, MIN(2, ref.n), ref.n); rest.n && at;) {
        size_t end = MIN(str_find(rest, STR("/")), rest.n);
        at = member(at, str_slice(rest, 0, end));
        rest = str_slice(rest, MIN(end + 1, rest.n), rest.n);
    }
    return at;
}

static unsigned types_at(const json *root, const json *s, int depth) {
    static const char *const branches[] = {"anyOf", "oneOf", "allOf"};
    const json *type = json_get(s, "type"), *values = json_get(s, "enum"), *one = json_get(s, "const");
    unsigned bits = 0;
    if (depth > 8) return 0;
    if (json_is(type, JSON_STRING)) return type_of_name(type->string);
    for (uint32_t i = 0; json_is(type, JSON_ARRAY) && i < type->n; i++)
        bits |= type_of_name(json_str(json_at(type, i), (str){0}));
    if (bits) return bits;
    if (one) return type_of_value(one);
    for (uint32_t i = 0; json_is(values, JSON_ARRAY) && i < values->n; i++) bits |= type_of_value(json_at(values, i));
    if (bits) return bits;
    const json *ref = json_get(s, "$ref");
    if (json_is(ref, JSON_STRING)) return types_at(root, schema_ref(root, ref->string), depth + 1);
    for (size_t k = 0; k < COUNT(branches); k++) {
        const json *list = json_get(s, branches[k]);
        for (uint32_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++) {
            unsigned t = types_at(root, json_at(list, i), depth + 1);
            if (!t && k < 2) return 0; /* a branch that may be anything */
            bits |= t;
        }
    }
    if (bits) return bits;
    if (json_get(s, "properties") || json_get(s, "additionalProperties")) return TYPE_OBJECT;
    return json_get(s, "items") || json_get(s, "prefixItems") ? TYPE_ARRAY : 0;
}

unsigned schema_types(const json *root, const json *schema) {
    return types_at(root, schema, 0);
}

/* ---- text becomes JSON ------------------------------------------------------------------------------------------- */
void text_escape(str s, buf *out) {
    buf quoted = {0};
    json_write_string(&quoted, s);
    buf_add(out, quoted.p + 1, quoted.n - 2);
    buf_free(&quoted);
}

/* The type of a text that is JSON; 0: it is not. */
static unsigned text_type(str s) {
    if (!s.n) return 0;
    arena *a = arena_new(0);
    const json *j = json_read(a, s, NULL, NULL);
    unsigned bits = j ? type_of_value(j) : 0;
    if (bits == TYPE_REAL && json_int(j, INT64_MIN) != INT64_MIN) bits |= TYPE_INT; /* 3.0 */
    arena_free(a);
    return bits;
}

/* Python's words, where no string is allowed anyway. */
static str python_word(str s, unsigned types) {
    if (!types || types & TYPE_STRING) return (str){0};
    return str_is(s, "True")    ? STR("true")
           : str_is(s, "False") ? STR("false")
           : str_is(s, "None")  ? STR("null")
                                : (str){0};
}

void text_typed(str s, unsigned types, buf *out) {
    str bare = str_trim(s), word = python_word(bare, types);
    unsigned is = types_text(types) ? 0 : text_type(bare);
    if (word.n) return buf_str(out, word);
    if (is && (!types || is & types || !(types & TYPE_STRING))) return buf_str(out, bare);
    json_write_string(out, s);
}

void entities_decode(str s, buf *out) {
    static const struct {
        str name;
        char c;
    } entity[] = {
        {STR("&lt;"), '<'}, {STR("&gt;"), '>'}, {STR("&amp;"), '&'}, {STR("&quot;"), '"'}, {STR("&apos;"), '\''}};
    for (size_t at = 0; at < s.n;) {
        size_t k = 0;
        while (k < COUNT(entity) && !str_starts(str_slice(s, at, s.n), entity[k].name)) k++;
        buf_putc(out, k < COUNT(entity) ? entity[k].c : s.p[at]);
        at += k < COUNT(entity) ? entity[k].name.n : 1;
    }
}
