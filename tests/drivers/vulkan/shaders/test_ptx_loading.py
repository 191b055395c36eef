"""Executables with a PTX module, loaded with made-up commands: what is made, refused and destroyed."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator

import pytest
from support import ptx_kernels, vulkan_kernels, vulkan_support
from support.ptx_kernels import FILL_TEXT, NO_HANDLE, THREADS, TRIPLE, TRIPLE_TEXT

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.instance import faults
from mansard.drivers.vulkan.shaders.executable import ExecutableLoader, VulkanExecutable
from mansard.drivers.vulkan.submission.bridge import BARRIER, DISPATCH, LAUNCH, TIMESTAMP
from mansard.drivers.vulkan.submission.command_stream import CommandStream
from mansard.drivers.vulkan.submission.encoder import Encoder
from mansard.errors import ArtifactError, DeviceError, OutOfMemoryError, TargetMismatchError
from mansard.hal import BarrierCommand, BufferRef, DispatchCommand, EntryPoint, service

pytestmark = pytest.mark.vulkan
FILL = vulkan_kernels.FILL_INDEX


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


class Loading:
    """A loader of a device that seems to run PTX."""

    def __init__(self, device: VulkanDevice) -> None:
        self.device = device
        context, self.commands = ptx_kernels.with_ptx(device)
        self.loader = ExecutableLoader(context)
        self.address = 0  # of the buffers of the last dispatch
        self.encoder = Encoder(context.setup, device._allocator, self.loader)

    def left(self) -> tuple[int, int, int]:
        """The modules, functions and pipelines that are there."""
        return len(self.commands.texts), len(self.commands.functions), len(self.loader._live)

    def words(
        self, executable: VulkanExecutable, entry: EntryPoint, grid: tuple[int, int, int], *params: int
    ) -> list[tuple[int, list[int]]]:
        """What a dispatch becomes: (kind, words) without barriers."""
        stream = CommandStream(profile=True)
        buffer = self.device.allocate(64)
        refs = tuple(BufferRef(buffer, 16 * i) for i in range(entry.bindings))
        command = DispatchCommand(executable, entry.name, refs, params, grid)
        assert executable in self.encoder.encode([command, BarrierCommand()], stream)
        words, commands = stream.finish(), []
        while words:
            count = words[0] >> 8
            commands.append((words[0] & 0xFF, words[1 : 1 + count]))
            del words[: 1 + count]
        assert [kind for kind, _ in commands].count(TIMESTAMP) == 2, "it is timed"
        self.address = buffer.address
        return [(kind, w) for kind, w in commands if kind not in (BARRIER, TIMESTAMP)]


@pytest.fixture
def loading(device: VulkanDevice) -> Iterator[Loading]:
    loading = Loading(device)
    yield loading
    loading.loader.close()
    assert loading.left() == (0, 0, 0)


def test_a_device_without_ptx_refuses_it(device: VulkanDevice) -> None:
    if "ptx_sm_90a" in device.capabilities.features:
        device.close()
        device = vulkan_support.Variation(disable=("ptx_sm_90a",)).open()
    assert "spirv-ptx" not in device.capabilities.formats
    for spec in (ptx_kernels.fill_both(), ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT)):
        for requires in (spec.requires, ()):
            with pytest.raises(TargetMismatchError, match="needs ptx_sm_90a, which the device lacks"):
                device.load(dataclasses.replace(spec, requires=requires))
    device.close()


def test_ptx_beside_spirv(loading: Loading) -> None:
    executable = loading.loader.load(ptx_kernels.fill_both())
    assert loading.left() == (1, 1, 1)
    assert list(loading.commands.texts.values()) == [FILL_TEXT + b"\0"]
    assert list(loading.commands.functions.values()) == [(1, b"fill_index")]
    assert [build.entry for build in executable.builds] == ["fill_index"] * 2
    assert all(0 <= build.seconds < 60 for build in executable.builds)
    pipeline = executable.pipelines["fill_index"]
    by_spirv = loading.words(executable, FILL, (2, 3, 4), 5, 6, 0)
    assert by_spirv == [
        (DISPATCH, [pipeline.handle, pipeline.layout, 2 | 3 << 32, 4, loading.address, 5, 6, 0])
    ]
    for chosen in (1, -1):
        by_ptx = loading.words(executable, FILL, (2, 3, 4), 5, 6, chosen)
        table = [loading.address, 5, 6, chosen & (1 << 64) - 1]
        assert by_ptx == [(LAUNCH, [pipeline.function, 2 | 3 << 32, 4 | THREADS << 32, *table])]
    executable.close()
    executable.close()
    assert loading.left() == (0, 0, 0)


def test_ptx_alone_always_runs(loading: Loading) -> None:
    executable = loading.loader.load(ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT + b"\0", threads=384))
    assert loading.left() == (1, 1, 0)
    assert list(loading.commands.texts.values()) == [TRIPLE_TEXT + b"\0"]
    assert [build.entry for build in executable.builds] == ["triple"]
    (launched,) = loading.words(executable, TRIPLE, (7, 1, 1), 9, 0)
    assert launched == (
        LAUNCH, [2, 7 | 1 << 32, 1 | 384 << 32, loading.address, loading.address + 16, 9, 0],
    )  # fmt: skip


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_grid_launches_nothing(loading: Loading, grid: tuple[int, int, int]) -> None:
    executable = loading.loader.load(ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT))
    assert loading.words(executable, TRIPLE, grid, 9, 0) == []


def test_a_kernel_without_arguments(loading: Loading) -> None:
    entry = EntryPoint("plain", 0, 0)
    text = b".version 8.0\n.target sm_90a\n.address_size 64\n.entry plain() { ret; }"
    executable = loading.loader.load(ptx_kernels.ptx_spec(entry, text))
    assert loading.words(executable, entry, (1, 1, 1)) == [(LAUNCH, [2, 1 | 1 << 32, 1 | THREADS << 32])]


def test_what_nobody_holds_is_destroyed(loading: Loading) -> None:
    executable = loading.loader.load(ptx_kernels.fill_both())
    del executable
    gc.collect()
    service.uninterrupted(lambda: None)  # after the finalizers
    assert loading.left() == (0, 0, 0)


def test_closing_the_loader_destroys_what_is_left_once(device: VulkanDevice) -> None:
    loading = Loading(device)
    executable = loading.loader.load(ptx_kernels.fill_both())
    loading.loader.close()
    assert loading.left() == (0, 0, 0)
    executable.close()
    with pytest.raises(DeviceError, match="closed"):
        loading.loader.load(ptx_kernels.fill_both())


def load_refused(loading: Loading, name: str, *results: int) -> DeviceError:
    loading.commands.results[name] = list(results)
    two = EntryPoint("second", FILL.bindings, FILL.params)
    text = FILL_TEXT + b".entry second(.param .b64 a) { ret; }"
    spec = dataclasses.replace(ptx_kernels.ptx_spec(FILL, text), entries=(FILL, two))
    with pytest.raises(DeviceError) as refused:
        loading.loader.load(spec)
    assert not loading.commands.results[name]
    assert loading.left() == (0, 0, 0)
    return refused.value


def test_a_driver_that_refuses(loading: Loading) -> None:
    refused = load_refused(loading, "vkCreateCuModuleNVX", vk.VK_ERROR_INITIALIZATION_FAILED)
    assert str(refused) == (
        "loading the PTX of fill_index, second failed: VK_ERROR_INITIALIZATION_FAILED"
    )  # fmt: skip
    refused = load_refused(loading, "vkCreateCuModuleNVX", NO_HANDLE)
    assert str(refused) == "loading the PTX of fill_index, second failed: the driver gave no handle"
    refused = load_refused(loading, "vkCreateCuFunctionNVX", 0, vk.VK_ERROR_OUT_OF_HOST_MEMORY)
    assert isinstance(refused, OutOfMemoryError)
    assert "taking 'second' from its PTX failed: VK_ERROR_OUT_OF_HOST_MEMORY" in str(refused)
    refused = load_refused(loading, "vkCreateCuFunctionNVX", 0, NO_HANDLE)
    assert "no handle" in str(refused)


def test_ptx_goes_with_a_pipeline_that_cannot_be_made() -> None:
    with faults.watching() as watch:
        device = vulkan_support.open_vulkan()
        loading = Loading(device)
        for number, name in enumerate(("vkCreateShaderModule", "vkCreatePipelineLayout")):
            watch.fail(number)
            with pytest.raises(OutOfMemoryError):
                loading.loader.load(ptx_kernels.fill_both())
            assert watch.failed == name
            assert loading.left() == (0, 0, 0)
        loading.loader.close()
        device.close()
        assert not watch.live


def test_what_does_not_fit(loading: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = EntryPoint("triple", 2, 511)
    with pytest.raises(DeviceError, match="'triple' takes 4104 bytes of arguments; CUDA allows 4096"):
        loading.loader.load(ptx_kernels.ptx_spec(wide, TRIPLE_TEXT))
    loading.loader.load(ptx_kernels.ptx_spec(EntryPoint("triple", 2, 510), TRIPLE_TEXT)).close()
    most = loading.device._context.setup.limits["workgroup_invocations"]
    with pytest.raises(TargetMismatchError, match=f"blocks of {most + 1}, the device's limit is {most}"):
        loading.loader.load(ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT, threads=most + 1))
    both = ptx_kernels.fill_both()
    with pytest.raises(TargetMismatchError, match="needs cooperation, which the device lacks"):
        loading.loader.load(dataclasses.replace(both, requires=("cooperation",)))
    assert loading.commands.calls.count("vkCreateCuModuleNVX") == 1


def test_entry_points_that_are_not_there(loading: Loading) -> None:
    other = EntryPoint("other", 1, 1)
    with pytest.raises(ArtifactError, match="the PTX module has no entry point other"):
        loading.loader.load(dataclasses.replace(ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT), entries=(other,)))
    with pytest.raises(ArtifactError, match="the SPIR-V module has no entry point other"):
        loading.loader.load(dataclasses.replace(ptx_kernels.fill_both(), entries=(other,)))
    with pytest.raises(ArtifactError, match="not a PTX module"):
        loading.loader.load(ptx_kernels.ptx_spec(TRIPLE, b"\x7fELF"))
    with pytest.raises(ArtifactError, match="no parameter says whether"):
        loading.loader.load(
            dataclasses.replace(ptx_kernels.fill_both(), entries=(EntryPoint("fill_index", 1, 0),))
        )
    assert not loading.commands.calls


def test_nothing_is_made_for_no_entries(loading: Loading) -> None:
    executable = loading.loader.load(dataclasses.replace(ptx_kernels.fill_both(), entries=()))
    assert executable.builds == ()
    assert loading.left() == (0, 0, 0)
