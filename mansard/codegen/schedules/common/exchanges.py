"""What persistent kernels need to know of a dispatch: what it may pass on to others
(`mansard.hal.exchanges`), and which of its operands are tables."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.hal.exchanges import DTYPES, MAX_BYTES, MAX_VECTOR, Exchange
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic, Scatter
from mansard.ir.types import Value


def lookups_of(dispatch: Dispatch, buffers: Sequence[Value]) -> frozenset[int]:
    """The bindings that only maps read, at computed places: rows of a table, by their numbers."""
    tables, others = set[Value](), set[Value]()
    for op in dispatch.ops:
        for number, value in enumerate(op.inputs):
            looked_up = isinstance(op, Generic) and op.combiner is None and op.maps[number] is None
            (tables if looked_up else others).add(value)
    return frozenset(n for n, value in enumerate(buffers) if value in tables - others)


def exchange_of(dispatch: Dispatch, buffers: Sequence[Value]) -> Exchange:
    """The exchange of a kernel with these buffers for its bindings: floats that it reads, or of which it
    writes every element; no constants, and no states that it changes."""
    partial = {value for op in dispatch.ops if isinstance(op, Scatter) for value in op.outputs}
    excluded = {*partial, *dispatch.packable, *dispatch.constants, *dispatch.in_place}
    outputs = set(dispatch.outputs)
    largest = MAX_VECTOR if any(is_contraction(op) for op in dispatch.ops) else MAX_BYTES

    def fits(value: Value) -> bool:
        size = value.type.bytes
        most = MAX_BYTES if value in outputs else largest
        return value.type.dtype in DTYPES and isinstance(size, int) and size <= most

    return Exchange(
        frozenset(n for n, value in enumerate(buffers) if value not in excluded and fits(value)),
        frozenset(n for n, value in enumerate(buffers) if value in outputs and value not in partial),
    )
