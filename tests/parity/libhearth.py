"""libhearth through ctypes, as far as the parity tests need it: open, encode, generate greedily, many at a time."""
import ctypes as c
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


class OpenOpts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("numerics", c.c_char_p), ("threads", c.c_int), ("context_length", c.c_int),
                ("memory_budget", c.c_uint64), ("batch", c.c_int), ("kv_quant", c.c_char_p)]


class GenOpts(c.Structure):
    _fields_ = [("size", c.c_size_t), ("max_tokens", c.c_int32), ("temperature", c.c_float), ("top_p", c.c_float),
                ("top_k", c.c_int32), ("min_p", c.c_float), ("repetition_penalty", c.c_float),
                ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float), ("penalty_window", c.c_int32),
                ("has_seed", c.c_bool), ("seed", c.c_uint64), ("stops", c.c_void_p), ("n_stops", c.c_size_t),
                ("top_logprobs", c.c_int32), ("ignore_eos", c.c_bool), ("split_thinking", c.c_bool)]


class Token(c.Structure):
    _fields_ = [("size", c.c_size_t), ("text", c.c_void_p), ("n", c.c_size_t), ("id", c.c_int32), ("logprob", c.c_float),
                ("top", c.c_void_p), ("n_top", c.c_int32), ("reasoning", c.c_bool)]


def library():
    lib = c.CDLL(os.environ.get("HEARTH_LIB", str(ROOT / "build/libhearth.so")))
    lib.hearth_error.restype = c.c_char_p
    return lib


class Model:
    def __init__(self, path, numerics="default", batch=16, threads=0):
        self.lib, self.p = library(), c.c_void_p()
        opts = OpenOpts(size=c.sizeof(OpenOpts), numerics=numerics.encode(), batch=batch, threads=threads)
        self.batch = batch
        self.ok(self.lib.hearth_open(str(path).encode(), c.byref(opts), c.byref(self.p)))

    def ok(self, code):
        if code < 0:
            raise RuntimeError(self.lib.hearth_error().decode())
        return code

    def close(self):
        self.lib.hearth_close(self.p)

    def encode(self, text):
        ids, n, raw = c.POINTER(c.c_int32)(), c.c_size_t(), text.encode()
        self.ok(self.lib.hearth_encode(self.p, raw, c.c_size_t(len(raw)), True, False, c.byref(ids), c.byref(n)))
        out = ids[: n.value]
        c.CDLL(None).free(ids)
        return out

    def decode(self, ids):
        text, n = c.c_void_p(), c.c_size_t()
        self.ok(self.lib.hearth_decode(self.p, (c.c_int32 * len(ids))(*ids), c.c_size_t(len(ids)), False, c.byref(text), c.byref(n)))
        out = c.string_at(text, n.value).decode()
        c.CDLL(None).free(text)
        return out

    def greedy(self, ids, max_tokens):
        """The reply's ids, without the token that ends it."""
        gen, token, out = c.c_void_p(), Token(size=c.sizeof(Token)), []
        opts = GenOpts(size=c.sizeof(GenOpts), max_tokens=max_tokens, top_p=1, repetition_penalty=1, top_logprobs=-1)
        self.ok(self.lib.hearth_gen_start(self.p, (c.c_int32 * len(ids))(*ids), c.c_size_t(len(ids)), c.byref(opts), c.byref(gen)))
        try:
            while self.ok(self.lib.hearth_gen_next(gen, c.byref(token))):
                if token.id >= 0:
                    out.append(token.id)
        finally:
            self.lib.hearth_gen_free(gen)
        return out

    def greedy_all(self, prompts, max_tokens):
        with ThreadPoolExecutor(self.batch + 4) as pool:
            return list(pool.map(lambda ids: self.greedy(ids, max_tokens), prompts))
