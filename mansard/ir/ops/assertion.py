"""Assert: what the host checks of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.interpreter.scalar import Array
from mansard.ir.op_check import OpCheck
from mansard.ir.ops.base import Op
from mansard.ir.ops.registry import register_op
from mansard.ir.text.attributes import DIMS, Keyword, Text
from mansard.plan.assertions import check_condition, check_indices


@register_op
@dataclass(frozen=True, eq=False)
class Assert(Op):
    """Check ``inputs[0]``: the call fails unless all of its elements are as they must be.

    Without ``limits`` it is a bool tensor, whose elements must be true; ``message`` says what does not hold.
    With ``limits`` (low, high) it is an integer tensor of indices in ``low … high - 1``; ``message`` names
    the op that reads them.
    """

    message: str
    limits: tuple[DimLike, ...] | None = None

    attributes = (Keyword("limits", DIMS, optional=True), Text("message"))
    has_effect = True

    def verify(self, check: OpCheck) -> None:
        """One operand, of bools or of integers with two limits; no result."""
        check.counts((1,), 0)
        (operand,) = self.inputs
        if self.limits is None:
            if operand.type.dtype is not DType.BOOL:
                raise check.fail(f"{operand} is {operand.type.dtype.value}, not bool")
            return
        if not operand.type.dtype.is_int:
            raise check.fail(f"{operand} is {operand.type.dtype.value}, not an integer type")
        if len(self.limits) != 2:
            raise check.fail(f"has {len(self.limits)} limits, not a lowest index and a bound")
        for limit in self.limits:
            check.known(limit, "a limit")

    def evaluate(self, operands: Sequence[Array], symbols: Mapping[str, int]) -> list[Array]:
        """Raises ModelAssertionError with the message, or IndexOutOfRangeError."""
        (array,) = operands
        where = self.location.text
        if self.limits is None:
            check_condition(array, self.message, where)
            return []
        low, high = (dims.evaluate(limit, symbols) for limit in self.limits)
        check_indices(array, low, high, self.message, where)
        return []
