#!/usr/bin/env python3
"""Writes tests/data/models/FAMILY-odd for the dense families: random checkpoints of awkward shapes with what their definitions allow and
the shared ones lack (windows, biases, GQA, other norms), with golden.bin from transformers.

    python tools/make_odd_dense.py tests/data/models [NAME ...]

Names and shapes are those of transformers' own model. Same bytes every time.
"""
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from make_odd import GROUP, golden, quantise

BASE = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, vocab_size=257,
            max_position_embeddings=4096, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, eos_token_id=2,
            pad_token_id=0, bos_token_id=1)  # fmt: skip
SHAPES = {
    "qwen2-odd": dict(BASE, use_sliding_window=True, sliding_window=23, max_window_layers=1),
    "qwen3-odd": dict(BASE, head_dim=80, attention_bias=True, use_sliding_window=True, sliding_window=70, tie_word_embeddings=True,
                      layer_types=["sliding_attention", "full_attention"]),
    "smollm3-odd": dict(BASE, num_hidden_layers=4, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=31, attention_bias=True,
                        mlp_bias=True),
    "olmo2-odd": dict(BASE, attention_bias=True, tie_word_embeddings=True),
    "granite-odd": dict(BASE, num_hidden_layers=1, attention_bias=True, mlp_bias=True, attention_multiplier=0.2, embedding_multiplier=5.5,
                        residual_multiplier=0.4, logits_scaling=0.7),
    "glm4-odd": dict(BASE, head_dim=96, partial_rotary_factor=0.25, attention_bias=False),
    "phi3-odd": dict(BASE, sliding_window=25, partial_rotary_factor=0.75, original_max_position_embeddings=1024,
                     rope_scaling=dict(rope_type="longrope", short_factor=list(np.linspace(1, 2.5, 12)),
                                       long_factor=list(np.linspace(1, 9, 12)))),
    "starcoder2-odd": dict(BASE, hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5, sliding_window=37, use_bias=True),
}  # fmt: skip


def checkpoint(folder, c, rng):
    own = AutoModelForCausalLM.from_config(AutoConfig.for_model(**c)).state_dict()
    out = {}
    for name, v in sorted(own.items()):
        module, shape = name.rsplit(".", 1)[0], tuple(v.shape)
        w = rng.standard_normal(shape)
        if name == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        if len(shape) == 1:
            out[name] = torch.from_numpy(0.3 * w if name.endswith("bias") else 1 + 0.2 * w).to(torch.bfloat16)
        elif shape[1] % GROUP:
            out[name] = torch.from_numpy(w * 1.7 / np.sqrt(shape[1])).to(torch.bfloat16)
        else:
            w = torch.from_numpy(w * 1.7 / np.sqrt(shape[1])).float()
            out[name], out[module + ".scales"], out[module + ".biases"] = quantise(w, 4, torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    c = dict(c, quantization=dict(group_size=GROUP, bits=4, mode="affine"))
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in out.items()}, str(folder / "model.safetensors"))


def main():
    for name in sys.argv[2:] or SHAPES:
        folder, rng, kind = Path(sys.argv[1]) / name, np.random.default_rng(20261130), name.removesuffix("-odd")
        c = dict(SHAPES[name], model_type=kind)
        checkpoint(folder, c, rng)
        golden(folder, c["vocab_size"], rng)


if __name__ == "__main__":
    main()
