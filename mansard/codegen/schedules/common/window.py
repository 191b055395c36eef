"""Sliding windows in a loop nest: which loops move a window over which coordinates of the tensor."""

from __future__ import annotations

from dataclasses import dataclass

from mansard import dims
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.math import neutral
from mansard.dims import DimLike
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import Linear

SEGMENTS = 8
"""The most pieces of a row with different taps in range; each has separate code."""
TAPS = 16
"""The most taps along the row, which are unrolled."""


@dataclass(frozen=True)
class WindowAxis:
    """One coordinate ``stride * outer + dilation * tap + offset`` of a window, over two loops.

    If ``guarded``, reads out of the range ``0 … extent - 1`` contribute nothing.
    """

    outer: int
    tap: int
    stride: int
    dilation: int
    offset: DimLike
    extent: DimLike
    guarded: bool


@dataclass(frozen=True)
class SlidingWindow:
    """The axes of a window, outermost first; the last runs along the rows of a register tile."""

    axes: tuple[WindowAxis, ...]


def find_window(nest: Nest, root: Root, *, widened: bool = False) -> SlidingWindow | None:
    """The window of a reduction over one operand, if it can be scheduled; otherwise None. Requires
    coordinates of one sliding and one tap loop with static steps, a static row with static taps along it, and
    padding that contributes nothing to the result. ``widened``: operands may be cast to the type of the sum.
    """
    op = root.op
    window: SlidingWindow | None = None
    for node in _arguments(root, widened):
        axes: list[WindowAxis] = []
        guards = {at for at, _ in nest.guards(op, node.index, root.index)}
        places = zip(
            nest.operand_index(op, node.index, root.index), op.inputs[node.index].type.shape, strict=True
        )
        for at, extent in places:
            axis = _axis(nest, root, at, extent, at in guards)
            if axis is not None:
                axes.append(axis)
            elif at in guards or _mixes(nest, root, at):
                return None
        if not axes:
            continue
        if window is not None or (guards and not _is_neutral(root, node)):
            return None
        window = SlidingWindow(tuple(axes))
    if window is None:
        return None
    row = window.axes[-1]
    static = isinstance(nest.extents[row.outer], int) and isinstance(nest.extents[row.tap], int)
    static = static and isinstance(row.extent, int) and isinstance(row.offset, int)
    if not static or nest.extents[row.tap] > TAPS:  # type: ignore[operator]
        return None
    return window


def _arguments(root: Root, widened: bool) -> list[Arg]:
    """The operands a reduction reads directly, or ``widened``: its body, or the factors of its body."""
    body = root.op.body
    nodes = body.args if isinstance(body, Apply) and body.op == "mul" else (body,)
    read = [n.arg if widened and isinstance(n, Cast) else n for n in nodes]
    return [n for n in read if isinstance(n, Arg)]


def _is_neutral(root: Root, node: Arg) -> bool:
    """Whether the fill value of a padded operand is neutral in the reduction."""
    op = root.op
    index_map = op.maps[node.index]
    assert index_map is not None and op.combiner is not None
    if op.combiner == "add":
        return index_map.fill == 0
    return node is op.body and index_map.fill == neutral(op.combiner, op.body.dtype)


def _varying_loops(nest: Nest, at: Linear) -> list[tuple[int, DimLike]]:
    return [(loop, c) for loop, c in at.terms if not dims.is_one(nest.extents[loop])]


def _mixes(nest: Nest, root: Root, at: Linear) -> bool:
    walked = {loop for loop, _ in _varying_loops(nest, at)}
    return bool(walked & set(root.inner)) and not walked <= set(root.inner)


def _axis(nest: Nest, root: Root, at: Linear, extent: DimLike, guarded: bool) -> WindowAxis | None:
    walked = _varying_loops(nest, at)
    outer = [(loop, c) for loop, c in walked if loop not in root.inner]
    taps = [(loop, c) for loop, c in walked if loop in root.inner]
    if len(outer) != 1 or len(taps) != 1:
        return None
    (loop, stride), (tap, dilation) = outer[0], taps[0]
    if not isinstance(stride, int) or not isinstance(dilation, int) or stride < 1 or dilation < 1:
        return None
    return WindowAxis(loop, tap, stride, dilation, at.offset, extent, guarded)


@dataclass(frozen=True)
class TapRange:
    """``repeat`` tiles of ``count`` points from ``start`` on; ``inside[tap]`` has the points of a tile at
    which a tap reads within the operand."""

    start: int
    count: int
    repeat: int
    inside: tuple[tuple[int, ...], ...]


def tap_ranges(axis: WindowAxis, length: int, taps: int, count: int) -> list[TapRange]:
    """Split a row of ``length`` points into tiles of at most ``count`` with the same taps in range."""
    ranges: list[TapRange] = []
    extent = axis.extent
    for start in range(0, length, count):
        points = range(min(count, length - start))
        inside = tuple(
            tuple(
                p
                for p in points
                if not axis.guarded
                or 0 <= axis.stride * (start + p) + axis.dilation * tap + axis.offset < extent  # type: ignore[operator]
            )
            for tap in range(taps)
        )
        last = ranges[-1] if ranges else None
        if last is not None and last.count == len(points) and last.inside == inside:
            ranges[-1] = TapRange(last.start, last.count, last.repeat + 1, inside)
        else:
            ranges.append(TapRange(start, len(points), 1, inside))
    return ranges
