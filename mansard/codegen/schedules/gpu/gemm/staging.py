"""Staging of one factor of a product, tile by tile, from global to shared memory.

A tile is ``side`` rows or columns by ``depth`` reduced positions, stored in shared memory as
``[depth][side]`` in vectors of four, so that an invocation reads four of its rows (or columns) at once. The
factor's whole expression is staged: maps fused before the product, conversions and padding are computed here,
once for all results that use the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.base import Frame, divides
from mansard.codegen.schedules.gpu.gemm.product import LANES, Factor
from mansard.dims import DimLike

PAD = 1
"""Vectors of padding between the rows of a tile that is stored element by element, to reduce bank
conflicts."""


@dataclass(frozen=True)
class TileAddress:
    """A vector of a tile that an invocation moves: its position along the side and along the depth."""

    side: KValue
    depth: KValue
    coordinates: Sequence[KValue]
    """Values of the loops of the side."""
    inside: KValue | None
    """Whether this position is within the tile; None: always."""


class Stager:
    """Moves tiles of one factor. ``threads`` invocations share a tile; ``thread`` is the number of this
    one."""

    def __init__(
        self,
        frame: Frame,
        root: Root,
        factor: Factor,
        total_depth: DimLike,
        side: int,
        depth: int,
        thread: KValue,
        threads: int,
    ) -> None:
        self.frame, self.root, self.factor, self.total_depth = frame, root, factor, total_depth
        self.side, self.depth, self.thread, self.threads = side, depth, thread, threads
        self.places: list[TileAddress] = []

    @property
    def stride(self) -> int:
        """The stride from one depth to the next in shared memory, in vectors."""
        return row_vectors(self.factor, self.side)

    def start(self, first: KValue) -> None:
        """Prepare for tiles of the rows or columns from ``first`` on."""
        frame, b, factor = self.frame, self.frame.b, self.factor
        lanes, along_side = factor.lanes, factor.along == "side"
        fast_count = (self.side if along_side else self.depth) // lanes
        slow_count = self.depth if along_side else self.side
        self.places = []
        for fast, slow, inside in self._distribute(fast_count, slow_count):
            side, depth = (fast, slow) if along_side else (slow, fast)
            if along_side:
                side = b.mul(side, b.idx(lanes))
            else:
                depth = b.mul(depth, b.idx(lanes))
            at = b.add(first, side)
            if not divides(factor.extent, self.side):
                last = dims.add(factor.extent, -lanes if along_side else -1)
                at = frame.minimum(at, frame.ev.dim(last))
            totals = [frame.nest.total(group) for group in factor.groups]
            self.places.append(TileAddress(side, depth, frame.decode(at, totals), inside))

    def _distribute(self, fast: int, slow: int) -> list[tuple[KValue, KValue, KValue | None]]:
        """The positions of this invocation in a grid of powers of two; neighbours are neighbours along
        ``fast``."""
        b, thread, threads = self.frame.b, self.thread, self.threads
        count = fast * slow
        if threads <= fast:
            return [
                (b.add(thread, b.idx(i * threads % fast)), b.idx(i * threads // fast), None)
                for i in range(count // threads)
            ]
        low = b.binary("and", thread, b.idx(fast - 1))
        high = b.binary("shr", thread, b.idx(fast.bit_length() - 1))
        if threads <= count:
            step = threads // fast
            return [(low, b.add(high, b.idx(i * step)), None) for i in range(count // threads)]
        inside = b.compare("lt", high, b.idx(slow))
        return [(low, self.frame.minimum(high, b.idx(slow - 1)), inside)]

    def load(self, base: KValue, exact: bool) -> list[KValue]:
        """The elements of its positions at the depths from ``base`` on, zero beyond the depth unless
        ``exact``.

        ``base`` is a multiple of the tile's depth and the same for all of a group.
        """
        b, ev, factor = self.frame.b, self.frame.ev, self.factor
        vector_place = self._clamped(base, exact, self.depth) if self._only_innermost_varies else None
        alone = factor.lanes if factor.along == "depth" else 1
        out = []
        for place in self.places:
            if vector_place is not None:
                (*outer, last), inside = vector_place
                depths = [*outer, b.add(last, place.depth)]
            else:
                depths, inside = self._clamped(b.add(base, place.depth), exact, alone)
            with ev.scope():
                for group, value in zip(factor.groups, place.coordinates, strict=True):
                    ev.bind(group, value)
                for group, value in zip(factor.depth, depths, strict=True):
                    ev.bind(group, value)
                if factor.lanes > 1:
                    moving = factor.groups if factor.along == "side" else factor.depth
                    ev.vector, ev.multiple = (moving[-1][-1], factor.lanes), factor.lanes
                value = b.splat(ev.part(self.root, factor.part), factor.lanes)
            if inside is not None:
                zero = b.const(0, value.type.dtype, factor.lanes)
                value = b.select(b.splat(inside, factor.lanes), value, zero)
            out.append(value)
        return out

    @property
    def _only_innermost_varies(self) -> bool:
        """Whether a tile's depths differ in the innermost loop only: the others are then decoded once."""
        return divides(self.frame.nest.total(self.factor.depth[-1]), self.depth)

    def _clamped(self, depth: KValue, exact: bool, count: int) -> tuple[list[KValue], KValue | None]:
        """The loops at the first of ``count`` depths that are all in range or all out of range."""
        frame, b, inside = self.frame, self.frame.b, None
        if not exact:
            inside = b.compare("lt", depth, frame.ev.dim(self.total_depth))
            depth = frame.minimum(depth, frame.last_place(self.total_depth, count))
        return frame.decode(depth, [frame.nest.total(group) for group in self.factor.depth]), inside

    def store(self, values: Sequence[KValue], memory: SharedMemory, origin: KValue) -> None:
        """Store the vectors from `load` in the tile that starts at vector ``origin``."""
        b = self.frame.b
        for place, value in zip(self.places, values, strict=True):
            if place.inside is None:
                self._store(place, value, memory, origin)
                continue
            with b.if_(place.inside):
                self._store(place, value, memory, origin)

    def _store(self, place: TileAddress, value: KValue, memory: SharedMemory, origin: KValue) -> None:
        b, factor = self.frame.b, self.factor
        vector = b.binary("shr", place.side, b.idx(2))
        at = b.add(b.add(b.mul(place.depth, b.idx(self.stride)), vector), origin)
        if factor.along == "side" and factor.lanes == LANES:
            b.store(memory, at, value)
            return
        lane = b.binary("and", place.side, b.idx(LANES - 1))
        for i in range(factor.lanes):
            step = b.idx(i * self.stride)
            b.store_lane(memory, b.add(at, step), lane, b.extract(value, i))


def row_vectors(factor: Factor, side: int) -> int:
    """Vectors of one depth of a tile in shared memory."""
    transposed = factor.along == "depth" or factor.lanes == 1
    return side // LANES + (PAD if transposed else 0)
