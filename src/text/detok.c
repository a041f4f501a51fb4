/* Decoding: a chain of decoders that text flows through token by token. The whole-text decode is the streaming one run
 * over all ids, so both agree by construction; what must wait (half a character, a run of byte tokens) waits in its
 * decoder. Stop strings and thinking: output.c. */
#include <stdlib.h>
#include "tokenizer.h"

/* Text flows as fragments of whole characters; `last` marks the end of a token. */
typedef struct stage {
    const decoder *d; /* borrows (tokenizer) */
    buf held;         /* what this decoder may not let go yet */
    buf part;         /* of a token that comes in parts */
    buf text;         /* what goes on in one call; kept, so that a token costs no allocation */
    size_t tokens;    /* ended so far */
    size_t started;   /* STRIP: characters cut from this token */
    bool begun;       /* STRIP: past the leading ones */
} stage;

struct detok {
    const tokenizer *t; /* borrows */
    bool skip_special;
    stage *stage; /* owns; one a decoder */
    buf *out;     /* borrows, during a call */
};

static void stage_text(detok *d, size_t at, str s, bool last);

static void next(detok *d, size_t at, str s, bool last) {
    if (at + 1 == d->t->n_decoder)
        buf_str(d->out, s);
    else
        stage_text(d, at + 1, s, last);
}

/* Well-formed characters go on, ill-formed parts as U+FFFD; the beginning of a character waits unless `final`. */
static void held_utf8(detok *d, size_t at, bool final) {
    stage *g = &d->stage[at];
    buf *text = &g->text;
    text->n = 0;
    size_t from = 0;
    while (from < g->held.n) {
        bool ok;
        str rest = {g->held.p + from, g->held.n - from};
        size_t n = utf8_unit(rest, final, &ok);
        if (!n) break;
        ok ? buf_add(text, rest.p, n) : buf_puts(text, "\xEF\xBF\xBD");
        from += n;
    }
    if (from) memmove(g->held.p, g->held.p + from, g->held.n - from);
    g->held.n -= from;
    if (text->n || final) next(d, at, buf_view(text), final);
}

static void spelled_bytes(str token, buf *out) {
    size_t kept = out->n;
    for (size_t at = 0, n; at < token.n; at += n) {
        int b = byte_of_point(utf8_get(token.p + at, &n));
        if (b < 0) { /* not all of the alphabet: the token stands for itself */
            out->n = kept;
            buf_str(out, token);
            return;
        }
        buf_putc(out, (char)b);
    }
}

static void byte_level(detok *d, size_t at, str token) {
    stage *g = &d->stage[at];
    spelled_bytes(token, &g->held);
    held_utf8(d, at, false);
}

/* "<0x41>" -> 0x41; the reference's parser takes a sign, too. */
static int byte_named(str s) {
    if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        int digit = str_digit(s.p[i]);
        if (digit >= 16 && !(i == 3 && s.p[i] == '+')) return -1;
        v = digit >= 16 ? 0 : v * 16 + digit;
    }
    return v;
}

/* A run of byte tokens is one string if it is well-formed as a whole, else one U+FFFD a byte: nothing of it can go out
 * before it ends. */
static void byte_run_end(detok *d, size_t at) {
    stage *g = &d->stage[at];
    if (!g->held.n) return;
    bool ok = utf8_valid(buf_view(&g->held)) == g->held.n;
    if (ok) next(d, at, buf_view(&g->held), true);
    for (size_t i = 0; i < g->held.n && !ok; i++) next(d, at, STR("\xEF\xBF\xBD"), true);
    g->held.n = 0;
}

static void byte_fallback(detok *d, size_t at, str token) {
    int b = byte_named(token);
    if (b >= 0) {
        buf_putc(&d->stage[at].held, (char)b);
        return;
    }
    byte_run_end(d, at);
    next(d, at, token, true);
}

static void metaspace(detok *d, size_t at, str s, bool last) {
    stage *g = &d->stage[at];
    buf *text = &g->text;
    text->n = 0;
    for (size_t i = 0; i < s.n;) {
        if (g->d->from.n && str_starts((str){s.p + i, s.n - i}, g->d->from)) {
            if (g->tokens || !g->d->flag) buf_putc(text, ' ');
            i += g->d->from.n;
        } else {
            buf_putc(text, s.p[i++]);
        }
    }
    next(d, at, buf_view(text), last);
    g->tokens += last;
}

/* `start` leading and `stop` trailing ones of a character go; as many at the end as could still be trailing wait. */
static void strip(detok *d, size_t at, str s, bool last) {
    stage *g = &d->stage[at];
    char content[4];
    size_t unit = utf8_put(content, g->d->content), n;
    for (size_t i = 0; i < s.n; i += n) {
        bool same = utf8_get(s.p + i, &n) == g->d->content;
        if (same && !g->begun && g->started < g->d->start) {
            g->started++;
            continue;
        }
        g->begun = true;
        if (same && g->d->stop) {
            if (g->held.n == g->d->stop * unit)
                next(d, at, (str){content, unit}, false);
            else
                buf_add(&g->held, content, unit);
            continue;
        }
        if (g->held.n) next(d, at, buf_view(&g->held), false);
        g->held.n = 0;
        next(d, at, (str){s.p + i, n}, false);
    }
    if (!last) return;
    g->held.n = g->started = 0;
    g->begun = false;
    next(d, at, (str){"", 0}, true);
}

static void replace_regex(detok *d, size_t at, str s) {
    const decoder *r = d->stage[at].d;
    spans found = {0};
    buf text = {0};
    size_t from = 0;
    if (pattern_find(r->find, s, &found, NULL))
        for (size_t i = 0; i < found.n; i++) {
            buf_add(&text, s.p + from, found.p[i].from - from);
            buf_str(&text, r->to);
            from = found.p[i].to;
        }
    buf_add(&text, s.p + from, s.n - from);
    next(d, at, buf_view(&text), true);
    buf_free(&text);
    free(found.p);
}

static bool begins(str s, str whole) { /* s is a proper prefix of whole */
    return s.n < whole.n && memcmp(s.p, whole.p, s.n) == 0;
}

static void replace(detok *d, size_t at, str s, bool last) {
    stage *g = &d->stage[at];
    str from = g->d->from;
    if (g->d->find) { /* a pattern needs the whole token */
        buf_str(&g->held, s);
        if (last) replace_regex(d, at, buf_view(&g->held)), g->held.n = 0;
        return;
    }
    buf *text = &g->text;
    text->n = 0;
    buf_str(&g->held, s);
    size_t i = 0;
    while (i < g->held.n) {
        str rest = {g->held.p + i, g->held.n - i};
        if (from.n && str_starts(rest, from)) {
            buf_str(text, g->d->to);
            i += from.n;
        } else if (!last && from.n && begins(rest, from)) {
            break;
        } else {
            buf_putc(text, g->held.p[i++]);
        }
    }
    if (i) memmove(g->held.p, g->held.p + i, g->held.n - i);
    g->held.n -= i;
    if (last || text->n) next(d, at, buf_view(text), last);
}

static void buf_replace(buf *b, str from, str to) {
    buf out = {0};
    size_t at = 0, n;
    while ((n = str_find((str){b->p + at, b->n - at}, from)) != SIZE_MAX) {
        buf_add(&out, b->p + at, n);
        buf_str(&out, to);
        at += n + from.n;
    }
    buf_add(&out, b->p + at, b->n - at);
    buf_free(b);
    *b = out;
}

static void clean_up(buf *b) {
    static const char *const rule[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < COUNT(rule); i++) buf_replace(b, str_of(rule[i][0]), str_of(rule[i][1]));
}

static void wordpiece(detok *d, size_t at, str token) {
    stage *g = &d->stage[at];
    buf text = {0};
    bool joined = str_starts(token, g->d->from);
    if (g->tokens && !joined) buf_putc(&text, ' ');
    if (g->tokens && joined) token = str_slice(token, g->d->from.n, token.n);
    buf_str(&text, token);
    if (g->d->flag && text.n) clean_up(&text);
    next(d, at, buf_view(&text), true);
    buf_free(&text);
    g->tokens++;
}

/* The suffix is a space, but nothing in the last token: each token waits for the one behind it. */
static void bpe_suffix(detok *d, size_t at, const char *space) {
    stage *g = &d->stage[at];
    if (!g->tokens) return;
    buf text = {0};
    buf_str(&text, buf_view(&g->held));
    if (g->d->from.n && text.n) buf_replace(&text, g->d->from, str_of(space));
    next(d, at, buf_view(&text), true);
    buf_free(&text);
    g->held.n = g->tokens = 0;
}

static void whole_token(detok *d, size_t at, str token) {
    stage *g = &d->stage[at];
    switch (g->d->kind) {
    case DECODER_BYTE_LEVEL: byte_level(d, at, token); break;
    case DECODER_BYTE_FALLBACK: byte_fallback(d, at, token); break;
    case DECODER_WORDPIECE: wordpiece(d, at, token); break;
    case DECODER_BPE:
        bpe_suffix(d, at, " ");
        buf_str(&g->held, token);
        g->tokens = 1;
        break;
    case DECODER_JOIN:
        if (g->tokens++) next(d, at, STR(" "), false);
        next(d, at, token, true);
        break;
    default: break;
    }
}

static void stage_text(detok *d, size_t at, str s, bool last) {
    stage *g = &d->stage[at];
    switch (g->d->kind) {
    case DECODER_METASPACE: metaspace(d, at, s, last); return;
    case DECODER_STRIP: strip(d, at, s, last); return;
    case DECODER_REPLACE: replace(d, at, s, last); return;
    case DECODER_FUSE: next(d, at, s, false); return;
    default: break;
    }
    /* The others look at whole tokens; only behind a Fuse do those come in parts. */
    if (last && !g->part.n) {
        whole_token(d, at, s);
        return;
    }
    buf_str(&g->part, s);
    if (!last) return;
    buf token = g->part;
    g->part = (buf){0};
    whole_token(d, at, buf_view(&token));
    buf_free(&token);
}

static void stage_finish(detok *d, size_t at) {
    switch (d->stage[at].d->kind) {
    case DECODER_BYTE_LEVEL: held_utf8(d, at, true); break;
    case DECODER_BYTE_FALLBACK: byte_run_end(d, at); break;
    case DECODER_FUSE: next(d, at, (str){"", 0}, true); break;
    case DECODER_BPE: bpe_suffix(d, at, ""); break;
    default: break;
    }
}

detok *detok_new(const tokenizer *t, bool skip_special) {
    detok *d = mem_alloc(sizeof *d);
    d->t = t;
    d->skip_special = skip_special;
    d->stage = mem_alloc(t->n_decoder * sizeof *d->stage);
    for (size_t i = 0; i < t->n_decoder; i++) d->stage[i].d = &t->decoder[i];
    return d;
}

static void stage_free(stage *g) {
    buf_free(&g->held), buf_free(&g->part), buf_free(&g->text);
}

void detok_free(detok *d) {
    if (!d) return;
    for (size_t i = 0; i < d->t->n_decoder; i++) stage_free(&d->stage[i]);
    free(d->stage);
    free(d);
}

void detok_push(detok *d, int32_t id, buf *out) {
    str token = tokenizer_token(d->t, id);
    if (!token.p || (d->skip_special && d->t->special[id])) return;
    d->out = out;
    stage_text(d, 0, token, true);
}

void detok_finish(detok *d, buf *out) {
    d->out = out;
    for (size_t i = 0; i < d->t->n_decoder; i++) stage_finish(d, i);
}

void tokenizer_decode(const tokenizer *t, const int32_t *id, size_t n, bool skip_special, buf *out) {
    detok *d = detok_new(t, skip_special);
    for (size_t i = 0; i < n; i++) detok_push(d, id[i], out);
    detok_finish(d, out);
    detok_free(d);
}

void tokenizer_bytes(const tokenizer *t, int32_t id, buf *out) {
    str token = tokenizer_token(t, id);
    buf text = {0};
    buf_str(&text, token);
    for (size_t i = 0; i < t->n_decoder && token.p; i++) {
        const decoder *d = &t->decoder[i];
        int b = d->kind == DECODER_BYTE_FALLBACK ? byte_named(token) : -1;
        if (b >= 0)
            text.n = 0, buf_putc(&text, (char)b);
        else if (d->kind == DECODER_BYTE_LEVEL)
            text.n = 0, spelled_bytes(token, &text);
        else if (d->kind == DECODER_METASPACE && text.n)
            buf_replace(&text, d->from, STR(" "));
        else if (d->kind == DECODER_REPLACE && !d->find && d->from.n && text.n)
            buf_replace(&text, d->from, d->to);
        else if (d->kind == DECODER_WORDPIECE && str_starts(token, d->from))
            text.n = 0, buf_str(&text, str_slice(token, d->from.n, token.n));
    }
    buf_str(out, buf_view(&text));
    buf_free(&text);
}
