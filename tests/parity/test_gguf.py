"""A GGUF with the weights of an MLX checkpoint gives the checkpoint's logits, and llama.cpp, reading the same file, agrees."""
import importlib.util, struct, subprocess, sys
import numpy as np
import pytest
from test_logits import ROOT, run

DATA = ROOT / "tests/data/models"
MODELS = """llama_plain-q4 llama_tied-q4 minicpm5-q4 qwen2-q4 qwen3-q4 smollm3-q4 olmo2-q4 granite-q4 glm4-q4 phi3-q4 starcoder2-q4""".split()


def golden(name):
    """The short prompt of the goldens of the model's own definition, and its rows."""
    own = DATA / name / "definition.bin"
    raw = (own if own.exists() else DATA / name / "golden.bin").read_bytes()
    V, short, long, pos, dec = struct.unpack_from("<5i", raw, 4)
    ids = np.frombuffer(raw, "<i4", short, 32)
    return ids, np.frombuffer(raw, "<f4", short * V, 32 + 4 * (short + long + pos + dec)).reshape(short, V)


@pytest.fixture(scope="module", params=MODELS)
def made(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    subprocess.run([sys.executable, ROOT / "tools/make_gguf.py", DATA / request.param, path, "F32"], check=True)
    return path, *golden(request.param)


def test_hearth(made, tmp_path):
    path, ids, rows = made
    assert np.abs(run(tmp_path, path, ids)["logits"] - rows).max() < 5e-4


@pytest.mark.skipif(not importlib.util.find_spec("llama_cpp"), reason="llama-cpp-python is not installed")
def test_llama_cpp(made, tmp_path):
    path, ids, rows = made
    subprocess.run([sys.executable, ROOT / "tools/llama_cpp_logits.py", path, ",".join(map(str, ids)), tmp_path / "out.npy"], check=True)
    bound = 1e-2 if "starcoder2" in str(path) else 5e-4  # its gelu is looked up in a table of f16
    assert np.abs(np.load(tmp_path / "out.npy") - rows).max() < bound
