"""Integer ops whose instruction has undefined cases: division, remainder, power, shifts."""

from __future__ import annotations

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math.lowering import lowers
from mansard.ir.scalar_ops import Domain


def lit(b: KernelBuilder, like: KValue, value: int) -> KValue:
    """A literal of the element type of ``like``."""
    return b.const(value, like.type.dtype)


def _harmless(b: KernelBuilder, d: KValue) -> tuple[KValue, KValue | None, KValue | None]:
    """A divisor that never traps, and where the true one is 0 and -1 (None: nowhere).

    The smallest integer divided by -1 overflows, which traps on x86; so -1 is replaced as well.
    """
    known = b.constant_value(d)
    if known is not None and known not in (0, -1):
        return d, None, None
    zero = b.compare("eq", d, lit(b, d, 0))
    if not d.type.dtype.is_signed:
        return b.select(zero, lit(b, d, 1), d), zero, None
    minus = b.compare("eq", d, lit(b, d, -1))
    return b.select(b.binary("or", zero, minus), lit(b, d, 1), d), zero, minus


def _zero_where(b: KernelBuilder, condition: KValue | None, value: KValue) -> KValue:
    return value if condition is None else b.select(condition, lit(b, value, 0), value)


@lowers("div", Domain.INT)
def div(b: KernelBuilder, x: KValue, d: KValue) -> KValue:
    """Truncating; 0 for a zero divisor; wraps."""
    x, d = b.match(x, d)
    safe, zero, minus = _harmless(b, d)
    value = b.binary("div", x, safe)
    if minus is not None:
        value = b.select(minus, b.sub(lit(b, x, 0), x), value)
    return _zero_where(b, zero, value)


@lowers("rem", Domain.INT)
def rem(b: KernelBuilder, x: KValue, d: KValue) -> KValue:
    """Remainder of the truncating division, with the dividend's sign; 0 for a zero divisor."""
    x, d = b.match(x, d)
    safe, zero, _ = _harmless(b, d)
    # With the divisor 1 in its place, the remainder by -1 is 0 as it should be.
    return _zero_where(b, zero, b.binary("rem", x, safe))


@lowers("floordiv", Domain.INT)
def floordiv(b: KernelBuilder, x: KValue, d: KValue) -> KValue:
    """Rounding down; 0 for a zero divisor."""
    x, d = b.match(x, d)
    safe, zero, minus = _harmless(b, d)
    value = b.binary("div", x, safe)
    if x.type.dtype.is_signed:
        rest = b.sub(x, b.mul(value, safe))
        differ = b.compare("lt", b.binary("xor", rest, safe), lit(b, x, 0))
        inexact = b.compare("ne", rest, lit(b, x, 0))
        value = b.select(b.binary("and", differ, inexact), b.sub(value, lit(b, x, 1)), value)
    if minus is not None:
        value = b.select(minus, b.sub(lit(b, x, 0), x), value)
    return _zero_where(b, zero, value)


@lowers("pow", Domain.INT)
def pow_(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    """Wraps; a negative exponent gives the power truncated to an integer, and 0 for base 0."""
    known = b.constant_value(y)
    if known is not None and 0 <= int(known) <= 64:
        return _known_power(b, x, int(known))
    x, y = b.match(x, y)
    one, zero = lit(b, x, 1), lit(b, x, 0)
    dtype, lanes = x.type.dtype, x.type.lanes
    with b.for_(0, dtype.bits, 1, inits=[b.splat(one, lanes), x, y]) as loop:
        result, square, rest = loop.carried
        used = b.compare("ne", b.binary("and", rest, one), zero)
        loop.yield_(
            b.select(used, b.mul(result, square), result), b.mul(square, square), b.binary("shr", rest, one)
        )
    value = loop.results[0]
    if not dtype.is_signed:
        return value
    odd = b.compare("ne", b.binary("and", y, one), zero)
    alternating = b.select(odd, x, one)
    unit = b.binary("or", b.compare("eq", x, one), b.compare("eq", x, lit(b, x, -1)))
    return b.select(b.compare("lt", y, zero), b.select(unit, alternating, zero), value)


def _known_power(b: KernelBuilder, x: KValue, exponent: int) -> KValue:
    result: KValue | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else b.mul(result, square)
        exponent >>= 1
        if exponent:
            square = b.mul(square, square)
    return b.splat(lit(b, x, 1), x.type.lanes) if result is None else result


def shift(b: KernelBuilder, op: str, x: KValue, amount: KValue) -> KValue:
    """shl or shr by any amount: by the width or more (or a negative one) leaves zeros, or sign bits."""
    width = x.type.dtype.bits
    known = b.constant_value(amount)
    if known is not None and 0 <= int(known) < width:
        return b.binary(op, x, amount)
    x, amount = b.match(x, amount)
    inside = b.compare("lt", amount, lit(b, x, width))
    if x.type.dtype.is_signed:
        inside = b.binary("and", inside, b.compare("ge", amount, lit(b, x, 0)))
    value = b.binary(op, x, b.select(inside, amount, lit(b, x, 0)))
    outside = lit(b, x, 0)
    if op == "shr" and x.type.dtype.is_signed:
        outside = b.binary("shr", x, lit(b, x, width - 1))
    return b.select(inside, value, outside)


@lowers("neg", Domain.INT)
def _neg(b: KernelBuilder, x: KValue) -> KValue:
    return b.sub(lit(b, x, 0), x)


@lowers("abs", Domain.INT)
def _abs(b: KernelBuilder, x: KValue) -> KValue:
    return b.unary("abs", x) if x.type.dtype.is_signed else x


@lowers("shl", Domain.INT)
def _shl(b: KernelBuilder, x: KValue, amount: KValue) -> KValue:
    return shift(b, "shl", x, amount)


@lowers("shr", Domain.INT)
def _shr(b: KernelBuilder, x: KValue, amount: KValue) -> KValue:
    return shift(b, "shr", x, amount)


@lowers("sign", Domain.INT)
def sign(b: KernelBuilder, x: KValue) -> KValue:
    """-1, 0 or 1."""
    one = lit(b, x, 1)
    if not x.type.dtype.is_signed:
        return b.binary("min", x, one)
    return b.binary("max", b.binary("min", x, one), lit(b, x, -1))
