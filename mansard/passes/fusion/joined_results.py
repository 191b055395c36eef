"""Results that are concatenated along the outermost dim are written where they stand in the concatenation.

Before (the steps of an unrolled loop, and their results as one tensor)::

    dispatch map_1(...) -> (%h1: 1x64xf32)
    dispatch map_2(...) -> (%h2: 1x64xf32)
    dispatch map_3(%h1, %h2) -> (%all: 2x64xf32)
      %all = generic (d0:2, d1:64) {select(d0 < 1, %h1[0, d1], %h2[0, d1])}

After, with ``%h1`` and ``%h2`` as parts of ``%all`` (`DispatchGraph.joins`)::

    dispatch map_1(...) -> (%h1: 1x64xf32)
    dispatch map_2(...) -> (%h2: 1x64xf32)
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from mansard.analysis.concatenation import outermost_parts
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.ops import Concat, Op, Reshape, Slice
from mansard.ir.types import Value


def write_joins(graph: DispatchGraph, alignment: int) -> DispatchGraph:
    """The dispatch graph without concatenations of which every part is the result of another dispatch, is
    nothing else's part, and begins at a multiple of ``alignment`` bytes; the same graph if there are none."""
    regions = {op for p in graph.partitions.values() for region in p.regions for op in region.ops}
    movable = {v for d in graph.dispatches if _is_movable(d, regions) for v in d.outputs}
    movable -= {graph.base(v) for v in graph.graph.live_outs()}
    movable -= {graph.base(a.inputs[0]) for a in graph.asserts}
    whole = {graph.base(state.after) for state in graph.graph.states}
    # The pieces of a partitioned dispatch are to be written by dispatches.
    whole |= {graph.base(v) for d in graph.dispatches if isinstance(d.ops[-1], Concat) for v in d.inputs}
    joins: dict[Value, tuple[tuple[Value, DimLike], ...]] = {}
    kept = []
    for dispatch in graph.dispatches:
        parts = None if whole & {*dispatch.outputs} or regions & {*dispatch.ops} else _parts(graph, dispatch)
        if parts is None or any(offset % alignment or value not in movable for value, offset in parts):
            kept.append(dispatch)
            continue
        joins[dispatch.outputs[0]] = tuple(parts)
        movable -= {dispatch.outputs[0], *(value for value, _ in parts)}
    if not joins:
        return graph
    return replace(graph, dispatches=tuple(kept), joins={**graph.joins, **joins})


def _is_movable(writer: Dispatch, regions: Set[Op]) -> bool:
    """Whether what a dispatch writes may be a part of another value: memory that it shares with none. The
    pieces of a partitioned dispatch share that of the whole."""
    is_view = isinstance(writer.ops[-1], (Slice, Concat))
    return not (writer.is_region or writer.in_place or is_view or regions & {*writer.ops})


def _parts(graph: DispatchGraph, dispatch: Dispatch) -> list[tuple[Value, int]] | None:
    """The values that a dispatch concatenates (`outermost_parts`), where it does nothing else."""
    op = dispatch.ops[-1]
    if dispatch.is_region or dispatch.parts or dispatch.outputs != op.outputs:
        return None
    if not all(isinstance(other, Reshape) for other in dispatch.ops[:-1]):
        return None
    found = outermost_parts(op)
    parts = {graph.base(value): offset for value, offset in found}
    return list(parts.items()) if 1 < len(parts) == len(found) else None
