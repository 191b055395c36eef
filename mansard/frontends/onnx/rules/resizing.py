"""Resize: tables of source indices and weights for each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.expressions import size as size_of
from mansard.frontends.emission.resizing import Taps, repeated, resized
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule


@dataclass(frozen=True)
class Axis:
    """How one axis is resized."""

    axis: int
    extent: int
    size: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


def coordinates(node: Node, a: Axis) -> Content:
    """The place in the source that each place of the result stands for."""
    mode = node.text("coordinate_transformation_mode", "half_pixel")
    if node.version < 11:
        mode = "asymmetric"
    y = np.arange(a.size, dtype=np.float64)
    wide = a.scale * a.extent
    if mode == "align_corners":
        return np.zeros(a.size) if wide == 1 else y * (a.extent - 1) / (wide - 1)
    if mode == "asymmetric":
        return y / a.scale
    if mode == "tf_crop_and_resize":
        low, high = a.roi
        if wide == 1:
            x = np.full(a.size, (high - low) * (a.extent - 1) / 2)
        else:
            x = y * (high - low) * (a.extent - 1) / (wide - 1)
        return np.asarray(x + low * (a.extent - 1))
    half = (y + 0.5) / a.scale - 0.5
    if mode == "pytorch_half_pixel" and wide == 1:
        return np.full(a.size, -0.5)
    if mode == "half_pixel_symmetric":
        return np.asarray(a.extent / 2 * (1 - a.size / wide) + half)
    return np.asarray(half)


def _nearest(node: Node, x: Content) -> Content:
    mode = node.text("nearest_mode", "round_prefer_floor") if node.version >= 11 else "floor"
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    return np.asarray(np.ceil(x - 0.5) if mode == "round_prefer_floor" else np.floor(x + 0.5))


def _cubic(distance: Content, a: float) -> Content:
    x = np.abs(distance)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def taps_of(node: Node, a: Axis) -> Taps:
    """The table of an axis."""
    x = coordinates(node, a)
    mode = node.text("mode", "nearest")
    crop = node.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    outside = (x < 0) | (x > a.extent - 1) if crop else None
    outside = outside if outside is not None and outside.any() else None
    if mode == "nearest":
        places = np.clip(_nearest(node, x), 0, a.extent - 1).astype(np.int64)[:, None]
        return Taps(places, np.ones(places.shape), outside)
    reach = 1 if mode == "linear" else 2
    squeeze = min(a.scale, 1.0) if node.integer("antialias") else 1.0
    reach_wide = math.ceil(reach / squeeze)
    first = np.floor(x).astype(np.int64) - reach_wide + 1
    places = first[:, None] + np.arange(2 * reach_wide)
    distance = (places - x[:, None]) * squeeze
    if mode == "linear":
        weights = np.clip(1 - np.abs(distance), 0, 1)
    else:
        weights = _cubic(distance, node.real("cubic_coeff_a", -0.75))
    if node.integer("antialias"):
        weights = weights / weights.sum(-1, keepdims=True)
    if node.integer("exclude_outside"):
        weights = np.where((places < 0) | (places >= a.extent), 0.0, weights)
        total = weights.sum(-1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return Taps(np.clip(places, 0, a.extent - 1), weights, outside)


@rule("Resize", "Upsample")
def resize(g: GraphImporter, node: Node) -> Tensor:
    """Axes resized one after another."""
    x = node.tensor(0)
    axes = [axis_of(a, x.rank) for a in node.ints("axes") or range(x.rank)]
    scales, sizes = _factors(g, node, x, axes)
    crop = node.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = [float(r) for r in node.numbers(1).reshape(-1)] if crop else []
    value = node.real("extrapolation_value", 0.0)
    tables: dict[int, Taps] = {}
    whole: dict[int, int] = {}
    for i, axis in enumerate(axes):
        window = (roi[i], roi[len(axes) + i]) if roi else (0.0, 1.0)
        extent, size = x.shape[axis], sizes[i]
        if scales[i] == 1 and size == extent and window == (0.0, 1.0):
            continue
        scale = scales[i]
        if isinstance(extent, int) and isinstance(size, int) and scale is not None:
            tables[axis] = taps_of(node, Axis(axis, extent, size, scale, window))
        elif scale is not None and _repeats(node, scale):
            whole[axis] = int(scale)
        else:
            x = _symbolic(g, node, x, axis, scale, size)
    if len(tables) + len(whole) == 0:
        return x
    return resized(g, repeated(g, x, whole), tables, value)


def _factors(
    g: GraphImporter, node: Node, x: Tensor, axes: Sequence[int]
) -> tuple[list[float | None], list[DimLike]]:
    """The scale and the new size of each axis; None for a scale that is a quotient of sizes in a call."""
    extents = [x.shape[a] for a in axes]
    by_size = node.version >= 11 and node.optional(3) is not None
    if by_size and (node.optional(2) is None or node.tensor(2).shape[0] == 0 or node.version >= 13):
        stated = g.stated_shape(node)
        if node.tensor(3).content is None and stated is not None:
            sizes: list[DimLike] = [stated[a] for a in axes]
            if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
                sizes = list(node.dim_list(3))
        else:
            sizes = node.dim_list(3)
        return _by_sizes(node, extents, sizes)
    if node.op == "Upsample" and node.version < 9:
        given = [float(s) for s in node.attribute("scales")]
    else:
        operand = 1 if node.op == "Upsample" or node.version < 11 else 2
        given = [float(s) for s in node.numbers(operand).reshape(-1)]
    scales: list[float | None] = []
    results: list[DimLike] = []
    scales.extend(given)
    for scale, extent in zip(given, extents, strict=True):
        if isinstance(extent, int):
            results.append(math.floor(scale * extent))
        elif float(scale).is_integer():
            results.append(dims.mul(extent, int(scale)))
        elif (1 / scale).is_integer():
            results.append(dimmath.floordiv(extent, int(1 / scale)))
        else:
            raise node.fail(f"a dim of {extent} scaled by {scale}")
    return scales, results


def _by_sizes(
    node: Node, extents: list[DimLike], sizes: list[DimLike]
) -> tuple[list[float | None], list[DimLike]]:
    scales = [_ratio(extent, size) for extent, size in zip(extents, sizes, strict=True)]
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, sizes
    fixed = [e for e in extents if isinstance(e, int)]
    known = [scale for scale in scales if scale is not None]
    if len(fixed) < len(extents) or len(known) < len(scales):
        raise node.fail(f"dims of {extents} resized to {sizes} with keep_aspect_ratio_policy {policy!r}")
    scale = min(known) if policy == "not_larger" else max(known)
    return [scale] * len(scales), [int(scale * e + 0.5) for e in fixed]


def _ratio(extent: DimLike, size: DimLike) -> float | None:
    if isinstance(extent, int) and isinstance(size, int):
        return size / extent
    exact = dims.exact_div(size, extent)
    return float(exact) if isinstance(exact, int) else None


def _repeats(node: Node, scale: float) -> bool:
    """Whether every element of an axis occurs as often as the next, whatever its size."""
    mode = node.text("coordinate_transformation_mode", "half_pixel") if node.version >= 11 else "asymmetric"
    rounded = node.text("nearest_mode", "round_prefer_floor") if node.version >= 11 else "floor"
    same = mode in ("asymmetric", "half_pixel", "pytorch_half_pixel") and float(scale).is_integer()
    nearest = node.text("mode", "nearest") == "nearest"
    return nearest and same and (mode != "asymmetric" or rounded == "floor") and rounded != "ceil"


def _symbolic(
    g: GraphImporter, node: Node, x: Tensor, axis: int, scale: float | None, size: DimLike
) -> Tensor:
    """An axis of which a size is symbolic, by linear interpolation or the nearest element. ``scale`` is None
    if it is the quotient of the sizes."""
    mode = node.text("coordinate_transformation_mode", "half_pixel") if node.version >= 11 else "asymmetric"
    kind = node.text("mode", "nearest")
    if mode == "half_pixel_symmetric" and scale is None:
        mode = "half_pixel"  # they differ by the fraction that a given scale leaves of the size
    known = ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners")
    if kind == "cubic" or node.integer("antialias") or mode not in known:
        raise UnsupportedOpError(node.full_name, node.location, f"a symbolic dim, {kind} by {mode}")
    extent = x.shape[axis]
    body = g.body((*x.shape[:axis], size, *x.shape[axis + 1 :]))
    here = [index(body.space, i) for i in range(x.rank)]
    y, old = here[axis].cast(DType.F32), size_of(body.space, extent).cast(DType.F32)
    wide = size_of(body.space, size).cast(DType.F32) if scale is None else old * scale
    if mode == "align_corners":
        place = (wide == 1.0).select(0.0, y * (old - 1.0) / (wide - 1.0).max(1e-30))
    else:
        shift = 0.0 if mode == "asymmetric" else 0.5
        place = (y + shift) * (old / wide if scale is None else 1 / scale) - shift
        if mode == "pytorch_half_pixel":
            place = (wide == 1.0).select(-0.5, place)
    last = size_of(body.space, dims.add(extent, -1))

    def element(place: Num) -> Num:
        return g.at(body, x, [*here[:axis], place.cast(DType.I64).max(0).min(last), *here[axis + 1 :]])

    if kind == "nearest":
        return g.finish(body, element(_nearest_place(node, place)))
    low = place.floor()
    rest = (place - low).cast(x.dtype)
    return g.finish(body, element(low) * (1.0 - rest) + element(low + 1.0) * rest)


def _nearest_place(node: Node, place: Num) -> Num:
    mode = node.text("nearest_mode", "round_prefer_floor") if node.version >= 11 else "floor"
    if mode == "floor":
        return place.floor()
    if mode == "ceil":
        return -(-place).floor()
    return -(0.5 - place).floor() if mode == "round_prefer_floor" else (place + 0.5).floor()
