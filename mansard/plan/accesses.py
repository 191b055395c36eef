"""What the steps of a plan read and write. A step lists values; which of them it writes follows.

A dispatch writes the last value it lists, what it lists twice (a state changed in place), and values made
in a call that nothing wrote before. A value that devices make in parts is written by who writes its parts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from mansard.plan.plan import DispatchStep, Plan, TransferStep

_MADE = ("transient", "output")


@dataclass(frozen=True)
class Access:
    """Values that a step reads and those that it writes, each once, in the order in which it lists them. One
    changed in place is both. Of a value made in parts the parts are listed."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


class Accesses:
    """The accesses of a plan's steps."""

    def __init__(self, plan: Plan) -> None:
        self._kind = {value.id: value.kind for value in plan.values}
        self._parts: dict[int, list[int]] = {}
        for value in plan.values:
            if value.part_of is not None:
                self._parts.setdefault(value.part_of, []).append(value.id)

    def whole(self, values: Iterable[int]) -> tuple[int, ...]:
        """The values whose writers make these: their parts, or they themselves."""
        return tuple(dict.fromkeys(part for v in values for part in self._parts.get(v, (v,))))

    def of(self, step: DispatchStep, written: Container[int]) -> Access:
        """What a dispatch reads and writes, where those ``written`` are what steps before it wrote."""
        values = [binding.value for binding in step.bindings]
        twice = {v for v in values if values.count(v) > 1}

        def new(value: int) -> bool:
            return self._kind.get(value) in _MADE and value not in written and value not in self._parts

        writes = [v for v in values if v in twice or new(v)] + values[-1:]
        reads = [v for v in values if v in twice or v not in writes]
        return Access(self.whole(reads), tuple(dict.fromkeys(writes)))


def origins(plan: Plan) -> dict[int, int]:
    """The value that every value is, or is a copy of on another device."""
    copied = {
        step.target: step.source
        for device in plan.devices
        for segment in device.segments
        for step in segment.steps
        if isinstance(step, TransferStep)
    }
    origin_of = {}
    for value in plan.values:
        origin = value.id
        while origin in copied:
            origin = copied[origin]
        origin_of[value.id] = origin
    return origin_of
