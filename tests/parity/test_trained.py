"""A small trained model in a real format (Qwen3, MLX 4 bit: tests/data/README.md) answers 22 prompts of as many kinds exactly as recorded,
in both numerics, many at a time: checkpoint, tokenizer, scheduler, caches and sampler together. All 234 prompts: test_nano.py."""
import json
import pytest
from libhearth import ROOT, Model
from test_nano import MAX_TOKENS, cut_stop

FOLDER = ROOT / "tests/data/models/drafter-4bit"


@pytest.mark.parametrize("numerics", ["default", "f32"])
def test_answers(numerics):
    cases = json.loads((FOLDER / "answers.json").read_text())
    m = Model(FOLDER, numerics)
    prompts = [m.encode(case["prompt"]) for case in cases]
    assert [len(p) for p in prompts] == [case["prompt_tokens"] for case in cases]
    texts = [m.decode(ids) for ids in m.greedy_all(prompts, MAX_TOKENS)]
    m.close()
    assert len(texts) == 22
    assert texts == [cut_stop(case["generated"]) for case in cases]
