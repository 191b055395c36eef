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


class ManyTypes(nn.Module):
    """States of several types and ranks, with initial contents, some never read, some that exchange them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("copy", torch.tensor(7))
        self.register_buffer("even", torch.tensor(False))
        self.register_buffer("bytes", torch.tensor([1, 2, 250], dtype=torch.uint8))
        self.register_buffer("halves", torch.full((2, 3), 0.5, dtype=torch.bfloat16))
        self.register_buffer("unread", torch.ones(3, dtype=torch.int32))
        self.register_buffer("last", torch.ones(2, 3))
        self.register_buffer("last_again", torch.zeros(2, 3))
        self.register_buffer("heads", torch.tensor([3.0]))
        self.register_buffer("tails", torch.tensor([-4.0]))
        self.register_buffer("part", torch.arange(6.0).reshape(3, 2))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.count * self.copy
        self.count.copy_(position[0]).add_(1)
        self.copy.copy_(position[0]).add_(1)
        self.even.logical_not_()
        self.bytes.add_(3)
        self.halves.add_(x)
        self.unread.copy_(x.sum(0).to(torch.int32))
        lasts = self.last + self.last_again
        self.last.copy_(x)
        self.last_again.copy_(x)
        heads = self.heads.clone()
        self.heads.copy_(self.tails)
        self.tails.copy_(heads)
        self.part[1].mul_(2)
        return (
            before,
            self.even.clone(),
            self.bytes * 2,
            self.halves * 2,
            lasts,
            self.tails * 2,
            self.part + 1,
        )


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_states_of_any_type_begin_with_the_contents_of_their_buffers(device, tmp_path):
    if device not in {i.id for i in mansard.devices() if i.supported}:
        pytest.skip(f"no device {device}")
    calls = [(torch.randn(2, 3), torch.tensor([place])) for place in (3, 0, 8, 2)]

    def check(model):
        reference = ManyTypes().eval()
        for inputs in calls:
            for got, expected in zip(model(*inputs), reference(*inputs), strict=True):
                torch.testing.assert_close(got, expected)

    with mansard.compile(ManyTypes().eval(), calls[0], devices=device) as model:
        check(model)
        model.reset_states()
        check(model)
        model.save(tmp_path / "states.mansard")
    with mansard.load(tmp_path / "states.mansard") as model:
        check(model)


def test_states_that_begin_as_zeros_take_no_place_in_a_file():
    with mansard.compile(RunningMean().eval(), (torch.randn(4, 8),), devices="cpu") as model:
        assert model.plan.weights == ()


class Holder:
    """What a cache class is: no module, with the tensors of one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class HeldTwice(nn.Module):
    """A buffer under two names, that is written through a plain object."""

    def __init__(self, held: slice | None = None) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(4, 3))
        self.register_buffer("same", self.total)
        self.holder = Holder(self.total if held is None else self.total[held])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.holder.tensor.add_(x)
        return self.same * 2 + self.total


@pytest.mark.parametrize("strict", [False, True])
def test_a_buffer_that_is_held_elsewhere_too_is_one_state(strict):
    x = torch.randn(3)
    with torch.no_grad():
        program = torch.export.export(HeldTwice().eval(), (x,), strict=strict)
    for given in (program, HeldTwice().eval()):
        with mansard.compile(given, (x,) if given is not program else None, devices="cpu") as model:
            reference = HeldTwice().eval()
            for _ in range(3):
                torch.testing.assert_close(model(x), reference(x))
            assert len(model.plan.states) == 1


def test_a_view_of_a_buffer_that_is_held_elsewhere_is_refused():
    with pytest.raises(
        mansard.ImportModelError, match=r"'same' and .*holder.* share a part of their memory: hold"
    ):
        mansard.compile(HeldTwice(slice(1, 2)).eval(), (torch.randn(3),), devices="cpu")
