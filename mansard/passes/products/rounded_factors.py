"""Round what small integers are multiplied with, in products as `mansard.ir.quantised_weight` has them.

Before (integers of a file, or chosen out of a stack)::

    %y[d0, d1] = sum(d2, d3) f32(%x[d0, 32*d2 + d3]) *
                   (f32(%w.codes[d1, 32*d2 + d3]) * f32(%w.scales[d1, d2]))

After, with a scale for each row and group of x (`mansard.passes.products.activations`)::

    %y[d0, d1] = sum(d2, d3) (f32(%x.codes[d0, 32*d2 + d3]) * %x.scales[d0, d2]) *
                   (f32(%w.codes[d1, 32*d2 + d3]) * f32(%w.scales[d1, d2]))
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from mansard.analysis.operands import with_reads
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.quantised_weight import CODES
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value
from mansard.passes.products.activations import Activations
from mansard.passes.products.chosen_weights import summand

F32 = DType.F32
FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True)
class _Factor:
    """The operand ``at`` of a product, whose last axis is walked by the reduced dims ``groups``, each with
    its steps in groups, and by one along the elements of a group."""

    at: int
    node: Scalar
    """What reads it, in f32."""
    groups: tuple[tuple[int, int], ...]
    group: int


def round_factors(graph: Graph, activations: Activations) -> Graph:
    """Round x in all products of a graph with constants of small integers, as ``activations`` says; of chosen
    matrices where that sets no limit to rows: such limits are for GPUs, which multiply these with floats."""
    activations.taken |= {v.name for v in graph.values()}
    ops: list[Op] = []
    for op in graph.ops:
        stacks = isinstance(op, Generic) and any(isinstance(node, Gather) for node in walk(op.body))
        limited = stacks and activations.most_rows is not None
        rounded = None if limited else rounded_product(op, graph.constants, activations)
        ops.extend(rounded or [op])
    return graph if len(ops) == len(graph.ops) else graph.with_ops(ops)


def rounded_product(op: Op, constants: Container[Value], activations: Activations) -> list[Op] | None:
    """A product with ``constants`` that are codes, with its other factor rounded, behind the ops that round
    it; None for other ops, and where the factor stays as it is."""
    factor = _factor(op, constants) if isinstance(op, Generic) else None
    if factor is None or not isinstance(op, Generic):
        return None
    x, read = op.inputs[factor.at], op.maps[factor.at]
    made = activations.codes_of(x, factor.group)
    if made is None or read is None:
        return None
    ops, codes, scales = made
    first = len(op.inputs)
    number = Linear(tuple(factor.groups))
    rounded = Apply("mul", (Cast(Arg(first, codes.type.dtype), F32), Arg(first + 1, scales.type.dtype)), F32)
    body = rewrite(op.body, lambda node: rounded if node == factor.node else node)
    maps = [*op.maps, read, IndexMap((*read.results[:-1], number))]
    return [*ops, with_reads(op, [*op.inputs, codes, scales], maps, body)]


def _factor(op: Generic, constants: Container[Value]) -> _Factor | None:
    """The factor of codes in a sum of products."""
    body = summand(op)
    if op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul" or body.dtype is not F32:
        return None
    for node, weight in (body.args, body.args[::-1]):
        leaf = node.arg if isinstance(node, Cast) else node
        if isinstance(leaf, Arg) and leaf.dtype in FLOATS and _reads_codes(op, weight, constants):
            factor = _along(op, leaf.index, node)
            alone = op.inputs.count(op.inputs[leaf.index]) == 1 and op.inputs[leaf.index] not in constants
            return factor if alone else None
    return None


def _reads_codes(op: Generic, weight: Scalar, constants: Container[Value]) -> bool:
    operands = [n.operand for n in walk(weight) if isinstance(n, Gather)]
    operands += [n.index for n in walk(weight) if isinstance(n, Arg)]
    return any(op.inputs[i] in constants and op.inputs[i].type.dtype in CODES for i in operands)


def _along(op: Generic, at: int, node: Scalar) -> _Factor | None:
    """How an operand's last axis is walked: by reduced dims that count its elements, group by group."""
    index_map, depth = op.maps[at], op.inputs[at].type.shape[-1]
    if index_map is None or index_map.fill is not None or index_map.results[-1].offset != 0:
        return None
    *lead, last = index_map.results
    steps = sorted((step, d) for d, step in last.terms if isinstance(step, int))
    if not steps or len(steps) < len(last.terms) or any(d < op.rank for _, d in steps):
        return None
    size = 1
    for step, d in steps:
        extent = op.extents[d]
        if step != size or not isinstance(extent, int):
            return None
        size *= extent
    walked = {d for _, d in steps}
    if size != depth or any(d in walked for result in lead for d, _ in result.terms):
        return None
    group = op.extents[steps[0][1]]
    assert isinstance(group, int)
    return _Factor(at, node, tuple(sorted((d, step // group) for step, d in steps[1:])), group)
