"""The small trained models answer as recorded: exactly where the recording is beyond doubt, and as often right over all prompts.

Collected only with HEARTH_SHARED=DIR (`./dev test full DIR`), DIR holding nano (its README says how the recordings were made).
"""
import json, os
from pathlib import Path
import pytest
from libhearth import Model
from test_logits import known_types

SHARED = os.environ.get("HEARTH_SHARED")
NANO = Path(SHARED) / "nano" if SHARED else None
STOPS = ("<|im_end|>", "<|endoftext|>", "<turn|>", "<eos>", "<|tool_response>")
MAX_TOKENS = 640
# Recorded right by the luck of bf16: in f32, transformers too gives another answer to these prompts, token for token ours (sort, add,
# count and pattern; margins below 0.52, greedy_is_generated false).
LUCKY = {"drafter-4bit": 4}

pytestmark = pytest.mark.skipif(not SHARED, reason="HEARTH_SHARED is not set")


def models():
    for recorded in sorted(NANO.glob("*-expected.json")) if NANO else []:
        name = recorded.name.removesuffix("-expected.json")
        config = json.loads((NANO / name / "config.json").read_text())
        if config["model_type"] in known_types():
            yield name


def cut_stop(text):
    for stop in STOPS:
        text = text.removesuffix(stop)
    return text


def is_right(case, text):
    """What follows the thinking is what was asked for."""
    return cut_stop(text).split("</think>")[-1].split("<channel|>")[-1].strip() == case["expect"].strip()


@pytest.mark.parametrize("numerics", ["default", "f32"])
@pytest.mark.parametrize("name", models())
def test_nano(name, numerics):
    cases = json.loads((NANO / f"{name}-expected.json").read_text())
    m = Model(NANO / name, numerics)
    prompts = [m.encode(case["prompt"]) for case in cases]
    assert [len(p) for p in prompts] == [case["prompt_tokens"] for case in cases]
    texts = [m.decode(ids) for ids in m.greedy_all(prompts, MAX_TOKENS)]
    m.close()
    sure = [i for i, case in enumerate(cases) if case["ok"] and case["greedy_is_generated"] and case["min_margin"] > 1]
    assert len(sure) > 100
    wrong = [(cases[i]["task"], texts[i], cases[i]["generated"]) for i in sure if texts[i] != cut_stop(cases[i]["generated"])]
    assert not wrong, f"{len(wrong)} of {len(sure)} differ; the first: {wrong[0]}"
    assert sum(is_right(case, case["generated"]) != case["ok"] for case in cases) == 0  # the rule is the recording's
    right, recorded = sum(map(is_right, cases, texts)), sum(case["ok"] for case in cases)
    print(f"{name}, {numerics}: {len(sure)} of {len(sure)} exactly as recorded, {right} right, recorded {recorded}")
    assert right >= recorded - LUCKY.get(name, 0) - 0.01 * len(cases)
