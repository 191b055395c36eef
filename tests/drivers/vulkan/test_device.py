"""The Vulkan driver on a real device (lavapipe will do), with the validation layer listening.

What every driver must do is tested by the conformance suite; here is what is Vulkan's own. This file:
devices, memory, executables. Recording, submission and failures are in test_vulkan_work.py.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_kernels as kernels
from support import vulkan_support

from mansard.cache import read_file
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.driver import VulkanDriver
from mansard.drivers.vulkan.instance.loader import Instance
from mansard.drivers.vulkan.shaders import copy_kernel
from mansard.drivers.vulkan.shaders.assembler import assemble
from mansard.errors import (
    ArtifactError,
    DeviceError,
    DeviceUnavailableError,
    OutOfMemoryError,
    TargetMismatchError,
)
from mansard.hal import (
    BufferRef,
    DeviceInfo,
    DispatchCommand,
    EntryPoint,
    ExecutableSpec,
    FillCommand,
    MemoryKind,
    Submission,
)
from mansard.hal.service import service

pytestmark = pytest.mark.vulkan
SHARED, DEVICE = MemoryKind.SHARED, MemoryKind.DEVICE


@pytest.fixture(autouse=True)
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def device(cache_directory: Path) -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


# ---- devices -------------------------------------------------------------------------------------


def test_listing_is_cheap_when_repeated() -> None:
    driver = vulkan_support.validating_driver()
    first = driver.devices()
    assert driver.devices() is first


def test_a_missing_driver_is_a_reason() -> None:
    code = (
        "from mansard.drivers.vulkan.driver import DRIVER\n"
        "infos = DRIVER.devices()\n"
        "assert len(infos) == 1 and not infos[0].supported and infos[0].reasons, infos\n"
        "try:\n    DRIVER.open(infos[0])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    nowhere = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=nowhere, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("DeviceUnavailableError")


def test_a_device_below_the_baseline_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = VulkanDriver(validation=False)
    infos = driver.devices()
    bad = DeviceInfo("vulkan", 0, "old", "vulkan:1.3", reasons=("Vulkan 1.1.0; 1.3 or newer is needed",))
    monkeypatch.setattr(driver, "_infos", (bad, *infos[1:]))
    with pytest.raises(DeviceUnavailableError, match=r"old.*1\.1\.0"):
        driver.open(infos[0])


def test_the_validation_layer_is_heard() -> None:
    """Proves that the other tests would fail if the driver used Vulkan wrongly."""
    instance: Instance | None = vulkan_support.validating_driver()._instance
    if instance is None or not instance.validation:
        pytest.skip("the Khronos validation layer is not installed")
    device = vulkan_support.open_vulkan()
    context = device._context
    info = vk.VkBufferCreateInfo(size=0, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT)
    handle = ctypes.c_uint64()
    context.commands.vkCreateBuffer(context.handle, ctypes.byref(info), None, ctypes.byref(handle))
    messages = vulkan_support.validating_driver().validation_messages(clear=True)
    assert any("VUID-VkBufferCreateInfo-size" in message for message in messages)
    assert vulkan_support.validating_driver().validation_messages() == []
    context.commands.vkDestroyBuffer(context.handle, handle.value, None)
    device.close()
    vulkan_support.assert_no_validation_messages()


def test_closing_twice_and_using_a_closed_device(device: VulkanDevice) -> None:
    buffer = device.allocate(100, SHARED)
    recorded = device.record([FillCommand(BufferRef(buffer), 100)])
    device.close()
    device.close()
    recorded.close()
    buffer.close()
    for use in (
        lambda: device.allocate(4),
        lambda: device.load(kernels.spec(kernels.ADD)),
        lambda: device.record([]),
        lambda: device.submit([Submission(recorded)]),
    ):
        with pytest.raises(DeviceError):
            use()


# ---- memory --------------------------------------------------------------------------------------


def test_small_buffers_share_a_block_and_do_not_overlap(device: VulkanDevice) -> None:
    buffers = [device.allocate(size, SHARED) for size in (1, 4, 255, 256, 257, 5000, 60_000) * 20]
    spans = sorted((b.address, b.address + b.size) for b in buffers)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert all(b.address % 256 == 0 for b in buffers)
    assert len({b.handle for b in buffers}) < 10  # type: ignore[attr-defined]
    for number, buffer in enumerate(buffers):
        buffer.view()[:] = number % 251
    assert all((b.view() == number % 251).all() for number, b in enumerate(buffers))


def test_freed_memory_is_used_again(device: VulkanDevice) -> None:
    addresses = set()
    for _ in range(50):
        buffer = device.allocate(1000, DEVICE)
        addresses.add(buffer.address)
        buffer.close()
    assert len(addresses) == 1


def test_garbage_collection_frees_memory(device: VulkanDevice) -> None:
    live = device._allocator._live
    buffer = device.allocate(1 << 20, DEVICE)
    assert len(live) == 1
    del buffer
    service().run(gc.collect)  # after what the service thread was told before
    assert len(live) == 0


def test_a_view_keeps_the_buffer(device: VulkanDevice) -> None:
    view = device.allocate(1 << 16, SHARED).view()
    gc.collect()
    view[:] = 7
    assert len(device._allocator._live) == 1


def test_too_large_an_allocation(device: VulkanDevice) -> None:
    with pytest.raises(OutOfMemoryError, match="bytes"):
        device.allocate(1 << 50, DEVICE)
    device.allocate(4096, DEVICE)


def test_an_allocation_that_fails(device: VulkanDevice) -> None:
    device.inject(allocation=True, after=1)
    device.allocate(4096)
    with pytest.raises(OutOfMemoryError, match="VK_ERROR_OUT_OF_DEVICE_MEMORY"):
        device.allocate(4096)
    device.allocate(4096)


def aligned_array(count: int, alignment: int) -> np.ndarray:
    raw = np.zeros(count * 4 + alignment, np.uint8)
    offset = -raw.ctypes.data % alignment
    return raw[offset : offset + 4 * count].view(np.int32)


def test_kernels_write_into_imported_host_memory(device: VulkanDevice) -> None:
    if not device.capabilities.import_host:
        pytest.skip("the device cannot import host memory")
    array = aligned_array(5001, device.capabilities.import_alignment)
    buffer = device.import_host(array)
    assert buffer.host_pointer == array.ctypes.data
    vulkan_support.run(device, vulkan_support.fill_index(device, buffer, 5001, 3, 1))
    np.testing.assert_array_equal(array, np.arange(5001) * 3 + 1)


def test_misaligned_host_memory_is_refused(device: VulkanDevice) -> None:
    if device.capabilities.import_alignment <= 4:
        pytest.skip("the device imports memory of any alignment")
    array = aligned_array(5001, max(device.capabilities.import_alignment, 4096))
    with pytest.raises(DeviceError, match=r"align|cannot use host memory"):
        device.import_host(array[1:])
    with pytest.raises(DeviceError, match="contiguous"):
        device.import_host(array[::2])


def test_buffers_of_another_device(device: VulkanDevice) -> None:
    other = vulkan_support.open_vulkan()
    buffer = device.allocate(4096, SHARED)
    assert device.import_buffer(buffer) is buffer
    foreign = other.allocate(1 << 20, SHARED)
    imported = device.import_buffer(foreign)
    if device.capabilities.import_host and imported is not None:
        vulkan_support.run(device, vulkan_support.fill_index(device, imported, 100, 2, 5))
        np.testing.assert_array_equal(foreign.view()[:400].view(np.int32), np.arange(100) * 2 + 5)
        imported.close()
    with pytest.raises(DeviceError, match="another device"):
        device.record([FillCommand(BufferRef(foreign), 4)])
    other.close()


# ---- executables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [*sorted(kernels.TEXTS.items()), ("copy", copy_kernel.TEXT), ("rest", copy_kernel.REST_TEXT)],
)
def test_hand_written_kernels_are_valid(name: str, text: str, tmp_path: Path) -> None:
    if not vulkan_support.has_spirv_val():
        pytest.skip("spirv-val is not installed")
    path = tmp_path / f"{name}.spv"
    path.write_bytes(assemble(text))
    subprocess.run(["spirv-val", "--target-env", "vulkan1.3", str(path)], check=True)


def test_a_table_too_large_for_push_constants(device: VulkanDevice) -> None:
    out = device.allocate(32, SHARED)
    executable = device.load(kernels.spec(kernels.WIDE))
    params = tuple(range(-5, 15))
    twice = tuple(2 * p for p in params)
    vulkan_support.run(
        device,
        DispatchCommand(executable, "wide", (BufferRef(out),), params, (1, 1, 1)),
        DispatchCommand(executable, "wide", (BufferRef(out, 16),), twice, (1, 1, 1)),
    )
    assert out.view().view(np.int64)[[0, 2]].tolist() == [sum(params), sum(twice)]


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (("int64", "tensor_cores"), "tensor_cores"),
        (("workgroup_invocations>=1000000",), "workgroup_invocations>=1000000"),
        (("no_such_limit>=1",), "no such limit"),
    ],
)
def test_unmet_requirements(device: VulkanDevice, requires: tuple[str, ...], message: str) -> None:
    with pytest.raises(TargetMismatchError, match=message):
        device.load(kernels.spec(kernels.ADD, requires))


def test_met_requirements(device: VulkanDevice) -> None:
    limit = device.info.limits["workgroup_invocations"]
    device.load(kernels.spec(kernels.ADD, ("int64", f"workgroup_invocations>={limit}"))).close()


def test_code_that_is_no_kernel(device: VulkanDevice) -> None:
    with pytest.raises(ArtifactError):
        device.load(ExecutableSpec("spirv", "vulkan:1.3", b"not SPIR-V", (kernels.ADD,)))
    code = assemble(kernels.TEXTS["add"])
    with pytest.raises(ArtifactError, match="mul"):
        device.load(ExecutableSpec("spirv", "vulkan:1.3", code, (EntryPoint("mul", 3, 1),)))
    with pytest.raises(TargetMismatchError, match="cpu-image"):
        device.load(ExecutableSpec("cpu-image", "cpu:x86_64", code, ()))


def test_executables_are_loaded_together_in_their_order(device: VulkanDevice) -> None:
    entries = [kernels.ADD, kernels.WIDE] * 4
    loaded = device.load_all([kernels.spec(entry) for entry in entries])
    assert [[*executable.entries] for executable in loaded] == [[entry.name] for entry in entries]
    for executable in loaded:
        executable.close()
    assert device.load_all([]) == []


def test_where_one_executable_cannot_be_loaded_none_is(device: VulkanDevice) -> None:
    broken = ExecutableSpec("spirv", "vulkan:1.3", b"not SPIR-V", (kernels.ADD,))
    unmet = kernels.spec(kernels.ADD, ("float128",))
    good = [kernels.spec(kernels.ADD) for _ in range(3)]
    before = set(device._loader._live)
    with pytest.raises(TargetMismatchError, match="float128"):  # the first of two errors
        device.load_all([good[0], unmet, good[1], broken, good[2]])
    assert device._loader._live == before
    device.load(good[0]).close()


def test_the_pipeline_cache_is_kept_on_disk(device: VulkanDevice, cache_directory: Path) -> None:
    device.load(kernels.spec(kernels.ADD))
    device.close()
    stored = list(cache_directory.rglob("*.bin"))
    if not stored:
        pytest.skip("the driver fills no pipeline cache")
    assert len(stored) == 1
    assert read_file(stored[0])
    again = vulkan_support.open_vulkan()
    before = stored[0].stat().st_mtime_ns
    again.load(kernels.spec(kernels.ADD))
    again.close()
    assert stored[0].stat().st_mtime_ns == before, "nothing new was compiled, so nothing was written"
    stored[0].write_bytes(b"damaged")
    repaired = vulkan_support.open_vulkan()
    repaired.load(kernels.spec(kernels.ADD))
    repaired.close()
    assert read_file(stored[0])


def test_an_executable_tells_how_long_its_pipelines_took(device: VulkanDevice) -> None:
    executable = device.load(kernels.spec(kernels.ADD))
    (build,) = executable.builds
    assert (
        build.entry in executable.entries and 0 < build.seconds < 60 and build.cached in (True, False, None)
    )
    executable.close()
