"""GPU schedule of large matrix products with the warp-group instructions of NVIDIA's Hopper GPUs, in PTX.

SPIR-V's cooperative matrices reach these GPUs' matrix units by instructions of subgroups, with factors that
pass through registers: 372 TFLOP/s of 989. Four subgroups together multiply straight from shared memory
(`mansard.codegen.kernel.warpgroups`), at 495. For few rows, of which most of a tile would be empty, a kernel
has SPIR-V as well, and its last parameter says which of the two a call runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import Binding, KValue, warpgroups
from mansard.codegen.kernel.warpgroups import CHUNK, LINES
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.nvptx.target import FEATURE, SUBGROUP
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.gpu.gemm.matrix_product import GemmShape, MatrixProduct
from mansard.codegen.schedules.gpu.gemm.matrix_staging import WORDS, MatrixStager, StagedOperand
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile
from mansard.codegen.schedules.gpu.gemm.product import LANES
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize, sizes_at, symbols_of
from mansard.dtypes import DType

TILE = GemmMatrixTile(
    warpgroups.ROWS, warpgroups.COLUMNS, warpgroups.DEPTH, warpgroups.THREADS // SUBGROUP, 1, band=16
)
"""A subgroup has 16 rows of results, as the instruction leaves them."""
LINE = CHUNK + 8
"""The stride of a subgroup's rows of results in shared memory, through which a chunk of columns passes at a
time: neighbouring rows are 8 banks apart."""
STEP_CLOCKS, START_CLOCKS = 1917.0, 3800.0
"""Clocks of a step of a tile, and before and after all steps, in the unit of `matrix_cost` (1.84 a nanosecond
on an H200): fitted to 2048x12288x4096 and 2048x4096x12288, 5 % off at 2048x6144x4096 and 2048x4096x4096."""
LENGTHS = 16
"""Into so many parts a range of sizes is divided to find from where on this schedule is faster."""


def tiles(gemm: GemmShape, small: GemmMatrixTile, target: KernelTarget) -> TilesBySize | None:
    """`TILE` for the sizes of a product that this schedule is faster for, with ``small`` for others; None
    where it is faster for none."""
    if FEATURE not in target.features or not _takes(gemm, target):
        return None
    extents, others = gemm.extents(), gemm.tiles(target)

    def is_faster(at: Sequence[int]) -> bool:
        return cost(at, target) < min((gemm.cost(tile, at, target) for tile in others), default=math.inf)

    symbols = symbols_of(extents)
    if not symbols:
        return TilesBySize(TILE) if is_faster([estimate(extent) for extent in extents]) else None
    if len(symbols) > 1:
        return None
    (symbol,) = symbols
    at = None
    for part in range(LENGTHS, 0, -1):
        length = max(1, symbol.min, symbol.max * part // LENGTHS)
        if not is_faster(sizes_at(extents, symbol, length)):
            break
        at = length
    return None if at is None else TilesBySize(small, TILE, symbol, at)


def _takes(gemm: GemmShape, target: KernelTarget) -> bool:
    product, operands = gemm.product, (gemm.left, gemm.right)
    whole = divides(product.depth, warpgroups.DEPTH)
    fits = target.workgroup_invocations >= warpgroups.THREADS
    in_order = gemm.left.along == "depth"
    subgroups = target.subgroup == (SUBGROUP, SUBGROUP)
    return whole and fits and in_order and subgroups and all(map(_is_plain, operands))


def _is_plain(operand: StagedOperand) -> bool:
    """Whether a factor lies in memory as it is multiplied, in whole vectors."""
    if operand.dtype not in warpgroups.OPERANDS or operand.address is None or len(operand.factor.depth) != 1:
        return False
    return not operand.guards and not operand.scales and operand.gather is None


def cost(extents: Sequence[int], target: KernelTarget) -> float:
    """The predicted clocks of a product of some batches, rows, columns and depth, as `matrix_cost.cost`."""
    batch, rows, columns, depth = extents
    blocks = batch * -(-rows // TILE.rows) * -(-columns // TILE.columns)
    return -(-blocks // target.compute_units) * (-(-depth // TILE.depth) * STEP_CLOCKS + START_CLOCKS)


class SlotStager(MatrixStager):
    """A right factor along its side, whose vectors an invocation takes slot by slot."""

    def start(self, first: KValue, thread: KValue) -> None:
        """As the instruction's table says."""
        b = self.frame.b
        line, vector = self._split(thread, CHUNK // self.operand.per_vector)
        self.places = []
        for number in range(warpgroups.RIGHT):
            slot, half = divmod(number, warpgroups.DEPTH // LINES)
            at = b.add(vector, b.idx(slot * (CHUNK // self.operand.per_vector)))
            self.places.append(self._place(first, b.add(line, b.idx(half * LINES)), at, None))


class WarpgroupProduct(MatrixProduct):
    """The kernel of a product, or the part of one with another for small sizes."""

    def __init__(self, frame: Frame, gemm: GemmShape) -> None:
        memory = frame.b.shared(DType.F32, warpgroups.SHARED_BYTES // 4)
        super().__init__(frame, gemm, TILE, memory)
        if gemm.right.along == "side":
            sizes = gemm.product.depth, TILE.columns, TILE.depth
            self.rights = [SlotStager(frame, gemm.product.root, gemm.right, *sizes, self.threads)]

    def _accumulate(self) -> Sequence[KValue]:
        right = self.rights[0].operand
        assert right.address is not None
        walked = dict(right.address.terms).get(right.factor.depth[0][-1], 0)
        step = self.ev.dim(dims.mul(walked, TILE.depth))
        left, other = self._places(self.left), self._places(self.rights[0])
        steps = self.ev.dim(self.steps)
        return [warpgroups.product(self.b, left, other, steps, step, self.memory, along=right.along)]

    def _places(self, stager: MatrixStager) -> tuple[Binding, Sequence[KValue]]:
        """The buffer of a factor, and the indices of an invocation's vectors in the first step."""
        value, b = stager.operand.value, self.b
        assert value is not None
        indices = []
        for place in stager.places:
            assert place.base is not None
            indices.append(b.add(place.base, b.idx(place.further)))
        return b.bindings[self.ev.binding_of[value]], indices

    def _store(self, results: Sequence[KValue], first_row: KValue, first_column: KValue) -> None:
        """Strips of 16 rows and `CHUNK` columns of every subgroup, through its part of shared memory."""
        b, (sums,) = self.b, results
        rows = TILE.rows // TILE.subgroup_rows
        start = b.mul(self.subgroup, b.idx(rows * LINE))
        first_row = b.add(first_row, b.mul(self.subgroup, b.idx(rows)))
        b.barrier()  # all products are done with the memory
        for chunk in range(TILE.columns // CHUNK):
            if chunk:
                b.barrier("subgroup")
            self._write_chunk(sums, chunk, start)
            b.barrier("subgroup")
            self._finish_chunk(rows, start, first_row, b.add(first_column, b.idx(chunk * CHUNK)))

    def _write_chunk(self, sums: KValue, chunk: int, start: KValue) -> None:
        """See the instruction's table for where a result is."""
        b = self.b
        row = b.binary("shr", self.lane, b.idx(2))
        column = b.mul(b.binary("and", self.lane, b.idx(3)), b.idx(2))
        place = b.add(start, b.add(b.mul(row, b.idx(LINE)), column))
        for n in range(CHUNK // 8):
            for half in range(2):
                lane = chunk * CHUNK // 2 + 4 * n + 2 * half
                pair = b.shuffle(sums, sums, (lane, lane + 1))
                b.store(self.memory, b.add(place, b.idx(8 * half * LINE + 8 * n)), pair, aligned=True)

    def _finish_chunk(self, rows: int, start: KValue, first_row: KValue, first_column: KValue) -> None:
        b, vectors = self.b, CHUNK // LANES
        stores = []
        for turn in range(rows * vectors // SUBGROUP):
            row, vector = self._split(b.add(self.lane, b.idx(turn * SUBGROUP)), vectors)
            column = b.mul(vector, b.idx(LANES))
            where = b.add(start, b.add(b.mul(row, b.idx(LINE)), column))
            total = b.load(self.memory, where, LANES, aligned=True)
            stores.append(self._finish(b.add(first_row, row), b.add(first_column, column), [total]))
        for store in stores:
            store()


def schedule(gemm: GemmShape, chosen: TilesBySize, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of a product with `tiles`: with SPIR-V where there is a small one."""
    small = chosen.small
    frame = Frame(gemm.nest, target, name, small.subgroups * SUBGROUP)
    if small is TILE:
        return frame.finish((WarpgroupProduct(frame, gemm).run(), 1, 1))
    b, ((_, is_small), (_, is_large)) = frame.b, chosen.conditions()
    which = frame.ev.dim(is_large)
    with b.if_(b.compare("eq", which, b.idx(1))), frame.ev.scope():
        many = WarpgroupProduct(frame, gemm).run()
    vectors = small.shared_vectors(gemm.left, gemm.right, gemm.shape)
    memory = b.shared(DType.I32, vectors, WORDS)
    with b.if_(b.compare("eq", which, b.idx(0))), frame.ev.scope():
        few = MatrixProduct(frame, gemm, small, memory).run()
    groups = dims.add(dims.mul(is_large, many), dims.mul(is_small, few))
    scheduled = frame.finish((groups, 1, 1))
    kernel = dataclasses.replace(scheduled.kernel, params=scheduled.kernel.params + 1)
    return dataclasses.replace(scheduled, kernel=kernel, params=(*scheduled.params, is_large))
