"""Who runs the CPU device's work: workers, the queue's thread, threads that wait."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import cpu_kernels
from support.cpu_kernels import chain

import mansard
from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.errors import DeviceError, DeviceUnavailableError, InputError, WaitTimeoutError
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    DispatchCommand,
    EntryPoint,
    Executable,
    ExecutableSpec,
    Point,
    Semaphore,
    Submission,
    registry,
)
from mansard.testing.adapter import WAIT


@pytest.fixture(params=[1, 2, 8])
def cpu(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    device = DRIVER.open(DRIVER.devices()[0], threads=request.param)
    yield device
    device.close()


def tasks() -> dict[int, str]:
    """The threads of this process by id, with their names."""
    names = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            names[int(folder.name)] = (folder / "comm").read_text().strip()
        except FileNotFoundError:
            continue
    return names


def test_every_number_of_threads_computes_the_same(cpu: CpuDevice) -> None:
    commands, total = chain(cpu, 50)
    recorded, timeline = cpu.record(commands), Semaphore("chain")
    for value in range(1, 41):
        point = Point(timeline, value)
        cpu.submit([Submission(recorded, signal=(point,))])
        # Waits of every kind: until it is done, for too short a time, none at all.
        if value % 4 == 1:
            point.wait()
        elif value % 4 == 2:
            try:
                point.wait(1e-5)
            except WaitTimeoutError:
                point.wait(WAIT)
        else:
            while not point.done():
                time.sleep(1e-4)
        assert set(total.view().view(np.float32).tolist()) == {50.0 * value}


def test_many_threads_wait_at_once(cpu: CpuDevice) -> None:
    failures: list[BaseException] = []

    def use() -> None:
        try:
            commands, total = chain(cpu, 10)
            recorded, timeline = cpu.record(commands), Semaphore("mine")
            for value in range(1, 31):
                cpu.submit([Submission(recorded, signal=(Point(timeline, value),))])
                Point(timeline, value).wait(WAIT)
                assert set(total.view().view(np.float32).tolist()) == {10.0 * value}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures


def test_chains_of_batches(cpu: CpuDevice) -> None:
    """Submissions that wait for each other, by one wait for the last."""
    commands, total = chain(cpu, 3)
    recorded = [cpu.record(commands) for _ in range(20)]
    timeline = Semaphore("steps")
    for start in (0, 20):
        points = [Point(timeline, start + i) for i in range(21)]
        cpu.submit([Submission(r, (points[i],), (points[i + 1],)) for i, r in enumerate(recorded)])
        points[-1].wait()
    assert set(total.view().view(np.float32).tolist()) == {120.0}


def test_nobody_has_to_wait(cpu: CpuDevice) -> None:
    """A thread that always waited, and then does not: its work is done all the same."""
    commands, total = chain(cpu, 5)
    recorded, timeline = cpu.record(commands), Semaphore("unwatched")
    for value in range(1, 6):
        cpu.submit([Submission(recorded, signal=(Point(timeline, value),))])
        Point(timeline, value).wait()
    cpu.submit([Submission(recorded, signal=(Point(timeline, 6),))])
    deadline = time.monotonic() + WAIT
    while timeline.value < 6 and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert set(total.view().view(np.float32).tolist()) == {30.0}


def test_a_long_run_does_not_hold_up_a_short_wait(cpu: CpuDevice) -> None:
    spin = cpu.load(cpu_kernels.spec("spin"))
    out = cpu.allocate(4)
    step = DispatchCommand(spin, "spin", (BufferRef(out),), (20_000,), (8, 1, 1))
    recorded, timeline = cpu.record([step, BarrierCommand()] * 1600), Semaphore("long")
    cpu.submit([Submission(cpu.record([]), signal=(Point(timeline, 1),))])
    Point(timeline, 1).wait()  # from now on this thread is taken to wait
    begin = time.monotonic()
    cpu.submit([Submission(recorded, signal=(Point(timeline, 2),))])
    with pytest.raises(WaitTimeoutError):
        Point(timeline, 2).wait(0.01)
    given_up = time.monotonic() - begin
    Point(timeline, 2).wait(WAIT)
    assert given_up < (time.monotonic() - begin) / 2


def test_devices_come_and_go() -> None:
    before = len(tasks())
    for i in range(30):
        device = DRIVER.open(DRIVER.devices()[0], threads=1 + i % 4)
        commands, total = chain(device, 4)
        done = Point(Semaphore("once"), 1)
        device.submit([Submission(device.record(commands), signal=(done,))])
        if i % 2:
            done.wait(WAIT)
        device.close()
        assert done.done()
        assert set(total.view().view(np.float32).tolist()) == {4.0}
        del device
    deadline = time.monotonic() + WAIT
    while len(tasks()) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(tasks()) <= before


def test_threads_are_bound_to_their_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    others = set(tasks())
    monkeypatch.setenv("MANSARD_CPU_PIN", ",".join(map(str, cpus)))
    device = DRIVER.open(DRIVER.devices()[0])
    assert device.threads == len(cpus)
    ours = {"mn-cpu", "mn-worker"} if len(cpus) == 2 else {"mn-cpu"}
    deadline = time.monotonic() + WAIT
    bound: dict[str, set[int]] = {}
    while bound.keys() != ours and time.monotonic() < deadline:  # threads name themselves as they start
        new = {task: name for task, name in tasks().items() if task not in others}
        bound = {name: os.sched_getaffinity(task) for task, name in new.items() if name in ours}
    assert bound["mn-cpu"] == {cpus[0]}
    assert len(cpus) == 1 or bound["mn-worker"] == {cpus[1]}
    commands, total = chain(device, 20)
    for value in range(1, 11):
        done = Point(Semaphore("bound"), 1)
        device.submit([Submission(device.record(commands), signal=(done,))])
        done.wait()
        assert set(total.view().view(np.float32).tolist()) == {20.0 * value}
    assert os.sched_getaffinity(0) >= set(cpus)
    device.close()


def deep(device: CpuDevice) -> Executable:
    """A kernel that uses 256 KiB of stack, every page of it, and leaves 64 in each workgroup's element."""
    from mansard.codegen.llvm import module, target
    from mansard.codegen.llvm.link import link

    text = """
define void @deep(ptr %table, ptr %grid, i64 %begin, i64 %end) {
entry:
  %scratch = alloca [262144 x i8], align 64
  %address = load i64, ptr %table
  %out = inttoptr i64 %address to ptr
  br label %groups
groups:
  %g = phi i64 [ %begin, %entry ], [ %g_next, %store ]
  %more = icmp slt i64 %g, %end
  br i1 %more, label %write, label %done
write:
  %i = phi i64 [ 0, %groups ], [ %i_next, %write ]
  %w = getelementptr i8, ptr %scratch, i64 %i
  store volatile i8 1, ptr %w
  %i_next = add i64 %i, 4096
  %again = icmp slt i64 %i_next, 262144
  br i1 %again, label %write, label %read
read:
  %j = phi i64 [ 0, %write ], [ %j_next, %read ]
  %sum = phi i32 [ 0, %write ], [ %sum_next, %read ]
  %r = getelementptr i8, ptr %scratch, i64 %j
  %b = load volatile i8, ptr %r
  %b32 = zext i8 %b to i32
  %sum_next = add i32 %sum, %b32
  %j_next = add i64 %j, 4096
  %still = icmp slt i64 %j_next, 262144
  br i1 %still, label %read, label %store
store:
  %at = getelementptr i32, ptr %out, i64 %g
  store i32 %sum_next, ptr %at
  %g_next = add i64 %g, 1
  br label %groups
done:
  ret void
}
"""
    image = link(module.compile_object(text, target.parse("cpu")))
    entry = EntryPoint("deep", 1, 0, offset=image.functions["deep"])
    return device.load(ExecutableSpec("cpu-image", f"cpu:{platform.machine()}", image.code, (entry,)))


@pytest.mark.parametrize("stack_kib", [128, 320, 4096])
def test_kernels_may_use_256_kib_of_stack_whoever_waits(cpu: CpuDevice, stack_kib: int) -> None:
    executable, failures = deep(cpu), []

    def use() -> None:
        try:
            for _ in range(5):
                out, done = cpu.allocate(4 * 40), Point(Semaphore("deep"), 1)
                command = DispatchCommand(executable, "deep", (BufferRef(out),), (), (40, 1, 1))
                cpu.submit([Submission(cpu.record([command]), signal=(done,))])
                done.wait(WAIT)
                assert out.view().view(np.int32).tolist() == [64] * 40
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(stack_kib << 10)
    try:
        thread = threading.Thread(target=use)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(WAIT)
    assert not failures


def test_slots_are_bound_anew_for_every_run(cpu: CpuDevice) -> None:
    add = cpu.load(cpu_kernels.spec("add"))
    refs = tuple(BufferRef(BindingSlot(i)) for i in range(3))
    recorded = cpu.record([DispatchCommand(add, "add", refs, (100,), (7, 1, 1))])
    for value in range(8):
        a, b, c = (cpu.allocate(400) for _ in range(3))
        a.view().view(np.float32)[:], b.view().view(np.float32)[:] = value, 1
        done = Point(Semaphore("slots"), 1)
        cpu.submit([Submission(recorded, signal=(done,), bindings={0: a, 1: b, 2: c})])
        done.wait()
        assert set(c.view().view(np.float32).tolist()) == {value + 1.0}


def test_kernels_keep_subnormals_on_a_thread_that_flushes_them(cpu: CpuDevice) -> None:
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        commands, total = chain(cpu, 1)
        for buffer in (ref.buffer for ref in commands[0].bindings):  # type: ignore[union-attr]
            buffer.view().view(np.float32)[:] = np.float32(1e-40)  # type: ignore[union-attr]
        recorded, timeline = cpu.record(commands), Semaphore("subnormal")
        for value in range(1, 11):
            cpu.submit([Submission(recorded, signal=(Point(timeline, value),))])
            Point(timeline, value).wait()
        bits = total.view().view(np.int32)
        np.testing.assert_array_equal(bits, np.float32(1.1e-39).view(np.int32), strict=False)
        assert float(torch.tensor([1e-40]) * torch.tensor([1.0])) == 0.0  # as the caller had it
    finally:
        torch.set_flush_denormal(False)


def test_settings_are_checked_when_made() -> None:
    try:
        with pytest.raises(InputError, match="threads is 5000"):
            DRIVER.configure(threads=5000)
        with pytest.raises(InputError, match="driver cpu has no setting cores"):
            DRIVER.configure(cores=2)
        DRIVER.configure(threads=3, spin_us=0)
        assert DRIVER.devices()[0].limits["threads"] == 3
        device = DRIVER.open(DRIVER.devices()[0])
        assert device.threads == 3
        device.close()
    finally:
        DRIVER.configure()


def test_an_open_device_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry._open, "null", raising=False)  # another test may have opened it
    registry.open_device("cpu")
    with pytest.raises(DeviceError, match="device cpu is open"):
        mansard.configure_driver("cpu", threads=1)
    with pytest.raises(DeviceUnavailableError, match="no driver named 'tpu'"):
        mansard.configure_driver("tpu", threads=1)
    with pytest.raises(InputError, match="driver null has no setting threads"):
        mansard.configure_driver("null", threads=1)


@pytest.mark.threads_after_fork
def test_a_forked_process_is_told() -> None:
    """The threads of the parent do not exist in the child: an error, and no hang at its end."""
    code = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np\n"
        "from mansard.hal import *\n"
        "from mansard.hal.registry import open_device\n"
        "def run(cpu):\n"
        "    out = cpu.allocate(64); done = Point(Semaphore(), 1)\n"
        "    cpu.submit([Submission(cpu.record([FillCommand(BufferRef(out), 64, 7)]), signal=(done,))])\n"
        "    done.wait(20)\n"
        "    return out.view().view(np.int32)[0]\n"
        "cpu = open_device('cpu'); assert run(cpu) == 7\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try: run(cpu)\n"
        "    except Exception as error: print(type(error).__name__, error, flush=True)\n"
        "    print(run(open_device('cpu')), flush=True)\n"
        "    cpu.close(); sys.exit(5)\n"
        "assert run(cpu) == 7\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    message, result, status = run.stdout.splitlines() or ["", "", run.stderr]
    assert message.startswith("DeviceError device cpu was opened before this process was forked off")
    assert (result, status) == ("7", "5")


def test_closing_with_a_waiting_thread_at_work(cpu: CpuDevice) -> None:
    spin, out = cpu.load(cpu_kernels.spec("spin")), cpu.allocate(4)
    recorded = cpu.record(
        [DispatchCommand(spin, "spin", (BufferRef(out),), (20_000,), (8, 1, 1)), BarrierCommand()] * 300
    )
    done, never = Point(Semaphore("running"), 1), Point(Semaphore("never"), 1)
    cpu.submit([Submission(recorded, signal=(done,))])
    cpu.submit([Submission(recorded, (never,), (Point(never.semaphore, 2),))])
    waiter = threading.Thread(target=done.wait)
    waiter.start()
    cpu.close()
    waiter.join(WAIT)
    assert done.done()
    assert done.error() is None
    with pytest.raises(DeviceError, match="closed"):
        cpu.submit([Submission(recorded)])
