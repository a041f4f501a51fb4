"""POST /v1/messages: Anthropic's shapes over the scripted engine, raw and with the anthropic package."""
import json

import anthropic
import pytest


def say(script):
    return [{"role": "user", "content": "script:" + json.dumps(script)}]


def ask(server, messages, path="/v1/messages", **fields):
    status, headers, data = server.call("POST", path, {"model": "m", "max_tokens": 1000, "messages": messages, **fields})
    return status, json.loads(data), headers


def prompt(server, messages, **fields):
    """What the messages look like in the prompt ("(" for "<")."""
    status, r, _ = ask(server, [*messages, *say({"echo": "prompt"})], **fields)
    assert status == 200, r
    return "".join(b.get("text", "") for b in r["content"])


def events(server, messages, **fields):
    status, headers, data = server.call("POST", "/v1/messages", {"model": "m", "max_tokens": 1000, "stream": True, "messages": messages, **fields})
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    found = []
    for frame in data.decode().strip().split("\n\n"):
        name, _, body = frame.partition("\n")
        body = json.loads(body.removeprefix("data: "))
        assert name == "event: " + body["type"]
        found.append(body)
    return found


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


# ---- whole -----------------------------------------------------------------------------------------------------------
def test_reply_shape(server):
    status, r, headers = ask(server, say({"text": "Hello."}))
    assert status == 200 and headers["request-id"].startswith("req_")
    assert r["id"].startswith("msg_") and r["type"] == "message" and r["role"] == "assistant" and r["model"] == "test/scripted"
    assert r["content"] == [{"type": "text", "text": "Hello."}] and r["stop_reason"] == "end_turn" and r["stop_sequence"] is None
    assert r["usage"]["output_tokens"] == 6 and r["usage"]["input_tokens"] > 10


def test_thinking_comes_first(server):
    _, r, _ = ask(server, say({"text": "<think>hmm</think>Yes"}))
    assert r["content"] == [{"type": "thinking", "thinking": "hmm", "signature": ""}, {"type": "text", "text": "Yes"}]


def test_stop_reasons(server):
    _, r, _ = ask(server, say({"text": "one two three"}), stop_sequences=["xx", "two"])
    assert r["content"][0]["text"] == "one " and r["stop_reason"] == "stop_sequence" and r["stop_sequence"] == "two"
    _, r, _ = ask(server, say({"text": "one two three"}), max_tokens=3)
    assert r["stop_reason"] == "max_tokens" and r["usage"]["output_tokens"] == 3


def test_empty_reply(server):
    _, r, _ = ask(server, say({"text": ""}))
    assert r["content"] == [{"type": "text", "text": ""}]


# ---- stream ----------------------------------------------------------------------------------------------------------
def test_stream(server):
    found = events(server, say({"text": "<think>ab</think>cd", "delay_ms": 3}))
    kinds = [e["type"] for e in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert found[0]["message"]["content"] == [] and found[0]["message"]["usage"]["input_tokens"] > 10
    starts = [e for e in found if e["type"] == "content_block_start"]
    assert [(e["index"], e["content_block"]["type"]) for e in starts] == [(0, "thinking"), (1, "text")]
    deltas = [e for e in found if e["type"] == "content_block_delta"]
    assert "".join(e["delta"].get("thinking", "") for e in deltas) == "ab" and "".join(e["delta"].get("text", "") for e in deltas) == "cd"
    last_thought = [e for e in deltas if e["index"] == 0][-1]
    assert last_thought["delta"] == {"type": "signature_delta", "signature": ""}
    open_block = None
    for e in found:  # one block at a time, opened and closed in order
        if e["type"] == "content_block_start":
            assert open_block is None
            open_block = e["index"]
        elif e["type"] == "content_block_delta":
            assert e["index"] == open_block
        elif e["type"] == "content_block_stop":
            assert e["index"] == open_block
            open_block = None
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None} and found[-2]["usage"]["output_tokens"] == 19


def test_stream_of_nothing_has_a_block(server):
    kinds = [e["type"] for e in events(server, say({"text": ""}))]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_pings(server):
    kinds = [e["type"] for e in events(server, say({"text": "a", "prefill": [30, 10, 5]}))]
    assert kinds[0] == "message_start" and kinds.count("ping") == 3


def test_error_inside_a_stream(server):
    found = events(server, say({"text": "abc", "fail": "broken", "fail_at": 2}))
    assert found[-1]["type"] == "error" and found[-1]["error"] == {"type": "api_error", "message": "broken"}


# ---- the request -----------------------------------------------------------------------------------------------------
def test_system_and_blocks(server):
    text = prompt(server, [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                           {"role": "assistant", "content": "c"}],
                  system=[{"type": "text", "text": "S1", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "S2"}])
    assert text.startswith("system\nS1\nS2\nuser\na\nb\nassistant\nc\n")
    assert prompt(server, [], system="one").startswith("system\none\n")


def test_tool_results_come_before_text(server):
    """peers case 081: foreign signatures, redacted thinking, results in front of the text of their turn."""
    text = prompt(server, [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "r", "signature": "anything"}, {"type": "redacted_thinking", "data": "zz"},
                                          {"type": "text", "text": "b"}, {"type": "tool_use", "id": "t1", "name": "now", "input": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
                                                                        "content": [{"type": "text", "text": "12"}]}]}])
    assert text.index("tool\n12\n") < text.index("user\ngo on\n") and "zz" not in text and "anything" not in text


def test_system_role_inside(server):  # peers case 080
    text = prompt(server, [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "yo"}]},
                           {"role": "system", "content": "reminder"}])
    assert "reminder" in text


@pytest.mark.parametrize("block, word", [
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}, "image"),
    ({"type": "document", "source": {}}, "document"),
    ({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}, "image"),
])
def test_media_is_refused_by_name(server, block, word):
    status, r, _ = ask(server, [{"role": "user", "content": [{"type": "text", "text": "a"}, block]}])
    assert status == 400 and r["error"]["type"] == "invalid_request_error" and f'"{word}"' in r["error"]["message"]
    assert "messages[0].content[1]" in r["error"]["message"]


def test_other_blocks_and_tools_are_told(server):
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "mcp_tool_use", "id": "x"}]}],
            "tools": tools, "brand_new": 1, "metadata": {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []}}
    status, headers, _ = server.call("POST", "/v1/messages", body, {"anthropic-version": "2023-06-01", "anthropic-beta": "x-2099"})
    assert status == 200
    for word in ("tools[web_search_20250305]", "tools[bash_20250124]", "content[mcp_tool_use]", "brand_new"):
        assert word in headers["Warning"]
    assert "metadata" not in headers["Warning"] and "context_management" not in headers["Warning"]


@pytest.mark.parametrize("fields, word", [
    ({"messages": []}, "messages"), ({"messages": "x"}, "messages"), ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "role"), ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    ({"max_tokens": "many"}, "max_tokens"), ({"temperature": -1}, "temperature"), ({"stop_sequences": 5}, "stop_sequences"),
    ({"stop_sequences": ["a"] * 10000}, "stop_sequences"), ({"system": 5}, "system"), ({"tools": {}}, "tools"), ({"tools": [{"type": "custom"}]}, "tools[0]"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice"), ({"thinking": {"type": "perhaps"}}, "thinking"),
    ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "budget_tokens"), ({"output_config": {"effort": "huge"}}, "effort"),
    ({"container": "c"}, "container"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id"),
])
def test_bad_requests(server, fields, word):
    status, _, data = server.call("POST", "/v1/messages", {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "x"}], **fields})
    r = json.loads(data)
    assert status == 400 and r["type"] == "error" and r["error"]["type"] == "invalid_request_error" and word in r["error"]["message"], r
    assert r["request_id"].startswith("req_")


@pytest.mark.parametrize("fields, tail", [
    ({"thinking": {"type": "disabled"}}, "assistant\n(think>\n\n(/think>\n\n"),
    ({"thinking": {"type": "enabled"}, "output_config": {"effort": "medium"}}, "(think effort=medium>"),
    ({"output_config": {"effort": "max"}}, "(think effort=xhigh>"),
    ({"output_config": {"effort": "low"}}, "(think effort=low>"),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "assistant\n(think>\n\n(/think>\n\n"),
])
def test_thinking_controls(server, fields, tail):
    assert prompt(server, [], **fields).endswith(tail)


def test_settings(server):
    _, r, _ = ask(server, say({"echo": "sampling"}), temperature=0.25, top_k=7, top_p=0.5, stop_sequences=["zz"])
    s = json.loads(r["content"][0]["text"])
    assert (s["temperature"], s["top_k"], s["top_p"], s["n_stops"], s["max_tokens"]) == (0.25, 7, 0.5, 1, 1000)


def test_count_tokens(server):
    messages = [{"role": "user", "content": "hello"}]
    status, r, headers = ask(server, messages, path="/v1/messages/count_tokens")
    assert status == 200 and headers["request-id"]
    assert r == {"input_tokens": ask(server, messages)[1]["usage"]["input_tokens"]}
    longer = ask(server, messages, path="/v1/messages/count_tokens", system="more")[1]["input_tokens"]
    assert longer > r["input_tokens"] + 4


def test_errors_have_anthropics_shape(server, start):
    for method, path in (("GET", "/v1/messages"), ("PUT", "/v1/messages/count_tokens")):
        status, _, data = server.call(method, path, None)
        assert status == 405 and json.loads(data)["type"] == "error"
    status, _, data = server.call("POST", "/v1/messages/unknown", {})
    assert status == 404 and json.loads(data)["error"]["type"] == "not_found_error"
    status, _, data = server.call("POST", "/v1/messages", b"{")
    assert status == 400 and json.loads(data)["error"]["type"] == "invalid_request_error"
    keyed = start("--api-key", "k1")
    status, _, data = keyed.call("POST", "/v1/messages", {})
    assert status == 401 and json.loads(data)["error"]["type"] == "authentication_error"


# ---- the anthropic package ---------------------------------------------------------------------------------------------
def test_sdk_whole(client):
    r = client.messages.create(model="m", max_tokens=100, messages=say({"text": "<think>t</think>Hi"}))
    assert [b.type for b in r.content] == ["thinking", "text"] and r.content[1].text == "Hi" and r._request_id.startswith("req_")


def test_sdk_stream(client):
    with client.messages.stream(model="m", max_tokens=100, messages=say({"text": "<think>why</think>Hello there", "prefill": [8, 4, 2]})) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == "Hello there" and final.content[0].thinking == "why" and final.stop_reason == "end_turn"
    assert final.usage.output_tokens == len("<think>why</think>Hello there")


def test_sdk_count_and_errors(client):
    assert client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x"}]).input_tokens > 5
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(model="m", max_tokens=100, messages=[])
    assert e.value.body["error"]["type"] == "invalid_request_error"


# ---- tools -----------------------------------------------------------------------------------------------------------
TOOLS = [{"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]


def call_text(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


TWO_CALLS = "<think>need</think>Looking." + call_text("get_weather", {"city": "Ōsaka \"x\"", "days": 2}) + "\n" + call_text("get_weather", {"city": "Oslo"})


def test_tool_use(server):
    _, r, _ = ask(server, say({"text": TWO_CALLS}), tools=TOOLS)
    kinds = [b["type"] for b in r["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"] and r["stop_reason"] == "tool_use", r
    first, second = r["content"][2:]
    assert first["name"] == "get_weather" and first["input"] == {"city": "Ōsaka \"x\"", "days": 2} and first["id"].startswith("toolu_")
    assert second["input"] == {"city": "Oslo"} and second["id"] != first["id"]


def test_tool_use_in_a_stream(server):
    found = events(server, say({"text": TWO_CALLS, "delay_ms": 1}), tools=TOOLS)
    starts = [e for e in found if e["type"] == "content_block_start"]
    assert [e["content_block"]["type"] for e in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [e["index"] for e in starts] == [0, 1, 2, 3] and starts[2]["content_block"]["input"] == {}
    json_text = "".join(e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta" and e["index"] == 2)
    assert json.loads(json_text) == {"city": "Ōsaka \"x\"", "days": 2}
    stops = [e["index"] for e in found if e["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3] and found[-2]["delta"]["stop_reason"] == "tool_use"


def test_tool_choice(server):
    assert "get_weather" not in prompt(server, [], tools=TOOLS, tool_choice={"type": "none"})
    assert "get_weather" in prompt(server, [], tools=TOOLS, tool_choice={"type": "auto"})
    _, r, _ = ask(server, say({"text": TWO_CALLS}), tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b["type"] for b in r["content"]].count("tool_use") == 1


def test_sdk_agent_loop(client):
    """A tool round trip as an agent does it: call, result, answer."""
    ask_user = {"role": "user", "content": "script:" + json.dumps({"text": call_text("get_weather", {"city": "Oslo"})})}
    with client.messages.stream(model="m", max_tokens=500, messages=[ask_user], tools=TOOLS) as s:
        reply = s.get_final_message()
    use = reply.content[-1]
    assert use.type == "tool_use" and use.input == {"city": "Oslo"} and reply.stop_reason == "tool_use"
    answer = client.messages.create(model="m", max_tokens=500, tools=TOOLS, messages=[
        ask_user, {"role": "assistant", "content": [b.model_dump() for b in reply.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "4 degrees"},
                                     {"type": "text", "text": "script:" + json.dumps({"echo": "prompt"})}]}])
    assert 'assistant\n[get_weather {"city": "Oslo"}]' in answer.content[0].text and "tool\n4 degrees\nuser\n" in answer.content[0].text


def test_sdk_tool_runner(client):
    """The package's own agent loop: it calls the function and sends the result back; the second turn asks for no tool."""
    seen = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather of a city.

        Args:
            city: its name
        """
        seen.append(city)
        return 'script:{"text":"Cold."}'

    runner = client.beta.messages.tool_runner(model="m", max_tokens=500, tools=[get_weather],
                                              messages=say({"text": call_text("get_weather", {"city": "Oslo"}), "once": True}), max_iterations=2)
    messages = list(runner)
    assert seen[0] == "Oslo" and messages[0].stop_reason == "tool_use"


def test_all_surfaces_say_the_same(real):
    """One model, one question, greedy: the texts are equal, whole and in streams."""
    s = real("tests/data/models/drafter-4bit")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    texts = {}
    for stream in (False, True):
        status, _, data = s.call("POST", "/v1/chat/completions", {"messages": question, "temperature": 0, "max_tokens": 200})
        texts["chat"] = json.loads(data)["choices"][0]["message"]["content"]
        if stream:
            found = events(s, question, temperature=0, max_tokens=200)
            texts["messages stream"] = "".join(e["delta"].get("text", "") for e in found if e["type"] == "content_block_delta")
            usage = found[-2]["usage"]
        else:
            _, r, _ = ask(s, question, temperature=0, max_tokens=200)
            texts["messages"], usage = "".join(b.get("text", "") for b in r["content"]), r["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == json.loads(data)["usage"]["prompt_tokens"]
        _, _, data = s.call("POST", "/v1/responses", {"input": question, "temperature": 0, "max_output_tokens": 200})
        r = json.loads(data)
        texts["responses"] = "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])
    assert len(set(texts.values())) == 1 and len(texts) == 4 and texts["chat"], texts
