"""The real server over a scripted engine (fake_engine.c): what a reply holds is written in the request, so answers are exact."""
import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("HEARTH_FAKE_SERVER", str(ROOT / os.environ.get("BUILD", "build") / "tests/fake_server"))


def eventually(true, seconds=20):
    """Waits until true() holds: tests run on machines that are busy with others."""
    end = time.time() + seconds
    while not (found := true()) and time.time() < end:
        time.sleep(0.01)
    assert found
    return found


class Server:
    def __init__(self, *args):
        self.start([BINARY, *map(str, args)], "stdout")

    def start(self, command, stream, env=None):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        self.port, seen = None, ""
        for line in getattr(self.process, stream):
            seen += line
            if found := re.search(r"^port (\d+)|http://[^/]*:(\d+)/v1", line):
                self.port = int(found[1] or found[2])
                break
        assert self.port is not None, f"no server: {seen}"
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def requests_logged(self):
        return [json.loads(x) for x in list(self.log) if x.startswith('{"event":"request"')]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        self.reader.join(5)
        assert code == 0, f"the server ended with {code}: {''.join(self.log)[-3000:]}"

    # -- plain HTTP ------------------------------------------------------------------------------------------------
    def call(self, method, path, body=None, headers=None):
        """(status, headers, bytes)"""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()

    def chat(self, script=None, content=None, **fields):
        if content is None:
            content = "script:" + json.dumps(script)
        body = {"messages": [{"role": "user", "content": content}], **fields}
        status, _, data = self.call("POST", "/v1/chat/completions", body)
        return status, json.loads(data)

    def error(self, body, path="/v1/chat/completions", headers=None):
        status, _, data = self.call("POST", path, body, headers)
        return status, json.loads(data)["error"]

    def stream(self, script=None, path="/v1/chat/completions", **fields):
        """The data frames and the comments of a whole stream."""
        text = "script:" + json.dumps(script)
        body = {"stream": True, **fields}
        body.setdefault(*("prompt", text) if path == "/v1/completions" else ("messages", [{"role": "user", "content": text}]))
        status, headers, data = self.call("POST", path, body)
        assert status == 200, data
        assert headers["Content-Type"] == "text/event-stream"
        frames, comments = [], []
        for part in data.decode().split("\n\n"):
            if part.startswith(":"):
                comments.append(part)
            elif part:
                assert part.startswith("data: "), part
                frames.append(part[6:] if part == "data: [DONE]" else json.loads(part[6:]))
        return frames, comments

    def metric(self, name):
        _, _, data = self.call("GET", "/metrics")
        for line in data.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def wait_metric(self, name, value, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")

    # -- sockets ---------------------------------------------------------------------------------------------------
    def raw(self, data=b"", timeout=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        if data:
            s.sendall(data)
        return s

    def post_raw(self, body, path="/v1/chat/completions"):
        data = json.dumps(body).encode()
        return self.raw(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                        % (path.encode(), len(data), data))


class RealServer(Server):
    """`hearth serve MODEL`."""

    def __init__(self, model, *args):
        binary = os.environ.get("HEARTH_BINARY", str(ROOT / os.environ.get("BUILD", "build") / "hearth"))
        self.start([binary, "serve", str(model), "--port", "0", "--threads", "1", "--response-store", "memory", *map(str, args)], "stderr")


def read_all(s):
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := s.recv(65536):
            data += part
    return data


def read_until(s, needle):
    data = b""
    while needle not in data:
        part = s.recv(65536)
        assert part, f"closed before {needle!r}: {data!r}"
        data += part
    return data


def script_body(script, **fields):
    return {"messages": [{"role": "user", "content": "script:" + json.dumps(script)}], **fields}
