"""Conversion of scalar ops of the ``arith`` and ``math`` dialects to scalar trees, by tables.

Differences from MLIR, all where MLIR's result is undefined: conversions of floats to integers saturate;
shifts and divisions are total. Fast-math flags are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mansard.dtypes import DType
from mansard.frontends.linalg.reduction import without_nan
from mansard.frontends.linalg.scalars import Space, as_dim
from mansard.frontends.linalg.values import Out
from mansard.ir.scalar import Const, Scalar

Rule = Callable[[Space, Any, list[Scalar], DType], Scalar]
"""Builds the scalar of an op's only result from the space, the op, its operands and the result's type."""

_UNARY = {
    "arith.negf": "neg", "math.absf": "abs", "math.absi": "abs", "math.sqrt": "sqrt", "math.rsqrt": "rsqrt",
    "math.exp": "exp", "math.exp2": "exp2", "math.expm1": "expm1", "math.log": "log", "math.log2": "log2",
    "math.log1p": "log1p", "math.erf": "erf", "math.sin": "sin", "math.cos": "cos", "math.tan": "tan",
    "math.tanh": "tanh", "math.sinh": "sinh", "math.cosh": "cosh", "math.asin": "asin", "math.acos": "acos",
    "math.atan": "atan", "math.floor": "floor", "math.ceil": "ceil", "math.roundeven": "round",
    "math.trunc": "trunc", "math.isnan": "isnan", "math.isinf": "isinf",
}  # fmt: skip
_BINARY = {
    "arith.addf": "add", "arith.addi": "add", "arith.subf": "sub", "arith.subi": "sub",
    "arith.mulf": "mul", "arith.muli": "mul", "arith.divf": "div", "arith.divsi": "div",
    "arith.remf": "rem", "arith.remsi": "rem", "arith.floordivsi": "floordiv",
    "arith.maximumf": "max", "arith.minimumf": "min", "arith.maxsi": "max", "arith.minsi": "min",
    "arith.andi": "and", "arith.ori": "or", "arith.xori": "xor", "arith.shli": "shl", "arith.shrsi": "shr",
    "math.powf": "pow", "math.ipowi": "pow", "math.atan2": "atan2",
}  # fmt: skip
_CASTS = ("arith.extf", "arith.truncf", "arith.extsi", "arith.sitofp", "arith.fptosi", "arith.index_cast")
_CMPF = {
    1: ("eq", False), 2: ("gt", False), 3: ("ge", False), 4: ("lt", False), 5: ("le", False),
    9: ("le", True), 10: ("lt", True), 11: ("ge", True), 12: ("gt", True), 13: ("ne", False),
}  # fmt: skip
"""``arith.cmpf`` predicates: the ordered comparison and whether it is negated (``ugt`` is not ``le``)."""
_CMPI = {0: "eq", 1: "ne", 2: "lt", 3: "le", 4: "gt", 5: "ge", 6: "lt", 7: "le", 8: "gt", 9: "ge"}
"""``arith.cmpi`` predicates; from 6 on they are unsigned."""


def _unary(name: str) -> Rule:
    return lambda space, op, args, dtype: space.unary(name, args[0])


def _binary(name: str) -> Rule:
    def rule(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
        a, b = args
        if dtype is DType.BOOL:  # one-bit integers
            return space.binary({"add": "xor", "sub": "xor", "mul": "and"}.get(name, name), a, b)
        return space.binary(name, a, b)

    return rule


def _cast(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x = args[0]
    if x.dtype is DType.BOOL and dtype.is_int and op.name == "arith.extsi":
        return space.select(x, Const(-1, dtype), Const(0, dtype))
    if x.dtype is DType.BOOL and dtype.is_float and op.name == "arith.sitofp":
        return space.select(x, Const(-1.0, dtype), Const(0.0, dtype))
    return space.cast(x, dtype)


def _trunci(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x = args[0]
    if dtype is not DType.BOOL:
        return space.cast(x, dtype)
    low_bit = space.binary("and", x, Const(1, x.dtype))
    return space.compare("ne", low_bit, Const(0, x.dtype))


def unsigned_value(space: Space, x: Scalar, dtype: DType) -> Scalar:
    """An integer interpreted as unsigned, converted to ``dtype`` (a wide enough integer, or a float)."""
    if x.dtype is DType.BOOL or space.non_negative(x):
        return space.cast(x, dtype)
    if x.dtype is DType.I8:
        return space.cast(space.bitcast(x, DType.U8), dtype)
    if dtype.is_int:
        mask = Const((1 << x.dtype.bits) - 1, dtype)
        return space.binary("and", space.cast(x, dtype), mask) if dtype.bits > x.dtype.bits else x
    signed = space.cast(x, dtype)
    wrapped = space.binary("add", signed, Const(float(1 << x.dtype.bits), dtype))
    return space.select(space.compare("lt", x, Const(0, x.dtype)), wrapped, signed)


def _extui(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    return unsigned_value(space, args[0], dtype)


def _fptoui(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x = args[0]
    if dtype is DType.I8:
        return space.bitcast(space.cast(x, DType.U8), DType.I8)
    if dtype is DType.BOOL:
        return space.cast(x, dtype)
    return space.cast(space.cast(x, DType.I64), dtype)


def _bitcast(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    return space.bitcast(args[0], dtype)


def _cmpf(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    predicate = op.attributes["predicate"].value
    a, b = args
    if predicate in _CMPF:
        name, negated = _CMPF[predicate]
        result = space.compare(name, a, b)
        return space.unary("not", result) if negated else result
    if predicate in (6, 8):  # one, ueq
        differs = space.binary("or", space.compare("lt", a, b), space.compare("gt", a, b))
        return differs if predicate == 6 else space.unary("not", differs)
    if predicate in (7, 14):  # ord, uno
        unordered = space.unary("isnan", a)
        if b is not a:
            unordered = space.binary("or", unordered, space.unary("isnan", b))
        return unordered if predicate == 14 else space.unary("not", unordered)
    return Const(predicate == 15, DType.BOOL)


def _cmpi(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    predicate = op.attributes["predicate"].value
    a, b = args
    if predicate >= 6:
        a, b = unsigned_order(space, a), unsigned_order(space, b)
    elif predicate >= 2 and a.dtype is DType.BOOL:  # a set one-bit integer is -1
        a, b = b, a
    return space.compare(_CMPI[predicate], a, b)


def unsigned_order(space: Space, x: Scalar) -> Scalar:
    """A signed integer with the order of ``x`` as unsigned (its top bit is flipped)."""
    if x.dtype is DType.BOOL or not x.dtype.is_signed:
        return x
    return space.binary("xor", x, Const(-(1 << (x.dtype.bits - 1)), x.dtype))


def _unsigned_extreme(name: str) -> Rule:
    def rule(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
        a, b = args
        if space.non_negative(a) and space.non_negative(b):
            return space.binary(name, a, b)
        below = space.compare("lt", unsigned_order(space, a), unsigned_order(space, b))
        return space.select(below, a, b) if name == "min" else space.select(below, b, a)

    return rule


def _unsigned_division(name: str) -> Rule:
    """Unsigned division: signed where both operands are non-negative, otherwise in a wider type."""

    def rule(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
        a, b = args
        if dtype.bits < 64 and not (space.non_negative(a) and space.non_negative(b)):
            wide = [unsigned_value(space, x, DType.I64) for x in args]
            return space.cast(space.binary(name, wide[0], wide[1]), dtype)
        # 64-bit unsigned values at or above 2**63 do not occur: frontends use them for sizes.
        return space.binary(name, a, b)

    return rule


def _shrui(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x, amount = args
    if space.non_negative(x):
        return space.binary("shr", x, amount)
    bits = dtype.bits
    shifted = space.binary("shr", x, amount)
    ones = space.binary("shl", Const(-1, dtype), space.binary("sub", Const(bits, dtype), amount))
    mask = space.binary("xor", ones, Const(-1, dtype))
    unshifted = space.compare("eq", amount, Const(0, dtype))  # a shift by the full width is undefined
    return space.select(unshifted, x, space.binary("and", shifted, mask))


def _ceildivsi(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    a, b = args
    if as_dim(a) is not None and as_dim(b) is not None and space.non_negative(b):
        raised = space.binary("add", a, space.binary("sub", b, Const(1, dtype)))
        return space.binary("floordiv", raised, b)
    floor = space.binary("floordiv", a, b)  # negating a instead would overflow for the lowest value
    inexact = space.compare("ne", space.binary("mul", floor, b), a)
    return space.binary("add", floor, space.cast(inexact, dtype))


def _select(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    return space.select(args[0], args[1], args[2])


def _number_extreme(name: str) -> Rule:
    """``maxnumf`` and ``minnumf``: NaN only when both are NaN."""

    def rule(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
        a, b = args
        if any(isinstance(x, Out) for x in args):
            # A running extreme, which is NaN only where a reduction begins with NaN.
            a, b = (x if isinstance(x, Out) else without_nan(name, x) for x in args)
            return space.binary(name, a, b)
        both = space.binary(name, a, b)
        if isinstance(b, Const) and b.value == b.value:
            return space.select(space.unary("isnan", a), b, both)
        inner = space.select(space.unary("isnan", b), a, both)
        return space.select(space.unary("isnan", a), b, inner)

    return rule


def _fma(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    return space.binary("add", space.binary("mul", args[0], args[1]), args[2])


def _fpowi(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    base, exponent = args
    if isinstance(exponent, Const) and 0 < abs(int(exponent.value)) <= 8:
        return small_power(space, base, int(exponent.value))
    return space.binary("pow", base, space.cast(exponent, dtype))


def _powf(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    base, exponent = args
    if isinstance(exponent, Const) and exponent.value in (1.0, 2.0, 3.0, -1.0):
        return small_power(space, base, int(exponent.value))
    return space.binary("pow", base, exponent)


def small_power(space: Space, base: Scalar, exponent: int) -> Scalar:
    """An integer power by repeated multiplication."""
    if exponent < 0:
        return space.binary("div", Const(1.0, base.dtype), small_power(space, base, -exponent))
    if exponent == 1:
        return base
    half = small_power(space, base, exponent // 2)
    square = space.binary("mul", half, half)
    return space.binary("mul", square, base) if exponent % 2 else square


def _round(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    """Half away from zero: adding 0.5 first would round 0.49999997 up."""
    x = args[0]
    whole = space.unary("trunc", x)
    rest = space.unary("abs", space.binary("sub", x, whole))
    away = space.binary("add", whole, space.unary("sign", x))
    return space.select(space.compare("ge", rest, Const(0.5, dtype)), away, whole)


def _copysign(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    integer = {64: DType.I64, 32: DType.I32, 16: DType.I16}[dtype.bits]
    top = -(1 << (dtype.bits - 1))
    magnitude = space.binary("and", space.bitcast(args[0], integer), Const(-top - 1, integer))
    sign = space.binary("and", space.bitcast(args[1], integer), Const(top, integer))
    return space.bitcast(space.binary("or", magnitude, sign), dtype)


def _log10(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    return space.binary("mul", space.unary("log2", args[0]), Const(math.log10(2.0), dtype))


def _cbrt(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    root = space.binary("pow", space.unary("abs", args[0]), Const(1.0 / 3.0, dtype))
    return space.binary("mul", space.unary("sign", args[0]), root)


def _isfinite(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x = args[0]
    return space.unary("not", space.binary("or", space.unary("isnan", x), space.unary("isinf", x)))


def _asinh(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    """``sign(x) * log1p(|x| + x^2 / (1 + sqrt(1 + x^2)))``, accurate near 0; ``log(2 * |x|)`` where the
    square may overflow."""
    x = space.unary("abs", args[0])
    square = space.binary("mul", x, x)
    one = Const(1.0, dtype)
    root = space.unary("sqrt", space.binary("add", square, one))
    small = space.binary("div", square, space.binary("add", one, root))
    near = space.unary("log1p", space.binary("add", x, small))
    return space.binary("mul", space.unary("sign", args[0]), _log_of_double(space, x, near))


def _log_of_double(space: Space, x: Scalar, near: Scalar) -> Scalar:
    """``log(2x)`` for ``x`` above 2**15 in f16 and 2**30 in wider types, where asinh and acosh round to it;
    ``near`` for others and NaN."""
    large = space.binary("add", space.unary("log", x), Const(math.log(2.0), x.dtype))
    limit = 2.0**15 if x.dtype is DType.F16 else 2.0**30
    return space.select(space.compare("gt", x, Const(limit, x.dtype)), large, near)


def _acosh(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    """``log1p(x - 1 + sqrt(x - 1) * sqrt(x + 1))``, accurate near 1; NaN below."""
    x, one = args[0], Const(1.0, dtype)
    below, above = space.binary("sub", x, one), space.binary("add", x, one)
    root = space.binary("mul", space.unary("sqrt", below), space.unary("sqrt", above))
    return _log_of_double(space, x, space.unary("log1p", space.binary("add", below, root)))


def _atanh(space: Space, op: Any, args: list[Scalar], dtype: DType) -> Scalar:
    x = args[0]
    plus, minus = space.unary("log1p", x), space.unary("log1p", space.unary("neg", x))
    return space.binary("mul", space.binary("sub", plus, minus), Const(0.5, dtype))


RULES: dict[str, Rule] = {
    **{name: _unary(op) for name, op in _UNARY.items()},
    **{name: _binary(op) for name, op in _BINARY.items()},
    **dict.fromkeys(_CASTS, _cast),
    "arith.trunci": _trunci,
    "arith.extui": _extui,
    "arith.uitofp": _extui,
    "arith.index_castui": _extui,
    "arith.fptoui": _fptoui,
    "arith.bitcast": _bitcast,
    "arith.cmpf": _cmpf,
    "arith.cmpi": _cmpi,
    "arith.select": _select,
    "arith.maxui": _unsigned_extreme("max"),
    "arith.minui": _unsigned_extreme("min"),
    "arith.divui": _unsigned_division("div"),
    "arith.remui": _unsigned_division("rem"),
    "arith.shrui": _shrui,
    "arith.ceildivsi": _ceildivsi,
    "arith.ceildivui": _ceildivsi,
    "arith.maxnumf": _number_extreme("max"),
    "arith.minnumf": _number_extreme("min"),
    "math.fma": _fma,
    "math.fpowi": _fpowi,
    "math.powf": _powf,
    "math.round": _round,
    "math.copysign": _copysign,
    "math.log10": _log10,
    "math.cbrt": _cbrt,
    "math.isfinite": _isfinite,
    "math.asinh": _asinh,
    "math.acosh": _acosh,
    "math.atanh": _atanh,
}
"""The rule of each supported scalar op."""
