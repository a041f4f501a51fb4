"""GET /fit: the shape of the report. The numbers themselves: tests/cli/test_fit.py, tests/unit/plan_test.c."""
import json



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
