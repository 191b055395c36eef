"""Dynamic-range quantisation: real numbers rounded to bytes in the call, for products with stored weights.

As LiteRT does it: each row has the scale at which its numbers just fit, around 0 or (asymmetric) between its
extremes and 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import away_from_zero
from mansard.ir.types import Linear

_LARGEST = 127.0
_LOW, _HIGH = -128.0, 127.0


@dataclass(frozen=True)
class Rounded:
    """Codes, and for each index of their first axes the scale and (asymmetric) zero point."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def spread(self, g: Emitter, t: Tensor, rank: int) -> Tensor:
        """A number for each row, to be broadcast over a tensor of a rank."""
        return g.reshape(t, (*t.shape, *[1] * (rank - t.rank)))


def is_hybrid(node: Node) -> bool:
    """Whether a node multiplies real numbers by stored bytes."""
    return node.tensor(0).dtype is DType.F32 and node.info(1).kind in ("INT8", "INT4")


def rounded_rows(g: Emitter, x: Tensor, rows: int, *, asymmetric: bool) -> Rounded:
    """Numbers rounded to bytes, by indices of the first ``rows`` axes."""
    axes = list(range(rows, x.rank))
    if not asymmetric:
        largest = g.reduce(x, axes, "max", function=lambda e: e.unary("abs"))
        scale = g.map(lambda m: m / _LARGEST, largest)
        wide = g.reshape(largest, (*largest.shape, *[1] * len(axes)))

        def code(e: Num, m: Num) -> Num:
            inverse = (m > 0.0).select(_LARGEST / m, 0.0)
            return away_from_zero(e * inverse).cast(DType.I8)

        return Rounded(g.map(code, x, wide), scale, None)
    low = g.map(lambda e: e.min(0.0), g.reduce(x, axes, "min"))
    high = g.map(lambda e: e.max(0.0), g.reduce(x, axes, "max"))
    scale = g.map(lambda a, b: (a == b).select(1.0, (b - a) / (_HIGH - _LOW)), low, high)
    zero = g.map(_zero_point, low, high, scale)
    wide_scale, wide_zero = (g.reshape(t, (*t.shape, *[1] * len(axes))) for t in (scale, zero))

    def shifted(e: Num, s: Num, z: Num) -> Num:
        code = away_from_zero(z.cast(DType.F32) + e * (1.0 / s))
        return code.max(_LOW).min(_HIGH).cast(DType.I8)

    return Rounded(g.map(shifted, x, wide_scale, wide_zero), scale, zero)


def _zero_point(low: Num, high: Num, scale: Num) -> Num:
    """The code of 0, from the extreme that gives it more exactly."""
    from_low, from_high = _LOW - low / scale, _HIGH - high / scale
    nearer = -_LOW - low / scale < _HIGH + high / scale
    return nearer.select(from_low, from_high).max(_LOW).min(_HIGH).unary("round").cast(DType.I32)


def with_margin(g: Emitter, rows: Rounded, window: Window) -> Tensor:
    """Codes of (N, spatial…, C) with the code of 0 around them."""
    margins: list[list[DimLike]] = [[0, *side, 0] for side in (window.low, window.high)]
    padded = g.pad(rows.codes, margins[0], margins[1])
    if rows.zero is None or padded is rows.codes:
        return padded
    body = g.body(padded.shape)
    inside: Num | None = None
    for i, (low, extent) in enumerate(zip(window.low, rows.codes.shape[1:-1], strict=True), 1):
        place = index(body.space, i) - size(body.space, low)
        here = (place >= 0) & (place < size(body.space, extent))
        inside = here if inside is None else inside & here
    assert inside is not None
    element = g.read(body, padded, [Linear.dim(i) for i in range(padded.rank)])
    zero = g.read(body, rows.zero, [Linear.dim(0)])
    return g.finish(body, inside.select(element, zero.cast(DType.I8)))
