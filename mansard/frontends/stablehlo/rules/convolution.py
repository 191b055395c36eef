"""Convolutions with any order of dims."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.convolution import convolve, spread
from mansard.frontends.emission.reductions import reversed_along
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import window
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo.attributes import convolution_dims
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.rules.slices import cut_and_padded
from mansard.frontends.stablehlo.table import rule


@rule("stablehlo.convolution", "stablehlo.dynamic_conv")
def convolution(g: StableHloImporter, node: Node) -> Tensor:
    """Sums of products of windows and a kernel, in groups of features or of the batch."""
    dtype = node.dtype()
    source, weights, result = convolution_dims(node.attribute("dimension_numbers"))
    rank = len(source) - 2
    spatial = [str(i) for i in range(rank)]
    x = g.transpose(g.cast(node.tensor(0), dtype), [source.index(r) for r in ("b", "f", *spatial)])
    kernel = g.transpose(g.cast(node.tensor(1), dtype), [weights.index(r) for r in ("o", "i", *spatial)])
    ones = [1] * rank
    reversal = node.attribute("window_reversal") if node.has("window_reversal") else []
    for i, is_reversed in enumerate(reversal):
        if is_reversed:
            kernel = reversed_along(g, kernel, 2 + i)
    x = spread(g, x, node.ints("lhs_dilation", ones))
    dynamic = node.name.endswith("dynamic_conv")
    padding: Sequence[DimLike] = node.dim_list(2) if dynamic else node.ints("padding", [0] * (2 * rank))
    groups, batch_groups = node.integer("feature_group_count", 1), node.integer("batch_group_count", 1)
    if batch_groups > 1:
        x, groups = _batch_as_features(g, x, batch_groups), batch_groups
    pads = list(zip(padding[::2], padding[1::2], strict=True))
    if any(dims.bounds(p)[0] < 0 for p in padding):
        x = cut_and_padded(g, x, [0, 0, *padding[::2]], [0, 0, *padding[1::2]], 0)
        pads = [(0, 0)] * rank
    taps = [int(str(d)) for d in kernel.shape[2:]]
    strides, dilations = node.ints("window_strides", ones), node.ints("rhs_dilation", ones)
    y = convolve(g, x, kernel, window(x.shape[2:], taps, strides, dilations, pads), groups)
    return g.transpose(y, [("b", "f", *spatial).index(r) for r in result])


def _batch_as_features(g: StableHloImporter, x: Tensor, groups: int) -> Tensor:
    """(groups * N, C, …) as (N, groups * C, …)."""
    batch, channels, *rest = x.shape
    each = dimmath.floordiv(batch, groups)
    split = g.reshape(x, (groups, each, channels, *rest))
    order = [1, 0, *range(2, split.rank)]
    return g.reshape(g.transpose(split, order), (each, dims.mul(channels, groups), *rest))
