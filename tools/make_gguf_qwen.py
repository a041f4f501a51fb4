#!/usr/bin/env python3
"""Writes a GGUF with the weights of a Qwen3-MoE, Qwen 3.5 or Qwen3-Next checkpoint (MLX's layout or Hugging Face's), the way llama.cpp's
converter lays it out: norms with their 1, −exp(A_log), value heads of Qwen 3.5 in the order that ggml's broadcast wants.

    python tools/make_gguf_qwen.py CHECKPOINT OUT.gguf [TYPE]      TYPE: BF16 (default), F32, Q8_0, ... of the matrices
"""
import json, re, sys
from pathlib import Path
import numpy as np
import gguf

sys.path.insert(0, str(Path(__file__).parent))
from goldens_hf import expand, read_tensors
from make_gguf import add_vocabulary

ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next"}


def load(source):
    c = json.loads((source / "config.json").read_text())
    quantization = c.get("quantization", {})
    c = c.get("text_config", c)
    tensors = dict(t for f in sorted(source.glob("model*.safetensors")) for t in read_tensors(f))
    out = {}
    for name, v in expand(tensors, quantization).items():
        name = name.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
        name = name.replace("language_model.lm_head", "lm_head")
        if not name.startswith(("mtp.", "model.visual.")):
            out[name] = v
    return c, out


def stack_experts(tensors):
    """One tensor an expert, or gate and up in one, become stacks."""
    apart = {}
    for name in list(tensors):
        if m := re.fullmatch(r"(.*\.mlp\.)experts\.(\d+)\.(\w+)\.weight", name):
            apart.setdefault(f"{m[1]}switch_mlp.{m[3]}.weight", {})[int(m[2])] = tensors.pop(name)
        elif name.endswith("experts.gate_up_proj"):
            base, both = name.removesuffix("experts.gate_up_proj"), tensors.pop(name)
            for i, half in enumerate(np.split(both, 2, 1)):
                tensors[f"{base}switch_mlp.{('gate', 'up')[i]}_proj.weight"] = half
        elif name.endswith("experts.down_proj"):
            tensors[name.replace("experts.down_proj", "switch_mlp.down_proj.weight")] = tensors.pop(name)
    for name, each in apart.items():
        tensors[name] = np.stack([each[e] for e in sorted(each)])


def tile_heads(v, axis, Hk, Hv, width):
    """Value heads grouped by key head -> key heads within each rank."""
    s = v.shape
    return v.reshape(*s[:axis], Hk, Hv // Hk, width, *s[axis + 1 :]).swapaxes(axis, axis + 1).reshape(s)


def reorder(name, v, c):
    Hk, Hv, Dk, Dv = (c[f"linear_{k}"] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    at = 2 * Hk * Dk
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([v[:at], tile_heads(v[at:], 0, Hk, Hv, Dv)])
    if "in_proj_z" in name:
        return tile_heads(v, 0, Hk, Hv, Dv)
    if "out_proj" in name:
        return tile_heads(v, 1, Hk, Hv, Dv)
    if name.endswith(("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias")):
        return tile_heads(v, 0, Hk, Hv, 1)
    return v


def split_qkvz(tensors, c):
    if "linear_num_key_heads" not in c:
        return
    Hk, Hv, Dk, Dv = (c[f"linear_{k}"] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
    for name in [n for n in tensors if "in_proj_qkvz" in n]:
        v = tensors.pop(name)
        v = v.reshape(Hk, -1, v.shape[-1])
        cut = np.split(v, np.cumsum([Dk, Dk, Hv // Hk * Dv]), 1)
        q, k, v, z = (p.reshape(-1, p.shape[-1]) for p in cut)
        tensors[name.replace("qkvz", "qkv")], tensors[name.replace("qkvz", "z")] = np.concatenate([q, k, v]), z


def add_sizes(w, c):
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c.get("intermediate_size", c.get("moe_intermediate_size")))
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    rope = c.get("rope_parameters") or {}
    w.add_rope_freq_base(rope.get("rope_theta") or c["rope_theta"])
    w.add_rope_dimension_count(int(c["head_dim"] * (rope.get("partial_rotary_factor") or c.get("partial_rotary_factor") or 1)))
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if "linear_conv_kernel_dim" in c:
        n = c["head_dim"] // 8
        w.add_rope_dimension_sections([n - 2 * (n // 3), n // 3, n // 3, 0])
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c["full_attention_interval"])


def main():
    source, out = Path(sys.argv[1]), sys.argv[2]
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "BF16"]
    c, tensors = load(source)
    arch, hybrid = ARCHITECTURES[c["model_type"]], "linear_conv_kernel_dim" in c
    raw = any("conv1d" in n and v.shape[-1] != 1 for n, v in tensors.items())
    stack_experts(tensors)
    split_qkvz(tensors, c)
    w = gguf.GGUFWriter(out, arch)
    add_sizes(w, c)
    add_vocabulary(w, c["vocab_size"])
    for name, v in tensors.items():
        if arch in ("qwen35", "qwen35moe") and "linear_attn." in name:
            v = reorder(name, v, c)
        if raw and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            v = v + 1
        if "A_log" in name:
            v = -np.exp(v)
        if "conv1d" in name or "shared_expert_gate" in name:
            v = v.squeeze()
        module, suffix = (name.removesuffix(".weight"), ".weight") if name.endswith(".weight") else (name, "")
        if module in ENDS:
            to = ENDS[module]
        else:
            _, _, i, rest = module.split(".", 3)
            to = "post_attention_norm" if hybrid else "ffn_norm"
            to = f"blk.{i}.{to if rest == 'post_attention_layernorm' else LAYER[rest]}"
        if v.ndim == 1 or "conv1d" in name:
            w.add_tensor(to + suffix, np.ascontiguousarray(v, np.float32))
        else:
            w.add_tensor(to + suffix, gguf.quants.quantize(np.ascontiguousarray(v), kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
