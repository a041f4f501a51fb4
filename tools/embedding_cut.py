#!/usr/bin/env python3
"""Cuts the shared embedding oracle down to tests/data/models/qwen3_embedding: the checkpoint with bare tensor names, its golden, and a
tokenizer that the oracle lacks (one CJK character a token: U+4E00 + id), so that a text can stand for exactly the golden's tokens.

    python tools/embedding_cut.py SHARED tests/data/models

golden.bin, little endian: "HEMB", int32 n width; then for each text int32 n_ids, ids [n_ids] (the end token is the last), float32
vector [width] (normalised; transformers and mlx-vlm agree to 3e-7).
"""
import json, shutil, struct, sys
from pathlib import Path
from safetensors.numpy import load_file

END = "<|endoftext|>"


def tokenizer(end_id):
    special = {"id": end_id, "content": END, "special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    return {"version": "1.0", "added_tokens": [special], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "vocab": {chr(0x4E00 + i): i for i in range(end_id)}, "merges": []}}


def main():
    source, out = Path(sys.argv[1]) / "oracle/media/qwen3_embedding", Path(sys.argv[2]) / "qwen3_embedding"
    (out / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for f in ("config.json", "modules.json", "model.safetensors", "1_Pooling/config.json"):
        shutil.copyfile(source / "model_bare" / f, out / f)
    g = load_file(source / "golden.safetensors")
    ids, mask, vectors = g["input_ids_right_padded"], g["attention_mask"], g["embedding"]
    data = struct.pack("<4s2i", b"HEMB", *vectors.shape)
    for i in range(len(ids)):
        n = int(mask[i].sum())
        data += struct.pack("<i", n) + ids[i][:n].astype("<i4").tobytes() + vectors[i].astype("<f4").tobytes()
    (out / "golden.bin").write_bytes(data)
    end_id = json.loads((out / "config.json").read_text())["eos_token_id"]
    (out / "tokenizer.json").write_text(json.dumps(tokenizer(end_id)))


if __name__ == "__main__":
    main()
