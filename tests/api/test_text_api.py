"""/tokenize, /detokenize."""
import json

import pytest


def ask(server, path, **body):
    status, _, data = server.call("POST", path, body)
    return status, json.loads(data)


def test_tokenize(server):
    assert ask(server, "/tokenize", content="hé") == (200, {"tokens": [104, 195, 169], "count": 3, "max_model_len": 8192})
    assert ask(server, "/tokenize", prompt="a")[1]["tokens"] == [97]  # vLLM's name
    assert ask(server, "/tokenize", content="<|im_end|>")[1]["tokens"] == [257]
    assert len(ask(server, "/tokenize", content="<|im_end|>", parse_special=False)[1]["tokens"]) == 10
    assert ask(server, "/tokenize", content="")[1]["tokens"] == []


def test_pieces(server):
    _, r = ask(server, "/tokenize", content="aé", with_pieces=True)
    assert r["tokens"] == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]


def test_detokenize(server):
    assert ask(server, "/detokenize", tokens=[104, 195, 169, 257]) == (200, {"content": "hé<|im_end|>"})
    assert ask(server, "/detokenize", tokens=[104, 257], skip_special_tokens=True)[1]["content"] == "h"
    assert ask(server, "/detokenize", tokens=[195])[1]["content"] == "\ufffd"
    assert ask(server, "/detokenize", tokens=[])[1]["content"] == ""


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "content"), ("/tokenize", {"content": 1}, "content"), ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {"tokens": [1, 999999]}, "tokens"),
    ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [1.5]}, "tokens"),
])
def test_refused(server, path, body, param):
    status, r = ask(server, path, **body)
    assert status == 400 and r["error"]["param"] == param, r


def test_apply_template(server):
    _, r = ask(server, "/apply-template", messages=[{"role": "user", "content": "a<|im_end|>"}], reasoning_effort="low")
    assert r["prompt"] == "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n<think effort=low>"
    assert r["count"] == len(r["tokens"]) and r["tokens"].count(257) == 1  # the client's stays text
    status, r = ask(server, "/apply-template", messages=[])
    assert status == 400 and r["error"]["param"] == "messages"
