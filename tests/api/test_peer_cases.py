"""What went wrong in other servers (the numbered cases of the peers' issue threads) and is shown by no test of its own subject: the areas api and
server. A test's name ends with the number of its case; ELSEWHERE says which tests show the rest."""
import json
import re

import pytest
from serving import ROOT, RealServer, read_until, script_body

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"

ELSEWHERE = {
    "057": "api/test_chat.py absent_null_and_zero",
    "059": "api/test_chat.py length_and_max_tokens max_tokens_out_of_range",
    "060": "api/test_chat.py admission a_fixed_context_cuts_what_asks_for_more; api/test_memory.py a_fixed_context_cuts_instead",
    "062": "api/test_chat.py held_tail_is_released",
    "063": "api/test_chat.py stop",
    "066": "api/test_chat.py stream_usage_on_request stream_frames",
    "068": "api/test_chat.py logprobs_without_alternatives completions_logprobs",
    "069": "api/test_chat.py completions_logprobs",
    "071": "api/test_chat.py logprobs logprobs_in_streams; api/test_logprobs.py openai_bytes_of_half_characters",
    "072": "api/test_chat.py n_choices n_out_of_range",
    "074": "api/test_limits.py bad_bodies",
    "075": "api/test_responses.py tool_items",
    "077": "api/test_responses.py known_fields_without_effect effort_reaches_the_template",
    "078": "api/test_tools.py header_lines_of_agents_are_dropped",
    "080": "api/test_messages.py system_role_inside",
    "081": "api/test_messages.py tool_results_come_before_text tool_use_in_a_stream stream",
    "083": "api/test_chat.py known_and_unsupported unknown_fields_are_told settings_reach_the_engine",
    "129": "api/test_limits.py leaving_cancels_at_once leaving_during_prefill; api/test_isolate.py leaving_cancels_in_the_child",
    "131": "api/test_chat.py stream_prefill_comments stream_silence_comment error_inside_a_stream; api/test_messages.py pings",
    "132": "api/test_limits.py reader_that_stops_reading; api/test_isolate.py reader_that_stops_reading 200_streams",
    "134": "cli/test_fit.py refused_before_weights does_not_fit",
    "135": "unit/memory_test.c every_family; cli/test_fit.py exact_from_headers",
    "137": "api/test_limits.py body_too_large headers_too_large slow_headers slow_body; api/test_health.py bodies_have_a_common_limit",
    "138": "api/test_pool.py routing; api/test_chat.py known_and_without_effect"}


def test_what_is_shown_elsewhere_is_there():
    for case, places in ELSEWHERE.items():
        for place in places.split("; "):
            file, *names = place.split()
            text = (ROOT / "tests" / file).read_text()
            for name in names:
                assert re.search(rf"^(def test_|static void ){name}\(", text, re.M), (case, file, name)


def body(path, text, /, **fields):
    if path == COMPLETIONS:
        return {"prompt": text, **fields}
    if path == RESPONSES:
        return {"input": text, **fields}
    return {"messages": [{"role": "user", "content": text}], **({"max_tokens": 64} if path == MESSAGES else {}), **fields}


def post(s, path, text, /, **fields):
    status, _, data = s.call("POST", path, body(path, text, **fields))
    return status, json.loads(data)


def script(**s):
    return "script:" + json.dumps(s)


def streamed(s, path, text, **fields):
    """(text or content, reasoning, finish_reason, usage) of a stream"""
    frames, _ = s.stream(path=path, **body(path, text, **fields))
    choices = [f["choices"][0] for f in frames[:-1] if f["choices"]]
    join = lambda key: "".join((c["text"] if path == COMPLETIONS and key == "content" else c.get("delta", {}).get(key)) or "" for c in choices)
    return join("content"), join("reasoning"), choices[-1]["finish_reason"], counts(frames[-2]["usage"])


def counts(usage):
    return {k: v for k, v in usage.items() if k != "timings"}


def whole(s, path, text, **fields):
    status, r = post(s, path, text, **fields)
    assert status == 200, r
    c = r["choices"][0]
    m = c.get("message", {"content": c.get("text")})
    return m["content"] or "", m.get("reasoning") or "", c["finish_reason"], counts(r["usage"])


# ---- the request -----------------------------------------------------------------------------------------------------
OPTIONAL = {
    COMPLETIONS: "model temperature top_p seed stop max_tokens n logprobs stream stream_options logit_bias user frequency_penalty presence_penalty",
    MESSAGES: "model temperature top_p top_k stop_sequences stream system tools tool_choice thinking metadata service_tier",
    RESPONSES: "model temperature top_p max_output_tokens stream instructions tools tool_choice text reasoning include metadata store "
               "previous_response_id parallel_tool_calls truncation user"}


@pytest.mark.parametrize("path", OPTIONAL)
def test_null_is_absent_on_every_surface_057(server, path):
    status, r = post(server, path, "ping", **dict.fromkeys(OPTIONAL[path].split()))
    assert status == 200 and "You said:" in json.dumps(r), r


@pytest.mark.parametrize("n", [2**31, 2**32 - 1, 2**32 + 1, 2**63 - 1, 2**63, 2**64 + 1, -2**31, -2**63, -2**64 + 5])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_huge_max_tokens_do_not_wrap_059(server, path, n):
    """Refused, by the field's range or by what fits (http-api 3.10), and never taken for the small number it would wrap to."""
    status, r = post(server, path, "hi", max_tokens=n)
    assert status == 400 and ("max_tokens" in (r["error"]["param"], *r["error"]["message"].split()) or r["error"]["code"] == "context_over_budget"), r


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_no_tokens_and_no_limit_are_the_same_in_streams_059(server, path):
    for n, text, why in ((0, "", "length"), (-1, "abcdef", "stop")):
        found = streamed(server, path, script(text="abcdef"), max_tokens=n)
        assert found[::2] == (text, why) and found == whole(server, path, script(text="abcdef"), max_tokens=n)
        assert found[3]["completion_tokens"] == len(text) and found[3]["prompt_tokens"] > 0


def test_deep_tools_are_refused_by_name_and_others_go_on_074(server):
    other = server.post_raw(script_body({"text": "tick ", "endless": True, "delay_ms": 5}, stream=True))
    read_until(other, b'"content":"t"')
    status, e = server.error(b'{"messages":[{"role":"user","content":"x"}],"tools":' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert status == 400 and "deep" in e["message"] and any(w.isdigit() for w in e["message"].replace(",", " ").split()), e
    assert server.call("GET", "/health")[0] == 200
    read_until(other, b'"content":"k"')
    other.close()
    for wrong in ("x", {"a": 1}, [5], [[[]]], [{"type": "function", "function": []}]):
        status, e = server.error({"messages": [{"role": "user", "content": "x"}], "tools": wrong})
        assert status == 400 and e["param"].startswith("tools"), e


def test_a_budget_above_max_tokens_leaves_room_for_the_answer_081(server):
    """Of 64 tokens half stays: the thought ends by force, and no block order is broken by it."""
    think = script(text="<think>" + "r" * 200 + "</think>" + "b" * 200)
    status, r = post(server, MESSAGES, think, thinking={"type": "enabled", "budget_tokens": 1024})
    assert status == 200 and [b["type"] for b in r["content"]] == ["thinking", "text"] and r["stop_reason"] == "max_tokens", r
    assert 0 < len(r["content"][0]["thinking"]) <= 32 and r["usage"]["output_tokens"] == 64


# ---- stop strings ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path,text,fields", [
    (COMPLETIONS, "a\nb", {"stop": ["\nb\n"]}),                              # the reply ends
    (COMPLETIONS, "a\nbcd", {"stop": ["\nbx"], "max_tokens": 3}),            # max_tokens
    (CHAT, "<think>fiv</think>and fiv", {"stop": "five"}),
    (CHAT, "<think>a</think>b</thi", {"stop": "</thinner"}),                 # two machines hold it
    (CHAT, "b <thi", {"stop": "five"}),
    (CHAT, "b <tool_ca", {"stop": "five", "tools": [{"type": "function", "function": {"name": "f"}}]}),
    (CHAT, "<think>never closed fiv", {"stop": "five"})])
def test_the_held_tail_comes_out_at_the_end_062(server, path, text, fields):
    found = whole(server, path, script(text=text), **fields)
    assert found == streamed(server, path, script(text=text), **fields)
    assert found[1] + found[0] == text.replace("<think>", "").replace("</think>", "")[:fields.get("max_tokens")]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_nothing_comes_after_a_stop_and_usage_counts_to_it_063(server, path):
    fields = {"stop": ["five"]}
    found = whole(server, path, script(text="three, four, five, six, five"), **fields)
    assert found[0] == "three, four, " and found[2] == "stop" and found[3]["completion_tokens"] == len("three, four, five")
    assert found == streamed(server, path, script(text="three, four, five, six, five"), **fields)


def test_stop_strings_are_of_the_answer_065(server):
    """Not of the thought and not of a call; the same whole and in a stream, also where a match would begin in one and end in the other."""
    for text, thought, answer in (("<think>the END is</think>OK END no", "the END is", "OK "), ("<think>EN</think>D END", "EN", "D ")):
        found = whole(server, CHAT, script(text=text), stop=["END"])
        assert found[:3] == (answer, thought, "stop") and found == streamed(server, CHAT, script(text=text), stop=["END"])
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "END"}}\n</tool_call>'
    _, r = post(server, CHAT, script(text=call), stop=["END"], tools=[{"type": "function", "function": {"name": "f"}}])
    assert json.loads(r["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"x": "END"}


# ---- replies ---------------------------------------------------------------------------------------------------------
def test_stream_options_without_a_stream_066(server):
    status, r = post(server, CHAT, script(text="a"), stream_options={"include_usage": True})
    assert status == 200 and r["usage"]["completion_tokens"] == 1 and r["choices"]
    frames, _ = server.stream({"text": "Hi!"}, path=COMPLETIONS, stream_options={"include_usage": True})
    assert frames[-2]["choices"] == [] and frames[-2]["usage"]["completion_tokens"] == 3 and all(f["usage"] is None for f in frames[:-2])
    frames, _ = server.stream({"text": "Hi!"}, path=COMPLETIONS)
    assert all(f["choices"] for f in frames[:-1])


def test_the_two_shapes_are_never_swapped_069(server):
    _, chat = post(server, CHAT, script(text="é"), logprobs=True, top_logprobs=1)
    _, old = post(server, COMPLETIONS, script(text="é"), logprobs=1)
    assert list(chat["choices"][0]["logprobs"]) == ["content", "refusal"]
    assert sorted(old["choices"][0]["logprobs"]) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"]
    frames, _ = server.stream({"text": "ab"}, path=COMPLETIONS, logprobs=1)
    shown = [f["choices"][0]["logprobs"] for f in frames[:-1] if f["choices"] and f["choices"][0]["logprobs"]]
    assert "".join(t for l in shown for t in l["tokens"]) == "ab" and [o for l in shown for o in l["text_offset"]] == [0, 1]


def test_an_error_while_prefilling_is_told_in_the_stream_131(server):
    status, _, data = server.call("POST", CHAT, script_body({"text": "a", "prefill": [300, 100, 5], "fail": "no memory", "fail_at": 0}, stream=True))
    parts = data.decode().strip().split("\n\n")
    assert status == 200 and [p for p in parts if p.startswith(":")] == [f": keepalive {n}/300" for n in (100, 200, 300)]
    assert json.loads(parts[-1][6:])["error"]["message"] == "no memory"


def test_a_long_model_name_is_no_path_138(server):
    for name in ("", "../../x", "/etc/passwd", "x" * (10 << 20)):
        status, r = post(server, CHAT, script(text="a"), model=name)
        assert status == 200 and r["model"] == "test/scripted"


def test_a_large_picture_is_refused_and_others_are_served_137(start):
    s = start("--body-max", 1 << 20)
    data = json.dumps(body(CHAT, [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (2 << 20)}}])).encode()
    status, e = s.error(data)
    assert status == 413 and e["code"] == "request_too_large" and s.chat({"text": "fine"})[0] == 200


# ---- a real model --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def nano():
    s = RealServer(ROOT / "tests/data/models/llama_plain-q4")
    yield s
    s.stop()


def choices(s, text="Tell me a story", **fields):
    status, r = post(s, CHAT, text, max_tokens=12, ignore_eos=True, **fields)
    assert status == 200, r
    return [(c["message"]["content"] or "") + c["message"].get("reasoning", "") for c in r["choices"]], r["usage"]


def test_choices_differ_and_share_their_prompt_072(nano):
    text, before = "Pick a colour " * 60, nano.metric("hearth_prompt_tokens_total")
    texts, usage = choices(nano, text, n=3, temperature=1, seed=1)
    assert usage["prompt_tokens"] > 300 and nano.metric("hearth_prompt_tokens_total") - before < 1.5 * usage["prompt_tokens"]
    assert len(set(texts)) == 3 and usage["completion_tokens"] == 36
    assert texts == [choices(nano, text, temperature=1, seed=n)[0][0] for n in (1, 2, 3)]


def test_sampling_fields_have_their_effect_083(nano):
    free, _ = choices(nano, n=16, temperature=1.5)
    held, _ = choices(nano, n=16, temperature=1.5, top_p=0.01)
    greedy, _ = choices(nano, temperature=0)
    assert len(set(free)) > 8 and set(held) == set(greedy)
    _, r = post(nano, CHAT, "Tell me a story", max_tokens=1, temperature=0, logprobs=True, logprobs_format="mlx_lm")
    first = r["choices"][0]["logprobs"]["content"][0]["id"]
    _, r = post(nano, CHAT, "Tell me a story", max_tokens=1, temperature=0, logprobs=True, logprobs_format="mlx_lm", logit_bias={str(first): -100})
    assert r["choices"][0]["logprobs"]["content"][0]["id"] != first


def test_a_changing_first_line_keeps_the_cache_078(nano):
    def read(nonce):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: v=1; cch={nonce};"}, {"type": "text", "text": "You are a tool." + " long" * 400}]
        status, r = post(nano, MESSAGES, "hi", system=system, max_tokens=4)
        assert status == 200, r
        return r["usage"]["cache_read_input_tokens"], r["usage"]["input_tokens"]
    assert read("AAAA")[0] < 100
    cached, computed = read("BBBB")
    assert cached > 300 > computed
