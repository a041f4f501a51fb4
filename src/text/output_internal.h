/* text/output_internal: what the files of the reply machine share. output.c: the machine. output_forms.c: the families'
 * marks. */
#pragma once
#include "text.h"

enum { MARKS_MAX = 16 };
/* A mark that only a token can be (no text spells it) travels through the machine as one byte that no text holds, this
 * and those above it. */
enum { MARK_BYTE = 0xF8 };
/* The text of a token that a mark byte stands for; other marks are their own text. */
str mark_spelled(str mark);

struct think_form {
    const char *name;
    str open, close;
    str header;    /* first line of a block that is no reasoning, with its line break */
    str ending;    /* closes a block from within, spelled as tokens are */
    bool by_token; /* only the tokens themselves are marks, and a block may open anywhere */
};

/* ---- tool calls (output_calls.c) --------------------------------------------------------------------------------- */
struct tool_list {
    unsigned refs; /* atomic */
    arena *a;      /* owns; holds tools */
    const json *tools;
    const call_form *form;
};
struct call_form {
    const char *name;
    str sign; /* the template holds it */
};
