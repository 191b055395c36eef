"""What Vulkan tests share: a driver with the validation layer on, and small helpers."""

from __future__ import annotations

import functools
import gc
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.driver import VulkanDriver
from mansard.drivers.vulkan.instance.device_setup import Candidate, make_setup
from mansard.drivers.vulkan.instance.loader import VALIDATION_LAYER
from mansard.drivers.vulkan.instance.restrict import limit_profiles, optional_features
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    Device,
    DeviceInfo,
    DispatchCommand,
    Point,
    Semaphore,
    Submission,
)
from support import vulkan_kernels as kernels

TIMEOUT = 60.0
"""Seconds after which a point that should be reached counts as lost; generous for slow machines."""


@functools.cache
def validating_driver() -> VulkanDriver:
    """A driver with the validation layer on where that layer is installed."""
    driver = VulkanDriver(validation=True)
    if any(VALIDATION_LAYER in reason for info in driver.devices() for reason in info.reasons):
        driver = VulkanDriver(validation=False)
    return driver


@dataclass(frozen=True)
class Variation:
    """How a device is made to differ: a limit profile, features to do without, which of several devices."""

    name: str = "as it is"
    limits: str = ""
    disable: tuple[str, ...] = ()
    index: int = 0
    discrete: bool = False
    """Whether the driver shall take it for a card with memory of its own."""
    kernels_only: bool = False
    """Whether the suite's hand-written kernels, which take addresses, cannot run on it."""

    def open(self) -> VulkanDevice:
        """A newly opened device that differs so; devices opened later do not."""
        driver = validating_driver()
        try:
            driver.configure(limits=self.limits, disable=self.disable)
            info = driver.devices()[self.index]
            if self.discrete:
                driver._candidates = tuple(map(_as_discrete, driver._candidates))
            device = driver.open(info)
        finally:
            driver.configure(limits=None, disable=None)
        assert isinstance(device, VulkanDevice)
        return device


def _as_discrete(candidate: Candidate) -> Candidate:
    snapshot = replace(candidate.snapshot, device_type=vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU)
    return replace(candidate, snapshot=snapshot, setup=make_setup(snapshot))


def variations(index: int = 0) -> list[Variation]:
    """A device as it is, without each of its optional features in turn, and held to each limit profile.

    Without MANSARD_CONFORMANCE=all in the environment only some that together cover the most.
    """
    candidate = validating_driver()._candidates[index]
    optional = optional_features(candidate.snapshot)
    # Whatever matrices are called, they go with the feature.
    named = [name for name in optional if not name.startswith("matrix_")]
    held = [Variation(f"--limits {name}", limits=name, index=index) for name in limit_profiles()]
    if candidate.setup.unified:  # what would be copied by other means on other devices
        card = Variation("as a discrete device", index=index, discrete=True)
        held += [card, replace(card, name=f"{card.name}, --limits vulkan-minimum", limits="vulkan-minimum")]
    name = "buffer_device_address"
    held.append(Variation(f"without {name}", disable=(name,), index=index, kernels_only=True))
    if os.environ.get("MANSARD_CONFORMANCE") == "all":
        without = [Variation(f"without {name}", disable=(name,), index=index) for name in named]
        return [Variation(index=index), *without, *held]
    chosen = [v for v in held if v.limits in ("", "mali-g720", "vulkan-minimum")]
    return [
        Variation(index=index),
        Variation("without anything optional", disable=tuple(named), index=index),
        *chosen,
    ]


def usable_device() -> DeviceInfo:
    """The device to test on; skips when there is none, and fails instead where CI asks for one."""
    infos = validating_driver().devices()
    usable = [info for info in infos if info.supported]
    if usable:
        return usable[0]
    reason = "no Vulkan 1.3 device: " + "; ".join(reason for info in infos for reason in info.reasons)
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(reason)
    pytest.skip(reason)


def open_vulkan() -> VulkanDevice:
    """A newly opened device."""
    device = validating_driver().open(usable_device())
    assert isinstance(device, VulkanDevice)
    return device


def assert_no_validation_messages() -> None:
    """Fails with what the validation layer reported since the last time."""
    messages = validating_driver().validation_messages(clear=True)
    assert messages == [], "\n".join(messages)


def device_of_a_test() -> Iterator[VulkanDevice]:
    """A device of its own for each test: closing it must leave nothing behind."""
    opened = open_vulkan()
    yield opened
    opened.close()
    gc.collect()
    assert_no_validation_messages()


def fill_index(device: VulkanDevice, buffer: Buffer, n: int, a: int, b: int) -> DispatchCommand:
    """buffer[i] = i * a + b for i < n."""
    executable = device.load(kernels.spec(kernels.FILL_INDEX))
    return DispatchCommand(executable, "fill_index", (BufferRef(buffer),), (n, a, b), kernels.groups(n))


def spin(device: VulkanDevice, buffer: Buffer, groups: int) -> DispatchCommand:
    """Work that takes long: proportional to ``groups`` on a processor, and long in itself on a GPU."""
    executable = device.load(kernels.spec(kernels.SPIN))
    steps = 60_000 if device.info.kind == "software" else 2_000_000
    return DispatchCommand(executable, "spin", (BufferRef(buffer),), (steps,), (groups, 1, 1), "spin")


def run(device: Device, *commands: Command) -> None:
    """Run commands one after another and wait for them."""
    separated = [step for command in commands for step in (command, BarrierCommand())]
    done = Point(Semaphore("test"), 1)
    recorded = device.record(separated)
    device.submit([Submission(recorded, signal=(done,))])
    done.wait(TIMEOUT)
    recorded.close()


def has_spirv_val() -> bool:
    """Whether SPIR-V can be validated here."""
    return shutil.which("spirv-val") is not None
