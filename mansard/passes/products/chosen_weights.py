"""Quantised weights that are stacks of matrices of which indices choose some, and the products with them.

As `mansard.passes.products.weight_only` has them, over groups::

    %y[d0, d1] = sum(d2, d3) %x[d0, 32*d2 + d3] *
                   (f32(%w.codes{%e[d0], d1, 32*d2 + d3}) * f32(%w.scales{%e[d0], d1, d2}))

With x rounded to bytes, ``f32(%x.codes[d0, 32*d2 + d3]) * %x.scales[d0, d2]`` is in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.analysis.operands import with_reads
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.float12 import Float12Weight
from mansard.ir.ops import Generic, Op
from mansard.ir.quantised_weight import QuantisedWeight
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value
from mansard.passes.layout.split_loops import split_op
from mansard.passes.products.activations import Activations

F32 = DType.F32
FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})
Stored = QuantisedWeight | Float12Weight


@dataclass(frozen=True)
class ChosenFactor:
    """What a sum multiplies with rows of chosen matrices: ``x``, read by ``index_map`` with ``k`` last, the
    dim along these rows, which have ``depth`` elements in groups of ``group``."""

    x: Value
    index_map: IndexMap
    k: int
    depth: int
    group: int


def chooses_matrices(op: Op, value: Value) -> bool:
    """Whether an op is a sum of products with rows of matrices that indices choose out of a stack."""
    if not isinstance(op, Generic) or op.combiner != "add" or not isinstance(op.body, Apply):
        return False
    if op.body.op != "mul" or any(
        v is value and m is not None for v, m in zip(op.inputs, op.maps, strict=True)
    ):
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


def chosen_factor(op: Generic, stored: Mapping[Value, Stored]) -> ChosenFactor | None:
    """The factor of a sum ``x * matrix`` over chosen matrices of ``stored`` weights; None for other ops."""
    body = op.body
    if op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul" or body.dtype is not F32:
        return None
    leaves = [a.arg if isinstance(a, Cast) and a.dtype is F32 else a for a in body.args]
    x = next((a for a in leaves if isinstance(a, Arg) and a.dtype in FLOATS), None)
    matrix = next((a for a in leaves if isinstance(a, Gather)), None)
    if x is None or matrix is None or not isinstance(matrix.indices[-1], Index):
        return None
    weight, k, value = stored.get(op.inputs[matrix.operand]), matrix.indices[-1].dim, op.inputs[x.index]
    index_map, depth = op.maps[x.index], value.type.shape[-1]
    if not isinstance(weight, QuantisedWeight) or index_map is None or index_map.fill is not None:
        return None
    along = [result for result in index_map.results if any(d == k for d, _ in result.terms)]
    if along != [Linear.dim(k)] or index_map.results[-1] != along[0] or op.inputs.count(value) > 1:
        return None
    if not isinstance(depth, int) or not depth == op.extents[k] == weight.codes.type.shape[-1]:
        return None
    return ChosenFactor(value, index_map, k, depth, weight.scales[0].size)


def with_rounded(product: Generic, factor: ChosenFactor, activations: Activations) -> list[Op]:
    """A product that reads codes, with its ``factor`` rounded as ``activations`` says; and before it the ops
    that round."""
    x, group = factor.x, factor.group
    ops, operands, value = activations.operands(x, factor.index_map, factor.k, factor.depth, group)
    at = product.inputs.index(x)
    read = product.maps[at]
    if len(operands) < 2 or read is None:
        return [product]
    (codes, _, _), (scales, _, _) = operands
    *lead, element = read.results
    number = next(
        (Linear.dim(d) for d, c in element.terms if len(element.terms) > 1 and c == group), Linear()
    )
    first = len(product.inputs)
    numbered: Mapping[Scalar, Scalar] = {
        Arg(i, v.type.dtype): Arg(first + i, v.type.dtype) for i, v in enumerate((codes, scales))
    }
    rounded = rewrite(value, lambda node: numbered.get(node, node) if isinstance(node, Arg) else node)
    whole: Scalar = Arg(at, x.type.dtype)
    whole = whole if x.type.dtype is F32 else Cast(whole, F32)
    body = rewrite(product.body, lambda node: rounded if node == whole else node)
    maps = [*product.maps, read, IndexMap((*lead, number))]
    return [*ops, with_reads(product, [*product.inputs, codes, scales], maps, body)]
