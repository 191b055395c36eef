"""An invocation's sums over a part of a weight stream that is in a slot: by matrix units, or by vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Read
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.common.dot_products import DotFactor
from mansard.codegen.schedules.gpu.gemv.grouped import Chunk, GroupedSums, add_chunks
from mansard.codegen.schedules.gpu.gemv.quads import QuadSums
from mansard.codegen.schedules.gpu.gemv.rounded import RoundedRows
from mansard.codegen.schedules.gpu.gemv.stream_layout import SUBGROUP, Factor, StreamLayout
from mansard.codegen.schedules.gpu.gemv.sums import ReducedMajor
from mansard.dtypes import DType
from mansard.hal.weight_streams import StreamOperand
from mansard.ir.types import Value

WORD = 4
"""Bytes of a word."""


class SlotSums:
    """The sums of products whose weights a stream brings.

    A slot has parts of the products ``summed``; where products take turns, the first stands for each.
    """

    def __init__(
        self,
        frame: Frame,
        products: Sequence[ReducedMajor],
        nibbles: Sequence[Read | None],
        grouped: Sequence[GroupedSums | None],
        rounded: RoundedRows | None,
        quads: QuadSums | None,
        stream: StreamLayout,
        summed: int,
        rows: int,
        lanes: int,
    ) -> None:
        """``nibbles``: the reads of the lower bits of floats of 12 bits; ``lanes``: of register vectors;
        ``rows``: vectors that the products are multiplied by."""
        self.frame, self.b, self.ev = frame, frame.b, frame.ev
        self.products, self.nibbles, self.grouped = products, nibbles, grouped
        self.rounded, self.quads, self.stream = rounded, quads, stream
        self.summed, self.rows, self.lanes = products[:summed], rows, lanes
        self.form, self.chunk = products[0].form, products[0].chunk
        self.lane = self.b.subgroup_place("subgroup_lane")

    def _chunk(self, part: KValue, number: int) -> Sequence[KValue]:
        """The coordinates of a load of a part."""
        b = self.b
        place = b.add(b.mul(part, b.idx(self.stream.elements)), b.idx(number * SUBGROUP * self.chunk))
        place = b.add(place, b.mul(self.lane, b.idx(self.chunk)))
        return self.frame.decode(place, [self.frame.nest.total(group) for group in self.form.reduced])

    def _bind(self, product: ReducedMajor, chunk: Sequence[KValue], row: int, first: KValue) -> KValue:
        for group, value in zip(product.form.reduced, chunk, strict=True):
            self.ev.bind(group, value)
        product.bind(row, 0, first)
        return chunk[-1]

    def part(self, first: KValue, part: KValue) -> list[KValue]:
        """An invocation's sums over a part of a row, of every product and vector; ``first`` is the output.
        What products read beside the stream is requested before they wait for it."""
        chunks = [self._chunk(part, number) for number in range(self.stream.loads)]
        b, every = self.b, [(p, c, r) for p in self.summed for c in chunks for r in range(self.rows)]
        for product, nibbles in zip(self.summed, self.nibbles, strict=False):
            product.vector_loads.begin()
            streams = [product.form.large, *([nibbles] if nibbles is not None else [])]
            product.vector_loads.sources = dict.fromkeys((read.value for read in streams), None)
        for product, chunk, row in every:
            product.vector_loads.fetch_plain(self._bind(product, chunk, row, first))
        slot = b.stream_wait()
        if self.quads is not None:
            return self._quad_sums(self.quads, slot, first, chunks)
        factors = [self._load_part(slot, number, first, chunks) for number in range(len(self.summed))]
        b.stream_next()
        totals = self._zeros()
        for number, chunk in enumerate(chunks):
            if self.grouped[0] is not None:
                of_chunk = [of_product[number] for of_product in factors]
                totals = self._add_groups(chunk, first, of_chunk, totals)
                continue
            for element in range(0, self.chunk, self.lanes):
                for at, (product, row) in enumerate((p, r) for p in self.summed for r in range(self.rows)):
                    start = self._bind(product, chunk, row, first)
                    product.vector_loads.serve(start, element, self.lanes)
                    totals[at] = reduce.combine(self.ev, product.root, totals[at])
                    self.ev.vector = None
        return totals

    def _quad_sums(
        self, quads: QuadSums, slot: KValue, first: KValue, chunks: Sequence[Sequence[KValue]]
    ) -> list[KValue]:
        """`part` by matrix units."""
        totals = quads.zeros()
        weights: list[list[list[KValue]]] = []
        for at in range(len(chunks)):
            weights.append([])
            for number, product in enumerate(self.summed):
                sources, lower = self._sources(slot, number, at), self.nibbles[number]
                large = product.form.large
                words = self.chunk * large.value.type.dtype.bits // (8 * WORD)
                stored = sources[large.value](words)
                nibbles = sources[lower.value](words // 2) if lower is not None else None
                weights[-1].append(quads.weights(stored, nibbles))
        self.b.stream_next()
        for number, chunk in enumerate(chunks):
            x = [self._x_words(quads.x, chunk, row, first) for row in range(self.rows)]
            totals = quads.added(totals, weights[number], x)
        return quads.mine(totals)

    def _x_words(self, x: DotFactor, chunk: Sequence[KValue], row: int, first: KValue) -> list[KValue]:
        """The words of the vector beside an invocation's load of weights."""
        product = self.products[0]
        start = self._bind(product, chunk, row, first)
        if x.value not in self.ev.held:
            loaded = product.vector_loads.loaded_words(x.value, start)
            assert loaded is not None
            return loaded
        words = []
        for element in range(0, self.chunk, self.lanes):
            self.ev.bind(product.form.inner, start, element)
            vector = self.ev.held_words(x.value, x.address)
            words += [self.b.extract(vector, at) for at in range(vector.type.lanes)]
        return words

    def _zeros(self) -> list[KValue]:
        lanes = self.lanes if self.rounded is None else 1
        return [reduce.start(self.b, p.root, lanes) for p in self.summed for _ in range(self.rows)]

    def _load_part(
        self, slot: KValue, number: int, first: KValue, chunks: Sequence[Sequence[KValue]]
    ) -> list[list[KValue]]:
        """Load a product's share of a slot; the factors of each of an invocation's loads, where weights have
        some."""
        product, operands, grouped = self.products[number], self.stream.products[number], self.grouped[number]
        factors: list[list[KValue]] = []
        for at, chunk in enumerate(chunks):
            product.vector_loads.sources = self._sources(slot, number, at)
            for row in range(self.rows):
                product.vector_loads.fetch(self._bind(product, chunk, row, first))
            if grouped is None:
                continue
            with self.ev.scope():
                self._bind(product, chunk, 0, first)
                for factor, operand in operands.factors:
                    assert factor.read.address is not None
                    self.ev.provide(
                        factor.read.value, factor.read.address, self._factor(slot, factor, operand, at)
                    )
                factors.append(grouped.factors())
        return factors

    def _add_groups(
        self,
        chunk: Sequence[KValue],
        first: KValue,
        factors: Sequence[Sequence[KValue]],
        totals: Sequence[KValue],
    ) -> list[KValue]:
        """The totals with a load of small integers of each product."""
        parts = []
        cells = [(number, row) for number in range(len(self.summed)) for row in range(self.rows)]
        for (number, row), total in zip(cells, totals, strict=True):
            product, grouped = self.products[number], self.grouped[number]
            assert grouped is not None
            bind = functools.partial(self._bind, product, chunk, row, first)
            parts.append(Chunk(grouped, product.vector_loads, bind, factors[number], total))
        if self.rounded is not None:
            return [self.rounded.add(part) for part in parts]
        return add_chunks(parts, self.lanes)

    def _sources(self, slot: KValue, number: int, at: int) -> dict[Value, Callable[[int], KValue]]:
        """What gives the words of a product's weights in a slot, by the value and for a load's number."""
        operands, nibbles = self.stream.products[number], self.nibbles[number]
        sources = {self.products[number].form.large.value: self._words(slot, operands.weights, at)}
        if nibbles is not None:
            ((_, lower),) = operands.factors
            sources[nibbles.value] = self._words(slot, lower, at)
        return sources

    def _words(self, slot: KValue, operand: StreamOperand, number: int) -> Callable[[int], KValue]:
        """The words of a slot that are an invocation's load of an operand by its number."""
        b, size = self.b, operand.part // (self.stream.loads * SUBGROUP)
        byte = b.mul(self.lane, b.idx(size))
        byte = b.add(byte, b.idx(operand.offset + number * SUBGROUP * size))
        return lambda words: b.stream_load(slot, byte, words)

    def _factor(self, slot: KValue, factor: Factor, operand: StreamOperand, number: int) -> KValue:
        """The element of a factor that belongs to an invocation's load of weights."""
        b, dtype = self.b, factor.read.value.type.dtype
        weight = b.add(b.mul(self.lane, b.idx(self.chunk)), b.idx(number * SUBGROUP * self.chunk))
        byte = b.mul(b.binary("shr", weight, b.idx(factor.elements.bit_length() - 1)), b.idx(dtype.bits // 8))
        start = b.add(b.binary("and", byte, b.idx(-WORD)), b.idx(operand.offset))
        word = b.stream_load(slot, start, 1)
        if dtype.bits == 32:
            return b.bitcast(word, dtype)
        shift = b.mul(b.binary("and", byte, b.idx(WORD - 1)), b.idx(8))
        word = b.binary("shr", word, b.cast(shift, DType.I32))
        return b.unpack(word, dtype, 0, 1)
