"""Analysis of the constant of a contraction that can be packed into panels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.contraction import Group
from mansard.dims import DimLike
from mansard.ir.panels import Panels
from mansard.ir.types import Value


@dataclass(frozen=True)
class Weights:
    """A packed input of a dispatch: its value, its position in the inputs, its panels."""

    value: Value
    position: int
    panels: Panels


def find_weights(
    nest: Nest, root: Root, column: Group, reduced: Sequence[Group], width: int, group: int = 1
) -> Weights | None:
    """The one packable constant that is indexed by ``column`` and every reduced loop, and by no other. None
    if there is no such constant, if it is read more than once, or if loops or strides are not static.
    """
    for value in sorted(nest.dispatch.packable, key=nest.dispatch.inputs.index):
        panels = panels_of(nest, value, column, reduced, width, group)
        if panels is not None:
            return Weights(value, nest.dispatch.inputs.index(value), panels)
    return None


def panels_of(
    nest: Nest,
    value: Value,
    column: Group,
    reduced: Sequence[Group],
    width: int,
    group: int = 1,
    *,
    parts: int = 1,
) -> Panels | None:
    """The panels of a constant that is indexed by ``column`` and every reduced loop given, and by no other.
    None as for `find_weights`."""
    reads = [read.address for r in nest.roots for read in nest.reads(r) if read.value is value]
    if value not in nest.dispatch.packable or len(reads) != 1 or reads[0] is None or reads[0].offset != 0:
        return None
    steps = {d: c for d, c in reads[0].terms if not dims.is_one(nest.extents[d])}
    loops = [_loop(nest, g, steps) for g in (*reduced, column)]
    loop_dims = {d for g in (*reduced, column) for d in g}
    if not set(steps) <= loop_dims or any(loop is None or loop[1] == 0 for loop in loops):
        return None
    *inner, outer = [loop for loop in loops if loop is not None]
    # The panels must cover the constant: other elements would be lost.
    elements = math.prod(extent for extent, _ in (*inner, outer))
    if elements != value.type.elements or not _covers([*inner, outer]):
        return None
    panels = Panels(outer, tuple(inner), width, group, parts)
    matrix = nest.matrices.get(value)
    if matrix is None:
        return panels
    # Matrices keep their places: panels must not be larger than what they hold.
    exact = math.prod(panels.shape) == elements
    return replace(panels, matrices=matrix.count) if exact else None


def _loop(nest: Nest, group: Group, steps: dict[int, DimLike]) -> tuple[int, int] | None:
    """Extent and stride of a loop, if both are static."""
    extent, step = nest.total(group), steps.get(group[-1], 0)
    return (extent, step) if isinstance(extent, int) and isinstance(step, int) else None


def _covers(loops: Sequence[tuple[int, int]]) -> bool:
    """Whether the loops visit consecutive elements from 0 on, each exactly once."""
    expected = 1
    for extent, step in sorted(loops, key=lambda loop: loop[1]):
        if step != expected:
            return False
        expected *= extent
    return True
