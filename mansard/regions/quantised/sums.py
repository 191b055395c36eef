"""Sums of integers and what a graph makes of them: a scale and an offset for each channel, and clamps.

::

    %acc: i32 = Conv %x, %w
    %y = min(max((f32(%acc - %sums * 131) * %scales - %mean) * %factor, 0.0), 6.0)

is ``clamp(scale * acc + offset)`` with one scale and one offset for each output channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import Array, static
from mansard.regions.named.editor import Editor
from mansard.regions.named.ops import Conv, Elementwise, MatMul, NamedOp, Reduce, Reshape, Transpose
from mansard.regions.quantised.roundings import NARROW


@dataclass
class Sum:
    """A sum of integers up to ``end``: the core op in i32, what follows it, and what that computes."""

    core: NamedOp
    end: Value
    scale: Array
    """For each channel, or one."""
    offset: Array
    clamp: tuple[float, float] = (-math.inf, math.inf)
    ops: list[NamedOp] = field(default_factory=list)
    views: list[NamedOp] = field(default_factory=list)
    """Reshapes and transposes on the way, in order."""
    corrections: list[tuple[Value, int]] = field(default_factory=list)
    """Values that are added to the integers, with factors: sums of operands, for zero points."""
    channel: int | None = None
    """The dim of ``end`` that is the channels'."""

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values of few bits that are summed."""
        return self.core.inputs[:2] if not isinstance(self.core, Reduce) else (self.ops[0].inputs[0],)


def find_sums(e: Editor) -> list[Sum]:
    """Every product, convolution and reduction of values of few bits, with what is made of its sums."""
    sums = []
    for op in e.listed():
        if op.output.type.dtype is not DType.I32:
            continue
        if isinstance(op, (Conv, MatMul)) and all(v.type.dtype in NARROW for v in op.inputs):
            channels = static(op.output.type.shape)[-1]
            one = np.ones(channels)
            sums.append(_follow(e, Sum(op, op.output, one, 0 * one, channel=op.output.type.rank - 1)))
        elif isinstance(op, Reduce) and op.kind == "add" and (cast := _widened(e, op.inputs[0])):
            sums.append(_follow(e, Sum(op, op.output, np.ones(1), np.zeros(1), ops=[cast])))
    return [each for each in sums if each is not None]


def _widened(e: Editor, value: Value) -> Elementwise | None:
    op = e.producer(value)
    widens = isinstance(op, Elementwise) and op.op == "cast" and op.inputs[0].type.dtype in NARROW
    return op if widens and isinstance(op, Elementwise) else None


def _follow(e: Editor, sum_: Sum) -> Sum | None:
    """The sum with all that follows it; None where it does not become a real number."""
    sum_.ops.append(sum_.core)
    while (reader := e.only_reader(sum_.end)) is not None and _step(e, sum_, reader):
        sum_.ops.append(reader)
        sum_.end = reader.output
    return sum_ if sum_.end.type.dtype is DType.F32 else None


def _step(e: Editor, s: Sum, op: NamedOp) -> bool:
    """Whether an op that reads the end belongs to the sum; what it computes is then part of it."""
    if isinstance(op, (Reshape, Transpose)):
        s.channel = _moved(s.channel, op)
        s.views.append(op)
        return True
    if not isinstance(op, Elementwise) or op.output.type.shape != s.end.type.shape:
        return False
    if op.op == "cast":
        return op.output.type.dtype is DType.F32
    if op.op not in ("add", "sub", "mul", "div", "min", "max") or len(op.inputs) != 2:
        return False
    first, second = op.inputs
    if second is s.end and first is not s.end and op.op not in ("sub", "div"):
        first, second = second, first
    if first is not s.end:
        return False
    if s.end.type.dtype.is_int:
        return _integer_step(e, s, op.op, second)
    vector = _per_channel(e, s, second)
    return vector is not None and _real_step(s, op.op, vector)


def _integer_step(e: Editor, s: Sum, op: str, operand: Value) -> bool:
    if op not in ("add", "sub"):
        return False
    sign = 1 if op == "add" else -1
    vector = _per_channel(e, s, operand)
    if vector is not None:
        s.offset = s.offset + sign * vector
        return True
    product = e.producer(operand)
    if isinstance(product, Elementwise) and product.op == "mul" and len(product.inputs) == 2:
        for value, other in (product.inputs, product.inputs[::-1]):
            factor = e.scalar(other)
            if factor is not None:
                s.corrections.append((value, sign * int(factor)))
                return True
    if operand not in e.constants:
        s.corrections.append((operand, sign))
        return True
    return False


def _real_step(s: Sum, op: str, vector: Array) -> bool:
    clamped = s.clamp != (-math.inf, math.inf)
    one = vector.size == 1 or bool((vector == vector[0]).all())
    if not np.isfinite(vector).all() or (clamped and not one):
        return False
    number = float(vector.reshape(-1)[0])
    low, high = s.clamp
    if op in ("min", "max"):
        if not one:
            return False
        s.clamp = (
            (min(low, number), min(high, number)) if op == "min" else (max(low, number), max(high, number))
        )
        return True
    if op in ("mul", "div"):
        if (clamped and number <= 0) or (op == "div" and (vector == 0).any()):
            return False
        factors = vector if op == "mul" else 1 / vector
        s.scale, s.offset = s.scale * factors, s.offset * factors
        if clamped:
            s.clamp = (low * float(factors.reshape(-1)[0]), high * float(factors.reshape(-1)[0]))
        return True
    shift = vector if op == "add" else -vector
    s.offset = s.offset + shift
    if clamped:
        s.clamp = (low + float(shift.reshape(-1)[0]), high + float(shift.reshape(-1)[0]))
    return True


def _per_channel(e: Editor, s: Sum, value: Value) -> Array | None:
    """A constant as one number, or one for each channel."""
    if value not in e.constants:
        return None
    shape = static(value.type.shape)
    long = [d for d, size in enumerate(shape) if size != 1]
    if long and (long != [s.channel] or shape[long[0]] != s.scale.size):
        number = e.scalar(value)
        return None if number is None else np.array([float(number)])
    return e.array(value).astype(np.float64).reshape(-1)


def _moved(channel: int | None, view: NamedOp) -> int | None:
    """Where a view puts the dim of the channels; None where it is divided or merged."""
    if channel is None:
        return None
    if isinstance(view, Transpose):
        return view.permutation.index(channel)
    given, shape = static(view.inputs[0].type.shape), static(view.output.type.shape)
    behind = math.prod(given[channel + 1 :])
    places = [d for d, n in enumerate(shape) if n == given[channel] and math.prod(shape[d + 1 :]) == behind]
    return places[0] if places else None
