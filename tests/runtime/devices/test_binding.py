"""Slots of a plan find their devices where several devices have one driver."""

from __future__ import annotations

import pytest
from support.fake_device import FakeDevice

from mansard.artifact.resources import MemoryResources
from mansard.errors import DeviceUnavailableError
from mansard.hal import registry
from mansard.plan.plan import DeviceProgram, Plan
from mansard.runtime.devices import binding


@pytest.fixture
def bound(monkeypatch, make):
    """The names of the devices that slots get, of those that are present."""
    opened: dict[str, FakeDevice] = {}

    def device(name):
        name = name.removesuffix(":0")
        return opened.setdefault(name, opened.get(name) or make(name))

    def names(slots, present, devices=None):
        infos = [device(name).info for name in present]
        monkeypatch.setattr(binding, "open_device", device)
        monkeypatch.setattr(binding, "present_devices", lambda driver: infos)
        parts = tuple(DeviceProgram(slot, "npu", "npu", (), ()) for slot in slots)
        plan = Plan("m", (), (), (), (), (), parts)
        return [slot.name for slot in binding.bind(plan, MemoryResources({}, ()), devices)]

    return names


@pytest.mark.parametrize(
    ("slots", "present", "devices", "expected"),
    [
        (["npu:0", "npu:1"], ["npu", "npu:1"], None, ["npu", "npu:1"]),
        (["npu:1", "npu"], ["npu", "npu:1"], None, ["npu:1", "npu"]),
        (["npu:1"], ["npu", "npu:1"], None, ["npu:1"]),
        # On another machine with fewer devices, or others.
        (["npu:1"], ["npu"], None, ["npu"]),
        (["npu:0", "npu:1"], ["npu"], None, ["npu", "npu"]),
        (["npu:3", "npu:1"], ["npu", "npu:1"], None, ["npu", "npu:1"]),
        # A slot of no present device's name leaves the others theirs.
        (["npu:fast", "npu:0"], ["npu", "npu:1"], None, ["npu:1", "npu"]),
        # Some are asked for.
        (["npu:0", "npu:1"], ["npu", "npu:1"], ["npu:1"], ["npu", "npu:1"]),
        (["npu:0", "npu:1"], ["npu", "npu:1"], ["npu:1", "npu:0"], ["npu", "npu:1"]),
        (["npu:0", "npu:1"], ["npu", "npu:1"], {"npu:0": "npu:1"}, ["npu:1", "npu"]),
        (["npu:0", "npu:1"], ["npu", "npu:1", "npu:2"], ["npu:2"], ["npu:2", "npu:1"]),
        (["npu:0", "npu:1"], ["npu", "npu:1", "npu:2"], ["npu:2", "npu:0"], ["npu", "npu:2"]),
    ],
)
def test_every_slot_gets_a_device_of_its_own_where_there_are_enough(bound, slots, present, devices, expected):
    assert bound(slots, present, devices) == expected


def test_a_device_is_named_once(bound):
    with pytest.raises(DeviceUnavailableError, match=r"'npu:1' \(or it is named twice\)"):
        bound(["npu:1"], ["npu", "npu:1"], ["npu:1", "npu:1"])


@pytest.mark.parametrize("name", ["cpu:first", "cpu:", "cpu:-1"])
def test_the_number_of_a_device(name):
    with pytest.raises(DeviceUnavailableError, match=r"behind the colon comes a number, as in cpu:0"):
        registry.open_device(name)
