"""Chips: tables of devices, and the drivers that they stand for."""

from __future__ import annotations

import importlib.resources
import re

import pytest

from mansard.errors import PlacementError
from mansard.targets.socs import load_soc, parse_soc, shipped_socs

TABLE = """
[npu]
drivers = {drivers}
bandwidth = 1e9
cache_bandwidth = 1e9
cache_bytes = 0
launch = 0
handoff = 0
link = 1e9
rates = {{ f32 = 1e9 }}
"""


def test_a_table_may_list_drivers_of_plug_ins():
    chip = parse_soc(TABLE.format(drivers='["qnn", "rknn"]'), "chip")
    assert [chip.device(slot, slot.partition(":")[0]) for slot in ("npu", "qnn", "rknn:1")] == ["npu"] * 3
    with pytest.raises(PlacementError, match=r"chip has no device 'gpu': add a table \[gpu\]; it has npu"):
        chip.device("gpu", "gpu")
    with pytest.raises(PlacementError, match="npu of chip: drivers is 'qnn', not a list of texts"):
        parse_soc(TABLE.format(drivers='"qnn"'), "chip")


def test_the_hexagon_of_a_snapdragon_has_a_table():
    assert load_soc("snapdragon-8-gen-3").device("qnn", "qnn") == "npu"


@pytest.mark.parametrize(
    ("chip", "driver"),
    [
        ("core-ultra-200v", "openvino"),
        ("cortex-m85-ethos-u85", "ethos-u"),
        ("rk3588", "rknn"),
        ("imx95", "npu"),
    ],
)
def test_npus_of_shipped_chips_have_tables_for_their_drivers(chip, driver):
    soc = load_soc(chip)
    npu, cpu = soc.devices[soc.device(driver, driver)], soc.devices["cpu"]
    assert npu.rates["i8"] > 3 * cpu.rates["i8"]


@pytest.mark.parametrize("chip", shipped_socs())
def test_shipped_chips_say_where_figures_come_from(chip):
    text = importlib.resources.files("mansard.targets").joinpath(f"data/socs/{chip}.toml").read_text("utf-8")
    for table in text.split("\n[")[1:]:
        assert re.search("datasheet|derived|press|estimate", table), table.partition("]")[0]
