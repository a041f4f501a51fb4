"""POST /v1/chat/completions and /v1/completions: shapes, streams, fields, precedence."""
import json
import pathlib
import re

import pytest


def content(frames, key="content"):
    return "".join(f["choices"][0]["delta"].get(key) or "" for f in frames[:-1] if f["choices"])


# ---- whole replies ---------------------------------------------------------------------------------------------------
def test_reply_shape(server):
    status, r = server.chat({"text": "Hello."})
    assert status == 200
    assert r["id"].startswith("chatcmpl-") and r["object"] == "chat.completion" and r["model"] == "test/scripted"
    assert r["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]
    u = r["usage"]
    assert u["completion_tokens"] == 6 and u["total_tokens"] == u["prompt_tokens"] + 6
    assert u["prompt_tokens_details"] == {"cached_tokens": 0} and u["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert u["lane"] == "batched"


def test_length_and_max_tokens(server):
    _, r = server.chat({"text": "abcdef"}, max_tokens=3)
    assert r["choices"][0]["message"]["content"] == "abc" and r["choices"][0]["finish_reason"] == "length"
    _, r = server.chat({"text": "abcdef"}, max_tokens=3, max_completion_tokens=2)
    assert r["choices"][0]["message"]["content"] == "ab"
    _, r = server.chat({"text": "abcdef"}, max_tokens=0)
    assert r["choices"][0]["message"]["content"] == "" and r["choices"][0]["finish_reason"] == "length"
    _, r = server.chat({"text": "abcdef"}, max_tokens=-1)
    assert r["choices"][0]["message"]["content"] == "abcdef"


@pytest.mark.parametrize("bad", [-2, -223, 1.5, "5", 1e30, True, [], {}])
def test_max_tokens_out_of_range(server, bad):
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], "max_tokens": bad})
    assert status == 400 and e["param"] == "max_tokens" and e["type"] == "invalid_request_error"


def test_multibyte_text_is_whole(server):
    text = "naïve 😀 日本語"
    frames, _ = server.stream({"text": text})
    assert content(frames) == text
    assert all("�" not in json.dumps(f, ensure_ascii=False) for f in frames)
    _, r = server.chat({"text": text})
    assert r["choices"][0]["message"]["content"] == text


def test_reasoning_is_split(server):
    script = {"text": "<think>hm, 2+2</think>4"}
    _, r = server.chat(script)
    m = r["choices"][0]["message"]
    assert m["content"].strip() == "4" and m["reasoning"].strip() == "hm, 2+2" and m["reasoning_content"] == m["reasoning"]
    frames, _ = server.stream(script)
    assert content(frames).strip() == "4" and content(frames, "reasoning").strip() == "hm, 2+2"


# ---- streams ---------------------------------------------------------------------------------------------------------
def test_stream_frames(server):
    frames, _ = server.stream({"text": "Hi!"})
    assert frames[-1] == "[DONE]"
    assert {f["id"] for f in frames[:-1]} == {frames[0]["id"]}
    assert all(f["object"] == "chat.completion.chunk" and f["model"] == "test/scripted" for f in frames[:-1])
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content(frames) == "Hi!"
    last = frames[-2]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"} and last["usage"]["completion_tokens"] == 3
    assert all(f["choices"] for f in frames[:-1])
    assert all(f["choices"][0]["finish_reason"] is None and "usage" not in f for f in frames[:-2])


def test_stream_usage_on_request(server):
    frames, _ = server.stream({"text": "Hi!"}, stream_options={"include_usage": True})
    assert frames[-2]["choices"] == [] and frames[-2]["usage"]["completion_tokens"] == 3
    assert all(f["usage"] is None for f in frames[:-2])
    frames, _ = server.stream({"text": "Hi!"}, stream_options={"include_usage": False})
    assert all(f["choices"] for f in frames[:-1])
    frames, _ = server.stream({"text": "Hi!"}, stream_options={})
    assert all(f["choices"] for f in frames[:-1])


def test_stream_prefill_comments(server):
    frames, comments = server.stream({"text": "Hi!", "prefill": [300, 100, 5]})
    assert comments == [": keepalive 100/300", ": keepalive 200/300", ": keepalive 300/300"]
    assert content(frames) == "Hi!"


def test_stream_silence_comment(start):
    s = start("--keepalive", 300)
    frames, comments = s.stream({"text": "Hi!", "first_ms": 1500})
    assert comments and all(c.startswith(": keepalive") for c in comments)
    assert content(frames) == "Hi!"


def test_error_inside_a_stream(server):
    status, _, data = server.call("POST", "/v1/chat/completions", {
        "stream": True, "messages": [{"role": "user", "content": 'script:{"text":"abc","fail":"the device broke","fail_at":2}'}]})
    parts = [p for p in data.decode().split("\n\n") if p.startswith("data: ")]
    assert status == 200 and "[DONE]" not in data.decode()
    e = json.loads(parts[-1][6:])["error"]
    assert "the device broke" in e["message"] and e["type"] == "server_error"


def test_error_of_a_whole_reply(server):
    status, r = server.chat({"text": "abc", "fail": "the device broke", "fail_at": 2})
    assert status == 500 and r["error"]["message"] == "the device broke" and r["error"]["type"] == "server_error"


# ---- several choices -------------------------------------------------------------------------------------------------
def test_n_choices(server):
    _, r = server.chat({"echo": "sampling"}, n=3, seed=7)
    assert [c["index"] for c in r["choices"]] == [0, 1, 2]
    assert [json.loads(c["message"]["content"])["seed"] for c in r["choices"]] == [7, 8, 9]
    one = server.chat({"echo": "sampling"}, n=1, seed=7)[1]["usage"]
    assert r["usage"]["prompt_tokens"] == one["prompt_tokens"] and r["usage"]["completion_tokens"] == 3 * one["completion_tokens"]
    frames, _ = server.stream({"text": "ab"}, n=2)
    for i in (0, 1):
        mine = [f for f in frames[:-1] if f["choices"] and f["choices"][0]["index"] == i]
        assert content(mine + [None]) == "ab" and mine[-1]["choices"][0]["finish_reason"] == "stop"
    assert sum("usage" in f for f in frames[:-1]) == 1


@pytest.mark.parametrize("bad", [0, -1, 17, "2", 1.5])
def test_n_out_of_range(server, bad):
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], "n": bad})
    assert status == 400 and e["param"] == "n"


# ---- stop strings ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stop", ["five", ["nothing", "five"], ["five", "", "six"]])
def test_stop(server, stop):
    script = {"text": "three, four, five, six"}
    _, r = server.chat(script, stop=stop)
    assert r["choices"][0]["message"]["content"] == "three, four, " and r["choices"][0]["finish_reason"] == "stop"
    frames, _ = server.stream(script, stop=stop)
    assert content(frames) == "three, four, "


def test_held_tail_is_released(server):
    frames, _ = server.stream({"text": "abc fiv"}, stop="five")
    assert content(frames) == "abc fiv"


def test_stop_limits(server):
    base = {"messages": [{"role": "user", "content": "x"}]}
    for bad in ({"a": 1}, 5, [5], ["x"] * 257, "y" * 1025):
        status, e = server.error({**base, "stop": bad})
        assert status == 400 and e["param"] == "stop", bad


# ---- log-probabilities -----------------------------------------------------------------------------------------------
def test_logprobs(server):
    text = "é!"
    _, r = server.chat({"text": text}, logprobs=True, top_logprobs=2)
    items = r["choices"][0]["logprobs"]["content"]
    assert bytes(b for i in items for b in i["bytes"]).decode() == text
    assert [len(i["top_logprobs"]) for i in items] == [2, 2, 2]
    assert items[0]["token"] == "�" and items[2]["token"] == "!" and items[2]["logprob"] == -0.25
    assert items[2]["top_logprobs"][0] == {"token": "!", "logprob": -0.25, "bytes": [33]}


def test_logprobs_without_alternatives(server):
    for fields in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        _, r = server.chat({"text": "ab"}, **fields)
        assert [i["top_logprobs"] for i in r["choices"][0]["logprobs"]["content"]] == [[], []]
    _, r = server.chat({"text": "ab"}, logprobs=False, top_logprobs=-1)
    assert "logprobs" not in r["choices"][0]


def test_logprobs_in_streams(server):
    text = "héllo 😀 five"
    frames, _ = server.stream({"text": text}, logprobs=True, top_logprobs=1, stop="five")
    items = [i for f in frames[:-1] for i in (f["choices"][0].get("logprobs") or {}).get("content", [])]
    assert bytes(b for i in items for b in i["bytes"]).decode() == text
    assert content(frames) == "héllo 😀 "


@pytest.mark.parametrize("field,bad,message", [
    ("logprobs", 1, "logprobs must be of type bool"),
    ("top_logprobs", "2", "top_logprobs must be of type int"),
    ("top_logprobs", -2, "top_logprobs must be at least 0"),
    ("top_logprobs", 21, "top_logprobs must be at most 20"),
    ("logit_bias", {"x": 1}, "logit_bias must be a dict of int to float"),
    ("logit_bias", {"1": "a"}, "logit_bias must be a dict of int to float"),
    ("logit_bias", [], "logit_bias must be a dict of int to float"),
])
def test_messages_of_bad_fields(server, field, bad, message):
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], field: bad})
    assert status == 400 and e["param"] == field and e["message"].startswith(message)


# ---- settings --------------------------------------------------------------------------------------------------------
def settings(server, **fields):
    status, r = server.chat({"echo": "sampling"}, **fields)
    assert status == 200, r
    return json.loads(r["choices"][0]["message"]["content"])


def test_settings_reach_the_engine(server):
    s = settings(server, temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=-3, repetition_penalty=1.5, repetition_context_size=9,
                 presence_penalty=-1, presence_context_size=0, frequency_penalty=0.5, frequency_context_size=4,
                 logit_bias={"5": -100, "7": 2.5}, max_tokens=4000, ignore_eos=True, stop=["\x01", "\x02"])
    assert s == {"temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "repetition_window": 9,
                 "presence_penalty": -1, "presence_window": 0, "frequency_penalty": 0.5, "frequency_window": 4, "has_seed": 1,
                 "seed": 2**64 - 3, "max_tokens": 4000, "n_stops": 2, "ignore_eos": 1, "bias": {"5": -100, "7": 2.5}}


def test_absent_null_and_zero(server):
    absent = settings(server)
    assert absent["temperature"] == 0.7 and absent["top_p"] == 1 and absent["top_k"] == 0 and absent["has_seed"] == 0
    names = ["temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "n", "tools", "tool_choice",
             "response_format", "logprobs", "top_logprobs", "stream", "stream_options", "logit_bias", "user", "frequency_penalty",
             "presence_penalty", "parallel_tool_calls", "reasoning_effort", "metadata", "model"]
    null = settings(server, **{n: None for n in names})
    assert null == absent
    assert settings(server, top_p=0)["top_p"] == 0


def test_precedence(start):
    flag = start("--temperature", "0.3", "--config-temperature", "0.9")
    assert abs(settings(flag)["temperature"] - 0.3) < 1e-6
    assert settings(flag, temperature=1.5)["temperature"] == 1.5
    config = start("--config-temperature", "0.9")
    assert abs(settings(config)["temperature"] - 0.9) < 1e-6
    # without thinking the model's own temperature is capped, the request's is not
    assert abs(settings(config, chat_template_kwargs={"enable_thinking": False})["temperature"] - 0.7) < 1e-6
    assert settings(config, chat_template_kwargs={"enable_thinking": False}, temperature=1.5)["temperature"] == 1.5


def test_admission(start):
    s = start("--context", 512)
    status, e = s.error({"messages": [{"role": "user", "content": "x"}], "max_tokens": 600})
    assert status == 400 and e["type"] == "memory_admission" and e["code"] == "context_over_budget" and "512" in e["message"]
    _, r = s.chat({"echo": "sampling"})
    assert r["usage"]["max_tokens_clamped"] is True
    assert json.loads(r["choices"][0]["message"]["content"])["max_tokens"] == 512 - r["usage"]["prompt_tokens"]
    status, e = s.error({"messages": [{"role": "user", "content": "y" * 600}]})
    assert status == 400 and e["code"] == "context_over_budget"


def test_a_fixed_context_cuts_what_asks_for_more(start):
    """Case 060: only a prompt that leaves no place is refused."""
    s = start("--context", 512, "--fixed", 1)
    _, r = s.chat({"echo": "sampling"}, max_tokens=8192)
    assert r["usage"]["max_tokens_clamped"] is True
    assert json.loads(r["choices"][0]["message"]["content"])["max_tokens"] == 512 - r["usage"]["prompt_tokens"]
    status, r = s.call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 8192})[::2]
    assert status == 200 and json.loads(r)["usage"]["max_tokens_clamped"] is True
    status, e = s.error({"messages": [{"role": "user", "content": "y" * 600}], "max_tokens": 1})
    assert status == 400 and e["type"] == "memory_admission" and e["code"] == "context_over_budget"


# ---- field classes ---------------------------------------------------------------------------------------------------
def test_known_and_without_effect(server):
    status, headers, _ = server.call("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
        "prompt_cache_key": "k", "parallel_tool_calls": True, "model": "../../etc/passwd"})
    assert status == 200 and headers["Warning"] is None


@pytest.mark.parametrize("field,value", [
    ("adapter", "x"), ("xtc_probability", 0.5), ("hlg", {"enabled": True}), ("tool_choice", "required"),
    ("modalities", ["audio"]), ("min_tokens", 5)])
def test_known_and_unsupported(server, field, value):
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], field: value})
    assert status == 400 and e["param"] == field and e["type"] == "invalid_request_error" and field in e["message"]


def test_unsupported_but_neutral(server):
    status, r = server.chat({"text": "a"}, tools=[], tool_choice="auto", response_format={"type": "text"}, xtc_probability=0,
                            adapter="none", modalities=["text"])
    assert status == 200
    status, r = server.chat({"text": "a"}, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
    assert status == 200


def test_unknown_fields_are_told(server):
    status, headers, _ = server.call("POST", "/v1/chat/completions",
                                     {"messages": [{"role": "user", "content": "x"}], "tempratur": 3, "zzz": [1], "bad\r\nname": 1})
    assert status == 200 and "tempratur" in headers["Warning"] and "zzz" in headers["Warning"] and "bad" not in headers["Warning"]
    assert any("tempratur" in line for line in server.log)


def test_every_field_is_documented():
    root = pathlib.Path(__file__).resolve().parents[2]
    page = (root / "docs/http.md").read_text()
    names = re.findall(r"^(?:HONOURED|SPECIAL|ACCEPTED|REFUSED)\((\w+),", (root / "src/server/fields.def").read_text(), re.M)
    shown = set(re.findall(r"[a-z_]+\*?", page))
    for name in names:
        assert name in shown or name.endswith("_context_size") or any(s.endswith("*") and name.startswith(s[:-1]) for s in shown if len(s) > 3), name
    assert len(names) > 60


# ---- messages --------------------------------------------------------------------------------------------------------
def prompt(server, messages, **fields):
    last = {"role": "user", "content": 'script:{"echo":"prompt"}'}
    status, _, data = server.call("POST", "/v1/chat/completions", {"messages": [*messages, last], "skip_special_tokens": False, **fields})
    assert status == 200, data
    return json.loads(data)["choices"][0]["message"]["content"]


def test_message_forms(server):
    text = prompt(server, [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"}])
    assert "system\nBe brief." in text and "user\nab" in text and "tool\n42" in text


@pytest.mark.parametrize("messages,param", [
    ([], "messages"), ("hi", "messages"), ([5], "messages[0]"), ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": 5}], "messages[0].content"), ([{"role": "robot", "content": "x"}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], "messages[0].content[0]"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "messages[0].tool_calls")])
def test_bad_messages(server, messages, param):
    status, e = server.error({"messages": messages})
    assert status == 400 and e["param"] == param


def test_control_text_of_a_user_stays_text(server):
    """Special-token text in a message is bytes, not tokens: 24 more tokens than without it."""
    plain = server.chat(content="hello")[1]["usage"]["prompt_tokens"]
    special = server.chat(content="hello<|im_end|><|im_start|>")[1]["usage"]["prompt_tokens"]
    assert special - plain == len("<|im_end|><|im_start|>")


def test_thinking_controls(server):
    def tail(**fields):
        return prompt(server, [], **fields).rsplit("assistant\n", 1)[1]
    assert tail() == ""
    closed = "(think>\n\n(/think>\n\n"
    assert tail(chat_template_kwargs={"enable_thinking": False}) == closed and tail(reasoning_effort="none") == closed
    assert tail(chat_template_kwargs={"enable_thinking": True}, reasoning_effort="none") == ""
    assert "effort=low" in tail(reasoning_effort="minimal") and "effort=xhigh" in tail(reasoning_effort="high")
    assert "effort=medium" in tail(reasoning_effort="medium")
    status, e = server.error({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "huge"})
    assert status == 400 and "xhigh" in e["message"] and e["param"] == "reasoning_effort"


# ---- raw completions -------------------------------------------------------------------------------------------------
def test_completions(server):
    status, _, data = server.call("POST", "/v1/completions", {"prompt": 'script:{"text":"sea"}'})
    r = json.loads(data)
    assert status == 200 and r["id"].startswith("cmpl-") and r["object"] == "text_completion"
    assert r["choices"] == [{"index": 0, "text": "sea", "logprobs": None, "finish_reason": "stop"}]
    assert "lane" not in r["usage"] and r["usage"]["completion_tokens"] == 3
    frames, _ = server.stream({"text": "sea"}, path="/v1/completions")
    assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == "sea" and frames[-1] == "[DONE]"
    assert frames[-2]["choices"][0]["finish_reason"] == "stop" and frames[-2]["usage"]["completion_tokens"] == 3


def test_completions_logprobs(server):
    _, _, data = server.call("POST", "/v1/completions", {"prompt": 'script:{"text":"sea"}', "logprobs": 1})
    lp = json.loads(data)["choices"][0]["logprobs"]
    assert lp == {"tokens": ["s", "e", "a"], "token_logprobs": [-0.25] * 3,
                  "top_logprobs": [{"s": -0.25}, {"e": -0.25}, {"a": -0.25}], "text_offset": [0, 1, 2]}
    _, _, data = server.call("POST", "/v1/completions", {"prompt": 'script:{"text":"sea"}', "logprobs": 0})
    assert json.loads(data)["choices"][0]["logprobs"]["top_logprobs"] == [{}, {}, {}]


@pytest.mark.parametrize("bad", [None, "", [], ["a"], [1, 2], 5])
def test_completions_prompt(server, bad):
    status, e = server.error({"prompt": bad}, path="/v1/completions")
    assert status == 400 and e["param"] == "prompt"


@pytest.mark.parametrize("field,value", [("echo", True), ("suffix", "x"), ("best_of", 2)])
def test_completions_unsupported(server, field, value):
    status, e = server.error({"prompt": "x", field: value}, path="/v1/completions")
    assert status == 400 and e["param"] == field
