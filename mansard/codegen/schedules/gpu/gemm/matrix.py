"""GPU schedule of matrix products with cooperative matrices (matrix units): f16 and bf16 factors with sums in
f32, 8-bit integers with sums in i32.

A workgroup computes ``rows x columns`` results; each of its subgroups accumulates a part of them in
cooperative matrices::

    read the first tiles of both factors into registers
    for each step of the depth:
        write the tiles to shared memory
        barrier
        read the next tiles into registers          # in flight during the products; not in the last step
        for each matrix depth in the step: results += left matrices @ right matrices
        barrier
    for each strip of the results, through shared memory: epilogue, stores

With few results, several subgroups each compute a part of every step, and their sums are added in that strip.
Edges of rows and columns are clamped in loads and predicated in stores; beyond the depth, zeros are
multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel import matrix as matrices
from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.gpu.gemm.matrix_cost import MatrixGemmShape, cost
from mansard.codegen.schedules.gpu.gemm.matrix_staging import WORDS, MatrixStager, StagedOperand, operand
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile, shape_for, tiles
from mansard.codegen.schedules.gpu.gemm.product import LANES, Factor, Product, analyse
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize, tiles_by_size
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import CodegenError

CANDIDATES = 16
"""The most tiles offered to a search."""
MIN_EXTENT = 8
"""The minimum rows, columns and depth: with fewer, most of a matrix would be unused."""


class _GemmShape:
    """A nest analysed for this schedule."""

    def __init__(
        self, nest: Nest, product: Product, left: StagedOperand, right: StagedOperand, shape: MatrixShape
    ) -> None:
        self.nest, self.product, self.left, self.right, self.shape = nest, product, left, right, shape

    def tiles(self, target: KernelTarget) -> list[GemmMatrixTile]:
        """Every tile that fits the target, in order of predicted cost."""
        sizes = [estimate(extent) for extent in self.extents()]
        candidates = tiles(self.left, self.right, self.shape, target)
        return sorted(candidates, key=lambda tile: self.cost(tile, sizes, target))

    def extents(self) -> tuple[DimLike, ...]:
        """Batches, rows, columns and depth."""
        product = self.product
        batch = self.nest.total([loop for group in product.batch for loop in group])
        return batch, product.left.extent, product.right.extent, product.depth

    def cost(self, tile: GemmMatrixTile, sizes: Sequence[int], target: KernelTarget) -> float:
        """The predicted clocks of the product at some sizes of the `extents`."""
        return cost(tile, MatrixGemmShape(*sizes), self.left, self.right, self.shape, target)

    def by_size(self, target: KernelTarget) -> TilesBySize:
        """The tiles for typical and for large sizes."""
        return tiles_by_size(self.extents(), self.tiles(target), lambda t, at: self.cost(t, at, target))


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether the nest is a product whose types the target has cooperative matrices for, and whose tiles
    fit."""
    target = target.with_one_subgroup_size()
    gemm = _gemm(nest, target)
    return gemm is not None and bool(gemm.tiles(target))


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Tiles to try, the default first."""
    target = target.with_one_subgroup_size()
    return [tile.parameters() for tile in _required(nest, target).tiles(target)[:CANDIDATES]]


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a product with the tile of ``parameters``, or the one with the lowest predicted cost."""
    target = target.with_one_subgroup_size()
    gemm = _required(nest, target)
    chosen = TilesBySize(GemmMatrixTile.of(parameters)) if parameters else gemm.by_size(target)
    frame = Frame(nest, target, name, chosen.small.subgroups * target.subgroup[0])
    vectors = [tile.shared_vectors(gemm.left, gemm.right, gemm.shape) for tile in chosen.tiles]
    memory = frame.b.shared(DType.I32, max(vectors), WORDS)
    grids: list[DimLike] = []
    for tile, applies_there in chosen.conditions():
        if applies_there == 1:
            grids.append(_MatrixProduct(frame, gemm, tile, memory).run())
            continue
        here = frame.b.compare("eq", frame.ev.dim(applies_there), frame.b.idx(1))
        with frame.b.if_(here), frame.ev.scope():
            grids.append(dims.mul(applies_there, _MatrixProduct(frame, gemm, tile, memory).run()))
    return frame.finish((dims.add(*grids), 1, 1))


def _gemm(nest: Nest, target: KernelTarget) -> _GemmShape | None:
    smallest, largest = target.subgroup
    if not target.matrices or smallest != largest:
        return None
    product = analyse(nest, gathers=True)
    if product is None:
        return None
    sizes = (product.left.extent, product.right.extent, product.depth)
    if min(estimate(size) for size in sizes) < MIN_EXTENT:
        return None
    pair = product.left, product.right
    left, right = (operand(nest, product.root, f, other) for f, other in (pair, pair[::-1]))
    if left is None or right is None or left.dtype is not right.dtype:
        return None
    shape = shape_for(left.dtype, target)
    return _GemmShape(nest, product, left, right, shape) if shape is not None else None


def _required(nest: Nest, target: KernelTarget) -> _GemmShape:
    gemm = _gemm(nest, target)
    if gemm is None:
        raise CodegenError(
            f"dispatch {nest.dispatch.name} is not a product for matrix units of {target.name}"
        )
    return gemm


class _MatrixProduct:
    def __init__(self, frame: Frame, gemm: _GemmShape, tile: GemmMatrixTile, memory: SharedMemory) -> None:
        self.frame, self.product, self.tile, self.shape = frame, gemm.product, tile, gemm.shape
        self.memory = memory
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        b, product = self.b, gemm.product
        self.size = frame.target.subgroup[0]
        self.threads = tile.subgroups * self.size
        b.subgroup = self.size
        self.local = b.local_id(0)
        self.subgroup, self.lane = b.subgroup_place("subgroup_id"), b.subgroup_place("subgroup_lane")
        self.group, place = self._split(self.subgroup, tile.subgroup_rows * tile.subgroup_columns)
        self.subgroup_row, self.subgroup_column = self._split(place, tile.subgroup_columns)
        self.left, self.right = (
            MatrixStager(frame, product.root, operand, product.depth, side, tile.depth, self.threads)
            for operand, side in ((gemm.left, tile.rows), (gemm.right, tile.columns))
        )
        self.left_vectors = gemm.left.vectors(tile.rows, tile.depth)
        self.steps = dims.ceildiv(product.depth, tile.depth)
        self.exact = divides(product.depth, tile.depth)
        self.row_matrices, self.column_matrices = (
            tile.rows // tile.subgroup_rows // self.shape.m,
            tile.columns // tile.subgroup_columns // self.shape.n,
        )

    def _split(self, value: KValue, size: int) -> tuple[KValue, KValue]:
        """Quotient and remainder by a literal."""
        b = self.b
        if size & (size - 1):
            return b.binary("div", value, b.idx(size)), b.binary("rem", value, b.idx(size))
        return b.binary("shr", value, b.idx(size.bit_length() - 1)), b.binary("and", value, b.idx(size - 1))

    def run(self) -> DimLike:
        """Compute the product; the number of workgroups."""
        b, ev, product, tile = self.b, self.ev, self.product, self.tile
        batch = self.nest.total([loop for group in product.batch for loop in group])
        rows = dims.ceildiv(product.left.extent, tile.rows)
        columns = dims.ceildiv(product.right.extent, tile.columns)
        total = dims.product((batch, rows, columns))
        if dims.bounds(total)[1] <= self.frame.target.max_workgroups:
            with ev.scope():
                self._block(b.workgroup_id(0), rows, columns)
            return total
        workgroups = self.frame.workgroups(total)
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            b.barrier()  # all invocations have read the previous tiles
            self._block(loop.index, rows, columns)
        return workgroups

    def _block(self, number: KValue, rows: DimLike, columns: DimLike) -> None:
        b, tile, ev = self.b, self.tile, self.ev
        if self.product.batch:
            each = ev.dim(dims.mul(rows, columns))
            self.frame.bind_flat(self.product.batch, b.binary("div", number, each))
            number = b.binary("rem", number, each)
        row, column = self._banded(number, rows, columns)
        first_row, first_column = b.mul(row, b.idx(tile.rows)), b.mul(column, b.idx(tile.columns))
        self.left.start(first_row, self.local)
        self.right.start(first_column, self.local)
        self._store(self._accumulate(), first_row, first_column)

    def _banded(self, number: KValue, rows: DimLike, columns: DimLike) -> tuple[KValue, KValue]:
        """Row and column of a tile, ordered down a band of row tiles, then by column, so that concurrent
        workgroups share rows and columns in the cache."""
        b, ev, band = self.b, self.ev, self.tile.band
        if dims.bounds(rows)[1] <= band:
            height = ev.dim(rows)
            return b.binary("rem", number, height), b.binary("div", number, height)
        of_band = b.mul(ev.dim(columns), b.idx(band))
        first = b.mul(b.binary("div", number, of_band), b.idx(band))
        within = b.binary("rem", number, of_band)
        if divides(rows, band):
            column, row = self._split(within, band)
            return b.add(first, row), column
        height = self.frame.minimum(b.idx(band), b.sub(ev.dim(rows), first))
        return b.add(first, b.binary("rem", within, height)), b.binary("div", within, height)

    # The products -----------------------------------------------------------------------------
    def _accumulate(self) -> Sequence[KValue]:
        """This subgroup's results: its matrices in row-major order."""
        b = self.b
        zero = matrices.fill(b, matrices.c_type(self.shape.accumulator, self.shape.m, self.shape.n))
        zeros = [zero] * (self.row_matrices * self.column_matrices)
        carried = [*self._load(b.idx(0)), *zeros]
        count = len(carried) - len(zeros)
        if not dims.is_one(self.steps):
            before = self.ev.dim(dims.add(self.steps, -1))
            with b.for_(b.idx(0), before, inits=carried) as loop, self.ev.scope():
                self._write(loop.carried[:count])
                b.barrier()
                ahead: list[KValue] = []
                loads = self._loads(b.add(loop.index, b.idx(1)), ahead)
                results = self._multiply(loop.carried[count:], loads)
                b.barrier()
                loop.yield_(*ahead, *results)
            carried = list(loop.results)
        self._write(carried[:count])
        b.barrier()
        return self._multiply(carried[count:], iter(()))

    def _load(self, step: KValue) -> list[KValue]:
        loaded: list[KValue] = []
        for _ in self._loads(step, loaded):
            pass
        return loaded

    def _loads(self, step: KValue, loaded: list[KValue]) -> Iterator[None]:
        """Load both factors' tiles of a step, interleaved with the matrix depths of the products, so that
        memory and matrix units are busy at the same time."""
        places = [(stager, place) for stager in (self.left, self.right) for place in stager.places]
        shares = self.tile.depth // self.tile.split // self.shape.k
        for share in range(shares):
            for stager, place in places[share * len(places) // shares : (share + 1) * len(places) // shares]:
                loaded.append(stager.load(place, step, self.exact))
            yield

    def _write(self, values: Sequence[KValue]) -> None:
        count = len(self.left.places)
        self.left.store(values[:count], self.memory, self.b.idx(0))
        self.right.store(values[count:], self.memory, self.b.idx(self.left_vectors))

    def _multiply(self, results: Sequence[KValue], loads: Iterator[None]) -> list[KValue]:
        """The results with one step of the depth added; ``loads`` is advanced meanwhile."""
        b, tile, shape = self.b, self.tile, self.shape
        group_depth = tile.depth // tile.split
        depth = b.mul(self.group, b.idx(group_depth)) if tile.split > 1 else b.idx(0)
        left = self._origin(
            self.left, b.idx(0), b.mul(self.subgroup_row, b.idx(self.row_matrices * shape.m)), depth
        )
        second = b.idx(self.left_vectors)
        right = self._origin(
            self.right, second, b.mul(self.subgroup_column, b.idx(self.column_matrices * shape.n)), depth
        )
        sums = list(results)
        for step in range(0, group_depth, shape.k):
            next(loads, None)
            rows = [self._matrix(self.left, left, i * shape.m, step) for i in range(self.row_matrices)]
            columns = [
                self._matrix(self.right, right, j * shape.n, step) for j in range(self.column_matrices)
            ]
            for j, column in enumerate(columns):
                for i, row in enumerate(rows):
                    at = i * self.column_matrices + j
                    sums[at] = matrices.multiply(b, row, column, sums[at])
        return sums

    def _origin(self, stager: MatrixStager, origin: KValue, side: KValue, depth: KValue) -> KValue:
        """The vector of a tile at a position along the side and the depth."""
        b, operand = self.b, stager.operand
        line, within = (side, depth) if operand.along == "depth" else (depth, side)
        vector = b.binary("shr", within, b.idx(operand.per_vector.bit_length() - 1))
        return b.add(b.add(origin, b.mul(line, b.idx(stager.line))), vector)

    def _matrix(self, stager: MatrixStager, start: KValue, side: int, depth: int) -> KValue:
        """The matrix of a factor at a position in its tile, counted from ``start``."""
        b, shape, operand = self.b, self.shape, stager.operand
        line, within = (side, depth) if operand.along == "depth" else (depth, side)
        at = b.add(start, b.idx(line * stager.line + within // operand.per_vector))
        is_left = stager is self.left
        if is_left:
            type_ = matrices.a_type(operand.dtype, shape.m, shape.k)
        else:
            type_ = matrices.b_type(operand.dtype, shape.k, shape.n)
        by = "rows" if is_left == (operand.along == "depth") else "columns"
        return matrices.load(b, type_, self.memory, at, b.idx(stager.line), by=by)

    # The results ------------------------------------------------------------------------------
    def _store(self, results: Sequence[KValue], first_row: KValue, first_column: KValue) -> None:
        """Store strips of every subgroup's results through shared memory, one row of matrices at a time."""
        b, tile, shape = self.b, self.tile, self.shape
        line = tile.result_line()
        strip = shape.m * line
        strip_start = b.mul(self.subgroup, b.idx(strip))
        scope = "workgroup" if tile.split > 1 else "subgroup"
        b.barrier()  # all invocations have read the last tiles
        width = self.column_matrices * shape.n
        row_start = b.add(first_row, b.mul(self.subgroup_row, b.idx(self.row_matrices * shape.m)))
        column_start = b.add(first_column, b.mul(self.subgroup_column, b.idx(width)))
        for i in range(self.row_matrices):
            if i:
                b.barrier(scope)
            for j in range(self.column_matrices):
                at = b.add(strip_start, b.idx(j * shape.n // LANES))
                matrices.store(b, self.memory, at, b.idx(line), results[i * self.column_matrices + j])
            b.barrier(scope)
            row = b.add(row_start, b.idx(i * shape.m))
            self._finish_strip(row, column_start, width // LANES, line)

    def _finish_strip(self, first_row: KValue, first_column: KValue, row_vectors: int, line: int) -> None:
        """Epilogue and stores of a strip, distributed over the subgroups that have a part of its sums."""
        b, tile = self.b, self.tile
        whole, per_turn = self.shape.m * row_vectors, self.size * tile.split
        place = b.add(b.mul(self.group, b.idx(self.size)), self.lane) if tile.split > 1 else self.lane
        strips = tile.subgroup_rows * tile.subgroup_columns
        _, first_strip = self._split(self.subgroup, strips)
        start = b.mul(first_strip, b.idx(self.shape.m * line))
        stores: list[Callable[[], None]] = []
        for turn in range(-(-whole // per_turn)):
            at = b.add(place, b.idx(turn * per_turn))
            partial = (turn + 1) * per_turn > whole
            with b.if_(b.compare("lt", at, b.idx(whole))) if partial else nullcontext():
                row, vector = self._split(at, row_vectors)
                where = b.add(start, b.add(b.mul(row, b.idx(line)), vector))
                total = self._sum(where, strips * self.shape.m * line)
                column = b.add(first_column, b.mul(vector, b.idx(LANES)))
                finished = self._finish(b.add(first_row, row), column, total)
                if partial:
                    finished()
                else:
                    stores.append(finished)
        for store in stores:
            store()

    def _sum(self, where: KValue, apart: int) -> KValue:
        """Four results, summed over the subgroups that computed parts of the depth."""
        b = self.b
        total = b.bitcast(b.load(self.memory, where), self.shape.accumulator)
        for group in range(1, self.tile.split):
            part = b.load(self.memory, b.add(where, b.idx(group * apart)))
            total = b.add(total, b.bitcast(part, self.shape.accumulator))
        return total

    def _finish(self, row: KValue, column: KValue, total: KValue) -> Callable[[], None]:
        """The epilogue of four neighbours in a row; what stores them where in range.

        What the epilogues of a strip read is thus on its way before the first of them is stored.
        """
        product, lanes = self.product, total.type.lanes
        if divides(self.nest.total(product.columns[-1]), LANES):
            return self._results(row, column, total)
        pieces = [
            self._results(row, self.b.add(column, self.b.idx(lane)), self.b.extract(total, lane))
            for lane in range(lanes)
        ]

        def store() -> None:
            for piece in pieces:
                piece()

        return store

    def _results(self, row: KValue, column: KValue, total: KValue) -> Callable[[], None]:
        ev, product, lanes = self.ev, self.product, total.type.lanes
        places = [
            self._in_range(row, product.left, self.tile.rows, 1),
            self._in_range(column, product.right, self.tile.columns, lanes),
        ]

        def bind() -> None:
            self.frame.bind_flat(product.rows, places[0][0])
            self.frame.bind_flat(product.columns, places[1][0])
            if lanes > 1:
                ev.vector, ev.multiple = (product.columns[-1][-1], LANES), LANES

        with ev.scope():
            bind()
            values = self.frame.results(product.root, total)

        def store() -> None:
            with ExitStack() as guards:
                for _, inside in places:
                    if inside is not None:
                        guards.enter_context(self.b.if_(inside))
                guards.enter_context(ev.scope())
                bind()
                self.frame.store_values(values)

        return store

    def _in_range(self, at: KValue, factor: Factor, block: int, count: int) -> tuple[KValue, KValue | None]:
        """A position in range, the given one if that is; and whether it is (None: always)."""
        b, ev = self.b, self.ev
        if divides(factor.extent, block):
            return at, None
        last = ev.dim(dims.add(factor.extent, -count))
        return self.frame.minimum(at, last), b.compare("lt", at, ev.dim(factor.extent))
