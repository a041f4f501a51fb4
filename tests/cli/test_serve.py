"""`hearth serve` as a process: kill -9 and a restart on the same port, a port in use, SIGTERM while a reply streams."""
import http.client
import json
import signal
import socket
import subprocess
import time

import pytest

from conftest import DATA, HEARTH

TINY = DATA / "models" / "llama-q4"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    def __init__(self, port):
        self.port = port
        self.process = subprocess.Popen([HEARTH, "serve", TINY, "--port", str(port)], stderr=subprocess.PIPE, text=True)

    def post(self, body):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return c.getresponse()

    def ready(self, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/health")
                if c.getresponse().status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.02)
        pytest.fail("not ready")


@pytest.fixture
def serve():
    started = []

    def start(port):
        started.append(Process(port))
        return started[-1]

    yield start
    for s in started:
        s.process.kill()
        s.process.wait()


LONG = {"prompt": "a b c", "max_tokens": 100000, "ignore_eos": True, "stream": True, "temperature": 0}


def test_killed_and_started_again(serve):
    port = free_port()
    first = serve(port).ready()
    before = json.load(first.post({"prompt": "a b c", "max_tokens": 8, "temperature": 0}))["choices"][0]["text"]
    stream = first.post(LONG)
    assert stream.readline().startswith(b"data: ")
    first.process.send_signal(signal.SIGKILL)
    with pytest.raises((ConnectionError, http.client.IncompleteRead)):
        while stream.readline():
            pass
        raise ConnectionError  # the end of the stream without its last event is a broken stream too
    again = serve(port).ready()
    assert json.load(again.post({"prompt": "a b c", "max_tokens": 8, "temperature": 0}))["choices"][0]["text"] == before


def test_a_port_in_use_is_an_error_that_names_it(serve):
    port = free_port()
    serve(port).ready()
    second = serve(port)
    assert second.process.wait(20) == 1
    assert str(port) in second.process.stderr.read()


def test_sigterm_lets_a_reply_end(serve):
    s = serve(free_port()).ready()
    stream = s.post({**LONG, "max_tokens": 400})
    assert stream.readline().startswith(b"data: ")
    s.process.send_signal(signal.SIGTERM)
    rest = stream.read()
    assert rest.rstrip().endswith(b"data: [DONE]") and b'"finish_reason":"length"' in rest
    assert s.process.wait(30) == 0
