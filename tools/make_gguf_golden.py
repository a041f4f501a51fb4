#!/usr/bin/env python3
"""Writes tests/data/formats/small.gguf with the PyPI package `gguf`: every metadata type, and tensors whose values
tests/unit/gguf_test.c knows.

    python tools/make_gguf_golden.py tests/data/formats/small.gguf
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter
from gguf.quants import quantize

w = GGUFWriter(sys.argv[1], "llama")
w.add_uint8("x.u8", 255)
w.add_int8("x.i8", -128)
w.add_uint16("x.u16", 65535)
w.add_int16("x.i16", -32768)
w.add_uint32("x.u32", 2**32 - 1)
w.add_int32("x.i32", -2**31)
w.add_uint64("x.u64", 2**64 - 1)
w.add_int64("x.i64", -2**63)
w.add_float32("x.f32", 0.5)
w.add_float64("x.f64", 1e300)
w.add_bool("x.yes", True)
w.add_bool("x.no", False)
w.add_string("x.text", "a\"ü漢\n")
w.add_token_list(["<s>", "", "▁the"])
w.add_token_scores([0.0, -1.5, 2.25])
q = (np.arange(192, dtype=np.float32) / 64).reshape(3, 64)
w.add_tensor("blk.0.attn_q.weight", quantize(q, T.Q8_0), raw_dtype=T.Q8_0)
w.add_tensor("blk.0.ffn_up_exps.weight", np.arange(24, dtype=np.float16).reshape(2, 3, 4))
w.add_tensor("blk.0.attn_norm.weight", np.array([1, 2, 3, 4], dtype=np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
