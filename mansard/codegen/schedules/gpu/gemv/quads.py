"""Sums of products of bf16 by matrix units (`mansard.codegen.kernel.quad_products`), for weight streams.

The invocations of a subgroup multiply parts of a row each with its own part of the vector. An instruction
takes four words of weights: two of each of two products that share the vector, or four of one product as a
load or an unpacking leaves them in adjacent registers, of which it multiplies two with their words of the
vector and the others for nothing, which another instruction then multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.kernel.quad_products import (
    SUMS,
    WORDS,
    diagonal,
    float12_pairs,
    quad_products,
)
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.dot_products import DotFactor, low_precision_product
from mansard.codegen.schedules.common.float12 import float12_product
from mansard.codegen.schedules.gpu.gemv.form import Form
from mansard.dtypes import DType

BF16 = DType.BF16


def quad_vector(nest: Nest, form: Form) -> DotFactor | None:
    """The vector of a product for matrix units; None for any other product."""
    root = form.root
    twelve = float12_product(nest, root)
    if twelve is not None:
        return twelve.x if twelve.high.value is form.large.value else None
    product = low_precision_product(nest, root)
    if product is None or product.left.value.type.dtype is not BF16:
        return None
    x = product.right if product.left.value is form.large.value else product.left
    contiguous = dict(x.address.terms).get(form.inner[-1]) == 1
    return x if contiguous and x.value is not form.large.value else None


def same_vector(forms: Sequence[Form], vectors: Sequence[DotFactor]) -> bool:
    """Whether products read one vector in the same way along their loops over the depth."""
    places = set()
    for form, x in zip(forms, vectors, strict=True):
        own = {loop: (n, m) for n, group in enumerate(form.reduced) for m, loop in enumerate(group)}
        terms = frozenset((own.get(loop, loop), step) for loop, step in x.address.terms)
        places.add((x.value, x.address.offset, terms))
    return len(places) == 1


class QuadSums:
    """The sums of some products with the rows of a vector."""

    def __init__(self, b: KernelBuilder, x: DotFactor, products: int, rows: int, lane: KValue) -> None:
        self.b, self.x, self.products, self.rows, self.lane = b, x, products, rows, lane
        self.shared = products == 2

    def zeros(self) -> list[KValue]:
        """The sums before there are any: one for every row where two products share it, else two for every
        product and row."""
        count = self.rows if self.shared else 2 * self.products * self.rows
        return [self.b.const(0.0, DType.F32, SUMS)] * count

    def weights(self, words: KValue, nibbles: KValue | None) -> list[KValue]:
        """The pairs of bf16 of an invocation's load."""
        if nibbles is not None:
            words = float12_pairs(self.b, words, nibbles)
        return [self.b.extract(words, at) for at in range(words.type.lanes)]

    def added(
        self,
        sums: Sequence[KValue],
        weights: Sequence[Sequence[KValue]],
        x: Sequence[Sequence[KValue]],
    ) -> list[KValue]:
        """The sums and the products of an invocation's load of ``weights`` of each product with each row of
        ``x``."""
        steps: list[tuple[Sequence[KValue], Sequence[KValue], int, int]]
        if self.shared:
            mixed = [word for pair in zip(*weights, strict=True) for word in pair]
            steps = [(vector, mixed, 0, 1) for vector in x]
        else:
            steps = [(vector, words, half, 2) for words in weights for vector in x for half in range(2)]
        out = []
        for total, (vector, words, first, step) in zip(sums, steps, strict=True):
            for number, at in enumerate(range(0, len(words), WORDS)):
                start = number * WORDS * step // 2
                of_x = vector[start + first : start + first + 2 * step : step]
                total = quad_products(self.b, total, of_x, words[at : at + WORDS])
            out.append(total)
        return out

    def mine(self, sums: Sequence[KValue]) -> list[KValue]:
        """An invocation's part of the sums of every product and row."""
        b = self.b
        if self.shared:
            halves = [[b.extract(total, 2 * n + i) for i in range(2)] for n in range(2) for total in sums]
            return [diagonal(b, self.lane, *columns) for columns in halves]
        out = []
        for first, second in zip(sums[::2], sums[1::2], strict=True):
            columns = [b.add(b.extract(first, i), b.extract(second, 2 + i)) for i in range(2)]
            out.append(diagonal(b, self.lane, *columns))
        return out
