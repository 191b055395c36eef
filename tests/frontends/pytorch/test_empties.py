"""Tensors without elements in PyTorch models: PyTorch's answers, in the interpreter and on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import vulkan_support
from support.frontends.torch_import import Apply, SideBySide, as_module
from support.graph_runner import compiled, outputs, run
from torch.utils import _pytree as pytree

from mansard.dims import Dim
from mansard.errors import ImportModelError, ModelAssertionError
from mansard.frontends import import_model
from mansard.ir import Assert, Graph
from mansard.ir.interpreter.graph import interpret

torch.manual_seed(0)
X, ROWS = torch.randn(3, 4), torch.zeros(0, 4)
NOWHERE = torch.zeros(0, 4, dtype=torch.int64)


@cache
def imported(function: Callable[..., Any], *inputs: torch.Tensor) -> Graph:
    """Once for the interpreter and every device."""
    return import_model(as_module(function), inputs)


def agree(device: str, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    """A function of one or more results."""
    graph = imported(function, *inputs)
    with torch.no_grad():
        expected = pytree.tree_leaves(function(*inputs))
    arrays = [x.numpy() for x in inputs]
    for results in (interpret(graph, arrays), run(graph, arrays, device)):
        for result, tensor in zip(results, expected, strict=True):
            assert result.dtype == tensor.numpy().dtype
            np.testing.assert_allclose(result, tensor.numpy(), rtol=1e-5, atol=1e-6)


@pytest.fixture(params=["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "vulkan":
        vulkan_support.usable_device()
    return str(request.param)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_reductions(device: str) -> None:
    agree(device, reductions, X)


def reductions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    none, narrow = x[:0], x[:, :0]
    return (
        none.sum(), none.prod(), none.sum(0), narrow.sum(1), narrow.prod(1), none.mean(), none.mean(0),
        narrow.mean(1), none.var(0), x[:1].var(0), none.std(0), none.norm(), none.norm(dim=0),
        (none > 0).any(), (none > 0).all(), (none > 0).any(0), (none > 0).all(0), none.long().sum(),
        none.int().prod(0), torch.logsumexp(none, 0), none.amax(1), none.argmax(1), none.cumsum(0),
    )  # fmt: skip


def test_extremes_of_nothing_are_an_error() -> None:
    with pytest.raises(ImportModelError, match="zero-size dim"):
        import_model(Apply(lambda x: x[:0].amax(0)), (X,))


def test_indices_of_extremes_of_nothing_at_run_time_are_an_error(device: str) -> None:
    def extremes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.max(1).indices, x.min(1).indices)

    graphs = [import_model(Apply(extremes), (X,), dynamic_shapes=({1: Dim("n", low, 9)},)) for low in (0, 1)]
    assert [sum(isinstance(op, Assert) for op in graph.ops) for graph in graphs] == [2, 0]
    message = r"argmax over a dim of size n = 0; it needs at least one element"
    with pytest.raises(ModelAssertionError, match=message):
        interpret(graphs[0], [np.zeros((3, 0), np.float32)])
    with compiled(graphs[0], device) as model:
        with pytest.raises(ModelAssertionError, match=message):
            model(np.zeros((3, 0), np.float32))
        for result, expected in zip(outputs(model, [X.numpy()]), extremes(X), strict=True):
            np.testing.assert_array_equal(result, expected.numpy())


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "depth 0": (lambda a, b: (a @ b,), (torch.zeros(3, 0), torch.zeros(0, 5))),
    "batched, depth 0": (lambda a, b: (a @ b,), (torch.zeros(2, 3, 0), torch.zeros(2, 0, 5))),
    "no rows": (lambda a, b: (a @ b, b.t() @ a.t()), (ROWS, torch.randn(4, 5))),
    "no batch": (lambda a, b: (a @ b,), (torch.zeros(0, 3, 4), torch.zeros(0, 4, 5))),
    "of vectors": (lambda a, b: (a @ b,), (torch.zeros(3, 0), torch.zeros(0))),
    "linear, depth 0": (
        lambda a, w, b: (F.linear(a, w, b),),
        (torch.zeros(3, 0), torch.zeros(5, 0), torch.randn(5)),
    ),
    "convolution": (
        lambda a, w: (F.conv2d(a, w), F.max_pool2d(a, 2), F.avg_pool2d(a, 2)),
        (torch.zeros(0, 3, 8, 8), torch.randn(2, 3, 3, 3)),
    ),
    "attention without queries": (
        lambda q, k: (F.scaled_dot_product_attention(q, k, k),),
        (torch.zeros(1, 2, 0, 8), torch.randn(1, 2, 5, 8)),
    ),
    "attention without keys": (
        lambda q, k: (F.scaled_dot_product_attention(q, k, k),),
        (torch.randn(1, 2, 3, 8), torch.zeros(1, 2, 0, 8)),
    ),
}


EVERY_PRODUCT = SideBySide(
    [as_module(function) for function, _ in PRODUCTS.values()],
    [len(inputs) for _, inputs in PRODUCTS.values()],
)


def test_products(device: str) -> None:
    agree(device, EVERY_PRODUCT, *(x for _, inputs in PRODUCTS.values() for x in inputs))


def test_rows_and_views(device: str) -> None:
    agree(device, rows_and_views, X, ROWS)


def rows_and_views(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    none, narrow = x[:0], x[:, :0]
    return (
        F.softmax(narrow, -1), F.softmax(none, -1), F.log_softmax(none, 0), F.layer_norm(rows, (4,)),
        torch.cat([none, x, x[1:1]]), torch.cat([narrow, x], 1), torch.stack([none, none]), none.t(),
        none.permute(1, 0).contiguous(), none.reshape(2, 0), rows.flatten(), narrow.flip(0), rows + 1,
        rows.relu(), F.pad(none, (1, 1, 1, 2)), F.pad(narrow, (2, 1)), torch.sort(rows, 0)[0],
    )  # fmt: skip


def test_indices(device: str) -> None:
    agree(device, at_indices, X, NOWHERE, ROWS)


def at_indices(x: torch.Tensor, i: torch.Tensor, updates: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = i[:, 0]
    put = x.index_put((rows,), updates)
    return (
        torch.gather(x, 0, i), x[rows], torch.index_select(x, 0, rows), F.embedding(rows, x), put,
        x.scatter(0, i, updates), x.scatter_add(0, i, updates), x.index_add(0, rows, updates),
    )  # fmt: skip
