"""/v1/responses over the scripted engine: shapes, events, what is remembered, and the openai package."""
import json
import os
import sqlite3
import stat
import subprocess
import time

import openai
import pytest


def say(script):
    return "script:" + json.dumps(script)


def ask(server, input, headers=None, **fields):
    status, got, data = server.call("POST", "/v1/responses", {"model": "m", "input": input, **fields}, headers)
    return status, json.loads(data), got


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def prompt(server, items, **fields):
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    status, r, _ = ask(server, [*items, {"role": "user", "content": say({"echo": "prompt"})}], **fields)
    assert status == 200, r
    return text_of(r)


def events(server, input, headers=None, **fields):
    status, got, data = server.call("POST", "/v1/responses", {"model": "m", "input": input, "stream": True, **fields}, headers)
    assert status == 200 and got["Content-Type"] == "text/event-stream", data
    found = []
    for frame in data.decode().strip().split("\n\n"):
        if frame.startswith(":"):
            continue
        name, _, body = frame.partition("\n")
        body = json.loads(body.removeprefix("data: "))
        assert name == "event: " + body["type"]
        found.append(body)
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    return found


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


# ---- whole -----------------------------------------------------------------------------------------------------------
def test_reply_shape(server):
    status, r, _ = ask(server, say({"text": "<think>hm</think>Hello."}), metadata={"k": "v"}, temperature=0.5, instructions="Be kind.")
    assert status == 200 and r["id"].startswith("resp_") and r["object"] == "response" and r["status"] == "completed"
    assert [i["type"] for i in r["output"]] == ["reasoning", "message"]
    assert r["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}] and r["output"][0]["id"].startswith("rs_")
    message = r["output"][1]
    assert message["id"].startswith("msg_") and message["role"] == "assistant" and message["status"] == "completed"
    assert message["content"] == [{"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}]
    assert r["metadata"] == {"k": "v"} and r["temperature"] == 0.5 and r["instructions"] == "Be kind."
    assert r["error"] is None and r["incomplete_details"] is None and r["store"] is True and r["tools"] == [] and r["tool_choice"] == "auto"
    u = r["usage"]
    assert u["output_tokens"] == len("<think>hm</think>Hello.") and u["total_tokens"] == u["input_tokens"] + u["output_tokens"]
    assert u["input_tokens_details"] == {"cached_tokens": 0} and "reasoning_tokens" in u["output_tokens_details"]


def test_incomplete(server):
    _, r, _ = ask(server, say({"text": "one two"}), max_output_tokens=3)
    assert r["status"] == "incomplete" and r["incomplete_details"] == {"reason": "max_output_tokens"} and r["max_output_tokens"] == 3
    assert r["output"][0]["status"] == "incomplete" and text_of(r) == "one"


# ---- stream ----------------------------------------------------------------------------------------------------------
def test_events(server):
    found = events(server, say({"text": "<think>ab</think>cd", "delay_ms": 2}))
    kinds = [k for i, k in enumerate(e["type"] for e in found) if i == 0 or found[i - 1]["type"] != k]
    assert kinds == ["response.created", "response.in_progress",
                     "response.output_item.added", "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
                     "response.reasoning_summary_text.done", "response.reasoning_summary_part.done", "response.output_item.done",
                     "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                     "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    assert "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta") == "cd"
    assert "".join(e["delta"] for e in found if e["type"] == "response.reasoning_summary_text.delta") == "ab"
    last = found[-1]["response"]
    assert last["output"] == [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert {e["response"]["id"] for e in found if "response" in e} == {last["id"]}
    assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["output"] == [] and found[0]["response"]["usage"] is None
    ids = [e["item"]["id"] for e in found if e["type"] == "response.output_item.added"]
    for e in found:
        if "item_id" in e:
            assert e["item_id"] == ids[e["output_index"]]


def test_incomplete_stream(server):
    found = events(server, say({"text": "one two"}), max_output_tokens=3)
    assert found[-1]["type"] == "response.incomplete" and found[-1]["response"]["status"] == "incomplete"
    found = events(server, say({"text": "one two"}), {"originator": "codex_cli_rs"}, max_output_tokens=3)
    assert found[-1]["type"] == "response.completed" and found[-1]["response"]["status"] == "incomplete"


def test_error_inside_a_stream(server):
    found = events(server, say({"text": "abc", "fail": "broken", "fail_at": 2}))
    assert found[-2]["type"] == "error" and found[-2]["message"] == "broken" and found[-2]["code"] == "server_error"
    assert found[-1]["type"] == "response.failed" and found[-1]["response"]["error"]["message"] == "broken"


def test_logprobs(server):
    fields = {"top_logprobs": 2, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
    _, r, _ = ask(server, say({"text": "hi"}), **fields)
    entries = r["output"][0]["content"][0]["logprobs"]
    assert [e["token"] for e in entries] == ["h", "i"] and len(entries[0]["top_logprobs"]) == 2 and entries[0]["bytes"] == [104]
    found = events(server, say({"text": "<think>x</think>hi"}), **fields)
    streamed = [x for e in found if e["type"] == "response.output_text.delta" for x in e["logprobs"]]
    assert [e["token"] for e in streamed][-2:] == ["h", "i"]
    assert found[-1]["response"]["output"][1]["content"][0]["logprobs"] == streamed


# ---- the request -----------------------------------------------------------------------------------------------------
def test_roles_and_instructions(server):
    text = prompt(server, [{"role": "developer", "content": "D"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u1"}]},
                           {"role": "assistant", "content": [{"type": "output_text", "text": "a1"}]}], instructions="I")
    assert text.startswith("system\nI\n\nD\nuser\nu1\nassistant\na1\nuser\n")


def test_tool_items(server):
    """peers case 075: output as parts; calls in a row are one turn."""
    text = prompt(server, [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thought"}], "encrypted_content": "zz"},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "output_text", "text": "12:"}, {"type": "input_text", "text": "00"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "13:00"}],
        tools=[{"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}])
    assert "tool\n12:00\ntool\n13:00\n" in text and text.count("assistant\n") == 2


def test_known_fields_without_effect(server):  # peers case 077
    status, _, headers = ask(server, "hi", store=False, prompt_cache_key="k", service_tier="auto", client_metadata={"a": 1}, text={"verbosity": "low"},
                             reasoning={"effort": "low", "summary": "auto"}, parallel_tool_calls=True, truncation="auto", user="u",
                             stream_options={"include_obfuscation": False}, max_tool_calls=3)
    assert status == 200 and headers["Warning"] is None


def test_effort_reaches_the_template(server):
    assert prompt(server, "x", reasoning={"effort": "medium"}).endswith("(think effort=medium>")
    assert prompt(server, "x", reasoning={"effort": "none"}).endswith("(think>\n\n(/think>\n\n")


def test_hosted_tools_and_unknown_items_are_told(server):  # peers case 046
    status, _, headers = ask(server, [{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "w"}],
                             tools=[{"type": "web_search"}, {"type": "custom", "name": "x"}, {"type": "namespace", "name": "mcp"},
                                    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}], brand_new=1,
                             include=["file_search_call.results"])
    assert status == 200
    for word in ("tools[web_search]", "tools[custom]", "tools[namespace]", "input[web_search_call]", "brand_new", "include[file_search_call.results]"):
        assert word in headers["Warning"], headers["Warning"]


@pytest.mark.parametrize("fields, param", [
    ({"input": 5}, "input"), ({}, "input"), ({"input": None}, "input"), ({"input": [5]}, "input[0]"), ({"input": "x", "max_output_tokens": "a"}, "max_output_tokens"),
    ({"input": "x", "background": True}, "background"), ({"input": "x", "conversation": "c"}, "conversation"), ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
    ({"input": "x", "tools": 5}, "tools"), ({"input": "x", "tools": [{"type": "function"}]}, "tools[0]"), ({"input": "x", "tool_choice": 5}, "tool_choice"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"), ({"input": "x", "reasoning": "high"}, "reasoning"),
    ({"input": "x", "reasoning": {"effort": "huge"}}, "reasoning.effort"), ({"input": "x", "store": "yes"}, "store"), ({"input": "x", "include": "all"}, "include"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"), ({"input": "x", "top_logprobs": 21}, "top_logprobs"),
    ({"input": "x", "stop": ["a"] * 10000}, "stop"),
])
def test_bad_requests(server, fields, param):
    status, _, data = server.call("POST", "/v1/responses", fields)
    e = json.loads(data)["error"]
    assert status == 400 and e["param"] == param and e["type"] == "invalid_request_error", e


# ---- what is remembered ------------------------------------------------------------------------------------------------
def test_conversation_goes_on(server):
    _, first, _ = ask(server, say({"text": "<think>t</think>one"}), instructions="Rule.")
    _, second, _ = ask(server, [{"role": "user", "content": say({"text": "two"})}], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["instructions"] == "Rule."  # inherited
    status, r, _ = ask(server, say({"echo": "prompt"}), previous_response_id=second["id"], instructions="New.")
    text = text_of(r)
    assert text.startswith("system\nNew.\nuser\n") and "assistant\none\nuser\n" in text and "assistant\ntwo\nuser\n" in text
    assert r["usage"]["input_tokens"] > second["usage"]["input_tokens"]


def test_streams_are_remembered_too(server):
    found = events(server, say({"text": "streamed"}))
    status, _, data = server.call("GET", "/v1/responses/" + found[-1]["response"]["id"])
    assert status == 200 and json.loads(data) == found[-1]["response"]


def test_get_items_delete(server):
    _, r, _ = ask(server, [{"role": "user", "content": f"m{i}"} for i in range(5)])
    path = "/v1/responses/" + r["id"]
    assert json.loads(server.call("GET", path)[2]) == r

    def items(query=""):
        status, _, data = server.call("GET", path + "/input_items" + query)
        return status, json.loads(data)

    _, page = items()
    assert [i["content"][0]["text"] for i in page["data"]] == ["m4", "m3", "m2", "m1", "m0"] and not page["has_more"]
    assert page["object"] == "list" and page["data"][0]["type"] == "message" and page["first_id"] == page["data"][0]["id"]
    _, page = items("?order=asc&limit=2")
    assert [i["content"][0]["text"] for i in page["data"]] == ["m0", "m1"] and page["has_more"]
    _, page = items("?order=asc&limit=2&after=" + page["last_id"])
    assert [i["content"][0]["text"] for i in page["data"]] == ["m2", "m3"]
    assert items("?limit=0")[0] == 400 and items("?order=up")[0] == 400
    status, _, data = server.call("DELETE", path)
    assert status == 200 and json.loads(data) == {"id": r["id"], "object": "response", "deleted": True}
    for method, where in (("GET", path), ("DELETE", path), ("GET", path + "/input_items")):
        assert server.call(method, where)[0] == 404
    status, gone, _ = ask(server, "x", previous_response_id=r["id"])
    assert status == 404 and gone["error"]["param"] == "previous_response_id"


def test_stats(start):
    s = start("--response-ttl", 60)
    ids = [ask(s, "x")[1]["id"] for _ in range(3)]
    s.call("DELETE", "/v1/responses/" + ids[0])  # waits for what is on its way
    st = json.loads(s.call("GET", "/stats")[2])["response_store"]
    assert st["entries"] == 2 and 1000 < st["bytes"] < st["max_bytes"] == 32 << 20 and st["ttl_ms"] == 60000


def test_store_false(server):
    _, r, _ = ask(server, "x", store=False)
    assert r["store"] is False and server.call("GET", "/v1/responses/" + r["id"])[0] == 404


def test_a_server_without_a_store_says_so(start):
    s = start("--response-store", "off")
    _, r, _ = ask(s, "x", store=True)
    assert r["store"] is False
    status, r, _ = ask(s, "x", previous_response_id=r["id"])
    assert status == 400 and r["error"]["param"] == "previous_response_id"


def test_survives_a_restart(start, tmp_path):
    file = tmp_path / "responses.sqlite"
    a = start("--response-store", file)
    _, r, _ = ask(a, say({"text": "before"}))
    a.stop()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    b = start("--response-store", file)
    _, r2, _ = ask(b, say({"echo": "prompt"}), previous_response_id=r["id"])
    assert "assistant\nbefore\nuser\n" in text_of(r2)
    for f in tmp_path.iterdir():
        assert stat.S_IMODE(os.stat(f).st_mode) == 0o600


def test_limits_of_the_store(start, tmp_path):
    file = tmp_path / "responses.sqlite"
    s = start("--response-store", file, "--response-bytes", 20000)
    ids = [ask(s, "x" * 1000)[1]["id"] for _ in range(20)]
    found = [s.call("GET", "/v1/responses/" + i)[0] == 200 for i in ids]
    assert found[-1] and not found[0] and sum(found) < 12
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT sum(bytes) FROM response").fetchone()[0] <= 20000
    status, r, _ = ask(s, "y" * 7000, instructions="z" * 900, metadata={"m": "w" * 9000})  # more than the store holds: served, not kept
    assert status == 200 and s.call("GET", "/v1/responses/" + r["id"])[0] == 404 and s.call("GET", "/v1/responses/" + ids[-1])[0] == 200


def test_responses_expire(start):
    s = start("--response-ttl", 1)
    _, r, _ = ask(s, "x")
    assert s.call("GET", "/v1/responses/" + r["id"])[0] == 200
    time.sleep(2.1)
    assert s.call("GET", "/v1/responses/" + r["id"])[0] == 404


def test_items_without_a_role_or_with_another_are_refused(server):
    for item in ({}, {"content": "x"}, {"role": 5, "content": "x"}, {"role": "tool", "content": "x"}, {"type": 5, "role": "user", "content": "x"}):
        status, r, _ = ask(server, [{"role": "user", "content": "x"}, item])
        assert status == 400 and "input[1]" in r["error"]["message"] + str(r["error"]["param"]), r


def test_a_full_disk(start, tmp_path):
    """What cannot be kept is a loss of memory only, and leaves no halves; once there is room all is as before."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120k,mode=700", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        traces = tmp_path / "t"
        traces.mkdir()
        s = start("--response-store", tmp_path / "r.sqlite", "--trace", traces)
        lost = 0
        for _ in range(9):
            status, r, _ = ask(s, "x" * 6000, max_output_tokens=5)
            assert status == 200
            lost += s.call("GET", "/v1/responses/" + r["id"])[0] == 404
        assert lost and any("cannot be written" in line for line in s.log)
        for f in traces.iterdir():
            json.loads(f.read_text())
            f.unlink()
        _, r, _ = ask(s, "x")
        assert s.call("GET", "/v1/responses/" + r["id"])[0] == 200
        s.stop()
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_damaged_store_is_put_aside(start, tmp_path):
    file = tmp_path / "responses.sqlite"
    file.write_bytes(b"this is no database, it is a text of some length" * 100)
    s = start("--response-store", file)
    _, r, _ = ask(s, "x")
    assert s.call("GET", "/v1/responses/" + r["id"])[0] == 200 and (tmp_path / "responses.sqlite.damaged").exists()


def test_keys_do_not_see_each_other(start):
    s = start("--api-key", "alice", "--api-key", "bob")

    def who(name):
        return {"Authorization": "Bearer " + name}

    _, r, _ = ask(s, "x", who("alice"))
    assert s.call("GET", "/v1/responses/" + r["id"], None, who("alice"))[0] == 200
    assert s.call("GET", "/v1/responses/" + r["id"], None, {"x-api-key": "alice"})[0] == 200
    assert s.call("GET", "/v1/responses/" + r["id"], None, who("bob"))[0] == 404
    assert s.call("DELETE", "/v1/responses/" + r["id"], None, who("bob"))[0] == 404
    assert ask(s, "y", who("bob"), previous_response_id=r["id"])[0] == 404


def test_the_owner_is_the_key_that_let_in(start):
    s = start("--api-key", "alice", "--api-key", "bob")

    def behind_proxy(name):  # one Authorization for all, of another scheme: it is no key
        return {"Authorization": "Basic cHJveHk6cHJveHk=", "x-api-key": name}

    _, r, _ = ask(s, "x", behind_proxy("alice"))
    path = "/v1/responses/" + r["id"]
    assert s.call("GET", path, None, behind_proxy("bob"))[0] == 404
    assert ask(s, "y", behind_proxy("bob"), previous_response_id=r["id"])[0] == 404
    for same in ({"x-api-key": "alice"}, {"Authorization": "Bearer  alice"}, behind_proxy("alice")):
        assert s.call("GET", path, None, same)[0] == 200


def test_input_tokens(server):
    status, _, data = server.call("POST", "/v1/responses/input_tokens", {"input": "hello", "model": "m"})
    assert status == 200 and json.loads(data)["input_tokens"] == ask(server, "hello")[1]["usage"]["input_tokens"]


# ---- the openai package ------------------------------------------------------------------------------------------------
def test_sdk(client):
    r = client.responses.create(model="m", input=say({"text": "<think>x</think>Hi"}))
    assert r.output_text == "Hi"
    again = client.responses.create(model="m", input=say({"text": "again"}), previous_response_id=r.id)
    assert client.responses.retrieve(again.id).output_text == "again"
    assert [i.type for i in client.responses.input_items.list(again.id)] == ["message"]
    client.responses.delete(again.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(again.id)


def test_sdk_stream(client):
    with client.responses.stream(model="m", input=say({"text": "<think>why</think>Hello", "prefill": [9, 3, 2]})) as s:
        text = "".join(e.delta for e in s if e.type == "response.output_text.delta")
        final = s.get_final_response()
    assert text == "Hello" and final.output_text == "Hello" and final.usage.output_tokens == len("<think>why</think>Hello")


# ---- tools -----------------------------------------------------------------------------------------------------------
TOOLS = [{"type": "function", "name": "get_weather", "description": "d", "strict": False,
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}]


def call_text(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


TWO_CALLS = "<think>need</think>Looking." + call_text("get_weather", {"city": "Oslo", "days": 2}) + "\n" + call_text("get_weather", {"city": "Rome"})


def test_calls(server):
    _, r, _ = ask(server, say({"text": TWO_CALLS}), tools=TOOLS)
    assert [i["type"] for i in r["output"]] == ["reasoning", "message", "function_call", "function_call"], r
    first, second = r["output"][2:]
    assert first["name"] == "get_weather" and json.loads(first["arguments"]) == {"city": "Oslo", "days": 2} and first["status"] == "completed"
    assert first["id"].startswith("fc_") and first["call_id"].startswith("call_") and first["call_id"] != second["call_id"]
    assert r["tools"] == TOOLS and r["status"] == "completed"


def test_calls_in_a_stream(server):
    found = events(server, say({"text": TWO_CALLS, "delay_ms": 1}), tools=TOOLS)
    added = [e["item"]["type"] for e in found if e["type"] == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    done = [e for e in found if e["type"] == "response.function_call_arguments.done"]
    assert [json.loads(e["arguments"])["city"] for e in done] == ["Oslo", "Rome"] and [e["output_index"] for e in done] == [2, 3]
    deltas = "".join(e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta" and e["output_index"] == 2)
    assert deltas == done[0]["arguments"]
    assert found[-1]["response"]["output"] == [e["item"] for e in found if e["type"] == "response.output_item.done"]


def test_agent_loop_with_previous_response(client):
    """Call, output, answer, with the conversation kept by the server; the call's turn comes back into the prompt."""
    first = client.responses.create(model="m", input=say({"text": "<think>t</think>" + call_text("get_weather", {"city": "Oslo"})}), tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    second = client.responses.create(model="m", previous_response_id=first.id, tools=TOOLS,
                                     input=[{"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees"},
                                            {"role": "user", "content": say({"echo": "prompt"})}])
    assert 'assistant\n[get_weather {"city": "Oslo"}]' in second.output_text and "tool\n4 degrees\nuser\n" in second.output_text


def test_allowed_tools(server):
    more = [*TOOLS, {"type": "function", "name": "other", "parameters": {"type": "object", "properties": {}}}]
    text = prompt(server, "x", tools=more, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]})
    assert '"other"' in text and "get_weather" not in text


# ---- structured output -----------------------------------------------------------------------------------------------
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}}, "required": ["city", "big"],
          "additionalProperties": False}


def test_text_format(real):
    """A small trained model, sampled hot: whatever it wants to say, it is what the schema allows."""
    s = real("tests/data/models/drafter-4bit")
    form = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        for stream in (False, True):
            fields = {"text": form, "temperature": 1.5, "seed": seed, "reasoning": {"effort": "none"}, "max_output_tokens": 200}
            if stream:
                r = events(s, "Tell me about a city", **fields)[-1]["response"]
            else:
                _, r, _ = ask(s, "Tell me about a city", **fields)
            v = json.loads(text_of(r))
            assert set(v) == {"city", "big"} and isinstance(v["city"], str) and isinstance(v["big"], bool)
            assert r["text"]["format"]["name"] == "place"


def test_sdk_parse(client):
    import pydantic

    class Place(pydantic.BaseModel):
        city: str
        big: bool

    r = client.responses.parse(model="m", input=say({"text": '{"city":"Oslo","big":false}'}), text_format=Place)
    assert r.output_parsed == Place(city="Oslo", big=False)
    c = client.chat.completions.parse(model="m", messages=[{"role": "user", "content": say({"text": '{"city":"Oslo","big":true}'})}], response_format=Place)
    assert c.choices[0].message.parsed == Place(city="Oslo", big=True)


def test_bad_schema_names_its_place(server):
    status, _, data = server.call("POST", "/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "fish"}}}})
    e = json.loads(data)["error"]
    assert status == 400 and e["param"].startswith("text.format.schema"), e
    status, _, data = server.call("POST", "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}],
                                                           "output_config": {"format": {"type": "json_schema", "schema": {"type": "fish"}}}})
    assert status == 400 and "output_config.format.schema" in json.loads(data)["error"]["message"]
