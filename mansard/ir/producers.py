"""Which ops compute a value."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.ir.ops import Op, Reshape
from mansard.ir.types import Value


def base_of(value: Value, producers: Mapping[Value, Op]) -> Value:
    """The source of a chain of reshapes, which owns the buffer."""
    while isinstance(op := producers.get(value), Reshape):
        value = op.inputs[0]
    return value


def backward_slice(value: Value, producers: Mapping[Value, Op]) -> set[Op]:
    """The ops among ``producers`` that a value depends on, its own included."""
    ops: set[Op] = set()
    stack = [value]
    while stack:
        op = producers.get(stack.pop())
        if op is not None and op not in ops:
            ops.add(op)
            stack += op.inputs
    return ops


def is_view(op: Op, producers: Mapping[Value, Op]) -> bool:
    """Whether an op only reshapes what none of ``producers`` computes: an operand of a dispatch."""
    return isinstance(op, Reshape) and base_of(op.outputs[0], producers) not in producers
