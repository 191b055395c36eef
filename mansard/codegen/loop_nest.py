"""Loop-nest analysis of a dispatch: which loops there are and what every read looks like over them.

The *domain loops* are shared by all ops of the dispatch. Each *root* (a reduction, or a stored
output) may add *inner loops* of its own. Every read of a buffer is one flat element address, affine in
the loops, because buffers are dense: reshapes cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.linear import within
from mansard.analysis.loops import collapse, delinearize, linearize, permutation_order
from mansard.analysis.operands import copied, is_copy
from mansard.dims import DimLike
from mansard.errors import CodegenError
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic, Op, Reshape, Scatter
from mansard.ir.producers import base_of
from mansard.ir.scalar import Arg, Gather, Index, Scalar, walk
from mansard.ir.types import Linear, Value


@dataclass(frozen=True, eq=False)
class Root:
    """A reduction to compute, or an output to store, with the loops around it.

    ``index`` gives the op's own dims over the loops; ``inner`` are the loops beyond the domain.
    """

    op: Generic
    index: tuple[Linear, ...]
    inner: tuple[int, ...]
    stores: bool

    @property
    def reduces(self) -> bool:
        """Whether the inner loops are reduced."""
        return self.op.combiner is not None


Guard = tuple[Linear, DimLike]
"""A coordinate over the loops, and the extent it has to stay below."""


@dataclass(frozen=True)
class ComputedPlace:
    """Where an op reads a buffer by `Gather`, at an index over the loops: an affine part and a computed
    one."""

    op: Generic
    node: Gather
    index: tuple[Linear, ...]
    affine: Linear
    positions: tuple[Linear, ...]
    """From which the computed part is."""
    step: DimLike
    """What divides the computed part."""
    strides: Linear
    """How the place moves with each loop, as far as indices are affine; what computes an index moves it by
    one."""


@dataclass(frozen=True)
class Read:
    """A read of a buffer at a flat ``address``, or at a computed place (None).

    ``guards`` are the coordinates that may lie outside their extents, where the read gives a fill value.
    """

    value: Value
    address: Linear | None
    guards: tuple[Guard, ...] = ()
    computed: ComputedPlace | None = None

    @property
    def strides(self) -> Linear | None:
        """The address, or for a computed place what is known of its steps: which loops run along the buffer,
        and how far apart their elements are."""
        if self.address is not None:
            return self.address
        return self.computed.strides if self.computed is not None else None


@dataclass(frozen=True)
class ChosenMatrix:
    """Where a matrix lies that an index chooses out of a stack (`schedules.common.chosen_matrices`)."""

    count: int
    """Matrices of the stack."""
    index: Value
    """The buffer that holds their numbers (i64)."""
    place: Linear
    """Where in it the number stands, over the loops."""


class Nest:
    """The loops, roots and buffers of one dispatch of Generics."""

    def __init__(self, dispatch: Dispatch, buffers: Sequence[Value] | None = None) -> None:
        """``buffers``: those of the kernel, where the nest is a part of it; else the dispatch's operands."""
        self.dispatch = dispatch
        self.producers: dict[Value, Op] = {v: op for op in dispatch.ops for v in op.outputs}
        self.extents: list[DimLike] = list(dispatch.domain)
        self.domain = len(self.extents)
        self.buffers = tuple(buffers) if buffers is not None else (*dispatch.inputs, *dispatch.outputs)
        self.inputs = frozenset(dispatch.inputs)
        self.scatters = {self._rows_of(op): op for op in dispatch.ops if isinstance(op, Scatter)}
        """Scatters into states by the value that they write the rows of."""
        self.matrices: dict[Value, ChosenMatrix] = {}
        """Buffers that are matrices of stacks."""
        self.fixed: frozenset[int] = frozenset()
        """Loops of the domain that choose them. Each workgroup has one point of these, which no schedule
        sees: they are not among the `collapsed` ones."""
        self.partial = False
        """Whether a negative number chooses no matrix: the sums are zero there."""
        self.roots = self._roots()

    @property
    def choosing(self) -> set[int]:
        """The loops that choose matrices: those of the domain that are fixed, and reduced ones."""
        loops = (loop for matrix in self.matrices.values() for loop, _ in matrix.place.terms)
        return {loop for loop in loops if not dims.is_one(self.extents[loop])}

    # Loops ----------------------------------------------------------------------------------
    def new_loop(self, extent: DimLike) -> int:
        """Add an inner loop."""
        self.extents.append(extent)
        return len(self.extents) - 1

    def domain_position(self) -> Linear:
        """The flat position of the domain point."""
        loops = [Linear.dim(i) for i in range(self.domain)]
        return linearize(loops, self.extents[: self.domain])

    def result_strides(self) -> dict[int, DimLike]:
        """How far apart the loops' neighbours are in a result that has the order of the domain."""
        return dict(self.domain_position().terms)

    def _roots(self) -> list[Root]:
        outputs = {*self.dispatch.outputs, *self.scatters}
        roots = []
        for op in self.dispatch.ops:
            if isinstance(op, (Reshape, Scatter)):
                continue
            if not isinstance(op, Generic):
                raise CodegenError(f"{op.name} has a kernel of its own and cannot stand in a loop nest")
            stores = op.output in outputs
            if op.combiner is not None or stores:
                roots.append(self._root(op, stores))
        return roots

    def _rows_of(self, op: Scatter) -> Value:
        """The result that a scatter writes; its kernel does so in place and in any order."""
        value = base_of(op.inputs[2], self.producers)
        if value not in self.producers or not op.unique or op.inputs[0] not in self.dispatch.in_place:
            raise CodegenError(f"{op.name} into {op.inputs[0]} has a kernel of its own")
        return value

    def _root(self, op: Generic, stores: bool) -> Root:
        split = op.rank if op.combiner else self._split(op)
        outer = delinearize(self.domain_position(), self.extents, op.extents[:split])
        # A sum is there at its own point; maps are evaluated wherever they are read.
        if split == len(op.extents) and (outer is None or self._reduces()):
            outer = self._transposed(op) or outer
        if outer is None:
            raise CodegenError(f"dispatch {self.dispatch.name}: {op.output} does not fit its loops")
        inner = [self.new_loop(extent) for extent in op.extents[split:]]
        index = (*outer, *(Linear.dim(loop) for loop in inner))
        return Root(op, index, tuple(inner), stores)

    def _reduces(self) -> bool:
        return any(isinstance(op, Generic) and op.combiner for op in self.dispatch.ops)

    def _transposed(self, op: Generic) -> tuple[Linear, ...] | None:
        """The dims over the loops of an op that copies the result of another one in another order, so that
        each point copies what it computed; None for other ops."""
        if not is_copy(op):
            return None
        value, index_map = copied(op)
        base, _ = self.locate(value, [Linear()] * value.type.rank)
        if base not in self.producers:
            return None
        order = permutation_order(linearize(index_map.results, value.type.shape), op.extents)
        if order is None or list(order) == sorted(order):
            return None
        shape = [op.extents[d] for d in order]
        places = delinearize(self.domain_position(), self.extents, shape)
        if places is None:
            return None
        by_dim = dict(zip(order, places, strict=True))
        return tuple(by_dim.get(d, Linear()) for d in range(len(op.extents)))

    def _split(self, op: Generic) -> int:
        total = dims.product(self.extents[: self.domain])
        for split in range(len(op.extents), -1, -1):
            if dims.product(op.extents[:split]) == total:
                return split
        raise CodegenError(f"dispatch {self.dispatch.name}: {op.output} does not cover its domain")

    # Reads ----------------------------------------------------------------------------------
    def operand_index(self, op: Generic, operand: int, index: Sequence[Linear]) -> tuple[Linear, ...]:
        """Where ``op`` reads an operand when its own dims are at ``index``."""
        index_map = op.maps[operand]
        assert index_map is not None
        return tuple(r.compose(index) for r in index_map.results)

    def guards(self, op: Generic, operand: int, index: Sequence[Linear]) -> tuple[Guard, ...]:
        """The coordinates of a padded operand that may lie outside it; none for other operands."""
        index_map = op.maps[operand]
        if index_map is None or index_map.fill is None:
            return ()
        pairs = zip(self.operand_index(op, operand, index), op.inputs[operand].type.shape, strict=True)
        return tuple((at, extent) for at, extent in pairs if not self._surely_inside(at, extent))

    def _surely_inside(self, at: Linear, extent: DimLike) -> bool:
        low = high = at.offset
        for loop, coefficient in at.terms:
            reach = dims.mul(coefficient, dims.add(self.extents[loop], -1))
            if dims.bounds(coefficient)[0] >= 0:
                high = dims.add(high, reach)
            else:
                low = dims.add(low, reach)
        room = dims.add(extent, dims.mul(high, -1))
        return dims.bounds(low)[0] >= 0 and dims.bounds(room)[0] >= 1

    def through_reshape(self, op: Reshape, index: Sequence[Linear]) -> tuple[Linear, ...]:
        """The index into the reshape's input for an index into its result."""
        source = op.inputs[0].type.shape
        places = delinearize(linearize(index, op.output.type.shape), self.extents, source)
        if places is None:
            raise CodegenError(f"dispatch {self.dispatch.name}: reshape of {op.inputs[0]} splits its loops")
        return places

    def locate(self, value: Value, index: Sequence[Linear]) -> tuple[Value, tuple[Linear, ...] | Linear]:
        """The op value and its index, or the buffer and its flat address, behind a read."""
        flat: Linear | None = None
        while isinstance(op := self.producers.get(value), Reshape):
            source = op.inputs[0]
            if flat is None:
                flat = linearize(index, value.type.shape)
            value = source
        if isinstance(op, Generic):
            if flat is None:
                return value, tuple(index)
            places = delinearize(flat, self.extents, value.type.shape)
            if places is None:
                raise CodegenError(f"dispatch {self.dispatch.name}: a reshape of {value} splits its loops")
            return value, places
        return value, flat if flat is not None else linearize(index, value.type.shape)

    def reads(self, root: Root) -> list[Read]:
        """Every buffer read made to evaluate a root's body once."""
        reads: list[Read] = []
        self._collect(root.op, root.index, reads, set())
        return reads

    def part_reads(self, root: Root, part: Scalar) -> tuple[list[Read], list[Linear]]:
        """What a subtree of a root's body depends on: the buffer reads made to evaluate it once, and the
        positions it uses as numbers."""
        reads: list[Read] = []
        uses: list[Linear] = []
        for node in walk(part):
            if isinstance(node, Arg):
                where = self.operand_index(root.op, node.index, root.index)
                guards = self.guards(root.op, node.index, root.index)
                value = root.op.inputs[node.index]
                self._collect_value(value, where, guards, reads, set())
                base, place = self.locate(value, where)
                producer = self.producers.get(base)
                if isinstance(producer, Generic) and not isinstance(place, Linear):
                    self._index_uses(producer, place, uses, set())
            elif isinstance(node, Gather):
                reads.append(Read(self.buffer(root.op.inputs[node.operand]), None))
            elif isinstance(node, Index):
                uses.append(root.index[node.dim])
        return reads, uses

    def _collect(self, op: Generic, index: Sequence[Linear], reads: list[Read], seen: set[object]) -> None:
        key = (op, tuple(index))
        if key in seen:
            return
        seen.add(key)
        for node in walk(op.body):
            if isinstance(node, Arg):
                where = self.operand_index(op, node.index, index)
                guards = self.guards(op, node.index, index)
                self._collect_value(op.inputs[node.index], where, guards, reads, seen)
            elif isinstance(node, Gather):
                place = self.computed_place(op, node, index)
                reads.append(Read(self.buffer(op.inputs[node.operand]), None, computed=place))

    def computed_place(self, op: Generic, node: Gather, index: Sequence[Linear]) -> ComputedPlace:
        """The place that a gather reads."""
        affine, strides, positions = Linear(), Linear(), list[Linear]()
        step: DimLike = 0
        for extent, linear, used in self._gather_indices(op, node, index):
            affine, strides, step = affine.scaled(extent), strides.scaled(extent), dims.mul(step, extent)
            if linear is not None:
                affine, strides = affine.plus(linear), strides.plus(linear)
                continue
            for loop in sorted({loop for place in used for loop, _ in place.terms}):
                strides = strides.plus(Linear.dim(loop))
            positions, step = [*positions, *used], 1
        return ComputedPlace(op, node, tuple(index), affine, tuple(positions), step, strides)

    def _gather_indices(
        self, op: Generic, node: Gather, index: Sequence[Linear]
    ) -> Iterator[tuple[DimLike, Linear | None, list[Linear]]]:
        """For each axis: its extent, the index over the loops if that is affine and inside, and otherwise the
        positions from which it is computed."""
        affine = Affine(op.extents)
        for scalar, extent in zip(node.indices, op.inputs[node.operand].type.shape, strict=True):
            linear = affine.linear(scalar)
            if linear is not None and within(linear, op.extents, extent):
                yield extent, linear.compose(index), []
                continue
            used: list[Linear] = []
            for part in walk(scalar):
                if isinstance(part, Arg):
                    used.extend(self.operand_index(op, part.index, index))
                elif isinstance(part, Index):
                    used.append(index[part.dim])
            yield extent, None, used

    def _collect_value(
        self,
        value: Value,
        index: tuple[Linear, ...],
        guards: tuple[Guard, ...],
        reads: list[Read],
        seen: set[object],
    ) -> None:
        base, where = self.locate(value, index)
        if isinstance(where, Linear):
            reads.append(Read(base, where, guards))
            return
        op = self.producers[base]
        assert isinstance(op, Generic)
        if op.combiner is None:
            self._collect(op, where, reads, seen)

    def buffer(self, value: Value) -> Value:
        """The buffer behind a value read by `Gather`."""
        base = base_of(value, self.producers)
        if base in self.producers:
            raise CodegenError(f"dispatch {self.dispatch.name}: gather from {base}, which is not stored")
        return base

    def positions(self, root: Root) -> list[Linear]:
        """Everything whose value depends on the loops: reads, guards, index uses, the store."""
        out = _places(self.reads(root))
        out.extend(matrix.place for matrix in self.matrices.values())
        self._index_uses(root.op, root.index, out, set())
        if root.stores:
            out.extend(self._store_positions(root))
        return out

    def _store_positions(self, root: Root) -> Sequence[Linear]:
        address = self.store_address(root)
        scatter = self.scatters.get(root.op.output)
        if scatter is None:
            return (address,)
        row, column = self.scatter_place(root.op.output, address)
        indices, out = scatter.inputs[1], [address, row, column]
        for number in range(dims.bounds(indices.type.shape[1])[1]):
            at = (row, Linear((), number))
            reads: list[Read] = []
            self._collect_value(indices, at, (), reads, set())
            out.extend(_places(reads))
            base, where = self.locate(indices, at)
            producer = self.producers.get(base)
            if isinstance(producer, Generic) and not isinstance(where, Linear):
                self._index_uses(producer, where, out, set())
        return out

    def _index_uses(self, op: Generic, index: Sequence[Linear], out: list[Linear], seen: set[object]) -> None:
        key = (op, tuple(index))
        if key in seen:
            return
        seen.add(key)
        for node in walk(op.body):
            if isinstance(node, Index):
                out.append(index[node.dim])
            elif isinstance(node, Arg):
                base, where = self.locate(op.inputs[node.index], self.operand_index(op, node.index, index))
                producer = self.producers.get(base)
                if (
                    isinstance(producer, Generic)
                    and producer.combiner is None
                    and not isinstance(where, Linear)
                ):
                    self._index_uses(producer, where, out, seen)

    def store_address(self, root: Root) -> Linear:
        """Where a stored root writes."""
        return linearize(root.index[: root.op.rank], root.op.output.type.shape)

    def memory_order(self) -> list[int]:
        """The loops of the domain in the order of the result's memory, innermost last: their own but for
        results in the order of a transpose."""
        loops = list(range(self.domain))
        stored = [root for root in self.roots if root.stores]
        steps = dict(self.store_address(stored[0]).terms)
        if len(stored) > 1 or steps == self.result_strides():
            return loops
        return sorted(loops, key=lambda loop: -dims.representative(steps.get(loop, 0)))

    def scatter_place(self, value: Value, address: Linear) -> tuple[Linear, Linear]:
        """The row of a scatter that a position of its rows belongs to, and the position in the row."""
        count, *inner = self.scatters[value].inputs[2].type.shape
        place = delinearize(address, self.extents, (count, dims.product(inner)))
        if place is None:
            raise CodegenError(f"dispatch {self.dispatch.name}: loops run over the ends of scattered rows")
        return place[0], place[1]

    def collapsed(self, loops: Sequence[int], positions: Sequence[Linear]) -> list[list[int]]:
        """``loops`` (adjacent, outer first) grouped into loops that can run as one; unit and fixed loops
        dropped."""
        kept = [loop for loop in loops if not dims.is_one(self.extents[loop]) and loop not in self.fixed]
        renumbered = {loop: i for i, loop in enumerate(kept)}
        local = [
            Linear(tuple(sorted((renumbered[d], c) for d, c in p.terms if d in renumbered)))
            for p in positions
        ]
        groups = collapse([self.extents[loop] for loop in kept], local)
        return [[kept[i] for i in group] for group in groups]

    def total(self, loops: Sequence[int]) -> DimLike:
        """The number of iterations of some loops."""
        return dims.product(self.extents[loop] for loop in loops)


def _places(reads: Sequence[Read]) -> list[Linear]:
    """Where reads take place, and what decides whether they do."""
    addresses = [r.address for r in reads if r.address is not None]
    return [*addresses, *(place for r in reads for place, _ in r.guards)]
