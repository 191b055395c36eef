"""Asserts: those that always hold go, those that never do are errors, and large ones are reduced.

Before::

    %i: 4xi64 = generic (d0:4) {d0 + 1}
    %j: 64x512xi64 = generic (d0:64, d1:512) {%x[d0, d1] + 1}
    %k: 8xi64 = generic (d0:8) {i64(%small[d0])}
    assert %i limits [0, 5] 'embedding'
    assert %j limits [0, 100] 'gather'
    assert %k limits [0, 7] 'index_select'

After (``%small`` is an input, which the host reads before the call)::

    %least: i64 = generic (| d0:64, d1:512) min {%j[d0, d1]}
    %greatest: i64 = generic (| d0:64, d1:512) max {%j[d0, d1]}
    assert %least limits [0, 100] 'gather'
    assert %greatest limits [0, 100] 'gather'
    assert %small limits [0, 7] 'index_select'

Of many indices that a device computes, the host reads the smallest and the largest.
"""

from __future__ import annotations

from dataclasses import replace

from mansard import dims
from mansard.analysis.value_ranges import ValueRanges
from mansard.errors import CompileError, InputError
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Assert, Generic, Op, Reshape
from mansard.ir.scalar import Arg, Cast
from mansard.ir.types import IndexMap, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead

READ_ELEMENTS = 4096
"""Indices that a device computes are read by the host as they are up to this number, and reduced above it."""


def drop_index_asserts(graph: Graph) -> Graph:
    """The graph without the asserts of indices: they are clamped, and results of wrong ones undefined."""
    ops = [op for op in graph.ops if not (isinstance(op, Assert) and op.limits is not None)]
    return graph if len(ops) == len(graph.ops) else graph.with_ops(ops)


def settle_asserts(graph: Graph) -> Graph:
    """Settle every assert as far as it can be at compile time, and drop what only settled ones read.

    The same graph when there is nothing to do.

    Raises CompileError for an assert over constants that does not hold.
    """
    asserts = [op for op in graph.ops if isinstance(op, Assert)]
    settled = {op: ops for op, ops in _Settler(graph).run(asserts).items() if ops != (op,)}
    if not settled:
        return graph
    return eliminate_dead(graph.with_ops([new for op in graph.ops for new in settled.get(op, (op,))]))


class _Settler:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.ranges = ValueRanges(graph)
        self.taken = {v.name for v in graph.values()}

    def run(self, asserts: list[Assert]) -> dict[Op, tuple[Op, ...]]:
        """The ops that replace each assert."""
        known: set[tuple[object, ...]] = set()
        result: dict[Op, tuple[Op, ...]] = {}
        for op in asserts:
            source = self._source(op)
            key = (source, op.limits, op.message if op.limits is None else None)
            if key in known or self._always_holds(op, source):
                result[op] = ()
                continue
            known.add(key)
            result[op] = self._settled(op, source)
        return result

    def _source(self, op: Assert) -> Value:
        """The value whose elements are those of the operand: what reshapes and wider integers are made of."""
        (value,) = op.inputs
        while (producer := self.producers.get(value)) is not None:
            if not isinstance(producer, Reshape) and not _is_widening(producer):
                break
            value = producer.inputs[0]
        return value

    def _always_holds(self, op: Assert, source: Value) -> bool:
        if source in self.graph.constants and all(isinstance(d, int) for d in op.limits or ()):
            self._check(op, source)
            return True
        return op.limits is not None and self.ranges.within(source, *op.limits)

    def _check(self, op: Assert, source: Value) -> None:
        """Raise CompileError where an assert over a constant fails."""
        try:
            op.evaluate([load(source, self.graph.constants[source])], {})
        except InputError as error:
            raise CompileError(f"every call of the model would fail: {error}") from error

    def _settled(self, op: Assert, source: Value) -> tuple[Op, ...]:
        if op.limits is None or source in self.graph.inputs:
            return (op if op.inputs == (source,) else replace(op, inputs=(source,)),)
        fewest, most = dims.bounds(source.type.elements)
        if most <= READ_ELEMENTS or fewest == 0:  # nothing has no smallest element
            return (op,)
        least, greatest = self._extreme(op, source, "min"), self._extreme(op, source, "max")
        asserts = [replace(op, inputs=reduction.outputs) for reduction in (least, greatest)]
        return least, greatest, *asserts

    def _extreme(self, op: Assert, source: Value, combiner: str) -> Generic:
        name = fresh_name(self.taken, "least" if combiner == "min" else "greatest")
        result = Value(name, TensorType((), source.type.dtype))
        maps = (IndexMap.identity(source.type.rank),)
        body = Arg(0, source.type.dtype)
        return Generic((source,), (result,), source.type.shape, maps, body, combiner, location=op.location)


def _is_widening(op: Op) -> bool:
    """Whether an op converts integers to a type that holds them all, at their places."""
    if not isinstance(op, Generic) or op.combiner is not None or len(op.inputs) != 1:
        return False
    if not (isinstance(op.body, Cast) and isinstance(op.body.arg, Arg)):
        return False
    before, after = op.body.arg.dtype, op.body.dtype
    if not (before.is_int and after.is_int and before.bits < after.bits and after.is_signed):
        return False
    (index_map,) = op.maps
    return index_map == IndexMap.identity(len(op.extents)) and op.inputs[0].type.shape == op.extents
