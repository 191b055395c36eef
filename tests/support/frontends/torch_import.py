"""Helpers of the PyTorch frontend's tests: import a module, run it, compare with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
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


class SideBySide(nn.Module):
    """Modules in one, each with inputs of its own: an export costs more than most ops."""

    def __init__(self, modules: Sequence[nn.Module], counts: Sequence[int]) -> None:
        super().__init__()
        self.parts, self.counts = nn.ModuleList(modules), counts

    def forward(self, *inputs: Any) -> Any:
        rest = iter(inputs)
        return [part(*islice(rest, n)) for part, n in zip(self.parts, self.counts, strict=True)]


def as_module(function: Any) -> nn.Module:
    return function if isinstance(function, nn.Module) else Apply(function)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.detach().numpy()


def check(graph: Graph, module: nn.Module, inputs: Sequence[torch.Tensor], **fixed: Any) -> None:
    """Run graph and module on the same inputs; results, dtypes and shapes must agree."""
    wanted = expected(module, inputs, **fixed)
    results = interpret(graph, [as_array(x) for x in inputs])
    assert len(results) == len(wanted)
    agree(results, wanted)


def expected(module: nn.Module, inputs: Sequence[torch.Tensor], **fixed: Any) -> list[torch.Tensor]:
    """The results of a module in eval mode, flattened, without those that are None."""
    module.eval()
    with torch.no_grad():
        flat = torch.utils._pytree.tree_leaves(module(*inputs, **fixed))
    return [torch.as_tensor(x) for x in flat if x is not None]


def agree(results: Sequence[np.ndarray], wanted: Sequence[torch.Tensor], name: str = "") -> None:
    for result, tensor in zip(results, wanted, strict=True):
        assert (result.dtype.name, result.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape)), name
        tolerance = TOLERANCE.get(tensor.dtype, 2e-5)
        np.testing.assert_allclose(
            result.astype(np.float64), tensor.double().numpy(), tolerance, tolerance, err_msg=name
        )


def import_and_check(function: Any, *inputs: torch.Tensor) -> Graph:
    """Import with static shapes and compare with PyTorch."""
    module = as_module(function)
    graph = import_model(module, inputs)
    check(graph, module, inputs)
    return graph


def import_and_check_all(cases: Mapping[str, Sequence[Any]]) -> Graph:
    """Import functions, each with its inputs behind it, as one module; failures name the case."""
    modules = [as_module(function) for function, *_ in cases.values()]
    inputs = [x for _, *own in cases.values() for x in own]
    counts = [len(case) - 1 for case in cases.values()]
    graph = import_model(SideBySide(modules, counts), inputs)
    results, rest = iter(interpret(graph, [as_array(x) for x in inputs])), iter(inputs)
    for name, module, count in zip(cases, modules, counts, strict=True):
        wanted = expected(module, list(islice(rest, count)))
        agree(list(islice(results, len(wanted))), wanted, name)
    assert not list(results)
    return graph
