"""Sampling at computed coordinates: grids, regions, deformed windows, sums of overlapping blocks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.convolution import add_bias
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.linalg.body import Body
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.convolution import kernel_of
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear

_CUBIC = -0.75
Tap = tuple[Num, Num]
"""An index (a whole number, as a float) and its weight."""


def _floats(body: Body, value: DimLike, like: Num) -> Num:
    return size(body.space, value).cast(like.dtype)


def _reflected(x: Num, low: Num, span: Num) -> Num:
    """Mirrored at both borders until it lies between them."""
    away = (x - low).unary("abs")
    times = (away / span.max(1e-6)).floor()
    rest = away - times * span
    odd = times - (times * 0.5).floor() * 2.0 > 0.5
    return odd.select(low + span - rest, low + rest)


def _taps(x: Num, mode: str) -> list[Tap]:
    """The indices around a coordinate, and their weights."""
    if mode == "nearest":
        return [(x.unary("round"), x.number(1.0))]
    low = x.floor()
    r = x - low
    if mode in ("linear", "bilinear"):
        return [(low, 1.0 - r), (low + 1.0, r)]
    a = _CUBIC

    def far(t: Num) -> Num:
        return ((t * a - 5 * a) * t + 8 * a) * t - 4 * a

    def near(t: Num) -> Num:
        return (t * (a + 2) - (a + 3)) * t * t + 1.0

    weights = (far(r + 1.0), near(r), near(1.0 - r), far(2.0 - r))
    return [(low + float(i - 1), w) for i, w in enumerate(weights)]


@rule("GridSample")
def grid_sample(g: GraphImporter, node: Node) -> Tensor:
    """Interpolated at normalised coordinates."""
    x, grid = node.tensor(0), node.tensor(1)
    rank = x.rank - 2
    mode, padding = node.text("mode", "linear"), node.text("padding_mode", "zeros")
    align = bool(node.integer("align_corners"))
    body = g.body((*x.shape[:2], *grid.shape[1:-1]))
    spatial = [Linear.dim(2 + i) for i in range(rank)]
    axes: list[list[Tap]] = []
    for i in range(rank):
        extent = x.shape[2 + i]
        normal = g.read(body, grid, [Linear.dim(0), *spatial, Linear((), rank - 1 - i)])
        length = _floats(body, extent, normal)
        place = (normal + 1.0) * 0.5 * (length - 1.0) if align else ((normal + 1.0) * length - 1.0) * 0.5
        low = normal.number(0.0 if align else -0.5)
        span = length - 1.0 if align else length
        place = place.unary("round") if mode == "nearest" else place
        outside = (place < low) | (place > low + span)
        if padding == "border":
            place = outside.select(place.max(0.0).min(length - 1.0), place)
        elif padding == "reflection":
            place = outside.select(_reflected(place, low, span), place)
        axes.append([_inside(tap, padding, length, low, span) for tap in _taps(place, mode)])
    lead = [index(body.space, 0), index(body.space, 1)]
    total: Num | None = None
    for taps in itertools.product(*axes):
        element = g.at(body, x, [*lead, *(place.cast(DType.I64) for place, _ in taps)])
        weight = functools.reduce(lambda p, q: p * q, (w for _, w in taps)).cast(x.dtype)
        term = (weight == 0.0).select(0.0, element * weight)
        total = term if total is None else total + term
    assert total is not None
    return g.finish(body, total)


def _inside(tap: Tap, padding: str, length: Num, low: Num, span: Num) -> Tap:
    """A tap within the tensor, or of weight 0."""
    place, weight = tap
    if padding == "zeros":
        return place, ((place >= 0.0) & (place < length)).select(weight, 0.0)
    if padding == "border":
        return place.max(0.0).min(length - 1.0), weight
    return _reflected(place, low, span).max(0.0).min(length - 1.0).unary("trunc"), weight


def _bilinear(g: GraphImporter, body: Body, x: Tensor, lead: Sequence[Num], y: Num, z: Num) -> Num:
    """The element at two fractional coordinates; 0 outside."""
    height, width = (_floats(body, d, y) for d in x.shape[-2:])
    total: Num | None = None
    for (row, p), (column, q) in itertools.product(_taps(y, "linear"), _taps(z, "linear")):
        inside = (row >= 0.0) & (row < height) & (column >= 0.0) & (column < width)
        element = g.at(body, x, [*lead, row.cast(DType.I64), column.cast(DType.I64)])
        term = inside.select(element * (p * q).cast(x.dtype), 0.0)
        total = term if total is None else total + term
    assert total is not None
    return total


@rule("DeformConv")
def deform_conv(g: GraphImporter, node: Node) -> Tensor:
    """A convolution whose taps are moved by offsets."""
    x, weight, offset = node.tensor(0), node.tensor(1), node.tensor(2)
    kernel = kernel_of(node, weight)
    if len(kernel) != 2:
        raise node.fail(f"{len(kernel)} spatial dims; 2 are supported")
    groups, moved = node.integer("group", 1), node.integer("offset_group", 1)
    strides, pads = node.ints("strides") or [1, 1], node.ints("pads") or [0] * 4
    dilations = node.ints("dilations") or [1, 1]
    batch, channels = x.shape[:2]
    oh, ow = offset.shape[2:]
    taps = math.prod(kernel)
    offsets = g.reshape(offset, (batch, moved, taps, 2, oh, ow))
    mask = node.optional(4)
    body = g.body((batch, channels, *kernel, oh, ow))
    space = body.space
    each = dimmath.floordiv(channels, moved)
    if not isinstance(each, int):
        raise node.fail("a symbolic number of channels")
    group = index(space, 1) // each
    tap = index(space, 2) * kernel[1] + index(space, 3)
    places = []
    for axis in (0, 1):
        shift = g.at(
            body, offsets, [index(space, 0), group, tap, group.number(axis), index(space, 4), index(space, 5)]
        )
        start = index(space, 4 + axis) * strides[axis] - pads[axis] + index(space, 2 + axis) * dilations[axis]
        places.append(start.cast(shift.dtype) + shift)
    element = _bilinear(g, body, x, [index(space, 0), index(space, 1)], *places)
    if mask is not None:
        scales = g.reshape(mask, (batch, moved, taps, oh, ow))
        element = element * g.at(
            body, scales, [index(space, 0), group, tap, index(space, 4), index(space, 5)]
        )
    columns = g.finish(body, element)
    depth, filters = weight.shape[1], weight.shape[0]
    split = g.reshape(columns, (batch, groups, depth, *kernel, oh, ow))
    w = g.reshape(weight, (groups, dimmath.floordiv(filters, groups), depth, *kernel))
    body = g.body((batch, groups, w.shape[1], oh, ow, depth, *kernel))
    inner = [Linear.dim(5 + i) for i in range(3)]
    a = g.read(body, split, [Linear.dim(0), Linear.dim(1), *inner, Linear.dim(3), Linear.dim(4)])
    b = g.read(body, w, [Linear.dim(1), Linear.dim(2), *inner])
    y = g.reshape(g.finish(body, a * b, 3, "add"), (batch, filters, oh, ow))
    return add_bias(g, y, node.optional(3))


@rule("RoiAlign")
def roi_align(g: GraphImporter, node: Node) -> Tensor:
    """Regions resampled to a fixed size, from a stated number of samples for each bin."""
    x, rois, batches = node.tensor(0), node.tensor(1), node.tensor(2)
    ratio = node.integer("sampling_ratio")
    if ratio <= 0:
        raise node.fail("a number of samples that depends on the regions (sampling_ratio 0)")
    height, width = node.integer("output_height", 1), node.integer("output_width", 1)
    scale = node.real("spatial_scale", 1.0)
    half = node.version >= 16 and node.text("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    body = g.body((rois.shape[0], x.shape[1], height, width))
    space = body.space
    corners = [
        g.read(body, rois, [Linear.dim(0), Linear((), i)]) * scale - (0.5 if half else 0.0) for i in range(4)
    ]
    lead = [g.read(body, batches, [Linear.dim(0)]).cast(DType.I64), index(space, 1)]
    samples: list[list[Num]] = []
    for axis, count in ((1, height), (0, width)):
        extent = corners[2 + axis] - corners[axis]
        extent = extent if half else extent.max(1.0)
        bin_size = extent / float(count)
        start = corners[axis] + index(space, 3 - axis).cast(x.dtype) * bin_size
        samples.append([start + bin_size * ((i + 0.5) / ratio) for i in range(ratio)])
    largest = node.text("mode", "avg") == "max"
    total: Num | None = None
    for y, z in itertools.product(*samples):
        value = _region_sample(g, body, x, lead, y, z, largest)
        total = value if total is None else (total.max(value) if largest else total + value)
    assert total is not None
    return g.finish(body, total if largest else total / float(ratio * ratio))


def _region_sample(
    g: GraphImporter, body: Body, x: Tensor, lead: Sequence[Num], y: Num, z: Num, largest: bool
) -> Num:
    """Bilinear within the tensor's border; the largest weighted neighbour, or their sum."""
    taps: list[list[Tap]] = []
    outside: Num | None = None
    for place, extent in ((y, x.shape[2]), (z, x.shape[3])):
        length = _floats(body, extent, place)
        beyond = (place < -1.0) | (place > length)
        outside = beyond if outside is None else outside | beyond
        place = place.max(0.0).min(length - 1.0)
        low = place.floor()
        taps.append([(low, 1.0 - (place - low)), ((low + 1.0).min(length - 1.0), place - low)])
    total: Num | None = None
    for (row, p), (column, q) in itertools.product(*taps):
        value = g.at(body, x, [*lead, row.cast(DType.I64), column.cast(DType.I64)]) * (p * q)
        total = value if total is None else (total.max(value) if largest else total + value)
    assert total is not None
    assert outside is not None
    return outside.select(0.0, total)


@rule("Col2Im")
def col2im(g: GraphImporter, node: Node) -> Tensor:
    """Blocks added up where they overlap in the image."""
    x = node.tensor(0)
    image, block = node.int_list(1) or [], node.int_list(2) or []
    rank = len(image)
    dilations, strides = node.ints("dilations") or [1] * rank, node.ints("strides") or [1] * rank
    pads = node.ints("pads") or [0] * (2 * rank)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    channels = dimmath.floordiv(x.shape[1], math.prod(block))
    columns = g.reshape(x, (x.shape[0], channels, *block, *counts))
    body = g.body((x.shape[0], channels, *image, *block))
    space = body.space
    inside: Num | None = None
    where: list[Num] = []
    for i in range(rank):
        place = index(space, 2 + i) + pads[i] - index(space, 2 + rank + i) * dilations[i]
        step = place // strides[i]
        fits = (place >= 0) & (place % strides[i] == 0) & (step < counts[i])
        inside = fits if inside is None else inside & fits
        where.append(step)
    assert inside is not None
    taps = [index(space, 2 + rank + i) for i in range(rank)]
    element = g.at(body, columns, [index(space, 0), index(space, 1), *taps, *where])
    return g.finish(body, inside.select(element, 0), rank, "add")
