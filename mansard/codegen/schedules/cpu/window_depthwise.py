"""CPU schedule of depthwise windows over channels-last bytes by dot-product instructions.

As `mansard.codegen.schedules.cpu.window`, but four neighbouring columns of the image go into one vector, the
bytes of a channel side by side, and one instruction multiplies them by four taps. Every column is loaded once
for each row of taps; where a window does not begin at a multiple of four columns, the taps are moved by as
many bytes (three taps, the second of four points)::

    columns   0   1   2   3  |  4   5   6   7
    taps      0  w0  w1  w2  |                    accumulators[1][v] += quad[0] . moved[1]

A point whose window ends in the next four takes two instructions: with three taps 1.5 on average, instead of
three multiplications, three additions and the conversions of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.common.dot_products import load_raw, low_precision_product
from mansard.codegen.schedules.cpu import window
from mansard.codegen.schedules.cpu.packed_weights import find_weights
from mansard.codegen.schedules.cpu.window import WindowLoops, Windows, WindowTile
from mansard.dtypes import DType

QUAD = 4
"""Bytes that one lane of a dot product multiplies."""
FEATURES = frozenset({"avx512vnni", "avx512vbmi"})
"""What makes four columns into one vector by one permutation, and multiplies them by one instruction."""
MAX_TAPS = 8


def analyse(nest: Nest, target: KernelTarget) -> WindowLoops | None:
    """The loops of a nest as a depthwise window of dot products; None if it is not one."""
    if not target.features >= FEATURES:
        return None
    loops = window.analyse(nest, target)
    if loops is None or loops.weights is None or not loops.walking or loops.inner or loops.row.dilation != 1:
        return None
    (root,) = (r for r in nest.roots if r.reduces)
    product = low_precision_product(nest, root, padded=True)
    if product is None or product.group != QUAD or loops.lanes not in (8, 16):
        return None
    factors = {product.left.value: product.left, product.right.value: product.right}
    if len(factors) != 2 or loops.weights.value not in factors:
        return None
    image = next(f for value, f in factors.items() if value is not loops.weights.value)
    steps = dict(image.address.terms)
    if image.value.type.dtype is not DType.U8 or loops.weights.value.type.dtype is not DType.I8:
        return None
    taps = nest.extents[loops.row.tap]
    if steps.get(loops.column[-1]) != 1 or not isinstance(taps, int) or not 2 <= taps <= MAX_TAPS:
        return None
    width = estimate(nest.total(loops.column))
    weights = find_weights(nest, root, loops.column, loops.reduced, width, QUAD)
    return None if weights is None else replace(loops, weights=weights, group=QUAD)


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Register tiles worth trying, the default first: points of a row in even pieces."""
    loops = analyse(nest, target)
    assert loops is not None
    length, taps = nest.extents[loops.row.outer], nest.extents[loops.row.tap]
    assert isinstance(length, int) and isinstance(taps, int)
    vectors = -(-estimate(nest.total(loops.column)) // loops.lanes)
    tiles = []
    for columns in (1, 2)[:vectors]:
        # In addition to the accumulators: the taps at each offset, four columns and what they are made of.
        room = (target.vector_registers - 4) // columns - len(_moves(taps, loops.row.stride))
        pieces = -(-length // max(1, room))
        rows = sorted({-(-length // cut) for cut in range(pieces, pieces + 3)}, reverse=True)
        tiles += [Parameters.of(rows=r, columns=columns) for r in rows if r <= max(1, room)]
    return tiles


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """One task computes rows of the image over a block of column tiles."""
    loops = analyse(nest, target)
    assert loops is not None
    frame = Frame(nest, target, name)
    (root,) = (r for r in nest.roots if r.reduces)
    return _Depthwise(frame, root, loops, parameters or candidates(nest, target)[0]).run()


def _moves(taps: int, stride: int) -> set[int]:
    """Taps less columns at the first byte of four columns, for all windows that overlap these."""
    firsts = {stride * p % QUAD for p in range(QUAD)}
    return {quad - first for first in firsts for quad in range(0, first + taps, QUAD) if quad - first > -QUAD}


class _Depthwise(Windows):
    """The kernel of a depthwise window of dot products under construction."""

    def __init__(self, frame: Frame, root: Root, loops: WindowLoops, tile: Parameters) -> None:
        super().__init__(frame, root, loops, tile)
        assert loops.weights is not None
        product = low_precision_product(frame.nest, root, padded=True)
        assert product is not None
        mine = loops.weights.value
        self.image = product.right if product.left.value is mine else product.left
        self.panels = self.b.bindings[self.ev.binding_of[mine]]
        self.taps = estimate(self.nest.extents[loops.row.tap])

    def _unrolled(self, tile: WindowTile, carried: Sequence[KValue]) -> Sequence[KValue]:
        """All taps of a row: four columns after four columns, each for every window that overlaps them."""
        stride, out = self.loops.row.stride, list(carried)
        inside = {(p, tap) for tap, points in enumerate(tile.taps_in_range.inside) for p in points}
        places = {stride * p + tap: (p, tap) for p, tap in sorted(inside)}
        self.ev.inside = True
        for v in sorted({v for _, v in tile.cells}):
            shift = self._shift(v, 1 + tile.cells[-1][1], tile.last)
            taps = self._tap_quads(tile, shift)
            for quad in range(0, max(places, default=-1) + 1, QUAD):
                columns = [places.get(quad + i) for i in range(QUAD)]
                if not any(columns):
                    continue
                image = self._image_quad(tile, columns, shift)
                for i, (p, each) in enumerate(tile.cells):
                    move = quad - stride * p
                    if each == v and -QUAD < move < self.taps:
                        out[i] = self.b.dot(image, self._moved(taps, move), out[i])
        self.ev.inside = False
        return out

    def _image_quad(self, tile: WindowTile, columns: Sequence[tuple[int, int] | None], shift: int) -> KValue:
        """Four columns of a vector's channels, the bytes of a channel side by side; zeros outside of it."""
        b, lanes = self.b, self.loops.lanes
        loaded = []
        for place in columns:
            if place is None:
                loaded.append(b.const(0, DType.U8, lanes))
                continue
            self._bind(tile.start, place[0], tile.first, shift, lanes)
            self.ev.bind([self.loops.row.tap], b.idx(place[1]))
            loaded.append(load_raw(self.ev, self.image, lanes))
        one, two, three, four = loaded
        both = tuple(range(2 * lanes))
        order = tuple(column * lanes + channel for channel in range(lanes) for column in range(QUAD))
        return b.shuffle(b.shuffle(one, two, both), b.shuffle(three, four, both), order)

    def _tap_quads(self, tile: WindowTile, shift: int) -> list[KValue]:
        """The taps of the bound row in fours, as the panels have them: zeros follow the last."""
        assert self.weights is not None
        b, count = self.b, -(-self.taps // QUAD)
        row = b.idx(0)
        for axis in self.loops.window.axes[:-1]:
            row = b.add(b.mul(row, self.ev.dim(self.nest.extents[axis.tap])), self.ev.loops[axis.tap])
        step = self.weights.panels.width * QUAD
        first = b.add(b.mul(row, b.idx(count * step)), b.mul(tile.first, b.idx(QUAD)))
        places = (b.add(first, b.idx(i * step + shift * QUAD)) for i in range(count))
        return [b.load(self.panels, place, self.loops.lanes * QUAD) for place in places]

    def _moved(self, taps: Sequence[KValue], move: int) -> KValue:
        """The taps from the one numbered ``move`` on, four for each lane; zeros where there are none."""
        first, bytes_ = divmod(move, QUAD)
        total = self.loops.lanes * QUAD
        nothing = self.b.const(0, taps[0].type.dtype, total)
        these, next_ = (taps[i] if 0 <= i < len(taps) else nothing for i in (first, first + 1))
        if not bytes_:
            return these
        order = [
            lane * QUAD + at if at < QUAD else total + lane * QUAD + at - QUAD
            for lane in range(self.loops.lanes)
            for at in range(bytes_, bytes_ + QUAD)
        ]
        return self.b.shuffle(these, next_, tuple(order))
