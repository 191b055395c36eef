"""The partial result of an invocation in a reduction: plain values, or extremes with their indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Root
from mansard.codegen.math import neutral
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame
from mansard.dtypes import DType

Combine = Callable[[str, KValue], KValue]
"""Combines a scalar (or vector, lane by lane) of all invocations that share a row."""


class Fold:
    """A reduction with its state in ``lanes`` lanes of registers."""

    def __init__(self, frame: Frame, root: Root, lanes: int) -> None:
        self.frame, self.root, self.lanes = frame, root, lanes
        self.b = frame.b
        self.dtype = register_dtype(root.op.body.dtype)
        assert root.op.combiner is not None
        self.is_arg = root.op.combiner in reduce.ARG
        self.combiner = {"argmax": "max", "argmin": "min"}.get(root.op.combiner, root.op.combiner)

    def start(self, first: KValue) -> list[KValue]:
        """The initial state; ``first`` is the index of the first element of this invocation."""
        b = self.b
        best = b.const(neutral(self.combiner, self.dtype), self.dtype, self.lanes)
        return [best, b.splat(first, self.lanes)] if self.is_arg else [best]

    def step(self, state: Sequence[KValue], place: KValue, inside: KValue | None = None) -> list[KValue]:
        """The state after the element at the bound loops, whose index is higher than the previous ones. Where
        ``inside`` is false, nothing changes.
        """
        b, ev = self.b, self.frame.ev
        if not self.is_arg:
            after = [reduce.combine(ev, self.root, state[0])]
        else:
            best, at = state
            value = b.splat(ev.root(self.root), self.lanes)
            better = b.compare("gt" if self.combiner == "max" else "lt", value, best)
            if self.dtype.is_float:
                fresh = b.binary("and", b.compare("ne", value, value), b.compare("eq", best, best))
                better = b.binary("or", better, fresh)
            after = [b.select(better, value, best), b.select(better, b.splat(place, self.lanes), at)]
        if inside is None:
            return after
        keep = b.splat(inside, self.lanes)
        return [b.select(keep, new, old) for new, old in zip(after, state, strict=True)]

    def lanes_joined(self, state: Sequence[KValue]) -> list[KValue]:
        """Combine the lanes of consecutive elements; for extremes, with the first index in the vector."""
        if self.lanes == 1:
            return list(state)
        b = self.b
        best = b.reduce(self.combiner, state[0])
        if not self.is_arg:
            return [best]
        places = b.add(state[1], b.iota(self.lanes))
        return [best, b.reduce("min", self._candidates(state[0], places, b.splat(best, self.lanes)))]

    def result(self, state: Sequence[KValue], combine: Combine) -> KValue:
        """The whole row's result, combined over invocations; i64 indices for argmin and argmax."""
        best = combine(self.combiner, state[0])
        if not self.is_arg:
            return best
        place = combine("min", self._candidates(state[0], state[1], best))
        return self.b.cast(place, DType.I64)

    def _candidates(self, best: KValue, places: KValue, top: KValue) -> KValue:
        """The indices of elements equal to the extreme (NaN equals NaN), and a high one for the others."""
        b = self.b
        same = b.compare("eq", best, top)
        if self.dtype.is_float:
            both = b.binary("and", b.compare("ne", best, best), b.compare("ne", top, top))
            same = b.binary("or", same, both)
        last = 2**31 - 1 if places.type.dtype is DType.I32 else 2**62
        late = b.const(last, places.type.dtype, places.type.lanes)
        return b.select(same, places, late)
