"""Products of tensors."""

from __future__ import annotations

from mansard.dtypes import DType
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@rule("stablehlo.dot_general", "stablehlo.dot")
def dot_general(g: StableHloImporter, node: Node) -> Tensor:
    """Sums of products over contracted dims, for each index of batch dims; batch, left and right dims in
    order."""
    a, b, dtype = node.tensor(0), node.tensor(1), node.dtype()
    if node.name == "stablehlo.dot":
        numbers = {
            "lhs_contracting_dimensions": [a.rank - 1],
            "rhs_contracting_dimensions": [max(b.rank - 2, 0)],
        }
    else:
        numbers = node.fields("dot_dimension_numbers")
    batch = [numbers.get(f"{side}_batching_dimensions", []) for side in ("lhs", "rhs")]
    inner = [numbers.get(f"{side}_contracting_dimensions", []) for side in ("lhs", "rhs")]
    free = [[i for i in range(t.rank) if i not in (*batch[n], *inner[n])] for n, t in enumerate((a, b))]
    for pairs in (batch, inner):
        for i, j in zip(*pairs, strict=True):
            g.equal(a.shape[i], b.shape[j])
    outer = [a.shape[i] for i in (*batch[0], *free[0])] + [b.shape[i] for i in free[1]]
    summed = [a.shape[i] for i in inner[0]]
    body = g.body([*outer, *summed])
    where: list[dict[int, int]] = [{}, {}]
    for n in range(2):
        for place, axis in enumerate(batch[n]):
            where[n][axis] = place
        first = len(batch[0]) + (len(free[0]) if n else 0)
        for place, axis in enumerate(free[n]):
            where[n][axis] = first + place
        for place, axis in enumerate(inner[n]):
            where[n][axis] = len(outer) + place
    x, y = (g.read(body, t, [Linear.dim(where[n][i]) for i in range(t.rank)]) for n, t in enumerate((a, b)))
    if dtype is DType.BOOL:
        return g.finish(body, x & y, len(summed), "or" if summed else None)
    wide = DType.F32 if dtype.is_float and dtype.bits < 32 else dtype
    product = g.finish(body, x.cast(wide) * y.cast(wide), len(summed), "add" if summed else None)
    return g.cast(product, dtype)
