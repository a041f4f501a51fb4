#!/usr/bin/env python3
"""What quantised caches cost: mean and 99 % KL of the next-token distribution from --kv-quant off, and how often the likeliest token
stays. For each position of a text, all of it through the quantised cache.

    python tools/kv_kl.py build/hearth MODEL TEXT [SCHEME[:gGROUP] ...]

TEXT: a file, or a nano-style NAME-expected.json (prompts and recorded replies, one after the other). Needs numpy and safetensors.
"""
import json, subprocess, sys, tempfile
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

TOKENS = 768
SCHEMES = "8 4 4/g32 turbo turbo:k8v4 turbo:k4v4 turbo:k4v3".split()


def texts(path):
    if path.suffix != ".json":
        return [path.read_text()]
    cases = [c for c in json.loads(path.read_text()) if c["prompt_tokens"] + c["generated_tokens"] > 60]
    return [c["prompt"] + c["generated"] for c in cases[:: max(1, len(cases) // 16)]]


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def main():
    hearth, model, source = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    prompts = []
    for t in texts(source):
        r = subprocess.run([hearth, "tokenize", model, "-", "--special"], input=t, capture_output=True, text=True, check=True)
        prompts.append(json.loads(r.stdout)[:TOKENS])

    def rows(scheme):
        word, _, group = scheme.partition("/g")
        with tempfile.TemporaryDirectory() as d:
            for ids in prompts:
                Path(d, "ids").write_text(json.dumps(ids))
                subprocess.run([hearth, "logits", model, "--ids-file", f"{d}/ids", "--out", f"{d}/o", "--kv-quant", word,
                                "--kv-group-size", group or "64"], check=True)
                yield log_softmax(load_file(f"{d}/o")["logits"])

    want = list(rows("off"))
    print(f"{Path(model).name}: {sum(map(len, want))} positions")
    for scheme in sys.argv[4:] or SCHEMES:
        kl, same = [], []
        for a, b in zip(want, rows(scheme)):
            kl.append((np.exp(a) * (a - b)).sum(-1))
            same.append(a.argmax(-1) == b.argmax(-1))
        kl, same = np.concatenate(kl), np.concatenate(same)
        print(f"  {scheme:12} mean {kl.mean():.1e}  99 % {np.quantile(kl, 0.99):.1e}  same {100 * same.mean():.1f} %", flush=True)


if __name__ == "__main__":
    main()
