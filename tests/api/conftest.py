"""Fixtures over serving.py."""
import pytest
from serving import RealServer, Server


@pytest.fixture(scope="session")
def server():
    s = Server()
    yield s
    s.stop()


@pytest.fixture
def start():
    """start("--flag", value …): a server of one's own."""
    running = []

    def make(*args):
        running.append(Server(*args))
        return running[-1]

    yield make
    for s in running:
        s.stop()


@pytest.fixture
def real():
    """real(model, "--flag", value …): `hearth serve` over a real model."""
    running = []

    def make(*args):
        running.append(RealServer(*args))
        return running[-1]

    yield make
    for s in running:
        s.stop()
