"""MiniLM split over the CPU and a GPU that share memory: nothing is copied between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import zoo

import mansard

pytestmark = pytest.mark.vulkan

SPLITS = {
    "halves": lambda number, count: number < count // 2,
    "in turn": lambda number, count: number % 2 == 0,
    "layers in turn": lambda number, count: number * 4 // count % 2 == 0,
}


@pytest.fixture(scope="module")
def case():
    """The model, its dispatches' names, and PyTorch's answer."""
    usable = [i for i in mansard.devices() if i.driver == "vulkan" and i.supported]
    if not usable:
        pytest.skip("no Vulkan 1.3 device")
    model = zoo.minilm(batch=1, length=16, layers=4)
    with torch.no_grad():
        expected = model.module(*model.args).numpy()
    with mansard.compile(model.module, model.args, devices="cpu") as whole:
        return model, [d.dispatch for d in whole.plan.decisions], expected


# Dispatches in turn have every crossing that the other splits have.
@pytest.mark.parametrize(
    "split", [pytest.param(s, marks=[] if s == "in turn" else pytest.mark.slow) for s in sorted(SPLITS)]
)
def test_nothing_is_copied_between_devices_that_share_memory(case, split, tmp_path):
    model, names, expected = case
    pins = tuple(
        (name, "cpu" if SPLITS[split](number, len(names)) else "vulkan") for number, name in enumerate(names)
    )
    placement = mansard.PlacementOptions(pins=pins)
    compiled = mansard.compile(model.module, model.args, devices=["cpu", "vulkan"], placement=placement)
    if not all(slot.device.capabilities.unified_memory for slot in compiled.bind().slots):
        pytest.skip("the devices have memory of their own")
    assert min(sum(d.device == name for d in compiled.plan.decisions) for name in ("cpu", "vulkan")) > 10
    compiled.save(tmp_path / "split.mansard")
    compiled.close()
    with mansard.load(tmp_path / "split.mansard") as loaded:
        for _ in range(2):
            actual = loaded(*(arg.numpy() for arg in model.args))
            np.testing.assert_allclose(actual, expected, atol=1e-4)
        assert (loaded.stats.device_copies, loaded.stats.device_bytes) == (0, 0)
        assert loaded.plan.prediction.copied_bytes == 0
        # The host's own copies are those of inputs and outputs at most, one each.
        ends = sum(arg.numpy().nbytes for arg in model.args) + expected.nbytes
        assert loaded.stats.host_bytes <= 2 * ends
        crossing = [row for row in loaded.memory() if row.what == "activations" and len(row.users) == 2]
        assert crossing
        if all(slot.device.capabilities.import_host for slot in loaded.bind().slots):
            # Weights are read where the file is mapped, each by the device that needs it.
            assert loaded.stats.uploaded_bytes == 0
            assert {row.kind for row in loaded.memory() if row.what == "weights"} == {"mapped"}
