"""The geometry that convolutions and pooling share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.emitter import Emitter
from mansard.frontends.onnx.entries import Tensor
from mansard.frontends.onnx.node import Node
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

    def padded(self, g: Emitter, x: Tensor, value: float | int) -> Tensor:
        """The tensor with its margin."""
        return g.pad(x, [0, 0, *self.low], [0, 0, *self.high], value)


def window_of(node: Node, spatial: Sequence[DimLike], kernel: Sequence[int]) -> Window:
    """The window of a node's attributes."""
    rank = len(spatial)
    strides = node.ints("strides") or [1] * rank
    dilations = node.ints("dilations") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    auto = node.text("auto_pad", "NOTSET")
    ceiling = bool(node.integer("ceil_mode"))
    low: list[DimLike] = []
    high: list[DimLike] = []
    stated: list[DimLike] = []
    sizes: list[DimLike] = []
    for i, extent in enumerate(spatial):
        reach = dilations[i] * (kernel[i] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            size = dimmath.ceildiv(extent, strides[i])
            needed = dims.add(dims.mul(dims.add(size, -1), strides[i]), reach, dims.mul(extent, -1))
            total = dims.maximum(needed, 0)
            less = dimmath.floordiv(total, 2)
            more = dimmath.sub(total, less)
            before, after = (less, more) if auto == "SAME_UPPER" else (more, less)
        else:
            before, after = (0, 0) if auto == "VALID" else (pads[i], pads[rank + i])
            span = dims.add(extent, before, after, -reach)
            count = dimmath.ceildiv(span, strides[i]) if ceiling else dimmath.floordiv(span, strides[i])
            size = dims.add(count, 1)
            if ceiling:
                size = _started_inside(size, strides[i], dims.add(extent, before))
        stated.append(after)
        end = dims.add(dims.mul(dims.add(size, -1), strides[i]), reach)
        beyond = dimmath.sub(end, dims.add(extent, before, after))
        low.append(before)
        high.append(dims.add(after, beyond) if ceiling and dims.bounds(beyond)[1] > 0 else after)
        sizes.append(size)
    return Window(
        tuple(kernel), tuple(strides), tuple(dilations), tuple(low), tuple(high), tuple(stated), tuple(sizes)
    )


def _started_inside(size: DimLike, stride: int, limit: DimLike) -> DimLike:
    """One window fewer where the last one would start in the padding behind the tensor."""
    last = dims.mul(dims.add(size, -1), stride)
    if dims.bounds(dimmath.sub(last, limit))[0] >= 0:
        return dims.add(size, -1)
    return dims.minimum(size, dims.add(dimmath.floordiv(dims.add(limit, -1), stride), 1))
