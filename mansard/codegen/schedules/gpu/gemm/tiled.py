"""GPU schedule of matrix products by shared memory tiles, without cooperative matrices: f32 (and types
computed in f32), i32.

A workgroup computes ``rows x columns`` results, an invocation ``thread_rows x thread_columns`` of them in
registers::

    read the first tiles of both factors into registers
    for each tile of the depth:
        write the tiles to shared memory (double buffered, so that one barrier suffices)
        barrier
        read the next tiles into registers          # in flight during the products
        for each depth in the tile: results += rows (outer product) columns
    epilogue, stores

With few results and a long depth, several groups of invocations in a workgroup each compute a part of the
depth, and their sums are added in shared memory. Edges of rows and columns are clamped in loads and
predicated in stores; beyond the depth, zeros are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.gpu.gemm.product import LANES, Product, analyse
from mansard.codegen.schedules.gpu.gemm.staging import Stager
from mansard.codegen.schedules.gpu.gemm.tiles import GemmTile, tiles
from mansard.codegen.schedules.gpu.gemm.tiles import candidates as tile_candidates
from mansard.dims import DimLike
from mansard.errors import CodegenError

MIN_EXTENT = 4
"""The minimum rows and columns: with fewer, most of a tile would be unused."""


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether the nest is a product of two matrices whose tiles fit the target."""
    product = analyse(nest)
    if product is None or min(estimate(product.left.extent), estimate(product.right.extent)) < MIN_EXTENT:
        return False
    return bool(tiles(nest, product, target))


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Tiles to try, the default first."""
    return tile_candidates(nest, _product(nest), target)


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of a product with the tile of ``parameters``, or the one with the lowest predicted cost."""
    product = _product(nest)
    tile = GemmTile.of(parameters) if parameters else tiles(nest, product, target)[0]
    return _Tiled(Frame(nest, target, name, tile.invocations), product, tile).run()


def _product(nest: Nest) -> Product:
    product = analyse(nest)
    if product is None:
        raise CodegenError(f"dispatch {nest.dispatch.name} is not a product of two matrices")
    return product


class _Tiled:
    def __init__(self, frame: Frame, product: Product, tile: GemmTile) -> None:
        self.frame, self.product, self.tile = frame, product, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        b = self.b
        local = b.local_id(0)
        self.local = local
        self.group = self._shifted(local, tile.threads)
        thread = b.binary("and", local, b.idx(tile.threads - 1)) if tile.split > 1 else local
        thread_grid_columns = tile.columns // tile.thread_columns
        self.thread_row = self._shifted(thread, thread_grid_columns)
        self.thread_column = b.binary("and", thread, b.idx(thread_grid_columns - 1))
        self.left = Stager(
            frame, product.root, product.left, product.depth, tile.rows, tile.depth, thread, tile.threads
        )
        self.right = Stager(
            frame, product.root, product.right, product.depth, tile.columns, tile.depth, thread, tile.threads
        )
        zero = reduce.start(b, product.root, LANES)
        self.memory: SharedMemory = b.shared(zero.type.dtype, tile.shared_vectors(product), LANES)
        self.zero = zero
        self.stage = tile.stage_vectors(product)
        self.steps = dims.ceildiv(product.depth, tile.depth * tile.split)
        self.exact = divides(product.depth, tile.depth * tile.split)

    def _shifted(self, value: KValue, size: int) -> KValue:
        """A number divided by a power of two."""
        return self.b.binary("shr", value, self.b.idx(size.bit_length() - 1))

    def run(self) -> Scheduled:
        b, ev, product, tile = self.b, self.ev, self.product, self.tile
        counts: tuple[DimLike, DimLike, DimLike] = (
            self.nest.total([loop for group in product.batch for loop in group]),
            dims.ceildiv(product.left.extent, tile.rows),
            dims.ceildiv(product.right.extent, tile.columns),
        )
        total = dims.product(counts)
        if dims.bounds(total)[1] <= self.frame.target.max_workgroups:
            with ev.scope():
                self._block(b.workgroup_id(0), counts)
            return self.frame.finish((total, 1, 1))
        workgroups = self.frame.workgroups(total)
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            b.barrier()  # all invocations have read the previous tiles
            self._block(loop.index, counts)
        return self.frame.finish((workgroups, 1, 1))

    def _block(self, number: KValue, counts: Sequence[DimLike]) -> None:
        b, tile = self.b, self.tile
        batch, row_block, column_block = self.frame.decode(number, counts)
        if self.product.batch:
            self.frame.bind_flat(self.product.batch, batch)
        first_row = b.mul(row_block, b.idx(tile.rows))
        first_column = b.mul(column_block, b.idx(tile.columns))
        self.left.start(first_row)
        self.right.start(first_column)
        results = self._accumulate()
        if tile.split == 1:
            self._store_registers(results, first_row, first_column)
        else:
            self._store_sums(results, first_row, first_column)

    # The products -----------------------------------------------------------------------------
    def _accumulate(self) -> Sequence[KValue]:
        """The sums over the part of the depth of this invocation's group, row by row in vectors."""
        b = self.b
        zeros = [self.zero] * (self.tile.thread_rows * self.tile.thread_columns // LANES)
        first = self._load(b.idx(0))
        if dims.is_one(self.steps):
            return self._step(first, zeros, b.idx(0), None)
        # The last step has separate code without loads for a following step.
        last = self.ev.dim(dims.add(self.steps, -1))
        with b.for_(b.idx(0), last, inits=[*first, *zeros]) as loop:
            held, sums = loop.carried[: len(first)], loop.carried[len(first) :]
            loop.yield_(*self._step(held, sums, loop.index, b.add(loop.index, b.idx(1))))
        return self._step(loop.results[: len(first)], loop.results[len(first) :], last, None)

    def _step(
        self, held: Sequence[KValue], sums: Sequence[KValue], step: KValue, following: KValue | None
    ) -> list[KValue]:
        """The elements loaded for the following step, if any, and the sums updated with those of this one."""
        origin = self._origin(self.b.binary("and", step, self.b.idx(1)))
        self._write(held, origin)
        self.b.barrier()
        ahead = self._load(following) if following is not None else []
        return [*ahead, *self._multiply(sums, origin)]

    def _origin(self, turn: KValue) -> KValue:
        """The first vector of this group's tiles in the current one of the two buffers."""
        b = self.b
        number = b.add(b.mul(self.group, b.idx(2)), turn) if self.tile.split > 1 else turn
        return b.mul(number, b.idx(self.stage))

    def _load(self, step: KValue) -> list[KValue]:
        """Load both factors' elements for a step, of this group's part of the depth."""
        b, tile = self.b, self.tile
        number = b.add(b.mul(step, b.idx(tile.split)), self.group) if tile.split > 1 else step
        base = b.mul(number, b.idx(tile.depth))
        return [*self.left.load(base, self.exact), *self.right.load(base, self.exact)]

    def _write(self, values: Sequence[KValue], origin: KValue) -> None:
        count = len(self.left.places)
        self.left.store(values[:count], self.memory, origin)
        self.right.store(values[count:], self.memory, self._right(origin))

    def _right(self, origin: KValue) -> KValue:
        return self.b.add(origin, self.b.idx(self.tile.depth * self.left.stride))

    def _multiply(self, results: Sequence[KValue], origin: KValue) -> list[KValue]:
        """The results with one tile of the depth added."""
        b, tile = self.b, self.tile
        thread_grid_rows, thread_grid_columns = (
            tile.rows // tile.thread_rows,
            tile.columns // tile.thread_columns,
        )
        left = b.add(origin, self.thread_row)
        right = b.add(self._right(origin), self.thread_column)
        sums = list(results)
        for depth in range(tile.depth):
            rows = self._vectors(left, depth * self.left.stride, tile.thread_rows, thread_grid_rows)
            columns = self._vectors(
                right, depth * self.right.stride, tile.thread_columns, thread_grid_columns
            )
            for i in range(tile.thread_rows):
                row = b.splat(b.extract(rows[i // LANES], i % LANES), LANES)
                for j, column in enumerate(columns):
                    at = i * len(columns) + j
                    sums[at] = self._fused(row, column, sums[at])
        return sums

    def _vectors(self, start: KValue, offset: int, count: int, step: int) -> list[KValue]:
        b = self.b
        places = [b.add(start, b.idx(offset + k * step)) for k in range(count // LANES)]
        return [b.load(self.memory, place) for place in places]

    def _fused(self, row: KValue, column: KValue, total: KValue) -> KValue:
        b = self.b
        return b.fma(row, column, total) if total.type.dtype.is_float else b.add(b.mul(row, column), total)

    # The results ------------------------------------------------------------------------------
    def _store_registers(self, results: Sequence[KValue], first_row: KValue, first_column: KValue) -> None:
        """Store the results of this invocation from its registers."""
        b, tile = self.b, self.tile
        thread_grid_rows, thread_grid_columns = (
            tile.rows // tile.thread_rows,
            tile.columns // tile.thread_columns,
        )
        pieces = tile.thread_columns // LANES
        columns = [
            b.add(
                first_column, b.mul(b.add(self.thread_column, b.idx(j * thread_grid_columns)), b.idx(LANES))
            )
            for j in range(pieces)
        ]
        for i in range(tile.thread_rows):
            quad = b.add(self.thread_row, b.idx(i // LANES * thread_grid_rows))
            row = b.add(first_row, b.add(b.mul(quad, b.idx(LANES)), b.idx(i % LANES)))
            with self._bounds_guard(row, self.product.left.extent, tile.rows):
                for j, column in enumerate(columns):
                    self._store(row, column, results[i * pieces + j])

    def _store_sums(self, results: Sequence[KValue], first_row: KValue, first_column: KValue) -> None:
        """Add the groups' results in shared memory, and store them, distributed over all invocations."""
        b, tile = self.b, self.tile
        thread_grid_rows, thread_grid_columns = (
            tile.rows // tile.thread_rows,
            tile.columns // tile.thread_columns,
        )
        pieces, row_vectors = tile.thread_columns // LANES, tile.columns // LANES
        whole = tile.rows * row_vectors
        b.barrier()  # all invocations have read the last tiles
        start = b.add(b.mul(self.group, b.idx(whole)), self.thread_column)
        for i in range(tile.thread_rows):
            quad = b.add(self.thread_row, b.idx(i // LANES * thread_grid_rows))
            row = b.add(b.mul(quad, b.idx(LANES)), b.idx(i % LANES))
            line = b.add(start, b.mul(row, b.idx(row_vectors)))
            for j in range(pieces):
                b.store(self.memory, b.add(line, b.idx(j * thread_grid_columns)), results[i * pieces + j])
        b.barrier()
        for turn in range(-(-whole // tile.invocations)):
            place = b.add(self.local, b.idx(turn * tile.invocations))
            partial = whole % tile.invocations and (turn + 1) * tile.invocations > whole
            with b.if_(b.compare("lt", place, b.idx(whole))) if partial else nullcontext():
                total = b.load(self.memory, place)
                for group in range(1, tile.split):
                    total = b.add(total, b.load(self.memory, b.add(place, b.idx(group * whole))))
                row = b.add(first_row, self._shifted(place, row_vectors))
                offset = b.mul(b.binary("and", place, b.idx(row_vectors - 1)), b.idx(LANES))
                with self._bounds_guard(row, self.product.left.extent, tile.rows):
                    self._store(row, b.add(first_column, offset), total)

    def _bounds_guard(self, at: KValue, extent: DimLike, block: int) -> AbstractContextManager[None]:
        """A guard for ``at`` below ``extent``, if it may be beyond."""
        if divides(extent, block):
            return nullcontext()
        return self.b.if_(self.b.compare("lt", at, self.ev.dim(extent)))

    def _store(self, row: KValue, column: KValue, total: KValue) -> None:
        """The epilogue of four neighbours in a row, and their stores."""
        b, product = self.b, self.product
        extent, block = product.right.extent, self.tile.columns
        if divides(self.nest.total(product.columns[-1]), LANES):
            with self._bounds_guard(column, extent, block):
                self._finish(row, column, total)
            return
        for lane in range(LANES):
            at = b.add(column, b.idx(lane))
            with self._bounds_guard(at, extent, block):
                self._finish(row, at, b.extract(total, lane))

    def _finish(self, row: KValue, column: KValue, total: KValue) -> None:
        ev, product = self.ev, self.product
        with ev.scope():
            self.frame.bind_flat(product.rows, row)
            self.frame.bind_flat(product.columns, column)
            if total.type.lanes > 1:
                ev.vector, ev.multiple = (product.columns[-1][-1], LANES), LANES
            self.frame.store_results(product.root, total)
