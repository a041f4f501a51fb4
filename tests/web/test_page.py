"""The web chat in a browser."""
import os
import re
import time

import pytest

REPLY = """Here is **bold**, *soft*, `code` and a [link](https://example.org/a_(b)).

## Steps

1. Measure twice.
2. Cut once:
   - with a saw
   - carefully
3. Done.

```python
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
```

| kind | price |
|------|-------|
| oak  | 40    |
| pine | 12    |

> Quoted *words*.

snake_case_name stays, 2 * 3 * 4 too."""


def shot(page, name):
    """Pictures for a person to look at: HEARTH_SHOTS=DIR."""
    if os.environ.get("HEARTH_SHOTS"):
        page.screenshot(path=f"{os.environ['HEARTH_SHOTS']}/{name}.png")


def test_streaming_and_speed(chat, server):
    chat.send(chat.script(text="one two three four", delay_ms=60))
    text = chat.page.locator(".turn.assistant .text")
    seen = set()
    while chat.page.locator("#stop:visible").count():
        seen.add(text.inner_text())
        time.sleep(0.05)
    assert len(seen) > 4  # it came in pieces
    assert text.inner_text() == "one two three four"
    assert re.fullmatch(r"18 tokens · [\d.]+ tok/s · [\d.]+ s to the first", chat.page.locator(".stats").inner_text())
    assert chat.page.locator("#model").inner_text() == "test/scripted"
    assert chat.page.locator("#status").inner_text() == "The reply is complete."


def test_stop_button_cancels(chat, server):
    before = server.metric("hearth_requests_cancelled_total")
    chat.send(chat.script(text="tick ", endless=True, delay_ms=30))
    chat.until("document.querySelector('.turn.assistant .text').textContent.length > 10")
    chat.page.click("#stop")
    server.wait_metric("hearth_requests_cancelled_total", before + 1)
    text = chat.done()
    assert "tick" in text.inner_text() and "Stopped" in chat.page.locator(".meta").last.inner_text()
    n = len(text.inner_text())
    time.sleep(0.3)
    assert len(text.inner_text()) == n


def test_markdown(chat):
    text = chat.ask(text=REPLY)
    assert text.locator("strong").inner_text() == "bold" and text.locator("p em").first.inner_text() == "soft"
    assert text.locator("h2").inner_text() == "Steps"
    assert text.locator("ol > li").count() == 3 and text.locator("ol > li ul > li").all_inner_texts() == ["with a saw", "carefully"]
    assert text.locator("pre code").inner_text() == "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)"
    assert text.locator(".code .bar span").inner_text() == "python"
    assert text.locator("td").all_inner_texts() == ["oak", "40", "pine", "12"]
    assert text.locator("blockquote em").inner_text() == "words"
    assert text.locator("a").get_attribute("href") == "https://example.org/a_(b)"
    assert "snake_case_name stays, 2 * 3 * 4 too." in text.inner_text()
    text.locator(".code button").click()
    assert chat.page.evaluate("navigator.clipboard.readText()").startswith("def fib(n):")
    shot(chat.page, "markdown-light")


@pytest.mark.parametrize("attack", [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit = 1'>", "<svg/onload=window.hit=1>",
    "[x](javascript:window.hit=1)", "[x](  JaVaScRiPt:window.hit=1 )", "[x](data:text/html,<script>window.hit=1</script>)",
    "![x](javascript:window.hit=1)", "<javascript:window.hit=1>", "[x](vbscript:window.hit=1)",
    "```<img src=x onerror=window.hit=1>\n</code></pre><script>window.hit=1</script>\n```",
    "`<script>window.hit=1</script>`", "| <img src=x onerror=window.hit=1> | b |\n|---|---|\n| <script>window.hit=1</script> | d |",
    "# <img src=x onerror=window.hit=1>", "- <iframe srcdoc='<script>parent.hit=1</script>'>", "[<img src=x onerror=window.hit=1>](https://a.b)",
    "[a](https://x\"onmouseover=\"window.hit=1)", "<a href='javascript:window.hit=1'>x</a>", "&lt;script&gt;window.hit=1&lt;/script&gt;"])
def test_nothing_in_a_reply_becomes_markup(chat, attack):
    for text in (attack, f"a {attack} b"):
        box = chat.ask(text=text)
        assert box.locator("script, img, svg, iframe, object, embed, style, form, input").count() == 0
        for a in box.locator("a").all():
            assert re.match(r"^(https?://|mailto:)", a.get_attribute("href"))
            assert a.get_attribute("rel") == "noopener noreferrer nofollow"
        assert not [n for e in box.locator("*").all() for n in e.evaluate("e => e.getAttributeNames()") if n.startswith("on")]
    chat.send(attack)  # and what a user writes
    chat.done()
    assert chat.page.locator(".turn.user .text").last.locator("*").count() == 0
    assert chat.page.evaluate("window.hit") is None


def test_hostile_markdown_is_quick(chat):
    for text in ("*" * 3000, "[" * 3000, "> " * 500 + "x", "- " * 500 + "x", "`" * 2999, "**a" * 800, "|" * 2000 + "\n" + "|-" * 900):
        t = time.time()
        chat.ask(text=text[:3500])
        assert time.time() - t < 6


def test_page_policy(server):
    _, headers, _ = server.call("GET", "/")
    assert "script-src 'self'" in headers["Content-Security-Policy"] and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    tag = headers["ETag"]
    assert server.call("GET", "/", None, {"If-None-Match": tag})[0] == 304
    for path, kind in (("/assets/app.js", "text/javascript"), ("/assets/style.css", "text/css"), ("/favicon.ico", "image/svg+xml")):
        status, headers, data = server.call("GET", path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and data
    for path in ("/assets/../index.html", "/assets/%2e%2e/x", "/assets/nope", "/assets/"):
        assert server.call("GET", path)[0] == 404


def test_reasoning_is_folded(chat):
    text = chat.ask(text="<think>Two and two.</think>It is 4.")
    details = chat.page.locator("details.reasoning")
    assert text.inner_text() == "It is 4." and details.locator("summary").inner_text() == "Thought about it"
    assert not details.locator(".inner").is_visible()
    details.locator("summary").click()
    assert details.locator(".inner").inner_text().strip() == "Two and two."


def test_conversation_is_kept(chat, server):
    chat.ask(text="first")
    chat.page.reload()
    assert chat.page.locator(".turn .text").all_inner_texts()[-1] == "first"
    chat.send("and now?")  # no script: the engine repeats what it was told last
    assert chat.done().inner_text() == "You said: and now?"
    chat.page.click("#new")
    assert chat.page.locator(".turn").count() == 0 and chat.page.locator("#welcome").is_visible()
    chat.page.reload()
    assert chat.page.locator(".turn").count() == 0


def test_regenerate_and_edit(chat):
    chat.ask(text="first")
    chat.page.get_by_role("button", name="Regenerate").click()
    assert chat.done().inner_text() == "first" and chat.page.locator(".turn").count() == 2
    chat.page.get_by_role("button", name="Edit").click()
    assert chat.page.input_value("#input").startswith("script:") and chat.page.locator(".turn").count() == 0


def test_settings_are_sent(chat):
    chat.page.click("#settings")
    chat.page.fill("[name=temperature]", "0.25")
    chat.page.fill("[name=max_tokens]", "700")
    chat.page.fill("[name=system]", "Be kind.")
    shot(chat.page, "settings")
    chat.page.click("#options .primary")
    text = chat.ask(echo="sampling").inner_text()
    assert '"temperature":0.25' in text and '"max_tokens":700' in text
    chat.page.click("#new")
    assert "system Be kind." in " ".join(chat.ask(echo="prompt").inner_text().split())
    chat.page.reload()
    chat.page.click("#settings")
    assert chat.page.input_value("[name=temperature]") == "0.25"
    chat.page.fill("[name=temperature]", "9")
    chat.page.keyboard.press("Escape")
    chat.page.click("#settings")
    assert chat.page.input_value("[name=temperature]") == "0.25"


def test_errors_are_shown(make_chat, server):
    chat = make_chat()
    chat.ask(text="abc", fail="the device broke", fail_at=2)
    assert "the device broke" in chat.page.locator(".error").inner_text()
    assert "abc"[:2] in chat.page.locator(".turn.assistant .text").inner_text()


def test_key_is_asked_for(keyed_server, browser):
    page = browser.new_page()
    page.goto(keyed_server.url)
    page.wait_for_selector(".model.off")
    assert "API key" in page.locator("#model").inner_text()
    page.click("#settings")
    page.fill("[name=key]", "sesame")
    page.click("#options .primary")
    page.wait_for_selector("#model:text-is('test/scripted')")
    page.close()


def test_keyboard_only(chat, server):
    page = chat.page
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("line one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("line two")
    assert page.input_value("#input") == "line one\nline two" and page.locator(".turn").count() == 0
    page.keyboard.press("Enter")
    assert chat.done().inner_text().startswith("You said: line one")
    before = server.metric("hearth_requests_cancelled_total")
    page.keyboard.type(chat.script(text="tick ", endless=True, delay_ms=30))
    page.keyboard.press("Enter")
    chat.until("document.querySelectorAll('.turn.assistant .text')[1].textContent.length > 10")
    page.keyboard.press("Escape")
    server.wait_metric("hearth_requests_cancelled_total", before + 1)
    chat.done()
    assert page.evaluate("document.activeElement.id") == "input"
    order = []
    page.evaluate("document.activeElement.blur()")
    page.evaluate("document.querySelector('.skip').focus()")
    for _ in range(12):
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        page.keyboard.press("Tab")
    assert order[:3] == ["Skip to the message field", "new", "settings"]
    assert [x for x in order if x in ("Edit", "Copy", "Regenerate")] == ["Edit", "Copy", "Edit", "Copy", "Regenerate"]
    assert order.index("input") > order.index("Regenerate")


def test_aria(chat):
    page = chat.page
    assert page.locator("#log").get_attribute("role") == "log" and page.locator("#status").get_attribute("aria-live") == "polite"
    chat.send(chat.script(text="slow", delay_ms=200))
    page.wait_for_selector("#log[aria-busy=true]")
    chat.done()
    assert page.locator("#log").get_attribute("aria-busy") == "false"
    assert page.evaluate("[...document.querySelectorAll('button, input, textarea')].every(e => e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))")


def contrast(page, selector):
    return page.evaluate("""(selector) => {
        const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
        const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        let e = document.querySelector(selector), back = e;
        while (back && (rgb(getComputedStyle(back).backgroundColor)[3] ?? 1) === 0) back = back.parentElement;
        const a = light(rgb(getComputedStyle(e).color)), b = light(rgb(getComputedStyle(back).backgroundColor));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }""", selector)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(make_chat, scheme):
    chat = make_chat(color_scheme=scheme)
    shot(chat.page, f"welcome-{scheme}")
    chat.ask(text="<think>Hm.</think>" + REPLY)
    back = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back)[:3])) > 600) == (scheme == "light")
    for selector in (".turn.user .text", ".turn.assistant .text", ".text a", ".text code", ".meta button", ".stats", ".model", "#new", "#send", "#hint"):
        assert contrast(chat.page, selector) >= 4.5, selector
    chat.page.evaluate("document.getElementById('log').scrollTop = 0")
    shot(chat.page, f"chat-{scheme}")


def test_narrow_screen(make_chat):
    chat = make_chat(viewport={"width": 340, "height": 620})
    chat.ask(text=REPLY + "\n\n" + "averylongword" * 30)
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 340
    assert chat.page.evaluate("document.getElementById('log').scrollWidth <= document.getElementById('log').clientWidth")
    assert chat.page.locator("#send").is_visible() and chat.page.locator("#settings").is_visible()
    shot(chat.page, "narrow")


def test_reader_may_scroll_up(chat):
    chat.send(chat.script(text="line\n\n", endless=True, delay_ms=3))
    chat.until("document.getElementById('log').scrollHeight > 1500")
    chat.page.locator("#log").evaluate("e => { e.scrollTop = 100; }")
    time.sleep(0.4)
    assert abs(chat.page.locator("#log").evaluate("e => e.scrollTop") - 100) < 5
    chat.page.click("#down")
    chat.page.click("#stop")
    chat.done()
    assert chat.page.locator("#log").evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 60
