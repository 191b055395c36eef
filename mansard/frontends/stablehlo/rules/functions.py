"""Functions of the dialect of composite ops (CHLO): in a few scalar ops, or by MLIR's own definition."""

from __future__ import annotations

import math

from mansard.dtypes import DType
from mansard.frontends.emission.functions import acosh, asinh, atanh, erfc
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo import definitions
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.rules.elementwise import Function, in_f32, unary
from mansard.frontends.stablehlo.table import enter, rule
from mansard.ir.types import Linear

_FUNCTIONS: dict[str, Function] = {
    "erf": lambda x: x.unary("erf"), "acos": lambda x: x.unary("acos"),
    "asin": lambda x: x.unary("asin"), "atan": lambda x: x.unary("atan"), "tan": lambda x: x.unary("tan"),
    "sinh": lambda x: x.unary("sinh"), "cosh": lambda x: x.unary("cosh"), "asinh": in_f32(asinh),
    "acosh": in_f32(acosh), "atanh": in_f32(atanh), "square": lambda x: x * x,
    "is_inf": lambda x: x.unary("abs") == math.inf, "is_pos_inf": lambda x: x == math.inf,
    "is_neg_inf": lambda x: x == -math.inf,
}  # fmt: skip
for _name, _function in _FUNCTIONS.items():
    enter(f"chlo.{_name}", unary(_function))
    enter(f"mhlo.{_name}", unary(_function))


def by_definition(g: StableHloImporter, node: Node) -> list[Entry]:
    """The op as MLIR defines it in ops of StableHLO."""
    return definitions.expanded(g, node)


for _name in (
    "digamma", "lgamma", "polygamma", "zeta", "erf_inv", "bessel_i1e", "next_after", "broadcast_next_after",
    "broadcast_polygamma", "broadcast_zeta", "mulhi", "_asin_acos_kernel",
):  # fmt: skip
    enter(f"chlo.{_name}", by_definition)


@rule("chlo.erfc", "mhlo.erfc")
def complementary_error(g: StableHloImporter, node: Node) -> Entry | list[Entry]:
    """In f32 by a short formula, in f64 by MLIR's definition."""
    x = node.tensor(0)
    return by_definition(g, node) if x.dtype is DType.F64 else g.map(in_f32(erfc), x)


@rule("chlo.constant")
def constant(g: StableHloImporter, node: Node) -> Tensor:
    """The attribute's numbers."""
    return g.constant_tensor(node.attribute("value"), "weight")


@rule("stablehlo.batch_norm_inference")
def batch_norm_inference(g: StableHloImporter, node: Node) -> Tensor:
    """Normalised by stated means and variances of a dim's indices."""
    x, axis = node.tensor(0), node.integer("feature_index")
    epsilon = float(node.attribute("epsilon").value)
    body = g.body(x.shape)
    element = g.read(body, x, [Linear.dim(i) for i in range(x.rank)])
    scale, offset, mean, variance = (g.read(body, node.tensor(i), [Linear.dim(axis)]) for i in range(1, 5))
    return g.finish(body, (element - mean) * (scale / (variance + epsilon).sqrt()) + offset)
