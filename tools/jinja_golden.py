"""Packs the shared chat templates and their reference renderings for the unit test.

    python tools/jinja_golden.py SHARED/peers/templates tests/data/templates/golden.json

Renderings are kept as lengths and FNV-1a hashes, errors as text; a template that is byte for byte another is stored once.
The result: {"contexts": {...}, "sources": [text], "renders": [{"name", "source", "of": {context: [length, hash] or "error"}}]}."""
import json
import sys


def fnv1a(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def main(folder, out):
    golden = json.load(open(f"{folder}/golden.json"))
    sources, renders = [], []
    for name, of in golden["renders"].items():
        text = open(f"{folder}/{name}", newline="").read()
        if text not in sources:
            sources.append(text)
        packed = {}
        for context, r in of.items():
            if "ok" in r:
                b = r["ok"].encode()
                packed[context] = [len(b), fnv1a(b)]
            else:
                packed[context] = r["err"].split(": ", 1)[1].removeprefix("TEMPLATE: ")
        renders.append({"name": name, "source": sources.index(text), "of": packed})
    with open(out, "w") as f:
        json.dump({"contexts": golden["contexts"], "sources": sources, "renders": renders}, f, ensure_ascii=False, indent=0)


main(*sys.argv[1:])
