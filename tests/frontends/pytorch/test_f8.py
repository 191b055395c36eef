"""Conversions from and to float8_e4m3fn: PyTorch's, which saturate, on every device."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from support.frontends.torch_import import as_array
from support.graph_runner import run
from torch import nn

from mansard.frontends import import_model
from mansard.ir.interpreter.graph import interpret

F8 = torch.float8_e4m3fn
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CODES = torch.arange(256).to(torch.uint8).view(F8)
"""Every f8."""
BEYOND = [
    math.nan,
    math.inf,
    1e5,
    448.0,
    449.0,
    463.0,
    464.0,
    465.0,
    480.0,
    512.0,
    1e-3,
    2**-10,
    2**-11,
    1e-7,
]
"""Around the largest f8, 448, and the smallest, 2**-9."""
INTEGERS = torch.tensor([0, 1, -17, 19, 21, 447, 448, 464, 465, -500, 1_000_000])


def magnitudes() -> torch.Tensor:
    """Every f8, the ties between neighbours, just beside the ties, and what is out of range."""
    numbers = CODES[:0x7F].float()
    ties = (numbers[1:] + numbers[:-1]) / 2
    return torch.cat([numbers, ties, ties * (1 - 2**-8), ties * (1 + 2**-8), torch.tensor(BEYOND)])


class Conversions(nn.Module):
    """Floats and integers to f8 and from there to f32; f8 to each float type, and through f32 back."""

    def forward(self, codes: torch.Tensor, whole: torch.Tensor, *floats: torch.Tensor) -> list[torch.Tensor]:
        narrow = [x.to(F8) for x in (whole, *floats)]
        widened = [codes.to(dtype) for dtype in FLOATS]
        return [*narrow, *(x.float() for x in narrow), *widened, (codes.float() * 2).to(F8)]


def array(tensor: torch.Tensor) -> np.ndarray:
    """The elements, f8 by their bits."""
    if tensor.dtype is not F8:
        return as_array(tensor)
    return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_pytorchs_conversions(device: str) -> None:
    both = torch.cat([magnitudes(), -magnitudes()])
    inputs = (CODES, INTEGERS, *(both.to(dtype) for dtype in FLOATS))
    model = Conversions()
    expected = [array(x) for x in model(*inputs)]
    graph, arrays = import_model(model, inputs), [array(x) for x in inputs]
    for results in (interpret(graph, arrays), run(graph, arrays, device)):
        for result, wanted in zip(results, expected, strict=True):
            assert result.dtype == wanted.dtype
            have, want = result.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_array_equal(have, want)
            number = ~np.isnan(want)  # PyTorch's NaN has either sign
            np.testing.assert_array_equal(np.signbit(have[number]), np.signbit(want[number]))
