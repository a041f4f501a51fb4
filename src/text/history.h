/* text/history: conversations as a template accepts them (history.c), and finding out what that is (history_probe.c).
 */
#pragma once
#include "text.h"

enum { CONTENT_EMPTY, CONTENT_NULL, CONTENT_ABSENT };
/* What a template needs; all 0: it takes messages as they are. */
typedef struct history_rules {
    bool parts;       /* content as a list of parts, not a string */
    bool system_user; /* no system message: its text goes in front of the first user message */
    bool late_user;   /* no system message but the first: later ones become text of the user */
    bool tools_text;  /* tools are described in the system message */
    bool merge;       /* two messages of one role in a row become one */
    bool calls_text;  /* calls are text of the assistant, results text of the user */
    bool bare_text;   /* calls_text when the request has no tools */
    uint8_t content;  /* CONTENT_*: what a message that only calls has */
    bool args_text;   /* arguments as their JSON text */
    bool ids;         /* ids of calls are 9 letters and digits */
    bool names;       /* results name their tool */
    bool one_call;    /* one call a message, its result behind it */
    bool apart;       /* text and calls of one message are two messages */
    bool user_first;  /* a conversation begins with the user */
    bool tools_list;  /* no tools are an empty list, not None */
    bool functions;   /* tools are text in the variable "functions"; "datetime" is the day */
    bool transcript;  /* everything is one message of the user: for templates that take no answers */
    bool answer;      /* between a result and the user's next message the assistant says something */
} history_rules;
extern const history_rules history_plain; /* what every template takes that takes a user and an assistant */

/* Messages and tools of o as the rules want them, in a. */
render_opts history_fit(arena *a, const history_rules *r, const render_opts *o);
/* All texts of the messages (names and arguments of calls too) are in the rendered text, in their order. */
bool history_shows(const json *messages, str text);
/* By rendering small conversations. Once a template (chat_template_rules keeps it). */
void history_probe(const chat_template *t, history_rules *r);
const history_rules *chat_template_rules(const chat_template *t);
/* Renders a conversation with nothing lost and no refusal that the rules can avoid. */
bool history_render(const chat_template *t, const render_opts *o, buf *out, buf *user, error *err);
