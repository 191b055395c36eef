"""Matching of products with weights in floats of 12 bits (`mansard.ir.float12`), for kernels that multiply
bf16."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import divides
from mansard.codegen.schedules.common.dot_products import DotFactor, load_raw, stored_factor
from mansard.dtypes import DType
from mansard.ir import float12
from mansard.ir.scalar import Apply, Cast


@dataclass(frozen=True)
class Float12Product:
    """A summed body ``f32(x) * value(high, low)`` with x of bf16."""

    x: DotFactor
    high: DotFactor
    low: DotFactor

    @property
    def group(self) -> int:
        """Elements for each lane of the accumulator: a vector of bytes has two vectors of bf16."""
        return 4

    def added(self, ev: Evaluator, lanes: int, total: KValue) -> KValue:
        """``total`` and the products of ``lanes`` elements at the bound loops."""
        b, half = ev.b, lanes // 2
        x, high = load_raw(ev, self.x, lanes), load_raw(ev, self.high, lanes)
        base, _ = ev.linear(self.low.address)
        low = b.load(b.bindings[ev.binding_of[self.low.value]], b.binary("shr", base, b.idx(1)), half)
        for first in (0, half):
            part = [range(first // n, (first + half) // n) for n in (1, 2)]
            weights = b.float12(b.shuffle(high, high, part[0]), b.shuffle(low, low, part[1]))
            total = b.dot(b.shuffle(x, x, part[0]), weights, total)
        return total


def float12_product(nest: Nest, root: Root) -> Float12Product | None:
    """The parts of a reduction of this form whose numbers lie side by side along the innermost loop, or
    None."""
    body = root.op.body
    if root.op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul" or not root.inner:
        return None
    for x, weight in (body.args, body.args[::-1]):
        parts = float12.parts(weight)
        if parts is None or not isinstance(x, Cast) or x.dtype is not DType.F32:
            continue
        left, high, low = (stored_factor(nest, root, node) for node in (x.arg, *parts))
        if left is None or high is None or low is None or left.value.type.dtype is not DType.BF16:
            continue
        inner = nest.collapsed(root.inner, nest.positions(root))[-1][-1]
        steps = [dict(f.address.terms) for f in (left, high, low)]
        places = [low.address.offset, *(c for at, c in low.address.terms if at != inner)]
        if all(s.get(inner) == 1 for s in steps) and all(divides(place, 2) for place in places):
            return Float12Product(left, high, low)
    return None
