#!/usr/bin/env python3
"""Writes tests/data/models/qwen3*-odd: random Qwen checkpoints of awkward shapes in Hugging Face's layout, with golden.bin from transformers.

    python tools/make_odd_qwen.py tests/data/models [NAME ...]

qwen3_5-odd: head width 80, three query heads a key head, a convolution of 3, DeltaNet heads of 24 and 40, matrices quantised beside norms
that still lack their 1; its taps are so small that the squared norms of q and k are near the 1e-6 that is added to them.
qwen3_5_moe-odd: one layer, without attention; gate and up of the experts in one tensor. qwen3_next-odd: DeltaNet's inputs in two matrices,
experts one by one. qwen3_moe-odd: one tensor an expert, weights of
the chosen not normalised, the first layer dense. Same bytes every time.
"""
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from make_odd import GROUP, golden, quantise

HYBRID = dict(rms_norm_eps=1e-6, hidden_act="silu", max_position_embeddings=4096, eos_token_id=2, full_attention_interval=2,
              rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25))  # fmt: skip
SHAPES = {
    "qwen3_5-odd": dict(HYBRID, architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=96, intermediate_size=160,
                        num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=80, linear_conv_kernel_dim=3,
                        linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=24, linear_value_head_dim=40,
                        vocab_size=301, tie_word_embeddings=False),
    "qwen3_5_moe-odd": dict(HYBRID, architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text", hidden_size=80,
                            num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=32, linear_conv_kernel_dim=4,
                            linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=16, linear_value_head_dim=32,
                            num_experts=5, num_experts_per_tok=3, moe_intermediate_size=48, shared_expert_intermediate_size=32,
                            vocab_size=257, tie_word_embeddings=True),
    "qwen3_next-odd": dict(HYBRID, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=64, num_hidden_layers=2,
                           num_attention_heads=2, num_key_value_heads=1, head_dim=32, linear_conv_kernel_dim=4, linear_num_key_heads=2,
                           linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, intermediate_size=64,
                           num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                           norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], vocab_size=301, tie_word_embeddings=False),
    "qwen3_moe-odd": dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", rms_norm_eps=1e-6, hidden_act="silu",
                          max_position_embeddings=4096, eos_token_id=2, rope_theta=10000.0, hidden_size=96, intermediate_size=64,
                          num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=96, num_experts=7,
                          num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=False, mlp_only_layers=[0],
                          decoder_sparse_step=1, attention_bias=False, vocab_size=257, tie_word_embeddings=False),
}  # fmt: skip


def attention(c, gate):
    H, K, Dh, D = (c[k] for k in "num_attention_heads num_key_value_heads head_dim hidden_size".split())
    return {"self_attn.q_proj": ((1 + gate) * H * Dh, D), "self_attn.k_proj": (K * Dh, D), "self_attn.v_proj": (K * Dh, D),
            "self_attn.o_proj": (D, H * Dh)}, {"self_attn.q_norm": Dh, "self_attn.k_norm": Dh}  # fmt: skip


def delta(c):
    D, Hk, Hv = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    Ck, Cv = Hk * c["linear_key_head_dim"], Hv * c["linear_value_head_dim"]
    if c["model_type"] == "qwen3_next":
        own = {"linear_attn.in_proj_qkvz": (2 * Ck + 2 * Cv, D), "linear_attn.in_proj_ba": (2 * Hv, D)}
    else:
        own = {"linear_attn.in_proj_qkv": (2 * Ck + Cv, D), "linear_attn.in_proj_z": (Cv, D), "linear_attn.in_proj_b": (Hv, D),
               "linear_attn.in_proj_a": (Hv, D)}  # fmt: skip
    return {**own, "linear_attn.out_proj": (D, Cv)}, 2 * Ck + Cv


def mlp(prefix, D, F):
    return {f"{prefix}gate_proj": (F, D), f"{prefix}up_proj": (F, D), f"{prefix}down_proj": (D, F)}


def layer(c, i, rng, matrices, plain):
    D, hybrid, p = c["hidden_size"], "full_attention_interval" in c, f"model.layers.{i}."
    apart = c["model_type"] != "qwen3_5_moe_text"
    center = 0 if hybrid else 1
    norms = {"input_layernorm": D, "post_attention_layernorm": D}
    if not hybrid or (i + 1) % c["full_attention_interval"] == 0:
        own, more = attention(c, hybrid)
        norms.update(more)
    else:
        own, C = delta(c)
        small = 2e-3 if "num_experts" not in c else 1
        plain[p + "linear_attn.conv1d.weight"] = small * rng.standard_normal((C, 1, c["linear_conv_kernel_dim"]))
        plain[p + "linear_attn.A_log"] = rng.uniform(-2, 1, c["linear_num_value_heads"])
        plain[p + "linear_attn.dt_bias"] = rng.standard_normal(c["linear_num_value_heads"])
        plain[p + "linear_attn.norm.weight"] = 1 + 0.2 * rng.standard_normal(c["linear_value_head_dim"])
    for n, w in norms.items():
        plain[f"{p}{n}.weight"] = center + 0.2 * rng.standard_normal(w)
    if "num_experts" not in c or i in c.get("mlp_only_layers", []):
        own.update(mlp("mlp.", D, c["intermediate_size"]))
    else:
        E, F = c["num_experts"], c["moe_intermediate_size"]
        own["mlp.gate"] = (E, D)
        if not apart:
            plain[p + "mlp.experts.gate_up_proj"] = rng.standard_normal((E, 2 * F, D)) * 1.7 / np.sqrt(D)
            plain[p + "mlp.experts.down_proj"] = rng.standard_normal((E, D, F)) * 1.7 / np.sqrt(F)
        if hybrid:
            own.update(mlp("mlp.shared_expert.", D, c["shared_expert_intermediate_size"]))
            own["mlp.shared_expert_gate"] = (1, D)
        for e in range(E if apart else 0):
            own.update(mlp(f"mlp.experts.{e}.", D, F))
    matrices.update({p + n: s for n, s in own.items()})


def checkpoint(folder, c, rng):
    D, V = c["hidden_size"], c["vocab_size"]
    matrices = {"model.embed_tokens": (V, D)}
    if not c["tie_word_embeddings"]:
        matrices["lm_head"] = (V, D)
    plain = {"model.norm.weight": ("full_attention_interval" not in c) + 0.2 * rng.standard_normal(D)}
    for i in range(c["num_hidden_layers"]):
        layer(c, i, rng, matrices, plain)
    out = {k: torch.from_numpy(v).to(torch.bfloat16) for k, v in plain.items()}
    for n, s in matrices.items():
        w = torch.from_numpy(rng.standard_normal(s) * 1.7 / np.sqrt(s[1])).float()
        if s[1] % GROUP or "experts" in n or s[0] == 1:
            out[n + ".weight"] = w.to(torch.bfloat16)
        else:
            out[n + ".weight"], out[n + ".scales"], out[n + ".biases"] = quantise(w, 4, torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    c = dict(c, quantization=dict(group_size=GROUP, bits=4, mode="affine"))
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in out.items()}, str(folder / "model.safetensors"))


def main():
    for name in sys.argv[2:] or SHAPES:
        c = SHAPES[name]
        folder, rng = Path(sys.argv[1]) / name, np.random.default_rng(20261130)
        checkpoint(folder, c, rng)
        golden(folder, c["vocab_size"], rng)


if __name__ == "__main__":
    main()
