"""Gated feed-forward networks."""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard.dtypes import DType
from mansard.frontends.decoders.architecture import Activation, FeedForward
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.ir.types import IndexMap, Linear, Value


def feed_forward(writer: Writer, x: Value, layer: FeedForward, place: str) -> Value:
    """``down(activation(gate(x)) * up(x))`` for x (rows, hidden)."""
    writer.at(place)
    hidden = x.type.shape[1]
    assert isinstance(hidden, int)

    def project(value: Value, name: str, rows: int, columns: int) -> Value:
        bias = writer.weight(f"{place}.{name}.bias", (rows,)) if layer.bias else None
        return writer.linear(value, writer.matrix(f"{place}.{name}.weight", (rows, columns)), bias, name)

    first, second, last = layer.names
    if second is None:
        both = project(x, first, 2 * layer.width, hidden)
        return project(gated_halves(writer, both, layer.activation), last, hidden, layer.width)
    gate, up = project(x, first, layer.width, hidden), project(x, second, layer.width, hidden)
    function = ACTIVATIONS[layer.activation]

    def body(gate: Scalar, up: Scalar) -> Scalar:
        return mul(cast(function(cast(gate, DType.F32)), writer.dtype), up)

    return project(writer.map([gate, up], body, "gated"), last, hidden, layer.width)


def gated_halves(writer: Writer, both: Value, activation: Activation) -> Value:
    """``activation(first half) * second half`` along the last dim, in the model's type."""
    *rows, columns = both.type.shape
    assert isinstance(columns, int)
    dtype, function = both.type.dtype, ACTIVATIONS[activation]
    gate = cast(function(cast(Arg(0, dtype), DType.F32)), writer.dtype)
    leading = [Linear.dim(axis) for axis in range(len(rows))]
    second = IndexMap((*leading, Linear.dim(len(rows), 1, columns // 2)))
    return writer.builder.generic(
        (both, both),
        (IndexMap.identity(len(rows) + 1), second),
        (*rows, columns // 2),
        mul(gate, cast(Arg(1, dtype), writer.dtype)),
        name="gated",
    )


def _const(value: float) -> Const:
    return Const(value, DType.F32)


def _apply(op: str, *args: Scalar) -> Scalar:
    return Apply(op, args, DType.F32)


def _silu(x: Scalar) -> Scalar:
    return mul(x, _apply("div", _const(1.0), add(_apply("exp", _apply("neg", x)), _const(1.0))))


def _gelu(x: Scalar) -> Scalar:
    return mul(mul(x, _const(0.5)), add(_apply("erf", mul(x, _const(math.sqrt(0.5)))), _const(1.0)))


def _gelu_tanh(x: Scalar) -> Scalar:
    """``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))`` (Hendrycks and Gimpel, arXiv:1606.08415)."""
    cubic = add(x, mul(_const(0.044715), mul(x, mul(x, x))))
    inner = _apply("tanh", mul(_const(math.sqrt(2 / math.pi)), cubic))
    return mul(mul(x, _const(0.5)), add(inner, _const(1.0)))


def _relu(x: Scalar) -> Scalar:
    return _apply("max", x, _const(0.0))


ACTIVATIONS: dict[Activation, Callable[[Scalar], Scalar]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
}
