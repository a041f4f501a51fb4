"""Limits and safety over raw sockets: framing, sizes, deadlines, Host, Origin, keys, hostile bodies, leaving clients."""
import json
import os
import socket
import tempfile
import time
import urllib.request

import pytest
from serving import eventually, read_all, read_until, script_body


def status_of(reply):
    return int(reply.split(b" ", 2)[1]) if reply else None


def exchange(server, data, timeout=10):
    s = server.raw(data, timeout)
    try:
        return read_all(s)
    finally:
        s.close()


def body_of(reply):
    return json.loads(reply.split(b"\r\n\r\n", 1)[1])


# ---- routes ----------------------------------------------------------------------------------------------------------
def test_health(server):
    status, headers, data = server.call("GET", "/health")
    assert (status, data, headers["Content-Type"]) == (200, b'{"status": "ok"}', "application/json")


def test_unknown_path_and_method(server):
    status, _, data = server.call("GET", "/nope")
    assert status == 404 and json.loads(data)["error"]["message"] == "not found"
    status, headers, data = server.call("GET", "/v1/chat/completions")
    assert status == 405 and headers["Allow"] == "POST, OPTIONS" and "error" in json.loads(data)
    status, headers, _ = server.call("POST", "/health", b"")
    assert status == 405 and headers["Allow"] == "GET, HEAD, OPTIONS"
    status, _, data = server.call("HEAD", "/health")
    assert status == 200 and data == b""


@pytest.mark.parametrize("method,path", [("POST", "/v1/responses/compact"), ("GET", "/v1/adapters"),
                                         ("GET", "/ws/chat"), ("GET", "/library"), ("POST", "/generate")])
def test_known_but_not_built(server, method, path):
    status, _, data = server.call(method, path, b"{}" if method == "POST" else None)
    e = json.loads(data)["error"]
    assert status == 501 and e["type"] == "not_implemented" and "not implemented" in e["message"]


def test_index_and_models(server):
    index = json.loads(server.call("GET", "/v1")[2])
    assert index["name"] == "hearth" and index["model"] == "test/scripted" and "POST /v1/chat/completions" in index["endpoints"]
    assert json.loads(server.call("GET", "/v1/models/test%2Fscripted")[2])["id"] == "test/scripted"
    assert json.loads(server.call("GET", "/v1/models/other")[2]) == {"object": "list", "data": []}
    stats = json.loads(server.call("GET", "/stats")[2])
    assert stats["server"]["model"] == "test/scripted" and stats["admission"]["max_safe_context"] == 8192


def test_metrics_are_prometheus(server):
    _, headers, data = server.call("GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in data.decode().splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0


def test_loading_and_failed(start):
    s = start("--load", 1500)
    status, headers, data = s.call("GET", "/health")
    assert status == 503 and "being loaded" in json.loads(data)["error"]["message"] and headers["Retry-After"]
    status, e = s.error({"messages": [{"role": "user", "content": "x"}]})
    assert status == 503 and e["type"] == "engine_unavailable"
    assert s.call("GET", "/")[0] == 200
    eventually(lambda: s.call("GET", "/health")[0] == 200)
    failed = start("--fail-load", "no such file")
    status, _, data = failed.call("GET", "/health")
    assert status == 503 and "no such file" in json.loads(data)["error"]["message"]
    assert start("--engine-failed", 1).call("GET", "/health")[0] == 503


def test_unix_socket():
    from serving import Server
    path = os.path.join(tempfile.mkdtemp(), "s")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(path)
    stale.close()
    server = Server("--unix", path)
    c = socket.socket(socket.AF_UNIX)
    c.connect(path)
    c.sendall(b"GET /health HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n\r\n")
    assert b'{"status": "ok"}' in read_all(c)
    server.stop()
    assert not os.path.exists(path)


# ---- framing ---------------------------------------------------------------------------------------------------------
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("headers", [
    b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n",
    b"Content-Length: 2\r\nContent-Length: 7\r\n",
    b"Content-Length: 2\r\nContent-Length: 2\r\n",
    b"Content-Length: +2\r\n",
    b"Content-Length: 2, 2\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length : 2\r\n",
    b"Host: other\r\n",
])
def test_ambiguous_framing_is_refused(server, headers):
    """The rest of the bytes must never be read as a request of its own."""
    reply = exchange(server, HEAD + headers + b"\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert status_of(reply) in (400, 413) and b" 200 OK" not in reply
    assert b"test/scripted" not in reply


def test_no_host(server):
    assert status_of(exchange(server, b"GET /health HTTP/1.1\r\n\r\n")) == 400


def test_nul_in_path(server):
    assert status_of(exchange(server, b"GET /health%00x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) == 400


def test_garbage(server):
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", b"\r\n" * 50 + b"x\r\n\r\n",
                 b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70000):
        reply = exchange(server, data, 20)
        assert not reply or status_of(reply) >= 400
    assert server.call("GET", "/health")[0] == 200


def test_keep_alive_and_pipelining(server):
    s = server.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    data = read_until(s, b"gen_defaults")
    assert data.count(b"HTTP/1.1 200") == 2
    s.close()


def test_two_chats_on_one_connection(server):
    body = json.dumps(script_body({"text": "one"}, stream=True)).encode()
    request = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    s = server.raw(request)
    assert b"data: [DONE]" in read_until(s, b"0\r\n\r\n")
    s.sendall(request)
    assert b"data: [DONE]" in read_until(s, b"0\r\n\r\n")
    s.close()


def test_http_1_0(server):
    body = json.dumps(script_body({"text": "one"}, stream=True)).encode()
    reply = exchange(server, b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert b"data: [DONE]" in reply and b"chunked" not in reply.lower()


# ---- sizes -----------------------------------------------------------------------------------------------------------
def test_body_too_large(start):
    s = start("--body-max", 100000)
    reply = exchange(s, HEAD + b"Content-Length: 10737418240\r\n\r\n")
    assert status_of(reply) == 413 and body_of(reply)["error"]["code"] == "request_too_large"
    reply = exchange(s, HEAD + b"Expect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n")
    assert status_of(reply) == 413
    c = s.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(100):
            c.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert status_of(read_all(c)) == 413
    status, e = s.error({"messages": [{"role": "user", "content": "y" * 100000}]})
    assert status == 413
    assert s.chat({"text": "fine"})[0] == 200


def test_head_errors_are_json(server):
    """Of what is wrong with a head, all but bytes that are no HTTP at all is answered in the API's own way."""
    get = b"GET %s HTTP/1.1\r\n%s\r\n"
    host = b"Host: localhost\r\n"
    for data, status in ((get % (b"/health", b""), 400), (get % (b"/a b", host), 400), (get % (b"/health", host + host), 400),
                         (get % (b"/" + b"x" * 9000, host), 414), (get % (b"/health", host + b"X: " + b"y" * 20000 + b"\r\n"), 431),
                         (get % (b"/health", host + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 120) for i in range(150))), 431),
                         (get % (b"/nope", host), 404)):
        reply = exchange(server, data[:-2] + b"Connection: close\r\n\r\n")
        assert reply.split(b"\r\n\r\n", 1)[1][:1] == b"{", (data[:60], reply[:400])
        assert status_of(reply) == status and body_of(reply)["error"]["message"], reply[:300]
    reply = exchange(server, b"GET /health HTTP/1.0\r\n\r\n")
    assert status_of(reply) == 200


def test_headers_too_large(server):
    assert status_of(exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1048576 + b"\r\n\r\n")) in (413, 431, 400)
    many = b"".join(b"X-%d: y\r\n" % i for i in range(10000))
    assert status_of(exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n")) in (413, 431, 400)
    assert server.call("GET", "/health")[0] == 200


# ---- time ------------------------------------------------------------------------------------------------------------
def test_slow_headers(start):
    s = start("--header-timeout", 700)
    c = s.raw(b"GET /health HTTP/1.1\r\nHost: loc")
    t = time.time()
    try:
        while time.time() - t < 12:
            c.sendall(b"a")
            time.sleep(0.1)
    except OSError:
        pass
    assert time.time() - t < 10
    silent = s.raw()
    t = time.time()
    assert status_of(read_all(silent)) == 408 and time.time() - t < 10


def test_slow_body(start):
    s = start("--body-timeout", 700)
    c = s.raw(HEAD + b"Content-Length: 1000\r\n\r\n{")
    t = time.time()
    reply = b""
    c.settimeout(0.1)
    while time.time() - t < 12:
        try:
            c.sendall(b" ")
            part = c.recv(4096)
            if not part:
                break
            reply += part
        except TimeoutError:
            continue
        except OSError:
            break
    assert time.time() - t < 10 and status_of(reply) == 408
    assert body_of(reply)["error"]["type"] == "timeout_error"


def test_idle_connections_end(start):
    s = start("--idle-timeout", 700)
    c = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    read_until(c, b'{"status": "ok"}')
    t = time.time()
    assert read_all(c) == b"" and time.time() - t < 10


# ---- Host, Origin, keys ----------------------------------------------------------------------------------------------
def get(server, host, extra=b"", path=b"/health"):
    return status_of(exchange(server, b"GET %s HTTP/1.1\r\nHost: %s\r\n%sConnection: close\r\n\r\n" % (path, host, extra)))


def test_host_rule(server, start):
    for good in (b"localhost", b"127.0.0.1:8080", b"[::1]:80", b"LOCALHOST:1"):
        assert get(server, good) == 200
    for bad in (b"evil.example", b"localhost.evil.example", b"192.168.1.7", b"127.0.0.1.nip.io", b"[::2]", b"", b"[::1].evil.example",
                b"localhost:80@evil.example", b"127.0.0.1:80:90", b"[::1", b"localhost:x"):
        assert get(server, bad) in (400, 403), bad
    wide = start("--allowed-host", "models.lan")
    assert get(wide, b"models.lan:80") == 200 and get(wide, b"other.lan") == 403
    assert get(start("--allowed-host", "*"), b"any.thing") == 200


def test_origin_rule(server, start):
    body = {"messages": [{"role": "user", "content": "x"}]}
    def post(s, origin):
        status, headers, _ = s.call("POST", "/v1/chat/completions", body, {"Origin": origin})
        return status, headers["Access-Control-Allow-Origin"]
    assert post(server, "http://localhost:3000") == (200, "http://localhost:3000")
    assert post(server, server.url) == (200, server.url)
    assert post(server, "http://evil.example") == (403, None)
    assert post(server, "null") == (403, None)
    for bad in ("http://localhost.evil.example", "http://localhost:1@evil.example", "http://[::1].evil.example"):
        assert post(server, bad) == (403, None)
    listed = start("--allowed-origin", "https://chat.example")
    assert post(listed, "https://chat.example") == (200, "https://chat.example")
    assert post(listed, "http://localhost:3000") == (403, None)
    status, headers, _ = server.call("GET", "/v1/models", None, {"Origin": "http://evil.example"})
    assert headers["Access-Control-Allow-Origin"] is None


def test_preflight(server):
    status, headers, _ = server.call("OPTIONS", "/v1/chat/completions", None, {
        "Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"})
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "POST" in headers["Access-Control-Allow-Methods"] and headers["Access-Control-Allow-Headers"] == "content-type"
    status, headers, _ = server.call("OPTIONS", "/v1/chat/completions", None, {"Origin": "http://evil.example"})
    assert status == 403 and headers["Access-Control-Allow-Methods"] is None


def test_api_keys(start):
    s = start("--api-key", "sesame", "--api-key", "other")
    def models(**headers):
        return s.call("GET", "/v1/models", None, headers)[0]
    assert models() == 401 and models(Authorization="Bearer wrong") == 401 and models(Authorization="Bearer ") == 401
    assert models(Authorization="Bearer sesam") == 401 and models(Authorization="Bearer sesame2") == 401
    assert models(Authorization="Bearer sesame") == 200 and models(Authorization="bearer other") == 200
    assert models(**{"x-api-key": "sesame"}) == 200
    assert s.call("GET", "/health")[0] == 200 and s.call("GET", "/metrics")[0] == 401 and s.call("GET", "/")[0] == 200
    status, headers, data = s.call("POST", "/v1/chat/completions", b"x" * 200000)
    assert status == 401 and json.loads(data)["error"]["code"] == "invalid_api_key"
    assert not any("sesame" in line for line in s.log)


# ---- hostile bodies --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b'"x"', b"null", b'{"messages":[{"role":"user","content":"\xff"}]}', b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"tools":' + b"[" * 100000, b'{"a":1}x', b"{'messages':[]}", b"\xef\xbb\xbf{}",
    b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', b"{" + b",".join(b'"k%d":1' % i for i in range(5000)) + b"}"])
def test_bad_bodies(server, body):
    status, _, data = server.call("POST", "/v1/chat/completions", body)
    e = json.loads(data)["error"]
    assert status == 400 and e["type"] == "invalid_request_error" and e["message"].startswith("invalid JSON body"), data


def test_nodes_are_bounded_by_the_body(server):
    """Millions of tiny values would take gigabytes, and the allocator would keep them."""
    status, e = server.error(b'{"messages":[{"role":"user","content":"x",' + b",".join(b'"%x":0' % i for i in range(1_500_000)) + b"}]}")
    assert status == 413 and e["code"] == "request_too_large"


def test_memory_of_a_large_request_is_given_back(start):
    s = start()
    pages = lambda: int(open(f"/proc/{s.process.pid}/statm").read().split()[1]) * 4096
    s.chat({"text": "warm"})
    before = pages()
    status, _ = s.error(b'{"messages":[' + b",".join([b'{"role":"user","content":"x"}'] * 100_000) + b"]}")
    assert status == 400
    if "asan" not in s.process.args[0] and "tsan" not in s.process.args[0]:
        end = time.time() + 20
        while pages() - before > 24 << 20 and time.time() < end:
            time.sleep(0.05)
        assert pages() - before < 24 << 20


def test_a_hopeless_prompt_costs_no_tokenising(server):
    status, e = server.error({"prompt": "a" * 60_000_000}, "/v1/completions")
    assert status == 400 and e["code"] == "context_over_budget" and "60000000 bytes" in e["message"]


def test_nul_in_content_is_data(server):
    _, r = server.chat(content="a\u0000b")
    assert r["choices"][0]["message"]["content"].startswith("You said:")


def test_large_bodies_are_taken(server):
    status, e = server.error({"messages": [{"role": "user", "content": "y" * 5_000_000}]})
    assert status == 400 and e["code"] == "context_over_budget"


# ---- leaving ---------------------------------------------------------------------------------------------------------
ENDLESS = {"text": "tick ", "endless": True, "delay_ms": 100}
TICK = b'"content":"c"'


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "half", "reset"])
def test_leaving_cancels_at_once(server, stream, how):
    before = server.metric("hearth_requests_cancelled_total")
    s = server.post_raw(script_body({**ENDLESS, "first_ms": 0 if stream else 60000}, stream=stream))
    if stream:
        read_until(s, TICK)
    else:
        server.wait_metric("hearth_requests_running", 1)
    t = time.time()
    if how == "half":
        s.shutdown(socket.SHUT_WR)
    else:
        if how == "reset":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        s.close()
    server.wait_metric("hearth_requests_cancelled_total", before + 1)
    assert time.time() - t < 4
    server.wait_metric("hearth_http_active", 1)  # the one that asks
    s.close()


def test_leaving_during_prefill(server):
    before = server.metric("hearth_requests_cancelled_total")
    s = server.post_raw(script_body({"text": "x", "prefill": [100000, 1, 100]}, stream=True))
    read_until(s, b": keepalive 3/")
    s.close()
    server.wait_metric("hearth_requests_cancelled_total", before + 1, 4)


def test_reader_that_stops_reading(start):
    s = start("--stall", 1500)
    full = [s.post_raw(script_body({"text": "x" * 200, "endless": True}, stream=True, max_tokens=7000, n=4, logprobs=True, top_logprobs=20))
            for _ in range(8)]
    s.wait_metric("hearth_requests_running", 32)
    assert s.chat({"text": "fine"})[1]["choices"][0]["message"]["content"] == "fine"
    s.wait_metric("hearth_requests_running", 0, 15)
    for c in full:
        c.close()


def test_queue_full(start):
    s = start("--queue-max", 1)
    held = s.post_raw(script_body(ENDLESS, stream=True))
    read_until(held, TICK)
    status, headers, data = s.call("POST", "/v1/chat/completions", script_body({"text": "x"}, stream=True))
    assert status == 429 and headers["Retry-After"] == "1" and json.loads(data)["error"]["type"] == "rate_limit_error"
    held.close()


def test_stop_waits_for_running_requests(start):
    from serving import Server
    s = Server("--drain", 30000)
    c = s.post_raw(script_body({"text": "slow", "delay_ms": 300}))
    s.wait_metric("hearth_requests_running", 1)
    s.process.terminate()
    assert b'"content":"slow"' in read_all(c)
    assert s.process.wait(20) == 0
    cut = Server("--drain", 200)
    c = cut.post_raw(script_body(ENDLESS, stream=True))
    read_until(c, TICK)
    t = time.time()
    cut.stop()
    assert time.time() - t < 10


# ---- the log ---------------------------------------------------------------------------------------------------------
def test_access_log(start):
    s = start()
    s.chat({"text": "abc"})
    s.call("GET", "/nope?secret=1", None, {"Authorization": "Bearer hush"})
    chat, nope = eventually(lambda: len(lines := s.requests_logged()) == 2 and lines)
    assert chat["method"] == "POST" and chat["path"] == "/v1/chat/completions" and chat["status"] == 200
    assert chat["completion_tokens"] == 3 and chat["prompt_tokens"] > 0 and chat["total_ms"] > 0 and chat["bytes_in"] > 0
    assert nope["status"] == 404 and nope["error"] == "NOT_FOUND"
    assert not any("secret" in line or "hush" in line or "script" in line for line in s.log)
