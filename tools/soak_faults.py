"""./dev soak faults [NAME ...] [--minutes 10] [--model smollm2]: what clients and networks do to `hearth serve`, for long or as root.

  idle      1,000 connections that say nothing, and 200 that asked once: others are answered, memory stays bounded, all are let go
  streams   200 streams at a time for --minutes: every one ends well (or is told 429), memory keeps to the budget and stops growing
  slow      clients behind a line of 16 kbit/s (a network namespace with tc): others are not slowed, nothing piles up
  vanished  clients whose line is cut in the middle of a stream, without a word: their generations end, their memory comes back

slow and vanished need root, ip and tc; without them they are reported as not run. Closes with "N passed, N failed, N not run".
"""
import argparse
import asyncio
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEARTH = ROOT / "build" / "hearth"
MARGIN_KB = 48 * 1024
BUDGET = 1.2e9  # bytes, of the 135M model with 200 streams
NS, HERE, THERE = "hearthsoak", "10.213.77.1", "10.213.77.2"
KEY = "soak"


class Server:
    def __init__(self, model, *options, host="127.0.0.1"):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.host = host
        self.log = open(ROOT / "build" / "soak-faults.log", "w")
        self.process = subprocess.Popen([HEARTH, "serve", model, "--host", host, "--port", str(self.port), "--api-key", KEY, *options],
                                        stdout=self.log, stderr=self.log)
        end = time.time() + 120
        while time.time() < end and self.process.poll() is None:
            try:
                if asyncio.run(get(self, "/health"))[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.process.kill()
        sys.exit(f"soak: the server did not come up; see {self.log.name}")

    def rss_kb(self):
        for line in open(f"/proc/{self.process.pid}/status"):
            if line.startswith("VmRSS"):
                return int(line.split()[1])

    def n_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def metric(self, name):
        for line in asyncio.run(get(self, "/metrics"))[1].splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise SystemExit(f"no metric {name}")

    def quiet(self, seconds):
        """Nothing runs or waits any more, within that time."""
        end = time.time() + seconds
        while time.time() < end:
            if self.metric("hearth_requests_running") + self.metric("hearth_requests_waiting") == 0:
                return True
            time.sleep(0.2)
        return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(150) == 0
        except subprocess.TimeoutExpired:
            self.process.kill()
            return False


def request(method, path, body=None):
    data = json.dumps(body).encode() if body is not None else b""
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data


async def get(server, path):
    r, w = await asyncio.open_connection(server.host, server.port)
    w.write(request("GET", path))
    data = await r.read()
    w.close()
    return int(data.split()[1]), data.partition(b"\r\n\r\n")[2].decode()


def chat(i, tokens):
    return {"messages": [{"role": "user", "content": f"Tell me about the number {i % 37}, at length."}], "max_tokens": tokens,
            "temperature": 0.8, "seed": i, "stream": True, "ignore_eos": True}


async def stream(host, port, i, tokens, limit=2**16):
    """'done', 'busy', or what went wrong."""
    try:
        r, w = await asyncio.open_connection(host, port, limit=limit)
        w.write(request("POST", "/v1/chat/completions", chat(i, tokens)))
        head = await r.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        tail = b""
        while part := await r.read(65536):
            tail = (tail + part)[-400:]
        w.close()
        if status == 429:
            return "busy"
        return "done" if status == 200 and b"[DONE]" in tail else f"status {status}: {tail!r}"
    except (OSError, asyncio.IncompleteReadError) as e:
        return f"{type(e).__name__}: {e}"


# ---- the faults: each gives a list of (ok, text) -------------------------------------------------------------------
def idle(a):
    s = Server(a.model, "--prompt-cache", "0.05")
    files, rss = s.n_files(), s.rss_kb()

    async def run():
        silent = [await asyncio.open_connection(s.host, s.port) for _ in range(1000)]
        asked = []
        for _ in range(200):
            r, w = await asyncio.open_connection(s.host, s.port)
            w.write(request("GET", "/health").replace(b"Connection: close\r\n", b""))
            await r.readuntil(b"\r\n\r\n")
            asked.append((r, w))
        t0 = time.time()
        answers = [await stream(s.host, s.port, i, 8) for i in range(8)]
        took = time.time() - t0
        grown = s.rss_kb() - rss
        for _, w in silent + asked:
            w.close()
        return answers, took, grown

    answers, took, grown = asyncio.run(run())
    end = time.time() + 30
    while s.n_files() > files + 20 and time.time() < end:
        time.sleep(0.5)
    left = s.n_files() - files
    return [(answers == ["done"] * 8, f"8 streams beside 1,200 idle connections: {set(answers)} in {took:.1f} s"),
            (grown < MARGIN_KB, f"resident memory grew by {grown} kB"), (left <= 20, f"{left} descriptors left after they closed"),
            (s.stop(), "SIGTERM ends it with 0")]


def streams(a):
    s = Server(a.model, "--queue", "1000", "--memory-budget", str(BUDGET / 1e9), "--prompt-cache", "0.1")
    end = time.time() + a.minutes * 60
    counts, rss = {}, []

    async def client(i):
        while time.time() < end:
            what = await stream(s.host, s.port, i, 16 + i % 50)
            counts[what] = counts.get(what, 0) + 1
            i += 200

    async def watch():
        while time.time() < end:
            rss.append(s.rss_kb())
            await asyncio.sleep(1)

    async def run():
        await asyncio.gather(watch(), *(client(i) for i in range(200)))

    asyncio.run(run())
    early, most = max(rss[: max(1, len(rss) // 2)]), max(rss)
    bad = {k: v for k, v in counts.items() if k not in ("done", "busy")}
    return [(counts.get("done", 0) > 0 and not bad, f"{counts.get('done', 0)} streams ended well, {counts.get('busy', 0)} were told 429; {bad or 'no other end'}"),
            (most * 1024 < BUDGET * 1.05, f"resident memory at most {most * 1024 / 1e6:.0f} MB of a budget of {BUDGET / 1e6:.0f}"),
            (most - early < MARGIN_KB, f"and {early * 1024 / 1e6:.0f} MB in the first half of the time"),
            (s.quiet(60), "nothing runs afterwards"), (s.stop(), "SIGTERM ends it with 0")]


def sh(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True)


class Line:
    """A network namespace at the end of a line that can be slow, or cut."""

    def __init__(self, rate=None):
        sh(f"ip netns del {NS}; ip link del {NS}0")
        for c in [f"ip netns add {NS}", f"ip link add {NS}0 type veth peer name {NS}1 netns {NS}", f"ip addr add {HERE}/30 dev {NS}0",
                  f"ip link set {NS}0 up", f"ip -n {NS} addr add {THERE}/30 dev {NS}1", f"ip -n {NS} link set {NS}1 up"]:  # fmt: skip
            r = sh(c)
            if r.returncode:
                raise RuntimeError(f"{c}: {r.stderr.strip()}")
        if rate:
            sh(f"tc qdisc add dev {NS}0 root tbf rate {rate} burst 4kb latency 500ms")

    def client(self, server, n, tokens):
        return subprocess.Popen(["ip", "netns", "exec", NS, sys.executable, __file__, "--client", f"{server.host}:{server.port}:{n}:{tokens}"],
                                stdout=subprocess.PIPE, text=True)

    def cut(self):
        sh(f"ip link set {NS}0 down")

    def close(self):
        sh(f"ip netns del {NS}; ip link del {NS}0")


def slow(a):
    line = Line("16kbit")
    try:
        s = Server(a.model, "--prompt-cache", "0.05", host="0.0.0.0")
        alone = time.time()
        s.host = "127.0.0.1"
        first = asyncio.run(stream(s.host, s.port, 1, 32))
        alone = time.time() - alone
        s.host = HERE
        clients = line.client(s, 12, 400)
        s.host = "127.0.0.1"
        time.sleep(10)
        rss = s.rss_kb()
        t0 = time.time()
        others = [asyncio.run(stream(s.host, s.port, i, 32)) for i in range(5)]
        took = (time.time() - t0) / 5
        time.sleep(max(5, min(a.minutes * 60, 60)))
        grown = s.rss_kb() - rss
        clients.kill()
        clients.wait()
        return [(first == "done" and others == ["done"] * 5, f"streams of others: {set(others)}"),
                (took < 10 * alone + 2, f"{took:.1f} s a stream beside 12 slow clients, {alone:.1f} s alone"),
                (grown < MARGIN_KB, f"resident memory grew by {grown} kB"), (s.quiet(60), "nothing runs afterwards"),
                (s.stop(), "SIGTERM ends it with 0")]
    finally:
        line.close()


def vanished(a):
    line = Line()
    try:
        s = Server(a.model, "--prompt-cache", "0.05", host="0.0.0.0")
        s.host = HERE
        clients = line.client(s, 16, 4000)
        s.host = "127.0.0.1"
        end = time.time() + 20
        while s.metric("hearth_requests_running") == 0 and time.time() < end:
            time.sleep(0.1)
        busy = s.metric("hearth_requests_running")
        line.cut()
        t0 = time.time()
        gone = s.quiet(90)
        took = time.time() - t0
        clients.kill()
        clients.wait()
        after = asyncio.run(stream(s.host, s.port, 1, 8))
        return [(busy > 0 and gone, f"{busy:.0f} generations of vanished clients ended {took:.0f} s after the line was cut"),
                (after == "done", "others are served"), (s.stop(), "SIGTERM ends it with 0")]
    finally:
        line.close()


FAULTS = {"idle": (idle, False), "streams": (streams, False), "slow": (slow, True), "vanished": (vanished, True)}


def client(spec):
    host, port, n, tokens = spec.split(":")

    async def run():
        print(await asyncio.gather(*(stream(host, int(port), i, int(tokens), limit=2048) for i in range(int(n)))))

    asyncio.run(run())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="which; default: all")
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--model", default="smollm2")
    p.add_argument("--client", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.client:
        return client(a.client)
    if a.model == "smollm2":
        subprocess.run([HEARTH, "get", "smollm2"], check=True, stdout=subprocess.DEVNULL)
    unknown = set(a.names) - set(FAULTS)
    if unknown:
        sys.exit(f"soak: no fault called {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    passed = failed = skipped = 0
    for name in a.names or FAULTS:
        run, root = FAULTS[name]
        if root and (os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc")):
            skipped += 1
            print(f"{name}: not run: it needs root, ip and tc", flush=True)
            continue
        try:
            results = run(a)
        except RuntimeError as e:
            skipped += 1
            print(f"{name}: not run: {e}", flush=True)
            continue
        for ok, text in results:
            passed += ok
            failed += not ok
            print(f"{name}: {'ok    ' if ok else 'FAILED'} {text}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} not run")
    sys.exit(failed != 0)


main()
