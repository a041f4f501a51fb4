/* Jinja: filters that make text. Every byte keeps its provenance; what a filter adds (an indent, "...", &lt;) is the
 * template's, except escapes, which stand for the user's character. Not here: sequences and numbers (jinja_filters.c),
 * json (jinja_json.c). */
#include <math.h>
#include <stdio.h>
#include "jinja_internal.h"

#define FILTER(name) static value name(core *c, value self, value *v, const args *a)

static bool given(value v) {
    return !v_is(v, V_MISSING) && !v_is(v, V_NONE);
}
static bool flag(core *c, value v) {
    return !v_is(v, V_MISSING) && truthy(c, v);
}
static int64_t integer(core *c, value v, int64_t otherwise, const char *what) {
    return v_is(v, V_MISSING) ? otherwise : index_of(c, v, what);
}
static value method(core *c, value self, const char *name, value arg) {
    return str_method(c, value_str(c, self), name, &(args){.pos = &arg, .n = !v_is(arg, V_MISSING)});
}
/* str(): the same text, not markup */
static jstr *plain(core *c, value v) {
    jstr *s = value_str(c, v);
    if (!s->markup) return s;
    s = str_sub(c, s, 0, s->n);
    s->markup = false;
    return s;
}
static value marked(core *c, jstr *s) {
    s = str_sub(c, s, 0, s->n);
    s->markup = true;
    return v_str(s);
}

FILTER(f_upper) {
    return method(c, self, "upper", v_missing());
}
FILTER(f_lower) {
    return method(c, self, "lower", v_missing());
}
FILTER(f_capitalize) {
    return method(c, self, "capitalize", v_missing());
}
FILTER(f_trim) {
    return method(c, self, "strip", v[0]);
}
FILTER(f_center) {
    return method(c, self, "center", v_int(integer(c, v[0], 80, "width")));
}
FILTER(f_string) {
    return v_str(value_str(c, self));
}
FILTER(f_safe) {
    return marked(c, value_str(c, self));
}
FILTER(f_escape) {
    jstr *s = value_str(c, self);
    return s->markup ? v_str(s) : v_str(str_escape(c, s));
}
FILTER(f_forceescape) {
    return v_str(str_escape(c, value_str(c, self)));
}

FILTER(f_title) {
    const jstr *s = value_str(c, self);
    sbuf b;
    sb_init(&b, c);
    bool first = true;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(s->p, s->n, &i);
        bool split = cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || cp_space(cp);
        sb_case(&b, s, at, i, first && !split ? CASE_UPPER : CASE_LOWER);
        first = split;
    }
    return v_str(sb_done(&b));
}

FILTER(f_replace) {
    value args3[3] = {v_str(plain(c, v[0])), v_str(plain(c, v[1])), given(v[2]) ? v[2] : v_int(-1)};
    return str_method(c, plain(c, self), "replace", &(args){.pos = args3, .n = 3});
}

FILTER(f_join) {
    jstr *sep = v_is(v[0], V_MISSING) ? str_lit(c, "") : plain(c, v[0]);
    value map_args = v[1];
    jstr *name = str_lit(c, "attribute");
    if (!can_iterate(self)) jinja_fail(c, "'%s' object is not iterable", type_name(self));
    if (given(v[1]))
        self = filter_apply(c, str_lit(c, "map"), self, &(args){.names = &name, .named = &map_args, .n_named = 1});
    sbuf b;
    sb_init(&b, c);
    iter it;
    value item;
    iter_begin(c, &it, self);
    for (bool first = true; iter_next(c, &it, &item); first = false) {
        if (!first) sb_str(&b, sep);
        sb_value(&b, item);
    }
    return v_str(sb_done(&b));
}

FILTER(f_format) {
    jstr *f = value_str(c, self);
    if (a->n && a->n_named) jinja_fail(c, "can't handle positional and keyword arguments at the same time");
    if (a->n_named) {
        jdict *d = dict_new(c);
        for (size_t i = 0; i < a->n_named; i++) dict_set(c, d, v_str(a->names[i]), a->named[i]);
        return format_percent(c, f, v_dict(d));
    }
    jlist *l = list_new(c, a->n);
    for (size_t i = 0; i < a->n; i++) list_push(c, l, a->pos[i]);
    return format_percent(c, f, v_tuple(l));
}

FILTER(f_indent) {
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (!v_is(self, V_STR)) jinja_fail(c, "unsupported operand type(s) for +=: '%s' and 'str'", type_name(self));
    jstr *s = self.s, *by;
    if (v_is(v[0], V_STR))
        by = v[0].s;
    else {
        sbuf spaces;
        sb_init(&spaces, c);
        sb_pad(&spaces, ' ', integer(c, v[0], 4, "width"));
        by = sb_done(&spaces);
    }
    bool first = flag(c, v[1]), blank = flag(c, v[2]);
    sbuf b;
    sb_init(&b, c);
    if (first) sb_str(&b, by);
    /* one line more than splitlines: the text is taken as ending with a line end */
    for (size_t i = 0, line = 0;; line++) {
        size_t end = s->n, next = i < s->n ? str_line(s, i, &end) : s->n;
        bool last = i >= s->n || (next == s->n && end == s->n);
        if (line) sb_puts(&b, "\n");
        if (line && (blank || end > i)) sb_str(&b, by);
        sb_slice(&b, s, MIN(i, s->n), end);
        if (last) break;
        i = next;
        if (i == s->n) { /* the text ended with a line end: an empty line follows */
            sb_puts(&b, "\n");
            if (blank) sb_str(&b, by);
            break;
        }
    }
    jstr *out = sb_done(&b);
    out->markup = s->markup;
    return v_str(out);
}

FILTER(f_truncate) {
    int64_t length = integer(c, v[0], 255, "length"), leeway = given(v[3]) ? index_of(c, v[3], "leeway") : 5;
    jstr *end = v_is(v[2], V_MISSING) ? str_lit(c, "...") : value_str(c, v[2]);
    int64_t tail = (int64_t)str_chars(end);
    if (length < tail) jinja_fail(c, "expected length >= %lld, got %lld", (long long)tail, (long long)length);
    if (leeway < 0) jinja_fail(c, "expected leeway >= 0, got %lld", (long long)leeway);
    int64_t n = value_len(c, self);
    if (n < 0) jinja_fail(c, "object of type '%s' has no len()", type_name(self));
    if (n <= length || n - length <= leeway) return self;
    if (!v_is(self, V_STR)) jinja_fail(c, "truncate wants a string, not %s", type_name(self));
    jstr *cut = str_sub(c, self.s, 0, str_at(self.s, (size_t)(length - tail)));
    size_t space = flag(c, v[1]) ? SIZE_MAX : str_rsearch(c, cut, str_lit(c, " "), cut->n);
    if (space != SIZE_MAX) cut = str_sub(c, cut, 0, space);
    return op_binary(c, OP_ADD, v_str(cut), v_str(end));
}

FILTER(f_wordcount) {
    const jstr *s = value_str(c, self);
    int64_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < s->n;) {
        bool word = cp_word(utf8_next(s->p, s->n, &i));
        n += word && !inside;
        inside = word;
    }
    return v_int(n);
}

/* ---- wordwrap ---------------------------------------------------------------------------------------------------- */
typedef struct wrap {
    core *c;
    jstr *s;
    const jstr *sep;
    sbuf *out;
    int64_t width;
    bool break_long, hyphens;
} wrap;

/* The chunk that begins at i: white space, or a word, or a word up to and with its hyphen. */
static size_t wrap_chunk(const wrap *w, size_t i, size_t end) {
    const char *p = w->s->p;
    size_t k = i;
    if (str_space(p[k])) {
        while (k < end && str_space(p[k])) k++;
        return k;
    }
    for (; k < end && !str_space(p[k]); k++) {
        if (!w->hyphens || p[k] != '-' || k < i + 2 || k + 2 >= end) continue;
        size_t t = utf8_start(p, k - 1), f = k + 1;
        uint32_t before = utf8_next(p, end, &t), after = utf8_next(p, end, &f);
        uint32_t after2 = f < end ? utf8_next(p, end, &f) : 0;
        if ((cp_alpha(before) || (before == '-' && k > i + 2)) && cp_alpha(after) &&
            (cp_alpha(after2) || after2 == '-'))
            return k + 1;
    }
    return k;
}
static int64_t wrap_len(const wrap *w, size_t from, size_t to) {
    return (int64_t)str_chars(str_sub(w->c, w->s, from, to));
}

static void wrap_line(wrap *w, size_t i, size_t end) {
    bool first = true;
    while (i < end) {
        size_t from = i, to = i, k = i;
        int64_t used = 0;
        if (!first && str_space(w->s->p[i])) { /* a line does not begin with the space it was broken at */
            i = wrap_chunk(w, i, end);
            if (i >= end) break;
            from = to = k = i;
        }
        while (k < end) {
            size_t next = wrap_chunk(w, k, end);
            int64_t n = wrap_len(w, k, next);
            if (used + n > w->width) {
                bool alone = n > w->width;
                if (alone && w->break_long && w->width > used) {
                    int64_t room = MAX(w->width - used, 1);
                    for (k = to; room > 0 && k < next; room--) utf8_next(w->s->p, w->s->n, &k);
                    to = k;
                } else if (alone && k == from)
                    to = next;
                break;
            }
            used += n;
            to = k = next;
        }
        i = to;
        size_t shown = to;
        while (shown > from && str_space(w->s->p[shown - 1])) shown--;
        if (shown > from) {
            if (!first) sb_str(w->out, w->sep);
            sb_slice(w->out, w->s, from, shown);
            first = false;
        }
        jinja_step(w->c, 1);
    }
}

FILTER(f_wordwrap) {
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (!v_is(self, V_STR)) jinja_fail(c, "wordwrap wants a string, not %s", type_name(self));
    sbuf b;
    sb_init(&b, c);
    wrap w = {c,
              self.s,
              given(v[2]) ? value_str(c, v[2]) : str_lit(c, "\n"),
              &b,
              integer(c, v[0], 79, "width"),
              v_is(v[1], V_MISSING) || flag(c, v[1]),
              v_is(v[3], V_MISSING) || flag(c, v[3])};
    if (w.width <= 0) jinja_fail(c, "invalid width %lld (must be > 0)", (long long)w.width);
    for (size_t i = 0; i < self.s->n;) {
        size_t end, next = str_line(self.s, i, &end);
        if (i) sb_str(&b, w.sep);
        wrap_line(&w, i, end);
        i = next;
    }
    return v_str(sb_done(&b));
}

/* ---- HTML and URLs ----------------------------------------------------------------------------------------------- */
FILTER(f_striptags) {
    jstr *s = value_str(c, self);
    static const struct { const char *open, *close; } what[] = {{"<!--", "-->"}, {"<", ">"}};
    for (size_t k = 0; k < COUNT(what); k++) {
        sbuf b;
        sb_init(&b, c);
        const jstr *open = str_lit(c, what[k].open), *close = str_lit(c, what[k].close);
        size_t from = 0, at, end;
        while ((at = str_search(c, s, open, from)) != SIZE_MAX && (end = str_search(c, s, close, at)) != SIZE_MAX) {
            sb_slice(&b, s, from, at);
            from = end + close->n;
        }
        sb_slice(&b, s, from, s->n);
        s = sb_done(&b);
    }
    value words = method(c, v_str(s), "split", v_missing());
    value joined = str_method(c, str_lit(c, " "), "join", &(args){.pos = &words, .n = 1});
    static const struct {
        const char *entity, *text;
    } entities[] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
    for (size_t k = 0; k < COUNT(entities); k++) {
        value two[2] = {v_str(str_lit(c, entities[k].entity)), v_str(str_lit(c, entities[k].text))};
        joined = str_method(c, joined.s, "replace", &(args){.pos = two, .n = 2});
    }
    return joined;
}

static void url_quote(sbuf *b, value v, bool query) {
    const jstr *s = value_str(b->c, v);
    for (size_t i = 0; i < s->n; i++) {
        uint8_t ch = (uint8_t)s->p[i];
        char out[8];
        bool keep = (ch >= '0' && ch <= '9') || ((ch | 32) >= 'a' && (ch | 32) <= 'z') || (ch && strchr("_.-~", ch)) ||
                    (ch == '/' && !query);
        if (keep)
            snprintf(out, sizeof out, "%c", ch);
        else if (query && ch == ' ')
            snprintf(out, sizeof out, "+");
        else
            snprintf(out, sizeof out, "%%%02X", ch);
        sb_add(b, out, strlen(out), str_user_at(s, i));
    }
}
FILTER(f_urlencode) {
    sbuf b;
    sb_init(&b, c);
    if (v_is(self, V_STR) || !can_iterate(self)) {
        url_quote(&b, self, false);
        return v_str(sb_done(&b));
    }
    jlist *pairs = list_of(
        c, v_is(self, V_DICT) ? v_list(list_of(c, filter_apply(c, str_lit(c, "items"), self, &(args){0}))) : self);
    for (size_t i = 0; i < pairs->n; i++) {
        jlist *pair = list_of(c, pairs->v[i]);
        if (pair->n != 2) jinja_fail(c, "%s values to unpack (expected 2)", pair->n < 2 ? "not enough" : "too many");
        if (i) sb_puts(&b, "&");
        url_quote(&b, pair->v[0], true);
        sb_puts(&b, "=");
        url_quote(&b, pair->v[1], true);
    }
    return v_str(sb_done(&b));
}
FILTER(f_urlize) {
    jinja_fail(c, "the urlize filter is not supported: a prompt is not a page");
}

FILTER(f_xmlattr) {
    if (v_is(self, V_UNDEFINED)) undefined_fail(c, self);
    if (!v_is(self, V_DICT)) jinja_fail(c, "'%s' object has no attribute 'items'", type_name(self));
    sbuf b;
    sb_init(&b, c);
    for (size_t i = 0; i < self.dict->n; i++) {
        const jentry *e = &self.dict->e[i];
        if (v_is(e->val, V_NONE) || v_is(e->val, V_UNDEFINED)) continue;
        if (!v_is(e->key, V_STR)) jinja_fail(c, "expected string or bytes-like object, got '%s'", type_name(e->key));
        for (size_t k = 0; k < e->key.s->n; k++)
            if (e->key.s->p[k] && strchr(" \t\n\r\f\v/>=", e->key.s->p[k]))
                jinja_fail(c, "Invalid character in attribute name: %s", text_of(c, value_repr(c, e->key)));
        if (b.n || v_is(v[0], V_MISSING) || flag(c, v[0])) sb_puts(&b, " ");
        sb_str(&b, f_escape(c, e->key, v, a).s);
        sb_puts(&b, "=\"");
        sb_str(&b, f_escape(c, e->val, v, a).s);
        sb_puts(&b, "\"");
    }
    return v_str(sb_done(&b));
}

FILTER(f_filesizeformat) {
    static const char *const names[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    bool binary = flag(c, v[0]);
    double size, base = binary ? 1024 : 1000, unit = base;
    char out[64];
    if (v_is(self, V_STR) ? !str_to_float(c, self.s, &size) : !number_of(self, &size))
        jinja_fail(c, "could not convert %s to float", type_name(self));
    if (size == 1) return v_str(str_lit(c, "1 Byte"));
    if (size < base)
        snprintf(out, sizeof out, "%lld Bytes", (long long)float_to_int(c, size).i);
    else {
        int i = 0;
        for (unit *= base; i < 7 && size >= unit; i++) unit *= base;
        snprintf(out, sizeof out, "%.1f %s", base * size / unit, names[binary][i]);
    }
    return v_str(str_lit(c, arena_copy(c->a, out, strlen(out))));
}

/* ---- pprint: repr with sorted keys, one item a line once it is wider than a line --------------------------------- */
enum { PPRINT_WIDTH = 80 };
static value sorted_copy(core *c, value v) {
    jinja_guard(c);
    if (v_is(v, V_LIST) || v_is(v, V_TUPLE)) {
        jlist *l = list_new(c, v.list->n);
        for (size_t i = 0; i < v.list->n; i++) list_push(c, l, sorted_copy(c, v.list->v[i]));
        return v_is(v, V_LIST) ? v_list(l) : v_tuple(l);
    }
    if (!v_is(v, V_DICT)) return v;
    value *keys = jinja_array(c, value, v.dict->n), *vals = jinja_array(c, value, v.dict->n);
    bool text = true;
    for (size_t i = 0; i < v.dict->n; i++) {
        keys[i] = v.dict->e[i].key;
        vals[i] = sorted_copy(c, v.dict->e[i].val);
        text = text && v_is(keys[i], V_STR);
    }
    if (text) value_sort(c, vals, keys, v.dict->n, false);
    jdict *d = dict_new(c);
    for (size_t i = 0; i < v.dict->n; i++) dict_set(c, d, keys[i], vals[i]);
    return v_dict(d);
}
static void pprint(sbuf *b, value v, int64_t indent, int64_t after) {
    core *c = b->c;
    jinja_guard(c);
    jstr *flat = value_repr(c, v);
    bool list = v_is(v, V_LIST) || v_is(v, V_TUPLE);
    if ((!list && !v_is(v, V_DICT)) || (int64_t)str_chars(flat) + indent + after <= PPRINT_WIDTH) {
        sb_str(b, flat);
        return;
    }
    size_t n = list ? v.list->n : v.dict->n;
    sb_puts(b, list ? v_is(v, V_LIST) ? "[" : "(" : "{");
    for (size_t i = 0; i < n; i++) {
        if (i) {
            sb_puts(b, ",\n");
            sb_pad(b, ' ', indent + 1);
        }
        bool last = i + 1 == n;
        if (list)
            pprint(b, v.list->v[i], indent + 1, last ? after + 1 : 1);
        else {
            jstr *key = value_repr(c, v.dict->e[i].key);
            sb_str(b, key);
            sb_puts(b, ": ");
            pprint(b, v.dict->e[i].val, indent + 3 + (int64_t)str_chars(key), last ? after + 1 : 1);
        }
    }
    sb_puts(b, list ? v_is(v, V_LIST) ? "]" : n == 1 ? ",)" : ")" : "}");
}
FILTER(f_pprint) {
    sbuf b;
    sb_init(&b, c);
    pprint(&b, sorted_copy(c, self), 0, 0);
    return v_str(sb_done(&b));
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */
FILTER(f_tojson) {
    json_style s = {.ensure_ascii = flag(c, v[0]), .sort_keys = flag(c, v[3]), .key = str_lit(c, ": ")};
    s.item = str_lit(c, given(v[1]) ? "," : ", ");
    if (given(v[1]) && v_is(v[1], V_STR))
        s.indent = v[1].s;
    else if (given(v[1])) {
        sbuf spaces;
        sb_init(&spaces, c);
        sb_pad(&spaces, ' ', index_of(c, v[1], "indent"));
        s.indent = sb_done(&spaces);
    }
    if (given(v[2])) {
        jlist *two = list_of(c, v[2]);
        if (two->n != 2 || !v_is(two->v[0], V_STR) || !v_is(two->v[1], V_STR))
            jinja_fail(c, "separators must be two strings: (item, key)");
        s.item = two->v[0].s;
        s.key = two->v[1].s;
    }
    sbuf b;
    sb_init(&b, c);
    sb_json(&b, self, &s);
    return v_str(sb_done(&b));
}

/* Not Jinja2's and not Hugging Face's: some files written for llama.cpp parse tool arguments with it. */
FILTER(f_from_json) {
    if (!v_is(self, V_STR)) jinja_fail(c, "the JSON object must be str, bytes or bytearray, not %s", type_name(self));
    uint8_t user = self.s->user && !self.s->mask;
    for (size_t i = 0; self.s->mask && i < self.s->n; i++) user |= self.s->mask[i];
    error err = {0};
    const json *j = json_read(c->a, (str){self.s->p, self.s->n}, NULL, &err);
    if (!j) jinja_fail(c, "from_json: %s", err.msg);
    return value_of_json(c, j, user);
}

const func_def jinja_text_filters[] = {
    {"capitalize", f_capitalize, ""},
    {"center", f_center, "width"},
    {"e", f_escape, ""},
    {"escape", f_escape, ""},
    {"filesizeformat", f_filesizeformat, "binary"},
    {"forceescape", f_forceescape, ""},
    {"format", f_format, "* **"},
    {"from_json", f_from_json, ""},
    {"indent", f_indent, "width first blank"},
    {"join", f_join, "d attribute"},
    {"lower", f_lower, ""},
    {"pprint", f_pprint, ""},
    {"replace", f_replace, "old! new! count"},
    {"safe", f_safe, ""},
    {"string", f_string, ""},
    {"striptags", f_striptags, ""},
    {"title", f_title, ""},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys"},
    {"trim", f_trim, "chars"},
    {"truncate", f_truncate, "length killwords end leeway"},
    {"upper", f_upper, ""},
    {"urlencode", f_urlencode, ""},
    {"urlize", f_urlize, "* **"},
    {"wordcount", f_wordcount, ""},
    {"wordwrap", f_wordwrap, "width break_long_words wrapstring break_on_hyphens"},
    {"xmlattr", f_xmlattr, "autospace"},
    {0},
};
