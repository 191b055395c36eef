"""Read through concatenations: a reader that only needs one part of a concatenation reads that part directly.

Before: ``%c[d0, d1] = select(d1 < 8, %x{d0, d1}, %y{d0, d1 - 8});  %z[d0] = %c[d0, 9]``

After: ``%z[d0] = %y[d0, 1]``
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard.analysis.affine import Affine
from mansard.analysis.operands import with_reads
from mansard.analysis.specialise import is_join, specialise
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Arg
from mansard.ir.types import Value


def read_through_joins(graph: Graph) -> Graph:
    """Redirect reads of concatenations to the part that they are confined to; the same graph if there are
    none."""
    producers = graph.producers()
    ops = [_through(op, producers) if isinstance(op, Generic) else op for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _through(op: Generic, producers: Mapping[Value, Op]) -> Generic:
    inputs, maps = list(op.inputs), list(op.maps)
    for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
        join = producers.get(value)
        if (
            index_map is None
            or index_map.fill is not None
            or not isinstance(join, Generic)
            or not is_join(join)
        ):
            continue
        affine = Affine(op.extents)
        spans = {d: affine.span(place) for d, place in enumerate(index_map.results)}
        part = specialise(join, {d: ends for d, ends in spans.items() if ends is not None})
        if isinstance(part.body, Arg):
            read = part.maps[part.body.index]
            if read is not None and read.fill is None:
                inputs[i], maps[i] = part.inputs[part.body.index], read.compose(index_map.results)
    if inputs == list(op.inputs):
        return op
    return with_reads(op, inputs, maps, op.body)
