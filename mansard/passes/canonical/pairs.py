"""Reductions over pairs as maps of two operands.

Before (the area of a box by its two sides)::

    %y: 100xf32 = generic (d0:100 | d1:2) mul {%x[d0, d1]}

After::

    %y: 100xf32 = generic (d0:100) {%x[d0, 0] * %x[d0, 1]}

Maps are fused with what is around them, and their vectors run along the results. Windows of pools stay: their
kernels know what neighbours share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard import dims
from mansard.analysis.linear import to_scalar
from mansard.analysis.operands import with_reads
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value

_COMBINERS = ("add", "mul", "min", "max")
_DTYPES = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Types whose reductions round as often as their maps."""


def unroll_pairs(graph: Graph) -> Graph:
    """Make maps of reductions over two elements; the same graph where there are none."""
    ops = [_unrolled(op) if _reduces_pairs(op) else op for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _reduces_pairs(op: Op) -> bool:
    if not isinstance(op, Generic) or op.combiner not in _COMBINERS or op.body.dtype not in _DTYPES:
        return False
    if dims.product(op.extents[op.rank :]) != 2 or is_contraction(op) or not op.rank:
        return False
    if any(isinstance(node, Gather) for node in walk(op.body)):
        return False
    return not any(_is_window(op, place) for m in op.maps if m is not None for place in m.results)


def _is_window(op: Generic, place: Linear) -> bool:
    """Whether an index depends on loops of both kinds."""
    loops = {d for d, _ in place.terms if not dims.is_one(op.extents[d])}
    return any(d < op.rank for d in loops) and any(d >= op.rank for d in loops)


def _unrolled(op: Op) -> Op:
    assert isinstance(op, Generic)
    inputs: list[Value] = []
    maps: list[IndexMap | None] = []
    parts = []
    for number in range(2):
        loops = [Linear.dim(d) for d in range(op.rank)]
        loops += [Linear((), number if extent == 2 else 0) for extent in op.extents[op.rank :]]
        parts.append(_moved(op.body, loops, len(inputs)))
        inputs += op.inputs
        maps += [m.compose(loops) if m is not None else None for m in op.maps]
    body = Apply(str(op.combiner), (parts[0], parts[1]), op.body.dtype)
    return with_reads(replace(op, combiner=None, extents=op.extents[: op.rank]), inputs, maps, body)


def _moved(body: Scalar, loops: Sequence[Linear], first: int) -> Scalar:
    """A body at one of the reduced elements, its operands counted from ``first`` on."""

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Index):
            return to_scalar(loops[node.dim])
        return Arg(first + node.index, node.dtype) if isinstance(node, Arg) else node

    return rewrite(body, leaf)
