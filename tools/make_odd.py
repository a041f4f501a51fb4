#!/usr/bin/env python3
"""Writes tests/data/models/llama-odd*: random llama checkpoints of awkward shapes (head widths 80 and 96, three query heads a key head,
an odd vocabulary, one layer, groups of 32, widths that are no multiple of 128) with golden.bin from transformers in f32; its r1 is
what transformers' own bf16 costs.

    python tools/make_odd.py tests/data/models

Same bytes every time. Matrices whose rows are no multiple of the group stay bf16, as MLX's converter leaves them.
"""
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file as save_torch

sys.path.insert(0, str(Path(__file__).parent))
from goldens_cut import write_golden
from goldens_hf import load

BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False, "eos_token_id": 2}  # fmt: skip
SHAPES = {
    "llama-odd80": dict(hidden_size=96, intermediate_size=160, num_hidden_layers=1, num_attention_heads=3, num_key_value_heads=1,
                        head_dim=80, vocab_size=301, tie_word_embeddings=False, bits=4, scale=torch.bfloat16),
    "llama-odd96": dict(hidden_size=160, intermediate_size=96, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
                        head_dim=96, vocab_size=257, tie_word_embeddings=True, bits=3, scale=torch.float16),
}  # fmt: skip
GROUP = 32


def quantise(w, bits, kind):
    """Affine codes as MLX packs them: a row is one little-endian bit stream."""
    g = w.reshape(w.shape[0], -1, GROUP)
    lo, hi = g.amin(-1, keepdim=True), g.amax(-1, keepdim=True)
    scale, bias = ((hi - lo) / (2**bits - 1)).to(kind), lo.to(kind)
    q = ((g - bias.float()) / scale.float()).round().clamp(0, 2**bits - 1).numpy().astype(np.uint8)
    stream = ((q[..., None] >> np.arange(bits)) & 1).reshape(w.shape[0], -1).astype(np.uint8)
    packed = np.packbits(stream, axis=-1, bitorder="little").view("<u4")
    return torch.from_numpy(packed.view(np.int32).copy()).view(torch.uint32), scale.squeeze(-1), bias.squeeze(-1)


def checkpoint(folder, shape, rng):
    shape = dict(shape)
    bits, kind = shape.pop("bits"), shape.pop("scale")
    c = {**BASE, **shape, "quantization": {"group_size": GROUP, "bits": bits, "mode": "affine"}}
    D, F, V, H, K, Dh = (c[k] for k in "hidden_size intermediate_size vocab_size num_attention_heads num_key_value_heads head_dim".split())
    matrices = {"model.embed_tokens": (V, D)}
    if not c["tie_word_embeddings"]:
        matrices["lm_head"] = (V, D)
    out = {"model.norm.weight": 1 + 0.2 * rng.standard_normal(D)}
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for n, s in {"self_attn.q_proj": (H * Dh, D), "self_attn.k_proj": (K * Dh, D), "self_attn.v_proj": (K * Dh, D),
                     "self_attn.o_proj": (D, H * Dh), "mlp.gate_proj": (F, D), "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}.items():  # fmt: skip
            matrices[p + n] = s
        for n in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{n}.weight"] = 1 + 0.2 * rng.standard_normal(D)
    out = {k: torch.from_numpy(v).to(torch.bfloat16) for k, v in out.items()}
    for n, s in matrices.items():
        w = torch.from_numpy(rng.standard_normal(s) * 1.7 / np.sqrt(s[1])).float()
        if s[1] % GROUP:
            out[n + ".weight"] = w.to(torch.bfloat16)
        else:
            out[n + ".weight"], out[n + ".scales"], out[n + ".biases"] = quantise(w, bits, kind)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_torch({k: v.contiguous() for k, v in out.items()}, str(folder / "model.safetensors"))


def golden(folder, vocab, rng):
    """golden.bin of a random checkpoint, from transformers."""
    short, long = rng.integers(3, vocab, 40), rng.integers(3, vocab, 272)
    pos = np.unique(np.linspace(0, len(long) - 1, 10).round().astype(int))
    m = load(folder)

    @torch.no_grad()
    def rows(ids):
        return m(torch.tensor(np.array(ids, np.int64)[None]), use_cache=False).logits[0].float().numpy()

    at, dec = list(short), []
    for _ in range(16):
        dec.append(int(rows(at)[-1].argmax()))
        at.append(dec[-1])
    first, second = rows(at[:-1]), rows(long)[pos]
    want = np.concatenate([first, second])
    m = m.to(torch.bfloat16)
    got = np.concatenate([rows(at[:-1]), rows(long)[pos]])
    a, b = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (want, got))
    kl = (np.exp(a) * (a - b)).sum(-1)
    write_golden(folder / "golden.bin", short, long, pos, np.array(dec), first[: len(short)], second, first[len(short) - 1 :],
                 (kl.mean(), np.median(kl)))  # fmt: skip
    print(f"{folder.name}: std {want.std():.2f}, bf16 KL {kl.mean():.1e}, {sum(f.stat().st_size for f in folder.iterdir()) >> 10} KiB")


def main():
    for name, shape in SHAPES.items():
        folder, rng = Path(sys.argv[1]) / name, np.random.default_rng(20261130)
        checkpoint(folder, shape, rng)
        golden(folder, shape["vocab_size"], rng)


if __name__ == "__main__":
    main()
