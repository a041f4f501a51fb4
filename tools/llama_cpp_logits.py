#!/usr/bin/env python3
"""Logits of every position as llama.cpp computes them (llama-cpp-python, f32 cache): llama_cpp_logits.py MODEL.gguf IDS OUT.npy.
IDS: comma-separated. A program of its own, because llama.cpp aborts where it should fail."""
import sys
import llama_cpp as L
import numpy as np


def main():
    path, ids, out = sys.argv[1], [int(t) for t in sys.argv[2].split(",")], sys.argv[3]
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.type_k, params.type_v = 512, 512, 1, 0, 0
    params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it computes in f16
    context = L.llama_init_from_model(model, params)
    batch = L.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, t in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = t, i, 1, 1
        batch.seq_id[i][0] = 0
    assert L.llama_decode(context, batch) == 0
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
    np.save(out, np.ctypeslib.as_array(L.llama_get_logits(context), (len(ids), vocab)))


if __name__ == "__main__":
    main()
