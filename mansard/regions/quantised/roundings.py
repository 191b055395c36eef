"""Where real numbers become integers of few bits, and where these become real numbers again.

::

    u8(min(max(round(x * 29.4) + 131.0, 0.0), 255.0))    a `Rounding`: x in scale 1 / 29.4, zero point 131
    (f32(q) - 131.0) * 0.034                             `Numbers`: what q stands for
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.combiners import neutral
from mansard.ir.types import Value
from mansard.regions.named.editor import Editor
from mansard.regions.named.ops import Elementwise, NamedOp

NARROW = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})
"""Types of quantised values."""


@dataclass(frozen=True)
class Rounding:
    """``value = clamp(round(x / scale) + zero, low, high)``."""

    value: Value
    x: Value
    scale: float
    zero: int
    low: float
    high: float
    ops: tuple[NamedOp, ...]
    scaled: bool
    """Whether x is divided by a scale, be it 1; else the scale is 1."""


@dataclass(frozen=True)
class Numbers:
    """``result = (value - zero) * scale`` in f32."""

    result: Value
    value: Value
    scale: float
    zero: int
    ops: tuple[NamedOp, ...]
    shifted: bool
    """Whether a zero point is subtracted, be it 0."""


def find_roundings(e: Editor) -> list[Rounding]:
    """Every value of few bits that is computed by rounding."""
    roundings = []
    for op in e.listed():
        if op.output.type.dtype in NARROW and isinstance(op, Elementwise) and op.op in ("cast", "bitcast"):
            rounding = _rounding(e, op)
            if rounding is not None:
                roundings.append(rounding)
    return roundings


def find_numbers(e: Editor) -> list[Numbers]:
    """Every value of few bits that is made a real number: with the subtraction and the factor behind it."""
    casts = [op for op in e.listed() if isinstance(op, Elementwise) and op.op == "cast"]
    return [
        _numbers(e, op)
        for op in casts
        if op.output.type.dtype is DType.F32 and op.inputs[0].type.dtype in NARROW
    ]


def with_scalar(e: Editor, op: NamedOp | None, names: Sequence[str]) -> tuple[Value, float] | None:
    """The operand and the number of an elementwise op with a constant that has one number for all elements,
    which is the second operand, or either where the op commutes."""
    if not isinstance(op, Elementwise) or op.op not in names or len(op.inputs) != 2:
        return None
    x, y = op.inputs
    number = e.scalar(y)
    if number is None and op.op not in ("sub", "div"):
        x, number = y, e.scalar(x)
    if number is None or x in e.constants or x.type.shape != op.output.type.shape:
        return None
    return x, float(number)


def _rounding(e: Editor, last: NamedOp) -> Rounding | None:
    dtype = last.output.type.dtype
    least, most_ = float(neutral("max", dtype)), float(neutral("min", dtype))
    ops, value = list[NamedOp](), last.output
    op: NamedOp | None = last
    direct = True
    while isinstance(op, Elementwise) and op.op in ("cast", "bitcast") and value.type.dtype.is_int:
        direct = direct and (value is last.output or not op.output.type.dtype.is_int)
        ops.append(op)
        value = op.inputs[0]
        op = e.producer(value)
    low, high = -math.inf, math.inf
    while clamp := with_scalar(e, op, ("min", "max")):
        assert isinstance(op, Elementwise)
        low, high = (low, min(high, clamp[1])) if op.op == "min" else (max(low, clamp[1]), high)
        ops.append(op)
        op = e.producer(clamp[0])
        value = clamp[0]
    saturates = len([o for o in ops if isinstance(o, Elementwise) and o.op in ("cast", "bitcast")]) == 1
    if value.type.dtype is not DType.F32 or (not saturates and (low < least or high > most_)):
        return None
    zero = 0.0
    if shifted := with_scalar(e, op, ("add", "sub")):
        assert isinstance(op, Elementwise)
        zero = shifted[1] if op.op == "add" else -shifted[1]
        ops.append(op) if op is not None else None
        op = e.producer(shifted[0])
    if not isinstance(op, Elementwise) or op.op != "round" or zero != int(zero):
        return None
    ops.append(op)
    x, scale, scaled = op.inputs[0], 1.0, False
    op = e.producer(x)
    if (factor := with_scalar(e, op, ("mul", "div"))) and factor[1] > 0 and op is not None:
        assert isinstance(op, Elementwise)
        x, scale, scaled = factor[0], (1 / factor[1] if op.op == "mul" else factor[1]), True
        ops.append(op)
    low, high = max(low, least), min(high, most_)
    return Rounding(last.output, x, scale, int(zero), low, high, tuple(ops), scaled)


def _numbers(e: Editor, cast: Elementwise) -> Numbers:
    result, ops = cast.output, [cast]
    scale, zero = 1.0, 0
    reader = e.only_reader(result)
    shifted = with_scalar(e, reader, ("sub", "add"))
    if isinstance(reader, Elementwise) and shifted is not None and shifted[1] == int(shifted[1]):
        zero = int(shifted[1] if reader.op == "sub" else -shifted[1])
        result, ops = reader.output, [*ops, reader]
        reader = e.only_reader(result)
    factor = with_scalar(e, reader, ("mul",))
    if isinstance(reader, Elementwise) and factor is not None and factor[1] > 0:
        scale, result, ops = factor[1], reader.output, [*ops, reader]
    return Numbers(result, cast.inputs[0], scale, zero, tuple(ops), shifted is not None)
