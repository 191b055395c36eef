"""The vulkan driver in the conformance suite, with the validation layer listening."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import vulkan_kernels as kernels
import vulkan_support as support
from conformance import Adapter, Conformance

from mansard.hal import Device, ExecutableSpec

pytestmark = pytest.mark.vulkan
ENTRIES = {entry.name: entry for entry in (kernels.FILL_INDEX, kernels.ADD, kernels.SPIN, kernels.WIDE)}


class VulkanAdapter(Adapter):
    @property
    def spin_steps(self) -> int:  # type: ignore[override]
        """Many steps on a GPU, which runs all workgroups at once; few on a processor."""
        return 60_000 if support.usable_device().kind == "software" else 4_000_000

    def open(self) -> Device:
        return support.open_vulkan()

    def spec(self, name: str) -> ExecutableSpec:
        return kernels.spec(ENTRIES[name])

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return kernels.groups(count)


class TestVulkan(Conformance):
    adapter = VulkanAdapter()

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def nothing_left_behind(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """Set up before the class's device and torn down after it, hence after it was closed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MANSARD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
            yield
        support.assert_no_validation_messages()

    @pytest.fixture(autouse=True)
    def used_as_vulkan_demands(self) -> Iterator[None]:
        yield
        support.assert_no_validation_messages()
