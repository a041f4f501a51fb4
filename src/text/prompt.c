/* Messages become a prompt: rendered, tokenised with the client's text kept plain, the end that the template wrote, and
 * the places where prompts are likely to part (docs/prefix-cache.md). */
#include "history.h"

enum {
    TAIL_BYTES_MAX = 4096,
    MARK_MIN = 16,   /* tokens before a mark: less is computed at once */
    MARK_APART = 8,  /* marks closer than this are one */
    PRIMER_MAX = 256 /* tokens: a template that ends otherwise was not understood */
};

/* Whether a reply starts inside a thinking block is for the template to say, never for a client's text. */
static str trusted_tail(const prompt *p) {
    size_t from = p->text.n;
    while (from > 0 && p->text.n - from < TAIL_BYTES_MAX && !p->user.p[from - 1]) from--;
    return str_slice(buf_view(&p->text), from, p->text.n);
}

/* A template that writes BOS itself, under a tokenizer that adds one. */
static void drop_second_bos(ids *v, int32_t bos) {
    if (v->n < 2 || bos < 0 || v->p[0] != bos || v->p[1] != bos) return;
    memmove(v->p, v->p + 1, --v->n * sizeof *v->p);
}

/* Minutes of work for a prompt that no context holds would be minutes that others wait. */
static bool length_check(const prompt *p, const tokenizer *k, size_t n, error *err) {
    if (!p->tokens_max || n <= tokenizer_text_max(k, (size_t)p->tokens_max)) return true;
    return error_field(err, ERR_MEMORY, "messages",
                       "the prompt has %zu bytes, which leaves no place for a reply in the context of %d", n,
                       p->tokens_max);
}

/* ---- marks ------------------------------------------------------------------------------------------------------- */
/* Where the template itself wrote `word`, from byte `from` on; SIZE_MAX: nowhere. */
static size_t template_word(const prompt *p, str word, size_t from) {
    while (from < p->text.n) {
        size_t at = str_find((str){p->text.p + from, p->text.n - from}, word);
        if (at == SIZE_MAX) break;
        at += from;
        if (!memchr(p->user.p + at, 1, word.n)) return at;
        from = at + 1;
    }
    return SIZE_MAX;
}

/* Templates separate messages by special tokens of their own, and clients cannot write these: a message begins at the
 * last special token before something a client wrote. */
static void marks_of_messages(prompt *p, const tokenizer *k) {
    size_t byte = 0;
    int32_t last = -1; /* special token, as an index of ids */
    for (size_t i = 0; i < p->ids.n; i++) {
        if (!tokenizer_is_special(k, p->ids.p[i])) continue;
        const str word = tokenizer_token(k, p->ids.p[i]);
        const size_t at = word.n ? template_word(p, word, byte) : SIZE_MAX;
        if (at == SIZE_MAX) continue; /* the tokenizer put it there */
        if (last >= MARK_MIN && memchr(p->user.p + byte, 1, at - byte)) ids_push(&p->marks, last);
        last = (int32_t)i;
        byte = at + word.n;
    }
    if (last >= MARK_MIN) ids_push(&p->marks, last); /* of the reply to come */
}

static bool probe_render(const chat_template *t, const tokenizer *k, const render_opts *o, const char *messages,
                         prompt *out) {
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"f\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    arena *a = arena_new(0);
    render_opts with = *o;
    with.messages = json_read(a, str_of(messages), NULL, NULL);
    with.tools = o->tools ? json_read(a, STR(tools), NULL, NULL) : NULL;
    with.now_unix = 1; /* the same for both */
    bool ok =
        history_render(t, &with, &out->text, &out->user, NULL) &&
        tokenizer_encode_marked(k, buf_view(&out->text), (const uint8_t *)out->user.p, ENCODE_SPECIAL, &out->ids, NULL);
    arena_free(a);
    return ok;
}

/* The same question alone, and answered and followed by another; the client sends the reasoning back, or, as most do,
 * only the answer: a template may keep the one and write an empty block for the other. */
static const char *const probe_now = "[{\"role\":\"user\",\"content\":\"a\"}]";
static const char *const probe_next[] = {
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"c\"},"
    "{\"role\":\"user\",\"content\":\"d\"}]",
    "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
    "{\"role\":\"user\",\"content\":\"d\"}]",
};

/* How many tokens at the end of a prompt are there only because a reply is to follow: what a rendering with the reply
 * and a next question does not repeat. -1: the template does not say. */
static int32_t primer_probe(const chat_template *t, const tokenizer *k, const render_opts *o) {
    prompt now = {0};
    int32_t primer = -1;
    const bool known = probe_render(t, k, o, probe_now, &now);
    for (size_t i = 0; known && i < COUNT(probe_next); i++) {
        prompt next = {0};
        if (probe_render(t, k, o, probe_next[i], &next)) {
            size_t same = 0;
            while (same < now.ids.n && same < next.ids.n && now.ids.p[same] == next.ids.p[same]) same++;
            if (now.ids.n - same <= PRIMER_MAX) primer = MAX(primer, (int32_t)(now.ids.n - same));
        }
        prompt_free(&next);
    }
    prompt_free(&now);
    return primer;
}

int32_t prompt_primer(const chat_template *t, const tokenizer *k, const render_opts *o) {
    buf key = {0};
    int32_t primer;
    if (o->variables) json_write(&key, o->variables);
    buf_puts(&key, o->tools ? "|tools" : "|");
    if (!chat_template_recall(t, buf_view(&key), &primer)) {
        primer = primer_probe(t, k, o);
        chat_template_remember(t, buf_view(&key), primer);
    }
    buf_free(&key);
    return primer;
}

static void marks_find(prompt *p, const chat_template *t, const tokenizer *k, const render_opts *o) {
    marks_of_messages(p, k);
    const int32_t primer = o->add_generation_prompt ? prompt_primer(t, k, o) : -1;
    const int32_t at = (int32_t)p->ids.n - MAX(primer, 1); /* the same prompt again: its last token is computed */
    if (primer < 0 || at < MARK_MIN) return;
    while (p->marks.n && p->marks.p[p->marks.n - 1] > at - MARK_APART) p->marks.n--;
    ids_push(&p->marks, at);
}

bool prompt_render(prompt *p, const chat_template *t, const tokenizer *k, const render_opts *o, error *err) {
    if (!history_render(t, o, &p->text, &p->user, err)) return false;
    if (!length_check(p, k, p->text.n, err)) return false;
    p->tail = trusted_tail(p);
    if (!tokenizer_encode_marked(k, buf_view(&p->text), (const uint8_t *)p->user.p, ENCODE_SPECIAL, &p->ids, err))
        return false;
    drop_second_bos(&p->ids, tokenizer_bos(k));
    marks_find(p, t, k, o);
    return p->ids.n || error_set(err, ERR_INVALID, "the prompt has no tokens");
}

bool prompt_raw(prompt *p, const tokenizer *k, str text, error *err) {
    if (!length_check(p, k, text.n, err)) return false;
    if (!tokenizer_encode(k, text, ENCODE_SPECIAL | ENCODE_ADD_SPECIAL, &p->ids, err)) return false;
    drop_second_bos(&p->ids, tokenizer_bos(k));
    return p->ids.n || error_set(err, ERR_INVALID, "the prompt has no tokens");
}

void prompt_free(prompt *p) {
    buf_free(&p->text);
    buf_free(&p->user);
    ids_free(&p->ids);
    ids_free(&p->marks);
}
