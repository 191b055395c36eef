"""Activation functions, and softmax."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import gelu, sigmoid
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import map_real, real_tensor, same_scale, stored_result
from mansard.frontends.tflite.table import enter, rule

_LIMITS: dict[str, tuple[float, float | None]] = {
    "RELU": (0.0, None), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0),
}  # fmt: skip


def _limited(name: str) -> None:
    low, high = _LIMITS[name]

    def apply(g: GraphImporter, node: Node) -> Tensor:
        q = node.result_scaled()
        if q is not None and q.per_tensor and high is None and same_scale(node.scaled(0), q):
            zero = int(q.zero[0])
            return g.map(lambda e: e.max(zero), node.tensor(0))
        return map_real(g, node, lambda e: e.max(low) if high is None else e.max(low).min(high))

    enter(name, apply)


for _name in _LIMITS:
    _limited(_name)


def _elu(x: Num) -> Num:
    return (x < 0.0).select(x.unary("expm1"), x)


def _hard_swish(x: Num) -> Num:
    return x * (x + 3.0).max(0.0).min(6.0) * (1 / 6)


enter("LOGISTIC", lambda g, node: map_real(g, node, sigmoid))
enter("TANH", lambda g, node: map_real(g, node, lambda x: x.unary("tanh")))
enter("ELU", lambda g, node: map_real(g, node, _elu))
enter("HARD_SWISH", lambda g, node: map_real(g, node, _hard_swish))


@rule("GELU")
def gelu_rule(g: GraphImporter, node: Node) -> Tensor:
    """Exact, or by tanh."""
    tanh = node.flag("approximate")
    return map_real(g, node, lambda x: gelu(x, tanh=tanh))


@rule("LEAKY_RELU")
def leaky_relu(g: GraphImporter, node: Node) -> Tensor:
    """A slope below 0."""
    slope = node.real("alpha")
    return map_real(g, node, lambda x: (x < 0.0).select(x * slope, x))


@rule("PRELU")
def prelu(g: GraphImporter, node: Node) -> Tensor:
    """A slope below 0 that is a tensor."""
    return map_real(g, node, lambda x, slope: (x < 0.0).select(x * slope, x), (0, 1))


@rule("SOFTMAX")
def softmax(g: GraphImporter, node: Node) -> Tensor:
    """Exponentials over the last axis, divided by their sum."""
    x, beta = real_tensor(g, node, 0), node.real("beta")
    wide = x if x.dtype.bits >= 32 else g.cast(x, DType.F32)
    wide = wide if beta == 1 else g.map(lambda e: e * beta, wide)
    axis = [x.rank - 1]
    highest = g.reduce(wide, axis, "max", keepdims=True)
    powers = g.map(lambda e, m: (e - m).exp(), wide, highest)
    total = g.reduce(powers, axis, "add", keepdims=True)
    return stored_result(g, node, g.map(lambda e, s: e / s, powers, total))


@rule("LOG_SOFTMAX")
def log_softmax(g: GraphImporter, node: Node) -> Tensor:
    """The logarithm of softmax."""
    x = real_tensor(g, node, 0)
    axis = [x.rank - 1]
    highest = g.reduce(x, axis, "max", keepdims=True)
    centred = g.map(lambda e, m: e - m, x, highest)
    total = g.reduce(centred, axis, "add", keepdims=True, function=lambda e: e.exp())
    return stored_result(g, node, g.map(lambda e, s: e - s.log(), centred, total))


@rule("L2_NORMALIZATION")
def l2_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by the Euclidean norm of the last axis."""
    x = real_tensor(g, node, 0)
    norm = g.reduce(x, [x.rank - 1], "add", keepdims=True, function=lambda e: e * e)
    return stored_result(g, node, g.map(lambda e, n: e / n.sqrt().max(1e-6), x, norm))
