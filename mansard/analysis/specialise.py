"""Specialise ops to a subrange of their iteration space: decided conditions fold, gathers become plain reads.

Before (``d1`` in [64, 128))::

    %c: 4x128xf32 = generic (d0:4, d1:128) {select(d1 < 64, neg(%x{d0, d1 + 64}), %x{d0, d1 - 64})}

After::

    %c: 4x128xf32 = generic (d0:4, d1:128) {%x[d0, d1 - 64]}
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.linear import Ends
from mansard.analysis.operands import with_reads
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Gather, Index, Scalar, rewrite, walk
from mansard.ir.scalar_ops import COMPARE
from mansard.ir.types import IndexMap, Linear, Value


def specialise(op: Generic, ends: Mapping[int, Ends]) -> Generic:
    """``op`` with its dims restricted to ``ends`` (first and last index, inclusive).

    Comparisons that the ranges decide are folded, and gathers whose indices become affine turn into reads by
    index map. Returns the same op where nothing changes.
    """
    affine = Affine(op.extents, ends)
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Apply) and node.op == "select":
            outcome = _outcome(affine, node.args[0])
            return node if outcome is None else node.args[1 if outcome else 2]
        if isinstance(node, Gather):
            reads = _reads(affine, op, node)
            if reads is not None:
                inputs.append(op.inputs[node.operand])
                maps.append(IndexMap(reads))
                return Arg(len(inputs) - 1, node.dtype)
        return node

    body = rewrite(op.body, leaf)
    return op if body is op.body else with_reads(op, inputs, maps, body)


def _outcome(affine: Affine, condition: Scalar) -> bool | None:
    if not isinstance(condition, Apply):
        return None
    if condition.op in COMPARE and condition.args[0].dtype.is_int:
        return affine.compare(condition.op, *condition.args)
    parts = [_outcome(affine, arg) for arg in condition.args] if condition.op in ("and", "or", "not") else []
    if condition.op == "not":
        return None if parts[0] is None else not parts[0]
    if condition.op == "and":
        return False if False in parts else None if None in parts else True
    if condition.op == "or":
        return True if True in parts else None if None in parts else False
    return None


def _reads(affine: Affine, op: Generic, node: Gather) -> tuple[Linear, ...] | None:
    indices = []
    for scalar, size in zip(node.indices, op.inputs[node.operand].type.shape, strict=True):
        linear = affine.linear(scalar)
        ends = affine.span(linear) if linear is not None else None
        if linear is None or ends is None or dims.bounds(ends[0])[0] < 0:
            return None
        if dims.bounds(dims.add(size, -1, dims.mul(ends[1], -1)))[0] < 0:
            return None
        indices.append(linear)
    return tuple(indices)


def is_join(op: Op | None) -> bool:
    """Whether ``op`` is a map that only chooses by its indices which element to copy, as a concat does."""
    if not isinstance(op, Generic) or op.combiner is not None:
        return False
    nodes = list(walk(op.body))
    if not any(isinstance(n, Index) for n in nodes) or any(isinstance(n, (Cast, Bitcast)) for n in nodes):
        return False
    chooses = any(isinstance(n, Apply) and n.op == "select" and n.dtype == op.body.dtype for n in nodes)
    return chooses and all(
        not isinstance(n, Apply) or n.op == "select" or n.args[0].dtype.is_int for n in nodes
    )
