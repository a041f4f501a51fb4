/* Prompts: where messages begin, and the end that a next turn does not repeat. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tokenizer_make.h"

/* ChatML with thinking that old turns lose, and a switch for it. */
static const char chatml[] =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content and preserve_thinking %}{{ '<think>\\n' + "
    "m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}{{ m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not "
    "enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% else %}{{ '<think>\\n' }}{% endif %}{% endif %}";
/* Old turns keep their thinking, and have an empty block for thinking that did not come back. */
static const char keeping[] =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.role == 'assistant' %}{{ '<think>' }}"
    "{% if m.reasoning_content %}{{ '\\n' + m.reasoning_content + '\\n' }}{% endif %}{{ '</think>' }}{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}";
/* A token for a role, no end; says its effort, and refuses words it does not know. */
static const char roles[] =
    "{% if tools %}{{ tools|tojson }}{% endif %}"
    "{%- for m in messages %}{{ '<|assistant|>' if m.role == 'assistant' else '<|user|>' }}{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}{%- endfor %}{%- if add_generation_prompt %}"
    "{{ '<|assistant|>' }}{% if tools %}{{ '(tools)' }}{% endif %}{% if reasoning_effort is defined %}"
    "{% if reasoning_effort not in ['low', 'medium', 'xhigh'] %}{{ raise_exception('no such effort') }}{% endif %}"
    "{{ '[' + reasoning_effort + ']' }}{% endif %}{% endif %}";
static const char plain[] = "{% for m in messages %}{{ m.role.upper() + ': ' + m.content + '\\n' }}{% endfor %}"
                            "{% if add_generation_prompt %}ASSISTANT:{% endif %}";
static const char stubborn[] = "{% if messages|length > 1 and messages[1].role == 'assistant' %}"
                               "{{ raise_exception('one question only') }}{% endif %}<|user|>{{ messages[0].content }}";

#define ADDED(id, text) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":true,\"normalized\":false}"
static tokenizer *words(void) {
    static const char added[] = ADDED(256, "<|im_start|>") "," ADDED(257, "<|im_end|>") "," ADDED(
        258, "<|user|>") "," ADDED(259, "<|assistant|>");
    return tokenizer_bytes_with(NULL, 0, added);
}

typedef struct setup {
    arena *a;
    tokenizer *k;
    chat_template *t;
    render_opts o;
} setup;
static setup open_with(const char *source, const char *messages, const char *variables, bool tools) {
    error err = {0};
    setup s = {.a = arena_new(0), .k = words(), .t = chat_template_from(str_of(source), (str){0}, (str){0}, &err)};
    if (!s.t) fail_msg("%s", err.msg);
    s.o = (render_opts){.messages = json_read(s.a, str_of(messages), NULL, &err),
                        .variables = variables ? json_read(s.a, str_of(variables), NULL, &err) : NULL,
                        .tools = tools ? json_read(s.a, STR("[{\"name\":\"f\"}]"), NULL, &err) : NULL,
                        .add_generation_prompt = true};
    assert_int_equal(err.code, ERR_NONE);
    return s;
}
static void close_all(setup *s) {
    chat_template_free(s->t);
    tokenizer_free(s->k);
    arena_free(s->a);
}

#define TURN(role, text) "{\"role\":\"" role "\",\"content\":\"" text "\"}"
static const char talk[] =
    "[" TURN("system", "You are <|im_start|> a help.") "," TURN("user", "What is it? <|user|>") "," TURN(
        "assistant", "It is this, I think.") "," TURN("user", "And that other one?") "]";

/* The text before each mark. */
static void expect(const char *source, const char *variables, const char *const *want, size_t n) {
    setup s = open_with(source, talk, variables, false);
    prompt p = {0};
    error err = {0};
    if (!prompt_render(&p, s.t, s.k, &s.o, &err)) fail_msg("%s", err.msg);
    assert_int_equal(p.marks.n, n);
    for (size_t i = 0; i < n; i++) {
        buf before = {0};
        tokenizer_decode(s.k, p.ids.p, (size_t)p.marks.p[i], false, &before);
        if (!str_ends(buf_view(&before), str_of(want[i]))) fail_msg("mark %zu: ...%s", i, before.p);
        buf_free(&before);
    }
    prompt_free(&p);
    close_all(&s);
}
static void messages_begin_at_the_templates_words(void **state) {
    expect(chatml, NULL,
           (const char *[]){"a help.<|im_end|>\n", "<|user|><|im_end|>\n", "I think.<|im_end|>\n",
                            "other one?<|im_end|>\n", "assistant\n"},
           5);
    expect(chatml, "{\"enable_thinking\":false}",
           (const char *[]){"a help.<|im_end|>\n", "<|user|><|im_end|>\n", "I think.<|im_end|>\n",
                            "other one?<|im_end|>\n", "assistant\n"},
           5);
    expect(chatml, "{\"preserve_thinking\":true}",
           (const char *[]){"a help.<|im_end|>\n", "<|user|><|im_end|>\n", "I think.<|im_end|>\n",
                            "other one?<|im_end|>\n", "assistant\n"},
           5); /* a client that does not send the reasoning back gets no <think> there */
    expect(keeping, NULL,
           (const char *[]){"a help.<|im_end|>\n", "<|user|><|im_end|>\n", "I think.<|im_end|>\n",
                            "other one?<|im_end|>\n", "assistant\n<think>"},
           5);
}
static void without_words_the_end_is_found(void **state) {
    expect(plain, NULL, (const char *[]){"other one?\nASSISTANT"}, 1);
}
static void a_template_that_refuses_the_probe_is_no_harm(void **state) {
    setup s = open_with(stubborn, "[" TURN("user", "a question that is long enough") "]", NULL, false);
    prompt p = {0};
    assert_true(prompt_render(&p, s.t, s.k, &s.o, NULL));
    for (size_t i = 0; i < p.marks.n; i++) assert_true(p.marks.p[i] > 0 && (size_t)p.marks.p[i] <= p.ids.n);
    prompt_free(&p);
    close_all(&s);
}

/* What is remembered depends on everything that changes the end of a prompt. */
static void the_primer_is_remembered_by_mode(void **state) {
    setup s = open_with(roles, talk, NULL, false);
    for (int round = 0; round < 2; round++) { /* the second from memory */
        s.o.variables = NULL;
        assert_int_equal(prompt_primer(s.t, s.k, &s.o), 0); /* <|assistant|> is repeated */
        s.o.variables = json_read(s.a, STR("{\"reasoning_effort\":\"low\"}"), NULL, NULL);
        assert_int_equal(prompt_primer(s.t, s.k, &s.o), 5);
        s.o.variables = json_read(s.a, STR("{\"reasoning_effort\":\"medium\"}"), NULL, NULL);
        assert_int_equal(prompt_primer(s.t, s.k, &s.o), 8);
        s.o.variables = json_read(s.a, STR("{\"reasoning_effort\":\"high\"}"), NULL, NULL);
        assert_int_equal(prompt_primer(s.t, s.k, &s.o), -1); /* the template refuses */
        s.o.variables = NULL;
        s.o.tools = json_read(s.a, STR("[{\"name\":\"f\"}]"), NULL, NULL);
        assert_int_equal(prompt_primer(s.t, s.k, &s.o), 7);
        s.o.tools = NULL;
    }
    close_all(&s);
    s = open_with(chatml, talk, NULL, false);
    assert_int_equal(prompt_primer(s.t, s.k, &s.o), 8); /* "<think>\n" */
    s.o.variables = json_read(s.a, STR("{\"enable_thinking\":false}"), NULL, NULL);
    assert_int_equal(prompt_primer(s.t, s.k, &s.o), 19); /* "<think>\n\n</think>\n\n" */
    s.o.variables = json_read(s.a, STR("{\"preserve_thinking\":true}"), NULL, NULL);
    assert_int_equal(prompt_primer(s.t, s.k, &s.o), 8); /* reasoning that is not sent back leaves no block */
    close_all(&s);
    s = open_with(keeping, talk, NULL, false);
    assert_int_equal(prompt_primer(s.t, s.k, &s.o), 1); /* "\n": an empty block has none */
    close_all(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_begin_at_the_templates_words),
        cmocka_unit_test(without_words_the_end_is_found),
        cmocka_unit_test(a_template_that_refuses_the_probe_is_no_harm),
        cmocka_unit_test(the_primer_is_remembered_by_mode),
    };
    return cmocka_run_group_tests_name("prompt", tests, NULL, NULL);
}
