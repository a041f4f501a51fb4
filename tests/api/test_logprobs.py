"""Log-probabilities in their three shapes: OpenAI's, the old completions', mlx-lm's."""
import json

import pytest


def ask(server, path="/v1/chat/completions", **fields):
    script = 'script:{"text":"hé"}'
    body = {"prompt": script} if path == "/v1/completions" else {"messages": [{"role": "user", "content": script}]}
    status, _, data = server.call("POST", path, {**body, **fields})
    return status, json.loads(data)


def test_openai_bytes_of_half_characters(server):  # peers case 071
    _, r = ask(server, logprobs=True, top_logprobs=20)
    content = r["choices"][0]["logprobs"]["content"]
    assert [e["bytes"] for e in content] == [[104], [195], [169]] and len(content[0]["top_logprobs"]) == 20
    assert bytes(b for e in content for b in e["bytes"]).decode() == r["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_mlx_shape(server, path):
    k = {"top_logprobs": 2} if path != "/v1/completions" else {"logprobs": 2}
    _, r = ask(server, path, logprobs_format="mlx_lm", **{"logprobs": True, **k})
    content = r["choices"][0]["logprobs"]["content"]
    assert [sorted(e) for e in content] == [["id", "logprob", "token", "top_logprobs"]] * 3
    assert content[0]["id"] == 104 and content[0]["token"] == "h" and content[1]["token"] == "Ã"  # the vocabulary's spelling
    assert [t["id"] for t in content[0]["top_logprobs"]] == [104, 105] and content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"]
    _, r = ask(server, path, logprobs_format="mlx_lm", logprobs=True)
    assert r["choices"][0]["logprobs"]["content"][0] == {"id": 104, "logprob": -0.25}


def test_mlx_limits(server):
    assert ask(server, logprobs_format="mlx_lm", logprobs=True, top_logprobs=11)[0] == 200
    status, r = ask(server, logprobs_format="mlx_lm", logprobs=True, top_logprobs=12)
    assert status == 400 and r["error"]["param"] == "top_logprobs"
    status, r = ask(server, logprobs_format="other")
    assert status == 400 and r["error"]["param"] == "logprobs_format"
    _, r = ask(server, logprobs_format="mlx_lm", logprobs=True, max_tokens=0)
    assert "logprobs" not in r["choices"][0]  # no tokens, no key


def test_mlx_has_none_in_streams(server):
    frames, _ = server.stream({"text": "hi"}, logprobs=True, logprobs_format="mlx_lm")
    assert not any("logprobs" in c for f in frames if isinstance(f, dict) for c in f["choices"])
