"""Devices whose dispatches are calls in a worker, and environments that lack something."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.paths import ROOT

from mansard.errors import ExecutionError, TargetMismatchError
from mansard.hal import (
    BufferRef,
    Device,
    DeviceInfo,
    DispatchCommand,
    EntryPoint,
    ExecutableSpec,
    LoadCommand,
    Point,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.hal.program import Program, Tensor
from mansard.hal.worker_device import WorkerDevice
from mansard.testing import Adapter, SwapTests
from mansard.testing.worker_kernels import worker_kernel
from mansard.workers import Environment, problem


@pytest.fixture
def device(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "workers"))
    info = DeviceInfo("toy", 0, "toy", "toy", kind="emulated")
    device = WorkerDevice(info, "kernels", Environment(), code_format="toy", limit=3.0)
    yield device
    device.close()


def spec(code, code_format="toy") -> ExecutableSpec:
    x = Tensor("x", "int32", ("n",))
    program = Program(code, (x,), (x,), ("n",))
    return ExecutableSpec(code_format, "toy", program.encode(), (EntryPoint("kernel", 2, 1),))


def run(device, code) -> np.ndarray:
    x, y = np.arange(5, dtype=np.int32), np.zeros(5, np.int32)
    refs = tuple(BufferRef(device.import_host(array)) for array in (x, y))
    commands = device.record([DispatchCommand(device.load(spec(code)), "kernel", refs, (5,), (1, 1, 1))])
    done = Point(Semaphore("done"), 1)
    device.submit([Submission(commands, (), (done,))])
    done.wait(20)
    return y


def test_dispatches_run_in_the_worker_and_its_faults_are_theirs(device):
    assert run(device, b"3").tolist() == [0, 3, 6, 9, 12]
    with pytest.raises(ExecutionError, match=r"toy: run did not end within 3 s"):
        run(device, b"hang")
    with pytest.raises(ExecutionError, match="toy: its process was killed by SIGABRT"):
        run(device, b"die")
    with pytest.raises(ExecutionError, match="toy: load raised ValueError: invalid literal for int"):
        run(device, b"what")
    assert run(device, b"2").tolist() == [0, 2, 4, 6, 8]


def test_close_waits_for_a_call_that_has_begun(device):
    assert run(device, b"3").tolist() == [0, 3, 6, 9, 12]  # the worker is there, to be ended too early
    x, y = np.arange(5, dtype=np.int32), np.zeros(5, np.int32)
    refs = tuple(BufferRef(device.import_host(array)) for array in (x, y))
    commands = device.record([DispatchCommand(device.load(spec(b"slow")), "kernel", refs, (5,), (1, 1, 1))])
    done = Point(Semaphore("done"), 1)
    device.submit([Submission(commands, (), (done,))])
    device.close()
    assert done.done() and done.error() is None and y.tolist() == [0, 1, 2, 3, 4]


def test_other_programs_are_refused(device):
    with pytest.raises(TargetMismatchError, match="toy loads 'toy', not 'elf'"):
        device.load(spec(b"1", "elf"))
    with pytest.raises(TargetMismatchError, match="cannot load a program: a program has more than"):
        device.load(ExecutableSpec("toy", "toy", b"junk", (EntryPoint("kernel", 2, 1),)))


def test_an_environment_that_lacks_something_says_so(tmp_path):
    assert problem(Environment(requires=("numpy>=1.26",)), "toy") is None
    text = problem(Environment(sys.executable, (), ("no-such-vendor==1.0",)), "toy")
    assert text == f"toy: {sys.executable} lacks no-such-vendor==1.0 (not installed)"
    assert "cannot be run" in problem(Environment(str(tmp_path / "python")), "toy")


class KernelsAdapter(Adapter):
    """The suite's kernels in a worker."""

    def open(self) -> Device:
        info = DeviceInfo("toy", 0, "toy", "toy", kind="emulated")
        return WorkerDevice(
            info, "mansard.testing.worker_kernels", Environment(), code_format="toy", limit=20.0
        )

    def spec(self, name: str) -> ExecutableSpec:
        program = worker_kernel(name)
        bindings = len(program.inputs) + len(program.outputs)
        entry = EntryPoint(name, bindings, len(program.parameters))
        return ExecutableSpec("toy", "toy", program.encode(), (entry,))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestSwapping(SwapTests):
    adapter = KernelsAdapter()


def test_a_load_is_made_in_the_worker_before_the_run(device):
    """And a program that does not load fails the load, not what runs behind it."""
    area = device.program_area(1 << 12)
    good, bad = (device.load_swapped(spec(code), area) for code in (b"3", b"what"))
    loads = [device.record([LoadCommand(each)], queue=QueueKind.LOAD) for each in (good, bad)]
    points = [Point(Semaphore(name), 1) for name in ("good", "bad")]
    device.submit([Submission(load, (), (point,)) for load, point in zip(loads, points, strict=True)])
    points[0].wait(20)
    assert good.loaded is not None and good.loaded.remote._child is not None
    with pytest.raises(ExecutionError, match="toy: load raised ValueError: invalid literal for int"):
        points[1].wait(20)
    assert bad.loaded is None and area.used == good.size
