/* Gemma's calls: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:1,list:[…]}<tool_call|>, where the marks are tokens that no
 * text spells. The value is turned into JSON as it comes. Not here: the other forms (output_calls.c). */
#include "output_internal.h"

static const str close_mark = STR("\xFB"), quote = STR("\xFC");

static call_step go(calls *c, size_t n, call_stage to) {
    c->at += n;
    c->stage = to;
    return STEP_GO;
}

static bool at(str s, str mark) {
    return literal_at(s, mark) == LITERAL_YES;
}

static bool key_char(char c) {
    return str_digit(c) < 36 || c == '_' || c == '-' || c == '.' || (uint8_t)c >= 0x80;
}

static bool is_mark(char c) {
    return (uint8_t)c >= MARK_BYTE;
}

call_step gemma_call(calls *c, bool final) {
    call_step over = c->mark_end ? STEP_FAIL : STEP_DONE;
    str s = call_skip_space(c);
    if (at(s, close_mark)) return c->at++, over;
    if (s.n && s.p[0] == ',' && !c->mark_end) return go(c, 1, CALL_GEMMA);
    literal l = literal_at(s, STR("call:"));
    if (!s.n || l == LITERAL_PART) return final ? over : STEP_MORE;
    if (l == LITERAL_NO) return over;
    size_t brace = str_find(s, STR("{"));
    if (brace == SIZE_MAX) return s.n > HEAD_MAX || final ? STEP_FAIL : STEP_MORE;
    if (!call_named(c, str_trim(str_slice(s, 5, brace)))) return STEP_FAIL;
    call_args_str(c, STR("{"));
    c->depth = 1;
    c->object[0] = c->first[0] = true;
    return go(c, brace + 1, CALL_GEMMA_KEY);
}

static call_step container_close(calls *c) {
    call_args_str(c, c->object[c->depth - 1] ? STR("}") : STR("]"));
    c->at++;
    if (--c->depth) return go(c, 0, CALL_GEMMA_NEXT);
    c->stage = CALL_GEMMA;
    call_finish(c);
    return STEP_GO;
}

static call_step container_open(calls *c, bool object) {
    if (c->depth == GEMMA_DEPTH) return STEP_FAIL;
    call_args_str(c, object ? STR("{") : STR("["));
    c->object[c->depth] = object;
    c->first[c->depth++] = true;
    return go(c, 1, object ? CALL_GEMMA_KEY : CALL_GEMMA_VALUE);
}

static void comma(calls *c) {
    if (!c->first[c->depth - 1]) call_args_str(c, STR(","));
    c->first[c->depth - 1] = false;
}

/* The end of a quoted text that begins at s.p[0]; SIZE_MAX: it is not there yet. */
static size_t quoted_end(str s) {
    for (size_t i = 1; i < s.n; i++) {
        if (s.p[i] == '\\')
            i++;
        else if (s.p[i] == s.p[0])
            return i;
    }
    return SIZE_MAX;
}

call_step gemma_key(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return final ? STEP_FAIL : STEP_MORE;
    if (s.p[0] == '}' && c->first[c->depth - 1]) return container_close(c);
    bool quoted = at(s, quote) || s.p[0] == '"' || s.p[0] == '\'';
    size_t end = 0;
    if (quoted)
        end = quoted_end(s);
    else
        while (end < s.n && key_char(s.p[end])) end++;
    if (end == SIZE_MAX || end >= s.n) return final || s.n > HEAD_MAX ? STEP_FAIL : STEP_MORE;
    size_t colon = end + quoted;
    while (colon < s.n && str_space(s.p[colon])) colon++;
    if (colon == s.n) return final || s.n > HEAD_MAX ? STEP_FAIL : STEP_MORE;
    if (!end || (s.p[colon] != ':' && s.p[colon] != '=')) return STEP_FAIL;
    str key = str_slice(s, quoted, end);
    comma(c);
    json_write_string(&c->args, key);
    call_args_str(c, STR(":"));
    c->types = c->depth == 1 ? schema_types(c->schema, call_param(c, key)) : 0;
    return go(c, colon + 1, CALL_GEMMA_VALUE);
}

static call_step bare_value(calls *c, str s, bool final) {
    size_t n = 0;
    while (n < s.n && !strchr(",}]", s.p[n]) && !is_mark(s.p[n])) n++;
    if (n == s.n) return final ? STEP_FAIL : STEP_MORE;
    str v = str_trim(str_slice(s, 0, n));
    if (!v.n) return STEP_FAIL;
    if (!c->object[c->depth - 1]) comma(c);
    text_typed(v, c->types, &c->args);
    return go(c, n, CALL_GEMMA_NEXT);
}

static call_step quoted_value(calls *c, str s, bool final) {
    size_t end = quoted_end(s);
    if (end == SIZE_MAX) return final ? STEP_FAIL : STEP_MORE;
    buf plain = {0};
    for (size_t i = 1; i < end; i++) {
        if (s.p[i] == '\\' && i + 1 < end) i++;
        buf_putc(&plain, s.p[i]);
    }
    if (!c->object[c->depth - 1]) comma(c);
    json_write_string(&c->args, buf_view(&plain));
    buf_free(&plain);
    return go(c, end + 1, CALL_GEMMA_NEXT);
}

call_step gemma_value(calls *c, bool final) {
    str s = call_skip_space(c);
    bool object = c->object[c->depth - 1];
    if (!s.n) return final ? STEP_FAIL : STEP_MORE;
    if (s.p[0] == ']' && !object && c->first[c->depth - 1]) return container_close(c);
    if (s.p[0] == '"' || s.p[0] == '\'') return quoted_value(c, s, final);
    if (!at(s, quote) && s.p[0] != '{' && s.p[0] != '[') return bare_value(c, s, final);
    if (!object) comma(c);
    c->types = 0;
    if (s.p[0] == '{' || s.p[0] == '[') return container_open(c, s.p[0] == '{');
    call_args_str(c, STR("\""));
    return go(c, 1, CALL_GEMMA_STRING);
}

/* Whether the quote before s ends its string: it does where structure follows, else it is a part of the text. */
static literal string_ends(const calls *c, str s, bool final) {
    size_t i = 0;
    while (i < s.n && str_space(s.p[i])) i++;
    if (i == s.n) return final ? LITERAL_YES : LITERAL_PART;
    bool object = c->object[c->depth - 1];
    if (at(str_slice(s, i, s.n), close_mark)) return LITERAL_YES;
    if (s.p[i] == (object ? '}' : ']')) return LITERAL_YES;
    if (s.p[i] != ',') return LITERAL_NO;
    for (i++; i < s.n && str_space(s.p[i]);) i++;
    if (i == s.n) return final ? LITERAL_YES : LITERAL_PART;
    if (!object)
        return at(str_slice(s, i, s.n), quote) || strchr("\"'{[-0123456789tfn", s.p[i]) ? LITERAL_YES : LITERAL_NO;
    if (at(str_slice(s, i, s.n), quote) || s.p[i] == '"' || s.p[i] == '\'') return LITERAL_YES;
    size_t key = i;
    while (i < s.n && key_char(s.p[i]) && i - key < HEAD_MAX) i++;
    size_t end = i;
    while (i < s.n && str_space(s.p[i])) i++;
    if (i == s.n) return final ? LITERAL_YES : LITERAL_PART;
    return end > key && (s.p[i] == ':' || s.p[i] == '=') ? LITERAL_YES : LITERAL_NO;
}

call_step gemma_string(calls *c, bool final) {
    str s = call_rest(c);
    size_t q = str_find(s, quote), end = MIN(q, s.n), mark = 0;
    while (mark < end && !is_mark(s.p[mark])) mark++;
    text_escape(str_slice(s, 0, mark), &c->args);
    if (mark < end) return c->at += mark, STEP_FAIL; /* another mark: the string was never closed */
    c->at += end;
    if (q == SIZE_MAX) return final ? STEP_FAIL : STEP_MORE;
    literal l = string_ends(c, str_slice(s, q + 1, s.n), final);
    if (l == LITERAL_PART) return STEP_MORE;
    if (l == LITERAL_YES) call_args_str(c, STR("\""));
    if (l == LITERAL_NO) text_escape(STR("\""), &c->args);
    return go(c, 1, l == LITERAL_YES ? CALL_GEMMA_NEXT : CALL_GEMMA_STRING);
}

call_step gemma_next(calls *c, bool final) {
    str s = call_skip_space(c);
    if (!s.n) return final ? STEP_FAIL : STEP_MORE;
    bool object = c->object[c->depth - 1];
    if (s.p[0] == (object ? '}' : ']')) return container_close(c);
    c->types = 0;
    return s.p[0] == ',' ? go(c, 1, object ? CALL_GEMMA_KEY : CALL_GEMMA_VALUE) : STEP_FAIL;
}
