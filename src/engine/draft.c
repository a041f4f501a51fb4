/* draft: which kind of draft a model is, before anything large is opened. Speculation itself does not exist yet: every
 * kind is refused with its reason. The order of the tests is spec/engine.md 5.1's: dspark.json, then the architecture,
 * then the model type; whatever else it is, or cannot be read, is an ordinary model beside the target. */
#include <stdlib.h>
#include "../base/json.h"
#include "internal.h"

typedef enum draft_kind {
#define DRAFT(symbol, name, why) DRAFT_##symbol,
#include "draft.def"
#undef DRAFT
} draft_kind;

static const struct {
    const char *name, *why;
} kinds[] = {
#define DRAFT(symbol, name, why) {name, why},
#include "draft.def"
#undef DRAFT
};

static bool kind_parse(str s, draft_kind *out) {
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (str_is(s, kinds[i].name)) return *out = (draft_kind)i, true;
    return false;
}

static draft_kind kind_of_config(const json *config) {
    str arch = json_str(json_at(json_get(config, "architectures"), 0), STR(""));
    str type = json_str(json_get(config, "model_type"), STR(""));
    if (str_is(arch, "Gemma4DSparkModel")) return DRAFT_DEEPSPEC;
    if (str_has(type, STR("assistant"))) return DRAFT_ASSISTANT;
    return str_ends(type, STR("_mtp")) ? DRAFT_MTP : DRAFT_TWO_MODEL;
}

/* From the files of a model directory or .gguf: what cannot be read is an ordinary model. */
static draft_kind kind_detect(const char *path) {
    enum { CONFIG_BYTES_MAX = 16 << 20 };
    char *own = path_join(path, "dspark.json"), *config = path_join(path, "config.json");
    draft_kind kind = DRAFT_TWO_MODEL;
    buf text = {0};
    arena *a = arena_new(8 * CONFIG_BYTES_MAX);
    error unreadable = {0};
    if (file_exists(own))
        kind = DRAFT_DSPARK;
    else if (file_read(&text, config, CONFIG_BYTES_MAX, &unreadable))
        kind = kind_of_config(json_read(a, buf_view(&text), NULL, &unreadable));
    arena_free(a);
    buf_free(&text);
    free(own);
    free(config);
    return kind;
}

bool draft_check(const engine_opts *o, error *err) {
    draft_kind kind;
    if (!o->draft_model && !o->draft_kind) return true;
    if (!o->draft_kind) {
        kind = kind_detect(o->draft_model);
    } else if (!kind_parse(str_of(o->draft_kind), &kind)) {
        buf all = {0};
        for (size_t i = 0; i < COUNT(kinds); i++) buf_printf(&all, "%s%s", i ? ", " : "", kinds[i].name);
        error_field(err, ERR_INVALID, "draft_kind", "draft kind '%s' is not one of %s", o->draft_kind, all.p);
        buf_free(&all);
        return false;
    }
    if (kind == DRAFT_NGRAM ? o->draft_model != NULL : o->draft_model == NULL)
        return error_field(err, ERR_INVALID, "draft_kind", "draft kind %s %s", kinds[kind].name,
                           kind == DRAFT_NGRAM ? "needs no draft model and must be alone" : "needs a draft model");
    return error_set(err, ERR_UNSUPPORTED, "%s%sdraft of kind %s%s: %s; serve without a draft",
                     o->draft_model ? o->draft_model : "", o->draft_model ? ": " : "", kinds[kind].name,
                     o->draft_kind ? "" : " (found in its files)", kinds[kind].why);
}
