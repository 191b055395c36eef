"""Every pair of in-tree devices: two of different drivers, two of one driver, and a device with itself.

The pairs with a device in Python's thread, and those of plug-ins, are part of the conformance suite.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support import vulkan_support
from support.adapters import CpuAdapter, NullAdapter, VulkanAdapter

from mansard.testing import Adapter, PairTests, PartnerAdapter

ADAPTERS: dict[str, Adapter] = {
    "Cpu": CpuAdapter(),
    "Vulkan": VulkanAdapter(vulkan_support.Variation()),
    "Null": NullAdapter(),
    "Partner": PartnerAdapter(),
}


class Pairs(PairTests):
    """The suite's tests of pairs, after which the validation layer has nothing to report."""

    @pytest.fixture(autouse=True)
    def used_as_vulkan_demands(self) -> Iterator[None]:
        yield
        if isinstance(self.adapter, VulkanAdapter) or isinstance(self.partner, VulkanAdapter):
            vulkan_support.assert_no_validation_messages()


WITH_DATA = ("test_what_the_one_wrote_the_other_reads", "test_what_the_host_wrote_both_read")
"""Not for pairs with the null device, which computes nothing."""
WITH_A_SURVIVOR = ("test_a_lost_device_takes_its_dependants_alone", "test_a_wait_that_nobody_ends")
"""Not for a device with itself."""


def _suite(one: str, other: str, *, two_devices: bool = True) -> type[Pairs]:
    members: dict[str, object] = {
        "adapter": ADAPTERS[one],
        "partner": ADAPTERS[other],
        "two_devices": two_devices,
        **dict.fromkeys(WITH_DATA if "Null" in (one, other) else ()),
        **dict.fromkeys(WITH_A_SURVIVOR if not two_devices else ()),
    }
    suite = type(f"Test{one}And{other if two_devices else 'Itself'}", (Pairs,), members)
    return pytest.mark.vulkan(suite) if "Vulkan" in (one, other) else suite


def _suites() -> list[type[Pairs]]:
    different = [pair for pair in itertools.combinations(ADAPTERS, 2) if "Partner" not in pair]
    of_one_driver = [(name, name) for name in ADAPTERS]
    pairs = [_suite(one, other) for one, other in different + of_one_driver]
    return pairs + [_suite(name, name, two_devices=False) for name in ADAPTERS]


globals().update({suite.__name__: suite for suite in _suites()})
