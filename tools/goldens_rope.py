#!/usr/bin/env python3
"""Writes tests/data/rope.json: rotary frequencies as transformers computes them, for tests/unit/rope_test.c.

    python tools/goldens_rope.py tests/data/rope.json

Each case: the config.json keys that matter, head_dim, what rope_opts say, and transformers' inv_freq and attention scaling.
`proportional` (Gemma 4), which this transformers lacks, is written out here from its definition: exponents over the whole head, the
first partial_rotary_factor of the pairs turn.
"""
import json, sys
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LIST = [1.0, 1.3, 1.9, 2.7, 4.1, 6.1, 9.3, 14.0]
CASES = [
    ("plain", {"rope_theta": 10000.0}, {}),
    ("rope_parameters", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}),
    ("linear", {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 8.0}}, {}),
    ("llama3", {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                    "original_max_position_embeddings": 64}}, {}),
    ("yarn", {"rope_theta": 10000.0, "max_position_embeddings": 131072,
              "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}}, {}),
    ("yarn, deepseek", {"rope_theta": 10000.0, "rope_scaling": {"type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7,
                        "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}}, {}),
    ("yarn, not truncated", {"rope_theta": 150000.0, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                             "truncate": False, "original_max_position_embeddings": 4096}}, {}),
    ("longrope, short", {"rope_theta": 10000.0, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
                         "rope_scaling": {"type": "longrope", "long_factor": LIST, "short_factor": LIST[::-1]}}, {}),
    ("longrope, long", {"rope_theta": 10000.0, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
                        "rope_scaling": {"type": "longrope", "long_factor": LIST, "short_factor": LIST[::-1]}}, {"long": True}),
    ("partial", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}, {}),
]  # fmt: skip


def case(name, keys, opts):
    params = dict(keys.get("rope_parameters") or keys.get("rope_scaling") or {})
    params.setdefault("rope_theta", keys.get("rope_theta"))
    params["rope_type"] = params.get("rope_type") or params.pop("type", "default")
    for k in ("partial_rotary_factor", "original_max_position_embeddings"):
        if k in keys:
            params[k] = keys[k]
    c = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=keys.get("max_position_embeddings", 2048))
    c.rope_parameters = params
    if "original_max_position_embeddings" in keys:
        c.original_max_position_embeddings = keys["original_max_position_embeddings"]
    if params["rope_type"] == "default":
        dims = int(16 * params.get("partial_rotary_factor", 1))
        freq, scale = 1 / params["rope_theta"] ** (torch.arange(0, dims, 2, dtype=torch.float) / dims), 1.0
    else:
        freq, scale = ROPE_INIT_FUNCTIONS[params["rope_type"]](c, "cpu", seq_len=100000 if opts.get("long") else 1)
    return {"name": name, "config": {"max_position_embeddings": 2048, **keys}, "head": 16, "long": bool(opts.get("long")), "scale": float(scale),
            "freq": [float(f) for f in freq]}  # fmt: skip


def main():
    cases = [case(*c) for c in CASES]
    gemma = {"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}  # fmt: skip
    for kind, freq in (("full_attention", [1e6 ** (-2 * i / 16) if i < 2 else 0 for i in range(8)]),
                       ("sliding_attention", [10000.0 ** (-2 * i / 16) for i in range(8)])):  # fmt: skip
        cases.append({"name": f"gemma4 {kind}", "config": gemma, "head": 16, "layer_type": kind, "scale": 1.0, "freq": freq})
    open(sys.argv[1], "w").write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
