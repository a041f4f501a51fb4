/* Jinja: expressions, by recursive descent with Jinja2 3.1.6's precedences.
 * Not here: statements (jinja_parse.c), what names mean (jinja_scope.c), values (jinja_eval.c). */
#include "jinja_parse.h"

static node *parse_or(parser *p);
static node *parse_unary(parser *p, bool with_filter);

static node *binary(parser *p, node_kind kind, uint8_t op, node *a, node *b) {
    node *n = parse_new(p, kind);
    n->op = op;
    n->two.a = a;
    n->two.b = b;
    return n;
}

static node *constant(parser *p, value v) {
    node *n = parse_new(p, N_CONST);
    n->constant = v;
    return n;
}

static node *parse_list(parser *p) {
    node *n = parse_new(p, N_LIST);
    parse_expect(p, T_LBRACKET);
    while (p->t->type != T_RBRACKET) {
        if (n->list.n) parse_expect(p, T_COMMA);
        if (p->t->type == T_RBRACKET) break;
        parse_push(p, &n->list, parse_expression(p));
    }
    parse_expect(p, T_RBRACKET);
    return n;
}

static node *parse_dict(parser *p) {
    node *n = parse_new(p, N_DICT);
    parse_expect(p, T_LBRACE);
    while (p->t->type != T_RBRACE) {
        if (n->list.n) parse_expect(p, T_COMMA);
        if (p->t->type == T_RBRACE) break;
        parse_push(p, &n->list, parse_expression(p));
        parse_expect(p, T_COLON);
        parse_push(p, &n->list, parse_expression(p));
    }
    parse_expect(p, T_RBRACE);
    return n;
}

static node *parse_name(parser *p) {
    static const struct {
        const char *name;
        vtype type;
        bool b;
    } words[] = {{"true", V_BOOL, true},   {"True", V_BOOL, true},  {"false", V_BOOL, false},
                 {"False", V_BOOL, false}, {"none", V_NONE, false}, {"None", V_NONE, false}};
    str s = p->t->text;
    for (size_t i = 0; i < COUNT(words); i++) {
        if (!str_is(s, words[i].name)) continue;
        node *n = constant(p, (value){.type = words[i].type, .b = words[i].b});
        p->t++;
        return n;
    }
    node *n = parse_new(p, N_NAME);
    n->name.name = parse_str(p, s);
    dict_set(p->c, p->names, v_str(n->name.name), v_none());
    p->reads_loop += str_is(s, "loop");
    p->reads_caller += str_is(s, "caller");
    p->reads_kwargs += str_is(s, "kwargs");
    p->reads_varargs += str_is(s, "varargs");
    p->t++;
    return n;
}

static node *parse_string(parser *p) {
    const token *first = p->t;
    size_t total = 0;
    for (const token *t = first; t->type == T_STRING; t++) total += t->text.n;
    node *n = parse_new(p, N_CONST);
    if (first[1].type != T_STRING) {
        p->t++;
        n->constant = v_str(parse_str(p, first->text));
        return n;
    }
    char *joined = jinja_alloc(p->c, total + 1);
    size_t at = 0;
    for (; p->t->type == T_STRING; p->t++) {
        memcpy(joined + at, p->t->text.p, p->t->text.n);
        at += p->t->text.n;
    }
    n->constant = v_str(parse_str(p, (str){joined, total}));
    return n;
}

static node *parse_primary(parser *p) {
    node *n;
    switch (p->t->type) {
    case T_NAME: return parse_name(p);
    case T_STRING: return parse_string(p);
    case T_INT: n = constant(p, v_int(p->t->i)); break;
    case T_FLOAT: n = constant(p, v_float(p->t->f)); break;
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    case T_LPAREN:
        p->t++;
        n = parse_tuple(p, (tuple_opts){.parentheses = true});
        parse_expect(p, T_RPAREN);
        return n;
    default: jinja_fail(p->c, "unexpected '%s'", token_name(p->t->type));
    }
    p->t++;
    return n;
}

static bool ends_slice(const parser *p) {
    return p->t->type == T_RBRACKET || p->t->type == T_COMMA;
}

static node *parse_subscribed(parser *p) {
    node *start = NULL, *stop = NULL, *step = NULL;
    if (p->t->type != T_COLON) {
        start = parse_expression(p);
        if (p->t->type != T_COLON) return start;
    }
    p->t++;
    if (p->t->type != T_COLON && !ends_slice(p)) stop = parse_expression(p);
    if (parse_skip(p, T_COLON) && !ends_slice(p)) step = parse_expression(p);
    node *n = parse_new(p, N_SLICE);
    n->two.a = start;
    n->two.b = stop;
    n->two.c = step;
    return n;
}

static node *parse_subscript(parser *p, node *obj) {
    if (parse_skip(p, T_DOT)) {
        if (p->t->type == T_NAME) {
            node *n = parse_new(p, N_ATTR);
            n->attr.obj = obj;
            n->attr.name = parse_str(p, p->t->text);
            p->t++;
            return n;
        }
        if (p->t->type != T_INT) jinja_fail(p->c, "expected name or number");
        node *n = parse_new(p, N_ITEM);
        n->item.obj = obj;
        n->item.key = constant(p, v_int(p->t->i));
        p->t++;
        return n;
    }
    node *n = parse_new(p, N_ITEM);
    nodes keys = {0};
    parse_expect(p, T_LBRACKET);
    while (p->t->type != T_RBRACKET) {
        if (keys.n) parse_expect(p, T_COMMA);
        parse_push(p, &keys, parse_subscribed(p));
    }
    parse_expect(p, T_RBRACKET);
    n->item.obj = obj;
    if (keys.n == 1) {
        n->item.key = keys.v[0];
        return n;
    }
    for (uint32_t i = 0; i < keys.n; i++)
        if (keys.v[i]->kind == N_SLICE) jinja_fail(p->c, "a slice must be the only subscript");
    n->item.key = parse_new(p, N_TUPLE);
    n->item.key->list = keys;
    return n;
}

static void ensure(parser *p, bool ok) {
    if (!ok) jinja_fail(p->c, "invalid syntax for function call expression");
}

static void push_named(parser *p, call_args *a, jstr *name, node *v) {
    for (uint32_t i = 0; i < a->n_named; i++)
        if (str_same(a->named[i].name, name)) jinja_fail(p->c, "keyword argument repeated: %s", text_of(p->c, name));
    if ((a->n_named & (a->n_named - 1)) == 0) { /* grow at powers of two */
        struct kwarg *k = jinja_array(p->c, struct kwarg, a->n_named ? a->n_named * 2 : 1);
        if (a->n_named) memcpy(k, a->named, a->n_named * sizeof *k);
        a->named = k;
    }
    a->named[a->n_named++] = (struct kwarg){name, v};
}

static call_args *parse_args(parser *p) {
    call_args *a = jinja_new(p->c, call_args);
    bool comma = false;
    parse_expect(p, T_LPAREN);
    while (p->t->type != T_RPAREN) {
        if (comma) {
            parse_expect(p, T_COMMA);
            if (p->t->type == T_RPAREN) break;
        }
        comma = true;
        if (parse_skip(p, T_MUL)) {
            ensure(p, !a->star && !a->star2);
            a->star = parse_expression(p);
        } else if (parse_skip(p, T_POW)) {
            ensure(p, !a->star2);
            a->star2 = parse_expression(p);
        } else if (p->t->type == T_NAME && p->t[1].type == T_ASSIGN) {
            ensure(p, !a->star2);
            jstr *name = parse_str(p, p->t->text);
            p->t += 2;
            push_named(p, a, name, parse_expression(p));
        } else {
            ensure(p, !a->star && !a->star2 && !a->n_named);
            parse_push(p, &a->pos, parse_expression(p));
        }
    }
    parse_expect(p, T_RPAREN);
    return a;
}

static node *parse_call(parser *p, node *f) {
    node *n = parse_new(p, N_CALL);
    n->call.f = f;
    n->call.args = parse_args(p);
    return n;
}

static node *parse_postfix(parser *p, node *n) {
    while (true) {
        if (p->t->type == T_DOT || p->t->type == T_LBRACKET)
            n = parse_subscript(p, n);
        else if (p->t->type == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
        jinja_step(p->c, 1);
    }
}

/* name(.name)* of a filter or test */
static jstr *parse_dotted(parser *p) {
    str first = parse_expect(p, T_NAME)->text;
    if (p->t->type != T_DOT) return parse_str(p, first);
    sbuf b;
    sb_init(&b, p->c);
    sb_add(&b, first.p, first.n, 0);
    while (parse_skip(p, T_DOT)) {
        str next = parse_expect(p, T_NAME)->text;
        sb_puts(&b, ".");
        sb_add(&b, next.p, next.n, 0);
    }
    return sb_done(&b);
}

static void set_def(parser *p, node *n, const func_def *def, const char *kind) {
    n->filter.def = def;
    if (!def && !p->soft) jinja_fail(p->c, "No %s named '%s'.", kind, text_of(p->c, n->filter.name));
}

static node *parse_filter(parser *p, node *on) {
    node *n = parse_new(p, N_FILTER);
    n->filter.obj = on;
    n->filter.name = parse_dotted(p);
    n->filter.args = p->t->type == T_LPAREN ? parse_args(p) : jinja_new(p->c, call_args);
    set_def(p, n, filter_find((str){n->filter.name->p, n->filter.name->n}), "filter");
    return n;
}

node *parse_filters(parser *p, node *on, bool inline_start) {
    while (inline_start || parse_skip(p, T_PIPE)) {
        on = parse_filter(p, on);
        inline_start = false;
    }
    return on;
}

static node *parse_test(parser *p, node *on) {
    p->t++; /* is */
    bool negated = parse_skip_name(p, "not");
    node *n = parse_new(p, N_TEST);
    n->filter.obj = on;
    n->filter.name = parse_dotted(p);
    n->filter.args = NULL;
    token_type t = p->t->type;
    bool primary = t == T_NAME || t == T_STRING || t == T_INT || t == T_FLOAT || t == T_LBRACKET || t == T_LBRACE;
    if (t == T_LPAREN)
        n->filter.args = parse_args(p);
    else {
        n->filter.args = jinja_new(p->c, call_args);
        if (primary && !parse_is(p, "else") && !parse_is(p, "or") && !parse_is(p, "and")) {
            if (parse_is(p, "is")) jinja_fail(p->c, "You cannot chain multiple tests with is");
            parse_push(p, &n->filter.args->pos, parse_postfix(p, parse_primary(p)));
        }
    }
    set_def(p, n, test_find((str){n->filter.name->p, n->filter.name->n}), "test");
    return negated ? binary(p, N_NOT, 0, n, NULL) : n;
}

static node *parse_filter_expr(parser *p, node *n) {
    while (true) {
        if (p->t->type == T_PIPE)
            n = parse_filters(p, n, false);
        else if (parse_is(p, "is"))
            n = parse_test(p, n);
        else if (p->t->type == T_LPAREN)
            n = parse_call(p, n);
        else
            return n;
    }
}

static node *parse_unary(parser *p, bool with_filter) {
    node *n;
    jinja_guard(p->c);
    if (p->t->type == T_SUB || p->t->type == T_ADD) {
        uint8_t op = p->t->type == T_SUB ? '-' : '+';
        p->t++;
        n = binary(p, N_UNARY, op, parse_unary(p, false), NULL);
    } else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    return with_filter ? parse_filter_expr(p, n) : n;
}

/* The arithmetic levels, loosest first; ~ stands between + and *. */
static const struct level {
    struct {
        token_type t;
        binop op;
    } ops[4];
    uint8_t n;
} levels[] = {
    {{{T_ADD, OP_ADD}, {T_SUB, OP_SUB}}, 2},
    {{{T_TILDE, 0}}, 1},
    {{{T_MUL, OP_MUL}, {T_DIV, OP_DIV}, {T_FLOORDIV, OP_FLOORDIV}, {T_MOD, OP_MOD}}, 4},
    {{{T_POW, OP_POW}}, 1},
};

static node *parse_level(parser *p, size_t at) {
    if (at == COUNT(levels)) return parse_unary(p, true);
    const struct level *l = &levels[at];
    node *left = parse_level(p, at + 1);
    if (l->ops[0].t == T_TILDE) {
        if (p->t->type != T_TILDE) return left;
        node *n = parse_new(p, N_CONCAT);
        parse_push(p, &n->list, left);
        while (parse_skip(p, T_TILDE)) parse_push(p, &n->list, parse_level(p, at + 1));
        return n;
    }
    for (uint8_t i = 0; i < l->n; i++) {
        if (p->t->type != l->ops[i].t) continue;
        p->t++;
        left = binary(p, N_BINARY, l->ops[i].op, left, parse_level(p, at + 1));
        i = UINT8_MAX; /* look at every operator again */
    }
    return left;
}

static bool compare_op(parser *p, uint8_t *op) {
    static const struct {
        token_type t;
        cmp_op op;
    } ops[] = {{T_EQ, CMP_EQ}, {T_NE, CMP_NE}, {T_GT, CMP_GT}, {T_GE, CMP_GE}, {T_LT, CMP_LT}, {T_LE, CMP_LE}};
    for (size_t i = 0; i < COUNT(ops); i++) {
        if (p->t->type != ops[i].t) continue;
        *op = ops[i].op;
        p->t++;
        return true;
    }
    if (parse_skip_name(p, "in")) {
        *op = CMP_IN;
        return true;
    }
    if (!parse_is(p, "not") || p->t[1].type != T_NAME || !str_is(p->t[1].text, "in")) return false;
    p->t += 2;
    *op = CMP_NOTIN;
    return true;
}

static node *parse_compare(parser *p) {
    node *first = parse_level(p, 0);
    uint8_t op;
    if (!compare_op(p, &op)) return first;
    node *n = parse_new(p, N_COMPARE);
    n->compare.first = first;
    uint32_t cap = 0;
    do {
        if (n->compare.n == cap) {
            cap = cap ? cap * 2 : 1;
            struct operand *o = jinja_array(p->c, struct operand, cap);
            if (n->compare.n) memcpy(o, n->compare.ops, n->compare.n * sizeof *o);
            n->compare.ops = o;
        }
        n->compare.ops[n->compare.n++] = (struct operand){op, parse_level(p, 0)};
    } while (compare_op(p, &op));
    return n;
}

static node *parse_not(parser *p) {
    uint32_t nots = 0;
    while (parse_skip_name(p, "not")) nots++;
    node *n = parse_compare(p);
    /* `not not not x` is as deep as it is long for no gain: two of them are a truth value. */
    if (nots > 2) nots = 2 - nots % 2;
    for (; nots; nots--) n = binary(p, N_NOT, 0, n, NULL);
    return n;
}

static node *parse_and(parser *p) {
    node *left = parse_not(p);
    while (parse_skip_name(p, "and")) left = binary(p, N_AND, 0, left, parse_not(p));
    return left;
}

static node *parse_or(parser *p) {
    node *left = parse_and(p);
    while (parse_skip_name(p, "or")) left = binary(p, N_OR, 0, left, parse_and(p));
    return left;
}

/* Filters in the branches of an inline if are looked up when they run; which branch an expression is in shows only
 * afterwards, so the whole expression is parsed again as `soft` once an `if` turns up. */
static node *parse_condexpr(parser *p) {
    jinja_guard(p->c);
    const token *start = p->t;
    bool soft = p->soft;
    uint32_t line = p->c->line;
    if (!soft) {
        /* An inline if reads as: expr `if` ...; decide by looking for `if` at this bracket level. */
        int depth = 0;
        for (const token *t = start; t->type != T_EOF && t->type != T_BLOCK_END && t->type != T_VAR_END && depth >= 0;
             t++) {
            depth += (t->type == T_LPAREN || t->type == T_LBRACKET || t->type == T_LBRACE);
            depth -= (t->type == T_RPAREN || t->type == T_RBRACKET || t->type == T_RBRACE);
            if (depth < 0 || (depth == 0 && t->type == T_COMMA)) break;
            if (depth == 0 && t->type == T_NAME && str_is(t->text, "if")) p->soft = true;
            jinja_step(p->c, 1);
        }
    }
    node *n = parse_or(p);
    while (parse_skip_name(p, "if")) {
        node *c = parse_new(p, N_COND);
        c->line = line;
        c->two.a = n;
        c->two.b = parse_or(p);
        c->two.c = parse_skip_name(p, "else") ? parse_condexpr(p) : NULL;
        n = c;
    }
    p->soft = soft;
    return n;
}

node *parse_expression(parser *p) {
    return parse_condexpr(p);
}

node *parse_tuple(parser *p, tuple_opts o) {
    node *n = parse_new(p, N_TUPLE);
    bool is_tuple = false;
    while (true) {
        if (n->list.n) parse_expect(p, T_COMMA);
        token_type t = p->t->type;
        if (t == T_VAR_END || t == T_BLOCK_END || t == T_RPAREN || (o.end && parse_is(p, o.end))) break;
        parse_push(p, &n->list, o.no_condexpr ? parse_or(p) : parse_expression(p));
        if (p->t->type != T_COMMA) break;
        is_tuple = true;
    }
    if (is_tuple) return n;
    if (n->list.n) return n->list.v[0];
    if (!o.parentheses) jinja_fail(p->c, "Expected an expression, got '%s'", token_name(p->t->type));
    return n;
}

static node *parse_target_one(parser *p, bool with_ns) {
    node *n;
    jinja_guard(p->c);
    if (p->t->type == T_LPAREN) {
        p->t++;
        n = parse_new(p, N_TUPLE);
        while (p->t->type != T_RPAREN) {
            if (n->list.n) parse_expect(p, T_COMMA);
            if (p->t->type == T_RPAREN) break;
            parse_push(p, &n->list, parse_target_one(p, with_ns));
        }
        bool one = n->list.n == 1 && p->t[-1].type != T_COMMA;
        parse_expect(p, T_RPAREN);
        return one ? n->list.v[0] : n;
    }
    const token *t = parse_expect(p, T_NAME);
    static const char *const words[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < COUNT(words); i++)
        if (str_is(t->text, words[i])) jinja_fail(p->c, "can't assign to 'const'");
    n = parse_new(p, N_NAME);
    n->store = true;
    if (with_ns && parse_skip(p, T_DOT)) {
        n->kind = N_ATTR;
        jstr *ns = parse_str(p, t->text);
        n->attr.name = parse_str(p, parse_expect(p, T_NAME)->text);
        n->attr.obj = parse_new(p, N_NAME);
        n->attr.obj->name.name = ns;
        return n;
    }
    n->name.name = parse_str(p, t->text);
    return n;
}

node *parse_target(parser *p, bool with_ns, const char *end) {
    node *first = parse_target_one(p, with_ns);
    if (p->t->type != T_COMMA) return first;
    node *n = parse_new(p, N_TUPLE);
    parse_push(p, &n->list, first);
    while (parse_skip(p, T_COMMA)) {
        if (p->t->type == T_ASSIGN || p->t->type == T_BLOCK_END || (end && parse_is(p, end))) break;
        parse_push(p, &n->list, parse_target_one(p, with_ns));
    }
    return n;
}
