"""Scalar ops that are one instruction of the kernel IR, or a few."""

from __future__ import annotations

import math

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math.logarithm import pow_
from mansard.codegen.math.lowering import Expansion, lowers, register_scalar_lowering
from mansard.codegen.math.pieces import lit
from mansard.ir.scalar_ops import Domain

FLOAT, INT, BOOL = Domain.FLOAT, Domain.INT, Domain.BOOL


def _unary(op: str) -> Expansion:
    return lambda b, x: b.unary(op, x)


def _binary(op: str) -> Expansion:
    return lambda b, x, y: b.binary(op, x, y)


def _same(_b: KernelBuilder, x: KValue) -> KValue:
    return x


for _op in ("neg", "abs", "sqrt", "floor", "ceil", "round", "trunc"):
    register_scalar_lowering(_op, _unary(_op), FLOAT, instruction=True)
for _op in ("floor", "ceil", "round", "trunc"):
    register_scalar_lowering(_op, _same, INT)
register_scalar_lowering("not", _unary("not"), INT, BOOL, instruction=True)
for _op in ("add", "sub", "mul"):
    register_scalar_lowering(_op, _binary(_op), FLOAT, INT, contractible=True, instruction=True)
for _op in ("min", "max"):
    register_scalar_lowering(_op, _binary(_op), FLOAT, INT, instruction=True)
for _op in ("and", "or", "xor"):
    register_scalar_lowering(_op, _binary(_op), INT, BOOL, instruction=True)
register_scalar_lowering("div", _binary("div"), FLOAT, contractible=True, instruction=True)
# The remainder of floats is exact, with the sign of the first operand.
register_scalar_lowering("rem", _binary("rem"), FLOAT)
# What NumPy does on bool: sums and products are "or" and "and".
register_scalar_lowering("add", _binary("or"), BOOL)
register_scalar_lowering("mul", _binary("and"), BOOL)
register_scalar_lowering("max", _binary("or"), BOOL)
register_scalar_lowering("min", _binary("and"), BOOL)
register_scalar_lowering("abs", _same, BOOL)


@lowers("rsqrt", FLOAT)
def _rsqrt(b: KernelBuilder, x: KValue) -> KValue:
    """Two correctly rounded steps: within 1 ulp."""
    return b.binary("div", lit(b, x, 1.0), b.unary("sqrt", x))


@lowers("sign", FLOAT)
def _sign(b: KernelBuilder, x: KValue) -> KValue:
    """-1, 0 or 1; zeros and NaN as they are."""
    value = b.select(b.compare("gt", x, lit(b, x, 0.0)), lit(b, x, 1.0), x)
    return b.select(b.compare("lt", x, lit(b, x, 0.0)), lit(b, x, -1.0), value)


@lowers("isnan", FLOAT)
def _isnan(b: KernelBuilder, x: KValue) -> KValue:
    return b.compare("ne", x, x)


@lowers("isinf", FLOAT)
def _isinf(b: KernelBuilder, x: KValue) -> KValue:
    return b.compare("eq", b.unary("abs", x), lit(b, x, math.inf))


@lowers("floordiv", FLOAT)
def _floordiv(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    return b.unary("floor", b.binary("div", x, y))


@lowers("pow", FLOAT, contractible=True)
def _pow(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
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
        return pow_(b, x, y)
