"""Trip counts of a kernel's loops: an upper bound on the iterations of one invocation.

Interval analysis of index arithmetic. Differences of bounds are taken symbolically, so that the trips of
``for j in (t * 16, min(t * 16 + 16, n))`` are 16, whatever ``t`` is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.codegen.kernel.ir import Block, For, If, Inst, Kernel, KValue

_MAX_SUBGROUP = 128
_COPIES = ("cast", "bitcast", "splat", "early")


def _divided(op: str, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """The range of a quotient or remainder, rounded towards zero, for a positive divisor."""
    if op == "rem":
        return max(min(low, 0), 1 - last), min(max(high, 0), last - 1)
    below = -(-low // first) if low < 0 else low // last
    return below, high // first if high >= 0 else -(-high // last)


@dataclass(frozen=True)
class _Sum:
    """``constant`` plus multiples of registers that no linear instruction defines."""

    constant: int = 0
    terms: Mapping[int, int] = field(default_factory=dict)

    def plus(self, other: _Sum, factor: int = 1) -> _Sum:
        """The sum with a multiple of another."""
        terms = dict(self.terms)
        for register, count in other.terms.items():
            terms[register] = terms.get(register, 0) + factor * count
        return _Sum(self.constant + factor * other.constant, {r: n for r, n in terms.items() if n})


def loop_iterations(kernel: Kernel, params: Sequence[int], grid: Sequence[int]) -> int:
    """The iterations of all loops that one invocation runs together, nested ones multiplied, at most."""
    analysis = _Analysis(kernel, params, grid)
    return analysis.block(kernel.body)


class _Analysis:
    def __init__(self, kernel: Kernel, params: Sequence[int], grid: Sequence[int]) -> None:
        self.kernel, self.params, self.grid = kernel, params, grid
        self.sums: dict[int, _Sum] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        """Of registers that stand for themselves in sums."""
        self.choices: dict[int, tuple[str, tuple[KValue, ...]]] = {}
        """Registers that are the minimum or maximum of others, or one of them."""

    def block(self, block: Block) -> int:
        """Iterations of all loops in a block."""
        total = 0
        for node in block.nodes:
            if isinstance(node, Inst):
                self._inst(node)
            elif isinstance(node, For):
                total += self._loop(node)
            elif isinstance(node, If):
                total += max(self.block(node.then), self.block(node.otherwise))
        return total

    def _loop(self, loop: For) -> int:
        span = self._upper(self._sum(loop.upper).plus(self._sum(loop.lower), -1))
        trips = max(0, math.ceil(span / max(1, self._range(loop.step)[0])))
        self.ranges[loop.index.id] = (self._range(loop.lower)[0], self._range(loop.upper)[1] - 1)
        return trips * (1 + self.block(loop.body))

    # Values ---------------------------------------------------------------------------------
    def _inst(self, inst: Inst) -> None:
        result = inst.result
        if result is None or result.type.matrix is not None or result.type.dtype.is_float:
            return
        linear = self._linear(inst)
        if linear is not None:
            self.sums[result.id] = linear
            return
        if inst.op in ("min", "max", "select"):
            self.choices[result.id] = inst.op, inst.args[-2:]
        known = self._computed(inst)
        if known is not None:
            self.ranges[result.id] = known

    def _linear(self, inst: Inst) -> _Sum | None:
        args = inst.args
        if inst.op == "const":
            return _Sum(int(inst.attrs["value"]))
        if inst.op == "param":
            return _Sum(self.params[inst.attrs["index"]])
        if inst.op in _COPIES and not args[0].type.dtype.is_float:
            return self._sum(args[0])
        if inst.op in ("add", "sub"):
            return self._sum(args[0]).plus(self._sum(args[1]), 1 if inst.op == "add" else -1)
        if inst.op == "mul":
            for factor, other in (args, args[::-1]):
                if not self._sum(factor).terms:
                    return _Sum().plus(self._sum(other), self._sum(factor).constant)
        return None

    def _computed(self, inst: Inst) -> tuple[int, int] | None:
        """The range of what no linear instruction defines; None: that of its type."""
        workgroup = math.prod(self.kernel.workgroup)
        ids = {
            "subgroup_id": (0, workgroup - 1),
            "subgroup_count": (1, workgroup),
            "subgroup_lane": (0, _MAX_SUBGROUP - 1),
            "subgroup_size": (1, _MAX_SUBGROUP),
        }
        if inst.op in ids:
            return ids[inst.op]
        if inst.op == "workgroup_id":
            return 0, self.grid[inst.attrs["axis"]] - 1
        if inst.op == "local_id":
            return 0, self.kernel.workgroup[inst.attrs["axis"]] - 1
        if not inst.args or any(a.type.dtype.is_float for a in inst.args):
            return None
        if inst.op == "subgroup_reduce_each":
            return None
        sides = [self._range(arg) for arg in inst.args[-2:]]
        (low, high), (first, last) = sides[0], sides[-1]
        if inst.op in ("subgroup_reduce", "subgroup_scan"):
            combiner = inst.attrs["combiner"]
            if combiner == "add" and low >= 0:
                return low, _MAX_SUBGROUP * high
            return (low, high) if combiner in ("min", "max") else None
        if inst.op == "reduce" and inst.attrs["combiner"] in ("min", "max"):
            return low, high
        if inst.op == "min":
            return min(low, first), min(high, last)
        if inst.op == "max":
            return max(low, first), max(high, last)
        if inst.op == "select":
            return min(low, first), max(high, last)
        if inst.op == "mul":
            products = [a * b for a in (low, high) for b in (first, last)]
            return min(products), max(products)
        if first < 0:
            return None
        if inst.op in ("div", "rem"):
            return _divided(inst.op, low, high, max(1, first), max(1, last))
        if low < 0:
            return None
        if inst.op == "and":
            return 0, min(high, last)
        if inst.op == "shr":
            return low >> last, high >> first
        if inst.op == "shl" and last < inst.args[0].type.dtype.bits:
            return low << first, high << last
        return None

    def _sum(self, value: KValue) -> _Sum:
        return self.sums.get(value.id) or _Sum(0, {value.id: 1})

    def _of_register(self, register: int) -> tuple[int, int]:
        return self.ranges.get(register, (-(1 << 63), (1 << 63) - 1))

    def _range(self, value: KValue) -> tuple[int, int]:
        total = self._sum(value)
        return -self._upper(_Sum().plus(total, -1)), self._upper(total)

    def _upper(self, total: _Sum) -> int:
        """The largest value of a sum: with minima and maxima replaced by what bounds them, where that
        helps."""
        bound = total.constant
        for register, count in total.terms.items():
            low, high = self._of_register(register)
            bound += count * (high if count > 0 else low)
        for register, count in total.terms.items():
            op, options = self.choices.get(register, ("", ()))
            without = _Sum(total.constant, {r: n for r, n in total.terms.items() if r != register})
            bounds = [self._upper(without.plus(self._sum(option), count)) for option in options]
            if not bounds:
                continue
            either = (op == "min" and count > 0) or (op == "max" and count < 0)
            return min(bound, min(bounds) if either else max(bounds))
        return bound
