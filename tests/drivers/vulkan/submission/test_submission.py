"""Recording, submission and failures of the Vulkan driver, with the validation layer listening."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_kernels as kernels
from support import vulkan_support
from support.paths import TESTS

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.kernel_target import CHOOSES_SUBGROUPS
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.shaders.executable import asked_subgroup_size
from mansard.dtypes import DType
from mansard.errors import (
    DeviceError,
    DeviceLostError,
    ExecutionError,
    OutOfMemoryError,
    WaitTimeoutError,
)
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    CopyCommand,
    DispatchCommand,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
    core_abi,
    native,
)

pytestmark = pytest.mark.vulkan
SHARED, DEVICE = MemoryKind.SHARED, MemoryKind.DEVICE


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def device(cache_directory: Path) -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


# ---- kernels -------------------------------------------------------------------------------------


def test_the_size_of_subgroups_that_a_kernel_asks_for(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a device with several sizes, a device gets the size with the kernel."""
    size = device.info.limits["subgroup_size"]
    if not device.capabilities.features >= CHOOSES_SUBGROUPS:
        pytest.skip("kernels cannot choose the size of subgroups on this device")
    setup = device._context.setup
    several = dataclasses.replace(setup, limits={**setup.limits, "min_subgroup_size": size // 2})
    monkeypatch.setattr(device._loader, "_context", dataclasses.replace(device._context, setup=several))
    b = KernelBuilder("sizes", [(DType.I32, True)], 0, workgroup=(2 * size, 1, 1), index=DType.I32)
    b.subgroup = size
    b.store(b.bindings[0], b.local_id(0), b.subgroup_place("subgroup_size"))
    spec = BACKEND.compile_kernel(b.build(), BACKEND.parse_target(BACKEND.describe_device(device.info)))
    assert asked_subgroup_size(spec.requires, several) == size
    executable = device.load(spec)
    out = device.allocate(8 * size, SHARED)
    commands = device.record([DispatchCommand(executable, "sizes", (BufferRef(out),), (), (1, 1, 1))])
    done = Point(Semaphore(), 1)
    device.submit([Submission(commands, signal=(done,))])
    done.wait(vulkan_support.TIMEOUT)
    assert set(out.view().view(np.int32)) == {size}


# ---- recording -----------------------------------------------------------------------------------


def test_what_cannot_be_recorded(device: VulkanDevice) -> None:
    buffer = device.allocate(1024, SHARED)
    good = vulkan_support.fill_index(device, buffer, 10, 1, 1)
    ref, slot = BufferRef(buffer), BufferRef(BindingSlot(0))
    limit = device.info.limits["workgroup_count_y"]
    cases = [
        (FillCommand(slot, 4), "when recording"),
        (FillCommand(ref, 1028), "not within"),
        (FillCommand(BufferRef(buffer, -4), 4), "not within"),
        (FillCommand(ref, 6), "multiples of 4"),
        (CopyCommand(ref, BufferRef(buffer, 1000), 100), "not within"),
        (DispatchCommand(good.executable, "fill_index", (), (1, 2, 3), (1, 1, 1)), "takes 1 buffers and 3"),
        (DispatchCommand(good.executable, "fill_index", (ref,), (1, 2), (1, 1, 1)), "takes 1 buffers and 3"),
        (DispatchCommand(good.executable, "other", (ref,), (1, 2, 3), (1, 1, 1)), "no entry point 'other'"),
        (
            DispatchCommand(good.executable, "fill_index", (ref,), (1, 2, 3), (1, limit + 1, 1)),
            f"{limit} .maxComputeWorkGroupCount",
        ),
    ]
    for command, message in cases:
        with pytest.raises(DeviceError, match=message):
            device.record([command])  # type: ignore[list-item]
    buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        device.record([good])


def test_empty_commands(device: VulkanDevice) -> None:
    buffer = device.allocate(64, SHARED)
    buffer.view()[:] = 9
    ref = BufferRef(buffer)
    nothing = vulkan_support.fill_index(device, buffer, 0, 1, 1)
    assert nothing.grid == (0, 1, 1)
    vulkan_support.run(device, FillCommand(ref, 0), CopyCommand(ref, BufferRef(buffer, 32), 0), nothing)
    vulkan_support.run(device)
    assert (buffer.view() == 9).all()


@pytest.mark.parametrize("calibrated", [True, False])
def test_profiles_are_in_host_time(device: VulkanDevice, calibrated: bool) -> None:
    if not device.capabilities.profiling:
        pytest.skip("the device has no timestamps")
    clock = device._clock
    if calibrated and not clock._calibrated:
        pytest.skip("the device has no calibrated timestamps")
    clock._calibrated = calibrated
    buffer = device.allocate(1 << 20, SHARED)
    commands = [
        vulkan_support.spin(device, buffer, 200),
        BarrierCommand(),
        FillCommand(BufferRef(buffer), 1 << 20),
        BarrierCommand(),
        vulkan_support.spin(device, buffer, 1),
    ]
    recorded = device.record(commands, profile=True)
    assert recorded.profile() == []
    done = Semaphore("profile")
    for run in (1, 2):
        begin = time.monotonic_ns()
        device.submit([Submission(recorded, signal=(Point(done, run),))])
        Point(done, run).wait(vulkan_support.TIMEOUT)
        end = time.monotonic_ns()
        rows = recorded.profile()
        assert [row.label for row in rows] == ["spin", "fill", "spin"]
        times = [time for row in rows for time in (row.start_ns, row.end_ns)]
        assert times == sorted(times)
        slack = 2_000_000  # the two clocks agree to within that
        assert begin - slack <= times[0]
        assert times[-1] <= end + slack
        assert rows[0].end_ns - rows[0].start_ns > rows[1].end_ns - rows[1].start_ns
    recorded.close()
    assert recorded.profile() == []


def test_without_profile_there_are_no_rows(device: VulkanDevice) -> None:
    buffer = device.allocate(64, SHARED)
    recorded = device.record([FillCommand(BufferRef(buffer), 64)])
    done = Point(Semaphore(), 1)
    device.submit([Submission(recorded, signal=(done,))])
    done.wait(vulkan_support.TIMEOUT)
    assert recorded.profile() == []


@pytest.mark.parametrize("size", [64 * 1024, 5 * 16384 + 12, 3 * 1024 * 1024 + 5, 40_000, 4, 4100])
@pytest.mark.parametrize("offset", [0, 16, 4])
def test_copies_within_device_memory(device: VulkanDevice, size: int, offset: int) -> None:
    encoder = device._recorder._encoder
    encoder.copies_by_kernel = True
    total = size + 64
    data = np.random.default_rng(size + offset).integers(0, 255, total).astype(np.uint8)
    source, target = device.allocate(total), device.allocate(total)
    shared = device.allocate(total, SHARED)
    shared.view()[:] = data
    whole = BufferRef(shared)
    vulkan_support.run(
        device,
        CopyCommand(whole, BufferRef(source), total),
        FillCommand(BufferRef(target), total // 4 * 4, 0xEEEEEEEE),
        CopyCommand(BufferRef(source, 32), BufferRef(target, offset), size),
        CopyCommand(BufferRef(target), whole, total // 4 * 4),
    )
    np.testing.assert_array_equal(shared.view()[offset : offset + size], data[32 : 32 + size])
    assert (shared.view()[:offset] == 0xEE).all()
    assert (shared.view()[offset + size : total // 4 * 4] == 0xEE).all()
    aligned_host_copies = total <= encoder.host_copies_by_kernel
    assert (encoder._copiers is not None) == (offset % 16 == 0 or aligned_host_copies)


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (1 << 20, 0), (1 << 20, 4)])
def test_copies_from_and_to_the_host(device: VulkanDevice, limit: int, offset: int) -> None:
    encoder = device._recorder._encoder
    encoder.copies_by_kernel, encoder.host_copies_by_kernel = True, limit
    for size in (4, 16, 28, 4096, 40_004, 200_000, 1_200_000):
        host, local, back = (
            device.allocate(size + 64, SHARED),
            device.allocate(size + 64),
            device.allocate(size + 64, SHARED),
        )
        host.view()[:] = np.random.default_rng(size).integers(0, 255, host.size).astype(np.uint8)
        back.view()[:] = 0xEE
        up = CopyCommand(BufferRef(host, 16), BufferRef(local, offset), size)
        vulkan_support.run(device, up, CopyCommand(BufferRef(local, offset), BufferRef(back, 32), size))
        np.testing.assert_array_equal(back.view()[32 : 32 + size], host.view()[16 : 16 + size])
        assert (back.view()[:32] == 0xEE).all()
        assert (back.view()[32 + size :] == 0xEE).all()
    assert (encoder._copiers is not None) == (limit > 0 and offset % 16 == 0)


# ---- submission ----------------------------------------------------------------------------------


def test_submit_does_not_wait_for_the_device(device: VulkanDevice) -> None:
    buffer = device.allocate(64, SHARED)
    recorded = device.record([vulkan_support.spin(device, buffer, 3000)])
    done = Point(Semaphore(), 1)
    begin = time.perf_counter()
    device.submit([Submission(recorded, signal=(done,))])
    submitted = time.perf_counter() - begin
    assert not done.done()
    done.wait(vulkan_support.TIMEOUT)
    assert submitted < (time.perf_counter() - begin) / 2


def test_a_chain_on_one_device_needs_no_host(device: VulkanDevice) -> None:
    """Each submission waits for the one before and must see its writes."""
    n, steps = 1000, 50
    first, second = (device.allocate(4 * n, SHARED) for _ in range(2))
    first.view()[:] = 0
    one = device.allocate(4 * n, SHARED)
    one.view().view(np.float32)[:] = 1
    executable = device.load(kernels.spec(kernels.ADD))

    def step(source: object, target: object) -> DispatchCommand:
        refs = (BufferRef(source), BufferRef(one), BufferRef(target))  # type: ignore[arg-type]
        return DispatchCommand(executable, "add", refs, (n,), kernels.groups(n))

    forth, back = device.record([step(first, second)]), device.record([step(second, first)])
    timeline = Semaphore("chain")
    for number in range(1, steps + 1):
        submission = Submission(
            forth if number % 2 else back, (Point(timeline, number - 1),), (Point(timeline, number),)
        )
        if number > 2:
            # A recording must not be submitted again before its last run ended.
            Point(timeline, number - 2).wait(vulkan_support.TIMEOUT)
        device.submit([submission])
    Point(timeline, steps).wait(vulkan_support.TIMEOUT)
    assert (first.view().view(np.float32) == steps).all()


def test_a_batch_whose_producer_runs_is_handed_on_at_once(device: VulkanDevice) -> None:
    """Work that waits for work of the same device is ordered by the device, not by a round trip."""
    semaphore = Semaphore("chain")
    device.inject(hang=True)
    first, second = Point(semaphore, 1), Point(semaphore, 2)
    device.submit([empty_batch(device, first), empty_batch(device, second, first)])
    stats = core_abi.StatsStruct()
    native.core.mn_queue_get_stats(device._queue._core, ctypes.byref(stats))
    assert (stats.running, stats.waiting) == (2, 0)
    assert semaphore.value == 0
    device.let_go()
    second.wait(vulkan_support.TIMEOUT)


def test_recordings_live_until_their_run_ends(device: VulkanDevice) -> None:
    buffer = device.allocate(64, SHARED)
    done = Semaphore()
    recorded = device.record([vulkan_support.spin(device, buffer, 500)])
    device.submit([Submission(recorded, signal=(Point(done, 1),))])
    recorded.close()
    with pytest.raises(DeviceError, match="closed"):
        device.submit([Submission(recorded)])
    device.submit(
        [Submission(device.record([vulkan_support.spin(device, buffer, 500)]), signal=(Point(done, 2),))]
    )
    gc.collect()
    Point(done, 2).wait(vulkan_support.TIMEOUT)


def test_batches_of_other_devices_are_refused(device: VulkanDevice) -> None:
    other = vulkan_support.open_vulkan()
    with pytest.raises(DeviceError, match="another device"):
        device.submit([Submission(other.record([]))])
    buffer = device.allocate(64)
    with pytest.raises(DeviceError, match="when recording"):
        device.submit([Submission(device.record([]), bindings={0: buffer})])
    other.close()


def test_two_devices_wait_for_each_other(device: VulkanDevice) -> None:
    other = vulkan_support.open_vulkan()
    semaphore = Semaphore("between")
    mine, yours = device.allocate(64, SHARED), other.allocate(64, SHARED)
    other.submit(
        [
            Submission(
                other.record([FillCommand(BufferRef(yours), 64, 2)]),
                (Point(semaphore, 2),),
                (Point(semaphore, 3),),
            )
        ]
    )
    device.submit(
        [
            Submission(
                device.record([FillCommand(BufferRef(mine), 64, 1)]),
                (Point(semaphore, 1),),
                (Point(semaphore, 2),),
            )
        ]
    )
    assert semaphore.value == 0
    semaphore.signal(1)
    Point(semaphore, 3).wait(vulkan_support.TIMEOUT)
    assert (mine.view().view(np.int32) == 1).all()
    assert (yours.view().view(np.int32) == 2).all()
    other.close()


# ---- failures ------------------------------------------------------------------------------------


def empty_batch(device: VulkanDevice, signal: Point, *wait: Point) -> Submission:
    return Submission(device.record([]), wait, (signal,))


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (vk.VK_ERROR_OUT_OF_DEVICE_MEMORY, OutOfMemoryError),
        (vk.VK_ERROR_UNKNOWN, ExecutionError),
        (vk.VK_ERROR_DEVICE_LOST, DeviceLostError),
    ],
)
def test_a_submission_that_fails(device: VulkanDevice, result: int, kind: type[DeviceError]) -> None:
    points = [Point(Semaphore(f"s{i}"), 1) for i in range(4)]
    device.inject(result=result, after=1)
    device.submit([empty_batch(device, points[0])])
    points[0].wait(vulkan_support.TIMEOUT)
    device.submit([empty_batch(device, points[1]), empty_batch(device, points[2], points[1])])
    for point in points[1:3]:
        with pytest.raises(kind, match=vk.RESULT_NAMES[result]):
            point.wait(vulkan_support.TIMEOUT)
    device.submit([empty_batch(device, points[3])])
    if kind is DeviceLostError:
        with pytest.raises(DeviceLostError):
            points[3].wait(vulkan_support.TIMEOUT)
    else:
        points[3].wait(vulkan_support.TIMEOUT)


def test_a_lost_device_fails_everything_in_flight(device: VulkanDevice) -> None:
    names = ("runs", "waits", "loses", "later")
    runs, waits, loses, later = (Point(Semaphore(name), 1) for name in names)
    never = Point(Semaphore("never"), 1)
    device.inject(hang=True)
    device.submit([empty_batch(device, runs), empty_batch(device, waits, never)])
    device.inject(result=vk.VK_ERROR_DEVICE_LOST)
    device.submit([empty_batch(device, loses)])
    for point in (loses, runs):
        with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
            point.wait(vulkan_support.TIMEOUT)
    device.submit([empty_batch(device, later)])
    with pytest.raises(DeviceLostError):
        later.wait(vulkan_support.TIMEOUT)
    never.semaphore.signal(1)
    with pytest.raises(DeviceLostError):
        waits.wait(vulkan_support.TIMEOUT)


def test_a_hang_is_a_timeout_that_names_the_point(device: VulkanDevice) -> None:
    point = Point(Semaphore("the answer"), 1)
    device.inject(hang=True)
    device.submit([empty_batch(device, point)])
    with pytest.raises(WaitTimeoutError, match="the answer"):
        point.wait(0.05)
    assert not point.done()
    device.let_go()
    point.wait(vulkan_support.TIMEOUT)


def test_closing_ends_a_hang_and_fails_what_waits() -> None:
    device = vulkan_support.open_vulkan()
    hangs, waits = Point(Semaphore("hangs"), 1), Point(Semaphore("waits"), 1)
    never = Point(Semaphore("never"), 1)
    device.inject(hang=True)
    device.submit([empty_batch(device, hangs), empty_batch(device, waits, never)])
    device.close()
    hangs.wait(0)
    with pytest.raises(DeviceError, match="never"):
        waits.wait(0)
    vulkan_support.assert_no_validation_messages()


def test_closing_waits_for_what_runs() -> None:
    device = vulkan_support.open_vulkan()
    buffer = device.allocate(64, SHARED)
    done = Point(Semaphore(), 1)
    device.submit([Submission(device.record([vulkan_support.spin(device, buffer, 1000)]), signal=(done,))])
    device.close()
    done.wait(0)
    vulkan_support.assert_no_validation_messages()


@pytest.mark.parametrize("closes", [False, True])
def test_the_process_may_end_while_work_runs(closes: bool) -> None:
    """Also when somebody closes the device as the very last act."""
    vulkan_support.usable_device()
    code = (
        "import atexit, sys\n"
        f"sys.path.insert(0, {str(TESTS)!r})\n"
        "device = None\n"
        f"if {closes}: atexit.register(lambda: device.close())\n"  # registered first, called last
        "from support import vulkan_support\n"
        "from mansard.hal import Submission, MemoryKind, Point, Semaphore\n"
        "device = vulkan_support.open_vulkan()\n"
        "out = device.allocate(64, MemoryKind.SHARED)\n"
        "work = device.record([vulkan_support.spin(device, out, 4000)])\n"
        "device.submit([Submission(work, signal=(Point(Semaphore(), 1),))])\n"
        "print('submitted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "submitted"), done.stderr


def test_objects_have_names_for_debuggers(device: VulkanDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    if not device._context.instance.validation:
        pytest.skip("names are given where a validation layer is on")
    names: dict[int, bytes] = {}
    original = device._context.commands.vkSetDebugUtilsObjectNameEXT

    def record(handle: int, info: object) -> int:
        described = info._obj  # type: ignore[attr-defined]  # of ctypes.byref
        names[described.objectHandle] = described.pObjectName
        return int(original(handle, info))

    monkeypatch.setattr(device._context.commands, "vkSetDebugUtilsObjectNameEXT", record)
    buffer = device.allocate(1 << 20, SHARED, "weights")
    dispatch = vulkan_support.fill_index(device, buffer, 10, 1, 1)
    pipeline = dispatch.executable.pipelines["fill_index"].handle  # type: ignore[attr-defined]
    assert names == {buffer.handle: b"weights", pipeline: b"fill_index"}  # type: ignore[attr-defined]
    vulkan_support.run(device, dispatch)  # its label is in the recording; the layer checks how labels nest


def test_a_launcher_submits_one_recording_again_and_again(device: VulkanDevice) -> None:
    n, timeline = 1000, Semaphore("launches")
    total, one = device.allocate(4 * n, SHARED), device.allocate(4 * n, SHARED)
    total.view()[:] = 0
    one.view().view(np.float32)[:] = 1
    executable = device.load(kernels.spec(kernels.ADD))
    refs = (BufferRef(total), BufferRef(one), BufferRef(total))
    recorded = device.record([DispatchCommand(executable, "add", refs, (n,), kernels.groups(n))])
    launcher = device.launcher(recorded, timeline)
    assert launcher is not None
    for value in range(1, 11):
        launcher.submit(value, ())
        Point(timeline, value).wait(vulkan_support.TIMEOUT)
    assert (total.view().view(np.float32) == 10).all()
    with pytest.raises(DeviceError, match="takes no arrays"):
        launcher.submit(11, [np.zeros(4)])
    device.inject(result=vk.VK_ERROR_OUT_OF_DEVICE_MEMORY)
    launcher.submit(11, ())
    with pytest.raises(OutOfMemoryError):
        Point(timeline, 11).wait(vulkan_support.TIMEOUT)
    recorded.close()
    with pytest.raises(DeviceError, match="closed"):
        launcher.submit(12, ())
