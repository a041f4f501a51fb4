"""aider as a program: it asks the scripted model for a change, gets an edit block, and the file is changed."""
import json
import os
import pathlib
import subprocess
import sys

AIDER = pathlib.Path(sys.executable).with_name("aider")
EDIT = """I will greet the world.

hello.py
```python
<<<<<<< SEARCH
print("hello")
=======
print("hello, world")
>>>>>>> REPLACE
```
"""


def run(server, folder, stream):
    env = {**os.environ, "HOME": str(folder), "OPENAI_API_KEY": "k", "OPENAI_API_BASE": server.url + "/v1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
           "AIDER_ANALYTICS": "false", "NO_COLOR": "1"}
    return subprocess.run([AIDER, "--model", "openai/scripted", "--edit-format", "diff", "--yes-always", "--no-check-update", "--no-show-model-warnings",
                           "--no-show-release-notes", "--no-gitignore", "--map-tokens", "0", "--no-auto-commits", "--no-dirty-commits",
                           "--no-pretty", "--stream" if stream else "--no-stream", "--no-suggest-shell-commands", "--message",
                           "script:" + json.dumps({"text": EDIT}), "hello.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_edit(server, tmp_path):
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    for stream in (True, False):
        (tmp_path / "hello.py").write_text('print("hello")\n')
        r = run(server, tmp_path, stream)
        assert (tmp_path / "hello.py").read_text() == 'print("hello, world")\n', r.stdout + r.stderr
