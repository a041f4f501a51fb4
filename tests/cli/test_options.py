"""The command line itself: verbs, options, errors and exit codes."""
import re

import pytest

from conftest import DATA


def test_version_and_help(hearth):
    assert re.fullmatch(r"hearth \d+\.\d+\.\d+\n", hearth("version").stdout)
    assert hearth("--version").stdout == hearth("version").stdout
    overview = hearth("help").stdout
    for verb in "serve chat generate get ls inspect tokenize detokenize render logits bench help version".split():
        assert re.search(rf"^  {verb}\b", overview, re.M), verb
        assert hearth("help", verb).returncode == 0
    assert hearth("serve", "--help").stdout == hearth("help", "serve").stdout
    assert "--port" in hearth("help", "serve").stdout
    assert hearth("help", "nothing").returncode == 1


@pytest.mark.parametrize("args, text", [
    (["generate", "--temprature", "0", "x"], "did you mean --temperature"),
    (["serve", "--prt=1"], "did you mean --port"),
    (["generate", "--port", "1", "x"], "belongs to: serve"),
    (["serve", "--wholly-unknown"], "hearth help serve"),
    (["serve", "--port", "70000"], "from 0 to 65535"),
    (["serve", "--port", "8o80"], "must be an integer"),
    (["generate", "--temperature", "nan", "x"], "must be a number from 0 to 5"),
    (["generate", "--top-p"], "needs a value"),
    (["serve", "--log-json=maybe"], "takes true or false"),
    (["serve", "-p", "80"], "options start with --"),
    (["serv"], "did you mean 'serve'"),
    (["generate"], "takes a prompt"),
    (["logits", "m"], "logits takes a model"),
    (["tokenize", "m"], "takes a model and a text"),
    (["render", "--messages", "x"], "render takes a model"),
    (["get"], "takes the name"),
])
def test_usage_errors_name_the_fault(hearth, args, text):
    r = hearth(*args)
    assert r.returncode == 2, r.stderr
    assert text in r.stderr and r.stdout == ""


def test_a_model_is_no_prompt(hearth, store):
    (store / "models").mkdir()
    (store / "models" / "mine").symlink_to(DATA / "models" / "llama-q4")
    for args in (["mine"], [DATA / "models" / "llama-q4"], ["--default-model", "mine", "mine"]):
        r = hearth("generate", *args)
        assert r.returncode == 2 and "takes a prompt behind it" in r.stderr and r.stdout == "", r.stderr
    assert hearth("generate", "--model", "mine", "mine", "--max-tokens", 1, "--raw").returncode == 0


def test_models_that_are_not_there(hearth, tmp_path):
    assert hearth("generate", "hello").returncode == 3
    r = hearth("inspect", "nothing-like-it")
    assert r.returncode == 3 and "nothing-like-it" in r.stderr
    (tmp_path / "empty").mkdir()
    r = hearth("inspect", tmp_path / "empty")
    assert r.returncode == 1 and "config.json" in r.stderr
    assert hearth("ls").returncode == 0
    assert hearth("ls", "--json").stdout == "[]\n"
