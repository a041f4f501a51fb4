#!/usr/bin/env python3
"""Writes a GGUF with the weights of a Gemma checkpoint (1 to 4; MLX's layout or Hugging Face's), the way llama.cpp's converter lays it out:
norms of Gemma 1 to 3 with their 1, gate and up of experts in one tensor, proportional rotation as divisors of the frequencies. GGUF has no
query_pre_attn_scalar: q or its norm is scaled so that the head's width in its place gives the same.

    python tools/make_gguf_gemma.py CHECKPOINT OUT.gguf [TYPE]      TYPE: BF16 (default), F32, Q8_0, ... of the matrices
"""
import json, re, sys
from pathlib import Path
import numpy as np
import gguf

sys.path.insert(0, str(Path(__file__).parent))
from goldens_hf import expand, read_tensors
from make_gguf import add_vocabulary

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "layer_scalar": "layer_output_scale",
    "model.embed_tokens_per_layer": "per_layer_token_embd", "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm", "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "experts.gate_up_proj": "ffn_gate_up_exps", "experts.down_proj": "ffn_down_exps",
}  # fmt: skip


def load(source):
    c = json.loads((source / "config.json").read_text())
    tensors = dict(t for f in sorted(source.glob("model*.safetensors")) for t in read_tensors(f))
    tensors = expand(tensors, c.get("quantization", {}))
    c = {**c, **c.get("text_config", {})}
    out = {}
    for name, v in tensors.items():
        name = name.replace("language_model.model.", "model.").replace("model.language_model.", "model.")
        if not re.match(r"(model\.)?(vision|audio|embed_vision|embed_audio)", name):
            out[name.removesuffix(".weight")] = v
    for name in [n for n in out if n.endswith("experts.switch_glu.gate_proj")]:
        base = name.removesuffix("switch_glu.gate_proj")
        out[base + "gate_up_proj"] = np.concatenate([out.pop(name), out.pop(base + "switch_glu.up_proj")], 1)
        out[base + "down_proj"] = out.pop(base + "switch_glu.down_proj")
    return c, out


def write_sizes(w, c, kind):
    L = c["num_hidden_layers"]
    w.add_block_count(L)
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if kind != "gemma":
        w.add_sliding_window(c["sliding_window"])
    if kind == "gemma4":
        return write_gemma4(w, c)
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    rope = c.get("rope_parameters", {})
    scaling = rope.get("full_attention") or c.get("rope_scaling") or {}
    w.add_rope_freq_base(scaling.get("rope_theta") or c["rope_theta"])
    if kind == "gemma3":
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"] if rope else c["rope_local_base_freq"])
        if scaling:
            w.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
            w.add_rope_scaling_factor(scaling["factor"])
        if c.get("layer_types"):
            w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])


def write_gemma4(w, c):
    L, wide, narrow = c["num_hidden_layers"], c["global_head_dim"], c["head_dim"]
    sliding = [t == "sliding_attention" for t in c["layer_types"]]
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    w.add_sliding_window_pattern(sliding)
    w.add_key_length(wide)
    w.add_value_length(wide)
    w.add_key_length_swa(narrow)
    w.add_value_length_swa(narrow)
    w.add_rope_dimension_count(wide)
    w.add_rope_dimension_count_swa(narrow)
    full = c["rope_parameters"]["full_attention"]
    w.add_rope_freq_base(full["rope_theta"])
    w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    turning = int(wide * full["partial_rotary_factor"]) // 2
    w.add_tensor("rope_freqs.weight", np.array([1.0] * turning + [1e30] * (wide // 2 - turning), np.float32))
    if c["use_double_wide_mlp"]:
        F, own = c["intermediate_size"], L - c["num_kv_shared_layers"]
        w.add_feed_forward_length([F if i < own else 2 * F for i in range(L)])
    if c.get("num_global_key_value_heads"):
        w.add_head_count_kv([c["num_key_value_heads"] if s else c["num_global_key_value_heads"] for s in sliding])
    if c["enable_moe_block"]:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["top_k_experts"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


def add_gemma4_vocabulary(w, tokenizer, n):
    """What the converter makes of a tokenizer.json: merges over SentencePiece's characters."""
    T = gguf.TokenType
    texts, types = [f"<unused{i}>" for i in range(n)], [T.UNUSED] * n
    for text, i in tokenizer["model"]["vocab"].items():
        texts[i], types[i] = text, T.BYTE if re.fullmatch(r"<0x[0-9A-F]{2}>", text) else T.NORMAL
    for t in tokenizer["added_tokens"]:
        texts[t["id"]], types[t["id"]] = t["content"], T.CONTROL if t["special"] else T.USER_DEFINED
    w.add_tokenizer_model("gemma4")
    w.add_token_list(texts)
    w.add_token_scores([0.0] * n)
    w.add_token_types(types)
    w.add_token_merges([" ".join(m) for m in tokenizer["model"]["merges"]])
    w.add_add_space_prefix(False)
    w.add_add_bos_token(True)
    for name, text in (("bos", "<bos>"), ("eos", "<eos>"), ("unk", "<unk>"), ("pad", "<pad>")):
        getattr(w, f"add_{name}_token_id")(texts.index(text))


def gguf_name(name, kind):
    layer = re.match(r"model\.layers\.(\d+)\.(.*)", name)
    to = NAMES[layer[2] if layer else name]
    if kind == "gemma" and to == "post_attention_norm":
        to = "ffn_norm"
    return (f"blk.{layer[1]}." if layer else "") + to + ("" if to.endswith(".scale") else ".weight")


def main():
    source, out = Path(sys.argv[1]), sys.argv[2]
    matrix = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "BF16"]
    c, tensors = load(source)
    kind = re.match(r"gemma\d?", c["model_type"])[0]
    w = gguf.GGUFWriter(out, kind)
    write_sizes(w, c, kind)
    tokenizer = json.loads((source / "tokenizer.json").read_text()) if (source / "tokenizer.json").exists() else {"model": {}}
    if kind == "gemma4" and tokenizer["model"].get("byte_fallback"):
        add_gemma4_vocabulary(w, tokenizer, c["vocab_size"])
        w.add_eot_token_id(next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<turn|>"))
        if (source / "chat_template.jinja").exists():
            w.add_chat_template((source / "chat_template.jinja").read_text())
    else:
        add_vocabulary(w, c["vocab_size"])
    for name, v in tensors.items():
        if kind != "gemma4" and name.endswith("norm"):
            v = v + 1
        if name.endswith("q_norm" if kind == "gemma3" else "q_proj") and c.get("query_pre_attn_scalar"):
            v = v * np.float32((c["head_dim"] / c["query_pre_attn_scalar"]) ** 0.5)
        if v.ndim == 1:
            w.add_tensor(gguf_name(name, kind), v.astype(np.float32))
        else:
            w.add_tensor(gguf_name(name, kind), gguf.quants.quantize(np.ascontiguousarray(v, np.float32), matrix), raw_dtype=matrix)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
