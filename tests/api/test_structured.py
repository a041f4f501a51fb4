"""Structured output of a small trained model that thinks and calls tools (Qwen's forms): the answer has the form that
was asked for, whatever the model would have said."""
import json
import re
import time

import pytest
from serving import ROOT, RealServer

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 18, "maximum": 99},
                                           "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "minItems": 1, "maxItems": 2}},
          "required": ["name", "age", "likes"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}}, "required": ["city", "days"]}}}
PING = {"type": "function", "function": {"name": "ping"}}
ASK = [{"role": "user", "content": "Who is the tallest?"}]


@pytest.fixture(scope="module")
def model():
    s = RealServer(ROOT / "tests/data/models/drafter-4bit")
    yield s
    s.stop()


def ask(model, thinking=False, **fields):
    body = {"messages": ASK, "max_tokens": 200, "temperature": 1, "seed": 3, "chat_template_kwargs": {"enable_thinking": thinking}, **fields}
    status, headers, data = model.call("POST", "/v1/chat/completions", body)
    return status, headers, json.loads(data)


def answer(model, **fields):
    status, _, reply = ask(model, **fields)
    assert status == 200, reply
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]


def schema(s, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": s, **more}}


def check_person(p):
    assert list(p) == ["name", "age", "likes"]
    assert len(p["name"]) <= 12 and 18 <= p["age"] <= 99 and 1 <= len(p["likes"]) <= 2 and set(p["likes"]) <= {"tea", "coffee"}


@pytest.mark.parametrize("seed", range(4))
def test_schema(model, seed):
    check_person(json.loads(answer(model, seed=seed, response_format=schema(PERSON))["content"]))


def test_compact(model):
    text = answer(model, response_format=schema(PERSON, any_whitespace=False))["content"]
    check_person(json.loads(text))
    assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', '""', text))


def test_strict_closes_objects(model):
    """Open objects may go on with members of any name; strict ones have what they declare, nested ones too."""
    inner = {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}
    form = {"type": "object", "properties": {"a": {"$ref": "#/$defs/i"}, "c": {"type": "array", "items": inner, "minItems": 1, "maxItems": 2}},
            "required": ["a", "c"], "$defs": {"i": inner}}
    for seed in range(4):
        got = json.loads(answer(model, seed=seed, response_format=schema(form, strict=True, any_whitespace=False))["content"])
        assert list(got) == ["a", "c"] and list(got["a"]) == ["b"] and all(list(x) == ["b"] for x in got["c"])
    assert ask(model, response_format=schema(form, strict="yes"))[2]["error"]["param"] == "response_format.json_schema.strict"


def test_same_while_streaming(model):
    body = {"messages": ASK, "max_tokens": 200, "seed": 5, "temperature": 1, "chat_template_kwargs": {"enable_thinking": False}, "response_format": schema(PERSON)}
    whole = json.loads(model.call("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"]
    frames = model.call("POST", "/v1/chat/completions", {**body, "stream": True})[2].decode().split("\n\n")
    parts = [json.loads(f[6:]) for f in frames if f.startswith("data: {")]
    assert "".join(c["delta"].get("content") or "" for p in parts for c in p["choices"]) == whole


def test_object_regex_choice_and_grammars(model):
    assert re.fullmatch(r"(yes|no), \d{2}[a-c]+!", answer(model, guided_regex="(yes|no), \\d{2}[a-c]{1,5}!")["content"])
    assert answer(model, guided_choice=["red", "green", "blue"])["content"] in ("red", "green", "blue")
    assert re.fullmatch(r"<[a-f]{2}>(;<[a-f]{2}>){0,3}", answer(model, guided_grammar='root ::= t (";" t){0,3}\nt ::= "<" [a-f]{2} ">"')["content"])
    assert re.fullmatch(r"a(1|2)+", answer(model, guided_grammar='start: "a" ("1" | "2")~1..6')["content"])
    status, _, reply = ask(model, response_format={"type": "json_object"}, max_tokens=40)
    assert status == 200 and reply["choices"][0]["message"]["content"].startswith("{")


def test_logprobs_are_those_without_the_grammar(model):
    status, _, reply = ask(model, guided_choice=["zebra"], logprobs=True, top_logprobs=1)
    assert status == 200
    first = reply["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] < first["top_logprobs"][0]["logprob"]


def test_precedence(model):
    assert answer(model, guided_grammar='root ::= "g"', response_format=schema({"const": 1}))["content"] == "g"
    assert answer(model, guided_choice=["c"], response_format=schema({"const": 1}))["content"] == "1"
    assert answer(model, guided_choice=["c"], guided_regex="r", structured_outputs={"regex": "s"})["content"] == "s"
    assert answer(model, guided_choice=["c"], guided_regex="r")["content"] == "r"
    assert answer(model, structured_outputs={"const": "bare"})["content"] == '"bare"'
    assert answer(model, guided_json={"const": 2}, response_format={"type": "text"})["content"] == "2"


def test_the_grammar_begins_when_thinking_ends(model):
    status, _, reply = ask(model, thinking=True, response_format=schema(PERSON), thinking_token_budget=12)
    message = reply["choices"][0]["message"]
    assert status == 200 and message["reasoning_content"].strip()
    assert "{" not in message["reasoning_content"]
    check_person(json.loads(message["content"]))


@pytest.mark.parametrize("fields, param", [
    ({"response_format": schema({"properties": {"a": {"if": {"type": "string"}}}})}, "response_format.json_schema.schema.properties.a.if"),
    ({"response_format": schema({"type": "array", "uniqueItems": True})}, "response_format.json_schema.schema.uniqueItems"),
    ({"response_format": {"type": "json_schema"}}, "response_format.schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_grammar": "root ::= a"}, "guided_grammar"),
    ({"guided_grammar": "root ::= " + "(" * 50000 + '"a"' + ")" * 50000}, "guided_grammar"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_json": "{"}, None),
])
def test_what_is_refused_is_named(model, fields, param):
    status, _, reply = ask(model, **fields)
    assert status == 400, reply
    if param:
        assert reply["error"]["param"] == param and param in reply["error"]["message"]


@pytest.mark.parametrize("thinking", [False, True])
def test_forced_calls(model, thinking):
    fields = {"thinking_token_budget": 10} if thinking else {}
    status, _, reply = ask(model, thinking=thinking, tools=[PING, WEATHER], tool_choice="required", parallel_tool_calls=False, **fields)
    choice = reply["choices"][0]
    assert status == 200 and choice["finish_reason"] == "tool_calls", reply
    assert not choice["message"]["content"]
    assert bool(choice["message"].get("reasoning_content")) == thinking
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("ping", "get_weather")


def test_a_named_call(model):
    for tool, check in ((PING, lambda a: a == {}), (WEATHER, lambda a: set(a) == {"city", "days"} and isinstance(a["city"], str) and 1 <= a["days"] <= 7)):
        name = tool["function"]["name"]
        _, _, reply = ask(model, tools=[PING, WEATHER], tool_choice={"type": "function", "function": {"name": name}}, parallel_tool_calls=False)
        [call] = reply["choices"][0]["message"]["tool_calls"]
        assert call["function"]["name"] == name and check(json.loads(call["function"]["arguments"])), call


def test_a_schema_that_does_not_compile_frees_its_tool_only(model):
    bad = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "properties": {"x": {"type": "array", "contains": {"type": "string"}}}, "required": ["x"]}}}
    status, headers, reply = ask(model, tools=[bad, WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert status == 200 and reply["choices"][0]["message"]["tool_calls"]
    assert "contains" in headers["Warning"]
    _, again, _ = ask(model, tools=[bad, WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert again["Warning"] == headers["Warning"]  # also from the cache of grammars


def test_what_does_not_compile_is_not_logged(model):
    bad = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "properties": {"planted-marker": {"contains": {"type": "null"}}}}}}
    status, headers, reply = ask(model, tools=[bad], tool_choice="required", max_tokens=2)
    assert status == 200, reply
    assert "planted-marker" in headers["Warning"]
    time.sleep(0.1)
    assert any("not constrained" in line for line in model.log) and "planted-marker" not in "".join(model.log)
