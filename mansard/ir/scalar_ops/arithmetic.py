"""Arithmetic: sums and products, divisions, extremes, signs and rounding."""

from __future__ import annotations

import numpy as np

from mansard.ir.scalar_ops.declaration import FUNCTION, Array, Infix, ScalarOp, on_all, on_numbers
from mansard.ir.scalar_ops.registry import register_scalar_op


# References on integers ---------------------------------------------------------------------
def _nonzero(b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(1), b)


def _int_div(a: Array, b: Array) -> Array:
    safe = _nonzero(b)
    # Rounding down, then one up where the exact quotient is negative and not whole.
    down: Array = np.floor_divide(a, safe)
    up = (np.fmod(a, safe) != 0) & ((a < 0) != (b < 0))
    result: Array = np.add(down, up.astype(down.dtype))
    return np.where(b == 0, result.dtype.type(0), result)


def _int_floordiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(0), np.floor_divide(a, _nonzero(b)))


def _int_rem(a: Array, b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(0), np.fmod(a, _nonzero(b)))


def _int_pow(a: Array, b: Array) -> Array:
    """Wraps; a negative exponent gives the power truncated to an integer, and 0 for base 0."""
    one, zero = a.dtype.type(1), a.dtype.type(0)
    if not np.issubdtype(b.dtype, np.signedinteger):
        return np.power(a, b)
    result = np.power(a, np.where(b < 0, zero, b))
    alternating = np.where(np.bitwise_and(b, one) == 0, one, a)
    negative = np.where(a == one, one, np.where(a == -one, alternating, zero))
    return np.where(b < 0, negative, result)


def _float_floordiv(a: Array, b: Array) -> Array:
    return np.asarray(np.floor(np.true_divide(a, b)))


def _same(x: Array) -> Array:
    return x


# Declarations -------------------------------------------------------------------------------
for _op in (
    ScalarOp("neg", 1, on_numbers(np.negative)),
    ScalarOp("abs", 1, on_numbers(np.abs)),
    ScalarOp("sign", 1, on_numbers(np.sign)),
    ScalarOp("floor", 1, on_numbers(np.floor, _same)),
    ScalarOp("ceil", 1, on_numbers(np.ceil, _same)),
    ScalarOp("round", 1, on_numbers(np.rint, _same)),
    ScalarOp("trunc", 1, on_numbers(np.trunc, _same)),
    ScalarOp("add", 2, on_numbers(np.add), infix=Infix("+", 5)),
    ScalarOp("sub", 2, on_numbers(np.subtract), infix=Infix("-", 5)),
    ScalarOp("mul", 2, on_numbers(np.multiply), infix=Infix("*", 6)),
    ScalarOp("div", 2, on_numbers(np.true_divide, _int_div), infix=Infix("/", 6)),
    ScalarOp("floordiv", 2, on_numbers(_float_floordiv, _int_floordiv), infix=Infix("//", 6)),
    ScalarOp("rem", 2, on_numbers(np.fmod, _int_rem), infix=Infix("%", 6)),
    ScalarOp(
        "pow",
        2,
        on_numbers(np.power, _int_pow),
        infix=Infix("**", 7),
        operations=FUNCTION,
        recomputable=False,
    ),
    ScalarOp("min", 2, on_all(np.minimum)),
    ScalarOp("max", 2, on_all(np.maximum)),
):
    register_scalar_op(_op)
