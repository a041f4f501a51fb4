/* How families write what is not plain text in a reply: the marks of thinking and of tool calls, and how to tell from a
 * template which of them a model uses. Not here: reading them (output.c, output_calls.c). */
#include <stdlib.h>
#include "history.h"
#include "output_internal.h"

/* ---- marks that are tokens only ---------------------------------------------------------------------------------- */
static const char *const token_marks[] = {"<|channel|>", "<|message|>",   "<|start|>",    "<|channel>",
                                          "<channel|>",  "<|tool_call>",  "<tool_call|>", "<|\"|>",
                                          "<|end|>",     "<|constrain|>", "<|call|>"};

str mark_spelled(str mark) {
    if (mark.n != 1 || (uint8_t)mark.p[0] < MARK_BYTE) return mark;
    return str_of(token_marks[(uint8_t)mark.p[0] - MARK_BYTE]);
}

/* ---- thinking ---------------------------------------------------------------------------------------------------- */
#define FORM(name, open, close) \
    { name, STR(open), STR(close), {0}, STR("\n" close "\n\n"), false, false }
static const think_form think_forms[] = {
    {"harmony", MARK_CHANNEL, MARK_END, {0}, STR("<|end|><|start|>assistant<|channel|>final<|message|>"), true, true},
    {"gemma", STR("\xF8"), STR("\xF9"), STR("thought\n"), STR("<channel|>"), true, false},
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

str think_form_open(const think_form *f) {
    return mark_spelled(f->open);
}

/* ---- tool calls -------------------------------------------------------------------------------------------------- */
/* <tool_call> and what models write in it: an object, <function=…>, or a name with arg_key and arg_value. */
#define TAGS                                                                                      \
    .close = STR("</tool_call>"), .invoke = STR("<function"), .invoke_close = STR("</function>"), \
    .param = STR("<parameter"), .param_close = STR("</parameter>"), .strip = true
#define BLOCK .mark = {{STR("<tool_call>"), CALL_BLOCK}}, TAGS
#define LIST(name_, sign_, open_, close_) \
    { .name = name_, .sign = STR(sign_), .mark = {{STR(open_), CALL_LIST}}, .close = STR(close_) }

#define DSML(name_, sign_, word)                                                               \
    {                                                                                          \
        .name = name_, .sign = STR(sign_), .mark = {{STR("<｜DSML｜" word ">"), CALL_INVOKE}}, \
        .close = STR("</｜DSML｜" word ">"), .invoke = STR("<｜DSML｜invoke"),                 \
        .invoke_close = STR("</｜DSML｜invoke>"), .param = STR("<｜DSML｜parameter"),          \
        .param_close = STR("</｜DSML｜parameter>")                                             \
    }

static const call_form call_forms[] = {
    {.name = "harmony", .sign = MARK_CHANNEL},
    {.name = "gemma",
     .sign = STR("\xFA"),
     .mark = {{STR("\xFA"), CALL_GEMMA}},
     .close = STR("\xFB"),
     .sep = STR("\xFC")},
    DSML("deepseek-v4", "'tool_calls>", "tool_calls"),
    DSML("deepseek-dsml", "｜DSML｜", "function_calls"),
    {.name = "minimax",
     .sign = STR("<minimax:tool_call>"),
     .mark = {{STR("<minimax:tool_call>"), CALL_INVOKE}},
     .close = STR("</minimax:tool_call>"),
     .invoke = STR("<invoke"),
     .invoke_close = STR("</invoke>"),
     .param = STR("<parameter"),
     .param_close = STR("</parameter>"),
     .strip = true},
    {.name = "seed",
     .sign = STR("<seed:tool_call>"),
     .mark = {{STR("<seed:tool_call>"), CALL_INVOKE}},
     .close = STR("</seed:tool_call>"),
     .invoke = STR("<function"),
     .invoke_close = STR("</function>"),
     .param = STR("<parameter"),
     .param_close = STR("</parameter>"),
     .strip = true},
    {.name = "minicpm",
     .sign = STR("<param name="),
     .mark = {{STR("<function "), CALL_INVOKE, .keep = true}, {STR("<tool_call>"), CALL_BLOCK}},
     .close = STR("</tool_call>"),
     .invoke = STR("<function"),
     .invoke_close = STR("</function>"),
     .param = STR("<param"),
     .param_close = STR("</param>"),
     .entities = true},
    {.name = "glm", .sign = STR("<arg_key>"), BLOCK},
    {.name = "qwen",
     .sign = STR("<function="),
     .mark = {{STR("<tool_call>"), CALL_BLOCK}, {STR("<function="), CALL_INVOKE, .keep = true}},
     TAGS},
    {.name = "deepseek",
     .sign = STR("<｜tool▁calls▁begin｜>"),
     .mark = {{STR("<｜tool▁calls▁begin｜>"), CALL_ITEM}},
     .close = STR("<｜tool▁calls▁end｜>"),
     .item = STR("<｜tool▁call▁begin｜>"),
     .sep = STR("<｜tool▁sep｜>"),
     .item_close = STR("<｜tool▁call▁end｜>")},
    {.name = "kimi",
     .sign = STR("<|tool_calls_section_begin|>"),
     .mark = {{STR("<|tool_calls_section_begin|>"), CALL_ITEM}},
     .close = STR("<|tool_calls_section_end|>"),
     .item = STR("<|tool_call_begin|>"),
     .sep = STR("<|tool_call_argument_begin|>"),
     .item_close = STR("<|tool_call_end|>")},
    {.name = "mistral",
     .sign = STR("[TOOL_CALLS]"),
     .mark = {{STR("[TOOL_CALLS]"), CALL_MISTRAL}},
     .item = STR("[CALL_ID]"),
     .sep = STR("[ARGS]")},
    {.name = "phi",
     .sign = STR("<|tool_call|>"),
     .mark = {{STR("<|tool_call|>"), CALL_LIST}, {STR("functools"), CALL_LIST}},
     .close = STR("<|/tool_call|>")},
    LIST("cohere", "<|START_ACTION|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    LIST("nemotron", "<TOOLCALL>", "<TOOLCALL>", "</TOOLCALL>"),
    LIST("apriel", "<tool_calls>", "<tool_calls>", "</tool_calls>"),
    LIST("firefunction", "functools", "functools", ""),
    {.name = "llama",
     .sign = STR("ipython"),
     .mark = {{STR("<|python_tag|>"), CALL_LIST},
              {STR("{"), CALL_LIST, .keep = true, .at_start = true},
              {STR("<tool_call>"), CALL_BLOCK}},
     TAGS},
    {.name = "hermes", .sign = STR(""), BLOCK}, /* also where a template says nothing of calls */
};
#undef TAGS
#undef BLOCK
#undef LIST
#undef DSML

const call_form *call_form_named(const char *name) {
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (!strcmp(call_forms[i].name, name)) return &call_forms[i];
    return NULL;
}

const call_form *call_form_of(const chat_template *t, const tokenizer *k) {
    if (t && chat_template_rules(t)->tools_text) return call_form_named("hermes"); /* what the prompt then asks for */
    for (size_t i = 0; t && i < COUNT(call_forms); i++) {
        str sign = call_forms[i].sign;
        if (mark_is_token(sign) && tokenizer_id(k, mark_spelled(sign)) < 0) continue;
        if (chat_template_says(t, mark_spelled(sign))) return &call_forms[i];
    }
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
