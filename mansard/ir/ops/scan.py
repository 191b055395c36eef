"""Scan: running combinations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard.dtypes import DType
from mansard.ir.combiners import ARITHMETIC_COMBINERS, UFUNCS, neutral
from mansard.ir.interpreter.scalar import Array, to_register, to_storage
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import INTEGER, Choice, Flag, Keyword


@register_op
@dataclass(frozen=True, eq=False)
class Scan(Op):
    """Running combination of ``inputs[0]`` along ``axis`` (cumsum for add): result of the same type."""

    axis: int
    combiner: str = "add"
    inclusive: bool = True

    attributes = (
        Keyword("axis", INTEGER),
        Choice("combiner", ARITHMETIC_COMBINERS),
        Flag("exclusive", "inclusive", False),
    )

    def verify(self, check: OpCheck) -> None:
        """Numbers of one type."""
        check.counts((1,), 1)
        x = self.inputs[0]
        check.axis(x, self.axis)
        check.typed(self.output, x.type.shape, x.type.dtype)
        if self.combiner not in ARITHMETIC_COMBINERS:
            raise check.fail(f"combiner {self.combiner!r} is not one of {ARITHMETIC_COMBINERS}")
        if x.type.dtype is DType.BOOL:
            raise check.fail(f"{x} is bool, which a scan does not take")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """Sums of f32 are kept in f64."""
        (x,) = operands
        dtype = self.output.type.dtype
        values = to_register(x, dtype)
        wide = np.float64 if values.dtype == np.float32 else values.dtype
        out = np.asarray(UFUNCS[self.combiner].accumulate(values, axis=self.axis, dtype=wide))
        if not self.inclusive and x.shape[self.axis]:
            first = np.full_like(np.take(out, [0], self.axis), neutral(self.combiner, dtype))
            out = np.concatenate([first, np.delete(out, -1, self.axis)], self.axis)
        return [to_storage(out.astype(values.dtype), dtype)]
