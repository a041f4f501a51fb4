"""The openai package, unmodified."""
import json
import time

import openai
import pytest


def ask(script):
    return [{"role": "user", "content": "script:" + json.dumps(script)}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_whole(client):
    r = client.chat.completions.create(model="m", messages=ask({"text": "Hello."}))
    assert r.choices[0].message.content == "Hello." and r.usage.completion_tokens == 6
    r = client.completions.create(model="m", prompt='script:{"text":"sea"}')
    assert r.choices[0].text == "sea"


def test_stream(client):
    stream = client.chat.completions.create(model="m", messages=ask({"text": "Hello.", "prefill": [10, 5, 1]}), stream=True,
                                            stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello."
    assert chunks[-1].usage.completion_tokens == 6


def test_stream_helper(client):
    with client.chat.completions.stream(model="m", messages=ask({"text": "Hello."}), logprobs=True, top_logprobs=2) as s:
        final = s.get_final_completion()
    assert final.choices[0].message.content == "Hello."
    assert len(final.choices[0].logprobs.content) == 6


def test_models(client):
    names = [m.id for m in client.models.list()]
    assert names == ["test/scripted"]
    assert client.models.retrieve("test/scripted").id == "test/scripted"


def test_errors(client, start):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="m", messages=[], temperature=-1)
    assert e.value.param in ("messages", "temperature")
    with pytest.raises(openai.APIError, match="the device broke"):
        list(client.chat.completions.create(model="m", messages=ask({"text": "abc", "fail": "the device broke"}), stream=True))
    full = start("--queue-max", 1)
    other = openai.OpenAI(base_url=full.url + "/v1", api_key="none", max_retries=0)
    held = other.chat.completions.create(model="m", messages=ask({"text": "a", "endless": True, "delay_ms": 20}), stream=True)
    next(iter(held))
    with pytest.raises(openai.RateLimitError) as e:
        other.chat.completions.create(model="m", messages=ask({"text": "a"}))
    assert e.value.response.headers["retry-after"] == "1" and e.value.code == "queue_full"
    held.close()
    keyed = start("--api-key", "sesame")
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=keyed.url + "/v1", api_key="wrong", max_retries=0).models.list()
    assert openai.OpenAI(base_url=keyed.url + "/v1", api_key="sesame", max_retries=0).models.list().data


def test_cancel(client, server):
    before = server.metric("hearth_requests_cancelled_total")
    stream = client.chat.completions.create(model="m", messages=ask({"text": "tick ", "endless": True, "delay_ms": 50}), stream=True)
    for i, _ in enumerate(stream):
        if i == 3:
            break
    t = time.time()
    stream.close()
    server.wait_metric("hearth_requests_cancelled_total", before + 1)
    assert time.time() - t < 4
