/* The tokenizer's surface: encoding (added tokens, then normalizers, splits and model for the rest), and look-ups.
 * Building one: tokenizer_json.c, tokenizer_gguf.c, tokenizer_files.c. Decoding: detok.c. */
#include <stdlib.h>
#include "tokenizer.h"

tokenizer *tokenizer_new(void) {
    tokenizer *t = mem_alloc(sizeof *t);
    t->a = arena_new(0);
    t->bos = t->eos = t->model.unk = -1;
    t->added_id = map_new(64);
    return t;
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    for (size_t i = 0; i < t->n_norm; i++) pattern_free(t->norm[i].find);
    for (size_t i = 0; i < t->n_split; i++) pattern_free(t->split[i].find);
    for (size_t i = 0; i < t->n_decoder; i++) pattern_free(t->decoder[i].find);
    for (size_t i = 0; i < t->n_post; i++) free(t->post[i].item);
    free(t->norm), free(t->split), free(t->decoder), free(t->post), free(t->added), free(t->special);
    free(t->added_text);
    trie_deinit(&t->raw), trie_deinit(&t->normalized), trie_deinit(&t->model.trie);
    vocab_deinit(&t->model.vocab);
    free(t->model.merges.slot), free(t->model.score);
    map_free(t->added_id);
    arena_free(t->a);
    free(t);
}

void tokenizer_add_norm(tokenizer *t, norm n) {
    t->norm = mem_resize(t->norm, (t->n_norm + 1) * sizeof n);
    t->norm[t->n_norm++] = n;
}

void tokenizer_add_split(tokenizer *t, split s) {
    t->split = mem_resize(t->split, (t->n_split + 1) * sizeof s);
    t->split[t->n_split++] = s;
}

void tokenizer_add_decoder(tokenizer *t, decoder d) {
    t->decoder = mem_resize(t->decoder, (t->n_decoder + 1) * sizeof d);
    t->decoder[t->n_decoder++] = d;
}

void tokenizer_add_post(tokenizer *t, const int32_t *item, size_t n) {
    t->post = mem_resize(t->post, (t->n_post + 1) * sizeof *t->post);
    post *p = &t->post[t->n_post++];
    p->item = mem_alloc(n * sizeof *item);
    memcpy(p->item, item, n * sizeof *item);
    p->n = n;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */
static bool harmless(str s) {
    for (size_t i = 0; i < s.n; i++)
        if (strchr("<>[]|", s.p[i])) return false;
    return !str_has(s, STR("\uff5c")); /* DeepSeek's bar */
}

/* As the reference: a token of the vocabulary keeps its id, others are numbered behind; what the file says does not
 * count. */
void tokenizer_added_put(tokenizer *t, const added *token) {
    uint64_t seen;
    if (token->text.n == 0 || map_get(t->added_id, token->text, &seen)) return;
    t->added = mem_resize(t->added, (t->n_added + 1) * sizeof *t->added);
    added *a = &t->added[t->n_added++];
    *a = *token;
    a->text = arena_str(t->a, token->text);
    a->harmless = !token->special && harmless(token->text);
    a->id = vocab_find(&t->model.vocab, token->text);
    if (a->id < 0) {
        a->id = t->model.kind == MODEL_UNIGRAM ? t->model.vocab.n : (int32_t)t->model.vocab.count;
        if (t->added_max >= a->id) a->id = t->added_max + 1;
    }
    t->added_max = MAX(t->added_max, a->id);
    map_set(t->added_id, a->text, (uint64_t)a->id);
}

/* A text that stood twice would double with every processor: one small file, and the memory is gone. */
static bool posts_check(const tokenizer *t, error *err) {
    for (size_t i = 0; i < t->n_post; i++) {
        size_t n_sequence = 0;
        for (size_t k = 0; k < t->post[i].n; k++) {
            int32_t id = t->post[i].item[k];
            if (id == POST_SEQUENCE)
                n_sequence++;
            else if (id < 0 || id >= t->n_ids)
                return error_set(err, ERR_FORMAT, "tokenizer: post-processor %zu adds token %d; tokens are 0 to %d", i,
                                 id, t->n_ids - 1);
        }
        if (n_sequence > 1)
            return error_set(err, ERR_FORMAT, "tokenizer: post-processor %zu has the text %zu times; once is allowed",
                             i, n_sequence);
    }
    return true;
}

bool tokenizer_complete(tokenizer *t, error *err) {
    t->n_ids = t->model.vocab.n;
    for (size_t i = 0; i < t->n_added; i++) t->n_ids = MAX(t->n_ids, t->added[i].id + 1);
    if (!posts_check(t, err)) return false;
    t->special = mem_alloc((size_t)t->n_ids);
    t->added_text = mem_alloc((size_t)t->n_ids * sizeof *t->added_text);
    trie_key *raw = mem_alloc((t->n_added + 1) * sizeof *raw),
             *normalized = mem_alloc((t->n_added + 1) * sizeof *normalized);
    size_t n_raw = 0, n_normalized = 0;
    bool ok = true;
    for (size_t i = 0; i < t->n_added && ok; i++) {
        added *a = &t->added[i];
        t->special[a->id] = a->special;
        t->added_text[a->id] = a->text;
        t->longest = MAX(t->longest, a->text.n);
        if (!a->normalized) {
            raw[n_raw++] = (trie_key){a->text, (int32_t)i};
            continue;
        }
        masked m = {0};
        masked_add(&m, a->text, NULL);
        ok = norm_run(t->norm, t->n_norm, &m, err);
        if (ok && m.text.n) normalized[n_normalized++] = (trie_key){arena_str(t->a, buf_view(&m.text)), (int32_t)i};
        buf_free(&m.text);
    }
    for (int32_t i = 0; i < t->model.vocab.n; i++) { /* a spelling that has two ids is special under both */
        str s = t->model.vocab.token[i];
        t->longest = MAX(t->longest, s.n);
        if (s.p && vocab_find(&t->model.vocab, s) != i) t->special[i] = t->special[tokenizer_id(t, s)];
    }
    trie_build(&t->raw, raw, n_raw);
    trie_build(&t->normalized, normalized, n_normalized);
    free(raw), free(normalized);
    if (!t->n_decoder) tokenizer_add_decoder(t, (decoder){.kind = DECODER_JOIN});
    return ok;
}

static bool word_point(uint32_t cp) {
    return unicode_of(cp) & U_WORD;
}

static void match_push(added_matches *v, size_t from, size_t to, int32_t id) {
    if (v->n == v->cap) {
        v->cap = v->cap ? v->cap * 2 : 16;
        v->p = mem_resize(v->p, v->cap * sizeof *v->p);
    }
    v->p[v->n++] = (added_match){from, to, id};
}

/* The longest added token that starts at `at` and that the mask allows; -1 when none. */
static int32_t added_at(const tokenizer *t, const trie *tr, str s, const uint8_t *user, size_t at, size_t *end) {
    int32_t best = -1;
    uint32_t node = 0;
    bool client = false;
    for (size_t i = at; i < s.n && (node = trie_step(tr, node, (uint8_t)s.p[i]));) {
        client |= user && user[i];
        int32_t v = tr->node[node].value;
        i++;
        if (v >= 0 && (!client || t->added[v].harmless)) best = v, *end = i;
    }
    return best;
}

void added_find(const tokenizer *t, bool normalized, str s, const uint8_t *user, added_matches *out) {
    const trie *tr = normalized ? &t->normalized : &t->raw;
    size_t done = 0, n;
    out->n = 0;
    for (size_t at = 0; at < s.n;) {
        size_t from = at, to = at;
        int32_t v = tr->root[(uint8_t)s.p[at]] ? added_at(t, tr, s, user, at, &to) : -1;
        if (v < 0) {
            at++;
            continue;
        }
        at = to;
        const added *a = &t->added[v];
        if (a->single_word &&
            ((from > 0 && word_point(utf8_before(s, from, &n))) || (to < s.n && word_point(utf8_get(s.p + to, &n)))))
            continue;
        if (a->lstrip)
            while (from > done && unicode_is_space(utf8_before(s, from, &n))) from -= n;
        if (a->rstrip)
            while (to < s.n && unicode_is_space(utf8_get(s.p + to, &n))) to += n;
        if (from > done) match_push(out, done, from, -1);
        match_push(out, from, to, a->id);
        done = to;
    }
    if (done < s.n) match_push(out, done, s.n, -1);
}

/* ---- encoding ---------------------------------------------------------------------------------------------------- */
typedef struct encoder {
    const tokenizer *t;
    added_matches raw, normalized;
    masked text;
    pieces pieces;
    ids *out;
} encoder;

static bool model_encode(const model *m, str piece, ids *out, error *err) {
    static bool (*const encode[])(const model *, str, ids *, error *) = {
        [MODEL_BPE] = bpe_encode,
        [MODEL_UNIGRAM] = unigram_encode,
        [MODEL_WORDPIECE] = wordpiece_encode,
        [MODEL_WORDLEVEL] = wordlevel_encode,
    };
    return encode[m->kind](m, piece, out, err);
}

static bool encode_plain(encoder *e, str s, bool head, error *err) {
    if (!split_run(e->t->split, e->t->n_split, s, head, &e->pieces, err)) return false;
    for (size_t i = 0; i < e->pieces.n; i++) {
        piece p = e->pieces.p[i];
        if (!model_encode(&e->t->model, (str){e->pieces.text.p + p.at, p.n}, e->out, err)) return false;
    }
    return true;
}

static bool encode_stretch(encoder *e, str s, const uint8_t *user, bool head, error *err) {
    const tokenizer *t = e->t;
    e->text.text.n = e->text.user.n = 0;
    e->text.marked = user != NULL;
    e->text.head = head;
    masked_add(&e->text, s, user);
    if (!norm_run(t->norm, t->n_norm, &e->text, err)) return false;
    str text = buf_view(&e->text.text);
    added_find(t, true, text, user ? (uint8_t *)e->text.user.p : NULL, &e->normalized);
    for (size_t i = 0; i < e->normalized.n; i++) {
        added_match m = e->normalized.p[i];
        if (m.id >= 0)
            ids_push(e->out, m.id);
        else if (!encode_plain(e, str_slice(text, m.from, m.to), e->text.head && m.from == 0, err))
            return false;
    }
    return true;
}

static void post_run(const tokenizer *t, ids *out, size_t from) {
    for (size_t i = 0; i < t->n_post; i++) {
        ids whole = {0};
        for (size_t k = 0; k < t->post[i].n; k++)
            if (t->post[i].item[k] == POST_SEQUENCE)
                ids_append(&whole, out->p + from, out->n - from);
            else
                ids_push(&whole, t->post[i].item[k]);
        out->n = from;
        ids_append(out, whole.p, whole.n);
        ids_free(&whole);
    }
}

bool tokenizer_encode_marked(const tokenizer *t, str text, const uint8_t *user, unsigned flags, ids *out, error *err) {
    size_t valid = utf8_valid(text), from = out->n;
    if (valid < text.n) return error_set(err, ERR_INVALID, "text is not valid UTF-8 at byte %zu", valid);
    uint8_t *all = NULL;
    if (!(flags & ENCODE_SPECIAL) && text.n) { /* nothing is trusted: as if a client had written all of it */
        all = mem_try(text.n, 1, err);
        if (!all) return false;
        memset(all, 1, text.n);
        user = all;
    }
    encoder e = {.t = t, .out = out};
    added_find(t, false, text, user, &e.raw);
    bool ok = true;
    for (size_t i = 0; i < e.raw.n && ok; i++) {
        added_match m = e.raw.p[i];
        if (m.id >= 0)
            ids_push(out, m.id);
        else
            ok = encode_stretch(&e, str_slice(text, m.from, m.to), user ? user + m.from : NULL, m.from == 0, err);
    }
    if (ok && flags & ENCODE_ADD_SPECIAL) post_run(t, out, from);
    if (!ok) out->n = from;
    free(e.raw.p), free(e.normalized.p);
    buf_free(&e.text.text), buf_free(&e.text.user);
    pieces_free(&e.pieces);
    mem_try_free(all, text.n);
    return ok;
}

bool tokenizer_encode(const tokenizer *t, str text, unsigned flags, ids *out, error *err) {
    return tokenizer_encode_marked(t, text, NULL, flags, out, err);
}

/* ---- look-ups ---------------------------------------------------------------------------------------------------- */
int32_t tokenizer_size(const tokenizer *t) {
    return t->n_ids;
}

size_t tokenizer_text_max(const tokenizer *t, size_t n) {
    size_t most, shrink = t->n_norm ? 4 : 1; /* composing and folding take away less than that */
    return size_mul(n, t->longest * shrink, &most) ? most : SIZE_MAX;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_ids && t->special[id];
}

int32_t tokenizer_id(const tokenizer *t, str token) {
    uint64_t id;
    if (map_get(t->added_id, token, &id)) return (int32_t)id;
    return vocab_find(&t->model.vocab, token);
}

str tokenizer_token(const tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->n_ids) return (str){0};
    if (t->added_text[id].p) return t->added_text[id];
    return id < t->model.vocab.n ? t->model.vocab.token[id] : (str){0};
}

int32_t tokenizer_bos(const tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const tokenizer *t) {
    return t->eos;
}

str tokenizer_bos_text(const tokenizer *t) {
    return tokenizer_token(t, t->bos);
}

str tokenizer_eos_text(const tokenizer *t) {
    return tokenizer_token(t, t->eos);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static tokenizer *open_directory(checkpoint *c, error *err) {
    error inner = {0};
    const json *config = checkpoint_json(c, "tokenizer_config.json", &inner);
    const json *file = inner.code || inner.msg[0] ? NULL : checkpoint_json(c, "tokenizer.json", &inner);
    if (file) return tokenizer_from_json(file, config, err);
    if (!inner.msg[0]) file = checkpoint_json(c, "tekken.json", &inner);
    if (file) return tokenizer_from_tekken(file, err);
    if (inner.msg[0]) {
        error_set(err, inner.code, "%s", inner.msg);
        return NULL;
    }
    buf model = {0};
    tokenizer *t = NULL;
    if (checkpoint_text(c, "tokenizer.model", &model, err))
        t = tokenizer_from_sentencepiece(buf_view(&model), err);
    else
        error_set(err, ERR_FORMAT, "%s: no tokenizer.json, tekken.json or tokenizer.model", checkpoint_path(c));
    buf_free(&model);
    return t;
}

tokenizer *tokenizer_open(checkpoint *c, error *err) {
    tokenizer *t =
        checkpoint_type(c) == CHECKPOINT_GGUF ? tokenizer_from_gguf(checkpoint_config(c), err) : open_directory(c, err);
    if (!t) error_prefix(err, "%s: ", checkpoint_path(c));
    return t;
}
