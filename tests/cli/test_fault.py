"""A model's file that is cut short while the program reads it."""
import json
import os
import struct
import subprocess
import time

from conftest import DATA, HEARTH


def big_model(path):
    """A llama whose embedding is a hole of 256 MB: no disk is used, and loading it takes a while."""
    V, D, F = 2_000_000, 64, 64
    path.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": V, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "max_position_embeddings": 128, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((DATA / "models" / "llama-q4" / name).read_bytes())
    l = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [V, D], "model.norm.weight": [D], l + "input_layernorm.weight": [D],
              l + "post_attention_layernorm.weight": [D], **{l + f"self_attn.{x}_proj.weight": [D, D] for x in "qkvo"},
              **{l + f"mlp.{x}_proj.weight": [F, D] for x in ("gate", "up", "down")}}
    header, at = {}, 0
    for name, shape in shapes.items():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    return path / "model.safetensors"


def resident_mb(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * 4096 >> 20


def test_a_file_cut_short_while_it_is_read(tmp_path):
    file = big_model(tmp_path / "big")
    p = subprocess.Popen([HEARTH, "serve", file.parent, "--port", "0", "--context-length", "64", "--threads", "1"], stderr=subprocess.PIPE, text=True)
    end = time.time() + 20
    while time.time() < end and p.poll() is None and resident_mb(p.pid) < 40:  # headers are read, weights are being packed
        time.sleep(0.002)
    os.truncate(file, 8192)
    try:
        text = p.communicate(timeout=30)[1]
    finally:
        p.kill()
    assert p.returncode == 1 and f"{file} was cut short, or its disk failed, while it was in use" in text, (p.returncode, text)
