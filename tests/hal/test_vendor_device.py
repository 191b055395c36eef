"""Devices of a vendor's library: calls that end in callbacks or block, fail silently, or never end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mansard.errors import DeviceLostError, ExecutionError, TargetMismatchError
from mansard.hal import (
    BufferRef,
    Device,
    DeviceInfo,
    DispatchCommand,
    EntryPoint,
    Executable,
    ExecutableSpec,
    LoadCommand,
    Point,
    QueueKind,
    Semaphore,
    Submission,
)
from mansard.hal.vendor import VendorDevice
from mansard.testing import Adapter, Conformance, SwapTests

FUNCTIONS = {
    "fill_index": (1, 3),
    "add": (3, 1),
    "spin": (1, 1),
    "wide": (1, 20),
    "fail": (1, 0),
    "hang": (1, 0),
}


class Loaded(Executable):
    def __init__(self, spec):
        self.spec, self.entries = spec, {entry.name: entry for entry in spec.entries}

    def close(self):
        pass


class Library(VendorDevice):
    """A library of Python functions, whose calls block."""

    def __init__(self, **options):
        self.returning, self.hanging = threading.Event(), threading.Event()
        info = DeviceInfo("library", 0, "functions of Python", "library", kind="simulated")
        super().__init__(info, formats=("functions",), **options)

    def load(self, spec):
        if spec.format != "functions" or spec.requires:
            raise TargetMismatchError(f"no functions: {spec.format!r}, {spec.requires}")
        return Loaded(spec)

    def run(self, command, memories):
        params, out = command.params, memories[-1]
        match command.entry:
            case "fill_index":
                out[: 4 * params[0]].view("i4")[:] = np.arange(params[0]) * params[1] + params[2]
            case "add":
                a, b, c = (memory[: 4 * params[0]].view("f4") for memory in memories)
                np.add(a, b, out=c)
            case "spin":
                time.sleep(params[0] * 5e-7)  # as long on a busy machine
            case "wide":
                out[:8].view("i8")[0] = sum(params)
            case "fail":
                raise ValueError("the library is out of sorts")
            case "hang":
                self.hanging.set()
                assert self.returning.wait(20)
                out[:4] = 7


class CallbackLibrary(Library):
    """The same functions on threads of the library's own; a failure has no callback."""

    def __init__(self, **options):
        self.pool = ThreadPoolExecutor(2)
        super().__init__(depth=3, **options)

    def start(self, command, memories, done):
        failures = []

        def work():
            try:
                self.run(command, memories)
            except ValueError as error:
                failures.append(ExecutionError(str(error)))
            else:
                done(None)

        self.pool.submit(work)
        return lambda: next(iter(failures), None)


class LibraryAdapter(Adapter):
    def __init__(self, kind):
        self.kind = kind

    def open(self) -> Device:
        return self.kind()

    def spec(self, name: str) -> ExecutableSpec:
        return ExecutableSpec("functions", "library", b"", (EntryPoint(name, *FUNCTIONS[name]),))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestBlockingCalls(Conformance, SwapTests):
    adapter = LibraryAdapter(Library)


class TestCallbacks(Conformance, SwapTests):
    adapter = LibraryAdapter(CallbackLibrary)


def call(device: VendorDevice, name: str, out: object) -> Point:
    executable = device.load(LibraryAdapter(type(device)).spec(name))
    done = Point(Semaphore(name), 1)
    recorded = device.record([DispatchCommand(executable, name, (BufferRef(out),), (), (1, 1, 1), name)])
    device.submit([Submission(recorded, signal=(done,))])
    return done


@pytest.mark.parametrize("kind", [Library, CallbackLibrary])
def test_a_failure_is_the_submissions_alone(kind):
    device = kind()
    out = device.allocate(8)
    with pytest.raises(ExecutionError, match="out of sorts"):
        call(device, "fail", out).wait(20)
    assert not device.lost
    device.returning.set()
    call(device, "hang", out).wait(20)
    assert out.bytes(0)[0] == 7
    device.close()


@pytest.mark.parametrize("kind", [Library, CallbackLibrary])
def test_a_call_that_hangs_loses_the_device_and_keeps_its_memory(kind):
    device = kind(limit=0.1)
    memory = np.zeros(64, np.uint8)
    kept = weakref.ref(memory)
    out = device.import_host(memory)
    del memory
    hung, behind = call(device, "hang", out), call(device, "hang", device.allocate(8))
    for point in (hung, behind):
        with pytest.raises(DeviceLostError, match=r"hang has not come back .* within 0\.1 s"):
            point.wait(20)
    assert device.lost
    with pytest.raises(DeviceLostError):
        call(device, "fail", device.allocate(8)).wait(20)
    out.close()
    device.close()
    gc.collect()
    assert kept() is not None
    device.returning.set()
    for thread in device._threads:
        thread.join(20)
        assert not thread.is_alive()
    if kind is CallbackLibrary:
        device.pool.shutdown()
    del out, hung, behind, device
    gc.collect()
    assert kept() is None


def test_closing_waits_for_a_call_that_ends_in_time():
    device = Library(limit=20)
    done = call(device, "hang", device.allocate(8))
    assert device.hanging.wait(20)
    threading.Timer(0.1, device.returning.set).start()
    device.close()
    done.wait(0)


class SwappingLibrary(Library):
    """Loading a program may hang, too."""

    def bring_in(self, spec):
        if spec.entries[0].name == "hang":
            self.hanging.set()
            assert self.returning.wait(20)
        return super().bring_in(spec)


def test_a_load_that_hangs_loses_the_device():
    device = SwappingLibrary(limit=0.1)
    area = device.program_area(1)
    slow, other = (device.load_swapped(LibraryAdapter(Library).spec(name), area) for name in ("hang", "wide"))
    points = [Point(Semaphore(name), 1) for name in ("load", "run", "behind")]
    out = device.allocate(8)
    load = device.record([LoadCommand(slow, "load hang")], queue=QueueKind.LOAD)
    run = device.record([DispatchCommand(other, "wide", (BufferRef(out),), (1,) * 20, (1, 1, 1), "wide")])
    device.submit([Submission(load, signal=points[:1])])
    assert device.hanging.wait(20)
    # Another program waits for the memory that the one on its way has taken.
    device.submit([Submission(run, signal=points[1:2]), Submission(run, signal=points[2:])])
    for point in points:
        with pytest.raises(DeviceLostError, match=r"has not come back .* within 0\.1 s"):
            point.wait(20)
    assert device.lost
    device.returning.set()
    device.close()
    for thread in device._threads:
        thread.join(20)
        assert not thread.is_alive()
