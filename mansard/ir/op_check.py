"""What the verification rules of ops are written with: each helper fails with a message about the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import VerificationError
from mansard.ir.shapes import same_shape
from mansard.ir.types import Value


class OpCheck:
    """The check of one op: its operands and results, the symbols that the graph binds."""

    def __init__(
        self,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        symbols: Mapping[str, Dim],
        fail: Callable[[str], VerificationError],
    ) -> None:
        self.inputs, self.outputs, self.symbols = inputs, outputs, symbols
        self.fail = fail
        """The error for a message, with the graph and the op it belongs to."""

    def counts(self, inputs: Sequence[int], outputs: int) -> None:
        """Fail unless the op has one of the operand counts and exactly ``outputs`` results."""
        if len(self.inputs) not in inputs:
            raise self.fail(f"has {len(self.inputs)} operands, not {' or '.join(map(str, inputs))}")
        if len(self.outputs) != outputs:
            raise self.fail(f"has {len(self.outputs)} results, not {outputs}")

    def typed(self, value: Value, shape: Sequence[DimLike], dtype: DType) -> None:
        """Fail unless ``value`` has the shape and dtype."""
        if value.type.dtype is not dtype:
            raise self.fail(f"{value} is {value.type.dtype.value}, not {dtype.value}")
        if not same_shape(value.type.shape, shape):
            expected = ", ".join(map(str, shape))
            raise self.fail(f"{value} has type {value.type}, its shape must be ({expected})")

    def lengths(self, value: Value, **lists: Sequence[object]) -> None:
        """Fail unless each list has one entry for each dim of ``value``."""
        for what, items in lists.items():
            if len(items) != value.type.rank:
                raise self.fail(f"{what} has {len(items)} entries for {value} of rank {value.type.rank}")

    def axis(self, value: Value, axis: int) -> None:
        """Fail unless ``axis`` is a dim of ``value``, counted from 0."""
        if not 0 <= axis < value.type.rank:
            raise self.fail(f"axis {axis} is not a dim of {value} of rank {value.type.rank}")

    def known(self, d: DimLike, what: str) -> None:
        """Fail when ``d`` uses a symbol that the graph does not bind."""
        if isinstance(d, int):
            return
        for s in d.symbols():
            if self.symbols.get(s.name) != s:
                raise self.fail(f"{what} uses {s}, which no input, state or parameter binds")

    def inside(self, what: str, low: DimLike, high: DimLike, extent: DimLike) -> None:
        """Fail when ``low`` is surely negative or ``high`` surely at or past ``extent``."""
        if dims.bounds(low)[1] < 0 or dims.bounds(dims.add(extent, -1, dims.mul(high, -1)))[1] < 0:
            raise self.fail(f"{what} reads {low} to {high} of a dim of {extent}")

    def literal(self, value: float | int | bool, dtype: DType) -> None:
        """Fail unless a Python number is a literal of ``dtype``."""
        if not is_literal(value, dtype):
            raise self.fail(f"{value!r} ({type(value).__name__}) is not a literal of {dtype.value}")


def is_literal(value: float | int | bool, dtype: DType) -> bool:
    """Whether a Python number is a literal of an element type."""
    if dtype is DType.BOOL:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if dtype.is_float:
        return isinstance(value, (float, int))
    low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    return isinstance(value, int) and low <= value < low + 2**dtype.bits
