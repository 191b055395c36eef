"""Images resized."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.resizing import Taps, resized
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg.body import Body
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import moved, parameters, requantised
from mansard.frontends.tflite.table import rule

F32 = DType.F32


def _sizes(node: Node) -> list[DimLike]:
    stated = node.stated_shape()
    return node.dims(1) if node.known(1) or stated is None else list(stated[1:3])


def _scale(body: Body, node: Node, extent: DimLike, result: DimLike) -> Num:
    """How many source pixels a pixel of the result is wide, as LiteRT computes it in f32."""
    corners = node.flag("align_corners")
    if isinstance(extent, int) and isinstance(result, int):
        pair = (extent - 1, result - 1) if corners and result > 1 else (extent, result)
        number = float(np.float32(pair[0]) / np.float32(pair[1]))
        return index(body.space, 0).cast(F32).number(number)
    a, b = size(body.space, extent), size(body.space, result)
    ratio = a.cast(F32) / b.cast(F32)
    if not corners:
        return ratio
    return (b > 1).select((a - 1).cast(F32) / (b - 1).max(1).cast(F32), ratio)


def _place(body: Body, node: Node, i: int, scale: Num) -> Num:
    """The source coordinate of a pixel of the result."""
    here = index(body.space, i).cast(F32)
    return (here + 0.5) * scale - 0.5 if node.flag("half_pixel_centers") else here * scale


def _between(body: Body, node: Node, i: int, extent: DimLike, result: DimLike) -> tuple[Num, Num, Num]:
    """The source pixels before and after each pixel along axis ``i`` of a body, and its distance from the
    first."""
    place = _place(body, node, i, _scale(body, node, extent, result))
    low, last = place.floor(), size(body.space, dims.add(extent, -1))
    first = low.cast(DType.I64)
    return first.max(0).min(last), (first + 1).max(0).min(last), place - low


@rule("RESIZE_BILINEAR")
def resize_bilinear(g: GraphImporter, node: Node) -> Tensor:
    """Four neighbours, weighted by their distance: first of the same row, which rows that lie close together
    share."""
    x, wanted = node.tensor(0), _sizes(node)
    (n, height, width, channels), (rows, columns) = x.shape, wanted
    if not all(isinstance(d, int) for d in (height, rows)) or int(str(rows)) < int(str(height)):
        return _resized_at_once(g, node, x, wanted)
    body = g.body((n, height, columns, channels))
    left, right, dx = _between(body, node, 2, width, columns)

    def pixel(column: Num) -> Num:
        return g.at(body, x, [index(body.space, d) if d != 2 else column for d in range(4)]).cast(F32)

    wide = g.finish(body, pixel(left) * (1.0 - dx) + pixel(right) * dx)
    wide = g.reshape(wide, (n, height, dims.mul(columns, channels)))
    body = g.body((n, rows, dims.mul(columns, channels)))
    top, bottom, dy = _between(body, node, 1, height, rows)

    def line(row: Num) -> Num:
        return g.at(body, wide, [index(body.space, 0), row, index(body.space, 2)])

    result = _interpolated(g, node, body, line(top) * (1.0 - dy) + line(bottom) * dy)
    return g.reshape(result, (n, rows, columns, channels))


def _resized_at_once(g: GraphImporter, node: Node, x: Tensor, wanted: Sequence[DimLike]) -> Tensor:
    body = g.body((x.shape[0], *wanted, x.shape[3]))
    (top, bottom, dy), (left, right, dx) = (
        _between(body, node, i, x.shape[i], wanted[i - 1]) for i in (1, 2)
    )

    def pixel(row: Num, column: Num) -> Num:
        return g.at(body, x, [index(body.space, 0), row, column, index(body.space, 3)]).cast(F32)

    upper = pixel(top, left) * (1.0 - dx) + pixel(top, right) * dx
    lower = pixel(bottom, left) * (1.0 - dx) + pixel(bottom, right) * dx
    return _interpolated(g, node, body, upper * (1.0 - dy) + lower * dy)


def _interpolated(g: GraphImporter, node: Node, body: Body, y: Num) -> Tensor:
    """What is interpolated, at the result's scale."""
    q, target, dtype = node.scaled(0), node.result_scaled(), node.result().dtype
    if q is None or target is None:
        return g.finish(body, y.cast(dtype))
    # Weights add up to 1: what is interpolated may be the stored numbers.
    (scale, zero), (result_scale, shift) = parameters(q), parameters(target)
    if scale == result_scale:
        return g.finish(body, requantised(y, 1.0, shift - zero, dtype))
    return g.finish(body, requantised(y - float(zero), scale / result_scale, shift, dtype))


@rule("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(g: GraphImporter, node: Node) -> Tensor:
    """The nearest pixel, or the one before."""
    x, wanted = node.tensor(0), _sizes(node)
    static = all(isinstance(d, int) for d in (*x.shape[1:3], *wanted))
    if static:
        tables = {i: _taps(node, int(str(x.shape[i])), int(str(wanted[i - 1]))) for i in (1, 2)}
        return moved(g, node, resized(g, x, tables))
    body = g.body((x.shape[0], *wanted, x.shape[3]))
    here = [index(body.space, i) for i in range(4)]
    for i in (1, 2):
        scale = _scale(body, node, x.shape[i], wanted[i - 1])
        shift = 0.5 if node.flag("half_pixel_centers") else 0.0
        place = (index(body.space, i).cast(F32) + shift) * scale
        rounded = (place + 0.5).floor() if node.flag("align_corners") else place.floor()
        last = size(body.space, dims.add(x.shape[i], -1))
        here[i] = rounded.cast(DType.I64).max(0).min(last)
    return moved(g, node, g.finish(body, g.at(body, x, here)))


def _taps(node: Node, extent: int, result: int) -> Taps:
    """The source pixel of each pixel of the result."""
    corners = node.flag("align_corners") and result > 1
    scale = (
        np.float32(extent - 1) / np.float32(result - 1)
        if corners
        else np.float32(extent) / np.float32(result)
    )
    shift = np.float32(0.5 if node.flag("half_pixel_centers") else 0.0)
    place = (np.arange(result, dtype=np.float32) + shift) * scale
    nearest = np.floor(place + np.float32(0.5)) if node.flag("align_corners") else np.floor(place)
    places = np.clip(nearest, 0, extent - 1).astype(np.int64)[:, None]
    return Taps(places, np.ones(places.shape))
