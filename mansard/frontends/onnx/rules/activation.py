"""Activation functions."""

from __future__ import annotations

from mansard.frontends.emission.functions import gelu, sigmoid, softplus
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.elementwise import unary
from mansard.frontends.onnx.table import enter, rule

enter("Relu", unary(lambda x: x.max(0)))
enter("Sigmoid", unary(sigmoid))
enter("Softplus", unary(softplus))
enter("Softsign", unary(lambda x: x / (1.0 + x.unary("abs"))))
enter("Mish", unary(lambda x: x * softplus(x).unary("tanh")))
enter("HardSwish", unary(lambda x: x * (x * (1 / 6) + 0.5).max(0.0).min(1.0)))


@rule("LeakyRelu")
def leaky_relu(g: GraphImporter, node: Node) -> Tensor:
    """A slope below 0."""
    slope = node.real("alpha", 0.01)
    return g.map(lambda x: (x < 0.0).select(x * slope, x), node.tensor(0))


@rule("PRelu")
def prelu(g: GraphImporter, node: Node) -> Tensor:
    """A slope below 0 that is a tensor."""
    return g.map(lambda x, slope: (x < 0).select(x * slope, x), node.tensor(0), node.tensor(1))


@rule("Elu")
def elu(g: GraphImporter, node: Node) -> Tensor:
    """An exponential below 0."""
    alpha = node.real("alpha", 1.0)
    return g.map(lambda x: (x < 0.0).select(x.unary("expm1") * alpha, x), node.tensor(0))


@rule("Celu")
def celu(g: GraphImporter, node: Node) -> Tensor:
    """An exponential below 0 that joins smoothly."""
    alpha = node.real("alpha", 1.0)
    return g.map(lambda x: x.max(0.0) + ((x / alpha).unary("expm1") * alpha).min(0.0), node.tensor(0))


@rule("Selu")
def selu(g: GraphImporter, node: Node) -> Tensor:
    """A scaled exponential below 0."""
    alpha, gamma = (
        node.real("alpha", 1.67326319217681884765625),
        node.real("gamma", 1.05070102214813232421875),
    )
    return g.map(lambda x: (x <= 0.0).select(x.unary("expm1") * alpha, x) * gamma, node.tensor(0))


@rule("HardSigmoid")
def hard_sigmoid(g: GraphImporter, node: Node) -> Tensor:
    """A line between 0 and 1."""
    alpha, beta = node.real("alpha", 0.2), node.real("beta", 0.5)
    return g.map(lambda x: (x * alpha + beta).max(0.0).min(1.0), node.tensor(0))


@rule("ThresholdedRelu")
def thresholded_relu(g: GraphImporter, node: Node) -> Tensor:
    """0 up to a threshold."""
    alpha = node.real("alpha", 1.0)
    return g.map(lambda x: (x > alpha).select(x, 0.0), node.tensor(0))


@rule("Shrink")
def shrink(g: GraphImporter, node: Node) -> Tensor:
    """0 around 0, the rest moved towards it."""
    bias, limit = node.real("bias", 0.0), node.real("lambd", 0.5)
    number = (lambda v: v) if node.tensor(0).dtype.is_float else int
    return g.map(
        lambda x: (x < number(-limit)).select(
            x + number(bias), (x > number(limit)).select(x - number(bias), 0)
        ),
        node.tensor(0),
    )


@rule("Gelu")
def gelu_rule(g: GraphImporter, node: Node) -> Tensor:
    """Exact, or by tanh."""
    tanh = node.text("approximate", "none") == "tanh"
    return g.map(lambda x: gelu(x, tanh=tanh), node.tensor(0))


@rule("Swish")
def swish(g: GraphImporter, node: Node) -> Tensor:
    """x times the logistic function of a multiple."""
    alpha = node.real("alpha", 1.0)
    return g.map(lambda x: x * sigmoid(x * alpha), node.tensor(0))
