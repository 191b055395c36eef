"""The kernels of products that read one large operand once: who reads what, and how sums meet."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue, Shared
from mansard.codegen.nest import Read
from mansard.codegen.schedules import reduce
from mansard.codegen.schedules.base import MAX_GRID, Frame, Scheduled, divides
from mansard.codegen.schedules.gpu.gemv_form import Form, chunk, chunk_of, rows_of, widest
from mansard.codegen.schedules.gpu.wide import WideReads
from mansard.codegen.schedules.parameters import Parameters
from mansard.dims import DimLike

LANES = 4
"""Elements of a register vector."""


@dataclass(frozen=True)
class Plan:
    """Schedule parameters."""

    width: int
    """Invocations of a workgroup."""
    split: int
    """Invocations that share the reduced dim of one output; the others have other outputs."""
    columns: int
    """Outputs of an invocation for each row."""
    unroll: int
    """Steps along the reduced dim whose loads are under way together."""

    def parameters(self) -> Parameters:
        """The plan as parameters."""
        return Parameters.of(**dataclasses.asdict(self))


class Product(abc.ABC):
    """What both forms share: the walk over blocks of outputs, and the sum over invocations."""

    def __init__(self, frame: Frame, form: Form, plan: Plan) -> None:
        self.frame, self.form, self.plan = frame, form, plan
        self.b, self.ev, self.nest, self.root = frame.b, frame.ev, frame.nest, form.root
        self.rows = rows_of(frame.nest, form)
        self.chunk = chunk_of(frame.nest, form) if form.along else plan.columns
        self.across = plan.width // plan.split
        self.extent = self.nest.total(form.column)
        self.sum = register_dtype(self.root.op.body.dtype)
        combiner = self.root.op.combiner
        assert combiner is not None
        self.combiner = combiner
        self.cells = [(row, column) for row in range(self.rows) for column in range(plan.columns)]
        self.subgroups = self.across == 1 and "subgroup_arithmetic" in frame.target.features
        self.wide = WideReads(self.ev, self._wide_reads(), form.tiled, self.chunk)

    def _wide_reads(self) -> list[tuple[Read, int]]:
        """Operands that lie in order along the loop of chunks, with what a load of them may take."""
        found = []
        for read in self.nest.reads(self.root):
            if read.address is not None and not read.guards:
                dtype = read.value.type.dtype
                most = min(self.chunk, widest(dtype))
                wide = chunk(self.nest, read.address, self.form.tiled, dtype, most)
                found.append((read, wide))
        return found

    def run(self) -> Scheduled:
        """The kernel: a workgroup takes blocks of columns in turn."""
        b, plan = self.b, self.plan
        block = self.across * plan.columns
        counts = (
            self.nest.total([loop for g in self.form.rest for loop in g]),
            dims.ceildiv(self.extent, block),
        )
        total = dims.product(counts)
        workgroups = dims.minimum(total, MAX_GRID)
        lane = b.local_id(0)
        part, place = lane, b.idx(0)
        if self.across > 1:
            part, place = self._split(lane)
        kept = plan.width // max(1, self.frame.target.subgroup[0]) if self.subgroups else plan.width
        exchange = b.shared(self.sum, max(1, kept) * len(self.cells))
        with b.for_(b.workgroup_id(0), self.ev.dim(total), self.ev.dim(workgroups)) as loop, self.ev.scope():
            rest, number = self.frame.decode(loop.index, counts)
            if self.form.rest:
                self.frame.bind_flat(self.form.rest, rest)
            first = b.mul(number, b.idx(block))
            sums = self._sums(b.add(first, b.mul(place, b.idx(plan.columns))), part)
            self._finish(exchange, sums, first, lane, part, place)
            if not (isinstance(total, int) and total <= MAX_GRID):
                b.barrier()  # what was exchanged has been read
        return self.frame.finish((workgroups, 1, 1))

    @abc.abstractmethod
    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        """An invocation's part of the reduced dim, and its place among the columns of the block."""

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

    def _bind_column(self, first: KValue, number: int, exact: bool) -> None:
        if exact:
            self.ev.bind(self.form.column, first, number)
            return
        at = self.b.add(first, self.b.idx(number))
        last = self.ev.dim(dims.add(self.extent, -1))
        self.ev.bind(self.form.column, self.frame.minimum(at, last))

    def _finish(
        self,
        exchange: Shared,
        sums: Sequence[KValue],
        first: KValue,
        lane: KValue,
        part: KValue,
        place: KValue,
    ) -> None:
        """Add the sums of all invocations, and store the block's outputs."""
        b, plan, count = self.b, self.plan, len(self.cells)
        if self.subgroups:
            mine = b.subgroup_place("subgroup_id")
            whole = [b.subgroup_reduce(self.combiner, value) for value in sums]
            with b.if_(b.compare("eq", b.subgroup_place("subgroup_lane"), b.idx(0))):
                for cell, value in enumerate(whole):
                    b.store(exchange, b.add(b.mul(mine, b.idx(count)), b.idx(cell)), value)
            outputs, parts = b.idx(count), b.subgroup_place("subgroup_count")
        else:
            at = b.mul(b.add(b.mul(part, b.idx(self.across)), place), b.idx(count))
            for cell, value in enumerate(sums):
                b.store(exchange, b.add(at, b.idx(cell)), value)
            outputs, parts = b.idx(count * self.across), b.idx(plan.split)
        b.barrier()
        start = reduce.start(b, self.root)
        with b.for_(lane, outputs, plan.width) as loop, self.ev.scope():
            with b.for_(0, parts, inits=[start]) as walk:
                found = b.load(exchange, b.add(b.mul(walk.index, outputs), loop.index))
                walk.yield_(b.binary(self.combiner, walk.carried[0], found))
            place = b.binary("div", loop.index, b.idx(count))
            rest = b.binary("rem", loop.index, b.idx(count))
            row = b.binary("div", rest, b.idx(plan.columns))
            column = b.add(b.mul(place, b.idx(plan.columns)), b.binary("rem", rest, b.idx(plan.columns)))
            self._store(row, b.add(first, column), walk.results[0])

    def _store(self, row: KValue, column: KValue, total: KValue) -> None:
        b, ev = self.b, self.ev
        ev.vector = None

        def store() -> None:
            self._bind_row(row)
            ev.bind(self.form.column, column)
            self.frame.store_results(self.root, total)

        if divides(self.extent, self.across * self.plan.columns):
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
        """Fold an invocation's share of ``steps`` positions, `unroll` of them at a time, into accumulators.

        ``emit`` takes the positions and the accumulators.
        """
        b, split, unroll = self.b, self.plan.split, self.plan.unroll
        stride = split * unroll
        whole = divides(steps, stride)
        ahead = steps if whole else dims.mul(dims.floordiv(steps, stride), stride)
        with b.for_(part, self.ev.dim(ahead), stride, inits=inits) as loop, self.ev.scope():
            places = [b.add(loop.index, b.idx(u * split)) for u in range(unroll)]
            loop.yield_(*emit(places, loop.carried))
        if whole:
            return loop.results
        start = b.add(self.ev.dim(ahead), part)
        with b.for_(start, self.ev.dim(steps), split, inits=loop.results) as rest, self.ev.scope():
            rest.yield_(*emit([rest.index], rest.carried))
        return rest.results


class Along(Product):
    """The large operand lies along the reduced dim: an invocation reads chunks of it, of every column."""

    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        split = self.b.idx(self.plan.split)
        return self.b.binary("rem", lane, split), self.b.binary("div", lane, split)

    def _sums(self, first: KValue, part: KValue) -> list[KValue]:
        b = self.b
        lanes = min(LANES, self.chunk)
        depth = self.nest.total(self.root.inner)
        steps = dims.exact_div(depth, self.chunk)
        assert steps is not None
        exact = divides(self.extent, self.across * self.plan.columns)

        def emit(places: Sequence[KValue], carried: Sequence[KValue]) -> Sequence[KValue]:
            sums = list(carried)
            for place in places:
                self.wide.begin()
                self.frame.bind_flat(self.form.reduced, b.mul(place, b.idx(self.chunk)))
                start = self.ev.loops[self.form.inner[-1]]
                for element in range(0, self.chunk, lanes):
                    for cell, (row, column) in enumerate(self.cells):
                        self._bind_known_row(row)
                        self._bind_column(first, column, exact)
                        self.wide.serve(start, element, lanes)
                        sums[cell] = reduce.combine(self.ev, self.root, sums[cell])
                        self.ev.vector = None
            return sums

        inits = [reduce.start(b, self.root, lanes) for _ in self.cells]
        return [b.reduce(self.combiner, v) for v in self._steps(steps, part, inits, emit)]


class Across(Product):
    """The large operand lies along the outputs: an invocation reads a vector of them at a time."""

    def _split(self, lane: KValue) -> tuple[KValue, KValue]:
        across = self.b.idx(self.across)
        return self.b.binary("div", lane, across), self.b.binary("rem", lane, across)

    def _sums(self, first: KValue, part: KValue) -> list[KValue]:
        b, columns = self.b, self.plan.columns
        lanes = min(LANES, columns)
        depth = self.nest.total(self.root.inner)
        # Past the last column a piece of the row's end is read again, and not stored.
        if not divides(self.extent, self.across * columns):
            first = self.frame.minimum(first, self.ev.dim(dims.add(self.extent, -columns)))

        def emit(places: Sequence[KValue], carried: Sequence[KValue]) -> Sequence[KValue]:
            sums = list(carried)
            for place in places:
                self.wide.begin()
                self.frame.bind_flat(self.form.reduced, place)
                number = 0
                for row in range(self.rows):
                    self._bind_known_row(row)
                    for element in range(0, columns, lanes):
                        self.wide.serve(first, element, lanes)
                        sums[number] = reduce.combine(self.ev, self.root, sums[number])
                        self.ev.vector = None
                        number += 1
            return sums

        count = self.rows * columns // lanes
        inits = [reduce.start(b, self.root, lanes) for _ in range(count)]
        sums = self._steps(depth, part, inits, emit)
        return [b.extract(v, lane) for v in sums for lane in range(lanes)]
