"""Sums of products with weights of small integers in groups (`mansard.ir.quantised_weight`).

A load of an invocation is of one group. Its codes are multiplied and added without the scales, which are
applied once to each load's sum::

    for chunk: sums += (sum over chunk of x * codes - zero * sum over chunk of x) * scale
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import divides
from mansard.codegen.schedules.common.dequantised import DequantisedProduct, dequantised_product
from mansard.codegen.schedules.gpu.elementwise.vector_loads import VectorLoads
from mansard.dtypes import DType
from mansard.ir.scalar import Arg, Cast, Scalar, walk

F32 = DType.F32


class GroupedSums:
    """The sums of one product's chunks."""

    def __init__(self, ev: Evaluator, root: Root, product: DequantisedProduct, codes: Scalar) -> None:
        self.ev, self.root, self.product, self.codes = ev, root, product, codes
        self.nodes = [
            *((product.zero,) if product.zero is not None else ()),
            *product.inner,
            *((product.offset,) if product.offset is not None else ()),
            *product.outer,
        ]
        """What the sum of a chunk is combined with."""

    @classmethod
    def of(cls, ev: Evaluator, nest: Nest, root: Root, chunk: int) -> GroupedSums | None:
        """The sums of a product of this form whose chunks are each of one group, otherwise None."""
        product = dequantised_product(nest, root)
        if product is None or product.plain or not divides(nest.total(product.reduced[-1]), chunk):
            return None
        stored = product.codes.value
        for node in walk(root.op.body):
            if isinstance(node, Cast) and node.dtype is F32 and isinstance(node.arg, Arg):
                value = nest.locate(
                    root.op.inputs[node.arg.index],
                    nest.operand_index(root.op, node.arg.index, root.index),
                )[0]
                if value is stored and node.arg.dtype is stored.type.dtype:
                    return cls(ev, root, product, node)
        return None

    def factors(self) -> list[KValue]:
        """The `nodes` at the bound loops."""
        self.ev.vector = None
        return [self.ev.part(self.root, node) for node in self.nodes]

    def add(
        self, loads: VectorLoads, start: KValue, lanes: int, factors: Sequence[KValue], total: KValue
    ) -> KValue:
        """``total`` with the chunk at ``start`` added, at the bound values of the other loops."""
        b, ev, product = self.ev.b, self.ev, self.product
        zero = b.const(0.0, F32, lanes)
        sums, plain = zero, zero
        for element in range(0, loads.chunk, lanes):
            loads.serve(start, element, lanes)
            x = b.splat(ev.part(self.root, product.x), lanes)
            sums = b.fma(x, ev.part(self.root, self.codes), sums)
            if product.sums:
                plain = b.add(plain, x)
        ev.vector = None
        rest = iter([b.splat(factor, lanes) for factor in factors])
        if product.zero is not None:
            sums = b.sub(sums, b.mul(next(rest), plain))
        scales = [next(rest) for _ in product.inner]
        if product.offset is None and not product.outer:
            return b.fma(sums, _product(b, scales), total) if scales else b.add(total, sums)
        if scales:
            sums = b.mul(sums, _product(b, scales))
        if product.offset is not None:
            sums = b.fma(next(rest), plain, sums)
        outer = list(rest)
        return b.fma(sums, _product(b, outer), total) if outer else b.add(total, sums)


def _product(b: KernelBuilder, factors: Sequence[KValue]) -> KValue:
    first, *others = factors
    for other in others:
        first = b.mul(first, other)
    return first
