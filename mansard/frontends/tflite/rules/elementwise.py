"""Arithmetic, comparisons, logic and functions of each element."""

from __future__ import annotations

import functools
from collections.abc import Callable

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import floored
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import map_real, moved, real, same_scale, stored
from mansard.frontends.tflite.table import Rule, enter, rule


def _binary(function: Callable[[Num, Num], Num], *, activation: bool = False) -> Rule:
    return lambda g, node: map_real(g, node, function, (0, 1), activation=activation)


def _unary(function: Callable[[Num], Num]) -> Rule:
    return lambda g, node: map_real(g, node, function)


def _floor_quotient(a: Num, b: Num) -> Num:
    if a.dtype.is_float:
        return (a / b).floor()
    whole = a / b
    rest = a - whole * b
    return ((rest != 0) & ((rest < 0) ^ (b < 0))).select(whole - 1, whole)


def _floor_mod(a: Num, b: Num) -> Num:
    if not a.dtype.is_float:
        return floored(a, b)
    rest = a % b
    return ((rest != 0.0) & ((rest < 0.0) ^ (b < 0.0))).select(rest + b, rest)


def _squared_difference(a: Num, b: Num) -> Num:
    return (a - b) * (a - b)


enter("ADD", _binary(lambda a, b: a + b, activation=True))
enter("SUB", _binary(lambda a, b: a - b, activation=True))
enter("MUL", _binary(lambda a, b: a * b, activation=True))
enter("DIV", _binary(lambda a, b: a / b, activation=True))
enter("POW", _binary(lambda a, b: a.binary("pow", b)))
enter("FLOOR_DIV", _binary(_floor_quotient))
enter("FLOOR_MOD", _binary(_floor_mod))
enter("SQUARED_DIFFERENCE", _binary(_squared_difference))
enter("ATAN2", _binary(lambda a, b: a.binary("atan2", b)))
enter("LOGICAL_AND", _binary(lambda a, b: a & b))
enter("LOGICAL_OR", _binary(lambda a, b: a | b))
enter("BITWISE_XOR", _binary(lambda a, b: a ^ b))

for _name, _op in {
    "FLOOR": "floor", "CEIL": "ceil", "ROUND": "round", "EXP": "exp", "LOG": "log", "SQRT": "sqrt",
    "RSQRT": "rsqrt", "SIN": "sin", "COS": "cos", "ABS": "abs", "NEG": "neg", "SIGN": "sign",
    "LOGICAL_NOT": "not",
}.items():  # fmt: skip
    enter(_name, _unary(lambda x, op=_op: x.unary(op)))  # type: ignore[misc]
enter("SQUARE", _unary(lambda x: x * x))


def _extreme(op: str) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        q = node.result_scaled()
        if same_scale(node.scaled(0), q) and same_scale(node.scaled(1), q):
            return g.map(lambda a, b: a.binary(op, b), node.tensor(0), node.tensor(1))
        return map_real(g, node, lambda a, b: a.binary(op, b), (0, 1))

    return apply


enter("MAXIMUM", _extreme("max"))
enter("MINIMUM", _extreme("min"))


def _comparison(op: str) -> Rule:
    def apply(g: GraphImporter, node: Node) -> Tensor:
        first, second = node.scaled(0), node.scaled(1)
        plain = same_scale(first, second)

        def compare(a: Num, b: Num) -> Num:
            return a.compare(op, b) if plain else real(a, first).compare(op, real(b, second))

        return g.map(compare, node.tensor(0), node.tensor(1))

    return apply


for _name, _op in {
    "EQUAL": "eq", "NOT_EQUAL": "ne", "GREATER": "gt", "GREATER_EQUAL": "ge", "LESS": "lt",
    "LESS_EQUAL": "le",
}.items():  # fmt: skip
    enter(_name, _comparison(_op))


@rule("RIGHT_SHIFT")
def right_shift(g: GraphImporter, node: Node) -> Tensor:
    """A shift that keeps the sign; by the width and more it leaves the sign, or 0."""
    dtype = node.tensor(0).dtype
    last = dtype.bits - 1

    def shifted(a: Num, b: Num) -> Num:
        return a.binary("shr", b.max(0).min(last))

    return g.map(shifted, node.tensor(0), node.tensor(1))


@rule("ADD_N")
def add_n(g: GraphImporter, node: Node) -> Tensor:
    """The sum of several tensors."""
    return map_real(
        g, node, lambda *xs: functools.reduce(lambda a, b: a + b, xs), range(len(node.operator.inputs))
    )


@rule("SELECT", "SELECT_V2")
def select(g: GraphImporter, node: Node) -> Tensor:
    """Elements of one tensor or the other; of SELECT, a condition of rank 1 chooses rows."""
    condition, a = node.tensor(0), node.tensor(1)
    if node.op == "SELECT" and condition.rank == 1 and a.rank > 1:
        condition = g.reshape(condition, (*condition.shape, *[1] * (a.rank - 1)))
    q, dtype = node.result_scaled(), node.result().dtype
    scales = node.scaled(1), node.scaled(2)
    if q is None or (same_scale(scales[0], q) and same_scale(scales[1], q)):
        return g.map(lambda c, x, y: c.select(x, y), condition, a, node.tensor(2))

    def chosen(c: Num, x: Num, y: Num) -> Num:
        return stored(c.select(real(x, scales[0]), real(y, scales[1])), q, dtype)

    return g.map(chosen, condition, a, node.tensor(2))


@rule("FAKE_QUANT")
def fake_quant(g: GraphImporter, node: Node) -> Tensor:
    """Numbers rounded to those that a few bits can store."""
    low, high = node.real("min"), node.real("max")
    bits = node.integer("num_bits") or 8
    first, last = (1 if node.flag("narrow_range") else 0), (1 << bits) - 1
    scale = (high - low) / (last - first)
    if scale <= 0:
        raise node.fail(f"numbers between {low} and {high}")
    start = first - low / scale
    zero = first if start < first else last if start > last else round(start)
    least, limit = (first - zero) * scale, (last - zero) * scale

    def nudged(x: Num) -> Num:
        kept = x.max(least).min(limit)
        return ((kept - least) * (1.0 / scale) + 0.5).floor() * scale + least

    return g.map(nudged, node.tensor(0))


@rule("BITCAST")
def bitcast(g: GraphImporter, node: Node) -> Tensor:
    """The same bits as another type of the same width."""
    x, dtype = node.tensor(0), node.result().dtype
    if x.dtype.bits != dtype.bits or DType.BOOL in (x.dtype, dtype):
        raise node.fail(f"{x.dtype} as {dtype}")
    return g.map(lambda e: e.bitcast(dtype), x)


@rule("ZEROS_LIKE")
def zeros_like(g: GraphImporter, node: Node) -> Tensor:
    """Zeros of a tensor's shape."""
    return g.full(node.tensor(0).shape, 0, node.result().dtype)


@rule("DENSIFY")
def identity(g: GraphImporter, node: Node) -> Tensor:
    """The operand: sparse constants are dense already."""
    return moved(g, node, node.tensor(0))
