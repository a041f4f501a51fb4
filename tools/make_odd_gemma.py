#!/usr/bin/env python3
"""Writes tests/data/models/gemma*-odd: random Gemma checkpoints of awkward shapes with golden.bin from transformers (5.5 or later).

    python tools/make_odd_gemma.py tests/data/models

gemma2-odd: one layer, head width 96, three query heads a key head. gemma3-odd: head width 80, rotation as transformers 5 writes it, a width
whose root is no bf16 number (the scale of the embedding is rounded: mlx-lm does so in f32, transformers when it runs in bf16). gemma4-odd:
everything at once, in Hugging Face's layout: two head widths, keys as values, shared keys and values that the file has nevertheless,
a double-wide block, per-layer inputs, experts. Same bytes every time.
"""
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
import make_odd
from make_odd import GROUP, golden, quantise

BASE = dict(rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=4096, eos_token_id=2, pad_token_id=0,
            attention_bias=False, tie_word_embeddings=True, num_attention_heads=3, num_key_value_heads=1, sliding_window=20)  # fmt: skip
SHAPES = {
    "gemma2-odd": dict(BASE, architectures=["Gemma2ForCausalLM"], model_type="gemma2", hidden_size=96, intermediate_size=160,
                       num_hidden_layers=1, head_dim=96, vocab_size=301, query_pre_attn_scalar=96, attn_logit_softcapping=10.0,
                       final_logit_softcapping=20.0, rope_theta=10000.0),
    "gemma3-odd": dict(BASE, architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=96, intermediate_size=80,
                       num_hidden_layers=2, head_dim=80, vocab_size=293, query_pre_attn_scalar=100,
                       layer_types=["full_attention", "sliding_attention"],
                       rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=500000.0),
                                            sliding_attention=dict(rope_type="default", rope_theta=5000.0))),
    "gemma4-odd": dict(BASE, architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", hidden_size=96, intermediate_size=80,
                       num_hidden_layers=4, head_dim=80, global_head_dim=96, num_global_key_value_heads=3, vocab_size=293,
                       layer_types=["sliding_attention", "full_attention"] * 2, attention_k_eq_v=True, num_kv_shared_layers=2,
                       use_double_wide_mlp=True, hidden_size_per_layer_input=24, vocab_size_per_layer_input=293,
                       final_logit_softcapping=20.0, enable_moe_block=True, num_experts=5, top_k_experts=3, moe_intermediate_size=16,
                       rope_parameters=dict(
                           full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1000000.0),
                           sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
}  # fmt: skip


def layer(c, i, rng, matrices, plain):
    four, p = c["model_type"] == "gemma4_text", f"model.layers.{i}."
    D, F, H, K, Dh = (c[k] for k in "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim".split())
    full = c.get("layer_types", ["sliding_attention"])[i] == "full_attention"
    if four and full:
        K, Dh = c["num_global_key_value_heads"], c["global_head_dim"]
    if four and i >= c["num_hidden_layers"] - c["num_kv_shared_layers"]:
        F *= 2
    own = {"self_attn.q_proj": (H * Dh, D), "self_attn.k_proj": (K * Dh, D), "self_attn.o_proj": (D, H * Dh), "mlp.gate_proj": (F, D),
           "mlp.up_proj": (F, D), "mlp.down_proj": (D, F)}  # fmt: skip
    if not (four and full):
        own["self_attn.v_proj"] = (K * Dh, D)
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if four:
        P, E, Fe = c["hidden_size_per_layer_input"], c["num_experts"], c["moe_intermediate_size"]
        norms += ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2", "post_per_layer_input_norm"]
        own.update({"router.proj": (E, D), "per_layer_input_gate": (P, D), "per_layer_projection": (D, P)})
        plain[p + "layer_scalar"] = rng.uniform(0.5, 1, 1)
        plain[p + "router.scale"] = 1 + 0.2 * rng.standard_normal(D)
        plain[p + "router.per_expert_scale"] = rng.uniform(0.5, 1.5, E)
        plain[p + "experts.gate_up_proj"] = rng.standard_normal((E, 2 * Fe, D)) * 1.7 / np.sqrt(D)
        plain[p + "experts.down_proj"] = rng.standard_normal((E, D, Fe)) * 1.7 / np.sqrt(Fe)
    plain.update({f"{p}{n}.weight": four + 0.2 * rng.standard_normal(D) for n in norms})
    if c["model_type"] != "gemma2":
        plain.update({f"{p}self_attn.{n}_norm.weight": four + 0.2 * rng.standard_normal(Dh) for n in "qk"})
    matrices.update({p + n: s for n, s in own.items()})


def checkpoint(folder, c, rng):
    D, V, four = c["hidden_size"], c["vocab_size"], c["model_type"] == "gemma4_text"
    matrices, plain = {"model.embed_tokens": (V, D)}, {"model.norm.weight": four + 0.2 * rng.standard_normal(D)}
    if four:
        P = c["hidden_size_per_layer_input"]
        LP = c["num_hidden_layers"] * P
        matrices.update({"model.embed_tokens_per_layer": (V, LP), "model.per_layer_model_projection": (LP, D)})
        plain["model.per_layer_projection_norm.weight"] = 1 + 0.2 * rng.standard_normal(P)
    for i in range(c["num_hidden_layers"]):
        layer(c, i, rng, matrices, plain)
    out = {k: torch.from_numpy(v).to(torch.bfloat16) for k, v in plain.items()}
    for n, s in matrices.items():
        w = torch.from_numpy(rng.standard_normal(s) * 1.7 / np.sqrt(s[1])).float()
        if s[1] % GROUP:
            out[n + ".weight"] = w.to(torch.bfloat16)
        else:
            out[n + ".weight"], out[n + ".scales"], out[n + ".biases"] = quantise(w, 4, torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    c = dict(c, quantization=dict(group_size=GROUP, bits=4, mode="affine"))
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in out.items()}, str(folder / "model.safetensors"))


def load_rounded(folder):
    m = load(folder)
    if m.config.model_type == "gemma3_text":
        m.model.embed_tokens.embed_scale = m.model.embed_tokens.embed_scale.to(torch.bfloat16).float()
    return m


def main():
    make_odd.load = load_rounded
    for name, c in SHAPES.items():
        folder, rng = Path(sys.argv[1]) / name, np.random.default_rng(20261130)
        checkpoint(folder, c, rng)
        golden(folder, c["vocab_size"], rng)


load = make_odd.load
if __name__ == "__main__":
    main()
