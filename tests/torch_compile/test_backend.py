"""``torch.compile(model, backend="mansard")``."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import mansard
from mansard.errors import CompileError
from mansard.torch_compile import backend

RUNS: list[int] = []


@torch._dynamo.disable
def count() -> None:
    """Python that TorchDynamo leaves alone: it breaks a graph in two."""
    RUNS.append(1)


class Model(torch.nn.Module):
    """Returns a structure, of which a part is a size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: torch.Tensor, k: int = 2) -> dict[str, Any]:
        y = self.linear(x) + self.offset * k
        count()
        return {"y": y.relu(), "count": y.shape[0] * 2, "flat": y.reshape(-1)}


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The models that were compiled in a test; nothing that TorchDynamo knows is left over."""
    made: list[Any] = []
    original = mansard.compile

    @functools.wraps(original)
    def counted(*args: Any, **named: Any) -> mansard.Model:
        made.append(original(*args, **named))
        return made[-1]

    monkeypatch.setattr(mansard, "compile", counted)
    torch._dynamo.reset()
    with torch.no_grad():
        yield made
    torch._dynamo.reset()


def compiled(module: torch.nn.Module) -> Any:
    return torch.compile(module, backend="mansard", options={"devices": "cpu"})


def check(model: Any, module: torch.nn.Module, *args: Any) -> None:
    actual, expected = model(*args), module(*args)
    assert list(actual) == list(expected) and actual["count"] == expected["count"]
    for name in ("y", "flat"):
        torch.testing.assert_close(actual[name], expected[name], atol=1e-6, rtol=1e-6)


def test_a_model_with_a_graph_break_and_sizes_that_vary(compilations: list[Any]) -> None:
    RUNS.clear()
    module = Model().eval()
    model = compiled(module)
    for rows in (3, 5, 7, 9):
        check(model, module, torch.randn(rows, 4))
    assert len(RUNS) == 8  # Python between two graphs runs at each call
    assert len(compilations) == 4  # two graphs for the first size, and two for any
    assert [dim.min <= 2 for made in compilations[2:] for dim in made.dims] == [True, True]


def test_a_weight_that_changes_and_a_number(compilations: list[Any]) -> None:
    module = Model().eval()
    model = compiled(module)
    x = torch.randn(3, 4)
    check(model, module, x)
    module.linear.weight.add_(1)
    check(model, module, x)
    module.linear.weight.data = torch.zeros(4, 4)
    check(model, module, x)
    check(model, module, x, 3)
    check(model, module, x, 4)


def test_sizes_that_an_export_fixes(compilations: list[Any]) -> None:
    """Half of the rows: torch.export asks for an even number, TorchDynamo compiles for each parity."""

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[: x.shape[0] // 2] + 1 if x.shape[0] % 2 == 0 else x - 1

    module = Halves()
    model = compiled(module)
    for rows in (4, 6, 5, 7, 8):
        x = torch.randn(rows, 3)
        assert torch.equal(model(x), module(x))


def test_gradients_are_refused(compilations: list[Any]) -> None:
    model = compiled(Model().eval())
    with torch.enable_grad(), pytest.raises(Exception, match=r"computes no gradients: call .* torch.no_grad"):
        model(torch.randn(2, 4))


def test_options_are_checked(compilations: list[Any]) -> None:
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    with pytest.raises(CompileError, match=r"takes no option 'devics'; it takes .*devices"):
        backend(graph, [torch.zeros(1)], options={"devics": "cpu"})
    with pytest.raises(CompileError, match="on meta; the backend mansard takes tensors in the CPU's memory"):
        backend(graph, [torch.zeros(1, device="meta")])(torch.zeros(1, device="meta"))


def test_an_op_without_a_lowering_is_an_error(compilations: list[Any]) -> None:
    model = torch.compile(lambda x: torch.linalg.svd(x)[0], backend="mansard", options={"devices": "cpu"})
    with pytest.raises(mansard.UnsupportedOpError, match="linalg_svd"):
        model(torch.eye(3))
