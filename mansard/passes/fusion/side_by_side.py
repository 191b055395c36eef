"""Small dispatches that do not depend on each other become one, with workgroups for each.

Before (between the product of queries, keys and values, and the attention)::

    rows(norm and rotate queries)   rows(norm and rotate keys, into the cache)   map(values into the cache)

After: one dispatch with three `Dispatch.parts`. On a GPU a launch takes longer than any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mansard import dims
from mansard.ir.dispatch import Dispatch, DispatchGraph, is_contraction
from mansard.ir.ops import Generic, Op
from mansard.ir.types import Value
from mansard.passes.fusion.groups import MAX_BINDINGS

MAX_ELEMENTS = 1 << 17
"""The most elements that the ops of one part compute, at the largest sizes: with more, a launch is a small
part of its time."""


def put_side_by_side(
    graph: DispatchGraph, accepts: Callable[[Dispatch], bool], max_bindings: int = MAX_BINDINGS
) -> DispatchGraph:
    """Merge dispatches that ``accepts`` takes, each with the last before it that none between depends on."""
    merger = _Merger(graph, accepts, max_bindings)
    for dispatch in graph.dispatches:
        merger.add(dispatch)
    if len(merger.order) == len(graph.dispatches):
        return graph
    return replace(graph, dispatches=tuple(merger.order))


class _Merger:
    def __init__(self, graph: DispatchGraph, accepts: Callable[[Dispatch], bool], max_bindings: int) -> None:
        self.graph, self.accepts, self.max_bindings = graph, accepts, max_bindings
        self.order: list[Dispatch] = []
        self.regions = {op for p in graph.partitions.values() for region in p.regions for op in region.ops}

    def add(self, dispatch: Dispatch) -> None:
        """Append a dispatch, merged with an earlier one where that is possible."""
        if self._is_small(dispatch):
            for number in range(len(self.order) - 1, -1, -1):
                other = self.order[number]
                between = self.order[number + 1 :]
                if not self._independent(other, dispatch):
                    break
                if self._is_small(other) and all(self._independent(other, d) for d in between):
                    merged = self._merged(other, dispatch)
                    if merged is not None:
                        # What is between reads nothing of the earlier one, which so may run later.
                        self.order[number:] = [*between, merged]
                        return
        self.order.append(dispatch)

    def _is_small(self, dispatch: Dispatch) -> bool:
        if not (dispatch.is_nest or dispatch.parts) or dispatch.is_region or self.regions & {*dispatch.ops}:
            return False
        return not any(is_contraction(op) for op in dispatch.ops) and all(map(_small, dispatch.ops))

    def _independent(self, earlier: Dispatch, later: Dispatch) -> bool:
        """Whether two dispatches may run in any order: neither writes what the other reads or writes."""
        written: set[Value] = {*earlier.outputs, *earlier.in_place}
        other: set[Value] = {*later.outputs, *later.in_place}
        return not written & {*self._read(later), *other} and not other & self._read(earlier)

    def _read(self, dispatch: Dispatch) -> set[Value]:
        """The values that a dispatch reads, and the parts of those that are written in parts."""
        return {*dispatch.inputs, *(part for v in dispatch.inputs for part in self.graph.sources(v))}

    def _merged(self, a: Dispatch, b: Dispatch) -> Dispatch | None:
        parts = (*(a.parts or (a,)), *(b.parts or (b,)))
        inputs = tuple(dict.fromkeys((*a.inputs, *b.inputs)))
        outputs = (*a.outputs, *b.outputs)
        if len({*inputs, *outputs}) > self.max_bindings:
            return None
        ops = tuple(dict.fromkeys(op for part in parts for op in part.ops))
        in_place, constants = a.in_place | b.in_place, a.constants | b.constants
        name = a.name if a.parts else f"{a.name}.parts"
        merged = Dispatch(name, ops, inputs, outputs, (), in_place=in_place, constants=constants, parts=parts)
        return merged if self.accepts(merged) else None


def _small(op: Op) -> bool:
    extents: Sequence[dims.DimLike] = op.extents if isinstance(op, Generic) else ()
    return dims.bounds(dims.product(extents))[1] <= MAX_ELEMENTS
