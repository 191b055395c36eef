"""The keys that rows of an attention see: bounds that follow from masks, for loops to end at.

A bound is the first key that a row does not see. It is affine in the loops (one more than the row's index, if
a mask is causal), plus numbers that the kernel reads: the position that a step of decoding has reached, for
each sequence. A loop that runs along every n-th key ends at an n-th of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from dataclasses import dataclass

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.attention_nest import AttentionNest, Group
from mansard.codegen.schedules.common.base import Frame
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar, walk
from mansard.ir.types import Linear, Value

_FAR = 1 << 30
"""Numbers that are read count as at most this, beyond any key, so that their sums do not overflow."""


@dataclass(frozen=True)
class KeyBound:
    """``linear`` plus, for every term, a sign times the element of a buffer at an address; all of it divided
    by ``step`` and rounded up."""

    linear: Linear
    terms: tuple[tuple[int, Value, Linear], ...] = ()
    step: int = 1

    def plus(self, other: KeyBound, sign: int = 1) -> KeyBound:
        """The sum, or the difference."""
        moved = tuple((sign * factor, value, at) for factor, value, at in other.terms)
        return KeyBound(self.linear.plus(other.linear.scaled(sign)), (*self.terms, *moved))


def key_bounds(nest: AttentionNest) -> list[KeyBound]:
    """Upper bounds of the keys that a row attends to: from any of them on, the masked score is -inf."""
    producer = nest.producers[nest.form.masked]
    if not isinstance(producer, Generic) or producer is nest.form.scores:
        return []
    bounds: list[KeyBound] = []
    for condition, op, index in _visibility_conditions(nest, producer, producer.body, nest.masked_index()):
        bounds.extend(_affine_bounds(nest, op, condition, index))
    return bounds


def read_inside(nest: AttentionNest, root: Root, factor: Scalar, bound: Set[int]) -> bool:
    """Whether all that a factor reads for keys below the `key_bounds` lies inside, as these follow from the
    same limits. ``bound`` are the loops whose values the bounds are computed with."""
    ends = [end for end in key_bounds(nest) if not end.terms and {d for d, _ in end.linear.terms} <= bound]
    reads, _ = nest.part_reads(root, factor)
    return all(
        any(_follows(nest, at, extent, end) for end in ends) for read in reads for at, extent in read.guards
    )


def _follows(nest: AttentionNest, at: Linear, extent: DimLike, end: KeyBound) -> bool:
    """Whether a place is in range if and only if the key is below a bound."""
    coefficients = [c for _, c in at.terms]
    if any(dims.bounds(c)[0] < 0 for c in (*coefficients, at.offset)):
        return False
    step = dict(at.terms).get(nest.key_loop, 0)
    if step != end.step or not isinstance(step, int):
        return False
    limit = Linear((), extent).plus(at.plus(Linear.dim(nest.key_loop, -step)).scaled(-1))
    return limit == end.linear


def _visibility_conditions(
    nest: AttentionNest, op: Generic, node: Scalar, index: tuple[Linear, ...]
) -> list[tuple[Scalar, Generic, tuple[Linear, ...]]]:
    """Conditions without which a score is -inf, with the op that contains them."""
    if isinstance(node, Apply) and node.op == "select":
        condition, _, otherwise = node.args
        if isinstance(otherwise, Const) and float(otherwise.value) == float("-inf"):
            return [(condition, op, index), *_visibility_conditions(nest, op, node.args[1], index)]
    elif isinstance(node, Apply) and node.op == "add":
        return [hidden for arg in node.args for hidden in _visibility_conditions(nest, op, arg, index)]
    elif isinstance(node, Arg):
        inner = _producer(nest, op, node, index)
        return _visibility_conditions(nest, inner[0], inner[0].body, inner[1]) if inner is not None else []
    return []


def _producer(
    nest: AttentionNest, op: Generic, node: Arg, index: tuple[Linear, ...]
) -> tuple[Generic, tuple[Linear, ...]] | None:
    """The map in this dispatch that computes an operand, and the index at which it is read."""
    if getattr(op.maps[node.index], "fill", None) is not None:
        return None
    value, where = nest.locate(op.inputs[node.index], nest.operand_index(op, node.index, index))
    producer = nest.producers.get(value)
    if isinstance(where, Linear) or not isinstance(producer, Generic) or producer.combiner is not None:
        return None
    return producer, where


def _affine_bounds(
    nest: AttentionNest, op: Generic, node: Scalar, index: tuple[Linear, ...]
) -> list[KeyBound]:
    if isinstance(node, Arg):
        inner = _producer(nest, op, node, index)
        return _affine_bounds(nest, inner[0], inner[0].body, inner[1]) if inner is not None else []
    if not isinstance(node, Apply):
        return []
    if node.op == "and":
        return [end for arg in node.args for end in _affine_bounds(nest, op, arg, index)]
    if node.op not in ("lt", "le", "gt", "ge"):
        return []
    small, large = node.args if node.op in ("lt", "le") else node.args[::-1]
    a, c = _sum(nest, op, small, index), _sum(nest, op, large, index)
    if a is None or c is None:
        return []
    difference = c.plus(a, -1)  # visible keys have difference > 0, or >= 0
    step = dict(difference.linear.terms).get(nest.key_loop, 0)
    if not isinstance(step, int) or step >= 0:
        return []
    rest = difference.linear.plus(Linear.dim(nest.key_loop, -step))
    if node.op in ("le", "ge"):
        rest = Linear(rest.terms, dims.add(rest.offset, 1))
    return [KeyBound(rest, difference.terms, -step)]


def _sum(nest: AttentionNest, op: Generic, node: Scalar, index: tuple[Linear, ...]) -> KeyBound | None:
    """An integer as a sum of an affine index and elements of buffers that do not depend on the key."""
    if not node.dtype.is_int:
        return None
    linear = Affine(op.extents).linear(node)
    if linear is not None:
        return KeyBound(linear.compose(index))
    if isinstance(node, Cast) and node.arg.dtype is DType.I32 and node.dtype is DType.I64:
        return _sum(nest, op, node.arg, index)
    if isinstance(node, Apply) and node.op in ("add", "sub") and node.dtype is DType.I64:
        a, c = (_sum(nest, op, arg, index) for arg in node.args)
        return None if a is None or c is None else a.plus(c, 1 if node.op == "add" else -1)
    if not isinstance(node, Arg) or node.dtype not in (DType.I32, DType.I64):
        return None
    inner = _producer(nest, op, node, index)
    if inner is not None:
        return _sum(nest, inner[0], inner[0].body, inner[1])
    reads = op.maps[node.index]
    if reads is None or reads.fill is not None:
        return None
    value, where = nest.locate(op.inputs[node.index], nest.operand_index(op, node.index, index))
    if not isinstance(where, Linear) or any(loop == nest.key_loop for loop, _ in where.terms):
        return None
    return KeyBound(Linear(), ((1, value, where),))


def without_bounds(nest: AttentionNest) -> dict[Generic, Generic]:
    """The maps of the scores simplified for keys below all of the `key_bounds`."""
    producer = nest.producers[nest.form.masked]
    if not isinstance(producer, Generic) or producer is nest.form.scores:
        return {}
    rewritten: dict[Generic, Generic] = {}
    stack = [(producer, nest.masked_index())]
    while stack:
        op, index = stack.pop()
        body = _without_bounds(nest, op, op.body, index)
        if body is not op.body:
            rewritten[op] = dataclasses.replace(op, body=body)
        args = (node for node in walk(op.body) if isinstance(node, Arg))
        stack.extend(inner for arg in args if (inner := _producer(nest, op, arg, index)) is not None)
    return rewritten


def _without_bounds(nest: AttentionNest, op: Generic, node: Scalar, index: tuple[Linear, ...]) -> Scalar:
    if isinstance(node, Apply) and node.op == "select":
        condition, seen, otherwise = node.args
        hides = isinstance(otherwise, Const) and float(otherwise.value) == float("-inf")
        if hides and _is_key_bound(nest, op, condition, index):
            return _without_bounds(nest, op, seen, index)
    elif isinstance(node, Apply) and node.op == "add":
        args = tuple(_without_bounds(nest, op, arg, index) for arg in node.args)
        return (
            node
            if all(a is b for a, b in zip(args, node.args, strict=True))
            else Apply("add", args, node.dtype)
        )
    return node


def _is_key_bound(nest: AttentionNest, op: Generic, node: Scalar, index: tuple[Linear, ...]) -> bool:
    """Whether a condition is equivalent to the key being below its bounds."""
    if isinstance(node, Arg):
        inner = _producer(nest, op, node, index)
        return inner is not None and _is_key_bound(nest, inner[0], inner[0].body, inner[1])
    if isinstance(node, Apply) and node.op == "and":
        return all(_is_key_bound(nest, op, arg, index) for arg in node.args)
    return len(_affine_bounds(nest, op, node, index)) == 1


def last_bound(
    frame: Frame, nest: AttentionNest, end: KeyBound, lane: Group | None, last: KValue
) -> KValue | None:
    """The value of a key bound for rows up to ``last`` of the lane loop; None if it may decrease along it."""
    b, ev = frame.b, frame.ev
    total = ev.dim(end.linear.offset)
    for sign, value, address in end.terms:
        number = _element(frame, nest, value, address, lane)
        if number is None:
            return None
        total = b.add(total, number) if sign > 0 else b.sub(total, number)
    for loop, coefficient in end.linear.terms:
        if dims.is_one(nest.extents[loop]):
            continue
        if lane is not None and loop in lane:
            if dims.bounds(coefficient)[0] < 0 or loop != lane[-1]:
                return None
            total = b.add(total, b.mul(last, ev.dim(coefficient)))
        elif loop in ev.loops:
            total = b.add(total, b.mul(ev.loops[loop], ev.dim(coefficient)))
        else:
            return None
    if end.step > 1:
        total = b.binary("max", b.add(total, b.idx(end.step - 1)), b.idx(0))
        total = b.binary("div", total, b.idx(end.step))
    return total


def _element(
    frame: Frame, nest: AttentionNest, value: Value, address: Linear, lane: Group | None
) -> KValue | None:
    """An element that is the same for all rows of a tile; None for any other."""
    b, ev = frame.b, frame.ev
    for loop, _ in address.terms:
        if not dims.is_one(nest.extents[loop]) and (
            loop not in ev.loops or (lane is not None and loop in lane)
        ):
            return None
    vector, ev.vector = ev.vector, None
    number = b.cast(ev.load(value, address), DType.I64)
    ev.vector = vector
    number = b.binary("max", b.binary("min", number, b.const(_FAR, DType.I64)), b.const(-_FAR, DType.I64))
    return b.cast(number, b.index)


def tile_bound(
    frame: Frame, nest: AttentionNest, end: KeyBound, lane: Group | None, along: bool, row: KValue
) -> KValue | None:
    """`last_bound` for a tile's row if tiles run along the lane loop only, otherwise for any row."""
    if along or lane is None:
        return last_bound(frame, nest, end, lane, row)
    return last_bound(frame, nest, end, lane, frame.ev.dim(dims.add(nest.total(lane), -1)))


def key_end(frame: Frame, nest: AttentionNest, lane: Group | None, last: KValue) -> KValue:
    """One past the last key that any row of a tile reads; ``last`` is the tile's last row along ``lane``."""
    b, keys = frame.b, frame.ev.dim(nest.extents[nest.key_loop])
    for end in key_bounds(nest):
        value = last_bound(frame, nest, end, lane, last)
        if value is not None:
            keys = b.binary("max", frame.minimum(keys, value), b.idx(0))
    return keys
