/* Reading the command line by the table options.def. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "cli.h"

typedef enum option_type { TEXT, INT, REAL, FLAG, LIST } option_type;
typedef struct option {
    option_type type;
    const char *flag, *env, *text;
    double number, min, max;
    const char *verbs, *help;
    size_t at, given_at;
} option;

/* The default column is a text for TEXT and LIST and a number otherwise. */
#define VALUE_TEXT(v) v, 0
#define VALUE_LIST(v) v, 0
#define VALUE_INT(v)  NULL, (double)(v)
#define VALUE_REAL(v) NULL, (double)(v)
#define VALUE_FLAG(v) NULL, (double)(v)
static const option table[] = {
#define OPTION(type, field, flag, env, value, min, max, verbs, help) \
    {type, flag,  env,  VALUE_##type(value),      min,               \
     max,  verbs, help, offsetof(options, field), offsetof(options, given.field)},
#include "options.def"
#undef OPTION
};

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    return false;
}

static const option *option_find(str flag, const char *verb) {
    for (size_t i = 0; i < COUNT(table); i++)
        if (str_is(flag, table[i].flag) && has_word(table[i].verbs, verb)) return &table[i];
    return NULL;
}

static bool unknown(str flag, const char *verb, error *err) {
    const char *nearest = NULL;
    int best = 4; /* further away is another word, not a slip */
    for (size_t i = 0; i < COUNT(table); i++) {
        int d = str_distance(flag, str_of(table[i].flag));
        if (d < best && has_word(table[i].verbs, verb)) best = d, nearest = table[i].flag;
    }
    if (nearest)
        return error_set(err, ERR_USAGE, "%s has no option --%.*s; did you mean --%s?", verb, (int)flag.n, flag.p,
                         nearest);
    for (size_t i = 0; i < COUNT(table); i++)
        if (str_is(flag, table[i].flag))
            return error_set(err, ERR_USAGE, "%s has no option --%s (it belongs to: %s)", verb, table[i].flag,
                             table[i].verbs);
    return error_set(err, ERR_USAGE, "%s has no option --%.*s; `hearth help %s` lists them", verb, (int)flag.n, flag.p,
                     verb);
}

static bool parse_flag(const char *text, bool *out) {
    static const char *const yes[] = {"true", "on", "1", "yes"}, *const no[] = {"false", "off", "0", "no"};
    for (size_t i = 0; i < COUNT(yes); i++) {
        if (strcmp(text, yes[i]) == 0) return *out = true, true;
        if (strcmp(text, no[i]) == 0) return *out = false, true;
    }
    return false;
}

static void list_add(text_list *l, const char *text) {
    l->p = mem_resize(l->p, (l->n + 1) * sizeof *l->p);
    l->p[l->n++] = text;
}

static bool assign(options *o, const option *p, const char *text, error *err) {
    void *field = (char *)o + p->at;
    double number = 0;
    int64_t integer = 0;
    switch (p->type) {
    case TEXT: *(const char **)field = text; break;
    case LIST: list_add(field, text); break;
    case FLAG:
        if (!parse_flag(text, field))
            return error_set(err, ERR_USAGE, "--%s takes true or false, not '%s'", p->flag, text);
        break;
    case INT:
        if (!str_to_i64(str_of(text), &integer) || (double)integer < p->min || (double)integer > p->max)
            return error_set(err, ERR_USAGE, "--%s must be an integer from %.0f to %.0f, not '%s'", p->flag, p->min,
                             p->max, text);
        *(int64_t *)field = integer;
        break;
    case REAL:
        if (!str_to_f64(str_of(text), &number) || number < p->min || number > p->max)
            return error_set(err, ERR_USAGE, "--%s must be a number from %g to %g, not '%s'", p->flag, p->min, p->max,
                             text);
        *(double *)field = number;
        break;
    }
    *((bool *)o + p->given_at) = true;
    return true;
}

static void set_defaults(options *o) {
    for (size_t i = 0; i < COUNT(table); i++) {
        void *field = (char *)o + table[i].at;
        switch (table[i].type) {
        case TEXT: *(const char **)field = table[i].text; break;
        case INT: *(int64_t *)field = (int64_t)table[i].number; break;
        case REAL: *(double *)field = table[i].number; break;
        case FLAG: *(bool *)field = table[i].number != 0; break;
        case LIST: break; /* empty */
        }
    }
}

static bool read_environment(options *o, const char *verb, error *err) {
    for (size_t i = 0; i < COUNT(table); i++) {
        const char *text = table[i].env && has_word(table[i].verbs, verb) ? getenv(table[i].env) : NULL;
        if (text && *text && !assign(o, &table[i], text, err)) {
            error_prefix(err, "environment variable %s: ", table[i].env);
            return false;
        }
    }
    return true;
}

/* One argument that starts with "--"; *i moves on when it takes the next one as its value. */
static bool read_option(options *o, int argc, char **argv, int *i, error *err) {
    const char *text = argv[*i] + 2, *equals = strchr(text, '=');
    str flag = {text, equals ? (size_t)(equals - text) : strlen(text)};
    const option *p = option_find(flag, o->verb);
    if (!p) return unknown(flag, o->verb, err);
    /* The command line replaces what the environment said; a list grows only by what stands on the command line itself.
     */
    if (p->type == FLAG && !equals) return assign(o, p, "true", err);
    if (equals) return assign(o, p, equals + 1, err);
    if (*i + 1 >= argc) return error_set(err, ERR_USAGE, "--%s needs a value", p->flag);
    return assign(o, p, argv[++*i], err);
}

bool options_read(options *o, const char *verb, int argc, char **argv, error *err) {
    *o = (options){.verb = verb, .argc = argc, .argv = argv};
    o->args = mem_alloc(((size_t)argc + 1) * sizeof *o->args);
    set_defaults(o);
    if (!read_environment(o, verb, err)) return false;
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        if (!only_arguments && strcmp(argv[i], "--") == 0)
            only_arguments = true;
        else if (!only_arguments && strncmp(argv[i], "--", 2) == 0) {
            if (!read_option(o, argc, argv, &i, err)) return false;
        } else if (!only_arguments && argv[i][0] == '-' && argv[i][1] && strcmp(verb, "tokenize") != 0 &&
                   strcmp(verb, "generate") != 0)
            return error_set(err, ERR_USAGE, "unknown option '%s'; options start with --", argv[i]);
        else
            o->args[o->n_args++] = argv[i];
    }
    return true;
}

void options_again(const options *o, const char *without, text_list *out) {
    for (int i = 0; i < o->argc && strcmp(o->argv[i], "--"); i++) {
        if (strncmp(o->argv[i], "--", 2)) continue;
        const char *text = o->argv[i] + 2, *equals = strchr(text, '=');
        const option *p = option_find((str){text, equals ? (size_t)(equals - text) : strlen(text)}, o->verb);
        bool takes_next = p && p->type != FLAG && !equals && i + 1 < o->argc, drop = p && has_word(without, p->flag);
        if (!drop) list_add(out, o->argv[i]);
        if (takes_next && !drop) list_add(out, o->argv[i + 1]);
        i += takes_next;
    }
}

void options_free(options *o) {
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].type == LIST) free(((text_list *)((char *)o + table[i].at))->p);
    free(o->args);
    *o = (options){0};
}

void options_help(const char *verb, buf *out) {
    static const char *const shape[] = {"TEXT", "N", "X", "", "TEXT"};
    for (size_t i = 0; i < COUNT(table); i++) {
        const option *p = &table[i];
        if (!has_word(p->verbs, verb)) continue;
        char flag[64];
        snprintf(flag, sizeof flag, "--%s %s", p->flag, shape[p->type]);
        buf_printf(out, "  %-26s %s", flag, p->help);
        if (p->type == TEXT && p->text) buf_printf(out, " [%s]", p->text);
        if ((p->type == INT || p->type == REAL) && p->number != 0) buf_printf(out, " [%g]", p->number);
        if (p->type == LIST) buf_puts(out, " (may be given several times)");
        if (p->env) buf_printf(out, " ($%s)", p->env);
        buf_putc(out, '\n');
    }
}

bool options_numbers(const char *list, int32_t **out, size_t *n, const char *flag, error *err) {
    ids v = {0};
    const char *p = list;
    for (;;) {
        p += strspn(p, "[], \t\r\n");
        if (!*p) break;
        size_t len = strcspn(p, "[], \t\r\n");
        int64_t number;
        if (!str_to_i64((str){p, len}, &number) || number < 0 || number > INT32_MAX) {
            ids_free(&v);
            return error_set(err, ERR_USAGE, "--%s: '%.*s' is not a number from 0 to %d", flag,
                             (int)MIN(len, (size_t)40), p, INT32_MAX);
        }
        ids_push(&v, (int32_t)number);
        p += len;
    }
    *out = v.p;
    *n = v.n;
    return true;
}
