/* server/web.h: the page's files, embedded by tools/embed.sh. */
#pragma once
typedef struct web_file {
    const char *name, *start, *end;
} web_file;
extern const web_file web_file_table[]; /* ended by a null name */
