/* `hearth logits MODEL --ids 1,2,3 --out F.safetensors`: logits of every prompt position and of greedy steps.
 * Tensors: logits [T,V] f32, greedy_ids i32 [N], greedy_logits [N,V] (row i is the one greedy_ids[i] was picked from).
 */
#include <stdio.h>
#include <stdlib.h>
#include "cli.h"

static bool prompt_ids(const options *o, int32_t **v, size_t *n, error *err) {
    buf text = {0};
    bool ok = !o->ids_file || cli_read(o->ids_file, &text, err);
    ok = ok && options_numbers(o->ids ? o->ids : text.p ? text.p : "", v, n, o->ids ? "ids" : "ids-file", err);
    buf_free(&text);
    return ok && (*n > 0 || error_set(err, ERR_USAGE, "the prompt has no ids"));
}

static bool run(const options *o, engine *e, const int32_t *v, size_t n, error *err) {
    size_t n_vocab = (size_t)engine_model(e)->vocab, greedy = (size_t)o->greedy, bytes = 0;
    if (!size_mul(n + greedy, n_vocab * sizeof(float), &bytes) || !size_add(bytes, greedy * sizeof(int32_t), &bytes))
        return error_set(err, ERR_TOO_LARGE, "%zu rows of logits do not fit", n + greedy);
    float *logits = mem_try(bytes, 64, err);
    if (!logits) return false;
    float *greedy_logits = logits + n * n_vocab;
    int32_t *greedy_ids = (int32_t *)(greedy_logits + greedy * n_vocab);
    int64_t t = (int64_t)n, s = (int64_t)greedy, w = (int64_t)n_vocab;
    safetensors_out out[] = {
        {"logits", DT_F32, 2, {t, w}, logits},
        {"greedy_ids", DT_I32, 1, {s}, greedy_ids},
        {"greedy_logits", DT_F32, 2, {s, w}, greedy_logits},
    };
    bool ok = engine_logits(e, v, n, (int)greedy, logits, greedy_ids, greedy_logits, err);
    ok = ok && safetensors_write(o->out, out, greedy ? 3 : 1, err);
    mem_try_free(logits, bytes);
    return ok;
}

int verb_logits(const options *o) {
    error err = {0};
    if (o->n_args != 1 || !o->out || !o->ids == !o->ids_file) {
        error_set(&err, ERR_USAGE, "logits takes a model, --ids or --ids-file, and --out");
        return cli_fail(&err);
    }
    int32_t *v = NULL;
    size_t n = 0;
    engine *e = NULL;
    char *path = cli_model_path(o, o->args[0], &err);
    bool ok = path && prompt_ids(o, &v, &n, &err) && (e = cli_engine(o, path, true, &err)) && run(o, e, v, n, &err);
    engine_close(e);
    free(v);
    free(path);
    return ok ? 0 : cli_fail(&err);
}
