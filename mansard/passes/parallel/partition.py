"""Partition heavy dispatches along one dim into pieces that different devices run concurrently.

Before (``%w`` a weight; 64 rows)::

    %y: 64x32xf32 = generic (d0:64, d1:32 | d2:16) add {%x[d0, d2] * %w[d2, d1]}
    %z: 64x32xf32 = generic (d0:64, d1:32) {exp(%y[d0, d1])}

After, with two pieces of ``s`` and ``64 - s`` rows (``%x1``, ``%y1``, ``%z1`` likewise, from row ``s`` on)::

    %x0: [s]x16xf32 = slice %x offsets [0, 0]
    %y0: [s]x32xf32 = generic (d0:s, d1:32 | d2:16) add {%x0[d0, d2] * %w[d2, d1]}
    %z0: [s]x32xf32 = generic (d0:s, d1:32) {exp(%y0[d0, d1])}
    ...
    %z: 64x32xf32 = concat %z0, %z1 axis 0

``s`` is a parameter of the graph: the runtime chooses it for every call. Slices and the concatenation along
the outermost dim (of extent above 1) are *views*: pieces read and write their part of one buffer
(`take_views`). Along other dims operands are read at an offset, and an elementwise op concatenates the
pieces. A constant that a piece reads whole is duplicated per piece, so that each device can store it in the
layout its kernel reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mansard import dims
from mansard.analysis.linear import dim_scalar
from mansard.analysis.operands import is_gathered
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch, DispatchGraph, is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Concat, Generic, Op, Reshape, Slice
from mansard.ir.scalar import Apply, Index, Scalar, rewrite, walk
from mansard.ir.types import Constant, Linear, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.lower_views import lower_view

UNITS = (64, 32, 16, 8, 4, 2)
"""Granularities, largest first: the first that divides a dim into at least `POSITIONS` units is used, else
1."""
POSITIONS = 24
MIN_POSITIONS = 8
"""Pieces become views only if the dim has at least this many units of the views' alignment."""
ALIGNMENT = 256
"""Alignment in bytes of the start of every view: kernels load vectors, and Vulkan's
``minStorageBufferOffsetAlignment`` is at most 256."""


@dataclass(frozen=True)
class Axis:
    """A dim along which a dispatch can be partitioned."""

    target: Value
    """The result that the pieces are concatenated to; later ops of the dispatch read it whole."""
    axis: int
    extent: int
    unit: int
    """Granularity: the extent of every piece but the last is a multiple of it."""
    is_view: bool
    """Whether pieces are contiguous in memory."""


@dataclass(frozen=True)
class DispatchPartition:
    """A dispatch to partition along an axis into pieces of these extents, which sum up to the axis's."""

    dispatch: Dispatch
    axis: Axis
    extents: tuple[DimLike, ...]


@dataclass(frozen=True)
class PartitionedGraph:
    """A graph with partitioned dispatches; ``pieces`` are the results of the pieces of each."""

    graph: Graph
    pieces: tuple[tuple[Value, ...], ...]


class _NotPartitionableError(Exception):
    """A dispatch cannot be partitioned that way."""


def axes(graph: DispatchGraph, dispatch: Dispatch, *, light: bool = False) -> list[Axis]:
    """The dims along which a dispatch can be partitioned, the outermost first; none without a contraction.

    ``light``: the dims of a dispatch without a contraction along which every op can be partitioned.
    """
    if light == any(is_contraction(op) for op in dispatch.ops) or dispatch.in_place:
        return []
    if dispatch.parts:
        return []
    if light and (len(dispatch.outputs) > 1 or not all(isinstance(op, Generic) for op in dispatch.ops)):
        return []
    states = {s.before for s in graph.graph.states} | {graph.base(s.after) for s in graph.graph.states}
    if states & {*dispatch.inputs, *dispatch.outputs}:
        return []  # a state stays on one device
    target = next(v for op in dispatch.ops for v in op.outputs if graph.base(v) in dispatch.outputs)
    partitionable = []
    for axis, extent in enumerate(target.type.shape):
        if not isinstance(extent, int) or extent < 2:
            continue
        if _parts(graph, dispatch, target, axis, ALIGNMENT) is None:
            continue
        chosen = _axis(graph, dispatch, target, axis, extent)
        if 2 * chosen.unit <= extent and _parts(graph, dispatch, target, axis, chosen.unit) is not None:
            partitionable.append(chosen)
    return partitionable


def _axis(graph: DispatchGraph, dispatch: Dispatch, target: Value, axis: int, extent: int) -> Axis:
    """The axis, with a granularity that aligns views to `ALIGNMENT` if that leaves enough units."""
    unit = next((u for u in UNITS if extent >= u * POSITIONS), 1)
    operands = _parts(graph, dispatch, target, axis, ALIGNMENT) or []
    views = [target] if _outermost(target, axis) else []
    for parts in ([*operands, *views], views):
        aligned_unit = math.lcm(
            unit, *(_aligned_rows(part, axis if part is target else None) for part in parts)
        )
        if aligned_unit == unit or extent >= MIN_POSITIONS * aligned_unit:
            return Axis(target, axis, extent, aligned_unit, bool(views))
    return Axis(target, axis, extent, unit, is_view=False)


def _parts(
    graph: DispatchGraph, dispatch: Dispatch, target: Value, axis: int, unit: int
) -> list[Value] | None:
    """The slices that a piece along an axis reads; None when there can be no such piece."""
    piece = _Piece(dispatch, set(), unit, 0, 2)  # any extent shows whether it can be done
    try:
        piece.restrict(target, axis)
        piece.check(graph, target)
    except _NotPartitionableError:
        return None
    return [op.output for op in piece.ops if isinstance(op, Slice)]


def _aligned_rows(value: Value, axis: int | None = None) -> int:
    """How many positions of an axis (None: the outermost that is not 1) begin at multiples of `ALIGNMENT`."""
    shape = value.type.shape
    if axis is None:
        axis = next((d for d, extent in enumerate(shape) if not dims.is_one(extent)), 0)
    inner = dims.product(shape[axis + 1 :])
    row = (inner if isinstance(inner, int) else inner.divisor()) * value.type.dtype.bits // 8
    return ALIGNMENT // math.gcd(ALIGNMENT, row)


def partition(
    graph: DispatchGraph, divisions: Sequence[DispatchPartition], parameters: Sequence[Dim]
) -> PartitionedGraph:
    """The graph of a dispatch graph with some dispatches partitioned; ``parameters`` are the symbols of the
    pieces' extents."""
    source = graph.graph
    taken = {v.name for v in source.values()}
    constants = dict(source.constants)
    replacements: dict[Value, list[Op]] = {}
    pieces = []
    for division in divisions:
        ops, results = _pieces(graph, division, taken, constants)
        replacements[division.axis.target] = ops
        pieces.append(results)
    ops = []
    for op in source.ops:
        replaced = [replacements[v] for v in op.outputs if v in replacements]
        ops += replaced[0] if replaced else [op]
    result = replace(
        source, ops=tuple(ops), constants=constants, parameters=(*source.parameters, *parameters)
    )
    return PartitionedGraph(eliminate_dead(result), tuple(pieces))


def _pieces(
    graph: DispatchGraph, division: DispatchPartition, taken: set[str], constants: dict[Value, Constant]
) -> tuple[list[Op], tuple[Value, ...]]:
    """The ops of all pieces and of their concatenation, and the pieces' results."""
    axis, dispatch = division.axis, division.dispatch
    ops: list[Op] = []
    results: list[Value] = []
    start: DimLike = 0
    for extent in division.extents:
        piece = _Piece(dispatch, taken, axis.unit, start, extent)
        results.append(piece.restrict(axis.target, axis.axis))
        piece.check(graph, axis.target)
        ops += _with_private_constants(piece, constants)
        start = dims.add(start, extent)
    location = dispatch.ops[0].location
    join: Op = Concat(tuple(results), (axis.target,), axis.axis, location=location)
    ops.append(join if axis.is_view else lower_view(join))
    return ops, tuple(results)


def _with_private_constants(piece: _Piece, constants: dict[Value, Constant]) -> list[Op]:
    """The ops of a piece, with copies of the packable constants that it reads whole."""
    parts = {v for op in piece.ops if isinstance(op, Slice) for v in op.inputs} | piece.shifted
    copies: dict[Value, Value] = {}
    for value in sorted(piece.dispatch.packable - parts, key=piece.dispatch.inputs.index):
        copies[value] = Value(fresh_name(piece.taken, value.name), value.type)
        constants[copies[value]] = constants[value]
    return [replace(op, inputs=tuple(copies.get(v, v) for v in op.inputs)) for op in piece.ops]


@dataclass
class _Piece:
    """Writes the ops of one piece: ``extent`` iterations from ``start`` on."""

    dispatch: Dispatch
    taken: set[str]
    unit: int
    """Granularity of ``start``."""
    start: DimLike
    extent: DimLike
    ops: list[Op] = field(default_factory=list)
    restricted_values: dict[tuple[Value, int], Value] = field(default_factory=dict)
    restricted: set[Op] = field(default_factory=set)
    shifted: set[Value] = field(default_factory=set)
    """Operands that are read at an offset."""

    def __post_init__(self) -> None:
        self.producers = {v: op for op in self.dispatch.ops for v in op.outputs}

    def check(self, graph: DispatchGraph, target: Value) -> None:
        """Raise when a contraction would be recomputed in every piece, or an intermediate result has other
        users."""
        light = not any(is_contraction(op) for op in self.dispatch.ops)
        for op in self.dispatch.ops:
            if op not in self.restricted and (light or is_contraction(op)):
                raise _NotPartitionableError
        live = graph.graph.live_outs()
        users = graph.graph.users()
        for op in self.restricted:
            for value in op.outputs:
                outside = any(user not in self.restricted for user in users.get(value, ()))
                if value is not target and isinstance(op, Generic) and (outside or value in live):
                    raise _NotPartitionableError

    def restrict(self, value: Value, axis: int) -> Value:
        """The part of a value along one of its axes."""
        key = (value, axis)
        if key not in self.restricted_values:
            op = self.producers.get(value)
            if op is None:
                self.restricted_values[key] = self._slice(value, axis)
            elif isinstance(op, Reshape):
                self.restricted_values[key] = self._reshape(op, axis)
            elif isinstance(op, Generic):
                self.restricted_values[key] = self._generic(op, axis)
            else:
                raise _NotPartitionableError
        return self.restricted_values[key]

    def _value(self, like: Value, axis: int) -> Value:
        shape = list(like.type.shape)
        shape[axis] = self.extent
        return Value(fresh_name(self.taken, like.name), TensorType(tuple(shape), like.type.dtype))

    def _slice(self, value: Value, axis: int) -> Value:
        rank = value.type.rank
        if not self._can_restrict(value, axis):
            raise _NotPartitionableError
        offsets = tuple(self.start if d == axis else 0 for d in range(rank))
        part = self._value(value, axis)
        self.ops.append(Slice((value,), (part,), offsets, (1,) * rank))
        return part

    def _reshape(self, op: Reshape, axis: int) -> Value:
        """A reshape that keeps the axis, and as many elements in front of it."""
        place = _kept_axis(op, axis)
        if place is None:
            raise _NotPartitionableError
        source = self.restrict(op.inputs[0], place)
        part = self._value(op.output, axis)
        self.ops.append(replace(op, inputs=(source,), outputs=(part,)))
        self.restricted.add(op)
        return part

    def _generic(self, op: Generic, axis: int) -> Value:
        inputs, maps = list(op.inputs), list(op.maps)
        shifted = [Linear.dim(d, 1, self.start if d == axis else 0) for d in range(len(op.extents))]
        for i, index_map in enumerate(op.maps):
            if index_map is None:
                continue
            walked = _indexed_axis(op, i, axis)
            if walked is not None and self._can_restrict(op.inputs[i], walked):
                inputs[i] = self.restrict(op.inputs[i], walked)
            else:
                maps[i] = index_map.compose(shifted)
                if any(d == axis for r in index_map.results for d, _ in r.terms):
                    self.shifted.add(op.inputs[i])
        extents = tuple(self.extent if d == axis else e for d, e in enumerate(op.extents))
        part = self._value(op.output, axis)
        body = self._shifted(op.body, axis)
        piece = replace(
            op, inputs=tuple(inputs), outputs=(part,), extents=extents, maps=tuple(maps), body=body
        )
        self.ops.append(piece)
        self.restricted.add(op)
        return part

    def _can_restrict(self, value: Value, axis: int) -> bool:
        op = self.producers.get(value)
        if isinstance(op, Reshape):
            place = _kept_axis(op, axis)
            return place is not None and self._can_restrict(op.inputs[0], place)
        if op is not None:
            return isinstance(op, Generic)
        return _outermost(value, axis) and self.unit % _aligned_rows(value, axis) == 0

    def _shifted(self, body: Scalar, axis: int) -> Scalar:
        """The body with its index along the axis offset by the start of the piece."""
        if self.start == 0 or not any(isinstance(n, Index) and n.dim == axis for n in walk(body)):
            return body
        moved = Apply("add", (Index(axis), dim_scalar(self.start)), DType.I64)
        return rewrite(body, lambda n: moved if isinstance(n, Index) and n.dim == axis else n)


def _kept_axis(op: Reshape, axis: int) -> int | None:
    """The axis that a reshape keeps as an axis of its result, with as many elements in front of it."""
    before, after = op.inputs[0].type.shape, op.output.type.shape
    outside = dims.product(after[:axis])
    places = (d for d, e in enumerate(before) if e == after[axis] and dims.product(before[:d]) == outside)
    return next(places, None)


def _outermost(value: Value, axis: int) -> bool:
    """Whether a slice along an axis is contiguous in memory."""
    return all(dims.is_one(d) for d in value.type.shape[:axis]) and value.type.dtype.bits >= 8


def _indexed_axis(op: Generic, operand: int, dim: int) -> int | None:
    """The one axis of an operand that a dim of the op indexes, over its whole extent; None if there is
    none."""
    index_map, value = op.maps[operand], op.inputs[operand]
    assert index_map is not None
    using = [a for a, r in enumerate(index_map.results) if any(d == dim for d, _ in r.terms)]
    if len(using) != 1 or is_gathered(op, operand):
        return None
    (axis,) = using
    whole = index_map.results[axis].single == dim and value.type.shape[axis] == op.extents[dim]
    return axis if whole else None


def take_views(graph: DispatchGraph) -> DispatchGraph:
    """The dispatch graph without slices and concatenations, which become `slices` and `joins` of it."""
    slices: dict[Value, tuple[Value, DimLike]] = {}
    joins: dict[Value, tuple[tuple[Value, DimLike], ...]] = {}
    kept = []
    for dispatch in graph.dispatches:
        op = dispatch.ops[-1]
        if isinstance(op, Slice):
            whole, offset = graph.base(op.inputs[0]), _offset(op.inputs[0], op.offsets)
            # A piece of the same extent reads the other's result directly, without waiting for the
            # concatenation.
            same = [
                v for v, at in joins.get(whole, ()) if (at, v.type.bytes) == (offset, op.output.type.bytes)
            ]
            slices[op.output] = (same[0], 0) if same else (whole, offset)
        elif isinstance(op, Concat):
            start: DimLike = 0
            parts = []
            for value in op.inputs:
                parts.append((graph.base(value), start))
                start = dims.add(start, value.type.bytes)
            joins[op.output] = tuple(parts)
        else:
            kept.append(dispatch)
    return replace(
        graph,
        dispatches=tuple(kept),
        slices={**graph.slices, **slices},
        joins={**graph.joins, **joins},
    )


def _offset(value: Value, offsets: Sequence[DimLike]) -> DimLike:
    """The byte at which a slice begins."""
    inner: DimLike = value.type.dtype.bits // 8
    total: DimLike = 0
    for offset, extent in zip(reversed(offsets), reversed(value.type.shape), strict=True):
        total = dims.add(total, dims.mul(inner, offset))
        inner = dims.mul(inner, extent)
    return total
