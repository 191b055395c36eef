"""Convolutions with any order of dims, which operands and result keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.convolution import spread_axis
from mansard.frontends.emission.reductions import reversed_along
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window, window
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo.attributes import convolution_dims
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.rules.slices import cut_and_padded
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@dataclass(frozen=True)
class Roles:
    """What each dim is: ``b`` or ``o``, ``f`` or ``i``, or the number of a spatial dim."""

    source: Sequence[str]
    kernel: Sequence[str]
    result: Sequence[str]

    @property
    def spatial(self) -> list[str]:
        """The spatial dims in order."""
        return [str(i) for i in range(len(self.source) - 2)]


@rule("stablehlo.convolution", "stablehlo.dynamic_conv")
def convolution(g: StableHloImporter, node: Node) -> Tensor:
    """Sums of products of windows and a kernel, in groups of features or of the batch."""
    dtype = node.dtype()
    roles = Roles(*convolution_dims(node.attribute("dimension_numbers")))
    ones = [1] * len(roles.spatial)
    x, kernel = node.tensor(0), node.tensor(1)
    reversal = list(node.attribute("window_reversal")) if node.has("window_reversal") else []
    for name, is_reversed in zip(roles.spatial, reversal, strict=False):
        if is_reversed:
            kernel = reversed_along(g, kernel, roles.kernel.index(name))
    for name, factor in zip(roles.spatial, node.ints("lhs_dilation", ones), strict=True):
        if factor != 1:
            x = spread_axis(g, x, roles.source.index(name), factor)
    groups, batch_groups = node.integer("feature_group_count", 1), node.integer("batch_group_count", 1)
    if batch_groups > 1:
        x, groups = _batch_as_features(g, x, roles, batch_groups), batch_groups
    dynamic = node.name.endswith("dynamic_conv")
    padding: Sequence[DimLike] = node.dim_list(2) if dynamic else node.ints("padding", [0] * (2 * len(ones)))
    margins: list[list[DimLike]] = [[0] * x.rank, [0] * x.rank]
    for i, name in enumerate(roles.spatial):
        for side in range(2):
            margins[side][roles.source.index(name)] = padding[2 * i + side]
    padded = cut_and_padded(g, x, margins[0], margins[1], 0)
    spatial = [padded.shape[roles.source.index(name)] for name in roles.spatial]
    taps = [int(str(kernel.shape[roles.kernel.index(name)])) for name in roles.spatial]
    strides, dilations = node.ints("window_strides", ones), node.ints("rhs_dilation", ones)
    geometry = window(spatial, taps, strides, dilations, [(0, 0)] * len(ones))
    narrow = dtype.is_float and dtype.bits < 32
    y = convolve(g, padded, kernel, geometry, roles, groups, DType.F32 if narrow else dtype)
    return g.cast(y, dtype)


def convolve(
    g: StableHloImporter,
    x: Tensor,
    kernel: Tensor,
    geometry: Window,
    roles: Roles,
    groups: int,
    dtype: DType,
) -> Tensor:
    """Sums in ``dtype`` of products of windows of a padded tensor and a kernel."""
    feature, inputs, filters = roles.source.index("f"), roles.kernel.index("i"), roles.kernel.index("o")
    depth, count = kernel.shape[inputs], kernel.shape[filters]
    each = dimmath.floordiv(count, groups)
    source, weights, result = list(roles.source), list(roles.kernel), list(roles.result)
    merged: list[DimLike] = []
    single = groups > 1 and g.is_one(depth)
    if single:  # no view between the padding and its only reader, which may then read around it
        source[feature] = "g"
    elif groups > 1:  # features and filters by group: "g" is a dim of its own
        x = g.reshape(x, (*x.shape[:feature], groups, depth, *x.shape[feature + 1 :]))
        source[feature : feature + 1] = ["g", "f"]
    if groups > 1:
        kernel = g.reshape(kernel, (*kernel.shape[:filters], groups, each, *kernel.shape[filters + 1 :]))
        weights[filters : filters + 1] = ["g", "o"]
        place = result.index("f")
        result[place : place + 1] = ["g", "f"]
    extents: dict[str, DimLike] = {"b": x.shape[source.index("b")], "g": groups, "f": each}
    extents |= dict(zip(roles.spatial, geometry.sizes, strict=True))
    merged = [extents[r] if r != "f" else count for r in roles.result]
    outer = [r for r in result if not (r == "f" and groups > 1 and g.is_one(each))]
    taps = [f"tap{r}" for r in roles.spatial]
    last = feature == len(roles.source) - 1
    inner = taps if single else ([*taps, "depth"] if last else ["depth", *taps])
    extents |= {"depth": depth, **dict(zip(taps, geometry.kernel, strict=True))}
    order = [*outer, *inner]
    body = g.body([extents[r] for r in order])

    def at(role: str, stride: int = 1) -> Linear:
        return Linear.dim(order.index(role), stride) if role in order else Linear()

    where = {"b": at("b"), "g": at("g"), "f": at("depth")}
    for i, role in enumerate(roles.spatial):
        where[role] = at(role, geometry.strides[i]).plus(at(taps[i], geometry.dilations[i]))
    of_kernel = {"g": at("g"), "o": at("f"), "i": at("depth")}
    of_kernel |= {role: at(tap) for role, tap in zip(roles.spatial, taps, strict=True)}
    a = g.read(body, x, [where[r] for r in source])
    b = g.read(body, kernel, [of_kernel[r] for r in weights])
    y = g.finish(body, a.cast(dtype) * b.cast(dtype), len(inner), "add" if inner else None)
    return g.reshape(y, merged)


def _batch_as_features(g: StableHloImporter, x: Tensor, roles: Roles, groups: int) -> Tensor:
    """Groups of the batch as groups of features, before the features of each."""
    batch, feature = roles.source.index("b"), roles.source.index("f")
    each = dimmath.floordiv(x.shape[batch], groups)
    split = g.reshape(x, (*x.shape[:batch], groups, each, *x.shape[batch + 1 :]))
    order = [i for i in range(split.rank) if i != batch]
    order.insert(order.index(feature + (feature > batch)), batch)
    moved = g.transpose(split, order)
    shape = list(x.shape)
    shape[batch], shape[feature] = each, dims.mul(x.shape[feature], groups)
    return g.reshape(moved, shape)
