/* Jinja: tests (`x is name`). Not here: filters, comparisons in expressions (jinja_eval.c). */
#include "jinja_internal.h"

#define TEST(name) static value name(core *c, value self, value *v, const args *a)

static bool remainder_is(core *c, value self, value by, int64_t want) {
    return value_eq(c, op_binary(c, OP_MOD, self, by), v_int(want));
}
TEST(t_odd) {
    return v_bool(remainder_is(c, self, v_int(2), 1));
}
TEST(t_even) {
    return v_bool(remainder_is(c, self, v_int(2), 0));
}
TEST(t_divisibleby) {
    return v_bool(remainder_is(c, self, v[0], 0));
}
TEST(t_defined) {
    return v_bool(!v_is(self, V_UNDEFINED));
}
TEST(t_undefined) {
    return v_bool(v_is(self, V_UNDEFINED));
}
static str name_of(core *c, value self) {
    value_hash(c, self); /* fails on what cannot be a key */
    return v_is(self, V_STR) ? (str){self.s->p, self.s->n} : STR("");
}
TEST(t_filter) {
    return v_bool(filter_find(name_of(c, self)) != NULL);
}
TEST(t_test) {
    return v_bool(test_find(name_of(c, self)) != NULL);
}
TEST(t_none) {
    return v_bool(v_is(self, V_NONE));
}
TEST(t_boolean) {
    return v_bool(v_is(self, V_BOOL));
}
TEST(t_false) {
    return v_bool(v_is(self, V_BOOL) && !self.b);
}
TEST(t_true) {
    return v_bool(v_is(self, V_BOOL) && self.b);
}
TEST(t_integer) {
    return v_bool(v_is(self, V_INT) || v_is(self, V_BIG));
}
TEST(t_float) {
    return v_bool(v_is(self, V_FLOAT));
}
TEST(t_lower) {
    return str_method(c, str_sub(c, value_str(c, self), 0, value_str(c, self)->n), "islower", &(args){0});
}
TEST(t_upper) {
    return str_method(c, str_sub(c, value_str(c, self), 0, value_str(c, self)->n), "isupper", &(args){0});
}
TEST(t_string) {
    return v_bool(v_is(self, V_STR));
}
TEST(t_mapping) {
    return v_bool(v_is(self, V_DICT));
}
TEST(t_number) {
    return v_bool(v_is(self, V_INT) || v_is(self, V_FLOAT) || v_is(self, V_BOOL) || v_is(self, V_BIG));
}
TEST(t_sequence) {
    return v_bool(value_len(c, self) >= 0 && !v_is(self, V_VIEW));
}
TEST(t_sameas) {
    return v_bool(value_same(self, v[0]));
}
TEST(t_iterable) {
    return v_bool(can_iterate(self));
}
TEST(t_escaped) {
    return v_bool(v_is(self, V_STR) && self.s->markup);
}
TEST(t_in) {
    return v_bool(value_in(c, self, v[0]));
}
TEST(t_callable) {
    return v_bool(v_is(self, V_MACRO) || v_is(self, V_FUNC) || v_is(self, V_METHOD) || v_is(self, V_LOOP) ||
                  v_is(self, V_JOINER) || v_is(self, V_UNDEFINED));
}
TEST(t_eq) {
    return v_bool(value_eq(c, self, v[0]));
}
TEST(t_ne) {
    return v_bool(!value_eq(c, self, v[0]));
}
TEST(t_gt) {
    return v_bool(value_order(c, self, v[0], ">") == 1);
}
TEST(t_lt) {
    return v_bool(value_order(c, self, v[0], "<") == -1);
}
TEST(t_ge) {
    int o = value_order(c, self, v[0], ">=");
    return v_bool(o == 0 || o == 1);
}
TEST(t_le) {
    int o = value_order(c, self, v[0], "<=");
    return v_bool(o == 0 || o == -1);
}

const func_def jinja_tests[] = {
    {"odd", t_odd, ""},
    {"even", t_even, ""},
    {"divisibleby", t_divisibleby, "num!"},
    {"defined", t_defined, ""},
    {"undefined", t_undefined, ""},
    {"filter", t_filter, ""},
    {"test", t_test, ""},
    {"none", t_none, ""},
    {"boolean", t_boolean, ""},
    {"false", t_false, ""},
    {"true", t_true, ""},
    {"integer", t_integer, ""},
    {"float", t_float, ""},
    {"lower", t_lower, ""},
    {"upper", t_upper, ""},
    {"string", t_string, ""},
    {"mapping", t_mapping, ""},
    {"number", t_number, ""},
    {"sequence", t_sequence, ""},
    {"iterable", t_iterable, ""},
    {"callable", t_callable, ""},
    {"sameas", t_sameas, "other!"},
    {"escaped", t_escaped, ""},
    {"in", t_in, "seq!"},
    {"==", t_eq, "b!/"},
    {"eq", t_eq, "b!/"},
    {"equalto", t_eq, "b!/"},
    {"!=", t_ne, "b!/"},
    {"ne", t_ne, "b!/"},
    {">", t_gt, "b!/"},
    {"gt", t_gt, "b!/"},
    {"greaterthan", t_gt, "b!/"},
    {"ge", t_ge, "b!/"},
    {">=", t_ge, "b!/"},
    {"<", t_lt, "b!/"},
    {"lt", t_lt, "b!/"},
    {"lessthan", t_lt, "b!/"},
    {"<=", t_le, "b!/"},
    {"le", t_le, "b!/"},
    {0},
};
