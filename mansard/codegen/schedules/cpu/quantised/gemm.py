"""CPU schedule of products with weights of 4- and 8-bit integers in groups (`mansard.ir.quantised_weight`).

As `mansard.codegen.schedules.cpu.gemm`, with panels of codes, which are unpacked in registers, and panels of
the groups' scales. Within a group x and codes are multiplied and added without the scales:

    for group of K:
        sums = 0
        for k in group: sums[r][c] += x[row + r, k] . panel[c][k]        codes as integers or floats
        accumulators[r][c] += (sums[r][c] - zero[c] * sum of x[row + r]) * scale[c]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.chosen_matrices import find_matrices
from mansard.codegen.schedules.common.contraction import Group, Shape
from mansard.codegen.schedules.common.dequantised import DequantisedProduct, dequantised_product
from mansard.codegen.schedules.cpu.gemm import Ahead, Gemm
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH, RegisterTile
from mansard.codegen.schedules.cpu.packed_weights import Weights, panels_of
from mansard.codegen.schedules.cpu.quantised.dot import MIN_TASKS
from mansard.codegen.schedules.cpu.quantised.multiplication import (
    LINE,
    PREFETCH_BYTES,
    WORD_CODES,
    Multiplication,
    dots_of_bytes,
    group_of,
    parts_of_words,
    step_of,
)
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar
from mansard.ir.types import Value

F32 = DType.F32
UNROLLED = 16
"""Steps of a group that are emitted one after another; more are a loop."""
MAX_ROWS, MAX_COLUMNS = 12, 4
FITTING = 18
"""Cells of a register tile up to which few registers are spilled."""
WORKGROUP_CYCLES = 2000
"""The minimum work of a workgroup, whose start costs some 50 cycles."""
UNPACK_CYCLES = {(4, 8): 0.5, (4, 4): 2.0, (2, 8): 2.25, (2, 4): 1.5, (1, 8): 1.5, (1, 4): 1.75}
"""Cycles to unpack one vector of codes, by elements of K in it and bits of a code."""
WIDENED_CYCLES = 1.5
"""The same for a vector of bytes where the CPU multiplies pairs of 16 bits (AVX2)."""
X_CYCLES, SEPARATE_X_CYCLES = 0.1, 0.5
"""Cycles of an element of x for each row: as an operand from memory, and by an instruction of its own, which
CPUs with 16 vector registers need (measured on Zen 3)."""
_Sums = list[KValue]


@dataclass(frozen=True)
class PackedFactor:
    """A packed constant with one number for each group, and the reduced loops that index it."""

    weights: Weights
    loops: tuple[Group, ...]


@dataclass(frozen=True)
class QuantisedWeights:
    """A product that this schedule takes, with the layouts of its constants."""

    product: DequantisedProduct
    step: int
    """Reduced positions of one multiplication: the group of the panels, or a part of it (`Panels.parts`)."""
    weights: Weights
    factors: dict[Value, PackedFactor]
    """The packed scales, zeros and offsets."""

    @property
    def shape(self) -> Shape:
        """The loops, as the other schedules of products have them."""
        p = self.product
        return Shape("outer", p.column, p.row, list(p.rest), list(p.reduced))


def find(nest: Nest, root: Root, target: KernelTarget) -> QuantisedWeights | None:
    """The weights of a product of this form if they may be packed, otherwise None."""
    product = dequantised_product(nest, root)
    if product is None:
        return None
    inner, step = nest.total(product.reduced[-1]), step_of(nest, product, target)
    if not divides(inner, step):
        return None
    codes = product.codes.value
    parts = parts_of_words(step, target) if codes.type.dtype.bits == 4 and divides(inner, WORD_CODES) else 1
    group = WORD_CODES if parts > 1 else group_of(step, codes.type.dtype.bits, target)
    # Other reduced loops choose the matrix, around those that run over one.
    reduced = tuple(g for g in product.reduced if g[-1] in dict(product.codes.address.terms))
    if product.reduced[-len(reduced) :] != reduced:
        return None
    panels = panels_of(nest, codes, product.column, reduced, WIDTH, group, parts=parts)
    if panels is None or panels.columns[0] < WIDTH // 2:
        return None
    weights = Weights(codes, nest.dispatch.inputs.index(codes), panels)
    return QuantisedWeights(product, step, weights, _factors(nest, root, product))


def _factors(nest: Nest, root: Root, product: DequantisedProduct) -> dict[Value, PackedFactor]:
    """Constants other than the codes that can be packed in the order in which they are read."""
    reads = [read for node in product.applied for read in nest.part_reads(root, node)[0]]
    packed = {}
    for read in reads:
        terms = dict(read.address.terms) if read.address is not None else {}
        loops = [g for g in product.reduced if g[-1] in terms]
        if read.value.type.dtype.bits >= 8 and loops:
            panels = panels_of(nest, read.value, product.column, loops, WIDTH)
            if panels is not None:
                weights = Weights(read.value, nest.dispatch.inputs.index(read.value), panels)
                packed[read.value] = PackedFactor(weights, tuple(loops))
    return packed


def candidates(nest: Nest, found: QuantisedWeights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in _tiles(nest, found, target)]


def _tiles(nest: Nest, found: QuantisedWeights, target: KernelTarget) -> list[RegisterTile]:
    shape, panels = found.shape, found.weights.panels
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    lanes = min(target.lanes(F32), WIDTH)
    vectors = -(-panels.columns[0] // lanes)
    depth = panels.depth // found.step
    costs = {}
    # One row is bound by memory, which some CPUs read faster in one stream than in several that alternate:
    # gate and up of Qwen3-0.6B take 0.72 to 0.79 of the time of four panels at once on Zen 4 (two cores),
    # but 1.8 times as long on Emerald Rapids. Codes of 4 bits that become floats are bound by instructions,
    # which are fewer for two groups of a panel side by side (`QuantisedGemm._in_pairs`; 0.95 of the time).
    of_floats = found.weights.value.type.dtype.bits == 4 and found.step < 4
    streams = 1 if of_floats else min(target.memory_streams, max(1, vectors // MIN_TASKS))
    most = min(vectors, MAX_COLUMNS, streams * WIDTH // lanes if rows == 1 else vectors)
    for r in range(1, min(rows, MAX_ROWS) + 1):
        for c in range(1, most + 1):
            if r * c + c + 1 <= target.vector_registers:
                cycles = depth * _step_cycles(nest, found, target, r, c)
                costs[r, c] = -(-rows // r) * -(-vectors // c) * cycles, int(WORKGROUP_CYCLES / cycles)
    ordered = sorted(costs, key=lambda size: (costs[size][0], -size[1]))
    return [RegisterTile(r, c, lanes, max(1, min(-(-rows // r), costs[r, c][1]))) for r, c in ordered]


def _step_cycles(nest: Nest, found: QuantisedWeights, target: KernelTarget, rows: int, columns: int) -> float:
    """Cycles of one multiplication for every cell, as measured on Zen 5: two products a cycle, unpacking,
    then what each cell costs at the end of a group, and more where accumulators do not fit the registers."""
    bits, cells = found.weights.value.type.dtype.bits, rows * columns
    group = estimate(nest.total(found.product.reduced[-1])) / found.step
    finish = 0.0 if found.product.plain else 2.3 * cells / group
    spills = 1.1 if cells > FITTING and not found.product.plain else 1.0
    few = target.vector_registers < 32
    unpack = UNPACK_CYCLES[found.step, bits]
    if bits == 8 and found.step == 4 and few and not dots_of_bytes(target):
        unpack = WIDENED_CYCLES
    x = SEPARATE_X_CYCLES if few and found.step == 1 else X_CYCLES
    return (cells / 2 + unpack * columns + finish + x * rows) * spills


def schedule(
    nest: Nest,
    target: KernelTarget,
    name: str,
    found: QuantisedWeights,
    parameters: Parameters | None = None,
) -> Scheduled:
    """The kernel of a contraction that `find` accepts; ``parameters`` is one of `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = RegisterTile.of(parameters, target) if parameters else _tiles(nest, found, target)[0]
    return QuantisedGemm(Frame(nest, target, name), root, found, tile).run()


class QuantisedGemm(Gemm):
    """Emits the kernel of a product for one register tile."""

    def __init__(self, frame: Frame, root: Root, found: QuantisedWeights, tile: RegisterTile) -> None:
        super().__init__(frame, root, found.shape, found.weights, tile)
        self.found, self.product = found, found.product
        size, parts = (tile.rows, tile.columns), found.weights.panels.parts
        apart = found.weights.panels.group < found.step
        self.multiply = Multiplication(
            frame, root, self.product, found.step, tile.lanes, size, parts=parts, apart=apart
        )

    def run(self) -> Scheduled:
        """The finished kernel, with the panels of all its constants."""
        done = super().run()
        factors = [factor.weights for factor in self.found.factors.values()]
        packed = {w.position: w.panels for w in (self.weights, *factors)}
        return Scheduled(done.kernel, done.params, done.grid, packed)

    def _ahead(self, row_tile: KValue, vector: KValue, vectors: int) -> Ahead | None:
        return None

    def _accumulate(
        self,
        rows: Sequence[KValue],
        columns: Sequence[KValue],
        panels: Sequence[KValue],
        ahead: Ahead | None,
    ) -> Sequence[KValue]:
        b, lanes = self.b, self.tile.lanes
        tile = _Tile(rows, columns, panels)
        inits = [b.const(0.0, F32, lanes) for _ in range(len(rows) * len(columns))]
        groups = self.shape.reduced[:-1]
        if self._in_pairs(tile, groups):
            return self._loops(groups[:-1], inits, lambda carried: self._pairs(tile, groups[-1], carried))
        return self._loops(groups, inits, lambda carried: self._group(tile, carried))

    def _in_pairs(self, tile: _Tile, groups: Sequence[Group]) -> bool:
        """Whether two groups are summed side by side: with one cell its sum would be waited for at every
        step. What they give is added in their order, so that it has the same bits."""
        size, multiply = self.nest.total(self.product.reduced[-1]), self.multiply
        few = len(tile.rows) * len(tile.columns) == 1 and len(groups) > 0
        whole = isinstance(size, int) and size // self.found.step <= UNROLLED and not multiply.short
        apart = not multiply.moved and not self._direct
        return few and whole and apart and divides(self.nest.total(groups[-1]), 2)

    def _pairs(self, tile: _Tile, head: Group, inits: Sequence[KValue]) -> _Sums:
        """The accumulators after all groups, two at a time."""
        b, ev = self.b, self.ev
        size, groups = self.nest.total(self.product.reduced[-1]), self.nest.total(head)
        assert isinstance(size, int)
        with b.for_(0, ev.dim(groups), 2, inits) as loop, ev.scope():
            halves = (loop.index, b.add(loop.index, b.idx(1)))
            states: list[tuple[_Steps, _Sums]] = []
            for half in halves:
                ev.bind(head, half)
                places = self._places(tile, size)
                states.append((_Steps(places), self._starts(tile, size, [])))
            for k in range(0, size, self.found.step):
                for number, half in enumerate(halves):
                    ev.bind(head, half)
                    steps, sums = states[number]
                    states[number] = steps, self._advance(tile, steps, sums, k, b.idx(0))
            out: _Sums = list(loop.carried)
            for half, (_, sums) in zip(halves, states, strict=True):
                ev.bind(head, half)
                ev.bind(self.product.reduced[-1], b.idx(0))
                out = self._ended(tile, out, sums)
            loop.yield_(*out)
        return list(loop.results)

    def _loops(
        self, groups: Sequence[Group], inits: Sequence[KValue], emit: Callable[[Sequence[KValue]], _Sums]
    ) -> _Sums:
        if not groups:
            with self.ev.scope():
                return emit(inits)
        head, *rest = groups
        with self.b.for_(0, self.ev.dim(self.nest.total(head)), inits=inits) as loop, self.ev.scope():
            self.ev.bind(head, loop.index)
            find_matrices(self.ev)
            loop.yield_(*self._loops(rest, loop.carried, emit))
        return list(loop.results)

    def _group(self, tile: _Tile, carried: Sequence[KValue]) -> _Sums:
        """The accumulators after one group."""
        size = self.nest.total(self.product.reduced[-1])
        assert isinstance(size, int)
        places = self._places(tile, size)
        if self._direct:
            return self._steps(tile, places, self._starts(tile, size, carried), size)
        return self._ended(tile, carried, self._steps(tile, places, self._starts(tile, size, []), size))

    @property
    def _direct(self) -> bool:
        """Whether groups are added to the accumulators step by step, since nothing is applied to them."""
        return self.product.plain and self.multiply.sum is F32

    def _places(self, tile: _Tile, size: int) -> list[KValue]:
        """Where the codes of the bound group begin in each panel, with those further on under way."""
        b = self.b
        self.ev.bind(self.product.reduced[-1], b.idx(0))
        start = b.mul(self.position(), b.idx(self.weights.panels.width))
        places = [b.add(panel, start) for panel in tile.panels]
        self._prefetch(places, size)
        return places

    def _starts(self, tile: _Tile, size: int, carried: Sequence[KValue]) -> _Sums:
        """The sums before a group: those of the cells, behind them what columns have too much, then the sums
        of rows."""
        multiply, cells = self.multiply, len(tile.rows) * len(tile.columns)
        inits = list(carried) or [multiply.zero() for _ in range(cells)]
        inits += [multiply.zero() for _ in tile.columns if multiply.moved]
        inits += [multiply.row_start(size) for _ in tile.rows if multiply.sums]
        return inits

    def _ended(self, tile: _Tile, carried: Sequence[KValue], sums: _Sums) -> _Sums:
        """The accumulators with the sums of a group."""
        multiply, columns = self.multiply, len(tile.columns)
        cells = len(tile.rows) * columns
        excess = sums[cells : cells + columns] if multiply.moved else [None] * columns
        totals = sums[-len(tile.rows) :] if multiply.sums else [None] * len(tile.rows)
        for i in range(cells):
            r, c = divmod(i, columns)
            sums[i] = multiply.corrected(sums[i], excess[c], totals[r])
        return self._scaled(tile, carried, sums[:cells], totals if self.product.sums else None)

    def _prefetch(self, places: Sequence[KValue], size: int) -> None:
        memory = self.b.bindings[self.ev.binding_of[self.weights.value]]
        count = size * self.weights.panels.width * self.weights.value.type.dtype.bits // 8
        if count > PREFETCH_BYTES:
            return
        for place in places:
            for byte in range(0, count, LINE):
                self.multiply.prefetch(memory, place, byte)

    def _steps(self, tile: _Tile, places: Sequence[KValue], inits: _Sums, size: int) -> _Sums:
        """The sums over one group of ``size`` elements of K."""
        b, ev, step = self.b, self.ev, self.found.step
        inner, width = self.product.reduced[-1], self.weights.panels.width
        if size // step <= UNROLLED:
            ev.bind(inner, b.idx(0))
            return self._unrolled(tile, places, inits, range(0, size, step), b.idx(0))
        unroll = math.gcd(size // step, 4)
        with b.for_(0, size, step * unroll, inits) as loop, ev.scope():
            here = [b.add(place, b.mul(loop.index, b.idx(width))) for place in places]
            steps = range(0, step * unroll, step)
            loop.yield_(*self._unrolled(tile, here, loop.carried, steps, loop.index))
        return list(loop.results)

    def _unrolled(
        self, tile: _Tile, places: Sequence[KValue], sums: Sequence[KValue], steps: range, start: KValue
    ) -> _Sums:
        """The sums after some steps, whose positions of K are counted from ``start`` on."""
        multiply, sums, walk = self.multiply, list(sums), _Steps(places)
        for first in range(0, len(steps), multiply.most_steps):
            added = multiply.begun(sums)
            for k in steps[first : first + multiply.most_steps]:
                added = self._advance(tile, walk, added, k, start)
            sums = multiply.ended(sums, added)
        return sums

    def _advance(self, tile: _Tile, walk: _Steps, sums: Sequence[KValue], k: int, start: KValue) -> _Sums:
        """The sums after the step at position ``k`` of K, counted from ``start`` on."""
        multiply, panels = self.multiply, self.weights.panels
        if k % panels.group == 0:
            memory, offset = self.b.bindings[self.ev.binding_of[self.weights.value]], k * panels.width
            walk.parts = [multiply.parts(memory, place, offset) for place in walk.places]
        self.ev.bind(self.product.reduced[-1], start, k)
        return self._step(tile, [part[k % panels.group // multiply.step] for part in walk.parts], sums)

    def _step(self, tile: _Tile, codes: Sequence[KValue], sums: Sequence[KValue]) -> _Sums:
        """One multiplication with a vector of codes for every cell, and for the sum of every row."""
        multiply, out = self.multiply, list(sums)
        cells = len(tile.rows) * len(codes)
        if multiply.moved:
            for c, vector in enumerate(codes):
                out[cells + c] = multiply.excess(vector, out[cells + c])
            cells += len(codes)
        for r, row in enumerate(tile.rows):
            if self.shape.row is not None:
                self.ev.bind(self.shape.row, row)
            x = multiply.x(self.ev)
            for c, vector in enumerate(codes):
                cell = r * len(codes) + c
                out[cell] = multiply.add(x, vector, out[cell])
            if multiply.sums:
                out[cells + r] = multiply.add(x, multiply.ones(), out[cells + r])
        return out

    def _scaled(
        self,
        tile: _Tile,
        carried: Sequence[KValue],
        sums: Sequence[KValue],
        totals: Sequence[KValue | None] | None,
    ) -> _Sums:
        """The accumulators plus the groups' sums, with zeros, scales and offsets."""
        out = list(carried)
        for c, column in enumerate(tile.columns):
            self.ev.places = {
                value: self._factor_place(factor, column) for value, factor in self.found.factors.items()
            }
            for r, row in enumerate(tile.rows):
                cell = r * len(tile.columns) + c
                with self.ev.scope():
                    self._bind(row, column, self.tile.lanes)
                    total = totals[r] if totals else None
                    scale = self.multiply.multiplied([self._value(n) for n in self.product.scales])
                    out[cell] = self.multiply.scaled(self._value, out[cell], sums[cell], total, scale)
        self.ev.places = {}
        return out

    def _value(self, node: Scalar) -> KValue:
        return self.ev.part(self.root, node)

    def _factor_place(self, factor: PackedFactor, column: KValue) -> KValue:
        """Where the vector of a packed factor lies, for the bound group and the columns from ``column``
        on."""
        b, panels = self.b, factor.weights.panels
        position, step = b.idx(0), 1
        for group, (extent, _) in zip(reversed(factor.loops), reversed(panels.reduced), strict=True):
            position = b.add(position, b.mul(self.ev.loops[group[-1]], b.idx(step)))
            step *= extent
        place = b.mul(position, b.idx(panels.width))
        if self.tile.lanes == panels.width:
            return b.add(place, b.mul(column, b.idx(panels.depth)))
        within = b.binary("rem", column, b.idx(panels.width))
        whole = b.mul(b.sub(column, within), b.idx(panels.depth))
        return b.add(b.add(place, whole), within)


@dataclass(frozen=True)
class _Tile:
    """The rows and the vectors of columns of a register tile, and the addresses of their codes."""

    rows: Sequence[KValue]
    columns: Sequence[KValue]
    panels: Sequence[KValue]


@dataclass
class _Steps:
    """A walk over the codes of a group: where they begin in each panel, and those of the steps that lie side
    by side."""

    places: Sequence[KValue]
    parts: list[tuple[KValue, ...]] = field(default_factory=list)
