#!/usr/bin/env python3
"""./dev soak: random load against `hearth serve`, for as long as wanted.

  ./dev soak [--minutes 60] [--clients 12] [--model smollm2] [--conversations 24] [--seed 1] [-- SERVE OPTIONS]

First every conversation (one to four turns, greedy or sampled with a seed, streamed or not) is held alone. Then the clients hold them at
the same time in random order, leave in the middle of some streams, send some broken requests, and compare each reply with the lone one:
it must be the same text, because company must not change numbers. The server's resident memory must stop growing after the first
fifth; nothing may be left running at the end, and SIGTERM must end the server with status 0. Closes with "N passed, N failed".
"""
import argparse
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEARTH = ROOT / "build" / "hearth"
TOPICS = """the sea|a clock that runs backwards|how bread rises|the number 17|two brothers and a boat|rain on a tin roof|why the sky is blue|
prime numbers|a letter to a friend|the colour green|Größe und Gewicht|une recette de soupe|東京の天気|how to tie a knot|a fox 🦊 and a crow""".split("|")
ASKS = ["Tell me about {}.", "Write three lines on {}.", "List five words about {}.", "Explain {} to a child.", "What is {}?"]
BROKEN = [{"messages": []}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
          {"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}]  # fmt: skip
MARGIN_KB = 32 * 1024


def conversation(rng):
    turns = [rng.choice(ASKS).format(rng.choice(TOPICS).strip()) + " word" * rng.choice([0, 0, 0, 40, 400]) for _ in range(rng.randint(1, 4))]
    fields = {"max_tokens": rng.choice([1, 8, 24, 60])}
    fields |= rng.choice([{"temperature": 0}, {"temperature": 0.9, "seed": rng.randrange(1 << 30)},
                          {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "seed": rng.randrange(1 << 30)}])  # fmt: skip
    return turns, fields


class Server:
    def __init__(self, model, options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = open(ROOT / "build" / "soak.log", "w")
        self.process = subprocess.Popen([HEARTH, "serve", model, "--port", str(self.port), *options], stdout=self.log, stderr=self.log)
        end = time.time() + 120
        while self.process.poll() is None and time.time() < end:
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.process.kill()
        sys.exit(f"soak: the server did not come up; see {self.log.name}")

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def stream(self, body, leave_after=None):
        """The whole text; None if the client left after that many frames."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            r = c.getresponse()
            if r.status != 200:
                raise RuntimeError(f"status {r.status}: {r.read()[:300]}")
            text, frames, done = "", 0, False
            for line in r:
                if not line.startswith(b"data: "):
                    continue
                if line.strip() == b"data: [DONE]":
                    done = True
                    continue
                frames += 1
                frame = json.loads(line[6:])
                if "error" in frame:
                    raise RuntimeError(str(frame["error"]))
                for choice in frame["choices"]:
                    text += choice["delta"].get("content") or ""
                if leave_after is not None and frames > leave_after:
                    return None
            if not done:
                raise RuntimeError("the stream ended without [DONE]")
            return text
        finally:
            c.close()

    def say(self, messages, fields, stream):
        body = {"messages": messages, **fields}
        if stream:
            return self.stream(body)
        status, data = self.call("POST", "/v1/chat/completions", body)
        if status != 200:
            raise RuntimeError(f"status {status}: {data[:300]}")
        return json.loads(data)["choices"][0]["message"]["content"]

    def rss_kb(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1])

    def metric(self, name):
        lines = [x for x in self.call("GET", "/metrics")[1].splitlines() if x.startswith(name + " ")]
        return float(lines[0].split()[1])


def hold(server, turns, fields, stream):
    """The replies of one conversation."""
    messages, replies = [], []
    for t in turns:
        messages.append({"role": "user", "content": t})
        replies.append(server.say(messages, fields, stream()))
        messages.append({"role": "assistant", "content": replies[-1]})
    return replies


class Soak:
    def __init__(self, server, conversations, alone, end):
        self.server, self.conversations, self.alone, self.end = server, conversations, alone, end
        self.passed = self.failed = self.left = 0
        self.lock = threading.Lock()

    def result(self, ok, text):
        with self.lock:
            self.passed += ok
            self.failed += not ok
            if not ok and self.failed <= 20:
                print("FAILED:", text, flush=True)

    def leave_early(self, rng, turns, fields):
        body = {"messages": [{"role": "user", "content": turns[0]}], **fields, "max_tokens": 400}
        self.server.stream(body, leave_after=rng.choice([0, 0, 1, 5, 20]))
        with self.lock:
            self.left += 1

    def once(self, rng):
        i = rng.randrange(len(self.conversations))
        turns, fields = self.conversations[i]
        what = rng.random()
        if what < 0.2:
            self.leave_early(rng, turns, fields)
        elif what < 0.25:
            status, data = self.server.call("POST", "/v1/chat/completions", rng.choice(BROKEN))
            self.result(status == 400 and "error" in json.loads(data), f"a broken request got {status}: {data[:200]}")
        else:
            got = hold(self.server, turns, fields, lambda: rng.random() < 0.7)
            self.result(got == self.alone[i], f"conversation {i} {fields}: {got} instead of {self.alone[i]}")

    def client(self, seed):
        rng = random.Random(seed)
        while time.time() < self.end and self.server.process.poll() is None:
            try:
                self.once(rng)
            except (OSError, RuntimeError, http.client.HTTPException) as e:
                self.result(False, f"{type(e).__name__}: {e}")
                time.sleep(0.2)


def watch_memory(soak, minutes):
    """Prints a line now and then; true if memory stopped growing after a fifth of the time."""
    start, first = time.time(), None
    said, most = 0, 0
    while time.time() < soak.end and soak.server.process.poll() is None:
        time.sleep(min(1, minutes))
        now, rss = time.time(), soak.server.rss_kb() or 0
        if first is None and now - start > minutes * 60 / 5:
            first = most
        most = max(most, rss)
        if now - said > max(10, minutes * 60 / 60):
            said = now
            print(f"{(now - start) / 60:6.1f} min  {soak.passed} replies as alone, {soak.left} left early, {soak.failed} failed, {rss // 1024} MB", flush=True)
    grown = most - (first or most)
    soak.result(grown <= MARGIN_KB, f"resident memory grew by {grown} kB after the first fifth, allowed is {MARGIN_KB}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--clients", type=int, default=12)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--conversations", type=int, default=24)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("options", nargs="*", help="further options of hearth serve, behind --")
    a = p.parse_args()
    if a.model == "smollm2":
        subprocess.run([HEARTH, "get", "smollm2"], check=True, stdout=subprocess.DEVNULL)
    rng = random.Random(a.seed)
    conversations = [conversation(rng) for _ in range(a.conversations)]
    server = Server(a.model, a.options)
    print(f"holding {len(conversations)} conversations alone", flush=True)
    alone = [hold(server, t, f, lambda: False) for t, f in conversations]
    soak = Soak(server, conversations, alone, time.time() + a.minutes * 60)
    threads = [threading.Thread(target=soak.client, args=(a.seed * 1000 + i,)) for i in range(a.clients)]
    for t in threads:
        t.start()
    watch_memory(soak, a.minutes)
    for t in threads:
        t.join()
    if server.process.poll() is None:
        end = time.time() + 10
        while (busy := server.metric("hearth_requests_running") + server.metric("hearth_requests_waiting")) and time.time() < end:
            time.sleep(0.1)
        soak.result(busy == 0, f"{busy:.0f} requests still run after all clients have gone")
        server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(150)
    soak.result(status == 0, f"the server ended with {status}; see {server.log.name}")
    print(f"{soak.left} left early\n{soak.passed} passed, {soak.failed} failed")
    sys.exit(soak.failed != 0)


main()
