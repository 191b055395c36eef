"""Kernels of products that read one large operand once: the distribution of reads, and the addition of
partial sums."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.loop_nest import Read
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.dot_products import LowPrecisionProduct, low_precision_product
from mansard.codegen.schedules.common.guarded_sums import guarded_sum
from mansard.codegen.schedules.gpu.elementwise.vector_loads import VectorLoads
from mansard.codegen.schedules.gpu.gemv.form import (
    MAX_LOAD_BYTES,
    Form,
    chunk,
    chunk_of,
    computed_chunk,
    max_load_elements,
    rows_of,
)
from mansard.codegen.schedules.gpu.gemv.grouped import Chunk, GroupedSums, add_chunks
from mansard.dims import DimLike
from mansard.dtypes import DType

LANES = 4
"""Elements of a register vector."""
SUBGROUP_TYPES = frozenset({DType.F32, DType.I32})
"""Types that every device with subgroup arithmetic can add in subgroups."""
MAX_SUMS = 64
"""The most accumulators of one invocation, in registers."""


@dataclass(frozen=True)
class GemvTile:
    """Schedule parameters."""

    width: int
    """Invocations of a workgroup."""
    split: int
    """Invocations that share the reduced dim of one output; others have other outputs."""
    columns: int
    """Outputs of an invocation for each row."""
    unroll: int
    """Steps along the reduced dim whose loads are in flight together."""
    alone: int = 0
    """1: each subgroup works independently on separate outputs, without shared memory. ``split`` is then the
    assumed subgroup size; with any other size the results are the same."""
    load: int = MAX_LOAD_BYTES
    """Bytes of the large operand in one load of an invocation, if it is contiguous along the reduced dim.
    Larger elements of other operands are further apart between invocations, so their loads touch more cache
    lines."""

    def parameters(self) -> Parameters:
        """The tile as schedule parameters."""
        return Parameters.of(**dataclasses.asdict(self))


class GemvKernel(abc.ABC):
    """The base of both forms: the loop over blocks of outputs, and the sum over invocations."""

    def __init__(self, frame: Frame, form: Form, tile: GemvTile) -> None:
        self.frame, self.form, self.tile = frame, form, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        outer = [loop for group in form.rest for loop in group]
        self.guarded = guarded_sum(frame.nest, form.root, outer)
        self.root = self.guarded.root if self.guarded is not None else form.root
        self.rows = rows_of(frame.nest, form)
        self.chunk = chunk_of(frame.nest, form, tile.load) if form.along else tile.columns
        self.column_groups = tile.width // tile.split
        self.extent = self.nest.total(form.column)
        self.sum = register_dtype(self.root.op.body.dtype)
        combiner = self.root.op.combiner
        assert combiner is not None
        self.combiner = combiner
        self.cells = [(row, column) for row in range(self.rows) for column in range(tile.columns)]
        in_subgroups = "subgroup_arithmetic" in frame.target.features and self.sum in SUBGROUP_TYPES
        self.subgroups = self.column_groups == 1 and in_subgroups
        self.exact = divides(self.extent, tile.columns if tile.alone else self.column_groups * tile.columns)
        self.share: KValue | None = None
        """The number of invocations that share the reduced dim, if it is only known at run time."""
        self.vector_loads = VectorLoads(
            self.ev, self._vector_loads(form.tiled, self.chunk), form.tiled, self.chunk
        )

    def _vector_loads(self, group: Group, size: int) -> list[tuple[Read, int]]:
        """Operands with the number of elements of a load along a loop, at most ``size``."""
        reads = []
        for read in self.nest.reads(self.root):
            if read.guards or read.value in self.ev.held:
                continue
            most = min(size, max_load_elements(read.value.type.dtype))
            if read.address is not None:
                reads.append((read, chunk(self.nest, read.address, group, read.value.type.dtype, most)))
            elif read.computed is not None and read.computed.op is self.root.op:
                reads.append((read, computed_chunk(self.nest, read, group, most)))
        return reads

    def run(self) -> Scheduled:
        """The finished kernel: workgroups or subgroups loop over blocks of columns."""
        workgroups = self._by_subgroups() if self.tile.alone else self._by_workgroups()
        return self.frame.finish((workgroups, 1, 1))

    def _blocks(self, columns: int) -> tuple[DimLike, DimLike]:
        """The number of iterations of the outermost loops, and of blocks of columns in each."""
        rest = self.nest.total([loop for g in self.form.rest for loop in g])
        return rest, dims.ceildiv(self.extent, columns)

    def _bind_block(self, flat: KValue, counts: tuple[DimLike, DimLike], columns: int) -> KValue:
        """Bind the outermost loops of a block; its first column is the result."""
        rest, number = self.frame.decode(flat, counts)
        if self.form.rest:
            self.frame.bind_flat(self.form.rest, rest)
        return self.b.mul(number, self.b.idx(columns))

    def _by_workgroups(self) -> DimLike:
        b, tile = self.b, self.tile
        block = self.column_groups * tile.columns
        counts = self._blocks(block)
        total = dims.product(counts)
        workgroups = self.frame.workgroups(total)
        lane = b.local_id(0)
        part, place = lane, b.idx(0)
        if self.column_groups > 1:
            part, place = self._split(lane)
        kept = tile.width // max(1, self.frame.target.subgroup[0]) if self.subgroups else tile.width
        exchange = b.shared(self.sum, max(1, kept) * len(self.cells))
        with b.for_(b.workgroup_id(0), self.ev.dim(total), self.ev.dim(workgroups)) as loop, self.ev.scope():
            first = self._bind_block(loop.index, counts, block)
            sums = self._sums(b.add(first, b.mul(place, b.idx(tile.columns))), part)
            self._finish(exchange, sums, first, lane, part, place)
            if not (isinstance(total, int) and total <= self.frame.target.max_workgroups):
                b.barrier()  # the exchanged sums have been read
        return workgroups

    def _by_subgroups(self) -> DimLike:
        """Subgroups of any size, also with inactive invocations: only active ones are counted."""
        b, tile = self.b, self.tile
        counts = self._blocks(tile.columns)
        total = dims.product(counts)
        workgroups = self.frame.workgroups(dims.ceildiv(total, self.column_groups))
        one = b.const(1, DType.I32)
        self.share = b.cast(b.subgroup_reduce("add", one), b.index)
        part = b.cast(b.sub(b.subgroup_scan("add", one), one), b.index)
        subgroups = b.subgroup_place("subgroup_count")
        mine = b.add(b.mul(b.workgroup_id(0), subgroups), b.subgroup_place("subgroup_id"))
        stride = b.mul(self.ev.dim(workgroups), subgroups)
        with b.for_(mine, self.ev.dim(total), stride) as loop, self.ev.scope():
            first = self._bind_block(loop.index, counts, tile.columns)
            whole = [b.subgroup_reduce(self.combiner, v) for v in self._sums(first, part)]
            with b.for_(part, b.idx(len(whole)), self.share) as cells, self.ev.scope():
                total_ = whole[0]
                for number, value in enumerate(whole[1:], 1):
                    here = b.compare("eq", cells.index, b.idx(number))
                    total_ = b.select(here, value, total_)
                row = b.binary("div", cells.index, b.idx(tile.columns))
                column = b.add(first, b.binary("rem", cells.index, b.idx(tile.columns)))
                self._store(row, column, total_)
        return workgroups

    @abc.abstractmethod
    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        """An invocation's part of the reduced dim, and its position in the columns of the block."""

    @abc.abstractmethod
    def _sums(self, first: KValue, part: KValue) -> list[KValue]:
        """An invocation's sums for every cell, from its part of the reduced dim."""

    def _bind_row(self, row: KValue) -> None:
        if self.form.rows:
            self.frame.bind_flat(self.form.rows, row)

    def _bind_known_row(self, row: int) -> None:
        for group in reversed(self.form.rows):
            row, place = divmod(row, dims.bounds(self.nest.total(group))[1])
            self.ev.bind(group, self.b.idx(place))

    def _bind_column(self, first: KValue, number: int) -> None:
        if self.exact:
            self.ev.bind(self.form.column, first, number)
            return
        at = self.b.add(first, self.b.idx(number))
        last = self.ev.dim(dims.add(self.extent, -1))
        self.ev.bind(self.form.column, self.frame.minimum(at, last))

    def _finish(
        self,
        exchange: SharedMemory,
        sums: Sequence[KValue],
        first: KValue,
        lane: KValue,
        part: KValue,
        place: KValue,
    ) -> None:
        """Add the sums of all invocations, and store the block's outputs."""
        b, tile, count = self.b, self.tile, len(self.cells)
        if self.subgroups:
            mine = b.subgroup_place("subgroup_id")
            whole = [b.subgroup_reduce(self.combiner, value) for value in sums]
            with b.if_(b.compare("eq", b.subgroup_place("subgroup_lane"), b.idx(0))):
                for cell, value in enumerate(whole):
                    b.store(exchange, b.add(b.mul(mine, b.idx(count)), b.idx(cell)), value)
            outputs, parts = b.idx(count), b.subgroup_place("subgroup_count")
        else:
            at = b.mul(b.add(b.mul(part, b.idx(self.column_groups)), place), b.idx(count))
            for cell, value in enumerate(sums):
                b.store(exchange, b.add(at, b.idx(cell)), value)
            outputs, parts = b.idx(count * self.column_groups), b.idx(tile.split)
        b.barrier()
        start = reduce.start(b, self.root)
        with b.for_(lane, outputs, tile.width) as loop, self.ev.scope():
            with b.for_(0, parts, inits=[start]) as walk:
                partial = b.load(exchange, b.add(b.mul(walk.index, outputs), loop.index))
                walk.yield_(b.binary(self.combiner, walk.carried[0], partial))
            place = b.binary("div", loop.index, b.idx(count))
            rest = b.binary("rem", loop.index, b.idx(count))
            row = b.binary("div", rest, b.idx(tile.columns))
            column = b.add(b.mul(place, b.idx(tile.columns)), b.binary("rem", rest, b.idx(tile.columns)))
            self._store(row, b.add(first, column), walk.results[0])

    def _store(self, row: KValue, column: KValue, total: KValue) -> None:
        b, ev = self.b, self.ev
        ev.vector = None

        def store() -> None:
            self._bind_row(row)
            ev.bind(self.form.column, column)
            self.frame.store_results(self.form.root, total)

        if self.exact:
            store()
            return
        with b.if_(b.compare("lt", column, ev.dim(self.extent))), ev.scope():
            store()

    def _steps(
        self,
        steps: DimLike,
        part: KValue,
        inits: Sequence[KValue],
        emit: Callable[[Sequence[KValue], Sequence[KValue]], Sequence[KValue]],
    ) -> Sequence[KValue]:
        """Accumulate an invocation's share of ``steps`` positions, `unroll` of them at a time.

        ``emit`` takes the positions and the accumulators.
        """
        b, unroll = self.b, self.tile.unroll
        size = self.ev.dim(steps)
        if self.share is None:
            split, step = b.idx(self.tile.split), self.tile.split * unroll
            whole = divides(steps, step)
            ahead = self.ev.dim(steps if whole else dims.mul(dims.floordiv(steps, step), step))
            stride = b.idx(step)
        else:
            split, whole = self.share, unroll == 1
            stride = b.mul(split, b.idx(unroll))
            ahead = size if whole else b.sub(size, b.binary("rem", size, stride))
        if self.guarded is not None:
            ahead, size = (self.guarded.bound(self.ev, end) for end in (ahead, size))
        with b.for_(part, ahead, stride, inits=inits) as loop, self.ev.scope():
            places = [b.add(loop.index, b.mul(split, b.idx(u))) for u in range(unroll)]
            loop.yield_(*emit(places, loop.carried))
        if whole:
            return loop.results
        with b.for_(b.add(ahead, part), size, split, inits=loop.results) as rest, self.ev.scope():
            rest.yield_(*emit([rest.index], rest.carried))
        return rest.results


class ReducedMajor(GemvKernel):
    """The large operand is contiguous along the reduced dim: an invocation reads chunks of it, of every
    column."""

    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        split = self.b.idx(self.tile.split)
        return self.b.binary("rem", lane, split), self.b.binary("div", lane, split)

    def _sums(self, first: KValue, part: KValue) -> list[KValue]:
        b = self.b
        lanes = min(LANES, self.chunk)
        while lanes > 1 and lanes * len(self.cells) > MAX_SUMS:
            lanes //= 2
        steps = dims.floordiv(self.nest.total(self.root.inner), self.chunk)

        grouped = GroupedSums.of(self.ev, self.nest, self.root, self.chunk)

        def emit(places: Sequence[KValue], carried: Sequence[KValue]) -> Sequence[KValue]:
            sums = list(carried)
            self.vector_loads.begin()
            starts, factors = [], []
            for place in places:
                self.frame.bind_flat(self.form.reduced, b.mul(place, b.idx(self.chunk)))
                starts.append({loop: self.ev.loops[loop] for group in self.form.reduced for loop in group})
                for row, column in self.cells:
                    self.bind(row, column, first)
                    self.vector_loads.fetch(starts[-1][self.form.inner[-1]])
                    factors.append(grouped.factors() if grouped is not None else [])
            following = iter(factors)
            for start in starts:
                self.ev.loops.update(start)
                if grouped is not None:
                    sums = self._add_groups(grouped, start[self.form.inner[-1]], first, following, sums)
                    continue
                for element in range(0, self.chunk, lanes):
                    for cell, (row, column) in enumerate(self.cells):
                        self.bind(row, column, first)
                        self.vector_loads.serve(start[self.form.inner[-1]], element, lanes)
                        sums[cell] = reduce.combine(self.ev, self.root, sums[cell])
                        self.ev.vector = None
            return sums

        bytes_ = self._bytes()
        if bytes_ is not None:
            inits = [reduce.start(b, self.root) for _ in self.cells]
            return list(self._steps(steps, part, inits, functools.partial(self._dots, bytes_, first)))
        inits = [reduce.start(b, self.root, lanes) for _ in self.cells]
        return [b.reduce(self.combiner, v) for v in self._steps(steps, part, inits, emit)]

    def _add_groups(
        self,
        grouped: GroupedSums,
        start: KValue,
        first: KValue,
        factors: Iterator[Sequence[KValue]],
        sums: Sequence[KValue],
    ) -> list[KValue]:
        """The sums of all cells with a chunk of a group each."""

        def bind(row: int, column: int) -> KValue:
            self.bind(row, column, first)
            return start

        chunks = [
            Chunk(grouped, self.vector_loads, functools.partial(bind, *cell), next(factors), total)
            for cell, total in zip(self.cells, sums, strict=True)
        ]
        return add_chunks(chunks, sums[0].type.lanes)

    def _bytes(self) -> LowPrecisionProduct | None:
        """The factors, if both are contiguous bytes and the device has dot products of them."""
        product = low_precision_product(self.nest, self.root)
        if product is None or "integer_dot_product" not in self.frame.target.features:
            return None
        vector_loads = {read.value for read, count in self.vector_loads.reads if count % 4 == 0}
        factors = (product.left, product.right)
        whole = all(f.value in vector_loads and f.value.type.dtype.bits == 8 for f in factors)
        return product if whole and factors[0].value is not factors[1].value else None

    def _dots(
        self, product: LowPrecisionProduct, first: KValue, places: Sequence[KValue], carried: Sequence[KValue]
    ) -> Sequence[KValue]:
        """Four positions of the reduced dim in each instruction."""
        b, sums = self.b, list(carried)
        left, right = product.left.value, product.right.value
        signed = (left.type.dtype.is_signed, right.type.dtype.is_signed)
        self.vector_loads.begin()
        for place in places:
            self.frame.bind_flat(self.form.reduced, b.mul(place, b.idx(self.chunk)))
            start = self.ev.loops[self.form.inner[-1]]
            for cell, (row, column) in enumerate(self.cells):
                self.bind(row, column, first)
                pair = [self.vector_loads.words(value, start) for value in (left, right)]
                assert pair[0] is not None and pair[1] is not None
                for x, y in zip(pair[0], pair[1], strict=True):
                    sums[cell] = b.dot_bytes(x, y, sums[cell], signed)
        return sums

    def bind(self, row: int, column: int, first: KValue) -> None:
        """Bind the loops over outputs to one cell of the block at column ``first``."""
        self._bind_known_row(row)
        self._bind_column(first, column)


class OutputMajor(GemvKernel):
    """The large operand is contiguous along the outputs: an invocation reads a vector of outputs at a time,
    at several consecutive reduced positions, whose other factors it loads together."""

    def __init__(self, frame: Frame, form: Form, tile: GemvTile) -> None:
        super().__init__(frame, form, tile)
        extent, steps = self.nest.total(form.inner), tile.unroll
        while steps > 1 and not divides(extent, steps):
            steps //= 2
        self.block = steps
        self.others = VectorLoads(self.ev, self._vector_loads(form.inner, steps), form.inner, steps)

    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        column_groups = self.b.idx(self.column_groups)
        return self.b.binary("div", lane, column_groups), self.b.binary("rem", lane, column_groups)

    def _sums(self, first: KValue, part: KValue) -> list[KValue]:
        b, columns = self.b, self.tile.columns
        lanes = min(LANES, columns)
        blocks = dims.floordiv(self.nest.total(self.root.inner), self.block)
        # Past the last column the end of the row is read again, and not stored.
        if not self.exact:
            first = self.frame.minimum(first, self.ev.dim(dims.add(self.extent, -columns)))
        inits = [reduce.start(b, self.root, lanes) for _ in range(self.rows * columns // lanes)]
        split = b.idx(self.tile.split)
        end = self.ev.dim(blocks)
        if self.guarded is not None:
            end = self.guarded.bound(self.ev, end)
        with b.for_(part, end, split, inits=inits) as loop, self.ev.scope():
            self.vector_loads.begin()
            self.others.begin()
            self.frame.bind_flat(self.form.reduced, b.mul(loop.index, b.idx(self.block)))
            start, sums = self.ev.loops[self.form.inner[-1]], list(loop.carried)
            self._bind_known_row(0)
            for place in range(self.block):
                self.ev.bind(self.form.inner, start, place)
                self.vector_loads.fetch(first)
            for place in range(self.block):
                for number in range(len(sums)):
                    row, element = divmod(number * lanes, columns)
                    self._bind_known_row(row)
                    self.others.serve(start, place, 1)
                    self.vector_loads.serve(first, element, lanes)
                    sums[number] = reduce.combine(self.ev, self.root, sums[number])
                    self.ev.vector = None
            loop.yield_(*sums)
        return [b.extract(v, lane) for v in loop.results for lane in range(lanes)]
