"""Products of rows with one matrix of a stack each (layers of experts), against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.frontends.torch_import import Apply
from torch.export import Dim

from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

pytest.importorskip("transformers.integrations.moe")  # registers the op of transformers
COUNT, DEPTH, COLUMNS = 5, 8, 16
OFFSETS = [
    (4, [0, 2, 2, 3, 4]),  # few rows, some matrices without any
    (90, [1, 1, 40, 80, 90]),
    (90, [0, 0, 0, 0, 77]),  # rows behind the last offset are zeros
]


def fallback(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(x, w, ends)
    return result


def operands(length: int, ends: list[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    x = torch.randn(length, DEPTH, generator=generator, dtype=dtype)
    w = torch.randn(COUNT, DEPTH, COLUMNS, generator=generator, dtype=dtype)
    return [x, w, torch.tensor(ends, dtype=torch.int32)]


def agree(function: Any, inputs: list[torch.Tensor], calls: list[list[torch.Tensor]], **options: Any) -> None:
    graph = import_model(Apply(function), inputs, **options)
    for call in calls:
        (result,) = interpret(graph, [t.numpy() for t in call])
        np.testing.assert_allclose(result, function(*call).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("length", "ends"), OFFSETS)
def test_experts_of_transformers(length: int, ends: list[int]) -> None:
    inputs = operands(length, ends)
    agree(fallback, inputs, [inputs])


def test_transposed_matrices() -> None:
    x, w, ends = operands(90, [1, 1, 40, 80, 90])
    inputs = [x, w.transpose(1, 2).contiguous(), ends]
    agree(lambda x, w, ends: fallback(x, w.transpose(1, 2), ends), inputs, [inputs])


def test_any_number_of_rows() -> None:
    length = Dim("rows", min=2, max=200)
    inputs = operands(90, [1, 1, 40, 80, 90])
    calls = [
        inputs,
        operands(2, [0, 0, 1, 2, 2]),
        operands(200, [200] * 5),
        operands(151, [3, 60, 61, 100, 151]),
    ]
    agree(fallback, inputs, calls, dynamic_shapes=({0: length}, None, None))


def test_pytorch_s_own() -> None:
    x, w, ends = operands(64, [8, 8, 40, 56, 64], torch.bfloat16)
    graph = import_model(Apply(lambda x, w, ends: torch._grouped_mm(x, w, offs=ends).float()), [x, w, ends])
    (result,) = interpret(
        graph,
        [
            x.float().numpy().astype(graph.inputs[0].type.dtype.numpy),
            w.float().numpy().astype(graph.inputs[1].type.dtype.numpy),
            ends.numpy(),
        ],
    )
    np.testing.assert_allclose(result, fallback(x.float(), w.float(), ends).numpy(), rtol=2e-2, atol=2e-2)
