"""Conversion of MLIR's affine maps to index maps and scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mansard.frontends.linalg.scalars import Space
from mansard.ir.scalar import Const, Scalar
from mansard.ir.types import Linear


def linear_of(expression: Any) -> Linear | None:
    """An affine expression over dims as a `Linear`; None when it has divisions or symbols."""
    kind = type(expression).__name__
    if kind == "AffineDimExpr":
        return Linear.dim(expression.position)
    if kind == "AffineConstantExpr":
        return Linear((), expression.value)
    if kind not in ("AffineAddExpr", "AffineMulExpr"):
        return None
    a, b = linear_of(expression.lhs), linear_of(expression.rhs)
    if a is None or b is None:
        return None
    if kind == "AffineAddExpr":
        return a.plus(b)
    if not b.terms:
        return a.scaled(b.offset)
    return b.scaled(a.offset) if not a.terms else None


def evaluate(
    space: Space, expression: Any, dim_values: Sequence[Scalar], symbols: Sequence[Scalar] = ()
) -> Scalar:
    """An affine expression as a scalar, with its dims and symbols given as i64 scalars."""
    kind = type(expression).__name__
    if kind == "AffineDimExpr":
        return dim_values[int(expression.position)]
    if kind == "AffineSymbolExpr":
        return symbols[int(expression.position)]
    if kind == "AffineConstantExpr":
        return Const(expression.value, dim_values[0].dtype if dim_values else symbols[0].dtype)
    a = evaluate(space, expression.lhs, dim_values, symbols)
    b = evaluate(space, expression.rhs, dim_values, symbols)
    if kind == "AffineAddExpr":
        return space.binary("add", a, b)
    if kind == "AffineMulExpr":
        return space.binary("mul", a, b)
    if kind == "AffineFloorDivExpr":
        return space.binary("floordiv", a, b)
    if kind == "AffineCeilDivExpr":
        raised = space.binary("add", a, space.binary("sub", b, Const(1, b.dtype)))
        return space.binary("floordiv", raised, b)
    whole = space.binary("mul", space.binary("floordiv", a, b), b)  # mod, with the sign of the divisor
    return space.binary("sub", a, whole)
