"""Division of dim expressions in a normal form.

`mansard.dims` keeps ``floordiv`` opaque. Frontends compute the same extent by different formulas (a slice's
``(n - 1) // 2 + 1``, a window's ``(n + 1) // 2``); moving every whole multiple of the divisor out of
the call makes such formulas equal.
"""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike, Expr


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """``a // b`` rounded down, ``b`` positive: ``(q*b + r) // b`` becomes ``q + r // b``."""
    if not isinstance(b, int) or isinstance(a, int):
        return dims.floordiv(a, b)
    whole, rest = _split(a, b)
    return dims.add(whole, dims.floordiv(rest, b))


def mod(a: DimLike, b: DimLike) -> DimLike:
    """``a % b`` with the sign of ``b``, ``b`` positive; whole multiples of ``b`` are dropped."""
    if not isinstance(b, int) or isinstance(a, int):
        return dims.mod(a, b)
    return dims.mod(_split(a, b)[1], b)


def ceildiv(a: DimLike, b: DimLike) -> DimLike:
    """``a / b`` rounded up, ``b`` positive."""
    return floordiv(dims.add(a, b, -1), b)


def sub(a: DimLike, b: DimLike) -> DimLike:
    """``a - b``, simplified."""
    return dims.add(a, dims.mul(b, -1))


def _split(a: Expr, b: int) -> tuple[DimLike, DimLike]:
    """``(q, r)`` with ``a == q*b + r``; the constant part of ``r`` lies in ``[0, b)``."""
    whole: DimLike = 0
    rest: DimLike = 0
    for monomial, coefficient in a.terms:
        quotient, remainder = divmod(coefficient, b)
        if monomial and remainder:  # s + s//2 equals 3*s // 2 as well, but its bounds are looser
            quotient, remainder = 0, coefficient
        whole = dims.add(whole, Expr(((monomial, quotient),)) if quotient else 0)
        rest = dims.add(rest, Expr(((monomial, remainder),)) if remainder else 0)
    return whole, rest
