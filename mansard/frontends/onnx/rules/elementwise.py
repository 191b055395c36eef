"""Arithmetic, comparisons, logic and functions of each element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import acosh, asinh, atanh, floored
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import enter, rule

Function = Callable[[Num], Num]


def _binary(op: str) -> Callable[[GraphImporter, Node], Tensor]:
    return lambda g, node: g.map(lambda a, b: a.binary(op, b), node.tensor(0), node.tensor(1))


def _comparison(op: str) -> Callable[[GraphImporter, Node], Tensor]:
    return lambda g, node: g.map(lambda a, b: a.compare(op, b), node.tensor(0), node.tensor(1))


for _name, _op in {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "And": "and", "Or": "or", "Xor": "xor",
    "BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor",
}.items():  # fmt: skip
    enter(_name, _binary(_op))
for _name, _op in {
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
}.items():  # fmt: skip
    enter(_name, _comparison(_op))


def unary(function: Function) -> Callable[[GraphImporter, Node], Tensor]:
    """The rule of a function of one tensor's elements."""
    return lambda g, node: g.map(function, node.tensor(0))


def _function(op: str) -> Function:
    return lambda x: x.unary(op)


for _name, _op in {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Sin": "sin", "Cos": "cos",
    "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Tanh": "tanh", "Erf": "erf", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Sign": "sign",
    "Not": "not", "BitwiseNot": "not", "IsNaN": "isnan",
}.items():  # fmt: skip
    enter(_name, unary(_function(_op)))


enter("Asinh", unary(asinh))
enter("Acosh", unary(acosh))
enter("Atanh", unary(atanh))
enter("Reciprocal", unary(lambda x: 1.0 / x))


def _variadic(op: str) -> Callable[[GraphImporter, Node], Tensor]:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        return g.map(lambda *xs: functools.reduce(lambda a, b: a.binary(op, b), xs), *node.tensors())

    return apply


for _name, _op in {"Min": "min", "Max": "max", "Sum": "add"}.items():
    enter(_name, _variadic(_op))


@rule("Mean")
def mean(g: GraphImporter, node: Node) -> Tensor:
    """The mean of several tensors' elements."""
    count = len(node.inputs)
    return g.map(lambda *xs: functools.reduce(lambda a, b: a + b, xs) / count, *node.tensors())


@rule("Pow")
def power(g: GraphImporter, node: Node) -> Tensor:
    """A power, of the base's type; powers of integers by floats are computed in floats."""
    base, exponent = node.tensor(0), node.tensor(1)
    dtype = base.dtype
    wide = exponent.dtype if exponent.dtype.is_float and not dtype.is_float else dtype
    fixed = (
        exponent.content.reshape(-1) if exponent.content is not None and exponent.content.size == 1 else None
    )
    if fixed is not None and wide.is_float and float(fixed[0]) in _POWERS:
        return (
            g.map(_POWERS[float(fixed[0])], base, shape=exponent.shape)
            if wide is dtype
            else g.map(
                lambda x: _POWERS[float(fixed[0])](x.cast(wide)).cast(dtype), base, shape=exponent.shape
            )
        )
    return g.map(lambda a, b: a.cast(wide).binary("pow", b.cast(wide)).cast(dtype), base, exponent)


_POWERS: dict[float, Function] = {
    2.0: lambda x: x * x, 3.0: lambda x: x * x * x, 0.5: lambda x: x.sqrt(), 1.0: lambda x: x,
}  # fmt: skip
"""Exponents that need no logarithm."""


@rule("Mod")
def modulo(g: GraphImporter, node: Node) -> Tensor:
    """The remainder, with the divisor's sign unless ``fmod`` asks for C's."""
    a, b = node.tensor(0), node.tensor(1)
    if node.integer("fmod") or not a.dtype.is_signed:
        return g.map(lambda x, y: x % y, a, b)

    return g.map(floored, a, b)


@rule("BitShift")
def bit_shift(g: GraphImporter, node: Node) -> Tensor:
    """Shifts; by the width and more they give 0, or the sign."""
    left = node.text("direction") == "LEFT"
    dtype = node.tensor(0).dtype
    last = dtype.bits - 1

    def shifted(a: Num, b: Num) -> Num:
        inside = (b >= 0) & (b <= last)
        if left:
            return inside.select(a.binary("shl", b), 0)
        return (
            a.binary("shr", inside.select(b, last))
            if dtype.is_signed
            else inside.select(a.binary("shr", b), 0)
        )

    return g.map(shifted, node.tensor(0), node.tensor(1))


@rule("IsInf")
def is_infinite(g: GraphImporter, node: Node) -> Tensor:
    """Infinities of the signs that are asked for."""
    positive, negative = node.integer("detect_positive", 1), node.integer("detect_negative", 1)

    def infinite(x: Num) -> Num:
        x = x.cast(DType.F32) if x.dtype.bits < 32 else x
        if positive and negative:
            return x.unary("isinf")
        return x == (math.inf if positive else -math.inf)

    if not positive and not negative:
        return g.full(node.tensor(0).shape, False, DType.BOOL)
    return g.map(infinite, node.tensor(0))


@rule("Where")
def where(g: GraphImporter, node: Node) -> Tensor:
    """Elements of one tensor or the other."""
    return g.map(lambda c, a, b: c.select(a, b), *node.tensors())


@rule("Clip")
def clip(g: GraphImporter, node: Node) -> Tensor:
    """Elements limited from below, then from above."""
    x = node.tensor(0)
    if node.version < 11:
        low, high = node.attribute("min"), node.attribute("max")

        def between(e: Num) -> Num:
            e = e if low is None else e.max(low)
            return e if high is None else e.min(high)

        return g.map(between, x)
    least, limit = node.optional(1), node.optional(2)
    if least is not None:
        x = g.map(lambda e, b: e.max(b), x, least)
    return x if limit is None else g.map(lambda e, b: e.min(b), x, limit)
