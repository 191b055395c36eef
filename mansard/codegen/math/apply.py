"""Every scalar op of `mansard.ir.scalar` as kernel IR instructions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mansard.codegen.kernel import KernelBuilder, KType, KValue
from mansard.codegen.math import exponential, integers, logarithm, trigonometry
from mansard.codegen.math.pieces import lit
from mansard.dtypes import DType
from mansard.errors import CodegenError

_Expansion = Callable[..., KValue]

_NARROW = frozenset({DType.F16, DType.BF16, DType.F8})
# Ops whose instructions may be contracted with what is around them.
_PLAIN = frozenset({"add", "sub", "mul", "div", "pow"})
_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def apply(b: KernelBuilder, op: str, args: Sequence[KValue]) -> KValue:
    """``op`` on f32, f64, integers or bool, of any lanes; scalars are splatted to match.

    Floats narrower than f32 are computed in f32: cast before and after. Each function's docstring
    states its error; all are for f32 and f64 alike.

    Raises:
        CodegenError: naming the op and the type it is not defined on.
    """
    if op == "select":
        return b.select(*args)
    dtype = args[-1].type.dtype
    if dtype in _NARROW:
        raise CodegenError(f"scalar op {op!r} on {dtype.value}: cast to f32 first")
    if op in _COMPARE:
        return b.compare(op, *args)
    table = _FLOAT if dtype.is_float else _BOOL if dtype is DType.BOOL else _INT
    expansion = table.get(op)
    if expansion is None:
        raise CodegenError(f"scalar op {op!r} is not defined on {dtype.value}; it is on: {_defined(op)}")
    if dtype.is_float and op not in _PLAIN:
        # Expansions rely on the rounding of their steps.
        with b.exactly():
            return expansion(b, *args)
    return expansion(b, *args)


def neutral(combiner: str, dtype: DType) -> float | int | bool:
    """The value that leaves the other operand of a combiner as it is: the start of a reduction."""
    if combiner == "add":
        return 0.0 if dtype.is_float else 0
    if combiner == "mul":
        return 1.0 if dtype.is_float else 1
    if combiner in ("and", "or"):
        everything: int | bool = True if dtype is DType.BOOL else -1 if dtype.is_signed else 255
        return everything if combiner == "and" else False if dtype is DType.BOOL else 0
    if combiner not in ("min", "max"):
        raise CodegenError(f"no combiner {combiner!r}; known: add, mul, min, max, and, or")
    if dtype.is_float:
        # F8 has no infinity, but it is computed in f32, which has.
        return math.inf if combiner == "min" else -math.inf
    if dtype is DType.BOOL:
        return combiner == "min"
    largest = integers.LARGEST[dtype]
    return largest if combiner == "min" else -largest - 1 if dtype.is_signed else 0


def _defined(op: str) -> str:
    names = {"floats": _FLOAT, "integers": _INT, "bool": _BOOL}
    return ", ".join(name for name, table in names.items() if op in table) or "nothing"


def _binary(op: str) -> _Expansion:
    return lambda b, x, y: b.binary(op, x, y)


def _unary(op: str) -> _Expansion:
    return lambda b, x: b.unary(op, x)


def _same(_b: KernelBuilder, x: KValue) -> KValue:
    return x


def _rsqrt(b: KernelBuilder, x: KValue) -> KValue:
    """Two correctly rounded steps: within 1 ulp."""
    return b.binary("div", lit(b, x, 1.0), b.unary("sqrt", x))


def _float_sign(b: KernelBuilder, x: KValue) -> KValue:
    """-1, 0 or 1; zeros and NaN as they are."""
    value = b.select(b.compare("gt", x, lit(b, x, 0.0)), lit(b, x, 1.0), x)
    return b.select(b.compare("lt", x, lit(b, x, 0.0)), lit(b, x, -1.0), value)


def _isnan(b: KernelBuilder, x: KValue) -> KValue:
    return b.compare("ne", x, x)


def _isinf(b: KernelBuilder, x: KValue) -> KValue:
    return b.compare("eq", b.unary("abs", x), lit(b, x, math.inf))


def _never(b: KernelBuilder, x: KValue) -> KValue:
    return b.splat(b.const(False, DType.BOOL), x.type.lanes)


def _float_floordiv(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    return b.unary("floor", b.binary("div", x, y))


def _float_rem(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    """Exact, with the sign of ``x``."""
    return b.binary("rem", x, y)


def _float_pow(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    """Small known exponents by products and roots, as exact as those; else `logarithm.pow_`."""
    known = b.constant_value(y)
    power = None if known is None else float(known)
    if power == 1.0:
        return b.splat(x, max(x.type.lanes, y.type.lanes))
    if power == 2.0:
        return b.mul(x, x)
    if power == 3.0:
        return b.mul(b.mul(x, x), x)
    if power == -1.0:
        return b.binary("div", lit(b, x, 1.0), x)
    with b.exactly():
        return logarithm.pow_(b, x, y)


def _int_neg(b: KernelBuilder, x: KValue) -> KValue:
    return b.sub(integers.lit(b, x, 0), x)


def _int_abs(b: KernelBuilder, x: KValue) -> KValue:
    return b.unary("abs", x) if x.type.dtype.is_signed else x


def _shift(op: str) -> _Expansion:
    return lambda b, x, amount: integers.shift(b, op, x, amount)


def _negated_bool(b: KernelBuilder, x: KValue) -> KValue:
    return b.unary("not", x)


_FLOAT: dict[str, _Expansion] = {
    **{op: _unary(op) for op in ("neg", "abs", "sqrt", "floor", "ceil", "round", "trunc")},
    **{op: _binary(op) for op in ("add", "sub", "mul", "div", "min", "max")},
    "rsqrt": _rsqrt,
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log1p": logarithm.log1p,
    "erf": exponential.erf,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "asin": trigonometry.asin,
    "acos": trigonometry.acos,
    "atan": trigonometry.atan,
    "atan2": trigonometry.atan2,
    "pow": _float_pow,
    "sign": _float_sign,
    "isnan": _isnan,
    "isinf": _isinf,
    "floordiv": _float_floordiv,
    "rem": _float_rem,
}

_INT: dict[str, _Expansion] = {
    **{op: _binary(op) for op in ("add", "sub", "mul", "min", "max", "and", "or", "xor")},
    **dict.fromkeys(("floor", "ceil", "round", "trunc"), _same),
    "neg": _int_neg,
    "abs": _int_abs,
    "not": _unary("not"),
    "sign": integers.sign,
    "isnan": _never,
    "isinf": _never,
    "div": integers.div,
    "floordiv": integers.floordiv,
    "rem": integers.rem,
    "pow": integers.pow_,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
}

# What NumPy does on bool: sums and products are "or" and "and".
_BOOL: dict[str, _Expansion] = {
    **dict.fromkeys(("add", "max", "or"), _binary("or")),
    **dict.fromkeys(("mul", "min", "and"), _binary("and")),
    "xor": _binary("xor"),
    "not": _negated_bool,
    "abs": _same,
}


def result_type(op: str, args: Sequence[KValue]) -> KType:
    """The type `apply` returns."""
    lanes = max(a.type.lanes for a in args)
    boolean = op in _COMPARE or op in ("isnan", "isinf")
    return KType(DType.BOOL if boolean else args[-1].type.dtype, lanes)
