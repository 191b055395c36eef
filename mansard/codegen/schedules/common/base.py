"""The base of all schedules: the builder, the evaluator, params, and common loop shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from mansard import dims
from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import Kernel, KernelBuilder, KValue
from mansard.codegen.kernel.trip_counts import loop_iterations
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.codegen.positions import Params
from mansard.codegen.schedules.common.chosen_matrices import fix_points, holds, start_of_matrix
from mansard.codegen.schedules.common.exchanges import exchange_of, lookups_of
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.panels import Panels

Grid = tuple[DimLike, DimLike, DimLike]


@dataclass(frozen=True)
class Scheduled:
    """A kernel with its launch data: the params' expressions and the grid."""

    kernel: Kernel
    params: tuple[DimLike, ...]
    grid: Grid
    packed: Mapping[int, Panels] = field(default_factory=dict)
    """The layout that the kernel expects of packable inputs, by position."""

    def loop_iterations(self) -> int:
        """An upper bound on the loop iterations of one invocation, all loops together, at the largest
        dims."""
        sizes = {
            s.name: s.max for d in (*self.params, *self.grid) if not isinstance(d, int) for s in d.symbols()
        }
        params = [dims.evaluate(d, sizes) for d in self.params]
        return loop_iterations(self.kernel, params, [dims.evaluate(d, sizes) for d in self.grid])


def index_dtype(dispatch: Dispatch, target: KernelTarget) -> DType:
    """I64 on a CPU; on a GPU I32 unless a buffer may hold 2**31 or more elements."""
    if not target.is_gpu:
        return DType.I64
    largest = max(dims.bounds(v.type.elements)[1] for v in (*dispatch.inputs, *dispatch.outputs))
    return DType.I64 if largest >= 2**31 - 2**20 else DType.I32


def stored_dtype(dtype: DType) -> DType:
    """The element type of a buffer in a kernel: 4-bit integers are packed two per byte."""
    return DType.U8 if dtype.bits < 8 else dtype


class Frame:
    """A kernel under construction."""

    def __init__(
        self,
        nest: Nest,
        target: KernelTarget,
        name: str,
        workgroup: int = 1,
        *,
        within: Frame | None = None,
        kernel: Dispatch | None = None,
    ) -> None:
        """``within``: the kernel that a nest is a part of, with the same buffers; ``kernel``: the dispatch of
        the kernel, where it is not the nest's."""
        of = kernel or nest.dispatch
        self.nest = nest
        self.target = target
        outputs = set(of.outputs)
        self.params: Params = within.params if within is not None else Params()
        self.b: KernelBuilder = (
            within.b
            if within is not None
            else KernelBuilder(
                name,
                [(stored_dtype(v.type.dtype), v in outputs) for v in nest.buffers],
                0,
                workgroup=(workgroup, 1, 1),
                index=index_dtype(of, target),
            )
        )
        self.b.takes_vectors = not target.is_gpu
        if within is None and PTX_FEATURE in target.features:
            self.b.exchange = exchange_of(of, nest.buffers)
            self.b.lookups = lookups_of(of, nest.buffers)
        self.ev = Evaluator(nest, self.b, self.params)
        if nest.matrices:
            self.b.start_of = lambda memory: start_of_matrix(self.ev, memory)
        self.points: DimLike = fix_points(self.ev) if nest.fixed else 1
        """Points that the grid of a schedule is there for (`Nest.fixed`)."""
        self._open = ExitStack()
        self._fixed = dict(self.ev.loops)
        if nest.partial:
            self._open.enter_context(self.where(holds(self.ev)))

    def evaluate_with(self, ev: Evaluator) -> None:
        """Let another evaluator of the nest emit all that follows, at the loops that are bound."""
        ev.continue_from(self.ev)
        self.ev = ev

    def finish(self, grid: Grid) -> Scheduled:
        """The finished kernel with its launch data."""
        self._open.close()
        if self.nest.partial:
            self._store_zero_sums()
        grid = grid[0], grid[1], dims.mul(grid[2], self.points)
        self.b.params = len(self.params.values)
        return Scheduled(self.b.build(), tuple(self.params.values), grid)

    def _store_zero_sums(self) -> None:
        """The results where there is no matrix: the first workgroup of such a point stores all of them."""
        b, nest = self.b, self.nest
        self.ev = Evaluator(nest, b, self.params)
        self.ev.loops.update(self._fixed)
        (root,) = (r for r in nest.roots if r.reduces)
        *outer, inner = [loop for loop in range(nest.domain) if loop not in nest.fixed]
        others = functools.reduce(b.add, [b.workgroup_id(axis) for axis in range(3)])
        first = b.binary("and", b.unary("not", holds(self.ev)), b.compare("eq", others, b.idx(0)))

        def store() -> None:
            lanes = self.ev.vector[1] if self.ev.vector is not None else 1
            self.store_results(root, b.const(0.0, root.op.body.dtype, lanes))

        with ExitStack() as stack:
            stack.enter_context(self.where(first))
            for loop in outer:
                row = stack.enter_context(b.for_(b.idx(0), self.ev.dim(nest.extents[loop])))
                stack.enter_context(self.ev.scope())
                self.ev.bind([loop], row.index)
            extent, lanes = nest.extents[inner], self.lanes
            end = self.ev.dim(extent)
            self.vector_loop([inner], b.idx(0), end, lanes, divides(extent, lanes), False, store)

    def workgroups(self, count: DimLike) -> DimLike:
        """Workgroups to launch for ``count`` blocks: where a grid cannot have as many, each takes several."""
        return dims.minimum(count, self.target.max_workgroups)

    @property
    def lanes(self) -> int:
        """Vector lanes of f32."""
        return self.target.lanes(DType.F32)

    # Results ----------------------------------------------------------------------------------
    def store_results(self, root: Root, total: KValue) -> None:
        """Store every output at the bound loops, given the value ``total`` of the reduction ``root``
        there."""
        self.store_all({root: total})

    def store_all(self, totals: Mapping[Root, KValue]) -> None:
        """`store_results` given the values of several reductions."""
        for root, total in totals.items():
            self.ev.reduced[root.op] = total
        for root in self.nest.roots:
            if root.stores:
                value = totals[root] if root in totals else self.ev.root(root)
                self.ev.store(root.op.output, self.nest.store_address(root), value)

    def results(self, root: Root, total: KValue) -> list[tuple[Root, KValue]]:
        """What `store_results` stores, for `store_values`, which may follow later."""
        self.ev.reduced[root.op] = total
        stored = [other for other in self.nest.roots if other.stores]
        return [(other, total if other is root else self.ev.root(other)) for other in stored]

    def store_values(self, values: Sequence[tuple[Root, KValue]]) -> None:
        """Store outputs at the bound loops."""
        for root, value in values:
            self.ev.store(root.op.output, self.nest.store_address(root), value)

    def pieces(self, vector: KValue, count: int) -> Iterator[tuple[int, KValue]]:
        """The first ``count`` lanes of a vector in power-of-two pieces, each with its first lane."""
        for offset, width in power_of_two_pieces(count, vector.type.lanes):
            yield offset, self.piece(vector, offset, width)

    def piece(self, vector: KValue, first: int, lanes: int) -> KValue:
        """Some adjacent lanes of a vector."""
        if lanes == vector.type.lanes:
            return vector
        if lanes == 1:
            return self.b.extract(vector, first)
        return self.b.shuffle(vector, vector, tuple(range(first, first + lanes)))

    @contextmanager
    def where(self, condition: KValue | None) -> Iterator[None]:
        """Code that runs where a condition holds, with a scope of its own; always for None."""
        if condition is None:
            yield
            return
        with self.b.if_(condition), self.ev.scope():
            yield

    # Index helpers ----------------------------------------------------------------------------
    def minimum(self, a: KValue, b: KValue) -> KValue:
        """The smaller of two index values."""
        return self.b.binary("min", a, b)

    def clamped(self, extent: DimLike, tile: KValue, count: int) -> list[KValue]:
        """The ``count`` coordinates of a tile along a loop, clamped to the last element."""
        b = self.b
        start = b.mul(tile, b.idx(count))
        points = [b.add(start, b.idx(k)) for k in range(count)]
        if divides(extent, count):
            return points
        last = self.ev.dim(dims.add(extent, -1))
        return [self.minimum(p, last) for p in points]

    def last_place(self, extent: DimLike, count: int) -> KValue:
        """Where the last ``count`` of some elements begin; 0 where there may be none, and not before them."""
        last = self.ev.dim(dims.add(extent, -count))
        return last if dims.bounds(extent)[0] >= count else self.b.binary("max", last, self.b.idx(0))

    def decode(self, flat: KValue, extents: Sequence[DimLike]) -> list[KValue]:
        """Coordinates of a flat position, outer first."""
        out: list[KValue] = []
        for i, extent in enumerate(reversed(extents)):
            if i == len(extents) - 1:
                out.append(flat)
                break
            place, flat = self._split(flat, extent)
            out.append(place)
        return list(reversed(out))

    def _split(self, flat: KValue, extent: DimLike) -> tuple[KValue, KValue]:
        """The remainder and the quotient of a position. Drivers of GPUs cannot know that it is not negative,
        and would correct shifts for it."""
        b = self.b
        if self.target.is_gpu and isinstance(extent, int) and extent & (extent - 1) == 0 and extent > 0:
            if extent == 1:
                return b.idx(0), flat
            return b.binary("and", flat, b.idx(extent - 1)), b.binary(
                "shr", flat, b.idx(extent.bit_length() - 1)
            )
        size = self.ev.dim(extent)
        return b.binary("rem", flat, size), b.binary("div", flat, size)

    def bind_flat(self, groups: Sequence[Sequence[int]], flat: KValue) -> None:
        """Bind loop groups to the coordinates of a flat position."""
        coordinates = self.decode(flat, [self.nest.total(g) for g in groups])
        for group, value in zip(groups, coordinates, strict=True):
            self.ev.bind(group, value)

    def vector_loop(
        self,
        group: Sequence[int],
        lower: KValue,
        upper: KValue,
        lanes: int,
        exact: bool,
        overlap: bool,
        emit: Callable[[], None],
    ) -> None:
        """Emit ``emit`` for all elements from lower to upper along a loop group, in vectors of ``lanes``.

        With ``exact`` the count is a multiple of lanes. Otherwise the remainder is one more vector that
        overlaps the previous one (``overlap``: the loop has at least ``lanes`` elements, and may store
        elements twice), or single elements.
        """
        b = self.b

        def at(position: KValue, width: int) -> None:
            with self.ev.scope():
                self.ev.bind(group, position)
                self.ev.vector = (group[-1], width) if width > 1 else None
                emit()

        if lanes == 1:
            with b.for_(lower, upper) as loop:
                at(loop.index, 1)
            return
        step = b.idx(lanes)
        if exact:
            with b.for_(lower, upper, step) as loop:
                at(loop.index, lanes)
            return
        count = b.sub(upper, lower)
        rest = b.binary("rem", count, step)
        middle = b.sub(upper, rest)
        with b.for_(lower, middle, step) as loop:
            at(loop.index, lanes)
        if overlap:
            with b.if_(b.compare("gt", rest, b.idx(0))):
                at(b.sub(upper, step), lanes)
        else:
            with b.for_(middle, upper) as loop:
                at(loop.index, 1)


def power_of_two_below(value: int) -> int:
    """The largest power of two not above ``value`` (1 for anything below 2)."""
    return 1 << (value.bit_length() - 1) if value > 0 else 1


def power_of_two_pieces(count: int, widest: int) -> Iterator[tuple[int, int]]:
    """``count`` elements as vectors of powers of two up to ``widest``: their first elements and widths."""
    first = 0
    while first < count:
        width = power_of_two_below(min(count - first, widest))
        yield first, width
        first += width


def choose_lanes(extent: DimLike, widest: int) -> int:
    """Vector lanes for a loop: at most ``widest``, and not more than a static loop has elements."""
    if isinstance(extent, int):
        return min(widest, power_of_two_below(extent))
    return widest


def divides(extent: DimLike, lanes: int) -> bool:
    """Whether every value of ``extent`` is a multiple of ``lanes``."""
    if isinstance(extent, int):
        return extent % lanes == 0
    return extent.divisor() % lanes == 0


def estimate(extent: DimLike, unknown: int = 128) -> int:
    """A representative number of iterations, at least 1."""
    return max(1, dims.representative(extent, unknown))
