"""Requests as agent programs send them (shapes from public documentation and issue threads, no recorded texts):
Claude Code on /v1/messages (claude-code #68900, #96101; llama.cpp #20623, #27367), Codex on /v1/responses
(codex #10635; llama.cpp #20156; ik_llama.cpp #1964). None may be refused; what has an effect has it."""
import json

CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False, "required": ["command"],
          "properties": {"command": {"type": "string", "description": "d"}, "timeout": {"type": "number"}, "run_in_background": {"type": "boolean"}}}


def script(**s):
    return "script:" + json.dumps(s)


def claude_code(turn, **fields):
    return {
        "model": "claude-sonnet-5", "max_tokens": 4000, "stream": True, "temperature": 1,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cc_entrypoint=cli; cch=fa690;"},
                   {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
                   {"type": "text", "text": "Long instructions.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nnote\n</system-reminder>"}, {"type": "text", "text": "list the files"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "I should look.", "signature": "EqQBCkYIBBgC"},
                                              {"type": "text", "text": "Looking."},
                                              {"type": "tool_use", "id": "toolu_01A", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"tool_use_id": "toolu_01A", "type": "tool_result", "content": "a.c\nb.c", "is_error": False,
                                          "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": turn},
            {"role": "system", "content": [{"type": "text", "text": "<total_tokens>90000 tokens left</total_tokens>", "cache_control": {"type": "ephemeral"}}]},
        ],
        "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": SCHEMA},
                  {"name": "Glob", "description": "g", "input_schema": {"type": "object", "properties": {"pattern": {"type": "string"}}}, "eager_input_streaming": True},
                  {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}],
        "metadata": {"user_id": "user_1_account__session_2"}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"}, "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, **fields}


HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "x-app": "cli",
           "user-agent": "claude-cli/2.1.37 (external, cli)", "x-stainless-lang": "js", "authorization": "Bearer none"}


def frames(data):
    return [json.loads(f.partition("\n")[2].removeprefix("data: ")) for f in data.decode().strip().split("\n\n") if not f.startswith(":")]


def test_claude_code(server):
    status, headers, data = server.call("POST", "/v1/messages?beta=true", claude_code(script(text="<think>ok</think>" + CALL)), HEADERS)
    assert status == 200, data
    assert headers["Warning"] == '299 hearth "unknown fields were ignored: tools[web_search_20250305]"'
    found = frames(data)
    assert found[0]["message"]["usage"]["input_tokens"] > 50
    start = [e for e in found if e["type"] == "content_block_start"][-1]["content_block"]
    assert start["type"] == "tool_use" and start["name"] == "Bash" and found[-2]["delta"]["stop_reason"] == "tool_use"
    status, _, data = server.call("POST", "/v1/messages", claude_code(script(echo="prompt"), stream=False), HEADERS)
    text = json.loads(data)["content"][-1]["text"]
    for part in ("You are a coding agent.", "Long instructions.", "list the files", '[Bash {"command": "ls"}]', "tool\na.c\nb.c", "tokens left"):
        assert part in text
    assert "web_search" not in text and "EqQBCkYIBBgC" not in text


def test_claude_code_counts_and_probes(server):
    body = {k: v for k, v in claude_code("x").items() if k in ("model", "messages", "system", "tools", "thinking")}
    status, _, data = server.call("POST", "/v1/messages/count_tokens", body, HEADERS)
    assert status == 200 and json.loads(data)["input_tokens"] > 50
    status, _, data = server.call("POST", "/v1/messages", {"model": "claude-haiku-5", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
                                                           "metadata": {"user_id": "u"}}, HEADERS)
    assert status == 200 and json.loads(data)["stop_reason"] == "max_tokens"
    for bare in ({"type": "enabled"}, {"type": "enabled", "budget_tokens": 31999}, {"type": "disabled"}):
        assert server.call("POST", "/v1/messages", claude_code("hi", thinking=bare), HEADERS)[0] == 200, bare


def codex(turn, **fields):
    return {
        "model": "gpt-5.3-codex", "instructions": "You are Codex.", "stream": True, "store": False, "parallel_tool_calls": False, "tool_choice": "auto",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>none</permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>cwd</environment_context>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "**Listing**"}], "content": None, "encrypted_content": "gAAAA"},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "{\"output\":\"a.c\",\"metadata\":{\"exit_code\":0}}"},
            {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Success"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn}]}],
        "tools": [{"type": "function", "name": "shell", "description": "d", "strict": False,
                   "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"]}},
                  {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
                  {"type": "web_search", "external_web_access": False}, {"type": "namespace", "name": "mcp", "tools": []}, {"type": "image_generation"},
                  {"type": "local_shell"}],
        "reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199", "service_tier": "priority",
        "client_metadata": {"session": "s"}, "text": {"verbosity": "medium"}, **fields}


CODEX = {"originator": "codex_cli_rs", "user-agent": "codex_cli_rs/0.153.4", "session-id": "s", "thread-id": "t", "accept": "text/event-stream"}


def test_codex(server):
    status, headers, data = server.call("POST", "/v1/responses", codex(script(text=CALL.replace("Bash", "shell").replace('"ls"', '["ls"]'))), CODEX)
    assert status == 200, data
    assert all(word in headers["Warning"] for word in ("tools[custom]", "tools[web_search]", "tools[namespace]", "tools[image_generation]", "tools[local_shell]"))
    found = frames(data)
    assert found[-1]["type"] == "response.completed" and found[-1]["response"]["store"] is False
    call = found[-1]["response"]["output"][-1]
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"command": ["ls"]}
    assert call in [e["item"] for e in found if e["type"] == "response.output_item.done"]
    status, _, data = server.call("POST", "/v1/responses", codex(script(echo="prompt"), stream=False), CODEX)
    text = json.loads(data)["output"][-1]["content"][0]["text"]
    assert "system\nYou are Codex.\n\n<permissions>none</permissions>\n".replace("<", "(") in text or "You are Codex.\n\n(permissions>" in text
    for part in ('[shell {"command": ["ls"]}]', "tool\n{\"output\":\"a.c\"", '[apply_patch {"input": "*** Begin Patch"}]', "tool\nSuccess"):
        assert part in text, text


def test_codex_probe(server):
    status, _, data = server.call("POST", "/v1/responses", {"model": "m", "input": [], "max_output_tokens": 1, "store": False}, CODEX)
    assert status == 200 and json.loads(data)["status"] == "incomplete"


def test_large_catalogues(server):
    """Hundreds of tools with large schemas, as MCP servers bring them: served, and nothing of them stays."""
    schema = {"type": "object", "properties": {f"field_{i}": {"type": "string", "description": "x" * 50, "enum": [f"v{j}" for j in range(20)]} for i in range(40)}}
    tools = [{"name": f"tool_{i}", "description": "d" * 200, "input_schema": schema} for i in range(60)]
    status, _, data = server.call("POST", "/v1/messages", {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}], "tools": tools})
    assert status == 400 and "context" in json.loads(data)["error"]["message"]  # one token a byte here: more than the model can take
    deep = {"type": "object"}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    status, _, data = server.call("POST", "/v1/messages", {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}],
                                                           "tools": [{"name": "t", "input_schema": deep}]})
    assert status in (200, 400) and server.call("GET", "/health")[0] == 200
