"""States of a call whose assertion fails keep their contents.

Before::

    %after: 4x8xf32 = generic (d0:4, d1:8) {%total[d0, d1] + %x[d0, d1]}
    assert %ok 'must be positive'
    state %total := %after

After::

    %kept: 4x8xf32 = generic (d0:4, d1:8) {select(%ok[], %after[d0, d1], %total[d0, d1])}
    state %total := %kept

The host reads ``%ok`` when the call has ended, too late to keep its devices from the update. Inputs that the
host checks before a call need no guard, and indices get none: that would cost caches their update in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.graph import Graph, State, fresh_name
from mansard.ir.ops import Assert, Generic
from mansard.ir.scalar import Apply, Arg, Scalar
from mansard.ir.types import IndexMap, TensorType, Value

_CONDITIONS_AT_ONCE = 8
"""Conditions that one op combines."""


def guarded_asserts(graph: Graph) -> Iterator[Assert]:
    """The asserts that states are guarded by: those of conditions that devices compute."""
    for op in graph.ops:
        if isinstance(op, Assert) and op.limits is None and op.inputs[0] not in graph.inputs:
            yield op


def guard_states(graph: Graph) -> Graph:
    """Let states that a call updates depend on its asserts; the same graph without either."""
    conditions = list(dict.fromkeys(op.inputs[0] for op in guarded_asserts(graph)))
    updated = [state for state in graph.states if state.after is not state.before]
    if not conditions or not updated:
        return graph
    writer = _Writer({v.name for v in graph.values()})
    holds = writer.all_true(conditions)
    guarded = {state.before: writer.kept(state, holds) for state in updated}
    states = tuple(replace(s, after=guarded.get(s.before, s.after)) for s in graph.states)
    return replace(graph, ops=(*graph.ops, *writer.ops), states=states)


class _Writer:
    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.ops: list[Generic] = []

    def all_true(self, conditions: list[Value]) -> Value:
        """One bool: whether every element of every condition is true."""
        values = [self._reduced(condition) for condition in conditions]
        while len(values) > 1:
            values = [
                self._both(values[i : i + _CONDITIONS_AT_ONCE])
                for i in range(0, len(values), _CONDITIONS_AT_ONCE)
            ]
        return values[0]

    def kept(self, state: State, holds: Value) -> Value:
        """The new contents of a state where ``holds``, else the old ones."""
        kind = state.after.type
        identity = IndexMap.identity(kind.rank)
        condition = Arg(0, DType.BOOL)
        body = Apply("select", (condition, Arg(1, kind.dtype), Arg(2, kind.dtype)), kind.dtype)
        inputs = (holds, state.after, state.before)
        return self._append(inputs, (IndexMap(), identity, identity), kind, body)

    def _reduced(self, condition: Value) -> Value:
        if not condition.type.rank:
            return condition
        maps = (IndexMap.identity(condition.type.rank),)
        result = Value(fresh_name(self.taken, "holds"), TensorType((), DType.BOOL))
        extents = condition.type.shape
        self.ops.append(Generic((condition,), (result,), extents, maps, Arg(0, DType.BOOL), "and"))
        return result

    def _both(self, values: list[Value]) -> Value:
        body: Scalar = Arg(0, DType.BOOL)
        for number in range(1, len(values)):
            body = Apply("and", (body, Arg(number, DType.BOOL)), DType.BOOL)
        return self._append(tuple(values), (IndexMap(),) * len(values), TensorType((), DType.BOOL), body)

    def _append(
        self, inputs: tuple[Value, ...], maps: tuple[IndexMap, ...], kind: TensorType, body: Scalar
    ) -> Value:
        result = Value(fresh_name(self.taken, "kept" if kind.rank else "holds"), kind)
        self.ops.append(Generic(inputs, (result,), kind.shape, maps, body))
        return result
