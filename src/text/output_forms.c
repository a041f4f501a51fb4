/* How families write what is not plain text in a reply: the marks of thinking and of tool calls, and how to tell from a
 * template which of them a model uses. Not here: reading them (output.c, output_calls.c). */
#include <stdlib.h>
#include "output_internal.h"

/* ---- marks that are tokens only ---------------------------------------------------------------------------------- */
static const char *const token_marks[] = {"<|channel>", "<channel|>"};

str mark_spelled(str mark) {
    if (mark.n != 1 || (uint8_t)mark.p[0] < MARK_BYTE) return mark;
    return str_of(token_marks[(uint8_t)mark.p[0] - MARK_BYTE]);
}

/* ---- thinking ---------------------------------------------------------------------------------------------------- */
#define FORM(name, open, close) \
    { name, STR(open), STR(close), {0}, STR("\n" close "\n\n"), false }
static const think_form think_forms[] = {
    {"gemma", STR("\xF8"), STR("\xF9"), STR("thought\n"), STR("<channel|>"), true},
    FORM("mistral", "[THINK]", "[/THINK]"),
    FORM("seed", "<seed:think>", "</seed:think>"),
    FORM("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    FORM("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
    FORM("think", "<think>", "</think>"),
};
#undef FORM

const think_form *think_form_named(const char *name) {
    for (size_t i = 0; i < COUNT(think_forms); i++)
        if (!strcmp(think_forms[i].name, name)) return &think_forms[i];
    return NULL;
}

const think_form *think_form_of(const chat_template *t, const tokenizer *k) {
    for (size_t i = 0; t && i < COUNT(think_forms); i++) {
        const think_form *f = &think_forms[i];
        if (!chat_template_says(t, mark_spelled(f->open))) continue;
        if (!f->by_token || tokenizer_id(k, mark_spelled(f->open)) >= 0) return f;
    }
    return NULL;
}

/* ---- tool calls -------------------------------------------------------------------------------------------------- */
static const call_form call_forms[] = {
    {"qwen", STR("<function=")},
    {"hermes", STR("<tool_call>")},
};

const call_form *call_form_named(const char *name) {
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (!strcmp(call_forms[i].name, name)) return &call_forms[i];
    return NULL;
}

const call_form *call_form_of(const chat_template *t, const tokenizer *k) {
    for (size_t i = 0; t && i < COUNT(call_forms); i++)
        if (chat_template_says(t, call_forms[i].sign)) return &call_forms[i];
    return NULL;
}

const char *call_form_name(const call_form *f) {
    return f ? f->name : "none";
}

tool_list *tool_list_new(const json *tools, const call_form *f) {
    if (!f || !tools || !tools->n) return NULL;
    tool_list *l = mem_alloc(sizeof *l);
    buf text = {0};
    json_write(&text, tools);
    l->refs = 1;
    l->form = f;
    l->a = arena_new(0);
    l->tools = json_read(l->a, buf_view(&text), NULL, NULL);
    buf_free(&text);
    return l;
}

tool_list *tool_list_keep(tool_list *l) {
    __atomic_add_fetch(&l->refs, 1, __ATOMIC_RELAXED);
    return l;
}

void tool_list_drop(tool_list *l) {
    if (!l || __atomic_sub_fetch(&l->refs, 1, __ATOMIC_ACQ_REL)) return;
    arena_free(l->a);
    free(l);
}
