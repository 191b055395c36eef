"""DeepLabV3 with an op in its middle that an NPU may refuse: logits resized, then a convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.npu.networks import network

NAME = "deeplabv3_refined"
PIXELS = 65
"""The extent of the resized logits, which are 33 x 33."""


class Refined(nn.Module):
    """Logits resized to 65 x 65, bilinear, and a 3 x 3 convolution of them."""

    def __init__(self, module: nn.Module, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.module, self.refine = module, nn.Conv2d(classes, classes, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = (PIXELS, PIXELS)
        return self.refine(nn.functional.interpolate(self.module(x), size=size, mode="bilinear"))


def quantised() -> tuple[Any, nn.Module, list[tuple[torch.Tensor]]]:
    """As `benchmarks.npu.networks.quantised`."""
    import mansard

    module, data = network("deeplabv3")
    with torch.no_grad():
        classes = module(*data[0]).shape[1]
    refined = Refined(module, classes).eval()
    return mansard.quantize(refined, data, scheme="int8"), refined, data
