"""The verbs that open a model: on tiny checkpoints of tests/data, and on SmolLM2 out of its package."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import DATA, HEARTH

TINY = DATA / "models" / "llama-q4"
GGUF = DATA / "models" / "llama_plain-bf16.gguf"


def test_inspect(hearth, smollm2):
    r = json.loads(hearth("inspect", smollm2, "--json").stdout)
    assert (r["architecture"], r["tier"], r["quantization"], r["layers"]) == ("llama", "targeted", "Q4_1", 30)
    assert r["parameters"] == 134515008
    assert r["kv_bytes_per_token"] == 2 * 30 * 3 * 64 * 2  # k and v, layers, heads, width, f16
    assert r["file_bytes"] == smollm2.stat().st_size
    text = hearth("inspect", TINY).stdout
    assert re.search(r"^quantization +4-bit g64$", text, re.M)


def test_ls_shows_what_is_in_the_store(hearth, store):
    folder = store / "models"
    folder.mkdir()
    (folder / "tiny").symlink_to(TINY)
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": "nonesuch"}')
    listed = {m["name"]: m for m in json.loads(hearth("ls", "--json").stdout)}
    assert listed["tiny"]["tier"] == "targeted" and listed["tiny"]["quantization"] == "4-bit g64"
    assert listed["broken"]["tier"] is None and listed["broken"]["problem"]
    assert "not usable" in hearth("ls").stdout
    assert json.loads(hearth("ls", "TIN", "--json").stdout)[0]["name"] == "tiny"
    assert hearth("inspect", "tin").returncode == 0  # by part of the name
    (folder / "tiny2").symlink_to(TINY)
    r = hearth("inspect", "tin")
    assert r.returncode == 1 and "several models" in r.stderr
    assert hearth("inspect", "tiny").returncode == 0  # the exact name wins


def test_an_empty_name_is_no_model(hearth, store):
    (store / "models" / "only").mkdir(parents=True)
    os.symlink(DATA / "models" / "llama_plain-bf16.gguf", store / "models" / "only" / "m.gguf")
    assert hearth("inspect", "onl").returncode == 0
    r = hearth("inspect", "")
    assert r.returncode == 3 and "no model ''" in r.stderr


def test_an_unknown_architecture_is_refused_by_name(hearth, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    (tmp_path / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes())
    r = hearth("inspect", tmp_path)
    assert r.returncode == 1 and "nonesuch" in r.stderr and "llama" in r.stderr


@pytest.mark.parametrize("text", ["Hello world", " naïve\n\n  café 😀", "<|im_start|>user", "", "-5"])
def test_tokenize_and_back(hearth, smollm2, text):
    plain = json.loads(hearth("tokenize", smollm2, text).stdout)
    assert hearth("detokenize", smollm2, json.dumps(plain)).stdout == text
    assert json.loads(hearth("tokenize", smollm2, "-", stdin=text).stdout) == plain
    if text.startswith("<|im_start|>"):
        special = json.loads(hearth("tokenize", smollm2, text, "--special").stdout)
        assert special[0] == 1 and 1 not in plain
        assert hearth("detokenize", smollm2, "-", "--skip-special", stdin=json.dumps(special)).stdout == "user"


def test_tokenize_refuses_what_is_no_text(hearth, smollm2):
    r = hearth("tokenize", smollm2, "-", stdin=b"a\xff")
    assert r.returncode == 1 and b"UTF-8" in r.stderr
    assert hearth("detokenize", smollm2, "99999999").returncode == 1
    assert hearth("detokenize", smollm2, "1,x").returncode == 2


def test_render(hearth, smollm2, tmp_path):
    messages = tmp_path / "m.json"
    messages.write_text(json.dumps([{"role": "user", "content": "Hi"}]))
    text = hearth("render", smollm2, "--messages", messages).stdout
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert not hearth("render", smollm2, "--messages", messages, "--no-generation-prompt").stdout.endswith("assistant\n")
    template = tmp_path / "t.jinja"
    template.write_text("{{ greeting }} {{ messages|length }} {{ tools[0].name }}{% if add_generation_prompt %}!{% endif %}")
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "f"}]')
    args = ["render", "--template", template, "--messages", messages, "--tools", tools]
    assert hearth(*args, "--kwargs", '{"greeting": "hey"}').stdout == "hey 1 f!"
    assert hearth(*args, "--kwargs", "[1]").returncode == 1
    template.write_text("{{ raise_exception('no thanks') }}")
    r = hearth(*args)
    assert r.returncode == 1 and "no thanks" in r.stderr


def test_kv_quant(hearth, tmp_path):
    """The option reaches the cache: other logits, near the exact ones; what cannot be is refused with the reason."""
    ids, rows = "7,3,250,12,99,41,5,17", {}
    for kv in ("off", "8", "4", "turbo"):
        r = hearth("logits", TINY, "--ids", ids, "--out", tmp_path / kv, "--kv-quant", kv)
        assert r.returncode == 0, r.stderr
        rows[kv] = load_file(tmp_path / kv)["logits"]
    far = [np.abs(rows[kv] - rows["off"]).max() for kv in ("8", "turbo", "4")]
    assert 0 < far[0] < far[1] < 10 and far[0] < far[2] < 10
    for kv, text in (("7", "kv-quant must be off, 8, 4, config, turbo"), ("config", "kv_config.json")):
        r = hearth("logits", TINY, "--ids", ids, "--out", tmp_path / "x", "--kv-quant", kv)
        assert r.returncode != 0 and text in r.stderr and not (tmp_path / "x").exists()
    r = hearth("logits", TINY, "--ids", ids, "--out", tmp_path / "x", "--kv-quant", "8", "--kv-group-size", 48)
    assert r.returncode != 0 and "32, 64 or 128" in r.stderr


def test_logits(hearth, tmp_path):
    out, again, ids = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "ids"
    prompt = [3, 17, 200, 9, 41]
    assert hearth("logits", TINY, "--ids", ",".join(map(str, prompt)), "--greedy", 6, "--out", out).returncode == 0
    t = load_file(out)
    assert t["logits"].shape == (5, 288) and t["greedy_logits"].shape == (6, 288) and t["greedy_ids"].dtype == np.int32
    assert (t["greedy_ids"] == t["greedy_logits"].argmax(1)).all()
    assert (t["greedy_logits"][0] == t["logits"][-1]).all()
    ids.write_text(json.dumps(prompt + t["greedy_ids"].tolist()))  # the same tokens as one prompt: the same bits
    assert hearth("logits", TINY, "--ids-file", ids, "--out", again, "--threads", 1, "--prefill-chunk", 3).returncode == 0
    whole = load_file(again)["logits"]
    assert (whole[:5] == t["logits"]).all() and (whole[4:10] == t["greedy_logits"]).all()
    assert hearth("logits", TINY, "--ids", "288", "--out", out).returncode == 1
    assert hearth("logits", TINY, "--ids", "1", "--out", tmp_path / "no" / "where").returncode == 1


def test_logits_depend_on_numerics_and_nothing_else(hearth, tmp_path):
    rows = {}
    for name, args, env in [("default", [], {}), ("ref", [], {"HEARTH_CPU": "ref"}), ("avx2", [], {"HEARTH_CPU": "avx2"}),
                            ("f32", ["--numerics", "f32"], {}), ("int8", ["--numerics", "int8"], {})]:
        out = tmp_path / name
        r = hearth("logits", TINY, "--ids", "5,6,7,8", "--out", out, *args, env=env)
        assert r.returncode == 0, r.stderr
        rows[name] = load_file(out)["logits"]
    assert (rows["ref"] == rows["default"]).all() and (rows["avx2"] == rows["default"]).all()
    assert 0 < abs(rows["f32"] - rows["default"]).max() < 1e-2 < abs(rows["f32"] - rows["int8"]).max() < 1
    r = hearth("logits", TINY, "--ids", "5", "--out", tmp_path / "x", env={"HEARTH_CPU": "avx1"})
    assert r.returncode != 0 and "avx1" in r.stderr and "avx512" in r.stderr


def test_generate_answers(hearth, smollm2):
    r = hearth("generate", smollm2, "What is the capital of France?", "--temperature", 0)
    assert r.returncode == 0 and r.stdout == "The capital of France is Paris.\n"
    assert "prompt 37 tokens" in r.stderr
    piped = hearth("generate", smollm2, "-", "--temperature", 0, "--quiet", stdin="What is the capital of France?")
    assert piped.stdout == r.stdout and piped.stderr == ""


def test_generate_options_take_effect(hearth, smollm2):
    ask = lambda *a: hearth("generate", "--model", smollm2, "Tell me about the sea.", "--quiet", *a)
    a, b, c = ask("--seed", 1, "--max-tokens", 24), ask("--seed", 1, "--max-tokens", 24), ask("--seed", 2, "--max-tokens", 24)
    assert a.stdout == b.stdout != c.stdout
    greedy = ask("--temperature", 0, "--max-tokens", 24).stdout
    assert ask("--temperature", 5, "--top-k", 1, "--max-tokens", 24).stdout == greedy
    assert ask("--temperature", 5, "--top-p", 0, "--max-tokens", 24).stdout == greedy
    word = greedy.split()[3]
    cut = ask("--temperature", 0, "--max-tokens", 24, "--stop", word).stdout
    assert cut.rstrip("\n") == greedy[:greedy.index(word)]
    assert ask("--temperature", 0, "--max-tokens", 24, "--system", "You are a pirate.").stdout != greedy
    raw = hearth("generate", smollm2, "The capital of France is", "--raw", "--temperature", 0, "--max-tokens", 5, "--quiet")
    assert "Paris" in raw.stdout
    too_long = hearth("generate", smollm2, "Hi", "--max-tokens", 100000)
    assert too_long.returncode == 4 and "8192" in too_long.stderr


def test_chat_remembers_the_conversation(hearth, smollm2):
    talk = "My name is Ada.\nWhat is my name?\n/new\nWhat is my name?\n/exit\n"
    r = hearth("chat", smollm2, "--temperature", 0, "--max-tokens", 40, stdin=talk)
    assert r.returncode == 0
    assert "a new conversation" in r.stderr
    first, rest = r.stdout.split("\n", 1)
    assert "Ada" in r.stdout
    assert r.stderr.count("prompt ") == 3


def wait_for(pid, fd, seconds):
    """Reads on: restoring the terminal waits until its output was taken."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            if select.select([fd], [], [], 0.02)[0]:
                os.read(fd, 4096)
        except OSError:  # the other end is closed
            pass
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the program did not end")


def test_chat_in_a_terminal(store, smollm2):
    """A pseudo-terminal: prompt, a reply that streams, Ctrl-C stops the reply and not the program, Ctrl-D ends."""
    pid, fd = pty.fork()
    if pid == 0:
        env = {**os.environ, "HEARTH_HOME": str(store), "XDG_CACHE_HOME": str(store), "TERM": "xterm"}
        os.execve(HEARTH, [str(HEARTH), "chat", str(smollm2), "--temperature", "0"], env)
    seen = b""

    def until(pattern, limit=60):
        nonlocal seen
        end = time.time() + limit
        while not re.search(pattern, seen) and time.time() < end:
            if select.select([fd], [], [], 1)[0]:
                seen += os.read(fd, 4096)
        assert re.search(pattern, seen), seen
        seen = seen[re.search(pattern, seen).end():]

    def prompt():
        """The prompt is written before libedit takes the terminal over: what is typed between is echoed twice, and a
        Ctrl-D there is lost."""
        until(rb"> ")
        end = time.time() + 10
        while termios.tcgetattr(fd)[3] & termios.ICANON and time.time() < end:
            time.sleep(0.005)

    prompt()
    os.write(fd, b"What is the capital of France?\r")
    until(rb"(?s)Paris.*tok/s; reply \d+ tokens")
    prompt()
    os.write(fd, b"Write a very long story about a ship.\r")
    until(rb"ship\.\s*\n")
    until(rb"\w{3}")
    os.write(fd, b"\x03")
    until(rb"reply \d+ tokens")
    prompt()
    os.write(fd, b"\x04")
    status = wait_for(pid, fd, 10)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "capital" in (store / "hearth" / "chat_history").read_text()


def test_bench_prints_json(hearth):
    r = json.loads(hearth("bench", TINY, "--json", "--prompts", "16,32", "--depths", "0,8", "--tokens", 4, "--runs", 1).stdout)
    assert [p["tokens"] for p in r["prefill"]] == [16, 32] and [d["depth"] for d in r["decode"]] == [0, 8]
    assert all(p["tok_s"] > 0 for p in r["prefill"]) and 0 < r["decode"][0]["bandwidth_share"]
    assert r["decode"][1]["bytes_per_token"] > r["decode"][0]["bytes_per_token"] > 0


def test_interrupt_ends_generate(store, smollm2):
    p = subprocess.Popen([HEARTH, "generate", smollm2, "Write a very long story.", "--temperature", "0"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    assert p.stdout.read(1)
    p.send_signal(signal.SIGINT)
    assert p.wait(10) == 130


def test_a_full_output_is_an_error(smollm2):
    with open("/dev/full", "w") as full:
        assert subprocess.run([HEARTH, "tokenize", smollm2, "hello"], stdout=full, stderr=subprocess.PIPE).returncode == 1
