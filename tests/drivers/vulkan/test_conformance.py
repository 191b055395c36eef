"""The vulkan driver in the conformance suite, with the validation layer listening."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from support import vulkan_support
from support.adapters import VulkanAdapter

from mansard.testing import Conformance, KernelTests

pytestmark = pytest.mark.vulkan


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


REPEATED = {"as a discrete device, --limits vulkan-minimum"}
"""Variations whose kind of device and whose limits are each in another one that is tested by default."""


def _suites() -> dict[str, type[VulkanKernels]]:
    """A class for every variation of every usable device; one that skips where there is none."""
    usable = [info.index for info in vulkan_support.validating_driver().devices() if info.supported]
    variations = [variation for index in usable for variation in vulkan_support.variations(index)]
    suites = {}
    for variation in variations or [vulkan_support.Variation()]:
        words = re.findall(
            r"\w+", variation.name if variation != vulkan_support.Variation(index=variation.index) else ""
        )
        name = "TestVulkan" + "".join(word[0].upper() + word[1:] for word in words)
        name += str(variation.index) if variation.index else ""
        base = VulkanKernels if variation.kernels_only else VulkanConformance
        suites[name] = type(name, (base,), {"adapter": VulkanAdapter(variation)})
        if variation.name in REPEATED and os.environ.get("MANSARD_CONFORMANCE") != "all":
            suites[name] = pytest.mark.slow(suites[name])
    return suites


globals().update(_suites())
