"""CPU schedule of products of two computed operands: a workgroup packs the columns that its tiles reuse.

As `mansard.codegen.schedules.cpu.gemm`, but the operand along the columns is not a constant. Each workgroup
copies the columns of its tiles to contiguous memory on its stack, then computes many row tiles from it: the
rows of the operand itself may be far apart and conflict in the caches.

    for column tile, for block of row tiles:                    one workgroup
        panel[c][k] = w[k, column + c]
        for row tile of the block: as in gemm.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.common.contraction import Shape
from mansard.codegen.schedules.cpu.gemm import Ahead, StackPanels
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile, tiles
from mansard.codegen.schedules.cpu.packed_weights import Weights
from mansard.dtypes import DType
from mansard.ir.panels import Panels

SCRATCH_BYTES = 192 << 10
"""The most bytes that a workgroup packs: less than a stack or a second-level cache holds."""
MIN_ROWS = 32
"""With fewer rows, packing the columns does not pay."""
MIN_WORKGROUPS = 32
"""The number of workgroups with which eight cores are balanced."""


@dataclass(frozen=True)
class Dense:
    """The operand to pack: its read in the contraction, and its extents as reduced x columns."""

    read: Read
    panels: Panels


def find(nest: Nest, root: Root, shape: Shape) -> Dense | None:
    """The operand along the columns of a contraction in the outer form; None if this schedule cannot pack
    it."""
    body = root.op.body
    if root.op.combiner != "add" or body.dtype is not DType.F32 or shape.column is None or shape.row is None:
        return None
    column, row = shape.column[-1], shape.row[-1]
    reads = [(read, dict(read.address.terms)) for read in nest.reads(root) if read.address is not None]
    along = [read for read, terms in reads if column in terms and row not in terms]
    extents = [nest.total(group) for group in (*shape.reduced, shape.column)]
    sizes = [extent for extent in extents if isinstance(extent, int)]
    if len(along) != 1 or len(sizes) != len(extents) or estimate(nest.total(shape.row)) < MIN_ROWS:
        return None
    (read,) = along
    *reduced, columns = sizes
    alone = sum(other.value is read.value for other, _ in reads) == 1
    packed = math.prod(reduced) * 4
    if not alone or read.value.type.dtype is not DType.F32 or columns < 16 or packed * 16 > SCRATCH_BYTES:
        return None
    if any(column in terms and row in terms for _, terms in reads):
        return None
    return Dense(read, Panels((columns, 1), tuple((extent, 0) for extent in reduced), width=0))


def candidates(nest: Nest, shape: Shape, dense: Dense, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in _tiles(nest, shape, dense, target)]


def _tiles(nest: Nest, shape: Shape, dense: Dense, target: KernelTarget) -> list[RegisterTile]:
    assert shape.row is not None
    rows, panels = estimate(nest.total(shape.row)), dense.panels
    candidates = tiles(rows, panels.columns[0], panels.depth, target)
    fitting = [t for t in candidates if t.columns * t.lanes * panels.depth * 4 <= SCRATCH_BYTES]
    return [replace(t, block=_block(t, rows, panels.columns[0])) for t in fitting]


def _block(tile: RegisterTile, rows: int, columns: int) -> int:
    """Row tiles of a workgroup: as many as leave enough workgroups to balance the cores."""
    blocks = MIN_WORKGROUPS * tile.columns * tile.lanes // columns
    return -(-rows // (tile.rows * max(1, min(blocks, rows // MIN_ROWS))))


def schedule(
    nest: Nest,
    target: KernelTarget,
    name: str,
    shape: Shape,
    dense: Dense,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of a contraction that `find` accepts; ``parameters`` is one of `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = RegisterTile.of(parameters, target) if parameters else _tiles(nest, shape, dense, target)[0]
    return _DenseGemm(Frame(nest, target, name), root, shape, dense, tile).run()


class _DenseGemm(StackPanels):
    def __init__(self, frame: Frame, root: Root, shape: Shape, dense: Dense, tile: RegisterTile) -> None:
        panels = replace(dense.panels, width=tile.lanes)
        position = frame.nest.dispatch.inputs.index(dense.read.value)
        super().__init__(frame, root, shape, Weights(dense.read.value, position, panels), tile)
        self.read = dense.read
        self.ev.scratch = self.b.shared(DType.F32, tile.columns * panels.depth * tile.lanes)

    def run(self) -> Scheduled:
        """The finished kernel, without packed inputs."""
        return replace(super().run(), packed={})

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around a workgroup's row tiles of a column tile: its columns are copied to the scratch memory."""
        b = self.b
        columns = self.columns(b.mul(column_tile, b.idx(self.tile.columns)), vectors)
        with self.ev.scope():
            self._copy(0, columns, self.partial(vectors) if last else self.tile.lanes)
        yield

    def _copy(self, level: int, columns: Sequence[KValue], partial: int) -> None:
        b, ev, lanes = self.b, self.ev, self.tile.lanes
        if level < len(self.shape.reduced):
            group = self.shape.reduced[level]
            with b.for_(0, ev.dim(self.nest.total(group))) as loop, ev.scope():
                ev.bind(group, loop.index)
                self._copy(level + 1, columns, partial)
            return
        assert ev.scratch is not None
        place = b.mul(self.position(), b.idx(lanes))
        for number, (column, panel) in enumerate(zip(columns, self.panels(place, len(columns)), strict=True)):
            to, offset = b.add(place, panel), 0
            count = partial if number == len(columns) - 1 else lanes
            if count < lanes:
                b.store(ev.scratch, to, b.const(0.0, DType.F32, lanes))
            while offset < count:
                width = power_of_two_below(count - offset)
                ev.bind(self.column, b.add(column, b.idx(offset)))
                ev.vector = (self.column[-1], width) if width > 1 else None
                assert self.read.address is not None
                b.store(ev.scratch, b.add(to, b.idx(offset)), ev.load(self.read.value, self.read.address))
                offset += width

    def _ahead(self, row_tile: KValue, vector: KValue, vectors: int) -> Ahead | None:
        return None
