/* Messages become a prompt: rendered, tokenised with the client's text kept plain, and the end that the template wrote.
 */
#include "text.h"

enum { TAIL_BYTES_MAX = 4096 };

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

bool prompt_render(prompt *p, const chat_template *t, const tokenizer *k, const render_opts *o, error *err) {
    if (!chat_template_render(t, o, &p->text, &p->user, err)) return false;
    if (!length_check(p, k, p->text.n, err)) return false;
    p->tail = trusted_tail(p);
    if (!tokenizer_encode_marked(k, buf_view(&p->text), (const uint8_t *)p->user.p, ENCODE_SPECIAL, &p->ids, err))
        return false;
    drop_second_bos(&p->ids, tokenizer_bos(k));
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
}
