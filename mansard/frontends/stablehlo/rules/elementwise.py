"""Arithmetic, comparisons, logic and the functions that are scalar ops."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import Rule, enter, rule
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg

Function = Callable[[Num], Num]


def unary(function: Function) -> Rule:
    """The rule of a function of one tensor's elements."""
    return lambda g, node: g.map(function, node.tensor(0))


def in_f32(function: Function) -> Function:
    """A function of floats that narrow ones take in f32."""

    def widened(x: Num) -> Num:
        narrow = x.dtype.is_float and x.dtype.bits < 32
        return function(x.cast(DType.F32)).cast(x.dtype) if narrow else function(x)

    return widened


def _binary(name: str, logical: str, neutral: float | None = None) -> Rule:
    """An op of two tensors; ``logical`` is its meaning on bools, ``neutral`` changes nothing."""

    def apply(g: StableHloImporter, node: Node) -> Tensor:
        a, b = node.tensor(0), node.tensor(1)
        for x, other in ((a, b), (b, a)):
            if neutral is not None and x.dtype.is_float and _is(x, neutral):
                return other
        op = logical if a.dtype is DType.BOOL else name
        return g.map(lambda x, y: x.binary(op, y), a, b)

    return apply


def _is(t: Tensor, number: float) -> bool:
    value = t.splat if t.splat is not None else None
    if t.content is not None and t.content.size == 1 and not t.symbolic:
        value = float(t.content.reshape(-1)[0])
    return value is not None and float(value) == number


enter("stablehlo.add", _binary("add", "or"))
enter("stablehlo.subtract", _binary("sub", "xor"))
enter("stablehlo.multiply", _binary("mul", "and", 1.0))
enter("stablehlo.maximum", _binary("max", "or", -math.inf))
enter("stablehlo.minimum", _binary("min", "and", math.inf))
for _name in ("and", "or", "xor"):
    enter(f"stablehlo.{_name}", _binary(_name, _name))

for _name, _op in {
    "abs": "abs", "ceil": "ceil", "floor": "floor", "not": "not", "log": "log",
    "exponential_minus_one": "expm1", "log_plus_one": "log1p", "sqrt": "sqrt", "sine": "sin", "cosine": "cos",
    "tan": "tan", "tanh": "tanh", "round_nearest_even": "round",
}.items():  # fmt: skip
    enter(f"stablehlo.{_name}", unary(lambda x, op=_op: x.unary(op)))  # type: ignore[misc]


@rule("stablehlo.exponential")
def exponential(g: StableHloImporter, node: Node) -> Tensor:
    """The exponential; of a difference in one op with it, as a softmax is recognised."""
    x = node.tensor(0)
    producer = None if x.value is None else g.builder.producers.get(x.value)
    if isinstance(producer, Generic) and producer.combiner is None:
        body = producer.body
        if isinstance(body, Apply) and body.op == "sub" and all(isinstance(a, Arg) for a in body.args):
            exps = g.builder.generic(
                producer.inputs, producer.maps, producer.extents, Apply("exp", (body,), body.dtype)
            )
            return g.tensor(exps)
    return g.map(lambda e: e.exp(), x)


enter("stablehlo.negate", unary(lambda x: x.unary("neg")))
enter("stablehlo.logistic", unary(in_f32(lambda x: 1.0 / (1.0 + (-x).exp()))))
enter("stablehlo.rsqrt", unary(lambda x: x.unary("rsqrt")))


@rule("stablehlo.round_nearest_afz")
def round_away(g: StableHloImporter, node: Node) -> Tensor:
    """Halves are rounded away from 0."""

    def rounded(x: Num) -> Num:
        size = x.unary("abs")
        whole = size.floor()
        up = (size - whole >= 0.5).select(whole + 1.0, whole)
        return (x < 0.0).select(-up, up)

    return g.map(in_f32(rounded), node.tensor(0))


@rule("stablehlo.sign")
def sign(g: StableHloImporter, node: Node) -> Tensor:
    """-1, 0 or 1; a zero keeps its sign, and NaN stays."""
    x = node.tensor(0)
    if not x.dtype.is_float:
        return g.map(lambda e: e.unary("sign"), x)
    return g.map(lambda e: (e > 0.0).select(1.0, (e < 0.0).select(e.number(-1.0), e)), x)


@rule("stablehlo.cbrt")
def cube_root(g: StableHloImporter, node: Node) -> Tensor:
    """The root of the absolute value, with the sign; one step of Newton's method makes it exact enough."""

    def root(x: Num) -> Num:
        size = x.unary("abs")
        first = size.binary("pow", 1 / 3)
        better = first - (first * first * first - size) / (3.0 * first * first)
        inside = (size > 0.0) & (size < math.inf)
        result = inside.select(better, size)
        return (x < 0.0).select(-result, result)

    return g.map(in_f32(root), node.tensor(0))


@rule("stablehlo.is_finite")
def is_finite(g: StableHloImporter, node: Node) -> Tensor:
    """Neither infinite nor NaN."""
    return g.map(lambda x: x.unary("abs") < math.inf, node.tensor(0))


@rule("stablehlo.compare")
def compare(g: StableHloImporter, node: Node) -> Tensor:
    """A comparison; in a total order, bits decide."""
    op = node.word("comparison_direction").lower()
    a, b = node.tensor(0), node.tensor(1)
    if node.word("compare_type") == "TOTALORDER" and a.dtype.is_float:
        return g.map(lambda x, y: _ordered(x).compare(op, _ordered(y)), a, b)
    if a.dtype is DType.BOOL and op not in ("eq", "ne"):
        return g.map(lambda x, y: x.cast(DType.I8).compare(op, y.cast(DType.I8)), a, b)
    return g.map(lambda x, y: x.compare(op, y), a, b)


def _ordered(x: Num) -> Num:
    """Integers in IEEE 754's total order of floats: -NaN, -inf … -0, 0 … inf, NaN."""
    dtype = {64: DType.I64, 32: DType.I32, 16: DType.I16, 8: DType.I8}[x.dtype.bits]
    bits = x.bitcast(dtype)
    return (bits < 0).select(bits ^ ((1 << (dtype.bits - 1)) - 1), bits)


@rule("stablehlo.select")
def select(g: StableHloImporter, node: Node) -> Tensor:
    """Elements of one tensor or the other; of bools by logic."""
    condition, a, b = node.tensors()
    if condition.content is not None and condition.content.size == 1 and not condition.symbolic:
        return a if bool(condition.content.reshape(-1)[0]) else b
    return g.map(lambda c, x, y: c.select(x, y), condition, a, b)


@rule("stablehlo.clamp")
def clamp(g: StableHloImporter, node: Node) -> Tensor:
    """Limited from below, then from above."""
    low, x, high = node.tensors()
    return g.map(lambda e, a, b: e.max(a).min(b), x, low, high)


@rule("stablehlo.divide")
def divide(g: StableHloImporter, node: Node) -> Tensor:
    """A quotient; of integers it is truncated, and -1 (all bits set) where the divisor is 0."""
    a, b = node.tensor(0), node.tensor(1)
    if a.dtype.is_float or _nonzero(b):
        return g.map(lambda x, y: x / y, a, b)
    return g.map(lambda x, y: (y == 0).select(-1, x / y), a, b)


@rule("stablehlo.remainder")
def remainder(g: StableHloImporter, node: Node) -> Tensor:
    """The rest with the dividend's sign; the dividend where an integer divisor is 0."""
    a, b = node.tensor(0), node.tensor(1)
    if a.dtype.is_float or _nonzero(b):
        return g.map(lambda x, y: x % y, a, b)
    return g.map(lambda x, y: (y == 0).select(x, x % y), a, b)


def _nonzero(t: Tensor) -> bool:
    if t.splat is not None:
        return t.splat != 0
    return t.content is not None and not t.symbolic and bool((t.content != 0).all())


@rule("stablehlo.power")
def power(g: StableHloImporter, node: Node) -> Tensor:
    """A power; small whole exponents need no logarithm."""
    a, b = node.tensor(0), node.tensor(1)
    for exponent, function in _POWERS.items():
        if a.dtype.is_float and _is(b, exponent):
            return g.map(function, a, shape=b.shape)
    return g.map(lambda x, y: x.binary("pow", y), a, b)


_POWERS: dict[float, Function] = {
    1.0: lambda x: x, 2.0: lambda x: x * x, 3.0: lambda x: x * x * x, 0.5: lambda x: x.sqrt(),
    -1.0: lambda x: 1.0 / x, -0.5: lambda x: x.unary("rsqrt"),
}  # fmt: skip


def _shift(direction: str) -> Rule:
    """A shift; by the width and more it leaves 0, or copies of the sign."""

    def apply(g: StableHloImporter, node: Node) -> Tensor:
        a, b = node.tensor(0), node.tensor(1)
        last = a.dtype.bits - 1
        unsigned = _UNSIGNED.get(a.dtype, a.dtype)

        def shifted(x: Num, y: Num) -> Num:
            inside = (y >= 0) & (y <= last)
            if direction == "shl":
                return inside.select(x.binary("shl", inside.select(y, 0)), 0)
            if direction == "arithmetic" and a.dtype.is_signed:
                return x.binary("shr", inside.select(y, last))
            bits = x.bitcast(unsigned) if unsigned is not a.dtype else x
            amount = inside.select(y, 0)
            amount = amount.bitcast(unsigned) if unsigned is not a.dtype else amount
            whole = bits.binary("shr", amount)
            return inside.select(whole.bitcast(a.dtype) if unsigned is not a.dtype else whole, 0)

        return g.map(shifted, a, b)

    return apply


_UNSIGNED = {DType.I64: DType.U64, DType.I32: DType.U32, DType.I16: DType.U16, DType.I8: DType.U8}
enter("stablehlo.shift_left", _shift("shl"))
enter("stablehlo.shift_right_arithmetic", _shift("arithmetic"))
enter("stablehlo.shift_right_logical", _shift("logical"))


@rule("stablehlo.atan2")
def atan2(g: StableHloImporter, node: Node) -> Tensor:
    """The angle of a point, by the arctangent of the smaller over the larger coordinate."""

    def angle(y: Num, x: Num) -> Num:
        if y.dtype.bits < 32:
            return angle(y.cast(DType.F32), x.cast(DType.F32)).cast(y.dtype)
        width, height = x.unary("abs"), y.unary("abs")
        steep = height > width
        larger, smaller = steep.select(height, width), steep.select(width, height)
        both = (larger == math.inf) & (smaller == math.inf)
        ratio = both.select(1.0, (larger == 0.0).select(0.0, smaller / larger))
        first = ratio.unary("atan")
        first = steep.select(math.pi / 2 - first, first)
        left = _ordered(x) < 0
        full = left.select(math.pi - first, first)
        signed = (_ordered(y) < 0).select(-full, full)
        return (x.unary("isnan") | y.unary("isnan")).select(x + y, signed)

    return g.map(angle, node.tensor(0), node.tensor(1))


@rule("stablehlo.popcnt")
def population_count(g: StableHloImporter, node: Node) -> Tensor:
    """The number of bits set."""
    x = node.tensor(0)
    return g.map(lambda e: _bits_set(_unsigned(e)).cast(x.dtype), x)


def _unsigned(x: Num) -> Num:
    return x.bitcast(_UNSIGNED[x.dtype]) if x.dtype in _UNSIGNED else x


def _bits_set(x: Num) -> Num:
    wide = x.cast(DType.U64)
    wide = wide - (wide.binary("shr", 1) & 0x5555555555555555)
    wide = (wide & 0x3333333333333333) + (wide.binary("shr", 2) & 0x3333333333333333)
    wide = (wide + wide.binary("shr", 4)) & 0x0F0F0F0F0F0F0F0F
    return (wide * 0x0101010101010101).binary("shr", 56)


@rule("stablehlo.count_leading_zeros")
def leading_zeros(g: StableHloImporter, node: Node) -> Tensor:
    """The number of zeros before the first bit that is set."""
    x = node.tensor(0)

    def count(e: Num) -> Num:
        smeared = _unsigned(e)
        step = 1
        while step < x.dtype.bits:
            smeared = smeared | smeared.binary("shr", step)
            step *= 2
        return (x.dtype.bits - _bits_set(smeared)).cast(x.dtype)

    return g.map(count, x)
