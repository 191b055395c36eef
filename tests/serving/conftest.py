"""One server for the tests of this folder that do not stop it."""

from __future__ import annotations

import contextlib

import pytest
from support.serving.running_server import running, write_served_model

from mansard.language import load_lm


@pytest.fixture(scope="session")
def served_lm(tmp_path_factory):
    folder = write_served_model(tmp_path_factory.mktemp("served"))
    with load_lm(folder, devices="cpu", context=96, chunk=8, sequences=8, logprobs=True) as lm:
        yield lm


@pytest.fixture(scope="session")
def server(served_lm):
    with running(served_lm) as server:
        yield server


@pytest.fixture
def another_server(server, served_lm):
    """Servers of the same model with other options, while nobody uses the first."""

    @contextlib.contextmanager
    def started(**options):
        with running(served_lm, **options) as other:
            yield other
        for slot in server.engine._slots:  # the caches are the model's: these have been written to
            server.engine._caches.forget(slot)

    return started


@pytest.fixture(scope="session")
def client(server):
    with server.client() as client:
        yield client
