"""Executables that the driver compiles in the background, behind `load_all`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import vulkan_kernels as kernels
from support import vulkan_support

from mansard.drivers.vulkan.device import VulkanDevice
from mansard.errors import DeviceError
from mansard.hal import ExecutableSpec

pytestmark = pytest.mark.vulkan


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


def test_drivers_compile_executables_behind_load_all(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, build = threading.Event(), device._loader.build

    def late(*arguments: Any) -> Any:
        assert begin.wait(60)
        return build(*arguments)

    monkeypatch.setattr(device._loader, "build", late)
    loaded = device.load_all([kernels.spec(entry) for entry in (kernels.ADD, kernels.WIDE)])
    assert all(not executable.builds for executable in loaded)
    begin.set()
    for executable in loaded:
        executable.wait()
        assert [build.entry for build in executable.builds] == list(executable.entries)
        executable.close()


def test_what_the_driver_refuses_is_raised_by_who_waits(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = device._loader.build

    def refusing(spec: ExecutableSpec, *rest: Any) -> Any:
        if spec.entries[0] is kernels.WIDE:
            raise DeviceError("compiling wide failed")
        return build(spec, *rest)

    monkeypatch.setattr(device._loader, "build", refusing)
    good, refused = device.load_all([kernels.spec(kernels.ADD), kernels.spec(kernels.WIDE)])
    good.wait()
    for _ in range(2):
        with pytest.raises(DeviceError, match="compiling wide failed"):
            refused.wait()
    before = set(device._loader._live)
    refused.close()
    assert device._loader._live == before
    good.close()
    assert device._loader._live < before


def test_a_device_closes_behind_what_its_driver_compiles(
    device: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, build, ended = threading.Event(), device._loader.build, []

    def late(*arguments: Any) -> Any:
        assert begin.wait(60)
        time.sleep(0.05)
        pipelines = build(*arguments)
        ended.append(pipelines)
        return pipelines

    monkeypatch.setattr(device._loader, "build", late)
    count = 2 + len(os.sched_getaffinity(0))  # the last ones have not begun
    loaded = device.load_all([kernels.spec(kernels.ADD) for _ in range(count)])
    begin.set()
    device.close()
    assert 0 < len(ended) <= count
    assert not device._loader._live
    with pytest.raises(DeviceError, match="closed"):
        for executable in loaded:
            executable.wait()
    for executable in loaded:
        executable.close()
