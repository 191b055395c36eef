"""Chips: tables of devices, and the drivers that they stand for."""

from __future__ import annotations

import importlib.resources
import re
import tomllib

import pytest

from mansard.errors import PlacementError
from mansard.placement import WorkEstimate
from mansard.placement.problem import HOST, DataEdge
from mansard.placement.search.choose import choose
from mansard.placement.simulate_requests import simulate_requests
from mansard.placement.workload import Workload
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
def test_shipped_chips_say_where_every_figure_comes_from(chip):
    path = importlib.resources.files("mansard.targets").joinpath(f"data/socs/{chip}.toml")
    text = path.read_text("utf-8")
    for name, table in tomllib.loads(text).items():
        if name == "name":
            continue
        section = text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]
        comment = " ".join(line[2:] for line in section.splitlines() if line.startswith("# "))
        told = re.split(
            r"(?:^|\s)((?:[a-z_]+, )*[a-z_]+): (?=datasheet|derived|press|measured|estimate)", comment
        )
        sources = {
            key: said for keys, said in zip(told[1::2], told[2::2], strict=True) for key in keys.split(", ")
        }
        assert sources.keys() == table.keys() - {"drivers"}, name
        # An estimate has a reason: more than the word.
        assert all(len(said.split()) >= 3 for said in sources.values()), name


@pytest.mark.parametrize("chip", shipped_socs())
def test_a_network_in_integers_is_placed_on_the_devices_of_a_shipped_chip(chip):
    """What `mansard simulate --place` does for one compiled for a CPU, a GPU and an NPU."""
    soc = load_soc(chip)
    names = [name for name in ("cpu", "vulkan", "npu") if name in soc.devices]
    profiles = [soc.devices[name] for name in names]
    layers = [WorkEstimate(2_000_000, 200_000_000, "i8", written=500_000, depth=512) for _ in range(8)]
    edges = [DataEdge(HOST, (0,), 150_000), *(DataEdge(n, (n + 1,), 500_000) for n in range(7))]
    workload = Workload(tuple(layers), (*edges, DataEdge(7, (HOST,), 4000)), (), ())
    problem = workload.problem(profiles, limits=[soc.memory[name] for name in names])
    choice = choose(problem, "throughput", 1.0)
    assert choice.labels.count(names.index("npu")) > 0
    alone, many = (simulate_requests(problem, choice.labels, count, 16) for count in (1, 16))
    assert many.bound <= many.seconds <= 16 * alone.seconds * (1 + 1e-9)
    # Devices at once are no slower than the best of them, but for filling the pipeline.
    single = [simulate_requests(problem, [device] * 8, 16, 16).seconds for device in range(len(names))]
    assert many.seconds <= min(single) + alone.seconds
