"""Assert: a condition that the call checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.errors import InputError
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import Text


@register_op
@dataclass(frozen=True, eq=False)
class Assert(Op):
    """Check ``inputs[0]`` (a bool tensor): the call fails with ``message`` when any element is false."""

    message: str

    attributes = (Text("message"),)
    has_effect = True

    def verify(self, check: OpCheck) -> None:
        """One bool operand, no result."""
        check.counts((1,), 0)
        if self.inputs[0].type.dtype is not DType.BOOL:
            raise check.fail(f"{self.inputs[0]} is {self.inputs[0].type.dtype.value}, not bool")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """Raises InputError with the message where the condition does not hold."""
        if not operands[0].all():
            raise InputError(self.message)
        return []
