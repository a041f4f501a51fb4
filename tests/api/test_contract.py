"""The surface against its own tables: /openapi.json, every route with wrong methods and bodies, every field on a page of docs/."""
import concurrent.futures
import json
import re
import stat

import pytest
from serving import ROOT

ROUTES = re.findall(r'^ROUTE\("(\w+)",\s*"([^"]+)",\s*\w+,\s*([^)]*)\)', (ROOT / "src/server/routes.def").read_text(), re.M)
POSTS = sorted({path for method, path, flags in ROUTES if method == "POST" and "ROUTE_WORK" in flags and "ROUTE_UNIX" not in flags})
FRONT = [(m, p, f) for m, p, f in ROUTES if "ROUTE_UNIX" not in f]


@pytest.fixture(scope="module")
def page(server):
    status, headers, data = server.call("GET", "/openapi.json")
    assert status == 200 and headers["Content-Type"] == "application/json"
    return json.loads(data)


def error_of(path, data):
    e = json.loads(data)
    if path.startswith("/v1/messages"):
        assert e["type"] == "error" and e["request_id"].startswith("req_")
    return e["error"]


# ---- /openapi.json ---------------------------------------------------------------------------------------------------
def test_every_route_is_there(page):
    for method, path, flags in ROUTES:
        shown = path.replace("*", "{name}") in page["paths"] and method.lower() in page["paths"][path.replace("*", "{name}")]
        assert shown == ("ROUTE_HIDDEN" not in flags and "ROUTE_UNIX" not in flags), (method, path)


def resolve(page, node):
    if isinstance(node, dict):
        if "$ref" in node:
            at = page
            for key in node["$ref"].removeprefix("#/").split("/"):
                at = at[key]
            assert isinstance(at, dict)
        for v in node.values():
            resolve(page, v)
    elif isinstance(node, list):
        for v in node:
            resolve(page, v)


def test_structure(page):
    assert page["openapi"] == "3.1.0" and page["info"]["title"] == "hearth"
    resolve(page, page)
    seen = set()
    for path, item in page["paths"].items():
        for method, op in item.items():
            assert method in ("get", "post", "delete", "put") and op["responses"]["200"]["description"]
            assert op["operationId"] not in seen
            seen.add(op["operationId"])
            assert ("{name}" in path) == bool(op.get("parameters"))
            if method == "post":
                schema = op["requestBody"]["content"]["application/json"]["schema"]
                assert schema["type"] == "object" and len(schema["properties"]) > 1, path
                for field in schema["properties"].values():
                    assert field["description"] and {"type": "null"} in field["anyOf"]


def test_fields_that_functions_read_have_a_schema(page):
    special = re.findall(r"^SPECIAL\((\w+),\s*(\w+)", (ROOT / "src/server/fields.def").read_text(), re.M)
    where = {"CHAT": ["/v1/chat/completions"], "RAW": ["/v1/completions"], "BOTH": ["/v1/chat/completions", "/v1/completions"]}
    for name, surface in special:
        for path in where[surface]:
            schema = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert schema["properties"][name]["anyOf"][0] != {}, f"openapi.c knows nothing of {name}"


# ---- routes × wrong methods and bodies -----------------------------------------------------------------------------------
@pytest.mark.parametrize("path", sorted({p for _, p, f in FRONT}))
def test_wrong_methods(server, path):
    allowed = {m for m, p, _ in FRONT if p == path} | set(re.findall(r'ROUTE_LATER\("(\w+)",\s*"' + re.escape(path) + '"', (ROOT / "src/server/routes.def").read_text()))
    target = path.replace("*", "x")
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH"} - allowed:
        status, headers, data = server.call(method, target, b"{}" if method in ("POST", "PUT", "PATCH") else None)
        if method in allowed or status in (404, 501):  # a wider pattern takes it
            continue
        assert status == 405, (method, path, status)
        assert set(headers["Allow"].split(", ")) - {"HEAD", "OPTIONS"} >= allowed  # a wider pattern may add its own
        assert "allowed" in error_of(target, data)["message"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body, word", [
    (b"", "invalid JSON body"), (b"{", "invalid JSON body"), (b"null", "object"), (b"[]", "object"), (b'"x"', "object"), (b"1", "object"),
    (b'{"a":1,}', "invalid JSON body"), (b"\xff\xfe", "invalid JSON body"), (b'{"a":"\xff"}', "invalid JSON body"),
    (b'{"a":' + b"[" * 90000 + b"}", "invalid JSON body"), (b'{"a":"\\ud800"}', None), (b"\xef\xbb\xbf{}", None), (b"{}", None),
], ids="empty open null array string number comma bytes inner deep surrogate bom nothing".split())
def test_wrong_bodies(server, start, path, body, word):
    status, _, data = server.call("POST", path, body)
    assert status == 400, (path, body[:20], data[:200])
    e = error_of(path, data)
    data.decode()  # nothing invalid comes back
    assert e["type"] == "invalid_request_error" and (word is None or word in e["message"] or "embedding" in e["message"]), e


@pytest.mark.parametrize("path", POSTS)
def test_fields_of_the_wrong_type(server, page, path):
    """Each field that has a type gets values of other types: never a 500, and the field is named."""
    schema = page["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    good = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x", "content": "x", "tokens": [1], "max_tokens": 1}
    good = {k: v for k, v in good.items() if k in schema["properties"] and (k in schema.get("required", []) or k in ("input", "content", "max_tokens"))}
    for name, field in schema["properties"].items():
        if not field["description"].startswith("honoured") or field["anyOf"][0] == {}:
            continue
        types = [s.get("type") for s in [field["anyOf"][0], *field["anyOf"][0].get("anyOf", [])]]
        kinds = {t for x in types for t in (x if isinstance(x, list) else [x])}
        if any("enum" in s for s in [field["anyOf"][0], *field["anyOf"][0].get("anyOf", [])]):
            kinds.add("string")
        for kind, bad in (("object", {"q": 1}), ("boolean", True), ("string", "zz"), ("array", [[]]), ("number", 1.5)):
            if kind in kinds or (kind == "number" and "integer" in kinds):
                continue
            status, _, data = server.call("POST", path, {**good, name: bad})
            assert status == 400, (path, name, bad, status, data[:200])
            error_of(path, data)


def test_every_field_of_other_surfaces_is_documented():
    pages = {"MESSAGES": "messages.md", "RESPONSES": "responses.md", "EMBEDDINGS": "embeddings.md", "TOKENIZE": "http.md", "DETOKENIZE": "http.md"}
    rows = re.findall(r"^(?:PASS|READ|ACCEPTED|REFUSED)\(([A-Z_ |]+), (\w+),", (ROOT / "src/server/surface_fields.def").read_text(), re.M)
    assert len(rows) > 75
    for surfaces, name in rows:
        for s in surfaces.split("|"):
            text = (ROOT / "docs" / pages[s.strip().removeprefix("SURFACE_")]).read_text()
            assert name in text or name.endswith("_context_size"), (s, name)


# ---- nothing of one request shows in another -------------------------------------------------------------------------------
def test_planted_markers(server):
    """All surfaces at once, each request with words of its own: no answer holds another's."""
    def one(i):
        mark = f"marker{i:04d}q"
        script = "script:" + json.dumps({"text": f"<think>think {mark}</think>say {mark}" * 3, "delay_ms": i % 3})
        chat = [{"role": "system", "content": f"sys {mark}"}, {"role": "user", "content": script}]
        stream = i % 2 == 0
        path, body = [
            ("/v1/chat/completions", {"messages": chat, "stream": stream}),
            ("/v1/completions", {"prompt": script, "stream": stream}),
            ("/v1/messages", {"messages": chat[1:], "system": mark, "max_tokens": 500, "stream": stream}),
            ("/v1/responses", {"input": chat, "stream": stream, "metadata": {"m": mark}}),
            ("/tokenize", {"content": mark, "with_pieces": True}),
            ("/apply-template", {"messages": chat}),
            ("/v1/chat/completions", {"messages": chat, mark: 1, "temperature": f"bad {mark}"}),
        ][i % 7]
        status, headers, data = server.call("POST", path, body)
        return i, path, mark, status, str(headers) + data.decode()

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        for i, path, mark, status, text in pool.map(one, range(210)):
            assert status == (400 if i % 7 == 6 else 200), text
            assert set(re.findall(r"marker\d{4}q", text)) <= {mark}, (path, mark)


# ---- logs and traces ---------------------------------------------------------------------------------------------------
def test_trace(start, tmp_path):
    s = start("--trace", tmp_path, "--api-key", "top-secret-key")
    auth = {"Authorization": "Bearer top-secret-key", "Content-Type": "application/json"}
    script = 'script:{"text":"<think>a</think>bc"}'
    status, headers, _ = s.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": script}], "n": 2}, auth)
    assert status == 200
    s.call("POST", "/v1/messages", {"messages": [{"role": "user", "content": script}], "max_tokens": 5, "stream": True}, auth)
    s.call("GET", "/v1/models", None, auth)
    s.stop()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2 and all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)
    t = json.loads((tmp_path / (headers["X-Request-Id"] + ".json")).read_text())
    assert t["prompt"].startswith("<|im_start|>user\nscript:") and t["prompt"].endswith("<|im_start|>assistant\n")
    assert t["prompt_tokens"][0] == 256 and len(t["prompt_tokens"]) > 30 and t["system_fingerprint"] == "fake-1"
    assert [r["tokens"] for r in t["replies"]] == [list(b"<think>a</think>bc")] * 2 and t["replies"][0]["finish"] == "stop"
    other = json.loads([f for f in files if headers["X-Request-Id"] not in f.name][0].read_text())
    assert other["replies"][0] == {"finish": "length", "tokens": list(b"<thin")}
    assert "top-secret-key" not in "".join(f.read_text() for f in files) + "".join(s.log)


def test_one_line_a_request(start):
    s = start()
    secret = "sk-very-secret"
    s.call("POST", "/v1/messages?key=" + secret, {"messages": [{"role": "user", "content": "private words"}], "max_tokens": 4, "stream": True}, {"x-api-key": secret})
    s.call("POST", "/v1/embeddings", {"input": "x"})
    s.stop()
    first, second = s.requests_logged()
    assert first["path"] == "/v1/messages" and first["status"] == 200 and first["stream"] and first["finish"] == "length"
    for key in ("queued_ms", "prefill_ms", "decode_ms", "total_ms", "first_byte_ms", "prompt_tokens", "cached_tokens", "completion_tokens"):
        assert key in first
    assert second["status"] == 400 and second["error"] == "INVALID"
    assert secret not in "".join(s.log) and "private" not in "".join(s.log)


# ---- same fingerprint, same request, same bytes ----------------------------------------------------------------------------
def test_fingerprint_and_seed(real):
    """docs/http.md promises it: two processes, one of them with company and other chunks."""
    def stories(s):
        def one(seed):
            status, _, data = s.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story"}], "seed": seed,
                                                                      "temperature": 1.2, "max_tokens": 40, "logprobs": True})
            r = json.loads(data)
            assert status == 200, r
            return r["system_fingerprint"], r["choices"][0]["message"]["content"], [t["logprob"] for t in r["choices"][0]["logprobs"]["content"]]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            return list(pool.map(one, [1, 2, 3, 1, 2, 3]))

    model = ROOT / "tests/data/models/drafter-4bit"
    a = stories(real(model))
    b = stories(real(model, "--batch", "2", "--prefill-chunk", "7"))
    assert a == b and a[:3] == a[3:] and len({x[1] for x in a}) == 3
    assert a[0][0].startswith("hearth-") and "default" in a[0][0]
    c = stories(real(model, "--numerics", "f32"))
    assert c[0][0] != a[0][0]
