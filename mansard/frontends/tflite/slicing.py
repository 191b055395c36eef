"""STRIDED_SLICE: where its masks make each axis begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import DimLike
from mansard.errors import ImportModelError
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.node import Node


@dataclass(frozen=True)
class Axis:
    """The elements taken of an axis."""

    first: DimLike
    count: DimLike
    step: int


@dataclass(frozen=True)
class Slices:
    """The elements of every axis, and the shape of the result."""

    axes: tuple[Axis, ...]
    shape: tuple[DimLike, ...]


def slices_of(node: Node, shape: Sequence[DimLike]) -> Slices:
    """What a STRIDED_SLICE takes of a tensor of a shape."""
    begin, end, steps = node.dims(1), node.dims(2), node.ints(3)
    masks = {
        name: node.integer(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def on(name: str, i: int) -> bool:
        return bool(masks[name] >> i & 1)

    count = len(begin)
    given = sum(not on("new_axis", i) and not on("ellipsis", i) for i in range(count))
    if given > len(shape):
        raise ImportModelError(f"a slice of {given} axes of a tensor of rank {len(shape)}")
    axes: list[Axis] = []
    sizes: list[DimLike] = []
    seen = False
    for i in range(count):
        if on("ellipsis", i) and not seen:
            seen = True
            for _ in range(len(shape) - given):
                extent = shape[len(axes)]
                axes.append(Axis(0, extent, 1))
                sizes.append(extent)
        elif on("new_axis", i):
            sizes.append(1)
        elif on("shrink_axis", i):
            axes.append(Axis(_wrapped(begin[i], shape[len(axes)]), 1, 1))
        else:
            last = dims.add(begin[i], end[i]) if node.flag("offset") else end[i]
            axis = _axis(
                shape[len(axes)],
                None if on("begin", i) else begin[i],
                None if on("end", i) else last,
                steps[i],
            )
            axes.append(axis)
            sizes.append(axis.count)
    for extent in shape[len(axes) :]:
        axes.append(Axis(0, extent, 1))
        sizes.append(extent)
    return Slices(tuple(axes), tuple(sizes))


def _wrapped(index: DimLike, extent: DimLike) -> DimLike:
    return dims.add(extent, index) if dims.bounds(index)[1] < 0 else index


def _axis(extent: DimLike, begin: DimLike | None, end: DimLike | None, step: int) -> Axis:
    if step == 0:
        raise ImportModelError("a slice with a step of 0")
    low: DimLike = 0 if step > 0 else -1
    high: DimLike = extent if step > 0 else dims.add(extent, -1)
    first, last = (low, high) if step > 0 else (high, low)
    if begin is not None:
        first = _clamped(_wrapped(begin, extent), low, high)
    if end is not None:
        last = _clamped(_wrapped(end, extent), low, high)
    span = dimmath.sub(last, first) if step > 0 else dimmath.sub(first, last)
    return Axis(first, dims.maximum(dimmath.ceildiv(span, abs(step)), 0), step)


def _clamped(index: DimLike, low: DimLike, high: DimLike) -> DimLike:
    return dims.maximum(dims.minimum(index, high), low)
