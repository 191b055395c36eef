"""Running combinations of PyTorch models whose prefixes leave the range of their type, or are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from support.frontends.torch_import import Apply

from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

INF = torch.inf


def agree(function: Any, inputs: list[torch.Tensor], **options: Any) -> None:
    graph = import_model(Apply(function), inputs[:1], **options)
    for x in inputs:
        expected = function(x)
        expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        for result, tensor in zip(interpret(graph, [x.numpy()]), expected, strict=True):
            np.testing.assert_allclose(result, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_prefixes_out_of_range() -> None:
    agree(
        lambda x: (x.cumsum(0), x.cumprod(0)),
        [torch.tensor([1e38, 3e38, -3e38]), torch.tensor([1e30, 1e30, 1e-35])],
    )


LINES = torch.tensor([
    [88.0, 89.0, 100.0, -5.0, 3e38, 1.0], [-1000.0, -200.0, -100.0, 0.0, 1.0, 2.0],
    [-INF, -INF, 0.0, 5.0, INF, 1.0], [INF, INF, -INF, 0.0, 1.0, 2.0],
    [-3e38, -3e38, -3e38, 3e38, 3e38, -3e38], [1.0, torch.nan, 2.0, INF, torch.nan, -INF],
])  # fmt: skip


def test_logcumsumexp() -> None:
    agree(lambda x: [torch.logcumsumexp(x, dim) for dim in (0, 1, -1)], [LINES])


def test_logcumsumexp_of_unknown_length() -> None:
    length = torch.export.Dim("n", min=2, max=50)
    lines = [LINES, torch.randn(6, 31) * 50]
    agree(lambda x: torch.logcumsumexp(x, 1), lines, dynamic_shapes=({1: length},))


def test_scans_of_one_number_and_of_nothing() -> None:
    def of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        running = (x.cumsum(0), x.cumprod(0), torch.logcumsumexp(x, 0), *torch.cummax(x, 0))
        return *running, *torch.sort(x), torch.argsort(x, stable=True), *torch.topk(x, 1, 0)

    agree(of_one, [torch.tensor(3.0)])
    agree(lambda x: (x.cumsum(0), torch.logcumsumexp(x, 0), x.cumprod(0)), [torch.zeros(0)])


def test_running_extremes() -> None:
    """With the index of the last occurrence."""

    def running(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*torch.cummax(x, 0), *torch.cummin(x, 0), *torch.cummax(x, 1), *torch.cummin(x, 1))

    agree(running, [LINES, LINES.round().clamp(-1, 1)])
