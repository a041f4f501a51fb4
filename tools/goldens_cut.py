#!/usr/bin/env python3
"""Cuts the shared oracle down to tests/data/models: a few checkpoints with the golden rows that tests/unit/model_test.c compares.

    python tools/goldens_cut.py SHARED tests/data/models [NAME ...]

SHARED is the folder with oracle/text (its README.md says how the goldens were made: mlx-lm's graph in f32, r1 = bf16 error).
Per checkpoint a folder with config.json, the weights and golden.bin; `definition.bin`, where there is one, is tools/goldens_hf.py's.

golden.bin, little endian: "HGLD", then int32 V n_short n_long n_pos n_dec, float32 r1_mean r1_median (KL over the rows kept), then
int32 short_ids[n_short] long_ids[n_long] long_pos[n_pos] dec_ids[n_dec], then float32 rows [V] of short, of long at long_pos, of dec
(row i is what dec_ids[i] was picked from; row 0 is the last of short).
"""
import shutil, struct, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file

NAMES = """llama-q4 llama-mixall llama-q1g64 llama_tied-q4 llama_plain-q4 llama_plain-bf16 minicpm5-q4 mistral-q4
mistral_swa-q4 qwen3_moe-q4 qwen3_5_4b-q4 qwen3_5_27b-q4 qwen3_5_moe-q4 deepseek_v3-q4 glm_dsa-q4
gemma-q4 gemma2-q4 gemma3_text-q4 gemma3-q4 gemma4_12b-q4 gemma4_e4b-q4 gemma4_e2b-q4 gemma4_26b-q4
qwen2-q4 qwen3-q4 smollm3-q4 olmo2-q4 granite-q4 glm4-q4 phi3-q4 starcoder2-q4""".split()
KV = ["qwen3-q4.kv4g64", "llama-q4.kv8g32", "qwen3_5_4b-q4.kv8g64"]  # quantised caches: long prompt and what follows it, NAME/kv4g64.bin
GOLDEN_ONLY = ["llama_tied-bf16"]  # its weights are there as GGUF (tools/make_gguf.py)
KEEP = "config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja".split()
POS = 20  # rows of the long prompt that are kept


def write_golden(path, ids_short, ids_long, pos, ids_dec, short, long, dec, r1):
    ints = [a.astype("<i4").tobytes() for a in (ids_short, ids_long, pos, ids_dec)]
    rows = [a.astype("<f4").tobytes() for a in (short, long, dec)]
    head = struct.pack("<4s5i2f", b"HGLD", short.shape[1], len(ids_short), len(ids_long), len(pos), len(ids_dec), *r1)
    path.write_bytes(head + b"".join(ints + rows))


def pick(n):
    """Rows spread over the prompt, the last one included."""
    return np.unique(np.linspace(0, n - 1, POS).round().astype(int))


def main():
    shared, out = Path(sys.argv[1]) / "oracle/text", Path(sys.argv[2])
    for name in sys.argv[3:] or NAMES + GOLDEN_ONLY:
        g, to = load_file(shared / f"goldens/{name}.safetensors"), out / name
        to.mkdir(parents=True, exist_ok=True)
        source = shared / "models" / name
        for f in [source / k for k in KEEP] + sorted(source.glob("model*.safetensors")):
            if f.exists() and name not in GOLDEN_ONLY:
                shutil.copyfile(f, to / f.name)
        rows = pick(len(g["long_pos"]))
        pos = g["long_pos"][rows]
        kl = np.concatenate([g["r1_short_kl"], g["r1_long_kl"][pos], g["r1_dec_kl"]])
        write_golden(to / "golden.bin", g["short_ids"], g["long_ids"], pos, g["dec_ids"], g["f32_short"], g["f32_long"][rows],
                     g["f32_dec"], (kl.mean(), np.median(kl)))
        print(f"{name}: {sum(f.stat().st_size for f in to.iterdir()) >> 10} KiB")
    for name in [] if sys.argv[3:] else KV:
        g, none = load_file(shared / f"goldens/{name}.safetensors"), np.zeros((0, 0))
        model, kind = name.split(".")
        write_golden(out / model / f"{kind}.bin", none, g["long_ids"], none, g["dec_ids"], g["f32_dec"][:0], none, g["f32_dec"],
                     (g["r1_dec_kl"].mean(), np.median(g["r1_dec_kl"])))


if __name__ == "__main__":
    main()
