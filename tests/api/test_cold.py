"""The prompt cache on disk, over HTTP: a server that ends, is killed, or whose disk is full or damaged; the next one goes on from what is
there, and every reply has the numbers of a server without caches."""
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import threading
import time

import pytest
from serving import ROOT, RealServer, eventually

MODELS = ["llama_plain-q4", "mistral_swa-q4", "qwen3_5_4b-q4"]  # dense, sliding windows, recurrent
TEXT = "In the beginning there was a story about {}, and it was told like this: "


def prompt(i, words=60):
    rng = random.Random(i)
    return TEXT.format(i) + " ".join(rng.choice(["sea", "wind", "stone", "bread", "a boat", "rain", "light", "the hill"]) for _ in range(words))


class Serve(RealServer):
    def __init__(self, model, directory=None, *options):
        options = [*(["--ssd-cache", directory] if directory else ["--prompt-cache", 0]), *options]
        super().__init__(ROOT / "tests/data/models" / model, *options)

    def complete(self, text, **fields):
        """((text, token logprobs), cached tokens, prompt tokens)"""
        body = {"prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 3, "ignore_eos": True, **fields}
        status, _, data = self.call("POST", "/v1/completions", body)
        assert status == 200, data
        reply = json.loads(data)
        usage = reply["usage"]
        choice = reply["choices"][0]
        return ((choice["text"], json.dumps(choice["logprobs"])), usage["prompt_tokens_details"]["cached_tokens"],
                usage["prompt_tokens"])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join(5)


@contextlib.contextmanager
def serving(*args):
    s = Serve(*args)
    try:
        yield s
    finally:
        s.stop()


@pytest.fixture(scope="module")
def alone():
    """alone(model, text): what a server without caches says."""
    servers, known = {}, {}

    def ask(model, text):
        if (model, text) not in known:
            if model not in servers:
                servers[model] = Serve(model)
            known[model, text], cached, _ = servers[model].complete(text)
            assert cached == 0
        return known[model, text]

    yield ask
    for s in servers.values():
        s.stop()


@pytest.mark.parametrize("model", MODELS)
def test_a_conversation_goes_on_after_a_restart(model, alone, tmp_path):
    with serving(model, tmp_path / "cache") as s:
        said, cached, _ = s.complete(prompt(1))
        assert cached == 0 and said == alone(model, prompt(1))
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    files = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert files and all(p.stat().st_mode & 0o777 == 0o600 and not p.name.startswith("tmp-") for p in files)
    follow_up = prompt(1) + said[0] + " And then?"
    with serving(model, tmp_path / "cache") as s:
        again, cached, n = s.complete(follow_up)
        assert again == alone(model, follow_up)
        assert cached >= s.complete(prompt(1))[2] - 64  # of what the first server had seen, all but a block
        assert s.complete(prompt(2))[0] == alone(model, prompt(2))


def test_another_model_or_arithmetic_takes_nothing(alone, tmp_path):
    for options in ([], ["--numerics", "f32"]):
        with serving("llama_plain-q4", tmp_path, *options) as s:
            assert s.complete(prompt(1))[1] == 0
    with serving("llama_tied-q4", tmp_path) as s:
        assert s.complete(prompt(1))[1] == 0
    assert len([p for p in tmp_path.iterdir() if p.is_dir()]) == 3
    with serving("llama_plain-q4", tmp_path) as s:
        said, cached, _ = s.complete(prompt(1))
        assert cached > 0 and said == alone("llama_plain-q4", prompt(1))


@pytest.mark.parametrize("model", MODELS)
def test_killed_under_load(model, alone, tmp_path):
    rng = random.Random(5)
    restored = 0
    for _ in range(4):
        s = Serve(model, tmp_path)

        def load():
            with contextlib.suppress(Exception):
                for i in range(100):
                    s.complete(prompt(i % 6))

        threads = [threading.Thread(target=load) for _ in range(3)]
        for t in threads:
            t.start()
        time.sleep(0.15 + rng.random() * 0.5)
        s.kill()
        for t in threads:
            t.join()
        with serving(model, tmp_path) as s:
            for i in range(6):
                said, cached, _ = s.complete(prompt(i))
                assert said == alone(model, prompt(i))
                restored += cached > 0
        assert not list(tmp_path.rglob("tmp-*"))
    assert restored > 6


@pytest.mark.parametrize("model", MODELS)
def test_damaged_files(model, alone, tmp_path):
    rng = random.Random(6)
    with serving(model, tmp_path) as s:
        for i in range(6):
            s.complete(prompt(i))
    files = sorted(p for p in tmp_path.rglob("*.kv"))
    for k, p in enumerate(files):
        data = bytearray(p.read_bytes())
        if k % 4 == 0:
            data = data[: rng.randrange(len(data))]
        elif k % 4 < 3:
            data[rng.randrange(400 if k % 4 == 1 else len(data))] ^= 1 << rng.randrange(8)
        p.write_bytes(data)
    with serving(model, tmp_path) as s:
        for i in range(6):
            assert s.complete(prompt(i))[0] == alone(model, prompt(i))
    with serving(model, tmp_path) as s:  # what was damaged is gone, and written anew
        for i in range(6):
            said, cached, _ = s.complete(prompt(i))
            assert cached > 0 and said == alone(model, prompt(i))


def test_a_full_disk(alone, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k,mode=700", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small file system")
    try:
        with serving("llama_plain-q4", tmp_path) as s:
            for i in range(8):
                assert s.complete(prompt(i))[0] == alone("llama_plain-q4", prompt(i))
            warned = eventually(lambda: [x for x in list(s.log) if "SSD cache" in x])
            time.sleep(0.3)  # no second line follows
            warned = [x for x in list(s.log) if "SSD cache" in x]
            assert len(warned) == 1 and "No space left" in warned[0]
        with serving("llama_plain-q4", tmp_path) as s:
            for i in range(8):
                assert s.complete(prompt(i))[0] == alone("llama_plain-q4", prompt(i))
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_two_servers_on_one_directory(alone, tmp_path):
    model = "llama_plain-q4"
    with serving(model, tmp_path, "--ssd-cache-max", "0.001") as a, serving(model, tmp_path, "--ssd-cache-max", "0.001") as b:
        for i in range(12):
            for s in (a, b):
                assert s.complete(prompt(i % 5 if s is a else i % 7))[0] == alone(model, prompt(i % 5 if s is a else i % 7))
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.kv")) <= 1.1 * 2**20


def test_a_directory_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("x")
    binary = os.environ.get("HEARTH_BINARY", str(ROOT / os.environ.get("BUILD", "build") / "hearth"))
    r = subprocess.run([binary, "serve", ROOT / "tests/data/models/llama_plain-q4", "--port", "0", "--ssd-cache", tmp_path / "file"],
                       capture_output=True, text=True, timeout=30)
    assert r.returncode != 0 and "SSD cache" in r.stderr and str(pathlib.Path(tmp_path / "file")) in r.stderr
