"""Thinking controls with published templates (spec/http-api.md §3.3, spec/engine.md §12): what reaches the template, and what does not."""
import json
import pathlib

import pytest

GOLDEN = json.loads((pathlib.Path(__file__).resolve().parents[1] / "data/templates/golden.json").read_text())
ECHO = {"role": "user", "content": 'script:{"echo":"prompt"}'}


def template(name):
    return GOLDEN["sources"][next(r["source"] for r in GOLDEN["renders"] if r["name"] == name)]


@pytest.fixture
def with_template(start, tmp_path):
    def make(source, *args):
        (tmp_path / "t.jinja").write_text(source)
        return start("--template", tmp_path / "t.jinja", *args)
    return make


def prompt(server, *messages, **fields):
    status, _, data = server.call("POST", "/v1/chat/completions", {"messages": [*messages, ECHO], **fields})
    assert status == 200, data
    m = json.loads(data)["choices"][0]["message"]
    return m.get("reasoning", "") + m["content"]  # a prompt that ends inside a block makes the echo reasoning


EFFORTS = {"none": None, "minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh"}
READS_ALL = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
             "[{{ enable_thinking if enable_thinking is defined else 'unset' }} {{ reasoning_effort if reasoning_effort is defined else 'unset' }} "
             "{{ preserve_thinking if preserve_thinking is defined else 'unset' }}]")


def seen(server, **fields):
    return prompt(server, **fields).rsplit("[", 1)[1].rstrip("]").split()


def test_table(with_template):
    s = with_template(READS_ALL)
    assert seen(s) == ["unset", "unset", "unset"]
    for effort, depth in EFFORTS.items():
        assert seen(s, reasoning_effort=effort) == [str(effort != "none"), depth or "unset", "unset"]
    # who says most: the explicit switch; the depth is mapped all the same
    assert seen(s, reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}) == ["False", "xhigh", "unset"]
    assert seen(s, reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}) == ["True", "unset", "unset"]
    assert seen(s, enable_thinking=False, reasoning_effort="low") == ["False", "low", "unset"]
    assert seen(s, enable_thinking=False, chat_template_kwargs={"enable_thinking": True}) == ["True", "unset", "unset"]
    assert seen(s, thinking={"type": "enabled", "budget_tokens": 1024}) == ["True", "unset", "unset"]
    assert seen(s, thinking={"type": "adaptive"}) == ["unset", "unset", "unset"]
    assert seen(s, thinking_token_budget=0) == ["False", "unset", "unset"]
    assert seen(s, reasoning={"effort": "minimal"}) == ["True", "low", "unset"]
    assert seen(s, preserve_thinking=False) == ["unset", "unset", "False"]
    assert seen(s, chat_template_kwargs={"preserve_thinking": True}) == ["unset", "unset", "True"]
    # names that the client may not bring in past the table
    assert seen(s, chat_template_kwargs={"reasoning_effort": "turbo"}) == ["unset", "unset", "unset"]


@pytest.mark.parametrize("flag,want", [(1, "True"), (-1, "False")])
def test_server_flag(with_template, flag, want):
    s = with_template(READS_ALL, "--thinking", flag)
    assert seen(s)[0] == want
    assert seen(s, reasoning_effort="none")[0] == "False" and seen(s, reasoning_effort="low")[0] == "True"
    assert seen(s, chat_template_kwargs={"enable_thinking": want != "True"})[0] == str(want != "True")


def test_a_template_without_the_names_gets_none(with_template):
    s = with_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}")
    for effort in EFFORTS:
        assert prompt(s, reasoning_effort=effort, preserve_thinking=True) == prompt(s)


def test_qwen38(with_template):
    """It raises on every effort but three."""
    s = with_template(template("ollama__qwen38_chat_template.jinja"))
    texts = {e: prompt(s, reasoning_effort=e) for e in EFFORTS}
    assert texts["minimal"] == texts["low"] and texts["high"] == texts["xhigh"] == prompt(s) and texts["low"] != texts["medium"] != texts["xhigh"]
    assert texts["none"].endswith("(think>\n\n(/think>\n\n") and all(texts[e].endswith("(think>\n") for e in EFFORTS if e != "none")
    status, e = s.error({"messages": [ECHO], "reasoning_effort": "turbo"})
    assert status == 400 and e["param"] == "reasoning_effort" and all(name in e["message"] for name in EFFORTS)
    said = {"role": "assistant", "reasoning_content": "R1", "content": "b"}
    first = {"role": "user", "content": "a"}
    kept = prompt(s, first, said, {"role": "user", "content": "c"}, {"role": "assistant", "reasoning": "R2", "content": "b2"}, preserve_thinking=True)
    assert "(think>\nR1\n(/think>\n\nb" in kept and "(think>\nR2\n(/think>\n\nb2" in kept
    assert "R1" not in prompt(s, first, said, preserve_thinking=False)


def test_glm52(with_template):
    s = with_template(template("ik_llama__GLM-5.2.jinja"))
    assert prompt(s, reasoning_effort="none").endswith("(think>(/think>") and prompt(s, reasoning_effort="low").endswith("(think>")


def test_reply_begins_where_the_prompt_ends(with_template):
    """The splitter starts from the rendered prompt's tail, not from the family's name."""
    s = with_template(template("ollama__qwen38_chat_template.jinja"))
    for fields, want in (({}, ("plan", "answer")), ({"reasoning_effort": "none"}, ("", "plan\n</think>\n\nanswer"))):
        body = {"messages": [{"role": "user", "content": "script:" + json.dumps({"text": "plan\n</think>\n\nanswer"})}], **fields}
        m = json.loads(s.call("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]
        assert (m.get("reasoning_content", ""), m["content"]) == want and m.get("reasoning", "") == want[0]
    # a client cannot open a block by writing its tag
    body = {"messages": [{"role": "user", "content": "<think>script:" + json.dumps({"text": "x"})}], "reasoning_effort": "none"}
    assert json.loads(s.call("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"] == "x"


def test_late_system_message_keeps_the_prefix(with_template):
    """peers/cases/014: the template refuses it; it becomes the user's text, and what came before stays the same."""
    s = with_template(template("ollama__qwen38_chat_template.jinja"))
    turns = [{"role": "system", "content": "Short replies."}, {"role": "user", "content": "morning"}, {"role": "assistant", "content": "good morning"}]
    plain, late = prompt(s, *turns), prompt(s, *turns, {"role": "system", "content": "Reminder: capitals."})
    common = next(i for i, (a, b) in enumerate(zip(plain, late)) if a != b)
    assert "good morning" in plain[:common] and late[common:].startswith("Reminder: capitals.\n\nscript:")


def test_budget_counts_and_usage(with_template):
    s = with_template(template("ollama__qwen38_chat_template.jinja"))
    body = {"messages": [{"role": "user", "content": "script:" + json.dumps({"text": "0123456789" * 3 + "answer"})}], "thinking_token_budget": 30}
    r = json.loads(s.call("POST", "/v1/chat/completions", body)[2])
    assert r["choices"][0]["message"]["reasoning"] == "0123456789" * 3 and r["choices"][0]["message"]["content"] == "answer"
    assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0 and r["choices"][0]["finish_reason"] == "stop"
