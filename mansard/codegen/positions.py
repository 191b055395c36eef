"""Positions in a loop nest as kernel IR: index arithmetic over the values that its loops are bound to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.loop_nest import Nest
from mansard.dims import DimLike
from mansard.ir.types import Linear


class Params:
    """The dim expressions a kernel receives as params, each once."""

    def __init__(self) -> None:
        self.values: list[DimLike] = []

    def index(self, value: DimLike) -> int:
        """The param that holds ``value``."""
        if value not in self.values:
            self.values.append(value)
        return self.values.index(value)


class Positions:
    """Emits positions of one nest into a builder.

    ``bind`` gives loops their values; with ``vector`` set, that loop stands for ``lanes`` consecutive
    iterations. A sum that was emitted before is reused.
    """

    def __init__(self, nest: Nest, builder: KernelBuilder, params: Params) -> None:
        self.nest = nest
        self.b = builder
        self.params = params
        self.loops: dict[int, KValue] = {}
        self.shifts: dict[int, int] = {}
        self.vector: tuple[int, int] | None = None  # loop, lanes
        self.multiple = 1
        """What the bound value of the vector loop is a multiple of, which the schedule sees to: vectors whose
        address then is a multiple of their lanes are loaded and stored as aligned."""
        self.starts_even = False
        """Whether vectors start at even positions of their loop, whatever is known of their memory."""
        self._cache: dict[object, KValue] = {}

    def bind(self, group: Sequence[int], value: KValue, shift: int = 0) -> None:
        """Set a group of loops that run as one (the innermost carries it) to ``value + shift``.

        Points of an unrolled loop that share a value and differ in the shift share their addresses'
        arithmetic, and reads of equal addresses are one read.
        """
        for loop in group[:-1]:
            self.loops[loop] = self.b.idx(0)
            self.shifts[loop] = 0
        self.loops[group[-1]] = value
        self.shifts[group[-1]] = shift

    def continue_from(self, other: Positions) -> None:
        """Begin with the loops that another one has bound, and what it has emitted."""
        self.loops.update(other.loops)
        self.shifts.update(other.shifts)
        self._cache.update(other._cache)

    def once(self, key: object, emit: Callable[[], KValue]) -> KValue:
        """What was emitted under a key before, in this scope or one around it; else what ``emit`` does."""
        if key not in self._cache:
            self._cache[key] = emit()
        return self._cache[key]

    def dim(self, value: DimLike) -> KValue:
        """A dim expression as an index value."""
        if isinstance(value, int):
            return self.b.idx(value)
        return self.b.param(self.params.index(value))

    def linear(self, position: Linear) -> tuple[KValue, DimLike]:
        """The scalar part of a position, and its coefficient along the vector loop."""
        moving, offset, along = self._terms(position)
        # What is read nearby differs in the literal alone, and so shares all the rest.
        literal = dims.literal(offset)
        unknown = dims.add(offset, -literal)
        key = ("sum", unknown, *((value.id, coefficient) for value, coefficient in moving))
        if key not in self._cache:
            self._cache[key] = self.b.add(self._sum(moving), self.dim(unknown))
        return self.b.add(self._cache[key], self.dim(literal)), along

    def _sum(self, moving: Sequence[tuple[KValue, DimLike]]) -> KValue:
        total = self.b.idx(0)
        for value, coefficient in moving:
            total = self.b.add(total, self.b.mul(value, self.dim(coefficient)))
        return total

    def _terms(self, position: Linear) -> tuple[list[tuple[KValue, DimLike]], DimLike, DimLike]:
        """A position as loop values with their coefficients, the known rest, and the coefficient along
        the vector loop."""
        moving: list[tuple[KValue, DimLike]] = []
        along: DimLike = 0
        offset = position.offset
        for loop, coefficient in position.terms:
            if self.vector is not None and loop == self.vector[0]:
                along = coefficient
            if dims.is_one(self.nest.extents[loop]):
                continue
            value, known = self.loops[loop], self.shifts.get(loop, 0)
            literal = self.b.constant_value(value)
            if literal is None:
                moving.append((value, coefficient))
            else:
                known += int(literal)
            offset = dims.add(offset, dims.mul(coefficient, known))
        return moving, offset, along

    def place(self, position: Linear) -> tuple[object, ...]:
        """A key that positions share exactly when they have the same value at the bound loops."""
        moving, offset, along = self._terms(position)
        lanes = self.vector[1] if self.vector is not None and along != 0 else 1
        return (lanes, along, offset, *((value.id, coefficient) for value, coefficient in moving))

    def lanes_of(self, position: Linear) -> KValue:
        """A position as one index value per lane (scalar when it does not vary)."""
        base, along = self.linear(position)
        if self.vector is None or along == 0:
            return base
        steps = self.b.mul(self.b.iota(self.vector[1]), self.dim(along))
        return self.b.add(base, steps)

    def even(self, position: Linear) -> bool:
        """Whether a vector at a position starts at an even one."""
        return (self.starts_even or self.multiple % 2 == 0) and self._begins_at_multiple(position, 2)

    def aligned(self, position: Linear) -> bool:
        """Whether a vector at a position starts at a multiple of its lanes."""
        if self.vector is None or self.multiple % self.vector[1]:
            return False
        return self._begins_at_multiple(position, self.vector[1])

    def _begins_at_multiple(self, position: Linear, number: int) -> bool:
        """Whether a vector at a position starts at a multiple of a number, of which the vector loop's bound
        value is one."""
        if self.vector is None:
            return False
        loop = self.vector[0]
        walked = [c for at, c in position.terms if at != loop and not dims.is_one(self.nest.extents[at])]
        return all(dims.exact_div(c, number) is not None for c in (*walked, position.offset))
