"""Emits scalar bodies as kernel IR, at a point of a loop nest or along a vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.byte_rounding import ByteRounding, byte_rounding
from mansard.analysis.linear import within
from mansard.codegen import math
from mansard.codegen.half_bytes import half_byte, half_bytes
from mansard.codegen.held_values import HeldValues
from mansard.codegen.index_masks import masked_within, page_split
from mansard.codegen.kernel import Binding, KernelBuilder, KValue
from mansard.codegen.loop_nest import ComputedPlace, Nest, Root
from mansard.codegen.positions import Params
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.ops import Generic
from mansard.ir.scalar import (
    Apply,
    Arg,
    Bitcast,
    Cast,
    Const,
    DimValue,
    Gather,
    Index,
    Scalar,
    walk,
)
from mansard.ir.types import Linear, Value

_NARROW = frozenset({DType.F16, DType.BF16, DType.F8})


_BYTES = {DType.I4: DType.I8, DType.U4: DType.U8}


def register_dtype(dtype: DType) -> DType:
    """The type a value is computed in: narrow floats are computed in f32, 4-bit integers are bytes."""
    return DType.F32 if dtype in _NARROW else _BYTES.get(dtype, dtype)


def _literal(node: Const) -> float | int | bool:
    """The value of a literal; one of a narrow float type is rounded to it."""
    if node.dtype in _NARROW:
        return float(np.asarray(node.value, dtype=node.dtype.numpy))
    return node.value


class Evaluator(HeldValues):
    """Emits reads, bodies and stores of one nest into a builder.

    Values already computed are reused inside the scope that computed them.
    """

    def __init__(self, nest: Nest, builder: KernelBuilder, params: Params) -> None:
        super().__init__(nest, builder, params)
        self.binding_of: dict[Value, int] = {}
        for i, value in enumerate(nest.buffers):
            self.binding_of.setdefault(value, i)
        self._gathers = False
        """Whether something was provided for gathers."""
        self.inside = False
        """Set by a schedule that visits only points at which padded reads stay inside."""
        self.reduced: dict[Generic, KValue] = {}
        self.specialised: Mapping[Generic, Generic] = {}
        """Ops specialised to the current piece of a loop (`mansard.codegen.loop_partition`)."""
        self.piece: tuple[int, int, int] | None = None
        """That loop, and the first iteration of the piece and the one after it."""
        self.blocks: Mapping[int, tuple[KValue, int]] = {}
        """Loops that run inside a block: its first index, which is a multiple of its size, and its size. Of
        pages that hold whole blocks, the number is then computed once a block."""

    # Scopes ---------------------------------------------------------------------------------
    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values computed and loops bound inside are valid inside only."""
        saved = (dict(self.loops), dict(self.shifts), self.vector, dict(self.reduced), dict(self._cache))
        multiple = self.multiple
        try:
            yield
        finally:
            self.loops, self.shifts, self.vector, self.reduced, self._cache = saved
            self.multiple = multiple

    # Reads and writes -------------------------------------------------------------------------
    def provide(self, value: Value, address: Linear, data: KValue) -> None:
        """Within this scope a read of ``value`` at ``address`` (at the bound loops) gives ``data``."""
        self._cache[value, self.place(address)] = data

    def knows(self, value: Value, address: Linear) -> bool:
        """Whether a read of ``value`` at ``address`` has been made or provided within this scope."""
        return (value, self.place(address)) in self._cache

    def provide_gathered(self, at: ComputedPlace, data: KValue) -> None:
        """The same for what an op reads at a computed place."""
        self._gathers = True
        self._cache[self.gather_key(at)] = data

    def load(self, value: Value, address: Linear) -> KValue:
        """Read a buffer; a vector when the address varies along the vector loop."""
        if value in self.held:
            return self._widen(self._load_held(self.held[value], address))
        memory = self.b.bindings[self.binding_of[value]]
        if value.type.dtype.bits < 8:
            return self._packed(memory, address, value.type.dtype)
        base, along = self.linear(address)
        if self.vector is None or along == 0:
            return self._widen(self.b.load(memory, base))
        lanes = self.vector[1]
        if dims.is_one(along):
            return self._widen(self.b.load(memory, base, lanes, aligned=self.aligned(address)))
        if along == 2 and lanes > 1 and lanes % 2 == 0:
            # Two plain loads and a shuffle: several times faster than a gather. Nothing past the
            # last lane's own element is read.
            second = self.b.load(memory, self.b.add(base, self.b.idx(lanes - 1)), lanes)
            evens = (*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2))
            return self._widen(self.b.shuffle(self.b.load(memory, base, lanes), second, evens))
        return self._widen(self.b.load(memory, self.lanes_of(address)))

    def store(self, value: Value, address: Linear, data: KValue) -> None:
        """Write a buffer; all lanes when the address varies along the vector loop. What is scattered goes to
        the rows of the state that their indices name."""
        if value in self.nest.scatters:
            self._scatter(value, address, data)
            return
        if value in self.held:
            self._store_held(self.held[value], address, data)
            return
        memory = self.b.bindings[self.nest.buffers.index(value)]
        data = self.narrow(data, value.type.dtype)
        base, along = self.linear(address)
        if self.vector is None or along == 0:
            self.b.store(memory, base, data)
        elif dims.is_one(along):
            data = self.b.splat(data, self.vector[1])
            self.b.store(memory, base, data, aligned=self.aligned(address))
        else:
            self.b.store(memory, self.lanes_of(address), self.b.splat(data, self.vector[1]))

    def _scatter(self, value: Value, address: Linear, data: KValue) -> None:
        """Write elements to the row of a state that an index tensor names, if that is in the state."""
        b, op = self.b, self.nest.scatters[value]
        row, column = self.nest.scatter_place(value, address)
        if self.vector is not None and any(loop == self.vector[0] for loop, _ in row.terms):
            self._scatter_lanes(value, address, data)
            return
        shape = op.inputs[0].type.shape
        keys = op.inputs[1].type.shape[1]
        assert isinstance(keys, int)
        vector, self.vector = self.vector, None
        tests, flat = [], b.idx(0)
        for k in range(keys):
            key = self.value(op.inputs[1], (row, Linear((), k)))
            tests.append(b.compare("ge", key, b.const(0, DType.I64)))
            tests.append(b.compare("lt", key, b.cast(self.dim(shape[k]), DType.I64)))
            flat = b.add(b.mul(flat, self.dim(shape[k])), b.cast(key, b.index))
        self.vector = vector
        size = dims.product(shape[keys:])
        memory = b.bindings[self.nest.buffers.index(op.output)]
        data = self.narrow(data, op.output.type.dtype)
        unknown = [test for test in tests if b.constant_value(test) is not True]
        inside = b.const(True, DType.BOOL)
        for number, test in enumerate(unknown):
            inside = b.binary("and", inside, test) if number else test
        with b.if_(inside), self.scope():
            place, along = self.linear(column)
            place = b.add(b.mul(flat, self.dim(size)), place)
            if self.vector is None or along == 0:
                b.store(memory, place, data)
                return
            lanes = self.vector[1]
            data = b.splat(data, lanes)
            if dims.is_one(along):
                whole = self.aligned(column) and dims.exact_div(size, lanes) is not None
                b.store(memory, place, data, aligned=whole)
                return
            for lane in range(lanes):
                b.store(memory, b.add(place, self.dim(dims.mul(along, lane))), b.extract(data, lane))

    def _scatter_lanes(self, value: Value, address: Linear, data: KValue) -> None:
        """`_scatter` of a vector that runs over several rows, element by element."""
        assert self.vector is not None
        loop, lanes = self.vector
        for lane in range(lanes):
            with self.scope():
                self.vector = None
                self.shifts[loop] = self.shifts.get(loop, 0) + lane
                self._scatter(value, address, self.b.extract(data, lane) if data.type.lanes > 1 else data)

    def _packed(
        self, memory: Binding, address: Linear, dtype: DType, first: KValue | None = None, step: DimLike = 0
    ) -> KValue:
        """4-bit integers at an address, and ``first``, a multiple of ``step``, behind it: a vector of them at
        once where it begins at a byte, on a CPU."""
        b, (base, along) = self.b, self.linear(address)
        first = first if first is not None else b.idx(0)
        lanes = self.vector[1] if self.vector and dims.is_one(along) and first.type.lanes == 1 else 1
        if b.takes_vectors and lanes % 4 == 0 and self.even(address) and dims.exact_div(step, 2) is not None:
            packed = b.load(memory, b.binary("shr", b.add(first, base), b.idx(1)), lanes // 2)
            return b.nibbles(packed, register_dtype(dtype), signed=dtype.is_signed)
        if lanes == 4 and self.even(address) and dims.exact_div(step, lanes) is not None:
            whole = self.aligned(address)
            half = half_bytes(b, memory, b.add(first, base), lanes, dtype, aligned=whole)
        else:
            half = half_byte(b, memory, b.add(first, self.lanes_of(address)), dtype)
        return b.cast(half, register_dtype(dtype))

    def _widen(self, value: KValue) -> KValue:
        return self.b.cast(value, register_dtype(value.type.dtype))

    def narrow(self, value: KValue, dtype: DType) -> KValue:
        """A register value as it is stored in memory of ``dtype``."""
        return self.b.cast(value, dtype)

    # Bodies -----------------------------------------------------------------------------------
    def root(self, root: Root) -> KValue:
        """A root's body at the bound loops."""
        return self.body(root.op, root.index)

    def value(self, value: Value, index: Sequence[Linear]) -> KValue:
        """Any value of the nest at an index."""
        base, where = self.nest.locate(value, index)
        # By the values of the loops, not by the loops: roots with loops of their own share what they have
        # bound to the same values.
        key = (base, *map(self.place, (where,) if isinstance(where, Linear) else where))
        if key in self._cache:
            return self._cache[key]
        if isinstance(where, Linear):
            result = self.load(base, where)
        else:
            op = self.nest.producers[base]
            assert isinstance(op, Generic)
            if op.combiner is not None:
                if op not in self.reduced:
                    raise CodegenError(f"{base} is read before it is reduced")
                return self.reduced[op]
            result = self.body(op, where)
        self._cache[key] = result
        return result

    def _padded(self, op: Generic, operand: int, index: Sequence[Linear]) -> KValue:
        """A read that gives the map's fill value where it lies outside the operand."""
        b, index_map = self.b, op.maps[operand]
        assert index_map is not None and index_map.fill is not None
        value, where = op.inputs[operand], self.nest.operand_index(op, operand, index)
        guards = self.nest.guards(op, operand, index)
        if self.inside or not guards:
            return self.value(value, where)
        base, address = self.nest.locate(value, where)
        if not isinstance(address, Linear):
            raise CodegenError(
                f"dispatch {self.nest.dispatch.name}: padded read of {value}, which is not stored"
            )
        limits = ((self.place(at), extent) for at, extent in guards)
        key = ("padded", base, index_map.fill, self.place(address), *limits)
        if key in self._cache:
            return self._cache[key]
        ok: KValue | None = None
        for at, extent in guards:
            place = self.lanes_of(at)
            low = b.compare("ge", place, b.splat(b.idx(0), place.type.lanes))
            high = b.compare("lt", place, b.splat(self.dim(extent), place.type.lanes))
            for test in (low, high):
                ok = test if ok is None else b.binary("and", ok, test)
        assert ok is not None
        memory = b.bindings[self.binding_of[base]]
        start, along = self.linear(address)
        lanes = self.vector[1] if self.vector is not None and along != 0 else 1
        if ok.type.lanes > 1:
            place = b.splat(self.lanes_of(address), ok.type.lanes)
            data = b.load(memory, b.select(ok, place, b.splat(b.idx(0), ok.type.lanes)))
        elif lanes == 1 or dims.is_one(along):
            data = b.load(memory, b.select(ok, start, b.idx(0)), lanes, aligned=self.aligned(address))
        else:
            data = b.load(
                memory, b.select(b.splat(ok, lanes), self.lanes_of(address), b.splat(b.idx(0), lanes))
            )
        data = self._widen(data)
        fill = b.const(index_map.fill, data.type.dtype)
        result = b.select(b.splat(ok, data.type.lanes), data, b.splat(fill, data.type.lanes))
        self._cache[key] = result
        return result

    def body(self, op: Generic, index: Sequence[Linear]) -> KValue:
        """An op's scalar body with its dims at ``index``."""
        op = self.specialised.get(op, op)
        done: dict[int, KValue] = {}
        for node in walk(op.body):
            done[id(node)] = self._node(op, node, index, done)
        return done[id(op.body)]

    def _node(self, op: Generic, node: Scalar, index: Sequence[Linear], done: dict[int, KValue]) -> KValue:
        b = self.b
        match node:
            case Arg() if (reads := op.maps[node.index]) is not None and reads.fill is not None:
                return self._padded(op, node.index, index)
            case Arg():
                return self.value(op.inputs[node.index], self.nest.operand_index(op, node.index, index))
            case Const():
                return b.const(_literal(node), register_dtype(node.dtype))
            case Index():
                return b.cast(self.lanes_of(index[node.dim]), DType.I64)
            case DimValue():
                return b.cast(self.dim(node.value), DType.I64)
            case Gather():
                return self._gather(op, node, index, done)
            case Apply(op=("shr" | "and")) if (place := self._paged(op, node, index)) is not None:
                return place
            case Apply():
                return math.apply_in_body(b, node.op, [done[id(k)] for k in node.args])
            case Cast() if (rounding := self._byte_rounding(node)) is not None:
                x = done[id(rounding.x)]
                if x.type.lanes > 1:
                    return b.round_bytes(x, node.dtype, rounding.zero, rounding.low, rounding.high)
                return b.cast(done[id(node.arg)], node.dtype)
            case Cast():
                value = b.cast(done[id(node.arg)], register_dtype(node.dtype))
                if node.dtype in _NARROW:  # rounding to the narrow type is part of the meaning
                    value = b.cast(b.cast(value, node.dtype), DType.F32)
                return value
            case Bitcast():
                return self._bitcast(node, done[id(node.arg)])

    def _byte_rounding(self, node: Cast) -> ByteRounding | None:
        return byte_rounding(node) if self.b.takes_vectors else None

    def _paged(self, op: Generic, node: Apply, index: Sequence[Linear]) -> KValue | None:
        """The page of an index inside a block (``index >> shift``), or its place in that page (``index &
        mask``), from those of the block's first; None where the index may leave the page."""
        split = page_split(node)
        if split is None:
            return None
        dim, page = split
        position = index[dim]
        loops = [loop for loop, _ in position.terms if loop in self.blocks]
        if len(loops) != 1 or not dims.is_one(dict(position.terms)[loops[0]]):
            return None
        (loop,) = loops
        block_first, size = self.blocks[loop]
        others = (position.offset, *(c for each, c in position.terms if each != loop))
        if page % size or any(dims.exact_div(c, size) is None for c in others):
            return None
        b, here = self.b, self.lanes_of(position)
        with self.scope():
            self.vector = None
            self.bind([loop], block_first)
            first = self.lanes_of(position)
        literal = b.const(page.bit_length() - 1 if node.op == "shr" else page - 1, DType.I64)
        result = b.binary(node.op, b.cast(first, DType.I64), literal)
        if node.op == "shr":
            return result
        lanes = here.type.lanes
        behind = b.cast(b.sub(here, b.splat(first, lanes)), DType.I64)
        return b.add(b.splat(result, lanes), behind)

    def _bitcast(self, node: Bitcast, value: KValue) -> KValue:
        if node.arg.dtype in _NARROW or node.dtype in _NARROW:
            narrow = self.narrow(value, node.arg.dtype)
            return self._widen(self.b.bitcast(narrow, node.dtype))
        return self.b.bitcast(value, node.dtype)

    def _gather(
        self, op: Generic, node: Gather, index: Sequence[Linear], done: Mapping[int, KValue]
    ) -> KValue:
        """A read at computed indices, each clamped into the operand unless it is known to be inside."""
        b, buffer = self.b, self.nest.buffer(op.inputs[node.operand])
        if self._gathers:
            known = self._cache.get(self.gather_key(self.nest.computed_place(op, node, index)))
            if known is not None:
                return known
        inside, computed, step = self._gather_place(op, node, index, done)
        if buffer in self.held:
            return self._widen(self._held_element(self.held[buffer], b.add(computed, self.lanes_of(inside))))
        memory = b.bindings[self.binding_of[buffer]]
        if buffer.type.dtype.bits < 8:
            return self._packed(memory, inside, buffer.type.dtype, computed, step)
        base, along = self.linear(inside)
        if self.vector is not None and along == 1 and computed.type.lanes == 1:
            # A row at a computed place: its elements lie side by side.
            aligned = self.aligned(inside) and dims.exact_div(step, self.vector[1]) is not None
            return self._widen(b.load(memory, b.add(computed, base), self.vector[1], aligned=aligned))
        return self._widen(b.load(memory, b.add(computed, self.lanes_of(inside))))

    def _gather_place(
        self, op: Generic, node: Gather, index: Sequence[Linear], done: Mapping[int, KValue]
    ) -> tuple[Linear, KValue, DimLike]:
        """The affine and the computed part of the place that a gather reads, and a divisor of the latter."""
        b, affine = self.b, Affine(op.extents)
        inside, computed = Linear(), b.idx(0)
        step: DimLike = 0
        for scalar, extent in zip(node.indices, op.inputs[node.operand].type.shape, strict=True):
            inside = inside.scaled(extent)
            computed = b.mul(computed, self.dim(extent))
            step = dims.mul(step, extent)
            linear = affine.linear(scalar)
            if linear is not None and self._is_inside(linear, op, index, extent):
                inside = inside.plus(linear.compose(index))
                continue
            position = done[id(scalar)]
            if not masked_within(scalar, extent):
                low = b.const(0, DType.I64)
                high = b.cast(self.dim(dims.add(extent, -1)), DType.I64)
                position = b.binary("max", b.binary("min", position, high), low)
            computed, step = b.add(computed, b.cast(position, b.index)), 1
        return inside, computed, step

    def _is_inside(self, at: Linear, op: Generic, index: Sequence[Linear], extent: DimLike) -> bool:
        """Whether an index is known to be below ``extent``, at all points of an op or at those of the current
        piece of a loop."""
        if within(at, op.extents, extent):
            return True
        place = at.compose(index)
        if self.piece is None or [loop for loop, _ in place.terms] != [self.piece[0]]:
            return False
        ends = [
            dims.add(place.offset, dims.mul(place.terms[0][1], i)) for i in (self.piece[1], self.piece[2] - 1)
        ]
        return all(isinstance(end, int) and isinstance(extent, int) and 0 <= end < extent for end in ends)

    def gathered(self, op: Generic, node: Gather, index: Sequence[Linear]) -> KValue:
        """The computed part of the place that a gather reads (`Nest.computed_place`), at the bound loops."""
        affine, extents = Affine(op.extents), op.inputs[node.operand].type.shape
        done: dict[int, KValue] = {}
        for scalar, extent in zip(node.indices, extents, strict=True):
            linear = affine.linear(scalar)
            if linear is None or not within(linear, op.extents, extent):
                for child in walk(scalar):
                    done[id(child)] = self._node(op, child, index, done)
        return self._gather_place(op, node, index, done)[1]

    def gather_key(self, at: ComputedPlace) -> tuple[object, ...]:
        """What a gather reads at the bound loops, by their values."""
        return id(at.node), self.place(at.affine), *(self.place(x) for x in at.positions)

    def part(self, root: Root, node: Scalar) -> KValue:
        """One subtree of a root's body at the bound loops."""
        done: dict[int, KValue] = {}
        for child in walk(node):
            done[id(child)] = self._node(root.op, child, root.index, done)
        return done[id(node)]
