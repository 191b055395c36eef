"""Concat: operands one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import INTEGER, Keyword


@register_op
@dataclass(frozen=True, eq=False)
class Concat(Op):
    """The inputs one after another along ``axis``."""

    axis: int

    attributes = (Keyword("axis", INTEGER),)

    def verify(self, check: OpCheck) -> None:
        """The operands agree in all dims but ``axis``, along which the result has the sum."""
        if not self.inputs:
            raise check.fail("has no operand")
        check.counts((len(self.inputs),), 1)
        first = self.inputs[0]
        check.axis(first, self.axis)
        for value in self.inputs:
            if value.type.rank != first.type.rank:
                raise check.fail(f"{value} has rank {value.type.rank}, {first} has {first.type.rank}")
            shape = list(first.type.shape)
            shape[self.axis] = value.type.shape[self.axis]
            check.typed(value, shape, first.type.dtype)
        shape = list(first.type.shape)
        shape[self.axis] = dims.add(*(v.type.shape[self.axis] for v in self.inputs))
        check.typed(self.output, shape, first.type.dtype)

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """A copy."""
        return [np.concatenate(operands, self.axis)]
