"""Ops on tensors without elements or without dims, which crash or stall torch-mlir or which it lacks."""

from __future__ import annotations

from typing import Any

import torch

from mansard.frontends.pytorch.inserter import Inserter

aten = torch.ops.aten
_INTO = frozenset({"index_put", "_unsafe_index_put", "scatter", "scatter_add", "scatter_reduce", "index_add"})
"""Ops that write some elements into their first operand."""
_ALONG_A_DIM = frozenset({
    "_log_softmax", "_softmax", "all", "amax", "amin", "any", "argmax", "argmin", "cumprod", "cumsum",
    "gather", "index_fill", "index_select", "logcumsumexp", "logsumexp", "mean", "prod", "scatter",
    "scatter_add", "scatter_reduce", "sum",
})  # fmt: skip
"""Ops with one result that take a dim or a list of dims: a number is a vector of one element to them."""


def simplify_degenerate(graph: torch.fx.Graph, node: Any) -> bool:
    """Rewrite a call whose result has no elements, which writes none, or whose first operand has no dims.

    Returns whether it did.
    """
    value, name = node.meta.get("val"), node.target.overloadpacket.__name__
    if not isinstance(value, torch.Tensor):
        return False
    if _is_empty(value) and all(isinstance(d, int) for d in value.shape):
        _empty_constant(graph, node)
    elif name in _INTO and any(_is_empty(n.meta.get("val")) for n in node.all_input_nodes):
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    elif name in _ALONG_A_DIM and node.all_input_nodes and _rank(node.all_input_nodes[0]) == 0:
        _as_vector(graph, node)
    else:
        return False
    return True


def _rank(node: Any) -> int | None:
    value = node.meta.get("val")
    return value.dim() if isinstance(value, torch.Tensor) else None


def _is_empty(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(d, int) and d == 0 for d in value.shape)


def _empty_constant(graph: torch.fx.Graph, node: Any) -> None:
    """A tensor without elements need not be computed; torch-mlir divides by its sizes."""
    value = node.meta["val"]
    with graph.inserting_before(node):
        shape = list(value.shape)
        empty = graph.call_function(aten.empty.memory_format, (shape,), {"dtype": value.dtype})
    empty.meta = dict(node.meta)
    node.replace_all_uses_with(empty)
    graph.erase_node(node)


def _as_vector(graph: torch.fx.Graph, node: Any) -> None:
    with graph.inserting_before(node):
        inserter = Inserter(graph, node)
        raised = {
            n: inserter.call(aten.unsqueeze.default, n, 0) for n in node.all_input_nodes if _rank(n) == 0
        }
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: raised.get(n, n))
        if node.target.overloadpacket is aten.index_fill:  # its value stays a number
            args = (*args[:3], node.args[3])
        result = inserter.call(node.target, *args, **kwargs)
        while _rank(result):
            result = inserter.call(aten.squeeze.dim, result, 0)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
