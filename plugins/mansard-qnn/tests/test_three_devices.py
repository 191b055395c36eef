"""The example of a CPU, a GPU and a Hexagon NPU at once: answers, and a moment at which all three work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mansard.hal import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import three_devices

pytestmark = [pytest.mark.slow, pytest.mark.vulkan]


@pytest.fixture(scope="module")
def report():
    driver = registry.driver("vulkan")
    if driver is None or not any(info.supported for info in driver.devices()):
        pytest.skip("no Vulkan device: install a Vulkan 1.3 driver, such as Mesa's lavapipe")
    return three_devices.run()


def test_every_device_has_a_part(report):
    assert report["dispatches"] == {three_devices.NPU: 1, "vulkan": 3, "cpu": 4}


def test_sixteen_requests_at_once_are_answered_as_one_at_a_time(report):
    assert report["same"]
    assert report["error"] < 1e-3


def test_all_three_are_busy_at_the_same_moment_in_the_trace(report):
    assert report["all_busy_ms"] > 0
    assert all(busy > 0 for busy in report["busy_ms"].values())
    events = report["trace"]["traceEvents"]
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {f"{device} queue" for device in (three_devices.NPU, "vulkan", "cpu")} <= tracks
    assert "all busy" in tracks
