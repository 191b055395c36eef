"""Sums of products with weights of small integers in groups (`mansard.ir.quantised_weight`).

A load of an invocation is of one group. Its codes are multiplied and added without the scales, which are
applied once to each load's sum::

    for chunk: sums += (sum over chunk of x * codes - zero * sum over chunk of x) * scale
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import divides
from mansard.codegen.schedules.common.dequantised import DequantisedProduct, dequantised_product
from mansard.codegen.schedules.gpu.elementwise.vector_loads import VectorLoads
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

F32 = DType.F32


class GroupedSums:
    """The sums of one product's chunks."""

    def __init__(self, ev: Evaluator, root: Root, product: DequantisedProduct) -> None:
        self.ev, self.root, self.product = ev, root, product
        self.held = [node for node in product.outer if self._is_held(node)]
        """Factors in workgroup memory, which cannot be fetched before that is written."""
        self.nodes = [
            *((product.zero,) if product.zero is not None else ()),
            *product.inner,
            *((product.offset,) if product.offset is not None else ()),
            *(node for node in product.outer if node not in self.held),
        ]
        """What else the sum of a chunk is combined with."""

    @classmethod
    def of(cls, ev: Evaluator, nest: Nest, root: Root, chunk: int) -> GroupedSums | None:
        """The sums of a product of this form whose chunks are each of one group, otherwise None."""
        product = dequantised_product(nest, root, chosen=True)
        if product is None or product.plain or not divides(nest.total(product.reduced[-1]), chunk):
            return None
        return cls(ev, root, product)

    def _is_held(self, node: Scalar) -> bool:
        reads, _ = self.ev.nest.part_reads(self.root, node)
        return any(read.value in self.ev.held for read in reads)

    def factors(self) -> list[KValue]:
        """The `nodes` at the bound loops."""
        self.ev.vector = None
        return [self.ev.part(self.root, node) for node in self.nodes]

    def held_factors(self) -> list[KValue]:
        """Those that are `held`, at the bound loops."""
        self.ev.vector = None
        return [self.ev.part(self.root, node) for node in self.held]

    def scaled(self, weighted: KValue, plain: KValue, chunk: Chunk) -> KValue:
        """The total of a chunk whose sums of x with and without codes these are."""
        b, product = self.ev.b, self.product
        factors = [b.splat(f, weighted.type.lanes) for f in (*chunk.factors, *self.held_factors())]
        if product.zero is not None:
            weighted = b.sub(weighted, b.mul(factors.pop(0), plain))
        if product.offset is not None:
            for _ in product.inner:
                weighted = b.mul(weighted, factors.pop(0))
            weighted = b.fma(factors.pop(0), plain, weighted)
        if not factors:
            return b.add(chunk.total, weighted)
        for factor in factors[:-1]:
            weighted = b.mul(weighted, factor)
        return b.fma(weighted, factors[-1], chunk.total)


@dataclass(frozen=True)
class Chunk:
    """A chunk of one output's sum: ``bind`` binds the loops and gives the chunk's start, ``factors`` are
    those of its group, ``total`` is what it is added to."""

    sums: GroupedSums
    loads: VectorLoads
    bind: Callable[[], KValue]
    factors: Sequence[KValue]
    total: KValue


def add_chunks(chunks: Sequence[Chunk], lanes: int) -> list[KValue]:
    """The totals with the chunks added, side by side, so that outputs share what is read of x."""
    b = chunks[0].sums.ev.b
    zero = b.const(0.0, F32, lanes)
    weighted, plain = [zero] * len(chunks), [zero] * len(chunks)
    for element in range(0, chunks[0].loads.chunk, lanes):
        for at, chunk in enumerate(chunks):
            sums = chunk.sums
            chunk.loads.serve(chunk.bind(), element, lanes)
            x = b.splat(sums.ev.part(sums.root, sums.product.x), lanes)
            weighted[at] = b.fma(x, sums.ev.part(sums.root, sums.product.code), weighted[at])
            if sums.product.sums:
                plain[at] = b.add(plain[at], x)
            sums.ev.vector = None
    return [chunk.sums.scaled(w, p, chunk) for w, p, chunk in zip(weighted, plain, chunks, strict=True)]
