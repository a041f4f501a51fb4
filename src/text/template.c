/* Chat templates: where a checkpoint keeps them, and what they are rendered with.
 * The variables are those Hugging Face's apply_chat_template passes: messages, tools, documents, add_generation_prompt,
 * the special tokens' texts, and whatever the request adds. Special tokens belong to the template; everything else,
 * roles included, came from a client and is marked so (docs/templates.md). Not here: the language (jinja_*.c), fitting
 * requests to what a template accepts (server). */
#include <pthread.h>
#include <stdlib.h>
#include "history.h"
#include "jinja_internal.h"

enum { MEMO_MAX = 256 };
typedef struct memo {
    pthread_mutex_t mu;
    map *values;         /* [mu] owns */
    bool probed;         /* [mu] */
    history_rules rules; /* fixed once probed */
} memo;

enum { TEXT_MAX = 2 }; /* default, and the one for requests with tools */

struct chat_template {
    jinja *by_tools[TEXT_MAX]; /* owns; [1] NULL: [0] serves requests with tools too */
    arena *a;                  /* owns; holds the trusted variables */
    const json *trusted;
    str source; /* borrows (a): of the default */
    memo *memo; /* owns */
};

void chat_template_free(chat_template *t) {
    if (!t) return;
    for (int i = 0; i < TEXT_MAX; i++) jinja_free(t->by_tools[i]);
    arena_free(t->a);
    map_free(t->memo->values);
    pthread_mutex_destroy(&t->memo->mu);
    free(t->memo);
    free(t);
}

static chat_template *template_new(str source, str tool_source, json_builder *special, arena *a, error *err) {
    chat_template *t = mem_alloc(sizeof *t);
    t->a = a;
    t->memo = mem_alloc(sizeof *t->memo);
    t->memo->values = map_new(16);
    pthread_mutex_init(&t->memo->mu, NULL);
    t->trusted = json_built(special);
    t->source = (str){arena_copy(a, source.p, source.n), source.n};
    t->by_tools[0] = jinja_parse(source, err);
    if (t->by_tools[0] && tool_source.n) t->by_tools[1] = jinja_parse(tool_source, err);
    if (t->by_tools[0] && (t->by_tools[1] || !tool_source.n)) return t;
    error_prefix(err, "chat template: ");
    chat_template_free(t);
    return NULL;
}

/* A special token as a trusted variable; one that is not set stays undefined, as in Hugging Face. */
static void put_special(json_builder *b, const char *name, str text) {
    if (text.n) json_put(b, name, json_of_str((str){arena_copy(b->a, text.p, text.n), text.n}));
}

chat_template *chat_template_from(str source, str bos, str eos, error *err) {
    json_builder b = {.a = arena_new(0)};
    put_special(&b, "bos_token", bos);
    put_special(&b, "eos_token", eos);
    return template_new(source, (str){0}, &b, b.a, err);
}

/* "chat_template" as tokenizer_config.json has it: a string, or a list of {name, template}. */
static void read_entry(const json *entry, str *source, str *tool_source) {
    *source = json_str(entry, (str){0});
    if (!json_is(entry, JSON_ARRAY)) return;
    for (uint32_t i = 0; i < entry->n; i++) {
        str name = json_str(json_get(json_at(entry, i), "name"), STR(""));
        str text = json_str(json_get(json_at(entry, i), "template"), (str){0});
        if (str_is(name, "default")) *source = text;
        if (str_is(name, "tool_use")) *tool_source = text;
    }
    if (!source->n) *source = *tool_source;
}

/* Special tokens other than bos and eos that templates may name: text, or {content}. */
static void put_others(json_builder *b, const json *config) {
    static const char *const names[] = {"pad_token", "unk_token", "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < COUNT(names); i++) {
        const json *v = json_get(config, names[i]);
        put_special(b, names[i], json_str(json_is(v, JSON_OBJECT) ? json_get(v, "content") : v, (str){0}));
    }
}

static chat_template *open_sources(checkpoint *c, const tokenizer *t, json_builder *b, buf *file, error *err) {
    str source = {0}, tool_source = {0};
    error bad = {0};
    if (checkpoint_type(c) == CHECKPOINT_GGUF) {
        const json *meta = checkpoint_config(c);
        source = json_str(json_get(meta, "tokenizer.chat_template"), (str){0});
        tool_source = json_str(json_get(meta, "tokenizer.chat_template.tool_use"), (str){0});
    } else {
        const json *config = checkpoint_json(c, "tokenizer_config.json", &bad);
        if (bad.code == ERR_NONE && checkpoint_text(c, "chat_template.jinja", file, &bad))
            source = buf_view(file);
        else
            read_entry(json_get(config, "chat_template"), &source, &tool_source);
        if (bad.code == ERR_NONE && !source.n)
            read_entry(json_get(checkpoint_json(c, "chat_template.json", &bad), "chat_template"), &source,
                       &tool_source);
        if (bad.code != ERR_NONE) {
            if (err && err->code == ERR_NONE) *err = bad;
            return NULL;
        }
        put_others(b, config);
    }
    if (!source.n) return NULL;
    put_special(b, "bos_token", tokenizer_bos_text(t));
    put_special(b, "eos_token", tokenizer_eos_text(t));
    arena *a = b->a;
    b->a = NULL; /* given to the template */
    return template_new(source, tool_source, &(json_builder){a, b->m, b->n, b->cap}, a, err);
}

chat_template *chat_template_open(checkpoint *c, const tokenizer *t, error *err) {
    json_builder b = {.a = arena_new(0)};
    buf file = {0};
    chat_template *out = open_sources(c, t, &b, &file, err);
    buf_free(&file);
    arena_free(b.a);
    return out;
}

bool chat_template_render(const chat_template *t, const render_opts *o, buf *out, buf *user, error *err) {
    arena *a = arena_new(0);
    json_builder b = {.a = a};
    const json *more = o->variables;
    if (!json_get(more, "documents")) json_put(&b, "documents", (json){.type = JSON_NULL});
    for (uint32_t i = 0; json_is(more, JSON_OBJECT) && i < more->n; i++) {
        char *key = arena_copy(a, more->members[i].key.p, more->members[i].key.n);
        json_put(&b, key, more->members[i].value);
    }
    json_put(&b, "messages", o->messages ? *o->messages : (json){.type = JSON_ARRAY});
    json_put(&b, "tools", o->tools ? *o->tools : (json){.type = JSON_NULL});
    json_put(&b, "add_generation_prompt", json_of_bool(o->add_generation_prompt));
    const jinja *j = o->tools && t->by_tools[1] ? t->by_tools[1] : t->by_tools[0];
    const jinja_limits limits = {.memory_max = o->memory_max};
    bool ok = jinja_render_trusted(j, json_built(&b), t->trusted, &limits, o->now_unix, out, user, err);
    arena_free(a);
    return ok;
}

bool chat_template_recall(const chat_template *t, str key, int32_t *value) {
    uint64_t v;
    pthread_mutex_lock(&t->memo->mu);
    const bool found = map_get(t->memo->values, key, &v);
    pthread_mutex_unlock(&t->memo->mu);
    if (found) *value = (int32_t)(uint32_t)v;
    return found;
}

void chat_template_remember(const chat_template *t, str key, int32_t value) {
    pthread_mutex_lock(&t->memo->mu);
    if (map_count(t->memo->values) < MEMO_MAX) map_set(t->memo->values, key, (uint32_t)value);
    pthread_mutex_unlock(&t->memo->mu);
}

bool chat_template_reads(const chat_template *t, const char *variable) {
    for (int i = 0; i < TEXT_MAX; i++)
        if (t->by_tools[i] && jinja_reads(t->by_tools[i], str_of(variable))) return true;
    return false;
}

bool chat_template_thinks(const chat_template *t) {
    return str_has(t->source, THINK_OPEN);
}

bool chat_template_says(const chat_template *t, str text) {
    return str_has(t->source, text);
}

const history_rules *chat_template_rules(const chat_template *t) {
    memo *m = t->memo;
    pthread_mutex_lock(&m->mu);
    if (!m->probed) history_probe(t, &m->rules);
    m->probed = true;
    pthread_mutex_unlock(&m->mu);
    return &m->rules;
}
