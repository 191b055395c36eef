"""Reduction pieces shared by schedules: neutral elements, combining, arg-reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.evaluate import Evaluator, register_dtype
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math import neutral
from mansard.codegen.nest import Root
from mansard.codegen.schedules.base import Frame
from mansard.dtypes import DType
from mansard.ir.scalar import Apply

ARG = ("argmin", "argmax")


def start(b: KernelBuilder, root: Root, lanes: int = 1) -> KValue:
    """The neutral element of a reduction."""
    dtype = register_dtype(root.op.body.dtype)
    assert root.op.combiner is not None
    return b.const(neutral(root.op.combiner, dtype), dtype, lanes)


def combine(ev: Evaluator, root: Root, accumulator: KValue) -> KValue:
    """The accumulator with the body at the bound loops folded in; products are fused multiply-adds."""
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
    """Nested scalar loops over groups, carrying values; ``emit`` maps carried values to the next ones."""
    if not groups:
        return emit(inits)
    b, ev = frame.b, frame.ev
    head, *rest = groups
    with b.for_(b.idx(0), ev.dim(frame.nest.total(head)), inits=inits) as loop, ev.scope():
        ev.bind(head, loop.index)
        loop.yield_(*loops(frame, rest, loop.carried, emit))
    return loop.results


def arg_reduce(frame: Frame, root: Root, groups: Sequence[Sequence[int]]) -> KValue:
    """Index (i64) of the first extreme along the inner loops, one element at a time; NaN wins."""
    b, ev = frame.b, frame.ev
    dtype = register_dtype(root.op.body.dtype)
    order = "gt" if root.op.combiner == "argmax" else "lt"
    worst = neutral("max" if order == "gt" else "min", dtype)

    def step(carried: Sequence[KValue]) -> Sequence[KValue]:
        best, place, count = carried
        value = ev.root(root)
        better = b.compare(order, value, best)
        if dtype.is_float:
            fresh_nan = b.binary("and", b.compare("ne", value, value), b.compare("eq", best, best))
            better = b.binary("or", better, fresh_nan)
        first = b.compare("eq", count, b.const(0, DType.I64))
        better = b.binary("or", better, first)
        following = b.add(count, b.const(1, DType.I64))
        return b.select(better, value, best), b.select(better, count, place), following

    zero = b.const(0, DType.I64)
    results = loops(frame, groups, (b.const(worst, dtype), zero, zero), step)
    return results[1]
