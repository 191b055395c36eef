"""CPU schedule of windows over channels-last tensors: convolutions, depthwise ones, pooling.

Vectors run along the innermost dim of the result (output channels), and a register tile has ``rows``
neighbouring points of an image row by ``columns`` vectors::

    for the other parallel loops, blocks of column tiles:
        for each tile of the row:
            accumulators = 0
            for ky in the taps inside the image:
                for kx (unrolled, only points inside the image), for c:
                    accumulators[p][v] += x[stride * (p0 + p) + kx, c] * w[ky, kx, c, v]
            y[p0 + p, v] = epilogue(accumulators[p][v])

Padding is never read: taps outside the image are skipped, along the row at compile time (its first and last
tiles have separate code), across rows by the bounds of the tap loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, estimate
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.contraction import applies as contraction_applies
from mansard.codegen.schedules.common.transposed_stores import store_transposed, transposed_result
from mansard.codegen.schedules.common.window import (
    SEGMENTS,
    SlidingWindow,
    TapRange,
    WindowAxis,
    find_window,
    tap_ranges,
)
from mansard.codegen.schedules.cpu.gemm import PackedEvaluator
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH
from mansard.codegen.schedules.cpu.packed_weights import Weights, find_weights
from mansard.dtypes import DType

_Step = Callable[[Sequence[KValue]], Sequence[KValue]]
UNROLLED = 4
"""A loop inside the taps with at most this many iterations is unrolled."""
WORK = 60_000
"""Vector operations of a task: some ten microseconds, so that a task's start costs little and several cores
are balanced."""


@dataclass(frozen=True)
class WindowLoops:
    """The loops of a window schedule: ``reduced`` are the taps, then the loops of ``inner``."""

    window: SlidingWindow
    column: Group
    rest: list[Group]
    reduced: list[Group]
    inner: list[Group]
    lanes: int
    weights: Weights | None
    group: int
    """Positions of the innermost reduced loop that one instruction adds up."""
    walking: bool
    """Whether the window's operand is indexed by the columns (depthwise, pooling). The last vector is then
    moved back into range, since nothing may be read past the columns."""

    @property
    def row(self) -> WindowAxis:
        """The axis along which a register tile extends."""
        return self.window.axes[-1]


def analyse(nest: Nest, target: KernelTarget) -> WindowLoops | None:
    """The loops of a nest as a window; None if it is not one, or not along channels."""
    if target.is_gpu or not contraction_applies(nest):
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    window = find_window(nest, root, widened=True)
    if window is None:
        return None
    positions = [p for r in nest.roots for p in nest.positions(r)]
    outer = nest.collapsed(range(nest.domain), positions)
    taps = {axis.tap for axis in window.axes}
    inner = nest.collapsed([loop for loop in root.inner if loop not in taps], nest.positions(root))
    reduced = [[axis.tap] for axis in window.axes] + inner
    row, column = [window.axes[-1].outer], _column(nest, window, outer)
    if column is None or row not in outer:
        return None
    lanes = choose_lanes(nest.total(column), min(target.lanes(DType.F32), WIDTH))
    if lanes < 4 or not isinstance(nest.total(column), int):
        return None
    reads = [(r.value, dict(r.address.terms).get(column[-1], 0)) for r in nest.reads(root) if r.address]
    packable = nest.dispatch.packable
    walking = any(step != 0 and value not in packable for value, step in reads)
    # A vector that is moved back is read from one panel of the result's width.
    weights = find_weights(nest, root, column, reduced, estimate(nest.total(column)) if walking else WIDTH)
    packed = weights.value if weights is not None else None
    if any(step not in (0, 1) and value is not packed for value, step in reads):
        return None
    rest = [g for g in outer if g not in (row, column)]
    loops = WindowLoops(window, column, rest, reduced, inner, lanes, weights, 1, walking)
    length, count = nest.extents[loops.row.outer], nest.extents[loops.row.tap]
    assert isinstance(length, int) and isinstance(count, int)
    tile = default(nest, loops, target)
    return loops if len(tap_ranges(loops.row, length, count, tile["rows"])) <= SEGMENTS else None


def _column(nest: Nest, window: SlidingWindow, outer: Sequence[Group]) -> Group | None:
    """The innermost loop, if results are contiguous along it and the window does not slide along it."""
    store = nest.result_strides()
    sliding = {axis.outer for axis in window.axes}
    if not outer or store.get(outer[-1][-1], 0) != 1 or sliding & set(outer[-1]):
        return None
    return outer[-1]


def default(nest: Nest, loops: WindowLoops, target: KernelTarget) -> Parameters:
    """Rows and columns of the register tile: as many accumulators as fit, with the row split evenly."""
    return candidates_of(nest, loops, target)[0]


def candidates_of(nest: Nest, loops: WindowLoops, target: KernelTarget) -> list[Parameters]:
    """Register tiles to try, by predicted cost."""
    extent, length = nest.total(loops.column), nest.extents[loops.row.outer]
    assert isinstance(extent, int) and isinstance(length, int)
    vectors = -(-extent // loops.lanes)
    taps = estimate(nest.extents[loops.row.tap]) if unrolls(nest, loops) else 1
    room = target.vector_registers
    costs: dict[tuple[int, int], float] = {}
    for columns in range(1, min(vectors, 4) + 1):
        # In addition to the accumulators: a vector of weights per live tap and column, and the factor.
        max_rows = max(1, (room - 1 - columns * taps) // columns)
        pieces = -(-length // max_rows)
        for cut in range(pieces, pieces + 3):
            rows = -(-length // cut)
            if 1 <= rows <= max_rows:
                costs[rows, columns] = _cost(rows, columns, taps, loops, length, vectors)
    ranked = sorted(costs, key=lambda t: costs[t])
    return [Parameters.of(rows=rows, columns=columns) for rows, columns in ranked[:8]]


def unrolls(nest: Nest, loops: WindowLoops) -> bool:
    """Whether the taps along the row and all loops inside them are unrolled."""
    return all(estimate(nest.total(g)) <= UNROLLED * _step(loops, g) for g in loops.inner)


def _step(loops: WindowLoops, group: Group) -> int:
    """The step of a reduced loop."""
    return loops.group if group == loops.reduced[-1] else 1


def _cost(rows: int, columns: int, taps: int, loops: WindowLoops, length: int, vectors: int) -> float:
    """Cycles for the taps of a row: two multiply-adds and two loads per cycle, four cycles latency."""
    positions = loops.row.stride * (rows - 1) + loops.row.dilation * (taps - 1) + 1
    reads = min(positions, rows * taps) * (columns if loops.walking else 1)
    step = max(rows * columns * taps / 2, (reads + columns * taps) / 2, 4.0 * taps) + 1.0
    return step * -(-length // rows) * -(-vectors // columns)


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Register tiles worth trying, the default first."""
    loops = analyse(nest, target)
    assert loops is not None
    return candidates_of(nest, loops, target)


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """One task computes rows of the image over a block of column tiles."""
    loops = analyse(nest, target)
    assert loops is not None
    frame = Frame(nest, target, name)
    (root,) = (r for r in nest.roots if r.reduces)
    return Windows(frame, root, loops, parameters or default(nest, loops, target)).run()


@dataclass(frozen=True)
class WindowTile:
    """A register tile: points of the row from ``start`` on by vectors of columns from ``first`` on (the
    vector numbered ``vector``); ``last`` marks the last one of the columns."""

    start: KValue
    taps_in_range: TapRange
    vector: KValue
    first: KValue
    cells: Sequence[tuple[int, int]]
    last: bool


class Windows:
    """The kernel of a window under construction."""

    def __init__(self, frame: Frame, root: Root, loops: WindowLoops, tile: Parameters) -> None:
        self.frame, self.root, self.loops = frame, root, loops
        self.b, self.nest = frame.b, frame.nest
        frame.ev = self.ev = PackedEvaluator(frame.nest, frame.b, frame.params)
        self.ev.places = {}
        self.rows, self.columns = tile["rows"], tile["columns"]
        extent = self.nest.total(loops.column)
        assert isinstance(extent, int)
        self.extent = extent
        self.vectors = -(-extent // loops.lanes)
        self.reduced, self.weights = loops.reduced, loops.weights
        self.unrolls = unrolls(frame.nest, loops)

    def run(self) -> Scheduled:
        """The finished kernel, with the panels it reads."""
        b, loops = self.b, self.loops
        rest = self.nest.total([loop for g in loops.rest for loop in g])
        tiles = -(-self.vectors // self.columns)
        block = self._block(tiles)
        if loops.rest:
            self.frame.bind_flat(loops.rest, b.workgroup_id(0))
        first = b.mul(b.workgroup_id(1), b.idx(block))
        end = b.add(first, b.idx(block))
        self._along_columns(first, end)
        done = self.frame.finish((rest, -(-tiles // block), 1))
        packed = {self.weights.position: self.weights.panels} if self.weights else {}
        return Scheduled(done.kernel, done.params, done.grid, packed)

    def _along_columns(self, first: KValue, end: KValue) -> None:
        """The column tiles of a task, each along the whole row of the image."""
        b = self.b
        full, tail = divmod(self.vectors, self.columns)
        if self.extent % self.loops.lanes and not tail:
            full, tail = full - 1, self.columns  # the last vector is partial
        if full:
            with b.for_(first, self.frame.minimum(end, b.idx(full))) as loop, self.ev.scope():
                self._along_row(b.mul(loop.index, b.idx(self.columns)), self.columns)
        if tail:
            with b.if_(b.compare("gt", end, b.idx(full))), self.ev.scope():
                self._along_row(b.idx(full * self.columns), tail, last=True)

    def _along_row(self, vector: KValue, count: int, last: bool = False) -> None:
        """All tiles of an image row for ``count`` vectors of columns, from the vector numbered ``vector``."""
        axis, nest, b = self.loops.row, self.nest, self.b
        length, taps = nest.extents[axis.outer], nest.extents[axis.tap]
        assert isinstance(length, int) and isinstance(taps, int)
        for taps_in_range in tap_ranges(axis, length, taps, self.rows):
            if taps_in_range.repeat == 1:
                with self.ev.scope():
                    self._tile(b.idx(taps_in_range.start), taps_in_range, vector, count, last)
                continue
            step = b.idx(taps_in_range.count)
            end = b.idx(taps_in_range.start + taps_in_range.repeat * taps_in_range.count)
            with b.for_(b.idx(taps_in_range.start), end, step) as loop, self.ev.scope():
                self._tile(loop.index, taps_in_range, vector, count, last)

    def _block(self, tiles: int) -> int:
        """Column tiles of one task."""
        taps = 1
        for group in self.reduced:
            taps *= estimate(self.nest.total(group))
        taps //= self.loops.group
        length = estimate(self.nest.extents[self.loops.row.outer])
        return max(1, min(tiles, WORK // max(1, taps * length * self.columns)))

    def _tile(self, start: KValue, taps_in_range: TapRange, vector: KValue, count: int, last: bool) -> None:
        b, lanes = self.b, self.loops.lanes
        cells = [(p, v) for p in range(taps_in_range.count) for v in range(count)]
        first = b.mul(vector, b.idx(lanes))
        sums = self._taps(0, start, taps_in_range, vector, first, cells, last)
        turned = transposed_result(self.nest, [self.loops.row.outer])
        kept = [lanes] * count
        if last and not self.loops.walking:
            kept[-1] = self.extent - (self.vectors - 1) * lanes
        if turned is not None:
            for v in range(count):
                shift = self._shift(v, count, last)
                self._store_transposed(turned, start, first, shift, sums[v::count], kept[v])
            return
        for (p, v), total in zip(cells, sums, strict=True):
            self._store(start, p, first, self._shift(v, count, last), total, kept[v])

    def _shift(self, number: int, count: int, last: bool) -> int:
        """The offset of a vector from its tile's first column."""
        lanes = self.loops.lanes
        back = self.vectors * lanes - self.extent
        return number * lanes - (back if last and number == count - 1 and self.loops.walking else 0)

    # Accumulating -----------------------------------------------------------------------------
    def _taps(
        self,
        level: int,
        start: KValue,
        taps_in_range: TapRange,
        vector: KValue,
        first: KValue,
        cells: Sequence[tuple[int, int]],
        last: bool,
        carried: Sequence[KValue] | None = None,
    ) -> Sequence[KValue]:
        """Loops over the taps across rows, clipped to the image; then the unrolled taps along the row."""
        b, axes = self.b, self.loops.window.axes
        if carried is None:
            carried = [reduce.start(b, self.root, self.loops.lanes) for _ in cells]
        if level == len(axes) - 1:
            tile = WindowTile(start, taps_in_range, vector, first, cells, last)
            return self._unrolled(tile, carried) if self.unrolls else self._tap_by_tap(tile, carried)
        lower, upper = self._clip(axes[level])
        with b.for_(lower, upper, inits=carried) as loop, self.ev.scope():
            self.ev.bind([axes[level].tap], loop.index)
            loop.yield_(
                *self._taps(level + 1, start, taps_in_range, vector, first, cells, last, loop.carried)
            )
        return loop.results

    def _clip(self, axis: WindowAxis) -> tuple[KValue, KValue]:
        """The range of an axis's taps that read inside the image."""
        b = self.b
        taps = self.ev.dim(self.nest.extents[axis.tap])
        if not axis.guarded:
            return b.idx(0), taps
        origin = b.add(b.mul(self.ev.loops[axis.outer], b.idx(axis.stride)), self.ev.dim(axis.offset))
        step, zero = b.idx(axis.dilation), b.idx(0)
        # First: ceil(-origin / dilation); end: floor((extent - 1 - origin) / dilation) + 1, both at least 0.
        before = b.binary("max", b.sub(b.idx(axis.dilation - 1), origin), zero)
        after = b.sub(self.ev.dim(dims.add(axis.extent, axis.dilation - 1)), origin)
        after = b.binary("max", after, zero)
        lower = b.binary("min", b.binary("div", before, step), taps)
        return lower, b.binary("min", b.binary("div", after, step), taps)

    def _tap_by_tap(self, tile: WindowTile, carried: Sequence[KValue]) -> Sequence[KValue]:
        """A sequence of taps, each with the loops inside it innermost."""
        for tap, inside in enumerate(tile.taps_in_range.inside):
            if not inside:
                continue
            points = [(i, p, v, tap) for i, (p, v) in enumerate(tile.cells) if p in inside]
            with self.ev.scope():
                carried = self._loops(self.loops.inner, carried, partial(self._accumulate, tile, points))
        return carried

    def _unrolled(self, tile: WindowTile, carried: Sequence[KValue]) -> Sequence[KValue]:
        """All taps, ordered by the element that they read: an element is loaded once and used by every tap
        that reads it, and needs a register only until then."""
        row = self.loops.row
        points = [
            (i, p, v, tap)
            for tap, inside in enumerate(tile.taps_in_range.inside)
            for i, (p, v) in enumerate(tile.cells)
            if p in inside
        ]
        points.sort(key=lambda c: (row.stride * c[1] + row.dilation * c[3], c[3], c[2]))
        ranges = (range(0, estimate(self.nest.total(g)), _step(self.loops, g)) for g in self.loops.inner)
        for values in product(*ranges):
            with self.ev.scope():
                for group, value in zip(self.loops.inner, values, strict=True):
                    self.ev.bind(group, self.b.idx(value))
                carried = self._accumulate(tile, points, carried)
        return carried

    def _accumulate(
        self, tile: WindowTile, points: Sequence[tuple[int, int, int, int]], carried: Sequence[KValue]
    ) -> Sequence[KValue]:
        """One multiply-add for each (accumulator, point of the row, vector, tap)."""
        out = list(carried)
        self.ev.inside = True
        for i, p, v, tap in points:
            shift = self._shift(v, 1 + tile.cells[-1][1], tile.last)
            self._bind(tile.start, p, tile.first, shift, self.loops.lanes)
            self.ev.bind([self.loops.row.tap], self.b.idx(tap))
            if self.weights is not None:
                self.ev.places = {self.weights.value: self._weight(tile.vector, v, shift)}
            out[i] = self.combine(out[i])
        self.ev.inside = False
        self.ev.places = {}
        return out

    def combine(self, accumulator: KValue) -> KValue:
        """The accumulator plus the product at the bound point."""
        return reduce.combine(self.ev, self.root, accumulator)

    def _loops(self, groups: Sequence[Group], carried: Sequence[KValue], step: _Step) -> Sequence[KValue]:
        """The reduced loops inside the taps."""
        if not groups:
            return step(carried)
        head, *rest = groups
        b = self.b
        end, step_ = self.ev.dim(self.nest.total(head)), _step(self.loops, head)
        with b.for_(b.idx(0), end, step_, inits=carried) as loop, self.ev.scope():
            self.ev.bind(head, loop.index)
            loop.yield_(*self._loops(rest, loop.carried, step))
        return loop.results

    def _weight(self, vector: KValue, number: int, shift: int) -> KValue:
        """The address of the weights of a vector of columns in the panels, at the bound reduced loops."""
        assert self.weights is not None
        b, panels, lanes = self.b, self.weights.panels, self.loops.lanes
        known = 0
        if self.loops.walking:
            place, known = b.mul(vector, b.idx(lanes)), shift
        else:
            per_panel = b.idx(panels.width // lanes)
            index = b.add(vector, b.idx(number))
            place = b.mul(b.binary("div", index, per_panel), b.idx(panels.depth * panels.width))
            place = b.add(place, b.mul(b.binary("rem", index, per_panel), b.idx(lanes * panels.group)))
        step = panels.width
        for group in reversed(self.reduced):
            value = self.ev.loops[group[-1]]
            literal = b.constant_value(value)
            if literal is None:
                place = b.add(place, b.mul(value, b.idx(step)))
            else:
                known += int(literal) * step
            step *= estimate(self.nest.total(group))
        return b.add(place, b.idx(known))

    # Storing ----------------------------------------------------------------------------------
    def _store(self, start: KValue, point: int, first: KValue, shift: int, total: KValue, count: int) -> None:
        """Store the first ``count`` lanes of an accumulator, in power-of-two pieces."""
        for offset, piece in self.frame.pieces(total, count):
            with self.ev.scope():
                self._bind(start, point, first, shift + offset, piece.type.lanes)
                self.frame.store_results(self.root, piece)

    def _store_transposed(
        self, stored: Root, start: KValue, first: KValue, shift: int, totals: Sequence[KValue], count: int
    ) -> None:
        """Store the first ``count`` lanes of accumulators of adjacent points in transposed order."""

        def at(point: int, offset: int) -> None:
            self._bind(start, point, first, shift + offset, 1)

        loops = ([self.loops.row.outer], self.loops.column)
        store_transposed(self.frame, stored, loops, (len(totals), count), at, (self.root, totals))

    def _bind(self, start: KValue, point: int, first: KValue, shift: int, lanes: int) -> None:
        self.ev.bind([self.loops.row.outer], start, point)
        self.ev.bind(self.loops.column, first, shift)
        self.ev.vector = (self.loops.column[-1], lanes) if lanes > 1 else None
