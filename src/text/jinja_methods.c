/* Jinja: methods of strings, lists, dictionaries and the rest, as Python has them.
 * Tables: one a type. Not here: what hides methods (jinja_attr.c), format() (jinja_format.c). */
#include "jinja_internal.h"

static jstr *want_str(core *c, value v, const char *what) {
    if (v_is(v, V_STR)) return v.s;
    jinja_fail(c, "%s must be str, not %s", what, type_name(v));
}
static int64_t want_int(core *c, value v, int64_t otherwise, const char *what) {
    return v_is(v, V_MISSING) ? otherwise : index_of(c, v, what);
}
static bool given(value v) {
    return !v_is(v, V_MISSING) && !v_is(v, V_NONE);
}

/* ---- letter case, padding ---------------------------------------------------------------------------------------- */
static value cased(core *c, value self, str_case how) {
    sbuf b;
    sb_init(&b, c);
    sb_case(&b, self.s, 0, self.s->n, how);
    return v_str(sb_done(&b));
}
static value m_upper(core *c, value self, value *v, const args *a) {
    return cased(c, self, CASE_UPPER);
}
static value m_lower(core *c, value self, value *v, const args *a) {
    return cased(c, self, CASE_LOWER);
}
static value m_casefold(core *c, value self, value *v, const args *a) {
    return cased(c, self, CASE_FOLD);
}

static value m_capitalize(core *c, value self, value *v, const args *a) {
    sbuf b;
    sb_init(&b, c);
    size_t first = str_at(self.s, 1);
    sb_case(&b, self.s, 0, first, CASE_TITLE);
    sb_case(&b, self.s, first, self.s->n, CASE_LOWER);
    return v_str(sb_done(&b));
}
static value m_title(core *c, value self, value *v, const args *a) {
    sbuf b;
    sb_init(&b, c);
    bool inside = false;
    for (size_t i = 0; i < self.s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(self.s->p, self.s->n, &i);
        sb_case(&b, self.s, at, i, inside ? CASE_LOWER : CASE_TITLE);
        inside = cp_cased(cp);
    }
    return v_str(sb_done(&b));
}
static value m_swapcase(core *c, value self, value *v, const args *a) {
    sbuf b;
    sb_init(&b, c);
    for (size_t i = 0; i < self.s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(self.s->p, self.s->n, &i);
        sb_case(&b, self.s, at, i, cp_upper(cp) ? CASE_LOWER : CASE_UPPER);
    }
    return v_str(sb_done(&b));
}

static value padded(core *c, value self, value *v, bool left, bool right) {
    int64_t width = want_int(c, v[0], 0, "width"), n = (int64_t)str_chars(self.s);
    jstr space = {.p = " ", .n = 1, .chars = 1}, *fill = given(v[1]) ? want_str(c, v[1], "The fill character") : &space;
    if (str_chars(fill) != 1) jinja_fail(c, "The fill character must be exactly one character long");
    int64_t pad = width > n ? width - n : 0, before = right ? (left ? pad / 2 + (pad & width & 1) : 0) : pad;
    sbuf b;
    sb_init(&b, c);
    sb_fill(&b, fill, before);
    sb_str(&b, self.s);
    sb_fill(&b, fill, pad - before);
    return v_str(sb_done(&b));
}
static value m_center(core *c, value self, value *v, const args *a) {
    return padded(c, self, v, true, true);
}
static value m_ljust(core *c, value self, value *v, const args *a) {
    return padded(c, self, v, false, true);
}
static value m_rjust(core *c, value self, value *v, const args *a) {
    return padded(c, self, v, true, false);
}
static value m_zfill(core *c, value self, value *v, const args *a) {
    int64_t width = want_int(c, v[0], 0, "width"), n = (int64_t)str_chars(self.s);
    size_t sign = self.s->n && (self.s->p[0] == '-' || self.s->p[0] == '+');
    sbuf b;
    sb_init(&b, c);
    sb_slice(&b, self.s, 0, sign);
    sb_pad(&b, '0', width - n);
    sb_slice(&b, self.s, sign, self.s->n);
    return v_str(sb_done(&b));
}
static value m_expandtabs(core *c, value self, value *v, const args *a) {
    int64_t tab = want_int(c, v[0], 8, "tabsize"), column = 0;
    sbuf b;
    sb_init(&b, c);
    for (size_t i = 0; i < self.s->n;) {
        size_t at = i;
        uint32_t cp = utf8_next(self.s->p, self.s->n, &i);
        if (cp == '\t') {
            int64_t n = tab > 0 ? tab - column % tab : 0;
            sb_pad(&b, ' ', n);
            column += n;
            continue;
        }
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        sb_slice(&b, self.s, at, i);
    }
    return v_str(sb_done(&b));
}

/* ---- stripping and splitting ------------------------------------------------------------------------------------- */
static value stripped(core *c, value self, value chars, bool left, bool right) {
    jstr *set = given(chars) ? v_is(chars, V_STR) ? chars.s : NULL : NULL;
    if (given(chars) && !set) {
        if (v_is(chars, V_UNDEFINED)) jinja_fail(c, "strip arg must be None or str, not Undefined");
        jinja_fail(c, "strip arg must be None or str, not %s", type_name(chars));
    }
    return v_str(str_strip(c, self.s, set, left, right));
}
static value m_strip(core *c, value self, value *v, const args *a) {
    return stripped(c, self, v[0], true, true);
}
static value m_lstrip(core *c, value self, value *v, const args *a) {
    return stripped(c, self, v[0], true, false);
}
static value m_rstrip(core *c, value self, value *v, const args *a) {
    return stripped(c, self, v[0], false, true);
}

static jlist *split_space(core *c, const jstr *s, int64_t max) {
    jlist *l = list_new(c, 4);
    size_t i = 0;
    while (i < s->n) {
        size_t from = i;
        if (cp_space(utf8_next(s->p, s->n, &i))) continue;
        if (max-- == 0) {
            list_push(c, l, v_str(str_sub(c, s, from, s->n)));
            break;
        }
        size_t to = i;
        while (i < s->n && !cp_space(utf8_next(s->p, s->n, &i))) to = i;
        list_push(c, l, v_str(str_sub(c, s, from, to)));
    }
    jinja_step(c, l->n + s->n / 64);
    return l;
}
static jlist *split_on(core *c, const jstr *s, const jstr *sep, int64_t max) {
    jlist *l = list_new(c, 4);
    size_t from = 0, at;
    while (max-- != 0 && (at = str_search(c, s, sep, from)) != SIZE_MAX) {
        list_push(c, l, v_str(str_sub(c, s, from, at)));
        from = at + sep->n;
    }
    list_push(c, l, v_str(str_sub(c, s, from, s->n)));
    jinja_step(c, l->n);
    return l;
}

static void turn(jlist *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        value t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
}
static jlist *rsplit_space(core *c, const jstr *s, int64_t max) {
    jlist *l = list_new(c, 4);
    size_t end = s->n;
    while (true) {
        end = str_strip(c, str_sub(c, s, 0, end), NULL, false, true)->n;
        if (!end) break;
        if (max-- == 0) {
            list_push(c, l, v_str(str_sub(c, s, 0, end)));
            break;
        }
        size_t from = end;
        while (from > 0) {
            size_t i = from - 1;
            i = utf8_start(s->p, i);
            size_t j = i;
            if (cp_space(utf8_next(s->p, s->n, &j))) break;
            from = i;
        }
        list_push(c, l, v_str(str_sub(c, s, from, end)));
        end = from;
        jinja_step(c, 1);
    }
    turn(l);
    return l;
}
static jlist *rsplit_on(core *c, const jstr *s, const jstr *sep, int64_t max) {
    jlist *l = list_new(c, 4);
    size_t end = s->n, at;
    while (max-- != 0 && (at = str_rsearch(c, s, sep, end)) != SIZE_MAX) {
        list_push(c, l, v_str(str_sub(c, s, at + sep->n, end)));
        end = at;
    }
    list_push(c, l, v_str(str_sub(c, s, 0, end)));
    turn(l);
    return l;
}
static const jstr *separator(core *c, value v) {
    if (!given(v)) return NULL;
    jstr *s = want_str(c, v, "separator");
    if (!s->n) jinja_fail(c, "empty separator");
    return s;
}
static value m_split(core *c, value self, value *v, const args *a) {
    const jstr *sep = separator(c, v[0]);
    int64_t max = want_int(c, v[1], -1, "maxsplit");
    return v_list(sep ? split_on(c, self.s, sep, max) : split_space(c, self.s, max));
}
static value m_rsplit(core *c, value self, value *v, const args *a) {
    const jstr *sep = separator(c, v[0]);
    int64_t max = want_int(c, v[1], -1, "maxsplit");
    return v_list(sep ? rsplit_on(c, self.s, sep, max) : rsplit_space(c, self.s, max));
}
static value m_splitlines(core *c, value self, value *v, const args *a) {
    bool keep = want_int(c, v[0], 0, "keepends") != 0;
    jlist *l = list_new(c, 4);
    for (size_t i = 0; i < self.s->n;) {
        size_t end, next = str_line(self.s, i, &end);
        list_push(c, l, v_str(str_sub(c, self.s, i, keep ? next : end)));
        i = next;
    }
    jinja_step(c, l->n + self.s->n / 64);
    return v_list(l);
}
static value parted(core *c, value self, size_t at, const jstr *sep, bool from_right) {
    jlist *l = list_new(c, 3);
    value whole = v_str(self.s), none = v_str(str_lit(c, ""));
    if (at == SIZE_MAX) {
        list_push(c, l, from_right ? none : whole);
        list_push(c, l, none);
        list_push(c, l, from_right ? whole : none);
        return v_tuple(l);
    }
    list_push(c, l, v_str(str_sub(c, self.s, 0, at)));
    list_push(c, l, v_str(str_sub(c, self.s, at, at + sep->n)));
    list_push(c, l, v_str(str_sub(c, self.s, at + sep->n, self.s->n)));
    return v_tuple(l);
}
static value m_partition(core *c, value self, value *v, const args *a) {
    if (!v_is(v[0], V_STR)) jinja_fail(c, "must be str, not %s", type_name(v[0]));
    const jstr *sep = separator(c, v[0]);
    return parted(c, self, str_search(c, self.s, sep, 0), sep, false);
}
static value m_rpartition(core *c, value self, value *v, const args *a) {
    if (!v_is(v[0], V_STR)) jinja_fail(c, "must be str, not %s", type_name(v[0]));
    const jstr *sep = separator(c, v[0]);
    return parted(c, self, str_rsearch(c, self.s, sep, self.s->n), sep, true);
}
static value m_removeprefix(core *c, value self, value *v, const args *a) {
    jstr *p = want_str(c, v[0], "removeprefix() argument");
    bool has = p->n <= self.s->n && memcmp(self.s->p, p->p, p->n) == 0;
    return v_str(str_sub(c, self.s, has ? p->n : 0, self.s->n));
}
static value m_removesuffix(core *c, value self, value *v, const args *a) {
    jstr *p = want_str(c, v[0], "removesuffix() argument");
    bool has = p->n <= self.s->n && memcmp(self.s->p + self.s->n - p->n, p->p, p->n) == 0;
    return v_str(str_sub(c, self.s, 0, has ? self.s->n - p->n : self.s->n));
}

/* ---- searching --------------------------------------------------------------------------------------------------- */
/* start and end as slices have them, in bytes; false when start is past the end of the string */
static bool window(core *c, jstr *s, value vstart, value vend, size_t *from, size_t *to) {
    int64_t n = (int64_t)str_chars(s), start = given(vstart) ? index_of(c, vstart, "slice index") : 0;
    int64_t end = given(vend) ? index_of(c, vend, "slice index") : n;
    if (start < 0) start = MAX(start + n, 0);
    if (end < 0) end = MAX(end + n, 0);
    if (start > n || start > MIN(end, n)) return false;
    *from = str_at(s, (size_t)start);
    *to = str_at(s, (size_t)MIN(end, n));
    return true;
}
static int64_t chars_before(core *c, const jstr *s, size_t at) {
    return (int64_t)str_chars(str_sub(c, s, 0, at));
}

static int64_t find(core *c, value self, value *v, bool from_right) {
    size_t from, to;
    jstr *what = want_str(c, v[0], "argument");
    if (!window(c, self.s, v[1], v[2], &from, &to)) return -1;
    jstr *s = str_sub(c, self.s, 0, to);
    size_t at = from_right ? str_rsearch(c, s, what, to) : str_search(c, s, what, from);
    return at == SIZE_MAX || at < from ? -1 : chars_before(c, s, at);
}
static value m_find(core *c, value self, value *v, const args *a) {
    return v_int(find(c, self, v, false));
}
static value m_rfind(core *c, value self, value *v, const args *a) {
    return v_int(find(c, self, v, true));
}
static value found(core *c, int64_t at) {
    if (at < 0) jinja_fail(c, "substring not found");
    return v_int(at);
}
static value m_index(core *c, value self, value *v, const args *a) {
    return found(c, find(c, self, v, false));
}
static value m_rindex(core *c, value self, value *v, const args *a) {
    return found(c, find(c, self, v, true));
}

static value m_count(core *c, value self, value *v, const args *a) {
    size_t from, to, at;
    int64_t n = 0;
    jstr *what = want_str(c, v[0], "argument");
    if (!window(c, self.s, v[1], v[2], &from, &to)) return v_int(0);
    jstr *s = str_sub(c, self.s, from, to);
    if (!what->n) return v_int((int64_t)str_chars(s) + 1);
    for (from = 0; (at = str_search(c, s, what, from)) != SIZE_MAX; n++) from = at + what->n;
    jinja_step(c, (uint64_t)n);
    return v_int(n);
}

static bool has_end(const jstr *s, size_t from, size_t to, const jstr *what, bool at_end) {
    return what->n <= to - from && memcmp(s->p + (at_end ? to - what->n : from), what->p, what->n) == 0;
}
static value ends(core *c, value self, value *v, bool at_end) {
    size_t from, to;
    const char *name = at_end ? "endswith" : "startswith";
    if (!v_is(v[0], V_STR) && !v_is(v[0], V_TUPLE))
        jinja_fail(c, "%s first arg must be str or a tuple of str, not %s", name, type_name(v[0]));
    bool in_range = window(c, self.s, v[1], v[2], &from, &to);
    if (v_is(v[0], V_STR)) return v_bool(in_range && has_end(self.s, from, to, v[0].s, at_end));
    for (size_t i = 0; i < v[0].list->n; i++) {
        value w = v[0].list->v[i];
        if (!v_is(w, V_STR)) jinja_fail(c, "tuple for %s must only contain str, not %s", name, type_name(w));
        if (in_range && has_end(self.s, from, to, w.s, at_end)) return v_bool(true);
    }
    return v_bool(false);
}
static value m_startswith(core *c, value self, value *v, const args *a) {
    return ends(c, self, v, false);
}
static value m_endswith(core *c, value self, value *v, const args *a) {
    return ends(c, self, v, true);
}

static value m_replace(core *c, value self, value *v, const args *a) {
    jstr *s = self.s, *old = want_str(c, v[0], "replace() argument 1"),
         *new = want_str(c, v[1], "replace() argument 2");
    int64_t max = want_int(c, v[2], -1, "count");
    sbuf b;
    sb_init(&b, c);
    size_t from = 0, at;
    if (!old->n) { /* before every character and at the end */
        for (size_t i = 0; max != 0; max--) {
            sb_str(&b, new);
            if (i >= s->n) break;
            utf8_next(s->p, s->n, &i);
            sb_slice(&b, s, from, i);
            from = i;
            jinja_step(c, 1);
        }
    } else
        for (; max != 0 && (at = str_search(c, s, old, from)) != SIZE_MAX; max--) {
            sb_slice(&b, s, from, at);
            sb_str(&b, new);
            from = at + old->n;
            jinja_step(c, 1);
        }
    if (from == 0 && !b.n) return v_str(str_sub(c, s, 0, s->n));
    sb_slice(&b, s, from, s->n);
    return v_str(sb_done(&b));
}

static value m_join(core *c, value self, value *v, const args *a) {
    sbuf b;
    iter it;
    value item;
    sb_init(&b, c);
    if (!can_iterate(v[0])) jinja_fail(c, "can only join an iterable");
    iter_begin(c, &it, v[0]);
    for (size_t i = 0; iter_next(c, &it, &item); i++) {
        if (!v_is(item, V_STR)) jinja_fail(c, "sequence item %zu: expected str instance, %s found", i, type_name(item));
        if (i) sb_str(&b, self.s);
        sb_str(&b, self.s->markup && !item.s->markup ? str_escape(c, item.s) : item.s);
    }
    return v_str(sb_done(&b));
}

/* ---- questions about characters ---------------------------------------------------------------------------------- */
static bool is_alnum(uint32_t cp) {
    return cp != '_' && cp_word(cp);
}
static bool all_chars(value self, bool (*is)(uint32_t)) {
    for (size_t i = 0; i < self.s->n;)
        if (!is(utf8_next(self.s->p, self.s->n, &i))) return false;
    return self.s->n != 0;
}
static bool is_digit(uint32_t cp) { /* superscripts and circled digits count as digits, not as decimals */
    return cp_digit(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}
static bool is_numeric(uint32_t cp) {
    return cp_digit(cp) || (cp >= 128 && cp_word(cp) && !cp_alpha(cp));
}
static value m_isalnum(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, is_alnum));
}
static value m_isalpha(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, cp_alpha));
}
static value m_isdecimal(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, cp_digit));
}
static value m_isdigit(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, is_digit));
}
static value m_isnumeric(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, is_numeric));
}
static value m_isspace(core *c, value self, value *v, const args *a) {
    return v_bool(all_chars(self, cp_space));
}
static value m_isprintable(core *c, value self, value *v, const args *a) {
    return v_bool(!self.s->n || all_chars(self, cp_printable));
}
static value m_isascii(core *c, value self, value *v, const args *a) {
    for (size_t i = 0; i < self.s->n; i++)
        if (self.s->p[i] & 0x80) return v_bool(false);
    return v_bool(true);
}
static value m_isidentifier(core *c, value self, value *v, const args *a) {
    size_t i = 0;
    if (!all_chars(self, cp_word)) return v_bool(false);
    uint32_t first = utf8_next(self.s->p, self.s->n, &i);
    return v_bool(first == '_' || cp_alpha(first));
}
static value one_case(value self, bool (*good)(uint32_t), bool (*bad)(uint32_t)) {
    bool any = false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp = utf8_next(self.s->p, self.s->n, &i);
        if (bad(cp)) return v_bool(false);
        any = any || good(cp);
    }
    return v_bool(any);
}
static value m_islower(core *c, value self, value *v, const args *a) {
    return one_case(self, cp_lower, cp_upper);
}
static value m_isupper(core *c, value self, value *v, const args *a) {
    return one_case(self, cp_upper, cp_lower);
}
static value m_istitle(core *c, value self, value *v, const args *a) {
    bool inside = false, any = false;
    for (size_t i = 0; i < self.s->n;) {
        uint32_t cp = utf8_next(self.s->p, self.s->n, &i);
        if (cp_upper(cp) ? inside : cp_lower(cp) && !inside) return v_bool(false);
        inside = cp_cased(cp);
        any = any || inside;
    }
    return v_bool(any);
}

static value m_format(core *c, value self, value *v, const args *a) {
    return format_braces(c, self.s, a, v_missing());
}
static value m_format_map(core *c, value self, value *v, const args *a) {
    return format_braces(c, self.s, &(args){0}, v[0]);
}
static value m_refused(core *c, value self, value *v, const args *a) {
    jinja_fail(c, "bytes and translation tables are not supported: encode, maketrans and translate");
}
static value m_unescape(core *c, value self, value *v, const args *a) {
    jinja_fail(c, "Markup.unescape is not supported");
}

static const func_def str_methods[] = {
    {"capitalize", m_capitalize, ""},
    {"casefold", m_casefold, ""},
    {"center", m_center, "width!/ fillchar/"},
    {"count", m_count, "sub!/ start/ end/"},
    {"encode", m_refused, "encoding errors"},
    {"endswith", m_endswith, "suffix!/ start/ end/"},
    {"expandtabs", m_expandtabs, "tabsize"},
    {"find", m_find, "sub!/ start/ end/"},
    {"format", m_format, "* **"},
    {"format_map", m_format_map, "mapping!/"},
    {"index", m_index, "sub!/ start/ end/"},
    {"isalnum", m_isalnum, ""},
    {"isalpha", m_isalpha, ""},
    {"isascii", m_isascii, ""},
    {"isdecimal", m_isdecimal, ""},
    {"isdigit", m_isdigit, ""},
    {"isidentifier", m_isidentifier, ""},
    {"islower", m_islower, ""},
    {"isnumeric", m_isnumeric, ""},
    {"isprintable", m_isprintable, ""},
    {"isspace", m_isspace, ""},
    {"istitle", m_istitle, ""},
    {"isupper", m_isupper, ""},
    {"join", m_join, "iterable!/"},
    {"ljust", m_ljust, "width!/ fillchar/"},
    {"lower", m_lower, ""},
    {"lstrip", m_lstrip, "chars/"},
    {"maketrans", m_refused, "* **"},
    {"partition", m_partition, "sep!/"},
    {"removeprefix", m_removeprefix, "prefix!/"},
    {"removesuffix", m_removesuffix, "suffix!/"},
    {"replace", m_replace, "old!/ new!/ count/"},
    {"rfind", m_rfind, "sub!/ start/ end/"},
    {"rindex", m_rindex, "sub!/ start/ end/"},
    {"rjust", m_rjust, "width!/ fillchar/"},
    {"rpartition", m_rpartition, "sep!/"},
    {"rsplit", m_rsplit, "sep maxsplit"},
    {"rstrip", m_rstrip, "chars/"},
    {"split", m_split, "sep maxsplit"},
    {"splitlines", m_splitlines, "keepends"},
    {"startswith", m_startswith, "prefix!/ start/ end/"},
    {"strip", m_strip, "chars/"},
    {"swapcase", m_swapcase, ""},
    {"title", m_title, ""},
    {"translate", m_refused, "table/"},
    {"upper", m_upper, ""},
    {"zfill", m_zfill, "width!/"},
    {0},
};

/* Markup is a string whose methods escape what they are given and give markup back. */
static void mark(value *v) {
    if (v_is(*v, V_STR)) v->s->markup = true;
    if (v_is(*v, V_LIST) || v_is(*v, V_TUPLE))
        for (size_t i = 0; i < v->list->n; i++) mark(&v->list->v[i]);
}
static value markup_call(core *c, value self, const char *name, const args *a) {
    static const char *const plain[] = {"startswith", "endswith",   "find",         "rfind",        "index",
                                        "rindex",     "count",      "split",        "rsplit",       "join",
                                        "partition",  "rpartition", "removeprefix", "removesuffix", "format"};
    args escaped = *a;
    bool keep = false;
    for (size_t i = 0; i < COUNT(plain); i++) keep = keep || strcmp(plain[i], name) == 0;
    if (!keep && a->n) {
        escaped.pos = jinja_array(c, value, a->n);
        for (size_t i = 0; i < a->n; i++)
            escaped.pos[i] =
                v_is(a->pos[i], V_STR) && !a->pos[i].s->markup ? v_str(str_escape(c, a->pos[i].s)) : a->pos[i];
    }
    value out = func_call(c, func_find(str_methods, str_of(name)), self, &escaped);
    if (v_is(out, V_STR)) out.s = str_sub(c, out.s, 0, out.s->n);
    mark(&out);
    return out;
}
value str_method(core *c, jstr *s, const char *name, const args *a) {
    if (s->markup) return markup_call(c, v_str(s), name, a);
    return func_call(c, func_find(str_methods, str_of(name)), v_str(s), a);
}

/* Methods of markup are found as methods of strings; this table sends them through markup_call. */
#define MARKUP(name)                                                      \
    static value k_##name(core *c, value self, value *v, const args *a) { \
        return markup_call(c, self, #name, a);                            \
    }
/* One word after another, no statements. */
/* clang-format off */
MARKUP(capitalize) MARKUP(casefold) MARKUP(center) MARKUP(expandtabs) MARKUP(format) MARKUP(join) MARKUP(ljust)
MARKUP(lower) MARKUP(lstrip) MARKUP(partition) MARKUP(removeprefix) MARKUP(removesuffix) MARKUP(replace)
MARKUP(rjust) MARKUP(rpartition) MARKUP(rsplit) MARKUP(rstrip) MARKUP(split) MARKUP(splitlines) MARKUP(strip)
MARKUP(swapcase) MARKUP(title) MARKUP(upper) MARKUP(zfill)
    /* clang-format on */

    static value k_striptags(core *c, value self, value *v, const args *a) {
    return filter_apply(c, str_lit(c, "striptags"), self, a);
}
static const func_def markup_methods[] = {
    {"capitalize", k_capitalize, "* **"},
    {"casefold", k_casefold, "* **"},
    {"center", k_center, "* **"},
    {"expandtabs", k_expandtabs, "* **"},
    {"format", k_format, "* **"},
    {"join", k_join, "* **"},
    {"ljust", k_ljust, "* **"},
    {"lower", k_lower, "* **"},
    {"lstrip", k_lstrip, "* **"},
    {"partition", k_partition, "* **"},
    {"removeprefix", k_removeprefix, "* **"},
    {"removesuffix", k_removesuffix, "* **"},
    {"replace", k_replace, "* **"},
    {"rjust", k_rjust, "* **"},
    {"rpartition", k_rpartition, "* **"},
    {"rsplit", k_rsplit, "* **"},
    {"rstrip", k_rstrip, "* **"},
    {"split", k_split, "* **"},
    {"splitlines", k_splitlines, "* **"},
    {"strip", k_strip, "* **"},
    {"swapcase", k_swapcase, "* **"},
    {"title", k_title, "* **"},
    {"upper", k_upper, "* **"},
    {"zfill", k_zfill, "* **"},
    {"striptags", k_striptags, ""},
    {"unescape", m_unescape, ""},
    {0},
};

/* ---- lists, tuples, ranges --------------------------------------------------------------------------------------- */
static value l_count(core *c, value self, value *v, const args *a) {
    int64_t n = 0;
    iter it;
    value item;
    iter_begin(c, &it, self);
    while (iter_next(c, &it, &item)) n += value_same(item, v[0]) || value_eq(c, item, v[0]);
    return v_int(n);
}
static value l_index(core *c, value self, value *v, const args *a) {
    int64_t len = value_len(c, self), from = want_int(c, v[1], 0, "start"), to = want_int(c, v[2], INT64_MAX, "stop");
    if (from < 0) from = MAX(from + len, 0);
    if (to < 0) to = MAX(to + len, 0);
    iter it;
    value item;
    iter_begin(c, &it, self);
    for (int64_t i = 0; i < to && iter_next(c, &it, &item); i++)
        if (i >= from && (value_same(item, v[0]) || value_eq(c, item, v[0]))) return v_int(i);
    if (v_is(self, V_TUPLE)) jinja_fail(c, "tuple.index(x): x not in tuple");
    jinja_fail(c, "%s is not in %s", text_of(c, value_repr(c, v[0])), type_name(self));
}
static value l_copy(core *c, value self, value *v, const args *a) {
    return v_list(list_of(c, self));
}
static const func_def list_methods[] = {
    {"count", l_count, "value!/"}, {"index", l_index, "value!/ start/ stop/"}, {"copy", l_copy, ""}, {0}};
static const func_def tuple_methods[] = {
    {"count", l_count, "value!/"}, {"index", l_index, "value!/ start/ stop/"}, {0}};
static const func_def range_methods[] = {{"count", l_count, "value!/"}, {"index", l_index, "value!/"}, {0}};

/* ---- dictionaries ------------------------------------------------------------------------------------------------ */
static value d_get(core *c, value self, value *v, const args *a) {
    const value *got = dict_find(c, self.dict, v[0]);
    return got ? *got : v_is(v[1], V_MISSING) ? v_none() : v[1];
}
static value view(core *c, jdict *d, view_kind kind) {
    jview *w = jinja_new(c, jview);
    *w = (jview){d, kind};
    return (value){.type = V_VIEW, .view = w};
}
static value d_keys(core *c, value self, value *v, const args *a) {
    return view(c, self.dict, VIEW_KEYS);
}
static value d_values(core *c, value self, value *v, const args *a) {
    return view(c, self.dict, VIEW_VALUES);
}
static value d_items(core *c, value self, value *v, const args *a) {
    return view(c, self.dict, VIEW_ITEMS);
}
static value d_copy(core *c, value self, value *v, const args *a) {
    jdict *d = dict_new(c);
    for (size_t i = 0; i < self.dict->n; i++) dict_set(c, d, self.dict->e[i].key, self.dict->e[i].val);
    return v_dict(d);
}
static value d_fromkeys(core *c, value self, value *v, const args *a) {
    jdict *d = dict_new(c);
    iter it;
    value key;
    iter_begin(c, &it, v[0]);
    while (iter_next(c, &it, &key)) dict_set(c, d, key, v_is(v[1], V_MISSING) ? v_none() : v[1]);
    return v_dict(d);
}
static const func_def dict_methods[] = {
    {"get", d_get, "key!/ default/"},
    {"keys", d_keys, ""},
    {"values", d_values, ""},
    {"items", d_items, ""},
    {"copy", d_copy, ""},
    {"fromkeys", d_fromkeys, "iterable!/ value/"},
    {0},
};

/* ---- numbers, loops, cyclers ------------------------------------------------------------------------------------- */
static value n_is_integer(core *c, value self, value *v, const args *a) {
    return v_bool(self.f - self.f == 0 && self.f == __builtin_floor(self.f));
}
static value n_conjugate(core *c, value self, value *v, const args *a) {
    return self;
}
static value n_bit_length(core *c, value self, value *v, const args *a) {
    int64_t i = v_is(self, V_BOOL) ? self.b : self.i;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    return v_int(u ? 64 - __builtin_clzll(u) : 0);
}
static const func_def int_methods[] = {{"bit_length", n_bit_length, ""}, {"conjugate", n_conjugate, ""}, {0}};
static const func_def float_methods[] = {{"is_integer", n_is_integer, ""}, {"conjugate", n_conjugate, ""}, {0}};

static value o_cycle(core *c, value self, value *v, const args *a) {
    if (!a->n) jinja_fail(c, "no items for cycling given");
    return a->pos[(size_t)self.loop->index0 % a->n];
}
static value o_changed(core *c, value self, value *v, const args *a) {
    jlist *now = list_new(c, a->n);
    for (size_t i = 0; i < a->n; i++) list_push(c, now, a->pos[i]);
    if (v_is(self.loop->changed, V_TUPLE) && value_eq(c, self.loop->changed, v_tuple(now))) return v_bool(false);
    self.loop->changed = v_tuple(now);
    return v_bool(true);
}
static const func_def loop_methods[] = {{"cycle", o_cycle, "*"}, {"changed", o_changed, "*"}, {0}};

static value y_next(core *c, value self, value *v, const args *a) {
    value now = self.cycler->v[self.cycler->pos];
    self.cycler->pos = (self.cycler->pos + 1) % self.cycler->n;
    return now;
}
static value y_reset(core *c, value self, value *v, const args *a) {
    self.cycler->pos = 0;
    return v_none();
}
static const func_def cycler_methods[] = {{"next", y_next, ""}, {"reset", y_reset, ""}, {0}};

static const func_def *const by_type[V_TYPES] = {
    [V_STR] = str_methods,   [V_LIST] = list_methods,     [V_TUPLE] = tuple_methods, [V_RANGE] = range_methods,
    [V_DICT] = dict_methods, [V_BOOL] = int_methods,      [V_INT] = int_methods,     [V_FLOAT] = float_methods,
    [V_LOOP] = loop_methods, [V_CYCLER] = cycler_methods,
};

const func_def *method_find(value self, str name) {
    if (v_is(self, V_STR) && self.s->markup) {
        const func_def *f = func_find(markup_methods, name);
        if (f) return f;
    }
    return by_type[self.type] ? func_find(by_type[self.type], name) : NULL;
}
