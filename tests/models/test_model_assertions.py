"""Assertions of exported programs, checked by every call, on every device."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mansard
from mansard.errors import CompileError, ImportModelError, ModelAssertionError

DEVICES = [
    pytest.param(("cpu",), id="cpu"),
    pytest.param(("vulkan",), id="vulkan", marks=pytest.mark.vulkan),
    pytest.param(("cpu", "vulkan"), id="split", marks=pytest.mark.vulkan),
]


class Checked(nn.Module):
    """Requires a positive sum and elements below 100, and scales by a whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.sum().item() > 0)
        torch._assert_async(x.max() < 100, "an element is too large")
        count = x.abs().sum().long().item()
        torch._check(count <= 2000)
        return self.linear(x) * count


def compiled(module: nn.Module, inputs: tuple[torch.Tensor, ...], devices: tuple[str, ...]) -> mansard.Model:
    missing = set(devices) - {i.id for i in mansard.devices() if i.supported}
    if missing:
        pytest.skip(f"no device {', '.join(missing)}")
    placement = mansard.PlacementOptions(min_share=0.3) if len(devices) > 1 else None
    return mansard.compile(module.eval(), inputs, devices=devices, placement=placement, cache=False)


@pytest.fixture(params=DEVICES)
def checked(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, mansard.Model]]:
    torch.manual_seed(0)
    module = Checked().eval()
    with compiled(module, (torch.rand(4, 8),), request.param) as model:
        yield module, model


def test_a_failing_assertion_is_an_error_with_its_message_and_place(checked: Any) -> None:
    module, model = checked
    x = torch.rand(4, 8)
    torch.testing.assert_close(model(x), module(x).detach())
    with pytest.raises(
        ModelAssertionError, match=r"torch\._check\(x\.sum\(\)\.item\(\) > 0\).*\(at test_model_assert"
    ):
        model(-x)
    with pytest.raises(ModelAssertionError, match="an element is too large"):
        model(x * 300)
    with pytest.raises(ModelAssertionError, match="2000"):
        model(x * 0 + 90)
    torch.testing.assert_close(model(x), module(x).detach())
    assert model.stats.contexts == 1  # a failed assertion costs no new recording


def test_calls_in_flight_fail_each_on_their_own(checked: Any) -> None:
    module, model = checked
    inputs = [torch.rand(4, 8) * (1 if i % 3 else -1) for i in range(18)]

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(model.run_async(x) for x in inputs), return_exceptions=True)

    for _ in range(2):
        for number, (x, y) in enumerate(zip(inputs, asyncio.run(all_at_once()), strict=True)):
            if number % 3:
                torch.testing.assert_close(y, module(x).detach())
            else:
                assert isinstance(y, ModelAssertionError)


class Branches(nn.Module):
    """Reads numbers from tensors in ways that torch-mlir has no lowering for."""

    def forward(self, x: torch.Tensor, n: torch.Tensor, f: torch.Tensor) -> Any:
        row, scale, other = n.item(), f.item(), n.item()
        most = torch.sym_max(row, 2) + torch.sym_min(row, 1) + row % 3
        chosen = torch.sym_ite(row > 2, 7, 1)
        return x[row], x * most + chosen, x * scale**0.5, x.narrow(0, other, 2), row, scale


@pytest.mark.parametrize("n", [0, 1, 3])
def test_numbers_read_from_tensors_are_values(n: int) -> None:
    args = torch.randn(5, 3), torch.tensor(n), torch.tensor(1.5)
    with compiled(Branches(), args, ("cpu",)) as model:
        for got, wanted in zip(model(*args), Branches()(*args), strict=True):
            assert type(got) is type(wanted)
            torch.testing.assert_close(got, wanted)


def test_a_number_that_is_an_output_is_no_reinterpreted_one() -> None:
    class Total(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.sum().item(), x.sum().item() > 1

    with compiled(Total(), (torch.ones(3),), ("cpu",)) as model:
        total, above = model(np.full(3, 0.5, np.float32))
        assert type(total) is float and total == 1.5 and above is True


class OnInput(nn.Module):
    def forward(self, x: torch.Tensor, ok: torch.Tensor) -> torch.Tensor:
        torch._assert_async(ok, "the caller says no")
        return x * 2


@pytest.mark.parametrize("devices", DEVICES[:2])
def test_an_asserted_input_is_read_where_the_caller_has_it(devices: tuple[str, ...]) -> None:
    x = np.ones(4, np.float32)
    with compiled(OnInput(), (torch.ones(4), torch.tensor(True)), devices) as model:
        assert np.array_equal(model(x, np.array(True)), 2 * x)
        with pytest.raises(ModelAssertionError, match="the caller says no"):
            model(x, np.array(False))


def test_assertions_over_constants_are_settled_by_the_compiler() -> None:
    class Constant(nn.Module):
        def __init__(self, limit: float) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(6.0))
            self.limit = limit

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((self.table < self.limit).all(), "the table is wrong")
            return x + self.table

    with compiled(Constant(9.0), (torch.ones(6),), ("cpu",)) as model:
        assert not model.plan.asserts
    with pytest.raises(CompileError, match="the table is wrong"):
        compiled(Constant(5.0), (torch.ones(6),), ("cpu",))


def test_an_assertion_of_a_constant_is_an_error_of_the_import() -> None:
    class Never(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.shape[0] == 7)
            return x

    with pytest.raises(ImportModelError):
        compiled(Never(), (torch.ones(6),), ("cpu",))


class Counted(nn.Module):
    """Adds up what it is called with, as long as that is positive, and counts in rows of a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4, 8))
        self.register_buffer("rows", torch.zeros(6, 8))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        self.rows.index_copy_(0, position, x[:1])
        torch._assert_async((x > 0).all(), "must be positive")
        torch._check(x.sum().item() < 1000)
        return self.total + self.rows.sum()


@pytest.mark.parametrize("devices", DEVICES[:2])
def test_a_failed_assertion_leaves_states_as_they_were(devices: tuple[str, ...]) -> None:
    x, place = torch.ones(4, 8), torch.tensor([2])
    reference = Counted()
    with compiled(Counted(), (x, place), devices) as model:
        for factor in (1, 2, 3):
            torch.testing.assert_close(model(x * factor, place), reference(x * factor, place))
            for wrong in (-x, x * 100):
                with pytest.raises(ModelAssertionError):
                    model(wrong, torch.tensor([factor]))


def test_an_assertion_survives_saving(tmp_path: Any) -> None:
    x = np.random.default_rng(0).random((4, 8), np.float32)
    with compiled(Checked(), (torch.rand(4, 8),), ("cpu",)) as model:
        model.save(tmp_path / "m.mansard")
    with mansard.load(tmp_path / "m.mansard") as model:
        model(x)
        with pytest.raises(ModelAssertionError, match="an element is too large"):
            model(x * 300)
