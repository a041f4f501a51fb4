"""The small trained models asked through /v1/chat/completions: their prompts are taken apart into conversations, rendered again by the
server to the very same text, and answered as recorded — thinking low, medium, xhigh and off, with tools, calls and results.

Collected only with HEARTH_SHARED=DIR (`./dev test full DIR`), like test_nano.py, which asks the engine directly. NANO=name: one model.
"""
import concurrent.futures
import json
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "api"))
from serving import RealServer  # noqa: E402
from test_nano import LUCKY, MAX_TOKENS, NANO, cut_stop, models  # noqa: E402

pytestmark = pytest.mark.skipif(not NANO, reason="HEARTH_SHARED is not set")
EFFORT = re.compile(r"Reasoning effort: (\w+)\.[^\n]*\n*")
CALL = re.compile(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", re.S)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.S)


def typed(value, schema):
    if schema.get("type") == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def schemas(tools):
    return {t["function"]["name"]: t["function"]["parameters"].get("properties", {}) for t in tools}


def calls_in(text, tools):
    """(text without calls, calls)"""
    known = schemas(tools)
    calls = [(name, {k: typed(v, known.get(name, {}).get(k, {})) for k, v in PARAMETER.findall(body)}) for name, body in CALL.findall(text)]
    return CALL.sub("", text).strip(), calls


def assistant(text, tools, ids):
    m = {"role": "assistant"}
    if text.startswith("<think>"):
        thought, _, text = text[7:].partition("</think>")
        m["reasoning_content"] = thought.strip("\n")
    m["content"], calls = calls_in(text, tools)
    if calls:
        m["tool_calls"] = [{"id": ids.setdefault(i, f"call_{i}"), "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                           for i, (n, a) in enumerate(calls, len(ids))]
    return m


def conversation(prompt):
    """A prompt of the Qwen template as a request."""
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", prompt, re.S)
    request, messages, tools, ids = {}, [], [], {}
    open_end = prompt.endswith("<think>\n")
    if turns and turns[0][0] == "system":
        text = turns.pop(0)[1]
        effort = EFFORT.match(text)
        request["effort"] = effort.group(1) if effort else "medium"
        text = text[effort.end():] if effort else text
        if text.startswith("# Tools"):
            listed, _, text = text.partition("<tools>\n")[2].partition("\n</tools>")
            tools = [json.loads(line) for line in listed.split("\n")]
            text = text.partition("Answer directly when no function is needed.")[2].lstrip("\n")
        if text:
            messages.append({"role": "system", "content": text})
    pending = []
    for role, text in turns:
        if role == "assistant":
            messages.append(assistant(text, tools, ids))
            pending = [c["id"] for c in messages[-1].get("tool_calls", [])]
        elif text.startswith("<tool_response>\n"):
            for result in re.findall(r"<tool_response>\n(.*?)\n</tool_response>", text, re.S):
                messages.append({"role": "tool", "tool_call_id": pending.pop(0), "content": result})
        else:
            messages.append({"role": "user", "content": text})
    out = {"messages": messages, "chat_template_kwargs": {"enable_thinking": open_end}}
    if tools:
        out["tools"] = tools
    if open_end:
        out["reasoning_effort"] = request.get("effort", "medium")
    return out


def think_as(request, case):
    """Gemma's recordings chose thinking on or off for themselves."""
    request["chat_template_kwargs"] = {"enable_thinking": "<|think|>" in case["prompt"]}
    thoughts = re.findall(r"<\|channel>thought\n(.*?)\n<channel\|>", case["prompt"], re.S)
    said = [m for m in request["messages"] if m["role"] == "assistant" and m.get("tool_calls")]
    for m, thought in zip(said, thoughts):
        m["reasoning_content"] = thought


def gemma_value(text):
    """Gemma's notation as JSON: enough for what these models write."""
    strings = []
    text = re.sub(r'<\|"\|>(.*?)<\|"\|>', lambda m: strings.append(m.group(1)) or f"\x01{len(strings) - 1}\x01", text, flags=re.S)
    text = re.sub(r"([{,])([\w.-]+):", r'\1"\2":', text)
    return json.loads(re.sub(r"\x01(\d+)\x01", lambda m: json.dumps(strings[int(m.group(1))]), text))


def recorded(case, tools, gemma):
    """(reasoning, content, calls) of a recorded reply."""
    text = cut_stop(case["generated"])
    if gemma:
        thought, _, text = text.rpartition("<channel|>")
        calls = [(n, gemma_value(a)) for n, a in re.findall(r"<\|tool_call>call:([\w.-]+)(\{.*?\})<tool_call\|>", text, re.S)]
        text = re.sub(r"<\|tool_call>.*?<tool_call\|>", "", text, flags=re.S)
        return thought.removeprefix("<|channel>thought\n").strip("\n"), text, calls
    thought, close, text = text.rpartition("</think>")
    text = text.lstrip("\n") if close else text
    if CALL.search(text):
        text, calls = calls_in(text, tools)
        return thought.strip("\n"), text, calls
    return thought.strip("\n"), text, []


def ask(server, request, stream):
    body = {**request, "temperature": 0, "max_tokens": MAX_TOKENS, "stream": stream}
    status, _, data = server.call("POST", "/v1/chat/completions", body)
    assert status == 200, data
    if not stream:
        m = json.loads(data)["choices"][0]["message"]
        calls = [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in m.get("tool_calls", [])]
        return m.get("reasoning_content", ""), m["content"] or "", calls
    reasoning, content, calls = "", "", []
    for part in data.decode().split("\n\n"):
        if part.startswith("data: {"):
            for c in json.loads(part[6:])["choices"]:
                reasoning += c["delta"].get("reasoning_content") or ""
                content += c["delta"].get("content") or ""
                for t in c["delta"].get("tool_calls", []):
                    if "id" in t:
                        calls.append([t["function"]["name"], ""])
                    calls[t["index"]][1] += t["function"]["arguments"]
    return reasoning, content, [(n, json.loads(a)) for n, a in calls]


@pytest.mark.parametrize("name", [n for n in models() if os.environ.get("NANO", n) == n])
def test_nano_chat(name):
    gemma = name.startswith("gemma")
    cases = json.loads((NANO / f"{name}-expected.json").read_text())
    shapes = json.loads((NANO / "hybrid-4bit-expected.json").read_text())  # the same conversations, in a notation that is easy to read
    assert [c["task"] for c in cases] == [c["task"] for c in shapes]
    requests = [conversation(c["prompt"]) for c in shapes]
    for r, c in zip(requests, cases if gemma else []):
        think_as(r, c)
    server = RealServer(NANO / name)
    try:
        rendered = [json.loads(server.call("POST", "/apply-template", r)[2])["prompt"] for r in requests]
        other = [(a, c["prompt"]) for a, c in zip(rendered, cases) if a != c["prompt"]]
        assert not other, f"{len(other)} of {len(cases)} prompts differ; the first: {other[0]}"
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(lambda ir: ask(server, ir[1], ir[0] % 2 == 1), enumerate(requests)))
    finally:
        server.stop()
    want = [recorded(c, r.get("tools", []), gemma) for c, r in zip(cases, requests)]
    sure = [i for i, c in enumerate(cases) if c["ok"] and c["greedy_is_generated"] and c["min_margin"] > 1]
    wrong = [(cases[i]["task"], replies[i], want[i]) for i in sure if replies[i] != want[i]]
    same = sum(r == w for r, w in zip(replies, want))
    right = sum(c["ok"] and r[1:] == w[1:] for c, r, w in zip(cases, replies, want))
    print(f"{name}: {len(sure) - len(wrong)} of {len(sure)} sure ones as recorded, {same} of {len(cases)} in all, "
          f"{sum(bool(r[2]) for r in replies)} with calls")
    assert not wrong, f"{len(wrong)} of {len(sure)} differ; the first: {wrong[0]}"
    ok = sum(c["ok"] for c in cases)
    assert right >= ok - LUCKY.get(name, 0) - 0.03 * len(cases)  # the answer itself, wherever the recording was right


@pytest.mark.parametrize("name", ["hybrid-4bit", "gemma-4bit"])
def test_budget(name):
    """The block is closed by force and an answer follows; a budget that is not used up changes nothing."""
    server = RealServer(NANO / name)
    body = {"messages": [{"role": "user", "content": "What is 66 * 3?"}], "temperature": 0, "max_tokens": 400, "enable_thinking": True}
    try:
        for budget, most in ((0, 0), (5, 5), (390, 400)):
            r = json.loads(server.call("POST", "/v1/chat/completions", {**body, "thinking_token_budget": budget})[2])
            m, used = r["choices"][0]["message"], r["usage"]["completion_tokens_details"]["reasoning_tokens"]
            assert m["content"] and r["choices"][0]["finish_reason"] == "stop" and used <= most + 6, r
            assert ("reasoning" in m) == (budget > 0) and "think>" not in m["content"]
        free = json.loads(server.call("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]
        assert free == m and m["content"].strip().endswith("198")
        for limit in (16, 24, 40):
            r = json.loads(server.call("POST", "/v1/chat/completions", {**body, "max_tokens": limit, "thinking_token_budget": 10000})[2])
            assert r["choices"][0]["message"]["content"], r
    finally:
        server.stop()
