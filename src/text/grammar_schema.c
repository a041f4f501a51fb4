/* JSON Schema (draft 2020-12, and what drafts 4 to 7 spell otherwise) becomes expressions. Schemas that apply together
 * ($ref with its neighbours, allOf, a branch of anyOf) are first laid on top of each other, keyword by keyword; then
 * each type that is left gets its texts. Every list of schemas is a rule made once, so recursion is just a call.
 *
 * A keyword that restricts and is not built is an error that names its path; annotations and unknown names are free.
 * docs/grammar.md lists both. Not here: objects, arrays (grammar_object.c), numbers, strings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "grammar_schema.h"

enum { WORK_MAX = 200000, FLATTEN_DEPTH = 200, ONE_OF_MAX = 24, PATH_MAX_BYTES = 400 };

void snode_push(snodes *l, snode s) {
    if (l->n == l->cap) l->p = mem_resize(l->p, (l->cap = l->cap * 2 + 8) * sizeof *l->p);
    l->p[l->n++] = s;
}
gx schema_fail(schemas *s, const char *path, const char *fmt, ...) {
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!s->b->failed) error_field(s->b->err, ERR_INVALID, path, "%s: %s", path, text);
    s->b->failed = true;
    return GX_NEVER;
}
const char *path_add(schemas *s, const char *path, str key) {
    if (strlen(path) + key.n > PATH_MAX_BYTES) return path;
    return arena_printf(s->b->a, "%s.%.*s", path, (int)key.n, key.p);
}

/* ---- references -------------------------------------------------------------------------------------------------- */
static const json *pointer_step(const json *at, str key) {
    if (json_is(at, JSON_ARRAY)) {
        int64_t i;
        return str_to_i64(key, &i) && i >= 0 ? json_at(at, (size_t)i) : NULL;
    }
    for (uint32_t i = 0; json_is(at, JSON_OBJECT) && i < at->n; i++)
        if (str_eq(at->members[i].key, key)) return &at->members[i].value;
    return NULL;
}
static str pointer_key(schemas *s, str part) {
    buf b = {0};
    for (size_t i = 0; i < part.n; i++) {
        char c = part.p[i];
        if (c == '%' && i + 2 < part.n && str_digit(part.p[i + 1]) < 16 && str_digit(part.p[i + 2]) < 16) {
            c = (char)(str_digit(part.p[i + 1]) * 16 + str_digit(part.p[i + 2]));
            i += 2;
        }
        if (c == '~' && i + 1 < part.n && (part.p[i + 1] == '0' || part.p[i + 1] == '1'))
            c = part.p[++i] == '0' ? '~' : '/';
        buf_putc(&b, c);
    }
    str key = {arena_copy(s->b->a, b.p ? b.p : "", b.n), b.n};
    buf_free(&b);
    return key;
}
/* The schema that calls itself so, by $id or $anchor; depth first. */
static const json *named(const json *j, str id, str anchor, int depth) {
    if (depth > 100 || !(json_is(j, JSON_OBJECT) || json_is(j, JSON_ARRAY))) return NULL;
    if (json_is(j, JSON_OBJECT)) {
        str own = json_str(json_get(j, "$id"), json_str(json_get(j, "id"), (str){0}));
        if (id.n && str_eq(own, id)) return j;
        if (anchor.n && str_eq(json_str(json_get(j, "$anchor"), (str){0}), anchor)) return j;
    }
    for (uint32_t i = 0; i < j->n; i++) {
        const json *found = named(json_is(j, JSON_ARRAY) ? &j->items[i] : &j->members[i].value, id, anchor, depth + 1);
        if (found) return found;
    }
    return NULL;
}
static bool reference(schemas *s, const json *ref, const char *path, snode *out) {
    str r = json_str(ref, (str){0});
    size_t hash = MIN(str_find(r, STR("#")), r.n);
    str base = str_slice(r, 0, hash), rest = str_slice(r, MIN(hash + 1, r.n), r.n);
    const json *at = s->root;
    const char *where = s->path;
    if (base.n && !str_eq(base, json_str(json_get(s->root, "$id"), (str){0}))) {
        at = named(s->root, base, (str){0}, 0);
        where = arena_printf(s->b->a, "(%.*s)", (int)MIN(base.n, 100), base.p);
    }
    if (at && rest.n && rest.p[0] != '/') {
        at = named(at, (str){0}, rest, 0);
        if (!at) at = named(s->root, r, (str){0}, 0); /* drafts 4 to 7: "$id": "#name" */
        rest = (str){0};
    }
    while (at && rest.n) {
        rest = str_slice(rest, 1, rest.n);
        size_t end = MIN(str_find(rest, STR("/")), rest.n);
        str key = pointer_key(s, str_slice(rest, 0, end));
        at = pointer_step(at, key);
        where = path_add(s, where, key);
        rest = str_slice(rest, end, rest.n);
    }
    if (!at || !json_is(ref, JSON_STRING))
        return schema_fail(s, path, "\"%.*s\" is not found in this schema", (int)MIN(r.n, 100), r.p), false;
    *out = (snode){.j = at, .path = where};
    return true;
}

/* ---- keywords ---------------------------------------------------------------------------------------------------- */
typedef struct key_in {
    schemas *s;
    flat *f;
    const json *schema, *v;
    const char *path; /* of the keyword */
    int depth;
} key_in;
static bool flatten(schemas *s, flat *f, snode n, int depth);

static bool wrong(const key_in *k, const char *want) {
    schema_fail(k->s, k->path, "must be %s, not %s", want, json_type_name(k->v));
    return false;
}
static const struct {
    const char *name;
    unsigned bits;
} type_names[] = {{"null", T_NULL},     {"boolean", T_BOOL}, {"integer", T_INT},  {"number", T_INT | T_REAL},
                  {"string", T_STRING}, {"array", T_ARRAY},  {"object", T_OBJECT}};
static bool type_bits(const key_in *k, const json *v, unsigned *bits) {
    for (size_t i = 0; i < COUNT(type_names) && json_is(v, JSON_STRING); i++)
        if (str_is(v->string, type_names[i].name)) return *bits |= type_names[i].bits, true;
    str name = json_str(v, STR("?"));
    schema_fail(k->s, k->path, "\"%.*s\" is not a type; null, boolean, integer, number, string, array, object are",
                (int)MIN(name.n, 40), name.p);
    return false;
}
static bool key_type(const key_in *k) {
    unsigned bits = 0;
    if (json_is(k->v, JSON_ARRAY)) {
        for (uint32_t i = 0; i < k->v->n; i++)
            if (!type_bits(k, &k->v->items[i], &bits)) return false;
    } else if (!type_bits(k, k->v, &bits)) {
        return false;
    }
    k->f->types &= bits;
    return true;
}
static bool json_same(const json *a, const json *b) {
    if (json_is_number(a) && json_is_number(b)) return json_real(a, 0) == json_real(b, 0);
    if (a->type != b->type) return false;
    if (a->type == JSON_BOOL) return a->boolean == b->boolean;
    if (a->type == JSON_STRING) return str_eq(a->string, b->string);
    if (a->type == JSON_NULL) return true;
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const json *x = a->type == JSON_ARRAY ? &a->items[i] : &a->members[i].value;
        const json *y = a->type == JSON_ARRAY ? &b->items[i] : pointer_step(b, a->members[i].key);
        if (!y || !json_same(x, y)) return false;
    }
    return true;
}
static void values_meet(flat *f, const json *v, size_t n, bool list) {
    const json **kept = mem_alloc((n + 1) * sizeof *kept);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++) {
        const json *x = list ? &v->items[i] : v;
        bool ok = !f->has_values;
        for (size_t k = 0; k < f->n_values && !ok; k++) ok = json_same(f->values[k], x);
        if (ok) kept[n_kept++] = x;
    }
    free(f->values);
    f->values = kept;
    f->n_values = n_kept;
    f->has_values = true;
}
static bool key_enum(const key_in *k) {
    if (!json_is(k->v, JSON_ARRAY)) return wrong(k, "an array");
    values_meet(k->f, k->v, k->v->n, true);
    return true;
}
static bool key_const(const key_in *k) {
    values_meet(k->f, k->v, 1, false);
    return true;
}
static bool count_of(const key_in *k, uint32_t *out) {
    if (!json_is_number(k->v) || json_real(k->v, -1) < 0 || json_real(k->v, 0.5) != floor(json_real(k->v, 0)))
        return wrong(k, "a whole number that is not negative");
    *out = (uint32_t)MIN(json_real(k->v, 0), 1e9);
    return true;
}
#define KEY_COUNT(name, member, pick)         \
    static bool name(const key_in *k) {       \
        uint32_t v;                           \
        if (!count_of(k, &v)) return false;   \
        k->f->member = pick(k->f->member, v); \
        return true;                          \
    }
KEY_COUNT(key_length_min, length_min, MAX)
KEY_COUNT(key_length_max, length_max, MIN)
KEY_COUNT(key_items_min, items_min, MAX)
KEY_COUNT(key_items_max, items_max, MIN)
KEY_COUNT(key_members_min, members_min, MAX)
KEY_COUNT(key_members_max, members_max, MIN)

static void bound(limit *l, const json *v, bool strict, int sign) {
    double now = l->v ? sign * json_real(l->v, 0) : -INFINITY, x = sign * json_real(v, 0);
    if (x > now || (x == now && strict)) *l = (limit){v, strict};
}
static bool key_bound(const key_in *k, bool high, bool strict) {
    if (!json_is_number(k->v)) return wrong(k, "a number");
    bound(high ? &k->f->high : &k->f->low, k->v, strict, high ? -1 : 1);
    return true;
}
static bool key_minimum(const key_in *k) {
    return key_bound(k, false, json_bool(json_get(k->schema, "exclusiveMinimum"), false)); /* draft 4: a flag */
}
static bool key_maximum(const key_in *k) {
    return key_bound(k, true, json_bool(json_get(k->schema, "exclusiveMaximum"), false));
}
static bool key_above(const key_in *k) {
    return json_is(k->v, JSON_BOOL) || key_bound(k, false, true);
}
static bool key_below(const key_in *k) {
    return json_is(k->v, JSON_BOOL) || key_bound(k, true, true);
}
static bool key_multiple(const key_in *k) {
    if (!json_is_number(k->v) || !(json_real(k->v, 0) > 0)) return wrong(k, "a number above 0");
    snode_push(&k->f->multiple, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_pattern(const key_in *k) {
    if (!json_is(k->v, JSON_STRING)) return wrong(k, "a string");
    snode_push(&k->f->pattern, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_format(const key_in *k) {
    if (!json_is(k->v, JSON_STRING)) return wrong(k, "a string");
    snode_push(&k->f->format, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_not(const key_in *k) {
    snode_push(&k->f->not, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_ref(const key_in *k) {
    snode to;
    return reference(k->s, k->v, k->path, &to) && flatten(k->s, k->f, to, k->depth + 1);
}
static bool key_all(const key_in *k) {
    if (!json_is(k->v, JSON_ARRAY)) return wrong(k, "an array");
    for (uint32_t i = 0; i < k->v->n; i++) {
        snode n = {.j = &k->v->items[i], .path = arena_printf(k->s->b->a, "%s[%u]", k->path, i)};
        if (!flatten(k->s, k->f, n, k->depth + 1)) return false;
    }
    return true;
}
static bool key_any(const key_in *k) {
    if (!json_is(k->v, JSON_ARRAY) || !k->v->n) return wrong(k, "an array that is not empty");
    snode_push(&k->f->choices, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_one(const key_in *k) {
    if (!key_any(k)) return false;
    k->f->choices.p[k->f->choices.n - 1].one = true;
    return true;
}
static bool key_part(const key_in *k) { /* the whole schema is kept once; grammar_object.c reads it */
    snodes *p = &k->f->parts;
    if (!p->n || p->p[p->n - 1].j != k->schema) {
        size_t cut = strlen(k->path);
        while (cut && k->path[cut - 1] != '.') cut--;
        snode_push(p, (snode){.j = k->schema, .path = arena_copy(k->s->b->a, k->path, cut ? cut - 1 : 0)});
    }
    return true;
}
static bool key_required(const key_in *k) {
    if (json_is(k->v, JSON_BOOL)) return true; /* draft 3 */
    if (!json_is(k->v, JSON_ARRAY)) return wrong(k, "an array of strings");
    for (uint32_t i = 0; i < k->v->n; i++) {
        if (!json_is(&k->v->items[i], JSON_STRING)) return wrong(k, "an array of strings");
        snode_push(&k->f->required, (snode){.j = &k->v->items[i], .path = k->path});
    }
    return true;
}
static bool key_names(const key_in *k) {
    snode_push(&k->f->names, (snode){.j = k->v, .path = k->path});
    return true;
}
static bool key_unique(const key_in *k) {
    if (!json_is(k->v, JSON_BOOL)) return wrong(k, "true or false");
    if (k->v->boolean) k->f->unique = k->path;
    return true;
}
/* Known and not built: fine only where it says nothing. */
static bool key_refused(const key_in *k) {
    bool neutral = (json_is(k->v, JSON_BOOL) && k->v->boolean) || (json_is(k->v, JSON_OBJECT) && !k->v->n);
    if (!neutral) schema_fail(k->s, k->path, "this keyword is not supported");
    return neutral;
}
static bool key_contains(const key_in *k) {
    bool any = (json_is(k->v, JSON_BOOL) && k->v->boolean) || (json_is(k->v, JSON_OBJECT) && !k->v->n);
    if (!any || json_get(k->schema, "minContains") || json_get(k->schema, "maxContains"))
        return schema_fail(k->s, k->path, "this keyword is not supported"), false;
    k->f->items_min = MAX(k->f->items_min, 1);
    return true;
}
static const struct {
    const char *name;
    bool (*read)(const key_in *k);
} keywords[] = {
    {"type", key_type},
    {"enum", key_enum},
    {"const", key_const},
    {"minLength", key_length_min},
    {"maxLength", key_length_max},
    {"pattern", key_pattern},
    {"format", key_format},
    {"minimum", key_minimum},
    {"maximum", key_maximum},
    {"exclusiveMinimum", key_above},
    {"exclusiveMaximum", key_below},
    {"multipleOf", key_multiple},
    {"minItems", key_items_min},
    {"maxItems", key_items_max},
    {"uniqueItems", key_unique},
    {"items", key_part},
    {"prefixItems", key_part},
    {"additionalItems", key_part},
    {"minProperties", key_members_min},
    {"maxProperties", key_members_max},
    {"properties", key_part},
    {"patternProperties", key_part},
    {"additionalProperties", key_part},
    {"required", key_required},
    {"propertyNames", key_names},
    {"$ref", key_ref},
    {"allOf", key_all},
    {"anyOf", key_any},
    {"oneOf", key_one},
    {"not", key_not},
    {"if", key_refused},
    {"then", key_refused},
    {"else", key_refused},
    {"contains", key_contains},
    {"dependentRequired", key_refused},
    {"dependentSchemas", key_refused},
    {"dependencies", key_refused},
    {"unevaluatedItems", key_refused},
    {"unevaluatedProperties", key_refused},
    {"$dynamicRef", key_refused},
    {"$recursiveRef", key_refused},
};

static bool flatten(schemas *s, flat *f, snode n, int depth) {
    for (size_t i = 0; i < f->seen.n; i++)
        if (f->seen.p[i].j == n.j) return true;
    snode_push(&f->seen, n);
    if (json_is(n.j, JSON_BOOL)) {
        f->never |= !n.j->boolean;
        return true;
    }
    if (!json_is(n.j, JSON_OBJECT))
        return schema_fail(s, n.path, "a schema must be an object, true or false, not %s", json_type_name(n.j)), false;
    if (depth > FLATTEN_DEPTH) return schema_fail(s, n.path, "schemas refer to each other too deeply"), false;
    if (++s->work > WORK_MAX) return schema_fail(s, s->path, "the schema is too large"), false;
    for (uint32_t i = 0; i < n.j->n; i++) {
        str key = n.j->members[i].key;
        for (size_t k = 0; k < COUNT(keywords); k++) {
            if (!str_is(key, keywords[k].name)) continue;
            f->any_keyword = true;
            key_in in = {s, f, n.j, &n.j->members[i].value, path_add(s, n.path, key), depth};
            if (!keywords[k].read(&in)) return false;
            break;
        }
    }
    return true;
}

static void flat_init(flat *f) {
    *f = (flat){.types = T_ALL, .length_max = GX_INF, .items_max = GX_INF, .members_max = GX_INF};
}
static snodes snodes_copy(const snodes *l) {
    snodes c = {0};
    for (size_t i = 0; i < l->n; i++) snode_push(&c, l->p[i]);
    return c;
}
static void flat_copy(flat *to, const flat *f) {
    *to = *f;
    to->values = mem_alloc((f->n_values + 1) * sizeof *to->values);
    if (f->n_values) memcpy(to->values, f->values, f->n_values * sizeof *to->values);
    snodes *own[] = {&to->multiple, &to->pattern, &to->format,  &to->not, &to->parts,
                     &to->required, &to->names,   &to->choices, &to->seen};
    for (size_t i = 0; i < COUNT(own); i++) *own[i] = snodes_copy(own[i]);
}
static void flat_deinit(flat *f) {
    snodes *own[] = {&f->multiple, &f->pattern, &f->format,  &f->not, &f->parts,
                     &f->required, &f->names,   &f->choices, &f->seen};
    for (size_t i = 0; i < COUNT(own); i++) free(own[i]->p);
    free(f->values);
}

/* ---- types ------------------------------------------------------------------------------------------------------- */
static unsigned value_bits(const json *v) {
    static const unsigned bits[] = {T_NULL, T_BOOL, T_INT, T_REAL, T_STRING, T_ARRAY, T_OBJECT};
    if (v->type == JSON_REAL && json_real(v, 0.5) == floor(json_real(v, 0.5))) return T_INT | T_REAL;
    return bits[v->type];
}
static bool value_fits(const flat *f, const json *v) {
    if (!(f->types & value_bits(v))) return false;
    if (json_is_number(v)) {
        double x = json_real(v, 0);
        if (f->low.v && !(f->low.strict ? x > json_real(f->low.v, 0) : x >= json_real(f->low.v, 0))) return false;
        if (f->high.v && !(f->high.strict ? x < json_real(f->high.v, 0) : x <= json_real(f->high.v, 0))) return false;
    }
    if (v->type == JSON_ARRAY) return v->n >= f->items_min && v->n <= f->items_max;
    if (v->type != JSON_OBJECT) return true;
    for (size_t i = 0; i < f->required.n; i++)
        if (!pointer_step(v, f->required.p[i].j->string)) return false;
    return v->n >= f->members_min && v->n <= f->members_max;
}
static gx build_values(schemas *s, const flat *f, const char *path) {
    gx_list l = {0};
    builder *b = s->b;
    gx strings = GX_NEVER;
    for (size_t i = 0; i < f->n_values; i++) {
        if (!value_fits(f, f->values[i])) continue;
        gx x = json_constant(b, s->f, f->values[i]);
        if (f->values[i]->type == JSON_STRING &&
            (f->pattern.n || f->format.n || f->length_min || f->length_max != GX_INF)) {
            if (strings == GX_NEVER) strings = schema_string(s, f, path);
            x = gx_and(b, x, strings, false);
        }
        gx_push(&l, x);
    }
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}
static gx build_types(schemas *s, const flat *f, const char *path) {
    builder *b = s->b;
    if (f->never || !f->types) return GX_NEVER;
    if (f->has_values) return build_values(s, f, path);
    bool parts = f->parts.n || f->required.n || f->names.n || f->members_min || f->members_max != GX_INF ||
                 f->items_min || f->items_max != GX_INF || f->unique;
    bool scalars = f->low.v || f->high.v || f->multiple.n || f->pattern.n || f->format.n || f->length_min ||
                   f->length_max != GX_INF;
    if (f->types == T_ALL && !parts && !scalars) return s->f->value;
    gx_list l = {0};
    if (f->types & T_OBJECT) gx_push(&l, parts ? schema_object(s, f, path) : s->f->object);
    if (f->types & T_ARRAY) gx_push(&l, parts ? schema_array(s, f, path) : s->f->array);
    if (f->types & T_STRING) gx_push(&l, schema_string(s, f, path));
    if (f->types & (T_INT | T_REAL)) gx_push(&l, schema_number(s, f, path));
    if (f->types & T_BOOL) gx_push(&l, GX_ALT(b, GX_LIT(b, "true"), GX_LIT(b, "false")));
    if (f->types & T_NULL) gx_push(&l, GX_LIT(b, "null"));
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}

/* `not` of types is exact; of values and of strings it is a difference of texts. */
static gx without(schemas *s, flat *f, gx (*build)(schemas *, const flat *, const char *), const char *path) {
    builder *b = s->b;
    gx_list cut = {0};
    for (size_t i = 0; i < f->not .n && !b->failed; i++) {
        flat n;
        flat_init(&n);
        snode inner = f->not .p[i];
        if (!flatten(s, &n, inner, 0)) {
            flat_deinit(&n);
            break;
        }
        flat bare = n;
        bool only_types = !n.has_values && !n.choices.n && !n.parts.n && !n.required.n && !n.names.n && !n.low.v &&
                          !n.high.v && !n.multiple.n && !n.pattern.n && !n.format.n && !n.not .n && !n.length_min &&
                          n.length_max == GX_INF && !n.items_min && n.items_max == GX_INF && !n.members_min &&
                          n.members_max == GX_INF && !n.unique;
        bool texts = n.has_values && !n.choices.n && !n.not .n && !n.parts.n;
        for (size_t k = 0; k < n.n_values; k++)
            texts &= n.values[k]->type != JSON_OBJECT && n.values[k]->type != JSON_ARRAY;
        bool strings = !n.choices.n && !n.not .n && !n.parts.n && !n.required.n && !n.low.v && !n.high.v &&
                       !n.multiple.n && !n.has_values && !n.items_min && n.items_max == GX_INF && !n.members_min &&
                       n.members_max == GX_INF && !n.unique && !n.names.n;
        if (only_types)
            f->never |= n.never ? false : (f->types &= ~n.types) == 0;
        else if (texts)
            gx_push(&cut, build_values(s, &bare, inner.path));
        else if (strings && !((f->types & n.types) & ~(unsigned)T_STRING))
            gx_push(&cut, schema_string(s, &bare, inner.path));
        else
            schema_fail(s, inner.path, "only the negation of types, of values and of restricted strings is supported");
        flat_deinit(&n);
    }
    gx x = build(s, f, path);
    for (size_t i = 0; i < cut.n; i++) x = gx_and(b, x, cut.p[i], true);
    free(cut.p);
    return x;
}

/* ---- oneOf ------------------------------------------------------------------------------------------------------- */
/* Values that both have for a member that both require, all different: an object is of one branch at most. */
static bool told_apart(const flat *x, const flat *y) {
    for (size_t i = 0; i < x->parts.n; i++) {
        const json *px = json_get(x->parts.p[i].j, "properties");
        for (uint32_t k = 0; json_is(px, JSON_OBJECT) && k < px->n; k++)
            for (size_t j = 0; j < y->parts.n; j++) {
                const json *a = json_get(&px->members[k].value, "const");
                const json *b =
                    json_get(pointer_step(json_get(y->parts.p[j].j, "properties"), px->members[k].key), "const");
                bool rx = false, ry = false;
                for (size_t r = 0; r < x->required.n; r++) rx |= str_eq(x->required.p[r].j->string, px->members[k].key);
                for (size_t r = 0; r < y->required.n; r++) ry |= str_eq(y->required.p[r].j->string, px->members[k].key);
                if (a && b && rx && ry && !json_same(a, b)) return true;
            }
    }
    return false;
}
static bool apart(schemas *s, const snode c) {
    flat *f = mem_alloc(c.j->n * sizeof *f);
    bool ok = true;
    for (uint32_t i = 0; i < c.j->n; i++) {
        flat_init(&f[i]);
        ok = ok && flatten(s, &f[i], (snode){.j = &c.j->items[i], .path = c.path}, 0);
        if (f[i].has_values) {
            unsigned bits = 0;
            for (size_t k = 0; k < f[i].n_values; k++) bits |= value_bits(f[i].values[k]);
            f[i].types &= bits;
        }
    }
    for (uint32_t i = 0; i < c.j->n && ok; i++)
        for (uint32_t k = i + 1; k < c.j->n && ok; k++) {
            unsigned both = f[i].types & f[k].types;
            ok = !both || (both == T_OBJECT && told_apart(&f[i], &f[k]));
        }
    for (uint32_t i = 0; i < c.j->n; i++) flat_deinit(&f[i]);
    free(f);
    return ok;
}
/* Each branch without the others: differences of texts. */
static void only_one(schemas *s, gx_list *l, const char *path) {
    builder *b = s->b;
    gx_list out = {0}, rest = {0};
    if (l->n > ONE_OF_MAX) {
        schema_fail(s, path, "oneOf with %zu branches that may overlap; at most %d", l->n, ONE_OF_MAX);
        return;
    }
    for (size_t i = 0; i < l->n; i++) {
        if (l->p[i] == GX_NEVER || b->x[l->p[i]].kind == X_RULE) continue;
        uint32_t rule = gx_rule_new(b, path);
        gx_rule_define(b, rule, l->p[i]);
        l->p[i] = gx_call(b, rule);
    }
    for (size_t i = 0; i < l->n; i++) {
        rest.n = 0;
        for (size_t k = 0; k < l->n; k++)
            if (k != i) gx_push(&rest, l->p[k]);
        gx_push(&out, gx_and(b, l->p[i], gx_alt(b, rest.p, rest.n), true));
    }
    free(l->p);
    free(rest.p);
    *l = out;
}

static gx build_flat(schemas *s, flat *f, size_t choice, const char *path) {
    builder *b = s->b;
    if (b->failed || f->never || !f->types) return GX_NEVER;
    if (++s->work > WORK_MAX) return schema_fail(s, s->path, "the schema is too large: too many combinations");
    if (choice == f->choices.n) return f->not .n ? without(s, f, build_types, path) : build_types(s, f, path);
    const snode c = f->choices.p[choice];
    gx_list l = {0};
    flat bare;
    flat_init(&bare);
    bool alone = f->choices.n == 1 && f->types == T_ALL && !f->has_values && !f->low.v && !f->high.v &&
                 !f->multiple.n && !f->pattern.n && !f->format.n && !f->not .n && !f->parts.n && !f->required.n &&
                 !f->names.n && !f->length_min && f->length_max == GX_INF && !f->items_min && f->items_max == GX_INF &&
                 !f->members_min && f->members_max == GX_INF && !f->unique;
    for (uint32_t i = 0; i < c.j->n && !b->failed; i++) {
        snode n = {.j = &c.j->items[i], .path = arena_printf(b->a, "%s[%u]", c.path, i)};
        if (alone) {
            gx_push(&l, schema_of(s, &n, 1));
            continue;
        }
        flat g;
        flat_copy(&g, f);
        if (flatten(s, &g, n, 0)) gx_push(&l, build_flat(s, &g, choice + 1, path));
        flat_deinit(&g);
    }
    if (c.one && l.n > 1 && !b->failed && !apart(s, c)) only_one(s, &l, path);
    gx x = gx_alt(b, l.p, l.n);
    free(l.p);
    return x;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */
static int snode_order(const void *a, const void *b) {
    const snode *x = a, *y = b;
    return x->j < y->j ? -1 : x->j > y->j;
}
gx schema_of(schemas *s, const snode *list, size_t n) {
    builder *b = s->b;
    if (b->failed) return GX_NEVER;
    snode *own = arena_array(b->a, snode, n + 1);
    if (n) memcpy(own, list, n * sizeof *own);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (json_is(own[i].j, JSON_BOOL) && !own[i].j->boolean) return GX_NEVER;
        if (!json_is(own[i].j, JSON_BOOL)) own[kept++] = own[i];
    }
    if (!kept) return s->f->value;
    qsort(own, kept, sizeof *own, snode_order);
    buf key = {0};
    buf_printf(&key, "schema %d:", s->f->style);
    for (size_t i = 0; i < kept; i++) buf_add(&key, &own[i].j, sizeof own[i].j);
    uint64_t rule;
    if (!map_get(b->known, buf_view(&key), &rule)) {
        rule = gx_rule_new(b, own[0].path);
        map_set(b->known, buf_view(&key), rule);
        if (s->n_job == s->cap_job) s->job = mem_resize(s->job, (s->cap_job = s->cap_job * 2 + 16) * sizeof *s->job);
        s->job[s->n_job++] = (struct job){(uint32_t)rule, own, kept};
    }
    buf_free(&key);
    return gx_call(b, (uint32_t)rule);
}
gx schema_build(builder *b, const json *document, const json *schema, const json_forms *f, const char *path) {
    schemas s = {.b = b, .f = f, .root = document, .path = arena_copy(b->a, path, strlen(path))};
    gx root = schema_of(&s, &(snode){.j = schema, .path = s.path}, 1);
    for (size_t i = 0; i < s.n_job && !b->failed; i++) { /* jobs add jobs: no recursion, however deep the schema */
        struct job j = s.job[i];
        flat all;
        flat_init(&all);
        bool ok = true;
        for (size_t k = 0; k < j.n && ok; k++) ok = flatten(&s, &all, j.list[k], 0);
        if (ok) gx_rule_define(b, j.rule, build_flat(&s, &all, 0, j.list[0].path));
        flat_deinit(&all);
    }
    free(s.job);
    return root;
}
