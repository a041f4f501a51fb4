"""`hearth serve --isolate` with real (tiny) models: crashes, exit codes, a pool of the store's models, the service manager."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

import pytest
from conftest import DATA, HEARTH
from test_fault import big_model, resident_mb

MODELS = DATA / "models"


class Serve:
    def __init__(self, *args, env=None):
        self.log = tempfile.TemporaryFile("a+")  # not a pipe: nobody would empty it
        self.process = subprocess.Popen([HEARTH, "serve", *map(str, args), "--port", "0"], stderr=self.log, env={**os.environ, **(env or {})})
        end = time.time() + 30
        while not (found := re.search(r"http://\S*(?=/v1\n)", self.said())):
            assert time.time() < end and self.process.poll() is None, self.said()
            time.sleep(0.01)
        self.url = found[0]

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def call(self, path, body=None):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body is not None else None)
        try:
            with urllib.request.urlopen(request, timeout=30) as r:
                return r.status, json.loads(r.read())
        except urllib.error.HTTPError as e:
            return e.code, json.loads(e.read())

    def ready(self):
        end = time.time() + 30
        while time.time() < end:
            if self.call("/health")[0] == 200:
                return self
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.said()}")

    def complete(self, model=None, prompt="a b c", **fields):
        return self.call("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields})

    def engine(self):
        return self.call("/engine")[1]

    def stop(self):
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture
def serve():
    running = []

    def start(*args, **kw):
        running.append(Serve(*args, **kw))
        return running[-1]

    yield start
    for s in running:
        s.process.kill()
        s.process.wait()


def test_a_crash_is_survived(serve):
    s = serve("--isolate", MODELS / "llama-q4", "--threads", "1").ready()
    status, first = s.complete()
    assert status == 200 and first["model"] == "llama-q4"
    pid = s.engine()["pid"]
    assert open(f"/proc/{pid}/comm").read() == "hearth\n"
    os.kill(pid, signal.SIGSEGV)
    end = time.time() + 30
    while s.engine()["restarts"] == 0 and time.time() < end:
        time.sleep(0.01)
    assert "signal 11" in s.call("/health")[1]["error"]["message"]  # it died young: the next start waits 5 s
    assert s.complete()[0] == 503
    s.ready()
    assert s.complete()[1]["choices"] == first["choices"]
    assert s.stop() == 0


def test_exit_codes_are_the_childs(hearth, tmp_path):
    r = hearth("serve", "--isolate", MODELS / "llama-q4", "--port", 0, "--memory-budget", "0.001")
    assert r.returncode == 4 and "memory" in r.stderr
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "nothing we know"}')
    for model in (broken, "nowhere"):
        codes = [hearth("serve", *args, model, "--port", 0).returncode for args in ((), ("--isolate",))]
        assert codes[0] == codes[1] != 0


def test_the_name_is_the_stores(serve, tmp_path):
    """One name a model, however it was asked for and whether or not its engine is apart; the store's other models beside it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").symlink_to(MODELS / "llama-q4")
    (tmp_path / "models" / "other").symlink_to(MODELS / "qwen3-q4")
    hub = tmp_path / "hub" / "models--org--repo"
    (hub / "snapshots" / "0123abcd").mkdir(parents=True)
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("0123abcd")
    for file in (MODELS / "gemma3-q4").iterdir():
        (hub / "snapshots" / "0123abcd" / file.name).symlink_to(file)
    env = {"HEARTH_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    for args, name in ((["mine"], "mine"), (["mine", "--isolate"], "mine"), (["org/repo"], "org/repo"), ([tmp_path / "models" / "mine"], "mine"),
                       (["mine", "--model-id", "x"], "x"), ([MODELS / "llama-q4"], "llama-q4")):
        s = serve(*args, "--threads", "1", env=env).ready()
        status, d = s.complete()
        assert (status, d["model"]) == (200, name)
        ids = [m["id"] for m in s.call("/v1/models")[1]["data"]]
        assert ids[0] == name and ("other" in ids) == ("--isolate" not in args) and (name != "x" or "mine" not in ids), ids
        assert s.stop() == 0


def test_a_pool_of_the_store(serve, tmp_path):
    (tmp_path / "models").mkdir()
    for name in ("llama-q4", "qwen3-q4", "qwen3_5_4b-q4"):
        (tmp_path / "models" / name).symlink_to(MODELS / name)
    s = serve("--isolate", "--model-pool", "1", "llama-q4", "--threads", "1", env={"HEARTH_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path)}).ready()
    assert sorted(m["id"] for m in s.call("/v1/models")[1]["data"]) == ["llama-q4", "qwen3-q4", "qwen3_5_4b-q4"]
    texts = {}
    for model in ("llama-q4", "qwen3-q4", "qwen3_5_4b-q4", "qwen3-q4", "llama-q4", "something else"):
        status, d = s.complete(model)
        assert status == 200, d
        real = model if model != "something else" else "llama-q4"
        assert d["model"] == real
        assert texts.setdefault(real, d["choices"][0]["text"]) == d["choices"][0]["text"]
    assert len(set(texts.values())) == 3
    end = time.time() + 20
    while len(s.engine()["pool"]["resident"]) > 1 and time.time() < end:
        time.sleep(0.02)
    assert s.engine()["pool"]["resident"] == ["llama-q4"] and s.engine()["restarts"] == 0
    assert s.stop() == 0


def test_the_service_manager_is_told(serve, tmp_path):
    for args in (("--isolate",), ()):
        path = str(tmp_path / f"notify{len(args)}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(20)
            s = serve(*args, MODELS / "llama-q4", "--threads", "1", env={"NOTIFY_SOCKET": path})
            assert manager.recv(100) == b"READY=1" and s.call("/health")[0] == 200
            s.process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            assert s.process.wait(20) == 0
            manager.settimeout(0.1)
            with pytest.raises(TimeoutError):
                manager.recv(100)


def test_a_signal_while_loading(tmp_path):
    file = big_model(tmp_path / "big")
    p = subprocess.Popen([HEARTH, "serve", file.parent, "--port", "0", "--context-length", "64", "--threads", "1"], stderr=subprocess.DEVNULL)
    end = time.time() + 20
    while resident_mb(p.pid) < 40 and time.time() < end:
        time.sleep(0.002)
    t = time.time()
    p.terminate()
    assert p.wait(20) == 0 and time.time() - t < 2


def test_the_pool_keeps_caches_on_disk(serve, tmp_path):
    """A model that leaves for another one finds its prompt cache again: at least all of the prompt but one block and the last token."""
    (tmp_path / "models").mkdir()
    for name in ("llama-q4", "qwen3-q4"):
        (tmp_path / "models" / name).symlink_to(MODELS / name)
    s = serve("--isolate", "--model-pool", "1", "llama-q4", "--threads", "1", "--ssd-cache", tmp_path / "ssd",
              env={"HEARTH_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path)}).ready()
    prompt = "the quick brown fox jumps over the lazy dog " * 20
    first = s.complete("llama-q4", prompt)[1]
    assert s.complete("qwen3-q4", prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    end = time.time() + 30
    while s.engine()["pool"]["resident"] != ["qwen3-q4"] and time.time() < end:
        time.sleep(0.02)
    again = s.complete("llama-q4", prompt)[1]
    n = first["usage"]["prompt_tokens"]
    assert n > 300 and again["usage"]["prompt_tokens_details"]["cached_tokens"] >= n - 65
    assert again["choices"] == first["choices"]
    end = time.time() + 30
    while s.engine()["pool"]["resident"] != ["llama-q4"] and time.time() < end:
        time.sleep(0.02)
    stats = s.call("/stats")[1]["ssd_cache"]
    assert stats["restores"] >= 1 and stats["failed_spills"] == 0
    assert '"drained":true' in s.said() and s.stop() == 0
