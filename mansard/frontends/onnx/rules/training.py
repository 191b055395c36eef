"""Steps of optimisers."""

from __future__ import annotations

from collections.abc import Callable

from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule

DOMAIN = "ai.onnx.preview.training"
Step = Callable[[Tensor, Tensor, list[Tensor]], list[Tensor]]


def _each(node: Node, states: int, step: Step) -> list[Entry | None]:
    """A step of every parameter: (rate, time, parameters…, gradients…, states…) to (parameters…, states…)."""
    tensors = node.tensors()[2:]
    count = len(tensors) // (2 + states)
    results = [step(tensors[i], tensors[count + i], tensors[2 * count + i :: count]) for i in range(count)]
    return [results[i][k] for k in range(1 + states) for i in range(count)]


@rule("Momentum", domain=DOMAIN)
def momentum(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Gradient descent with momentum, standard or Nesterov's."""
    rate, time = node.tensor(0), node.tensor(1)
    alpha, beta = node.real("alpha"), node.real("beta")
    decay, nesterov = node.real("norm_coefficient"), node.text("mode") == "nesterov"

    def step(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        regular = g.map(lambda d, e: d + e * decay, gradient, x)
        # The first gradient counts as it is.
        velocity = g.map(
            lambda v, d, t: v * alpha + d * (t > 0).select(d.number(beta), 1.0), states[0], regular, time
        )
        if nesterov:
            new = g.map(lambda e, r, d, v: e - r * (d + v * alpha), x, rate, regular, velocity)
        else:
            new = g.map(lambda e, r, v: e - r * v, x, rate, velocity)
        return [new, velocity]

    return _each(node, 1, step)


@rule("Adagrad", domain=DOMAIN)
def adagrad(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Rates divided by the root of the sum of squared gradients."""
    rate, time = node.tensor(0), node.tensor(1)
    decay, slowing, epsilon = (
        node.real("norm_coefficient"),
        node.real("decay_factor"),
        node.real("epsilon", 1e-6),
    )
    slowed = g.map(lambda r, t: r / (t.cast(r.dtype) * slowing + 1.0), rate, time)

    def step(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        regular = g.map(lambda d, e: d + e * decay, gradient, x)
        squares = g.map(lambda s, d: s + d * d, states[0], regular)
        new = g.map(lambda e, r, d, s: e - r * d / (s.sqrt() + epsilon), x, slowed, regular, squares)
        return [new, squares]

    return _each(node, 1, step)


@rule("Adam", domain=DOMAIN)
def adam(g: GraphImporter, node: Node) -> list[Entry | None]:
    """Rates by running means of gradients and of their squares."""
    rate, time = node.tensor(0), node.tensor(1)
    alpha, beta = node.real("alpha", 0.9), node.real("beta", 0.999)
    decay, after = node.real("norm_coefficient"), node.real("norm_coefficient_post")
    epsilon = node.real("epsilon", 1e-6)

    def corrected(r: Num, t: Num) -> Num:
        steps = t.cast(r.dtype)
        right = (1.0 - r.number(beta).binary("pow", steps)).sqrt() / (
            1.0 - r.number(alpha).binary("pow", steps)
        )
        return (t > 0).select(r * right, r)

    adjusted = g.map(corrected, rate, time)

    def step(x: Tensor, gradient: Tensor, states: list[Tensor]) -> list[Tensor]:
        regular = g.map(lambda d, e: d + e * decay, gradient, x)
        first = g.map(lambda v, d: v * alpha + d * (1 - alpha), states[0], regular)
        second = g.map(lambda h, d: h * beta + d * d * (1 - beta), states[1], regular)
        new = g.map(
            lambda e, r, v, h: (e - r * v / (h.sqrt() + epsilon)) * (1 - after), x, adjusted, first, second
        )
        return [new, first, second]

    return _each(node, 2, step)
