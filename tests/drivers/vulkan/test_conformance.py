"""The vulkan driver in the conformance suite, with the validation layer listening."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from support import vulkan_kernels as kernels
from support import vulkan_support
from support.conformance import Adapter, Conformance, KernelTests

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.errors import DeviceLostError, MansardError
from mansard.hal import Device, ExecutableSpec, Submission

pytestmark = pytest.mark.vulkan
ENTRIES = {entry.name: entry for entry in (kernels.FILL_INDEX, kernels.ADD, kernels.SPIN, kernels.WIDE)}


class VulkanAdapter(Adapter):
    def __init__(self, variation: vulkan_support.Variation) -> None:
        self._variation = variation
        self.variation = variation.name

    def title(self) -> str:
        info = vulkan_support.validating_driver().devices()[self._variation.index]
        return f"{info.id}: {info.name} ({info.driver_version})"

    @property
    def spin_steps(self) -> int:  # type: ignore[override]
        """Many steps on a GPU, which runs all workgroups at once; few on a processor."""
        return 60_000 if vulkan_support.usable_device().kind == "software" else 4_000_000

    def open(self) -> Device:
        vulkan_support.usable_device()
        return self._variation.open()

    def spec(self, name: str) -> ExecutableSpec:
        return kernels.spec(ENTRIES[name])

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return kernels.groups(count)

    def fail_next(self, device: Device) -> bool:
        assert isinstance(device, VulkanDevice)
        device.inject(result=vk.VK_ERROR_UNKNOWN)
        return True

    def hang_next(self, device: Device) -> bool:
        assert isinstance(device, VulkanDevice)
        device.inject(hang=True)
        return True

    def let_go(self, device: Device) -> None:
        assert isinstance(device, VulkanDevice)
        device.let_go()

    def lose(self, device: Device) -> type[MansardError]:
        assert isinstance(device, VulkanDevice)
        device.inject(result=vk.VK_ERROR_DEVICE_LOST)
        device.submit([Submission(device.record([]))])
        return DeviceLostError


class VulkanKernels(KernelTests):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def nothing_left_behind(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """Set up before the class's device and torn down after it, hence after it was closed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MANSARD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
            yield
        vulkan_support.assert_no_validation_messages()

    @pytest.fixture(autouse=True)
    def used_as_vulkan_demands(self) -> Iterator[None]:
        yield
        vulkan_support.assert_no_validation_messages()


class VulkanConformance(Conformance, VulkanKernels):
    pass


def _suites() -> dict[str, type[VulkanKernels]]:
    """A class for every variation of every usable device; one that skips where there is none."""
    usable = [info.index for info in vulkan_support.validating_driver().devices() if info.supported]
    found = [variation for index in usable for variation in vulkan_support.variations(index)]
    suites = {}
    for variation in found or [vulkan_support.Variation()]:
        words = re.findall(
            r"\w+", variation.name if variation != vulkan_support.Variation(index=variation.index) else ""
        )
        name = "TestVulkan" + "".join(word[0].upper() + word[1:] for word in words)
        name += str(variation.index) if variation.index else ""
        base = VulkanKernels if variation.kernels_only else VulkanConformance
        suites[name] = type(name, (base,), {"adapter": VulkanAdapter(variation)})
    return suites


globals().update(_suites())
