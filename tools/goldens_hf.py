#!/usr/bin/env python3
"""f32 goldens of a model's own definition (transformers, eager attention) for checkpoints where mlx-lm reads it differently.

    python tools/goldens_hf.py tests/data/models/mistral-q4 [...]

Reads an MLX checkpoint (quantised ones are expanded to f32 here, in numpy, w = scale*code + bias), runs transformers in float32 and
writes definition.bin beside it, with the prompts of golden.bin; layout in tools/goldens_cut.py. Needs torch and transformers.
"""
import json, os, struct, sys, tempfile
from pathlib import Path
import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
from goldens_cut import write_golden


def read_tensors(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    for name, t in json.loads(raw[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        a, z = (8 + n + o for o in t["data_offsets"])
        if t["dtype"] == "BF16":
            v = (np.frombuffer(raw[a:z], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            v = np.frombuffer(raw[a:z], {"F32": "<f4", "F16": "<f2", "U32": "<u4", "U8": "u1"}[t["dtype"]])
        yield name, v.reshape(t["shape"])


def expand(tensors, quantization):
    """Affine codes (any width: a row is one little-endian bit stream) as f32 matrices."""
    out = {}
    for name, v in tensors.items():
        base = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")):
            continue
        if not name.endswith(".weight") or base + ".scales" not in tensors:
            out[name] = v.astype(np.float32)
            continue
        q = quantization.get(base) or quantization
        assert q.get("mode", "affine") == "affine", f"{base}: {q}"
        scale, offset = (np.repeat(tensors[base + s].astype(np.float32), q["group_size"], -1) for s in (".scales", ".biases"))
        bits = np.unpackbits(np.ascontiguousarray(v).view(np.uint8).reshape(*v.shape[:-1], -1), axis=-1, bitorder="little")
        bits = bits.reshape(*v.shape[:-1], -1, q["bits"])[..., : scale.shape[-1], :]
        out[name] = scale * (bits * (1 << np.arange(q["bits"]))).sum(-1).astype(np.float32) + offset
    return out


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM
    from safetensors.numpy import save_file

    config = json.loads((folder / "config.json").read_text())
    tensors = dict(t for f in sorted(folder.glob("model*.safetensors")) for t in read_tensors(f))
    tensors = expand(tensors, config.pop("quantization", {}))
    config.pop("quantization_config", None)
    with tempfile.TemporaryDirectory() as tmp:
        (Path(tmp) / "config.json").write_text(json.dumps(config))
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, f"{tmp}/model.safetensors", {"format": "pt"})
        m, info = AutoModelForCausalLM.from_pretrained(tmp, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"], info["missing_keys"]
    return m.eval()


def main():
    import torch

    for folder in map(Path, sys.argv[1:]):
        raw = (folder / "golden.bin").read_bytes()
        V, n_short, n_long, n_pos, n_dec = struct.unpack_from("<5i", raw, 4)
        ids = np.frombuffer(raw, "<i4", n_short + n_long + n_pos + n_dec, 32)
        short, long, pos = ids[:n_short], ids[n_short : n_short + n_long], ids[n_short + n_long : n_short + n_long + n_pos]
        m = load(folder)

        @torch.no_grad()
        def rows(ids):
            return m(torch.tensor(np.array(ids, np.int64)[None]), use_cache=False).logits[0].float().numpy()

        at, dec = list(short), []
        for _ in range(n_dec):
            dec.append(int(rows(at)[-1].argmax()))
            at.append(dec[-1])
        first = rows(at[:-1])
        write_golden(folder / "definition.bin", short, long, pos, np.array(dec), first[:n_short], rows(long)[pos],
                     first[n_short - 1 :], struct.unpack_from("<2f", raw, 24))
        print(f"{folder}: differs from golden.bin by up to {np.abs(first[:n_short].ravel() - np.frombuffer(raw, '<f4', n_short * V, 32 + 4 * len(ids))).max():.3g} in the short prompt")


if __name__ == "__main__":
    main()
