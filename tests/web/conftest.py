"""Debian's chromium on the page of the real server over the scripted engine (tests/api/fake_engine.c)."""
import importlib.util
import json
import pathlib
import time

import pytest
from playwright.sync_api import sync_playwright

API = pathlib.Path(__file__).resolve().parents[1] / "api/serving.py"
spec = importlib.util.spec_from_file_location("hearth_serving", API)
api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(api)


@pytest.fixture(scope="session")
def server():
    s = api.Server("--context", 500000)
    yield s
    s.stop()


@pytest.fixture
def keyed_server():
    s = api.Server("--api-key", "sesame")
    yield s
    s.stop()


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as p:
        b = p.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"])
        yield b
        b.close()


class Chat:
    """The page as a person uses it."""

    def __init__(self, page, url):
        self.page = page
        self.errors = []
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto(url)
        self.until("document.getElementById('model').textContent === 'test/scripted'")

    def until(self, expression, seconds=10):
        """wait_for_function needs eval, which the page's policy forbids."""
        end = time.time() + seconds
        while not self.page.evaluate(expression):
            assert time.time() < end, f"not within {seconds} s: {expression}"
            time.sleep(0.02)

    def script(self, **script):
        return "script:" + json.dumps(script)

    def send(self, text):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def done(self):
        self.page.wait_for_selector(".turn.assistant:last-of-type:not(.waiting)")
        self.page.wait_for_selector("#send:visible")
        return self.page.locator(".turn.assistant .text").last

    def ask(self, **script):
        self.send(self.script(**script))
        return self.done()


@pytest.fixture
def make_chat(browser, server):
    contexts = []

    def make(url=None, **options):
        context = browser.new_context(**{"viewport": {"width": 1000, "height": 760}, **options})
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url or server.url)
        return Chat(context.new_page(), url or server.url)

    yield make
    for c in contexts:
        c.close()


@pytest.fixture
def chat(make_chat):
    c = make_chat()
    yield c
    assert c.errors == []
