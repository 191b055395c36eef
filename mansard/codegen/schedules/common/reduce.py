"""Building blocks of reductions: neutral elements, combiners, argmin and argmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.evaluate import Evaluator, register_dtype
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.loop_nest import Root
from mansard.codegen.math import neutral
from mansard.codegen.schedules.common.base import Frame
from mansard.dtypes import DType
from mansard.ir.scalar import Apply

ARG = ("argmin", "argmax")


def start(b: KernelBuilder, root: Root, lanes: int = 1) -> KValue:
    """The neutral element of a reduction."""
    dtype = register_dtype(root.op.body.dtype)
    assert root.op.combiner is not None
    return b.const(neutral(root.op.combiner, dtype), dtype, lanes)


def clear(b: KernelBuilder, root: Root, sums: Memory, count: KValue | int, lanes: int) -> None:
    """Store the neutral element in the first ``count`` elements of memory for a reduction's results, or for
    parts of them in a type of their own, ``lanes`` at a time."""
    assert root.op.combiner is not None
    with b.for_(0, count, lanes) as loop:
        b.store(sums, loop.index, b.const(neutral(root.op.combiner, sums.dtype), sums.dtype, lanes))


def combine(ev: Evaluator, root: Root, accumulator: KValue) -> KValue:
    """Combine the accumulator with the body at the bound loops; products are fused multiply-adds."""
    b, body = ev.b, root.op.body
    if root.op.combiner == "add" and isinstance(body, Apply) and body.op == "mul" and body.dtype.is_float:
        left, right = factors(ev, root)
        return b.fma(left, right, accumulator)
    value = b.splat(ev.root(root), accumulator.type.lanes)
    assert root.op.combiner is not None
    return b.binary(root.op.combiner, accumulator, value)


def factors(ev: Evaluator, root: Root) -> tuple[KValue, KValue]:
    """Both factors of a product body at the bound loops."""
    body = root.op.body
    assert isinstance(body, Apply)
    left, right = (ev.part(root, arg) for arg in body.args)
    return left, right


def loops(
    frame: Frame,
    groups: Sequence[Sequence[int]],
    inits: Sequence[KValue],
    emit: Callable[[Sequence[KValue]], Sequence[KValue]],
) -> Sequence[KValue]:
    """Nested scalar loops over groups with loop-carried values, which ``emit`` maps to the next ones."""
    if not groups:
        return emit(inits)
    b, ev = frame.b, frame.ev
    head, *rest = groups
    with b.for_(b.idx(0), ev.dim(frame.nest.total(head)), inits=inits) as loop, ev.scope():
        ev.bind(head, loop.index)
        loop.yield_(*loops(frame, rest, loop.carried, emit))
    return loop.results


class ArgSearch:
    """Running argmin or argmax: the extreme value and its first i64 index, scalars or vectors; NaN wins."""

    def __init__(self, frame: Frame, root: Root) -> None:
        self.b = frame.b
        self.dtype = register_dtype(root.op.body.dtype)
        self.order = "gt" if root.op.combiner == "argmax" else "lt"
        self.combiner = "max" if self.order == "gt" else "min"

    def start(self, lanes: int, first: int) -> tuple[KValue, KValue]:
        """The initial state; each lane has its own elements, the first of them at ``first``."""
        b = self.b
        best = b.const(neutral(self.combiner, self.dtype), self.dtype, lanes)
        return best, b.add(b.iota(lanes, DType.I64), b.const(first, DType.I64, lanes))

    def step(self, best: KValue, place: KValue, value: KValue, at: KValue) -> tuple[KValue, KValue]:
        """The state after one more element per lane, all at later indices."""
        b = self.b
        better = b.compare(self.order, value, best)
        if self.dtype.is_float:
            fresh_nan = b.binary("and", b.compare("ne", value, value), b.compare("eq", best, best))
            better = b.binary("or", better, fresh_nan)
        return b.select(better, value, best), b.select(better, at, place)

    def join(self, parts: Sequence[tuple[KValue, KValue]]) -> tuple[KValue, KValue]:
        """All lanes of all parts combined: the extreme, and its first index."""
        b = self.b
        top: KValue | None = None
        for best, _ in parts:
            # min and max let NaN win.
            value = b.reduce(self.combiner, best)
            top = value if top is None else b.binary(self.combiner, top, value)
        assert top is not None
        first_place: KValue | None = None
        for best, place in parts:
            same = b.compare("eq", best, b.splat(top, best.type.lanes))
            if self.dtype.is_float:
                both = b.binary("and", b.compare("ne", best, best), b.compare("ne", top, top))
                same = b.binary("or", same, both)
            first = b.reduce("min", b.select(same, place, b.const(2**62, DType.I64)))
            first_place = first if first_place is None else b.binary("min", first_place, first)
        assert first_place is not None
        return top, first_place


def arg_reduce(frame: Frame, root: Root, groups: Sequence[Sequence[int]], lanes: int = 1) -> KValue:
    """Index (i64) of the first extreme along the inner loops, element by element; NaN wins. With ``lanes``,
    of that many rows at once: the vector loop is bound to a loop of the domain.
    """
    b, ev = frame.b, frame.ev
    search = ArgSearch(frame, root)

    def step(carried: Sequence[KValue]) -> Sequence[KValue]:
        best, place, count = carried
        value = b.splat(ev.root(root), lanes)
        better, at = search.step(best, place, value, b.splat(count, lanes))
        return better, at, b.add(count, b.const(1, DType.I64))

    best, _ = search.start(lanes, 0)
    zero = b.const(0, DType.I64)
    # If no element is better than the neutral one, the first is the result.
    results = loops(frame, groups, (best, b.splat(zero, lanes), zero), step)
    return results[1]
