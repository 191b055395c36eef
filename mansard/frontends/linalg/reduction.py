"""Recognises the combiner of a reduction's body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.frontends.linalg.scalars import HOST
from mansard.frontends.linalg.values import Out
from mansard.ir.scalar import Apply, Cast, Const, Index, Scalar, walk

_COMBINERS = ("add", "mul", "min", "max", "and", "or")
_NEUTRAL = {"add": 0, "mul": 1, "or": 0, "and": -1}
_LARGER, _SMALLER = ("gt", "ge"), ("lt", "le")
_SWAPPED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
_NEGATED = {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}


ONLY_INDEX = -1
"""`Reduction.arg_index` of an index that is the literal 0, which is valid if the reduced dim has extent 1."""


@dataclass(frozen=True)
class Reduction:
    """``combiner`` over ``body``; ``arg_index`` is the reduced dim whose index argmin or argmax returns."""

    combiner: str
    body: Scalar
    arg_index: int | None = None


def match_reduction(trees: Sequence[Scalar], k: int) -> Reduction | None:
    """The reduction that computes result ``k`` of a body, or None.

    ``trees`` are the yielded scalars; the accumulators are `Out` leaves. ``select(x > out, x, out)``
    is a maximum. A result ``select(x > out_j, index, out_k)`` is an argmax. An accumulator that is extended
    before and truncated after the combiner (``truncf(extf(out) + x)``) is kept in the wider type.
    """
    tree = trees[k]
    if isinstance(tree, Cast) and not isinstance(tree.arg, Out):
        tree = tree.arg
    if not isinstance(tree, Apply):
        return None
    if tree.op in _COMBINERS:
        return _combined(tree, k)
    if tree.op == "sub" and _is_out(tree.args[0], k) and not outs(tree.args[1]):
        return Reduction("add", Apply("neg", (tree.args[1],), tree.dtype))
    if tree.op == "select":
        return _extreme(tree, k) or _guarded(tree, k) or _arg_extreme(tree, k)
    return None


def _guarded(tree: Apply, k: int) -> Reduction | None:
    """``select(c, out + x, out)`` adds ``select(c, x, 0)``; similarly for ``mul``, ``and``, ``or``."""
    condition, a, b = tree.args
    combined, running = (a, b) if _is_out(b, k) else (b, a)
    if not (_is_out(running, k) and isinstance(combined, Apply) and not outs(condition)):
        return None
    inner = _combined(combined, k)
    if inner is None or inner.combiner not in _NEUTRAL:
        return None
    dtype = inner.body.dtype
    neutral = HOST.cast(Const(_NEUTRAL[inner.combiner], DType.I64), dtype)
    sides = (inner.body, neutral) if combined is a else (neutral, inner.body)
    return Reduction(inner.combiner, Apply("select", (condition, *sides), dtype))


def outs(tree: Scalar) -> set[int]:
    """The accumulators that a tree reads."""
    return {n.index for n in walk(tree) if isinstance(n, Out)}


def _is_out(tree: Scalar, k: int) -> bool:
    if isinstance(tree, Cast):
        tree = tree.arg
    return isinstance(tree, Out) and tree.index == k


def _combined(tree: Apply, k: int) -> Reduction | None:
    a, b = tree.args
    for x, running in ((a, b), (b, a)):
        if _is_out(running, k) and not outs(x):
            return Reduction(tree.op, x)
    return None


def _extreme(tree: Apply, k: int) -> Reduction | None:
    """``select(cmp(x, out), x, out)`` in any arrangement."""
    condition, a, b = tree.args
    for x, running, chosen_when in ((a, b, True), (b, a, False)):
        if not _is_out(running, k) or outs(x):
            continue
        op = _direction(condition, x, k)
        if op is not None:
            op = op if chosen_when else _NEGATED[op]
            combiner = "max" if op in _LARGER else "min"
            ordered = chosen_when and isinstance(condition, Apply) and condition.op != "not"
            return Reduction(combiner, without_nan(combiner, x) if ordered else x)
    return None


def without_nan(combiner: str, x: Scalar) -> Scalar:
    """``x``, or what a minimum or maximum ignores where ``x`` is NaN, as an ordered comparison does."""
    if not x.dtype.is_float:
        return x
    neutral = Const(-math.inf if combiner == "max" else math.inf, x.dtype)
    return HOST.select(HOST.unary("isnan", x), neutral, x)


def _direction(condition: Scalar, x: Scalar, k: int) -> str | None:
    """The comparison in a condition, with ``x`` on the left and accumulator ``k`` on the right."""
    if isinstance(condition, Apply) and condition.op == "not":
        inner = _direction(condition.args[0], x, k)
        return None if inner is None else _NEGATED[inner]
    if not (isinstance(condition, Apply) and condition.op in _SWAPPED):
        return None
    a, b = condition.args
    if a == x and _is_out(b, k):
        return condition.op
    return _SWAPPED[condition.op] if b == x and _is_out(a, k) else None


def _arg_extreme(tree: Apply, k: int) -> Reduction | None:
    """``select(x > out_j, index, out_k)``: the first index of the extreme of ``x``."""
    condition, chosen, running = tree.args
    flipped = _is_out(chosen, k)
    if flipped:
        chosen, running = running, chosen
    index = chosen.arg if isinstance(chosen, Cast) else chosen
    if isinstance(index, Const) and index.value == 0:
        dim = ONLY_INDEX
    elif isinstance(index, Index):
        dim = index.dim
    else:
        return None
    if not _is_out(running, k):
        return None
    for node in walk(condition):
        if not (isinstance(node, Apply) and node.op in _SWAPPED):
            continue
        left, right = node.args
        for x, other, swap in ((left, right, False), (right, left, True)):
            if outs(x) or not isinstance(other, Out) or other.index == k:
                continue
            op = _SWAPPED[node.op] if swap else node.op
            if flipped != _is_negation_of(condition, node):
                op = _NEGATED[op]
            first = op in ("gt", "lt") or condition is not node
            return Reduction("argmax" if op in _LARGER else "argmin", x, dim) if first else None
    return None


def _is_negation_of(condition: Scalar, node: Scalar) -> bool:
    return isinstance(condition, Apply) and condition.op == "not" and condition.args[0] is node
