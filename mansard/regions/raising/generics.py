"""What a Generic is: a convolution, a product, a pool, a reduction or a map."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.ir.ops import Generic
from mansard.ir.types import Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.bodies import BodyRaiser
from mansard.regions.raising.convolutions import is_convolution, raise_convolution
from mansard.regions.raising.products import factors, raise_product
from mansard.regions.raising.windows import raise_window_reduction


def raise_generic(b: NamedBuilder, op: Generic, inputs: Sequence[Value]) -> Value:
    """The value of a Generic's result. Raises NotRaised."""
    if op.combiner is None:
        shape = static(op.extents)
        return b.broadcast(BodyRaiser(b, op, inputs).raised(op.body), shape)
    if is_convolution(op):
        return raise_convolution(b, op, inputs)
    if op.is_contraction and factors(op) is not None:
        return raise_product(b, op, inputs)
    pooled = raise_window_reduction(b, op, inputs)
    return pooled if pooled is not None else _reduction(b, op, inputs)


def _reduction(b: NamedBuilder, op: Generic, inputs: Sequence[Value]) -> Value:
    """Elements computed by the body, then combined along the reduced dims."""
    assert op.combiner is not None
    extents = static(op.extents)
    elements = BodyRaiser(b, op, inputs).raised(op.body)
    reduced = [extent if d in op.reduced else size for d, (extent, size) in _sizes(extents, elements)]
    # Without dims of one element: a toolchain may have a limit of dims, and the loops of a mean have many.
    kept_dims = [d for d, extent in enumerate(reduced) if extent != 1 or d in op.reduced]
    whole = b.reshape(b.broadcast(elements, reduced), [reduced[d] for d in kept_dims])
    result = b.reduce(whole, op.combiner, tuple(n for n, d in enumerate(kept_dims) if d in op.reduced))
    kept = b.reshape(result, reduced[: op.rank])
    return b.broadcast(kept, extents[: op.rank])


def _sizes(extents: Sequence[int], elements: Value) -> list[tuple[int, tuple[int, int]]]:
    return list(enumerate(zip(extents, static(elements.type.shape), strict=True)))
