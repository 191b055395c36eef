"""The kernel of a product with cooperative matrices (`mansard.codegen.schedules.gpu.gemm.matrix`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel import matrix as matrices
from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.base import Frame, divides, estimate
from mansard.codegen.schedules.gpu.gemm.matrix_cost import MatrixGemmShape, cost
from mansard.codegen.schedules.gpu.gemm.matrix_staging import MatrixStager, StagedOperand
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile, tiles
from mansard.codegen.schedules.gpu.gemm.product import LANES, Factor, Product
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize, tiles_by_size
from mansard.dims import DimLike


class GemmShape:
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


class MatrixProduct:
    """The kernel of a product with one tile, or a part of a kernel with several."""

    def __init__(
        self,
        frame: Frame,
        gemm: GemmShape,
        tile: GemmMatrixTile,
        memory: SharedMemory,
        others: Sequence[GemmShape] = (),
    ) -> None:
        """``others``: products of the same size and the same left factor, whose results go into the same
        epilogue."""
        self.frame, self.product, self.tile, self.shape = frame, gemm.product, tile, gemm.shape
        self.roots = [each.product.root for each in (gemm, *others)]
        self.memory = memory
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        b, product = self.b, gemm.product
        self.size = frame.target.subgroup[0]
        b.subgroup = self.size
        self.subgroup, self.lane = b.subgroup_place("subgroup_id"), b.subgroup_place("subgroup_lane")
        self.threads, self.local = self._stagers()
        self.group, place = self._split(self.subgroup, tile.subgroup_rows * tile.subgroup_columns)
        self.subgroup_row, self.subgroup_column = self._split(place, tile.subgroup_columns)
        sides = [(gemm.left, tile.staged_rows), *((each.right, tile.columns) for each in (gemm, *others))]
        self.stagers = [
            MatrixStager(frame, root, operand, product.depth, side, tile.depth, self.threads)
            for root, (operand, side) in zip((product.root, *self.roots), sides, strict=True)
        ]
        self.left, self.rights = self.stagers[0], self.stagers[1:]
        vectors = [operand.vectors(side, tile.depth) for operand, side in sides]
        self.offsets = list(itertools.accumulate(vectors[:-1], initial=0))
        """Where in a stage the tile of each factor begins."""
        self.steps = dims.ceildiv(product.depth, tile.depth)
        self.exact = divides(product.depth, tile.depth)
        self.row_matrices, self.column_matrices = (
            tile.rows // tile.subgroup_rows // self.shape.m,
            tile.columns // tile.subgroup_columns // self.shape.n,
        )

    def _stagers(self) -> tuple[int, KValue]:
        """How many invocations stage a step together, and the number of one among them."""
        return self.tile.subgroups * self.size, self.b.local_id(0)

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
        for right in self.rights:
            right.start(first_column, self.local)
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
        zeros = [zero] * (len(self.rights) * self.row_matrices * self.column_matrices)
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
        places = [(stager, place) for stager in self.stagers for place in stager.places]
        shares = self._group_depth() // self.shape.k
        for share in range(shares):
            for stager, place in places[share * len(places) // shares : (share + 1) * len(places) // shares]:
                loaded.append(stager.load(place, step, self.exact))
            yield

    def _group_depth(self) -> int:
        """The part of a step's depth that a subgroup multiplies."""
        return self.tile.depth // self.tile.split

    def _stage(self) -> Sequence[KValue]:
        """Where the factors' tiles begin in shared memory."""
        return [self.b.idx(offset) for offset in self.offsets]

    def _write(self, values: Sequence[KValue]) -> None:
        rest = iter(values)
        for stager, origin in zip(self.stagers, self._stage(), strict=True):
            stager.store([next(rest) for _ in stager.places], self.memory, origin)

    def _multiply(self, results: Sequence[KValue], loads: Iterator[None]) -> list[KValue]:
        """The results with one step of the depth added; ``loads`` is advanced meanwhile."""
        b, shape, group_depth = self.b, self.shape, self._group_depth()
        depth, (first, *origins) = self._first_depth(), self._stage()
        left = self._origin(
            self.left, first, b.mul(self.subgroup_row, b.idx(self.row_matrices * shape.m)), depth
        )
        side = b.mul(self.subgroup_column, b.idx(self.column_matrices * shape.n))
        rights = [self._origin(r, o, side, depth) for r, o in zip(self.rights, origins, strict=True)]
        sums = list(results)
        for step in range(0, group_depth, shape.k):
            next(loads, None)
            rows = [self._matrix(self.left, left, i * shape.m, step) for i in range(self.row_matrices)]
            columns = [
                self._matrix(stager, right, j * shape.n, step)
                for stager, right in zip(self.rights, rights, strict=True)
                for j in range(self.column_matrices)
            ]
            for number, column in enumerate(columns):
                which, j = divmod(number, self.column_matrices)
                for i, row in enumerate(rows):
                    at = (which * self.row_matrices + i) * self.column_matrices + j
                    sums[at] = matrices.multiply(b, row, column, sums[at])
        return sums

    def _first_depth(self) -> KValue:
        """Where in a step a subgroup's part of the depth begins."""
        b = self.b
        return b.mul(self.group, b.idx(self._group_depth())) if self.tile.split > 1 else b.idx(0)

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
            for number in range(len(self.rights) * self.column_matrices):
                which, j = divmod(number, self.column_matrices)
                at = b.add(strip_start, b.idx(which * self._strips(line) + j * shape.n // LANES))
                result = results[(which * self.row_matrices + i) * self.column_matrices + j]
                matrices.store(b, self.memory, at, b.idx(line), result)
            b.barrier(scope)
            row = b.add(row_start, b.idx(i * shape.m))
            self._finish_strip(row, column_start, width // LANES, line)

    def _strips(self, line: int) -> int:
        """Vectors of one product's strips of all subgroups."""
        return self.tile.subgroups * self.shape.m * line

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
                totals = [
                    self._sum(self._further(where, which * self._strips(line)), strips * self.shape.m * line)
                    for which in range(len(self.rights))
                ]
                column = b.add(first_column, b.mul(vector, b.idx(LANES)))
                finished = self._finish(b.add(first_row, row), column, totals)
                if partial:
                    finished()
                else:
                    stores.append(finished)
        for store in stores:
            store()

    def _further(self, where: KValue, vectors: int) -> KValue:
        return self.b.add(where, self.b.idx(vectors)) if vectors else where

    def _sum(self, where: KValue, apart: int) -> KValue:
        """Four results, summed over the subgroups that computed parts of the depth."""
        b = self.b
        total = b.bitcast(b.load(self.memory, where), self.shape.accumulator)
        for group in range(1, self.tile.split):
            part = b.load(self.memory, b.add(where, b.idx(group * apart)))
            total = b.add(total, b.bitcast(part, self.shape.accumulator))
        return total

    def _finish(self, row: KValue, column: KValue, totals: Sequence[KValue]) -> Callable[[], None]:
        """The epilogue of four neighbours in a row; what stores them where in range.

        What the epilogues of a strip read is thus on its way before the first of them is stored.
        """
        b, product, lanes = self.b, self.product, totals[0].type.lanes
        if divides(self.nest.total(product.columns[-1]), LANES):
            return self._results(row, column, totals)
        pieces = [
            self._results(row, b.add(column, b.idx(lane)), [b.extract(total, lane) for total in totals])
            for lane in range(lanes)
        ]

        def store() -> None:
            for piece in pieces:
                piece()

        return store

    def _results(self, row: KValue, column: KValue, totals: Sequence[KValue]) -> Callable[[], None]:
        ev, product, lanes = self.ev, self.product, totals[0].type.lanes
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
            for root, total in zip(self.roots[1:], totals[1:], strict=True):
                ev.reduced[root.op] = total
            values = self.frame.results(product.root, totals[0])

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
