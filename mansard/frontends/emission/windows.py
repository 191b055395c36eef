"""Windows over spatial dims: the geometry that convolutions and pooling share, and pooling itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.linalg.scalars import Space
from mansard.ir.types import Linear


@dataclass(frozen=True)
class Window:
    """A window over the spatial dims of (N, C, spatial…); ``high`` pads as far as the last window reaches."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[DimLike, ...]
    high: tuple[DimLike, ...]
    stated_high: tuple[DimLike, ...]
    """The padding that the model states; beyond it there is no element, padded or not."""
    sizes: tuple[DimLike, ...]
    """The spatial dims of the result."""

    @property
    def rank(self) -> int:
        """Number of spatial dims."""
        return len(self.kernel)

    def places(self, first: int, inner: int) -> list[Linear]:
        """Indices into the padded spatial dims, of result dims from ``first``, window dims from ``inner``."""
        return [
            Linear.dim(first + i, self.strides[i]).plus(Linear.dim(inner + i, self.dilations[i]))
            for i in range(self.rank)
        ]

    def padded(self, g: Emitter, x: Tensor, value: float | int, first: int = 2) -> Tensor:
        """The tensor with its margin; ``first`` is its first spatial dim."""
        before, after = [0] * first, [0] * (x.rank - first - self.rank)
        return g.pad(x, [*before, *self.low, *after], [*before, *self.high, *after], value)


def same_window(
    spatial: Sequence[DimLike],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    upper: bool = True,
) -> Window:
    """The window padded so that each spatial dim gives ``extent / stride`` results, rounded up.

    Of an odd padding the larger half lies behind the tensor (``upper``) or before it.
    """
    low: list[DimLike] = []
    high: list[DimLike] = []
    sizes: list[DimLike] = []
    for extent, taps, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        result = dimmath.ceildiv(extent, stride)
        reach = dilation * (taps - 1) + 1
        needed = dims.add(dims.mul(dims.add(result, -1), stride), reach, dims.mul(extent, -1))
        total = dims.maximum(needed, 0)
        less = dimmath.floordiv(total, 2)
        more = dimmath.sub(total, less)
        low.append(less if upper else more)
        high.append(more if upper else less)
        sizes.append(result)
    margins = (tuple(low), tuple(high), tuple(high))
    return Window(tuple(kernel), tuple(strides), tuple(dilations), *margins, tuple(sizes))


def window(
    spatial: Sequence[DimLike],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[DimLike, DimLike]],
    *,
    ceiling: bool = False,
) -> Window:
    """The window of sizes and padding for each spatial dim; ``ceiling`` counts windows that begin inside."""
    high: list[DimLike] = []
    sizes: list[DimLike] = []
    for extent, taps, stride, dilation, (before, after) in zip(
        spatial, kernel, strides, dilations, pads, strict=True
    ):
        reach = dilation * (taps - 1) + 1
        span = dims.add(extent, before, after, -reach)
        count = dimmath.ceildiv(span, stride) if ceiling else dimmath.floordiv(span, stride)
        result = dims.add(count, 1)
        if ceiling:
            result = _started_inside(result, stride, dims.add(extent, before))
        end = dims.add(dims.mul(dims.add(result, -1), stride), reach)
        beyond = dimmath.sub(end, dims.add(extent, before, after))
        high.append(dims.add(after, beyond) if ceiling and dims.bounds(beyond)[1] > 0 else after)
        sizes.append(result)
    return Window(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        tuple(low for low, _ in pads),
        tuple(high),
        tuple(after for _, after in pads),
        tuple(sizes),
    )


def _started_inside(size: DimLike, stride: int, limit: DimLike) -> DimLike:
    """One window fewer where the last one would start in the padding behind the tensor."""
    last = dims.mul(dims.add(size, -1), stride)
    if dims.bounds(dimmath.sub(last, limit))[0] >= 0:
        return dims.add(size, -1)
    return dims.minimum(size, dims.add(dimmath.floordiv(dims.add(limit, -1), stride), 1))


def pooled(
    g: Emitter, x: Tensor, window: Window, combiner: str, value: float | int, *, first: int = 2
) -> Tensor:
    """Windows of a tensor combined; the margin has a value. ``first`` is the first spatial dim."""
    padded = window.padded(g, x, value, first)
    last = first + window.rank
    body = g.body((*x.shape[:first], *window.sizes, *x.shape[last:], *window.kernel))
    before, after = ([Linear.dim(i) for i in axes] for axes in (range(first), range(last, x.rank)))
    element = g.read(body, padded, [*before, *window.places(first, x.rank), *after])
    return g.finish(body, element, window.rank, combiner)


def averaged(g: Emitter, x: Tensor, window: Window, *, with_margin: bool, first: int = 2) -> Tensor:
    """The means of windows, of elements inside the tensor, or of those of the stated margin too."""
    sums = pooled(g, x, window, "add", 0, first=first)
    whole = math.prod(window.kernel)
    margins = (
        [dims.add(h, dims.mul(s, -1)) for h, s in zip(window.high, window.stated_high, strict=True)]
        if with_margin
        else [*window.low, *window.high]
    )
    if all(m == 0 for m in margins):
        return g.map(lambda e: e / whole, sums)
    body = g.body(sums.shape)
    count: Num | None = None
    for i in range(window.rank):
        inside = _count(body.space, window, i, (first, x.shape[first + i]), with_margin)
        count = inside if count is None else count * inside
    assert count is not None
    element = g.read(body, sums, [Linear.dim(d) for d in range(sums.rank)])
    return g.finish(body, element / count.max(1).cast(x.dtype))


def _count(space: Space, window: Window, i: int, dim: tuple[int, DimLike], with_margin: bool) -> Num:
    """How many elements of a window along spatial dim ``i`` are counted; ``dim``: the first, and its size."""
    first, extent = dim
    start = index(space, first + i) * window.strides[i]
    low = 0 if with_margin else window.low[i]
    high = dims.add(extent, window.low[i], window.stated_high[i] if with_margin else 0)
    if window.dilations[i] == 1:
        return (start + window.kernel[i]).min(size(space, high)) - start.max(size(space, low))
    total: Num | None = None
    for tap in range(window.kernel[i]):
        place = start + tap * window.dilations[i]
        inside = ((place >= size(space, low)) & (place < size(space, high))).cast(DType.I64)
        total = inside if total is None else total + inside
    assert total is not None
    return total
