"""POST /v1/embeddings over the scripted engine (vector = prompt length, then its first tokens; one token a byte), and over a real model."""
import base64
import json
import math
import struct

import openai
import pytest
from serving import ROOT

END = 258  # <|endoftext|> of the scripted tokenizer


@pytest.fixture(scope="module")
def embedder():
    from serving import Server
    s = Server("--embeds", 1)
    yield s
    s.stop()


def ask(server, **body):
    status, _, data = server.call("POST", "/v1/embeddings", body)
    return status, json.loads(data)


def unit(v):
    n = math.sqrt(sum(x * x for x in v))
    return [x / n for x in v]


def near(a, b):
    return len(a) == len(b) and all(abs(x - y) < 1e-6 for x, y in zip(a, b))


def test_one_text(embedder):
    status, r = ask(embedder, input="ab", model="anything")
    assert status == 200 and r["object"] == "list" and r["model"] == "test/scripted"
    assert near(r["data"][0]["embedding"], unit([3, 97, 98, END, 0, 0, 0, 0]))
    assert r["data"][0]["index"] == 0 and r["data"][0]["object"] == "embedding"
    assert r["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_many_texts_keep_their_order(embedder):
    texts = [chr(97 + i % 26) * (1 + i % 7) for i in range(300)]
    status, r = ask(embedder, input=texts)
    assert status == 200 and [d["index"] for d in r["data"]] == list(range(300))
    for text, d in zip(texts, r["data"]):
        assert near(d["embedding"], unit(([len(text) + 1] + list(text.encode()) + [END] + [0] * 8)[:8]))
    embedder.wait_metric("hearth_requests_running", 0)


def test_nul_in_the_text_beside_an_instruction(embedder):
    _, r = ask(embedder, input="a\0" + "b" * 50, instruction="c\0d")
    assert r["usage"]["prompt_tokens"] == len("Instruct: c.d\nQuery:a.") + 50 + 1


def test_instruction(embedder):
    _, r = ask(embedder, input="x", instruction="find")
    assert r["usage"]["prompt_tokens"] == len("Instruct: find\nQuery:x") + 1
    assert near(r["data"][0]["embedding"], unit([23] + list(b"Instruc")))


def test_base64_and_dimensions(embedder):
    _, r = ask(embedder, input="ab", encoding_format="base64", dimensions=3)
    assert near(struct.unpack("<3f", base64.b64decode(r["data"][0]["embedding"])), unit([3, 97, 98]))
    _, r = ask(embedder, input="ab", dimensions=8, encoding_format="float")
    assert len(r["data"][0]["embedding"]) == 8


@pytest.mark.parametrize("body, param", [
    ({}, "input"), ({"input": ""}, "input[0]"), ({"input": []}, "input"), ({"input": [1, 2]}, "input[0]"), ({"input": [[1]]}, "input[0]"),
    ({"input": ["a", ""]}, "input[1]"), ({"input": {"a": 1}}, "input"), ({"input": ["a"] * 2049}, "input"), ({"input": 5}, "input"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 9}, "dimensions"),
    ({"input": "a", "dimensions": "8"}, "dimensions"), ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "instruction": 1}, "instruction"), ({"input": "a", "input_type": "query"}, "input_type"),
])
def test_refused(embedder, body, param):
    status, r = ask(embedder, **body)
    assert status == 400 and r["error"]["param"] == param and r["error"]["type"] == "invalid_request_error", r


def test_too_long(embedder):
    status, r = ask(embedder, input=["a", "b" * 9000])
    assert status == 400 and r["error"]["param"] == "input[1]" and r["error"]["code"] == "context_over_budget"
    status, r = ask(embedder, input="b" * 8190)
    assert status == 200 and r["usage"]["prompt_tokens"] == 8191


def test_other_models_refuse(server):
    status, r = ask(server, input="a")
    assert status == 400 and "not an embedding model" in r["error"]["message"]


def test_unknown_fields_are_told(embedder):
    status, headers, _ = embedder.call("POST", "/v1/embeddings", {"input": "a", "user": "u", "shiny": 1})
    assert status == 200 and headers["Warning"] == '299 hearth "unknown fields were ignored: shiny"'


def test_a_small_queue_is_no_obstacle(start):
    s = start("--embeds", 1, "--queue-max", 3)
    status, r = ask(s, input=["text %d" % i for i in range(50)])
    assert status == 200 and len(r["data"]) == 50


def test_openai_sdk(embedder):
    client = openai.OpenAI(base_url=embedder.url + "/v1", api_key="k", max_retries=0)
    r = client.embeddings.create(model="m", input=["ab", "c"])  # it asks for base64 by itself
    assert near(r.data[0].embedding, unit([3, 97, 98, END, 0, 0, 0, 0])) and len(r.data) == 2


def test_golden_over_http(real):
    """Qwen3-Embedding: the golden's tokens as a text (the model's tokenizer has one character a token)."""
    raw = (ROOT / "tests/data/models/qwen3_embedding/golden.bin").read_bytes()
    n, width, at = *struct.unpack_from("<2i", raw, 4), 12
    texts, vectors = [], []
    for _ in range(n):
        k, = struct.unpack_from("<i", raw, at)
        texts.append("".join(chr(0x4E00 + i) for i in struct.unpack_from(f"<{k - 1}i", raw, at + 4)))  # the end token is added
        vectors.append(struct.unpack_from(f"<{width}f", raw, at + 4 + 4 * k))
        at += 4 + 4 * k + 4 * width
    s = real("tests/data/models/qwen3_embedding", "--numerics", "f32")
    at = [i for i, t in enumerate(texts) if t]  # one golden is the end token alone: no text
    status, r = ask(s, input=[texts[i] for i in at])
    assert status == 200, r
    for d, i in zip(r["data"], at):
        assert max(abs(a - b) for a, b in zip(d["embedding"], vectors[i])) < 2e-6
    for width in (16, 32):
        _, r = ask(s, input=texts[at[0]], dimensions=width)
        assert near(r["data"][0]["embedding"], unit(vectors[at[0]][:width]))
    model = json.loads(s.call("GET", "/v1/models")[2])["data"][0]
    assert model["embeddings"] and model["capabilities"]["embeddings"]


def test_models_of_the_store_are_listed(real, tmp_path, monkeypatch):
    monkeypatch.setenv("HEARTH_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/other").symlink_to(ROOT / "tests/data/models/llama-q4")
    (tmp_path / "models/broken").mkdir()
    s = real("tests/data/models/qwen3_embedding")
    first, *others = json.loads(s.call("GET", "/v1/models")[2])["data"]
    assert first["embeddings"] and first["capabilities"]["chat_completions"] is False and first["system_fingerprint"].startswith("hearth-")
    mine = [m for m in others if m["id"] == "other"]
    assert mine and mine[0]["tier"] in ("targeted", "generic") and mine[0]["vision"] is False and not any(m["id"] == "broken" for m in others)
