"""Graphs with every kind of work in sequence, as in models, for measurements."""

from __future__ import annotations

import math

from mansard.calibration import probes
from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Const
from mansard.ir.types import Linear, Value

SIZES = (1, 8, 64)
"""Sizes of the graphs, relative to the smallest."""
_HEADS, _LENGTH, _DEPTH = 3, 128, 64
_CHANNELS, _COLOURS, _FILTERS = 384, 3, 32
_IMAGES = {1: ((8, 8), (64, 128)), 8: ((16, 32), (256, 256)), 64: ((64, 64), (512, 1024))}
"""By size, the pixels of the image with many channels, and of the one with few."""
_WINDOW = 3


def graph(size: int) -> Graph:
    """A sequence of an attention, a product, a norm of rows, a depthwise window and one over few channels in
    f32, with reshapes in between."""
    b = GraphBuilder(f"kinds_{size}")
    (rows, columns), (height, width) = _IMAGES[size]
    x = b.input("x", (size, _HEADS, _LENGTH, _DEPTH), DType.F32)
    x = b.reshape(b.attention(x, x, x, None, _DEPTH**-0.5), (rows * columns, _CHANNELS))
    x = probes.normalised(b, probes.multiplied(b, x, _CHANNELS, _CHANNELS, 0))
    x = _window(b, b.reshape(x, (1, rows, columns, _CHANNELS)), None, 1)
    return b.build([_window(b, b.reshape(x, (1, _COLOURS, height, width)), _FILTERS, 2)])


def operations(graph: Graph) -> int:
    """The approximate number of operations of a graph."""
    size, channels = graph.inputs[0].type.shape[0], _HEADS * _LENGTH * _DEPTH
    assert isinstance(size, int)
    attention = 4 * _LENGTH * channels
    shallow = channels // _COLOURS // 4 * _FILTERS * _WINDOW**2 * _COLOURS * 2
    return size * (attention + shallow + 2 * channels * (_CHANNELS + _WINDOW**2))


def _window(b: GraphBuilder, x: Value, filters: int | None, stride: int) -> Value:
    """A window with constant weights and padding: ``filters`` filters over all channels of x (1, channels,
    rows, columns), the layout of model inputs, or one per channel of x (1, rows, columns, channels), the
    layout inside models. The result is clamped below by a value that nearly all elements exceed."""
    same, taps = filters is None, (_WINDOW, _WINDOW)
    sizes = [int(str(extent)) for extent in x.type.shape[1:]]
    (rows, columns, channels) = sizes if same else (*sizes[1:], sizes[0])
    summed = () if same else (channels,)
    out, first = filters or channels, 4
    shape = (1, rows // stride, columns // stride, out)
    name = "depthwise" if same else "window"
    size = (*taps, *summed, out)
    weights = Constant.of(probes.random(DType.F32, (math.prod(size[:-1]), out), 0).reshape(size), name)
    w = b.constant(name, weights, size, DType.F32)
    at = [Linear(((1 + axis, stride), (first + axis, 1)), -1) for axis in range(2)]
    read = IndexMap((Linear.dim(0), *((*at, Linear.dim(3)) if same else (Linear.dim(first + 2), *at))), 0.0)
    weight = IndexMap.of_dims((first, first + 1, *([] if same else [first + 2]), 3))
    body = Apply("mul", (Arg(0, DType.F32), Arg(1, DType.F32)), DType.F32)
    extents = (*shape, *taps, *summed)
    y = b.generic([x, w], [read, weight], extents, body, reduced=len(extents) - 4, combiner="add")
    bounded = Apply("max", (Arg(0, DType.F32), Const(-1000.0, DType.F32)), DType.F32)
    return b.generic([y], [IndexMap.identity(4)], shape, bounded)
