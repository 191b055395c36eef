"""The benchmark of handoffs measures every pair, both ways, and its parts add up."""

from __future__ import annotations

import json

import pytest

from benchmarks.dispatch import handoff
from mansard.calibration import handoffs
from mansard.hal import registry


def measured(capsys: pytest.CaptureFixture[str], *names: str) -> list[dict[str, object]]:
    devices = [part for name in names for part in ("--device", name)]
    handoff.main([*devices, "--turns", "3", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert isinstance(rows, list)
    return rows


@pytest.mark.vulkan
def test_every_pair_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    if not any(info.driver == "vulkan" and info.supported for info in registry.devices()):
        pytest.skip("no usable Vulkan device")
    rows = measured(capsys, "cpu", "vulkan", "null")
    ends = ("cpu", "vulkan", "null")
    assert {(row["from"], row["to"]) for row in rows} == {
        *((a, b) for a in ends for b in ends),
        *(("host", a) for a in ends),
        *((a, "host") for a in ends),
    }
    assert all(0 < row["median_us"] < 1e6 for row in rows if row["from"] != row["to"])  # type: ignore[operator]


def test_the_parts_of_a_handoff_add_up() -> None:
    cpu, null = registry.open_device("cpu"), registry.open_device("null")
    for each in (
        *handoffs.between(cpu, null, 3, 0.0),
        *handoffs.between(null, cpu, 3, 0.0, attended=False),
        *handoffs.from_host(cpu, 3),
        *handoffs.to_host(cpu, 3, 1e-4),
    ):
        assert each.total == sum(filter(None, (each.noticed, each.passed, each.started)))
    assert all(each.noticed is None for each in handoffs.between(cpu, cpu, 3, 0.0))
