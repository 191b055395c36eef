"""Relations between sizes that an exported program assumes: part of the contract of every call."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import mansard
from mansard.errors import GraphSyntaxError, ShapeContractError
from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph

AUTO = {0: Dim.AUTO}
DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("vulkan", id="vulkan", marks=pytest.mark.vulkan)]


class Prefix(nn.Module):
    """Adds a prefix of ``y``, or all of it where ``x`` is longer: torch.export keeps the first branch."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= y.shape[0]:
            return x.sum() + y[: x.shape[0]].sum()
        return x.sum() - y.sum()


class Divided(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[0] * y.shape[0] % 6 == 0 and x.shape[0] != y.shape[0]:
            return x.sum() + y.sum()
        return x.sum() - y.sum()


class Nested(nn.Module):
    def forward(self, x: dict[str, torch.Tensor], *, rows: list[torch.Tensor]) -> torch.Tensor:
        return rows[0].narrow(0, 2, x["a"].shape[0]) + x["a"]


class Halves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = x.shape[0] // 2
        if x.shape[0] // 3 == 1:
            return x
        return torch.cat([x[middle:], x[:middle]])


def vectors(*sizes: int) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.float32) for n in sizes]


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_that_violates_a_guard_between_sizes_is_refused(device: str, tmp_path: Any) -> None:
    if device not in {i.id for i in mansard.devices() if i.supported}:
        pytest.skip(f"no device {device}")
    example = (torch.randn(3), torch.randn(8))
    with mansard.compile(
        Prefix(), example, dynamic_shapes=(AUTO, AUTO), devices=device, cache=False
    ) as model:
        assert float(model(*vectors(4, 6))) == 12.0
        with pytest.raises(
            ShapeContractError,
            match=r"x_dim0 <= y_dim0.*x_dim0=6 \(input 'x', axis 0\), y_dim0=4 \(input 'y', axis 0\)",
        ):
            model(*vectors(6, 4))
        assert float(model(*vectors(4, 6))) == 12.0
        model.save(tmp_path / "m.mansard")
    with mansard.load(tmp_path / "m.mansard") as model, pytest.raises(ShapeContractError, match="x_dim0 <= "):
        model(*vectors(6, 4))


@pytest.mark.parametrize("saved", [False, True])
def test_remainders_and_unequal_sizes(saved: bool) -> None:
    program = torch.export.export(Divided(), (torch.randn(3), torch.randn(8)), dynamic_shapes=(AUTO, AUTO))
    if saved:
        file = io.BytesIO()
        torch.export.save(program, file)
        program = torch.export.load(io.BytesIO(file.getvalue()))
    graph = import_model(program)
    assert sorted(map(str, graph.constraints)) == ["mod(x_dim0*y_dim0, 6) == 0", "x_dim0 != y_dim0"]
    assert interpret(graph, vectors(4, 3)) == [9.0]
    for sizes in ((4, 5), (6, 6)):
        with pytest.raises(ShapeContractError, match="exported for"):
            interpret(graph, vectors(*sizes))


@pytest.mark.parametrize("strict", [False, True])
def test_constraints_of_nested_inputs(strict: bool) -> None:
    shapes = {"x": {"a": AUTO}, "rows": [AUTO]}
    example = ({"a": torch.randn(3)},), {"rows": [torch.randn(8)]}
    program = torch.export.export(Nested(), *example, dynamic_shapes=shapes, strict=strict)
    graph = import_model(program)
    (constraint,) = graph.constraints
    assert str(constraint) == "x_a_dim0 + 2 <= rows_0_dim0"
    interpret(graph, vectors(3, 5))
    with pytest.raises(ShapeContractError):
        interpret(graph, vectors(3, 4))


def test_guards_of_layouts_are_no_constraints() -> None:
    graph = import_model(Halves(), (torch.randn(8),), dynamic_shapes=(AUTO,))
    assert "floordiv(x_dim0, 3) != 1" in map(str, graph.constraints)
    interpret(graph, vectors(7))
    with pytest.raises(ShapeContractError, match="!= 1; this call has x_dim0=5"):
        interpret(graph, vectors(5))


def test_what_ranges_imply_is_no_constraint() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 3, stride=2, padding=1), nn.AdaptiveAvgPool1d(1))
    graph = import_model(module, (torch.randn(1, 2, 9),), dynamic_shapes=({2: mansard.Dim("n", 3, 99)},))
    assert graph.constraints == ()


def test_a_constraint_is_part_of_the_text() -> None:
    text = """\
graph main
  dim    a: 1 to 64
  dim    b: 1 to 64
  require a <= 2*b
  input  %x: [a]xf32
  input  %y: [b]xf32
  return %x
"""
    graph = parse_graph(text)
    assert str(graph) == text
    with pytest.raises(ShapeContractError, match=r"a <= 2\*b"):
        interpret(graph, vectors(5, 2))
    with pytest.raises(GraphSyntaxError, match="<="):
        parse_graph(text.replace("<=", "="))
