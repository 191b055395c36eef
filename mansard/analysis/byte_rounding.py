"""Scalar bodies that round a number to a byte: ``u8(min(max(round(x) + 3.0, 0.0), 255.0))``."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Cast, Const, Scalar

_RANGES = {DType.I8: (-128, 127), DType.U8: (0, 255)}
_LARGEST_ZERO = 1 << 15
"""Zero points up to here are exact in f32 beside any byte."""


@dataclass(frozen=True)
class ByteRounding:
    """``min(max(round(x) + zero, low), high)`` as a byte."""

    x: Scalar
    zero: int
    low: int
    high: int


def rounded_to_byte(rounding: ByteRounding, dtype: DType) -> Cast:
    """The body that `byte_rounding` recognises."""
    whole: Scalar = Apply("round", (rounding.x,), DType.F32)
    if rounding.zero:
        whole = Apply("add", (whole, Const(float(rounding.zero), DType.F32)), DType.F32)
    above = Apply("max", (whole, Const(float(rounding.low), DType.F32)), DType.F32)
    return Cast(Apply("min", (above, Const(float(rounding.high), DType.F32)), DType.F32), dtype)


def byte_rounding(node: Cast) -> ByteRounding | None:
    """The rounding that a cast to i8 or u8 ends, or None."""
    if node.dtype not in _RANGES or node.arg.dtype is not DType.F32:
        return None
    body: Scalar = node.arg
    limits: dict[str, int] = {}
    while isinstance(body, Apply) and body.op in ("min", "max") and body.op not in limits:
        op = body.op
        body, limit = _with_literal(body)
        if limit is None:
            return None
        limits[op] = limit
    zero: int | None = 0
    if isinstance(body, Apply) and body.op == "add":
        body, zero = _with_literal(body)
    if len(limits) < 2 or zero is None or abs(zero) > _LARGEST_ZERO:
        return None
    if not isinstance(body, Apply) or body.op != "round":
        return None
    (least, largest), low, high = _RANGES[node.dtype], limits["max"], limits["min"]
    return ByteRounding(body.args[0], zero, low, high) if least <= low <= high <= largest else None


def _with_literal(node: Apply) -> tuple[Scalar, int | None]:
    """The operand of a binary op that is no literal, and the other as an integer; None where it is none."""
    left, right = node.args
    if isinstance(left, Const):
        left, right = right, left
    if not isinstance(right, Const) or float(right.value) != int(right.value):
        return left, None
    return left, int(right.value)
