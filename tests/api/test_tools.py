"""Tool calls and thinking budgets through /v1/chat/completions; the parser's own cases are tests/unit/calls_test.c."""
import json

import openai
import pytest

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
PING = {"type": "function", "function": {"name": "ping"}}
TOOLS = [WEATHER, PING]


def call(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def calls_of(choice):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in choice["message"].get("tool_calls", [])]


def collect(frames):
    """What a client makes of a stream: one dict a choice."""
    out = {}
    for f in frames:
        for c in f["choices"] if isinstance(f, dict) else []:
            o = out.setdefault(c["index"], {"content": "", "reasoning": "", "calls": [], "finish": None})
            d = c["delta"]
            o["content"] += d.get("content") or ""
            o["reasoning"] += d.get("reasoning_content") or ""
            for t in d.get("tool_calls", []):
                if t["index"] == len(o["calls"]):
                    o["calls"].append({"id": t["id"], "name": t["function"]["name"], "arguments": "", "pieces": 0})
                    assert t["type"] == "function" and t["function"]["arguments"] == ""
                else:
                    assert "id" not in t and "name" not in t["function"]
                    o["calls"][t["index"]]["arguments"] += t["function"]["arguments"]
                    o["calls"][t["index"]]["pieces"] += 1
            o["finish"] = c["finish_reason"] or o["finish"]
    return out


def test_whole(server):
    status, r = server.chat({"text": "I look.\n" + call("get_weather", city="Oslo", days=2) + "\n" + call("ping")}, tools=TOOLS)
    assert status == 200
    c = r["choices"][0]
    assert c["finish_reason"] == "tool_calls" and c["message"]["content"] == "I look."
    assert calls_of(c) == [("get_weather", {"city": "Oslo", "days": 2}), ("ping", {})]
    ids = [t["id"] for t in c["message"]["tool_calls"]]
    assert len(set(ids)) == 2 and all(i.startswith("call_") and len(i) == 13 for i in ids)
    assert all(t["type"] == "function" for t in c["message"]["tool_calls"])
    _, r = server.chat({"text": call("ping")}, tools=TOOLS)
    assert r["choices"][0]["message"]["content"] is None


def test_stream_is_whole(server):
    text = "<think>\nhm\n</think>\n\nWait.\n" + call("get_weather", city="Köln 😀" * 30) + call("ping") + "\nend"
    _, r = server.chat({"text": text}, tools=TOOLS)
    frames, _ = server.stream({"text": text}, tools=TOOLS)
    s, m = collect(frames)[0], r["choices"][0]["message"]
    assert s["content"] == m["content"] == "Wait.\nend" and s["reasoning"] == m["reasoning_content"] == "hm"
    assert [(c["name"], c["arguments"]) for c in s["calls"]] == [(t["function"]["name"], t["function"]["arguments"]) for t in m["tool_calls"]]
    assert s["finish"] == "tool_calls" and frames[-1] == "[DONE]"
    assert s["calls"][0]["pieces"] > 5  # it streams


def test_logprobs_of_calls_are_all_there(server):
    text = "a" + call("ping") + "b"
    frames, _ = server.stream({"text": text}, tools=TOOLS, logprobs=True)
    items = [i for f in frames if isinstance(f, dict) for c in f["choices"] for i in (c.get("logprobs") or {}).get("content", [])]
    assert "".join(i["token"] for i in items) == text
    _, r = server.chat({"text": text}, tools=TOOLS, logprobs=True)
    assert "".join(i["token"] for i in r["choices"][0]["logprobs"]["content"]) == text


def test_one_call_only(server):
    text = call("ping") + call("get_weather", city="x") + "more"
    for stream in (False, True):
        if stream:
            o = collect(server.stream({"text": text}, tools=TOOLS, parallel_tool_calls=False)[0])[0]
            got, finish, content = [c["name"] for c in o["calls"]], o["finish"], o["content"]
        else:
            c = server.chat({"text": text}, tools=TOOLS, parallel_tool_calls=False)[1]["choices"][0]
            got, finish, content = [n for n, _ in calls_of(c)], c["finish_reason"], c["message"]["content"] or ""
        assert got == ["ping"] and finish == "tool_calls" and content == ""


def test_choices(server):
    text = "x" + call("ping")
    _, r = server.chat({"text": text}, tools=TOOLS, n=3)
    assert [calls_of(c) for c in r["choices"]] == [[("ping", {})]] * 3
    assert len({c["message"]["tool_calls"][0]["id"] for c in r["choices"]}) == 3
    streamed = collect(server.stream({"text": text}, tools=TOOLS, n=3)[0])
    assert [(streamed[i]["content"], streamed[i]["calls"][0]["name"], streamed[i]["finish"]) for i in range(3)] == [("x", "ping", "tool_calls")] * 3


def test_none_and_without(server):
    for fields in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": []}, {}):
        _, r = server.chat({"echo": "prompt"}, **fields)
        assert "tools" not in r["choices"][0]["message"]["content"].split("\n")[0]
    _, r = server.chat({"echo": "prompt"}, tools=TOOLS)
    assert "get_weather" in r["choices"][0]["message"]["content"]


def test_what_is_no_call_is_content(server):
    for text in (call("unknown", a=1), "<tool_call>\n{bad}\n</tool_call>", "a <tool_call> b", call("ping")[:-16]):
        _, r = server.chat({"text": text}, tools=TOOLS)
        c = r["choices"][0]
        assert c["message"]["content"] == text and c["finish_reason"] == "stop" and "tool_calls" not in c["message"]


def test_cut_by_length(server):
    text = call("get_weather", city="y" * 200)
    _, r = server.chat({"text": text}, tools=TOOLS, max_tokens=40)
    c = r["choices"][0]
    assert c["finish_reason"] == "length" and c["message"]["content"] == text[:40] and "tool_calls" not in c["message"]
    _, r = server.chat({"text": text}, tools=TOOLS, max_tokens=180)  # the call is on its way already
    c = r["choices"][0]
    t = c["message"]["tool_calls"][0]["function"]
    assert c["finish_reason"] == "length" and t["arguments"] and text[:180].endswith(t["arguments"])


def test_stop_strings_do_not_look_into_calls(server):
    text = "go " + call("get_weather", city="STOP") + " STOP it"
    for _, r in (server.chat({"text": text}, tools=TOOLS, stop=["STOP"]),):
        c = r["choices"][0]
        assert calls_of(c) == [("get_weather", {"city": "STOP"})] and c["message"]["content"] == "go "
    _, r = server.chat({"text": "a STOP" + call("ping")}, tools=TOOLS, stop="STOP")
    assert r["choices"][0]["message"] == {"role": "assistant", "content": "a "} and r["choices"][0]["finish_reason"] == "stop"


def test_history_with_calls(server):
    history = [{"role": "user", "content": "weather?"},
               {"role": "assistant", "content": None, "tool_calls": [
                   {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}},
                   {"id": "c2", "type": "function", "function": {"name": "ping", "arguments": ""}}]},
               {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3C"}]},
               {"role": "tool", "tool_call_id": "c2", "content": "pong"},
               {"role": "user", "content": 'script:{"echo":"prompt"}'}]
    status, _, data = server.call("POST", "/v1/chat/completions", {"messages": history, "tools": TOOLS})
    text = json.loads(data)["choices"][0]["message"]["content"]
    assert status == 200 and '[get_weather {"city": "Oslo"}][ping {}]' in text and "3C" in text and "pong" in text


@pytest.mark.parametrize("fields,param", [
    ({"tools": "x"}, "tools"), ({"tools": [1]}, "tools[0]"), ({"tools": [{"type": "function", "function": 1}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "name": "f", "parameters": []}]}, "tools[0].parameters"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"), ({"thinking": {"type": "x"}}, "thinking.type"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"), ({"reasoning": {"effort": "turbo"}}, "reasoning_effort"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"), ({"enable_thinking": 1}, "enable_thinking")])
def test_refused(server, fields, param):
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], **fields})
    assert status == 400 and e["param"] == param and param.split("[")[0].split(".")[0] in e["message"]


def test_hosted_tools_are_left_out_with_a_warning(server):
    body = {"messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "web_search"}, {"type": "custom", "name": "x"}, {"type": "function", "name": "flat", "parameters": {}}]}
    status, headers, data = server.call("POST", "/v1/chat/completions", body)
    assert status == 200 and "tools.web_search" in headers["Warning"] and "tools.custom" in headers["Warning"]


def test_schemas_reach_templates_with_types(server):
    tool = {"name": "f", "parameters": {"properties": {
        "a": {"enum": [1, 2]}, "b": {"items": {"const": "x"}}, "c": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        "d": {"type": ["null", "integer"]}, "e": {"$ref": "#/$defs/E"}, "f": {}}, "$defs": {"E": {"properties": {"z": {"description": "q"}}}}}}
    _, r = server.chat({"echo": "prompt"}, tools=[tool])
    text = r["choices"][0]["message"]["content"].split("tools\n", 1)[1]
    p = json.JSONDecoder().raw_decode(text)[0][0]["function"]["parameters"]
    assert p["type"] == "object"
    assert {k: v["type"] for k, v in p["properties"].items()} == {"a": "integer", "b": "array", "c": "number", "d": "integer", "e": "object", "f": "string"}
    assert p["properties"]["b"]["items"]["type"] == "string" and p["$defs"]["E"]["properties"]["z"]["type"] == "string"


OPEN = {"chat_template_kwargs": {"open_thinking": True}}


def test_budget_closes_the_block(server):
    for stream in (False, True):
        fields = {**OPEN, "thinking_token_budget": 10, "max_tokens": 200}
        if stream:
            o = collect(server.stream({"text": "0123456789answer"}, **fields)[0])[0]
        else:
            m = server.chat({"text": "0123456789answer"}, **fields)[1]["choices"][0]["message"]
            o = {"reasoning": m["reasoning"], "content": m["content"]}
        assert o["reasoning"] == "0123456789" and o["content"] == "answer"


def test_budget_zero(server):
    m = server.chat({"text": "answer"}, **OPEN, thinking_token_budget=0)[1]["choices"][0]["message"]
    assert m == {"role": "assistant", "content": "answer"}


@pytest.mark.parametrize("max_tokens", [24, 30, 60, 100])
def test_budget_leaves_room(server, max_tokens):
    m = server.chat({"text": "t" * 100, "endless": True}, **OPEN, thinking_token_budget=50000, max_tokens=max_tokens)[1]["choices"][0]["message"]
    assert len(m["content"]) >= max_tokens // 2 and len(m["content"]) + len(m.get("reasoning", "")) <= max_tokens


def test_without_a_budget_nothing_is_forced(server):
    c = server.chat({"text": "t" * 100}, **OPEN, max_tokens=20)[1]["choices"][0]
    assert c["message"]["reasoning"] == "t" * 20 and c["message"]["content"] == "" and c["finish_reason"] == "length"


def test_anthropic_and_openrouter_forms(server):
    for fields in ({"thinking": {"type": "enabled", "budget_tokens": 4}}, {"reasoning": {"max_tokens": 4}}):
        m = server.chat({"text": "abcdefgh"}, **OPEN, **fields)[1]["choices"][0]["message"]
        assert m["reasoning"] == "abcd" and m["content"] == "efgh"
    _, r = server.chat({"echo": "prompt"}, thinking={"type": "disabled"})
    assert r["choices"][0]["message"]["content"].endswith("(think>\n\n(/think>\n\n")
    _, r = server.chat({"echo": "prompt"}, reasoning={"effort": "high"})
    assert r["choices"][0]["message"]["content"].endswith("(think effort=xhigh>")


def test_sdk_accumulates(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    text = "script:" + json.dumps({"text": "Hm." + call("get_weather", city="Oslo", days=3)})
    with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": text}], tools=TOOLS) as s:
        kinds = {e.type for e in s}
        final = s.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds and final.finish_reason == "tool_calls"
    assert json.loads(final.message.tool_calls[0].function.arguments) == {"city": "Oslo", "days": 3} and final.message.content == "Hm."


LAST = {"role": "user", "content": 'script:{"echo":"prompt"}'}


def prompt_of(server, *messages, **fields):
    status, _, data = server.call("POST", "/v1/chat/completions", {"messages": [*messages, LAST], **fields})
    assert status == 200, data
    return json.loads(data)["choices"][0]["message"]["content"]


def test_arguments_in_every_form(server):
    texts = {prompt_of(server, {"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": f}]},
                       {"role": "tool", "tool_call_id": "1", "content": "12:00"})
             for f in ({"name": "now", "arguments": a} for a in ("", "null", "{}", " ", None, {}))}
    assert len(texts) == 1 and "[now {}]" in texts.pop()
    for content in (None, ""):
        assert prompt_of(server, {"role": "user", "content": "a"}, {"role": "assistant", "content": content, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": None})
    status, e = server.error({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}]}]})
    assert status == 400 and e["param"] == "messages[0].tool_calls" and "prompt build failed" in e["message"]


def test_header_lines_of_agents_are_dropped(server, start):
    head = "x-anthropic-billing-header: cc_version=2.1; cch=%s;"
    texts = {prompt_of(server, {"role": "system", "content": head % nonce + "\nYou are a tool."}) for nonce in ("aaaa", "bbbb")}
    assert len(texts) == 1 and "billing" not in texts.copy().pop() and "You are a tool." in texts.pop()
    assert "billing" in prompt_of(server, {"role": "user", "content": head % "user"})
    assert "x-anthropic thing: y" in prompt_of(server, {"role": "system", "content": "x-anthropic thing: y"})
