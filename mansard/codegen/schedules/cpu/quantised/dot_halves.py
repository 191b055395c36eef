"""CPU schedule of products of bytes with 4-bit integers that are stored row by row, as
`mansard.codegen.schedules.cpu.quantised.dot` has them: the two codes of a byte are multiplied apart.

The low halves of a vector of bytes are the codes at even positions of K, the high ones those at odd
positions. So that they need not be put in order for every column, a workgroup puts x in theirs, once, on its
stack. Codes are moved into the unsigned range by 8 (`^`); what that adds to a product, 8 times the sum of x,
is where sums of integers start:

    even[r], odd[r] = x[row + r] at even and odd positions;  start[r] = -8 * sums of x, lane by lane
    for column of my columns, for vector of K:
        halves = codes[column] ^ 0x88
        sums[r] = start[r] + even[r] . (halves & 15) + odd[r] . (halves >> 4)
        accumulators[r] += sums[r] * scale[column]          lanes may lie in several groups
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.common.dot_products import load_raw
from mansard.codegen.schedules.cpu.gemm_runtime_packed import SCRATCH_BYTES
from mansard.codegen.schedules.cpu.quantised.dot import BATCH, Rows, RowTile, default_tile
from mansard.codegen.schedules.cpu.quantised.multiplication import (
    HALF_CODE,
    LINE,
    SHORT_STEPS,
    dots_of_unsigned_bytes,
    sums_of_pairs,
)
from mansard.dtypes import DType

F32, I32, I16, I8, U8 = DType.F32, DType.I32, DType.I16, DType.I8, DType.U8
LANE_CODES = 8
"""Codes that an i32 lane adds up: four bytes of two."""
MAX_BLOCKS = 8
"""Vectors of a group that are emitted one after another."""


def applies(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `quantised.dot` would take."""
    return _batch(nest, product, target) > 0 and _scratch_bytes(nest, product) <= SCRATCH_BYTES


def schedule(nest: Nest, target: KernelTarget, name: str, product: DequantisedProduct) -> Scheduled:
    """The kernel of a product for which `applies` is True."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = default_tile(nest, product, target)
    rows = min(tile.rows, SCRATCH_BYTES // _scratch_bytes(nest, product))
    tile = replace(tile, rows=rows, columns=1, block=tile.block * tile.columns, codes=_block(target))
    return _HalvesOfRows(Frame(nest, target, name), root, product, tile).run()


def _block(target: KernelTarget) -> int:
    """Positions of K whose codes fill a vector."""
    return target.lanes(F32) * LANE_CODES


def _batch(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> int:
    """Groups of an iteration, which are whole vectors of codes; 0 where there are none, or where a product is
    of another form."""
    stored = product.stored
    if stored is None or stored.value.type.dtype is not I8 or len(product.reduced) != 2:
        return 0
    if product.codes.value.type.dtype is not DType.I4 or product.sums:
        return 0
    (outer, inner), block = product.reduced, _block(target)
    group, count = nest.total(inner), nest.total(outer)
    if not isinstance(group, int) or not isinstance(count, int) or group % LANE_CODES:
        return 0
    if block % group and (group % block or group // block > MAX_BLOCKS):
        return 0
    # A vector of several groups has them side by side.
    if any(dict(f.address.terms).get(outer[-1]) != group for f in (stored, product.codes)):
        return 0
    least = max(1, block // group)
    batches = (least << n for n in range(BATCH) if least << n <= max(least, BATCH))
    return max((batch for batch in batches if divides(count, batch)), default=0)


def _scratch_bytes(nest: Nest, product: DequantisedProduct) -> int:
    """Bytes of the stack for one row of x: its own, and an i32 for every eight of them."""
    depth = nest.total([loop for group in product.reduced for loop in group])
    assert isinstance(depth, int)
    return depth + depth // LANE_CODES * 4


class _HalvesOfRows(Rows):
    def __init__(self, frame: Frame, root: Root, product: DequantisedProduct, tile: RowTile) -> None:
        super().__init__(frame, root, product, tile)
        self.batch = _batch(self.nest, product, frame.target)
        self.outer, self.inner = product.reduced
        group, count = self.nest.total(self.inner), self.nest.total(self.outer)
        assert isinstance(group, int) and isinstance(count, int)
        self.group, self.depth, self.lanes = group, group * count, tile.codes // LANE_CODES
        self.short = sums_of_pairs(frame.target)
        # Codes from 0 to 15 are bytes of either kind: of the one that the CPU multiplies with signed x.
        self.unsigned = dots_of_unsigned_bytes(frame.target)
        self.halves = self.b.shared(I8, tile.rows * self.depth)
        self.starts = self.b.shared(I32, tile.rows * self.depth // LANE_CODES)

    def _prepare(self, rows: Sequence[KValue]) -> None:
        """Put the rows of x in the order of the codes' halves, with the sums that products start from."""
        b, ev, size, width = self.b, self.ev, self.tile.codes, self.tile.codes // 2
        ones = self._factor(b.const(1, U8, width))
        assert self.product.stored is not None
        for r, row in enumerate(rows):
            with b.for_(0, self.depth // self.group, self.batch) as loop, ev.scope():
                if self.product.row is not None:
                    ev.bind(self.product.row, row)
                for at in self._blocks(loop.index):
                    x = load_raw(ev, self.product.stored, size)
                    place, total = self._place(loop.index, r, at), b.const(0, I32, self.lanes)
                    for half in (0, 1):
                        part = b.shuffle(x, x, tuple(range(half, size, 2)))
                        b.store(self.halves, b.add(place, b.idx(half * width)), part)
                        total = b.dot(part, ones, total)
                    start = b.mul(total, b.const(-HALF_CODE, I32, self.lanes))
                    b.store(self.starts, self._eighth(place), start)

    def _blocks(self, first: KValue) -> Iterator[int]:
        """Where each vector of the iteration from group ``first`` on begins, which is bound meanwhile."""
        for at in range(0, self.batch * self.group, self.tile.codes):
            self.ev.bind(self.outer, first, at // self.group)
            self.ev.bind(self.inner, self.b.idx(0), at % self.group)
            yield at

    def _place(self, first: KValue, row: int, at: int) -> KValue:
        """Where the halves of a row's vector lie on the stack."""
        b = self.b
        return b.add(b.mul(first, b.idx(self.group)), b.idx(row * self.depth + at))

    def _eighth(self, place: KValue) -> KValue:
        return self.b.binary("shr", place, self.b.idx(LANE_CODES.bit_length() - 1))

    def _factor(self, codes: KValue) -> KValue:
        return codes if self.unsigned else self.b.bitcast(codes, I8)

    def _groups(
        self, loop_: Group, rows: Sequence[KValue], columns: Sequence[KValue], carried: Sequence[KValue]
    ) -> Sequence[KValue]:
        """The accumulators after all groups."""
        b, ev = self.b, self.ev
        with b.for_(0, self.depth // self.group, self.batch, carried) as loop, ev.scope():
            ev.bind(loop_, loop.index)
            factors, out = self._factors(loop_, self.batch, rows, columns), list(loop.carried)
            vectors: list[tuple[int, tuple[KValue, KValue]]] = []
            self._bind(rows[0], columns[0])
            for at in self._blocks(loop.index):
                vectors.append((at, self._codes(ahead=len(rows) == 1 and at % (2 * LINE) == 0)))
                if (at + self.tile.codes) % self.group:
                    continue
                for r in range(len(rows)):
                    dot = b.cast(self._sums(loop.index, r, vectors), F32)
                    scale = factors[r].scale
                    if scale is None:
                        out[r] = b.add(out[r], dot)
                    else:
                        out[r] = b.fma(dot, self._scales(scale, vectors[0][0]), out[r])
                vectors = []
            loop.yield_(*out)
        return loop.results

    def _codes(self, *, ahead: bool) -> tuple[KValue, KValue]:
        """The codes at even and at odd positions of the bound vector, moved into the unsigned range."""
        multiply, memory = self.multiply, self.b.bindings[self.ev.binding_of[self.product.codes.value]]
        place, _ = self.ev.linear(self.product.codes.address)
        if ahead:
            multiply.prefetch(memory, place)
        packed = multiply.packed(memory, place, 0, self.tile.codes // 2, moved=True)
        low, high = multiply.unpacked(packed)
        return self._factor(low), self._factor(high)

    def _sums(self, first: KValue, row: int, vectors: Sequence[tuple[int, tuple[KValue, KValue]]]) -> KValue:
        """The sums of the products of a row with vectors of codes, lane by lane."""
        b, width = self.b, self.tile.codes // 2
        total, pairs = None, None
        for number, (at, codes) in enumerate(vectors):
            place = self._place(first, row, at)
            start = b.load(self.starts, self._eighth(place), self.lanes)
            total = start if total is None else b.add(total, start)
            for half, factor in enumerate(codes):
                x = b.load(self.halves, b.add(place, b.idx(half * width)), width)
                if not self.short:
                    total = b.dot(x, factor, total)
                    continue
                zero = b.const(0, I16, 2 * self.lanes)
                pairs = b.dot(x, factor, zero if pairs is None else pairs)
            if pairs is not None and (2 * (number + 1) % SHORT_STEPS == 0 or number + 1 == len(vectors)):
                total, pairs = b.dot(pairs, b.const(1, I16, 2 * self.lanes), total), None
        assert total is not None
        return total

    def _scales(self, scale: KValue, at: int) -> KValue:
        """What applies to the lanes of a vector that begins at position ``at`` of an iteration."""
        if scale.type.lanes == 1:
            return self.b.splat(scale, self.lanes)
        groups = tuple((at + LANE_CODES * lane) // self.group for lane in range(self.lanes))
        return self.b.shuffle(scale, scale, groups)
