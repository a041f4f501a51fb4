#!/usr/bin/env python3
"""Writes a GGUF with the weights of a checkpoint in Hugging Face's layout (bf16 or expanded MLX codes), the way llama.cpp's converter lays it
out: names by the gguf package's own table, rows of q and k reordered where rotation is interleaved, llama3 scaling as rope_freqs, longrope
factors as tensors, and a vocabulary of bytes. Dense families: llama qwen2 qwen3 smollm3 olmo2 granite glm4 phi3 starcoder2.

    python tools/make_gguf.py CHECKPOINT OUT.gguf [TYPE]      TYPE: BF16 (default), F32, Q8_0, ... of the matrices
"""
import json, math, sys
from pathlib import Path
import numpy as np
import gguf

sys.path.insert(0, str(Path(__file__).parent))
from goldens_hf import expand, read_tensors

# Their rows of q and k are reordered, as for all classes of the converter that come from llama's.
INTERLEAVED = {"llama", "smollm3", "granite"}


def interleave(v, heads):
    """Rows (i, i + Dh/2) of a head become neighbours."""
    return v.reshape(heads, 2, -1, *v.shape[1:]).swapaxes(1, 2).reshape(v.shape)


def add_vocabulary(w, n):
    """SentencePiece's three specials, the bytes, and fillers."""
    special, bytes_ = ["<unk>", "<s>", "</s>"], [f"<0x{i:02X}>" for i in range(256)]
    fillers = [f"\u2581t{i}" for i in range(n - 259)]
    w.add_tokenizer_model("llama")
    w.add_token_list(special + bytes_ + fillers)
    w.add_token_scores([0.0] * n)
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(fillers))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)


def rope_freqs(c, head):
    r = c["rope_scaling"]
    out = []
    for i in range(head // 2):
        wave, n = 2 * math.pi * c["rope_theta"] ** (2 * i / head), r["original_max_position_embeddings"]
        mix = (n / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        between = 1 / ((1 - mix) / r["factor"] + mix)
        out.append(1 if wave < n / r["high_freq_factor"] else r["factor"] if wave > n / r["low_freq_factor"] else between)
    return np.array(out, np.float32)


def add_scaling(w, c, rotary):
    r = c.get("rope_scaling")
    if r and r.get("rope_type", r.get("type")) == "llama3":
        w.add_tensor("rope_freqs.weight", rope_freqs(c, rotary))
    if r and r.get("rope_type", r.get("type")) in ("longrope", "su"):
        original = c["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(c["max_position_embeddings"] / original) / math.log(original)))
        for kind in ("long", "short"):
            w.add_tensor(f"rope_factors_{kind}.weight", np.array(r[f"{kind}_factor"], np.float32))


def add_config(w, c):
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    rotary = int(head * c.get("partial_rotary_factor", 1))
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(rotary)
    w.add_rope_freq_base(c["rope_theta"])
    if "norm_epsilon" in c:
        w.add_layer_norm_eps(c["norm_epsilon"])
    else:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    for key, add in {"embedding_multiplier": w.add_embedding_scale, "residual_multiplier": w.add_residual_scale,
                     "attention_multiplier": w.add_attention_scale, "logits_scaling": w.add_logit_scale}.items():  # fmt: skip
        if key in c:
            add(c[key])
    if c["model_type"] == "phi3":
        w.add_sliding_window(c.get("sliding_window") or 0)
    return rotary


def main():
    source, out = Path(sys.argv[1]), sys.argv[2]
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "BF16"]
    c = json.loads((source / "config.json").read_text())
    tensors = dict(t for f in sorted(source.glob("model*.safetensors")) for t in read_tensors(f))
    tensors = expand(tensors, c.get("quantization", {}))
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == c["model_type"])
    names = gguf.get_tensor_name_map(arch, c["num_hidden_layers"])
    w = gguf.GGUFWriter(out, c["model_type"])
    rotary = add_config(w, c)
    add_vocabulary(w, c["vocab_size"])
    add_scaling(w, c, rotary)
    for name, v in tensors.items():
        if "q_proj" in name and c["model_type"] in INTERLEAVED:
            v = interleave(v, c["num_attention_heads"])
        if "k_proj" in name and c["model_type"] in INTERLEAVED:
            v = interleave(v, c["num_key_value_heads"])
        name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if v.ndim == 1:
            w.add_tensor(name, v)
        else:
            w.add_tensor(name, gguf.quants.quantize(v, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
