"""Unmodified clients against the real server over the scripted engine (tests/api/serving.py)."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "api"))
from serving import Server  # noqa: E402


@pytest.fixture(scope="session")
def server():
    s = Server("--embeds", 1)
    yield s
    s.stop()
