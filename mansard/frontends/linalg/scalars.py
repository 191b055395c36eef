"""Folding constructors of scalar bodies: they simplify by dims, bounds and literals.

The same constructors serve host arithmetic (no iteration dims: an ``arith.subi`` of two
``tensor.dim`` becomes one dim expression) and bodies of a `Generic` (index arithmetic becomes affine
and comparisons with an extent disappear).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.linalg import dimmath
from mansard.ir.scalar import Apply, Bitcast, Cast, Const, DimValue, Index, Scalar
from mansard.ir.scalar_ops import COMPARE, result_dtype
from mansard.ir.types import Linear

Range = tuple[DimLike, DimLike]


def dim_scalar(value: DimLike, dtype: DType = DType.I64) -> Scalar:
    """A dim expression as a scalar; a literal if it is constant."""
    if isinstance(value, int):
        return Const(value, dtype)
    return DimValue(value) if dtype is DType.I64 else Cast(DimValue(value), dtype)


def zero(dtype: DType) -> Const:
    """The literal 0 of a type."""
    return Const(False if dtype is DType.BOOL else 0.0 if dtype.is_float else 0, dtype)


def as_dim(scalar: Scalar) -> DimLike | None:
    """The dim expression that a scalar represents, or None for a value only known at run time.

    Conversions between integer types are ignored: sizes fit every index type.
    """
    while isinstance(scalar, Cast) and scalar.dtype.is_int and scalar.arg.dtype.is_int:
        scalar = scalar.arg
    if isinstance(scalar, Const) and scalar.dtype.is_int:
        return int(scalar.value)
    return scalar.value if isinstance(scalar, DimValue) else None


class Space:
    """Constructors of scalars over iteration dims of the given extents (none: the host)."""

    def __init__(self, extents: Sequence[DimLike] = ()) -> None:
        self.extents = tuple(extents)

    # Analysis -------------------------------------------------------------------------------
    def linear(self, scalar: Scalar) -> Linear | None:
        """The scalar as an affine index over the iteration dims, or None."""
        if isinstance(scalar, Index):
            return Linear.dim(scalar.dim)
        if isinstance(scalar, Cast):
            integers = scalar.dtype.is_int and scalar.dtype.bits >= 32 and scalar.arg.dtype.is_int
            return self.linear(scalar.arg) if integers else None
        if isinstance(scalar, Apply) and scalar.dtype.is_int:
            return self._linear_apply(scalar)
        value = as_dim(scalar)
        return None if value is None else Linear((), value)

    def _linear_apply(self, node: Apply) -> Linear | None:
        if node.op not in ("add", "sub", "mul", "neg"):
            return None
        parts = [self.linear(a) for a in node.args]
        if any(p is None for p in parts):
            return None
        a = parts[0]
        b = parts[-1]
        assert a is not None and b is not None
        if node.op == "add":
            return a.plus(b)
        if node.op == "sub":
            return a.plus(b.scaled(-1))
        if node.op == "neg":
            return a.scaled(-1)
        if not a.terms:
            return b.scaled(a.offset)
        return a.scaled(b.offset) if not b.terms else None

    def from_linear(self, linear: Linear) -> Scalar:
        """The scalar of an affine index."""
        result = dim_scalar(linear.offset)
        for d, c in linear.terms:
            term = self.binary("mul", Index(d), dim_scalar(c))
            result = self.binary("add", term, result)
        return result

    def range_of(self, linear: Linear) -> Range | None:
        """The smallest and largest value over the iteration space, as dim expressions."""
        low = high = linear.offset
        for d, c in linear.terms:
            reach = dims.mul(c, dims.add(self.extents[d], -1))
            c_low, c_high = dims.bounds(c)
            if c_low >= 0:
                high = dims.add(high, reach)
            elif c_high <= 0:
                low = dims.add(low, reach)
            else:
                return None
        return low, high

    def bounds(self, scalar: Scalar) -> tuple[int, int] | None:
        """Integer bounds of an affine scalar, or None."""
        linear = self.linear(scalar)
        reach = None if linear is None else self.range_of(linear)
        return None if reach is None else (dims.bounds(reach[0])[0], dims.bounds(reach[1])[1])

    def within(self, linear: Linear, extent: DimLike) -> bool:
        """True when ``0 <= linear < extent`` at every iteration point."""
        reach = self.range_of(linear)
        if reach is None:
            return False
        return dims.bounds(reach[0])[0] >= 0 and dims.bounds(dimmath.sub(extent, reach[1]))[0] > 0

    def non_negative(self, scalar: Scalar) -> bool:
        """True when an integer scalar is known to be at least 0."""
        bounds = self.bounds(scalar)
        return bounds is not None and bounds[0] >= 0

    # Constructors ---------------------------------------------------------------------------
    def unary(self, op: str, x: Scalar) -> Scalar:
        """``op(x)``."""
        dtype = result_dtype(op, x.dtype)
        if isinstance(x, Const) and op in _FOLD_UNARY and not isinstance(x.value, bool):
            return _literal(_FOLD_UNARY[op](x.value), dtype)
        if op == "not":
            return self._negate(x)
        if op == "neg":
            value = as_dim(x)
            if value is not None:
                return dim_scalar(dims.mul(value, -1), x.dtype)
        return Apply(op, (x,), dtype)

    def _negate(self, x: Scalar) -> Scalar:
        if isinstance(x, Const) and x.dtype is DType.BOOL:
            return Const(not x.value, DType.BOOL)
        if isinstance(x, Apply) and x.op == "not":
            return x.args[0]
        return Apply("not", (x,), x.dtype)

    def binary(self, op: str, a: Scalar, b: Scalar) -> Scalar:
        """``op(a, b)`` of equal dtypes; the result has the same dtype."""
        if a.dtype is DType.BOOL:
            return self._logic(op, a, b)
        if a.dtype.is_int:
            folded = self._integer(op, a, b)
            if folded is not None:
                return folded
        elif isinstance(a, Const) and isinstance(b, Const) and op in _FOLD_FLOAT:
            with np.errstate(all="ignore"):
                return _literal(_FOLD_FLOAT[op](_number(a), _number(b)), a.dtype)
        return Apply(op, (a, b), a.dtype)

    def _logic(self, op: str, a: Scalar, b: Scalar) -> Scalar:
        if op in ("and", "or"):
            for x, y in ((a, b), (b, a)):
                if isinstance(x, Const):
                    keeps = bool(x.value) == (op == "and")
                    return y if keeps else Const(bool(x.value), DType.BOOL)
        if op == "xor":
            for x, y in ((a, b), (b, a)):
                if isinstance(x, Const):
                    return self._negate(y) if x.value else y
            return self.compare("ne", a, b)
        return Apply(op, (a, b), DType.BOOL)

    def _integer(self, op: str, a: Scalar, b: Scalar) -> Scalar | None:
        dtype = a.dtype
        x, y = as_dim(a), as_dim(b)
        if x is not None and y is not None:
            value = _fold_dims(op, x, y)
            if value is not None:
                return _literal(value, dtype) if isinstance(value, int) else dim_scalar(value, dtype)
        if (y == 0 and op in ("add", "sub", "or", "xor", "shl", "shr")) or (
            y == 1 and op in ("mul", "div", "floordiv")
        ):
            return a
        if (x == 0 and op in ("add", "or", "xor")) or (x == 1 and op == "mul"):
            return b
        if y == 0 and op in ("mul", "and"):
            return b
        if op in ("min", "max"):
            return self._extreme(op, a, b)
        if op in ("div", "floordiv", "rem") and isinstance(y, int) and y > 0:
            return self._small_division(op, a, y)
        return None

    def _small_division(self, op: str, a: Scalar, b: int) -> Scalar | None:
        bounds = self.bounds(a)
        if bounds is None or bounds[0] < 0 or bounds[1] >= b:
            return None
        return a if op == "rem" else Const(0, a.dtype)

    def _extreme(self, op: str, a: Scalar, b: Scalar) -> Scalar | None:
        less = self.compare("le" if op == "min" else "ge", a, b)
        if isinstance(less, Const):
            return a if less.value else b
        more = self.compare("ge" if op == "min" else "le", a, b)
        return b if isinstance(more, Const) and more.value else None

    def compare(self, op: str, a: Scalar, b: Scalar) -> Scalar:
        """``op(a, b)`` as bool, folded if the bounds decide it."""
        decided = self._decide(op, a, b)
        return Apply(op, (a, b), DType.BOOL) if decided is None else Const(decided, DType.BOOL)

    def _decide(self, op: str, a: Scalar, b: Scalar) -> bool | None:
        if isinstance(a, Const) and isinstance(b, Const):
            return bool(_FOLD_COMPARE[op](a.value, b.value))
        if not a.dtype.is_int:
            return None
        x, y = self.linear(a), self.linear(b)
        if x is None or y is None:
            return None
        reach = self.range_of(x.plus(y.scaled(-1)))
        if reach is None:
            return None
        low, high = dims.bounds(reach[0])[0], dims.bounds(reach[1])[1]
        return _decide_by_range(op, low, high)

    def select(self, condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
        """``condition ? a : b``."""
        if isinstance(condition, Const):
            return a if condition.value else b
        if a is b or (isinstance(a, Const) and a == b):
            return a
        if isinstance(condition, Apply):
            if condition.op == "not":
                return self.select(condition.args[0], b, a)
            if condition.op == "eq" and self._is_unit_index(condition, a, b):
                return b
            clamped = _clamp(condition, a, b)
            if clamped is not None:
                return clamped
        if a.dtype is DType.BOOL and isinstance(a, Const) and isinstance(b, Const):
            return condition if a.value else self._negate(condition)
        return Apply("select", (condition, a, b), a.dtype)

    def _is_unit_index(self, condition: Apply, a: Scalar, b: Scalar) -> bool:
        """``extent == 1 ? 0 : index``: the index is 0 anyway when its dim has extent 1."""
        if not (isinstance(a, Const) and a.value == 0 and isinstance(b, Index)):
            return False
        sides = [as_dim(x) for x in condition.args]
        return 1 in sides and self.extents[b.dim] in sides

    def cast(self, x: Scalar, dtype: DType) -> Scalar:
        """Conversion to another type."""
        if x.dtype is dtype:
            return x
        if isinstance(x, Const):
            return _literal(x.value, dtype)
        if isinstance(x, Cast) and _exact_within(x.arg.dtype, x.dtype) and not dtype.is_float:
            return self.cast(x.arg, dtype) if dtype is not DType.BOOL else Cast(x, dtype)
        return Cast(x, dtype)

    def bitcast(self, x: Scalar, dtype: DType) -> Scalar:
        """The same bits reinterpreted as another type."""
        if x.dtype is dtype:
            return x
        if isinstance(x, Bitcast):
            return self.bitcast(x.arg, dtype)
        if isinstance(x, Const):
            return _literal(np.array(x.value).astype(x.dtype.numpy).view(dtype.numpy).item(), dtype)
        return Bitcast(x, dtype)


HOST = Space()


def _clamp(condition: Apply, a: Scalar, b: Scalar) -> Scalar | None:
    """``le(x, c) ? c : x`` with a literal ``c`` is ``max(x, c)``: exact, NaN of ``x`` included."""
    bound, ops = a, {"le": "max", "ge": "min", "lt": "max", "gt": "min"}
    if not isinstance(bound, Const) or condition.op not in ops or not a.dtype.is_float:
        return None
    x, y = condition.args
    if x is b and isinstance(y, Const) and y == bound and bound.value == bound.value:
        return Apply(ops[condition.op], (b, bound), a.dtype)
    return None


def _exact_within(inner: DType, outer: DType) -> bool:
    return inner.is_int and outer.is_int and inner.bits <= outer.bits


def _decide_by_range(op: str, low: int, high: int) -> bool | None:
    """Decide ``a op b`` from the bounds of ``a - b``."""
    truths = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }
    yes, no = truths[op]
    return True if yes else False if no else None


def _fold_dims(op: str, x: DimLike, y: DimLike) -> DimLike | None:
    """An integer op on dim expressions; None when the result is not a dim expression."""
    if op == "add":
        return dims.add(x, y)
    if op == "sub":
        return dimmath.sub(x, y)
    if op == "mul":
        return dims.mul(x, y)
    if op == "min":
        return dims.minimum(x, y)
    if op == "max":
        return dims.maximum(x, y)
    positive = dims.bounds(y)[0] > 0
    if op == "floordiv":
        return dimmath.floordiv(x, y) if positive else None
    if op in ("div", "rem") and positive:
        if dims.bounds(x)[0] >= 0:
            return dimmath.floordiv(x, y) if op == "div" else dimmath.mod(x, y)
        if isinstance(x, int) and isinstance(y, int):
            quotient = -(-x // y)
            return quotient if op == "div" else x - quotient * y
        if dims.exact_div(x, y) is not None:
            return dims.exact_div(x, y) if op == "div" else 0
    if isinstance(x, int) and isinstance(y, int) and op in _FOLD_BITS:
        return _FOLD_BITS[op](x, y)
    return None


def _number(constant: Const) -> np.generic:
    return constant.dtype.numpy.type(constant.value)


def _literal(value: object, dtype: DType) -> Const:
    """A literal rounded or wrapped into ``dtype``, with the rules of `Cast`."""
    number = np.asarray(value).item()
    if dtype is DType.BOOL:
        return Const(bool(number), dtype)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return Const(float(np.array(float(number)).astype(dtype.numpy)), dtype)
    if isinstance(number, float):
        return Const(_saturate(number, dtype), dtype)
    wrapped = int(number) & ((1 << dtype.bits) - 1)
    if dtype.is_signed and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return Const(wrapped, dtype)


def _saturate(number: float, dtype: DType) -> int:
    if math.isnan(number):
        return 0
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = (1 << (dtype.bits - (1 if dtype.is_signed else 0))) - 1
    return int(min(max(number, low), high))


Fold = Callable[..., object]
_FOLD_UNARY: dict[str, Fold] = {"neg": lambda x: -x, "abs": abs}
_FOLD_FLOAT: dict[str, Fold] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
}  # fmt: skip
_FOLD_BITS: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
_FOLD_COMPARE: dict[str, Fold] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
assert set(_FOLD_COMPARE) == set(COMPARE)
