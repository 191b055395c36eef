"""What goes wrong on a Vulkan device: told clearly, nothing left behind, and the next model works."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_support
from support.graph_runner import compare, outputs
from support.graphs import F32, matmul, softmax, unary

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompiledModel, CompileOptions, compile_graph
from mansard.drivers.vulkan import driver as driver_module
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.driver import VulkanDriver
from mansard.drivers.vulkan.instance import faults, loader
from mansard.drivers.vulkan.instance.faults import InjectedFaults
from mansard.drivers.vulkan.instance.restrict import limit_profile
from mansard.errors import (
    DeviceError,
    DeviceLostError,
    DeviceUnavailableError,
    OutOfMemoryError,
    TargetMismatchError,
)
from mansard.hal import registry
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)
INPUT = RNG.standard_normal((16, 24)).astype(np.float32)
WEIGHT = RNG.standard_normal((24, 24)).astype(np.float32)


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))


def graph():
    """Three dispatches one after another, with a weight."""
    b = GraphBuilder()
    x, w = b.input("x", (16, 24), F32), b.constant("w", Constant.of(WEIGHT), WEIGHT.shape, F32)
    return b.build([softmax(b, unary(b, "neg", matmul(b, matmul(b, x, w), w)))])


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    vulkan_support.usable_device()
    return compile_graph(
        graph(), CompileOptions(targets=("vulkan",), placement=PlacementOptions(fallback="error"))
    )


def use(compiled: CompiledModel) -> None:
    """Open a device, load a model, call it and profile a call, close everything."""
    device = vulkan_support.open_vulkan()
    try:
        resources = MemoryResources(compiled.executables, compiled.weights)
        with Model(compiled.plan, resources, devices=[device]) as model:
            compare(outputs(model, [INPUT]), interpret(graph(), [INPUT]))
            model.profile(INPUT)
    finally:
        device.close()
        gc.collect()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[InjectedFaults]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # calls in one order
    with faults.watching() as watch:
        yield watch


def test_no_memory_at_each_creating_call_in_turn(compiled: CompiledModel, watch: InjectedFaults) -> None:
    use(compiled)
    calls = list(watch.calls)
    assert len(calls) > 15
    assert not watch.live
    for number, name in enumerate(calls):
        result = vk.VK_ERROR_OUT_OF_HOST_MEMORY if number % 2 else vk.VK_ERROR_OUT_OF_DEVICE_MEMORY
        watch.fail(number, result)
        try:
            use(compiled)
        except OutOfMemoryError as error:
            assert vk.RESULT_NAMES[result] in str(error), "the error says what failed and how"
        assert watch.failed == name, "an error, or a way around it; but the call was made"
        assert not watch.live, f"left behind after {name}: {dict(watch.live)}"
        vulkan_support.assert_no_validation_messages()
    use(compiled)
    assert not watch.live


@pytest.mark.parametrize(
    "name",
    [
        "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkAllocateDescriptorSets", "vkQueueSubmit2",
        "vkWaitSemaphores", "vkGetSemaphoreCounterValue",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "result",
    [
        vk.VK_ERROR_OUT_OF_HOST_MEMORY,
        # What has no memory goes the same way for both kinds of memory.
        pytest.param(vk.VK_ERROR_OUT_OF_DEVICE_MEMORY, marks=pytest.mark.slow),
        vk.VK_ERROR_DEVICE_LOST,
    ],
)
def test_each_call_of_the_core_fails_in_turn(
    compiled: CompiledModel, watch: InjectedFaults, name: str, result: int
) -> None:
    use(compiled)
    failed: set[str] = set()
    count = watch.core_calls[name]
    # Waits come in varying numbers, and where the device is fast there may be none: some are tried again.
    for turn, number in enumerate([*range(count), *(0 for _ in range(20 * count))]):
        if turn >= count and failed:
            break
        watch.fail_in_core(name, number, result)
        try:
            use(compiled)
        except DeviceError as error:
            assert watch.failed == name, "nothing else went wrong"
            assert vk.RESULT_NAMES[result] in str(error), "the error says what failed and how"
        failed |= {watch.failed} - {""}
        assert not watch.live, f"left behind after {name}: {dict(watch.live)}"
        vulkan_support.assert_no_validation_messages()
    assert failed == ({name} if count else set())
    watch.fail_in_core("", 0, 0)
    use(compiled)
    assert not watch.live


def test_a_pipeline_that_cannot_be_built(compiled: CompiledModel, watch: InjectedFaults) -> None:
    use(compiled)
    for number, name in enumerate(list(watch.calls)):
        if name not in ("vkCreateComputePipelines", "vkCreateShaderModule"):
            continue
        watch.fail(number, vk.VK_ERROR_INVALID_SHADER_NV)
        with pytest.raises(
            DeviceError, match=r"(compiling \w+|loading SPIR-V) failed: VK_ERROR_INVALID_SHADER"
        ):
            use(compiled)
        assert not watch.live
    use(compiled)


def test_a_model_loaded_after_its_device_was_lost(compiled: CompiledModel) -> None:
    resources = MemoryResources(compiled.executables, compiled.weights)
    expected = interpret(graph(), [INPUT])
    with Model(compiled.plan, resources) as model:
        compare(outputs(model, [INPUT]), expected)
        device = registry.open_device("vulkan")
        assert not device.lost
        assert registry.open_device("vulkan") is device
        device.inject(result=vk.VK_ERROR_DEVICE_LOST)  # type: ignore[attr-defined]
        for _ in range(2):  # it stays lost
            with pytest.raises(DeviceLostError, match="VK_ERROR_DEVICE_LOST"):
                model(INPUT)
        assert device.lost
        with Model(compiled.plan, resources) as following:
            compare(outputs(following, [INPUT]), expected)
        assert registry.open_device("vulkan") is not device
        with pytest.raises(DeviceError):
            model(INPUT)


def test_the_process_ends_in_order_with_a_lost_device() -> None:
    vulkan_support.usable_device()
    code = (
        "from mansard.hal import registry, Submission, Point, Semaphore\n"
        "device = registry.open_device('vulkan')\n"
        "device.inject(result=-4)\n"
        "point = Point(Semaphore(), 1)\n"
        "device.submit([Submission(device.record([]), signal=(point,))])\n"
        "try:\n    point.wait(20)\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "DeviceLostError"), done.stderr


def refusing(monkeypatch: pytest.MonkeyPatch, driver: VulkanDriver) -> None:
    """Let a driver stand for the installed one, without devices of its own open."""
    monkeypatch.setattr(registry, "_open", {})
    monkeypatch.setitem(registry.drivers(), "vulkan", driver)
    monkeypatch.setattr(registry, "driver", {**registry.drivers()}.get)


def test_a_driver_that_is_too_old(compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    vulkan_support.usable_device()
    read = driver_module.read_snapshot

    def old(*arguments: object) -> object:
        # What a driver for Vulkan 1.2 tells: neither features nor the properties of 1.3 can be asked for.
        snapshot = read(*arguments)  # type: ignore[arg-type]
        return dataclasses.replace(
            snapshot, api_version=1 << 22 | 2 << 12 | 131, features=frozenset(), driver="", driver_id=0
        )

    monkeypatch.setattr(driver_module, "read_snapshot", old)
    driver = VulkanDriver(validation=False)
    infos = driver.devices()
    reason = "Vulkan 1.2.131; 1.3 or newer is needed"
    assert all(info.reasons == (reason,) and not info.supported for info in infos)
    assert {info.tier for info in infos} == {"vulkan-1.3: not supported"}
    with pytest.raises(DeviceUnavailableError, match=reason):
        driver.open(infos[0])
    refusing(monkeypatch, driver)
    with pytest.raises(TargetMismatchError, match=reason):
        Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)).bind()
    with pytest.raises(DeviceUnavailableError, match=reason):
        registry.open_device("vulkan")


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (
            "libvulkan-is-not-here.so.1",
            r"the Vulkan loader \(libvulkan-is-not-here\.so\.1\) is not installed",
        ),
        ("libm.so.6", "is no Vulkan loader"),
    ],
)
def test_a_loader_that_is_missing(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch, library: str, reason: str
) -> None:
    monkeypatch.setattr(loader, "LIBRARIES", {sys.platform: (library,)})
    driver = VulkanDriver(validation=False)
    (info,) = driver.devices()
    assert not info.supported
    with pytest.raises(DeviceUnavailableError, match=reason):
        driver.open(info)
    refusing(monkeypatch, driver)
    with pytest.raises(TargetMismatchError, match=reason):
        Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)).bind()


def test_a_driver_that_lists_devices_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    vulkan_support.usable_device()
    driver = VulkanDriver(validation=False)
    lost = vk.VK_ERROR_INITIALIZATION_FAILED

    def failing(self: loader.Instance) -> list[int]:
        loader.check(lost, "listing physical devices")
        return []

    monkeypatch.setattr(loader.Instance, "physical_devices", failing)
    (info,) = driver.devices()
    assert info.reasons == ("listing physical devices failed: VK_ERROR_INITIALIZATION_FAILED",)


@pytest.mark.parametrize("profile", ["mali-g720", "moltenvk"])
def test_an_allocation_above_the_limit_profile(watch: InjectedFaults, profile: str) -> None:
    device = vulkan_support.Variation(limits=profile).open()
    bounds = limit_profile(profile).limits
    limit = device.capabilities.max_allocation
    assert limit <= min(bounds["maxMemoryAllocationSize"], bounds["maxBufferSize"])
    with pytest.raises(OutOfMemoryError, match=r"exceeds .*\((maxBufferSize|maxMemoryAllocationSize: )"):
        device.allocate(limit + 16)
    assert "vkAllocateMemory" not in watch.calls
    device.close()


def test_more_allocations_than_the_limit_profile_has(monkeypatch: pytest.MonkeyPatch) -> None:
    device = vulkan_support.Variation(limits="vulkan-minimum").open()
    setup = device._context.setup
    monkeypatch.setitem(setup.limits, "allocations", 3)  # type: ignore[arg-type]
    kept = [device.allocate(1 << 20) for _ in range(3)]
    with pytest.raises(OutOfMemoryError, match=r"vulkan-minimum \(maxMemoryAllocationCount: 4 is"):
        device.allocate(1 << 20)
    kept.pop().close()
    device.allocate(1 << 20)
    device.close()


def test_more_memory_than_the_limit_profile_has(monkeypatch: pytest.MonkeyPatch) -> None:
    device = vulkan_support.Variation(limits="vulkan-minimum").open()
    snapshot = device._context.snapshot
    heaps = tuple(dataclasses.replace(heap, size=5 << 20) for heap in snapshot.heaps)
    monkeypatch.setattr(device._allocator, "_context", _with_heaps(device, heaps))
    kept = device.allocate(3 << 20)
    with pytest.raises(OutOfMemoryError, match="size of the heap: 6291456 is more than 5242880"):
        device.allocate(3 << 20)
    kept.close()
    device.allocate(3 << 20)
    device.close()


def _with_heaps(device, heaps):
    context = device._context
    return dataclasses.replace(context, snapshot=dataclasses.replace(context.snapshot, heaps=heaps))


def test_counting_counts_what_is_alive(watch: InjectedFaults) -> None:
    """The counters that the other tests trust."""
    device = vulkan_support.open_vulkan()
    context = device._context
    before = watch.live["vkCreateBuffer"]
    info = vk.VkBufferCreateInfo(size=64, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
    handle = ctypes.c_uint64()
    context.commands.vkCreateBuffer(context.handle, ctypes.byref(info), None, ctypes.byref(handle))
    assert watch.live["vkCreateBuffer"] == before + 1
    context.commands.vkDestroyBuffer(context.handle, handle.value, None)
    assert watch.live["vkCreateBuffer"] == before
    device.close()
    assert not watch.live
