"""Matching of low-precision sums of products to dot-product instructions."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Arg, Cast, Scalar
from mansard.ir.types import Linear, Value

_BYTES = frozenset({DType.I8, DType.U8})


@dataclass(frozen=True)
class DotFactor:
    """One factor of a low-precision product: a buffer of bf16 or 8-bit integers and the address read."""

    value: Value
    address: Linear


@dataclass(frozen=True)
class LowPrecisionProduct:
    """A summed body ``extend(left) * extend(right)``: bf16 in f32, or 8-bit integers in i32."""

    left: DotFactor
    right: DotFactor

    @property
    def group(self) -> int:
        """Elements per lane of the accumulator."""
        return 2 if self.left.value.type.dtype is DType.BF16 else 4

    def added(self, ev: Evaluator, lanes: int, total: KValue) -> KValue:
        """``total`` and the products of ``lanes`` elements at the bound loops."""
        left, right = (load_raw(ev, factor, lanes) for factor in (self.left, self.right))
        return ev.b.dot(left, right, total)


def low_precision_product(nest: Nest, root: Root, *, padded: bool = False) -> LowPrecisionProduct | None:
    """The factors of a reduction that the kernel IR's ``dot`` supports, or None; with ``padded`` also where
    reads outside a factor give a fill value."""
    body = root.op.body
    if root.op.combiner != "add" or not isinstance(body, Apply) or body.op != "mul":
        return None
    left, right = (_factor(nest, root, arg, body.dtype, padded) for arg in body.args)
    if left is None or right is None:
        return None
    kinds = {left.value.type.dtype, right.value.type.dtype}
    if body.dtype is DType.F32 and kinds == {DType.BF16}:
        return LowPrecisionProduct(left, right)
    if body.dtype is DType.I32 and kinds <= _BYTES:
        return LowPrecisionProduct(left, right)
    return None


def _factor(nest: Nest, root: Root, node: Scalar, accumulator: DType, padded: bool) -> DotFactor | None:
    if not isinstance(node, Cast) or node.dtype is not accumulator:
        return None
    return stored_factor(nest, root, node.arg, padded=padded)


def stored_factor(nest: Nest, root: Root, node: Scalar, *, padded: bool = False) -> DotFactor | None:
    """The buffer and address of a node that is a read of it as it is stored; with ``padded`` also where reads
    outside give a fill value."""
    if not isinstance(node, Arg):
        return None
    op, operand = root.op, node.index
    index_map = op.maps[operand]
    if index_map is None or (index_map.fill is not None and not padded):
        return None
    value, where = nest.locate(op.inputs[operand], nest.operand_index(op, operand, root.index))
    if not isinstance(where, Linear) or value.type.dtype is not node.dtype:
        return None
    return DotFactor(value, where)


def load_raw(ev: Evaluator, factor: DotFactor, lanes: int) -> KValue:
    """``lanes`` consecutive elements without conversion, from the factor's address at the bound loops."""
    base, _ = ev.linear(factor.address)
    return ev.b.load(ev.b.bindings[ev.binding_of[factor.value]], base, lanes)
