"""Several queues of one device: work goes to each, and the device orders it across them.

Where the device has one queue, all roles share it: everything but the overlap is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_support
from support.graphs import F32, binary, matmul
from support.stress.tripwire import interrupted

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.calibration import probes
from mansard.calibration.concurrency import concurrency
from mansard.compiler import CompileOptions, compile_graph
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.instance.queues import QueueAssignment, assign_queues
from mansard.drivers.vulkan.submission import queue
from mansard.errors import DeviceError, DeviceLostError
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    CopyCommand,
    FillCommand,
    MemoryKind,
    Point,
    QueueKind,
    Semaphore,
    Submission,
    registry,
)
from mansard.hal.service import service
from mansard.ir import GraphBuilder
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.vulkan
SHARED = MemoryKind.SHARED
N = 1000


def open_device(**changes: object) -> VulkanDevice:
    """The device with several queues, or several roles of one, and other changes of its setup."""
    driver, info = vulkan_support.validating_driver(), vulkan_support.usable_device()
    candidate = driver._candidates[info.index]
    candidate = dataclasses.replace(candidate, setup=dataclasses.replace(candidate.setup, **changes))
    queues = assign_queues(candidate.snapshot)
    if queues.transfer is None:
        queues = QueueAssignment(queues.compute, queues.compute)
    if not queues.more_compute:
        queues = dataclasses.replace(queues, more_compute=(queues.compute,) * 3)
    assert driver._instance is not None
    return VulkanDevice(driver._instance, candidate, info, queues)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VulkanDevice]:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    opened = open_device()
    yield opened
    opened.close()
    gc.collect()
    vulkan_support.assert_no_validation_messages()


def test_a_chain_over_both_queues(device: VulkanDevice) -> None:
    assert device.capabilities.transfer_queue
    source, result = device.allocate(4 * N, SHARED), device.allocate(4 * N, SHARED)
    local, target = device.allocate(4 * N), device.allocate(4 * N)
    semaphore = Semaphore("chain")
    value = 0
    for run in range(20):
        # target <- source by the transfer queue, local = run + i on the compute queue, result <- local
        up = device.record(
            [CopyCommand(BufferRef(source), BufferRef(target), 4 * N)], queue=QueueKind.TRANSFER
        )
        down = device.record(
            [CopyCommand(BufferRef(local), BufferRef(result), 4 * N)], queue=QueueKind.TRANSFER
        )
        fill = vulkan_support.fill_index(device, local, N, 1, run)
        work = device.record([fill])
        points = [Point(semaphore, value + i) for i in range(4)]
        device.submit(
            [
                Submission(up, (points[0],), (points[1],)),
                Submission(work, (points[1],), (points[2],)),
                Submission(down, (points[2],), (points[3],)),
            ]
        )
        value += 3
        if run % 5 == 4:
            points[3].wait(vulkan_support.TIMEOUT)
            assert np.array_equal(result.view().view(np.uint32), np.arange(N) + run)
    Point(semaphore, value).wait(vulkan_support.TIMEOUT)


def test_a_chain_over_all_compute_queues(device: VulkanDevice) -> None:
    count = device.capabilities.compute_queues
    assert count > 2
    buffers = [device.allocate(4 * N, SHARED) for _ in range(2 * count)]
    semaphore, affinities = Semaphore("chain"), range(2 * count)
    submissions = []
    for affinity in affinities:
        commands = [vulkan_support.fill_index(device, buffers[0], N, 1, 5)]
        if affinity:
            commands = [CopyCommand(BufferRef(buffers[affinity - 1]), BufferRef(buffers[affinity]), 4 * N)]
        recorded = device.record(commands, affinity=affinity)
        submissions.append(
            Submission(recorded, (Point(semaphore, affinity),), (Point(semaphore, affinity + 1),))
        )
    recorders = [submission.commands.recorder for submission in submissions]
    assert recorders[:count] == recorders[count:]
    assert len(set(recorders)) == count
    device.submit(submissions[::-1])
    assert Point(semaphore, len(affinities)).wait(vulkan_support.TIMEOUT) is None
    assert np.array_equal(buffers[-1].view().view(np.uint32), np.arange(N) + 5)


def test_work_that_waits_does_not_hold_up_another_queue(device: VulkanDevice) -> None:
    buffer = device.allocate(4 * N, SHARED)
    host, late, early = (Point(Semaphore(name), 1) for name in ("host", "late", "early"))
    one = device.record([FillCommand(BufferRef(buffer), 2 * N, 1)], profile=True, affinity=1)
    two = device.record([FillCommand(BufferRef(buffer, 2 * N), 2 * N, 2)], profile=True, affinity=2)
    device.submit([Submission(one, (host,), (late,)), Submission(two, (), (early,))])
    early.wait(vulkan_support.TIMEOUT)
    assert not late.done()
    host.semaphore.signal(1)
    late.wait(vulkan_support.TIMEOUT)
    assert [int(x) for x in buffer.view()[:: 2 * N]] == [1, 2]
    assert one.profile()[0].end_ns >= two.profile()[0].start_ns


def test_what_calls_side_by_side_gain_is_measured(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_WALK", 4)
    monkeypatch.setattr(probes, "_WALKERS", 8)
    assert 1.0 <= concurrency(device) <= device.capabilities.compute_queues
    assert concurrency(registry.open_device("cpu")) == 1.0


def test_work_waits_for_the_host_and_for_the_other_queue(device: VulkanDevice) -> None:
    buffer = device.allocate(4 * N, SHARED)
    buffer.view()[:] = 0
    fill = device.record([FillCommand(BufferRef(buffer), 4 * N, 7)], queue=QueueKind.TRANSFER)
    work = device.record([vulkan_support.fill_index(device, buffer, N // 2, 0, 9)])
    host, first, second = (Point(Semaphore(name), 1) for name in ("host", "fill", "work"))
    device.submit([Submission(work, (first,), (second,)), Submission(fill, (host,), (first,))])
    assert not second.done()
    threading.Timer(0.02, lambda: host.semaphore.signal(1)).start()
    second.wait(vulkan_support.TIMEOUT)
    words = buffer.view().view(np.uint32)
    assert (words[: N // 2] == 9).all()
    assert (words[N // 2 :] == 7).all()


def test_memory_in_the_order_of_the_queues(device: VulkanDevice) -> None:
    """A buffer is lent again before the work on it has ended; later work follows on the device."""
    result = device.allocate(4 * N, SHARED)
    timeline, pool = Semaphore("order"), device.pool
    loan = pool.alloca(4 * N)
    first, last = loan.buffer, Point(timeline, 3)
    long = device.record([vulkan_support.spin(device, first, 64)])
    device.submit([Submission(long, loan.wait, (Point(timeline, 1),))])
    pool.dealloca(first, (Point(timeline, 1),))
    loan = pool.alloca(4 * N)
    assert loan.buffer is first
    work = device.record([vulkan_support.fill_index(device, loan.buffer, N, 3, 1)])
    copy = device.record(
        [CopyCommand(BufferRef(loan.buffer), BufferRef(result), 4 * N)], queue=QueueKind.TRANSFER
    )
    device.submit(
        [Submission(work, loan.wait, (Point(timeline, 2),)), Submission(copy, (Point(timeline, 2),), (last,))]
    )
    pool.dealloca(loan.buffer, (last,))
    last.wait(vulkan_support.TIMEOUT)
    assert np.array_equal(result.view().view(np.uint32), 3 * np.arange(N) + 1)
    assert pool.alloca(4 * N).wait == ()


def test_what_the_transfer_queue_refuses(device: VulkanDevice) -> None:
    buffer = device.allocate(4 * N, SHARED)
    with pytest.raises(DeviceError, match="copies and fills"):
        device.record([vulkan_support.fill_index(device, buffer, N, 1, 1)], queue=QueueKind.TRANSFER)


def test_barriers_order_copies(device: VulkanDevice) -> None:
    a, b, c = (device.allocate(4096, SHARED) for _ in range(3))
    a.view()[:] = 5
    commands = [
        CopyCommand(BufferRef(a), BufferRef(b), 4096),
        BarrierCommand(),
        CopyCommand(BufferRef(b), BufferRef(c), 4096),
    ]
    done = Point(Semaphore("copies"), 1)
    device.submit([Submission(device.record(commands, queue=QueueKind.TRANSFER), signal=(done,))])
    done.wait(vulkan_support.TIMEOUT)
    assert (c.view() == 5).all()


@pytest.mark.parametrize("apart", [1, 1 << 40])
def test_calls_at_once_on_a_device_with_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, apart: int
) -> None:
    """Inputs and outputs are copied by the device, on the transfer queue or by kernels."""
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(queue, "describe_kind", lambda snapshot: "discrete")
    opened = open_device(unified=False)
    capabilities = dataclasses.replace(opened.capabilities, transfer_bytes=apart)
    monkeypatch.setattr(opened, "capabilities", capabilities)
    b = GraphBuilder()
    x, w = b.input("x", (64, 40), F32), b.input("w", (40, 24), F32)
    y = binary(b, "add", matmul(b, x, w), matmul(b, x, w))
    graph = b.build([y])
    weight = np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)
    compiled = compile_graph(graph, CompileOptions(("vulkan",), PlacementOptions(fallback="error")))
    resources = MemoryResources(
        compiled.executables, [(spec, lambda: weight) for spec, _ in compiled.weights]
    )
    failures: list[object] = []
    with Model(compiled.plan, resources, {"vulkan": opened}) as model:

        def array_of(which: int) -> np.ndarray:
            return np.random.default_rng(which).standard_normal((64, 40)).astype(np.float32)

        def call(which: int) -> None:
            array = array_of(which)
            try:
                for _ in range(15):
                    np.testing.assert_allclose(model(array, weight), 2 * array @ weight, rtol=1e-4, atol=1e-4)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=call, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if apart == 1 and opened.capabilities.transfer_profiling:  # as the calls, so their profile
            rows = model.profile(array_of(0), weight).rows
            assert {row.label.split()[0] for row in rows} >= {"upload", "download"}
        contexts = [context.submissions for context in model.bind()._calls.contexts()]
        recorders = {recorded[0].commands.recorder for (recorded,) in contexts} if apart != 1 else set()
        assert len(recorders) == (min(len(contexts), capabilities.compute_queues) if apart != 1 else 0)
        submissions = {len(b) for recorded in contexts for b in recorded}
        assert submissions == ({4} if apart == 1 else {1})  # two inputs, kernels, an output
    opened.close()
    gc.collect()
    assert failures == []
    vulkan_support.assert_no_validation_messages()


@pytest.mark.parametrize("wait_first", [True, False])
def test_a_loss_is_that_of_all_queues(device: VulkanDevice, wait_first: bool) -> None:
    buffer = device.allocate(4096, SHARED)
    fill = device.record([FillCommand(BufferRef(buffer), 4096)])
    copies = device.record([FillCommand(BufferRef(buffer), 4096)], queue=QueueKind.TRANSFER)
    lost, after = Point(Semaphore("lost"), 1), Point(Semaphore("after"), 1)
    device.inject(result=vk.VK_ERROR_DEVICE_LOST)
    device.submit([Submission(fill, (), (lost,))])
    if wait_first:
        with pytest.raises(DeviceLostError):
            lost.wait(vulkan_support.TIMEOUT)
    device.submit([Submission(copies, (lost,), (after,))])
    with pytest.raises(DeviceLostError):
        after.wait(vulkan_support.TIMEOUT)
    later = Point(Semaphore("later"), 1)
    device.submit([Submission(copies, (), (later,))])
    with pytest.raises(DeviceLostError):
        later.wait(vulkan_support.TIMEOUT)


@pytest.mark.parametrize("more", [0, 1])
def test_interrupted_submissions_hold_nothing(more: int) -> None:
    """Wherever a signal arrives, a command buffer that is closed is freed."""
    with contextlib.closing(vulkan_support.open_vulkan()) as device:
        fill = FillCommand(BufferRef(device.allocate(16, SHARED)), 16, 7)
        before, at, inside = len(device._recorder._live), 0, True
        while inside:
            commands = device.record([fill])

            def use() -> None:
                device.submit([Submission(commands, signal=(Point(Semaphore("done"), 1),))])  # noqa: B023
                commands.close()  # noqa: B023

            inside = interrupted(use, at, more)
            commands.close()
            at += 1 if not more else 3
        device._queue.close()
        service().run(gc.collect)
        assert at > 50
        assert not device._queue._running
        assert not device._queue._closing
        assert len(device._recorder._live) == before
