#!/usr/bin/env python3
"""Writes a GGUF (architecture deepseek2) with the weights of a DeepSeek V3 checkpoint in MLX's layout, the way llama.cpp's converter lays it
out: kv_b_proj as attn_k_b, transposed, and attn_v_b, which are MLX's embed_q and unembed_out.

    python tools/make_gguf_mla.py CHECKPOINT OUT.gguf [TYPE]      TYPE: BF16 (default), F32, Q8_0, ... of the matrices
"""
import json, sys
from pathlib import Path
import gguf

sys.path.insert(0, str(Path(__file__).parent))
from goldens_hf import expand, read_tensors
from make_gguf import add_vocabulary

ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.embed_q": "attn_k_b", "self_attn.unembed_out": "attn_v_b",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip


def gguf_name(name):
    if not name.startswith("model.layers."):
        return ENDS[name.removesuffix(".weight")] + ".weight"
    _, _, layer, rest = name.split(".", 3)
    if rest == "mlp.gate.e_score_correction_bias":
        return f"blk.{layer}.exp_probs_b.bias"
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def add_sizes(w, c):
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if r := c.get("rope_scaling"):
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(r["factor"])
        w.add_rope_scaling_orig_ctx_len(r["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_log_mul(0.1 * r["mscale_all_dim"])


def main():
    source, out = Path(sys.argv[1]), sys.argv[2]
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "BF16"]
    c = json.loads((source / "config.json").read_text())
    tensors = dict(t for f in sorted(source.glob("model*.safetensors")) for t in read_tensors(f))
    w = gguf.GGUFWriter(out, "deepseek2")
    add_sizes(w, c)
    add_vocabulary(w, c["vocab_size"])
    for name, v in expand(tensors, c.get("quantization", {})).items():
        if v.ndim == 1 or name.endswith("mlp.gate.weight"):
            w.add_tensor(gguf_name(name), v)
        else:
            w.add_tensor(gguf_name(name), gguf.quants.quantize(v, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
