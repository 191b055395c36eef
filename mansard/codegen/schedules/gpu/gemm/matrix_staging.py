"""Staging of one factor of a cooperative-matrix product, tile by tile, from global to shared memory.

Tiles are in shared memory in the factor's type, in vectors of 16 bytes along the loop that is contiguous in
global memory: its rows or columns ("side") or the depth. Cooperative matrices can be loaded in both orders,
so nothing is transposed. A factor that is a plain read moves in whole vectors; any other expression (maps
fused before the product, conversions, padding, odd sizes) is computed element by element and packed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.loop_nest import Guard, Nest, Root
from mansard.codegen.schedules.common.base import Frame, divides
from mansard.codegen.schedules.common.dequantised import dequantised_product
from mansard.codegen.schedules.gpu.gemm.product import LANES, Factor, gather_of
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.ops import Generic
from mansard.ir.scalar import Arg, Cast, Gather, Scalar
from mansard.ir.types import Linear, Value

VECTOR_BITS = 128
"""Bits of the largest memory access of an invocation."""
PAD = 1
"""Vectors of padding between the lines (rows along the contiguous loop) of a tile: lines that are read
together are then in different banks."""
WORDS = 4
"""32-bit words of a vector."""
SCALE, ZERO = 2, 3
"""Words of the scale and the zero beside integers; there are at most two words of these."""
OPERANDS = {DType.F32: (DType.F16, DType.BF16), DType.I32: (DType.I8,)}
"""Types of factors by the type they are multiplied in."""


@dataclass(frozen=True)
class StagedOperand:
    """A factor with its type in shared memory.

    ``value`` and ``address`` locate whole vectors that can be copied; None: it is computed, ``lanes``
    elements at a time.
    """

    factor: Factor
    dtype: DType
    along: str
    lanes: int
    value: Value | None = None
    address: Linear | None = None
    guards: tuple[Guard, ...] = ()
    """Guards outside which such a read yields zeros, for whole vectors."""
    gather: Gather | None = None
    """What gives the rest of the address, where a batch computes that."""
    scales: tuple[Scalar, ...] = ()
    """Of a weight of small integers: factors that the vectors are multiplied with; they are then rounded."""
    zero: Scalar | None = None
    """What the integers are reduced by before that."""

    @property
    def per_vector(self) -> int:
        """Elements of a vector."""
        return VECTOR_BITS // self.dtype.bits

    def line(self, side: int, depth: int) -> int:
        """The stride of a tile's lines in shared memory, in vectors."""
        return (depth if self.along == "depth" else side) // self.per_vector + PAD

    def vectors(self, side: int, depth: int) -> int:
        """Vectors of a tile in shared memory."""
        return (side if self.along == "depth" else depth) * self.line(side, depth)


def operand(nest: Nest, root: Root, factor: Factor, other: Factor) -> StagedOperand | None:
    """The factor as an operand of cooperative matrices; None if its type is unsupported. A weight of small
    integers has the type of the ``other`` factor, to which it is rounded."""
    accumulator = register_dtype(root.op.body.dtype)
    dtype = _operand_type(nest, root.op, factor.part, accumulator)
    if dtype is None:
        dtype = _operand_type(nest, root.op, other.part, accumulator)
        return _dequantised(nest, root, factor, dtype) if dtype in OPERANDS[DType.F32] else None
    gather = gather_of(factor.part)
    read = _plain_read(nest, root, factor.part)
    if gather is not None:
        place = nest.computed_place(root.op, gather, root.index).affine
        read = nest.buffer(root.op.inputs[gather.operand]), place, ()
    if read is not None and read[0].type.dtype is dtype:
        value, address, guards = read
        per = VECTOR_BITS // dtype.bits
        for along, group in (("depth", factor.depth[-1]), ("side", factor.groups[-1])):
            varies = any(loop == group[-1] for at, _ in guards for loop, _ in at.terms)
            whole = _whole_vectors(nest, address, group[-1], per) and divides(nest.total(group), per)
            placed = gather is None or divides(value.type.shape[-1], per)
            if whole and placed and not varies:
                return StagedOperand(factor, dtype, along, per, value, address, guards, gather)
    return StagedOperand(factor, dtype, factor.along, factor.lanes)


def _dequantised(nest: Nest, root: Root, factor: Factor, dtype: DType) -> StagedOperand | None:
    """A weight of integers with scales, whose whole vectors are each of one group; None for other factors."""
    product = dequantised_product(nest, root, chosen=True)
    if product is None or product.offset is not None:
        return None
    gather = product.code.arg if isinstance(product.code.arg, Gather) else None
    codes, inner, per = product.codes, product.reduced[-1], VECTOR_BITS // dtype.bits
    scales = (*product.inner, *product.outer)
    nodes = [*scales, *((product.zero,) if product.zero is not None else ())]
    own = {read.value for read in nest.part_reads(root, factor.part)[0]}
    used = {read.value for node in nodes for read in nest.part_reads(root, node)[0]}
    if codes.value not in own or not used <= own or not scales:
        return None
    whole = _whole_vectors(nest, codes.address, inner[-1], per) and divides(nest.total(inner), per)
    value, address = codes.value, codes.address
    if (
        not whole
        or factor.along != "depth"
        or (gather is not None and not divides(value.type.shape[-1], per))
    ):
        return None
    return StagedOperand(
        factor, dtype, "depth", per, value, address, gather=gather, scales=scales, zero=product.zero
    )


def _operand_type(nest: Nest, op: Generic, node: Scalar, accumulator: DType) -> DType | None:
    """The type of factors for sums in ``accumulator`` that represents every value of a scalar exactly, if
    any."""
    if node.dtype in OPERANDS.get(accumulator, ()):
        return node.dtype
    if isinstance(node, Cast) and node.dtype is accumulator:
        return _operand_type(nest, op, node.arg, accumulator)
    if isinstance(node, Arg):
        producer = nest.producers.get(op.inputs[node.index])
        if isinstance(producer, Generic) and producer.combiner is None:
            return _operand_type(nest, producer, producer.body, accumulator)
    return None


def _plain_read(nest: Nest, root: Root, part: Scalar) -> tuple[Value, Linear, tuple[Guard, ...]] | None:
    """The buffer, address and guards of a factor that is only a read, with zeros outside, and a cast."""
    node = part.arg if isinstance(part, Cast) else part
    if not isinstance(node, Arg):
        return None
    index_map = root.op.maps[node.index]
    if index_map is None or index_map.fill not in (None, 0):
        return None
    value, where = nest.locate(
        root.op.inputs[node.index], nest.operand_index(root.op, node.index, root.index)
    )
    guards = nest.guards(root.op, node.index, root.index)
    return (value, where, guards) if isinstance(where, Linear) else None


def _whole_vectors(nest: Nest, address: Linear, loop: int, per: int) -> bool:
    """Whether vectors along a loop are aligned for all values of the other loops."""
    steps = dict(address.terms)
    if not dims.is_one(steps.get(loop, 0)):
        return False
    others = [step for at, step in steps.items() if at != loop and not dims.is_one(nest.extents[at])]
    return all(divides(step, per) for step in (*others, address.offset))


@dataclass(frozen=True)
class MatrixTileAddress:
    """The addresses of a tile's vector that an invocation moves.

    ``at`` is its position in the tile, in vectors; ``sides`` are the loops of the side and ``depths`` the
    depth in the tile, for each piece of the vector that is loaded at once; ``base`` is its address in the
    first tile, if other tiles have a constant offset from it.
    """

    at: KValue
    sides: Sequence[Sequence[KValue]]
    depths: Sequence[KValue]
    inside: KValue | None
    base: KValue | None
    further: int = 0
    """The offset from ``base`` in elements, if several vectors share it."""


class MatrixStager:
    """Moves tiles of one operand: ``side`` by ``depth``, shared by ``threads`` invocations."""

    def __init__(
        self,
        frame: Frame,
        root: Root,
        operand: StagedOperand,
        total_depth: DimLike,
        side: int,
        depth: int,
        threads: int,
    ) -> None:
        self.frame, self.root, self.operand, self.total_depth = frame, root, operand, total_depth
        self.side, self.depth, self.threads = side, depth, threads
        self.places: list[MatrixTileAddress] = []
        self.line = operand.line(side, depth)
        self.matrix: KValue | None = None
        """Where the matrix of a batch begins, if that is computed."""

    def start(self, first: KValue, thread: KValue) -> None:
        """Prepare invocation ``thread`` for the tiles of the rows or columns from ``first`` on."""
        b, operand = self.frame.b, self.operand
        if operand.gather is not None:
            self.matrix = self.frame.ev.gathered(self.root.op, operand.gather, self.root.index)
        per, along_side = operand.per_vector, operand.along == "side"
        fast = (self.side if along_side else self.depth) // per
        count = (self.depth if along_side else self.side) * fast
        self.places = []
        for turn in range(-(-count // self.threads)):
            number = b.add(thread, b.idx(turn * self.threads))
            inside = b.compare("lt", number, b.idx(count)) if (turn + 1) * self.threads > count else None
            if inside is not None:
                number = self.frame.minimum(number, b.idx(count - 1))
            line, vector = self._split(number, fast)
            place = self._place(first, line, vector, inside)
            apart = self._lines_apart(fast) if self.places else None
            if apart is not None:
                place = dataclasses.replace(place, base=self.places[0].base, further=turn * apart)
            self.places.append(place)

    def _lines_apart(self, fast: int) -> int | None:
        """The elements between an invocation's successive vectors, if that is a single static number."""
        operand = self.operand
        whole = self.threads % fast == 0 and divides(operand.factor.extent, self.side)
        if operand.address is None or operand.guards or not whole or len(operand.factor.depth) != 1:
            return None
        walked = operand.factor.groups if operand.along == "depth" else operand.factor.depth
        step = dict(operand.address.terms).get(walked[-1][-1], 0)
        return step * (self.threads // fast) if len(walked) == 1 and isinstance(step, int) else None

    def _split(self, number: KValue, fast: int) -> tuple[KValue, KValue]:
        b = self.frame.b
        if fast & (fast - 1):
            return b.binary("div", number, b.idx(fast)), b.binary("rem", number, b.idx(fast))
        shift = b.idx(fast.bit_length() - 1)
        return b.binary("shr", number, shift), b.binary("and", number, b.idx(fast - 1))

    def _place(self, first: KValue, line: KValue, vector: KValue, inside: KValue | None) -> MatrixTileAddress:
        b, operand = self.frame.b, self.operand
        along_side = operand.along == "side"
        start = b.mul(vector, b.idx(operand.per_vector))
        sides, depths = [], []
        for piece in range(0, operand.per_vector, operand.lanes):
            moved = b.add(start, b.idx(piece))
            side, depth = (moved, line) if along_side else (line, moved)
            sides.append(self._coordinates(b.add(first, side), operand.lanes if along_side else 1))
            depths.append(depth)
        at = b.add(b.mul(line, b.idx(self.line)), vector)
        base = None
        if operand.address is not None and len(operand.factor.depth) == 1 and not operand.guards:
            base = self._address(sides[0], depths[0])
        return MatrixTileAddress(at, sides, depths, inside, base)

    def _coordinates(self, at: KValue, lanes: int) -> Sequence[KValue]:
        """The loops of the side at a row or column, clamped to the last one (or the last vector)."""
        frame, factor = self.frame, self.operand.factor
        if not divides(factor.extent, self.side):
            at = frame.minimum(at, frame.ev.dim(dims.add(factor.extent, -lanes)))
        return frame.decode(at, [frame.nest.total(group) for group in factor.groups])

    def _bind(self, side: Sequence[KValue], depth: KValue) -> None:
        for group, value in zip(self.operand.factor.groups, side, strict=True):
            self.frame.ev.bind(group, value)
        self.frame.bind_flat(self.operand.factor.depth, depth)

    def _address(self, side: Sequence[KValue], depth: KValue) -> KValue:
        assert self.operand.address is not None
        with self.frame.ev.scope():
            self._bind(side, depth)
            return self._linear(self.operand.address)

    def _linear(self, address: Linear) -> KValue:
        place = self.frame.ev.linear(address)[0]
        return place if self.matrix is None else self.frame.b.add(self.matrix, place)

    def _guarded(self, side: Sequence[KValue], depth: KValue) -> tuple[KValue, KValue | None]:
        """An address, and whether its element is within the guards (None: always)."""
        b, ev, operand = self.frame.b, self.frame.ev, self.operand
        assert operand.address is not None
        inside: KValue | None = None
        with ev.scope():
            self._bind(side, depth)
            for at, extent in operand.guards:
                place = ev.linear(at)[0]
                for test in (b.compare("ge", place, b.idx(0)), b.compare("lt", place, ev.dim(extent))):
                    inside = test if inside is None else b.binary("and", inside, test)
            return self._linear(operand.address), inside

    # Loading ----------------------------------------------------------------------------------
    def load(self, place: MatrixTileAddress, step: KValue, exact: bool) -> KValue:
        """The vector at ``place`` in tile ``step`` of the depth, zero beyond the depth unless ``exact``."""
        b = self.frame.b
        start = b.mul(step, b.idx(self.depth))
        if self.operand.address is None:
            return self._computed(place, start, exact)
        if self.operand.scales:
            return self._coded(place, start, exact)
        return self._moved(place, step, start, exact)

    def _moved(self, place: MatrixTileAddress, step: KValue, start: KValue, exact: bool) -> KValue:
        b, ev, operand = self.frame.b, self.frame.ev, self.operand
        assert operand.value is not None and operand.address is not None
        depth, inside = b.add(start, place.depths[0]), None
        if not exact:
            inside = b.compare("lt", depth, ev.dim(self.total_depth))
        if place.base is None:
            if inside is not None:
                depth = b.select(inside, depth, b.idx(0))
            address, within = self._guarded(place.sides[0], depth)
            if within is not None:
                inside = within if inside is None else b.binary("and", inside, within)
                address = b.select(inside, address, b.idx(0))
        else:
            walked = dict(operand.address.terms).get(operand.factor.depth[-1][-1], 0)
            address = b.add(place.base, b.mul(step, ev.dim(dims.mul(walked, self.depth))))
            address = b.add(address, b.idx(place.further))
            if inside is not None:
                address = b.select(inside, address, b.idx(0))
        words = b.load_words(b.bindings[ev.binding_of[operand.value]], address, WORDS)
        return words if inside is None else b.select(inside, words, b.const(0, DType.I32, WORDS))

    def _coded(self, place: MatrixTileAddress, start: KValue, exact: bool) -> KValue:
        """Integers, their scale and their zero as four words: what `store` makes a vector of."""
        b, ev, operand = self.frame.b, self.frame.ev, self.operand
        assert operand.value is not None and operand.address is not None
        depth, inside = b.add(start, place.depths[0]), None
        if not exact:
            inside = b.compare("lt", depth, ev.dim(self.total_depth))
            depth = b.select(inside, depth, b.idx(0))
        bits = operand.value.type.dtype.bits
        with ev.scope():
            self._bind(place.sides[0], depth)
            address = self._linear(operand.address)
            factors = [ev.part(self.root, node) for node in operand.scales]
            zero = b.const(0.0, DType.F32) if operand.zero is None else ev.part(self.root, operand.zero)
        if bits < 8:  # the buffer's elements are bytes
            address = b.binary("shr", address, b.idx(1))
        count = operand.per_vector * bits // 32
        words = b.load_words(b.bindings[ev.binding_of[operand.value]], address, count)
        scale = functools.reduce(b.mul, factors)
        coded = b.const(0, DType.I32, WORDS)
        for number in range(count):
            coded = b.insert(coded, b.extract(words, number) if count > 1 else words, number)
        coded = b.insert(coded, b.bitcast(scale, DType.I32), SCALE)
        coded = b.insert(coded, b.bitcast(zero, DType.I32), ZERO)
        return coded if inside is None else b.select(inside, coded, b.const(0, DType.I32, WORDS))

    def _decoded(self, coded: KValue) -> KValue:
        """The vector of what `_coded` gives."""
        b, operand = self.frame.b, self.operand
        assert operand.value is not None
        scale, zero = (b.bitcast(b.extract(coded, at), DType.F32) for at in (SCALE, ZERO))
        elements: list[KValue] = []
        for first in range(0, operand.per_vector, LANES):
            real = b.cast(b.unpack(coded, operand.value.type.dtype, first, LANES), DType.F32)
            if operand.zero is not None:
                real = b.sub(real, b.splat(zero, LANES))
            real = b.mul(real, b.splat(scale, LANES))
            elements += [b.extract(real, lane) for lane in range(LANES)]
        return self._packed(elements)

    def _computed(self, place: MatrixTileAddress, start: KValue, exact: bool) -> KValue:
        frame, b, ev, operand = self.frame, self.frame.b, self.frame.ev, self.operand
        factor, lanes = operand.factor, operand.lanes
        vectors_of_depth = lanes if operand.along == "depth" else 1
        elements: list[KValue] = []
        for side, within in zip(place.sides, place.depths, strict=True):
            depth, inside = b.add(start, within), None
            if not exact:
                inside = b.compare("lt", depth, ev.dim(self.total_depth))
                depth = frame.minimum(depth, frame.last_place(self.total_depth, vectors_of_depth))
            with ev.scope():
                self._bind(side, depth)
                if lanes > 1:
                    moving = factor.groups if operand.along == "side" else factor.depth
                    ev.vector, ev.multiple = (moving[-1][-1], LANES), LANES
                value = b.splat(ev.part(self.root, factor.part), lanes)
            if inside is not None:
                value = b.select(b.splat(inside, lanes), value, b.const(0, value.type.dtype, lanes))
            elements += [b.extract(value, lane) for lane in range(lanes)]
        return self._packed(elements)

    def _packed(self, elements: Sequence[KValue]) -> KValue:
        """Elements rounded to the operand's type and packed into four words."""
        b, dtype = self.frame.b, self.operand.dtype
        per_word, mask = 32 // dtype.bits, b.const((1 << dtype.bits) - 1, DType.I32)
        words = b.const(0, DType.I32, WORDS)
        for i in range(WORDS):
            word = b.const(0, DType.I32)
            for k in range(per_word):
                number = b.cast(elements[i * per_word + k], dtype)
                code = b.cast(b.bitcast(number, DType.I16) if dtype.is_float else number, DType.I32)
                shift = b.const(k * dtype.bits, DType.I32)
                word = b.binary("or", word, b.binary("shl", b.binary("and", code, mask), shift))
            words = b.insert(words, word, i)
        return words

    def store(self, values: Sequence[KValue], memory: SharedMemory, origin: KValue) -> None:
        """Store the vectors from `load` in the tile that starts at vector ``origin``."""
        b = self.frame.b
        for place, value in zip(self.places, values, strict=True):
            at = b.add(place.at, origin)
            value = self._decoded(value) if self.operand.scales else value
            if place.inside is None:
                b.store(memory, at, value)
                continue
            with b.if_(place.inside):
                b.store(memory, at, value)
