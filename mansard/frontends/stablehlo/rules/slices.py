"""Parts of tensors, at known and computed places, and margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.convolution import spread_axis
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.stablehlo.entries import Entry, Pieces
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@rule("stablehlo.slice")
def static_slice(g: StableHloImporter, node: Node) -> Tensor:
    """Every so many elements between known places."""
    x = node.tensor(0)
    starts, limits = node.ints("start_indices"), node.ints("limit_indices")
    return _sliced(g, x, starts, limits, node.ints("strides", [1] * x.rank))


@rule("stablehlo.real_dynamic_slice")
def real_dynamic_slice(g: StableHloImporter, node: Node) -> Tensor:
    """Every so many elements between places that are computed from sizes."""
    steps = [int(str(d)) for d in node.dim_list(3)]
    return _sliced(g, node.tensor(0), node.dim_list(1), node.dim_list(2), steps)


def _sliced(
    g: StableHloImporter,
    x: Tensor,
    starts: Sequence[DimLike],
    limits: Sequence[DimLike],
    steps: Sequence[int],
) -> Tensor:
    sizes = [
        dimmath.ceildiv(dimmath.sub(high, low), step)
        for low, high, step in zip(starts, limits, steps, strict=True)
    ]
    return g.slice(x, list(starts), sizes, list(steps))


@rule("stablehlo.dynamic_slice")
def dynamic_slice(g: StableHloImporter, node: Node) -> Tensor:
    """A part from computed places on, which are moved so that it lies inside."""
    sizes: list[DimLike] = list(node.ints("slice_sizes"))
    known = _known_starts(g, node, 1, sizes)
    source = node.inputs[0]
    if isinstance(source, Pieces) and known is not None:
        start = known[source.axis]
        others = all(
            d == s for i, (d, s) in enumerate(zip(source.base.shape, sizes, strict=True)) if i != source.axis
        )
        part = source.part(start, sizes[source.axis]) if others and isinstance(start, int) else None
        if part is not None:
            return part
    x = node.tensor(0)
    if known is not None:
        return g.slice(x, known, sizes, [1] * x.rank)
    body = g.body(sizes)
    starts = _starts(g, node, 1, x.shape, sizes, body)
    return g.finish(body, g.at(body, x, [s + index(body.space, i) for i, s in enumerate(starts)]))


@rule("stablehlo.dynamic_update_slice")
def dynamic_update_slice(g: StableHloImporter, node: Node) -> Entry:
    """A tensor with a part replaced, from computed places on."""
    source, update = node.inputs[0], node.tensor(1)
    shape = source.base.shape if isinstance(source, Pieces) else node.tensor(0).shape
    known = _known_starts(g, node, 2, update.shape, shape)
    if known is not None:
        replaced = _replaced(g, source, node, update, known, shape)
        if replaced is not None:
            return replaced
    x = node.tensor(0)
    body = g.body(shape)
    starts = _starts(g, node, 2, shape, update.shape, body)
    inside: Num | None = None
    places: list[Num] = []
    for i, start in enumerate(starts):
        place = index(body.space, i) - start
        places.append(place)
        if dims.is_one(dims.add(dimmath.sub(shape[i], update.shape[i]), 1)):
            continue  # the whole axis
        within = (place >= 0) & (place < size(body.space, update.shape[i]))
        inside = within if inside is None else inside & within
    new = g.at(body, update, places)
    if inside is None:
        return g.finish(body, new)
    old = g.read(body, x, [Linear.dim(i) for i in range(x.rank)])
    return g.finish(body, inside.select(new, old))


def _replaced(
    g: StableHloImporter,
    source: Entry,
    node: Node,
    update: Tensor,
    starts: Sequence[DimLike],
    shape: Sequence[DimLike],
) -> Entry | None:
    """The tensor as pieces, where the part spans all axes but one and lies at a known place."""
    partial = [i for i, d in enumerate(shape) if not g.same(d, update.shape[i])]
    if not partial:
        return update
    axis = partial[0]
    start, length, extent = starts[axis], update.shape[axis], shape[axis]
    if len(partial) > 1 or not all(isinstance(n, int) for n in (start, length, extent)):
        return None
    assert isinstance(start, int) and isinstance(length, int)
    parts: dict[int, Tensor] = {}
    base = node.tensor(0) if not isinstance(source, Pieces) else source.base
    if isinstance(source, Pieces) and source.axis == axis:
        parts = dict(source.parts)
        for other, part in parts.items():
            end = other + int(str(part.shape[axis]))
            same = other == start and end == start + length
            if not same and other < start + length and start < end:
                return Pieces(g, source.joined(), axis, {start: update})
    elif isinstance(source, Pieces):
        base = source.joined()
    return Pieces(g, base, axis, parts | {start: update})


def _known_starts(
    g: StableHloImporter,
    node: Node,
    first: int,
    sizes: Sequence[DimLike],
    shape: Sequence[DimLike] | None = None,
) -> list[DimLike] | None:
    """The places of a part, moved inside, where they are known."""
    if shape is None:
        source = node.inputs[0]
        shape = source.base.shape if isinstance(source, Pieces) else node.tensor(0).shape
    known: list[DimLike] = []
    for i, (extent, length) in enumerate(zip(shape, sizes, strict=True)):
        room = dimmath.sub(extent, length)
        if isinstance(room, int) and room == 0:
            known.append(0)
            continue
        start = node.tensor(first + i)
        if start.content is None:
            return None
        wanted = start.content.reshape(-1)[0]
        wanted = int(wanted) if isinstance(wanted, (int, np.integer)) else wanted
        known.append(dims.maximum(0, dims.minimum(wanted, room)))
    return known


def _starts(
    g: StableHloImporter,
    node: Node,
    first: int,
    shape: Sequence[DimLike],
    sizes: Sequence[DimLike],
    body: object,
) -> list[Num]:
    """The places of a part in a body, moved inside."""
    starts: list[Num] = []
    for i, (extent, length) in enumerate(zip(shape, sizes, strict=True)):
        room = dimmath.sub(extent, length)
        wanted = g.read(body, node.tensor(first + i), [])  # type: ignore[arg-type]
        start = wanted.cast(DType.I64)
        starts.append(
            start.number(0)
            if isinstance(room, int) and room == 0
            else start.max(0).min(size(start.space, room))
        )
    return starts


@rule("stablehlo.pad")
def pad(g: StableHloImporter, node: Node) -> Tensor:
    """Margins, which may be negative, and gaps between elements."""
    low, high = node.ints("edge_padding_low"), node.ints("edge_padding_high")
    return padded(g, node, low, high, node.ints("interior_padding", [0] * len(low)))


@rule("stablehlo.dynamic_pad")
def dynamic_pad(g: StableHloImporter, node: Node) -> Tensor:
    """Margins and gaps that are computed from sizes."""
    return padded(g, node, node.dim_list(2), node.dim_list(3), [int(str(d)) for d in node.dim_list(4)])


def padded(
    g: StableHloImporter, node: Node, low: Sequence[DimLike], high: Sequence[DimLike], gaps: Sequence[int]
) -> Tensor:
    """A tensor with margins and gaps of the second operand's number."""
    x, value = node.tensor(0), node.tensor(1)
    number = g.scalar_number(value)
    if number is None:
        return _padded_by(g, x, value, low, high, gaps)
    for axis, gap in enumerate(gaps):
        if gap and not (isinstance(x.shape[axis], int) and x.shape[axis] == 0):
            x = spread_axis(g, x, axis, gap + 1, number)
    return cut_and_padded(g, x, low, high, number)


def cut_and_padded(
    g: StableHloImporter,
    x: Tensor,
    low: Sequence[DimLike],
    high: Sequence[DimLike],
    number: float | int | bool,
) -> Tensor:
    """A tensor with margins of a number; negative margins drop elements."""
    starts = [dims.maximum(dims.mul(p, -1), 0) for p in low]
    ends = [dims.maximum(dims.mul(p, -1), 0) for p in high]
    sizes = [dimmath.sub(d, dims.add(s, e)) for d, s, e in zip(x.shape, starts, ends, strict=True)]
    if all(dims.bounds(d)[0] >= 0 for d in sizes):
        x = g.slice(x, starts, sizes, [1] * x.rank)
        margins = [[dims.maximum(p, 0) for p in side] for side in (low, high)]
        return g.pad(x, margins[0], margins[1], number)
    sizes = [dims.maximum(0, dims.add(d, a, b)) for d, a, b in zip(x.shape, low, high, strict=True)]
    return g.splat(sizes, number, x.dtype)


def _padded_by(
    g: StableHloImporter,
    x: Tensor,
    value: Tensor,
    low: Sequence[DimLike],
    high: Sequence[DimLike],
    gaps: Sequence[int],
) -> Tensor:
    """Margins and gaps of a number that is computed: each element is the tensor's, or that number."""
    spans = [
        dims.add(dims.mul(dims.add(d, -1), gap + 1), 1) if not g.is_zero(d) else 0
        for d, gap in zip(x.shape, gaps, strict=True)
    ]
    body = g.body([dims.add(s, a, b) for s, a, b in zip(spans, low, high, strict=True)])
    inside: Num | None = None
    places: list[Num] = []
    for i, gap in enumerate(gaps):
        place = index(body.space, i) - size(body.space, low[i])
        within = (place >= 0) & (place < size(body.space, spans[i]))
        if gap:
            within = within & (place % (gap + 1) == 0)
            place = place // (gap + 1)
        inside = within if inside is None else inside & within
        places.append(place)
    fill = g.read(body, value, [])
    if any(g.is_zero(d) for d in x.shape) or inside is None:
        return g.finish(body, fill) if inside is not None else x
    return g.finish(body, inside.select(g.at(body, x, places), fill))
