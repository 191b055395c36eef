"""Values that a kernel holds in workgroup memory instead of a buffer."""

from __future__ import annotations

from mansard import dims
from mansard.codegen.kernel import KernelBuilder, KValue, SharedMemory
from mansard.codegen.loop_nest import Nest
from mansard.codegen.positions import Params, Positions
from mansard.errors import CodegenError
from mansard.ir.types import Linear, Value

HELD_LINE = 8
"""Vectors of values in workgroup memory of which one after each is free."""


def held_vectors(vectors: int) -> int:
    """The size of workgroup memory for so many vectors of a value that an `Evaluator` holds."""
    return vectors + vectors // HELD_LINE


class HeldValues(Positions):
    """Reads and writes of values in workgroup memory, as vectors or as single numbers."""

    def __init__(self, nest: Nest, builder: KernelBuilder, params: Params) -> None:
        super().__init__(nest, builder, params)
        self.held: dict[Value, SharedMemory] = {}
        """The memory of each."""

    def held_words(self, value: Value, address: Linear) -> KValue:
        """A whole vector of a value that is held, as words."""
        return self.b.words(self._held_vector(self.held[value], self.linear(address)[0]))

    def _held_element(self, memory: SharedMemory, element: KValue) -> KValue:
        """One element, at a place that is computed: chosen out of its vector by halves."""
        b = self.b
        if memory.lanes == 1:
            return b.load(memory, element)
        vector = self._held_vector(memory, element)
        lanes = [b.extract(vector, lane) for lane in range(memory.lanes)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            place = b.binary("and", element, b.idx(half))
            upper = b.compare("ne", place, b.idx(0))
            lanes = [b.select(upper, y, x) for x, y in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    def hold(self, value: Value, element: KValue, vector: KValue) -> None:
        """Store a whole vector of a value that is held, as it is in memory, from an element on."""
        self.b.store(self.held[value], self._place_of_vector(self.held[value], element), vector)

    def _held_vector(self, memory: SharedMemory, base: KValue) -> KValue:
        """The vector that begins with an element, as it is stored."""
        return self.b.load(memory, self._place_of_vector(memory, base))

    def _place_of_vector(self, memory: SharedMemory, element: KValue) -> KValue:
        """The place of the vector that begins with an element."""
        return self._held_place(self.b.binary("shr", element, self.b.idx(memory.lanes.bit_length() - 1)))

    def _held_place(self, number: KValue) -> KValue:
        """The place of a vector in workgroup memory: one after every `HELD_LINE` is free, so that invocations
        that read pieces of one length side by side are in different banks."""
        b = self.b
        return b.add(number, b.binary("shr", number, b.idx(HELD_LINE.bit_length() - 1)))

    def _load_held(self, memory: SharedMemory, address: Linear) -> KValue:
        b, (base, along) = self.b, self.linear(address)
        if memory.lanes == 1 and (self.vector is None or along == 0):
            return b.load(memory, base)
        if self.vector is None or not dims.is_one(along) or self.vector[1] != memory.lanes:
            raise CodegenError(
                f"dispatch {self.nest.dispatch.name}: workgroup memory is read in whole vectors"
            )
        return self._held_vector(memory, base)

    def _store_held(self, memory: SharedMemory, address: Linear, data: KValue) -> None:
        b, (base, along) = self.b, self.linear(address)
        size, data = b.idx(memory.lanes), b.cast(data, memory.dtype)
        if self.vector is not None and dims.is_one(along) and self.vector[1] == memory.lanes:
            b.store(memory, self._held_place(b.binary("div", base, size)), b.splat(data, memory.lanes))
            return
        for lane in range(self.vector[1] if self.vector is not None else 1):
            place = b.add(base, self.dim(dims.mul(along, lane)))
            number, at = b.binary("div", place, size), b.binary("rem", place, size)
            b.store_lane(
                memory, self._held_place(number), at, b.extract(data, lane) if data.type.lanes > 1 else data
            )
