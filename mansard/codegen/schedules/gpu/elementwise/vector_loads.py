"""Vector loads for an `Evaluator`: operands are loaded as words, chunk by chunk, and staged as vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Read
from mansard.dtypes import DType
from mansard.ir.types import Value

WORD_BITS = 32


class VectorLoads:
    """Reads of ``chunk`` elements along one loop, each loaded once and unpacked for the bodies that use it.
    ``reads`` pairs each read with the number of elements of one aligned load; reads with less than a word are
    left to the evaluator.
    """

    def __init__(
        self, ev: Evaluator, reads: Sequence[tuple[Read, int]], group: Sequence[int], chunk: int
    ) -> None:
        self.ev, self.group, self.chunk = ev, group, chunk
        self.reads = [
            (r, elements)
            for r, elements in reads
            if elements > 1 and elements * r.value.type.dtype.bits >= WORD_BITS
        ]
        self._words: dict[object, list[KValue]] = {}
        self.sources: Mapping[Value, Callable[[int], KValue] | None] = {}
        """What gives the words of operands that are not loaded from their buffers, by how many they are; None
        before there are any."""

    def begin(self) -> None:
        """Discard loaded chunks, when other loops are bound anew."""
        self._words = {}

    def fetch(self, start: KValue) -> None:
        """Load the chunk at ``start`` of every read, at the bound values of the other loops."""
        self.ev.bind(self.group, start)
        self.ev.vector = None
        for read, elements in self.reads:
            self._fetch(read, elements)

    def fetch_plain(self, start: KValue) -> None:
        """`fetch` without the operands that have `sources`."""
        self.ev.bind(self.group, start)
        self.ev.vector = None
        for read, elements in self.reads:
            if read.value not in self.sources:
                self._fetch(read, elements)

    def fetched(self) -> list[KValue]:
        """All that was loaded since `begin`, in order."""
        return [block for blocks in self._words.values() for block in blocks]

    def restore(self, start: KValue, blocks: Iterator[KValue]) -> None:
        """In place of `fetch`: the chunk at ``start``, from an iterator over what `fetched` gave.

        The order of chunks is that in which they were fetched.
        """
        self.ev.bind(self.group, start)
        self.ev.vector = None
        for read, elements in self.reads:
            key = self._key(read)
            if key not in self._words:
                count = self.chunk // min(elements, self.chunk)
                self._words[key] = [next(blocks) for _ in range(count)]

    def words(self, value: Value, start: KValue) -> list[KValue] | None:
        """The chunk of an operand at ``start`` as single words; None if it has no vector loads."""
        self.fetch(start)
        return self.loaded_words(value, start)

    def loaded_words(self, value: Value, start: KValue) -> list[KValue] | None:
        """`words`, without loads of other operands."""
        self.ev.bind(self.group, start)
        self.ev.vector = None
        for read, elements in self.reads:
            if read.value is value:
                blocks = self._fetch(read, elements)
                return [self.ev.b.extract(block, i) for block in blocks for i in range(block.type.lanes)]
        return None

    def serve(self, start: KValue, first: int, lanes: int) -> None:
        """Bind the loop to elements ``first`` to ``first + lanes`` of the chunk at ``start``, and stage the
        loaded elements for the evaluator."""
        ev = self.ev
        self.fetch(start)
        loaded = [(read, elements, self._fetch(read, elements)) for read, elements in self.reads]
        ev.bind(self.group, start, first)
        ev.vector = (self.group[-1], lanes) if lanes > 1 else None
        for read, elements, words in loaded:
            numbers = self._numbers(read.value.type.dtype, words, elements, first, lanes)
            if read.address is not None:
                ev.provide(read.value, read.address, numbers)
            else:
                assert read.computed is not None
                ev.provide_gathered(read.computed, numbers)

    def _fetch(self, read: Read, elements: int) -> list[KValue]:
        key = self._key(read)
        if key not in self._words:
            b, dtype = self.ev.b, read.value.type.dtype
            base = self._base(read)
            memory = b.bindings[self.ev.binding_of[read.value]]
            count = min(elements, self.chunk)
            words = count * dtype.bits // WORD_BITS
            if read.value in self.sources:
                source = self.sources[read.value]
                assert source is not None and count == self.chunk
                self._words[key] = [source(words)]
                return self._words[key]
            places = [b.add(base, b.idx(at)) for at in range(0, self.chunk, count)]
            if dtype.bits < 8:  # the buffer's elements are bytes
                places = [b.binary("shr", at, b.idx(1)) for at in places]
            self._words[key] = [b.load_words(memory, at, words) for at in places]
        return self._words[key]

    def _key(self, read: Read) -> tuple[object, ...]:
        """A read at the bound loops, by their values."""
        if read.address is not None:
            return read.value, self.ev.place(read.address)
        assert read.computed is not None
        return self.ev.gather_key(read.computed)

    def _base(self, read: Read) -> KValue:
        """Its first element."""
        if read.address is not None:
            return self.ev.linear(read.address)[0]
        at = read.computed
        assert at is not None
        return self.ev.b.add(self.ev.gathered(at.op, at.node, at.index), self.ev.linear(at.affine)[0])

    def _numbers(
        self, dtype: DType, words: Sequence[KValue], elements: int, first: int, lanes: int
    ) -> KValue:
        b, count = self.ev.b, min(elements, self.chunk)
        block, at = words[first // count], first % count
        if dtype.bits < WORD_BITS:
            return b.unpack(block, dtype, at, lanes)
        if block.type.lanes != lanes:
            block = (
                b.extract(block, at) if lanes == 1 else b.shuffle(block, block, tuple(range(at, at + lanes)))
            )
        return b.bitcast(block, dtype)
