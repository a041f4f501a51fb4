/* WordPiece (greedy longest match inside a word) and WordLevel (whole words). */
#include "tokenizer.h"

static bool unk_push(const model *m, ids *out, error *err) {
    if (m->unk < 0) return error_set(err, ERR_FORMAT, "tokenizer: the unk token is not in the vocabulary");
    ids_push(out, m->unk);
    return true;
}

bool wordlevel_encode(const model *m, str piece, ids *out, error *err) {
    int32_t id = vocab_find(&m->vocab, piece);
    return id >= 0 ? ids_push(out, id), true : unk_push(m, out, err);
}

bool wordpiece_encode(const model *m, str piece, ids *out, error *err) {
    size_t chars = 0;
    for (size_t i = 0; i < piece.n; i++) chars += !utf8_inside(piece.p[i]);
    if (chars > m->chars_max) return unk_push(m, out, err);
    size_t kept = out->n;
    buf s = {0};
    bool ok = true;
    for (size_t start = 0; start < piece.n;) {
        s.n = 0;
        if (start) buf_str(&s, m->prefix);
        size_t head = s.n, end = piece.n;
        buf_add(&s, piece.p + start, piece.n - start);
        int32_t id = -1;
        while (end > start && (id = vocab_find(&m->vocab, (str){s.p, head + end - start})) < 0) {
            size_t n;
            utf8_before(piece, end, &n);
            end -= n;
        }
        if (id < 0) {
            out->n = kept;
            ok = unk_push(m, out, err);
            break;
        }
        ids_push(out, id);
        start = end;
    }
    buf_free(&s);
    return ok;
}
