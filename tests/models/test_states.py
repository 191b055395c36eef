"""A model with buffers that it updates: states that live across calls, on every device."""

import asyncio

import pytest
import torch
from torch import nn

import mansard


class RunningMean(nn.Module):
    """Keeps the mean of everything it was called with, and how often that was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.calls.add_(1.0)
        return self.total / self.calls


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_states_live_across_calls_and_can_be_reset(device):
    if device not in {i.id for i in mansard.devices() if i.supported}:
        pytest.skip(f"no device {device}")
    inputs = [torch.randn(4, 8) for _ in range(4)]
    module = RunningMean().eval()
    with mansard.compile(module, (inputs[0],), devices=device) as model:
        for round_ in range(2):
            reference = RunningMean().eval()
            for x in inputs:
                torch.testing.assert_close(model(x), reference(x))
            if round_ == 0:
                model.reset_states()


def test_awaited_calls_in_flight_give_their_own_results():
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    inputs = [torch.randn(3, 16) for _ in range(24)]

    async def all_at_once(model):
        return await asyncio.gather(*(model.run_async(x) for x in inputs))

    with mansard.compile(module, (inputs[0],), devices="cpu") as model, torch.no_grad():
        for x, y in zip(inputs, asyncio.run(all_at_once(model)), strict=True):
            torch.testing.assert_close(y, module(x))
