#!/usr/bin/env python3
"""Writes a GGUF with the weights of a llama-family checkpoint in Hugging Face's layout (bf16 or expanded MLX codes), the way
llama.cpp's converter lays it out: rows of q and k reordered for interleaved rotation, llama3 scaling as rope_freqs, and a vocabulary of bytes.

    python tools/make_gguf.py CHECKPOINT OUT.gguf [TYPE]      TYPE: BF16 (default), F32, Q8_0, ... of the matrices
"""
import json, math, sys
from pathlib import Path
import numpy as np
import gguf

sys.path.insert(0, str(Path(__file__).parent))
from goldens_hf import expand, read_tensors

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name):
    module, kind = name.rsplit(".", 1)
    if module.startswith("model.layers."):
        _, _, layer, rest = module.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[module]}.{kind}"


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


def main():
    source, out = Path(sys.argv[1]), sys.argv[2]
    kind = gguf.GGMLQuantizationType[sys.argv[3] if len(sys.argv) > 3 else "BF16"]
    c = json.loads((source / "config.json").read_text())
    tensors = dict(t for f in sorted(source.glob("model*.safetensors")) for t in read_tensors(f))
    tensors = expand(tensors, c.get("quantization", {}))
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w = gguf.GGUFWriter(out, "llama")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_rope_dimension_count(head)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(c["vocab_size"])
    add_vocabulary(w, c["vocab_size"])
    if c.get("rope_scaling"):
        w.add_tensor("rope_freqs.weight", rope_freqs(c, head))
    for name, v in tensors.items():
        if "q_proj" in name:
            v = interleave(v, c["num_attention_heads"])
        if "k_proj" in name:
            v = interleave(v, c["num_key_value_heads"])
        if v.ndim == 1:
            w.add_tensor(gguf_name(name), v)
        else:
            w.add_tensor(gguf_name(name), gguf.quants.quantize(v, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
