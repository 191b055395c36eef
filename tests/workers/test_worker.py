"""Functions in a child process: values, errors, crashes, limits, environments, and what is left behind."""

from __future__ import annotations

import os
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from support.paths import ROOT

from mansard.errors import WorkerCallError, WorkerLostError, WorkerUnavailableError
from mansard.workers import Environment, Worker, interpreter
from mansard.workers.requirements import missing


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "workers"))


@pytest.fixture
def worker():
    worker = Worker("functions", name="the functions")
    yield worker
    worker.close()


# Calls ------------------------------------------------------------------------------------------
def test_values_come_back_as_they_went(worker):
    values = [None, True, -3, 2.5, "text", (1, [2]), {"a": 1, 2: (b"bytes", "")}, b"", bytes(range(256))]
    assert worker.call("echo", values) == values
    for array in (
        np.arange(12, dtype=np.int8).reshape(3, 4).T,
        np.zeros((0, 3), np.float64),
        np.full((), 1.5, np.float32),
        np.arange(5).astype(ml_dtypes.bfloat16),
        np.array([True, False]),
    ):
        back = worker.call("echo", {"x": array})["x"]
        assert back.dtype == array.dtype and back.shape == array.shape
        np.testing.assert_array_equal(back, array)
    with pytest.raises(TypeError, match="a object cannot be passed between processes"):
        worker.call("echo", object())


def test_large_arrays_grow_the_shared_memory_and_results_are_the_callers(worker):
    small = worker.call("double", np.ones(3))
    large = np.arange(3_000_000, dtype=np.int32)
    np.testing.assert_array_equal(worker.call("double", large), large * 2)
    assert small.tolist() == [2, 2, 2]
    assert worker.call("process") == worker.call("process") != os.getpid()


def test_objects_stay_in_the_child_and_are_made_anew_in_another(worker):
    first, second = worker.make("counter", 10), worker.make("counter", 20)
    assert [first.call("count", 1), first.call("count", 1), second.call("count", 5)] == [11, 12, 25]
    worker.cancel()
    assert first.call("count", 1) == 11
    first.close()
    assert second.call("kept") == 1


# Errors -----------------------------------------------------------------------------------------
def test_an_exception_has_the_functions_words_and_the_child_goes_on(worker):
    pid = worker.call("process")
    with pytest.raises(WorkerCallError, match="the functions: fail raised ValueError: too wide") as raised:
        worker.call("fail", "too wide")
    assert (raised.value.exception, raised.value.message) == ("ValueError", "too wide")
    assert "functions.py" in raised.value.details
    with pytest.raises(WorkerCallError, match="SystemExit: 3"):
        worker.call("leave", 3)
    with pytest.raises(WorkerCallError, match="no_such"):
        worker.call("no_such")
    assert worker.call("process") == pid


def test_a_crash_is_an_error_and_the_next_call_has_another_child(worker):
    with pytest.raises(
        WorkerLostError, match=r"the functions: its process was killed by SIGSEGV.* \(in crash"
    ):
        worker.call("crash")
    with pytest.raises(WorkerLostError, match="SIGABRT: an assertion of the vendor's"):
        worker.call("abort", "an assertion of the vendor's")
    assert worker.call("echo", 1) == 1


def test_a_hang_is_an_error_after_its_time(worker):
    worker.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match=r"sleep did not end within 0\.2 s.*before the nap"):
        worker.call("sleep", 60, seconds=0.2)
    assert time.monotonic() - started < 5
    assert worker.call("echo", 1) == 1


def test_a_call_is_cancelled_from_another_thread(worker):
    worker.start()
    threading.Timer(0.2, worker.cancel).start()
    with pytest.raises(WorkerLostError, match="the functions: sleep was cancelled"):
        worker.call("sleep", 60)
    assert worker.call("echo", 1) == 1


def test_a_module_or_distribution_that_lacks_is_named():
    with pytest.raises(WorkerUnavailableError, match="lacks No module named 'no_such_vendor'"):
        Worker("broken").call("anything")
    needs = Environment(requires=("numpy>=1.26", "numpy==0.1", "no-such-vendor==1.0"))
    with pytest.raises(
        WorkerUnavailableError,
        match=r"vendor: .* lacks numpy==0\.1 \(version .* is installed\), no-such-vendor==1\.0 \(not inst",
    ):
        Worker("functions", needs, name="vendor").start()
    with pytest.raises(ValueError, match="is no requirement"):
        missing(["a b"])


def test_an_interpreter_that_cannot_run_is_named(tmp_path):
    with pytest.raises(WorkerUnavailableError, match=r"python cannot be run: No such file"):
        Worker("functions", Environment(python=str(tmp_path / "python"))).start()
    with pytest.raises(WorkerLostError, match="its process ended with exit code 1"):
        Worker("functions", Environment(python="/bin/false")).start()


# Environments -----------------------------------------------------------------------------------
def test_another_interpreter_sees_the_named_packages_alone():
    worker = Worker("mansard.workers.requirements", Environment(python=sys.executable))
    assert worker.call("missing", ["no-such"]) == ["no-such (not installed)"]
    worker.close()


def test_the_interpreter_is_the_users_or_this_one(monkeypatch):
    monkeypatch.delenv("SOME_PYTHON", raising=False)
    assert interpreter("SOME_PYTHON", "numpy") == ""
    assert interpreter("SOME_PYTHON", "no_such_vendor") is None
    monkeypatch.setenv("SOME_PYTHON", "/opt/python")
    assert interpreter("SOME_PYTHON", "no_such_vendor") == "/opt/python"


def test_a_fork_has_a_child_of_its_own(worker):
    pid = worker.call("process")
    child = os.fork()
    if child == 0:
        os._exit(0 if worker.call("process") != pid else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.call("process") == pid
