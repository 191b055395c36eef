"""Split loops so that a transpose before a merging reshape can be composed into its reader.

Before (batched product over merged batch and heads)::

    %t: 2x4x6x8xf32 = generic (d0:2, d1:4, d2:6, d3:8) {%x[d0, d2, d1, d3]}
    %r: 8x6x8xf32 = reshape %t
    %y: 8x6x6xf32 = generic (d0:8, d1:6, d2:6 | d3:8) add {%r[d0, d1, d3] * %k[d0, d2, d3]}

After (`read_through_copies` then removes ``%t``)::

    %y_1: 2x4x6x6xf32 = generic (d0:2, d1:4, d2:6, d3:6 | d4:8) add
              {%r[4*d0 + d1, d2, d4] * %k[4*d0 + d1, d3, d4]}
    %y: 8x6x6xf32 = reshape %y_1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mansard import dims
from mansard.analysis.linear import over_loops
from mansard.analysis.loops import refine
from mansard.analysis.operands import is_copy
from mansard.dims import DimLike
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.copies import source_of

Splits = dict[int, tuple[DimLike, ...]]
"""For each loop to split, its new extents."""


def split_consumers(graph: Graph) -> Graph:
    """Split the loops of Generics that read a copy through a merging reshape.

    Returns the same graph when none does.
    """
    producers: dict[Value, Op] = {}
    taken = {v.name for v in graph.values()}
    ops: list[Op] = []
    changed = False
    for op in graph.ops:
        new: list[Op]
        splits = _splits(op, producers) if isinstance(op, Generic) else {}
        if isinstance(op, Generic) and splits:
            new = split_op(op, splits, taken)
            changed = True
        else:
            new = [op]
        ops.extend(new)
        producers.update({v: o for o in new for v in o.outputs})
    return graph.with_ops(ops) if changed else graph


def groups(fine: Sequence[DimLike], shape: Sequence[DimLike]) -> list[list[int]] | None:
    """The adjacent dims of ``fine`` whose product is each dim of ``shape``; None if there are none."""
    result: list[list[int]] = []
    place = 0
    for extent in shape:
        group: list[int] = []
        while dims.product(fine[i] for i in group) != extent:
            if place == len(fine):
                return None
            group.append(place)
            place += 1
        result.append(group)
    return result if place == len(fine) else None


def _splits(op: Generic, producers: Mapping[Value, Op]) -> Splits:
    """For each loop to split, its new extents."""
    splits: Splits = {}
    for value, index_map in zip(op.inputs, op.maps, strict=True):
        reshape = producers.get(value)
        if index_map is None or not isinstance(reshape, Reshape):
            continue
        if not is_copy(producers.get(reshape.inputs[0])) or source_of(value, index_map, producers, op):
            continue
        wanted = _required_splits(op, value, index_map, reshape.inputs[0].type.shape)
        if any(splits.get(d, parts) != parts for d, parts in wanted.items()):
            continue
        splits.update(wanted)
    if op.combiner in ("argmin", "argmax"):
        splits.pop(len(op.extents) - 1, None)  # its value is an index of this loop
    return splits


def _required_splits(op: Generic, value: Value, index_map: IndexMap, source: Sequence[DimLike]) -> Splits:
    """The splits that let ``op`` read ``value`` in the dims of ``source``; none if that is impossible."""
    fine = tuple(d for d in source if not dims.is_one(d))
    if 0 in fine or refine(fine, value.type.shape) != fine:
        return {}
    parts = groups(fine, value.type.shape)
    wanted: Splits = {}
    for result, extent, group in zip(
        index_map.results, value.type.shape, parts or (), strict=parts is not None
    ):
        if len(group) < 2:
            continue
        loop = result.single
        if loop is None or op.extents[loop] != extent:
            return {}
        wanted[loop] = tuple(fine[i] for i in group)
    return wanted


def split_op(op: Generic, splits: Splits, taken: set[str]) -> list[Op]:
    """``op`` over its split loops, and a reshape back when the result's shape changed."""
    extents: list[DimLike] = []
    loops: list[Linear] = []  # each old loop as a function of the new ones
    rank = 0
    for loop, extent in enumerate(op.extents):
        index = Linear()
        step: DimLike = 1
        parts = splits.get(loop, (extent,))
        for i in reversed(range(len(parts))):
            index = index.plus(Linear.dim(len(extents) + i, step))
            step = dims.mul(step, parts[i])
        extents.extend(parts)
        loops.append(index)
        rank += len(parts) if loop < op.rank else 0

    shape = tuple(extents[:rank])
    result = op.output
    if shape != result.type.shape:
        result = Value(fresh_name(taken, result.name), TensorType(shape, result.type.dtype))
    new = replace(
        op,
        outputs=(result,),
        extents=tuple(extents),
        maps=tuple(m.compose(loops) if m is not None else None for m in op.maps),
        body=over_loops(op.body, loops),
    )
    if result is op.output:
        return [new]
    return [new, Reshape((result,), op.outputs, location=op.location)]
