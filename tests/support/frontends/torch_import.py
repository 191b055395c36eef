"""Helpers of the PyTorch frontend's tests: import a module, run it, compare with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn

from mansard.frontends import import_model
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret

TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 5e-2}


class Apply(nn.Module):
    """A function of up to four tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
        return self.function(*(x for x in (a, b, c, d) if x is not None))


def as_module(function: Any) -> nn.Module:
    return function if isinstance(function, nn.Module) else Apply(function)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def check(graph: Graph, module: nn.Module, inputs: Sequence[torch.Tensor], **fixed: Any) -> None:
    """Run graph and module on the same inputs; results, dtypes and shapes must agree."""
    module.eval()
    with torch.no_grad():
        flat = torch.utils._pytree.tree_leaves(module(*inputs, **fixed))
    wanted = [torch.as_tensor(x) for x in flat if x is not None]
    results = interpret(graph, [as_array(x) for x in inputs])
    assert len(results) == len(wanted)
    for out, expected in zip(results, wanted, strict=True):
        assert (out.dtype.name, out.shape) == (str(expected.dtype)[6:], tuple(expected.shape))
        tolerance = TOLERANCE.get(expected.dtype, 2e-5)
        np.testing.assert_allclose(
            out.astype(np.float64), expected.double().numpy(), rtol=tolerance, atol=tolerance
        )


def import_and_check(function: Any, *inputs: torch.Tensor) -> Graph:
    """Import with static shapes and compare with PyTorch."""
    module = as_module(function)
    graph = import_model(module, inputs)
    check(graph, module, inputs)
    return graph
