"""MiniLM with every heavy dispatch partitioned over the CPU and a GPU: right answers, and nothing copied."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import zoo

import mansard

pytestmark = pytest.mark.vulkan
LAYERS = 3


def test_a_partitioned_minilm(tmp_path):
    if not any(i.driver == "vulkan" and i.supported for i in mansard.devices()):
        pytest.skip("no Vulkan 1.3 device")
    model = zoo.minilm(batch=1, length=32, layers=LAYERS)
    with torch.no_grad():
        expected = model.module(*model.args).numpy()
    placement = mansard.PlacementOptions(split="all")
    path = tmp_path / "partitioned.mansard"
    with mansard.compile(
        model.module, model.args, devices=["cpu", "vulkan"], placement=placement
    ) as compiled:
        compiled.save(path)
    with mansard.load(path) as loaded:
        for _ in range(4):
            np.testing.assert_allclose(loaded(*(a.numpy() for a in model.args)), expected, atol=1e-4)
        # Products, attentions and norms alike: the devices meet at the keys of a layer, and hardly elsewhere.
        assert max(share.dispatches for share in loaded.shares) > 5 * LAYERS
        partitioned = [d for d in loaded.plan.decisions if d.reason.startswith("split: ")]
        assert len(partitioned) > 0.9 * len(loaded.plan.decisions)
        assert max(len(device.segments) for device in loaded.plan.devices) < len(partitioned) / 3
        if all(slot.device.capabilities.unified_memory for slot in loaded.bind().slots):
            assert (loaded.stats.device_copies, loaded.stats.device_bytes) == (0, 0)
