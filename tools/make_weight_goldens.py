#!/usr/bin/env python3
"""Writes tests/data/formats/weights.bin: every weight format with the f32 values that a reference reads from it.

References: gguf.quants (PyPI `gguf`) for GGUF blocks, mx.dequantize (PyPI `mlx`) in f32 for the MLX modes, numpy for floats.
Codes are random bytes, so every code and every packed sub-scale occurs; float fields are random finite numbers, negative,
subnormal and zero ones included. Same seed, same file.

Layout, per record: one text line "NAME bits group n_out n_in scale_type n_codes n_scales n_biases\n" (byte counts), then codes,
scales, biases and n_out*n_in f32 values. Read by tests/unit/weight_test.c.

    python tools/make_weight_goldens.py tests/data/formats/weights.bin
"""
import sys

import gguf
import mlx.core as mx
import numpy as np
from gguf.quants import dequantize

ROWS, COLS = 2, 512
# name -> byte offsets of the f16 fields in a block
GGUF = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
AFFINE = [(b, 64, "BF16") for b in (1, 2, 3, 4, 5, 6, 8)] + [
    (4, 32, "F16"), (4, 128, "F32"), (3, 32, "F16"), (8, 32, "F32"), (2, 128, "BF16"), (6, 128, "F16"), (5, 32, "BF16")]
rng = np.random.default_rng(7)


def random_f16(n):
    x = (rng.standard_normal(n) * 0.02).astype(np.float16)
    x[rng.random(n) < 0.05] = np.float16(3e-7)  # subnormal
    x[rng.random(n) < 0.03] = 0
    return x


def gguf_record(name, fields):
    kind = gguf.GGMLQuantizationType[name]
    elems, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS * COLS // elems, size), dtype=np.uint8)
    for at in fields:
        blocks[:, at:at + 2] = random_f16(len(blocks)).view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 140, len(blocks))
        blocks[:3, 0] = [0, 1, 2]
    codes = blocks.reshape(ROWS, -1)
    return ("GGMXFP4" if name == "MXFP4" else name), 0, 0, "F32", codes, b"", b"", dequantize(codes, kind)


def affine_record(bits, group, kind):
    codes = rng.integers(0, 2**32, (ROWS, COLS * bits // 32), dtype=np.uint32)
    mxtype = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32}[kind]
    scales, biases = (mx.array(random_f16((ROWS, COLS // group)).astype(np.float32) * k).astype(mxtype) for k in (1, 9))
    out = mx.dequantize(mx.array(codes), scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
    return "AFFINE", bits, group, kind, codes, scales, biases, out


def mx_record(mode, bits, group):
    codes = rng.integers(0, 2**32, (ROWS, COLS * bits // 32), dtype=np.uint32)
    low, high = (0, 256) if mode == "nvfp4" else (90, 140)
    scales = rng.integers(low, high, (ROWS, COLS // group), dtype=np.uint8)
    if mode == "nvfp4":
        scales[scales & 127 == 127] = 126  # NaN
    else:
        scales[0, :3] = [0, 1, 2]
    if mode == "mxfp8":
        codes = (b := codes.view(np.uint8), np.where(b & 127 == 127, 126, b).astype(np.uint8))[1].view(np.uint32)
    out = mx.dequantize(mx.array(codes), mx.array(scales), group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    return mode.upper(), bits, group, "U8", codes, scales, b"", out


def float_record(kind):
    x = rng.standard_normal((ROWS, COLS)).astype(np.float32)
    x[0, :4] = [0, -0.0, 3e-7, 65504]
    raw = {"F32": x, "F16": x.astype(np.float16), "BF16": (x.view(np.uint32) >> 16).astype(np.uint16)}[kind]
    val = (raw.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else raw.astype(np.float32)
    return kind, 0, 0, "F32", raw, b"", b"", val


def raw_bytes(x):
    if isinstance(x, mx.array):
        x = np.array(x.view(mx.uint16)) if x.dtype == mx.bfloat16 else np.array(x)
    return x if isinstance(x, bytes) else np.ascontiguousarray(x).tobytes()


def main():
    records = [float_record(k) for k in ("F32", "F16", "BF16")]
    records += [gguf_record(*item) for item in GGUF.items()]
    records += [affine_record(*a) for a in AFFINE]
    records += [mx_record("mxfp4", 4, 32), mx_record("mxfp8", 8, 32), mx_record("nvfp4", 4, 16)]
    with open(sys.argv[1], "wb") as f:
        for name, bits, group, kind, codes, scales, biases, out in records:
            codes, scales, biases = raw_bytes(codes), raw_bytes(scales), raw_bytes(biases)
            values = np.array(out).astype(np.float32).reshape(ROWS, COLS)
            assert np.isfinite(values).all(), name
            f.write(f"{name} {bits} {group} {ROWS} {COLS} {kind} {len(codes)} {len(scales)} {len(biases)}\n".encode())
            f.write(codes + scales + biases + values.tobytes())


main()
