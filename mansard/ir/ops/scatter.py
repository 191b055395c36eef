"""Scatter: rows written to computed places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.dtypes import DType
from mansard.ir.combiners import ARITHMETIC_COMBINERS, UFUNCS
from mansard.ir.interpreter.scalar import Array, to_register, to_storage
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import Choice, Flag


@register_op
@dataclass(frozen=True, eq=False)
class Scatter(Op):
    """``inputs = (target, indices, updates)``: a copy of target with updates written or combined.

    ``indices`` is i64 of shape (N, K) and ``updates`` of shape (N, *target.shape[K:]): row ``n``
    goes to ``target[indices[n]]``. Rows are applied in order; ``combiner`` None overwrites, else is
    add, mul, min or max. Rows with an index outside the target are dropped. ``unique`` promises that
    no two rows inside the target have the same index (`mansard.passes.canonical.unique_indices`): any
    order then gives the same result.
    """

    combiner: str | None = None
    unique: bool = False

    attributes = (Choice("combiner", ARITHMETIC_COMBINERS, optional=True), Flag("unique"))
    in_place_operand = 0

    def verify(self, check: OpCheck) -> None:
        """Shapes as stated; K is known."""
        check.counts((3,), 1)
        target, indices, updates = self.inputs
        if indices.type.rank != 2 or indices.type.dtype is not DType.I64:
            raise check.fail(f"indices {indices} are {indices.type}, not NxKxi64")
        rows, width = indices.type.shape
        if not isinstance(width, int) or width > target.type.rank:
            raise check.fail(
                f"indices {indices} have {width} columns for {target} of rank {target.type.rank}"
            )
        check.typed(updates, (rows, *target.type.shape[width:]), target.type.dtype)
        check.typed(self.output, target.type.shape, target.type.dtype)
        if self.combiner not in (None, *ARITHMETIC_COMBINERS):
            raise check.fail(f"combiner {self.combiner!r} is not None or one of {ARITHMETIC_COMBINERS}")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """NumPy keeps the last of repeated indices, which is the order the op states."""
        target, indices, updates = operands
        dtype = self.output.type.dtype
        bounds = np.array(target.shape[: indices.shape[1]], np.int64)
        inside = ((indices >= 0) & (indices < bounds)).all(axis=1)
        where = tuple(indices[inside].T)
        out = np.array(to_register(target, dtype))
        rows = to_register(updates[inside], dtype)
        if not where:  # zero columns: every row addresses the whole target
            where = (np.zeros(len(rows), np.int64),)
            out = out[None]
        if self.combiner is None:
            out[where] = rows
        else:
            UFUNCS[self.combiner].at(out, where, rows)
        return [to_storage(out.reshape(target.shape), dtype)]
