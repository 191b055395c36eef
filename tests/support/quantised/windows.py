"""Windows over images of bytes, as layers of quantised networks leave them for code generation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.ir import Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.ir.types import Constant, Linear
from support.graphs import maps

F32, I8, U8, I32 = DType.F32, DType.I8, DType.U8, DType.I32


@dataclass(frozen=True)
class Window:
    """A window over an image of bytes that ends in bytes; ``filters`` 0: one for each channel."""

    size: tuple[int, int]
    channels: int
    filters: int = 0
    taps: int = 3
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0
    fill: int = 0
    image: DType = U8
    batch: int = 1
    planes: bool = False
    """Whether the channels of the image lie one after another."""
    rounded: bool = False
    """Whether the image is computed."""

    def padded(self, low: int = 1, high: int | None = None, fill: int = 0) -> Window:
        """The same with padding."""
        return replace(self, low=low, high=low if high is None else high, fill=fill)


def window_graph(w: Window) -> tuple[Graph, list[npt.NDArray[np.generic]]]:
    """The graph of a window with random weights, and inputs at both ends of their type and between."""
    rng = np.random.default_rng(7)
    reach = w.dilation * (w.taps - 1) + 1
    out = [(extent + w.low + w.high - reach) // w.stride + 1 for extent in w.size]
    b = GraphBuilder()
    shape = (w.batch, w.channels, *w.size) if w.planes else (w.batch, *w.size, w.channels)
    x = b.input("x", shape, w.image)
    y, first = x, 2 if w.planes else 1
    if w.rounded:  # bytes of a picture that the model rounds itself
        real = Apply("mul", (Cast(Arg(0, w.image), F32), Const(0.75, F32)), F32)
        y = b.generic([x], [IndexMap.identity(4)], shape, to_bytes(real, 3, 0, 255, w.image))
    if w.low or w.high:
        amounts = [tuple(n if first <= d < first + 2 else 0 for d in range(4)) for n in (w.low, w.high)]
        y = b.pad(y, *amounts, w.fill)
    places = [Linear(((d, w.stride), (d + 3, w.dilation))) for d in (1, 2)]
    channel = Linear.dim(6 if w.filters else 3)
    image = IndexMap((Linear.dim(0), channel, *places) if w.planes else (Linear.dim(0), *places, channel))
    last = w.filters or w.channels
    shape = (w.taps, w.taps, w.channels, w.filters) if w.filters else (w.taps, w.taps, w.channels)
    reads = maps(4, 5, 6, 3) if w.filters else maps(4, 5, 3)
    reduced = shape[:3] if w.filters else shape[:2]
    weights = b.constant("w", Constant.of(rng.integers(-128, 128, shape).astype(np.int8), "w"), shape, I8)
    body = Apply("mul", (Cast(Arg(0, w.image), I32), Cast(Arg(1, I8), I32)), I32)
    total = b.generic(
        [y, weights],
        [image, reads],
        (w.batch, *out, last, *reduced),
        body,
        reduced=len(reduced),
        combiner="add",
    )
    scales = (rng.random(last) * 4 / np.sqrt(np.prod(reduced)) / 128).astype(np.float32)
    scale = b.constant("s", Constant.of(scales, "s"), (last,), F32)
    real = Apply("mul", (Cast(Arg(0, I32), F32), Arg(1, F32)), F32)
    result = b.generic(
        [total, scale], [IndexMap.identity(4), maps(3)], (w.batch, *out, last), to_bytes(real, 7, 0, 255, U8)
    )
    info = np.iinfo(w.image.numpy)
    inputs = rng.integers(info.min, info.max, x.type.shape, dtype=w.image.numpy, endpoint=True)
    inputs[rng.random(inputs.shape) < 0.2] = info.max
    return b.build([result]), [inputs]


def to_bytes(x: Apply, zero: int, low: int, high: int, dtype: DType) -> Cast:
    """``min(max(round(x) + zero, low), high)`` as a byte."""
    whole = Apply("add", (Apply("round", (x,), F32), Const(float(zero), F32)), F32)
    above = Apply("max", (whole, Const(float(low), F32)), F32)
    return Cast(Apply("min", (above, Const(float(high), F32)), F32), dtype)


DENSE = {
    "same 3x3": Window((9, 11), 8, 20).padded(),
    "images, two groups of columns": Window((7, 6), 16, 72, batch=2).padded(),
    "signed": Window((8, 8), 12, 16, image=I8).padded(),
    "strided": Window((11, 13), 4, 48, stride=2).padded(),
    "dilated": Window((13, 9), 8, 32, dilation=2).padded(2),
    "5x5 without padding": Window((9, 9), 8, 17, taps=5),
}
"""Windows of all channels."""

PICTURES = {
    "planes": Window((20, 21), 3, 32, stride=2, planes=True).padded(1, fill=131),
    "computed planes": Window((11, 12), 3, 16, stride=2, planes=True, rounded=True).padded(0, 1, 131),
    "signed 7x7": Window((17, 18), 3, 16, taps=7, stride=2, image=I8).padded(3, fill=-5),
    "no zero point": Window((9, 10), 3, 24, image=I8).padded(),
    "six channels": Window((9, 8), 6, 16, batch=2).padded(fill=1),
    "zero point": Window((8, 9), 8, 16).padded(fill=77),
}
"""Windows of all channels whose padding has to be stored."""
CHANNELS = {
    "3x3": Window((9, 11), 24).padded(),
    "zero point": Window((7, 8), 40).padded(fill=9),
    "strided": Window((12, 13), 72, stride=2).padded(0, 1),
    "5x5, dilated, signed": Window((13, 11), 16, taps=5, dilation=2, image=I8).padded(4),
    "without padding": Window((8, 9), 20, taps=2),
    "5x5": Window((11, 30), 24, taps=5).padded(2),
    "7x7, strided": Window((15, 17), 32, taps=7, stride=2, batch=2).padded(3),
    "strided by 3": Window((13, 14), 16, stride=3).padded(),
}
"""Windows of single channels."""
