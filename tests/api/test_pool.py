"""--model-pool: which model a request goes to, who leaves, and that nobody is lost while models change places."""
import concurrent.futures
import json
import os
import time

import pytest
from serving import read_until, script_body
from test_isolate import TICK, Isolated, gone

GB = 10**9


@pytest.fixture
def pool():
    running = []

    def make(n, models="a,b,c", budget=100 * GB, need=GB, *more):
        running.append(Isolated("--model-pool", n, "--models", models, "--budget", budget, "--need", need, *more).ready())
        return running[-1]

    yield make
    for s in running:
        s.stop()


def ask(s, model, text="x", **script):
    status, d = s.chat({"text": text, **script}, model=model)
    assert status == 200, d
    return d["model"]


def resident(s):
    return s.engine()["pool"]["resident"]


def state(s, model):
    return next(m for m in s.engine()["pool"]["models"] if m["id"] == model)


def wait_resident(s, want):
    end = time.time() + 20
    while time.time() < end:
        if resident(s) == want:
            return
        time.sleep(0.01)
    raise AssertionError(f"resident: {resident(s)}, not {want}\n{''.join(s.log)[-3000:]}")


def test_routing(pool):
    s = pool(2)
    assert resident(s) == ["a"]
    ids = [m["id"] for m in json.loads(s.call("GET", "/v1/models")[2])["data"]]
    assert ids == ["a", "b", "c"]
    for name in ("a", "", "A", "b2", "../../b", "gpt-4o", "x" * 1_000_000):  # anything but an exact id: the default
        assert ask(s, name) == "a"
    assert s.chat({"text": "x"}, model=None)[1]["model"] == "a"
    assert resident(s) == ["a"]
    assert ask(s, "b") == "b" and resident(s) == ["a", "b"]
    assert s.stream({"text": "x"}, "/v1/completions", model="b")[0][0]["model"] == "b"
    assert json.loads(s.call("GET", "/v1/models/b")[2])["id"] == "b"
    assert json.loads(s.call("GET", "/v1/models/c")[2])["id"] == "c" and resident(s) == ["a", "b"]
    assert json.loads(s.call("GET", "/v1/models/d")[2])["data"] == []
    assert s.error(b'{"model":"b"')[0] == 400  # no JSON: the default says so


def test_least_used_leaves(pool):
    s = pool(2)
    ask(s, "b")
    ask(s, "a")
    assert ask(s, "c") == "c"  # b was used longest ago
    wait_resident(s, ["a", "c"])
    pid = state(s, "c")["pid"]
    assert ask(s, "a") == "a" and ask(s, "b") == "b"
    wait_resident(s, ["a", "b"])
    assert gone(pid)
    e = s.engine()["pool"]
    assert e["default"] == "a" and e["max"] == 2 and s.engine()["restarts"] == 0


def test_overlap_and_drain_first(pool):
    """Room for two: the old one serves until the new one does. No room: it leaves first, after its requests."""
    for budget, together in ((100 * GB, True), (GB, False)):
        s = pool(1, "a,b", budget, GB, "--load", 300)
        old = state(s, "a")["pid"]
        stream = s.post_raw(script_body({"text": "tick", "delay_ms": 50}, stream=True, model="a"))
        read_until(stream, TICK)
        with concurrent.futures.ThreadPoolExecutor() as ex:
            asked = ex.submit(ask, s, "b")
            seen = set()
            while not asked.done():
                seen.add((state(s, "a")["state"], state(s, "b")["state"]))
                time.sleep(0.01)
            assert asked.result() == "b"
        assert (("ready", "loading") in seen) == together, seen
        assert (("draining", "off") in seen or ("off", "loading") in seen) != together, seen
        assert b'"finish_reason":"stop"' in read_until(stream, b"[DONE]")  # not cut off
        stream.close()
        wait_resident(s, ["b"])
        assert gone(old)
        t = time.time()
        assert ask(s, "gpt") == "a" and time.time() - t < 20  # the default comes back


def test_a_stream_keeps_its_model(pool):
    s = pool(1, "a,b")
    stream = s.post_raw(script_body({"text": "tick ", "endless": True, "delay_ms": 20}, stream=True, model="a", max_tokens=60))
    read_until(stream, TICK)
    assert ask(s, "b") == "b"
    assert state(s, "a")["state"] == "draining"
    assert b'"finish_reason":"length"' in read_until(stream, b"[DONE]")
    wait_resident(s, ["b"])
    stream.close()


def test_many_clients_and_one_place(pool):
    """Models change places under load: every request is answered by its own."""
    s = pool(1, "a,b,c")
    with concurrent.futures.ThreadPoolExecutor(12) as ex:
        names = [("a", "b", "c")[i % 3] for i in range(36)]
        assert list(ex.map(lambda n: ask(s, n), names)) == names
    assert len(resident(s)) <= 2


def test_a_crash_in_the_pool(pool):
    s = pool(2, "a,b", 100 * GB, GB, "--quick-death", 1)
    ask(s, "b")
    os.kill(state(s, "b")["pid"], 9)
    assert ask(s, "a") == "a"
    end = time.time() + 20
    while not {"state": "ready", "restarts": 1}.items() <= state(s, "b").items() and time.time() < end:
        time.sleep(0.01)
    assert ask(s, "b") == "b" and state(s, "b")["restarts"] == 1 and state(s, "a")["restarts"] == 0


def test_metrics_of_all(pool):
    s = pool(2, "a,b")
    ask(s, "b", "four")
    text = s.call("GET", "/metrics")[2].decode()
    assert s.metric('hearth_generated_tokens_total{model="a"}') == 0 and s.metric('hearth_generated_tokens_total{model="b"}') == 4
    s.wait_metric('hearth_token_seconds_bucket{model="b",le="+Inf"}', 1)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))  # one group each
    assert "hearth_http_requests_total{" not in text
    assert s.engine()["pool"]["resident"] == ["a", "b"]


def test_a_model_that_refuses(pool):
    s = pool(2, "a,b", 100 * GB, GB, "--refuse", "b", "--backoff", 300)
    status, d = s.chat({"text": "x"}, model="b")
    assert status == 503 and "exit code 4" in d["error"]["message"]
    assert ask(s, "a") == "a" and s.call("GET", "/health")[0] == 200
