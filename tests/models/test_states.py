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


class Cache(nn.Module):
    """Keys that grow by one row a call, and what a query finds among them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 6, 4))

    def forward(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, position, row)
        return self.keys.sum(1)


class CacheReadLate(Cache):
    """Needs the old keys after the new ones are there."""

    def forward(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        old = self.keys.clone()
        self.keys.index_copy_(1, position, row)
        return self.keys * old.sum() + old


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
@pytest.mark.parametrize(("kind", "in_place"), [(Cache, True), (CacheReadLate, False)])
def test_rows_are_written_into_a_state_in_place(device, kind, in_place):
    if device not in {i.id for i in mansard.devices() if i.supported}:
        pytest.skip(f"no device {device}")
    rows = [torch.randn(2, 1, 4) for _ in range(4)]
    places = [torch.tensor([i]) for i in (0, 3, 5, 3)]
    with mansard.compile(kind().eval(), (rows[0], places[0]), devices=device) as model:
        assert [before == after for before, after in model.plan.states] == [in_place]
        reference = kind().eval()
        for row, place in zip(rows, places, strict=True):
            torch.testing.assert_close(model(row, place), reference(row, place))


class SameName(nn.Module):
    """A buffer called as the input is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x.add_(x.sum(0))
        return x * self.x


def test_an_input_may_be_called_as_a_state_is():
    x = torch.randn(2, 3)
    with mansard.compile(SameName().eval(), (x,), devices="cpu") as model:
        reference = SameName().eval()
        for _ in range(2):
            torch.testing.assert_close(model(x), reference(x))
