"""Which values have one encoding, and which encoding that is.

Values that views, concatenations and maxima join hold the same integers, so they share an encoding. What a
graph says about it are zero points and scales where integers become real numbers or are made of them. Where
nothing says which scale a group has, it follows from those of other groups, or is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mansard.ir.types import Value
from mansard.regions.named.editor import Editor
from mansard.regions.named.graph import Encoding
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Gather,
    NamedOp,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Transpose,
)
from mansard.regions.quantised.roundings import NARROW, Numbers, Rounding

SAME = 1e-5
"""How far scales may differ that are meant to be equal: graphs hold them, and their inverses, in f32."""


@dataclass(eq=False)
class Group:
    """Values of one encoding."""

    values: list[Value] = field(default_factory=list)
    zero: int | None = None
    scale: float | None = None
    used: bool = False
    """Whether anything in the graph says that its integers stand for numbers."""

    def encoding(self) -> Encoding:
        """The encoding, once it is known."""
        return Encoding((1.0 if self.scale is None else self.scale,), self.zero or 0)


@dataclass(frozen=True)
class Ratio:
    """``product of scales = factor * scale of result``, or ``= factor`` without result."""

    operands: tuple[Group, ...]
    factor: float
    result: Group | None


def keeps_encoding(op: NamedOp) -> bool:
    """Whether an op only moves integers, or chooses among them."""
    if isinstance(op, Pool):
        return op.kind == "max"
    if isinstance(op, Reduce):
        return op.kind in ("min", "max")
    return isinstance(op, (Transpose, Reshape, Slice, Pad, Concat, Broadcast, Gather))


def moved_operands(op: NamedOp) -> tuple[Value, ...]:
    """The operands whose integers an op moves."""
    return op.inputs[:1] if isinstance(op, Gather) else op.inputs


class Groups:
    """The groups of all values of few bits that are not constants."""

    def __init__(self, e: Editor) -> None:
        self.of: dict[Value, Group] = {}
        for op in e.listed():
            for value in (*op.inputs, op.output):
                if value.type.dtype in NARROW and value not in e.constants:
                    self._group(value)
            if keeps_encoding(op) and op.output in self.of:
                for value in moved_operands(op):
                    if value in self.of:
                        self._join(value, op.output)

    def all(self) -> list[Group]:
        """Every group once."""
        return list(dict.fromkeys(self.of.values()))

    def learn(
        self, e: Editor, roundings: Sequence[Rounding], numbers: Sequence[Numbers], own: Iterable[Value]
    ) -> None:
        """What the graph says of zero points and scales. ``own`` are results of roundings whose scale says
        something: it is the values' own, not one that was multiplied into it."""
        for rounding in roundings:
            group = self.of[rounding.value]
            group.used = True
            group.zero = rounding.zero if group.zero is None else group.zero
        for number in numbers:
            group = self.of.get(number.value, Group())
            group.used = True
            group.zero = number.zero if group.zero is None else group.zero
            group.scale = number.scale if group.scale is None else group.scale
        natural = set(own)
        for rounding in roundings:
            group = self.of[rounding.value]
            if group.scale is None and rounding.value in natural:
                group.scale = rounding.scale
        for op in e.listed():
            if isinstance(op, Pad) and op.output in self.of and self.of[op.output].zero is None:
                self.of[op.output].zero = int(op.value)

    def solve(self, ratios: Sequence[Ratio]) -> None:
        """Scales that follow from others; where none does, one group gets the scale 1 and others follow."""
        while True:
            if sum(self._follows(ratio) for ratio in ratios):
                continue
            free = next((g for r in ratios for g in (*r.operands, r.result) if g and g.scale is None), None)
            if free is None:
                return
            free.scale = 1.0

    def _follows(self, ratio: Ratio) -> bool:
        groups = [*ratio.operands, *([] if ratio.result is None else [ratio.result])]
        unknown = [group for group in groups if group.scale is None]
        if len(unknown) != 1:
            return False
        result = 1.0 if ratio.result is None else ratio.result.scale
        known = 1.0
        for group in ratio.operands:
            known *= 1.0 if group.scale is None else group.scale
        if result is None:
            unknown[0].scale = known / ratio.factor
        else:
            unknown[0].scale = ratio.factor * result / known
        return True

    def _group(self, value: Value) -> Group:
        if value not in self.of:
            self.of[value] = Group([value])
        return self.of[value]

    def _join(self, a: Value, b: Value) -> None:
        first, second = self._group(a), self._group(b)
        if first is not second:
            first.values += second.values
            self.of.update(dict.fromkeys(second.values, first))


def close(a: float, b: float) -> bool:
    """Whether two scales are the same one."""
    return abs(a - b) <= SAME * max(abs(a), abs(b))
