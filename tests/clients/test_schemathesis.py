"""schemathesis on /openapi.json: thousands of generated requests, none may bring a server error or an answer unlike the page."""
import pathlib
import re
import subprocess
import sys

TOOL = pathlib.Path(sys.executable).with_name("schemathesis")


def test_openapi(server, tmp_path):
    r = subprocess.run([TOOL, "run", server.url + "/openapi.json", "--max-examples", "2", "--seed", "1", "--phases", "examples,coverage,fuzzing", "--checks",
                        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"],
                       cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert r.returncode == 0, r.stdout[-6000:]
    assert int(re.search(r"(\d+) generated", r.stdout)[1]) > 1000
