"""Memory over HTTP: GET /fit, admission on the four generating routes, what bodies may hold. The numbers themselves: tests/cli/test_fit.py, tests/unit/plan_test.c."""
import json

import pytest



def test_shape(server):
    status, _, body = server.call("GET", "/fit")
    r = json.loads(body)
    assert status == 200
    machine, report = r["machine"], r["report"]
    assert machine["chip"] and machine["ram_bytes"] >= machine["usable_ram_bytes"] > 0 and machine["threads"] == 1
    # this engine plans no memory to measure in: a figure can only be one that was kept
    assert (machine["bandwidth_gbs"] is None) == (machine["bandwidth_measured_at"] is None)
    assert r["context_tokens"] == report["context"] == 8192 == r["typical_context_tokens"] and r["sku_matrix_ctx"] == 0
    for key in "weights kv state transient total usable planned".split():
        assert report[key + "_bytes"] == 0
    assert report["fits"] is True and report["why"] is None and report["max_safe_context"] == 8192
    assert {p["part"] for p in report["parts"]} >= {"weights", "workspace", "state", "kv", "prompt_cache", "replies", "requests", "process"}
    assert r["sku_matrix"] == [] and (r["measured_decode_tps"] is None or r["measured_decode_tps"] > 0)


def test_what_was_read_of_a_body_counts(start):
    """A small body can mean many nodes: they are bounded by the memory there is for bodies, and given back."""
    s = start("--bodies-max", 4 << 20, "--body-max", 2 << 20)
    many = b'{"messages":[{"role":"user","content":"hi"}],"metadata":{"x":[' + b"0," * 900_000 + b"0]}}"
    assert s.call("POST", "/v1/chat/completions", many)[0] == 413
    status, r = s.chat({"text": "fine"})
    assert status == 200
    assert json.loads(s.call("GET", "/stats")[2])["server"]["body_bytes"] == 0


# ---- admission: the same on the four generating routes ---------------------------------------------------------------
TALK = [{"role": "user", "content": "x"}]
ROUTES = {"/v1/chat/completions": ({"messages": TALK}, "max_tokens"), "/v1/completions": ({"prompt": "x"}, "max_tokens"),
          "/v1/messages": ({"messages": TALK}, "max_tokens"), "/v1/responses": ({"input": "x"}, "max_output_tokens")}


@pytest.fixture(scope="module")
def servers():
    from serving import Server
    pair = Server("--context", 512), Server("--context", 512, "--fixed", 1)
    yield pair
    for s in pair:
        s.stop()


def ask(server, path, **fields):
    status, _, body = server.call("POST", path, {"model": "m", **ROUTES[path][0], **fields})
    return status, json.loads(body)


@pytest.mark.parametrize("path", ROUTES)
def test_more_than_fits_is_refused(servers, path):
    status, r = ask(servers[0], path, **{ROUTES[path][1]: 600})
    assert status == 400
    message = r["error"]["message"]
    assert "600" in message and "512" in message
    if path != "/v1/messages":  # Anthropic's errors have a type of their own and no code
        assert r["error"]["type"] == "memory_admission" and r["error"]["code"] == "context_over_budget"
    status, r = ask(servers[0], path, **{ROUTES[path][1]: 5})
    assert status == 200 and "max_tokens_clamped" not in r["usage"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_fixed_context_cuts_instead(servers, path):
    status, r = ask(servers[1], path, **{ROUTES[path][1]: 8192})
    assert status == 200 and r["usage"]["max_tokens_clamped"] is True


@pytest.mark.parametrize("path", [p for p in ROUTES if p != "/v1/messages"])
def test_a_default_is_cut(servers, path):
    """Messages has no default: max_tokens is required there."""
    status, r = ask(servers[0], path)
    assert status == 200 and r["usage"]["max_tokens_clamped"] is True
