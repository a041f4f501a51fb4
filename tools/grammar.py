#!/usr/bin/env python3
"""Compares grammars with llguidance (PyPI) on the JSON-Schema-Test-Suite that the sdist of `jsonschema` (PyPI) carries,
and on patterns and grammars of our own; writes tests/data/grammar/corpus.json.

tools/grammar.py SUITE_DIR GRAMMAR_TEST [--write]     SUITE_DIR: jsonschema-*/json/tests/draft2020-12
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import llguidance

TOKENIZER = llguidance.LLTokenizer("byte")
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
REGEX = [
    ("a{2,5}b|c+", ["aab", "ab", "ccc", "", "aaaaab", "aaaaaab"]),
    ("(a|aa){3,100}", ["aa", "aaa", "a" * 200, "a" * 201]),
    ("[^a-y]{2}\\.[\\d\\w]?", ["zz.", "zé.a", "zz.-", "za."]),
    ("(foo|bar)*baz", ["baz", "foobarbaz", "fobaz"]),
    ("[a-f0-9]{8}-[a-f0-9]{4}", ["deadbeef-0123", "deadbeef0123", "deadbeef-012"]),
    ("(\\+\\d{1,3} )?\\(\\d{3}\\) \\d{3}-\\d{4}", ["(123) 456-7890", "+44 (123) 456-7890", "123 456-7890"]),
    ("x*y?z+", ["z", "xyz", "yyz", "xx"]),
    (".{0,3}", ["", "abc", "äöü", "abcd", "a\nb"]),
]
LARK = [
    ('start: "a" b+\nb: "x" | "y" b', ["ax", "ayx", "ay", "axyx"]),
    ('start: expr\nexpr: term ("+" term)*\nterm: NUM | "(" expr ")"\nNUM: /[0-9]+/', ["1+2", "(1+(2))", "1+", "()"]),
    ('start: item~2..3\nitem: /[a-z]/ "," | "#"', ["a,b,", "##", "a,", "a,#b,", "a,b,c,d,"]),
    ('start: "<" NAME ">" start? "</" NAME ">"\nNAME: /[a-z]+/', ["<a></a>", "<a><b></b></a>", "<a><b></a>"]),
]


def oracle(grammar, tests):
    """None when it is refused; else the verdicts."""
    if llguidance.LLMatcher.validate_grammar(grammar, TOKENIZER):
        return None
    out = []
    for text in tests:
        m = llguidance.LLMatcher(TOKENIZER, grammar)
        tokens = TOKENIZER.tokenize_bytes(text.encode())
        try:
            out.append(m.try_consume_tokens(tokens) == len(tokens) and m.is_accepting() and not m.get_error())
        except Exception:
            out.append(False)
    return out


def ours(binary, cases):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(cases, f)
        f.flush()
        lines = subprocess.run([binary, f.name], capture_output=True, text=True, timeout=300).stdout.splitlines()
    assert len(lines) == len(cases), f"{len(lines)} of {len(cases)}"
    return [json.loads(line) for line in lines]


def suite(folder):
    files = sorted(folder.glob("*.json")) + [folder / "optional" / "format" / f"{n}.json" for n in FORMATS]
    for path in files:
        for group in json.loads(path.read_text()):
            tests = [(json.dumps(t["data"], separators=(",", ":"), ensure_ascii=False), t["valid"]) for t in group["tests"]]
            tests += [(json.dumps(t["data"], indent=1, ensure_ascii=False), t["valid"]) for t in group["tests"] if t["data"] and isinstance(t["data"], (dict, list))]
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {k: v for k, v in schema.items() if k != "$schema"}
            yield path.stem, group["description"], schema, tests


def main():
    folder, binary = pathlib.Path(sys.argv[1]), sys.argv[2]
    rows = []
    for name, description, schema, tests in suite(folder):
        texts = [t for t, _ in tests]
        try:
            verdicts = oracle(llguidance.LLMatcher.grammar_from_json_schema(schema), texts)
        except Exception:
            verdicts = None
        rows.append((f"{name}: {description}", {"schema": schema, "tests": texts}, [v for _, v in tests], verdicts))
    for kind, table, make in [("regex", REGEX, llguidance.LLMatcher.grammar_from_regex), ("rules", LARK, llguidance.LLMatcher.grammar_from_lark)]:
        for text, texts in table:
            rows.append((f"{kind}: {text!r}", {"kind": kind, "text": text, "tests": texts}, [None] * len(texts), oracle(make(text), texts)))
    answers = ours(binary, [case for _, case, _, _ in rows])
    n = {"groups": len(rows), "both compile": 0, "only ours": 0, "only theirs": 0, "neither": 0, "same": 0, "differs": 0, "ours right": 0, "theirs right": 0}
    corpus = []
    for (name, case, valid, theirs), mine in zip(rows, answers):
        compiled = mine["error"] is None
        n["both compile" if compiled and theirs else "only ours" if compiled else "only theirs" if theirs else "neither"] += 1
        row = {k: v for k, v in case.items() if k != "tests"}
        row["name"] = name
        if not compiled:
            row["refused"] = True
            if theirs:
                print(f"-- only theirs compiles: {name}: {mine['error']}")
        else:
            row["yes"] = [t for t, v in zip(case["tests"], mine["ok"]) if v]
            row["no"] = [t for t, v in zip(case["tests"], mine["ok"]) if not v]
            differs = []
            for i, text in enumerate(case["tests"]):
                spec = valid[i]
                if theirs:
                    n["same" if mine["ok"][i] == theirs[i] else "differs"] += 1
                    if mine["ok"][i] != theirs[i]:
                        n["ours right"] += mine["ok"][i] == spec
                        n["theirs right"] += theirs[i] == spec
                        differs.append(text)
                        print(f"{name}\n   {text}: ours {mine['ok'][i]}, theirs {theirs[i]}, the suite {spec}")
                elif spec is not None and mine["ok"][i] != spec:
                    print(f"{name}\n   {text}: ours {mine['ok'][i]}, the suite {spec} (only ours compiles)")
            if differs:
                row["differs"] = differs
        corpus.append(row)
    print(n)
    if "--write" in sys.argv:
        out = pathlib.Path(__file__).parent.parent / "tests/data/grammar/corpus.json"
        out.write_text("[\n" + ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in corpus) + "\n]\n")


if __name__ == "__main__":
    main()
