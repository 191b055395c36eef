"""CPU schedule of products of many rows of floats with weights of 4- and 8-bit integers, on CPUs that do not
multiply pairs of bf16: a workgroup unpacks the weights of its tiles once.

As `mansard.codegen.schedules.cpu.quantised.gemm`, whose panels it reads; but codes become f32, with all that
applies to them, in contiguous memory on the workgroup's stack, from which many row tiles are computed:

    for column tile:                                            one workgroup
        panel[c][k] = ((codes[c][k] - zero[c]) * scale[c] + offset[c]) * ...
        for row tile: as in gemm.py
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.cpu.gemm import Ahead, StackPanels
from mansard.codegen.schedules.cpu.gemm_runtime_packed import MIN_ROWS, SCRATCH_BYTES
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile, tiles
from mansard.codegen.schedules.cpu.quantised.gemm import QuantisedGemm, QuantisedWeights
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

F32 = DType.F32
MIN_WORKGROUPS = 16
"""Column tiles with which a few cores are balanced; with fewer, the row tiles are shared out too."""


def applies(nest: Nest, weights: QuantisedWeights, target: KernelTarget) -> bool:
    """Whether this schedule takes a product, and is faster than unpacking for each row tile."""
    product = weights.product
    if weights.step != 1 or product.row is None or estimate(nest.total(product.row)) < MIN_ROWS:
        return False
    if nest.choosing != nest.fixed:  # a sum over several matrices would need all of them unpacked
        return False
    (root,) = (r for r in nest.roots if r.reduces)
    rows = [*product.row, *(loop for group in product.rest for loop in group)]
    differ = any(varies(nest, root, node, rows) for node in product.applied)
    return not differ and bool(_tiles(nest, weights, target))


def varies(nest: Nest, root: Root, node: Scalar, loops: Sequence[int]) -> bool:
    """Whether a part of the body has other values along some loops, or reads at computed places."""
    reads, uses = nest.part_reads(root, node)
    addresses = [*(read.address for read in reads), *uses]
    return any(at is None or any(loop in loops for loop, _ in at.terms) for at in addresses)


def candidates(nest: Nest, weights: QuantisedWeights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in _tiles(nest, weights, target)]


def _tiles(nest: Nest, weights: QuantisedWeights, target: KernelTarget) -> list[RegisterTile]:
    assert weights.product.row is not None
    rows, panels = estimate(nest.total(weights.product.row)), weights.weights.panels
    fitting = []
    for tile in tiles(rows, panels.columns[0], panels.depth, target):
        if tile.columns * tile.lanes * panels.depth * 4 > SCRATCH_BYTES:
            continue
        row_tiles = -(-rows // tile.rows)
        column_tiles = -(-panels.columns[0] // (tile.columns * tile.lanes))
        parts = min(-(-MIN_WORKGROUPS // column_tiles), max(1, rows // MIN_ROWS))
        fitting.append(replace(tile, block=-(-row_tiles // parts)))
    return fitting


def schedule(
    nest: Nest,
    target: KernelTarget,
    name: str,
    weights: QuantisedWeights,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of a contraction for which `applies` is True; ``parameters`` is one of `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = RegisterTile.of(parameters, target) if parameters else _tiles(nest, weights, target)[0]
    return _UnpackedGemm(Frame(nest, target, name), root, weights, tile).run()


class _UnpackedGemm(StackPanels, QuantisedGemm):
    def __init__(self, frame: Frame, root: Root, weights: QuantisedWeights, tile: RegisterTile) -> None:
        super().__init__(frame, root, weights, tile)
        self.scratch = self.b.shared(F32, tile.columns * tile.lanes * self.weights.panels.depth)

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around the row tiles of a column tile, whose weights are unpacked first."""
        vector = self.b.mul(column_tile, self.b.idx(self.tile.columns))
        columns, places = self.columns(vector, vectors), QuantisedGemm.panels(self, vector, vectors)
        with self.ev.scope():
            for number, (column, place) in enumerate(zip(columns, places, strict=True)):
                unpack = functools.partial(self._unpack, number, column, place)
                self._loops(self.shape.reduced[:-1], [], unpack)
        yield

    def _unpack(self, number: int, column: KValue, place: KValue, _: Sequence[KValue]) -> list[KValue]:
        """Store one group of a vector of columns, whose codes lie at ``place``."""
        b, ev, product, multiply = self.b, self.ev, self.product, self.multiply
        inner, lanes = product.reduced[-1], self.tile.lanes
        ev.bind(inner, b.idx(0))
        ev.places = {v: self._factor_place(factor, column) for v, factor in self.found.factors.items()}
        ev.bind(self.column, column)
        ev.vector = (self.column[-1], lanes)
        zero, offset = (self._value(n) if n is not None else None for n in (product.zero, product.offset))
        scales = [
            multiply.multiplied([self._value(n) for n in nodes]) for nodes in (product.inner, product.outer)
        ]
        ev.places, ev.vector = {}, None
        memory = b.bindings[ev.binding_of[self.weights.value]]
        with b.for_(0, ev.dim(self.nest.total(inner))) as loop, ev.scope():
            ev.bind(inner, loop.index)
            position = self.position()
            at = b.add(place, b.mul(position, b.idx(self.weights.panels.width)))
            weight = multiply.codes(memory, at)
            if zero is not None:
                weight = b.sub(weight, b.splat(zero, lanes))
            if scales[0] is not None:
                weight = b.mul(weight, b.splat(scales[0], lanes))
            if offset is not None:
                weight = b.add(weight, b.splat(offset, lanes))
            if scales[1] is not None:
                weight = b.mul(weight, b.splat(scales[1], lanes))
            to = b.add(b.mul(position, b.idx(lanes)), b.idx(number * self.weights.panels.depth * lanes))
            b.store(self.scratch, to, weight)
        return []

    def _accumulate(
        self,
        rows: Sequence[KValue],
        columns: Sequence[KValue],
        panels: Sequence[KValue],
        ahead: Ahead | None,
    ) -> Sequence[KValue]:
        b, lanes = self.b, self.tile.lanes
        inits = [b.const(0.0, F32, lanes) for _ in range(len(rows) * len(columns))]

        def step(carried: Sequence[KValue]) -> Sequence[KValue]:
            depth = b.mul(self.position(), b.idx(lanes))
            weights = [b.load(self.scratch, b.add(panel, depth), lanes) for panel in panels]
            out = []
            for r, row in enumerate(rows):
                assert self.shape.row is not None
                self.ev.bind(self.shape.row, row)
                x = self.multiply.x(self.ev)
                totals = carried[r * len(columns) : (r + 1) * len(columns)]
                out += [b.fma(x, weight, total) for weight, total in zip(weights, totals, strict=True)]
            return out

        return self._reduced(0, inits, step, None)
