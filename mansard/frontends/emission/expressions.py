"""Scalar bodies written as Python arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, Union

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.linalg.scalars import Space, dim_scalar
from mansard.ir.scalar import Const, Index, Scalar

Operand: TypeAlias = Union["Num", float, int, bool]


def literal(value: float | int | bool, dtype: DType) -> Const:
    """A number as a literal of an element type: integers wrap."""
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return Const(float(np.asarray(float(value)).astype(dtype.numpy)), dtype)
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    if dtype.is_signed and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return Const(wrapped, dtype)


class Num:
    """A scalar of a body under construction, with operators. Numbers take the other operand's type."""

    __slots__ = ("space", "tree")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, space: Space, tree: Scalar) -> None:
        self.space, self.tree = space, tree

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.tree.dtype

    def of(self, other: Operand) -> Scalar:
        """An operand as a scalar of this one's type."""
        return other.tree if isinstance(other, Num) else literal(other, self.dtype)

    def number(self, value: float | int | bool) -> Num:
        """A literal of this scalar's type."""
        return Num(self.space, literal(value, self.dtype))

    def binary(self, op: str, other: Operand, *, swapped: bool = False) -> Num:
        """A scalar op of two operands."""
        a, b = (self.of(other), self.tree) if swapped else (self.tree, self.of(other))
        return Num(self.space, self.space.binary(op, a, b))

    def unary(self, op: str) -> Num:
        """A scalar op of one operand."""
        return Num(self.space, self.space.unary(op, self.tree))

    def compare(self, op: str, other: Operand) -> Num:
        """A comparison."""
        return Num(self.space, self.space.compare(op, self.tree, self.of(other)))

    def cast(self, dtype: DType) -> Num:
        """Conversion to another type."""
        return Num(self.space, self.space.cast(self.tree, dtype))

    def bitcast(self, dtype: DType) -> Num:
        """The same bits as another type."""
        return Num(self.space, self.space.bitcast(self.tree, dtype))

    def select(self, a: Operand, b: Operand) -> Num:
        """``a`` where this bool is true, else ``b``; one of them is a scalar."""
        like = a if isinstance(a, Num) else b
        assert isinstance(like, Num)
        return Num(self.space, self.space.select(self.tree, like.of(a), like.of(b)))

    # Operators --------------------------------------------------------------------------------
    def __add__(self, other: Operand) -> Num:
        return self.binary("add", other)

    def __radd__(self, other: Operand) -> Num:
        return self.binary("add", other, swapped=True)

    def __sub__(self, other: Operand) -> Num:
        return self.binary("sub", other)

    def __rsub__(self, other: Operand) -> Num:
        return self.binary("sub", other, swapped=True)

    def __mul__(self, other: Operand) -> Num:
        return self.binary("mul", other)

    def __rmul__(self, other: Operand) -> Num:
        return self.binary("mul", other, swapped=True)

    def __truediv__(self, other: Operand) -> Num:
        return self.binary("div", other)

    def __rtruediv__(self, other: Operand) -> Num:
        return self.binary("div", other, swapped=True)

    def __floordiv__(self, other: Operand) -> Num:
        return self.binary("floordiv", other)

    def __mod__(self, other: Operand) -> Num:
        return self.binary("rem", other)

    def __neg__(self) -> Num:
        return self.unary("neg")

    def __and__(self, other: Operand) -> Num:
        return self.binary("and", other)

    def __or__(self, other: Operand) -> Num:
        return self.binary("or", other)

    def __xor__(self, other: Operand) -> Num:
        return self.binary("xor", other)

    def __invert__(self) -> Num:
        return self.unary("not")

    def __lt__(self, other: Operand) -> Num:
        return self.compare("lt", other)

    def __le__(self, other: Operand) -> Num:
        return self.compare("le", other)

    def __gt__(self, other: Operand) -> Num:
        return self.compare("gt", other)

    def __ge__(self, other: Operand) -> Num:
        return self.compare("ge", other)

    def __eq__(self, other: Operand) -> Num:  # type: ignore[override]
        return self.compare("eq", other)

    def __ne__(self, other: Operand) -> Num:  # type: ignore[override]
        return self.compare("ne", other)

    def min(self, other: Operand) -> Num:
        """The smaller one; NaN wins."""
        return self.binary("min", other)

    def max(self, other: Operand) -> Num:
        """The larger one; NaN wins."""
        return self.binary("max", other)

    def exp(self) -> Num:
        """The exponential."""
        return self.unary("exp")

    def log(self) -> Num:
        """The natural logarithm."""
        return self.unary("log")

    def sqrt(self) -> Num:
        """The square root."""
        return self.unary("sqrt")

    def floor(self) -> Num:
        """The next whole number below."""
        return self.unary("floor")


Body: TypeAlias = Callable[..., Num]


def index(space: Space, dim: int) -> Num:
    """The value of an iteration dim, as i64."""
    return Num(space, Index(dim))


def size(space: Space, value: DimLike) -> Num:
    """A dim expression, as i64."""
    return Num(space, dim_scalar(value))
