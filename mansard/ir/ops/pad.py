"""Pad: a border of one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import DIMS, NUMBER, Keyword


@register_op
@dataclass(frozen=True, eq=False)
class Pad(Op):
    """``low`` elements before and ``high`` after along each dim, filled with ``value``."""

    low: tuple[DimLike, ...]
    high: tuple[DimLike, ...]
    value: float | int | bool

    attributes = (Keyword("low", DIMS), Keyword("high", DIMS), Keyword("value", NUMBER))

    def verify(self, check: OpCheck) -> None:
        """No padding is negative, and the result is larger by both."""
        check.counts((1,), 1)
        x = self.inputs[0]
        check.lengths(x, low=self.low, high=self.high)
        for amount in (*self.low, *self.high):
            check.known(amount, "the padding")
            if dims.bounds(amount)[1] < 0:
                raise check.fail(f"padding {amount} is negative")
        check.literal(self.value, x.type.dtype)
        shape = [dims.add(lo, d, hi) for lo, d, hi in zip(self.low, x.type.shape, self.high, strict=True)]
        check.typed(self.output, shape, x.type.dtype)

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """A copy."""
        (x,) = operands
        out = np.full(self.output.type.concrete(symbols), self.value, x.dtype)
        low = [dims.evaluate(n, symbols) for n in self.low]
        out[tuple(slice(n, n + size) for n, size in zip(low, x.shape, strict=True))] = x
        return [out]
