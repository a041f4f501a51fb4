"""litellm: the OpenAI and the Anthropic way, streams, tools, embeddings, responses."""
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no network
import litellm  # noqa: E402
import pytest  # noqa: E402

litellm.telemetry = False
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def say(script):
    return [{"role": "user", "content": "script:" + json.dumps(script)}]


@pytest.fixture(params=["openai", "anthropic"])
def way(request, server):
    base = server.url + ("/v1" if request.param == "openai" else "")
    return {"model": request.param + "/scripted", "api_base": base, "api_key": "k"}


def test_whole(way):
    r = litellm.completion(messages=say({"text": "<think>hm</think>Hello."}), max_tokens=100, **way)
    assert r.choices[0].message.content == "Hello." and r.choices[0].message.reasoning_content == "hm"
    assert r.choices[0].finish_reason == "stop" and r.usage.completion_tokens == len("<think>hm</think>Hello.")


def test_stream(way):
    chunks = list(litellm.completion(messages=say({"text": "Hello there."}), max_tokens=100, stream=True, **way))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there."


def test_tools(way):
    for stream in (False, True):
        r = litellm.completion(messages=say({"text": CALL}), tools=TOOLS, max_tokens=500, stream=stream, **way)
        if stream:
            r = litellm.stream_chunk_builder(list(r))
        call = r.choices[0].message.tool_calls[0]
        assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Oslo"}
        assert r.choices[0].finish_reason == "tool_calls"


def test_tool_result_goes_back(way):
    r = litellm.completion(messages=say({"text": CALL}), tools=TOOLS, max_tokens=500, **way)
    m = r.choices[0].message
    history = [*say({"text": CALL}), m.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "4 degrees"}, *say({"echo": "prompt"})]
    r = litellm.completion(messages=history, tools=TOOLS, max_tokens=2000, **way)
    assert "tool\n4 degrees\n" in r.choices[0].message.content


def test_errors(way):
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=say({"text": "x"}), temperature=-5, **way)


def test_embeddings_and_text(server):
    way = {"model": "openai/scripted", "api_base": server.url + "/v1", "api_key": "k"}
    assert len(litellm.embedding(input=["a", "b"], **way).data) == 2
    r = litellm.text_completion(prompt='script:{"text":"sea"}', model="text-completion-openai/scripted", api_base=server.url + "/v1", api_key="k")
    assert r.choices[0].text == "sea"


def test_responses(server):
    r = litellm.responses(model="openai/scripted", input=say({"text": "Hi"}), api_base=server.url + "/v1", api_key="k")
    assert r.output[0].content[0].text == "Hi"
