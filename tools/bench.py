#!/usr/bin/env python3
"""./dev bench: hearth beside a native llama.cpp (llama-cpp-python builds it here), same GGUF, same threads, alternating, medians.

  ./dev bench [--gguf F] [--threads 1,2] [--prompts 128,512] [--depths 0,1024] [--repeats 5] [--numerics default,int8]
              [--json OUT] [--no-peer] [--server] [--streams 1,4,16 [--llama-server PROGRAM]]

Prints one table: prefill and decode tok/s, ratio to the peer, peak resident memory, load time. --server adds the server's
own figures; --streams prints only a table of servers under that many streams at once. The peers live in a virtual environment
of their own ($XDG_CACHE_HOME/hearth-dev/peers), made on first use (building llama.cpp takes about ten minutes).
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEARTH = ROOT / "build" / "hearth"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
PEERS = CACHE / "hearth-dev" / "peers"

PEER_PROGRAM = r"""
import ctypes, json, resource, sys, time
import numpy as np
import llama_cpp as L
path, threads, prompts, depths, tokens = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:5]), int(sys.argv[5])
quiet = L.llama_log_callback(lambda *a: None)
L.llama_log_set(quiet, ctypes.c_void_p(0))
start = time.perf_counter()
model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
params = L.llama_context_default_params()
params.n_ctx = max([*prompts, *depths]) + tokens + 64
params.n_batch, params.n_ubatch = 2048, 512
params.n_threads = params.n_threads_batch = threads
ctx = L.llama_init_from_model(model, params)
load = time.perf_counter() - start
memory = L.llama_get_memory(ctx)
vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
rng = np.random.default_rng(0)

def run(ids):
    a = (L.llama_token * len(ids))(*map(int, ids))
    assert L.llama_decode(ctx, L.llama_batch_get_one(a, len(ids))) == 0
    return int(np.ctypeslib.as_array(L.llama_get_logits_ith(ctx, -1), (vocab,)).argmax())

run(rng.integers(0, vocab, 64))
out = {"prefill": {}, "decode": {}, "load_s": load}
for n in prompts:
    L.llama_memory_clear(memory, True)
    ids = rng.integers(0, vocab, n)
    start = time.perf_counter()
    run(ids)
    out["prefill"][n] = n / (time.perf_counter() - start)
for d in depths:
    L.llama_memory_clear(memory, True)
    x = run(rng.integers(0, vocab, max(d, 1)))
    start = time.perf_counter()
    for _ in range(tokens):
        x = run([x])
    out["decode"][d] = tokens / (time.perf_counter() - start)
out["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(out))
"""


def peer_python():
    python = PEERS / "bin" / "python"
    if not (PEERS / "ready").exists():
        print("building llama.cpp for the comparison (about ten minutes) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([PEERS / "bin" / "pip", "install", "-q", "--no-binary", "llama-cpp-python", "llama-cpp-python", "xllamacpp",
                        "numpy"], check=True)
        (PEERS / "ready").touch()
    return python


def run_peer(a, threads):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    out = subprocess.run([peer_python(), "-c", PEER_PROGRAM, a.gguf, str(threads), json.dumps(a.prompts), json.dumps(a.depths),
                          str(a.tokens)], check=True, capture_output=True, text=True, env=env).stdout
    r = json.loads(out.splitlines()[-1])
    return {**r, "prefill": {int(k): v for k, v in r["prefill"].items()}, "decode": {int(k): v for k, v in r["decode"].items()}}


def run_hearth(a, threads, numerics):
    start = time.perf_counter()
    p = subprocess.Popen([HEARTH, "bench", a.gguf, "--json", "--runs", "1", "--threads", str(threads), "--numerics", numerics,
                          "--prompts", ",".join(map(str, a.prompts)), "--depths", ",".join(map(str, a.depths)), "--tokens",
                          str(a.tokens), "--context-length", str(max(a.prompts + a.depths) + a.tokens + 64)],
                         stdout=subprocess.PIPE, text=True)
    text = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    assert status == 0
    r = json.loads(text)
    return {"prefill": {x["tokens"]: x["tok_s"] for x in r["prefill"]}, "decode": {x["depth"]: x["tok_s"] for x in r["decode"]},
            "share": {x["depth"]: x["bandwidth_share"] for x in r["decode"]}, "rss_mb": r["rss_mb"], "load_s": r["load_s"],
            "bandwidth_gbs": r["bandwidth_gbs"]}


def medians(runs):
    out = {}
    for key in ("prefill", "decode", "share"):
        if key in runs[0]:
            out[key] = {k: statistics.median(r[key][k] for r in runs) for k in runs[0][key]}
    for key in ("rss_mb", "load_s", "bandwidth_gbs"):
        if key in runs[0]:
            out[key] = statistics.median(r[key] for r in runs)
    return out


def compare(a):
    """Every column once per round, in turn, so that a drifting machine hurts all alike."""
    columns = [(f"hearth {n}", lambda t, n=n: run_hearth(a, t, n)) for n in a.numerics]
    if not a.no_peer:
        columns.append(("llama.cpp", lambda t: run_peer(a, t)))
    results = {}
    for threads in a.threads:
        runs = {name: [] for name, _ in columns}
        for _ in range(a.repeats):
            for name, run in columns:
                runs[name].append(run(threads))
        results[threads] = {name: medians(r) for name, r in runs.items()}
        show(a, threads, results[threads])
    return results


def show(a, threads, r):
    peer = r.get("llama.cpp")
    print(f"\n{pathlib.Path(a.gguf).name}, {threads} thread(s), medians of {a.repeats}; read bandwidth "
          f"{next(iter(r.values()))['bandwidth_gbs']:.1f} GB/s")
    print("| | " + " | ".join(r) + (" | ratio |" if peer else " |"))
    print("|---" * (len(r) + 1 + bool(peer)) + "|")

    def row(label, get, form="{:.1f}"):
        values = {name: get(x) for name, x in r.items()}
        cells = [form.format(v) if v is not None else "" for v in values.values()]
        ratios = [f"{v / values['llama.cpp']:.2f}" for n, v in values.items() if n != "llama.cpp" and v] if peer else []
        print(f"| {label} | " + " | ".join(cells + (["/".join(ratios)] if peer else [])) + " |")

    for n in a.prompts:
        row(f"prefill {n} tok/s", lambda x: x["prefill"][n])
    for d in a.depths:
        row(f"decode at {d} tok/s", lambda x: x["decode"][d])
        print(f"| share of bandwidth | " + " | ".join(f"{100 * x['share'][d]:.0f} %" if "share" in x else "" for x in r.values()) +
              (" | |" if peer else " |"))
    row("peak resident MB", lambda x: x["rss_mb"])
    row("load s", lambda x: x["load_s"], "{:.3f}")


# ---- the server ------------------------------------------------------------------------------------------------------
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, body):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    return r.status, r.read()


def server_figures(a):
    port = free_port()
    start = time.perf_counter()
    p = subprocess.Popen([HEARTH, "serve", a.gguf, "--port", str(port), "--log-level", "error"], stderr=subprocess.DEVNULL)
    try:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 1, "temperature": 0}
        while True:
            try:
                if ask(port, body)[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.005)
        print(f"\nserver: first answer {time.perf_counter() - start:.3f} s after start")
        long = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 200, "temperature": 0,
                "stream": True, "ignore_eos": True}
        start = time.perf_counter()
        tokens = ask(port, long)[1].count(b"data: ") - 3
        print(f"server: one stream {tokens / (time.perf_counter() - start):.1f} tok/s, HTTP included")
        start = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(200) as pool:
            replies = list(pool.map(lambda _: ask(port, {**body, "max_tokens": 8}), range(200)))
        ok = sum(s == 200 for s, _ in replies)
        refused = sum(s == 429 for s, _ in replies)
        print(f"server: 200 at once in {time.perf_counter() - start:.1f} s: {ok} answered, {refused} told to come back (429)")
    finally:
        p.send_signal(signal.SIGTERM)
        p.wait(30)


# ---- servers under several streams -----------------------------------------------------------------------------------
XLLAMACPP_PROGRAM = r"""
import sys, time
import xllamacpp as X
p = X.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[5])
p.verbosity, p.warmup, p.cache_ram_mib = 0, False, 0
server = X.Server(p)
while True:
    time.sleep(1)
"""


def server_commands(a, port, threads):
    """Name -> command line. Each serves the widest row of the table: as many slots as streams, the same context for each."""
    slots = max(a.streams)
    context = a.stream_prompt + a.stream_tokens + 64
    commands = {
        "hearth": [HEARTH, "serve", a.gguf, "--port", str(port), "--threads", str(threads), "--batch", str(slots), "--log-level", "error"],
        "xllamacpp": [peer_python(), "-c", XLLAMACPP_PROGRAM, a.gguf, str(port), str(slots), str(slots * context), str(threads)],
    }
    if a.llama_server:
        commands["llama-server"] = [a.llama_server, "-m", a.gguf, "--port", str(port), "-np", str(slots), "-c", str(slots * context),
                                    "-t", str(threads), "--log-disable"]
    return commands


def stream_prompt(words, number):
    """Different from its first word on, so that no server can share a prefix between streams or rounds."""
    vocabulary = "river stone garden window music winter story market paper light bread horse island doctor colour engine".split()
    return f"{number}: " + " ".join(vocabulary[(i * 7 + number * 3 + i * i) % len(vocabulary)] for i in range(words))


def one_stream(port, prompt, tokens):
    """(seconds to the first text, tokens that came, prompt tokens)"""
    start, first, usage = time.perf_counter(), None, {}
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
                                                     "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    for line in r:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - start
            usage = json.loads(line[6:]).get("usage") or usage
    return first, usage["completion_tokens"], usage["prompt_tokens"]


def measure_streams(command, port, streams, prompt_words, tokens, round_number):
    """{n: (tokens of replies a second over all streams, median time to first text)} of one server, started here."""
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(3000):
            assert p.poll() is None, f"{command[0]} ended with {p.returncode}"
            try:
                one_stream(port, "hello", 2)
                break
            except (OSError, AssertionError, http.client.HTTPException):
                time.sleep(0.1)
        out = {}
        for n in streams:
            prompts = [stream_prompt(prompt_words, 1000 * round_number + 100 * n + i) for i in range(n)]
            start = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(n) as pool:
                replies = list(pool.map(lambda prompt: one_stream(port, prompt, tokens), prompts))
            seconds = time.perf_counter() - start
            assert all(got == tokens for _, got, _ in replies), replies
            out[n] = (n * tokens / seconds, statistics.median(first for first, _, _ in replies), replies[0][2])
        return out
    finally:
        p.terminate()
        try:
            p.wait(30)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


def compare_servers(a):
    """Every server once per round, in turn; medians."""
    for threads in a.threads:
        runs = {}
        for number in range(a.repeats):
            port = free_port()
            for name, command in server_commands(a, port, threads).items():
                runs.setdefault(name, []).append(measure_streams(command, port, a.streams, a.stream_prompt, a.stream_tokens, number))
        print(f"\n{pathlib.Path(a.gguf).name}, {threads} thread(s): reply tok/s over all streams (median time to first text), "
              f"prompts of {runs['hearth'][0][a.streams[0]][2]} tokens, {a.stream_tokens} generated, medians of {a.repeats}")
        print("| streams | " + " | ".join(runs) + " |")
        print("|---" * (len(runs) + 1) + "|")
        for n in a.streams:
            cells = [f"{statistics.median(r[n][0] for r in rounds):.1f} ({statistics.median(r[n][1] for r in rounds):.2f} s)"
                     for rounds in runs.values()]
            print(f"| {n} | " + " | ".join(cells) + " |")


def main():
    numbers = lambda s: [int(x) for x in s.split(",")]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf")
    p.add_argument("--threads", type=numbers, default=[2, 1])
    p.add_argument("--prompts", type=numbers, default=[128, 512])
    p.add_argument("--depths", type=numbers, default=[0, 1024])
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--numerics", type=lambda s: s.split(","), default=["default", "int8"])
    p.add_argument("--no-peer", action="store_true")
    p.add_argument("--server", action="store_true")
    p.add_argument("--streams", type=numbers, help="compare servers under this many streams at once")
    p.add_argument("--stream-prompt", type=int, default=256, help="words of a prompt")
    p.add_argument("--stream-tokens", type=int, default=64)
    p.add_argument("--llama-server", help="a native llama-server to compare with, beside xllamacpp's")
    p.add_argument("--json")
    a = p.parse_args()
    if not a.gguf:
        a.gguf = subprocess.run([HEARTH, "get", "smollm2"], check=True, capture_output=True, text=True).stdout.strip()
    if a.streams:
        compare_servers(a)
        return
    results = compare(a)
    if a.server:
        server_figures(a)
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
