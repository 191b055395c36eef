"""Quantised weights that are stacks of matrices of which indices choose some, and the products with them.

As `mansard.passes.products.weight_only` has them, over groups::

    %y[d0, d1] = sum(d2, d3) %x[d0, 32*d2 + d3] *
                   (f32(%w.codes{%e[d0], d1, 32*d2 + d3}) * f32(%w.scales{%e[d0], d1, d2}))
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard.dims import DimLike
from mansard.ir.float12 import Float12Weight
from mansard.ir.ops import Generic, Op
from mansard.ir.quantised_weight import QuantisedWeight
from mansard.ir.scalar import Apply, Gather, Index, Scalar, walk
from mansard.ir.types import Value
from mansard.passes.layout.split_loops import split_op

Stored = QuantisedWeight | Float12Weight


def summand(op: Generic) -> Scalar:
    """What an op adds up; where a condition chooses between that and zero, what it chooses if it holds."""
    body = op.body
    return body.args[1] if isinstance(body, Apply) and body.op == "select" else body


def chooses_matrices(op: Op, value: Value) -> bool:
    """Whether an op is a sum of products with rows of matrices that indices choose out of a stack, or of
    those products where a condition holds."""
    if not isinstance(op, Generic) or op.combiner != "add":
        return False
    body = summand(op)
    if not isinstance(body, Apply) or body.op != "mul":
        return False
    if any(v is value and m is not None for v, m in zip(op.inputs, op.maps, strict=True)):
        return False
    reads = [n for n in walk(op.body) if isinstance(n, Gather) and op.inputs[n.operand] is value]
    return all(
        all(isinstance(index, Index) for index in read.indices[-2:]) and read.indices[-1].dim in op.reduced  # type: ignore[union-attr]
        for read in reads
    )


def at_groups(op: Generic, stored: Mapping[Value, Stored]) -> Generic:
    """An op whose sum over the rows of a stack of matrices runs over groups and the elements of one, so that
    these share what is read for a group; the same op where the stacks have no groups, or it reads none."""
    splits: dict[int, tuple[DimLike, ...]] = {}
    for node in walk(op.body):
        if isinstance(node, Gather) and (value := op.inputs[node.operand]).type.rank > 2 and value in stored:
            weight, k = stored[value], node.indices[-1]
            assert isinstance(weight, QuantisedWeight) and isinstance(k, Index)
            depth, size = op.extents[k.dim], weight.scales[0].size
            if isinstance(depth, int) and depth > size and depth % size == 0:
                splits[k.dim] = (depth // size, size)
    if not splits:
        return op
    (divided,) = split_op(op, splits, set())  # of reduced loops, so that the result keeps its shape
    assert isinstance(divided, Generic)
    return divided
