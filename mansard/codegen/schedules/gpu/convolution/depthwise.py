"""GPU schedule of small windows: depthwise convolutions and pooling, whatever the layout.

An invocation computes a few neighbouring outputs along one axis of the window, each a vector along the
result's contiguous loop; taps are unrolled, so that elements shared by neighbouring outputs are read once::

    accumulators[point] = neutral
    for tap (unrolled):
        w = weights[tap]                        # a vector, packed if the weights are constant
        for point (unrolled):
            accumulators[point] += x[stride * (start + point) + tap] * w
    y[start + point] = epilogue(accumulators[point])

Padded reads yield the fill value; their guards are computed along with the addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.contraction import applies as has_one_reduction
from mansard.codegen.schedules.common.window import find_window
from mansard.codegen.schedules.cpu.packed_weights import Weights, find_weights
from mansard.dims import DimLike
from mansard.errors import CodegenError

MAX_TAPS = 81
"""The most taps, which are unrolled: a 9 x 9 window."""
LANES, POINTS, WIDTHS = (4, 2, 1), (1, 2, 4), (64, 128, 256)
MANY = 16
"""Outputs per resident invocation of the device from which the widest vectors are best."""


@dataclass(frozen=True)
class DepthwiseLoops:
    """The loops of a window: ``column`` is contiguous in the result, ``row`` is another loop that slides, if
    any."""

    root: Root
    column: Group
    row: Group | None
    rest: tuple[Group, ...]
    reduced: tuple[Group, ...]
    wide: int
    """The maximum vector width along the column."""


def analyse(nest: Nest, target: KernelTarget) -> DepthwiseLoops | None:
    """The loops of a nest that only reduces over the taps of a small window; otherwise None."""
    if not has_one_reduction(nest):
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    taps = nest.total(root.inner)
    window = find_window(nest, root)
    if window is None or not isinstance(taps, int) or taps > MAX_TAPS:
        return None
    walked = {loop for loop in root.inner if not dims.is_one(nest.extents[loop])}
    if not walked <= {axis.tap for axis in window.axes}:
        return None
    groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    if not groups:
        return None
    column = groups[-1]
    sliding = [axis.outer for axis in window.axes]
    rows = [g for g in groups[:-1] if len(g) == 1 and g[0] in sliding]
    row = rows[-1] if rows else None
    rest = tuple(g for g in groups[:-1] if g is not row)
    reduced = tuple(nest.collapsed(root.inner, nest.positions(root)))
    return DepthwiseLoops(root, column, row, rest, reduced, _wide(nest, root, column))


def _wide(nest: Nest, root: Root, column: Group) -> int:
    """The vector width along the column: above 1 only if every read is contiguous or constant along it, so
    that no read slides along it."""
    loop = column[-1]
    for read in nest.reads(root):
        terms = dict(read.address.terms) if read.address is not None else {loop: 2}
        # Packed weights are contiguous whatever their layout in the graph.
        if terms.get(loop, 0) not in (0, 1) and read.value not in nest.dispatch.packable:
            return 1
        if any(loop in dict(at.terms) for at, _ in read.guards):
            return 1
    return next((w for w in LANES if divides(nest.total(column), w)), 1)


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether the nest is a small window."""
    return analyse(nest, target) is not None


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Vectors, points and workgroups to try; the default first."""
    loops = _loops(nest, target)
    first = _default(nest, loops, target)
    extent = dims.bounds(nest.total(loops.row))[0] if loops.row else 1
    tried = itertools.product(
        [w for w in LANES if w <= loops.wide], [p for p in POINTS if p <= extent], WIDTHS
    )
    others = [
        _parameters(lanes, points, width)
        for lanes, points, width in tried
        if width <= target.workgroup_invocations
    ]
    return [first, *(p for p in others if p != first)]


def _parameters(lanes: int, points: int, width: int) -> Parameters:
    return Parameters.of(lanes=lanes, points=points, width=width)


def _default(nest: Nest, loops: DepthwiseLoops, target: KernelTarget) -> Parameters:
    """Few outputs per invocation: many invocations are needed to hide memory latency, and vectors of two
    already read whole cache lines (measured on an H200; more only with many outputs)."""
    outputs, resident = estimate(nest.total(range(nest.domain))), target.resident_invocations
    lanes = 4 if outputs >= MANY * resident else 2 if outputs >= resident // 2 else 1
    lanes = next(w for w in LANES if w <= min(lanes, loops.wide))
    extent = dims.bounds(nest.total(loops.row))[0] if loops.row else 1
    points = 2 if extent >= 2 and outputs // lanes >= 2 * resident else 1
    return _parameters(lanes, points, min(WIDTHS[-1], target.workgroup_invocations))


def _loops(nest: Nest, target: KernelTarget) -> DepthwiseLoops:
    loops = analyse(nest, target)
    if loops is None:
        raise CodegenError(f"dispatch {nest.dispatch.name} is not a small window")
    return loops


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a small window."""
    loops = _loops(nest, target)
    chosen = parameters or _default(nest, loops, target)
    return _Window(nest, target, name, loops, chosen).run()


class _Window:
    def __init__(
        self, nest: Nest, target: KernelTarget, name: str, loops: DepthwiseLoops, parameters: Parameters
    ) -> None:
        self.nest, self.loops = nest, loops
        self.lanes, self.points, self.width = (parameters[n] for n in ("lanes", "points", "width"))
        self.frame = Frame(nest, target, name, self.width)
        self.b, self.ev = self.frame.b, self.frame.ev
        self.weights = self._find_weights()

    def _find_weights(self) -> Weights | None:
        """Constant weights, packed as taps of all columns, so that loads are coalesced."""
        columns = self.nest.total(self.loops.column)
        if not isinstance(columns, int):
            return None
        return find_weights(self.nest, self.loops.root, self.loops.column, self.loops.reduced, columns)

    def run(self) -> Scheduled:
        b, ev, nest, loops = self.b, self.ev, self.nest, self.loops
        row = nest.total(loops.row) if loops.row else 1
        blocks = dims.ceildiv(row, self.points)
        vectors = dims.floordiv(nest.total(loops.column), self.lanes)
        rest = [nest.total(g) for g in loops.rest]
        counts: list[DimLike] = [*rest, blocks, vectors]
        total = dims.product(counts)
        workgroups = self.frame.workgroups(dims.ceildiv(total, self.width))
        first = b.add(b.mul(b.workgroup_id(0), b.idx(self.width)), b.local_id(0))
        with b.for_(first, ev.dim(total), ev.dim(dims.mul(workgroups, self.width))) as loop, ev.scope():
            *outer, block, vector = self.frame.decode(loop.index, counts)
            for group, value in zip(loops.rest, outer, strict=True):
                ev.bind(group, value)
            start = b.mul(block, b.idx(self.points))
            if not divides(row, self.points):
                # The last block is moved back into range; elements in two blocks get the same value.
                start = self.frame.minimum(start, ev.dim(dims.add(row, -self.points)))
            self._outputs(start, b.mul(vector, b.idx(self.lanes)))
        packed = {self.weights.position: self.weights.panels} if self.weights else {}
        return replace(self.frame.finish((workgroups, 1, 1)), packed=packed)

    def _outputs(self, start: KValue, column: KValue) -> None:
        ev, loops = self.ev, self.loops
        ev.bind(loops.column, column)
        if self.lanes > 1:
            ev.vector, ev.multiple = (loops.column[-1], self.lanes), self.lanes
        totals = [reduce.start(self.b, loops.root, self.lanes) for _ in range(self.points)]
        extents = [estimate(self.nest.total(g)) for g in loops.reduced]
        for number, taps in enumerate(itertools.product(*(range(e) for e in extents))):
            for group, tap in zip(loops.reduced, taps, strict=True):
                ev.bind(group, self.b.idx(tap))
            self._stage_weights(number, column)
            for point in range(self.points):
                self._slide(start, point)
                totals[point] = reduce.combine(ev, loops.root, totals[point])
        for point, total in enumerate(totals):
            with ev.scope():
                self._slide(start, point)
                self.frame.store_results(loops.root, total)

    def _slide(self, start: KValue, point: int) -> None:
        if self.loops.row:
            self.ev.bind(self.loops.row, start, point)

    def _stage_weights(self, tap: int, column: KValue) -> None:
        """Stage this tap's packed weights for the evaluator."""
        if self.weights is None:
            return
        b, ev, value, panels = self.b, self.ev, self.weights.value, self.weights.panels
        (address,) = {r.address for r in self.nest.reads(self.loops.root) if r.value is value}
        assert address is not None
        place = b.add(b.idx(tap * panels.width), column)
        memory = b.bindings[ev.binding_of[value]]
        data = b.load(memory, place, self.lanes, aligned=panels.width % self.lanes == 0)
        ev.provide(value, address, b.cast(data, register_dtype(value.type.dtype)))
