"""Rewrite rules that simplify scalar bodies. Each preserves the value of every element.

Float rules preserve NaN, infinities and signed zeros: ``x * 1`` becomes ``x``, but ``x * 0`` and ``x + 0.0``
are kept. Small constant powers become products (as PyTorch computes them).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mansard.analysis.affine import Affine
from mansard.analysis.linear import dim_scalar, to_scalar, type_range
from mansard.dtypes import DType
from mansard.ir.interpreter import scalar as numpy_scalars
from mansard.ir.scalar import (
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    children,
    rewrite,
)
from mansard.ir.scalar_ops import COMPARE
from mansard.passes.canonical.float_extremes import float_extreme

MAX_SIZE = 64
"""The largest body, in nodes, whose branches are simplified separately."""

BOOL = DType.BOOL
Rule = Callable[[Apply, Affine], Scalar | None]

_MANTISSA = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8, DType.F8: 4}
_WIDER = {
    DType.F8: {DType.F16, DType.BF16, DType.F32, DType.F64},
    DType.F16: {DType.F32, DType.F64},
    DType.BF16: {DType.F32, DType.F64},
    DType.F32: {DType.F64},
    DType.F64: set(),
}


def simplify_node(node: Scalar, affine: Affine) -> Scalar:
    """Apply the first matching rule to ``node`` until none matches; its operands are already simplified."""
    for _ in range(16):
        new = _apply_rule(node, affine)
        if new is None:
            return node
        node = new
    return node


def _apply_rule(node: Scalar, affine: Affine) -> Scalar | None:
    match node:
        case Index():
            low, high = affine.ends[node.dim]
            return dim_scalar(low) if low == high else None
        case DimValue() if isinstance(node.value, int):
            return Const(node.value, DType.I64)
        case Cast():
            return _cast(node, affine)
        case Bitcast(Bitcast(inner)) if inner.dtype is node.dtype and inner.dtype.is_int:
            return inner
        case Apply():
            return _apply(node, affine)
        case _:
            return None


def _apply(node: Apply, affine: Affine) -> Scalar | None:
    folded = _fold(node)
    if folded is not None:
        return folded
    if node.dtype is DType.I64:
        linear = affine.linear(node)
        if linear is not None:
            canonical = to_scalar(linear)
            if _size(canonical) < _size(node):
                return canonical
    if node.op in COMPARE:
        return _compare(node, affine)
    if node.op == "select":
        return _select(node, affine)
    if node.op == "pow":
        return _pow(node)
    if node.op in ("add", "sub"):
        merged = _merged_branches(node, affine)
        if merged is not None:
            return merged
    rule = _FLOAT.get(node.op) if node.dtype.is_float else _INT.get(node.op)
    return rule(node, affine) if rule is not None else None


def _size(node: Scalar) -> int:
    """Number of Apply and Cast nodes along every path, up to MAX_SIZE."""
    total, stack = 0, [node]
    while stack and total < MAX_SIZE:
        top = stack.pop()
        total += isinstance(top, (Apply, Cast))
        stack.extend(children(top))
    return total


# Constants ----------------------------------------------------------------------------------
def _fold(node: Apply | Cast) -> Const | None:
    """The value of a node over constants, if a literal represents it exactly."""
    kids = children(node)
    if not all(isinstance(k, Const) for k in kids):
        return None
    registers = [numpy_scalars.literal(k.value, k.dtype) for k in kids if isinstance(k, Const)]
    with np.errstate(all="ignore"):
        if isinstance(node, Cast):
            value = numpy_scalars.cast(registers[0], node.arg.dtype, node.dtype)
        else:
            value = numpy_scalars.apply(node.op, registers, node.args[-1].dtype, node.dtype)
    result = Const(np.asarray(value).item(), node.dtype)
    exact = np.asarray(numpy_scalars.literal(result.value, node.dtype))
    return result if np.array_equal(exact, value, equal_nan=node.dtype.is_float) else None


def _const(node: Scalar) -> float | int | bool | None:
    return node.value if isinstance(node, Const) else None


def _is(node: Scalar, value: float) -> bool:
    """Whether ``node`` is the literal ``value``, with the same sign of zero."""
    if not isinstance(node, Const) or node.value != value:
        return False
    return math.copysign(1, node.value) == math.copysign(1, value)


def _is_zero(node: Scalar) -> bool:
    return isinstance(node, Const) and node.value == 0


def _zero(dtype: DType) -> Const:
    return Const(False if dtype is BOOL else 0, dtype)


# Casts --------------------------------------------------------------------------------------
def holds(target: DType, source: DType) -> bool:
    """Whether every value of ``source`` is a value of ``target``."""
    if source is target or source is BOOL:
        return True
    if source.is_float:
        return target in _WIDER[source]
    if target.is_float:
        return source.bits - source.is_signed <= _MANTISSA[target] and target is not DType.F8
    if target is BOOL:
        return False
    (low, high), (t_low, t_high) = type_range(source), type_range(target)
    return t_low <= low and high <= t_high


def _cast(node: Cast, affine: Affine) -> Scalar | None:
    folded = _fold(node)
    if folded is not None:
        return folded
    arg, target = node.arg, node.dtype
    if arg.dtype is target:
        # A cast to a narrower float rounds; it is only redundant on already rounded values.
        rounded = target not in numpy_scalars.NARROW or isinstance(arg, (Arg, Const, Gather, Cast))
        return arg if rounded else None
    if not isinstance(arg, Cast):
        return None
    origin, middle = arg.arg, arg.dtype
    if holds(middle, origin.dtype):
        # int -> float saturates where int -> int would wrap; both agree when nothing is lost.
        lossy = middle.is_float and target.is_int and origin.dtype.is_int and not holds(target, origin.dtype)
        return None if lossy else Cast(origin, target)
    if origin.dtype.is_int and middle.is_int and target.is_int:
        low, high = type_range(middle)
        o_low, o_high = affine.range(origin)
        if low <= o_low and o_high <= high:
            return Cast(origin, target)
    return None


# Comparisons and selects --------------------------------------------------------------------
def _compare(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    if not a.dtype.is_float:
        outcome = affine.compare(node.op, a, b)
        if outcome is None and a is b:
            outcome = node.op in ("eq", "le", "ge")
        if outcome is not None:
            return Const(outcome, BOOL)
    if node.op in ("eq", "ne") and isinstance(a, Const) and not isinstance(b, Const):
        return Apply(node.op, (b, a), BOOL)
    value = _const(b)
    if node.op not in ("eq", "ne") or value is None:
        return None
    if a.dtype is BOOL:
        return a if (value is True) == (node.op == "eq") else Apply("not", (a,), BOOL)
    if isinstance(a, Cast) and a.arg.dtype is BOOL and value in (0, 1):
        return a.arg if (value == 1) == (node.op == "eq") else Apply("not", (a.arg,), BOOL)
    return None


def _select(node: Apply, affine: Affine) -> Scalar | None:
    condition, then, other = node.args
    if isinstance(condition, Const):
        return then if condition.value else other
    if then is other or (isinstance(then, (Arg, Const, Index, DimValue)) and then == other):
        return then
    if isinstance(condition, Apply) and condition.op == "not":
        return Apply("select", (condition.args[0], other, then), node.dtype)
    if node.dtype is BOOL and isinstance(then, Const) and isinstance(other, Const):
        return condition if then.value else Apply("not", (condition,), BOOL)
    return (
        float_extreme(node)
        or _broadcast_index(condition, then, other, affine)
        or _narrowed_branches(node, affine)
    )


def _narrowed_branches(node: Apply, affine: Affine) -> Scalar | None:
    """Simplify each branch under its condition: in ``select(d < 8, min(d, 7), …)`` the first is ``d``."""
    condition, *branches = node.args
    # Inside a branch, nested selects are already simplified by their own condition: repeating that for each
    # would double the work with every level.
    if affine.narrowed or _size(node) >= MAX_SIZE:
        return None
    new = tuple(_simplified(b, affine.where(condition, i == 0)) for i, b in enumerate(branches))
    if all(a is b for a, b in zip(new, branches, strict=True)):
        return None
    return Apply("select", (condition, *new), node.dtype)


def _simplified(node: Scalar, affine: Affine | None) -> Scalar:
    return node if affine is None else rewrite(node, lambda n: simplify_node(n, affine))


def _merged_branches(node: Apply, affine: Affine) -> Scalar | None:
    """``x - select(c, a, b)`` if ``x - a`` where ``c`` holds and ``x - b`` elsewhere are the same
    constant."""
    for i, arg in enumerate(node.args):
        if not isinstance(arg, Apply) or arg.op != "select" or not node.dtype.is_int:
            continue
        condition, *branches = arg.args
        results = []
        for branch, outcome in zip(branches, (True, False), strict=True):
            args = (branch, node.args[1]) if i == 0 else (node.args[0], branch)
            linear = (affine.where(condition, outcome) or affine).linear(Apply(node.op, args, node.dtype))
            results.append(linear)
        if results[0] is not None and results[0] == results[1] and not results[0].terms:
            return Cast(dim_scalar(results[0].offset), node.dtype)
    return None


def _broadcast_index(condition: Scalar, then: Scalar, other: Scalar, affine: Affine) -> Scalar | None:
    """``select(extent(d) == 1, 0, d)`` is ``d``: the only index of a dim of extent 1 is 0."""
    if not (isinstance(condition, Apply) and condition.op in ("eq", "ne")):
        return None
    if condition.op == "ne":
        then, other = other, then
    size, one = condition.args
    if not (isinstance(size, DimValue) and _is(one, 1) and _is_zero(then) and isinstance(other, Index)):
        return None
    return other if affine.extents[other.dim] == size.value else None


# Powers -------------------------------------------------------------------------------------
def _pow(node: Apply) -> Scalar | None:
    base, exponent = node.args
    value = _const(exponent)
    if value is None:
        return None
    dtype = node.dtype
    if value in (1, 2, 3, 4):
        result = base
        if value in (2, 4):
            result = Apply("mul", (base, base), dtype)
        if value == 3:
            result = Apply("mul", (Apply("mul", (base, base), dtype), base), dtype)
        return Apply("mul", (result, result), dtype) if value == 4 else result
    if value == 0:
        return Const(1.0 if dtype.is_float else 1, dtype)
    if not dtype.is_float:
        return None
    if value == 0.5:
        return Apply("sqrt", (base,), dtype)
    if value == -0.5:
        return Apply("rsqrt", (base,), dtype)
    if value == -1:
        return Apply("div", (Const(1.0, dtype), base), dtype)
    return None


# Arithmetic ---------------------------------------------------------------------------------
def _float_add(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    # -0.0 is the neutral element: 0.0 would turn -0.0 into 0.0.
    return b if _is(a, -0.0) else a if _is(b, -0.0) else None


def _float_sub(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    return a if _is(b, 0.0) else None


def _float_mul(node: Apply, affine: Affine) -> Scalar | None:
    for a, b in (node.args, node.args[::-1]):
        if _is(b, 1):
            return a
        if _is(b, -1):
            return Apply("neg", (a,), node.dtype)
        # Not for floats in general: infinity, NaN and negative values have another result.
        if _is(b, 0.0) and isinstance(a, Cast) and a.arg.dtype.is_int and affine.range(a.arg)[0] >= 0:
            return b
    return None


def _float_div(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    value = _const(b)
    if value is None or not math.isfinite(value):
        return None
    if value == 0 and node.dtype is not DType.F8:  # which has no infinity
        # Exact, NaN of 0/0 included. Some drivers take a division by a literal 0 as undefined.
        return Apply("mul", (a, Const(math.copysign(math.inf, value), node.dtype)), node.dtype)
    if value == 1:
        return a
    # Division by a power of two is a multiplication with its exact reciprocal.
    if abs(math.frexp(value)[0]) == 0.5 and 2.0**-12 <= abs(value) <= 2.0**12:
        return Apply("mul", (a, Const(1 / value, node.dtype)), node.dtype)
    return None


def _neg(node: Apply, affine: Affine) -> Scalar | None:
    (a,) = node.args
    return a.args[0] if isinstance(a, Apply) and a.op == "neg" else None


def _abs(node: Apply, affine: Affine) -> Scalar | None:
    (a,) = node.args
    if isinstance(a, Apply) and a.op == "abs":
        return a
    if isinstance(a, Apply) and a.op == "neg" and a.dtype.is_float:
        return Apply("abs", a.args, node.dtype)
    return a if node.dtype.is_int and affine.range(a)[0] >= 0 else None


def _idempotent(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    return a if a is b else None


def _int_extreme(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    if a is b:
        return a
    low, high = affine.difference(a, b)
    if low >= 0:
        return b if node.op == "min" else a
    if high <= 0:
        return a if node.op == "min" else b
    return None


def _int_add(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    return b if _is_zero(a) else a if _is_zero(b) else None


def _int_sub(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    return a if _is_zero(b) else _zero(node.dtype) if a is b else None


def _int_mul(node: Apply, affine: Affine) -> Scalar | None:
    for a, b in (node.args, node.args[::-1]):
        if _is(b, 1):
            return a
        if _is_zero(b):
            return b
    return None


def _int_div(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    if _is(b, 1):
        return a
    # Non-negative values below the divisor divide to zero.
    if affine.range(a)[0] >= 0 and affine.difference(a, b)[1] < 0:
        return _zero(node.dtype)
    return None


def _int_rem(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    if _is(b, 1):
        return _zero(node.dtype)
    return a if affine.range(a)[0] >= 0 and affine.difference(a, b)[1] < 0 else None


def _shift(node: Apply, affine: Affine) -> Scalar | None:
    a, b = node.args
    return a if _is_zero(b) else None


def _not(node: Apply, affine: Affine) -> Scalar | None:
    (a,) = node.args
    if not isinstance(a, Apply):
        return None
    # Of these two exactly one holds, for NaN too; not so of "lt" and "ge".
    if a.op in _COMPLEMENT:
        return Apply(_COMPLEMENT[a.op], a.args, BOOL)
    return a.args[0] if a.op == "not" else None


def _logic(node: Apply, affine: Affine) -> Scalar | None:
    """``and`` and ``or`` with an absorbing or neutral literal."""
    if node.args[0] is node.args[1]:
        return node.args[0]
    ones: int | bool = True if node.dtype is BOOL else -1 if node.dtype.is_signed else 2**node.dtype.bits - 1
    neutral, absorbing = (ones, 0) if node.op == "and" else (0, ones)
    for a, b in (node.args, node.args[::-1]):
        value = _const(b)
        if value is not None and value == neutral:
            return a
        if value is not None and value == absorbing:
            return b
    return None


_COMPLEMENT = {"eq": "ne", "ne": "eq"}
_FLOAT: dict[str, Rule] = {
    "add": _float_add, "sub": _float_sub, "mul": _float_mul, "div": _float_div, "neg": _neg, "abs": _abs,
    "min": _idempotent, "max": _idempotent,
}  # fmt: skip
_INT: dict[str, Rule] = {
    "add": _int_add, "sub": _int_sub, "mul": _int_mul, "div": _int_div, "floordiv": _int_div,
    "rem": _int_rem, "neg": _neg, "abs": _abs, "min": _int_extreme, "max": _int_extreme, "shl": _shift,
    "shr": _shift, "not": _not, "and": _logic, "or": _logic,
}  # fmt: skip
