"""--isolate: the engine in a child behind the parent's listener. Children die in every stage, clients leave, both end."""
import contextlib
import json
import os
import pathlib
import signal
import socket
import stat
import threading
import time

import pytest
from serving import Server, eventually, read_all, read_until, script_body
from test_limits import TICK, body_of, exchange, status_of

ENDLESS = {"text": "tick ", "endless": True, "delay_ms": 5}
SLOW_PREFILL = {"text": "x", "prefill": [100000, 1, 50]}


class Isolated(Server):
    def __init__(self, *args):
        super().__init__("--isolate", 1, *args)

    def engine(self):
        return json.loads(self.call("GET", "/engine")[2])

    def ready(self, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            if self.call("GET", "/health")[0] == 200:
                return self
            time.sleep(0.01)
        raise AssertionError(f"not ready: {self.engine()} {''.join(self.log)[-2000:]}")

    def kill(self):
        pid = self.engine()["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_and_wait(self):
        """Until the next child serves."""
        old = self.kill()
        end = time.time() + 30
        while time.time() < end and self.engine()["pid"] in (old, None):
            time.sleep(0.01)
        return self.ready()


@pytest.fixture
def isolated():
    running = []

    def make(*args):
        running.append(Isolated(*args))
        return running[-1]

    yield make
    for s in running:
        s.stop()


@pytest.fixture(scope="module")
def shared():
    s = Isolated("--quick-death", 1).ready()
    yield s
    s.stop()


def gone(pid, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        try:
            if "Z" in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:1]:
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


# ---- passing through -------------------------------------------------------------------------------------------------
def test_engine(shared, server):
    e = shared.engine()
    assert e["isolated"] is True and e["restarts"] >= 0 and e["state"] == "ready" and os.path.exists(f"/proc/{e['pid']}")
    mode = os.stat(e["socket"]).st_mode
    assert stat.S_ISSOCK(mode) and mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(e["socket"])).st_mode & 0o777 == 0o700
    assert json.loads(server.call("GET", "/engine")[2]) == {"isolated": False}


def test_same_answers(shared, server):
    def plain(s, **fields):
        status, d = s.chat({"text": "One <think>two</think> three ö"}, **fields)
        for key in ("id", "created"):
            d.pop(key)
        d["usage"].pop("timings")
        return status, d

    def frames(s, path):
        out = []
        for f in s.stream({"text": "a b c ö"}, path)[0]:
            if f != "[DONE]":
                f = {k: v for k, v in f.items() if k not in ("id", "created", "usage")}
            out.append(f)
        return out

    assert plain(shared) == plain(server)
    assert plain(shared, logprobs=True, top_logprobs=3) == plain(server, logprobs=True, top_logprobs=3)
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert frames(shared, path) == frames(server, path)
    for method, path, body in (("GET", "/v1/models", None), ("GET", "/v1/models/test%2Fscripted", None), ("GET", "/nope?x=1", None),
                               ("POST", "/v1/models", b""), ("POST", "/v1/chat/completions", b"{"), ("GET", "/", None),
                               ("HEAD", "/v1/models", None), ("POST", "/v1/messages/count_tokens", b"{}")):
        (s1, h1, d1), (s2, h2, d2) = shared.call(method, path, body), server.call(method, path, body)
        assert s1 == s2, path
        for name in ("Content-Type", "Allow", "Vary", "X-Content-Type-Options", "Content-Length"):
            assert h1.get_all(name) == h2.get_all(name), (path, name)
        assert len(h1.get_all("X-Request-Id")) == 1
        if b"created" not in d1 and b"request_id" not in d1:
            assert d1 == d2


def test_one_request_id(shared):
    status, headers, _ = shared.call("POST", "/v1/chat/completions", script_body({"text": "x"}))
    logged = eventually(lambda: [r for r in shared.requests_logged() if r["id"] == headers["X-Request-Id"]])
    assert len(logged) == 1 and logged[0]["completion_tokens"] == 1


def test_large_bodies_and_answers(shared):
    status, d = shared.chat(content="x" * 5_000_000)
    assert status == 400 and d["error"]["code"] == "context_over_budget"
    status, _, data = shared.call("POST", "/v1/chat/completions",
                                  script_body({"text": "y", "endless": True}, max_tokens=6000, logprobs=True, top_logprobs=20))
    assert status == 200 and len(data) > 2 << 20 and len(json.loads(data)["choices"][0]["logprobs"]["content"]) == 6000


def test_the_parent_keeps_the_rules(shared, isolated):
    assert status_of(exchange(shared, b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")) == 403
    body = {"messages": [{"role": "user", "content": "x"}]}
    status, headers, _ = shared.call("POST", "/v1/chat/completions", body, {"Origin": "http://localhost:3000"})
    assert status == 200 and headers.get_all("Access-Control-Allow-Origin") == ["http://localhost:3000"]
    assert shared.call("POST", "/v1/chat/completions", body, {"Origin": "http://evil.example"})[0] == 403
    keyed = isolated("--api-key", "sesame").ready()
    assert keyed.call("GET", "/v1/models")[0] == 401 and keyed.call("GET", "/metrics")[0] == 401
    assert keyed.call("GET", "/v1/models", None, {"Authorization": "Bearer sesame"})[0] == 200
    _, _, data = keyed.call("GET", "/metrics", None, {"x-api-key": "sesame"})
    assert b"hearth_steps_total" in data and b"hearth_engine_up" in data


def test_smuggling_ends_at_the_parent(shared):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    for headers in (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"X: a\rContent-Length: 3\r\nContent-Length: 2\r\n",
                    b"Transfer-Encoding: chunked, identity\r\n"):
        reply = exchange(shared, head + headers + b"\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status_of(reply) == 400 and b"test/scripted" not in reply
    # hop-by-hop headers, and those that Connection names, stay here: the child would refuse this one
    reply = exchange(shared, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close, X-Origin, Origin\r\nTE: trailers\r\n\r\n")
    assert status_of(reply) == 200


def test_absolute_targets(shared, server):
    for s in (shared, server):
        get = lambda target, host=b"localhost": exchange(s, b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert status_of(get(b"http://localhost:%d/v1/models" % s.port)) == 200
        assert status_of(get(b"http://127.0.0.1/v1/models/test%2Fscripted?x=1")) == 200
        assert status_of(get(b"HTTP://localhost")) == 200  # the page
        assert status_of(get(b"http://evil.example/v1/models")) == 403  # the target's host counts, not Host
        assert status_of(get(b"http://localhost/v1/models", b"evil.example")) == 200
        assert status_of(get(b"http://localhost@evil.example/v1/models")) == 403


def test_admin_is_for_the_socket(shared):
    for path in ("/admin/drain", "/admin/cache/flush"):
        status, _, data = shared.call("POST", path, b"")
        assert status == 404 and json.loads(data)["error"]["message"] == "not found"
        c = socket.socket(socket.AF_UNIX)
        c.connect(shared.engine()["socket"])
        c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % path.encode())
        reply = read_all(c)
        c.close()
        d = body_of(reply)
        if path == "/admin/drain":
            assert status_of(reply) == 200 and d["drained"] is True and d["demotions"] == 0
        else:  # there is no SSD cache: nothing is safe on a disk
            assert status_of(reply) == 503 and d["flushed"] is False and "SSD" in d["error"]["message"]
    assert shared.chat({"text": "still there"})[0] == 200


# ---- clients that leave ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [ENDLESS, SLOW_PREFILL])
def test_leaving_cancels_in_the_child(shared, stream, script):
    before = shared.metric("hearth_requests_cancelled_total")
    c = shared.post_raw(script_body(script, stream=stream, max_tokens=8000))
    if stream:
        read_until(c, TICK if script is ENDLESS else b"keepalive 2/")
    else:
        shared.wait_metric("hearth_requests_running", 1)
    t = time.time()
    c.close()
    shared.wait_metric("hearth_requests_cancelled_total", before + 1)
    assert time.time() - t < 4  # by itself it goes on for 40 s
    shared.wait_metric("hearth_requests_running", 0)


def test_reader_that_stops_reading(isolated):
    s = isolated("--stall", 1000).ready()
    full = [s.post_raw(script_body({"text": "x" * 200, "endless": True}, stream=True, max_tokens=7000, n=4, logprobs=True, top_logprobs=20))
            for _ in range(4)]
    s.wait_metric("hearth_requests_running", 16)
    assert s.chat({"text": "fine"})[1]["choices"][0]["message"]["content"] == "fine"
    s.wait_metric("hearth_requests_running", 0, 8)
    for c in full:
        c.close()


def test_200_streams(shared):
    """All at once, each with its own text, in bounded memory."""
    n, rss = 200, lambda: int(pathlib.Path(f"/proc/{shared.process.pid}/statm").read_text().split()[1]) * 4096
    before = rss()
    socks = [shared.post_raw(script_body({"text": f"<{i}>" * 50, "delay_ms": 2}, stream=True)) for i in range(n)]
    shared.wait_metric("hearth_http_active", n + 1)
    most = rss()
    for i, c in enumerate(socks):
        data = read_until(c, b"data: [DONE]").decode()
        text = "".join(json.loads(l[6:])["choices"][0]["delta"].get("content", "") for l in data.splitlines() if l.startswith("data: {"))
        assert text == f"<{i}>" * 50
        c.close()
    if "asan" not in shared.process.args[0] and "tsan" not in shared.process.args[0]:
        assert most - before < n * (128 << 10), f"{(most - before) / n} bytes a stream"


# ---- the child dies --------------------------------------------------------------------------------------------------
def events(data):
    return [p for p in data.split(b"\r\n\r\n", 1)[1].decode().replace("\r\n", "\n").split("\n") if p.startswith(("data: ", "event: "))]


@pytest.mark.parametrize("script,needle", [(ENDLESS, TICK), (SLOW_PREFILL, b"keepalive 2/")])
def test_death_under_streams(shared, script, needle):
    restarts = shared.engine()["restarts"]
    fields = {"stream": True, "max_tokens": 8000}
    chat = shared.post_raw(script_body(script, **fields))
    anthropic = shared.post_raw(script_body(script, **fields), "/v1/messages")
    whole = shared.post_raw(script_body(script, max_tokens=8000))
    read_until(chat, needle)
    shared.wait_metric("hearth_requests_running", 3)
    shared.kill_and_wait()
    last = events(b"\r\n\r\n" + read_until(chat, b"0\r\n\r\n"))
    error = json.loads(last[-1][6:])["error"]
    assert error["type"] == "engine_unavailable" and "died" in error["message"]
    for line in last[:-1]:  # nothing torn
        json.loads(line[6:])
    last = events(read_until(anthropic, b"0\r\n\r\n"))
    assert last[-2] == "event: error" and json.loads(last[-1][6:])["type"] == "error"
    reply = read_until(whole, b'"code":"engine_unavailable"}}')
    assert status_of(reply) == 502 and body_of(reply)["error"]["type"] == "engine_unavailable"
    for c in (chat, anthropic, whole):
        c.close()
    assert shared.engine()["restarts"] == restarts + 1
    assert shared.chat({"text": "again"})[1]["choices"][0]["message"]["content"] == "again"


def test_death_while_idle_and_while_loading(isolated):
    s = isolated("--quick-death", 1, "--load", 400)
    assert s.call("GET", "/health")[0] == 503
    while s.engine()["state"] != "loading":
        time.sleep(0.005)
    assert s.error(script_body({"text": "x"}))[0] == 503
    s.kill()
    time.sleep(0.1)
    assert s.call("GET", "/health")[0] == 503
    s.ready()
    assert s.engine()["restarts"] == 1
    s.kill_and_wait()
    assert s.engine()["restarts"] == 2 and s.chat({"text": "x"})[0] == 200


def test_a_get_is_tried_again(isolated):
    s = isolated("--quick-death", 1).ready()
    pid = s.engine()["pid"]
    os.kill(pid, signal.SIGSTOP)  # it takes the request and does nothing
    got = []
    t = threading.Thread(target=lambda: got.append(s.call("GET", "/v1/models")))
    t.start()
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    t.join(30)
    assert got and got[0][0] == 200 and b"test/scripted" in got[0][2]


def test_back_off(isolated):
    s = isolated("--backoff", 1500).ready()
    s.kill()
    t = time.time()
    while s.engine()["state"] != "dead":
        assert time.time() - t < 20
        time.sleep(0.005)
    status, e = s.error(script_body({"text": "x"}))
    assert status == 503 and "signal 9" in e["message"] and e["type"] == "engine_unavailable"
    assert "signal 9" in json.loads(s.call("GET", "/health")[2])["error"]["message"]
    assert s.metric('hearth_engine_up{model="test/scripted"}') == 0 and s.metric("hearth_up") == 0
    s.ready()
    assert time.time() - t > 1.4
    assert s.metric('hearth_engine_restarts_total{model="test/scripted"}') == 1
    for _ in range(2):  # three deaths in a minute: the fourth start waits for the minute to be over
        s.kill()
        eventually(lambda: not s.engine()["pid"])
        if _ == 0:
            s.ready()
    time.sleep(1.8)
    assert s.engine()["state"] == "dead" and s.engine()["restarts"] == 3


def test_a_child_that_refuses(isolated):
    s = isolated("--exit", 4)
    eventually(lambda: s.engine()["state"] == "refused")
    status, _, data = s.call("GET", "/health")
    assert status == 503 and "exit code 4" in json.loads(data)["error"]["message"]
    assert s.engine()["restarts"] == 0


# ---- ends ------------------------------------------------------------------------------------------------------------
def test_the_parent_dies():
    for stage in ("loading", "idle", "decode"):
        s = Isolated(*(["--load", 3000] if stage == "loading" else []))
        if stage != "loading":
            s.ready()
        while not (e := s.engine())["pid"]:
            time.sleep(0.01)
        c = s.post_raw(script_body(ENDLESS, stream=True)) if stage == "decode" else None
        if c:
            read_until(c, TICK)
        s.process.kill()
        s.process.wait()
        assert gone(e["pid"]), stage
        if c:
            c.close()
        with contextlib.suppress(OSError):
            os.unlink(e["socket"])
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(e["socket"]))


def test_sigterm_drains():
    s = Isolated("--drain", 30000).ready()
    e = s.engine()
    c = s.post_raw(script_body({"text": "slow text", "delay_ms": 400}, stream=True))
    read_until(c, b'"content":"s"')
    s.process.terminate()
    eventually(lambda: s.call("GET", "/health")[0] == 503)
    status, headers, data = s.call("POST", "/v1/chat/completions", script_body({"text": "late"}))
    assert status == 503 and headers["Retry-After"] and "shutting down" in json.loads(data)["error"]["message"]
    assert s.call("GET", "/health")[0] == 503
    assert b"data: [DONE]" in read_until(c, b"data: [DONE]")
    c.close()
    assert s.process.wait(20) == 0
    assert gone(e["pid"]) and not os.path.exists(os.path.dirname(e["socket"]))


def test_second_sigterm_is_at_once():
    s = Isolated("--drain", 60000).ready()
    pid = s.engine()["pid"]
    c = s.post_raw(script_body(ENDLESS, stream=True))
    read_until(c, TICK)
    s.process.terminate()
    eventually(lambda: s.call("GET", "/health")[0] == 503)
    s.process.terminate()
    assert s.process.wait(20) == -signal.SIGTERM and gone(pid)
    c.close()


# ---- upgrades --------------------------------------------------------------------------------------------------------
def test_upgrades_pass_through(isolated):
    s = isolated("--child", pathlib.Path(__file__).with_name("echo_child.py"))
    s.ready()
    head = b"GET /ws/chat?x=%2F HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: abc\r\n\r\n"
    c = s.raw(head + b"early")
    got = read_until(c, b"early")
    assert got.startswith(b"HTTP/1.1 101") and b"Sec-WebSocket-Accept: abc" in got and b"X-Target: /ws/chat?x=%2F" in got
    big = os.urandom(3 << 20)
    threading.Thread(target=lambda: c.sendall(big)).start()
    back = b""
    while len(back) < len(big):
        back += c.recv(1 << 16)
    assert back == big
    second = s.raw(head)
    read_until(second, b"\r\n\r\n")
    second.sendall(b"bye\n")  # the child ends this one
    assert read_all(second).endswith(b"bye\n")
    second.close()
    c.close()
    refused = s.raw(head.replace(b"abc", b"no"))
    assert status_of(read_until(refused, b"no key")) == 400
    refused.close()
    assert s.call("POST", "/v1/responses/input_tokens", {"input": "x"})[0] == 502  # a tunnel that nobody asked for
    s.wait_metric("hearth_http_connections", 1)
    left = s.raw(head)
    read_until(left, b"\r\n\r\n")  # open while the server stops
