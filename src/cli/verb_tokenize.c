/* `hearth tokenize` and `hearth detokenize`: text to ids and back, as the model's tokenizer does it. */
#include <stdio.h>
#include <stdlib.h>
#include "../hub/hub.h"
#include "cli.h"

/* The tokenizer of a model argument, without its weights. */
static tokenizer *open_tokenizer(const char *model, error *err) {
    char *path = hub_resolve(model, err);
    checkpoint *c = path ? checkpoint_open(path, err) : NULL;
    tokenizer *t = c ? tokenizer_open(c, err) : NULL;
    checkpoint_close(c);
    free(path);
    return t;
}

int verb_tokenize(const options *o) {
    error err = {0};
    if (o->n_args != 2) {
        error_set(&err, ERR_USAGE, "tokenize takes a model and a text (- for standard input)");
        return cli_fail(&err);
    }
    buf input = {0};
    ids v = {0};
    unsigned flags = (o->special ? ENCODE_SPECIAL : 0) | (o->add_special ? ENCODE_ADD_SPECIAL : 0);
    bool piped = strcmp(o->args[1], "-") == 0;
    tokenizer *t = open_tokenizer(o->args[0], &err);
    bool ok = t && (!piped || cli_read("-", &input, &err));
    ok = ok && tokenizer_encode(t, piped ? buf_view(&input) : str_of(o->args[1]), flags, &v, &err);
    if (ok) {
        putchar('[');
        for (size_t i = 0; i < v.n; i++) printf("%s%d", i ? ", " : "", v.p[i]);
        puts("]");
    }
    tokenizer_free(t);
    ids_free(&v);
    buf_free(&input);
    return ok ? 0 : cli_fail(&err);
}

int verb_detokenize(const options *o) {
    error err = {0};
    if (o->n_args != 2) {
        error_set(&err, ERR_USAGE, "detokenize takes a model and ids: 1,2,3 (- for standard input)");
        return cli_fail(&err);
    }
    buf input = {0}, text = {0};
    int32_t *v = NULL;
    size_t n = 0;
    bool piped = strcmp(o->args[1], "-") == 0;
    tokenizer *t = open_tokenizer(o->args[0], &err);
    bool ok = t && (!piped || cli_read("-", &input, &err));
    ok = ok && options_numbers(piped ? input.p : o->args[1], &v, &n, "ids", &err);
    for (size_t i = 0; ok && i < n; i++)
        if (v[i] >= tokenizer_size(t))
            ok = error_set(&err, ERR_INVALID, "id %d is outside the vocabulary of %d", v[i], tokenizer_size(t));
    if (ok) {
        tokenizer_decode(t, v, n, o->skip_special, &text);
        fwrite(text.p, 1, text.n, stdout);
    }
    tokenizer_free(t);
    free(v);
    buf_free(&input);
    buf_free(&text);
    return ok ? 0 : cli_fail(&err);
}
