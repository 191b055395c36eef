"""What a kernel may pass on to others within a persistent kernel (`mansard.hal.exchanges`)."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.hal.exchanges import DTYPES, MAX_BYTES, MAX_VECTOR, Exchange
from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Scatter
from mansard.ir.types import Value


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
