"""Forms of graphs with 16-bit values that toolchains ask for: one width within an op, values without a sign.

::

    %y: i16 = Conv %x: u8, %w: i8      reads Recode(%x): i16, the same real numbers
    %y: u8 = Conv %x: i16, %w: i8      is Recode of an i16 result
"""

from __future__ import annotations

from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.combiners import neutral
from mansard.ir.types import TensorType, Value
from mansard.regions.named.graph import Encoding, NamedGraph
from mansard.regions.named.ops import NamedOp, Recode

_SHIFT, _LARGEST = 1 << 15, (1 << 15) - 1
_BYTES = (DType.I8, DType.U8)


def with_one_width(graph: NamedGraph) -> NamedGraph:
    """The graph in which no op has encoded values of 8 and of 16 bits, but for its constants and `Recode`.

    8-bit operands become i16 with the same numbers. 8-bit results are first i16 ones over the same range,
    which changes those that lie half-way between two integers.
    """
    encodings, wide, ops = dict(graph.encodings), dict[Value, Value](), list[NamedOp]()
    for op in graph.ops:
        encoded = [v for v in (*op.inputs, op.output) if v in encodings and v not in graph.constants]
        if isinstance(op, Recode) or not {v.type.dtype for v in encoded} & {DType.I16, DType.U16}:
            ops.append(op)
            continue
        narrow = [v for v in encoded if v.type.dtype in _BYTES]
        for value in narrow:
            if value is not op.output and value not in wide:
                scale = encodings[value].scale
                wide[value] = _value(value, DType.I16, Encoding((scale,)), encodings)
                ops.append(Recode((value,), wide[value], sources=op.sources))
        inputs = tuple(wide.get(v, v) if v in narrow else v for v in op.inputs)
        if op.output not in narrow:
            ops.append(replace(op, inputs=inputs))
            continue
        scale = _largest(op.output, encodings[op.output]) / _LARGEST
        result = _value(op.output, DType.I16, Encoding((scale,)), encodings)
        ops += [replace(op, inputs=inputs, output=result), Recode((result,), op.output, sources=op.sources)]
    return replace(graph, ops=tuple(ops), encodings=encodings)


def with_unsigned_values(graph: NamedGraph) -> NamedGraph:
    """The graph with every computed i16 value that has an encoding as u16: the same real numbers, of integers
    that are 32768 larger. Inputs and outputs keep their type, and have a `Recode` beside them."""
    encodings, unsigned, ops = dict(graph.encodings), dict[Value, Value](), list[NamedOp]()

    def other(value: Value) -> Value:
        """The u16 value of an i16 one, or the value itself."""
        if value.type.dtype is not DType.I16 or value not in graph.encodings or value in graph.constants:
            return value
        if value not in unsigned:
            before = graph.encodings[value]
            shifted = replace(before, zero=before.zero + _SHIFT)
            unsigned[value] = _value(value, DType.U16, shifted, encodings)
        return unsigned[value]

    ops += [Recode((value,), other(value)) for value in graph.inputs if other(value) is not value]
    for op in graph.ops:
        result = other(op.output)
        ops.append(replace(op, inputs=tuple(map(other, op.inputs)), output=result))
        if result is not op.output and op.output in graph.outputs:
            ops.append(Recode((result,), op.output, sources=op.sources))
    return replace(graph, ops=tuple(ops), encodings=encodings)


def _value(value: Value, dtype: DType, encoding: Encoding, encodings: dict[Value, Encoding]) -> Value:
    """A value in another type and encoding."""
    new = Value(f"{value.name}.{dtype.value}", TensorType(value.type.shape, dtype))
    encodings[new] = encoding
    return new


def _largest(value: Value, encoding: Encoding) -> float:
    """The largest number that the integers of a value stand for, without its sign."""
    ends = (float(neutral(kind, value.type.dtype)) for kind in ("max", "min"))
    return max(abs(end - encoding.zero) for end in ends) * encoding.scale
