"""Random templates against real Jinja2: prints where they differ. By hand: python tools/jinja_diff.py [SECONDS] [SEED]

Needs build/libhearth.a (make lib) and a Python with jinja2 3.1.6. Error messages are not compared, only that both fail.
Not counted: texts with an address in them, and slices of literals that have none (Jinja2 folds those into undefined)."""
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings

import jinja_cases

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
VARS = {**{k: v for k, v in jinja_cases.VARS.items() if k != "huge"}}
NAMES = list(VARS) + ["missing", "x", "y"]
FILTERS = [f for f in jinja_cases.ENV.filters if f not in ("random", "urlize", "pprint", "from_json", "wordwrap")]
TESTS = list(jinja_cases.ENV.tests)
METHODS = ["upper", "lower", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "title", "capitalize", "swapcase", "startswith",
           "endswith", "find", "rfind", "index", "count", "replace", "join", "center", "ljust", "rjust", "zfill", "partition",
           "rpartition", "isdigit", "isalpha", "isspace", "items", "keys", "values", "get", "format", "removeprefix", "expandtabs", "copy",
           "append", "istitle", "islower", "isalnum", "casefold", "nope"]
STRINGS = ["'a'", "'l'", "', '", "''", "' '", "'Hello'", "'%s'", "'%d-%s'", "'{}'", "'é日'", "'a,b,,c'", "'name'", "'upper'", "'age'", "'\\n'", "'12'", "'1.5'",
           "'<b>'", "'ab cd'", "'odd'", "'addr.city'", "'  x '"]
ATTRS = ["name", "age", "a", "b", "C", "items", "keys", "addr", "city", "x", "0", "1", "v", "kids", "real", "tags", "zz", "index", "loop"]
OPS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]


class Maker:
    def __init__(self, rng):
        self.r = rng

    def atom(self):
        r = self.r
        k = r.random()
        if k < 0.45:
            return r.choice(NAMES)
        if k < 0.6:
            return r.choice(STRINGS)
        if k < 0.8:
            return r.choice(["0", "1", "2", "3", "-1", "10", "2.5", "0.1", "1e3", "true", "false", "none"])
        if k < 0.9:
            return "[" + ", ".join(self.expr(0) for _ in range(r.randrange(4))) + "]"
        if k < 0.95:
            return "{" + ", ".join(r.choice(STRINGS) + ": " + self.expr(0) for _ in range(r.randrange(3))) + "}"
        return "(" + ", ".join(self.expr(0) for _ in range(r.randrange(3))) + ("," if r.random() < 0.3 else "") + ")"

    def call_args(self, d):
        r = self.r
        args = [self.expr(d) for _ in range(r.choice([0, 0, 1, 1, 1, 2, 2, 3]))]
        if r.random() < 0.15:
            args.append(r.choice(["attribute", "reverse", "case_sensitive", "default", "width", "first", "indent", "maxsplit", "by", "sep"]) + "=" + self.expr(0))
        return "(" + ", ".join(args) + ")"

    def expr(self, d):
        r = self.r
        if d <= 0:
            return self.atom()
        k = r.random()
        if k < 0.15:
            return self.atom()
        if k < 0.35:
            return f"{self.expr(d - 1)} {r.choice(OPS)} {self.expr(d - 1)}"
        if k < 0.6:
            f = r.choice(FILTERS)
            return f"{self.operand(d - 1)}|{f}" + (self.call_args(d - 2) if r.random() < 0.5 else "")
        if k < 0.68:
            t = r.choice([x for x in TESTS if x[0].isalpha()])
            return f"{self.operand(d - 1)} is {'not ' if r.random() < 0.2 else ''}{t}" + (
                self.call_args(d - 2) if r.random() < 0.4 else (" " + self.atom() if r.random() < 0.3 else ""))
        if k < 0.78:
            return f"{self.operand(d - 1)}.{r.choice(METHODS)}{self.call_args(d - 2)}"
        if k < 0.84:
            return f"{self.operand(d - 1)}.{r.choice(ATTRS)}"
        if k < 0.88:
            return f"{self.operand(d - 1)}[{self.expr(d - 2)}]"
        if k < 0.93:
            part = lambda: r.choice(["", "", "0", "1", "2", "-1", "-2", "5"])
            return f"{self.operand(d - 1)}[{part()}:{part()}" + (":" + r.choice(["1", "2", "-1", "-2"]) if r.random() < 0.3 else "") + "]"
        if k < 0.96:
            return f"({self.expr(d - 1)} if {self.expr(d - 1)}" + (f" else {self.expr(d - 1)}" if r.random() < 0.8 else "") + ")"
        return r.choice(["not ", "-", "+"]) + self.operand(d - 1)

    def operand(self, d):
        e = self.expr(d)
        return f"({e})" if " " in e or "|" in e or e[0] in "-+" else e

    def text(self):
        r = self.r
        return "".join(r.choice(["a", " ", "\n", "  \n", "b c", "\n\n", "\t", "{", "}", "%", "#", "é"]) for _ in range(r.randrange(4)))

    def open(self):
        return self.r.choice(["{%"] * 5 + ["{%-", "{%+"])

    def close(self):
        return self.r.choice(["%}"] * 5 + ["-%}", "+%}"])

    def block(self, d, in_loop=False):
        r = self.r
        out = self.text()
        for _ in range(r.randrange(1, 4)):
            out += self.statement(d, in_loop) + self.text()
        return out

    def statement(self, d, in_loop):
        r = self.r
        tag = lambda s: f"{self.open()} {s} {self.close()}"
        k = r.random()
        if d <= 0 or k < 0.4:
            return r.choice(["{{", "{{", "{{-"]) + " " + self.expr(3) + " " + r.choice(["}}", "}}", "-}}"])
        if k < 0.5:
            return tag(f"set {r.choice(['x', 'y', 'n', 'x, y', 'ns.a'])} = {self.expr(2)}")
        if k < 0.6:
            return tag(f"if {self.expr(2)}") + self.block(d - 1, in_loop) + (tag(f"elif {self.expr(1)}") + self.block(d - 1, in_loop) if r.random() < 0.3 else "") + (
                tag("else") + self.block(d - 1, in_loop) if r.random() < 0.4 else "") + tag("endif")
        if k < 0.78:
            inside = r.choice(["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}", "{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ loop.revindex0 }}",
                               "{{ loop.cycle('p', 'q') }}", "{{ loop.changed(x) }}", "{{ x }}", "{{ x }}{{ y }}"])
            return tag(f"for {r.choice(['x', 'x', 'x, y', 'n', 'y'])} in {self.expr(2)}" + (f" if {self.expr(1)}" if r.random() < 0.2 else "")) + inside + self.block(
                d - 1, True) + (tag("else") + self.block(d - 1, in_loop) if r.random() < 0.2 else "") + tag("endfor")
        if k < 0.83:
            return tag("macro m(" + r.choice(["", "x", "x, y", "x, y=1", "x=n, y=x"]) + ")") + r.choice(["", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}"]) + self.block(d - 1) + tag("endmacro")
        if k < 0.88:
            return "{{ m" + self.call_args(1) + " }}"
        if k < 0.9:
            return tag("call m" + self.call_args(1)) + self.block(d - 1) + tag("endcall")
        if k < 0.93:
            return tag(f"set {r.choice(['x', 'y'])}" + r.choice(["", "|upper", "|trim|length"])) + self.block(d - 1, in_loop) + tag("endset")
        if k < 0.95:
            return tag("filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent(2)"])) + self.block(d - 1, in_loop) + tag("endfilter")
        if k < 0.97:
            return tag(f"with x = {self.expr(1)}") + self.block(d - 1, in_loop) + tag("endwith")
        if k < 0.98:
            return r.choice(["{# c #}", "{#- c -#}", "{% raw %} {{ x }} {% endraw %}", "{%- raw -%} y {%- endraw -%}"])
        return tag(r.choice(["break", "continue"])) if in_loop else tag("set ns = namespace(a=1)")


class TooLong(Exception):
    pass


def alarm(*_):
    raise TooLong()


def build():
    out = os.path.join(ROOT, "build", "jinja_run")
    subprocess.run(["cc", "-std=gnu17", "-D_GNU_SOURCE", "-g", "-O1", os.path.join(HERE, "jinja_run.c"), os.path.join(ROOT, "build/libhearth.a"), "-o", out,
                    "-lpcre2-8", "-lutf8proc", "-lxxhash", "-lm", "-pthread"], check=True)
    return out


def main():
    warnings.simplefilter("ignore")
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    rng = random.Random(seed)
    p = subprocess.Popen([build()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env={**os.environ, "TZ": "UTC"})
    signal.signal(signal.SIGALRM, alarm)
    end, n, ok, shown = time.time() + seconds, 0, 0, 0
    while time.time() < end and shown < 25:
        m = Maker(rng)
        t = "{{ " + m.expr(4) + " }}" if rng.random() < 0.7 else m.block(3)
        signal.setitimer(signal.ITIMER_REAL, 2)
        try:
            want = jinja_cases.run(t, VARS)
        except TooLong:
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        p.stdin.write(json.dumps({"template": t, "vars": VARS}) + "\n")
        line = p.stdout.readline()
        if not line:
            print("CRASH", json.dumps(t))
            return 1
        got = json.loads(line)
        n += 1
        ok += "ok" in want
        text = want.get("ok", "")
        if " at 0x" in text.lower() or "tcejbo" in text or "<bound method" in text or "not subscriptable" in got.get("err", "") or "'slice'" in got.get("err", "") or "Exceeds the limit" in want.get("err", "") or "overflow: results" in got.get("err", "") or "limit" in got.get("err", ""):
            continue
        if ("ok" in want) != ("ok" in got) or text != got.get("ok", ""):
            shown += 1
            print(json.dumps(t, ensure_ascii=False), "\n   want", repr(want)[:300], "\n   got ", repr(got)[:300])
    print(f"seed {seed}: {n} templates, {ok} of them render, {shown} differ")
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
