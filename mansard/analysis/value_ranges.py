"""Ranges of the integers that values of a Graph hold: of indices, for the most part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.linear import I64, Range, dim_scalar, type_range
from mansard.dims import DimLike
from mansard.ir.combiners import ARG_COMBINERS
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op, Reshape, Sort
from mansard.ir.scalar import Arg, Gather, Scalar
from mansard.ir.types import Constant, Value

READ_BYTES = 1 << 20
"""Constants up to this size are read for their range."""


class ValueRanges:
    """Inclusive bounds of the elements of integer values, found by going back to what computes them."""

    def __init__(self, graph: Graph) -> None:
        self._producers = graph.producers()
        self._constants: Mapping[Value, Constant] = graph.constants
        self._ranges: dict[Value, Range] = {}

    def of(self, value: Value) -> Range:
        """The bounds of an integer or bool value; those of its type where nothing else is known."""
        stack = [value]
        while stack:
            current = stack[-1]
            producer = self._producers.get(current)
            missing = [v for v in _sources(producer) if v not in self._ranges]
            if current in self._ranges or not missing:
                stack.pop()
                self._ranges.setdefault(current, self._range(current, producer))
            else:
                stack += missing
        return self._ranges[value]

    def within(self, value: Value, low: DimLike, high: DimLike) -> bool:
        """Whether every element is surely in ``low … high - 1``, for all sizes of symbolic dims."""
        smallest, largest = self.of(value)
        if smallest >= dims.bounds(low)[1] and largest < dims.bounds(high)[0]:
            return True
        producer = self._producers.get(value)
        while isinstance(producer, Reshape):
            producer = self._producers.get(producer.inputs[0])
        if isinstance(producer, Sort):
            extent = producer.inputs[0].type.shape[producer.axis]
            return dims.bounds(low)[1] <= 0 and extent == high
        if not isinstance(producer, Generic):
            return False
        if producer.combiner in ARG_COMBINERS:
            return dims.bounds(low)[1] <= 0 and producer.extents[-1] == high
        if producer.combiner is not None:
            return False
        body = self._body(producer)
        above = body.compare("ge", producer.body, dim_scalar(low))
        return bool(above and body.compare("lt", producer.body, dim_scalar(high)))

    def reasoning(self, op: Generic) -> Affine:
        """Integer reasoning in the body of an op that knows the ranges of its operands."""
        for value in _integers(op):
            self.of(value)
        return self._body(op)

    def _body(self, op: Generic) -> Affine:
        return _BodyRanges(op, [self._ranges.get(v) for v in op.inputs])

    def _range(self, value: Value, producer: Op | None) -> Range:
        unknown = type_range(value.type.dtype)
        if value in self._constants:
            return self._constant_range(value) or unknown
        match producer:
            case Reshape():
                return self._ranges[producer.inputs[0]]
            case Sort():
                is_order = value.type.dtype is I64 and value is producer.outputs[1]
                last = dims.bounds(producer.inputs[0].type.shape[producer.axis])[1] - 1
                return (0, max(0, last)) if is_order else unknown
            case Generic() if producer.combiner in ARG_COMBINERS:
                return 0, max(0, dims.bounds(producer.extents[-1])[1] - 1)
            case Generic() if producer.combiner is None:
                return self._body(producer).range(producer.body)
            case _:
                return unknown

    def _constant_range(self, value: Value) -> Range | None:
        size = value.type.bytes
        if not isinstance(size, int) or not 0 < size <= READ_BYTES:
            return None
        array = load(value, self._constants[value])
        return int(array.min()), int(array.max())


def _sources(producer: Op | None) -> Sequence[Value]:
    """The operands whose ranges the range of a result follows from."""
    if isinstance(producer, Reshape) or (isinstance(producer, Generic) and producer.combiner is None):
        return _integers(producer)
    return ()


def _integers(op: Op) -> list[Value]:
    return [v for v in op.inputs if not v.type.dtype.is_float]


class _BodyRanges(Affine):
    """Ranges in a body, with those of its operands."""

    def __init__(self, op: Generic, operands: Sequence[Range | None]) -> None:
        super().__init__(op.extents)
        self._op, self._operands = op, operands

    def _range_rule(self, node: Scalar) -> Range | None:
        if isinstance(node, Arg):
            known, index_map = self._operands[node.index], self._op.maps[node.index]
            fill = None if index_map is None else index_map.fill
            if known is None or fill is None:
                return known
            return min(known[0], int(fill)), max(known[1], int(fill))
        if isinstance(node, Gather):
            return self._operands[node.operand]
        return super()._range_rule(node)
