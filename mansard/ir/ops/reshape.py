"""Reshape: other dims for the same elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.dims import DimLike
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.shapes import same_dim


@register_op
@dataclass(frozen=True, eq=False)
class Reshape(Op):
    """The same elements in row-major order under another shape (the result's type)."""

    def verify(self, check: OpCheck) -> None:
        """One operand, and as many elements of its type."""
        check.counts((1,), 1)
        before, after = self.inputs[0].type, self.output.type
        if before.dtype is not after.dtype:
            raise check.fail(
                f"{self.inputs[0]} is {before.dtype.value}, {self.output} is {after.dtype.value}"
            )
        if not same_dim(before.elements, after.elements):
            raise check.fail(f"{before} has {before.elements} elements, {after} has {after.elements}")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """A view."""
        return [operands[0].reshape(self.output.type.concrete(symbols))]

    def operations(self) -> DimLike:
        """None: the memory stays as it is."""
        return 0
