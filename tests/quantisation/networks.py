"""Small networks that are quantised."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

from mansard.ir import Constant, Graph, GraphBuilder
from mansard.testing.graphs import F32, matmul, unary


class Images(nn.Module):
    """Every kind of layer of a CNN: norm, depthwise, grouped, a residual, a pool, a join, an average."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.depthwise, self.pointwise = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1)
        self.grouped, self.head = nn.Conv2d(16, 8, 3, padding=1, groups=2), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        y = nn.functional.relu6(self.depthwise(x))
        x = torch.relu(self.pointwise(y) + x)
        return self.head(self.grouped(torch.cat([x, y], 1)).mean((2, 3)))


class Residuals(nn.Module):
    """Sums that the next sum reads, and the next layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.mean((2, 3))


class Encoder(nn.Module):
    """A layer of a transformer, its norms behind the sums or before the layers."""

    def __init__(self, *, norm_first: bool = False) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, batch_first=True, activation="gelu", norm_first=norm_first
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def layers(*widths: int) -> Graph:
    """Products with clamps between them, as a Graph; the second weight has an outlier in each column."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.input("x", (4, widths[0]), F32)
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        data = rng.standard_normal((before, after)).astype(np.float32)
        if number == 1:
            data[0] *= 100
        weight = b.constant("w", Constant.of(data, f"layer{number}.weight"), data.shape, F32)
        x = unary(b, "abs", matmul(b, x, weight)) if number < len(widths) - 2 else matmul(b, x, weight)
    return b.build([x])
