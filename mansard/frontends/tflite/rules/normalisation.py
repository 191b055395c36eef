"""Normalisation over neighbouring channels."""

from __future__ import annotations

from mansard.dims import DimLike
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.table import rule
from mansard.ir.types import Linear


@rule("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by a power of the sum of squares over neighbouring channels."""
    x, radius = node.tensor(0), node.integer("radius")
    bias, alpha, beta = node.real("bias"), node.real("alpha"), node.real("beta")
    margin: list[DimLike] = [*[0] * (x.rank - 1), radius]
    padded = g.pad(g.map(lambda e: e * e, x), margin, margin)
    body = g.body((*x.shape, 2 * radius + 1))
    linear = [Linear.dim(i) for i in range(x.rank)]
    linear[-1] = linear[-1].plus(Linear.dim(x.rank))
    sums = g.finish(body, g.read(body, padded, linear), 1, "add")

    def divided(e: Num, s: Num) -> Num:
        return e * (s * alpha + bias).binary("pow", -beta)

    return g.map(divided, x, sums)
