/* Objects and arrays of a schema. Members come in the order in which the schema declares them, optional ones may be
 * left out, then come those that are not declared: one order, so that the automaton need not remember what was written.
 * Not here: values (grammar_schema.c). */
#include <stdio.h>
#include <stdlib.h>
#include "grammar_schema.h"

enum { PATTERNS_MAX = 5, MEMBERS_MAX = 3000, PLACES_MAX = 60000, PREFIX_MAX = 100 };

typedef struct object {
    schemas *s;
    const flat *f;
    const char *path;
    str *key; /* owns [n] declared, then required */
    uint8_t *needed;
    size_t n, cap;
    map *index;
    snodes patterns; /* distinct, as string nodes */
    gx *pattern;     /* owns: as expressions */
    gx names;        /* what propertyNames allows, with quotes; GX_EMPTY: anything */
} object;

/* ---- names ------------------------------------------------------------------------------------------------------- */
static void key_add(object *o, str key) {
    uint64_t at;
    if (map_get(o->index, key, &at)) return;
    if (o->n == o->cap) {
        o->cap = o->cap * 2 + 16;
        o->key = mem_resize(o->key, o->cap * sizeof *o->key);
        o->needed = mem_resize(o->needed, o->cap);
    }
    map_set(o->index, key, o->n);
    o->needed[o->n] = 0;
    o->key[o->n++] = key;
}
static void pattern_add(object *o, snode p) {
    for (size_t i = 0; i < o->patterns.n; i++)
        if (str_eq(o->patterns.p[i].j->string, p.j->string)) return;
    snode_push(&o->patterns, p);
}
static void collect(object *o) {
    schemas *s = o->s;
    for (size_t i = 0; i < o->f->parts.n; i++) {
        const snode part = o->f->parts.p[i];
        const json *props = json_get(part.j, "properties"), *pats = json_get(part.j, "patternProperties");
        if (props && !json_is(props, JSON_OBJECT))
            schema_fail(s, path_add(s, part.path, STR("properties")), "must be an object");
        if (pats && !json_is(pats, JSON_OBJECT))
            schema_fail(s, path_add(s, part.path, STR("patternProperties")), "must be an object");
        if (s->b->failed) return;
        for (uint32_t k = 0; props && k < props->n; k++) key_add(o, props->members[k].key);
        for (uint32_t k = 0; pats && k < pats->n; k++) {
            json *node = arena_alloc(s->b->a, sizeof *node);
            *node = json_of_str(pats->members[k].key);
            pattern_add(o, (snode){.j = node,
                                   .path = path_add(s, path_add(s, part.path, STR("patternProperties")),
                                                    pats->members[k].key)});
        }
    }
    for (size_t i = 0; i < o->f->required.n; i++) {
        uint64_t at;
        key_add(o, o->f->required.p[i].j->string);
        if (map_get(o->index, o->f->required.p[i].j->string, &at)) o->needed[at] = 1;
    }
    if (o->patterns.n > PATTERNS_MAX)
        schema_fail(s, o->path, "%zu different patternProperties apply; at most %d are supported", o->patterns.n,
                    PATTERNS_MAX);
    o->pattern = mem_alloc((o->patterns.n + 1) * sizeof *o->pattern);
    for (size_t i = 0; i < o->patterns.n && !s->b->failed; i++)
        o->pattern[i] = regex_build(s->b, o->patterns.p[i].j->string, REGEX_QUOTED | REGEX_SEARCH | REGEX_ECMA,
                                    o->patterns.p[i].path);
    o->names = GX_EMPTY;
    if (o->f->names.n) {
        json *strings = arena_alloc(s->b->a, sizeof *strings);
        json_builder type = {.a = s->b->a};
        json_put(&type, "type", json_of_str(STR("string")));
        *strings = *json_built(&type);
        snodes l = {0};
        for (size_t i = 0; i < o->f->names.n; i++) snode_push(&l, o->f->names.p[i]);
        snode_push(&l, (snode){.j = strings, .path = o->path});
        o->names = schema_of(s, l.p, l.n);
        free(l.p);
    }
}
/* Does this text match? Asked while compiling, of names that are declared. */
static bool pattern_matches(object *o, size_t p, str name) {
    grammar_spec spec = {.kind = GRAMMAR_REGEX, .text = o->patterns.p[p].j->string};
    builder b;
    error err = {0};
    builder_init(&b, &err);
    grammar *g = mem_alloc(sizeof *g);
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->mu, NULL);
    gx root = regex_build(&b, spec.text, REGEX_SEARCH | REGEX_ECMA, o->patterns.p[p].path);
    bool yes = false;
    if (!b.failed && gx_check(&b, &root) && program_emit(&g->p, &b, root, &err) && machine_open(g, &err)) {
        matcher *m = matcher_new(g);
        yes = matcher_accept_bytes(m, name) && matcher_can_end(m);
        matcher_free(m);
    }
    builder_deinit(&b);
    grammar_drop(g);
    return yes;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */
static bool part_allows(object *o, const snode part, str name, unsigned matched, bool declared, snodes *out) {
    schemas *s = o->s;
    const json *pats = json_get(part.j, "patternProperties"), *props = json_get(part.j, "properties");
    bool covered = false;
    for (uint32_t k = 0; declared && props && k < props->n; k++)
        if (str_eq(props->members[k].key, name)) {
            snode_push(out, (snode){.j = &props->members[k].value,
                                    .path = path_add(s, path_add(s, part.path, STR("properties")), name)});
            covered = true;
            break;
        }
    for (uint32_t k = 0; pats && k < pats->n; k++)
        for (size_t i = 0; i < o->patterns.n; i++) {
            if (!(matched >> i & 1) || !str_eq(o->patterns.p[i].j->string, pats->members[k].key)) continue;
            snode_push(out, (snode){.j = &pats->members[k].value, .path = o->patterns.p[i].path});
            covered = true;
        }
    const json *more = json_get(part.j, "additionalProperties");
    if (!covered && more)
        snode_push(out, (snode){.j = more, .path = path_add(s, part.path, STR("additionalProperties"))});
    return true;
}
static gx member(object *o, gx quoted, snodes *list) {
    builder *b = o->s->b;
    gx key = o->names == GX_EMPTY ? quoted : gx_and(b, quoted, o->names, false);
    gx value = schema_of(o->s, list->p, list->n);
    free(list->p);
    return value == GX_NEVER ? GX_NEVER : GX_SEQ(b, key, o->s->f->colon, value);
}
static gx member_declared(object *o, str name) {
    builder *b = o->s->b;
    unsigned matched = 0;
    for (size_t i = 0; i < o->patterns.n; i++) matched |= (unsigned)pattern_matches(o, i, name) << i;
    snodes list = {0};
    for (size_t i = 0; i < o->f->parts.n; i++) part_allows(o, o->f->parts.p[i], name, matched, true, &list);
    return member(o, GX_SEQ(b, GX_LIT(b, "\""), json_literal(b, name), GX_LIT(b, "\"")), &list);
}
/* Members that are not declared: one form for each set of patterns that a name may match. */
static gx member_other(object *o) {
    builder *b = o->s->b;
    gx_list forms = {0}, declared = {0};
    cp_range all = {0, 0x10FFFF};
    gx any = gx_rep(b, json_chars(b, &(cp_set){.p = &all, .n = 1}, true), 0, GX_INF), quote = GX_LIT(b, "\"");
    for (size_t i = 0; i < o->n; i++) gx_push(&declared, json_literal(b, o->key[i]));
    if (o->n) any = gx_and(b, any, gx_alt(b, declared.p, declared.n), true);
    for (unsigned set = 0; set < 1u << o->patterns.n && !b->failed; set++) {
        snodes list = {0};
        for (size_t i = 0; i < o->f->parts.n; i++) part_allows(o, o->f->parts.p[i], (str){0}, set, false, &list);
        bool never = false;
        for (size_t i = 0; i < list.n; i++) never |= json_is(list.p[i].j, JSON_BOOL) && !list.p[i].j->boolean;
        if (never) {
            free(list.p);
            continue;
        }
        gx key = any;
        for (size_t i = 0; i < o->patterns.n; i++) key = gx_and(b, key, o->pattern[i], !(set >> i & 1));
        gx_push(&forms, member(o, GX_SEQ(b, quote, key, quote), &list));
    }
    gx x = gx_alt(b, forms.p, forms.n);
    free(forms.p);
    free(declared.p);
    return x;
}

/* Members that are not declared, when all declared ones are through and `done` were written; *end: none is fine too. */
static gx others(object *o, gx other, uint32_t done, bool *end) {
    builder *b = o->s->b;
    const uint32_t min = o->f->members_min, max = o->f->members_max;
    uint32_t lo = min > done ? min - done : 0, hi = max == GX_INF ? GX_INF : max - done;
    *end = lo == 0;
    if (other == GX_NEVER || hi == 0) return GX_NEVER;
    gx next = GX_SEQ(b, o->s->f->comma, other);
    return GX_SEQ(b, other, gx_rep(b, next, lo ? lo - 1 : 0, hi == GX_INF ? GX_INF : hi - 1));
}
static gx as_rule(object *o, gx x) { /* what is used more than once must be a rule */
    builder *b = o->s->b;
    if (x == GX_NEVER || x == GX_EMPTY || b->failed) return x;
    uint32_t rule = gx_rule_new(b, o->path);
    gx_rule_define(b, rule, x);
    return gx_call(b, rule);
}
/* next[c]: the members from i on, at least one, when c were written before (c capped); ends[c]: there may be none.
 * Built from the last to the first. */
static gx members(object *o) {
    builder *b = o->s->b;
    const uint32_t min = o->f->members_min, max = o->f->members_max, n = (uint32_t)o->n;
    uint32_t needed = 0;
    for (uint32_t i = 0; i < n; i++) needed += o->needed[i];
    if (needed > max || min > max) return GX_NEVER;
    uint32_t cap = max < GX_INF ? n : min > needed ? MAX(MIN(min, n), 1u) : 1;
    if (n > MEMBERS_MAX || (uint64_t)cap * n > PLACES_MAX)
        return schema_fail(o->s, o->path, "%u declared properties, counted up to %u, are too many", n, cap);
    gx other = member_other(o), *next = mem_alloc((cap + 2) * sizeof *next);
    bool *ends = mem_alloc(cap + 2);
    for (uint32_t c = 0; c <= cap; c++) next[c] = c > max ? GX_NEVER : as_rule(o, others(o, other, c, &ends[c]));
    for (uint32_t i = n; i-- > 0 && !b->failed;) {
        gx one = as_rule(o, member_declared(o, o->key[i]));
        for (uint32_t c = 0; c <= MIN(i, cap); c++) { /* upwards: [c] is what comes after i until it is overwritten */
            uint32_t then = MIN(c + 1, cap);
            gx after = next[then] == GX_NEVER ? GX_NEVER : GX_SEQ(b, o->s->f->comma, next[then]);
            if (ends[then]) after = gx_opt(b, after);
            gx with = then > max ? GX_NEVER : GX_SEQ(b, one, after);
            next[c] = as_rule(o, o->needed[i] ? with : GX_ALT(b, with, next[c]));
            ends[c] = ends[c] && !o->needed[i];
        }
    }
    gx x = ends[0] ? gx_opt(b, next[0]) : next[0];
    free(next);
    free(ends);
    return x;
}
gx schema_object(schemas *s, const flat *f, const char *path) {
    object o = {.s = s, .f = f, .path = path, .index = map_new(16)};
    collect(&o);
    gx x = s->b->failed ? GX_NEVER : json_object_of(s->b, s->f, members(&o));
    free(o.key);
    free(o.needed);
    free(o.patterns.p);
    free(o.pattern);
    map_free(o.index);
    return x;
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */
/* The schemas of item i of one part; the prefix is `prefixItems`, or an array in `items` (drafts 4 to 7). */
static void part_item(schemas *s, const snode part, uint32_t i, snodes *out) {
    const json *prefix = json_get(part.j, "prefixItems"), *items = json_get(part.j, "items");
    const char *more = "items", *first = "prefixItems";
    if (!prefix && json_is(items, JSON_ARRAY)) {
        prefix = items;
        items = json_get(part.j, "additionalItems");
        first = "items";
        more = "additionalItems";
    }
    if (prefix && i < prefix->n)
        snode_push(out,
                   (snode){.j = json_at(prefix, i), .path = arena_printf(s->b->a, "%s.%s[%u]", part.path, first, i)});
    else if (items)
        snode_push(out, (snode){.j = items, .path = path_add(s, part.path, str_of(more))});
}
static uint32_t part_prefix(const json *part) {
    const json *prefix = json_get(part, "prefixItems"), *items = json_get(part, "items");
    if (json_is(prefix, JSON_ARRAY)) return prefix->n;
    return json_is(items, JSON_ARRAY) ? items->n : 0;
}
static gx item_at(schemas *s, const flat *f, uint32_t i) {
    snodes l = {0};
    for (size_t k = 0; k < f->parts.n; k++) part_item(s, f->parts.p[k], i, &l);
    gx x = schema_of(s, l.p, l.n);
    free(l.p);
    return x;
}
gx schema_array(schemas *s, const flat *f, const char *path) {
    builder *b = s->b;
    const uint32_t min = f->items_min, max = f->items_max;
    uint32_t prefix = 0;
    for (size_t k = 0; k < f->parts.n; k++) prefix = MAX(prefix, part_prefix(f->parts.p[k].j));
    if (prefix > PREFIX_MAX)
        return schema_fail(s, path, "%u prefix items; at most %d are supported", prefix, PREFIX_MAX);
    if (f->unique && max > 1)
        return schema_fail(s, f->unique, "this keyword is not supported (an automaton cannot compare)");
    if (min > max) return GX_NEVER;
    gx item = item_at(s, f, prefix);
    gx more = GX_SEQ(b, s->f->comma, item);
    uint32_t lo = min > prefix ? min - prefix : 0, hi = max == GX_INF ? GX_INF : max > prefix ? max - prefix : 0;
    gx x;
    if (prefix) {
        x = gx_rep(b, more, lo, hi);
    } else { /* the first has no comma */
        x = hi ? GX_SEQ(b, item, gx_rep(b, more, lo ? lo - 1 : 0, hi == GX_INF ? GX_INF : hi - 1)) : GX_EMPTY;
        if (!lo) x = gx_opt(b, x);
    }
    for (uint32_t i = prefix; i-- > 0;) { /* may end before item i if there are enough */
        x = i < max ? GX_SEQ(b, i ? s->f->comma : GX_EMPTY, item_at(s, f, i), x) : GX_NEVER;
        if (i >= min) x = gx_opt(b, x);
    }
    return json_array_of(b, s->f, x);
}
