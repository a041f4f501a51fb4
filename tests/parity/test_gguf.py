"""A GGUF with the weights of an MLX checkpoint gives the checkpoint's logits, and llama.cpp, reading the same file, agrees."""
import importlib.util, json, struct, subprocess, sys
from pathlib import Path
import numpy as np
import pytest
from libhearth import Model
from test_logits import ROOT, SHARED, run

DATA = ROOT / "tests/data/models"
MODELS = """llama_plain-q4 llama_tied-q4 minicpm5-q4 qwen2-q4 qwen3-q4 smollm3-q4 olmo2-q4 granite-q4 glm4-q4 phi3-q4 starcoder2-q4""".split()


def golden(name):
    """The short prompt of the goldens of the model's own definition, and its rows."""
    own = DATA / name / "definition.bin"
    raw = (own if own.exists() else DATA / name / "golden.bin").read_bytes()
    V, short, long, pos, dec = struct.unpack_from("<5i", raw, 4)
    ids = np.frombuffer(raw, "<i4", short, 32)
    return ids, np.frombuffer(raw, "<f4", short * V, 32 + 4 * (short + long + pos + dec)).reshape(short, V)


GEMMA = [
    "gemma-q4", "gemma2-q4", "gemma3_text-q4", "gemma3-q4", "gemma4_12b-q4", "gemma4_e4b-q4", "gemma4_e2b-q4", "gemma4_26b-q4",
    "gemma2-odd", "gemma3-odd", "gemma4-odd",
]  # fmt: skip
LATENT = ["deepseek_v3-q4"]
QWEN = ["qwen3_moe-q4", "qwen3_5_4b-q4", "qwen3_5_27b-q4", "qwen3_5_moe-q4", "qwen3_5-odd", "qwen3_next-odd"]


@pytest.fixture(scope="module", params=[*MODELS, *GEMMA, *QWEN, *LATENT])
def made(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / f"{request.param}.gguf"
    tool = "make_gguf_gemma.py" if request.param in GEMMA else "make_gguf_qwen.py" if request.param in QWEN else "make_gguf.py"
    tool = "make_gguf_mla.py" if request.param in LATENT else tool
    subprocess.run([sys.executable, ROOT / "tools" / tool, DATA / request.param, path, "F32"], check=True)
    return path, *golden(request.param)


def test_hearth(made, tmp_path):
    path, ids, rows = made
    assert np.abs(run(tmp_path, path, ids)["logits"] - rows).max() < 5e-4


@pytest.mark.skipif(not importlib.util.find_spec("llama_cpp"), reason="llama-cpp-python is not installed")
def test_llama_cpp(made, tmp_path):
    path, ids, rows = made
    if path.stem in ("qwen3_5_27b-q4", "qwen3_5-odd"):
        pytest.skip("llama.cpp takes a value head to be as wide as a key head")
    subprocess.run([sys.executable, ROOT / "tools/llama_cpp_logits.py", path, ",".join(map(str, ids)), tmp_path / "out.npy"], check=True)
    bound = 2e-2 if path.stem in [*GEMMA, "starcoder2-q4"] else 5e-4  # llama.cpp looks gelu up in a table of f16
    assert np.abs(np.load(tmp_path / "out.npy") - rows).max() < bound


@pytest.mark.skipif(not SHARED, reason="HEARTH_SHARED is not set")
def test_nano_gemma(tmp_path):
    """A whole trained model as GGUF: vocabulary, ends of turns and weights are the checkpoint's."""
    source, path = Path(SHARED) / "nano/gemma-4bit", tmp_path / "gemma.gguf"
    subprocess.run([sys.executable, ROOT / "tools/make_gguf_gemma.py", source, path, "F32"], check=True)
    prompts = [case["prompt"] for case in json.loads(source.with_name("gemma-4bit-expected.json").read_text())]
    texts = []
    for model in (source, path):
        m = Model(model, "f32")
        ids = [m.encode(p) for p in prompts]
        texts.append((ids, [m.decode(t) for t in m.greedy_all(ids[::8], 200)]))
        m.close()
    assert texts[0] == texts[1]
