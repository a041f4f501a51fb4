"""The prompt cache over HTTP: conversations whose turns go on, lose their thoughts, or change their ending; what is said to be cached is what
was not computed, and replies are those of a server without a cache."""
import json

import pytest
from serving import ROOT, RealServer

MODELS = ["llama_plain-q4", "gemma3-q4", "qwen3_5_4b-q4"]  # dense, sliding windows, recurrent
PAGE = 64


class Serve(RealServer):
    def __init__(self, model, *options):
        super().__init__(ROOT / "tests/data/models" / model, *options)

    def chat(self, messages, **fields):
        body = {"messages": messages, "max_tokens": 16, "temperature": 0, "logprobs": True, "ignore_eos": True, **fields}
        status, _, data = self.call("POST", "/v1/chat/completions", body)
        assert status == 200, data
        reply = json.loads(data)
        usage = reply["usage"]
        return reply["choices"][0], usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


@pytest.fixture(scope="module", params=MODELS)
def pair(request):
    servers = [Serve(request.param), Serve(request.param, "--prompt-cache", 0)]
    yield request.param, *servers
    for s in servers:
        s.stop()


def talk(server, lone, turns, *, rewrite=None):
    """[(prompt tokens, cached tokens)], one a turn."""
    messages = [{"role": "system", "content": "You know the sea, and you say what you know. " * 6}]
    seen = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn}: what is it that number {turn * 7} says about the sea, and why?"})
        choice, cached, n = server.chat(messages)
        seen.append((n, cached))
        if turn in (0, turns - 1):
            plain, none, _ = lone.chat(messages)
            assert none == 0
            assert plain["message"]["content"] == choice["message"]["content"] and plain["logprobs"] == choice["logprobs"]
        text = choice["message"]["content"]
        messages.append({"role": "assistant", "content": rewrite(turn) if rewrite else text})
    return seen


def test_turns_that_lose_their_replies(pair):
    """The client sends other replies than it got, as when thoughts are dropped: what stands before each is still taken."""
    _, server, lone = pair
    seen = talk(server, lone, 6, rewrite=lambda turn: f"Answer {turn}, in other words than it was given.")
    for (before, _), (n, cached) in zip(seen, seen[1:]):
        assert cached >= before - PAGE and cached < n


def test_another_ending(pair):
    _, server, _ = pair
    start = "A long document that many questions are asked about, one after the other. " * 12
    first = [{"role": "user", "content": start}, {"role": "assistant", "content": "I have read it."}]
    _, cached, n = server.chat([*first, {"role": "user", "content": "What is in it? Please say it in one word."}])
    for i in range(3):
        _, cached, again = server.chat([*first, {"role": "user", "content": f"Number {i}? Please say it in one word."}])
        assert cached >= n - 3 * PAGE


def test_counters(pair):
    _, server, lone = pair
    stats = json.loads(server.call("GET", "/stats")[2])["prompt_cache"]
    assert stats["hits"] > 5 and stats["entries"] > 0 and 0 < stats["bytes"] <= stats["max_bytes"]
    off = json.loads(lone.call("GET", "/stats")[2])["prompt_cache"]
    assert off["max_bytes"] == 0 and off["hits"] == 0
