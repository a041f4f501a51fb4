"""/health, /metrics, /stats, draining, the limit on bodies in memory."""
import json
import pathlib
import re
import signal
import socket
import threading
import time

from serving import ROOT, Server, eventually, read_until, script_body
from test_limits import ENDLESS, HEAD, TICK, body_of, read_all, status_of

DOC = (ROOT / "docs" / "metrics.md").read_text()


# ---- metrics ---------------------------------------------------------------------------------------------------------
def exposition(server):
    """{name: (help, type, {labels: value})}"""
    out = {}
    for line in server.call("GET", "/metrics")[2].decode().splitlines():
        if line.startswith("# HELP "):
            name, text = line[7:].split(" ", 1)
            assert name not in out, f"{name} twice"
            out[name] = [text, None, {}]
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            out[name][1] = kind
        else:
            sample, value = line.rsplit(" ", 1)
            base = re.sub(r"\{.*", "", sample)
            owner = base if base in out else re.sub(r"_(bucket|sum|count)$", "", base)
            assert list(out)[-1] == owner, f"{sample} is not in its group"
            out[owner][2][sample] = float(value)
    return out


def test_no_metric_is_undocumented(server):
    rows = dict(re.findall(r"^\| `(hearth_\w+)(?:\{[\w,]+\})?` \| (.*) \|$", DOC, re.M))
    found = exposition(server)
    for name, (text, kind, samples) in found.items():
        assert samples and kind in ("counter", "gauge", "histogram"), name
        assert rows.get(name, "").removesuffix(" (histogram)") == text, f"docs/metrics.md: {name}: {text}"
        assert name.endswith("_total") == (kind == "counter"), name
    assert set(rows) - set(found) == {"hearth_engine_up", "hearth_engine_restarts_total", "hearth_engine_waiting"}  # --isolate
    stats = json.loads(server.call("GET", "/stats")[2])
    blocks = {name: [f.split(" ")[0] for f in re.sub(r"\([^)]*\)|\{[^}]*\}", "", fields).split(", ")]
              for name, fields in re.findall(r"^\| `(\w+)` \| (.*) \|$", DOC.split("## /stats")[1], re.M)}
    blocks.pop("ssd_cache")
    assert {k: list(v) for k, v in stats.items()} == blocks


def test_histograms(start):
    s = start()
    s.chat({"text": "0123456789", "delay_ms": 30})
    s.wait_metric("hearth_request_seconds_count", 1)
    h = exposition(s)["hearth_token_seconds"][2]
    buckets = [v for k, v in h.items() if "_bucket" in k]
    assert buckets == sorted(buckets) and buckets[-1] == h["hearth_token_seconds_count"] == 1
    assert h['hearth_token_seconds_bucket{le="0.025"}'] == 0 and h['hearth_token_seconds_bucket{le="0.1"}'] == 1
    assert 0.02 < h["hearth_token_seconds_sum"] < 0.1
    assert s.metric("hearth_first_token_seconds_count") == 1
    c = s.post_raw(script_body({"text": "x", "prefill": [1000, 1, 50]}, stream=True))  # leaves before its first token
    read_until(c, b"keepalive 2/")
    c.close()
    s.wait_metric("hearth_request_seconds_count", 2)
    assert s.metric("hearth_first_token_seconds_count") == 1 and s.metric("hearth_queue_seconds_count") == 2


# ---- health ----------------------------------------------------------------------------------------------------------
def health(s):
    status, headers, data = s.call("GET", "/health")
    return status, json.loads(data).get("error", {}).get("message", ""), headers["Retry-After"]


def test_stuck(start):
    """An engine whose thread stands still is found out, with and without work, and forgiven when it goes on."""
    s = start("--watchdog", 1200)
    assert health(s)[0] == 200
    c = s.post_raw(script_body({"text": "x", "stuck_ms": 5000}))
    t, seen = time.time(), None
    while time.time() - t < 4.8 and seen != 503:
        seen, why, retry = health(s)
        time.sleep(0.05)
    assert seen == 503 and "stuck" in why and retry and 1 < time.time() - t < 4.8
    assert s.metric("hearth_up") == 0 and s.metric("hearth_step_age_seconds") > 1
    status, e = s.error(script_body({"text": "y"}))
    assert status == 503 and e["type"] == "engine_unavailable"
    read_until(c, b'"content":"x"')
    assert health(s)[0] == 200 and s.metric("hearth_up") == 1
    c.close()


def test_idle_is_not_stuck(start):
    s = start("--watchdog", 1500)
    end = time.time() + 2.5
    while time.time() < end:
        assert health(s)[0] == 200
        time.sleep(0.1)


def test_drain():
    s = Server("--drain", 30000)
    c = s.post_raw(script_body({"text": "slow text", "delay_ms": 400}, stream=True))
    read_until(c, b'"content":"s"')
    kept = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    read_until(kept, b'"ok"}')
    s.process.terminate()
    status, why, retry = eventually(lambda: (h := health(s))[0] == 503 and h)
    assert "shutting down" in why and retry
    for connection in (kept, s.raw()):  # a connection from before, and a new one
        body = json.dumps(script_body({"text": "late"})).encode()
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert status_of(read_until(connection, b'"engine_unavailable"}}')) == 503
        connection.close()
    assert s.call("GET", "/stats")[0] == 200
    assert b"[DONE]" in read_until(c, b"[DONE]")
    c.close()
    assert s.process.wait(20) == 0


def test_second_signal():
    s = Server("--drain", 60000)
    c = s.post_raw(script_body(ENDLESS, stream=True))
    read_until(c, TICK)
    s.process.terminate()
    eventually(lambda: health(s)[0] == 503)
    assert s.process.poll() is None
    s.process.terminate()
    assert s.process.wait(20) == -signal.SIGTERM
    c.close()


# ---- bodies in memory ------------------------------------------------------------------------------------------------
def test_bodies_have_a_common_limit(start):
    s = start("--bodies-max", 4 << 20, "--body-max", 2 << 20)
    body = lambda n: HEAD + b"Content-Length: %d\r\n\r\n" % n
    half = []
    for _ in range(2):  # two bodies of 1.2 MB that do not end
        c = s.raw(body(1_300_000) + b" " * 1_200_000)
        half.append(c)
    eventually(lambda: s.metric("hearth_http_body_bytes") > 2_400_000)
    assert 2_400_000 < s.metric("hearth_http_body_bytes") <= 4 << 20
    reply = read_all(s.raw(body(1_900_000)))  # too many however tightly the first two are kept
    assert status_of(reply) == 429 and b"Retry-After: 1\r\n" in reply and body_of(reply)["error"]["code"] == "queue_full"
    c = s.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(60):
        try:
            c.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        except OSError:
            break
    assert status_of(read_all(c)) == 429
    assert s.chat({"text": "small ones pass"})[0] == 200
    for c in half:
        c.close()
    s.wait_metric("hearth_http_body_bytes", 0)
    status, _ = s.error({"prompt": "x" * 1_900_000}, "/v1/completions")
    assert status == 400
    s.wait_metric("hearth_http_body_bytes", 0)
