/* What a template needs, found out by rendering small conversations with marked texts: the first of the rules that
 * makes one whole is kept. Not here: the rules themselves (history.c). */
#include "history.h"

#define TOOL_                                                                                                        \
    "[{\"type\":\"function\",\"function\":{\"name\":\"qtool\",\"description\":\"QABOUTQ\",\"parameters\":{\"type\":" \
    "\"object\",\"properties\":{\"key\":{\"type\":\"string\",\"description\":\"d\"}},\"required\":[\"key\"]}}}]"
#define SYSTEM(text) "{\"role\":\"system\",\"content\":\"" text "\"}"
#define USER(text)   "{\"role\":\"user\",\"content\":\"" text "\"}"
#define SAYS(text)   "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALL(id, arg) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"qtool\",\"arguments\":{\"key\":\"" arg "\"}}}"
#define CALLS(text, calls) "{\"role\":\"assistant\",\"content\":\"" text "\",\"tool_calls\":[" calls "]}"
#define RESULT(id, text)   "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"" text "\"}"
#define ID1                "call_0a1b2c3d"
#define ID2                "call_4e5f6071"

typedef struct probe {
    const char *messages;
    bool tools;
} probe;

static bool passes(const chat_template *t, const history_rules *r, const probe *p) {
    arena *a = arena_new(0);
    render_opts o = {.messages = json_read(a, str_of(p->messages), NULL, NULL),
                     .tools = p->tools ? json_read(a, STR(TOOL_), NULL, NULL) : NULL,
                     .add_generation_prompt = true,
                     .now_unix = 1};
    render_opts fitted = history_fit(a, r, &o);
    buf out = {0};
    bool ok = chat_template_render(t, &fitted, &out, NULL, NULL) && history_shows(fitted.messages, buf_view(&out));
    if (p->tools && !r->calls_text)
        ok &= str_has(buf_view(&out), STR("qtool")) && (str_has(buf_view(&out), STR("QABOUTQ")));
    buf_free(&out);
    arena_free(a);
    return ok;
}

/* Keeps the first of rules [n] that passes; none: *r stays. */
static bool choose(const chat_template *t, history_rules *r, const probe *p, const history_rules *from, size_t n) {
    if (passes(t, r, p)) return true;
    for (size_t i = 0; i < n; i++)
        if (passes(t, &from[i], p)) return *r = from[i], true;
    return false;
}

static bool choose_one(const chat_template *t, history_rules *r, const char *messages, bool tools, bool *flag) {
    history_rules with = *r;
    *(bool *)((char *)&with + ((char *)flag - (char *)r)) = true;
    return choose(t, r, &(probe){messages, tools}, &with, 1);
}

/* How calls and results are written: what an empty content is, arguments, ids, names, in this order of liking. */
static void probe_calls(const chat_template *t, history_rules *r) {
    static const probe turn = {"[" USER("QONEQ") "," CALLS("", CALL(ID1, "QARGQ")) "," RESULT(ID1, "QRESULTQ") "," SAYS(
                                   "QTWOQ") "," USER("QTHREEQ") "]",
                               true};
    history_rules all[2 * 3 * 2 * 2 * 2];
    size_t n = 0;
    for (int names = 0; names < 2; names++)
        for (int ids = 0; ids < 2; ids++)
            for (int text = 0; text < 2; text++)
                for (int content = 0; content < 3; content++) {
                    all[n] = *r;
                    all[n].names = names, all[n].ids = ids, all[n].args_text = text;
                    all[n++].content = (uint8_t)content;
                }
    if (!choose(t, r, &turn, all, n)) r->calls_text = true;
}

void history_probe(const chat_template *t, history_rules *r) {
    *r = (history_rules){0};
    choose_one(t, r, "[" USER("QONEQ") "]", false, &r->tools_list);
    choose_one(t, r, "[" USER("QONEQ") "]", false, &r->parts);
    choose_one(t, r, "[" USER("QONEQ") "]", false, &r->functions);
    choose_one(t, r, "[" SYSTEM("QSYSQ") "," USER("QONEQ") "]", false, &r->system_user);
    choose_one(t, r, "[" USER("QONEQ") "," USER("QTWOQ") "," SAYS("QTHREEQ") "," SAYS("QFOURQ") "," USER("QFIVEQ") "]",
               false, &r->merge);
    choose_one(t, r,
               "[" SYSTEM("QSYSQ") "," SYSTEM("QSYSTOOQ") "," USER("QONEQ") "," SAYS("QTWOQ") "," SYSTEM(
                   "QLATEQ") "," USER("QTHREEQ") "," SAYS("QFOURQ") "," SYSTEM("QLASTQ") "]",
               false, &r->late_user);
    choose_one(t, r, "[" SAYS("QONEQ") "," USER("QTWOQ") "]", false, &r->user_first);
    if (!choose_one(t, r, "[" USER("QONEQ") "]", true, &r->tools_text)) r->tools_text = true;
    probe_calls(t, r);
    if (r->tools_text) r->calls_text = true;
    if (r->calls_text) {
        r->tools_text = true;
        return;
    }
    const char *two = "[" USER("QONEQ") "," CALLS("", CALL(ID1, "QARGQ") "," CALL(ID2, "QARGTOOQ")) "," RESULT(
        ID1, "QRESULTQ") "," RESULT(ID2, "QMOREQ") "]";
    const char *spoken = "[" USER("QONEQ") "," CALLS("QSAIDQ", CALL(ID1, "QARGQ")) "," RESULT(ID1, "QRESULTQ") "]";
    const char *then =
        "[" USER("QONEQ") "," CALLS("", CALL(ID1, "QARGQ")) "," RESULT(ID1, "QRESULTQ") "," USER("QTWOQ") "]";
    const char *bare = "[" USER("QONEQ") "," CALLS("", CALL(ID1, "QARGQ")) "," RESULT(ID1, "QRESULTQ") "]";
    choose_one(t, r, two, true, &r->one_call);
    choose_one(t, r, spoken, true, &r->apart);
    choose_one(t, r, then, true, &r->answer);
    choose_one(t, r, bare, false, &r->bare_text);
}
