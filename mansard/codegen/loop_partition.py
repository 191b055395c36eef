"""Loop partitioning: a loop is split where a condition changes its outcome, so that the pieces need none.

Before (rotary embedding: the halves of a row change places)::

    for d in 0 … 128:  select(d < 64, neg(x{…, d + 64}), x{…, d - 64})

After::

    for d in 0 … 64:    neg(x[…, d + 64])
    for d in 64 … 128:  x[…, d - 64]

Within a piece the conditions are literals, and gathers whose indices are then affine and inside their
operand are plain reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mansard.analysis.affine import Affine
from mansard.analysis.linear import Ends
from mansard.analysis.specialise import specialise
from mansard.codegen.loop_nest import Nest, Root
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, walk
from mansard.ir.scalar_ops import COMPARE
from mansard.ir.types import Linear

MAX_PIECES = 8
"""Pieces of a loop; with more, kernels grow and nothing is gained."""


@dataclass(frozen=True)
class LoopPiece:
    """Iterations ``lower`` to ``upper`` of a loop, and the ops specialised to them."""

    lower: int
    upper: int
    ops: dict[Generic, Generic]


def partition_loop(nest: Nest, loop: int, roots: Sequence[Root] | None = None) -> list[LoopPiece]:
    """The pieces of a loop of known extent, in order; a single one, of the ops as they are, without a reason.

    ``roots`` are those to look at: all of the nest's unless given.
    """
    extent = nest.extents[loop]
    assert isinstance(extent, int)
    used = list(_computed(nest, nest.roots if roots is None else roots))
    cuts = sorted({cut for op, index in used for cut in _cuts(op, index, loop) if 0 < cut < extent})
    if not cuts or len(cuts) >= MAX_PIECES:
        return [LoopPiece(0, extent, {})]
    bounds = [0, *cuts, extent]
    return [_piece(used, loop, lower, upper) for lower, upper in itertools.pairwise(bounds)]


def _computed(nest: Nest, roots: Sequence[Root]) -> Iterator[tuple[Generic, tuple[Linear, ...]]]:
    """Every op the roots compute, with its dims over the loops; ops computed at two places are left out."""
    seen: dict[Generic, tuple[Linear, ...] | None] = {}
    stack = [(root.op, tuple(root.index)) for root in roots]
    while stack:
        op, index = stack.pop()
        if op in seen:
            if seen[op] != index:
                seen[op] = None
            continue
        seen[op] = index
        for node in walk(op.body):
            if isinstance(node, Arg):
                value, where = nest.locate(op.inputs[node.index], nest.operand_index(op, node.index, index))
                producer = nest.producers.get(value)
                if isinstance(producer, Generic) and producer.combiner is None and isinstance(where, tuple):
                    stack.append((producer, where))
    return ((op, index) for op, index in seen.items() if index is not None)


def _cuts(op: Generic, index: Sequence[Linear], loop: int) -> Iterator[int]:
    """Iterations at which a comparison under a select may change its outcome."""
    affine = Affine(op.extents)
    for select in walk(op.body):
        if not (isinstance(select, Apply) and select.op == "select"):
            continue
        for node in walk(select.args[0]):
            if not (isinstance(node, Apply) and node.op in COMPARE and node.args[0].dtype.is_int):
                continue
            a, b = (affine.linear(arg) for arg in node.args)
            if a is None or b is None:
                continue
            difference = a.compose(index).plus(b.compose(index).scaled(-1))
            terms = [t for t in difference.terms if t[0] == loop]
            if len(difference.terms) != 1 or not terms or not isinstance(difference.offset, int):
                continue
            step = terms[0][1]
            if step in (1, -1):
                # Where the difference is 0, and where it first has the other sign.
                zero = -difference.offset if step == 1 else difference.offset
                yield from _switches(node.op if step == 1 else _MIRRORED[node.op], zero)


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def _switches(op: str, zero: int) -> tuple[int, ...]:
    """First iterations with another outcome of ``loop - zero (op) 0``."""
    if op in ("eq", "ne"):
        return zero, zero + 1
    return (zero,) if op in ("lt", "ge") else (zero + 1,)


def _piece(
    used: Sequence[tuple[Generic, tuple[Linear, ...]]], loop: int, lower: int, upper: int
) -> LoopPiece:
    ops = {}
    for op, index in used:
        ends: dict[int, Ends] = {}
        for d, position in enumerate(index):
            if position.single == loop:
                ends[d] = (lower, upper - 1)
        new = specialise(op, ends) if ends else op
        if new is not op:
            ops[op] = new
    return LoopPiece(lower, upper, ops)
