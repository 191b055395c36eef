"""Convolutions of (N, C, spatial…), and their transposes."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window
from mansard.frontends.linalg import dimmath
from mansard.ir.types import Linear


def convolve(g: Emitter, x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """Sums of products of windows of (N, C, spatial…) and a kernel (M, C/groups, window…), 0 around."""
    padded = window.padded(g, x, 0)
    batch, channels = padded.shape[:2]
    filters, depth = weight.shape[:2]
    spatial = window.sizes
    rank = window.rank
    if groups == 1:
        body = g.body((batch, filters, *spatial, depth, *window.kernel))
        inner = 2 + rank
        places = window.places(2, inner + 1)
        a = g.read(body, padded, [Linear.dim(0), Linear.dim(inner), *places])
        b = g.read(body, weight, [Linear.dim(1), *(Linear.dim(inner + i) for i in range(rank + 1))])
        return g.finish(body, a * b, rank + 1, "add")
    if depth == 1 and filters == groups:
        body = g.body((batch, filters, *spatial, *window.kernel))
        a = g.read(body, padded, [Linear.dim(0), Linear.dim(1), *window.places(2, 2 + rank)])
        kernel = g.reshape(weight, (filters, *window.kernel))
        b = g.read(body, kernel, [Linear.dim(1), *(Linear.dim(2 + rank + i) for i in range(rank))])
        return g.finish(body, a * b, rank, "add")
    each = dimmath.floordiv(filters, groups)
    x5 = g.reshape(padded, (batch, groups, dimmath.floordiv(channels, groups), *padded.shape[2:]))
    w5 = g.reshape(weight, (groups, each, depth, *window.kernel))
    body = g.body((batch, groups, each, *spatial, depth, *window.kernel))
    inner = 3 + rank
    places = window.places(3, inner + 1)
    a = g.read(body, x5, [Linear.dim(0), Linear.dim(1), Linear.dim(inner), *places])
    b = g.read(body, w5, [Linear.dim(1), Linear.dim(2), *(Linear.dim(inner + i) for i in range(rank + 1))])
    return g.reshape(g.finish(body, a * b, rank + 1, "add"), (batch, filters, *spatial))


def add_bias(g: Emitter, y: Tensor, bias: Tensor | None) -> Tensor:
    """A number for each channel added."""
    if bias is None:
        return y
    return g.map(lambda e, b: e + b, y, g.reshape(bias, (*bias.shape, *[1] * (y.rank - 2))))


def transposed(
    g: Emitter,
    x: Tensor,
    weight: Tensor,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[DimLike],
    high: Sequence[DimLike],
    groups: int,
) -> Tensor:
    """The gradient of a convolution: one over the input spread by the strides, with the kernel reversed.

    ``weight`` is (C, M/groups, window…). ``low`` and ``high`` are cut off the full result; negative ones add.
    """
    kernel = [int(str(d)) for d in weight.shape[2:]]
    rank = len(kernel)
    wide = spread(g, x, strides)
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    low = [dims.add(r, dims.mul(p, -1)) for r, p in zip(reach, low, strict=True)]
    high = [dims.add(r, dims.mul(p, -1)) for r, p in zip(reach, high, strict=True)]
    wide = cropped(g, wide, low, high)
    margins = [[dims.maximum(p, 0) for p in side] for side in (low, high)]
    sizes = [dims.add(d, a, b, -r) for d, a, b, r in zip(wide.shape[2:], *margins, reach, strict=True)]
    window = Window(
        tuple(kernel),
        (1,) * rank,
        tuple(dilations),
        tuple(margins[0]),
        tuple(margins[1]),
        tuple(margins[1]),
        tuple(sizes),
    )
    return convolve(g, wide, _reversed_kernel(g, weight, groups), window, groups)


def spread(g: Emitter, x: Tensor, strides: Sequence[int]) -> Tensor:
    """(N, C, spatial…) with ``stride - 1`` zeros between the elements of each spatial dim."""
    for i, stride in enumerate(strides):
        if stride != 1:
            x = spread_axis(g, x, 2 + i, stride)
    return x


def spread_axis(g: Emitter, x: Tensor, axis: int, stride: int, value: float | int | bool = 0) -> Tensor:
    """The tensor with ``stride - 1`` times a number between the elements of an axis."""
    extent = x.shape[axis]
    unit = g.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    low: list[DimLike] = [0] * unit.rank
    high = list(low)
    high[axis + 1] = stride - 1
    wide = g.pad(unit, low, high, value)
    joined = g.reshape(wide, (*x.shape[:axis], dims.mul(extent, stride), *x.shape[axis + 1 :]))
    return g.part(joined, axis, 0, dims.add(dims.mul(dims.add(extent, -1), stride), 1))


def cropped(g: Emitter, x: Tensor, low: Sequence[DimLike], high: Sequence[DimLike]) -> Tensor:
    """Without the elements that negative margins drop."""
    starts: list[DimLike] = [0, 0, *(dims.maximum(dims.mul(p, -1), 0) for p in low)]
    ends = [0, 0, *(dims.maximum(dims.mul(p, -1), 0) for p in high)]
    sizes = [
        dims.add(d, dims.mul(s, -1), dims.mul(e, -1)) for d, s, e in zip(x.shape, starts, ends, strict=True)
    ]
    return g.slice(x, starts, sizes, [1] * x.rank)


def _reversed_kernel(g: Emitter, weight: Tensor, groups: int) -> Tensor:
    """(C, M/groups, window…) as (M, C/groups, window…), the windows back to front."""
    channels, each = weight.shape[:2]
    kernel = weight.shape[2:]
    depth = dimmath.floordiv(channels, groups)
    split = g.reshape(weight, (groups, depth, each, *kernel))
    body = g.body((groups, each, depth, *kernel))
    back = [Linear.dim(3 + i, -1, dims.add(k, -1)) for i, k in enumerate(kernel)]
    flipped = g.finish(body, g.read(body, split, [Linear.dim(0), Linear.dim(2), Linear.dim(1), *back]))
    return g.reshape(flipped, (dims.mul(each, groups), depth, *kernel))
