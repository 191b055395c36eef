"""Views that begin at a number read from a tensor, such as ``x[n.item()]``, as reads at indices."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from mansard.frontends.pytorch.inserter import Inserter
from mansard.frontends.pytorch.scalars import ScalarTensors

aten = torch.ops.aten


def read_at_indices(graph: torch.fx.Graph) -> None:
    """Replace ``select`` and ``slice`` at a number from a tensor by ``index_select``, in place.

    A slice needs a constant length; others stay, as views whose shape depends on data.
    """
    scalars = ScalarTensors(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (aten.select.int, aten.slice.Tensor):
            continue
        begin = node.args[2] if len(node.args) > 2 else None
        value = begin.meta.get("val") if isinstance(begin, torch.fx.Node) else None
        if value is None or not free_unbacked_symbols(value):
            continue
        shape = node.meta["val"].shape
        if free_unbacked_symbols(shape) or any(step != 1 for step in node.args[4:]):
            continue
        if node.target is aten.slice.Tensor and _constant(shape[node.args[1]]) is None:
            continue
        first = scalars.of(begin)
        with graph.inserting_before(node):
            result = _read(Inserter(graph, node), node, first)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _read(into: Inserter, node: Any, first: Any) -> Any:
    source, axis = node.args[0], node.args[1]
    size = source.meta["val"].shape[axis]
    if not isinstance(size, int):
        size = into.call(aten.sym_size.int, source, axis)
    # A negative place counts from the end, as in PyTorch.
    from_end = into.call(aten.add.Scalar, first, size)
    place = into.call(aten.where.self, into.call(aten.lt.Scalar, first, 0), from_end, first)
    if node.target is aten.select.int:
        row = into.call(aten.index_select.default, source, axis, into.call(aten.reshape.default, place, [1]))
        return into.call(aten.squeeze.dim, row, axis)
    length = _constant(node.meta["val"].shape[axis])
    steps = into.call(aten.arange.default, length, dtype=torch.int64)
    return into.call(aten.index_select.default, source, axis, into.call(aten.add.Tensor, steps, place))


def _constant(size: Any) -> int | None:
    """A size that is the same for all inputs, as an int."""
    constant: int | None = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else int(size)
    return constant
