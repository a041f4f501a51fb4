"""Expressions and templates for Jinja tests, with what real Jinja2 makes of them.

    python tools/jinja_cases.py > tests/data/jinja/cases.json

The environment is the one Hugging Face renders chat templates in: ImmutableSandboxedEnvironment with trim_blocks,
lstrip_blocks, loop controls, tojson without HTML escaping, raise_exception, and a {% generation %} block.
Each case: {"t": template, "ok": text} or {"t": template, "err": message}; all share the variables in "vars"."""
import json
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes

VARS = {
    "s": "Hello, World",
    "u": "naïve Σίσυφος ß 日本語 🎉",
    "multi": "line one\n  line two\r\nline three\n",
    "ws": " \t padded \n",
    "empty": "",
    "html": "<a href=\"x\">'&</a>",
    "n": 42,
    "neg": -7,
    "zero": 0,
    "f": 3.25,
    "tiny": 1e-07,
    "big": 1e22,
    "huge": 123456789012345678901234567890,
    "t": True,
    "no": None,
    "l": [3, 1, 2],
    "words": ["banana", "Apple", "cherry", "apple"],
    "nested": [[1, 2], [3, [4, 5]], []],
    "d": {"b": 1, "a": 2, "C": [1, {"x": None}], "items": "shadow"},
    "users": [
        {"name": "ann", "age": 30, "tags": ["x"], "addr": {"city": "Oslo"}},
        {"name": "Bob", "age": 25, "active": True, "addr": {"city": "Bergen"}},
        {"name": "cid", "age": 30, "active": False, "addr": {"city": "oslo"}},
    ],
    "mixed": [1, "1", 1.0, True, None, "", [], {}],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
}

# Deliberately different: integers beyond 64 bits are an error, `self` does not exist.
DIFFERENT = {"{{ huge + 1 }}", "{{ self }}"}

EXPRESSIONS = r"""
1 + 2 * 3|(1 + 2) * 3|7 // 2|-7 // 2|7 % 3|-7 % 3|7 % -3|7.5 // 2|-7.5 // 2|-7.5 % 2|2 ** 10|2 ** -1|-2 ** 2|2 ** 3 ** 2
1 / 2|4 / 2|1 / 3|1e3|1.5e-7|1e16|1e15|123456789.123|0.1 + 0.2|1_000|0x1F|0b101|0o17|1e100|10 ** 18|9223372036854775807
true + true|true * 3|-true|+n|-f|not n|not not n|n > 10|1 < 2 < 3|1 < 3 < 2|1 == 1.0 == true|n == 42|"a" < "b"|[1, 2] < [1, 3]
1 / 0|1 // 0|1 % 0|1.0 // 0|0 ** -1|"a" + 1|1 + "a"|"a" * 3|3 * "ab"|"a" * -1|[1] * 2|[1] + [2]|(1,) + (2,)|"a" - "b"|none + 1|missing + 1|1 + missing|missing.x|missing["x"]|missing()
s ~ n ~ none ~ true ~ f ~ missing|"a" "b" 'c'|'it''s'|"tab\tnl\n\x41\u00e9\U0001f389\101\q"|'\\'
s[0]|s[-1]|s[99]|s[1:4]|s[:-1]|s[::-1]|s[::2]|s[-3:]|s[5:2]|u[6:9]|u[::-1]|u[-1]|u|length|l[0]|l[-1]|l[1:]|l[::-1]|l[5]|l["x"]|d.a|d["a"]|d.items|d["items"]|d.zzz|d.C[1].x|d.C.1.x|nested[1][1][0]|nested.1.0|s.0|n[0]|none[0]|n.real
1 in l|5 in l|"a" in "abc"|"z" not in "abc"|"a" in d|1 in 5|none in l|"x" in none|1 in missing|"1" in mixed|1 in "abc"
1 if t else 2|1 if zero|(1 if zero) is defined|"a" if missing else "b"|t and n|zero and n|zero or "x"|none or zero or s|not t and zero
{}|{"a": 1, "b": [1, 2.5, none, true, "q'q", 'd"d', "nl\n"]}|[]|()|(1,)|(1, 2)|{1: 2, "1": 3, 1.0: 4}|{(1, 2): 3}|{[1]: 2}|[u]|[html]|["\x00\x7f\u200b\u00ad"]|huge|huge + 1|big|tiny|[big, tiny, -0.0]
mixed|d|users[0]|nested|range(5)|range(2, 8, 3)|range(5)|list|range(0)|range(10, 0, -3)|list|range(1000000)|range(5)[1:3]|range(5)[-1]|range(5, 0, -2)[::-1]|list|3 in range(5)|range(3)|length|range(1, 2, 0)
dict(a=1)|dict([("a", 1), ("b", 2)], c=3)|dict(d)|namespace(a=1).a|namespace(a=1)|cycler(1, 2).next()|joiner()|cycler()
s|upper|s|lower|s|title|s|capitalize|"hello-world (foo bar) [x y]"|title|"ǆ ß ŉ"|upper|"ΑΣ ΑΣΑ Σ"|lower|u|upper|u|title|u|capitalize|n|upper|none|upper|missing|upper
ws|trim|"xxaxx"|trim("x")|"abcba"|trim("ab")|42|trim|s|length|l|length|d|length|n|length|none|length|missing|length|s|count
l|first|l|last|[]|first|[]|last|s|first|s|last|d|first|d|last|missing|first|missing|last|n|first|range(3)|last
l|join|l|join(", ")|words|join("-")|users|join(",", attribute="name")|users|map(attribute="age")|join("/")|[1, none, true]|join("|")|d|join|none|join|missing|join
l|sort|l|sort(reverse=true)|words|sort|words|sort(case_sensitive=true)|users|sort(attribute="age")|map(attribute="name")|list|users|sort(attribute="age,name", reverse=true)|map(attribute="name")|list|mixed|sort|[[2, 1], [1, 2]]|sort|none|sort
words|unique|list|words|unique(case_sensitive=true)|list|users|unique(attribute="age")|map(attribute="name")|list|[1, 1.0, true, "1"]|unique|list|[[1]]|unique|list
l|sum|users|sum(attribute="age")|l|sum(start=10)|[]|sum|[1.5, 2]|sum|["a"]|sum|[[1], [2]]|sum(start=[])|l|min|l|max|words|min|words|max|words|max(case_sensitive=true)|[]|min|users|max(attribute="age")|users|min(attribute="name")|[1, "a"]|max
users|groupby("age")|length|users|groupby("age")|map(attribute="grouper")|list|users|groupby("addr.city")|map("first")|list|users|groupby("active", default=false)|map("first")|list|users|groupby("addr.city", case_sensitive=true)|map(attribute="grouper")|list|(users|groupby("age"))[0].list|length|users|groupby("age")|map("last")|map("length")|list
d|dictsort|d|dictsort(true)|{"b": 2, "a": 3, "c": 1}|dictsort(by="value")|{"b": 2, "a": 3}|dictsort(reverse=true)|d|dictsort(by="x")|none|dictsort|{"b": 1, 2: 3}|dictsort
l|reverse|list|s|reverse|l|reverse|first|none|reverse|d|reverse|list|d|list|s|list|none|list|d|items|list|missing|items|list|n|items|list|l|items|list
l|batch(2)|list|l|batch(2, "x")|list|range(7)|batch(3)|map("list")|list|range(7)|slice(3)|list|range(7)|slice(3, 0)|list|[]|batch(2)|list|[]|slice(2)|list
users|selectattr("active")|list|users|selectattr("active", "defined")|map(attribute="name")|list|users|rejectattr("age", "equalto", 30)|map(attribute="name")|list|l|select("odd")|list|l|reject("odd")|list|l|select("gt", 1)|list|mixed|select|list|mixed|reject|list|l|select("nope")|list|words|select("in", ["Apple"])|list|users|selectattr("addr.city", "eq", "Oslo")|list|length|users|selectattr|list|l|select("divisibleby", 2)|list|mixed|select("string")|list|mixed|select("none")|list
words|map("upper")|list|words|map("replace", "a", "o")|list|users|map(attribute="addr.city")|list|users|map(attribute="zip", default="?")|list|users|map(attribute="zip")|list|words|map|list|words|map("nope")|list|nested|map("length")|list|nested|map("first")|list|users|map("attr", "name")|list|words|map("default", "x")|list|users|map(attribute="tags.0")|list|missing|map("upper")|list|words|map(attribute="x", y=1)|list
s|replace("l", "L")|s|replace("l", "L", 2)|s|replace("", "-")|n|replace(4, 5)|html|replace("<", "[")|s|replace("zz", "y")|s|replace("l")
f|round|f|round(1)|2.5|round|3.5|round|-2.5|round|2.675|round(2)|1234.5|round(-2)|1250|round(-2)|f|round(1, "ceil")|f|round(1, "floor")|42|round|42|round(1, "ceil")|f|round(method="x")|"a"|round|3.14159|round(3)|-7|abs|f|abs|-0.0|abs|"a"|abs|true|abs
"42"|int|"42.9"|int|" 7 "|int|"abc"|int|"abc"|int(5)|"0x1f"|int(base=16)|"1f"|int(0, 16)|"101"|int(base=2)|"1_000"|int|3.99|int|-3.99|int|true|int|none|int|none|int(3)|[]|int|"-12"|int|"1e3"|int|"inf"|int|"nan"|int|"٣"|int|"3.7"|float|"abc"|float|"abc"|float(1.5)|"1e5"|float|" 2 "|float|none|float|true|float|42|float|"inf"|float|"-Infinity"|float|"nan"|float|"1_0.5"|float
missing|default|missing|default("x")|none|default("x")|none|default("x", true)|""|d("x", boolean=true)|zero|default("x")|d.zzz|default("x")|d|attr("a")|users[0]|attr("name")|s|attr("upper")|d|attr("keys")
html|e|html|escape|html|e|e|html|safe|(html|safe)|e|html|forceescape|(html|e)|forceescape|n|e|none|e|"<b>"|safe + "<i>"|"<i>" + ("<b>"|safe)|("<b>"|safe) ~ "<i>"|[html|safe]|("<b>%s"|safe) % "<i>"|("<b>"|safe).upper()|("<b>"|safe)|upper is escaped|("<b>"|safe).join(["<", ">"|safe])|("a<b"|safe).split("<")|("a"|safe).replace("a", "<")|("<{}>"|safe).format("<")
html|striptags|"<p>a  <b>b</b>\n c&lt;&amp;</p><!-- x <y> -->"|striptags|html|urlencode|"a b/c?d=é&~"|urlencode|{"a b": "c/d", "e": 1}|urlencode|[("a", "b c")]|urlencode|n|urlencode|{"class": "a<b", "id": none, "x": missing, "n": 1}|xmlattr|{"a": 1}|xmlattr(false)|{"a b": 1}|xmlattr|{}|xmlattr
s|wordcount|"it's a-b c_d é"|wordcount|"foo bar baz qux"|truncate(9)|"foo bar baz qux"|truncate(11)|"foo bar baz qux"|truncate(9, true)|"foo bar baz qux"|truncate(9, leeway=0)|"foo bar baz qux"|truncate(5, true, "..", 0)|"foobarbaz"|truncate(3, false, "", 0)|s|truncate(2)|"日本語日本語日本語"|truncate(5, true, "…", 0)
multi|indent|multi|indent(2)|multi|indent(2, true)|multi|indent(2, false, true)|multi|indent("> ", true, true)|"a\n\nb"|indent|"a\n\nb"|indent(blank=true)|""|indent(first=true)|"one"|indent|"\n"|indent|"a\n"|indent|n|indent
s|center(20)|"ab"|center(5)|"abc"|center(6)|s|center|"a%sb%dc"|format("x", 3)|"%(a)s-%(b)05d"|format(a="x", b=42)|"%s"|format|"%s"|format(1, 2)
"%d %5d %-5d| %05d %+d %x %X %o %#x %#o"|format(1, 2, 3, 4, 5, 255, 255, 8, 255, 8)|"%f %.2f %10.3f %-8.1f| %e %g %G %.3g %+.1f %%"|format(1.5, 2.345, 3.14159, 1.25, 12345.678, 0.0001, 1e-10, 1234567, 2)|"%s %r %5s %-5s| %.2s"|format("a", "b", "c", "d", "efgh")|"%c%c"|format(65, "b")|"%*d"|format(5, 42)|"%d"|format("x")|"%q"|format(1)|"%i %u"|format(1.9, 2)|"%s" % (1, 2)|"%s %s" % (1, 2)|"%s" % [1, 2]|"%(a)s" % {"a": 1}|"%.3d" % 5|"%+.3d" % 5|"% d" % 5|"%x" % -255|"%s" % missing|"%5.1f%%" % 99.55|"%10s|%-10s" % ("é", "é")
"{} {}".format(1, "a")|"{0} {1} {0}".format("x", "y")|"{a} {b[0]} {c.x}".format(a=1, b=[2], c={"x": 3})|"{:>5}{:<5}{:^5}|".format("a", "b", "c")|"{:05d} {:+d} {:,} {:_} {:x} {:#X} {:b} {:e} {:.2f} {:%}".format(42, 5, 1234567, 1234567, 255, 255, 5, 12345.678, 3.14159, 0.256)|"{!r} {!s}".format("a", "b")|"{{}}".format()|"{".format()|"{}".format()|"{:*^9}".format("mid")|"{:{}}".format("a", 5)|"{0}{}".format(1, 2)|"{x}".format(y=1)|"{:.1f}".format(2.25)|"{:g}".format(1e-5)|"{:10.3}".format("abcdef")|"{:d}".format("a")|"{:s}".format(1)|"{} {}".format(1.0, [1, "a"])|"{a}".format_map({"a": 1})|"{:,.2f}".format(1234567.891)|"{:<4}|".format(true)|"{:>6}".format(none)
1000|filesizeformat|1|filesizeformat|999|filesizeformat|1234567|filesizeformat|1234567|filesizeformat(true)|1e25|filesizeformat|"300"|filesizeformat|0|filesizeformat
d|pprint|s|pprint|l|pprint|"the quick brown fox jumps over it"|wordwrap(10)|"a verylongwordindeed b"|wordwrap(8)|"a verylongwordindeed b"|wordwrap(8, false)|"one two\nthree four five"|wordwrap(9, wrapstring="/")|"well-known half-baked"|wordwrap(7)|"well-known half-baked"|wordwrap(7, break_on_hyphens=false)
d|tojson|users[0]|tojson|u|tojson|u|tojson(ensure_ascii=true)|html|tojson|"\x00\x1f\x7f\n\t\"\\/\b\f"|tojson|l|tojson(indent=2)|d|tojson(indent=4)|d|tojson(indent=0)|[]|tojson(indent=2)|{}|tojson(indent=2)|d|tojson(separators=(",", ":"))|{"b": 1, "a": {"d": 1, "c": 2}}|tojson(sort_keys=true)|{"b": 1, "a": 2}|tojson(indent=2, sort_keys=true)|{1: 2, none: 3, true: 4, 1.5: 5}|tojson|{(1, 2): 3}|tojson|missing|tojson|range(3)|tojson|d.items()|tojson|(1, 2)|tojson|[f, big, tiny, huge, 1e16, -0.0]|tojson|none|tojson|true|tojson|l|map("string")|tojson|namespace(a=1)|tojson|"inf"|float|tojson|d|tojson(indent="--")|l|tojson(true, 1)
s is string|n is string|n is number|t is number|t is integer|n is integer|f is float|n is float|t is boolean|no is none|missing is defined|s is defined|missing is undefined|d is mapping|l is mapping|l is sequence|s is sequence|d is sequence|n is sequence|missing is sequence|range(2) is sequence|d.items() is sequence|(l|map("upper")) is sequence|l is iterable|n is iterable|missing is iterable|d.items() is iterable|(l|map("upper")) is iterable|n is even|n is odd|n is divisibleby 7|n is divisibleby(5)|"a" is odd|f is odd
n is eq 42|n is ne 42|n is gt 41|n is ge 42|n is lt 3|n is le 42|n is equalto 42|n is greaterthan 1|n is lessthan 1|n is sameas 42|no is sameas none|t is true|t is false|zero is false|s is lower|"abc" is lower|"ABC" is upper|n is in [42]|"a" is in "abc"|s is callable|range is callable|s.upper is callable|missing is callable|"upper" is filter|"nope" is filter|"odd" is test|"odd" is filter|html is escaped|(html|safe) is escaped|n is not even|n is not none|not n is even|n is nope|n is lt "a"|n is even and t|1 is odd == true|"a" is eq "a" if t
s.upper()|s.lower()|s.title()|s.swapcase()|s.casefold()|u.casefold()|s.capitalize()|"they're bill's".title()|s.split()|s.split(",")|s.split(", ", 1)|"a,b,,c".split(",")|"a,b,c".split(",", maxsplit=1)|" a  b ".split()|" a  b c ".split(none, 1)|"abc".split("")|s.split(1)|"a b c".rsplit(" ", 1)|" a b  c ".rsplit()|" a b  c ".rsplit(none, 1)|"a,b".rsplit(",")|multi.splitlines()|multi.splitlines(true)|"".split()|"".split(",")|"".splitlines()
ws.strip()|ws.lstrip()|ws.rstrip()|"xyabcyx".strip("xy")|"xyabcyx".lstrip("xy")|"xyabcyx".rstrip("xy")|"abc".strip("")|s.strip(1)|"\u00a0\u3000x\u2003".strip()|s.startswith("He")|s.startswith(("x", "H"))|s.endswith("ld")|s.endswith(("ld",))|s.startswith("l", 2)|s.startswith("He", 0, 1)|s.startswith(1)|s.startswith(["H"])|s.find("o")|s.find("o", 5)|s.find("zz")|s.rfind("o")|s.index("W")|s.index("zz")|s.rindex("l")|s.count("l")|s.count("")|"aaaa".count("aa")|u.find("日")|u.count("σ")
s.replace("l", "L")|s.replace("l", "L", 1)|s.replace("", "-", 3)|s.replace(1, 2)|"-".join(words)|"-".join("abc")|"-".join([1])|"-".join([])|"-".join(d)|"a".center(5)|"a".center(6, "*")|"ab".center(5, "*")|"a".ljust(3) ~ "|"|"a".rjust(3, "0")|"42".zfill(5)|"-42".zfill(5)|"a\tb".expandtabs()|"a\tb".expandtabs(4)|"a-b-c".partition("-")|"a-b-c".rpartition("-")|"abc".partition("-")|"abc".rpartition("-")|"abc".removeprefix("a")|"abc".removesuffix("bc")|"abc".removesuffix("x")
"abc1".isalnum()|"abc".isalpha()|"12".isdigit()|"²".isdigit()|"²".isdecimal()|"½".isnumeric()|" \n".isspace()|"".isspace()|"Abc Def".istitle()|"abc".islower()|"ABC1".isupper()|"a1_".isidentifier()|"1a".isidentifier()|"é".isascii()|"a\n".isprintable()|"日本".isalpha()|s.nope()|s.upper(1)|s.format_map|s.__class__|s.__class__()|s["upper"]()|s._x
d.get("a")|d.get("zz")|d.get("zz", 5)|d.get()|d.keys()|d.values()|d.items()|d.keys()|list|d.items()|list|d.items()|length|d.items()[0]|"a" in d.keys()|d.copy()|d.update({"x": 1})|d.pop("a")|d.clear()|d.setdefault("a")|l.append(1)|l.pop()|l.index(1)|l.index(9)|l.count(1)|l.copy()|l.sort()|l.reverse()|l.nope|l.append is defined|(1, 2).count(1)|(1, 2).index(2)|(1, 2).append(1)|n.bit_length()|f.is_integer()|2.0.is_integer()|d.fromkeys(["a", "b"])|d.fromkeys("ab", 1)
range(3)|map("string")|join|l|map("string")|map("length")|sum|(l|map("string"))|first|(l|select("odd")) is defined|(l|select("gt", 100))|list or "none"|[1, 2, 3]|select("even")|first|default("x")|(words|map("first"))|join|words|map("length")|max
raise_exception("boom")|raise_exception(1)|raise_exception("multi\nline")|strftime_now("%Y-%m-%d")|strftime_now("%d %b %Y %H:%M %%")|strftime_now(1)|range("a")|range()|dict(1)|namespace(1)|s(1)|n()|none()|missing|missing.a.b|[missing]|missing|string|missing == missing|missing == none|missing != 1|missing < 1|missing[1:]|missing|list|missing|join|-missing|missing ~ "x"|missing is eq missing|missing in [missing]|{missing: 1}
(1, 2, 3)[1]|{"a": {"b": 1}}.a.b|{"a": 1}["a"]|[1, 2, 3][1:][0]|"abc"[1]|"abc".1|(l|sort)[0]|l.0 + l.1|"a-b".split("-")[1]|"x=%s" % l[0]|[[1]][0][0]|{"f": 1}.f|[1, 2][true]|l[1.0]|l["0"]|"%s" % (s,)|s|replace("o", "0")|upper|-n|abs|-(n|abs)|-n|string|not missing|n + 1|string|(n + 1)|string|n|string + "x"|2 * 3|string|1 + 1 ~ 2|1 ~ 2 + 3|"a" ~ 1 * 2|1 + 2 == 3 and t|n if n > 1 else 0|(n, s)|n,|[n,]|{"a": n,}|l|length > 2|l|length is gt 2|"a" in words|"a" in (words|first)|not "a" in words|words[0] in words and true
u|wordcount|[u|reverse, u.split()]|u.title()|u.swapcase()|u.center(40, "é")|u[1:3] ~ u[-2:]|"ﬁ".upper()|"İ".lower()|"ς".upper()|"ǅ".lower()|"ŉ".title()|u|list|length|u|truncate(6, true, "", 0)|u.index("🎉")|"🎉" * 3|"%5s" % "日本"|"é".encode|u|tojson|length|[u]|string|length
"".join(["a", "b"])|", ".join(users|map(attribute="name"))|users|map(attribute="name")|join(", ")|users|map(attribute="name")|map("upper")|list|users|selectattr("tags", "defined")|map(attribute="tags")|list|users|map("tojson")|join("\n")|users|length ~ " users"|d|items|map("first")|list|d|items|map("last")|list|d|dictsort|map("first")|join
lipsum is callable|self|caller|loop|varargs|kwargs|true.real|none.x|none|default(1)|False|None|True|nan|1.e5|1.|.5|1..real|5.bit_length()|1 .real
n is even is odd|n is divisibleby 2 or zero|n is in l or t|"a" is string and n is number|n is number == true|f is not number|d is mapping and d is not string|l is not mapping|n is defined and n|(missing is defined) ~ "x"|missing|default(l)|first|d.a is defined|d["zz"] is defined|d.C[1].x is none|d.C[9] is defined|d.zz.yy is defined
""".strip()

SYNTAX = ['a if', '(1', '[1', '{1}', '{"a"}', '1 +', 'a b', 'a.', 'a..b', 'a[', 'a[]', 'a[1:2:3:4]', '"abc', "'abc", 'f(a=1, 2)',
          'f(*l, 1)', 'f(**d, a=1)', 'f(a=1, a=2)', 'x = 1', '1 is', '1 is not', '1|2', 's||upper', '@', '$', 'a ? b : c', 'a && b', '!a',
          'a; b', 'lambda: 1', '[x for x in l]', 's not "b"', 'is defined', 'and 1', 'if', 'else', 'in l', '(1))', ']', '1]', '(]', '{"a": 1',
          '1 if 2 else', 'not', '-', '1 not 2', 's.1.2', 's.upper', '*l', 'f(*)', '"a" "b', '1 2', '"a"1', '1a', '0777', '00', '1__0', '1_']

# Several expressions stand on one line, separated by "|" where the next begins a new one: writing each alone would take
# hundreds of lines. A line is cut at every "|" that is followed by neither a filter name nor "|"; see split_line.

TEMPLATES = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}  \n  b\n  {% endif %}  \nc", "a {%- if true -%} b {%- endif -%} c",
    "a\n  {%+ if true %}\n b\n{% endif +%}\nc", "{{ 1 -}}  \n  x", "x  \n {{- 1 }}", "{#- c -#} x {# d #}\n y\n{# e #}\nz", "  {# c #}\nx",
    "{% raw %}{{ x }}{% endraw %}", "  {% raw %}\n {{ x }} \n  {% endraw %}\n y", "{%- raw -%}  a  {%- endraw -%}  b", "a\r\nb\rc\n\n", "\n", "", "x\n\n",
    "{{ '{{' }} {{ '%}' }} {{ '}}' }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': 1}}}", "{{ [[1]]}}", "{ { x } } {% if 1 %}}{% endif %}", "{{ 1 }}\n{{ 2 }}\n",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.index0 }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{{ x }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }};{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in n %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in missing %}x{% endfor %}ok", "{% for c in s %}{{ c }}.{% endfor %}", "{% for x in d %}{{ x }},{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}", "{% for n in tree recursive %}{{ n.v }}@{{ loop.depth }}{{ loop.depth0 }}({{ loop(n.kids) }}){% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1] %}{% break %}{% else %}E{% endfor %}", "{% for x in [1] %}{% continue %}{% else %}E{% endfor %}", "{% break %}", "{% for x in l %}{% set t %}{% break %}{% endset %}{% endfor %}ok", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for x in l|map('string') %}{{ loop.length }}{{ loop.last }}{{ x }} {% endfor %}", "{% set g = l|map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}.", "{% for x in range(3) %}{{ loop.nextitem is defined }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% for y in range(x) if y < x %}{{ y }}{% endfor %};{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}", "{% set ns.x = 1 %}", "{% set n.x = 1 %}", "{% set d.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = 1 %}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x is string }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}abc{% endset %}{{ x }}", "{% if t %}{% set x = 1 %}{% endif %}{{ x }}", "{% if zero %}{% set n = 1 %}{% endif %}{{ n }}", "{% if zero %}{% set n = 1 %}{% else %}{{ n }}{% endif %}",
    "{% set n = n + 1 %}{{ n }}", "{{ n }}{% set n = 1 %}{{ n }}", "{% for x in l %}{{ n }}{% set n = x %}{% endfor %}{{ n }}", "{% set n = 5 %}{% for x in l %}{{ n }}{% set n = x %}{{ n }} {% endfor %}{{ n }}", "{% for x in l %}{% if loop.first %}{% set q = 1 %}{% endif %}{{ q }}{% endfor %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=1, a=0) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(x=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}",
    "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}",
    "{{ m() }}{% macro m() %}x{% endmacro %}", "{% if zero %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}", "{% macro m() %}{{ n }}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(x) %}{% if x %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ 1 }}",
    "{% macro m(a, b='x') %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m }}", "{% macro m(l) %}{{ l|length }}{% endmacro %}{{ m([1, 2]) }}{{ m(l=s) }}", "{% macro m() %}a\n{% endmacro %}{{ m()|trim }}{{ m() is string }}", "{% macro m(x) -%}\n {{ x }} \n{%- endmacro %}[{{ m(1) }}]", "{{ [m, 1] }}{% macro m() %}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}{{ m(*[1], **{'a': 2}) }}",
    "{% filter upper %}a{{ n }}b{% endfilter %}", "{% filter replace('a', 'x')|upper %}banana{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% with n = n + 1 %}{{ n }}{% endwith %}{{ n }}", "{% block a %}x{{ n }}{% endblock %}", "{% set z = 1 %}{% block a %}{{ z }}{% endblock a %}", "{% for x in l %}{% block b %}{{ x }}{% endblock %}{% endfor %}",
    "{% if n %}a{% elif t %}b{% else %}c{% endif %}", "{% if zero %}a{% elif t %}b{% else %}c{% endif %}", "{% if zero %}a{% elif no %}b{% else %}c{% endif %}", "{% if %}{% endif %}", "{% if n %}", "{% endif %}", "{% for x in l %}", "{% foo %}", "{% if n %}{% endfor %}", "{% set %}", "{% %}", "{{ }}", "{{", "{%", "{#", "{% raw %}", "{{ n", "{% set x = 1", "{% if n: %}a{% endif %}", "{% for x in l: %}{{ x }}{% endfor %}",
    "{% generation %}a{{ n }}{% endgeneration %}", "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "{% print n, s %}", "{% do l.append(1) %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% autoescape false %}{{ html }}{% endautoescape %}", "{%- set x = 1 -%}\n\n x", "{% set x = 1 %}\n\n x",
    "{% if zero %}{{ s|nope }}{% endif %}ok", "{{ s|nope if zero else 1 }}", "{{ s|nope }}", "{% if zero %}{{ s is nope }}{% endif %}ok", "{% if t %}{{ s|nope }}{% endif %}", "{% for x in l %}{{ s|nope }}{% endfor %}", "{{ (s|nope) if zero else 'y' }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "{{ ns }}{% set ns = namespace({'a': 1}, b='x') %}{{ ns }}{{ ns.zz is defined }}", "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}",
    "{% for m in users %}{% if not loop.first %}, {% endif %}{{ m.name|title }} ({{ m['age'] }}{% if m.active is defined %}{{ ' active' if m.active else ' idle' }}{% endif %}){% endfor %}", "{%- for m in users -%}\n  {%- if m.name == 'Bob' -%}\n    {{- m.name -}}\n  {%- else %}\n    {{ m.age }}\n  {%- endif %}\n{%- endfor %}\nend",
    "{% for x in users|groupby('age') %}{{ x.grouper }}:{{ x.list|length }};{% endfor %}", "{% for age, us in users|groupby('age') %}{{ age }}:{% for u in us %}{{ u.name }} {% endfor %};{% endfor %}", "{% for row in range(5)|batch(2, '-') %}{{ row|join(' ') }}\n{% endfor %}", "{% set content = 'a</think>b' %}{{ content.split('</think>')[-1].lstrip('\\n') }}{{ content.split('</think>')[0] }}",
    "{%- macro r(c) -%}{%- if c is string -%}{{ c }}{%- elif c is iterable and c is not mapping -%}{%- for i in c -%}{{ r(i) }}{%- endfor -%}{%- else -%}?{%- endif -%}{%- endmacro -%}{{ r(['a', ['b', 1]]) }}", "{{ '%s is %d' % (users[0].name, users[0].age) }}", "{{ users[0] | tojson(indent=2) }}", "{{ {'a': users[0].addr} | tojson | safe }}", "line {# multi\nline #}\n{{ n\n+ 1 }}\n{% if\nn %}x{% endif %}",
    "{% for x in [[1, 2], [3, 4]] %}{% for y in x %}{{ loop.index0 }}{{ y }}{% if not loop.last %},{% endif %}{% endfor %}{% if not loop.last %};{% endif %}{% endfor %}", "{% set x = [1, 2, 3] %}{{ x[1:]|length }}{{ x[:-1][-1] }}{{ (x|length) - 1 }}", "{% set a = b = 1 %}", "{% set a.b.c = 1 %}", "{% set 1 = 2 %}", "{% set true = 1 %}", "{% set (a, b) = (1, 2) %}{{ a + b }}", "{% set a = 1 if zero else 2 %}{{ a }}", "{% set _x = 1 %}{{ _x }}", "{{ loop is defined }}{% for x in l %}{{ loop is defined }}{% endfor %}",
]


def environment():
    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

        def _run(self, caller):
            return caller()

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(fmt):
        import datetime
        return datetime.datetime(2026, 1, 2, 0, 0).strftime(fmt)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    del env.globals["lipsum"]
    return env


ENV = environment()


def run(template, variables=VARS):
    try:
        text = ENV.from_string(template).render(**variables)
        text.encode()
        return {"ok": text}
    except Exception as e:  # noqa: BLE001 - every failure is an answer
        return {"err": f"{e}"[:200]}


def split_line(line):
    """Cuts "a|b|upper|c" at the bars that separate cases: a bar joins when a filter name and no operator follows."""
    parts, depth, quote, cur, i = [], 0, None, "", 0
    while i < len(line):
        ch = line[i]
        if quote:
            cur += ch
            if ch == "\\" and i + 1 < len(line):
                cur += line[i + 1]
                i += 1
            elif ch == quote:
                quote = None
        elif ch in "'\"":
            quote = ch
            cur += ch
        elif ch in "([{":
            depth += 1
            cur += ch
        elif ch in ")]}":
            depth = max(depth - 1, 0)
            cur += ch
        elif ch == "|" and depth == 0:
            name = ""
            for c in line[i + 1:]:
                if not (c.isalnum() or c == "_"):
                    break
                name += c
            after = line[i + 1 + len(name):i + 2 + len(name)]
            if name in ENV.filters and name not in VARS and after in ("", "|", "(", " ", ")"):
                cur += ch
            else:
                parts.append(cur)
                cur = ""
        else:
            cur += ch
        i += 1
    return parts + [cur]


def cases():
    seen = set()
    for line in EXPRESSIONS.split("\n"):
        for e in split_line(line):
            t = "{{ " + e.strip() + " }}"
            if e.strip() and t not in seen:
                seen.add(t)
                yield t
    for t in ["{{ " + e + " }}" for e in SYNTAX] + TEMPLATES:
        if t not in seen:
            seen.add(t)
            yield t


if __name__ == "__main__":
    out = []
    for t in cases():
        r = run(t)
        if " at 0x" in r.get("ok", "") or "method" in r.get("ok", "") or t in DIFFERENT:
            continue  # Python prints an address
        out.append({"t": t, **r})
    sys.stdout.write('{"vars": ' + json.dumps(VARS, ensure_ascii=False) + ',\n"cases": [\n')
    sys.stdout.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in out) + "\n]}\n")
    print(len(out), "cases", file=sys.stderr)
