"""Functions that a graph spells out: softmax, and activations of one operand.

::

    exp(x - max(x)) / sum(exp(x - max(x)))        Softmax
    1 / (1 + exp(-x))                             sigmoid
    x * min(max(x + 3, 0), 6) * (1 / 6)           hardswish
    x * 0.5 * (1 + erf(x * 0.7071))               gelu
    x * sigmoid(x)                                silu
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import (
    Broadcast,
    Conv,
    Elementwise,
    MatMul,
    NamedOp,
    Recode,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)

NEAR = 1e-5
_Matched = tuple[Value, str]


def fold_functions(e: Editor) -> None:
    """One op for each function that a graph spells out in f32. Clamps and encodings are not folded yet."""
    for op in e.listed():
        if not isinstance(op, Elementwise) or op.output.type.dtype is not DType.F32 or op.clamp is not None:
            continue
        parts: list[NamedOp] = [op]
        axis = _softmax(e, op, parts)
        if axis is not None:
            x, along = axis
            e.put(Softmax((x,), op.output, along, sources=sources(parts)))
            continue
        for pattern in _ACTIVATIONS:
            parts = [op]
            matched = pattern(e, op, parts)
            if matched is not None:
                x, name = matched
                e.put(Elementwise((x,), op.output, name, sources=sources(parts)))
                break
    e.sweep()


# Activations --------------------------------------------------------------------------------
def _sigmoid(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    if op.op != "div" or e.scalar(op.inputs[0]) != 1:
        return None
    below = _scalar_operand(e, e.producer(op.inputs[1]), "add", 1.0, parts)
    exp = _part(e, below, "exp", parts)
    neg = _part(e, exp.inputs[0], "neg", parts) if exp is not None else None
    return (neg.inputs[0], "sigmoid") if neg is not None else None


def _silu(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    if op.op != "mul":
        return None
    for x, other in (op.inputs, op.inputs[::-1]):
        sigmoid = _part(e, other, "sigmoid", parts)
        if sigmoid is not None and _same(e, sigmoid.inputs[0], x):
            return x, "silu"
    return None


def _hardswish(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    product = _part(e, _scalar_operand(e, op, "mul", 1 / 6, parts), "mul", parts)
    if product is None:
        return None
    for x, other in (product.inputs, product.inputs[::-1]):
        shifted = _relu6_of_shifted(e, other, parts)
        if shifted is not None and _same(e, shifted, x):
            return x, "hardswish"
    return None


def _hardswish_of_sigmoid(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    for x, other in (op.inputs, op.inputs[::-1]) if op.op == "mul" else ():
        sigmoid = _part(e, other, "hardsigmoid", parts)
        if sigmoid is not None and _same(e, sigmoid.inputs[0], x):
            return x, "hardswish"
    return None


def _hardsigmoid(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    scaled = _scalar_operand(e, op, "mul", 1 / 6, parts)
    shifted = _relu6_of_shifted(e, scaled, parts) if scaled is not None else None
    return None if shifted is None else (shifted, "hardsigmoid")


def _clamped_line(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    """``min(max(x * (1 / 6) + 0.5, 0), 1)``."""
    low = _scalar_operand(e, op, "min", 1.0, parts)
    line = None if low is None else _scalar_operand(e, e.producer(low), "max", 0.0, parts)
    scaled = None if line is None else _scalar_operand(e, e.producer(line), "add", 0.5, parts)
    x = None if scaled is None else _scalar_operand(e, e.producer(scaled), "mul", 1 / 6, parts)
    return None if x is None else (x, "hardsigmoid")


def _gelu(e: Editor, op: Elementwise, parts: list[NamedOp]) -> _Matched | None:
    if op.op != "mul":
        return None
    for half, other in (op.inputs, op.inputs[::-1]):
        x = _scalar_operand(e, e.producer(half), "mul", 0.5, parts)
        erf = _part(e, _scalar_operand(e, e.producer(other), "add", 1.0, parts), "erf", parts)
        inner = (
            None
            if erf is None
            else _scalar_operand(e, e.producer(erf.inputs[0]), "mul", math.sqrt(0.5), parts)
        )
        if x is not None and inner is not None and _same(e, x, inner):
            return x, "gelu"
    return None


_ACTIVATIONS: tuple[Callable[[Editor, Elementwise, list[NamedOp]], _Matched | None], ...] = (
    _sigmoid,
    _hardswish,
    _hardsigmoid,
    _clamped_line,
    _hardswish_of_sigmoid,
    _silu,
    _gelu,
)


def _relu6_of_shifted(e: Editor, value: Value, parts: list[NamedOp]) -> Value | None:
    """x of ``min(max(x + 3, 0), 6)``."""
    low = _scalar_operand(e, e.producer(value), "min", 6.0, parts)
    shifted = None if low is None else _scalar_operand(e, e.producer(low), "max", 0.0, parts)
    return None if shifted is None else _scalar_operand(e, e.producer(shifted), "add", 3.0, parts)


# Softmax ------------------------------------------------------------------------------------
def _softmax(e: Editor, op: Elementwise, parts: list[NamedOp]) -> tuple[Value, int] | None:
    """The operand and axis of ``exps / sum(exps)``, whose sums a small number may bound from below."""
    if op.op != "div":
        return None
    exps, below = op.inputs
    exp = _part(e, exps, "exp", parts)
    axis = _reduced(e, _bounded(e, below, parts, 1e-20), "add", exps, parts)
    if exp is None or axis is None:
        return None
    shifted = _part(e, exp.inputs[0], "sub", parts)
    if shifted is None:
        return None
    x, row_max = shifted.inputs
    largest = _bounded(e, row_max, parts, -1e30)
    if _reduced(e, largest, "max", x, parts) != axis:
        return None
    # The bound gives zeros for a row without a number, where Softmax has NaN.
    return (x, axis) if largest is row_max or _is_finite(e, x) else None


def _is_finite(e: Editor, value: Value) -> bool:
    """Whether no element is an infinity, as products of finite factors are none."""
    if value in e.constants:
        return bool(np.isfinite(e.array(value)).all())
    op = e.producer(value)
    if isinstance(op, (MatMul, Conv, Recode)):
        return True
    if isinstance(op, Elementwise) and op.op in ("add", "sub", "mul", "select", "tanh"):
        return all(_is_finite(e, v) for v in op.inputs if v.type.dtype is DType.F32)
    return isinstance(op, (Reshape, Transpose, Broadcast, Slice)) and _is_finite(e, op.inputs[0])


def _bounded(e: Editor, value: Value, parts: list[NamedOp], limit: float) -> Value:
    """What a maximum with a number of at most ``limit`` is taken of, or the value itself."""
    op = e.producer(value)
    if isinstance(op, Elementwise) and op.op == "max":
        for x, other in (op.inputs, op.inputs[::-1]):
            number = e.scalar(other)
            if number is not None and number <= limit:
                parts.append(op)
                return x
    return value


def _reduced(e: Editor, value: Value, kind: str, x: Value, parts: list[NamedOp]) -> int | None:
    """The axis of x along which a value is reduced from it: reshapes may drop dims of one element before, and
    put them back behind. A maximum may be one of the integers that stand for x."""
    op = _unreshaped(e, value, parts, decoded=kind == "max")
    if not isinstance(op, Reduce) or op.kind != kind or len(op.axes) != 1:
        return None
    if e.encodings.get(op.output) != e.encodings.get(op.inputs[0]):
        return None
    parts.append(op)
    given, shape = static(op.inputs[0].type.shape), static(x.type.shape)
    (reduced,) = op.axes
    long = [d for d, size in enumerate(shape) if size != 1]
    if given[reduced] == 1 or [n for n in given if n != 1] != [shape[d] for d in long]:
        return None
    if not _of_the_same(e, op.inputs[0], x, parts, decoded=kind == "max"):
        return None
    axis = long[sum(size != 1 for size in given[:reduced])]
    kept = tuple(1 if d == axis else size for d, size in enumerate(shape))
    return axis if value.type.shape == kept else None


def _of_the_same(e: Editor, value: Value, x: Value, parts: list[NamedOp], *, decoded: bool) -> bool:
    """Whether two values are one but for their reshapes or, with ``decoded``, stand for the same numbers."""
    below = {x, *(op.inputs[0] for op in _seen_through(e, x, decoded=decoded))}
    for op in () if value in below else _seen_through(e, value, decoded=decoded):
        parts.append(op)
        value = op.inputs[0]
        if value in below:
            break
    return value in below


def _unreshaped(e: Editor, value: Value, parts: list[NamedOp], *, decoded: bool) -> NamedOp | None:
    seen = _seen_through(e, value, decoded=decoded)
    parts += seen
    return e.producer(seen[-1].inputs[0] if seen else value)


def _seen_through(e: Editor, value: Value, *, decoded: bool) -> list[NamedOp]:
    """The reshapes that a value comes from, the last first; with ``decoded`` also what gives the numbers that
    integers with one scale stand for."""
    ops: list[NamedOp] = []
    while (op := e.producer(value)) is not None and op.clamp is None:
        encoding = e.encodings.get(op.inputs[0]) if op.inputs else None
        one = encoding is not None and len(encoding.scales) == 1
        decodes = isinstance(op, Recode) and one and op.output not in e.encodings
        if not isinstance(op, Reshape) and not (decoded and decodes):
            break
        ops.append(op)
        value = op.inputs[0]
    return ops


# Parts --------------------------------------------------------------------------------------
def _part(e: Editor, value: Value | None, name: str, parts: list[NamedOp]) -> Elementwise | None:
    """The op of a name that computes a value."""
    op = e.producer(value) if value is not None else None
    if not isinstance(op, Elementwise) or op.op != name:
        return None
    parts.append(op)
    return op


def _scalar_operand(
    e: Editor, op: NamedOp | None, name: str, number: float, parts: list[NamedOp]
) -> Value | None:
    """x of an op of x and a number."""
    if not isinstance(op, Elementwise) or op.op != name or len(op.inputs) != 2:
        return None
    for x, other in (op.inputs, op.inputs[::-1]):
        given = e.scalar(other)
        if given is not None and abs(given - number) <= NEAR and x.type.shape == op.output.type.shape:
            parts.append(op)
            return x
    return None


def _same(e: Editor, a: Value, b: Value) -> bool:
    """Whether two values are one, be it that one encoded value is decoded twice."""
    first, second = e.producer(a), e.producer(b)
    if isinstance(first, Recode) and isinstance(second, Recode) and a not in e.encodings:
        return first.inputs == second.inputs and b not in e.encodings
    return a is b
