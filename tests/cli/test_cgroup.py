"""A server in a control group of exactly the planned size, driven to its limits: full contexts in a full batch, a full prompt cache,
as many bodies in flight as it takes, hostile ones among them. It is not killed. Needs root and a memory controller (v1 or v2)."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import subprocess
import time

import pytest

from conftest import DATA, HEARTH

MODEL = DATA / "models" / "drafter-4bit"
CONTEXT, BATCH = 2048, 8
V1, V2 = pathlib.Path("/sys/fs/cgroup/memory"), pathlib.Path("/sys/fs/cgroup")


class Group:
    """A group below the one this test runs in."""

    def __init__(self):
        self.v2 = not V1.is_dir()
        self.dir = (V2 if self.v2 else V1) / f"hearth-test-{os.getpid()}"
        self.dir.mkdir()
        if self.v2 and not (self.dir / "memory.max").exists():
            (V2 / "cgroup.subtree_control").write_text("+memory")

    def limit(self, n):
        if not self.v2:
            (self.dir / "memory.limit_in_bytes").write_text(str(n))
            return
        (self.dir / "memory.max").write_text(str(n))
        (self.dir / "memory.swap.max").write_text("0")

    def kills(self):
        name = "memory.events" if self.v2 else "memory.oom_control"
        words = dict(line.split() for line in (self.dir / name).read_text().splitlines())
        return int(words["oom_kill"])

    def anonymous(self):
        words = dict(line.split() for line in (self.dir / "memory.stat").read_text().splitlines())
        return int(words["anon" if self.v2 else "total_rss"])

    def enter(self):
        (self.dir / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group():
    try:
        g = Group()
        g.limit(1 << 30)
    except OSError as e:
        pytest.skip(f"no memory control group can be made here: {e}")
    yield g
    for _ in range(50):
        try:
            g.dir.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def post(port, path, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        c.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read()
    finally:
        c.close()


def full_context(port, seed, n_prompt):
    r = random.Random(seed)
    text = "".join(r.choice("abcdefghij klmnop") for _ in range(n_prompt))
    return post(port, "/v1/completions", {"prompt": text, "max_tokens": 100000, "ignore_eos": True, "temperature": 0})


def test_exactly_the_planned_size(group, tmp_path):
    flags = ["--threads", "2", "--batch", str(BATCH), "--queue", "32", "--memory-budget", "0.4", "--prompt-cache", "0.06"]
    env = {**os.environ, "HEARTH_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    fit = json.loads(subprocess.run([HEARTH, "fit", MODEL, "--ctx", str(CONTEXT), "--json", *flags], capture_output=True, env=env, preexec_fn=group.enter).stdout)
    planned = fit["report"]["planned_bytes"]
    assert planned <= 400e6
    group.limit(planned)
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen([HEARTH, "serve", MODEL, "--port", "0", "--context-length", str(CONTEXT), *flags], stderr=log, env=env, preexec_fn=group.enter)
    try:
        port, end = None, time.time() + 30
        while port is None and time.time() < end:
            lines = [line for line in (tmp_path / "log").read_text().splitlines() if "/v1" in line and "API" in line]
            port = int(lines[0].rsplit(":", 1)[1].split("/")[0]) if lines else None
            time.sleep(0.05)
        assert port, (tmp_path / "log").read_text()
        c = http.client.HTTPConnection("127.0.0.1", port)
        c.request("GET", "/fit")
        report = json.loads(c.getresponse().read())["report"]
        assert abs(report["planned_bytes"] - planned) < 1e5 and report["usable_bytes"] == 400e6
        hostile = b'{"prompt":"x","max_tokens":1,"ignored":[' + b"0," * 6_000_000 + b"0]}"
        large = json.dumps({"prompt": "y", "max_tokens": 1, "ignored": "z" * 30_000_000}).encode()
        talk = json.dumps({"messages": [{"role": "user", "content": "z" * 12_000_000}]}).encode()  # rendered, then too long
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            work = [pool.submit(full_context, port, i, 1900) for i in range(2 * BATCH)]
            work += [pool.submit(post, port, "/v1/completions", body) for body in [large, hostile, large, hostile]]
            work += [pool.submit(post, port, "/v1/chat/completions", talk) for _ in range(4)]
            most = 0
            while not all(f.done() for f in work):
                most = max(most, group.anonymous())
                time.sleep(0.02)
            statuses = [f.result()[0] for f in work]
        print(f"planned {planned}, most {most}; {statuses[2 * BATCH:]}")
        assert statuses[:2 * BATCH] == [200] * (2 * BATCH)
        assert set(statuses[2 * BATCH:]) <= {200, 400, 413, 429, 503}
        assert group.kills() == 0 and server.poll() is None
        assert 0.3 * planned < most <= planned  # it was driven somewhere
        assert full_context(port, 99, 100)[0] == 200
    finally:
        server.kill()
        server.wait()
