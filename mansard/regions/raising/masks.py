"""Selects that move elements: padding (``select(in range, x, fill)``) and concatenation.

::

    select((d1 >= 1) & (d1 < 113), %x{d0, d1 + -1}, 0.0)      a pad of dim 1 by one element on both sides
    select(d3 < 256, %x{d0, d3}, %y{d0, d3 + -256})           a concatenation along dim 3
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mansard.analysis.affine import Affine
from mansard.ir.scalar import Apply, Const, Scalar
from mansard.ir.types import Value
from mansard.regions.named.builder import static

if TYPE_CHECKING:
    from mansard.regions.raising.bodies import BodyRaiser

Box = dict[int, tuple[int, int]]
"""The first index and the end of dims."""


def padded(raiser: BodyRaiser, node: Apply) -> Value | None:
    """A select of something inside a box of the iteration space, and of a literal outside."""
    condition, inside, outside = node.args
    box = _box(raiser.affine, condition, raiser.space)
    if box is None or not isinstance(outside, Const):
        return None
    part = raiser.within(box).raised(inside)
    # A dim that the part does not depend on is repeated before there is something around it.
    sizes = [box[d][1] - box[d][0] if d in box else size for d, size in enumerate(static(part.type.shape))]
    part = raiser.b.broadcast(part, sizes)
    low, high = [0] * len(sizes), [0] * len(sizes)
    for d, (first, end) in box.items():
        low[d], high[d] = first - raiser.space[d][0], raiser.space[d][1] - end
    return raiser.b.pad(part, low, high, outside.value)


def concatenated(raiser: BodyRaiser, node: Apply) -> Value | None:
    """Nested selects by ``d < limit`` for one dim d."""
    parts: list[Scalar] = []
    limits: list[int] = []
    axis: int | None = None
    rest: Scalar = node
    while isinstance(rest, Apply) and rest.op == "select":
        box = _box(raiser.affine, rest.args[0], raiser.space)
        if box is None or len(box) != 1:
            break
        ((d, (first, end)),) = box.items()
        if first != raiser.space[d][0] or axis not in (None, d):
            break
        axis = d
        parts.append(rest.args[1])
        limits.append(end)
        rest = rest.args[2]
    if axis is None or sorted(set(limits)) != limits:
        return None
    first, last = raiser.space[axis]
    values = []
    for part, begin, end in zip([*parts, rest], [first, *limits], [*limits, last], strict=True):
        value = raiser.within({axis: (begin, end)}).raised(part)
        sizes = [end - begin if d == axis else high - low for d, (low, high) in raiser.space.items()]
        values.append(raiser.b.broadcast(value, sizes))
    return raiser.b.concat(values, axis)


def _box(affine: Affine, condition: Scalar, space: Box) -> Box | None:
    """The box where a condition holds, a conjunction of bounds of single dims: not all of the space."""
    box: Box = {}
    stack = [condition]
    while stack:
        node = stack.pop()
        if not isinstance(node, Apply) or node.op not in ("and", "ge", "gt", "le", "lt"):
            return None
        if node.op == "and":
            stack.extend(node.args)
            continue
        bounds = _bounds(affine, node)
        if bounds is None:
            return None
        d, low, end = bounds
        first, last = box.get(d, space[d])
        box[d] = (first if low is None else max(first, low), last if end is None else min(last, end))
    return box if box != {} and all(first < end for first, end in box.values()) else None


def _bounds(affine: Affine, node: Apply) -> tuple[int, int | None, int | None] | None:
    """A comparison as a dim, its first index or its end."""
    if any(not arg.dtype.is_int for arg in node.args):
        return None
    a, b = (affine.linear(arg) for arg in node.args)
    if a is None or b is None:
        return None
    difference = a.plus(b.scaled(-1))  # c * d + offset, compared with 0
    offset = difference.offset
    if len(difference.terms) != 1 or not isinstance(offset, int):
        return None
    ((d, c),) = difference.terms
    if not isinstance(c, int) or c not in (1, -1):
        return None
    # The index where both sides are equal, and whether it counts.
    bound, strict = -offset * c, node.op in ("gt", "lt")
    if (node.op in ("ge", "gt")) == (c == 1):
        return d, bound + strict, None
    return d, None, bound + (not strict)
