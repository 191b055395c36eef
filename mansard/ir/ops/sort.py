"""Sort: lines in order, or their first entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.interpreter.scalar import Array, to_register
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import INTEGER, Flag, Keyword

STEP_OPERATIONS = 100
"""Operations of products in the time of one step that waits for the one before and uses no vectors: about 200
on a core with AVX-512 (Xeon), 25 in a GPU's sorting network (H200)."""


@register_op
@dataclass(frozen=True, eq=False)
class Sort(Op):
    """Stable sort of ``inputs[0]`` along ``axis``: outputs are values and i64 indices.

    ``limit`` keeps the first entries only (top-k); NaN sorts as largest.
    """

    axis: int
    descending: bool = False
    limit: int | None = None

    attributes = (Keyword("axis", INTEGER), Flag("descending"), Keyword("limit", INTEGER, optional=True))

    def verify(self, check: OpCheck) -> None:
        """Two results, as long along ``axis`` as the limit says."""
        check.counts((1,), 2)
        x = self.inputs[0]
        check.axis(x, self.axis)
        shape = list(x.type.shape)
        if self.limit is not None:
            if self.limit < 0 or self.limit > dims.bounds(shape[self.axis])[1]:
                raise check.fail(f"limit {self.limit} is outside 0 to {shape[self.axis]}")
            shape[self.axis] = self.limit
        check.typed(self.outputs[0], shape, x.type.dtype)
        check.typed(self.outputs[1], shape, DType.I64)

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """A stable argsort."""
        (x,) = operands
        keys = to_register(x, self.inputs[0].type.dtype)
        if self.descending:
            # Reversing before and after keeps equal entries in their order.
            flipped = np.argsort(np.flip(keys, self.axis), axis=self.axis, kind="stable")
            order = keys.shape[self.axis] - 1 - np.flip(flipped, self.axis)
        else:
            order = np.argsort(keys, axis=self.axis, kind="stable")
        if self.limit is not None:
            order = np.take(order, np.arange(self.limit), axis=self.axis)
        order = order.astype(np.int64)
        return [np.take_along_axis(x, order, self.axis), order]

    def operations(self) -> DimLike:
        """A sort compares every element with every other of its line. A top-k compares each with the k-th so
        far, and inserts the about k * log(n / k) that are better among the k, one step after another."""
        elements, length = self.inputs[0].type.elements, self.inputs[0].type.shape[self.axis]
        kept, line = dims.representative(self.outputs[0].type.shape[self.axis]), dims.representative(length)
        if 4 * kept > line or not line:
            return dims.mul(dims.mul(elements, length), 4)
        lines = dims.representative(elements) // max(1, line)
        steps = lines * kept * kept * math.log(max(1, line) / max(1, kept))
        return dims.add(dims.mul(elements, 4), round(steps * STEP_OPERATIONS))
