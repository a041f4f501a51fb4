"""LangChain's OpenAI chat class: invoke, stream, tools, Responses."""
import json

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


def say(script):
    return HumanMessage("script:" + json.dumps(script))


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@pytest.fixture(params=["chat", "responses"])
def model(request, server):
    return ChatOpenAI(model="scripted", base_url=server.url + "/v1", api_key="k", use_responses_api=request.param == "responses", max_retries=0)


def test_invoke(model):
    r = model.invoke([SystemMessage("S"), say({"text": "Hello."})])
    assert r.text == "Hello." and r.usage_metadata["output_tokens"] == 6


def test_stream(model):
    total = None
    for chunk in model.stream([say({"text": "Hello there."})]):
        total = chunk if total is None else total + chunk
    assert total.text == "Hello there."


def test_tool_loop(model):
    bound = model.bind_tools([add])
    question = say({"text": CALL})
    r = bound.invoke([question])
    assert isinstance(r, AIMessage) and r.tool_calls[0]["name"] == "add" and r.tool_calls[0]["args"] == {"a": 2, "b": 3}
    result = ToolMessage(str(add.invoke(r.tool_calls[0]["args"])), tool_call_id=r.tool_calls[0]["id"])
    r = bound.invoke([question, r, result, say({"echo": "prompt"})])
    assert "tool\n5\n" in r.text


def test_tools_in_a_stream(model):
    total = None
    for chunk in model.bind_tools([add]).stream([say({"text": CALL})]):
        total = chunk if total is None else total + chunk
    assert total.tool_calls[0]["args"] == {"a": 2, "b": 3}


def test_logprobs(server):
    r = ChatOpenAI(model="m", base_url=server.url + "/v1", api_key="k").bind(logprobs=True, top_logprobs=2).invoke([say({"text": "hi"})])
    assert [t["token"] for t in r.response_metadata["logprobs"]["content"]] == ["h", "i"]


def test_embeddings(server):
    e = OpenAIEmbeddings(model="m", base_url=server.url + "/v1", api_key="k", check_embedding_ctx_length=False)
    assert len(e.embed_documents(["a", "b"])) == 2 and len(e.embed_query("c")) == 8


def test_structured_output(model):
    from pydantic import BaseModel

    class Place(BaseModel):
        city: str
        big: bool

    chain = model.with_structured_output(Place, method="json_schema")
    assert chain.invoke([say({"text": '{"city":"Oslo","big":false}'})]) == Place(city="Oslo", big=False)
