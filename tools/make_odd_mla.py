#!/usr/bin/env python3
"""Writes tests/data/models/deepseek_v3-odd and glm_moe_dsa-odd: random checkpoints of awkward shapes in Hugging Face's layout, with
golden.bin from transformers (5.24: older ones know no shared indexers).

    python tools/make_odd_mla.py tests/data/models

deepseek_v3-odd: no low rank for queries, a latent of 40 columns, values narrower than keys, three groups of experts, two shared
experts, yarn whose two mscales differ, the rotation of halves. glm_moe_dsa-odd: kv_b_proj quantised, biases, five heads, every second layer has an indexer
by index_topk_freq alone, an extra layer that guesses tokens. Same bytes every time.
"""
import json, sys
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from make_odd import GROUP, golden, quantise

BASE = dict(rms_norm_eps=1e-6, hidden_act="silu", max_position_embeddings=4096, eos_token_id=2, tie_word_embeddings=False,
            scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True)  # fmt: skip
SHAPES = {
    "deepseek_v3-odd": dict(BASE, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=96, intermediate_size=160,
                            num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, q_lora_rank=None, kv_lora_rank=40,
                            qk_nope_head_dim=24, qk_rope_head_dim=10, v_head_dim=20, n_routed_experts=6, num_experts_per_tok=2,
                            moe_intermediate_size=32, n_shared_experts=2, n_group=3, topk_group=2, first_k_dense_replace=1,
                            routed_scaling_factor=1.5, attention_bias=False, rope_interleave=False, vocab_size=301,
                            rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8, mscale=0.7, mscale_all_dim=0.9,
                                                 original_max_position_embeddings=32, beta_fast=32, beta_slow=1)),
    "glm_moe_dsa-odd": dict(BASE, architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", hidden_size=96, intermediate_size=80,
                            num_hidden_layers=3, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=48, kv_lora_rank=32,
                            qk_nope_head_dim=16, qk_rope_head_dim=12, v_head_dim=24, n_routed_experts=5, num_experts_per_tok=3,
                            moe_intermediate_size=32, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=2,
                            routed_scaling_factor=2.5, attention_bias=True, index_n_heads=16, index_head_dim=20, index_topk=37,
                            index_topk_freq=2, index_skip_topk_offset=1, vocab_size=257,
                            rope_parameters=dict(rope_type="default", rope_theta=50000.0)),
}  # fmt: skip


def mlp(prefix, D, F):
    return {f"{prefix}gate_proj": (F, D), f"{prefix}up_proj": (F, D), f"{prefix}down_proj": (D, F)}


def layer(c, i, rng, matrices, plain):
    D, H, Q, Z, N, P, Dv, E, F = (c[k] for k in ("hidden_size num_attention_heads q_lora_rank kv_lora_rank qk_nope_head_dim "
                                  "qk_rope_head_dim v_head_dim n_routed_experts moe_intermediate_size").split())  # fmt: skip
    p = f"model.layers.{i}."
    norms = {"input_layernorm": D, "post_attention_layernorm": D, "self_attn.kv_a_layernorm": Z}
    own = {"self_attn.kv_a_proj_with_mqa": (Z + P, D), "self_attn.kv_b_proj": (H * (N + Dv), Z), "self_attn.o_proj": (D, H * Dv)}
    biased = ["self_attn.kv_a_proj_with_mqa", "self_attn.o_proj"]
    if Q:
        own.update({"self_attn.q_a_proj": (Q, D), "self_attn.q_b_proj": (H * (N + P), Q)})
        norms["self_attn.q_a_layernorm"] = Q
        biased.append("self_attn.q_a_proj")
    else:
        own["self_attn.q_proj"] = (H * (N + P), D)
    if i % c.get("index_topk_freq", 1e9) == 0 and "index_topk" in c:
        Hi, Di = c["index_n_heads"], c["index_head_dim"]
        own.update({"self_attn.indexer.wq_b": (Hi * Di, Q), "self_attn.indexer.wk": (Di, D), "self_attn.indexer.weights_proj": (Hi, D)})
        norms["self_attn.indexer.k_norm"] = Di
        plain[p + "self_attn.indexer.k_norm.bias"] = 0.3 * rng.standard_normal(Di)
    for n, w in norms.items():
        plain[f"{p}{n}.weight"] = 1 + 0.2 * rng.standard_normal(w)
    if c["attention_bias"]:
        for n in biased:
            plain[f"{p}{n}.bias"] = 0.3 * rng.standard_normal(own[n][0])
    if i < c["first_k_dense_replace"]:
        own.update(mlp("mlp.", D, c["intermediate_size"]))
    else:
        plain[p + "mlp.gate.weight"] = rng.standard_normal((E, D)) * 1.7 / np.sqrt(D)
        plain[p + "mlp.gate.e_score_correction_bias"] = 0.1 * rng.standard_normal(E)
        own.update(mlp("mlp.shared_experts.", D, F * c["n_shared_experts"]))
        for e in range(E):
            own.update(mlp(f"mlp.experts.{e}.", D, F))
    matrices.update({p + n: s for n, s in own.items()})


def checkpoint(folder, c, rng):
    D, V, L = c["hidden_size"], c["vocab_size"], c["num_hidden_layers"]
    matrices, plain = {"model.embed_tokens": (V, D), "lm_head": (V, D)}, {"model.norm.weight": 1 + 0.2 * rng.standard_normal(D)}
    for i in range(L):
        layer(c, i, rng, matrices, plain)
    out = {k: torch.from_numpy(v).to(torch.bfloat16) for k, v in plain.items()}
    for n, s in matrices.items():
        w = torch.from_numpy(rng.standard_normal(s) * 1.7 / np.sqrt(s[1])).float()
        if s[1] % GROUP or ".experts." in n:
            out[n + ".weight"] = w.to(torch.bfloat16)
        else:
            out[n + ".weight"], out[n + ".scales"], out[n + ".biases"] = quantise(w, 4, torch.bfloat16)
    out[f"model.layers.{L}.eh_proj.weight"] = torch.zeros(1, 2, dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    c = dict(c, quantization=dict(group_size=GROUP, bits=4, mode="affine"))
    (folder / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    save_file({k: v.contiguous() for k, v in out.items()}, str(folder / "model.safetensors"))


def main():
    for name, c in SHAPES.items():
        folder, rng = Path(sys.argv[1]) / name, np.random.default_rng(20261130)
        checkpoint(folder, c, rng)
        golden(folder, c["vocab_size"], rng)


if __name__ == "__main__":
    main()
