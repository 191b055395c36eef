"""Devices for the tests of the runtime."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fake_device import FakeDevice


@pytest.fixture
def make() -> Iterator:
    """Makes fake devices and closes them."""
    devices: list[FakeDevice] = []

    def build(name: str = "cpu", **options) -> FakeDevice:
        devices.append(FakeDevice(name, **options))
        return devices[-1]

    yield build
    for device in devices:
        device.close()
