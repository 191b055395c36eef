"""Sums that a condition makes zero: their loops end before they begin, and nothing is read for them.

    sum over k of select(place >= 0, x[k] * w[max(place, 0), k], 0)        place does not depend on k

is, with a bound that the kernel computes, ``sum over k < select(place >= 0, K, 0) of x[k] * w[…]``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.ir.scalar import Apply, Arg, Cast, Const, Scalar, walk


@dataclass(frozen=True)
class GuardedSum:
    """A sum that is ``root`` where ``condition``, over the operands of ``original``, holds, else zero."""

    root: Root
    original: Root
    condition: Scalar

    def bound(self, ev: Evaluator, end: KValue) -> KValue:
        """``end`` of a loop over summands, or 0; the loops of the condition have to be bound."""
        vector, ev.vector = ev.vector, None
        holds = ev.part(self.original, self.condition)
        ev.vector = vector
        return ev.b.select(holds, end, ev.b.idx(0))


def guarded_sum(nest: Nest, root: Root, loops: Collection[int]) -> GuardedSum | None:
    """A sum whose condition depends on ``loops`` alone; None for any other."""
    body = root.op.body
    if root.op.combiner != "add" or not isinstance(body, Apply) or body.op != "select":
        return None
    condition, summand, otherwise = body.args
    if not isinstance(otherwise, Const) or otherwise.value != 0:
        return None
    for node in walk(condition):
        if isinstance(node, Arg):
            if not _read_along(nest, root, node, loops):
                return None
        elif not isinstance(node, Apply | Cast | Const):
            return None
    return GuardedSum(
        dataclasses.replace(root, op=dataclasses.replace(root.op, body=summand)), root, condition
    )


def _read_along(nest: Nest, root: Root, arg: Arg, loops: Collection[int]) -> bool:
    """Whether an operand is a buffer, read at an address over some loops."""
    index_map = root.op.maps[arg.index]
    value = root.op.inputs[arg.index]
    if index_map is None or index_map.fill is not None or value in nest.producers:
        return False
    index = nest.operand_index(root.op, arg.index, root.index)
    return all(loop in loops or nest.extents[loop] == 1 for linear in index for loop, _ in linear.terms)
