"""One quantised model on a CPU, a Vulkan device and the simulated NPU, with requests in flight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mansard.hal import registry

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"
SLOW = """
name = "slow NPU"
memory = 1000000
unified = false
bandwidth = 1e9
link = 1e9
launch = 0.05
handoff = 1e-4
vector = 1e9
[rates]
i8 = 1e11
bf16 = 1e11
"""
"""Every call takes so long that other devices have time to work for other requests."""


@pytest.fixture(scope="module")
def report(plugin, tmp_path_factory):
    driver = registry.driver("vulkan")
    if driver is None or not any(info.supported for info in driver.devices()):
        pytest.skip("no Vulkan device")
    model = tmp_path_factory.mktemp("model") / "slow.toml"
    model.write_text(SLOW)
    done = plugin.run(str(HERE / "three_devices.py"), "6", also=(EXAMPLES,), MANSARD_NPU_MODEL=str(model))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.vulkan


def test_every_device_has_a_part_and_the_answer_is_pytorchs(report):
    assert set(report["dispatches"]) == {"cpu", "vulkan", "npu"}
    assert report["dispatches"]["npu"] == 2 and report["dispatches"]["vulkan"] == 1
    assert set(report["types"]) == {"u8"}
    # What rounds to another step by a hair moves a probability by less than this.
    assert report["error"] < 1e-3


def test_the_npu_works_while_the_others_do(report):
    assert report["npu with cpu"] and report["npu with vulkan"]


def test_the_trace_has_a_track_for_each_device_and_for_all_at_once(report):
    for device in ("cpu", "vulkan", "npu"):
        assert f"{device} queue" in report["tracks"]
    assert "all busy" in report["tracks"]
    assert report["page"] > 10_000


def test_what_the_npu_refuses_has_a_reason(report):
    assert any("it has functions for products and convolutions alone" in r for r in report["reasons"])
