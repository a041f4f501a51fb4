/* Jinja: statements, and the two entry points that make and free a parsed template.
 * Not here: expressions (jinja_parse_expr.c), tokens (jinja_lex.c), names (jinja_scope.c), running (jinja_exec.c). */
#include "jinja_parse.h"

enum { SOURCE_MAX = 16 << 20, PARSE_MEMORY = 64 << 20, PARSE_STEPS = 200 * 1000 * 1000 };

node *parse_new(parser *p, node_kind kind) {
    node *n = jinja_new(p->c, node);
    n->kind = (uint8_t)kind;
    n->line = p->c->line = p->t->line;
    return n;
}
void parse_push(parser *p, nodes *l, node *n) {
    if (l->n == l->cap) {
        uint32_t cap = l->cap ? l->cap * 2 : 4;
        node **v = jinja_array(p->c, node *, cap);
        if (l->n) memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}
jstr *parse_str(parser *p, str s) {
    return str_new(p->c, s.p, s.n, 0);
}
bool parse_is(const parser *p, const char *name) {
    return p->t->type == T_NAME && str_is(p->t->text, name);
}
bool parse_skip(parser *p, token_type t) {
    if (p->t->type != t) return false;
    p->t++;
    return true;
}
bool parse_skip_name(parser *p, const char *name) {
    if (!parse_is(p, name)) return false;
    p->t++;
    return true;
}
const token *parse_expect(parser *p, token_type t) {
    p->c->line = p->t->line;
    if (p->t->type != t) {
        if (p->t->type == T_NAME)
            jinja_fail(p->c, "expected token '%s', got '%.*s'", token_name(t), (int)MIN(p->t->text.n, 80u),
                       p->t->text.p);
        jinja_fail(p->c, "expected token '%s', got '%s'", token_name(t), token_name(p->t->type));
    }
    return p->t++;
}
void parse_expect_name(parser *p, const char *name) {
    p->c->line = p->t->line;
    if (!parse_skip_name(p, name)) jinja_fail(p->c, "expected '%s', got '%s'", name, token_name(p->t->type));
}

/* ---- statements: one function each, found by the table at the end ------------------------------------------------ */

static bool is_any(const parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (parse_is(p, *ends)) return true;
    return false;
}

static node *parse_statement(parser *p);

/* Text and statements until one of `ends` (which stays the current token) or the end of the template. */
static nodes parse_nodes(parser *p, const char *const *ends) {
    nodes body = {0};
    node *out = NULL;
    jinja_guard(p->c);
    while (p->t->type != T_EOF) {
        p->c->line = p->t->line;
        if (p->t->type == T_BLOCK_BEGIN) {
            p->t++;
            if (is_any(p, ends)) return body;
            out = NULL;
            node *s = parse_statement(p);
            if (s) parse_push(p, &body, s);
            parse_expect(p, T_BLOCK_END);
            continue;
        }
        if (!out) {
            out = parse_new(p, N_OUTPUT);
            parse_push(p, &body, out);
        }
        if (p->t->type == T_DATA) {
            node *d = parse_new(p, N_DATA);
            d->data = parse_str(p, p->t->text);
            p->t++;
            parse_push(p, &out->list, d);
        } else {
            parse_expect(p, T_VAR_BEGIN);
            parse_push(p, &out->list, parse_tuple(p, (tuple_opts){0}));
            parse_expect(p, T_VAR_END);
        }
    }
    if (ends)
        jinja_fail(p->c, "Unexpected end of template. Jinja was looking for the following tags: '%s'%s%s%s.", ends[0],
                   ends[1] ? " or '" : "", ends[1] ? ends[1] : "", ends[1] ? "'" : "");
    return body;
}

/* The body of a statement: `%}` ... `{% end`. */
static nodes parse_body(parser *p, const char *const *ends) {
    parse_skip(p, T_COLON);
    parse_expect(p, T_BLOCK_END);
    return parse_nodes(p, ends);
}
static nodes parse_body_to(parser *p, const char *end) {
    const char *const ends[] = {end, NULL};
    nodes b = parse_body(p, ends);
    p->t++;
    return b;
}

static node *parse_set(parser *p) {
    node *n = parse_new(p, N_SET);
    node *target = parse_target(p, true, NULL);
    if (parse_skip(p, T_ASSIGN)) {
        n->set.target = target;
        n->set.value = parse_tuple(p, (tuple_opts){0});
        return n;
    }
    n->kind = N_SETBLOCK;
    n->setblock.target = target;
    n->setblock.filter = parse_filters(p, NULL, false);
    n->setblock.body = parse_body_to(p, "endset");
    return n;
}

static node *parse_if(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    node *n = parse_new(p, N_IF);
    bool soft = p->soft;
    uint32_t cap = 0;
    p->soft = true;
    for (bool more = true, is_else = false; more;) {
        if (n->cond.n == cap) {
            cap = cap ? cap * 2 : 2;
            struct branch *b = jinja_array(p->c, struct branch, cap);
            if (n->cond.n) memcpy(b, n->cond.branches, n->cond.n * sizeof *b);
            n->cond.branches = b;
        }
        struct branch *b = &n->cond.branches[n->cond.n++];
        b->test = is_else ? NULL : parse_tuple(p, (tuple_opts){.no_condexpr = true});
        if (is_else) {
            b->body = parse_body_to(p, "endif");
            break;
        }
        b->body = parse_body(p, ends);
        is_else = parse_is(p, "else");
        more = !parse_is(p, "endif");
        p->t++;
    }
    p->soft = soft;
    return n;
}

static node *parse_for(parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL};
    node *n = parse_new(p, N_FOR);
    n->loop = jinja_alloc(p->c, sizeof *n->loop);
    const token *target = p->t;
    n->loop->test_target = parse_target(p, false, "in");
    for (const token *t = target; t < p->t; t++)
        if (t->type == T_NAME && str_is(t->text, "loop"))
            jinja_fail(p->c, "Can't assign to special loop variable in for-loop target");
    p->t = target;
    n->loop->target = parse_target(p, false, "in");
    parse_expect_name(p, "in");
    n->loop->iter = parse_tuple(p, (tuple_opts){.no_condexpr = true, .end = "recursive"});
    if (parse_skip_name(p, "if")) n->loop->test = parse_expression(p);
    n->flag = parse_skip_name(p, "recursive");
    bool soft = p->soft;
    uint32_t reads = p->reads_loop;
    p->soft = false;
    p->loops++;
    n->loop->body = parse_body(p, ends);
    p->loops--;
    n->loop->has_loop = n->flag || p->reads_loop != reads;
    if (n->flag) n->loop->func = jinja_new(p->c, func);
    if (parse_is(p, "else")) {
        p->t++;
        n->loop->orelse = parse_body_to(p, "endfor");
    } else
        p->t++;
    p->soft = soft;
    return n;
}

static node *param_name(parser *p) {
    node *n = parse_new(p, N_NAME);
    n->name.name = parse_str(p, parse_expect(p, T_NAME)->text);
    n->store = true;
    return n;
}

static void parse_signature(parser *p, node *n) {
    parse_expect(p, T_LPAREN);
    while (p->t->type != T_RPAREN) {
        if (n->macro->params.n) parse_expect(p, T_COMMA);
        node *a = param_name(p);
        for (uint32_t i = 0; i < n->macro->params.n; i++)
            if (str_same(n->macro->params.v[i]->name.name, a->name.name))
                jinja_fail(p->c, "duplicate argument '%s'", text_of(p->c, a->name.name));
        if (parse_skip(p, T_ASSIGN))
            parse_push(p, &n->macro->defaults, parse_expression(p));
        else if (n->macro->defaults.n)
            jinja_fail(p->c, "non-default argument follows default argument");
        parse_push(p, &n->macro->params, a);
    }
    parse_expect(p, T_RPAREN);
}

static bool has_param(const node *n, const char *name, uint32_t *at) {
    for (uint32_t i = 0; i < n->macro->params.n; i++) {
        jstr *s = n->macro->params.v[i]->name.name;
        if (!str_is((str){s->p, s->n}, name)) continue;
        *at = i;
        return true;
    }
    return false;
}

static void parse_macro_body(parser *p, node *n, const char *end) {
    parser before = *p;
    uint32_t at;
    p->loops = 0;
    p->soft = false;
    n->macro->func = jinja_new(p->c, func);
    n->macro->body = parse_body_to(p, end);
    p->loops = before.loops;
    p->soft = before.soft;
    bool caller = p->reads_caller != before.reads_caller;
    if (caller && has_param(n, "caller", &at)) {
        if (at < n->macro->params.n - n->macro->defaults.n)
            jinja_fail(p->c, "When defining macros or call blocks the special \"caller\" argument must be omitted or "
                             "be given a default.");
    }
    n->macro->explicit_caller = has_param(n, "caller", &at);
    n->macro->uses_caller = caller;
    n->macro->uses_kwargs = p->reads_kwargs != before.reads_kwargs && !has_param(n, "kwargs", &at);
    n->macro->uses_varargs = p->reads_varargs != before.reads_varargs && !has_param(n, "varargs", &at);
}

static node *parse_macro(parser *p) {
    node *n = parse_new(p, N_MACRO);
    n->macro = jinja_alloc(p->c, sizeof *n->macro);
    n->macro->name = param_name(p)->name.name;
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static node *parse_call_block(parser *p) {
    node *n = parse_new(p, N_CALLBLOCK);
    n->macro = jinja_alloc(p->c, sizeof *n->macro);
    if (p->t->type == T_LPAREN) parse_signature(p, n);
    n->macro->call = parse_expression(p);
    if (n->macro->call->kind != N_CALL) jinja_fail(p->c, "expected call");
    parse_macro_body(p, n, "endcall");
    return n;
}

/* Hugging Face's {% generation %} is a call block around its body: what is set inside stays inside. */
static node *parse_generation(parser *p) {
    node *n = parse_new(p, N_CALLBLOCK);
    n->macro = jinja_alloc(p->c, sizeof *n->macro);
    parse_macro_body(p, n, "endgeneration");
    return n;
}

static node *parse_filter_block(parser *p) {
    node *n = parse_new(p, N_FILTERBLOCK);
    n->setblock.filter = parse_filters(p, NULL, true);
    bool soft = p->soft;
    p->soft = false;
    n->setblock.body = parse_body_to(p, "endfilter");
    p->soft = soft;
    return n;
}

static node *parse_with(parser *p) {
    node *n = parse_new(p, N_WITH);
    n->with = jinja_alloc(p->c, sizeof *n->with);
    while (p->t->type != T_BLOCK_END && p->t->type != T_EOF) {
        if (n->with->targets.n) parse_expect(p, T_COMMA);
        parse_push(p, &n->with->targets, parse_target(p, false, NULL));
        parse_expect(p, T_ASSIGN);
        parse_push(p, &n->with->values, parse_expression(p));
    }
    bool soft = p->soft;
    p->soft = false;
    n->with->body = parse_body_to(p, "endwith");
    p->soft = soft;
    return n;
}

static node *parse_autoescape(parser *p) {
    node *n = parse_new(p, N_SCOPE);
    node *how = parse_expression(p);
    if (how->kind != N_CONST || !v_is(how->constant, V_BOOL) || how->constant.b)
        jinja_fail(p->c, "autoescape is not supported: only {%% autoescape false %%}");
    n->plain = jinja_alloc(p->c, sizeof *n->plain);
    n->plain->body = parse_body_to(p, "endautoescape");
    return n;
}

static node *parse_block(parser *p) {
    node *n = parse_new(p, N_BLOCK);
    n->block = jinja_alloc(p->c, sizeof *n->block);
    str name = parse_expect(p, T_NAME)->text;
    n->block->name = parse_str(p, name);
    if (parse_skip_name(p, "scoped")) jinja_fail(p->c, "scoped blocks are not supported");
    if (parse_skip_name(p, "required"))
        jinja_fail(p->c, "required blocks are not supported: templates cannot be extended");
    if (p->t->type == T_SUB) jinja_fail(p->c, "block names may not contain hyphens, use an underscore instead");
    n->block->func = jinja_new(p->c, func);
    parser before = *p;
    p->loops = 0;
    p->soft = false;
    n->block->body = parse_body_to(p, "endblock");
    p->loops = before.loops;
    p->soft = before.soft;
    if (p->t->type == T_NAME && str_eq(p->t->text, name)) p->t++;
    return n;
}

static node *parse_print(parser *p) {
    node *n = parse_new(p, N_OUTPUT);
    while (p->t->type != T_BLOCK_END && p->t->type != T_EOF) {
        if (n->list.n) parse_expect(p, T_COMMA);
        parse_push(p, &n->list, parse_expression(p));
    }
    return n;
}

static node *parse_jump(parser *p, node_kind kind, const char *what) {
    if (!p->loops) jinja_fail(p->c, "'%s' outside loop", what);
    return parse_new(p, kind);
}
static node *parse_break(parser *p) {
    return parse_jump(p, N_BREAK, "break");
}
static node *parse_continue(parser *p) {
    return parse_jump(p, N_CONTINUE, "continue");
}

static node *parse_refused(parser *p) {
    jinja_fail(p->c, "{%% %.*s %%} is not supported: a chat template is one file", (int)p->t[-1].text.n,
               p->t[-1].text.p);
}

static const struct {
    const char *name;
    node *(*parse)(parser *p);
} statements[] = {
    {"set", parse_set},
    {"if", parse_if},
    {"for", parse_for},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"print", parse_print},
    {"block", parse_block},
    {"autoescape", parse_autoescape},
    {"include", parse_refused},
    {"import", parse_refused},
    {"from", parse_refused},
    {"extends", parse_refused},
};

static node *parse_statement(parser *p) {
    p->c->line = p->t->line;
    if (p->t->type != T_NAME) jinja_fail(p->c, "tag name expected");
    for (size_t i = 0; i < COUNT(statements); i++) {
        if (!str_is(p->t->text, statements[i].name)) continue;
        p->t++;
        return statements[i].parse(p);
    }
    jinja_fail(p->c, "Encountered unknown tag '%.*s'.", (int)MIN(p->t->text.n, 80u), p->t->text.p);
}

void jinja_parse_tokens(core *c, const token *t, struct jinja *j) {
    parser p = {.c = c, .t = t, .names = dict_new(c)};
    j->body = parse_nodes(&p, NULL);
    j->names = p.names;
}

/* ---- entry points ------------------------------------------------------------------------------------------------ */
/* Line ends become \n and one final line end is dropped, before anything else looks at the text. */
static str normalise(core *c, str s) {
    char *out = jinja_alloc(c, s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '\r') {
            out[n++] = '\n';
            if (i + 1 < s.n && s.p[i + 1] == '\n') i++;
        } else
            out[n++] = s.p[i];
    }
    if (n && out[n - 1] == '\n') n--;
    return (str){out, n};
}

static void check_utf8(core *c, str s) {
    c->line = 1;
    for (size_t i = 0; i < s.n;) {
        c->line += s.p[i] == '\n';
        size_t from = i;
        uint32_t cp = utf8_next(s.p, s.n, &i);
        if (cp == 0xfffd && (i - from != 3 || memcmp(s.p + from, "\xef\xbf\xbd", 3) != 0))
            jinja_fail(c, "the template is not UTF-8");
    }
}

jinja *jinja_parse(str source, error *err) {
    if (source.n > SOURCE_MAX) {
        error_set(err, ERR_TEMPLATE, "the template has %zu bytes; at most %d are allowed", source.n, SOURCE_MAX);
        return NULL;
    }
    arena *a = arena_new(PARSE_MEMORY + source.n * 8);
    core c = {.a = a, .err = err, .steps_max = PARSE_STEPS};
    c.stack = __builtin_frame_address(0);
    if (setjmp(c.fail)) {
        arena_free(a);
        return NULL;
    }
    check_utf8(&c, source);
    jinja *j = jinja_new(&c, jinja);
    j->a = a;
    j->source = normalise(&c, source);
    const token *t = jinja_lex(&c, j->source);
    jinja_parse_tokens(&c, t, j);
    jinja_bind(&c, j);
    return j;
}

void jinja_free(jinja *j) {
    if (j) arena_free(j->a);
}

bool jinja_reads(const jinja *j, str name) {
    for (size_t i = 0; i < j->names->n; i++)
        if (str_eq((str){j->names->e[i].key.s->p, j->names->e[i].key.s->n}, name)) return true;
    return false;
}
